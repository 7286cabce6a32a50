# Generated from chapters/data/worlds.py (edit there); digest 19c1ac23e69bf8dd
"""Worlds: the environments that are ours, registered with Gymnasium."""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from literate_rl.ground.signatures import Count, checked

__all__ = [
    "ForceCartPole",
    "HybridLander",
    "Maze",
    "MazeLevels",
    "Moving",
    "SelectObservation",
    "TMaze",
]

Seen = NDArray[np.float32]
Begun = tuple[Seen, dict[str, Any]]
Stepped = tuple[Seen, float, bool, bool, dict[str, Any]]
RenderMode = Literal["rgb_array"] | None
MazeSize = Annotated[int, Ge(5)]


def check_action(space: spaces.Space[Any], action: Any, name: str = "action") -> None:
    """Raise if an action is not an element of a space."""
    if not space.contains(action):
        raise ValueError(f"{name} must be an element of {space}, got {action!r}")


class Moving(gym.Env[Seen, tuple[Any, ...]]):
    """A point that accelerates, turns and stops; its task is to stop in a target.

    Actions are ``Tuple(Discrete(3), Tuple(Box(1), Box(1), Box(0)))``: accelerate with a
    power in [0, 1], turn by an angle in [-1, 1] quarter circles, or stop. Observations
    hold nine numbers: position, speed, cosine and sine of the heading, the way to the
    target (two coordinates and its length), and 1 inside the target, 0 elsewhere.
    Registered as ``literate_rl/Moving-v0`` with a limit of 100 steps.

    Args:
        render_mode: ``"rgb_array"`` for pictures, or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    max_speed = 0.1
    acceleration = 0.05
    max_turn = math.pi / 2
    target_radius = 0.1
    step_price = 0.005
    pixels = 160

    @checked
    def __init__(self, render_mode: RenderMode = None) -> None:
        self.render_mode = render_mode
        power, angle = spaces.Box(0.0, 1.0, (1,)), spaces.Box(-1.0, 1.0, (1,))
        nothing = spaces.Box(0.0, 1.0, (0,))
        self.action_space = spaces.Tuple(
            (spaces.Discrete(3), spaces.Tuple((power, angle, nothing)))
        )
        # The last step may lead out of the square, by no more than the top speed.
        edge = 1.0 + self.max_speed
        far = 1.0 + edge
        high = [edge, edge, self.max_speed, 1.0, 1.0]
        high += [far, far, math.hypot(far, far), 1.0]
        low = [-edge, -edge, 0.0, -1.0, -1.0, -far, -far, 0.0, 0.0]
        self.observation_space = spaces.Box(
            np.array(low, np.float32), np.array(high, np.float32)
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Begun:
        """Put the agent and the target at random places, well inside the square."""
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.9, 0.9, 2)
        self.target = self.np_random.uniform(-0.9, 0.9, 2)
        self.heading = self.np_random.uniform(-math.pi, math.pi)
        self.speed = 0.0
        return self.observe(), {}

    def step(self, action: tuple[Any, ...]) -> Stepped:
        """Accelerate, turn or stop, then glide for one step."""
        check_action(self.action_space, action)
        kind, (power, angle, _) = action
        before = self.distance()

        # The three types {eq}`hybrid-moving`. Only the type's own argument is read.
        if kind == 0:
            faster = self.speed + self.acceleration * float(power[0])
            self.speed = min(faster, self.max_speed)
        elif kind == 1:
            self.heading += self.max_turn * float(angle[0])
        else:
            self.speed = 0.0
        self.position = self.position + self.speed * self.direction()

        # The reward {eq}`hybrid-moving-reward`.
        reward = before - self.distance() - self.step_price
        arrived = bool(kind == 2 and self.distance() < self.target_radius)
        outside = bool(np.abs(self.position).max() > 1.0)
        reward += float(arrived) - float(outside)
        return self.observe(), reward, arrived or outside, False, {}

    def direction(self) -> NDArray[np.float64]:
        """Cosine and sine of the heading."""
        return np.array([math.cos(self.heading), math.sin(self.heading)])

    def distance(self) -> float:
        """Distance from the agent to the centre of the target."""
        return math.dist(self.position, self.target)

    def observe(self) -> Seen:
        """What the agent sees, (9,)."""
        distance = self.distance()
        way = (*(self.target - self.position), distance)
        inside = float(distance < self.target_radius)
        return np.array(
            [*self.position, self.speed, *self.direction(), *way, inside], np.float32
        )

    def render(self) -> NDArray[np.uint8]:
        """Draw the square: the target as a light disc, the agent with its nose."""
        axis = np.linspace(-1.0, 1.0, self.pixels)
        x, y = np.meshgrid(axis, -axis)
        picture = np.full((self.pixels, self.pixels, 3), 235, np.uint8)
        nose = self.position + 0.09 * self.direction()
        for centre, radius, colour in (
            (self.target, self.target_radius, (120, 190, 120)),
            (self.position, 0.07, (40, 80, 160)),
            (nose, 0.03, (200, 60, 40)),
        ):
            disc = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
            picture[disc] = colour
        return picture


# With a name each environment gets its time limit, which *truncates* an episode.
gym.register(
    "literate_rl/Moving-v0",
    entry_point=Moving,  # type: ignore[arg-type]
    max_episode_steps=100,
)


class HybridLander(gym.ActionWrapper[Seen, tuple[Any, ...], NDArray[np.float64]]):
    """Gymnasium's LunarLander with one engine at a time, and a throttle for each.

    Actions are ``Tuple(Discrete(4), Tuple(Box(0), Box(1), Box(1), Box(1)))``: coast, or
    burn the main, the left or the right engine with a throttle in [0, 1], from half to
    full power. Observations and rewards are those of ``LunarLander-v3``. Registered as
    ``literate_rl/HybridLander-v0`` with a limit of 1,000 steps.

    Args:
        render_mode: ``"rgb_array"`` for pictures, or None.
    """

    @checked
    def __init__(self, render_mode: RenderMode = None) -> None:
        lander = gym.make("LunarLander-v3", continuous=True, render_mode=render_mode)
        # Without the time limit that `make` adds: ours comes with our own registration.
        super().__init__(lander.unwrapped)
        self.unwrapped.metadata = {"render_modes": ["rgb_array"], "render_fps": 50}
        nothing, throttle = spaces.Box(0.0, 1.0, (0,)), spaces.Box(0.0, 1.0, (1,))
        self.action_space = spaces.Tuple(
            (spaces.Discrete(4), spaces.Tuple((nothing, throttle, throttle, throttle)))
        )

    def action(self, action: tuple[Any, ...]) -> NDArray[np.float64]:
        """Return the command that burns one engine, or none, for one step."""
        check_action(self.action_space, action)
        kind, throttles = action
        command = np.zeros(2)
        if kind > 0:
            # At a throttle of exactly 0 LunarLander would not burn at all.
            throttle = max(float(throttles[kind][0]), 1e-6)
            # LunarLander's first number is the main engine: above 0 it burns, from half
            # power at 0 to full power at 1. The second is the side engines: beyond one
            # half they burn, the left one where it is negative, else the right one.
            side = 0.5 + 0.5 * throttle
            command[:] = [(throttle, 0.0), (0.0, -side), (0.0, side)][kind - 1]
        return command


gym.register(
    "literate_rl/HybridLander-v0",
    entry_point=HybridLander,  # type: ignore[arg-type]
    max_episode_steps=1000,
)


MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])


@lru_cache(maxsize=8)
def make_mazes(levels: range, size: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Build levels: walls (L, size, size), places of start and goal (L, 2, 2)."""
    mazes = [make_maze(level, size) for level in levels]
    walls, places = (np.stack(x) for x in zip(*mazes, strict=True))
    return walls, places


def make_maze(level: int, size: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Build a level: walls (size, size) and the places of start and goal, (2, 2)."""
    rng = np.random.default_rng(level)
    walls = np.ones((size, size), dtype=bool)
    # Dig from room to room, always two cells further, and turn back at dead ends.
    path = [tuple(2 * rng.integers((size - 1) // 2, size=2) + 1)]
    walls[path[0]] = False
    while path:
        here = np.array(path[-1])
        inside = [m for m in MOVES if (abs(here + 2 * m - size // 2) < size // 2).all()]
        ahead = [m for m in inside if walls[tuple(here + 2 * m)]]
        if not ahead:
            path.pop()
            continue
        move = ahead[rng.integers(len(ahead))]
        walls[tuple(here + move)] = walls[tuple(here + 2 * move)] = False
        path.append(tuple(here + 2 * move))
    free = np.argwhere(~walls)
    return walls, free[rng.choice(len(free), 2, replace=False)]


class MazeLevels(VectorEnv[Seen, NDArray[np.int64], Any]):
    """Mazes with a goal, all copies stepped together.

    An observation has three layers (3, size, size): walls, the agent, the goal. Actions
    are up, right, down, left; a step into a wall stays. Reaching the goal pays 1 and
    terminates; after 30 steps an episode is truncated. Each episode draws its level.

    Args:
        num_envs: Number of copies B.
        levels: The levels to draw from.
        size: Height and width, odd.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    limit = 30

    @checked
    def __init__(
        self, num_envs: Count, levels: range = range(200), size: MazeSize = 7
    ) -> None:
        if not levels or size % 2 == 0:
            raise ValueError(
                "levels must not be empty and size must be odd, "
                f"got {levels} and {size}"
            )
        self.rng = np.random.default_rng()
        self.num_envs = num_envs
        self.walls, self.places = make_mazes(levels, size)
        self.single_observation_space = spaces.Box(0, 1, (3, size, size))
        self.single_action_space = spaces.Discrete(4)
        batch = gym.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self.copies = np.arange(num_envs)
        self.level = np.zeros(num_envs, dtype=np.int64)
        self.place = np.zeros((num_envs, 2), dtype=np.int64)
        self.time = np.zeros(num_envs, dtype=np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Begun:
        """Start an episode in each copy."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.start(self.copies)
        return self.observe(), {}

    def start(self, copies: NDArray[np.int64]) -> None:
        """Draw a level for some copies and put the agent at its start."""
        level = self.rng.integers(len(self.walls), size=len(copies))
        self.level[copies] = level
        self.place[copies] = self.places[level, 0]
        self.time[copies] = 0

    def observe(self) -> Seen:
        """Return the three layers of each copy, (B, 3, size, size)."""
        one: Any = self.single_observation_space.shape
        obs = np.zeros((self.num_envs, *one), dtype=np.float32)
        obs[:, 0] = self.walls[self.level]
        for layer, place in ((1, self.place), (2, self.places[self.level, 1])):
            obs[self.copies, layer, place[:, 0], place[:, 1]] = 1
        return obs

    def step(self, actions: NDArray[np.int64]) -> tuple[Any, ...]:
        """Move all agents; reset the copies whose episode ends."""
        check_action(self.action_space, np.asarray(actions), "actions")
        ahead = self.place + MOVES[actions]
        blocked = self.walls[self.level, ahead[:, 0], ahead[:, 1]]
        self.place = np.where(blocked[:, None], self.place, ahead)
        self.time += 1
        terminated = (self.place == self.places[self.level, 1]).all(1)
        truncated = ~terminated & (self.time >= self.limit)
        obs, infos = self.observe(), {}
        done = terminated | truncated
        if done.any():
            final = np.full(self.num_envs, None)
            for copy in np.flatnonzero(done):
                final[copy] = obs[copy]
            infos = {"final_obs": final, "_final_obs": done}
            self.start(np.flatnonzero(done))
            obs = self.observe()
        return obs, terminated.astype(np.float64), terminated, truncated, infos


class Maze(gym.Env[Seen, np.int64]):
    """One copy of ``MazeLevels``. Registered as ``literate_rl/Maze-v0``.

    Args:
        levels: The levels to draw from.
        size: Height and width, odd.
        render_mode: ``"rgb_array"`` for pictures, or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

    @checked
    def __init__(
        self,
        levels: range = range(200),
        size: MazeSize = 7,
        render_mode: RenderMode = None,
    ) -> None:
        self.world = MazeLevels(1, levels, size)
        self.observation_space = self.world.single_observation_space
        self.action_space = self.world.single_action_space
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Begun:
        """Start an episode."""
        super().reset(seed=seed)
        self.world.rng = self.np_random
        self.obs = self.world.reset()[0][0]
        return self.obs, {}

    def step(self, action: np.int64) -> Stepped:
        """Move the agent."""
        obs, reward, terminated, truncated, infos = self.world.step(np.array([action]))
        self.obs = infos["final_obs"][0] if infos else obs[0]
        return self.obs, float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> NDArray[np.uint8]:
        """Return a picture: walls dark, the agent orange, the goal green."""
        colours = np.array([[80, 80, 80], [255, 127, 14], [44, 160, 44]])
        layers = self.obs.astype(bool)
        picture = np.full((*layers.shape[1:], 3), 240)
        for layer, colour in zip(layers, colours, strict=True):
            picture[layer] = colour
        return picture.repeat(32, 0).repeat(32, 1).astype(np.uint8)


gym.register(
    "literate_rl/Maze-v0",
    entry_point=Maze,  # type: ignore[arg-type]
)


class ForceCartPole(gym.ActionWrapper[Seen, Seen, int]):
    """CartPole with a force from -1 to 1, in units of 10 newtons.

    Args:
        env: The environment CartPole.
    """

    def __init__(self, env: gym.Env[Seen, int]) -> None:
        super().__init__(env)
        self.action_space = spaces.Box(-1.0, 1.0, (1,))

    def action(self, action: Seen) -> int:
        """Set the strength of the push; return its side."""
        cart: Any = self.unwrapped
        cart.force_mag = 10 * abs(float(action[0]))
        return int(action[0] > 0)


def make_force_cart_pole(**arguments: Any) -> gym.Env[Any, Any]:
    """Make the environment; arguments are those of CartPole."""
    return ForceCartPole(gym.make("CartPole-v1", **arguments))


gym.register("literate_rl/ForceCartPole-v0", entry_point=make_force_cart_pole)


def make_minatar(**arguments: Any) -> gym.Env[Any, Any]:
    """Make one of MinAtar's games; arguments are those of its ``BaseEnv``."""
    try:
        games = import_module("minatar.gym")
    except ModuleNotFoundError as error:
        words = "MinAtar's games need pip install 'literate-rl[minatar]'"
        raise ModuleNotFoundError(words, name=error.name) from error
    env: gym.Env[Any, Any] = games.BaseEnv(use_minimal_action_set=True, **arguments)
    return env


for game in ("asterix", "breakout", "freeway", "seaquest", "space_invaders"):
    name = f"MinAtar/{game.title().replace('_', '')}-v1"
    if name not in gym.registry:  # the package registers them too, when it is asked to
        entry = "literate_rl.data.worlds:make_minatar"
        gym.register(name, entry_point=entry, kwargs={"game": game})


class SelectObservation(gym.ObservationWrapper[NDArray[Any], Any, NDArray[Any]]):
    """Shows some numbers of a vector only, and hides the others.

    Args:
        env: An environment that shows a vector.
        numbers: Which numbers to show. ``SelectObservation(env, 0, 2)`` shows where
            CartPole's cart and pole are, and not how fast they move.
    """

    def __init__(self, env: gym.Env[NDArray[Any], Any], *numbers: int) -> None:
        super().__init__(env)
        self.numbers = list(numbers)
        box: Any = env.observation_space
        low, high = box.low[self.numbers], box.high[self.numbers]
        self.observation_space = spaces.Box(low, high, dtype=box.dtype)

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Return what is left of an observation."""
        part: NDArray[Any] = observation[self.numbers]
        return part


class TMaze(gym.Env[Seen, np.int64]):
    """A corridor with a sign at its start, and at its end a choice.

    Actions are forward, left and right. Observations hold three numbers: 1 or -1 at the
    start, where the sign says on which side the treat lies, 0 elsewhere; 1 at the end
    of the corridor; and how far the end is. At the end left and right end the episode,
    with 1 on the side of the sign and -1 on the other. Any other step costs 0.01, and
    only forward moves. Registered as ``literate_rl/TMaze-v0``, with a limit of 200
    steps.

    Args:
        length: Steps from the start to the end of the corridor.

    Source: Bakker 2001, Reinforcement learning with long short-term memory.
    """

    @checked
    def __init__(self, length: Count = 10) -> None:
        self.length = length
        self.action_space = spaces.Discrete(3)
        self.observation_space = spaces.Box(-1.0, 1.0, (3,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Begun:
        """Begin a corridor, with a sign to one side."""
        super().reset(seed=seed)
        self.place, self.side = 0, int(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action: np.int64) -> Stepped:
        """Go forward, or choose a side."""
        check_action(self.action_space, action)
        if self.place == self.length and action:
            right = int(action) == 1 + self.side
            return self.observe(), 1.0 if right else -1.0, True, False, {}
        self.place = min(self.place + int(action == 0), self.length)
        return self.observe(), -0.01, False, False, {}

    def observe(self) -> Seen:
        """What the agent sees, (3,)."""
        sign = 2.0 * self.side - 1.0 if self.place == 0 else 0.0
        left = 1 - self.place / self.length
        return np.array([sign, self.place == self.length, left], np.float32)


gym.register(
    "literate_rl/TMaze-v0",
    entry_point="literate_rl.data.worlds:TMaze",
    max_episode_steps=200,
)

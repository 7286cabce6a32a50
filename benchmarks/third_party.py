"""Environments of other people: one short training each, as a reader would do it.

``make worlds`` makes an environment of Python in ``build/worlds``, with the versions in
``benchmarks/third_party.txt``, and runs this there. Each world is trained, saved,
loaded and evaluated; nothing has to be learned in so few steps. A table says what
became of each, and the command fails if one of them did. ``--only pong`` tries one.

Each function below is all that lies between a package and ``train``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformObservation

from literate_rl import MaskFromObservation, evaluate, load, train
from literate_rl.data.worlds import Moving, make_minatar

Env = gym.Env[Any, Any]
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def minigrid(**arguments: Any) -> Env:
    """Make a room of MiniGrid: planes of kinds, without the text of the mission."""
    import minigrid  # noqa: F401 (it registers the rooms)
    from minigrid.wrappers import ImgObsWrapper, OneHotPartialObsWrapper

    env = gym.make("MiniGrid-Empty-5x5-v0", **arguments)
    env = ImgObsWrapper(OneHotPartialObsWrapper(env))
    # Its planes are bytes, which would be taken for brightness and divided by 255.
    shape = env.observation_space.shape
    planes = spaces.Box(0, 1, shape, bool)  # type: ignore[arg-type]
    return TransformObservation(env, lambda seen: seen.astype(bool), planes)


def pong(**arguments: Any) -> Env:
    """Make Pong as agents see it since DQN: four small grey frames."""
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1, **arguments)
    return FrameStackObservation(AtariPreprocessing(env), 4)


def highway(**arguments: Any) -> Env:
    """Make highway-env's first road, with less traffic so that it is fast."""
    import highway_env  # noqa: F401 (it registers the roads)

    traffic = {"vehicles_count": 5, "lanes_count": 3, "duration": 10}
    return gym.make("highway-fast-v0", config=traffic, **arguments)


def platform(**arguments: Any) -> Env:
    """Make Platform, whose clock is a number of 200 kinds, as one row."""
    import gym_platform  # noqa: F401 (it registers Platform)

    env = gym.make("Platform-v0", **arguments)
    state, clock = env.observation_space.spaces  # type: ignore[attr-defined]
    seen = spaces.Box(0, 1, (state.shape[0] + 1,))

    def row(obs: Any) -> Any:
        return np.append(obs[0], obs[1] / clock.n).astype(np.float32)

    return TransformObservation(env, row, seen)


class Flat(gym.ActionWrapper[Any, Any, Any]):
    """gym-hybrid's space: three types, and a single box with the numbers of all."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        numbers = spaces.Box(np.array([0, -1], np.float32), np.ones(2, np.float32))
        self.action_space = spaces.Tuple((spaces.Discrete(3), numbers))

    def action(self, action: Any) -> Any:
        """Give each type its own number."""
        kind, (power, angle) = action
        nothing = np.zeros(0, np.float32)
        return kind, (np.array([power]), np.array([angle]), nothing)


# Its types accelerate, turn and stop: which number each of them uses.
MASK = [[True, False], [False, True], [False, False]]


def gym_hybrid(**arguments: Any) -> Env:
    """Make the task of gym-hybrid, which no registry has, with its space of actions."""
    return Flat(Moving(**arguments))


class AgainstChance(gym.Env[Any, Any]):
    """Tic-tac-toe of PettingZoo: we are one of its agents, and the other one draws.

    This is the adapter for any game whose agents take turns: play the others until it
    is our turn, and hand on what we see and what we got.
    """

    def __init__(self) -> None:
        from pettingzoo.classic.tictactoe.tictactoe import raw_env

        self.game = raw_env()
        self.me = self.game.possible_agents[0]
        self.observation_space = self.game.observation_space(self.me)
        self.action_space = self.game.action_space(self.me)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin a game."""
        super().reset(seed=seed)
        self.game.reset(seed)
        obs, *_, infos = self.until_my_turn()
        return obs, infos

    def step(self, action: Any) -> Any:
        """Make our move, and let the other one move."""
        self.game.step(int(action))
        return self.until_my_turn()

    def until_my_turn(self) -> Any:
        """Play the others; return what a step returns."""
        while True:
            shown, reward, terminated, truncated, _ = self.game.last()
            if self.game.agent_selection == self.me:
                return shown, float(reward), terminated, truncated, {}
            legal = shown["action_mask"].nonzero()[0]
            over = terminated or truncated
            self.game.step(None if over else self.np_random.choice(legal))


def tictactoe() -> Env:
    """Make the game; which moves are legal goes where agents look for it."""
    return MaskFromObservation(AgainstChance())


class World(NamedTuple):
    """An environment to try.

    Attributes:
        packages: Whose versions the table names.
        make: Makes one copy.
        algorithm: What learns.
        settings: Its settings, and what else ``train`` takes.
        steps: Limit of an episode.
    """

    packages: str
    make: Callable[..., Env]
    algorithm: str = "PPO"
    settings: Mapping[str, Any] = {"total_steps": 2_000}
    steps: int = 500


WORLDS = {
    **{
        f"MinAtar-{game}": World("MinAtar", partial(make_minatar, game=game))
        for game in GAMES
    },
    "MiniGrid": World("minigrid", minigrid),
    "gym-hybrid": World(
        "literate-rl",
        gym_hybrid,
        settings={"total_steps": 2_000, "mask": MASK},
        steps=100,
    ),
    "Platform": World("hybrid-platform", platform),
    "Pong": World("ale-py", pong, settings={"total_steps": 2_048, "num_envs": 4}),
    "highway": World(
        "highway-env", highway, "DQN", {"total_steps": 500, "iteration_steps": 250}
    ),
    "TicTacToe": World("pettingzoo", tictactoe),
}


def tried(name: str, place: Path) -> str:
    """Train, save, load and evaluate; return what the table says of a world."""
    world = WORLDS[name]

    def env(**arguments: Any) -> Env:
        return TimeLimit(world.make(**arguments), world.steps)

    start = time.perf_counter()
    agent = train(world.algorithm, env, progress=False, **world.settings)
    seconds = time.perf_counter() - start
    policy = load(agent.save(place / name))
    returns = evaluate(policy, env, episodes=3, seed=1, max_episode_steps=world.steps)
    rate = agent.learner.step / seconds
    return f"{agent.learner.step:5d} steps, {rate:5.0f} a second, returns {returns}"


def typed(place: Path) -> str:
    """Train at the command line, where a module registers the environment."""
    words = "dqn --env highway_env:highway-fast-v0 --total-steps 100 --name highway"
    command = [sys.executable, "-m", "literate_rl", *words.split()]
    subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
    load(place / "runs" / "highway")
    return "100 steps, loaded"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the name of a world")
    part = parser.parse_args().only.lower()
    torch.set_num_threads(1)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        trials = {name: partial(tried, name, place) for name in WORLDS}
        trials["highway (typed)"] = partial(typed, place)
        for name, trial in trials.items():
            if part not in name.lower():
                continue
            world = WORLDS[name.split()[0]]
            title = f"{name:22s} {world.packages} {version(world.packages):8s}"
            try:
                print(f"{title:48s} {world.algorithm:4s} {trial()}", flush=True)
            except Exception:  # the others are tried all the same
                failed.append(name)
                print(f"{title:48s} FAILED\n{traceback.format_exc()}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all of them trained")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())

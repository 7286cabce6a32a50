"""Worlds: the environments against their equations and against slow single steps."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from literate_rl.data.worlds import HybridLander, Maze, MazeLevels, Moving

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

# --- Environments -------------------------------------------------------------------

IDS = ["literate_rl/Moving-v0", "literate_rl/HybridLander-v0"]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_environments_conform_to_gymnasium(env_id, render_mode, recwarn):
    check_env(gym.make(env_id, render_mode=render_mode).unwrapped)
    assert not [str(w.message) for w in recwarn if "WARN" in str(w.message)]


@pytest.mark.parametrize("env_id", IDS)
def test_environments_repeat_themselves_with_a_seed(env_id):
    runs = []
    for seed in (3, 3, 4):
        env = gym.make(env_id)
        env.action_space.seed(0)
        rows = [env.reset(seed=seed)[0]]
        for _ in range(30):
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert env.observation_space.contains(obs)
            rows.append([*obs, reward])
            if terminated or truncated:
                rows.append(env.reset()[0])
        runs.append(rows)
    assert all(np.array_equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not np.array_equal(runs[0][0], runs[2][0])


@pytest.mark.parametrize("make", [Moving, HybridLander])
def test_environments_refuse_what_is_not_theirs(make):
    with pytest.raises(ValueError, match="render_mode must be 'rgb_array'"):
        make(render_mode="human")
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action must be an element of"):
        env.step((9, ()))


@pytest.mark.parametrize("env_id", IDS)
def test_environments_draw(env_id):
    env = gym.make(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    assert picture.dtype == np.uint8
    assert picture.std() > 1
    env.close()


def move(kind, power=0.0, angle=0.0):
    values = ([power], [angle], [])
    return kind, tuple(np.array(value, np.float32) for value in values)


def moving_at(position, target, heading=0.0, speed=0.0):
    env = Moving(render_mode="rgb_array")
    env.reset(seed=0)
    env.position, env.target = np.array(position), np.array(target)
    env.heading, env.speed = heading, speed
    return env


@pytest.mark.equation("hybrid-moving")
@given(
    st.sampled_from([0, 1, 2]),
    st.floats(0, 1, width=32),
    st.floats(-1, 1, width=32),
    st.floats(0, 0.1),
    st.floats(-3, 3),
)
def test_moving_follows_its_equations(kind, power, angle, speed, heading):
    env = moving_at((0.1, -0.2), (0.5, 0.5), heading, speed)
    obs, *_ = env.step(move(kind, power, angle))
    if kind == 0:
        speed = min(speed + 0.05 * power, 0.1)
    elif kind == 1:
        heading += math.pi / 2 * angle
    else:
        speed = 0.0
    x, y = 0.1 + speed * math.cos(heading), -0.2 + speed * math.sin(heading)
    way = (0.5 - x, 0.5 - y)
    inside = float(math.hypot(*way) < 0.1)
    expected = [x, y, speed, math.cos(heading), math.sin(heading), *way]
    expected += [math.hypot(*way), inside]
    np.testing.assert_allclose(obs, expected, atol=1e-6)


@pytest.mark.equation("hybrid-moving-reward")
def test_moving_pays_for_the_way_the_stop_and_the_edge():
    # On the way: the distance shrinks by the speed.
    env = moving_at((0.0, 0.0), (0.5, 0.0), speed=0.1)
    _, reward, terminated, truncated, _ = env.step(move(1))
    assert reward == pytest.approx(0.1 - 0.005)
    assert (terminated, truncated) == (False, False)
    # In the target, but not stopped.
    env = moving_at((0.45, 0.0), (0.5, 0.0), speed=0.01)
    assert env.step(move(0))[2] is False
    # Stopped, but not in the target.
    env = moving_at((0.0, 0.0), (0.5, 0.0))
    _, reward, terminated, _, _ = env.step(move(2))
    assert (reward, terminated) == (pytest.approx(-0.005), False)
    # Stopped in the target.
    env = moving_at((0.45, 0.0), (0.5, 0.0), speed=0.1)
    _, reward, terminated, _, _ = env.step(move(2))
    assert (reward, terminated) == (pytest.approx(1 - 0.005), True)
    # Over the edge.
    env = moving_at((0.95, 0.0), (0.5, 0.0), speed=0.1)
    obs, reward, terminated, _, _ = env.step(move(1))
    assert (reward, terminated) == (pytest.approx(-0.1 - 0.005 - 1), True)
    assert env.observation_space.contains(obs)


def test_moving_is_cut_after_a_hundred_steps():
    env = gym.make("literate_rl/Moving-v0")
    env.reset(seed=0)
    for step in range(1, 101):
        _, _, terminated, truncated, _ = env.step(move(1, angle=0.1))
        assert (terminated, truncated) == (False, step == 100)


def rule(obs):
    """Stop in the target, turn towards it, drive."""
    _, _, speed, cos, sin, dx, dy, distance, inside = obs.tolist()
    angle = math.atan2(cos * dy - sin * dx, cos * dx + sin * dy) / (math.pi / 2)
    power = (min(0.1, distance) - speed) / 0.05
    kind = 2 if inside else 1 if abs(angle) > 0.06 else 0
    return move(kind, min(max(power, 0.0), 1.0), min(max(angle, -1.0), 1.0))


def returns_of(env, act, episodes):
    totals = []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, done = total + reward, terminated or truncated
        totals.append(total)
    return totals


def test_moving_can_be_solved_by_a_rule_and_not_by_chance():
    env = gym.make("literate_rl/Moving-v0")
    good_returns = returns_of(env, rule, 50)
    env.action_space.seed(0)
    random_returns = returns_of(env, lambda _: env.action_space.sample(), 50)
    assert min(good_returns) > 0.9
    assert 1.7 < np.mean(good_returns) < 2.0
    assert -1.3 < np.mean(random_returns) < -0.6


def test_moving_draws_what_happens():
    env = moving_at((-0.5, 0.5), (0.5, -0.5))
    picture = env.render()
    quarter = env.pixels // 4
    assert tuple(picture[quarter, quarter]) == (40, 80, 160)  # the agent, top left
    assert tuple(picture[3 * quarter, 3 * quarter]) == (120, 190, 120)
    assert tuple(picture[0, -1]) == (235, 235, 235)
    assert Moving().render() is None


@pytest.mark.parametrize("throttle", [0.0, 0.4, 1.0])
def test_the_lander_is_lunar_lander_with_other_words(throttle):
    burning = max(throttle, 1e-6)  # at 0 LunarLander's engines are off
    side = 0.5 + 0.5 * burning
    throttles = tuple(np.full(n, throttle, np.float32) for n in (0, 1, 1, 1))
    for kind, command in enumerate([(0, 0), (burning, 0), (0, -side), (0, side)]):
        ours, theirs = HybridLander(), gym.make("LunarLander-v3", continuous=True)
        ours.reset(seed=5)
        theirs.reset(seed=5)
        for _ in range(20):
            left = ours.step((kind, throttles))
            right = theirs.unwrapped.step(np.array(command))
            np.testing.assert_allclose(left[0], right[0], atol=1e-5)
            assert left[1] == pytest.approx(float(right[1]), abs=1e-3)
            assert left[2] == right[2]


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_the_lightest_throttle_still_burns(kind):
    powers = tuple(np.zeros(n, np.float32) for n in (0, 1, 1, 1))
    ends = []
    for k in (0, kind):
        env = HybridLander()
        env.reset(seed=5)
        for _ in range(10):
            obs, *_ = env.step((k, powers))
        ends.append(obs)
    assert np.abs(ends[0] - ends[1]).max() > 0.01


# --- Mazes ----------------------------------------------------------------------------


def distance(walls: np.ndarray, start: np.ndarray, goal: np.ndarray) -> int:
    """Length of the shortest way, by a search in width."""
    seen, queue = {tuple(start)}, deque([(tuple(start), 0)])
    while queue:
        (y, x), steps = queue.popleft()
        if (y, x) == tuple(goal):
            return steps
        for place in ((y - 1, x), (y, x + 1), (y + 1, x), (y, x - 1)):
            if not walls[place] and place not in seen:
                seen.add(place)
                queue.append((place, steps + 1))
    raise AssertionError("there is no way")


@pytest.mark.parametrize("size", [5, 7, 11])
def test_every_maze_can_be_solved_and_has_a_border(size: int) -> None:
    world = MazeLevels(1, range(100), size)
    for walls, (start, goal) in zip(world.walls, world.places, strict=True):
        assert walls[0].all()
        assert walls[-1].all()
        assert walls[:, 0].all()
        assert walls[:, -1].all()
        assert distance(walls, start, goal) > 0
    assert len(np.unique(world.walls.reshape(100, -1), axis=0)) > (
        1 if size == 5 else 50
    )


def test_a_level_is_its_number() -> None:
    few, many = MazeLevels(1, range(5, 7)), MazeLevels(1, range(10))
    assert (few.walls == many.walls[5:7]).all()
    assert (few.places == many.places[5:7]).all()


def test_the_single_maze_is_an_environment() -> None:
    check_env(Maze(render_mode="rgb_array"), skip_render_check=False)


def test_all_copies_step_as_single_ones_do() -> None:
    """The same levels and actions in the vector and in slow single steps."""
    world = MazeLevels(8, range(30))
    obs, _ = world.reset(seed=0)
    rng = np.random.default_rng(0)
    singles = [(world.level[k], tuple(world.place[k]), 0) for k in range(8)]
    moves = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    ends = 0
    for _ in range(200):
        actions = rng.integers(4, size=8)
        obs, reward, terminated, truncated, infos = world.step(actions)
        for k, (level, (y, x), time) in enumerate(singles):
            dy, dx = moves[actions[k]]
            if not world.walls[level][y + dy, x + dx]:
                y, x = y + dy, x + dx
            goal = tuple(world.places[level, 1])
            done = (y, x) == goal
            late = not done and time + 1 == 30
            assert (reward[k], terminated[k], truncated[k]) == (done, done, late)
            if done or late:
                ends += 1
                final = infos["final_obs"][k]
                assert infos["_final_obs"][k]
                assert final[1, y, x] == 1
                assert (final[0] == world.walls[level]).all()
                singles[k] = (world.level[k], tuple(world.place[k]), 0)
                assert (world.place[k] == world.places[world.level[k], 0]).all()
            else:
                singles[k] = (level, (y, x), time + 1)
                assert obs[k, 1, y, x] == 1
                assert obs[k, 2][goal] == 1
                assert obs[k, 1:].sum() == 2
    assert ends > 20


@pytest.mark.parametrize(
    "arguments", [(0,), (1, range(0)), (1, range(3), 6), (1, range(3), 3)]
)
def test_mazes_that_cannot_be(arguments: Any) -> None:
    with pytest.raises(
        ValueError, match=r"num_envs must|levels must not be empty|size must"
    ):
        MazeLevels(*arguments)


def test_mazes_name_what_is_wrong() -> None:
    with pytest.raises(TypeError, match="levels must be a range, got list"):
        MazeLevels(1, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="render_mode must be 'rgb_array'"):
        Maze(render_mode="human")
    worlds = MazeLevels(2)
    worlds.reset()  # without a seed
    for actions in ([0, 4], [-1, 0], [0]):
        with pytest.raises(ValueError, match="actions must be an element of"):
            worlds.step(np.array(actions))


def test_the_same_seed_gives_the_same_episodes() -> None:
    first, second = MazeLevels(4), MazeLevels(4)
    for world in (first, second):
        world.reset(seed=3)
    for _ in range(50):
        action = np.random.default_rng(0).integers(4, size=4)
        a, b = first.step(action), second.step(action)
        assert (a[0] == b[0]).all()


def test_a_game_of_minatar_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'literate-rl\[minatar"):
        gym.make("MinAtar/SpaceInvaders-v1")

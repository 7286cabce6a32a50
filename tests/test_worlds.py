"""Worlds: the environments against their equations and against slow single steps."""

from __future__ import annotations

import math
import os
import sys
from collections import deque

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from literate_rl.data.worlds import HybridLander, Maze, MazeLevels, Moving

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

# --- Environments -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Moving", "HybridLander"])
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_environments_conform_to_gymnasium(name, render_mode, recwarn):
    check_env(gym.make(f"literate_rl/{name}-v0", render_mode=render_mode).unwrapped)
    assert not [str(w.message) for w in recwarn if "WARN" in str(w.message)]


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
    for place, speed, action, paid, ended in (
        (0.0, 0.1, move(1), 0.1, False),  # the distance shrinks by the speed
        (0.45, 0.01, move(0), 0.01, False),  # in the target, but not stopped
        (0.0, 0.0, move(2), 0.0, False),  # stopped, but not in the target
        (0.45, 0.1, move(2), 1.0, True),  # stopped in the target
        (0.95, 0.1, move(1), -0.1 - 1, True),  # over the edge
    ):
        env = moving_at((place, 0.0), (0.5, 0.0), speed=speed)
        obs, reward, terminated, truncated, _ = env.step(action)
        assert reward == pytest.approx(paid - 0.005)
        assert (terminated, truncated) == (ended, False)
        assert env.observation_space.contains(obs)


@pytest.mark.parametrize("throttle", [0.0, 0.4, 1.0])
def test_the_lander_is_lunar_lander_with_other_words(throttle):
    burning = max(throttle, 1e-6)  # at 0 LunarLander's engines are off
    side = 0.5 + 0.5 * burning
    throttles = tuple(np.full(n, throttle, np.float32) for n in (0, 1, 1, 1))
    ends = []
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
        ends.append(left[0])
    for end in ends[1:]:
        assert np.abs(end - ends[0]).max() > 0.01, "the lightest throttle still burns"


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
def test_every_maze_can_be_solved_and_has_a_border(size):
    world = MazeLevels(1, range(100), size)
    for walls, (start, goal) in zip(world.walls, world.places, strict=True):
        inside = walls[1:-1, 1:-1].size - walls[1:-1, 1:-1].sum()
        assert inside == walls.size - walls.sum(), "a wall all around"
        assert distance(walls, start, goal) > 0
    different = len(np.unique(world.walls.reshape(100, -1), axis=0))
    assert different > (1 if size == 5 else 50)
    check_env(Maze(render_mode="rgb_array"))
    # A level is its number.
    few = MazeLevels(1, range(5, 7), size)
    assert (few.walls == world.walls[5:7]).all()
    assert (few.places == world.places[5:7]).all()


def test_all_copies_step_as_single_ones_do():
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


def test_what_does_not_fit_is_named(monkeypatch):
    worlds = MazeLevels(2)
    worlds.reset()  # without a seed
    with pytest.raises(ValueError, match="actions must"):
        worlds.step(np.array([0, 4]))
    with pytest.raises(ValueError, match="action must"):
        moving_at((0, 0), (1, 1)).step((9, ()))
    monkeypatch.setitem(sys.modules, "minatar.gym", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'literate-rl\[minatar"):
        gym.make("MinAtar/SpaceInvaders-v1")

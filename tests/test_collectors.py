"""Collectors: rollouts that say where each step led; seeds and devices."""

import random
import re
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from literate_rl.data.agents import (
    Collector,
    best_device,
    make_envs,
    seed_everything,
    true_successors,
)
from literate_rl.data.exact_values import Ring
from literate_rl.maths.returns import discounted_returns

# make_envs, true_successors, rollout


def limited_ring(limit=3, end_probability=0.0):
    return TimeLimit(Ring(end_probability=end_probability), limit)


def always_right(obs):
    return torch.ones(len(obs), dtype=torch.long)


WEIGHT = torch.nn.Parameter(torch.zeros(3, 1))


@pytest.mark.equation("true-successor")
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_rollout_says_where_each_step_led(mode):
    envs = SyncVectorEnv([partial(limited_ring, 4, 0.2)] * 6, autoreset_mode=mode)
    collector = Collector(envs)
    collector.reset(seed=0)
    batch = collector.collect(always_right, 60)
    real, ended = batch.real, batch.terminated | batch.truncated
    # Where the end is told of a step later, a phantom follows, which pays nothing.
    late = mode == AutoresetMode.NEXT_STEP
    assert torch.equal(~real[1:], ended[:-1] & late)
    assert real[0].all()
    assert (batch.reward[~real] == 0).all()
    assert torch.equal(batch.next_obs[real], (batch.obs[real] + 1) % 5)
    assert torch.equal(batch.reward[real], (batch.obs[real] == 0).float())
    assert batch.terminated.any()
    assert (batch.truncated & ~batch.terminated).any()
    # Between two rows of one episode, the successor is the next observation.
    following = torch.cat([batch.obs[1:], torch.from_numpy(collector.obs)[None]])
    goes_on = ~ended & real
    assert torch.equal(batch.next_obs[goes_on], following[goes_on])
    # Returns and lengths are those of whole episodes.
    sums = torch.stack([batch.reward, batch.real.float()]).cumsum(1)
    for b in range(6):
        found = torch.stack(batch[7:9])[:, ended[:, b], b]
        wanted = sums[:, ended[:, b], b].diff(dim=1, prepend=torch.zeros(2, 1))
        assert torch.equal(found, wanted)
    assert torch.equal(batch.episode_return.isnan(), ~ended)


@pytest.mark.parametrize(
    ("env", "policy", "shape", "action_shape"),
    [
        ("Pendulum-v1", lambda obs: obs @ WEIGHT, (3,), (1,)),
        (Ring, always_right, (), ()),
    ],
)
def test_rollout_shapes_and_dtypes(env, policy, shape, action_shape):
    collector = Collector(make_envs(env, num_envs=2), dtype=np.float32)
    collector.reset(seed=0)
    start, seen = collector.obs, []
    kept = start.copy()
    batch = collector.collect(lambda obs: (seen.append(obs.dtype), policy(obs))[1], 5)
    np.testing.assert_array_equal(start, kept)
    np.testing.assert_array_equal(batch.obs[0].numpy(), kept)
    kinds = {*seen, batch.obs.dtype, batch.next_obs.dtype, batch.reward.dtype}
    assert kinds == {torch.float32}
    assert batch.obs.shape == batch.next_obs.shape == (5, 2, *shape)
    assert batch.action.shape == (5, 2, *action_shape)
    assert not batch.action.requires_grad
    assert {tuple(field.shape) for field in batch[4:9]} == {(5, 2)}
    flags = (batch.terminated, batch.truncated, batch.real)
    assert {flag.dtype for flag in flags} == {torch.bool}
    assert collector.step == 10


class ReusingVector(VectorEnv):
    """Two that count to four, in arrays that are always the same."""

    num_envs = 2
    observation_space = gym.spaces.Box(0, 9, (2, 1))
    action_space = observation_space
    single_observation_space = single_action_space = gym.spaces.Box(0, 9, (1,))

    def __init__(self, mode):
        self.metadata = {"autoreset_mode": mode}
        self.late = mode == AutoresetMode.NEXT_STEP
        self.count, self.last = np.zeros((2, 2, 1), np.float32)
        self.reward = np.zeros(2)
        self.flags = np.zeros((3, 2), bool)  # terminated, truncated, which is done
        self.infos = {}

    def reset(self, *, seed=None, options=None):
        self.count[:] = self.flags[:] = 0
        return self.count, {}

    def step(self, actions):
        actions *= 0
        begins = self.flags[1] & self.late
        self.reward[:] = ~begins
        self.count[:] = np.where(begins[:, None], 0, self.count + 1)
        self.flags[1:] = self.count[:, 0] == 4
        self.infos.clear()
        if self.flags[1].any() and not self.late:
            self.last[:] = self.count
            self.infos |= {"final_obs": self.last, "_final_obs": self.flags[2]}
            self.count[:] = 0
        return self.count, self.reward, *self.flags[:2], self.infos


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_arrays_that_are_used_again_are_not_written_down(mode):
    collector, given = Collector(ReusingVector(mode)), torch.zeros(2, 1)
    collector.reset(seed=0)

    def act(obs):
        given[:] = obs + 1  # one tensor for all answers
        obs *= 0  # and what was seen is used as well
        return given

    batch = collector.collect(act, 9)
    length = 5 if mode == AutoresetMode.NEXT_STEP else 4
    wanted = torch.arange(9).float() % length
    led_to = torch.where(wanted == 4, 0.0, wanted + 1)
    for column in range(2):
        assert torch.equal(batch.obs[:, column, 0], wanted)
        assert torch.equal(batch.action[:, column, 0], wanted + 1)
        assert torch.equal(batch.next_obs[:, column, 0], led_to)
        assert torch.equal(batch.truncated[:, column], wanted == 3)
        assert torch.equal(batch.reward[:, column], (wanted != 4).float())
    # The discounted return of the first episode bootstraps from where it was cut.
    value = batch.next_obs.squeeze(-1)
    returns = discounted_returns(batch.reward, value, *batch[4:6], gamma=0.5)
    assert returns[0, 0] == 1 + 0.5 + 0.25 + 0.125 + 4 / 16


def test_a_mode_is_held_to_its_promise():
    envs = ReusingVector(AutoresetMode.SAME_STEP)
    envs.late = True  # it resets a step later than it says
    collector = Collector(envs)
    collector.reset(seed=0)
    with pytest.raises(ValueError, match=r"mode SAME_STEP infos must have final_obs"):
        collector.collect(lambda obs: obs, 9)


def test_numbers_that_are_not_finite_are_found():
    def make():
        return gym.wrappers.TransformReward(gym.make("Pendulum-v1"), lambda x: np.nan)

    collector = Collector(make_envs(make, 2))
    collector.reset(seed=0)
    with pytest.raises(ValueError, match="reward of environment 0 is nan at step 0"):
        collector.collect(lambda obs: obs @ WEIGHT, 1)


# seeds and devices


def test_seed_everything_seeds_three_generators():
    def draw(seed):
        seed_everything(seed)
        return random.random(), np.random.random(), torch.rand(()).item()

    first, again, other = draw(0), draw(0), draw(2**32 - 1)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def successors_of_another_shape():
    last = np.array([None, np.zeros(3)], dtype=object)
    infos = {"final_obs": last, "_final_obs": np.array([False, True])}
    true_successors(np.zeros((2, 2)), infos)


REFUSED = {
    "final_obs must have shape (2,), got (3,)": successors_of_another_shape,
    "call reset first": lambda: Collector(make_envs(Ring)).collect(always_right, 1),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_named(words):
    with pytest.raises(ValueError, match=re.escape(words)):
        REFUSED[words]()


def test_best_device_is_cuda_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert best_device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert best_device() == torch.device("cuda")


# errata


@pytest.mark.erratum("gymnasium-next-step")
def test_next_step_puts_a_phantom_row_behind_every_episode():
    def moves(mode):
        envs = SyncVectorEnv([limited_ring], autoreset_mode=mode)
        obs, _ = envs.reset(seed=4)
        for _ in range(80):
            next_obs, reward, terminated, truncated, infos = envs.step(np.array([1]))
            successor = true_successors(next_obs, infos)
            honest = successor[0] == (obs[0] + 1) % 5
            yield honest, reward[0], bool(terminated[0] or truncated[0])
            obs = next_obs

    rows = list(moves(AutoresetMode.NEXT_STEP))
    assert SyncVectorEnv([Ring]).metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    # Every fourth row is the reset: unpaid, unflagged, and mostly not a move at all.
    phantoms = rows[3::4]
    assert all(reward == 0 and not done for _, reward, done in phantoms)
    assert sum(not honest for honest, _, _ in phantoms) > 10
    assert all(honest for index, (honest, _, _) in enumerate(rows) if index % 4 != 3)
    assert all(honest for honest, _, _ in moves(AutoresetMode.SAME_STEP))


@pytest.mark.erratum("reset-observation")
def test_the_observation_at_done_is_the_next_start():
    envs = make_envs(limited_ring)
    obs, _ = envs.reset(seed=4)
    differs = 0
    for _ in range(30):
        next_obs, _, _, truncated, infos = envs.step(np.array([1]))
        assert true_successors(next_obs, infos)[0] == (obs[0] + 1) % 5
        if truncated[0]:
            assert next_obs[0] == envs.envs[0].unwrapped.cell
            differs += next_obs[0] != infos["final_obs"][0]
        obs = next_obs
    assert differs > 3


@pytest.mark.erratum("neighbouring-seeds")
def test_neighbouring_seeds_share_all_first_episodes_but_one():
    envs = make_envs("CartPole-v1", num_envs=8)
    first, second = envs.reset(seed=0)[0], envs.reset(seed=1)[0]
    np.testing.assert_array_equal(first[1:], second[:-1])
    apart = envs.reset(seed=1000)[0]
    assert not {tuple(row) for row in first} & {tuple(row) for row in apart}

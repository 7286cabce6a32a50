"""Collectors: rollouts that say where each step led; seeds and devices."""

import random
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st

from literate_rl.data.agents import (
    Collector,
    Rollout,
    best_device,
    discounted_returns,
    make_envs,
    seed_everything,
    true_successors,
)
from literate_rl.data.exact_values import Ring

GAMMAS = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0))


# make_envs, true_successors, rollout


def limited_ring(limit=3, end_probability=0.0):
    return TimeLimit(Ring(end_probability=end_probability), limit)


def always_right(obs):
    return torch.ones(len(obs), dtype=torch.long)


@pytest.mark.parametrize("env", ["CartPole-v1", Ring, limited_ring])
def test_make_envs_resets_in_the_same_step(env):
    envs = make_envs(env, num_envs=3)
    assert isinstance(envs, SyncVectorEnv)
    assert envs.num_envs == 3
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert make_envs(env).num_envs == 1


@pytest.mark.parametrize(
    ("env", "num_envs", "error", "message"),
    [
        ("NoSuchTask-v0", 1, ValueError, "env 'NoSuchTask-v0' cannot be made"),
        (Ring(), 1, TypeError, "env must be a str or callable, got Ring"),
        (None, 1, TypeError, "env must be a str or callable, got NoneType"),
        (dict, 1, TypeError, "to be a `gymnasium.Env` but got <class 'dict'>"),
        (
            partial(dict.get, {0: Ring()}, 0),
            2,
            ValueError,
            "env must make a new environment",
        ),
        (Ring, 0, ValueError, "num_envs must be at least 1, got 0"),
        (Ring, 2.0, TypeError, "num_envs must be an integer, got float"),
        (Ring, True, TypeError, "num_envs must be an integer, got bool"),
    ],
)
def test_make_envs_names_the_bad_argument(env, num_envs, error, message):
    with pytest.raises(error, match=message):
        make_envs(env, num_envs)


@pytest.mark.equation("true-successor")
@given(st.integers(1, 5), st.integers(0, 2**31))
def test_true_successors_replace_exactly_the_done_rows(copies, seed):
    generator = np.random.default_rng(seed)
    next_obs = generator.normal(size=(copies, 2)).astype(np.float32)
    done = generator.random(copies) < 0.5
    last = np.full(copies, None, dtype=object)
    for index in np.flatnonzero(done):
        last[index] = generator.normal(size=2).astype(np.float32)
    infos = {"final_obs": last, "_final_obs": done} if done.any() else {}
    before = next_obs.copy()
    successors = true_successors(next_obs, infos)
    for index in range(copies):
        wanted = last[index] if done[index] else next_obs[index]
        np.testing.assert_array_equal(successors[index], wanted)
    successors[:] = 0
    np.testing.assert_array_equal(next_obs, before)
    assert successors.dtype == np.float32


def test_true_successors_refuse_another_shape():
    last = np.array([None, np.zeros(3)], dtype=object)
    infos = {"final_obs": last, "_final_obs": np.array([False, True])}
    with pytest.raises(
        ValueError, match=r"final_obs must have shape \(2,\), got \(3,\)"
    ):
        true_successors(np.zeros((2, 2)), infos)


def collected(env, act, num_steps, num_envs=2, seed=0):
    """Return a fresh collector and its first rollout."""
    collector = Collector(make_envs(env, num_envs))
    collector.reset(seed=seed)
    return collector, collector.collect(act, num_steps)


@pytest.mark.equation("true-successor")
def test_a_rollout_says_where_each_step_led():
    collector, batch = collected(partial(limited_ring, 4, 0.2), always_right, 50, 6)
    assert torch.equal(batch.next_obs, (batch.obs + 1) % 5)
    assert torch.equal(batch.reward, (batch.obs == 0).float())
    assert batch.terminated.any()
    assert (batch.truncated & ~batch.terminated).any()
    # Between two rows of one episode, the successor is the next observation.
    goes_on = ~(batch.terminated | batch.truncated)[:-1]
    assert torch.equal(batch.next_obs[:-1][goes_on], batch.obs[1:][goes_on])
    assert (batch.next_obs[:-1][~goes_on] != batch.obs[1:][~goes_on]).any()
    goes_on = ~(batch.terminated | batch.truncated)[-1].numpy()
    np.testing.assert_array_equal(
        batch.next_obs[-1].numpy()[goes_on], collector.obs[goes_on]
    )


@pytest.mark.parametrize(
    ("env", "obs_shape", "policy", "action_shape"),
    [
        ("CartPole-v1", (4,), always_right, ()),
        ("Pendulum-v1", (3,), lambda obs: torch.zeros(len(obs), 1), (1,)),
        (Ring, (), always_right, ()),
    ],
)
def test_rollout_shapes_and_dtypes(env, obs_shape, policy, action_shape):
    collector = Collector(make_envs(env, num_envs=2))
    collector.reset(seed=0)
    start = collector.obs
    kept = start.copy()
    batch = collector.collect(policy, 5)
    np.testing.assert_array_equal(start, kept)
    np.testing.assert_array_equal(batch.obs[0].numpy(), kept)
    assert isinstance(batch, Rollout)
    assert batch.obs.dtype == torch.from_numpy(kept).dtype
    assert batch.obs.shape == batch.next_obs.shape == (5, 2, *obs_shape)
    assert batch.action.shape == (5, 2, *action_shape)
    assert {tuple(field.shape) for field in batch[4:9]} == {(5, 2)}
    assert batch.reward.shape == (5, 2)
    assert batch.reward.dtype == torch.float32
    flags = (batch.terminated, batch.truncated, batch.real)
    assert {flag.dtype for flag in flags} == {torch.bool}
    assert collector.obs.shape == (2, *obs_shape)
    assert collector.step == 10


def test_observations_are_stored_as_asked():
    collector = Collector(make_envs(Ring), dtype=np.float32)
    collector.reset(seed=0)
    seen = []

    def act(obs):
        seen.append(obs.dtype)
        return always_right(obs)

    batch = collector.collect(act, 3)
    assert {*seen, batch.obs.dtype, batch.next_obs.dtype} == {torch.float32}


def test_two_rollouts_in_a_row_are_one():
    def run(*lengths):
        collector = Collector(make_envs(partial(limited_ring, 4, 0.2), num_envs=3))
        collector.reset(seed=1)
        parts = [collector.collect(always_right, steps) for steps in lengths]
        whole = [part[:9] for part in parts]  # without masks
        return [torch.cat(fields) for fields in zip(*whole, strict=True)]

    for whole, parts in zip(run(20), run(7, 13), strict=True):
        torch.testing.assert_close(whole, parts, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@given(seed=st.integers(0, 50), steps=st.integers(1, 40), rollouts=st.integers(1, 3))
def test_returns_and_lengths_are_those_of_whole_episodes(mode, seed, steps, rollouts):
    envs = SyncVectorEnv([partial(limited_ring, 7, 0.1)] * 3, autoreset_mode=mode)
    collector = Collector(envs)
    collector.reset(seed=seed)
    parts = [collector.collect(always_right, steps) for _ in range(rollouts)]
    whole = [part[:9] for part in parts]  # without masks
    batch = Rollout(*(torch.cat(fields) for fields in zip(*whole, strict=True)))
    for b in range(3):
        paid = length = 0.0
        for t in range(len(batch.reward)):
            paid += batch.reward[t, b].item()
            length += batch.real[t, b].item()
            if (batch.terminated | batch.truncated)[t, b]:
                assert batch.episode_return[t, b] == paid
                assert batch.episode_length[t, b] == length
                paid = length = 0.0
            else:
                assert batch.episode_return[t, b].isnan()
                assert batch.episode_length[t, b].isnan()
    collector.reset(seed=seed)
    again = collector.collect(always_right, steps)
    torch.testing.assert_close(
        again.episode_return, parts[0].episode_return, equal_nan=True
    )


def test_phantoms_are_the_steps_behind_an_end():
    envs = SyncVectorEnv([partial(limited_ring, 4, 0.2)] * 4)
    collector = Collector(envs)
    collector.reset(seed=0)
    batch = collector.collect(always_right, 60)
    done = batch.terminated | batch.truncated
    assert torch.equal(batch.real[1:], ~done[:-1])
    assert batch.real[0].all()
    assert (~batch.real).any()
    # At an end the last observation is seen as it is; a phantom pays nothing.
    assert torch.equal(batch.next_obs[batch.real], (batch.obs[batch.real] + 1) % 5)
    assert (batch.reward[~batch.real] == 0).all()


class Reusing(gym.Env):
    """Counts its steps, up to four, in an array that it hands out again and again."""

    observation_space = gym.spaces.Box(0, 9, (1,))
    action_space = gym.spaces.Box(0, 9, (1,))

    def __init__(self):
        self.count = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        self.count[:] = 0
        return self.count, {}

    def step(self, action):
        self.count += 1
        action *= 0  # what it is given, it uses too
        return self.count, 1.0, False, bool(self.count[0] == 4), {}


class ReusingVector(VectorEnv):
    """Two of them in arrays that are always the same."""

    num_envs = 2
    observation_space = gym.spaces.Box(0, 9, (2, 1))
    single_observation_space = Reusing.observation_space
    action_space = gym.spaces.Box(0, 9, (2, 1))
    single_action_space = Reusing.action_space

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


@pytest.mark.parametrize(
    ("make", "late"),
    [
        (partial(make_envs, Reusing, 2), False),
        (partial(ReusingVector, AutoresetMode.SAME_STEP), False),
        (partial(ReusingVector, AutoresetMode.NEXT_STEP), True),
    ],
)
def test_arrays_that_are_used_again_are_not_written_down(make, late):
    collector, given = Collector(make()), torch.zeros(2, 1)
    collector.reset(seed=0)

    def act(obs):
        given[:] = obs + 1  # one tensor for all answers
        obs *= 0  # and what was seen is used as well
        return given

    batch = collector.collect(act, 9)
    length = 5 if late else 4
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


def test_where_every_step_happens_all_are_real():
    _, batch = collected(partial(limited_ring, 4, 0.2), always_right, 60)
    assert batch.real.all()


def test_an_agent_is_called_without_gradient():
    weight = torch.nn.Parameter(torch.zeros(3, 1))
    _, batch = collected("Pendulum-v1", lambda obs: obs @ weight, 3)
    assert not batch.action.requires_grad


def test_pendulum_is_cut_and_never_over():
    _, batch = collected("Pendulum-v1", lambda obs: torch.zeros(len(obs), 1), 401)
    assert not batch.terminated.any()
    assert batch.truncated.nonzero()[:, 0].unique().tolist() == [199, 399]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1, got 0"),
        ({"num_steps": 1.0}, TypeError, "num_steps must be an integer, got float"),
        ({"act": lambda obs: [1, 1]}, TypeError, "act must return a tensor, got list"),
        (
            {"act": lambda obs: torch.ones(2, 1, dtype=torch.long)},
            ValueError,
            r"act must return shape \(2,\), got \(2, 1\)",
        ),
    ],
)
def test_collect_names_the_bad_argument(change, error, message):
    collector = Collector(make_envs(Ring, num_envs=2))
    collector.reset(seed=0)
    with pytest.raises(error, match=message):
        collector.collect(**({"act": always_right, "num_steps": 2} | change))


def test_collect_asks_for_a_reset():
    with pytest.raises(ValueError, match="call reset first"):
        Collector(make_envs(Ring)).collect(always_right, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["reward", "obs"])
def test_numbers_that_are_not_finite_are_found(value, where):
    class Broken(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
        action_space = gym.spaces.Discrete(2)
        count = 0

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.count += 1
            bad = value if self.count == 3 else 0.0
            obs = np.full(2, bad if where == "obs" else 0.0, np.float32)
            return obs, bad if where == "reward" else 0.0, False, False, {}

    collector = Collector(make_envs(Broken, 2))
    collector.reset(seed=0)
    named = "reward" if where == "reward" else "obs|next_obs"
    with pytest.raises(ValueError, match=rf"({named}) of environment 0 is .* at step"):
        collector.collect(always_right, 5)


def test_a_rollout_moves_to_a_device():
    _, batch = collected(Ring, always_right, 3)
    moved = batch.to(torch.device("meta"))
    assert {field.device.type for field in moved[:9]} == {"meta"}
    assert moved[9:] == (None, None, None)


# seeds and devices


def test_the_same_seed_gives_the_same_run():
    def run(seed):
        seed_everything(seed)
        act = lambda obs: torch.randint(2, (len(obs),))  # noqa: E731
        return collected("CartPole-v1", act, 60, seed=seed)[1]

    for field, again in zip(run(3), run(3), strict=True):
        torch.testing.assert_close(field, again, rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(run(3).obs, run(4).obs)


def test_seed_everything_seeds_three_generators():
    def draw(seed):
        seed_everything(seed)
        return random.random(), np.random.random(), torch.rand(()).item()

    first, again, other = draw(0), draw(0), draw(2**32 - 1)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("seed", "error"),
    [(True, TypeError), (1.0, TypeError), (None, TypeError), (-1, ValueError),
     (2**32, ValueError)],
)  # fmt: skip
def test_seed_everything_names_a_bad_seed(seed, error):
    with pytest.raises(error, match="seed must"):
        seed_everything(seed)


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

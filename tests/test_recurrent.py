"""Policies that remember: their steps, their ends, and the learners that read them."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from test_predict import HYBRID, PICTURE, ROW, TWO, World
from torch import Tensor, nn

from literate_rl.apps.training import train
from literate_rl.data.agents import (
    Rollout,
    Window,
    collector_for,
    seen_by,
    step_of,
)
from literate_rl.data.makers import flat_env
from literate_rl.data.worlds import SelectObservation, TMaze
from literate_rl.learners.a2c import A2CConfig, a2c_gradient
from literate_rl.learners.impala import IMPALAConfig, VTraceLearner, to_unroll
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.maths.fast import gru_scan
from literate_rl.nets.cells import Memory, gru_step, lstm_step
from literate_rl.nets.recurrent import make_recurrent_policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import load

KINDS = ["gru", "lstm"]
BOX = spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.equation("gru")
@pytest.mark.equation("lstm")
@pytest.mark.parametrize(
    ("step", "cell", "gates"), [(gru_step, nn.GRUCell, 3), (lstm_step, nn.LSTMCell, 4)]
)
def test_a_step_is_that_of_pytorch(step, cell, gates):
    torch.manual_seed(0)
    size, parts = 3, gates - 2  # an LSTM's state has two
    theirs = cell(gates * size, size).double()
    nn.init.eye_(theirs.weight_ih)
    nn.init.zeros_(theirs.bias_ih)
    x = torch.randn(5, gates * size, dtype=torch.float64)
    state = torch.randn(5, parts * size, dtype=torch.float64)
    wanted = theirs(x, state if parts == 1 else state.chunk(2, -1))
    wanted = wanted if parts == 1 else torch.cat(wanted, -1)
    found = step(x, state, theirs.weight_hh, theirs.bias_hh)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def memory(kind: str) -> Memory:
    torch.manual_seed(1)
    made = Memory([nn.Linear(2, 2), nn.Tanh()], 2, 3, kind).double()
    for weight in made.parameters():  # biases too
        nn.init.normal_(weight, std=0.5)
    return made


def window(made: Memory, over: Tensor) -> Window:
    torch.manual_seed(2)
    obs, state = (
        torch.randn(*over.shape, size, dtype=torch.float64)
        for size in (2, made.state_size)
    )
    return Window(obs, state, over)


def unrolled(made: Memory, seen: Window) -> Tensor:
    """Step by step, env by env, the slow way."""
    columns = []
    for b in range(seen.obs.shape[1]):
        state, rows = seen.state[0, b], []
        for t in range(len(seen.obs)):
            if seen.over[t, b]:
                state = torch.zeros_like(state)
            state = made.step(made.front(seen.obs[t, b]), state)
            rows.append(state)
        columns.append(torch.stack(rows))
    return torch.stack(columns, 1)


ENDS = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=9)


@pytest.mark.parametrize("kind", KINDS)
@given(over=ENDS)
def test_a_sequence_is_its_steps(kind, over):
    made = memory(kind)
    seen = window(made, torch.tensor(over))
    wanted = unrolled(made, seen)
    torch.testing.assert_close(made.loop(seen), wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(made.states(seen), wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        made(seen), wanted[..., : made.size], rtol=1e-9, atol=1e-9
    )


@pytest.mark.equation("through-time")
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_unrolled_loop(kind):
    made = memory(kind)
    over = torch.rand(12, 4, generator=torch.Generator().manual_seed(4)) < 0.2
    seen = window(made, over)
    factor = torch.randn(12, 4, made.size, dtype=torch.float64)
    inputs = [
        *made.parameters(),
        seen.obs.requires_grad_(),
        seen.state.requires_grad_(),
    ]
    fast, slow = (
        torch.autograd.grad((outputs * factor).sum(), inputs)
        for outputs in (made(seen), unrolled(made, seen)[..., : made.size])
    )
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)


@pytest.mark.equation("gru-gradient")
def test_the_scan_has_the_gradient_of_finite_differences():
    torch.manual_seed(5)
    shapes = (4, 2, 9), (2, 3), (9, 3), (9,)
    inputs = [torch.randn(x, dtype=torch.float64, requires_grad=True) for x in shapes]
    assert torch.autograd.gradcheck(gru_scan, inputs)


def envs_of(env: Any, num_envs: int, mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([partial(flat_env, env)] * num_envs, autoreset_mode=mode)


def policy_for(make: Any, kind: str = "gru") -> Any:
    env = make()
    torch.manual_seed(6)
    made = make_recurrent_policy(env.observation_space, env.action_space, kind, 8)
    for name, weight in made.named_parameters():
        if "bias" in name:  # so that a state that was wiped is not a fixed point
            nn.init.normal_(weight)
    return made


def rollouts(policy: Any, envs: SyncVectorEnv, lengths: list[int]) -> list[Rollout]:
    collector, act = collector_for(policy, envs, np.float32), step_of(policy)
    collector.reset(0)
    generator = torch.Generator().manual_seed(7)

    def move(obs: Tensor, **told: Any) -> Any:
        return act(obs, policy.noise(1, len(obs), generator)[0], **told)

    return [collector.collect(move, length) for length in lengths]


MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


def short(steps: int = 7) -> gym.Env[Any, Any]:
    """CartPole without velocities, which also ends by a time limit."""
    env = SelectObservation(gym.make("CartPole-v1", max_episode_steps=1000), 0, 2)
    return gym.wrappers.TimeLimit(env, steps)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_a_replay_from_the_start_of_the_episode(mode, kind):
    policy = policy_for(short, kind)
    envs = envs_of(short, 3, mode)
    parts = rollouts(policy, envs, [4, 9, 6, 11])
    whole = Rollout(
        *(None if x[0] is None else torch.cat(x) for x in zip(*parts, strict=True))
    )
    assert whole.truncated.any()
    for b in range(3):
        state = policy.start(1)[0]
        for t in range(len(whole.reward)):
            if whole.real[t, b]:
                torch.testing.assert_close(whole.state[t, b], state)
                seen = Window(whole.obs[t, b][None, None], state[None, None])
                state = policy.states(seen)[0, 0].detach()
            if whole.terminated[t, b] or whole.truncated[t, b]:
                state = policy.start(1)[0]
    # What the learner reads agrees with what acted, from the middle of an episode on.
    for part in parts:
        now, _ = seen_by(policy, part)
        behind = policy.states(now).detach()
        inside = part.real[1:] & ~now.over[1:]
        torch.testing.assert_close(behind[:-1][inside], part.state[1:][inside])


@pytest.mark.parametrize("mode", MODES)
def test_a_value_behind_a_time_limit_is_that_of_the_state_behind_the_step(mode):
    policy = policy_for(short)
    (batch,) = rollouts(policy, envs_of(short, 3, mode), [30])
    now, behind = seen_by(policy, batch)
    assert not behind.state.requires_grad
    value, next_value = policy.value(now), policy.value(behind)
    assert value.shape == next_value.shape == batch.reward.shape
    cut, state = batch.truncated, policy.states(now)
    assert cut.any()
    seen = Window(batch.next_obs[cut], state[cut])
    torch.testing.assert_close(next_value[cut], policy.value(seen))
    # Inside of an episode it is the value of the next row.
    inside = ~(now.over[1:] | ~batch.real[1:])
    torch.testing.assert_close(next_value[:-1][inside], value[1:][inside])


def test_a_phantom_row_changes_nothing():
    policy = policy_for(short)
    (batch,) = rollouts(policy, envs_of(short, 3, AutoresetMode.NEXT_STEP), [30])
    phantom = ~batch.real
    assert phantom.any()
    other = batch._replace(obs=batch.obs.clone(), action=batch.action.clone())
    other.obs[phantom] = 3.0
    other.action[phantom] = 1 - other.action[phantom]
    config = A2CConfig(num_envs=3, num_steps=30, recurrent="gru")
    one, losses = a2c_gradient(policy, batch, config)
    two, same = a2c_gradient(policy, other, config)
    assert losses == same
    for x, y in zip(one, two, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("mode", MODES)
def test_minibatches_are_whole_environments(mode):
    envs = envs_of(short, 4, mode)
    config = PPOConfig(num_envs=4, num_steps=20, num_minibatches=2, recurrent="gru")
    learner = PPO(policy_for(short), envs, config)
    batch = learner.collect()
    samples = learner.look_back(batch)
    assert samples.number == 4
    part = samples.take(torch.tensor([3, 1]))
    # The steps that count, in the order of the rollout.
    real = batch.real[:, [1, 3]]
    assert torch.equal(part.action, batch.action[:, [1, 3]][real])
    # Before any step of the optimiser the numbers are those of the rollout.
    log_prob, _ = learner.policy.evaluate_actions(part.obs, part.action)
    torch.testing.assert_close(log_prob, part.log_prob)
    torch.testing.assert_close(learner.policy.value(part.obs), part.value)


def test_an_unroll_from_the_middle_of_an_episode_is_on_policy():
    policy = policy_for(short)
    _, batch = rollouts(policy, envs_of(short, 3, AutoresetMode.SAME_STEP), [5, 30])
    unroll = to_unroll(batch, policy)
    assert unroll.state[0].any()
    learner = VTraceLearner(policy, IMPALAConfig(recurrent="gru"))
    obs = unroll.as_read(unroll.obs_plus_1[:-1])
    log_prob, _ = policy.evaluate_actions(obs, unroll.action)
    torch.testing.assert_close(log_prob, unroll.log_prob)
    # Values of true successors, as they are computed from a rollout.
    value = policy.value(unroll.as_read(unroll.obs_plus_1))
    wanted = policy.value(seen_by(policy, batch)[1])
    next_value = learner.next_value(value.detach(), unroll)
    counts = ~batch.terminated
    torch.testing.assert_close(next_value[counts], wanted[counts])


SMALL: dict[str, Any] = {"total_steps": 96, "num_envs": 4, "num_steps": 8}
MORE = {
    "PPO": {"num_minibatches": 2, "num_epochs": 2},
    "PPG": {
        "num_minibatches": 2,
        "num_epochs": 2,
        "aux_interval": 2,
        "value_epochs": 1,
    },
    "A2C": {},
    "A3C": {"actors": 2},
    "IMPALA": {"batch_size": 4},
}


def trained(name: str, env: Any, **more: Any) -> Any:
    options: Any = {
        **SMALL,
        **MORE[name],
        "recurrent_size": 8,
        "progress": False,
        **more,
    }
    return train(name, env, **options)


WORLDS = {
    "discrete": (ROW, TWO),
    "masked": (ROW, spaces.Discrete(3), 3),
    "choices": (ROW, spaces.MultiDiscrete([2, 3])),
    "box": (ROW, BOX),
    "hybrid": (ROW, HYBRID),
    "picture": (PICTURE, TWO),
}


@pytest.mark.parametrize(
    ("name", "world"),
    [("PPO", world) for world in WORLDS]
    + [("PPG", "hybrid"), ("A2C", "picture"), ("A3C", "masked"), ("IMPALA", "box")],
)
def test_all_learners_take_all_actions(name, world, tmp_path):
    env = partial(World, *WORLDS[world])
    agent = trained(name, env, recurrent="lstm" if world == "box" else "gru")
    assert all(x.isfinite().all() for x in agent.policy.parameters())
    assert np.isfinite(evaluate(agent.policy, env, 3)).all()
    # It comes back as it was.
    policy = load(agent.save(tmp_path / "run"))
    for x, y in zip(policy.parameters(), agent.policy.parameters(), strict=True):
        assert torch.equal(x, y)
    assert np.array_equal(evaluate(policy, env, 3), evaluate(agent.policy, env, 3))


@pytest.mark.parametrize("name", MORE)
def test_a_resumed_run_ends_with_the_same_bits(name, tmp_path):
    more: Any = {"recurrent": "gru", "checkpoint_interval": 2, "total_steps": 256}
    more["wrappers"] = ["literate_rl:SelectObservation(0, 2)"]
    whole = trained(name, "CartPole-v1", **more)
    stop: Any = {"callback": lambda learner, metrics: learner.step >= 128}
    run = trained(name, "CartPole-v1", **more, **stop).save(tmp_path / "run")
    resumed = train(name, resume=run, wrappers=more["wrappers"], progress=False)
    for x, y in zip(
        whole.policy.parameters(), resumed.policy.parameters(), strict=True
    ):
        assert torch.equal(x, y)


def test_actors_send_states():
    more = {"actors": 2, "transport": "shared", "recurrent": "lstm"}
    agent = trained("IMPALA", "literate_rl/TMaze-v0", **more)
    assert all(x.isfinite().all() for x in agent.policy.parameters())


def test_predict_remembers_until_reset():
    policy = policy_for(TMaze)

    def state():
        policy.predict(np.ones((3, 3), np.float32))
        return policy.state.clone()

    first, second = state(), state()
    assert not torch.equal(first, second), "it knows what it has seen"
    # The states of the rows whose episode is over are wiped, and no others.
    policy.reset(np.array([True, False, True]))
    assert torch.equal(policy.state[1], second[1])
    assert not policy.state[[0, 2]].any()
    policy.reset()
    assert torch.equal(state(), first)
    with pytest.raises(ValueError, match="3 rows"):
        policy.predict(np.zeros((2, 3), np.float32))


def test_a_maze_is_solved_by_who_remembers_its_sign():
    env, signs = TMaze(3), set()
    for seed in range(6):
        (sign, *_), _ = env.reset(seed=seed)
        signs.add(sign)
        steps = [env.step(action) for action in (0, 0, 0, 2 if sign > 0 else 1)]
        assert [step[1] for step in steps] == [-0.01, -0.01, -0.01, 1.0]
        assert [step[2] for step in steps] == [False, False, False, True]
        assert steps[-1][0].tolist() == [0.0, 1.0, 0.0]
    assert signs == {-1, 1}

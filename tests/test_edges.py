"""What users try at the edges: half of a pair, whole numbers, scalars, no real step."""

import math
import pickle
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import nn
from worlds import Apart

from literate_rl.actors.apex import first_priorities
from literate_rl.apps.training import train
from literate_rl.check.contracts import check_model
from literate_rl.check.own_models import (
    make_contract_policy,
)
from literate_rl.check.probes import DemandError
from literate_rl.data.agents import Rollout
from literate_rl.data.memory import UnrollBuffer
from literate_rl.data.replay import ReplayBuffer
from literate_rl.ground.interrupts import StopWaiting
from literate_rl.ground.nests import SpaceError
from literate_rl.ground.signatures import NotFiniteError, check_finite
from literate_rl.learners.a2c import A2C, A2CConfig
from literate_rl.learners.dqn import DQNConfig, QLearning, make_q_policy
from literate_rl.learners.ppg_learner import make_phasic_policy
from literate_rl.maths.c51 import project_distribution
from literate_rl.maths.dqn import double_q_target, q_target
from literate_rl.maths.off_policy import (
    clipped_policy,
    vtrace,
    vtrace_data,
    vtrace_error_discrete_action,
)
from literate_rl.maths.td3 import clipped_double_target
from literate_rl.nets.policies import RewardScaler, make_policy
from literate_rl.runs.evaluation import evaluate

CARTPOLE = "CartPole-v1"
STATES = spaces.Box(-1, 1, (3,))
FORCES, LIST = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
NO, ROWS = torch.zeros(3, 1, dtype=torch.bool), torch.zeros(3, 1)


class Judge(nn.Module):
    """A critic of one's own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, state, action, scale=1.0):
        return scale * self.layer(torch.cat([state, action], -1))


class Mover(nn.Module):
    """An actor of one's own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, state, scale=1.0):
        return (scale * self.layer(state)).tanh()


class Drawer(nn.Module):
    """An actor without a method ``mode``."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, state, action=None):
        dist = torch.distributions.Categorical(logits=self.layer(state))
        action = dist.sample().unsqueeze(-1) if action is None else action
        log_prob = dist.log_prob(action.squeeze(-1)).unsqueeze(-1)
        return action, log_prob, dist.entropy().unsqueeze(-1)


class Worth(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, state):
        return self.layer(state)


def test_greedy_actions_of_an_actor_without_a_mode_can_be_repeated():
    actor = Drawer()
    actor.mode = "train"  # no method, so it draws
    policy = make_contract_policy(spaces.Box(-1, 1, (4,)), LIST, actor, Worth())
    before = torch.random.get_rng_state()
    first, second = (evaluate(policy, CARTPOLE, 5, seed=0) for _ in range(2))
    assert (first == second).all()
    policy.act(torch.randn(3, 4, generator=torch.Generator()), 0.0)
    assert torch.equal(before, torch.random.get_rng_state())


# --- Refusals -------------------------------------------------------------------------


def one_step_of_copies_that_reset_in_a_step_of_their_own():
    envs = SyncVectorEnv([partial(gym.make, CARTPOLE)] * 4)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    A2C(policy, envs, A2CConfig(num_envs=4, num_steps=1))


INFINITE, PROB = torch.tensor([0.0, math.inf]), torch.full((2, 5), 0.2)
PAIR, LEGAL = torch.ones(2), torch.tensor([[[0.0, -math.inf]]])


def off_policy_error(target, behaviour):
    action, value = torch.zeros(1, 1).long(), torch.zeros(2, 1)
    data = vtrace_data(target, behaviour, action, value, torch.zeros(1, 1), None)
    vtrace_error_discrete_action(data)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (
            "num_steps must be above 1",
            one_step_of_copies_that_reset_in_a_step_of_their_own,
        ),
        *(
            ("reward must be", partial(project_distribution, PROB, x, PAIR, 0.0, 4.0))
            for x in (INFINITE, -INFINITE)
        ),
        # Of a log-probability: minus infinity is one.
        ("behaviour_output must", partial(off_policy_error, LEGAL, LEGAL * math.nan)),
        ("target_output must", partial(off_policy_error, LEGAL * math.nan, LEGAL)),
    ],
)
def test_who_is_to_blame_is_named(words, call):
    with pytest.raises(ValueError, match=words):
        call()


# --- Numbers of all kinds -------------------------------------------------------------


def test_normalised_bytes_are_not_scaled_again():
    box = spaces.Box(0, 255, (3, 8, 8), np.uint8)
    policy = make_phasic_policy(box, LIST, normalize=True)
    pictures = torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8)
    policy.network.normalizer.update(pictures.float())
    seen = []
    encoder = policy.network.network.heads.policy_encoder
    first = next(m for m in encoder.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_hook(lambda _, given, __: seen.append(given[0].std()))
    policy.act(pictures, 0.0)
    assert 0.9 < seen[0] < 1.1


@pytest.mark.parametrize("bound", [None, math.inf])
def test_no_bound_may_be_infinite(bound):
    new, old = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    assert (clipped_policy(new, old, bound) == old).all(), "all that both policies do"
    ratios = {"rho_clip_ratio": bound, "c_clip_ratio": None}
    target, _ = vtrace(ROWS, ROWS, ROWS, ROWS, NO, NO, **ratios)
    assert (target == 0).all()


@pytest.mark.parametrize("target", [q_target, double_q_target, clipped_double_target])
def test_a_target_carries_no_gradient_whoever_brings_one(target):
    reward = torch.zeros(2, requires_grad=True)
    values = [torch.ones(2, 2)] * (2 if target is double_q_target else 1)
    assert not target(reward, PAIR, *values).requires_grad


def test_a_rollout_of_rows_that_are_no_steps_changes_nothing():
    """One environment, one row, and it stands behind the end of an episode."""
    rows, no = ROWS[:1], NO[:1]
    scaler = RewardScaler(1, 0.9)
    assert torch.isfinite(scaler(rows, no, no)).all()
    assert scaler.moments.count == 0
    obs = torch.zeros(1, 1, 3)
    empty = Rollout(obs, rows.long(), rows, obs, no, no, no, rows, rows)
    memory = ReplayBuffer(10, priority_exponent=0.6)
    memory.push(empty)
    memory.push(empty, rows)
    memory.push(empty._replace(real=~no), rows + 2)
    assert (len(memory), memory.largest) == (1, 2)
    algorithm = QLearning(make_q_policy(STATES, LIST), DQNConfig())
    found = first_priorities(algorithm, empty, 1, 0.9, torch.Generator())
    assert torch.equal(found, rows)


def test_priorities_beyond_float32_are_drawn_by():
    memory = UnrollBuffer(4, alpha=1.0, beta=1.0)
    memory.push([0, 1])
    entries = memory.sample(2, torch.Generator())
    memory.update(entries, [1e39] * len(entries))
    assert memory.sample(2, torch.Generator())[0]["IS"] > 0


# --- Errors that travel ---------------------------------------------------------------


def throw(error):
    raise error


@pytest.mark.parametrize(
    "call",
    [
        partial(check_model, "DQN", qnet=nn.Linear(3, 2), env=CARTPOLE),
        partial(check_finite, math.inf, reward=torch.tensor([1e30])),
        *(partial(throw, x("words")) for x in (DemandError, SpaceError, StopWaiting)),
    ],
)
def test_an_error_that_has_travelled_is_the_same(call):
    """As out of the pool of another process, and on."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011 (each has its own)
        call()
    error = raised.value
    error.add_note("a note")
    for _ in "ab":
        there = pickle.loads(pickle.dumps(error))
        assert type(there) is type(error)
        assert (str(there), vars(there)) == (str(error), vars(error))
        error = there


# --- Numbers that are too large -------------------------------------------------------


def rich(box, pay):
    """Pay so much that no float holds the square, or the sum of some squares."""
    return gym.wrappers.TransformReward(Apart(box, 0.0), lambda _: pay)


PAID = [(x, False) for x in ("PPO", "PPG", "A2C", "A3C", "IMPALA", "SAC")]
PAID += [(x, True) for x in ("DDPG", "HDDPG", "TD3", "SAC")]
CASES = [(*x, pay) for x in PAID for pay in (1e19, 1e38)]
CASES += [("Rainbow", False, 1e38)]


@pytest.mark.parametrize(
    ("algorithm", "box", "pay"),
    CASES,
)
@pytest.mark.filterwarnings("ignore:no episode ended")
def test_rewards_that_are_too_large_are_to_blame(algorithm, box, pay):
    with pytest.raises(NotFiniteError) as raised:
        train(algorithm, partial(rich, box, pay), total_steps=2_000, progress=False)
    (note,) = [x for x in raised.value.__notes__ if "near step" in x]
    assert note.endswith("or smaller rewards (scale_reward or reward_scale)")

"""What users try at the edges: no bounds, no real step, numbers that are too large."""

import math
import pickle
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from worlds import Apart

from literate_rl.actors.apex import first_priorities
from literate_rl.apps.training import train
from literate_rl.check.contracts import check_model
from literate_rl.check.probes import DemandError
from literate_rl.data.agents import Rollout
from literate_rl.data.replay import ReplayBuffer
from literate_rl.ground.interrupts import StopWaiting
from literate_rl.ground.nests import SpaceError
from literate_rl.ground.signatures import NotFiniteError, check_finite
from literate_rl.learners.dqn import DQNConfig, QLearning, make_q_policy
from literate_rl.learners.ppg_learner import make_phasic_policy
from literate_rl.maths.off_policy import clipped_policy, vtrace
from literate_rl.nets.policies import RewardScaler

CARTPOLE = "CartPole-v1"
STATES = spaces.Box(-1, 1, (3,))
LIST = spaces.Discrete(2)
NO, ROWS = torch.zeros(3, 1, dtype=torch.bool), torch.zeros(3, 1)


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
PAID += [(x, True) for x in ("DDPG", "TD3", "SAC")]
CASES = [(*x, 1e19) for x in PAID] + [("PPO", False, 1e38), ("Rainbow", False, 1e38)]


@pytest.mark.parametrize(("algorithm", "box", "pay"), CASES)
@pytest.mark.filterwarnings("ignore:no episode ended")
def test_rewards_that_are_too_large_are_to_blame(algorithm, box, pay):
    with pytest.raises(NotFiniteError) as raised:
        train(algorithm, partial(rich, box, pay), total_steps=2_000, progress=False)
    (note,) = [x for x in raised.value.__notes__ if "near step" in x]
    assert note.endswith("or smaller rewards (scale_reward or reward_scale)")

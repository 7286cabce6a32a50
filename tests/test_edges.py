"""What users try at the edges: half of a pair, whole numbers, scalars, no real step."""

from __future__ import annotations

import importlib
import inspect
import math
import pickle
import pkgutil
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

import literate_rl
from literate_rl.actors.apex import apex_settings, first_priorities
from literate_rl.apps.training import Agent, make_learner, train
from literate_rl.book.pictures import Axis, Mark, plot
from literate_rl.book.playground import play
from literate_rl.check.contracts import check_model
from literate_rl.check.own_models import (
    as_many,
    drawn,
    make_contract_policy,
    make_own_ddpg_policy,
    results_for,
)
from literate_rl.check.probes import Probe
from literate_rl.data.agents import Rollout, make_envs
from literate_rl.data.memory import UnrollBuffer
from literate_rl.data.replay import ReplayBuffer
from literate_rl.data.worlds import Moving
from literate_rl.ground.nests import plain_space
from literate_rl.ground.signatures import NotFiniteError, check_finite
from literate_rl.learners.a2c import A2C, A2CConfig
from literate_rl.learners.ddpg import BoxActions
from literate_rl.learners.dqn import DQNConfig, QLearning, make_q_policy
from literate_rl.learners.ppg_learner import PPGConfig, make_phasic_policy
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.learners.rainbow import make_rainbow_policy
from literate_rl.learners.sac import SAC, SACConfig, make_sac_policy
from literate_rl.maths.c51 import project_distribution, project_distribution_loop
from literate_rl.maths.dqn import double_q_target, q_target
from literate_rl.maths.fast import categorical_terms
from literate_rl.maths.noisy import NoisyLinear
from literate_rl.maths.off_policy import (
    clipped_policy,
    vtrace,
    vtrace_data,
    vtrace_error_discrete_action,
)
from literate_rl.maths.policy_gradient import categorical_log_prob
from literate_rl.maths.td3 import clipped_double_target
from literate_rl.nets.hybrid_policy import HybridActions
from literate_rl.nets.parts import GaussianActions, RunningMoments
from literate_rl.nets.policies import RewardScaler, make_policy
from literate_rl.runs.evaluation import evaluate, paired_difference

STATES = spaces.Box(-1, 1, (3,))
FORCES = spaces.Box(-1, 1, (2,))


class Judge(nn.Module):
    """A critic of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, state: Tensor, action: Tensor, scale: float = 1.0) -> Tensor:
        return scale * self.layer(torch.cat([state, action], -1))


class Mover(nn.Module):
    """An actor of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, state: Tensor, scale: float = 1.0) -> Tensor:
        return (scale * self.layer(state)).tanh()


class Drawer(nn.Module):
    """An actor without a method ``mode``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, state: Tensor, action: Any = None) -> tuple[Tensor, ...]:
        dist = torch.distributions.Categorical(logits=self.layer(state))
        action = dist.sample().unsqueeze(-1) if action is None else action
        log_prob = dist.log_prob(action.squeeze(-1)).unsqueeze(-1)
        return action, log_prob, dist.entropy().unsqueeze(-1)


class Worth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, state: Tensor) -> Tensor:
        return self.layer(state)


def test_a_critic_with_fixed_arguments_has_a_twin() -> None:
    one, two = as_many(partial(Judge(), scale=2.0), 2)
    assert one.keywords == two.keywords == {"scale": 2.0}
    assert not torch.equal(one.func.layer.weight, two.func.layer.weight)


def test_an_agent_asks_models_with_the_arguments_that_were_fixed(
    tmp_path: Path,
) -> None:
    actor = partial(Mover(), scale=3.0)
    policy = make_own_ddpg_policy(STATES, FORCES, actor, Judge())
    state = torch.randn(4, 3)
    (action,) = results_for(policy.network.actor.by_name, {"state": state})
    assert torch.equal(action, actor.func(state, 3.0))
    learner: Any = type("Learner", (), {"policy": policy})
    agent = Agent(learner, tmp_path, [])
    assert torch.equal(agent.act({"state": state}), action)


def test_greedy_actions_of_an_actor_without_a_mode_can_be_repeated() -> None:
    box = gym.make("CartPole-v1").observation_space
    actor = Drawer()
    actor.mode = "train"  # type: ignore[assignment]  # no method, so it draws
    policy = make_contract_policy(box, spaces.Discrete(2), actor, Worth())
    first, second = (evaluate(policy, "CartPole-v1", 5, seed=0) for _ in range(2))
    assert (first == second).all()
    before = torch.random.get_rng_state()
    policy.act(torch.randn(3, 4, generator=torch.Generator()), 0.0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_gradient_of_sac_is_clipped() -> None:
    envs = make_envs("Pendulum-v1", 1)
    policy = make_sac_policy(envs.single_observation_space, envs.single_action_space)
    config = SACConfig(
        num_envs=1, learning_starts=20, total_steps=40, batch_size=8, max_grad_norm=1e-3
    )
    learner = SAC(policy, envs, config)
    while learner.step < 40:
        learner.iterate()
    norm = torch.stack([p.grad.norm() for p in learner.actor]).norm()
    assert 0.9e-3 < norm <= 1e-3


def test_too_few_critics_of_sac_are_counted() -> None:
    envs = make_envs("Pendulum-v1", 1)
    spaces_of_one = envs.single_observation_space, envs.single_action_space
    policy = make_sac_policy(*spaces_of_one, num_critics=1)
    with pytest.raises(ValueError, match="must have 2 critics or more, got 1"):
        SAC(policy, envs, SACConfig(num_envs=1))


def test_normalised_bytes_are_not_scaled_again() -> None:
    box = spaces.Box(0, 255, (3, 8, 8), np.uint8)
    policy = make_phasic_policy(box, spaces.Discrete(2), normalize=True)
    pictures = torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8)
    policy.network.normalizer.update(pictures.float())
    seen = []
    encoder = policy.network.network.heads.policy_encoder
    first = next(m for m in encoder.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_hook(lambda _, given, __: seen.append(given[0].std()))
    policy.act(pictures, 0.0)
    assert 0.9 < seen[0] < 1.1


def test_integers_are_normalised_as_floats() -> None:
    moments = RunningMoments(1)
    moments.update(torch.tensor([[2.0], [8.0]]))
    wanted = moments(torch.tensor([[0.0], [6.0]]))
    for dtype in (torch.uint8, torch.int64):
        found = moments(torch.tensor([[0], [6]], dtype=dtype))
        torch.testing.assert_close(found, wanted)


def test_a_rollout_without_a_real_step_leaves_the_scale_as_it_is() -> None:
    scaler, no = RewardScaler(2, 0.9), torch.zeros(1, 2, dtype=torch.bool)
    assert torch.isfinite(scaler(torch.zeros(1, 2), no, no)).all()
    assert scaler.moments.count == 0


@pytest.mark.parametrize(
    ("kind", "config"), [(A2C, A2CConfig), (PPO, partial(PPOConfig, num_minibatches=1))]
)
def test_one_step_is_too_few_where_a_reset_takes_one(kind, config) -> None:
    envs = SyncVectorEnv(
        [partial(gym.make, "CartPole-v1")] * 4, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    with pytest.raises(ValueError, match="num_steps must be above 1"):
        kind(policy, envs, config(num_envs=4, num_steps=1))


def test_what_no_recipe_can_say_is_named() -> None:
    with pytest.raises(ValueError, match=r"nest of Tuple, .* and Box, got Text"):
        plain_space(spaces.Dict(a=spaces.Text(6)))


@pytest.mark.parametrize("zero", [0, np.float32(0), 0.0])
def test_no_noise_may_be_any_zero(zero) -> None:
    layer, x = NoisyLinear(3, 2), torch.randn(4, 3)
    assert torch.equal(layer(x, zero), layer.mean(x))
    policy = make_rainbow_policy(STATES, spaces.Discrete(2))
    assert torch.equal(policy.act(x, zero), policy.act(x, 0.0))
    assert torch.equal(BoxActions([-1.0], [1.0]).choose(x[:, :1], zero), x[:, :1])


@pytest.mark.parametrize("bound", [None, math.inf])
def test_no_bound_may_be_infinite(bound) -> None:
    new, old = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    assert (clipped_policy(new, old, bound) == old).all(), "all that both policies do"
    rows, no = torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    target, _ = vtrace(
        rows, rows, rows, rows, no, no, rho_clip_ratio=bound, c_clip_ratio=None
    )
    assert (target == 0).all()


def test_bounds_may_be_numbers() -> None:
    row = torch.tensor([[0.5]])
    found = GaussianActions(-2.0, 2.0).to_env(row)
    assert found.tolist() == GaussianActions([-2.0], [2.0]).to_env(row).tolist()
    assert BoxActions(-1.0, 1.0).noise(2, 3, torch.Generator()).shape == (2, 3, 2)


def test_an_axis_may_lie_below_zero() -> None:
    line = Mark("line", [0, 1], [-2, -2])
    plot("below", "A line at minus two.", Axis("x", 0, 1), Axis("y", -3, -1), line)


@pytest.mark.parametrize("target", [q_target, double_q_target, clipped_double_target])
def test_a_target_carries_no_gradient_whoever_brings_one(target) -> None:
    reward = torch.zeros(2, requires_grad=True)
    values = [torch.ones(2, 2)] * (2 if target is double_q_target else 1)
    assert not target(reward, torch.ones(2), *values).requires_grad


def test_results_are_named_as_the_caller_names_them() -> None:
    with pytest.raises(ValueError, match="ours must hold at least 2 seeds"):
        paired_difference(np.array([1.0]), np.array([2.0]))
    with pytest.raises(ValueError, match="theirs must be finite"):
        paired_difference(np.ones(3), np.array([1.0, np.nan, 2.0]))


def test_an_algorithm_without_actors_is_named() -> None:
    with pytest.raises(ValueError, match="algorithm must be"):
        apex_settings("CartPole-v1", "ppo")  # type: ignore[arg-type]


def test_a_game_may_have_the_seed_zero() -> None:
    actor = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    assert play(actor, critic, {}, 3, seed=0) == play(actor, critic, {}, 3, seed=0)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_moments_take_one_item_and_batches_of_batches(shape: tuple[int, ...]) -> None:
    items = torch.randn(4, 5, *shape, generator=torch.Generator().manual_seed(0))
    whole, pieces, single = (RunningMoments(*shape) for _ in range(3))
    whole.update(items.flatten(0, 1))
    pieces.update(items)
    for item in items.flatten(0, 1):
        single.update(item)
    for found in (pieces, single):
        assert found.count == whole.count == 20
        torch.testing.assert_close(found.mean, whole.mean)
        torch.testing.assert_close(found.var, whole.var)


def test_a_rollout_of_rows_that_are_no_steps_changes_no_memory() -> None:
    """One environment, one row, and it stands behind the end of an episode."""
    rows, no = torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool)
    obs, action = torch.zeros(1, 1, 3), torch.zeros(1, 1, dtype=torch.long)
    empty = Rollout(obs, action, rows, obs, no, no, no, rows, rows)
    memory = ReplayBuffer(10, priority_exponent=0.6)
    memory.push(empty)
    memory.push(empty, rows)
    memory.push(empty._replace(real=~no), rows + 2)
    assert len(memory) == 1
    assert memory.largest == 2
    algorithm = QLearning(make_q_policy(STATES, spaces.Discrete(2)), DQNConfig())
    found = first_priorities(algorithm, empty, 1, 0.9, torch.Generator())
    assert torch.equal(found, rows)


def test_priorities_beyond_float32_are_drawn_by() -> None:
    memory = UnrollBuffer(4, alpha=1.0, beta=1.0)
    memory.push([0, 1])
    entries = memory.sample(2, torch.Generator())
    memory.update(entries, [1e39] * len(entries))
    assert memory.sample(2, torch.Generator())[0]["IS"] > 0


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_an_infinite_reward_is_no_sure_thing(number: float) -> None:
    prob, one = torch.full((2, 5), 0.2), torch.ones(2)
    with pytest.raises(ValueError, match="reward must be finite"):
        project_distribution(prob, torch.tensor([0.0, number]), one, 0.0, 4.0)
    with pytest.raises(ValueError, match="discount must be finite"):
        project_distribution(prob, one, torch.tensor([0.0, number]), 0.0, 4.0)


def test_one_atom_is_too_few_in_both_forms() -> None:
    row = torch.ones(2, 1), torch.ones(2), torch.ones(2)
    for form in (project_distribution, project_distribution_loop):
        with pytest.raises(ValueError, match="prob needs two atoms or more"):
            form(*row, 0.0, 1.0)


@pytest.mark.parametrize("shape", [(), (6,), (3, 2), (2, 3, 2)])
@pytest.mark.parametrize("bound", [2.0, math.inf, float(np.finfo(np.float32).max)])
def test_a_probe_acts_within_boxes_of_all_shapes(shape: Any, bound: float) -> None:
    box = spaces.Box(-bound, bound, shape)
    low, high = Probe(nn.Linear(1, 1), {"state": torch.ones(1, 1)}, box).bounds()
    edge = bound if bound == 2.0 else 1.0
    assert low.shape == high.shape == shape
    assert (low == -edge).all()
    assert (high == edge).all()


def test_a_model_on_the_cpu_leaves_the_gpus_alone(monkeypatch) -> None:
    def seeded(*_: Any) -> None:
        raise AssertionError("a GPU was seeded")

    # The seed of their user is put back, should they still sleep.
    monkeypatch.setattr("torch.cuda.manual_seed_all", [torch.initial_seed()].remove)
    monkeypatch.setattr("torch.cuda.manual_seed", seeded)
    check_model("DQN", qnet=nn.Linear(4, 2), env="CartPole-v1")

    def luck(obs: Tensor) -> tuple[Tensor]:
        return (torch.rand_like(obs),)

    (first,), (second,) = (drawn(luck, 3, torch.zeros(1)) for _ in range(2))
    assert first == second


def test_arguments_by_name_come_in_any_order() -> None:
    logit, action = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    for function in (categorical_log_prob, categorical_terms):
        one = function(logit, action)
        other = function(action=action, logit=logit)
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"action must lie in 0\.\.2, got 1\.\.3"):
        categorical_log_prob(action=action + 1, logit=logit)


def test_only_a_log_probability_is_to_blame() -> None:
    legal = torch.tensor([[[0.0, -math.inf]]])
    wrong, action = torch.full((1, 1, 2), math.nan), torch.zeros(1, 1).long()
    value, reward = torch.zeros(2, 1), torch.zeros(1, 1)
    for pair, name in (
        ((legal, wrong), "behaviour_output"),
        ((wrong, legal), "target_output"),
    ):
        data = vtrace_data(*pair, action, value, reward, None)
        with pytest.raises(ValueError, match=f"^(data.)?{name} must be finite"):
            vtrace_error_discrete_action(data)


def test_what_is_handed_out_is_nobody_elses() -> None:
    mask = torch.tensor([[True, False], [False, True], [False, False]])
    actions = HybridActions.from_space(Moving().action_space, mask)
    kept = actions.mask.clone()
    mask.fill_(True)
    assert torch.equal(actions.mask, kept)


def test_a_parameter_without_numbers_is_no_fault() -> None:
    class Hollow(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.nothing = nn.Parameter(torch.zeros(0))

        def forward(self, state: Tensor) -> Tensor:
            return super().forward(state) + self.nothing.sum()

    check_model("DQN", qnet=Hollow(), env="CartPole-v1")


def test_a_film_strip_may_be_normalised() -> None:
    """Pictures reach PPG flat, and are measured as pictures."""
    small = {"total_steps": 64, "num_envs": 2, "num_steps": 16, "num_epochs": 1}
    config = PPGConfig(normalize_obs=True, aux_enabled=False, **small)
    learner = make_learner("ppg", "literate_rl/Maze-v0", config, {})
    learner.iterate()
    assert learner.policy.network.normalizer.count == 32


# --- Errors that travel ---------------------------------------------------------------


def errors_of_ours() -> dict[str, type[BaseException]]:
    """Return all classes of exceptions that the package defines."""
    found = {}
    for info in pkgutil.walk_packages(literate_rl.__path__, "literate_rl."):
        if not {"__main__", "programs"} & {*info.name.split(".")}:
            for name, x in vars(importlib.import_module(info.name)).items():
                ours = getattr(x, "__module__", "").startswith("literate_rl.")
                if ours and inspect.isclass(x) and issubclass(x, BaseException):
                    found[name] = x
    return found


ERRORS = errors_of_ours()


def raised(name: str) -> BaseException:
    """Raise an error as the package does, add a note, and catch it."""
    try:
        if name == "ContractError":
            check_model("DQN", qnet=nn.Linear(3, 2), env="CartPole-v1")
        if name == "NotFiniteError":
            check_finite(math.inf, reward=torch.tensor([1e30]))
        raise ERRORS[name]("words")
    except ERRORS[name] as error:
        error.add_note("a note")
        return error


def written(error: BaseException) -> dict[str, Any]:
    """Return all that an error holds."""
    return {"type": type(error), "words": str(error), **vars(error)}


def test_the_errors_are_those_that_we_know() -> None:
    known = {"ContractError", "DemandError", "NotFiniteError"}
    known |= {"SpaceError", "StopWaiting"}
    assert ERRORS.keys() == known


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_that_has_travelled_is_the_same(name: str) -> None:
    error = raised(name)
    there = pickle.loads(pickle.dumps(error))
    assert written(there) == written(error)
    assert there.__notes__ == ["a note"]
    assert written(pickle.loads(pickle.dumps(there))) == written(error), "and on"


def refuse(_: int) -> None:
    raise raised("ContractError")


def test_an_error_comes_out_of_a_pool() -> None:
    expected = pytest.raises(literate_rl.ContractError, match="broken rule")
    with get_context("spawn").Pool(1) as pool, expected as refusal:
        pool.map(refuse, [1])
    assert refusal.value.family == "DQN"
    assert refusal.value.broken[0].who == "qnet"


# --- Numbers that are too large -------------------------------------------------------


class Rich(gym.Env):
    """Pays so much that no float holds the square, or the sum of some squares."""

    observation_space = spaces.Box(-1, 1, (2,))

    def __init__(self, actions: Any, pay: float) -> None:
        self.action_space, self.pay, self.count = actions, pay, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.zeros(2, np.float32), self.pay, False, self.count % 8 == 0, {}


LIST, BOX = spaces.Discrete(2), spaces.Box(-1, 1, (1,))
PAID = [(x, LIST, "scale_reward") for x in ("PPO", "PPG", "A2C")]
PAID += [(x, LIST, "reward_scale") for x in ("A3C", "IMPALA", "SAC")]
PAID += [(x, BOX, "reward_scale") for x in ("DDPG", "HDDPG", "TD3", "SAC")]
SUMS = [(*x, 1e38) for x in [*PAID, ("Rainbow", LIST, "reward_scale")]]
SUMS += [(*x, 1e19) for x in PAID]


@pytest.mark.parametrize(
    ("algorithm", "actions", "way", "pay"), [*SUMS, *[(*x, 1e30) for x in PAID]]
)
@pytest.mark.filterwarnings("ignore:no episode ended")
def test_rewards_that_are_too_large_are_to_blame(
    algorithm: str, actions: Any, way: str, pay: float
) -> None:
    with pytest.raises(NotFiniteError) as raised:
        train(algorithm, partial(Rich, actions, pay), total_steps=2_000, progress=False)
    (note,) = [x for x in raised.value.__notes__ if "near step" in x]
    assert note.endswith(f"third of learning_rate, or smaller rewards, with {way}")

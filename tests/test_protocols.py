"""Interfaces: whoever has the methods is taken, two agents written here among them."""

from __future__ import annotations

import copy
import inspect
import json
import math
import operator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from test_edges import Drawer, Judge, Mover, Worth
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

import literate_rl
from literate_rl import (
    DDPG,
    DQN,
    HDDPG,
    SAC,
    TD3,
    DDPGConfig,
    DiscreteSAC,
    DQNConfig,
    HDDPGConfig,
    Rainbow,
    RainbowConfig,
    SACConfig,
    TD3Config,
    make_contract_policy,
    make_ddpg_policy,
    make_discrete_sac_policy,
    make_envs,
    make_hybrid_policy,
    make_own_ddpg_policy,
    make_own_sac_policy,
    make_phasic_policy,
    make_policy,
    make_q_policy,
    make_qnet_policy,
    make_rainbow_policy,
    make_sac_policy,
)
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.replay import Batch
from literate_rl.data.worlds import Moving
from literate_rl.ground.nests import MODELS, as_space
from literate_rl.ground.networks import eval_mode, layers
from literate_rl.ground.protocols import Algorithm, PolicyLike
from literate_rl.learners.dqn import Exploring, QLearning, TargetNetwork
from literate_rl.learners.loop import OffPolicy, QError
from literate_rl.learners.sac import (
    GaussianRows,
    SoftPolicy,
    SquashedGaussian,
    Temperature,
    entropy_scale,
)
from literate_rl.learners.td3 import critic_error
from literate_rl.maths.sac import soft_value
from literate_rl.maths.td3 import clipped_double_target
from literate_rl.runs.runs import Run, flat_env

LIST, VECTOR, FORCES = spaces.Discrete(2), *(spaces.Box(-1, 1, (n,)) for n in (4, 1))
PICTURE = spaces.Box(0, 255, (3, 8, 8), "uint8")
THREE, PAIR = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))
WORLD = Moving()


def members(protocol: Any) -> set[str]:
    """Return the names of what an interface asks for, and those below it."""
    asked = [
        kind for kind in protocol.__mro__ if kind.__module__ == protocol.__module__
    ]
    names = {name for kind in asked for name in (*vars(kind), *kind.__annotations__)}
    return {name for name in names if not name.startswith("_")}


# --- Who acts -------------------------------------------------------------------------


class Logits(Drawer):
    """An actor over a list that says all log-probabilities."""

    def forward(self, state: Tensor, action: Any = None) -> tuple[Tensor, ...]:
        return *super().forward(state, action), self.layer(state).log_softmax(-1)


class Squashed(nn.Module):
    """An actor in a box."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, state: Tensor, action: Any = None) -> tuple[Tensor, ...]:
        dist = torch.distributions.Normal(self.layer(state), 0.1)
        action = dist.rsample().clamp(-1, 1) if action is None else action
        terms = dist.log_prob(action).sum(-1, True), dist.entropy().sum(-1, True)
        return action, *terms


POLICIES: dict[str, list[Any]] = {
    "make_policy": [
        partial(make_policy, VECTOR, LIST),
        partial(make_policy, VECTOR, FORCES, normalize=True),
    ],
    "make_hybrid_policy": [
        partial(make_hybrid_policy, WORLD.observation_space, WORLD.action_space)
    ],
    "make_phasic_policy": [
        partial(make_phasic_policy, PICTURE, LIST),
        partial(make_phasic_policy, VECTOR, FORCES),
    ],
    "make_contract_policy": [
        partial(make_contract_policy, VECTOR, LIST, Drawer(), Worth())
    ],
    "make_q_policy": [partial(make_q_policy, VECTOR, LIST, dueling=True)],
    "make_qnet_policy": [partial(make_qnet_policy, VECTOR, LIST, nn.Linear(4, 2))],
    "make_rainbow_policy": [
        partial(make_rainbow_policy, VECTOR, LIST),
        partial(make_rainbow_policy, PICTURE, LIST, noisy=False),
    ],
    "make_ddpg_policy": [
        partial(make_ddpg_policy, VECTOR, FORCES),
        partial(make_ddpg_policy, VECTOR, LIST),
    ],
    "make_sac_policy": [
        partial(make_sac_policy, VECTOR, FORCES),
    ],
    "make_own_ddpg_policy": [
        partial(make_own_ddpg_policy, THREE, PAIR, Mover(), Judge())
    ],
    "make_own_sac_policy": [
        partial(make_own_sac_policy, THREE, PAIR, Squashed(), Judge()),
        partial(make_own_sac_policy, VECTOR, LIST, Logits(), nn.Linear(4, 2)),
    ],
    "make_discrete_sac_policy": [
        partial(make_discrete_sac_policy, VECTOR, LIST),
    ],
}
SEEING = [
    partial(make_policy, PICTURE, LIST),
    partial(make_policy, PICTURE, FORCES, share_encoder=True),
    partial(make_q_policy, PICTURE, LIST, convolutions=[[4, 3, 2]], dueling=True),
    partial(make_ddpg_policy, PICTURE, FORCES),
    partial(make_sac_policy, PICTURE, FORCES),
    partial(make_discrete_sac_policy, PICTURE, LIST),
]
KINDS = POLICIES | {"make_seeing": SEEING}
MAKERS = [
    pytest.param(make, id=f"{name} {number}")
    for name, makers in KINDS.items()
    for number, make in enumerate(makers)
]
# Of these `numpy_act` knows network and rule.
KNOWN = "make_policy", "make_hybrid_policy", "make_q_policy"
IN_NUMPY = [make for name in KNOWN for make in POLICIES[name]]


def test_no_maker_of_policies_is_forgotten() -> None:
    public = {name for name in dir(literate_rl) if name.startswith("make_")}
    # What remembers reads windows, and has tests of its own.
    known = POLICIES.keys() | {"make_recurrent_policy"}
    assert {name for name in public if name.endswith("_policy")} == known


@pytest.mark.parametrize("make", MAKERS)
def test_a_policy_remembers_how_it_was_built(make: Any) -> None:
    recipe = name, arguments = make().recipe
    signature = inspect.signature(make.func)
    given = signature.bind(*make.args, **make.keywords)
    given.apply_defaults()
    wanted = given.arguments
    # What came later than others is told where it is not the default.
    later = [x for x in signature.parameters.values() if x.kind is x.KEYWORD_ONLY]
    for x in later:
        if wanted[x.name] == x.default:
            del wanted[x.name]
    models = {key: wanted.pop(key) for key in MODELS if key in wanted}
    named = {key: type(x).__name__ for key, x in models.items()}
    assert arguments.get("models", {}) == named
    plain = json.loads(json.dumps(arguments))
    plain.pop("models", None)
    built = {key: as_space(x) for key, x in plain.items() if key.endswith("_space")}
    if name == "make_hybrid_policy":
        wanted["mask"] = [[True, False], [False, True], [False, False]]  # of the space
    assert (name, plain | built) == (make.func.__name__, wanted)
    assert make.func(**plain, **models).recipe == recipe


@pytest.mark.parametrize("make", MAKERS)
def test_a_policy_has_a_slot_for_legal_actions_and_minds_or_refuses_them(
    make: Any,
) -> None:
    policy = make()
    assert all(hasattr(policy, name) for name in members(PolicyLike))
    space = make.args[0]
    obs = torch.stack([torch.as_tensor(space.sample()).float() for _ in range(3)])
    noise = policy.noise(1, 3, torch.Generator().manual_seed(0))[0]
    actions = getattr(policy, "actions", None)
    minds = hasattr(actions, "legal")
    mask = torch.eye(len(getattr(actions, "mask", "ab")))[[0, 1, 0]] == 1
    with torch.no_grad(), eval_mode(policy):
        for given in (noise, 0.0):
            action = policy.act(obs, given, mask=None)
            assert torch.equal(action, policy.act(obs, given))
            if minds:
                taken = policy.act(obs, given, mask=mask)
                assert taken.reshape(3, -1)[:, 0].tolist() == [0, 1, 0]
                continue
            with pytest.raises(
                ValueError, match=r"mask must be None for \w+, which cannot"
            ):
                policy.act(obs, given, mask=mask)
        if minds and make.args[1] is LIST:
            only = torch.tensor([0, 1, 0])
            log_prob, entropy = policy.evaluate_actions(obs, only, mask=mask)
            assert log_prob.tolist() == entropy.tolist() == [0.0, 0.0, 0.0]
        elif not minds:
            with pytest.raises(
                ValueError, match=r"mask must be None for \w+, which cannot"
            ):
                policy.evaluate_actions(obs, action, mask=mask)
    name = make.func.__name__
    choosing = make.args[1] is LIST or name == "make_hybrid_policy"
    assert minds == (
        choosing and not any(x in name for x in ("contract", "ddpg", "own"))
    )
    # By name only: what comes third by place is no mask.
    for method in (policy.act, policy.evaluate_actions):
        kind = inspect.signature(method).parameters["mask"].kind
        assert kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("make", IN_NUMPY)
def test_the_act_in_numpy_minds_or_refuses_them_too(make: Any) -> None:
    policy, obs = make(), torch.randn(3, *make.args[0].shape)
    act = numpy_act(policy)
    noise = policy.noise(1, 3, torch.Generator().manual_seed(0))[0]
    for given in (noise, 0.0):
        wanted = policy.act(obs, given).detach()
        torch.testing.assert_close(act(obs, given, mask=None), wanted)
        mask = torch.eye(len(getattr(policy.actions, "mask", "ab")))[[0, 1, 0]] == 1
        if hasattr(policy.actions, "legal"):
            taken = act(obs, given, mask=mask).reshape(3, -1)
            assert taken[:, 0].tolist() == [0, 1, 0]
        else:
            with pytest.raises(
                ValueError, match=r"mask must be None for \w+, which cannot"
            ):
                act(obs, given, mask=mask)


# --- What is learned ------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "batch_size": 8,
    "train_interval": 2,
    "learning_starts": 20,
    "iteration_steps": 40,
    "total_steps": 200,
    "checkpoint_interval": 2,
}
LEARNERS: dict[str, tuple[Any, Any, Any, str]] = {
    "QLearning": (DQN, DQNConfig, make_q_policy, "CartPole-v1"),
    "DistributionalQLearning": (
        *(Rainbow, RainbowConfig, make_rainbow_policy),
        "CartPole-v1",
    ),
    "DeterministicPolicyGradient": (DDPG, DDPGConfig, make_ddpg_policy, "Pendulum-v1"),
    "TwinDelayed": (
        *(TD3, TD3Config, partial(make_ddpg_policy, num_critics=2)),
        "Pendulum-v1",
    ),
    "Hysteretic": (HDDPG, HDDPGConfig, make_ddpg_policy, "Pendulum-v1"),
    "SoftActorCritic": (SAC, SACConfig, make_sac_policy, "Pendulum-v1"),
    "DiscreteSoftActorCritic": (
        *(DiscreteSAC, SACConfig, make_discrete_sac_policy),
        "CartPole-v1",
    ),
}


def algorithms(kind: Any = Algorithm) -> set[str]:
    """Return the names of the package's algorithms that are subclasses of a class."""
    found = set()
    for one in kind.__subclasses__():
        found |= algorithms(one)
        found |= {one.__name__} if one.__module__.startswith("literate_rl.") else set()
    return found


def test_no_algorithm_is_forgotten() -> None:
    assert Exploring.error is Algorithm.error  # it only explores
    assert algorithms() - {"Exploring"} == LEARNERS.keys()


@pytest.mark.parametrize("name", LEARNERS)
def test_an_algorithm_has_what_the_interface_asks_for(name: str) -> None:
    make, config, make_own, env = LEARNERS[name]
    envs = make_envs(partial(flat_env, env), 2)
    policy = make_own(envs.single_observation_space, envs.single_action_space)
    learner = make(policy, envs, config(**SMALL))
    assert type(learner) is OffPolicy
    algorithm = learner.algorithm
    assert type(algorithm).__name__ == name
    for member in members(Algorithm):
        asked, given = (getattr(x, member, None) for x in (Algorithm, algorithm))
        assert hasattr(algorithm, member)
        if inspect.isfunction(asked):
            wanted = [*inspect.signature(asked).parameters][1:]
            # An actor that minds masks takes one too, by name.
            taken = [*inspect.signature(given).parameters]
            assert taken in (wanted, [*wanted, "mask"])
    row = learner.iterate()
    assert algorithm.metrics().keys() <= row.keys()
    assert all(isinstance(x, float) for x in row.values())
    assert algorithm.explore(7) is None
    # The actor's parameters are some of the policy's, the older copy's are none.
    own = {id(p) for p in policy.parameters()}
    assert {id(p) for p in algorithm.actor} <= own
    assert not own & {id(p) for p in algorithm.target.network.parameters()}
    # An error for each sample, without gradient where it only tells.
    batch, generator = learner.sample(), learner.generator
    error = algorithm.error(batch, generator)
    for part in ("loss", "td_error", "value"):
        assert getattr(error, part).shape == (8,)
    assert error.loss.requires_grad
    assert not error.td_error.requires_grad
    assert not error.value.requires_grad
    # What the actor loses is one number; without an actor there is none.
    loss = algorithm.ascent(batch.obs, generator)
    assert (loss is None) == (len(algorithm.actor) == 0)
    assert loss is None or loss.shape == ()


# --- Two agents that the book does not have -------------------------------------------


class Munchausen(Exploring):
    """DQN whose rewards grow by its own log-policy. Source: Vieillard et al. 2020."""

    def __init__(
        self, policy: Any, config: Any, share: float = 0.9, alpha: float = 0.03
    ) -> None:
        self.policy, self.config, self.target = policy, config, TargetNetwork(policy)
        self.share, self.alpha = share, alpha

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        taken, older, alpha = (
            batch.action.unsqueeze(-1),
            self.target.network,
            self.alpha,
        )
        with torch.no_grad():
            # What the older copy would do: a softmax with this temperature.
            log_prob = alpha * (older(batch.obs) / alpha).log_softmax(-1)
            bonus = log_prob.gather(-1, taken).squeeze(-1).clamp(-1.0, 0.0)
            # The soft value of the next state, the mean over the softmax in one term.
            soft = alpha * (older(batch.next_obs) / alpha).logsumexp(-1)
            reward = batch.reward + self.share * bonus
            aim = clipped_double_target(reward, batch.discount, soft.unsqueeze(0))
        q = self.policy(batch.obs).gather(-1, taken).squeeze(-1)
        value = q.detach()
        return QError(smooth_l1_loss(q, aim, reduction="none"), aim - value, value)


class NormalisedCritics(nn.Module):
    """Critics of actions with batch normalisation in front of each layer."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.critics = nn.ModuleList(layers(inputs, hidden, 1) for _ in range(2))
        for chain in self.critics:
            for place, size in ((4, hidden), (2, hidden), (0, inputs)):
                chain.insert(place, nn.BatchNorm1d(size, momentum=0.01))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([obs, action], -1)
        return torch.stack([critic(x) for critic in self.critics]).squeeze(-1)


class CrossQ(Algorithm):
    """SAC without an older copy. Source: Bhatt et al. 2024."""

    target = None

    def __init__(self, policy: Any, config: SACConfig, space: spaces.Box) -> None:
        self.policy, judges = policy, set(policy.critics.parameters())
        self.actor = [p for p in policy.parameters() if p not in judges]
        scale = entropy_scale(space, config.target_entropy)
        self.temperature = Temperature(policy.log_alpha, config, *scale)

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        policy, alpha = self.policy, self.policy.log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = policy.draw(batch.next_obs, generator)
        # One pass for both steps, so that one normalisation holds for both.
        both = torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.action, action])
        q, next_q = policy.critics(*both).chunk(2, -1)
        value = soft_value(next_q.detach(), log_prob, alpha).unsqueeze(0)
        return critic_error(
            q, clipped_double_target(batch.reward, batch.discount, value)
        )

    def ascent(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        policy, alpha = self.policy, self.policy.log_alpha.detach().exp()
        action, log_prob = policy.draw(obs, generator)
        with eval_mode(policy.critics):
            q = policy.critics(obs, action)
        loss = -soft_value(q, log_prob, alpha).mean()
        return loss + self.temperature.loss(-log_prob.detach())

    def metrics(self) -> dict[str, float]:
        return self.temperature.metrics()


def munchausen() -> OffPolicy:
    config = DQNConfig(**SMALL, epsilon_steps=100, tau=0.1)
    envs = make_envs(partial(flat_env, "CartPole-v1"), 2)
    torch.manual_seed(0)
    policy = make_q_policy(envs.single_observation_space, envs.single_action_space, 16)
    return OffPolicy(Munchausen(policy, config), envs, config)


def crossq() -> OffPolicy:
    config = SACConfig(**SMALL, target_interval=3)
    envs = make_envs(partial(flat_env, "Pendulum-v1"), 2)
    box: Any = envs.single_action_space
    torch.manual_seed(0)
    rows, actions = GaussianRows(3, 16, 1), SquashedGaussian(box.low, box.high)
    policy = SoftPolicy(rows, actions, NormalisedCritics(4, 32))
    return OffPolicy(CrossQ(policy, config, box), envs, config)


def test_each_is_short() -> None:
    """Lines of all kinds, blank ones too."""

    def lines(*parts: Any) -> int:
        return sum(len(inspect.getsource(part).splitlines()) for part in parts)

    assert lines(Munchausen) <= 30
    assert lines(NormalisedCritics, CrossQ) <= 50


@pytest.mark.parametrize("make", [munchausen, crossq])
def test_it_learns_and_resumes_bit_for_bit(make: Any, tmp_path: Path) -> None:
    whole, half, resumed = make(), make(), make()
    before = copy.deepcopy(whole.policy.state_dict())
    rows = [whole.iterate() for _ in range(4)]
    assert whole.updates > 60
    assert all(math.isfinite(row["losses/loss"]) for row in rows)
    after = whole.policy.state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in after)
    with Run(tmp_path / "run") as run:
        for _ in range(2):
            half.iterate()
        run.save(half)
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(resumed)
    assert resumed.step == half.step == 80
    again = [resumed.iterate() for _ in range(2)]
    # A mean of returns is a float with something beside it.
    one, two = (
        [[float(x) for x in row.values()] for row in y] for y in (again, rows[2:])
    )
    torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)
    for state in ("state_dict", "policy.state_dict"):
        pair = [operator.attrgetter(state)(x)() for x in (whole, resumed)]
        torch.testing.assert_close(*pair, rtol=0, atol=0)


def test_what_munchausen_aims_at_is_its_formula_row_by_row() -> None:
    learner = munchausen()
    learner.iterate()
    batch, alpha = learner.sample(), 0.03
    error = learner.algorithm.error(batch, learner.generator)
    older = copy.deepcopy(learner.algorithm.target.network).double()
    for row, found in enumerate(error.td_error + error.value):
        now, then = (
            older(x[row].double()).tolist() for x in (batch.obs, batch.next_obs)
        )
        sums = [sum(math.exp((q - max(x)) / alpha) for q in x) for x in (now, then)]
        cost = now[batch.action[row]] - max(now) - alpha * math.log(sums[0])
        worth = max(then) + alpha * math.log(sums[1])
        wanted = batch.reward[row] + 0.9 * max(-1.0, cost) + batch.discount[row] * worth
        assert found.item() == pytest.approx(wanted.item(), abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_without_its_share_and_nearly_cold_munchausen_is_dqn(seed: int) -> None:
    learner = munchausen()
    learner.iterate()
    policy, batch = learner.policy, learner.sample()
    plain = QLearning(policy, DQNConfig(double=False))
    cold = Munchausen(policy, learner.config, share=0.0, alpha=1e-6)
    generator = torch.Generator().manual_seed(seed)
    pair = (x.error(batch, generator) for x in (plain, cold))
    torch.testing.assert_close(*(tuple(error) for error in pair), rtol=1e-4, atol=1e-4)
    # A bonus is never above zero, so targets fall by at most its share.
    proud, humble = (
        Munchausen(policy, learner.config, share=share).error(batch, generator)
        for share in (0.9, 0.0)
    )
    gap = humble.td_error - proud.td_error
    assert (gap >= -1e-5).all()
    assert 0.1 < gap.max() <= 0.9 + 1e-5


def test_crossq_normalises_both_steps_at_once_and_keeps_no_copy() -> None:
    learner = crossq()
    learner.iterate()
    assert learner.state_dict()["target"] == {}
    critics = learner.policy.critics
    counts = {int(x) for name, x in critics.named_buffers() if "tracked" in name}
    assert counts == {learner.updates}, "one pass an update; the ascent counts none"
    seen = []
    critics.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    batch = learner.sample()
    learner.algorithm.error(batch, learner.generator)
    assert seen == [16]
    kept = copy.deepcopy(critics.state_dict())
    learner.climb(batch.obs)
    torch.testing.assert_close(critics.state_dict(), kept, rtol=0, atol=0)
    assert all(module.training for module in critics.modules())

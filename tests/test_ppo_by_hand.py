"""PPO by hand: equal to autograd in all that it computes, and refused elsewhere."""

import copy
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gymnasium import spaces
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from literate_rl.apps.training import train
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.by_hand.ppo_by_hand import ByHand, surrogate
from literate_rl.data.agents import make_envs
from literate_rl.learners.ppo import PPO, PPOConfig, Samples
from literate_rl.maths.ppo_error import (
    clipped_surrogate,
    policy_error_from_log_prob,
)
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.runs import flat_env

SEEN, LISTED, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(4), spaces.Box(-2, 2, (2,))
ARGS = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (0,))
TYPES = spaces.Tuple((spaces.Discrete(3), spaces.Tuple(ARGS)))


def small() -> Policy:
    return make_policy(SEEN, LISTED, 8)


def with_relu() -> Policy:
    policy = small()
    for chain in (policy.network.actor, policy.network.critic):
        chain[1] = chain[3] = nn.ReLU()
    return policy


def normalized() -> Policy:
    policy = make_policy(SEEN, LISTED, 8, normalize=True)
    policy.network.normalizer.update(3 * torch.randn(50, 3) + 1)
    return policy


BUILT: dict[str, Callable[[], Policy]] = {
    "discrete": small,
    "ReLU": with_relu,
    "normalised": normalized,
    "Gaussian": lambda: make_policy(SEEN, BOX, 8),
    "hybrid": lambda: make_hybrid_policy(SEEN, TYPES, hidden=8),
}


def built(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Policy:
    """Build a policy whose heads are not near zero."""
    torch.manual_seed(seed)
    policy = BUILT[kind]()
    for p in policy.parameters():
        p.data.add_(0.3 * torch.randn(p.shape))
    return policy.to(dtype)


def samples(policy: Policy, size: int, spread: float, masked: bool = False) -> Any:
    """Draw a minibatch whose policy was another one, by so many nats."""
    dtype = next(policy.parameters()).dtype
    obs = torch.randn(size, 3).to(dtype)
    noise = policy.noise(1, size, torch.Generator().manual_seed(size))[0]
    mask = None
    if masked:
        # Of some rows only one action is left.
        options = getattr(policy.actions, "num_actions", 3)
        mask = torch.rand(size, options) < 0.4
        mask[torch.arange(size), torch.arange(size) % options] = True
    with torch.no_grad():
        action = policy.act(obs, noise.to(dtype), mask=mask)
        log_prob, _ = policy.evaluate_actions(obs, action, mask=mask)
        value = policy.value(obs)
    moves, adv, target, more = torch.randn(4, size).to(dtype)
    old, old_value = log_prob + spread * moves, value + spread * more
    return Samples(obs, action, old, adv, target, old_value, mask)


def both_gradients(policy: Policy, part: Samples, config: PPOConfig) -> list[Any]:
    """Return losses and gradients of autograd, and those by hand."""
    parameters = list(policy.parameters())
    learner: Any = SimpleNamespace(
        policy=policy,
        policy_error=policy_error_from_log_prob,
        parameters=parameters,
        optimizer=torch.optim.Adam(parameters),
    )
    found = []
    for compute in (partial(PPO.autograd, learner), ByHand(policy).gradient):
        for p in parameters:
            p.grad = torch.full_like(p, 7.0)  # of somebody else, to be replaced
        losses = compute(part, config)
        found.append((losses, torch.cat([p.grad.flatten() for p in parameters])))
    return found


CONFIGS = st.builds(
    PPOConfig,
    clip_ratio=st.sampled_from([0.05, 0.2, 0.9]),
    dual_clip=st.sampled_from([None, 1.1, 3.0]),
    value_clip=st.sampled_from([None, 0.1, 1.0]),
    entropy_weight=st.sampled_from([0.0, 0.3]),
    value_weight=st.sampled_from([0.0, 0.5, 2.0]),
    max_grad_norm=st.sampled_from([1e-3, 0.5, 1e6]),
    normalize_advantage=st.booleans(),
)


@pytest.mark.equation("by-hand-linear")
@pytest.mark.equation("by-hand-squash")
@pytest.mark.equation("by-hand-categorical")
@pytest.mark.equation("by-hand-gaussian")
@pytest.mark.equation("by-hand-hybrid")
@pytest.mark.equation("by-hand-value")
@pytest.mark.equation("by-hand-total")
@pytest.mark.equation("by-hand-clip")
@pytest.mark.parametrize("kind", BUILT)
@settings(settings.get_profile("few"))
@given(
    config=CONFIGS,
    size=st.integers(1, 9),
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.0, 0.3, 40.0]),
    masked=st.booleans(),
)
def test_gradient_and_losses_are_those_of_autograd(
    kind, config, size, seed, spread, masked
):
    """A spread of 40 nats leaves the ratio's clamp, one of 0 puts all ratios at 1."""
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        policy = built(kind, seed, dtype)
        part = samples(policy, size, spread, masked and kind != "Gaussian")
        (losses, plain), (others, own) = both_gradients(policy, part, config)
        assert losses == pytest.approx(others, rel=near, abs=near)
        assert (plain - own).norm() <= near * plain.norm() + near * 1e-3


# Log-ratios whose ratio lies on a border of the clip range to the bit.
ABOVE, BELOW = 0.25, -0.25
WIDTHS = [math.exp(ABOVE) - 1, 1 - math.exp(BELOW)]


@pytest.mark.equation("by-hand-surrogate")
@given(
    log_ratio=st.sampled_from([0.0, ABOVE, BELOW, 0.1, -0.1, 1.0, -1.0])
    | st.sampled_from([20.0, -20.0, 20.5, -20.5])
    | st.floats(-25, 25),
    adv=st.sampled_from([0.0, -0.0, 1.0, -1.0]) | st.floats(-1e3, 1e3),
    width=st.sampled_from([*WIDTHS, 0.2]),
    dual=st.sampled_from([None, 1.5, 3.0]),
)
def test_the_slope_of_the_surrogate_is_that_of_autograd(log_ratio, adv, width, dual):
    ratio = math.exp(log_ratio)
    held = min(max(ratio, 1 - width), 1 + width)
    # Where two branches meet with a kink, there is no slope to agree on.
    assume(ratio == held or ratio * adv != held * adv or adv == 0)
    assume(dual is None or adv >= 0 or ratio != dual)
    new, old, given = torch.tensor([[log_ratio], [0.0], [adv]], dtype=torch.float64)
    new.requires_grad_()
    objective = clipped_surrogate(new, old, given, width, dual)
    (plain,) = torch.autograd.grad(objective.sum(), new)
    own = surrogate(*(x.detach().numpy() for x in (new, old, given)), width, dual)
    # Two libraries may round the exponential function differently.
    own = tuple(map(torch.from_numpy, own))
    torch.testing.assert_close((objective.detach(), plain), own, rtol=1e-14, atol=0)


# --- In the learner -------------------------------------------------------------------

SMALL = PPOConfig(total_steps=256, num_envs=2, num_steps=64, num_epochs=2)


def learner(env: str, by_hand: bool, config: PPOConfig = SMALL) -> PPO:
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(0)
    make = make_hybrid_policy if env.startswith("literate_rl") else make_policy
    policy = make(
        envs.single_observation_space,
        envs.single_action_space,
        normalize=config.normalize_obs,
    )
    by = ByHand(policy) if by_hand else None
    return PPO(policy, envs, config, numpy_act(policy), by_hand=by)


def test_after_zero_grad_or_another_state_the_gradient_is_there_again():
    one = learner("CartPole-v1", True)
    part = one.look_back(one.collect())
    one.gradient(part, SMALL)
    before = [p.grad.clone() for p in one.parameters]
    one.optimizer.zero_grad()
    one.policy.load_state_dict(one.policy.state_dict())  # type: ignore[attr-defined]
    one.gradient(part, SMALL)
    assert all(map(torch.equal, before, (p.grad for p in one.parameters)))


def test_what_autograd_would_refuse_later_is_refused():
    one = learner("CartPole-v1", True)
    part = one.look_back(one.collect())
    mask = torch.zeros(len(part.adv), 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask"):
        one.learn(part._replace(mask=mask))
    one.parameters[0].requires_grad_(False)
    with pytest.raises(ValueError, match="none of them frozen"):
        one.learn(part)
    with pytest.raises(TypeError, match="ByHand shares the memory of a policy"):
        copy.deepcopy(one)


@pytest.mark.parametrize("name", ["log_prob", "adv", "target", "obs"])
def test_what_is_not_finite_is_named_and_moves_nothing(name):
    policy = built("discrete")
    part = samples(policy, 4, 0.1)
    getattr(part, name)[0] = -math.inf
    told = {"log_prob": "log_prob_old", "obs": "log_prob"}.get(name, name)
    with pytest.raises(ValueError, match=f"^{told} must be finite"):
        ByHand(policy).gradient(part, PPOConfig())
    assert all(p.grad is None for p in policy.parameters())


# --- What is refused ------------------------------------------------------------------


def own_chain(*layers: nn.Module) -> Policy:
    critic = nn.Sequential(layers[0], nn.Linear(4, 1))
    return Policy(ActorCritic(nn.Sequential(*layers), critic), CategoricalActions(4))


class Halved(CategoricalActions):
    """An entropy of its own."""

    def evaluate(self, row: Tensor, action: Tensor) -> Any:
        log_prob, entropy = super().evaluate(row, action)
        return log_prob, entropy / 2


def changed(change: Callable[[Policy], Any]) -> Callable[[], Policy]:
    def make() -> Policy:
        policy = small()
        change(policy)
        return policy

    return make


LINEAR = nn.Linear(3, 4)
REFUSED: dict[str, Callable[[], Policy]] = {
    "got Sigmoid": lambda: own_chain(LINEAR, nn.Sigmoid()),
    "in one place only": lambda: own_chain(LINEAR),
    "CategoricalActions": lambda: make_policy(SEEN, spaces.MultiDiscrete([2, 3])),
    "got Halved": changed(lambda x: setattr(x, "actions", Halved(4))),
    "train all": changed(lambda x: x.network.actor[0].weight.requires_grad_(False)),
    "no parameters but": changed(
        lambda x: setattr(x, "c", nn.Parameter(torch.zeros(1)))
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_other_policies_are_refused_with_the_reason(words):
    policy = REFUSED[words]()
    with pytest.raises(ValueError, match=words):
        ByHand(policy)


def test_a_loss_of_ones_own_needs_autograd():
    policy, envs = make_policy(SEEN, LISTED), make_envs("CartPole-v1", 4)
    error, by_hand = policy_error_from_log_prob, ByHand(policy)
    with pytest.raises(ValueError, match="policy_error needs autograd"):
        PPO(policy, envs, PPOConfig(), policy_error=error, by_hand=by_hand)


# --- Asked for by name ----------------------------------------------------------------

TINY: dict[str, Any] = {"num_envs": 2, "num_steps": 32, "num_epochs": 2}


def test_a_run_goes_on_in_another_form(tmp_path):
    ends, quiet = [], {"progress": False}
    for first, then in ("plain", "plain"), ("by hand", "auto"), ("auto", "by hand"):
        agent = train("PPO", "CartPole-v1", fast=first, total_steps=64, **TINY, **quiet)
        settings = agent.save(tmp_path / first / then) / "settings.json"
        text = settings.read_text()
        assert "by hand" not in text
        settings.write_text(text.replace('"total_steps": 64', '"total_steps": 128'))
        again = train("PPO", "CartPole-v1", fast=then, resume=settings.parent, **quiet)
        assert again.learner.step == 128
        ends.append(dict(again.policy.state_dict()))
    for other in ends[1:]:
        torch.testing.assert_close(ends[0], other, rtol=0, atol=1e-5)


def test_what_there_is_not_is_refused():
    with pytest.raises(ValueError, match="fast"):
        train("A2C", "CartPole-v1", fast="by hand")

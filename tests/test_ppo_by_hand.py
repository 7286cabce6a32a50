"""PPO by hand: equal to autograd in all that it computes, and refused elsewhere."""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor, nn

from literate_rl.apps.cli import main
from literate_rl.apps.training import train
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.by_hand.ppo_by_hand import ByHand, surrogate, value_error
from literate_rl.data.agents import make_envs
from literate_rl.learners.ppo import PPO, PPOConfig, Samples
from literate_rl.maths.ppo_error import (
    clipped_surrogate,
    policy_error_from_log_prob,
    ppo_value_data,
    ppo_value_error,
)
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.runs import flat_env, load

SEEN, LISTED, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(4), spaces.Box(-2, 2, (2,))
ARGS = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (0,))
TYPES = spaces.Tuple((spaces.Discrete(3), spaces.Tuple(ARGS)))


def with_relu(policy: Policy) -> Policy:
    """Put a ReLU behind each layer where there was a tanh."""
    for chain in (policy.network.actor, policy.network.critic):
        chain[1] = chain[3] = nn.ReLU()
    return policy


def chosen_deviations(policy: Policy) -> Policy:
    """Give each number another standard deviation."""
    for name, p in policy.named_parameters():
        if "log_sigma" in name:
            nn.init.normal_(p, std=0.5)
    return policy


def normalized() -> Policy:
    policy = make_policy(SEEN, LISTED, 8, normalize=True)
    policy.network.normalizer.update(3 * torch.randn(50, 3) + 1)
    return policy


BUILT: dict[str, Callable[[], Policy]] = {
    "discrete": lambda: make_policy(SEEN, LISTED, 8),
    "ReLU": lambda: with_relu(make_policy(SEEN, LISTED, 8)),
    "normalised": normalized,
    "Gaussian": lambda: chosen_deviations(make_policy(SEEN, BOX, 8)),
    "hybrid": lambda: chosen_deviations(make_hybrid_policy(SEEN, TYPES, hidden=8)),
}


def built(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Policy:
    """Build a policy whose heads are not near zero."""
    torch.manual_seed(seed)
    policy = BUILT[kind]()
    for p in policy.parameters():
        p.data.add_(0.3 * torch.randn(p.shape))
    return policy.to(dtype)


def samples(policy: Policy, size: int, seed: int, spread: float, masked: bool) -> Any:
    """Draw a minibatch whose policy was another one, by so many nats."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(policy.parameters()).dtype
    obs = torch.randn(size, 3, generator=generator).to(dtype)
    noise = policy.noise(1, size, generator)[0].to(dtype)
    mask = None
    if masked:
        # Of some rows only one action is left.
        options = getattr(policy.actions, "num_actions", 3)
        mask = torch.rand(size, options, generator=generator) < 0.4
        mask[torch.arange(size), torch.arange(size) % options] = True
    draw = partial(torch.randn, size, generator=generator)
    with torch.no_grad():
        action = policy.act(obs, noise, mask=mask)
        log_prob, _ = policy.evaluate_actions(obs, action, mask=mask)
        value = policy.value(obs)
    old, old_value = (x + spread * draw().to(dtype) for x in (log_prob, value))
    adv, target = (draw().to(dtype) for _ in range(2))
    return Samples(obs, action, old, adv, target, old_value, mask)


def both_gradients(
    policy: Policy, part: Samples, config: PPOConfig
) -> list[tuple[dict[str, float], Tensor]]:
    """Return losses and gradients of autograd, and those by hand."""
    parameters = list(policy.parameters())
    optimizer = torch.optim.Adam(parameters)
    error = policy_error_from_log_prob
    learner: Any = SimpleNamespace(
        policy=policy, policy_error=error, parameters=parameters, optimizer=optimizer
    )
    found = []
    by_hand = ByHand(policy)
    for compute in (partial(PPO.autograd, learner), by_hand.gradient):
        for p in parameters:
            p.grad = torch.full_like(p, 7.0)  # of somebody else, to be replaced
        losses = compute(part, config)
        given = [p.grad for p in parameters]
        found.append((losses, torch.cat([g.flatten() for g in given if g is not None])))
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
    kind: str, config: PPOConfig, size: int, seed: int, spread: float, masked: bool
) -> None:
    """A spread of 40 nats leaves the ratio's clamp, one of 0 puts all ratios at 1."""
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        policy = built(kind, seed, dtype)
        part = samples(policy, size, seed, spread, masked and kind != "Gaussian")
        (losses, plain), (others, own) = both_gradients(policy, part, config)
        assert losses == pytest.approx(others, rel=near, abs=near)
        assert (plain - own).norm() <= near * plain.norm() + near * 1e-3


def slopes(
    log_ratio: Any, adv: Any, clip: float, dual: float | None
) -> tuple[Tensor, Any]:
    """Return the slopes of the surrogate by autograd and by hand."""
    new = torch.tensor(log_ratio, dtype=torch.float64, requires_grad=True)
    given = torch.tensor(adv, dtype=torch.float64)
    old = torch.zeros_like(new)
    objective = clipped_surrogate(new, old, given, clip, dual)
    (plain,) = torch.autograd.grad(objective.sum(), new)
    own = surrogate(new.detach().numpy(), old.numpy(), given.numpy(), clip, dual)
    assert torch.equal(objective.detach(), torch.from_numpy(own[0]))
    return plain, torch.from_numpy(own[1])


# Log-ratios whose ratio lies on a border of the clip range to the bit.
ABOVE, BELOW = 0.25, -0.25
WIDTHS = {ABOVE: math.exp(ABOVE) - 1, BELOW: 1 - math.exp(BELOW)}


@pytest.mark.equation("by-hand-surrogate")
@pytest.mark.parametrize("border", [ABOVE, BELOW])
def test_on_the_border_of_the_clip_range_a_sample_pulls_as_in_autograd(
    border: float,
) -> None:
    width, adv = WIDTHS[border], [1.0, -1.0, 0.0]
    ratio = np.exp(border)
    assert ratio in (1 + width, 1 - width)
    plain, own = slopes([border] * 3, adv, width, None)
    assert plain.tolist() == own.tolist() == [ratio, -ratio, 0.0]


@given(
    log_ratio=st.sampled_from([0.0, ABOVE, BELOW, 0.1, -0.1, 1.0, -1.0])
    | st.sampled_from([20.0, -20.0, 20.5, -20.5])
    | st.floats(-25, 25),
    adv=st.sampled_from([0.0, -0.0, 1.0, -1.0]) | st.floats(-1e3, 1e3),
    width=st.sampled_from([*WIDTHS.values(), 0.2]),
    dual=st.sampled_from([None, 1.5, 3.0]),
)
def test_the_slope_of_the_surrogate_is_that_of_autograd(
    log_ratio: float, adv: float, width: float, dual: float | None
) -> None:
    ratio = math.exp(log_ratio)
    held = min(max(ratio, 1 - width), 1 + width)
    # Where two branches meet with a kink, there is no slope to agree on.
    assume(ratio == held or ratio * adv != held * adv or adv == 0)
    assume(dual is None or adv >= 0 or ratio != dual)
    plain, own = slopes([log_ratio], [adv], width, dual)
    assert torch.equal(plain, own)


def test_where_the_dual_clip_begins_autograd_takes_half_a_slope_and_we_none() -> None:
    dual = math.exp(1.0)
    plain, own = slopes([1.0], [-1.0], 0.2, dual)
    assert (plain.item(), own.item()) == (-dual / 2, 0)


@pytest.mark.equation("by-hand-value")
@given(
    value=st.sampled_from([0.0, 0.5, -0.5, 1.0, 2.0]) | st.floats(-5, 5),
    old=st.sampled_from([0.0, 1.0]) | st.floats(-5, 5),
    target=st.sampled_from([0.0, 1.0, -2.0]) | st.floats(-5, 5),
    clip=st.sampled_from([None, 0.5, 1.0]),
)
def test_the_slope_of_the_value_error_is_that_of_autograd(
    value: float, old: float, target: float, clip: float | None
) -> None:
    numbers = [torch.tensor([x], dtype=torch.float64) for x in (value, old, target)]
    numbers[0].requires_grad_()
    if clip is not None and abs(value - old) > clip:
        held = old + math.copysign(clip, value - old)
        assume((value - target) ** 2 != (held - target) ** 2)
    data = ppo_value_data(*numbers, None)
    loss = ppo_value_error(data, clip)
    (plain,) = torch.autograd.grad(loss, numbers[0])
    error, own = value_error(*(x.detach().numpy() for x in numbers), clip)
    assert error[0] == pytest.approx(loss.item(), rel=1e-12)
    assert own[0] == pytest.approx(plain.item(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("kind", BUILT)
def test_what_the_policy_says_is_the_same_in_any_shape(kind: str) -> None:
    policy = built(kind)
    by_hand = ByHand(policy)
    part = samples(policy, 6, 0, 0.0, False)
    shape = (3, 2)
    obs, action = (x.view(*shape, *x.shape[1:]) for x in part[:2])
    with torch.no_grad():
        plain = *policy.evaluate_actions(obs, action), policy.value(obs)
    own = *by_hand.evaluate_actions(obs, action), by_hand.value(obs)
    for x, y in zip(plain, own, strict=True):
        torch.testing.assert_close(x, y)


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


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "literate_rl/Moving-v0"])
def test_two_iterations_lead_to_the_same_parameters(env: str) -> None:
    config = replace(SMALL, normalize_obs=True, scale_reward=True)
    plain, own = learner(env, False, config), learner(env, True, config)
    for _ in range(2):
        metrics, others = plain.iterate(), own.iterate()
    assert metrics == pytest.approx(others, rel=1e-4, abs=1e-5, nan_ok=True)
    for x, y in zip(plain.parameters, own.parameters, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def test_after_zero_grad_or_another_state_the_gradient_is_there_again() -> None:
    one = learner("CartPole-v1", True)
    part = one.look_back(one.collect())
    one.gradient(part, SMALL)
    before = [p.grad.clone() for p in one.parameters if p.grad is not None]
    one.optimizer.zero_grad()
    one.policy.load_state_dict(one.policy.state_dict())  # type: ignore[attr-defined]
    one.gradient(part, SMALL)
    after = [p.grad for p in one.parameters if p.grad is not None]
    assert len(before) == len(after) == len(one.parameters)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_a_schedule_of_the_learning_rate_is_followed() -> None:
    both = [learner("CartPole-v1", by_hand) for by_hand in (False, True)]
    part = both[0].look_back(both[0].collect())
    for one in both:
        schedule = torch.optim.lr_scheduler.LinearLR(one.optimizer, 0.1, total_iters=3)
        for _ in range(4):
            one.learn(part)
            schedule.step()
    for x, y in zip(*(one.parameters for one in both), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def test_what_autograd_would_refuse_later_is_refused() -> None:
    one = learner("CartPole-v1", True)
    part = one.look_back(one.collect())
    mask = torch.ones(len(part.adv), 2, dtype=torch.bool)
    for changes, error, words in (
        ({"adv": part.adv[:1]}, ValueError, "as many rows in each of its fields"),
        ({"mask": mask.float()}, TypeError, "mask must be a bool tensor"),
        ({"mask": ~mask}, ValueError, "must leave a legal action"),
    ):
        with pytest.raises(error, match=words):
            one.learn(part._replace(**changes))  # type: ignore[arg-type]
    one.parameters[0].requires_grad_(False)
    with pytest.raises(ValueError, match="none of them frozen"):
        one.learn(part)
    with pytest.raises(TypeError, match="ByHand shares the memory of a policy"):
        copy.deepcopy(one)


def test_a_restored_learner_by_hand_ends_with_the_same_weights() -> None:
    config = replace(SMALL, checkpoint_interval=1)
    whole, first, second = (learner("CartPole-v1", True, config) for _ in range(3))
    for one in (whole, whole, first):
        one.iterate()
    second.policy.load_state_dict(first.policy.state_dict())  # type: ignore[attr-defined]
    second.load_state_dict(first.state_dict())
    second.iterate()
    assert all(map(torch.equal, whole.parameters, second.parameters))


@pytest.mark.parametrize("name", ["log_prob", "adv", "target", "obs"])
def test_what_is_not_finite_is_named_and_moves_nothing(name: str) -> None:
    policy = built("discrete")
    part = samples(policy, 4, 0, 0.1, False)
    broken = getattr(part, name).clone()
    broken[0] = -math.inf
    told = {"log_prob": "log_prob_old", "obs": "log_prob"}.get(name, name)
    with pytest.raises(ValueError, match=f"^{told} must be finite"):
        ByHand(policy).gradient(part._replace(**{name: broken}), PPOConfig())
    assert all(p.grad is None for p in policy.parameters())


# --- What is refused ------------------------------------------------------------------


def changed(change: Callable[[Policy], Any]) -> Policy:
    policy = built("discrete")
    change(policy)
    return policy


def own_chain(*layers: nn.Module) -> Policy:
    chain = nn.Sequential(*layers)
    return Policy(ActorCritic(chain, nn.Linear(3, 1)), CategoricalActions(4))


def shared_layer() -> Policy:
    layer = nn.Linear(3, 8)
    actor, critic = (
        nn.Sequential(layer, nn.Tanh(), nn.Linear(8, size)) for size in (4, 1)
    )
    return Policy(ActorCritic(actor, critic), CategoricalActions(4))


class Halved(CategoricalActions):
    """An entropy of its own."""

    def evaluate(self, row: Tensor, action: Tensor) -> Any:
        log_prob, entropy = super().evaluate(row, action)
        return log_prob, entropy / 2


PICTURE = spaces.Box(0, 255, (6, 6, 2), np.uint8)
CHAINS = "policy must have .*Linear"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an encoder": (lambda: make_policy(PICTURE, LISTED), CHAINS),
    "another layer": (lambda: own_chain(nn.Linear(3, 4), nn.Sigmoid()), CHAINS),
    "no bias": (
        lambda: own_chain(nn.Linear(3, 4, bias=False)),
        "policy must have Parameter there",
    ),
    "a shared layer": (shared_layer, "must use each parameter in one place only"),
    "another device": (lambda: built("discrete").to("meta"), "CPU, got meta"),
    "another dtype": (
        lambda: built("discrete").half(),
        "float32 or float64 throughout",
    ),
    "several choices": (
        lambda: make_policy(SEEN, spaces.MultiDiscrete([2, 3])),
        "policy must have CategoricalActions there",
    ),
    "actions of one's own": (
        lambda: changed(lambda x: setattr(x, "actions", Halved(4))),
        "policy must have CategoricalActions there",
    ),
    "a hook": (
        lambda: changed(
            lambda x: x.network.actor[0].register_forward_hook(lambda *_: None)
        ),
        CHAINS,
    ),
    "a hook of a weight": (
        lambda: changed(
            lambda x: x.network.actor[0].weight.register_hook(lambda g: 2 * g)
        ),
        "must have Parameter there, without hooks",
    ),
    "a frozen weight": (
        lambda: changed(lambda x: x.network.actor[0].weight.requires_grad_(False)),
        "must train all its parameters",
    ),
    "a parameter too many": (
        lambda: changed(
            lambda x: setattr(x, "c", nn.Parameter(torch.zeros(1).double()))
        ),
        "no parameters but those of its layers",
    ),
    "a method of one's own": (
        lambda: changed(lambda x: setattr(x, "value", lambda obs: 0)),
        "must have Policy there, without hooks or methods of its own",
    ),
    "a mask's meaning of one's own": (
        lambda: changed(lambda x: setattr(x.actions, "legal", lambda row, mask: row)),
        "must have CategoricalActions there, without hooks or methods of its own",
    ),
    "another network": (
        lambda: changed(lambda x: setattr(x, "network", nn.Linear(3, 4))),
        "policy must have ActorCritic there",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_policies_are_refused_with_the_reason(what: str) -> None:
    make, words = REFUSED[what]
    with pytest.raises(ValueError, match=words):
        ByHand(make())


def test_numpy_computes_on_one_thread_and_has_its_own_back(monkeypatch) -> None:
    def threads() -> list[int]:
        found = threadpool_info()
        return [x["num_threads"] for x in found if x["user_api"] == "blas"]

    seen: list[int] = []
    tanh = np.tanh
    monkeypatch.setattr(np, "tanh", lambda x: (seen.extend(threads()), tanh(x))[1])
    policy = built("discrete", dtype=torch.float32)
    part = samples(policy, 9, 0, 0.1, False)
    act, by_hand = numpy_act(policy), ByHand(policy)
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        for compute in (
            lambda: act(part.obs, 0.0),
            lambda: by_hand.value(part.obs),
            lambda: by_hand.evaluate_actions(part.obs, part.action),
            lambda: by_hand.gradient(part, PPOConfig()),
        ):
            compute()
            assert threads() == before, "as it was"
    # Two tangents in each network.
    assert seen == [1] * len(before) * (2 + 2 + 2 + 4)


def test_a_loss_of_ones_own_needs_autograd() -> None:
    policy, envs = make_policy(SEEN, LISTED), make_envs("CartPole-v1", 4)
    error, by_hand = policy_error_from_log_prob, ByHand(policy)
    with pytest.raises(ValueError, match="policy_error needs autograd"):
        PPO(policy, envs, PPOConfig(), policy_error=error, by_hand=by_hand)


# --- Asked for by name ----------------------------------------------------------------

TINY: dict[str, Any] = {"num_envs": 2, "num_steps": 32, "num_epochs": 2}


def test_a_run_goes_on_in_another_form(tmp_path: Path) -> None:
    ends = []
    for number, (first, then) in enumerate(
        [("plain", "plain"), ("by hand", "auto"), ("auto", "by hand")]
    ):
        folder = tmp_path / str(number)
        quiet: dict[str, Any] = {"progress": False}
        agent = train("PPO", "CartPole-v1", fast=first, total_steps=64, **TINY, **quiet)
        settings = json.loads((agent.save(folder) / "settings.json").read_text())
        assert "by hand" not in str(settings)
        settings["config"]["total_steps"] = 128
        (folder / "settings.json").write_text(json.dumps(settings))
        again = train("PPO", "CartPole-v1", fast=then, resume=folder, **quiet)
        assert again.learner.step == 128
        ends.append(again.policy.state_dict())  # type: ignore[attr-defined]
    for others in ends[1:]:
        for x, y in zip(ends[0].values(), others.values(), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def test_the_command_line_learns_by_hand_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--name=a", "--num-envs=2", "--num-steps=32", "--total-steps=64"]
    main(["ppo", *options, "--fast", "by hand"])
    assert "fast forms: acting and learning by hand\n" in capsys.readouterr().out
    main(["ppo", "--resume", "runs/a", "--fast", "plain"])
    assert "fast forms: none\n" in capsys.readouterr().out
    assert load(tmp_path / "runs/a")


WORDS = {
    ("PPO", "fast"): "fast must be 'auto' or 'plain' or 'by hand', got 'fast'",
    ("A2C", "by hand"): "fast='by hand' is for ppo, got a2c",
}


@pytest.mark.parametrize(("algorithm", "fast"), WORDS)
def test_what_there_is_not_is_refused(algorithm: str, fast: Any) -> None:
    with pytest.raises(ValueError, match=f"^{WORDS[algorithm, fast]}$"):
        train(algorithm, "CartPole-v1", fast=fast)


def test_a_model_of_ones_own_is_refused_by_hand_with_the_reason() -> None:
    def encoder(space: Any) -> Any:
        layer: Any = nn.Linear(4, 8)
        layer.output_size = 8
        return layer

    with pytest.raises(ValueError, match=CHAINS):
        train("PPO", "CartPole-v1", fast="by hand", encoder=encoder)


@pytest.mark.parametrize("name", ["DQN", "SAC", "IMPALA"])
def test_plain_hands_in_nothing(name: str, capsys: Any) -> None:
    env = "Pendulum-v1" if name == "SAC" else "CartPole-v1"
    train(name, env, fast="plain", total_steps=1)
    assert "fast forms: none\n" in capsys.readouterr().out

"""Fast forms: equal to the plain ones, and refused where they would not be."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_full_backward_hook,
)

from literate_rl.advantages import gae_loop
from literate_rl.agents import make_envs
from literate_rl.ddpg import (
    DDPG,
    DDPGConfig,
    OneHotActions,
    ddpg_error,
    fused_ddpg_error,
    make_ddpg_policy,
)
from literate_rl.dqn import QError, fused_q_error, make_q_policy, q_error
from literate_rl.policies import CategoricalActions, Policy, make_policy
from literate_rl.policy_gradient import categorical_entropy, categorical_log_prob
from literate_rl.ppo_error import (
    fused_ppo_policy_error,
    ppo_policy_data,
    ppo_policy_error,
)
from literate_rl.replay import Batch
from literate_rl.sac import (
    SAC,
    SACConfig,
    SquashedGaussian,
    drawn_values,
    fused_sac_error,
    fused_soft_values,
    make_sac_policy,
    sac_error,
)
from literate_rl.td3 import (
    fused_hddpg_error,
    fused_td3_error,
    hddpg_error,
    td3_error,
)
from literate_rl.workshop.fast import (
    FusedCriticError,
    FusedQError,
    categorical_terms,
    chain_layers,
    numpy_act,
    reverse_scan,
)

sizes = st.tuples(st.integers(1, 40), st.integers(1, 3))
seeds = st.integers(0, 9999)


def scan_by_sum(increment: Tensor, factor: Tensor) -> Tensor:
    """Sum all later increments, each times the factors on the way."""
    rows = range(len(increment))
    return torch.stack(
        [
            sum(
                (math.prod([factor[r] for r in range(t, u)], start=1.0) * increment[u])
                for u in rows[t:]
            )
            for t in rows
        ]
    )


@pytest.mark.equation("reverse-scan")
@pytest.mark.equation("scan-chunk")
@given(sizes, seeds)
def test_scan_is_the_sum_of_later_increments(size, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    increment, factor = torch.randn(2, *size, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        reverse_scan(increment, factor), scan_by_sum(increment, factor)
    )


@given(st.tuples(st.integers(1, 700), st.integers(1, 3)), seeds)
def test_scan_is_the_loop_that_the_chapter_prints(size, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    increment, factor = torch.rand(2, *size, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        reverse_scan(increment, factor), gae_loop(increment, factor)
    )


def test_a_product_that_overflows_does_not_spoil_the_recursion() -> None:
    increment = torch.zeros(128, 1)
    increment[0] = 1
    huge = torch.full((128, 1), 1e6)
    assert torch.equal(reverse_scan(increment, huge), increment)
    # Step by step means each step, the last ones too.
    late, cut = increment.clone(), huge.clone()
    late[-1], cut[125] = 1, 0
    torch.testing.assert_close(reverse_scan(late, cut), gae_loop(late, cut))
    # Also where infinity would have met a tiny number instead of zero.
    tiny = increment.clone()
    tiny[-1], huge[:64] = 1e-30, 1e-6
    huge[64:120] = 1.0
    torch.testing.assert_close(reverse_scan(tiny, huge), gae_loop(tiny, huge))
    # What is infinite step by step stays infinite.
    assert reverse_scan(increment + 1, huge * 1e6).isinf().any()


@pytest.mark.parametrize("factor", [0.5, 1e6])
def test_scan_keeps_no_gradient_and_stops_nobody_elses(factor: float) -> None:
    """The second factor takes the way for products that overflow."""
    increment = torch.zeros(128, 1)
    increment[0] = 1
    factors = torch.full((128, 1), factor)
    result = reverse_scan(increment.requires_grad_(), factors.requires_grad_())
    assert not result.requires_grad
    assert increment.requires_grad
    assert factors.requires_grad


@pytest.mark.parametrize("length", [1, 2, 3, 8, 100])
def test_scan_writes_to_no_argument_and_shares_no_memory(length) -> None:
    increment, factor = torch.rand(2, length, 2)
    kept = increment.clone(), factor.clone()
    result = reverse_scan(increment, factor)
    result.zero_()
    assert torch.equal(increment, kept[0])
    assert torch.equal(factor, kept[1])


@pytest.mark.parametrize(
    ("increment", "factor", "error", "message"),
    [
        (torch.zeros(3), torch.zeros(3), ValueError, "increment must have"),
        (torch.zeros(3, 2), torch.zeros(2, 2), ValueError, "factor must have shape"),
        (torch.zeros(3, 2), 0.5, TypeError, "factor must be a tensor, got float"),
    ],
)
def test_scan_names_bad_arguments(increment, factor, error, message) -> None:
    with pytest.raises(error, match=message):
        reverse_scan(increment, factor)


# --- The policy error with a gradient written by hand --------------------------------

FORMS = [ppo_policy_error, fused_ppo_policy_error]


def make_batch(
    batch: int, actions: int, seed: int, weighted: bool = False, spread: float = 0.5
) -> ppo_policy_data:
    """A random float64 batch; the new logits want a gradient."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    logit_new = draw(batch, actions)
    return ppo_policy_data(
        logit_new.clone().requires_grad_(),
        logit_new + spread * draw(batch, actions),
        torch.randint(0, actions, (batch,), generator=g),
        draw(batch),
        torch.rand(batch, generator=g, dtype=torch.float64) if weighted else None,
    )


@pytest.mark.equation("fused-gradient")
@given(
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(0, 999),
    st.booleans(),
    st.none() | st.floats(1.01, 10.0),
)
def test_fused_equals_plain(
    batch: int, actions: int, seed: int, weighted: bool, c: float | None
) -> None:
    data = make_batch(batch, actions, seed, weighted, spread=2.0)
    results = []
    for error in FORMS:
        loss, info = error(data, 0.2, c)
        total = 0.7 * loss.policy_loss - 0.3 * loss.entropy_loss
        results.append((*loss, *info, *torch.autograd.grad(total, data.logit_new)))
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_fused_equals_plain_at_extreme_logits(scale: float) -> None:
    data = make_batch(64, 6, seed=0)
    logit = (data.logit_new.detach() * scale).float().requires_grad_()
    data = data._replace(
        logit_new=logit, logit_old=data.logit_old.float() * scale, adv=data.adv.float()
    )
    gradients = []
    for error in FORMS:
        loss, _ = error(data)
        gradients.append(torch.autograd.grad(sum(loss), logit)[0])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("adv", [-1.0, 1.0])
@pytest.mark.parametrize("log_ratio", [-30.0, -19.0, 19.0, 30.0])
@pytest.mark.parametrize("c", [None, 3.0])
def test_fused_holds_a_ratio_where_the_plain_form_does(adv, log_ratio, c) -> None:
    """Also where the loss is as small as the ratio: no absolute error is allowed."""
    small, large = min(log_ratio, 0.0), -max(log_ratio, 0.0)
    logits = (torch.tensor([[x, 0.0]], dtype=torch.float64) for x in (small, large))
    new, old = logits
    new.requires_grad_()
    weight = torch.tensor([adv], dtype=torch.float64)
    data = ppo_policy_data(new, old, torch.tensor([0]), weight, None)
    results = []
    for error in FORMS:
        loss, _ = error(data, 0.2, c)
        results.append((loss[0], *torch.autograd.grad(loss[0], new)))
    torch.testing.assert_close(*results, rtol=1e-9, atol=0)


@pytest.mark.parametrize("adv", [-1.0, 1.0])
@pytest.mark.parametrize("log_ratio", [-30.0, -1.0, 1.0, 19.0, 25.0])
@pytest.mark.parametrize("clip_ratio", [2.0, 1e8, math.inf])
def test_fused_holds_a_ratio_with_a_clip_that_is_wide(
    adv, log_ratio, clip_ratio
) -> None:
    new = torch.tensor([[min(log_ratio, 0.0), 0.0]], requires_grad=True)
    old = torch.tensor([[-max(log_ratio, 0.0), 0.0]])
    data = ppo_policy_data(new, old, torch.tensor([0]), torch.tensor([adv]), None)
    results = []
    for error in FORMS:
        loss, info = error(data, clip_ratio)
        results.append((loss[0], *info, *torch.autograd.grad(loss[0], new)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=0)


def test_fused_refuses_second_derivatives() -> None:
    """A wrong second derivative must not come back silently."""
    data = make_batch(4, 3, seed=0)
    loss, _ = fused_ppo_policy_error(data)
    with pytest.raises(RuntimeError, match="can be differentiated only once"):
        torch.autograd.grad(loss.policy_loss**2, data.logit_new, create_graph=True)


@pytest.mark.equation("categorical-gradient")
@given(seeds, st.integers(1, 9), st.integers(1, 6), st.sampled_from([1.0, 30.0, 1e4]))
def test_terms_and_gradients_are_those_of_chapter_two(seed, rows, n, scale) -> None:
    generator = torch.Generator().manual_seed(seed)
    logit = scale * torch.randn(rows, n, generator=generator, dtype=torch.float64)
    logit.requires_grad_()
    action = torch.randint(n, (rows,), generator=generator)
    ours = categorical_terms(logit, action)
    theirs = categorical_log_prob(logit, action), categorical_entropy(logit)
    torch.testing.assert_close(ours, theirs)
    factors = torch.randn(2, rows, generator=generator, dtype=torch.float64)
    grads = [
        torch.autograd.grad((torch.stack(terms) * factors).sum(), logit)[0]
        for terms in (ours, theirs)
    ]
    torch.testing.assert_close(*grads)


def test_an_action_that_was_taken_away_has_no_gradient() -> None:
    logit = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    log_prob, entropy = categorical_terms(logit, torch.tensor([0]))
    torch.testing.assert_close(entropy, Categorical(logits=logit[:, :2]).entropy())
    (log_prob + entropy).sum().backward()
    assert logit.grad.isfinite().all()
    assert logit.grad[0, 2] == 0.0


def test_terms_can_be_differentiated_once() -> None:
    logit = torch.zeros(2, 3, requires_grad=True)
    log_prob, _ = categorical_terms(logit, torch.tensor([0, 1]))
    factor = torch.ones((), requires_grad=True)
    total = factor * log_prob.sum()
    (grad,) = torch.autograd.grad(total, logit, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


# --- What a fast form may take the place of -------------------------------------------

SEEN, LISTED, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Box(-2, 2, (2,))
BUILT: dict[str, Callable[[], Any]] = {
    "categorical": partial(make_policy, SEEN, LISTED, 8),
    "Gaussian": partial(make_policy, SEEN, BOX, 8),
    "values": partial(make_q_policy, SEEN, LISTED, 8),
}


def seeded(make: Callable[[], Any]) -> Any:
    """Build a policy with the same weights each time."""
    torch.manual_seed(0)
    return make()


def negative(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """What a forward hook may do."""
    return -output


def rows_of(policy: Any) -> Any:
    """The layers that describe the actions."""
    rows = getattr(policy.network, "actor", policy.network)
    return getattr(rows, "mean", rows)


def same_name(x: Any, **methods: Any) -> Any:
    """Give an object a class with the name of its own and with other methods."""
    x.__class__ = type(type(x).__name__, (type(x),), methods)
    return x


def replaced(owner: Any, name: str, value: Any) -> None:
    """Put something in place of a method, on the instance."""
    setattr(owner, name, value)


def opposite(self: Any, row: Tensor, noise: Tensor) -> Tensor:
    return -(row[..., : noise.shape[-1]] - noise)


def reseen(policy: Any) -> None:
    """A network with the attribute of ours, and with a `forward` of its own."""
    inner = rows_of(policy)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = inner

        def forward(self, obs: Tensor) -> Tensor:
            return -self.actor(obs)

    policy.network, policy.actions = Net(), CategoricalActions(2)


def own_layer(policy: Any) -> None:
    class Linear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return -super().forward(x)

    same = rows_of(policy)[0]
    rows_of(policy)[0] = Linear(same.in_features, same.out_features)


def own_sequence(policy: Any) -> None:
    class Sequential(nn.Sequential):
        def __call__(self, x: Tensor) -> Tensor:
            return -super().__call__(x)

    rows_of(policy).__class__ = Sequential


def tensor_for_weight(policy: Any) -> None:
    """A weight that is made of something else and is no parameter."""
    layer = rows_of(policy)[0]
    weight = layer.weight
    del layer.weight
    layer.scale = nn.Parameter(weight.detach())
    layer.weight = 2 * layer.scale


def made_anew(policy: Any) -> None:
    """PyTorch's name for a weight that is computed whenever it is needed."""
    nn.utils.parametrizations.weight_norm(rows_of(policy)[0])


DISTURBED: dict[str, Callable[[Any], Any]] = {
    "class with act": lambda p: same_name(p, act=lambda self, obs, noise: obs[:, 0]),
    "class with forward": lambda p: same_name(
        p, forward=lambda self, obs: -self.network(obs)
    ),
    "class with call": lambda p: same_name(
        p, __call__=lambda self, obs: -self.forward(obs)
    ),
    "class with choose": lambda p: same_name(p.actions, choose=opposite),
    "act": lambda p: replaced(p, "act", lambda obs, noise: obs[:, 0]),
    "someone else's act": lambda p: replaced(p, "act", make_policy(SEEN, LISTED).act),
    "choose": lambda p: replaced(p.actions, "choose", partial(opposite, None)),
    "forward": lambda p: replaced(p, "forward", lambda obs: -p.network(obs)),
    "network's forward": lambda p: replaced(
        p.network, "forward", partial(type(p.network).forward, p.network)
    ),
    "layer's forward": lambda p: replaced(
        rows_of(p)[0], "forward", lambda x: x.new_ones(len(x), 8)
    ),
    "ReLU's forward": lambda p: replaced(rows_of(p)[1], "forward", torch.sigmoid),
    "network with an actor": reseen,
    "own layer": own_layer,
    "own sequence": own_sequence,
    "other weight": tensor_for_weight,
    "weight made anew": made_anew,
    "older norm": lambda p: nn.utils.spectral_norm(rows_of(p)[0]),
    **{
        f"hook on the {name}": lambda p, of=of: of(p).register_forward_hook(negative)
        for name, of in {
            "policy": lambda p: p,
            "network": lambda p: p.network,
            "rows": rows_of,
            "layer": lambda p: rows_of(p)[0],
        }.items()
    },
}


@pytest.mark.parametrize("kind", BUILT)
@pytest.mark.parametrize("change", DISTURBED)
def test_numpy_acts_for_nobody_else(kind: str, change: str) -> None:
    policy = seeded(BUILT[kind])
    assert numpy_act(policy) != policy.act
    DISTURBED[change](policy)
    assert numpy_act(policy) == policy.act


def test_numpy_acts_for_no_hook_of_all_modules_and_no_other_rule() -> None:
    policy = seeded(BUILT["categorical"])
    with register_module_forward_hook(lambda module, inputs, output: -output):
        assert numpy_act(policy) == policy.act
    squashed = SquashedGaussian(BOX.low, BOX.high)
    others = (
        Policy(seeded(BUILT["Gaussian"]).network, squashed),
        Policy(nn.Sequential(nn.Linear(3, 2)), OneHotActions(2)),
        Policy(nn.Sequential(nn.Linear(3, 2).bfloat16()), CategoricalActions(2)),
    )
    assert [numpy_act(x) == x.act for x in others] == [True] * 3
    # A subclass that adds something and leaves the rest as it was is no other rule.
    same_name(policy, added=None)
    same_name(policy.actions, added=None)
    assert numpy_act(policy) != policy.act


class Still(gym.Env[Any, Any]):
    """A world of noise."""

    observation_space, action_space = SEEN, BOX

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return self.np_random.random(3, np.float32), 0.0, False, False, {}


# How a policy is built, its plain error and its fused one.
ERRORS: dict[str, tuple[Any, Any, Any]] = {
    "DQN": (BUILT["values"], q_error, fused_q_error),
    "DDPG": (partial(make_ddpg_policy, SEEN, BOX, 8), ddpg_error, fused_ddpg_error),
    "TD3": (partial(make_ddpg_policy, SEEN, BOX, 8, 2), td3_error, fused_td3_error),
    "HDDPG": (
        partial(make_ddpg_policy, SEEN, BOX, 8),
        partial(hddpg_error, increase=1.0, decrease=0.5),
        partial(fused_hddpg_error, increase=1.0, decrease=0.5),
    ),
    "SAC": (partial(make_sac_policy, SEEN, BOX, 8), sac_error, fused_sac_error),
}


def judges_of(policy: Any) -> Any:
    """The module whose errors are computed: critics, or the policy itself."""
    return getattr(policy, "critics", policy.network)


def chains_of(policy: Any) -> list[Any]:
    """The chains in it, each a list of layers."""
    judges = judges_of(policy)
    critics = getattr(judges, "critics", None)
    return [judges] if critics is None else [x.model.net for x in critics]


def first_layer(policy: Any) -> Any:
    return chains_of(policy)[0][0]


def frozen(policy: Any) -> None:
    """The usual way to hold weights where they are."""
    first_layer(policy).weight.register_hook(lambda grad: 0 * grad)


def stepping(policy: Any) -> None:
    """A step of the optimiser inside the backward pass."""

    def step(weight: nn.Parameter) -> None:
        weight.data += 1.0
        weight.grad = torch.full_like(weight, 7.0)

    first_layer(policy).weight.register_post_accumulate_grad_hook(step)


def backward_hooks(kind: str) -> Callable[[Any], None]:
    """A hook on the first layer's gradients."""

    def disturb(policy: Any) -> None:
        layer = chains_of(policy)[0][2]
        if kind == "full":
            layer.register_full_backward_hook(lambda m, into, out: (3 * into[0],))
        else:
            layer.register_full_backward_pre_hook(lambda m, out: (3 * out[0],))

    return disturb


def critics_forward(policy: Any) -> None:
    """A hook on whatever is called with states and actions."""
    judges = judges_of(policy)
    critics = getattr(judges, "critics", [policy])
    critics[0].register_forward_hook(
        lambda m, inputs, out: (-out[0],) if isinstance(out, tuple) else -out
    )


def models_forward(policy: Any) -> None:
    judges = judges_of(policy)
    critics = getattr(judges, "critics", None)
    model = policy if critics is None else critics[0].model
    inner = model.forward
    model.forward = lambda *x, **named: -inner(*x, **named)


def judged_otherwise(policy: Any) -> None:
    """A subclass that keeps its name and judges otherwise."""
    judges = judges_of(policy)
    name = "q" if hasattr(judges, "q") else "forward"
    inner = getattr(type(judges), name)
    same_name(judges, **{name: lambda self, *x: 2 * inner(self, *x)})


def tied(policy: Any) -> None:
    """The same layer twice: in one chain, or in two critics."""
    chain, *others = chains_of(policy)
    if others:
        others[0][2] = chain[2]
    else:
        chain.append(nn.ReLU())
        chain.append(nn.Linear(chain[-2].out_features, 8))
        chain.append(chain[2])
        chain.append(nn.Linear(8, chain[-4].out_features))


def shared_weight(policy: Any) -> None:
    """Two layers with one weight."""
    chain = chains_of(policy)[0]
    chain[2] = nn.Linear(8, 8)
    chain.insert(3, nn.Linear(8, 8))
    chain[3].weight = chain[2].weight


LISTENED: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda p: None,
    "gradient hook": frozen,
    "hook after accumulation": stepping,
    "backward hook": backward_hooks("full"),
    "backward pre-hook": backward_hooks("pre"),
    "hook on a critic": critics_forward,
    "forward on a model": models_forward,
    "forward on a layer": lambda p: replaced(
        first_layer(p), "forward", lambda x: x.new_ones(len(x), 8)
    ),
    "another judge": judged_otherwise,
    "layer used twice": tied,
    "weight used twice": shared_weight,
    "frozen in the middle": lambda p: chains_of(p)[0][2].requires_grad_(False),
    "begins with a ReLU": lambda p: chains_of(p)[0].insert(0, nn.ReLU()),
    "unknown layer": lambda p: chains_of(p)[0].append(nn.Identity()),
    "weight made anew": lambda p: nn.utils.parametrizations.weight_norm(first_layer(p)),
    "float64": lambda p: p.double(),
}


def made(name: str, change: str) -> Any:
    """Build a policy and disturb it."""
    policy = seeded(ERRORS[name][0])
    LISTENED[change](policy)
    return policy


def batch_for(name: str, dtype: torch.dtype = torch.float32) -> Batch:
    """Return six random steps."""
    g = torch.Generator().manual_seed(2)
    obs, next_obs, force = (torch.randn(6, n, generator=g) for n in (3, 3, 2))
    reward, discount, weight = torch.rand(3, 6, generator=g)
    action = torch.arange(6) % 2 if name == "DQN" else force
    batch = Batch(obs, action, 4 * reward, next_obs, discount, weight, torch.arange(6))
    return Batch(*(x.to(dtype) if x.is_floating_point() else x for x in batch))


def older_of(name: str, policy: Any) -> Any:
    """Return the older copy that an error asks."""
    return copy.deepcopy(policy.critics if name == "SAC" else policy)


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("change", LISTENED)
def test_errors_and_gradients_are_the_plain_ones_whoever_listens(
    name: str, change: str
) -> None:
    """Two backward passes: gradients add up, as over micro-batches."""
    found = []
    for error in ERRORS[name][1:]:
        policy = made(name, change)
        batch = batch_for(name, next(policy.parameters()).dtype)
        target = older_of(name, seeded(ERRORS[name][0])).to(batch.obs.dtype)
        for _ in range(2):
            result = error(policy, target, batch, torch.Generator().manual_seed(0))
            result.backward(batch.weight)
        grads = [x.grad for x in policy.parameters()]
        found.append((result.loss.detach(), result.td_error, result.value, grads))
    torch.testing.assert_close(*found)
    assert any(x is not None for x in grads)


@pytest.mark.parametrize("name", ERRORS)
def test_fused_forms_are_taken_where_they_can_be(name: str) -> None:
    policy, batch = made(name, "as it is"), batch_for(name)
    target = older_of(name, policy)
    error = partial(ERRORS[name][2], policy, target, generator=torch.Generator())
    assert isinstance(error(batch=batch), FusedQError | FusedCriticError)
    # Not by those who want a gradient of the states, nor where operations are cast.
    obs = batch.obs.clone().requires_grad_()
    error(batch=batch._replace(obs=obs)).backward(batch.weight)
    assert obs.grad.abs().sum() > 0
    chain = chains_of(policy)[0]
    assert chain_layers(chain) == list(chain)
    with torch.autocast("cpu"):
        assert chain_layers(chain) is None
    with register_module_full_backward_hook(lambda module, into, out: None):
        assert isinstance(error(batch=batch), QError)


@pytest.mark.parametrize("make", [DDPG, SAC])
def test_hooks_of_an_actors_weights_are_called(make: Any) -> None:
    config = {DDPG: DDPGConfig(batch_size=8), SAC: SACConfig(batch_size=8)}[make]
    learner = make(made(make.__name__, "as it is"), make_envs(Still, 1), config)
    learner.collector.reset(0)
    learner.buffer.push(learner.collector.collect(lambda obs: torch.zeros(1, 2), 9))
    heard: list[str] = []
    weight = learner.actor_parameters[0]
    weight.register_hook(lambda grad: heard.append("gradient"))
    weight.register_post_accumulate_grad_hook(lambda x: heard.append("after"))
    learner.learn()
    assert heard == ["gradient", "after"]


def ways_of_the_actor(change: Callable[[Any], Any]) -> list[list[Tensor | None]]:
    """Return the gradients of SAC's actor, through both forms of soft values."""
    grads, obs = [], batch_for("SAC").obs
    for values in (drawn_values, fused_soft_values):
        policy = made("SAC", "as it is")
        change(policy)
        value, _ = values(policy, obs, torch.Generator().manual_seed(0))
        grads.append(
            list(torch.autograd.grad(value.sum(), list(policy.network.parameters())))
        )
    return grads


def drawn_otherwise(policy: Any) -> None:
    """A subclass that keeps its name and draws half of the action."""
    draw = type(policy.actions).draw

    def half(self: Any, row: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob = draw(self, row, noise)
        return action / 2, log_prob

    same_name(policy.actions, draw=half)


@pytest.mark.parametrize(
    "change",
    [
        lambda policy: None,
        drawn_otherwise,
        judged_otherwise,
        backward_hooks("full"),
        lambda policy: chains_of(policy)[0].insert(0, nn.ReLU()),
        lambda policy: replaced(
            policy, "draw", lambda obs, g: (0 * policy(obs)[:, :2], policy(obs)[:, 0])
        ),
        lambda policy: same_name(
            policy.critics, forward=lambda self, obs, a: a.sum(-1) * torch.ones(2, 1)
        ),
    ],
)
def test_the_actor_climbs_what_the_plain_form_says(change: Any) -> None:
    torch.testing.assert_close(*ways_of_the_actor(change))

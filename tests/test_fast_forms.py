"""Fast forms: equal to a policy's plain forms, and refused where they would not be."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hybrid import MASK
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from literate_rl.by_hand.fast_forms import (
    FlatAdam,
    FusedQError,
    chain_layers,
    fused_q_error,
    numpy_act,
)
from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch
from literate_rl.learners.ddpg import (
    BoxActions,
    OneHotActions,
    make_ddpg_policy,
)
from literate_rl.learners.discrete_sac import make_discrete_sac_policy
from literate_rl.learners.dqn import DQN, DQNConfig, QLearning, make_q_policy
from literate_rl.learners.loop import OffPolicy, QError
from literate_rl.learners.sac import (
    SquashedGaussian,
    make_sac_policy,
)
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.parts import CategoricalActions, GaussianActions
from literate_rl.nets.policies import Policy, make_policy, normalizer_of
from literate_rl.runs.runs import fit

HYBRID = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (4,))))
SEEN, LISTED, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Box(-2, 2, (2,))
# How the policies are built that act in NumPy.
BUILT: dict[str, Callable[..., Any]] = {
    "categorical": partial(make_policy, SEEN, LISTED, 8),
    "Gaussian": partial(make_policy, SEEN, BOX, 8),
    "values": partial(make_q_policy, SEEN, LISTED, 8),
    "hybrid": partial(make_hybrid_policy, SEEN, HYBRID, MASK),
    "box": partial(make_ddpg_policy, SEEN, BOX, 8),
    "squashed": partial(make_sac_policy, SEEN, BOX, 8),
}


def seeded(make: Callable[..., Any], **arguments: Any) -> Any:
    """Build a policy with the same weights each time."""
    torch.manual_seed(0)
    return make(**arguments)


# --- Acting in NumPy ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *((kind, {"normalize": x}) for kind in BUILT for x in (False, True)),
        ("values", {"dueling": True}),
    ],
)
def test_numpy_acts_as_torch_does_and_follows_the_weights(
    kind: str, arguments: dict[str, bool]
) -> None:
    policy = seeded(BUILT[kind], **arguments)
    normalizes = arguments.get("normalize", False)
    for name, p in policy.named_parameters():
        if name.endswith("log_sigma"):
            nn.init.normal_(p, std=0.5)
    if kind == "box":
        policy.actions.scale, policy.actions.epsilon = 0.3, 0.5
    if kind == "squashed":
        # Deviations that are kept from being too small and too large.
        policy.network.net[-1].bias.data[2:] = torch.tensor([-9.0, 9.0])
        assert policy(torch.randn(64, 3))[0, 2:].tolist() == [-5.0, 2.0]
    act = numpy_act(policy)
    optimizer = torch.optim.Adam(policy.parameters(), 0.05, fused=True)
    for _ in range(3):
        obs = 3 * torch.randn(64, 3) + 1
        noise = policy.noise(1, 64, torch.Generator().manual_seed(0))[0]
        for luck in (noise, 0.0):
            with torch.no_grad():
                close = partial(torch.testing.assert_close, rtol=2e-6, atol=2e-6)
                close(act(obs, luck), policy.act(obs, luck))
        policy(obs).square().mean().backward()
        optimizer.step()
        if normalizes:
            normalizer_of(policy, True).update(obs)


def test_numpy_acts_on_the_cpu_only() -> None:
    with pytest.raises(ValueError, match="must be on the CPU, got meta"):
        numpy_act(seeded(BUILT["categorical"]).to("meta"))


def test_numpy_leaves_out_illegal_actions_where_the_policy_can() -> None:
    for only in (0, 1):
        act, mask = numpy_act(seeded(BUILT["categorical"])), torch.eye(2)[only] == 1
        assert act(torch.zeros(1, 3), 0.0, mask=mask.unsqueeze(0)).tolist() == [only]
    act = numpy_act(seeded(BUILT["Gaussian"]))
    with pytest.raises(ValueError, match="mask must be None"):
        act(torch.zeros(1, 3), 0.0, mask=torch.ones(1, 2, dtype=torch.bool))


@given(
    uses=st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.lists(st.booleans(), min_size=width, max_size=width),
            min_size=1,
            max_size=4,
        )
    ),
    scale=st.sampled_from([0.0, 1.0, 1e4]),
    masked=st.booleans(),
)
@settings(max_examples=25)
def test_numpy_chooses_types_and_arguments_as_torch_does(uses, scale, masked) -> None:
    """With one type and with many, no argument used, illegal types, extreme logits."""
    args = spaces.Box(-1, 1, (len(uses[0]),))
    done = spaces.Tuple((spaces.Discrete(len(uses)), args))
    policy = seeded(partial(make_hybrid_policy, SEEN, done, uses)).double()
    net = policy.network.actor.network
    nn.init.normal_(net.action_type_head.bias, std=scale)
    nn.init.normal_(net.action_args_log_sigma)
    act, obs = numpy_act(policy), torch.randn(2, 5, 3).double()
    legal = torch.rand(2, 5, len(uses)) < 0.5
    legal[..., -1] = True
    mask = legal if masked else None
    noise = policy.noise(2, 5, torch.Generator().manual_seed(0)).double()
    for luck in (noise, 0.0):
        fast, plain = (form(obs, luck, mask=mask) for form in (act, policy.act))
        assert torch.equal(fast[..., 0], plain[..., 0])
        torch.testing.assert_close(fast, plain.detach(), rtol=1e-12, atol=1e-12)
        for action, may in zip(fast.flatten(0, 1), legal.flatten(0, 1), strict=True):
            assert may[int(action[0])] or not masked


@pytest.mark.parametrize(
    "disturb",
    [
        lambda p: replaced(p.actions, "legal", lambda row, mask: row),
        lambda p: tensor_for_deviations(p.network.actor.network),
        lambda p: p.network.actor.network.register_forward_hook(negative),
        lambda p: setattr(p.network.actor.network, "encoder", nn.ELU()),
        lambda p: setattr(p.network.actor.network, "action_args_mu", nn.ELU()),
    ],
)
def test_numpy_acts_for_no_other_hybrid_policy(disturb: Any) -> None:
    policy = seeded(BUILT["hybrid"])
    disturb(policy)
    with pytest.raises(ValueError, match=OTHER):
        numpy_act(policy)


def tensor_for_deviations(net: Any) -> None:
    del net.action_args_log_sigma
    net.action_args_log_sigma = torch.zeros(1, 4)


def negative(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """What a forward hook may do."""
    return -output


def rows_of(policy: Any) -> Any:
    """The layers that describe the actions."""
    rows = getattr(policy.network, "actor", policy.network)
    if hybrid := getattr(rows, "network", None):
        return hybrid.encoder
    rows = getattr(rows, "mean", getattr(rows, "net", rows))
    # Behind the layers there may be a stretch to a box.
    return rows if isinstance(rows[0], nn.Linear) else rows[0]


def same_name(x: Any, **methods: Any) -> Any:
    """Give an object a class with the name of its own and with other methods."""
    changed = type(type(x).__name__, (type(x),), methods)
    object.__setattr__(x, "__class__", changed)  # though it may be frozen
    return x


def replaced(owner: Any, name: str, value: Any) -> None:
    """Put something in place of a method, on the instance."""
    object.__setattr__(owner, name, value)


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

    del policy.actions
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


OTHER = "policy must have .* there, without hooks or methods of its own, got"
ACTS = "policy must have Policy or .* there, .* got"
CHAIN = "policy must have .* there, .* got"
RULE = "policy must have CategoricalActions or .* there, .* got"
# What is done to a policy, and the words of the refusal.
DISTURBED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "class with act": (
        lambda p: same_name(p, act=lambda self, obs, noise: obs[:, 0]),
        ACTS,
    ),
    "class with forward": (
        lambda p: same_name(p, forward=lambda self, obs: -self.network(obs)),
        ACTS,
    ),
    "class with call": (
        lambda p: same_name(p, __call__=lambda self, obs: -self.forward(obs)),
        ACTS,
    ),
    "class with choose": (lambda p: same_name(p.actions, choose=opposite), RULE),
    "act": (lambda p: replaced(p, "act", lambda obs, noise: obs[:, 0]), ACTS),
    "someone else's act": (
        lambda p: replaced(p, "act", make_policy(SEEN, LISTED).act),
        ACTS,
    ),
    "choose": (lambda p: replaced(p.actions, "choose", partial(opposite, None)), RULE),
    "class with legal": (
        lambda p: same_name(p, legal=lambda self, row, mask: -row),
        ACTS,
    ),
    "forward": (lambda p: replaced(p, "forward", lambda obs: -p.network(obs)), ACTS),
    "network's forward": (
        lambda p: replaced(
            p.network, "forward", partial(type(p.network).forward, p.network)
        ),
        CHAIN,
    ),
    "layer's forward": (
        lambda p: replaced(rows_of(p)[0], "forward", lambda x: x.new_ones(len(x), 8)),
        CHAIN,
    ),
    "ReLU's forward": (lambda p: replaced(rows_of(p)[1], "forward", len), CHAIN),
    "network with an actor": (reseen, CHAIN),
    "own layer": (own_layer, CHAIN),
    "own sequence": (own_sequence, CHAIN),
    "other weight": (tensor_for_weight, CHAIN),
    "weight made anew": (made_anew, CHAIN),
    "older norm": (lambda p: nn.utils.spectral_norm(rows_of(p)[0]), CHAIN),
    "hook on the policy": (lambda p: p.register_forward_hook(negative), ACTS),
    "hook on the network": (lambda p: p.network.register_forward_hook(negative), CHAIN),
    "hook on the rows": (lambda p: rows_of(p).register_forward_hook(negative), CHAIN),
    "hook on the layer": (
        lambda p: rows_of(p)[0].register_forward_hook(negative),
        CHAIN,
    ),
}


@pytest.mark.parametrize("kind", BUILT)
@pytest.mark.parametrize("change", DISTURBED)
def test_numpy_acts_for_nobody_else(kind: str, change: str) -> None:
    policy = seeded(BUILT[kind])
    numpy_act(policy)
    disturb, words = DISTURBED[change]
    disturb(policy)
    with pytest.raises(ValueError, match=words):
        numpy_act(policy)


def test_numpy_acts_for_no_deviations_that_somebody_else_asks_for() -> None:
    policy = make_policy(SEEN, BOX)
    replaced(policy.actions, "legal", lambda row, mask: row)
    with pytest.raises(ValueError, match=RULE):
        numpy_act(policy)

    class Greedy(GaussianActions):
        def choose(self, row: Tensor, noise: Any) -> Tensor:
            return row.chunk(2, -1)[0]

    class Between(SquashedGaussian, Greedy):
        """What ``super()`` leads to is another class."""

    policy = make_sac_policy(SEEN, BOX)
    policy.actions = Between(*(cast(Any, BOX).low, cast(Any, BOX).high))
    with pytest.raises(ValueError, match=RULE):
        numpy_act(policy)


@pytest.mark.parametrize(
    ("network", "actions", "words"),
    [
        (None, BoxActions(BOX.low, BOX.high), CHAIN),
        (nn.Sequential(nn.Linear(3, 4)), GaussianActions(BOX.low, BOX.high), CHAIN),
        (nn.Sequential(nn.Linear(3, 2)), OneHotActions(2), RULE),
        (
            nn.Sequential(nn.Linear(3, 2).bfloat16()),
            CategoricalActions(2),
            "float32 or float64 throughout, got torch.bfloat16",
        ),
    ],
)
def test_numpy_acts_for_no_other_rule(network: Any, actions: Any, words: str) -> None:
    other = Policy(network or seeded(BUILT["Gaussian"]).network, actions)
    with pytest.raises(ValueError, match=words):
        numpy_act(other)


@pytest.mark.parametrize("kind", ["box", "squashed"])
def test_numpy_stretches_as_ours_do_or_not_at_all(kind: str) -> None:
    policy = seeded(BUILT[kind])
    stretch = policy.network.actor[-1] if kind == "box" else policy.actions.box
    stretch.register_forward_hook(negative)
    with pytest.raises(ValueError, match=CHAIN):
        numpy_act(policy)


# --- Errors with a gradient by hand ---------------------------------------------------


# How a policy is built, its algorithm, and what makes the faster error.
ERRORS: dict[str, tuple[Any, Any, Any]] = {
    "DQN": (BUILT["values"], partial(QLearning, config=DQNConfig()), fused_q_error),
}


def first_layer(policy: Any) -> Any:
    return policy.network[0]


def tied(policy: Any) -> None:
    """The same layer twice."""
    chain = policy.network
    chain.append(nn.ReLU())
    chain.append(nn.Linear(chain[-2].out_features, 8))
    chain.append(chain[2])
    chain.append(nn.Linear(8, chain[-4].out_features))


def shared_weight(policy: Any) -> None:
    """Two layers with one weight."""
    chain = policy.network
    chain[2] = nn.Linear(8, 8)
    chain.insert(3, nn.Linear(8, 8))
    chain[3].weight = chain[2].weight


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda p: None,
    "layer used twice": tied,
    "weight used twice": shared_weight,
    "frozen in the middle": lambda p: p.network[2].requires_grad_(False),
    "begins with a ReLU": lambda p: p.network.insert(0, nn.ReLU()),
    "float64": lambda p: p.double(),
}


def made(name: str, change: Callable[[Any], Any] = COMPUTED["as it is"]) -> Any:
    """Build a policy and change it."""
    policy = seeded(ERRORS[name][0])
    change(policy)
    return policy


def algorithm_for(name: str, policy: Any) -> Any:
    """Build an algorithm whose older copy is not the newer one."""
    algorithm = ERRORS[name][1](policy)
    with torch.no_grad():
        for weight in algorithm.target.network.parameters():
            weight *= 1.5
    return algorithm


def batch_for(dtype: torch.dtype = torch.float32) -> Batch:
    """Return six random steps."""
    g = torch.Generator().manual_seed(2)
    obs, next_obs = torch.randn(2, 6, 3, generator=g)
    reward, discount, weight = torch.rand(3, 6, generator=g)
    action = torch.arange(6) % 2
    reward = 6 * reward - 3
    batch = Batch(obs, action, reward, next_obs, discount, weight, torch.arange(6))
    return Batch(*(x.to(dtype) if x.is_floating_point() else x for x in batch[:7]))


def found(name: str, change: Callable[[Any], Any], fast: bool) -> list[Any]:
    """Return an error and its gradients; two backward passes add up."""
    policy = made(name, change)
    algorithm = algorithm_for(name, policy)
    fused = partial(ERRORS[name][2](policy), algorithm) if fast else algorithm.error
    batch = batch_for(next(policy.parameters()).dtype)
    for _ in range(2):
        error = fused(batch, torch.Generator().manual_seed(0))
        error.backward(batch.weight)
    assert isinstance(error, FusedQError if fast else QError)
    grads = [x.grad for x in policy.parameters()]
    assert error.td_error.sign().unique().tolist() == [-1, 1]
    assert any(x is not None and x.any() for x in grads)
    for kept in (error.td_error, error.value, *grads):
        assert kept is None or not kept.requires_grad
    return [error.loss.detach(), error.td_error, error.value, *grads]


@pytest.mark.equation("chain-gradient")
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("change", COMPUTED)
def test_errors_and_gradients_are_the_plain_ones(name: str, change: str) -> None:
    plain, fast = (found(name, COMPUTED[change], fast) for fast in (False, True))
    torch.testing.assert_close(fast, plain)


@pytest.mark.parametrize("name", ERRORS)
def test_an_algorithm_with_another_error_is_refused(name: str) -> None:
    policy = made(name)
    algorithm, batch = algorithm_for(name, policy), batch_for()
    fused, generator = ERRORS[name][2](policy), torch.Generator()

    class Heir(type(algorithm)):  # type: ignore[misc]
        pass

    class Other(type(algorithm)):  # type: ignore[misc]
        def error(self, batch: Batch, generator: torch.Generator) -> QError:
            raise NotImplementedError

    # What only has another name computes the same.
    algorithm.__class__ = Heir
    fused(algorithm, batch, generator)
    algorithm.__class__ = Other
    with pytest.raises(ValueError, match=r"algorithm must have .*\.error.*got a Other"):
        fused(algorithm, batch, generator)


def frozen(policy: Any) -> None:
    """The usual way to hold weights where they are."""
    first_layer(policy).weight.register_hook(lambda grad: 0 * grad)


def stepping(policy: Any) -> None:
    """A step of the optimiser inside the backward pass."""

    def step(weight: nn.Parameter) -> None:
        weight.data += 1.0
        weight.grad = torch.full_like(weight, 7.0)

    first_layer(policy).weight.register_post_accumulate_grad_hook(step)


LISTENS = "policy must have (Sequential|Linear|Parameter).* there, without hooks"
POLICY = "policy must have Policy there, without hooks"
# What is done to a policy, and whether it is the chain that is refused.
LISTENED: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "gradient hook": (frozen, True),
    "hook after accumulation": (stepping, True),
    "backward hook": (
        lambda p: first_layer(p).register_full_backward_hook(
            lambda m, into, out: (3 * into[0],)
        ),
        True,
    ),
    "backward pre-hook": (
        lambda p: first_layer(p).register_full_backward_pre_hook(
            lambda m, out: (3 * out[0],)
        ),
        True,
    ),
    "forward pre-hook": (
        lambda p: first_layer(p).register_forward_pre_hook(lambda m, x: (-x[0],)),
        True,
    ),
    "hook on the policy": (lambda p: p.register_forward_hook(negative), False),
    "forward on the policy": (
        lambda p: replaced(p, "forward", lambda obs: -p.network(obs)),
        False,
    ),
    "forward of a subclass": (
        lambda p: same_name(p.network, forward=lambda self, obs: 2 * obs[:, :2]),
        True,
    ),
    "forward on a layer": (
        lambda p: replaced(first_layer(p), "forward", lambda x: x.new_ones(len(x), 8)),
        True,
    ),
    "unknown layer": (lambda p: p.network.append(nn.Identity()), True),
    "weight made anew": (
        lambda p: nn.utils.parametrizations.weight_norm(first_layer(p)),
        True,
    ),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("change", LISTENED)
def test_whoever_listens_is_refused(name: str, change: str) -> None:
    disturb, chain = LISTENED[change]
    policy = made(name, disturb)
    with pytest.raises(ValueError, match=LISTENS if chain else POLICY):
        ERRORS[name][2](policy)


@pytest.mark.parametrize("name", ERRORS)
def test_autocast_is_refused_while_it_lasts(name: str) -> None:
    make, policy = ERRORS[name][2], made(name)
    with torch.autocast("cpu"), pytest.raises(ValueError, match="outside of autocast"):
        make(policy)
    make(policy)


def test_layers_of_a_chain_come_in_order() -> None:
    chain = made("DQN").network
    assert chain_layers(chain) == list(chain)


# --- In the loop ----------------------------------------------------------------------


class Still(gym.Env[Any, Any]):
    """A world of noise."""

    observation_space = SEEN

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(3, np.float32), {}

    def step(self, action: Any) -> Any:
        reward = float(self.np_random.random())
        return self.np_random.random(3, np.float32), reward, False, False, {}


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("rows", "exponent"), [(64, 0.0), (24, 0.6)])
def test_dqn_with_fast_forms_is_plain_dqn_to_the_bit(
    double: bool, dueling: bool, rows: int, exponent: float
) -> None:
    config = DQNConfig(
        total_steps=2000,
        hidden=64,
        batch_size=rows,
        learning_starts=100,
        double=double,
        priority_exponent=exponent,
    )

    def trained(**make: Callable[[Any], Any]) -> OffPolicy:
        policy = seeded(make_q_policy, **spaces_of, hidden=64, dueling=dueling)
        forms = {name: form(policy) for name, form in make.items()}
        learner = DQN(policy, make_envs(partial(Still, LISTED), 4), config, **forms)
        fit(learner, progress=False)
        return learner

    spaces_of = {"observation_space": SEEN, "action_space": LISTED}
    plain, fast = trained(), trained(act=numpy_act, error=fused_q_error)
    assert plain.updates == fast.updates > 400
    for mine, theirs in zip(
        plain.policy.state_dict().values(),
        fast.policy.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    assert torch.equal(plain.sample().action, fast.sample().action)


# --- Encoders -------------------------------------------------------------------------

PICTURES = {
    "picture": spaces.Box(0, 255, (6, 6, 2), np.uint8),
    "parts": spaces.Dict(a=spaces.Box(0, 255, (6, 6), np.uint8), b=SEEN),
}


@pytest.mark.parametrize("seen", PICTURES)
def test_networks_with_an_encoder_are_left_to_the_plain_forms(seen: str) -> None:
    space = PICTURES[seen]
    for policy in (make_policy(space, LISTED), make_policy(space, BOX)):
        with pytest.raises(ValueError, match=OTHER):
            numpy_act(policy)
    for dueling in (False, True):
        values = make_q_policy(space, LISTED, dueling=dueling)
        with pytest.raises(ValueError, match=OTHER):
            numpy_act(values)
        with pytest.raises(ValueError, match=OTHER):
            fused_q_error(values)
    with pytest.raises(ValueError, match="policy"):
        numpy_act(make_discrete_sac_policy(space, LISTED))


# --- Adam on one vector ---------------------------------------------------------------

SHAPES = (5, 3), (5,), (), (1, 4)


class Weights:
    """Some parameters with gradients in one vector, and their Adam."""

    def __init__(self, flat: bool, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = partial(torch.randn, generator=generator)
        self.parameters = [nn.Parameter(draw(x).to(dtype)) for x in SHAPES]
        self.adam = torch.optim.Adam(self.parameters, 0.1, eps=1e-5, fused=True)
        sizes = [p.numel() for p in self.parameters]
        self.grad = torch.zeros(sum(sizes), dtype=dtype)
        parts = self.grad.split(sizes)
        for p, part in zip(self.parameters, parts, strict=True):
            p.grad = part.view(p.shape)
        self.step: Callable[[], Any] = self.adam.step
        if flat:
            self.step = FlatAdam(self.adam, self.grad.numpy(), self.parameters).step

    def go(self, first: int, last: int) -> "Weights":
        """Take some steps, each with another gradient and learning rate."""
        for number in range(first, last):
            torch.randn(
                len(self.grad),
                generator=torch.Generator().manual_seed(number),
                dtype=self.grad.dtype,
                out=self.grad,
            )
            self.grad *= 10.0 ** (number % 7 - 5)
            self.adam.param_groups[0]["lr"] = 0.1 / (1 + number)
            self.step()
        return self

    def close_to(self, other: "Weights", near: float = 1e-12) -> bool:
        """Say whether all weights and the whole state are those of another."""
        check = partial(torch.testing.assert_close, rtol=near, atol=near)
        check(self.parameters, other.parameters)
        mine, theirs = self.adam.state_dict(), other.adam.state_dict()
        assert mine["param_groups"] == theirs["param_groups"]
        for state in mine["state"].values(), theirs["state"].values():
            for part in state:
                assert list(part) == ["step", "exp_avg", "exp_avg_sq"]
        check(mine["state"], theirs["state"])
        return True


@pytest.mark.equation("adam")
def test_the_flat_step_is_adams() -> None:
    for dtype, near in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        plain, flat = (Weights(x, dtype).go(0, 200) for x in (False, True))
        assert flat.close_to(plain, near)


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("to_flat", [False, True])
@pytest.mark.parametrize("from_flat", [False, True])
def test_a_state_goes_from_one_form_to_the_other(
    from_flat: bool, to_flat: bool, steps: int, tmp_path: Path
) -> None:
    whole, first = Weights(False).go(0, 20), Weights(from_flat).go(0, steps)
    # The other has a past of its own, which the state replaces.
    second = Weights(to_flat).go(40, 43)
    torch.save(first.adam.state_dict(), tmp_path / "state.pt")
    with torch.no_grad():
        for p, old in zip(second.parameters, first.parameters, strict=True):
            p.copy_(old)
    second.adam.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert second.go(steps, 20).close_to(whole)


def test_other_optimisers_are_refused() -> None:
    parameters = Weights(False).parameters
    groups: Any = [{"params": [p]} for p in parameters]
    others = {
        "torch.optim.Adam, got AdamW": torch.optim.AdamW(parameters),
        "one group": torch.optim.Adam(groups),
        "without weight_decay": torch.optim.Adam(parameters, weight_decay=0.1),
        "amsgrad": torch.optim.Adam(parameters, amsgrad=True),
        "and maximize": torch.optim.Adam(parameters, maximize=True),
        "on the CPU, got meta": torch.optim.Adam(
            [nn.Parameter(torch.zeros(2, device="meta"))]
        ),
        "float64 throughout": torch.optim.Adam([nn.Parameter(torch.zeros(2).half())]),
    }
    for words, optimizer in others.items():
        with pytest.raises(ValueError, match=words):
            FlatAdam(optimizer, np.zeros(25), optimizer.param_groups[0]["params"])
    with pytest.raises(ValueError, match="the policy's parameters, in their order"):
        FlatAdam(torch.optim.Adam(parameters), np.zeros(25), parameters[::-1])
    plain = Weights(False)
    (grad, plain.parameters[0].grad) = (plain.parameters[0].grad, None)
    plain.step()
    flat = Weights(True)
    # One that had no gradient yet is like those whose gradient was zero.
    flat.adam.load_state_dict(plain.adam.state_dict())
    plain.parameters[0].grad = grad
    plain.step()
    with pytest.raises(ValueError, match="must have taken the same number of steps"):
        flat.adam.load_state_dict(plain.adam.state_dict())


def test_what_happens_to_adam_later_is_seen() -> None:
    both = [Weights(flat).go(0, 5) for flat in (False, True)]
    for each in both:
        each.adam.state.clear()
        each.go(5, 9)
    assert both[0].close_to(both[1])
    flat = both[1]
    flat.adam.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(ValueError, match="without weight_decay"):
        flat.step()
    flat.adam.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(ValueError, match="one group of parameters"):
        flat.step()


def test_what_shares_memory_is_not_copied() -> None:
    flat = cast(Any, Weights(True).step).__self__
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="FlatAdam shares the memory of a policy"):
            copying(flat)

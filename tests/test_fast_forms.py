"""Fast forms: equal to a policy's plain forms, and refused where they would not be."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hybrid import MASK
from torch import nn

from literate_rl.by_hand.fast_forms import (
    FlatAdam,
    FusedQError,
    fused_q_error,
    numpy_act,
)
from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch
from literate_rl.learners.ddpg import make_ddpg_policy
from literate_rl.learners.dqn import DQN, DQNConfig, QLearning, make_q_policy
from literate_rl.learners.loop import QError
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.parts import normalizer_of
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import fit

HYBRID = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (4,))))
ONE = spaces.Tuple((spaces.Discrete(1), spaces.Box(-1, 1, (3,))))
SEEN, LISTED, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Box(-2, 2, (2,))
# How the policies are built that act in NumPy.
BUILT: dict[str, Callable[..., Any]] = {
    "categorical": partial(make_policy, SEEN, LISTED, 8),
    "Gaussian": partial(make_policy, SEEN, BOX, 8),
    "values": partial(make_q_policy, SEEN, LISTED, 8),
    "hybrid": partial(make_hybrid_policy, SEEN, HYBRID, MASK),
    "one type": partial(make_hybrid_policy, SEEN, ONE, [[True, False, True]]),
    "box": partial(make_ddpg_policy, SEEN, BOX, 8),
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
def test_numpy_acts_as_torch_does_and_follows_the_weights(kind, arguments):
    policy = seeded(BUILT[kind], **arguments)
    normalizes = arguments.get("normalize", False)
    for name, p in policy.named_parameters():
        if name.endswith("log_sigma"):
            nn.init.normal_(p, std=0.5)
    if kind == "box":
        policy.actions.scale, policy.actions.epsilon = 0.3, 0.5
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


# --- Who is refused -------------------------------------------------------------------


def rows_of(policy: Any) -> Any:
    """The chain of layers that describe the actions."""
    rows = getattr(policy.network, "actor", policy.network)
    if hybrid := getattr(rows, "network", None):
        return hybrid.encoder
    rows = getattr(rows, "mean", rows)
    # Behind the layers there may be a stretch to a box.
    return rows if isinstance(rows[0], nn.Linear) else rows[0]


def changed_class(x: Any) -> None:
    """Give an object a class with the name of its own."""
    # Though it may be frozen.
    object.__setattr__(x, "__class__", type(type(x).__name__, (type(x),), {}))


def replaced(x: Any, name: str) -> None:
    """Put something in place of a method, on the instance."""
    object.__setattr__(x, name, lambda *_: 0)


def computed_weight(policy: Any) -> None:
    """A weight that is made of something else and is no parameter."""
    layer = rows_of(policy)[0]
    weight = layer.weight
    del layer.weight
    layer.weight = 2 * weight.detach()


OF_A_LAYER = "forward", "forward_pre", "full_backward", "full_backward_pre"
OF_A_WEIGHT = "", "post_accumulate_grad"


def hooked(policy: Any, name: str) -> None:
    """Listen to a layer, or to its weight."""
    layer = rows_of(policy)[0]
    place = layer if name in OF_A_LAYER else layer.weight
    getattr(place, f"register_{name}_hook".replace("__", "_"))(print)


# What is done to a policy: each changes what it computes, or its gradient.
DISTURBED: dict[str, Callable[[Any], Any]] = {
    "class of the policy": changed_class,
    "class of the actions": lambda p: changed_class(p.actions),
    "class of a layer": lambda p: changed_class(rows_of(p)[0]),
    "act": lambda p: replaced(p, "act"),
    "choose": lambda p: replaced(p.actions, "choose"),
    "forward": lambda p: replaced(rows_of(p)[1], "forward"),
    "computed weight": computed_weight,
    "weight norm": lambda p: nn.utils.parametrizations.weight_norm(rows_of(p)[0]),
    "hook of the policy": lambda p: p.register_forward_hook(print),
    **{f"{name} of a layer": partial(hooked, name=name) for name in OF_A_LAYER},
    **{f"{name} of a weight": partial(hooked, name=name) for name in OF_A_WEIGHT},
}


@pytest.mark.parametrize("kind", BUILT)
@pytest.mark.parametrize("change", DISTURBED)
def test_nobody_else_gets_a_fast_form(kind, change):
    policy = seeded(BUILT[kind])
    forms = [numpy_act, fused_q_error] if kind == "values" else [numpy_act]
    for form in forms:
        form(policy)
    DISTURBED[change](policy)
    for form in forms:
        with pytest.raises(ValueError, match=r"policy must have .* there, .*, got"):
            form(policy)


# --- Errors with a gradient by hand ---------------------------------------------------


def tied(policy: Any) -> None:
    """The same layer twice."""
    chain = policy.network
    chain.append(nn.ReLU())
    chain.append(nn.Linear(chain[-2].out_features, 8))
    chain.append(chain[2])
    chain.append(nn.Linear(8, chain[-4].out_features))


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda p: None,
    "layer used twice": tied,
    "frozen in the middle": lambda p: p.network[2].requires_grad_(False),
    "float64": lambda p: p.double(),
}


def batch_for(dtype: torch.dtype = torch.float32) -> Batch:
    """Return six random steps."""
    g = torch.Generator().manual_seed(2)
    obs, next_obs = torch.randn(2, 6, 3, generator=g).to(dtype)
    reward, discount, weight = torch.rand(3, 6, generator=g).to(dtype)
    indices = torch.arange(6)
    return Batch(obs, indices % 2, 6 * reward - 3, next_obs, discount, weight, indices)


def found(change: Callable[[Any], Any], fast: bool) -> list[Any]:
    """Return an error and its gradients; two backward passes add up."""
    policy = seeded(BUILT["values"])
    change(policy)
    algorithm: Any = QLearning(policy, config=DQNConfig())
    for weight in algorithm.target.network.parameters():
        weight.data *= 1.5  # the older copy is not the newer one
    form = partial(fused_q_error(policy), algorithm) if fast else algorithm.error
    batch = batch_for(next(policy.parameters()).dtype)
    for _ in range(2):
        error = form(batch, torch.Generator().manual_seed(0))
        error.backward(batch.weight)
    assert isinstance(error, FusedQError if fast else QError)
    grads = [x.grad for x in policy.parameters()]
    assert error.td_error.sign().unique().tolist() == [-1, 1]
    for kept in (error.td_error, error.value, *grads):
        assert kept is None or not kept.requires_grad
    return [error.loss.detach(), error.td_error, error.value, *grads]


@pytest.mark.equation("chain-gradient")
@pytest.mark.parametrize("change", COMPUTED)
def test_errors_and_gradients_are_the_plain_ones(change):
    plain, fast = (found(COMPUTED[change], fast) for fast in (False, True))
    torch.testing.assert_close(fast, plain)


def test_an_algorithm_with_another_error_is_refused():
    policy = seeded(BUILT["values"])

    class Other(QLearning):
        def error(self, batch, generator):
            raise NotImplementedError

    algorithm = Other(policy, config=DQNConfig())
    with pytest.raises(ValueError, match="algorithm must"):
        fused_q_error(policy)(algorithm, batch_for(), torch.Generator())


@pytest.mark.parametrize("dueling", [False, True])
def test_dqn_with_fast_forms_is_plain_dqn_to_the_bit(dueling):
    config = DQNConfig(
        total_steps=1000,
        batch_size=24,
        learning_starts=100,
        double=not dueling,
        priority_exponent=0.6,
    )

    def trained(**make):
        envs = make_envs("CartPole-v1", 4)
        seen, done = envs.single_observation_space, envs.single_action_space
        policy = seeded(partial(make_q_policy, seen, done, 64, dueling=dueling))
        forms = {name: form(policy) for name, form in make.items()}
        learner = DQN(policy, envs, config, **forms)
        fit(learner, progress=False)
        return learner

    plain, fast = trained(), trained(act=numpy_act, error=fused_q_error)
    assert plain.updates == fast.updates > 200
    ends = (list(x.policy.state_dict().values()) for x in (plain, fast))
    assert all(map(torch.equal, *ends))
    assert torch.equal(plain.sample().action, fast.sample().action)


# --- Adam on one vector ---------------------------------------------------------------

SHAPES = (5, 3), (5,), (), (1, 4)


class Weights:
    """Some parameters with gradients in one vector, and their Adam."""

    def __init__(self, flat: bool, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        self.parameters = [nn.Parameter(torch.randn(x, dtype=dtype)) for x in SHAPES]
        self.adam = torch.optim.Adam(self.parameters, 0.1, eps=1e-5, fused=True)
        sizes = [p.numel() for p in self.parameters]
        self.grad = torch.zeros(sum(sizes), dtype=dtype)
        for p, part in zip(self.parameters, self.grad.split(sizes), strict=True):
            p.grad = part.view(p.shape)
        self.step: Callable[[], Any] = self.adam.step
        if flat:
            self.step = FlatAdam(self.adam, self.grad.numpy(), self.parameters).step

    def go(self, first: int, last: int) -> "Weights":
        """Take some steps, each with another gradient and learning rate."""
        for number in range(first, last):
            torch.manual_seed(number)
            self.grad.normal_().mul_(10.0 ** (number % 7 - 5))
            self.adam.param_groups[0]["lr"] = 0.1 / (1 + number)
            self.step()
        return self

    def assert_close_to(self, other: "Weights", near: float = 1e-12) -> None:
        """Assert that all weights and the whole state are those of another."""
        states = [[x.parameters, x.adam.state_dict()["state"]] for x in (self, other)]
        torch.testing.assert_close(*states, rtol=near, atol=near)


@pytest.mark.equation("adam")
def test_the_flat_step_is_adams():
    for dtype, near in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        plain, flat = (Weights(x, dtype).go(0, 200) for x in (False, True))
        flat.assert_close_to(plain, near)


def test_other_optimisers_and_states_are_refused():
    parameters: Any = Weights(False).parameters
    adam = torch.optim.Adam
    for optimizer in (
        torch.optim.AdamW(parameters),
        adam(parameters, amsgrad=True),
        adam(parameters[::-1]),
    ):
        with pytest.raises(ValueError, match="optimizer must"):
            FlatAdam(optimizer, np.zeros(25), parameters)
    plain, flat = Weights(False).go(0, 2), Weights(True)
    plain.adam.state[plain.parameters[0]]["step"] += 1
    with pytest.raises(ValueError, match="the same number of steps"):
        flat.adam.load_state_dict(plain.adam.state_dict())


def test_what_happens_to_adam_later_is_seen():
    both = [Weights(flat).go(0, 5) for flat in (False, True)]
    for each in both:
        each.adam.state.clear()
        each.go(5, 9)
    both[0].assert_close_to(both[1])

# Generated from chapters/by_hand/fast_forms.py (edit there); digest d4da6947bca0e98f
"""Fast forms: functions made for a policy that compute what its plain forms compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from literate_rl.data.replay import Batch
from literate_rl.ground.networks import Stretch
from literate_rl.ground.protocols import Act, PolicyLike
from literate_rl.ground.signatures import Float, Int, check_that, checked
from literate_rl.learners.ddpg import ActorCritics, BoxActions
from literate_rl.learners.dqn import EpsilonGreedy, QLayers, QLearning
from literate_rl.maths.dqn import double_q_target
from literate_rl.nets.hybrid_action import HybridPolicyNetwork
from literate_rl.nets.hybrid_policy import HybridActions, HybridRows
from literate_rl.nets.masking import legal
from literate_rl.nets.policies import Policy
from literate_rl.nets.parts import (
    ActorCritic,
    CategoricalActions,
    GaussianActions,
    RunningMoments,
    WithDeviations,
)

__all__ = [
    "FlatAdam",
    "FusedQError",
    "SharesMemory",
    "chain_backward",
    "chain_layers",
    "chain_outputs",
    "fused_q_error",
    "numpy_act",
]


# What may change what goes in or comes out of a module, or its gradient.
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_post_accumulate_grad_hooks",
)


def as_made(x: Any, *kinds: type[Any]) -> Any:
    """Return an object that is as one of the classes makes it, or refuse it.

    Raises:
        ValueError: If its class is another one, a subclass too, or if it has hooks or
            methods of its own.
    """
    own = type(x) not in kinds or any(map(callable, vars(x).values()))
    changed = own or any(getattr(x, name, None) for name in HOOKS)
    names = " or ".join(kind.__name__ for kind in kinds)
    words = f"policy must have {names} there, without hooks or methods of its own"
    check_that(not changed, f"{words}, got {type(x).__name__}")
    return x


Step = Callable[[NDArray[Any]], NDArray[Any]]
CHAINS = nn.Sequential, QLayers


def layers_of(module: Any, known: Mapping[type, Callable[[Any], Any]]) -> list[Any]:
    """Return what is known to compute each layer of a chain, or refuse it."""
    part = as_made(module, *CHAINS, *known)
    if type(part) in CHAINS:
        return [step for layer in part for step in layers_of(layer, known)]
    return [known[type(part)](part)]


def linear(layer: nn.Linear) -> Step:
    """Return what a linear layer computes."""
    given = [p for p in (layer.weight, layer.bias) if p is not None]
    weight, *bias = (memory(p).T for p in given)
    return lambda x: x @ weight + bias[0] if bias else x @ weight


def stretch(box: Stretch) -> Step:
    """Return what the stretch to a box computes."""
    middle, half = box.middle.numpy(), box.half_width.numpy()
    return lambda x: middle + half * np.tanh(x)


ACTING: dict[type, Callable[[Any], Step]] = {
    nn.Linear: linear,
    nn.Tanh: lambda _: np.tanh,
    nn.ReLU: lambda _: lambda x: np.maximum(x, 0),
    Stretch: stretch,
    RunningMoments: lambda module: lambda x: module(torch.from_numpy(x)).numpy(),
}
numpy_layers = partial(layers_of, known=ACTING)


def memory(p: Any) -> NDArray[Any]:
    """Return a parameter's own memory as an array; only a plain one keeps it."""
    return as_made(p, nn.Parameter).detach().numpy()


BLAS = ThreadpoolController().select(user_api="blas")
Form = TypeVar("Form", bound=Callable[..., Any])


def one_thread(function: Form) -> Form:
    """Return a function whose products NumPy computes on one thread."""

    @wraps(function)
    def held(*arguments: Any, **named: Any) -> Any:
        # To ask costs far less than to set.
        if all(library.num_threads == 1 for library in BLAS.lib_controllers):
            return function(*arguments, **named)
        with BLAS.limit(limits=1):
            return function(*arguments, **named)

    return cast(Form, held)


Choose = Callable[[NDArray[Any], Any], NDArray[Any]]
Rule = tuple[list[Step], Choose]


def listed(rows: Any) -> Rule:
    """Return the layers of logits or values, and what chooses."""
    return numpy_layers(rows), lambda row, noise: (row + noise).argmax(-1)


def gaussian(rows: Any) -> Rule:
    """Return the layers of the means, and what moves them."""
    log_sigma = memory(as_made(rows, WithDeviations).log_sigma)
    return numpy_layers(rows.mean), lambda row, noise: row + np.exp(log_sigma) * noise


def hybrid(rows: Any) -> Rule:
    """Return the layers of logits and means, and what chooses."""
    net = as_made(as_made(rows, HybridRows).network, HybridPolicyNetwork)
    layers, log_sigma = numpy_layers(net.encoder), memory(net.action_args_log_sigma)
    size = net.action_type_shape
    heads = nn.Sequential(net.action_type_head, net.action_args_mu)
    parts = layers_of(heads, {nn.Linear: lambda x: (memory(x.weight), memory(x.bias))})
    weights, biases = zip(*parts, strict=True)

    def both(features: NDArray[Any]) -> NDArray[Any]:
        # Two heads are one layer, and one product costs less than two.
        return features @ np.concatenate(weights).T + np.concatenate(biases)

    def choose(row: NDArray[Any], noise: Any) -> NDArray[Any]:
        # The noise is added to the logits as it is, and to the means times $\sigma$.
        scale = np.ones(row.shape[-1], row.dtype)
        scale[size:] = np.exp(log_sigma)
        moved = row + scale * noise
        # The type takes the place of the last sum, right before the arguments.
        moved[..., size - 1] = moved[..., :size].argmax(-1)
        return moved[..., size - 1 :]

    return [*layers, both], choose


def boxed(rows: Any) -> Rule:
    """Return the layers of actions in a box, and what moves or replaces them."""

    def choose(row: NDArray[Any], noise: Any) -> NDArray[Any]:
        if not isinstance(noise, np.ndarray):
            return row + noise
        # NaN where the actor's own action stays.
        size = row.shape[-1]
        added, instead = noise[..., :size], noise[..., size:]
        return np.where(np.isnan(instead), row + added, instead)

    return numpy_layers(as_made(rows, ActorCritics).actor), choose


# For each distribution the rule in NumPy.
RULES: dict[type, Callable[[Any], Rule]] = {
    CategoricalActions: listed,
    EpsilonGreedy: listed,
    GaussianActions: gaussian,
    HybridActions: hybrid,
    BoxActions: boxed,
}


def check_numbers(parameters: list[Any]) -> None:
    """Raise unless NumPy can compute with parameters where they are."""
    kinds = {f"{p.dtype} on {p.device.type}" for p in parameters}
    one = kinds in ({"torch.float32 on cpu"}, {"torch.float64 on cpu"})
    words = "parameters must be float32 or float64 throughout, on the CPU"
    check_that(one, f"{words}, got {', '.join(kinds)}")


@checked
def numpy_act(policy: PolicyLike) -> Act:
    """Return what ``policy.act`` computes, in NumPy: faster for small networks.

    The arrays share their memory with the parameters. So the function acts with the
    current weights as long as these are changed in place, as an optimiser and
    ``load_state_dict`` do. After ``load_state_dict(..., assign=True)``,
    ``share_memory()``, or if somebody sets ``parameter.data``, it has to be made again,
    and anew for a copy of the policy. The policy is looked at now, not again with each
    call.

    Args:
        policy: A policy on the CPU whose network is a chain of linear layers with tanh
            or ReLU, and whose actions follow the rule of ``make_policy``,
            ``make_hybrid_policy``, ``make_q_policy`` or ``make_ddpg_policy`` (in a
            box).

    Raises:
        ValueError: If the policy is another one, or has hooks or methods of its own.
    """
    check_numbers(list(policy.parameters()))
    known = as_made(policy, Policy)
    rows, normalizer = known.network, nn.Identity()
    if type(rows) is ActorCritic:
        rows, normalizer = as_made(rows, ActorCritic).actor, rows.normalizer
    actions = as_made(known.actions, *RULES)
    layers, choose = RULES[type(actions)](rows)
    as_it_is = type(normalizer) is nn.Identity  # a module takes longer than a layer

    @one_thread
    def act(
        obs: Tensor, noise: Tensor | float, *, mask: Tensor | None = None
    ) -> Tensor:
        given = noise.numpy() if isinstance(noise, Tensor) else noise
        row = (obs if as_it_is else normalizer(obs)).numpy()
        for layer in layers:
            row = layer(row)
        if mask is not None:
            row = known.legal(torch.from_numpy(row), mask).numpy()
        return torch.from_numpy(np.asarray(choose(row, given)))

    return act


def chain_layers(module: Any) -> list[nn.Module]:
    """Return a chain's layers in order, or refuse it if its gradient needs autograd.

    It does if a layer is no linear layer or ReLU, and if anybody listens: to modules,
    to the gradients of their weights, or as autocast does to each operation.
    """
    autocast = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
    check_that(not autocast, "policy must have its gradient outside of autocast")
    layers = list(as_made(module, *CHAINS))
    for layer in layers:
        linear = type(as_made(layer, nn.Linear, nn.ReLU)) is nn.Linear
        # Another tensor in a parameter's place may come from a computation of its own.
        for p in (layer.weight, layer.bias) if linear else ():
            if p is not None:
                as_made(p, nn.Parameter)
    return layers


def chain_outputs(layers: list[nn.Module], x: Tensor) -> list[Tensor]:
    """Return what each layer of a chain puts out, without gradient.

    A ReLU behind a linear layer writes over what that layer put out.
    """
    outputs = [x]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.t()
            x = x @ weight if layer.bias is None else torch.addmm(layer.bias, x, weight)
        elif x is outputs[0]:
            x = x.relu()
        else:
            x = x.relu_()
        outputs.append(x)
    return outputs


def chain_backward(
    layers: list[nn.Module], outputs: list[Tensor], grad: Tensor
) -> None:
    """Add to the gradients of a chain's parameters, from that of its last output.

    Args:
        layers: The chain.
        outputs: What ``chain_outputs`` returned.
        grad: The gradient of the last of them, which is written to.
    """
    # From the last layer to the first, {eq}`chain-gradient`.
    for layer, x, y in zip(layers[::-1], outputs[-2::-1], outputs[:0:-1], strict=True):
        if not isinstance(layer, nn.Linear):
            # What a ReLU puts out has the sign 1 or 0; booleans would be converted.
            grad.mul_(y.sign())
            continue
        found = []
        if layer.weight.requires_grad:
            # As in autograd: the transposed product would round differently.
            found.append((layer.weight, grad.t() @ x))
        if layer.bias is not None and layer.bias.requires_grad:
            found.append((layer.bias, grad.sum(0)))
        for p, new in found:
            p.grad = new if p.grad is None else p.grad.add_(new)
        if x is not outputs[0]:
            grad = grad @ layer.weight


class FusedQError(NamedTuple):
    """A ``QError`` with what is needed to compute its gradient by hand.

    Attributes:
        layers: The layers of the chain.
        outputs: What each layer put out.
        slope: Minus the derivatives of the loss over the values.
        taken: Which of the chain's values are meant.
    """

    loss: Float[Tensor, "N"]
    td_error: Float[Tensor, "N"]
    value: Float[Tensor, "N"]
    layers: list[nn.Module]
    outputs: list[Tensor]
    slope: Float[Tensor, "N"]
    taken: Int[Tensor, "N 1"]

    @torch.no_grad()
    def backward(self, weight: Float[Tensor, "N"]) -> None:
        """Add the gradient of the weighted mean loss to that of the parameters."""
        # In the order of autograd: any other would round differently.
        slope = (weight * (-1 / len(weight)) * self.slope).unsqueeze(-1)
        # The gradient of the actions that were not taken is zero.
        row = torch.zeros_like(self.outputs[-1]).scatter_(1, self.taken, slope)
        chain_backward(self.layers, self.outputs, row)


def fused_q_error(
    policy: nn.Module,
) -> Callable[[QLearning, Batch, torch.Generator], FusedQError]:
    """Return a faster ``QLearning.error`` for a policy, to hand to ``DQN``.

    Raises:
        ValueError: If the policy's values are not those of a chain of layers. With the
            first batch, if the algorithm's error is not that of ``QLearning``.
    """
    # Somebody may have another idea of what is legal.
    known = as_made(policy, Policy)
    as_made(known.actions, EpsilonGreedy)
    layers = chain_layers(known.network)

    def error(
        algorithm: QLearning, batch: Batch, generator: torch.Generator
    ) -> FusedQError:
        kind = type(algorithm)
        words = f"algorithm must have QLearning.error, got a {kind.__name__}"
        check_that(kind.error is QLearning.error, words)
        older = list(algorithm.target.network.network)
        with torch.no_grad():
            chooser = next_q = chain_outputs(older, batch.next_obs)[-1]
            if algorithm.config.double:
                chooser = chain_outputs(layers, batch.next_obs)[-1]
            if batch.next_mask is not None:
                chooser = legal(chooser, batch.next_mask)
            aim = double_q_target(batch.reward, batch.discount, next_q, chooser)
            outputs = chain_outputs(layers, batch.obs)
            taken = batch.action.unsqueeze(-1)
            value = outputs[-1].gather(-1, taken).squeeze(-1)
            loss = smooth_l1_loss(value, aim, reduction="none")
            td_error = aim - value
            # The derivative of {eq}`huber` over the value, with a minus.
            slope = td_error.clamp(-1.0, 1.0)
        return FusedQError(loss, td_error, value, layers, outputs, slope, taken)

    return error


class SharesMemory:
    """What looks at the memory of a policy. A copy would look at copies of it."""

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise TypeError(
            f"{name} shares the memory of a policy, so it cannot be copied: make a new "
            "one for the copy"
        )


class FlatAdam(SharesMemory):
    """The steps of an Adam, taken in NumPy on one vector: faster for small networks.

    The numbers are the same up to rounding. Settings and state are the optimiser's own,
    to be set, saved and loaded as always; its step hooks are not called. The arrays
    share their memory with the parameters, as in ``numpy_act``.

    Args:
        optimizer: Adam on the CPU, with one group of parameters that are all float32 or
            all float64, without ``weight_decay``, ``amsgrad`` and ``maximize``.
        grad: Gradients side by side. A step reads them here.
        parameters: Those to which they belong, in their order.

    Raises:
        ValueError: If the optimiser is another one, or trains other parameters. With a
            state that is loaded, if its parameters have not taken the same number of
            steps.
    """

    def __init__(
        self, optimizer: torch.optim.Adam, grad: NDArray[Any], parameters: list[Any]
    ) -> None:
        kind = type(optimizer)
        words = "optimizer must be a torch.optim.Adam"
        check_that(kind is torch.optim.Adam, f"{words}, got {kind.__name__}")
        self.optimizer, self.grad, self.parameters = optimizer, grad, parameters
        known = [id(p) for p in self.settings()["params"]]
        same = known == [id(p) for p in parameters]
        check_that(same, "optimizer must train the policy's parameters, in their order")
        check_numbers(parameters)
        self.arrays = [p.detach().numpy() for p in self.parameters]
        self.ends = np.cumsum([p.size for p in self.arrays])[:-1]
        self.mean, self.square, self.change, self.root = np.zeros(
            (4, grad.size), grad.dtype
        )
        self.changes = self.parts(self.change)
        self.lay_out()
        optimizer.register_load_state_dict_post_hook(lambda _: self.lay_out())

    def parts(self, vector: NDArray[Any]) -> list[NDArray[Any]]:
        """Return a view of a vector for each parameter, of its shape."""
        pairs = zip(np.split(vector, self.ends), self.arrays, strict=True)
        return [part.reshape(p.shape) for part, p in pairs]

    def settings(self) -> dict[str, Any]:
        """Return the optimiser's settings, or refuse them."""
        groups = self.optimizer.param_groups
        check_that(len(groups) == 1, "optimizer must have one group of parameters")
        group = groups[0]
        extras = group["weight_decay"] or group["amsgrad"] or group["maximize"]
        words = "optimizer must be without weight_decay, amsgrad and maximize"
        check_that(not extras, words)
        return group

    def lay_out(self) -> None:
        """Make the optimiser's state views of the vectors."""
        self.settings()
        states = [self.optimizer.state.get(p, {}) for p in self.parameters]
        steps = {float(state["step"]) for state in states if state}
        words = "parameters must have taken the same number of steps"
        check_that(len(steps) < 2, words)
        # Each parameter counts its steps, as in PyTorch. One that has had no gradient
        # yet begins with means of zero.
        counts = torch.full((len(states),), max(steps, default=0.0))
        means, squares = (
            map(torch.from_numpy, self.parts(x)) for x in (self.mean, self.square)
        )
        news = zip(self.parameters, states, counts, means, squares, strict=True)
        for p, old, count, mean, square in news:
            mean.copy_(old.get("exp_avg", torch.zeros(())))
            square.copy_(old.get("exp_avg_sq", torch.zeros(())))
            new = {"step": count, "exp_avg": mean, "exp_avg_sq": square}
            self.optimizer.state[p] = new
        self.counts = counts.numpy()
        self.first = self.optimizer.state[self.parameters[0]]

    @np.errstate(all="ignore")
    def step(self) -> None:
        """Take one step, as the optimiser's ``step`` does."""
        group = self.settings()
        # Somebody may have put other means in the place of these.
        if self.optimizer.state.get(self.parameters[0]) is not self.first:
            self.lay_out()
        (beta1, beta2), lr, eps = group["betas"], group["lr"], group["eps"]
        # The step {eq}`adam`.
        self.counts += 1
        n = int(self.counts[0])
        # In place: with wide layers, memory for results would cost more than computing.
        change, root = self.change, self.root
        squared = np.multiply(self.grad, self.grad, out=root)
        for mean, new, kept in (
            (self.mean, self.grad, beta1),
            (self.square, squared, beta2),
        ):
            np.subtract(new, mean, out=change)
            change *= 1 - kept
            mean += change
        np.multiply(self.square, 1 / (1 - beta2**n), out=root)
        np.sqrt(root, out=root)
        root += eps
        np.multiply(lr / (1 - beta1**n), self.mean, out=change)
        change /= root
        for p, change in zip(self.arrays, self.changes, strict=True):
            p -= change

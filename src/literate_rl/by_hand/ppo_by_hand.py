# Generated from chapters/ppo_by_hand.py (edit there); digest 0dd9c2eb7729fc6a
"""PPO by hand: forward, loss, backward and gradient clipping in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from literate_rl.by_hand.fast_forms import (
    FlatAdam,
    SharesMemory,
    as_made,
    check_numbers,
    layers_of,
    memory,
    one_thread,
)
from literate_rl.ground.protocols import ActorCriticLike
from literate_rl.ground.signatures import check_finite, check_that
from literate_rl.learners.ppo import PPOConfig, Samples
from literate_rl.nets.hybrid_action import HybridPolicyNetwork
from literate_rl.nets.hybrid_policy import HybridActions, HybridRows
from literate_rl.nets.policies import Policy
from literate_rl.nets.parts import (
    ActorCritic,
    CategoricalActions,
    GaussianActions,
    WithDeviations,
)

__all__ = ["ByHand"]

Array = NDArray[Any]


Take = Callable[[Tensor], Array]  # where the gradient of a parameter goes


class Linear:
    """A linear layer: its weights, and where their gradients go."""

    def __init__(self, layer: nn.Linear, take: Take) -> None:
        self.weight, self.bias = memory(layer.weight), memory(layer.bias)
        self.weight_grad, self.bias_grad = take(layer.weight), take(layer.bias)

    def forward(self, x: Array) -> Array:
        """Return what the layer makes of its input, and keep the input."""
        self.x = x
        return x @ self.weight.T + self.bias

    def backward(self, grad: Array) -> Array:
        """Write the gradients of the weights; return that of the input."""
        # The three gradients {eq}`by-hand-linear`.
        np.matmul(grad.T, self.x, out=self.weight_grad)
        grad.sum(0, out=self.bias_grad)
        return grad @ self.weight


class Tanh:
    """The hyperbolic tangent."""

    def forward(self, x: Array) -> Array:
        """Return it, and keep it."""
        self.y = np.tanh(x)
        return self.y

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the input."""
        # The first half of {eq}`by-hand-squash`.
        return grad * (1 - self.y * self.y)


class ReLU:
    """What is above zero."""

    def forward(self, x: Array) -> Array:
        """Return it, and keep it."""
        self.y = np.maximum(x, 0)
        return self.y

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the input."""
        # The second half.
        return grad * (self.y > 0)


class Layer(Protocol):
    """A step of a network that knows its way back."""

    def forward(self, x: Array) -> Array:
        """Return what the step makes of its input."""
        ...

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the input, given that of the output."""
        ...


def forward(layers: list[Layer], x: Array) -> Array:
    """Go through layers from the first to the last."""
    for layer in layers:
        x = layer.forward(x)
    return x


def backward(layers: list[Layer], grad: Array) -> None:
    """Go back through them, from the last to the first."""
    for layer in reversed(layers):
        grad = layer.backward(grad)


def surrogate(
    log_prob: Array, old: Array, adv: Array, clip_ratio: float, dual_clip: float | None
) -> tuple[Array, Array]:
    """Return the clipped objective of each sample, and its slope over ``log_prob``."""
    log_ratio = log_prob - old
    ratio = np.exp(log_ratio.clip(-20.0, 20.0))
    unclipped = ratio * adv
    clipped = ratio.clip(1.0 - clip_ratio, 1.0 + clip_ratio) * adv
    objective = np.minimum(unclipped, clipped)
    pulls = (unclipped <= clipped) & (abs(log_ratio) <= 20.0)
    if dual_clip is not None:
        bound = np.where(adv < 0, dual_clip * adv, -np.inf)
        objective = np.maximum(objective, bound)
        pulls &= unclipped > bound
    # The slope {eq}`by-hand-surrogate`.
    return objective, np.where(pulls, unclipped, 0)


def value_error(
    value: Array, old: Array, target: Array, value_clip: float | None
) -> tuple[Array, Array]:
    """Return half the squared error of each value, and its slope over ``value``."""
    miss = value - target
    error, slope = miss * miss, miss
    if value_clip is not None:
        step = value - old
        held = old + step.clip(-value_clip, value_clip) - target
        pulls = (abs(step) <= value_clip) | (error >= held * held)
        error, slope = np.maximum(error, held * held), np.where(pulls, miss, 0)
    # The slope {eq}`by-hand-value`.
    return error / 2, slope


class Terms(NamedTuple):
    """What the loss reads of B rows, and how it changes with the numbers of a row.

    Attributes:
        log_prob: Log-probabilities of the actions, (B,).
        entropy: Entropies, (B,).
        log_prob_slope: Derivatives of the first, of the shape of the rows.
        entropy_slope: Derivatives of the second.
    """

    log_prob: Array
    entropy: Array
    log_prob_slope: Array
    entropy_slope: Array


def log_softmax(logit: Array, mask: Array | None) -> Array:
    """Return the log-probabilities of all actions, (B, N)."""
    # An illegal action gets the lowest number there is. Its probability is 0, and so
    # are its slopes.
    if mask is not None:
        logit = np.where(mask, logit, np.finfo(logit.dtype).min)
    shifted = logit - logit.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def categorical(row: Array, action: Array, mask: Array | None) -> Terms:
    """Return the terms of actions from a list; a row holds their logits."""
    log_prob = log_softmax(row, mask)
    prob = np.exp(log_prob)
    entropy = -(prob * log_prob).sum(1, keepdims=True)
    # The slopes {eq}`by-hand-categorical`.
    taken = np.arange(len(row)), action
    log_prob_slope = -prob
    log_prob_slope[taken] += 1
    entropy_slope = -prob * (log_prob + entropy)
    return Terms(log_prob[taken], entropy[:, 0], log_prob_slope, entropy_slope)


# The logarithm of $\sqrt{2 \pi}$, and the entropy of a standard normal number.
LOG_ROOT = 0.5 * math.log(2 * math.pi)
UNIT_ENTROPY = LOG_ROOT + 0.5


def gaussian(row: Array, action: Array, mask: None) -> Terms:
    """Return the terms of numbers; a row holds means and log standard deviations."""
    mu, log_sigma = np.split(row, 2, 1)
    inverse = np.exp(-log_sigma)
    zeta = (action - mu) * inverse
    log_prob = -(zeta * zeta / 2 + log_sigma + LOG_ROOT).sum(1)
    entropy = (log_sigma + UNIT_ENTROPY).sum(1)
    # The slopes {eq}`by-hand-gaussian`.
    log_prob_slope = np.hstack([zeta * inverse, zeta * zeta - 1])
    entropy_slope = np.hstack([np.zeros_like(mu), np.ones_like(mu)])
    return Terms(log_prob, entropy, log_prob_slope, entropy_slope)


class Deviations:
    """Puts the same logarithms of standard deviations behind each row."""

    def __init__(self, log_sigma: Tensor, take: Take) -> None:
        self.log_sigma, self.grad = memory(log_sigma), take(log_sigma)

    def forward(self, x: Array) -> Array:
        """Return longer rows."""
        return np.hstack([x, np.tile(self.log_sigma, (len(x), 1))])

    def backward(self, grad: Array) -> Array:
        """Write the gradient of the logarithms; return that of what came in."""
        size = self.log_sigma.size
        self.grad[...] = grad[:, -size:].sum(0)
        return grad[:, :-size]


def hybrid(uses: Array, row: Array, action: Array, mask: Array | None) -> Terms:
    """Return the terms of types with arguments.

    Args:
        uses: Which type (row) uses which argument (column), (K, A) bool.
        row: Logits of the types, means and log standard deviations of the arguments.
        action: Types and arguments, (B, 1 + A).
        mask: Which types are legal.
    """
    num_types, num_args = uses.shape
    logit, mu, log_sigma = np.split(row, [num_types, num_types + num_args], 1)
    kind = action[:, 0].astype(int)
    of_type = categorical(logit, kind, mask)
    # An argument that is not used is put at its mean, whatever it held.
    used = uses[kind]
    inverse = np.exp(-log_sigma)
    zeta = (np.where(used, action[:, 1:], mu) - mu) * inverse
    log_density = -(zeta * zeta / 2 + log_sigma + LOG_ROOT)
    log_prob = of_type.log_prob + (used * log_density).sum(1)
    slopes = of_type.log_prob_slope, zeta * inverse, used * (zeta * zeta - 1)

    # What the arguments of each type add to the entropy, and what they add on average.
    prob = np.exp(log_softmax(logit, mask))
    each = (log_sigma + UNIT_ENTROPY) @ uses.T
    mean = (prob * each).sum(1, keepdims=True)
    # The slopes {eq}`by-hand-hybrid`.
    type_slope = of_type.entropy_slope + prob * (each - mean)
    entropy_slopes = type_slope, np.zeros_like(mu), prob @ uses
    entropy = of_type.entropy + mean[:, 0]
    return Terms(log_prob, entropy, np.hstack(slopes), np.hstack(entropy_slopes))


class Heads:
    """Linear layers side by side, which see the same features."""

    def __init__(self, heads: list[Linear]) -> None:
        self.heads, self.ends = heads, np.cumsum([x.bias.size for x in heads])[:-1]

    def forward(self, x: Array) -> Array:
        """Return all that they put out, in one row."""
        return np.hstack([head.forward(x) for head in self.heads])

    def backward(self, grad: Array) -> Array:
        """Return the gradient of the features: the heads' gradients add up."""
        parts = np.split(grad, self.ends, 1)
        pairs = zip(self.heads, parts, strict=True)
        features: Any = sum(head.backward(part) for head, part in pairs)
        return features


def legal_in(policy: Policy, rows: Array, mask: Tensor | None) -> Array | None:
    """Return a mask as an array, a row for each of rows; refuse what a policy does."""
    if mask is None:
        return None
    flat = mask.reshape(len(rows), -1)
    policy.legal(torch.from_numpy(rows), flat)
    return flat.numpy()


class ByHand(SharesMemory):
    """A policy's numbers, and the gradient of PPO's loss, without autograd.

    It is for policies of ``make_policy`` and ``make_hybrid_policy`` on the CPU whose
    actions are a list, a box or hybrid, and whose networks are linear layers with tanh
    or ReLU. The arrays share their memory with the parameters. These may be changed in
    place, as an optimiser and ``load_state_dict`` do it; after anything else, build the
    object again.

    Args:
        policy: The policy. It is looked at now, not again with each call.

    Raises:
        ValueError: If the policy is another one; the message says what is in the way.
    """

    def __init__(self, policy: ActorCriticLike) -> None:
        self.parameters = list(policy.parameters())
        check_numbers(self.parameters)
        sizes = [p.numel() for p in self.parameters]
        self.flat = np.zeros(sum(sizes), memory(self.parameters[0]).dtype)
        parts = np.split(self.flat, np.cumsum(sizes)[:-1])
        pairs = zip(self.parameters, parts, strict=True)
        free = {p: part.reshape(p.shape) for p, part in pairs}
        self.grads = [(p, torch.from_numpy(part)) for p, part in free.items()]

        def take(p: Any) -> Array:
            check_that(p in free, "policy must use each parameter in one place only")
            return free.pop(p)

        self.policy = as_made(policy, Policy)
        self.actor, self.critic, self.terms_of = parts_of(self.policy, take)
        check_that(not free, "policy must have no parameters but those of its layers")
        self.check_trained()
        self.normalizer = self.policy.network.normalizer

    def check_trained(self) -> None:
        """Raise unless all parameters are trained."""
        trained = all(p.requires_grad for p in self.parameters)
        check_that(trained, "policy must train all its parameters, none of them frozen")

    def seen(self, obs: Tensor) -> Array:
        """Return observations as the networks see them, a row for each."""
        return self.normalizer(obs).flatten(0, -2).numpy()

    @one_thread
    @torch.no_grad()
    @np.errstate(all="ignore")
    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the policy's method returns, without gradient."""
        shape = obs.shape[:-1]
        rows = forward(self.actor, self.seen(obs))
        flat = action.flatten(0, len(shape) - 1).numpy()
        terms = self.terms_of(rows, flat, legal_in(self.policy, rows, mask))
        log_prob, entropy = (torch.from_numpy(x).view(shape) for x in terms[:2])
        return log_prob, entropy

    @one_thread
    @torch.no_grad()
    @np.errstate(all="ignore")
    def value(self, obs: Tensor) -> Tensor:
        """Return what the policy's method returns, without gradient."""
        value = forward(self.critic, self.seen(obs))
        return torch.from_numpy(value).view(obs.shape[:-1])

    # Numbers that are not finite are refused below, with their names.
    @one_thread
    @np.errstate(all="ignore")
    def gradient(self, part: Samples, config: PPOConfig) -> dict[str, float]:
        """Leave the clipped gradient of PPO's loss in the parameters' ``grad``.

        Args:
            part: A minibatch.
            config: The settings of the loss.

        Returns:
            The losses, as ``PPO.learn`` returns them.
        """
        action, old, adv, target, old_value = (x.numpy() for x in part[1:6])
        # For numbers as few as these NumPy's `mean` takes much longer than a sum.
        size = len(adv)
        same = all(len(x) == size for x in part[:6])
        check_that(same, "part must have as many rows in each of its fields")
        if config.normalize_advantage:
            adv = adv - adv.sum() / size
            adv = adv / (math.sqrt(adv @ adv / size) + 1e-8)

        # Forward, through the networks and through the loss. On the way each part says
        # how it changes.
        obs = self.seen(part.obs)
        rows = forward(self.actor, obs)
        terms = self.terms_of(rows, action, legal_in(self.policy, rows, part.mask))
        value = forward(self.critic, obs)[:, 0]
        clips = config.clip_ratio, config.dual_clip
        objective, push = surrogate(terms.log_prob, old, adv, *clips)
        error, pull = value_error(value, old_value, target, config.value_clip)

        # The total {eq}`def-ppo-total`.
        losses = -objective, error, terms.entropy
        policy_loss, value_loss, entropy = (float(x.sum()) / size for x in losses)
        loss = policy_loss + config.value_weight * value_loss
        loss -= config.entropy_weight * entropy
        # What is not finite would spoil all weights at once. (The clamp hides from the
        # loss that a log-ratio is infinite.)
        far = float(terms.log_prob.sum() - old.sum())
        inputs = {"log_prob_old": part.log_prob, "adv": part.adv, "target": part.target}
        check_finite(loss + far, **inputs, log_prob=torch.from_numpy(terms.log_prob))

        # Backward: what comes to the rows and to the values, {eq}`by-hand-total`, and
        # from there through the layers.
        bonus = config.entropy_weight * terms.entropy_slope
        row_grad = (push[:, None] * terms.log_prob_slope + bonus) / -size
        backward(self.actor, row_grad)
        backward(self.critic, config.value_weight / size * pull[:, None])

        # All parameters at once, {eq}`by-hand-clip`.
        norm = math.sqrt(self.flat @ self.flat)
        self.flat *= min(1.0, config.max_grad_norm / (norm + 1e-6))
        for p, grad in self.grads:
            p.grad = grad
        self.check_trained()
        return {
            "losses/policy_loss": policy_loss,
            "losses/value_loss": value_loss,
            "losses/entropy": entropy,
        }

    def speed_up(self, optimizer: Any) -> None:
        """Give an Adam a faster ``step``, which reads the gradient where it is."""
        flat = FlatAdam(optimizer, self.flat, self.parameters)
        # A schedule of the learning rate asks for a method.
        optimizer.step = MethodType(lambda _: flat.step(), optimizer)


def parts_of(policy: Policy, take: Take) -> tuple[list[Layer], list[Layer], Any]:
    """Return the layers of actor and critic, and what finds the terms of rows."""
    network = as_made(policy.network, ActorCritic)
    known = {nn.Tanh: lambda _: Tanh(), nn.ReLU: lambda _: ReLU()}
    chain = partial(layers_of, known={nn.Linear: partial(Linear, take=take), **known})
    actor, actions = network.actor, policy.actions
    kind: Any = CategoricalActions
    terms_of: Any = categorical
    if type(actor) is WithDeviations:
        kind, terms_of = GaussianActions, gaussian
        omega = Deviations(as_made(actor, WithDeviations).log_sigma, take)
        layers = [*chain(actor.mean), omega]
    elif type(actor) is HybridRows:
        kind, terms_of = HybridActions, partial(hybrid, actions.mask.numpy())
        net = as_made(as_made(actor, HybridRows).network, HybridPolicyNetwork)
        heads = chain(net.action_type_head) + chain(net.action_args_mu)
        omega = Deviations(net.action_args_log_sigma, take)
        layers = [*chain(net.encoder), Heads(heads), omega]
    else:
        layers = chain(actor)
    as_made(actions, kind)
    return layers, chain(network.critic), terms_of

# Generated from chapters/workshop/fast.py (edit there); digest db2a55a9aade2aaa
"""Fast: kernels that compute what the chapters' plain forms compute, in fewer calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Integer
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, smooth_l1_loss
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from literate_rl.workshop.signatures import Float, Int, below, check_finite, checked

__all__ = [
    "FusedCriticError",
    "FusedPolicyError",
    "FusedQError",
    "categorical_terms",
    "chain_backward",
    "chain_critic_error",
    "chain_layers",
    "chain_outputs",
    "chain_q_error",
    "chain_slope",
    "clip_gradient",
    "numpy_act",
    "project_atoms",
    "reverse_scan",
    "tangent_soft_values",
    "tangent_values",
]


@checked
def reverse_scan(
    increment: Float[Tensor, "T B"], factor: Float[Tensor, "T B"]
) -> Float[Tensor, "T B"]:
    """Solve a linear recursion that runs backward in time, without gradient.

    The result obeys ``x[t] = increment[t] + factor[t] * x[t + 1]``; after the last row
    comes zero.

    Source:
        Blelloch 1990, Prefix Sums and Their Applications, section 1.4 (recurrences),
        with chunks instead of a tree.
    """
    num_steps, num_envs = increment.shape
    length = max(1, round(math.sqrt(num_steps / 2)))

    # Zeros behind the last row fill up the last chunk and change nothing. `pad` always
    # copies, so what follows may write in place.
    rows = (0, 0, 0, -num_steps % length)
    x = pad(increment.detach(), rows).view(-1, length, num_envs)
    product = pad(factor.detach(), rows).view(-1, length, num_envs)

    # The local answers of {eq}`scan-chunk`, for all chunks at once. Row by row the
    # factors become the products $F_t$.
    x_rows, product_rows = x.unbind(1), product.unbind(1)
    for k in reversed(range(length - 1)):
        x_rows[k].addcmul_(product_rows[k], x_rows[k + 1])
        product_rows[k].mul_(product_rows[k + 1])

    # The heads, from the last chunk to the first. This is {eq}`reverse-scan` again,
    # with chunks for steps.
    heads, head_products = x_rows[0].unbind(), product_rows[0].unbind()
    for c in reversed(range(len(heads) - 1)):
        heads[c].addcmul_(head_products[c], heads[c + 1])

    # All rows that are no head, each with the head of the chunk after its own.
    x[:-1, 1:].addcmul_(product[:-1, 1:], x[1:, :1])
    result = x.flatten(0, 1)[:num_steps]

    # A product of large factors can overflow where the recursion does not. It is rare,
    # and step by step there is no product.
    if not math.isfinite(result.sum().item()):
        result = increment.detach().clone()
        for t in reversed(range(num_steps - 1)):
            result[t].addcmul_(factor[t].detach(), result[t + 1])
    return result


# The plain form holds the ratio between these, the exponentials of minus and plus 20.
LOWEST_RATIO, HIGHEST_RATIO = math.exp(-20.0), math.exp(20.0)


class FusedPolicyError(torch.autograd.Function):
    """The discrete policy error as one node of the graph, with its gradient derived.

    ``apply(logit_new, logit_old, action, adv, weight, clip_ratio, dual_clip)`` returns
    what ``policy_error_from_log_prob`` does, as two tensors and two floats. It checks
    nothing: ``fused_ppo_policy_error`` does. Gradients of gradients do not exist.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logit_new: Tensor,
        logit_old: Tensor,
        action: Tensor,
        adv: Tensor,
        weight: Tensor | None,
        clip_ratio: float,
        dual_clip: float | None,
    ) -> tuple[Tensor, Tensor, float, float]:
        """Compute both losses and, as floats, the estimate k1 and the clip fraction."""
        # Log-probabilities of the shape (N, B). Their difference at the action taken,
        # of the shape (1, B), is the logarithm of {eq}`ratio`.
        new = logit_new.t().log_softmax(0)
        old = logit_old.t().log_softmax(0)
        taken = action.long().unsqueeze(0)
        log_ratio = (new - old).gather(0, taken)
        ratio = log_ratio.exp()

        # Hold the ratio as {eq}`clipped-surrogate` and {eq}`dual-clip` do. The bounds
        # $e^{\pm 20}$ are those of the plain form. Before the dual clip, the two agree
        # exactly where the ratio is in range.
        good = ratio.clamp(LOWEST_RATIO, min(1.0 + clip_ratio, HIGHEST_RATIO))
        bad = ratio.clamp(max(1.0 - clip_ratio, LOWEST_RATIO), HIGHEST_RATIO)
        outside = good != bad
        if dual_clip is not None:
            bad = bad.clamp(max=dual_clip)
        held = torch.where(adv.signbit(), bad, good)

        # A sample's share of a mean is $w / B$; the minus sign makes it a loss. The sum
        # is {eq}`policy-loss`.
        batch = adv.numel()
        if weight is None:
            share = torch.full_like(adv, -1.0 / batch)
        else:
            share = weight / -batch
        loss = held * (adv * share)
        policy_loss = loss.sum()

        # The entropy {eq}`entropy-bonus`. The logarithm of a probability zero becomes a
        # finite number, because zero times infinity is not zero. At $-10^4$ the
        # exponential is zero in every precision.
        prob = new.exp()
        plogp = new.clamp_min_(-1e4).mul_(prob)
        minus_entropy = plogp.sum(0)
        entropy = (minus_entropy * share).sum()

        # A loss that is proportional to the ratio is its own derivative with respect to
        # $\log p_a$. Where a clip holds the ratio, there is none.
        slope = loss.masked_fill_(held != ratio, 0.0)
        ctx.save_for_backward(prob, plogp, minus_entropy, slope, share, taken)

        # The estimate {eq}`kl-k1` and the clip fraction {eq}`clip-fraction`.
        kl = 0.0 - log_ratio.sum().item() / batch
        clipfrac = outside.count_nonzero().item() / batch
        return policy_loss, entropy, kl, clipfrac

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Return the gradient of the new logits; everything else is a constant."""
        # Autograd records these lines only for a second derivative, and that would be a
        # wrong one: what forward saved counts as constant.
        if torch.is_grad_enabled():
            raise RuntimeError("the fused policy error can be differentiated only once")
        prob, plogp, minus_entropy, slope, share, taken = ctx.saved_tensors
        slope, share = slope * grads[0], share * grads[1]

        # Both gradients {eq}`fused-gradient`, sorted: what has the factor $p_j$ in
        # common is subtracted at once, and $\mathbb 1[j = a]$ adds to one logit of each
        # sample.
        common = slope.addcmul(share, minus_entropy)
        grad = (plogp * share).addcmul(prob, common, value=-1.0)
        grad.scatter_add_(0, taken, slope)
        return grad.t(), None, None, None, None, None, None


class CategoricalTerms(torch.autograd.Function):
    """Log-probability and entropy as one node of the graph, with its gradient."""

    @staticmethod
    def forward(ctx: Any, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both for logits (B, N) and actions (B,)."""
        log_prob = turned(logit).log_softmax(0)
        taken = action.long().unsqueeze(0)
        chosen = log_prob.gather(0, taken).squeeze(0)
        prob = log_prob.exp()
        # The logarithm of a probability zero becomes a finite number, because zero
        # times infinity is not zero.
        plogp = log_prob.clamp_min_(-1e4).mul_(prob)
        entropy = plogp.sum(0).neg_()
        ctx.save_for_backward(prob, plogp, entropy, taken)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the logits."""
        prob, plogp, entropy, taken = ctx.saved_tensors
        by_log_prob, by_entropy = grads
        # Both derivatives {eq}`categorical-gradient`, sorted: what has the factor $p_j$
        # in common is subtracted at once.
        common = torch.addcmul(by_log_prob, by_entropy, entropy)
        grad = (plogp * by_entropy).addcmul_(prob, common).neg_()
        return grad.scatter_add_(0, taken, by_log_prob.unsqueeze(0)).t(), None


def turned(logit: Tensor) -> Tensor:
    """Return logits (B, N) in the memory layout of (N, B), quicker than ``t()``."""
    return torch.stack(logit.unbind(1))


@checked
def categorical_terms(
    logit: Float[Tensor, "B N"],
    action: Annotated[Integer[Tensor, "B"], below("N")],
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """Return log-probabilities of actions and entropies, with gradient, fast.

    They are the numbers of ``categorical_log_prob`` and ``categorical_entropy``, and
    can be differentiated once. A logit of minus infinity takes an action away.
    """
    log_prob, entropy = CategoricalTerms.apply(logit, action)
    return log_prob, entropy


def log_softmax(logit: Tensor) -> Tensor:
    """Compute the logarithm of the softmax of each row, (B, K)."""
    if len(logit) < 1024:
        return torch.log_softmax(logit, -1)
    shifted = logit - logit.detach().amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


# Entropy of a normal distribution with standard deviation 1.
UNIT_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)

# Stands for the logarithm of zero where it is multiplied by zero. Any $p$ that is not 0
# in floating point has a logarithm far above it.
LOG_OF_NOTHING = -1e9


def hybrid_terms(
    type_logit: Tensor,
    mu: Tensor,
    sigma: Tensor,
    mask: Tensor,
    action_type: Tensor,
    action_args: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the log-probabilities and entropies of hybrid actions, (B,) each.

    Args:
        type_logit: Logits of the types, (B, K).
        mu: Means of the arguments, (B, A).
        sigma: Their standard deviations, (B, A).
        mask: Which type uses which argument, (K, A) bool.
        action_type: Types, (B,) int64.
        action_args: Arguments, (B, A).
    """
    # The table of $E_k$ {eq}`hybrid-level`. The matrix product adds up, for each type,
    # the entropies of its arguments.
    type_log_prob = log_softmax(type_logit)
    args_entropy = sigma.log() + UNIT_ENTROPY
    level = type_log_prob - args_entropy @ mask.to(mu.dtype).T

    # The first line of {eq}`hybrid-short`. An argument that does not count is replaced
    # by its mean before anything is computed.
    used = mask.index_select(0, action_type)
    zeta = (torch.where(used, action_args, mu) - mu) / sigma
    spread = torch.addcmul(used.to(zeta.dtype), zeta, zeta, value=-1).sum(-1)
    own = level.gather(1, action_type.unsqueeze(1)).squeeze(1)
    log_prob = torch.add(own, spread, alpha=0.5)

    # The second line. For a type that was taken away $p_k$ is 0 and $E_k$ is minus
    # infinity; the product has to be 0.
    prob = type_log_prob.exp()
    entropy = -(prob * level.clamp(min=LOG_OF_NOTHING)).sum(-1)
    check_finite(entropy, logits=prob, mu=mu, sigma=args_entropy)
    return log_prob, entropy


@lru_cache(maxsize=16)
def scaled_atoms(
    num_atoms: int, low: float, high: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return evenly spaced atoms, and minus the first one.

    They are made once, so nobody may write to them.
    """
    atoms = torch.linspace(low, high, num_atoms, dtype=dtype, device=device)
    return atoms, -atoms[0]


def project_atoms(
    prob: Tensor,
    reward: Tensor,
    discount: Tensor,
    value_min: float,
    value_max: float,
) -> Tensor:
    """Compute what ``project_distribution`` returns; it checks finiteness only."""
    batch, num_atoms = prob.shape
    scale = (num_atoms - 1) / (value_max - value_min)  # one over the spacing
    low, high = value_min * scale, value_max * scale
    atoms, minus_first = scaled_atoms(num_atoms, low, high, prob.dtype, prob.device)

    # Where each piece lands, {eq}`atom-position`.
    start = torch.add(minus_first, reward, alpha=scale)
    place = torch.outer(discount, atoms).add_(start.unsqueeze(1))
    place.clamp_(0, num_atoms - 1)
    # The atom below it, and what goes to the atom above.
    below = place.int().long()
    above = place.frac_().mul_(prob)
    # What was too far out lies on an edge atom now, so look at where it came from.
    seen = above.sum(1) + start + discount
    check_finite(seen, prob=prob, reward=reward, discount=discount)

    # Both halves are added up, the upper one a column further on. The lower one is what
    # is left, so no mass is lost.
    result = prob.new_zeros(batch, num_atoms + 1)
    result[:, 1:].scatter_add_(1, below, above)
    result.scatter_add_(1, below, torch.sub(prob, above, out=above))
    return result[:, :num_atoms]


# The hooks that PyTorch calls for every module there is.
FOR_ALL = (
    _global_forward_pre_hooks,
    _global_forward_hooks,
    _global_backward_pre_hooks,
    _global_backward_hooks,
)


def keeps(x: Any, kind: type[Any], method: str) -> bool:
    """Say whether an object's method is that of a class, and not one of its own."""
    return bool(getattr(x, method, None) == getattr(kind, method).__get__(x))


def computes(module: Any, kind: type[nn.Module]) -> bool:
    """Say whether calling a module runs the ``forward`` of a class and nothing else."""
    return (
        isinstance(module, nn.Module)
        and type(module).forward is kind.forward
        and type(module).__call__ is nn.Module.__call__
        and not altered(module)
        and not any(FOR_ALL)
    )


def altered(module: nn.Module) -> bool:
    """Say whether a module has a ``forward`` or hooks of its own."""
    return bool(
        "forward" in vars(module)
        or module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
    )


Step = Callable[[NDArray[Any]], NDArray[Any]]


def numpy_layers(module: Any) -> list[Step] | None:
    """Return what a chain of layers computes, in NumPy, or None if one is unknown."""
    kind = type(module)
    # A subclass of a chain may add methods, but not compute something else.
    if computes(module, nn.Sequential):
        parts = [numpy_layers(part) for part in module]
        known = [part for part in parts if part is not None]
        chain = [step for part in known for step in part]
        return chain if len(known) == len(parts) else None
    plain: dict[type, Step] = {nn.Tanh: np.tanh, nn.ReLU: lambda x: np.maximum(x, 0)}
    if kind not in (nn.Linear, *plain) or not computes(module, kind):
        return None
    if kind is not nn.Linear:
        return [plain[kind]]
    # Only a parameter keeps its memory, and NumPy does not know bfloat16.
    given = [p for p in (module.weight, module.bias) if p is not None]
    if any(type(p) is not nn.Parameter or p.dtype == torch.bfloat16 for p in given):
        return None
    weight, *bias = (p.detach().numpy().T for p in given)
    return [lambda x: x @ weight + bias[0] if bias else x @ weight]


@checked
def numpy_act(policy: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what ``policy.act`` computes, in NumPy: faster for small networks.

    The arrays share their memory with the parameters. So the function acts with the
    current weights as long as these are changed in place, as an optimiser and
    ``load_state_dict`` do. After ``load_state_dict(..., assign=True)``, or if somebody
    sets ``parameter.data``, it has to be made again.

    A policy whose network is no chain of linear layers with tanh or ReLU, or whose
    actions follow another rule than those of ``make_policy`` and ``make_q_policy``,
    gets its own ``act`` back, and so does one with methods or hooks of its own. The
    policy is looked at now, not again with each call.

    Args:
        policy: A policy on the CPU, for instance one that ``make_policy`` has built.
    """
    # The types that it knows. Their modules import this one, so they come this late.
    from literate_rl.dqn import EpsilonGreedy
    from literate_rl.policies import (
        ActorCritic,
        CategoricalActions,
        GaussianActions,
        Policy,
        WithDeviations,
    )

    device = next(policy.parameters()).device
    if device.type != "cpu":
        raise ValueError(f"policy must be on the CPU, got {device}")
    plain: Callable[[Tensor, Tensor], Tensor] = policy.act  # type: ignore[assignment]
    if not (computes(policy, Policy) and keeps(policy, Policy, "act")):
        return plain
    rows: Any = policy.network
    normalizer: Any = None
    if computes(rows, ActorCritic):
        rows, normalizer = rows.actor, rows.normalizer
    # The means of a Gaussian policy come from a network of their own.
    gaussian = type(rows) is WithDeviations and computes(rows, WithDeviations)
    layers = numpy_layers(rows.mean if gaussian else rows)
    # Only these rules are written in NumPy below.
    ours = [GaussianActions] if gaussian else [CategoricalActions, EpsilonGreedy]
    if layers is None or not any(keeps(policy.actions, x, "choose") for x in ours):
        return plain

    def forward(obs: Tensor) -> NDArray[np.float32]:
        x: NDArray[np.float32] = (normalizer(obs) if normalizer else obs).numpy()
        for layer in layers:
            x = layer(x)
        return x

    if gaussian:
        log_sigma = rows.log_sigma.detach().numpy()

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy(forward(obs) + np.exp(log_sigma) * noise.numpy())
    else:

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy((forward(obs) + noise.numpy()).argmax(-1))

    return act


PARTS = {"weight", "bias"}


def chain_layers(module: Any) -> list[nn.Module] | None:
    """Return a chain's layers in order, or None if its gradient needs autograd.

    It does if a layer is no linear layer or ReLU, and if anybody listens: to modules,
    to the gradients of their weights, or as autocast does to each operation.
    """
    if not computes(module, nn.Sequential):
        return None
    layers: list[nn.Module] = list(module)
    cast = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
    return layers if not cast and all(map(by_hand, layers)) else None


def by_hand(layer: nn.Module) -> bool:
    """Say whether a layer can be computed, and differentiated, by hand."""
    kind, own = type(layer), layer._parameters
    if kind not in (nn.Linear, nn.ReLU) or altered(layer):
        return False
    # Another tensor in a parameter's place may come from a computation of its own.
    return kind is nn.ReLU or (own.keys() == PARTS and all(map(quiet, own.values())))


def quiet(p: Any) -> bool:
    """Say whether something is a plain parameter whose gradient nobody listens to."""
    return p is None or not (
        type(p) is not nn.Parameter
        or p._backward_hooks
        or p._post_accumulate_grad_hooks
    )


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
        if layer.weight.requires_grad:
            # A product with few rows is the faster one; the gradient is as the weights.
            few = x.shape[1] < grad.shape[1]
            by_weight = (x.t() @ grad).t().contiguous() if few else grad.t() @ x
            add_gradient(layer.weight, by_weight)
        if layer.bias is not None and layer.bias.requires_grad:
            add_gradient(layer.bias, grad.sum(0))
        if x is not outputs[0]:
            grad = grad @ layer.weight


def add_gradient(parameter: Tensor, grad: Tensor) -> None:
    """Add to a parameter's gradient, as autograd does."""
    if parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad += grad


class FusedQError(NamedTuple):
    """A ``QError`` with what is needed to compute its gradient by hand."""

    loss: Float[Tensor, "N"]
    td_error: Float[Tensor, "N"]
    value: Float[Tensor, "N"]
    layers: list[nn.Module]
    outputs: list[Tensor]
    taken: Int[Tensor, "N 1"]

    @torch.no_grad()
    def backward(self, weight: Float[Tensor, "N"]) -> None:
        """Add the gradient of the weighted mean loss to that of the parameters."""
        # The derivative of {eq}`huber` is the TD error, clipped to -1..1. It goes to
        # the actions that were taken; the gradient of all others is zero.
        slope = self.td_error.clamp(-1.0, 1.0).mul_(weight).mul_(-1 / len(weight))
        row = torch.zeros_like(self.outputs[-1])
        row.scatter_(1, self.taken, slope.unsqueeze(1))
        chain_backward(self.layers, self.outputs, row)


def chain_q_error(
    layers: list[nn.Module],
    target_layers: list[nn.Module],
    batch: Any,
    target: Callable[..., Tensor],
    double: bool,
) -> FusedQError:
    """Compare the values of a chain with their targets.

    Args:
        layers: The network in training.
        target_layers: Its older copy.
        batch: Steps, as the buffer returned them.
        target: Function of reward, discount, next values and the values that choose.
        double: Whether the network in training chooses the next action.
    """
    with torch.no_grad():
        next_q = chain_outputs(target_layers, batch.next_obs)[-1]
        chooser = chain_outputs(layers, batch.next_obs)[-1] if double else next_q
        aim = target(batch.reward, batch.discount, next_q, chooser)
        outputs, taken = chain_outputs(layers, batch.obs), batch.action.unsqueeze(-1)
        value = outputs[-1].gather(-1, taken).squeeze(-1)
        loss = smooth_l1_loss(value, aim, reduction="none")
    return FusedQError(loss, aim - value, value, layers, outputs, taken)


class FusedCriticError(NamedTuple):
    """The errors of critics, with what is needed to compute the gradients by hand."""

    loss: Float[Tensor, "N"]
    td_error: Float[Tensor, "N"]
    value: Float[Tensor, "N"]
    chains: list[list[nn.Module]]
    outputs: list[list[Tensor]]
    slope: Float[Tensor, "K N"]

    @torch.no_grad()
    def backward(self, weight: Float[Tensor, "N"]) -> None:
        """Add the gradient of the weighted mean loss to that of the parameters."""
        rows = self.slope * (weight / -len(weight))
        for chain, outputs, row in zip(self.chains, self.outputs, rows, strict=True):
            chain_backward(chain, outputs, row.unsqueeze(-1))


def chain_critic_error(
    chains: list[list[nn.Module]],
    batch: Any,
    target: Tensor,
    increase: float = 1.0,
    decrease: float = 1.0,
) -> FusedCriticError:
    """Compare what critics think of actions with their targets.

    Args:
        chains: The critics, from observation and action to one value.
        batch: Steps, as the buffer returned them.
        target: What the values should be, (N,).
        increase: Rate at which a value rises towards its target.
        decrease: Rate at which it falls.
    """
    with torch.no_grad():
        x = torch.cat([batch.obs, batch.action], -1)
        outputs = [chain_outputs(chain, x) for chain in chains]
        q = torch.stack([each[-1].squeeze(-1) for each in outputs])
        td_error = target - q
        slope = td_error
        if not increase == decrease == 1:
            slope = torch.where(td_error > 0, increase, decrease).to(q) * td_error
        loss = (0.5 * slope * td_error).sum(0)
        check_finite(loss, q=q, target=target)
        value = q.mean(0)
    return FusedCriticError(loss, target - value, value, chains, outputs, slope)


def chain_slope(
    layers: list[nn.Module], outputs: list[Tensor], size: int, rows: Any = slice(None)
) -> Tensor:
    """Return the derivative of a chain's single output by its last ``size`` inputs.

    Args:
        layers: The chain; the first layer is linear.
        outputs: What ``chain_outputs`` returned.
        size: Number of inputs.
        rows: The rows of the batch for which it is needed.
    """
    grad = torch.ones_like(outputs[-1][rows])
    for layer, y in zip(layers[:0:-1], outputs[:1:-1], strict=True):
        if isinstance(layer, nn.Linear):
            grad = grad @ layer.weight
        else:
            grad.mul_(y[rows].sign())
    # Few rows again, instead of few columns.
    first: Any = layers[0]
    slope: Tensor = (first.weight[:, -size:].t() @ grad.t()).t()
    return slope


def tangent_values(
    chains: list[list[nn.Module]], obs: Tensor, action: Tensor
) -> Tensor:
    """Return what critics think of actions, (K, N); only the actions get a gradient."""
    with torch.no_grad():
        x, size = torch.cat([obs, action], -1), action.shape[-1]
        outputs = [chain_outputs(chain, x) for chain in chains]
        q = torch.stack([each[-1].squeeze(-1) for each in outputs])
        pairs = zip(chains, outputs, strict=True)
        slope = torch.stack([chain_slope(*pair, size) for pair in pairs])
    # The plane {eq}`tangent-plane`; its second term is zero, but not its gradient.
    return q + ((action - action.detach()) * slope).sum(-1)


def lowest_values(
    chains: list[list[nn.Module]], obs: Tensor, action: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the lowest value of each action, (N,), and its slope, (N, A)."""
    x, slope = torch.cat([obs, action], -1), torch.empty_like(action)
    outputs = [chain_outputs(chain, x) for chain in chains]
    q, critic = torch.stack([each[-1].squeeze(-1) for each in outputs]).min(0)
    # Each critic finds the slopes of the actions for which it counts.
    for k, (chain, each) in enumerate(zip(chains, outputs, strict=True)):
        rows = (critic == k).nonzero().squeeze(-1)
        slope[rows] = chain_slope(chain, each, action.shape[-1], rows)
    return q, slope


def tangent_soft_values(
    chains: list[list[nn.Module]],
    obs: Tensor,
    row: Tensor,
    noise: Tensor,
    actions: Any,
    alpha: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return soft values of draws and their log-densities; only rows get a gradient.

    Args:
        chains: The critics.
        obs: States, (N, S).
        row: Means and logarithms of standard deviations, (N, 2 A).
        noise: The noise of the draws, (N, A).
        actions: The ``SquashedGaussian`` of which the rows speak.
        alpha: The temperature, without gradient.
    """
    with torch.no_grad():
        action, log_prob = actions.draw(row, noise)
        q, slope = lowest_values(chains, obs, action)
        # Both slopes {eq}`soft-slope`.
        middle, half = actions.middle_and_half(action)
        squashed = (action - middle) / half
        by_mu = slope * half * (1 - squashed.square()) - 2 * alpha * squashed
        by_log_sigma = by_mu * row.chunk(2, -1)[1].exp() * noise + alpha
        plane = torch.cat([by_mu, by_log_sigma], -1)
        value = q - alpha * log_prob
    return value + ((row - row.detach()) * plane).sum(-1), log_prob


@torch.no_grad()
def clip_gradient(parameters: list[Any], bound: float) -> None:
    """Scale gradients so that their norm is at most ``bound``."""
    if bound == float("inf"):
        return
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack(torch._foreach_norm(grads)).square().sum().sqrt()
    share = bound / (norm + 1e-6)
    if share < 1:
        torch._foreach_mul_(grads, share)

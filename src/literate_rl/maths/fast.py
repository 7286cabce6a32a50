# Generated from chapters/maths/fast.py (edit there); digest 07940718a933385d
"""Fast: kernels that compute what the chapters' plain forms compute, in fewer calls."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor
from torch.autograd.function import once_differentiable

from literate_rl.ground.networks import UNIT_ENTROPY
from literate_rl.ground.signatures import Bool, Float, below, check_finite, checked
from literate_rl.maths.scan import reverse_scan as reverse_scan

__all__ = [
    "categorical_terms",
    "gru_scan",
    "pieces_of",
    "project_atoms",
]


# Stands for the logarithm of zero: zero times infinity is not zero. Any $p$ that is not
# 0 in floating point has a logarithm far above it.
LOG_OF_NOTHING = -1e9


class CategoricalTerms(torch.autograd.Function):
    """Log-probability and entropy as one node of the graph, with its gradient."""

    @staticmethod
    def forward(ctx: Any, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both for logits (B, N) and actions (B,)."""
        # A stack turns them to the memory layout (N, B), quicker than `t()` would.
        log_prob = torch.stack(logit.unbind(1)).log_softmax(0)
        taken = action.long().unsqueeze(0)
        chosen = log_prob.gather(0, taken).squeeze(0)
        prob = log_prob.exp()
        plogp = log_prob.clamp_min_(LOG_OF_NOTHING).mul_(prob)
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
    atoms = torch.linspace(low, high, num_atoms, dtype=prob.dtype, device=prob.device)

    # Where each piece lands, {eq}`atom-position`.
    start = torch.add(-atoms[0], reward, alpha=scale)
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


class GRUScan(torch.autograd.Function):
    """The states of a GRU as one node of the graph, with its gradient; on the CPU."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, state: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """Compute the states (T, B, H)."""
        gates, first, matrix, more = (
            x.numpy() for x in (inputs.clone(), state, weight, bias)
        )
        size, across = first.shape[-1], np.ascontiguousarray(matrix.T)
        states = np.empty((len(gates) + 1, *first.shape), gates.dtype)
        states[0] = first
        added = np.empty_like(states[1:])
        for t, gate in enumerate(gates):
            from_state = states[t] @ across + more
            both, new = gate[:, : 2 * size], gate[:, 2 * size :]
            # A sigmoid is a tanh, moved and stretched.
            both += from_state[:, : 2 * size]
            both *= 0.5
            np.tanh(both, out=both)
            both *= 0.5
            both += 0.5
            added[t] = from_state[:, 2 * size :]
            new += both[:, :size] * added[t]
            np.tanh(new, out=new)
            states[t + 1] = new + both[:, size:] * (states[t] - new)
        ctx.kept = states, gates, added, matrix
        return torch.from_numpy(states[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of inputs, state, weight and bias."""
        states, gates, added, matrix = ctx.kept
        reset, stay, new = np.split(gates, 3, -1)
        # The factors {eq}`gru-gradient`.
        by_new = (1 - stay) * (1 - new * new)
        by_stay = (states[:-1] - new) * stay * (1 - stay)
        by_reset = by_new * added * reset * (1 - reset)
        factors = np.stack([by_reset, by_stay, by_new * reset], 2)
        from_state, from_input = np.empty_like(gates), np.empty_like(gates)
        carry, size = np.zeros_like(states[0]), states.shape[-1]
        for t in range(len(gates) - 1, -1, -1):
            carry += grad[t].numpy()
            np.multiply(
                factors[t], carry[:, None], out=from_state[t].reshape(factors[t].shape)
            )
            from_input[t, :, 2 * size :] = by_new[t] * carry
            carry = carry * stay[t] + from_state[t] @ matrix
        from_input[..., : 2 * size] = from_state[..., : 2 * size]
        rows = from_state.reshape(-1, 3 * size)
        parts = (
            from_input,
            carry,
            rows.T @ states[:-1].reshape(-1, size),
            rows.sum(0),
        )
        return tuple(map(torch.from_numpy, parts))


@checked
def gru_scan(
    inputs: Float[Tensor, "T B 3*H"],
    state: Float[Tensor, "B H"],
    weight: Float[Tensor, "3*H H"],
    bias: Float[Tensor, "3*H"],
) -> Float[Tensor, "T B H"]:
    """Return the states that ``gru_step`` makes, step by step, with gradient, fast.

    All tensors are on the CPU, and the result can be differentiated once.

    Args:
        inputs: What the observations add to the two gates and to the candidate.
        state: The states before the first step.
        weight: Matrix of the state, for the same three.
        bias: What is added to them.
    """
    return GRUScan.apply(inputs, state, weight, bias)


@checked
def pieces_of(
    over: Bool[Tensor, "T B"],
) -> tuple[Integer[Tensor, "T B"], Integer[Tensor, "T B"]]:
    """Return the place of each step in its piece, and the number of the piece.

    Args:
        over: Whether an episode ended right before a step. There a piece begins, and at
            the first step.
    """
    begins = over.clone()
    begins[0] = True
    time = torch.arange(len(over), device=over.device).unsqueeze(1).expand_as(over)
    since = time - time.masked_fill(~begins, 0).cummax(0).values
    # Pieces are counted through the first environment, then through the next.
    number = begins.t().flatten().cumsum(0).view(over.shape[::-1]).t() - 1
    return since, number

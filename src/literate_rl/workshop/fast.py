# Generated from chapters/workshop/fast.py (edit there); digest 22cbf1734d2b0a84
"""Fast: kernels that compute what the chapters' plain forms compute, in fewer calls."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from literate_rl.workshop.signatures import Float, check_finite, checked

__all__ = ["reverse_scan"]


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
    return x.flatten(0, 1)[:num_steps]


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

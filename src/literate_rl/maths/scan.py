# Generated from chapters/maths/scan.py (edit there); digest 0650493a158babff
"""Scan: a linear recursion backward in time, in few calls."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import pad

from literate_rl.ground.signatures import Float, checked

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
    result = x.flatten(0, 1)[:num_steps]

    # A product of large factors can overflow where the recursion does not. It is rare,
    # and step by step there is no product.
    if not math.isfinite(result.sum().item()):
        result = increment.detach().clone()
        for t in reversed(range(num_steps - 1)):
            result[t].addcmul_(factor[t].detach(), result[t + 1])
    return result

# Generated from chapters/masks.py (edit there); digest 89f857ae39b5e6c9
"""Legal actions: rows in which what is not allowed has no chance."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import Bool, Float, check_that, checked

__all__ = ["legal"]


@checked
def legal(
    row: Float[Tensor, "*B N"], mask: Bool[Tensor, "*B N"]
) -> Float[Tensor, "*B N"]:
    """Return logits or values in which illegal actions have the lowest number there is.

    All of this package says it so: a mask holds True for what is legal, and in a row
    the lowest number of its dtype stands for what is not. In logits of your own minus
    infinity means the same. The table of a hybrid action is no such mask: it says which
    type uses which argument.

    Args:
        row: A number for each action; the larger, the likelier it is taken.
        mask: Which actions are legal, one of them or more.

    Source: Huang and Ontañón 2022, section 3.
    """
    some = mask.any(-1).all()
    check_that(some, "mask must leave a legal action, got a row without one")
    # A softmax of this is {eq}`masked-softmax`. No gradient comes to what is replaced,
    # {eq}`masked-gradient`. Minus infinity would be lower still, but the entropy
    # multiplies it by zero, and that is not a number.
    return row.masked_fill(~mask.to(row.device), torch.finfo(row.dtype).min)

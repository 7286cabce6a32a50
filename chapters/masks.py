# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Legal actions

# %% tags=["export", "hide-input"]
"""Legal actions: rows in which what is not allowed has no chance."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.workshop.signatures import Bool, Float, check_that, checked

__all__ = ["legal"]


# %% tags=["export"]
@checked
def legal(
    row: Float[Tensor, "*B N"], mask: Bool[Tensor, "*B N"]
) -> Float[Tensor, "*B N"]:
    """Return logits or values in which illegal actions have the lowest number there is.

    Args:
        row: A number for each action; the larger, the likelier it is taken.
        mask: Which actions are legal, one of them or more.

    Source: Huang and Ontañón 2022, section 3.
    """
    some = mask.any(-1).all()
    check_that(some, "mask must leave a legal action, got a row without one")
    # No network's logit is as low. Minus infinity would be lower, and times zero NaN.
    return row.masked_fill(~mask.to(row.device), torch.finfo(row.dtype).min)

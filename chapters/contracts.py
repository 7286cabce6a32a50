# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Contracts
#
# **What does an algorithm demand of a network, and how do you know that yours gives it?** Say in two sentences what the
# reader will be able to do, how long it takes and what is needed.

# %% tags=["export", "hide-input"]
"""Contracts: what an algorithm demands of a network, as a text and as a check."""

from __future__ import annotations

from torch import Tensor

__all__ = ["contracts_mean"]

# %% [markdown]
# ## The idea
#
# First the picture, then the mathematics:
#
# $$
# m = \frac{1}{B} \sum_b x_b
# $$ (contracts-mean)


# %% tags=["export"]
def contracts_mean(x: Tensor) -> Tensor:
    """Say what it means, its unit, its defaults and its source."""
    # A comment is the text beside the line below it. This one computes
    # {eq}`contracts-mean`.
    return x.mean()


# %% [markdown]
# ## See it
#
# Say what to notice.

# %%
import torch

from literate_rl.agents import best_device

device = best_device()
print(f"on {device.type}:", contracts_mean(torch.arange(4.0, device=device)).item())

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | somebody else, with a link |
# |---|---|---|
# | what is averaged | all numbers | |
#
# ## Exercises
#
# ### Exercise 1: by hand
#
# Return the mean of a list.

# %%
from literate_rl.agents import grade


def answer(numbers):
    return ...


grade(answer, lambda numbers: contracts_mean(torch.tensor(numbers)).item(), [1.0, 3.0])


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(numbers):
    return sum(numbers) / len(numbers)


grade(answer, lambda numbers: contracts_mean(torch.tensor(numbers)).item(), [1.0, 3.0])

# %% [markdown]
# ## References
#
# Where to read on, in one line.

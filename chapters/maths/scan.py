# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Scan
#
# **How does a loop over time wait for nobody?** In four steps, as all kernels of
# {doc}`fast`: profile, derive, prove, measure. Nobody has to read this to follow the book.

# %% tags=["export", "hide-input"]
"""Scan: a linear recursion backward in time, in few calls."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import pad

from literate_rl.ground.signatures import Float, checked

__all__ = ["reverse_scan"]

# %% [markdown]
# Returns, advantages and V-trace are one recursion with different letters,
#
# $$
# x_t = b_t + f_t \, x_{t+1} , \qquad x_T = 0 ,
# $$ (reverse-scan)
#
# called a **scan**. For GAE ({doc}`/chapters/advantages`) the increment $b_t$ is the TD
# error and the factor $f_t$ is $\gamma \lambda (1 - \mathrm{done}_t)$.
#
# **Profile.** The loop takes $T$ turns, and each is a handful of calls into PyTorch that
# cost microseconds, however few numbers they move. With 128 steps of 8 environments nearly
# all of the time goes into calling. Fewer and larger calls would help. But step $t$ seems
# to have to wait for step $t + 1$.
#
# **Derive.** It does not have to wait long. Cut time into chunks of $C$ steps, and pretend
# in each chunk that nothing comes after it. The recursion then gives a *local* answer
# $\hat x_t$. What is missing is the true answer at the head of the next chunk, in row $h$,
# times all factors on the way there:
#
# $$
# x_t = \hat x_t + F_t \, x_h , \qquad F_t = f_t \, f_{t+1} \cdots f_{h-1} .
# $$ (scan-chunk)
#
# The local answers of all chunks take $C$ turns only, because the chunks run side by side.
# Then the heads are corrected one after the other, in $T / C$ turns, and one last operation
# corrects all other rows. A local turn makes two calls, one for $\hat x$ and one for $F$. That is about
# $2 C + T / C$ calls, the fewest for $C = \sqrt{T / 2}$: 64 calls for 512 steps.


# %% tags=["export"]
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


# %% [markdown]
# **Prove.** The loop beside it, on random numbers, in double precision:

# %%
import torch

generator = torch.Generator().manual_seed(0)
increment, factor = torch.rand(2, 512, 8, generator=generator, dtype=torch.float64)
x, rows = torch.zeros(8, dtype=torch.float64), []
for t in reversed(range(512)):
    x = increment[t] + factor[t] * x
    rows.append(x)
difference = (reverse_scan(increment, factor) - torch.stack(rows[::-1])).abs().max()
print(f"largest difference: {difference:.0e}")

# %% tags=["claims"]
assert difference < 1e-12, "the scan is the loop, up to rounding"

# %% [markdown]
# With factors above 1 a product over a chunk may be infinite where the recursion is not, and
# infinity times zero is no number. Then the kernel starts again and goes step by step.

# %% [markdown]
# **Measure.** {doc}`/docs/results` has the time that this saves, beside the loops of other
# libraries.

# %% [markdown]
# ## References
#
# The scan is one of {cite:t}`blelloch1990`.

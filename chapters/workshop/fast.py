# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fast
#
# **How is a slow loop made fast without changing what it computes?** In four steps: find
# out where the time goes, derive another form on paper, prove that both are equal, and
# measure. The path of this book always shows the plain form. Where speed matters, a public
# function calls a *kernel* from this page, and a test holds the two equal.
#
# Nobody has to read this to follow the book.

# %% tags=["export", "hide-input"]
"""Fast: kernels that compute what the chapters' plain forms compute, in fewer calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from literate_rl.workshop.signatures import Float, checked

__all__ = ["numpy_act", "reverse_scan"]

# %% [markdown]
# ## A loop that waits for nobody
#
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
    return x.flatten(0, 1)[:num_steps]


# %% [markdown]
# **Prove.** The loop beside it, on random numbers, in double precision:

# %%
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
# **Measure.** {doc}`/docs/results` has the time that this saves, beside the loops of other
# libraries.
#
# ## Acting in NumPy
#
# **Profile.** For networks as small as those of {doc}`/chapters/ppo` a call into PyTorch costs
# more than the arithmetic in it. While acting, that is nearly all. NumPy's calls are
# cheaper.
#
# **Derive.** So here is a policy's `act` once more, in NumPy, on arrays that *are* the
# parameters: they share the memory, and an optimiser that changes the weights changes both.


# %% tags=["export"]
@checked
def numpy_act(policy: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what ``policy.act`` computes, in NumPy: faster for small networks.

    The arrays share their memory with the parameters, so that the function always acts
    with the current weights.

    Args:
        policy: A policy that ``make_policy`` has built, on the CPU.
    """
    network: Any = policy.network
    # The means of a Gaussian policy come from a network of their own.
    gaussian = hasattr(network.actor, "log_sigma")
    parameters = list((network.actor.mean if gaussian else network.actor).parameters())
    if parameters[0].device.type != "cpu":
        raise ValueError(f"policy must be on the CPU, got {parameters[0].device}")
    # Weights and biases in turn, those of the output layer last.
    *hidden, weight, bias = (p.detach().numpy().T for p in parameters)
    layers = list(zip(hidden[::2], hidden[1::2], strict=True))

    def forward(obs: Tensor) -> NDArray[np.float32]:
        x: NDArray[np.float32] = network.normalizer(obs).numpy()
        for w, b in layers:
            x = np.tanh(x @ w + b)
        out: NDArray[np.float32] = x @ weight + bias
        return out

    # The action is the function of noise that the action distribution has.
    if gaussian:
        log_sigma = network.actor.log_sigma.detach().numpy()

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy(forward(obs) + np.exp(log_sigma) * noise.numpy())
    else:

        def act(obs: Tensor, noise: Tensor) -> Tensor:
            return torch.from_numpy((forward(obs) + noise.numpy()).argmax(-1))

    return act


# %% [markdown]
# **Prove.** `tests/test_ppo.py` holds both forms to the same actions, for discrete and
# Gaussian policies, while an optimiser changes the weights. **Measure.** What it saves in a
# whole training stands in {doc}`/docs/results`.
#
# ## References
#
# The scan is one of {cite:t}`blelloch1990`.

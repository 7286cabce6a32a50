# Generated from chapters/workshop/fast.py (edit there); digest 09c13337c70902dc
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

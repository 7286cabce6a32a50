# Generated from chapters/rainbow.py (edit there); digest 23fe6e127d5b412a
"""Noisy layers: weights that are drawn, with means and deviations to learn."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from literate_rl.ground.signatures import Count, Float, NonNegative, checked

__all__ = ["NoisyLinear", "factorised_noise"]


@checked
def factorised_noise(
    num_steps: Count, num_rows: Count, size: Count, generator: torch.Generator
) -> Tensor:
    """Draw the noise of noisy layers, on the CPU."""
    normal = torch.randn(num_steps, num_rows, size, generator=generator)
    # The signed roots of {eq}`factorised-noise`.
    return normal.sign() * normal.abs().sqrt()


class NoisyLinear(nn.Module):
    """A linear layer whose weights are random, with deviations that are learned.

    The noise is an argument; the layer does not store any.

    Source: Fortunato et al. 2018, section 3, factorised noise.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        sigma: The deviations at the start, times the root of ``inputs``.
    """

    @checked
    def __init__(self, inputs: Count, outputs: Count, sigma: NonNegative = 0.5) -> None:
        super().__init__()
        self.sizes = [inputs, outputs]
        # The means: PyTorch initialises a linear layer as {eq}`noisy-start` says.
        self.mean = nn.Linear(inputs, outputs)
        # The deviations are a layer too; all start with the same number.
        self.deviation = nn.Linear(inputs, outputs)
        for parameter in self.deviation.parameters():
            nn.init.constant_(parameter, sigma / math.sqrt(inputs))

    @checked
    def forward(
        self,
        x: Float[Tensor, "*B inputs"],
        noise: Float[Tensor, "*B size"] | Float[Tensor, "size"] | float,
    ) -> Float[Tensor, "*B outputs"]:
        """Return the outputs of inputs, with one noise for all or one for each row.

        With a number instead, always 0.0, the weights are their means.
        """
        if not isinstance(noise, Tensor):
            return linear(x, self.mean.weight, self.mean.bias)
        into, out = noise.split(self.sizes, -1)
        # One noise for all rows: the random weights and biases of {eq}`noisy-weights`.
        if noise.dim() == 1:
            factor = torch.outer(out, into)
            weight = torch.addcmul(self.mean.weight, self.deviation.weight, factor)
            bias = torch.addcmul(self.mean.bias, self.deviation.bias, out)
            return linear(x, weight, bias)
        # One for each row: the factor is taken out of the sum, {eq}`noisy-layer`.
        return torch.addcmul(self.mean(x), out, self.deviation(into * x))

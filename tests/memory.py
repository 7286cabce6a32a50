"""An encoder with a memory, for tests of the disjoint network."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor, nn


class RecurrentEncodingNetwork(nn.Module):
    """A gated recurrent unit whose memory is its features."""

    def __init__(self, observation_spec: spaces.Space[Any], hidden: int = 64) -> None:
        super().__init__()
        self.memory = nn.GRUCell(spaces.flatdim(observation_spec), hidden)
        self.output_size = hidden

    def forward(self, observation: Tensor, state: Any = ()) -> tuple[Tensor, Tensor]:
        memory = self.memory(observation, state if len(state) else None)
        return memory, memory

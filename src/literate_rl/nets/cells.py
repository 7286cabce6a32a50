# Generated from chapters/recurrent.py (edit there); digest 083d96525eecebcb
"""What remembers: a step of a GRU and of an LSTM, and many steps with ends inside."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from literate_rl.data.agents import Window, without
from literate_rl.ground.signatures import Float, checked
from literate_rl.maths.fast import gru_scan, pieces_of

__all__ = ["Memory", "gru_step", "lstm_step"]


@checked
def gru_step(
    inputs: Float[Tensor, "*B 3*H"],
    state: Float[Tensor, "*B H"],
    weight: Float[Tensor, "3*H H"],
    bias: Float[Tensor, "3*H"],
) -> Float[Tensor, "*B H"]:
    """Return the next state of a GRU.

    Args:
        inputs: What the observation adds to the gates that see and keep, and to the
            candidate.
        state: The state so far.
        weight: Matrix of the state, for the same three.
        bias: What is added to them.

    Source: Cho et al. 2014, with the reset gate of PyTorch and cuDNN.
    """
    from_obs = inputs.chunk(3, -1)
    from_state = nn.functional.linear(state, weight, bias).chunk(3, -1)
    # How much of the state the candidate sees, and how much of it is kept, {eq}`gru`.
    see = (from_obs[0] + from_state[0]).sigmoid()
    keep = (from_obs[1] + from_state[1]).sigmoid()
    candidate = (from_obs[2] + see * from_state[2]).tanh()
    return candidate + keep * (state - candidate)


@checked
def lstm_step(
    inputs: Float[Tensor, "*B 4*H"],
    state: Float[Tensor, "*B 2*H"],
    weight: Float[Tensor, "4*H H"],
    bias: Float[Tensor, "4*H"],
) -> Float[Tensor, "*B 2*H"]:
    """Return the next state of an LSTM: its output, and behind it its cell.

    Args:
        inputs: What the observation adds to the gates that enter and keep, to the
            candidate and to the gate that shows.
        state: The state so far.
        weight: Matrix of the output so far, for the same four.
        bias: What is added to them.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """
    output, cell = state.chunk(2, -1)
    gates = inputs + nn.functional.linear(output, weight, bias)
    enter, keep, candidate, show = gates.chunk(4, -1)
    # What is kept and what enters, and then what is shown, {eq}`lstm`.
    cell = keep.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return torch.cat([show.sigmoid() * cell.tanh(), cell], -1)


class Memory(nn.Module):
    """A GRU or an LSTM behind an encoder; it reads a ``Window``.

    Args:
        front: What observations go through first.
        features: Number of features that come out of it.
        size: Number of its outputs H.
        kind: ``"gru"`` or ``"lstm"``.

    Attributes:
        state_size: Numbers of its state, of which the first H are its output.
    """

    def __init__(
        self, front: Sequence[nn.Module], features: int, size: int, kind: str
    ) -> None:
        super().__init__()
        self.front, self.size = nn.Sequential(*front), size
        self.gru = kind == "gru"
        self.cells = (nn.GRU if self.gru else nn.LSTM)(features, size)
        self.state_size = size if self.gru else 2 * size
        for name, weight in self.cells.named_parameters():
            init = nn.init.zeros_ if "bias" in name else nn.init.orthogonal_
            init(weight)
            # A memory begins by keeping: the bias of that gate is 1.
            if name == "bias_ih_l0":
                nn.init.ones_(weight.data[size : 2 * size])

    def step(self, features: Tensor, state: Tensor) -> Tensor:
        """Return the states after a step, ``(*B, S)``."""
        enter, recur, enter_bias, bias = self.cells.parameters()
        advance = gru_step if self.gru else lstm_step
        inputs = nn.functional.linear(features, enter, enter_bias)
        return advance(inputs, state, recur, bias)

    def loop(self, seen: Window) -> Tensor:
        """Return the states after all steps, ``(T, B, S)``."""
        features = self.front(seen.obs)
        if not isinstance(seen.over, Tensor):  # each step stands alone
            return self.step(features, seen.state)
        # The gradient {eq}`through-time` comes back through this chain.
        state, states = seen.state[0], []
        for row, over in zip(features, seen.over, strict=True):
            state = self.step(row, without(state, over))
            states.append(state)
        return torch.stack(states)

    def states(self, seen: Window) -> Tensor:
        """Return the same, sooner if it can be had: a GRU's output is its state."""
        quick = self.gru and isinstance(seen.over, Tensor)
        return self(seen._replace(real=())) if quick else self.loop(seen)

    def forward(self, seen: Window) -> Tensor:
        """Return the outputs after the steps that count, by default ``(T, B, H)``."""
        if not isinstance(seen.over, Tensor):
            return self.loop(seen)[..., : self.size]
        features, (since, piece) = self.front(seen.obs), pieces_of(seen.over)
        length, pieces = int(since.max()) + 1, int(piece.max()) + 1
        sequences = features.new_zeros(length, pieces, features.shape[-1])
        sequences[since, piece] = features
        # The first pieces go on from what is known, all others from nothing.
        start = features.new_zeros(1, pieces, self.state_size)
        start[0, piece[0]] = without(seen.state[0], seen.over[0])
        outputs = self.read(sequences, start)[since, piece]
        return outputs[seen.real] if isinstance(seen.real, Tensor) else outputs

    def read(self, sequences: Tensor, start: Tensor) -> Tensor:
        """Return the outputs of sequences ``(L, N, F)`` that begin with some states."""
        if self.gru and sequences.device.type == "cpu":
            enter, recur, enter_bias, bias = self.cells.parameters()
            inputs = nn.functional.linear(sequences, enter, enter_bias)
            return gru_scan(inputs, start[0], recur, bias)
        known = tuple(x.contiguous() for x in start.split(self.size, -1))
        outputs, _ = self.cells(sequences, known[0] if self.gru else known)
        return outputs

# Generated from chapters/check/states.py (edit there); digest e7490b5ee14960fe
"""States by name: what the states are called, and a model that is called with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from torch import Tensor, nn

from literate_rl.check.probes import (
    device_of,
    required_parameters,
    results_of,
    unwrapped,
    watch,
)
from literate_rl.ground.nests import Space
from literate_rl.ground.networks import randomness_kept
from literate_rl.ground.signatures import checked

__all__ = ["ByName", "StateSpec", "look_around", "state_spec"]


class StateSpec(NamedTuple):
    """What the states of an environment are called, and how large they are.

    Attributes:
        names: A name for each state.
        shapes: The shape of each.
        dtypes: The dtype that a model gets, None for that of the observations.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype | None, ...]

    def named_for(self, model: Any) -> StateSpec:
        """Give a single state the name of the model's only argument."""
        required = [name for name in required_parameters(model) if name != "action"]
        lone = len(self.names) == len(required) == 1
        return self._replace(names=tuple(required)) if lone else self

    def rows(self, obs: Tensor) -> tuple[int, ...]:
        """Return the dimensions in front of an observation, such as (T, B)."""
        # A single picture may come unflattened; everything else is a flat vector.
        first = self.shapes[0]
        whole = len(self.shapes) == 1 and obs.shape[-len(first) :] == first
        return tuple(obs.shape[: -len(first) if whole else -1])

    def split(self, obs: Tensor) -> dict[str, Tensor]:
        """Split observations into their states; copy only where the dtype changes."""
        lead, sizes = self.rows(obs), [math.prod(shape) for shape in self.shapes]
        pieces = obs.reshape(*lead, sum(sizes)).split(sizes, -1)
        columns = zip(self.names, pieces, self.shapes, self.dtypes, strict=True)
        return {
            name: piece.reshape(*lead, *shape).to(dtype or piece.dtype)
            for name, piece, shape, dtype in columns
        }


@checked
def state_spec(observation_space: Space) -> StateSpec:
    """Name the states of an observation space.

    A ``Dict`` has a state for each key, a ``Tuple`` has ``state_0``, ``state_1`` and so
    on, and anything else is one state called ``state``. Integers, such as the bytes of
    a picture, stay integers. A space that is not a ``Box`` is flattened by Gymnasium.
    """
    parts = {"state": observation_space}
    if isinstance(observation_space, spaces.Dict):
        parts = dict(observation_space.spaces)
    elif isinstance(observation_space, spaces.Tuple):
        parts = {f"state_{i}": x for i, x in enumerate(observation_space.spaces)}
    shapes, dtypes = [], []
    for space in parts.values():
        # What is not a box is flattened into one row of numbers.
        box = isinstance(space, spaces.Box) and bool(space.shape)
        shapes.append(tuple(space.shape or ()) if box else (spaces.flatdim(space),))
        # Integers, such as the bytes of a picture, stay what they are.
        whole = box and np.issubdtype(space.dtype, np.integer)
        dtypes.append(
            torch.as_tensor(np.zeros(0, space.dtype)).dtype if whole else None
        )
    return StateSpec(tuple(parts), tuple(shapes), tuple(dtypes))


def look_around(env: Any) -> tuple[StateSpec, Space, Tensor]:
    """Return the states' names, the action space and some observations."""
    with randomness_kept():
        made, seen = watch(env)
    # Where a wrapper has flattened the observations, the names are one level down.
    inner = made.env if isinstance(made, FlattenObservation) else made
    space = inner.observation_space
    if inner is made:
        seen = [np.asarray(spaces.flatten(space, x)) for x in seen]
    made.close()
    obs = torch.as_tensor(np.stack(seen), dtype=torch.float32)
    return state_spec(space), made.action_space, obs


class ByName(nn.Module):
    """A user's model, called with its states by name.

    Args:
        model: The model, wrapped or not.
        spec: What the states are called. A single state takes the name of the
            model's only argument.
    """

    def __init__(self, model: Any, spec: StateSpec) -> None:
        super().__init__()
        _, self.fixed = unwrapped(model)
        self.spec = spec.named_for(model)
        self.model: Any = model.func if isinstance(model, partial) else model

    def forward(self, obs: Tensor, **given: Any) -> tuple[Any, ...]:
        """Return the results of the model, always as a tuple.

        Args:
            obs: Observations ``(*B, size)``.
            given: Further arguments, such as ``action``, with the same ``*B`` in front.
        """
        return self.ask(self.model, obs, **given)

    def ask(
        self, method: Callable[..., Any], obs: Tensor, **given: Any
    ) -> tuple[Any, ...]:
        """Return the results of the model, or of a method that it has."""
        # All leading dimensions become one batch; the results get them back. Mostly
        # there is just one, and nothing to do.
        lead = self.spec.rows(obs)
        batch, device = math.prod(lead), device_of(self.model)

        # Results without a row for each observation, such as a sum, stay as they are.
        def flat(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.to(device)
            return x if len(lead) == 1 else x.reshape(batch, *x.shape[len(lead) :])

        def unflat(x: Any) -> Any:
            rows = isinstance(x, Tensor) and x.ndim > 0 and len(x) == batch
            return x.reshape(*lead, *x.shape[1:]) if rows else x

        arguments = self.spec.split(flat(obs)) | {k: flat(x) for k, x in given.items()}
        results = results_of(method(**arguments, **self.fixed))
        return results if len(lead) == 1 else tuple(map(unflat, results))

# Generated from chapters/workshop/probes.py (edit there); digest efa6948279dd29d0
"""Probes: somebody else's model, called by name and left as it was."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.workshop.episodes import env_maker

__all__ = [
    "Probe",
    "device_of",
    "forward_parameters",
    "randomness_kept",
    "results_of",
    "unwrapped",
    "watch",
]


def unwrapped(model: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Return the module inside of its wrappers, and the arguments that were fixed."""
    fixed: dict[str, Any] = {}
    while True:
        if isinstance(model, partial):
            if model.args:
                raise TypeError("a partial model must fix its arguments by name")
            fixed = {**model.keywords, **fixed}
            model = model.func
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # what `torch.compile` was given
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(model, nn.Module):
            return model, fixed
        else:
            raise TypeError(
                f"a model must be a torch.nn.Module, got {type(model).__name__}"
            )


def forward_parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's ``forward``; what was fixed has a default."""
    module, fixed = unwrapped(model)
    return inspect.signature(partial(module.forward, **fixed)).parameters


def device_of(module: nn.Module) -> torch.device:
    """Return where a module has its parameters; the CPU if it has none."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def results_of(output: Any) -> tuple[Any, ...]:
    """Return the results of a model as a tuple; a single one comes without."""
    return output if isinstance(output, tuple) else (output,)


@contextmanager
def randomness_kept(*modules: nn.Module) -> Iterator[None]:
    """Run a block that leaves the global random numbers as they were."""
    devices = {device_of(m).index for m in modules if device_of(m).type == "cuda"}
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=sorted(d or 0 for d in devices)):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def watch(env: Any, num_steps: int = 32) -> tuple[gym.Env[Any, Any], list[Any]]:
    """Make an environment and return it with the observations of some random steps."""
    made = env_maker(env)()
    made.action_space.seed(0)
    seen = [made.reset(seed=0)[0]]
    while len(seen) < num_steps:
        observation, _, terminated, truncated, _ = made.step(made.action_space.sample())
        seen.append(observation)
        if terminated or truncated:
            seen.append(made.reset()[0])
    return made, seen


class Probe:
    """A copy of a model, with states to try and an action space.

    Args:
        model: The model, wrapped or not. It is copied.
        states: Example states by name: tensors with a row for each state, or anything.
        action_space: Discrete or a box.
        judges: Whether the model needs an action, as a critic does.
        transform: Applied to the first result and the states.

    Attributes:
        model: The copy.
        failed: Names of the rules that did not hold, or could not be tried.
    """

    def __init__(
        self,
        model: Any,
        states: Mapping[str, Any],
        action_space: spaces.Space[Any],
        judges: bool = False,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        module, self.fixed = unwrapped(model)
        self.model = copy.deepcopy(module)
        self.parameters = forward_parameters(model)
        self.device = device_of(self.model)
        self.states = states
        self.space = action_space
        self.judges, self.transform = judges, transform
        self.failed: set[str] = set()

    @property
    def num_actions(self) -> int | None:
        """The number of discrete actions, None if they are continuous."""
        discrete = isinstance(self.space, spaces.Discrete)
        return int(self.space.n) if discrete else None  # type: ignore[attr-defined]

    @property
    def weights(self) -> list[nn.Parameter]:
        """The parameters in training."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def rows(
        self, batch: int, row: int | None = None, scale: float = 1.0
    ) -> dict[str, Any]:
        """Return a batch of states, or of one state again and again."""

        def pick(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            index = torch.arange(batch) % len(x) if row is None else [row] * batch
            picked = x[index].to(self.device)
            return picked * scale if x.is_floating_point() else picked

        return {name: pick(x) for name, x in self.states.items()}

    def call(
        self,
        batch: int,
        action: Tensor | None = None,
        *,
        row: int | None = None,
        scale: float = 1.0,
        train: bool = False,
        luck: int = 0,
    ) -> tuple[Any, ...]:
        """Call the model with a batch of states, and an action if there is one.

        Args:
            batch: Number of rows.
            action: The action, or None to leave it out.
            row: The state to repeat; by default all of them in turn.
            scale: What floating states are multiplied with.
            train: Whether in training mode.
            luck: Seed of what the model draws.
        """
        states = self.rows(batch, row, scale)
        if action is None and self.judges:
            action = self.actions(batch)
        given = {} if action is None else {"action": action.to(self.device)}
        return self.run({**states, **given}, train, luck)

    def run(
        self, arguments: Mapping[str, Any], train: bool = False, luck: int = 0
    ) -> tuple[Any, ...]:
        """Call the model with arguments by name."""
        self.model.train(train)
        torch.manual_seed(luck)
        np.random.seed(luck)
        random.seed(luck)
        first, *others = results_of(self.model(**arguments, **self.fixed))
        if self.transform is not None:
            states = {k: x for k, x in arguments.items() if k != "action"}
            first = self.transform(first, states)
        return (first, *others)

    def actions(self, batch: int) -> Tensor:
        """Return actions for a critic: numbers in the box, or probabilities."""
        generator = torch.Generator().manual_seed(batch)
        if isinstance(self.space, spaces.Discrete):
            shape: tuple[int, ...] = (batch, int(self.space.n))
            return torch.randn(shape, generator=generator).softmax(-1).to(self.device)
        low, high = self.bounds()
        shape = (batch, *low.shape)
        return torch.rand(shape, generator=generator).to(low) * (high - low) + low

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the bounds of continuous actions, -1 and 1 where there are none."""
        space: Any = self.space
        limits = np.isfinite(space.low) & np.isfinite(space.high)
        pair = (space.low, -1.0), (space.high, 1.0)
        low, high = (np.where(limits, end, one).astype(np.float32) for end, one in pair)
        return torch.as_tensor(low).to(self.device), torch.as_tensor(high).to(
            self.device
        )

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Probes
#
# **How can somebody else's model be tested without leaving a trace?** A checker of models
# ({doc}`/chapters/contracts`) has to run a model that it knows nothing about: with batches of
# one and of five, in training and in evaluation mode, with extreme states, with actions of its
# own. Afterwards the model must be as it was, and so must the random number generators of the
# program around it.
#
# Nobody has to read this page to follow the book. In 10 minutes you know how a model is
# found inside its wrappers, how it is called by the names of its arguments, what is restored
# afterwards, and how a rule is tried.

# %% tags=["export", "hide-input"]
"""Probes: somebody else's model, called by name and left as it was."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.data.makers import env_maker
from literate_rl.ground.nests import Space, open_ended
from literate_rl.ground.networks import eval_mode, randomness_kept

__all__ = [
    "Finding",
    "Probe",
    "device_of",
    "required_parameters",
    "results_of",
    "seed_generators",
    "try_rules",
    "unwrapped",
    "watch",
]

# %% [markdown]
# ## Inside the wrappers
#
# `torch.compile` and `DistributedDataParallel` wrap a model in another one, whose `forward`
# takes anything. `functools.partial` fixes some of the arguments. The signature that counts
# is that of the model inside, without the arguments that were fixed.


# %% tags=["export"]
def unwrapped(model: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Return the module inside its wrappers, and the arguments that were fixed."""
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


def forward_parameters(model: Any) -> Mapping[str, Any]:
    """Return the parameters of a model's ``forward``; what was fixed has a default."""
    module, fixed = unwrapped(model)
    return inspect.signature(partial(module.forward, **fixed)).parameters


def required_parameters(model: Any) -> list[str]:
    """Return the names of the parameters that have no default."""
    given = forward_parameters(model)
    open_ended = open_parameters(given)
    return [k for k, p in given.items() if p.default is p.empty and k not in open_ended]


def open_parameters(parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of ``*args``, ``**kwargs`` and positional-only parameters."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [k for k, p in parameters.items() if p.kind not in named]


def device_of(module: nn.Module) -> torch.device:
    """Return where a module has its parameters or buffers; the CPU if it has none."""
    numbers = chain(module.parameters(), module.buffers())
    return next((x.device for x in numbers), torch.device("cpu"))


def results_of(output: Any) -> tuple[Any, ...]:
    """Return the results of a model as a tuple, also a single one that is bare."""
    return output if isinstance(output, tuple) else (output,)


# %% [markdown]
# ## Random numbers
#
# A model may draw random numbers, so it is called with a seed. Afterwards the generators get
# their old state back ({doc}`/chapters/ground/networks`).


# %% tags=["export"]
def seed_generators(seed: int, device: torch.device) -> None:
    """Seed PyTorch's generator of the CPU, and that of a GPU if the device is one."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


# %% [markdown]
# ## States to try
#
# Samples of an observation space are of no use. They need not be states that ever occur, and
# where the bound is the largest float they come out near $10^{38}$. A few random steps in the
# environment give states that a model will really see.


# %% tags=["export"]
def watch(env: Any) -> tuple[gym.Env[Any, Any], list[Any]]:
    """Make an environment and return it with the observations of 32 random steps."""
    made = env_maker(env)()
    space = made.action_space
    space.seed(0)
    observation, infos = made.reset(seed=0)
    seen = [observation]
    while len(seen) < 32:
        # A legal action where somebody says which are.
        mask = infos.get("action_mask") if isinstance(space, spaces.Discrete) else None
        legal = None if mask is None else np.asarray(mask, np.int8)
        observation, _, terminated, truncated, infos = made.step(space.sample(legal))
        seen.append(observation)
        if terminated or truncated:
            observation, infos = made.reset()
            seen.append(observation)
    return made, seen


# %% [markdown]
# ## A model on trial
#
# A probe has a copy of the model. It calls the copy with rows of the states that it was
# given, over and over if they are too few. What is not a tensor is passed on untouched.
#
# A critic must be given an action, or it cannot run. The probe makes some: numbers inside the
# bounds of a box, or probabilities where actions are discrete.


# %% tags=["export"]
class Probe:
    """A copy of a model, with states to try and an action space.

    Args:
        model: The model, wrapped or not. It is copied.
        states: Example states by name: tensors with a row for each state, or anything.
        space: The action space, discrete or a box.
        action: ``"action"`` if the model needs one, as a critic does; ``"action=None"``
            if it may get one, as an actor does that returns log-probabilities.
        transform: Applied to the first result and the states.
    """

    def __init__(
        self,
        model: Any,
        states: Mapping[str, Any],
        space: Space,
        action: str = "",
        transform: Callable[..., Any] | None = None,
    ) -> None:
        module, self.fixed = unwrapped(model)
        self.copy_error: Exception | None = None
        try:
            self.model = copy.deepcopy(module)
            # What is frozen inside of a model in training mode is part of its training.
            if not self.model.training:
                self.model.train()
        except Exception as error:
            # Then no rule that needs a copy is tried.
            self.model, self.copy_error = module, error
        self.parameters = forward_parameters(model)
        self.device = device_of(self.model)
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        self.states, self.space = states, space
        self.action, self.transform = action, transform
        self.num_actions = int(space.n) if isinstance(space, spaces.Discrete) else None

    def rows(
        self, batch: int, row: int | None = None, scale: float = 1.0
    ) -> dict[str, Any]:
        """Return a batch of states, or of one state again and again."""

        def pick(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            index = torch.arange(batch) if row is None else torch.full((batch,), row)
            picked = x[index % len(x)].to(self.device)
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
            action: The action; by default none, or for a critic one of the probe's.
            row: The state to repeat; by default all of them in turn.
            scale: What floating states are multiplied by.
            train: Whether in training mode.
            luck: Seed of the random numbers that the model draws.
        """
        states = self.rows(batch, row, scale)
        if action is None and self.action == "action":
            action = self.actions(batch)
        given = {} if action is None else {"action": action.to(self.device)}
        seed_generators(luck, self.device)
        np.random.seed(luck)
        random.seed(luck)
        with nullcontext() if train else eval_mode(self.model):
            results = results_of(self.model(**states, **given, **self.fixed))
        # What the model got, for a rule that looks whether it wrote to it.
        self.seen = states
        if self.transform is not None:
            results = (self.transform(results[0], states), *results[1:])
        return results

    def actions(self, batch: int) -> Tensor:
        """Return actions for a critic: numbers in the box, or probabilities."""
        generator = torch.Generator().manual_seed(batch)
        if self.num_actions is not None:
            logits = torch.randn(batch, self.num_actions, generator=generator)
            return logits.softmax(-1).to(self.device)
        low, high = self.bounds()
        share = torch.rand(batch, *low.shape, generator=generator)
        return low + (high - low) * share.to(low)

    def bounds(self) -> Tensor:
        """Return the bounds of continuous actions, -1 and 1 where there are none."""
        space: Any = self.space
        low, high = open_ended(space.low), open_ended(space.high)
        bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        ends = torch.as_tensor(np.stack([low, high]), dtype=torch.float32)
        return ends.to(self.device)

    def drawn_or_given(self, batch: int) -> Tensor | None:
        """Return actions for a model that takes some: its own, or the probe's."""
        if self.action == "action=None":
            return self.call(batch)[0].detach()
        return self.actions(batch) if self.action else None

    def judge(
        self, action: Tensor | None = None, batch: int = 5, **how: Any
    ) -> tuple[Any, ...]:
        """Return what a model says, without the action of an actor that draws."""
        results = self.call(batch, action, **how)
        return results[1:3] if self.action == "action=None" else results[:1]

    def draw(
        self, count: int, luck: int, scale: float = 1.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw actions in the first state; return them, log-densities and entropies."""
        how: Any = {"row": 0, "luck": luck, "scale": scale}
        with torch.no_grad():
            action = self.call(count, **how)[0]
        _, log_prob, entropy, *_ = self.call(count, action, **how)
        return action, log_prob, entropy

    def shape(self, dims: Sequence[str], batch: int) -> tuple[int, ...]:
        """Return the sizes that the words of a shape mean; 0 is any number above 1."""
        known: dict[str, tuple[Any, ...]] = {
            "batch_size": (batch,),
            "action_num": (self.num_actions,),
            "atom_num": (0,),
            "1": (1,),
            "...": (1,) if self.num_actions else self.space.shape or (),
        }
        return sum((known[word] for word in dims), ())


# %% [markdown]
# ## Rules
#
# A rule is a function that makes demands of a model on trial. The first one that does not hold ends
# it, with what was expected, what came, and what may help. The first line of its
# docstring is what a contract prints. So what is said stands beside what is tested.


# %% tags=["export"]
class Finding(NamedTuple):
    """What a rule has found.

    Attributes:
        expected: What must be.
        came: What came instead.
        hint: What may help.
        harmful: Whether it is legal, and only worth a warning.
    """

    expected: str
    came: str = ""
    hint: str = ""
    harmful: bool = False

    def __str__(self) -> str:
        came = f", {self.came}" if self.came else ""
        return f"{self.expected}{came}" + (f" ({self.hint})" if self.hint else "")


Rule = Callable[[Probe], None]


class DemandError(Exception):
    """Ends a rule; its only argument is the finding."""


def demand(
    holds: Any, expected: str, came: str = "", hint: str = "", harmful: bool = False
) -> None:
    """End a rule with a finding unless something holds."""
    if not holds:
        raise DemandError(Finding(expected, came, hint, harmful))


def text_of(rule: Rule) -> str:
    """Return the demand in words: the first line of the docstring."""
    return (rule.__doc__ or "").partition("\n")[0].rstrip(".")


# %% [markdown]
# Rules are tried in stages. If a model does not run, there is nothing to say about its results. So
# all rules of a stage are tried, and the next stage only if none of them is broken. A warning does
# not count.


# %% tags=["export"]
def try_rules(
    probe: Probe, stages: Iterable[Iterable[Rule]]
) -> Iterator[tuple[str, Finding]]:
    """Yield name and finding of broken rules, up to the first stage with an error."""
    with randomness_kept():
        for stage in stages:
            illegal = False
            for rule in stage:
                text = text_of(rule)
                try:
                    rule(probe)
                    continue
                except DemandError as found:
                    (finding,) = found.args
                except Exception as error:
                    finding = Finding(text, raised(error))
                harmful = finding.harmful or "(a warning)" in text
                illegal = illegal or not harmful
                yield rule.__name__, finding._replace(harmful=harmful)
            if illegal:
                return


def raised(error: Exception) -> str:
    """Say what was raised, in one line."""
    return f"raised {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


# %% [markdown]
# ## See it
#
# A compiled model whose argument `scale` is fixed, and one rule, which the model keeps.

# %%
from functools import partial

import torch

from gymnasium import spaces

from literate_rl.check.probes import Probe, demand, required_parameters, try_rules


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def forward(self, state, scale):
        return scale * self.net(state)


def two_columns(probe):
    """Returns two columns."""
    got = probe.call(5)[0].shape[-1]
    demand(got == 2, "must have two columns", f"got {got}")


model = partial(torch.compile(Scaled()), scale=2.0)
print("asks for:", required_parameters(model))
trial = Probe(model, {"state": torch.randn(3, 4)}, spaces.Discrete(2))
before = torch.get_rng_state()
print(two_columns.__doc__, list(try_rules(trial, [[two_columns]])))

# %% tags=["claims"]
assert required_parameters(model) == ["state"], "what was fixed is not asked for"
assert torch.equal(torch.get_rng_state(), before), "the random state is as it was"

# %% [markdown]
# ## References
#
# PyTorch describes what its wrappers do to a module:
# [torch.compile](https://docs.pytorch.org/docs/stable/generated/torch.compile.html) and
# [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html).

# Generated from chapters/ground/protocols.py (edit there); digest 2e3bd880f1064e89
"""Interfaces: what policies, algorithms and learners ask of each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar

import torch
from annotated_types import Ge
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from literate_rl.ground.signatures import Count, Scale, check_that, checked

__all__ = [
    "Act",
    "ActionDistribution",
    "ActorCriticLike",
    "Algorithm",
    "ByHandLike",
    "Error",
    "Kept",
    "Learner",
    "PolicyLike",
    "RecurrentConfig",
    "RunConfig",
    "Settings",
    "Stateful",
    "Target",
]


Envs = VectorEnv[Any, Any, Any]


class ActionDistribution(Protocol):
    """Knows what a row of numbers says about actions."""

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, ``(T, B, *)``, on the CPU."""

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions that follow from rows and noise; 0.0 is greedy."""

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, ``(*B)`` each.

        Only agents that learn from fresh rollouts call it.
        """

    def to_env(self, action: Tensor) -> NDArray[Any]:
        """Return the actions as vector environments take them."""


class Act(Protocol):
    """A way to act: that of a policy, or a faster one that computes the same."""

    def __call__(
        self, obs: Tensor, noise: Tensor | float, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the actions that follow from observations and noise."""


class Stateful(Protocol):
    """Has a state that a checkpoint keeps."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state by name."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Go back to a state that ``state_dict`` returned."""


class Kept:
    """Has a state: the attributes that ``kept`` names, by these names.

    Each is a generator, something with a state of its own, or a plain value. One that
    is None is left out.
    """

    kept: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        state = {}
        for name, part in self.parts().items():
            if isinstance(part, torch.Generator):
                part = part.get_state()
            state[name] = part.state_dict() if hasattr(part, "state_dict") else part
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        # A state that lacks something is refused here, before anything has changed.
        pairs = [(name, part, state[name]) for name, part in self.parts().items()]
        for name, part, came in pairs:
            if isinstance(part, torch.Generator):
                part.set_state(came)
            elif isinstance(part, torch.optim.Optimizer):
                # An optimiser goes on writing to the tensors that it is given.
                part.load_state_dict(copy.deepcopy(came))
            elif hasattr(part, "load_state_dict"):
                part.load_state_dict(came)
            else:
                setattr(self, name, came)

    def parts(self) -> dict[str, Any]:
        """Return what is kept, by name."""
        parts = {name: getattr(self, name) for name in self.kept}
        return {name: part for name, part in parts.items() if part is not None}


class PolicyLike(Stateful, Protocol):
    """A module of PyTorch with the methods of ``Policy``: what an agent does.

    Attributes:
        recipe: Name of a function in ``MAKERS`` that builds the same policy,
            ``make_policy`` or ``make_…_policy``, and its arguments as plain values.
            With another name a run resumes, but ``load`` refuses it.
    """

    recipe: tuple[str, dict[str, Any]]

    @property
    def act(self) -> Act:
        """The way to act."""

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them."""

    def predict(self, obs: Any, mask: Any = None, greedy: bool = True) -> Any:
        """Return actions for what an environment shows, as its ``step`` takes them."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Go through what an optimiser may move."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Go through the same, each with its name among the weights."""

    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions and the entropies, ``(*B)`` each."""

    def cpu(self) -> Self:
        """Move to the CPU, where actors are."""

    def eval(self) -> Self:
        """Go to evaluation mode."""


class ActorCriticLike(PolicyLike, Protocol):
    """A policy that also judges states, as the agents of actor and critic ask for."""

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, ``(*B)``."""


class ByHandLike(Protocol):
    """What computes a policy's numbers and its gradient without autograd, for PPO."""

    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the policy returns, without gradient."""

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, without gradient."""

    def gradient(self, part: Any, config: Any) -> dict[str, float]:
        """Leave the clipped gradient of a minibatch in ``grad``; return its losses."""

    def speed_up(self, optimizer: Any) -> None:
        """Give an Adam a faster ``step`` with this gradient."""


def refuse_mask(mask: Tensor | None, who: object) -> None:
    """Raise if somebody says which actions are legal to one who cannot mind it."""
    words = (
        f'infos["action_mask"] and mask must be None for {type(who).__name__}, which '
        "cannot leave out actions; for actions from a list PPO, A2C, A3C, IMPALA, PPG, "
        "DQN, Rainbow and SAC can; WithoutMask takes masks away"
    )
    check_that(mask is None, words)


class Error(Protocol):
    """How wrong a batch of values is, sample by sample."""

    @property
    def loss(self) -> Tensor:
        """What is minimised, ``(N,)``."""

    @property
    def td_error(self) -> Tensor:
        """Targets minus values, without gradient; its size is the priority."""

    @property
    def value(self) -> Tensor:
        """The values, without gradient."""

    def backward(self, weight: Tensor) -> None:
        """Add the gradient of the weighted mean loss to that of the parameters."""


class Target(Protocol):
    """An older copy of a network, which nobody trains."""

    @property
    def network(self) -> Stateful:
        """The copy."""

    def follow(self, tau: float) -> None:
        """Move towards the newer network, by a share ``tau`` of the way."""


class Algorithm(Protocol):
    """What is learned from remembered steps; when, and how fast, is the loop's matter.

    Attributes:
        policy: What acts; the optimiser moves its parameters.
        target: The older copy that targets come from, or None.
        actor: The parameters that an ascent moves.
    """

    policy: PolicyLike
    target: Target | None
    actor: Sequence[nn.Parameter] = ()

    def error(self, batch: Any, generator: torch.Generator) -> Error:
        """Say how wrong the values of a batch are."""

    def ascent(self, obs: Tensor, generator: torch.Generator) -> Tensor | None:
        """Return what the actor loses, or None where there is no actor.

        One that acts where not everything is legal also gets ``mask``.
        """
        return None

    def explore(self, step: int) -> None:
        """Set what depends on the step, such as the probability of a random action."""
        return

    def metrics(self) -> dict[str, float]:
        """Return what one wants to know of the iteration that ends."""
        return {}


class Settings(Protocol):
    """What the loop around a learner asks of its settings, a dataclass."""

    @property
    def seed(self) -> int:
        """Decides all that is random in the run."""

    @property
    def total_steps(self) -> int:
        """Steps in the environments, all of them together."""


class Sizes:
    """What settings ask for, here of an agent that learns from each rollout.

    Attributes:
        actors: Number of actors, or None for the loop without actors.
    """

    actors: int | None = None

    @property
    def steps_per_iteration(self) -> int:
        """Steps that the learner takes at once, all environments together."""
        steps: int = self.num_envs * self.num_steps  # type: ignore[attr-defined]
        return steps

    @property
    def rows_per_update(self) -> int:
        """Rows that go through the networks in one update."""
        return self.steps_per_iteration // getattr(self, "num_minibatches", 1)


@checked
@dataclass(frozen=True)
class RunConfig(Sizes):
    """Settings that all learners of this package share.

    Attributes:
        seed: Decides all that is random in the run, once the policy has its weights.
        total_steps: Steps in the environments, all of them together.
        learning_rate: Learning rate of the optimiser at the start.
        anneal: Whether the learning rate falls to zero in a straight line.
        normalize_obs: Whether the policy sees observations with mean 0 and standard
            deviation 1. It has to be built so too.
        checkpoint_interval: Iterations between checkpoints. The environments are reset
            at each of them, so an episode that takes longer never ends.
    """

    seed: Annotated[int, Ge(0)] = 1
    total_steps: Count = 100_000
    learning_rate: Scale = 5e-4
    anneal: bool = False
    normalize_obs: bool = False
    checkpoint_interval: Count = 50

    def rate(self, step: int) -> float:
        """Return the learning rate at a step of the run."""
        left = max(0.0, 1 - step / self.total_steps) if self.anneal else 1.0
        return self.learning_rate * left


@checked
@dataclass(frozen=True)
class RecurrentConfig(RunConfig):
    """Settings of learners whose policy may remember.

    Attributes:
        recurrent: What remembers, or none for a policy that sees one observation at a
            time. The policy has to be built so, as ``train`` does.
        recurrent_size: Number of its outputs.
    """

    recurrent: Literal["gru", "lstm"] | None = None
    recurrent_size: Count = 64


Config = TypeVar("Config", bound=RunConfig)


def settings_of(
    config: type[Config], known: Mapping[str, Mapping[str, Any]]
) -> Callable[[str], Config]:
    """Return a function from the id of an environment to settings.

    Args:
        config: Their class.
        known: By the id of an environment, settings with which the agent has learned.
    """

    def settings(env: str) -> Any:
        """Return settings for an environment: its own if we know some, else defaults.

        Args:
            env: Id of the environment.
        """
        return config(**known.get(env, {}))

    settings.__module__ = config.__module__
    return settings


class Learner(Stateful, Protocol):
    """What ``fit`` asks of a learner; its state goes without the policy's weights."""

    @property
    def policy(self) -> PolicyLike:
        """The policy in training."""

    @property
    def config(self) -> Settings:
        """Its settings."""

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""

    @property
    def checkpoint_due(self) -> bool:
        """Whether a run that resumes here ends with the same bits."""

    def iterate(self) -> dict[str, float]:
        """Collect some steps, learn from them, and return metrics by name."""

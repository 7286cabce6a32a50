# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Interfaces
#
# **What do the parts of an agent ask of each other?** A policy acts, an algorithm says how wrong
# it is, a learner puts both to work. Each of them is a small object with a few methods. This page
# lists them, so that your own can take their places: whatever has these methods will do.
# (Agents that learn from fresh rollouts, such as PPO, have no algorithm apart. They are learners,
# and what they share is the `Runner` of {doc}`/chapters/policies`.)
#
# Nobody has to read this page to follow the book.

# %% tags=["export", "hide-input"]
"""Interfaces: what policies, algorithms and learners ask of each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from literate_rl.ground.signatures import check_that

__all__ = [
    "Act",
    "ActionDistribution",
    "ActorCriticLike",
    "Algorithm",
    "ByHandLike",
    "Error",
    "Learner",
    "PolicyLike",
    "Settings",
    "Stateful",
    "Target",
]

# %% [markdown]
# ## Who acts
#
# A policy is a network and an **action distribution** ({doc}`/chapters/policies`). The network
# turns observations into rows of numbers. The distribution knows what a row means. All random
# numbers come from outside, as `noise`: a whole rollout's in one draw. So the same policy acts
# alike wherever it runs, and without noise, with 0.0 in its place, it is greedy.
#
# A `mask` says which actions are legal: `(*B, N)`, true where one may be taken
# ({doc}`/chapters/masks`). It is None where the environment says nothing about that, and then it
# may be left out. An action distribution that can do without some of its actions has a method
# `legal(row, mask)`. A policy refuses a mask if its distribution has none.
#
# Who asks a policy for what?
#
# | who | asks for |
# |---|---|
# | who acts: collectors, actors, `evaluate` | `noise`, `act`, `to_env`, and `parameters`, which say where it is |
# | who learns from remembered steps | `parameters`, and what its algorithm needs: rows, critics |
# | who learns from fresh rollouts | `parameters`, `evaluate_actions`, `value` |
# | who sends a policy to actors | `cpu`, `eval`, `named_parameters` |
# | checkpoints | `state_dict`, `load_state_dict`, `recipe` |


# %% tags=["export"]
class ActionDistribution(Protocol):
    """Knows what a row of numbers says about actions."""

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, ``(T, B, *)``, on the CPU."""
        ...

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions that follow from rows and noise; 0.0 is greedy."""
        ...

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, ``(*B)`` each.

        Only agents that learn from fresh rollouts call it.
        """
        ...

    def to_env(self, action: Tensor) -> NDArray[Any]:
        """Return the actions as vector environments take them."""
        ...


class Act(Protocol):
    """A way to act: that of a policy, or a faster one that computes the same."""

    def __call__(
        self, obs: Tensor, noise: Tensor | float, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the actions that follow from observations and noise."""
        ...


class Stateful(Protocol):
    """Has a state that a checkpoint keeps."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state by name."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Go back to a state that ``state_dict`` returned."""
        ...


class PolicyLike(Stateful, Protocol):
    """A module of PyTorch with the methods of ``Policy``: what an agent does.

    Attributes:
        recipe: Name of a public function of this package that builds the same policy,
            ``make_policy`` or ``make_…_policy``, and its arguments as plain values.
            With another name a run resumes, but ``load`` refuses it.
    """

    recipe: tuple[str, dict[str, Any]]

    @property
    def act(self) -> Act:
        """The way to act."""
        ...

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        ...

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them."""
        ...

    def predict(self, obs: Any, mask: Any = None, greedy: bool = True) -> Any:
        """Return actions for what an environment shows, as its ``step`` takes them."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Go through what an optimiser may move."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Go through the same, each with its name among the weights."""
        ...

    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions and the entropies, ``(*B)`` each."""
        ...

    def cpu(self) -> Self:
        """Move to the CPU, where actors are."""
        ...

    def eval(self) -> Self:
        """Go to evaluation mode."""
        ...


class ActorCriticLike(PolicyLike, Protocol):
    """A policy that also judges states, as the agents of actor and critic ask for."""

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, ``(*B)``."""
        ...


class ByHandLike(Protocol):
    """What computes a policy's numbers and its gradient without autograd, for PPO."""

    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the policy returns, without gradient."""
        ...

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, without gradient."""
        ...

    def gradient(self, part: Any, config: Any) -> dict[str, float]:
        """Leave the clipped gradient of a minibatch in ``grad``; return its losses."""
        ...

    def speed_up(self, optimizer: Any) -> None:
        """Give an Adam a faster ``step`` with this gradient."""
        ...


def refuse_mask(mask: Tensor | None, who: object) -> None:
    """Raise if somebody says which actions are legal to one who cannot mind it."""
    words = (
        f'infos["action_mask"] and mask must be None for {type(who).__name__}, which '
        "cannot leave out actions; for actions from a list PPO, A2C, A3C, IMPALA, PPG, "
        "DQN, Rainbow and SAC can; WithoutMask takes masks away"
    )
    check_that(mask is None, words)


# %% [markdown]
# ## What learns
#
# An **algorithm** that learns from remembered steps answers two questions. How wrong are the values
# of a batch? That is its `error`. And where there is an actor: what does it lose? That is its
# `ascent`, because going down that loss it climbs the values. The loop
# ({doc}`/chapters/loop`) asks both, and knows no algorithm.


# %% tags=["export"]
class Error(Protocol):
    """How wrong a batch of values is, sample by sample."""

    @property
    def loss(self) -> Tensor:
        """What is minimised, ``(N,)``."""
        ...

    @property
    def td_error(self) -> Tensor:
        """Targets minus values, without gradient; its size is the priority."""
        ...

    @property
    def value(self) -> Tensor:
        """The values, without gradient."""
        ...

    def backward(self, weight: Tensor) -> None:
        """Add the gradient of the weighted mean loss to that of the parameters."""
        ...


class Target(Protocol):
    """An older copy of a network, which nobody trains."""

    @property
    def network(self) -> Stateful:
        """The copy."""
        ...

    def follow(self, tau: float) -> None:
        """Move towards the newer network, by a share ``tau`` of the way."""
        ...


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
        ...

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


# %% [markdown]
# ## Who runs it
#
# A **learner** is what the loop around it asks for: `fit` calls `iterate` until all steps are
# taken, and stores what a resumed run needs ({doc}`runs`). A learner in the table of
# {doc}`training` has one thing more: its environments, as `collector.envs` or
# `runner.collector.envs`, or a method `close` if actors have them. There they are closed in the end. A
# learner whose iterations are short may also have a property `log_due`: whether the last one completes
# a row of the log.


# %% tags=["export"]
class Settings(Protocol):
    """What the loop around a learner asks of its settings, a dataclass."""

    @property
    def seed(self) -> int:
        """Decides all that is random in the run."""
        ...

    @property
    def total_steps(self) -> int:
        """Steps in the environments, all of them together."""
        ...


class Learner(Stateful, Protocol):
    """What ``fit`` asks of a learner; its state goes without the policy's weights."""

    @property
    def policy(self) -> PolicyLike:
        """The policy in training."""
        ...

    @property
    def config(self) -> Settings:
        """Its settings."""
        ...

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        ...

    @property
    def checkpoint_due(self) -> bool:
        """Whether a run that resumes here ends with the same bits."""
        ...

    def iterate(self) -> dict[str, float]:
        """Collect some steps, learn from them, and return metrics by name."""
        ...


# %% [markdown]
# ## References
#
# A `Protocol` asks for methods and not for an ancestor: [PEP 544](https://peps.python.org/pep-0544/).

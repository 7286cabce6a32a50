# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Policies for any task
#
# **How does a policy come from two spaces?** The parts are those of {doc}`/chapters/policies`, and the
# `Runner` of {doc}`/chapters/data/agents` lets it act.

# %% tags=["export", "hide-input"]
"""Policies: a network, and an action distribution that knows what its output means."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.data.agents import Runner as Runner
from literate_rl.data.episodes import as_argument, as_masks
from literate_rl.ground.nests import (
    action_box,
    as_space,
    as_vectors,
    first_row,
    remembered,
)
from literate_rl.ground.networks import eval_mode, orthogonal
from literate_rl.ground.protocols import ActionDistribution, PolicyLike, refuse_mask
from literate_rl.ground.signatures import Count, check_that, checked
from literate_rl.nets.choices import ChoiceActions, is_choices
from literate_rl.nets.encoders import (
    OwnEncoder,
    ShapedEncoder,
    check_normalize,
    entrances,
    has_pictures,
)
from literate_rl.nets.parts import (
    ActorCritic as ActorCritic,
    CategoricalActions as CategoricalActions,
    GaussianActions as GaussianActions,
    RewardScaler as RewardScaler,
    RunningMoments as RunningMoments,
    WithDeviations,
    mlp as mlp,
    normalizer_of as normalizer_of,
)
from literate_rl.nets.pictures import Convolutions, PictureEncoder

__all__ = ["Policy", "make_actions", "make_policy"]


# %% tags=["export"]
class Policy(nn.Module):
    """What an agent does: a network and an action distribution.

    Args:
        network: Module from observations to rows, with a method ``value``.
        actions: The action distribution, which knows what a row means.

    Attributes:
        recipe: Name of a public function that builds the same policy, and its
            arguments as plain values, for checkpoints.
        reads_bytes: Whether the network takes bytes as they are. If not, loops make
            floats of all observations.
        observation_space: What the environment shows, for ``predict``; rows come flat.
        action_space: What it takes.
        masked: Whether somebody has said before which actions are legal.
    """

    network: Any  # of a class of its own
    actions: Any
    recipe: tuple[str, dict[str, Any]] = ("", {})
    reads_bytes: bool = False
    observation_space: spaces.Space[Any] | None = None
    action_space: spaces.Space[Any] | None = None
    masked: bool = False

    def __init__(self, network: nn.Module, actions: ActionDistribution) -> None:
        super().__init__()
        self.network, self.actions = network, actions

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows that describe the policy at observations."""
        return self.network(obs)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations."""
        return self.network.value(obs)

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        # All random numbers of a rollout are drawn at once, in one call.
        return self.actions.noise(num_steps, num_envs, generator)

    def legal(self, row: Tensor, mask: Tensor | None) -> Tensor:
        """Return rows that leave out what is illegal; with None, rows as they are."""
        if mask is None:
            return row
        if not hasattr(self.actions, "legal"):
            refuse_mask(mask, self.actions)
        self.masked = True
        return self.actions.legal(row, mask)

    def act(
        self, obs: Tensor, noise: Tensor | float, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the actions that follow from observations and noise; 0.0 is greedy."""
        return self.actions.choose(self.legal(self(obs), mask), noise)

    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions and the entropies."""
        row = self.legal(self(obs), mask)
        return self.actions.evaluate(row, action)

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them."""
        return self.actions.to_env(action)

    def predict(self, obs: Any, mask: Any = None, greedy: bool = True) -> Any:
        """Return actions in the environment's own form, as ``env.step`` takes them.

        Args:
            obs: One observation or a batch of them, as the environment or the vector
                environment shows it. Where only its flat form is known, a flat row.
            mask: Which actions are legal there, as in ``infos["action_mask"]``. None is
                all, and a policy that has learned with masks warns once.
            greedy: Whether to take the best action and draw none. What is drawn comes
                from PyTorch's global generator, so ``torch.manual_seed`` repeats it.
                Policies that draw only to explore do so with what the training has
                left them, and are greedy after ``load``.

        Returns:
            One action for one observation, a batch for a batch.

        Raises:
            ValueError: If observations or masks do not fit.
        """
        return predicted(self, obs, mask, greedy)


# %% [markdown]
# A loop of your own needs neither rows nor noise: `predict` takes what the environment shows and returns what
# it takes.


# %% tags=["export", "hide-input"]
@torch.no_grad()
def predicted(policy: PolicyLike, obs: Any, mask: Any, greedy: bool) -> Any:
    """Return what ``Policy.predict`` returns, for a policy of any class."""
    from literate_rl.data.held import as_rows  # no learner needs it

    seen: Any = getattr(policy, "observation_space", None)
    done: Any = getattr(policy, "action_space", None)
    known = seen is not None and done is not None
    words = "predict needs observation_space and action_space of the policy"
    check_that(known, f"{words}, which make_policy and train set")
    rows, alone = as_rows(seen, obs)
    if mask is None:
        # Once, if the policy has been told before which actions are legal.
        if getattr(policy, "masked", False) and "has_asked" not in vars(policy):
            vars(policy)["has_asked"] = True
            words = "this policy has learned with masks of legal actions and got none"
            warnings.warn(f'{words}: pass mask=infos["action_mask"]', stacklevel=4)
    else:
        mask = as_masks([mask] if alone else mask, "mask")
        words = f"mask must have {len(rows)} rows, as many as obs, got {len(mask)}"
        check_that(len(mask) == len(rows), words)
        # In a batch an episode may be over, and then nothing is legal any more.
        mask[~mask.any(-1) & (not alone)] = True
    device = next(policy.parameters(), torch.empty(0)).device
    if rows.dtype.itemsize > 1 or not getattr(policy, "reads_bytes", False):
        rows = rows.astype(np.float32)
    noise: Tensor | float = 0.0
    if not greedy:
        noise = policy.noise(1, len(rows), torch.default_generator)[0].to(device)
    with eval_mode(policy):
        state = torch.from_numpy(rows).to(device)
        action = policy.act(state, noise, **as_argument(mask)).cpu()
    actions = policy.to_env(action)
    return first_row(done, actions) if alone else actions


# %% [markdown]
# ## From two spaces


# %% tags=["export", "hide-input"]
def make_actions(
    action_space: spaces.Space[Any],
) -> CategoricalActions | ChoiceActions | GaussianActions:
    """Return the action distribution that fits a space.

    Args:
        action_space: A Discrete space, several choices as in ``ChoiceActions``, or a
            box of vectors.

    Raises:
        SpaceError: If it is another space.
    """
    if isinstance(action_space, spaces.Discrete):
        return CategoricalActions(int(action_space.n), int(action_space.start))
    if is_choices(action_space):
        return ChoiceActions(action_space)
    box = action_box(action_space, "Discrete, MultiDiscrete, MultiBinary")
    return GaussianActions(box.low, box.high, box.dtype)


def behind(
    front: list[nn.Module], size: int, hidden: int, outputs: int, gain: float
) -> nn.Sequential:
    """Build what comes after an ``entrance``; ``gain`` as in ``mlp``."""
    # The features of a picture come from hidden layers already, and yours as you like.
    if front and isinstance(front[0], PictureEncoder | ShapedEncoder):
        return nn.Sequential(*front, orthogonal(nn.Linear(size, outputs), gain))
    return nn.Sequential(*front, *mlp(size, hidden, outputs, gain))


def normalizing(
    normalize: bool, space: spaces.Space[Any], encoder: OwnEncoder | None = None
) -> list[nn.Module]:
    """Return the first layer of networks that normalise what they see, or no layer."""
    check_normalize(normalize, encoder is not None or has_pictures(space), space)
    return [RunningMoments(*as_vectors(space).shape)] if normalize else []


@checked
@remembered
def make_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: Count = 64,
    normalize: bool = False,
    *,
    share_encoder: bool = False,
    convolutions: Convolutions | None = None,
    encoder: OwnEncoder | None = None,
) -> Policy:
    """Build the policy that fits the spaces of one environment.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: One that ``make_actions`` takes, likewise.
        hidden: Width of the hidden layers. Behind the encoder of a picture, or one of
            your own, there are none.
        normalize: Whether the policy normalises its observations; vectors only.
        share_encoder: Whether actor and critic share an encoder, which both of their
            losses move.
        convolutions: Those of each picture, as in ``make_encoder``.
        encoder: An encoder of your own, as in ``ShapedEncoder``.

    Raises:
        ValueError: If the spaces do not fit, or an argument does not fit them.
    """
    seen, actions = as_space(observation_space), make_actions(as_space(action_space))
    first = normalizing(normalize, seen, encoder)
    fronts = entrances(seen, share_encoder, convolutions, encoder)
    front, size = next(fronts)
    # The network has an output for each number of the noise.
    outputs = actions.noise(0, 1, torch.Generator()).shape[-1]
    actor: nn.Module = behind(front, size, hidden, outputs, gain=0.01)
    if isinstance(actions, GaussianActions):
        actor = WithDeviations(actor, outputs)
    front, _ = next(fronts)
    critic = behind(front, size, hidden, 1, gain=1.0)
    policy = Policy(ActorCritic(actor, critic, *first), actions)
    policy.reads_bytes = bool(front)
    return policy


# %% [markdown]
# ## References
#
# Those of {doc}`/chapters/policies`.

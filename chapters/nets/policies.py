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
# **How does a policy come from two spaces, and who lets it act?** The parts are those of
# {doc}`/chapters/policies`.

# %% tags=["export", "hide-input"]
"""Policies: a network, and an action distribution that knows what its output means."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.data.agents import Collector, Rollout
from literate_rl.data.episodes import (
    as_argument,
    as_masks,
    as_rows,
    env_seed,
    warn_cut_off,
)
from literate_rl.ground.nests import (
    action_box,
    as_space,
    as_vectors,
    first_row,
    remembered,
)
from literate_rl.ground.networks import eval_mode, orthogonal
from literate_rl.ground.protocols import (
    Act,
    ActionDistribution,
    Envs,
    Kept,
    PolicyLike,
    refuse_mask,
)
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.fast import reverse_scan
from literate_rl.nets.choices import ChoiceActions, is_choices
from literate_rl.nets.encoders import (
    OwnEncoder,
    ShapedEncoder,
    check_normalize,
    check_shared,
    entrance,
    has_pictures,
)
from literate_rl.nets.parts import (
    ActorCritic as ActorCritic,
    CategoricalActions as CategoricalActions,
    GaussianActions as GaussianActions,
    RunningMoments as RunningMoments,
    WithDeviations,
    mlp as mlp,
)
from literate_rl.nets.pictures import Convolutions, PictureEncoder

__all__ = ["Policy", "RewardScaler", "Runner", "Sampler", "make_actions", "make_policy"]


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
    seen: Any = getattr(policy, "observation_space", None)
    done: Any = getattr(policy, "action_space", None)
    known = seen is not None and done is not None
    words = "predict needs observation_space and action_space of the policy"
    check_that(known, f"{words}, which make_policy and train set")
    rows, alone = as_rows(seen, obs)
    if mask is None:
        ask_for_mask(policy)
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


def ask_for_mask(policy: PolicyLike) -> None:
    """Warn once if a policy has been told before which actions are legal."""
    if getattr(policy, "masked", False) and "has_asked" not in vars(policy):
        vars(policy)["has_asked"] = True
        words = "this policy has learned with masks of legal actions and got none"
        warnings.warn(f'{words}: pass mask=infos["action_mask"]', stacklevel=5)


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
    front, size = entrance(seen, convolutions, encoder)
    first = normalizing(normalize, seen, encoder)
    check_shared(share_encoder, front, seen)
    # The network has an output for each number of the noise.
    outputs = actions.noise(0, 1, torch.Generator()).shape[-1]
    actor: nn.Module = behind(front, size, hidden, outputs, gain=0.01)
    if isinstance(actions, GaussianActions):
        actor = WithDeviations(actor, outputs)
    if not share_encoder:
        front, _ = entrance(seen, convolutions, encoder)
    critic = behind(front, size, hidden, 1, gain=1.0)
    policy = Policy(ActorCritic(actor, critic, *first), actions)
    policy.reads_bytes = bool(front)
    return policy


# %% [markdown]
# ## A rollout at a time
#
# A `Runner` draws all noise of a rollout at once, from one generator, so that a run can be repeated. And it
# takes fresh environments at each checkpoint, because a run that is resumed there has no others. So no
# episode can last longer than `num_steps * checkpoint_interval` steps: raise the interval if yours do.


# %% tags=["export"]
def kept_dtype(policy: PolicyLike, envs: Envs) -> Any:
    """Return NumPy's type in which a policy's rollouts keep observations."""
    own = envs.single_observation_space.dtype
    small = own is not None and own.itemsize == 1
    return own if small and getattr(policy, "reads_bytes", False) else np.float32


class Sampler(Kept):
    """Steps environments so that a resumed run goes on with the same bits.

    Args:
        policy: The policy that acts, on any device.
        envs: A vector environment.
        seed: Seed of the noise and of the environments.
        checkpoint_interval: Iterations between checkpoints, at which the environments
            are reset.
        act: A faster form of ``policy.act``, or None for that one.
        dtype: As for ``Collector``.
    """

    kept: tuple[str, ...] = ("generator", "step", "iteration")

    def __init__(
        self,
        policy: PolicyLike,
        envs: Envs,
        seed: int,
        checkpoint_interval: int,
        act: Act | None = None,
        dtype: Any = None,
    ) -> None:
        self.policy, self.act = policy, act or policy.act
        self.device = next(policy.parameters()).device
        self.seed, self.checkpoint_interval = seed, checkpoint_interval
        self.collector = Collector(envs, policy.to_env, dtype)
        self.generator = torch.Generator().manual_seed(seed)
        self.iteration, self.warned = 0, False

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    @step.setter
    def step(self, step: int) -> None:
        # Who goes back to a step starts from there with fresh environments.
        self.collector.step, self.collector.obs = step, None

    @property
    def checkpoint_due(self) -> bool:
        """Whether a run that resumes here ends with the same bits."""
        return self.iteration % self.checkpoint_interval == 0

    @property
    def starts_anew(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.collector.obs is None or self.checkpoint_due

    def start(self) -> None:
        """Reset the environments where a resumed run would do so."""
        if self.starts_anew:
            self.warned = self.warned or warn_cut_off(self.collector)
            self.collector.reset(env_seed(self.seed, self.step))


class Runner(Sampler):
    """Lets a policy act for a rollout at a time.

    Args:
        policy: The policy that acts, on any device.
        envs: A vector environment.
        num_steps: Steps of one rollout in each environment.
        seed: Seed of the noise and of the environments.
        checkpoint_interval: Rollouts between checkpoints. The environments are reset
            at each of them, so an episode of more than ``num_steps *
            checkpoint_interval`` steps never ends.
        act: A faster form of ``policy.act``, or None for that one.

    Attributes:
        actor: Who acts, the policy unless a learner says otherwise.
        scaler: Its running returns begin anew with fresh environments; or None.
    """

    scaler: RewardScaler | None = None

    def __init__(
        self,
        policy: PolicyLike,
        envs: Envs,
        num_steps: int,
        seed: int,
        checkpoint_interval: int,
        act: Act | None = None,
    ) -> None:
        dtype = kept_dtype(policy, envs)
        super().__init__(policy, envs, seed, checkpoint_interval, act, dtype)
        # With one step a rollout might hold a reset and nothing else.
        fits = num_steps > 1 or not self.collector.resets_later
        check_that(fits, "num_steps must be above 1 with autoreset mode NEXT_STEP")
        self.num_steps, self.actor = num_steps, policy

    def noise(self) -> Tensor:
        """Draw the noise of a rollout."""
        num_envs = self.collector.envs.num_envs
        return self.actor.noise(self.num_steps, num_envs, self.generator)

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        # Fresh environments have no episodes under way whose rewards add up.
        if self.scaler is not None and self.starts_anew:
            self.scaler.carry.zero_()
        self.start()
        # Each step takes its share of the noise.
        draws = iter(self.noise().to(self.device))
        self.iteration += 1
        with eval_mode(self.actor):
            batch = self.collector.collect(
                lambda obs, **mask: self.act(obs.to(self.device), next(draws), **mask),
                self.num_steps,
            )
        return batch.to(self.device)


# %% [markdown]
# ## Normalisation
#
# One `RunningMoments` is the first layer of all networks of a policy, and it is saved with the weights.
# On-policy agents let it take in a step after learning from it, because earlier it would move the policy
# that acted; those with a memory before.


# %% tags=["export"]
def normalizer_of(policy: PolicyLike, wanted: bool) -> RunningMoments | None:
    """Return what normalises a policy's observations, or None.

    Raises:
        ValueError: If the policy does not do what is wanted.
    """
    # What happens within a model of one's own is its own matter.
    own = "models" in getattr(policy, "recipe", ("", {}))[1]
    parts = policy.modules() if isinstance(policy, nn.Module) and not own else ()
    found = next((x for x in parts if isinstance(x, RunningMoments)), None)
    words = f"policy must normalise as normalize_obs says: {wanted}"
    check_that(wanted == (found is not None), words)
    return found


def take_in(normalizer: RunningMoments | None, obs: Tensor, real: Tensor) -> None:
    """Let a normaliser, if there is one, take in the observations of real steps."""
    if normalizer is None or not real.any():
        return
    # Pictures may come flat.
    seen = obs[real].reshape(-1, *normalizer.mean.shape)
    normalizer.update(seen.to(normalizer.mean.device, torch.float32))


# %% tags=["export"]
class RewardScaler(nn.Module):
    """Divides rewards by the standard deviation of the discounted return.

    The mean is not subtracted: that would pay for a longer or a shorter life.

    Args:
        num_envs: Number of environments B.
        gamma: Discount.
    """

    carry: Tensor

    def __init__(self, num_envs: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments()
        self.register_buffer("carry", torch.zeros(num_envs))

    @checked
    def forward(
        self,
        reward: Float[Tensor, "T B"],
        done: Bool[Tensor, "T B"],
        real: Bool[Tensor, "T B"],
    ) -> Float[Tensor, "T B"]:
        """Take in the rewards of a rollout's real steps; return all of them scaled."""
        # The sum {eq}`reward-scale` runs forward in time. Turned around it is the scan
        # of {doc}`/chapters/advantages`.
        wanted, given = len(self.carry), reward.shape[1]
        check_that(given == wanted, f"reward must have B = {wanted}, got {given}")
        increment = reward.clone()
        increment[0] += self.carry
        factor = torch.full_like(reward, self.gamma)
        factor[1:].masked_fill_(done[:-1], 0.0)
        so_far = reverse_scan(increment.flip(0), factor.flip(0)).flip(0)
        check_finite(so_far, reward=reward)

        # What goes on in the next rollout, and what the scale is measured from.
        self.carry.copy_(self.gamma * so_far[-1].masked_fill(done[-1], 0.0))
        if real.any():
            self.moments.update(so_far[real])
        return reward / (self.moments.var + 1e-8).sqrt().to(reward.dtype)

    def scaled(self, batch: Rollout) -> Rollout:
        """Return a rollout with scaled rewards."""
        done = batch.terminated | batch.truncated
        return batch._replace(reward=self(batch.reward, done, batch.real))


# %% [markdown]
# ## References
#
# Those of {doc}`/chapters/policies`.

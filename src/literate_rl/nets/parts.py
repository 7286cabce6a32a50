# Generated from chapters/policies.py (edit there); digest a649decd525094bc
"""Parts of a policy: action distributions, actor and critic, running moments."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor, nn

from literate_rl.ground.nests import open_ended
from literate_rl.ground.networks import (
    UNIT_ENTROPY,
    chosen,
    expected,
    mean_surprise,
    normal_log_prob,
    orthogonal,
    race_noise,
)
from literate_rl.data.agents import Rollout
from literate_rl.ground.protocols import PolicyLike
from literate_rl.ground.signatures import (
    Bool,
    Float,
    Int,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.scan import reverse_scan
from literate_rl.nets.masking import legal

__all__ = [
    "ActorCritic",
    "CategoricalActions",
    "GaussianActions",
    "RewardScaler",
    "RunningMoments",
]


class CategoricalActions:
    """One of N actions; a row holds their logits.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        return race_noise(generator, num_steps, num_envs, self.num_actions)

    def legal(self, row: Tensor, mask: Tensor) -> Tensor:
        """Return rows that leave out what is illegal."""
        return legal(row, mask)

    @checked
    def choose(
        self, row: Float[Tensor, "*B N"], noise: Float[Tensor, "*B N"] | float
    ) -> Int[Tensor, "*B"]:
        """Return the actions that follow from logits and noise."""
        # The winner of the race, {eq}`act-discrete`.
        return (row + noise).argmax(-1)

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B N"], action: Int[Tensor, "*B"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies, in nats."""
        log_prob = row.log_softmax(-1)
        return chosen(log_prob, action), mean_surprise(log_prob)

    @checked
    def kl(
        self, row: Float[Tensor, "*B N"], other: Float[Tensor, "*B N"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        log_prob = row.log_softmax(-1)
        difference = log_prob - other.log_softmax(-1)
        return expected(log_prob.exp(), difference).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        return action.numpy() + self.start


class GaussianActions:
    """Numbers in a box; a row holds their means and logarithms of standard deviations.

    Args:
        low: Lower bounds of the box, or minus infinity.
        high: Upper bounds, or infinity.
        dtype: Dtype of the environment's actions.
    """

    def __init__(
        self, low: ArrayLike, high: ArrayLike, dtype: DTypeLike = "float32"
    ) -> None:
        self.low = np.atleast_1d(np.asarray(low, dtype))
        self.high = np.atleast_1d(np.asarray(high, dtype))
        # What -1 and 1 mean. Where there is no bound, nothing is stretched.
        first, last = open_ended(self.low), open_ended(self.high)
        bounded = np.isfinite(first) & np.isfinite(last)
        first, last = np.where(bounded, [first, last], [[-1.0], [1.0]])
        self.middle, self.half_width = (last + first) / 2, (last - first) / 2

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        return torch.randn(num_steps, num_envs, self.low.size, generator=generator)

    @checked
    def choose(
        self, row: Float[Tensor, "*B 2*A"], noise: Float[Tensor, "*B A"] | float
    ) -> Float[Tensor, "*B A"]:
        """Return the actions that follow from rows and noise."""
        # Mean plus standard deviation times noise, {eq}`act-gaussian`.
        mu, log_sigma = row.chunk(2, -1)
        return mu + log_sigma.exp() * noise

    @checked
    def log_prob(
        self, row: Float[Tensor, "*B 2*A"], action: Float[Tensor, "*B A"]
    ) -> Float[Tensor, "*B"]:
        """Return the log-densities of actions."""
        # The density of the whole action is a product, so its logarithm is a sum.
        return normal_log_prob(action, *row.chunk(2, -1)).sum(-1)

    @checked
    def entropy(self, row: Float[Tensor, "*B 2*A"]) -> Float[Tensor, "*B"]:
        """Return the entropies of the policy, in nats; they may be negative."""
        _, log_sigma = row.chunk(2, -1)
        return (log_sigma + UNIT_ENTROPY).sum(-1)

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B 2*A"], action: Float[Tensor, "*B A"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-densities and entropies."""
        return self.log_prob(row, action), self.entropy(row)

    @checked
    def kl(
        self, row: Float[Tensor, "*B 2*A"], other: Float[Tensor, "*B 2*A"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        mu, log_sigma = row.chunk(2, -1)
        other_mu, other_log_sigma = other.chunk(2, -1)
        # The means have moved by so many standard deviations, and these have changed.
        shift = (mu - other_mu) * (-other_log_sigma).exp()
        change = log_sigma - other_log_sigma
        square = (2 * change).exp() + shift.square()
        return (0.5 * (square - 1) - change).sum(-1)

    def to_env(self, action: Tensor) -> NDArray[np.floating]:
        """Stretch actions from -1..1 to the box, and clip what lies outside."""
        stretched = self.middle + self.half_width * action.numpy()
        return stretched.clip(self.low, self.high).astype(self.low.dtype)


def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Build two hidden layers with tanh; ``gain`` scales the last layer's weights."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    last = nn.Linear(hidden, outputs)
    hidden_layers = orthogonal(first), nn.Tanh(), orthogonal(second), nn.Tanh()
    return nn.Sequential(*hidden_layers, orthogonal(last, gain))


class ActorCritic(nn.Module):
    """Two networks side by side: ``actor`` for the rows, ``critic`` for the values.

    The critic's values have a last dimension of 1. Both networks see the observations
    through ``normalizer``.
    """

    def __init__(
        self, actor: nn.Module, critic: nn.Module, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.normalizer = normalizer or nn.Identity()
        self.actor, self.critic = actor, critic

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows of observations."""
        return self.actor(self.normalizer(obs))

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations."""
        return self.critic(self.normalizer(obs)).squeeze(-1)


class WithDeviations(nn.Module):
    """A network for A means, and a standard deviation for each, in every state."""

    def __init__(self, mean: nn.Module, size: int) -> None:
        super().__init__()
        self.mean = mean
        self.log_sigma = nn.Parameter(torch.zeros(size))

    def forward(self, obs: Tensor) -> Tensor:
        """Return means and logarithms of the standard deviations, side by side."""
        mu = self.mean(obs)
        return torch.cat([mu, self.log_sigma.expand_as(mu)], -1)


class RunningMoments(nn.Module):
    """Mean and variance of everything that has been seen so far.

    Args:
        shape: Shape of one item.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    @checked
    def update(self, items: Float[Tensor, "n ..."]) -> None:
        """Take in items."""
        self.check_shape(items)
        items = items.reshape(-1, *self.mean.shape).double()
        # Two groups are put together by {eq}`pooled-moments`.
        count, mean, var = len(items), items.mean(0), items.var(0, unbiased=False)
        check_finite(mean + var, items=items)
        total = self.count + count
        between = (mean - self.mean).square() * self.count * count / total
        self.var.copy_((self.var * self.count + var * count + between) / total)
        self.mean.add_((mean - self.mean) * count / total)
        self.count.copy_(total)

    def forward(self, items: Tensor) -> Tensor:
        """Return items with mean 0 and standard deviation 1, clipped to -10..10."""
        self.check_shape(items)
        scale = (self.var + 1e-8).rsqrt()
        # Bytes and other integers become floats.
        dtype = items.dtype if items.is_floating_point() else torch.float32
        return ((items - self.mean) * scale).to(dtype).clamp(-10.0, 10.0)

    def check_shape(self, items: Tensor) -> None:
        """Raise unless items have the shape of the moments."""
        wanted, given = self.mean.shape, items.shape
        fits = given[len(given) - len(wanted) :] == wanted
        check_that(fits, f"items must end in {tuple(wanted)}, got {tuple(given)}")


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

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A policy for hybrid actions
#
# **How does the distribution over hybrid actions become a policy that a learner can train?** This
# page writes the trees of {doc}`/chapters/hybrid_action` as vectors and puts network and
# distribution together into the policy that {doc}`/chapters/hybrid_ppo` trains. You can follow
# the book without it.

# %% tags=["export", "hide-input"]
"""A hybrid policy: vectors instead of trees, and the way into an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.data.hybrid_space import fill_space, read_hybrid_space
from literate_rl.ground.nests import as_space, first_row, name_of_model, plain_space
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.fast import hybrid_terms
from literate_rl.nets.encoders import OwnEncoder, check_shared, entrance
from literate_rl.nets.hybrid_action import (
    HybridAction,
    HybridDistribution,
    HybridLogit,
    HybridPolicyNetwork,
    HybridSizes,
)
from literate_rl.nets.masks import legal
from literate_rl.nets.policies import ActorCritic, Policy, behind, normalizing

# Importing the worlds registers the environments with hybrid actions.
from literate_rl.data.worlds import HybridLander, Moving  # noqa: F401

__all__ = ["HybridActions", "make_hybrid_policy"]

# %% [markdown]
# ## Trees as vectors
#
# The learner of {doc}`/chapters/ppo` stores actions, shuffles them and cuts them into minibatches.
# So it wants one tensor for all actions, and one for all outputs of the network, with a vector for
# each step. With $K$ types and $A$ arguments the network returns $K + 2A$ numbers; the noise has
# $K + A$ and an action $1 + A$:

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "Trees as vectors",
    "Three vectors, drawn as cells. What the network returns: three logits, two means, two "
    "standard deviations. The noise: one number for each type and one for each argument. "
    "The action: the type and two arguments.",
)
for height, words, cells, tone in (
    (
        40,
        "what the network returns",
        "z₀ z₁ z₂ μ₁ μ₂ σ₁ σ₂",
        {3: "second", 4: "second", 5: "accent", 6: "accent"},
    ),
    (125, "the noise", "η₀ η₁ η₂ η₃ η₄", {3: "accent", 4: "accent"}),
    (210, "the action", "k u₁ u₂", {1: "accent", 2: "accent"}),
):
    picture.text(24, height - 20, words, "quiet", anchor="start")
    picture.cells(24, height, cells.split(), tone, width=44)
picture

# %% [markdown]
# On the way into the environment an argument is moved from $[-1, 1]$ to its box and clipped, as
# {doc}`/chapters/hybrid_ppo` explains. The mask and the bounds come from the space
# ({doc}`/chapters/workshop/hybrid_space`).


# %% tags=["export"]
@checked
def rescale(
    low: Float[np.ndarray, "A"],
    high: Float[np.ndarray, "A"],
    action_args: Float[np.ndarray, "B A"],
) -> Float[np.ndarray, "B A"]:
    """Move arguments from [-1, 1] to what the environment takes."""
    # Half a box to each side of its centre {eq}`hybrid-rescale`. A box without bounds
    # is taken for one from -1 to 1, which moves nothing.
    bounded = np.isfinite(low) & np.isfinite(high)
    left, right = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    args = (left + right) / 2 + (right - left) / 2 * action_args
    inside: NDArray[np.float64] = np.clip(args, low, high)
    return inside


# %% [markdown]
# ## The action distribution
#
# An action is a function of the noise, as in {doc}`/chapters/policies`. The types race, and the
# arguments are $\mu_j + \sigma_j \eta_j$ with standard normal noise $\eta_j$. Without noise we get
# the greedy action. In the vector of an action the type is a floating-point number, which does no
# harm: all integers up to 16 million are exact there.


# %% tags=["export"]
@dataclass(frozen=True, eq=False)
class HybridActions:
    """What a hybrid action space is to a policy: an action distribution with a mask.

    Attributes:
        space: Space of one action.
        mask: Which type (row) uses which argument (column), (K, A) bool.
        low: Lower bounds of the arguments in the environment, (A,).
        high: Upper bounds, (A,).
    """

    space: spaces.Space[Any]
    mask: Bool[Tensor, "K A"]
    low: Float[np.ndarray, "A"]
    high: Float[np.ndarray, "A"]

    @classmethod
    @checked
    def from_space(
        cls, space: spaces.Space[Any], mask: ArrayLike | Tensor | None = None
    ) -> HybridActions:
        """Read a Gymnasium space.

        Args:
            space: A nest of Tuple and Dict spaces with exactly one Discrete and with
                Boxes of floating-point numbers. The order of the arguments is the order
                of the boxes, each flattened.
            mask: Which type (row) uses which argument (column), zeros and ones. May be
                left out for ``Tuple(Discrete(K), Tuple(K boxes))``, whose k-th box
                holds the arguments of type k, none if it is empty.
        """
        return cls(space, *read_hybrid_space(space, mask))

    @property
    def action_shape(self) -> HybridSizes:
        """The sizes, as ``HybridPolicyNetwork`` takes them."""
        num_types, num_args = self.mask.shape
        return {"action_type_shape": num_types, "action_args_shape": num_args}

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, (T, B, K + A), on the CPU."""
        # The race of {doc}`/chapters/policies`: $-\log \tau_k$ is added to the logit,
        # and the largest sum wins. The arguments get standard normal noise.
        num_types, num_args = self.mask.shape
        types = torch.empty(num_steps, num_envs, num_types)
        types.exponential_(generator=generator).log_().neg_()
        args = torch.randn(num_steps, num_envs, num_args, generator=generator)
        return torch.cat([types, args], -1)

    def legal(self, row: Tensor, mask: Tensor) -> Tensor:
        """Return rows that leave out illegal types; the mask is ``(*, K)``."""
        # The arguments of an illegal type count nowhere ({doc}`/chapters/masks`).
        types, args = row.tensor_split([len(self.mask)], -1)
        return torch.cat([legal(types, mask), args], -1)

    def choose(self, row: Tensor, noise: Tensor | float) -> Tensor:
        """Return the actions (B, 1 + A) that a noise makes of rows (B, K + 2 A)."""
        # The noise is added to the logits as it is, and to the means times $\sigma$.
        num_types, num_args = self.mask.shape
        centre, sigma = row.split([num_types + num_args, num_args], -1)
        scale = nn.functional.pad(sigma, (num_types, 0), value=1.0)
        moved = centre + scale * noise
        scores, args = moved.split([num_types, num_args], -1)
        action_type = scores.argmax(-1, keepdim=True)
        return torch.cat([action_type.to(args.dtype), args], -1)

    def log_prob(self, row: Tensor, action: Tensor) -> Tensor:
        """Return the log-densities ``(*)`` of actions ``(*, 1 + A)``."""
        log_prob = self.distribution(row).log_prob(self.action_of(action))
        return log_prob.view(row.shape[:-1])

    def entropy(self, row: Tensor) -> Tensor:
        """Return the entropies ``(*)`` of rows, in nats."""
        return self.distribution(row).entropy().view(row.shape[:-1])

    def evaluate(self, row: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities and entropies, each ``(*)``, in one pass."""
        # The learner's busiest place: a kernel gives both numbers in fewer calls.
        logit, taken = self.logit_of(row.flatten(0, -2)), self.action_of(action)
        mu, sigma = logit["action_args"]["mu"], logit["action_args"]["sigma"]
        log_prob, entropy = hybrid_terms(
            logit["action_type"],
            mu,
            sigma,
            self.mask.to(mu.device),
            taken["action_type"],
            taken["action_args"],
        )
        return log_prob.view(row.shape[:-1]), entropy.view(row.shape[:-1])

    def kl(self, row: Tensor, other: Tensor) -> Tensor:
        """Return the divergences ``(*)`` from rows to others, in nats."""
        divergence = self.distribution(row).kl(self.distribution(other))
        return divergence.view(row.shape[:-1])

    def distribution(self, row: Tensor) -> HybridDistribution:
        """Return what rows ``(*, K + 2 A)`` describe, all states in one batch."""
        return HybridDistribution(self.logit_of(row.flatten(0, -2)), self.mask)

    def logit_of(self, row: Tensor) -> HybridLogit:
        """Take rows (B, K + 2 A) apart into trees as the network returns them."""
        num_types, num_args = self.mask.shape
        action_type, mu, sigma = row.split([num_types, num_args, num_args], -1)
        return {"action_type": action_type, "action_args": {"mu": mu, "sigma": sigma}}

    def action_of(self, action: Tensor) -> HybridAction:
        """Take actions ``(*, 1 + A)`` apart into a tree of types and arguments."""
        flat = action.flatten(0, -2)
        return {"action_type": flat[:, 0].long(), "action_args": flat[:, 1:]}

    @checked
    def to_env(self, action: HybridAction | Float[Tensor, "B C"]) -> Any:
        """Turn actions into the nest of arrays that ``envs.step`` takes.

        ``action`` is a tree in which [-1, 1] is the whole range of an argument, or rows
        of the type and its arguments.
        """
        tree = self.action_of(action) if isinstance(action, Tensor) else action
        action_args = tree["action_args"].detach().cpu()
        check_finite(action_args, **{"action.action_args": action_args})
        args = rescale(self.low, self.high, action_args.numpy())
        return fill_space(self.space, tree["action_type"].cpu().numpy(), iter(args.T))

    def to_single_env(self, action: HybridAction | Tensor) -> Any:
        """Turn a batch of one action into what one environment's ``step`` takes."""
        nest = self.to_env(action)
        batch = len(action if isinstance(action, Tensor) else action["action_type"])
        check_that(batch == 1, f"action must hold one action, got a batch of {batch}")
        return first_row(self.space, nest)


# %% [markdown]
# A space that implies its mask, three actions on their way into the environment, and a space that
# does not:

# %%
box = spaces.Box(0.0, 10.0, (1,))
empty = spaces.Box(0.0, 1.0, (0,))
space = spaces.Tuple((spaces.Discrete(3), spaces.Tuple((box, box, empty))))
actions = HybridActions.from_space(space)
print("mask          ", actions.mask.int().tolist())
action = {
    "action_type": torch.tensor([0, 1, 2]),
    "action_args": torch.tensor([[0.5, 0.0], [0.0, -3.0], [9.0, 9.0]]),
}
print("for the vector environment:\n", actions.to_env(action))
print(
    "for a single environment:\n", actions.to_single_env(torch.tensor([[1, 0.0, -3]]))
)
said = ""
try:
    HybridActions.from_space(spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,)))))
except ValueError as error:
    said = str(error)
print("ValueError:", said)

# %% [markdown]
# **Notice** that an argument of 0 lands in the middle of its box, and that $-3$ is clipped to its
# bound. The environment gets the boxes of all types; it reads the one of the type.

# %% tags=["claims"]
assert actions.mask.int().tolist() == [[1, 0], [0, 1], [0, 0]], "implied"
_, (first, second, third) = actions.to_env(action)
assert first[:, 0].tolist() == [7.5, 5, 10], "0 lands in the middle"
assert second[:, 0].tolist() == [5, 0, 10], "clipped"
assert third.shape == (3, 0), "the boxes of all types"
assert "mask must be given" in said, "a space that does not imply one"

# %% [markdown]
# ## The policy
#
# Two things are still missing: a network that returns its tree as a vector, and a function that
# puts network and action distribution together. Where an agent sees images, that function puts an
# encoder ({doc}`/chapters/encoders`) in front of the network, and another one in front of the
# critic.


# %% tags=["export"]
class HybridRows(nn.Module):
    """A hybrid network whose tree is written as one row.

    Args:
        network: The network.
    """

    def __init__(self, network: HybridPolicyNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor) -> Tensor:
        """Return logits, means and deviations, ``(*, K + 2 A)``, at ``(*, D)``."""
        # The network takes one dimension of states; a rollout comes with two.
        row = torch.cat(self.network.described(obs.reshape(-1, obs.shape[-1])), -1)
        return row.reshape(*obs.shape[:-1], row.shape[-1])


@checked
def make_hybrid_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    mask: ArrayLike | None = None,
    hidden: Count = 64,
    normalize: bool = False,
    *,
    share_encoder: bool = False,
    encoder: OwnEncoder | None = None,
) -> Policy:
    """Build the policy that fits an environment with hybrid actions.

    Args:
        observation_space: A box with one dimension, or a space with pictures, which
            come flat; or what ``plain_space`` made of it.
        action_space: Space of one action, likewise.
        mask: As in ``HybridActions.from_space``, and required in the same cases.
        hidden: Width of the critic's two hidden layers.
        normalize: Whether the policy normalises its observations; vectors only.
        share_encoder: Whether actor and critic share an encoder, which both of their
            losses move.
        encoder: An encoder of your own, as in ``ShapedEncoder``.
    """
    observation_space = as_space(observation_space)
    front, size = entrance(observation_space, encoder=encoder)
    first = normalizing(normalize, observation_space, encoder)
    check_shared(share_encoder, front, observation_space)
    actions = HybridActions.from_space(as_space(action_space), mask)
    seen = spaces.Box(-np.inf, np.inf, (size,))
    network = HybridPolicyNetwork.from_space(seen, actions.space, actions.mask)
    # Pictures go through encoders first, one for the actor and one for the critic, or
    # one for both.
    network.encoder = nn.Sequential(*front, *network.encoder)
    if not share_encoder:
        front, _ = entrance(observation_space, encoder=encoder)
    critic = behind(front, size, hidden, 1, gain=1.0)
    both = ActorCritic(HybridRows(network), critic, *first)

    policy = Policy(both, actions)
    # What a checkpoint needs; the mask may have come from the space, or as an array.
    recipe: dict[str, Any] = {
        "observation_space": plain_space(observation_space),
        "action_space": plain_space(actions.space),
        "mask": actions.mask.tolist(),
        "hidden": hidden,
        "normalize": normalize,
    }
    if share_encoder:
        recipe["share_encoder"] = True
    if encoder is not None:
        recipe["models"] = {"encoder": name_of_model(encoder)}
    policy.recipe = "make_hybrid_policy", recipe
    for name in ("observation_space", "action_space"):
        setattr(policy, name, as_space(recipe[name]))
    return policy


# %% [markdown]
# An untrained policy for *Moving*: what its network returns, an action with noise, one without, and
# the latter as the environment gets it:

# %%
from literate_rl.data.worlds import Moving

env = Moving()
fresh = make_hybrid_policy(env.observation_space, env.action_space)
obs = torch.as_tensor(env.reset(seed=0)[0]).unsqueeze(0)
noise = fresh.noise(1, 1, torch.Generator().manual_seed(0))[0]
with torch.no_grad():
    print("network        ", [round(x, 2) for x in fresh(obs)[0].tolist()])
    for name, eta in (("action", noise), ("without noise", 0.0)):
        action = fresh.act(obs, eta)
        print(f"{name:15s}", [round(x, 2) for x in action[0].tolist()])
print("environment    ", fresh.actions.to_single_env(action))

# %% [markdown]
# ## References
#
# Spaces are those of Gymnasium {cite:p}`towers2024`. Actions with arguments were defined by
# {cite:t}`masson2016`.

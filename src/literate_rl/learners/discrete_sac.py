# Generated from chapters/learners/discrete_sac.py (edit there); digest ee84df053dbc1df0
"""Discrete SAC: the same agent for actions from a list, with sums for draws."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.ground.nests import AnySpace, as_discrete, as_space, remembered
from literate_rl.ground.networks import eval_mode, layers, mean_surprise
from literate_rl.ground.protocols import Act, Envs, PolicyLike, settings_of
from literate_rl.ground.rows import BOUNDED, Row, by_settings, register
from literate_rl.ground.signatures import Count, checked
from literate_rl.learners.loop import OffPolicy, learner_of
from literate_rl.learners.sac import (
    SAC,
    SACConfig,
    SoftActorCritic,
    make_sac_policy,
    sac_settings,
)
from literate_rl.maths.discrete_sac import expected_soft_value
from literate_rl.nets.encoders import OwnEncoder, off_policy_entrances
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import Policy, normalizing

__all__ = [
    "DiscreteCritics",
    "DiscreteSAC",
    "DiscreteSoftActorCritic",
    "DiscreteSoftPolicy",
    "DiscreteSoftPolicyLike",
    "discrete_sac_settings",
    "make_discrete_sac_policy",
]


class DiscreteSoftPolicy(Policy):
    """A policy over a list of actions, with critics and a temperature.

    Args:
        network: Module from observations to logits.
        actions: A ``CategoricalActions``.
        critics: The critics.
    """

    def __init__(
        self,
        network: nn.Module,
        actions: CategoricalActions,
        critics: DiscreteCritics,
    ) -> None:
        super().__init__(network, actions)
        self.critics, self.log_alpha = critics, nn.Parameter(torch.zeros(()))

    def log_probs(
        self, obs: Tensor, generator: torch.Generator, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the log-probabilities of all actions; nothing is drawn."""
        return self.legal(self(obs), mask).log_softmax(-1)


class DiscreteSoftPolicyLike(PolicyLike, Protocol):
    """A policy with critics of all actions, a temperature and log-probabilities."""

    critics: DiscreteCritics
    log_alpha: nn.Parameter

    def log_probs(
        self, obs: Tensor, generator: torch.Generator, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the log-probabilities of all actions, with gradient."""
        ...


class DiscreteSoftActorCritic(SoftActorCritic):
    """Critics of soft values of a list of actions, and an actor that climbs them.

    Args:
        policy: The policy to train.
        config: The settings.
        action_space: The list of the environment's actions.
    """

    policy: DiscreteSoftPolicyLike  # type: ignore[assignment]

    @staticmethod
    def scale(action_space: Any, target: float | None) -> tuple[float, float]:
        """Return 0, because a list has no unit, and the entropy to aim at."""
        # Half of the largest entropy, {eq}`list-entropy`.
        return 0.0, math.log(action_space.n) / 2 if target is None else target

    def worth(
        self,
        critics: nn.Module,
        obs: Tensor,
        generator: torch.Generator,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return soft values of states, and the log-probabilities of all actions."""
        log_prob = self.policy.log_probs(obs, generator, mask=mask)
        # The gradient goes through the probabilities. To them the values are constants.
        with torch.no_grad(), eval_mode(critics):
            q = critics(obs)
        alpha = self.policy.log_alpha.detach().exp()
        return expected_soft_value(q, log_prob, alpha), log_prob

    def ascent(
        self, obs: Tensor, generator: torch.Generator, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return minus the soft values of states, and the temperature's loss."""
        value, log_prob = self.worth(self.policy.critics, obs, generator, mask)
        entropy, target = mean_surprise(log_prob.detach()), None
        # Where little is legal, little can be left to chance: {eq}`list-entropy` with
        # the number of what is legal in each state.
        if mask is not None and self.temperature.wanted is None:
            target = mask.sum(-1).log().mean().item() / 2
        return -value.mean() + self.temperature.loss(entropy, target)


DiscreteSAC = learner_of(DiscreteSoftActorCritic, "single_action_space")


class DiscreteCritics(nn.ModuleList):
    """Critics that judge all actions of a list."""

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        """Return each critic's values of all actions, or of those that were taken."""
        q = torch.stack([critic(obs) for critic in self])
        if action is None:
            return q
        return q.take_along_dim(action.reshape(1, -1, 1), -1).squeeze(-1)


@checked
@remembered
def make_discrete_sac_policy(
    observation_space: AnySpace,
    action_space: AnySpace,
    hidden: Count = 64,
    num_critics: Count = 2,
    *,
    normalize: bool = False,
    share_encoder: bool = False,
    encoder: OwnEncoder | None = None,
) -> DiscreteSoftPolicy:
    """Build an actor and critics for the spaces of one environment.

    Args:
        observation_space: A box of vectors, a picture, or a Dict or Tuple with pictures
            in it, which may come flat; or what ``plain_space`` made of it.
        action_space: A Discrete space, likewise.
        hidden: Width of the hidden layers.
        num_critics: Number of critics.
        normalize: Whether the policy normalises its observations; vectors only.
        share_encoder: Whether actor and critics share an encoder, which the critics'
            loss alone moves.
        encoder: An encoder of your own, as in ``ShapedEncoder``.

    Raises:
        ValueError: If the spaces do not fit.
    """
    space, states = as_discrete(action_space), as_space(observation_space)
    number = int(space.n)

    # The policy's row holds a logit for each action, a critic's row a value.
    first = normalizing(normalize, states, encoder)
    entrances = off_policy_entrances(states, num_critics, share_encoder, encoder, first)
    network, *critics = (
        nn.Sequential(*front, *layers(inputs, hidden, number))
        for front, inputs in entrances
    )
    actions = CategoricalActions(number, int(space.start))
    return DiscreteSoftPolicy(network, actions, DiscreteCritics(critics))


# Settings with which the agent has learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 20_000,
        "num_envs": 4,
        "hidden": 128,
        "num_steps": 20,
        "anneal": True,
        "batch_size": 128,
        "train_interval": 4,
        "buffer_size": 4000,
        "tau": 0.02,
        "reward_scale": 0.05,
        "iteration_steps": 1000,
        "temperature": 0.05,
    },
}


discrete_sac_settings = settings_of(SACConfig, SETTINGS)


def settings_of_sac(env: str) -> SACConfig:
    """Return settings of SAC for an environment, whichever actions it has."""
    return discrete_sac_settings(env) if env in SETTINGS else sac_settings(env)


def soft_policy(
    seen: spaces.Space[Any],
    actions: spaces.Space[Any],
    config: SACConfig,
    **given: Any,
) -> Policy:
    """Build a policy for numbers in a box or for actions from a list."""
    listed = isinstance(actions, spaces.Discrete)
    make = make_discrete_sac_policy if listed else make_sac_policy
    return by_settings(make)(seen, actions, config, **given)


def soft_learner(
    policy: PolicyLike,
    envs: Envs,
    config: SACConfig,
    act_in_list: Act | None = None,
) -> OffPolicy:
    """Return SAC for numbers in a box or for actions from a list."""
    if isinstance(envs.single_action_space, spaces.Discrete):
        return DiscreteSAC(policy, envs, config, act=act_in_list)
    return SAC(policy, envs, config)


ROW = register(
    Row(
        "SAC",
        "continuous control in few steps",
        BOUNDED,
        SACConfig,
        soft_policy,
        soft_learner,
        settings=settings_of_sac,
        contract="sac",
        forms=("act_in_list",),
    )
)

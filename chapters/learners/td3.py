# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # TD3 and HDDPG for any task
#
# **How do two agents come from one?** Both are {doc}`/chapters/learners/ddpg` with another error: that of
# TD3 differs in the target, {eq}`clipped-double-target`, that of HDDPG in the rates, {eq}`hysteretic`. TD3
# needs a policy with two critics, `make_ddpg_policy(…, num_critics=2)`.

# %% tags=["export", "hide-input"]
"""TD3 and HDDPG: critics that promise less, and one that promises more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from literate_rl.data.replay import Batch
from literate_rl.ground.protocols import settings_of
from literate_rl.ground.rows import register
from literate_rl.ground.signatures import Count, Float, NonNegative, check_that, checked
from literate_rl.learners.ddpg import (
    ROW,
    SETTINGS,
    DDPGConfig,
    DeterministicPolicyGradient,
)
from literate_rl.learners.loop import QError, learner_of, squared_error
from literate_rl.nets.policies import Policy
from literate_rl.maths.td3 import (
    clipped_double_target,
    smoothed_action,
)

__all__ = [
    "HDDPG",
    "TD3",
    "HDDPGConfig",
    "Hysteretic",
    "TD3Config",
    "TwinDelayed",
    "critic_error",
    "hddpg_settings",
    "td3_settings",
]

# %% [markdown]
# ## Two rates
#
# HDDPG has one critic, like DDPG. Its values rise at one rate and fall at another,
#
# $$
# \mathcal L = \tfrac12 \sum_k w(\delta_k) \, \delta_k^2 , \qquad w(\delta) =
# \begin{cases} w_+ & \text{if } \delta > 0 \\ w_- & \text{else,} \end{cases}
# $$ (hysteretic)
#
# where $\delta_k = y - Q_{\theta_k}(s, a)$ is the TD error of critic $k$. With $w_- < w_+$ bad news
# counts less than good news. This is **hysteretic Q-learning** {cite:p}`matignon2007`, made for several agents that
# learn side by side: while the others still explore, a bad outcome may be their fault.
#
# A value settles where the pulls of both sides are equal, at the **expectile** of the targets at
# $w_+ / (w_+ + w_-)$, for HDDPG's rates 1 and ½ the one at ⅔. If targets are 1 and −1, equally often, it
# settles at 1/3 instead of 0.


# %% tags=["export"]
@checked
def critic_error(
    q: Float[Tensor, "K N"],
    target: Float[Tensor, "N"],
    increase: NonNegative = 1.0,
    decrease: NonNegative = 1.0,
) -> QError:
    """Compare the values of K critics with their targets; the losses are added up.

    Args:
        q: Their values, with gradient.
        target: What the values should be; treated as a constant.
        increase: Rate at which a value rises towards its target.
        decrease: Rate at which it falls.
    """
    # A value below its target and one above it may learn at different rates,
    # {eq}`hysteretic`.
    rate = torch.where(target.detach() - q > 0, increase, decrease).to(q)
    return squared_error(q, target, rate)


# %% tags=["claims"]
for decrease, place in ((1.0, 0.0), (0.5, 1 / 3)):
    q = torch.full((1, 2), place).requires_grad_()
    error = critic_error(q, torch.tensor([1.0, -1.0]), 1.0, decrease)
    (pull,) = torch.autograd.grad(error.loss.sum(), q)
    assert abs(pull.sum()) < 1e-6, "there the pulls are equal"

# %% [markdown]
# ## Two agents
#
# `TwinDelayed` asks its policy for as many critics as its settings name. The third change of TD3,
# the delay, is the setting `target_interval` of {doc}`/chapters/learners/loop`.


# %% tags=["export"]
class TwinDelayed(DeterministicPolicyGradient):
    """Critics that promise less, and an actor that climbs the first of them.

    Args:
        policy: The policy to train; its network is an ``ActorCritics``.
        config: The settings.
    """

    config: TD3Config

    def __init__(self, policy: Policy, config: TD3Config) -> None:
        super().__init__(policy, config)
        given, wanted = len(policy.network.critics), config.num_critics
        check_that(
            given >= wanted, f"policy must have {wanted} critics or more, got {given}"
        )

    def aim(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return what the critics should think of the actions in a batch."""
        config, older = self.config, self.target.network
        with torch.no_grad():
            # 1. What would the older actor do next?
            action = older(batch.next_obs)
            # Only an action in a box has others beside it. Probabilities stay as they
            # are.
            if config.smoothing > 0 and hasattr(older.actions, "low"):
                box = older.actions.low, older.actions.high
                noise = torch.randn(action.shape, generator=generator).to(action)
                share = config.smoothing, config.smoothing_clip
                action = smoothed_action(action, noise, *box, *share)
            # 2. What is that worth to the older critics? This gives the target.
            next_q = older.network.critics(batch.next_obs, action)
            return clipped_double_target(batch.reward, batch.discount, next_q)


# %% tags=["export", "hide-input"]
@checked
@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Settings of TD3: two critics, delayed updates, smoothed targets.

    Attributes:
        num_critics: Number of critics that ``train`` builds; a policy that you hand
            over has as many or more. All of them learn, and the targets take the least
            optimistic one.
        smoothing: Standard deviation of the noise on the next action in a target, as a
            share of half the box; 0 turns it off. Actions from a list have none.
        smoothing_clip: Bound of that noise, as the same share.
    """

    target_interval: Count = 2
    num_critics: Count = 2
    smoothing: NonNegative = 0.2
    smoothing_clip: Annotated[float, Ge(0)] = 0.5


TD3 = learner_of(TwinDelayed)


@checked
@dataclass(frozen=True)
class HDDPGConfig(DDPGConfig):
    """Settings of hysteretic DDPG: values fall more slowly than they rise.

    Attributes:
        increase: Rate at which values rise towards their targets.
        decrease: Rate at which they fall.
    """

    increase: NonNegative = 1.0
    decrease: NonNegative = 0.5


class Hysteretic(DeterministicPolicyGradient):
    """DDPG whose values rise and fall at two rates.

    Args:
        policy: The policy to train; its network is an ``ActorCritics``.
        config: The settings.
    """

    config: HDDPGConfig

    def error(self, batch: Batch, generator: torch.Generator) -> QError:
        """Compare the critic's values of actions with their targets, at two rates."""
        aim, rates = self.aim(batch, generator), self.config
        q = self.policy.network.critics(batch.obs, batch.action)
        return critic_error(q, aim, rates.increase, rates.decrease)


HDDPG = learner_of(Hysteretic)


td3_settings = settings_of(TD3Config, SETTINGS)


hddpg_settings = settings_of(HDDPGConfig, SETTINGS)

# %% tags=["export", "hide-input"]
for name, config, learner, settings, words in (
    ("HDDPG", HDDPGConfig, HDDPG, hddpg_settings, "that learns less from bad news"),
    ("TD3", TD3Config, TD3, td3_settings, "with doubts about its critics"),
):
    row = replace(ROW, name=name, purpose=f"DDPG {words}", chapter="td3")
    register(replace(row, config=config, learner=learner, settings=settings))

# %% [markdown]
# ## References
#
# Those of {doc}`/chapters/td3`. Hysteretic Q-learning is from {cite:t}`matignon2007`.

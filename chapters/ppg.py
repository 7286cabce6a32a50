# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPG
#
# **What is gained by learning policy and value in turns?** The value can stand more training
# than the policy, and what it learns about the states would help the policy to see. Phasic
# policy gradient gives each of them its own time.
#
# At the end of this chapter you can measure how a value pulls at a shared network, write the
# two phases and their losses, train an agent with them from the command line, and say what
# they brought on two tasks, with intervals.

# %% tags=["export", "hide-input"]
"""PPG: PPO in a policy phase, and an auxiliary phase that teaches the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, kl_divergence

from literate_rl.advantages import lambda_returns
from literate_rl.agents import Rollout
from literate_rl.disjoint_network import (
    DETACH,
    Detach,
    DisjointPolicyValueNetwork,
    EncodingNetwork,
    linear,
)
from literate_rl.hybrid_ppo import HybridActions
from literate_rl.policies import Policy, RunningMoments, make_actions
from literate_rl.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.ppo_error import ppo_info, ppo_policy_loss
from literate_rl.workshop.nests import as_space, ends, leaves, map_nest, plain_space
from literate_rl.workshop.runs import check_counts, check_setting
from literate_rl.workshop.signatures import Fraction, NonNegative, checked

__all__ = [
    "AlgStep",
    "ConvolutionalEncodingNetwork",
    "LossInfo",
    "PPGAlgorithm",
    "PPGAuxAlgorithm",
    "PPGAuxOptions",
    "PPGAuxPhaseLoss",
    "PPGAuxPhaseLossInfo",
    "PPGConfig",
    "PPGRolloutInfo",
    "PPGTrainInfo",
    "PhasicNetwork",
    "TimeStep",
    "element_wise_squared_loss",
    "make_phasic_policy",
    "ppg_network_forward",
    "ppg_settings",
]

# %% [markdown]
# ## A tug of war
#
# Let policy and value share an encoder, as in many implementations of PPO, and look at the two
# gradients that arrive there. Call them $g_\pi$ and $g_V$. How often do they point against
# each other? And which is longer? The cosine of the angle between them answers the first
# question:
#
# $$
# \cos(g_\pi, g_V) = \frac{g_\pi \cdot g_V}{\lVert g_\pi \rVert \, \lVert g_V \rVert} .
# $$ (def-gradient-cosine)
#
# It is below zero where a step for the value undoes some of a step for the policy. Here is PPO
# on CartPole, with both gradients taken before each update, for three seeds. It runs twice:
# with the rewards as they are, and with a twentieth of them.

# %% mystnb={"image": {"alt": "Two panels over 20 iterations. Left: the cosines between the gradients of value and policy, scattered on both sides of zero. Right, on a logarithmic scale: with the rewards as they are the value's gradient is mostly ten to a hundred times as long as the policy's, with small rewards it is mostly shorter"}}
import gymnasium as gym
import matplotlib.pyplot as plt

from literate_rl.advantages import gae
from literate_rl.agents import make_envs, seed_everything
from literate_rl.policies import make_policy

torch.set_num_threads(1)  # the networks are too small to be shared out
config = ppo_settings("CartPole-v1")


def encoder_gradients(policy, batch):
    """Return the gradients of policy and value loss in the shared layers."""
    with torch.no_grad():
        value, next_value = policy.value(batch.obs), policy.value(batch.next_obs)
        flags = batch.terminated, batch.truncated
        adv = gae(batch.reward, value, next_value, *flags, config.gamma, config.lambda_)
        target = adv + value
        adv = (adv - adv.mean()) / adv.std()
    shared = [p for layer in policy.network.actor[:4] for p in layer.parameters()]
    log_prob, _ = policy.evaluate_actions(batch.obs, batch.action)
    policy_loss = -(adv * log_prob).mean()
    value_loss = 0.5 * (policy.value(batch.obs) - target).square().mean()
    losses = policy_loss, config.value_weight * value_loss
    return [
        torch.cat([g.flatten() for g in torch.autograd.grad(x, shared)]) for x in losses
    ]


def paid(scale):
    """Return CartPole with rewards of another size."""
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda r: scale * r)


def tug_of_war(seed, scale, iterations=20):
    """Return cosines and ratios of lengths, one for each iteration."""
    seed_everything(seed)
    envs = make_envs(partial(paid, scale), config.num_envs)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    actor, critic = policy.network.actor, policy.network.critic
    critic[0], critic[2] = actor[0], actor[2]
    learner = PPO(policy, envs, config)
    rows = []
    for _ in range(iterations):
        batch = learner.collect()
        g_policy, g_value = encoder_gradients(policy, batch)
        cosine = torch.cosine_similarity(g_policy, g_value, 0)
        rows.append((cosine.item(), (g_value.norm() / g_policy.norm()).item()))
        learner.update(batch)
    return np.array(rows).T


pulls = {}
fig, axes = plt.subplots(1, 2, figsize=(7, 2.6))
axes[0].axhline(0, color="#808080", linewidth=0.8)
for (scale, label), color in zip(
    ((1.0, "as they are"), (0.05, "a twentieth")), ("C0", "C1"), strict=True
):
    runs = np.array([tug_of_war(seed, scale) for seed in (1, 2, 3)])
    cosine, ratio = runs[:, 0].ravel(), runs[:, 1].ravel()
    pulls[label] = cosine, ratio
    iteration = np.tile(np.arange(runs.shape[-1]), len(runs))
    axes[0].plot(iteration, cosine, "o", color=color, markersize=3)
    axes[1].semilogy(iteration, ratio, "o", color=color, markersize=3)
    against = (cosine < 0).mean()
    print(f"rewards {label}: against each other in {against:.0%} of the iterations,")
    print(
        f"    median of |cosine| {np.median(abs(cosine)):.2f}, of the lengths' ratio",
        end="",
    )
    print(f" {np.median(ratio):.2f}")
axes[0].set(xlabel="iteration", ylabel="cosine", ylim=(-1, 1))
axes[1].plot([], [], "o", color="C0", markersize=3, label="rewards as they are")
axes[1].plot([], [], "o", color="C1", markersize=3, label="a twentieth of them")
axes[1].legend(fontsize=8)
axes[1].set(xlabel="iteration", ylabel="length of $g_V$ / length of $g_\\pi$")
fig.tight_layout()

# %% [markdown]
# **What to notice.** The two gradients point against each other about as often as not. But they are
# not unrelated. The encoder has 4,480 weights,
# and two directions drawn at random among so many would have a cosine whose size is near 0.01. With
# the rewards as they are it is often above a half: both losses pull along the same line, now with each
# other and now against each other. The other difference is who wins. With the rewards as they are,
# the value's gradient is many times as long, and the encoder goes where the value wants it. With a
# twentieth of the rewards, which is the same task, the policy's is mostly the longer one. So a
# shared encoder needs a weight for the value's loss that fits the task's rewards. Two encoders need
# none, but then the policy sees nothing of what the value has learned.

# %% tags=["claims"]
by_chance = np.sqrt(2 / np.pi / 4_480)  # median or mean, it is near 0.01
for cosine, _ in pulls.values():
    assert 0.2 < (cosine < 0).mean() < 0.8, "they disagree about as often as not"
    assert np.median(abs(cosine)) > 4 * by_chance, "and are not unrelated"
(large, long), (_, short) = pulls.values()
assert np.median(abs(large)) > 0.3, "often above a half"
assert (abs(large) > 0.5).mean() > 0.25, "often above a half"
assert np.median(long) > 5, "the value's gradient is many times as long"
assert np.median(short) < 1, "the policy's is mostly the longer one"

# %% [markdown]
# Phasic policy gradient {cite:p}`cobbe2021` gives each its own time. Its **policy phase** is
# PPO. The value does not touch the policy's encoder. After $N_\pi$ such phases comes one
# **auxiliary phase**. It goes over all the data of these phases once more, several times.
# There the values learn, one of them through the policy's encoder, and the policy is held
# where it was. {doc}`/chapters/disjoint_network` has built the network for it.
#
# ## What is handed on
#
# The names of this section are those of the library ALF. A step of an environment comes as a
# `TimeStep`, and what an algorithm makes of it goes out as an `AlgStep`: an output, a state
# for the next step, and information for the loss.
#
# Two tuples carry that information. `PPGRolloutInfo` is what the network said of a step, and
# what came of it. `PPGTrainInfo` holds the same once more, judged by the network as it is
# *now*, and beside it what was said during the rollout. To go from one to the other,
# `absorbed` takes over what the network says now and keeps what was done: the action.
#
# In each we add one field to the documented ones, the value of the true successor. Without it
# a step that was truncated has no bootstrap ({doc}`/chapters/advantages`).


# %% tags=["export"]
FIRST, MID, LAST = 0, 1, 2


class TimeStep(NamedTuple):
    """A step of B environments, before and after the action.

    Attributes:
        step_type: 0 for the first step of an episode, 2 for the last one, whether it
            terminated or was truncated, 1 for all others, (B,).
        reward: What the step was paid, (B,).
        discount: 0 where the task ended with this step, 1 elsewhere, (B,).
        observation: What the network sees, a nest of tensors ``(B, *)``.
    """

    step_type: Any
    reward: Any
    discount: Any
    observation: Any


class AlgStep(NamedTuple):
    """What an algorithm makes of a step: output, next state, information for a loss."""

    output: Any
    state: Any
    info: Any


class LossInfo(NamedTuple):
    """A loss for each step, (T, B), and its parts."""

    loss: Tensor
    extra: Any


class PPGRolloutInfo(NamedTuple):
    """What the network said of a step, and what came of it.

    Attributes:
        action_distribution: Nest of distributions of the action.
        action: What was done, a nest of tensors.
        log_prob: Its log-probability, (B,), or () where it was not needed.
        value: Value (B,).
        aux: Auxiliary value (B,), or () where it was not required.
        step_type: As in ``TimeStep``.
        discount: As in ``TimeStep``.
        reward: As in ``TimeStep``.
        reward_weights: Always (): rewards are single numbers here.
        next_value: Value of the step's true successor, (B,), or () where it is not
            known yet. Not among the documented fields.
    """

    action_distribution: Any
    action: Any
    log_prob: Any
    value: Any
    aux: Any
    step_type: Any
    discount: Any
    reward: Any
    reward_weights: Any
    next_value: Any = ()


class PPGTrainInfo(NamedTuple):
    """A ``PPGRolloutInfo`` judged anew, beside what was said during the rollout.

    Attributes:
        rollout_action_distribution: Nest of distributions that the clone keeps to.
        rollout_value: Value at the time of the rollout.
        rollout_log_prob: Log-probability at that time.
        rollout_next_value: Value of the true successor at that time. Not among the
            documented fields.

    All other attributes are those of ``PPGRolloutInfo``. Each is () by default.
    """

    action_distribution: Any = ()
    action: Any = ()
    log_prob: Any = ()
    value: Any = ()
    aux: Any = ()
    step_type: Any = ()
    discount: Any = ()
    reward: Any = ()
    reward_weights: Any = ()
    rollout_action_distribution: Any = ()
    rollout_value: Any = ()
    rollout_log_prob: Any = ()
    rollout_next_value: Any = ()

    def absorbed(self, rollout_info: PPGRolloutInfo) -> PPGTrainInfo:
        """Return a new tuple that has taken over what a network says of the same steps.

        The action, its log-probability and all that belongs to the rollout stay.

        Args:
            rollout_info: What ``ppg_network_forward`` returned for these steps.
        """
        new = rollout_info._asdict()
        for kept in ("action", "log_prob", "next_value"):
            del new[kept]
        return self._replace(**new)


# %% [markdown]
# ## One pass through the network
#
# `ppg_network_forward` is a step of the network as an algorithm sees it: from a `TimeStep` to
# an action. By default the action is drawn. With `epsilon_greedy` it is drawn with a
# probability $q$ only, and is the mode otherwise. So for a discrete action
#
# $$
# \Pr(a \mid s) = q \, \pi(a \mid s)
#     + (1 - q) \, \mathbb{1} \bigl[ a = \operatorname*{argmax}_{j} \pi(j \mid s) \bigr] .
# $$ (greedy-mixture)
#
# The name misleads a little. What most books call epsilon-greedy draws from *all* actions alike.
# This draws from the policy. In a nest each leaf and each row makes the decision on its own.


# %% tags=["export"]
def ppg_network_forward(
    network: DisjointPolicyValueNetwork,
    inputs: TimeStep,
    state: Any = (),
    require_aux: bool = True,
    epsilon_greedy: float | None = None,
) -> AlgStep:
    """Pass one step through the network and choose an action.

    Args:
        network: The network.
        inputs: The step of B environments.
        state: The network's state, or () at a start or without memory.
        require_aux: Whether the auxiliary value is wanted.
        epsilon_greedy: None to draw the action; otherwise the probability of drawing
            it, in [0, 1], and it is the mode in all other cases.

    Returns:
        The action (a nest of tensors, as the distributions count and scale it, see
        the projection networks), the next state and a ``PPGRolloutInfo``. Action
        and log-probability carry no gradient. Without ``epsilon_greedy`` there is no
        log-probability: it is ().

    Raises:
        ValueError: If ``epsilon_greedy`` is out of range.
    """
    if epsilon_greedy is not None and not 0 <= epsilon_greedy <= 1:
        raise ValueError(
            f"epsilon_greedy must be None or in [0, 1], got {epsilon_greedy}"
        )
    output, state = network(inputs.observation, state, require_aux)
    distribution, value, aux = output
    log_prob: Any = ()
    if epsilon_greedy is None:
        action = map_nest(lambda leaf: leaf.sample(), distribution)
        terms = map_nest(lambda leaf, a: leaf.log_prob(a), distribution, action)
        log_prob = sum(ends(terms)).detach()
    else:
        action = map_nest(partial(draw_or_mode, q=epsilon_greedy), distribution)
    step_type, reward, discount, _ = inputs
    info = PPGRolloutInfo(
        distribution, action, log_prob, value, aux, step_type, discount, reward, ()
    )
    return AlgStep(action, state, info)


def draw_or_mode(leaf: Any, q: float) -> Tensor:
    """Draw from a distribution with probability q, row by row, else take its mode."""
    # The mixture {eq}`greedy-mixture`. To be greedy always needs no random number.
    mode: Tensor = leaf.mode.detach()
    if q == 0:
        return mode
    drawn = torch.rand(leaf.batch_shape, device=mode.device) < q
    choice = drawn.view(*drawn.shape, *[1] * len(leaf.event_shape))
    return torch.where(choice, leaf.sample(), mode)


# %% [markdown]
# ## The loss of the auxiliary phase
#
# In the auxiliary phase both values move towards the same target, the $\lambda$-return
# $G^\lambda$ of {doc}`/chapters/advantages`. The auxiliary value takes the policy's
# encoder with it. That could turn the policy into anything, because the policy reads the same
# features. So a third term holds it where it is: the divergence from the policy at the start
# of the phase, $\pi_{\text{old}}$, the *clone* term. For one step,
#
# $$
# \mathcal L_{\text{aux}} = \bigl( V_\theta(s) - G^\lambda \bigr)^2
#      + \bigl( V^{\text{aux}}_\theta(s) - G^\lambda \bigr)^2
#      + \beta \, \operatorname{KL} \bigl( \pi_{\text{old}} \,\|\, \pi_\theta \bigr) .
# $$ (auxiliary-loss)
#
# The paper halves the squares. ALF, whose interface this is, does not, and neither do we.
# With the halves, the same $\beta$ would weigh twice as much. Another error can be handed
# over as a function.
#
# The policy of a nest is a product over its leaves $i$, so the divergence is a sum:
#
# $$
# \operatorname{KL} \bigl( \pi_{\text{old}} \,\|\, \pi_\theta \bigr) = \sum_i
#     \operatorname{KL} \bigl( \pi^{(i)}_{\text{old}} \,\|\, \pi^{(i)}_\theta \bigr) .
# $$ (nested-divergence)
#
# For a hybrid action this is an upper bound of the divergence in
# {doc}`/chapters/hybrid_action`. There each argument counts as often as its type is
# chosen, here it counts always. Both are zero for the same policies, as long as every type has a
# chance and every argument is used by some type. An argument that no type uses is held all the
# same here, and costs nothing there.


# %% tags=["export"]
def element_wise_squared_loss(x: Tensor, y: Tensor) -> Tensor:
    """Return the squared difference of two tensors, element by element."""
    return (x - y).square()


def divergence(old: Any, new: Any) -> Tensor:
    """Return the divergence between nests of distributions, one for each state."""
    # Leaf by leaf, {eq}`nested-divergence`.
    total: Tensor = sum(ends(map_nest(kl_divergence, old, new)))
    return total


class PPGAuxPhaseLossInfo(NamedTuple):
    """The three parts of the auxiliary phase's loss, (T, B) each.

    Attributes:
        td_loss_actual: Error of the value.
        td_loss_aux: Error of the auxiliary value.
        policy_kl_loss: Divergence from the old policy, in nats, not yet weighted.
    """

    td_loss_actual: Tensor
    td_loss_aux: Tensor
    policy_kl_loss: Tensor


def check_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise unless a value is a tensor of the expected shape."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")


class PPGAuxPhaseLoss(nn.Module):
    """The loss of the auxiliary phase.

    Args:
        td_error_loss_fn: Function of estimates and targets that returns errors.
        policy_kl_loss_weight: Weight of the divergence.
        gamma: Discount. A list of discounts, one for each of several rewards, is not
            supported: the value is a single number.
        td_lambda: Decay of the weights of longer returns.
        name: Name of the loss.

    Source:
        Cobbe et al. 2021, Phasic Policy Gradient, section 2 and algorithm 1.
    """

    @checked
    def __init__(
        self,
        td_error_loss_fn: Callable[[Tensor, Tensor], Tensor] = (
            element_wise_squared_loss
        ),
        policy_kl_loss_weight: NonNegative = 1.0,
        gamma: Fraction = 0.999,
        td_lambda: Fraction = 0.95,
        name: str = "PPGAuxPhaseLoss",
    ) -> None:
        super().__init__()
        self.td_error_loss_fn, self.weight = td_error_loss_fn, policy_kl_loss_weight
        self.gamma, self.td_lambda, self.name = gamma, td_lambda, name

    def target(self, info: PPGTrainInfo) -> Tensor:
        """Return the targets (T, B), made from what was seen during the rollout."""
        for name in ("rollout_next_value", "discount", "step_type"):
            check_shape(f"info.{name}", getattr(info, name), tuple(info.reward.shape))
        terminated = info.discount == 0
        truncated = (info.step_type == LAST) & ~terminated
        return lambda_returns(
            info.reward,
            info.rollout_next_value,
            terminated,
            truncated,
            self.gamma,
            self.td_lambda,
        )

    def forward(self, info: PPGTrainInfo, target: Tensor | None = None) -> LossInfo:
        """Compute the loss of each step.

        Args:
            info: Steps in time order, (T, B), with ``rollout_next_value``.
            target: What ``target`` returned for these steps, (T, B); None computes it.

        Returns:
            The loss (T, B) and its parts.

        Raises:
            ValueError: If a shape differs or a number that counts is not finite.
        """
        if target is None:
            target = self.target(info)
        for name in ("value", "aux"):
            check_shape(f"info.{name}", getattr(info, name), tuple(target.shape))
        # The three terms of {eq}`auxiliary-loss`.
        parts = PPGAuxPhaseLossInfo(
            self.td_error_loss_fn(info.value, target),
            self.td_error_loss_fn(info.aux, target),
            divergence(info.rollout_action_distribution, info.action_distribution),
        )
        td_loss = parts.td_loss_actual + parts.td_loss_aux
        return LossInfo(td_loss + self.weight * parts.policy_kl_loss, parts)


# %% [markdown]
# ## Settings
#
# PPG's settings are PPO's and a few more. In the paper's letters: `aux_interval` is $N_\pi$,
# the number of policy phases before an auxiliary one; `num_epochs` is both $E_\pi$ and $E_V$,
# the epochs of policy and value in a policy phase; `aux_epochs` is $E_{\text{aux}}$;
# `clone_weight` is $\beta_{\text{clone}}$.
#
# `PPGAuxOptions` is the documented form of those that concern the auxiliary phase. A
# minibatch is counted in *chunks* there, pieces of `mini_batch_length` consecutive steps
# of one environment, because a $\lambda$-return needs steps in their order.


# %% tags=["export"]
class PPGAuxOptions(NamedTuple):
    """Options of the auxiliary phase.

    Attributes:
        enabled: Whether there is an auxiliary phase at all.
        interval: Policy phases between two auxiliary phases.
        mini_batch_length: Steps of a chunk, or None for the steps of a rollout.
        mini_batch_size: Chunks of a minibatch; a few more where they do not come out
            even.
        num_updates_per_train_iter: Epochs of an auxiliary phase.
    """

    enabled: bool = True
    interval: int = 32
    mini_batch_length: int | None = None
    mini_batch_size: int = 8
    num_updates_per_train_iter: int = 6


AUX_OPTIONS = PPGAuxOptions()
REWARD = spaces.Box(-np.inf, np.inf, ())


def check_aux_options(options: PPGAuxOptions) -> None:
    """Raise unless all options are legal."""
    if not isinstance(options, PPGAuxOptions):
        raise TypeError(f"aux_options must be PPGAuxOptions, got {options!r}")
    names = ["interval", "mini_batch_size", "num_updates_per_train_iter"]
    if options.mini_batch_length is not None:
        names.append("mini_batch_length")
    check_counts(options, names)


@checked
@dataclass(frozen=True)
class PPGConfig(PPOConfig):
    """Settings of PPG: those of PPO and those of the auxiliary phase.

    Attributes:
        aux_enabled: Whether there is an auxiliary phase; without it PPG is PPO.
        aux_interval: Policy phases between two auxiliary phases.
        aux_batch_length: Steps of a chunk in the auxiliary phase, or none for the
            steps of a rollout, which it must divide.
        aux_batch_size: Chunks of a minibatch in the auxiliary phase.
        aux_epochs: Epochs of an auxiliary phase.
        aux_learning_rate: Step size of the auxiliary phase's Adam at the start.
        clone_weight: Weight of the divergence in the auxiliary phase.
        kl_reference: What the divergence starts from: "snapshot", the policy at the
            start of the auxiliary phase, or "rollout", the policy that acted.
        share_encoder: Whether policy and value share an encoder.
        detach: When a shared encoder is cut off from the value: "always",
            "policy_phase" or "never".
    """

    aux_enabled: bool = True
    aux_interval: int = 32
    aux_batch_length: int | None = None
    aux_batch_size: int = 8
    aux_epochs: int = 6
    aux_learning_rate: float = 5e-4
    clone_weight: float = 1.0
    kl_reference: str = "snapshot"
    share_encoder: bool = False
    detach: Detach = "always"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ("aux_interval", "aux_batch_size", "aux_epochs"))
        steps = self.num_steps
        check_setting(
            self,
            "aux_batch_length",
            lambda x: x is None or (x >= 1 and steps % x == 0),
            f"None or a divisor of the {steps} steps of a rollout",
        )
        check_setting(self, "aux_learning_rate", lambda x: x > 0, "positive")
        finite = "at least 0, finite"
        check_setting(self, "clone_weight", lambda x: 0 <= x < math.inf, finite)
        choices = {"kl_reference": ("snapshot", "rollout"), "detach": DETACH}
        for name, legal in choices.items():
            check_setting(self, name, legal.__contains__, f"one of {legal}")

    @property
    def aux_options(self) -> PPGAuxOptions:
        """The options of the auxiliary phase in their documented form."""
        return PPGAuxOptions(
            self.aux_enabled,
            self.aux_interval,
            self.aux_batch_length or self.num_steps,
            self.aux_batch_size,
            self.aux_epochs,
        )


# Settings with which the agent was seen to learn, by environment. What an entry leaves
# out is that of PPO.
PPG_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 100_000,
        "aux_interval": 16,
        "aux_batch_size": 16,
        "aux_learning_rate": 1e-3,
    },
    "literate_rl/Maze-v0": {
        "total_steps": 150_000,
        "num_envs": 32,
        "num_steps": 64,
        "num_epochs": 6,
        "learning_rate": 2e-3,
        "gamma": 0.97,
        "entropy_weight": 0.02,
        "aux_interval": 4,
        "aux_batch_size": 32,
        "aux_epochs": 3,
        "aux_learning_rate": 1e-3,
    },
}


def ppg_settings(env: str) -> PPGConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return PPGConfig(**asdict(ppo_settings(env)) | PPG_SETTINGS.get(env, {}))


# %% [markdown]
# ## The auxiliary phase
#
# `PPGAuxAlgorithm` runs it. It shares the network with the policy phase but owns everything
# else: a buffer with the experience since the last auxiliary phase, an optimiser with
# moments of its own, and the order of its minibatches.
#
# The buffer stores plain tensors. Of a distribution it keeps the row of numbers that
# describes it. When a phase begins, the buffer is cut into chunks; when it ends, the buffer
# is emptied.


# %% tags=["export"]
def row_of(leaf: Any) -> Tensor:
    """Return the row of numbers that describes a distribution; a tensor is one."""
    if isinstance(leaf, Categorical):
        logit: Tensor = leaf.logits
        return logit
    if isinstance(leaf, Independent):
        normal: Any = leaf.base_dist
        both = [normal.loc, normal.scale.log()]
        dims = len(leaf.event_shape)
        return torch.cat([x.reshape(*x.shape[: x.ndim - dims], -1) for x in both], -1)
    row: Tensor = leaf
    return row


class PPGAuxAlgorithm:
    """The auxiliary phase: both values learn from old experience; the policy is held.

    Args:
        observation_spec: Space of one observation.
        action_spec: Space of one action.
        reward_spec: Space of a reward: a box without dimensions, a single number.
        config: Settings; the defaults if None.
        optimizer: Optimiser of the auxiliary phase, or None for Adam.
        dual_actor_value_network: The network, shared with the policy that acts; None
            makes one.
        aux_options: Options of the auxiliary phase. Where it is not enabled, nothing
            is stored and nothing is trained.
        debug_summaries: Whether ``train_iter`` also tells the mean length of the
            gradient, before it is shortened.
        name: Name of the algorithm.
        prepare: Turns observations, as they are stored, into what the network takes.
            It is asked anew in each phase; None leaves them as they are.

    Attributes:
        buffer: Experience since the last phase, a list of steps.

    Raises:
        TypeError: If an option is of another kind.
        ValueError: If an option is out of range or the reward is no single number.

    Source:
        Cobbe et al. 2021, Phasic Policy Gradient, algorithm 1.
    """

    def __init__(
        self,
        observation_spec: spaces.Space[Any],
        action_spec: spaces.Space[Any],
        reward_spec: spaces.Space[Any] = REWARD,
        config: PPGConfig | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        dual_actor_value_network: DisjointPolicyValueNetwork | None = None,
        aux_options: PPGAuxOptions = AUX_OPTIONS,
        debug_summaries: bool = False,
        name: str = "PPGAuxAlgorithm",
        *,
        prepare: Callable[[Any], Any] | None = None,
    ) -> None:
        check_aux_options(aux_options)
        if not isinstance(reward_spec, spaces.Space) or reward_spec.shape != ():
            raise ValueError(f"reward_spec must be a single number, got {reward_spec}")
        self.config = config or PPGConfig()
        self.network = dual_actor_value_network or DisjointPolicyValueNetwork(
            observation_spec, action_spec
        )
        self.parameters = list(self.network.parameters())
        self.optimizer = optimizer or torch.optim.Adam(
            self.parameters, self.config.aux_learning_rate, eps=1e-5, fused=True
        )
        self.options, self.debug_summaries = aux_options, debug_summaries
        self.name, self.prepare = name, prepare or (lambda observation: observation)
        self.loss = PPGAuxPhaseLoss(
            policy_kl_loss_weight=self.config.clone_weight,
            gamma=self.config.gamma,
            td_lambda=self.config.lambda_,
        )
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.buffer: list[tuple[Any, PPGRolloutInfo]] = []
        self.form: Any = None  # shapes and types of an experience

    @property
    def interval(self) -> int:
        """Policy phases between two auxiliary phases."""
        return self.options.interval

    def observe_for_aux_replay(self, exp: tuple[Any, PPGRolloutInfo]) -> None:
        """Store the experience of one step of B environments.

        Args:
            exp: The observation, a nest of tensors ``(B, *)``, and the rollout's
                information on it, with ``next_value``. It is copied.

        Raises:
            TypeError: If something in it is neither a tensor nor a distribution.
            ValueError: If the network cannot learn from it, if shapes or types differ
                from those of the first experience, or a number is not finite.
                Nothing is stored then.
        """
        if not self.options.enabled:
            return
        if not (isinstance(exp, tuple) and isinstance(exp[-1], PPGRolloutInfo)):
            raise TypeError(
                f"exp must be an observation and a PPGRolloutInfo, got {exp!r:.40}"
            )
        observation, info = exp
        rows = tuple(row_of(leaf) for leaf in ends(info.action_distribution))
        new = (observation, info._replace(action_distribution=rows))
        for x in ends(new):
            if not isinstance(x, Tensor):
                raise TypeError(f"exp must hold tensors, got {type(x).__name__}")
        form = map_nest(lambda x: f"{tuple(x.shape)} {x.dtype}", new)
        if self.form is None:
            self.check_first(*new)
        elif form != self.form:
            raise ValueError(f"exp must have the form {self.form}, got {form}")
        for x in ends((observation, info.reward, info.next_value)):
            if not x.isfinite().all():
                raise ValueError(
                    "exp must hold finite observations, rewards and values"
                )
        self.form = form
        self.buffer.append(map_nest(lambda x: x.detach().clone(), new))

    @torch.no_grad()
    def check_first(self, observation: Any, info: PPGRolloutInfo) -> None:
        """Raise unless the network can learn from experience of this form."""
        output, state = self.network.heads(self.prepare(observation))
        if any(True for _ in ends(state)):
            raise ValueError(
                "dual_actor_value_network must have encoders without memory: the "
                "auxiliary phase passes the steps of a chunk all at once"
            )
        rows, value, _ = output
        if value.numel() == 0:
            raise ValueError("exp must hold at least one environment, got none")
        for name in ("value", "next_value", "reward", "discount", "step_type"):
            check_shape(f"exp's {name}", getattr(info, name), tuple(value.shape))
        for own, row in zip(rows, info.action_distribution, strict=True):
            check_shape("exp's action_distribution", row, tuple(own.shape))

    def chunks(self) -> tuple[Any, PPGRolloutInfo]:
        """Return the buffer as chunks: tensors ``(L, C, *)``, time first.

        Steps at the end that do not fill a chunk are left out.
        """
        length = self.options.mini_batch_length or self.config.num_steps
        count = len(self.buffer) // length
        if count == 0:
            raise ValueError(
                f"the buffer must hold at least one chunk of {length} steps, got "
                f"{len(self.buffer)}: call observe_for_aux_replay first"
            )

        def cut(*steps: Tensor) -> Tensor:
            stacked = torch.stack(steps).unflatten(0, (count, length))
            time_first: Tensor = stacked.transpose(0, 1).flatten(1, 2)
            return time_first

        chunks: tuple[Any, PPGRolloutInfo] = map_nest(
            cut, *self.buffer[: count * length]
        )
        return chunks

    def train_iter(self) -> dict[str, float]:
        """Run one auxiliary phase, empty the buffer, and return metrics.

        Raises:
            ValueError: If the buffer does not hold a chunk or a gradient is not finite.
        """
        if not self.options.enabled:
            return {}
        observation, info = self.chunks()
        observation = self.prepare(observation)
        count = info.reward.shape[1]
        if self.config.kl_reference == "snapshot":
            info = info._replace(action_distribution=self.snapshot(observation))
        # The targets stay the same during the phase.
        seen = PPGTrainInfo(rollout_next_value=info.next_value).absorbed(info)
        data = observation, info, self.loss.target(seen)
        parts = max(1, count // self.options.mini_batch_size)
        history = []
        for _ in range(self.options.num_updates_per_train_iter):
            order = torch.randperm(count, generator=self.generator)
            for chosen in order.to(info.reward.device).tensor_split(parts):
                minibatch = map_nest(lambda x, c=chosen: x[:, c], data)
                history.append(self.learn(*minibatch))
        self.buffer.clear()
        # The means of the last epoch are told, and the divergence of the first
        # minibatch, before which nothing was learned.
        table = torch.stack(history)
        names = ("value_loss", "aux_value_loss", "kl", "grad_norm")
        means = table[-parts:].mean(0).tolist()
        metrics = {f"aux/{name}": x for name, x in zip(names, means, strict=True)}
        metrics["aux/kl_at_start"] = table[0, 2].item()
        if not self.debug_summaries:
            del metrics["aux/grad_norm"]
        return metrics

    @torch.no_grad()
    def snapshot(self, observation: Any) -> tuple[Tensor, ...]:
        """Return rows that describe the policy as it is now, chunk by chunk."""
        count = next(ends(observation)).shape[1]
        size = self.options.mini_batch_size
        pieces = [
            self.network.heads(
                map_nest(lambda x, s=start: x[:, s : s + size], observation), (), False
            )[0][0]
            for start in range(0, count, size)
        ]
        return tuple(torch.cat(rows, 1) for rows in zip(*pieces, strict=True))

    def learn(self, observation: Any, info: PPGRolloutInfo, target: Tensor) -> Tensor:
        """Take one step of the optimiser on a minibatch of chunks.

        Args:
            observation: What the network takes, a nest of tensors ``(L, C, *)``.
            info: What was stored of the steps.
            target: Targets of the values (L, C).

        Returns:
            The means of the three parts of the loss and the length of the gradient.
        """
        inputs = TimeStep(info.step_type, info.reward, info.discount, observation)
        step = self.train_step(inputs, (), info)
        loss_info = self.calc_loss(step.info, target)
        for parameter in self.parameters:
            parameter.grad = None
        loss_info.loss.mean().backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        if not norm.isfinite():
            raise ValueError(f"the gradient's length must be finite, got {norm.item()}")
        self.optimizer.step()
        parts = [part.detach().mean() for part in loss_info.extra]
        return torch.stack([*parts, norm])

    def train_step(
        self, inputs: TimeStep, state: Any, plain_rollout_info: PPGRolloutInfo
    ) -> AlgStep:
        """Judge steps of the buffer with the network as it is now.

        Args:
            inputs: The steps.
            state: The network's state, or ().
            plain_rollout_info: What was stored of them; of each distribution the row.

        Returns:
            Action, next state and a ``PPGTrainInfo`` for ``calc_loss``.

        Raises:
            ValueError: If no experience was observed yet.
        """
        if self.form is None:
            raise ValueError(
                "train_step needs an experience: call observe_for_aux_replay first"
            )
        # The network chooses an action too, but what counts is the one that was done.
        new = ppg_network_forward(self.network, inputs, state, True, 0.0)
        old = plain_rollout_info
        info = PPGTrainInfo(
            action=old.action,
            log_prob=old.log_prob,
            rollout_action_distribution=self.network.distribution(
                old.action_distribution
            ),
            rollout_value=old.value,
            rollout_log_prob=old.log_prob,
            rollout_next_value=old.next_value,
        )
        return AlgStep(new.output, new.state, info.absorbed(new.info))

    def calc_loss(self, info: PPGTrainInfo, target: Tensor | None = None) -> LossInfo:
        """Return the loss (T, B) of steps that ``train_step`` has judged.

        Args:
            info: The judged steps.
            target: Targets of the values (T, B); None computes them.
        """
        loss: LossInfo = self.loss(info, target)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the network's weights aside."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }
        if self.buffer:
            observation, info = map_nest(lambda *x: torch.stack(x), *self.buffer)
            state |= {"observation": observation, "info": info._asdict()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.buffer = []
        if "info" in state:
            device = self.parameters[0].device
            steps = (state["observation"], PPGRolloutInfo(**state["info"]))
            for t in range(len(state["info"]["reward"])):
                step = map_nest(lambda x, t=t: x[t].to(device), steps)
                self.observe_for_aux_replay(step)


# %% [markdown]
# ## The policy phase
#
# The policy phase is PPO, the very loop of {doc}`/chapters/ppo`. All that it needs is a
# policy: a network and an action distribution. `PhasicNetwork` makes rows and values of
# what the disjoint network says. The action distributions are those of the chapters
# before, so that the policy serves discrete actions, boxes and the hybrid actions of
# {doc}`/chapters/hybrid_action`.
#
# Pixels, or a map, need layers that look at neighbours. If an observation has three
# dimensions, a small convolutional encoder takes the place of the plain one. It takes
# pictures with the channels at either end.


# %% tags=["export"]
class ConvolutionalEncodingNetwork(nn.Module):
    """An encoder without memory for pictures: two convolutions and a linear layer.

    In a picture of more than 16 cells in each direction the first convolution looks at
    every fourth place only.

    Args:
        observation_spec: A Box with the shape (channels, height, width) or (height,
            width, channels): the channels are the fewer of both ends. Bytes are scaled
            to [0, 1].
        hidden: Number of features.

    Attributes:
        output_size: Number of features F.

    Raises:
        ValueError: If the space has another form.
    """

    def __init__(self, observation_spec: spaces.Space[Any], hidden: int = 64) -> None:
        super().__init__()
        shape = observation_spec.shape or ()
        if not isinstance(observation_spec, spaces.Box) or len(shape) != 3:
            raise ValueError(
                "observation_spec must be a Box with the shape (channels, height, "
                f"width) or (height, width, channels), got {observation_spec}"
            )
        self.output_size = hidden
        self.scale = 1 / 255 if observation_spec.dtype == np.uint8 else 1.0
        self.channels = -1 if shape[-1] < shape[0] else -3
        channels, *sides = np.roll(shape, -self.channels).tolist()
        convolutions = (
            nn.Conv2d(channels, 16, 8, stride=4)
            if min(sides) > 16
            else nn.Conv2d(channels, 16, 3, padding=1),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
        )
        for layer in convolutions:
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            assert layer.bias is not None  # for the type checker
            nn.init.zeros_(layer.bias)
        first, second = convolutions
        self.convolutions = nn.Sequential(
            first, nn.ReLU(), second, nn.ReLU(), nn.Flatten()
        )
        with torch.no_grad():
            count = self.convolutions(torch.zeros(1, channels, *sides)).shape[1]
        self.features = linear(count, hidden, math.sqrt(2))

    def planes(self, observation: Tensor) -> Tensor:
        """Return pictures (B, C, H, W) of numbers that are about 1."""
        pictures = observation.to(self.features.weight.dtype) * self.scale
        return pictures.movedim(self.channels, -3).flatten(0, -4)

    def forward(self, observation: Tensor, state: Any = ()) -> tuple[Tensor, Any]:
        """Return features ``(*, F)`` of pictures, and the state as it came."""
        features = self.features(self.convolutions(self.planes(observation))).tanh()
        return features.view(*observation.shape[:-3], self.output_size), state


class PhasicNetwork(nn.Module):
    """The disjoint network as the network of a ``Policy``.

    Args:
        network: The disjoint network, for observations in a Box.
        normalizer: Module that the observations are seen through.
    """

    def __init__(
        self, network: DisjointPolicyValueNetwork, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.network, self.normalizer = network, normalizer or nn.Identity()
        self.shape = network.observation_spec.shape or ()
        kinds = list(leaves(network.action_spec))
        self.is_hybrid = len(kinds) > 1
        self.widths = [
            int(leaf.n)
            if isinstance(leaf, spaces.Discrete)
            else 2 * spaces.flatdim(leaf)
            for leaf in kinds
        ]

    def observe(self, obs: Tensor) -> Tensor:
        """Return observations as the network takes them: in their shape, normalised."""
        if obs.shape[-len(self.shape) :] != self.shape:
            obs = obs.unflatten(-1, self.shape)
        seen: Tensor = self.normalizer(obs)
        return seen

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows that describe the policy at observations."""
        leaf_rows = self.leaf_rows(obs)
        if not self.is_hybrid:
            return leaf_rows[0]
        # Hybrid actions want logits, then all means, then all deviations.
        logit, *boxes = leaf_rows
        mu, log_sigma = zip(*(box.chunk(2, -1) for box in boxes), strict=True)
        return torch.cat([logit, *mu, *(x.exp() for x in log_sigma)], -1)

    def leaf_rows(self, obs: Tensor) -> tuple[Tensor, ...]:
        """Return one row for each leaf of the action space."""
        heads = self.network.heads
        features, _ = heads.policy_encoder(self.observe(obs))
        return tuple(project(features) for project in heads.projections)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, as the policy phase uses them."""
        heads, seen = self.network.heads, self.observe(obs)
        if heads.value_encoder is None:
            (_, value, _), _ = heads(seen, (), False)
        else:
            features, _ = heads.value_encoder(seen)
            value = heads.value_head(features).squeeze(-1)
        result: Tensor = value
        return result


def make_phasic_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    share_encoder: bool = False,
    detach: Detach = "always",
    hidden: int = 64,
    normalize: bool = False,
) -> Policy:
    """Build a policy on the disjoint network.

    Args:
        observation_space: A Box with one dimension, or a picture with three, or what
            ``plain_space`` made of it. Observations may come flat.
        action_space: Discrete, a Box with one dimension, or hybrid as in
            ``HybridActions.from_space``, or what ``plain_space`` made of it.
        share_encoder: Whether policy and value share an encoder.
        detach: As in ``DisjointPolicyValueNetwork``.
        hidden: Width of the hidden layers.
        normalize: Whether observations are normalised with ``RunningMoments``.

    Raises:
        TypeError: If a space is of another kind.
        ValueError: If a space has another form.
    """
    observation_space, action_space = (
        as_space(observation_space),
        as_space(action_space),
    )
    shape = observation_space.shape or ()
    if not isinstance(observation_space, spaces.Box) or len(shape) not in (1, 3):
        raise ValueError(
            "observation_space must be a Box with one dimension or with three, got "
            f"{observation_space}"
        )
    encoder: Callable[..., Any] = (
        partial(ConvolutionalEncodingNetwork, hidden=hidden)
        if len(shape) == 3
        else partial(EncodingNetwork, hidden=(hidden, hidden))
    )
    network = DisjointPolicyValueNetwork(
        observation_space, action_space, encoder, share_encoder, detach=detach
    )
    normalizer = RunningMoments(*shape) if normalize else None
    recipe = {
        "observation_space": plain_space(observation_space),
        "action_space": plain_space(action_space),
        "share_encoder": share_encoder,
        "detach": detach,
        "hidden": hidden,
        "normalize": normalize,
    }
    hybrid = isinstance(action_space, spaces.Tuple | spaces.Dict)
    actions = (HybridActions.from_space if hybrid else make_actions)(action_space)
    phasic = PhasicNetwork(network, normalizer)
    return Policy(phasic, actions, ("make_phasic_policy", recipe))


# %% [markdown]
# ## The algorithm
#
# `PPGAlgorithm` alternates the phases. It is a learner as {doc}`/chapters/workshop/runs` knows it.
# An iteration is one iteration of PPO. What PPO saw of it goes into the auxiliary buffer,
# and each `aux_interval` iterations an auxiliary phase follows. Its step size falls in the
# same straight line as that of PPO.


# %% tags=["export"]
AUX_METRICS = ("value_loss", "aux_value_loss", "kl", "kl_at_start")


class PPGAlgorithm:
    """Phasic policy gradient: PPO, and an auxiliary phase every few iterations.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies that resets in the
            step that ends an episode.
        config: The settings.
        policy_error: As in ``PPO``.

    Attributes:
        ppo: The learner of the policy phase.
        aux: The learner of the auxiliary phase.

    Raises:
        ValueError: If the number of environments is another one, or they reset later.
    """

    def __init__(
        self,
        policy: Policy,
        envs: VectorEnv[Any, Any, Any],
        config: PPGConfig,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
    ) -> None:
        self.policy, self.config = policy, config
        self.ppo = PPO(policy, envs, config, policy_error=policy_error)
        if self.ppo.collector.resets_later:
            raise ValueError("envs must have autoreset mode SAME_STEP, got NEXT_STEP")
        phasic: Any = policy.network
        self.aux = PPGAuxAlgorithm(
            phasic.network.observation_spec,
            phasic.network.action_spec,
            config=config,
            dual_actor_value_network=phasic.network,
            aux_options=config.aux_options,
            prepare=phasic.observe,
        )

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.ppo.step

    @property
    def total_steps(self) -> int:
        """Steps after which the training is over."""
        return self.ppo.total_steps

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.ppo.checkpoint_due

    def iterate(self) -> dict[str, float]:
        """Run a policy phase and, when it is due, an auxiliary phase."""
        batch = self.ppo.collect()
        if not self.config.aux_enabled:
            return self.ppo.update(batch)
        rows = self.rows(batch)
        metrics = self.ppo.update(batch)
        self.observe(rows)
        # Metrics have the same names in each iteration. Most have nothing to tell.
        metrics |= {f"aux/{name}": math.nan for name in AUX_METRICS}
        if self.ppo.iteration % self.aux.interval == 0:
            share = metrics["charts/learning_rate"] / self.config.learning_rate
            rate = self.config.aux_learning_rate * share
            self.aux.optimizer.param_groups[0]["lr"] = rate
            metrics |= self.aux.train_iter()
        return metrics

    @torch.no_grad()
    def rows(self, batch: Rollout) -> tuple[Tensor, ...]:
        """Return what described the policy while it acted, leaf by leaf."""
        phasic: Any = self.policy.network
        rows: tuple[Tensor, ...] = phasic.leaf_rows(batch.obs)
        return rows

    @torch.no_grad()
    def observe(self, rows: tuple[Tensor, ...]) -> None:
        """Hand the last rollout to the auxiliary phase, step by step."""
        batch, value, next_value = self.ppo.seen
        ended = batch.terminated | batch.truncated
        step_type = torch.where(ended, LAST, MID)
        discount = (~batch.terminated).to(value.dtype)
        for t in range(len(batch.obs)):
            info = PPGRolloutInfo(
                tuple(row[t] for row in rows),
                batch.action[t],
                (),
                value[t],
                (),
                step_type[t],
                discount[t],
                batch.reward[t],
                (),
                next_value[t],
            )
            self.aux.observe_for_aux_replay((batch.obs[t], info))

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        return {"ppo": self.ppo.state_dict(), "aux": self.aux.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        self.ppo.load_state_dict(state["ppo"])
        self.aux.load_state_dict(state["aux"])


# %% [markdown]
# ## Levels that nobody has seen
#
# PPG was made for games whose levels are drawn anew, Procgen {cite:p}`cobbe2020`. An agent
# may train on some levels and be judged on others. Here is a small world of that kind. A
# level is a maze with walls, a start and a goal, and its number decides all of them. The
# agent sees the whole map in three layers: walls, itself, goal. It moves in four directions,
# gets 1 at the goal, and an episode is cut off after 30 steps.
#
# The code is in {doc}`workshop/worlds`: `MazeLevels` for many copies at once, `Maze` for one.

# %% [markdown]
# ## See it: an auxiliary phase
#
# We let PPO balance a pole for a while and collect the experience of 16 policy phases. From
# this very point we run the auxiliary phase several times: for one, three and six epochs, and
# with the clone weights 0 and 1. Then we ask the network about all of the experience. Rewards
# are a twentieth again, so that errors of values and nats are of about one size. An error of 1
# is that of a value that says the same of every state: we divide by the targets' variance.

# %% mystnb={"image": {"alt": "Two panels over auxiliary epochs 0 to 6, three seeds each. Left, on a logarithmic scale: the errors of the value and of the auxiliary value, as a part of the targets' variance, fall with each epoch, and that of the auxiliary value starts far above 1. Right: the divergence from the old policy grows with the epochs, less with the clone term than without it"}}
import copy
from dataclasses import replace

from literate_rl.workshop.runs import fit, flat_env


def make_learner(env, config):
    """Build environments, the policy that fits them, and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    policy = make_phasic_policy(
        envs.single_observation_space,
        envs.single_action_space,
        config.share_encoder,
        config.detach,
    )
    return PPGAlgorithm(policy, envs, config)


config = replace(ppg_settings("CartPole-v1"), aux_interval=1_000)


def balanced(seed):
    """Return a learner after 20 policy phases, with the experience of the last 16."""
    learner = make_learner(partial(paid, 0.05), replace(config, seed=seed))
    for _ in range(20):
        learner.iterate()
    learner.aux.buffer = learner.aux.buffer[-16 * config.num_steps :]
    return learner


def phase(learner, epochs, weight, reference="snapshot"):
    """Run an auxiliary phase from the same start; return algorithm and metrics."""
    aux = copy.deepcopy(learner.aux)
    aux.options = aux.options._replace(num_updates_per_train_iter=epochs)
    aux.loss.weight = weight
    aux.config = replace(config, kl_reference=reference)
    return aux, aux.train_iter()


def after(learner, epochs, weight):
    """Return both errors, as parts of the targets' variance, and the divergence."""
    observation, info = learner.aux.chunks()
    info = info._replace(action_distribution=learner.aux.snapshot(observation))
    aux = phase(learner, epochs, weight)[0] if epochs else learner.aux
    inputs = TimeStep(info.step_type, info.reward, info.discount, observation)
    with torch.no_grad():
        judged = aux.train_step(inputs, (), info).info
    variance = aux.loss.target(judged).var()
    errors = [x.mean() for x in aux.calc_loss(judged).extra]
    return [
        (errors[0] / variance).item(),
        (errors[1] / variance).item(),
        errors[2].item(),
    ]


epochs, learners = (0, 1, 3, 6), [balanced(seed) for seed in (1, 2, 3)]
table = np.array(
    [
        [[after(learner, n, weight) for n in epochs] for learner in learners]
        for weight in (0.0, 1.0)
    ]
)  # clone weight, seed, epochs, number
fig, axes = plt.subplots(1, 2, figsize=(7, 2.6))
for index, label in enumerate(("value", "auxiliary value")):
    axes[0].semilogy(
        epochs, table[1, :, :, index].T, "o-", color=f"C{index}", alpha=0.6
    )
    axes[0].plot([], [], color=f"C{index}", label=label)
axes[0].axhline(1, color="#808080", linewidth=0.8)
axes[0].set(xlabel="auxiliary epochs", ylabel="error / variance")
for index, (label, style) in enumerate(
    (("$\\beta = 0$", "o--"), ("$\\beta = 1$", "o-"))
):
    axes[1].plot(
        epochs, table[index, :, :, 2].T, style, color=f"C{index + 2}", alpha=0.6
    )
    axes[1].plot([], [], style, color=f"C{index + 2}", label=label)
axes[1].set(xlabel="auxiliary epochs", ylabel="divergence in nats", ylim=(0, None))
for axis in axes:
    axis.legend()
fig.tight_layout()
print("by seed, before the phase and after six epochs with the clone term:")
for index, name in enumerate(("value", "auxiliary value")):
    print(
        f"{name:16s}",
        np.round(table[1, :, 0, index], 2),
        np.round(table[1, :, 3, index], 2),
    )
print("divergence after six epochs, by seed:")
for index, name in enumerate(("without", "with")):
    print(f"{name:16s}", np.round(table[index, :, 3, 2], 4))

# %% [markdown]
# **What to notice.** With each epoch both values fit better. Before the phase they are worse
# than a value that says the same of every state, the grey line. The auxiliary value starts from
# much further away, because nothing has trained it in the policy phases. After six epochs both
# are below the line. Without the clone term the policy drifts meanwhile, and nobody asked it to.
# With it the drift is many times smaller, for each of the three seeds.
#
# ## See it: a run
#
# A short run, with the auxiliary phases marked; the same with a clone weight of 100; and with rewards
# in units of the returns' deviation (`scale_reward` of {doc}`/chapters/ppo`). The step size
# hardly falls in the first part of a long run, and here it does not fall at all. Single runs show the
# machinery and nothing about how well it learns. Longer runs over several seeds are below.

# %% mystnb={"image": {"alt": "Two panels over 16,640 steps with four auxiliary phases, for three kinds of run. Left: the returns of PPG on CartPole rise and fall between 20 and 300. Right, on a logarithmic scale: the divergence in each auxiliary phase. With rewards as they are it grows from phase to phase to a tenth of a nat or more, with a clone weight of 100 it grows too and mostly stays below that, with scaled rewards it stays lower than both by far"}}
config = replace(ppg_settings("CartPole-v1"), total_steps=16_640, anneal=False)
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), layout="constrained")
kinds = {
    "as it is": {},
    "clone weight 100": {"clone_weight": 100.0},
    "scaled rewards": {"scale_reward": True},
}
names = ("step", "charts/episodic_return", "aux/kl_at_start", "aux/kl")
drifts = {}
for label, changes in kinds.items():
    learner = make_learner("CartPole-v1", replace(config, **changes))
    history = fit(learner, progress=False)
    table = np.array([[h[name] for name in names] for h in history])
    steps, returns, at_start, drift = table.T
    seen, phases = ~np.isnan(returns), ~np.isnan(drift)
    drifts[label] = at_start[phases], drift[phases]
    steps /= 1000
    axes[0].plot(steps[seen], returns[seen], linewidth=0.8, label=label)
    axes[1].semilogy(steps[phases], drift[phases], "o-")
    print(f"{label}: largest divergence at the start of a phase", end=" ")
    print(f"{at_start[phases].max():.0e}, in last epochs {drift[phases].max():.0e}")
axes[0].set(xlabel="thousand steps", ylabel="return")
axes[1].set(xlabel="thousand steps", ylabel="divergence in nats")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
for step in steps[phases]:
    axes[0].axvline(step, color="#808080", linewidth=0.8)

# %% [markdown]
# **What to notice.** At the start of a phase the clone is the policy itself, so the divergence is
# exactly 0. Then the policy drifts, and the lines tell by how much. With rewards as they are it
# drifts further from phase to phase, in the end by a tenth of a nat or more. A clone weight of 100 makes
# the drift smaller, but not a hundred times. With scaled rewards it is smaller by far. So the size of
# the rewards decides more here than the clone weight does.

# %% tags=["claims"]
(start, plain), (_, heavy), (_, scaled) = drifts.values()
assert (start == 0).all(), "the clone is the policy itself"
assert plain[-1] > 2 * plain[0], "further from phase to phase"
assert 0.09 < plain.max() < 1, "a tenth of a nat or more"
assert 1 < plain.sum() / heavy.sum() < 20, "smaller, but not a hundred times"
assert scaled.max() < 0.1 * heavy.max(), "smaller by far"

# %% [markdown]
# In a terminal the same takes one line, `python -m literate_rl ppg --env CartPole-v1`, with
# the progress, the metrics, the checkpoints and the evaluation of {doc}`/chapters/workshop/runs`. A
# run that is stopped between two auxiliary phases keeps its buffer in the checkpoint.
#
# ## See it: mazes
#
# Here are six of the levels: the agent is orange, its goal green.

# %% mystnb={"image": {"alt": "Six small mazes of seven by seven cells with dark walls, an orange cell for the agent and a green one for the goal"}}
from literate_rl.workshop.worlds import Maze, MazeLevels

fig, axes = plt.subplots(1, 6, figsize=(7, 1.4))
for level, axis in enumerate(axes):
    maze = Maze(range(level, level + 1))
    maze.reset(seed=0)
    axis.imshow(maze.render())
    axis.set_title(f"level {level}", fontsize=9)
    axis.axis("off")
fig.tight_layout()

# %% [markdown]
# ## Does it pay?
#
# The paper reports that PPG learns Procgen's sixteen games from clearly fewer steps than PPO.
# PPO is here the same agent without the auxiliary phase. We ask on five tasks:
#
# - CartPole, where an agent plays in the only world that there is, with the settings of
#   {doc}`/chapters/ppo`;
# - the same with rewards in units of the returns' deviation;
# - the mazes, trained on 200 levels and judged on these and on 500 others, where both agents were
#   tuned, with six settings each on a seed that is not used again;
# - the mazes with each rollout used once in the policy phase, as in the paper, and not six times;
# - StarPilot, one of the sixteen games, trained on 200 levels, from pixels. 300,000 steps are what
#   one processor can do in a quarter of an hour. The paper's runs are a hundred million steps.
#
# `python -m benchmarks.ppg_learning` makes the data of the first four anew, and
# `python -m benchmarks.ppg_procgen` those of the last.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Five panels with learning curves of PPG and PPO. CartPole: both rise to 500, PPO earlier. CartPole with scaled rewards: both rise more slowly, PPG to 460 and PPO to 360, with wide bands. Mazes: both rise from 0.3 to about 0.9, PPG a little above PPO. Mazes with one epoch: both rise to less than 0.6, on top of each other. StarPilot: both rise from below 2 to near 2.7 and stay there, on top of each other"}}
from literate_rl.evaluation import paired_difference, t_interval
from literate_rl.workshop.runs import stored_runs


def mean_with_interval(values, digits=2):
    """Return a mean and its 95 % t interval as text, or the values if they are few."""
    if len(values) < 5:
        return ", ".join(f"{value:.{digits}f}" for value in values)
    low, high = t_interval(values)
    return f"{values.mean():.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


tasks = {  # title, decimals of a return
    "ppg_cartpole": ("CartPole", 0),
    "ppg_cartpole_scaled": ("CartPole, scaled", 0),
    "ppg_maze": ("mazes", 2),
    "ppg_maze_once": ("mazes, one epoch", 2),
    "ppg_starpilot": ("StarPilot", 1),
}
fig, axes = plt.subplots(2, 3, figsize=(7, 4.4))
for axis, (name, (title, digits)) in zip(axes.flat, tasks.items(), strict=False):
    stored = stored_runs(name)
    print(f"{title}, {len(stored['PPO'].final)} seeds")
    numbers = {}
    for (variant, runs), color in zip(stored.items(), ("C0", "C1"), strict=True):
        steps = runs.steps / 1000
        axis.plot(steps, runs.curves.mean(0), color=color, label=variant)
        if len(runs.curves) >= 5:
            band = t_interval(runs.curves)
            axis.fill_between(steps, *band, color=color, alpha=0.25, linewidth=0)
        else:
            axis.plot(steps, runs.curves.T, color=color, alpha=0.4, linewidth=0.8)
        numbers[variant] = {
            "while training": runs.area,
            "at the end, no noise": runs.final,
            **{f"at the end, {where}": x for where, x in runs.judged.items()},
            "CPU seconds": runs.cpu_seconds,
        }
    for label, ppg in numbers["PPG"].items():
        ppo, places = numbers["PPO"][label], 0 if label == "CPU seconds" else digits
        print(f"  {label}: PPG {mean_with_interval(ppg, places)},")
        print(f"    PPO {mean_with_interval(ppo, places)}, difference", end=" ")
        print(f"{mean_with_interval(ppg - ppo, places and places + 1)}")
    axis.set_title(title, fontsize=10)
for axis in axes[:, 0]:
    axis.set_ylabel("return while training")
for axis in (*axes[1, :2], axes[0, 2]):
    axis.set_xlabel("thousand steps")
axes[1, 2].axis("off")
axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
fig.tight_layout()

# %% [markdown]
# How good is it to do nothing clever? An agent that draws its moves blindly solves this part of
# the unseen mazes:

# %%
worlds = MazeLevels(1_000, range(1_000_000, 1_000_500))
worlds.reset(seed=0)
rng, won = np.random.default_rng(0), np.zeros(1_000, dtype=bool)
playing = ~won
for _ in range(worlds.limit):
    _, _, terminated, truncated, _ = worlds.step(rng.integers(4, size=1_000))
    won |= playing & terminated
    playing &= ~(terminated | truncated)
print(f"blindly: {won.mean():.2f}")

# %% [markdown]
# **What to notice.** Brackets and bands are 95 % t intervals over seeds, and with five of them such an
# interval is wide. StarPilot has three, so each is shown instead.
#
# In CartPole every seed of both ends at 500. On the way PPO has the higher mean, and no difference
# is seen: the interval of the difference includes zero. Measured from the highest mean that a run
# has had so far, all five runs of PPG fall back by more than 100 before 40,000 steps, and two of
# PPO's. The drift that we saw above may be a part of the reason, but it is not all of it: with scaled
# rewards there is hardly any drift, and runs of both fall back by as much.
#
# With scaled rewards both learn more slowly, and now PPG has the higher mean. Four of its five seeds
# end at 500, and two of PPO's. One reading is that small errors make the value slow to learn, and
# then more training of the value helps. We have not measured that, and the interval of the
# difference includes zero, so this is a hint and no proof.
#
# In the tuned mazes both go from blind moves to nine in ten training levels, and to seven in ten of
# the unseen ones. PPG has the higher mean in each row, by one or two levels in a hundred, and the
# interval of each difference includes zero: no difference is seen. For that PPG takes nearly half as
# much processor time again. Without noise both solve less: an agent that walks into a wall does so
# again in each step until its time is up.
#
# With one epoch for each rollout both gain less than half as much over blind moves on the training
# levels, and a little more than half on unseen ones. Again no difference is seen. So using old
# rollouts for the value alone does not make up for what the policy has not learned from them.
#
# StarPilot tells nothing about the two. Both leave the first 2 quickly and then stay near 2.7, while
# the scale of this game, on its easy setting, goes from 2.5, for an agent that was trained without
# seeing anything, to 64 {cite:p}`cobbe2020`. The runs end where the game begins. PPO ends higher on
# the unseen levels with all three seeds, by 0.1 to 0.6, and PPG on the training levels with two of
# three, by 0.1 and 1.7. Three seeds near the floor decide nothing, in either direction.
#
# Where would a clear advantage begin? Not here, as far as these seeds can tell. The paper's runs are
# several hundred times as long, on
# [the hard setting](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L10) and with unlimited levels; they use
# [each rollout once](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L17-L18) in the policy phase and
# [32 rollouts](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L27) in an auxiliary phase, a discount of
# [0.999](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L19) and
# [a deep network](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L43-L47) for pixels. And in our mazes the premise
# is in doubt: six epochs for policy and value solve far more levels than one, so there the policy,
# too, stands more training than the paper's setting gives it.

# %% tags=["claims"]
for name in ("ppg_maze", "ppg_maze_once"):
    both = stored_runs(name)
    ppg, ppo = (
        [runs.area, runs.final, *runs.judged.values()]
        for runs in (both["PPG"], both["PPO"])
    )
    for ours, theirs in zip(ppg, ppo, strict=True):
        found = paired_difference(ours, theirs)
        assert found.low < 0 < found.high, "no difference seen"
        if name == "ppg_maze":
            assert 0 < found.mean < 0.025, "by one or two levels in a hundred"


def largest_falls(runs, until=np.inf):
    """Return how far each curve falls below its own highest point so far."""
    curves = runs.curves[:, runs.steps <= until]
    return (np.maximum.accumulate(curves, 1) - curves).max(1)


both = stored_runs("ppg_cartpole")
assert all((runs.final == 500).all() for runs in both.values()), (
    "every seed ends at 500"
)
found = paired_difference(both["PPG"].area, both["PPO"].area)
assert found.low < found.mean < 0 < found.high, "no difference seen"
assert (largest_falls(both["PPG"], 40_000) > 100).sum() == 5, "all five of PPG"
assert (largest_falls(both["PPO"], 40_000) > 100).sum() == 2, "two of PPO"

both = stored_runs("ppg_cartpole_scaled")
found = paired_difference(both["PPG"].area, both["PPO"].area)
assert found.low < 0 < found.mean < found.high, "a hint and no proof"
assert [(runs.final == 500).sum() for runs in both.values()] == [4, 2], "at 500"
assert all((largest_falls(runs) > 100).any() for runs in both.values()), "runs of both"

many, one = (stored_runs(f"ppg_maze{end}") for end in ("", "_once"))
for kind in ("PPG", "PPO"):
    gains = {
        where: (one[kind].judged[where].mean() - won.mean())
        / (many[kind].judged[where].mean() - won.mean())
        for where in ("training", "unseen")
    }
    assert gains["training"] < 0.5 < gains["unseen"] < 0.65, "about half as much"
    assert one[kind].final.mean() < 0.5 * many[kind].final.mean(), "far more levels"

both = stored_runs("ppg_starpilot")
unseen, trained = (
    both["PPG"].judged[where] - both["PPO"].judged[where]
    for where in ("unseen", "training")
)
assert -0.65 < unseen.min() < unseen.max() < -0.05, "PPO with all three seeds"
assert (trained > 0).sum() == 2, "PPG with two of three"
assert 1.6 < trained.max() < 1.7, "by 1.7 at most"
for runs in both.values():
    assert runs.curves[:, 0].max() < 2, "the first 2"
    later = runs.curves[:, runs.steps > 60_000]
    assert 2.6 < later.mean() < 2.9, "then near 2.7"
    assert later.max() < 4, "and never far from it"

# %% [markdown]
# ### One thing changed
#
# What the paper varies: $N_\pi$, the auxiliary epochs and $\beta$; and an encoder that is shared by
# policy and value. Each is compared with the tuned agents above in the mazes, seed by seed.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels of points, one row for each of six changes and one point for each seed: 16 phases, 6 auxiliary epochs, clone weights 0 and 10, and a shared encoder for PPG and for PPO. Left, the change of the return while training: nearly all points lie between -0.04 and 0, those of PPG with a shared encoder between -0.11 and -0.01. Right, the change on unseen levels: points lie on both sides of 0"}}
base = stored_runs("ppg_maze")
changed = {f"PPG, {k}": ("PPG", x) for k, x in stored_runs("ppg_maze_ablation").items()}
for kind, runs in stored_runs("ppg_maze_shared").items():
    changed[f"{kind}, shared encoder"] = (kind, runs)
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True)
for row, (label, (kind, runs)) in enumerate(changed.items()):
    seeds = len(runs.area)
    shifts = [
        runs.area - base[kind].area[:seeds],
        runs.judged["unseen"] - base[kind].judged["unseen"][:seeds],
    ]
    for axis, shift in zip(axes, shifts, strict=True):
        axis.plot(shift, np.full(seeds, row), "o", color="C0", alpha=0.5, markersize=4)
        axis.plot(shift.mean(), row, "|", color="C3", markersize=14)
    texts = [mean_with_interval(shift, 3) for shift in shifts]
    print(f"{label}, {seeds} seeds: training {texts[0]}, unseen {texts[1]}")
for axis, title in zip(axes, ("return while training", "unseen levels"), strict=True):
    axis.axvline(0, color="#808080", linewidth=0.8)
    axis.set_xlabel(f"{title}: change")
axes[0].set_yticks(range(len(changed)), changed)
axes[0].invert_yaxis()
fig.tight_layout()

# %% [markdown]
# **What to notice.** Points are seeds, red lines are means. Those of three seeds are printed one by
# one. While training, each of the twelve points of the first four rows lies below zero: these changes
# cost something, one to four levels in a hundred. On unseen levels each of them has points on both
# sides of zero, so no difference is seen there, and three seeds are few to see one. The clone weight
# matters little, 0 or 10 instead of 1. That fits what CartPole has shown: a maze pays at most 1,
# which is about the size of scaled rewards, and with those there was hardly any drift to prevent.
#
# What costs most is a shared encoder, for PPG while training. Its value learns through the encoder in
# the auxiliary phases only. For PPO, where it does so all the time, no difference is seen.

# %% tags=["claims"]
ablation = [changed[label][1] for label in changed if label.startswith("PPG, ")][:4]
for runs in ablation:
    cost = runs.area - base["PPG"].area[:3]
    assert cost.min() > -0.04, "four levels in a hundred at most"
    assert cost.max() < 0, "each of the twelve points"
    shift = runs.judged["unseen"] - base["PPG"].judged["unseen"][:3]
    assert shift.min() < 0 < shift.max(), "on both sides of zero"
for kind in ("PPG", "PPO"):
    runs = changed[f"{kind}, shared encoder"][1]
    found = paired_difference(runs.area, base[kind].area)
    assert found.low < found.mean < 0, "a shared encoder costs, on average"
    assert (found.high < 0) == (kind == "PPG"), "seen for PPG only"
    unseen = paired_difference(runs.judged["unseen"], base[kind].judged["unseen"])
    assert unseen.low < 0 < unseen.high, "and on unseen levels for neither"


# %% [markdown]
# ## Traps
#
# ### Trap: the clone of a policy that is gone
#
# What is "the old policy" of the clone term? The paper means the one at the start of the
# auxiliary phase. ALF stores the distribution of the rollout and clones that one. In the
# meantime up to $N_\pi$ policy phases have improved the policy, and the clone term pulls it
# back to where it came from. `kl_reference="rollout"` does the same. How far away is it?

# %%
for reference in ("snapshot", "rollout"):
    starts = [
        phase(learner, 1, 1.0, reference)[1]["aux/kl_at_start"] for learner in learners
    ]
    print(f"{reference:10s}divergence at the start, by seed:", np.round(starts, 4))

# %% [markdown]
# From the snapshot it is zero, as is its gradient: at first the term does nothing. It only
# grows as the policy moves.
#
# ### Trap: log-probabilities instead of probabilities
#
# DI-engine computes the clone term with `kl_div` from the log-probabilities of the actions
# taken, old and new. That function wants log-probabilities first, but *probabilities* second:

# %%
old = torch.tensor([-0.5, -1.0, -2.0])
new = old.clone().requires_grad_()
loss = nn.functional.kl_div(new, old, reduction="batchmean")
loss.backward()
print(f"divergence of a policy from itself: {loss.item()}")
print("its gradient:", new.grad.tolist())

# %% [markdown]
# The value is not a number, and the gradient makes every action that was taken less likely.
# `kl_divergence` of two distributions has no such trap.
#
# ### Trap: the last step of a chunk
#
# A $\lambda$-return needs the value of the step that comes next. At the end of a chunk there
# is none in the chunk. ALF appends an advantage of zero, so the last step of each chunk has
# its own old value as its target: it learns nothing. We store the value of each step's true
# successor. In a chunk of eight steps with a reward of one and old values of zero:

# %%
reward, zero = torch.ones(8, 1), torch.zeros(8, 1)
never = torch.zeros(8, 1, dtype=torch.bool)
target = lambda_returns(reward, zero, never, never, 0.99, 0.95).flatten()
print("with the successor: ", [f"{x:.1f}" for x in target.tolist()])
inner = lambda_returns(reward[:7], zero[:7], never[:7], never[:7], 0.99, 0.95)
print("with a zero appended:", [f"{x:.1f}" for x in [*inner.flatten().tolist(), 0.0]])

# %% [markdown]
# ### Trap: greedy with a chance of something else
#
# `epsilon_greedy=0.1` of this network does not mean what it means in a book on Q-learning.
# There one action in ten is drawn from *all* actions alike. Here it is drawn from the
# *policy*, which may well draw the mode again.

# %%
network = DisjointPolicyValueNetwork(spaces.Box(-1, 1, (4,)), spaces.Discrete(10))
network.heads.projections[0].logits.bias.data[3] = 3.0
inputs = TimeStep((), (), (), torch.zeros(20_000, 4))
action = ppg_network_forward(network, inputs, (), epsilon_greedy=0.5).output
print(f"the mode: {(action == 3).float().mean():.3f}, uniform would give 0.550")

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | the paper's code | ALF | CleanRL | DI-engine |
# |---|---|---|---|---|---|
# | error of the values | squared, or a function | [half squared](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L110-L115) | [squared, or a function](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_phase_loss.py#L101-L102) | [half squared](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L457-L458) | [half squared, with a value clip](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/ppg.py#L53-L57) |
# | targets | from what the rollout said, chunk by chunk | [stored](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L160-L161) | [from what the rollout said](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_phase_loss.py#L116-L134), chunk by chunk | [stored](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L418) | [stored](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppg.py#L305-L307) |
# | cloned policy | at the start of the phase, or of the rollout | [at the start of the phase](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L262-L264) | [of the rollout](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_algorithm.py#L180-L184) | [at the start of the phase](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L423-L433) | [log-probabilities of the actions](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/ppg.py#L63-L67) |
# | optimiser | one for each phase | [one for each phase](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L239) | [one for each phase](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg_algorithm.py#L90-L91) | [one for both](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L265) | [one for each part](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppg.py#L182-L183) |
# | buffer after a phase | emptied | [emptied](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L276) | [overwritten bit by bit](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_algorithm.py#L160-L173) | [overwritten](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L417-L418) | [emptied](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppg.py#L688) |
# | truncated step | bootstraps | [counts as the end](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppo.py#L37-L42) | bootstraps | [counts as the end](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppg_procgen.py#L324-L332) | [counts as the end](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppg.py#L486-L495), unless ends are ignored |
# | several leaves in the action | the divergence is a sum | [no leaves](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/distr_builder.py#L46-L49); a [mean](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/ppg.py#L188) over the entries of one tensor | [the divergence fails](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_phase_loss.py#L103-L104) | no | no |
#
# The code was read at the linked commits.
#
# ## On the best device
#
# Buffer and networks follow the policy's device.

# %%
from literate_rl.agents import best_device

device = best_device()
config = replace(ppg_settings("literate_rl/Maze-v0"), total_steps=4_096, aux_interval=2)
worlds = MazeLevels(config.num_envs)
spaces_of_one = worlds.single_observation_space, worlds.single_action_space
on_device = PPGAlgorithm(make_phasic_policy(*spaces_of_one).to(device), worlds, config)
last = fit(on_device, progress=False)[-1]
print(f"trained on {device.type} for {last['step']} steps")
print("finite losses:", all(math.isfinite(last[k]) for k in last if "losses" in k))

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: how many steps downhill?
#
# How often does the optimiser of the auxiliary phase take a step in one phase? Given are the
# interval, the environments, the steps of a rollout, and the three numbers of
# `PPGAuxOptions` in their order: steps of a chunk, chunks of a minibatch, epochs. Everything
# divides evenly.

# %%
from literate_rl.agents import grade


def answer(interval, num_envs, num_steps, length, size, epochs):
    return ...


def counted(interval, num_envs, num_steps, length, size, epochs):
    chunks = torch.arange(interval * num_envs * (num_steps // length))
    return sum(1 for _ in range(epochs) for _ in chunks.split(size))


phases = [(16, 8, 32, 32, 16, 6), (32, 64, 256, 256, 8, 6), (1, 2, 4, 2, 4, 1)]
grade(answer, counted, *phases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(interval, num_envs, num_steps, length, size, epochs):
    samples = interval * num_envs * num_steps
    return epochs * samples // (length * size)


grade(answer, counted, *phases)

# %% [markdown]
# ### Exercise 2: where the pull balances
#
# Near the old policy the divergence grows like a square: $\tfrac12 k \, x^2$ at the distance
# $x$. The auxiliary value pulls with a constant force $f$. Where does the loss
# $-f x + \beta \, \tfrac12 k \, x^2$ have its minimum?


# %%
def answer(force, curvature, weight):
    return ...


def minimum(force, curvature, weight):
    x = np.linspace(0, 10, 100_001)
    loss = -force * x + weight * 0.5 * curvature * x**2
    return round(float(x[loss.argmin()]), 4)


pulls = [(1.0, 1.0, 1.0), (2.0, 0.5, 4.0), (0.3, 2.0, 0.1)]
grade(answer, minimum, *pulls)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(force, curvature, weight):
    # The derivative is zero. The drift goes with one over the clone weight.
    return round(force / (weight * curvature), 4)


grade(answer, minimum, *pulls)

# %% [markdown]
# ### Exercise 3: the divergence of a nest
#
# A policy chooses one of some actions and, independently, one of some others. Given are two
# such policies, each as a pair of lists of probabilities. Return the divergence from the
# first to the second in nats.


# %%
def answer(old, new):
    return ...


def over_pairs(old, new):
    p, q = (np.outer(*pair) for pair in (old, new))
    return float((p * np.log(p / q)).sum())


policies = [
    (([0.5, 0.5], [0.2, 0.8]), ([0.5, 0.5], [0.2, 0.8])),
    (([0.9, 0.1], [0.5, 0.5]), ([0.5, 0.5], [0.5, 0.5])),
    (([0.7, 0.3], [0.1, 0.6, 0.3]), ([0.2, 0.8], [0.3, 0.3, 0.4])),
]
grade(answer, over_pairs, *policies)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(old, new):
    # A sum over the leaves: the joint table is not needed.
    return sum(
        p * math.log(p / q)
        for ps, qs in zip(old, new, strict=True)
        for p, q in zip(ps, qs, strict=True)
    )


grade(answer, over_pairs, *policies)

# %% [markdown]
# ## References
#
# PPG is from {cite:t}`cobbe2021`, who compare it with PPO on Procgen {cite:p}`cobbe2020`. The
# names and arguments of the classes are those of the library ALF.

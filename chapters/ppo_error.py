# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The PPO error
#
# **May I use a batch many times?** Steps in an environment are dear, and the agents so far learn once
# from each. If they learn many times, the policy walks away from its data. Proximal policy
# optimisation, PPO, makes it much safer: its loss stops pushing once an action has become likely or
# unlikely enough {cite:p}`schulman2017`. After this chapter you can read that loss line by line,
# and say of each sample whether it still has a gradient. It takes about 45 minutes to read,
# without exercises. You need the policy gradient ({doc}`policy_gradient`) and advantages
# ({doc}`advantages`).

# %% tags=["export", "hide-input"]
"""The PPO error: clipped surrogate, entropy bonus, value error and KL estimates."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, TypedDict

import torch
from annotated_types import Gt
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from literate_rl.ground.signatures import (
    Float,
    Int,
    Positive,
    below,
    check_finite,
    checked,
)

__all__ = [
    "approx_kl_k3",
    "clipped_surrogate",
    "policy_error_from_log_prob",
    "ppo_info",
    "ppo_policy_data",
    "ppo_policy_data_continuous",
    "ppo_policy_error",
    "ppo_policy_error_continuous",
    "ppo_policy_loss",
    "ppo_value_data",
    "ppo_value_error",
]

# %% tags=["hide-cell", "so-far"] jupyter={"source_hidden": true}
from literate_rl.apps.programs import source

source("advantages")

# %% [markdown]
# ## One batch, many times
#
# The policy gradient is a mean over the actions of the policy as it is. After one update the
# policy is another one, and strictly speaking the batch is used up. That is a waste: a batch costs
# hundreds of steps in the environment, an update costs milliseconds. What happens if we go on?
#
# Give the program of the last page two more loops. It goes through each batch eight times, and each
# time in four parts. One pass over a batch is called an **epoch**, a part a **minibatch**: 32 updates
# from each batch instead of one. The learning rate is halved.

# %% tags=["hide-input"]
from literate_rl.book.growth import grown, runs_of

grown("ppo_error_without_clip", beside="advantages")

# %% [markdown]
# **Notice** how many thin lines fall to the ground. Eleven of twenty runs end below 14 points, worse
# than the random agent, and six hold the pole. With 32 updates the policy moves far away from the
# one that played the batch, and what the batch says is about that one.
#
# Try it. Below, an agent learns to balance a pole in your browser, from batches of 256 steps with ten
# epochs each, and with the **clip**, the brake that this chapter is about. Press Train, and wait
# until it stands. Then press Reset, move the clip to its end, *no clip*, and press Train again:

# %% tags=["claims"]
before, unclipped = runs_of("advantages"), runs_of("ppo_error_without_clip")
assert len(unclipped.final) == 20
assert (unclipped.final < 14).sum() == 11, "eleven of twenty"
assert runs_of("agents").final.min() > 14, "worse than the random agent"
assert (unclipped.final > 475).sum() == 6, "six hold the pole"

# %% tags=["hide-input"]
from literate_rl.book.train_here import train_cartpole

train_cartpole()

# %% [markdown]
# **Notice** what becomes of the pole at this high learning rate, 0.005. In ten stored runs with the
# clip, of 40,960 steps each, the agent holds it in the end. Without the clip most agents learn
# something and lose it again, and eight of ten end below 131 of 500 points. **Notice** also the
# second plot, how many of a batch's actions have become a fifth more or less likely. Early in the run
# these are half of them without the clip, and a quarter with it. Then try the other sliders: does a
# lower rate do what the clip does?

# %% tags=["claims"]
import numpy as np

from literate_rl.runs.runs import stored_runs
from literate_rl.book.train_here import SETTINGS, SLIDERS, TOTAL

with_brake, without_brake = stored_runs("train_here").values()
assert len(with_brake.final) == len(without_brake.final) == 10
assert TOTAL == 40_960
assert SLIDERS["epochs"][1] == 10
assert SLIDERS["learning rate"][1] == 0.005
assert SETTINGS["num_envs"] * SETTINGS["num_steps"] == 256
assert SETTINGS["num_minibatches"] == 8
assert SLIDERS["clip"] == ((0.05, 0.1, 0.2, 0.4, "no clip"), 0.2)
early = [x.watched["outside"][:, 0].mean() for x in (with_brake, without_brake)]
assert 0.2 < early[0] < 0.3, "a quarter"
assert 0.45 < early[1] < 0.55, "half"
assert with_brake.final.min() > 475, "it holds it"
ranked = np.sort(without_brake.final)
assert ranked[-3] < 131, "eight of ten"
lost = without_brake.curves.max(1) > 2 * without_brake.curves[:, -1]
assert lost.sum() > 5, "most learn something and lose it again"

# %% [markdown]
# ## A loss with a brake
#
# So PPO watches the **ratio** $\rho$: how likely an action is now, divided by how likely it was
# when it was taken. Before the first update of a batch it is 1 for every sample, and with one
# update for each batch this chapter would end here. From the second update on it is not 1, and the
# further it is from 1, the less the batch tells about the policy that we have by now. PPO stops
# pushing an action once its advantage has sent the ratio out of $1 \pm \epsilon$, the clip range.
# A second cut at $c$, the dual clip, is optional.
#
# Drag the two sliders. The line is the objective of one sample over its ratio; we want it to be
# large. The shaded height is its slope over the *logarithm* of the probability: how hard the
# sample pulls, and which way. In the first picture the action was better than average: its advantage
# $\hat A$ is 1. In the second it was worse.

# %% tags=["hide-input"]
import torch

# The package's own; this chapter defines it below.
from literate_rl.maths.ppo_error import clipped_surrogate
from literate_rl.book.pictures import Axis, Mark, dial, plot


def objective_and_slope(ratio, advantage, epsilon=0.2, c=None):
    log_prob = ratio.log().requires_grad_()
    zero = torch.zeros_like(ratio)
    objective = clipped_surrogate(log_prob, zero, zero + advantage, epsilon, c)
    (slope,) = torch.autograd.grad(objective.sum(), log_prob)
    return objective.detach(), slope


def upright(words, place, beside, low, high):
    # Without a dual clip there is no place, and nothing to see.
    x, y = ([place] * 2, [low, high]) if place else ([], [])
    name_at, height = [place + beside] if place else [], high * 0.93 + low * 0.07
    yield Mark("line dashed", x, y, "quiet")
    yield Mark("label", name_at, [height] * len(name_at), "quiet", (), words)


ratios = torch.linspace(0.005, 3.595, 360, dtype=torch.float64)
edges = (ratios[1:] + ratios[:-1]) / 2


def frame(epsilon, c):
    bound = None if c == "off" else c
    pictures, readout = [], []
    for advantage, name, low, high, ticks in (
        (1.0, "better than average, Â = 1", -0.2, 1.8, (0, 1)),
        (-1.0, "worse than average, Â = −1", -3.6, 0.8, (-3, -2, -1, 0)),
    ):
        objective, slope = objective_and_slope(ratios, advantage, epsilon, bound)
        picture = plot(
            name,
            f"The clipped surrogate over the ratio, {name}, and its slope.",
            Axis("ratio ρ", 0, 3.6, ticks=(0, 1, 2, 3)),
            Axis("objective, and its slope (shaded)", low, high, ticks),
            Mark("line", [0, 3.6], [0, 0], "faint"),
            *upright("1−ε", 1 - epsilon, -0.26, low, high),
            *upright("1+ε", 1 + epsilon, 0.26, low, high),
            *upright("c", bound, 0.13, low, high),
            Mark("band", ratios.tolist(), slope.tolist(), "accent", [0.0] * 360),
            Mark("line thick", ratios.tolist(), objective.tolist()),
        )
        pictures.append(picture)
        first, *_, last = (slope != 0).nonzero().flatten().tolist()
        dead = [f"below {edges[first - 1]:.2f}"] if first > 0 else []
        dead += [f"above {edges[last]:.2f}"] if last < 359 else []
        readout.append(f"{name}: no slope {' and '.join(dead)}")
    return pictures, "\n".join(readout)


dial(
    "The clipped surrogate over the ratio",
    frame,
    {
        "clip range ε": [k / 20 for k in range(1, 9)],
        "dual clip c": ["off", *(k / 5 for k in range(17, 7, -1))],
    },
    start=(0.2, "off"),
)

# %% [markdown]
# **Notice** where the shading ends. In the first picture it ends at $1 + \epsilon$, because there the
# action has become likely enough. In the second it ends at $1 - \epsilon$, because there it has
# become unlikely enough. A sample that went the *wrong* way keeps its slope and pulls the policy
# back. In the second picture that pull grows without bound, until the dual clip ends it at $c$. The rest of this
# chapter is this picture as a formula and as code.

# %% tags=["claims"]
better, worse = frame(0.2, "off")[1].split("\n")
assert better.endswith("no slope above 1.20"), "likely enough"
assert worse.endswith("no slope below 0.80"), "unlikely enough"
far = torch.tensor([3.0, 30.0, 300.0], dtype=torch.float64)
assert torch.allclose(objective_and_slope(far, -1.0)[1], -far), "without bound"
assert frame(0.2, 2.0)[1].endswith("no slope below 0.80 and above 2.00"), "until c"

# %% [markdown]
# ## The ratio
#
# We want actions of the new policy $\pi_\theta$ with a high advantage, but all we have
# are actions of the policy $\pi_{\text{old}}$ that collected the batch. An average over
# the one is a weighted average over the other:
#
# $$
# \sum_a \pi_\theta(a \mid s)\, \hat A(s, a)
#     = \sum_a \pi_{\text{old}}(a \mid s)\, \rho(\theta)\, \hat A(s, a) .
# $$ (def-importance)
#
# The weight is the ratio. From logarithms of probabilities it is computed as
#
# $$
# \rho(\theta) = \frac{\pi_\theta(a \mid s)}{\pi_{\text{old}}(a \mid s)}
#              = \exp\bigl(\log \pi_\theta(a \mid s) - \log \pi_{\text{old}}(a \mid s)\bigr) .
# $$ (ratio)
#
# The exchange is exact for the actions. But the states are still those that the old policy visited.
# How far does one get with them? Take a pier of six planks. Each step to the right pays 1, because
# the view gets better; one step beyond the last plank ends in the water and costs 10. The old policy
# goes right with probability 0.2, so it hardly ever sees the end. Here both sides can be computed
# without sampling, as {doc}`exact_values` does:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two curves over the probability of a step to the right, from 0.2 to 1. The estimate from the old states rises in a straight line. The true gain starts along it, bends, has its top near 0.42 and falls far below zero. A narrow band at the start marks where all ratios are within 0.2 of one"}}
import matplotlib.pyplot as plt

planks, discount = 6, 0.95
paid = np.ones((planks, 2)) * [0, 1]  # of a step to the left, to the right
paid[-1, 1] = -10


def on_the_pier(right):
    """Return the value of each action (S, 2), and the discounted visits (S,)."""
    left = np.eye(planks)[[0, *range(planks - 1)]]
    moves = np.stack([left, np.roll(np.eye(planks), 1, 1)], 1)  # (S, 2, next S)
    policy = np.array([1 - right, right])
    system = np.eye(planks) - discount * np.einsum("a,saz->sz", policy, moves)
    value = np.linalg.solve(system, paid @ policy)
    visits = np.linalg.solve(system.T, np.eye(planks)[0])
    return paid + discount * moves @ value, visits


q, visits = on_the_pier(0.2)
chances = np.linspace(0.2, 1, 101)
policies = np.stack([1 - chances, chances], 1)
old = policies[0]
estimate = policies @ (visits @ (q - (q @ old)[:, None]))
true = [(on_the_pier(x)[0][0] @ [1 - x, x]) - q[0] @ old for x in chances]
fig, axis = plt.subplots(figsize=(6.2, 2.6))
axis.plot(chances, estimate, "--", label="estimate from the old states")
axis.plot(chances, true, label="true gain")
axis.axvspan(0.2, 0.24, color="C2", alpha=0.3, linewidth=0)
axis.axhline(0, color="#808080", linewidth=0.8)
axis.set(xlabel="probability of a step to the right", ylabel="gain of return")
axis.legend()
fig.tight_layout()

# %% [markdown]
# **Notice** that the two lines leave the start together. A small step keeps its promise. A large one
# does not: the estimate says "always to the right", and the agent ends in the water. The green band is where
# all ratios are within $1 \pm 0.2$. Hence the brake.

# %% tags=["claims"]
assert abs(true[1] - estimate[1]) < 0.1 * estimate[1], "together"
assert np.argmax(estimate) == 100, "always to the right"
assert true[-1] < 0, "the water"
ratios_there = policies[5] / old
assert np.isclose(chances[5], 0.24)
assert np.isclose(abs(ratios_there - 1).max(), 0.2)

# %% [markdown]
# ## The clip
#
# The term $\rho(\theta) \hat A$ is called the **surrogate**. Since
# $\nabla \rho = \rho\, \nabla \log \pi_\theta$, its gradient at $\rho = 1$ is
# $\hat A\, \nabla \log \pi_\theta(a \mid s)$: the policy gradient, without a brake. PPO
# takes the smaller of the surrogate and of one whose ratio is held within
# $1 \pm \epsilon$:
#
# $$
# L(\rho, \hat A) = \min\bigl(\rho \hat A,\;
#     \operatorname{clip}(\rho, 1-\epsilon, 1+\epsilon)\, \hat A\bigr) .
# $$ (clipped-surrogate)
#
# The minimum makes it a pessimist: leaving the range can never look better than its edge,
# but it can look worse.
#
# For $\hat A < 0$ the surrogate has no lower bound. A single unlucky sample with a large
# ratio makes a large step. The **dual clip** {cite:p}`ye2020` bounds it by $c \hat A$, with
# a constant $c > 1$:
#
# $$
# L_c(\rho, \hat A) =
# \begin{cases}
#   \max\bigl(L(\rho, \hat A),\; c\, \hat A\bigr) & \hat A < 0, \\
#   L(\rho, \hat A) & \hat A \ge 0 .
# \end{cases}
# $$ (dual-clip)
#
# `clipped_surrogate` computes this. It takes log-probabilities only, so it serves every kind of
# action.

# %% tags=["export"]
AboveOne = Annotated[float, Gt(1)]


@checked
def clipped_surrogate(
    log_prob_new: Float[Tensor, "*B"],
    log_prob_old: Float[Tensor, "*B"],
    adv: Float[Tensor, "*B"],
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> Float[Tensor, "*B"]:
    """Compute PPO's clipped objective of each sample, to be maximised.

    Gradient flows into ``log_prob_new`` alone. That the result is finite is left to the
    loss that sums it up.

    Args:
        log_prob_new: Log-probability of each action under the policy in training.
        log_prob_old: The same under the policy that collected the batch.
        adv: Advantage estimates.
        clip_ratio: Half width of the clip range.
        dual_clip: Bound c of the dual clip, or None for no bound.

    Source: Schulman et al. 2017, equation 7; Ye et al. 2020, equation 5 (dual clip).
    """
    # The old policy and the advantage are data. Cut off from the graph here, they are
    # constants, whatever the caller hands over.
    log_prob_old, adv = log_prob_old.detach(), adv.detach()

    # The ratio {eq}`ratio`. Beyond $e^{\pm 20}$ it stays constant: an infinite ratio
    # would make the gradient of a clipped sample $0 \cdot \infty$, which is no number.
    ratio = (log_prob_new - log_prob_old).clamp(-20.0, 20.0).exp()

    # The pessimist's choice {eq}`clipped-surrogate`.
    unclipped = ratio * adv
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio) * adv
    objective = torch.min(unclipped, clipped)

    # The dual clip {eq}`dual-clip`. A positive advantage must stay as it is: a maximum
    # with $c \hat A$ would take away the slope of every ratio below $c$.
    if dual_clip is not None:
        bounded = torch.max(objective, dual_clip * adv)
        objective = torch.where(adv < 0, bounded, objective)
    return objective


# %% [markdown]
# In one table, with `live` for a slope:
#
# | advantage | below, $\rho < 1-\epsilon$ | inside | above, $\rho > 1+\epsilon$ | far above, $\rho > c$ |
# |---|---|---|---|---|
# | $\hat A > 0$ | live | live | 0 | 0 |
# | $\hat A < 0$ | 0 | live | live, grows with $\rho$ | 0 with dual clip |

# %% tags=["claims"]
regions = torch.tensor([0.5, 1.1, 1.5, 5.0])
for advantage, live in ((1.0, [1, 1, 0, 0]), (-1.0, [0, 1, 1, 0])):
    slopes = objective_and_slope(regions, advantage, c=3.0)[1]
    assert (slopes != 0).int().tolist() == live, "the table"
assert objective_and_slope(regions, -1.0)[1][-1] == -5, "live without dual clip"

# %% [markdown]
# The clip is not a bound. It only takes away a sample's *own* push; other samples may carry its
# ratio further.
#
# ## From samples to a loss
#
# An optimiser minimises, so the **policy loss** is the negative mean of the objective,
#
# $$
# \mathcal L_\pi(\theta) = -\frac1B \sum_{b=1}^{B} w_b\, L_c\bigl(\rho_b(\theta), \hat A_b\bigr) .
# $$ (policy-loss)
#
# A sample may have a weight $w$. Weights of zero take samples out of the sum but not out of
# $B$. For the mean over the samples that count, pass `weight / weight.mean()`.
#
# A policy that becomes sure of itself too early stops exploring. As in {doc}`policy_gradient`,
# the **entropy bonus** pays for uncertainty,
#
# $$
# \mathcal H(\theta) = \frac1B \sum_{b=1}^{B} w_b\, H\bigl(\pi_\theta(\cdot \mid s_b)\bigr) ,
# \qquad H(\pi) = -\sum_a \pi(a) \log \pi(a) .
# $$ (entropy-bonus)
#
# Together with the error of the critic, $\mathcal L_V$ below, and with two weights $c_V$
# and $c_H$, the total is
#
# $$
# \mathcal L = \mathcal L_\pi + c_V\, \mathcal L_V - c_H\, \mathcal H .
# $$ (def-ppo-total)
#
# **Note the minus sign.** The entropy is wanted, so it is subtracted from the loss. The field below is
# called `entropy_loss` all the same.


# %% tags=["export"]
class ppo_policy_loss(NamedTuple):
    """The two parts of the policy's loss, with gradient.

    The total to minimise is ``policy_loss - entropy_weight * entropy_loss``: the second
    field is the mean entropy itself. With continuous actions it may be negative.
    """

    policy_loss: Float[Tensor, ""]
    entropy_loss: Float[Tensor, ""]


class ppo_info(NamedTuple):
    """Two numbers to watch while training.

    Attributes:
        approx_kl: The estimate k1 of the divergence from the old to the new policy, in
            nats: the mean of ``log_prob_old - log_prob_new``.
        clipfrac: Fraction of samples whose ratio left the clip range.
    """

    approx_kl: float
    clipfrac: float


# %% [markdown]
# Two numbers tell how far the policy has moved. The **Kullback–Leibler divergence**, KL for short,
# $\operatorname{KL}(\pi_{\text{old}} \,\|\, \pi_\theta)$, is the mean of $-\log \rho$ over the
# actions of the old policy. It is zero only if both policies are the same, and never negative.
# Over the actions in the batch this gives the estimate
#
# $$
# k_1 = -\frac1B \sum_b \ell_b , \qquad \ell_b = \log \rho_b .
# $$ (kl-k1)
#
# The **clip fraction** counts the samples whose ratio is out of range,
#
# $$
# \text{clipfrac} = \frac1B \sum_b \mathbb 1\bigl[\rho_b > 1 + \epsilon
#     \;\text{or}\; \rho_b < 1 - \epsilon\bigr] .
# $$ (clip-fraction)
#
# It counts on both sides, so also those that went the wrong way and still pull.


# %% tags=["export"]
@checked
def policy_error_from_log_prob(
    log_prob_new: Float[Tensor, "B"],
    log_prob_old: Float[Tensor, "B"],
    entropy: Float[Tensor, "B"],
    adv: Float[Tensor, "B"],
    weight: Float[Tensor, "B"] | None = None,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error from log-probabilities, whatever the action space.

    ``entropy`` is that of the policy in training at each state, in nats. The other
    arguments are those of ``clipped_surrogate``; without ``weight`` each sample counts
    as one.

    Source: Schulman et al. 2017, equations 7 and 9.
    """
    objective = clipped_surrogate(
        log_prob_new, log_prob_old, adv, clip_ratio, dual_clip
    )
    bonus = entropy
    if weight is not None:
        objective, bonus = objective * weight.detach(), entropy * weight.detach()

    # The policy loss {eq}`policy-loss` and the entropy {eq}`entropy-bonus`, each a mean
    # over the batch.
    loss = ppo_policy_loss(-objective.mean(), bonus.mean())

    # What we only watch needs no graph: the estimate {eq}`kl-k1` and the clip fraction
    # {eq}`clip-fraction`.
    with torch.no_grad():
        log_ratio = log_prob_new - log_prob_old
        ratio = log_ratio.exp()
        outside = (ratio > 1.0 + clip_ratio) | (ratio < 1.0 - clip_ratio)
        mean, clipfrac = log_ratio.mean(), outside.double().mean()

    check_finite(
        (sum(loss) + mean).item(),
        log_prob_new=log_prob_new,
        log_prob_old=log_prob_old,
        entropy=entropy,
        adv=adv,
        weight=weight,
    )
    return loss, ppo_info(0.0 - mean.item(), clipfrac.item())


# %% [markdown]
# ### Discrete actions
#
# Whatever the actions are, the error is computed from their log-probabilities. For discrete ones
# a batch holds a row of logits for each sample:


# %% tags=["export"]
class ppo_policy_data(NamedTuple):
    """What the policy error reads: one batch of B samples.

    Gradient flows into ``logit_new`` alone.

    Attributes:
        logit_new: Logits of the policy in training.
        logit_old: Logits of the policy that collected the batch. Minus infinity in both
            takes an action away.
        action: The actions taken, from 0 to N - 1.
        adv: Advantage estimates.
        weight: One factor for each sample, or None for ones.
    """

    logit_new: Float[Tensor, "B N"]
    logit_old: Float[Tensor, "B N"]
    action: Annotated[Int[Tensor, "B"], below("N")]
    adv: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def ppo_policy_error(
    data: ppo_policy_data,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of discrete actions.

    Source: Schulman et al. 2017, equations 7 and 9.
    """
    # A softmax gives the log-probabilities of all actions. The old ones are constants:
    # where both come from one network, their gradient would cancel the new ones'.
    log_prob_new = data.logit_new.log_softmax(1)
    log_prob_old = data.logit_old.detach().log_softmax(1)

    # The entropy {eq}`entropy-bonus` of each row. An action that was taken away has the
    # probability zero, and zero times infinity would be NaN.
    entropy = -(log_prob_new.exp() * log_prob_new.clamp(min=-1e4)).sum(1)

    # The entries of the actions that were taken.
    taken = data.action.unsqueeze(1)
    new = log_prob_new.gather(1, taken).squeeze(1)
    old = log_prob_old.gather(1, taken).squeeze(1)
    check_finite(new + old + entropy, **{"data.logit_new": new, "data.logit_old": old})
    return policy_error_from_log_prob(
        new, old, entropy, data.adv, data.weight, clip_ratio, dual_clip
    )


# %% [markdown]
# ### Continuous actions
#
# A Gaussian policy gives a mean $\mu$ and a standard deviation $\sigma$ for each of the $A$
# numbers of an action. The error is computed as before, from the logarithm of a density: the
# folded cell has it, and refuses a $\sigma$ that is no number to divide by. Only the sum over
# actions in {eq}`entropy-bonus` becomes an integral, and the entropy is negative if the density is
# high enough.


# %% tags=["export", "hide-input"]
class Gaussian(TypedDict):
    """Means and standard deviations, a dictionary or what is indexed like one."""

    mu: Float[Tensor, "B A"]
    sigma: Float[Tensor, "B A"]


class ppo_policy_data_continuous(NamedTuple):
    """What ``ppo_policy_data`` holds for continuous actions; it will do as well."""

    logit_new: Gaussian
    logit_old: Gaussian
    action: Float[Tensor, "B A"]
    adv: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def ppo_policy_error_continuous(
    data: ppo_policy_data_continuous,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of continuous actions.

    Source: Schulman et al. 2017, equations 7 and 9.
    """
    new, log_prob_new = gaussian("data.logit_new", data.logit_new, data.action)
    _, log_prob_old = gaussian("data.logit_old", data.logit_old, data.action)

    # From here on it is the same error. `clipped_surrogate` sees to it that the old
    # policy is a constant.
    return policy_error_from_log_prob(
        log_prob_new,
        log_prob_old,
        new.entropy(),
        data.adv,
        data.weight,
        clip_ratio,
        dual_clip,
    )


def gaussian(
    name: str, policy: Gaussian, action: Tensor
) -> tuple[Distribution, Tensor]:
    """Return the distribution of whole actions, and the log-density of some."""
    mu, sigma = policy["mu"], policy["sigma"]
    # The density divides by the square, so that must not be zero or infinite either.
    variance = sigma.detach().square()
    tiny = torch.finfo(sigma.dtype).tiny
    if not ((sigma > 0) & (variance >= tiny) & (variance < math.inf)).all():
        came = f"{sigma.min()}..{sigma.max()}"
        raise ValueError(
            f"{name}.sigma must be positive and finite, got {came}, and so must its "
            "square"
        )
    # The density of an action is the product of its numbers' densities. `Independent`
    # therefore adds up their logarithms, over the last dimension.
    distribution = Independent(Normal(mu, sigma, validate_args=False), 1)
    log_prob = distribution.log_prob(action)

    # A finite density of an action far away can have an infinite slope.
    slope = ((action - mu.detach()) / variance).square().sum(-1)
    causes = {f"{name}.mu": mu, "data.action": action}
    check_finite(log_prob + slope, **causes)
    return distribution, log_prob


# %% [markdown]
# ## The value error
#
# The critic regresses to a return $G$ that was computed when the batch was collected. Some
# implementations clip this error as well, around the value $V_{\text{old}}$ of that time:
#
# $$
# \begin{aligned}
# V_{\text{clip}} &= V_{\text{old}}
#     + \operatorname{clip}(V_\theta - V_{\text{old}}, -\epsilon_V, \epsilon_V), \\
# \mathcal L_V &= \frac{1}{2B} \sum_b w_b
#     \max\bigl((G_b - V_{\theta,b})^2,\; (G_b - V_{\text{clip},b})^2\bigr) .
# \end{aligned}
# $$ (value-clip)
#
# The half width $\epsilon_V$ is measured in units of the return, so here it is a constant of its
# own, and off unless you ask for it.


# %% tags=["export"]
class ppo_value_data(NamedTuple):
    """What the value error reads: one batch of B samples.

    Attributes:
        value_new: Values of the network in training; gradient flows into them alone.
        value_old: Values at the time of collection, read only with a value clip.
        return_: Returns to regress to.
        weight: One factor for each sample, or None for ones.
    """

    value_new: Float[Tensor, "B"]
    value_old: Float[Tensor, "B"] | None
    return_: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def ppo_value_error(
    data: ppo_value_data, value_clip: Positive | None = None
) -> Float[Tensor, ""]:
    """Compute half the mean squared error of the values, clipped on request.

    ``value_clip`` is the half width of the clip range in units of the return, or None
    for no clip; a clip needs ``value_old``.

    Source: OpenAI Baselines' ppo2 (the value clip is not in the paper); Huang et al.
    2022, detail 9.
    """
    value_new, value_old, return_, weight = data
    error = (return_.detach() - value_new).square()

    # The larger of the two errors {eq}`value-clip`: a value that has moved far enough
    # toward its return gets no gradient, one that has moved away gets all of it.
    if value_clip is not None:
        if value_old is None:
            raise TypeError("data.value_old must be a tensor for a clip, got None")
        anchor = value_old.detach()
        clipped = anchor + (value_new - anchor).clamp(-value_clip, value_clip)
        error = torch.max(error, (return_.detach() - clipped).square())

    if weight is not None:
        error = error * weight.detach()
    loss = 0.5 * error.mean()
    check_finite(loss.item(), **data._asdict())
    return loss


# %% [markdown]
# ## Two estimates of one KL divergence
#
# Many training loops stop the epochs early, as soon as the KL divergence is above a bound. That
# needs an estimate which one batch can give.
#
# The estimate $k_1$ is right on average, yet one batch often gives a negative number for a
# quantity that cannot be negative. With $\ell = \log \rho$ as above, another estimate adds a term of
# mean zero to it {cite:p}`schulman2020`:
#
# $$
# k_3 = \frac1B \sum_b \bigl(e^{\ell_b} - 1 - \ell_b\bigr) \;\ge\; 0 .
# $$ (kl-k3)
#
# The term $e^\ell - 1$ has mean zero, because over the actions of the old policy the ratio has
# mean one: $\sum_a \pi_{\text{old}} \, \rho = \sum_a \pi_\theta = 1$. It cancels most of the
# variance, since near $\ell = 0$ the sum is $\ell^2 / 2$.


# %% tags=["export"]
@checked
def approx_kl_k3(
    log_prob_new: Float[Tensor, "B"], log_prob_old: Float[Tensor, "B"]
) -> Float[Tensor, ""]:
    """Estimate the divergence from the old to the new policy, without gradient.

    The actions are the old policy's; the result is in nats and never negative.

    Source: Schulman 2020, the estimator called k3.
    """
    # The estimate {eq}`kl-k3`. `expm1` keeps the digits that $e^\ell - 1$ loses when
    # the policies are close, which is the usual case.
    log_ratio = log_prob_new.detach() - log_prob_old.detach()
    kl = (log_ratio.expm1() - log_ratio).mean()
    check_finite(kl, log_prob_new=log_prob_new, log_prob_old=log_prob_old)
    return kl


# %% [markdown]
# Near the old policy, where early stopping wants to be, $k_3$ spreads far less than $k_1$ and is never
# negative. So if you stop early, use $k_3$. Both go by the name `approx_kl`: in `ppo_info` it is $k_1$,
# as in DI-engine and PPOxFamily; in the logs of {doc}`ppo`, CleanRL and Stable-Baselines3 it is $k_3$.

# %% tags=["claims"]
generator = torch.Generator().manual_seed(0)
base = torch.randn(6, generator=generator, dtype=torch.float64)
moved = base + 0.15 * torch.randn(6, generator=generator, dtype=torch.float64)
old_log, new_log = base.log_softmax(0), moved.log_softmax(0)
drawn = torch.multinomial(old_log.exp(), 2_000 * 64, True, generator=generator)
ell = (new_log - old_log)[drawn].unflatten(0, (2_000, 64))
by_k1 = -ell.mean(1)
by_k3 = torch.stack([approx_kl_k3(row, torch.zeros_like(row)) for row in ell])
true_kl = (old_log.exp() * (old_log - new_log)).sum()
assert abs(by_k3.mean() - true_kl) < 0.2 * true_kl, "near the truth"
assert by_k1.std() > 3 * by_k3.std(), "spreads far less"
assert by_k1.min() < 0 <= by_k3.min(), "never negative"

# %% [markdown]
# ## The program learns many times
#
# Now the program, with two loops and the loss of this page.

# %% tags=["program"] total_steps=50000
import torch
from torch import nn

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs
from literate_rl.maths.ppo_error import ppo_policy_data, ppo_policy_error

torch.set_num_threads(1)  # the networks are too small for several threads to pay

env_id, seed, total_steps = "CartPole-v1", 1, 50_000
num_envs, num_steps, num_epochs, num_minibatches = 8, 64, 8, 4
learning_rate, gamma, lambda_, clip_ratio = 5e-3, 0.98, 0.8, 0.2


def network(outputs):
    """Build a network with two hidden layers."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(64, outputs))


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
# The actor's numbers are the logits of the actions, the critic's one is the value.
actor, critic = network(int(actions)), network(1)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate)
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw an action for each observation."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, report = [], 0  # when each episode ended, and its return
while collector.step < total_steps:
    # 1. Collect: act for some steps with the policy as it is.
    batch = collector.collect(act, num_steps)
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    # 2. Look back: the old policy, values, advantages, and targets for the critic.
    with torch.no_grad():
        old_logit = actor(batch.obs)
        value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
    ends = batch.terminated, batch.truncated
    adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
    # From here on time plays no role: the rollout becomes one long list of samples.
    columns = batch.obs, batch.action, old_logit, adv, adv + value
    samples = [column.flatten(0, 1) for column in columns]

    # 3. Learn: some epochs, each over the shuffled samples, one minibatch at a time.
    for _ in range(num_epochs):
        order = torch.randperm(num_steps * num_envs, generator=generator)
        for rows in order.chunk(num_minibatches):
            obs, action, old, adv, target = (column[rows] for column in samples)
            # The loss with a brake, {eq}`clipped-surrogate`, and the critic's.
            data = ppo_policy_data(actor(obs), old, action, adv, None)
            policy_loss, _ = ppo_policy_error(data, clip_ratio)
            value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()

            optimizer.zero_grad()
            (policy_loss.policy_loss + 0.5 * value_loss).backward()
            optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# %% [markdown]
# Here is its curve. The second one is the same program with one other number, `clip_ratio = 1e9`.

# %% tags=["hide-input"]
grown("ppo_error", beside="ppo_error_without_clip")

# %% [markdown]
# **Notice** that at this rate one number brings the falling runs back. At the package's lower rate none of
# five fell without it ({doc}`ppo_evidence`). With the clip the agent gets 158 points more over the whole run
# (79 to 237, {doc}`evaluation` says how sure that is). Thirteen of twenty runs end above 475, and one ends as
# low as chance.

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference

clipped = runs_of("ppo_error")
gap = paired_difference(clipped.curves.mean(1), unclipped.curves.mean(1))
assert [round(x) for x in gap] == [158, 79, 237]
assert (clipped.final >= 475).sum() == 13, "thirteen of twenty"
assert (clipped.final < 22).sum() == 1, "as low as chance"

# %% [markdown]
# ## On the best device
#
# The same functions run where the tensors are.

# %%
from literate_rl.data.agents import best_device

device = best_device()
generator = torch.Generator().manual_seed(0)
old, noise = torch.randn(2, 512, 6, generator=generator)
action = torch.randint(0, 6, (512,), generator=generator)
columns = old + 0.3 * noise, old, action, torch.randn(512, generator=generator)

gradients = []
for place in (torch.device("cpu"), device):
    data = ppo_policy_data(*(column.to(place) for column in columns), None)
    logit = data.logit_new.requires_grad_()
    loss, info = ppo_policy_error(data, dual_clip=3.0)
    total = loss.policy_loss - 0.01 * loss.entropy_loss
    gradients.append(torch.autograd.grad(total, logit)[0].cpu())
print("loss and entropy " + ", ".join(f"{x.item():.5f}" for x in loss))
difference = (gradients[0] - gradients[1]).abs().max().item()
print(f"ran on {device.type}; the gradients agree: {difference < 1e-6}")

# %% [markdown]
# ## Summary
#
# - A batch may be used many times as long as the policy stays near the one that collected it. The
#   ratio says how much more likely an action has become. Where it is far from 1, the batch tells
#   us little.
# - The clip takes a sample's slope away once the policy has gone its way by $\epsilon$. What
#   went the wrong way is pulled back.
# - The dual clip bounds that pull where the advantage is negative. The constant must be above 1.
# - The total is policy loss plus value error *minus* entropy, with weights.
# - `approx_kl` is $k_1$ in some logs and $k_3$ in others. Stop early on $k_3$.
#
# ## Exercises
#
# ### Exercise 1: predict
#
# No code yet, only a thought.

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "PPO takes ten epochs over the same batch, with ε = 0.2. At the very first update, "
    "which share of the samples is clipped?",
    ["none", "about a fifth", "all with a negative advantage"],
    right="none",
    because="Before the first update the two policies are the same, and all ratios are "
    "exactly 1. If your clip fraction is not 0 there, either your old log-probabilities are "
    "not those of the actions that you stored, or something has moved the policy since then.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to be `clipped_surrogate` without the dual clip. It runs, and as
# long as all ratios are in range it is right. Fix it.


# %%
def answer(log_prob_new, log_prob_old, adv, epsilon):
    ratio = (log_prob_new - log_prob_old).exp()
    return ratio.clamp(1 - epsilon, 1 + epsilon) * adv


from literate_rl.book.exercises import grade


def samples(seed):
    """Return log-probabilities and advantages of eight samples, and a clip range."""
    generator = torch.Generator().manual_seed(seed)
    return (*torch.randn(3, 8, generator=generator), 0.2)


grade(answer, clipped_surrogate, *map(samples, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(log_prob_new, log_prob_old, adv, epsilon):
    ratio = (log_prob_new - log_prob_old).exp()
    # Without the minimum a sample that went the wrong way loses its slope as well, and
    # nothing pulls the policy back.
    return torch.min(ratio * adv, ratio.clamp(1 - epsilon, 1 + epsilon) * adv)


grade(answer, clipped_surrogate, *map(samples, range(3)))

# %% [markdown]
# ### Exercise 3: experiment
#
# Does the clip keep all ratios within $1 \pm \epsilon$? Here is a small linear policy and
# one batch with random advantages. `train` takes 200 steps on that batch and returns
# the ratios of all samples at the end. Guess first: how large is the largest ratio for
# $\epsilon = 0.2$, and how large without a clip, for $\epsilon = \infty$? Then return both,
# as a tuple.


# %%
def train(clip_ratio):
    """Train a linear policy on one batch; return the ratios at the end."""
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(256, 8, generator=generator)
    action = torch.randint(0, 4, (256,), generator=generator)
    adv = torch.randn(256, generator=generator)
    matrix = torch.zeros(8, 4, requires_grad=True)
    optimizer = torch.optim.Adam([matrix], lr=0.02)
    old = torch.zeros(256, 4)
    for _ in range(200):
        data = ppo_policy_data(obs @ matrix, old, action, adv, None)
        loss, _ = ppo_policy_error(data, clip_ratio)
        optimizer.zero_grad()
        loss.policy_loss.backward()
        optimizer.step()
    log_ratio = (obs @ matrix).log_softmax(1) - old.log_softmax(1)
    return log_ratio.gather(1, action.unsqueeze(1)).exp().detach()


def answer():
    return ...


def largest_ratios():
    return train(0.2).max().item(), train(float("inf")).max().item()


grade(answer, largest_ratios, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # The clip is no fence. All samples share the same weights, so those that are still
    # alive carry the others along. But without a clip the ratios go further still: to 4,
    # the most that there can be, since the old policy takes each of four actions with 1/4.
    return tuple(train(epsilon).max().item() for epsilon in (0.2, float("inf")))


grade(answer, largest_ratios, ())
outside = ((train(0.2) - 1).abs() > 0.2).double().mean()
print("largest ratios: {:.2f} with the clip, {:.2f} without".format(*answer()))
print(f"out of range at the end, with the clip: {outside:.0%}")

# %% tags=["claims"]
with_clip, without = answer()
assert 1.7 < with_clip < 2.4, "about 2: the clip is no fence"
assert 3.9 < without < 4.0 + 1e-4, "4 is the most that there can be"
assert 0.3 < outside < 0.55, "and many end outside"

# %% [markdown]
# ## References
#
# The loss is from {cite:t}`schulman2017`, the dual clip from {cite:t}`ye2020`, the
# estimates of the KL divergence from {cite:t}`schulman2020`. Which of PPO's details matter
# is measured by {cite:t}`engstrom2020`, {cite:t}`andrychowicz2021` and
# {cite:t}`huang2022`.

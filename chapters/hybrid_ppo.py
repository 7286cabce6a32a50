# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Hybrid PPO
#
# **How does PPO train a policy that chooses a type and its arguments, and what happens to a loss
# that does not know which arguments count?** After this chapter you can train such a policy on
# any Gymnasium environment with hybrid actions, and say what the mask is good for. It
# takes about 25 minutes. You need {doc}`hybrid_action`, {doc}`hybrid_policy`, the error of
# {doc}`ppo_error` and the learner of {doc}`ppo`.

# %% tags=["export", "hide-input"]
"""Hybrid PPO: one ratio for a type and its arguments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from literate_rl.hybrid_action import (
    HybridAction,
    HybridDistribution,
    HybridLogit,
)
from literate_rl.ppo_error import (
    AboveOne,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
)
from literate_rl.workshop.signatures import Float, Positive, checked

# Importing the worlds registers the environments of this chapter.
from literate_rl.workshop.worlds import HybridLander, Moving  # noqa: F401

__all__ = ["ppo_policy_error_hybrid", "ppo_policy_error_hybrid_per_head"]

# %% [markdown]
# ## See it learn
#
# The task is *Moving* {cite:p}`fan2019,hirtz2020`: a point in a square accelerates by some power,
# turns by some angle or stops. It has to stop inside a disc, the target. Its reward is the
# distance by which it comes nearer, plus 1 for arriving and $-1$ for leaving the square, less a
# small cost for each step. {doc}`workshop/worlds` has the equations. The target is 0.9 away on
# average, so a good agent collects about 1.8 in an episode: 0.9 for the way, 1 for arriving, less
# the cost of the steps. The type alone cannot aim, and the arguments alone cannot stop.
#
# By hand one would write a rule of three lines: *stop in the target; turn if it is not straight
# ahead; otherwise accelerate, less when it is near*. Here an agent that is told none of this
# learns for 60,000 steps:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Return of hybrid PPO on Moving over 60,000 steps: it starts below zero, crosses one after about half of the steps and ends close to the dashed line of the rule"}}
import math

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import torch

from literate_rl.agents import make_envs, seed_everything
from literate_rl.evaluation import evaluate
from literate_rl.hybrid_policy import make_hybrid_policy
from literate_rl.ppo import PPO, ppo_settings
from literate_rl.workshop.runs import fit


def by_hand(obs):
    """The rule: stop in the target, turn towards it, drive."""
    _, _, speed, cos, sin, dx, dy, distance, inside = obs.tolist()
    angle = math.atan2(cos * dy - sin * dx, cos * dx + sin * dy) / (math.pi / 2)
    power = (min(0.1, distance) - speed) / 0.05
    kind = 2 if inside else 1 if abs(angle) > 0.06 else 0
    values = ([min(max(power, 0.0), 1.0)], [min(max(angle, -1.0), 1.0)], [])
    return kind, tuple(np.array(value, np.float32) for value in values)


def episode(env, act, seed):
    """Play one episode; return its return and, where the environment draws, frames."""
    obs, _ = env.reset(seed=seed)
    frames, total, done = [env.render()], 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        done = terminated or truncated
        total += float(reward)
        frames.append(env.render())
    return total, frames


def show(axes, frames):
    """Draw frames at equal distances in time, the first and the last among them."""
    axes = list(axes)
    steps = np.linspace(0, len(frames) - 1, len(axes)).round().astype(int)
    for axis, step in zip(axes, steps, strict=True):
        axis.imshow(frames[step])
        axis.set_title(f"step {step}", size=9)
        axis.set(xticks=[], yticks=[])


def curve(history):
    """Return the steps and the mean returns of a run, over four iterations each."""
    steps = [row["step"] for row in history]
    returns = np.array([row["charts/episodic_return"] for row in history])
    smooth = [np.nanmean(returns[max(0, i - 3) : i + 1]) for i in range(len(returns))]
    return steps, smooth


torch.set_num_threads(1)  # the network is too small to be shared out
config = ppo_settings("literate_rl/Moving-v0")
seed_everything(config.seed)
envs = make_envs("literate_rl/Moving-v0", config.num_envs)
policy = make_hybrid_policy(envs.single_observation_space, envs.single_action_space)
learner = PPO(policy, envs, config)
history = fit(learner, progress=False)

env = gym.make("literate_rl/Moving-v0")
rule = np.mean([episode(env, by_hand, seed)[0] for seed in range(100)])
fig, axis = plt.subplots(figsize=(7, 2.6))
axis.plot(*curve(history), label="hybrid PPO")
axis.axhline(rule, linestyle="--", color="C1", label="the rule by hand")
axis.set(xlabel="steps", ylabel="return")
axis.legend()
fig.tight_layout()
returns = evaluate(learner.policy, "literate_rl/Moving-v0", episodes=100, seed=1)
print(f"100 episodes without noise: {returns.mean():.2f}, the rule: {rule:.2f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Six frames of the trained agent: it turns towards the target, drives straight at it and stops in it"}}
env = gym.make("literate_rl/Moving-v0", render_mode="rgb_array")


@torch.no_grad()
def trained(obs):
    action = learner.policy.act(torch.as_tensor(obs).unsqueeze(0), 0.0)
    return learner.policy.actions.to_single_env(action)


total, frames = episode(env, trained, seed=12)
fig, axes = plt.subplots(1, 6, figsize=(7, 1.6))
show(axes, frames)
fig.suptitle(f"trained, return {total:.2f}", size=10)
fig.tight_layout()

# %% [markdown]
# **Notice** that the agent comes near the rule. The curve, a mean over four iterations, includes
# the noise of exploration; the printed return does not. Without noise five stored runs end
# between 1.68 and 1.78, with mean 1.71.

# %% tags=["claims"]
from literate_rl.workshop.runs import stored_runs

assert returns.mean() > 1, "a single run"
assert 1.7 < rule < 2, "about 1.8"
starts = [env.reset(seed=seed)[0][7] for seed in range(1_000)]
assert abs(np.mean(starts) - 0.9) < 0.05, "the target is 0.9 away on average"
finals = stored_runs("moving")["joint"].final
assert finals.min() > rule - 0.25, "near the rule"
found = [round(x, 2) for x in (finals.min(), finals.max(), finals.mean())]
assert found == [1.68, 1.78, 1.71], "five stored seeds"

# %% [markdown]
# In a terminal the same takes one line, `literate-rl ppo --env literate_rl/Moving-v0`. Nothing in the learner knows about hybrid actions: the policy is that of
# {doc}`hybrid_policy`, the loss that of {doc}`ppo_error`. Why is that enough?
#
# ## One ratio
#
# The PPO error needs a log-probability and an entropy, and {doc}`hybrid_action` has both for the
# *whole* action. So there is one ratio for the action,
#
# $$
# \rho(\theta) = \exp\bigl(\log \pi_\theta(k, u \mid s)
#     - \log \pi_{\text{old}}(k, u \mid s)\bigr) ,
# $$ (hybrid-ratio)
#
# and one clip. Old and new log-probability use the same type and the same mask.
#
# The paper that introduced hybrid PPO, called H-PPO {cite:p}`fan2019`, treats type and arguments
# as two policies. The type has the ratio $\rho^{\text{type}} = p_k / p_k^{\text{old}}$, the
# arguments have the ratio $\rho^{\text{args}}$ of their densities, and each is clipped on its
# own. With our mask, the sum of the two objectives is
#
# $$
# L(\rho^{\text{type}}, \hat A)
#     + \mathbb 1\Bigl[\textstyle\sum_j m_{k,j} > 0\Bigr]\, L(\rho^{\text{args}}, \hat A) ,
# $$ (hybrid-per-head)
#
# with the clipped surrogate $L$ of {doc}`ppo_error`. The indicator in front of the second term is
# 1 for types with arguments and 0 for those without. For the latter $\rho^{\text{args}}$ is always
# 1, so the term would only add a constant to the loss, and to what is logged.
#
# The product of the two ratios is the ratio {eq}`hybrid-ratio`. Before the first update all
# three are 1, and there the two errors have the same gradient: $\nabla \rho$ is
# $\nabla \rho^{\text{type}} + \nabla \rho^{\text{args}}$. Further away they differ in
# what they clip. Take $\rho^{\text{type}} = 1.3$ and $\rho^{\text{args}} = 0.75$: the action
# as a whole has hardly changed, $\rho = 0.975$, and one ratio clips nothing. Two ratios clip
# the type if the action was good, and the arguments if it was bad.
#
# Both errors follow as functions of the network's trees, to compare them on one batch. The
# learner has log-probabilities already and calls `policy_error_from_log_prob` itself.


# %% tags=["export"]
class HybridPolicyData(NamedTuple):
    """What the error reads: ``ppo_policy_data`` with trees in it.

    Attributes:
        logit_new: What describes the policy in training.
        logit_old: The same for the policy that collected the batch.
        action: The actions taken.
        adv: Advantage estimates.
        weight: One factor for each sample, or None for ones.
    """

    logit_new: HybridLogit
    logit_old: HybridLogit
    action: HybridAction
    adv: Float[Tensor, "B"]
    weight: Float[Tensor, "B"] | None


@checked
def ppo_policy_error_hybrid(
    data: HybridPolicyData,
    mask: ArrayLike | Tensor,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of hybrid actions, with one ratio for the action.

    Args:
        data: A batch, as a ``ppo_policy_data`` of trees.
        mask: Which type (row) uses which argument (column), zeros and ones.
        clip_ratio: Half width of the clip range.
        dual_clip: Bound of the dual clip, or None for no bound.
    """
    new, old = new_and_old(data, mask)
    # The exponent of {eq}`hybrid-ratio`; the clipped surrogate takes it from here.
    return policy_error_from_log_prob(
        new.log_prob(data.action),
        old.log_prob(data.action),
        new.entropy(),
        data.adv,
        data.weight,
        clip_ratio,
        dual_clip,
    )


def new_and_old(
    data: HybridPolicyData, mask: ArrayLike | Tensor
) -> tuple[HybridDistribution, HybridDistribution]:
    """Build both policies of a batch, the old one without gradient."""
    new = HybridDistribution(data.logit_new, mask, "data.logit_new")
    with torch.no_grad():
        old = HybridDistribution(data.logit_old, new.mask, "data.logit_old")
    return new, old


# %% [markdown]
# The error per head calls the same function twice, the second time with the indicator as a
# weight.


# %% tags=["export"]
@checked
def ppo_policy_error_hybrid_per_head(
    data: HybridPolicyData,
    mask: ArrayLike | Tensor,
    clip_ratio: Positive = 0.2,
    dual_clip: AboveOne | None = None,
) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the PPO policy error of hybrid actions, with a ratio for each head.

    Arguments are those of ``ppo_policy_error_hybrid``. In what is returned, the
    divergence is that of the whole action, ``clipfrac`` the larger of the two heads'.

    Source: Fan et al. 2019 (H-PPO).
    """
    new, old = new_and_old(data, mask)
    type_new, args_new = new.log_prob_of_heads(data.action)
    type_old, args_old = old.log_prob_of_heads(data.action)

    # The first term of {eq}`hybrid-per-head`, and the entropy of the whole.
    clips = clip_ratio, dual_clip
    type_loss, type_info = policy_error_from_log_prob(
        type_new, type_old, new.entropy(), data.adv, data.weight, *clips
    )

    # The second term. The indicator is a weight, 0 where the type has no argument.
    has_args = new.mask.any(-1)[data.action["action_type"]].to(args_new.dtype)
    weight = has_args if data.weight is None else has_args * data.weight
    no_entropy = torch.zeros_like(args_new)
    args_loss, args_info = policy_error_from_log_prob(
        args_new, args_old, no_entropy, data.adv, weight, *clips
    )

    # The sum of both; the entropy was in the first one.
    policy_loss = type_loss.policy_loss + args_loss.policy_loss
    loss = ppo_policy_loss(policy_loss, type_loss.entropy_loss)
    info = ppo_info(
        type_info.approx_kl + args_info.approx_kl,
        max(type_info.clipfrac, args_info.clipfrac),
    )
    return loss, info


# %% [markdown]
# Here are the two errors for the same batch, with the new policy equal to the old one and
# after it has moved. The cosine compares the directions of their gradients with respect to all
# parameters of the network.

# %%
from literate_rl.hybrid_action import HybridPolicyNetwork
from literate_rl.ppo_error import ppo_policy_data

mask = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
sizes = {"action_type_shape": 3, "action_args_shape": 2}
torch.manual_seed(2)
network, moved = (HybridPolicyNetwork(10, sizes) for _ in range(2))
moved.load_state_dict(network.state_dict())
state, adv = torch.rand(512, 10), torch.randn(512)
with torch.no_grad():
    for parameter in moved.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    old = network(state)
    action = HybridDistribution(old, mask).sample()


def gradient(error, network):
    """Return an error and its gradient, as one vector."""
    data = ppo_policy_data(network(state), old, action, adv, None)
    loss, _ = error(data, mask)
    grads = torch.autograd.grad(loss.policy_loss, list(network.parameters()))
    return loss.policy_loss.item(), torch.cat([grad.flatten() for grad in grads])


cosines = []
print("policy        loss: one ratio  per head   cosine of the gradients")
errors = ppo_policy_error_hybrid, ppo_policy_error_hybrid_per_head
for name, one in (("unchanged", network), ("moved", moved)):
    (loss_1, grad_1), (loss_2, grad_2) = (gradient(error, one) for error in errors)
    cosines.append(torch.cosine_similarity(grad_1, grad_2, dim=0).item())
    print(f"{name:12s}{loss_1:17.4f}{loss_2:10.4f}{cosines[-1]:12.4f}")

# %% [markdown]
# **Notice** that at the start the losses differ and the gradients do not. Once the policy has
# moved, the gradients differ too.

# %% tags=["claims"]
found = [gradient(error, network) for error in errors]
assert abs(found[0][0] - found[1][0]) > 1e-3, "the losses differ"
assert torch.allclose(found[0][1], found[1][1], atol=1e-5), "the gradients do not"
assert cosines[0] > 0.9999, "the gradients do not differ at the start"
assert cosines[1] < 0.999, "and then they do"

# %% [markdown]
# ## What the mask is good for
#
# What if one left the mask out and counted all $A$ arguments? DI-engine does. At $\rho = 1$
# the gradient stays unbiased, since the noise of arguments that were not used is independent of
# the advantage. But this noise enters the ratio, and drives it out of the clip range.
#
# How large is this effect? Let each mean of the new policy be $\Delta$ standard deviations away
# from that of the old one, and let all $A$ arguments count. The ratio of one argument is then
# $e^{\Delta \zeta - \Delta^2 / 2}$, with a standard normal $\zeta$. The mean of
# $e^{2 \Delta \zeta}$ is $e^{2 \Delta^2}$, so one argument multiplies the mean square of the
# ratio by $e^{\Delta^2}$. The mean of the ratio is 1, so its variance grows exponentially with
# the number of arguments:
#
# $$
# \operatorname{Var} \rho = e^{A \Delta^2} - 1 .
# $$ (def-hybrid-variance)
#
# The figure has 20,000 actions of the three types of *Moving*, $\Delta = 0.3$, logits that move
# as well, and more and more arguments that no type uses.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left: histograms of the ratio; with the mask it is narrow around one, without it and with sixteen unused arguments it is broad. Right: spread of the ratio and clip fraction against the number of unused arguments; both grow without the mask and stay constant with it"}}
num_samples, shift = 20_000, 0.3


def ratios(num_unused, masked):
    """Sample actions of an old policy; return the ratios of a policy that moved."""
    generator = torch.Generator().manual_seed(0)
    table = torch.cat([mask, torch.zeros(3, num_unused, dtype=torch.bool)], dim=1)
    if not masked:
        table = torch.ones_like(table)
    num_args = 2 + num_unused
    sides = torch.randint(0, 2, (num_samples, num_args), generator=generator) * 2 - 1
    zeros, ones = torch.zeros(num_samples, num_args), torch.ones(num_samples, num_args)
    logits = torch.zeros(num_samples, 3)
    new_logits = 0.1 * torch.randn(num_samples, 3, generator=generator)
    old_logit = {"action_type": logits, "action_args": {"mu": zeros, "sigma": ones}}
    new_args = {"mu": shift * sides, "sigma": ones}
    new_logit = {"action_type": new_logits, "action_args": new_args}
    old = HybridDistribution(old_logit, table)
    action = old.sample(generator)
    new = HybridDistribution(new_logit, table)
    return (new.log_prob(action) - old.log_prob(action)).exp()


fig, axes = plt.subplots(1, 2, figsize=(7, 3.2))
for label, num_unused, masked in (
    ("masked", 16, True),
    ("not masked, 0 unused", 0, False),
    ("not masked, 16 unused", 16, False),
):
    values = ratios(num_unused, masked).clamp(max=3.0).numpy()
    axes[0].hist(values, bins=90, range=(0, 3), histtype="step", label=label)
axes[0].set(xlabel=r"ratio $\rho$", ylabel="actions", xlim=(0, 2.95), ylim=(0, 2700))
axes[0].legend(fontsize=8)

unused = [0, 1, 2, 4, 8, 16]
print("                 masked                not masked")
print("unused   deviation  clip fraction   deviation  clip fraction")
found = {True: [], False: []}
for num_unused in unused:
    row = f"{num_unused:6d}"
    for masked in (True, False):
        values = ratios(num_unused, masked)
        clipped = ((values - 1).abs() > 0.2).float().mean().item()
        found[masked].append((values.std().item(), clipped))
        row += f"{found[masked][-1][0]:12.2f}{clipped:15.2f}"
    print(row)
for masked, colour in ((True, "C0"), (False, "C2")):
    name = "masked" if masked else "not masked"
    deviations, clipped = zip(*found[masked], strict=True)
    axes[1].plot(unused, deviations, "o-", color=colour, label=f"deviation, {name}")
    axes[1].plot(unused, clipped, "s--", color=colour, label=f"clipped, {name}")
computed = [math.sqrt(math.expm1((2 + n) * shift**2)) for n in unused]
axes[1].plot(unused, computed, ":", color="C3", label="deviation, computed")
axes[1].set(xlabel="arguments that no type uses", ylim=(0, 2.6))
axes[1].legend(fontsize=8, loc="upper left")
fig.tight_layout()

# %% [markdown]
# **Notice** on the left how the ratios spread without the mask. On the right nothing changes with
# it, however many arguments lie idle. Without it, and with no idle argument at all, about 64
# percent of the samples leave the clip range instead of 35 percent: each sample counts one or two
# arguments that its own type ignores. With sixteen more it is about 89 percent. The dotted line
# is the root of {eq}`def-hybrid-variance`, which leaves the moved logits out.

# %% tags=["claims"]
clip_fractions = {
    key: [round(clipped, 2) for _, clipped in found[key]] for key in found
}
assert max(clip_fractions[True]) - min(clip_fractions[True]) < 0.02
assert abs(clip_fractions[False][0] - 0.64) < 0.02
assert abs(clip_fractions[True][0] - 0.35) < 0.02
assert abs(clip_fractions[False][-1] - 0.89) < 0.02
for (deviation, _), root in list(zip(found[False], computed, strict=True))[:-1]:
    assert abs(deviation / root - 1) < 0.15, "the dotted line"

# %% [markdown]
# ## Does it show in the return?
#
# The mask enters in two places: in the ratio and in the entropy, whose bonus rewards randomness.
# We leave it out of the one, of the other, and of both, and give *Moving* 2, 4 and 16 further
# arguments that no type uses. The figure shows stored runs with five seeds: the mean return over
# the whole training (`area` in the printed lines), and that of 100 episodes without noise at the
# end (`final`). Each point is the mean difference from the masked loss with the same seed, with its
# 95 percent t interval ({doc}`evaluation`); `python -m benchmarks.hybrid_learning` computes the
# data again.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over the number of idle arguments: the difference to the masked loss while training, and at the end. With the ratio not masked the lines fall, from minus a quarter to minus 0.7 while training; with the entropy not masked they stay near zero"}}
from literate_rl.evaluation import paired_difference

idle = [0, 2, 4, 16]
halves = ["ratio not masked", "entropy not masked", "not masked"]
gaps = {}
fig, axes = plt.subplots(1, 2, figsize=(7, 3), sharey=True)
for axis, (key, title) in zip(
    axes, {"area": "while training", "final": "at the end"}.items(), strict=True
):
    for shift_x, (loss, color) in enumerate(
        zip(halves, ("C2", "C1", "C7"), strict=True)
    ):
        for n in idle:
            runs = stored_runs(f"moving_idle_{n}" if n else "moving")
            ours, theirs = (getattr(runs[name], key) for name in (loss, "joint"))
            gaps[loss, key, n] = paired_difference(ours, theirs)
        mean, low, high = np.array([gaps[loss, key, n] for n in idle]).T
        bars = mean - low, high - mean
        place = np.arange(4) + 0.12 * (shift_x - 1)
        axis.errorbar(place, mean, bars, fmt="o-", color=color, capsize=3, label=loss)
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set(xlabel="idle arguments", title=title, xticks=range(4), xticklabels=idle)
axes[0].set_ylabel("difference of the return")
axes[1].legend(fontsize=8, loc="lower left")
fig.tight_layout()

for (loss, key, n), gap in gaps.items():
    if n in (0, 16):
        print(
            f"{loss:19s}{key:6s}{n:3d} idle: {gap.mean:5.2f} ({gap.low:.2f} to {gap.high:.2f})"
        )

# %% [markdown]
# **Notice** first the ratio. Without its mask the agent learns more slowly, with any number of
# idle arguments: the intervals on the left lie below zero. At the end of the run it has partly
# caught up, and with up to four idle arguments five seeds do not show a difference. With 16 it
# ends lower by more than 1.
#
# **Notice** then the entropy. Where only its mask is left out, no difference is seen while
# training. At the end it is a little lower in one of the four settings, with 4 idle arguments, by
# 0.13. So the harm comes through the ratio, and a bonus for idle arguments costs little or
# nothing here. What it does instead is in [the trap
# below](#trap-an-entropy-that-pays-for-nothing).
#
# With both masks left out, as in DI-engine, the agent also ends lower in three of the four
# settings; with 2 idle arguments the interval contains zero. With no idle argument at all it ends
# lower by 0.40. That is hardly more than without the ratio's mask alone, where the mean is $-0.37$,
# but the seeds differ more, so the interval contains zero.

# %% tags=["claims"]
for n in idle:
    assert gaps["ratio not masked", "area", n].high < 0, "learns more slowly"
    gap = gaps["entropy not masked", "area", n]
    assert gap.low < 0 < gap.high, "no difference seen while training"
    if n <= 4:
        gap = gaps["ratio not masked", "final", n]
        assert gap.low < 0 < gap.high, "five seeds do not show a difference"
assert round(gaps["ratio not masked", "final", 0].mean, 2) == -0.37
assert gaps["ratio not masked", "final", 16].mean < -1
assert gaps["ratio not masked", "final", 16].high < 0
both = [gaps["not masked", "final", n] for n in idle]
assert round(both[0].mean, 2) == -0.40, "with no idle argument"
assert [gap.high < 0 for gap in both] == [True, False, True, True], "only with 2"
below = [n for n in idle if gaps["entropy not masked", "final", n].high < 0]
assert below == [4], "a little lower in one of the four"
assert round(gaps["entropy not masked", "final", 4].mean, 2) == -0.13

# %% [markdown]
# Do the two ways to clip differ? Here is H-PPO's loss (`per head`) beside ours (`joint`), on
# *Moving* and on the harder *HybridLander*, a lunar lander that burns one engine at a time with a
# throttle. A run on the lander takes minutes, so there the loss per head has only two seeds.

# %% tags=["hide-input"]
for name, digits in (("moving", 2), ("lander", 0)):
    runs = stored_runs(name)
    for loss in ("joint", "per head"):
        values = " ".join(f"{x:.{digits}f}" for x in runs[loss].final)
        print(f"{name:8s}{loss:10s}at the end, by seed: {values}")
per_head = {
    key: paired_difference(
        *(getattr(stored_runs("moving")[x], key) for x in ("joint", "per head"))
    )
    for key in ("area", "final")
}
for key, gap in per_head.items():
    print(
        f"moving, one ratio - per head, {key}: {gap.mean:.2f} ({gap.low:.2f} to {gap.high:.2f})"
    )

# %% [markdown]
# On *Moving* no difference is seen, and on the lander there are too few seeds to see one.

# %% tags=["claims"]
assert all(gap.low < 0 < gap.high for gap in per_head.values()), "no difference seen"
assert len(stored_runs("lander")["per head"].final) == 2

# %% [markdown]
# ## Is a hybrid action worth its trouble?
#
# The lander is a good place to ask, because Gymnasium has the same moon with two other sets of
# actions: one of three engines at full power or none, or two numbers that steer all of them. Here
# are PPO's runs with the same settings and the same five seeds.

# %% tags=["hide-input"]
landers = {
    "hybrid": stored_runs("lander")["joint"],
    "discrete": stored_runs("lander_discrete")["PPO"],
    "continuous": stored_runs("lander_continuous")["PPO"],
}
for name, runs in landers.items():
    values = " ".join(f"{x:4.0f}" for x in runs.final)
    print(f"{name:11s}{values}   while training, mean {runs.area.mean():.0f}")

# %% [markdown]
# Here the throttle buys nothing that five seeds can show: no difference from the discrete lander
# is seen. The throttle only goes from half to full power, and both landers choose the engine,
# which may matter more. With two numbers instead the agent has to find that choice inside a
# Gaussian, and it learns more slowly. So ask what the numbers are good for. *Moving* needs a
# different angle at almost every turn, and a few fixed values would be a coarse grid of them. Where
# a few values will do, use them: they are simpler.

# %% tags=["claims"]
gap = {
    (name, key): paired_difference(
        getattr(landers["hybrid"], key), getattr(landers[name], key)
    )
    for name in ("discrete", "continuous")
    for key in ("final", "area")
}
for key in ("final", "area"):
    assert gap["discrete", key].low < 0 < gap["discrete", key].high, "no difference"
assert gap["continuous", "area"].low > 0, "learns more slowly"
assert {len(runs.final) for runs in landers.values()} == {5}, "the same five seeds"

# %% [markdown]
# ## Somebody else's environment
#
# The benchmark that the papers on parameterised actions share is *Platform*
# {cite:p}`masson2016,bester2019`: run, hop and leap over gaps and past enemies, each
# with one number. The return is the part of the way that was covered, so 1 is the best.
# This package's extra `platform` installs it. Its observation is a pair of a box and a step
# counter. Our network wants a box, so a function takes the first of the two:
#
# ```python
# from operator import itemgetter
# import gymnasium as gym
# from literate_rl.ppo import PPOConfig
#
# def platform(**arguments):
#     env = gym.make("gym_platform:Platform-v0", **arguments)
#     box = env.observation_space[0]
#     return gym.wrappers.TransformObservation(env, itemgetter(0), box)
#
# config = PPOConfig(
#     total_steps=64_000, num_envs=16, num_steps=64, num_epochs=10,
#     learning_rate=2e-3, normalize_obs=True,
# )
# envs = make_envs(platform, config.num_envs)
# spaces_of_one = envs.single_observation_space, envs.single_action_space
# policy = make_hybrid_policy(*spaces_of_one, normalize=True)
# learner = PPO(policy, envs, config)
# ```
#
# The action space is `Tuple(Discrete(3), Tuple(3 boxes))` with bounds of 30, 720 and 430, so the
# mask comes out as the identity matrix, and `to_env` of {doc}`hybrid_policy` does the rest. Here
# are stored runs with these settings, over 100 episodes without noise:

# %%
platform = stored_runs("platform")["joint"].final
print("Platform, by seed:", *(f"{x:.3f}" for x in sorted(platform)))

# %% [markdown]
# Four of five seeds come within two hundredths of the end, the fifth stays at 0.905. The authors
# of MP-DQN, a method that learns values of actions with arguments, report a mean of 0.987
# {cite:p}`bester2019`. We chose the number of steps ourselves, so this is no comparison.

# %% tags=["claims"]
assert (np.sort(platform)[1:] > 0.98).all(), "four of five"
assert len(platform) == 5
assert round(platform.min(), 3) == 0.905, "the fifth"

# %% [markdown]
# ## Traps
#
# ### Trap: an entropy that pays for nothing
#
# If the entropies of the type and of all arguments are added up, arguments that the chosen type
# does not use count too. Here the mask is that of *Moving*, and the policy stops half of the time.
# The last row follows the definition: the mean of $-\log \pi$ over a million actions.

# %%
from torch.distributions import Categorical, Normal

prob, mu, sigma = torch.tensor([[0.3, 0.2, 0.5]]), torch.zeros(1, 2), torch.ones(1, 2)
summed = Categorical(prob).entropy() + Normal(mu, sigma).entropy().sum(-1)


def states(batch):
    """Return the tree of one state, repeated."""
    z, centre, width = (x.expand(batch, -1) for x in (prob.log(), mu, sigma))
    return {"action_type": z, "action_args": {"mu": centre, "sigma": width}}


many = HybridDistribution(states(1_000_000), mask)
drawn = -many.log_prob(many.sample(torch.Generator().manual_seed(0))).mean()
masked = HybridDistribution(states(1), mask).entropy()
print(f"sum of all parts      {summed.item():.3f}")
print(f"this book             {masked.item():.3f}")
print(f"mean of -log pi       {drawn.item():.3f}")

# %% [markdown]
# A bonus on the first number rewards noise in arguments that do nothing, so the policy has a
# reason to widen them. The return hardly suffers, but the entropy that you log is no
# longer that of the actions.

# %% tags=["claims"]
assert abs(drawn.item() - masked.item()) < 0.01, "the definition"
assert summed.item() - masked.item() > 2, "what is paid for nothing"

# %% [markdown]
# ## What well-known implementations do
#
# | choice | this chapter | [DI-engine](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppo.py#L327-L351) | [H-PPO](https://arxiv.org/abs/1903.01344) |
# |---|---|---|---|
# | ratio | one for the action | [one for each head](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppo.py#L328-L343) | one for each head |
# | arguments that do not count | masked | [counted, in the ratio and in the entropy](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/ppo.py#L421-L428) | drawn, not executed |
# | standard deviation $\sigma$ | a parameter | [0.3 on Moving](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/dizoo/gym_hybrid/config/gym_hybrid_hppo_config.py#L27-L28) | |
# | evaluation | greedy | [samples](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/ppo.py#L570-L571) | |
#
# The code was read at the linked commits. The column of H-PPO follows the paper.
#
# ## On the best device

# %%
from literate_rl.agents import best_device

device = best_device()
row = learner.policy(torch.rand(8, 9)).detach()
noise = learner.policy.noise(1, 8, torch.Generator().manual_seed(0))[0]
action = learner.policy.act(torch.rand(8, 9), noise)
judge = learner.policy.actions.log_prob
log_prob = judge(row.to(device), action.to(device))
on_cpu = judge(row, action)
difference = (log_prob.cpu() - on_cpu).abs().max().item()
print(f"{tuple(log_prob.shape)} log-probabilities computed on {log_prob.device.type}")
print("equal to those of the CPU:", difference < 1e-5)

# %% [markdown]
# ## Summary
#
# - PPO needs one log-probability and one entropy of the whole action, so there is one ratio.
# - H-PPO clips a ratio for each head. In the return no difference was seen.
# - Arguments that do not count spread the ratio beyond the clip range: learning slows down, and
#   with many of them the agent ends far lower.
# - In the entropy they reward noise that has no effect. That alone cost little here.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import predict

predict(
    "An action was bad. Since then its type's ratio fell to 0.75, and that of its arguments "
    "grew to 1.3. The clip range is 0.2. Which part does the loss per head still push?",
    ["the type", "the arguments", "both"],
    right="the arguments",
    because="A bad action should become less likely. The type already has, by more than the "
    "clip range allows, so it is left alone. The arguments have become more likely, and the "
    "loss pushes them back. One ratio for both, 0.975, would push the two of them.",
)

# %% tags=["claims"]
from literate_rl.ppo_error import clipped_surrogate

log_ratio = torch.tensor([0.75, 1.3]).log().requires_grad_()
bad = -torch.ones(2)
clipped_surrogate(log_ratio, torch.zeros(2), bad, 0.2).sum().backward()
assert log_ratio.grad[0] == 0, "the type is left alone"
assert log_ratio.grad[1] != 0, "the arguments are pushed"

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to return the ratio of each action; `batches[number]` holds the new
# policy, the old policy, the mask and the actions. It runs, and is right where each type uses all
# arguments. Fix it.


# %%
def answer(number):
    new, old, mask, action = batches[number]
    everything = torch.ones_like(mask)
    log_prob = HybridDistribution(new, mask).log_prob(action)
    return (log_prob - HybridDistribution(old, everything).log_prob(action)).exp()


from literate_rl.workshop.exercises import grade


def ratio_of(number):
    """Return the ratios of a batch: both policies with the same mask."""
    new, old, mask, action = batches[number]
    log_probs = (HybridDistribution(tree, mask).log_prob(action) for tree in (new, old))
    return (next(log_probs) - next(log_probs)).exp()


def batch(seed, table):
    """Return two policies, a mask and actions of six states."""
    torch.manual_seed(seed)
    table = torch.tensor(table, dtype=torch.bool)
    kinds, number = table.shape
    trees = [
        {
            "action_type": torch.randn(6, kinds),
            "action_args": {
                "mu": torch.randn(6, number),
                "sigma": torch.ones(6, number),
            },
        }
        for _ in range(2)
    ]
    drawn = {
        "action_type": torch.randint(0, kinds, (6,)),
        "action_args": torch.randn(6, number),
    }
    return (*trees, table, drawn)


batches = [batch(0, [[1, 1], [1, 1]]), batch(1, [[1, 0], [0, 1], [0, 0]])]
grade(answer, ratio_of, (0,), (1,))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(number):
    new, old, mask, action = batches[number]
    # Old and new policy use the same mask.
    log_prob = HybridDistribution(new, mask).log_prob(action)
    return (log_prob - HybridDistribution(old, mask).log_prob(action)).exp()


grade(answer, ratio_of, (0,), (1,))

# %% [markdown]
# ### Exercise 3: experiment
#
# Use `ratios(num_unused, masked)` from above. Without the mask, how many arguments that no
# type uses does it take until three quarters of the samples leave the clip range of 0.2?
# Return the smallest number.


# %%
def answer():
    return ...


def outside(number):
    return ((ratios(number, False) - 1).abs() > 0.2).float().mean().item()


def smallest():
    return next(number for number in range(17) if outside(number) > 0.75)


grade(answer, smallest, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    number = 0
    while ((ratios(number, False) - 1).abs() > 0.2).float().mean() <= 0.75:
        number += 1
    return number


grade(answer, smallest, ())

# %% [markdown]
# ## References
#
# Hybrid PPO and *Moving* are by {cite:t}`fan2019`, its environment by {cite:t}`hirtz2020`, and
# the loss by {cite:t}`schulman2017`. Platform was defined by {cite:t}`masson2016`;
# {cite:t}`bester2019` learn the values of its actions.

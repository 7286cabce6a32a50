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
# takes about 35 minutes. You need {doc}`hybrid_action`, the error of {doc}`ppo_error` and the
# learner of {doc}`ppo`.

# %% tags=["export", "hide-input"]
"""Hybrid PPO: one ratio for a type and its arguments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from literate_rl.ground.signatures import Float, Positive, checked
from literate_rl.maths.ppo_error import (
    AboveOne,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
)
from literate_rl.nets.hybrid_action import HybridAction, HybridDistribution, HybridLogit

# Importing the worlds registers the environments of this chapter.
from literate_rl.data.worlds import HybridLander, Moving  # noqa: F401

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
# ahead; otherwise accelerate, less when it is near*. Here an agent without the rule learns for
# 60,000 steps:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Return of hybrid PPO on Moving over 60,000 steps: it starts below zero, crosses one after about half of the steps and ends close to the dashed line of the rule"}}
import math

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import torch

from literate_rl.data.agents import make_envs, seed_everything
from literate_rl.runs.evaluation import evaluate
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.learners.ppo import PPO, ppo_settings
from literate_rl.runs.runs import fit


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
fig.tight_layout()
print(f"trained, return {total:.2f}")

# %% [markdown]
# **Notice** that the curve, a mean over four iterations, includes the noise of exploration; the printed
# return does not. Without noise five stored runs end between 1.55 and 1.74, with mean 1.67, less than a
# tenth below the 1.84 of the rule.

# %% tags=["claims"]
from literate_rl.runs.runs import stored_runs

assert returns.mean() > 1, "a single run"
assert round(rule, 2) == 1.84, "the rule collects 1.84"
starts = [env.reset(seed=seed)[0][7] for seed in range(1_000)]
assert abs(np.mean(starts) - 0.9) < 0.05, "the target is 0.9 away on average"
finals = stored_runs("moving")["joint"].final
assert finals.mean() > 0.9 * rule, "less than a tenth below the rule"
found = [round(x, 2) for x in (finals.min(), finals.max(), finals.mean())]
assert found == [1.55, 1.74, 1.67], "five stored seeds"

# %% [markdown]
# In a terminal the same takes one line, `literate-rl ppo --env literate_rl/Moving-v0`.
#
# ## Hybrid PPO on one page
#
# Here is the whole agent again, as a program that runs from top to bottom. It is the PPO of
# {doc}`ppo` but for two functions. `act` draws a type and all arguments. `evaluate` returns *one*
# log-probability for the whole action, {eq}`hybrid-log-prob`, and one entropy,
# {eq}`hybrid-entropy`. On this page it stops after 10,240 steps, before it has learned much.

# %% tags=["program"] total_steps=60000
import torch
from torch.distributions import Normal

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs
from literate_rl.nets.hybrid_action import HybridPolicyNetwork
from literate_rl.nets.policies import mlp
from literate_rl.nets.hybrid_policy import HybridActions

torch.set_num_threads(1)  # the networks are too small to be shared out
env_id, seed, total_steps = "literate_rl/Moving-v0", 1, 10_240
num_envs, num_steps, num_epochs, num_minibatches = 32, 64, 8, 4
learning_rate, gamma, lambda_, clip_ratio, entropy_weight = 3e-3, 0.98, 0.95, 0.2, 0.01
envs = make_envs(env_id, num_envs)
# The space says which type uses which argument, and how large each argument may be.
space = HybridActions.from_space(envs.single_action_space)
mask, (num_types, num_args) = space.mask, space.mask.shape

torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
obs_size = envs.single_observation_space.shape[0]
actor = HybridPolicyNetwork(obs_size, space.action_shape)
critic = mlp(obs_size, 64, 1, gain=1.0)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate, eps=1e-5)
collector = Collector(envs, space.to_env)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw a type and all arguments."""
    said, (race, noise) = actor(obs), next(draws).split([num_types, num_args], -1)
    kind = (said.action_type + race).argmax(-1, keepdim=True)
    args = said.action_args.mu + said.action_args.sigma * noise
    return torch.cat([kind, args], -1)


def evaluate(obs, action):
    """Return one log-probability for each whole action, and the entropies."""
    said, kind = actor(obs), action[:, :1].long()
    log_p, args = said.action_type.log_softmax(-1), said.action_args
    # The type, and the arguments that it uses. The others have no gap, a square that is
    # not 0, and no density: zero times infinity is not zero.
    used, normal = mask[kind[:, 0]], Normal(0.0, args.sigma.clamp(min=1e-18))
    density = normal.log_prob(torch.where(used, action[:, 1:] - args.mu, 0.0))
    log_prob = log_p.gather(1, kind)[:, 0] + torch.where(used, density, 0.0).sum(-1)
    # An argument counts as often as the types that use it are chosen.
    often = log_p.exp() @ mask.float()
    entropy = -(log_p.exp() * log_p).sum(-1) + (often * normal.entropy()).sum(-1)
    return log_prob, entropy


episodes, num_updates = [], -(-total_steps // (num_envs * num_steps))
for update in range(1, num_updates + 1):
    # 1. Collect, with a learning rate that falls to zero in a straight line.
    optimizer.param_groups[0]["lr"] = learning_rate * (1 - collector.step / total_steps)
    draws = iter(space.noise(num_steps, num_envs, generator))
    batch = collector.collect(act, num_steps)

    # 2. Look back: values, advantages, targets, and the old log-probabilities.
    with torch.no_grad():
        value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
        ends = batch.terminated, batch.truncated
        adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
        samples = [x.flatten(0, 1) for x in (batch.obs, batch.action, adv, adv + value)]
        samples.append(evaluate(*samples[:2])[0])

    # 3. Learn, for some epochs.
    for _ in range(num_epochs):
        order = torch.randperm(num_steps * num_envs, generator=generator)
        for rows in order.chunk(num_minibatches):
            obs, action, adv, target, old_log_prob = (x[rows] for x in samples)
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)
            log_prob, entropy = evaluate(obs, action)
            # One ratio for a type and its arguments, and one clip.
            ratio = (log_prob - old_log_prob).exp()
            clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
            policy_loss = -torch.min(ratio * adv, clipped * adv).mean()
            value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()
            loss = policy_loss + 0.5 * value_loss - entropy_weight * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()

    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]
    if update % -(-num_updates // 10) == 0:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:6d}: return {sum(recent) / len(recent):.2f}")

# %% [markdown]
# With 60,000 steps all of ten seeds end with a return above 1.5, noise included. A claim below this
# cell shows that the package's PPO, from the same weights and the same seed, reaches the same
# parameters. It needs no loss of its own for hybrid actions, because a policy of
# this book answers the two questions of `evaluate` itself ({doc}`workshop/hybrid_policy`).

# %% tags=["claims"]
from dataclasses import replace

from literate_rl.apps.programs import run_program

# Two rollouts: rounding grows from update to update.
few_steps = 2 * num_envs * num_steps
parameters = run_program("hybrid_ppo", total_steps=few_steps)["parameters"]
torch.manual_seed(seed)
envs = make_envs(env_id, num_envs)
policy = make_hybrid_policy(envs.single_observation_space, envs.single_action_space)
short = replace(config, seed=seed, total_steps=few_steps)
package = PPO(policy, envs, short)
package.collector.reset(1000 * seed)
package.collector.reset = lambda seed: None  # no environments of its own
while package.step < few_steps:
    package.iterate()
for ours, theirs in zip(parameters, policy.parameters(), strict=True):
    assert torch.allclose(ours, theirs, atol=1e-4), "the same parameters"

# %% [markdown]
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
from literate_rl.nets.hybrid_action import HybridDistribution
from literate_rl.maths.ppo_error import ppo_policy_data

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
# What if one left the mask out and counted all $A$ arguments, as DI-engine does? At $\rho = 1$
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

# %% tags=["hide-input"] mystnb={"image": {"alt": "First: histograms of the ratio; with the mask it is narrow around one, without it and with sixteen unused arguments it is broad. Second: spread of the ratio and clip fraction against the number of unused arguments; both grow without the mask and stay constant with it"}}
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
# **Notice** how the ratios spread without the mask, in the first panel. In the second nothing changes with
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
# arguments that no type uses. Two more losses have a ratio for each head: H-PPO's with the mask,
# and DI-engine's, which counts all arguments in ratio and entropy; the latter was run with 0 and 16
# idle arguments, the former with none. The figure shows stored runs with five seeds. Each point is the
# mean difference from the masked loss with one ratio, seed by seed, with its 95 percent t interval: in
# 95 of 100 such experiments it would cover the true mean ({doc}`evaluation`). Where it holds zero, these
# seeds show no difference. The first panel has the mean return over the whole training, the second that of
# 100 episodes without noise at the end. `python -m benchmarks.hybrid_learning` computes the data
# again.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over the number of idle arguments: the difference to the masked loss while training, and at the end. With the ratio not masked the lines fall, from minus a quarter to minus 0.7 while training; with the entropy not masked they stay near zero. The two points of DI-engine's loss, at 0 and 16 idle arguments, lie at or below those with nothing masked"}}
from literate_rl.runs.evaluation import paired_difference

idle = [0, 2, 4, 16]
halves = ["ratio not masked", "entropy not masked", "not masked"]
di_engine = "per head, not masked"
gaps = {}
fig, axes = plt.subplots(1, 2, figsize=(7, 3.4), sharey=True)
for axis, (key, title) in zip(
    axes, {"area": "while training", "final": "at the end"}.items(), strict=True
):
    for place, (loss, color) in enumerate(
        zip(
            (*halves, di_engine, "per head"),
            ("C2", "C1", "C7", "C3", "C0"),
            strict=True,
        )
    ):
        for n in idle:
            runs = stored_runs(f"moving_idle_{n}" if n else "moving")
            if loss in runs:
                pair = (getattr(runs[name], key) for name in (loss, "joint"))
                gaps[loss, key, n] = paired_difference(*pair)
        known = [n for n in idle if (loss, key, n) in gaps]
        mean, low, high = np.array([gaps[loss, key, n] for n in known]).T
        where = [idle.index(n) + 0.1 * (place - 2) for n in known]
        line = "o-" if len(known) == len(idle) else "s"
        bars = mean - low, high - mean
        axis.errorbar(where, mean, bars, fmt=line, color=color, capsize=3, label=loss)
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set(xlabel="idle arguments", title=title, xticks=range(4), xticklabels=idle)
axes[0].set_ylabel("difference of the return")
axes[0].legend(fontsize=7, loc="lower left")
fig.tight_layout()

print(
    f"{'difference from one ratio, masked':32s}{'while training':>24s}{'at the end':>24s}"
)
for n in (0, 16):
    for loss in (*halves, "per head", di_engine):
        if (loss, "area", n) in gaps:
            pair = [gaps[loss, key, n] for key in ("area", "final")]
            cells = [f"{x.mean:6.2f} ({x.low:.2f} to {x.high:.2f})" for x in pair]
            print(f"{n:3d} idle, {loss:23s}", *(f"{cell:>24s}" for cell in cells))

# %% [markdown]
# **Notice**, line by line:
#
# | what differs | while training | at the end |
# |---|---|---|
# | the ratio without its mask | slower with any number of idle arguments | with 16 lower by more than 1; with fewer lower by 0.3 to 0.4 on average, with intervals that contain zero |
# | the entropy without its mask | five seeds show no difference | no difference |
# | both without masks | slower with any number | lower with any number: with 0, 2, 4 and 16 by 0.52, 0.28, 0.67 and 1.27 |
# | a ratio for each head, masked (H-PPO); only tried with no idle argument | no difference | no difference |
# | a ratio for each head, both without masks (DI-engine) | slower with 0 and with 16 | lower by 0.47 with none, by 1.18 with 16 |
#
# So the harm comes through the ratio: between the ratio alone and both without masks we see no
# difference at the end. A bonus for idle arguments costs nothing that five seeds show. What it does instead is
# in [the trap below](#trap-an-entropy-that-pays-for-nothing). And DI-engine's ratio for each head, which
# keeps the noise of the arguments away from the type, does not make up for the mask: with 16 idle
# arguments it loses 1.18 and one ratio 1.27, and no difference is seen between the two.

# %% tags=["claims"]
for n in idle:
    assert gaps["ratio not masked", "area", n].high < 0, "slower with any number"
    assert gaps["not masked", "area", n].high < 0, "slower with any number"
    gap = gaps["entropy not masked", "area", n]
    assert gap.low < 0 < gap.high, "no difference while training"
    if n <= 4:
        gap = gaps["ratio not masked", "final", n]
        assert gap.low < 0 < gap.high, "intervals that contain zero"
        assert 0.3 < -gap.mean < 0.41, "lower by 0.3 to 0.4"
    runs = stored_runs(f"moving_idle_{n}" if n else "moving")
    gap = paired_difference(runs["not masked"].final, runs["ratio not masked"].final)
    assert gap.low < 0 < gap.high, "no difference from the ratio alone"
assert gaps["ratio not masked", "final", 16].high < 0
assert gaps["ratio not masked", "final", 16].mean < -1
lower = {
    loss: {
        n: round(-gaps[loss, "final", n].mean, 2)
        for n in idle
        if gaps[loss, "final", n].high < 0
    }
    for loss in halves
}
assert lower["entropy not masked"] == {}, "no difference"
assert lower["not masked"] == {0: 0.52, 2: 0.28, 4: 0.67, 16: 1.27}
for key in ("area", "final"):
    gap = gaps["per head", key, 0]
    assert gap.low < 0 < gap.high, "no difference"
    assert all(gaps[di_engine, key, n].high < 0 for n in (0, 16)), "slower and lower"
assert [round(-gaps[di_engine, "final", n].mean, 2) for n in (0, 16)] == [0.47, 1.18]
wide = stored_runs("moving_idle_16")
gap = paired_difference(wide[di_engine].final, wide["not masked"].final)
assert gap.low < 0 < gap.high, "no difference between the two"

# %% [markdown]
# On the harder *HybridLander*, a lunar lander that burns one engine at a time with a throttle, a
# run takes a minute or more. There five seeds show no difference between the losses:

# %% tags=["hide-input"]
lander_runs = stored_runs("lander")
for loss, runs in lander_runs.items():
    values = " ".join(f"{x:4.0f}" for x in runs.final)
    print(f"lander, {loss:12s}at the end, by seed: {values}")

# %% tags=["claims"]
assert {len(runs.final) for runs in lander_runs.values()} == {5}
for loss in ("per head", "not masked"):
    for key in ("final", "area"):
        pair = (getattr(lander_runs[name], key) for name in ("joint", loss))
        gap = paired_difference(*pair)
        assert gap.low < 0 < gap.high, "no difference"

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
# is seen, nor from the one with two numbers, at the end or while training. The throttle only goes from half
# to full power.
#
# *Moving* needs another angle at almost every turn, so there a list should be at a loss. We tried two,
# untuned, with the settings of hybrid PPO and five seeds each. The list of twelve has three powers, the
# angles ±0.05, ±0.15, ±0.4 and ±1 quarter circles, and *stop*; that of eight lacks the four small angles.

# %% tags=["hide-input"]
movers = {"hybrid": stored_runs("moving")["joint"]} | {
    f"list of {n}": stored_runs(f"moving_list_{n}")["PPO"] for n in (12, 8)
}
for name, runs in movers.items():
    values = " ".join(f"{x:.2f}" for x in runs.final)
    print(f"{name:11s} {values}   mean {runs.final.mean():.2f}", end=",   ")
    print(f"while training {runs.area.mean():.2f}")

# %% [markdown]
# At the end no difference from either list is seen; that of twelve is 0.07 behind (-0.11 to 0.25). While
# training it is behind by 0.24 (0.13 to 0.36), and from the list of eight, with its four coarse angles, no
# difference is seen. So on neither task do we see that fine numbers pay. What a hybrid action saves is the
# list. Somebody has to choose its values, the longer of our two was the worse one while training, and a
# type with three numbers of five values each makes 125 entries.

# %% tags=["claims"]
gap = {
    (name, key): paired_difference(
        getattr(landers["hybrid"], key), getattr(landers[name], key)
    )
    for name in ("discrete", "continuous")
    for key in ("final", "area")
}
assert all(x.low < 0 < x.high for x in gap.values()), "no difference"
assert {len(runs.final) for runs in landers.values()} == {5}, "the same five seeds"
assert {len(runs.final) for runs in movers.values()} == {5}, "five seeds each"
hybrid, twelve, eight = movers.values()
for runs in (twelve, eight):
    found = paired_difference(hybrid.final, runs.final)
    assert found.low < 0 < found.high, "no difference at the end"
found = paired_difference(hybrid.final, twelve.final)
assert [round(x, 2) for x in found] == [0.07, -0.11, 0.25], "at the end"
found = paired_difference(hybrid.area, twelve.area)
assert [round(x, 2) for x in found] == [0.24, 0.13, 0.36], "slower with twelve"
found = paired_difference(hybrid.area, eight.area)
assert found.low < 0 < found.high, "no difference with eight"
assert paired_difference(eight.area, twelve.area).low > 0, "the longer is the worse"

# %% [markdown]
# ## Between the policy and the environment
#
# The boxes of an environment can be anything, from 0 to 720 say. A policy whose standard deviation
# starts at 1 had better not see such units. So on the policy's side every box is $[-1, 1]$, and
# only on the way into the environment is an argument $u_j$ moved to its box $[l_j, h_j]$ and
# clipped,
#
# $$
# \tilde u_j = \operatorname{clip}\Bigl(
#     \frac{l_j + h_j}{2} + \frac{h_j - l_j}{2}\, u_j,\; l_j,\, h_j \Bigr) ,
# $$ (hybrid-rescale)
#
# where an argument with an infinite bound is not moved. Mask and bounds come from the Gymnasium
# space. `Tuple(Discrete(K), Tuple(K boxes))` has one box of arguments for each type, which is empty
# where the type has none, and so implies the mask. Any other space with one `Discrete` and some
# boxes, such as `Tuple(Discrete(3), Box(2))`, does not say which type uses what, so we must say it with
# `mask`:

# %%
from gymnasium import spaces

box, empty = spaces.Box(0.0, 720.0, (1,)), spaces.Box(0.0, 1.0, (0,))
actions = HybridActions.from_space(
    spaces.Tuple((spaces.Discrete(3), spaces.Tuple((box, box, empty))))
)
drawn = torch.tensor([[0.0, 0.5, 0.0], [1.0, 0.0, -3.0], [2.0, 9.0, 9.0]])
types, boxes = actions.to_env(drawn)
one_box = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,))))
told = HybridActions.from_space(one_box, mask=[[1, 0], [0, 1], [0, 0]])
print(
    "mask ", actions.mask.int().tolist(), "implied,", told.mask.int().tolist(), "told"
)
for name, column in (("types", types), ("box 1", boxes[0]), ("box 2", boxes[1])):
    print(name, column.ravel().tolist())

# %% [markdown]
# **Notice** that 0.5 of the first action lands halfway between the middle and the upper bound, and
# that $-3$ is clipped. The environment gets the boxes of all types and reads the one of the type.
#
# The log-probability is that of $u$ as drawn, not of $\tilde u$. And with $\sigma = 1$ almost a
# third of a new policy's arguments end on a bound. Where that hurts, a distribution that cannot
# leave the box helps: a Gaussian that is squashed by tanh, as in {doc}`sac`, or a Beta
# distribution.

# %% tags=["claims"]
assert actions.mask.int().tolist() == [[1, 0], [0, 1], [0, 0]], "implied"
assert torch.equal(actions.mask, told.mask), "told"
first, second, third = boxes
assert first[:, 0].tolist() == [540, 360, 720], "halfway above the middle"
assert second[:, 0].tolist() == [360, 0, 720], "clipped"
assert third.shape == (3, 0), "the boxes of all types"
outside = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).abs() > 1
assert abs(outside.float().mean() - 0.32) < 0.01, "almost a third"

# %% [markdown]
# ### Trap: an action that is judged where the environment sees it
#
# The policy drew 0.5, and the environment got 540. If 540 is stored, every later log-probability is
# that of an action which the policy would never draw. Suppose that an update moves the mean from 0
# to 0.01:

# %%
stored = {"as the policy drew it": 0.5, "as the environment saw it": 540.0}
mus = torch.tensor([0.0, 0.01])
ratios_of = {}
for name, u in stored.items():
    before, after = Normal(mus, 1.0).log_prob(torch.tensor(u))
    ratios_of[name] = (after - before).exp().item()
    print(f"ratio of the action {name:26s}{ratios_of[name]:8.3f}")

# %% [markdown]
# A step of a hundredth gives a ratio of more than a hundred, far outside the clip range. So a
# rollout holds what the policy drew, and only `to_env` knows what the environment got.

# %% tags=["claims"]
said, seen = ratios_of.values()
assert abs(said - 1) < 0.01
assert seen > 100, "more than a hundred"

# %% [markdown]
# ### Trap: two meanings of "action mask"
#
# The mask of this chapter is a fact about the *action space*: which type uses which argument. The
# other kind is a fact about the *state*: which types are legal right now ({doc}`masks`). It belongs
# in the logits, as minus infinity, in the old and in the new policy alike. Put into the mask of
# arguments, it would only say which arguments count, and the illegal type would be drawn as often
# as before. Both masks work together:

# %%
logits = torch.tensor([[0.0, 1.0, 2.0]])
legal = torch.tensor([[True, True, False]])
zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
tree = {
    "action_type": logits.masked_fill(~legal, -torch.inf),
    "action_args": {"mu": zeros, "sigma": ones},
}
some = HybridDistribution(tree, actions.mask)
print("probabilities", [round(p, 3) for p in some.prob[0].tolist()])
print("greedy type  ", some.mode().action_type.item())
print("entropy      ", round(some.entropy().item(), 3))

# %% tags=["claims"]
assert some.prob[0, 2] == 0, "never drawn"
assert some.mode().action_type.item() == 1, "the most likely of the legal ones"
assert some.entropy().isfinite().all()

# %% [markdown]
# ### What this policy cannot express
#
# A product of a type's probability and the densities of its arguments is a modest family. An
# argument that two types share has *one* mean for both, though "forward" and "backward" may want
# different speeds: give each type an argument of its own. Arguments do not depend on each other
# either. Where they must, a network draws them one after the other and feeds each into the next, as
# AlphaStar does {cite:p}`vinyals2019`; the log-probability of the whole is still one sum. And
# $\sigma$ does not depend on the state.

# %% [markdown]
# ## A benchmark of others
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
# from literate_rl.data.agents import make_envs
# from literate_rl.learners.ppo import PPO, PPOConfig
# from literate_rl.nets.hybrid_policy import make_hybrid_policy
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
# mask comes out as the identity matrix. Here are stored runs with these settings, over 100 episodes
# without noise:

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
# | arguments on the way out | $[-1, 1]$ is the whole box, from the space | [the same, bounds written into the environment](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/dizoo/gym_hybrid/envs/gym_hybrid_env.py#L76-L87) | |
#
# The code was read at the linked commits. The column of H-PPO follows the paper.
#
# ## On the best device

# %%
from literate_rl.data.agents import best_device

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
# ## When to use it
#
# Hybrid PPO is PPO with one log-probability for a type and its arguments, so it costs what PPO
# costs. It saves you a list of fixed values, which somebody has to choose and which grows with every
# number. Where a short list is easily written down, PPO with that list is simpler: on the lander and on
# *Moving* we see no difference at the end (one of two lists learned more slowly). If your types have arguments, mask the ratio.
#
# - **Use it for**: actions with one type and numbers that belong to it, such as a skill and its
#   direction
# - **Rather than**: a list of fixed values, if it would be long; one Gaussian over all numbers, if the
#   type is a real choice
# - **Costs**: *Moving* in 60,000 steps and 6 CPU seconds by the program above
# - **First settings**: `learning_rate=3e-3`, `num_envs=32` and the rest of
#   `ppo_settings("literate_rl/Moving-v0")`
# - **Decided by**: six losses and two lists of actions on *Moving*, and three landers, hybrid, discrete
#   and continuous, in {doc}`hybrid_ppo`

# %% tags=["claims"]
program = stored_runs("program_hybrid_ppo")["hybrid_ppo"]
assert len(program.final) == 10
assert program.final.min() > 1.3, "ten of ten learn Moving"
assert abs(program.cpu_seconds.mean() - 6) < 1, "6 CPU seconds"

# %% [markdown]
# ## Summary
#
# - PPO needs one log-probability and one entropy of the whole action, so there is one ratio.
# - H-PPO clips a ratio for each head. Five seeds show no difference in the return.
# - Arguments that do not count spread the ratio beyond the clip range: learning slows down, and
#   with many of them the agent ends far lower. That a ratio for each head helps, we do not see.
# - In the entropy they reward noise that has no effect. That alone cost little here.
# - A rollout holds arguments as they were drawn; they are scaled and clipped on the way into the
#   environment.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

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
from literate_rl.maths.ppo_error import clipped_surrogate

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


from literate_rl.book.exercises import grade


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
# ### Exercise 3: compute
#
# Without the mask all of `number` arguments count. How far may an update move each mean, in standard
# deviations, if the ratio is to spread no more than with two arguments that move by 0.3? Guess first:
# with 18 arguments, is it a third or a ninth of 0.3? Then let `answer` return it, from
# {eq}`def-hybrid-variance`.


# %%
def answer(number):
    return ...


# %% tags=["hide-input"]
def furthest(number):
    """Return the shift with which the exponent is that of two arguments."""
    return shift * math.sqrt(2 / number)


grade(answer, furthest, (2,), (18,), (162,))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(number):
    # The exponent, the number times the square of the shift, stays the same: nine times
    # the arguments leave a third of the step.
    return 0.3 * (2 / number) ** 0.5


grade(answer, furthest, (2,), (18,), (162,))

# %% tags=["claims"]
assert math.isclose(furthest(18), 0.1), "a third"
assert shift == 0.3, "as in the figure"

# %% [markdown]
# ## References
#
# Hybrid PPO and *Moving* are by {cite:t}`fan2019`, its environment by {cite:t}`hirtz2020`, and
# the loss by {cite:t}`schulman2017`. Platform was defined by {cite:t}`masson2016`;
# {cite:t}`bester2019` learn the values of its actions.

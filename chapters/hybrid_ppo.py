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
# takes about 30 minutes. You need {doc}`hybrid_action`, the error of {doc}`ppo_error` and the
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
# distance by which it comes nearer, plus 1 for arriving and $-1$ for leaving the square, less a small cost
# for each step ({doc}`data/worlds`).
#
# The dashed line is a rule by hand: *stop in the target; turn if it is not straight
# ahead; otherwise accelerate, less when it is near*. The agent learns without it:

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
    """Play one episode; return its return and frames."""
    obs, _ = env.reset(seed=seed)
    frames, total, done = [env.render()], 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        done = terminated or truncated
        total += float(reward)
        frames.append(env.render())
    return total, frames


torch.set_num_threads(1)  # the network is too small to be shared out
config = ppo_settings("literate_rl/Moving-v0")
seed_everything(config.seed)
envs = make_envs("literate_rl/Moving-v0", config.num_envs)
policy = make_hybrid_policy(envs.single_observation_space, envs.single_action_space)
learner = PPO(policy, envs, config)
history = fit(learner, progress=False)

env = gym.make("literate_rl/Moving-v0")
rule = np.mean([episode(env, by_hand, seed)[0] for seed in range(100)])
fig, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
found = np.array([row["charts/episodic_return"] for row in history])
smooth = [np.nanmean(found[max(0, i - 3) : i + 1]) for i in range(len(found))]
axis.plot([row["step"] for row in history], smooth, label="hybrid PPO")
axis.axhline(rule, linestyle="--", color="C1", label="the rule by hand")
axis.set(xlabel="steps", ylabel="return")
axis.legend()
returns = evaluate(learner.policy, "literate_rl/Moving-v0", episodes=100, seed=1)
print(f"100 episodes without noise: {returns.mean():.2f}, the rule: {rule:.2f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Six frames of the trained agent: it turns towards the target, drives straight at it and stops in it"}}
env = gym.make("literate_rl/Moving-v0", render_mode="rgb_array")


total, frames = episode(env, learner.policy.predict, seed=12)
fig, axes = plt.subplots(1, 6, figsize=(7, 1.6), layout="constrained")
steps = np.linspace(0, len(frames) - 1, 6).round().astype(int)
for axis, step in zip(axes, steps, strict=True):
    axis.imshow(frames[step])
    axis.set_title(f"step {step}", size=9)
    axis.set(xticks=[], yticks=[])
print(f"trained, return {total:.2f}")

# %% [markdown]
# **Notice** that the curve includes the noise of exploration; the printed return does not. Without noise
# five stored runs end less than a tenth below the rule on average.

# %% tags=["claims"]
from literate_rl.runs.runs import stored_runs

assert returns.mean() > 1, "a single run"
finals = stored_runs("moving")["joint"].final
assert finals.mean() > 0.9 * rule, "less than a tenth below the rule"
assert len(finals) == 5, "five stored runs"

# %% [markdown]
# ## Hybrid PPO on one page
#
# The loop is that of {doc}`ppo`, with another actor and an entropy bonus. New are two functions. `act`
# draws a type and all arguments. `evaluate` returns *one* log-probability for the whole action,
# {eq}`hybrid-log-prob`, and one entropy, {eq}`hybrid-entropy`. On this page the program stops after 10,240
# steps, before it has learned much; in a terminal `literate-rl ppo --env literate_rl/Moving-v0` trains to
# the end.

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
    # The type, and the arguments that it uses. The others get the distance 0 and are
    # left out of the sum; no deviation is so small that its square is 0.
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
# With 60,000 steps all of ten seeds end with a return above 1.3, noise included. After two rollouts from
# the same weights the package's PPO has the same parameters, to 0.0001, on a policy that answers the two
# questions of `evaluate` itself ({doc}`nets/hybrid_policy`).

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
# H-PPO {cite:p}`fan2019` treats type and arguments as two policies. The type has the ratio
# $\rho^{\text{type}} = p_k / p_k^{\text{old}}$, the arguments have the ratio $\rho^{\text{args}}$ of their
# densities, and each is clipped on its own. With our mask, the sum of the two objectives is
#
# $$
# L(\rho^{\text{type}}, \hat A)
#     + \mathbb 1\Bigl[\textstyle\sum_j m_{k,j} > 0\Bigr]\, L(\rho^{\text{args}}, \hat A) ,
# $$ (hybrid-per-head)
#
# with the clipped surrogate $L$ of {doc}`ppo_error`. The indicator is 0 for types without arguments,
# whose $\rho^{\text{args}}$ is always 1 and would only add a constant.
#
# The product of the two ratios is the ratio {eq}`hybrid-ratio`. At the first update all
# three are 1, and there the two errors have the same gradient. Further away they differ in
# what they clip. Take $\rho^{\text{type}} = 1.3$ and $\rho^{\text{args}} = 0.75$: the action
# as a whole has hardly changed, $\rho = 0.975$, and one ratio clips nothing. Two ratios clip
# the type if the action was good, and the arguments if it was bad. In the return on *Moving* five seeds
# show no difference between the two.
#
# Both errors follow as functions of the network's trees.


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


# %% tags=["claims"]
from literate_rl.nets.hybrid_action import HybridDistribution
from literate_rl.maths.ppo_error import ppo_policy_data
from literate_rl.runs.evaluation import paired_difference

mask = torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool)
torch.manual_seed(1)
leaves = [torch.randn(64, n, requires_grad=True) for n in (3, 2)]
arguments = {"mu": leaves[1], "sigma": torch.ones(64, 2)}
tree = {"action_type": leaves[0], "action_args": arguments}
taken = HybridDistribution(tree, mask).sample()
data = ppo_policy_data(tree, tree, taken, torch.randn(64), None)
gradients = [
    torch.autograd.grad(error(data, mask)[0].policy_loss, leaves)
    for error in (ppo_policy_error_hybrid, ppo_policy_error_hybrid_per_head)
]
for one, other in zip(*gradients, strict=True):
    assert torch.allclose(one, other, atol=1e-6), "the same gradient"
moving = stored_runs("moving")
for key in ("area", "final"):
    pair = (getattr(moving[loss], key) for loss in ("per head", "joint"))
    gap = paired_difference(*pair)
    assert gap.low < 0 < gap.high, "five seeds show no difference"

# %% [markdown]
# ## What the mask is good for
#
# What if one left the mask out of the ratio and counted all arguments, also those that the chosen type does
# not use? As long as the ratio is 1, the gradient stays right on average: what an unused argument happened to be is
# independent of the advantage. But two things happen in a batch. The noise of unused arguments makes the ratio
# wider, so that more samples leave the clip range. And their gradient, which is zero only on average, trains the
# encoder that the type and all other arguments share.
#
# Which of the two does harm? *Moving* gets 16 further arguments that lie **idle**: no type uses them. One agent has the
# mask, and three count all arguments in the ratio and in its clip. The first of these gets no gradient from
# arguments that do not count. In the second the gradient of the 16 spares the encoder and moves only weights of their own. In
# the third it goes wherever it leads.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over 60,000 steps, four agents with sixteen idle arguments. First the return: with the mask, and without the gradient of what does not count, it climbs alike; where the idle spare the encoder it lags behind; with the whole gradient it climbs half as far. Second the share of ratios outside the clip range, lowest with the mask and highest without the gradient"}}
causes = stored_runs("moving_idle_cause")
labels = {
    "joint": "masked",
    "idle without gradient": "all count, no gradient",
    "encoder without the idle": "all count, idle spare the encoder",
    "ratio not masked": "all count",
}
fig, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
for loss, label in labels.items():
    runs = causes[loss]
    axes[0].plot(runs.steps, runs.curves.mean(0), label=label)
    axes[1].plot(runs.steps, runs.watched["losses/clipfrac"].mean(0))
axes[0].set(xlabel="steps", ylabel="return", title="mean of ten seeds", xlim=(0, None))
axes[0].legend(fontsize=7)
axes[1].set(xlabel="steps", title="share outside the clip range", ylim=(0, None))

# %% [markdown]
# **Notice** that without this gradient the agent learns as the masked one does, although more of its
# ratios leave the clip range than of any other's. So it is not the ratio that does harm. It is the gradient:
# with all of it the agent, played without noise, ends at 0.24 instead of 1.65, and most of what it loses comes back when
# the encoder is spared that of the 16.
#
# On *Moving* as it is, where each type ignores one argument or two, a missing mask costs, while training,
# about what was still lost with a spared encoder. On *HybridLander*, a lunar lander that burns one engine at
# a time with a throttle, five seeds show no difference. Nor do they on *Moving*, with idle arguments or
# without, where the mask is missing in the *entropy* alone, though what is logged is then [no longer the
# entropy of the actions](/docs/errata.md#an-entropy-of-more-than-the-action).

# %% tags=["claims"]
masked, still, spared, whole = (causes[loss] for loss in labels)
assert {len(runs.final) for runs in causes.values()} == {10}, "ten seeds"
for key in ("area", "final"):
    found = paired_difference(getattr(still, key), getattr(masked, key))
    assert -0.1 < found.low < 0 < found.high < 0.1, "as the masked one does"
    loss, won = (getattr(x, key) - getattr(whole, key) for x in (masked, spared))
    assert 0.6 < won.mean() / loss.mean() < 0.8, "most of it comes back"
    assert paired_difference(won, 0.5 * loss).low > 0, "more than half of it"
shares = [runs.watched["losses/clipfrac"].mean() for runs in causes.values()]
outside = dict(zip(causes, shares, strict=True))
assert max(outside, key=outside.get) == "idle without gradient", "the most"
assert [round(x.final.mean(), 2) for x in (whole, masked)] == [0.24, 1.65]
left = paired_difference(masked.area, spared.area).mean
plain = paired_difference(moving["joint"].area, moving["ratio not masked"].area)
assert plain.low > 0, "lost on Moving as it is"
assert abs(left - plain.mean) < 0.1 * left, "about as much"
wide, landers = stored_runs("moving_idle_16"), stored_runs("lander")
pairs = [(runs["entropy not masked"], runs["joint"]) for runs in (moving, wide)]
pairs.append((landers["not masked"], landers["joint"]))
for one, other in pairs:
    assert len(one.final) == 5, "five seeds"
    for key in ("area", "final"):
        found = paired_difference(getattr(one, key), getattr(other, key))
        assert found.low < 0 < found.high, "no difference"

# %% [markdown]
# ## Between the policy and the environment
#
# A policy whose standard deviation starts at 1 had better not see boxes from 0 to 720. So on its side every box is
# $[-1, 1]$, and only on the way into the environment is an argument $u_j$ moved to its box $[l_j, h_j]$ and
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
# boxes, such as `Tuple(Discrete(3), Box(2))`, needs a `mask`:

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
# **Notice** that $-3$ is clipped. With $\mu = 0$ and $\sigma = 1$ almost a third of the arguments end on a bound. Where that
# hurts, a distribution that cannot leave the box helps, such as the squashed Gaussian of {doc}`sac`.

# %% tags=["claims"]
assert actions.mask.int().tolist() == [[1, 0], [0, 1], [0, 0]], "implied"
assert torch.equal(actions.mask, told.mask), "told"
first, second, _ = boxes
assert first[:, 0].tolist() == [540, 360, 720]
assert second[:, 0].tolist() == [360, 0, 720], "clipped"
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
# The ratio is more than a hundred. So a
# rollout holds what the policy drew, and only `to_env` knows what the environment got.

# %% tags=["claims"]
said, seen = ratios_of.values()
assert abs(said - 1) < 0.01
assert seen > 100, "more than a hundred"

# %% [markdown]
# ### What this policy cannot express
#
# An argument that two types share has *one* mean for both, though "forward" and "backward" may want
# different speeds: give each type an argument of its own. Arguments do not depend on each other
# either. Where they must, a network draws them one after the other and feeds each into the next, as
# AlphaStar does {cite:p}`vinyals2019`.

# %% [markdown]
# ## When to use it
#
# A hybrid action saves you a list of fixed values: a type with three numbers of five values each makes 125 entries.
# Where a short list is easily written down, PPO with that list is simpler. At the end five seeds show no
# difference from lists of eight or twelve actions on *Moving*, nor from either of Gymnasium's own sets on the lander's moon. Mask the ratio: with many arguments that do not count the agent ends far
# lower without.
#
# - **Use it for**: actions with one type and numbers that belong to it, such as a skill and its
#   direction
# - **Rather than**: a list of fixed values, if it would be long; one Gaussian over all numbers, if the
#   type is a real choice
# - **Costs**: *Moving* in 60,000 steps and 6 CPU seconds by the program above
# - **First settings**: `learning_rate=3e-3`, `num_envs=32` and the rest of
#   `ppo_settings("literate_rl/Moving-v0")`
# - **Decided by**: losses and lists of actions on [*Moving*](#see-it-learn), and three landers, hybrid,
#   discrete and continuous

# %% tags=["claims"]
program = stored_runs("program_hybrid_ppo")["hybrid_ppo"]
assert len(program.final) == 10
assert program.final.min() > 1.3, "ten of ten learn Moving"
assert abs(program.cpu_seconds.mean() - 6) < 1, "6 CPU seconds"
landers = [stored_runs(f"lander_{name}")["PPO"] for name in ("discrete", "continuous")]
hybrid, moved = stored_runs("lander")["joint"], moving["joint"]
twelve, eight = (stored_runs(f"moving_list_{n}")["PPO"] for n in (12, 8))
pairs = [(hybrid, other) for other in landers] + [(moved, eight), (moved, twelve)]
for one, other in pairs:
    assert len(one.final) == len(other.final) == 5, "five seeds"
    gap = paired_difference(one.final, other.final)
    assert gap.low < 0 < gap.high, "no difference"

# %% [markdown]
# ## Summary
#
# - PPO needs one log-probability and one entropy of the whole action, so there is one ratio.
# - H-PPO clips a ratio for each head.
# - Arguments that do not count harm through their gradient, most of it in the encoder that they share with the
#   others, and not through the ratio. With many of them the agent ends far lower, so mask them.
# - A rollout holds arguments as they were drawn, not as the environment got them.
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
# ## References
#
# Hybrid PPO and *Moving* are by {cite:t}`fan2019`, its environment by {cite:t}`hirtz2020`, and
# the loss by {cite:t}`schulman2017`.

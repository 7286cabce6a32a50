# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPO
#
# **How does a loss become an agent that learns?** Around the loss there has to be a loop:
# act, look back, learn a little, act again. After this chapter you can read and write
# every line of PPO, use it for discrete and for continuous actions, and see from its metrics
# whether a run is healthy.
#
# It takes about 45 minutes, reading, without exercises. You need the loss ({doc}`ppo_error`) and
# the advantages ({doc}`advantages`). The second half, from "The learner, step by step" on, uses a
# class for policies that {doc}`policies` takes apart, two pages on.

# %% tags=["export", "hide-input"]
"""PPO: a policy, a rollout, a few epochs of updates, for any action space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Gt
from torch import Tensor, nn

from literate_rl.data.agents import Rollout
from literate_rl.data.episodes import check_num_envs, mean_return
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Act,
    ActorCriticLike,
    ByHandLike,
    Envs,
    RunConfig,
    settings_of,
)
from literate_rl.ground.rows import ANY, Row, actor_critic, register
from literate_rl.ground.signatures import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Scale,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.advantages import gae
from literate_rl.maths.ppo_error import (
    approx_kl_k3,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
    ppo_value_data,
    ppo_value_error,
)
from literate_rl.nets.policies import RewardScaler, Runner, normalizer_of, take_in

__all__ = [
    "PPO",
    "PPOConfig",
    "Samples",
    "ppo_settings",
]

# %% [markdown]
# ## PPO on one page
#
# Here is a whole agent, for CartPole and any other task with a vector of numbers to see and a few
# actions to choose from. It runs from top to bottom. From earlier chapters it takes the collector
# and two functions, `gae` and `ppo_policy_error`. Only the entropy bonus is missing: CartPole is
# learned without it. `literate-rl copy ppo > my_ppo.py` gives you the same text as a file, with
# options for environment, seed and steps; it is for discrete actions. The rest of the chapter takes this program apart and puts
# it together again for any task.

# %% tags=["program"] total_steps=50000
import torch
from torch import nn

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs
from literate_rl.maths.ppo_error import ppo_policy_data, ppo_policy_error

torch.set_num_threads(1)  # the networks are too small for several threads to pay

env_id, seed, total_steps = "CartPole-v1", 1, 50_000
num_envs, num_steps, num_epochs, num_minibatches = 8, 64, 8, 4
learning_rate, gamma, lambda_, clip_ratio = 2e-3, 0.98, 0.8, 0.2


def network(outputs, gain):
    """Build two hidden layers; `gain` is the scale of the output layer."""
    layers = nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
# The actor's numbers are the logits of the actions, the critic's one is the value.
actor, critic = network(int(actions), gain=0.01), network(1, gain=1.0)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate, eps=1e-5)
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw an action for each observation."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, report = [], 0  # when each episode ended, and its return
while collector.step < total_steps:
    # The learning rate falls to zero in a straight line.
    rate = learning_rate * (1 - collector.step / total_steps)
    optimizer.param_groups[0]["lr"] = rate

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
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)
            data = ppo_policy_data(actor(obs), old, action, adv, None)
            policy_loss, _ = ppo_policy_error(data, clip_ratio)
            value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()

            optimizer.zero_grad()
            (policy_loss.policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# %% [markdown]
# Did it learn? The first panel has the returns of the run above, the second how episodes *end*,
# in ten stored runs of the same settings: the pole leans too far, the cart leaves the track, or
# all 500 steps are done.

# %% tags=["hide-input"] mystnb={"image": {"alt": "First: the mean return of 20 episodes rises from about 20 to 500. Second: shares of the ways in which episodes end. At first all end because the pole leans too far; around 14,000 steps most end because the cart leaves the track; from 32,000 steps on nearly all last 500 steps"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.book.pictures import AGENT_COLOURS
from literate_rl.runs.runs import stored_runs

when, returned = np.array(episodes).T
last = np.convolve(returned, np.full(20, 1 / 20), "valid")
ends = stored_runs("cartpole_ends")["the page"]
ways = {
    "the pole leans too far": "ends/pole",
    "the cart leaves the track": "ends/track",
    "500 steps": "ends/limit",
}
counts = [
    np.convolve(ends.watched[x].sum(0), np.ones(3), "same") for x in ways.values()
]
shares = np.array(counts) / np.sum(counts, 0)
fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2))
left.plot(when[19:] / 1000, last, color=AGENT_COLOURS["PPO"])
left.set(xlabel="thousand steps", title="mean return of 20 episodes", ylim=(0, 520))
right.stackplot(ends.steps / 1000, shares, labels=ways, alpha=0.7)
right.set(xlabel="thousand steps", title="how episodes end", ylim=(0, 1))
right.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.3))
fig.tight_layout()
print(f"the last 20 episodes: {returned[-20:].mean():.0f}")

# %% [markdown]
# **Notice** in the first panel that 50,000 steps are enough to learn to balance a pole, from nothing but one
# point for each step. All ten stored runs end at 500 as well. **Notice** in the second that the agent
# has two problems, one after the other. At first every episode ends because the pole leans too far.
# Around 14,000 steps most end because the cart drifts off the track, while the mean return of these
# runs still rises. (With the settings of {doc}`ppo_evidence` it stands still from there to 18,000
# steps, and the end of the track is why.) So look at *how* episodes end before you change a setting.

# %% tags=["claims"]
assert returned[-20:].mean() > 200, "it learns"
assert (ends.final == 500).all(), "all ten stored runs"
assert len(ends.final) == 10
pole, track, limit = shares
assert pole[0] > 0.95, "first the pole"
assert track[6] > 0.6, "then mostly the track"
assert ends.steps[6] == 14_000
assert (np.diff(ends.curves.mean(0)[4:8]) > 20).all(), "the mean return still rises"
assert limit[16:].min() > 0.95, "then neither"

# %% [markdown]
# Here is the agent itself. It acts greedily on this page, with the weights that the program has
# just learned, and the line is what its critic thinks while it acts. Push the pole, with the
# buttons or with the arrow keys:

# %% tags=["hide-input"]
from literate_rl.runs.evaluation import evaluate
from literate_rl.nets.policies import (
    ActorCritic,
    CategoricalActions,
    Policy,
    make_policy,
)
from literate_rl.book.playground import PUSH, play, push_cartpole, rounded

push_cartpole(actor, critic, "The agent of this page, to be pushed")

# %% [markdown]
# A push changes the pole's angular velocity by 0.7 radians a second, more than two actions of the
# agent do. **Notice** that the value hardly moves when you push. It stays near 50, the most that
# $\gamma = 0.98$ allows. Wait a
# second between two pushes, and the agent copes with most of them. But push twice in a row, and it
# may fall. Nobody pushed while it learned, which may be
# why. The critic does not see it coming: it promises almost as much as ever at the moment of
# the fall. (The agent of {doc}`workshop/playground` does better: its few
# weights were written by hand, for all states.)

# %% tags=["claims"]
import gymnasium as gym

few_digits = Policy(ActorCritic(rounded(actor), rounded(critic)), CategoricalActions(2))
cartpole = Policy(ActorCritic(actor, critic), CategoricalActions(2))
greedy_returns = evaluate(cartpole, "CartPole-v1", episodes=20, seed=1)
kept = evaluate(few_digits, "CartPole-v1", episodes=20, seed=1)
assert kept.mean() > greedy_returns.mean() / 2, "the rounded weights act as well"


cart = gym.make("CartPole-v1").unwrapped
cart.reset(seed=1)
cart.state = np.zeros(4)
_, _, _, turns = cart.step(1)[0]
assert PUSH == 0.7 > 2 * abs(turns), "more than two actions"


def games(*times):
    """Play ten games with pushes at some steps."""
    pushes = dict.fromkeys(times, PUSH)
    return [play(actor, critic, pushes, seed=seed) for seed in range(1, 11)]


apart = games(60, 110, 160, 210)
assert sum(game.fell for game in apart) <= 5, "it copes with most of them"
assert abs(np.mean([np.median(game.values) for game in apart]) - 50) < 5, "near 50"
for game in games(60, 70):
    if game.fell:
        assert game.values[-1] > 0.5 * game.values[59], "almost as much as ever"

# %% [markdown]
# ## Why small steps
#
# Why does the loop learn for a few epochs, and then collect anew? The loss judges the actions of
# the new policy in the states of the *old* one. That is right near the old policy and wrong far
# away: on the pier of {doc}`exact_values` a large step ends in the water. The clip takes away
# what could be gained by going further, and new data are collected where the policy is now.
#
# The clip is not the only way to stay near. PPO simplifies an older method, **TRPO**, trust
# region policy optimisation {cite:p}`schulman2015`. TRPO maximises the same estimate under a hard
# bound on the KL divergence between old and new policy, which takes second derivatives. The other
# PPO, in the same paper as the clip {cite:p}`schulman2017`, subtracts a **KL penalty**, whose
# weight grows when the policy has moved too far and shrinks when it has hardly moved. Would a
# small learning rate do? It bounds how far the *parameters* move. How far the policy moves with
# them differs from state to state and from update to update. And it costs time: on Pendulum, without
# the clip and with a tenth of the learning rate, none of five seeds learns in 50,000 steps (returns
# below $-1000$). With the clip and the whole rate all ten do (above $-220$).

# %% tags=["claims"]
clipped = stored_runs("clip_pendulum")["ten times, clipped"]
slow = stored_runs("rate_pendulum")["no clip, rate 0.0003"]
assert len(slow.final) == 5
assert len(clipped.final) == 10
assert slow.final.max() < -1000 < -220 < clipped.final.min()

# %% [markdown]
# ## From rollout to minibatches
#
# One iteration in a picture. Each column is one environment, and the second is coloured. Time
# runs downward and matters for the advantages only. Then the cells are shuffled: follow the
# coloured ones.

# %% tags=["hide-input"]
from random import Random

from literate_rl.book.pictures import Picture

picture = Picture(
    "PPO, from rollout to minibatches",
    "A rollout is a grid, one row for each step and one column for each environment. Values "
    "and advantages are computed along the columns. Then all cells are shuffled and cut "
    "into four minibatches. The policy learns from each, several times over, and collects "
    "the next rollout.",
)
T, B = 4, 4
grid = [
    picture.cells(40, 50 + 32 * t, [""] * B, {1: "second"}, width=30) for t in range(T)
]
rollout = picture.frame([box for row in grid for box in row], "1 · collect T × B steps")
look_back = picture.box(336, 98, "2 · look back\nvalues, advantages,\ntargets")
picture.arrow(rollout, look_back)
for place, step in enumerate(Random(4).sample(range(T * B), T * B)):
    x = 19 + 24.5 * place + 11 * (place // 4)
    picture.cells(x, 236, [""], {0: "second"} if step % B == 1 else {}, width=20)
picture.arrow(look_back, (look_back.x, 218))
picture.text(220, 268, "3 · learn from shuffled minibatches, for a few epochs")
anew = "collect anew, with the\npolicy that has learned"
picture.arrow((rollout.x, 216), rollout, anew, "accent", side=-1)
picture

# %% [markdown]
# ## The learner, step by step
#
# In a hurry you may skip to [Is the run healthy?](#is-the-run-healthy): the program above is the whole
# of PPO.
#
# The same three steps now serve any task and any policy of {doc}`policies`. Looking back makes a
# table out of a rollout.


# %% tags=["export"]
class Samples(NamedTuple):
    """What PPO learns from: real steps in any order, or a minibatch of them.

    Attributes:
        obs: What the agent saw.
        action: What it did.
        log_prob: How likely that was under the policy that did it.
        adv: Advantage estimates.
        target: Targets of the values.
        value: Values before learning.
        mask: Which actions were legal, or None where nobody says so.
    """

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    adv: Tensor
    target: Tensor
    value: Tensor
    mask: Tensor | None = None

    def take(self, rows: Tensor) -> Samples:
        """Return some of the samples."""
        fields: Any = [x if x is None else x[rows] for x in self]
        return Samples(*fields)


# %% [markdown]
# Three details come first; the program at the top has them too. The learning rate falls in a
# straight line from $\alpha$ to zero. After $i$ of $I$ steps in the environments it is
#
# $$
# \alpha_i = \alpha \, (1 - i / I) .
# $$ (annealing)
#
# The advantages of a minibatch are shifted and scaled,
#
# $$
# \hat A_b \;\leftarrow\; \frac{\hat A_b - \operatorname{mean}(\hat A)}
#     {\operatorname{std}(\hat A) + 10^{-8}} ,
# $$ (advantage-normalised)
#
# so that the *actor's* gradient does not depend on the unit of the rewards. The critic's does. And
# there is **gradient clipping**: a gradient whose norm is above a bound is scaled down to it, so that
# one odd minibatch weighs no more than the others. The norm is one for both networks, so large
# rewards leave the actor little: with rewards times 1,000 it moves less than a tenth as far in the
# first two iterations on CartPole. `scale_reward` is for that.
#
# The class below has three parts, `collect`, `look_back` and `learn`; `update` runs the epochs
# around `learn`. Its settings, `PPOConfig`, follow further down. From {doc}`policies` it has the
# `Runner`, which acts for a rollout at a time, and the `RewardScaler`. `act` and `policy_error` may
# be replaced: by a faster way to act, or by another loss. `by_hand` takes the place of autograd:
# {doc}`ppo_by_hand` has the same gradient, sooner, and Adam's step with it. With `target_kl` the
# epochs stop early.
#
# (If a network of your own has dropout: acting, its log-probabilities and the old values share one
# mode, `eval_mode` of {doc}`workshop/networks`, in which nothing is dropped. Only `learn` runs in
# training mode, so its first ratios are scattered around 1.)


# %% tags=["export"]
class PPO(Runner):
    """Proximal policy optimisation, for any policy with the methods of ``Policy``.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        act: A faster form of ``policy.act``, or None for that one.
        policy_error: Loss of log-probabilities, instead of
            ``policy_error_from_log_prob``.
        by_hand: What computes the policy's numbers and the gradient without autograd,
            such as ``ByHand(policy)``, or None for autograd.
    """

    policy: ActorCriticLike
    scaler: RewardScaler
    kept = (*Runner.kept, "optimizer", "scaler")

    def __init__(
        self,
        policy: ActorCriticLike,
        envs: Envs,
        config: PPOConfig,
        act: Act | None = None,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
        by_hand: ByHandLike | None = None,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        settings = config.num_steps, config.seed, config.checkpoint_interval
        super().__init__(policy, envs, *settings, act)
        one = policy_error is None or by_hand is None
        check_that(one, "policy_error needs autograd: leave out by_hand")
        self.normalizer = normalizer_of(policy, config.normalize_obs)
        self.config = config
        self.policy_error = policy_error or policy_error_from_log_prob
        self.judge = by_hand or policy
        self.gradient = by_hand.gradient if by_hand else self.autograd
        # One optimiser for both networks. Adam's `eps`, which keeps its divisor from
        # zero, is that of OpenAI Baselines.
        self.parameters = list(policy.parameters())
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, eps=1e-5, fused=True
        )
        if by_hand is not None:
            by_hand.speed_up(self.optimizer)
        self.scaler = RewardScaler(config.num_envs, config.gamma).to(self.device)

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, learn from it, and return metrics."""
        return self.update(self.collect())

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        # The learning rate {eq}`annealing`.
        if self.config.anneal:
            self.optimizer.param_groups[0]["lr"] = self.config.rate(self.step)
        return super().collect()

    @torch.no_grad()
    def look_back(self, batch: Rollout) -> Samples:
        """Return the samples of a rollout: all that the old policy knows about it."""
        config, judge = self.config, self.judge
        # One pass over the whole rollout says what the old policy and the old values
        # were. So nothing of this had to be computed while acting.
        with eval_mode(self.policy):
            log_prob, _ = judge.evaluate_actions(
                batch.obs, batch.action, mask=batch.mask
            )
            value, next_value = judge.value(batch.obs), judge.value(batch.next_obs)

        # The advantages, {eq}`gae`, with a flag for each kind of end.
        if config.scale_reward:
            batch = self.scaler.scaled(batch)
        adv = gae(
            *(batch.reward, value, next_value, batch.terminated, batch.truncated),
            *(config.gamma, config.lambda_),
        )
        # {doc}`ppg` looks at the rollout once more.
        self.seen = (batch, value, next_value)

        # From here on time plays no role. Phantom rows, which some environments put
        # behind each episode ({doc}`exact_values`), are left out.
        columns = (batch.obs, batch.action, log_prob, adv, adv + value, value)
        return Samples(*columns, batch.mask).take(batch.real)

    def update(self, batch: Rollout) -> dict[str, float]:
        """Learn from a rollout for some epochs; return metrics.

        The losses are those of the last minibatch, the distances those of all steps.
        """
        config, samples = self.config, self.look_back(batch)
        for _ in range(config.num_epochs):
            # Each epoch shuffles the samples and deals them out in minibatches.
            order = torch.randperm(len(samples.adv), generator=self.generator)
            for rows in order.to(self.device).tensor_split(config.num_minibatches):
                losses = self.learn(samples.take(rows))
            # A policy that has moved far enough has learned enough from this rollout.
            most = config.target_kl
            if most and self.distance(samples)["losses/approx_kl"] > most:
                break
        moved = self.distance(samples)
        # Only now may the normaliser change. Earlier it would move the old policy.
        take_in(self.normalizer, batch.obs, batch.real)

        # How much of the targets the critic foresaw: 1 is all of their variance.
        unexplained = (samples.target - samples.value).var() / samples.target.var()
        return {
            "charts/episodic_return": mean_return(batch.episode_return),
            "charts/episodic_length": batch.episode_length.nanmean().item(),
            "charts/learning_rate": self.optimizer.param_groups[0]["lr"],
            **losses,
            **moved,
            "losses/explained_variance": 1 - unexplained.item(),
        }

    def learn(self, part: Samples) -> dict[str, float]:
        """Take one step of the optimiser on a minibatch; return its losses."""
        losses = self.gradient(part, self.config)
        self.optimizer.step()
        return losses

    def autograd(self, part: Samples, config: PPOConfig) -> dict[str, float]:
        """Leave the clipped gradient of a minibatch in ``grad``; return its losses."""
        policy = self.policy
        # Mean 0 and standard deviation 1, {eq}`advantage-normalised`.
        adv = part.adv
        if config.normalize_advantage:
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)

        # The actor: the clipped surrogate and the entropy bonus of {doc}`ppo_error`.
        log_prob, entropy = policy.evaluate_actions(
            part.obs, part.action, mask=part.mask
        )
        clips = config.clip_ratio, config.dual_clip
        (policy_loss, entropy_loss), _ = self.policy_error(
            log_prob, part.log_prob, entropy, adv, None, *clips
        )
        # The critic: half the mean squared error to the targets.
        data = ppo_value_data(policy.value(part.obs), part.value, part.target, None)
        value_loss = ppo_value_error(data, config.value_clip)

        # The total. What is not finite would spoil all weights at once.
        loss = policy_loss + config.value_weight * value_loss
        loss = loss - config.entropy_weight * entropy_loss
        inputs = {"log_prob_old": part.log_prob, "log_prob": log_prob}
        check_finite(loss, **inputs, entropy=entropy)
        # The gradient, clipped.
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        return {
            "losses/policy_loss": policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": entropy_loss.item(),
        }

    @torch.no_grad()
    def distance(self, samples: Samples) -> dict[str, float]:
        """Say how far the policy has moved from the one that collected the rollout."""
        with eval_mode(self.policy):
            log_prob, _ = self.judge.evaluate_actions(
                samples.obs, samples.action, mask=samples.mask
            )
        log_ratio = log_prob - samples.log_prob
        # The names are CleanRL's: `approx_kl` is $k_3$ and `old_approx_kl` is $k_1$. A
        # loss of one's own may have several log-probabilities for an action, and all of
        # them count.
        outside = (log_ratio.exp() - 1).abs() > self.config.clip_ratio
        return {
            "losses/old_approx_kl": -log_ratio.mean().item(),
            "losses/approx_kl": approx_kl_k3(
                log_prob.flatten(), samples.log_prob.flatten()
            ).item(),
            "losses/clipfrac": outside.float().mean().item(),
        }


# %% [markdown]
# ## Settings
#
# They are kept in one frozen dataclass, so that a run can print, store and repeat them. The
# defaults are those of
# [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L37-L69)
# for CartPole, except for fewer steps and no clip of the value. Begin with the learning rate, the
# length of a rollout (`num_envs` times `num_steps`) and the number of epochs. Then look at the
# discount, which four of the five entries below change, and at `scale_reward`, which helped most
# while training on Pendulum ({doc}`ppo_evidence`). Most of the rest can stay.
#
# One setting may surprise you. At every `checkpoint_interval` rollouts all environments start anew
# (in Spinning Up at every rollout), so an episode longer than `num_steps * checkpoint_interval`
# steps never ends while training: 6,400 steps by default, 1,600 with the settings of CartPole. If
# yours are longer, raise it.


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class PPOConfig(RunConfig):
    """Settings of PPO. The defaults suit small tasks such as CartPole.

    Attributes:
        num_envs: Environments that are stepped together.
        num_steps: Steps of one rollout in each environment.
        num_epochs: How often each rollout is learned from.
        num_minibatches: Parts into which each epoch divides the rollout.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns in the advantage.
        clip_ratio: Half width of the ratio's clip range.
        dual_clip: Bound of the dual clip, or none.
        value_clip: Half width of the value's clip range, in units of the return, or
            none.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        max_grad_norm: Norm above which a gradient is clipped.
        normalize_advantage: Whether a minibatch's advantages get mean 0 and standard
            deviation 1.
        scale_reward: Whether rewards are divided by the standard deviation of the
            return.
        target_kl: Divergence in nats after which no further epoch begins, or none.
        share_encoder: Whether actor and critic share an encoder. The policy has to be
            built so, as ``train`` does.
    """

    num_envs: Count = 4
    num_steps: Count = 128
    num_epochs: Count = 4
    num_minibatches: Count = 4
    learning_rate: Scale = 2.5e-4
    anneal: bool = True
    gamma: Fraction = 0.99
    lambda_: Fraction = 0.95
    clip_ratio: Positive = 0.2
    dual_clip: Annotated[float, Gt(1)] | None = None
    value_clip: Positive | None = None
    entropy_weight: NonNegative = 0.01
    value_weight: NonNegative = 0.5
    max_grad_norm: Positive = 0.5
    normalize_advantage: bool = True
    scale_reward: bool = False
    target_kl: Positive | None = None
    share_encoder: bool = False

    def __post_init__(self) -> None:
        # Of a single advantage nothing is left when its mean is subtracted.
        least = 2 if self.normalize_advantage else 1
        most, parts = self.num_envs * self.num_steps // least, self.num_minibatches
        words = "num_envs * num_steps must be at least 2 for normalize_advantage"
        check_that(most > 0, words)
        words = f"num_minibatches must be at most {most}, got {parts}"
        check_that(parts <= most, words)


# %% [markdown]
# Which settings are good depends on the task. For the environments of this book here are some
# with which the agent has learned. Those of CartPole come from
# [rl-baselines3-zoo](https://github.com/DLR-RM/rl-baselines3-zoo/blob/22e3ff2450fd92033f7f032915e1f64894a09584/hyperparams/ppo.yml#L37-L48),
# with half as many steps and epochs, twice the learning rate and a clip range that stays as it
# is. An environment that is not in the table gets the defaults. (The program at the top has
# settings of its own, with minibatches, so that every part of PPO can be seen.
# {doc}`ppo_evidence` uses those of the table.)

# %% tags=["export", "hide-input"]
# Settings with which the agent has learned, by environment. What an entry leaves out is
# the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 50_000, "num_envs": 8, "num_steps": 32, "num_epochs": 10,
        "num_minibatches": 1, "learning_rate": 2e-3, "gamma": 0.98, "lambda_": 0.8,
        "entropy_weight": 0.0,
    },
    "Acrobot-v1": {"total_steps": 300_000, "num_envs": 16, "learning_rate": 1e-3},
    "Pendulum-v1": {
        "num_envs": 8, "num_steps": 200, "num_epochs": 10, "num_minibatches": 8,
        "learning_rate": 3e-3, "gamma": 0.9, "entropy_weight": 0.0,
    },
    "literate_rl/Moving-v0": {
        "total_steps": 60_000, "num_envs": 32, "num_steps": 64, "num_epochs": 8,
        "learning_rate": 3e-3, "gamma": 0.98,
    },
    "literate_rl/HybridLander-v0": {
        "total_steps": 400_000, "num_envs": 16, "num_epochs": 8, "num_minibatches": 8,
        "learning_rate": 2e-3, "gamma": 0.995, "scale_reward": True,
    },
}  # fmt: skip


ppo_settings = settings_of(PPOConfig, SETTINGS)


# %% [markdown]
# What `train` knows of it, in a row ({doc}`workshop/rows`):

# %% tags=["export", "hide-input"]
ROW = register(
    Row(
        "PPO",
        "where to start: steady, few settings",
        ANY,
        PPOConfig,
        actor_critic,
        PPO,
        settings=ppo_settings,
        contract="ppo",
        forms=("act", "by_hand"),
    )
)

# %% tags=["claims"]
assert sum("gamma" in entry for entry in SETTINGS.values()) == 4
assert len(SETTINGS) == 5, "four of the five entries change the discount"
steps_between = [
    x.num_steps * x.checkpoint_interval
    for x in (PPOConfig(), ppo_settings("CartPole-v1"))
]
assert steps_between == [6_400, 1_600]
assert ppo_settings("Pendulum-v1").learning_rate == 3e-3, "ten times 0.0003"

# %% [markdown]
# ## The same, and more
#
# `PPO` does what the program at the top does, if everything that the program does not have is
# switched off. The folded cell makes both draw the same actions and compares their parameters
# after the first two iterations.


# %% tags=["claims"]
from literate_rl.apps.programs import run_program


class Drawn(CategoricalActions):
    """Draws each action when it is due, as the program does."""

    def noise(self, num_steps, num_envs, generator):
        self.generator = generator
        return torch.zeros(num_steps, 1)

    def choose(self, row, noise):
        prob = row.softmax(-1)
        return torch.multinomial(prob, 1, generator=self.generator).squeeze(-1)


page = run_program("ppo", total_steps=1024)  # two iterations
names = "total_steps num_envs num_steps num_epochs num_minibatches learning_rate gamma"
same = {name: page[name] for name in (*names.split(), "lambda_", "clip_ratio")}
config = PPOConfig(**same, entropy_weight=0.0)
torch.manual_seed(1)
envs = make_envs("CartPole-v1", config.num_envs)
built = make_policy(envs.single_observation_space, envs.single_action_space)
learner = PPO(Policy(built.network, Drawn(2)), envs, config)
learner.collector.reset(seed=1000)
learner.iteration = 1  # not due for a reset with another seed
while learner.step < config.total_steps:
    learner.iterate()
for ours, theirs in zip(page["parameters"], learner.parameters, strict=True):
    assert torch.allclose(ours, theirs, atol=1e-5), "the same parameters"


def moved(factor):
    """Return how far the actor moves in two iterations with rewards times a factor."""
    torch.manual_seed(1)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    learner = PPO(policy, envs, ppo_settings("CartPole-v1"))
    actor = [p.detach().clone() for p in policy.network.actor.parameters()]
    for _ in range(2):
        batch = learner.collect()
        learner.update(batch._replace(reward=factor * batch.reward))
    pairs = zip(policy.network.actor.parameters(), actor, strict=True)
    return sum((new - old).square().sum() for new, old in pairs) ** 0.5


assert moved(1000) < moved(1) / 10, "less than a tenth as far"

# %% [markdown]
# Now the same learner trains a Gaussian policy. Pendulum has a motor that is too weak to lift the
# pendulum; it has to swing it up. Each step costs something, so returns are negative: about
# $-1200$ for a motor that pushes at random, about $-150$ for a good one. `make_learner` builds
# environments, policy and learner from an id and settings, `fit` calls `iterate` until the steps
# are spent ({doc}`workshop/runs`), and `replace` copies settings with some of them changed. The
# network is the one that `make_policy` chooses for vectors; {doc}`encoders` has those for pictures.
# `numpy_act` is the policy's `act` once more, faster for small networks ({doc}`workshop/fast_forms`).

# %% tags=["hide-input"] mystnb={"image": {"alt": "Returns of PPO on Pendulum over 50,000 steps, a running mean of 24 episodes: they stay near minus 1200 for a while, then rise steeply to about minus 200"}}
from dataclasses import replace
from functools import partial

from literate_rl.data.agents import seed_everything
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.runs.runs import fit, flat_env


def make_learner(env, config):
    """Build environments, the policy that fits them, and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    spaces_of_one = envs.single_observation_space, envs.single_action_space
    policy = make_policy(*spaces_of_one, normalize=config.normalize_obs)
    return PPO(policy, envs, config, numpy_act(policy))


config = replace(ppo_settings("Pendulum-v1"), total_steps=50_000)
pendulum = make_learner("Pendulum-v1", config)
pendulum_history = fit(pendulum, progress=False)

# All eight copies end at the same time, every 200 steps. So three points are 24 episodes.
steps, means = np.array(
    [(row["step"], row["charts/episodic_return"]) for row in pendulum_history]
).T
fig, axis = plt.subplots(figsize=(7, 2.4))
smooth = np.convolve(means, np.full(3, 1 / 3), "valid")
axis.plot(steps[2:], smooth, color=AGENT_COLOURS["PPO"])
axis.set(xlabel="steps", ylabel="return")
fig.tight_layout()
pendulum_returns = evaluate(pendulum.policy, "Pendulum-v1", episodes=20, seed=1)
print(f"20 greedy episodes: {pendulum_returns.mean():.0f}")

# %% [markdown]
# **Notice** how long the return stays where random pushes leave it, before it climbs.

# %% tags=["claims"]
assert -1500 < means[:3].mean() < -900, "as at random"
assert means[3:6].mean() < means[:3].mean() + 300, "it stays there"
assert pendulum_returns.mean() > -600, "it swings up"

# %% [markdown]
# ## Is the run healthy?
#
# Look at these four numbers in every run. Here they are for the run on Pendulum.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four small panels over steps of the run on Pendulum: the KL divergence, k3, jumps between a few hundredths at first and becomes smaller in the end, and so does the clip fraction; the entropy falls slowly; the explained variance rises from zero to nearly one"}}
panels = {
    "losses/approx_kl": "KL divergence $k_3$",
    "losses/clipfrac": "clip fraction",
    "losses/entropy": "entropy",
    "losses/explained_variance": "explained variance",
}
fig, axes = plt.subplots(2, 2, figsize=(7, 3.6), sharex=True)
watched = {name: np.array([h[name] for h in pendulum_history]) for name in panels}
for axis, (name, title) in zip(axes.flat, panels.items(), strict=True):
    axis.plot(steps, watched[name], linewidth=0.8)
    axis.set_title(title, fontsize=10)
    axis.locator_params(nbins=4)
fig.tight_layout()

# %% [markdown]
# - The **KL divergence** says how far one iteration has moved the policy. Towards the end it
#   becomes smaller, because the learning rate does.
# - The **clip fraction** is the share of samples whose ratio has left the clip range. If it is
#   always zero, the clip does nothing, and a larger learning rate or more epochs are worth a try.
# - The **entropy** falls while the policy makes up its mind. If it drops at once, the agent has
#   stopped exploring. (Zero is its lowest value for discrete actions only. For a Gaussian policy,
#   as here, it may be negative.)
# - The **explained variance** says how much of its targets the critic foresees: 1 is all, 0 is
#   no more than the mean. If it stays near zero or below, look at the critic first: at its
#   learning rate, and at the size of the rewards.
#
# If one of them looks odd, {doc}`debugging` has its likely cause and a check.

# %% tags=["claims"]
quarter = len(steps) // 4
divergence = watched["losses/approx_kl"]
assert divergence[-3:].mean() < divergence[:quarter].mean(), "becomes smaller"
assert watched["losses/entropy"][-1] < watched["losses/entropy"][0], "it falls"
assert watched["losses/explained_variance"][-quarter:].mean() > 0.3, "it is foreseen"

# %% [markdown]
# ## Traps
#
# ### Trap: a normaliser that moves the old policy
#
# In the first minibatch of an iteration nothing has been learned yet, so each ratio must
# be 1, up to rounding. That is the cheapest test of a PPO; {cite:t}`huang2022` recommend it
# too. Here the normaliser of the observations is updated too early, between acting and
# learning:

# %%
config = ppo_settings("CartPole-v1")
config = replace(config, normalize_obs=True, total_steps=5_000)
learner = make_learner("CartPole-v1", config)
fit(learner, progress=False)
batch = learner.collect()
furthest = []
with torch.no_grad():
    before, _ = learner.policy.evaluate_actions(batch.obs, batch.action)
    for name in ("before", "after"):
        now, _ = learner.policy.evaluate_actions(batch.obs, batch.action)
        furthest.append((now - before).exp().sub(1).abs().max().item())
        print(f"{name} the normaliser's update: ratios within {furthest[-1]:.3f} of 1")
        learner.policy.network.normalizer.update(batch.obs.flatten(0, 1))

# %% [markdown]
# One early update moves a ratio out of the clip range before anything has been learned. So
# `PPO.update` changes the normaliser last.

# %% tags=["claims"]
assert furthest[0] == 0, "before, all ratios are 1"
assert furthest[1] > 0.2, "out of the clip range"

# %% [markdown]
# ### Trap: half of a run is not a shorter run
#
# The learning rate falls to zero at `total_steps`. So the first half of a long run had a higher
# learning rate than a short run has at the same place, and the two curves differ. To compare
# agents after 50,000 steps, train them for 50,000 steps.

# %%
import math

rates = {}
for total in (50_000, 100_000):
    learner = make_learner(
        "CartPole-v1", replace(ppo_settings("CartPole-v1"), total_steps=total)
    )
    learner.collector.step = 25_000  # as if the first 25,000 steps were done
    rates[total] = learner.iterate()["charts/learning_rate"]
    print(f"run of {total:7,} steps: learning rate {rates[total]:.2e} at step 25,000")

# %% tags=["claims"]
assert math.isclose(rates[100_000], 1.5 * rates[50_000]), "half as much again"

# %% [markdown]
# ## What well-known implementations do
#
# | choice | this chapter | [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py) | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/ppo/ppo.py) | [Spinning Up](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py) | [OpenAI Baselines](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/ppo2/ppo2.py) | [TorchRL](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/ppo.py) |
# |---|---|---|---|---|---|---|
# | advantages normalised | in each minibatch | [in each minibatch](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L261) | [in each minibatch](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/ppo/ppo.py#L218) | [over the whole rollout](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py#L80-L81) | [in each minibatch](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/ppo2/model.py#L136-L139) | [off by default](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/ppo.py#L474) |
# | learning rate | falls to 0 | [falls to 0](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L187-L190) | [constant by default](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/ppo/ppo.py#L84) | [constant, one for each network](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py#L251-L252) | constant, [falls to 0 in its presets](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/ppo2/defaults.py) | the user's loop |
# | gradient clipping | at 0.5 | [at 0.5](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L67) | [at 0.5](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/ppo/ppo.py#L95) | none | [at 0.5](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/ppo2/ppo2.py#L22) | the user's loop |
# | stop at a KL divergence | optional, after an epoch | [optional, after an epoch](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L292) | [optional, at a minibatch, 1.5 times the target](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/ppo/ppo.py#L267) | [yes, 1.5 times 0.01](https://github.com/openai/spinningup/blob/038665d62d569055401d91856abb287263096178/spinup/algos/pytorch/ppo/ppo.py#L269) | none | the user's loop |
#
# What they do at a time limit is in {doc}`advantages`. The code was read at the linked commits.
#
# ## On the best device
#
# The networks follow the policy's device, the environments stay on the CPU. For networks as
# small as these a GPU is no faster: each step has to be sent there and back.

# %%
from literate_rl.data.agents import best_device

device = best_device()
config = PPOConfig(total_steps=1024)
envs = make_envs("CartPole-v1", config.num_envs)
policy = make_policy(envs.single_observation_space, envs.single_action_space)
on_device = PPO(policy.to(device), envs, config)
last = fit(on_device, progress=False)[-1]
print(f"trained on {on_device.device.type} for {last['step']} steps")
print("finite losses:", all(math.isfinite(last[k]) for k in last if "losses" in k))

# %% [markdown]
# ## When to use it
#
# PPO is the agent to try first where steps are cheap: it takes actions of every kind, needs no replay
# buffer, and most of its settings can stay. Prefer it to agents that use each batch once where a
# task is harder than CartPole. On Pendulum, the one harder task that was tried, with the same steps
# and settings searched equally hard, it learns and they do not. It throws its steps away after a few
# epochs, though. Where a step is dear, an agent that keeps them needs far fewer.
#
# - **Use it for**: actions of all kinds (discrete, continuous, hybrid), where steps are cheap
# - **Rather than**: {doc}`a2c`, which uses a batch once; but where steps are dear, {doc}`sac` or
#   {doc}`dqn`
# - **Costs**: 50,000 steps and about 3 CPU seconds for CartPole, 100,000 steps and about 9 CPU
#   seconds for Pendulum
# - **First settings**: `num_epochs=10` in 8 environments; `learning_rate=2e-3`, `num_steps=32` for CartPole, 3e-3 and 200 for Pendulum
# - **Decided by**: four agents on Pendulum ({doc}`ppo_evidence`)

# %% tags=["claims"]
for task, total, seconds, goal in (
    ("cartpole", 50_000, 3, 475),
    ("pendulum", 100_000, 9, -200),
):
    runs = stored_runs(task)["PPO"]
    assert runs.steps[-1] == total
    assert round(runs.cpu_seconds.mean()) == seconds, "CPU seconds"
    assert runs.final.mean() > goal, "solved"
for env_name, rate, length in (("CartPole-v1", 2e-3, 32), ("Pendulum-v1", 3e-3, 200)):
    tried = ppo_settings(env_name)
    assert (tried.num_epochs, tried.num_envs) == (10, 8), "first settings"
    assert (tried.learning_rate, tried.num_steps) == (rate, length)

# %% [markdown]
# ## Summary
#
# - PPO collects a rollout, estimates advantages, and learns for some epochs from shuffled
#   minibatches. Then it throws the rollout away.
# - The estimate of what a new policy gains comes from the old policy's states, so it holds only
#   near the old policy. The clip takes away what could be gained by leaving.
# - Watch KL divergence, clip fraction, entropy and explained variance. In the first minibatch
#   all ratios are 1.
# - The learning rate falls to zero, advantages are normalised and gradients clipped.
#   {doc}`ppo_evidence` shows which of these details matter.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "An iteration has one epoch and one minibatch, the whole rollout. Someone forgets the clip. "
    "What changes?",
    ["nothing", "the updates get larger", "the entropy falls faster"],
    right="nothing",
    because="There is a single update, and when its gradient is computed all ratios are 1. The "
    "clip has nothing to hold. It matters from the second update on.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to shuffle two columns of the samples. With it PPO runs, all metrics are
# finite, and nothing is learned. Repair it.


# %%
def answer(obs, adv, seed):
    generator = torch.Generator().manual_seed(seed)
    order = [torch.randperm(len(column), generator=generator) for column in (obs, adv)]
    return obs[order[0]], adv[order[1]]


from literate_rl.book.exercises import grade


def kept_together(obs, adv, seed):
    """Say whether the pairs are whole, all there, and in another order."""
    result = answer(obs, adv, seed)
    if result is ...:
        return ...
    first, second = result
    whole, there = torch.equal(first.flatten(), second), second.sort().values
    return [whole, torch.equal(there, adv), not torch.equal(second, adv)]


# Each advantage has the number of its observation.
tables = [(torch.arange(6.0).reshape(6, 1), torch.arange(6.0), seed) for seed in (1, 2)]
grade(kept_together, lambda *_: [True, True, True], *tables)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(obs, adv, seed):
    # One order for all columns: an advantage belongs to its observation and action.
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(obs), generator=generator)
    return obs[order], adv[order]


grade(kept_together, lambda *_: [True, True, True], *tables)

# %% [markdown]
# ### Exercise 3: experiment
#
# The more epochs an iteration has, the further the policy moves. The metric `losses/clipfrac` is
# the share of samples whose ratio is out of the clip range. Which of 1, 2, 5 and 10 epochs is the
# first with which it is above one in twenty in the third iteration on CartPole? Guess first. Then
# use `clip_fraction(num_epochs)` and return the number.


# %%
def clip_fraction(num_epochs):
    """Return the share out of the clip range in the third iteration."""
    config = replace(ppo_settings("CartPole-v1"), num_steps=128, num_epochs=num_epochs)
    learner = make_learner("CartPole-v1", config)
    return [learner.iterate()["losses/clipfrac"] for _ in range(3)][-1]


def answer():
    return ...


# %% tags=["hide-input"]
def first_above():
    return next(n for n in (1, 2, 5, 10) if clip_fraction(n) > 0.05)


grade(answer, first_above, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # One or two epochs hardly move the policy; with five many samples are outside.
    shares = {n: clip_fraction(n) for n in (1, 2, 5, 10)}
    return min(n for n, share in shares.items() if share > 0.05)


grade(answer, first_above, ())
print({n: round(clip_fraction(n), 3) for n in (1, 2, 5, 10)})

# %% [markdown]
# ### Exercise 4: write PPO yourself
#
# Now from nothing: sixty lines are enough. The task is the house of {doc}`workshop/rooms`, six rooms
# of which each tests one part of a learner ({doc}`debugging` walks through them). `make_envs(house,
# 8)` makes eight copies; an observation has nine numbers, there are two actions, and the discount is
# 0.8. Write actor and critic, the loop, GAE, the clip and the loss. Train for as many iterations of 256
# steps as you are told, and return two functions of observations: one gives the values, $(B,)$, the
# other the probabilities of the two actions, $(B, 2)$. From the book you may use `Collector` and
# `make_envs`.
#
# A right program needs time, too. So the house asks after 30 iterations, and where an answer is wrong
# again after 60, 120 and 240, as long as it comes nearer. What stands still is wrong: the verdict names
# the room, and the room names the part. Guess first: how many iterations will you need?

# %%
from literate_rl.data.agents import Collector, make_envs
from literate_rl.book.rooms import house, visit_rooms


def answer(iterations):
    return ...


# %% tags=["hide-input"]
def right_in_all_rooms():
    """Train, ask about the six rooms, and raise where an answer stays wrong."""
    if answer(1) is ...:
        return ...
    _, needed = visit_rooms(answer)
    print(f"All six rooms are right after {needed} iterations.")
    return True


grade(right_in_all_rooms, lambda: True, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(iterations):
    torch.manual_seed(1)
    actor, critic = (
        nn.Sequential(nn.Linear(9, 64), nn.Tanh(), nn.Linear(64, n)) for n in (2, 1)
    )
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 3e-3)
    collector = Collector(make_envs(house, 8))
    collector.reset(seed=1)

    def act(obs):
        return torch.multinomial(actor(obs).softmax(-1), 1).squeeze(-1)

    for _ in range(iterations):
        # Collect, and write down what the old policy and the old critic say.
        batch = collector.collect(act, 32)
        with torch.no_grad():
            old = actor(batch.obs).log_softmax(-1)
            value, after = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
        # A terminated step has no future; a truncated one has, but not in the next row.
        error = batch.reward + 0.8 * after.masked_fill(batch.terminated, 0.0) - value
        goes_on = ~(batch.terminated | batch.truncated)
        adv, later = torch.zeros_like(error), torch.zeros(8)
        for t in reversed(range(32)):
            later = error[t] + 0.8 * 0.8 * goes_on[t] * later
            adv[t] = later
        target, weight = adv + value, (adv - adv.mean()) / (adv.std() + 1e-8)
        # Learn, eight times from the whole rollout.
        taken = batch.action[..., None]
        for _ in range(8):
            log_prob = actor(batch.obs).log_softmax(-1)
            ratio = (log_prob - old).gather(-1, taken).squeeze(-1).exp()
            gain = torch.min(ratio * weight, ratio.clamp(0.8, 1.2) * weight).mean()
            miss = (target - critic(batch.obs)[..., 0]).square().mean()
            optimizer.zero_grad()
            (0.5 * miss - gain).backward()
            optimizer.step()
    return lambda obs: critic(obs)[..., 0], lambda obs: actor(obs).softmax(-1)


grade(right_in_all_rooms, lambda: True, ())

# %% [markdown]
# ## References
#
# PPO is from {cite:t}`schulman2017`, TRPO from {cite:t}`schulman2015`. {cite:t}`huang2022`
# collect the details of implementations, {cite:t}`engstrom2020` and {cite:t}`andrychowicz2021`
# measure what they are worth.

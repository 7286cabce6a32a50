# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # IMPALA
#
# **How does one policy learn from actors that do not wait for it?** After this chapter you can
# write IMPALA's learning step, say what old data do to a policy, and judge when the correction of
# V-trace is worth having. Reading takes about 45 minutes, without exercises. You need V-trace
# ({doc}`off_policy`) and the interface of {doc}`policies`.

# %% tags=["export", "hide-input"]
"""IMPALA: unrolls, a learner that corrects them with V-trace, and a loop."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from literate_rl.data.agents import (
    Rollout,
    Runner,
    as_read,
    behind,
    step_of,
)
from literate_rl.data.episodes import check_num_envs, mean_return
from literate_rl.data.memory import BufferConfig, UnrollBuffer, distances
from literate_rl.data.windows import check_fits
from literate_rl.ground.networks import ClipConfig, GradientClip, eval_mode
from literate_rl.ground.protocols import (
    ActorCriticLike,
    Envs,
    Kept,
    PolicyLike,
    RecurrentConfig,
    settings_of,
)
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    Scale,
    check_that,
    checked,
)
from literate_rl.maths.off_policy import check_clips, vtrace_error_from_log_prob
from literate_rl.nets.parts import normalizer_of, take_in
from literate_rl.data.worlds import ForceCartPole  # noqa: F401 (registered)

__all__ = [
    "IMPALA",
    "IMPALAConfig",
    "Unroll",
    "VTraceLearner",
    "impala_settings",
    "to_unroll",
]

# %% [markdown]
# ## Nobody waits
#
# In PPO the actor waits while the learner learns, and the other way round. IMPALA
# {cite:p}`espeholt2018` lets both go on. **Actors** collect with the weights that they have, the
# **learner** learns from what arrives, and now and then it hands out new weights.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "The loop of IMPALA",
    "An actor with an older policy puts unrolls into a memory. The learner draws from it, "
    "corrects with V-trace, and sends new weights to the actor, a little late.",
)
actor = picture.box(66, 60, "actor\nan older policy", width=124)
memory = picture.box(220, 60, "memory\nunrolls", width=96)
learner = picture.box(374, 60, "learner\ntoday's policy", "accent", width=124)
picture.arrow(actor, memory)
picture.arrow(memory, learner)
picture.arrow(
    learner.at(0.5, 1), actor.at(0.5, 1), "new weights, a little late", bend=46, side=1
)
picture

# %% [markdown]
# ## IMPALA on one page
#
# Here is the whole agent in one process; {doc}`actors` and {doc}`processes` let it run in many. The
# actor is a copy of the policy. It gets the learner's weights after every fourth collection, so
# its data are up to three collections old: a **lag** of 3. V-trace is written out, with the usual
# bounds of 1. Then all three clipped ratios are the same number, and the correction $x_t$ of
# {eq}`vtrace` is the advantage too.

# %% tags=["program"] total_steps=200000
import copy

import torch
from torch import nn
from torch.distributions import Categorical

from literate_rl.data.agents import Collector, make_envs

torch.set_num_threads(1)  # the networks are too small to be shared out
env_id, seed, total_steps = "CartPole-v1", 1, 5_000
num_envs, num_steps, num_updates, lag = 16, 32, 4, 3
learning_rate, gamma, lambda_, reward_scale = 1e-3, 0.99, 0.95, 0.05
value_weight, entropy_weight = 0.5, 0.01

envs = make_envs(env_id, num_envs)
obs_size = envs.single_observation_space.shape[0]
num_actions = int(envs.single_action_space.n)


def network(outputs, gain):
    """Build two hidden layers; `gain` is the scale of the output layer."""
    layers = nn.Linear(obs_size, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
policy, critic = network(num_actions, gain=0.01), network(1, gain=1.0)
actor = copy.deepcopy(policy)  # what acts: it gets the learner's weights now and then
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()])
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Sample an action for each observation, with the actor's older weights."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, iteration, next_report = [], 0, total_steps // 8
while collector.step < total_steps:
    # The learning rate falls to zero in a straight line.
    rate = learning_rate * (1 - collector.step / total_steps)
    optimizer.param_groups[0]["lr"] = rate

    # 1. The actor collects, and writes down how likely each action was.
    batch = collector.collect(act, num_steps)
    with torch.no_grad():
        old = Categorical(logits=actor(batch.obs)).log_prob(batch.action)

    # 2. The learner takes a few updates on what arrived.
    for _ in range(num_updates):
        new, value = Categorical(logits=policy(batch.obs)), critic(batch.obs)[..., 0]
        log_prob = new.log_prob(batch.action)
        with torch.no_grad():
            future = critic(batch.next_obs)[..., 0].masked_fill(batch.terminated, 0.0)
            # V-trace: clipped ratios, TD errors, and a sum from the last step back.
            ratio = (log_prob - old).exp().clamp(max=1)
            td_error = reward_scale * batch.reward + gamma * future - value
            follow = gamma * lambda_ * ~(batch.terminated | batch.truncated)
            x, rows = torch.zeros(num_envs), []
            for t in reversed(range(num_steps)):
                x = ratio[t] * (td_error[t] + follow[t] * x)
                rows.append(x)
            adv = torch.stack(rows[::-1])
            target = value + adv
        policy_loss = -(adv * log_prob).mean()
        value_loss = (value - target).square().mean()
        bonus = entropy_weight * new.entropy().mean()
        optimizer.zero_grad()
        (policy_loss + value_weight * value_loss - bonus).backward()
        optimizer.step()

    # 3. Now and then the actor gets the new weights.
    iteration += 1
    if iteration % (lag + 1) == 0:
        actor.load_state_dict(policy.state_dict())

    # Write down the episodes that ended, and report now and then.
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]
    if collector.step >= next_report:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:7,}: {sum(recent) / max(len(recent), 1):6.1f}")
        next_report += total_steps // 8

# %% [markdown]
# **Take this program:** `literate-rl copy impala > my_impala.py`. Does it learn? Here are ten seeds,
# 200,000 steps each.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Ten curves of the return over 200,000 steps. They rise unevenly for 100,000 steps, and at the end all are above 450"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.runs.runs import stored_runs

(page,) = stored_runs("program_impala").values()
fig, axis = plt.subplots(figsize=(7, 2.2))
axis.plot(page.steps / 1000, page.curves.T, "C0", lw=0.9)
axis.set(xlabel="thousand steps", ylabel="return while training")
fig.tight_layout()

# %% [markdown]
# **Notice** that all ten seeds end above 450, and that their mean curve needs 128,000 steps to get there.
#
# Rewards are multiplied by a twentieth, so that the values of a good policy are near 5 instead of 100, and a
# network that starts near 0 has less far to go. Of five stored runs of this chapter's class with the scale all
# end at 500. Of five without it two fall again and end below 300.

# %% tags=["claims"]
assert len(page.final) == 10
assert page.final.min() > 450
assert page.steps[(np.nanmean(page.curves, 0) >= 450).argmax()] == 128_000
scaled, unscaled = (
    next(iter(stored_runs(f"impala_{name}").values()))
    for name in ("cartpole", "unscaled")
)
assert (scaled.final > 495).all(), "all end at 500"
assert len(scaled.final) == len(unscaled.final) == 5
assert (np.nanmax(unscaled.curves, 1) > 490).all(), "two fall again"
assert (unscaled.final < 300).sum() == 2, "two end below 300"

# %% [markdown]
# ## What old data do
#
# Data get old for two reasons. The learner may take several updates on
# one collection, and each of them moves the policy away from the one that collected. Or the actor
# may fall behind: with a lag of 5 it gets new weights after every sixth collection, and each collection is
# learned from once. Below are five settings on CartPole, with ten seeds for each kind of run and a thick mean.
# The blue runs have V-trace. The red ones treat all data as their own: every ratio is set to 1.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Five panels of returns over 60,000 steps. One update: both kinds of run climb to between 100 and 500, on the same lines. Four updates: six runs without correction fall to 9 and stay there, one with V-trace, and the mean with V-trace rises to 350. Eight updates: of the uncorrected runs all but one fall to 9 before 20,000 steps and stay there, with V-trace three do, and a fourth falls later. Lag 5: all runs but one without correction climb, and the two means are close. Lag 15: all runs climb, and the mean without correction is higher, 450 against 250 at the end"}}
titles = "1 update", "4 updates", "8 updates", "lag 5", "lag 15"
names = "updates_1", "updates_4", "updates_8", "lag_5", "lag_15"
experiments = {a: f"impala_{b}" for a, b in zip(titles, names, strict=True)}


fig, axes = plt.subplots(
    2, 3, figsize=(7, 4), sharex=True, sharey=True, layout="constrained"
)
for axis, (title, name) in zip(axes.flat, experiments.items(), strict=False):
    variants = stored_runs(name)
    for (kind, runs), color in zip(variants.items(), ("C0", "C3"), strict=True):
        steps, curves = runs.steps / 1000, runs.curves
        axis.plot(steps, curves.T, color=color, alpha=0.3, linewidth=0.7)
        axis.plot(steps, curves.mean(0), color=color, linewidth=2, label=kind)
    axis.set_title(title, fontsize=10)
for axis in axes[[1, 1, 0], [0, 1, 2]]:
    axis.set_xlabel("thousand steps", fontsize=10)
for axis in axes[:, 0]:
    axis.set_ylabel("return\nwhile training", fontsize=10)
axes[0, 2].xaxis.set_tick_params(labelbottom=True)
axes[1, 2].axis("off")
_ = axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")

# %% [markdown]
# **Notice** what age does, and what it does not do.
#
# - With one update on each collection nothing is old, and both kinds of run coincide.
# - With several updates runs *collapse*: the agent pushes to one side only, and ends below a
#   return of 15. With four updates six of ten do so without correction, and one with V-trace;
#   with eight updates it is nine and four. In pairs of the same seed, five collapse only without
#   the correction in each of the two panels, and none only with it. It helps, but it is no guarantee.
# - An actor that falls behind does less harm. Hardly any run collapses, and even with data that
#   are up to 15 collections old the uncorrected runs do not differ visibly from those with fresh
#   data. Here V-trace has a price: with a lag of 15 these runs learn more slowly with it than without.
#
# The learning rate is 2e-3 and does not fall, and $\lambda$ is 1.

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference

stored = {title: stored_runs(name) for title, name in experiments.items()}


def late_returns(title, kind):
    """Return the mean of the last third of each run."""
    curves = stored[title][kind].curves
    return curves[:, -curves.shape[1] // 3 :].mean(1)


def compared(first, second):
    """Return the paired difference of two kinds of run, late in the training."""
    return paired_difference(late_returns(*first), late_returns(*second))


fresh = stored["1 update"]
assert (fresh["V-trace"].curves == fresh["uncorrected"].curves).all(), "one line"
for title, fallen in (("4 updates", (1, 6)), ("8 updates", (4, 9))):
    with_it, without = (
        stored[title][kind].curves[:, -1] < 15 for kind in ("V-trace", "uncorrected")
    )
    assert (with_it.sum(), without.sum()) == fallen, "of ten runs"
    assert (without & ~with_it).sum() == 5, "only without the correction"
    assert not (with_it & ~without).any(), "none only with it"
for title in ("lag 5", "lag 15"):
    runs = stored[title].values()
    assert sum((x.curves[:, -1] < 15).sum() for x in runs) <= 1, "hardly any collapses"
    kept = compared((title, "uncorrected"), ("1 update", "uncorrected"))
    assert kept.low < 0 < kept.high, "no difference between uncorrected and fresh data"
slower = compared(("lag 15", "V-trace"), ("lag 15", "uncorrected"))
assert slower.high < 0, "more slowly than without correction"

# %% [markdown]
# How far apart are the actor's policy and the learner's after so many updates? Here is a run with
# the settings of the last panel. Choose the age of the data: 0 is fresh, and 15 means that the learner has
# taken 15 updates since the actor got its weights.

# %% tags=["hide-input"]
from functools import partial

import torch

from literate_rl.data.agents import make_envs

# We build them below.
from literate_rl.learners.impala import IMPALA, IMPALAConfig, VTraceLearner
from literate_rl.nets.policies import make_policy
from literate_rl.book.pictures import Axis, Mark, dial, plot
from literate_rl.runs.runs import flat_env

torch.set_num_threads(1)  # the networks are too small to be shared out


def make_learner(env, config, device="cpu"):
    """Build environments, the policy that fits them, and the learner."""
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return IMPALA(policy.to(device), envs, config)


class Watched(VTraceLearner):
    """Keeps the ratios of all that it learns from."""

    def learn(self, unroll):
        with torch.no_grad():
            states, action = unroll.obs_plus_1[:-1], unroll.action
            log_prob, _ = self.policy.evaluate_actions(states, action)
        ratios.append((log_prob - unroll.log_prob).exp().cpu())
        return super().learn(unroll)


config = IMPALAConfig(
    seed=1,
    total_steps=60_000,
    on_policy=True,
    num_envs=8,
    update_per_collect=1,
    learning_rate=2e-3,
    lambda_=1.0,
    lag=15,
    num_steps=20,
    entropy_weight=0.01,
    checkpoint_interval=1000,
)
behind, ratios, ages = make_learner("CartPole-v1", config), [], range(16)
behind.learner = Watched(behind.policy, config)
for _ in range(10 * len(ages)):
    behind.iterate()
by_age = torch.stack(ratios).unflatten(0, (-1, len(ages))).transpose(0, 1)
clipped = by_age.clamp(max=1)
# The product of the clipped ratios of all steps from the first one of an unroll on.
left = clipped.cumprod(-2).mean((1, 3))
left = torch.cat([torch.ones(len(ages), 1), left], 1)  # (age, steps ahead)
part = torch.linspace(0.005, 0.995, 60)


def frame(age):
    """Draw the ratios of one age and how far a TD error reaches."""
    ratio = by_age[age].flatten().quantile(part).clamp(1 / 5, 5)
    low, high = torch.tensor([1 / 5, 5]).log().tolist()
    names = {0.25: "1/4", 0.5: "1/2", 1.0: "1", 2.0: "2", 4.0: "4"}
    ticks = {torch.tensor(x).log().item(): name for x, name in names.items()}
    sorted_ratios = plot(
        "All ratios, from small to large",
        "The ratios of the data, sorted, on a logarithmic axis. Fresh data have the ratio "
        "1. The older they are, the further the ends bend away from 1.",
        Axis("share of the data", 0, 1, ticks=(0, 0.5, 1)),
        Axis("ratio", low, high, ticks),
        Mark("line", part, ratio.log(), "second"),
        Mark("line thick", part, ratio.clamp(max=1).log(), "accent"),
        Mark("label", [0.72], [1.0], "second", words="as it is"),
        Mark("label", [0.78], [-0.35], "accent", words="clipped at 1"),
    )
    steps = range(left.shape[1])
    reach = plot(
        "How far a TD error reaches",
        "The mean product of clipped ratios over the number of steps. For fresh data it "
        "stays 1, and the older the data, the faster it falls. Faint: ages 0, 5 and 15.",
        Axis("steps back in time", 0, 21, ticks=(0, 10, 20)),
        Axis("what is left of it", 0, 1, ticks=(0, 0.5, 1)),
        *(Mark("line", steps, left[k].clamp(max=1), "faint") for k in (0, 5, 15)),
        Mark("line thick", steps, left[age].clamp(max=1), "accent"),
    )
    off = (by_age[age] - 1).abs() > 0.2
    return [sorted_ratios, reach], (
        f"{age} updates old: {off.float().mean():.0%} of the ratios are off by more than "
        f"0.2\ntwenty steps back, {left[age, 20]:.2f} of a TD error is left"
    )


dial("The age of the data", frame, {"age": list(ages)}, start=(5,))

# %% [markdown]
# **Notice** that the ratios spread to both sides. The clip cuts the upper half only. So the clipped ratios,
# whose product carries a TD error back in time, are below 1 on average. With data 15 updates old, only a
# part of a TD error is left twenty steps back: with old data V-trace looks less far ahead.

# %% tags=["claims"]
assert (by_age[0] - 1).abs().max() < 1e-3, "fresh data have the ratio 1"
spread = by_age.log().std((1, 2, 3))
assert spread[15] > 2 * spread[1] > 2 * spread[0], "they spread with their age"
assert left[15, 20] < 0.7 < left[1, 20], "much is lost"

# %% [markdown]
# ## Where the price comes from
#
# Is the shorter reach what makes V-trace slow? It need not be, because the ratio enters in two places. It
# weights the *targets*, where the products stand that the dial shows. And it weights each action's
# *gradient* with $\min(1, e^{\ell})$. Each half alone was trained at the lag of 15, with twenty seeds. The
# price is paid at the gradient: over the last third of the training its weight alone costs 78 more than the
# weight in the targets alone (13 to 143). Whether the shorter reach costs anything, twenty seeds cannot say.
#
# Where only *praise* is weighted, actions that went better than expected, and blame is left as it is, nine
# of twenty runs collapse; where nothing is weighted, one; where only blame is, none. So it is blame, where
# praise does not balance it, that drives a policy to one side.

# %% tags=["claims"]
places = stored_runs("impala_places")


def late_gap(first, second):
    """Compare mean returns over the last third of the training."""
    return paired_difference(
        *(
            places[name].curves[:, -places[name].curves.shape[1] // 3 :].mean(1)
            for name in (first, second)
        )
    )


assert all(len(run.area) == 20 for run in places.values()), "twenty seeds"
gap = late_gap("targets only", "uncorrected")
assert gap.low < 0 < gap.high, "seeds cannot say"
assert late_gap("gradient only", "uncorrected").high < 0, "paid at the gradient"
halves = late_gap("targets only", "gradient only")
assert [round(x) for x in (halves.mean, halves.low, halves.high)] == [78, 13, 143]
collapsed = {name: (run.curves[:, -1] < 15).sum() for name, run in places.items()}
assert collapsed["gradient, praise only"] == 9
assert collapsed["uncorrected"] == 1
assert collapsed["gradient, blame only"] == 0

# %% [markdown]
# ## Why uncorrected runs collapse
#
# Look at a single action, as likely as its alternative
# before the first update, with an advantage of $-1$. Uncorrected, its loss is $\log \pi(a)$,
# which has no lower bound. Each update on the same data pushes the action further down, however
# rare it has become. With V-trace the ratio weights the push, and it vanishes together with
# $\pi(a)$:

# %%
ends = {}
for name, corrected in (("V-trace", True), ("uncorrected", False)):
    logit, seen = torch.zeros(()), []
    for update in range(1, 1001):
        chance = logit.sigmoid()
        ratio = (chance / 0.5).clamp(max=1.0) if corrected else 1.0
        logit -= 0.5 * ratio * (1 - chance)
        if update in (1, 10, 100, 1000):
            seen.append(f"{logit.sigmoid().item():.1e}")
    ends[name] = logit.sigmoid()
    print(f"{name:11s} chance after 1, 10, 100 and 1000 updates:", *seen)

# %% tags=["claims"]
assert ends["uncorrected"] < 1e-6, "uncorrected, the action is gone for good"
assert ends["V-trace"] > 5e-4, "with V-trace the push vanishes before that"

# %% [markdown]
# For an advantage of $+1$ the two would agree: a ratio above 1 is clipped, and the push ends by itself where
# the probability gets near 1. So the correction keeps old data from being believed again and again. Unlike
# the clip of {doc}`ppo_error`, it stops no push once the ratio has left a range.
#
# ## Why anyone uses it
#
# - **Replay.** Where data are used again, V-trace saves runs: those are the panels with four and
#   eight updates.
# - **Large tasks.** On five tasks of DeepMind Lab, with many actors and a deep network,
#   {cite:t}`espeholt2018` report the opposite of our runs with a lag (their section 5.2 and table 2): no
#   correction was far behind on most of them, even without replay. We did not run these tasks.
# - **A lag that nobody set.** With hundreds of machines it is long, and differs from unroll to
#   unroll. A correction that is 1 for fresh data and small for old ones needs no setting for that.
#
# So correct where data are used more than once. For a lag alone our runs say no, and the paper's say yes:
# try both. IMPACT {cite:p}`luo2020` and RLlib's APPO combine V-trace with PPO's clip.
#
# ## What an actor hands over
#
# The actor hands over $T$ steps in a row of each of its environments, one **unroll** for each,
# whatever episodes they belong to. It writes down what it saw, did and was paid, and how likely
# it was to do that, as $\log \pi_{\text{old}}(a_t)$. It has to: once the weights have changed,
# nobody can compute that number any more. If it masks actions, the learner has to mask them too: with two of
# four equally likely actions masked by the actor alone, the ratio of a policy that has not changed is one half.
# Side by side, the unrolls of $B$ environments are a table with time running downward:

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "The shapes of an unroll",
    "Three tables with time running downward and one column for each of three "
    "environments. Observations have T + 1 rows: one for each of four steps, and a last "
    "one for where the fourth step led. The second table has T rows: actions, "
    "log-probabilities, rewards and flags. The third, of values, has T + 1 rows again.",
)
T, B = 4, 3
for x, title, extra, tone in (
    (66, "obs_plus_1", 1, ""),
    (206, "action, log_prob,\nreward, flags", 0, "second"),
    (346, "value", 1, ""),
):
    for line, words in enumerate(title.split("\n")):
        picture.text(x, 4 + 16 * line, words, bold=True)
    for t in range(T + extra):
        tones = dict.fromkeys(range(B), "accent" if t == T else tone)
        row = picture.cells(x - 30, 46 + 30 * t, [""] * B, tones, width=28, gap=2)
    picture.text(x, 204, "(T + 1, B)" if extra else "(T, B)", "quiet")
picture.text(66, 226, "a row is one step, a column one environment", "quiet", "start")
picture

# %% tags=["claims"]
logit = torch.zeros(4)
masked = logit.masked_fill(torch.tensor([False, False, True, True]), -torch.inf)
assert (logit.softmax(-1) / masked.softmax(-1))[0] == 0.5, "one half"

# %% [markdown]
# **Notice** the row that only two of the tables have. The last step led somewhere, and the value of
# that state is needed for the step's target. An observation, an action or the logits of $N$ choices
# may have more dimensions, $(T, B, N)$.


# %% tags=["export"]
class Unroll(NamedTuple):
    """What the learner reads: T steps in a row of each of B environments.

    Attributes:
        obs_plus_1: What the actor saw, and in one more row where the last step led.
        next_obs: Where each step led: true successors, never a reset.
        action: What the actor did.
        log_prob: How likely that was under the actor's policy, as a logarithm.
        reward: What it was paid.
        terminated: Whether the task ended with this step.
        truncated: Whether the episode was cut off after this step.
        weight: One factor for each step; 0 for a step that does not count.
        mask: Which actions were legal, or None where nobody says so.
        state: What an actor that remembers knew before each step, or None.
    """

    obs_plus_1: Any
    next_obs: Any
    action: Tensor
    log_prob: Float[Tensor, "T B"]
    reward: Float[Tensor, "T B"]
    terminated: Bool[Tensor, "T B"]
    truncated: Bool[Tensor, "T B"]
    weight: Float[Tensor, "T B"]
    mask: Bool[Tensor, "T B N"] | None = None
    state: Float[Tensor, "T B S"] | None = None

    def as_read(self, obs: Any) -> Any:
        """Return observations of its steps as a policy reads them."""
        return as_read(
            obs, self.state, self.terminated, self.truncated, self.weight > 0
        )


@torch.no_grad()
@checked
def to_unroll(batch: Rollout, actor: PolicyLike) -> Unroll:
    """Return the unroll that the learner reads of an actor's rollout."""
    # The actor's weights have not changed since the first step. So one pass over the
    # whole rollout says how likely each of its actions was. (`real` is False for rows
    # that some environments add after an end; they weigh nothing.)
    with eval_mode(actor):
        log_prob, _ = actor.evaluate_actions(batch.seen, batch.action, mask=batch.mask)
    return Unroll(
        obs_plus_1=torch.cat([batch.obs, batch.next_obs[-1:]]),
        next_obs=batch.next_obs,
        action=batch.action,
        log_prob=log_prob,
        reward=batch.reward,
        terminated=batch.terminated,
        truncated=batch.truncated,
        weight=batch.real.to(batch.reward),
        mask=batch.mask,
        state=batch.state,
    )


# %% [markdown]
# ## The learning step
#
# A log-probability, an entropy and a value are all that the learner asks a policy for. It adds up the
# three losses of {eq}`vtrace-losses`,
#
# $$
# \mathcal L = \mathcal L_\pi + c_V \mathcal L_V - c_H \mathcal H .
# $$ (impala-loss)
#
# A value's target needs the value of the step's successor. It stands in the next row, and for the
# last row in one that was appended, so that `obs_plus_1` has $T + 1$ rows. After a truncation the
# next row belongs to another episode, so the true successor goes through the network as well.


# %% tags=["export"]
class VTraceLearner(Kept):
    """Learns from the unrolls of any actor: a policy and its optimiser.

    Args:
        policy: The policy to train, with the methods of ``Policy``, on any device.
        config: The settings.

    Attributes:
        priority: After an update with ``config.priority``, how far the values of each
            environment were from their targets on average.
    """

    kept = ("optimizer", "norms")

    def __init__(self, policy: ActorCriticLike, config: IMPALAConfig) -> None:
        self.policy, self.config = policy, config
        self.normalizer = normalizer_of(policy, config.normalize_obs)
        self.parameters = list(policy.parameters())
        optimizer: Any = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
        self.optimizer: torch.optim.Optimizer = optimizer[config.optim](
            self.parameters, config.learning_rate
        )
        # The losses, with the discount, the decay and the three bounds of the settings.
        self.vtrace_error = partial(
            vtrace_error_from_log_prob,
            gamma=config.gamma,
            lambda_=config.lambda_,
            rho_clip_ratio=config.rho_clip_ratio,
            c_clip_ratio=config.c_clip_ratio,
            rho_pg_clip_ratio=config.rho_pg_clip_ratio,
        )
        # How a gradient may be clipped says {doc}`/chapters/ground/networks`.
        self.clip_gradient = GradientClip(self.parameters, config)
        self.priority: list[float] = []

    @checked
    def learn(self, unroll: Unroll) -> dict[str, float]:
        """Take one step of the optimiser on an unroll; return its losses."""
        config, policy = self.config, self.policy
        # How likely are the actor's actions now, how random is the policy, and what are
        # the states worth?
        log_prob, entropy = policy.evaluate_actions(
            unroll.as_read(unroll.obs_plus_1[:-1]), unroll.action, mask=unroll.mask
        )
        value = policy.value(unroll.as_read(unroll.obs_plus_1))

        # Targets, advantages and the three losses of {doc}`/chapters/off_policy`.
        loss = self.vtrace_error(
            log_prob,
            unroll.log_prob,
            entropy,
            value,
            unroll.reward * config.reward_scale,
            unroll.weight,
            unroll.terminated,
            unroll.truncated,
            self.next_value(value, unroll),
        )
        # A buffer with priorities wants to know how far off the values are.
        if config.priority:
            self.priority = distances(loss.value_loss, value, unroll.weight)

        # The total {eq}`impala-loss`.
        total = loss.policy_loss + config.value_weight * loss.value_loss
        total = total - config.entropy_weight * loss.entropy_loss
        # One step downhill, with gradient clipping.
        self.optimizer.zero_grad()
        total.backward()
        norm = self.clip_gradient()
        self.optimizer.step()
        return {
            "cur_lr": self.optimizer.param_groups[0]["lr"],
            "total_loss": total.item(),
            **{name: part.item() for name, part in loss._asdict().items()},
            "grad_norm": norm,
        }

    @torch.no_grad()
    def next_value(self, value: Tensor, unroll: Unroll) -> Tensor:
        """Return the values of true successors, given those of the rows."""
        # The next row holds a step's successor. After a cut it belongs to another
        # episode. There, and only there, the true successor needs a value of its own.
        next_value, cut = value[1:].clone(), unroll.truncated
        if cut.any():
            obs, led = unroll.as_read(unroll.obs_plus_1[:-1]), unroll.next_obs
            with eval_mode(self.policy):
                if unroll.state is None:
                    next_value[cut] = self.policy.value(led[cut])
                else:
                    led = behind(self.policy, obs, led)
                    next_value[cut] = self.policy.value(led)[cut]
        return next_value

    def anneal(self, step: int) -> None:
        """Set the learning rate of a step of the run, if it falls."""
        if self.config.anneal:
            self.optimizer.param_groups[0]["lr"] = self.config.rate(step)

    @property
    def norms(self) -> tuple[float, float]:
        """What the clip knows of the gradients so far."""
        return self.clip_gradient.norms

    @norms.setter
    def norms(self, norms: tuple[float, float]) -> None:
        self.clip_gradient.norms = norms

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        groups = self.optimizer.param_groups, state["optimizer"]["param_groups"]
        same = groups[0][0].keys() == groups[1][0].keys()
        check_that(same, f"state must come from an optimiser {self.config.optim}")
        super().load_state_dict(state)


# %% [markdown]
# ## The loop
#
# `IMPALA` is a `Runner` ({doc}`data/agents`). One iteration collects an unroll from each environment, stores
# each of them as a **sample**, and takes a few updates on batches of samples. The store
# ({doc}`data/memory`) forgets the oldest samples and lets go of those that have been drawn
# `max_use` times. With `priority` it prefers samples whose values are far from their targets.
#
# The setting `lag` imitates actors that run beside the learner, in a way that can be repeated exactly: the
# actor's policy is a copy, which gets the learner's weights after every `lag + 1` collections.


# %% tags=["export"]
class IMPALA(Runner):
    """The loop: collect with a policy that may be old, store, learn.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
    """

    policy: ActorCriticLike
    kept = (*Runner.kept, "learner", "memory", "actor")

    def __init__(
        self,
        policy: ActorCriticLike,
        envs: Envs,
        config: IMPALAConfig,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        size, space = config.replay_buffer_size, envs.single_observation_space
        steps = size * config.num_steps
        check_fits("replay_buffer_size", size, steps, config.total_steps, space)
        settings = config.num_steps, config.seed, config.checkpoint_interval
        super().__init__(policy, envs, *settings)
        self.config, self.learner = config, VTraceLearner(policy, config)
        # An actor that never falls behind is the policy itself.
        if config.lag:
            self.actor = copy.deepcopy(policy)
            self.act = step_of(self.actor)
        preference = 0.6 if config.priority else 0.0
        self.memory = UnrollBuffer(size, config.max_use, preference)

    def iterate(self) -> dict[str, float]:
        """Collect a sample from each environment, learn, and return metrics."""
        config = self.config
        self.learner.anneal(self.step)
        batch = self.collect()
        # A few updates, each on samples from the memory, until all of them have been
        # used as often as they may.
        for _ in range(config.update_per_collect):
            if not self.memory:
                break
            entries = self.memory.sample(config.batch_size, self.generator)
            losses = self.learner.learn(self.batch(entries))
            if config.priority:
                self.memory.update(entries, self.learner.priority)
        take_in(self.learner.normalizer, batch.obs, batch.real)

        # Now and then an actor that falls behind gets new weights.
        if config.lag and self.iteration % (config.lag + 1) == 0:
            self.actor.load_state_dict(self.policy.state_dict())
        named = {f"losses/{name}": number for name, number in losses.items()}
        return {"charts/episodic_return": mean_return(batch.episode_return), **named}

    def noise(self) -> Tensor:
        """Draw the noise of an unroll, step by step."""
        # One draw for each step gives other numbers than one draw for all.
        sizes = 1, self.config.num_envs, self.generator
        return torch.cat([self.actor.noise(*sizes) for _ in range(self.num_steps)])

    def collect(self) -> Rollout:
        """Act for T steps and store the samples; return what happened."""
        config, batch = self.config, super().collect()
        unroll = to_unroll(batch, self.actor)
        # What is left of the last collection is no longer on-policy.
        if config.on_policy:
            self.memory.entries.clear()
        # Copies: a view would keep the whole unroll in memory for one sample of it.
        columns = [x if x is None else x.cpu() for x in unroll]
        self.memory.push(
            [
                tuple(x if x is None else x[:, b].clone() for x in columns)
                for b in range(config.num_envs)
            ]
        )
        return batch

    def batch(self, entries: list[dict[str, Any]]) -> Unroll:
        """Put stored samples side by side."""
        # Samples of an older version lack the fields that came last.
        columns = zip_longest(*(entry["sample"] for entry in entries))
        fields: Any = [x[0] if x[0] is None else torch.stack(x, 1) for x in columns]
        moved: Any = [x if x is None else x.to(self.device) for x in fields]
        unroll = Unroll(*moved)
        if self.config.priority_IS_weight:
            unroll.weight.mul_(unroll.weight.new_tensor([e["IS"] for e in entries]))
        return unroll


# %% [markdown]
# The defaults are DI-engine's, and most of the names.


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class IMPALAConfig(BufferConfig, ClipConfig, RecurrentConfig):
    """Settings of IMPALA, with DI-engine's defaults.

    Those of the buffer and of the clip of the gradient are inherited.

    Attributes:
        on_policy: Whether the buffer is emptied before each collection.
        num_steps: Steps of one sample.
        update_per_collect: Steps of the optimiser after each collection.
        batch_size: Samples of one update.
        value_weight: Weight of the value loss.
        entropy_weight: Weight of the entropy bonus.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns.
        rho_clip_ratio: Bound of the ratio that weights a TD error, or none.
        c_clip_ratio: Bound of the ratio that weights what comes later, or none.
        rho_pg_clip_ratio: Bound of the ratio that weights an advantage, or none.
        optim: The optimiser.
        num_envs: Environments; each gives one sample of a collection.
        reward_scale: Factor of the rewards that are learned from.
        lag: Collections by which the acting policy falls behind the learner before it
            gets new weights.
    """

    on_policy: bool = False
    num_steps: Count = 32
    update_per_collect: Count = 4
    batch_size: Count = 16
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 1e-4
    gamma: Fraction = 0.99
    lambda_: Fraction = 0.95
    rho_clip_ratio: Positive | None = 1.0
    c_clip_ratio: Positive | None = 1.0
    rho_pg_clip_ratio: Positive | None = 1.0
    optim: Literal["adam", "rmsprop"] = "adam"
    num_envs: Count = 16
    reward_scale: Scale = 1.0
    lag: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        BufferConfig.__post_init__(self)
        check_clips(self.rho_clip_ratio, self.c_clip_ratio)

    @property
    def rows_per_update(self) -> int:
        """Rows of one update, with actors those of one unroll of each environment."""
        samples = self.batch_size if self.actors is None else self.num_envs
        return samples * self.num_steps


# %% tags=["export"]
# Settings with which the agent has learned, by environment. What an entry leaves out is
# the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 200_000,
        "learning_rate": 1e-3,
        "anneal": True,
        "reward_scale": 0.05,
        "entropy_weight": 0.01,
        "replay_buffer_size": 16,
    },
}
# The same CartPole, pushed as hard as the agent likes.
SETTINGS["literate_rl/ForceCartPole-v0"] = {
    **SETTINGS["CartPole-v1"],
    "total_steps": 300_000,
}


impala_settings = settings_of(IMPALAConfig, SETTINGS)

# %% [markdown]
# Here is the class for thirty thousand steps of CartPole. The buffer is as small as one collection, so each
# sample is used four times.

# %%
from dataclasses import replace

from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import fit

# No checkpoint falls into a run as short as this one, so no episode is broken off.
short = {"total_steps": 30_000, "checkpoint_interval": 1000}
config = replace(impala_settings("CartPole-v1"), **short)
cartpole = make_learner("CartPole-v1", config)  # from the folded cell of the dial
history = fit(cartpole, progress=False)
returns = evaluate(cartpole.policy, "CartPole-v1", episodes=10, seed=1)
print(f"10 greedy episodes: {returns.mean():.0f}")

# %% tags=["claims"]
assert returns.mean() > 100, "it learns"

# %% [markdown]
# ## Traps
#
# ### Trap: the learner's own word
#
# It is tempting to store observations and actions only, and to compute $\log \pi_{\text{old}}$
# when it is needed. But then the number comes from the learner's weights, not from the actor's.
# Every ratio is 1, no test fails, and nothing is corrected: those are the red runs above. Here
# are the ratios of the agent's last samples, with the log-probabilities that were stored and with
# recomputed ones.

# %%
stored_batch = cartpole.batch(list(cartpole.memory.entries))
with torch.no_grad():
    today, _ = cartpole.policy.evaluate_actions(
        stored_batch.obs_plus_1[:-1], stored_batch.action
    )
for name, log_prob_old in (("stored", stored_batch.log_prob), ("recomputed", today)):
    ratio = (today - log_prob_old).exp()
    print(f"{name:10s} ratios from {ratio.min():.3f} to {ratio.max():.3f}")

# %% [markdown]
# If all ratios of a run are 1 although it takes several updates on each collection, look here
# first.

# %% tags=["claims"]
assert (ratio == 1).all(), "every ratio is 1"
assert (today - stored_batch.log_prob).abs().max() > 1e-4, "and should not be"

# %% [markdown]
# ## On the best device
#
# The networks are where the policy is. Stored samples stay on the CPU.

# %%
from literate_rl.data.agents import best_device

small = replace(config, total_steps=1024)
device = best_device()
last = fit(make_learner("CartPole-v1", small, device), progress=False)[-1]
print(f"trained on {device.type} for {last['step']} steps")

# %% tags=["claims"]
assert np.isfinite([x for name, x in last.items() if "losses" in name]).all()

# %% [markdown]
# ## When to use it
#
# IMPALA is for experience that is made elsewhere: by many processes or machines, by a simulator that
# is slow, or by yesterday's policy. It hides the time that acting takes and pays with old data. Where
# one process collects fast enough, PPO needs fewer steps: its mean curve on CartPole gets to 450 after
# 34,000 steps, that of the program above after 128,000.
#
# - **Use it for**: many actors in processes or on machines of their own, and data that are used again
# - **Rather than**: {doc}`ppo` if acting takes most of the time, {doc}`a3c` if experience is smaller
#   than a gradient
# - **Costs**: about 128,000 steps and 5 CPU seconds to a mean return of 450 on CartPole
# - **First settings**: `learning_rate=1e-3`, `reward_scale=0.05` (CartPole's: with yours values should
#   stay near 5), `update_per_collect=4`
# - **Decided by**: [where the price comes from](#where-the-price-comes-from), and the clock of
#   {doc}`actors`

# %% tags=["claims"]
assert 4.5 < np.median(page.cpu_seconds) * 128 / 200 < 5.5, "5 CPU seconds"
ppo = stored_runs("cartpole")["PPO"]
assert ppo.steps[(np.nanmean(ppo.curves, 0) >= 450).argmax()] == 34_000

# %% [markdown]
# ## Summary
#
# - Actors collect with the weights that they have, and the learner learns from what arrives. So
#   the data are always a little old.
# - Several updates on the same data make uncorrected policies collapse. V-trace helps, and is no
#   insurance. With a long lag and no reuse it costs on CartPole, more at the gradient than at the targets.
# - The actor writes down how likely its actions were. Nobody can compute that later.
# - The learning step needs log-probabilities, an entropy and values: one step for every kind of
#   action.
# - The successor of a truncated step is in no row. It needs a value of its own.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "Between a collection and an update only the values were trained, the policy was not. "
    "What are the ratios of V-trace?",
    ["all 1", "below 1 where a value has fallen", "different from 1 everywhere"],
    right="all 1",
    because="A ratio compares two policies, and there is one. Targets and advantages are "
    "computed from today's values anyway, so values have nothing to correct.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to return the values of all successors of an unroll, as
# `VTraceLearner.next_value` does. It runs, and for many unrolls it is right. Fix it. `value` has
# $T + 1$ rows, and `policy.value(obs)` returns the values of observations.


# %%
def answer(policy, value, unroll):
    return value[1:].detach()


# %% tags=["hide-input"]
from gymnasium.wrappers import TimeLimit

from literate_rl.book.exercises import grade


def limited(limit):
    """Return the trained policy, values and unroll of CartPole with a time limit."""
    env = partial(flat_env, lambda: TimeLimit(flat_env("CartPole-v1"), limit))
    small = IMPALAConfig(num_envs=3, num_steps=12, batch_size=3)
    learner = make_learner(env, small)
    learner.policy.load_state_dict(cartpole.policy.state_dict())
    learner.collect()
    unroll = learner.batch(list(learner.memory.entries))
    return learner.policy, learner.policy.value(unroll.obs_plus_1).detach(), unroll


def successors(policy, value, unroll):
    return VTraceLearner(policy, config).next_value(value, unroll)


unrolls = {
    "an unroll without a cut": limited(500),
    "time limits of five steps": limited(5),
}
grade(answer, successors, unrolls)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(policy, value, unroll):
    result = value[1:].detach().clone()
    # After a truncation the next row is another episode.
    cut = unroll.truncated
    if cut.any():
        result[cut] = policy.value(unroll.next_obs[cut]).detach()
    return result


grade(answer, successors, unrolls)

# %% [markdown]
# ### Exercise 3: take the correction away
#
# What happens without the correction, if each collection is learned from eight times? Guess: does
# the agent learn more slowly, or does it fall? Then take the correction away yourself. `answer` gets
# the learner's policy and an unroll, and returns the unroll as it would be if the policy had
# collected it just now. The grader looks at what becomes of the ratios.


# %%
def answer(policy, unroll):
    return ...


# %% tags=["hide-input"]
def ratios_now(policy, unroll):
    """Return the learner's ratios on what the answer makes of an unroll."""
    believed = answer(policy, unroll)
    if believed is ...:
        return ...
    with torch.no_grad():
        states, action = unroll.obs_plus_1[:-1], unroll.action
        log_prob, _ = policy.evaluate_actions(states, action)
    return (log_prob - believed.log_prob).exp(), believed.reward


case = {"a policy and an old unroll": (cartpole.policy, stored_batch)}
grade(ratios_now, lambda _, old: (torch.ones_like(old.reward), old.reward), case)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(policy, unroll):
    # With today's log-probabilities every ratio is 1. It falls: of ten stored runs nine end below
    # a return of 15, and four with the correction.
    with torch.no_grad():
        states, action = unroll.obs_plus_1[:-1], unroll.action
        log_prob, _ = policy.evaluate_actions(states, action)
    return unroll._replace(log_prob=log_prob)


grade(ratios_now, lambda _, old: (torch.ones_like(old.reward), old.reward), case)

# %% tags=["claims"]
fallen = [run.curves[:, -1] < 15 for run in stored["8 updates"].values()]
assert [(len(x), x.sum()) for x in fallen] == [(10, 4), (10, 9)], "four and nine of ten"

# %% [markdown]
# ## References
#
# IMPALA and V-trace are from {cite:t}`espeholt2018`.

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A3C
#
# **What if workers send gradients instead of experience?** After this chapter you can let several
# processes compute gradients for one learner, and say how old a gradient may be before it does
# harm. Reading takes about 25 minutes, without exercises. You need {doc}`a2c`, whose gradient is computed
# here, and the slots, tokens and lag of {doc}`actors`.

# %% tags=["export", "hide-input"]
"""A3C: workers that send gradients, and a learner that takes the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from literate_rl.actors.actors import (
    Actor,
    MakeAct,
    RemoteLearner,
    TransportConfig,
    Weights,
    fill,
    layout_of,
    weights_of,
)
from literate_rl.ground.protocols import ActorCriticLike, Envs, PolicyLike, settings_of
from literate_rl.ground.rows import ANY, Row, actor_critic, register
from literate_rl.ground.signatures import Count, checked
from literate_rl.learners.a2c import (
    SETTINGS,
    GradientConfig,
    GradientLearner,
    a2c_gradient,
    a2c_loss,
    named,
    returned,
)
from literate_rl.nets.parts import normalizer_of, take_in

__all__ = [
    "A3C",
    "A3CConfig",
    "GradientWorker",
    "a3c_settings",
    "gradient_layout",
]

# %% [markdown]
# ## A gradient that comes late
#
# In {doc}`actors` each actor sent its experience, and the learner computed the gradient. It can
# be the other way round: the actor computes the gradient too, and sends only that. It is then
# called a **worker**. By the time its gradient arrives, the learner has taken other steps. Its
# weights have moved, but the gradient is still that of the old weights. How bad is that?
#
# Take a very simple loss, the parabola $x^2 / 2$ with its lowest point at 0. Its gradient is $x$,
# the distance from there. Gradient descent moves by the gradient times the **step size**, which
# for an agent is called the learning rate. Here each step uses the gradient at an earlier point,
# and the **lag** says how many steps earlier. Drag the two sliders.

# %% tags=["hide-input"]
import math

from literate_rl.book.pictures import Axis, Mark, dial, plot

lags = [0, 1, 2, 3, 5, 7, 10]
step_sizes = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5, 1.9, 2.1]


def limit(lag):
    return 2 * math.sin(math.pi / (2 * (2 * lag + 1)))


def descent(lag, step_size, num_steps=80):
    x = [1.0]
    for k in range(num_steps):
        x.append(x[k] - step_size * x[max(k - lag, 0)])
    return x


def frame(lag, step_size):
    x = [max(-3.0, min(3.0, value)) for value in descent(lag, step_size)]
    way = plot(
        "The way down",
        "The distance from the lowest point over 80 steps",
        Axis("step", 0, 84, ticks=(0, 20, 40, 60, 80)),
        Axis("distance from the lowest point", -3.1, 3.1, ticks=(-3, 0, 3)),
        Mark("line dashed", [0, 84], [0, 0], "quiet"),
        Mark("line", list(range(81)), x, "accent"),
        width=380,
    )
    border = plot(
        "What is stable",
        "The largest stable step size falls as the lag grows; a dot marks the setting",
        Axis("lag", -0.5, 10.5, ticks=(0, 5, 10)),
        Axis("step size", 0, 2.2, ticks=(0, 1, 2)),
        Mark("line", list(range(11)), [limit(d) for d in range(11)], "quiet"),
        Mark("dots", [lag], [step_size], "accent"),
        width=380,
    )
    word = "settles" if step_size < limit(lag) else "swings further and further"
    return [way, border], f"limit at this lag: {limit(lag):.2f}. It {word}."


dial("Step size and lag", frame, {"lag": lags, "step size": step_sizes}, start=(3, 0.3))

# %% [markdown]
# **Notice** that late gradients do no lasting harm as long as the steps are small: at a step size
# of 0.05 the descent settles at every lag.
#
# The largest stable step size falls as the lag $d$ grows. It is 2 at lag 0 and 1 at lag 1, and
# then it falls like $\pi / (2d + 1)$. What counts is roughly the *product*: with twice the lag,
# steps may be about half as large.

# %% tags=["claims"]
for lag in lags:
    assert abs(descent(lag, 0.05, 2000)[-1]) < 1e-3, "0.05 settles at every lag"
    for factor, settles in ((0.97, True), (1.03, False)):
        end = max(map(abs, descent(lag, factor * limit(lag), 4000)[-200:]))
        assert (end < 1e-2) == settles, "the border is where it is drawn"
assert abs(limit(0) - 2) < 1e-12
assert abs(limit(1) - 1) < 1e-12
assert abs(limit(10) * 21 / math.pi - 1) < 0.01

# %% [markdown]
# Does lag harm a real agent too? Here one worker has 1, 32 or 128 slots, so each of its gradients
# is 0, 31 or 127 updates late. All else is the same: CartPole, 50,000 steps, 1,250 updates. Each
# line is one seed.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three panels of the return over 50,000 steps, ten lines each. Without lag all climb to nearly 500. With a lag of 31 they stay below 130, with a lag of 127 below 60"}}
import matplotlib.pyplot as plt

from literate_rl.runs.runs import stored_runs

late = stored_runs("a3c_lag")
fig, axes = plt.subplots(1, 3, figsize=(7, 2.4), sharey=True)
for axis, (name, run) in zip(axes, late.items(), strict=True):
    axis.plot(run.steps / 1000, run.curves.T, "C0", lw=0.9)
    axis.set_title(name, fontsize=10)
    axis.set_xlabel("thousand steps")
axes[0].set_ylabel("return while training")
fig.tight_layout()

# %% [markdown]
# **Notice** that the learner without lag ends above 490 in each run. With gradients 31 updates
# late, and the same settings, it learns very little, and with 127 still less. At 127 age is not all: with
# RMSProp's long first steps made shorter each of five runs does better, though none learns.
#
# Such lags are for show. Here are lags from none to 15, each with the learning rate of {doc}`a2c` and with half
# of it, five seeds each. A dot is the mean return of a run over the whole training, so it is high where a run
# learns soon and does not fall.

# %% tags=["claims"]
fresh, old, oldest = late.values()
assert fresh.final.min() > 490, "above 490 in each run"
assert old.curves.max() < 130, "it learns very little"
assert oldest.curves.max() < 60, "still less"


def last_third(run):
    """Return each run's mean return over the last third of its training."""
    return run.curves[:, -run.curves.shape[1] // 3 :].mean(1)


shorter = stored_runs("a3c_corrected")["lag 127"]
assert len(shorter.area) == 5
assert last_third(shorter).min() > last_third(oldest)[:5].max(), "each does better"
assert last_third(shorter).max() < 130, "none learns"

# %% tags=["hide-input"] mystnb={"image": {"alt": "The mean return over the training against the lag, 0, 1, 3, 7 and 15, for two learning rates, each dot a seed. It falls with the lag, for the larger rate from about 365 to about 90, for the smaller from about 180 to about 100. Up to a lag of 7 the mean of the smaller rate is lower, at 15 about equal"}}
small = stored_runs("a3c_rates")
lags_tried = 0, 1, 3, 7, 15
fig, axis = plt.subplots(figsize=(7, 2.4))
grid = {}
for share, words, colour in ((1, "rate 0.001", "C1"), (0.5, "rate 0.0005", "C0")):
    for place, lag in enumerate(lags_tried):
        run = small[f"lag {lag}, rate {share}"]
        grid[lag, share] = run.area
        spots = np.full(len(run.area), place + 0.1 * (share == 1) - 0.05)
        axis.plot(
            spots, run.area, "o", color=colour, ms=4, label=words if not place else None
        )
axis.set(xticks=range(5), xlabel="lag", ylabel="mean return")
axis.set_xticklabels(lags_tried)
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** that the mean falls with each lag. From a lag of 3 on five seeds show it: 144 less (15 to 274).
# Smaller steps bear a lag better, as on the parabola: a lag of 15 takes 271 of the mean with the whole rate and
# 75 with half of it. But they are no remedy. Half the rate takes 188 of the mean without any lag, and at no lag
# up to 15 can we show that it is ahead. The parabola says when descent is *stable*. An agent has to
# arrive as well, in a given number of steps; with more of them it may pay, which was not tried.

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference


def told(more, less):
    """Return a paired difference and its interval as the text has them."""
    gap = paired_difference(more, less)
    return [round(x) for x in (gap.mean, gap.low, gap.high)]


means = {key: values.mean() for key, values in grid.items()}
assert [means[lag, 1] for lag in lags_tried] == sorted(
    (means[lag, 1] for lag in lags_tried), reverse=True
), "falls with each lag"
whole, half = ({k: grid[k, share] for k in lags_tried} for share in (1, 0.5))
assert told(whole[0], whole[1])[1] < 0, "not at a lag of 1"
assert told(whole[0], whole[3]) == [144, 15, 274]
assert all(told(whole[0], whole[lag])[1] > 0 for lag in (3, 7, 15)), "from 3 on"
price = [x[0] - x[15] for x in (half, whole)]
assert [round(x.mean()) for x in price] == [75, 271], "what a lag of 15 takes"
assert told(price[1], price[0])[1] > 0, "smaller steps bear a lag better"
assert told(whole[0], half[0])[0] == 188
assert told(whole[0], half[0])[1] > 0
for lag in lags_tried:
    assert told(whole[lag], half[lag])[2] > 0, "not shown to be ahead"

# %% [markdown]
# ## Two ways to share the work
#
# If workers send gradients, they do most of the computing. The learner is left with the
# optimiser's step.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "Experience or gradients",
    "Two rows. Above, as in IMPALA: the worker acts and sends an unroll; the learner "
    "computes the gradient and takes the step. Below, as in A3C: the worker acts and "
    "computes the gradient, which it sends; the learner only takes the step. In both "
    "rows the weights go back to the worker.",
)
for y, name, left, right, sent in (
    (40, "IMPALA", ["act"], ["gradient", "step"], "unroll"),
    (150, "A3C", ["act", "gradient"], ["step"], "gradient"),
):
    picture.text(0, y - 34, name, anchor="start", bold=True)
    worker = picture.box(77, y, " · ".join(left), width=150, height=44)
    learner = picture.box(362, y, " · ".join(right), width=150, height=44)
    picture.arrow((152, y - 8), (287, y - 8), sent, "accent")
    picture.arrow((287, y + 12), (152, y + 12), "", "quiet")
    picture.text(219, y + 26, "weights", "quiet")
picture.text(77, 200, "workers", "quiet")
picture.text(362, 200, "learner", "quiet")
picture

# %% [markdown]
# **A3C**, the asynchronous advantage actor-critic {cite:p}`mnih2016`, works the second way. In the paper
# its workers are threads that change shared weights themselves, without a lock (**Hogwild**,
# {cite:p}`recht2011`); here a learner does that, one gradient at a time. Asynchrony is a way to use many
# processors here, not a way to learn better.
#
# V-trace ({doc}`off_policy`) can correct old *experience*, because it knows how likely each
# action was. In an old *gradient* there are no single actions left: it is one sum over all steps
# of its rollout, so no ratio can weigh them.
#
# ## How late is too late
#
# Let $\theta_k$ be the weights after $k$ updates, $g$ the gradient of the loss and $\alpha$ the
# learning rate. A step with a late gradient is
#
# $$
# \theta_{k+1} = \theta_k - \alpha \, g(\theta_{k-d}) ,
# $$ (def-stale-step)
#
# where $d$ is the lag {eq}`policy-lag`. On a
# parabola with curvature $u$ the gradient is $g(\theta) = u \, \theta$. There the steps settle at
# the lowest point if, and only if,
#
# $$
# \alpha \, u < 2 \sin \frac{\pi}{2 (2d + 1)} .
# $$ (def-stale-limit)
#
# For $u = 1$ this is the curve in the second picture above {cite:p}`levin1976`.

# %% [markdown]
# ## Line by line
#
# Nothing about the slots, tokens and transports of {doc}`actors` depends on what is sent. Its
# `RemoteLearner` hands out slots, waits for a result, lets `learn` use it and hands the slot out
# again. For A3C the result is a gradient. The settings are those of A2C and of any learner with workers.


# %% tags=["export", "hide-input"]
@checked
@dataclass(frozen=True)
class A3CConfig(TransportConfig, GradientConfig):
    """Settings of A3C: nearly those of A2C, and those of workers and their transport.

    Each worker has ``num_envs`` environments. The default is two workers with one slot
    each, so each has one gradient under way.
    """

    actors: Count = 2
    slots: Count = 1
    rows_per_update = 0  # the workers compute the gradients, on the CPU


a3c_settings = settings_of(A3CConfig, SETTINGS)


# %% [markdown]
# ### The worker
#
# The result in a slot is a gradient, which is as large as the weights, and the numbers that the
# learner reports. A worker contains an `Actor`, so it collects exactly as IMPALA's actors do. Its
# copy of the policy stays in evaluation mode, because only the gradient is sent: what batch
# normalisation collects would get lost.


# %% tags=["export"]
def gradient_layout(policy: PolicyLike, config: GradientConfig) -> np.dtype[np.void]:
    """Describe the memory of a slot whose result is a gradient.

    Its ``result`` holds the ``gradient``, one array for each named parameter, the
    returns of the episodes that ended (NaN where none did) and the losses. Where
    observations are normalised, the learner needs them too.
    """
    weights = weights_of(policy)
    parts = [(n, weights[n].dtype, x.shape) for n, x in policy.named_parameters()]
    steps = config.num_steps, config.num_envs
    result: list[Any] = [
        ("gradient", parts),
        ("episode_return", np.float32, steps),
        ("losses", [(name, np.float64) for name in a2c_loss._fields]),
    ]
    if normalizer := normalizer_of(policy, config.normalize_obs):
        result += [("obs", np.float32, (*steps, *normalizer.mean.shape))]
        result += [("real", np.bool_, steps)]
    return layout_of(policy, result)


class GradientWorker(Actor):
    """Acts for one rollout at a time and computes the gradient itself.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy on the CPU, which is copied.
        config: The settings.
        seed: Seed of the noise and of the environments.
        make_act: As for ``Actor``.
    """

    def __init__(
        self,
        make_envs: Callable[[], Envs],
        policy: ActorCriticLike,
        config: GradientConfig,
        seed: int,
        make_act: MakeAct | None = None,
    ) -> None:
        super().__init__(make_envs, policy, seed, make_act)
        self.config = config

    def work(self, weights: Weights, out: Any) -> None:
        """Act with these weights, and write the gradient to ``out``."""
        # Collect a rollout, as an actor of IMPALA does.
        batch = self.collect(weights, self.config.num_steps)
        # Send the gradient, and with it what the learner reports.
        policy = self.policy
        gradient, losses = a2c_gradient(policy, batch, self.config)
        for (name, _), part in zip(policy.named_parameters(), gradient, strict=True):
            out["gradient"][name] = part.numpy()
        out["episode_return"] = batch.episode_return.numpy()
        fill(out["losses"], losses)
        if self.config.normalize_obs:
            out["obs"], out["real"] = batch.obs.numpy(), batch.real.numpy()


# %% [markdown]
# For CartPole a gradient is much larger than the experience that it is
# computed from. Here are both sizes in bytes:

# %%
from functools import partial

import torch

from literate_rl.actors.a3c import A3CConfig, gradient_layout
from literate_rl.actors.actors import slot_layout
from literate_rl.data.agents import make_envs
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import flat_env

torch.set_num_threads(1)  # networks as small as these gain nothing from more
build_envs = partial(make_envs, partial(flat_env, "CartPole-v1"), 8)
envs = build_envs()


def fresh_policy():
    torch.manual_seed(1)
    return make_policy(envs.single_observation_space, envs.single_action_space)


policy = fresh_policy()
sizes = {
    "unroll": slot_layout(policy, envs, 5)["result"].itemsize,
    "gradient": gradient_layout(policy, A3CConfig())["result"].itemsize,
}
print(sizes)

# %% [markdown]
# With image observations and a small network it would be the other way round. Sending gradients
# pays where the *computation* is too much for one learner.

# %% tags=["claims"]
assert sizes["gradient"] > 10 * sizes["unroll"], "much larger"

# %% [markdown]
# ### The learner
#
# The learner copies the gradient, because the slot goes back to the worker, and takes the step.
# It counts the environment steps behind the gradients that have arrived. If a worker is
# killed or hangs ({doc}`processes`), its half-finished gradient never arrives and is not counted.


# %% tags=["export"]
class A3C(RemoteLearner):
    """Takes a step on each gradient that a worker sends.

    Its arguments are those of ``RemoteLearner``, with an ``A3CConfig``.
    """

    actor = GradientWorker
    config: A3CConfig
    learner: GradientLearner

    def prepare(self, acting: Any, envs: Envs) -> None:
        """Set what a slot holds and who takes the steps."""
        self.layout, self.brings = gradient_layout(acting, self.config), (self.config,)
        self.learner = GradientLearner(self.policy, self.config)

    def learn(self, result: Any) -> dict[str, float]:
        """Take a step on a gradient; return metrics."""
        parts, device = result["gradient"], self.learner.parameters[0].device
        gradient = tuple(
            torch.tensor(parts[name], device=device) for name in parts.dtype.names
        )
        taken = self.learner.learn(gradient, self.step)
        self.step += result["episode_return"].size
        if self.config.normalize_obs:
            seen = (torch.from_numpy(result[name]) for name in ("obs", "real"))
            take_in(self.learner.normalizer, *seen)
        losses = {name: float(result["losses"][name]) for name in a2c_loss._fields}
        ended = torch.from_numpy(result["episode_return"])
        return {**returned(ended), **taken, **named(losses)}


# %% [markdown]
# What `train` knows of it:

# %% tags=["export", "hide-input"]
ROW = register(
    Row(
        "A3C",
        "A2C with workers that send gradients",
        ANY,
        A3CConfig,
        actor_critic,
        actors=A3C,
        settings=a3c_settings,
        contract="ppo",
    )
)

# %% [markdown]
# ### A2C once more
#
# One worker with one slot has no lag, because it waits while the learner takes its step. This is
# A2C, and with the same seeds the parameters are the same, bit for bit.

# %%
from literate_rl.learners.a2c import A2C, A2CConfig
from literate_rl.actors.a3c import A3C
from literate_rl.actors.actors import InProcess
from literate_rl.by_hand.fast_forms import numpy_act


def one_worker(make_worker, *others):
    return InProcess(lambda seed: make_worker(1), *others)  # with the seed of A2C


policy = fresh_policy()
alone = A2C(policy, build_envs(), A2CConfig(), numpy_act(policy))
for slots in (1, 4):
    remote = A3C(
        fresh_policy(), build_envs, A3CConfig(actors=1, slots=slots), one_worker
    )
    with remote:
        for _ in range(50):
            lag = remote.iterate()["charts/lag"]
            if slots == 1:
                alone.iterate()
    pairs = zip(policy.parameters(), remote.policy.parameters(), strict=True)
    same = all(torch.equal(x, y) for x, y in pairs)
    print(f"slots: {slots}, lag: {lag}, the same parameters after 50 steps: {same}")

# %% tags=["claims"]
assert lag == 3, "with four slots the lag is three"
assert not same, "and the parameters are others"
remote = A3C(fresh_policy(), build_envs, A3CConfig(actors=1, slots=1), one_worker)
with remote:
    for _ in range(50):
        remote.iterate()
pairs = zip(policy.parameters(), remote.policy.parameters(), strict=True)
assert all(torch.equal(x, y) for x, y in pairs), "one slot is A2C bit for bit"

# %% [markdown]
# ### Does it learn?
#
# Here A3C trains on CartPole for 200,000 steps with two workers, each in a process of its own.
# For comparison there is A2C with the same settings and seeds. Each curve is
# the mean of ten seeds.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two curves of the mean return over 200,000 steps, which rise to 500, that of A3C a little later"}}
from literate_rl.runs.evaluation import paired_difference

fig, axis = plt.subplots(figsize=(7, 2.6))
kinds = {
    "A2C": stored_runs("a2c_cartpole")["A2C"],
    "A3C, two workers": stored_runs("a3c_cartpole")["two workers"],
}
for name, run in kinds.items():
    axis.plot(run.steps / 1000, run.curves.mean(0), label=name)
alone, remote = kinds.values()
behind = paired_difference(remote.area, alone.area)
axis.set(xlabel="thousand steps", ylabel="return while training")
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** that all runs of both agents end with the highest return. The gradients of A3C are
# about one update late, and its return rises more slowly: averaged over the run it is about 14
# lower than A2C's. The lag is not all that differs: A3C has twice as many environments too.
#
# ### What the clock says
#
# Two workers gained no time that we can show: on two cores the fastest of ten whole runs took 16 seconds, about
# as long as A2C alone. A worker of CartPole is quick, and the learner's part is not small: it reads, squares and
# writes every weight.
#
# More is to be gained where acting is slow. With steps that wait a millisecond, as in {doc}`actors`, four
# workers are through in about a quarter of the time. But their gradients have a lag of 3, and at the same learning
# rate all three seeds learn far less.

# %% tags=["claims"]
assert (alone.final == 500).all(), "all runs of A2C"
assert (remote.final == 500).all(), "and all of A3C"
assert 0.5 < remote.judged["lag"].mean() < 1.5, "about one update late"
assert -22.5 < behind.low < behind.high < -5, "more slowly"
assert -15 < behind.mean < -13, "about 14"

# %% tags=["claims"]
clock = stored_runs("a3c_waiting")
assert round(remote.judged["seconds"].min()) == 16
assert 13 < alone.cpu_seconds.min() < alone.cpu_seconds.max() < 20, "about as long"
seconds = {name: run.judged["seconds"].min() for name, run in clock.items()}
assert 3.5 < seconds["A2C"] / seconds["4 workers"] < 4.5, "about a quarter"
slowest = clock["4 workers"]
assert len(slowest.area) == 3, "three seeds"
assert round(slowest.judged["lag"].mean()) == 3
assert slowest.area.max() < 0.6 * clock["A2C"].area.min(), "far less"

# %% [markdown]
# ## Traps
#
# ### Trap: the gradient that nobody clears
#
# The best-known A3C programs for PyTorch have one shared model, and a local copy of it in each
# process. A process clears the *shared* gradient, computes the local one, and lets the shared
# model's gradient point to it. Here is the idiom, with a loss whose gradient is always 1:

# %%
from torch import nn

shared_model, local = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
optimizer, used = torch.optim.SGD(shared_model.parameters(), 0.1), []
for _ in range(4):
    local.load_state_dict(shared_model.state_dict())
    loss = local(torch.ones(1, 1)).sum()
    optimizer.zero_grad()  # clears the shared gradient ...
    loss.backward()  # ... and adds to the local one
    shared_model.weight._grad = local.weight.grad
    used.append(shared_model.weight.grad.item())
    optimizer.step()
print("gradients used:", used)

# %% [markdown]
# Since PyTorch 2.0 `zero_grad` sets the gradient to `None`: the shared model drops the tensor, and the
# local one keeps it. Each step now uses the sum of all gradients so far, and no error says so. With
# `torch.autograd.grad`, as in {doc}`a2c`, there is nothing to clear.

# %% tags=["claims"]
assert used == [1.0, 2.0, 3.0, 4.0], "and not 1, 1, 1, 1"

# %% [markdown]
# ## When to use it
#
# A3C is of interest where *computing* the gradient is the bottleneck and there are many processors
# without a GPU. Where acting is the bottleneck, {doc}`impala` sends experience, which can be corrected and is
# often smaller.
#
# - **Use it for**: gradients that take much longer than their way, on many processors
# - **Rather than**: {doc}`a2c` if one process is too slow, {doc}`impala` if observations are larger
#   than the network
# - **Costs**: 200,000 steps on CartPole, all ten runs at 500; the fastest took 16 seconds on two cores
# - **First settings**: `actors=2`, `slots=1`, `learning_rate=1e-3`
# - **Decided by**: the grid of lag and learning rate and [the clock](#what-the-clock-says)

# %% tags=["claims"]
assert remote.steps[-1] == 200_000
assert (remote.final == 500).all(), "all ten runs"
assert round(remote.judged["seconds"].min()) == 16, "the fastest"

# %% [markdown]
# ## Summary
#
# - Workers can send gradients instead of experience. Then they do most of the computing.
# - A gradient is as many updates late as there are other gradients under way.
# - On a parabola the largest stable step size falls with the lag, to about half for twice the lag. An
#   agent pays for a lag long before that, and half the learning rate was no remedy.
# - V-trace can correct old experience. It cannot correct an old gradient.
# - A3C with one worker and one slot is A2C, bit for bit.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "Four workers with one slot each send gradients of the parabola, and the descent is only just "
    "stable. You double the workers and change nothing else. Twice as many gradients arrive per "
    "second. What happens?",
    [
        "it gets down about twice as fast",
        "it swings further and further: the lag has more than doubled",
        "nothing: each worker still has one slot",
    ],
    right="it swings further and further: the lag has more than doubled",
    because="With eight workers each gradient is seven steps old, not three. A step size "
    "that was just below the limit is now above it. Slightly less than half would do.",
)

# %% tags=["claims"]
assert 0.45 < limit(7) / limit(3) < 0.5, "slightly less than half"

# %% [markdown]
# ### Exercise 2: find the bug
#
# Workers take turns on the parabola $x^2 / 2$. Each holds the weight that it was given last, and
# computes the gradient there. With one worker the program is right. With more it runs too, but as
# if each worker learned alone. Fix it.


# %%
def answer(num_workers, step_size, num_steps):
    weight, held = 1.0, [1.0] * num_workers
    for k in range(num_steps):
        worker = k % num_workers
        gradient = held[worker]
        weight = held[worker] - step_size * gradient
        held[worker] = weight
    return weight


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def taking_turns(num_workers, step_size, num_steps):
    """Return the last weight; the lag is the number of workers, less one."""
    return descent(num_workers - 1, step_size, num_steps)[-1]


cases = [(1, 0.3, 20), (2, 0.3, 20), (4, 0.1, 50), (8, 0.1, 9)]
grade(answer, taking_turns, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(num_workers, step_size, num_steps):
    weight, held = 1.0, [1.0] * num_workers
    for k in range(num_steps):
        worker = k % num_workers
        gradient = held[worker]
        # The gradient is old. The step starts from the weight as it is now.
        weight = weight - step_size * gradient
        held[worker] = weight
    return weight


grade(answer, taking_turns, *cases)

# %% [markdown]
# ### Exercise 3: guess, then train
#
# One worker, 50,000 steps, the usual learning rate. What becomes of the agent if its gradients are 0,
# 3 or 127 updates late? Guess first, and let `answer` return `"learns"` or `"nothing"` for each, in
# this order. Stored runs decide: an agent has learned where the median of the last policies is above
# 250. `late_agent(lag)` trains one, in some ten seconds.


# %%
def answer():
    return ...


def late_agent(lag):
    """Train with a lag; return the mean return of the last 20 episodes."""
    config = replace(a3c_settings("CartPole-v1"), actors=1, slots=lag + 1)
    config = replace(config, total_steps=50_000)
    with A3C(fresh_policy(), build_envs, config, None, numpy_act) as agent:
        history = fit(agent, progress=False)
    returns = [row["charts/episodic_return"] for row in history]
    return np.mean([x for x in returns if x == x][-20:])


# %% tags=["hide-input"]
from dataclasses import replace

from literate_rl.actors.a3c import a3c_settings
from literate_rl.runs.runs import fit

by_lag = [late["lag 0"], small["lag 3, rate 1"], late["lag 127"]]


def trained():
    """Return what became of the stored runs."""
    middle = [np.median(runs.final) for runs in by_lag]
    return ["learns" if x > 250 else "nothing" for x in middle]


grade(answer, trained, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # Three updates move the policy little. Very many old ones point to where it was.
    return ["learns", "learns", "nothing"]


grade(answer, trained, ())

# %% tags=["claims"]
assert by_lag[0].final.min() > by_lag[1].final.min() > 250 > by_lag[2].final.max()

# %% [markdown]
# ## References
#
# A3C is from {cite:t}`mnih2016`. The limit for a recursion with a delay is from
# {cite:t}`levin1976`.

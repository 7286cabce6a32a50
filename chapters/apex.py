# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Ape-X
#
# **Many actors fill one memory. Who sets the priorities of their steps?** After this chapter you
# can let several actors, each of which explores to a different degree, collect for DQN, Rainbow or
# DDPG, and say why the actors set the priorities of their steps themselves. It takes about 30 minutes,
# reading, without exercises. You need priorities ({doc}`replay`), {doc}`dqn`, and the slots and the lag of
# {doc}`actors`.

# %% tags=["export", "hide-input"]
"""Ape-X: many actors, one memory, and first priorities that the actors set."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from literate_rl.actors.actors import (
    Actor,
    MakeAct,
    MakeTransport,
    RemoteLearner,
    TransportConfig,
    Weights,
    arrays_of,
    fields_of,
    fill,
    layout_of,
    one_step,
    tensors_in,
)
from literate_rl.data.agents import Rollout
from literate_rl.data.episodes import mean_return
from literate_rl.data.replay import ReplayBuffer
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Algorithm,
    Envs,
    PolicyLike,
    settings_of,
)
from literate_rl.ground.rows import Row, register
from literate_rl.ground.signatures import (
    Count,
    Float,
    Fraction,
    NonNegative,
    check_that,
    checked,
)
from literate_rl.learners.ddpg import (
    ROW as DDPG_ROW,
    SETTINGS as DDPG_SETTINGS,
    DDPGConfig,
)
from literate_rl.learners.dqn import (
    ROW as DQN_ROW,
    SETTINGS as DQN_SETTINGS,
    DQNConfig,
)
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.rainbow import (
    ROW as RAINBOW_ROW,
    SETTINGS as RAINBOW_SETTINGS,
    RainbowConfig,
)
from literate_rl.nets.parts import take_in
from literate_rl.nets.policies import Policy

__all__ = [
    "Apex",
    "ApexActor",
    "ApexConfig",
    "DDPGApexConfig",
    "DQNApexConfig",
    "RainbowApexConfig",
    "actor_epsilons",
    "apex_settings",
    "experience_layout",
    "first_priorities",
]

# %% [markdown]
# ## Steps that nobody has looked at
#
# A prioritised memory draws a step more often the larger its TD error was when it was last seen.
# What about a step that nobody has seen yet? Usually it gets the largest priority so far
# ({doc}`replay`). Then it is drawn soon, and its draw gives it the right priority. This is cheap
# for a single agent, which draws many steps for each new one that it takes. But many actors fill
# the memory faster than the learner can look.
#
# Here is a memory of 2,000 steps, from which batches of 32 are drawn. Two in a hundred of the new
# steps are surprising: their TD error is 1, and each draw, which is an update, takes three tenths
# of it away. All others have an error of 0.02, which stays.
#
# Choose how many new steps arrive for each one that is drawn. The picture shows how many of the
# surprising steps have been drawn at least once, over their age. At an age of 2,000 steps they
# leave the memory. The dashed line is what draws *without* priorities would give: if $x$ new steps
# arrive for each draw, a step is drawn at least once with the chance $1 - e^{-1/x}$.

# %% tags=["hide-input"]
import math

import numpy as np
import torch

from literate_rl.data.agents import Rollout
from literate_rl.data.replay import ReplayBuffer
from literate_rl.book.pictures import AGENT_COLOURS, Axis, Mark, dial, plot

size, batch_size, dull = 2000, 32, 0.02


def ages_when_seen(arriving, judged, seed=0, lives=5):
    """Return how old each surprising step was at its first draw, inf if none came.

    ``arriving`` is the number of new steps for each that is drawn. ``judged`` says
    whether they come with their own error as priority, or get the largest so far.
    """
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    number = round(arriving * batch_size)
    first = np.where(rng.random(lives * size) < 0.02, 1.0, dull)
    age = np.full(len(first), np.inf)
    error, buffer = first.copy(), ReplayBuffer(size, priority_exponent=0.6)
    for start in range(0, len(first) - number, number):
        new = torch.from_numpy(first[start : start + number]).float()[:, None]
        none = torch.zeros_like(new)
        no = none.bool()
        # The steps themselves play no role; the observation is the step's number.
        count = torch.arange(start, start + number)[:, None]
        steps = (count, none, none, count, no, no, ~no, none, none)
        buffer.push(Rollout(*steps), new if judged else None)
        # One batch; what is drawn is learned from and gets its new error.
        batch = buffer.sample(batch_size, generator)
        drawn = batch.obs.numpy()
        age[drawn] = np.minimum(age[drawn], start + number - drawn)
        error[drawn] = np.maximum(dull, 0.7 * error[drawn])
        buffer.update(batch.place, torch.from_numpy(error[drawn]))
    # The memory has to be full first, and the last steps had no time.
    known = slice(size, (lives - 1) * size)
    return age[known][first[known] == 1.0]


arrivals = [0.25, 0.5, 1.0, 1.3, 2.0, 4.0]
found = {
    (arriving, judged): ages_when_seen(arriving, judged)
    for arriving in arrivals
    for judged in (False, True)
}
grid = list(range(0, size + 1, 50))


def seen_by(ages, limit=size):
    """Return the share of steps that were drawn by some age."""
    return float((ages <= limit).mean())


def frame(arriving):
    lines, words = [], []
    kinds = (
        (True, "accent", "Upper line, a new step has its own error"),
        (False, "second", "Lower line, it gets the largest priority so far"),
    )
    for judged, tone, name in kinds:
        ages = found[arriving, judged]
        shares = [seen_by(ages, age) for age in grid]
        lines.append(Mark("line thick", grid, shares, tone))
        words.append(f"{name}: {seen_by(ages):.0%} are seen in time.")
    blind = [1 - math.exp(-age / size / arriving) for age in grid]
    lines.append(Mark("line dashed", grid, blind, "quiet"))
    words.append(f"Dashed line, all steps are drawn alike: {blind[-1]:.0%}.")
    picture = plot(
        "Surprising steps that have been seen",
        "Three rising lines over the age of a step. If its priority is its own error, the "
        "line rises at once; with the largest priority so far it rises slowly, hardly above "
        "the dashed one of draws without priorities.",
        Axis(
            "age, in steps that have arrived since",
            0,
            1.03 * size,
            ticks=(0, 1000, 2000),
        ),
        Axis("share", 0, 1.02, ticks=(0, 0.5, 1)),
        *lines,
        width=440,
    )
    return [picture], "\n".join(words)


dial(
    "Who sets the priority of a new step",
    frame,
    {"new steps for each one that is drawn": arrivals},
    start=(2.0,),
)

# %% [markdown]
# **Notice** that with half a new step for each draw, or less, every surprising step is seen with
# both rules. From one new step on, the largest priority is no longer enough: there are at least
# as many new steps as draws, and a new step is drawn because it is new, whether it is surprising
# or not. With two new steps for each draw, about half of the surprising ones are ever seen, and with
# four a quarter: hardly more than without any priorities. If each new step comes with its own error as
# priority, with two all of them are seen, and with four still nine of ten.
#
# So in **Ape-X** {cite:p}`horgan2018` the actor that collects a step also sets its first
# priority. It has the weights, the rewards and the next states, so it can compute the TD error
# before it sends the step. In the paper about 1.3 new steps arrived for each draw.
#
# Not every task shows it. DQN learned CartPole with one actor and 2.5 new steps for each draw, with the actor's
# priorities, with the largest and with none, and five seeds do not tell the three apart: CartPole has no rare
# surprises.

# %% tags=["claims"]
from itertools import combinations

from literate_rl.runs.evaluation import paired_difference
from literate_rl.runs.runs import stored_runs

for arriving in (0.25, 0.5):
    assert all(seen_by(found[arriving, judged]) == 1 for judged in (False, True))
assert seen_by(found[1.0, False]) < 0.95, "it fails from one on"
halves, quarters = (
    np.mean([seen_by(ages_when_seen(x, False, seed)) for seed in range(5)])
    for x in (2.0, 4.0)
)
assert 0.4 < halves < 0.6, "about half"
assert 0.2 < quarters < 0.35, "a quarter"
for share, arriving in ((halves, 2), (quarters, 4)):
    blind = 1 - math.exp(-1 / arriving)
    assert blind - 0.05 < share < blind + 0.2, "hardly more than without priorities"
assert seen_by(found[2.0, True]) == 1, "all of them"
assert seen_by(found[4.0, True]) >= 0.9, "nine of ten"
assert len(found[2.0, True]) > 80, "enough to say so"
rules = [stored_runs("apex_ratio")[name].area for name in ("actor", "largest", "none")]
assert [len(areas) for areas in rules] == [5, 5, 5]
for first, second in combinations(rules, 2):
    gain = paired_difference(first, second)
    assert gain.low < 0 < gain.high, "none from another"


# %% [markdown]
# ## What it buys
#
# Where few steps arrive for each draw, many actors still buy time. The learner is DQN, on a CartPole
# whose every step takes four milliseconds longer. Without actors it takes a step in each of four
# environments, learns, and takes the next. In the other runs one, two or four actors collect for it,
# each in a process of its own, with four environments each. All runs take 30,000 steps, with an
# update of 128 draws for every two. So 0.016 new steps arrive for each draw, where both rules of the dial see
# everything.
#
# The first panel has the returns while training, means of ten seeds over the seconds of the median run, the
# second the returns of the last policies, in 20 greedy episodes each.

# %% tags=["hide-input"] mystnb={"image": {"alt": "First: return while training of four kinds of runs, over seconds. With four actors all steps are taken in 50 seconds, with two in 70, with one in 140, with none in 190. Second: ten dots for each kind, the returns of the last policies, between 150 and 500. Without actors eight of ten are at the top, with actors about half"}}
import matplotlib.pyplot as plt

runs = stored_runs("apex_waiting")
looks = {"no actors": ":", "1 actor": "-.", "2 actors": "--", "4 actors": "-"}
fig, axes = plt.subplots(1, 2, figsize=(7, 3))
seconds = {}
for place, (key, look) in enumerate(looks.items()):
    color = AGENT_COLOURS["DQN" if key == "no actors" else "Ape-X"]
    steps, mean = runs[key].steps, np.nanmean(runs[key].curves, 0)
    seconds[key] = np.median(runs[key].judged["seconds"])
    over = steps / steps[-1] * seconds[key]
    axes[0].plot(over, mean, look, color=color, label=key)
    ends = runs[key].final
    axes[1].plot([place] * len(ends), ends, "o", color=color, alpha=0.5)
lost = {
    key: paired_difference(runs["no actors"].final, runs[key].final)
    for key in list(looks)[1:]
}
axes[0].set(xlabel="seconds", ylabel="return while training")
axes[0].legend(fontsize=8)
axes[1].set(ylabel="last policies, greedy", ylim=(0, 520))
axes[1].set_xticks(range(len(looks)), looks)
fig.tight_layout()

# %% [markdown]
# **Notice** in the first panel that four actors take all steps in about a quarter of the time. After half a
# minute they have the highest return.
#
# **Notice** in the second panel what it may cost. Without actors eight of ten policies balance for at least 475
# steps; of the thirty runs with actors sixteen do. Ten seeds show a difference with one actor, not with two or
# four. And the lag is not all that differs. The actors explore on [a
# ladder](#a-ladder-of-explorers) and never stop, where DQN ends with one random action in twenty; a
# rollout has 20 steps of each environment, where DQN learns after every two steps; and new steps get the
# actor's priority. Which of these counts is not known.

# %% tags=["claims"]
assert all(len(run.final) == 10 for run in runs.values())
assert all((run.steps[-1] == 30_000).all() for run in runs.values())
assert 3.5 < seconds["no actors"] / seconds["4 actors"] < 5, "a quarter of the time"
half_minute = {
    key: np.interp(
        30, run.steps / run.steps[-1] * seconds[key], np.nanmean(run.curves, 0)
    )
    for key, run in runs.items()
}
assert max(half_minute, key=half_minute.get) == "4 actors", "the highest return"


from literate_rl.actors.apex import apex_settings
from literate_rl.learners.dqn import dqn_settings

reached = {key: (run.final >= 475).sum() for key, run in runs.items()}
assert reached.pop("no actors") == 8
assert sum(reached.values()) == 16
assert lost["1 actor"].low > 0, "a difference with one actor"
assert all(lost[key].low < 0 < lost[key].high for key in ("2 actors", "4 actors"))
alone, crowd = dqn_settings("CartPole-v1"), apex_settings("CartPole-v1")
assert (alone.train_interval, crowd.train_interval) == (2, 2), "for every two"
assert round(crowd.train_interval / crowd.batch_size, 3) == 0.016
assert (alone.epsilon_start, alone.epsilon_end) == (1, 1 / 20), "one in twenty"
assert crowd.rollout_len == 20

# %% [markdown]
# ## First priorities
#
# The learner's priority of a step is the size of its TD error: how far the value is from the
# target of the window that begins there. The actor computes the same. But it has no target
# network, so both values come from its own weights $\theta'$, which are a few versions old. For DQN, with
# the $m$ steps of {eq}`replay-window`,
#
# $$
# u_t = \Big| \sum_{k=0}^{m-1} \gamma^k r_{t+k}
#     + \gamma^m \, (1 - \mathrm{te}_{t+m-1}) \max_a Q_{\theta'}(s'_{t+m-1}, a)
#     - Q_{\theta'}(s_t, a_t) \Big| .
# $$ (first-priority)
#
# A small buffer makes the windows, and the learner's own `error` compares values with targets, with the
# actor's network in both places. So the function below works for every learner: for Rainbow, whose priority
# is a divergence of distributions, and for DDPG, whose actor replaces the maximum.
#
# The actor's windows end with the rollout, because it does not know yet what comes next. The
# learner's windows can run on.


# %% tags=["export"]
@torch.no_grad()
@checked
def first_priorities(
    algorithm: Algorithm,
    rollout: Rollout,
    num_steps: Count,
    gamma: Fraction,
    generator: torch.Generator,
) -> Float[Tensor, "T B"]:
    """Return the priorities that a learner with this policy would give to steps.

    Args:
        algorithm: The learner's own, with the policy that acted in both places, as
            ``of_one_policy`` makes it.
        rollout: The steps, with rewards in the learner's scale.
        num_steps: Number n of rewards in a target. Windows end with the rollout.
        gamma: Discount.
        generator: The source of the noise, for an error that draws some.
    """
    # A buffer of these steps only, and every step is the start of a window.
    memory = ReplayBuffer(rollout.reward.numel())
    place, steps = memory.rings.push(rollout)
    priority = torch.zeros_like(rollout.reward)
    if not len(place):
        return priority  # no row is a step
    batch = memory.windows(place, num_steps, gamma)
    # The learner's own error, with one network in both places: {eq}`first-priority`.
    with eval_mode(algorithm.policy):
        priority[steps] = algorithm.error(batch, generator).td_error.abs()
    return priority


def of_one_policy(algorithm: Algorithm, policy: PolicyLike) -> Algorithm:
    """Return an algorithm with one policy in both places, which only judges steps."""
    both: Any = copy.copy(algorithm)
    both.policy, both.target, both.actor = policy, SimpleNamespace(network=policy), ()
    return cast(Algorithm, both)


# %% [markdown]
# ## A ladder of explorers
#
# How should many actors differ from each other? A single agent begins with many random actions
# and ends with few ({doc}`dqn`). Many environments can do both at the same time, all the time. All
# actors together have $n_E$ environments. Number $i$ of them acts at random with probability
#
# $$
# \varepsilon_i = \varepsilon^{\, 1 + 7 i / (n_E - 1)} , \qquad
# i = 0, \dots, n_E - 1, \quad \varepsilon = 0.4 .
# $$ (epsilon-ladder)
#
# The logarithms are evenly spaced, so we call this a **ladder** and each probability a rung; elsewhere
# it is called *per-actor ε* or *per-worker ε-greedy*. Choose how many environments there are and how steep
# the ladder is: the *power* is the 7 of the formula.

# %% tags=["hide-input"]
from literate_rl.actors.apex import actor_epsilons  # the package's own, defined below


def rungs(number, power):
    ladder = actor_epsilons(number, 0.4, power)
    places = np.linspace(0, 1, number) if number > 1 else np.zeros(1)
    picture = plot(
        "Probability of a random action",
        "A dot for each environment, on a logarithmic scale. They fall on a straight line.",
        Axis("number i, as a share of the last", -0.03, 1.03, ticks=(0, 0.5, 1)),
        Axis("powers of ten", -3.5, 0, ticks=(-3, -2, -1, 0)),
        Mark("dots", places.tolist(), ladder.log10().tolist(), "accent"),
        width=440,
    )
    often, rarely = (
        f"{x:.1f}" if x < 10 else f"{x:,.0f}"
        for x in (1 / ladder[0].item(), 1 / ladder[-1].item())
    )
    return [picture], (
        f"The first environment acts at random every {often} steps, the last one "
        f"every {rarely}.\n{(ladder > 0.05).sum()} of {number} explore more than DQN "
        "does at its end (0.05)."
    )


knobs = {"environments": [1, 2, 4, 8, 16, 64], "power": [0.0, 3.5, 7.0]}
dial("The ladder of explorers", rungs, knobs, start=(8, 7.0))

# %% [markdown]
# **Notice** the two ends. The first environment acts at random every two or three steps and tries
# what no good player would. The last one plays some 1,500 steps between two random actions, so it
# can get to states that only a good player sees.
#
# All of them write to the same memory, and an off-policy learner can learn from all of it. There is no
# schedule, and exploration never ends.

# %% tags=["claims"]
ladder = actor_epsilons(8)
assert 2 < 1 / ladder[0] < 3, "after two or three steps"
assert 1450 < 1 / ladder[-1] < 1550, "some 1,500 steps"
gaps = ladder.log().diff()
assert torch.allclose(gaps, gaps[0].expand(7)), "evenly spaced logarithms"


# %% tags=["export"]
@checked
def actor_epsilons(
    number: Count, epsilon: Fraction = 0.4, power: NonNegative = 7.0
) -> Float[Tensor, "number"]:
    """Return the probability of a random action for each of some environments.

    Args:
        number: Number of the environments of all actors.
        epsilon: That probability in the first one.
        power: In the last one it is ``epsilon`` to the power ``1 + power``.

    Source: Horgan et al. 2018, section 4.1.
    """
    # The ladder {eq}`epsilon-ladder`; a single environment gets the first rung.
    share = torch.arange(number) / max(1, number - 1)
    return epsilon ** (1 + power * share)


# %% [markdown]
# ## The actor
#
# An actor gets weights and writes down what it did, as in {doc}`actors`. Two things are new: its
# environments have their rungs of the ladder, and it computes first priorities, of all steps of a rollout in
# one pass at its end. A slot holds the
# actor's number along with the weights, so an actor that replaces a dead one has the same rungs.


# %% tags=["export"]
class ApexActor(Actor):
    """Acts for one rollout at a time, and sets first priorities.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy on the CPU, which is copied.
        algorithm: The learner's own; its error gives the first priorities.
        config: The settings.
        seed: Decides the noise and the environments' random numbers.
        make_act: As for ``Actor``.
    """

    def __init__(
        self,
        make_envs: Callable[[], Envs],
        policy: Policy,
        algorithm: Algorithm,
        config: ApexSettings,
        seed: int,
        make_act: MakeAct | None = None,
    ) -> None:
        super().__init__(make_envs, policy, seed, make_act)
        self.algorithm = of_one_policy(algorithm, self.policy)
        self.config = config
        # The rungs of all environments, a row for each actor.
        self.epsilons = actor_epsilons(
            config.actors * config.num_envs, config.epsilon, config.power
        ).reshape(config.actors, -1)

    def work(self, weights: Weights, out: Any) -> None:
        """Act for one rollout with these weights; write it and its priorities."""
        config, number = self.config, int(weights["actor"])
        # The slot says which actor this is, and so which rungs its environments have.
        self.policy.actions.epsilon = self.epsilons[number]
        # In an actor's first rollout its environments have just been reset.
        out["actor"], out["fresh"] = number, self.collector.step == 0
        rollout = self.collect(weights, config.rollout_len)
        fill(out, arrays_of(rollout._asdict()))
        # The first priorities, from rewards in the learner's scale.
        if config.priorities == "actor":
            scaled = rollout._replace(reward=rollout.reward * config.reward_scale)
            how = config.num_steps, config.gamma, self.generator
            out["priority"] = first_priorities(self.algorithm, scaled, *how).numpy()


# %% [markdown]
# A slot stores observations in the environment's own dtype, so that a picture stays bytes.


# %% tags=["export", "hide-input"]
@checked
def experience_layout(
    policy: PolicyLike, envs: Envs, rollout_len: Count
) -> np.dtype[np.void]:
    """Describe the memory of one slot, a record with ``weights`` and ``result``.

    The weights come with the number of the ``actor``. The result has a field for each
    of ``Rollout``, the ``priority`` of each step, the number of the actor, and whether
    its environments were ``fresh``.

    Args:
        policy: A policy on the CPU.
        envs: The environments of one actor.
        rollout_len: Steps of each of them in a slot.
    """
    own: Any = envs.single_observation_space.dtype
    # What float32 holds may stay as it is; anything else has become float32 by then.
    kept = own if np.can_cast(own, np.float32) else np.float32
    one = one_step(policy, envs, kept)
    example = {**one._asdict(), "priority": one.reward}
    result = fields_of(example, rollout_len)
    result += [("actor", np.int64), ("fresh", np.bool_)]
    return layout_of(policy, result, ("actor", np.int64))


# %% [markdown]
# ## The learner
#
# The learner is that of {doc}`dqn`, {doc}`rainbow` or {doc}`ddpg`, unchanged, and `Apex` feeds
# it. In its memory each environment of each actor has a ring of its own, and a rollout goes to those
# of its actor.
#
# Transports, slots and tokens are those of {doc}`actors` and {doc}`processes`. If an actor dies or
# hangs, its successor gets the same tokens, and no rollout counts twice. But the successor starts
# new episodes, and no window may run from the last step of the dead actor into the first of its
# successor. So the first rollout of an actor is marked as `fresh`, and before it is stored, the
# learner cuts the actor's rings ({doc}`replay`).


# %% tags=["export"]
class Apex(RemoteLearner):
    """Learns from a memory that many actors fill.

    Use it as a context manager, or call ``close``, so that the actors end.

    Args:
        learner: What ``DQN``, ``Rainbow`` or ``DDPG`` returns. Its ``config`` is one of
            ``ApexConfig`` too. Its environments are closed.
        make_envs: Makes the ``config.num_envs`` environments of one actor.
        transport: As for ``RemoteLearner``.
        make_act: As for ``Actor``.
    """

    actor = ApexActor
    config: ApexSettings
    learner: OffPolicy

    @checked
    def __init__(
        self,
        learner: OffPolicy,
        make_envs: Callable[[], Envs],
        transport: MakeTransport | None = None,
        make_act: MakeAct | None = None,
    ) -> None:
        self.learner = learner
        learner.collector.envs.close()
        config = cast(TransportConfig, learner.config)
        super().__init__(learner.policy, make_envs, config, transport, make_act)

    def prepare(self, acting: Any, envs: Envs) -> None:
        """Set what a slot holds, and that an actor brings what judges steps."""
        self.layout = experience_layout(acting, envs, self.config.rollout_len)
        judge = of_one_policy(self.learner.algorithm, acting)
        self.brings = judge, self.config

    def message(self, actor: int) -> Weights:
        """Return what an actor is sent: the weights, and its number."""
        return {**super().message(actor), "actor": np.int64(actor)}

    def learn(self, record: Any) -> dict[str, float]:
        """Store a rollout and take the updates that are due; return metrics."""
        learner, config, number = self.learner, self.config, int(record["actor"])
        rollout = tensors_in(record, Rollout)
        first, width = number * config.num_envs, config.num_envs
        # A new actor does not continue where the one before it ended.
        if record["fresh"]:
            learner.buffer.cut(slice(first, first + width))
        # Without the actor's priorities the buffer gives each step the largest so far.
        judged = config.priorities == "actor"
        priority = torch.from_numpy(record["priority"]) if judged else None
        learner.buffer.push(rollout, priority, (first, config.actors * width))
        take_in(learner.normalizer, rollout.obs, rollout.real)

        # The learning rate and the count of steps, as in the loop without actors.
        learner.anneal()
        learner.collector.step += rollout.reward.numel()
        self.step = learner.step
        # As many updates for each step as without actors.
        due = config.updates_per_rollout if self.step >= config.learning_starts else 0
        losses = learner.mean_losses([learner.learn() for _ in range(due)])
        # Of the algorithm's own metrics those about learning: the ladder explores.
        told = learner.algorithm.metrics().items()
        losses |= {name: x for name, x in told if name.startswith("losses/")}
        return {"charts/episodic_return": mean_return(rollout.episode_return)} | losses

    @property
    def log_due(self) -> bool:
        """Whether the last iteration completes a row of the log."""
        each = self.config.steps_per_iteration
        return self.version % ((self.config.log_interval or each) // each) == 0


# %% [markdown]
# In several processes a run cannot be repeated exactly, because the clock decides which rollout arrives
# first. In one process it can.
#
# ## Settings
#
# The settings are those of the learner and a few more. There are as many updates for each step as
# without actors, so the learner waits for the actors or they wait for it. In the paper neither
# side waits, and the speed of the machines decides how many updates there are for each step.


# %% tags=["export", "hide-input"]
@checked
@dataclass(frozen=True)
class ApexConfig(TransportConfig):
    """Settings of many actors with one memory, beside those of their learner.

    Each actor has ``num_envs`` environments. The learner's own exploration schedule and
    ``iteration_steps`` play no role: an iteration is a slot, so ``log_interval`` is a
    multiple of its ``rollout_len * num_envs`` steps.

    Attributes:
        rollout_len: Steps of each environment in one slot.
        epsilon: Probability of a random action in the first environment of all.
        power: In the last one it is ``epsilon`` to the power ``1 + power``.
        priorities: What a new step gets: the priority that its actor computes, or the
            largest so far.
    """

    actors: Count = 2
    rollout_len: Count = 20
    epsilon: Fraction = 0.4
    power: NonNegative = 7.0
    priorities: Literal["actor", "largest"] = "actor"

    def __post_init__(self) -> None:
        super().__post_init__()
        own: Any = self
        steps, each = self.steps_per_iteration, own.train_interval
        words = "must divide rollout_len * num_envs"
        check_that(steps % each == 0, f"train_interval {words}, {steps}, got {each}")
        log = own.log_interval
        words = f"log_interval must be a multiple of rollout_len * num_envs, {steps}"
        check_that(log is None or log % steps == 0, f"{words}, got {log}")

    @property
    def steps_per_iteration(self) -> int:
        """Steps of one slot, all environments of its actor together."""
        return self.rollout_len * cast(Any, self).num_envs


@checked
@dataclass(frozen=True)
class DQNApexConfig(ApexConfig, DQNConfig):
    """Settings of DQN with many actors and one memory."""

    priority_exponent: NonNegative = 0.6
    checkpoint_interval: Count = 250


@checked
@dataclass(frozen=True)
class RainbowApexConfig(ApexConfig, RainbowConfig):
    """Settings of Rainbow with many actors and one memory.

    The ladder of the actors explores, so the layers are not noisy unless asked for.
    """

    noisy: bool = False
    checkpoint_interval: Count = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_atoms()


@checked
@dataclass(frozen=True)
class DDPGApexConfig(ApexConfig, DDPGConfig):
    """Settings of DDPG with many actors and one memory.

    Actions have DDPG's noise; on the ladder some are replaced by random ones.
    """

    priority_exponent: NonNegative = 0.6
    checkpoint_interval: Count = 250


ApexSettings = DQNApexConfig | RainbowApexConfig | DDPGApexConfig


# Where a learner has settings of its own for an environment, they hold here too. But
# some actors never stop acting at random, so DQN's targets look less far ahead.
CARTPOLE = {"CartPole-v1": {**DQN_SETTINGS["CartPole-v1"], "num_steps": 5}}
SETTINGS: dict[str, Callable[[str], Any]] = {
    "dqn": settings_of(DQNApexConfig, DQN_SETTINGS | CARTPOLE),
    "rainbow": settings_of(RainbowApexConfig, RAINBOW_SETTINGS),
    "ddpg": settings_of(DDPGApexConfig, DDPG_SETTINGS),
}


@checked
def apex_settings(
    env: str, algorithm: Literal["dqn", "rainbow", "ddpg"] = "dqn"
) -> ApexSettings:
    """Return a learner's settings for an environment, with two actors.

    Args:
        env: Id of the environment.
        algorithm: The learner.
    """
    return SETTINGS[algorithm](env)


# %% [markdown]
# What `train` knows of them:


# %% tags=["export", "hide-input"]
def many(row: Row, config: type[ApexConfig]) -> None:
    """Register an algorithm with many actors and one memory beside the one without."""
    alone: Any = row.learner

    def learner(
        policy: Policy, build: Any, config: ApexConfig, *of_actors: Any, **forms: Any
    ) -> Apex:
        return Apex(alone(policy, build(), config, **forms), build, *of_actors)

    register(
        replace(
            row,
            name=f"{row.name}Apex",
            purpose=f"{row.name} with many actors",
            config=config,
            learner=None,
            actors=learner,
            settings=SETTINGS[row.key],
            forms=tuple(name for name in row.forms if name != "act"),
            chapter="apex",
        )
    )


many(DQN_ROW, DQNApexConfig)
many(RAINBOW_ROW, RainbowApexConfig)
many(DDPG_ROW, DDPGApexConfig)

# %% [markdown]
# | you type | what happens |
# |---|---|
# | `literate-rl apex --env CartPole-v1` | DQN with two actors that take turns |
# | `… apex --actors 4 --transport shared` | four processes; `--transport ray` for a cluster |
# | `… apex --algorithm rainbow` | Rainbow learns, without noisy layers: the ladder explores |
# | `… apex --algorithm ddpg --env Pendulum-v1` | DDPG learns ({doc}`ddpg`) |
# | `… apex --resume runs/NAME` | continues from the last checkpoint |
#
# In Python the families have the names of {doc}`contracts`: `train("DQNApex", "CartPole-v1",
# actors=4)`.
#
# ## Traps
#
# ### Trap: one rung for all
#
# The code that explores has to know the number of its actor. If it does not, all
# actors have the same $\varepsilon$, and nothing fails. A look at the memory reveals it:
# how often did each environment not take the action of the largest value?

# %%
from dataclasses import replace
from functools import partial

from literate_rl.data.agents import make_envs
from literate_rl.actors.apex import Apex, apex_settings
from literate_rl.learners.dqn import DQN, make_q_policy


def make_learner(config, **changes):
    """Build DQN with actors on CartPole, in one process."""
    config = replace(config, **changes)
    build = partial(make_envs, "CartPole-v1", config.num_envs)
    envs = build()
    torch.manual_seed(config.seed)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = make_q_policy(*spaces, config.hidden, config.dueling)
    return Apex(DQN(policy, envs, config), build)


def random_actions(learner, rollouts=40):
    """Return how often each environment did not do what the values say."""
    with learner:
        for _ in range(rollouts):
            learner.iterate()
    rings = learner.learner.buffer.rings
    steps = rings.num_envs * int(rings.count.min())
    obs, action = (torch.from_numpy(rings.fields[k][:steps]) for k in ("obs", "action"))
    with torch.no_grad():
        other = learner.policy(obs).argmax(-1) != action
    return other.reshape(-1, rings.num_envs).double().mean(0).numpy()


untrained = replace(apex_settings("CartPole-v1"), learning_starts=100_000)
apart = random_actions(make_learner(untrained))
alike = random_actions(make_learner(untrained, power=0.0))
print("ladder:  ", *(f"{share:.1%}" for share in apart))
print("one rung:", *(f"{share:.1%}" for share in alike))

# %% [markdown]
# **Notice** that with the ladder the shares fall from nearly a fifth to nearly nothing, and that without it
# all are about the same. They are half of $\varepsilon_i$, because there are two actions: half of the
# random ones are those of the largest value.

# %% tags=["claims"]
assert apart[0] > 0.15 > 0.01 > apart[-1], "nearly a fifth to nearly nothing"
assert alike.max() - alike.min() < 0.1, "about the same"
assert np.allclose(apart, actor_epsilons(8) / 2, atol=0.05), "half of them"
assert np.allclose(alike, 0.4 / 2, atol=0.05), "half of it"

# %% [markdown]
# ## When to use it
#
# Many actors buy time, and only where a step takes time: where the environment waits for something
# outside, or a simulator needs a core of its own. They do not learn more from a step, and the ladder, the
# rollouts and the lag come with them. First priorities
# matter only where about one new step or more arrives for each draw; that number is
# `train_interval / batch_size`. In the runs above it is far smaller, and there `priorities="largest"` does as
# well in the model of the dial.
#
# - **Use it for**: environments that are slow, with an agent that learns from old steps
# - **Rather than**: {doc}`dqn` without actors, which waits for every step; {doc}`impala` if the agent
#   should learn from its own steps only
# - **Costs**: 30,000 steps in 50 seconds instead of 190; of thirty runs sixteen end at 475, without actors eight of ten
# - **First settings**: `actors=4`, `transport="shared"`, `num_steps=5`
# - **Decided by**: [the CartPole that waits](#what-it-buys)

# %% tags=["claims"]
assert 180 < seconds["no actors"] < 200
assert 45 < seconds["4 actors"] < 55
assert apex_settings("CartPole-v1").num_steps == 5

# %% [markdown]
# ## Summary
#
# - Many actors fill a memory faster than the learner can look. If new steps get the largest
#   priority, many leave the memory unseen.
# - So the actor sets first priorities: the learner's own error, with the weights that acted.
# - The environments explore to different degrees, from often to nearly never, and all write to
#   one memory.
# - The learner is DQN, Rainbow or DDPG, unchanged. Slots, tokens and lag are those of {doc}`actors`.
# - An actor that is replaced starts new episodes, so its rings are cut.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "An actor's weights are a few versions old. How wrong can its first priorities make the "
    "memory in the long run?",
    [
        "not at all: the first draw of a step replaces its priority",
        "a step may never be drawn because its first priority was too small",
        "the values become biased, and no importance weight can undo it",
    ],
    right="a step may never be drawn because its first priority was too small",
    because="A step that is drawn gets the learner's error. But a step that its actor found dull "
    "may leave the memory unseen, even if it would surprise the learner by now. The importance "
    "weights are right all the same: they use the priority with which the step was drawn.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# The function should return the first priorities of the steps of one environment, with $n = 1$.
# It gets the rewards, the values of all actions in each state *and in the state after the last
# step*, the actions, and where the task ended. It is right where no episode ends. Fix it.


# %%
def answer(reward, q, action, terminated, gamma=0.9):
    priorities = []
    for t in range(len(reward)):
        target = reward[t] + gamma * max(q[t + 1])
        priorities.append(abs(target - q[t][action[t]]))
    return priorities


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def judged_steps(reward, q, action, terminated, gamma=0.9):
    priorities = []
    for t in range(len(reward)):
        future = 0.0 if terminated[t] else max(q[t + 1])
        priorities.append(abs(reward[t] + gamma * future - q[t][action[t]]))
    return priorities


q = [[1.0, 2.0], [0.5, 0.0], [3.0, 1.0]]
grade(
    answer,
    judged_steps,
    ([1.0, 1.0], q, [0, 1], [False, False]),
    ([1.0, 0.0], q, [1, 0], [True, False]),
)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(reward, q, action, terminated, gamma=0.9):
    # Behind a termination the row belongs to another episode, and nothing is to come.
    priorities = []
    for t in range(len(reward)):
        future = 0.0 if terminated[t] else max(q[t + 1])
        priorities.append(abs(reward[t] + gamma * future - q[t][action[t]]))
    return priorities


grade(
    answer,
    judged_steps,
    ([1.0, 1.0], q, [0, 1], [False, False]),
    ([1.0, 0.0], q, [1, 0], [True, False]),
)

# %% [markdown]
# ### Exercise 3: experiment
#
# Suppose that new steps get the largest priority. How many may arrive for each one that is drawn
# before fewer than 95 % of the surprising ones are seen? Guess first. `found[arriving, judged]`
# has the ages of the first picture, and `seen_by` returns the share. Return the largest of the
# `arrivals` that is still good enough.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def good_enough():
    return max(x for x in arrivals if seen_by(found[x, False]) >= 0.95)


grade(answer, good_enough, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # Somewhat below one: each new step must be drawn about once before any step can be
    # drawn because it is surprising.
    return max(x for x in arrivals if seen_by(found[x, False]) >= 0.95)


grade(answer, good_enough, ())

# %% tags=["claims"]
assert answer() < 1, "below one"

# %% [markdown]
# ## References
#
# Ape-X is from {cite:t}`horgan2018`, prioritised replay from {cite:t}`schaul2016`. Before Ape-X,
# Gorila {cite:p}`nair2015` had many actors and a memory without priorities. R2D2
# {cite:p}`kapturowski2019` has the same parts, for recurrent networks and longer sequences.

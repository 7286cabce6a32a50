# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Actors and learners
#
# **What if collecting and learning do not wait for each other, and what does the delay cost?**
# After this chapter you can let several actors collect for one learner, say how old their data are,
# and trade throughput for freshness. Reading takes about 15 minutes, without exercises. You need
# V-trace ({doc}`off_policy`) and the learner of {doc}`impala`. In the code of this chapter actors
# take turns in one process, so that everything can be repeated. {doc}`processes` gives each of them a
# process of its own.

# %% [markdown]
# ## Seconds and steps
#
# A learner that collects its own data may spend most of its time waiting for a simulator, a game or a
# robot, with nothing else to do. Other processes, called **actors**, can collect at the same time. They act
# with weights that they got a while ago, so their data are always a little old. The **lag** says how old:
# how many unrolls the learner has learned from since those weights left it. In {doc}`impala` it was a
# setting, counted in collections; here it is measured.
#
# Here is IMPALA on a CartPole whose every step takes a millisecond longer. Without actors it
# collects an unroll, learns from it, and collects the next. In the other runs one, two or four
# actors collect for it, each in a process of its own. Each actor may have two unrolls under way,
# on the dashed line only one: a *slot* has room for one. All runs take 100,000 steps and the same
# number of updates. Each line is the mean of ten seeds, first against the clock, then
# against steps. The machine was busy, so the clock is that of the fastest run of each kind.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Return while training, twice. Against seconds, four actors are through in 33 seconds, two in 60, one in 130, and without actors it takes 138. Against steps the order is another: four actors with two slots each learn most slowly, the others lie close together"}}
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

from literate_rl.runs.runs import stored_runs

runs = stored_runs("impala_waiting")
looks = {
    "no actors": ("no actors", "C7-"),
    "1 actor, 2 slots": ("1 actor", "C0-"),
    "2 actors, 2 slots": ("2 actors", "C1-"),
    "4 actors, 2 slots": ("4 actors", "C3-"),
    "4 actors, 1 slot": ("4 actors, one slot", "C3--"),
}
seconds = {key: runs[key].judged["seconds"].min() for key in looks}
fig, axes = plt.subplots(1, 2, figsize=(7, 3), sharey=True)
for key, (name, look) in looks.items():
    steps, mean = runs[key].steps, runs[key].curves.mean(0)
    axes[0].plot(steps / steps[-1] * seconds[key], mean, look, label=name)
    axes[1].plot(steps / 1000, mean, look, label=name)
axes[0].set(xlabel="seconds", ylabel="return while training")
axes[1].set(xlabel="thousand steps")
axes[1].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** the clock first. Nearly all of the time is waiting, so two actors take half as long
# as one, and four a quarter. One actor saves only the few percent that learning takes, because it
# collects while the learner learns.
#
# **Notice** then, against steps, that the oldest data teach least. The mean return of the learner
# alone, over its whole training, is 276. Four actors with two slots each have a lag of 7, and that costs 105
# of it (57 to 152). Four actors that may have only one unroll under way have a lag of 3,
# and their return is 75 higher. For lags of 1 and 3 ten seeds show no difference from the learner alone.
#
# With one unroll each, the mean return of four actors stays above 250 from 20 seconds on, that of the
# learner alone from 72: 3.6 times as soon. By the clock alone it would be 4.2 times. So most of the time
# that actors save is kept, and perhaps a little is paid back in steps. That is the trade of this chapter,
# throughput for freshness.

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference

assert min(len(run.area) for run in runs.values()) == 10, "ten seeds"
alone, one, two, four, single = seconds.values()
assert 1.9 < one / two < 2.3, "two take half as long as one"
assert 3.7 < one / four < 4.3, "four take a quarter"
assert 1.03 < alone / one < 1.1, "one saves a few percent"
lags = [round(runs[key].judged["lag"].mean()) for key in looks]
assert lags == [0, 1, 3, 7, 3]
assert min(runs, key=lambda key: runs[key].area.mean()) == "4 actors, 2 slots"
young = runs["4 actors, 1 slot"].area
gain = paired_difference(young, runs["4 actors, 2 slots"].area)
assert round(gain.mean) == 75
assert gain.low > 0
assert round(runs["no actors"].area.mean()) == 276
cost = {
    key: paired_difference(runs["no actors"].area, runs[key].area)
    for key in list(looks)[1:]
}
oldest = cost.pop("4 actors, 2 slots")
assert [round(x) for x in (oldest.mean, oldest.low, oldest.high)] == [105, 57, 152]
assert all(x.low < 0 < x.high for x in cost.values()), "ten seeds show no difference"


def stays_above(key, seconds):
    """Return the second from which the mean return stays above 250."""
    below = np.flatnonzero(runs[key].curves.mean(0) < 250)
    return seconds * runs[key].steps[below[-1] + 1] / 100_000


above = [stays_above(key, seconds[key]) for key in ("no actors", "4 actors, 1 slot")]
assert [round(x) for x in above] == [72, 20], "stays above 250 from then on"
assert (round(above[0] / above[1], 1), round(alone / single, 1)) == (3.6, 4.2)

# %% [markdown]
# ## Slots and tokens
#
# An actor has environments and a copy of the policy. It acts for $T$ steps and writes down
# what happened: an **unroll**. The learner learns from one unroll after another. Between
# them lies memory that both can see, cut into **slots**. A slot has two parts: the learner
# writes weights into one, the actor writes an unroll into the other.
#
# At any time a slot belongs to one side only. It changes hands with a **token**, which is no more
# than the slot's number. That is the whole protocol:
#
# 1. The learner writes its weights into a slot and sends the slot's token to the actor.
# 2. The actor copies the weights, acts, writes the unroll and sends the token back.
# 3. The learner learns from the unroll. Now the slot is free, and step 1 follows.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "Actors, slots and the learner",
    "Two actors on the left, the learner on the right, and two slots of memory for each "
    "actor between them. A slot holds weights and an unroll. Only the side that has its "
    "token touches it: each actor has the token of its first slot, reads the weights "
    "and writes an unroll. The learner has those of the second slots, reads the unrolls "
    "and writes the weights.",
)
learner = picture.box(396, 144, "learner", width=80, height=240)
for number, y in enumerate((84, 224)):
    actor = picture.box(44, y, f"actor {number + 1}", width=80, height=100)
    for row, holder in ((y - 28, "actor"), (y + 28, "learner")):
        picture.cells(176, row, ["weights", "unroll"], width=74)
        for side, left, right in (("actor", 84, 139), ("learner", 291, 356)):
            look = ("accent", "") if side == holder else ("quiet", "dashed")
            picture.arrow(
                (left, row), (right, row), "", look[0], kind=look[1], head=False
            )
            if side == holder:
                picture.path(f"M{(left + right) / 2},{row}h0", "accent", "token")
picture.text(213, 8, "slots", "quiet")
picture.text(220, 292, "● a token: its holder may touch the slot", "accent")
picture

# %% [markdown]
# **Notice** that neither side ever waits for a *lock*, which only one can hold at a time, and that an
# actor with two slots need not wait for the learner: while the learner has one slot, it fills the other.
# What could go wrong?
#
# | what could happen | why it does not |
# |---|---|
# | the learner reads half an unroll | the token is sent after the last number, and nobody looks without it |
# | an actor reads half of the new weights | they are written into its own slot while the learner has the token |
# | the learner is slow | no tokens are left, so the actors wait; memory never grows |
#
# What if an actor dies? That is a question for {doc}`processes`.
#
# ## The lag
#
# Count the unrolls that the learner has learned from, and call that number the **version** of its
# weights. When the learner gets to an unroll, its weights are newer than those that produced it. The
# difference is the **lag**,
#
# $$
# d = \text{version of the learner} - \text{version of the unroll} .
# $$ (policy-lag)
#
# With $n_A$ actors of $n_S$ slots each, $n_A n_S$ unrolls are under way. If all actors are
# equally fast, the learner uses each of the other slots once while one slot makes its round trip,
# so after the first round
#
# $$
# d = n_A n_S - 1 .
# $$ (lag-of-turns)
#
# V-trace corrects for it as long as the old policy is not too far away, at the
# price that {doc}`impala` measured.
#
# How many slots should an actor have? With one it waits while the learner learns. With two it fills one
# slot while the learner has the other. More only help if the time that an unroll takes varies, and every
# slot makes the data older. With several actors one slot each is a better start: while one of them waits,
# the others work. The default is two.
#
# ## One round by hand
#
# Here is the protocol once, for one actor with one slot. `SharedMemory` of {doc}`processes` does the
# same with memory that two processes see.

# %%
from functools import partial

import torch

from literate_rl.actors.actors import Actor, ActorLearner, fill, slot_layout, weights_of
from literate_rl.actors.actors import actors_settings
from literate_rl.data.agents import make_envs
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import flat_env

torch.manual_seed(1)
build = partial(make_envs, partial(flat_env, "CartPole-v1"), 8)
envs = build()
policy = make_policy(envs.single_observation_space, envs.single_action_space)
settings = replace(actors_settings("CartPole-v1"), actors=1, num_envs=8)
learner = ActorLearner(policy, build, settings)

slot = np.zeros((), slot_layout(policy, envs, num_steps=32))
fill(slot["weights"], weights_of(policy))  # 1. the learner writes its weights
actor = Actor(build, policy, seed=1)
actor.work(slot["weights"], slot["result"])  # 2. the actor acts and writes the unroll
losses = learner.learn(slot["result"])  # 3. the learner learns from it
print(f"weights: {slot['weights'].nbytes} bytes, unroll: {slot['result'].nbytes} bytes")
print(f"total loss {losses['losses/total_loss']:.3f}")
ended = slot["result"]["episode_return"]
print("returns of episodes that ended:", ended[~np.isnan(ended)])

# %% [markdown]
# In the package all of this is {doc}`actors/actors`. An actor knows nothing of tokens, processes or
# learners. It gets weights and a place to write to, and this is all that it does:

# %%
from literate_rl.apps.programs import source

source(Actor.work)

# %% [markdown]
# ## Traps
#
# ### Trap: a queue without a bound
#
# An actor takes 1 second for an unroll, the learner 2. A queue without a bound accepts
# everything, and nothing fails. But it grows for as long as the run lasts, and so do the memory
# that it takes and the age of what is learned from.

# %%
waiting = {}
for bound in (None, 2):
    learned, queue = 0, []
    for second in range(1, 601):
        if bound is None or len(queue) < bound:
            queue.append(learned)  # made with the weights of this version
        if second % 2 == 0:
            lag = learned - queue.pop(0)
            learned += 1
    waiting[bound] = len(queue), lag
    print(f"bound {bound}: {len(queue)} unrolls in the queue, last lag {lag}")

# %% tags=["claims"]
length, age = waiting[None]
assert length > 250, "it grows"
assert age > 100, "and with it the age"
assert max(waiting[2]) <= 2, "a bound holds both"

# %% [markdown]
# ## When to use it
#
# Actors pay where acting takes most of the time. Each unroll under way makes the data older, so take no
# more than keep the learner busy: from two actors on, begin with one slot each.
# A second slot is for a single actor, or where learning takes about as long as acting.
#
# - **Use it for**: environments that wait for something, or need a processor of their own
# - **Rather than**: {doc}`impala` in one process, if its learner mostly waits
# - **Costs**: 33 seconds instead of 138 for 100,000 steps (the fastest of ten runs), and 30 of a mean
#   return of 276 (−4 to 63)
# - **First settings**: `actors=4`, `slots=1`, `transport="shared"`: actors in processes of their own
# - **Decided by**: the runs of [seconds and steps](#seconds-and-steps)

# %% tags=["claims"]
assert (round(single), round(alone)) == (33, 138)
assert actors_settings("CartPole-v1").slots == 2, "the default"
few = cost["4 actors, 1 slot"]
assert [round(x) for x in (few.mean, few.low, few.high)] == [30, -4, 63]

# %% [markdown]
# ## Summary
#
# - Actors pay where collecting is slow: with four of them a run took about a quarter of the time
#   that one took.
# - The price is the lag. In turns it is the number of unrolls under way, less one.
# - A slot belongs to one side at a time. A token hands it over, so nothing is half read, and
#   memory is bounded.
# - An actor gets weights and gives an unroll. It knows nothing of the learner, so it can run
#   anywhere.
# - Actors that take turns in one process give runs that can be repeated.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "Three actors have two slots each. An unroll always takes an actor 1 second, and an update "
    "takes the learner 0.1 seconds. Now each actor gets four slots. What changes?",
    [
        "more unrolls in a second, the same lag",
        "as many unrolls in a second, and the lag grows from 5 to 11",
        "nothing",
    ],
    right="as many unrolls in a second, and the lag grows from 5 to 11",
    because="The actors are busy all the time with two slots already, and with one they would "
    "wait a tenth of a second for each unroll. More slots only mean that weights lie in them "
    "for longer before they are used.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# The function gets what happened to a learner's slots: `("go", slot)` when a slot was given away,
# `("learned", slot)` when the learner had learned from its unroll. It is meant to return the lag
# {eq}`policy-lag` of each unroll. But with a single slot, where the data are on-policy, it does
# not say 0. Fix it.


# %%
def answer(events):
    version, sent, lags = 0, {}, []
    for kind, slot in events:
        if kind == "go":
            sent[slot] = version
        else:
            version += 1
            lags.append(version - sent[slot])
    return lags


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def lags_of(events):
    version, sent, lags = 0, {}, []
    for kind, slot in events:
        if kind == "go":
            sent[slot] = version
        else:
            lags.append(version - sent[slot])
            version += 1
    return lags


one_slot = [("go", 0), ("learned", 0), ("go", 0), ("learned", 0)]
two_slots = [("go", 0), ("go", 1), ("learned", 0), ("go", 0), ("learned", 1)]
grade(answer, lags_of, (one_slot,), (two_slots,))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(events):
    # The unroll is new to the learner, so it does not count itself. The version rises after the
    # difference is taken.
    version, sent, lags = 0, {}, []
    for kind, slot in events:
        if kind == "go":
            sent[slot] = version
        else:
            lags.append(version - sent[slot])
            version += 1
    return lags


grade(answer, lags_of, (one_slot,), (two_slots,))

# %% [markdown]
# ### Exercise 3: experiment
#
# Do more than two slots ever help? `pace(slots)` follows the tokens of one actor, without running
# it, and returns how many unrolls are learned from in a second. An update takes 1 second. An
# unroll takes half a second, but every tenth one takes 4. How many slots does the actor need for
# 98 percent of the pace that it has with 20? Guess first, then let `answer` return the smallest
# such number.

# %%
from collections import deque


def pace(slots, num_unrolls=3000):
    free = deque([0.0] * slots)  # when each token is back at the actor
    actor = learner = 0.0
    for number in range(num_unrolls):
        actor = max(actor, free.popleft()) + (4.0 if number % 10 == 9 else 0.5)
        learner = max(learner, actor) + 1.0
        free.append(learner)
    return num_unrolls / learner


def answer():
    return ...


# %% tags=["hide-input"]
def enough_slots():
    return min(slots for slots in range(1, 21) if pace(slots) >= 0.98 * pace(20))


grade(answer, enough_slots, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # While the slow unroll is made, the learner lives on those that wait already.
    return next(slots for slots in range(1, 21) if pace(slots) >= 0.98 * pace(20))


grade(answer, enough_slots, ())

# %% tags=["claims"]
assert answer() > 2, "where the time varies, more slots help"

# %% [markdown]
# ## References
#
# Actors and a learner with V-trace are from {cite:t}`espeholt2018`; {cite:t}`kuttler2019` wrote
# them in PyTorch. RLlib, which is built on Ray, is from {cite:t}`liang2018`, Acme from
# {cite:t}`hoffman2020`.

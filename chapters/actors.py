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
# and trade throughput for freshness. Reading takes about 35 minutes, without exercises. You need
# V-trace ({doc}`off_policy`) and the learner of {doc}`impala`. In the code of this chapter actors
# take turns in one process, so that everything can be repeated. {doc}`processes` gives each of them a
# process of its own.

# %% tags=["export", "hide-input"]
"""Actors that collect for one learner, and the lag of what they collect."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from literate_rl.data.agents import Collector, Rollout
from literate_rl.data.episodes import (
    check_num_envs,
    env_seed,
    mean_return,
    warn_cut_off,
)
from literate_rl.ground.interrupts import StopWaiting
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Act,
    ActorCriticLike,
    Envs,
    Kept,
    PolicyLike,
    Stateful,
)
from literate_rl.ground.rows import ANY, Row, actor_critic, register
from literate_rl.ground.signatures import Count, Positive, check_that, checked
from literate_rl.learners.impala import (
    IMPALA,
    IMPALAConfig,
    Unroll,
    VTraceLearner,
    impala_settings,
    to_unroll,
)
from literate_rl.nets.policies import kept_dtype, take_in

__all__ = [
    "Actor",
    "ActorLearner",
    "ActorsConfig",
    "Census",
    "InProcess",
    "RemoteLearner",
    "Transport",
    "TransportConfig",
    "actors_settings",
    "slot_layout",
]

# %% [markdown]
# ## Seconds and steps
#
# A learner that collects its own data may spend most of its time waiting for a simulator, a game
# or a robot, with nothing else to do. Other processes, called **actors**, can collect at the same
# time. They act with weights that they got a while ago, so their data are always a little old.
# The **lag** says how old: how many unrolls the learner has learned from since those weights left
# it. In {doc}`impala` it was a setting; here it is measured.
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
# With one unroll each, the mean return of four actors stays above 250 from 20 seconds on, that of
# the learner alone from 72: 3.6 times as soon. By the clock alone it would be 4.2 times. So most of
# the time that actors save is kept, and a little is paid back in steps. That is the trade of this
# chapter, throughput for freshness.

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
# How many slots should an actor have? With one it waits while the learner learns. With two it
# fills one slot while the learner has the other. More only help if the time that an unroll
# takes varies, and every slot makes the data older. With several actors one slot each is a better
# start, though the default is two: while one of them waits, the others work.
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
# ## Line by line
#
# The settings are those of {doc}`impala` and five more. There
# is no replay: each unroll is learned from as it arrives, `update_per_collect` times, and then
# its slot is free. The `deadline` says how long is too long for an unroll. Its five minutes are
# plenty, because an actor that is only slow must not be taken for one that hangs.


# %% tags=["export", "hide-input"]
@checked
@dataclass(frozen=True)
class TransportConfig:
    """Settings of the actors of any learner.

    At a checkpoint environments are reset only where actors take turns. There an
    episode never ends if it is longer than an actor's share of the steps in between.

    Attributes:
        actors: Number of actors, each with environments of its own, or none for the
            loop without actors.
        transport: Where the actors are: in_process, one after the other; shared, in
            processes of their own; or ray, on a cluster.
        slots: Unrolls that an actor may have under way.
        deadline: Seconds that an actor may take to send something. After that it counts
            as hanging and is replaced, except in_process, where nobody could.
        address: Address of the Ray cluster to join, HOST:PORT, or none to start one
            here.
    """

    actors: Count | None = None
    transport: Literal["in_process", "shared", "ray"] = "in_process"
    slots: Count = 2
    deadline: Positive = 300.0
    address: str | None = None

    def __post_init__(self) -> None:
        alone, where = self.address is None, self.transport
        check_that(
            alone or where == "ray", f"transport must be ray for address {self.address}"
        )
        here = self.actors is not None or where == "in_process"
        check_that(here, f"actors must be given for transport {where}")


@checked
@dataclass(frozen=True)
class ActorsConfig(TransportConfig, IMPALAConfig):
    """Settings of IMPALA with actors.

    ``update_per_collect`` updates are taken on each unroll of each actor. There is no
    replay, so ``batch_size`` and the settings of the buffer play no role.

    Attributes:
        share_encoder: Whether policy and value share an encoder. The policy has to be
            built so, as ``train`` does.
    """

    share_encoder: bool = False

    def __post_init__(self) -> None:
        IMPALAConfig.__post_init__(self)
        TransportConfig.__post_init__(self)
        other = self.priority or self.lag or self.on_policy
        words = "priority, lag and on_policy must be off with actors"
        check_that(self.actors is None or not other, words)


def actors_settings(env: str) -> ActorsConfig:
    """Return IMPALA's settings for the id of an environment, without actors."""
    return ActorsConfig(**asdict(impala_settings(env)))


# %% [markdown]
# ### A slot
#
# A slot has a fixed size and a named place for each array: NumPy calls that a record, and its
# layout a *structured* dtype. A view of a field costs nothing, so the learner learns from an
# unroll where it lies.

# %% tags=["export", "hide-input"]
Weights = Mapping[str, Any]  # arrays by the names of the policy's `state_dict`


def weights_of(policy: PolicyLike) -> dict[str, NDArray[Any]]:
    """Return a policy's weights as arrays; on the CPU they share its memory."""
    return {name: x.cpu().numpy() for name, x in policy.state_dict().items()}


def one_step(policy: PolicyLike, envs: Envs, dtype: Any) -> Rollout:
    """Take a greedy step, to see what the rollouts of a policy look like."""
    collector = Collector(envs, policy.to_env, dtype)
    device = next(policy.parameters()).device
    collector.reset(0)
    with eval_mode(policy):
        return collector.collect(
            lambda obs, **mask: policy.act(obs.float().to(device), 0.0, **mask), 1
        )


def fields_of(example: Any, num_steps: int) -> list[Any]:
    """Return the fields of a record for what has one step in an example."""
    # An example may have a row behind its last step, and so has the record.
    return [
        (name, x.cpu().numpy().dtype, (num_steps + len(x) - 1, *x.shape[1:]))
        for name, x in example._asdict().items()
        if x is not None
    ]


def layout_of(
    policy: PolicyLike, result: list[Any], *more: tuple[str, Any]
) -> np.dtype[np.void]:
    """Describe a slot: a policy's weights and ``more`` on the way, a result back."""
    weights = [(name, x.dtype, x.shape) for name, x in weights_of(policy).items()]
    return np.dtype([("weights", [*weights, *more]), ("result", result)], align=True)


@checked
def slot_layout(policy: PolicyLike, envs: Envs, num_steps: Count) -> np.dtype[np.void]:
    """Describe the memory of one slot, a record with ``weights`` and ``result``.

    The result is an unroll: it has a field for each of ``Unroll``, and
    ``episode_return``, which is NaN where no episode ended. ``envs`` are those of one
    actor, and are reset.
    """
    one = one_step(policy, envs, kept_dtype(policy, envs))
    unroll = to_unroll(one.to(next(policy.parameters()).device), policy)
    ended = ("episode_return", np.float32, (num_steps, envs.num_envs))
    return layout_of(policy, [*fields_of(unroll, num_steps), ended])


# %% [markdown]
# ### The actor
#
# The actor is the same wherever it runs. It gets weights and a place to write to, and knows
# nothing of tokens, processes or learners. To act it needs only the action. V-trace also
# needs the log-probability of each action. The weights stay the same for a whole unroll, so all
# log-probabilities are computed at once, at its end.

# %% tags=["export"]
MakeAct = Callable[[PolicyLike], Act]
# An actor keeps the kind of policy that it is given.
AnyPolicy = TypeVar("AnyPolicy", bound=PolicyLike)


class Actor(Generic[AnyPolicy]):
    """Acts for one unroll at a time, with weights that it is given.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy on the CPU, which is copied.
        seed: Decides the noise and the environments' random numbers.
        make_act: Makes a faster form of the policy's ``act``, or None for its own.
    """

    @checked
    def __init__(
        self,
        make_envs: Callable[[], Envs],
        policy: AnyPolicy,
        seed: int,
        make_act: MakeAct | None = None,
    ) -> None:
        self.policy, envs = copy.deepcopy(policy).eval(), make_envs()
        self.weights = weights_of(self.policy)
        self.act = make_act(self.policy) if make_act else self.policy.act
        self.generator = torch.Generator().manual_seed(seed)
        self.collector = Collector(envs, policy.to_env, kept_dtype(policy, envs))
        self.collector.reset(env_seed(seed, 0))

    def work(self, weights: Weights, out: Any) -> None:
        """Act for one unroll with these weights, and write it to ``out``."""
        num_steps, room = len(out["reward"]), out["next_obs"].shape[1:]
        seen = np.shape(self.collector.obs)
        check_that(seen == room, f"make_envs must make observations {room}, got {seen}")
        batch = self.collect(weights, num_steps)

        # The log-probabilities are computed now, for all steps at once. Environments
        # that reset a step late add rows that never happened; their weight is 0.
        for name, x in to_unroll(batch, self.policy)._asdict().items():
            if x is not None:
                out[name] = x.numpy()
        out["episode_return"] = batch.episode_return.numpy()

    def collect(self, weights: Weights, num_steps: int) -> Rollout:
        """Act for some steps with these weights; return what happened."""
        # One version of the weights for all steps. The arrays are the policy's memory.
        for name, array in self.weights.items():
            array[...] = weights[name]
        # The noise of all steps is drawn at once; each step takes the next.
        num_envs = self.collector.envs.num_envs
        noise = iter(self.policy.noise(num_steps, num_envs, self.generator))
        return self.collector.collect(
            lambda obs, **mask: self.act(obs, next(noise), **mask), num_steps
        )

    def close(self) -> None:
        """Close the environments."""
        self.collector.envs.close()


# %% [markdown]
# ### Transports
#
# A **transport** carries slots to the actors and back. To the learner all transports look alike: `submit`
# gives a slot to its actor, `receive` waits for a whole unroll, and a census counts who is at work.

# %% tags=["export", "hide-input"]
Slot = tuple[int, int]  # number of the actor, and of the slot among its slots


class Census:
    """Who is at work.

    Attributes:
        unrolls: Unrolls that each actor has delivered in its present life.
        lives: Unrolls that each delivered in each of its lives before.
        replaced: Actors that died or hung and were replaced.
    """

    def __init__(self, actors: int, seed: int) -> None:
        self.unrolls: list[int] = [0] * actors
        self.lives: list[list[int]] = [[] for _ in range(actors)]
        self.replaced = 0
        self.seeds = np.random.SeedSequence(seed)

    def new_seed(self) -> int:
        """Return a seed for the next life of an actor, unrelated to all others."""
        return int(self.seeds.spawn(1)[0].generate_state(1)[0])

    @property
    def at_work(self) -> int:
        """Actors that have delivered an unroll in their present life."""
        return sum(unrolls > 0 for unrolls in self.unrolls)


class Transport(Protocol):
    """What the learner asks of a transport."""

    census: Census

    @property
    def waiting(self) -> int:
        """Whole unrolls that wait for the learner."""

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Give a slot to its actor, with a copy of these weights."""

    def receive(self) -> tuple[Slot, Any]:
        """Wait for a whole unroll; it may be read until its slot is submitted."""

    def close(self) -> None:
        """End all actors. May be called twice."""


class Worker(Protocol):
    """What a transport asks of an actor."""

    collector: Collector

    def work(self, weights: Weights, out: Any) -> None:
        """Work with these weights, and write the result to ``out``."""

    def close(self) -> None:
        """Close the environments."""


MakeActor = Callable[[int], Worker]  # from a seed
# From a way to make actors, a slot's layout, a seed, how many actors and slots, and the
# deadline.
MakeTransport = Callable[
    [MakeActor, "np.dtype[np.void]", int, int, int, float], Transport
]


# %% [markdown]
# The simplest transport needs no other processes. An unroll is made when the learner asks for it,
# with the weights that its slot was given. Those are as old as they would be in a real system,
# and the same seed gives the same run, so this is the transport for experiments and for
# debugging.


# %% tags=["export"]
class InProcess:
    """Actors that take turns in this process.

    Args:
        make_actor: Function from a seed to an ``Actor``.
        layout: What ``slot_layout`` returned.
        seed: Decides the seeds of the actors.
        actors: Number of actors.
        slots: Slots of each of them.
        deadline: Plays no role: if an actor hangs, so does the learner.
    """

    waiting = 0

    def __init__(
        self,
        make_actor: MakeActor,
        layout: np.dtype[np.void],
        seed: int,
        actors: int,
        slots: int,
        deadline: float = 300.0,
    ) -> None:
        self.census = Census(actors, seed)
        self.actors = [make_actor(self.census.new_seed()) for _ in range(actors)]
        self.memory = np.zeros((actors, slots), layout)
        self.tasks: deque[Slot] = deque()

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Write the weights into the slot and put it at the end of the line."""
        fill(self.memory[slot]["weights"], weights)
        self.tasks.append(slot)

    def receive(self) -> tuple[Slot, Any]:
        """Let the actor act whose slot is first in line."""
        # First come, first served: this gives {eq}`lag-of-turns`.
        slot = self.tasks.popleft()
        memory = self.memory[slot]
        self.actors[slot[0]].work(memory["weights"], memory["result"])
        self.census.unrolls[slot[0]] += 1
        return slot, memory["result"]

    def close(self) -> None:
        """Close the environments."""
        for actor in self.actors:
            actor.close()


def fill(part: Any, weights: Weights) -> None:
    """Copy weights into their part of a slot."""
    for name, array in weights.items():
        part[name] = array


# %% [markdown]
# ### The learner
#
# Everything on the learner's side of the protocol is in `iterate`. What the learner does with an
# unroll is left to a method `learn`: in {doc}`a3c` actors
# send gradients, and the rest stays as it is here. The other methods are what `fit` asks of any
# learner. The transport starts with the first iteration, so that a learner
# that was restored from a checkpoint hands out the right weights.


# %% tags=["export"]
class RemoteLearner(Kept):
    """Learns from what actors send, one slot at a time.

    Use it as a context manager, or call ``close``, so that the actors end.

    Args:
        policy: The policy to train, on any device.
        config: The settings, with those of ``TransportConfig`` among them.
        seed: Decides the seeds of the actors.
        checkpoint_interval: Iterations between checkpoints.
        transport: Makes the transport, or None for ``InProcess``.

    Attributes:
        make_actor: Makes an actor, from a seed.
        layout: The memory of one slot.
        learner: Has what a checkpoint keeps.
        learn: Learns from a result, counts ``step`` and returns metrics.
    """

    kept = ("step", "version", "learner")
    make_actor: MakeActor
    layout: np.dtype[np.void]
    learner: Stateful
    learn: Callable[[Any], dict[str, float]]

    def __init__(
        self,
        policy: PolicyLike,
        config: TransportConfig,
        seed: int,
        checkpoint_interval: int,
        transport: MakeTransport | None,
    ) -> None:
        self.actors, where = config.actors or 0, config.transport
        check_that(self.actors > 0, "config.actors must be at least 1, got None")
        ray = "literate_rl.interfaces.cluster.RayActors"
        others = f"literate_rl.actors.processes.SharedMemory or {ray}"
        fits = transport is not None or where == "in_process"
        check_that(fits, f"transport {where}: pass {others}")
        self.make_transport = transport or InProcess
        self.policy, self.config, self.seed = policy, config, seed
        self.checkpoint_interval = checkpoint_interval
        self.transport: Transport | None = None
        self.versions: dict[Slot, int] = {}
        self.step = self.version = 0
        self.warned = False

    def start(self) -> Transport:
        """Start the actors and hand out all slots, to the actors in turns."""
        config = self.config
        # A resumed run has another step, and so other seeds.
        seed = env_seed(self.seed, self.step)
        transport = self.make_transport(
            self.make_actor,
            self.layout,
            seed,
            self.actors,
            config.slots,
            config.deadline,
        )
        self.transport = transport
        for index in range(config.slots):
            for actor in range(self.actors):
                self.submit(transport, (actor, index))
        return transport

    def submit(self, transport: Transport, slot: Slot) -> None:
        """Give a slot away, with the weights as they are now."""
        self.versions[slot] = self.version
        transport.submit(slot, weights_of(self.policy))

    def iterate(self) -> dict[str, float]:
        """Wait for a result, learn from it, and return metrics.

        If anything goes wrong, the actors are ended; the next call starts new ones.
        """
        transport = self.transport or self.start()
        try:
            slot, result = transport.receive()
            metrics = self.learn(result)
            # The lag {eq}`policy-lag`: versions since the slot was given away.
            lag = self.version - self.versions[slot]
            self.version += 1
            # From here on the slot belongs to its actor, who may write to it.
            # Everything that is read of it has been read by now.
            self.submit(transport, slot)
            # A run that is resumed starts with fresh actors. Where actors take turns, a
            # run that continues does so too, and both are the same run.
            if self.make_transport is InProcess and self.checkpoint_due:
                took_turns = [x.collector for x in cast(InProcess, transport).actors]
                self.warned = self.warned or warn_cut_off(*took_turns)
                self.close()
        except StopWaiting:
            raise  # Ctrl-C: nothing has come, and nothing is lost
        except BaseException:
            # This slot would never be given away again.
            self.close()
            raise
        return {
            **metrics,
            "charts/lag": lag,
            "charts/queue": transport.waiting,
            "charts/actors": transport.census.at_work,
            "charts/replaced": transport.census.replaced,
        }

    def close(self) -> None:
        """End the actors; the next iteration would start new ones."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def checkpoint_due(self) -> bool:
        """Whether the run is to be saved before the next iteration."""
        return self.version % self.checkpoint_interval == 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned, with fresh actors."""
        super().load_state_dict(state)
        self.close()


# %% [markdown]
# IMPALA's learner takes its updates on each unroll as it arrives.


# %% tags=["export"]
class ActorLearner(RemoteLearner):
    """Learns from the unrolls of actors, with V-trace.

    Args:
        policy: The policy to train, on any device.
        make_envs: Makes the ``config.num_envs`` environments of one actor.
        config: The settings.
        transport: As for ``RemoteLearner``.
        make_act: As for ``Actor``.
    """

    config: ActorsConfig
    learner: VTraceLearner

    @checked
    def __init__(
        self,
        policy: ActorCriticLike,
        make_envs: Callable[[], Envs],
        config: ActorsConfig,
        transport: MakeTransport | None = None,
        make_act: MakeAct | None = None,
    ) -> None:
        settings = config, config.seed, config.checkpoint_interval
        super().__init__(policy, *settings, transport)
        # Environments are made once here, to see what they are like.
        envs = make_envs()
        check_num_envs(envs, config.num_envs)
        self.layout = slot_layout(policy, envs, config.num_steps)
        envs.close()
        # The recipe of an actor: what is missing is the seed.
        acting = copy.deepcopy(policy).cpu()
        self.make_actor = partial(Actor, make_envs, acting, make_act=make_act)
        self.learner = VTraceLearner(policy, config)

    def learn(self, result: Any) -> dict[str, float]:
        """Take the updates on an unroll; return metrics."""
        # Views of the slot's memory; only on a GPU are they copies.
        device = self.learner.parameters[0].device
        known = self.layout["result"].names or ()
        there = [name for name in Unroll._fields if name in known]
        unroll = Unroll(*(torch.from_numpy(result[name]).to(device) for name in there))
        self.learner.anneal(self.step)
        for _ in range(self.config.update_per_collect):
            losses = self.learner.learn(unroll)
        take_in(self.learner.normalizer, unroll.obs_plus_1[:-1], unroll.weight > 0)
        self.step += result["reward"].size
        mean = mean_return(torch.from_numpy(result["episode_return"]))
        named = {f"losses/{name}": number for name, number in losses.items()}
        return {"charts/episodic_return": mean, **named}


# %% [markdown]
# What `train` knows of IMPALA, with and without actors:

# %% tags=["export", "hide-input"]
ROW = register(
    Row(
        "IMPALA",
        "many actors that do not wait",
        ANY,
        ActorsConfig,
        actor_critic,
        IMPALA,
        ActorLearner,
        settings=actors_settings,
        contract="ppo",
        chapter="impala",
    )
)

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
# - **First settings**: `actors=4`, `slots=1`, `transport="shared"`
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

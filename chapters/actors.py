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
# **How do you collect data faster than one process can, and what does the delay cost?**
# After this chapter you can let several processes collect for one learner, say how old
# their data are, and explain why a process that is killed does no harm. It takes about
# 30 minutes. You need V-trace ({doc}`off_policy`) and the learner of {doc}`impala`.

# %% tags=["export", "hide-input"]
"""Actors that collect for one learner, in turns or in processes of their own."""

from __future__ import annotations

import copy
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from literate_rl.agents import Collector, Rollout
from literate_rl.impala import (
    IMPALAConfig,
    Unroll,
    VTraceLearner,
    impala_settings,
    to_unroll,
)
from literate_rl.workshop.fast import numpy_act
from literate_rl.workshop.runs import env_seed
from literate_rl.workshop.signatures import Count, checked

__all__ = [
    "Actor",
    "ActorLearner",
    "ActorProcess",
    "ActorsConfig",
    "Census",
    "InProcess",
    "RemoteLearner",
    "SharedMemory",
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
# The **lag** says how old: it counts the unrolls that the learner has learned from since the
# weights left it. (In {doc}`impala` `lag` was a setting that imitated this; here it is measured,
# and the setting is off.)
#
# Here is IMPALA on a CartPole whose every step takes a millisecond longer. Without actors it
# collects an unroll, learns from it, and collects the next. In the other runs one, two or four
# actors collect for it. Each actor may have two unrolls under way, on the dashed line only one.
# All runs take 100,000 steps and the same number of updates. Each line is the mean of ten seeds,
# on the left against the clock and on the right against steps. Other programs ran on the machine,
# so the clock is that of the fastest run of each kind.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Return while training, twice. Against seconds, four actors are through in 33 seconds, two in 60, one in 130, and without actors it takes 138. Against steps the order is another: four actors with two slots each learn most slowly, the others lie close together"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.workshop.runs import stored_runs

runs = stored_runs("impala_waiting")
looks = {
    "no actors": ("no actors", "C7-"),
    "1 actor, 2 slots": ("1 actor", "C0-"),
    "2 actors, 2 slots": ("2 actors", "C1-"),
    "4 actors, 2 slots": ("4 actors", "C3-"),
    "4 actors, 1 slot": ("4 actors, one slot", "C3--"),
}
# Other programs ran on the machine, so the fastest run of each kind says most.
seconds = {key: runs[key].judged["seconds"].min() for key in looks}
fig, axes = plt.subplots(1, 2, figsize=(7, 3), sharey=True)
for key, (name, look) in looks.items():
    steps, mean = runs[key].steps, runs[key].curves.mean(0)
    axes[0].plot(steps / steps[-1] * seconds[key], mean, look, label=name)
    axes[1].plot(steps / 1000, mean, look, label=name)
    lag = runs[key].judged["lag"].mean()
    print(f"{name:20s}{seconds[key]:4.0f} seconds, lag {lag:.1f}")
axes[0].set(xlabel="seconds", ylabel="return while training")
axes[1].set(xlabel="thousand steps")
axes[1].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** the clock first. Nearly all of the time is waiting, so two actors take half as long
# as one, and four a quarter. One actor saves only the few percent that learning takes, because it
# collects while the learner learns. (The processor is an AMD EPYC with two cores; look at the
# ratios, not at the seconds.)
#
# **Notice** then that no step teaches more than before, and that the oldest data teach least.
# (All runs use V-trace. In {doc}`impala` a long lag slowed V-trace down, and uncorrected runs not
# visibly, so part of this price may be that of the correction.) Four actors have a lag of 7 and
# learn the least from their 100,000 steps. With only *one slot* for each actor, which is what the
# next section is about, they take a few percent longer, and the lag is 3. Their return while
# training is higher by 75 (32 to 117, the t interval of the paired differences over ten seeds).
# Two actors with two slots each also have a lag of 3, and no difference is seen between them and
# four actors with one slot. The mean return of four actors with one slot first reaches 250 after
# 12 seconds, that of the learner alone after
# 72. That is the trade of this chapter: more data in a second, or younger data.
#
# All runs share their settings, which were chosen among nine on seeds 100 to 102. `python -m
# benchmarks.impala_learning impala_waiting` trained the runs.

# %% tags=["claims"]
from literate_rl.evaluation import paired_difference

assert min(len(run.area) for run in runs.values()) == 10, "ten seeds"
alone, one, two, four, single = seconds.values()
assert 1.9 < one / two < 2.3, "two take half as long as one"
assert 3.7 < one / four < 4.3, "four take a quarter"
assert 1.03 < alone / one < 1.1, "one saves a few percent"
assert 1.02 < single / four < 1.05, "one slot costs a few percent"
lags = [round(runs[key].judged["lag"].mean()) for key in looks]
assert lags == [0, 1, 3, 7, 3]
assert min(runs, key=lambda key: runs[key].area.mean()) == "4 actors, 2 slots"
young = runs["4 actors, 1 slot"].area
gain = paired_difference(young, runs["4 actors, 2 slots"].area)
assert [round(x) for x in (gain.mean, gain.low, gain.high)] == [75, 32, 117]
same = paired_difference(young, runs["2 actors, 2 slots"].area)
assert same.low < 0 < same.high, "no difference is seen"
reached = {}
for key in ("no actors", "4 actors, 1 slot"):
    first = np.argmax(runs[key].curves.mean(0) >= 250)
    reached[key] = round(seconds[key] * runs[key].steps[first] / 100_000)
assert list(reached.values()) == [72, 12], "seconds until the mean return is 250"

# %% [markdown]
# ## Slots and tokens
#
# An actor has environments and a copy of the policy. It acts for $T$ steps and writes down
# what happened: an **unroll**. The learner learns from one unroll after another. Between
# them lies memory that both can see, cut into **slots**. A slot has two pockets: the learner
# writes weights into one, the actor writes an unroll into the other.
#
# At any time a slot belongs to one side only. It changes hands with a **token**, a small
# number sent through a pipe. That is the whole protocol:
#
# 1. The learner writes its weights into a slot and sends the slot's token to the actor.
# 2. The actor copies the weights, acts, writes the unroll and sends the token back.
# 3. The learner learns from the unroll. Now the slot is free, and step 1 follows.

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import Picture

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
        picture.cells(176, row, ["weights", "result"], width=74)
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
# **Notice** that no two actors share anything: each has slots and pipes of its own. So there
# is no lock that one of them could hold while it dies. What else could go wrong?
#
# | what could happen | why it does not |
# |---|---|
# | the learner reads half an unroll | the token is sent after the last number, and nobody looks without it |
# | an actor reads half of the new weights | they are written into its own slot while the learner has the token |
# | an actor is killed while it writes | its token never comes; its pipe closes, and the learner sees that at once |
# | an actor is killed while it sends | a message as small as a token goes through a pipe as a whole or not at all |
# | an unroll is lost or counted twice | the learner knows which tokens each actor holds, and a dead actor's successor gets the same ones |
# | the learner is slow | no tokens are left, so the actors sleep; memory never grows |
# | the learner is killed | the pipes close for the actors too, and they exit |
#
# One failure is not prevented. An actor that *hangs* looks like one that is slow, so the others
# go on without it. If all of them hang, the learner waits until you press Ctrl-C twice: the first
# time only asks it to finish its iteration.
#
# ## The lag
#
# Count the unrolls that the learner has learned from, and call that number the **version** of
# its weights. By the time an unroll is learned from, the learner is ahead of the version that
# made it. The difference is the **lag**,
#
# $$
# d = \text{version of the learner} - \text{version of the unroll} .
# $$ (policy-lag)
#
# With $n_A$ actors of $n_S$ slots each, $n_A n_S$ unrolls are under way. If all actors are
# equally fast, each of the other slots is learned from once while one goes round, so after the
# first round
#
# $$
# d = n_A n_S - 1 .
# $$ (lag-of-turns)
#
# That is the delay. V-trace corrects for it as long as the old policy is not too far away, at the
# price that {doc}`impala` measured. The memory is bounded too. If $b_w$ and $b_u$ are the bytes
# of the weights and of an unroll, it is
#
# $$
# n_A \, n_S \, (b_w + b_u) .
# $$ (slot-memory)
#
# How many slots should an actor have? With one it waits while the learner learns. With two it
# fills one slot while the learner has the other. More only help if the time that an unroll
# takes varies, and every slot makes the data older.
#
# ## Line by line
#
# The settings are those of {doc}`impala` and four more, which any learner with actors has. There
# is no replay: each unroll is learned from as it arrives, `update_per_collect` times, and then its
# slot is free.


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class TransportConfig:
    """Settings of the actors of any learner.

    Attributes:
        actors: Number of actors, each with environments of its own, or none for the
            loop without actors.
        transport: Where the actors are: in_process, one after the other; shared, in
            processes of their own; or ray, on a cluster.
        slots: Unrolls that an actor may have under way.
        address: Address of the Ray cluster to join, HOST:PORT, or none to start one
            here.
    """

    actors: Count | None = None
    transport: Literal["in_process", "shared", "ray"] = "in_process"
    slots: Count = 2
    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and self.transport != "ray":
            raise ValueError(f"transport must be ray for address {self.address}")
        if self.actors is None and self.transport != "in_process":
            raise ValueError(f"actors must be given for transport {self.transport}")


@checked
@dataclass(frozen=True)
class ActorsConfig(TransportConfig, IMPALAConfig):
    """Settings of IMPALA with actors.

    ``update_per_collect`` updates are taken on each unroll of each actor. There is no
    replay, so ``batch_size`` and the settings of the buffer play no role.
    """

    def __post_init__(self) -> None:
        IMPALAConfig.__post_init__(self)
        TransportConfig.__post_init__(self)
        if self.actors is not None and (self.priority or self.lag or self.on_policy):
            raise ValueError("priority, lag and on_policy must be off with actors")


def actors_settings(env: str) -> ActorsConfig:
    """Return IMPALA's settings for the id of an environment, without actors."""
    return ActorsConfig(**asdict(impala_settings(env)))


# %% [markdown]
# ### A slot
#
# A slot is one record of fixed size with a named place for each array, a *structured* dtype
# of NumPy. A view of a field costs nothing, so the learner learns from an unroll where it
# lies. The fields are those of `Unroll`, and the returns of episodes that ended, to report.


# %% tags=["export"]
Weights = Mapping[str, Any]  # arrays by the names of the policy's `state_dict`


def weights_of(policy: Any) -> dict[str, NDArray[Any]]:
    """Return a policy's weights as arrays; on the CPU they share its memory."""
    return {name: x.cpu().numpy() for name, x in policy.state_dict().items()}


@checked
def slot_layout(
    policy: Any, envs: VectorEnv[Any, Any, Any], unroll_len: Count
) -> np.dtype[np.void]:
    """Describe the memory of one slot, a record with ``weights`` and ``result``.

    The result is an unroll: it has a field for each of ``Unroll``, and
    ``episode_return``, which is NaN where no episode ended. ``envs`` are those of one
    actor.
    """
    steps, device = (unroll_len, envs.num_envs), next(policy.parameters()).device
    shape = envs.single_observation_space.shape or ()
    # What an action looks like is best found out by asking the policy once.
    with torch.no_grad():
        obs = torch.zeros((envs.num_envs, *shape), device=device)
        action = policy.act(obs, 0.0).cpu().numpy()
    unroll: list[Any] = [
        ("obs_plus_1", np.float32, (unroll_len + 1, envs.num_envs, *shape)),
        ("next_obs", np.float32, (*steps, *shape)),
        ("action", action.dtype, (unroll_len, *action.shape)),
    ]
    unroll += [(name, np.bool_, steps) for name in ("terminated", "truncated")]
    numbers = ("log_prob", "reward", "weight", "episode_return")
    unroll += [(name, np.float32, steps) for name in numbers]
    weights = [(name, x.dtype, x.shape) for name, x in weights_of(policy).items()]
    return np.dtype([("weights", weights), ("result", unroll)], align=True)


# %% tags=["hide-input"]
from functools import partial

from literate_rl.agents import make_envs
from literate_rl.policies import make_policy
from literate_rl.workshop.runs import flat_env

torch.manual_seed(1)
envs = make_envs(partial(flat_env, "CartPole-v1"), 4)
policy = make_policy(envs.single_observation_space, envs.single_action_space)
layout = slot_layout(policy, envs, unroll_len=32)
for pocket in ("weights", "result"):
    print(f"{pocket}: {layout[pocket].itemsize} bytes, {len(layout[pocket])} arrays")

# %% [markdown]
# ### The actor
#
# The actor is the same wherever it runs. It gets weights and a place to write to, and knows
# nothing of tokens, processes or learners. To act it needs only the action, which `numpy_act` of
# {doc}`workshop/fast` computes faster than PyTorch does for networks this small. V-trace also
# needs the log-probability of each action. The weights stay the same for a whole unroll, so these
# are computed at its end, all at once.


# %% tags=["export"]
class Actor:
    """Acts for one unroll at a time, with weights that it is given.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy on the CPU, which is copied.
        seed: Decides the noise and the environments' random numbers.
    """

    @checked
    def __init__(
        self,
        make_envs: Callable[[], VectorEnv[Any, Any, Any]],
        policy: Any,
        seed: int,
    ) -> None:
        self.policy, envs = copy.deepcopy(policy).eval(), make_envs()
        self.weights = weights_of(self.policy)
        self.act = numpy_act(self.policy)  # where there is no fast form, its own
        self.generator = torch.Generator().manual_seed(seed)
        self.collector = Collector(envs, self.policy.to_env, np.float32)
        self.collector.reset(env_seed(seed, 0))

    def work(self, weights: Weights, out: Any) -> None:
        """Act for one unroll with these weights, and write it to ``out``."""
        num_steps, room = len(out["reward"]), out["next_obs"].shape[1:]
        if (seen := np.shape(self.collector.obs)) != room:
            raise ValueError(f"make_envs must make observations {room}, got {seen}")
        batch = self.collect(weights, num_steps)

        # The log-probabilities are computed now, for all steps at once. Environments
        # that reset a step late add rows that never happened; their weight is 0.
        for name, x in to_unroll(batch, self.policy)._asdict().items():
            out[name] = x
        out["episode_return"] = batch.episode_return

    def collect(self, weights: Weights, num_steps: int) -> Rollout:
        """Act for some steps with these weights; return what happened."""
        # One version of the weights for all steps. The arrays are the policy's memory.
        for name, array in self.weights.items():
            array[...] = weights[name]
        # The noise of all steps is drawn at once; each step takes the next.
        num_envs = self.collector.envs.num_envs
        noise = iter(self.policy.noise(num_steps, num_envs, self.generator))
        return self.collector.collect(lambda obs: self.act(obs, next(noise)), num_steps)

    def close(self) -> None:
        """Close the environments."""
        self.collector.envs.close()


# %%
actor = Actor(partial(make_envs, partial(flat_env, "CartPole-v1"), 4), policy, seed=1)
slot = np.zeros((), layout)
actor.work(weights_of(policy), slot["result"])
print("rewards paid:", slot["result"]["reward"].sum())
ended = slot["result"]["episode_return"]
print("returns of episodes that ended:", ended[~np.isnan(ended)])

# %% [markdown]
# ### Transports
#
# A **transport** carries slots to the actors and back, and replaces actors that die. In the code
# a slot goes by two numbers, its actor's and its own: `Slot`. To the learner all transports look
# alike: `submit` gives a slot to its actor, `receive` waits for a whole unroll, and a census
# counts who is at work and who has died. (What an actor fills into a slot is called `result` in
# the code. Here it is always an unroll.)


# %% tags=["export", "hide-input"]
Slot = tuple[int, int]  # number of the actor, and of the slot among its slots
# An actor that dies so often without a single unroll will not live next time either.
PATIENCE = 3


class Census:
    """Who is at work, and who has died.

    Attributes:
        unrolls: Unrolls that each actor has delivered in its present life.
        failed_starts: How often in a row each has died without one.
        replaced: Actors that died and were replaced.
    """

    def __init__(self, actors: int, seed: int) -> None:
        self.unrolls, self.failed_starts = [0] * actors, [0] * actors
        self.replaced = 0
        self.seeds = np.random.SeedSequence(seed)

    def new_seed(self) -> int:
        """Return a seed for the next life of an actor, unrelated to all others."""
        return int(self.seeds.spawn(1)[0].generate_state(1)[0])

    @property
    def at_work(self) -> int:
        """Actors that have delivered an unroll in their present life."""
        return sum(unrolls > 0 for unrolls in self.unrolls)

    def count_death(self, actor: int, how: object) -> None:
        """Count a death, or lose patience."""
        failed = 0 if self.unrolls[actor] else self.failed_starts[actor] + 1
        if failed == PATIENCE:
            raise ChildProcessError(
                f"actor {actor} died {PATIENCE} times before its first unroll, the "
                f"last time with {how}. (A script that starts actors needs the line "
                '`if __name__ == "__main__":` in front of what it does.)'
            )
        self.failed_starts[actor], self.unrolls[actor] = failed, 0
        self.replaced += 1


class Transport(Protocol):
    """What the learner asks of a transport."""

    census: Census

    @property
    def waiting(self) -> int:
        """Whole unrolls that wait for the learner."""
        ...

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Give a slot to its actor, with a copy of these weights."""
        ...

    def receive(self) -> tuple[Slot, Any]:
        """Wait for a whole unroll; it may be read until its slot is submitted."""
        ...

    def close(self) -> None:
        """End all actors. May be called twice."""
        ...


class Worker(Protocol):
    """What a transport asks of an actor."""

    def work(self, weights: Weights, out: Any) -> None:
        """Work with these weights, and write the result to ``out``."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


MakeActor = Callable[[int], Worker]  # from a seed
# From a way to make actors, a slot's layout, a seed, and how many actors and slots.
MakeTransport = Callable[[MakeActor, "np.dtype[np.void]", int, int, int], Transport]


# %% [markdown]
# The simplest transport has no processes. An unroll is made when the learner asks for it,
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
    """

    waiting = 0

    def __init__(
        self,
        make_actor: MakeActor,
        layout: np.dtype[np.void],
        seed: int,
        actors: int,
        slots: int,
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
        record = self.memory[slot]
        self.actors[slot[0]].work(record["weights"], record["result"])
        self.census.unrolls[slot[0]] += 1
        return slot, record["result"]

    def close(self) -> None:
        """Close the environments."""
        for actor in self.actors:
            actor.close()


def fill(pocket: Any, weights: Weights) -> None:
    """Copy weights into the pocket of a slot."""
    for name, array in weights.items():
        pocket[name] = array


# %% [markdown]
# ### The learner
#
# Everything on the learner's side of the protocol is in `iterate`. What the learner does with an
# unroll is left to a method `learn`, because none of this depends on it: in {doc}`a2c` actors send
# gradients, and the rest stays as it is here. The other methods are what `fit` asks of any learner ({doc}`workshop/runs`), so progress, checkpoints and the command
# line work as they do elsewhere. The transport starts with the first iteration. Until then the
# learner can be restored from a checkpoint, and the first weights that go out are the right
# ones.
#
# A resumed run has fresh actors. It is as good as a run that was never stopped, but not the
# same: which unroll arrives first is up to the machine, and no seed can change that.


# %% tags=["export"]
class RemoteLearner:
    """Learns from what actors send, one slot at a time.

    Use it as a context manager, or call ``close``, so that the actors end.

    Args:
        policy: The policy to train, on any device.
        config: The settings, with those of ``TransportConfig`` among them.
        transport: Makes the transport, or None for the one that the settings name. The
            one on Ray is ``RayActors`` in ``literate_rl.workshop.cluster``.

    Attributes:
        make_actor: Makes an actor, from a seed.
        layout: The memory of one slot.
        learner: Has what a checkpoint keeps.
        learn: Takes the result in a slot, adds its steps to ``step`` and returns
            metrics.
    """

    make_actor: MakeActor
    layout: np.dtype[np.void]
    learner: Any
    learn: Callable[[Any], dict[str, float]]

    def __init__(
        self, policy: Any, config: Any, transport: MakeTransport | None
    ) -> None:
        if config.actors is None:
            raise ValueError("config.actors must be at least 1, got None")
        self.make_transport = transport or transport_named(config.transport)
        self.policy, self.config, self.actors = policy, config, config.actors
        self.transport: Transport | None = None
        self.versions: dict[Slot, int] = {}
        self.step = self.version = 0

    def start(self) -> Transport:
        """Start the actors and hand out all slots, to the actors in turns."""
        config = self.config
        # A resumed run has another step, and so other seeds.
        seed = env_seed(config.seed, self.step)
        transport = self.make_transport(
            self.make_actor, self.layout, seed, self.actors, config.slots
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

        Whatever goes wrong, the actors are ended; the next call starts new ones.
        """
        transport = self.transport or self.start()
        try:
            slot, record = transport.receive()
            metrics = self.learn(record)
            # The lag {eq}`policy-lag`: versions since the slot was given away.
            lag = self.version - self.versions[slot]
            self.version += 1
            # From here on the slot belongs to its actor, who may write to it.
            # Everything that is read of it has been read by now.
            self.submit(transport, slot)
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

    # What follows is for the loop around the learner, `fit`, and for checkpoints.
    @property
    def checkpoint_due(self) -> bool:
        """Whether the run is to be saved before the next iteration."""
        return self.version % int(self.config.checkpoint_interval) == 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        learner = self.learner.state_dict()
        return {"step": self.step, "version": self.version, "learner": learner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned, with fresh actors."""
        step, version = state["step"], state["version"]
        self.learner.load_state_dict(state["learner"])
        self.close()
        self.step, self.version = step, version


# %% [markdown]
# IMPALA's learner takes its updates on each unroll as it arrives.


# %% tags=["export"]
class ActorLearner(RemoteLearner):
    """Learns from the unrolls of actors, with V-trace.

    Args:
        policy: The policy to train, on any device.
        make_envs: Function that makes the vector environment of one actor, with
            ``config.n_sample`` copies.
        config: The settings.
        transport: Makes the transport, or None for the one that the settings name.
    """

    @checked
    def __init__(
        self,
        policy: Any,
        make_envs: Callable[[], VectorEnv[Any, Any, Any]],
        config: ActorsConfig,
        transport: MakeTransport | None = None,
    ) -> None:
        super().__init__(policy, config, transport)
        # Environments are made once here, to see what they are like.
        envs = make_envs()
        self.layout = slot_layout(policy, envs, config.unroll_len)
        if envs.num_envs != (wanted := config.n_sample):
            raise ValueError(
                f"make_envs must make {wanted} copies, got {envs.num_envs}"
            )
        envs.close()
        # The recipe of an actor: what is missing is the seed.
        self.make_actor = partial(Actor, make_envs, copy.deepcopy(policy).cpu())
        self.learner = VTraceLearner(policy, config)

    def learn(self, record: Any) -> dict[str, float]:
        """Take the updates on an unroll; return metrics."""
        # Views of the slot's memory; only on a GPU are they copies.
        device = self.learner.parameters[0].device
        unroll = Unroll(
            *(torch.from_numpy(record[name]).to(device) for name in Unroll._fields)
        )
        self.learner.anneal(self.step)
        for _ in range(self.config.update_per_collect):
            losses = self.learner.learn(unroll)
        self.step += record["reward"].size
        # The mean of no return is NaN.
        mean = torch.from_numpy(record["episode_return"]).nanmean().item()
        named = {f"losses/{name}": number for name, number in losses.items()}
        return {"charts/episodic_return": mean, **named}


# %% [markdown]
# ## What the delay does
#
# First in one process, where everything can be repeated. One actor has 1, 2, 4, 8 or 16 slots.
# How far has the policy moved while an unroll was under way? Right before each update, we
# compare how likely the learner's policy finds the actions with how likely the actor's did. That
# is the ratio of {doc}`off_policy`.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over the lag, which is 0, 1, 3, 7 and 15. Left: how far the ratios are from 1, which is 0 at lag 0 and grows steadily to about 20 percent at lag 15. Right: the share of the steps whose ratio is above 1, which is 0 at lag 0 and a little more than a half otherwise"}}
from dataclasses import replace

torch.set_num_threads(1)  # the networks are too small to be shared out


class Watched(ActorLearner):
    """Notes the ratio of new and old probability of each action, before learning."""

    def learn(self, record):
        seen = torch.from_numpy(record["obs_plus_1"][:-1])
        with torch.no_grad():
            new, _ = self.policy.evaluate_actions(
                seen, torch.from_numpy(record["action"])
            )
        self.ratio = np.exp(new.numpy() - record["log_prob"])
        return super().learn(record)


def make_learner(env, config, learner=ActorLearner, device="cpu"):
    """Build the policy that fits the environments, and a learner with actors."""
    build = partial(make_envs, partial(flat_env, env), config.n_sample)
    envs = build()
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return learner(policy.to(device), build, config, InProcess)


config = replace(
    actors_settings("CartPole-v1"),
    actors=1,
    n_sample=8,
    unroll_len=32,
    update_per_collect=1,
    anneal=False,
)
lags, far, above = [], [], []
for slots in (1, 2, 4, 8, 16):
    with make_learner("CartPole-v1", replace(config, slots=slots), Watched) as learner:
        lag, ratios = [], []
        for number in range(40):
            lag.append(learner.iterate()["charts/lag"])
            if number >= slots:
                ratios.append(learner.ratio)
    lags.append(lag[-1])
    far.append(np.abs(np.array(ratios) - 1).mean())
    above.append((np.array(ratios) > 1 + 1e-4).mean())
    print(f"{slots:2d} slots: lag {lag[:4]} … {lag[-1]}, off by {far[-1]:.1%}")

fig, axes = plt.subplots(1, 2, figsize=(7, 2.6))
axes[0].plot(lags, np.array(far) * 100, "o-")
axes[0].set(xlabel="lag", ylabel="mean distance from 1, in %", title="ratio")
axes[1].plot(lags, np.array(above) * 100, "o-", color="C1")
axes[1].set(xlabel="lag", ylabel="% of the steps", title="ratio above 1, so clipped")
fig.tight_layout()

# %% [markdown]
# **Notice** that lag 0 is on-policy: each ratio is 1. The lag is what {eq}`lag-of-turns` says,
# and the larger it is, the further the ratios are from 1. A little more than half of them lie
# above, probably because the policy becomes more certain, and actions that it often takes become
# likelier still. V-trace clips those ratios to 1; steps with a smaller ratio count less.

# %% tags=["claims"]
assert lags == [0, 1, 3, 7, 15], "the lag of turns"
assert far[0] < 1e-5, "lag 0 is on-policy"
assert far == sorted(far), "the larger the lag, the further off"
assert all(0.5 < share < 0.65 for share in above[1:]), "a little more than half"

# %% [markdown]
# ## Processes of their own
#
# Now the protocol between processes. A few decisions need a reason.
#
# **The memory** is anonymous. It has no name in the file system, so nothing is left behind, no
# matter which process is killed. Could a token arrive before the numbers that it stands for?
# No: sending and receiving are calls into the kernel that take the same lock, and what was
# written before one of them is seen after the other. A flag in shared memory would need memory
# barriers, which Python does not have.
#
# **The processes** come from a *fork server*. Importing PyTorch takes seconds. The server is a
# fresh process that imports this module once and then copies itself for each actor, so that a new
# actor costs only a copy and its environments. Copying the learner itself would be wrong: a copy
# keeps only one thread but all locks, and a lock that another thread held would never be
# released.
#
# **Ctrl-C** goes from the terminal to all processes. The learner wants to finish its iteration
# and needs its actors for that, so they start with the signal blocked. They end when their pipe
# closes.
#
# **A death is not an error.** A process that was killed is replaced. But an actor that dies
# three times in a row without a single unroll ends the run. An exception in an environment would
# come again, so it ends the run at once, with the actor's traceback, as it does in one process.
#
# This is the actor's side of the protocol:


# %% tags=["export"]
def run_actor(
    recipe: bytes,
    seed: int,
    memory: Any,
    layout: np.dtype[np.void],
    tasks: Connection,
    whole: Connection,
) -> None:
    """Be an actor process: take tokens, fill their slots, send the tokens back."""
    torch.set_num_threads(1)
    slots = np.frombuffer(memory, layout)
    try:
        actor = pickle.loads(recipe)(seed)
        for index in tokens(tasks):
            actor.work(slots[index]["weights"], slots[index]["result"])
            whole.send(index)
    except BaseException:
        # An environment that calls `sys.exit` is an error too. If the learner is gone,
        # there is nobody to tell.
        with suppress(OSError):
            whole.send(traceback.format_exc())


def tokens(connection: Connection) -> Iterator[int]:
    """Yield tokens until the pipe closes."""
    with suppress(EOFError):
        while True:
            yield connection.recv()


# %% [markdown]
# For each actor process the learner keeps its two pipes and the tokens that it holds.


# %% tags=["export", "hide-input"]
@dataclass
class ActorProcess:
    """One actor process, as the learner sees it.

    Attributes:
        process: The process.
        tasks: The pipe that tokens go to it by.
        whole: The pipe that they come back by.
        held: Tokens that it has, in the order in which they were sent.
    """

    process: Any
    tasks: Connection
    whole: Connection
    held: list[int] = field(default_factory=list)

    def send(self, index: int) -> None:
        """Send a token. If the process is dead, the end of its pipe will tell."""
        self.held.append(index)
        with suppress(BrokenPipeError):
            self.tasks.send(index)

    def hang_up(self) -> None:
        """Close the pipes. May be done twice."""
        self.tasks.close()
        self.whole.close()

    def end(self, patience: float) -> None:
        """Hang up; wait some seconds for the process to leave, then kill it."""
        self.hang_up()
        self.process.join(patience)
        self.process.kill()
        self.process.join()


# %% [markdown]
# Two helpers: one writes down how to make an actor, as bytes for another process, the other
# blocks Ctrl-C while a process starts.


# %% tags=["export", "hide-input"]
def pickled(make_actor: MakeActor) -> bytes:
    """Write down how to make an actor, for another process."""
    problem = (
        "make_envs must be a function that another process can import, not a lambda, "
        "one from inside another function, or one from a notebook"
    )
    try:
        recipe = pickle.dumps(make_actor)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"{problem}: {error}") from error
    # A notebook has no file, and neither has `python -c`.
    if b"__main__" in recipe and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(problem)
    return recipe


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: they inherit what is blocked here."""
    # This helper of Python's unblocks the signal when it starts, so it starts first.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# %% [markdown]
# The transport waits for all pipes at once. When one closes, its actor is dead, and a new one
# gets the tokens that it held. The weights are still in their slots.


# %% tags=["export"]
class SharedMemory:
    """Actors in processes of their own, with memory that both sides see.

    Args:
        make_actor: Function from a seed to an ``Actor``, one that can be pickled.
        layout: What ``slot_layout`` returned.
        seed: Decides the seeds of the actors.
        actors: Number of actors.
        slots: Slots of each of them.
    """

    def __init__(
        self,
        make_actor: MakeActor,
        layout: np.dtype[np.void],
        seed: int,
        actors: int,
        slots: int,
    ) -> None:
        self.recipe, self.layout = pickled(make_actor), layout
        self.census = Census(actors, seed)
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(["literate_rl.actors"])
        # All the memory that there will ever be, {eq}`slot-memory`.
        size = slots * layout.itemsize
        self.memory = [self.context.RawArray("B", size) for _ in range(actors)]
        self.slots = [np.frombuffer(memory, layout) for memory in self.memory]
        self.whole: deque[Slot] = deque()
        self.lives = [self.start(actor) for actor in range(actors)]

    @property
    def waiting(self) -> int:
        """Whole unrolls that wait for the learner."""
        return len(self.whole)

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Write the weights into the slot and send its token."""
        actor, index = slot
        fill(self.slots[actor][index]["weights"], weights)
        self.lives[actor].send(index)

    def receive(self) -> tuple[Slot, Any]:
        """Wait for a whole unroll, and replace actors that have died meanwhile."""
        if not self.lives:
            raise ValueError("the actors have ended: this transport is closed")
        # As long as there is nothing to learn from, sleep. Then hear all that there is.
        while pipes := wait(
            [life.whole for life in self.lives], timeout=0 if self.whole else None
        ):
            for pipe in pipes:
                self.hear(pipe)
        actor, index = self.whole.popleft()
        return (actor, index), self.slots[actor][index]["result"]

    def hear(self, pipe: Any) -> None:
        """Read a message: a token, the text of an error, or the end of the pipe."""
        actor = [life.whole for life in self.lives].index(pipe)
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            self.replace(actor)
            return
        if isinstance(message, str):
            raise ChildProcessError(f"actor {actor} failed:\n{message}")
        # A token: its unroll is whole.
        self.lives[actor].held.remove(message)
        self.census.unrolls[actor] += 1
        self.whole.append((actor, message))

    def replace(self, actor: int) -> None:
        """Start a new actor in the place of a dead one, with the same tokens."""
        dead = self.lives[actor]
        dead.end(patience=1.0)
        self.census.count_death(actor, f"exit code {dead.process.exitcode}")
        self.lives[actor] = self.start(actor)
        for index in dead.held:
            self.lives[actor].send(index)

    def start(self, actor: int) -> ActorProcess:
        """Start a process that becomes the actor of this number."""
        take, tasks = self.context.Pipe(duplex=False)
        whole, give = self.context.Pipe(duplex=False)
        seed, memory = self.census.new_seed(), self.memory[actor]
        process = self.context.Process(
            target=run_actor,
            args=(self.recipe, seed, memory, self.layout, take, give),
            daemon=True,
        )
        with interrupts_blocked():
            process.start()
        # A pipe closes when nobody is left at its other side. So the learner keeps no
        # copy of the actor's ends.
        take.close()
        give.close()
        return ActorProcess(process, tasks, whole)

    def close(self) -> None:
        """End all processes; one that does not leave within seconds is killed."""
        # First all hear that it is over, so that they leave at the same time.
        for life in self.lives:
            life.hang_up()
        last_moment = time.monotonic() + 2.0
        for life in self.lives:
            life.end(patience=max(0.0, last_moment - time.monotonic()))
        self.lives, self.whole = [], deque()


def transport_named(name: str) -> MakeTransport:
    """Return the transport that goes by a name in the settings."""
    if name == "ray":
        raise ValueError(
            "transport ray: pass RayActors of literate_rl.workshop.cluster"
        )
    return SharedMemory if name == "shared" else InProcess


# %% [markdown]
# ## Kill them
#
# Two actors work for a learner. After 25 unrolls, and after every 50 more, one of them is killed
# with `SIGKILL`, which no process can catch. (New processes import the functions that they run
# from a file, and a notebook has none. So the hidden cell starts a small program. It ends with
# `if __name__ == "__main__":`, as every script that starts actors must, because each actor
# imports the script.)

# %% tags=["hide-input"]
import json
import subprocess
import sys

program = """
import json, os, signal
from functools import partial
import torch
from literate_rl.actors import ActorLearner, ActorsConfig
from literate_rl.agents import make_envs
from literate_rl.policies import make_policy

def run(slots):
    config = ActorsConfig(
        actors=2, transport="shared", slots=slots,
        n_sample=4, unroll_len=16, update_per_collect=1,
    )
    build, rows, killed = partial(make_envs, "CartPole-v1", 4), [], 0
    envs = build()
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    with ActorLearner(policy, build, config) as learner:
        for number in range(1, 201):
            rows.append(learner.iterate() | {"step": learner.step})
            if number % 50 == 25:
                life = learner.transport.lives[number // 50 % 2]
                os.kill(life.process.pid, signal.SIGKILL)
                killed += 1
    return {"rows": rows, "killed": killed}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({slots: run(slots) for slots in (1, 4)}))
"""
command = [sys.executable, "-c", program]
done = subprocess.run(command, capture_output=True, text=True, check=True)
stories = {int(slots): story for slots, story in json.loads(done.stdout).items()}
for slots, story in stories.items():
    last = story["rows"][-1]
    print(
        f"{slots} slots each: killed {story['killed']}, replaced "
        f"{last['charts/replaced']}, steps trained on {last['step']} = 200 x 16 x 4"
    )

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two histograms of the lag of 200 unrolls, with one slot for each of two actors and with four. Most lie at or left of a dashed line, which is at 1 with one slot and at 7 with four; the others reach 15 and more"}}
fig, axes = plt.subplots(1, 2, figsize=(7, 2.4), sharey=True)
shares = {}
for axis, (slots, story) in zip(axes, stories.items(), strict=True):
    lag = np.array([row["charts/lag"] for row in story["rows"]], dtype=int)
    numbers, counts = np.unique(lag.clip(max=15), return_counts=True)
    axis.bar(numbers, counts, color="C0")
    turns = 2 * slots - 1
    shares[slots] = np.mean(lag <= turns)
    axis.axvline(turns, color="C3", linestyle="--", label=f"in turns: {turns}")
    axis.set(xlabel="lag (15: or more)", title=f"2 actors, slots of each: {slots}")
    axis.set(xlim=(-0.7, 15.7), xticks=range(0, 16, 3))
    axis.legend(fontsize=8)
axes[0].set_ylabel("unrolls")
fig.tight_layout()

# %% [markdown]
# **Notice** that the count of steps is exact, although four actors were killed in each run. Most
# lags are at most what {eq}`lag-of-turns` gives for actors that take turns. The others are
# larger: while a dead actor is being replaced, the other one goes round more often, and the first
# unrolls of the new one come late. Watch the lag in every run; the command shows it in its
# progress bar.

# %% tags=["claims"]
for slots, story in stories.items():
    last = story["rows"][-1]
    assert story["killed"] == last["charts/replaced"] == 4, "killed and replaced"
    assert last["step"] == 200 * 16 * 4, "the count is exact"
    assert shares[slots] > 0.5, "most lags are at most those of turns"

# %% [markdown]
# ## From the command line
#
# | you type | what happens |
# |---|---|
# | `python -m literate_rl impala --actors 2` | two actors take turns in this process |
# | `… --actors 2 --transport shared` | two processes; the bar shows actors at work, queue, lag and steps per second |
# | `… --actors 8 --transport ray` | eight actors on a cluster ({doc}`workshop/cluster`) |
# | Ctrl-C | finishes this unroll, saves, ends the actors, and prints how to continue |
# | `… --resume runs/NAME` | continues from the last checkpoint, with fresh actors |
#
# ## Traps
#
# ### Trap: a queue without a bound
#
# An actor takes 1 second for an unroll, the learner 2. A queue without a bound accepts
# everything, and nothing fails. But it grows for as long as the run lasts, and with it the
# memory, and the age of what is learned from.

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
# ### Trap: a lock that dies with its owner
#
# In torchbeast all actors take the numbers of free buffers from one `SimpleQueue`. Taking
# something needs the queue's lock, and *an actor holds it while it waits*. If that actor is
# killed, the lock is never released. The queue is not empty, and nobody can take anything from it
# any more:

# %%
queue_program = """
import os, signal, time
from multiprocessing import get_context

def actor(queue):
    queue.get()

context = get_context("fork")
queue = context.SimpleQueue()
first = context.Process(target=actor, args=(queue,), daemon=True)
first.start()
while queue._rlock.acquire(block=False):  # until the first one waits in get()
    queue._rlock.release()
    time.sleep(0.01)
os.kill(first.pid, signal.SIGKILL)
first.join()
queue.put("a free buffer")
second = context.Process(target=actor, args=(queue,), daemon=True)
second.start()
second.join(1.0)
print("the second actor got it:", not second.is_alive())
"""
command = [sys.executable, "-c", queue_program]
got_it = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(got_it)

# %% [markdown]
# A pipe for each actor has no lock to leave behind.

# %% tags=["claims"]
assert got_it == "the second actor got it: False\n"

# %% [markdown]
# ### Trap: half of the new weights
#
# Where all actors read the memory that the learner writes to, an actor may see the first layer
# of one version and the second layer of the next. No learner ever had this policy. If the actor
# notes the log-probabilities of the mixture while it acts, the ratio is still right. If they are
# looked up later, in one of the two versions, it is wrong:

# %%
torch.manual_seed(0)
old, new = (
    make_policy(envs.single_observation_space, envs.single_action_space) for _ in "ab"
)
for each in (old, new):  # two policies that differ
    torch.nn.init.normal_(each.network.actor[-1].weight, std=0.5)
torn = copy.deepcopy(old)
torn.network.actor[0].load_state_dict(new.network.actor[0].state_dict())
seen = torch.randn(32, 4, 4)
spread = {}
for name, each in (("old version", old), ("new version", new)):
    ratio = (each(seen).log_softmax(-1) - torn(seen).log_softmax(-1)).exp()
    spread[name] = ratio.min().item(), ratio.max().item()
    print(
        "looked up in the {}: ratios from {:.2f} to {:.2f}".format(name, *spread[name])
    )

# %% tags=["claims"]
assert all(low < 0.7 and high > 1.5 for low, high in spread.values()), "it is wrong"

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | [scalable_agent](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py), distributed | [torchbeast](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py), monobeast | [Sample Factory](https://github.com/alex-petrenko/sample-factory/tree/1894bd1e5e6f741726115e9a69569780906c171c/sample_factory/algo) | [RLlib](https://github.com/ray-project/ray/blob/0039b13c03ea26f40d365b430b8644b007f7968d/rllib/algorithms/impala/impala.py) |
# |---|---|---|---|---|---|
# | unrolls travel by | shared memory, or Ray | a TensorFlow queue on the learner | [shared memory](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L315) | [shared memory](https://github.com/alex-petrenko/sample-factory/blob/1894bd1e5e6f741726115e9a69569780906c171c/sample_factory/algo/utils/shared_buffers.py#L55) | Ray |
# | who computes actions | each actor | [each actor](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L253-L261) | [each actor](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L165-L166) | [inference workers](https://github.com/alex-petrenko/sample-factory/blob/1894bd1e5e6f741726115e9a69569780906c171c/sample_factory/algo/sampling/inference_worker.py#L66) for many actors | each actor |
# | bound | slots of each actor | [one unroll](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L503) in the queue | [number of buffers](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L329-L334) | [number of buffers](https://github.com/alex-petrenko/sample-factory/blob/1894bd1e5e6f741726115e9a69569780906c171c/sample_factory/algo/utils/shared_buffers.py#L206-L217) | `learner_queue_size`, and calls under way |
# | weights | one version for an unroll | [one version](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L506-L511) for an unroll | one shared model, [written](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L295) while it is read | [copied](https://github.com/alex-petrenko/sample-factory/blob/1894bd1e5e6f741726115e9a69569780906c171c/sample_factory/algo/utils/model_sharing.py#L130-L132) under a lock when they are new | sent every `broadcast_interval` updates |
# | an actor dies | replaced, nothing is lost | not looked at here | [not noticed](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L502) before the end | [reported](https://github.com/alex-petrenko/sample-factory/blob/1894bd1e5e6f741726115e9a69569780906c171c/sample_factory/algo/runners/runner.py#L581-L601) after a long silence | not looked at here |
#
# Look at the row "weights": torchbeast falls into the third trap, but it notes the logits while
# it acts, so its ratios are right. We read the code at the linked commits.
#
# There is another way to divide the work. In SEED {cite:p}`espeholt2020` actors only step
# environments and send observations, and one server computes all actions in large batches on an
# accelerator. Sample Factory {cite:p}`petrenko2020` does that within one machine, Sebulba
# {cite:p}`hessel2021` with the environments on a TPU's host. With large networks it pays. The
# networks here are so small that asking costs more than computing. What the transports of this
# chapter cost is in {doc}`/docs/results`.
#
# ## On the best device
#
# The learner may use a GPU. Its actors stay on the CPU, and the weights are copied there when a
# slot is given away.

# %%
from literate_rl.agents import best_device
from literate_rl.workshop.runs import fit

on_device = replace(config, actors=2, total_steps=2048)
with make_learner("CartPole-v1", on_device, device=best_device()) as learner:
    last = fit(learner, progress=False)[-1]
print(f"{last['step']} steps on {best_device().type}, lag {last['charts/lag']}")

# %% tags=["claims"]
assert all(np.isfinite(last[name]) for name in last if "losses" in name)
assert last["charts/lag"] == 3

# %% [markdown]
# ## Summary
#
# - Actors pay where collecting is slow: with four of them a run took about a quarter of the time
#   that one took.
# - The price is the lag. In turns it is the number of unrolls under way, less one.
# - A slot belongs to one side at a time. A token through a pipe hands it over, so nothing is
#   half read, and memory is bounded.
# - The learner knows which tokens an actor holds. A dead actor's successor gets the same ones, so
#   a killed process costs no unroll and leaves the count right.
# - The same actor runs in one process, in many, or on a cluster.
#
# ## Exercises
#
# ### Exercise 1: predict
#
# No code, just think.

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import predict

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
# An actor has died. The function gets the learner's record of that actor: `("go", slot)` is a
# token that the learner sent, `("whole", slot)` one that came back with its unroll. It is meant
# to return the tokens that the successor must get, in the order in which they were sent. It is
# right as long as nothing has come back; after that, two sides may have the same token. Fix it.


# %%
def answer(events):
    held = []
    for kind, slot in events:
        if kind == "go" and slot not in held:
            held.append(slot)
    return held


# %% tags=["hide-input"]
from literate_rl.agents import grade


def left_behind(events):
    held = []
    for kind, slot in events:
        if kind == "go":
            held.append(slot)
        else:
            held.remove(slot)
    return held


accidents = [
    [("go", 0), ("go", 1)],
    [("go", 0), ("go", 1), ("whole", 0), ("go", 0)],
    [("go", 0), ("go", 1), ("whole", 0), ("whole", 1)],
]
grade(answer, left_behind, *[(events,) for events in accidents])


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(events):
    # A token that came back is the learner's. A second actor with the same token would write
    # to a slot while the learner reads it, and its unroll would count twice.
    sent = [slot for kind, slot in events if kind == "go"]
    back = sum(kind == "whole" for kind, _ in events)
    # An actor takes its tokens in order, so what came back came from the front.
    return sent[back:]


grade(answer, left_behind, *[(events,) for events in accidents])

# %% [markdown]
# ### Exercise 3: experiment
#
# Do more than two slots ever help? Here the tokens of one actor are followed on paper. An update
# takes 1 second. An unroll takes half a second, but every tenth one takes 4. `pace(slots)`
# returns how many unrolls are learned from in a second. How many slots does the actor need for 98
# % of the pace that it has with 20? Guess first, then let `answer` return the smallest such
# number.


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
# {cite:t}`hoffman2020`. Central inference: {cite:t}`espeholt2020`, {cite:t}`petrenko2020` and
# {cite:t}`hessel2021`.

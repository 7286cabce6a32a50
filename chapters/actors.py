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
# **How do many processes collect for one learner, so that nothing is lost, nothing is counted
# twice and nobody waits for the dead?** Processes die, machines come and go, and a learner may
# be slower than those who feed it.
#
# At the end of this chapter you can run the policy of {doc}`/chapters/impala` with actors in
# one process, in several, or on a Ray cluster, all with the same code. You can say how old the
# weights are that the data come from, and why a process that is killed can do no harm.

# %% tags=["export", "hide-input"]
"""Actors and a learner: in one process, in several with shared memory, or on Ray."""

from __future__ import annotations

import copy
import math
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from literate_rl.agents import Collector
from literate_rl.impala import IMPALAConfig, IMPALAPolicy, impala_settings
from literate_rl.workshop.fast import numpy_act
from literate_rl.workshop.runs import check_counts, check_setting, env_seed

__all__ = [
    "Actor",
    "ActorLearner",
    "ActorProcess",
    "ActorsConfig",
    "InProcess",
    "RayActors",
    "SharedMemory",
    "Transport",
    "actors_settings",
    "slot_layout",
]

# %% [markdown]
# ## Slots and tokens
#
# An **actor** has environments and a copy of the policy. It acts for $T$ steps and writes down what
# happened: an *unroll*. The **learner** learns from one unroll after the other. Between them
# there is memory that both can see. It is cut into **slots**, and a slot has two pockets:
#
# | pocket | written by | read by |
# |---|---|---|
# | weights | the learner | the actor |
# | unroll | the actor | the learner |
#
# At any time a slot belongs to one side only. It goes to the other side as a **token**, a number
# that is sent through a pipe. That is the whole protocol:
#
# 1. The learner writes its weights into a slot and sends the token to the slot's actor.
# 2. The actor copies the weights, acts, writes the unroll and sends the token back.
# 3. The learner learns from the unroll. Then the slot is free, and we are back at 1.

# %% tags=["hide-input"] mystnb={"image": {"alt": "A learner on the left and two actors on the right. Between them each actor has two slots, boxes with a pocket for weights and a pocket for an unroll. Arrows show tokens: from the learner to an actor when weights are written, and back when the unroll is whole"}}
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

fig, axis = plt.subplots(figsize=(7, 3.2))
axis.set(xlim=(0, 10), ylim=(0, 4.4))
axis.set_axis_off()


def box(x, y, width, height, text, color, alpha=0.3):
    """Draw a coloured box with a text in its middle."""
    axis.add_patch(Rectangle((x, y), width, height, color=color, alpha=alpha))
    axis.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9)


def token(x, y, to_x, text):
    """Draw an arrow for a token that is sent through a pipe."""
    arrow = {"arrowstyle": "->", "color": "C3", "linewidth": 1.5}
    axis.annotate("", (to_x, y), (x, y), arrowprops=arrow)
    axis.text((x + to_x) / 2, y + 0.12, text, ha="center", fontsize=8, color="C3")


box(0, 0.3, 1.5, 3.6, "learner", "C0")
for actor, y in enumerate((2.3, 0.3)):
    box(8.5, y, 1.5, 1.6, f"actor {actor}", "C1")
    for slot in range(2):
        x = 3.1 + 1.95 * slot
        box(x, y + 0.95, 1.8, 0.55, "weights", "C0")
        box(x, y + 0.35, 1.8, 0.55, "unroll", "C1")
        axis.text(x + 0.9, y + 0.05, f"slot {slot}", ha="center", fontsize=8)
    token(1.55, y + 1.2, 3.0, "go")
    token(6.95, y + 1.2, 8.4, "go")
    token(8.4, y + 0.5, 6.95, "whole")
    token(3.0, y + 0.5, 1.55, "whole")
fig.tight_layout()

# %% [markdown]
# **What to notice.** Each actor has slots and pipes of its own. So there is no lock that two of
# them share, and nobody can die while holding one. What else can go wrong, and what prevents it:
#
# | what could happen | why it does not |
# |---|---|
# | the learner reads half an unroll | the token comes after the last number, and without the token nobody looks |
# | an actor reads half of the new weights | they lie in the actor's own slot, and the learner has given it away |
# | an actor is killed while it writes | its token never comes; the pipe ends, and the learner sees it at once |
# | an actor is killed while it sends | a token is far below the size up to which a pipe takes all or nothing |
# | unrolls get lost or count twice | the learner knows which tokens an actor holds, and a new actor gets the same |
# | the learner is slow | there are no more tokens, so the actors sleep; the memory is the slots and never grows |
# | the learner is killed | the pipes end for the actors too, and each of them leaves |
#
# One thing is not prevented. An actor that *hangs* cannot be told from one that is slow. The
# others go on without it. If all hang, the learner waits, until somebody presses Ctrl-C twice.
#
# One question is left. The actor's numbers go into memory, the token goes through a pipe. May the
# token arrive while some of the numbers are still in a cache of the other processor? No. To send
# and to receive are calls into the kernel, which takes the same lock for both. Whatever was
# written before the lock was released is seen by the one who takes it next. Code without such a
# call, with a flag in shared memory for instance, would need barriers that Python does not have.
#
# ## The lag
#
# The **version** of the learner's weights is the number of unrolls that it has learned from. An
# unroll was made with the version that lay in its slot. When it is learned from, the learner is
# at a later one. The difference is the **lag**
#
# $$
# d = \text{version of the learner} - \text{version of the unroll} .
# $$ (policy-lag)
#
# With $n_A$ actors that have $n_S$ slots each, $n_A n_S$ unrolls are under way. If all actors are
# equally fast, every other slot is learned from while one goes round, and after the first round
#
# $$
# d = n_A n_S - 1 .
# $$ (lag-of-turns)
#
# So the number of slots decides how old the data are, as long as the actors keep pace. An unroll of
# an actor that was held up may be of any age. The memory is bounded always. If $b_w$ and $b_u$
# are the bytes of the weights and of an unroll, it is
#
# $$
# n_A \, n_S \, (b_w + b_u) .
# $$ (slot-memory)
#
# One slot for each actor is too few: the actor waits while the learner learns. With two it
# fills one while the other is learned from. More make the data older. They help only where
# the time that an unroll takes changes from one to the next.
#
# ## Settings


# %% tags=["export"]
@dataclass(frozen=True)
class ActorsConfig(IMPALAConfig):
    """Settings of IMPALA with actors.

    An update learns from one unroll of one actor, so ``batch_size`` and the replay
    buffer play no role; ``update_per_collect`` updates are taken on each unroll.

    Attributes:
        actors: Number of actors, each with as many environments as a collection has
            samples, or none for the loop without actors.
        transport: Where the actors are: in_process, one after the other; shared, in
            processes of their own, with shared memory; or ray.
        slots: Unrolls that an actor may have under way.
        address: Address of the Ray cluster to join, HOST:PORT, or none to start one
            here.
    """

    actors: int | None = None
    transport: str = "in_process"
    slots: int = 2
    address: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ["slots"] + ["actors"] * (self.actors is not None))
        places = ("in_process", "shared", "ray")
        check_setting(self, "transport", places.__contains__, f"one of {places}")
        if self.address is not None and self.transport != "ray":
            raise ValueError(f"transport must be ray for address {self.address}")
        if self.actors is None and self.transport != "in_process":
            raise ValueError(f"actors must be given for transport {self.transport}")
        if self.actors is not None and (self.priority or self.lag or self.on_policy):
            raise ValueError(
                "priority and on_policy must be False and lag 0 with actors: there is "
                "no replay buffer, and the lag comes about by itself"
            )


def actors_settings(env: str) -> ActorsConfig:
    """Return settings for an environment: those of IMPALA, without actors.

    Args:
        env: Id of the environment.
    """
    return ActorsConfig(**asdict(impala_settings(env)))


# %% [markdown]
# ## A slot in memory
#
# A slot is one record of fixed size, with a place for each array. NumPy has a type for that, a
# *structured* dtype, and a view of a field costs nothing. The fields are those that
# `IMPALAPolicy.learn` reads, so that an unroll can be learned from where it lies. What an action
# looks like, and what the policy says of it, is found out by asking the policy once.


# %% tags=["export"]
Weights = Mapping[str, Any]  # arrays by the names of the policy's `state_dict`


def weights_of(policy: Any) -> dict[str, NDArray[Any]]:
    """Return a policy's weights as arrays; on the CPU they share its memory."""
    return {name: x.cpu().numpy() for name, x in policy.state_dict().items()}


def slot_layout(
    policy: Any, envs: VectorEnv[Any, Any, Any], unroll_len: int
) -> np.dtype[np.void]:
    """Describe the memory of one slot.

    Args:
        policy: A policy with the methods of the PPO chapter.
        envs: The vector environment of one actor, with B copies.
        unroll_len: Steps T of an unroll.

    Returns:
        A structured dtype with two fields. ``weights`` has a field for each tensor of
        the policy. ``unroll`` has time-major fields: ``obs_plus_1``,
        ``(T + 1, B, *)``; ``next_obs``, ``logit`` and ``action``, ``(T, B, *)``;
        ``reward``, ``done``, ``truncated``, ``weight`` and ``episode_return``, (T, B).
    """
    steps = (unroll_len, envs.num_envs)
    shape = envs.single_observation_space.shape or ()
    device = next(policy.parameters()).device
    with torch.no_grad():
        obs = torch.zeros((envs.num_envs, *shape), device=device)
        row, action = policy(obs).cpu(), policy.act(obs, 0.0).cpu().numpy()
    unroll = np.dtype(
        [
            ("obs_plus_1", np.float32, (unroll_len + 1, envs.num_envs, *shape)),
            ("next_obs", np.float32, (*steps, *shape)),
            ("logit", np.float32, (*steps, *row.shape[1:])),
            ("action", action.dtype, (*steps, *action.shape[1:])),
            ("reward", np.float32, steps),
            ("done", np.bool_, steps),
            ("truncated", np.bool_, steps),
            ("weight", np.float32, steps),
            ("episode_return", np.float32, steps),
        ],
        align=True,
    )
    weights = np.dtype(
        [(name, x.dtype, x.shape) for name, x in weights_of(policy).items()],
        align=True,
    )
    return np.dtype([("weights", weights), ("unroll", unroll)], align=True)


def fill(pocket: Any, weights: Weights) -> None:
    """Copy weights into the pocket of a slot."""
    for name, array in weights.items():
        pocket[name] = array


# %%
from literate_rl.agents import make_envs
from literate_rl.impala import impala_settings
from literate_rl.policies import make_policy
from literate_rl.workshop.runs import flat_env

torch.manual_seed(1)
envs = make_envs(partial(flat_env, "CartPole-v1"), 4)
policy = make_policy(envs.single_observation_space, envs.single_action_space)
layout = slot_layout(policy, envs, unroll_len=32)
for pocket in ("weights", "unroll"):
    fields = layout[pocket].fields
    print(f"{pocket}: {layout[pocket].itemsize} bytes")
    for name in list(fields)[:3]:
        print(f"  {name:15s} {fields[name][0].shape}")

# %% [markdown]
# ## The actor
#
# The actor is the same everywhere. It gets weights and a place to write to, and it knows nothing
# about tokens, processes or learners. While it acts it needs one thing only, the action, and
# `numpy_act` of {doc}`/chapters/workshop/fast` is quick at that. The weights stay the same for the whole
# unroll. So what the policy said, which V-trace wants to know, is computed for all steps at once
# when the unroll is over.
#
# Environments that reset themselves a step later (mode `NEXT_STEP`) have a phantom row after
# each episode. It gets the weight 0. In front of it is a `done`, so nothing flows across.


# %% tags=["export"]
class Actor:
    """Acts for one unroll at a time, with weights that it is given.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy of the PPO chapter on the CPU. It is copied.
        seed: Decides the noise and the environments' random numbers.
    """

    def __init__(
        self, make_envs: Callable[[], VectorEnv[Any, Any, Any]], policy: Any, seed: int
    ) -> None:
        self.policy = copy.deepcopy(policy).eval()
        self.weights = weights_of(self.policy)
        self.act = numpy_act(self.policy)
        self.generator = torch.Generator().manual_seed(seed)
        self.collector = Collector(make_envs(), self.policy.to_env, np.float32)
        self.collector.reset(env_seed(seed, 0))

    @torch.no_grad()
    def unroll(self, weights: Weights, out: Any) -> None:
        """Act for one unroll.

        Args:
            weights: The weights to act with.
            out: Where to write, arrays by the names of ``slot_layout``'s ``unroll``.

        Raises:
            ValueError: If the environments have other observations than ``out`` has
                room for, or give a number that is not finite.
        """
        num_steps, num_envs, *shape = out["next_obs"].shape
        seen = np.shape(self.collector.obs)
        if seen != (num_envs, *shape):
            raise ValueError(
                f"make_envs must make environments with observations "
                f"{(num_envs, *shape)}, got {seen}"
            )
        for name, array in self.weights.items():
            array[...] = weights[name]
        noise = iter(self.policy.noise(num_steps, num_envs, self.generator))
        batch = self.collector.collect(
            lambda obs: self.act(obs, next(noise)), num_steps
        )
        # The weights have not changed since the first step, so this is what the policy
        # said at each of them.
        out["logit"] = self.policy(batch.obs)
        out["obs_plus_1"][:-1], out["obs_plus_1"][-1] = batch.obs, batch.next_obs[-1]
        for name in ("next_obs", "action", "reward", "episode_return"):
            out[name] = getattr(batch, name)
        # A step that is terminated is not truncated too, and a phantom weighs nothing.
        out["done"] = batch.terminated | batch.truncated
        out["truncated"] = batch.truncated & ~batch.terminated
        out["weight"] = batch.real


# %%
actor = Actor(partial(make_envs, partial(flat_env, "CartPole-v1"), 4), policy, seed=1)
slot = np.zeros((), layout)
actor.unroll(weights_of(policy), slot["unroll"])
print("rewards paid:", slot["unroll"]["reward"].sum())
ended = slot["unroll"]["episode_return"]
print("returns of episodes that ended:", ended[~np.isnan(ended)])

# %% [markdown]
# ## Three transports
#
# A transport carries slots to the actors and back. To the learner all transports look alike.


# %% tags=["export"]
Slot = tuple[int, int]  # number of the actor, and of the slot among its slots


class Transport(Protocol):
    """What the learner asks of a transport."""

    @property
    def waiting(self) -> int:
        """Whole unrolls that wait for the learner."""
        ...

    @property
    def at_work(self) -> int:
        """Actors that have delivered an unroll in their present life."""
        ...

    @property
    def replaced(self) -> int:
        """Actors that died and were replaced."""
        ...

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Give a slot with these weights to its actor. The weights are copied."""
        ...

    def receive(self) -> tuple[Slot, Any]:
        """Wait for a whole unroll; it may be read until its slot is submitted."""
        ...

    def close(self) -> None:
        """End all actors. May be called twice."""
        ...


def life_seeds(seed: int) -> Iterator[int]:
    """Yield a seed for each life of an actor, unrelated to all others."""
    seeds = np.random.SeedSequence(seed)
    while True:
        yield int(seeds.spawn(1)[0].generate_state(1)[0])


# %% [markdown]
# ### In one process
#
# The actors take turns. An unroll is made when the learner asks for it, with the weights that the
# slot was given. They are as old as in a real system, and every run is the same as the last, so
# this is the transport for experiments and for debugging.


# %% tags=["export"]
class InProcess:
    """Actors that take turns in this process; the same seed gives the same unrolls.

    Args:
        make_actor: Function from a seed to an ``Actor``.
        layout: What ``slot_layout`` returned.
        seed: Decides the seeds of the actors.
        actors: Number of actors.
        slots: Slots of each of them.
    """

    waiting = replaced = 0

    def __init__(
        self,
        make_actor: Callable[[int], Actor],
        layout: np.dtype[np.void],
        seed: int,
        actors: int,
        slots: int,
    ) -> None:
        seeds = life_seeds(seed)
        self.actors = [make_actor(next(seeds)) for _ in range(actors)]
        self.memory = np.zeros((actors, slots), layout)
        self.tasks: deque[Slot] = deque()
        self.at_work = actors

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Write the weights down; the slot's turn comes later."""
        fill(self.memory[slot]["weights"], weights)
        self.tasks.append(slot)

    def receive(self) -> tuple[Slot, Any]:
        """Let the actor act whose turn it is."""
        # Those that were submitted first come first: this gives {eq}`lag-of-turns`.
        slot = self.tasks.popleft()
        record = self.memory[slot]
        self.actors[slot[0]].unroll(record["weights"], record["unroll"])
        return slot, record["unroll"]

    def close(self) -> None:
        """Close the environments."""
        for actor in self.actors:
            actor.collector.envs.close()


# %% [markdown]
# ### In processes of their own
#
# Now the protocol from the beginning. A few decisions need a reason.
#
# **The memory** is anonymous. It has no name in the file system, so nothing is left behind,
# no matter which process is killed.
#
# **The processes** come from a *fork server*. To import PyTorch takes seconds. The server is a
# fresh process that imports this module once and then copies itself for each actor. So a dead actor
# costs a copy and the making of its environments, and no import. To copy the *learner* would be quicker still and wrong:
# it has threads, and a copy has the locks of all threads but only one of the threads.
#
# **Ctrl-C** is sent by the terminal to all processes of the group. The learner wants to finish its
# iteration, and it needs its actors for that. So they are started with the signal blocked, from
# their first instruction on. They end when the pipe ends.
#
# **A death and an error** are two things. A process that was killed is an accident, and it is
# mended. But an actor that dies three times in a row without a single unroll ends the run. One
# that dies later is replaced as often as it takes, and the metrics count it. An exception in an
# environment is a mistake in the program and would come again, so it ends the run, with the
# actor's traceback, just as it does in one process.


# %% tags=["export"]
# An actor that dies so often without a single unroll will not live next time either.
PATIENCE = 3


def count_stillborn(before: int, actor: int, unrolls: int, how: object) -> int:
    """Return how often in a row an actor has died without an unroll, or lose patience.

    Args:
        before: What this function returned the last time.
        actor: Number of the actor.
        unrolls: Unrolls that it delivered before it died now.
        how: What is known of its death.

    Raises:
        ChildProcessError: If it is ``PATIENCE`` times.
    """
    count = 0 if unrolls else before + 1
    if count == PATIENCE:
        raise ChildProcessError(
            f"actor {actor} died {PATIENCE} times before its first unroll, the last "
            f"time with {how}. (A script that starts actors needs the line "
            '`if __name__ == "__main__":` in front of what it does.)'
        )
    return count


def run_actor(
    recipe: bytes,
    seed: int,
    memory: Any,
    layout: np.dtype[np.void],
    tasks: Connection,
    whole: Connection,
) -> None:
    """Be an actor: take tokens, fill their slots, send them back."""
    torch.set_num_threads(1)
    slots = np.frombuffer(memory, layout)
    try:
        actor = pickle.loads(recipe)(seed)
        for index in tokens(tasks):
            actor.unroll(slots[index]["weights"], slots[index]["unroll"])
            whole.send(index)
    except BaseException:
        # An environment that calls `sys.exit` is an error too. If the learner is gone,
        # there is nobody to tell.
        with suppress(OSError):
            whole.send(traceback.format_exc())


def tokens(connection: Connection) -> Iterator[int]:
    """Yield tokens until the pipe ends."""
    with suppress(EOFError):
        while True:
            yield connection.recv()


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


def pickled(make_actor: Callable[[int], Actor]) -> bytes:
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


@dataclass
class ActorProcess:
    """One actor process, as the learner sees it.

    Attributes:
        process: The process.
        tasks: Where tokens go to it.
        whole: Where they come back.
        held: Tokens that it has, in the order in which they were sent.
        unrolls: Unrolls that it has delivered.
    """

    process: Any
    tasks: Connection
    whole: Connection
    held: list[int] = field(default_factory=list)
    unrolls: int = 0

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
        """Hang up; wait for the process to leave, then kill it."""
        self.hang_up()
        self.process.join(patience)
        self.process.kill()
        self.process.join()


# %% [markdown]
# The learner waits for all pipes at once. When one ends, its actor is dead. The next actor in that
# place gets a new seed and the tokens of the dead one. The weights are still in their slots.


# %% tags=["export"]
class SharedMemory:
    """Actors in processes of their own, with memory that both sides see.

    Args:
        make_actor: Function from a seed to an ``Actor`` that can be pickled.
        layout: What ``slot_layout`` returned.
        seed: Decides the seeds of the actors.
        actors: Number of actors.
        slots: Slots of each of them.

    Raises:
        ValueError: If ``make_actor`` cannot be pickled.
    """

    replaced = 0

    def __init__(
        self,
        make_actor: Callable[[int], Actor],
        layout: np.dtype[np.void],
        seed: int,
        actors: int,
        slots: int,
    ) -> None:
        self.recipe, self.layout = pickled(make_actor), layout
        self.seeds = life_seeds(seed)
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(["literate_rl.actors"])
        # All the memory that there will ever be, {eq}`slot-memory`.
        size = slots * layout.itemsize
        self.memory = [self.context.RawArray("B", size) for _ in range(actors)]
        self.slots = [np.frombuffer(memory, layout) for memory in self.memory]
        self.stillborn = [0] * actors
        self.whole: deque[Slot] = deque()
        self.lives = [self.start(actor) for actor in range(actors)]

    @property
    def waiting(self) -> int:
        """Whole unrolls that wait for the learner."""
        return len(self.whole)

    @property
    def at_work(self) -> int:
        """Actors that have delivered an unroll in their present life."""
        return sum(life.unrolls > 0 for life in self.lives)

    def start(self, actor: int) -> ActorProcess:
        """Start a process that becomes the actor of this number."""
        take, tasks = self.context.Pipe(duplex=False)
        whole, give = self.context.Pipe(duplex=False)
        arguments = (self.recipe, next(self.seeds), self.memory[actor], self.layout)
        process = self.context.Process(
            target=run_actor, args=(*arguments, take, give), daemon=True
        )
        with interrupts_blocked():
            process.start()
        # A pipe ends when nobody is left at its other side. So the learner keeps no
        # copy of the actor's ends.
        take.close()
        give.close()
        return ActorProcess(process, tasks, whole)

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
        return (actor, index), self.slots[actor][index]["unroll"]

    def hear(self, pipe: Any) -> None:
        """Read a message: a token, the text of an error, or the end of the pipe."""
        actor = [life.whole for life in self.lives].index(pipe)
        life = self.lives[actor]
        try:
            message = life.whole.recv()
        except (EOFError, OSError):
            self.replace(actor)
            return
        if isinstance(message, str):
            raise ChildProcessError(f"actor {actor} failed:\n{message}")
        life.held.remove(message)
        life.unrolls += 1
        self.whole.append((actor, message))

    def replace(self, actor: int) -> None:
        """Start a new actor in the place of a dead one, with the same tokens."""
        dead = self.lives[actor]
        dead.end(patience=1.0)
        how = f"exit code {dead.process.exitcode}"
        before = self.stillborn[actor]
        self.stillborn[actor] = count_stillborn(before, actor, dead.unrolls, how)
        self.replaced += 1
        self.lives[actor] = self.start(actor)
        for index in dead.held:
            self.lives[actor].send(index)

    def close(self) -> None:
        """End all processes; one that does not leave within seconds is killed."""
        for life in self.lives:
            life.hang_up()
        last_moment = time.monotonic() + 2.0
        for life in self.lives:
            life.end(patience=max(0.0, last_moment - time.monotonic()))
        self.lives, self.whole = [], deque()


# %% [markdown]
# ### On a Ray cluster
#
# [Ray](https://docs.ray.io) {cite:p}`moritz2018` starts Python objects on other machines and calls
# their methods. A call returns a reference at once, the result comes later. So the weights of a
# slot become an object in Ray's store, the token becomes a reference, and the rest is as
# before: a slot is one call, no actor has more calls under way than it has slots, and an actor
# that died together with its machine is replaced on another one.


# %% tags=["export"]
class RemoteActor:
    """An actor on Ray, which returns its unrolls.

    Args:
        make_actor: Function from a seed to an ``Actor``.
        layout: What ``slot_layout`` returned.
        seed: Seed of this life.
    """

    def __init__(
        self,
        make_actor: Callable[[int], Actor],
        layout: np.dtype[np.void],
        seed: int,
    ) -> None:
        torch.set_num_threads(1)
        self.actor, self.layout = make_actor(seed), layout

    def unroll(self, weights: Weights) -> NDArray[np.void]:
        """Act for one unroll and return it, an array of one record."""
        record = np.zeros(1, self.layout["unroll"])
        self.actor.unroll(weights, record[0])
        return record


def import_ray() -> Any:
    """Import Ray, or say how to get it."""
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise ValueError(
            "transport ray needs Ray: pip install 'literate-rl[ray]'"
        ) from error


class RayActors:
    """Actors on a Ray cluster.

    If Ray runs in this process already, it is used as it is and stays.

    Args:
        make_actor: Function from a seed to an ``Actor`` that can be pickled.
        layout: What ``slot_layout`` returned.
        seed: Decides the seeds of the actors.
        actors: Number of actors; each takes one CPU of the cluster.
        address: Address of the cluster to join, HOST:PORT. None starts one on this
            machine.

    Raises:
        ValueError: If Ray is not installed, if no cluster answers at the address, or
            if Ray runs in this process already and an address is given.
    """

    replaced = waiting = 0

    def __init__(
        self,
        make_actor: Callable[[int], Actor],
        layout: np.dtype[np.void],
        seed: int,
        actors: int,
        address: str | None = None,
    ) -> None:
        self.ray = import_ray()
        self.started = not self.ray.is_initialized()
        if self.started:
            self.join(actors, address)
        elif address is not None:
            raise ValueError(
                f"address must be None where Ray runs already, got {address}"
            )
        self.make_actor, self.layout = make_actor, layout
        self.seeds = life_seeds(seed)
        self.stillborn, self.unrolls = [0] * actors, [0] * actors
        self.actors = [self.start() for _ in range(actors)]
        self.weights: dict[Slot, Any] = {}
        self.pending: dict[Any, Slot] = {}

    def join(self, actors: int, address: str | None) -> None:
        """Join a cluster, or start one with a CPU for each actor."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False}
        if address is None:
            options |= {"num_cpus": actors, "include_dashboard": False}
        try:
            if address is not None:
                # Ray itself would try for many minutes.
                host, _, port = address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), timeout=10).close()
            self.ray.init(address or "local", **options)
        except (OSError, ValueError) as error:
            message = f"no Ray cluster answers at address {address}: {error}"
            raise ValueError(message) from error

    @property
    def at_work(self) -> int:
        """Actors that have delivered an unroll in their present life."""
        return sum(unrolls > 0 for unrolls in self.unrolls)

    def start(self) -> Any:
        """Start an actor somewhere in the cluster."""
        remote = self.ray.remote(num_cpus=1)(RemoteActor)
        return remote.remote(self.make_actor, self.layout, next(self.seeds))

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Put the weights into Ray's store and make the call."""
        self.weights[slot] = self.ray.put(dict(weights))
        self.call(slot)

    def call(self, slot: Slot) -> None:
        """Ask a slot's actor for an unroll with the slot's weights."""
        reference = self.actors[slot[0]].unroll.remote(self.weights[slot])
        self.pending[reference] = slot

    def receive(self) -> tuple[Slot, Any]:
        """Wait for a whole unroll, and replace actors that have died meanwhile."""
        errors = self.ray.exceptions
        while True:
            calls = list(self.pending)
            done, _ = self.ray.wait(calls, num_returns=len(calls), timeout=0)
            if not done:
                done, _ = self.ray.wait(calls, num_returns=1)
            slot = self.pending[done[0]]
            try:
                # A copy, so that Ray's store need not keep it, and torch may view it.
                record = np.array(self.ray.get(done[0]))[0]
            except (errors.RayActorError, errors.ObjectLostError) as error:
                self.replace(slot[0], error)
                continue
            except errors.RayTaskError as error:
                message = f"actor {slot[0]} failed:\n{error}"
                raise ChildProcessError(message) from error
            del self.pending[done[0]]
            self.waiting = len(done) - 1
            self.unrolls[slot[0]] += 1
            return slot, record

    def replace(self, actor: int, error: Exception) -> None:
        """Start a new actor in the place of a dead one, with the same calls."""
        before, unrolls = self.stillborn[actor], self.unrolls[actor]
        self.stillborn[actor] = count_stillborn(before, actor, unrolls, error)
        self.replaced += 1
        self.unrolls[actor] = 0
        self.actors[actor] = self.start()
        lost = [call for call, slot in self.pending.items() if slot[0] == actor]
        for call in lost:
            self.call(self.pending.pop(call))

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in self.actors:
            self.ray.kill(actor)
        self.actors, self.pending = [], {}
        if self.started:
            self.ray.shutdown()
            self.started = False


# %% [markdown]
# ## The learner
#
# The learner has the methods that `fit` asks for ({doc}`/chapters/workshop/runs`), so progress,
# directories, checkpoints and the command line work as they do for any other. The transport is
# started with the first iteration. Until then the learner may be restored from a checkpoint,
# and so the first weights that go out are the right ones.
#
# A resumed run goes on with fresh actors. It is as good a run as one that was not stopped, but not
# the same one. Which unroll arrives first is decided by the machine, and no seed can change that.


# %% tags=["export"]
class ActorLearner:
    """Learns from what actors collect, one unroll at a time.

    Use it as a context manager, or call ``close``, so that the actors end.

    Args:
        impala: The policy to train, with ``ActorsConfig`` as its settings.
        make_envs: Function that makes the vector environment of one actor, with
            ``config.n_sample`` copies.

    Raises:
        TypeError: If ``make_envs`` makes no vector environment.
        ValueError: If ``config.actors`` is None, or the number of environments is
            another one.
    """

    def __init__(
        self,
        impala: IMPALAPolicy,
        make_envs: Callable[[], VectorEnv[Any, Any, Any]],
    ) -> None:
        config: Any = impala.config
        if config.actors is None:
            raise ValueError("actors must be at least 1, got None")
        envs = make_envs()
        if not isinstance(envs, VectorEnv):
            kind = type(envs).__name__
            raise TypeError(f"make_envs must make a vector environment, got {kind}")
        if envs.num_envs != config.n_sample:
            raise ValueError(
                f"make_envs must make {config.n_sample} copies, got {envs.num_envs}"
            )
        self.impala, self.config, self.policy = impala, config, impala.model
        self.layout = slot_layout(self.policy, envs, config.unroll_len)
        envs.close()
        # The recipe of an actor: what is missing is the seed.
        policy = copy.deepcopy(self.policy).cpu()
        self.make_actor = partial(Actor, make_envs, policy)
        self.transport: Transport | None = None
        self.versions: dict[Slot, int] = {}
        self.step = self.version = 0

    @property
    def total_steps(self) -> int:
        """Steps after which the training is over."""
        return self.config.total_steps  # type: ignore[no-any-return]

    @property
    def checkpoint_due(self) -> bool:
        """Whether the run is to be saved before the next iteration."""
        return self.version % self.config.checkpoint_interval == 0  # type: ignore[no-any-return]

    def start(self) -> Transport:
        """Start the actors and hand out all slots."""
        config = self.config
        # A resumed run has another step, and so other seeds.
        seed = env_seed(config.seed, self.step)
        common = (self.make_actor, self.layout, seed, config.actors)
        transport: Transport
        if config.transport == "ray":
            transport = RayActors(*common, config.address)
        elif config.transport == "shared":
            transport = SharedMemory(*common, config.slots)
        else:
            transport = InProcess(*common, config.slots)
        self.hand_out(transport)
        return transport

    def hand_out(self, transport: Transport) -> None:
        """Take a transport and give all of its slots away, to the actors in turns."""
        self.transport = transport
        for index in range(self.config.slots):
            for actor in range(self.config.actors):
                self.submit(transport, (actor, index))

    def submit(self, transport: Transport, slot: Slot) -> None:
        """Give a slot away, with the weights as they are now."""
        self.versions[slot] = self.version
        transport.submit(slot, weights_of(self.policy))

    def iterate(self) -> dict[str, float]:
        """Wait for an unroll, learn from it, and return metrics.

        Whatever goes wrong, the actors are ended; the next call starts new ones.
        """
        transport = self.transport or self.start()
        try:
            slot, unroll = transport.receive()
            metrics = self.learn(unroll)
            # The lag {eq}`policy-lag`: versions since the slot was given away.
            lag = self.version - self.versions[slot]
            self.version += 1
            # From here on the unroll belongs to its actor again.
            self.submit(transport, slot)
        except BaseException:
            # Nobody would give this slot away again.
            self.close()
            raise
        return {
            **metrics,
            "charts/lag": lag,
            "charts/queue": transport.waiting,
            "charts/actors": transport.at_work,
            "charts/replaced": transport.replaced,
        }

    def learn(self, unroll: Any) -> dict[str, float]:
        """Take the updates on an unroll; return metrics."""
        config, impala = self.config, self.impala
        impala.anneal(self.step)
        names = self.layout["unroll"].names or ()
        batch: dict[str, Any] = {
            name: torch.from_numpy(unroll[name]).to(impala.device) for name in names
        }
        batch["logit"] = impala.describe(batch["logit"])
        for _ in range(config.update_per_collect):
            info = impala.learn(batch)
        self.step += unroll["reward"].size
        ended = unroll["episode_return"][~np.isnan(unroll["episode_return"])]
        mean = float(ended.mean()) if ended.size else math.nan
        losses = {f"losses/{k}": info[k] for k in impala.monitor_vars_learn()}
        return {"charts/episodic_return": mean, **losses}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        learner = self.impala.state_dict_learn()
        return {"step": self.step, "version": self.version, "impala": learner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned, with fresh actors."""
        step, version = state["step"], state["version"]
        self.impala.load_state_dict_learn(state["impala"])
        self.close()
        self.step, self.version = step, version

    def close(self) -> None:
        """End the actors; the next iteration would start new ones."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def __enter__(self) -> ActorLearner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# %% [markdown]
# ## See it: the lag, and what V-trace corrects
#
# First in one process, where everything can be repeated. One actor has 1, 2, 4, 8 or 16 slots. How
# far has the policy moved while an unroll was under way? We compare what the learner says of the
# actions with what the actor's policy said, right before each update.

# %% mystnb={"image": {"alt": "Two panels over the lag, which is 0, 1, 3, 7 and 15. Left: how far the ratios are from 1, which is 0 at lag 0 and grows steadily to about 20 percent at lag 15. Right: the share of the steps whose ratio is above 1, which is 0 at lag 0 and a little more than a half otherwise"}}
from dataclasses import replace

torch.set_num_threads(1)  # the networks are too small to be shared out


class Watched(ActorLearner):
    """Notes the ratio of new and old probability of each action, before learning."""

    def learn(self, unroll):
        seen = torch.from_numpy(unroll["obs_plus_1"][:-1])
        action = torch.from_numpy(unroll["action"])
        actions = self.policy.actions
        with torch.no_grad():
            new = actions.log_prob(self.policy(seen), action)
            old = actions.log_prob(torch.from_numpy(unroll["logit"]), action)
        self.ratio = (new - old).exp().numpy()
        return super().learn(unroll)


def make_learner(env, config, learner=ActorLearner):
    """Build the policy that fits the environments, and a learner with actors."""
    build = partial(make_envs, partial(flat_env, env), config.n_sample)
    envs = build()
    torch.manual_seed(config.seed)
    model = make_policy(envs.single_observation_space, envs.single_action_space)
    return learner(IMPALAPolicy(config, model), build)


config = replace(
    actors_settings("CartPole-v1"),
    actors=1,
    n_sample=8,
    unroll_len=32,
    update_per_collect=1,
    anneal=False,
)
lags, far, cut = [], [], []
for slots in (1, 2, 4, 8, 16):
    with make_learner("CartPole-v1", replace(config, slots=slots), Watched) as learner:
        lag, ratios = [], []
        for number in range(40):
            lag.append(learner.iterate()["charts/lag"])
            if number >= slots:
                ratios.append(learner.ratio)
    lags.append(lag[-1])
    far.append(np.abs(np.array(ratios) - 1).mean())
    cut.append((np.array(ratios) > 1 + 1e-4).mean())
    print(
        f"{slots:2d} slots: lag {lag[:4]} … {lag[-1]}, off by {far[-1]:.1%}, "
        f"above 1: {cut[-1]:.0%}"
    )

fig, axes = plt.subplots(1, 2, figsize=(7, 2.6))
axes[0].plot(lags, np.array(far) * 100, "o-")
axes[0].set(xlabel="lag", ylabel="mean distance from 1, in %", title="ratio")
axes[1].plot(lags, np.array(cut) * 100, "o-", color="C1")
axes[1].set(xlabel="lag", ylabel="% of the steps", title="ratio above 1, so clipped")
fig.tight_layout()

# %% [markdown]
# **What to notice.** Lag 0 is on-policy: each ratio is 1. The lag is what {eq}`lag-of-turns`
# says, and the further behind, the further off. The mean of the ratios stays near 1, because none
# of these unrolls has been learned from yet. Here a little more than half of them lie above 1: the
# policy becomes more decided, so the action that it takes more often becomes likelier still. V-trace
# counts those once and the others less ({doc}`/chapters/off_policy`).
#
# ## See it: processes that die
#
# Now real processes. A notebook cannot start processes that run its own functions, because
# another process has no file to import them from. So we write a program that takes everything
# from the package, and start that. A script that starts actors needs its last line, because each
# actor imports the script to find what it defines. Two actors work for a learner. After 25
# unrolls and after every 50 more the program kills one of them, by `SIGKILL`, which nobody can
# catch.

# %%
import json
import subprocess
import sys

program = """
import json, os, signal, sys
from functools import partial
import torch
from literate_rl.actors import ActorLearner, ActorsConfig
from literate_rl.agents import make_envs
from literate_rl.impala import IMPALAPolicy

def main(slots):
    torch.set_num_threads(1)
    config = ActorsConfig(
        model={"obs_shape": 4, "action_shape": 2}, actors=2, transport="shared",
        slots=slots, n_sample=4, unroll_len=16, update_per_collect=1,
    )
    rows, victims = [], []
    build = partial(make_envs, "CartPole-v1", 4)
    with ActorLearner(IMPALAPolicy(config), build) as learner:
        for number in range(1, 201):
            rows.append(learner.iterate() | {"step": learner.step})
            if number % 50 == 25:
                life = learner.transport.lives[number // 50 % 2]
                os.kill(life.process.pid, signal.SIGKILL)
                victims.append(life.process.pid)
    print(json.dumps({"rows": rows, "killed": len(victims)}))

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""
runs = {}
for slots in (1, 4):
    command = [sys.executable, "-c", program, str(slots)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    runs[slots] = json.loads(done.stdout)
    last = runs[slots]["rows"][-1]
    print(
        f"{slots} slots each: killed {runs[slots]['killed']}, replaced "
        f"{last['charts/replaced']}, steps trained on {last['step']} = 200 x 16 x 4"
    )

# %% mystnb={"image": {"alt": "Two histograms of the lag of 200 unrolls, with one slot for each of two actors and with four. With one slot nearly all lags are 0 or 1. With four slots most are 6 or 7, and a few lie beyond the dashed line at 7"}}
fig, axes = plt.subplots(1, 2, figsize=(7, 2.4), sharey=True)
for axis, (slots, run) in zip(axes, runs.items(), strict=True):
    lag = np.array([row["charts/lag"] for row in run["rows"]], dtype=int)
    numbers, counts = np.unique(lag.clip(max=15), return_counts=True)
    axis.bar(numbers, counts, color="C0")
    bound = 2 * slots - 1
    axis.axvline(bound, color="C3", linestyle="--", label=f"in turns: {bound}")
    axis.set(xlabel="lag (15: or more)", title=f"2 actors, slots of each: {slots}")
    axis.set(xlim=(-0.7, 15.7), xticks=range(0, 16, 3))
    axis.legend(fontsize=8)
    print(
        f"{slots} slots: {np.mean(lag <= bound):.0%} of the lags are at most {bound}, "
        f"the largest is {lag.max()}"
    )
axes[0].set_ylabel("unrolls")
fig.tight_layout()

# %% [markdown]
# **What to notice.** The count of steps is exact, although actors were killed. Most lags are at most what
# {eq}`lag-of-turns` gives for actors that take turns. Some are larger: while a dead actor is
# replaced, the other one goes round more often, and the first unrolls of the new one come late.
# The lag is a figure to look at in every run, and the command shows it in its progress bar.
#
# ## Does it learn?
#
# Which unroll comes first is up to the machine, and nearly all are a few versions old. Here are
# runs on CartPole with two actor processes, beside the loop without actors from
# {doc}`/chapters/impala`, five seeds each. The settings are the same, apart from the replay
# buffer, which there is none of. `python -m benchmarks.impala_learning impala_actors` trains them.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Learning curves over 200,000 steps, five thin lines and their mean for each of two systems. Both rise from 30 to 500, one process within 130,000 steps, two actor processes within 170,000. One run with actors lies near 20 around 90,000 steps"}}
from literate_rl.evaluation import paired_difference, t_interval
from literate_rl.workshop.runs import stored_runs

fig, axis = plt.subplots(figsize=(7, 2.6))
systems = {"one process": "impala_cartpole", "two actor processes": "impala_actors"}
for (label, name), color in zip(systems.items(), ("C0", "C1"), strict=True):
    (runs,) = stored_runs(name).values()
    steps = runs.steps / 1000
    axis.plot(steps, runs.curves.T, color=color, alpha=0.3, linewidth=0.7)
    axis.plot(steps, runs.curves.mean(0), color=color, linewidth=2, label=label)
    low, high = t_interval(runs.area)
    print(f"{label}: {runs.area.mean():.0f} ({low:.0f} to {high:.0f}) while training,")
    print("    at the end, without noise:", runs.final.round().tolist())
alone, both = (next(iter(stored_runs(name).values())) for name in systems.values())
found = paired_difference(both.area, alone.area)
print(f"difference: {found.mean:.0f} ({found.low:.0f} to {found.high:.0f})")
axis.set(xlabel="thousand steps", ylabel="return while training")
axis.legend(loc="lower right")
fig.tight_layout()

# %% [markdown]
# **What to notice.** All ten runs end at the top or within three points of it. With actors they need
# more steps to get there on average, but the interval of the difference includes zero, so five
# seeds do not prove it; with one of them the actors are the faster ones. One run is down at 20 in
# between. One candidate for a reason is the age of the data: three versions are twelve updates here,
# four for each unroll. In {doc}`/chapters/impala` V-trace learned more slowly from data of a lag of
# 15, and no difference was seen with a lag of 5. What actors can buy is time, where environments are
# slow and processors are idle.

# %% tags=["claims"]
assert found.mean < 0 < found.high, "fewer steps would do, but it is not proven"
assert (both.area > alone.area).sum() == 1, "with one of them the actors are faster"
assert min(alone.final.min(), both.final.min()) > 497, "at the top or close to it"

# %% [markdown]
# ## The command line
#
# | you type | what happens |
# |---|---|
# | `python -m literate_rl impala --actors 2` | two actors that take turns in this process |
# | `… --actors 2 --transport shared` | two processes; the bar shows actors at work, queue, lag and steps per second |
# | `… --actors 8 --transport ray` | starts Ray here, with eight actors (`pip install 'literate-rl[ray]'`) |
# | `… --transport ray --address HOST:PORT` | joins a cluster that runs already |
# | Ctrl-C | ends after this unroll, saves, ends the actors, and prints how to go on |
# | `… --resume runs/NAME` | goes on from the last checkpoint, with fresh actors |
#
# ## Traps
#
# ### Trap: read after it was given back
#
# The unroll is a view of the slot's memory. Whoever keeps the view, and not a copy, and then gives
# the slot away, finds other numbers there a little later. That is why `iterate` reads all that it
# needs before it calls `submit`.

# %%
learner = make_learner("CartPole-v1", replace(config, slots=1))
learner.start()
slot, unroll = learner.transport.receive()
view = unroll["obs_plus_1"][0, 0]
copied = view.copy()
learner.submit(learner.transport, slot)
learner.transport.receive()
print("copied:", copied.round(3))
print("viewed:", view.round(3))
learner.close()

# %% [markdown]
# ### Trap: a queue without a bound
#
# Let an unroll take an actor 1 second and the learner 2. A queue without a bound takes everything,
# and nothing fails. But it grows for as long as the run lasts, and with it the memory, and with it
# the age of what is learned from.

# %%
for bound in (None, 2):
    made, learned, queue = 0, 0, []
    lag = []
    for second in range(1, 601):
        if bound is None or len(queue) < bound:
            queue.append(learned)  # made with the weights of this version
        if second % 2 == 0:
            lag.append(learned - queue.pop(0))
            learned += 1
    print(f"bound {bound}: {len(queue)} unrolls in the queue, last lag {lag[-1]}")

# %% [markdown]
# ### Trap: a lock that died with its owner
#
# In torchbeast all actors take the numbers of free buffers from one `SimpleQueue`. To take
# something they need its lock, and *they hold it while they wait*. If the one that waits is
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
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

# %% [markdown]
# A pipe for each actor has no lock.
#
# ### Trap: half of the new weights
#
# Where all actors read the same memory while the learner writes to it, an actor may see the first
# layer of one version and the second layer of the next. No learner ever had this policy. If the
# actor notes what the mixture says while it acts, the ratio is still right. If it looks it up in
# one of the two versions, the ratio is wrong:

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
for name, each in (("old version", old), ("new version", new)):
    ratio = (each(seen).log_softmax(-1) - torn(seen).log_softmax(-1)).exp()
    print(
        f"looked up in the {name}: ratios from {ratio.min():.2f} to {ratio.max():.2f}"
    )

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | scalable_agent | torchbeast (monobeast) | Sample Factory | RLlib | Acme |
# |---|---|---|---|---|---|---|
# | unrolls travel by | shared memory, or Ray's store | a TensorFlow queue on the learner | shared memory | shared memory | Ray's store | a Reverb table |
# | who computes the actions | each actor, on the CPU | each actor | each actor, with a model that all share | inference workers, for many actors | each actor | each actor |
# | bound | slots of each actor | a queue of one unroll | number of buffers | number of buffers | queue of the learner, calls under way | a rate limiter |
# | weights | in the slot, one version for an unroll | read from the learner before an unroll | the shared model, written while it is read | a shared copy; each worker loads its own from it | sent after each update, or after some | fetched every 1,000 steps |
# | an actor dies | replaced | the others go on | not noticed | noticed when it is silent for long | replaced | not looked into |
#
# Of scalable_agent this is the distributed form. The columns were read from the sources, RLlib's
# from version 2.60, and Sample Factory's and Acme's are not tried out.
#
# There is another way to divide the work. In most of these forms each actor computes its own
# actions. SEED {cite:p}`espeholt2020` turns this around: actors only step environments and
# send observations, and one server computes all actions in large batches on an accelerator. Sample
# Factory {cite:p}`petrenko2020` does that within one machine, Sebulba {cite:p}`hessel2021` with
# the environments on a TPU's host. With large networks that pays. The networks here are so small that
# to ask costs more than to compute.
#
# What the transports cost is measured in {doc}`/docs/results`.
#
# ## On the best device
#
# The learner may use a GPU. Its actors stay on the CPU, and the weights are copied there when a slot
# is given away.

# %%
from literate_rl.agents import best_device
from literate_rl.workshop.runs import fit

on_device = replace(config, cuda=True, actors=2, total_steps=2048)
with make_learner("CartPole-v1", on_device) as learner:
    last = fit(learner, progress=False)[-1]
print(
    f"trained on {best_device().type} for {last['step']} steps, lag {last['charts/lag']}"
)
print("finite losses:", all(math.isfinite(last[k]) for k in last if "losses" in k))

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: how old?
#
# All slots were handed out with version 0. Given is the order in which they come back, a list of
# their numbers; each is given away again at once, after the learner has learned from it. Return
# the list of the lags.

# %%
from literate_rl.agents import grade


def answer(order):
    return ...


def lags_of(order):
    versions = dict.fromkeys(order, 0)
    found = []
    for version, slot in enumerate(order):
        found.append(version - versions[slot])
        versions[slot] = version + 1
    return found


orders = [[0, 1, 0, 1, 0, 1], [0, 0, 0, 1], [2, 1, 0, 2, 2, 0, 1]]
grade(answer, lags_of, *[(order,) for order in orders])


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(order):
    # The version of a slot is the number of unrolls learned from when it was last seen.
    found = []
    for number, slot in enumerate(order):
        before = [i + 1 for i in range(number) if order[i] == slot]
        found.append(number - max(before, default=0))
    return found


grade(answer, lags_of, *[(order,) for order in orders])

# %% [markdown]
# ### Exercise 2: how many slots?
#
# One actor needs `act` seconds for an unroll, the learner needs `learn` seconds for an update, and
# the actor has a number of slots. How many unrolls are learned from in a second, in the long run?


# %%
def answer(act, learn, slots):
    return ...


def by_simulation(act, learn, slots):
    """Follow the tokens: when does the actor, and when does the learner have them?"""
    free = deque([0.0] * slots)  # when each token is back at the actor
    actor = learner = 0.0
    for _ in range(3000):
        actor = max(actor, free.popleft()) + act
        learner = max(learner, actor) + learn
        free.append(learner)
    return round(3000 / learner, 2)


times = [(1.0, 2.0, 1), (1.0, 2.0, 2), (0.5, 0.25, 1), (0.5, 0.25, 2), (0.5, 0.25, 8)]
grade(answer, by_simulation, *times)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(act, learn, slots):
    # With one slot they wait for each other, with two the slower one sets the pace.
    return round(1 / (act + learn if slots == 1 else max(act, learn)), 2)


grade(answer, by_simulation, *times)

# %% [markdown]
# ### Exercise 3: what the dead one leaves
#
# Given is what the learner saw of one actor: a list of pairs. `("go", slot)` is a token that it sent,
# `("whole", slot)` one that came back. Then the actor dies. Return the tokens that its successor must
# get, in the order in which they were sent.


# %%
def answer(events):
    return ...


def left_behind(events):
    held = []
    for kind, slot in events:
        if kind == "go":
            held.append(slot)
        else:
            held.remove(slot)
    return held


stories = [
    [("go", 0), ("go", 1)],
    [("go", 0), ("go", 1), ("whole", 0), ("go", 0)],
    [("go", 0), ("go", 1), ("whole", 0), ("whole", 1)],
]
grade(answer, left_behind, *[(story,) for story in stories])


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(events):
    sent = [slot for kind, slot in events if kind == "go"]
    back = sum(kind == "whole" for kind, _ in events)
    # An actor takes its tokens in order, so what came back came from the front.
    return sent[back:]


grade(answer, left_behind, *[(story,) for story in stories])

# %% [markdown]
# ## References
#
# Actors and a learner with V-trace are from {cite:t}`espeholt2018`; {cite:t}`kuttler2019` write them
# in PyTorch. Ray is from {cite:t}`moritz2018`, RLlib on top of it from {cite:t}`liang2018`, Acme from
# {cite:t}`hoffman2020`. Central inference: {cite:t}`espeholt2020`, {cite:t}`petrenko2020` and
# {cite:t}`hessel2021`.

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Actors in processes
#
# **How does experience get from one process to another, and what if one of them dies?** After
# this chapter you can let actors collect in processes of their own, kill any of them without
# losing count, and say why no lock is needed. Reading takes about 30 minutes, without exercises. You
# need the slots, tokens and lag of {doc}`actors`, but no knowledge of processes: a *process* is a
# running program with memory of its own, and a *pipe* carries messages from one to another.

# %% tags=["export", "hide-input"]
"""Actors in processes of their own, with memory that they share with the learner."""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import numpy as np
import torch

from literate_rl.actors.actors import (
    Actor,
    Census,
    InProcess,
    MakeActor,
    Slot,
    Transport,
    Weights,
    fill,
)
from literate_rl.data.held import in_one_line, told
from literate_rl.ground.interrupts import (
    check_interrupt,
    interrupts_blocked,
    leave_with_parent,
)
from literate_rl.ground.signatures import check_that, checked

__all__ = ["ActorProcess", "SharedMemory"]

# %% [markdown]
# ## Kill them
#
# The transport of this chapter is one more argument of the learner that you know:
# `ActorLearner(policy, make_envs, config, SharedMemory)`. Two actors, in processes of their own,
# work for it. After 20 unrolls, and after every 40 more, one of them is killed with `SIGKILL`,
# which no process can catch or survive.
#
# The hidden cell starts a small program, because new processes import the functions that they run, and
# those of a notebook cannot be imported. A script that starts actors must end with
# `if __name__ == "__main__":`, because each actor imports it.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels over seconds, with four vertical lines where an actor is killed, two for each. First: the unrolls learned from of each actor. The line of the one that was killed stops rising for a moment, then rises again. Second: the lag of each unroll, which lies around 3, falls to 1 after a kill and then rises for two unrolls"}}
import json
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np

program = """
import json, os, signal, time
from functools import partial
import numpy as np
import torch
from literate_rl.actors.actors import ActorLearner, ActorsConfig
from literate_rl.data.agents import make_envs
from literate_rl.nets.policies import make_policy
from literate_rl.actors.processes import SharedMemory

class Watched(SharedMemory):
    ends, breaks = {}, 0  # where the last unroll of each actor ended

    def receive(self):
        slot, record = super().receive()
        self.latest, seen = slot[0], record["obs_plus_1"]
        end = self.ends.get(self.latest, np.inf)
        self.breaks += not np.all((seen[0] == end) | np.isnan(end))
        # Where an episode has just ended, any state may follow.
        over = record["terminated"][-1] | record["truncated"][-1]
        self.ends[self.latest] = np.where(over[:, None], np.nan, seen[-1])
        return slot, record

def run():
    config = ActorsConfig(actors=2, num_envs=4, num_steps=32, update_per_collect=1)
    build, rows, kills = partial(make_envs, "CartPole-v1", 4), [], []
    envs = build()
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    with ActorLearner(policy, build, config, Watched) as learner:
        for number in range(1, 161):
            row = learner.iterate() | {"step": learner.step, "time": time.monotonic()}
            watched = learner.transport
            rows.append(row | {"actor": watched.latest, "breaks": watched.breaks})
            if number % 40 == 20:
                victim = number // 40 % 2
                os.kill(watched.lives[victim].process.pid, signal.SIGKILL)
                kills.append({"actor": victim, "time": time.monotonic()})
    return {"rows": rows, "kills": kills}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(run()))
"""
command = [sys.executable, "-c", program]
done = subprocess.run(command, capture_output=True, text=True, check=True)
rows, kills = json.loads(done.stdout).values()
seconds = np.array([row["time"] for row in rows]) - rows[0]["time"]
actor = np.array([row["actor"] for row in rows])
lag = np.array([row["charts/lag"] for row in rows])

fig, axes = plt.subplots(1, 2, figsize=(7, 2.6))
for number, color in enumerate(("C0", "C1")):
    axes[0].plot(
        seconds, np.cumsum(actor == number), color, label=f"actor {number + 1}"
    )
    mine = actor == number
    axes[1].plot(seconds[mine], lag[mine], color + ".")
    for kill in kills:
        if kill["actor"] == number:
            for axis in axes:
                axis.axvline(kill["time"] - rows[0]["time"], color=color, ls="--")
axes[0].set(xlabel="seconds", ylabel="unrolls learned from")
axes[0].legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
axes[1].set(xlabel="seconds", ylabel="lag")
fig.tight_layout()
print(
    f"killed {len(kills)}, replaced {rows[-1]['charts/replaced']}; of {len(rows)} unrolls "
    f"{rows[-1]['breaks']} do not begin where the last one of their actor ended"
)

# %% [markdown]
# Each dashed line is a kill, in the colour of the actor that died. **Notice** in the first panel that
# the learner goes on with the other actor, and that a moment later a new process takes the dead
# one's place. Is an unroll missing, or did one come twice? An unroll must begin
# where the last one of its actor ended. The only ones that do not are the first of each life, of
# which there are six: two actors and four successors. So none came twice, and within a life none is
# missing.
#
# **Notice** in the second panel what a death costs. By {eq}`lag-of-turns` the lag of two actors with two
# slots is 3. While one of them is being replaced, only the
# two slots of the other go round, so the lag falls to 1. The slots of the dead actor keep the
# weights that they had, and when their unrolls come at last, the learner may have learned from
# many others.

# %% tags=["claims"]
assert len(kills) == rows[-1]["charts/replaced"] == 4, "killed and replaced"
assert rows[-1]["breaks"] <= 2 + 4, "only the first unroll of a life"
assert np.sum(lag[4:] == 1) >= 4, "one actor alone has a lag of 1"
assert lag.max() > 4, "the unrolls of a new life come late"

# %% [markdown]
# ## Who has the token?
#
# Why does a death do no harm? Between each actor and the learner there are two pipes, and a slot
# belongs to the side that has its token. For each actor the learner also keeps a **list** of the
# tokens that the actor has. Choose a moment with the slider. What if the actor is killed right
# then?

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture, dial

away = -9999.0  # words that are not said now wait outside of the picture
places = {  # of the token, and how full the unroll is
    "writing": (390, 128, 0.0, "–"),
    "there": (220, 105, 0.0, "0"),
    "acting": (50, 128, 0.5, "0"),
    "back": (220, 150, 1.0, "0"),
    "learning": (390, 128, 1.0, "–"),
}
stories = {
    "writing": "The learner writes its weights into the slot.\nKilled now, the actor leaves "
    "nothing behind.",
    "there": "The token is in the pipe, and the learner's list says so.\nKilled now, the "
    "actor never reads it. The new one is sent the tokens on the list.",
    "acting": "The actor has copied the weights and written half of the unroll.\nKilled now, "
    "it never sends the token, so nobody looks. The new one gets the token, finds the weights "
    "in the slot and starts from the first step.",
    "back": "The unroll is whole, and its token is in the pipe.\nKilled now, the actor has "
    "done its work: what is in a pipe stays there. The learner reads the token, then the end of "
    "the pipe.",
    "learning": "The learner has taken the token off its list and learns from the unroll.\n"
    "Killed now, the actor does no harm: the slot is not its own.",
}


def frame(moment):
    x, y, full, listed = places[moment]
    picture = Picture(
        "A slot, its token and the learner's list",
        "An actor on the left, the learner on the right, between them a slot with weights and "
        "an unroll, and two pipes. A dot, the token, goes from the learner through the upper "
        "pipe to the actor and through the lower one back.",
    )
    picture.box(50, 95, "", width=84, height=150)
    picture.box(390, 95, "", width=84, height=150)
    picture.text(50, 40, "actor", bold=True)
    picture.text(390, 40, "learner", bold=True)
    picture.text(390, 66, "list:", "quiet")
    for words in ("0", "–"):
        picture.text(390, 86 if words == listed else away, words, "accent")
    picture.cells(176, 45, ["weights", "unroll"], width=84)
    right = 222 + 84 * full
    picture.path(f"M222,31H{right:.0f}V59H222Z", "second", "band")
    picture.arrow((344, 105), (96, 105), head=True, tone="quiet")
    picture.arrow((96, 150), (344, 150), head=True, tone="quiet")
    picture.path(f"M{x},{y}h0", "accent", "token")
    picture.text(220, 12, "slot 0", "quiet")
    picture.text(220, 84, "tokens to the actor", "quiet")
    picture.text(220, 130, "tokens of whole unrolls", "quiet")
    picture.top, picture.bottom = 0.0, 174.0
    return [picture], stories[moment]


dial("A slot, moment by moment", frame, {"moment": list(places)}, start=("acting",))

# %% [markdown]
# **Notice** that only one thing has to be remembered, the list. A token is on it from the moment
# when it is sent until the moment when it comes back. So a new actor is sent what is on the list
# of the dead one, and that is all. This rests on two facts about pipes: what was sent before a
# death can still be read, and after it comes the end, which the reader sees.

# %%
import os
from multiprocessing import Pipe

take, give = Pipe(duplex=False)
give.send(0)  # the token of a whole unroll
give.close()  # the actor dies
heard = [take.recv()]
try:
    take.recv()
except EOFError:
    heard.append("the end of the pipe")
print(heard)

# %% tags=["claims"]
assert heard == [0, "the end of the pipe"], "what was sent, then the end"

# %% [markdown]
# | what could happen | why it does no harm |
# |---|---|
# | an actor is killed while it writes | its token never comes; its pipe closes, and the learner sees that at once |
# | an actor is killed while it sends | a message as small as a token goes through a pipe as a whole or not at all |
# | an actor is killed while others work | no two actors share a pipe or a slot, so there is no *lock* to be left behind |
# | the learner is killed | the pipes close for the actors too, and they exit |
# | an actor hangs: it is stopped, or a step never returns | when its `deadline` has passed it is killed, and a new one takes its place |
# | an environment raises an error | it would come again, so the run is saved and ends with an error that quotes it |
# | an actor dies 3 times in a row before its first unroll | it will not live longer next time, so the run is saved and ends |
# | the machine has no process or memory left for a new actor | the run is saved and ends |
#
# An actor that *hangs* looks like one that is slow. Only a clock can tell them apart: the
# `deadline` of the settings. Until it has passed, the others go on without the one that hangs.
#
# ## Memory, processes and Ctrl-C
#
# **The memory** that both sides see is reserved once. If $b_w$ and $b_u$ are the bytes of the
# weights and of an unroll, $n_A$ actors with $n_S$ slots each need
#
# $$
# n_A \, n_S \, (b_w + b_u) ,
# $$ (slot-memory)
#
# and never more, however slow the learner is. It has no name in the file
# system, so nothing is left behind, no matter which process is killed. A token cannot arrive before
# the numbers that it stands for: sending and receiving are calls into the kernel that take the
# same lock, and what was written before one of them is seen after the other. A flag in shared
# memory would need memory barriers, which Python does not have.
#
# **The processes** come from a *fork server*, a fresh process that imports PyTorch, which takes seconds,
# once, and then copies itself for each actor. Copying the learner itself would be wrong: a copy
# keeps only one thread but all locks, and a lock that another thread held would never be
# released.
#
# **Ctrl-C** goes from the terminal to all processes. But it is for the learner to end the run, so
# actors start with the signal blocked, and end when their pipe closes.
#
# ## Line by line
#
# This is the actor's side of the protocol. The actor itself is that of {doc}`actors` and knows
# nothing of all this; its recipe arrives as bytes. The process computes in one thread, because
# others want processors too. If the actor fails, it sends the error
# in place of a token. When it leaves, it closes its environments, because a simulator may be a process as well.


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
    leave_with_parent()
    slots = np.frombuffer(memory, layout)
    actor: Actor | None = None
    try:
        actor = pickle.loads(recipe)(seed)
        for index in tokens(tasks):
            actor.work(slots[index]["weights"], slots[index]["result"])
            whole.send(index)
    except BaseException as error:
        # An environment that calls `sys.exit` is an error too. If the learner is gone,
        # there is nobody to tell.
        with suppress(OSError):
            whole.send((in_one_line(error), traceback.format_exc()))
    finally:
        # After the error is sent: nobody would hear of it if this hangs.
        if actor is not None:
            with suppress(Exception):
                actor.close()


def failure(actor: int, words: str) -> ChildProcessError:
    """Return what is raised when an actor has failed with an error in words."""
    return ChildProcessError(f"actor {actor} failed: {words}")


def tokens(connection: Connection) -> Iterator[int]:
    """Yield tokens until the pipe closes."""
    with suppress(EOFError):
        while True:
            yield connection.recv()


# %% [markdown]
# For each actor process the learner keeps its two pipes and the list of its tokens, `held`.


# %% tags=["export", "hide-input"]
@dataclass
class ActorProcess:
    """One actor process, as the learner sees it.

    Attributes:
        process: The process.
        tasks: The pipe that tokens go to it by.
        whole: The pipe that they come back by.
        held: Tokens that it has, in the order in which they were sent.
        since: When it was last sent a token or sent one back.
    """

    process: Any
    tasks: Connection
    whole: Connection
    held: list[int] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)

    def send(self, index: int) -> None:
        """Send a token. If the process is dead, the end of its pipe will tell."""
        self.held.append(index)
        self.since = time.monotonic()
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
# How to make an actor is written down as bytes for another process.


# %% tags=["export", "hide-input"]
def pickled(make_actor: MakeActor) -> bytes:
    """Write down how to make an actor, for another process."""
    problem = (
        "environments and models must be what another process can import, not a "
        "lambda or of a notebook: write them into a file, or leave out transport"
    )
    try:
        recipe = pickle.dumps(make_actor)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"{problem}: {error}") from error
    # A notebook has no file, and neither has `python -c`.
    if b"__main__" in recipe and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(problem)
    return recipe


# %% [markdown]
# A death is not an error, unless it happens again and again.


# %% tags=["export"]
def count_death(census: Census, actor: int, how: object) -> None:
    """Count the death of an actor, or lose patience."""
    barren = 0 if census.unrolls[actor] else census.barren[actor] + 1
    if barren == 3:
        raise ChildProcessError(
            f"actor {actor} died 3 times before its first unroll, the last time with "
            f'{how} (is `if __name__ == "__main__":` in the script that starts it?)'
        )
    census.unrolls[actor], census.barren[actor] = 0, barren
    census.replaced += 1


# %% [markdown]
# The transport waits for all pipes at once. When one closes, its actor is dead, and a new one
# gets the tokens that it held. The weights are still in their slots. An actor that hangs says
# nothing at all, so twice a second the learner looks for one that has been silent for too long.


# %% tags=["export"]
GLANCE = 0.5  # seconds between two looks at actors that are silent


class SharedMemory(Transport):
    """Actors in processes of their own, with memory that both sides see."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.recipe = pickled(self.make_actor)
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(["literate_rl.actors.processes"])
        # All the memory that there will ever be, {eq}`slot-memory`.
        size = self.slots * self.layout.itemsize
        self.memory = [self.context.RawArray("B", size) for _ in range(self.actors)]
        self.records = [np.frombuffer(memory, self.layout) for memory in self.memory]
        self.whole: deque[Slot] = deque()
        self.lives: list[ActorProcess] = []
        try:
            for actor in range(self.actors):
                self.lives.append(self.start(actor))
        except ChildProcessError:
            self.close()
            raise

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Write the weights into the slot and send its token."""
        actor, index = slot
        fill(self.records[actor][index]["weights"], weights)
        self.lives[actor].send(index)

    def receive(self) -> tuple[Slot, Any]:
        """Wait for a whole unroll, and replace actors that die or hang meanwhile."""
        check_that(bool(self.lives), "the actors have ended: this transport is closed")
        while True:
            # As long as there is nothing to learn from, sleep. Then hear all there is.
            while pipes := wait(
                [life.whole for life in self.lives], 0 if self.whole else GLANCE
            ):
                for pipe in pipes:
                    self.hear(pipe)
            # Only now is it clear who has been silent.
            self.replace_silent()
            if self.whole:
                actor, index = self.whole.popleft()
                self.waiting = len(self.whole)
                return (actor, index), self.records[actor][index]["result"]
            # Nothing is half done while the learner waits, so Ctrl-C may end the run.
            check_interrupt()

    def hear(self, pipe: Any) -> None:
        """Read a message: a token, an error in words, or the end of the pipe."""
        actor = [life.whole for life in self.lives].index(pipe)
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            self.replace(actor)
            return
        if isinstance(message, tuple):
            words, trace = message
            raise failure(actor, words) from RuntimeError(trace)
        # A token: its unroll is whole.
        life = self.lives[actor]
        life.held.remove(message)
        life.since = time.monotonic()
        self.census.unrolls[actor] += 1
        self.whole.append((actor, message))

    def replace_silent(self) -> None:
        """Replace actors that have had a token and been silent for too long."""
        now = time.monotonic()
        for actor, life in enumerate(self.lives):
            if life.held and now - life.since > self.deadline:
                life.process.kill()
                how = f"nothing sent before its deadline of {self.deadline:g} s"
                self.replace(actor, how)

    def replace(self, actor: int, how: str | None = None) -> None:
        """Start a new actor in the place of a dead one, with the same tokens."""
        dead = self.lives[actor]
        dead.end(patience=1.0)
        count_death(self.census, actor, how or f"exit code {dead.process.exitcode}")
        self.lives[actor] = self.start(actor)
        for index in dead.held:
            self.lives[actor].send(index)

    def start(self, actor: int) -> ActorProcess:
        """Start a process that becomes the actor of this number."""
        what = self.recipe, self.census.new_seed(), self.memory[actor], self.layout
        ends: list[Connection] = []
        try:
            for _ in range(2):
                ends += self.context.Pipe(duplex=False)
            take, tasks, whole, give = ends
            process = self.context.Process(
                target=run_actor, args=(*what, take, give), daemon=True
            )
            with interrupts_blocked():
                process.start()
        except (EOFError, OSError) as error:
            # The fork server ends without a word if it cannot fork. File handles may be
            # what is missing, and to save the learner takes some.
            for end in ends:
                end.close()
            raise ChildProcessError(
                f"actor {actor} cannot be started: {told(error)}; the machine may lack "
                "processes, memory or file handles"
            ) from error
        # A pipe closes when nobody holds its other end. So the learner keeps no copy of
        # the actor's ends.
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


# %% [markdown]
# The command line knows transports by the names in the settings. For actors on other machines
# there is one made of Ray's calls ({doc}`interfaces/cluster`).


# %% tags=["export", "hide-input"]
@checked
def transport_named(name: Literal["in_process", "shared"]) -> type[Transport]:
    """Return the transport that goes by a name in the settings."""
    return SharedMemory if name == "shared" else InProcess


# %% [markdown]
# ## From the command line
#
# | you type | what happens |
# |---|---|
# | `literate-rl impala --actors 2` | two actors take turns in this process |
# | `… --actors 2 --transport shared` | two processes; the bar shows actors at work, queue, lag, actors replaced and the speed |
# | `… --actors 8 --transport ray` | eight actors on a cluster ({doc}`interfaces/cluster`) |
# | Ctrl-C | saves at once or after this update, ends the actors, and prints how to continue |
# | `… --resume runs/NAME` | continues from the last checkpoint, with fresh actors |
#
# With processes a resumed run is as good as one that was never stopped, but not the same: which unroll
# arrives first is up to the machine, and no seed can change that. Where actors take turns it is the same.
#
# ## Traps
#
# ### Trap: a lock that dies with its owner
#
# If all actors take the numbers of free buffers from one `SimpleQueue`, as in torchbeast,
# taking something needs the queue's lock, and *an actor holds it while it waits*. If that actor
# is killed, the lock is never released. The queue is not empty, and nobody can take anything from
# it any more:

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
# ### Trap: an end that stays open
#
# A pipe ends when *all* copies of its other end are closed. The learner makes the pipe, so it has
# a copy of the actor's end, and whatever is forked from the learner later has one too. As long as
# one of them is open, the learner waits for a process that no longer exists:

# %%
take, give = Pipe(duplex=False)
forgotten = os.dup(give.fileno())  # a copy of the actor's end
give.close()  # the actor dies
before = take.poll(0.1)  # is there a message, or the end?
os.close(forgotten)
after = take.poll(0.1)
print(f"the end is seen: {before} with a copy, {after} without")

# %% [markdown]
# This is why `SharedMemory.start` closes the actor's ends as soon as the process has them.

# %% tags=["claims"]
assert not before, "it waits"
assert after, "and then it sees the end"

# %% [markdown]
# ## Summary
#
# - Experience crosses through memory that both sides see. A token through a pipe says whose turn
#   it is, so there is no lock.
# - The learner keeps a list of the tokens that each actor has. A dead actor's successor is sent
#   the tokens on it, so no whole unroll is lost and the count stays right.
# - A closed pipe tells of a death, provided that nobody keeps a copy of its other end. Only a
#   deadline can tell that an actor hangs.
# - New processes come from a fork server, which has PyTorch imported and holds no lock.
# - The same actor runs in one process, in many, or on a cluster: the transport is an argument.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "Two actors have two slots each, and the learner is fast. In one of the actors an environment "
    "falls into an endless loop. What do you see in the next minute?",
    [
        "the run ends with an error",
        "about half as many steps in a second, and a lag of about 1",
        "about half as many steps in a second, and a lag of about 3",
    ],
    right="about half as many steps in a second, and a lag of about 1",
    because="Its pipe stays open, so the learner takes it for slow and waits for the other one. "
    "One actor with two slots has a lag of 1, as after the kills above. But here the chart of "
    "actors at work still says 2, until the deadline has passed and the actor is replaced.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# An actor has died. The function gets what has gone through its pipes: `("go", slot)` is a token
# that the learner sent, `("whole", slot)` one that came back with its unroll. It is meant to
# return the tokens that the successor must get, in the order in which they were sent. It is right
# as long as nothing has come back; after that, two sides may have the same token. Fix it.


# %%
def answer(events):
    held = []
    for kind, slot in events:
        if kind == "go" and slot not in held:
            held.append(slot)
    return held


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


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
# ## References
#
# Actors in processes with shared buffers are those of {cite:t}`kuttler2019`, who wrote IMPALA in
# PyTorch, and of {cite:t}`petrenko2020`. Actions that are computed elsewhere:
# {cite:t}`espeholt2020` and {cite:t}`hessel2021`.

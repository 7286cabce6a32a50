# Generated from chapters/processes.py (edit there); digest 528a9ab5d23e124c
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


@checked
def transport_named(name: Literal["in_process", "shared"]) -> type[Transport]:
    """Return the transport that goes by a name in the settings."""
    return SharedMemory if name == "shared" else InProcess

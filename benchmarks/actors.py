"""Actors in processes: shared memory beside queues, and beside no transport at all.

All run the same actors and the same learner, in Gymnasium's CartPole that steps all
copies at once, with unrolls of 64 steps. A time is the CPU time of one frame, that of
the learner and that of its actors together.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch
import torch.multiprocessing
from numpy.typing import NDArray

from benchmarks.harness import Case, Goal
from literate_rl.actors.actors import (
    ActorLearner,
    ActorsConfig,
    Census,
    InProcess,
    Slot,
    Weights,
    fill,
)
from literate_rl.actors.processes import SharedMemory
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.nets.policies import make_policy

ROUNDS = 11
ENV = "CartPole-v1"
SLOTS = 2
STEPS = 64
FRAMES = 16_384  # of one sample
SIZES = (4, 32)


# --- The peers ------------------------------------------------------------------------


def run_queue_actor(
    recipe: bytes,
    seed: int,
    memory: Any,
    layout: Any,
    tasks: Any,
    unrolls: Any,
    form: Callable[[NDArray[Any]], Any],
) -> None:
    """Be an actor that sends its unrolls through a queue."""
    torch.set_num_threads(1)
    slots = np.frombuffer(memory, layout)
    record = np.zeros(1, layout["result"])[0]
    actor = pickle.loads(recipe)(seed)
    for slot in iter(tasks.get, None):
        actor.work(slots[slot[1]]["weights"], record)
        # The queue's own thread sends it later, so it needs arrays of its own.
        names = record.dtype.names
        unrolls.put((slot, {name: form(record[name].copy()) for name in names}))


class Queues:
    """Actors that send unrolls through one queue; the weights are in shared memory.

    Args:
        form: What becomes of an array before it is sent: itself, or a tensor.
        others: As for ``SharedMemory``.
    """

    waiting = 0

    def __init__(self, form: Any, *others: Any) -> None:
        make_actor, layout, seed, actors, slots, _ = others
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["literate_rl.actors.processes"])
        self.census, recipe = Census(actors, seed), pickle.dumps(make_actor)
        memory = [context.RawArray("B", slots * layout.itemsize) for _ in range(actors)]
        self.slots = [np.frombuffer(part, layout) for part in memory]
        seeds = [self.census.new_seed() for _ in range(actors)]
        self.unrolls = context.Queue()
        self.tasks = [context.SimpleQueue() for _ in range(actors)]
        self.processes = [
            context.Process(
                target=run_queue_actor,
                args=(recipe, seed, part, layout, tasks, self.unrolls, form),
                daemon=True,
            )
            for seed, part, tasks in zip(seeds, memory, self.tasks, strict=True)
        ]
        for process in self.processes:
            process.start()

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Write the weights and say so."""
        fill(self.slots[slot[0]][slot[1]]["weights"], weights)
        self.tasks[slot[0]].put(slot)

    def receive(self) -> tuple[Slot, dict[str, NDArray[Any]]]:
        """Take an unroll from the queue."""
        slot, unroll = self.unrolls.get()
        return slot, {name: np.asarray(x) for name, x in unroll.items()}

    def close(self) -> None:
        """Kill the processes."""
        for process in self.processes:
            process.kill()
            process.join()


def as_it_is(array: NDArray[Any]) -> NDArray[Any]:
    return array


TRANSPORTS: dict[str, Callable[..., Any]] = {
    "in process": InProcess,
    "shared memory": SharedMemory,
    "queue of NumPy arrays": partial(Queues, as_it_is),
    "torch.multiprocessing queue": partial(Queues, torch.from_numpy),
}


# --- What is measured -----------------------------------------------------------------


@dataclass
class System:
    """A learner with its actors, and the processes that work for it."""

    learner: ActorLearner
    helpers: list[psutil.Process]

    def frame_seconds(self) -> float:
        """Return the CPU seconds of one frame, all processes together.

        Before and after, all slots are full and all actors sleep. So just as many
        unrolls are made as are learned from.
        """
        size = self.learner.layout["result"]["reward"].shape
        iterations = FRAMES // int(np.prod(size))
        self.rest()
        start = self.cpu_seconds()
        for _ in range(iterations):
            self.learner.iterate()
        self.rest()
        return (self.cpu_seconds() - start) / FRAMES

    def cpu_seconds(self) -> float:
        """Return the CPU time so far of this process and its helpers."""
        # Linux has a clock for the CPU time of any process.
        clocks = [(~helper.pid << 3) | 2 for helper in self.helpers]
        return time.process_time() + sum(map(time.clock_gettime, clocks))

    def rest(self) -> None:
        """Wait until the helpers sleep and have used no CPU for a while."""
        before = -1.0
        while not (
            self.cpu_seconds() - before < 1e-3
            and all(helper.status() == "sleeping" for helper in self.helpers)
        ):
            before = self.cpu_seconds()
            time.sleep(0.02)


def build(transport: Callable[..., Any], envs: int, actors: int = 1) -> System:
    """Build a learner with a transport, and run it until all actors are at work."""
    config = ActorsConfig(
        actors=actors,
        slots=SLOTS,
        num_envs=envs,
        num_steps=STEPS,
        update_per_collect=1,
    )
    make_envs = partial(
        gym.make_vec, ENV, num_envs=envs, vectorization_mode="vector_entry_point"
    )
    one = make_envs()
    torch.manual_seed(0)
    policy = make_policy(one.single_observation_space, one.single_action_space)
    learner = ActorLearner(policy, make_envs, config, transport, numpy_act)
    before = set(psutil.Process().children(recursive=True))
    for _ in range(4 * actors * SLOTS):
        learner.iterate()
    helpers = set(psutil.Process().children(recursive=True)) - before
    return System(learner, list(helpers))


def check(systems: dict[str, System]) -> None:
    """Assert that one actor led to the same weights with every transport."""
    first, *others = (system.learner.learner.parameters for system in systems.values())
    for parameters in others:
        assert all(map(torch.equal, first, parameters))


def clock(function: Callable[[], Any], repeats: int) -> float:
    """Return the CPU seconds of one frame, the mean of some samples."""
    return sum(function().frame_seconds() for _ in range(repeats)) / repeats


def case(name: str, systems: dict[str, System], **others: Any) -> Case:
    """Return a case of systems that wait for their turn."""
    functions = {key: partial(lambda x: x, system) for key, system in systems.items()}
    return Case(name, functions, sample=clock, shortest=0.0, **others)


def cases() -> Iterator[Case]:
    """Yield the cases, after their check."""
    for envs in SIZES:
        systems = {key: build(place, envs) for key, place in TRANSPORTS.items()}
        check(systems)
        yield case(
            f"{envs} environments",
            systems,
            peer="torch.multiprocessing queue",
            goals={"shared memory": Goal(at_least=1.25)},
        )
        beside = {key: systems[key] for key in ("in process", "shared memory")}
        goals = {"shared memory": Goal(at_least=1 / 1.1)} if envs == 32 else {}
        name = f"{envs} environments, beside no transport"
        yield case(name, beside, peer="in process", goals=goals)
        two = build(TRANSPORTS["shared memory"], envs, actors=2)
        yield case(
            f"{envs} environments, shared memory",
            {"one actor": systems["shared memory"], "two actors": two},
            peer="one actor",
            goals={"two actors": Goal(at_least=0.9)},
        )
        for system in (*systems.values(), two):
            system.learner.close()

# Generated from chapters/actors.py (edit there); digest 135bf013b9b5912f
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

# Generated from chapters/actors.py (edit there); digest c6730a1ed709d58b
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

# Generated from chapters/interfaces/cluster.py (edit there); digest 6a91795a87a0084b
"""Actors on a cluster: a transport that is made of Ray's calls and references."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from literate_rl.actors.actors import Actor, MakeActor, Slot, Transport, Weights
from literate_rl.actors.processes import GLANCE, count_death, failure
from literate_rl.data.held import in_one_line
from literate_rl.ground.interrupts import check_interrupt

__all__ = ["RayActors", "import_ray"]


class RemoteActor:
    """An actor on Ray, which returns its unrolls.

    Args:
        make_actor: Function from a seed to an ``Actor``.
        layout: What ``slot_layout`` returned.
        seed: Seed of this life.
    """

    def __init__(
        self, make_actor: MakeActor, layout: np.dtype[np.void], seed: int
    ) -> None:
        torch.set_num_threads(1)
        self.make_actor, self.layout, self.seed = make_actor, layout, seed
        self.actor: Actor | None = None

    def work(self, weights: Weights) -> NDArray[np.void]:
        """Do the actor's work and return the result, an array of one record."""
        # Environments are made here, because what they do may fail or hang.
        if self.actor is None:
            self.actor = self.make_actor(self.seed)
        record = np.zeros(1, self.layout["result"])
        self.actor.work(weights, record[0])
        return record

    def close(self) -> None:
        """Close the environments."""
        if self.actor is not None:
            self.actor.close()


def import_ray() -> Any:
    """Import Ray, or say how to get it."""
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise ValueError(
            "transport ray needs Ray: pip install 'literate-rl[ray]'"
        ) from error


def join(ray: Any, actors: int, address: str | None) -> None:
    """Join a cluster, or start one here with a CPU for each actor."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False}
    if address is None:
        options |= {"num_cpus": actors, "include_dashboard": False}
    try:
        if address is not None:
            # Ray itself would try for many minutes.
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address or "local", **options)
    except (OSError, ValueError) as error:
        message = f"no Ray cluster answers at address {address}: {error}"
        raise ValueError(message) from error


@dataclass(eq=False)
class RayActors(Transport):
    """Actors on a Ray cluster, each of which takes one CPU.

    Slots need no memory here. The time until the cluster has room for an actor does not
    count for its deadline.

    Args:
        make_actor: As for ``Transport``, like the next five.
        address: Address of the cluster to join, HOST:PORT. None starts one on this
            machine.
    """

    address: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ray = import_ray()
        self.started = not self.ray.is_initialized()
        if self.started:
            join(self.ray, self.actors, self.address)
        elif self.address is not None:
            raise ValueError(
                f"address must be None where Ray runs already, got {self.address}"
            )
        self.since: list[float] = [0.0] * self.actors
        self.placed: list[Any] = [None] * self.actors
        self.workers = [self.start(actor) for actor in range(self.actors)]
        self.weights: dict[Slot, Any] = {}
        self.pending: dict[Any, Slot] = {}

    def start(self, actor: int) -> Any:
        """Start the actor of this number somewhere in the cluster."""
        remote = self.ray.remote(num_cpus=1)(RemoteActor)
        seed = self.census.new_seed()
        handle = remote.remote(self.make_actor, self.layout, seed)
        # This is done as soon as the cluster has found a place for it.
        self.placed[actor] = handle.__ray_ready__.remote()
        return handle

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Put the weights into Ray's store and make the call."""
        self.weights[slot] = self.ray.put(dict(weights))
        self.call(slot)

    def call(self, slot: Slot) -> None:
        """Ask a slot's actor for an unroll with the slot's weights."""
        reference = self.workers[slot[0]].work.remote(self.weights[slot])
        self.pending[reference] = slot
        self.since[slot[0]] = time.monotonic()

    def receive(self) -> tuple[Slot, Any]:
        """Wait for a whole unroll, and replace actors that die or hang meanwhile."""
        errors = self.ray.exceptions
        while True:
            # All that is done already, or else the first that will be.
            calls = list(self.pending)
            done, _ = self.ray.wait(calls, num_returns=len(calls), timeout=0)
            if not done:
                done, _ = self.ray.wait(calls, num_returns=1, timeout=GLANCE)
            now = time.monotonic()
            for call in done:
                self.since[self.pending[call][0]] = now
            self.replace_silent(now)
            if not done:
                check_interrupt()
                continue
            slot = self.pending[done[0]]
            try:
                # A copy, so that Ray's store need not keep it, and torch may view it.
                record = np.array(self.ray.get(done[0]))[0]
            except (errors.RayActorError, errors.ObjectLostError) as error:
                self.replace(slot[0], error)
                continue
            except errors.RayTaskError as error:
                # Ray's error has the traceback; its cause is the actor's own.
                raise failure(slot[0], in_one_line(error.cause)) from error
            del self.pending[done[0]]
            self.waiting = len(done) - 1
            self.census.unrolls[slot[0]] += 1
            return slot, record

    def replace_silent(self, now: float) -> None:
        """Replace actors that have had a call and been silent for too long."""
        for actor, since in enumerate(self.since):
            if now - since > self.deadline:
                if self.ray.wait([self.placed[actor]], timeout=0)[0]:
                    how = f"nothing sent before its deadline of {self.deadline:g} s"
                    self.replace(actor, how)
                # If it waits for a place in the cluster, it does not hang.
                self.since[actor] = now

    def replace(self, actor: int, how: object) -> None:
        """Start a new actor in the place of an old one, with the same calls."""
        # One that hangs is still there, and so is one whose results alone were lost.
        self.ray.kill(self.workers[actor])
        count_death(self.census, actor, how)
        self.workers[actor] = self.start(actor)
        lost = [call for call, slot in self.pending.items() if slot[0] == actor]
        for call in lost:
            self.call(self.pending.pop(call))

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        # Not all may answer: one may hang, or wait for a place in the cluster.
        if closed := [actor.close.remote() for actor in self.workers]:
            self.ray.wait(closed, num_returns=len(closed), timeout=2.0)
        for actor in self.workers:
            self.ray.kill(actor)
        self.workers, self.pending = [], {}
        if self.started:
            self.ray.shutdown()
            self.started = False

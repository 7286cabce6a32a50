"""Actors on a Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("ray")
# Before Ray is imported: it reads these then.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import ray
import worlds
from ray.cluster_utils import Cluster
from test_actors import policy_for
from test_processes import Witness
from worlds import counting

from literate_rl.actors.a3c import A3C, A3CConfig
from literate_rl.actors.actors import Actor, slot_layout
from literate_rl.apps.cli import main
from literate_rl.interfaces.cluster import RayActors
from literate_rl.runs.runs import Run, fit, load_checkpoint

# Ray's processes do not find the tests' own modules.
ray.cloudpickle.register_pickle_by_value(worlds)

pytestmark = pytest.mark.xdist_group("ray")


def add_node(cluster: Cluster, **options: Any) -> None:
    """Add a node with one CPU. On a busy machine Ray's 30 seconds may be too few."""
    for tries in (2, 1, 0):
        try:
            cluster.add_node(num_cpus=1, **options)
            return
        except Exception:
            if not tries:
                raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start two nodes with one CPU each; nobody here is connected to them."""
    cluster = Cluster()
    add_node(cluster, include_dashboard=False)
    add_node(cluster)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture
def address(cluster: Cluster) -> str:
    return cluster.address


@pytest.fixture
def connected(address: str) -> Iterator[None]:
    ray.init(address, log_to_driver=False)
    yield
    ray.shutdown()


def on_ray(actors: int = 1, **world: Any) -> tuple[RayActors, Any]:
    build = partial(counting, **world)
    policy = policy_for(build())
    make_actor = partial(Actor, build, policy)
    return RayActors(make_actor, slot_layout(policy, build(), 8), 1, actors, 2), policy


def places(transport: RayActors) -> list[tuple[str, int]]:
    """Return node and process of each actor."""

    def place(_: Any) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), os.getpid()

    return ray.get([actor.__ray_call__.remote(place) for actor in transport.workers])


def test_actors_on_two_nodes_are_replaced_when_they_are_killed(connected):
    transport, policy = on_ray(actors=2, nap=0.0005)
    census = transport.census
    witness = Witness(transport, policy, actors=2, slots=2)
    witness.take_until(lambda: census.at_work == 2)
    (node, pid), (other, _) = places(transport)
    assert node != other
    os.kill(pid, signal.SIGKILL)
    witness.take_until(lambda: census.replaced == 1 and census.at_work == 2)
    for _ in range(10):
        witness.take()
    assert census.replaced == 1
    assert witness.frames == sum(witness.next_step.values())
    transport.close()
    assert ray.is_initialized()  # it was not started by the transport
    with pytest.raises(ValueError, match="address must be None where Ray runs"):
        RayActors(
            transport.make_actor, transport.layout, 1, 1, 1, address="10.1.2.3:6379"
        )


def test_a_node_may_be_lost_and_come_back(cluster, connected):
    """There is no room for its actor then, so the other one goes on alone."""
    transport, policy = on_ray(actors=2, nap=0.0005)
    census = transport.census
    witness = Witness(transport, policy, actors=2, slots=2)
    witness.take_until(lambda: census.at_work == 2)
    (lost,) = set(cluster.list_all_nodes()) - {cluster.head_node}
    actor = [node for node, _ in places(transport)].index(lost.node_id)
    cluster.remove_node(lost, allow_graceful=False)
    try:
        witness.take_until(lambda: census.replaced == 1)
        transport.since[actor] = -math.inf  # to wait for a place is not to hang
        for _ in range(20):
            witness.take()
        assert census.unrolls[actor] == 0
        assert transport.since[actor] > 0
    finally:
        add_node(cluster)
    witness.take_until(lambda: census.at_work == 2)
    assert census.replaced == 1
    assert witness.frames == sum(witness.next_step.values())
    transport.close()


def hurry(transport: Any) -> None:
    """Give the only actor half a second; its successor has as long as it needs."""
    replace, transport.deadline = transport.replace, 0.5

    def once(*arguments: Any) -> None:
        replace(*arguments)
        transport.deadline = 300.0

    transport.replace = once


def test_an_actor_that_hangs_is_replaced_and_ctrl_c_ends_a_run_that_waits(
    connected, tmp_path
):
    """Each life sends two gradients. The first wait ends at the deadline."""
    options = {"total_steps": 10**7, "checkpoint_interval": 10**6, "actors": 1}
    config = A3CConfig(num_envs=2, num_steps=5, **options)
    build = partial(counting, hangs_at=12)
    learner = A3C(policy_for(counting()), build, config, RayActors)
    iterate, steps = learner.iterate, []

    def watched():
        if len(steps) == 2:
            hurry(learner.transport)
        row = iterate()
        steps.append(learner.step)
        if len(steps) == 4:
            press.start()
        return row

    press = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    learner.iterate = watched
    before = signal.getsignal(signal.SIGINT)
    with Run(tmp_path / "a", {}) as run, learner:
        history = fit(learner, run, progress=False)
    assert steps == [10, 20, 30, 40]
    assert [row["charts/replaced"] for row in history] == [0, 0, 1, 1]
    assert load_checkpoint(tmp_path / "a/checkpoint.pt")["step"] == 40
    assert signal.getsignal(signal.SIGINT) is before


def test_the_command_joins_a_cluster_and_leaves_it_running(
    cluster, address, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    options = ["--env=CartPole-v1", "--name=a", "--actors=1", "--transport=ray"]
    options += ["--recurrent=lstm"]  # unrolls bring their first state
    options += ["--n-sample=2", "--unroll-len=8", "--total-steps=160"]
    main(["impala", *options, "--address", address])
    out, err = capfd.readouterr()
    assert "return of 20 episodes" in out
    for word in ("actors=1", "queue=", "lag="):
        assert word in err
    assert load_checkpoint(tmp_path / "runs/a/checkpoint.pt")["step"] == 160
    assert not ray.is_initialized()
    ray.init(address, log_to_driver=False)
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    ray.shutdown()
    # One that was lost in another test may seem to be alive for a while.
    assert {node.node_id for node in cluster.list_all_nodes()} <= alive

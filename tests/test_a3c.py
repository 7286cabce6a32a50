"""A3C, whose workers send gradients, also where they are killed."""

from __future__ import annotations

import copy
import math
import os
import signal
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from test_a2c import make_a2c, policy_for, same
from test_actors import cartpoles
from test_processes import pids
from torch import nn

from literate_rl.actors.a3c import A3C, A3CConfig
from literate_rl.actors.actors import InProcess, weights_of
from literate_rl.actors.processes import transport_named
from literate_rl.book.contract_models import CategoricalActor, StateValue
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.check.own_models import make_contract_policy
from literate_rl.data.agents import make_envs
from literate_rl.runs.runs import fit, flat_env

SMALL = A3CConfig(
    num_envs=3, num_steps=5, total_steps=300, checkpoint_interval=4, slots=2
)


def make_a3c(env: str = "CartPole-v1", **changes: Any) -> A3C:
    config = replace(SMALL, **changes)
    build = partial(make_envs, partial(flat_env, env), config.num_envs)
    transport = transport_named(config.transport)
    return A3C(policy_for(build()), build, config, transport)


# --- Workers --------------------------------------------------------------------------


def with_seed(seed: int) -> Any:
    """Return the transport of this process, whose only worker has this seed."""

    def make(make_actor: Any, *others: Any) -> InProcess:
        return InProcess(lambda _: make_actor(seed), *others)

    return make


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("form", [None, numpy_act])
def test_one_worker_with_one_slot_is_a2c_bit_for_bit(env, form):
    changes = {"checkpoint_interval": 1000, "seed": 3, "entropy_weight": 0.01}
    alone = make_a2c(env, **changes)
    alone.act = form(alone.policy) if form else alone.policy.act
    config = replace(SMALL, actors=1, slots=1, **changes)
    build = partial(make_envs, partial(flat_env, env), 3)
    with A3C(policy_for(build()), build, config, with_seed(3), form) as remote:
        for _ in range(20):
            here, there = alone.iterate(), remote.iterate()
            assert there["charts/lag"] == 0
            for name, number in here.items():
                assert there[name] == number or math.isnan(number)
            assert same(alone.policy, remote.policy)
        assert alone.step == remote.step == 300


@pytest.mark.equation("def-stale-step")
def test_each_gradient_is_that_of_the_weights_before_its_lag():
    """Keep all weights and go over the work of the only worker once more."""
    learner = make_a3c(actors=1, slots=4)
    learner.make_transport, applied, kept = with_seed(9), [], []
    learn = learner.learner.learn

    def note(gradient, step):
        kept.append({k: x.copy() for k, x in weights_of(learner.policy).items()})
        applied.append([x.clone() for x in gradient])
        return learn(gradient, step)

    learner.learner.learn = note
    lags = [int(learner.iterate()["charts/lag"]) for _ in range(12)]
    assert lags == [0, 1, 2, *[3] * 9]
    twin, record = learner.make_actor(9), np.zeros((), learner.layout)["result"]
    for k, lag in enumerate(lags):
        twin.work(kept[k - lag], record)
        for got, name in zip(applied[k], record["gradient"].dtype.names, strict=True):
            assert torch.equal(got, torch.from_numpy(record["gradient"][name]))


@pytest.mark.equation("def-stale-limit")
@pytest.mark.parametrize("lag", [0, 1, 2, 3, 7, 15])
def test_a_stale_gradient_is_stable_up_to_the_limit(lag):
    """The roots of the recursion, on both sides of the limit."""
    limit = 2 * math.sin(math.pi / (2 * (2 * lag + 1)))
    for factor, stable in ((0.99, True), (1.01, False)):
        polynomial = np.zeros(lag + 2)
        polynomial[0], polynomial[1] = 1.0, -1.0
        polynomial[-1] += factor * limit
        assert (abs(np.roots(polynomial)).max() < 1) == stable


def test_a_run_whose_workers_are_killed_counts_every_step_once():
    with make_a3c(transport="shared", total_steps=100_000) as learner:
        learner.start()
        steps, census = [], learner.transport.census

        def until(condition):
            while not condition():
                assert math.isfinite(learner.iterate()["losses/policy_loss"])
                steps.append(learner.step)

        for kills in range(2):
            until(lambda: census.at_work == 2)
            os.kill(pids(learner.transport)[kills], signal.SIGKILL)
            until(lambda kills=kills: census.replaced == kills + 1)
        end = learner.step + 150
        until(lambda: learner.step == end)
    assert steps == list(range(15, end + 1, 15))


@pytest.mark.parametrize("own", [False, True])
def test_processes_bring_the_same_gradients_as_turns(own):
    """Also of an actor and a critic that keep their contract."""
    envs, results = cartpoles(), []
    policy = policy_for(envs)
    if own:
        policy = make_contract_policy(
            *(envs.single_observation_space, envs.single_action_space),
            *(CategoricalActor(4, 2, 16), StateValue(4, 16)),
        )
        policy.actor.model.idle = nn.Linear(2, 2)  # it plays no role
    for transport in ("in_process", "shared"):
        # Where actors take turns, they start anew at each checkpoint.
        changes = {"checkpoint_interval": 100, "total_steps": 90, "actors": 1}
        config = replace(SMALL, **changes, slots=1, transport=transport)
        named = transport_named(transport)
        with A3C(copy.deepcopy(policy), cartpoles, config, named) as learner:
            assert fit(learner, progress=False)[-1]["step"] == 90
        results.append(learner.policy)
    assert same(*results)
    assert not same(policy, results[0])


# --- The tutorials' A3C ---------------------------------------------------------------


@pytest.mark.erratum("a3c-accumulates")
def test_a_local_gradient_that_nobody_clears_grows():
    """The idiom: point the shared gradient at the local one, clear the shared one."""
    shared_model, local = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizer, used = torch.optim.SGD(shared_model.parameters(), 0.1), []
    for _ in range(4):
        local.load_state_dict(shared_model.state_dict())
        optimizer.zero_grad()
        local(torch.ones(1, 1)).sum().backward()  # its gradient is 1
        shared_model.weight._grad = local.weight.grad
        used.append(shared_model.weight.grad.item())
        optimizer.step()
    assert used == [1.0, 2.0, 3.0, 4.0]

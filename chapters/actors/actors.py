# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Actors and transports
#
# **How do unrolls get from actors to a learner?** The protocol is that of {doc}`/chapters/actors`. The
# settings are those of {doc}`/chapters/impala` and six more; those of its buffer play no role. There is no
# replay: each unroll is learned from as it arrives, `update_per_collect` times, and then its slot is free.

# %% tags=["export", "hide-input"]
"""Actors that collect for one learner, and the lag of what they collect."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from literate_rl.data.agents import (
    Rollout,
    collector_for,
    kept_dtype,
    step_of,
)
from literate_rl.data.episodes import (
    check_num_envs,
    env_seed,
    mean_return,
    warn_cut_off,
)
from literate_rl.ground.interrupts import StopWaiting
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Act,
    Envs,
    Kept,
    PolicyLike,
    Stateful,
    settings_of,
)
from literate_rl.ground.rows import ANY, Row, actor_critic, register
from literate_rl.ground.signatures import Count, Positive, check_that, checked
from literate_rl.learners.impala import (
    IMPALA,
    SETTINGS,
    IMPALAConfig,
    Unroll,
    VTraceLearner,
    to_unroll,
)
from literate_rl.nets.parts import take_in

__all__ = [
    "Actor",
    "ActorLearner",
    "ActorsConfig",
    "Census",
    "InProcess",
    "RemoteLearner",
    "Transport",
    "TransportConfig",
    "actors_settings",
    "slot_layout",
]


# %% tags=["export", "hide-input"]
@checked
@dataclass(frozen=True)
class TransportConfig:
    """Settings of the actors of any learner.

    At a checkpoint environments are reset only where actors take turns. There an
    episode never ends if it is longer than an actor's share of the steps in between.

    Attributes:
        actors: Number of actors, each with environments of its own, or none for the
            loop without actors.
        transport: Where the actors are: in_process, one after the other; shared, in
            processes of their own; or ray, on a cluster.
        slots: Unrolls that an actor may have under way.
        deadline: Seconds that an actor may take to send something. After that it counts
            as hanging and is replaced, except in_process, where nobody could.
        address: Address of the Ray cluster to join, HOST:PORT, or none to start one
            here.
    """

    actors: Count | None = None
    transport: Literal["in_process", "shared", "ray"] = "in_process"
    slots: Count = 2
    deadline: Positive = 300.0
    address: str | None = None

    def __post_init__(self) -> None:
        where, address = self.transport, self.address
        on_ray = address is None or where == "ray"
        check_that(on_ray, f"transport must be ray for address {address}")
        here = self.actors is not None or where == "in_process"
        check_that(here, f"actors must be given for transport {where}")


@checked
@dataclass(frozen=True)
class ActorsConfig(TransportConfig, IMPALAConfig):
    """Settings of IMPALA with actors.

    ``update_per_collect`` updates are taken on each unroll of each actor. There is no
    replay, so ``batch_size`` and the settings of the buffer play no role.

    Attributes:
        share_encoder: Whether policy and value share an encoder. The policy has to be
            built so, as ``train`` does.
    """

    share_encoder: bool = False

    def __post_init__(self) -> None:
        IMPALAConfig.__post_init__(self)
        TransportConfig.__post_init__(self)
        other = self.priority or self.lag or self.on_policy
        words = "priority, lag and on_policy must be off with actors"
        check_that(self.actors is None or not other, words)


actors_settings = settings_of(ActorsConfig, SETTINGS)


# %% [markdown]
# ## A slot
#
# A slot has a fixed size and a named place for each array: NumPy calls that a record, and its
# layout a *structured* dtype. A view of a field costs nothing, so the learner learns from an
# unroll where it lies.

# %% tags=["export", "hide-input"]
Weights = Mapping[str, Any]  # arrays by the names of the policy's `state_dict`


def arrays_of(tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return tensors as arrays, without what is None; on the CPU they share memory."""
    return {name: x.cpu().numpy() for name, x in tensors.items() if x is not None}


def weights_of(policy: PolicyLike) -> dict[str, NDArray[Any]]:
    """Return a policy's weights as arrays; on the CPU they share its memory."""
    return arrays_of(policy.state_dict())


def one_step(policy: PolicyLike, envs: Envs, dtype: Any) -> Rollout:
    """Take a greedy step, to see what the rollouts of a policy look like."""
    collector, act = collector_for(policy, envs, dtype), step_of(policy)
    device = next(policy.parameters()).device
    collector.reset(0)
    with eval_mode(policy):
        return collector.collect(
            lambda obs, **told: act(obs.float().to(device), 0.0, **told), 1
        )


def fields_of(example: Mapping[str, Any], num_steps: int) -> list[Any]:
    """Return the fields of a record for what has one step in an example."""
    # An example may have a row behind its last step, and so has the record.
    return [
        (name, x.dtype, (num_steps + len(x) - 1, *x.shape[1:]))
        for name, x in arrays_of(example).items()
    ]


def layout_of(
    policy: PolicyLike, result: list[Any], *more: tuple[str, Any]
) -> np.dtype[np.void]:
    """Describe a slot: a policy's weights and ``more`` on the way, a result back."""
    weights = [(name, x.dtype, x.shape) for name, x in weights_of(policy).items()]
    return np.dtype([("weights", [*weights, *more]), ("result", result)], align=True)


@checked
def slot_layout(policy: PolicyLike, envs: Envs, num_steps: Count) -> np.dtype[np.void]:
    """Describe the memory of one slot, a record with ``weights`` and ``result``.

    The result is an unroll: it has a field for each of ``Unroll``, and
    ``episode_return``, which is NaN where no episode ended. ``envs`` are those of one
    actor, and are reset.
    """
    one = one_step(policy, envs, kept_dtype(policy, envs))
    unroll = to_unroll(one.to(next(policy.parameters()).device), policy)
    example = {**unroll._asdict(), "episode_return": one.episode_return}
    return layout_of(policy, fields_of(example, num_steps))


# %% [markdown]
# ## The actor
#
# The actor is the same wherever it runs. It gets weights and a place to write to, and knows
# nothing of tokens, processes or learners. To act it needs only the action. V-trace also
# needs the log-probability of each action. The weights stay the same for a whole unroll, so all
# log-probabilities are computed at once, at its end.

# %% tags=["export"]
MakeAct = Callable[[PolicyLike], Act]


class Actor:
    """Acts for one unroll at a time, with weights that it is given.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy on the CPU, which is copied.
        seed: Decides the noise and the environments' random numbers.
        make_act: Makes a faster form of the policy's ``act``, or None for its own.
    """

    @checked
    def __init__(
        self,
        make_envs: Callable[[], Envs],
        policy: PolicyLike,
        seed: int,
        make_act: MakeAct | None = None,
    ) -> None:
        self.policy: Any = copy.deepcopy(policy).eval()
        envs = make_envs()
        self.weights = weights_of(self.policy)
        self.act = make_act(self.policy) if make_act else step_of(self.policy)
        self.generator = torch.Generator().manual_seed(seed)
        dtype = kept_dtype(policy, envs)
        self.collector = collector_for(self.policy, envs, dtype)
        self.collector.reset(env_seed(seed, 0))

    def work(self, weights: Weights, out: Any) -> None:
        """Act for one unroll with these weights, and write it to ``out``."""
        batch = self.collect(weights, len(out["reward"]))
        # The log-probabilities are computed now, for all steps at once. Environments
        # that reset a step late add rows that never happened; their weight is 0.
        fill(out, arrays_of(to_unroll(batch, self.policy)._asdict()))
        out["episode_return"] = batch.episode_return.numpy()

    def collect(self, weights: Weights, num_steps: int) -> Rollout:
        """Act for some steps with these weights; return what happened."""
        # One version of the weights for all steps. The arrays are the policy's memory.
        for name, array in self.weights.items():
            array[...] = weights[name]
        # The noise of all steps is drawn at once; each step takes the next.
        num_envs = self.collector.envs.num_envs
        noise = iter(self.policy.noise(num_steps, num_envs, self.generator))
        return self.collector.collect(
            lambda obs, **told: self.act(obs, next(noise), **told), num_steps
        )

    def close(self) -> None:
        """Close the environments."""
        self.collector.envs.close()


# %% [markdown]
# ## Transports
#
# A **transport** carries slots to the actors and back. To the learner all transports look alike: `submit`
# gives a slot to its actor, `receive` waits for a whole unroll, and a census counts who is at work.

# %% tags=["export", "hide-input"]
Slot = tuple[int, int]  # number of the actor, and of the slot among its slots


class Census:
    """Who is at work.

    Attributes:
        unrolls: Unrolls that each actor has delivered in its present life.
        barren: How many of its lives in a row each has ended without an unroll.
        replaced: Actors that died or hung and were replaced.
    """

    def __init__(self, actors: int, seed: int) -> None:
        self.unrolls: list[int] = [0] * actors
        self.barren: list[int] = [0] * actors
        self.replaced = 0
        self.seeds = np.random.SeedSequence(seed)

    def new_seed(self) -> int:
        """Return a seed for the next life of an actor, unrelated to all others."""
        return int(self.seeds.spawn(1)[0].generate_state(1)[0])

    @property
    def at_work(self) -> int:
        """Actors that have delivered an unroll in their present life."""
        return sum(unrolls > 0 for unrolls in self.unrolls)


MakeActor = Callable[[int], Actor]  # from a seed


@dataclass(eq=False)
class Transport(ABC):
    """Where actors are, and how slots get there and back.

    Args:
        make_actor: Function from a seed to an ``Actor``. Where another process calls
            it, it must be one that can be pickled.
        layout: What ``slot_layout`` returned.
        seed: Decides the seeds of the actors.
        actors: Number of actors.
        slots: Slots of each of them.
        deadline: Seconds of silence after which an actor with a slot is replaced.

    Attributes:
        waiting: Whole unrolls that wait for the learner.
    """

    make_actor: MakeActor
    layout: np.dtype[np.void]
    seed: int
    actors: int
    slots: int
    deadline: float = 300.0
    waiting = 0

    def __post_init__(self) -> None:
        self.census = Census(self.actors, self.seed)

    @abstractmethod
    def submit(self, slot: Slot, weights: Weights) -> None:
        """Give a slot to its actor, with a copy of these weights."""

    @abstractmethod
    def receive(self) -> tuple[Slot, Any]:
        """Wait for a whole unroll; it may be read until its slot is submitted."""

    @abstractmethod
    def close(self) -> None:
        """End all actors. May be called twice."""


MakeTransport = Callable[..., Transport]  # from what ``Transport`` takes

# %% [markdown]
# The simplest transport needs no other processes. An unroll is made when the learner asks for it,
# with the weights that its slot was given. Those are as old as they would be in a real system,
# and the same seed gives the same run, so this is the transport for experiments and for
# debugging.


# %% tags=["export"]
class InProcess(Transport):
    """Actors that take turns in this process.

    The deadline plays no role: if an actor hangs, so does the learner.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        seeds = [self.census.new_seed() for _ in range(self.actors)]
        self.workers = [self.make_actor(seed) for seed in seeds]
        self.memory = np.zeros((self.actors, self.slots), self.layout)
        self.tasks: deque[Slot] = deque()

    def submit(self, slot: Slot, weights: Weights) -> None:
        """Write the weights into the slot and put it at the end of the line."""
        fill(self.memory[slot]["weights"], weights)
        self.tasks.append(slot)

    def receive(self) -> tuple[Slot, Any]:
        """Let the actor act whose slot is first in line."""
        # First come, first served: this gives {eq}`lag-of-turns`.
        slot = self.tasks.popleft()
        memory = self.memory[slot]
        self.workers[slot[0]].work(memory["weights"], memory["result"])
        self.census.unrolls[slot[0]] += 1
        return slot, memory["result"]

    def close(self) -> None:
        """Close the environments."""
        for worker in self.workers:
            worker.close()


def fill(part: Any, arrays: Mapping[str, Any]) -> None:
    """Copy arrays by their names into a part of a slot."""
    for name, array in arrays.items():
        part[name] = array


def tensors_in(part: Any, kind: Any, device: Any = "cpu") -> Any:
    """Return a part of a slot as a named tuple of tensors, on the CPU views."""
    names = part if isinstance(part, Mapping) else part.dtype.names
    there = [name for name in kind._fields if name in names]
    return kind(**{name: torch.from_numpy(part[name]).to(device) for name in there})


# %% [markdown]
# ## The learner
#
# Everything on the learner's side of the protocol is in `iterate`. What the learner does with an
# unroll is left to a method `learn`: in {doc}`/chapters/a3c` actors
# send gradients, and the rest stays as it is here. The other methods are what `fit` asks of any
# learner. The transport starts with the first iteration, so that a learner
# that was restored from a checkpoint hands out the right weights.


# %% tags=["export"]
class RemoteLearner(Kept):
    """Learns from what actors send, one slot at a time.

    Use it as a context manager, or call ``close``, so that the actors end.

    Args:
        policy: The policy to train, on any device.
        make_envs: Makes the ``config.num_envs`` environments of one actor.
        config: The settings of a learner with those of actors.
        transport: Makes the transport, or None for ``InProcess``.
        make_act: As for ``Actor``.

    Attributes:
        actor: The class of its actors.
        brings: What an actor is made of beside environments, policy and seed.
        learner: Has what a checkpoint keeps.
        layout: The memory of one slot.
        learn: Learns from a result, counts ``step`` and returns metrics.
    """

    kept = ("step", "version", "learner")
    actor: Callable[..., Actor] = Actor
    brings: tuple[Any, ...] = ()
    learner: Stateful
    layout: np.dtype[np.void]
    learn: Callable[[Any], dict[str, float]]

    @checked
    def __init__(
        self,
        policy: PolicyLike,
        make_envs: Callable[[], Envs],
        config: TransportConfig,
        transport: MakeTransport | None = None,
        make_act: MakeAct | None = None,
    ) -> None:
        where, self.config = config.transport, cast(Any, config)
        here = config.actors is not None
        check_that(here, "config.actors must be at least 1, got None")
        others = "processes.SharedMemory or literate_rl.interfaces.cluster.RayActors"
        fits = transport is not None or where == "in_process"
        check_that(fits, f"transport {where}: pass literate_rl.actors.{others}")
        self.policy: Any = policy
        self.make_transport = transport or InProcess
        # Environments are made once here, to see what they are like.
        envs = make_envs()
        check_num_envs(envs, self.config.num_envs)
        # Only copies act, so that only they see masks.
        vars(policy)["masked"] = "action_mask" in envs.reset(seed=0)[1]
        acting = copy.deepcopy(policy).cpu()
        self.prepare(acting, envs)
        envs.close()
        # The recipe of an actor: what is missing is the seed.
        how = make_envs, acting, *self.brings
        self.make_actor: MakeActor = partial(self.actor, *how, make_act=make_act)
        self.transport: Transport | None = None
        self.versions: dict[Slot, int] = {}
        self.step = self.version = 0
        self.warned = False

    def prepare(self, acting: Any, envs: Envs) -> None:
        """Set layout, learner and what actors bring, for a policy that acts."""
        raise NotImplementedError

    def start(self) -> Transport:
        """Start the actors and hand out all slots, to the actors in turns."""
        config = self.config
        # A resumed run has another step, and so other seeds.
        seed = env_seed(config.seed, self.step)
        how = seed, config.actors, config.slots, config.deadline
        transport = self.make_transport(self.make_actor, self.layout, *how)
        self.transport = transport
        for index in range(config.slots):
            for actor in range(config.actors):
                self.submit(transport, (actor, index))
        return transport

    def submit(self, transport: Transport, slot: Slot) -> None:
        """Give a slot away, with the weights as they are now."""
        self.versions[slot] = self.version
        transport.submit(slot, self.message(slot[0]))

    def message(self, actor: int) -> Weights:
        """Return what an actor is sent: the weights."""
        return weights_of(self.policy)

    def iterate(self) -> dict[str, float]:
        """Wait for a result, learn from it, and return metrics.

        If anything goes wrong, the actors are ended; the next call starts new ones.
        """
        transport = self.transport or self.start()
        try:
            slot, result = transport.receive()
            metrics = self.learn(result)
            # The lag {eq}`policy-lag`: versions since the slot was given away.
            lag = self.version - self.versions[slot]
            self.version += 1
            # From here on the slot belongs to its actor, who may write to it.
            # Everything that is read of it has been read by now.
            self.submit(transport, slot)
            # A run that is resumed starts with fresh actors. Where actors take turns, a
            # run that continues does so too, and both are the same run.
            if self.make_transport is InProcess and self.checkpoint_due:
                took_turns = [x.collector for x in cast(InProcess, transport).workers]
                self.warned = self.warned or warn_cut_off(*took_turns)
                self.close()
        except StopWaiting:
            raise  # Ctrl-C: nothing has come, and nothing is lost
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

    @property
    def checkpoint_due(self) -> bool:
        """Whether the run is to be saved before the next iteration."""
        return self.version % self.config.checkpoint_interval == 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned, with fresh actors."""
        super().load_state_dict(state)
        self.close()


# %% tags=["export"]
class ActorLearner(RemoteLearner):
    """Learns from the unrolls of actors, with V-trace, as ``ActorsConfig`` says."""

    config: ActorsConfig
    learner: VTraceLearner

    def prepare(self, acting: Any, envs: Envs) -> None:
        """Set what a slot holds and who learns from it."""
        self.layout = slot_layout(acting, envs, self.config.num_steps)
        self.learner = VTraceLearner(self.policy, self.config)

    def learn(self, result: Any) -> dict[str, float]:
        """Take the updates on an unroll; return metrics."""
        # Views of the slot's memory; only on a GPU are they copies.
        device = self.learner.parameters[0].device
        unroll: Unroll = tensors_in(result, Unroll, device)
        self.learner.anneal(self.step)
        for _ in range(self.config.update_per_collect):
            losses = self.learner.learn(unroll)
        take_in(self.learner.normalizer, unroll.obs_plus_1[:-1], unroll.weight > 0)
        self.step += result["reward"].size
        mean = mean_return(torch.from_numpy(result["episode_return"]))
        named = {f"losses/{name}": number for name, number in losses.items()}
        return {"charts/episodic_return": mean, **named}


# %% tags=["export", "hide-input"]
ROW = register(
    Row(
        "IMPALA",
        "many actors that do not wait",
        ANY,
        ActorsConfig,
        actor_critic,
        IMPALA,
        ActorLearner,
        settings=actors_settings,
        contract="ppo",
        chapter="impala",
    )
)

# %% [markdown]
# ## What well-known implementations of IMPALA do
#
# | question | {doc}`/chapters/impala` | [scalable_agent](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py) | [torchbeast](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py) | [DI-engine](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/impala.py) | [Machin](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/impala.py) |
# |---|---|---|---|---|---|
# | actors | in this process, with a lag; processes in {doc}`/chapters/processes` | [processes, a queue of TensorFlow](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L503) | [processes, shared memory](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L127-L187) | collectors of its framework | processes |
# | a sample | unroll across episodes | [unroll across episodes](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L271-L304) | [unroll across episodes](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L151-L183) | [unroll of one episode](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/worker/collector/sample_serial_collector.py#L317-L335) | [whole episode](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/impala.py#L217-L229) |
# | replay | each sample up to `max_use` times | none | none | [each sample up to 16 times](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/impala.py#L102) | [a buffer of episodes](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/impala.py#L142-L144) |
# | truncated step | bootstraps from the true successor | [counts as the end](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L372) | [counts as the end](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L253) | [counts as the end](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/envs/env_wrappers/env_wrappers.py#L1485-L1486) | counts as the caller sets it |
# | rewards | scaled | [clipped](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L365-L370) | [clipped](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L246-L249) | as they are | as they are |
# | optimiser | Adam or RMSprop, clipped if wished | [RMSprop](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L401) | [RMSprop](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L387), [clipped](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L291) | [Adam, clipped; RMSprop, not clipped](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/impala.py#L143-L152) | [Adam](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/impala.py#L419), [clipped](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/impala.py#L379) |
#
# Look at the row "replay": the paper's own code uses each unroll once.

# %% [markdown]
# ## References
#
# Those of {doc}`/chapters/actors`.

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One loop for all
#
# **What changes from DQN to SAC, and what stays?** Seven agents of the book share this loop: DQN, Rainbow,
# DDPG, HDDPG, TD3, SAC and discrete SAC. An eighth takes twenty lines. Agents that learn from fresh
# rollouts share less, the `Runner` of {doc}`/chapters/data/agents`.

# %% tags=["export", "hide-input"]
"""One loop for every agent that learns from remembered steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from literate_rl.data.agents import Sampler
from literate_rl.data.episodes import Mean, check_num_envs, mean_return
from literate_rl.data.replay import Batch, ReplayBuffer
from literate_rl.data.windows import check_fits
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Act,
    Algorithm,
    Envs,
    Error,
    PolicyLike,
    RunConfig,
    Stateful,
)
from literate_rl.ground.signatures import (
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    Scale,
    check_finite,
    checked,
)
from literate_rl.nets.parts import RunningMoments, normalizer_of, take_in

__all__ = [
    "ActorCriticConfig",
    "OffPolicy",
    "OffPolicyConfig",
    "QError",
    "TargetNetwork",
    "linear_schedule",
    "polyak_update",
    "squared_error",
]

# %% [markdown]
# ## Act, learn, follow
#
# An agent that learns from old steps does three things in turn. It acts in its environments. It
# learns values from a batch of what it remembers. And now and then an actor, if there is one,
# climbs these values, and an older copy (the target network) follows. Three settings say how often.
# Drag them.

# %% tags=["hide-input"]
from literate_rl.learners.loop import OffPolicyConfig
from literate_rl.book.pictures import Axis, Mark, dial, plot

last = 32


def events(num_envs, train_interval, target_interval):
    """Return at which steps, of all environments together, what happens."""
    config = OffPolicyConfig(num_envs=num_envs, train_interval=train_interval)
    acts, learns, follows, step = [], [], [], 0
    while step < last:
        for _ in range(config.rollout_len):
            step += num_envs
            acts.append(step)
        for update in range(config.updates_per_rollout):
            # Updates that follow each other at once are drawn side by side.
            learns.append(step + 0.7 * update)
            if len(learns) % target_interval == 0:
                follows.append(learns[-1])
    return acts, learns, follows


def frame(*settings):
    found = events(*settings)
    names, tones = ("act", "learn", "climb and follow"), ("quiet", "accent", "second")
    rows = list(zip((3, 2, 1), found, tones, names, strict=True))
    picture = plot(
        "What happens when",
        "Three rows of dots over 32 steps: when the agent acts, when it learns, and when "
        "the actor climbs and the older copy follows.",
        Axis("steps of all environments", 0, last + 3, ticks=(0, 8, 16, 24, 32)),
        Axis("", 0.5, 4.0),
        *(Mark("dots", x, [y] * len(x), tone) for y, x, tone, _ in rows),
        # A label is centred.
        *(
            Mark("label", [0.3 + 0.3 * len(name)], [y + 0.35], words=name)
            for y, *_, name in rows
        ),
        width=440,
        height=130,
    )
    calls, updates, moves = map(len, found)
    return [picture], (
        f"In {last} steps: {calls} calls of the environments, {updates} updates of the "
        f"values, {moves} moves of actor and older copy."
    )


dial(
    "When the loop acts, learns and follows, over three of its settings",
    frame,
    {
        "num_envs": [1, 2, 4],
        "train_interval": [1, 2, 4, 8],
        "target_interval": [1, 2, 4],
    },
    start=(2, 4, 2),
)

# %% [markdown]
# **Notice** that more environments take more steps in one call, but ask for no more updates. A small
# `train_interval` with many environments learns in bursts, from a policy that has just acted.

# %% tags=["claims"]
for train_interval in (1, 2, 4, 8):
    counts = [[len(x) for x in events(n, train_interval, 2)] for n in (1, 2, 4)]
    assert [calls for calls, *_ in counts] == [32, 16, 8], "how many steps a call takes"
    assert {updates for _, updates, _ in counts} == {32 // train_interval}
    assert len({moves for *_, moves in counts}) == 1

# %% [markdown]
# ## What the loop asks
#
# The program of {doc}`/chapters/dqn` acts, remembers and learns. Take out what is about values, and a loop is
# left that fits every agent which learns from old steps. An agent is a small object, an **algorithm**
# ({doc}`/chapters/ground/protocols`), with seven things that the loop asks for:
#
# | name | what the loop does with it | DQN | SAC |
# |---|---|---|---|
# | `policy` | acts with it, and moves its parameters | values, and random actions | an actor and two critics |
# | `error` | goes down: how wrong are the values of these steps? | values and their targets, compared | likewise |
# | `target` | lets it follow | an older copy of the values | an older copy of the critics |
# | `actor` | knows what an ascent may move | nothing | the actor, and the temperature |
# | `ascent` | goes down: what does the actor lose in these states? | there is none | minus what its actions are worth |
# | `explore` | tells it the step | the probability of a random action | nothing |
# | `metrics` | adds them to its row | that probability | temperature and entropy |
#
# So what changes from DQN to SAC is the answers, above all the **error** and the **ascent**. The first
# three an algorithm has to give; the others have a default.
#
# ## How wrong are the values?
#
# Whatever its values are, an algorithm answers with three numbers for each sample. With the weights
# $w_i$ of the buffer ({doc}`/chapters/replay`) the loop minimises the mean of $w_i \mathcal L_i$ over $N$ samples:


# %% tags=["export"]
class QError(NamedTuple):
    """How wrong a batch of values is, sample by sample.

    Attributes:
        loss: What is minimised.
        td_error: Targets minus values, without gradient. Its size is the priority in
            the buffer.
        value: The values themselves, without gradient.
    """

    loss: Float[Tensor, "N"]
    td_error: Float[Tensor, "N"]
    value: Float[Tensor, "N"]

    def backward(self, weight: Float[Tensor, "N"]) -> None:
        """Add the gradient of the weighted mean loss to that of the parameters."""
        (self.loss * weight).mean().backward()


# %% [markdown]
# Most targets are `td_target` of {doc}`/chapters/dqn`. With several critics, half the squares of their
# distances from the target are added up. The older copy follows by {eq}`polyak`.


# %% tags=["export"]
@checked
def squared_error(
    q: Float[Tensor, "K N"],
    target: Float[Tensor, "N"],
    rate: float | Float[Tensor, "K N"] = 1.0,
) -> QError:
    """Return half the squared distance of K critics from a target, added up.

    Args:
        q: Their values, with gradient.
        target: What the values should be; treated as a constant.
        rate: Factor on each of these errors.
    """
    target = target.detach()
    loss = (0.5 * rate * (target - q).square()).sum(0)
    check_finite(loss, q=q, target=target)
    # A priority is measured from the mean of the critics' values.
    value = q.detach().mean(0)
    return QError(loss, target - value, value)


# %% tags=["export"]
def polyak_update(target: list[Tensor], source: list[Tensor], tau: float) -> None:
    """Move the target's weights towards the source's, by a share ``tau`` of the way."""
    moving: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for index, (x, y) in enumerate(zip(target, source, strict=True)):
            if x.shape != y.shape:
                raise ValueError(f"source[{index}] must have the shape of its target")
            if x.is_floating_point():
                moving.append((x, y))
            else:  # a whole number, such as a count, cannot go part of the way
                x.copy_(y)
        # {eq}`polyak`, in place and for all weights in one call.
        old, new = zip(*moving, strict=True)
        torch._foreach_lerp_(old, new, tau)


class TargetNetwork:
    """An older copy of a network that nobody trains, and that follows it.

    Args:
        newer: The network in training.

    Attributes:
        network: The copy. It is in evaluation mode and stays so.
    """

    def __init__(self, newer: nn.Module) -> None:
        # Observations have one scale: the copy normalises with the newer one's moments.
        kept = [m for m in newer.modules() if isinstance(m, RunningMoments)]
        copied = copy.deepcopy(newer, {id(m): m for m in kept})
        self.network: Any = copied.requires_grad_(False).eval()
        # Of both the weights, and the modules that hold numbers which no optimiser
        # moves, such as means.
        self.parts = [
            (
                list(net.parameters()),
                [m for m in net.modules() if m._buffers and m not in kept],
            )
            for net in (copied, newer)
        ]

    def follow(self, tau: float) -> None:
        """Move towards the network in training, by a share ``tau`` of the way."""
        # A module may have put another tensor in the place of a buffer.
        older, newer = (
            weights + list(dict.fromkeys(x for m in held for x in m.buffers(False)))
            for weights, held in self.parts
        )
        polyak_update(older, newer, tau)


# %% [markdown]
# ## What changes on the way
#
# Three things change slowly: the probability of a random action falls ({doc}`/chapters/dqn`), the learning rate
# falls if it is annealed, and the importance weights rise to their full strength ({doc}`/chapters/replay`). All go
# in a straight line from $x_0$ to $x_1$ over $I$ steps and then stay. At step $i$ they are
#
# $$
# x_i = x_0 + \min(1, i / I) \, (x_1 - x_0) .
# $$ (linear-schedule)


# %% tags=["export"]
@checked
def linear_schedule(
    start: float, end: float, duration: Positive, step: NonNegative
) -> float:
    """Return where a straight line from ``start`` to ``end`` is at a step."""
    # The line {eq}`linear-schedule`, written so that it ends exactly at its end.
    share = min(1.0, step / duration)
    return (1 - share) * start + share * end


# %% [markdown]
# The settings of the loop say how much it acts, how much it learns, and what it keeps.


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class OffPolicyConfig(RunConfig):
    """Settings of the loop, which all agents on it share.

    Attributes:
        num_envs: Number of environments.
        hidden: Width of the hidden layers that ``train`` builds. A policy that you hand
            over keeps its own, and for a picture DQN's network has none but its
            encoder's.
        num_steps: Number n of rewards in a target before the value.
        gamma: Discount.
        batch_size: Steps that one update learns from.
        train_interval: Steps in the environments between two updates.
        learning_starts: Steps before the first update.
        buffer_size: Steps that the buffer holds.
        target_interval: Updates between two moves of the target network and, in agents
            with an actor, between two updates of the actor.
        tau: How far it moves then; 1 is a copy.
        priority_exponent: How strongly the buffer prefers large TD errors; 0 is not at
            all.
        beta: How far the importance weights undo that preference at the start, where
            there is one; at the end they do so fully.
        reward_scale: Factor on the rewards in the targets.
        max_grad_norm: Bound of the gradient's norm.
        iteration_steps: Steps in the environments of one iteration. Its noise is drawn
            at once, and the learning rate and other schedules move on where it begins.
        log_interval: Steps in the environments from one row of the log to the next, a
            multiple of those of an iteration; None is a row for each. Nothing but the
            log depends on it.
        checkpoint_interval: Iterations between checkpoints. The environments are reset
            at each of them, so an episode that takes longer never ends: by default one
            of more than 2,500 steps.
    """

    num_envs: Count = 4
    hidden: Count = 128
    num_steps: Count = 1
    gamma: Fraction = 0.99
    batch_size: Count = 128
    train_interval: Count = 4
    learning_starts: Count = 1000
    buffer_size: Count = 100_000
    target_interval: Count = 1
    tau: Fraction = 0.01
    priority_exponent: NonNegative = 0.0
    beta: Fraction = 0.4
    reward_scale: Scale = 1.0
    max_grad_norm: Positive = 10.0
    iteration_steps: Count = 1000
    log_interval: Count | None = None
    checkpoint_interval: Count = 10

    def __post_init__(self) -> None:
        if self.rollout_len * self.num_envs % self.train_interval:
            raise ValueError(
                "train_interval must divide num_envs or be a multiple of it, got "
                f"{self.train_interval} for {self.num_envs}"
            )
        if (self.log_interval or 0) % self.iteration_steps:
            raise ValueError(
                "log_interval must be a multiple of iteration_steps, "
                f"{self.iteration_steps}, got {self.log_interval}"
            )

    @property
    def rollout_len(self) -> int:
        """Steps of each environment between two updates or more."""
        return max(1, self.train_interval // self.num_envs)

    @property
    def updates_per_rollout(self) -> int:
        """Updates that are due after them."""
        return self.rollout_len * self.num_envs // self.train_interval

    @property
    def rounds(self) -> int:
        """Rollouts of one iteration."""
        return max(1, self.iteration_steps // (self.rollout_len * self.num_envs))

    @property
    def steps_per_iteration(self) -> int:
        """Steps of one iteration, all environments together."""
        return self.rounds * self.rollout_len * self.num_envs

    @property
    def rows_per_update(self) -> int:
        """Rows of one update."""
        return self.batch_size


@checked
@dataclass(frozen=True)
class ActorCriticConfig(OffPolicyConfig):
    """Settings of the agents with an actor and critics: one update for each step.

    Attributes:
        share_encoder: Whether actor and critics share an encoder, in a policy that
            ``train`` builds.
    """

    num_envs: Count = 1
    hidden: Count = 64
    learning_rate: Scale = 1e-3
    train_interval: Count = 1
    learning_starts: Count = 500
    tau: Fraction = 0.005
    max_grad_norm: Positive = math.inf
    iteration_steps: Count = 500
    share_encoder: bool = False


# %% [markdown]
# ## The loop
#
# Act a little, learn a little: `iterate` does so for `iteration_steps` steps, and `learn` is one
# update. Who acts is in evaluation mode, so that a dropout layer of your own drops nothing there
# ({doc}`/chapters/ground/networks`). The arguments `act` and `error` take faster forms of the agent's own two
# functions ({doc}`/chapters/by_hand/fast_forms`), which whoever built the policy hands in.


# %% tags=["export"]
class OffPolicy(Sampler):
    """Acts, remembers, learns.

    Args:
        algorithm: What is learned: an error and, where there is an actor, an ascent.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings of the loop; those of the algorithm may be among them.
        act: A faster form of ``algorithm.policy.act``, or None for that one.
        error: A faster form of ``algorithm.error``, or None for that one: a function of
            the algorithm, a batch and a generator, which returns the same numbers.
    """

    # In a checkpoint, beside the policy's weights ({doc}`/chapters/runs/runs`).
    kept = ("buffer", "optimizer", "target", *Sampler.kept, "updates")

    def __init__(
        self,
        algorithm: Algorithm,
        envs: Envs,
        config: OffPolicyConfig,
        act: Act | None = None,
        error: Callable[..., Error] | None = None,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        size, space = config.buffer_size, envs.single_observation_space
        check_fits("buffer_size", size, size, config.total_steps, space)
        super().__init__(
            algorithm.policy, envs, config.seed, config.checkpoint_interval, act
        )
        self.algorithm, self.config = algorithm, config
        self.normalizer = normalizer_of(self.policy, config.normalize_obs)
        # The plain form, unless somebody has handed in another.
        self.error = partial(error, algorithm) if error else algorithm.error
        # What learns, and how.
        self.parameters = [p for p in self.policy.parameters() if p.requires_grad]
        self.actor = [p for p in algorithm.actor if p.requires_grad]
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, fused=True
        )
        # What follows it, a checkpoint has a place for it in any case; and where its
        # steps are kept.
        target, self.updates = algorithm.target, 0
        self.target: Stateful = nn.Module() if target is None else target.network
        self.buffer = ReplayBuffer(size, config.priority_exponent)

    def iterate(self) -> dict[str, float]:
        """Act and learn in turns for a while, and return metrics."""
        config = self.config
        self.prepare()
        # All random numbers of the actions are drawn at once.
        noise = self.policy.noise(
            config.rounds * config.rollout_len, config.num_envs, self.generator
        )
        rows = iter(noise.to(self.device))

        def act(obs: Tensor, **mask: Tensor) -> Tensor:
            return self.act(obs.to(self.device, torch.float32), next(rows), **mask)

        returns, losses = [], []
        for _ in range(config.rounds):
            # A few steps with the policy as it is now; the buffer keeps them.
            with eval_mode(self.policy):
                rollout = self.collector.collect(act, config.rollout_len)
            self.buffer.push(rollout)
            take_in(self.normalizer, rollout.obs, rollout.real)
            returns.append(rollout.episode_return)
            # Then the updates that are due.
            if self.step >= config.learning_starts:
                losses += [self.learn() for _ in range(config.updates_per_rollout)]

        self.iteration += 1
        return {
            "charts/episodic_return": mean_return(torch.cat(returns)),
            **self.algorithm.metrics(),
            **self.mean_losses(losses),
        }

    def prepare(self) -> None:
        """Set what changes from iteration to iteration."""
        # A run that is resumed starts with fresh environments. A run that continues
        # must do the same, so each checkpoint resets them, and the buffer is told.
        if self.starts_anew:
            self.buffer.cut()
        self.start()
        self.algorithm.explore(self.step)
        self.anneal()

    def anneal(self) -> None:
        """Set the learning rate, if it falls."""
        if self.config.anneal:
            self.optimizer.param_groups[0]["lr"] = self.config.rate(self.step)

    def learn(self) -> QError:
        """Take one step of the optimiser on a batch from the buffer."""
        config = self.config
        # 1. Draw steps of any age; each is the start of a window of n.
        batch = self.sample()
        # 2. How wrong are the values? One step downhill for the weighted mean loss.
        error = self.error(batch, self.generator)
        self.descend(partial(error.backward, batch.weight), self.parameters)
        # 3. The TD errors are the new priorities.
        if config.priority_exponent > 0:
            self.buffer.update(batch.place, error.td_error)
        # 4. The actor climbs, and the older copy follows: by a little after each
        # update, or all the way now and then.
        self.updates += 1
        if self.updates % config.target_interval == 0:
            # Where there is an actor, it climbs by what is legal.
            mask = batch.mask if self.actor else None
            legal = {} if mask is None else {"mask": mask}
            loss = self.algorithm.ascent(batch.obs, self.generator, **legal)
            if loss is not None:
                # The gradient goes through the values, but they get none themselves,
                # so the optimiser does not move them.
                self.descend(partial(loss.backward, inputs=self.actor), self.actor)
            if self.algorithm.target is not None:
                self.algorithm.target.follow(config.tau)
        return QError(error.loss.detach(), error.td_error, error.value)

    def descend(self, backward: Callable[[], None], parameters: list[Any]) -> None:
        """Take one step downhill for a loss, with gradient clipping."""
        for parameter in self.parameters:
            parameter.grad = None
        backward()
        bound = self.config.max_grad_norm
        if bound < math.inf:
            # The norm of all gradients in one call. Few are so long that they are cut.
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = torch.stack(torch._foreach_norm(grads)).square().sum().sqrt()
            if (share := bound / (norm + 1e-6)) < 1:
                torch._foreach_mul_(grads, share)
        self.optimizer.step()

    def sample(self) -> Batch:
        """Draw a batch with scaled rewards, on the policy's device."""
        config, beta = self.config, 1.0
        if config.priority_exponent > 0:
            beta = linear_schedule(config.beta, 1.0, config.total_steps, self.step)
        batch = self.buffer.sample(
            config.batch_size, self.generator, config.num_steps, config.gamma, beta
        )
        batch = batch._replace(
            obs=batch.obs.float(),
            next_obs=batch.next_obs.float(),
            reward=batch.reward * config.reward_scale,
        )
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def mean_losses(self, errors: list[QError]) -> dict[str, float]:
        """Return the means of an iteration; NaN before the first update."""
        means = [math.nan] * 3
        if errors:
            loss, td_error, value = map(torch.stack, zip(*errors, strict=True))
            means = [x.mean().item() for x in (loss, td_error.abs(), value)]
            check_finite(means[0], values=value, td_error=td_error)
        names = ("losses/loss", "losses/td_error", "losses/q_value")
        return {
            name: Mean(x, len(errors)) for name, x in zip(names, means, strict=True)
        }

    @property
    def log_due(self) -> bool:
        """Whether the last iteration completes a row of the log."""
        each = self.config.iteration_steps
        return self.iteration % ((self.config.log_interval or each) // each) == 0


# %% [markdown]
# The agents of the chapters differ in their algorithm only, so one function makes what `DQN`, `TD3` and the
# others are:


# %% tags=["export"]
def learner_of(algorithm: type[Any], *seen: str) -> Callable[..., OffPolicy]:
    """Return a function that makes the learner of an algorithm.

    Args:
        algorithm: Its class, which takes a policy and settings.
        seen: What it is told of the environments too, by names of their attributes.
    """

    def learner(
        policy: PolicyLike, envs: Envs, config: OffPolicyConfig, **forms: Any
    ) -> OffPolicy:
        """Return what trains a policy.

        Args:
            policy: What the chapter's ``make_..._policy`` returns, on any device.
            envs: A vector environment with ``config.num_envs`` copies.
            config: The settings of the chapter.
            forms: Faster forms, as ``OffPolicy`` takes them.
        """
        more = (getattr(envs, name) for name in seen)
        return OffPolicy(algorithm(policy, config, *more), envs, config, **forms)

    learner.__module__ = algorithm.__module__
    return learner


# %% [markdown]
# Read `learn` once more with DQN in mind, then with an agent that has an actor. Only step 4 differs:
# DQN has no ascent. This is the whole ascent of {doc}`/chapters/ddpg`; that of
# {doc}`/chapters/sac` draws the actions, and adds the loss of the temperature.

# %%
from literate_rl.learners.ddpg import DeterministicPolicyGradient
from literate_rl.apps.programs import source

source(DeterministicPolicyGradient.ascent)

# %% tags=["claims"]
from literate_rl.learners.dqn import QLearning
from literate_rl.learners.sac import SoftActorCritic
from literate_rl.ground.protocols import Algorithm

assert QLearning.ascent is Algorithm.ascent, "there is none"
assert SoftActorCritic.explore is Algorithm.explore, "nothing"
assert QLearning.explore is DeterministicPolicyGradient.explore is not Algorithm.explore
assert "self.temperature.loss" in source(SoftActorCritic.ascent).code
assert QLearning.actor == Algorithm.actor == ()

# %% [markdown]
# ## An eighth agent
#
# Here is an agent that this book does not have. **Munchausen DQN** {cite:p}`vieillard2020` charges
# itself for each action of which it is not sure. Let $\pi$ be the softmax of the older copy's values
# divided by a temperature $\alpha$. To the reward it adds nine tenths of $\alpha \log \pi(a \mid s)$, a
# number below 0 that is held at −1. The next state is worth a soft maximum:
#
# $$
# y = r + 0.9 \,\max\bigl(-1, \alpha \log \pi(a \mid s)\bigr)
#   + \gamma \, \alpha \log \sum_{a'} e^{Q_{\bar\theta}(s', a') / \alpha} .
# $$ (def-munchausen)
#
# All that it needs is an error; `Exploring` of {doc}`/chapters/learners/dqn` has its `explore` and
# its `metrics`.

# %%
from torch.nn.functional import smooth_l1_loss

from literate_rl.learners.dqn import Exploring


class Munchausen(Exploring):
    def __init__(self, policy, config, alpha=0.03):
        self.policy, self.config, self.alpha = policy, config, alpha
        self.target = TargetNetwork(policy)

    def error(self, batch, generator):
        alpha, older, taken = self.alpha, self.target.network, batch.action[:, None]
        with torch.no_grad():
            # What the action costs that was taken.
            log_prob = (older(batch.obs) / alpha).log_softmax(-1).gather(-1, taken)
            cost = (alpha * log_prob).clamp(min=-1.0).squeeze(-1)
            # What the next state is worth, and the target.
            soft_maximum = alpha * (older(batch.next_obs) / alpha).logsumexp(-1)
            target = batch.reward + 0.9 * cost + batch.discount * soft_maximum
        q = self.policy(batch.obs).gather(-1, taken).squeeze(-1)
        loss = smooth_l1_loss(q, target, reduction="none")
        return QError(loss, (target - q).detach(), q.detach())


# %% [markdown]
# Exploration, memory, priorities, checkpoints and the target network come from the loop. So it trains
# at once. Each number is the mean over the episodes that ended in a thousand steps:

# %%
from dataclasses import replace

from literate_rl.data.agents import make_envs, seed_everything
from literate_rl.learners.dqn import dqn_settings, make_q_policy
from literate_rl.runs.runs import fit

torch.set_num_threads(1)
seed_everything(1)
config = replace(dqn_settings("CartPole-v1"), total_steps=12_000, epsilon_steps=5000)
envs = make_envs("CartPole-v1", config.num_envs)
both = envs.single_observation_space, envs.single_action_space
policy = make_q_policy(*both, config.hidden, config.dueling)
learner = OffPolicy(Munchausen(policy, config), envs, config)
history = fit(learner, progress=False)
returns = [row["charts/episodic_return"] for row in history]
print("mean returns:", *(f"{x:.0f}" for x in returns))

# %% [markdown]
# **Notice** that the best of the last three is several times the first. One run says nothing about which
# agent is better. It says that the agent works, and that the loop needed to know nothing of it.

# %% tags=["claims"]
import numpy as np

assert config.iteration_steps == 1000, "in a thousand steps"
assert np.nanmax(returns[-3:]) > 2 * returns[0], "several times"

# %% [markdown]
# ## When to write an algorithm of your own
#
# Change the **error** where you want other targets or another loss: most papers on values do. Add an
# **ascent** where actions cannot be listed. Change the **loop** only for another order of acting and
# learning, such as {doc}`/chapters/apex`, whose actors act elsewhere.

# %% [markdown]
# ## References
#
# Munchausen DQN is from {cite:t}`vieillard2020`.

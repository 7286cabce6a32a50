# Generated from chapters/dqn.py (edit there); digest 2e2bdebb868a2161
"""DQN: values of actions, learned from their own guesses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from literate_rl.agents import Collector
from literate_rl.policies import Policy
from literate_rl.replay import Batch, ReplayBuffer
from literate_rl.workshop.episodes import EvalMode, check_num_envs
from literate_rl.workshop.fast import (
    FusedQError,
    chain_layers,
    chain_q_error,
    clip_gradient,
    numpy_act,
    computes,
)
from literate_rl.workshop.nests import as_discrete, as_vectors, plain_space
from literate_rl.workshop.runs import env_seed
from literate_rl.workshop.signatures import (
    Count,
    Float,
    Fraction,
    Int,
    NonNegative,
    Positive,
    Scale,
    check_finite,
    checked,
)

__all__ = [
    "DQN",
    "DQNConfig",
    "EpsilonGreedy",
    "ExploringConfig",
    "OffPolicyConfig",
    "QError",
    "double_q_target",
    "dqn_settings",
    "dueling_q",
    "fused_q_error",
    "linear_schedule",
    "make_q_policy",
    "polyak_update",
    "q_error",
    "q_target",
]


# Float32 holds no value below 10²² beside it.
BESIDE_ALL_VALUES = 1e30


class EpsilonGreedy:
    """The action of the largest value, or now and then a random one; rows are values.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.

    Attributes:
        epsilon: Probability of a random action, one drawn uniformly: one number, or one
            for each environment.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        shape = num_steps, num_envs, self.num_actions
        # One coin for each environment and each step, and a race of all actions.
        explore = torch.rand(shape[:2], generator=generator) < self.epsilon
        race = BESIDE_ALL_VALUES * torch.rand(shape, generator=generator)
        # Both together are {eq}`epsilon-noise`. It is finite, so that an action whose
        # value is minus infinity never wins.
        return explore.unsqueeze(-1) * race

    @checked
    def choose(
        self, row: Float[Tensor, "*B N"], noise: Float[Tensor, "*B N"] | float
    ) -> Int[Tensor, "*B"]:
        """Return the actions that follow from values and noise."""
        return (row + noise).argmax(-1)

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B N"], action: Int[Tensor, "*B"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies."""
        # A random draw may hit the best action too.
        each = torch.as_tensor(self.epsilon).to(row) / self.num_actions
        best = 1 - (self.num_actions - 1) * each
        log_prob = torch.where(row.argmax(-1) == action, best, each).log()
        entropy = torch.xlogy(best, best)
        entropy = -entropy - (self.num_actions - 1) * torch.xlogy(each, each)
        return log_prob, entropy.expand_as(log_prob)

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        names: NDArray[np.int64] = action.numpy() + self.start
        return names


@checked
def q_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "N A"],
) -> Float[Tensor, "N"]:
    """Return the targets of Q-learning, without gradient.

    ``discount`` is the factor of the next value: a power of gamma, or 0 after a
    termination, where ``next_q`` may hold anything.

    Source: Watkins 1989; Sutton and Barto, equation 6.8.
    """
    # The network that chooses the best action also judges it, {eq}`q-target`.
    future = next_q.detach().amax(-1).masked_fill(discount == 0, 0.0)
    target = torch.addcmul(reward, discount, future).detach()
    check_finite(target, reward=reward, discount=discount, next_q=future)
    return target


@checked
def double_q_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "N A"],
    chooser: Float[Tensor, "N A"],
) -> Float[Tensor, "N"]:
    """Return the targets of double Q-learning, without gradient.

    ``chooser`` holds the values by which the next action is chosen, ``next_q`` those by
    which it is judged.

    Source: van Hasselt et al. 2016, equation 4.
    """
    # One network chooses, the other one judges, {eq}`double-q-target`.
    best = chooser.argmax(-1, keepdim=True)
    return q_target(reward, discount, next_q.gather(-1, best))


@checked
def dueling_q(
    value: Float[Tensor, "*B 1"], advantage: Float[Tensor, "*B N"]
) -> Float[Tensor, "*B N"]:
    """Put a state's value and its actions' advantages together.

    Source: Wang et al. 2016, equation 9.
    """
    # The mean is over the actions, the last dimension: {eq}`dueling`.
    return value + advantage - advantage.mean(-1, keepdim=True)


class QLayers(nn.Sequential):
    """Layers from observations to one value for each action."""

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the best action."""
        best: Tensor = self(obs).amax(-1)
        return best


def dueling_layer(num_actions: int) -> nn.Linear:
    """Return ``dueling_q`` as a layer, of a value and N advantages; it never learns."""
    layer = nn.Linear(num_actions + 1, num_actions, bias=False).requires_grad_(False)
    # Row a of {eq}`dueling`: 1 for the value, and for the advantages 1 at a, minus 1/N.
    layer.weight[:, 0] = 1.0
    layer.weight[:, 1:] = torch.eye(num_actions) - 1 / num_actions
    return layer


@checked
def make_q_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: Count = 128,
    dueling: bool = False,
) -> Policy:
    """Build an ε-greedy policy for the spaces of one environment.

    Args:
        observation_space: A box of vectors, or what ``plain_space`` made of it.
        action_space: A Discrete space, likewise.
        hidden: Width of the hidden layers.
        dueling: Whether the network separates a state's value from the advantages.
    """
    box, discrete = as_vectors(observation_space), as_discrete(action_space)
    num_actions = int(discrete.n)
    # Two hidden layers, then the output: N values, or a value and N advantages.
    layers = [nn.Linear(box.shape[0], hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, num_actions + dueling)]
    if dueling:
        layers += [dueling_layer(num_actions)]
    recipe = {
        "observation_space": plain_space(box),
        "action_space": plain_space(discrete),
        "hidden": hidden,
        "dueling": dueling,
    }
    actions = EpsilonGreedy(num_actions, int(discrete.start))
    return Policy(QLayers(*layers), actions, ("make_q_policy", recipe))


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


def q_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    double: bool = True,
) -> QError:
    """Compare values with their targets.

    Args:
        policy: The policy in training; it returns values.
        target_policy: Its older copy.
        batch: Steps, as the buffer returned them.
        generator: Not used here, because these values have no noise.
        double: Whether the policy in training chooses the next action.
    """
    with torch.no_grad(), EvalMode(policy):
        next_q = target_policy(batch.next_obs)
        # If the older copy chooses too, this is the target {eq}`q-target`.
        chooser = policy(batch.next_obs) if double else next_q
        aim = double_q_target(batch.reward, batch.discount, next_q, chooser)
    # The current value of the action that was taken.
    q = policy(batch.obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    # A parabola near zero, straight lines further out: {eq}`huber`.
    loss = smooth_l1_loss(q, aim, reduction="none")
    value = q.detach()
    return QError(loss, aim - value, value)


def fused_q_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    double: bool = True,
) -> QError | FusedQError:
    """Compute what ``q_error`` does, faster if both networks are chains of layers.

    Its loss has no graph: the gradient comes from ``backward`` alone.
    """
    # A policy with a `forward` of its own may compute something else with its network.
    chain, target_chain = (
        chain_layers(p.network) if computes(p, Policy) else None
        for p in (policy, target_policy)
    )
    # States that want a gradient need a graph.
    if chain is None or target_chain is None or batch.obs.requires_grad:
        return q_error(policy, target_policy, batch, generator, double)
    return chain_q_error(chain, target_chain, batch, double_q_target, double)


@checked
def linear_schedule(
    start: float, end: float, duration: Positive, step: NonNegative
) -> float:
    """Return where a straight line from ``start`` to ``end`` is at a step."""
    # The line {eq}`epsilon-schedule`, written so that it ends exactly at its end.
    share = min(1.0, step / duration)
    return (1 - share) * start + share * end


def polyak_update(target: list[Tensor], source: list[Tensor], tau: float) -> None:
    """Move the target's weights towards the source's, by a share ``tau`` of the way."""

    def floats(tensors: list[Tensor]) -> list[Tensor]:
        return [x for x in tensors if x.is_floating_point()]

    with torch.no_grad():
        # {eq}`polyak`, in place and for all weights in one call.
        torch._foreach_lerp_(floats(target), floats(source), tau)
        # Whole numbers, such as a count, cannot go part of the way: they are copied.
        for old, new in zip(target, source, strict=True):
            if not old.is_floating_point():
                old.copy_(new)


def numbers_of(policy: nn.Module) -> list[Tensor]:
    """Return a policy's parameters and buffers, for instance running means."""
    return [x.detach() for x in (*policy.parameters(), *policy.buffers())]


class DQN:
    """Learns values of actions from remembered steps.

    Args:
        policy: The policy to train, on any device; its rows are values.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings, a ``DQNConfig`` or a relative of it.
        error: Function that compares values with targets, or None for ``q_error``.
        act: Function of observations and noise, or None for ``policy.act`` or its form
            in NumPy.
    """

    def __init__(
        self,
        policy: Any,
        envs: VectorEnv[Any, Any, Any],
        config: Any,
        error: Callable[..., Any] | None = None,
        act: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        self.policy = policy
        self.config: OffPolicyConfig = config
        self.error = error or partial(fused_q_error, double=config.double)
        # The target network: an older copy that nobody trains.
        self.target_policy = copy.deepcopy(policy).requires_grad_(False).eval()
        self.pair_up(policy)
        # What learns, and how.
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, fused=True
        )
        # What acts, and where its steps are kept.
        if act is None:
            act = numpy_act(policy) if self.device.type == "cpu" else policy.act
        self.act = act
        self.collector = Collector(envs, policy.to_env)
        self.buffer = ReplayBuffer(config.buffer_size, config.priority_exponent)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.iteration = self.updates = 0

    def iterate(self) -> dict[str, float]:
        """Act and learn in turns for a while, and return metrics."""
        config = self.config
        self.prepare()
        # All random numbers of the actions are drawn at once.
        noise = self.policy.noise(
            config.rounds * config.rollout_len, config.num_envs, self.generator
        )
        rows = iter(noise.to(self.device))

        def act(obs: Tensor) -> Tensor:
            return self.act(obs.to(self.device, torch.float32), next(rows))

        returns, losses, acting = [], [], EvalMode(self.policy)
        for _ in range(config.rounds):
            # A few steps with the policy as it is now; the buffer keeps them.
            with acting:
                batch = self.collector.collect(act, config.rollout_len)
            self.buffer.push(batch)
            returns.append(batch.episode_return)
            # Then the updates that are due.
            if self.step >= config.learning_starts:
                losses += [self.learn() for _ in range(config.updates_per_rollout)]

        self.iteration += 1
        return {
            "charts/episodic_return": torch.cat(returns).nanmean().item(),
            **self.explored(),
            **self.mean_losses(losses),
        }

    def prepare(self) -> None:
        """Set what changes from iteration to iteration."""
        # A run that is resumed starts with fresh environments. A run that continues
        # must do the same, so each checkpoint resets them, and the buffer is told.
        if self.collector.obs is None or self.checkpoint_due:
            self.collector.reset(env_seed(self.config.seed, self.step))
            self.buffer.cut()
        self.explore()
        self.anneal()

    def anneal(self) -> None:
        """Set the learning rate."""
        config, step = self.config, self.step
        if config.anneal:
            rate = linear_schedule(config.learning_rate, 0.0, config.total_steps, step)
            self.optimizer.param_groups[0]["lr"] = rate

    def explore(self) -> None:
        """Set the probability of a random action."""
        config: Any = self.config
        self.policy.actions.epsilon = linear_schedule(
            config.epsilon_start, config.epsilon_end, config.epsilon_steps, self.step
        )

    def explored(self) -> dict[str, float]:
        """Return the probability of a random action, as a metric."""
        return {"charts/epsilon": self.policy.actions.epsilon}

    def learn(self) -> QError:
        """Take one step of the optimiser on a batch from the buffer."""
        config = self.config
        # 1. Draw steps of any age; each is the start of a window of n.
        batch = self.sample()
        # 2. How wrong are the values?
        error = self.error(self.policy, self.target_policy, batch, self.generator)
        # 3. One step downhill for the weighted mean loss, with gradient clipping.
        for parameter in self.parameters:
            parameter.grad = None
        error.backward(batch.weight)
        clip_gradient(self.parameters, config.max_grad_norm)
        self.optimizer.step()

        # 4. The TD errors are the new priorities.
        if config.priority_exponent > 0:
            self.buffer.update(batch.place, error.td_error)
        # 5. The target network follows: by a little each time, or all the way now and
        # then.
        self.updates += 1
        if self.updates % config.target_interval == 0:
            self.follow(batch)
        return QError(error.loss.detach(), error.td_error, error.value)

    def follow(self, batch: Batch) -> None:
        """Let the target network follow."""
        # A module may have put another tensor in the place of a buffer.
        if self.has_buffers:
            self.pair_up(self.leader)
        polyak_update(self.target_weights, self.weights, self.config.tau)

    def pair_up(self, leader: nn.Module) -> None:
        """Find the numbers that the target network follows, and its own."""
        self.leader, self.has_buffers = leader, any(True for _ in leader.buffers())
        self.weights = numbers_of(leader)
        self.target_weights = numbers_of(self.target_policy)

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
        means = [float("nan")] * 3
        if errors:
            loss, td_error, value = map(torch.stack, zip(*errors, strict=True))
            means = [x.mean().item() for x in (loss, td_error.abs(), value)]
            check_finite(means[0], values=value)
        names = ("losses/loss", "losses/td_error", "losses/q_value")
        return dict(zip(names, means, strict=True))

    # The rest is for checkpoints and for `fit`, the loop around the learner
    # ({doc}`workshop/runs`).
    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.iteration % self.config.checkpoint_interval == 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, except for the policy's weights."""
        return {
            "step": self.step,
            "iteration": self.iteration,
            "updates": self.updates,
            "target": self.target_policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "buffer": self.buffer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned; it is copied."""
        # A state that lacks something is refused here, before anything has changed.
        names = ("step", "iteration", "updates", "buffer", "generator", "target")
        step, iteration, updates, buffer, generator, target = (state[n] for n in names)
        self.buffer.load_state_dict(buffer)
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.target_policy.load_state_dict(target)
        self.generator.set_state(generator)
        self.collector.step, self.iteration, self.updates = step, iteration, updates
        self.collector.obs = None


@checked
@dataclass(frozen=True)
class OffPolicyConfig:
    """Settings that DQN shares with the agents built on its loop.

    Attributes:
        seed: Decides all that is random in the run, except for the first weights.
        total_steps: Steps in the environments, all of them together.
        num_envs: Number of environments.
        hidden: Width of the hidden layers.
        num_steps: Number n of rewards in a target before the value.
        gamma: Discount.
        learning_rate: Learning rate of Adam at the start.
        anneal: Whether the learning rate falls linearly to zero.
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
        log_interval: Steps in the environments from one row of metrics to the next.
            The learning rate and other schedules move on there.
        checkpoint_interval: Iterations between checkpoints. The environments are reset
            at each of them.
    """

    seed: Annotated[int, Ge(0)] = 1
    total_steps: Count = 100_000
    num_envs: Count = 4
    hidden: Count = 128
    num_steps: Count = 1
    gamma: Fraction = 0.99
    learning_rate: Scale = 5e-4
    anneal: bool = False
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
    log_interval: Count = 1000
    checkpoint_interval: Count = 10

    def __post_init__(self) -> None:
        if self.rollout_len * self.num_envs % self.train_interval:
            raise ValueError(
                "train_interval must divide num_envs or be a multiple of it, got "
                f"{self.train_interval} for {self.num_envs}"
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
        return max(1, self.log_interval // (self.rollout_len * self.num_envs))


@checked
@dataclass(frozen=True)
class ExploringConfig(OffPolicyConfig):
    """Settings of the agents that explore with random actions.

    Attributes:
        epsilon_start: Probability of a random action at first.
        epsilon_end: That probability after ``epsilon_steps`` steps.
        epsilon_steps: Steps in the environments until then.
    """

    epsilon_start: Fraction = 1.0
    epsilon_end: Fraction = 0.05
    epsilon_steps: Count = 10_000


@checked
@dataclass(frozen=True)
class DQNConfig(ExploringConfig):
    """Settings of DQN: the shared ones and two of its own.

    Attributes:
        double: Whether the network in training chooses the next action.
        dueling: Whether the network separates a state's value from the advantages.
    """

    double: bool = True
    dueling: bool = False


# Settings with which the agent has learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 50_000,
        "dueling": True,
        "num_steps": 20,
        "learning_rate": 1e-3,
        "anneal": True,
        "train_interval": 2,
        "tau": 0.02,
        "reward_scale": 0.05,
    },
}


def dqn_settings(env: str) -> DQNConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return DQNConfig(**SETTINGS.get(env, {}))

# Generated from chapters/ddpg.py (edit there); digest 8fbd203e0fa4d942
"""DDPG, HDDPG and TD3: an actor that climbs the values of a critic."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.contract_models import (
    ActionValue,
    DeterministicActor,
    ProbabilityActor,
)
from literate_rl.dqn import DQN, EpsilonGreedy, ExploringConfig, QError
from literate_rl.policies import Policy
from literate_rl.replay import Batch
from literate_rl.workshop.fast import (
    FusedCriticError,
    chain_critic_error,
    chain_layers,
    clip_gradient,
    tangent_values,
)
from literate_rl.workshop.nests import as_space, as_vectors, plain_space
from literate_rl.workshop.signatures import (
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    check_finite,
    checked,
)
from literate_rl.workshop.states import ByName, state_spec

__all__ = [
    "DDPG",
    "ActorCritics",
    "BoxActions",
    "DDPGConfig",
    "HDDPGConfig",
    "OneHotActions",
    "TD3Config",
    "clipped_double_target",
    "critic_error",
    "ddpg_error",
    "ddpg_settings",
    "ddpg_target",
    "hddpg_settings",
    "make_ddpg_policy",
    "smoothed_action",
    "td3_settings",
]


class ActorCritics(nn.Module):
    """An actor, and critics that judge its actions.

    Args:
        actor: A model that keeps its contract; its first result is the action.
        critics: Likewise; the first result of each is the value.
        observation_space: It names the states; it is not flattened.
    """

    def __init__(
        self,
        actor: Any,
        critics: Sequence[Any],
        observation_space: spaces.Space[Any],
    ) -> None:
        super().__init__()
        spec = state_spec(observation_space)
        self.actor = ByName(actor, spec)
        self.critics = nn.ModuleList(ByName(critic, spec) for critic in critics)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the actor's actions, before any noise."""
        row: Tensor = self.actor(obs)[0]
        return row

    def q(self, obs: Tensor, action: Tensor) -> Float[Tensor, "K *B"]:
        """Return the value of actions by each of K critics."""
        values = [critic(obs, action=action)[0] for critic in self.critics]
        return torch.stack(values).squeeze(-1)

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of the actor's own actions by the first critic."""
        value: Tensor = self.critics[0](obs, action=self(obs))[0]
        return value.squeeze(-1)


class BoxActions:
    """Continuous actions in a box: a row is the action, and noise is added to it.

    Args:
        low: Lower bounds of the box, all finite.
        high: Upper bounds.

    Attributes:
        scale: Standard deviation of the noise, as a share of half the box: one number,
            or one for each environment.
        epsilon: Probability of a random action, drawn uniformly from the box.
    """

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        self.low = torch.as_tensor(np.asarray(low, dtype=np.float32))
        self.high = torch.as_tensor(np.asarray(high, dtype=np.float32))
        self.scale: float | Tensor = 0.0
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        shape = num_steps, num_envs, len(self.low)
        # The noise, for each number in proportion to its own range, {eq}`box-noise`.
        share = torch.as_tensor(self.scale).reshape(-1, 1)
        added = (
            share * (self.high - self.low) / 2 * torch.randn(shape, generator=generator)
        )
        # With probability ε a uniform action replaces the actor's; NaN elsewhere.
        explore = torch.rand(shape[:2], generator=generator) < self.epsilon
        anything = torch.rand(shape, generator=generator)
        anything = self.low + (self.high - self.low) * anything
        instead = anything.masked_fill(~explore.unsqueeze(-1), torch.nan)
        return torch.cat([added, instead], -1)

    @checked
    def choose(
        self, row: Float[Tensor, "*B A"], noise: Float[Tensor, "*B 2*A"] | float
    ) -> Float[Tensor, "*B A"]:
        """Return the actions that follow from rows and noise."""
        if isinstance(noise, float):
            return row + noise
        added, instead = noise.chunk(2, -1)
        return torch.where(instead.isnan(), row + added, instead)

    def nearby(
        self, action: Tensor, generator: torch.Generator, smoothing: float, clip: float
    ) -> Tensor:
        """Move actions a little, at random: see ``smoothed_action``."""
        noise = torch.randn(action.shape, generator=generator).to(action)
        box = self.low.to(action), self.high.to(action)
        return smoothed_action(action, noise, *box, smoothing, clip)

    def to_env(self, action: Tensor) -> NDArray[np.float32]:
        """Clip actions to the box, each dimension to its own bounds."""
        clipped: NDArray[np.float32] = action.clamp(self.low, self.high).numpy()
        return clipped


class OneHotActions:
    """One of N actions; a row holds probabilities, and an action is a one-hot row.

    Args:
        num_actions: Number of actions N.
        start: What the environment calls the first action.

    Attributes:
        epsilon: Probability of a random action, as in ``EpsilonGreedy``.
    """

    def __init__(self, num_actions: int, start: int = 0) -> None:
        self.num_actions, self.start = num_actions, start
        self.epsilon: float | Tensor = 0.0

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        # The race of {doc}`policies` draws an action from the probabilities. On top of
        # it, ε-greedy takes any action now and then.
        shape = num_steps, num_envs, self.num_actions
        race = -torch.empty(shape).exponential_(generator=generator).log()
        now_and_then = EpsilonGreedy(self.num_actions)
        now_and_then.epsilon = self.epsilon
        return race + now_and_then.noise(num_steps, num_envs, generator)

    @checked
    def choose(
        self, row: Float[Tensor, "*B N"], noise: Float[Tensor, "*B N"] | float
    ) -> Float[Tensor, "*B N"]:
        """Return the actions that follow from probabilities and noise."""
        # A probability of 0 would have the logarithm −∞, and then the random action of
        # ε-greedy could not win. So the smallest positive number replaces it.
        log_prob = row.clamp(min=torch.finfo(row.dtype).tiny).log()
        best = (log_prob + noise).argmax(-1, keepdim=True)
        return torch.zeros_like(row).scatter_(-1, best, 1.0)

    def nearby(
        self, action: Tensor, generator: torch.Generator, smoothing: float, clip: float
    ) -> Tensor:
        """Return probabilities as they are: they need no smoothing."""
        return action

    def to_env(self, action: Tensor) -> NDArray[np.int64]:
        """Return the actions as vector environments take them."""
        names: NDArray[np.int64] = action.argmax(-1).numpy() + self.start
        return names


@checked
def clipped_double_target(
    reward: Float[Tensor, "N"],
    discount: Float[Tensor, "N"],
    next_q: Float[Tensor, "K N"],
) -> Float[Tensor, "N"]:
    """Return the targets of K critics, without gradient.

    ``discount`` is the factor of the next value: a power of gamma, or 0 after a
    termination, where ``next_q`` may hold anything.

    Source: Fujimoto, van Hoof and Meger 2018, equation 10.
    """
    # The least optimistic critic counts, {eq}`clipped-double-target`.
    future = next_q.detach().amin(0).masked_fill(discount == 0, 0.0)
    target = torch.addcmul(reward, discount, future)
    check_finite(target, reward=reward, discount=discount, next_q=future)
    return target


@checked
def smoothed_action(
    action: Float[Tensor, "N A"],
    noise: Float[Tensor, "N A"],
    low: Float[Tensor, "A"],
    high: Float[Tensor, "A"],
    smoothing: NonNegative = 0.2,
    clip: NonNegative = 0.5,
) -> Float[Tensor, "N A"]:
    """Return an action near another one, inside the box.

    Args:
        action: The actions.
        noise: Standard normal numbers.
        low: Lower bounds of the box.
        high: Upper bounds.
        smoothing: Standard deviation of the distance, as a share of half the box.
        clip: Bound of that distance, as the same share.

    Source: Fujimoto, van Hoof and Meger 2018, section 5.3.
    """
    # Each dimension has its own scale and its own bounds, {eq}`smoothed-action`.
    half = (high - low) / 2
    distance = half * (smoothing * noise).clamp(-clip, clip)
    return (action + distance).clamp(low, high)


@checked
def critic_error(
    q: Float[Tensor, "K N"],
    target: Float[Tensor, "N"],
    increase: NonNegative = 1.0,
    decrease: NonNegative = 1.0,
) -> Float[Tensor, "N"]:
    """Compute the loss of K critics, summed over them.

    Args:
        q: Their values, with gradient.
        target: What the values should be; treated as a constant.
        increase: Rate at which a value rises towards its target.
        decrease: Rate at which it falls.
    """
    td_error = target.detach() - q
    # A value below its target and one above it may learn at different rates,
    # {eq}`hysteretic`.
    rate = torch.where(td_error > 0, increase, decrease).to(q)
    error = (0.5 * rate * td_error.square()).sum(0)
    check_finite(error, q=q, target=target)
    return error


def ddpg_target(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float,
    clip: float,
) -> Tensor:
    """Return what the critics should think of the actions in a batch.

    Args:
        policy: The policy in training; its network is an ``ActorCritics``.
        target_policy: Its older copy.
        batch: Windows of steps, as the buffer returned them.
        generator: The source of the smoothing's noise.
        smoothing: As in ``smoothed_action``; 0 is none.
        clip: As in ``smoothed_action``.
    """
    with torch.no_grad():
        # 1. What would the older actor do next?
        action = target_policy(batch.next_obs)
        if smoothing > 0:
            action = policy.actions.nearby(action, generator, smoothing, clip)
        # 2. What is that worth to the older critics? This gives the target.
        next_q = target_policy.network.q(batch.next_obs, action)
        return clipped_double_target(batch.reward, batch.discount, next_q)


def ddpg_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float = 0.0,
    clip: float = 0.5,
    increase: float = 1.0,
    decrease: float = 1.0,
) -> QError:
    """Compare the critics' values of actions with their targets.

    Args:
        policy: As in ``ddpg_target``, like the next five.
        target_policy: As in ``ddpg_target``.
        batch: As in ``ddpg_target``.
        generator: As in ``ddpg_target``.
        smoothing: As in ``ddpg_target``.
        clip: As in ``ddpg_target``.
        increase: As in ``critic_error``.
        decrease: As in ``critic_error``.
    """
    target = ddpg_target(policy, target_policy, batch, generator, smoothing, clip)
    # 3. How far is each critic from it, for the action that was taken?
    q = policy.network.q(batch.obs, batch.action)
    loss = critic_error(q, target, increase, decrease)
    value = q.detach().mean(0)
    return QError(loss, target - value, value)


def critic_chains(critics: Iterable[Any]) -> list[list[nn.Module]] | None:
    """Return the layers of critics that are our own, or None if one is not."""
    ours = [type(critic.model) is ActionValue for critic in critics]
    chains = [chain_layers(critic.model.net) for critic in critics] if all(ours) else []
    known = [chain for chain in chains if chain is not None]
    return known if len(known) == len(ours) else None


def fused_ddpg_error(
    policy: Any,
    target_policy: Any,
    batch: Batch,
    generator: torch.Generator,
    smoothing: float = 0.0,
    clip: float = 0.5,
    increase: float = 1.0,
    decrease: float = 1.0,
) -> QError | FusedCriticError:
    """Compute what ``ddpg_error`` does, faster if the critics are our own."""
    given = policy, target_policy, batch, generator, smoothing, clip
    chains = critic_chains(policy.network.critics)
    if chains is None:
        return ddpg_error(*given, increase, decrease)
    target = ddpg_target(*given)
    return chain_critic_error(chains, batch, target, increase, decrease)


def frozen_values(critics: Any, obs: Tensor, action: Tensor) -> Float[Tensor, "K N"]:
    """Return what critics think of actions; only the actions need a gradient."""
    chains = critic_chains(critics)
    if chains is not None:
        return tangent_values(chains, obs, action)
    return torch.stack([critic(obs, action=action)[0] for critic in critics]).squeeze(
        -1
    )


class DDPG(DQN):
    """DQN for continuous actions: an actor finds the best one.

    With twin critics, a delay and smoothing it is TD3.

    Args:
        policy: What ``make_ddpg_policy`` returns, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
    """

    def __init__(
        self, policy: Any, envs: VectorEnv[Any, Any, Any], config: DDPGConfig
    ) -> None:
        error = partial(
            fused_ddpg_error,
            smoothing=config.smoothing,
            clip=config.smoothing_clip,
            increase=config.increase,
            decrease=config.decrease,
        )
        super().__init__(policy, envs, config, error, policy.act)
        actor = policy.network.actor
        self.actor_parameters = [p for p in actor.parameters() if p.requires_grad]
        policy.actions.scale = config.noise

    def follow(self, batch: Batch) -> None:
        """Let the actor climb, then let the older copies follow."""
        self.climb(batch.obs)
        super().follow(batch)

    def climb(self, obs: Tensor) -> None:
        """Take one step of the optimiser on the actor."""
        # The first critic's value of the actor's own actions, {eq}`actor-loss`. The
        # optimiser goes downhill, hence the minus.
        network: Any = self.policy.network
        loss = -frozen_values(network.critics[:1], obs, network(obs)).mean()
        # The gradient goes through the critic to the actor's parameters alone,
        # {eq}`policy-gradient-through-critic`. The optimiser does not move parameters
        # without a gradient, so the critics stay as they are.
        for parameter in self.parameters:
            parameter.grad = None
        # A model of your own may have parameters on which its action does not depend.
        grads = torch.autograd.grad(loss, self.actor_parameters, allow_unused=True)
        for parameter, grad in zip(self.actor_parameters, grads, strict=True):
            parameter.grad = grad
        clip_gradient(self.actor_parameters, self.config.max_grad_norm)
        self.optimizer.step()


@checked
def make_ddpg_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    hidden: Count = 64,
    num_critics: Count = 1,
    actor: Any = None,
    critic: Any = None,
) -> Policy:
    """Build an actor and critics for the spaces of one environment.

    Args:
        observation_space: A space, or what ``plain_space`` made of it; vectors for our
            own networks.
        action_space: A bounded box of vectors, or a Discrete space.
        hidden: Width of our networks' hidden layers.
        num_critics: Number of critics.
        actor: An actor of your own instead of ours.
        critic: A critic of your own, or a sequence of them. If there is only one, the
            others are copies with fresh weights.
    """
    states, actions = as_space(observation_space), as_space(action_space)
    # Continuous actions have bounds, discrete ones probabilities.
    if isinstance(actions, spaces.Discrete):
        size = int(actions.n)
        make_actor: Callable[..., Any] = partial(ProbabilityActor, action_num=size)
        choice: Any = OneHotActions(size, int(actions.start))
    elif isinstance(actions, spaces.Box) and bounded(actions):
        size = actions.shape[0]
        make_actor = partial(DeterministicActor, low=actions.low, high=actions.high)
        choice = BoxActions(actions.low, actions.high)
    else:
        raise ValueError(
            f"action_space must be Discrete or a vector within bounds, got {actions}"
        )
    recipe: dict[str, Any] = {
        "observation_space": plain_space(states),
        "action_space": plain_space(actions),
        "hidden": hidden,
        "num_critics": num_critics,
    }
    if actor is None:
        inputs = as_vectors(states).shape[0]
        actor = make_actor(inputs, hidden=hidden)
        critics = [ActionValue(inputs, size, hidden) for _ in range(num_critics)]
    else:
        critics = as_many(critic, num_critics)
        kinds = {"actor": actor, "critic": critic}
        recipe["models"] = {name: type(x).__qualname__ for name, x in kinds.items()}
    network = ActorCritics(actor, critics, states)
    return Policy(network, choice, ("make_ddpg_policy", recipe))


def bounded(space: spaces.Box) -> bool:
    """Return whether a box holds vectors, with finite bounds."""
    return len(space.shape) == 1 and space.is_bounded()


def as_many(critic: Any, number: int) -> list[Any]:
    """Return critics, made from one if only one is given."""
    several = isinstance(critic, list | tuple | nn.ModuleList)
    given = list(critic) if several else [critic]
    while len(given) < number:
        # Equal critics would stay equal, so a copy gets fresh weights.
        twin = copy.deepcopy(given[0])
        for module in twin.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        given.append(twin)
    return given


@checked
@dataclass(frozen=True)
class DDPGConfig(ExploringConfig):
    """Settings of DDPG: those of DQN with other defaults, and some of its own.

    Attributes:
        num_critics: Number of critics; the targets take the least optimistic one.
        noise: Standard deviation of the noise on actions, as a share of half the box.
        smoothing: The same for the next action in a target; 0 turns it off.
        smoothing_clip: Bound of that noise, as the same share.
        increase: Rate at which values rise towards their targets.
        decrease: Rate at which they fall.
    """

    num_envs: Count = 1
    hidden: Count = 64
    learning_rate: Positive = 1e-3
    train_interval: Count = 1
    learning_starts: Count = 500
    tau: Fraction = 0.005
    epsilon_end: Fraction = 0.0
    epsilon_steps: Count = 500
    max_grad_norm: Positive = math.inf
    log_interval: Count = 500
    num_critics: Count = 1
    noise: NonNegative = 0.1
    smoothing: NonNegative = 0.0
    smoothing_clip: NonNegative = 0.5
    increase: NonNegative = 1.0
    decrease: NonNegative = 1.0


@checked
@dataclass(frozen=True)
class HDDPGConfig(DDPGConfig):
    """Settings of hysteretic DDPG: values fall more slowly than they rise."""

    decrease: NonNegative = 0.5


@checked
@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """Settings of TD3: two critics, delayed updates, smoothed targets."""

    target_interval: Count = 2
    num_critics: Count = 2
    smoothing: NonNegative = 0.2


# Settings with which the agents have learned, by environment. For what an entry leaves
# out, the default holds.
SETTINGS: dict[str, dict[str, Any]] = {"Pendulum-v1": {"total_steps": 10_000}}


def ddpg_settings(env: str) -> DDPGConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return DDPGConfig(**SETTINGS.get(env, {}))


def hddpg_settings(env: str) -> HDDPGConfig:
    """Return settings of hysteretic DDPG, likewise."""
    return HDDPGConfig(**SETTINGS.get(env, {}))


def td3_settings(env: str) -> TD3Config:
    """Return settings of TD3, likewise."""
    return TD3Config(**SETTINGS.get(env, {}))

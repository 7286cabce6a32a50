# Generated from chapters/ppg.py (edit there); digest 39b18ce359e0a4c8
"""PPG: PPO in a policy phase, and an auxiliary phase that teaches the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, kl_divergence

from literate_rl.advantages import lambda_returns
from literate_rl.agents import Rollout
from literate_rl.disjoint_network import (
    DETACH,
    Detach,
    DisjointPolicyValueNetwork,
    EncodingNetwork,
    linear,
)
from literate_rl.hybrid_ppo import HybridActions
from literate_rl.policies import Policy, RunningMoments, make_actions
from literate_rl.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.ppo_error import ppo_info, ppo_policy_loss
from literate_rl.workshop.nests import as_space, ends, leaves, map_nest, plain_space
from literate_rl.workshop.runs import check_counts, check_setting
from literate_rl.workshop.signatures import Fraction, NonNegative, checked

__all__ = [
    "AlgStep",
    "ConvolutionalEncodingNetwork",
    "LossInfo",
    "PPGAlgorithm",
    "PPGAuxAlgorithm",
    "PPGAuxOptions",
    "PPGAuxPhaseLoss",
    "PPGAuxPhaseLossInfo",
    "PPGConfig",
    "PPGRolloutInfo",
    "PPGTrainInfo",
    "PhasicNetwork",
    "TimeStep",
    "element_wise_squared_loss",
    "make_phasic_policy",
    "ppg_network_forward",
    "ppg_settings",
]


FIRST, MID, LAST = 0, 1, 2


class TimeStep(NamedTuple):
    """A step of B environments, before and after the action.

    Attributes:
        step_type: 0 for the first step of an episode, 2 for the last one, whether it
            terminated or was truncated, 1 for all others, (B,).
        reward: What the step was paid, (B,).
        discount: 0 where the task ended with this step, 1 elsewhere, (B,).
        observation: What the network sees, a nest of tensors ``(B, *)``.
    """

    step_type: Any
    reward: Any
    discount: Any
    observation: Any


class AlgStep(NamedTuple):
    """What an algorithm makes of a step: output, next state, information for a loss."""

    output: Any
    state: Any
    info: Any


class LossInfo(NamedTuple):
    """A loss for each step, (T, B), and its parts."""

    loss: Tensor
    extra: Any


class PPGRolloutInfo(NamedTuple):
    """What the network said of a step, and what came of it.

    Attributes:
        action_distribution: Nest of distributions of the action.
        action: What was done, a nest of tensors.
        log_prob: Its log-probability, (B,), or () where it was not needed.
        value: Value (B,).
        aux: Auxiliary value (B,), or () where it was not required.
        step_type: As in ``TimeStep``.
        discount: As in ``TimeStep``.
        reward: As in ``TimeStep``.
        reward_weights: Always (): rewards are single numbers here.
        next_value: Value of the step's true successor, (B,), or () where it is not
            known yet. Not among the documented fields.
    """

    action_distribution: Any
    action: Any
    log_prob: Any
    value: Any
    aux: Any
    step_type: Any
    discount: Any
    reward: Any
    reward_weights: Any
    next_value: Any = ()


class PPGTrainInfo(NamedTuple):
    """A ``PPGRolloutInfo`` judged anew, beside what was said during the rollout.

    Attributes:
        rollout_action_distribution: Nest of distributions that the clone keeps to.
        rollout_value: Value at the time of the rollout.
        rollout_log_prob: Log-probability at that time.
        rollout_next_value: Value of the true successor at that time. Not among the
            documented fields.

    All other attributes are those of ``PPGRolloutInfo``. Each is () by default.
    """

    action_distribution: Any = ()
    action: Any = ()
    log_prob: Any = ()
    value: Any = ()
    aux: Any = ()
    step_type: Any = ()
    discount: Any = ()
    reward: Any = ()
    reward_weights: Any = ()
    rollout_action_distribution: Any = ()
    rollout_value: Any = ()
    rollout_log_prob: Any = ()
    rollout_next_value: Any = ()

    def absorbed(self, rollout_info: PPGRolloutInfo) -> PPGTrainInfo:
        """Return a new tuple that has taken over what a network says of the same steps.

        The action, its log-probability and all that belongs to the rollout stay.

        Args:
            rollout_info: What ``ppg_network_forward`` returned for these steps.
        """
        new = rollout_info._asdict()
        for kept in ("action", "log_prob", "next_value"):
            del new[kept]
        return self._replace(**new)


def ppg_network_forward(
    network: DisjointPolicyValueNetwork,
    inputs: TimeStep,
    state: Any = (),
    require_aux: bool = True,
    epsilon_greedy: float | None = None,
) -> AlgStep:
    """Pass one step through the network and choose an action.

    Args:
        network: The network.
        inputs: The step of B environments.
        state: The network's state, or () at a start or without memory.
        require_aux: Whether the auxiliary value is wanted.
        epsilon_greedy: None to draw the action; otherwise the probability of drawing
            it, in [0, 1], and it is the mode in all other cases.

    Returns:
        The action (a nest of tensors, as the distributions count and scale it, see
        the projection networks), the next state and a ``PPGRolloutInfo``. Action
        and log-probability carry no gradient. Without ``epsilon_greedy`` there is no
        log-probability: it is ().

    Raises:
        ValueError: If ``epsilon_greedy`` is out of range.
    """
    if epsilon_greedy is not None and not 0 <= epsilon_greedy <= 1:
        raise ValueError(
            f"epsilon_greedy must be None or in [0, 1], got {epsilon_greedy}"
        )
    output, state = network(inputs.observation, state, require_aux)
    distribution, value, aux = output
    log_prob: Any = ()
    if epsilon_greedy is None:
        action = map_nest(lambda leaf: leaf.sample(), distribution)
        terms = map_nest(lambda leaf, a: leaf.log_prob(a), distribution, action)
        log_prob = sum(ends(terms)).detach()
    else:
        action = map_nest(partial(draw_or_mode, q=epsilon_greedy), distribution)
    step_type, reward, discount, _ = inputs
    info = PPGRolloutInfo(
        distribution, action, log_prob, value, aux, step_type, discount, reward, ()
    )
    return AlgStep(action, state, info)


def draw_or_mode(leaf: Any, q: float) -> Tensor:
    """Draw from a distribution with probability q, row by row, else take its mode."""
    # The mixture {eq}`greedy-mixture`. To be greedy always needs no random number.
    mode: Tensor = leaf.mode.detach()
    if q == 0:
        return mode
    drawn = torch.rand(leaf.batch_shape, device=mode.device) < q
    choice = drawn.view(*drawn.shape, *[1] * len(leaf.event_shape))
    return torch.where(choice, leaf.sample(), mode)


def element_wise_squared_loss(x: Tensor, y: Tensor) -> Tensor:
    """Return the squared difference of two tensors, element by element."""
    return (x - y).square()


def divergence(old: Any, new: Any) -> Tensor:
    """Return the divergence between nests of distributions, one for each state."""
    # Leaf by leaf, {eq}`nested-divergence`.
    total: Tensor = sum(ends(map_nest(kl_divergence, old, new)))
    return total


class PPGAuxPhaseLossInfo(NamedTuple):
    """The three parts of the auxiliary phase's loss, (T, B) each.

    Attributes:
        td_loss_actual: Error of the value.
        td_loss_aux: Error of the auxiliary value.
        policy_kl_loss: Divergence from the old policy, in nats, not yet weighted.
    """

    td_loss_actual: Tensor
    td_loss_aux: Tensor
    policy_kl_loss: Tensor


def check_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise unless a value is a tensor of the expected shape."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")


class PPGAuxPhaseLoss(nn.Module):
    """The loss of the auxiliary phase.

    Args:
        td_error_loss_fn: Function of estimates and targets that returns errors.
        policy_kl_loss_weight: Weight of the divergence.
        gamma: Discount. A list of discounts, one for each of several rewards, is not
            supported: the value is a single number.
        td_lambda: Decay of the weights of longer returns.
        name: Name of the loss.

    Source:
        Cobbe et al. 2021, Phasic Policy Gradient, section 2 and algorithm 1.
    """

    @checked
    def __init__(
        self,
        td_error_loss_fn: Callable[[Tensor, Tensor], Tensor] = (
            element_wise_squared_loss
        ),
        policy_kl_loss_weight: NonNegative = 1.0,
        gamma: Fraction = 0.999,
        td_lambda: Fraction = 0.95,
        name: str = "PPGAuxPhaseLoss",
    ) -> None:
        super().__init__()
        self.td_error_loss_fn, self.weight = td_error_loss_fn, policy_kl_loss_weight
        self.gamma, self.td_lambda, self.name = gamma, td_lambda, name

    def target(self, info: PPGTrainInfo) -> Tensor:
        """Return the targets (T, B), made from what was seen during the rollout."""
        for name in ("rollout_next_value", "discount", "step_type"):
            check_shape(f"info.{name}", getattr(info, name), tuple(info.reward.shape))
        terminated = info.discount == 0
        truncated = (info.step_type == LAST) & ~terminated
        return lambda_returns(
            info.reward,
            info.rollout_next_value,
            terminated,
            truncated,
            self.gamma,
            self.td_lambda,
        )

    def forward(self, info: PPGTrainInfo, target: Tensor | None = None) -> LossInfo:
        """Compute the loss of each step.

        Args:
            info: Steps in time order, (T, B), with ``rollout_next_value``.
            target: What ``target`` returned for these steps, (T, B); None computes it.

        Returns:
            The loss (T, B) and its parts.

        Raises:
            ValueError: If a shape differs or a number that counts is not finite.
        """
        if target is None:
            target = self.target(info)
        for name in ("value", "aux"):
            check_shape(f"info.{name}", getattr(info, name), tuple(target.shape))
        # The three terms of {eq}`auxiliary-loss`.
        parts = PPGAuxPhaseLossInfo(
            self.td_error_loss_fn(info.value, target),
            self.td_error_loss_fn(info.aux, target),
            divergence(info.rollout_action_distribution, info.action_distribution),
        )
        td_loss = parts.td_loss_actual + parts.td_loss_aux
        return LossInfo(td_loss + self.weight * parts.policy_kl_loss, parts)


class PPGAuxOptions(NamedTuple):
    """Options of the auxiliary phase.

    Attributes:
        enabled: Whether there is an auxiliary phase at all.
        interval: Policy phases between two auxiliary phases.
        mini_batch_length: Steps of a chunk, or None for the steps of a rollout.
        mini_batch_size: Chunks of a minibatch; a few more where they do not come out
            even.
        num_updates_per_train_iter: Epochs of an auxiliary phase.
    """

    enabled: bool = True
    interval: int = 32
    mini_batch_length: int | None = None
    mini_batch_size: int = 8
    num_updates_per_train_iter: int = 6


AUX_OPTIONS = PPGAuxOptions()
REWARD = spaces.Box(-np.inf, np.inf, ())


def check_aux_options(options: PPGAuxOptions) -> None:
    """Raise unless all options are legal."""
    if not isinstance(options, PPGAuxOptions):
        raise TypeError(f"aux_options must be PPGAuxOptions, got {options!r}")
    names = ["interval", "mini_batch_size", "num_updates_per_train_iter"]
    if options.mini_batch_length is not None:
        names.append("mini_batch_length")
    check_counts(options, names)


@checked
@dataclass(frozen=True)
class PPGConfig(PPOConfig):
    """Settings of PPG: those of PPO and those of the auxiliary phase.

    Attributes:
        aux_enabled: Whether there is an auxiliary phase; without it PPG is PPO.
        aux_interval: Policy phases between two auxiliary phases.
        aux_batch_length: Steps of a chunk in the auxiliary phase, or none for the
            steps of a rollout, which it must divide.
        aux_batch_size: Chunks of a minibatch in the auxiliary phase.
        aux_epochs: Epochs of an auxiliary phase.
        aux_learning_rate: Step size of the auxiliary phase's Adam at the start.
        clone_weight: Weight of the divergence in the auxiliary phase.
        kl_reference: What the divergence starts from: "snapshot", the policy at the
            start of the auxiliary phase, or "rollout", the policy that acted.
        share_encoder: Whether policy and value share an encoder.
        detach: When a shared encoder is cut off from the value: "always",
            "policy_phase" or "never".
    """

    aux_enabled: bool = True
    aux_interval: int = 32
    aux_batch_length: int | None = None
    aux_batch_size: int = 8
    aux_epochs: int = 6
    aux_learning_rate: float = 5e-4
    clone_weight: float = 1.0
    kl_reference: str = "snapshot"
    share_encoder: bool = False
    detach: Detach = "always"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, ("aux_interval", "aux_batch_size", "aux_epochs"))
        steps = self.num_steps
        check_setting(
            self,
            "aux_batch_length",
            lambda x: x is None or (x >= 1 and steps % x == 0),
            f"None or a divisor of the {steps} steps of a rollout",
        )
        check_setting(self, "aux_learning_rate", lambda x: x > 0, "positive")
        finite = "at least 0, finite"
        check_setting(self, "clone_weight", lambda x: 0 <= x < math.inf, finite)
        choices = {"kl_reference": ("snapshot", "rollout"), "detach": DETACH}
        for name, legal in choices.items():
            check_setting(self, name, legal.__contains__, f"one of {legal}")

    @property
    def aux_options(self) -> PPGAuxOptions:
        """The options of the auxiliary phase in their documented form."""
        return PPGAuxOptions(
            self.aux_enabled,
            self.aux_interval,
            self.aux_batch_length or self.num_steps,
            self.aux_batch_size,
            self.aux_epochs,
        )


# Settings with which the agent was seen to learn, by environment. What an entry leaves
# out is that of PPO.
PPG_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 100_000,
        "aux_interval": 16,
        "aux_batch_size": 16,
        "aux_learning_rate": 1e-3,
    },
    "literate_rl/Maze-v0": {
        "total_steps": 150_000,
        "num_envs": 32,
        "num_steps": 64,
        "num_epochs": 6,
        "learning_rate": 2e-3,
        "gamma": 0.97,
        "entropy_weight": 0.02,
        "aux_interval": 4,
        "aux_batch_size": 32,
        "aux_epochs": 3,
        "aux_learning_rate": 1e-3,
    },
}


def ppg_settings(env: str) -> PPGConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return PPGConfig(**asdict(ppo_settings(env)) | PPG_SETTINGS.get(env, {}))


def row_of(leaf: Any) -> Tensor:
    """Return the row of numbers that describes a distribution; a tensor is one."""
    if isinstance(leaf, Categorical):
        logit: Tensor = leaf.logits
        return logit
    if isinstance(leaf, Independent):
        normal: Any = leaf.base_dist
        both = [normal.loc, normal.scale.log()]
        dims = len(leaf.event_shape)
        return torch.cat([x.reshape(*x.shape[: x.ndim - dims], -1) for x in both], -1)
    row: Tensor = leaf
    return row


class PPGAuxAlgorithm:
    """The auxiliary phase: both values learn from old experience; the policy is held.

    Args:
        observation_spec: Space of one observation.
        action_spec: Space of one action.
        reward_spec: Space of a reward: a box without dimensions, a single number.
        config: Settings; the defaults if None.
        optimizer: Optimiser of the auxiliary phase, or None for Adam.
        dual_actor_value_network: The network, shared with the policy that acts; None
            makes one.
        aux_options: Options of the auxiliary phase. Where it is not enabled, nothing
            is stored and nothing is trained.
        debug_summaries: Whether ``train_iter`` also tells the mean length of the
            gradient, before it is shortened.
        name: Name of the algorithm.
        prepare: Turns observations, as they are stored, into what the network takes.
            It is asked anew in each phase; None leaves them as they are.

    Attributes:
        buffer: Experience since the last phase, a list of steps.

    Raises:
        TypeError: If an option is of another kind.
        ValueError: If an option is out of range or the reward is no single number.

    Source:
        Cobbe et al. 2021, Phasic Policy Gradient, algorithm 1.
    """

    def __init__(
        self,
        observation_spec: spaces.Space[Any],
        action_spec: spaces.Space[Any],
        reward_spec: spaces.Space[Any] = REWARD,
        config: PPGConfig | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        dual_actor_value_network: DisjointPolicyValueNetwork | None = None,
        aux_options: PPGAuxOptions = AUX_OPTIONS,
        debug_summaries: bool = False,
        name: str = "PPGAuxAlgorithm",
        *,
        prepare: Callable[[Any], Any] | None = None,
    ) -> None:
        check_aux_options(aux_options)
        if not isinstance(reward_spec, spaces.Space) or reward_spec.shape != ():
            raise ValueError(f"reward_spec must be a single number, got {reward_spec}")
        self.config = config or PPGConfig()
        self.network = dual_actor_value_network or DisjointPolicyValueNetwork(
            observation_spec, action_spec
        )
        self.parameters = list(self.network.parameters())
        self.optimizer = optimizer or torch.optim.Adam(
            self.parameters, self.config.aux_learning_rate, eps=1e-5, fused=True
        )
        self.options, self.debug_summaries = aux_options, debug_summaries
        self.name, self.prepare = name, prepare or (lambda observation: observation)
        self.loss = PPGAuxPhaseLoss(
            policy_kl_loss_weight=self.config.clone_weight,
            gamma=self.config.gamma,
            td_lambda=self.config.lambda_,
        )
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.buffer: list[tuple[Any, PPGRolloutInfo]] = []
        self.form: Any = None  # shapes and types of an experience

    @property
    def interval(self) -> int:
        """Policy phases between two auxiliary phases."""
        return self.options.interval

    def observe_for_aux_replay(self, exp: tuple[Any, PPGRolloutInfo]) -> None:
        """Store the experience of one step of B environments.

        Args:
            exp: The observation, a nest of tensors ``(B, *)``, and the rollout's
                information on it, with ``next_value``. It is copied.

        Raises:
            TypeError: If something in it is neither a tensor nor a distribution.
            ValueError: If the network cannot learn from it, if shapes or types differ
                from those of the first experience, or a number is not finite.
                Nothing is stored then.
        """
        if not self.options.enabled:
            return
        if not (isinstance(exp, tuple) and isinstance(exp[-1], PPGRolloutInfo)):
            raise TypeError(
                f"exp must be an observation and a PPGRolloutInfo, got {exp!r:.40}"
            )
        observation, info = exp
        rows = tuple(row_of(leaf) for leaf in ends(info.action_distribution))
        new = (observation, info._replace(action_distribution=rows))
        for x in ends(new):
            if not isinstance(x, Tensor):
                raise TypeError(f"exp must hold tensors, got {type(x).__name__}")
        form = map_nest(lambda x: f"{tuple(x.shape)} {x.dtype}", new)
        if self.form is None:
            self.check_first(*new)
        elif form != self.form:
            raise ValueError(f"exp must have the form {self.form}, got {form}")
        for x in ends((observation, info.reward, info.next_value)):
            if not x.isfinite().all():
                raise ValueError(
                    "exp must hold finite observations, rewards and values"
                )
        self.form = form
        self.buffer.append(map_nest(lambda x: x.detach().clone(), new))

    @torch.no_grad()
    def check_first(self, observation: Any, info: PPGRolloutInfo) -> None:
        """Raise unless the network can learn from experience of this form."""
        output, state = self.network.heads(self.prepare(observation))
        if any(True for _ in ends(state)):
            raise ValueError(
                "dual_actor_value_network must have encoders without memory: the "
                "auxiliary phase passes the steps of a chunk all at once"
            )
        rows, value, _ = output
        if value.numel() == 0:
            raise ValueError("exp must hold at least one environment, got none")
        for name in ("value", "next_value", "reward", "discount", "step_type"):
            check_shape(f"exp's {name}", getattr(info, name), tuple(value.shape))
        for own, row in zip(rows, info.action_distribution, strict=True):
            check_shape("exp's action_distribution", row, tuple(own.shape))

    def chunks(self) -> tuple[Any, PPGRolloutInfo]:
        """Return the buffer as chunks: tensors ``(L, C, *)``, time first.

        Steps at the end that do not fill a chunk are left out.
        """
        length = self.options.mini_batch_length or self.config.num_steps
        count = len(self.buffer) // length
        if count == 0:
            raise ValueError(
                f"the buffer must hold at least one chunk of {length} steps, got "
                f"{len(self.buffer)}: call observe_for_aux_replay first"
            )

        def cut(*steps: Tensor) -> Tensor:
            stacked = torch.stack(steps).unflatten(0, (count, length))
            time_first: Tensor = stacked.transpose(0, 1).flatten(1, 2)
            return time_first

        chunks: tuple[Any, PPGRolloutInfo] = map_nest(
            cut, *self.buffer[: count * length]
        )
        return chunks

    def train_iter(self) -> dict[str, float]:
        """Run one auxiliary phase, empty the buffer, and return metrics.

        Raises:
            ValueError: If the buffer does not hold a chunk or a gradient is not finite.
        """
        if not self.options.enabled:
            return {}
        observation, info = self.chunks()
        observation = self.prepare(observation)
        count = info.reward.shape[1]
        if self.config.kl_reference == "snapshot":
            info = info._replace(action_distribution=self.snapshot(observation))
        # The targets stay the same during the phase.
        seen = PPGTrainInfo(rollout_next_value=info.next_value).absorbed(info)
        data = observation, info, self.loss.target(seen)
        parts = max(1, count // self.options.mini_batch_size)
        history = []
        for _ in range(self.options.num_updates_per_train_iter):
            order = torch.randperm(count, generator=self.generator)
            for chosen in order.to(info.reward.device).tensor_split(parts):
                minibatch = map_nest(lambda x, c=chosen: x[:, c], data)
                history.append(self.learn(*minibatch))
        self.buffer.clear()
        # The means of the last epoch are told, and the divergence of the first
        # minibatch, before which nothing was learned.
        table = torch.stack(history)
        names = ("value_loss", "aux_value_loss", "kl", "grad_norm")
        means = table[-parts:].mean(0).tolist()
        metrics = {f"aux/{name}": x for name, x in zip(names, means, strict=True)}
        metrics["aux/kl_at_start"] = table[0, 2].item()
        if not self.debug_summaries:
            del metrics["aux/grad_norm"]
        return metrics

    @torch.no_grad()
    def snapshot(self, observation: Any) -> tuple[Tensor, ...]:
        """Return rows that describe the policy as it is now, chunk by chunk."""
        count = next(ends(observation)).shape[1]
        size = self.options.mini_batch_size
        pieces = [
            self.network.heads(
                map_nest(lambda x, s=start: x[:, s : s + size], observation), (), False
            )[0][0]
            for start in range(0, count, size)
        ]
        return tuple(torch.cat(rows, 1) for rows in zip(*pieces, strict=True))

    def learn(self, observation: Any, info: PPGRolloutInfo, target: Tensor) -> Tensor:
        """Take one step of the optimiser on a minibatch of chunks.

        Args:
            observation: What the network takes, a nest of tensors ``(L, C, *)``.
            info: What was stored of the steps.
            target: Targets of the values (L, C).

        Returns:
            The means of the three parts of the loss and the length of the gradient.
        """
        inputs = TimeStep(info.step_type, info.reward, info.discount, observation)
        step = self.train_step(inputs, (), info)
        loss_info = self.calc_loss(step.info, target)
        for parameter in self.parameters:
            parameter.grad = None
        loss_info.loss.mean().backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        if not norm.isfinite():
            raise ValueError(f"the gradient's length must be finite, got {norm.item()}")
        self.optimizer.step()
        parts = [part.detach().mean() for part in loss_info.extra]
        return torch.stack([*parts, norm])

    def train_step(
        self, inputs: TimeStep, state: Any, plain_rollout_info: PPGRolloutInfo
    ) -> AlgStep:
        """Judge steps of the buffer with the network as it is now.

        Args:
            inputs: The steps.
            state: The network's state, or ().
            plain_rollout_info: What was stored of them; of each distribution the row.

        Returns:
            Action, next state and a ``PPGTrainInfo`` for ``calc_loss``.

        Raises:
            ValueError: If no experience was observed yet.
        """
        if self.form is None:
            raise ValueError(
                "train_step needs an experience: call observe_for_aux_replay first"
            )
        # The network chooses an action too, but what counts is the one that was done.
        new = ppg_network_forward(self.network, inputs, state, True, 0.0)
        old = plain_rollout_info
        info = PPGTrainInfo(
            action=old.action,
            log_prob=old.log_prob,
            rollout_action_distribution=self.network.distribution(
                old.action_distribution
            ),
            rollout_value=old.value,
            rollout_log_prob=old.log_prob,
            rollout_next_value=old.next_value,
        )
        return AlgStep(new.output, new.state, info.absorbed(new.info))

    def calc_loss(self, info: PPGTrainInfo, target: Tensor | None = None) -> LossInfo:
        """Return the loss (T, B) of steps that ``train_step`` has judged.

        Args:
            info: The judged steps.
            target: Targets of the values (T, B); None computes them.
        """
        loss: LossInfo = self.loss(info, target)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the network's weights aside."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }
        if self.buffer:
            observation, info = map_nest(lambda *x: torch.stack(x), *self.buffer)
            state |= {"observation": observation, "info": info._asdict()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.buffer = []
        if "info" in state:
            device = self.parameters[0].device
            steps = (state["observation"], PPGRolloutInfo(**state["info"]))
            for t in range(len(state["info"]["reward"])):
                step = map_nest(lambda x, t=t: x[t].to(device), steps)
                self.observe_for_aux_replay(step)


class ConvolutionalEncodingNetwork(nn.Module):
    """An encoder without memory for pictures: two convolutions and a linear layer.

    In a picture of more than 16 cells in each direction the first convolution looks at
    every fourth place only.

    Args:
        observation_spec: A Box with the shape (channels, height, width) or (height,
            width, channels): the channels are the fewer of both ends. Bytes are scaled
            to [0, 1].
        hidden: Number of features.

    Attributes:
        output_size: Number of features F.

    Raises:
        ValueError: If the space has another form.
    """

    def __init__(self, observation_spec: spaces.Space[Any], hidden: int = 64) -> None:
        super().__init__()
        shape = observation_spec.shape or ()
        if not isinstance(observation_spec, spaces.Box) or len(shape) != 3:
            raise ValueError(
                "observation_spec must be a Box with the shape (channels, height, "
                f"width) or (height, width, channels), got {observation_spec}"
            )
        self.output_size = hidden
        self.scale = 1 / 255 if observation_spec.dtype == np.uint8 else 1.0
        self.channels = -1 if shape[-1] < shape[0] else -3
        channels, *sides = np.roll(shape, -self.channels).tolist()
        convolutions = (
            nn.Conv2d(channels, 16, 8, stride=4)
            if min(sides) > 16
            else nn.Conv2d(channels, 16, 3, padding=1),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
        )
        for layer in convolutions:
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            assert layer.bias is not None  # for the type checker
            nn.init.zeros_(layer.bias)
        first, second = convolutions
        self.convolutions = nn.Sequential(
            first, nn.ReLU(), second, nn.ReLU(), nn.Flatten()
        )
        with torch.no_grad():
            count = self.convolutions(torch.zeros(1, channels, *sides)).shape[1]
        self.features = linear(count, hidden, math.sqrt(2))

    def planes(self, observation: Tensor) -> Tensor:
        """Return pictures (B, C, H, W) of numbers that are about 1."""
        pictures = observation.to(self.features.weight.dtype) * self.scale
        return pictures.movedim(self.channels, -3).flatten(0, -4)

    def forward(self, observation: Tensor, state: Any = ()) -> tuple[Tensor, Any]:
        """Return features ``(*, F)`` of pictures, and the state as it came."""
        features = self.features(self.convolutions(self.planes(observation))).tanh()
        return features.view(*observation.shape[:-3], self.output_size), state


class PhasicNetwork(nn.Module):
    """The disjoint network as the network of a ``Policy``.

    Args:
        network: The disjoint network, for observations in a Box.
        normalizer: Module that the observations are seen through.
    """

    def __init__(
        self, network: DisjointPolicyValueNetwork, normalizer: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.network, self.normalizer = network, normalizer or nn.Identity()
        self.shape = network.observation_spec.shape or ()
        kinds = list(leaves(network.action_spec))
        self.is_hybrid = len(kinds) > 1
        self.widths = [
            int(leaf.n)
            if isinstance(leaf, spaces.Discrete)
            else 2 * spaces.flatdim(leaf)
            for leaf in kinds
        ]

    def observe(self, obs: Tensor) -> Tensor:
        """Return observations as the network takes them: in their shape, normalised."""
        if obs.shape[-len(self.shape) :] != self.shape:
            obs = obs.unflatten(-1, self.shape)
        seen: Tensor = self.normalizer(obs)
        return seen

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows that describe the policy at observations."""
        leaf_rows = self.leaf_rows(obs)
        if not self.is_hybrid:
            return leaf_rows[0]
        # Hybrid actions want logits, then all means, then all deviations.
        logit, *boxes = leaf_rows
        mu, log_sigma = zip(*(box.chunk(2, -1) for box in boxes), strict=True)
        return torch.cat([logit, *mu, *(x.exp() for x in log_sigma)], -1)

    def leaf_rows(self, obs: Tensor) -> tuple[Tensor, ...]:
        """Return one row for each leaf of the action space."""
        heads = self.network.heads
        features, _ = heads.policy_encoder(self.observe(obs))
        return tuple(project(features) for project in heads.projections)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, as the policy phase uses them."""
        heads, seen = self.network.heads, self.observe(obs)
        if heads.value_encoder is None:
            (_, value, _), _ = heads(seen, (), False)
        else:
            features, _ = heads.value_encoder(seen)
            value = heads.value_head(features).squeeze(-1)
        result: Tensor = value
        return result


def make_phasic_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    share_encoder: bool = False,
    detach: Detach = "always",
    hidden: int = 64,
    normalize: bool = False,
) -> Policy:
    """Build a policy on the disjoint network.

    Args:
        observation_space: A Box with one dimension, or a picture with three, or what
            ``plain_space`` made of it. Observations may come flat.
        action_space: Discrete, a Box with one dimension, or hybrid as in
            ``HybridActions.from_space``, or what ``plain_space`` made of it.
        share_encoder: Whether policy and value share an encoder.
        detach: As in ``DisjointPolicyValueNetwork``.
        hidden: Width of the hidden layers.
        normalize: Whether observations are normalised with ``RunningMoments``.

    Raises:
        TypeError: If a space is of another kind.
        ValueError: If a space has another form.
    """
    observation_space, action_space = (
        as_space(observation_space),
        as_space(action_space),
    )
    shape = observation_space.shape or ()
    if not isinstance(observation_space, spaces.Box) or len(shape) not in (1, 3):
        raise ValueError(
            "observation_space must be a Box with one dimension or with three, got "
            f"{observation_space}"
        )
    encoder: Callable[..., Any] = (
        partial(ConvolutionalEncodingNetwork, hidden=hidden)
        if len(shape) == 3
        else partial(EncodingNetwork, hidden=(hidden, hidden))
    )
    network = DisjointPolicyValueNetwork(
        observation_space, action_space, encoder, share_encoder, detach=detach
    )
    normalizer = RunningMoments(*shape) if normalize else None
    recipe = {
        "observation_space": plain_space(observation_space),
        "action_space": plain_space(action_space),
        "share_encoder": share_encoder,
        "detach": detach,
        "hidden": hidden,
        "normalize": normalize,
    }
    hybrid = isinstance(action_space, spaces.Tuple | spaces.Dict)
    actions = (HybridActions.from_space if hybrid else make_actions)(action_space)
    phasic = PhasicNetwork(network, normalizer)
    return Policy(phasic, actions, ("make_phasic_policy", recipe))


AUX_METRICS = ("value_loss", "aux_value_loss", "kl", "kl_at_start")


class PPGAlgorithm:
    """Phasic policy gradient: PPO, and an auxiliary phase every few iterations.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies that resets in the
            step that ends an episode.
        config: The settings.
        policy_error: As in ``PPO``.

    Attributes:
        ppo: The learner of the policy phase.
        aux: The learner of the auxiliary phase.

    Raises:
        ValueError: If the number of environments is another one, or they reset later.
    """

    def __init__(
        self,
        policy: Policy,
        envs: VectorEnv[Any, Any, Any],
        config: PPGConfig,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
    ) -> None:
        self.policy, self.config = policy, config
        self.ppo = PPO(policy, envs, config, policy_error=policy_error)
        if self.ppo.collector.resets_later:
            raise ValueError("envs must have autoreset mode SAME_STEP, got NEXT_STEP")
        phasic: Any = policy.network
        self.aux = PPGAuxAlgorithm(
            phasic.network.observation_spec,
            phasic.network.action_spec,
            config=config,
            dual_actor_value_network=phasic.network,
            aux_options=config.aux_options,
            prepare=phasic.observe,
        )

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.ppo.step

    @property
    def total_steps(self) -> int:
        """Steps after which the training is over."""
        return self.ppo.total_steps

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.ppo.checkpoint_due

    def iterate(self) -> dict[str, float]:
        """Run a policy phase and, when it is due, an auxiliary phase."""
        batch = self.ppo.collect()
        if not self.config.aux_enabled:
            return self.ppo.update(batch)
        rows = self.rows(batch)
        metrics = self.ppo.update(batch)
        self.observe(rows)
        # Metrics have the same names in each iteration. Most have nothing to tell.
        metrics |= {f"aux/{name}": math.nan for name in AUX_METRICS}
        if self.ppo.iteration % self.aux.interval == 0:
            share = metrics["charts/learning_rate"] / self.config.learning_rate
            rate = self.config.aux_learning_rate * share
            self.aux.optimizer.param_groups[0]["lr"] = rate
            metrics |= self.aux.train_iter()
        return metrics

    @torch.no_grad()
    def rows(self, batch: Rollout) -> tuple[Tensor, ...]:
        """Return what described the policy while it acted, leaf by leaf."""
        phasic: Any = self.policy.network
        rows: tuple[Tensor, ...] = phasic.leaf_rows(batch.obs)
        return rows

    @torch.no_grad()
    def observe(self, rows: tuple[Tensor, ...]) -> None:
        """Hand the last rollout to the auxiliary phase, step by step."""
        batch, value, next_value = self.ppo.seen
        ended = batch.terminated | batch.truncated
        step_type = torch.where(ended, LAST, MID)
        discount = (~batch.terminated).to(value.dtype)
        for t in range(len(batch.obs)):
            info = PPGRolloutInfo(
                tuple(row[t] for row in rows),
                batch.action[t],
                (),
                value[t],
                (),
                step_type[t],
                discount[t],
                batch.reward[t],
                (),
                next_value[t],
            )
            self.aux.observe_for_aux_replay((batch.obs[t], info))

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        return {"ppo": self.ppo.state_dict(), "aux": self.aux.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        self.ppo.load_state_dict(state["ppo"])
        self.aux.load_state_dict(state["aux"])

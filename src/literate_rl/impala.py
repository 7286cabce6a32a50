# Generated from chapters/impala.py (edit there); digest e728570f95ba1e06
"""IMPALA: a policy with three modes, a replay buffer, and the loop around them."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn

from literate_rl.agents import Collector, best_device
from literate_rl.off_policy import (
    check_clips,
    vtrace_data,
    vtrace_error_continuous_action,
    vtrace_error_discrete_action,
)
from literate_rl.workshop.nests import map_nest
from literate_rl.workshop.runs import check_counts, check_setting, env_seed
from literate_rl.workshop.worlds import ForceCartPole  # noqa: F401 (registered)

__all__ = [
    "IMPALA",
    "IMPALAConfig",
    "IMPALAPolicy",
    "ReplayBuffer",
    "Timestep",
    "collate",
    "impala_settings",
]


# Where DI-engine keeps its settings: the names in each section. All others stand on the
# first level. The last section stands within the one before.
SECTIONS: dict[str, tuple[str, ...]] = {
    "learn": (
        "update_per_collect",
        "batch_size",
        "learning_rate",
        "value_weight",
        "entropy_weight",
        "discount_factor",
        "lambda_",
        "rho_clip_ratio",
        "c_clip_ratio",
        "rho_pg_clip_ratio",
        "grad_clip_type",
        "clip_value",
        "optim",
    ),
    "collect": ("n_sample",),
    "eval": (),
    "other": ("replay_buffer",),
    "replay_buffer": ("replay_buffer_size", "max_use"),
}


@dataclass(frozen=True)
class IMPALAConfig:
    """Settings of IMPALA, with the names and the defaults of DI-engine's.

    Attributes:
        type: Name of the algorithm, a placeholder.
        cuda: Whether to use the best device instead of the CPU.
        on_policy: Whether the buffer is emptied before each collection.
        priority: Whether the buffer prefers samples with a large error.
        priority_IS_weight: Whether weights in the loss undo that preference.
        action_space: Either discrete or continuous.
        unroll_len: Steps of one sample.
        transition_with_policy_data: Whether transitions keep what the policy said.
            Without it there is no V-trace, so it must be true.
        update_per_collect: Steps of the optimiser after each collection.
        batch_size: Samples of one update.
        learning_rate: Step size of the optimiser at the start.
        value_weight: Weight of the value loss.
        entropy_weight: Weight of the entropy bonus.
        discount_factor: Discount.
        lambda_: Decay of the weights of longer returns.
        rho_clip_ratio: Bound of the ratio that weighs a surprise, or none.
        c_clip_ratio: Bound of the ratio that weighs what comes later, or none.
        rho_pg_clip_ratio: Bound of the ratio that weighs an advantage, or none.
        grad_clip_type: One of clip_norm, clip_value, clip_momentum_norm, or none.
        clip_value: Bound of the gradient. With clip_momentum_norm it is a multiple of
            the usual norm, and DI-engine takes 5.
        optim: Either adam or rmsprop.
        n_sample: Samples of one collection, one from each environment.
        replay_buffer_size: Samples that the buffer holds at most.
        max_use: How often a sample is learned from at most.
        model: Sizes of the default model, a mapping with obs_shape and action_shape.
        seed: Decides everything that is random in the run.
        total_steps: Steps in the environments, all of them together.
        anneal: Whether the step size falls to zero in a straight line.
        reward_scale: Factor of the rewards that are learned from.
        lag: Collections by which the acting policy falls behind the learner before it
            gets new weights.
        checkpoint_interval: Iterations between checkpoints. A loop without actors
            resets its environments at each of them.
    """

    type: str = "impala"
    cuda: bool = False
    on_policy: bool = False
    priority: bool = False
    priority_IS_weight: bool = False  # noqa: N815 (the name of the original)
    action_space: str = "discrete"
    unroll_len: int = 32
    transition_with_policy_data: bool = True
    update_per_collect: int = 4
    batch_size: int = 16
    learning_rate: float = 5e-4
    value_weight: float = 0.5
    entropy_weight: float = 1e-4
    discount_factor: float = 0.99
    lambda_: float = 0.95
    rho_clip_ratio: float | None = 1.0
    c_clip_ratio: float | None = 1.0
    rho_pg_clip_ratio: float | None = 1.0
    grad_clip_type: str | None = None
    clip_value: float = 0.5
    optim: str = "adam"
    n_sample: int = 16
    replay_buffer_size: int = 1000
    max_use: int = 16
    model: Any = field(default_factory=dict)
    seed: int = 1
    total_steps: int = 100_000
    anneal: bool = False
    reward_scale: float = 1.0
    lag: int = 0
    checkpoint_interval: int = 50

    def __post_init__(self) -> None:
        counts = ("unroll_len", "update_per_collect", "batch_size", "n_sample")
        others = ("replay_buffer_size", "max_use", "total_steps", "checkpoint_interval")
        check_counts(self, counts + others)
        for name in ("seed", "lag"):
            whole = "at least 0, a whole number"
            check_setting(self, name, lambda x: x >= 0 and isinstance(x, int), whole)
        for name in ("value_weight", "entropy_weight"):
            check_setting(self, name, lambda x: x >= 0, "at least 0")
        switches = ("cuda", "on_policy", "priority", "priority_IS_weight", "anneal")
        for name in switches:
            check_setting(self, name, lambda x: isinstance(x, bool), "True or False")
        for name in ("learning_rate", "clip_value", "reward_scale"):
            check_setting(self, name, lambda x: x > 0, "positive")
        for name in ("discount_factor", "lambda_"):
            check_setting(self, name, lambda x: 0 <= x <= 1, "in [0, 1]")
        choices: dict[str, tuple[Any, ...]] = {
            "type": ("impala",),
            "action_space": ("discrete", "continuous"),
            "transition_with_policy_data": (True,),
            "grad_clip_type": (None, "clip_norm", "clip_value", "clip_momentum_norm"),
            "optim": ("adam", "rmsprop"),
        }
        for name, legal in choices.items():
            check_setting(self, name, legal.__contains__, f"one of {legal}")
        if self.priority_IS_weight and not self.priority:
            raise ValueError("priority must be True if priority_IS_weight is True")
        for name in ("rho_clip_ratio", "c_clip_ratio", "rho_pg_clip_ratio"):
            check_setting(self, name, lambda x: x is None or x > 0, "positive or None")
        check_clips(self.rho_clip_ratio, self.c_clip_ratio)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> IMPALAConfig:
        """Read settings from nested dictionaries, as DI-engine writes them.

        Args:
            config: Settings by name, each in its section ``learn``, ``collect`` or
                ``other.replay_buffer``, or all on the first level. What is left out has
                its default.

        Raises:
            ValueError: If a name is unknown or stands in the wrong section, or if a
                setting is there twice.
        """
        flat = dict(config)
        for section, names in SECTIONS.items():
            inside = flat.pop(section, {})
            wrong, twice = inside.keys() - set(names), inside.keys() & flat.keys()
            if wrong:
                raise ValueError(f"{section} has unknown settings: {sorted(wrong)}")
            if twice:
                raise ValueError(f"config has settings twice: {sorted(twice)}")
            flat |= inside
        unknown = flat.keys() - {setting.name for setting in fields(cls)}
        if unknown:
            raise ValueError(f"config has unknown settings: {sorted(unknown)}")
        return cls(**flat)


def collate(items: Sequence[Any], dim: int = 0) -> Any:
    """Stack items along a new dimension, whatever nests of dicts and lists they are.

    Args:
        items: At least one number, array, tensor, mapping or list. Lists are stacked
            themselves first, along a new first dimension.
        dim: The new dimension.

    Returns:
        A tensor, or a dictionary of what its entries give.

    Raises:
        ValueError: If there is no item.
    """
    if not items:
        raise ValueError("items must hold at least one, got none")
    first = items[0]
    if isinstance(first, Mapping):
        return {key: collate([item[key] for item in items], dim) for key in first}
    if isinstance(first, list):
        return collate([collate(item) for item in items], dim)
    return torch.stack([torch.as_tensor(item) for item in items], dim)


class Timestep(NamedTuple):
    """What one environment answers to an action.

    Attributes:
        obs: Where the step led, never the observation after a reset.
        reward: The reward, a number.
        done: Whether the episode is over.
        truncated: Whether it was cut off and not terminated.
    """

    obs: Any
    reward: Any
    done: Any
    truncated: Any = False


# What learning reads of a transition. The last two may be missing.
FIELDS = ("obs", "next_obs", "logit", "action", "reward", "done", "truncated", "weight")


class IMPALAPolicy:
    """A policy with three modes: it learns, it collects, and it is evaluated.

    Args:
        config: The settings, or nested dictionaries that ``IMPALAConfig.from_dict``
            reads.
        model: A policy with the methods of the PPO chapter: ``model(obs)`` gives rows
            that describe the policy (logits, or means and logarithms of deviations),
            and ``value``, ``noise`` and ``act``. None builds the default model.

    Raises:
        ValueError: If a setting is illegal or the sizes of the default model are
            missing.
    """

    def __init__(
        self, config: IMPALAConfig | Mapping[str, Any], model: Any = None
    ) -> None:
        if isinstance(config, Mapping):
            config = IMPALAConfig.from_dict(config)
        self.config = config
        self.continuous = config.action_space == "continuous"
        self.device = best_device() if config.cuda else torch.device("cpu")
        self.generator = torch.Generator().manual_seed(config.seed)
        if model is None:
            model = self.build_model()
        self.model: Any = model.to(self.device)
        self.collect_model: Any = self.model
        self.parameters = list(self.model.parameters())
        optimizers: dict[str, Any] = {
            "adam": torch.optim.Adam,
            "rmsprop": torch.optim.RMSprop,
        }
        self.optimizer: torch.optim.Optimizer = optimizers[config.optim](
            self.parameters, config.learning_rate
        )
        # Sums for the usual norm of the gradient: of squared norms, and of weights.
        self.norms = (0.0, 0.0)

    def default_model(self) -> tuple[str, list[str]]:
        """Return what builds the default model, and the module to import it from."""
        return "make_policy", ["literate_rl.policies"]

    def build_model(self) -> nn.Module:
        """Build the default model."""
        sizes = self.config.model
        whole = all(isinstance(size, int) for size in sizes.values())
        if sizes.keys() != {"obs_shape", "action_shape"} or not whole:
            raise ValueError(
                "model must hold two whole numbers, obs_shape and action_shape, "
                f"got {sizes}"
            )
        size, actions = sizes["obs_shape"], sizes["action_shape"]
        name, (module,) = self.default_model()
        make_model: Any = getattr(import_module(module), name)
        model: nn.Module = make_model(
            spaces.Box(-np.inf, np.inf, (size,)),
            spaces.Box(-1.0, 1.0, (actions,))
            if self.continuous
            else spaces.Discrete(actions),
        )
        return model

    def describe(self, rows: Tensor) -> Any:
        """Turn a model's rows into logits, or into a mean and a deviation by name."""
        if not self.continuous:
            return rows
        mu, log_sigma = rows.chunk(2, -1)
        return {"mu": mu, "sigma": log_sigma.exp()}

    # --- learn mode

    def data_preprocess_learn(self, data: Sequence[Any]) -> dict[str, Any]:
        """Turn a list of samples into time-major tensors.

        Args:
            data: B samples of T steps. A sample is a list of T transitions, or one
                dictionary whose entries are lists of T items or tensors ``(T, *)``. Its
                importance weight ``IS`` is one number, or a list of equal ones. An
                entry that is None counts as missing.

        Returns:
            The entries as tensors ``(T, B, *)``; rewards, flags and ``weight`` (T, B);
            and ``obs_plus_1``, ``(T + 1, B, *)``.

        Raises:
            TypeError: If a sample is of another kind.
            ValueError: If an entry is missing, or samples differ in their length.
        """

        def pick(sample: Any) -> Any:
            if isinstance(sample, list):
                return [pick(step) for step in sample]
            if not isinstance(sample, Mapping):
                kind = type(sample).__name__
                raise TypeError(f"data must hold dictionaries or lists, got {kind}")
            return {key: sample[key] for key in FIELDS if sample.get(key) is not None}

        picked = [pick(sample) for sample in data]
        try:
            # One call serves both forms: lists become time, samples stand side by side.
            batch = collate(picked, dim=1)
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                "data must hold samples of one length, and in each step the same "
                f"entries, got {type(error).__name__}: {error}"
            ) from error
        missing = [key for key in FIELDS[:6] if key not in batch]
        if missing:
            raise ValueError(f"data must hold {missing}, got {list(batch)}")
        batch = map_nest(lambda x: x.to(self.device), batch)
        # Some environments give rewards of the shape (1,).
        shape = batch["reward"].shape[:2]
        batch["reward"] = batch["reward"].reshape(shape).float()
        batch["done"] = batch["done"].reshape(shape).bool()
        never = torch.zeros_like(batch["done"])
        batch["truncated"] = batch.get("truncated", never).reshape(shape).bool()
        weight = batch.get("weight", torch.ones_like(batch["reward"]))
        if self.config.priority_IS_weight:
            # One number for each sample weighs all of its steps.
            heads = [x if isinstance(x, Mapping) else x[0] for x in data]
            if not all("IS" in head for head in heads):
                raise ValueError("data must hold IS if priority_IS_weight is True")
            numbers = collate([head["IS"] for head in heads]).to(weight)
            weight = weight * numbers.reshape(len(heads), -1)[:, 0]
        batch["weight"] = weight.reshape(shape)
        batch["obs_plus_1"] = map_nest(
            lambda obs, next_obs: torch.cat([obs, next_obs[-1:]]).float(),
            batch["obs"],
            batch["next_obs"],
        )
        return batch  # type: ignore[no-any-return]

    def forward_learn(self, data: Sequence[Any]) -> dict[str, Any]:
        """Take one step of the optimiser.

        Args:
            data: Samples, as ``data_preprocess_learn`` takes them.

        Returns:
            The numbers that ``monitor_vars_learn`` names and, with priorities, one for
            each sample as ``priority``.
        """
        return self.learn(self.data_preprocess_learn(data))

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Take one step of the optimiser on what ``data_preprocess_learn`` returns."""
        config = self.config
        self.model.train()
        flat = map_nest(lambda x: x.flatten(0, 1), batch["obs_plus_1"])
        output = {
            "logit": self.describe(self.model(flat)),
            "value": self.model.value(flat),
        }
        steps = self.reshape_data(output, batch)
        error = (
            vtrace_error_continuous_action
            if self.continuous
            else vtrace_error_discrete_action
        )
        loss = error(
            steps,
            config.discount_factor,
            config.lambda_,
            config.rho_clip_ratio,
            config.c_clip_ratio,
            config.rho_pg_clip_ratio,
        )
        # The total {eq}`impala-loss`, and one step downhill.
        total = (
            loss.policy_loss
            + config.value_weight * loss.value_loss
            - config.entropy_weight * loss.entropy_loss
        )
        if config.priority:
            priority = self.priorities(steps, loss.value_loss)
        self.optimizer.zero_grad()
        total.backward()
        norm = self.clip_gradient()
        self.optimizer.step()
        info = {
            "cur_lr": self.optimizer.param_groups[0]["lr"],
            "total_loss": total.item(),
            **{name: part.item() for name, part in loss._asdict().items()},
            "grad_norm": norm,
        }
        if config.priority:
            info["priority"] = priority
        return info

    def monitor_vars_learn(self) -> list[str]:
        """Return the names of the numbers in ``forward_learn`` that a log shows."""
        losses = ["total_loss", "policy_loss", "value_loss", "entropy_loss"]
        return ["cur_lr", *losses, "grad_norm"]

    def reshape_data(self, output: dict[str, Any], data: dict[str, Any]) -> vtrace_data:
        """Arrange what the model said and what happened for the losses.

        Args:
            output: ``logit`` and ``value`` of ``obs_plus_1``, with (T + 1) B rows.
            data: What ``data_preprocess_learn`` returned.

        Returns:
            The fields of ``vtrace_data``. How many steps there are is read from the
            data.
        """
        steps, envs = data["reward"].shape
        # Actions keep their last dimension, also if it is 1.
        rows = (steps, envs, -1) if self.continuous else (steps, envs)
        value = output["value"].reshape(steps + 1, envs)
        terminated = data["done"] & ~data["truncated"]
        # Behind a cut the next row is another episode. There, and only there, the true
        # successor needs a value of its own.
        next_value = value[1:].detach().clone()
        cut = data["truncated"]
        if cut.any():
            with torch.no_grad():
                successor = map_nest(lambda x: x[cut].float(), data["next_obs"])
                next_value[cut] = self.model.value(successor)
        return vtrace_data(
            map_nest(lambda x: x.reshape(steps + 1, envs, -1)[:-1], output["logit"]),
            map_nest(lambda x: x.reshape(steps, envs, -1), data["logit"]),
            data["action"].reshape(rows),
            value,
            data["reward"] * self.config.reward_scale,
            data["weight"],
            terminated,
            cut,
            next_value,
        )

    def anneal(self, step: int) -> None:
        """Set the step size of a step of the run, if the settings say that it falls."""
        if self.config.anneal:
            left = max(0.0, 1 - step / self.config.total_steps)
            self.optimizer.param_groups[0]["lr"] = self.config.learning_rate * left

    def clip_gradient(self) -> float:
        """Clip the gradient as the settings say; return its norm before that."""
        # The three ways {eq}`gradient-clips`. An infinite limit only measures.
        kind, bound = self.config.grad_clip_type, self.config.clip_value
        limit = bound if kind == "clip_norm" else math.inf
        norm = nn.utils.clip_grad_norm_(self.parameters, limit).item()
        if kind == "clip_value":
            nn.utils.clip_grad_value_(self.parameters, bound)
        if kind == "clip_momentum_norm":
            squares, weights = (0.999 * total for total in self.norms)
            self.norms = (squares + norm**2, weights + 1)
            usual = math.sqrt(self.norms[0] / self.norms[1])
            nn.utils.clip_grad_norm_(self.parameters, bound * usual)
        return norm

    def priorities(self, steps: vtrace_data, value_loss: Tensor) -> list[float]:
        """Return how far the values of each sample are from their targets."""
        # The loss has the distances already. Its derivative by a value is
        # $2 w_t (V - v_t)$ over the number of steps, so no target is computed again.
        weight: Any = steps.weight
        (grad,) = torch.autograd.grad(value_loss, steps.value, retain_graph=True)
        distance = grad[:-1].abs().sum(0) * weight.numel() / 2
        # Steps that only fill up weigh nothing in this mean either.
        distances: list[float] = (distance / weight.sum(0).clamp_min(1e-9)).tolist()
        return distances

    def state_dict_learn(self) -> dict[str, Any]:
        """Return model, optimiser, norms of gradients and random state."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "norms": self.norms,
            "generator": self.generator.get_state(),
        }

    def load_state_dict_learn(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict_learn`` returned.

        Raises:
            ValueError: If the state has another optimiser.
        """
        # What can fail comes first, so that a state that does not fit changes nothing.
        norms, generator = state["norms"], torch.Generator()
        generator.set_state(state["generator"])
        here, there = self.optimizer.state_dict(), state["optimizer"]
        if here["param_groups"][0].keys() != there["param_groups"][0].keys():
            raise ValueError(f"state must come from an optimiser {self.config.optim}")
        copy.deepcopy(self.model).load_state_dict(state["model"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(there)
        self.norms, self.generator = norms, generator

    # --- collect mode

    @torch.no_grad()
    def forward_collect(self, data: dict[int, Any]) -> dict[int, dict[str, Any]]:
        """Draw an action for each environment.

        Args:
            data: Observations by the number of the environment.

        Returns:
            By the same numbers: ``logit``, what the policy said, and ``action``, both
            on the CPU.
        """
        return self.by_environment(data, self.collect_batch(self.observations(data)))

    def collect_batch(self, obs: Any) -> dict[str, Any]:
        """Draw actions for observations that stand in one batch."""
        model = self.collect_model
        if model.training:  # `eval` walks through all modules, so not in every step
            model.eval()
        row = model(obs)
        noise = model.noise(1, len(row), self.generator)[0].to(self.device)
        return {"logit": self.describe(row), "action": model.act(obs, noise)}

    def observations(self, data: dict[int, Any]) -> Any:
        """Stack the observations of all environments."""
        obs = collate(list(data.values()))
        return map_nest(lambda x: x.float().to(self.device), obs)

    def by_environment(
        self, data: dict[int, Any], output: dict[str, Any]
    ) -> dict[int, dict[str, Any]]:
        """Hand each environment its row."""
        output = map_nest(lambda x: x.cpu(), output)
        return {
            index: map_nest(lambda x, row=row: x[row], output)
            for row, index in enumerate(data)
        }

    def process_transition(
        self, obs: Any, policy_output: dict[str, Any], timestep: Any
    ) -> dict[str, Any]:
        """Put together what one step was.

        Args:
            obs: What the policy saw.
            policy_output: What ``forward_collect`` gave for it.
            timestep: A ``Timestep``, or any tuple with ``obs``, ``reward`` and
                ``done``. Without ``truncated`` each end counts as a termination.
        """
        return {
            "obs": obs,
            "next_obs": timestep.obs,
            "logit": policy_output["logit"],
            "action": policy_output["action"],
            "reward": timestep.reward,
            "done": timestep.done,
            "truncated": getattr(timestep, "truncated", False),
        }

    def get_train_sample(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Cut the transitions of one environment into samples of ``unroll_len`` steps.

        Each transition counts exactly once. If the last sample is short, it reaches
        back into the one before; if there is none, its last step is repeated. What is
        there only to fill up has the weight 0.

        Args:
            data: Transitions in the order in which they happened, at least one.

        Returns:
            The samples, dictionaries of tensors ``(T, *)`` with a ``weight`` (T,).
        """
        length, samples = self.config.unroll_len, []
        for start in range(0, len(data), length):
            steps = list(data[start : start + length])
            weight = torch.ones(len(steps))
            missing = length - len(steps)
            filler = torch.zeros(missing)
            if missing and start:
                steps = [*data[start - missing : start], *steps]
                weight = torch.cat([filler, weight])
            elif missing:
                # An episode that goes on is cut here, or its repeated step would
                # count as its successor.
                last = dict(steps[-1])
                last["truncated"] = last.get("truncated", False) or not last["done"]
                last["done"] = True
                steps = steps[:-1] + [last] * (missing + 1)
                weight = torch.cat([weight, filler])
            samples.append(collate(steps) | {"weight": weight})
        return samples

    # --- eval mode

    @torch.no_grad()
    def forward_eval(self, data: dict[int, Any]) -> dict[int, dict[str, Any]]:
        """Choose the best action for each environment.

        Args:
            data: Observations by the number of the environment.

        Returns:
            ``logit`` and ``action`` by the same numbers, on the CPU.
        """
        obs, model = self.observations(data), self.model.eval()
        output = {"logit": self.describe(model(obs)), "action": model.act(obs, 0.0)}
        return self.by_environment(data, output)


class ReplayBuffer:
    """The last samples, each to be used a limited number of times.

    Args:
        size: Samples that it holds at most; the oldest makes room.
        max_use: Draws after which a sample leaves. With a preference the last batch
            may hold it more than once and go beyond.
        alpha: How strongly large priorities are preferred; 0 is not at all.
        beta: How far importance weights undo the preference; 1 is fully.

    Raises:
        ValueError: If a size is no whole number or below 1, or an exponent is negative
            or not finite.
    """

    def __init__(
        self,
        size: int = 1000,
        max_use: int = 16,
        alpha: float = 0.0,
        beta: float = 0.4,
    ) -> None:
        for name, number in (("size", size), ("max_use", max_use)):
            if not isinstance(number, int) or number < 1:
                raise ValueError(
                    f"{name} must be at least 1, a whole number, got {number}"
                )
        if not (0 <= alpha < math.inf and 0 <= beta < math.inf):
            raise ValueError(
                f"exponents must be finite and not negative, got {alpha} and {beta}"
            )
        self.max_use, self.alpha, self.beta = max_use, alpha, beta
        self.entries: deque[dict[str, Any]] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self.entries)

    def push(self, samples: Sequence[dict[str, Any]]) -> None:
        """Add samples; each gets the highest priority that is in the buffer now.

        Raises:
            TypeError: If one sample comes instead of a list.
        """
        if isinstance(samples, Mapping):
            raise TypeError("samples must be a list of samples, got one sample")
        highest = max((entry["priority"] for entry in self.entries), default=1.0)
        self.entries.extend(
            {"sample": sample, "priority": highest, "use": 0} for sample in samples
        )

    def sample(
        self, batch_size: int, generator: torch.Generator
    ) -> list[dict[str, Any]]:
        """Draw entries, as many as there are if the batch is larger than the buffer.

        Args:
            batch_size: Number of draws.
            generator: Where the randomness comes from.

        Returns:
            The entries, each with its importance weight as ``IS``. They are different
            ones if ``alpha`` is 0.

        Raises:
            ValueError: If the buffer is empty.
        """
        if not self.entries:
            raise ValueError("the buffer must hold a sample, got an empty one")
        priority = torch.tensor([entry["priority"] for entry in self.entries])
        # Probabilities and weights {eq}`replay-priority`.
        probability = priority.double().pow(self.alpha)
        probability /= probability.sum()
        weight = (len(self.entries) * probability).pow(-self.beta)
        weight /= weight.max()
        # A draw that is put back leaves the chances of the next one as they were.
        drawn = torch.multinomial(
            probability,
            min(batch_size, len(self.entries)),
            replacement=self.alpha > 0,
            generator=generator,
        )
        entries = [self.entries[index] for index in drawn.tolist()]
        for entry, number in zip(entries, weight[drawn].tolist(), strict=True):
            entry["use"] += 1
            entry["IS"] = number
        if any(entry["use"] >= self.max_use for entry in entries):
            left = [entry for entry in self.entries if entry["use"] < self.max_use]
            self.entries = deque(left, maxlen=self.entries.maxlen)
        return entries

    def update(
        self, entries: Sequence[dict[str, Any]], priorities: Sequence[float]
    ) -> None:
        """Give entries that were drawn their new priorities.

        Raises:
            ValueError: If there are more or fewer priorities than entries, or one is
                not finite. Nothing has changed then.
        """
        if len(entries) != len(priorities) or not all(map(math.isfinite, priorities)):
            raise ValueError(
                f"priorities must be {len(entries)} finite numbers, got {priorities}"
            )
        for entry, priority in zip(entries, priorities, strict=True):
            entry["priority"] = max(priority, 1e-6)


class IMPALA:
    """The loop: collect with a policy that may be old, store, learn.

    Args:
        impala: The policy with its three modes.
        envs: A vector environment in mode ``SAME_STEP`` with ``config.n_sample``
            copies. Observations are boxes; ``flat_env`` makes vectors of others.

    Raises:
        ValueError: If the environments are not like that, or their actions do not fit
            ``config.action_space``.
    """

    def __init__(self, impala: IMPALAPolicy, envs: VectorEnv[Any, Any, Any]) -> None:
        config = impala.config
        if envs.num_envs != config.n_sample:
            raise ValueError(
                f"envs must have {config.n_sample} copies, got {envs.num_envs}"
            )
        if envs.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
            raise ValueError("envs must have autoreset mode SAME_STEP, got NEXT_STEP")
        if not isinstance(envs.single_observation_space, spaces.Box):
            space = envs.single_observation_space
            raise ValueError(f"envs must have boxes as observations, got {space}")
        if isinstance(envs.single_action_space, spaces.Discrete) == impala.continuous:
            raise ValueError(
                f"action_space must fit the environments, got {config.action_space} "
                f"and {envs.single_action_space}"
            )
        self.impala, self.config = impala, config
        self.policy = impala.model
        self.collector = Collector(envs, impala.model.to_env, np.float32)
        alpha = 0.6 if config.priority else 0.0
        self.buffer = ReplayBuffer(config.replay_buffer_size, config.max_use, alpha)
        if config.lag:
            impala.collect_model = copy.deepcopy(impala.model)
        self.iteration = 0

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    @property
    def total_steps(self) -> int:
        """Steps after which the training is over."""
        return self.config.total_steps

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.iteration % self.config.checkpoint_interval == 0

    def iterate(self) -> dict[str, float]:
        """Collect one sample from each environment, learn, and return metrics."""
        config, impala = self.config, self.impala
        if self.collector.obs is None or self.checkpoint_due:
            self.collector.reset(env_seed(config.seed, self.step))
        impala.anneal(self.step)
        samples, mean = self.collect()
        if config.on_policy:
            # What is left of the last collection is no longer on-policy.
            self.buffer.entries.clear()
        self.buffer.push(samples)
        for _ in range(config.update_per_collect):
            if not self.buffer.entries:  # all samples have had their `max_use`
                break
            entries = self.buffer.sample(config.batch_size, impala.generator)
            drawn = [entry["sample"] | {"IS": entry["IS"]} for entry in entries]
            info = impala.forward_learn(drawn)
            if config.priority:
                self.buffer.update(entries, info["priority"])
        self.iteration += 1
        if config.lag and self.iteration % (config.lag + 1) == 0:
            impala.collect_model.load_state_dict(impala.model.state_dict())
        losses = {f"losses/{k}": info[k] for k in impala.monitor_vars_learn()}
        return {"charts/episodic_return": mean, **losses}

    def collect(self) -> tuple[list[dict[str, Any]], float]:
        """Act for ``unroll_len`` steps; return samples and the mean return."""
        impala, said = self.impala, []

        def act(obs: Tensor) -> Tensor:
            output = impala.collect_batch(obs.to(impala.device))
            said.append(map_nest(lambda x: x.cpu(), output["logit"]))
            action: Tensor = output["action"]
            return action

        batch = self.collector.collect(act, self.config.unroll_len)
        steps = {
            "obs": batch.obs,
            "next_obs": batch.next_obs,
            "logit": map_nest(lambda *x: torch.stack(x), *said),
            "action": batch.action,
            "reward": batch.reward,
            "done": batch.terminated | batch.truncated,
            "truncated": batch.truncated & ~batch.terminated,
            "weight": torch.ones_like(batch.reward),
        }
        samples = [
            map_nest(lambda x, b=b: x[:, b], steps) for b in range(self.config.n_sample)
        ]
        return samples, batch.episode_return.nanmean().item()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {
            "step": self.step,
            "iteration": self.iteration,
            "impala": self.impala.state_dict_learn(),
            "buffer": [dict(entry) for entry in self.buffer.entries],
            "actor": self.impala.collect_model.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned.

        Raises:
            ValueError: If something is missing, or the state comes from a learner with
                another optimiser. Nothing has changed then.
        """
        missing = self.state_dict().keys() - state.keys()
        if missing:
            raise ValueError(f"state must hold {sorted(missing)}, got {list(state)}")
        self.impala.load_state_dict_learn(state["impala"])
        if self.config.lag:
            self.impala.collect_model.load_state_dict(state["actor"])
        self.collector.step, self.iteration = state["step"], state["iteration"]
        self.buffer.entries.clear()
        self.buffer.entries.extend(dict(entry) for entry in state["buffer"])
        self.collector.obs = None


# Settings with which the agent was seen to learn, by environment. What an entry leaves
# out is the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 200_000,
        "learning_rate": 1e-3,
        "anneal": True,
        "reward_scale": 0.05,
        "entropy_weight": 0.01,
        "replay_buffer_size": 16,
    },
    "literate_rl/ForceCartPole-v0": {
        "action_space": "continuous",
        "total_steps": 300_000,
        "learning_rate": 1e-3,
        "anneal": True,
        "reward_scale": 0.05,
        "entropy_weight": 0.01,
        "replay_buffer_size": 16,
    },
}


def impala_settings(env: str) -> IMPALAConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return IMPALAConfig(**SETTINGS.get(env, {}))

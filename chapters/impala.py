# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # IMPALA
#
# **How does one policy learn from many actors that cannot wait for it?** The actors collect
# with the weights that they have. The learner learns from what arrives, some of it more than
# once, and V-trace corrects for the difference.
#
# At the end of this chapter you can use one policy in three modes, cut episodes into unrolls
# without counting a step twice, replay them with priorities that reach the loss, and say when
# the correction is needed and when it is not.

# %% tags=["export", "hide-input"]
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

# %% [markdown]
# ## Three modes
#
# IMPALA {cite:p}`espeholt2018` separates acting from learning. DI-engine's `IMPALAPolicy` does it
# with one object and three modes, and this chapter keeps its names:
#
# | mode | methods | what for |
# |---|---|---|
# | collect | `forward_collect`, `process_transition`, `get_train_sample` | act with noise, write down what happened, cut it into samples |
# | learn | `data_preprocess_learn`, `forward_learn`, `reshape_data`, `monitor_vars_learn` | stack samples, one step of the optimiser |
# | eval | `forward_eval` | act without noise |
#
# A **sample** is an **unroll**: $T$ steps in a row from one environment, whatever episodes they
# belong to. With each step goes what the acting policy said, its logits or its mean and
# deviation. Without that there would be no ratio.
#
# ## Settings
#
# The settings are those of DI-engine, with the same names and defaults, in one flat dataclass.
# Its nested dictionaries can be read too. A name that nobody knows is an error here, because a
# misspelt setting would otherwise be ignored in silence. `n_episode`, which counts a collection in
# episodes there, is such a name: a collection here is one unroll from each environment. And since
# V-trace needs $\bar c \le \bar\rho$, a lower `rho_clip_ratio` needs a lower `c_clip_ratio` as
# well.


# %% tags=["export"]
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


# %%
nested_config = {
    "priority": True,
    "learn": {"batch_size": 32, "optim": "rmsprop"},
    "other": {"replay_buffer": {"max_use": 4}},
}
print(IMPALAConfig.from_dict(nested_config).max_use)
try:
    IMPALAConfig.from_dict({"learn": {"learning_rte": 1e-3}})
except ValueError as error:
    print(error)

# %% [markdown]
# ## Stacking
#
# Samples arrive in two forms. One is a dictionary with a list of $T$ items under each name, the
# other a list of $T$ dictionaries. Observations, and what a Gaussian policy says, may be
# dictionaries themselves. One recursive function stacks all of them, and it never drops a
# dimension that happens to be 1.


# %% tags=["export"]
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


# %% [markdown]
# ## The policy
#
# The learner adds up the three losses of {doc}`/chapters/off_policy`,
#
# $$
# \mathcal L = \mathcal L_\pi + c_V \mathcal L_V - c_H \mathcal H .
# $$ (impala-loss)
#
# Before the optimiser sees the gradient $g$, it may be clipped. There are three ways, with one
# bound $g_{\max}$. *clip_norm* shortens all of it to the length $g_{\max}$. *clip_value* limits each
# number $g_j$ on its own. *clip_momentum_norm* compares its length with the usual one, $\bar g$:
#
# $$
# \begin{aligned}
# g &\leftarrow g \min \Bigl( 1, \frac{g_{\max}}{\lVert g \rVert} \Bigr) , \\
# g_j &\leftarrow \max \bigl( -g_{\max}, \min(g_{\max}, g_j) \bigr) , \\
# g &\leftarrow g \min \Bigl( 1, \frac{g_{\max} \bar g}{\lVert g \rVert} \Bigr) .
# \end{aligned}
# $$ (gradient-clips)
#
# Here $\bar g^2$ is the mean of $\lVert g \rVert^2$ over this update and all earlier ones. Each
# older update counts 0.999 of the next one. The lengths are those *before* the clip. Adam keeps a
# mean of squares too, but it has seen clipped gradients only. A bound taken from it, with
# $g_{\max} < 1$, could only shrink, and the gradient with it.
#
# Where is the value of a step's successor? In the next row, and for the last row in one that
# is appended, so that `obs_plus_1` has $T + 1$ rows. Behind a truncation the next row is
# another episode. There the true successor is sent through the network, and only there.
#
# The model is any policy with the methods of {doc}`/chapters/ppo`. If none is given, a
# default is built from two sizes.


# %% tags=["export"]
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


# %% [markdown]
# Three modes at work, for two environments with observations of length 4. A transition has the
# shapes of one environment; the batch has time first.

# %%
from dataclasses import replace
from functools import partial

config = IMPALAConfig(model={"obs_shape": 4, "action_shape": 2}, unroll_len=3)
impala = IMPALAPolicy(config)
transitions = []
obs = torch.zeros(2, 4)
for t in range(3):
    output = impala.forward_collect({0: obs[0], 1: obs[1]})
    for index in output:
        answered = Timestep(obs[index] + 1, reward=1.0, done=t == 2)
        transitions.append(
            impala.process_transition(obs[index], output[index], answered)
        )
samples = impala.get_train_sample(transitions[::2])
samples += impala.get_train_sample(transitions[1::2])
batch = impala.data_preprocess_learn(samples)
print({name: tuple(x.shape) for name, x in batch.items()})
print({k: round(x, 4) for k, x in impala.forward_learn(samples).items()})
print("greedy action:", impala.forward_eval({7: obs[0]})[7]["action"])

# %% [markdown]
# What if the steps do not fill a whole number of unrolls? Here is one environment with ten steps,
# cut into unrolls of four. Each step is marked by its number. **Notice** that the last unroll
# reaches back, and that what is there twice counts once.

# %%
four_steps = IMPALAPolicy(replace(config, unroll_len=4))
marked = [{**transitions[0], "obs": torch.tensor([float(t)])} for t in range(10)]
for sample in four_steps.get_train_sample(marked):
    steps = sample["obs"].flatten().int().tolist()
    print("steps", steps, "weights", sample["weight"].tolist())
print("three steps only:")
(sample,) = four_steps.get_train_sample(marked[:3])
for name in ("weight", "done", "truncated"):
    print(f"{name:10s}", sample[name].tolist())

# %% [markdown]
# ## The buffer
#
# Off-policy data may be used again. The buffer keeps the last samples, and a sample that has been
# drawn `max_use` times leaves it. With priorities {cite:p}`schaul2016` the buffer prefers samples
# whose values are far from their targets. Let $u_i$ be that distance for sample $i$ of $n$. Each
# draw takes it with probability $P_i$, and a weight $w_i$ makes up for being drawn more often than
# others:
#
# $$
# P_i = \frac{u_i^{\alpha_u}}{\sum_k u_k^{\alpha_u}} , \qquad
# w_i = \frac{(n P_i)^{-\beta_w}}{\max_k (n P_k)^{-\beta_w}} .
# $$ (replay-priority)
#
# Two exponents, `alpha` and `beta` in the code, say how much of this is done. With $\alpha_u = 0$
# all samples are drawn alike, and with $\alpha_u = 1$ in proportion to their priorities. With
# $\beta_w = 0$ all weights are 1, and with $\beta_w = 1$ they undo the preference fully: $P_i$ times
# $1 / (n P_i)$ is $1 / n$, so a weighted mean over draws estimates the mean over the buffer, but for
# one factor that all draws share. That is why the largest weight is taken over the whole buffer, and
# not over a batch, whose largest weight would depend on what was drawn.
#
# The argument needs draws that do not depend on each other, so with a preference a sample goes back
# before the next one is drawn, and a batch may hold it twice. Without that a batch as large as the
# buffer would hold every sample once: there would be no preference left, and the weights would
# create the bias that they are meant to undo. Without a preference all weights are 1, and a batch
# holds different samples.


# %% tags=["export"]
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


# %% [markdown]
# Sixteen samples with the numbers 0 to 15, batches of sixteen, and priorities that grow with the
# number. The mean of all numbers is 7.5. What do the draws say?

# %%
buffer = ReplayBuffer(max_use=10**9, alpha=0.6, beta=1.0)
buffer.push([{"number": i} for i in range(16)])
buffer.update(list(buffer.entries), [1.0 + i for i in range(16)])
generator = torch.Generator().manual_seed(0)
draws = [entry for _ in range(1000) for entry in buffer.sample(16, generator)]
number = np.array([entry["sample"]["number"] for entry in draws])
weight = np.array([entry["IS"] for entry in draws])
print(f"mean of the draws {number.mean():.2f}", end=", ")
print(f"weighted {np.average(number, weights=weight):.2f}")
# If every sample is drawn once, the same weights bend what was straight.
once = np.array([[entry["sample"]["number"], entry["IS"]] for entry in buffer.entries])
print(f"each sample once, weighted {np.average(once[:, 0], weights=once[:, 1]):.2f}")

# %% tags=["claims"]
assert number.mean() > 8.5, "the draws prefer large priorities"
assert abs(np.average(number, weights=weight) - 7.5) < 0.2, "the weights undo it"
assert np.average(once[:, 0], weights=once[:, 1]) < 5.5, "and spoil draws without it"

# %% [markdown]
# With priorities, `IMPALA` takes $\alpha_u = 0.6$ and $\beta_w = 0.4$. The paper starts with these and
# raises $\beta_w$ to 1, which is not done here. Whether priorities help the agent of this chapter was
# not measured: all runs below do without.

# %% [markdown]
# ## The loop
#
# One iteration collects an unroll from each environment, puts them into the buffer and takes a
# few steps of the optimiser. Everything runs in one process, one thing after the other. In a
# real system the actors run beside the learner and act with weights that are some updates old.
# The setting `lag` imitates that here, in a way that can be repeated exactly: the acting
# policy is a copy that falls behind by so many collections, and then gets the learner's weights.


# %% tags=["export"]
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


# %% [markdown]
# To have a task with continuous actions that is as well known as CartPole, we take CartPole
# itself, and let the agent say how hard it pushes.
#
# It is `ForceCartPole` in {doc}`workshop/worlds`.

# %% tags=["export"]
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


# %% [markdown]
# ## See it: CartPole
#
# Thirty thousand steps from sixteen copies. The buffer is as small as one collection here,
# and each sample is used four times. Rewards are multiplied with a twentieth.
#
# Why that? With a discount of 0.99 the values of a good policy are near 100 in CartPole, and a
# network that starts near 0 takes thousands of updates to get there. As long as it is behind, the
# advantage of nearly every action is positive: do that again, says the gradient, whatever was
# done, and the policy becomes sure of itself too early. PPO subtracts the mean of the
# advantages. IMPALA does not, and small rewards help the value to arrive in time. They also let
# the entropy bonus count, which stands beside the advantages in the loss. The runs of five
# seeds with these settings, and with rewards as they are, end here:

# %%
from literate_rl.workshop.runs import stored_runs

for name in ("cartpole", "unscaled"):
    (runs,) = stored_runs(f"impala_{name}").values()
    print(f"{name:9s} after {runs.steps[-1]:.0f} steps:", runs.final.round().tolist())

# %% mystnb={"image": {"alt": "Returns of IMPALA on CartPole over 30,000 steps: they rise from 20 to 500 at about 23,000 steps, stay there for a while and fall back below 200"}}
import matplotlib.pyplot as plt

from literate_rl.agents import best_device, make_envs
from literate_rl.policies import make_policy
from literate_rl.evaluation import evaluate, paired_difference
from literate_rl.workshop.runs import fit, flat_env

torch.set_num_threads(1)  # the networks are too small to be shared out


def make_learner(env, config):
    """Build environments, the policy that fits them, and the learner."""
    envs = make_envs(partial(flat_env, env), config.n_sample)
    torch.manual_seed(config.seed)
    model = make_policy(envs.single_observation_space, envs.single_action_space)
    return IMPALA(IMPALAPolicy(config, model), envs)


# No checkpoint falls into a run as short as this one, so no episode is broken off.
config = replace(
    impala_settings("CartPole-v1"), total_steps=30_000, checkpoint_interval=1000
)
cartpole = make_learner("CartPole-v1", config)
history = fit(cartpole, progress=False)
rows = np.array([(h["step"], h["charts/episodic_return"]) for h in history])
rows = rows[np.isfinite(rows[:, 1])]  # without the iterations in which no episode ended
fig, axis = plt.subplots(figsize=(7, 2.4))
axis.plot(*rows.T, marker=".", linewidth=0.8)
axis.set(xlabel="steps", ylabel="return")
fig.tight_layout()
returns = evaluate(cartpole.policy, "CartPole-v1", episodes=10, seed=1)
print(f"10 episodes without noise: {returns.mean():.0f}")

# %% [markdown]
# **What to notice.** A dot is the mean over the episodes that ended in an iteration. The longer the
# episodes get, the fewer of them end in its 32 steps. So the dots swing more and more, and some are
# missing. This run reaches 500 and forgets it again. How well the agent learns is told by the
# longer runs above.
#
# ## What old data do
#
# Now let the data get old. There are two ways. The learner may take many updates on one
# collection: each of them moves the policy away from the one that collected. Or the actor may fall
# behind, while each collection is used once. In all runs below the step size is 2e-3 and does not
# fall, $\lambda$ is 1, and there are ten seeds. One half has V-trace. The other half takes all data
# for its own: each ratio is 1. `python -m benchmarks.impala_learning` makes the data anew.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Five panels of returns over 60,000 steps. One update: both kinds of run climb to between 100 and 500, on the same lines. Four updates: six runs without correction fall to 9 and stay there, one with V-trace, and the mean with V-trace rises to 350. Eight updates: of the uncorrected runs all but one fall to 9 before 20,000 steps and stay there, with V-trace four do. Lag 5: all runs but one without correction climb, and the two means are close. Lag 15: all runs climb, and the mean without correction is higher, 450 against 250 at the end"}}

experiments = {
    "1 update": "impala_updates_1",
    "4 updates": "impala_updates_4",
    "8 updates": "impala_updates_8",
    "lag 5": "impala_lag_5",
    "lag 15": "impala_lag_15",
}


def share(fallen, z=1.96):
    """Return how many runs fell, and Wilson's interval of 95 percent."""
    n, k = len(fallen), fallen.sum()
    middle, half = k + z**2 / 2, z * np.sqrt(k * (n - k) / n + z**2 / 4)
    low, high = ((middle + side * half) / (n + z**2) for side in (-1, 1))
    return f"{k:2d} of {n} [{low:3.0%}, {high:3.0%}]"


fig, axes = plt.subplots(2, 3, figsize=(7, 4), sharex=True, sharey=True)
print(f"{'':10s} {'':12s} last third   collapsed")
for axis, (title, name) in zip(axes.flat, experiments.items(), strict=False):
    variants = stored_runs(name)
    for (kind, runs), color in zip(variants.items(), ("C0", "C3"), strict=True):
        steps, curves = runs.steps / 1000, runs.curves
        axis.plot(steps, curves.T, color=color, alpha=0.3, linewidth=0.7)
        axis.plot(steps, curves.mean(0), color=color, linewidth=2, label=kind)
        late, fallen = curves[:, -len(steps) // 3 :].mean(), curves[:, -1] < 15
        print(f"{title:10s} {kind:12s} {late:10.0f}   {share(fallen)}")
    axis.set_title(title, fontsize=10)
for axis in axes[:, 0]:
    axis.set_ylabel("return while training")
for axis in (*axes[1, :2], axes[0, 2]):
    axis.set_xlabel("thousand steps")
axes[0, 2].xaxis.set_tick_params(labelbottom=True)
axes[1, 2].axis("off")
axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
fig.tight_layout()

# %% [markdown]
# **What to notice.** A thin line is a run, and a collapsed run ends below 15: such an agent pushes to
# one side only. With one update on each collection all ratios are 1 up to rounding: it depends on the
# processor whether the actor's few rows and the learner's many give the same last digit. The lines of
# both kinds coincide. With four updates six of ten uncorrected runs collapse, and one with V-trace. With
# eight updates it is nine and four. The seeds are the same, so the runs can be compared in pairs:
# five collapse only without the correction, in either panel, and none collapses only with it. So it
# helps, and it is no insurance.
#
# With an actor that falls behind hardly any run collapses, not even with a lag of 15. And what is
# striking there: uncorrected data that are 15 collections old do as well as fresh ones, as far as ten
# seeds can tell. V-trace has its price on them. With a lag of 15 it learns more slowly than without
# correction, and than with fresh data; with a lag of 5 no difference is seen. One candidate for a
# reason is that a ratio is clipped above 1 and not below, so on average the same data weigh less. We
# have not tested that.

# %% tags=["claims"]
stored = {title: stored_runs(name) for title, name in experiments.items()}


def late_returns(title, kind):
    """Return the mean of the last third of each run."""
    curves = stored[title][kind].curves
    return curves[:, -curves.shape[1] // 3 :].mean(1)


def compared(first, second):
    """Return the paired difference of two kinds of run, late in the training."""
    return paired_difference(late_returns(*first), late_returns(*second))


fresh = stored["1 update"]
assert (fresh["V-trace"].curves == fresh["uncorrected"].curves).all(), "one line"
for title, fallen in (("4 updates", (1, 6)), ("8 updates", (4, 9))):
    with_it, without = (
        stored[title][kind].curves[:, -1] < 15 for kind in ("V-trace", "uncorrected")
    )
    assert (with_it.sum(), without.sum()) == fallen, "of ten runs"
    assert (without & ~with_it).sum() == 5, "only without the correction"
    assert not (with_it & ~without).any(), "none only with it"
for title in ("lag 5", "lag 15"):
    runs = stored[title].values()
    assert sum((x.curves[:, -1] < 15).sum() for x in runs) <= 1, "hardly any collapses"
    kept = compared((title, "uncorrected"), ("1 update", "uncorrected"))
    assert kept.low < 0 < kept.high, "uncorrected data do as well as fresh ones"
slower = compared(("lag 15", "V-trace"), ("lag 15", "uncorrected"))
assert slower.high < 0, "more slowly than without correction"
slower = compared(("lag 15", "V-trace"), ("1 update", "V-trace"))
assert slower.high < 0, "and than with fresh data"
for second in (("lag 5", "uncorrected"), ("1 update", "V-trace")):
    found = compared(("lag 5", "V-trace"), second)
    assert found.low < 0 < found.high, "with a lag of 5 no difference is seen"

# %% [markdown]
# Why do they fall? Look at one action, as likely as another one before the first update, with an
# advantage of $-1$. Uncorrected, its loss is $\log \pi(a)$, which has no lower bound. Each update
# pushes it further down, however rare it has become. With V-trace the weight of the push is the
# ratio, and it vanishes together with $\pi(a)$:

# %%
for name, corrected in (("V-trace", True), ("uncorrected", False)):
    logit, seen = torch.zeros(()), []
    for update in range(1, 1001):
        chance = logit.sigmoid()
        ratio = (chance / 0.5).clamp(max=1.0) if corrected else 1.0
        logit -= 0.5 * ratio * (1 - chance)
        if update in (1, 10, 100, 1000):
            seen.append(f"{logit.sigmoid().item():.1e}")
    print(f"{name:11s} chance after 1, 10, 100 and 1000 updates:", *seen)

# %% [markdown]
# A good action needs no such brake: its chance stops at 1. So the correction does not make learning
# faster. It stops old data from being believed again and again. It does not say how far one may go
# with them, as the clip of {doc}`/chapters/ppo` does. And what it does to the values is seen
# without noise in {doc}`/chapters/off_policy`.

# %% [markdown]
# ## Traps
#
# These are mistakes of DI-engine's IMPALA, except where another name is given. More were shown in
# {doc}`/chapters/off_policy`, and {doc}`/docs/errata` links the lines. Its own collectors put one
# episode into a sample, so an end in the middle of a sample, on which some of these traps depend, is
# something that you meet with a vector environment, and not there.
#
# ### Trap: the step after an end
#
# DI-engine multiplies the value behind an end by zero, *where it stands*. But that number has a
# second role: it is also the value of the next episode's first step. And the weight behind an end
# is zero, which suits empty steps that fill up a sample, and takes the reward of a real one. Where
# the next episode stands in the same sample, one step for each end is lost. Here each reward is 1
# and each value is 5:

# %%
done = torch.tensor([0.0, 0, 1, 0, 0, 0])
values, rewards = torch.full((7,), 5.0), torch.ones(6)
weights = torch.ones(6)
values[1:] = values[1:] * (1 - done)
weights[1:] = 1 - done[:-1]
print("values: ", values.tolist())
print("rewards:", (rewards * weights).tolist())

# %% [markdown]
# The third step ends its episode, and its reward stays. The fourth step, a good one, has neither
# value nor reward. `reshape_data` leaves both alone and sets a flag.
#
# ### Trap: values written in place
#
# The same line writes into a *view* of what the network has returned. If the value head ends in
# tanh, autograd has kept that output for the backward pass, and now it has changed.

# %%
value = torch.randn(6, requires_grad=True).tanh()
value[1:] = value[1:] * 0.5
try:
    value.sum().backward()
except RuntimeError as error:
    print("the one-line version:", str(error).split(":")[0])

# %% [markdown]
# ### Trap: a limit taken for an end
#
# DI-engine knows one flag. A time limit then zeroes the bootstrap, and a pole that stands is worth
# as little as one that fell. Here are five steps that pay 1, in states that are worth 100, as they
# are under a discount of 0.99 if nothing ever ends. The episode is cut off after the fifth. All
# surprises should be zero.

# %%
from literate_rl.off_policy import vtrace

limit = torch.tensor([[False]] * 4 + [[True]])
never = torch.zeros_like(limit)
hundred = torch.full((5, 1), 100.0)
steps = (torch.zeros(5, 1), torch.ones(5, 1), hundred, hundred)
for name, flags in (("truncated", (never, limit)), ("an end", (limit, never))):
    _, adv = vtrace(*steps, *flags)
    print(f"{name:10s}", adv.flatten().round().int().tolist())

# %% [markdown]
# ### Trap: the next row is not the successor
#
# `obs_plus_1` takes the successor of step $t$ from row $t + 1$. In an environment that resets by
# itself this is wrong at each end. Under a time limit it is the value of a fresh start instead of
# that of an episode that goes on. The agent from above says how far apart the two are. And observations
# that are dictionaries cannot be joined at all:

# %%
from gymnasium.wrappers import TimeLimit

short = partial(flat_env, lambda: TimeLimit(flat_env("CartPole-v1"), 10))
learner = make_learner(short, replace(config, n_sample=8, unroll_len=40))
learner.collector.reset(seed=0)
samples, _ = learner.collect()
batch = learner.impala.data_preprocess_learn(samples)
differs = (batch["obs"][1:] != batch["next_obs"][:-1]).any(-1)
print("rows whose successor is not the next row:", int(differs.sum()))
print("ends before the last row:                ", int(batch["done"][:-1].sum()))
with torch.no_grad():
    true = cartpole.policy.value(batch["next_obs"][:-1])
    taken = cartpole.policy.value(batch["obs"][1:])
print(f"true values {true.min():.1f} to {true.max():.1f}, ", end="")
print(f"off by up to {(taken - true).abs().max():.1f}")
try:
    torch.cat([{"near": true}, {"near": taken}])
except TypeError as error:
    print("dictionaries:", str(error).partition(",")[0])

# %% [markdown]
# ### Trap: weights that never arrive
#
# DI-engine loads importance weights into `data["weight"]`, and then passes on other weights, which
# mark the ends. Whatever the buffer says, the loss is the same, and no priority comes back. Here
# the weights scale the gradient, as they must:

# %%
sizes = {"obs_shape": 4, "action_shape": 2}
weighted = replace(config, model=sizes, priority=True, priority_IS_weight=True)
for number in (1.0, 0.5):
    for name in ("published", "here"):
        torch.manual_seed(0)
        policy = IMPALAPolicy(weighted)
        batch = policy.data_preprocess_learn([x | {"IS": number} for x in samples])
        if name == "published":
            batch["weight"] = torch.ones_like(batch["reward"])
            batch["weight"][1:] = 1 - batch["done"][:-1].float()
        info = policy.learn(batch)
        print(
            f"weight {number}, {name:9s} norm of the gradient {info['grad_norm']:.2f}"
        )
print("priorities:", np.round(info["priority"][:4], 2))

# %% [markdown]
# ### Trap: a dimension that gets lost
#
# An action of one number has the shape (1,). A collate function that is too helpful joins such
# items to $(B,)$, and the action becomes $(T, B)$ while the mean stays $(T, B, 1)$. PyTorch refuses
# that, unless the sizes happen to fit. Then it pairs every step with every environment.

# %%
for steps in (5, 3):
    mu, action = torch.zeros(steps, 3, 1), torch.zeros(steps, 3)
    try:
        log_prob = torch.distributions.Normal(mu, 1.0).log_prob(action)
        print(f"{steps} steps of 3 environments: {tuple(log_prob.shape)}")
    except ValueError as error:
        print(f"{steps} steps of 3 environments:", str(error).partition(":")[0])

# %% [markdown]
# In the other form of the data, lists are stacked on the first level only. What a Gaussian policy
# said is one level below, and still a list when `Normal` gets it:

# %%
from torch.utils.data import default_collate

said = {"mu": [torch.zeros(2)] * 3, "sigma": [torch.ones(2)] * 3}
sample = {"reward": [torch.ones(())] * 3, "logit": said}
batch = default_collate([sample, sample])
for key, entry in batch.items():
    if isinstance(entry, list):
        batch[key] = default_collate(entry)
mu, sigma = batch["logit"].values()
print("published:", tuple(batch["reward"].shape), type(mu).__name__)
try:
    torch.distributions.Normal(mu, sigma)
except (ValueError, TypeError) as error:
    print("Normal:   ", type(error).__name__)
ours = collate([sample, sample], dim=1)
print("here:     ", tuple(ours["reward"].shape), tuple(ours["logit"]["mu"].shape))

# %% [markdown]
# ### Trap: a length that is fixed twice
#
# `unroll_len` stands in the settings, and the data have a length as well. DI-engine reshapes by
# the setting. With 3 rows of 4 environments and a setting that says 5 steps, nothing fails, and
# the columns are mixed up:

# %%
values = torch.arange(12)  # 3 rows of 4 environments
print("first environment:", values.reshape(3, 4)[:, 0].tolist())
print("by the setting:   ", values.reshape(6, 2)[:, 0].tolist())

# %% [markdown]
# ### Trap: a mask in one place
#
# If the actor masks actions that are not possible, the learner has to mask them too. DI-engine's
# has no line for it (and refuses the observations that would bring a mask). Take a policy that has
# not changed, two of whose four actions are masked. The step pays 1 and ends the episode, the value
# is 0, so the loss of the value should be 1:

# %%
logit = torch.zeros(1, 1, 4)
masked = logit.masked_fill(torch.tensor([False, False, True, True]), -torch.inf)
action, end = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool)
for name, new in (("masked twice:", masked), ("masked once: ", logit)):
    data = vtrace_data(
        new, masked, action, torch.zeros(2, 1), torch.ones(1, 1), terminated=end
    )
    ratio = (new.softmax(-1) / masked.softmax(-1))[0, 0, 0].item()
    loss = vtrace_error_discrete_action(data).value_loss.item()
    print(f"{name} ratio {ratio}, loss of the value {loss}")

# %% [markdown]
# ### Trap: the last start
#
# A buffer that cuts unrolls of $T$ steps out of an episode of length $n$ may start at
# $0, \dots, n - T$. DI-engine's draws from $n - T$ numbers, one too few. The last step of the
# episode, often the one with the reward, is never learned from.

# %%
n, T = 10, 4
for name, starts in (("published", range(n - T)), ("right", range(n - T + 1))):
    seen = {step for start in starts for step in range(start, start + T)}
    print(f"{name}: steps never seen {sorted(set(range(n)) - seen)}")

# %% [markdown]
# ### Trap: filling up that counts
#
# To fill the last unroll DI-engine repeats earlier steps, and they count twice. If there are none,
# it appends empty steps that are marked as done. Here is an episode of six steps, and one of three
# steps that goes on:

# %%
T, n = 4, 6
published = [range(4), range(2, 6)]
print(
    "how often it counts:", [sum(t in unroll for unroll in published) for t in range(n)]
)
ours = torch.zeros(n)
for sample in four_steps.get_train_sample(marked[:n]):
    ours.index_add_(0, sample["obs"].flatten().long(), sample["weight"])
print("here:               ", ours.int().tolist())

obs, done = torch.tensor([7.0, 8.0, 9.0, 0.0]), torch.tensor([0.0, 0, 0, 1])
weight = torch.ones(4)
weight[1:] = 1 - done[:-1]
print("three steps and nothing:", obs.tolist(), "weights", weight.tolist())
three = [{**marked[0], "obs": torch.tensor([x])} for x in (7.0, 8.0, 9.0)]
(sample,) = four_steps.get_train_sample(three)
filled = sample["obs"].flatten().tolist()
print("here:                   ", filled, "weights", sample["weight"].tolist())

# %% [markdown]
# The empty step counts in full, although nobody was ever there. And it is taken for the successor
# of the last real one.
#
# ### Trap: settings that do nothing
#
# With `optim="rmsprop"` DI-engine builds an optimiser without the clip, whatever the settings say.
# And the learning rate in its log is the one that the optimiser was made with:

# %%
optimizer = torch.optim.RMSprop([torch.zeros(1, requires_grad=True)], lr=0.1)
optimizer.param_groups[0]["lr"] = 0.01  # what a schedule does
print("in the log:", optimizer.defaults["lr"])
print("in use:    ", optimizer.param_groups[0]["lr"])

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | scalable_agent | torchbeast | DI-engine | RLlib | Machin |
# |---|---|---|---|---|---|---|
# | actors | in this process, with a lag | processes, TensorFlow queue | processes, shared memory | one collector | Ray actors | processes |
# | a sample | unroll across episodes | unroll across episodes | unroll across episodes | unroll of one episode | unroll across episodes | whole episode |
# | replay | each sample up to 16 times | none | none | each sample up to 16 times | optional | a buffer of episodes |
# | step behind an end | kept | kept | kept | thrown away, but its own samples have none | kept | no such step |
# | $\lambda$ | 0.95 | none | none | 0.95 | none | none |
# | optimiser | Adam or RMSprop, both clipped | RMSprop | RMSprop, clipped | Adam, clipped; RMSprop, not clipped | Adam, clipped | Adam |
# | *clip_momentum_norm* | $g_{\max}$ is `clip_value`, from the first update on | | | $g_{\max}$ is `clip_coef`, 5 and no setting of the policy; after 100 updates | | |
# | where the modes are set up | in the constructor | | | `_init_learn`, `_init_collect`, `_init_eval` | | |
#
# ## On the best device
#
# With `cuda=True` the networks run on `best_device()`; transitions stay on the CPU.

# %%
config = IMPALAConfig(cuda=True, total_steps=1024)
on_device = make_learner("CartPole-v1", config)
last = fit(on_device, progress=False)[-1]
print(f"trained on {best_device().type} for {last['step']} steps")
print("finite losses:", all(math.isfinite(last[k]) for k in last if "losses" in k))

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: how often is a sample used?
#
# Each iteration collects $n$ samples and takes $k$ updates with batches of $m$. Once the buffer is
# full, how often is a sample used on average before it leaves, if nothing but age drives it out
# and `max_use` is the limit?

# %%
from literate_rl.agents import grade


def answer(n_sample, update_per_collect, batch_size, max_use):
    return ...


def mean_use(n_sample, update_per_collect, batch_size, max_use):
    return min(update_per_collect * batch_size / n_sample, max_use)


runs = [(16, 4, 16, 16), (16, 1, 8, 16), (4, 10, 16, 16)]
grade(answer, mean_use, *runs)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(n_sample, update_per_collect, batch_size, max_use):
    # What is drawn in an iteration is shared by the samples that came in.
    return min(update_per_collect * batch_size / n_sample, max_use)


grade(answer, mean_use, *runs)

# %% [markdown]
# ### Exercise 2: cut an episode
#
# Given are the number of steps of an episode and the length of an unroll. Return the list of
# the first steps of all unrolls that `get_train_sample` makes, if the episode is at least as
# long as an unroll.


# %%
def answer(steps, length):
    return ...


def starts(steps, length):
    return [min(start, steps - length) for start in range(0, steps, length)]


lengths = [(10, 4), (8, 4), (4, 4), (7, 1)]
grade(answer, starts, *lengths)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(steps, length):
    whole = list(range(0, steps - length + 1, length))
    return whole if steps % length == 0 else [*whole, steps - length]


grade(answer, starts, *lengths)

# %% [markdown]
# ### Exercise 3: importance weights
#
# Return the weights $w_i$ of {eq}`replay-priority` for the priorities of all samples in a buffer.
# The answer is compared with what `ReplayBuffer` attaches to its draws.


# %%
def answer(priority, alpha, beta):
    return ...


def importance(priority, alpha, beta):
    buffer = ReplayBuffer(max_use=10**9, alpha=alpha, beta=beta)
    buffer.push([{} for _ in priority])
    buffer.update(list(buffer.entries), priority)
    generator = torch.Generator().manual_seed(0)
    while not all("IS" in entry for entry in buffer.entries):
        buffer.sample(1, generator)
    return [entry["IS"] for entry in buffer.entries]


cases = [([1.0, 1.0], 0.6, 0.4), ([1.0, 4.0, 9.0], 0.5, 1.0), ([2.0, 1.0], 1.0, 0.0)]
grade(answer, importance, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(priority, alpha, beta):
    total = sum(u**alpha for u in priority)
    weight = [(len(priority) * u**alpha / total) ** -beta for u in priority]
    return [w / max(weight) for w in weight]


grade(answer, importance, *cases)

# %% [markdown]
# ## References
#
# IMPALA and V-trace are from {cite:t}`espeholt2018`, prioritised replay is from
# {cite:t}`schaul2016`.

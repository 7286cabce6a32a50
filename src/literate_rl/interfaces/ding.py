# Generated from chapters/interfaces/ding.py (edit there); digest 0356fcbac53d9a38
"""DI-engine: IMPALA behind the interface of its ``IMPALAPolicy``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.data.agents import best_device
from literate_rl.ground.nests import map_nest
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.rows import ONCE
from literate_rl.ground.signatures import Count, Fraction, check_that, checked
from literate_rl.learners.impala import IMPALAConfig, Unroll, VTraceLearner
from literate_rl.maths.off_policy import continuous_terms, discrete_terms, vtrace_data
from literate_rl.nets.hybrid_action import as_tree
from literate_rl.nets.policies import Policy, make_actions

__all__ = ["IMPALAPolicy", "IMPALAPolicyConfig", "Timestep", "collate"]


# Where DI-engine keeps its settings: the names in each section. All others stand on the
# first level, which is a section too where a whole configuration is read.
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

SIZES = ("obs_shape", "action_shape")


def each_setting(
    config: Mapping[str, Any], section: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each setting in nested dictionaries."""
    for name, value in config.items():
        path = section + name
        if name not in {"policy", "model", *SECTIONS}:
            yield path, value
        else:
            yield from each_setting(value, f"{path}.")


@checked
@dataclass(frozen=True)
class IMPALAPolicyConfig(IMPALAConfig):
    """Settings of ``IMPALAPolicy``: those of ``IMPALAConfig`` and DI-engine's others.

    Three of them have DI-engine's names here, and cannot be given by ours.

    Those of the loop around a policy (``anneal``, ``total_steps``, ``n_sample``,
    ``batch_size``, ``update_per_collect``, ``on_policy``, ``lag``,
    ``checkpoint_interval`` and those of the buffer) are for whoever writes that loop;
    the policy does not read them.

    Attributes:
        type: Name of the algorithm, a placeholder.
        cuda: Whether to use the best device instead of the CPU.
        action_space: Either discrete or continuous.
        transition_with_policy_data: Whether transitions keep what the policy said.
            Without it there is no V-trace, so it must be true.
        model: Sizes of the default model, a mapping with obs_shape, a number or, for a
            picture, a list, and action_shape, a number.
        unroll_len: Steps of one sample, our ``num_steps``.
        discount_factor: Discount, our ``gamma``.
        n_sample: Samples of one collection, our ``num_envs``.
    """

    num_steps: Count = field(init=False)
    gamma: Fraction = field(init=False)
    num_envs: Count = field(init=False)
    type: Literal["impala"] = "impala"
    cuda: bool = False
    action_space: Literal["discrete", "continuous"] = "discrete"
    transition_with_policy_data: Literal[True] = True
    model: Any = field(default_factory=dict)
    unroll_len: Count = IMPALAConfig.num_steps
    discount_factor: Fraction = IMPALAConfig.gamma
    n_sample: Count = IMPALAConfig.num_envs

    def __post_init__(self) -> None:
        for name, ours in ONCE.items():
            object.__setattr__(self, ours, getattr(self, name))
        super().__post_init__()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> IMPALAPolicyConfig:
        """Read settings from nested dictionaries, as DI-engine writes them.

        Args:
            config: The settings of a policy, or a whole configuration with a section
                ``policy``. Each stands in one of its sections, or on the first level.
                What is left out has its default.

        Raises:
            ValueError: If a setting has two values.

        Warns:
            UserWarning: If there are unknown settings. They are ignored.
        """
        names = {*SIZES, *(setting.name for setting in fields(cls))}
        names -= {*ONCE.values()}
        found: dict[str, Any] = {}
        unknown = []
        for path, value in each_setting(config):
            name = path.rpartition(".")[2]
            # DI-engine's buffer has a type of its own.
            if name not in names or path.endswith("replay_buffer.type"):
                unknown.append(path)
            elif found.setdefault(name, value) != value:
                raise ValueError(
                    f"config has two values of {name}: {found[name]!r} and {value!r}"
                )
        if unknown:
            words = "config has unknown settings, which are ignored: "
            warnings.warn(words + ", ".join(unknown), stacklevel=2)
        sizes = {name: found.pop(name) for name in SIZES if name in found}
        return cls(model=sizes, **found)

    def to_dict(self) -> dict[str, Any]:
        """Write settings as nested dictionaries, which ``from_dict`` reads."""
        nested = {k: x for k, x in asdict(self).items() if k not in ONCE.values()}
        # From the last section to the first, as the last one stands within another.
        for section, names in reversed(SECTIONS.items()):
            nested[section] = {name: nested.pop(name) for name in names}
        return nested


def collate(items: Sequence[Any], dim: int = 0) -> Any:
    """Stack items along a new dimension, whatever nests of dicts and lists they are.

    Args:
        items: At least one number, array, tensor, mapping or list. Lists are stacked
            themselves first, along a new first dimension.
        dim: The new dimension.

    Returns:
        A tensor, or a dictionary of what its entries give.
    """
    check_that(bool(items), "items must hold at least one, got none")
    first = items[0]
    if isinstance(first, Mapping):
        return {key: collate([item[key] for item in items], dim) for key in first}
    if isinstance(first, list):
        return collate([collate(item) for item in items], dim)
    return torch.stack([torch.as_tensor(item) for item in items], dim)


class ByMode(nn.Module):
    """A model that is called with a mode, as a network with rows and values.

    Args:
        model: Its ``forward(obs, mode=...)`` returns a dictionary. ``logit`` is a row
            of logits, or ``mu`` and ``sigma`` of numbers by name.
        dims: Number of dimensions of one observation.
    """

    def __init__(self, model: nn.Module, dims: int) -> None:
        super().__init__()
        self.model, self.dims = model, dims

    def ask(self, obs: Tensor, mode: str, key: str) -> Tensor:
        """Return an entry of the model's answer, with the batch as it came."""
        lead = obs.dim() - self.dims
        answer = self.model(obs.reshape(-1, *obs.shape[lead:]), mode=mode)[key]
        if isinstance(answer, Mapping):
            answer = torch.cat([answer["mu"], answer["sigma"].log()], -1)
        return answer.reshape(*obs.shape[:lead], -1)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the rows of observations."""
        return self.ask(obs, "compute_actor", "logit")

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations."""
        return self.ask(obs, "compute_actor_critic", "value").squeeze(-1)


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


Mode = Literal["learn", "collect", "eval"]


class IMPALAPolicy:
    """A policy with three modes: it learns, it collects, and it is evaluated.

    The class attribute ``config`` holds the defaults as nested dictionaries.

    Args:
        config: The settings, or nested dictionaries that
            ``IMPALAPolicyConfig.from_dict`` reads.
        model: A policy with the methods of ``Policy``, or a model of DI-engine's kind,
            for which ``config.model`` holds obs_shape, which may be a list, and
            action_shape. None builds the default model.
        enable_field: The modes that are wanted, or None for all. Without learn there
            is no optimiser; the other two cost nothing and are always ready.
    """

    config: ClassVar[dict[str, Any]] = IMPALAPolicyConfig().to_dict()

    @checked
    def __init__(
        self,
        config: IMPALAPolicyConfig | Mapping[str, Any],
        model: nn.Module | None = None,
        enable_field: Sequence[Mode] | Set[Mode] | None = None,
    ) -> None:
        if isinstance(config, Mapping):
            config = IMPALAPolicyConfig.from_dict(config)
        self.cfg = config
        self.continuous = config.action_space == "continuous"
        self.device = best_device() if config.cuda else torch.device("cpu")
        self.model: Any = self.build_model(model).to(self.device)
        if enable_field is None or "learn" in enable_field:
            self.init_learn()
        self.init_collect()

    def default_model(self) -> tuple[str, list[str]]:
        """Return what builds the default model, and the module to import it from."""
        return "make_policy", ["literate_rl.nets.policies"]

    def build_model(self, model: nn.Module | None) -> nn.Module:
        """Return a policy: the default model, one of DI-engine's kind, or another."""
        if model is not None and "mode" not in signature(model.forward).parameters:
            return model
        obs_shape, action_shape = (self.cfg.model[name] for name in SIZES)
        seen = spaces.Box(-np.inf, np.inf, tuple(np.ravel(obs_shape)))
        continuous = spaces.Box(-1, 1, (action_shape,))
        actions = continuous if self.continuous else spaces.Discrete(action_shape)
        if model is not None:
            return Policy(ByMode(model, len(seen.shape)), make_actions(actions))
        name, (module,) = self.default_model()
        policy: nn.Module = getattr(import_module(module), name)(seen, actions)
        return policy

    # --- learn mode

    def init_learn(self) -> None:
        """Build what learning needs, a fresh optimiser, and forget the one before."""
        self.learner = VTraceLearner(self.model, self.cfg)

    def data_preprocess_learn(self, data: Sequence[Any]) -> dict[str, Any]:
        """Turn a list of samples into time-major tensors.

        Args:
            data: B samples of T steps. A sample is a list of T transitions, or one
                dictionary whose entries are lists of T items or tensors ``(T, *)``. Its
                importance weight ``IS`` is one number, or a list of equal ones. An
                entry that is None counts as missing.

        Returns:
            The entries as tensors ``(T, B, *)``; rewards, flags and ``weight`` (T, B);
            and ``obs_plus_1``, ``(T + 1, B, *)``. An entry that learning does not read
            is handed on as it came, in a list of what each sample had.
        """
        samples = [by_entry(sample) for sample in data]
        # Lists become time, and samples stand side by side.
        read = [{key: s[key] for key in FIELDS if key in s} for s in samples]
        batch = map_nest(lambda x: x.to(self.device), collate(read, dim=1))
        # Some environments give rewards of the shape (1,).
        shape = batch["reward"].shape[:2]
        batch["reward"] = batch["reward"].reshape(shape).float()
        batch["done"] = batch["done"].reshape(shape).bool()
        never = torch.zeros_like(batch["done"])
        batch["truncated"] = batch.get("truncated", never).reshape(shape).bool()
        weight = batch.get("weight", torch.ones_like(batch["reward"]))
        if self.cfg.priority_IS_weight:
            # One number for each sample weighs all of its steps.
            numbers = collate([sample["IS"] for sample in samples]).to(weight)
            weight = weight * numbers.reshape(len(samples), -1)[:, 0]
        batch["weight"] = weight.reshape(shape)
        batch["obs_plus_1"] = map_nest(
            lambda obs, next_obs: torch.cat([obs, next_obs[-1:]]).float(),
            batch["obs"],
            batch["next_obs"],
        )
        unread = {key for sample in samples for key in sample} - {*FIELDS}
        return batch | {key: [s.get(key) for s in samples] for key in unread}

    def forward_learn(self, data: Sequence[Any]) -> dict[str, Any]:
        """Take one step of the optimiser on samples.

        Returns the numbers that ``monitor_vars_learn`` names and, with priorities, one
        for each sample as ``priority``.
        """
        unroll = self.unroll(self.data_preprocess_learn(data))
        info: dict[str, Any] = dict(self.learner.learn(unroll))
        if self.cfg.priority:
            info["priority"] = self.learner.priority
        return info

    def unroll(self, data: dict[str, Any]) -> Unroll:
        """Turn what ``data_preprocess_learn`` returned into what the learner reads."""
        steps, envs = data["reward"].shape
        # Actions keep their last dimension, also if it is 1.
        rows = (steps, envs, -1) if self.continuous else (steps, envs)
        action = data["action"].reshape(rows)
        logit = map_nest(lambda x: x.reshape(steps, envs, -1), data["logit"])
        terms = continuous_terms if self.continuous else discrete_terms
        return Unroll(
            obs_plus_1=tree(data["obs_plus_1"]),
            next_obs=tree(map_nest(Tensor.float, data["next_obs"])),
            action=action,
            log_prob=terms(logit, logit, action)[1],
            reward=data["reward"],
            terminated=data["done"] & ~data["truncated"],
            truncated=data["truncated"],
            weight=data["weight"],
        )

    def monitor_vars_learn(self) -> list[str]:
        """Return the names of the numbers in ``forward_learn`` that a log shows."""
        losses = ["total_loss", "policy_loss", "value_loss", "entropy_loss"]
        return ["cur_lr", *losses, "grad_norm"]

    def reshape_data(self, output: dict[str, Any], data: dict[str, Any]) -> vtrace_data:
        """Arrange what the model said and what happened for the losses.

        ``output`` holds ``logit`` and ``value`` of ``obs_plus_1``, with (T + 1) B rows,
        ``data`` is what ``data_preprocess_learn`` returned. DI-engine has the first six
        of the nine fields.
        """
        (steps, envs), unroll = data["reward"].shape, self.unroll(data)
        value = output["value"].reshape(steps + 1, envs)
        return vtrace_data(
            map_nest(lambda x: x.reshape(steps + 1, envs, -1)[:-1], output["logit"]),
            map_nest(lambda x: x.reshape(steps, envs, -1), data["logit"]),
            unroll.action,
            value,
            unroll.reward * self.cfg.reward_scale,
            unroll.weight,
            unroll.terminated,
            unroll.truncated,
            self.learner.next_value(value, unroll),
        )

    def state_dict_learn(self) -> dict[str, Any]:
        """Return model, optimiser, norms of gradients and random state."""
        return {
            "model": self.model.state_dict(),
            "generator": self.generator.get_state(),
            **self.learner.state_dict(),
        }

    def load_state_dict_learn(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict_learn`` returned."""
        self.learner.load_state_dict(state)
        self.model.load_state_dict(state["model"])
        self.generator.set_state(state["generator"])

    # --- collect mode

    def init_collect(self) -> None:
        """Begin the random numbers of the seed anew, with which actions are drawn."""
        self.generator = torch.Generator().manual_seed(self.cfg.seed)

    def forward_collect(self, data: dict[int, Any]) -> dict[int, dict[str, Any]]:
        """Draw actions for observations by the number of the environment.

        By the same numbers come ``logit``, what the policy said, and ``action``, both
        on the CPU.
        """
        return self.answers(data, self.generator)

    @torch.no_grad()
    def answers(
        self, data: dict[int, Any], generator: torch.Generator | None = None
    ) -> dict[int, dict[str, Any]]:
        """Answer observations, with noise if there is a generator, else greedily."""
        stacked = collate(list(data.values()))
        obs = map_nest(lambda x: x.float().to(self.device), stacked)
        with eval_mode(self.model):
            logit, noise = self.model(obs), 0.0
            if generator is not None:
                noise = self.model.noise(1, len(data), generator)[0].to(self.device)
            action = self.model.act(obs, noise)
        if self.continuous:
            mu, log_sigma = logit.chunk(2, -1)
            logit = {"mu": mu, "sigma": log_sigma.exp()}
        output = map_nest(lambda x: x.cpu(), {"logit": logit, "action": action})
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
        length, samples = self.cfg.unroll_len, []
        for start in range(0, len(data), length):
            first = max(0, min(start, len(data) - length))
            steps = data[first : first + length]
            missing = length - len(steps)
            columns = by_entry(steps + steps[-1:] * missing)
            sample = {key: collate(column) for key, column in columns.items()}
            for flag in ("done", "truncated"):
                given = sample.get(flag, torch.zeros(length))
                sample[flag] = given.reshape(length).bool()
            if missing:
                # An episode that goes on is cut here, or its repeated step would count
                # as its successor.
                sample["truncated"][-missing - 1 :] |= ~sample["done"][-1]
                sample["done"][-missing - 1 :] = True
            place = torch.arange(first, first + length)
            sample["weight"] = ((place >= start) & (place < len(data))).float()
            samples.append(sample)
        return samples

    # --- eval mode

    def init_eval(self) -> None:
        """Do nothing: to be greedy needs no random numbers, and no other model."""

    def forward_eval(self, data: dict[int, Any]) -> dict[int, dict[str, Any]]:
        """Return what ``forward_collect`` does, with greedy actions."""
        return self.answers(data)


def by_entry(sample: Any) -> dict[str, Any]:
    """Return a sample as one dictionary, without the entries that are None."""
    if isinstance(sample, Mapping):
        return {key: x for key, x in sample.items() if x is not None}
    first = by_entry(sample[0])
    return {key: [step[key] for step in sample] for key in first}


def tree(nest: Any) -> Any:
    """Return a dictionary of tensors as one object that can be sliced like a tensor."""
    return as_tree(nest) if isinstance(nest, dict) else nest

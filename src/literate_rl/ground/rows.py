# Generated from chapters/ground/rows.py (edit there); digest 5efdfcd60ae54051
"""Rows: what the package knows of an algorithm, written beside the algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, cast

from literate_rl.ground.nests import is_hybrid
from literate_rl.ground.protocols import Learner, PolicyLike, RunConfig
from literate_rl.ground.signatures import check_that, checked

__all__ = ["Row", "by_settings", "register"]


# DI-engine's names, which IMPALA's settings had: they still work, and warn.
ONCE = {"unroll_len": "num_steps", "n_sample": "num_envs", "discount_factor": "gamma"}
ANY, LISTED, BOUNDED = "all kinds", "Discrete", "Discrete, Box"
Slot = Literal["act", "act_in_list", "error", "by_hand"]


@checked
@dataclass(frozen=True)
class Row:
    """What there is to know of an algorithm.

    Attributes:
        name: Its name for ``train``.
        purpose: What it is for, in a few words.
        actions: The kinds of actions that it takes: ``ANY``, ``LISTED`` or ``BOUNDED``.
        config: Class of its settings, a ``RunConfig``.
        policy: Function from the space of observations, that of actions and settings to
            a policy. An ``encoder`` or a ``mask`` comes by name. See ``by_settings``.
        learner: Function from a policy, environments and settings to a learner, which
            takes fast forms by the names of their slots. None if it is for actors only.
        actors: The same for settings with actors: from a policy, what makes the
            environments of an actor, settings, a transport and what makes ``act``.
        settings: Function from the id of an environment to settings.
        contract: What models of your own keep: that of ``"ppo"``, ``"dqn"``,
            ``"rainbow"``, ``"ddpg"`` or ``"sac"``. Without one it takes none.
        forms: The slots that its learner has for fast forms.
        makers: Functions of your own that build its policies, for ``load``.
        chapter: Where to read about it; the default is the module of its settings.
    """

    name: str
    purpose: str
    actions: str
    config: type[Any]
    policy: Callable[..., Any]
    learner: Callable[..., Learner] | None = None
    actors: Callable[..., Learner] | None = None
    settings: Callable[[str], Any] | None = None
    contract: Literal["", "ppo", "dqn", "rainbow", "ddpg", "sac"] = ""
    forms: tuple[Slot, ...] = ()
    makers: tuple[Callable[..., PolicyLike], ...] = ()
    chapter: str = ""

    def __post_init__(self) -> None:
        trains = self.learner or self.actors
        check_that(trains is not None, "a row must have a learner or actors, got none")
        words = f"config must be a class below RunConfig, got {self.config!r}"
        check_that(issubclass(self.config, RunConfig), words)
        # Without `@checked` a setting that makes no sense would be met in the training.
        if not hasattr(self.config.__init__, "__wrapped__"):
            checked(self.config)
        # A copy of a row has the defaults of its own settings.
        if self.settings is None or getattr(self.settings, "func", None) is defaults:
            object.__setattr__(self, "settings", partial(defaults, self.config))
        chapter = self.chapter or self.config.__module__.rpartition(".")[2]
        object.__setattr__(self, "chapter", chapter)

    @property
    def key(self) -> str:
        """Its name in the table, ``"rainbowapex"`` for ``"Rainbow-Apex"``."""
        return key_of(self.name)

    @property
    def home(self) -> str:
        """The module of what trains it."""
        trains: Any = self.learner or self.actors
        return trains.__module__

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models of your own that it takes, all of them or none."""
        values = self.contract in ("dqn", "rainbow")
        return ("qnet",) if values else ("actor", "critic") if self.contract else ()


def defaults(config: type[Any], env: str) -> Any:
    """Return settings that are the same for all environments."""
    return config()


def key_of(name: str) -> str:
    """Return the name of an algorithm as the table has it."""
    return "".join(letter for letter in name.lower() if letter not in "_- ")


def by_settings(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``Row.policy``: the maker gets the settings whose names it has."""
    named = inspect.signature(make).parameters

    def policy(seen: Any, actions: Any, config: Any, **models: Any) -> Any:
        known = {"normalize": getattr(config, "normalize_obs", False)} | vars(config)
        chosen = {name: known[name] for name in named if name in known}
        return make(seen, actions, **chosen | models)

    return policy


ALGORITHMS: dict[str, Row] = {}
# What builds policies, and the module where it stands.
MAKERS = {
    "make_policy": "literate_rl.nets.policies",
    "make_hybrid_policy": "literate_rl.nets.hybrid_policy",
    "make_recurrent_policy": "literate_rl.nets.recurrent",
    "make_phasic_policy": "literate_rl.learners.ppg",
    "make_q_policy": "literate_rl.learners.dqn",
    "make_rainbow_policy": "literate_rl.learners.rainbow",
    "make_ddpg_policy": "literate_rl.learners.ddpg",
    "make_sac_policy": "literate_rl.learners.sac",
    "make_discrete_sac_policy": "literate_rl.learners.discrete_sac",
    "make_contract_policy": "literate_rl.check.own_models",
    "make_qnet_policy": "literate_rl.check.own_models",
    "make_own_ddpg_policy": "literate_rl.check.own_models",
    "make_own_sac_policy": "literate_rl.check.own_models",
}


def register(row: Row) -> Row:
    """Let ``train``, ``load`` and the command line know an algorithm; return its row.

    Raises:
        ValueError: If another module has an algorithm or a maker of that name.
    """
    other = "choose another name for that of your own"
    known = ALGORITHMS.get(row.key, row)
    if known.home != row.home:
        same = (known.name, known.purpose) == (row.name, row.purpose)
        check_that(same, f"{known.home} has an algorithm {known.name!r}: {other}")
        # In the notebook of a chapter its row comes a second time.
        if row.home == "__main__":
            return known
    for make in row.makers:
        name, module = make.__name__, make.__module__
        # A script that names itself is imported a second time, under its own name.
        there = MAKERS.get(name, module)
        own = there in (module, "__main__")
        check_that(own, f"{there} has a maker {name!r}: {other}")
        MAKERS[name] = module
    ALGORITHMS[row.key] = row
    return row


def maker_named(name: Any) -> Callable[..., Any] | None:
    """Return what builds policies and has this name, or None."""
    if not isinstance(name, str) or name not in MAKERS:
        return None
    return cast(Any, getattr(import_module(MAKERS[name]), name))


def actor_critic(seen: Any, actions: Any, config: Any, **models: Any) -> Any:
    """Build an actor and a critic of states by settings, whatever the actions.

    The maker is found by its name: who reads PPO need not load hybrid actions.
    """
    name = "make_hybrid_policy" if is_hybrid(actions) else "make_policy"
    if config.recurrent:
        name = "make_recurrent_policy"
    make = maker_named(name)
    return by_settings(cast(Any, make))(seen, actions, config, **models)

"""The floors of the house from the ground up, and the modules on each.

An import goes to a floor further up in this list, or stays on its own. The chapter
``chapters/ppo.py`` is the module ``learners.ppo``. Modules once lay as the chapters do:
whoever imports ``literate_rl.ppo`` or ``literate_rl.workshop.runs`` still gets them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Chapters by floors; ``chapter:name`` gives the module a name of its own.
FLOORS = {
    "ground": "workshop.signatures workshop.interfaces:protocols workshop.rows "
    "workshop.nests workshop.networks workshop.interrupts",
    "maths": "workshop.fast policy_gradient advantages ppo_error off_policy c51",
    "data": "workshop.hybrid_space workshop.episodes workshop.makers workshop.worlds "
    "workshop.memory agents windows replay exact_values",
    "nets": "encoders masks choices policies disjoint_network hybrid_action "
    "workshop.hybrid_policy hybrid_ppo",
    "learners": "loop dqn rainbow ddpg td3 sac discrete_sac a2c ppo ppg impala",
    "actors": "actors processes a3c apex",
    "check": "workshop.probes workshop.states workshop.rules contracts "
    "workshop.own_models",
    "by_hand": "workshop.fast_forms ppo_by_hand",
    "interfaces": "workshop.alf workshop.ding workshop.cluster",
    "runs": "evaluation workshop.runs",
    "apps": "workshop.programs workshop.commands workshop.training workshop.doctor "
    "workshop.trained workshop.cli",
    "book": "workshop.pictures workshop.exercises workshop.rooms contract_models "
    "workshop.playground workshop.train_here",
}


def homes() -> dict[str, str]:
    """Return the module of each chapter: ``workshop.runs`` is ``runs.runs``."""
    found = {}
    for floor, chapters in FLOORS.items():
        for entry in chapters.split():
            chapter, _, name = entry.partition(":")
            found[chapter] = f"{floor}.{name or chapter.rpartition('.')[2]}"
    return found


class OldAddress(MetaPathFinder, Loader):
    """Finds a module under the name that it had before the floors."""

    def __init__(self) -> None:
        self.homes = homes() | {"hybrid_policy": "nets.hybrid_policy"}
        self.spec: dict[str, Any] = {}

    def find_spec(self, fullname: str, *where: object) -> ModuleSpec | None:
        """Say who loads an old name; other names are none of its business."""
        package, _, name = fullname.partition(".")
        if package != "literate_rl" or name not in self.homes | {"workshop": ""}:
            return None
        if name == "workshop":
            return ModuleSpec(fullname, None, is_package=True)
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself, not a copy."""
        package, _, name = spec.name.partition(".")
        module = import_module(f"{package}.{self.homes[name]}")
        self.spec[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give back its own specification, which the old name has replaced."""
        module.__spec__ = self.spec.pop(module.__name__)

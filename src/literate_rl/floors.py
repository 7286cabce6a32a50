"""The floors of the house from the ground up, and the modules on each.

A module imports from floors earlier in this list and from its own; ``check``,
``by_hand`` and ``interfaces`` do not import each other. The file
``chapters/learners/ppo.py`` is the module ``learners.ppo``; what a chapter of the book
exports lies on one of the floors as well. Modules once lay otherwise: whoever imports
``literate_rl.ppo`` or ``literate_rl.workshop.runs`` still gets them.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from warnings import warn

FLOORS = {
    "ground": "signatures protocols rows nests networks interrupts",
    "maths": "scan fast returns policy_gradient advantages ppo_error off_policy dqn "
    "c51 noisy td3 sac discrete_sac",
    "data": "hybrid_space held makers episodes worlds memory agents windows sum_tree "
    "replay exact_values",
    "nets": "pictures encoders masking masks choices parts cells policies "
    "disjoint_network hybrid_action hybrid_policy recurrent hybrid_ppo",
    "learners": "loop dqn rainbow ddpg td3 sac discrete_sac a2c ppo ppg_learner ppg "
    "impala",
    "actors": "actors processes a3c apex",
    "check": "probes states rules contracts own_models",
    "by_hand": "fast_forms ppo_by_hand",
    "interfaces": "alf ding cluster",
    "runs": "evaluation runs",
    "apps": "programs commands training doctor trained cli",
    "book": "pictures exercises rooms contract_models growth playground train_here",
}


def modules() -> list[str]:
    """Return all modules from the ground up, such as ``learners.ppo``."""
    return [f"{floor}.{name}" for floor, x in FLOORS.items() for name in x.split()]


def from_below(name: str) -> Any:
    """Return what the top of the package had once and a module has now.

    Raises:
        AttributeError: If no module has a public name like this.
    """
    public = re.compile(rf'^__all__ = \[[^]]*"{name}"', re.MULTILINE)
    for module in modules():
        place = f"literate_rl.{module}"
        file = Path(__file__).parent / f"{module.replace('.', '/')}.py"
        if public.search(file.read_text("utf-8")):
            words = f"{name} will be found in {place} only"
            warn(words, DeprecationWarning, stacklevel=3)
            return getattr(import_module(place), name)
    raise AttributeError(f"module 'literate_rl' has no attribute {name!r}")


class OldAddress(MetaPathFinder, Loader):
    """Finds a module under the name that it had before the floors."""

    def __init__(self) -> None:
        # Where two have one name, it was that of the upper one.
        self.homes = {module.rpartition(".")[2]: module for module in modules()}
        self.homes["interfaces"] = "ground.protocols"

    def find_spec(self, fullname: str, *where: object) -> ModuleSpec | None:
        """Say who loads an old name; other names are none of its business."""
        if fullname == "literate_rl.workshop":
            return ModuleSpec(fullname, None, is_package=True)
        package, _, name = fullname.rpartition(".")
        old = package in ("literate_rl", "literate_rl.workshop") and name in self.homes
        return ModuleSpec(fullname, self) if old else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself, not a copy, in the place of the one that was made."""
        home = self.homes[module.__name__.rpartition(".")[2]]
        sys.modules[module.__name__] = import_module(f"literate_rl.{home}")

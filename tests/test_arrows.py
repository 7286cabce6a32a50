"""The arrows: whatever is not the idea stands above it and imports it, never below."""

import ast
import importlib
import inspect
from functools import cache
from graphlib import TopologicalSorter

import tangle
from order import read_order
from torch import nn

from literate_rl import floors

ROOT = tangle.ROOT
PAGES = [(ROOT / f"{page.docname}.py", page.kind) for page in read_order()]
MODULES = [tangle.module_name(path) for path, kind in PAGES if kind != "evidence"]
# A floor imports what is listed before it, and its own without a circle.
FLOORS = {
    floor: [home for home in tangle.HOMES.values() if home.startswith(f"{floor}.")]
    for floor in floors.FLOORS
}
LISTED = [module for floor in FLOORS.values() for module in floor]
ON_POLICY = "a2c a3c learners.ppo learners.ppg_learner ppg ppo_error hybrid_ppo "
ON_POLICY += "policy_gradient"
OFF_POLICY = (
    "dqn rainbow td3 sac discrete_sac replay c51 apex learners.dqn "
    "learners.loop learners.rainbow learners.ddpg learners.td3 "
    "learners.sac learners.discrete_sac data.windows data.replay"
)
ON_POLICY, OFF_POLICY = (
    {tangle.HOMES[chapter] for chapter in kind.split()}
    for kind in (ON_POLICY, OFF_POLICY)
)


@cache
def imported(module: str) -> dict[str, list[str]]:
    """Return what a module imports from others, also inside functions."""
    file = tangle.module_file(module)
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            package, _, other = (node.module or "").partition(".")
            if package == "literate_rl":
                found.setdefault(other, []).extend(item.name for item in node.names)
    return found


def is_network(module: str, name: str) -> bool:
    """Say whether a module defines a network of that name."""
    thing = getattr(importlib.import_module(f"literate_rl.{module}"), name)
    return inspect.isclass(thing) and issubclass(thing, nn.Module)


def goes_up(module: str, other: str) -> bool:
    """Say whether a module imports from a floor that is listed later, or beside it."""
    order = list(FLOORS)
    here, there = module.split(".")[0], other.split(".")[0]
    beside = here != there and {here, there} <= {"check", "by_hand", "interfaces"}
    return beside or order.index(there) > order.index(here)


def mixes_kinds(module: str, other: str) -> bool:
    return module in OFF_POLICY and other in ON_POLICY


def borrows_a_network(module: str, other: str) -> bool:
    # The page of a learner's parts belongs to its algorithm.
    if other == f"{module}_learner":
        return False
    algorithms = set(FLOORS["learners"])
    names = imported(module)[other]
    return {module, other} <= algorithms and any(is_network(other, n) for n in names)


def test_each_module_stands_on_one_floor():
    assert sorted(LISTED) == sorted(MODULES)
    assert set(LISTED) >= ON_POLICY | OFF_POLICY


def test_imports_go_down():
    wrong = {
        (module, other)
        for module in MODULES
        for other in imported(module)
        for never in (goes_up, mixes_kinds, borrows_a_network)
        if never(module, other)
    }
    assert not wrong


def test_only_one_file_starts_what_stands_above():
    """`python -m literate_rl` is the command line; `import literate_rl` is lazy."""
    assert set(imported("__main__")) == {"apps.commands"}
    assert set(imported("__init__")) == {"floors"}


def test_no_module_imports_itself_through_others():
    TopologicalSorter({module: imported(module) for module in MODULES}).prepare()

"""Old addresses: modules and names are where they were, and are the same objects."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import tangle

import literate_rl
from literate_rl.floors import OldAddress

# Each module with the public names that it had before the floors.
OLD = dict(
    line.split(": ")
    for line in Path(__file__).with_name("old_names.txt").read_text().splitlines()
)
ADDRESSES = OldAddress().homes
# Without a successor of the same kind; CHANGELOG.md says what is there now.
GONE = {"AuxiliaryHeads", "Result", "chain_q_error", "chain_critic_error"}
GONE |= {"FusedCriticError", "fused_critic_error"}


def test_few_names_are_at_the_top_and_the_others_exist():
    assert len(literate_rl.__all__) <= 180
    for home, names in tangle.BELOW_THE_TOP.items():
        assert {*names.split()} <= {*import_module(f"literate_rl.{home}").__all__}


@pytest.mark.parametrize("chapter", {**OLD, **{f"workshop.{x}": "" for x in ADDRESSES}})
def test_the_old_address_is_the_module(chapter):
    home = ADDRESSES[chapter.removeprefix("workshop.")]
    module = import_module(f"literate_rl.{home}")
    old = import_module(f"literate_rl.{chapter}")
    for name in {*OLD.get(chapter, "").split()} - GONE:
        assert getattr(old, name) is getattr(module, name)
        if name in literate_rl.__all__:
            assert getattr(literate_rl, name) is getattr(module, name)
        else:
            with pytest.warns(DeprecationWarning, match=f"^{name} will be found in"):
                assert getattr(literate_rl, name) is getattr(module, name)
    if chapter != "actors":  # where a floor of this name is now
        assert old is module
        assert module.__spec__.name == module.__name__


def test_old_names_are_imported_first_too():
    """In a process of its own: here all modules are loaded."""
    script = """if True:
    import literate_rl.workshop.runs
    from literate_rl import workshop
    from literate_rl.actors import *
    assert workshop.runs.__name__ == "literate_rl.runs.runs"
    assert InProcess.__module__ == "literate_rl.actors.actors"
    """
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_was_never_there_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"literate_rl\.workshop\.ppos"):
        import_module("literate_rl.workshop.ppos")


# --- What CHANGELOG.md promises -------------------------------------------------------

CHANGES = (Path(__file__).parents[1] / "CHANGELOG.md").read_text("utf-8")


def test_each_promised_place_is_there():
    """In the last column of a table."""
    for there in re.findall(r"^\|.*\| (.*) \|$", CHANGES, re.MULTILINE):
        for path in re.findall(r"literate_rl(?:\.\w+)+", there):
            resolve_name(path)

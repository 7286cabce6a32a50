"""If you come from …: each name of ours exists, each erratum is about that project."""

import re
from typing import Any

import pytest
import tangle
from reader import slug

import literate_rl
from literate_rl.apps.commands import OTHERS
from literate_rl.apps.programs import program_names

PAGE = (tangle.ROOT / "docs/come_from.md").read_text("utf-8")
ERRATA = (tangle.ROOT / "docs/errata.md").read_text("utf-8")
PROJECTS = {
    "PPOxFamily": "opendilab/PPOxFamily",
    "DI-engine": "opendilab/DI-engine",
    "ALF": "HorizonRobotics/alf",
    "Machin": "iffiX/machin",
    "Stable-Baselines3": "DLR-RM/stable-baselines3",
    "CleanRL": "vwxyzjn/cleanrl",
    "Spinning Up": "openai/spinningup",
}


def rows() -> list[tuple[str, list[str]]]:
    """Return the rows of all tables, each with the heading above it."""
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        found += [
            (
                section.splitlines()[0],
                [x.strip() for x in line.strip("| ").split(" | ")],
            )
            for line in lines[1:]
        ]
    return found


ROWS = rows()
OURS = sorted({name for _, row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})


@pytest.mark.parametrize("name", OURS)
def test_each_of_our_names_exists(name):
    if name.startswith("literate-rl "):
        _, command, program = name.split()
        assert command in OTHERS
        assert program in program_names()
        return
    thing: Any = literate_rl
    for part in name.split("."):
        thing = getattr(thing, part)


@pytest.mark.parametrize(("project", "row"), ROWS)
def test_a_row_leads_to_files_chapters_and_errata(project, row):
    theirs, _, where, _, errata = row
    repo = PROJECTS[project]
    assert re.search(rf"\]\(https://github\.com/{repo}/blob/[0-9a-f]{{40}}/", theirs)
    chapter = re.fullmatch(r"\{doc\}`/(chapters/[\w/]+)`", where)
    assert chapter
    assert (tangle.ROOT / f"{chapter[1]}.py").exists()
    sections = {slug(x.splitlines()[0]): x for x in ERRATA.split("\n### ")[1:]}
    for anchor in re.findall(r"errata\.md#([\w-]+)", errata):
        assert repo.lower() in sections[anchor].lower()

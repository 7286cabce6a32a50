"""Decisions: what a reader takes home from the chapter of an algorithm.

Its section ``## When to use it`` has a paragraph and a list of five lines, whose keys
are always the same. From these lines {doc}`which_agent </docs/which_agent>` is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from order import Chapter, read_order
from tangle import ROOT

HEADING = "## When to use it"
KEYS = ("Use it for", "Rather than", "Costs", "First settings", "Decided by")
# The chapters of algorithms.
CHAPTERS = (
    "ppo",
    "a2c",
    "a3c",
    "ppg",
    "impala",
    "dqn",
    "rainbow",
    "ddpg",
    "td3",
    "sac",
    "discrete_sac",
    "apex",
    "hybrid_ppo",
)
SECTION = re.compile(rf"^# {HEADING}\n(.*?)(?=^# ##? |^# %%|\Z)", re.M | re.S)
LINE = re.compile(r"^- \*\*(.+?)\*\*: *(.+)$")
LINK = re.compile(r"\{doc\}`|\]\(")


class Decision(NamedTuple):
    """When to use an algorithm.

    Attributes:
        chapter: Its chapter.
        prose: When to prefer it, in a paragraph.
        use_for: What it is good for.
        rather_than: What it is preferred to, and *if* what (which speaks for it).
        costs: Steps and seconds.
        settings: The first three.
        decided_by: The experiment that decides.
    """

    chapter: Chapter
    prose: str
    use_for: str
    rather_than: str
    costs: str
    settings: str
    decided_by: str


class DecisionError(Exception):
    """What is wrong with a chapter's decision."""


def decision(chapter: Chapter) -> Decision | None:
    """Return what a chapter decides, or None if it has no such section."""
    found = SECTION.search(chapter.source)
    if found is None:
        return None
    lines = [line.removeprefix("#").removeprefix(" ") for line in found[1].splitlines()]
    # A line may be wrapped: what follows it is indented.
    text = "\n" + re.sub(r"\n  +", " ", "\n".join(lines)).strip()
    prose, _, listed = text.partition("\n- ")
    rows = [LINE.match(f"- {line}") for line in listed.removeprefix("- ").split("\n- ")]
    if None in rows:
        wanted = "`- **Use it for**: …`"
        raise DecisionError(f"a line of the list under {HEADING!r} is no {wanted}")
    told = {row[1]: row[2] for row in rows if row}
    if tuple(told) != KEYS:
        wanted, got = ", ".join(KEYS), ", ".join(told)
        raise DecisionError(f"the keys under {HEADING!r} are {wanted}; got {got}")
    if not prose.strip() or "\n\n" in prose.strip():
        raise DecisionError(f"{HEADING!r} begins with one paragraph")
    if (count := len(re.findall(r"`[^`]+`", told["First settings"]))) != 3:
        raise DecisionError(f"First settings are three in code font, not {count}")
    if not LINK.search(told["Decided by"]):
        raise DecisionError("Decided by has a link to the experiment")
    return Decision(chapter, " ".join(prose.split()), *told.values())


def decisions(root: Path = ROOT) -> dict[str, Decision]:
    """Return the decisions of the book, by chapter."""
    found = {x.name: decision(x) for x in read_order(root) if x.name in CHAPTERS}
    return {name: each for name, each in found.items() if each}


def wrong(root: Path = ROOT) -> Iterator[str]:
    """Yield what is wrong with decisions."""
    for chapter in read_order(root):
        try:
            decision(chapter)
        except DecisionError as error:
            line = chapter.source[: chapter.source.index(HEADING)].count("\n") + 1
            yield f"{chapter.docname}.py:{line}: {error}"


def missing(root: Path = ROOT) -> Iterator[str]:
    """Yield the chapters of algorithms that decide nothing."""
    for chapter in read_order(root):
        if chapter.name in CHAPTERS and HEADING not in chapter.source:
            yield f"{chapter.docname}.py: end with a section {HEADING!r}"

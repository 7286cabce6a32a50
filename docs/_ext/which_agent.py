"""Which agent: a table that three questions make shorter, from what the book knows.

``{which-agent}`` has a row for each chapter that ends with a decision. Its words come
from there ({mod}`decisions`), the kinds of actions from the stored product of spaces,
steps and seconds from the stored runs of the programs, and whether an agent remembers
its steps or has actors of its own from its settings. No script is needed: the answers
are radio buttons, and the style sheet hides the rows that do not fit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import product
from pathlib import Path
from posixpath import join, normpath, splitext
from typing import Any

from decisions import CHAPTERS, Decision, decision
from docutils import nodes
from landing import number
from order import Chapter, link_to, read_order
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tangle import ROOT

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "src"))
from benchmarks.store import RESULTS, read_table
from literate_rl.apps.commands import OFFERED
from literate_rl.apps.programs import program_names

# Some chapters are about an agent of another command, for one kind of actions.
SPECIAL = {"discrete_sac": ("sac", "Discrete"), "hybrid_ppo": ("ppo", "hybrid")}
KINDS = {
    "Discrete": "one of a list",
    "Box": "numbers in a box",
    "MultiDiscrete": "several choices at once",
    "hybrid": "a type with arguments",
}
PRICES = {"cheap": "little: I get thousands in a second", "dear": "a lot"}
ACTORS = {
    "no": "no: collect, learn, collect again",
    "yes": "yes, on several cores or machines",
}
QUESTIONS = {
    "actions": ("What does your agent choose?", KINDS),
    "price": ("What does a step of your environment cost?", PRICES),
    "actors": ("Shall actors collect without waiting for the learner?", ACTORS),
}
COLUMNS = (
    "agent",
    "for what",
    "first settings",
    "what to expect",
    "refuses",
    "decided by",
)
NONE = (
    "No agent of the book fits all of these answers. Take one of them back: the kind "
    "of actions is a fact, the other two are a matter of patience."
)
REFERENCE = re.compile(r"(\{doc\}`(?:[^`<]*<)?|\]\()(?!/|https?:)([^`>)]+)")


@dataclass(frozen=True)
class Agent:
    """What the book knows about an agent.

    Attributes:
        chapter: Where it is explained.
        commands: What it is called on the command line.
        kinds: The kinds of actions that it takes.
        refused: Those that it refuses.
        remembers: Whether it learns from remembered steps, several times from each.
        alone: Whether it runs without actors.
        shared: Whether actors may collect for it, in processes of their own.
        told: What its chapter decides, or None.
    """

    chapter: Chapter
    commands: tuple[str, ...]
    kinds: tuple[str, ...]
    refused: tuple[str, ...]
    remembers: bool
    alone: bool
    shared: bool
    told: Decision | None

    @property
    def answers(self) -> dict[str, tuple[str, ...]]:
        """The answers that it fits, by question."""
        return {
            "actions": self.kinds,
            # What many actors fill a memory with should cost little.
            "price": ("dear",) * self.remembers
            + ("cheap",) * (self.shared or not self.remembers),
            "actors": ("no",) * self.alone + ("yes",) * self.shared,
        }


def agents(root: Path = ROOT) -> Iterator[Agent]:
    """Yield the agents of the chapters that decide something, in reading order."""
    # It imports PyTorch, which few pages need.
    from literate_rl.actors.actors import TransportConfig
    from literate_rl.apps.training import ALGORITHMS

    stored = read_table(RESULTS / "spaces.csv")[0]
    outcomes = {x["agent"]: x for x in stored if x["observation"] == "float32"}
    for chapter in read_order(root):
        if chapter.name not in CHAPTERS:
            continue
        own = tuple(x for x, offer in OFFERED.items() if offer.chapter == chapter.name)
        special, kind = SPECIAL.get(chapter.name, ("", ""))
        # What has the chapter's name comes first.
        commands = tuple(sorted(own, key=lambda x: x != chapter.name)) or (special,)
        row = [outcomes[name] for name in commands]
        trains = [k for k in KINDS if any(x[k] == "trains" for x in row)]
        config = ALGORITHMS[commands[0]].config()
        yield Agent(
            chapter,
            commands,
            (kind,) if kind else tuple(trains),
            tuple(k for k in KINDS if k not in trains),
            hasattr(config, "buffer_size"),
            config.actors is None,
            isinstance(config, TransportConfig),
            decision(chapter),
        )


def measured(name: str) -> str:
    """Return what the stored runs of a chapter's program took and reached."""
    path = RESULTS / f"learning/program_{name}.csv"
    if not path.exists():
        return ""
    finals, origin = read_table(path)
    curves = read_table(path.with_name(f"{path.stem}_curves.csv"))[0]
    steps = max(int(row["step"]) for row in curves)
    seconds, reached = (
        sum(float(row[key]) for row in finals) / len(finals)
        for key in ("cpu_seconds", "return")
    )
    time = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    value = number(str(reached))
    return f"Its page: {steps:,} steps of {origin['env']}, {time}, return {value}."


def from_here(text: str, chapter: Chapter) -> str:
    """Return a chapter's text with its references seen from the root."""

    def seen(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].partition("#")
        place = normpath(join("/chapters", path)) if path else f"/{chapter.docname}"
        # Links, other than roles, name a file.
        source = f"{splitext(place)[0]}.py"
        if found[1] == "](" and (ROOT / source[1:]).exists():
            place = source
        return f"{found[1]}{place}{mark}{anchor}"

    return REFERENCE.sub(seen, text)


# --- The page -------------------------------------------------------------------------


def button(question: str, key: str) -> str:
    """Return the id of an answer's button."""
    return f"which-{question}-{key}"


def questions() -> str:
    """Return the questions as groups of radio buttons."""
    groups = ""
    for place, (question, (words, answers)) in enumerate(QUESTIONS.items(), 1):
        buttons = ""
        for key, label in {"any": "I do not know yet", **answers}.items():
            checked = " checked" if key == "any" else ""
            buttons += (
                f'<label><input type="radio" name="{question}" '
                f'id="{button(question, key)}"{checked}> {escape(label)}</label>'
            )
        legend = f"<legend>{place}. {escape(words)}</legend>"
        groups += f"<fieldset>{legend}{buttons}</fieldset>"
    return f'<form class="which-questions" autocomplete="off">{groups}</form>'


def style(rows: list[Agent]) -> str:
    """Return what hides the rows that do not fit, and says so where none is left."""
    rules = [
        f".which-agent:has(#{button(question, key)}:checked) "
        f"tbody tr:not(.{question}-{key}) {{ display: none }}"
        for question, (_, answers) in QUESTIONS.items()
        for key in answers
    ]
    for keys in product(*([None, *answers] for _, answers in QUESTIONS.values())):
        given = {q: key for q, key in zip(QUESTIONS, keys, strict=True) if key}
        if not any(all(k in row.answers[q] for q, k in given.items()) for row in rows):
            picked = "".join(f":has(#{button(*x)}:checked)" for x in given.items())
            rules.append(f".which-agent{picked} .which-none {{ display: block }}")
    return "<style>" + "\n".join(rules) + "</style>"


class WhichAgent(SphinxDirective):
    """``{which-agent}``: three questions, and the agents that fit the answers."""

    def run(self) -> list[nodes.Node]:
        """Build questions and table."""
        rows = list(agents(Path(self.env.srcdir)))
        for path in (RESULTS / "learning").glob("program_*.csv"):
            self.env.note_dependency(str(path))
        head = "".join(
            f'<th role="columnheader" scope="col">{name}</th>' for name in COLUMNS
        )
        opening = (
            f'{style(rows)}<div class="which-agent">{questions()}'
            f'<p class="which-none" role="status">{NONE}</p>'
            f'<table class="docutils" role="table"><thead role="rowgroup">'
            f'<tr role="row">{head}</tr></thead><tbody role="rowgroup">'
        )
        content: list[nodes.Node] = [nodes.raw("", opening, format="html")]
        for row in rows:
            content += self.row(row)
        closing = "</tbody></table></div>"
        return [*content, nodes.raw("", closing, format="html")]

    def row(self, agent: Agent) -> Iterator[nodes.Node]:
        """Yield the cells of a row."""
        self.env.note_dependency(str(ROOT / f"{agent.chapter.docname}.py"))
        classes = " ".join(
            f"{question}-{key}"
            for question, keys in agent.answers.items()
            for key in keys
        )
        yield nodes.raw("", f'<tr role="row" class="{classes}">', format="html")
        for name, cell in zip(COLUMNS, self.cells(agent), strict=True):
            first = name == COLUMNS[0]
            kind = 'th role="rowheader" scope="row"' if first else 'td role="cell"'
            yield nodes.raw("", f'<{kind} data-label="{name}">', format="html")
            yield from cell
            yield nodes.raw("", f"</{kind[:2]}>", format="html")
        yield nodes.raw("", "</tr>", format="html")

    def cells(self, agent: Agent) -> Iterator[list[nodes.Node]]:
        """Yield what stands in each cell."""
        name, told = agent.chapter.name, agent.told
        commands = [f"literate-rl {command}" for command in agent.commands]
        if name in program_names():
            commands.append(f"literate-rl copy {name}")
        yield [
            link_to(agent.chapter, self.env.docname),
            *(nodes.paragraph("", "", nodes.literal("", x)) for x in commands),
        ]
        if told is None:
            yield self.text(agent, OFFERED[agent.commands[0]].purpose)
        else:
            rather = self.text(agent, f"rather than {told.rather_than}")
            yield [*self.text(agent, told.use_for), *rather]
        yield self.text(agent, told.settings if told else "")
        yield [
            *self.text(agent, told.costs if told else ""),
            *self.text(agent, measured(name)),
        ]
        yield self.text(
            agent, ", ".join(KINDS[kind] for kind in agent.refused) or "nothing"
        )
        yield self.text(agent, told.decided_by if told else "")

    def text(self, agent: Agent, words: str) -> list[nodes.Node]:
        """Return a paragraph of what a chapter says."""
        if not words:
            return []
        inside, messages = self.parse_inline(from_here(words, agent.chapter))
        return [nodes.paragraph("", "", *inside), *messages]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("which-agent", WhichAgent)
    app.add_css_file("which_agent.css")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

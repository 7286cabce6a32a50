"""Citations: name the literature as running text does, and list it in Markdown.

The website leaves this to sphinxcontrib-bibtex. A reader's notebook has no such help.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from pybtex.backends.markdown import Backend
from pybtex.database import Entry, parse_file
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style

URL = re.compile(r"\\url\s*\{(.+?)\}")
ADDRESS = re.compile(r"https?://[^\s,]+[^\s,.]")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")


class Markdown(Backend):
    """Markdown that is also pleasant to read as text."""

    def format_str(self, text: str) -> str:
        """Escape what would be markup."""
        return re.sub(r"([*_\[\]`\\])", r"\\\1", text)


class Bibliography:
    """The entries of a BibTeX file."""

    def __init__(self, path: Path) -> None:
        self.entries = parse_file(str(path), "bibtex").entries
        self.style = Style(abbreviate_names=True)

    def cite(self, keys: Collection[str], in_text: bool) -> str:
        """Return "Kakade and Langford (2002)", or the same in parentheses."""
        named = [(names(self.entries[key]), year(self.entries[key])) for key in keys]
        if in_text:
            return ", ".join(f"{who} ({when})" for who, when in named)
        return "(" + "; ".join(f"{who}, {when}" for who, when in named) + ")"

    def listing(self, keys: Collection[str]) -> str:
        """Return a list of the entries, ordered by author and year."""
        entries = [self.entries[key] for key in keys]
        for entry in entries:
            entry.fields.update(
                {name: URL.sub(r"\1", text) for name, text in entry.fields.items()}
            )
        lines = [
            " ".join(formatted.text.render(Markdown()).split())
            for formatted in self.style.format_entries(entries)
        ]
        return "\n".join(f"- {linked(line)}" for line in lines)


def linked(line: str) -> str:
    """Make links of the addresses in a line, in which nothing is escaped."""
    line = ADDRESS.sub(lambda found: f"<{found[0]}>".replace("\\", ""), line)
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", line)


def names(entry: Entry) -> str:
    """Return who wrote it: both of two authors, the first of more."""
    people = [
        str(Text(" ").join(person.rich_prelast_names + person.rich_last_names))
        for person in entry.persons["author"]
    ]
    if len(people) > 2:
        return f"{people[0]} et al."
    return people[0] if people[-1:] == people else f"{people[0]} and {people[1]}"


def year(entry: Entry) -> str:
    """Return when it appeared, as far as is known."""
    return str(entry.fields.get("year", "n.d."))

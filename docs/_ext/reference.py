"""Reference: the modules of the package by what they are for, with a sentence each.

``docs/api.md`` says which module, by the name of its chapter, stands in which group,
and which of its names come first. The sentence is the first line of the module's
docstring, written once, in its chapter. Each group is a toctree as well: a module that
is in none is a page that Sphinx does not find in any toctree, and `check` names it
before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tangle import ROOT, home_of, module_file

PAGE = "docs/api.md"
GROUP = re.compile(r"^```\{modules\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def listed(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield chapters and their first names, from lines like ``ppo: PPO, PPOConfig``."""
    for line in text.splitlines():
        module, _, names = line.partition(":")
        yield module.strip(), [name.strip() for name in names.split(",") if name]


def grouped(root: Path = ROOT) -> Iterator[tuple[str, list[str]]]:
    """Yield the same from all groups of the page."""
    for group in GROUP.findall((root / PAGE).read_text("utf-8")):
        yield from listed(group)


def sentence(module: str, root: Path = ROOT) -> str:
    """Return the first line of a module's docstring."""
    tree = ast.parse(module_file(module, root).read_text("utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


class Modules(SphinxDirective):
    """``{modules}``: a group of modules, one a line, as a list and as a toctree."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Write both in Markdown, and let Sphinx read them."""
        entries, pages = "", ""
        for chapter, names in listed("\n".join(self.content)):
            module = home_of(chapter)
            self.env.note_dependency(str(module_file(module)))
            whole = f"literate_rl.{module}"
            links = [f"{{py:obj}}`~{whole}.{name}`" for name in names]
            entries += f"{{py:mod}}`{module} <{whole}>`\n: {sentence(module)}\\\n"
            entries += f"  {', '.join(links)}\n\n"
            pages += f"api/{chapter.replace('.', '/')}\n"
        toctree = f"```{{toctree}}\n:hidden:\n\n{pages}```\n"
        return self.parse_text_to_nodes(f"{entries}{toctree}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("modules", Modules)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

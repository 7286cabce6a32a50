"""Typeset: formulas become HTML when the site is built.

KaTeX runs here, in V8, so that a page needs no script for its mathematics: it prints,
and nothing moves while it loads. Beside the boxes that one sees stands MathML, which
screen readers read. A formula that KaTeX does not understand is a warning of the build.
"""

from __future__ import annotations

import atexit
import re
from functools import cache
from pathlib import Path
from typing import Any, cast

from docutils import nodes
from py_mini_racer import JSEvalException, MiniRacer
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)
KATEX = Path(__file__).parent / "vendor/katex.min.js"
# KaTeX's MathML has two faults, and an `mrow` mends both. The name of a function is two
# elements, one too many where it is an index or the like, as in `V_{\max}`. And what
# becomes a relation or an operator, as by `\overset`, stands in an element for text.
TYPESET = """
const texts = /^(mi|mn|mo|mtext)$/;
const parts = /^(mfrac|mroot|msub|msup|msubsup|munder|mover|munderover)$/;
function mend(node) {
  if (texts.test(node.type) && !node.children.every(child => "text" in child))
    Object.assign(node, {type: "mrow", attributes: {}});
  node.children?.forEach((child, i) => {
    if (parts.test(node.type) && !child.type && child.children)
      node.children[i] = new node.constructor("mrow", child.children);
    mend(node.children[i]);
  });
}
function typeset(formula, options) {
  const tree = katex.__renderToDomTree(formula, options);
  mend(tree);
  return tree.toMarkup();
}
"""


@cache
def engine() -> MiniRacer:
    """Return V8 with KaTeX; its threads end with this process."""
    context = MiniRacer()
    atexit.register(context.close)
    context.eval(KATEX.read_text("utf-8"))
    context.eval(TYPESET)
    return context


@cache
def typeset(formula: str, display: bool = False) -> str:
    """Return a formula as HTML, or raise ``JSEvalException`` with what is wrong."""
    options = {"displayMode": display, "throwOnError": True, "strict": "error"}
    return cast(str, engine().call("typeset", formula, options))


def render(node: nodes.math | nodes.math_block, display: bool) -> str:
    """Return a node's formula as HTML; say where a wrong one stands."""
    formula = node.astext()
    # Rows of a formula are aligned, as Sphinx does it for other renderers.
    if display and r"\\" in formula and r"\begin" not in formula:
        formula = rf"\begin{{aligned}}{formula}\end{{aligned}}"
    try:
        return typeset(formula, display)
    except JSEvalException as error:
        reason = str(error).strip().splitlines()[0]
        logger.warning("%s: %s", reason, formula, location=node)
        return ""


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line of text; it may break where KaTeX lets it."""
    self.body.append(self.starttag(node, "span", "", CLASS="math"))
    base = '<span class="katex-base">'
    html = render(node, display=False).replace(f"</span>{base}", f"</span><wbr>{base}")
    self.body.append(f"{html}</span>")
    raise nodes.SkipNode


def visit_displayed(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula in a line of its own, with its number."""
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(render(node, display=True) + "</div>\n")
    raise nodes.SkipNode


def keep_marks(app: Sphinx, document: nodes.document, page: str) -> None:
    """Keep what touches a formula, a bracket or a comma say, in the formula's line."""
    for formula in list(document.findall(nodes.math)):
        whole: nodes.Element = formula
        # A comma behind a short link touches the formula at the link's end.
        while isinstance(link := whole.parent, nodes.Inline) and link[-1] is whole:
            if len(link.astext()) > 25:
                break
            whole = cast(nodes.Element, link)
        line = whole.parent
        place = line.index(whole)
        kept: list[nodes.Node] = [whole]
        if after := re.match(r"\S+", text := text_at(line, place + 1)):
            kept.append(nodes.Text(after[0]))
            line[place + 1] = nodes.Text(text[after.end() :])
        if before := re.search(r"\S+$", text := text_at(line, place - 1)):
            kept.insert(0, nodes.Text(before[0]))
            line[place - 1] = nodes.Text(text[: before.start()])
        if len(kept) > 1:
            line[place] = nodes.inline("", "", *kept, classes=["kept"])


def text_at(line: nodes.Element, place: int) -> str:
    """Return the text that stands at a place of a line, if one does."""
    found = line[place] if 0 <= place < len(line) else ""
    return str(found) if isinstance(found, nodes.Text) else ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_html_math_renderer("typeset", (visit_math, None), (visit_displayed, None))
    app.add_css_file("katex/katex.min.css")
    # After `words`, which looks for words in whole pieces of text.
    app.connect("doctree-resolved", keep_marks, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}

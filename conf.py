"""Sphinx configuration: the chapters and the pages of docs/ become the website."""

from __future__ import annotations

import gc
import inspect
import os
import re
import shutil
import sys
import zlib
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
BUILD = ROOT / "build"
sys.path.insert(0, str(ROOT / "docs/_ext"))

# Pages are large trees that last as long as the build. To look for garbage among them
# took a quarter of its time; without, it needs 1.4 GB.
gc.disable()

project = "Literate RL"
author = "The Literate RL authors"
copyright = "2026, The Literate RL authors"
release = installed("literate-rl")
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.linkcode",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_reredirects",
    "sphinxcontrib.bibtex",
    "reader",
    "weave",
    "execute",
    "equations",
    "order",
    "routes",
    "reference",
    "results",
    "curves",
    "standings",
    "landing",
    "which_agent",
    "typeset",
    "figures",
    "book",
    "words",
    "symbols",
    "search",
]

# --- What is a page. A list of what is, not of what is not: every .py file is a
# candidate, and tests or this file would be executed as chapters.
include_patterns = [
    "index.md",
    "chapters/*.py",
    "chapters/*/*.py",
    "docs/*.md",
    "docs/api/**.md",
]
# Folders without a page, so that nobody looks for one in thousands of files.
exclude_patterns = [
    ".*",
    "benchmarks",
    "build",
    "dist",
    "notebooks",
    "runs",
    "src",
    "tests",
]
nb_custom_formats = {".py": "weave.read_chapter"}

# --- Execution
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "cache")
nb_execution_timeout = 120
nb_execution_raise_on_error = False
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "show"
# Figures reach the catalogue of a translation too, with their text alternatives.
nb_mime_priority_overrides = [
    ("gettext", "image/svg+xml", 0),
    ("gettext", "image/png", 0),
]
# The kernels' settings, figures that read well in the light and in the dark.
profile = BUILD / "ipython/profile_default"
profile.mkdir(parents=True, exist_ok=True)
shutil.copy(ROOT / "docs/_ext/kernel_config.py", profile / "ipython_kernel_config.py")
os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
# Chapters run side by side, each on one core.
os.environ["OMP_NUM_THREADS"] = "1"

# --- Markdown and mathematics
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_dmath_double_inline = True
myst_heading_anchors = 3
numfig = False
html_math_renderer = "typeset"

# --- Docstrings
napoleon_numpy_docstring = False
napoleon_use_param = True
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Source", "returns_style")]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
strip_signature_backslash = True  # `lambda_` is no reference
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"(Any(Space)?|Callable|Mapping|NDArray|Space|Tree|.*ArrayLike)"),
    ("py:class", r"(np|numpy)\..*"),
    ("py:class", r"(abc|collections\.abc|typing|gymnasium|gym)\..*"),
    ("py:.*", r"(optional|.*TypeVar.*)"),
    # Words of our signatures; `ground/signatures` explains them.
    ("py:class", r"(.*'|Annotated.*|Float|Int|Integer|Bool|Ge|Gt|Le|Lt|ndarray)"),
    (
        "py:class",
        r"(Fraction|Positive|NonNegative|Finite|Scale|AboveOne|Count|Seed|(Sync)?VectorEnv)",
    ),
    ("py:class", r"(.*\.)?(Make|Wrapper|Env|EnvSpec|Asked|Taught|Adapter|FusedError)"),
    ("py:class", r"(Envs|Level|Parts|Rule|Results|Tone|Frame|MazeSize|RenderMode)"),
    ("py:class", r"(Gaussian|MeanAndDeviation)"),
    ("py:class", r"(.*\.)?Hybrid(Action|Logit|PolicyData|Sizes)"),
    ("py:class", r"torch\.autograd\.function\.Function|Detach"),
    (
        "py:class",
        r"(jaxtyping\..*|math\.inf|.*\.(Any(Callable|Policy)|Plan|Config|Annotated))",
    ),
    (
        "py:class",
        r"(Spec|Convolutions|OwnEncoder|OmitArgPrefixes|Suppress|Fixed|ClipType|States|Numbers)",
    ),
    ("py:class", r"(finite|below|at_least|one_each)"),
    (
        "py:class",
        r"(literate_rl\.actors\.actors\.Worker|literate_rl\..*\.(Fault|Sizes))",
    ),
    ("py:class", r"(torch\.dtype|tempfile\.TemporaryDirectory|Played)"),
    ("py:obj", r".*\.(cli\.Config|AnyPolicy)"),
    ("py:class", r"(spaces|nn)\..*"),
]

bibtex_bibfiles = ["docs/references.bib"]
bibtex_reference_style = "author_year"
bibtex_default_style = "alpha"

# --- Links to other projects. Their inventories are lines of docs/inventories.txt,
# compiled here, so that a build needs no network.
INVENTORY_URLS = {
    "torch": "https://docs.pytorch.org/docs/stable/",
    "gymnasium": "https://gymnasium.farama.org/",
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
}


def compile_inventory(name: str) -> str:
    """Write the inventory of one project; return its path."""
    lines = []
    for line in (ROOT / "docs/inventories.txt").read_text("utf-8").splitlines():
        owner, _, entry = line.partition(" ")
        if owner == name:
            target, role, page = entry.split()
            lines.append(f"{target} {role} 1 {page} -\n")
    path = BUILD / "inventories" / f"{name}.inv"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    path.write_bytes(head.encode() + zlib.compress("".join(lines).encode()))
    return str(path)


intersphinx_mapping = {
    name: (url, compile_inventory(name)) for name, url in INVENTORY_URLS.items()
}


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Lead from the API page to the chapter, to the line of the definition."""
    from tangle import HOMES, chapter_of

    chapter = chapter_of(info["module"].removeprefix("literate_rl."))
    if chapter not in HOMES:
        return None
    page = f"chapters/{chapter.replace('.', '/')}"
    # A class that is kept under another name, or made elsewhere, has no such line.
    defined = rf"^ *(async )?(def|class) {info['fullname'].rpartition('.')[2]}\b"
    if not re.search(defined, (ROOT / f"{page}.py").read_text("utf-8"), re.MULTILINE):
        return None
    # An API page lies as deep below docs/api as its chapter lies below chapters.
    up = "../" * (page.count("/") + 1)
    return f"{up}{page}.html#def-{info['fullname']}"


# --- Addresses of the time when names of chapters began with a number.
redirects = {
    f"chapters/{old}": f"{new}.html"
    for old, new in {
        "00_agents": "agents",
        "01_runs": "runs/runs",
        "02_policy_gradient": "policy_gradient",
        "03_advantages": "advantages",
        "04_ppo_error": "ppo_error",
        "05_ppo": "ppo",
        "06_hybrid_action": "hybrid_action",
        "07_disjoint_network": "disjoint_network",
        "08_ppg": "ppg",
        "09_off_policy": "off_policy",
        "10_impala": "impala",
        "11_actors": "actors",
    }.items()
} | {
    "docs/api/runs": "runs/runs.html",
    "chapters/hybrid_policy": "nets/hybrid_policy.html",
    "docs/api/hybrid_policy": "nets/hybrid_policy.html",
    "chapters/windows": "replay.html",
    "docs/api/windows": "data/windows.html",
    "chapters/loop": "learners/loop.html",
    "docs/api/actors": "actors/actors.html",
    "docs/api/loop": "learners/loop.html",
    "docs/api/ddpg": "learners/ddpg.html",
}
# The package's chapters once had a folder of their own.
WORKSHOP = """
alf=interfaces/alf buffer=data/replay cli=apps/cli cluster=interfaces/cluster
collectors=data/agents commands=apps/commands ddpg_learner=learners/ddpg
ding=interfaces/ding discrete_sac_learner=learners/discrete_sac doctor=apps/doctor
dqn_learner=learners/dqn episodes=data/episodes exercises=book/exercises fast=maths/fast
fast_forms=by_hand/fast_forms growth=book/growth hybrid_policy=nets/hybrid_policy
hybrid_space=data/hybrid_space interfaces=ground/protocols interrupts=ground/interrupts
loop=learners/loop make_encoder=nets/encoders make_policy=nets/policies
makers=data/makers memory=data/memory nests=ground/nests networks=ground/networks
on_policy=learners/ppo own_models=check/own_models pictures=book/pictures
playground=book/playground ppg_learner=learners/ppg_learner probes=check/probes
programs=apps/programs rings=data/windows rooms=book/rooms rows=ground/rows
rules=check/rules runs=runs/runs sac_learner=learners/sac signatures=ground/signatures
six_parts=learners/rainbow states=check/states td3_learner=learners/td3
train_here=book/train_here trained=apps/trained training=apps/training
transport=actors/actors worlds=data/worlds wrappers=nets/masks
"""
redirects |= {
    f"{folder}/workshop/{old}": f"../{new}.html"
    for folder in ("chapters", "docs/api")
    for old, _, new in (entry.partition("=") for entry in WORKSHOP.split())
}

# --- Look
html_theme = "_theme"
html_theme_path = ["docs"]
html_title = "Literate RL"
html_static_path = ["docs/_static"]
html_favicon = "docs/_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
html_additional_pages = {"404": "404.html"}
copybutton_selector = ", ".join(
    f"div.{kind} pre" for kind in ("cell_input", "highlight-bash", "highlight-python")
)


class Written(str):
    """An annotation as it stands in the source."""

    def __repr__(self) -> str:
        return str(self)


def as_written(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter with its annotation, and a function or class, by its name."""
    annotation, default = parameter.annotation, parameter.default
    if annotation is not parameter.empty:
        parameter = parameter.replace(annotation=Written(annotation))
    if default is not parameter.empty and hasattr(default, "__name__"):
        parameter = parameter.replace(default=Written(default.__name__))
    return parameter


def written_signature(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    arguments: str | None,
    result: str | None,
) -> tuple[str, str] | None:
    """Show checked signatures as they are written, not what their words stand for."""
    words = ("jaxtyping", "annotated_", " at 0x")  # the last is a place in memory
    if not any(word in f"{arguments} {result}" for word in words):
        return None
    signature = inspect.signature(obj.__init__ if what == "class" else obj)
    parameters = [
        as_written(parameter)
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    plain = signature.replace(parameters=parameters, return_annotation=inspect._empty)
    shown = "" if what == "class" else str(signature.return_annotation)
    return str(plain), shown


def skip_member(
    app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what a NamedTuple says of its fields: the class describes them."""
    document = getattr(obj, "__doc__", None) or ""
    return True if document.startswith("Alias for field number") else None


def plain_citations(
    app: Any, name: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Name a bibliography's entries as ARIA 1.2 does; docutils has the older role."""
    if "body" in context:
        context["body"] = context["body"].replace("doc-biblioentry", "listitem")


def setup(app: Any) -> None:
    """Connect what stands above."""
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-signature", written_signature)
    app.connect("html-page-context", plain_citations)

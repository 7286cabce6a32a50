"""Tangle: make each chapter's notebook and module from its one source.

``python docs/_ext/tangle.py`` writes the views that are stale;
``--check`` only names them. A chapter of the book is ``chapters/name.py``, one of the
package ``chapters/floor/name.py``. Its views are

* ``src/literate_rl/floor/name.py``: the code cells tagged ``export``, joined; a chapter
  without such cells, which only shows evidence, has none. On which floor a chapter of
  the book lies says the table in ``src/literate_rl/floors.py``;
* ``src/literate_rl/programs/name.py``: the cells tagged ``program``, an algorithm on
  one page, as a script with three options;
* ``chapters/notebooks/name.ipynb``: all cells, without outputs.

All chapters together make ``src/literate_rl/__init__.pyi``, the list of public names,
and the table of the chapters in ``README.md``.

Every view carries a digest of its own content. A view whose digest does not fit
was edited by hand: nothing is written then, and the message says where to edit.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import runpy
import sys
from copy import deepcopy
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path
from symtable import symtable

import jupytext
import nbformat
from nbformat import NotebookNode
from order import chapter_files, read_order, readme_table

ROOT = Path(__file__).resolve().parents[2]
# How a reader gets a program as a file.
COPY = "literate-rl copy {0} > my_{0}.py"
HEADER = "# Generated from {} (edit there); digest {}\n"
HEADER_PATTERN = re.compile(r"# Generated from \S+ \(edit there\); digest (\w+)\n")
HOUSE = runpy.run_path(str(ROOT / "src/literate_rl/floors.py"))
FLOORS: dict[str, str] = HOUSE["FLOORS"]
TABLE = re.compile(r"(<!-- chapters -->\n).*(<!-- end of chapters -->\n)", re.DOTALL)
# Chapters of the book whose module has another name, because a learner has theirs.
TAUGHT_BY = {
    "maths.returns": "agents",
    "maths.noisy": "rainbow",
    "data.sum_tree": "replay",
    "nets.pictures": "encoders",
    "nets.masking": "masks",
    "nets.parts": "policies",
    "nets.cells": "recurrent",
}

# Names that are public in their modules and not at the top of the package.
BELOW_THE_TOP: dict[str, str] = {
    "ground.protocols": "Act ActorCriticLike ByHandLike Error Kept RecurrentConfig "
    "RunConfig Settings Stateful Target",
    "ground.rows": "Row by_settings",
    "ground.nests": "REASONS as_discrete as_space as_vectors ends is_hybrid leaves "
    "plain_space refused remembered",
    "ground.networks": "ActionCritic ClipConfig GradientClip eval_mode "
    "randomness_kept squashed_log_prob",
    "ground.interrupts": "StopWaiting check_interrupt",
    "maths.fast": "categorical_terms gru_scan pieces_of project_atoms",
    "maths.scan": "reverse_scan",
    "maths.policy_gradient": "optimal_baseline",
    "maths.advantages": "gae_loop",
    "maths.ppo_error": "approx_kl_k3 clipped_surrogate policy_error_from_log_prob",
    "maths.off_policy": "clipped_policy vtrace_error_from_log_prob vtrace_loop",
    "maths.dqn": "dueling_q",
    "maths.noisy": "factorised_noise",
    "maths.td3": "smoothed_action",
    "maths.sac": "soft_value temperature_error",
    "maths.discrete_sac": "expected_soft_value",
    "maths.c51": "project_distribution_loop",
    "data.held": "Held",
    "data.makers": "Wrapped check_copies",
    "data.episodes": "EpisodeCounter check_experience env_seed on_cpu plain_actions",
    "data.worlds": "ForceCartPole HybridLander MazeLevels TMaze",
    "data.memory": "distances",
    "data.agents": "Sampler Window seen_by true_successors",
    "data.windows": "Rings",
    "data.replay": "Batch",
    "data.sum_tree": "SumTree importance_weights",
    "data.exact_values": "Ring check_chain",
    "nets.pictures": "MINATAR_LAYERS NATURE_LAYERS Layers",
    "nets.encoders": "ConvolutionalEncodingNetwork RowEncoder ShapedEncoder entrance",
    "nets.choices": "is_choices",
    "nets.parts": "RewardScaler RunningMoments",
    "nets.cells": "Memory gru_step lstm_step",
    "nets.recurrent": "RecurrentEncodingNetwork RecurrentPolicy",
    "nets.policies": "make_actions",
    "nets.hybrid_action": "as_tree mask_args select_args",
    "nets.hybrid_ppo": "ppo_policy_error_hybrid_per_head",
    "learners.loop": "ActorCriticConfig QError TargetNetwork linear_schedule "
    "polyak_update squared_error",
    "learners.dqn": "EpsilonGreedy Exploring ExploringConfig QLearning",
    "learners.rainbow": "DistributionalQLearning RainbowNetwork RainbowPolicy",
    "learners.ddpg": "ActorCritics BoxActions DeterministicPolicyGradient "
    "OneHotActions",
    "learners.td3": "Hysteretic TwinDelayed critic_error",
    "learners.sac": "SoftActorCritic SoftPolicy SoftPolicyLike Temperature",
    "learners.discrete_sac": "DiscreteCritics DiscreteSoftActorCritic "
    "DiscreteSoftPolicy DiscreteSoftPolicyLike",
    "learners.a2c": "GradientConfig GradientLearner a2c_gradient a2c_loss",
    "learners.ppo": "Samples",
    "learners.ppg": "AuxiliaryPhase",
    "learners.ppg_learner": "Chunks PhasicNetwork",
    "learners.impala": "Unroll VTraceLearner to_unroll",
    "actors.actors": "Census InProcess RemoteLearner TransportConfig slot_layout",
    "actors.processes": "ActorProcess",
    "actors.a3c": "GradientWorker gradient_layout",
    "actors.apex": "ApexActor DDPGApexConfig RainbowApexConfig actor_epsilons "
    "experience_layout first_priorities",
    "check.states": "StateSpec look_around",
    "check.contracts": "Broken Role",
    "check.own_models": "ContractPolicy LogitsOf",
    "by_hand.fast_forms": "FlatAdam FusedQError SharesMemory "
    "chain_backward chain_layers chain_outputs",
    "interfaces.ding": "IMPALAPolicyConfig Timestep collate",
    "interfaces.cluster": "import_ray",
    "runs.evaluation": "Difference",
    "runs.runs": "OwnModels StoredRuns video_html",
    "apps.commands": "OFFERED Offer",
    "apps.doctor": "Symptom",
    "book.rooms": "ROOMS House house room_answers values_and_greedy visit_rooms",
    "book.contract_models": "ActionValue CategoricalActor CategoricalQNetwork "
    "DeterministicActor DuelingQNetwork ProbabilityActor QNetwork "
    "SquashedGaussianActor StateValue",
}


def chapter_of(module: str) -> str:
    """Return the chapter of a module: one of the package is called as its module."""
    if (ROOT / f"chapters/{module.replace('.', '/')}.py").exists():
        return module
    return TAUGHT_BY.get(module, module.rpartition(".")[2])


# The module of each chapter.
HOMES = {chapter_of(module): module for module in HOUSE["modules"]()}
CONFLICT = re.compile(r"(# )?(<{7}|>{7}) |={7}$")


class TangleError(Exception):
    """What is wrong with a chapter or a view, one line each."""


def chapter_paths(root: Path = ROOT) -> list[Path]:
    """Return the chapters in reading order."""
    files = chapter_files(root)
    return [files[chapter.docname] for chapter in read_order(root)]


def home_of(name: str) -> str:
    """Return a chapter's module: that of ``a2c`` is ``learners.a2c``.

    One of the book that has no floor yet lies at the top.
    """
    return HOMES.get(name, name)


def module_name(chapter: Path) -> str:
    """Return the module of a chapter's file."""
    floor = chapter.parent.name
    return f"{floor}.{chapter.stem}" if floor in FLOORS else home_of(chapter.stem)


def module_file(module: str, root: Path = ROOT) -> Path:
    """Return the file of a module below the package."""
    return root / f"src/literate_rl/{module.replace('.', '/')}.py"


def is_hand_written(path: Path, root: Path = ROOT) -> bool:
    """Say whether a file of the package is no view of a chapter."""
    package = root / "src/literate_rl"
    own = {package / "__main__.py", package / "floors.py"}
    return path.name == "__init__.py" or path in own


@lru_cache(maxsize=128)  # the book is read several times in a build, and in its tests
def parsed(text: str) -> NotebookNode:
    """Parse a chapter; who changes the result copies it first."""
    return jupytext.reads(text, fmt="py:percent")


def parse(text: str) -> NotebookNode:
    """Parse a chapter; ``metadata.source_map`` holds each cell's 0-based first line."""
    notebook = deepcopy(parsed(text))
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("# %%")]
    if len(starts) != len(notebook.cells):
        raise TangleError("text outside of the `# %%` cells")
    notebook.metadata["source_map"] = starts
    return notebook


def text_of(path: Path, root: Path = ROOT) -> str:
    """Read a text file, or say where it is none."""
    place = path.relative_to(root).as_posix()
    if path.is_dir():
        raise TangleError(f"{place}:1: is a directory")
    data = path.read_bytes()
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        byte = f"byte 0x{data[error.start]:02x}"
        raise TangleError(f"{place}:{line}: {byte} is not UTF-8") from error


def read(chapter: Path, root: Path = ROOT) -> NotebookNode:
    """Read a chapter file; ``metadata.public`` holds its public names."""
    text, place = text_of(chapter, root), chapter.relative_to(root).as_posix()
    for number, line in enumerate(text.splitlines(), 1):
        if CONFLICT.match(line):
            raise TangleError(f"{place}:{number}: a conflict of a merge is left")
    # A chapter runs as a script too, so all of its cells together are Python.
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise TangleError(f"{place}:{error.lineno}: {error.msg}") from error
    try:
        notebook = parse(text)
    except TangleError as error:
        raise TangleError(f"{place}:1: {error}") from error
    notebook.metadata["public"] = public_names(tree, place)
    return notebook


def public_names(tree: ast.Module, place: str) -> dict[str, str]:
    """Return the names in ``__all__``, each with the file and the line of the list."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            where = f"{place}:{node.lineno}"
            try:
                names = ast.literal_eval(node.value)
            except ValueError:
                names = None
            words = isinstance(names, list | tuple)
            if not words or not all(isinstance(name, str) for name in names):
                raise TangleError(f"{where}: `__all__` must be a list of names")
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise TangleError(f"{where}: {twice[0]!r} stands twice in `__all__`")
            found |= dict.fromkeys(names, where)
    return found


def check_defined(public: dict[str, str], module: str) -> None:
    """Raise if a public name is nowhere defined or imported in its module."""
    symbols = symtable(module, "module", "exec").get_symbols()
    known = {x.get_name() for x in symbols if x.is_assigned() or x.is_imported()}
    for name, where in public.items():
        if name not in known:
            raise TangleError(f"{where}: no export cell defines the public {name!r}")


def is_module_name(name: str) -> bool:
    """Say whether a chapter of this name can be imported."""
    return name.isidentifier() and not iskeyword(name)


def is_export(cell: NotebookNode) -> bool:
    """Say whether a cell is package code."""
    return cell.cell_type == "code" and "export" in cell.metadata.get("tags", [])


PROGRAM = '''\
"""{title} on one page, from the chapter {name}.

Copy it and make it yours:

    literate-rl copy {name} > my_{name}.py
    python my_{name}.py --env {env} --seed {seed} --total-steps {plain_steps}
"""

import argparse

{before}parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="{env}")
parser.add_argument("--seed", type=int, default={seed})
parser.add_argument("--total-steps", type=int, default={total_steps})
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
{after}
'''
# A file has no numbers of equations.
EQUATION = re.compile(r",? \(?\{eq\}`[\w-]+`\)?")
# What a page runs; a copied program trains for longer.
SETTINGS = re.compile(
    r'^env_id, seed, total_steps = "(?P<env>[^"\n]+)", (?P<seed>\d+), [\d_]+\n',
    re.MULTILINE,
)


def program_text(chapter: Path, notebook: NotebookNode, root: Path = ROOT) -> str:
    """Return the cells tagged ``program`` as a script, or nothing if there are none.

    Its text is the page's, save for one line: environment, seed and number of steps
    come from the command line.
    """
    cells = [
        (start, cell)
        for cell, start in zip(
            notebook.cells, notebook.metadata["source_map"], strict=True
        )
        if "program" in cell.metadata.get("tags", [])
    ]
    if not cells:
        return ""
    source = "\n\n\n".join(cell.source for _, cell in cells)
    place = f"{chapter.relative_to(root)}:{cells[0][0] + 1}"
    steps = cells[0][1].metadata.get("total_steps")
    if not isinstance(steps, int):
        raise TangleError(f"{place}: a program needs `total_steps=…` beside its tag")
    if (lines := source.count("\n") + 1) > 90:
        raise TangleError(f"{place}: a program has at most 90 lines, not {lines}")
    found = list(SETTINGS.finditer(source))
    if len(found) != 1:
        wanted = '`env_id, seed, total_steps = "…", 1, 5_000`'
        raise TangleError(f"{place}: a program has one line {wanted}")
    heading = next(cell.source for cell in notebook.cells if cell.source[:2] == "# ")
    body = PROGRAM.format(
        title=heading.split("\n")[0][2:],
        name=chapter.stem,
        before=EQUATION.sub("", source[: found[0].start()]),
        after=EQUATION.sub("", source[found[0].end() :]),
        plain_steps=steps,
        total_steps=f"{steps:_}",
        **found[0].groupdict(),
    )
    return HEADER.format(chapter.relative_to(root).as_posix(), digest(body)) + body


def module_text(chapter: Path, notebook: NotebookNode, root: Path = ROOT) -> str:
    """Return the module: the export cells of a chapter under one header line.

    It is empty if no cell is tagged ``export``.
    """
    sources = []
    for cell, start in zip(
        notebook.cells, notebook.metadata["source_map"], strict=True
    ):
        if not is_export(cell):
            continue
        try:
            ast.parse(cell.source)
        except SyntaxError as error:
            line = start + 1 + (error.lineno or 1)
            place = f"{chapter.relative_to(root)}:{line}"
            raise TangleError(f"{place}: {error.msg}") from error
        sources.append(cell.source)
    if not sources:
        return ""
    body = "\n\n\n".join(sources) + "\n"
    return HEADER.format(chapter.relative_to(root).as_posix(), digest(body)) + body


# What these export, such as `Box` and `main`, serves those who write a chapter, or the
# command line. In the package's own name space it would only be in the way.
NOT_AT_THE_TOP = {
    "apps.cli",
    "apps.programs",
    "book.growth",
    "book.pictures",
    "book.playground",
    "book.train_here",
    "check.probes",
    "check.rules",
    "ground.signatures",
}


def names_text(modules: dict[str, dict[str, str]]) -> str:
    """Return the stub of the package: public names of its modules, re-exported.

    Raises:
        TangleError: If two modules have one name.
    """
    body, homes = "", dict[str, str]()
    for module, public in modules.items():
        below = BELOW_THE_TOP.get(module, "").split()
        hidden = public if module in NOT_AT_THE_TOP else below
        names = {name: place for name, place in public.items() if name not in hidden}
        for name, place in names.items():
            if name in homes:
                home = homes[name].rpartition(":")[0]
                raise TangleError(f"{place}: {name!r} is public in {home} as well")
        homes |= names
        lines = "".join(f"    {name} as {name},\n" for name in names)
        if names:
            body += f"from .{module} import (\n{lines})\n"
    return HEADER.format("chapters/*.py", digest(body)) + body


def notebook_text(chapter: Path, notebook: NotebookNode) -> str:
    """Return the notebook: deterministic cell ids, no outputs, its own digest."""
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{chapter.stem.replace('_', '-')}-{number:02d}"
    notebook.metadata = NotebookNode(
        kernelspec=notebook.metadata.get("kernelspec", {}),
        language_info={"name": "python"},
        literate_rl={"digest": digest(cells_of(notebook))},
    )
    return nbformat.writes(notebook, version=4) + "\n"


def cells_of(notebook: NotebookNode) -> str:
    """Return what a person edits in a notebook; Jupyter may change the rest."""
    return json.dumps(
        [
            (
                cell.cell_type,
                cell.metadata.get("tags", []),
                cell.metadata.get("mystnb", {}),
                cell.source,
            )
            for cell in notebook.cells
        ]
    )


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def same(old: str, new: str, suffix: str) -> bool:
    """Say whether two texts of a view hold the same cells (or the same code)."""
    if suffix == ".ipynb":
        return cells_of(read_notebook(old)) == cells_of(read_notebook(new))
    return old == new


def untouched(text: str, suffix: str) -> bool:
    """Say whether a view still is what ``make sync`` wrote."""
    if suffix == ".md":
        return True  # only the table of README.md is written, between two marks
    if suffix == ".ipynb":
        notebook = read_notebook(text)
        written = notebook.metadata.get("literate_rl", {}).get("digest")
        return written == digest(cells_of(notebook))
    header, _, body = text.partition("\n")
    match = HEADER_PATTERN.fullmatch(header + "\n")
    return match is not None and match[1] == digest(body)


def read_notebook(text: str) -> NotebookNode:
    """Parse a notebook; one that cannot be read (a merge conflict) has no cells."""
    try:
        notebook = nbformat.reads(text, 4)
        cells_of(notebook)
    except Exception:  # other JSON fails in as many ways as there are kinds of it
        return nbformat.v4.new_notebook()
    return notebook


def plan(root: Path = ROOT) -> dict[Path, str]:
    """Return every view's path and the text that it should have."""
    check_files(root)
    views, modules = {}, {}
    for chapter in chapter_paths(root):
        place = chapter.relative_to(root / "chapters")
        notebook = read(chapter, root)
        if text := module_text(chapter, notebook, root):
            module = module_name(chapter)
            views[module_file(module, root)] = text
            public = modules[module] = notebook.metadata["public"]
            check_defined(public, text)
        if text := program_text(chapter, notebook, root):
            views[root / "src/literate_rl/programs" / place.name] = text
        pair = root / "chapters/notebooks" / place.with_suffix(".ipynb")
        views[pair] = notebook_text(chapter, notebook)
    views[root / "src/literate_rl/__init__.pyi"] = names_text(modules)
    readme = root / "README.md"
    if readme.exists():
        table = readme_table(read_order(root))
        text = text_of(readme, root)
        views[readme] = TABLE.sub(lambda found: found[1] + table + found[2], text)
    return views


def check_files(root: Path) -> None:
    """Raise if a chapter's name is taken, or index.md lists a chapter twice."""
    for page, path in chapter_files(root).items():
        exports = '"export"' in text_of(path, root)
        module = module_file(module_name(path), root)
        taken = is_hand_written(module, root) or module.with_suffix("").is_dir()
        if exports and taken:
            raise TangleError(f"{page}.py:1: the package has a file of this name")
        if not is_module_name(path.stem):
            raise TangleError(f"{page}.py:1: {path.stem!r} is no name of a module")
    index, known = root / "index.md", set[str]()
    text = text_of(index, root) if index.exists() else ""
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line.startswith("chapters/") and line in known:
            raise TangleError(f"index.md:{number}: {line} is listed twice")
        known.add(line)


def stale(views: dict[Path, str], root: Path = ROOT) -> list[Path]:
    """Return the views to write or to remove; raise if one was edited by hand."""
    package = root / "src/literate_rl"
    present = {*package.rglob("*.py"), *package.rglob("*.pyi")}
    present = {path for path in present if not is_hand_written(path, root)}
    present |= {
        path
        for path in (root / "chapters/notebooks").rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    }
    present |= {root / "README.md"} & views.keys()
    changed, edited = [], []
    for path in sorted(present | views.keys()):
        new = views.get(path)
        old = text_of(path, root) if path in present else None
        if old == new:
            continue
        changed.append(path)
        kept = old is None or (new is not None and same(old, new, path.suffix))
        if not kept and not untouched(old or "", path.suffix):
            edited.append(
                f"{path.relative_to(root)}:1: edited by hand. Code and prose are "
                "edited in chapters/ only: move the edit there, delete this file, run "
                "`make sync`"
            )
    if edited:
        raise TangleError("\n".join(edited))
    return changed


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def sync(root: Path = ROOT, check: bool = False) -> list[Path]:
    """Bring all views up to date (or only name the stale ones); return them."""
    views = plan(root)
    changed = stale(views, root)
    for path in changed if not check else []:
        if path in views:
            write(path, views[path])
        else:
            path.unlink()
    return changed


def main(arguments: list[str]) -> int:
    """Run from the command line; return the exit code."""
    check = "--check" in arguments
    try:
        changed = sync(check=check)
    except TangleError as error:
        print(error, file=sys.stderr)
        return 1
    state = "stale, run `make sync`" if check else "synced"
    for path in changed:
        print(f"{path.relative_to(ROOT)}: {state}")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

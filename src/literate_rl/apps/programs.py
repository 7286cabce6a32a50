# Generated from chapters/apps/programs.py (edit there); digest f91da99472d96178
"""Programs to take along: algorithms on one page, and code that is shown again."""

from __future__ import annotations

import inspect
import io
import json
import re
import sys
import textwrap
from contextlib import redirect_stdout
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

__all__ = [
    "Source",
    "drawn_batches",
    "program_names",
    "program_path",
    "run_program",
    "source",
]


FOLDER = Path(str(files("literate_rl"))) / "programs"


def program_names() -> list[str]:
    """Return the names of all programs: those of their chapters."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def program_path(name: str) -> Path:
    """Return the file of a program."""
    if name not in (known := program_names()):
        raise ValueError(
            f"there is no program {name!r}, choose from {', '.join(known)}"
        )
    return FOLDER / f"{name}.py"


# The pages on which one program grows, in their order.
STEPS = ("agents", "policy_gradient", "advantages", "ppo_error", "ppo")


def copied(
    name: str,
    *,
    env: str | None = None,
    seed: int | None = None,
    total_steps: int | None = None,
    step: int | None = None,
) -> str:
    """Return an algorithm on one page, a script to keep and to change.

    Args:
        name: That of its chapter, such as ppo or discrete-sac.
        env: Environment of the copy.
        seed: Seed of the copy.
        total_steps: Steps that it trains for.
        step: How far the program of the first chapters has grown, from 1 on, for ppo.
    """
    name = name.replace("-", "_")
    if step is not None:
        words = f"step must be 1 to {len(STEPS)}, for ppo: only that grows in steps"
        if name != "ppo" or not 0 < step <= len(STEPS):
            raise ValueError(f"{words}, got {step} for {name}")
        name = STEPS[step - 1]
    text = program_path(name).read_text("utf-8").partition("\n")[2]
    defaults = {"env": env, "seed": seed, "total-steps": total_steps}
    for option, value in defaults.items():
        if value is None:
            continue
        flag = f"--{option}"
        # It stands in the call that the first lines show, and where it is read.
        for before, after, new in (
            (rf"{flag} ", r"\S+", str(value)),
            (rf'"{flag}",.* default=', r".+(?=\))", json.dumps(value)),
        ):
            old = re.findall(before + after, text)[0]
            text = text.replace(old, re.findall(before, old)[0] + new)
    return text


def run_program(
    name: str,
    env: str | None = None,
    seed: int | None = None,
    total_steps: int | None = None,
    **settings: float,
) -> dict[str, Any]:
    """Run a program, without what it prints; return its global names.

    Args:
        name: Its name, such as ``"ppo"``.
        env: Environment; None means the program's own, as for the others.
        seed: Seed.
        total_steps: How many steps to train for.
        settings: Numbers that it shall have instead of its own: ``clip_ratio=0.1``.

    Raises:
        ValueError: If there is no such program, or if it has no such setting.
    """
    # Who only copies a program need not wait for torch to be imported.
    from literate_rl.ground.networks import randomness_kept

    path = program_path(name)
    # The settings stand together, right below the line with seed and steps.
    above, own, below = re.split(
        r"^(env_id, .+\n(?:[a-z_, ]+ = .+\n)*)", path.read_text("utf-8"), flags=re.M
    )
    for setting, value in settings.items():
        if not re.search(rf"\b{setting}\b", own):
            raise ValueError(f"the program {name!r} has no setting {setting!r}")
        own += f"{setting} = {value!r}\n"
    code = compile(above + own + below, path, "exec")
    options = {"env": env, "seed": seed, "total-steps": total_steps}
    given = [f"--{name}={x}" for name, x in options.items() if x is not None]
    made = {"__name__": "__main__"}
    with (
        mock.patch.object(sys, "argv", [str(path), *given]),
        redirect_stdout(io.StringIO()),
        randomness_kept(),
    ):
        exec(code, made)
    return made


def drawn_batches(
    name: str, total_steps: int
) -> tuple[list[tuple[Any, Any]], dict[str, Any]]:
    """Run a program that learns from a buffer; return what it drew.

    Args:
        name: Its name, such as ``"sac"``.
        total_steps: How many steps to train for.

    Returns:
        Each batch with the state of the generator right after its draw, and the
        program's global names at the end.
    """
    from literate_rl.data.replay import ReplayBuffer

    drawn, sample = [], ReplayBuffer.sample

    def noted(self: Any, size: int, generator: Any, *rest: Any, **more: Any) -> Any:
        batch = sample(self, size, generator, *rest, **more)
        drawn.append((batch, generator.get_state()))
        return batch

    with mock.patch.object(ReplayBuffer, "sample", noted):
        names = run_program(name, total_steps=total_steps)
    return drawn, names


class Source(NamedTuple):
    """A piece of the package's code, which shows itself in a notebook.

    Attributes:
        name: What it is called there, such as ``OffPolicy.learn``.
        module: Where it is defined.
        code: Its lines.
    """

    name: str
    module: str
    code: str

    def __repr__(self) -> str:
        return self.code

    def _repr_markdown_(self) -> str:
        where = "`" + "` of `".join([self.name, self.module]) + "`"
        return "\n".join(["```python", self.code + "```", where])


def source(thing: Any) -> Source:
    """Return the code of a function, a method or a class; of a program by its name."""
    if isinstance(thing, str):
        text = (
            program_path(thing).read_text("utf-8").partition("import argparse\n\n")[2]
        )
        defaults = ", ".join(re.findall(r"default=(.+)\)", text))
        line = f"env_id, seed, total_steps = {defaults}\n"
        text = re.sub(r"parser = [\s\S]+\nenv_id, .+\n", line, text)
        return Source(f"{thing}.py", "literate_rl.programs", text)
    thing = inspect.unwrap(thing)
    if not thing.__module__.startswith("literate_rl."):
        raise ValueError(
            f"only code of the package can be shown, {thing.__qualname__} is defined "
            f"in {thing.__module__}"
        )
    code = textwrap.dedent(inspect.getsource(thing))
    return Source(thing.__qualname__, thing.__module__, code)

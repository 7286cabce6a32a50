"""What the command line offers: at once, in words that are true."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from check import ROOT
from gymnasium import spaces

from literate_rl.apps import commands
from literate_rl.apps.commands import OFFERED, OTHERS, main, overview
from literate_rl.apps.training import ALGORITHMS


def test_each_algorithm_is_offered_with_a_chapter() -> None:
    assert OFFERED.keys() == ALGORITHMS.keys()
    for offer in OFFERED.values():
        assert (ROOT / f"chapters/{offer.chapter}.py").exists()


SEEN = spaces.Box(-1, 1, (3,))
BOX = spaces.Box(-1, 1, (2,))
KINDS: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(3),
    "Box": BOX,
    "choices": spaces.MultiDiscrete([2, 3]),
    "hybrid": spaces.Tuple((spaces.Discrete(2), spaces.Tuple((BOX, BOX)))),
}


@pytest.mark.parametrize("name", OFFERED)
def test_the_actions_are_those_that_an_algorithm_takes(name: str) -> None:
    known, taken = ALGORITHMS[name], set()
    for kind, actions in KINDS.items():
        try:
            known.policy(SEEN, actions, known.config())
            taken.add(kind)
        except (TypeError, ValueError):
            pass
    assert OFFERED[name] == (known.purpose, known.actions, known.chapter)
    words = known.actions
    assert taken == (KINDS.keys() if words == "all kinds" else {*words.split(", ")})


def test_the_overview_fits_a_terminal_and_has_four_examples() -> None:
    lines = overview().splitlines()
    assert max(map(len, lines)) <= 80
    for name in OFFERED:
        assert any(line.startswith(f"  {name} ") for line in lines)
    assert sum(line.startswith("  literate-rl ") for line in lines) == 4


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_imports_no_torch_and_comes_at_once(arguments: list[str]) -> None:
    code = (
        "import sys; from literate_rl.__main__ import main; main(); "
        "assert not {'torch', 'numpy', 'gymnasium'} & sys.modules.keys()"
    )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True
        )
        seconds.append(time.perf_counter() - start)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == overview() + "\n"
    assert min(seconds) < 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [("sarsa", ""), ("PPO", "is it ppo?"), ("rainbw", "is it rainbow?"), ("", "")],
)
def test_what_is_no_command_is_said(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert f"there is no command {name!r}: {hint}" in err


def test_a_further_command_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []
    module = SimpleNamespace(main=got.append)
    monkeypatch.setitem(sys.modules, "other_commands", module)  # type: ignore[arg-type]
    line = ("other_commands", "does something else")
    monkeypatch.setitem(OTHERS, "other", line)
    main(["other", "--a", "b"])
    assert got == [["--a", "b"]]
    assert "  other        does something else" in overview().splitlines()


def test_algorithms_get_all_words(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []
    monkeypatch.setitem(sys.modules, commands.TRAIN, SimpleNamespace(main=got.append))  # type: ignore[arg-type]
    for name in (*OFFERED, "apex"):
        main([name, "--seed", "3"])
        assert got.pop() == [name, "--seed", "3"]


def test_a_script_finds_the_modules_of_its_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """As python -m does; but no file there takes the place of a library."""
    code = (
        "import sys; sys.path = [x for x in sys.path if x]; "
        "from literate_rl.__main__ import main; main(); import os; "
        "assert sys.path[-1] == os.getcwd(); import mine_here"
    )
    (tmp_path / "mine_here.py").write_text("")
    (tmp_path / "typing.py").write_text("raise SystemExit('ours')")
    command = [sys.executable, "-P", "-c", code, "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

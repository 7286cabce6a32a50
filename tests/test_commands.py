"""What the command line offers: at once, in words that are true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from check import ROOT
from gymnasium import spaces

from literate_rl.apps.commands import OFFERED, main, overview
from literate_rl.apps.training import ALGORITHMS

SEEN = spaces.Box(-1, 1, (3,))
BOX = spaces.Box(-1, 1, (2,))
KINDS = {
    "Discrete": spaces.Discrete(3),
    "Box": BOX,
    "choices": spaces.MultiDiscrete([2, 3]),
    "hybrid": spaces.Tuple((spaces.Discrete(2), spaces.Tuple((BOX, BOX)))),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_is_offered_with_its_chapter_and_its_actions(name):
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
    assert (ROOT / f"chapters/{known.chapter}.py").exists()
    lines = overview().splitlines()
    assert any(line.startswith(f"  {name} ") for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help_imports_nothing_large(words, tmp_path):
    """Modules are found here, and no file takes the place of a library."""
    code = (
        "import sys; sys.path = [x for x in sys.path if x]; "
        "from literate_rl.__main__ import main; main(); import os; "
        "assert not {'torch', 'numpy', 'gymnasium'} & sys.modules.keys(); "
        "assert sys.path[-1] == os.getcwd(); import mine_here"
    )
    (tmp_path / "mine_here.py").write_text("")
    (tmp_path / "typing.py").write_text("raise SystemExit('ours')")
    command = [sys.executable, "-P", "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == overview() + "\n"


def test_what_is_no_command_is_said(capsys):
    for name, hint in (("sarsa", ""), ("PPO", "is it ppo?")):
        with pytest.raises(SystemExit) as ended:
            main([name])
        assert ended.value.code == 2
        assert f"there is no command {name!r}: {hint}" in capsys.readouterr().err


def test_apex_says_which_learner_its_actors_work_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(
        ["apex", "--algorithm=ddpg", "--env=Pendulum-v1", "--total-steps=1", "--name=a"]
    )
    settings = json.loads(Path("runs/a/settings.json").read_text())
    assert settings["algorithm"] == "ddpgapex"

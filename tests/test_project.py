"""The files around the book: they agree on versions, and its types can be checked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib

import release
import yaml
from check import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def test_all_agree_on_the_versions_of_python():
    prefix = "Programming Language :: Python :: "
    listed = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if prefix in c]
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    assert ci["jobs"]["test"]["strategy"]["matrix"]["python-version"] == listed
    first, last = (int(listed[k].split(".")[1]) for k in (0, -1))
    assert PROJECT["requires-python"] == f">=3.{first},<3.{last + 1}"
    assert f"(3, {first}) <= sys.version_info < (3, {last + 1})" in MAKEFILE
    assert f"for version in {' '.join(listed[1:])};" in MAKEFILE
    assert f"newest=$(.ci/python {listed[-1]})" in (ROOT / ".ci/run").read_text("utf-8")


CALLS = """
from literate_rl import fit, load, train
agent = train("DQN", "CartPole-v1", total_steps=1, qnet=nn.Linear(4, 2))
train("DQN", "CartPole-v1", total_stepz=1)  # no such option
train("DQN", "CartPole-v1", gamma="0.9")  # a number
train("DQN", "CartPole-v1", qnet=3)  # a network
load("run", qnet=nn.Linear(4, 2)).eval().act(torch.zeros(1, 4), 0.0)
load("run", qnett=nn.Linear(4, 2))  # no such model
for policy in (load("run"), agent.policy):
    policy.act(torch.zeros(1, 4), 0.0).argmax()
    policy.noise(1, 1, torch.Generator()).mean()
    policy.actt(torch.zeros(1, 4), 0.0)  # no such method
fit(agent.learner)[0]["step"].is_integer()
fit(agent.policy)  # no learner
agent.learner.config.total_stepz  # no such setting
agent.save("here").exits()  # a path
"""


def test_a_type_checker_sees_what_is_misspelt(tmp_path):
    """Each line with a comment is wrong, and no other."""
    file = tmp_path / "calls.py"
    file.write_text("import torch\nfrom torch import nn\n" + CALLS)
    command = [sys.executable, "-m", "mypy", "--no-pretty", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = {int(line.split(":")[1]) for line in done.stdout.splitlines()[:-1]}
    lines = enumerate(file.read_text().splitlines(), 1)
    assert said == {number for number, line in lines if "#" in line}, done.stdout


def test_the_version_is_the_same_everywhere():
    assert set(release.versions().values()) == {PROJECT["version"]}
    assert not [*release.problems()]


def test_a_release_needs_its_own_tag_and_a_heading_of_the_changelog(tmp_path):
    for name in release.versions():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    version, changes = PROJECT["version"], tmp_path / "CHANGELOG.md"
    for text, tag, said in (
        ("## Unreleased\n", f"v{version}", "CHANGELOG.md"),
        (f"## {version} (some day)\n", "v9.8.7", "v9.8.7"),
        (f"## {version} (some day)\n", f"v{version}", ""),
    ):
        changes.write_text(text, "utf-8")
        assert said in "".join(release.problems(tag, tmp_path))
    assert not [*release.problems(tag, tmp_path)]

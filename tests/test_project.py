"""The files around the book: CI, forms, citation. They call the Makefile and agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import release
import yaml
from check import ROOT

from literate_rl.apps.training import ALGORITHMS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PRE_COMMIT = ROOT / ".pre-commit-config.yaml"
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
MAKE = re.compile(r"make ([a-z]+)( [A-Z]+=\S.*)?")


def read(path: Path) -> Any:
    """Return what a YAML file holds."""
    return yaml.safe_load(path.read_text("utf-8"))


def steps(workflow: Any) -> list[dict[str, Any]]:
    """Return the steps of all jobs."""
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands() -> list[tuple[str, str]]:
    """Return (file, command) of all that CI and git run."""
    found = [
        (path.name, step["run"])
        for path in WORKFLOWS
        for step in steps(read(path))
        if "run" in step
    ]
    hooks = [hook for repo in read(PRE_COMMIT)["repos"] for hook in repo["hooks"]]
    return found + [(PRE_COMMIT.name, hook["entry"]) for hook in hooks]


def test_ci_and_git_call_the_makefile_and_nothing_else():
    assert len(commands()) >= 6
    for name, command in commands():
        called = MAKE.fullmatch(command.strip())
        assert called, f"{name}: {command}"
        assert called[1] in TARGETS, f"{name}: the Makefile has no target {called[1]}"


def test_each_target_is_phony_and_described():
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == TARGETS
    assert set(re.findall(r"^([a-z]+):.*## \S", MAKEFILE, re.MULTILINE)) == TARGETS


def test_all_agree_on_the_versions_of_python():
    prefix = "Programming Language :: Python :: "
    listed = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if prefix in c]
    matrix = read(WORKFLOWS[0])["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python-version"] == listed
    minors = [int(version.split(".")[1]) for version in listed]
    assert minors == [*range(minors[0], minors[-1] + 1)]
    assert PROJECT["requires-python"] == f">=3.{minors[0]},<3.{minors[-1] + 1}"
    bounds = f"(3, {minors[0]}) <= sys.version_info < (3, {minors[-1] + 1})"
    assert bounds in MAKEFILE
    assert f"for version in {' '.join(listed[1:])};" in MAKEFILE
    assert f"newest=$(.ci/python {listed[-1]})" in (ROOT / ".ci/run").read_text("utf-8")
    for path in WORKFLOWS[1:]:
        for step in steps(read(path)):
            if "setup-python" in step.get("uses", ""):
                assert step["with"]["python-version"] in listed


def test_the_lowest_versions_are_those_of_the_bounds():
    command = re.search(r"\$\$\((sed .*)\)$", MAKEFILE, re.MULTILINE)[1]
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True
    )
    bounds = [re.sub(r",<.*", "", bound) for bound in PROJECT["dependencies"]]
    assert done.stdout.split() == [bound.replace(">=", "==") for bound in bounds]


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


def test_the_wheel_is_tried_with_every_algorithm():
    script = (ROOT / ".ci/wheel").read_text("utf-8")
    lists = re.findall(r"for algorithm in (.*); do", script)
    assert {name for each in lists for name in each.split()} == ALGORITHMS.keys()


def test_the_version_is_the_same_everywhere():
    assert set(release.versions().values()) == {PROJECT["version"]}
    assert not [*release.problems()]


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Return a folder with copies of the files that tell the version."""
    for name in (*release.versions(), "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_release_needs_its_own_tag_and_a_heading_of_the_changelog(copies):
    version = PROJECT["version"]
    changes = copies / "CHANGELOG.md"
    changes.write_text("# Changelog\n\n## Unreleased\n", "utf-8")
    (problem,) = release.problems(f"v{version}", copies)
    assert "CHANGELOG.md" in problem
    changes.write_text(f"# Changelog\n\n## {version} (some day)\n", "utf-8")
    assert not [*release.problems(f"v{version}", copies)]
    (problem,) = release.problems("v9.8.7", copies)
    assert "v9.8.7" in problem

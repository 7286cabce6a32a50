"""Runs of an old version load, are shown and go on, and nothing they kept is lost."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from old_runs import BUILT, COMMANDS, NAMES, RUNS, answers, models_of, settings_of
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from literate_rl import (
    Run,
    evaluate,
    fit,
    load,
    load_checkpoint,
    record_video,
    save_checkpoint,
    seed_everything,
)
from literate_rl.apps.cli import main

ANSWERS = json.loads((RUNS / "answers.json").read_text())
ALGORITHMS = "ppo ppg impala a2c a3c dqn dqnper rainbow ddpg ddpgper hddpg td3 sac"
ALGORITHMS += " dqnapex rainbowapex ddpgapex"
ONE_OF_EACH_MAKER = "ppo hybrid_ppo ppg dqn rainbow ddpg sac sac_discrete"
ONE_OF_EACH_MAKER += " own_a2c own_dqn"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk, and let nobody swing a pendulum for 200 steps."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(gym.spec("Pendulum-v1"), "max_episode_steps", 20)


def go_on(name: str, directory: Path) -> dict[str, Tensor]:
    """Resume a copy of a run until it is done; return the weights at its end."""
    seed_everything(1)  # the first weights of models of one's own
    if name in COMMANDS:
        settings = settings_of(name)
        own = [f"--{model}={where}" for model, where in settings["models"].items()]
        main([settings["algorithm"], f"--resume={directory}", *own])
    else:
        learner = BUILT[name][-1]()
        with Run(directory, resume=True) as run:
            run.restore(learner)
            fit(learner, run, progress=False)
    weights: dict[str, Tensor] = load(directory, **models_of(name)).state_dict()
    return weights


def table_of(directory: Path) -> list[dict[str, str]]:
    """Return the rows of a run's table without what a clock has measured."""
    with (directory / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{key: x for key, x in row.items() if key != "charts/SPS"} for row in rows]


def test_there_is_a_run_of_every_algorithm_that_the_old_version_had() -> None:
    assert {path.name for path in RUNS.iterdir() if path.is_dir()} == {*NAMES}
    assert {settings_of(name)["algorithm"] for name in NAMES} == {*ALGORITHMS.split()}


@pytest.mark.parametrize("name", NAMES)
def test_an_old_policy_acts_as_it_did(name: str) -> None:
    policy = load(RUNS / name, **models_of(name))
    said = {key: torch.tensor(x) for key, x in ANSWERS[name].items()}
    obs = said.pop("obs")
    says = {key: torch.tensor(x) for key, x in answers(policy, obs).items()}
    torch.testing.assert_close(says, said, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ONE_OF_EACH_MAKER.split())
def test_an_old_policy_is_filmed(name: str, tmp_path: Path) -> None:
    env, film = settings_of(name)["env"], tmp_path / "film.mp4"
    policy = load(RUNS / name, **models_of(name))
    (same,) = evaluate(policy, env, episodes=1, seed=3)
    assert record_video(policy, env, film, seed=3) == pytest.approx(same)
    assert film.exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_old_run_is_resumed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = Path(shutil.copytree(RUNS / name, tmp_path / name))
    before = Run(directory, resume=True)
    total = before.settings["config"]["total_steps"]
    assert before.settings == settings_of(name)
    assert 0 < before.saved < total

    go_on(name, directory)
    if name in COMMANDS:
        assert "return of 20 episodes" in capsys.readouterr().out
    after = Run(directory, resume=True)
    assert after.settings == before.settings
    assert after.saved == total
    # What stood in the table up to the checkpoint stays; what comes behind is new. What
    # nobody measured then is empty there.
    table, kept, old = table_of(directory), before.logged, table_of(RUNS / name)
    new = dict.fromkeys({*table[0]} - {*old[0]}, "")
    assert table[:kept] == [row | new for row in old[:kept]]
    assert int(table[-1]["step"]) == total
    assert after.logged == len(table) > kept
    # Had it begun anew, there would be no updates at first.
    for row in table[kept:]:
        assert all(x for key, x in row.items() if key.startswith("losses/"))


def parts_of(state: dict[str, Any], *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the paths to what a learner keeps."""
    for key, value in state.items():
        if key in ("learner", "ppo", "aux"):
            yield from parts_of(value, *path, key)
        # The first of these is tested above; the others only say when to save.
        elif key not in ("step", "iteration", "version"):
            yield (*path, key)
        # What the steps are worth, and which is the oldest.
        if key == "buffer" and "mass" in value:
            yield from ((*path, key, inside) for inside in ("mass", "head"))


def altered(part: Any) -> Any:
    """Return other numbers of the same kinds."""
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(part)):
        return tree_map(lambda number: number + 1, part)

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.dtype == torch.uint8:
            return torch.Generator().manual_seed(1234).get_state()
        return leaf + 0.5 if leaf.is_floating_point() else leaf

    return tree_map(other, part)


def with_altered(state: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return a state with another part at a path."""
    first, *rest = path
    part = state[first]
    return {**state, first: with_altered(part, (*rest,)) if rest else altered(part)}


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_needs_all_that_was_kept(name: str, tmp_path: Path) -> None:
    # If the buffer, say, were ignored, another one would lead to the same end.
    # Asked so, it needs no name of today's learners.
    end = go_on(name, Path(shutil.copytree(RUNS / name, tmp_path / "as_it_was")))
    state = load_checkpoint(RUNS / name / "checkpoint.pt")
    kept = [("policy", "weights"), *parts_of(state["learner"], "learner")]
    assert "optimizer" in [path[-1] for path in kept]
    for path in kept:
        directory = Path(shutil.copytree(RUNS / name, tmp_path / ".".join(path)))
        save_checkpoint(directory / "checkpoint.pt", with_altered(state, path))
        other = go_on(name, directory)
        assert any(not torch.equal(x, other[key]) for key, x in end.items()), path

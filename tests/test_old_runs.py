"""Runs of an old version load, are shown and go on, and nothing they kept is lost."""

import csv
import json
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

import old_runs
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from literate_rl import (
    IMPALA,
    PPO,
    PPGAlgorithm,
    Run,
    fit,
    flat_env,
    load,
    load_checkpoint,
    make_envs,
    save_checkpoint,
    seed_everything,
)
from literate_rl.apps import cli, training

RUNS = Path(__file__).with_name("runs")
ANSWERS = json.loads((RUNS / "answers.json").read_text())
# These keep what others here keep.
ALIKE = "dqn own_dqn ddpg own_ddpg own_sac own_impala own_ppo rainbowapex ddpgapex"
# These have smaller networks than the command line would give them.
BUILT = {"ppo": PPO, "hybrid_ppo": PPO, "ppg": PPGAlgorithm, "impala": IMPALA}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Wait for no disk, and evaluate nobody."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(cli, "report", lambda *told: None)


def settings_of(name):
    return json.loads((RUNS / name / "settings.json").read_text())


def loaded(name, directory=None):
    """Load the policy of a run, with fresh models of one's own."""
    models = settings_of(name)["models"].items()
    own = {key: vars(old_runs)[where.partition(":")[2]]() for key, where in models}
    return load(directory or RUNS / name, **own)


def go_on(name, directory):
    """Resume a copy of a run until it is done; return the weights at its end."""
    seed_everything(1)  # the first weights of models of one's own
    settings = settings_of(name)
    algorithm = settings["algorithm"]
    if name in BUILT:
        kind = training.ALGORITHMS[algorithm].config
        config = training.settings_of(kind, settings, directory)
        envs = make_envs(partial(flat_env, settings["env"]), config.num_envs)
        learner = BUILT[name](loaded(name).train(), envs, config)
        with Run(directory, resume=True) as run:
            run.restore(learner)
            fit(learner, run, progress=False)
    else:
        own = [f"--{model}={where}" for model, where in settings["models"].items()]
        cli.main([algorithm, f"--resume={directory}", *own])
    return loaded(name, directory).state_dict()


def table_of(directory):
    """Return the rows of a run's table without what a clock has measured."""
    with (directory / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{key: x for key, x in row.items() if key != "charts/SPS"} for row in rows]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_old_policy_acts_as_it_did(name):
    policy = loaded(name)
    said = {key: torch.tensor(x) for key, x in ANSWERS[name].items()}
    obs, says = said.pop("obs"), {}
    for key, question in {
        "row": policy,
        "value": getattr(policy, "value", None),
    }.items():
        # Not every network has a value, and not every policy a row.
        with torch.no_grad(), suppress(AttributeError, NotImplementedError):
            says[key] = question(obs)
    says["action"] = policy.act(obs, 0.0)
    torch.testing.assert_close(says, said, rtol=1e-4, atol=1e-6, check_dtype=False)


def parts_of(state, *path):
    """Yield the paths to what a learner keeps."""
    for key, value in state.items():
        if key in ("learner", "ppo", "aux"):
            yield from parts_of(value, *path, key)
        # The first of these is tested by the table; the others only say when to save.
        elif key not in ("step", "iteration", "version"):
            yield (*path, key)
        # What the steps are worth, and which is the oldest.
        if key == "buffer" and "mass" in value:
            yield from ((*path, key, inside) for inside in ("mass", "head"))


def altered(part):
    """Return other numbers of the same kinds."""
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(part)):
        return tree_map(lambda number: number + 1, part)

    def other(leaf):
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.dtype == torch.uint8:
            return torch.Generator().manual_seed(1234).get_state()
        return leaf + 0.5 if leaf.is_floating_point() else leaf

    return tree_map(other, part)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_old_run_is_resumed_and_needs_all_that_was_kept(name, tmp_path):
    directory = Path(shutil.copytree(RUNS / name, tmp_path / "as_it_was"))
    before = Run(directory, resume=True)
    total = before.settings["config"]["total_steps"]
    assert 0 < before.saved < total
    end = go_on(name, directory)
    after = Run(directory, resume=True)
    assert after.settings == before.settings == settings_of(name)
    # What stood in the table up to the checkpoint stays; what comes behind is new. What
    # nobody measured then is empty there.
    table, kept, old = table_of(directory), before.logged, table_of(RUNS / name)
    new = dict.fromkeys({*table[0]} - {*old[0]}, "")
    assert table[:kept] == [row | new for row in old[:kept]]
    assert int(table[-1]["step"]) == after.saved == total
    assert len(table) > kept
    # Had it begun anew, there would be no updates at first.
    for row in table[kept:]:
        assert all(x for key, x in row.items() if key.startswith("losses/"))

    if name in ALIKE.split():
        return
    # If the buffer, say, were ignored, another one would lead to the same end.
    # Asked so, it needs no name of today's learners.
    learner = load_checkpoint(RUNS / name / "checkpoint.pt")["learner"]
    paths = [("policy", "weights"), *parts_of(learner, "learner")]
    assert "optimizer" in [path[-1] for path in paths]
    for path in paths:
        directory = Path(shutil.copytree(RUNS / name, tmp_path / ".".join(path)))
        state = load_checkpoint(directory / "checkpoint.pt")
        *way, last = path
        part = state
        for key in way:
            part = part[key]
        part[last] = altered(part[last])
        save_checkpoint(directory / "checkpoint.pt", state)
        other = go_on(name, directory)
        assert any(not torch.equal(x, other[key]) for key, x in end.items()), path

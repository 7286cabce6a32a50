"""Refactorings change nothing: short trainings come to what they came to before."""

import json

import pytest
import torch
from net import CASES, NAMES, RECORD, boil_down, play

from benchmarks import store
from literate_rl.apps.training import ALGORITHMS

# Where fast and plain forms come to the same numbers, one training stands for both.
RECORDED = json.loads(RECORD.read_text())
DIFFERENT = {json.dumps(RECORDED[name]): name for name in reversed(NAMES)}.values()


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_short_training_comes_to_what_was_recorded(name):
    recorded, now = RECORDED[name], play(name)
    assert recorded.keys() <= now.keys()
    for part in recorded:
        # Another processor rounds differently, and twenty updates carry that on.
        torch.testing.assert_close(
            torch.tensor(boil_down(now[part]), dtype=torch.float64),
            torch.tensor(recorded[part], dtype=torch.float64),
            rtol=1e-4,
            atol=3e-4,
            msg=lambda text, part=part: f"{part}: {text}",
        )


def test_every_algorithm_is_in_the_net():
    # The others are these with another setting.
    same = {"dqnper", "ddpgper"}
    assert {case.algorithm for case in CASES.values()} == ALGORITHMS.keys() - same


def test_runs_of_an_algorithm_that_computes_other_numbers_are_stale(
    tmp_path, monkeypatch
):
    before, numbers = store.nets()["PPO"], json.loads(RECORD.read_text())
    monkeypatch.setattr(store, "NET", tmp_path / "net.json")
    numbers["PPO, fast"]["metric that is new"] = [1.0]
    for part, stale in (("metric losses/entropy", False), ("policy", True)):
        numbers["PPO, fast"][part] = [0.0]
        store.NET.write_text(json.dumps(numbers))
        store.nets.cache_clear()
        assert store.is_stale({"net": before}) is stale
    assert not store.is_stale({"net": store.nets()["DQN"]})
    store.nets.cache_clear()

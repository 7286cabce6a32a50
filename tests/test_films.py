"""Films: which episodes are shown, and what a second run of them does."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import films
from benchmarks.store import read_table


def test_the_episodes_shown_are_spread_over_the_returns():
    hundred = np.random.default_rng(0).permutation(100).astype(float)
    spread = [hundred[k] for k in films.in_the_middle(hundred, 4)]
    assert spread == [12.0, 37.0, 62.0, 87.0]


def test_a_run_goes_on_and_the_table_keeps_the_other_films(tmp_path, monkeypatch):
    monkeypatch.setattr(films, "EPISODES", 2)
    for name in ("WORK", "FILMS"):
        monkeypatch.setattr(films, name, tmp_path / name.lower())
    monkeypatch.setattr(films, "TABLE", tmp_path / "films.csv")
    experiment = films.EXPERIMENTS["cartpole"]
    short = replace(experiment, config=replace(experiment.config, total_steps=512))
    monkeypatch.setitem(films.EXPERIMENTS, "cartpole", short)
    film = films.FILMED["cartpole"]
    row = films.make("cartpole", film)
    films.store([row], "test")
    films.store([row | {"film": "pendulum"}], "test")
    table, origin = read_table(tmp_path / "films.csv")
    assert [row["film"] for row in table] == ["cartpole", "pendulum"]
    assert origin["episodes"] == "2"
    assert (row["steps"], row["seed"]) == ("512", "1")

    # Again: nothing is trained, and the same is shown.
    monkeypatch.setattr(films, "fit", lambda learner, run, progress: None)
    assert films.make("cartpole", film) == row
    longer = replace(short, config=replace(short.config, total_steps=1024))
    monkeypatch.setitem(films.EXPERIMENTS, "cartpole", longer)
    with pytest.raises(ValueError, match="other settings"):
        films.make("cartpole", film)

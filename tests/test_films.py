"""Films: which episodes are shown, and how their frames are set."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import films
from benchmarks.store import read_table


def test_the_episode_shown_is_the_one_in_the_middle():
    values = np.array([5.0, 1.0, 3.0, 2.0, 4.0])
    assert [values[k] for k in films.in_the_middle(values, 1)] == [3.0]
    hundred = np.random.default_rng(0).permutation(100).astype(float)
    spread = [hundred[k] for k in films.in_the_middle(hundred, 4)]
    assert spread == [12.0, 37.0, 62.0, 87.0]


def test_frames_are_set_before_and_after_and_repeated_after_a_rest():
    white = [np.full((4, 4, 3), 255, np.uint8)]
    black = [np.zeros((4, 4, 3), np.uint8), *[np.ones((4, 4, 3), np.uint8)] * 2]
    assert [x[0, 0, 0] for x in films.looped(black[:2], 2, 6)] == [0, 1, 1, 1, 0, 1]
    frames, once = films.film_of([white, black], films.Film("x"), fps=10.0)
    assert (len(once), len(frames)) == (3, 3 + round(10 * films.REST))
    assert frames[1].shape == (4, 8 + films.GAP, 3)
    assert (frames[1][:, :4] == 255).all()
    assert (frames[1][:, -4:] == 1).all()


@pytest.mark.parametrize("shape", [(400, 600), (600, 400), (224, 224)])
def test_a_light_frame_gets_the_dark_ground_and_keeps_its_hue(shape):
    frame = np.full((*shape, 3), 255, np.uint8)
    frame[shape[0] // 2 - 60 : shape[0] // 2 + 60, :] = (200, 60, 40)
    picture = films.dressed(frame, films.Film("x"), 100)
    assert picture.shape == (100, 100, 3)
    assert np.abs(picture[0, 0] - films.GROUND).max() < 3
    red, green, blue = picture[50, 50].astype(int)
    assert red > max(100, green, blue)


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
    names = {path.name for path in (tmp_path / "films").iterdir()}
    assert names == {"cartpole.mp4", "cartpole.png"}

    # Again: nothing is trained, and the same is shown.
    monkeypatch.setattr(films, "fit", lambda learner, run, progress: None)
    assert films.make("cartpole", film) == row
    longer = replace(short, config=replace(short.config, total_steps=1024))
    monkeypatch.setitem(films.EXPERIMENTS, "cartpole", longer)
    with pytest.raises(ValueError, match="other settings"):
        films.make("cartpole", film)


def test_the_runs_are_those_of_the_results_page():
    for name, film in films.FILMED.items():
        experiment = films.EXPERIMENTS[film.experiment]
        assert film.variant in experiment.variants, name
        assert (films.learning.LEARNING / f"{film.experiment}.csv").exists(), name

"""The agents that come with the package: each is as good as its row says."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from literate_rl import (
    Run,
    evaluate,
    load,
    load_env,
    save_checkpoint,
    trained_agents,
)
from literate_rl.apps import trained
from literate_rl.apps.commands import OFFERED
from literate_rl.apps.trained import main
from literate_rl.ground.nests import as_space
from literate_rl.runs import runs

AGENTS = trained_agents()


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_as_good_as_it_was(name: str) -> None:
    """The first of its episodes again; another processor rounds otherwise."""
    agent, policy = AGENTS[name], load(name)
    assert load_env(name) == agent.env
    assert np.mean(agent.returns) == pytest.approx(agent.score, rel=1e-4)
    returns = evaluate(policy, agent.env, 20, agent.evaluation_seed)
    assert returns.mean() == pytest.approx(np.mean(agent.returns[:20]), rel=0.05)


def test_there_is_one_for_each_algorithm_that_learns_without_actors() -> None:
    kinds = {name.partition("-")[2] for name in AGENTS}
    variants = {name for name in OFFERED if name.endswith(("per", "apex"))}
    assert kinds == OFFERED.keys() - variants - {"impala", "a3c"} | {
        "discrete-sac",
        "hybrid-ppo",
    }
    assert len(AGENTS) == 12  # two of PPO: one knows masks
    files = [path for path in runs.trained_folder().rglob("*") if path.is_file()]
    assert len(files) == 2 * len(AGENTS)
    assert sum(path.stat().st_size for path in files) < 5e6


@pytest.mark.parametrize("read", [load, load_env])
def test_a_name_that_nobody_has_is_answered_with_all(read, away: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        read("pendulum-sca")
    assert "pendulum-sac" in str(error.value)
    assert all(name in str(error.value) for name in AGENTS)
    with pytest.raises(FileNotFoundError, match="no checkpoint") as error:
        load("mine/pendulum-sac")  # a path is no name
    assert "taxi-ppo" not in str(error.value)


def test_what_is_here_under_that_name_comes_first(away: Path) -> None:
    policy = load("cartpole-a2c")
    state = {"recipe": policy.recipe, "weights": policy.state_dict()}
    (away / "pendulum-sac").mkdir()
    save_checkpoint(away / "pendulum-sac/checkpoint.pt", {"policy": state})
    assert load("pendulum-sac").recipe == policy.recipe
    assert load(Path("taxi-ppo")).recipe != policy.recipe


def test_a_damaged_agent_is_refused(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "trained"
    shutil.copytree(runs.trained_folder() / "pendulum-sac", folder / "pendulum-sac")
    file = folder / "pendulum-sac/checkpoint.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr(runs, "trained_folder", lambda: folder)
    with pytest.raises(ValueError, match=r"the checksum of .* is wrong"):
        load("pendulum-sac")


def test_an_agent_is_no_run_that_could_go_on() -> None:
    with pytest.raises(ValueError, match="comes from no run"):
        Run(runs.trained_folder() / "pendulum-sac", resume=True)


@pytest.mark.parametrize("words", [[], ["--list"]])
def test_the_command_lists_them_with_task_and_score(words, capsys) -> None:
    main(words)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["agent", "return", "steps", "environment"]
    for line, (name, agent) in zip(lines, AGENTS.items(), strict=True):
        score, steps = f"{agent.score:.2f}", f"{agent.steps:,}"
        assert line.split() == [name, score, steps, agent.env]
    assert max(map(len, lines)) <= 80


def test_the_command_lets_one_play(away: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(trained, "has_screen", lambda: True)
    shown = []
    monkeypatch.setattr(trained, "show", lambda *words: shown.append(words[1:]))
    main(["pendulum-sac", "--episodes", "3", "--seed", "5"])
    assert shown == [("Pendulum-v1", 5)]
    row, then, now, _ = capsys.readouterr().out.splitlines()
    assert row == (
        "pendulum-sac: Pendulum-v1, 10,000 steps (SAC in sac_pendulum, seed 2)"
    )
    assert then == f"return of 100 episodes then: {AGENTS['pendulum-sac'].score:.2f}"
    returns = evaluate(load("pendulum-sac"), "Pendulum-v1", 3, seed=5)
    mean = f"{returns.mean():.2f} ± {np.std(returns):.2f}"
    assert now == f"return of 3 episodes now: {mean}"


def test_the_command_films_a_run_of_ones_own(away: Path, capsys) -> None:
    """A directory takes the place of a name; the film is where the user is."""
    policy = load("taxi-ppo")
    state = {"recipe": policy.recipe, "weights": policy.state_dict()}
    Run(away / "pendulum-sac", {"env": "Taxi-v4"}).close()
    save_checkpoint(away / "pendulum-sac/checkpoint.pt", {"policy": state})
    main(["pendulum-sac", "--episodes", "1", "--film"])
    now, film = capsys.readouterr().out.splitlines()
    assert now.startswith("return of 1 episodes now: ")
    assert film == "one episode:   pendulum-sac.mp4"
    assert (away / "pendulum-sac.mp4").stat().st_size > 1000


def test_the_command_says_in_a_line_what_is_wrong(away: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pendulum-sarsa"])
    assert str(ended.value.code).startswith("error: there is no checkpoint")
    assert "\n" not in str(ended.value.code)


@pytest.mark.parametrize("name", AGENTS)
def test_all_but_sac_say_what_they_expect_by_one_method(name: str) -> None:
    policy = load(name)
    space = as_space(policy.recipe[1]["observation_space"])
    obs = torch.zeros(1, spaces.flatdim(space))
    if "sac" in name:
        assert hasattr(policy, "critics")
    else:
        assert policy.value(obs).isfinite().all()

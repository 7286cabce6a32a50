"""The agents that come with the package: each is as good as its row says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from literate_rl import (
    Run,
    evaluate,
    load,
    load_env,
    save_checkpoint,
    trained_agents,
)
from literate_rl.apps import trained
from literate_rl.apps.commands import main
from literate_rl.runs import runs

AGENTS = trained_agents()


@pytest.fixture
def away(tmp_path, monkeypatch):
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_as_good_as_it_was(name):
    """The first of its episodes again; another processor rounds otherwise."""
    agent = AGENTS[name]
    assert load_env(name) == agent.env
    assert np.mean(agent.returns) == pytest.approx(agent.score, rel=1e-4)
    returns = evaluate(load(name), agent.env, 20, agent.evaluation_seed)
    assert returns.mean() == pytest.approx(np.mean(agent.returns[:20]), rel=0.05)


@pytest.mark.parametrize("read", [load, load_env])
def test_a_name_that_nobody_has_is_answered_with_all(read, away):
    with pytest.raises(FileNotFoundError) as error:
        read("pendulum-sca")
    assert all(name in str(error.value) for name in AGENTS)
    with pytest.raises(SystemExit, match=r"^error: there is no checkpoint.*$"):
        main(["show", "pendulum-sarsa"])


def test_what_is_here_under_that_name_comes_first_and_is_filmed_here(away, capsys):
    policy = load("taxi-ppo")
    state = {"recipe": policy.recipe, "weights": policy.state_dict()}
    Run(away / "pendulum-sac", {"env": "Taxi-v4"}).close()
    save_checkpoint(away / "pendulum-sac/checkpoint.pt", {"policy": state})
    assert load("pendulum-sac").recipe == policy.recipe
    assert load(Path("cartpole-a2c")).recipe != policy.recipe
    main(["show", "pendulum-sac", "--episodes", "1", "--film"])
    assert "one episode:   pendulum-sac.mp4\n" in capsys.readouterr().out
    assert (away / "pendulum-sac.mp4").stat().st_size > 1000


def test_an_agent_is_no_run_that_could_go_on():
    with pytest.raises(ValueError, match="comes from no run"):
        Run(runs.trained_folder() / "pendulum-sac", resume=True)


def test_the_command_lists_them_with_task_and_score(capsys):
    main(["show"])
    _, *lines = capsys.readouterr().out.splitlines()
    for line, (name, agent) in zip(lines, AGENTS.items(), strict=True):
        score, steps = f"{agent.score:.2f}", f"{agent.steps:,}"
        assert line.split() == [name, score, steps, agent.env]


def test_the_command_lets_one_play(away, capsys, monkeypatch):
    monkeypatch.setattr(trained, "has_screen", lambda: True)
    shown = []
    monkeypatch.setattr(trained, "show", lambda *words: shown.append(words[1:]))
    main(["show", "pendulum-sac", "--episodes", "3", "--seed", "5"])
    assert shown == [("Pendulum-v1", 5)]
    returns = evaluate(load("pendulum-sac"), "Pendulum-v1", 3, seed=5)
    mean = f"{returns.mean():.2f} ± {np.std(returns):.2f}"
    assert f"return of 3 episodes now: {mean}\n" in capsys.readouterr().out

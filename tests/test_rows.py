"""Rows: an algorithm in one file, and what users ask of a training."""

import csv
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
import torch

from literate_rl import load, train
from literate_rl.apps.cli import parse
from literate_rl.apps.commands import main as command
from literate_rl.apps.training import FORMS
from literate_rl.ground.nests import remembered
from literate_rl.ground.rows import (
    ALGORITHMS,
    MAKERS,
    Slot,
    by_settings,
    maker_named,
    register,
)
from literate_rl.learners.dqn import ROW, make_q_policy
from literate_rl.learners.ppo import ppo_settings
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import load_checkpoint

CARTPOLE = "CartPole-v1"
OWN = '''
"""Munchausen DQN (Vieillard et al. 2020), an algorithm in one file."""
from dataclasses import dataclass

import torch
from torch.nn.functional import smooth_l1_loss

from literate_rl import DQNConfig, OffPolicy, make_q_policy
from literate_rl.learners.dqn import ROW, QLearning
from literate_rl.learners.loop import QError
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.rows import LISTED, Row, by_settings


@dataclass(frozen=True)
class MunchausenConfig(DQNConfig):
    """Settings: those of DQN, and temperature, weight and bound of the bonus."""

    temperature: float = 0.03
    weight: float = 0.9
    bound: float = -1.0


class MunchausenQ(QLearning):
    def error(self, batch, generator):
        config, tau = self.config, self.config.temperature
        action = batch.action.unsqueeze(-1)
        with torch.no_grad(), eval_mode(self.policy):
            network = self.target.network
            here, there = network(batch.obs), network(batch.next_obs)
            log_pi = (here / tau).log_softmax(-1).gather(-1, action).squeeze(-1)
            bonus = config.weight * (tau * log_pi).clamp(min=config.bound)
            log_next = (there / tau).log_softmax(-1)
            soft = (log_next.exp() * (there - tau * log_next)).sum(-1)
            target = batch.reward + bonus + batch.discount * soft
        q = self.policy(batch.obs).gather(-1, action).squeeze(-1)
        loss = smooth_l1_loss(q, target, reduction="none")
        return QError(loss, target - q.detach(), q.detach())


def munchausen(policy, envs, config, **forms):
    return OffPolicy(MunchausenQ(policy, config), envs, config, **forms)


def make_own_q_policy(seen, done, hidden=64):
    return make_q_policy(seen, done, hidden)


Munchausen = Row(
    "Munchausen", "DQN with a bonus for likely actions", LISTED, MunchausenConfig,
    by_settings(make_q_policy), munchausen, contract="dqn", forms=("act",),
)
'''
SMALL: dict[str, Any] = {"learning_starts": 100, "iteration_steps": 200, "hidden": 16}
PPO: dict[str, Any] = {"num_envs": 2, "num_steps": 64, "checkpoint_interval": 4}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the file, and forget afterwards what it has registered."""
    monkeypatch.chdir(tmp_path)
    Path("mdqn.py").write_text(OWN)
    known, makers = dict(ALGORITHMS), dict(MAKERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import mdqn

    yield mdqn
    for table, before in ((ALGORITHMS, known), (MAKERS, makers)):
        table.clear()
        table.update(before)
    del sys.modules["mdqn"]


def weights(policy: Any) -> list[np.ndarray]:
    return [x.numpy() for x in policy.state_dict().values()]


def same(one: Any, other: Any) -> bool:
    return all(map(np.array_equal, weights(one), weights(other)))


def test_an_algorithm_in_one_file_trains_loads_resumes_and_predicts(own):
    agent = train(own.Munchausen, CARTPOLE, total_steps=400, progress=False, **SMALL)
    kept = agent.save("kept")
    assert json.loads((kept / "settings.json").read_text())["algorithm"] == "munchausen"
    assert same(load(kept), agent.policy)
    obs = np.zeros((3, 4), np.float32)
    assert agent.predict(obs).shape == (3,)
    longer = train("mdqn.py:Munchausen", resume=kept, total_steps=800, progress=False)
    assert longer.learner.step == 800
    again = train("Munchausen", CARTPOLE, total_steps=400, progress=False, **SMALL)
    assert same(again.policy, agent.policy)
    few = {"total_steps": 200, "progress": False, **SMALL}
    mine = train(own.Munchausen, CARTPOLE, qnet=torch.nn.Linear(4, 2), **few)
    assert mine.learner.step == 200


def test_it_has_a_command_line(own, capsys):
    words = "--learning-starts 100 --iteration-steps 200 --hidden 16 --bound -0.5"
    words += " --eval-interval 200 --eval-episodes 1 --log-infos is_success"
    start = f"mdqn.py:Munchausen --total-steps 400 --name a {words}"
    command(start.split())
    assert "watch it:      literate-rl mdqn.py:Munchausen" in capsys.readouterr().out
    told = json.loads(Path("runs/a/settings.json").read_text())
    assert told["config"]["bound"] == -0.5
    asked = {"eval_interval": 200, "eval_episodes": 1, "log_infos": ["is_success"]}
    assert {name: told[name] for name in asked} == asked
    command(["mdqn:Munchausen", "--resume", "runs/a", "--total-steps", "600"])
    assert load_checkpoint("runs/a/checkpoint.pt")["step"] == 600


def test_the_name_of_an_algorithm_is_not_taken_twice(own):
    with pytest.raises(
        ValueError, match=r"literate_rl\.learners\.dqn has an algorithm 'DQN'"
    ):
        register(replace(own.Munchausen, name="dqn"))
    assert ALGORITHMS["dqn"] is ROW


# --- What users ask of a training -----------------------------------------------------


def test_a_callback_sees_each_iteration_and_may_end_the_training():
    seen = []

    def look(learner, metrics):
        seen.append((learner.step, "losses/approx_kl" in metrics))
        return bool(learner.step >= 256)

    agent = train("PPO", CARTPOLE, callback=look, progress=False, **PPO)
    assert (seen, agent.interrupted) == ([(128, True), (256, True)], True)


def test_settings_are_taken_from_an_environment_that_is_alike(tmp_path):
    few = {"total_steps": 10, "progress": False}
    agent = train("PPO", "Acrobot-v1", like=CARTPOLE, seed=3, **few)
    known = ppo_settings(CARTPOLE)
    assert agent.learner.config == replace(known, seed=3, total_steps=10)
    with pytest.raises(ValueError, match="keeps its settings: leave out like"):
        train("PPO", like=CARTPOLE, resume=agent.save(tmp_path / "run"), **few)
    command: Any = parse("ppo", ["--env=Acrobot-v1", f"--like={CARTPOLE}"])
    assert (command.config, command.asked("ppo").like) == (known, CARTPOLE)


def test_evaluations_change_nothing_and_keep_the_best_policy(tmp_path):
    few = {"total_steps": 1024, "progress": False, **PPO}
    plain = train("PPO", CARTPOLE, **few)
    agent = train("PPO", CARTPOLE, eval_interval=256, eval_episodes=3, **few)
    assert same(plain.policy, agent.policy)
    seen = [row["charts/eval_return"] for row in agent.history]
    found = [x for x in seen if not math.isnan(x)]
    assert [math.isnan(x) for x in seen] == [True, False] * 4
    best = load_checkpoint(agent.folder / "best.pt")
    assert best["return"] == max(found)
    assert best["step"] == 256 * (1 + found.index(max(found)))
    kept = agent.save(tmp_path / "kept")
    assert same(load(kept, best=True), agent.best)
    assert evaluate(agent.best, CARTPOLE, 3, 10_000).mean() == max(found)
    # It is kept with the settings, so a resumed run goes on with it.
    train("PPO", resume=kept, total_steps=1536, progress=False)
    with (kept / "metrics.csv").open() as file:
        cells = [row["charts/eval_return"] for row in csv.DictReader(file)]
    assert [x == "" for x in cells] == [True, False] * 6
    with pytest.raises(
        FileNotFoundError, match=r"no best\.pt: train it with eval_interval"
    ):
        load(plain.save(tmp_path / "plain"), best=True)


def test_a_run_may_become_longer_and_not_shorter(tmp_path):
    few = {"total_steps": 512, "progress": False, "anneal": True, **PPO}
    kept = train("PPO", CARTPOLE, **few).save(tmp_path / "kept")
    rows = (kept / "metrics.csv").read_text()
    with pytest.raises(ValueError, match="the run has total_steps 512, not 256"):
        train("PPO", resume=kept, total_steps=256, progress=False)
    train("PPO", resume=kept, total_steps=1024, progress=False)
    assert (kept / "metrics.csv").read_text().startswith(rows)
    assert train("PPO", resume=kept, progress=False).learner.step == 1024


class Walk(gym.Env[Any, Any]):
    """An episode of five or seven steps, which says whether it was a success."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)
    episodes = steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        odd = self.episodes % 2
        done = self.steps == (5 if odd else 7)
        infos = {"is_success": bool(odd)} if done else {"is_success": True}
        return np.zeros(2, np.float32), 1.0, done, False, infos


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_lengths_and_infos_of_episodes_are_logged(mode):
    env: Any = Walk
    if mode == "NEXT_STEP":
        mode_ = gym.vector.AutoresetMode.NEXT_STEP
        env = gym.vector.SyncVectorEnv([Walk, Walk], autoreset_mode=mode_)
    few: dict[str, Any] = {"num_envs": 2, "num_steps": 24, "num_minibatches": 2}
    few |= {"log_infos": ["is_success", "never"], "total_steps": 48 * 4}
    agent = train("PPO", env, progress=False, **few)
    for row in agent.history:
        assert row["charts/episodic_length"] == row["charts/episodic_return"]
        # Episodes in turn of five and of seven steps.
        share = row["infos/is_success"]
        length = 5 * share + 7 * (1 - share)
        assert row["charts/episodic_length"] == pytest.approx(length)
        assert math.isnan(row["infos/never"])
    assert all(0 < row["infos/is_success"] < 1 for row in agent.history)


def tanh_policy(observation_space: Any, action_space: Any, hidden: int = 16) -> Any:
    policy = make_q_policy(observation_space, action_space, hidden)
    policy.network[1] = torch.nn.Tanh()
    return policy


def test_a_network_that_would_come_back_as_another_one_is_refused(own):
    small = {"total_steps": 200, "progress": False, **SMALL}
    wrong = replace(own.Munchausen, policy=by_settings(tanh_policy))
    with pytest.raises(ValueError, match="not come back from load, but that of make_q"):
        train(wrong, CARTPOLE, **small)
    maker = remembered(tanh_policy)
    with pytest.raises(ValueError, match=r"not come back.*name it in Row\.makers"):
        train(replace(wrong, policy=by_settings(maker)), CARTPOLE, **small)
    right = replace(wrong, policy=by_settings(maker), makers=(maker,))
    agent = train(right, CARTPOLE, **small)
    back = load(agent.save("kept"))
    del MAKERS["tanh_policy"]
    assert isinstance(back.network[1], torch.nn.Tanh)
    assert same(back, agent.policy)
    with pytest.raises(ValueError, match="import its algorithm first"):
        load("kept")


def test_a_row_says_what_is_wrong_with_it(own):
    row = own.Munchausen
    assert {*get_args(Slot)} == FORMS.keys()
    for changes, words in (
        ({"learner": None}, "a row must have a learner or actors, got none"),
        ({"contract": "pqn"}, "contract must be '' or 'ppo' or .*, got 'pqn'"),
        ({"config": Walk}, "config must be a class below RunConfig"),
    ):
        with pytest.raises(ValueError, match=words):
            replace(row, **changes)
    with pytest.raises(ValueError, match=r"no row Nothing, it has Munchausen"):
        train("mdqn.py:Nothing", CARTPOLE)
    with pytest.raises(TypeError, match="or a row, got munchausen"):
        train(row.learner, CARTPOLE)


def test_a_file_has_one_algorithm_and_a_script_may_name_itself(own):
    few = {"total_steps": 200, "progress": False, **SMALL}
    assert train("mdqn.py", CARTPOLE, **few).learner.step == 200
    # As `python mdqn.py` leaves it, which then is asked for `mdqn.py`.
    MAKERS["make_own_q_policy"] = "__main__"
    register(replace(own.Munchausen, makers=(own.make_own_q_policy,)))
    assert maker_named("make_own_q_policy") is own.make_own_q_policy
    for name in ("os.system", "Row", None, ["make_policy"]):
        assert maker_named(name) is None

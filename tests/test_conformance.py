"""What every algorithm promises, asked of each one.

The trainings are those of the net (``net.CASES``), so a new row is asked too. What only
one of them does is tested beside its module.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from net import CASES, SMALL, leaves

from literate_rl import evaluate, load, train
from literate_rl.apps.commands import main
from literate_rl.apps.training import ALGORITHMS
from literate_rl.ground.nests import SpaceError
from literate_rl.ground.rows import ANY
from literate_rl.runs.runs import load_checkpoint

# Actors in processes of their own, and A3C's workers, are seldom the same twice.
RARE = ("IMPALA, actors", "A3C", "Ape-X DQN", "Ape-X Rainbow", "Ape-X DDPG")
# The first case of each algorithm, and the one whose error is another one.
EACH = [*{case.algorithm: name for name, case in reversed(CASES.items())}.values()]
EACH += ["SAC, discrete"]
ALONE = [name for name in EACH if name not in RARE]


def trained(name: str, times: int = 1, **more: Any) -> Any:
    """Train a case for some iterations, ``times`` over."""
    case = CASES[name]
    settings = {**SMALL[case.algorithm], **case.changes}
    config = replace(ALGORITHMS[case.algorithm].settings(case.env), **settings)
    iterations = min(case.iterations, 6)
    settings |= {
        "checkpoint_interval": iterations,
        "total_steps": config.steps_per_iteration * iterations * times,
        "progress": False,
    }
    return train(case.algorithm, **{"env": case.env, **settings, **more})


def bits(agent: Any) -> list[torch.Tensor]:
    """Return all that an agent and its learner hold."""
    state = [agent.learner.state_dict(), agent.policy.state_dict()]
    return [x.detach().cpu() for x in leaves(state)]


def same(one: Any, other: Any) -> bool:
    """Say whether two agents hold the same bits."""
    left, right = ([x.nan_to_num() for x in bits(agent)] for agent in (one, other))
    return len(left) == len(right) and all(map(torch.equal, left, right))


# What is kept does not depend on the kind of the actions.
@pytest.mark.parametrize("name", [x for x in CASES if "Gaussian" not in x])
def test_a_resumed_run_ends_with_the_same_bits(name, tmp_path):
    whole = trained(name, times=2)
    half = whole.learner.step // 2
    stop = {"callback": lambda learner, metrics: learner.step >= half}
    run = trained(name, times=2, **stop).save(tmp_path / "run")
    resumed = train(CASES[name].algorithm, resume=run, progress=False)
    assert resumed.learner.step == whole.learner.step > half
    assert same(whole, resumed)


@pytest.mark.parametrize("name", ALONE)
def test_a_seed_decides_everything_and_a_saved_agent_acts_as_before(name, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    agent = trained(name, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert same(agent, trained(name, seed=3))
    assert not same(agent, trained(name, seed=4))
    policy, world = load(agent.save(tmp_path / "run")), CASES[name].env
    env = gym.make(world)
    obs = np.stack([env.observation_space.sample() for _ in range(5)])
    assert repr(policy.predict(obs)) == repr(agent.predict(obs))
    assert env.action_space.contains(policy.predict(obs[0]))
    returns = evaluate(policy, world, 2, seed=1)
    assert np.array_equal(returns, evaluate(agent.policy, world, 2, seed=1))


class Garbage(gym.Wrapper[Any, Any, Any, Any]):
    """What is seen after a termination is nonsense: nobody may learn from it."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(action)
        if terminated:
            obs = np.full_like(obs, 3.0)
        return obs, reward, terminated, truncated, infos


class Ends(gym.Wrapper[Any, Any, Any, Any]):
    """Each tenth step terminates, also where nothing would."""

    def reset(self, **told: Any) -> Any:
        self.count = 0
        return super().reset(**told)

    def step(self, action: Any) -> Any:
        self.count += 1
        obs, reward, terminated, truncated, infos = super().step(action)
        return obs, reward, terminated or self.count == 10, truncated, infos


@pytest.mark.parametrize("name", EACH)
def test_after_a_termination_anything_may_be_seen(name):
    around = {"transport": "in_process"} if name in RARE else {}
    agents = [trained(name, wrappers=x, **around) for x in ([Ends], [Ends, Garbage])]
    one, other = (list(agent.policy.parameters()) for agent in agents)
    # Rainbow's probabilities add up to 1, but for rounding.
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class Choices(gym.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.MultiBinary(2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_wrong_settings_and_actions_are_refused_by_name(algorithm):
    row = ALGORITHMS[algorithm]
    config = row.settings("")
    for field in fields(config):
        number = type(getattr(config, field.name)) in (int, float)
        for wrong in [["no"], object(), *(["many", float("nan")] if number else [])]:
            with pytest.raises((TypeError, ValueError), match=field.name):
                replace(config, **{field.name: wrong})
    if row.actions != ANY:
        with pytest.raises(SpaceError, match=f"{algorithm.upper()}'s "):
            train(algorithm, Choices, progress=False)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_has_a_command_line(algorithm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = algorithm.removesuffix("per")
    words = [f"--{name.replace('_', '-')}={x}" for name, x in SMALL[kind].items()]
    env = next(x.env for x in CASES.values() if x.algorithm == kind)
    main([algorithm, "--env", env, "--name=a", *words, "--total-steps=100"])
    assert load_checkpoint("runs/a/checkpoint.pt")["step"] >= 100

"""What every algorithm promises, asked of each one.

The trainings are those of the net (``net.CASES``), so a new row is asked too. What only
one of them does is tested beside its module.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
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
ALONE = [name for name in CASES if name not in RARE]


def trained(name: str, times: int = 1, **more: Any) -> Any:
    """Train a case for its iterations, ``times`` over."""
    case = CASES[name]
    config = replace(
        ALGORITHMS[case.algorithm].settings(case.env),
        **SMALL[case.algorithm],
        **case.changes,
    )
    each = config.steps_per_iteration
    settings = {
        **SMALL[case.algorithm],
        **case.changes,
        "checkpoint_interval": case.iterations,
        "total_steps": each * case.iterations * times,
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


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = trained(name, times=2)
    half = whole.learner.step // 2
    stop = {"callback": lambda learner, metrics: learner.step >= half}
    run = trained(name, times=2, **stop).save(tmp_path / "run")
    resumed = train(CASES[name].algorithm, resume=run, progress=False)
    assert resumed.learner.step == whole.learner.step > half
    assert same(whole, resumed)


@pytest.mark.parametrize("name", ALONE)
def test_a_seed_decides_everything_and_nothing_else_does(name: str) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    one = trained(name, seed=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    torch.manual_seed(6)
    assert same(one, trained(name, seed=3))
    assert not same(one, trained(name, seed=4))


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


@pytest.mark.parametrize("name", CASES)
def test_after_a_termination_anything_may_be_seen(name: str) -> None:
    around = {"transport": "in_process"} if name in RARE else {}
    agents = [trained(name, wrappers=x, **around) for x in ([Ends], [Ends, Garbage])]
    one, other = (list(agent.policy.parameters()) for agent in agents)
    # Rainbow's probabilities add up to 1, but for rounding.
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ALONE)
def test_a_saved_agent_acts_as_before(name: str, tmp_path: Path) -> None:
    agent = trained(name)
    policy, world = load(agent.save(tmp_path / "run")), CASES[name].env
    env = gym.make(world)
    obs = np.stack([env.observation_space.sample() for _ in range(5)])
    assert repr(policy.predict(obs)) == repr(agent.predict(obs))
    assert env.action_space.contains(policy.predict(obs[0]))
    returns = evaluate(policy, world, 2, seed=1)
    assert np.array_equal(returns, evaluate(agent.policy, world, 2, seed=1))


@pytest.mark.parametrize(
    "algorithm", [x for x, row in ALGORITHMS.items() if row.actions != ANY]
)
def test_actions_that_it_does_not_take_are_refused(algorithm: str) -> None:
    class Choices(gym.Env[Any, Any]):
        observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = spaces.MultiBinary(2)

    with pytest.raises(SpaceError, match=f"{algorithm.upper()}'s "):
        train(algorithm, Choices, progress=False)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_has_a_command_line(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = SMALL.get(algorithm, SMALL[algorithm.removesuffix("per")])
    options = {**small, "total_steps": 100}
    words = [f"--{name.replace('_', '-')}={x}" for name, x in options.items()]
    env = next(
        x.env for x in CASES.values() if x.algorithm == algorithm.removesuffix("per")
    )
    main([algorithm, "--env", env, "--name=a", *words])
    assert load_checkpoint("runs/a/checkpoint.pt")["step"] >= 100

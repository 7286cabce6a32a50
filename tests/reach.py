"""A task with two numbers in an action, and what tests of DDPG and TD3 share."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from learning import assert_for_most_seeds
from torch import Tensor, nn

from literate_rl.apps.cli import main
from literate_rl.apps.training import train
from literate_rl.book.contract_models import ActionValue, DeterministicActor
from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch
from literate_rl.learners.ddpg import (
    DDPG,
    DDPGConfig,
    DeterministicPolicyGradient,
    make_ddpg_policy,
)
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.td3 import (
    HDDPG,
    TD3,
    HDDPGConfig,
    Hysteretic,
    TD3Config,
    TwinDelayed,
)
from literate_rl.nets.policies import Policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import Run, fit, load

N, STATE = 6, 3
# An action of two numbers whose bounds differ, and are not symmetric.
LOW, HIGH = (-1.0, 0.0), (3.0, 0.5)
OBSERVATIONS = spaces.Box(-1.0, 1.0, (STATE,))
BOX = spaces.Box(np.array(LOW, np.float32), np.array(HIGH, np.float32))
ENV, DISCRETE = "Pendulum-v1", "CartPole-v1"


class Reach(gym.Env[Any, Any]):
    """Name the point that is seen. Every step pays minus the squared distance."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Box(
        np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32)
    )
    ends = False

    def look(self) -> Any:
        self.point = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.point

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        wanted = np.array([1.0 + self.point[0], 0.25 + 0.2 * self.point[0]])
        reward = -float(np.square(action - wanted).sum())
        self.time += 1
        over = self.time == 5
        return self.look(), reward, over and self.ends, over and not self.ends, {}


class Ending(Reach):
    """The same, but the end is a true one."""

    ends = True


class TwoParts(Reach):
    """The same, with the observation in two parts."""

    observation_space = spaces.Dict(
        {"point": Reach.observation_space, "clock": spaces.Box(0.0, 5.0, (1,))}
    )

    def look(self) -> Any:
        clock = np.array([self.time], np.float32)
        return {"point": super().look(), "clock": clock}


gym.register("Reach-v0", entry_point=Reach)
gym.register("TwoParts-v0", entry_point=TwoParts)


def policy_for(num_critics: int = 2, space: Any = BOX, **arguments: Any) -> Policy:
    """Build a policy of float64."""
    torch.manual_seed(0)
    made = make_ddpg_policy(OBSERVATIONS, space, 8, num_critics, **arguments)
    return made.double()


def batch_of(seed: int = 0) -> Batch:
    """Return a random batch of float64; its second step ended the episode."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    discount = torch.full((N,), 0.97, dtype=torch.float64)
    discount[1] = 0.0
    weight = draw(N).abs()
    obs, next_obs = draw(2, N, STATE)
    return Batch(obs, draw(N, 2), draw(N), next_obs, discount, weight, torch.arange(N))


# Which algorithm and which learner take which settings.
ALGORITHMS: dict[type[DDPGConfig], Any] = {
    DDPGConfig: DeterministicPolicyGradient,
    HDDPGConfig: Hysteretic,
    TD3Config: TwinDelayed,
}
LEARNERS: dict[type[DDPGConfig], Any] = {
    DDPGConfig: DDPG,
    HDDPGConfig: HDDPG,
    TD3Config: TD3,
}


def algorithm_for(config: DDPGConfig, policy: Policy | None = None) -> Any:
    """Build an algorithm of float64 whose older copy has other weights."""
    made = policy or policy_for(getattr(config, "num_critics", 1))
    algorithm = ALGORITHMS[type(config)](made, config)
    with torch.no_grad():
        for p in algorithm.target.network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    # A gradient that reaches the copy would be seen.
    algorithm.target.network.requires_grad_()
    return algorithm


SMALL: dict[str, Any] = {
    "total_steps": 300,
    "num_envs": 2,
    "train_interval": 2,
    "hidden": 8,
    "batch_size": 8,
    "learning_starts": 40,
    "epsilon_steps": 50,
    "buffer_size": 150,
    "iteration_steps": 50,
    "checkpoint_interval": 2,
    "learning_rate": 1e-2,
}


def learner_for(
    config: DDPGConfig, env: Any = Reach, policy: Policy | None = None
) -> OffPolicy:
    """Build the learner that the settings belong to."""
    envs = make_envs(env, config.num_envs)
    torch.manual_seed(config.seed)
    both = envs.single_observation_space, envs.single_action_space
    number = getattr(config, "num_critics", 1)
    made = policy or make_ddpg_policy(*both, config.hidden, number)
    learner: OffPolicy = LEARNERS[type(config)](made, envs, config)
    return learner


class OwnActor(nn.Module):
    """An actor with a second result, and weights that its action does not need."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = DeterministicActor(1, LOW, HIGH, hidden=8)
        self.beside, self.fixed = nn.Linear(1, 1), nn.Linear(1, 1)
        self.fixed.requires_grad_(False)

    def forward(self, my_state: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(my_state), my_state + 1


class OwnCritic(nn.Module):
    """A critic that takes its action first, with a second result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ActionValue(1, 2, hidden=8)

    def forward(self, action: Tensor, my_state: Tensor) -> tuple[Tensor, str]:
        return self.inner(my_state, action), "beside"


SHORT: dict[str, Any] = {
    "total_steps": 120,
    "learning_starts": 60,
    "iteration_steps": 60,
    "batch_size": 16,
    "progress": False,
}


# --- What each of the agents has to do ------------------------------------------------


def resumes_bit_for_bit(config: DDPGConfig, place: Path) -> None:
    """Assert that a stopped run becomes what it would have become."""
    whole = learner_for(config)
    fit(whole, progress=False)
    half, resumed = learner_for(config), learner_for(config)
    with Run(place / "run", {}) as run:
        for _ in range(4):
            half.iterate()
        run.save(half)
    with Run(place / "run", resume=True) as run:
        run.restore(resumed)
        assert resumed.step == half.step
        fit(resumed, run, progress=False)
    weights = (x.policy.state_dict() for x in (whole, resumed))
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    states = whole.state_dict(), resumed.state_dict()
    torch.testing.assert_close(*states, rtol=0, atol=0)
    policy = load(place / "run")
    assert torch.equal(policy(torch.ones(1, 1)), whole.policy(torch.ones(1, 1)))


def learns_to_name_the_point(config: DDPGConfig) -> None:
    """Assert that agents of most seeds learn the task."""
    config = replace(
        config,
        total_steps=2500,
        hidden=32,
        gamma=0.5,
        batch_size=64,
        learning_rate=3e-3,
        learning_starts=200,
        epsilon_steps=500,
        tau=0.05,
    )

    def check(seed: int) -> None:
        learner = learner_for(replace(config, seed=seed))
        before = evaluate(learner.policy, Reach, 20).mean()
        fit(learner, progress=False)
        after = evaluate(learner.policy, Reach, 20).mean()
        assert before < -1.5
        assert after > -0.2

    assert_for_most_seeds(check)


def trains_models_of_ones_own(algorithm: str, num_critics: int, place: Path) -> None:
    """Assert that models of one's own train, are saved and get their weights back."""
    actor, critic = OwnActor(), OwnCritic()
    agent = train(algorithm, "Reach-v0", actor=actor, critic=critic, **SHORT)
    assert agent.learner.updates == 61
    assert agent.learner.error == agent.learner.algorithm.error, "the plain form"
    network: Any = agent.policy.network
    assert network.actor.by_name.model is actor
    assert network.critics[0].by_name.model is critic
    assert len(network.critics) == num_critics
    state = torch.randn(4, 1)
    action, beside = agent.act({"my_state": state})
    assert torch.equal(action, actor(state)[0])
    assert torch.equal(beside, state + 1)
    saved = agent.save(place / "agent")
    again = load(saved, actor=OwnActor(), critic=OwnCritic())
    assert torch.equal(again.act(state, 0.0), agent.policy.act(state, 0.0))
    with pytest.raises(ValueError, match=r"actor=OwnActor.*got none"):
        load(saved)


def acts_in_states_and_in_discrete_actions(algorithm: str) -> None:
    """Assert that our own networks train where actions are discrete."""
    agent = train(algorithm, DISCRETE, **SHORT)
    action = agent.act({"state": torch.randn(4, 4)})
    assert action.shape == (4, 2)
    assert action.sum(-1).eq(1).all()
    assert evaluate(agent.policy, DISCRETE, 2).min() > 0


def runs_from_the_command_line(
    algorithm: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assert that the command line trains our networks and others."""
    monkeypatch.chdir(place)
    models = ["--actor", "own_models:actor", "--critic", "own_models:critic"]
    (place / "own_models.py").write_text(
        "from literate_rl.book.contract_models import ActionValue, DeterministicActor\n"
        "def actor(): return DeterministicActor(3, [-2.0], [2.0])\n"
        "def critic(): return ActionValue(3, 1)\n"
    )
    monkeypatch.syspath_prepend(place)
    short = [
        "--total-steps",
        "200",
        "--learning-starts",
        "100",
        "--iteration-steps",
        "100",
    ]
    for name, extra in (("ours", []), ("own", models)):
        arguments = [algorithm, "--env", ENV, "--name", name, *short, *extra]
        assert main(arguments) in (0, None)
        assert (place / "runs" / name / "checkpoint.pt").exists()
    settings = json.loads((place / "runs/own/settings.json").read_text())
    assert settings["algorithm"] == algorithm

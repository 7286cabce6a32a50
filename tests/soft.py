"""What tests of SAC and discrete SAC share: small runs and models of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from literate_rl.apps.training import train
from literate_rl.check.own_models import make_own_sac_policy
from literate_rl.data.agents import make_envs
from literate_rl.learners.discrete_sac import DiscreteSoftActorCritic
from literate_rl.learners.loop import OffPolicy
from literate_rl.learners.sac import SAC, SACConfig, SoftActorCritic, make_sac_policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import Run, fit, flat_env, load

LOW, HIGH = [-1.0, 0.0], [3.0, 0.5]
N, ACTIONS = 6, 3
BOX = spaces.Box(np.float32(LOW), np.float32(HIGH))
SEEN = spaces.Box(-1, 1, (4,))
PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
SMALL = SACConfig(
    total_steps=200,
    hidden=8,
    batch_size=16,
    learning_starts=40,
    buffer_size=90,
    iteration_steps=25,
    checkpoint_interval=4,
)
SHORT: dict[str, Any] = {
    "progress": False,
    "total_steps": 150,
    "learning_starts": 50,
    "iteration_steps": 50,
    "batch_size": 16,
}


def learner_for(config: SACConfig = SMALL, **models: Any) -> OffPolicy:
    """Return a learner with seeded weights."""
    envs = make_envs(partial(flat_env, PENDULUM), config.num_envs)
    torch.manual_seed(config.seed)
    both = envs.single_observation_space, envs.single_action_space
    number = config.num_critics
    policy: Any
    if models:
        policy = make_own_sac_policy(*both, **models, num_critics=number)
    else:
        policy = make_sac_policy(*both, config.hidden, number, config.hold)
    return SAC(policy, envs, config)


def generator(seed: int = 0) -> torch.Generator:
    """Return a generator with a seed."""
    return torch.Generator().manual_seed(seed)


def algorithm_for(policy: Any, space: Any = BOX, **changes: Any) -> Any:
    """Build an algorithm whose older critics have other weights."""
    listed = isinstance(space, spaces.Discrete)
    build = DiscreteSoftActorCritic if listed else SoftActorCritic
    algorithm = build(policy, replace(SMALL, **changes), space)
    older = algorithm.target.network
    for x in older.parameters():
        x.add_(0.1 * torch.randn(x.shape, generator=generator(9)))
    # A gradient that reaches them would be seen.
    older.requires_grad_()
    return algorithm


def weights(module: Any) -> list[Tensor]:
    """Return copies of a module's weights."""
    return [x.detach().clone() for x in module.parameters()]


def moved(before: list[Tensor], module: Any) -> bool:
    """Return whether any weight has changed."""
    after = weights(module)
    return not all(map(torch.equal, before, after))


def filled(learner: OffPolicy) -> OffPolicy:
    """Return a learner that has a buffer and has begun to learn."""
    for _ in range(3):
        learner.iterate()
    return learner


def assert_each_step_moves_its_own_weights(learner: OffPolicy) -> None:
    """Assert that critics, actor and temperature learn in their own step only."""
    policy: Any = learner.policy
    parts = {"actor": policy.network, "critics": policy.critics}
    before = {name: weights(part) for name, part in parts.items()}
    algorithm: Any = learner.algorithm
    older, temperature = algorithm.target.network, algorithm.temperature
    alpha, target = policy.log_alpha.item(), weights(older)
    # The critics' step: neither actor nor temperature get a gradient.
    learner.config = replace(learner.config, target_interval=10**6)
    learner.learn()
    assert moved(before["critics"], policy.critics)
    assert not moved(before["actor"], policy.network)
    assert policy.log_alpha.item() == alpha
    assert policy.log_alpha.grad is None
    assert not moved(target, older)
    # The actor's step: the critics get none.
    critics = weights(policy.critics)
    learner.climb(learner.sample().obs)
    assert temperature.entropies
    assert not any(x.requires_grad for x in temperature.entropies), "they would pile up"
    assert not moved(critics, policy.critics)
    assert all(x.grad is None for x in policy.critics.parameters())
    assert moved(before["actor"], policy.network)
    assert policy.log_alpha.item() != alpha
    assert not moved(target, older)


def assert_resumed(build: Callable[[], OffPolicy], path: Path) -> Any:
    """Assert that a run comes to the same bits if it is cut; return its policy."""
    whole, half, resumed = build(), build(), build()
    fit(whole, progress=False)
    with Run(path, {}) as run:
        for _ in range(4):
            half.iterate()
        run.save(half)
    with Run(path, resume=True) as run:
        run.restore(resumed)
        fit(resumed, run, progress=False)
    assert resumed.step == whole.step >= 200
    states = (x.policy.state_dict() for x in (whole, resumed))
    torch.testing.assert_close(*states, rtol=0, atol=0)
    pair = whole.state_dict(), resumed.state_dict()
    torch.testing.assert_close(*pair, rtol=0, atol=0)
    space: Any = whole.collector.envs.single_observation_space
    obs = torch.ones(1, *space.shape)
    assert torch.equal(load(path)(obs), whole.policy(obs))
    return whole.policy


def assert_models_train(
    env: str, build: Callable[[], dict[str, Any]], path: Path
) -> None:
    """Assert that models of the user's learn, and come back from a file."""
    models = build()
    before = {name: weights(model) for name, model in models.items()}
    agent = train("SAC", env, **models, **SHORT)
    policy: Any = agent.policy
    assert moved(before["actor"], policy.actor.model)
    assert moved(before["critic"], policy.critics[0].by_name.model)
    first, second = (x.by_name.model for x in policy.critics)
    assert not torch.equal(weights(first)[0], weights(second)[0]), "twins differ"
    again = load(agent.save(path), **build())
    states = again.state_dict(), policy.state_dict()
    torch.testing.assert_close(*states, rtol=0, atol=0)
    torch.manual_seed(0)
    returns = evaluate(again, env, episodes=2)
    assert len(returns) == 2


class TwoStates(gym.Env):  # type: ignore[type-arg]
    """Two named states; actions of a shape of their own, or discrete ones."""

    def __init__(self, discrete: bool) -> None:
        self.observation_space = spaces.Dict(
            {"near": spaces.Box(-1, 1, (2,)), "far": spaces.Box(-1, 1, (3,))}
        )
        self.action_space = spaces.Discrete(ACTIONS) if discrete else BOX

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.left = 10
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.left -= 1
        return self.observation_space.sample(), 1.0, False, self.left == 0, {}


for kind in (False, True):
    name = f"SACTwoStates{'Discrete' * kind}-v0"
    gym.register(name, partial(TwoStates, kind), max_episode_steps=20)


class Joined(nn.Module):
    """A model of two states, around one of their concatenation."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class TwoStateActor(Joined):
    """An actor with an extra result from a layer of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.extra = nn.Linear(5, 1)

    def forward(self, near: Tensor, far: Tensor, action: Any = None) -> Any:
        state = torch.cat([near, far], -1)
        return (*self.inner(state, action), self.extra(state))


class TwoStateCritic(Joined):
    """A critic of an action."""

    def forward(self, near: Tensor, far: Tensor, action: Tensor) -> Any:
        return self.inner(torch.cat([near, far], -1), action), near

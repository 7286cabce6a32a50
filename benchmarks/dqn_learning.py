"""Training runs of DQN: how well it learns, and what each of its parts does.

``python -m benchmarks.dqn_learning [NAME …]`` works as ``benchmarks.learning`` does.
How the settings of CartPole were found, on seeds above 100, is told in
``docs/results.md``.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.learning import Experiment, Variant, main
from literate_rl.apps.training import make_learner
from literate_rl.ground.protocols import Learner
from literate_rl.learners.dqn import DQNConfig, dqn_settings

ENV = "CartPole-v1"
# Each but the first differs from the chapter's agent in one thing.
SWITCHES: dict[str, dict[str, Any]] = {
    "all parts": {},
    "one step, n = 1": {"num_steps": 1},
    "three steps, n = 3": {"num_steps": 3},
    "no target network": {"tau": 1.0},
    "not double": {"double": False},
    "not dueling": {"dueling": False},
}
# What keeps its values from running away, and what is left without it.
RUNAWAY: dict[str, dict[str, Any]] = {
    "DQN": {},
    "not double": {"double": False},
    "no target network": {"tau": 1.0},
    "n = 1": {"num_steps": 1},
    "n = 1, no target network": {"num_steps": 1, "tau": 1.0},
}
# How much it remembers, and how often it learns from that.
MEMORY: dict[str, dict[str, Any]] = {
    "all steps, an update for 2": {},
    "the last 5,000": {"buffer_size": 5_000},
    "the last 1,000": {"buffer_size": 1_000},
    "an update for 1": {"train_interval": 1},
    "an update for 8": {"train_interval": 8},
}


def build(config: DQNConfig, env: str) -> Learner:
    """Build the agent as the command line does."""
    return make_learner("dqn", env, config, {})


def build_watched(config: DQNConfig, env: str) -> Learner:
    """Build the agent; each iteration also tells how its targets move with its values.

    That uses random numbers of its own, so that the training stays what it was.
    """
    learner: Any = build(config, env)
    iterate = learner.iterate
    learner.iterate = lambda: iterate() | feedback(learner)
    return learner


def feedback(learner: Any, batch_size: int = 512) -> dict[str, float]:
    """Return how far targets move when the values that learn from them move by 1.

    All values of a batch are raised, by a very small step along the gradient of their
    mean. The actions in the targets stay what they are.
    """
    config = learner.config
    batch = learner.buffer.sample(
        batch_size,
        torch.Generator().manual_seed(learner.step),
        config.num_steps,
        config.gamma,
    )
    network = copy.deepcopy(learner.policy).double()
    best = network(batch.next_obs.double()).argmax(-1, keepdim=True)

    def means() -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean value, and the mean of what comes from values in targets."""
        row, next_row = network(batch.obs.double()), network(batch.next_obs.double())
        q = row.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        return q.mean(), (batch.discount * next_row.gather(-1, best).squeeze(-1)).mean()

    parameters = [p for p in network.parameters() if p.requires_grad]
    value, target = means()
    gradient = torch.autograd.grad(value, parameters)
    step = 1e-5 / sum(g.square().sum() for g in gradient)
    with torch.no_grad():
        for parameter, g in zip(parameters, gradient, strict=True):
            parameter += step * g
        higher_value, higher_target = means()
    moved = (higher_target - target) / (higher_value - value)
    return {
        "charts/feedback": moved.item(),
        "charts/discount": batch.discount.mean().item(),
    }


def experiment(
    variants: dict[str, dict[str, Any]],
    seeds: int,
    goal: float | None = None,
    build: Any = build,
    watched: tuple[str, ...] = (),
    **changes: Any,
) -> Experiment:
    """Return the experiment that trains variants of the chapter's agent."""
    made = {
        name: Variant(different, partial(build, env=ENV))
        for name, different in variants.items()
    }
    config = replace(dqn_settings(ENV), **changes)
    return Experiment(ENV, config, seeds, 100, made, goal, watched=watched)


EXPERIMENTS = {
    "dqn_cartpole": experiment({"DQN": {}}, seeds=10, goal=475),
    "dqn_switches": experiment(SWITCHES, seeds=5),
    "dqn_memory": experiment(MEMORY, seeds=10, total_steps=30_000),
    "dqn_runaway": experiment(
        RUNAWAY,
        seeds=5,
        build=build_watched,
        watched=("losses/q_value", "charts/feedback", "charts/discount"),
        total_steps=30_000,
    ),
}

if __name__ == "__main__":
    main("python -m benchmarks.dqn_learning", EXPERIMENTS)

"""Training runs of DQN: how well it learns, and what each of its parts does.

``python -m benchmarks.dqn_learning [NAME …]`` works as ``benchmarks.learning`` does.
How the settings of CartPole were found, on seeds above 100, is told in
``docs/results.md``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.learning import Experiment, Variant, main
from literate_rl.dqn import DQNConfig, dqn_settings
from literate_rl.workshop.interfaces import Learner
from literate_rl.workshop.training import make_learner

ENV = "CartPole-v1"
# Each differs from the chapter's agent in one thing.
SWITCHES: dict[str, dict[str, Any]] = {
    "one step, n = 1": {"num_steps": 1},
    "three steps, n = 3": {"num_steps": 3},
    "no target network": {"tau": 1.0},
    "not double": {"double": False},
    "not dueling": {"dueling": False},
}


def build(config: DQNConfig, env: str) -> Learner:
    """Build the agent as the command line does."""
    return make_learner("dqn", env, config, {})


def experiment(
    variants: dict[str, dict[str, Any]], seeds: int, goal: float | None = None
) -> Experiment:
    """Return the experiment that trains variants of the chapter's agent."""
    made = {
        name: Variant(changes, partial(build, env=ENV))
        for name, changes in variants.items()
    }
    return Experiment(ENV, dqn_settings(ENV), seeds, 100, made, goal)


EXPERIMENTS = {
    "dqn_cartpole": experiment({"DQN": {}}, seeds=10, goal=475),
    "dqn_switches": experiment(SWITCHES, seeds=5),
}

if __name__ == "__main__":
    main("python -m benchmarks.dqn_learning", EXPERIMENTS)

"""What RL Baselines3 Zoo publishes of its trained agents, to stand beside ours.

``python -m benchmarks.published CLONE`` reads ``benchmark.md`` in a clone of
https://github.com/DLR-RM/rl-baselines3-zoo (MIT licence) at a fixed commit and stores
the rows of the tasks that the results page has. Nothing is trained. A row is one agent,
which plays without noise: its mean return and the steps of its training.
"""

from __future__ import annotations

import re
import subprocess
import sys

from benchmarks.store import RESULTS, write_table

COMMIT = "22e3ff2450fd92033f7f032915e1f64894a09584"
PAGE = f"https://github.com/DLR-RM/rl-baselines3-zoo/blob/{COMMIT}/benchmark.md"
# Tasks of this book, and what they are called there, where it is an older version.
TASKS = {
    "CartPole-v1": "CartPole-v1",
    "Acrobot-v1": "Acrobot-v1",
    "Pendulum-v1": "Pendulum-v1",
    "MountainCar-v0": "MountainCar-v0",
    "MountainCarContinuous-v0": "MountainCarContinuous-v0",
    "LunarLander-v3": "LunarLander-v2",
    "LunarLanderContinuous-v3": "LunarLanderContinuous-v2",
    "HalfCheetah-v5": "HalfCheetah-v3",
}
AGENTS = ("a2c", "ddpg", "dqn", "ppo", "sac", "td3")
COLUMNS = ("agent", "env", "env_there", "return", "steps", "line")
ROW = re.compile(r"\|(\w+) *\|([\w-]+) *\| *([-\d.]+)\| *[\d.]+\|(\d+)([kM]) *\|")


def rows_of(text: str) -> list[tuple[str, str, str, float, int, int]]:
    """Return the rows of their table that stand beside rows of ours."""
    ours = {there: here for here, there in TASKS.items()}
    return [
        (agent, ours[env], env, float(mean), int(count) * scale, line)
        for line, words in enumerate(text.splitlines(), start=1)
        for agent, env, mean, count, unit in ROW.findall(words)
        for scale in [{"k": 1000, "M": 1_000_000}[unit]]
        if env in ours and agent in AGENTS
    ]


def main(clone: str) -> None:
    """Read the table in a clone and store it."""
    command = ["git", "-C", clone, "show", f"{COMMIT}:benchmark.md"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    origin = {"command": "python -m benchmarks.published CLONE", "source": PAGE}
    write_table(RESULTS / "published.csv", COLUMNS, rows_of(found.stdout), origin)


if __name__ == "__main__":
    main(sys.argv[1])

"""The trained agents that come with the package, one from each of twelve rows.

``python -m benchmarks.agents [NAME …]`` puts them there: the last policy of the seed
whose final return is the median of its row. Where the runs of the row have kept it, it
is copied; else that seed is trained once more. An agent that is there stays, unless
``--again`` is said.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.__main__ import learning_commands
from benchmarks.learning import (
    LEARNING,
    Experiment,
    facts,
    keep,
    median_seed,
    place_of,
    train,
)
from benchmarks.store import read_table

FOLDER = Path(__file__).parents[1] / "src/literate_rl/trained"

# The experiment and the variant that each comes from.
AGENTS = {
    "cartpole-a2c": ("a2c_cartpole", "A2C"),
    "cartpole-discrete-sac": ("sac_cartpole", "SAC"),
    "cartpole-dqn": ("dqn_runaway", "DQN"),
    "cartpole-ppg": ("ppg_cartpole", "PPG"),
    "cartpole-rainbow": ("rainbow_cartpole", "Rainbow"),
    "moving-hybrid-ppo": ("moving", "joint"),
    "pendulum-ddpg": ("ddpg_pendulum", "DDPG"),
    "pendulum-hddpg": ("ddpg_pendulum", "HDDPG"),
    "pendulum-ppo": ("arc_pendulum", "PPO"),
    "pendulum-sac": ("sac_pendulum", "SAC"),
    "pendulum-td3": ("ddpg_pendulum", "TD3"),
    "taxi-ppo": ("masks_taxi", "masks"),
}


def row_of(name: str) -> dict[str, str]:
    """Return the stored numbers of the run that an agent comes from."""
    experiment, variant = AGENTS[name]
    table, _ = read_table(LEARNING / f"{experiment}.csv")
    rows = [row for row in table if row["variant"] == variant]
    seed = median_seed(rows)
    return next(row for row in rows if row["seed"] == seed)


def experiment_of(name: str) -> Experiment:
    """Return the experiment that an agent comes from, without what it measures."""
    experiment, _ = AGENTS[name]
    module: Any = import_module(learning_commands()[experiment].split()[2])
    made: Experiment = module.EXPERIMENTS[experiment]
    return replace(made, judges={})


def make(name: str, folder: Path) -> str:
    """Put an agent into a directory; say how it compares with its row."""
    (experiment, variant), row = AGENTS[name], row_of(name)
    kept = place_of(LEARNING, experiment, variant) / row["seed"]
    if kept.exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept, folder)
        return "kept by its row"
    made = experiment_of(name)
    result = train(made, made.variants[variant], int(row["seed"]))
    told = facts(experiment, variant, made, result)
    keep(folder, result.policy, told)
    return f"trained again: return {result.final:.5g}, its row has {row['return']}"


def main() -> None:
    """Read the command line and make what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agents")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(AGENTS))
    parser.add_argument("--again", action="store_true", help="make them once more")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names or AGENTS:
        if name not in AGENTS:
            parser.error(f"no agent {name!r}, choose from {', '.join(AGENTS)}")
        if arguments.again or not (FOLDER / name).exists():
            print(f"{name}: {make(name, FOLDER / name)}", flush=True)


if __name__ == "__main__":
    main()

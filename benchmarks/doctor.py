"""Short runs with and without a fault, and what the doctor says of them.

``python -m benchmarks.doctor`` trains healthy agents, each with five seeds, and one
agent for each rule with a fault that the rule is about. The first healthy run of each
algorithm and all of the others go to ``tests/doctor``, rounded and without the speed.
How close the healthy ones come to each limit goes to ``benchmarks/results/doctor.csv``.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import provenance
from benchmarks.store import RESULTS, write_table
from literate_rl.apps.doctor import RULES, Record, can_judge, read_record
from literate_rl.apps.training import (
    ALGORITHMS,
    ended,
    make_learner,
    settings_of_run,
    settings_with,
)
from literate_rl.maths.ppo_error import policy_error_from_log_prob, ppo_policy_loss
from literate_rl.runs.runs import Run, fit

STORE = Path(__file__).resolve().parents[1] / "tests/doctor"
WORKERS = 5
Tamper = Callable[[Any], None]

SEEDS = range(1, 6)
# Algorithm, environment and steps. The first run of each algorithm is stored.
HEALTHY = [
    ("ppo", "CartPole-v1", 25_000),
    ("a2c", "CartPole-v1", 25_000),
    ("impala", "CartPole-v1", 30_000),
    ("dqn", "CartPole-v1", 20_000),
    ("ppg", "CartPole-v1", 25_000),
    ("sac", "Pendulum-v1", 5_000),
    ("td3", "Pendulum-v1", 5_000),
    ("ppo", "Pendulum-v1", 60_000),
    ("rainbow", "CartPole-v1", 10_000),
    ("ddpg", "Pendulum-v1", 5_000),
    ("sac", "CartPole-v1", 10_000),
    ("ppo", "Acrobot-v1", 40_000),
    ("a2c", "Acrobot-v1", 40_000),
    ("dqn", "Acrobot-v1", 15_000),
    ("ppo", "literate_rl/Moving-v0", 20_000),
]


def uphill(*terms: Any) -> Any:
    """Compute the policy's loss with the wrong sign."""
    (policy_loss, entropy_loss), info = policy_error_from_log_prob(*terms)
    return ppo_policy_loss(-policy_loss, entropy_loss), info


def wrong_sign(learner: Any) -> None:
    """Let PPO walk uphill."""
    learner.policy_error = uphill


def large_rewards(learner: Any) -> None:
    """Let PPO see a thousand times the rewards."""
    collect = learner.collect

    def rich() -> Any:
        batch = collect()
        return batch._replace(reward=1000 * batch.reward)

    learner.collect = rich


def no_discount(learner: Any) -> None:
    """Let DQN forget the discount, and with it the ends."""
    sample = learner.sample

    def undiscounted() -> Any:
        batch = sample()
        return batch._replace(discount=torch.ones_like(batch.discount))

    learner.sample = undiscounted


# Algorithm, settings and fault, by the name of the rule.
FAULTS: dict[str, tuple[str, dict[str, Any], Tamper | None]] = {
    "the policy jumps": ("ppo", {"learning_rate": 0.3}, None),
    "most ratios are clipped": (
        "ppo",
        {
            "total_steps": 16_384,
            "learning_rate": 0.03,
            "num_minibatches": 16,
            "anneal": False,
        },
        None,
    ),
    "the policy is certain too early": ("a2c", {"learning_rate": 0.05}, None),
    "the policy stands still": ("ppo", {"learning_rate": 1e-5}, None),
    "the value loss is huge": ("ppo", {}, large_rewards),
    "the critic explains nothing": ("ppo", {"value_weight": 0.0}, None),
    "the gradient explodes": ("impala", {"reward_scale": 50.0}, None),
    "a value is above the largest possible one": (
        "dqn",
        {"total_steps": 10_000},
        no_discount,
    ),
    "returns lie beyond the atoms": (
        "rainbow",
        {"value_min": -100.0, "value_max": 0.0},
        None,
    ),
    "the numbers explode": ("dqn", {"learning_rate": 1.0}, None),
    "the return falls": ("ppo", {}, wrong_sign),
}


def train(
    algorithm: str, env: str, changes: dict[str, Any], tamper: Tamper | None = None
) -> Path:
    """Train an agent; return the directory of its run."""
    config = settings_with(ALGORITHMS[algorithm].settings(env), changes)
    learner: Any = make_learner(algorithm, env, config, {})
    if tamper is not None:
        tamper(learner)
    folder = Path(tempfile.mkdtemp(prefix="doctor_"))
    settings = settings_of_run(algorithm, env, config, {})
    with Run(folder, settings) as run, ended(learner):
        fit(learner, run, progress=False)
    return folder


def keep(folder: Path, name: str) -> None:
    """Store what the doctor reads of a run, in four digits and without the speed."""
    place = STORE / name.replace(" ", "_")
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "settings.json", place)
    with (folder / "metrics.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    kept = [i for i, column in enumerate(header) if column != "charts/SPS"]
    with (place / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([header[i] for i in kept])
        for row in rows:
            cells = [f"{float(row[i]):.4g}" if row[i] else "" for i in kept[1:]]
            writer.writerow([row[0], *cells])


def with_fault(name: str) -> Record:
    """Train the agent with the fault of a rule, store its run and return it."""
    algorithm, changes, tamper = FAULTS[name]
    short = {"total_steps": 12_000 if algorithm == "impala" else 6_144, "seed": 3}
    return stored(train(algorithm, "CartPole-v1", short | changes, tamper), name)


def without(algorithm: str, env: str, steps: int, seed: int, name: str) -> Record:
    """Train a healthy agent and return its run, stored if it has a name."""
    return stored(train(algorithm, env, {"total_steps": steps, "seed": seed}), name)


def stored(folder: Path, name: str) -> Record:
    """Return what a run says, stored under a name if there is one; delete it."""
    if name:
        keep(folder, name)
    record = read_record(folder)
    shutil.rmtree(folder)
    return record


def main() -> None:
    """Train all of them and write down how close they come to each limit."""
    jobs, names = [], set()
    for algorithm, env, steps in HEALTHY:
        for seed in SEEDS:
            new = algorithm not in names
            name = f"healthy_{algorithm}" if new else ""
            names.add(algorithm)
            jobs.append((algorithm, env, steps, seed, name))
    pool = get_context("spawn").Pool(WORKERS, torch.set_num_threads, (1,))
    with pool:
        sick = dict(zip(FAULTS, pool.map(with_fault, FAULTS, 1), strict=True))
        healthy = pool.starmap(without, jobs, 1)

    rows = []
    for rule in RULES:
        counts = [rule.most_of_ten(x) for x in healthy if can_judge(rule, x)]
        alarms = sum(count >= rule.count for count in counts)
        found = rule.most_of_ten(sick[rule.name])
        rows.append((rule.name, rule.count, len(counts), max(counts), alarms, found))
    columns = ("rule", "count", "healthy_runs", "most_healthy", "alarms", "most_sick")
    origin = provenance("python -m benchmarks.doctor", "gymnasium")
    origin["seed"] = f"{SEEDS[0]} to {SEEDS[-1]}, with a fault 3"
    write_table(RESULTS / "doctor.csv", columns, rows, origin)


if __name__ == "__main__":
    main()

"""Training runs over seeds, kept as curves and as final returns.

``python -m benchmarks.learning [NAME …]`` runs experiments: each variant of an agent
trains once for each seed. A run's results are stored as soon as it ends, so a stopped
experiment goes on where it was. Results that were made with other settings are thrown
away; ``--again`` throws away the others too. ``--quick`` trains two variants for a
moment and stores nothing.

The last policy of each run is kept beside the results, and once all seeds have been
trained, that of the median seed alone: ``policies/NAME/VARIANT/SEED``, which ``load``
reads as it does the directory of a run.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from benchmarks.harness import provenance
from benchmarks.store import RESULTS, is_stale, nets, read_table, write_table
from literate_rl.actors.actors import RemoteLearner
from literate_rl.apps.training import runner_of
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import make_envs
from literate_rl.data.makers import make_wrapped
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.nets.policies import make_policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    fit,
    flat_env,
    save_checkpoint,
    todays_names,
    write_atomically,
)

BINS = 25
# Episodes of the final evaluation start from seeds that no training run uses.
EVALUATION_SEED = 1_000_000
LEARNING = RESULTS / "learning"

Build = Callable[[Any], Any]
Table = list[dict[str, str]]
Facts = dict[str, Any]


def agent(config: PPOConfig, env: str) -> PPO:
    """Build the agent of the chapter, which acts in NumPy."""
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    policy = make_policy(
        envs.single_observation_space,
        envs.single_action_space,
        normalize=config.normalize_obs,
    )
    return PPO(policy, envs, config, numpy_act(policy))


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        changes: Settings that differ from the experiment's.
        build: Makes the learner from the settings, or None for the chapter's agent.
        wrappers: What is put around the environment, as in ``train``.
    """

    changes: dict[str, Any]
    build: Build | None = None
    wrappers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """Variants of an agent on one environment.

    Attributes:
        env: Id of the environment.
        config: Settings that the variants share.
        seeds: Number of seeds.
        episodes: Episodes of the final evaluation.
        variants: What is compared, by name.
        goal: What the final return must reach, or None.
        judges: Further numbers that are taken of the trained policy, by name.
        first_seed: The smallest of the seeds.
        by_clock: Whether to store seconds of wall-clock time and the mean lag as well.
        watched: Metrics whose curves are stored beside that of the return.
        packages: Further packages that took part, whose versions are stored.
    """

    env: str
    config: PPOConfig
    seeds: int
    episodes: int
    variants: dict[str, Variant]
    goal: float | None = None
    judges: dict[str, Callable[[Any], float]] = field(default_factory=dict)
    first_seed: int = 1
    by_clock: bool = False
    watched: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What one run gave.

    Attributes:
        curve: Steps and mean training returns in the bins; NaN where none ended.
        final: Mean return of the greedy policy at the end.
        area: Mean of the training returns over the run.
        cpu_seconds: CPU time of the training, without that of other processes.
        judged: What the judges said, by their names.
        watched: Means of further metrics in the bins, by their names.
        returns: Those of its episodes at the end.
        policy: What was trained.
        config: With which settings.
    """

    curve: list[tuple[int, float]]
    final: float
    area: float
    cpu_seconds: float
    judged: dict[str, float]
    watched: dict[str, list[float]] = field(default_factory=dict)
    returns: tuple[float, ...] = ()
    policy: Any = None
    config: Any = None


def train(experiment: Experiment, variant: Variant, seed: int) -> Result:
    """Train one variant with one seed and evaluate it."""
    config = replace(experiment.config, seed=seed, **variant.changes)
    build = variant.build or partial(agent, env=experiment.env)
    learner = build(config)
    start = time.process_time()
    history = fit(learner, progress=False)
    seconds = time.process_time() - start
    close(learner)
    world = make_wrapped(experiment.env, variant.wrappers)
    returns = evaluate(learner.policy, world, experiment.episodes, EVALUATION_SEED)
    judged = {name: judge(learner.policy) for name, judge in experiment.judges.items()}
    if experiment.by_clock:
        judged |= clock(history)
    curve = binned(history, config.total_steps)
    known = [value for _, value in curve if not np.isnan(value)]
    area = float(np.mean(known)) if known else float("nan")
    watched = {
        name: [value for _, value in binned(history, config.total_steps, name)]
        for name in experiment.watched
    }
    return Result(
        curve,
        float(returns.mean()),
        area,
        seconds,
        judged,
        watched,
        tuple(returns.tolist()),
        learner.policy,
        config,
    )


def clock(history: list[dict[str, float]]) -> dict[str, float]:
    """Return the seconds of a run, those of its first half, and its mean lag.

    The first iteration is left out: it waits until the processes have started.
    """
    steps = np.diff([0, *(row["step"] for row in history)])
    seconds = steps[1:] / [row["charts/SPS"] for row in history[1:]]
    lag = np.mean([row.get("charts/lag", 0.0) for row in history])
    half = seconds[: len(seconds) // 2].sum()
    numbers = {"seconds": seconds.sum(), "half_seconds": half, "lag": lag}
    return {name: float(number) for name, number in numbers.items()}


def close(learner: Any) -> None:
    """Close a learner's environments, or end its actors."""
    if isinstance(learner, RemoteLearner):
        learner.close()
    else:
        runner_of(learner).collector.envs.close()


def binned(
    history: list[dict[str, float]], total: int, name: str = "charts/episodic_return"
) -> list[tuple[int, float]]:
    """Return the mean return of the episodes that ended in each part of a run.

    Or that of another metric, by its name.
    """
    step = np.array([row["step"] for row in history])
    value = np.array([row[name] for row in history])
    ends = np.linspace(0, total, BINS + 1)[1:]
    place = np.searchsorted(ends, step).clip(max=BINS - 1)
    curve = []
    for index, end in enumerate(ends):
        inside = value[(place == index) & ~np.isnan(value)]
        curve.append((round(end), float(inside.mean()) if len(inside) else np.nan))
    return curve


@torch.no_grad()
def noisy_return(policy: Any, make: Callable[[], Any]) -> float:
    """Return the mean return of a policy with noise, one episode in each copy."""
    envs = make()
    obs, _ = envs.reset(seed=EVALUATION_SEED)
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    returns, playing = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=bool)
    while playing.any():
        noise = policy.noise(1, envs.num_envs, generator)[0]
        action = policy.act(torch.as_tensor(obs, dtype=torch.float32), noise)
        obs, reward, terminated, truncated, _ = envs.step(policy.to_env(action))
        returns += np.where(playing, reward, 0.0)
        playing &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def facts(name: str, variant: str, experiment: Experiment, result: Result) -> Facts:
    """Return what is to be known of a policy that is kept."""
    made = provenance("", "gymnasium", *experiment.packages)
    del made["command"], made["seed"]
    wrappers = experiment.variants[variant].wrappers
    return {
        "env": experiment.env,
        **({"wrappers": list(wrappers)} if wrappers else {}),
        "experiment": name,
        "variant": variant,
        "return": float(f"{result.final:.5g}"),
        "area": float(f"{result.area:.4g}"),
        "config": asdict(result.config),
        "made": made,
        "evaluation_seed": EVALUATION_SEED,
        "returns": [float(f"{x:.5g}") for x in result.returns],
    }


def keep(folder: Path, policy: Any, settings: Facts) -> None:
    """Keep what acts in a directory like that of a run; an older one is thrown away."""
    recipe = getattr(policy, "recipe", ("", {}))  # a peer's has none
    state = {"policy": {"recipe": recipe, "weights": policy.state_dict()}}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_checkpoint(folder / "checkpoint.pt", state)
    text = json.dumps(settings, indent=2) + "\n"
    write_atomically(folder / "settings.json", text.encode())


def keep_only(folder: Path) -> None:
    """Throw away all directories beside one."""
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other)


def place_of(folder: Path, name: str, variant: str) -> Path:
    """Return the directory of the policies of a variant."""
    return folder / "policies" / name / re.sub(r"\W+", "_", variant)


def median_seed(rows: Table) -> str:
    """Return the seed whose final return is the median, the lower one of two.

    Of several seeds with that return it is the one in the middle, by their number.
    """
    ranked = sorted(rows, key=lambda row: (float(row["return"]), int(row["seed"])))
    return ranked[(len(ranked) - 1) // 2]["seed"]


CURVE_COLUMNS = ("variant", "seed", "step", "return")


def paths(name: str, folder: Path) -> tuple[Path, Path]:
    """Return where the curves and the final returns of an experiment are."""
    return folder / f"{name}_curves.csv", folder / f"{name}.csv"


def run(name: str, experiment: Experiment, command: str, folder: Path) -> None:
    """Run what is missing of an experiment; store after each run."""
    torch.set_num_threads(1)
    config = asdict(experiment.config)
    config.pop("seed")
    settings = " ".join(f"{key}={value}" for key, value in config.items())
    origin = provenance(f"{command} {name}", "gymnasium", *experiment.packages)
    origin |= {
        "env": experiment.env,
        "episodes": str(experiment.episodes),
        "settings": settings,
    }
    origin.pop("seed")
    algorithm = type(experiment.config).__name__.removesuffix("Config")
    if algorithm in nets():
        origin["net"] = nets()[algorithm]
    if experiment.goal is not None:
        origin["goal"] = f"{experiment.goal:g}"
    curve_path, final_path = paths(name, folder)
    defaults = defaults_of(experiment.config)
    curves, finals = stored(
        curve_path, final_path, origin, list(experiment.variants), defaults
    )
    done = {(row["variant"], row["seed"]) for row in finals}
    if not done:
        shutil.rmtree(folder / "policies" / name, ignore_errors=True)
    # Seeds outside, variants inside: a stopped experiment has something of each.
    last_seed = experiment.first_seed + experiment.seeds - 1
    for seed in range(experiment.first_seed, last_seed + 1):
        for variant in experiment.variants:
            if (variant, str(seed)) in done:
                continue
            result = train(experiment, experiment.variants[variant], seed)
            head = {"variant": variant, "seed": str(seed)}
            for place, (step, value) in enumerate(result.curve):
                point = head | {"step": str(step), "return": f"{value:.4g}"}
                for watched, values in result.watched.items():
                    point[watched] = f"{values[place]:.4g}"
                curves.append(point)
            numbers = {
                "return": f"{result.final:.5g}",
                "area": f"{result.area:.4g}",
                "cpu_seconds": f"{result.cpu_seconds:.3g}",
            }
            numbers |= {name: f"{x:.5g}" for name, x in result.judged.items()}
            finals.append(head | numbers)
            origin["seeds"] = f"{experiment.first_seed} to {seed}"
            kept = place_of(folder, name, variant)
            told = facts(name, variant, experiment, result)
            keep(kept / str(seed), result.policy, told)
            for path, columns, table in (
                (curve_path, (*CURVE_COLUMNS, *experiment.watched), curves),
                (final_path, tuple(finals[-1]), finals),
            ):
                rows = [[row[column] for column in columns] for row in table]
                write_table(path, columns, rows, origin)
            print(
                f"{name}, {variant}, seed {seed}: final return {result.final:.1f}, "
                f"mean while training {result.area:.1f}, "
                f"{result.cpu_seconds:.0f} s of CPU time",
                flush=True,
            )
            mine = [row for row in finals if row["variant"] == variant]
            if len(mine) == experiment.seeds:
                keep_only(kept / median_seed(mine))


def stored(
    curve_path: Path,
    final_path: Path,
    origin: dict[str, str],
    variants: list[str],
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Table, Table]:
    """Return the rows that an earlier run with the same settings left.

    A setting that did not exist then had what is its default today.
    """
    if not final_path.exists():
        return [], []
    finals, before = read_table(final_path)
    # Neither the order of the settings counts nor what their names were then.
    if any(before.get(key) != origin[key] for key in ("env", "episodes")):
        return [], []
    if is_stale(before):
        return [], []
    now = settings_in(origin)
    then = todays_names(settings_in(before), now)
    if {**defaults, **then} != now:
        return [], []
    done = {
        (row["variant"], row["seed"]) for row in finals if row["variant"] in variants
    }
    curves = read_table(curve_path)[0] if curve_path.exists() else []

    return [row for row in curves if (row["variant"], row["seed"]) in done], finals


def defaults_of(config: Any) -> dict[str, str]:
    """Return the defaults of all settings but the seed, as texts."""
    return {x.name: str(x.default) for x in fields(config) if x.name != "seed"}


def settings_in(origin: dict[str, str]) -> dict[str, str]:
    """Return the settings that are told above a table, as texts by their names."""
    words = origin.get("settings", "").split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def plain(
    env: str, seeds: int, episodes: int, goal: float, **changes: Any
) -> Experiment:
    """Return the experiment that trains the chapter's agent as it is set."""
    config = replace(ppo_settings(env), **changes)
    return Experiment(env, config, seeds, episodes, {"PPO": Variant({})}, goal)


EXPERIMENTS = {
    "cartpole": plain("CartPole-v1", seeds=20, episodes=20, goal=475),
    "acrobot": plain("Acrobot-v1", seeds=5, episodes=100, goal=-86),
    "pendulum": plain("Pendulum-v1", seeds=5, episodes=100, goal=-200),
}


def quick(experiment: Experiment) -> Experiment:
    """Return a version of an experiment that takes a second."""
    first = dict(list(experiment.variants.items())[:2])
    config = replace(experiment.config, total_steps=1)  # one iteration
    return replace(experiment, config=config, seeds=1, episodes=1, variants=first)


def main(command: str, experiments: dict[str, Experiment]) -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog=command)
    parser.add_argument("names", nargs="*", default=list(experiments), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="run a moment of each")
    parser.add_argument("--again", action="store_true", help="drop stored results")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in experiments:
            known = ", ".join(experiments)
            parser.error(f"no experiment {name!r}, choose from {known}")
    for name in arguments.names:
        experiment = experiments[name]
        if arguments.quick:
            small = quick(experiment)
            for variant in small.variants.values():
                train(small, variant, seed=1)
            continue
        if arguments.again:
            for path in paths(name, LEARNING):
                path.unlink(missing_ok=True)
        run(name, experiment, command, LEARNING)


if __name__ == "__main__":
    main("python -m benchmarks.learning", EXPERIMENTS)

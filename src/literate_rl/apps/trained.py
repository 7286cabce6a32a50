# Generated from chapters/apps/trained.py (edit there); digest 602ab1dfcbb7582c
"""Trained agents: those that come with the package, and ``literate-rl show``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Any

import tyro

from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    agreed_env,
    found,
    has_screen,
    load,
    read_settings,
    record_video,
    show,
    trained_folder,
)

__all__ = ["TrainedAgent", "trained_agents"]


class TrainedAgent(NamedTuple):
    """What is known of an agent that comes with the package.

    Attributes:
        env: Id of the environment in which it has learned.
        experiment: Name of the stored runs that it is from, as in ``stored_runs``.
        variant: Which of their rows.
        seed: The seed of its run.
        steps: How many steps it has learned from.
        score: Mean return of its greedy episodes after the training.
        returns: That of each of these.
        evaluation_seed: Their seed, for ``evaluate``.
    """

    env: str
    experiment: str
    variant: str
    seed: int
    steps: int
    score: float
    returns: tuple[float, ...]
    evaluation_seed: int


def trained_agents() -> dict[str, TrainedAgent]:
    """Return the agents that come with the package, by their names for ``load``."""
    agents = {}
    for folder in sorted(trained_folder().iterdir()):
        told = read_settings(folder / "settings.json")
        config = told["config"]
        agents[folder.name] = TrainedAgent(
            told["env"],
            told["experiment"],
            told["variant"],
            config["seed"],
            config["total_steps"],
            told["return"],
            tuple(told["returns"]),
            told["evaluation_seed"],
        )
    return agents


def listing() -> str:
    """Return a line for each agent: its task and its score."""
    lines = [f"{'agent':22s}{'return':>8s}{'steps':>9s}  environment"]
    for name, agent in trained_agents().items():
        score = f"{agent.score:.2f}"
        lines.append(f"{name:22s}{score:>8s}{agent.steps:>9,d}  {agent.env}")
    return "\n".join(lines)


def play(
    name: tyro.conf.Positional[str | None] = None,
    episodes: int = 20,
    seed: int = 0,
    film: bool = False,
    list: bool = False,
    env: str | None = None,
    wrappers: tuple[str, ...] = (),
    algorithm: str | None = None,
) -> None:
    """Let a trained agent play; without a name, list those of the package.

    Args:
        name: An agent that comes with the package, or the directory of a run.
        episodes: How many to play for the mean.
        seed: Decides how they start.
        film: Whether to write a film in any case.
        list: Whether to list the agents.
        env: That of a run, where it has to be named.
        wrappers: Likewise.
        algorithm: Likewise, mine.py:name, where it is one of your own.
    """
    if list or name is None:
        print(listing())
        return
    if algorithm is not None:
        from literate_rl.apps.training import algorithm_named  # it loads everything

        algorithm_named(algorithm)
    path = found(name)
    settings = read_settings(path / "settings.json")
    policy, world = load(path), agreed_env(settings, env, wrappers)
    if not Path(name).exists():  # so it is a name
        agent = trained_agents()[name]
        row = f"{agent.variant} in {agent.experiment}, seed {agent.seed}"
        print(f"{name}: {agent.env}, {agent.steps:,d} steps ({row})")
        print(f"return of {len(agent.returns)} episodes then: {agent.score:.2f}")
    returns = evaluate(policy, world, episodes, seed)
    mean, deviation = returns.mean(), returns.std()
    print(
        f"return of {episodes} episodes now: {mean:.2f} ± {deviation:.2f}", flush=True
    )
    see(policy, world, Path(f"{Path(name).resolve().name}.mp4"), seed, film)


def see(policy: Any, env: Any, video: Path, seed: int = 0, film: bool = False) -> None:
    """Show an episode in a window, or film it where there is none."""
    if has_screen() and not film:
        print("a window shows one episode; Ctrl-C closes it", flush=True)
        show(policy, env, seed)
    else:
        record_video(policy, env, video, seed)
        print(f"one episode:   {video}")

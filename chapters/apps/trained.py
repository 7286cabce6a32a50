# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Trained agents
#
# **How do you get an agent that knows something without training one?** Twelve of them come with
# the package: A2C, PPO, PPG, DQN, Rainbow, DDPG, HDDPG, TD3 and SAC, and also PPO with hybrid actions,
# PPO with masks, and SAC for lists. One line loads one, and one command shows it:
#
# ```python
# import literate_rl
#
# policy = literate_rl.load("pendulum-sac")
# ```
#
# ```text
# literate-rl show pendulum-sac
# ```
#
# Each is the last policy of a run of {doc}`/docs/results`: that of the seed whose final return is
# the median of its row (the lower of two), neither the best nor the worst. A test lets each play its first episodes again.
# Nobody has to read this page to follow the book.

# %% tags=["export", "hide-input"]
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

# %% [markdown]
# ## What comes with the package
#
# An agent is a directory with two files, like that of a run ({doc}`/chapters/runs/runs`). `checkpoint.pt` holds the
# policy and its critics: 32-bit floats and plain values, no code, and checksums that
# are compared when it is read. `settings.json` says where it learned, with which settings, versions and
# processor, and how it did.


# %% tags=["export"]
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


# %% [markdown]
# ## The command
#
# `literate-rl show` lists them, and `literate-rl show NAME` lets one play: twenty greedy episodes for
# a number, and one to look at, in a window or, where there is no screen, as a film in the working
# directory. The directory of a run of yours does as well as a name.


# %% tags=["export"]
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


# %% [markdown]
# ## See it

# %%
print(listing())

# %% [markdown]
# An agent that was loaded is a policy like any other. It can be evaluated, asked what it would do, and
# asked what it expects. With SAC the critics are asked, as here; all others have `policy.value(obs)`.
# Both speak in the rewards of the training, which some of them have scaled.

# %%
import torch

policy = load("pendulum-sac")
returns = evaluate(policy, "Pendulum-v1", episodes=20)
hanging = torch.tensor([[-1.0, 0.0, 0.0]])  # cosine and sine of the angle, speed
with torch.no_grad():
    torque = policy.act(hanging, 0.0)
    value = policy.critics(hanging, torque).amin()
print(f"return of 20 episodes: {returns.mean():.0f}")
print(
    f"a pendulum that hangs still: torque {torque.item():.2f}, value {value.item():.0f}"
)

# %% tags=["claims"]
agents = trained_agents()
assert len(agents) == 12
assert sum(x.stat().st_size for x in trained_folder().rglob("*.*")) < 5e6
assert returns.mean() > -250
assert -400 < value < -100, "what comes, discounted"

# %% [markdown]
# Names are the last thing that is looked for, and one that nobody has is answered with those that
# there are:

# %%
try:
    load("pendulum-sca")
except FileNotFoundError as error:
    print(error)

# %% [markdown]
# ## Where they come from
#
# A stored experiment keeps the last policy of the median seed of each row. Those of PPG, Rainbow and hybrid
# PPO are these. The others are from rows that are older, so `python -m benchmarks.agents` has trained their
# seeds once more. All twelve are the very runs of their rows: the mean return while training and that of
# the last policy are the same.

# %% tags=["claims"]
from literate_rl.runs.runs import read_rows, results_folder

for name, agent in agents.items():
    rows = read_rows(results_folder() / f"learning/{agent.experiment}.csv")
    mine = [row for row in rows if row["variant"] == agent.variant]
    ranked = sorted(mine, key=lambda row: (float(row["return"]), int(row["seed"])))
    then, now = ranked[(len(ranked) - 1) // 2], trained_folder() / name
    assert then["seed"] == str(agent.seed), "the lower median"
    told = read_settings(now / "settings.json")
    for key in ("area", "return"):
        assert float(then[key]) == told[key], "the very run"

# %% [markdown]
# ## References
#
# The chapters name their sources.

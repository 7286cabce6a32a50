# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The command line
#
# **How does one train an agent without writing a program?** `python -m literate_rl ppo` picks
# environments, a policy that fits them and a learner, and keeps the run in a directory. All of the
# work is done by other chapters; this one connects them. Nobody has to read it to follow the book.

# %% tags=["export", "hide-input"]
"""The command line: train agents, resume them and watch them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import (
    Any,
    Generic,
    NamedTuple,
    TypeVar,
)

import torch
import tyro
from gymnasium import spaces

from literate_rl.actors import ActorLearner, ActorsConfig, actors_settings
from literate_rl.agents import best_device, make_envs, seed_everything
from literate_rl.evaluation import evaluate
from literate_rl.hybrid_policy import make_hybrid_policy  # and its environments
from literate_rl.impala import IMPALA
from literate_rl.policies import Policy, make_policy
from literate_rl.ppg import PPGAlgorithm, PPGConfig, make_phasic_policy, ppg_settings
from literate_rl.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.workshop.cluster import RayActors
from literate_rl.workshop.fast import numpy_act
from literate_rl.workshop.runs import (
    Learner,
    Run,
    check_named,
    fit,
    flat_env,
    has_screen,
    record_video,
    show,
)

__all__ = ["Command", "main"]

# %% [markdown]
# ## What a command says
#
# The settings of the algorithm are options beside four of our own, and
# [tyro](https://brentyi.github.io/tyro/) reads their names, types and help from the dataclasses.


# %% tags=["export"]
Config = TypeVar("Config")
DEFAULT_ENV = "CartPole-v1"


@dataclass(frozen=True)
class Command(Generic[Config]):
    """Train an agent and keep the run in a directory.

    Attributes:
        env: Id of a Gymnasium environment with discrete, box or hybrid actions;
            module:id imports a module that registers it first, and has to be named
            again to resume. The default is CartPole-v1.
        name: Directory of the run, below runs/. The default tells the environment, the
            algorithm, the seed and the time.
        resume: Directory of a run to go on with. The run keeps its own settings.
        watch: Whether to show the trained agent, or film it where there is no screen.
        config: Settings of the algorithm.
    """

    config: tyro.conf.OmitArgPrefixes[Config]
    env: str | None = None
    name: str | None = None
    resume: Path | None = None
    watch: bool = False


# %% [markdown]
# The defaults of many settings depend on the environment. So `--env` is read first.


# %% tags=["export"]
def parse(algorithm: str, arguments: list[str]) -> Command[Any]:
    """Read the command line. What the defaults are depends on the environment."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env")
    env = first.parse_known_args(arguments)[0].env
    config_class, settings, _ = ALGORITHMS[algorithm]
    command: Any = Command[config_class]  # type: ignore[valid-type]
    parsed: Command[Any] = tyro.cli(
        command,
        prog=f"python -m literate_rl {algorithm}",
        args=arguments,
        default=Command(env=env, config=settings(env or DEFAULT_ENV)),
    )
    return parsed


# %% [markdown]
# ## From an environment to a learner
#
# Each algorithm has a function that builds environments, policy and learner.


# %% tags=["export"]
def make_ppo(env: str, config: PPOConfig) -> PPO:
    """Build the environments, the policy that fits them and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    observations, actions = envs.single_observation_space, envs.single_action_space
    device = best_device()
    policy = pick_policy(observations, actions, config.normalize_obs).to(device)
    # The fast form gives the same numbers, where it exists.
    plain = not isinstance(actions, spaces.Tuple | spaces.Dict)
    act = numpy_act(policy) if device.type == "cpu" and plain else None
    return PPO(policy, envs, config, act)


def make_ppg(env: str, config: PPGConfig) -> PPGAlgorithm:
    """Build the environments, the policy with two values and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    observations = picture_space(env) or envs.single_observation_space
    with legible_refusal():
        policy = make_phasic_policy(
            observations,
            envs.single_action_space,
            config.share_encoder,
            config.detach,
            normalize=config.normalize_obs,
        )
    return PPGAlgorithm(policy.to(best_device()), envs, config)


def picture_space(env: str) -> spaces.Space[Any] | None:
    """Return the space of an environment's observations if they are pictures."""
    with flat_env(env) as made:
        space = getattr(made, "env", made).observation_space
    return space if len(space.shape or ()) == 3 else None


def make_impala(env: str, config: ActorsConfig) -> IMPALA | ActorLearner:
    """Build the environments, the policy that fits them and the learner."""
    seed_everything(config.seed)
    build = partial(make_envs, partial(flat_env, env), config.n_sample)
    envs = build()
    observations, actions = envs.single_observation_space, envs.single_action_space
    policy = pick_policy(observations, actions, normalize=False).to(best_device())
    if config.actors is None:
        return IMPALA(policy, envs, config)
    envs.close()
    cluster = partial(RayActors, address=config.address)
    on_ray = cluster if config.transport == "ray" else None
    return ActorLearner(policy, build, config, on_ray)


# %% [markdown]
# In one table, with the settings that each algorithm has for an environment:


# %% tags=["export"]
class Algorithm(NamedTuple):
    """What the command line knows of an algorithm."""

    config: type[Any]
    settings: Callable[[str], Any]
    make: Callable[[str, Any], Learner]


ALGORITHMS = {
    "ppo": Algorithm(PPOConfig, ppo_settings, make_ppo),
    "ppg": Algorithm(PPGConfig, ppg_settings, make_ppg),
    "impala": Algorithm(ActorsConfig, actors_settings, make_impala),
}


# %% [markdown]
# PPO takes hybrid actions too. Where a policy cannot be built, the message should speak of the
# environment and not of our functions.


# %% tags=["export"]
def pick_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    normalize: bool,
) -> Policy:
    """Build the policy that fits the spaces of one environment."""
    with legible_refusal():
        if isinstance(action_space, spaces.Tuple | spaces.Dict):
            return make_hybrid_policy(
                observation_space, action_space, normalize=normalize
            )
        return make_policy(observation_space, action_space, normalize=normalize)


@contextmanager
def legible_refusal() -> Iterator[None]:
    """Say in the words of the command line which actions a policy can take."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(
            "the environment's actions must be Discrete, a Box with one dimension or "
            f"Tuple(Discrete(K), Tuple(K Boxes)): {error}"
        ) from error


# %% [markdown]
# ## Start and resume
#
# A new run gets a directory of its own below `runs/`.


# %% tags=["export"]
def run_directory(name: str) -> Path:
    """Return the directory of a new run, below runs/."""
    name = name.replace("/", "_")
    if Path(name).name != name or name == "..":
        raise ValueError(f"name must be that of a directory below runs/, got {name!r}")
    return Path("runs") / name


def start(algorithm: str, command: Command[Any]) -> tuple[Run, Learner]:
    """Begin a new run."""
    env, config = command.env or DEFAULT_ENV, command.config
    name = command.name or f"{env}__{algorithm}__{config.seed}__{time.time():.0f}"
    directory = run_directory(name)
    learner = ALGORITHMS[algorithm].make(env, config)
    settings = {"algorithm": algorithm, "env": env, "config": asdict(config)}
    return Run(directory, settings), learner


# %% [markdown]
# A run that goes on keeps its settings. They come from a file that somebody else may have written,
# so what could run code of others must be typed again, and nothing is touched before all of it
# fits ({doc}`runs`).


# %% tags=["export"]
def resume(
    directory: Path, algorithm: str, command: Command[Any]
) -> tuple[Run, Learner]:
    """Go on with a run. Its directory is not touched before all of it fits."""
    run = Run(directory, resume=True)
    stored, source = run.settings, directory / "settings.json"
    if stored.get("algorithm") != algorithm:
        raise ValueError(
            f"{source}: algorithm is {stored.get('algorithm')!r}, "
            f"but the command is {algorithm!r}"
        )
    known = ALGORITHMS[algorithm]
    env, config = stored.get("env"), settings_of(known.config, stored, source)
    if not isinstance(env, str):
        raise ValueError(f"{source}: env must be a string, got {env!r}")
    named = (command.env, getattr(command.config, "address", None))
    for (option, value, runs_code), typed in zip(
        options_that_run_code(env, config), named, strict=True
    ):
        check_named(option, value, typed, runs_code)
    learner = known.make(env, config)
    run.restore(learner)
    return run, learner


def options_that_run_code(env: str, config: Any) -> list[tuple[str, str | None, bool]]:
    """Return what may run code of others: options, values, and whether these do."""
    address = getattr(config, "address", None)
    # An address is an option of these actors only.
    join = f"--actors {getattr(config, 'actors', None)} --transport ray --address"
    return [("--env", env, ":" in env), (join, address, address is not None)]


def settings_of(config: type[Any], stored: dict[str, Any], source: Path) -> Any:
    """Build the settings that a file holds; they say themselves what they take."""
    values, known = stored.get("config"), {field.name for field in fields(config)}
    if not isinstance(values, dict):
        raise ValueError(f"{source}: config must be an object, got {values!r}")
    for name in values:
        if name not in known:
            raise ValueError(f"{source}: there is no setting {name!r}")
    try:
        return config(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error


# %% [markdown]
# ## Train and report


# %% tags=["export"]
def train(algorithm: str, command: Command[Any]) -> tuple[str, Run, Learner]:
    """Run or resume a training; return environment, run and learner."""
    if command.resume is None:
        run, learner = start(algorithm, command)
    else:
        run, learner = resume(command.resume, algorithm, command)
    with run, ExitStack() as stack:
        print(f"run directory: {run.directory}")
        if isinstance(learner, ActorLearner):
            stack.enter_context(learner)  # no actor outlives the training
        fit(learner, run)
    return run.settings["env"], run, learner


def report(env: str, run: Run, learner: Learner, watch: bool) -> None:
    """Say what became of a run, and show the agent on request."""
    print(f"checkpoint:    {run.checkpoint}")
    if learner.step < learner.config.total_steps:
        again = f"--resume {run.directory}"
        for option, value, runs_code in options_that_run_code(env, learner.config):
            again += f" {option} {value}" if runs_code else ""
        print(f"interrupted at step {learner.step}, go on with {again}")
        return
    returns = evaluate(learner.policy, env, episodes=20, seed=learner.config.seed + 1)
    mean, deviation = returns.mean(), returns.std()
    print(f"return of 20 episodes without noise: {mean:.1f} ± {deviation:.1f}")
    if watch and has_screen():
        show(learner.policy, env)
    elif watch:
        video = run.directory / "video.mp4"
        record_video(learner.policy, env, video)
        print(f"video:         {video}")


# %% [markdown]
# What goes wrong is one line on the screen, not a traceback.


# %% tags=["export"]
def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m literate_rl")
    parser.add_argument("algorithm", choices=list(ALGORITHMS))
    arguments = sys.argv[1:] if arguments is None else arguments
    algorithm: Any = parser.parse_args(arguments[:1]).algorithm
    command = parse(algorithm, arguments[1:])
    torch.set_num_threads(1)  # the networks are too small to be shared out
    try:
        report(*train(algorithm, command), command.watch)
    except (ValueError, OSError) as error:
        sys.exit("error: " + " ".join(str(error).splitlines()))


# %% [markdown]
# ## See it
#
# A short run, one that goes on where it has stopped, and a word that the settings do not know. A
# notebook starts them as commands:

# %%
import subprocess
import tempfile

place = tempfile.TemporaryDirectory()


def run(words):
    """Run a command in an empty directory and print what it prints."""
    command = [sys.executable, "-m", "literate_rl", *words.split()]
    done = subprocess.run(command, cwd=place.name, capture_output=True, text=True)
    print(f"$ python -m literate_rl {words}")
    lines = [line.strip("─╭╮╰╯│ ") for line in done.stderr.splitlines()]
    print(done.stdout or [line for line in lines if "rror" in line][-1])
    return done


short = run("ppo --name first --total-steps 2048")
refused = run("ppo --name first --total-steps 2048")
wrong = run("ppo --name second --gamma 2")

# %% tags=["claims"]
assert short.returncode == 0
assert "checkpoint" in short.stdout, "the run is kept"
assert refused.returncode != 0, "a directory holds one run"
assert wrong.returncode != 0, "a setting out of range"

# %% [markdown]
# ## References
#
# The options are made by [tyro](https://brentyi.github.io/tyro/). The way a run is kept is that of
# {doc}`runs`.

# Generated from chapters/workshop/cli.py (edit there); digest 820372356bbb2935
"""The command line: train agents, resume them and watch them."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import (
    Any,
    Generic,
    TypeVar,
)

import torch
import tyro

from literate_rl.evaluation import evaluate
from literate_rl.workshop.doctor import main as look_at
from literate_rl.workshop.episodes import told
from literate_rl.workshop.interfaces import Learner
from literate_rl.workshop.nests import MODELS
from literate_rl.workshop.runs import (
    RENAMED,
    Run,
    about,
    check_named,
    fit,
    has_screen,
    record_video,
    show,
    todays_names,
)
from literate_rl.workshop.training import (
    ALGORITHMS,
    Device,
    Place,
    ended,
    handed_in,
    import_model,
    make_learner,
    placing,
    settings_of_run,
)

__all__ = ["Command", "main"]


Config = TypeVar("Config")
DEFAULT_ENV = "CartPole-v1"


@dataclass(frozen=True)
class Command(Generic[Config]):
    """Train an agent and keep the run in a directory.

    Attributes:
        env: Id of a Gymnasium environment with discrete, box or hybrid actions;
            module:id imports a module that registers it first, and has to be named
            again to resume. The default is CartPole-v1.
        name: Directory of the run, below runs/. The default is made of the environment,
            the algorithm, the seed and the time.
        resume: Directory of a run to continue. The run keeps its own settings.
        watch: Whether to show the trained agent, or film it where there is no screen.
        device: Where the networks are while they train; auto is CUDA if there is one
            and they are large enough for it to pay. A run may go on on another device.
        qnet: A Q network of your own, module:name of a class or function that makes it
            without arguments. It is checked against the contract of the algorithm
            first, and has to be named again to resume.
        actor: An actor of your own, likewise.
        critic: A critic of your own, likewise.
        encoder: An encoder of your own for our networks: a class without arguments, or
            a function from the space of observations. It is named again likewise.
        config: Settings of the algorithm.
    """

    config: tyro.conf.OmitArgPrefixes[Config]
    env: str | None = None
    name: str | None = None
    resume: Path | None = None
    watch: bool = False
    device: Device = "auto"
    qnet: str | None = None
    actor: str | None = None
    critic: str | None = None
    encoder: str | None = None

    @property
    def models(self) -> dict[str, str]:
        """The models of your own, by their names in the contract."""
        given = {name: getattr(self, name) for name in MODELS}
        return {name: where for name, where in given.items() if where is not None}


def parse(algorithm: str, arguments: list[str]) -> Command[Any]:
    """Read the command line. The defaults depend on the environment."""
    prog = f"python -m literate_rl {algorithm}"
    first = argparse.ArgumentParser(prog, add_help=False, allow_abbrev=False)
    first.add_argument("--env")
    env = first.parse_known_args(arguments)[0].env
    config_class, settings = ALGORITHMS[algorithm][:2]
    known = {field.name for field in fields(config_class)}
    for name in RENAMED.keys() - known:
        words, option = about(name, known), f"--{name}"
        if words and option in (argument.partition("=")[0] for argument in arguments):
            first.error(f"there is no option {option}{words}")
    command: Any = Command[config_class]  # type: ignore[valid-type]
    parsed: Command[Any] = tyro.cli(
        command,
        prog=prog,
        args=arguments,
        default=Command(env=env, config=settings(DEFAULT_ENV if env is None else env)),
    )
    return parsed


def apex_of(options: list[str]) -> tuple[str, list[str]]:
    """Return which learner the actors of ``apex`` work for, and the other options."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known = [name.removesuffix("apex") for name in ALGORITHMS if name.endswith("apex")]
    parser.add_argument("--algorithm", choices=known, default=known[0])
    given, others = parser.parse_known_args(options)
    return f"{given.algorithm}apex", others


def run_directory(name: str) -> Path:
    """Return the directory of a new run, below runs/."""
    name = name.replace("/", "_")
    if Path(name).name != name or name in ("", ".."):
        raise ValueError(f"name must be that of a directory below runs/, got {name!r}")
    return Path("runs") / name


def start(algorithm: str, command: Command[Any], place: Place) -> tuple[Run, Learner]:
    """Begin a new run."""
    env = DEFAULT_ENV if command.env is None else command.env
    name, config = command.name, command.config
    if name is None:
        name = f"{env}__{algorithm}__{config.seed}__{time.time():.0f}"
    directory = run_directory(name)
    models = {name: import_model(name, where) for name, where in command.models.items()}
    learner = make_learner(algorithm, env, config, models, place=place)
    # Models are stored as they were typed, so that they can be typed again.
    settings = settings_of_run(algorithm, env, config, {}) | {"models": command.models}
    return Run(directory, settings), learner


def resume(
    directory: Path, algorithm: str, command: Command[Any], place: Place
) -> tuple[Run, Learner]:
    """Resume a run. Its directory is not touched before everything is checked."""
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
    for name, model in models_of(stored, source).items():
        if name not in command.models:
            option = f"--{name} {shlex.quote(model)}"
            raise ValueError(f"the run has a model of your own: add {option}")
    check_unchanged(algorithm, config, command)
    models = {name: import_model(name, where) for name, where in command.models.items()}
    learner = make_learner(algorithm, env, config, models, place=place)
    run.restore(learner)
    return run, learner


def models_of(stored: dict[str, Any], source: Path) -> dict[str, str]:
    """Return the models of one's own that a file names."""
    models = stored.get("models") or {}
    if not isinstance(models, dict) or not all(
        name in MODELS and isinstance(where, str) for name, where in models.items()
    ):
        names = ", ".join(MODELS)
        raise ValueError(
            f"{source}: models must be an object of texts by the names {names}, "
            f"got {models!r}"
        )
    return models


def check_unchanged(algorithm: str, config: Any, command: Command[Any]) -> None:
    """Raise if the command line asks for what a resumed run cannot change."""
    if command.name is not None:
        raise ValueError(f"a resumed run keeps its name: leave out {command.name!r}")
    env = DEFAULT_ENV if command.env is None else command.env
    default = ALGORITHMS[algorithm].settings(env)
    for name in (field.name for field in fields(config)):
        typed, stored = getattr(command.config, name), getattr(config, name)
        # What equals the default was probably not typed.
        if typed not in (stored, getattr(default, name)):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"a resumed run keeps its settings: {option} is {stored!r}, "
                f"not {typed!r}"
            )


def options_that_run_code(env: str, config: Any) -> list[tuple[str, str | None, bool]]:
    """Return options that can run other people's code, their values, and if they do."""
    address = getattr(config, "address", None)
    # Only actors on Ray use an address.
    join = f"--actors {getattr(config, 'actors', None)} --transport ray --address"
    return [("--env", env, ":" in env), (join, address, address is not None)]


def settings_of(config: type[Any], stored: dict[str, Any], source: Path) -> Any:
    """Build the settings that a file holds; their class checks the values."""
    values, known = stored.get("config"), {field.name for field in fields(config)}
    if not isinstance(values, dict):
        raise ValueError(f"{source}: config must be an object, got {values!r}")
    values = todays_names(values, known)
    for name in values:
        if name not in known:
            raise ValueError(f"{source}: there is no setting {name!r}")
    try:
        return config(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error


def carry_out(algorithm: str, command: Command[Any]) -> tuple[str, Run, Learner]:
    """Run or resume a training; return environment, run and learner."""
    with placing(command.device) as place:
        if command.resume is None:
            run, learner = start(algorithm, command, place)
        else:
            run, learner = resume(command.resume, algorithm, command, place)
        try:
            with run, ended(learner):
                print(f"run directory: {run.directory}")
                print(handed_in(learner), flush=True)
                fit(learner, run)
        except Exception as error:
            # Before anything was learned there is nothing to go on with.
            if run.held is not None and run.saved:
                words = again(run, learner)
                error.add_note(f"what was saved is kept, go on with {words}")
            elif run.held is not None:
                error.add_note(f"nothing was learned in {run.directory} before")
            raise
    return run.settings["env"], run, learner


def again(run: Run, learner: Learner) -> str:
    """Return the options that continue a run."""
    words = f"--resume {shlex.quote(str(run.directory))}"
    options = options_that_run_code(run.settings["env"], learner.config)
    for option, value, runs_code in options:
        words += f" {option} {shlex.quote(str(value))}" if runs_code else ""
    for name, model in (run.settings.get("models") or {}).items():
        words += f" --{name} {shlex.quote(model)}"
    return words


def report(env: str, run: Run, learner: Learner, watch: bool) -> None:
    """Report how a run ended, and show the agent on request."""
    print(f"checkpoint:    {run.checkpoint}", flush=True)
    if learner.step < learner.config.total_steps:
        print(f"interrupted at step {learner.step}, go on with {again(run, learner)}")
        return
    returns = evaluate(learner.policy, env, episodes=20, seed=learner.config.seed + 1)
    mean, deviation = returns.mean(), returns.std()
    # An actor of the user's that cannot be greedy draws here as well.
    model = getattr(getattr(learner.policy, "actor", None), "model", None)
    greedy = model is None or callable(getattr(model, "mode", None))
    how = "without noise" if greedy else "as it draws"
    print(f"return of 20 episodes {how}: {mean:.1f} ± {deviation:.1f}")
    if watch and has_screen():
        print("a window shows one episode; Ctrl-C closes it", flush=True)
        show(learner.policy, env)
    elif watch:
        video = run.directory / "video.mp4"
        record_video(learner.policy, env, video)
        print(f"video:         {video}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m literate_rl")
    parser.add_argument("algorithm", choices=[*ALGORITHMS, "apex", "look"])
    arguments = sys.argv[1:] if arguments is None else arguments
    algorithm: Any = parser.parse_args(arguments[:1]).algorithm
    options = arguments[1:]
    if algorithm == "look":  # at a run that is there
        return look_at(options)
    if algorithm == "apex":
        algorithm, options = apex_of(options)
    command = parse(algorithm, options)
    torch.set_num_threads(1)  # the networks are too small to be shared out
    try:
        report(*carry_out(algorithm, command), command.watch)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        # The messages of these are sentences. Others say less, so their place is told.
        sentence = isinstance(error, ValueError | OSError)
        words = [str(error) if sentence else told(error)]
        words += getattr(error, "__notes__", [])
        sys.exit("error: " + " ".join("; ".join(words).split()))

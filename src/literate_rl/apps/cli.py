# Generated from chapters/workshop/cli.py (edit there); digest a2c0203071225592
"""The command line: train agents, resume them and watch them."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import (
    Any,
    Generic,
    TypeVar,
)

import torch
import tyro

from literate_rl.actors.actors import TransportConfig
from literate_rl.runs.evaluation import evaluate
from literate_rl.data.episodes import in_one_line, without_folder
from literate_rl.ground.protocols import Learner
from literate_rl.ground.nests import MODELS
from literate_rl.ground.networks import randomness_kept
from literate_rl.runs.runs import (
    Run,
    about,
    fit,
    has_screen,
    make_visible,
    is_command,
    record_video,
    show,
)
from literate_rl.apps.training import (
    ALGORITHMS,
    Asked,
    Device,
    Fast,
    Place,
    World,
    address_option,
    ended,
    import_model,
    models_of,
    opening,
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
        env: Id of a Gymnasium environment, or module:name or file.py:name of a class or
            function that makes one; module:id imports a module that registers it first.
            What imports a module has to be named again to resume. The default is
            CartPole-v1.
        wrappers: What is put around each environment, the first one innermost, by
            Gymnasium's names, as in TimeAwareObservation 'FrameStackObservation(4)';
            module:name is one of your own.
        mask: Which type of a hybrid action uses which argument, where the space does
            not say it: a word for each type, as in 10 01 00.
        name: Directory of the run, below runs/. The default is made of the environment,
            the algorithm, the seed and the time.
        resume: Directory of a run to continue. The run keeps its own settings.
        watch: Whether to show the trained agent, or film it where there is no screen.
        device: Where the networks are while they train; auto is CUDA if there is one
            and they are large enough for it to pay. A run may go on on another device.
        fast: Which forms of acting and learning are used: auto is those that fit, plain
            is none; with "by hand" PPO backpropagates in NumPy, for small networks of
            linear layers, and PPG writes the gradient of its auxiliary phase at the
            heads. The numbers are the same up to rounding.
        qnet: A Q network of your own, module:name of a class or function that makes it
            without arguments. It is checked against the contract of the algorithm
            first, and has to be named again to resume.
        actor: An actor of your own, likewise.
        critic: A critic of your own, likewise.
        encoder: An encoder of your own for our networks: a class without arguments, or
            a function from the space of observations. It is named again likewise.
        config: Settings of the algorithm.
        typed: Which of them were typed.
    """

    config: tyro.conf.OmitArgPrefixes[Config]
    env: str | None = None
    wrappers: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    name: str | None = None
    resume: Path | None = None
    watch: bool = False
    device: Device = "auto"
    fast: Fast = "auto"
    qnet: str | None = None
    actor: str | None = None
    critic: str | None = None
    encoder: str | None = None
    typed: tyro.conf.Suppress[tyro.conf.Fixed[tuple[str, ...]]] = ()

    @property
    def models(self) -> dict[str, str]:
        """The models of your own, by their names in the contract."""
        given = {name: getattr(self, name) for name in MODELS}
        return {name: where for name, where in given.items() if where is not None}

    def asked(self, algorithm: str) -> Asked:
        """Return what the command asks for."""
        env = DEFAULT_ENV if self.env is None else self.env
        models = {name: import_model(name, x) for name, x in self.models.items()}
        if self.mask:
            models["mask"] = mask_of(self.mask)
        changes = {name: getattr(self.config, name) for name in self.typed}
        wanted = env if self.resume is None else self.env
        asked = algorithm, wanted, self.wrappers, models, changes, self.fast
        return Asked(*asked, dash="--")


def mask_of(words: Sequence[str]) -> list[list[int]]:
    """Read a mask of which each word is a row."""
    if {*"".join(words)} - {*"01"} or len({*map(len, words)}) > 1:
        raise ValueError(
            "mask must be words of zeros and ones, all of one length, as in 10 01, got "
            f"{' '.join(words)}"
        )
    return [[*map(int, row)] for row in words]


def parse(algorithm: str, arguments: list[str]) -> Command[Any]:
    """Read the command line. The defaults depend on the environment."""
    prog = f"literate-rl {algorithm}"
    first = argparse.ArgumentParser(prog, add_help=False, allow_abbrev=False)
    first.add_argument("--env")
    env = first.parse_known_args(arguments)[0].env
    config_class, settings = ALGORITHMS[algorithm][:2]
    known = {field.name for field in fields(config_class)}
    options = [x.partition("=")[0] for x in arguments if x.startswith("--")]
    names = [option[2:].replace("-", "_") for option in options]
    for option, name in zip(options, names, strict=True):
        if name not in known and (words := about(name, known, "--")):
            first.error(f"there is no option {option}{words}")
    command: Any = Command[config_class]  # type: ignore[valid-type]
    parsed: Command[Any] = tyro.cli(
        command,
        prog=prog,
        args=arguments,
        default=Command(env=env, config=settings(DEFAULT_ENV if env is None else env)),
    )
    # A value that was typed counts, also where it is the default.
    typed = {x if x in known else x.removeprefix("no_") for x in names} & known
    return replace(parsed, typed=tuple(sorted(typed)))


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


def check_watch(command: Command[Any], world: Any) -> None:
    """Raise before the training, not after it, if an agent could not be watched."""
    if command.watch:
        make_visible(world, "human" if has_screen() else "rgb_array").close()


def check_models(command: Command[Any], run: Run) -> None:
    """Raise if a model was typed that is not the one of a run."""
    stored = models_of(run.settings, run.directory / "settings.json")
    for name, typed in command.models.items():
        kept = stored.get(name, "none of your own")
        # What a script or a notebook has defined has another name here.
        same = without_folder(kept) == without_folder(typed)
        if not same and not kept.startswith("__main__:"):
            raise ValueError(f"the run has --{name} {kept}, not {typed}")


def start(
    algorithm: str, command: Command[Any], place: Place
) -> tuple[Run, Learner, World]:
    """Begin a new run, or go on with one."""
    if command.resume is not None:
        if command.name is not None:
            raise ValueError(
                f"a resumed run keeps its name: leave out {command.name!r}"
            )
        run = Run(command.resume, resume=True)
        check_models(command, run)
        learner, world = command.asked(algorithm).again(run, True, place)
        check_watch(command, world)
        return run, learner, world
    env = DEFAULT_ENV if command.env is None else command.env
    name = command.name
    if name is None:
        name = f"{env}__{algorithm}__{command.config.seed}__{time.time():.0f}"
    directory = run_directory(name)
    asked = command.asked(algorithm)
    learner, world = asked.new(True, place)
    check_watch(command, world)
    # Models are stored as they were typed, so that they can be typed again.
    settings = settings_of_run(algorithm, world, learner.config, asked.models)
    return Run(directory, settings | {"models": command.models}), learner, world


def carry_out(algorithm: str, command: Command[Any]) -> tuple[World, Run, Learner]:
    """Run or resume a training; return environment, run and learner."""
    with placing(command.device) as place:
        run, learner, world = start(algorithm, command, place)
        try:
            with run, ended(learner):
                print(f"run directory: {run.directory}")
                print(opening(learner), flush=True)
                fit(learner, run)
        except BaseException as error:
            # Before anything was learned there is nothing to go on with.
            if run.held is not None and run.saved:
                words = again(run, learner)
                error.add_note(f"what was saved is kept, go on with {words}")
            elif run.held is not None and run.logged:
                look = shlex.join(["literate-rl", "look", str(run.directory)])
                error.add_note(f"no checkpoint was kept, only metrics: {look}")
            elif run.held is not None:
                error.add_note(f"nothing was learned in {run.directory} before")
            raise
    return world, run, learner


def again(run: Run, learner: Learner) -> str:
    """Return the options that continue a run."""
    stored, config = run.settings, learner.config
    words = ["--resume", str(run.directory)]
    if ":" in stored["env"]:
        words += ["--env", stored["env"]]
    if any(map(is_command, stored.get("wrappers", []))):
        words += ["--wrappers", *stored["wrappers"]]
    if isinstance(config, TransportConfig) and config.address is not None:
        words += [*f"--{address_option(config)}".split(), config.address]
    for name, model in (stored.get("models") or {}).items():
        words += [f"--{name}", model]
    return shlex.join(words)


def report(env: Any, run: Run, learner: Learner, watch: bool) -> None:
    """Report how a run ended, and show the agent on request."""
    print(f"checkpoint:    {run.checkpoint}", flush=True)
    if learner.step < learner.config.total_steps:
        print(f"go on with {again(run, learner)}")
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
    else:
        words = f"{run.settings['algorithm']} {again(run, learner)}"
        print(f"watch it:      literate-rl {words} --watch")
    models = [f"{name}=..." for name in run.settings.get("models") or {}]
    arguments = ", ".join([repr(str(run.directory)), *models])
    print(f"load it:       literate_rl.load({arguments})")


@randomness_kept()
def main(arguments: list[str] | None = None) -> None:
    """Train with the algorithm that comes first, as the options behind it say."""
    algorithm, *options = sys.argv[1:] if arguments is None else arguments
    if algorithm == "apex":
        algorithm, options = apex_of(options)
    command = parse(algorithm, options)
    torch.set_num_threads(1)  # the networks are too small to be shared out
    try:
        report(*carry_out(algorithm, command), command.watch)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a simulator may raise what is no `Exception`
        if sys.flags.dev_mode:
            raise
        sys.exit(f"error: {in_one_line(error)}")

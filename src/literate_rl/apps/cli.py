# Generated from chapters/apps/cli.py (edit there); digest c6d35cefefbbe589
"""The command line: train agents, resume them and watch them."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import tyro

from literate_rl.apps.trained import see
from literate_rl.apps.training import (
    Asked,
    Device,
    Fast,
    Training,
    algorithm_named,
    placing,
    read_mask,
    settings_like,
)
from literate_rl.data.makers import from_file, in_file
from literate_rl.ground.nests import MODELS
from literate_rl.ground.networks import randomness_kept
from literate_rl.ground.rows import ALGORITHMS, ONCE
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import about, as_typed, has_screen, warn_once_named

__all__ = ["Command", "main"]


Config = TypeVar("Config")
DEFAULT_ENV = "CartPole-v1"


@dataclass(frozen=True)
class Command(Generic[Config]):
    """Train an agent and keep the run in a directory.

    Attributes:
        env: Id of a Gymnasium environment, or module:name or file.py:name of a class or
            function that makes one; module:id imports a module that registers it first.
            What imports a module or a file has to be named again to resume. The
            default is CartPole-v1.
        wrappers: What is put around each environment, the first one innermost, by
            Gymnasium's names, as in TimeAwareObservation 'FrameStackObservation(4)';
            module:name is one of your own.
        like: Id of an environment whose settings are the defaults, where yours has none
            of its own.
        mask: Which type of a hybrid action uses which argument, where the space does
            not say it: a word for each type, as in 10 01 00.
        name: Directory of the run, below runs/. The default is made of the environment,
            the algorithm, the seed and the time.
        resume: Directory of a run to continue. The run keeps its own settings, but
            total_steps may be larger.
        watch: Whether to show the trained agent, or film it where there is no screen.
        eval_interval: Steps from one evaluation to the next, in an environment of its
            own. The policy that did best is kept in best.pt.
        eval_episodes: Greedy episodes of each evaluation, by default 10.
        log_infos: What to log of info at the end of episodes, as in is_success.
        device: Where the networks are while they train; auto is CUDA if there is one
            and they are large enough for it to pay. A run may go on on another device.
        fast: Which forms of acting and learning are used: auto is those that fit, plain
            is none; with "by hand" PPO backpropagates in NumPy, for small networks of
            linear layers. The numbers are the same up to rounding.
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
    like: str | None = None
    mask: tuple[str, ...] = ()
    name: str | None = None
    resume: Path | None = None
    watch: bool = False
    eval_interval: int | None = None
    eval_episodes: int | None = None
    log_infos: tuple[str, ...] = ()
    device: Device = "auto"
    fast: Fast = "auto"
    qnet: str | None = None
    actor: str | None = None
    critic: str | None = None
    encoder: str | None = None
    typed: tyro.conf.Suppress[tyro.conf.Fixed[tuple[str, ...]]] = ()

    def asked(self, algorithm: str) -> Asked:
        """Return what the command asks for."""
        config: Any = self.config
        env, directory = self.env, None
        if self.resume is None:
            env = DEFAULT_ENV if env is None else env
            new = f"{env}__{algorithm}__{config.seed}__{time.time():.0f}"
            directory = run_directory(new if self.name is None else self.name)
        elif self.name is not None:
            raise ValueError(f"a resumed run keeps its name: leave out {self.name!r}")
        given = {name: getattr(self, name) for name in MODELS}
        if self.mask:
            rows = [[int(x) if x in "01" else x for x in row] for row in self.mask]
            given["mask"] = read_mask(rows)
        return Asked(
            algorithm,
            env,
            self.wrappers,
            {name: x for name, x in given.items() if x is not None},
            {name: getattr(config, name) for name in self.typed},
            self.resume,
            self.fast,
            eval_interval=self.eval_interval,
            eval_episodes=self.eval_episodes,
            log_infos=self.log_infos,
            like=self.like,
            directory=directory,
            look=("human" if has_screen() else "rgb_array") if self.watch else "",
            dash="--",
        )


def parse(word: str, arguments: list[str]) -> Command[Any]:
    """Read the command line. The defaults depend on the environment."""
    row: Any = ALGORITHMS[algorithm_named(word)]
    prog = f"literate-rl {word}"
    first = argparse.ArgumentParser(prog, add_help=False, allow_abbrev=False)
    first.add_argument("--env")
    first.add_argument("--like")
    given = first.parse_known_args(arguments)[0]
    known = {field.name for field in fields(row.config)}
    words, names = [], []
    for word in arguments:
        option, equals, value = word.partition("=")
        name = option[2:].replace("-", "_")
        if option[:2] == "--":
            if name in ONCE:
                name = warn_once_named(name, "--")
                option = as_typed(name, "--")
                if option in {x.partition("=")[0] for x in arguments}:
                    first.error(f"{option} was given twice, also by its old name")
            elif name not in known and (hint := about(name, known, "--")):
                first.error(f"there is no option {option}{hint}")
            names.append(name)
        words.append(option + equals + value)
    command: Any = Command[row.config]
    settings = row.settings(DEFAULT_ENV if given.env is None else given.env)
    if given.like is not None:
        settings = settings_like(given.like, row)
    default = Command(env=given.env, config=settings)
    parsed: Command[Any] = tyro.cli(command, prog=prog, args=words, default=default)
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


def report(word: str, training: Training, watch: bool) -> None:
    """Report how a run ended, and show the agent on request."""
    run, learner, env = training.run, training.learner, training.world
    print(f"checkpoint:    {run.checkpoint}", flush=True)
    if learner.step < learner.config.total_steps:
        print(f"go on with {training.again()}")
        return
    returns = evaluate(learner.policy, env, episodes=20, seed=learner.config.seed + 1)
    mean, deviation = returns.mean(), returns.std()
    # An actor of the user's that cannot be greedy draws here as well.
    model = getattr(getattr(learner.policy, "actor", None), "model", None)
    greedy = model is None or callable(getattr(model, "mode", None))
    how = "without noise" if greedy else "as it draws"
    print(f"return of 20 episodes {how}: {mean:.1f} ± {deviation:.1f}")
    if watch:
        see(learner.policy, env, run.directory / "video.mp4")
    else:
        print(f"watch it:      literate-rl {word} {training.again()} --watch")
    models = [f"{name}=..." for name in run.settings.get("models") or {}]
    arguments = ", ".join([repr(str(run.directory)), *models])
    # One of the user's own has to be known first.
    module = from_file(word).partition(":")[0] if in_file(word) or ":" in word else ""
    first = f"import {module}; " if module else ""
    print(f"load it:       {first}literate_rl.load({arguments})")


@randomness_kept()
def main(arguments: list[str]) -> None:
    """Train with the algorithm that comes first, as the options behind it say."""
    word, *options = arguments
    torch.set_num_threads(1)  # the networks are too small to be shared out
    if word == "apex":
        word, options = apex_of(options)
    command = parse(word, options)
    with placing(command.device) as place:
        training = command.asked(algorithm_named(word)).start(place)
        print(f"run directory: {training.run.directory}")
        training.carry_out()
    report(word, training, command.watch)

"""Train agents and watch them: ``python -m literate_rl ppo --env CartPole-v1``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import tyro
from gymnasium import spaces

from literate_rl.actors import ActorLearner, ActorsConfig, actors_settings
from literate_rl.agents import best_device, make_envs, seed_everything
from literate_rl.hybrid_action import HybridPolicy  # also registers its environments
from literate_rl.impala import IMPALA, IMPALAPolicy
from literate_rl.ppg import PhasicPolicy, PPGAlgorithm, PPGConfig, ppg_settings
from literate_rl.ppo import (
    PPO,
    DiscretePolicy,
    GaussianPolicy,
    PPOConfig,
    make_policy,
    numpy_act,
    ppo_settings,
)
from literate_rl.ppo_error import fused_ppo_policy_error
from literate_rl.workshop.runs import (
    Learner,
    Run,
    evaluate,
    fit,
    flat_env,
    has_screen,
    record_video,
    show,
)

Config = TypeVar("Config")


@dataclass(frozen=True)
class Command(Generic[Config]):
    """Train an agent and keep the run in a directory.

    Attributes:
        env: Id of a Gymnasium environment with discrete, box or hybrid actions;
            module:id imports a module that registers it first.
        name: Directory of the run, below runs/. The default tells the environment, the
            algorithm, the seed and the time.
        resume: Directory of a run to go on with. The run keeps its own settings.
        watch: Whether to show the trained agent, or film it where there is no screen.
        config: Settings of the algorithm.
    """

    config: tyro.conf.OmitArgPrefixes[Config]
    env: str = "CartPole-v1"
    name: str | None = None
    resume: Path | None = None
    watch: bool = False


def parse(algorithm: str, arguments: list[str]) -> Command[Any]:
    """Read the command line. What the defaults are depends on the environment."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env", default=Command.env)
    env = first.parse_known_args(arguments)[0].env
    config_class, settings, _ = ALGORITHMS[algorithm]
    command: Any = Command[config_class]  # type: ignore[valid-type]
    parsed: Command[Any] = tyro.cli(
        command,
        prog=f"python -m literate_rl {algorithm}",
        args=arguments,
        default=Command(env=env, config=settings(env)),
    )
    return parsed


def make_ppo(env: str, config: PPOConfig) -> PPO:
    """Build the environments, the policy that fits them and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    observations, actions = envs.single_observation_space, envs.single_action_space
    device = best_device()
    policy = pick_policy(observations, actions, config.normalize_obs).to(device)
    # The fast forms give the same numbers, where they exist.
    act = None
    if device.type == "cpu" and not isinstance(policy, HybridPolicy):
        act = numpy_act(policy)
    error = fused_ppo_policy_error if isinstance(policy, DiscretePolicy) else None
    return PPO(policy, envs, config, act, error)


def make_ppg(env: str, config: PPGConfig) -> PPGAlgorithm:
    """Build the environments, the policy with two values and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    observations = picture_space(env) or envs.single_observation_space
    with legible_refusal():
        policy = PhasicPolicy(
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
    model = make_policy(envs.single_observation_space, envs.single_action_space)
    kind = "discrete" if isinstance(model, DiscretePolicy) else "continuous"
    impala = IMPALAPolicy(replace(config, action_space=kind), model)
    if config.actors is None:
        return IMPALA(impala, envs)
    envs.close()
    return ActorLearner(impala, build)


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


def pick_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    normalize: bool,
) -> DiscretePolicy | GaussianPolicy | HybridPolicy:
    """Build the policy that fits the spaces of one environment."""
    with legible_refusal():
        if isinstance(action_space, spaces.Tuple | spaces.Dict):
            size = spaces.flatdim(observation_space)
            return HybridPolicy(size, action_space, normalize=normalize)
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


def train(algorithm: str, command: Command[Any]) -> tuple[str, Run, Learner]:
    """Run or resume a training; return environment, run and learner."""
    if command.resume is None:
        config = command.config
        name = (
            command.name
            or f"{command.env}__{algorithm}__{config.seed}__{time.time():.0f}"
        )
        learner = ALGORITHMS[algorithm].make(command.env, config)
        settings = {
            "algorithm": algorithm,
            "env": command.env,
            "config": asdict(config),
        }
        run = Run(Path("runs") / name.replace("/", "_"), settings)
    else:
        run = Run(command.resume, resume=True)
        known = ALGORITHMS[run.settings["algorithm"]]
        config = known.config(**run.settings["config"])
        learner = known.make(run.settings["env"], config)
        run.restore(learner)
    print(f"run directory: {run.directory}")
    with run, ExitStack() as stack:
        if isinstance(learner, ActorLearner):
            stack.enter_context(learner)  # no actor outlives the training
        fit(learner, run)
    return run.settings["env"], run, learner


def report(env: str, run: Run, learner: Learner, watch: bool) -> None:
    """Say what became of a run, and show the agent on request."""
    print(f"checkpoint:    {run.checkpoint}")
    if learner.step < learner.total_steps:
        print(
            f"interrupted at step {learner.step}, go on with --resume {run.directory}"
        )
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
    except (
        ValueError,
        FileExistsError,
        FileNotFoundError,
        ChildProcessError,
    ) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

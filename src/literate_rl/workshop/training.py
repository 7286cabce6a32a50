# Generated from chapters/workshop/training.py (edit there); digest 47586f107a8e88f3
"""Training in one call: an algorithm by name, an environment, a network of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from gymnasium import spaces

from literate_rl.actors import ActorLearner, ActorsConfig, actors_settings
from literate_rl.agents import best_device, make_envs, seed_everything
from literate_rl.hybrid_ppo import make_hybrid_policy  # and its environments
from literate_rl.impala import IMPALA
from literate_rl.policies import Policy, make_policy
from literate_rl.ppg import PPGAlgorithm, PPGConfig, make_phasic_policy, ppg_settings
from literate_rl.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.workshop.cluster import RayActors
from literate_rl.workshop.fast import numpy_act
from literate_rl.workshop.runs import Learner, flat_env

__all__ = ["Agent", "train"]


MODELS = ("qnet", "actor", "critic")


def train(
    algorithm: str,
    env: str,
    *,
    check: bool = True,
    progress: bool = True,
    **options: Any,
) -> Agent:
    """Train an agent on an environment, until it is done or until Ctrl-C.

    Args:
        algorithm: Its name, in capitals or not: ``"DQN"``.
        env: Id of a Gymnasium environment.
        check: Whether models of your own are held against the contract first.
        progress: Whether to show a progress bar.
        options: Models of your own (``qnet``, or ``actor`` and ``critic``) and settings
            of the algorithm (``total_steps``, ``seed``, ...). What is left out is what
            suits the environment.

    Raises:
        ContractError: If a model of your own breaks the contract; nothing is trained.
    """
    name = algorithm.lower()
    if name not in ALGORITHMS:
        names = ", ".join(ALGORITHMS)
        raise ValueError(f"algorithm must be one of {names}, got {algorithm!r}")
    models = {key: options.pop(key) for key in MODELS if key in options}
    config = settings_with(ALGORITHMS[name].settings(env), options)
    learner = make_learner(name, env, config, models, check)
    folder = tempfile.TemporaryDirectory(prefix="literate_rl_")
    settings = settings_of_run(name, env, config, models)
    with Run(folder.name, settings) as run, ended(learner):
        history = fit(learner, run, progress)
    return Agent(learner, folder, history)


class Agent:
    """What ``train`` returns: a policy that has learned, and the run that taught it.

    Attributes:
        learner: The learner, with its ``policy`` and its ``config``.
        history: The metrics of each iteration.
    """

    def __init__(
        self,
        learner: Learner,
        folder: tempfile.TemporaryDirectory[str],
        history: list[dict[str, float]],
    ) -> None:
        self.learner, self.folder, self.history = learner, folder, history

    @property
    def policy(self) -> Any:
        """The policy, for ``evaluate``, ``record_video`` and ``show``."""
        return self.learner.policy

    def save(self, directory: str | Path) -> Path:
        """Keep the run in a new directory; return its path."""
        target = Path(directory)
        if target.exists():
            raise FileExistsError(f"{target} exists: choose another name")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Half a copy would look like a run, so the copy gets its name when it is whole.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy_") as place:
            copy = Path(place) / target.name
            shutil.copytree(self.folder.name, copy)
            copy.rename(target)
        return target


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


class Algorithm(NamedTuple):
    """What the command line knows of an algorithm."""

    config: type[Any]
    settings: Callable[[str], Any]
    make: Callable[..., Learner]


ALGORITHMS = {
    "ppo": Algorithm(PPOConfig, ppo_settings, make_ppo),
    "ppg": Algorithm(PPGConfig, ppg_settings, make_ppg),
    "impala": Algorithm(ActorsConfig, actors_settings, make_impala),
}


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


def settings_with(config: Any, changes: dict[str, Any]) -> Any:
    """Return settings with some changes, or say which settings there are."""
    names = [field.name for field in fields(config)]
    for name in changes:
        if name not in names:
            raise TypeError(f"there is no setting {name!r}, but {', '.join(names)}")
    return replace(config, **changes)


@contextmanager
def ended(learner: Learner) -> Iterator[None]:
    """Let no actor and no environment outlive a training."""
    try:
        yield
    finally:
        if isinstance(learner, RemoteLearner):
            learner.close()


def make_learner(
    algorithm: str, env: str, config: Any, models: dict[str, Any], check: bool = True
) -> Learner:
    """Build a learner, with models of one's own if they keep the contract."""
    known = ALGORITHMS[algorithm]
    if set(models) not in known.models:
        wanted = " or ".join(" and ".join(names) or "none" for names in known.models)
        raise ValueError(
            f"models of your own for {algorithm} must be {wanted}, "
            f"got {' and '.join(models) or 'none'}"
        )
    if models and check:
        check_model(algorithm, env=partial(gym.make, env), **models)
    return known.make(env, config, **models)


def settings_of_run(
    algorithm: str, env: str, config: Any, models: dict[str, Any]
) -> dict[str, Any]:
    """Return what the directory of a run says about it."""
    names = {
        name: f"{type(model).__module__}:{type(model).__qualname__}"
        for name, model in models.items()
    }
    return {
        "algorithm": algorithm,
        "env": env,
        "config": asdict(config),
        "models": names,
    }


def import_model(where: str) -> Any:
    """Make a model from ``module:name`` of a class or function without arguments."""
    module, colon, name = where.partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise ValueError(
            f"{where} must be module:name of a class or function that makes a model "
            f"without arguments: {type(error).__name__}: {error}"
        ) from error

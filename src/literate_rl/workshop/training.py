# Generated from chapters/workshop/training.py (edit there); digest ce1b66963c9de75d
"""Training in one call: an algorithm, an environment, a network of one's own."""

from __future__ import annotations

import copy
import importlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import gymnasium as gym
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from literate_rl.a2c import (
    A2C,
    A2CConfig,
    a2c_settings,
)
from literate_rl.a3c import A3C, A3CConfig, a3c_settings
from literate_rl.actors import (
    ActorLearner,
    ActorsConfig,
    MakeTransport,
    RemoteLearner,
    TransportConfig,
    actors_settings,
)
from literate_rl.agents import best_device, make_envs, seed_everything
from literate_rl.apex import (
    Apex,
    DDPGApexConfig,
    DQNApexConfig,
    RainbowApexConfig,
    apex_settings,
)
from literate_rl.contracts import check_model
from literate_rl.ddpg import (
    DDPG,
    DDPGConfig,
    ddpg_settings,
    make_ddpg_policy,
)
from literate_rl.discrete_sac import SETTINGS as LISTED
from literate_rl.discrete_sac import (
    DiscreteSAC,
    discrete_sac_settings,
    make_discrete_sac_policy,
)
from literate_rl.dqn import (
    DQN,
    DQNConfig,
    dqn_settings,
    make_q_policy,
)
from literate_rl.hybrid_policy import make_hybrid_policy  # and its environments
from literate_rl.impala import IMPALA
from literate_rl.loop import OffPolicy, OffPolicyConfig
from literate_rl.policies import make_policy
from literate_rl.ppg import PPGAlgorithm, PPGConfig, make_phasic_policy, ppg_settings
from literate_rl.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.processes import transport_named
from literate_rl.rainbow import (
    Rainbow,
    RainbowConfig,
    RainbowPolicy,
    make_rainbow_policy,
    rainbow_settings,
)
from literate_rl.sac import SAC, SACConfig, make_sac_policy, sac_settings
from literate_rl.td3 import (
    HDDPG,
    TD3,
    HDDPGConfig,
    TD3Config,
    hddpg_settings,
    td3_settings,
)
from literate_rl.workshop.episodes import EvalMode
from literate_rl.workshop.cluster import RayActors
from literate_rl.workshop.fast_forms import fused_critic_error, numpy_act, fused_q_error
from literate_rl.workshop.probes import device_of, randomness_kept
from literate_rl.workshop.own_models import (
    asked,
    make_contract_policy,
    make_own_ddpg_policy,
    make_own_sac_policy,
    make_qnet_policy,
    own_model,
)
from literate_rl.workshop.interfaces import Act, Learner
from literate_rl.workshop.runs import Run, about, fit, flat_env, sync

__all__ = ["Agent", "train"]


MODELS = ("qnet", "actor", "critic")
Device = Literal["auto", "cpu", "cuda"]


def train(
    algorithm: str,
    env: str,
    *,
    device: Device = "auto",
    check: bool = True,
    progress: bool = True,
    **options: Any,
) -> Agent:
    """Train an agent on an environment, until it is done or until Ctrl-C.

    Args:
        algorithm: Its name, in capitals or not: ``"DQN"``.
        env: Id of a Gymnasium environment.
        device: Where the networks are while they train. ``"auto"`` is CUDA if there is
            one and the network and its batches are large enough for it to pay. In the
            end models of your own are back where they were, and ours are on the CPU.
        check: Whether models of your own are checked against the contract first.
        progress: Whether to show a progress bar.
        options: Models of your own (``qnet``, or ``actor`` and ``critic``) and settings
            of the algorithm (``total_steps``, ``seed``, ...). The defaults suit the
            environment. Settings that shape our own networks, such as ``hidden``,
            ``dueling`` or ``noisy``, have no effect on models of your own.

    Raises:
        ContractError: If a model of your own breaks the contract; nothing is trained.
        TypeError: If there is no such setting.
        ValueError: If there is no such algorithm or device, or if the environment or
            the models do not fit.
    """
    name = algorithm.lower()
    if name not in ALGORITHMS:
        names = ", ".join(ALGORITHMS)
        raise ValueError(f"algorithm must be one of {names}, got {algorithm!r}")
    models = {key: options.pop(key) for key in MODELS if key in options}
    config = settings_with(ALGORITHMS[name].settings(env), options)
    settings = settings_of_run(name, env, config, models)
    with placing(device, progress) as place:
        learner = make_learner(name, env, config, models, check, place)
        folder = Path(tempfile.mkdtemp(prefix="literate_rl_"))
        run = Run(folder, settings)
        try:
            with run, ended(learner):
                if progress:
                    print(handed_in(learner))
                history = fit(learner, run, progress)
        except BaseException as error:
            # What was learned in hours is not lost with what came after.
            if run.saved:
                error.add_note(f"what was saved is kept in {folder}")
            else:
                shutil.rmtree(folder)
            raise
    agent = Agent(learner, folder, history)
    weakref.finalize(agent, shutil.rmtree, folder, ignore_errors=True)
    return agent


class Agent:
    """What ``train`` returns: a policy that has learned, and the run that taught it.

    Attributes:
        learner: The learner, with its ``policy`` and its ``config``.
        history: The metrics of each iteration.
    """

    def __init__(
        self,
        learner: Learner,
        folder: Path,
        history: list[dict[str, float]],
    ) -> None:
        self.learner, self.folder, self.history = learner, folder, history

    @property
    def policy(self) -> Any:
        """The policy, for ``evaluate``, ``record_video`` and ``show``."""
        return self.learner.policy

    @torch.no_grad()
    def act(self, states: Mapping[str, Any]) -> Any:
        """Act in a batch of states, given by name.

        Returns:
            What a model of your own returns; for a Q network, greedy actions ``(B, 1)``
            take the place of its values. A single result is not wrapped in a tuple. Our
            policies, whose only state is ``state``, return the greedy actions.
        """
        with EvalMode(self.policy):
            results = self.results(states)
        return results[0] if len(results) == 1 else results

    def results(self, states: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what ``act`` returns, always as a tuple."""
        policy = self.policy
        if model := own_model(policy):
            results = asked(model, states)
            if "qnet" not in policy.recipe[1]["models"]:
                return results
            q, *rest = results
            if isinstance(policy, RainbowPolicy):
                q = q @ policy.atoms
            return (policy.actions.choose(q, 0.0).unsqueeze(-1), *rest)
        state = states["state"].to(device_of(policy), torch.float32)
        return (policy.act(state, 0.0),)

    def save(self, directory: str | Path) -> Path:
        """Keep the run in a new directory; return its path.

        Raises:
            FileExistsError: If there is something of that name.
        """
        target = Path(directory)
        if target.exists():
            raise FileExistsError(f"{target} exists: choose another name")
        target.parent.mkdir(parents=True, exist_ok=True)
        # Half a copy would look like a run, so the copy gets its name once it is whole.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copy_") as place:
            copy = Path(place) / target.name
            shutil.copytree(self.folder, copy)
            for path in (*copy.rglob("*"), copy):
                sync(path)
            copy.rename(target)
        return target


# Multiply-adds of one update above which CUDA pays, as the table above shows.
CROSSOVER = 5e7


def work_of_update(policy: Any, envs: SyncVectorEnv, config: Any) -> float:
    """Return about how many multiply-adds one update of a policy takes."""
    obs = torch.zeros(1, *(envs.single_observation_space.shape or ()))
    counter = FlopCounterMode(display=False)
    # A model of your own may draw random numbers, or change when it is called. One that
    # cannot be copied or called like this is judged by its parameters.
    with suppress(Exception), torch.no_grad(), randomness_kept(policy):
        acting = copy.deepcopy(policy).eval()
        with counter:
            acting.act(obs, 0.0)
    # The counter takes a multiplication and an addition for two operations.
    counted = counter.get_total_flops() / 2
    parameters = sum(weight.numel() for weight in policy.parameters())
    return float(3 * rows_of_update(config) * max(counted, parameters))


def rows_of_update(config: Any) -> int:
    """Return how many rows the learner takes through its networks in one update."""
    if isinstance(config, A3CConfig):
        return 0  # the workers compute the gradients, on the CPU
    if isinstance(config, ActorsConfig):
        samples = config.batch_size if config.actors is None else config.n_sample
        return samples * config.unroll_len
    if isinstance(config, OffPolicyConfig):
        return config.batch_size
    rows: int = config.num_envs * config.num_steps
    return rows // getattr(config, "num_minibatches", 1)


def chosen_device(
    device: Device, policy: Any, envs: SyncVectorEnv, config: Any
) -> tuple[torch.device, str]:
    """Return where a policy trains and, if that was a choice, the reason."""
    best = best_device()
    if device != "auto" or best.type == "cpu":
        return torch.device("cpu") if device == "cpu" else best, ""
    for weight in policy.parameters():
        if weight.device.type != "cpu":
            return weight.device, "where the model is"
    work = work_of_update(policy, envs, config)
    reason = (
        f"an update is {work / 1e6:,.1f} million multiply-adds, "
        f"and CUDA pays above {CROSSOVER / 1e6:.0f} million"
    )
    return best if work > CROSSOVER else torch.device("cpu"), reason


Place = Callable[[Any, SyncVectorEnv, Any], Any]


def stay(policy: Any, envs: SyncVectorEnv, config: Any) -> Any:
    """Leave a policy where it is."""
    return policy


@contextmanager
def placing(device: Device, tell: bool = True) -> Iterator[Place]:
    """Give a function that moves a policy to its device; in the end it comes back.

    Args:
        device: As in ``train``.
        tell: Whether to print which device was chosen, and why.

    Raises:
        ValueError: If there is no such device.
    """
    if device not in get_args(Device):
        names = ", ".join(get_args(Device))
        raise ValueError(f"device must be one of {names}, got {device!r}")
    if device == "cuda" and best_device().type == "cpu":
        raise ValueError("device must be cpu or auto where PyTorch finds no CUDA")
    homes: list[tuple[nn.Module, torch.device]] = []

    def place(policy: Any, envs: SyncVectorEnv, config: Any) -> Any:
        goal, reason = chosen_device(device, policy, envs, config)
        if tell and reason:
            print(f"device: {goal.type} ({reason})")
        homes.extend((module, device_of(module)) for module in policy.modules())
        return policy.to(goal)

    try:
        yield place
    finally:
        for module, home in homes:
            module.to(home)


def environments(env: str, seed: int, number: int) -> SyncVectorEnv:
    """Seed all generators and make copies of an environment."""
    seed_everything(seed)
    return make_envs(partial(flat_env, env), number)


def make_ppo(env: str, config: PPOConfig, place: Place, **models: Any) -> PPO:
    """Build PPO."""
    envs = environments(env, config.seed, config.num_envs)
    policy = actor_critic(env, envs, models, config.normalize_obs)
    policy = place(policy, envs, config)
    return PPO(policy, envs, config, fast_act(policy))


def pictures_or_vectors(env: str, envs: SyncVectorEnv) -> spaces.Space[Any]:
    """Return the space of images as it is, and any other space as one of vectors."""
    space = spaces_of(env)[0]
    pictures = len(space.shape or ()) == 3
    return space if pictures else envs.single_observation_space


def make_ppg(env: str, config: PPGConfig, place: Place) -> PPGAlgorithm:
    """Build PPG; its policy has two values."""
    envs = environments(env, config.seed, config.num_envs)
    with legible_refusal():
        policy = make_phasic_policy(
            pictures_or_vectors(env, envs),
            envs.single_action_space,
            config.share_encoder,
            config.detach,
            normalize=config.normalize_obs,
        )
    return PPGAlgorithm(place(policy, envs, config), envs, config)


def make_impala(
    env: str, config: ActorsConfig, place: Place, **models: Any
) -> IMPALA | ActorLearner:
    """Build IMPALA, with actors if the settings ask for some."""
    envs = environments(env, config.seed, config.n_sample)
    policy = place(actor_critic(env, envs, models), envs, config)
    if config.actors is None:
        return IMPALA(policy, envs, config)
    envs.close()
    build = partial(make_envs, partial(flat_env, env), config.n_sample)
    transport = transport_of(config)
    return ActorLearner(policy, build, config, transport, actors_act(policy))


def make_a2c(env: str, config: A2CConfig, place: Place, **models: Any) -> A2C:
    """Build A2C."""
    envs = environments(env, config.seed, config.num_envs)
    policy = place(actor_critic(env, envs, models), envs, config)
    return A2C(policy, envs, config, fast_act(policy))


def make_a3c(env: str, config: A3CConfig, place: Place, **models: Any) -> A3C:
    """Build A3C and what its workers need."""
    envs = environments(env, config.seed, config.num_envs)
    policy = place(actor_critic(env, envs, models), envs, config)
    envs.close()
    build = partial(make_envs, partial(flat_env, env), config.num_envs)
    return A3C(policy, build, config, transport_of(config), actors_act(policy))


def make_dqn(env: str, config: DQNConfig, place: Place, **models: Any) -> OffPolicy:
    """Build DQN."""
    envs = environments(env, config.seed, config.num_envs)
    with legible_refusal("Discrete"):
        if models:
            policy = make_qnet_policy(*spaces_of(env), **models)
        else:
            policy = make_q_policy(
                envs.single_observation_space,
                envs.single_action_space,
                config.hidden,
                config.dueling,
            )
    policy = place(policy, envs, config)
    forms = {"act": fast_act(policy), "error": fitting(fused_q_error, policy)}
    return DQN(policy, envs, config, **forms)


def make_rainbow(
    env: str, config: RainbowConfig, place: Place, **models: Any
) -> OffPolicy:
    """Build Rainbow."""
    envs = environments(env, config.seed, config.num_envs)
    with legible_refusal("Discrete"):
        if models:
            support = [config.value_min, config.value_max]
            policy = make_qnet_policy(*spaces_of(env), **models, support=support)
        else:
            seen = pictures_or_vectors(env, envs)
            policy = rainbow_policy(seen, envs.single_action_space, config)
    return Rainbow(place(policy, envs, config), envs, config)


def rainbow_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    config: RainbowConfig,
) -> RainbowPolicy:
    """Build Rainbow's policy as its settings say."""
    size = ("hidden", "num_atoms", "value_min", "value_max")
    parts = ("dueling", "noisy", "sigma", "hold")
    chosen = {name: getattr(config, name) for name in size + parts}
    return make_rainbow_policy(observation_space, action_space, **chosen)


def make_apex(
    make: Callable[..., OffPolicy], env: str, config: Any, place: Place, **models: Any
) -> Apex:
    """Build a learner with many actors and one memory."""
    build = partial(make_envs, partial(flat_env, env), config.num_envs)
    learner = make(env, config, place, **models)
    transport, make_act = transport_of(config), actors_act(learner.policy)
    return Apex(learner, build, transport, make_act)


# DDPG has one critic: if you give it more, only the first learns.
first_critic_error = partial(fused_critic_error, num_critics=1)


def make_ddpg(
    env: str,
    config: DDPGConfig,
    place: Place,
    agent: Callable[..., OffPolicy] = DDPG,
    num_critics: int = 1,
    error: Callable[..., Any] = first_critic_error,
    **models: Any,
) -> OffPolicy:
    """Build DDPG or one of its relatives."""
    envs = environments(env, config.seed, config.num_envs)
    with legible_refusal("Discrete or a Box with one dimension and bounds"):
        if models:
            both = spaces_of(env)
            policy = make_own_ddpg_policy(*both, **models, num_critics=num_critics)
        else:
            policy = make_ddpg_policy(
                envs.single_observation_space,
                envs.single_action_space,
                config.hidden,
                num_critics,
            )
    policy = place(policy, envs, config)
    return agent(policy, envs, config, error=fitting(error, policy))


def make_td3(env: str, config: TD3Config, place: Place, **models: Any) -> OffPolicy:
    """Build TD3."""
    number, error = config.num_critics, fused_critic_error
    return make_ddpg(env, config, place, TD3, number, error, **models)


def make_hddpg(env: str, config: HDDPGConfig, place: Place, **models: Any) -> OffPolicy:
    """Build hysteretic DDPG."""
    error = partial(
        fused_critic_error, increase=config.increase, decrease=config.decrease
    )
    return make_ddpg(env, config, place, HDDPG, error=error, **models)


def settings_of_sac(env: str) -> SACConfig:
    """Return settings of SAC for an environment, whichever actions it has."""
    return discrete_sac_settings(env) if env in LISTED else sac_settings(env)


def make_sac(env: str, config: SACConfig, place: Place, **models: Any) -> OffPolicy:
    """Build SAC, for numbers in a box or for actions from a list."""
    envs = environments(env, config.seed, config.num_envs)
    both = envs.single_observation_space, envs.single_action_space
    sizes = config.hidden, config.num_critics
    listed = isinstance(envs.single_action_space, spaces.Discrete)
    with legible_refusal("Discrete or a Box with one dimension and bounds"):
        if models:
            own = spaces_of(env)
            policy: Any = make_own_sac_policy(*own, **models, num_critics=sizes[1])
        elif listed:
            policy = make_discrete_sac_policy(*both, *sizes)
        else:
            policy = make_sac_policy(*both, *sizes, config.hold)
    policy = place(policy, envs, config)
    if listed:
        return DiscreteSAC(policy, envs, config, act=fast_act(policy))
    return SAC(policy, envs, config, error=fitting(fused_critic_error, policy))


class Algorithm(NamedTuple):
    """What ``train`` knows about an algorithm.

    Attributes:
        config: Class of its settings.
        settings: Function from the id of an environment to settings.
        make: Function from environment, settings, a ``Place`` and models to a learner.
        models: Names of the models of your own that it takes, all of them or none.
        contract: Their contract, if it has another name than the algorithm.
    """

    config: type[Any]
    settings: Callable[[str], Any]
    make: Callable[..., Learner]
    models: tuple[str, ...] = ()
    contract: str = ""


def with_priorities(env: str, settings: Callable[[str], Any]) -> Any:
    """Return settings for an environment, with the exponent of prioritised replay.

    Source: Schaul et al. 2016, section 4.
    """
    return replace(settings(env), priority_exponent=0.6)


TWO = ("actor", "critic")
ALGORITHMS = {
    "ppo": Algorithm(PPOConfig, ppo_settings, make_ppo, TWO),
    "ppg": Algorithm(PPGConfig, ppg_settings, make_ppg),
    "impala": Algorithm(ActorsConfig, actors_settings, make_impala, TWO),
    "a2c": Algorithm(A2CConfig, a2c_settings, make_a2c, TWO),
    "a3c": Algorithm(A3CConfig, a3c_settings, make_a3c, TWO),
    "dqn": Algorithm(DQNConfig, dqn_settings, make_dqn, ("qnet",)),
    "dqnper": Algorithm(
        DQNConfig, partial(with_priorities, settings=dqn_settings), make_dqn, ("qnet",)
    ),
    "rainbow": Algorithm(RainbowConfig, rainbow_settings, make_rainbow, ("qnet",)),
    "ddpg": Algorithm(DDPGConfig, ddpg_settings, make_ddpg, TWO),
    "ddpgper": Algorithm(
        DDPGConfig, partial(with_priorities, settings=ddpg_settings), make_ddpg, TWO
    ),
    "hddpg": Algorithm(HDDPGConfig, hddpg_settings, make_hddpg, TWO),
    "td3": Algorithm(TD3Config, td3_settings, make_td3, TWO),
    "sac": Algorithm(SACConfig, settings_of_sac, make_sac, TWO),
    "dqnapex": Algorithm(
        DQNApexConfig, apex_settings, partial(make_apex, make_dqn), ("qnet",)
    ),
    "rainbowapex": Algorithm(
        RainbowApexConfig,
        partial(apex_settings, algorithm="rainbow"),
        partial(make_apex, make_rainbow),
        ("qnet",),
        "rainbow",
    ),
    "ddpgapex": Algorithm(
        DDPGApexConfig,
        partial(apex_settings, algorithm="ddpg"),
        partial(make_apex, make_ddpg),
        TWO,
    ),
}


FITTING = "Discrete, a Box with one dimension or Tuple(Discrete(K), Tuple(K Boxes))"


def actor_critic(
    env: str, envs: SyncVectorEnv, models: dict[str, Any], normalize: bool = False
) -> Any:
    """Build a policy with a critic for one environment."""
    observations, actions = envs.single_observation_space, envs.single_action_space
    with legible_refusal():
        if models:
            policy: Any = make_contract_policy(*spaces_of(env), **models)
        elif isinstance(actions, spaces.Tuple | spaces.Dict):
            policy = make_hybrid_policy(observations, actions, normalize=normalize)
        else:
            policy = make_policy(observations, actions, normalize=normalize)
    return policy


def spaces_of(env: str) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return an environment's spaces, as they are before anything is flattened."""
    with flat_env(env) as made:
        observations = getattr(made, "env", made).observation_space
        actions = made.action_space
    return observations, actions


def fitting(make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return a fast form, or None where it refuses the policy."""
    try:
        return make(*arguments, **named)
    except ValueError:
        return None


def fast_act(policy: Any) -> Act | None:
    """Return the form of a policy's ``act`` in NumPy, where there is one."""
    act: Act | None = fitting(numpy_act, policy)
    return act


def actors_act(policy: Any) -> Callable[[Any], Act] | None:
    """Return what makes the actors' form of ``act``; they are on the CPU."""
    return numpy_act if fast_act(copy.deepcopy(policy).cpu()) else None


def runner_of(learner: Any) -> Any:
    """Return what steps a learner's environments: its runner, or the learner."""
    learner = getattr(learner, "ppo", learner)
    return getattr(learner, "runner", learner)


def handed_in(learner: Any) -> str:
    """Say which fast forms a learner was handed; the rest is as its chapter says."""
    if isinstance(learner, RemoteLearner):
        make_actor: Any = learner.make_actor
        loop, acting = learner.learner, make_actor.keywords["make_act"] is not None
    else:
        plain = learner.policy.act
        loop, acting = learner, getattr(runner_of(learner), "act", plain) != plain
    error = isinstance(loop, OffPolicy) and loop.error != loop.algorithm.error
    known = {"acting": acting, "the error": error}
    names = [name for name, handed in known.items() if handed]
    return f"fast forms: {' and '.join(names) or 'none'}"


def transport_of(config: TransportConfig) -> MakeTransport:
    """Return the transport that the settings name."""
    if config.transport == "ray":
        return partial(RayActors, address=config.address)
    return transport_named(config.transport)


@contextmanager
def legible_refusal(actions: str = FITTING) -> Iterator[None]:
    """Say in the user's terms which actions a policy can take."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the environment's actions must be {actions}: {error}"
        ) from error


def settings_with(config: Any, changes: dict[str, Any]) -> Any:
    """Return settings with some changes, or say which settings there are."""
    names = [field.name for field in fields(config)]
    for name in changes:
        if name not in names:
            raise TypeError(
                f"there is no setting {name!r}{about(name, names)}, "
                f"but {', '.join(names)}"
            )
    return replace(config, **changes)


@contextmanager
def ended(learner: Learner) -> Iterator[None]:
    """Close the actors and environments of a learner when its training ends."""
    try:
        yield
    finally:
        if isinstance(learner, RemoteLearner):
            learner.close()
        else:
            runner_of(learner).collector.envs.close()


def make_learner(
    algorithm: str,
    env: str,
    config: Any,
    models: dict[str, Any],
    check: bool = True,
    place: Place = stay,
) -> Learner:
    """Build a learner, with models of your own if they keep the contract."""
    known = ALGORITHMS[algorithm]
    if models and set(models) != set(known.models):
        wanted = " and ".join(known.models) or "none"
        raise ValueError(
            f"models of your own for {algorithm} must be {wanted}, "
            f"got {' and '.join(models)}"
        )
    if models and check:
        family = known.contract or algorithm
        check_model(family, env=partial(gym.make, env), **models)
    return known.make(env, config, place, **models)


def settings_of_run(
    algorithm: str, env: str, config: Any, models: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings that are stored in the directory of a run."""
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
    module, _, name = where.partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also one that calls `sys.exit`
        raise ValueError(
            f"{where} must be module:name of a class or function that makes a model "
            f"without arguments: {type(error).__name__}: {error}"
        ) from error

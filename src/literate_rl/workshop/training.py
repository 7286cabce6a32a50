# Generated from chapters/workshop/training.py (edit there); digest ccfce2458bc9a845
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
from typing import Any, Literal, NamedTuple, Unpack, get_args

import gymnasium as gym
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn
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
from literate_rl.encoders import has_pictures
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
from literate_rl.workshop.networks import eval_mode
from literate_rl.workshop.cluster import RayActors
from literate_rl.workshop.fast_forms import fused_critic_error, numpy_act, fused_q_error
from literate_rl.workshop.probes import device_of, randomness_kept
from literate_rl.workshop.own_models import (
    make_contract_policy,
    make_own_ddpg_policy,
    make_own_sac_policy,
    make_qnet_policy,
    own_model,
    results_for,
)
from literate_rl.workshop.interfaces import Act, Learner, PolicyLike
from literate_rl.workshop.nests import MODELS, name_of_model
from literate_rl.workshop.runs import OwnModels, Run, about, fit, flat_env, sync

__all__ = ["Agent", "Options", "train"]


Device = Literal["auto", "cpu", "cuda"]
Models = dict[str, Any]
Env = gym.Env[Any, Any]


def train(
    algorithm: str,
    env: str,
    *,
    device: Device = "auto",
    check: bool = True,
    progress: bool = True,
    **options: Unpack[Options],
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
        options: Models of your own (``qnet``, or ``actor`` and ``critic``) or an
            ``encoder`` of your own for our networks, and settings of the algorithm
            (``total_steps``, ``seed``, ...). The defaults suit the environment.
            Settings that shape our own networks, such as ``hidden``, ``dueling`` or
            ``noisy``, have no effect on models of your own.

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
    changes: dict[str, Any] = {**options}
    models = {key: changes.pop(key) for key in MODELS if key in changes}
    config = settings_with(ALGORITHMS[name].settings(env), changes)
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


class Options(OwnModels, total=False):
    """Models of your own and the settings of all algorithms, for ``train``."""

    seed: int
    total_steps: int
    num_envs: int
    num_steps: int
    num_epochs: int
    num_minibatches: int
    learning_rate: float
    anneal: bool
    gamma: float
    lambda_: float
    clip_ratio: float
    dual_clip: float | None
    value_clip: float | None
    entropy_weight: float
    value_weight: float
    max_grad_norm: float
    normalize_advantage: bool
    normalize_obs: bool
    scale_reward: bool
    target_kl: float | None
    checkpoint_interval: int
    aux_enabled: bool
    aux_interval: int
    aux_batch_length: int | None
    aux_batch_size: int
    aux_epochs: int
    aux_learning_rate: float
    clone_weight: float
    kl_reference: Literal["snapshot", "rollout"]
    share_encoder: bool
    detach: Literal["always", "policy_phase", "never"]
    on_policy: bool
    priority: bool
    priority_IS_weight: bool  # noqa: N815 (the name of the original)
    unroll_len: int
    update_per_collect: int
    batch_size: int
    discount_factor: float
    rho_clip_ratio: float | None
    c_clip_ratio: float | None
    rho_pg_clip_ratio: float | None
    grad_clip_type: Literal["clip_norm", "clip_value", "clip_momentum_norm"] | None
    clip_value: float
    optim: Literal["adam", "rmsprop"]
    n_sample: int
    replay_buffer_size: int
    max_use: int
    reward_scale: float
    lag: int
    actors: int | None
    transport: Literal["in_process", "shared", "ray"]
    slots: int
    deadline: float
    address: str | None
    rmsprop_decay: float
    rmsprop_epsilon: float
    hidden: int
    train_interval: int
    learning_starts: int
    buffer_size: int
    target_interval: int
    tau: float
    priority_exponent: float
    beta: float
    log_interval: int
    epsilon_start: float
    epsilon_end: float
    epsilon_steps: int
    double: bool
    dueling: bool
    num_atoms: int
    value_min: float
    value_max: float
    noisy: bool
    sigma: float
    hold: int
    noise: float
    increase: float
    decrease: float
    num_critics: int
    smoothing: float
    smoothing_clip: float
    temperature: float
    tune: bool
    target_entropy: float | None
    rollout_len: int
    epsilon: float
    power: float
    priorities: Literal["actor", "largest"]


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
    def policy(self) -> PolicyLike:
        """The policy, for ``evaluate``, ``record_video`` and ``show``."""
        return self.learner.policy

    @torch.no_grad()
    def act(self, states: Mapping[str, Any]) -> Tensor | tuple[Any, ...]:
        """Act in a batch of states, given by name.

        Returns:
            What a model of your own returns; for a Q network, greedy actions ``(B, 1)``
            take the place of its values. A single result is not wrapped in a tuple. Our
            policies, whose only state is ``state``, return the greedy actions.
        """
        with eval_mode(self.policy):
            results = self.results(states)
        alone: Tensor = results[0]
        return results if len(results) > 1 else alone

    def results(self, states: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what ``act`` returns, always as a tuple."""
        policy: Any = self.policy
        if model := own_model(policy):
            results = results_for(model, states)
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


def work_of_update(policy: Any, space: spaces.Space[Any], config: Any) -> float:
    """Return about how many multiply-adds one update of a policy takes."""
    obs = torch.zeros(1, *(space.shape or ()))
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
    device: Device, policy: Any, space: spaces.Space[Any], config: Any
) -> tuple[torch.device, str]:
    """Return where a policy trains and, if that was a choice, the reason."""
    best = best_device()
    if device != "auto" or best.type == "cpu":
        return torch.device("cpu") if device == "cpu" else best, ""
    for weight in policy.parameters():
        if weight.device.type != "cpu":
            return weight.device, "where the model is"
    work = work_of_update(policy, space, config)
    reason = (
        f"an update is {work / 1e6:,.1f} million multiply-adds, "
        f"and CUDA pays above {CROSSOVER / 1e6:.0f} million"
    )
    return best if work > CROSSOVER else torch.device("cpu"), reason


# It gets the policy, the space of its observations, and the settings.
Place = Callable[[Any, spaces.Space[Any], Any], Any]


def stay(policy: Any, space: spaces.Space[Any], config: Any) -> Any:
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

    def place(policy: Any, space: spaces.Space[Any], config: Any) -> Any:
        goal, reason = chosen_device(device, policy, space, config)
        if tell and reason:
            print(f"device: {goal.type} ({reason})")
        homes.extend((module, device_of(module)) for module in policy.modules())
        return policy.to(goal)

    try:
        yield place
    finally:
        for module, home in homes:
            module.to(home)


def make_learner(
    algorithm: str,
    env: str,
    config: Any,
    models: Models,
    check: bool = True,
    place: Place = stay,
) -> Learner:
    """Build a learner, with models of your own if they keep the contract."""
    known = ALGORITHMS[algorithm]
    # Our networks take an encoder of your own, and models of your own have theirs.
    own = models.keys() != {"encoder"} and bool(models)
    if own and set(models) != set(known.models):
        wanted = " and ".join(known.models) or "none"
        raise ValueError(
            f"models of your own for {algorithm} must be {wanted}, "
            f"got {' and '.join(models)}"
        )
    if own and check:
        family = known.contract or algorithm
        check_model(family, env=partial(gym.make, env), **models)
    seed_everything(config.seed)
    with flat_env(env) as one, legible_refusal(known.actions):
        policy = known.policy(one, config, models)
    policy = place(policy, one.observation_space, config)
    copies = config.n_sample if isinstance(config, ActorsConfig) else config.num_envs
    build = partial(make_envs, partial(flat_env, env), copies)
    return known.learner(policy, build, config)


@contextmanager
def legible_refusal(actions: str) -> Iterator[None]:
    """Say in the user's terms which actions a policy can take."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if str(error).startswith(("encoder", "normalize")):
            raise  # it is not about actions
        raise ValueError(
            f"the environment's actions must be {actions}: {error}"
        ) from error


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


Spaces = tuple[spaces.Space[Any], spaces.Space[Any]]


def shown(env: Env) -> Spaces:
    """Return an environment's spaces as they are before anything is flattened."""
    return getattr(env, "env", env).observation_space, env.action_space


def pictures_or_vectors(env: Env, models: Models) -> Spaces:
    """Return an environment's spaces: what an encoder reads as it is, else vectors."""
    seen, done = shown(env)
    return (seen if models or has_pictures(seen) else env.observation_space), done


def actor_critic(env: Env, config: Any, models: Models) -> PolicyLike:
    """Build an actor and a critic of states."""
    if "actor" in models:
        return make_contract_policy(*shown(env), **models)
    hybrid = isinstance(env.action_space, spaces.Tuple | spaces.Dict)
    make = make_hybrid_policy if hybrid else make_policy
    normalize = getattr(config, "normalize_obs", False)
    return make(*pictures_or_vectors(env, models), normalize=normalize, **models)


def phasic(env: Env, config: PPGConfig, models: Models) -> PolicyLike:
    """Build a policy with two values."""
    encoder = config.share_encoder, config.detach
    seen, normalize = pictures_or_vectors(env, models), config.normalize_obs
    return make_phasic_policy(*seen, *encoder, normalize=normalize, **models)


def q_values(env: Env, config: DQNConfig, models: Models) -> PolicyLike:
    """Build a network that values each action."""
    if "qnet" in models:
        return make_qnet_policy(*shown(env), **models)
    seen = pictures_or_vectors(env, models)
    return make_q_policy(*seen, config.hidden, config.dueling, **models)


def q_atoms(env: Env, config: RainbowConfig, models: Models) -> PolicyLike:
    """Build a network with a distribution of the return for each action."""
    if "qnet" in models:
        support = [config.value_min, config.value_max]
        return make_qnet_policy(*shown(env), **models, support=support)
    return rainbow_policy(*pictures_or_vectors(env, models), config, **models)


def rainbow_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    config: RainbowConfig,
    **models: Any,
) -> RainbowPolicy:
    """Build Rainbow's policy as its settings say."""
    size = ("hidden", "num_atoms", "value_min", "value_max")
    parts = ("dueling", "noisy", "sigma", "hold")
    chosen = {name: getattr(config, name) for name in size + parts}
    return make_rainbow_policy(observation_space, action_space, **chosen, **models)


def deterministic(env: Env, config: Any, models: Models) -> PolicyLike:
    """Build an actor that draws nothing, and critics of actions."""
    number = getattr(config, "num_critics", 1)
    if "actor" in models:
        return make_own_ddpg_policy(*shown(env), **models, num_critics=number)
    seen = pictures_or_vectors(env, models)
    return make_ddpg_policy(*seen, config.hidden, number, **models)


def soft(env: Env, config: SACConfig, models: Models) -> PolicyLike:
    """Build an actor that draws, and critics, for a box or for actions from a list."""
    sizes = config.hidden, config.num_critics
    if "actor" in models:
        return make_own_sac_policy(*shown(env), **models, num_critics=sizes[1])
    seen = pictures_or_vectors(env, models)
    if isinstance(env.action_space, spaces.Discrete):
        return make_discrete_sac_policy(*seen, *sizes, **models)
    return make_sac_policy(*seen, *sizes, config.hold, **models)


Build = Callable[[], SyncVectorEnv]


def fitting(form: Callable[[Any], Any], policy: Any) -> Any:
    """Return a fast form, or None where it refuses the policy."""
    try:
        return form(policy)
    except ValueError:
        return None


def alone(
    learner: Callable[..., Learner],
    policy: Any,
    build: Build,
    config: Any,
    **forms: Callable[[Any], Any],
) -> Learner:
    """Build a learner without actors, given what makes fast forms for a policy."""
    made = {name: fitting(form, policy) for name, form in forms.items()}
    return learner(policy, build(), config, **made)


def with_actors(
    learner: Callable[..., Learner], policy: Any, build: Build, config: Any
) -> Learner:
    """Build a learner whose actors make environments of their own."""
    return learner(policy, build, config, transport_of(config), actors_act(policy))


def actors_act(policy: Any) -> Callable[[Any], Act] | None:
    """Return what makes the actors' form of ``act``; they are on the CPU."""
    return numpy_act if fitting(numpy_act, copy.deepcopy(policy).cpu()) else None


def transport_of(config: TransportConfig) -> MakeTransport:
    """Return the transport that the settings name."""
    if config.transport == "ray":
        return partial(RayActors, address=config.address)
    return transport_named(config.transport)


def impala(policy: Any, build: Build, config: ActorsConfig) -> Learner:
    """Build IMPALA, with actors if the settings ask for some."""
    if config.actors is None:
        return IMPALA(policy, build(), config)
    return with_actors(ActorLearner, policy, build, config)


def soft_learner(policy: Any, build: Build, config: SACConfig) -> Learner:
    """Build SAC, for numbers in a box or for actions from a list."""
    envs = build()
    if isinstance(envs.single_action_space, spaces.Discrete):
        return DiscreteSAC(policy, envs, config, act=fitting(numpy_act, policy))
    return SAC(policy, envs, config, error=fitting(fused_critic_error, policy))


def apex(
    learner: Callable[..., Any], policy: Any, build: Build, config: Any
) -> Learner:
    """Build a learner with many actors and one memory."""
    one = learner(policy, build, config)
    return Apex(one, build, transport_of(config), actors_act(policy))


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


class Entry(NamedTuple):
    """What ``train`` knows about an algorithm.

    Attributes:
        config: Class of its settings.
        settings: Function from the id of an environment to settings.
        learner: Function from a policy, a function that makes environments, and
            settings to a learner.
        policy: Function from environment, settings and models of your own to a policy.
        models: Names of the models of your own that it takes, all of them or none.
        actions: The actions that it can take, in words.
        contract: What its models keep, if that has another name than the algorithm.
    """

    config: type[Any]
    settings: Callable[[str], Any]
    learner: Callable[[Any, Build, Any], Learner]
    policy: Callable[[Env, Any, Models], Any] = actor_critic
    models: tuple[str, ...] = ("actor", "critic")
    actions: str = (
        "Discrete, a Box with one dimension or Tuple(Discrete(K), Tuple(K Boxes))"
    )
    contract: str = ""


def with_priorities(settings: Callable[[str], Any], env: str) -> Any:
    """Return settings for an environment, with the exponent of prioritised replay.

    Source: Schaul et al. 2016, section 4.
    """
    return replace(settings(env), priority_exponent=0.6)


def settings_of_sac(env: str) -> SACConfig:
    """Return settings of SAC for an environment, whichever actions it has."""
    return discrete_sac_settings(env) if env in LISTED else sac_settings(env)


# What algorithms of one family share.
VALUES: dict[str, Any] = {
    "policy": q_values,
    "models": ("qnet",),
    "actions": "Discrete",
}
ATOMS = VALUES | {"policy": q_atoms, "contract": "rainbow"}
BOXES: dict[str, Any] = {
    "policy": deterministic,
    "actions": "Discrete or a Box with one dimension and bounds",
}
ppo, a2c = (partial(alone, learner, act=numpy_act) for learner in (PPO, A2C))
dqn = partial(alone, DQN, act=numpy_act, error=fused_q_error)
rainbow = partial(alone, Rainbow)
ddpg, hddpg, td3 = (
    partial(alone, learner, error=fused_critic_error) for learner in (DDPG, HDDPG, TD3)
)

ALGORITHMS = {
    "ppo": Entry(PPOConfig, ppo_settings, ppo),
    "ppg": Entry(
        PPGConfig, ppg_settings, partial(alone, PPGAlgorithm), phasic, models=()
    ),
    "impala": Entry(ActorsConfig, actors_settings, impala),
    "a2c": Entry(A2CConfig, a2c_settings, a2c),
    "a3c": Entry(A3CConfig, a3c_settings, partial(with_actors, A3C)),
    "dqn": Entry(DQNConfig, dqn_settings, dqn, **VALUES),
    "dqnper": Entry(DQNConfig, partial(with_priorities, dqn_settings), dqn, **VALUES),
    "rainbow": Entry(RainbowConfig, rainbow_settings, rainbow, **ATOMS),
    "ddpg": Entry(DDPGConfig, ddpg_settings, ddpg, **BOXES),
    "ddpgper": Entry(
        DDPGConfig, partial(with_priorities, ddpg_settings), ddpg, **BOXES
    ),
    "hddpg": Entry(HDDPGConfig, hddpg_settings, hddpg, **BOXES),
    "td3": Entry(TD3Config, td3_settings, td3, **BOXES),
    "sac": Entry(SACConfig, settings_of_sac, soft_learner, **BOXES | {"policy": soft}),
    "dqnapex": Entry(DQNApexConfig, apex_settings, partial(apex, dqn), **VALUES),
    "rainbowapex": Entry(
        RainbowApexConfig,
        partial(apex_settings, algorithm="rainbow"),
        partial(apex, rainbow),
        **ATOMS,
    ),
    "ddpgapex": Entry(
        DDPGApexConfig,
        partial(apex_settings, algorithm="ddpg"),
        partial(apex, ddpg),
        **BOXES,
    ),
}


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


def settings_of_run(
    algorithm: str, env: str, config: Any, models: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings that are stored in the directory of a run."""
    names = {
        name: f"{getattr(model, '__module__', '')}:{name_of_model(model)}"
        for name, model in models.items()
    }
    return {
        "algorithm": algorithm,
        "env": env,
        "config": asdict(config),
        "models": names,
    }


def import_model(role: str, where: str) -> Any:
    """Make a model from ``module:name`` of a class or function without arguments.

    A function that makes an encoder is returned as it is: it waits for the space.
    """
    module, _, name = where.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
        return make if role == "encoder" and not isinstance(make, type) else make()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also one that calls `sys.exit`
        raise ValueError(
            f"{where} must be module:name of a class or function that makes a model "
            f"without arguments: {type(error).__name__}: {error}"
        ) from error

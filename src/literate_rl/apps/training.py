# Generated from chapters/workshop/training.py (edit there); digest 4c7f64e779a68fb6
"""Training in one call: an algorithm, an environment, a network of one's own."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack, cast, get_args
from warnings import warn

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    SyncVectorEnv,
    VectorEnv,
    VectorRewardWrapper,
    VectorWrapper,
)
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.wrappers import FlattenObservation
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from literate_rl.learners.a2c import (
    A2C,
    A2CConfig,
    a2c_settings,
)
from literate_rl.actors.a3c import A3C, A3CConfig, a3c_settings
from literate_rl.actors.actors import (
    ActorLearner,
    ActorsConfig,
    MakeTransport,
    RemoteLearner,
    TransportConfig,
    actors_settings,
)
from literate_rl.data.agents import best_device, make_envs, seed_everything
from literate_rl.actors.apex import (
    Apex,
    ApexConfig,
    DDPGApexConfig,
    DQNApexConfig,
    RainbowApexConfig,
    apex_settings,
)
from literate_rl.check.contracts import check_model
from literate_rl.learners.ddpg import (
    DDPG,
    DDPGConfig,
    ddpg_settings,
    make_ddpg_policy,
)
from literate_rl.learners.discrete_sac import SETTINGS as LISTED
from literate_rl.learners.discrete_sac import (
    DiscreteSAC,
    discrete_sac_settings,
    make_discrete_sac_policy,
)
from literate_rl.learners.dqn import (
    DQN,
    DQNConfig,
    dqn_settings,
    make_q_policy,
)
from literate_rl.nets.encoders import has_pictures, readable_parts
from literate_rl.nets.hybrid_policy import (
    make_hybrid_policy,
)  # and its environments
from literate_rl.learners.impala import IMPALA
from literate_rl.learners.loop import OffPolicy, OffPolicyConfig
from literate_rl.nets.masks import WithoutMask
from literate_rl.nets.policies import make_policy, predicted
from literate_rl.learners.ppg import (
    PPGAlgorithm,
    PPGConfig,
    make_phasic_policy,
    ppg_settings,
)
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.by_hand.ppo_by_hand import AuxiliaryHeads, ByHand
from literate_rl.actors.processes import pickled, transport_named
from literate_rl.learners.rainbow import (
    Rainbow,
    RainbowConfig,
    RainbowPolicy,
    make_rainbow_policy,
    rainbow_settings,
)
from literate_rl.learners.sac import SAC, SACConfig, make_sac_policy, sac_settings
from literate_rl.learners.td3 import (
    HDDPG,
    TD3,
    HDDPGConfig,
    TD3Config,
    hddpg_settings,
    td3_settings,
)
from literate_rl.apps.commands import OFFERED
from literate_rl.data.episodes import (
    Make,
    as_masks,
    check_flat,
    flat_env,
    from_file,
    known_env,
    make_one,
    resets_later,
)
from literate_rl.data.makers import (
    Wrapped,
    Wrapper,
    make_wrapped,
    name_of_maker,
)
from literate_rl.ground.networks import eval_mode, randomness_kept
from literate_rl.interfaces.cluster import RayActors
from literate_rl.by_hand.fast_forms import fused_critic_error, numpy_act, fused_q_error
from literate_rl.check.probes import device_of
from literate_rl.check.own_models import (
    make_contract_policy,
    make_own_ddpg_policy,
    make_own_sac_policy,
    make_qnet_policy,
    own_model,
    results_for,
)
from literate_rl.ground.protocols import Act, Learner, PolicyLike, refuse_mask
from literate_rl.ground.nests import (
    MODELS,
    SpaceError,
    as_space,
    is_hybrid,
    name_of_model,
    plain_space,
)
from literate_rl.runs.runs import (
    OwnModels,
    Run,
    about,
    agreed_env,
    as_typed,
    check_named,
    fit,
    sync,
    todays_names,
)

__all__ = ["Agent", "Options", "train"]


Device = Literal["auto", "cpu", "cuda"]
Fast = Literal["auto", "plain", "by hand"]
Models = dict[str, Any]
Env = gym.Env[Any, Any]


def train(
    algorithm: str,
    env: Make | VectorEnv[Any, Any, Any],
    *,
    wrappers: Sequence[Wrapper] = (),
    mask: ArrayLike | Tensor | None = None,
    resume: str | Path | None = None,
    device: Device = "auto",
    fast: Fast = "auto",
    check: bool = True,
    progress: bool = True,
    **options: Unpack[Options],
) -> Agent:
    """Train an agent on an environment, until it is done or until Ctrl-C.

    Ctrl-C ends it in good order; one more within a second raises, and so ends a loop
    of trainings too. The global random numbers stay as they were.

    Args:
        algorithm: Its name, in capitals or not: ``"DQN"``.
        env: A registered id, ``module:id``, ``module:name`` of a class or function, or
            what makes an environment: a class or a function without arguments. Or a
            vector environment, which is left open; it says how many copies there are.
        wrappers: What is put around each environment, the first one innermost: texts
            such as ``"FrameStackObservation(4)"``, by Gymnasium's names, or functions
            from an environment to another one.
        mask: Which type (row) of a hybrid action uses which argument (column), where
            the space does not say it, as in ``HybridActions.from_space``.
        resume: Directory of a run to go on with, by the same algorithm in the same
            environment. It keeps its settings; what has no name there is given again.
        device: Where the networks are while they train. ``"auto"`` is CUDA if there is
            one and the network and its batches are large enough for it to pay. In the
            end models of your own are back where they were, and ours are on the CPU.
        fast: Which forms of acting and learning are used. ``"auto"`` hands in the fast
            forms that the policy allows, ``"plain"`` none. ``"by hand"`` is for PPO,
            which then also backpropagates in NumPy (``ByHand``), and for PPG, whose
            auxiliary phase writes the gradient of its loss at the heads
            (``AuxiliaryHeads``). The numbers are the same up to rounding, so a run may
            go on in another form.
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
        ValueError: If there is no such algorithm or device, if the environment or the
            models do not fit, if ``fast`` does not fit them, or if the run to go on
            with is another one.
    """
    name, changes = algorithm_named(algorithm), {**options}
    models = {key: changes.pop(key) for key in MODELS if key in changes}
    models |= {} if mask is None else {"mask": read_mask(mask)}
    asked = Asked(name, env, wrappers, models, changes, fast)
    run = None if resume is None else Run(resume, resume=True)
    # The caller may be in a block without gradients, and draws random numbers too.
    with (
        torch.inference_mode(False),
        randomness_kept(),
        placing(device, progress) as place,
    ):
        if run is None:
            learner, world = asked.new(check, place)
            settings = settings_of_run(name, world, learner.config, models)
            run = Run(tempfile.mkdtemp(prefix="literate_rl_"), settings)
        else:
            learner, world = asked.again(run, check, place)
        new = resume is None
        history = carried_out(learner, world, run, new, progress)
    agent = Agent(learner, run.directory, history, world)
    if new:
        agent.clear_up()
    if progress:
        watch = "watch it with show(agent.policy, agent.env), "
        watch = "" if isinstance(world, VectorEnv) else watch
        kept = (
            "keep it with agent.save(directory)" if new else f"kept in {run.directory}"
        )
        print(watch + kept)
    return agent


def carried_out(
    learner: Learner, world: World, run: Run, new: bool, progress: bool
) -> list[dict[str, float]]:
    """Run a training to its end, and return the rows of its log."""
    try:
        with run, ended(learner, world):
            if progress:
                print(opening(learner))
            return fit(learner, run, progress)
    except BaseException as error:
        # What was learned in hours is not lost with what came after.
        if run.saved:
            error.add_note(f"what was saved is kept in {run.directory}")
        elif new:
            shutil.rmtree(run.directory)
        raise


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
    value_epochs: int | None
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
    iteration_steps: int
    log_interval: int | None
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


def check_states(state: Tensor, space: spaces.Space[Any]) -> None:
    """Raise unless states have the shape of a space, or are rows of all its numbers."""
    flat = (spaces.flatdim(space),)
    shaped = space.shape if isinstance(space, spaces.Box) else flat
    if not any(state.shape[state.ndim - len(x) :] == x for x in (flat, shaped)):
        either = (
            f"(B, {', '.join(map(str, x))})" for x in dict.fromkeys((shaped, flat))
        )
        wanted = " or ".join(either)
        given = tuple(state.shape)
        raise ValueError(f"states['state'] must have shape {wanted}, got {given}")


def sendable(env: Any) -> Any:
    """Return an environment, or what makes it, or None if it cannot be pickled."""
    try:
        pickle.dumps(env)
    except Exception:
        return None
    return env


class Taught(NamedTuple):
    """What a copy of an agent has of its learner."""

    policy: PolicyLike
    config: Any
    step: int


class Agent:
    """What ``train`` returns: a policy that has learned, and the run that taught it.

    It can be copied and pickled. A copy acts, and is saved, whatever becomes of the
    agent. It has no learner to go on with: save it, and ``resume`` that.

    Attributes:
        learner: The learner, with its ``policy`` and its ``config``.
        history: The rows of the log: the metrics of each iteration, or of several.
        env: What it has learned in, as it was given, with the wrappers around it. For
            ``evaluate``, ``record_video`` and ``show``, unless it is a vector
            environment: they ask for what makes a single one. None in a pickled copy
            where it could not be pickled.
    """

    def __init__(
        self,
        learner: Learner,
        folder: Path,
        history: list[dict[str, float]],
        env: Any = None,
    ) -> None:
        self.learner, self.folder, self.history = learner, folder, history
        self.env = env

    @property
    def policy(self) -> PolicyLike:
        """The policy, for ``evaluate``, ``record_video`` and ``show``."""
        return self.learner.policy

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has ended the training before its last step."""
        return self.learner.step < self.learner.config.total_steps

    def clear_up(self) -> None:
        """Remove the folder once nobody has the agent any more."""
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def taught(self, policy: PolicyLike) -> Taught:
        """Return what a copy has of the learner, with a policy of its own."""
        return Taught(policy, self.learner.config, self.learner.step)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickled copy needs, the files of the folder among it."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        try:
            # As bytes it outlives this process, as tensors in shared memory do not.
            learner = pickle.dumps(self.taught(self.policy))
        except (AttributeError, TypeError, pickle.PickleError) as error:
            words = "agent holds a model that cannot be pickled, so keep it with"
            raise TypeError(f"{words} agent.save(directory): {error}") from error
        return {
            **vars(self),
            "learner": learner,
            "folder": {str(x.relative_to(self.folder)): x.read_bytes() for x in files},
            "env": sendable(self.env),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy that was pickled, with a folder of its own."""
        folder = Path(tempfile.mkdtemp(prefix="literate_rl_"))
        for name, content in state["folder"].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        learner = pickle.loads(state["learner"])
        vars(self).update(state, learner=learner, folder=folder)
        self.clear_up()

    def __deepcopy__(self, memo: dict[int, Any]) -> Agent:
        """Return a copy with a folder of its own, in the same ``env``."""
        folder = Path(tempfile.mkdtemp(prefix="literate_rl_"))
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        learner = self.taught(copy.deepcopy(self.policy, memo))
        history = copy.deepcopy(self.history, memo)
        twin = Agent.__new__(Agent)
        vars(twin).update(vars(self), learner=learner, folder=folder, history=history)
        twin.clear_up()
        return twin

    def predict(self, obs: Any, mask: Any = None, greedy: bool = True) -> Any:
        """Return actions in the environment's own form, as ``Policy.predict`` does."""
        return predicted(self.policy, obs, mask, greedy)

    @torch.no_grad()
    def act(
        self, states: Mapping[str, Any], *, mask: Any = None
    ) -> Tensor | tuple[Any, ...]:
        """Return actions in the policy's own units, for a batch of states by name.

        A box may count from -1 to 1 there, a list from 0. ``predict`` returns what the
        environment takes.

        Args:
            states: The states.
            mask: Which actions are legal, ``(B, N)`` zeros and ones. None is all.

        Returns:
            What a model of your own returns; for a Q network, greedy actions ``(B, 1)``
            take the place of its values. A single result is not wrapped in a tuple. Our
            policies, whose only state is ``state``, return the greedy actions.
        """
        with eval_mode(self.policy):
            results = self.results(states, mask)
        alone: Tensor = results[0]
        return results if len(results) > 1 else alone

    def results(self, states: Mapping[str, Any], given: Any) -> tuple[Any, ...]:
        """Return what ``act`` returns, always as a tuple."""
        policy: Any = self.policy
        mask = None if given is None else torch.from_numpy(as_masks(given))
        if model := own_model(policy):
            results = results_for(model, states)
            if "qnet" not in policy.recipe[1]["models"]:
                refuse_mask(mask, model.model)
                return results
            q, *rest = results
            if isinstance(policy, RainbowPolicy):
                q = q @ policy.atoms
            return (
                policy.actions.choose(policy.legal(q, mask), 0.0).unsqueeze(-1),
                *rest,
            )
        if "state" not in states:
            words = f"states must have the key 'state', got {[*states]}"
            raise ValueError(f"{words}: predict takes observations as they are")
        state = torch.as_tensor(states["state"]).to(device_of(policy), torch.float32)
        arguments: dict[str, Any] = getattr(policy, "recipe", ("", {}))[1]
        if plain := arguments.get("observation_space"):
            check_states(state, as_space(plain))
        return (policy.act(state, 0.0, mask=mask),)

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
    with suppress(Exception), torch.no_grad(), randomness_kept():
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


World = Make | VectorEnv[Any, Any, Any]
Build = Callable[[], VectorEnv[Any, Any, Any]]


def make_learner(
    algorithm: str,
    env: World,
    config: Any,
    models: Models,
    check: bool = True,
    place: Place = stay,
    fast: Fast = "auto",
) -> Learner:
    """Build a learner, with models of your own if they keep the contract."""
    known = ALGORITHMS[algorithm]
    check_fast(fast, algorithm)
    # Our networks take an encoder of your own and a mask, and models of your own have
    # no use for them.
    own = models.keys() - {"encoder", "mask"}
    if own and set(models) != set(known.models):
        wanted = " and ".join(known.models) or "none"
        raise ValueError(
            f"models of your own for {algorithm} must be {wanted}, "
            f"got {' and '.join(models)}"
        )
    for role in own:
        if isinstance(models[role], type):
            got = models[role].__name__
            words = f"{role} must be a torch.nn.Module, got the class {got}"
            raise TypeError(f"{words}: hand over {got}(…)")
    if own and config.normalize_obs:
        words = "normalize_obs must be False with models of your own, got True"
        raise ValueError(f"{words}: normalise inside of them")
    view, build = looked_at(env, config)
    if "mask" in models and not (known.hybrid and is_hybrid(view.actions)):
        words = "mask is for hybrid actions and what learns them"
        raise ValueError(f"{words}, got {algorithm} and {view.actions}")
    if own and check:
        glimpse = partial(Glimpse, view)
        sample = glimpse if isinstance(env, VectorEnv) else partial(make_one, env)
        check_model(known.contract or algorithm, env=sample, **models)
    seed_everything(config.seed)
    with named_refusal(algorithm):
        policy = known.policy(view, config, models)
    # Its own space, where the policy was told that of flat rows.
    policy.observation_space = as_space(plain_space(view.seen))
    if has_processes(config) and models:
        check_sent(" and ".join(models), policy, [*models.values()])
    policy = place(policy, view.rows, config)
    return known.learner(policy, build, config, fast)


def check_fast(fast: str, algorithm: str) -> None:
    """Raise unless there is such a choice, and the algorithm has it."""
    if fast not in get_args(Fast):
        names = ", ".join(map(repr, get_args(Fast)))
        raise ValueError(f"fast must be one of {names}, got {fast!r}")
    if fast == "by hand" and algorithm not in ("ppo", "ppg"):
        raise ValueError(f"fast='by hand' is for ppo and ppg, got {algorithm}")


class View(NamedTuple):
    """What an environment is to a policy.

    Attributes:
        seen: The space of its observations, before anything is flattened.
        rows: The space of the flat observations.
        actions: The space of its actions.
    """

    seen: spaces.Space[Any]
    rows: spaces.Space[Any]
    actions: spaces.Space[Any]


def looked_at(env: World, config: Any) -> tuple[View, Build]:
    """Return what an environment is like, and what makes the learner's copies."""
    if isinstance(env, VectorEnv):
        return looked_at_many(env, config)
    if isinstance(env, gym.Env) or not (isinstance(env, str) or callable(env)):
        kind = type(env).__name__
        raise TypeError(
            "env must be an id, a class, a function or a vector environment, got "
            f"{kind}: hand over what makes it, so that there can be several"
        )
    with closing(flat_env(env)) as one:
        # A wrapper of ours has flattened what was no row.
        inner = one.env if isinstance(one, FlattenObservation) else one
        space = inner.observation_space
        view = View(space, one.observation_space, one.action_space)
        tell_hidden_mask(one, space)
        tell_statistics(one, config)
    if has_processes(config):
        env = sent(env)
    return view, partial(make_envs, partial(flat_env, env), copies_of(config))


def tell_hidden_mask(env: Env, seen: spaces.Space[Any]) -> None:
    """Warn if an environment has masks of actions where nobody looks for them."""
    shown = isinstance(seen, spaces.Dict) and "action_mask" in seen.spaces
    if not (shown or env.has_wrapper_attr("action_masks")):
        return
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, WithoutMask):
            return
        inner = inner.env
    if "action_mask" in env.reset()[1]:
        return
    where = "its observation" if shown else "its method action_masks()"
    name = "MaskFromObservation" if shown else "MaskFromMethod"
    warn(
        f"env has masks in {where}, and nothing reads them: say "
        f'wrappers=["literate_rl:{name}"] to have them minded, or '
        '"literate_rl:WithoutMask" to train without',
        stacklevel=2,
    )


def tell_statistics(env: Any, config: Any) -> None:
    """Warn of wrappers that keep statistics of their own, and name the settings."""
    scale = "scale_reward=True" if hasattr(config, "scale_reward") else "reward_scale"
    found = [*with_statistics(env)]
    if not found:
        return
    settings = {scale if rewards else "normalize_obs=True" for _, rewards in found}
    returns = ", and returns are those of scaled rewards" * (scale in settings)
    names = " and ".join(dict.fromkeys(name for name, _ in found))
    warn(
        f"env keeps running statistics in {names}, which no checkpoint has and "
        f"evaluate measures anew{returns}: leave it out and set "
        f"{' and '.join(sorted(settings))}",
        stacklevel=2,
    )


def with_statistics(env: Any) -> Iterator[tuple[str, bool]]:
    """Yield the wrappers that keep statistics, and whether these are of rewards."""
    while isinstance(env, gym.Wrapper | VectorWrapper):
        of_rewards = isinstance(env, gym.RewardWrapper | VectorRewardWrapper)
        for name, kept in vars(env).items():
            # Gymnasium's class, and those of others, which have its name.
            running = "RunningMeanStd" in (kind.__name__ for kind in type(kept).__mro__)
            if running and getattr(env, "update_running_mean", True):
                named = any(part in name.lower() for part in ("ret", "rew"))
                yield type(env).__name__, of_rewards or named
        env = env.env
    if isinstance(env, SyncVectorEnv):
        yield from with_statistics(env.envs[0])
    elif isinstance(env, AsyncVectorEnv):
        with closing(env.env_fns[0]()) as one:
            yield from with_statistics(one)


def looked_at_many(envs: VectorEnv[Any, Any, Any], config: Any) -> tuple[View, Build]:
    """Do the same for a vector environment."""
    if has_actors(config):
        kind = type(envs).__name__
        raise ValueError(
            "env must be an id, a class or a function, because actors make "
            f"environments of their own, got {kind}"
        )
    resets_later(envs)  # refuses a mode that no learner understands
    tell_statistics(envs, config)
    if envs.num_envs != copies_of(config):
        words = f"{name_of_copies(config)} must be {envs.num_envs}, as many as env has"
        raise ValueError(f"{words}, got {copies_of(config)}")
    seen, flat = envs.single_observation_space, envs
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
        check_flat(seen)
        flat = Rows(envs)
    rows = flat.single_observation_space
    return View(seen, rows, envs.single_action_space), lambda: flat


def has_actors(config: Any) -> bool:
    """Say whether actors collect for the learner."""
    return isinstance(config, TransportConfig) and config.actors is not None


def name_of_copies(config: Any) -> str:
    """Return the name of the setting that says how many environments there are."""
    return "n_sample" if isinstance(config, ActorsConfig) else "num_envs"


def copies_of(config: Any) -> int:
    """Return how many environments are stepped together."""
    copies: int = getattr(config, name_of_copies(config))
    return copies


def has_processes(config: Any) -> bool:
    """Say whether the actors are in other processes."""
    return has_actors(config) and config.transport != "in_process"


def sent(env: Make) -> Make:
    """Return what other processes make an environment of, if they can."""
    inner = env.env if isinstance(env, Wrapped) else env
    if isinstance(inner, str) and inner in gym.registry:
        inner = gym.spec(inner)
    env = Wrapped(inner, env.wrappers) if isinstance(env, Wrapped) else inner
    check_sent("env", env, env)
    return env


def check_sent(name: str, thing: Any, given: Any) -> None:
    """Raise unless other processes can be sent something."""
    try:
        pickled(thing)
    except ValueError as error:
        raise ValueError(
            f"{name} must be something that actors in other processes can import, got "
            f"{given!r}: write it into a file, such as mine.py, and hand over what "
            'stands there (for an environment "mine:name" will do), or leave out '
            "transport, and the actors take turns in this process"
        ) from error


class Rows(VectorWrapper[Any, Any, Any]):
    """A vector environment with flat observations; Gymnasium's takes one mode only."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(envs)
        self.autoreset_mode = getattr(envs, "autoreset_mode", None)
        self.shaped = envs.single_observation_space
        self.single_observation_space = spaces.flatten_space(self.shaped)
        self.observation_space = batch_space(
            self.single_observation_space, envs.num_envs
        )

    def rows(self, obs: Any) -> NDArray[Any]:
        """Flatten the observations of all copies."""
        each = iterate(self.env.observation_space, obs)
        return np.stack([self.row(one) for one in each])

    def row(self, obs: Any) -> NDArray[Any]:
        """Flatten one observation."""
        return np.asarray(spaces.flatten(self.shaped, obs))

    def reset(self, **options: Any) -> Any:
        """Begin episodes in all copies."""
        obs, infos = self.env.reset(**options)
        return self.rows(obs), infos

    def step(self, actions: Any) -> Any:
        """Step all copies; last observations are flattened too."""
        obs, *rest, infos = self.env.step(actions)
        for index in np.flatnonzero(infos.get("_final_obs", ())):
            infos["final_obs"][index] = self.row(infos["final_obs"][index])
        return self.rows(obs), *rest, infos


class Glimpse(Env):
    """Shows samples of the spaces of a vector environment, for the model checker."""

    def __init__(self, view: View) -> None:
        self.observation_space, self.action_space = view.seen, view.actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Show something."""
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        """Show something else."""
        return self.observation_space.sample(), 0.0, False, False, {}


@contextmanager
def named_refusal(algorithm: str) -> Iterator[None]:
    """Say whose policy does not fit the spaces of an environment."""
    try:
        yield
    except SpaceError as error:
        raise SpaceError(f"{algorithm.upper()}'s {error}") from error


@contextmanager
def ended(learner: Learner, env: World = "") -> Iterator[None]:
    """Close the actors and environments of a learner when its training ends.

    A vector environment is the user's, who may go on with it.
    """
    try:
        yield
    finally:
        if isinstance(learner, RemoteLearner):
            learner.close()
        elif not isinstance(env, VectorEnv):
            runner_of(learner).collector.envs.close()


def told(view: View, models: Models) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return the spaces that our networks are told: an encoder reads the true one."""
    if not models.keys() - {"mask"}:
        readable_parts(view.seen)
    shaped = "encoder" in models or has_pictures(view.seen)
    return view.seen if shaped else view.rows, view.actions


def parts_of(config: Any) -> dict[str, Any]:
    """Return what actor and critics of ours have before their layers."""
    return {"normalize": config.normalize_obs, "share_encoder": config.share_encoder}


def actor_critic(view: View, config: Any, models: Models) -> PolicyLike:
    """Build an actor and a critic of states."""
    seen, done = told(view, models)
    if "actor" in models:
        return make_contract_policy(view.seen, done, **models)
    make = make_hybrid_policy if is_hybrid(done) else make_policy
    return make(seen, done, **parts_of(config), **models)


def phasic(view: View, config: PPGConfig, models: Models) -> PolicyLike:
    """Build a policy with two values."""
    seen, done = told(view, models)
    encoder = config.share_encoder, config.detach
    return make_phasic_policy(
        seen, done, *encoder, normalize=config.normalize_obs, **models
    )


def q_values(view: View, config: DQNConfig, models: Models) -> PolicyLike:
    """Build a network that values each action."""
    seen, done = told(view, models)
    if "qnet" in models:
        return make_qnet_policy(view.seen, done, **models)
    models = models | {"normalize": config.normalize_obs}
    return make_q_policy(seen, done, config.hidden, config.dueling, **models)


def q_atoms(view: View, config: RainbowConfig, models: Models) -> PolicyLike:
    """Build a network with a distribution of the return for each action."""
    seen, done = told(view, models)
    if "qnet" in models:
        support = [config.value_min, config.value_max]
        return make_qnet_policy(view.seen, done, **models, support=support)
    return rainbow_policy(seen, done, config, **models)


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
    chosen["normalize"] = config.normalize_obs
    return make_rainbow_policy(observation_space, action_space, **chosen, **models)


def deterministic(view: View, config: Any, models: Models) -> PolicyLike:
    """Build an actor that draws nothing, and critics of actions."""
    seen, done = told(view, models)
    number = getattr(config, "num_critics", 1)
    if "actor" in models:
        return make_own_ddpg_policy(view.seen, done, **models, num_critics=number)
    models = models | parts_of(config)
    return make_ddpg_policy(seen, done, config.hidden, number, **models)


def soft(view: View, config: SACConfig, models: Models) -> PolicyLike:
    """Build an actor that draws, and critics, for a box or for actions from a list."""
    seen, done = told(view, models)
    sizes = config.hidden, config.num_critics
    if "actor" in models:
        return make_own_sac_policy(view.seen, done, **models, num_critics=sizes[1])
    models = models | parts_of(config)
    if isinstance(done, spaces.Discrete):
        return make_discrete_sac_policy(seen, done, *sizes, **models)
    return make_sac_policy(seen, done, *sizes, config.hold, **models)


def fitting(form: Callable[[Any], Any], policy: Any, fast: Fast) -> Any:
    """Return a fast form, or None where it refuses the policy or nobody wants it."""
    try:
        return None if fast == "plain" else form(policy)
    except ValueError:
        return None


def alone(
    learner: Callable[..., Learner],
    policy: Any,
    build: Build,
    config: Any,
    fast: Fast,
    **forms: Callable[[Any], Any],
) -> Learner:
    """Build a learner without actors, given what makes fast forms for a policy."""
    made = {name: fitting(form, policy, fast) for name, form in forms.items()}
    return learner(policy, build(), config, **made)


def ppo(policy: Any, build: Build, config: PPOConfig, fast: Fast) -> Learner:
    """Build PPO, which can do without autograd."""
    by_hand = ByHand(policy) if fast == "by hand" else None
    act = fitting(numpy_act, policy, fast)
    return PPO(policy, build(), config, act, by_hand=by_hand)


def ppg(policy: Any, build: Build, config: PPGConfig, fast: Fast) -> Learner:
    """Build PPG, whose auxiliary phase can write its gradient at the heads."""
    learner = PPGAlgorithm(policy, build(), config)
    aux: Any = learner.aux
    if fast == "by hand":
        aux.learn = AuxiliaryHeads(aux)
    return learner


def with_actors(
    learner: Callable[..., Learner], policy: Any, build: Build, config: Any, fast: Fast
) -> Learner:
    """Build a learner whose actors make environments of their own."""
    return learner(
        policy, build, config, transport_of(config), actors_act(policy, fast)
    )


def actors_act(policy: Any, fast: Fast) -> Callable[[Any], Act] | None:
    """Return what makes the actors' form of ``act``; they are on the CPU."""
    fits = fitting(numpy_act, copy.deepcopy(policy).cpu(), fast)
    return numpy_act if fits else None


def transport_of(config: TransportConfig) -> MakeTransport:
    """Return the transport that the settings name."""
    if config.transport == "ray":
        return partial(RayActors, address=config.address)
    return transport_named(config.transport)


def impala(policy: Any, build: Build, config: ActorsConfig, fast: Fast) -> Learner:
    """Build IMPALA, with actors if the settings ask for some."""
    if config.actors is None:
        return IMPALA(policy, build(), config)
    return with_actors(ActorLearner, policy, build, config, fast)


def soft_learner(policy: Any, build: Build, config: SACConfig, fast: Fast) -> Learner:
    """Build SAC, for numbers in a box or for actions from a list."""
    envs = build()
    if isinstance(envs.single_action_space, spaces.Discrete):
        act = fitting(numpy_act, policy, fast)
        return DiscreteSAC(policy, envs, config, act=act)
    return SAC(policy, envs, config, error=fitting(fused_critic_error, policy, fast))


def apex(
    learner: Callable[..., Any], policy: Any, build: Build, config: Any, fast: Fast
) -> Learner:
    """Build a learner with many actors and one memory."""
    one = learner(policy, build, config, fast)
    return Apex(one, build, transport_of(config), actors_act(policy, fast))


def runner_of(learner: Any) -> Any:
    """Return what steps a learner's environments: its runner, or the learner."""
    learner = getattr(learner, "ppo", learner)
    return getattr(learner, "runner", learner)


def opening(learner: Any) -> str:
    """Return what is said when a training begins."""
    each, total = steps_of_iteration(learner.config), learner.config.total_steps
    takes = learner.step + math.ceil(max(0, total - learner.step) / each) * each
    words = f"steps: {takes:,} for {total:,}, because an iteration has {each:,}"
    return handed_in(learner) + (f"\n{words}" if takes > total else "")


def steps_of_iteration(config: Any) -> int:
    """Return how many steps a learner takes at once, all environments together."""
    if isinstance(config, ActorsConfig):
        rows = config.unroll_len
    elif isinstance(config, ApexConfig):
        rows = cast(Any, config).rollout_len
    elif isinstance(config, OffPolicyConfig):
        rows = config.rounds * config.rollout_len
    else:
        rows = config.num_steps
    return rows * copies_of(config)


def handed_in(learner: Any) -> str:
    """Say which fast forms a learner was handed; the rest is as its chapter says."""
    if isinstance(learner, RemoteLearner):
        make_actor: Any = learner.make_actor
        loop, acting = learner.learner, make_actor.keywords["make_act"] is not None
    else:
        plain = learner.policy.act
        loop, acting = learner, getattr(runner_of(learner), "act", plain) != plain
    error = isinstance(loop, OffPolicy) and loop.error != loop.algorithm.error
    by_hand = isinstance(loop, PPO) and loop.judge is not loop.policy
    heads = isinstance(loop, PPGAlgorithm) and "learn" in vars(loop.aux)
    known = {"acting": acting, "the error": error, "learning by hand": by_hand}
    known["the heads of the auxiliary phase by hand"] = heads
    names = [name for name, handed in known.items() if handed]
    return f"fast forms: {' and '.join(names) or 'none'}"


class Entry(NamedTuple):
    """What ``train`` knows about an algorithm.

    Attributes:
        config: Class of its settings.
        settings: Function from the id of an environment to settings.
        learner: Function from a policy, a function that makes environments, settings
            and the wanted fast forms to a learner.
        policy: Function from what an environment is like, settings and models of your
            own to a policy.
        models: Names of the models of your own that it takes, all of them or none.
        contract: What its models keep, if that has another name than the algorithm.
    """

    config: type[Any]
    settings: Callable[[str], Any]
    learner: Callable[[Any, Build, Any, Fast], Learner]
    policy: Callable[[View, Any, Models], Any] = actor_critic
    models: tuple[str, ...] = ("actor", "critic")
    contract: str = ""

    @property
    def hybrid(self) -> bool:
        """Whether it learns hybrid actions."""
        return self.policy in (actor_critic, phasic)


def with_priorities(settings: Callable[[str], Any], env: str) -> Any:
    """Return settings for an environment, with the exponent of prioritised replay.

    Source: Schaul et al. 2016, section 4.
    """
    return replace(settings(env), priority_exponent=0.6)


def settings_of_sac(env: str) -> SACConfig:
    """Return settings of SAC for an environment, whichever actions it has."""
    return discrete_sac_settings(env) if env in LISTED else sac_settings(env)


# What algorithms of one family share.
VALUES: dict[str, Any] = {"policy": q_values, "models": ("qnet",)}
ATOMS = VALUES | {"policy": q_atoms, "contract": "rainbow"}
BOXES: dict[str, Any] = {"policy": deterministic}
a2c = partial(alone, A2C, act=numpy_act)
dqn = partial(alone, DQN, act=numpy_act, error=fused_q_error)
rainbow = partial(alone, Rainbow)
ddpg, hddpg = (partial(alone, learner) for learner in (DDPG, HDDPG))
td3 = partial(alone, TD3, error=fused_critic_error)

ALGORITHMS = {
    "ppo": Entry(PPOConfig, ppo_settings, ppo),
    "ppg": Entry(PPGConfig, ppg_settings, ppg, phasic, models=()),
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


CLASSES = {"ppgalgorithm": "ppg", "discretesac": "sac"}
BELONGS = {
    "apex": "'DQNApex', 'RainbowApex' or 'DDPGApex'",
    "actorlearner": "'IMPALA' with actors=2",
    "c51": "'Rainbow'",
    "categoricalqnetwork": "'Rainbow'",
    "doubledqn": "'DQN' with double=True",
    "dueling": "'DQN' with dueling=True",
    "duelingdqn": "'DQN' with dueling=True",
    "duelingqnetwork": "'DQN' with dueling=True",
    "qnetwork": "'DQN'",
    "categoricalactor": "'PPO', 'A2C', 'A3C', 'IMPALA' or 'SAC'",
    "statevalue": "'PPO', 'A2C', 'A3C' or 'IMPALA'",
    "deterministicactor": "'DDPG' or 'TD3'",
    "probabilityactor": "'DDPG' or 'TD3'",
    "actionvalue": "'DDPG', 'TD3' or 'SAC'",
    "squashedgaussianactor": "'SAC' or 'A2C'",
}


def algorithm_named(name: Any) -> str:
    """Return the key of an algorithm in the table.

    Raises:
        TypeError: If the name is no text.
        ValueError: If there is no such algorithm. The message says what was meant.
    """
    if not isinstance(name, str):
        kind = getattr(name, "__name__", type(name).__name__)
        raise TypeError(f"algorithm must be a text such as 'PPO', got {kind}")
    key = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    key = CLASSES.get(key, key)
    if key in ALGORITHMS:
        return key
    close = get_close_matches(key, ALGORITHMS, n=1, cutoff=0.6)
    belongs = BELONGS.get(key) or defined_for(key) or "".join(map(repr, close))
    hint = f": is it {belongs}?" if belongs else ""
    names = ", ".join(ALGORITHMS)
    raise ValueError(f"algorithm must be one of {names}, got {name!r}{hint}")


def defined_for(key: str) -> str:
    """Return the algorithm whose chapter defines a public name, or an empty text."""
    package = importlib.import_module("literate_rl")
    public = {name.lower(): name for name in package.__all__}
    defined = getattr(package, public.get(key, ""), None)
    chapter = getattr(defined, "__module__", "").removeprefix("literate_rl.")
    return next((repr(x) for x, told in OFFERED.items() if told.chapter == chapter), "")


@dataclass(frozen=True)
class Asked:
    """What somebody wants to be trained.

    Attributes:
        algorithm: Its name in the table.
        env: As in ``train``, or None for that of a run.
        wrappers: As in ``train``.
        models: Models of your own, an encoder and a mask, by their names.
        changes: Settings that were named.
        fast: As in ``train``.
        dash: What stands before the name of an option.
    """

    algorithm: str
    env: World | None
    wrappers: Sequence[Wrapper]
    models: Models
    changes: dict[str, Any]
    fast: Fast = "auto"
    dash: str = ""

    def new(self, check: bool, place: Place) -> tuple[Learner, World]:
        """Build a learner for a new run."""
        changes, world = self.changes, known_env(self.env)
        default = ALGORITHMS[self.algorithm].settings(
            world if isinstance(world, str) else ""
        )
        if isinstance(world, VectorEnv):
            if self.wrappers:
                words = "wrappers must be left out with a vector environment"
                raise ValueError(f"{words}: wrap what it is made of")
            changes = {name_of_copies(default): world.num_envs} | changes
        else:
            world = make_wrapped(cast(Make, world), self.wrappers)
        config = settings_with(default, changes)
        arguments = self.algorithm, world, config, self.models
        return make_learner(*arguments, check, place, self.fast), world

    def again(self, run: Run, check: bool, place: Place) -> tuple[Learner, World]:
        """Build a learner that goes on where a run has stopped."""
        stored, source = run.settings, run.directory / "settings.json"
        if (named := stored.get("algorithm")) != self.algorithm:
            raise ValueError(
                f"{source}: algorithm is {named!r}, not {self.algorithm!r}"
            )
        config = settings_of(ALGORITHMS[self.algorithm].config, stored, source)
        asked = self.env, self.wrappers, self.dash
        world: World = agreed_env(stored, *asked)
        self.check_settings(config)
        models = self.agreed_models(stored, source)
        arguments = self.algorithm, world, config, models
        learner = make_learner(*arguments, check, place, self.fast)
        run.restore(learner)
        return learner, world

    def check_settings(self, config: Any) -> None:
        """Raise if a setting was named that the run does not have."""
        if isinstance(config, TransportConfig):
            option = f"{self.dash}{address_option(config)}" if self.dash else "address"
            typed = self.changes.get("address")
            check_named(option, config.address, typed, config.address is not None)
        wanted = settings_with(config, self.changes)
        for name in self.changes:
            stored, typed = getattr(config, name), getattr(wanted, name)
            if typed != stored:
                raise ValueError(
                    f"a resumed run keeps its settings: {as_typed(name, self.dash)} is "
                    f"{stored!r}, not {typed!r}; edit settings.json to change it"
                )

    def agreed_models(self, stored: dict[str, Any], source: Path) -> Models:
        """Return models of one's own and a mask, once they are those of the run."""
        for name, model in models_of(stored, source).items():
            if name not in self.models:
                bare = f"{name}={model}"
                option = f"--{name} {shlex.quote(model)}" if self.dash else bare
                raise ValueError(f"the run has a model of your own: add {option}")
        mask = stored.get("mask")
        if "mask" in self.models and self.models["mask"] != mask:
            raise ValueError(f"the run has mask {mask}, not {self.models['mask']}")
        return self.models | ({} if mask is None else {"mask": read_mask(mask)})


def address_option(config: TransportConfig) -> str:
    """Return how the address of a cluster is typed: only actors on Ray use it."""
    return f"actors {config.actors} --transport ray --address"


def settings_with(config: Any, changes: dict[str, Any]) -> Any:
    """Return settings with some changes, or say which settings there are."""
    names = [field.name for field in fields(config)]
    for name in changes:
        if name not in names:
            close = get_close_matches(name, names, n=1, cutoff=0.8)
            hint = about(name, names) or "".join(f" (is it {x}?)" for x in close)
            words = f"there is no setting {name!r}{hint}, but {', '.join(names)}"
            raise TypeError(words)
    return replace(config, **changes)


def settings_of_run(
    algorithm: str, env: World, config: Any, models: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings that are stored in the directory of a run."""
    inner, wrappers = (env.env, env.wrappers) if isinstance(env, Wrapped) else (env, ())
    names = {
        name: f"{getattr(model, '__module__', '')}:{name_of_model(model)}"
        for name, model in models.items()
        if name in MODELS
    }
    settings = {
        "algorithm": algorithm,
        "env": name_of_maker(inner),
        "config": asdict(config),
        "models": names,
    }
    # Most runs have neither.
    if wrappers:
        settings["wrappers"] = [*map(name_of_maker, wrappers)]
    if "mask" in models:
        settings["mask"] = models["mask"]
    return settings


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


def read_mask(mask: Any) -> list[list[int]]:
    """Return a mask as plain numbers, which a file can hold."""
    rows = mask.tolist() if isinstance(mask, Tensor | np.ndarray) else mask
    try:
        table = torch.tensor(rows)
        if table.ndim == 2 and ((table == 0) | (table == 1)).all():
            numbers: list[list[int]] = table.int().tolist()
            return numbers
    except (TypeError, ValueError):
        pass  # rows of several lengths, or no numbers
    raise ValueError(f"mask must be a table of zeros and ones, got {mask!r}")


def import_model(role: str, where: str) -> Any:
    """Make a model from ``module:name`` of a class or function without arguments.

    A function that makes an encoder is returned as it is: it waits for the space.
    """
    try:
        module, _, name = from_file(where).partition(":")
        make = getattr(importlib.import_module(module), name)
        return make if role == "encoder" and not isinstance(make, type) else make()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also one that calls `sys.exit`
        raise ValueError(
            f"{where} must be module:name of a class or function that makes a model "
            f"without arguments: {type(error).__name__}: {error}"
        ) from error

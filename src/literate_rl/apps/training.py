# Generated from chapters/apps/training.py (edit there); digest b980943f352fb1b5
"""Training in one call: an algorithm, an environment, a network of one's own."""

from __future__ import annotations

import copy
import math
import pickle
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack
from warnings import warn
from importlib import import_module

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from literate_rl.actors.a3c import A3C  # noqa: F401 (its row)
from literate_rl.actors.actors import MakeTransport
from literate_rl.data.agents import best_device, make_envs, seed_everything
from literate_rl.actors.apex import Apex  # noqa: F401 (its rows)
from literate_rl.check.contracts import CONTRACTS, check_model
from literate_rl.learners.discrete_sac import DiscreteSAC  # noqa: F401 (SAC's row)
from literate_rl.nets.encoders import has_pictures, readable_parts
from literate_rl.nets.masks import WithoutMask
from literate_rl.nets.policies import predicted
from literate_rl.nets.parts import CategoricalActions
from literate_rl.learners.ppg import PPGAlgorithm  # noqa: F401 (its row)
from literate_rl.actors.processes import pickled, transport_named
from literate_rl.learners.td3 import TD3  # noqa: F401 (its row and HDDPG's)
from literate_rl.by_hand.fast_forms import fused_q_error, numpy_act
from literate_rl.by_hand.ppo_by_hand import ByHand
from literate_rl.check.own_models import (
    make_contract_policy,
    make_own_ddpg_policy,
    make_own_sac_policy,
    make_qnet_policy,
    own_model,
    results_for,
)
from literate_rl.check.probes import device_of
from literate_rl.data.episodes import Mean, as_masks, resets_later
from literate_rl.data.makers import (
    Make,
    Wrapped,
    Wrapper,
    check_flat,
    flat_env,
    from_file,
    in_file,
    known_env,
    make_one,
    make_wrapped,
    name_of_maker,
    unflattened,
)
from literate_rl.ground.nests import (
    MODELS,
    SpaceError,
    as_space,
    is_hybrid,
    name_of_model,
    plain_space,
)
from literate_rl.ground.networks import eval_mode, randomness_kept
from literate_rl.ground.protocols import (
    Kept,
    Learner,
    PolicyLike,
    refuse_mask,
)
from literate_rl.ground.rows import (
    ALGORITHMS,
    ANY,
    Row,
    by_settings,
    key_of,
    maker_named,
    register,
)
from literate_rl.ground.signatures import Count, check_that, checked
from literate_rl.interfaces.cluster import RayActors
from literate_rl.learners.rainbow import RainbowPolicy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import (
    Callback,
    OwnModels,
    Run,
    about,
    agreed_env,
    check_agreed,
    fit,
    is_command,
    load_checkpoint,
    make_visible,
    names_of,
    policy_state,
    save_checkpoint,
    sync,
    todays_names,
    warn_once_named,
)

__all__ = ["Agent", "Options", "train"]


Device = Literal["auto", "cpu", "cuda"]
Fast = Literal["auto", "plain", "by hand"]
Models = dict[str, Any]
Env = gym.Env[Any, Any]
Vectors = VectorEnv[Any, Any, Any]
World = Make | Vectors
Build = Callable[[], Vectors]


def train(
    algorithm: str | Row,
    env: World | None = None,
    *,
    wrappers: Sequence[Wrapper] = (),
    mask: ArrayLike | Tensor | None = None,
    resume: str | Path | None = None,
    device: Device = "auto",
    fast: Fast = "auto",
    check: bool = True,
    progress: bool = True,
    callback: Callback | None = None,
    eval_interval: int | None = None,
    eval_episodes: int | None = None,
    log_infos: Sequence[str] = (),
    like: str | None = None,
    **options: Unpack[Options],
) -> Agent:
    """Train an agent on an environment, until it is done or until Ctrl-C.

    Ctrl-C ends it in good order; one more within a second raises, and so ends a loop
    of trainings too. The global random numbers stay as they were.

    Args:
        algorithm: Its name, in capitals or not: ``"DQN"``. One of your own is its row,
            or ``module:name`` or ``file.py:name`` of it.
        env: A registered id, ``module:id``, ``module:name`` of a class or function, or
            what makes an environment: a class or a function without arguments. Or a
            vector environment, which is left open; it says how many copies there are.
            None is that of the run that goes on.
        wrappers: What is put around each environment, the first one innermost: texts
            such as ``"FrameStackObservation(4)"``, by Gymnasium's names, or functions
            from an environment to another one.
        mask: Which type (row) of a hybrid action uses which argument (column), where
            the space does not say it, as in ``HybridActions.from_space``.
        resume: Directory of a run to go on with, by the same algorithm in the same
            environment. It keeps its settings; what has no name there is given again.
            Only ``total_steps`` may be larger than before. Then what falls with the
            steps of a training, such as an annealed learning rate, goes on as if the
            run had been that long from the start.
        device: Where the networks are while they train. ``"auto"`` is CUDA if there is
            one and the network and its batches are large enough for it to pay. In the
            end models of your own are back where they were, and ours are on the CPU.
        fast: Which forms of acting and learning are used. ``"auto"`` hands in the fast
            forms that the policy allows, ``"plain"`` none. ``"by hand"`` is for PPO,
            which then also backpropagates in NumPy (``ByHand``). The numbers are the
            same up to rounding, so a run may go on in another form.
        check: Whether models of your own are checked against the contract first.
        progress: Whether to show a progress bar.
        callback: Called after each iteration with the learner and its metrics. If it
            returns True, the training ends in good order, and can be resumed.
        eval_interval: Steps from one evaluation to the next, or None for no
            evaluations. Greedy episodes in an environment of their own, which always
            start in the same ways, give ``charts/eval_return``. The policy that did
            best is kept beside the last one: ``agent.best``. The training is the same.
        eval_episodes: Episodes of each evaluation, by default 10.
        log_infos: What to log of ``info`` at the end of episodes, by names such as
            ``"is_success"``: the means.
        like: Id of an environment whose settings are taken, where yours has none of its
            own: ``"MinAtar/Breakout-v1"`` for another game of small planes.
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
    changes: dict[str, Any] = {}
    for given, value in options.items():
        today = warn_once_named(given)
        if today in changes:
            raise TypeError(f"{today} was given twice, also by its old name")
        changes[today] = value
    models = {key: changes.pop(key) for key in MODELS if key in changes}
    models |= {} if mask is None else {"mask": read_mask(mask)}
    asked = Asked(
        algorithm_named(algorithm),
        env,
        wrappers,
        models,
        changes,
        resume,
        fast,
        check,
        callback,
        eval_interval,
        eval_episodes,
        log_infos,
        like,
    )
    # The caller may be in a block without gradients, and draws random numbers too.
    with (
        torch.inference_mode(False),
        randomness_kept(),
        placing(device, progress) as place,
    ):
        training = asked.start(place)
        history = training.carry_out(progress)
    run, world = training.run, training.world
    agent = Agent(training.learner, run.directory, history, world)
    if resume is None:
        agent.clear_up()
    if progress:
        watch = "watch it with show(agent.policy, agent.env), "
        watch = "" if isinstance(world, VectorEnv) else watch
        kept = "keep it with agent.save(directory)"
        print(watch + (f"kept in {run.directory}" if resume else kept))
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
    value_epochs: int | None
    aux_learning_rate: float
    clone_weight: float
    kl_reference: Literal["snapshot", "rollout"]
    share_encoder: bool
    recurrent: Literal["gru", "lstm"] | None
    recurrent_size: int
    detach: Literal["always", "policy_phase", "never"]
    on_policy: bool
    priority: bool
    priority_IS_weight: bool  # noqa: N815 (the name of the original)
    update_per_collect: int
    batch_size: int
    rho_clip_ratio: float | None
    c_clip_ratio: float | None
    rho_pg_clip_ratio: float | None
    grad_clip_type: Literal["clip_norm", "clip_value", "clip_momentum_norm"] | None
    clip_value: float
    optim: Literal["adam", "rmsprop"]
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


class Taught(NamedTuple):
    """What a copy of an agent has of its learner."""

    policy: PolicyLike
    config: Any
    step: int


@dataclass(eq=False, repr=False)
class Agent:
    """What ``train`` returns: a policy that has learned, and the run that taught it.

    It can be copied and pickled. A copy acts, and is saved, whatever becomes of the
    agent. It has no learner to go on with: save it, and ``resume`` that.

    Attributes:
        learner: The learner, with its ``policy`` and its ``config``.
        folder: Where its run is kept.
        history: The rows of the log: the metrics of each iteration, or of several.
        env: What it has learned in, as it was given, with the wrappers around it. For
            ``evaluate``, ``record_video`` and ``show``, unless it is a vector
            environment: they ask for what makes a single one. None in a pickled copy
            where it could not be pickled.
    """

    learner: Learner
    folder: Path
    history: list[dict[str, float]]
    env: Any = None

    @property
    def policy(self) -> PolicyLike:
        """The policy, for ``evaluate``, ``record_video`` and ``show``."""
        return self.learner.policy

    @property
    def best(self) -> PolicyLike:
        """A copy of the policy as it was when its evaluation was best.

        Raises:
            FileNotFoundError: If it was trained without ``eval_interval``.
        """
        best: Any = copy.deepcopy(self.policy)
        state = load_checkpoint(self.folder / "best.pt")
        best.load_state_dict(state["policy"]["weights"])
        return best

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or a callback ended the training before its last step."""
        return self.learner.step < self.learner.config.total_steps

    def clear_up(self) -> None:
        """Remove the folder once nobody has the agent any more."""
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def state(self, policy: PolicyLike) -> dict[str, Any]:
        """Return what a copy with such a policy has, the folder's files among it."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {
            **vars(self),
            "learner": Taught(policy, self.learner.config, self.learner.step),
            "folder": {str(x.relative_to(self.folder)): x.read_bytes() for x in files},
        }

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickled copy needs."""
        state = self.state(self.policy)
        # As bytes it outlives this process, as tensors in shared memory do not.
        state["learner"] = pickle.dumps(state["learner"])
        try:
            pickle.dumps(self.env)
        except Exception:
            state["env"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy, with a folder of its own."""
        folder = Path(tempfile.mkdtemp(prefix="literate_rl_"))
        for name, content in state["folder"].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        learner = state["learner"]
        learner = pickle.loads(learner) if isinstance(learner, bytes) else learner
        vars(self).update(state, learner=learner, folder=folder)
        self.clear_up()

    def __deepcopy__(self, memo: dict[int, Any]) -> Agent:
        """Return a copy in the same ``env``."""
        twin, state = Agent.__new__(Agent), self.state(copy.deepcopy(self.policy, memo))
        twin.__setstate__(state | {"history": copy.deepcopy(self.history, memo)})
        return twin

    def predict(self, obs: Any, mask: Any = None, greedy: bool = True) -> Any:
        """Return actions in the environment's own form, as ``Policy.predict`` does."""
        return predicted(self.policy, obs, mask, greedy)

    def reset(self, over: Any = None) -> None:
        """Let a policy that remembers begin anew, as ``RecurrentPolicy.reset`` does."""
        getattr(self.policy, "reset", lambda _: None)(over)

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
        return results if len(results) > 1 else results[0]

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
        state = torch.as_tensor(states["state"]).to(device_of(policy), torch.float32)
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


def work_of_update(policy: Any, config: Any) -> float:
    """Return about how many multiply-adds one update of a policy takes."""
    parameters = sum(weight.numel() for weight in policy.parameters())
    return float(3 * config.rows_per_update * parameters)


def chosen_device(device: Device, policy: Any, config: Any) -> tuple[torch.device, str]:
    """Return where a policy trains and, if that was a choice, the reason."""
    best = best_device()
    if device != "auto" or best.type == "cpu":
        return torch.device("cpu") if device == "cpu" else best, ""
    for weight in policy.parameters():
        if weight.device.type != "cpu":
            return weight.device, "where the model is"
    work = work_of_update(policy, config)
    reason = (
        f"an update is {work / 1e6:,.1f} million multiply-adds, "
        f"and CUDA pays above {CROSSOVER / 1e6:.0f} million"
    )
    return best if work > CROSSOVER else torch.device("cpu"), reason


Place = Callable[[Any, Any], Any]  # from a policy and settings to the policy


@contextmanager
@checked
def placing(device: Device, tell: bool = True) -> Iterator[Place]:
    """Give a function that moves a policy to its device; in the end it comes back.

    Args:
        device: As in ``train``.
        tell: Whether to print which device was chosen, and why.

    Raises:
        ValueError: If there is no such device.
    """
    if device == "cuda" and best_device().type == "cpu":
        raise ValueError("device must be cpu or auto where PyTorch finds no CUDA")
    homes: list[tuple[nn.Module, torch.device]] = []

    def place(policy: Any, config: Any) -> Any:
        goal, reason = chosen_device(device, policy, config)
        if tell and reason:
            print(f"device: {goal.type} ({reason})")
        homes.extend((module, device_of(module)) for module in policy.modules())
        return policy.to(goal)

    try:
        yield place
    finally:
        for module, home in homes:
            module.to(home)


def make_learner(*asked: Any, **more: Any) -> Learner:
    """Build a learner, as ``made`` does."""
    return made(*asked, **more)[0]


def check_recipe(row: Row, policy: Any) -> None:
    """Raise if ``load`` would build no policy, or another one, for a user's row."""
    name, arguments = getattr(policy, "recipe", ("", {}))
    words = f"{row.name}'s policy would not come back from load"
    how = "decorate its maker with remembered, and name it in Row.makers"
    if (make := maker_named(name)) is None:
        raise ValueError(f"{words}: {how}")
    with randomness_kept():
        twin = make(**arguments)
        same = repr(twin) == repr(policy)
        if same:
            twin.load_state_dict(policy.state_dict())
            obs = batch_space(twin.observation_space, 32).sample()
            # A policy may remember what it was asked: a copy answers.
            given = copy.deepcopy(policy)
            same = str(twin.predict(obs)) == str(given.predict(obs))
    check_that(same, f"{words}, but that of {name}: {how}")


def check_kept(learner: Any) -> None:
    """Raise if a checkpoint would lose what a learner of the user's has."""
    if type(learner).state_dict is not Kept.state_dict:
        return
    known = {id(x) for x in learner.policy.modules()}
    kinds = (nn.Module, torch.optim.Optimizer, torch.Generator)
    for name, x in vars(learner).items():
        lost = isinstance(x, kinds) and id(x) not in known and name not in learner.kept
        words = f"{name} of {type(learner).__name__} would not be in a checkpoint"
        check_that(not lost, f"{words}: name it in kept")


def made(
    algorithm: str,
    env: World,
    config: Any,
    models: Models,
    check: bool = True,
    place: Place = lambda policy, config: policy,
    fast: Fast = "auto",
    notes: Notes | None = None,
) -> tuple[Learner, dict[str, Any]]:
    """Return a learner, with models of your own if they keep the contract.

    Beside it are the fast forms that it was handed, by their slots.
    """
    row: Any = ALGORITHMS[algorithm]
    theirs = not row.home.startswith("literate_rl.")
    check_fast(fast, row)
    check_models(row, models, config)
    view, make = looked_at(env, config)
    build = make if notes is None else lambda: Noted(make(), notes)
    hybrid = row.actions == ANY and is_hybrid(view.actions)
    if "mask" in models and not hybrid:
        words = "mask is for hybrid actions and what learns them"
        raise ValueError(f"{words}, got {algorithm} and {view.actions}")
    if check and models.keys() - {"encoder", "mask"}:
        known = algorithm in (family.lower() for family in CONTRACTS)
        glimpse = partial(Glimpse, view)
        sample = glimpse if isinstance(env, VectorEnv) else partial(make_one, env)
        family = algorithm if known else row.contract
        check_model(family, env=sample, **models)
    seed_everything(config.seed)
    try:
        policy = policy_for(row, view, config, models)
    except SpaceError as error:
        raise SpaceError(f"{algorithm.upper()}'s {error}") from error
    if theirs and not models:
        check_recipe(row, policy)
    # Its own space, where the policy was told that of flat rows.
    policy.observation_space = as_space(plain_space(view.seen))
    if has_processes(config) and models:
        check_sent(" and ".join(models), policy, [*models.values()])
    policy = place(policy, config)
    forms = {slot: fast_form(slot, policy, fast) for slot in row.forms}
    if config.actors is None:
        learner = row.learner(policy, build(), config, **forms)
        if theirs:
            check_kept(learner)
        return learner, forms
    # The actors are on the CPU, and each makes a form of its own.
    act = fast_form("act", copy.deepcopy(policy).cpu(), fast) and numpy_act
    learner = row.actors(policy, build, config, transport_of(config), act, **forms)
    return learner, {"act": act, **forms}


@checked
def check_fast(fast: Fast, row: Row) -> None:
    """Raise unless there is such a choice, and the algorithm has it."""
    able = [key for key, each in ALGORITHMS.items() if "by_hand" in each.forms]
    words = f"fast='by hand' is for {' and '.join(able)}, got {row.key}"
    check_that(fast != "by hand" or row.key in able, words)


def check_models(row: Row, models: Models, config: Any) -> None:
    """Raise unless an algorithm takes these models of your own."""
    # Our networks take an encoder of your own and a mask, and models of your own have
    # no use for them.
    own = models.keys() - {"encoder", "mask"}
    if not own:
        return
    if set(models) != set(row.models):
        wanted, given = " and ".join(row.models) or "none", " and ".join(models)
        words = f"models of your own for {row.key} must be {wanted}"
        raise ValueError(f"{words}, got {given}")
    for role in own:
        if isinstance(model := models[role], type):
            words = f"{role} must be a torch.nn.Module, got the class"
            raise TypeError(f"{words}: hand over {model.__name__}(…)")
    if getattr(config, "recurrent", None):
        raise ValueError("recurrent must be None with models of your own")
    if config.normalize_obs:
        words = "normalize_obs must be False with models of your own, got True"
        raise ValueError(f"{words}: normalise inside of them")


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
        space = unflattened(one).observation_space
        view = View(space, one.observation_space, one.action_space)
        tell_hidden_mask(one, space)
        tell_statistics(one, config)
    if has_processes(config):
        env = sent(env)
    return view, partial(make_envs, partial(flat_env, env), config.num_envs)


def layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers around an environment, the outer ones first."""
    while isinstance(env, gym.Wrapper | VectorWrapper):
        yield env
        env = env.env


def tell_hidden_mask(env: Env, seen: spaces.Space[Any]) -> None:
    """Warn if an environment has masks of actions where nobody looks for them."""
    shown = isinstance(seen, spaces.Dict) and "action_mask" in seen.spaces
    if not (shown or env.has_wrapper_attr("action_masks")):
        return
    unwanted = any(isinstance(layer, WithoutMask) for layer in layers(env))
    if unwanted or "action_mask" in env.reset()[1]:
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
    if names := " and ".join(dict.fromkeys(with_statistics(env))):
        warn(
            f"env keeps running statistics in {names}, which no checkpoint has and "
            "evaluate measures anew: leave it out and set normalize_obs=True, or "
            f"{scale} for rewards",
            stacklevel=2,
        )


def with_statistics(env: Any) -> Iterator[str]:
    """Yield the names of wrappers that keep statistics."""
    for layer in layers(env):
        # Gymnasium's class, and those of others, which have its name.
        kinds = (kind for kept in vars(layer).values() for kind in type(kept).__mro__)
        running = "RunningMeanStd" in (kind.__name__ for kind in kinds)
        if running and getattr(layer, "update_running_mean", True):
            yield type(layer).__name__
    if isinstance(inner := env.unwrapped, SyncVectorEnv):
        yield from with_statistics(inner.envs[0])
    elif isinstance(inner, AsyncVectorEnv):
        with closing(inner.env_fns[0]()) as one:
            yield from with_statistics(one)


def looked_at_many(envs: Vectors, config: Any) -> tuple[View, Build]:
    """Do the same for a vector environment."""
    if config.actors is not None:
        kind = type(envs).__name__
        raise ValueError(
            "env must be an id, a class or a function, because actors make "
            f"environments of their own, got {kind}"
        )
    resets_later(envs)  # refuses a mode that no learner understands
    tell_statistics(envs, config)
    words = f"num_envs must be {envs.num_envs}, as many as env has"
    check_that(envs.num_envs == config.num_envs, f"{words}, got {config.num_envs}")
    seen, flat = envs.single_observation_space, envs
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
        check_flat(seen)
        flat = Rows(envs)
    rows = flat.single_observation_space
    return View(seen, rows, envs.single_action_space), lambda: flat


def has_processes(config: Any) -> bool:
    """Say whether the actors are in other processes."""
    return config.actors is not None and config.transport != "in_process"


def sent(env: Make) -> Make:
    """Return what other processes make an environment of."""
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

    def __init__(self, envs: Vectors) -> None:
        super().__init__(envs)
        self.autoreset_mode = getattr(envs, "autoreset_mode", None)
        self.shaped = envs.single_observation_space
        self.single_observation_space = spaces.flatten_space(self.shaped)
        self.observation_space = batch_space(
            self.single_observation_space, envs.num_envs
        )

    def rows(self, obs: Any) -> NDArray[Any]:
        """Flatten the observations of all copies."""
        return np.stack([*map(self.row, iterate(self.env.observation_space, obs))])

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
def ended(learner: Learner, env: World = "") -> Iterator[None]:
    """Close the actors and environments of a learner when its training ends.

    A vector environment is the user's, who may go on with it.
    """
    try:
        yield
    finally:
        steps = getattr(runner_of(learner), "collector", None)
        if close := getattr(learner, "close", None):
            close()
        elif steps is not None and not isinstance(env, VectorEnv):
            steps.envs.close()


# What builds a policy around models of your own, by the contract that they keep.
OWN: dict[str, Callable[..., Any]] = {
    "ppo": make_contract_policy,
    "dqn": make_qnet_policy,
    "rainbow": make_qnet_policy,
    "ddpg": make_own_ddpg_policy,
    "sac": make_own_sac_policy,
}


def policy_for(row: Row, view: View, config: Any, models: Models) -> Any:
    """Build a policy for an environment, of models of your own or of ours."""
    if models.keys() - {"encoder", "mask"}:
        if row.contract == "rainbow":
            models = models | {"support": [config.value_min, config.value_max]}
        return by_settings(OWN[row.contract])(view.seen, view.actions, config, **models)
    if "encoder" not in models:
        readable_parts(view.seen)
    shaped = "encoder" in models or has_pictures(view.seen)
    seen = view.seen if shaped else view.rows
    return row.policy(seen, view.actions, config, **models)


def act_in_list(policy: Any) -> Any:
    """Return a form of acting for actions from a list; SAC's others gain nothing."""
    if not isinstance(getattr(policy, "actions", None), CategoricalActions):
        raise ValueError("actions must be from a list")
    return numpy_act(policy)


# What a slot is for, and what fills it if it takes the policy.
FORMS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "act": ("acting", numpy_act),
    "act_in_list": ("acting", act_in_list),
    "error": ("the error", fused_q_error),
    "by_hand": ("learning by hand", ByHand),
}


def fast_form(slot: str, policy: Any, fast: Fast) -> Any:
    """Return what fills a slot, or None where it does not fit or nobody wants it."""
    form = FORMS[slot][1]
    if slot == "by_hand":
        return form(policy) if fast == "by hand" else None
    with suppress(ValueError):
        return None if fast == "plain" else form(policy)
    return None


def transport_of(config: Any) -> MakeTransport:
    """Return the transport that the settings name."""
    if config.transport == "ray":
        return partial(RayActors, address=config.address)
    return transport_named(config.transport)


def runner_of(learner: Any) -> Any:
    """Return what steps a learner's environments: PPG has a PPO for that."""
    return getattr(learner, "ppo", learner)


def opening(learner: Any, forms: Mapping[str, Any]) -> str:
    """Return what is said when a training begins."""
    names = [FORMS[slot][0] for slot, form in forms.items() if form]
    words = f"fast forms: {' and '.join(names) or 'none'}"
    each, total = learner.config.steps_per_iteration, learner.config.total_steps
    takes = learner.step + math.ceil(max(0, total - learner.step) / each) * each
    because = f"steps: {takes:,} for {total:,}, because an iteration has {each:,}"
    return f"{words}\n{because}" if takes > total else words


CLASSES = {"ppgalgorithm": "ppg", "discretesac": "sac"}


def is_row(thing: Any) -> bool:
    """Say whether something is a row; a notebook may have a class of its own for it."""
    return isinstance(getattr(thing, "key", None), str)


def algorithm_named(name: Any) -> str:
    """Return the key of an algorithm in the table.

    Args:
        name: Its name in capitals or not, a row, or ``module:name`` or ``file.py:name``
            of a row.

    Raises:
        TypeError: If it is neither a text nor a row.
        ValueError: If there is no such algorithm. The message says what was meant.
    """
    if is_row(name):
        return register(name).key
    if not isinstance(name, str):
        kind = getattr(name, "__name__", type(name).__name__)
        words = "algorithm must be a text such as 'PPO', or a row"
        raise TypeError(f"{words}, got {kind}")
    if in_file(name) or ":" in name:
        module, _, own = from_file(name).partition(":")
        inside = {key: x for key, x in vars(import_module(module)).items() if is_row(x)}
        # A row of its own goes before those that it imports.
        rows = {key: x for key, x in inside.items() if x.home == module} or inside
        if len(rows) == 1:
            own = own or min(rows)
        if own not in inside:
            has = f"there is no row {own}, it has {' and '.join(rows) or 'none'}"
            raise ValueError(f"{name!r} is no algorithm: {has}")
        return register(inside[own]).key
    key = key_of(name)
    key = CLASSES.get(key, key)
    if key in ALGORITHMS:
        return key
    hint = "".join(f": is it {x!r}?" for x in get_close_matches(key, ALGORITHMS, n=1))
    words = f"algorithm must be one of {', '.join(ALGORITHMS)}, got {name!r}{hint}"
    raise ValueError(words)


@checked
@dataclass(frozen=True)
class Asked:
    """What somebody wants to be trained.

    Attributes:
        algorithm: Its name in the table.
        env: As in ``train``, or None for that of a run.
        wrappers: As in ``train``.
        models: Models of your own, an encoder and a mask, by their names. A text is
            ``module:name`` of what makes a model.
        changes: Settings that were named.
        resume: As in ``train``.
        fast: As in ``train``.
        check: As in ``train``.
        callback: As in ``train``.
        eval_interval: As in ``train``.
        eval_episodes: As in ``train``.
        log_infos: As in ``train``.
        like: As in ``train``.
        directory: Where a new run is kept; None is a directory that will go.
        look: How the agent will be drawn afterwards; nothing if it will not.
        dash: What stands before the name of an option.
    """

    algorithm: str
    env: Any = None
    wrappers: Any = ()
    models: Models = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    resume: str | Path | None = None
    fast: Fast = "auto"
    check: bool = True
    callback: Callback | None = None
    eval_interval: Count | None = None
    eval_episodes: Count | None = None
    log_infos: Sequence[str] = ()
    like: str | None = None
    directory: Path | None = None
    look: str = ""
    dash: str = ""

    @property
    def told(self) -> dict[str, Any]:
        """What the log gets beside metrics, as the settings of a run hold it."""
        names = ("eval_interval", "eval_episodes", "log_infos")
        return {name: x for name in names if (x := getattr(self, name))}

    def start(self, place: Place) -> Training:
        """Begin a new run, or go on with one."""
        run = None if self.resume is None else Run(self.resume, resume=True)
        config, world, models = self.anew() if run is None else self.agreed(run)
        models = {
            name: import_model(name, x) if isinstance(x, str) else x
            for name, x in models.items()
        }
        notes = notes_for(self.told if run is None else run.settings, world, config)
        asked = self.algorithm, world, config, models, self.check, place, self.fast
        learner, forms = made(*asked, notes)
        try:
            if run is not None:
                run.restore(learner)
            if self.look:  # better now than after the training
                make_visible(world, self.look).close()
            if run is None:
                stored = settings_of_run(self.algorithm, world, config, self.models)
                folder = self.directory or tempfile.mkdtemp(prefix="literate_rl_")
                run = Run(folder, stored | self.told)
        except BaseException:
            with ended(learner, world):
                raise
        return Training(self, run, learner, world, forms, notes)

    def anew(self) -> tuple[Any, Any, Models]:
        """Return settings, environment and models of a new run."""
        changes, world = self.changes, known_env(self.env)
        row: Any = ALGORITHMS[self.algorithm]
        default = row.settings(world if isinstance(world, str) else "")
        if self.like is not None:
            default = settings_like(self.like, row)
        if isinstance(world, VectorEnv):
            if self.wrappers:
                words = "wrappers must be left out with a vector environment"
                raise ValueError(f"{words}: wrap what it is made of")
            changes = {"num_envs": world.num_envs} | changes
        else:
            world = make_wrapped(world, self.wrappers)
        return settings_with(default, changes), world, self.models

    def agreed(self, run: Run) -> tuple[Any, Any, Models]:
        """Return those of a run that goes on, once what was asked for agrees."""
        words = f"a run that goes on keeps its settings: leave out {self.dash}like"
        check_that(self.like is None, words)
        stored, source = run.settings, run.directory / "settings.json"
        if (named := stored.get("algorithm")) != self.algorithm:
            words = f"algorithm is {named!r}, not {self.algorithm!r}"
            raise ValueError(f"{source}: {words}")
        config = settings_of(ALGORITHMS[self.algorithm].config, stored, source)
        world = agreed_env(stored, self.env, self.wrappers, self.dash)
        wanted = settings_with(config, self.changes)
        mask = stored.get("mask")
        kept = names_of(stored) | {"mask": [str(mask)]}
        given: dict[str, Sequence[str]] = dict.fromkeys(MODELS, ())
        for name in self.changes:
            kept[name] = [str(getattr(config, name))]
            given[name] = [str(getattr(wanted, name))]
        if wanted.total_steps > config.total_steps:
            del given["total_steps"]  # a run may become longer
        for name, model in self.models.items():
            # What Python hands over has no name to compare.
            told = isinstance(model, str | list)
            given[name] = [str(model)] if told else kept.get(name, [])
        if address := getattr(config, "address", None):
            option = address_option(config) if self.dash else "address"
            kept[option] = [address]
            given[option] = given.get("address", ())
        check_agreed(kept, given, self.dash)
        run.settings |= self.told
        run.settings["config"] |= {"total_steps": wanted.total_steps}
        models = self.models | ({} if mask is None else {"mask": read_mask(mask)})
        return wanted, world, models


def address_option(config: Any) -> str:
    """Return how the address of a cluster is typed: only actors on Ray use it."""
    return f"actors {config.actors} --transport ray --address"


@dataclass
class Training:
    """A training that is ready to go.

    Attributes:
        asked: What was asked for.
        run: Where it is kept.
        learner: What trains.
        world: The environment, with its wrappers.
        forms: The fast forms that the learner was handed, by their slots.
        notes: What counts its episodes; nothing where they are in other processes.
    """

    asked: Asked
    run: Run
    learner: Learner
    world: Any
    forms: dict[str, Any]
    notes: Notes | None = None

    def carry_out(self, progress: bool = True) -> list[dict[str, float]]:
        """Run it to its end, and return the rows of its log."""
        run, learner, callback = self.run, self.learner, self.asked.callback
        evaluation = None

        def after(learner: Learner, metrics: dict[str, float]) -> bool:
            if self.notes is not None:
                metrics |= means_of(self.notes)
            if evaluation is not None:
                metrics["charts/eval_return"] = evaluation(learner)
            return callback is not None and bool(callback(learner, metrics))

        try:
            with run, ended(learner, self.world):
                if run.settings.get("eval_interval"):
                    evaluation = Evaluation(run, self.world)
                if progress:
                    print(opening(learner, self.forms), flush=True)
                return fit(learner, run, progress, after)
        except BaseException as error:
            # What was learned in hours is not lost with what came after.
            if run.saved and run.held is not None:
                words = self.again() if self.asked.dash else f"resume={run.directory}"
                error.add_note(f"what was saved is kept, go on with {words}")
            elif self.asked.resume is None and (metrics := run.give_up()):
                look = shlex.join(["literate-rl", "look", str(metrics)])
                error.add_note(f"no checkpoint was kept, only metrics: {look}")
            raise

    def again(self) -> str:
        """Return the options that continue the run."""
        words = ["--resume", str(self.run.directory)]
        for option, names in names_of(self.run.settings).items():
            words += [f"--{option}", *names] if any(map(is_command, names)) else []
        config: Any = self.learner.config
        if address := getattr(config, "address", None):
            words += [*f"--{address_option(config)}".split(), address]
        return shlex.join(words)


EVAL_SEED = 10_000  # far from the seeds of trainings


class Evaluation:
    """Plays greedy episodes now and then, and keeps the best policy.

    Args:
        run: The run, whose settings say how often, and how many episodes.
        env: What makes an environment.
    """

    def __init__(self, run: Run, env: Any) -> None:
        self.run, self.env = run, env
        self.interval = run.settings["eval_interval"]
        self.episodes = run.settings.get("eval_episodes", 10)
        self.path, self.best = run.directory / "best.pt", -math.inf
        self.last = run.saved // self.interval
        if run.saved and self.path.exists():
            self.best = load_checkpoint(self.path)["return"]

    def __call__(self, learner: Learner) -> float:
        """Return the mean return if it is time to evaluate, else NaN."""
        now, total = learner.step // self.interval, learner.config.total_steps
        if now == self.last and learner.step < total:
            return math.nan
        self.last, policy = now, learner.policy
        with randomness_kept():
            returns = evaluate(policy, self.env, self.episodes, EVAL_SEED)
        mean = float(returns.mean())
        if mean > self.best:
            self.best = mean
            kept = {"policy": policy_state(policy), "settings": self.run.settings}
            state = {"step": learner.step, "return": mean, **kept}
            save_checkpoint(self.path, state)
        return mean


class Noted(VectorWrapper[Any, Any, Any]):
    """Counts the steps of episodes, and keeps what ``info`` says at their ends.

    Args:
        envs: The environments.
        noted: Where to put the numbers, from row to row, by their names in the log.
    """

    def __init__(self, envs: Vectors, noted: Notes) -> None:
        super().__init__(envs)
        self.later, self.noted = resets_later(envs), noted
        self.now, self.began = 0, np.zeros(envs.num_envs, int)

    def __getattr__(self, name: str) -> Any:
        """Return what only the environments have."""
        if name == "env":  # they are not there yet
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **options: Any) -> Any:
        """Begin episodes in all copies."""
        self.began[:] = self.now
        return self.env.reset(**options)

    def step(self, actions: Any) -> Any:
        """Step all copies."""
        result = self.env.step(actions)
        self.now += 1
        done = result[2] | result[3]
        if done.any():
            infos = result[4]
            self.note(done, infos if self.later else infos.get("final_info", {}))
            # Where copies reset later, the next step of these is none.
            self.began[done] = self.now + self.later
        return result

    def note(self, done: Any, said: Mapping[str, Any]) -> None:
        """Note the ends of episodes."""
        for name, numbers in self.noted.items():
            key = name.removeprefix("infos/")
            if name == LENGTH:
                numbers += (self.now - self.began[done]).tolist()
            elif key in said:
                known = done & said.get(f"_{key}", True)
                numbers += np.asarray(said[key])[known].astype(float).tolist()


LENGTH = "charts/episodic_length"
Notes = dict[str, list[float]]


def means_of(notes: Notes) -> dict[str, float]:
    """Return the means of what was noted since the last time, NaN of nothing."""
    means: dict[str, float] = {
        name: Mean(math.fsum(x) / len(x) if x else math.nan, len(x))
        for name, x in notes.items()
    }
    for x in notes.values():
        x.clear()
    return means


def notes_for(told: Mapping[str, Any], env: World, config: Any) -> Notes | None:
    """Return where episodes are noted, once all that the log shall have can be had."""
    if "eval_episodes" in told and "eval_interval" not in told:
        raise ValueError("eval_episodes needs eval_interval: how often shall they be?")
    if told.get("eval_interval") and isinstance(env, VectorEnv):
        words = "eval_interval must be None with a vector environment"
        raise ValueError(f"{words}: hand over what makes one copy")
    names = told.get("log_infos", ())
    if not has_processes(config):
        return {name: [] for name in (LENGTH, *(f"infos/{x}" for x in names))}
    if names:
        words = "log_infos must be empty where actors are in other processes"
        raise ValueError(f"{words}, got {names}")
    return None


def settings_like(env: str, row: Any) -> Any:
    """Return an algorithm's settings for an environment for which it has its own."""
    default = row.settings("")
    if (known := row.settings(env)) == default:
        names = [name for name in gym.registry if row.settings(name) != default]
        words = f"for which {row.name} has settings: {', '.join(names) or 'none'}"
        raise ValueError(f"like must be an environment {words}; got {env!r}")
    return known


def settings_with(config: Any, changes: dict[str, Any]) -> Any:
    """Return settings with some changes, or say which settings there are."""
    names = [field.name for field in fields(config)]
    for name in (x for x in changes if x not in names):
        close = get_close_matches(name, names, n=1, cutoff=0.8)
        hint = about(name, names) or "".join(f" (is it {x}?)" for x in close)
        words = f"there is no setting {name!r}{hint}, but {', '.join(names)}"
        raise TypeError(words)
    return replace(config, **changes)


def settings_of_run(
    algorithm: str, env: World, config: Any, models: Models
) -> dict[str, Any]:
    """Return the settings that are stored in the directory of a run."""
    inner, wrappers = (env.env, env.wrappers) if isinstance(env, Wrapped) else (env, ())
    settings = {
        "algorithm": algorithm,
        "env": name_of_maker(inner),
        "config": asdict(config),
        "models": {x: stored_name(y) for x, y in models.items() if x != "mask"},
    }
    # Most runs have neither.
    more = {"wrappers": [*map(name_of_maker, wrappers)], "mask": models.get("mask")}
    return settings | {name: x for name, x in more.items() if x}


def stored_name(model: Any) -> str:
    """Return the name by which a file holds a model: as it was typed, or its class."""
    if isinstance(model, str):
        return model
    return f"{getattr(model, '__module__', '')}:{name_of_model(model)}"


def settings_of(config: type[Any], stored: dict[str, Any], source: Path) -> Any:
    """Build the settings that a file holds; their class checks the values."""
    known = {field.name for field in fields(config)}
    try:
        return config(**todays_names(stored["config"], known))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error


def read_mask(mask: Any) -> list[list[int]]:
    """Return a mask as plain numbers, which a file can hold."""
    with suppress(TypeError, ValueError):  # rows of several lengths, or no numbers
        table = torch.as_tensor(mask)
        if table.ndim == 2 and ((table == 0) | (table == 1)).all():
            return table.int().tolist()
    raise ValueError(f"mask must be a table of zeros and ones, got {mask!r}")


def import_model(role: str, where: str) -> Any:
    """Make a model from ``module:name`` of a class or function without arguments.

    A function that makes an encoder is returned as it is: it waits for the space.
    """
    try:
        module, _, name = from_file(where).partition(":")
        make = getattr(import_module(module), name)
        return make if role == "encoder" and not isinstance(make, type) else make()
    except Exception as error:
        raise ValueError(
            f"{where} must be module:name of a class or function that makes a model "
            f"without arguments: {type(error).__name__}: {error}"
        ) from error

"""Observations that policies normalise, with every agent; wrappers that would do so."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as of_vectors
from gymnasium.wrappers.utils import RunningMeanStd
from torch import Tensor, nn
from worlds import Apart

from literate_rl import evaluate, load, train
from literate_rl.actors.actors import Actor, weights_of
from literate_rl.apps.cli import main, parse
from literate_rl.apps.training import ALGORITHMS, ended, make_learner
from literate_rl.by_hand.fast_forms import (
    fused_q_error,
    numpy_act,
)
from literate_rl.data.agents import Collector, make_envs, seed_everything
from literate_rl.data.replay import Batch
from literate_rl.learners.a2c import A2C, A2CConfig
from literate_rl.learners.ddpg import (
    DDPGConfig,
    DeterministicPolicyGradient,
    make_ddpg_policy,
)
from literate_rl.learners.discrete_sac import (
    DiscreteSoftActorCritic,
    make_discrete_sac_policy,
)
from literate_rl.learners.dqn import (
    DQN,
    DQNConfig,
    QLearning,
    TargetNetwork,
    make_q_policy,
)
from literate_rl.learners.rainbow import (
    DistributionalQLearning,
    RainbowConfig,
    make_rainbow_policy,
)
from literate_rl.learners.sac import SACConfig, SoftActorCritic, make_sac_policy
from literate_rl.learners.td3 import (
    HDDPGConfig,
    Hysteretic,
    TD3Config,
    TwinDelayed,
)
from literate_rl.nets.parts import RunningMoments
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import Run

BOXES = ("ddpg", "ddpgper", "hddpg", "td3", "sac", "ddpgapex")
# Each algorithm, and each kind of action that has a policy of its own.
AGENTS = {name: (name, name in BOXES, {}) for name in ALGORITHMS}
AGENTS |= {
    "ppo, box": ("ppo", True, {}),
    "ppo, hybrid": ("ppo", "literate_rl/Moving-v0", {}),
    "a2c, hybrid": ("a2c", "literate_rl/Moving-v0", {}),
    "ppg, hybrid": ("ppg", "literate_rl/Moving-v0", {}),
    "impala, lag": ("impala", False, {"lag": 1}),
    "impala, actors": ("impala", False, {"actors": 2}),
    "sac, listed": ("sac", False, {}),
    "ddpg, listed": ("ddpg", False, {}),
    "rainbow, values": ("rainbow", False, {"num_atoms": 1}),
}
SMALL = {
    "learning_starts": 8,
    "iteration_steps": 16,
    "batch_size": 8,
    "hidden": 16,
    "rollout_len": 8,
    "num_steps": 8,
    "num_envs": 2,
    "num_minibatches": 2,
    "num_epochs": 2,
    "aux_interval": 2,
    "tau": 0.5,
}


def settings(agent: str, **changes: Any) -> tuple[str, Any, Any]:
    """Return name, environment and small settings of an agent that normalises."""
    name, kind, own = AGENTS[agent]
    env = kind if isinstance(kind, str) else partial(Apart, kind)
    config = ALGORITHMS[name].settings("")
    names = {field.name for field in fields(config)}
    chosen = {key: x for key, x in SMALL.items() if key in names}
    if "lambda_" in names and "num_steps" in names:
        chosen |= {"num_steps": 8}
    return (
        name,
        env,
        replace(config, **chosen | own | {"normalize_obs": True} | changes),
    )


def moments_of(module: nn.Module) -> RunningMoments:
    (found,) = (x for x in module.modules() if isinstance(x, RunningMoments))
    return found


def same(some: Any, others: Any) -> bool:
    """Say whether two states hold the same bits."""
    assert some.keys() == others.keys()
    return all(torch.equal(x, others[name]) for name, x in some.items())


# --- Each step once -------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Keep what environments show in real steps, while a learner learns."""
    kept: list[Tensor] = []
    collect = Collector.collect

    def noted(self: Collector, *arguments: Any) -> Any:
        rollout = collect(self, *arguments)
        kept.append(rollout.obs[rollout.real])
        return rollout

    monkeypatch.setattr(Collector, "collect", noted)
    return kept


def assert_moments(policy: Any, seen: list[Tensor]) -> None:
    moments, rows = moments_of(policy), torch.cat(seen).double()
    assert moments.count == len(rows) > 0
    torch.testing.assert_close(moments.mean, rows.mean(0), rtol=1e-9, atol=1e-9)
    var = rows.var(0, unbiased=False)
    torch.testing.assert_close(moments.var, var, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("agent", AGENTS)
def test_moments_are_those_of_all_steps_each_once(
    agent: str, seen: list[Tensor]
) -> None:
    name, env, config = settings(agent)
    with ended(learner := make_learner(name, env, config, {})):
        seen.clear()  # how an environment looks was looked at
        for _ in range(5):
            learner.iterate()
        assert_moments(learner.policy, seen)


@pytest.mark.parametrize("agent", ["ppo", "a2c", "impala", "dqn", "td3", "sac"])
def test_steps_that_did_not_happen_do_not_count(agent: str, seen: list[Tensor]) -> None:
    name, make, config = settings(agent)
    envs = SyncVectorEnv([make] * 2)  # it resets in the step after an end
    learner: Any = make_learner(name, envs, config, {})
    for _ in range(4):
        learner.iterate()
    assert_moments(learner.policy, seen)
    assert len(torch.cat(seen)) < learner.step, "some rows were no steps"


def test_a_rollout_without_a_step_changes_nothing(seen: list[Tensor]) -> None:
    name, make, config = settings("td3", num_envs=1, train_interval=1)
    learner: Any = make_learner(name, SyncVectorEnv([make]), config, {})
    for _ in range(3):
        learner.iterate()
    assert any(len(x) == 0 for x in seen)
    assert_moments(learner.policy, seen)


def test_memories_keep_what_the_environment_showed() -> None:
    name, env, config = settings("dqn")
    learner: Any = make_learner(name, env, config, {})
    learner.iterate()
    batch = learner.sample()
    assert batch.obs[:, 0].min() > 500
    assert batch.next_obs[:, 0].min() > 500
    name, env, config = settings("impala", replay_buffer_size=32)
    learner = make_learner(name, env, config, {})
    learner.iterate()
    assert all(x["sample"][0][:, 0].min() > 500 for x in learner.memory.entries)


def test_an_on_policy_agent_learns_before_its_scale_moves() -> None:
    name, env, config = settings("ppo")
    learner: Any = make_learner(name, env, config, {})
    for _ in range(3):
        batch = learner.collect()
        before = copy.deepcopy(moments_of(learner.policy).state_dict())
        samples = learner.look_back(batch)
        now, _ = learner.policy.evaluate_actions(samples.obs, samples.action)
        assert torch.equal(now, samples.log_prob)
        assert same(moments_of(learner.policy).state_dict(), before)
        learner.update(batch)
        assert not same(moments_of(learner.policy).state_dict(), before)


# --- What is computed -----------------------------------------------------------------

ROWS, LISTED, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Box(-2, 2, (2,))


def of_box(kind: Any, config: Any, make: Any, **sizes: Any) -> tuple[Any, Any, Any]:
    return partial(make, ROWS, BOX, 8, **sizes), partial(kind, config=config), BOX


ALGORITHM: dict[str, tuple[Any, Any, Any]] = {
    "DQN": (
        partial(make_q_policy, ROWS, LISTED, 8, True),
        partial(QLearning, config=DQNConfig(normalize_obs=True)),
        LISTED,
    ),
    "Rainbow": (
        partial(make_rainbow_policy, ROWS, LISTED, 8),
        partial(DistributionalQLearning, config=RainbowConfig(normalize_obs=True)),
        LISTED,
    ),
    "DDPG": of_box(DeterministicPolicyGradient, DDPGConfig(), make_ddpg_policy),
    "HDDPG": of_box(Hysteretic, HDDPGConfig(), make_ddpg_policy),
    "TD3": of_box(TwinDelayed, TD3Config(), make_ddpg_policy, num_critics=2),
    "SAC": of_box(
        partial(SoftActorCritic, action_space=BOX), SACConfig(), make_sac_policy
    ),
    "SAC, listed": (
        partial(make_discrete_sac_policy, ROWS, LISTED, 8),
        partial(DiscreteSoftActorCritic, config=SACConfig(), action_space=LISTED),
        LISTED,
    ),
}


def gradients(algorithm: Any, batch: Batch) -> list[Tensor | None]:
    """Return the gradients of an error, and of an ascent where there is one."""
    found: list[Tensor | None] = []
    parameters = [p for p in algorithm.policy.parameters() if p.requires_grad]
    error = algorithm.error(batch, torch.Generator().manual_seed(1))
    ascent = algorithm.ascent(batch.obs, torch.Generator().manual_seed(2))
    for loss in (error.loss.mean(), ascent):
        if loss is not None:
            found += torch.autograd.grad(loss, parameters, allow_unused=True)
    return found


@pytest.mark.parametrize("agent", ALGORITHM)
def test_gradients_are_those_of_inputs_normalised_by_hand(agent: str) -> None:
    make, of, space = ALGORITHM[agent]
    torch.manual_seed(0)
    policy = make(normalize=True)
    torch.manual_seed(0)
    plain = make()
    both = of(policy), of(plain)
    for algorithm in both:  # the older copies are another network
        for x in algorithm.policy.parameters():
            x.data.mul_(1.5)
        algorithm.target.follow(0.5)
    obs, next_obs = 40 + 5 * torch.randn(2, 16, 3)
    moments = moments_of(policy)
    moments.update(obs)
    action = torch.randint(2, (16,)) if space is LISTED else torch.randn(16, 2)
    batch = Batch(
        obs=obs,
        action=action,
        reward=torch.randn(16),
        discount=torch.full((16,), 0.9),
        next_obs=next_obs,
        weight=torch.ones(16),
        place=torch.arange(16),
    )
    by_hand = batch._replace(obs=moments(obs), next_obs=moments(next_obs))
    found, wanted = gradients(both[0], batch), gradients(both[1], by_hand)
    assert len(found) == len(wanted) > 0
    for some, others in zip(found, wanted, strict=True):
        assert (some is None) == (others is None)
        assert some is None or torch.equal(some, others)
    assert any(x is not None and x.abs().sum() > 0 for x in found)


@pytest.mark.parametrize("agent", ALGORITHM)
def test_older_copies_have_the_scale_of_the_newer(agent: str) -> None:
    make, of, _ = ALGORITHM[agent]
    algorithm = of(make(normalize=True))
    moments = moments_of(algorithm.policy)
    assert moments_of(algorithm.target.network) is moments
    moments.update(40 + 5 * torch.randn(9, 3))
    before = copy.deepcopy(moments.state_dict())
    algorithm.target.follow(0.3)
    assert same(moments.state_dict(), before)
    # And a copy of both is another pair.
    other = copy.deepcopy(algorithm)
    assert moments_of(other.policy) is moments_of(other.target.network) is not moments


def test_moments_of_a_model_of_ones_own_follow_as_before() -> None:
    moody = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    target = TargetNetwork(moody)
    moody(torch.randn(8, 3) + 5)
    target.follow(1.0)
    assert torch.equal(target.network[0].running_mean, moody[0].running_mean)
    assert target.network[0] is not moody[0]


def test_policy_and_settings_agree() -> None:
    envs = partial(make_envs, Apart, 2)
    with closing(envs()) as one:
        both = one.single_observation_space, one.single_action_space
    for wanted in (False, True):
        words = f"^policy must normalise as normalize_obs says: {wanted}$"
        q = make_q_policy(*both, 8, normalize=not wanted)
        with pytest.raises(ValueError, match=words):
            DQN(q, envs(), DQNConfig(num_envs=2, normalize_obs=wanted))
        policy = make_policy(*both, normalize=not wanted)
        with pytest.raises(ValueError, match=words):
            A2C(policy, envs(), A2CConfig(num_envs=2, normalize_obs=wanted))


# --- Fast forms -----------------------------------------------------------------------


def test_fused_errors_refuse_what_normalises_and_train_does_without() -> None:
    policy = make_q_policy(ROWS, LISTED, 8, normalize=True)
    with pytest.raises(ValueError, match="Linear or ReLU there"):
        fused_q_error(policy)
    for agent in ("dqn", "td3", "sac"):
        name, env, config = settings(agent)
        learner: Any = make_learner(name, env, config, {})
        assert learner.error == learner.algorithm.error


# --- Runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS)
def test_a_resumed_run_is_the_whole_one(agent: str, tmp_path: Path) -> None:
    name, env, config = settings(agent, checkpoint_interval=2)
    with ended(whole := make_learner(name, env, config, {})):
        for k in range(4):
            if k == 2:
                run = Run(tmp_path / "run", {"env": "Apart"})
                with run:
                    run.save(whole)
            whole.iterate()
    with ended(half := make_learner(name, env, config, {})):
        again = Run(tmp_path / "run", resume=True)
        with again:
            again.restore(half)
        half.iterate()
        half.iterate()
    assert moments_of(whole.policy).count > 0
    assert same(whole.policy.state_dict(), half.policy.state_dict())


@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_loaded_plays_as_what_was_trained(agent: str, tmp_path: Path) -> None:
    name, env, config = settings(agent)
    default = ALGORITHMS[name].settings("")
    changes = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if getattr(config, field.name) != getattr(default, field.name)
    }
    trained = train(name, env, **changes | {"total_steps": 64}, progress=False)
    kept = copy.deepcopy(moments_of(trained.policy).state_dict())
    before = evaluate(trained.policy, env, 5, seed=1)
    loaded: Any = load(trained.save(tmp_path / "run"))
    assert np.array_equal(evaluate(loaded, env, 5, seed=1), before)
    assert same(moments_of(loaded).state_dict(), kept)
    assert same(moments_of(trained.policy).state_dict(), kept), "evaluate looks only"
    obs = 1000 + 100 * torch.randn(64, *kept["mean"].shape)
    assert torch.equal(loaded.act(obs, 0.0), trained.policy.act(obs, 0.0))


def test_an_actor_gets_the_scale_with_the_weights() -> None:
    seed_everything(1)
    with closing(Apart()) as one:
        policy = make_policy(one.observation_space, one.action_space, normalize=True)
    actor = Actor(partial(make_envs, Apart, 2), policy, 1, numpy_act)
    moments_of(policy).update(1000 + 100 * torch.randn(64, 2))
    actor.collect(weights_of(policy), 4)
    obs = 1000 + 100 * torch.randn(64, 2)
    assert torch.equal(actor.policy(obs), policy(obs))
    assert same(actor.policy.state_dict(), policy.state_dict())


@pytest.mark.parametrize("agent", ["impala", "a3c", "dqnapex"])
def test_actors_in_processes_act_as_those_that_take_turns(agent: str) -> None:
    # One actor with one slot waits for each update, wherever it is.
    results = []
    for transport in ("in_process", "shared"):
        alone = {"actors": 1, "slots": 1, "transport": transport}
        name, _, config = settings(agent, checkpoint_interval=100, **alone)
        with ended(learner := make_learner(name, Apart, config, {})):
            for _ in range(4):
                learner.iterate()
        results.append(learner.policy.state_dict())
    assert same(*results)


def test_one_worker_that_waits_is_a2c() -> None:
    results = []
    for agent, changes in (("a2c", {}), ("a3c", {"actors": 1})):
        name, env, config = settings(agent, checkpoint_interval=100, **changes)
        with ended(learner := make_learner(name, env, config, {})):
            if agent == "a3c":
                make, seed = learner.make_actor, config.seed
                learner.make_actor = lambda _, make=make, seed=seed: make(seed)
            for _ in range(4):
                learner.iterate()
        results.append(learner.policy.state_dict())
    assert same(*results)


def test_the_command_line_has_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ALGORITHMS:
        assert parse(name, ["--normalize-obs"]).config.normalize_obs
        assert not parse(name, []).config.normalize_obs
    monkeypatch.chdir(tmp_path)
    small = "--total-steps 1100 --learning-starts 900 --hidden 8 --name a"
    main(["dqn", "--env", "worlds:Apart", "--normalize-obs", *small.split()])
    assert moments_of(load(tmp_path / "runs/a")).count >= 1100  # type: ignore[arg-type]


# --- What cannot be normalised --------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "ppg"])
def test_pictures_are_refused_by_name(name: str) -> None:
    class Screen(Apart):
        def __init__(self) -> None:
            super().__init__(name in BOXES)
            self.observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)

    with pytest.raises(ValueError, match=r"with an encoder, got .*out normalize_obs$"):
        train(name, Screen, normalize_obs=True, progress=False)


def test_models_of_ones_own_are_refused_by_name() -> None:
    words = "^normalize_obs must be False with models of your own, got True"
    q, actor, critic = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)
    with pytest.raises(ValueError, match=words):
        train("DQN", Apart, qnet=q, normalize_obs=True, progress=False)
    for name in ("PPO", "A3C", "SAC"):
        with pytest.raises(ValueError, match=words):
            train(name, Apart, actor=actor, critic=critic, normalize_obs=True)


class Measuring(nn.Module):
    """A Q network with moments of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.moments, self.layer = RunningMoments(2), nn.Linear(2, 2)

    def forward(self, state: Tensor) -> Tensor:
        return self.layer(self.moments(state))


def test_moments_within_a_model_of_ones_own_are_its_own_matter() -> None:
    agent = train("DQN", Apart, qnet=Measuring(), total_steps=1100, progress=False)
    assert moments_of(agent.policy).count == 0


@pytest.mark.parametrize("name", ["PPO", "PPG", "A2C", "IMPALA", "DQN", "SAC"])
def test_zeros_and_ones_are_warned_of(name: str) -> None:
    class Room(Apart):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Discrete(5)

        def look(self) -> Any:
            return int(self.np_random.integers(5))

    config = ALGORITHMS[name.lower()].settings("")
    config = replace(config, normalize_obs=True)
    with pytest.warns(UserWarning, match="^normalize makes large numbers of ones"):
        make_learner(name.lower(), Room, config, {})


# --- Scaled rewards -------------------------------------------------------------------


def test_a2c_scales_rewards_and_goes_on() -> None:
    name, env, config = settings("a2c", scale_reward=True, checkpoint_interval=2)
    raw = replace(config, scale_reward=False)
    assert not same(after(name, env, config), after(name, env, raw))
    whole: Any = make_learner(name, env, config, {})
    whole.iterate()
    whole.iterate()
    half: Any = make_learner(name, env, config, {})
    half.policy.load_state_dict(whole.policy.state_dict())
    half.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert half.scaler.moments.count == whole.scaler.moments.count > 0
    for learner in (whole, half):
        learner.iterate()
    assert same(whole.policy.state_dict(), half.policy.state_dict())


def after(name: str, env: Any, config: Any) -> dict[str, Tensor]:
    learner = make_learner(name, env, config, {})
    learner.iterate()
    return copy.deepcopy(learner.policy.state_dict())


def test_a3c_has_no_such_setting() -> None:
    with pytest.raises(TypeError, match=r"^there is no setting 'scale_reward'"):
        train("A3C", Apart, scale_reward=True)


# --- Wrappers that keep statistics ----------------------------------------------------


class OwnScale(gym.Wrapper[Any, Any, Any, Any]):
    """Measures rewards under another name."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.rewards_so_far = RunningMeanStd()


class Frozen(NormalizeObservation):
    """Uses what was measured elsewhere."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.update_running_mean = False


def told(name: str, env: Any, **options: Any) -> list[str]:
    """Return what is said about statistics when a training begins."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        train(name, env, **{"total_steps": 16, "progress": False} | options)
    words = [str(x.message) for x in found]
    return [x for x in words if "statistics" in x]


def both(*makers: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [lambda make=make: make(Apart()) for make in makers] * 2


OBS = "leave it out and set normalize_obs=True, or"
REWARD = "scale_reward=True for rewards"


@pytest.mark.parametrize(
    ("name", "wrapper", "words"),
    [
        ("PPO", "NormalizeObservation", OBS),
        ("DQN", "NormalizeObservation", OBS),
        ("A3C", NormalizeObservation, OBS),
        ("PPO", "worlds:GrownScale", OBS),
        ("PPO", "NormalizeReward", REWARD),
        ("A2C", "NormalizeReward", REWARD),
        ("PPG", OwnScale, REWARD),
        ("IMPALA", "NormalizeReward", "or reward_scale for rewards"),
        ("SAC", OwnScale, "or reward_scale for rewards"),
    ],
)
def test_wrappers_that_keep_statistics_are_told_by_name(
    name: str, wrapper: Any, words: str
) -> None:
    env = partial(Apart, name == "SAC")
    (found,) = told(name, env, wrappers=[wrapper])
    label = wrapper if isinstance(wrapper, str) else wrapper.__name__
    assert label.rpartition(":")[2] in found
    assert words in found


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (lambda: of_vectors.NormalizeObservation(SyncVectorEnv([Apart] * 2)), "Obs"),
        (lambda: of_vectors.NormalizeReward(SyncVectorEnv([Apart] * 2)), "Reward"),
        (lambda: SyncVectorEnv(both(NormalizeObservation)), "Obs"),
        (lambda: AsyncVectorEnv(both(NormalizeReward)), "Reward"),
    ],
)
def test_so_are_those_of_a_vector_environment(make: Any, label: str) -> None:
    with closing(make()) as envs:
        (found,) = told("PPO", envs, num_steps=8)
    assert f"Normalize{label}" in found


def test_both_are_told_at_once_and_others_not_at_all() -> None:
    (found,) = told("PPO", Apart, wrappers=["NormalizeObservation", "NormalizeReward"])
    assert "NormalizeReward and NormalizeObservation" in found
    assert found.endswith("set normalize_obs=True, or scale_reward=True for rewards")
    assert told("PPO", Apart, wrappers=["ClipReward(-1, 1)", Frozen]) == []
    assert told("PPO", Apart, normalize_obs=True, scale_reward=True) == []


def test_a_resumed_run_and_the_command_line_are_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "ppo --env worlds:Apart --wrappers NormalizeObservation --total-steps 512"
    with pytest.warns(UserWarning, match=OBS):
        main([*words.split(), "--name", "a"])
    with pytest.warns(UserWarning, match=OBS):
        main(["ppo", "--env", "worlds:Apart", "--resume", "runs/a"])
    run = tmp_path / "runs/a"
    again = {"resume": run, "wrappers": ["NormalizeObservation"], "total_steps": 512}
    assert told("PPO", Apart, **again)


def test_ours_is_the_remedy() -> None:
    # Left or right of 5,000 is seen with the scale only.
    agent = train(
        "PPO",
        partial(Apart, middle=5000.0),
        normalize_obs=True,
        total_steps=4096,
        learning_rate=3e-3,
        progress=False,
    )
    assert evaluate(agent.policy, partial(Apart, middle=5000.0), 50).mean() > 30

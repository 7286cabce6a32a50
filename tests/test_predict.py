"""What the environment shows goes in, and what its ``step`` takes comes out."""

from __future__ import annotations

import copy
import pickle
import random
import re
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from elsewhere import ELSEWHERE, elsewhere
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from numpy.typing import NDArray
from torch import nn

from literate_rl import evaluate, load, save_checkpoint, train
from literate_rl.apps.training import ALGORITHMS, Agent
from literate_rl.book.contract_models import (
    ActionValue,
    CategoricalActor,
    DeterministicActor,
    QNetwork,
    SquashedGaussianActor,
    StateValue,
)
from literate_rl.ground.nests import as_space, plain_space
from literate_rl.nets.policies import Policy, make_policy

ROW = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)
PICTURE = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class World(gym.Env[Any, Any]):
    """Shows samples of a space; refuses, and remembers, what is no action."""

    def __init__(
        self,
        seen: spaces.Space[Any] = ROW,
        done: spaces.Space[Any] = TWO,
        options: int = 0,
    ) -> None:
        self.observation_space = as_space(plain_space(seen))
        self.action_space = as_space(plain_space(done))
        self.options, self.time = options, 0

    def infos(self) -> dict[str, Any]:
        if not self.options:
            return {}
        # The last option of each two is illegal.
        return {"action_mask": np.arange(self.options) % 2 == 0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), self.infos()

    def step(self, action: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Gymnasium warns where it casts
            assert self.action_space.contains(action), action
        self.time += 1
        over = False, self.time == 5
        return self.observation_space.sample(), 1.0, *over, self.infos()


def brief(algorithm: str = "PPO", env: Any = World, **options: Any) -> Agent:
    """Train for a moment."""
    config = ALGORITHMS[algorithm.lower()].settings("").__dict__
    few = {"learning_starts": 8, "buffer_size": 64, "batch_size": 8, "num_steps": 8}
    few |= {"num_envs": 2, "num_steps": 8, "hidden": 8}
    known = {key: x for key, x in few.items() if key in config}
    if "buffer_size" in config:
        known["num_steps"] = 1
    return train(
        algorithm, env, progress=False, **known | {"total_steps": 16} | options
    )


def plays(policy: Any, env: gym.Env[Any, Any]) -> None:
    """Play an episode, once greedily and once not."""
    for greedy in (True, False):
        obs, infos = env.reset(seed=1)
        done = False
        while not done:
            action = policy.predict(obs, infos.get("action_mask"), greedy)
            obs, _, terminated, truncated, infos = env.step(action)
            done = terminated or truncated


def plays_many(policy: Any, make: Callable[[], gym.Env[Any, Any]]) -> None:
    """Step a vector environment, whose modes are what Gymnasium gives it."""
    envs = SyncVectorEnv([make] * 3)
    obs, infos = envs.reset(seed=1)
    for _ in range(12):
        action = policy.predict(obs, infos.get("action_mask"))
        obs, *_, infos = envs.step(action)
    envs.close()


def same(one: Any, other: Any) -> bool:
    """Say whether two actions are of one kind and equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    kinds = [getattr(x, "dtype", type(x)) for x in (one, other)]
    return kinds[0] == kinds[1] and np.array_equal(one, other)


# --- Spaces ---------------------------------------------------------------------------

SMALL, LARGE = spaces.Box(0, 10, (2,), np.float32), spaces.Box(-5, 5, (1,), np.float64)
HYBRID = spaces.Tuple((spaces.Discrete(2, start=3), spaces.Tuple((SMALL, LARGE))))
NAMED = spaces.Dict(how=SMALL, what=spaces.Discrete(2, start=3), far=LARGE)
ACTIONS = {
    "Discrete": (spaces.Discrete(3), 3),
    "Discrete with a start": (spaces.Discrete(3, start=-7), 3),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 4], start=[10, 20]), 7),
    "MultiDiscrete of two dimensions": (
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]], np.int32), np.int32),
        11,
    ),
    "MultiBinary": (spaces.MultiBinary(3), 6),
    "MultiBinary of two dimensions": (spaces.MultiBinary((2, 2)), 8),
    "choices in a Tuple": (spaces.Tuple((TWO, spaces.MultiBinary(2))), 6),
    "choices in a Dict": (spaces.Dict(b=TWO, a=spaces.Discrete(3, start=5)), 5),
    "float32": (SMALL, 0),
    "float64": (LARGE, 0),
    "float16": (spaces.Box(-2, 2, (2,), np.float16), 0),
    "hybrid": (HYBRID, 2),
    "hybrid, by name": (NAMED, 2),
}
SEEN = {
    "a row": ROW,
    "a row of one number": spaces.Box(-1, 1, (1,)),
    "a number": spaces.Box(-1, 1, ()),
    "a matrix": spaces.Box(-1, 1, (2, 2)),
    "float64": spaces.Box(-1, 1, (3,), np.float64),
    "whole numbers": spaces.Box(-9, 9, (3,), np.int64),
    "bytes in a row": spaces.Box(0, 255, (3,), np.uint8),
    "a picture": PICTURE,
    "a stack of pictures": spaces.Box(0, 255, (2, 8, 8, 3), np.uint8),
    "planes": spaces.Box(0, 1, (4, 8, 8), np.float32),
    "Discrete": spaces.Discrete(5, start=2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3], np.int8, start=[1, 0]),
    "MultiBinary": spaces.MultiBinary((2, 2)),
    "Tuple": spaces.Tuple((ROW, spaces.Discrete(3))),
    "Dict": spaces.Dict(z=ROW, a=spaces.Discrete(4, start=1), m=spaces.Box(0, 1, ())),
    "Dict with a picture": spaces.Dict(look=PICTURE, at=spaces.Discrete(3)),
    "nests": spaces.Dict(
        hand=spaces.Tuple((ROW, spaces.Dict(b=spaces.MultiBinary(2), a=TWO))),
        eye=spaces.Box(0, 255, (8, 8), np.uint8),
    ),
}


def kept(agent: Agent, tmp_path: Path, **models: Any) -> Any:
    """Save an agent's run, and load its policy."""
    return load(agent.save(tmp_path / "run"), **models)


@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_are_those_of_their_space(kind: str, tmp_path: Path) -> None:
    space, options = ACTIONS[kind]
    table = [[1, 1, 0], [0, 0, 1]] if kind == "hybrid, by name" else None
    more = {} if table is None else {"mask": table}
    for number in (0, options) if options else (0,):
        make = partial(World, ROW, space, number)
        agent = brief(env=make, **more)
        loaded = kept(agent, tmp_path / str(number))
        for each in (agent, agent.policy, loaded):
            plays(each, make())
            plays_many(each, make)
        # One is the same as the first of many, and so is that of `evaluate`.
        env = make()
        obs, infos = env.reset(seed=2)
        mask = infos.get("action_mask")
        many = mask if mask is None else mask[None]
        one, batch = agent.predict(obs, mask), agent.predict(obs[None], many)
        assert space.contains(one)
        assert type(one) is int or not isinstance(space, spaces.Discrete)
        vector = SyncVectorEnv([make])
        assert vector.action_space.contains(batch), batch
        assert same(one, loaded.predict(obs, mask))


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_observations_come_as_the_environment_shows_them(
    kind: str, algorithm: str, tmp_path: Path
) -> None:
    make = partial(World, SEEN[kind], spaces.Discrete(3, start=4))
    agent = brief(algorithm, make)
    loaded = kept(agent, tmp_path)
    assert loaded.observation_space == make().observation_space
    for each in (agent, loaded):
        plays(each, make())
        plays_many(each, make)
    # The rows are those that the policy has learned from.
    env = make()
    obs, _ = env.reset(seed=3)
    row = torch.as_tensor(spaces.flatten(env.observation_space, obs)).float()
    wanted = agent.policy.to_env(agent.policy.act(row[None], 0.0))[0]
    assert agent.predict(obs) == loaded.predict(obs) == wanted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_predicts(algorithm: str, tmp_path: Path) -> None:
    numbers = any(name in algorithm for name in ("ddpg", "td3", "sac"))
    make = partial(World, ROW, SMALL if numbers else spaces.Discrete(2, start=5))
    more = {"actors": 2, "num_envs": 3} if "apex" in algorithm else {}
    agent = brief(algorithm, make, **more)
    loaded = kept(agent, tmp_path)
    for each in (agent, loaded):
        plays(each, make())
        plays_many(each, make)
        many = np.zeros((7, 3), np.float32)
        assert len(each.predict(many, greedy=False)) == 7
    obs = np.full(3, 0.5, np.float32)
    assert same(agent.predict(obs), loaded.predict(obs))
    returns = evaluate(agent.policy, make, 4, seed=1, greedy=False)
    assert returns.tolist() == [5.0] * 4


# --- Masks ----------------------------------------------------------------------------


# Their actors make environments of their own.
APART = [("A3C", False), ("DQNApex", False), ("RainbowApex", False)]


@pytest.mark.parametrize(
    ("algorithm", "handed_over"),
    [
        *product(
            ["PPO", "PPG", "IMPALA", "A2C", "DQN", "Rainbow", "SAC"], [False, True]
        ),
        *APART,
    ],
)
def test_who_has_learned_with_masks_asks_for_one_once(
    algorithm: str, handed_over: bool, tmp_path: Path
) -> None:
    make = partial(World, ROW, spaces.Discrete(4), 4)
    same_step = gym.vector.AutoresetMode.SAME_STEP
    envs = SyncVectorEnv([make] * 2, autoreset_mode=same_step)
    agent = brief(algorithm, envs if handed_over else make)
    obs, mask = np.zeros(3, np.float32), np.array([0, 0, 1, 0])
    for policy in (kept(agent, tmp_path), copy.deepcopy(agent), agent):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert policy.predict(obs, mask) == 2
        with pytest.warns(
            UserWarning, match=r"learned with masks .* pass mask="
        ) as got:
            policy.predict(obs)
        assert Path(got[0].filename).name == "test_predict.py"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            policy.predict(obs)


def test_who_has_learned_without_masks_asks_for_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        brief("A3C").predict(np.zeros(3, np.float32))


def test_masks_come_in_the_forms_that_environments_give() -> None:
    space = spaces.MultiDiscrete([2, 3])
    agent, obs = brief(env=partial(World, ROW, space, 5)), np.zeros(3, np.float32)
    row, parts = [0, 1, 0, 0, 1], (np.array([0, 1]), np.array([0, 0, 1]))
    for mask in (row, np.array(row, bool), torch.tensor(row), parts):
        assert agent.predict(obs, mask).tolist() == [1, 2]
    # Where an episode is over, nothing may be legal.
    many = agent.predict(np.zeros((2, 3)), np.array([row, [0] * 5]))
    assert many[0].tolist() == [1, 2]
    for wrong, words in {
        (0, 1, 0): r"mask must .*5.*3",
        (0, 2, 0, 0, 1): "mask must be .* zeros and ones",
        (0, 0, 0, 0, 0): "mask must leave a legal action",
    }.items():
        with pytest.raises((ValueError, TypeError), match=words):
            agent.predict(obs, [*wrong])
    with pytest.raises(ValueError, match=r"mask must have 2 rows, .* got 3"):
        agent.predict(np.zeros((2, 3)), [row] * 3)
    with pytest.raises(ValueError, match="mask must be None for GaussianActions"):
        brief(env=partial(World, ROW, SMALL)).predict(obs, [1, 1])


# --- Models of one's own --------------------------------------------------------------


class Reader(nn.Module):
    """A Q network that reads two states by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 + 4, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, place: Any, kind: Any) -> Any:
        return self.dropout(self.layer(torch.cat([place, kind], -1)))


def test_a_model_of_ones_own_reads_its_states_by_name(tmp_path: Path) -> None:
    seen = spaces.Dict(place=ROW, kind=spaces.Discrete(4, start=1))
    make = partial(World, seen, spaces.Discrete(2, start=8))
    agent = brief("DQN", make, qnet=Reader())
    for each in (agent, kept(agent, tmp_path, qnet=Reader())):
        plays(each, make())
        plays_many(each, make)


@pytest.mark.parametrize(
    ("algorithm", "space", "models"),
    [
        ("DQN", TWO, lambda: {"qnet": QNetwork(3, 2)}),
        (
            "PPO",
            TWO,
            lambda: {"actor": CategoricalActor(3, 2), "critic": StateValue(3)},
        ),
        (
            "SAC",
            SMALL,
            lambda: {
                "actor": SquashedGaussianActor(3, SMALL.low, SMALL.high),
                "critic": ActionValue(3, 2),
            },
        ),
        (
            "DDPG",
            SMALL,
            lambda: {
                "actor": DeterministicActor(3, SMALL.low, SMALL.high),
                "critic": ActionValue(3, 2),
            },
        ),
    ],
)
def test_models_that_keep_a_contract_predict(
    algorithm: str, space: Any, models: Any, tmp_path: Path
) -> None:
    make = partial(World, ROW, space)
    agent = brief(algorithm, make, **models())
    loaded = kept(agent, tmp_path, **models())
    for each in (agent, loaded):
        plays(each, make())
        plays_many(each, make)
    obs = np.full(3, 0.5)
    assert same(agent.predict(obs), loaded.predict(obs))


class Mix(nn.Module):
    """An encoder of one's own."""

    output_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x.flatten(1))


def test_an_encoder_of_ones_own_sees_the_shape(tmp_path: Path) -> None:
    make = partial(World, spaces.Box(-1, 1, (2, 3)))
    agent = brief(env=make, encoder=Mix())
    for each in (agent, kept(agent, tmp_path, encoder=Mix())):
        plays(each, make())
        plays_many(each, make)


# --- Worlds ---------------------------------------------------------------------------


def test_wrappers_count_and_so_do_vector_environments(tmp_path: Path) -> None:
    wrapped = brief(env=World, wrappers=["FrameStackObservation(4)"])
    env = gym.wrappers.FrameStackObservation(World(), 4)
    plays(wrapped, env)
    with pytest.raises(ValueError, match=r"obs must have shape \(4, 3\), got \(3,\)"):
        wrapped.predict(np.zeros(3))
    seen = spaces.Dict(z=ROW, a=TWO)
    make = partial(World, seen, spaces.Discrete(2, start=4))
    for kind in (SyncVectorEnv, AsyncVectorEnv):
        envs = kind([make] * 2)
        agent = brief(env=envs, num_envs=2)
        envs.close()
        plays_many(agent, make)
        plays(kept(agent, tmp_path / kind.__name__), make())


def test_a_wrong_observation_is_named() -> None:
    agent = brief()
    for obs, words in {
        (0.0, 0.0): r"obs must have shape \(3,\), got \(2,\): give one .* makes them$",
        ((0.0, 0.0), (0.0, 0.0)): r"obs\[0\] must have shape \(3,\), got \(2,\)",
        ((0.0,), (0.0, 0.0)): "obs must hold numbers, in rows of one length, got a",
        ("a", "b", "c"): "obs must hold numbers, got <U1",
        (0.0, 0.0, float("nan")): "obs must be finite",
        (): r"obs must have shape \(3,\), got \(0,\)",
    }.items():
        with pytest.raises(ValueError, match=words):
            agent.predict([*obs])
    with pytest.raises(ValueError, match=r"obs must have shape \(3,\), got \(\)"):
        agent.predict(None)
    with pytest.raises(ValueError, match=r"obs must hold numbers, .* got a tuple"):
        agent.predict(World().reset())
    with pytest.raises(ValueError, match=r"one at least, got \[0\]"):
        agent.predict(np.zeros((0, 3)))
    nested = brief(env=partial(World, spaces.Dict(a=ROW, b=TWO)))
    for obs, words in (
        ({"a": np.zeros(3)}, r"obs must have \['a', 'b'\], got \['a'\]"),
        ({"a": np.zeros(3), "b": 2}, r"obs\['b'\] must be in Discrete\(2\), got"),
        ({"a": np.zeros((2, 3)), "b": [0]}, r"as many rows in each part.*\[2, 1\]"),
        (np.zeros(5), "obs must have .*, got ndarray"),
    ):
        with pytest.raises(ValueError, match=words):
            nested.predict(obs)
    bytes_ = brief(env=partial(World, PICTURE))
    with pytest.raises(ValueError, match="must hold uint8 like its space, got float64"):
        bytes_.predict(np.full(PICTURE.shape, 0.5))
    with pytest.raises(ValueError, match="predict needs observation_space and action"):
        Policy(nn.Linear(3, 2), None).predict(np.zeros(3))  # type: ignore[arg-type]


def test_numbers_come_in_any_form() -> None:
    agent = brief(env=partial(World, ROW, spaces.Box(-2, 2, (1,), np.float32)))
    wanted = agent.predict(np.array([1, 0, 1], np.float32))
    leaf = torch.tensor([1.0, 0.0, 1.0], requires_grad=True)
    for obs in ([1, 0, 1], (1.0, 0.0, 1.0), np.array([1, 0, 1]), leaf):
        assert same(agent.predict(obs), wanted)
        assert wanted.dtype == np.float32


def test_a_call_leaves_no_trace() -> None:
    agent = brief("DQN", qnet=nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.9)))
    policy: Any = agent.policy
    policy.train()
    obs = np.ones(3)
    before = random.getstate(), np.random.get_state()[1], torch.get_rng_state()
    actions = {agent.predict(obs) for _ in range(20)}
    after = random.getstate(), np.random.get_state()[1], torch.get_rng_state()
    assert len(actions) == 1, "nothing is dropped"
    assert before[0] == after[0]
    assert np.array_equal(before[1], after[1])
    assert torch.equal(before[2], after[2])
    assert all(part.training for part in policy.modules())
    assert obs.tolist() == [1.0] * 3


def test_it_acts_where_the_policy_is() -> None:
    policy, mask = make_policy(ROW, spaces.Discrete(3, start=1)), [[0, 0, 1]] * 2
    with elsewhere():
        policy.to(ELSEWHERE)
        for greedy in (True, False):
            assert policy.predict(np.zeros((2, 3)), mask, greedy).tolist() == [3, 3]


def test_what_is_drawn_comes_from_pytorchs_generator() -> None:
    agent, obs = brief(), np.zeros((200, 3))
    torch.manual_seed(3)
    drawn = agent.predict(obs, greedy=False)
    torch.manual_seed(3)
    assert np.array_equal(agent.predict(obs, greedy=False), drawn)
    assert 50 < drawn.sum() < 150, "it has hardly learned"
    assert len({*agent.predict(obs).tolist()}) == 1


# --- Runs from before -----------------------------------------------------------------


def without_world(run: Path) -> Path:
    """Make a run one from before: its checkpoint knows nothing of its world."""
    from literate_rl import load_checkpoint

    state = load_checkpoint(run / "checkpoint.pt")
    for name in ("masked", "observation_space"):
        del state["policy"][name]
    save_checkpoint(run / "checkpoint.pt", state)
    return run


def test_a_run_from_before_looks_at_its_environment(tmp_path: Path) -> None:
    gym.register("Shown-v0", entry_point=partial(World, spaces.Discrete(5), TWO, 2))
    try:
        run = without_world(brief(env="Shown-v0").save(tmp_path / "run"))
        policy: Any = load(run)
        assert policy.predict(np.int64(3), [0, 1]) == 1
        assert policy.masked
        # It goes on, and knows more from then on.
        train("PPO", "Shown-v0", resume=run, progress=False)
        del gym.registry["Shown-v0"]
        assert load(run).predict(3, [0, 1]) == 1
        unknown = load(without_world(run))
    finally:
        gym.registry.pop("Shown-v0", None)
    assert unknown.predict([0, 0, 1, 0, 0]) in (0, 1)
    with pytest.raises(
        ValueError, match=r"in rows as gymnasium\.spaces\.flatten makes"
    ):
        unknown.predict(3)


def test_code_of_others_is_not_run_to_look_at_it(tmp_path: Path) -> None:
    run = without_world(brief(env=World).save(tmp_path / "run"))
    (run / "settings.json").write_text('{"env": "antigravity:World"}')
    assert load(run).predict(np.zeros(3)) in (0, 1)


def test_a_policy_that_was_built_by_hand_predicts() -> None:
    policy = make_policy(ROW, spaces.Discrete(3, start=1))
    assert policy.predict(np.zeros(3)) in (1, 2, 3)
    assert policy.predict(np.zeros((2, 3))).shape == (2,)


# --- The loop of the pages ------------------------------------------------------------

PAGES = ["README.md", "docs/your_environment.md", "docs/faq.md"]
LOOP = """obs, infos = env.reset()
done = False
while not done:
    action = agent.predict(obs, infos.get("action_mask"))
    obs, reward, terminated, truncated, infos = env.step(action)
    done = terminated or truncated
"""


@pytest.mark.parametrize("options", [0, 2])
@pytest.mark.parametrize("page", PAGES)
def test_the_six_lines_of_the_pages_play(page: str, options: int) -> None:
    text = (Path(__file__).parents[1] / page).read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (lines,) = [block for block in blocks if "predict" in block]
    assert lines.endswith(LOOP)
    make = partial(World, ROW, spaces.Discrete(2, start=5), options)
    names: dict[str, Any] = {"agent": brief(env=make), "env": make()}
    exec(lines.removeprefix(lines.removesuffix(LOOP)), names)
    assert names["env"].time == 5


def test_only_one_of_two_says_whose_units_it_returns() -> None:
    first = (Agent.act.__doc__ or "").splitlines()[0]
    assert "in the policy's own units" in first
    agent = brief(env=partial(World, ROW, SMALL))
    own = agent.act({"state": torch.zeros(1, 3)}).numpy()[0]
    assert np.allclose(agent.predict(np.zeros(3)), 5 + 5 * own)


# --- Copies ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "A3C"])
@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, "pickle"])
def test_a_copy_outlives_its_agent(how: Any, algorithm: str, tmp_path: Path) -> None:
    agent = brief(algorithm)
    obs: NDArray[Any] = np.zeros((3, 3))
    wanted, folder, history = agent.predict(obs), agent.folder, agent.history
    twin = pickle.loads(pickle.dumps(agent)) if how == "pickle" else how(agent)
    twin.learner.policy.requires_grad_(False)
    assert all(x.requires_grad for x in agent.policy.parameters()) or how is copy.copy
    del agent
    assert not folder.exists()
    assert np.array_equal(twin.predict(obs), wanted)
    assert twin.history == history
    assert twin.learner.config.total_steps == 16
    assert evaluate(twin.policy, twin.env, 2).tolist() == [5.0, 5.0]
    saved = twin.save(tmp_path / "run")
    assert np.array_equal(load(saved).predict(obs), wanted)
    more = train(algorithm, World, resume=saved, progress=False)
    assert np.array_equal(more.predict(obs), wanted)
    place = twin.folder
    del twin
    assert not place.exists()


def test_what_cannot_be_pickled_is_named_or_left_out() -> None:
    agent = brief(env=lambda: World())
    assert copy.deepcopy(agent).env is agent.env
    assert pickle.loads(pickle.dumps(agent)).env is None

    class Local(nn.Sequential):
        pass

    agent = brief("DQN", qnet=Local(nn.Linear(3, 2)))
    assert copy.deepcopy(agent).predict(np.zeros(3)) == agent.predict(np.zeros(3))
    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        pickle.dumps(agent)


def test_policies_are_copied_and_pickled(tmp_path: Path) -> None:
    agent = brief(env=partial(World, spaces.Dict(a=ROW, b=TWO), HYBRID))
    obs = World(spaces.Dict(a=ROW, b=TWO)).reset(seed=1)[0]
    for policy in (agent.policy, kept(agent, tmp_path)):
        for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
            assert same(twin.predict(obs), agent.predict(obs))

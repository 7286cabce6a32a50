"""What the environment shows goes in, and what its ``step`` takes comes out."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from elsewhere import ELSEWHERE, elsewhere
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from test_training import brief, vectors

from literate_rl import evaluate, load, load_checkpoint, save_checkpoint, train
from literate_rl.nets.policies import make_policy

ROW = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)
PICTURE = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class World(gym.Env[Any, Any]):
    """Shows samples of a space; refuses what is no action, and ends after 5 steps."""

    def __init__(self, seen=ROW, done=TWO, options=0):
        self.observation_space, self.action_space = copy.deepcopy((seen, done))
        # The last option of each two is illegal.
        self.infos = {"action_mask": np.arange(options) % 2 == 0} if options else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), self.infos

    def step(self, action):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Gymnasium warns where it casts
            assert self.action_space.contains(action), action
        self.time += 1
        seen = self.observation_space.sample()
        return seen, 1.0, False, self.time == 5, self.infos


def plays(policy: Any, make: Any) -> None:
    """Play an episode, greedily and not, and steps of a vector environment."""
    for greedy in (True, False):
        env, done = make(), False
        obs, infos = env.reset(seed=1)
        while not done:
            action = policy.predict(obs, infos.get("action_mask"), greedy)
            obs, _, _, done, infos = env.step(action)
    envs = SyncVectorEnv([make] * 3)
    obs, infos = envs.reset(seed=1)
    for _ in range(12):
        action = policy.predict(obs, infos.get("action_mask"))
        assert envs.action_space.contains(action), action
        obs, *_, infos = envs.step(action)
    envs.close()


def kept(agent: Any, place: Path, **own: Any) -> Any:
    """Save an agent's run, and load its policy."""
    return load(agent.save(place / "run"), **own)


# --- Spaces ---------------------------------------------------------------------------

SMALL, LARGE = spaces.Box(0, 10, (2,), np.float32), spaces.Box(-5, 5, (1,), np.float64)
HYBRID = spaces.Tuple((spaces.Discrete(2, start=3), spaces.Tuple((SMALL, LARGE))))
NAMED = spaces.Dict(how=SMALL, what=spaces.Discrete(2, start=3), far=LARGE)
# Beside them is how many options there are.
ACTIONS = {
    "Discrete with a start": (spaces.Discrete(3, start=-7), 3),
    "MultiDiscrete of two dimensions": (
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]], np.int32), np.int32),
        11,
    ),
    "choices in a Dict": (spaces.Dict(b=TWO, a=spaces.Discrete(3, start=5)), 5),
    "float32": (SMALL, 0),
    "float64": (LARGE, 0),
    "hybrid": (HYBRID, 2),
    "hybrid, by name": (NAMED, 2),
}
SEEN = {
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "a picture": PICTURE,
    "MultiDiscrete": spaces.MultiDiscrete([2, 3], np.int8, start=[1, 0]),
    "Dict": spaces.Dict(z=ROW, a=spaces.Discrete(4, start=1), m=spaces.Box(0, 1, ())),
    "nests": spaces.Dict(
        hand=spaces.Tuple((ROW, spaces.Dict(b=spaces.MultiBinary((2, 2)), a=TWO))),
        eye=spaces.Box(0, 255, (8, 8), np.uint8),
    ),
}


@pytest.mark.filterwarnings("error:.*learned with masks")
@pytest.mark.parametrize("kind", ACTIONS)
def test_actions_are_those_of_their_space(kind, tmp_path):
    space, options = ACTIONS[kind]
    more = {"mask": [[1, 1, 0], [0, 0, 1]]} if kind == "hybrid, by name" else {}
    for number in {0, options}:
        make = partial(World, ROW, space, number)
        agent = brief("ppo", make, **more)
        loaded = kept(agent, tmp_path / str(number))
        for each in (agent, loaded):
            plays(each, make)
        obs, infos = make().reset(seed=2)
        one, other = (x.predict(obs, infos.get("action_mask")) for x in (agent, loaded))
        assert space.contains(one)
        assert type(one) is int or not isinstance(space, spaces.Discrete)
        assert repr(one) == repr(other)


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_observations_come_as_the_environment_shows_them(kind, algorithm, tmp_path):
    make = partial(World, SEEN[kind], spaces.Discrete(3, start=4))
    agent = brief(algorithm, make)
    loaded = kept(agent, tmp_path)
    assert loaded.observation_space == make().observation_space
    for each in (agent, loaded):
        plays(each, make)
    # The rows are those that the policy has learned from.
    env = make()
    obs, _ = env.reset(seed=3)
    row = torch.as_tensor(spaces.flatten(env.observation_space, obs)).float()
    wanted = agent.policy.to_env(agent.policy.act(row[None], 0.0))[0]
    assert agent.predict(obs) == loaded.predict(obs) == wanted


# --- Masks ----------------------------------------------------------------------------

MASKED = "ppo impala sac a3c rainbowapex"


@pytest.mark.parametrize(
    ("algorithm", "around"),
    [
        *((name, partial) for name in MASKED.split()),
        # Actors make environments of their own.
        *((name, vectors) for name in ("ppo", "dqn")),
    ],
)
def test_who_has_learned_with_masks_asks_for_one_once(algorithm, around, tmp_path):
    agent = brief(algorithm, around(partial(World, ROW, spaces.Discrete(4), 4)))
    obs, mask = np.zeros(3, np.float32), np.array([0, 0, 1, 0])
    for policy in (kept(agent, tmp_path), copy.deepcopy(agent), agent):
        with warnings.catch_warnings(record=True) as got:
            warnings.simplefilter("always")
            # Without a mask first: whoever is told one knows of them from then on.
            for _ in range(2):
                policy.predict(obs)
            assert policy.predict(obs, mask) == 2
        (told,) = got
        assert "learned with masks" in str(told.message)
        assert Path(told.filename).name == "test_predict.py"


def test_masks_come_in_the_forms_that_environments_give():
    policy, obs = make_policy(ROW, spaces.MultiDiscrete([2, 3])), np.zeros((2, 3))
    row, parts = [0, 1, 0, 0, 1], (np.array([0, 1]), np.array([0, 0, 1]))
    for mask in (row, torch.tensor(row), parts):
        assert policy.predict(obs[0], mask).tolist() == [1, 2]
    # Where an episode is over, nothing may be legal.
    assert policy.predict(obs, np.array([row, [0] * 5]))[0].tolist() == [1, 2]
    for wrong in ([0, 1, 0], [0] * 5):
        with pytest.raises((ValueError, TypeError), match="mask must"):
            policy.predict(obs[0], wrong)
    with pytest.raises(ValueError, match="mask must be None"):
        make_policy(ROW, SMALL).predict(obs[0], [1, 1])


# --- Worlds ---------------------------------------------------------------------------


def test_wrappers_count_and_so_do_vector_environments():
    agent = brief("ppo", World, wrappers=["FrameStackObservation(4)"])
    plays(agent, lambda: gym.wrappers.FrameStackObservation(World(), 4))
    make = partial(World, NESTED, spaces.Discrete(2, start=4))
    envs = AsyncVectorEnv([make] * 2)
    agent = brief("ppo", envs)
    envs.close()
    plays(agent, make)


NESTED = spaces.Dict(a=ROW, b=TWO)


@pytest.mark.parametrize(
    ("seen", "obs", "words"),
    [
        (ROW, [0.0, 0.0], r"obs must have shape \(3,\), got \(2,\)"),
        (ROW, [0.0, 0.0, np.nan], "obs must be finite"),
        (ROW, World().reset(), "obs must hold numbers"),
        (NESTED, {"a": np.zeros(3), "b": 2}, r"obs\['b'\] must be in"),
        (NESTED, {"a": np.zeros((2, 3)), "b": [0]}, "as many rows"),
        (PICTURE, np.full(PICTURE.shape, 0.5), "must hold uint8"),
    ],
)
def test_a_wrong_observation_is_named(seen, obs, words):
    policy = make_policy(spaces.flatten_space(seen), TWO)
    policy.observation_space = seen
    with pytest.raises(ValueError, match=words):
        policy.predict(obs)


def test_it_acts_where_the_policy_is():
    policy, mask = make_policy(ROW, spaces.Discrete(3, start=1)), [[0, 0, 1]] * 2
    with elsewhere():
        policy.to(ELSEWHERE)
        for greedy in (True, False):
            assert policy.predict(np.zeros((2, 3)), mask, greedy).tolist() == [3, 3]


# --- Runs from before -----------------------------------------------------------------


def without_world(run: Path) -> Path:
    """Make a run one from before: its checkpoint knows nothing of its world."""
    state = load_checkpoint(run / "checkpoint.pt")
    del state["settings"]
    for name in ("masked", "observation_space"):
        del state["policy"][name]
    save_checkpoint(run / "checkpoint.pt", state)
    return run


def test_a_run_from_before_looks_at_its_environment(tmp_path):
    gym.register("Shown-v0", entry_point=partial(World, spaces.Discrete(5), TWO, 2))
    try:
        run = without_world(brief("ppo", "Shown-v0").save(tmp_path / "run"))
        policy: Any = load(run)
        assert policy.predict(np.int64(3), [0, 1]) == 1
        assert policy.masked
        # It goes on, and knows more from then on.
        train("PPO", "Shown-v0", resume=run, progress=False)
    finally:
        del gym.registry["Shown-v0"]
    assert load(run).predict(3, [0, 1]) == 1
    # Code of others is not run to look at it.
    (without_world(run) / "settings.json").write_text('{"env": "antigravity:World"}')
    assert load(run).predict([0, 0, 1, 0, 0]) in (0, 1)
    assert "antigravity" not in sys.modules


# --- The loop of the pages ------------------------------------------------------------

LOOP = """obs, infos = env.reset()
done = False
while not done:
    action = agent.predict(obs, infos.get("action_mask"))
    obs, reward, terminated, truncated, infos = env.step(action)
    done = terminated or truncated
"""


@pytest.mark.parametrize("options", [0, 2])
def test_the_six_lines_of_the_pages_play(options):
    for page in ("README.md", "docs/your_environment.md", "docs/faq.md"):
        assert f"{LOOP}```" in (Path(__file__).parents[1] / page).read_text("utf-8")
    env = World(ROW, spaces.Discrete(2, start=5), options)
    exec(LOOP, {"agent": make_policy(ROW, env.action_space), "env": env})
    assert env.time == 5


# --- Copies ---------------------------------------------------------------------------


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("algorithm", ["ppo", "a3c"])
@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, pickled])
def test_a_copy_outlives_its_agent(how, algorithm, tmp_path):
    agent, obs = brief(algorithm, World), np.zeros((3, 3))
    wanted, folder, history = agent.predict(obs), agent.folder, agent.history
    twin = how(agent)
    assert twin.policy is not agent.policy or how is copy.copy
    del agent
    assert not folder.exists()
    assert repr(twin.history) == repr(history)
    assert evaluate(twin.policy, twin.env, 2).tolist() == [5.0, 5.0]
    saved = twin.save(tmp_path / "run")
    more = train(algorithm, World, resume=saved, progress=False)
    for each in (twin, load(saved), more, how(twin.policy)):
        assert np.array_equal(each.predict(obs), wanted)
    place = twin.folder
    del twin, each
    assert not place.exists()

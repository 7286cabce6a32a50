"""The page on an environment of one's own: its program, and the refusals it quotes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from literate_rl import evaluate, train
from literate_rl.data.agents import make_envs
from literate_rl.learners.a2c import A2CConfig
from literate_rl.learners.dqn import dqn_settings
from literate_rl.learners.ppo import PPOConfig, ppo_settings

PAGE = (Path(__file__).parents[1] / "docs/your_environment.md").read_text("utf-8")
# The first column of tables that quote messages.
QUOTED = re.findall(
    r"^\| `(.*?)` \|", PAGE.partition("\n## What a refusal means\n")[2], re.M
)
ROW = spaces.Box(-1, 1, (2,))


class World(gym.Env):
    """An environment with one thing that is not as it should be."""

    def __init__(self, space=ROW, actions=None, start=None, answer=None):
        self.observation_space = space
        self.action_space = actions or spaces.Discrete(2)
        self.start, self.answer = start, answer

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return (np.zeros(2, np.float32), {}) if self.start is None else self.start

    def step(self, action):
        row = [np.zeros(2, np.float32), 1.0, True, False, {}]
        if callable(self.answer):
            self.answer(row)
        return self.answer if isinstance(self.answer, tuple) else tuple(row)


class Masked(World):
    """An environment with masks in a method."""

    def action_masks(self):
        return [True, False]


def change(index: int, value: Any) -> Any:
    """Return a function that puts something wrong into a row."""
    return lambda row: row.__setitem__(index, value)


def look_up(row: Any) -> None:
    """Fail as code of one's own may."""
    {}["pressure"]


def trained(algorithm: str = "PPO", **world: Any) -> None:
    """Train in a world that is registered for it."""
    gym.register("Odd-v0", entry_point=World, kwargs=world)
    try:
        train(algorithm, "Odd-v0", total_steps=256, progress=False)
    finally:
        del gym.registry["Odd-v0"]


def stepped(**world: Any) -> None:
    """Take a step in a world that has no name, so that no wrapper sees it first."""
    envs = make_envs(lambda: World(**world), 1)
    envs.reset()
    envs.step(np.zeros(1, int))


def shared() -> None:
    """Make several environments of one object."""
    world = World()
    make_envs(lambda: world, 2)


def endless() -> None:
    """Evaluate where no episode ends."""
    policy = train("PPO", "CartPole-v1", total_steps=16, progress=False).policy
    evaluate(policy, "CartPole-v1", episodes=1, max_episode_steps=1)


def too_long() -> None:
    """Train where no episode ends between two checkpoints."""
    short = {"num_steps": 8, "total_steps": 128, "checkpoint_interval": 1}
    going_on = lambda: World(answer=change(2, False))  # noqa: E731
    train("PPO", going_on, progress=False, **short)


FREE = spaces.Box(-np.inf, np.inf, (1,))
BOTH = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,))))
TEXT = spaces.Dict(row=ROW, words=spaces.Sequence(spaces.Discrete(2)))
WORDS = np.array(["on", "off"])
OLD = np.zeros(2, np.float32), 1.0, False, {}
LATE = np.zeros(2, np.float32), 0.0, False, False, {"action_mask": np.ones(2, np.int8)}
REFUSALS = {
    "env … cannot be made": lambda: train("PPO", "Rome-v0"),
    "env must be an id": lambda: train("PPO", World(), progress=False),
    "env must make a new": shared,
    "env … must have a Space": lambda: train(
        "PPO", lambda: World(space=None), progress=False
    ),
    "env … failed in reset: it must": lambda: stepped(start=np.zeros(2, np.float32)),
    "env … failed in step: it must": lambda: stepped(answer=OLD),
    "env … failed in step: ValueError": lambda: trained(answer=OLD),
    "env … failed in …: obs must have shape": lambda: trained(start=(np.zeros(1), {})),
    "env … failed in …: obs must hold numbers": lambda: trained(
        start=(np.array(["a"] * 2), {})
    ),
    "env … failed in …: obs must hold … like": lambda: trained(
        space=spaces.Box(0, 255, (2,), np.uint8), start=(np.full(2, 0.9), {})
    ),
    "env … failed in …: obs must have …": lambda: stepped(
        space=spaces.Dict(row=ROW, more=ROW), start=({"row": np.zeros(2)}, {})
    ),
    "env … failed in step: reward": lambda: trained(answer=change(1, np.ones(1))),
    "env … failed in step: terminated": lambda: trained(answer=change(2, None)),
    "env … failed in …: infos must": lambda: stepped(start=(np.zeros(2), None)),
    "env … failed in step: KeyError": lambda: trained(answer=look_up),
    "reward of environment": lambda: trained(answer=change(1, float("nan"))),
    "env must have observations": lambda: trained(space=TEXT),
    "…'s action_space must be": lambda: trained("DQN", actions=FREE),
    "…'s action_space must have bounds": lambda: trained("SAC", actions=FREE),
    "…'s mask must be given": lambda: trained(actions=BOTH),
    "env … failed in …: infos['action_mask']": lambda: trained(
        start=(np.zeros(2, np.float32), {"action_mask": np.ones(3, np.int8)})
    ),
    "infos must have action_mask": lambda: trained(answer=LATE),
    "action_mask must leave": lambda: trained(
        start=(np.zeros(2, np.float32), {"action_mask": np.zeros(2, np.int8)})
    ),
    'infos["action_mask"] and mask': lambda: trained(
        "TD3", start=(np.zeros(2, np.float32), {"action_mask": np.ones(2, np.int8)})
    ),
    "algorithm must be one of": lambda: train("PPOO", "CartPole-v1"),
    "env …: … of … episodes had": endless,
    "no episode ended within": too_long,
    "env has masks in": lambda: train("PPO", Masked, total_steps=16, progress=False),
}


def test_the_program_of_the_page_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S))
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, "docs/your_environment.md", "exec"), names)
    assert names["chance"] < 0
    assert 70 < names["thermostat"] < 80
    assert names["returns"].mean() > 60
    assert "trained: " in capsys.readouterr().out
    assert (tmp_path / "my_room" / "checkpoint.pt").exists()
    room = re.search(r"^class Room.*?^```", PAGE, re.M | re.S)
    assert room
    assert len(room[0].splitlines()) <= 32, "the class of a first evening"


def test_an_old_environment_gets_todays_interface():
    code = re.search(r"^class Modern.*?^```", PAGE, re.M | re.S)
    assert code
    names = {"gym": gym, "spaces": spaces}
    exec(code[0].removesuffix("```"), names)

    class Old:
        observation_space, action_space = ROW, spaces.Discrete(2)
        late = False

        def seed(self, seed):
            self.seeded = seed

        def reset(self):
            return np.zeros(2, np.float32)

        def step(self, action):
            late = {"TimeLimit.truncated": True} if self.late else {}
            return np.zeros(2, np.float32), 1.0, True, late

    old = Old()
    env = names["Modern"](old)
    obs, infos = env.reset(seed=3)
    assert (obs.shape, infos, old.seeded) == ((2,), {}, 3)
    assert env.step(0)[2:4] == (True, False)
    old.late = True
    assert env.step(0)[2:4] == (False, True)


def test_the_steps_between_checkpoints_are_those_of_the_page():
    said = "6,400 steps by default and 1,600 with the settings of CartPole, A2C and DQN"
    assert f"{said} 2,500" in " ".join(PAGE.split())
    dqn = dqn_settings("")
    interval = dqn.rounds * dqn.rollout_len * dqn.checkpoint_interval
    steps = [x.num_steps * x.checkpoint_interval for x in (PPOConfig(), A2CConfig())]
    cartpole = ppo_settings("CartPole-v1")
    assert [*steps, interval] == [6_400, 2_500, 2_500]
    assert cartpole.num_steps * cartpole.checkpoint_interval == 1_600


def test_every_refusal_of_the_page_is_tried():
    begun = [next(x for x in REFUSALS if quoted.startswith(x)) for quoted in QUOTED]
    assert begun == list(REFUSALS)


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_refusal_is_raised_word_for_word(quoted):
    refuse = next(x for begin, x in REFUSALS.items() if quoted.startswith(begin))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Gymnasium says beside
        words = "env .* had no end|env has masks|no episode ended"
        warnings.filterwarnings("error", words, UserWarning)
        with pytest.raises((ValueError, TypeError, KeyError, UserWarning)) as refusal:
            refuse()
    pattern = ".*".join(re.escape(part) for part in quoted.split("…"))
    # What the environment has raised is quoted by a note.
    said = [str(refusal.value), *getattr(refusal.value, "__notes__", [])]
    assert any(re.match(pattern, " ".join(words.split())) for words in said), said

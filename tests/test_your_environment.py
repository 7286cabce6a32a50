"""The page on an environment of one's own: its program, and the refusals it quotes."""

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from worlds import LIST, ROW, ZEROS, Answers

from literate_rl import evaluate, train
from literate_rl.data.agents import make_envs

PAGE = (Path(__file__).parents[1] / "docs/your_environment.md").read_text("utf-8")
# The first column of tables that quote messages.
QUOTED = re.findall(
    r"^\| `(.*?)` \|", PAGE.partition("\n## What a refusal means\n")[2], re.M
)


class Masked(Answers):
    """An environment with masks in a method."""

    def action_masks(self):
        return [True, False]


def trained(algorithm="PPO", **world):
    """Train in a world that is registered for it."""
    gym.register("Odd-v0", entry_point=Answers, kwargs=world)
    try:
        train(algorithm, "Odd-v0", total_steps=256, progress=False)
    finally:
        del gym.registry["Odd-v0"]


def stepped(**world):
    """Take a step in a world that has no name, so that no wrapper sees it first."""
    envs = make_envs(lambda: Answers(**world), 1)
    envs.reset()
    envs.step(np.zeros(1, int))


def endless():
    """Evaluate where no episode ends."""
    policy = train("PPO", "CartPole-v1", total_steps=16, progress=False).policy
    evaluate(policy, "CartPole-v1", episodes=1, max_episode_steps=1)


FREE = spaces.Box(-np.inf, np.inf, (1,))
BOTH = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,))))
TEXT = spaces.Dict(row=ROW, words=spaces.Sequence(spaces.Discrete(2)))
OLD = ZEROS, 1.0, False, {}
LATE = ZEROS, 0.0, False, False, {"action_mask": np.ones(2, np.int8)}
ONE = Answers()


def masked(mask):
    """Begin with a mask."""
    return ZEROS, {"action_mask": np.array(mask, np.int8)}


# A call, or the world in which PPO trains.
REFUSALS = {
    "env … cannot be made": lambda: train("PPO", "Rome-v0"),
    "env must be an id": lambda: train("PPO", Answers(), progress=False),
    "env must make a new": lambda: make_envs(lambda: ONE, 2),
    "env … must have a Space": lambda: train(
        "PPO", lambda: Answers(space=None), progress=False
    ),
    "env … failed in reset: it must": lambda: stepped(start=ZEROS),
    "env … failed in step: it must": lambda: stepped(answer=OLD),
    "env … failed in step: ValueError": {"answer": OLD},
    "env … failed in …: obs must have shape": {"start": (np.zeros(1), {})},
    "env … failed in …: obs must hold numbers": {"start": (np.array(["a"] * 2), {})},
    "env … failed in …: obs must hold … like": {
        "space": spaces.Box(0, 255, (2,), np.uint8),
        "start": (np.full(2, 0.9), {}),
    },
    "env … failed in …: obs must have …": lambda: stepped(
        space=spaces.Dict(row=ROW, more=ROW), start=({"row": ZEROS}, {})
    ),
    "env … failed in step: reward": {"answer": (ZEROS, np.ones(1), True, False, {})},
    "env … failed in step: terminated": {"answer": (ZEROS, 1.0, None, False, {})},
    "env … failed in …: infos must": lambda: stepped(start=(ZEROS, None)),
    "env … failed in step: KeyError": {"answer": KeyError("pressure")},
    "reward of environment": {"answer": (ZEROS, np.nan, True, False, {})},
    "env must have observations": {"space": TEXT},
    "…'s action_space must be": lambda: trained("DQN", actions=FREE),
    "…'s action_space must have bounds": lambda: trained("SAC", actions=FREE),
    "…'s mask must be given": {"actions": BOTH},
    "env … failed in …: infos['action_mask']": {"start": masked([1, 1, 1])},
    "infos must have action_mask": {"answer": LATE},
    "action_mask must leave": {"start": masked([0, 0])},
    'infos["action_mask"] and mask': lambda: trained("TD3", start=masked([1, 1])),
    "algorithm must be one of": lambda: train("PPOO", "CartPole-v1"),
    "env …: … of … episodes had": endless,
    "no episode ended within": lambda: train(
        "PPO",
        lambda: Answers(answer=(ZEROS, 1.0, False, False, {})),
        num_steps=8,
        total_steps=128,
        checkpoint_interval=1,
    ),
    "env has masks in": lambda: train("PPO", Masked, total_steps=16, progress=False),
}


def test_the_program_of_the_page_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S))
    names = {"__name__": "page"}
    exec(compile(program, "docs/your_environment.md", "exec"), names)
    assert names["chance"] < 0
    assert 70 < names["thermostat"] < 80
    assert names["returns"].mean() > 60
    assert (tmp_path / "my_room" / "checkpoint.pt").exists()


def test_an_old_environment_gets_todays_interface():
    code = re.search(r"^class Modern.*?(?=^```)", PAGE, re.M | re.S)
    exec(code[0], names := dict(globals()))
    seeds, late = [], {}
    old = SimpleNamespace(
        observation_space=ROW,
        action_space=LIST,
        seed=seeds.append,
        reset=lambda: ZEROS,
        step=lambda action: (ZEROS, 1.0, True, late),
    )
    env = names["Modern"](old)
    obs, infos = env.reset(seed=3)
    assert (obs.shape, infos, seeds) == ((2,), {}, [3])
    assert env.step(0)[2:4] == (True, False)
    late["TimeLimit.truncated"] = True
    assert env.step(0)[2:4] == (False, True)


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
            trained(**refuse) if isinstance(refuse, dict) else refuse()
    pattern = ".*".join(re.escape(part) for part in quoted.split("…"))
    # What the environment has raised is quoted by a note.
    said = [str(refusal.value), *getattr(refusal.value, "__notes__", [])]
    assert any(re.match(pattern, " ".join(words.split())) for words in said), said

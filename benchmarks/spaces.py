"""Which agent trains in which spaces: the product of all of them, an update each.

``python -m benchmarks.spaces`` takes some minutes and stores the table that the page on
spaces shows. A pair that has trained before and does not any more is an error, and
nothing is stored.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.harness import provenance
from benchmarks.store import RESULTS, read_table, write_table
from literate_rl.apps.training import ALGORITHMS, ended, make_learner
from literate_rl.ground.nests import REASONS, SpaceError
from literate_rl.runs.evaluation import evaluate

PATH = RESULTS / "spaces.csv"
COMMAND = "python -m benchmarks.spaces"
TRAINS = "trains"

LARGEST = {x: float(np.finfo(x).max) for x in (np.float16, np.float32, np.float64)}
# What numbers of a kind (boolean, integer, float) are not shown, whatever bounds say.
HUGE = {"b": 2, "i": 2**60, "u": 2**60, "f": 4.0}
BOX = spaces.Box(-1, 1, (3,))
SEEN: dict[str, spaces.Space[Any]] = {
    "float32": BOX,
    "float64": spaces.Box(-1, 1, (3,), np.float64),
    "float16": spaces.Box(-1, 1, (3,), np.float16),
    "unbounded": spaces.Box(-np.inf, np.inf, (3,)),
    "largest": spaces.Box(-LARGEST[np.float32], LARGEST[np.float32], (3,)),
    "largest float64": spaces.Box(
        -LARGEST[np.float64], LARGEST[np.float64], (3,), np.float64
    ),
    "equal bounds": spaces.Box(1, 1, (3,)),
    "zero width": spaces.Box(-1, 1, (0,)),
    "number": spaces.Box(-1, 1, ()),
    "table": spaces.Box(-1, 1, (2, 3)),
    "int8": spaces.Box(-100, 100, (3,), np.int8),
    "uint16": spaces.Box(0, 60_000, (3,), np.uint16),
    "uint32": spaces.Box(2**32 - 4, 2**32 - 1, (3,), np.uint32),
    "seconds": spaces.Box(1_700_000_000, 1_800_000_000, (3,), np.int64),
    "int64": spaces.Box(-(2**62), 2**62, (3,), np.int64),
    "bytes": spaces.Box(0, 255, (3,), np.uint8),
    "flags": spaces.Box(0, 1, (3,), np.bool_),
    "Discrete": spaces.Discrete(3),
    "Discrete(1)": spaces.Discrete(1),
    "Discrete, start": spaces.Discrete(3, start=-1),
    "MultiBinary": spaces.MultiBinary(3),
    "MultiBinary, table": spaces.MultiBinary((2, 3)),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiDiscrete, table": spaces.MultiDiscrete([[2, 3]], start=[[-1, 4]]),
    "Tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
    "Dict": spaces.Dict({"a": spaces.MultiBinary(2), "b": spaces.Discrete(2)}),
    "Dict in a Dict": spaces.Dict(a=spaces.Dict(b=BOX), c=spaces.Box(-1, 1, ())),
    "picture": spaces.Box(0, 255, (10, 10, 2), np.uint8),
    "planes": spaces.Box(0, 1, (4, 6, 7), np.bool_),
    "gray": spaces.Box(0, 255, (6, 6), np.uint8),
    "stack": spaces.Box(0, 1, (2, 5, 5, 3)),
    "large picture": spaces.Box(0, 255, (3, 36, 36), np.uint8),
    "parts": spaces.Dict(
        camera=spaces.Box(0, 255, (6, 6, 3), np.uint8),
        body=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=1))),
        keys=spaces.MultiBinary(2),
    ),
    "number beside a picture": spaces.Dict(
        a=spaces.Tuple((spaces.Box(-1, 1, ()), spaces.Box(0, 1, (), np.int8))),
        b=spaces.Box(0, 255, (6, 6, 3), np.uint8),
    ),
    "picture of no size": spaces.Dict(a=spaces.Box(0, 255, (0, 6, 6), np.uint8), b=BOX),
    "nothing": spaces.Dict({}),
    "nothing in a Dict": spaces.Dict(a=spaces.Dict({}), b=BOX),
    "Text": spaces.Text(5),
    "Text among others": spaces.Dict(a=BOX, b=spaces.Text(5)),
    "Text beside a picture": spaces.Dict(
        a=spaces.Box(0, 255, (6, 6, 3), np.uint8), b=spaces.Text(5)
    ),
    "Sequence": spaces.Sequence(BOX),
    "Graph": spaces.Graph(BOX, None),
    "OneOf": spaces.OneOf((spaces.Discrete(2), BOX)),
}
NARROW = {"low": np.array([-0.1, 0.1]), "high": np.array([0.1, 0.3])}
DONE: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(3),
    "Discrete(1)": spaces.Discrete(1),
    "Discrete, start": spaces.Discrete(3, start=5),
    "Box": spaces.Box(np.float32([-2, 0.1]), np.float32([2, 0.3])),
    "float64": spaces.Box(**NARROW, dtype=np.float64),
    "float16": spaces.Box(-60_000, 60_000, (2,), np.float16),
    "narrow": spaces.Box(-0.1, 0.1, (2,), np.float16),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "half bounded": spaces.Box(0, np.inf, (2,)),
    "largest": spaces.Box(-LARGEST[np.float32], LARGEST[np.float32], (2,)),
    "largest float16": spaces.Box(
        -LARGEST[np.float16], LARGEST[np.float16], (2,), np.float16
    ),
    "largest float64": spaces.Box(
        -LARGEST[np.float64], LARGEST[np.float64], (2,), np.float64
    ),
    "half largest": spaces.Box(0, LARGEST[np.float32], (2,)),
    "huge": spaces.Box(-1e30, 1e30, (2,)),
    "equal bounds": spaces.Box(np.float32([1, -1]), np.float32([1, 1])),
    "integers": spaces.Box(0, 5, (2,), np.int64),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
    "flags": spaces.Box(0, 1, (2,), np.bool_),
    "zero width": spaces.Box(-1, 1, (0,)),
    "number": spaces.Box(-1, 1, ()),
    "table": spaces.Box(-1, 1, (2, 2)),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiDiscrete, table": spaces.MultiDiscrete([[2, 3]], start=[[-1, 4]]),
    "MultiDiscrete, none": spaces.MultiDiscrete([]),
    "MultiBinary": spaces.MultiBinary(2),
    "MultiBinary, table": spaces.MultiBinary((2, 3)),
    "Tuple of choices": spaces.Tuple((spaces.Discrete(3, start=1), spaces.Discrete(2))),
    "Dict of choices": spaces.Dict(
        a=spaces.MultiBinary(2), b=spaces.Dict(c=spaces.MultiDiscrete([2, 3]))
    ),
    "hybrid": spaces.Tuple(
        (
            spaces.Discrete(3, start=1),
            spaces.Tuple([spaces.Box(-2, 0.1, (size,)) for size in (1, 2, 0)]),
        )
    ),
    "hybrid, no mask": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
    "boxes": spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (1,))),
    "nothing": spaces.Tuple(()),
    "Text": spaces.Text(5),
    "Sequence": spaces.Sequence(spaces.Discrete(2)),
    "Graph": spaces.Graph(BOX, None),
    "OneOf": spaces.OneOf((spaces.Discrete(2), BOX)),
}
USUAL_OBSERVATION = "float32"
# What each agent is tried with first.
USUAL_ACTION = dict.fromkeys(ALGORITHMS, "Discrete")
USUAL_ACTION |= dict.fromkeys(
    ("ddpg", "ddpgper", "hddpg", "td3", "sac", "ddpgapex"), "Box"
)


class Sampled(gym.Env[Any, Any]):
    """Shows samples of its space, of a bearable size, and holds actions to theirs."""

    def __init__(
        self, seen: spaces.Space[Any], done: spaces.Space[Any], **_: Any
    ) -> None:
        self.observation_space = copy.deepcopy(seen)
        self.action_space = copy.deepcopy(done)
        self.shown: spaces.Space[Any] = self.observation_space
        # No environment shows the largest numbers of a dtype, whatever its bounds say.
        if isinstance(seen, spaces.Box) and (seen.high >= HUGE[seen.dtype.kind]).any():
            low, high = (
                x.clip(-3, 3).astype(seen.dtype) for x in (seen.low, seen.high)
            )
            self.shown = spaces.Box(low, high, seen.shape, seen.dtype.type)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None:  # without one the samples go on
            self.shown.seed(seed)
        return self.shown.sample(), {}

    def step(self, action: Any) -> Any:
        """Refuse an action of another space; all else is chance."""
        assert self.action_space.contains(action), action
        over = bool(self.np_random.random() < 0.2)
        return self.shown.sample(), float(self.np_random.normal()), over, False, {}


# The shortest iteration with an update in it.
SMALL: dict[str, Any] = {
    "total_steps": 64, "num_envs": 2,
    "rollout_len": 4, "num_minibatches": 1, "num_epochs": 1, "aux_interval": 1,
    "aux_epochs": 1, "batch_size": 4, "learning_starts": 4, "train_interval": 2,
    "iteration_steps": 8, "hidden": 8, "buffer_size": 64,
}  # fmt: skip
FEW_STEPS = ("ppo", "ppg", "a2c", "a3c", "impala")


@contextmanager
def small_learner(
    name: str, env: Any, config: Any = None, **models: Any
) -> Iterator[Any]:
    """Make a learner whose first iteration is short, and close what it has opened."""
    known = ALGORITHMS[name]
    config = config or known.settings(env if isinstance(env, str) else "")
    given = {field.name for field in fields(config)}
    small = {key: x for key, x in SMALL.items() if key in given}
    if name in FEW_STEPS:
        small["num_steps"] = 4
    learner = make_learner(name, env, replace(config, **small), models, check=False)
    with ended(learner):
        yield learner


def train_a_little(learner: Any) -> None:
    """Run an iteration, and look at what has become of the weights."""
    before = [p.detach().clone() for p in learner.policy.parameters()]
    metrics = learner.iterate()
    assert all(math.isfinite(x) for k, x in metrics.items() if k.startswith("losses/"))
    after = list(learner.policy.parameters())
    assert any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert all(p.isfinite().all() and p.dtype == torch.float32 for p in after)


def outcome(name: str, seen: str, done: str) -> str:
    """Train an agent a little in a pair of spaces, or return why it refuses."""
    env = partial(Sampled, SEEN[seen], DONE[done])
    try:
        with small_learner(name, env) as learner:
            train_a_little(learner)
            evaluate(learner.policy, env, 1)
    except SpaceError as error:
        (reason,) = [key for key, words in REASONS.items() if words in str(error)]
        return reason
    except Exception as error:
        error.add_note(f"{name}, {seen}, {done}")
        raise
    return TRAINS


def product() -> Iterator[list[str]]:
    """Yield a row of the table for each agent and observation, a column an action."""
    for name in ALGORITHMS:
        for seen in SEEN:
            yield [name, seen, *(outcome(name, seen, done) for done in DONE)]
        print(name, flush=True)


def stored() -> dict[tuple[str, str, str], str]:
    """Return what became of each agent, observation and action when it was stored."""
    rows, _ = read_table(PATH)
    return {
        (row["agent"], row["observation"], done): row[done]
        for row in rows
        for done in list(row)[2:]
    }


def main() -> None:
    """Try all pairs and store the table, unless a pair does not train any more."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    columns, rows = ["agent", "observation", *DONE], list(product())
    found = {
        (name, seen, done): result
        for name, seen, *results in rows
        for done, result in zip(DONE, results, strict=True)
    }
    before = stored() if PATH.exists() else {}
    lost = [x for x, was in before.items() if was == TRAINS != found.get(x)]
    if lost:
        sys.exit("these have trained before: " + "; ".join(map(", ".join, lost)))
    write_table(PATH, columns, rows, provenance(COMMAND, "gymnasium"))


if __name__ == "__main__":
    main()

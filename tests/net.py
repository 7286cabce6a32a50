"""A net under refactorings: what short trainings with one seed come to.

Each learner is built as ``train`` builds it, and trains for some twenty updates. Then
all that it holds is boiled down to a few numbers: metrics, weights, and what a resumed
run needs (target, optimiser, buffer, random numbers). The numbers were recorded once.
Where a refactoring changes what is drawn or computed, they change. Each training runs
twice: with the fast forms, and with the plain ones.

The tests allow for another processor's rounding, which twenty updates can bear and a
thousand cannot. So the long form compares bits, on one machine: ``python tests/net.py
digests FILE`` before a refactoring and again behind it, which tells what has changed;
``digests FILE PPO A3C`` takes the trainings whose names begin so.
``python tests/net.py record`` writes the numbers of the tests anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from literate_rl.apps.training import ALGORITHMS, make_learner
from literate_rl.data.agents import seed_everything

RECORD = Path(__file__).with_name("net.json")
CARTPOLE, PENDULUM, MOVING = "CartPole-v1", "Pendulum-v1", "literate_rl/Moving-v0"
# The long form has so many times the iterations.
LONG = 50
METRIC = "metric "  # what the name of a part begins with that is one


class Case(NamedTuple):
    """A training.

    Attributes:
        algorithm: What trains.
        env: Where.
        iterations: After how many there have been twenty updates or more.
        changes: Settings that differ from those of ``SMALL``.
    """

    algorithm: str
    env: str
    iterations: int
    changes: dict[str, Any] = {}


ROLLOUTS = {"num_steps": 16, "num_envs": 4, "learning_rate": 1e-3}
PPO_SETTINGS = {**ROLLOUTS, "num_minibatches": 2, "checkpoint_interval": 5}
UNROLLS = {"num_steps": 16, "num_envs": 4, "batch_size": 4, "learning_rate": 1e-3}
MEMORY = {
    "hidden": 16,
    "num_envs": 2,
    "batch_size": 16,
    "num_steps": 2,
    "train_interval": 2,
    "learning_starts": 40,
    "iteration_steps": 20,
    "buffer_size": 300,
    "learning_rate": 1e-3,
    "total_steps": 2000,
    "checkpoint_interval": 3,
}
EXPLORING = {**MEMORY, "epsilon_steps": 200}
APEX = {**EXPLORING, "actors": 2, "rollout_len": 5}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": PPO_SETTINGS,
    "ppg": PPO_SETTINGS | {"aux_interval": 2},
    "impala": UNROLLS,
    "a2c": ROLLOUTS,
    "a3c": ROLLOUTS,
    "sac": MEMORY,
    **dict.fromkeys(("dqn", "rainbow", "ddpg", "hddpg", "td3"), EXPLORING),
    **dict.fromkeys(("dqnapex", "rainbowapex", "ddpgapex"), APEX),
}

CASES = {
    "PPO": Case("ppo", CARTPOLE, 3),
    "PPO, Gaussian": Case("ppo", PENDULUM, 3),
    "PPO, hybrid": Case("ppo", MOVING, 3),
    "PPG, two encoders": Case("ppg", CARTPOLE, 4, {"share_encoder": False}),
    "PPG, one encoder": Case("ppg", CARTPOLE, 4, {"share_encoder": True}),
    "PPG, Gaussian": Case("ppg", PENDULUM, 4),
    "PPG, hybrid": Case("ppg", MOVING, 4),
    "IMPALA": Case("impala", CARTPOLE, 20),
    "IMPALA, lag 2": Case("impala", CARTPOLE, 20, {"lag": 2}),
    "IMPALA, Gaussian": Case("impala", PENDULUM, 20, {"reward_scale": 0.01}),
    "IMPALA, actors": Case("impala", CARTPOLE, 20, {"actors": 2}),
    "A2C": Case("a2c", CARTPOLE, 20),
    "A2C, Gaussian": Case("a2c", PENDULUM, 20),
    "A3C": Case("a3c", CARTPOLE, 20),
    "DQN": Case("dqn", CARTPOLE, 4, {"dueling": True, "tau": 0.02}),
    "DQN, priorities": Case(
        "dqn",
        CARTPOLE,
        4,
        {"priority_exponent": 0.6, "double": False, "anneal": True},
    ),
    "DQN, copies": Case("dqn", CARTPOLE, 4, {"target_interval": 7, "tau": 1.0}),
    "Rainbow": Case("rainbow", CARTPOLE, 4),
    "Rainbow, values": Case(
        "rainbow", CARTPOLE, 4, {"num_atoms": 1, "noisy": False, "dueling": False}
    ),
    "DDPG": Case("ddpg", PENDULUM, 4),
    "DDPG, priorities": Case("ddpg", PENDULUM, 4, {"priority_exponent": 0.6}),
    "DDPG, discrete": Case("ddpg", CARTPOLE, 4),
    "HDDPG": Case("hddpg", PENDULUM, 4),
    "TD3": Case("td3", PENDULUM, 4),
    "TD3, clipped": Case("td3", PENDULUM, 4, {"max_grad_norm": 0.5, "num_critics": 3}),
    "SAC": Case("sac", PENDULUM, 4),
    "SAC, fixed": Case("sac", PENDULUM, 4, {"tune": False, "hold": 3}),
    "SAC, discrete": Case("sac", CARTPOLE, 4, {"target_entropy": 0.1}),
    "Ape-X DQN": Case("dqnapex", CARTPOLE, 8),
    "Ape-X Rainbow": Case("rainbowapex", CARTPOLE, 8),
    "Ape-X DDPG": Case("ddpgapex", PENDULUM, 8),
}
NAMES = [f"{name}, {form}" for name in CASES for form in ("fast", "plain")]


def leaves(tree: Any) -> Iterator[Tensor]:
    """Go through the numbers of a state, in any order."""
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for part in tree:
            yield from leaves(part)
    elif isinstance(tree, Tensor | np.ndarray | int | float):
        yield torch.as_tensor(tree)


def parts_of(learner: Any, metrics: dict[str, float]) -> dict[str, list[Tensor]]:
    """Return all that a learner holds, in parts."""
    state = learner.state_dict()
    state |= state.pop("learner", {})  # what a learner with actors keeps
    told = {METRIC + name: number for name, number in metrics.items()}
    whole = {**told, "policy": learner.policy.state_dict(), **state}
    return {name: list(leaves(part)) for name, part in whole.items()}


def compared(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return the parts to compare: all, but for metrics that one side does not have."""
    return sorted(
        name
        for name in {*before} | {*now}
        if not name.startswith(METRIC) or (name in before and name in now)
    )


def play(name: str, times: int = 1) -> dict[str, list[Tensor]]:
    """Train what a name says and return what the learner holds then."""
    name, form = name.rsplit(", ", 1)
    algorithm, env, iterations, changes = CASES[name]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seed_everything(1)
        config = ALGORITHMS[algorithm].settings(env)
        config = replace(config, **SMALL[algorithm], **changes)
        fast = "auto" if form == "fast" else "plain"
        return trained(algorithm, env, config, iterations * times, fast)
    finally:
        torch.set_num_threads(threads)


def trained(
    algorithm: str, env: str, config: Any, iterations: int, fast: Any
) -> dict[str, list[Tensor]]:
    learner: Any = make_learner(algorithm, env, config, {}, fast=fast)
    for _ in range(iterations):
        metrics = learner.iterate()
    parts = parts_of(learner, metrics)
    if hasattr(learner, "close"):
        learner.close()
    return parts


def boil_down(tensors: Iterable[Tensor]) -> list[float]:
    """Return three numbers of tensors, whose order and names play no role."""
    result = np.zeros(3)
    for tensor in tensors:
        x = tensor.detach().double().flatten().nan_to_num()
        weight = torch.cos(torch.arange(len(x), dtype=torch.float64))
        result += len(x), x.sum().item(), (weight * x).sum().item()
    return [float(f"{x:.9g}") for x in result]


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a digest that changes with each bit, in whatever order they come."""
    each = sorted(
        repr((x.dtype, tuple(x.shape))).encode() + x.detach().numpy().tobytes()
        for x in tensors
    )
    return hashlib.sha256(b"".join(each)).hexdigest()[:16]


def digests(file: Path, beginnings: tuple[str, ...]) -> int:
    """Write the long form's digests, or compare them with those in a file."""
    now = {}
    for name in (name for name in NAMES if name.startswith(beginnings)):
        now[name] = {k: digest(x) for k, x in play(name, LONG).items()}
        print(".", end="", flush=True)
    print()
    if not file.exists():
        file.write_text(json.dumps(now, indent=0) + "\n")
        return 0
    before, changed = json.loads(file.read_text()), 0
    for name, parts in now.items():
        was = before.get(name, {})
        differ = [k for k in compared(was, parts) if was.get(k) != parts.get(k)]
        changed += bool(differ)
        if differ:
            print(f"{name}: {', '.join(differ)}")
    print(f"{changed} of {len(now)} have changed")
    return changed


def main() -> int:
    if sys.argv[1:2] == ["digests"]:
        return digests(Path(sys.argv[2]), tuple(sys.argv[3:] or [""]))
    numbers = {name: {k: boil_down(x) for k, x in play(name).items()} for name in NAMES}
    RECORD.write_text(json.dumps(numbers, indent=0) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

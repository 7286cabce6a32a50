"""Small runs that an old version wrote, and how; ``tests/runs`` holds what it left.

Who has trained for a week may load, watch and resume that run with any later version.
The runs of ``tests/runs`` are from commit 4cb5828, written by its own code:

    git worktree add --detach ../old 4cb5828
    PYTHONPATH=../old/src python tests/old_runs.py

A directory is as ``kill -9`` leaves it: its checkpoint is the last but one, its table
goes on behind it. TensorBoard's events are left out: they are written, never read.
``answers.json`` has what the policies of that commit, loaded by it, said about two
observations. Nothing of this is written anew: what has another version's form comes
beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from literate_rl import (
    IMPALA,
    PPO,
    IMPALAConfig,
    PPGAlgorithm,
    PPGConfig,
    PPOConfig,
    Run,
    fit,
    flat_env,
    load,
    make_envs,
    make_hybrid_policy,
    make_phasic_policy,
    make_policy,
    seed_everything,
)
from literate_rl.apps.cli import main
from literate_rl.book.contract_models import (
    ActionValue,
    CategoricalActor,
    DeterministicActor,
    QNetwork,
    SquashedGaussianActor,
    StateValue,
)

RUNS = Path(__file__).with_name("runs")

# Models of one's own, as small as they can be. Their names stand in `settings.json`.


class Values(QNetwork):
    def __init__(self) -> None:
        super().__init__(4, 2)
        self.net = nn.Linear(4, 2)


class Chooser(CategoricalActor):
    def __init__(self) -> None:
        super().__init__(4, 2)
        self.net = nn.Linear(4, 2)


class Judge(StateValue):
    def __init__(self) -> None:
        super().__init__(4)
        self.net = nn.Linear(4, 1)


class Pusher(DeterministicActor):
    def __init__(self) -> None:
        super().__init__(3, [-2.0], [2.0])
        self.net = nn.Linear(3, 1)


class Drawer(SquashedGaussianActor):
    def __init__(self) -> None:
        super().__init__(3, [-2.0], [2.0])
        self.net = nn.Linear(3, 2)


class ActionJudge(ActionValue):
    def __init__(self) -> None:
        super().__init__(3, 1)
        self.net = nn.Linear(4, 1)


# 16 of 32 steps are in the checkpoint. All that a learner keeps has a use behind it:
# targets move with every second update, rings have gone round, gradients are compared
# with their usual norm.
STEPS = ["--total-steps=32", "--checkpoint-interval=2"]
ON = [*STEPS, "--num-envs=2", "--num-steps=4"]
OFF = [*STEPS, "--num-envs=2", "--hidden=4", "--num-steps=2", "--batch-size=4"]
OFF += ["--train-interval=2", "--learning-starts=8", "--buffer-size=12"]
OFF += ["--target-interval=2", "--log-interval=8"]
ACTORS = ["--actors=1", "--transport=in_process", "--slots=1"]
APEX = [*OFF, *ACTORS, "--rollout-len=4"]
ATOMS = ["--num-atoms=5"]
PENDULUM = ["--env=Pendulum-v1"]
OWN = ["--actor=old_runs:Chooser", "--critic=old_runs:Judge"]

COMMANDS = {
    "dqn": ["dqn", *OFF],
    "dqnper": ["dqnper", *OFF],
    "dqnapex": ["dqnapex", *APEX],
    "rainbow": ["rainbow", *OFF, *ATOMS],
    "rainbowapex": ["rainbowapex", *APEX, *ATOMS],
    "ddpg": ["ddpg", *PENDULUM, *OFF],
    "ddpgper": ["ddpgper", *OFF],
    "ddpgapex": ["ddpgapex", *PENDULUM, *APEX],
    "hddpg": ["hddpg", *PENDULUM, *OFF],
    "td3": ["td3", *PENDULUM, *OFF],
    "sac": ["sac", *PENDULUM, *OFF],
    "sac_discrete": ["sac", *OFF],
    "own_dqn": ["dqn", *OFF, "--qnet=old_runs:Values"],
    "own_ddpg": [
        *("ddpg", *PENDULUM, *OFF),
        *("--actor=old_runs:Pusher", "--critic=old_runs:ActionJudge"),
    ],
    "own_sac": [
        *("sac", *PENDULUM, *OFF),
        *("--actor=old_runs:Drawer", "--critic=old_runs:ActionJudge"),
    ],
    "own_ppo": ["ppo", *ON, *OWN, "--num-minibatches=2", "--scale-reward"],
    "own_a2c": ["a2c", *ON, *OWN, "--decay=0.9", "--epsilon=0.01"],
    "own_a3c": ["a3c", *ON, *OWN, *ACTORS, "--decay=0.9", "--epsilon=0.01"],
    "own_impala": [
        *("impala", *STEPS, *OWN, *ACTORS, "--unroll-len=4", "--n-sample=2"),
        *("--batch-size=2", "--optim=rmsprop"),
        *("--grad-clip-type=clip_momentum_norm", "--clip-value=0.5"),
    ],
}

# The networks that the command line gives these have 64 units a layer, 100 KB a run.
# Small ones are built as the chapters build theirs.
CARTPOLE, MOVING = "CartPole-v1", "literate_rl/Moving-v0"
SMALL = {"num_envs": 2, "num_steps": 4, "num_minibatches": 2, "scale_reward": True}
SAMPLES = {"num_envs": 2, "num_steps": 4, "batch_size": 2, "replay_buffer_size": 4}
SAMPLES |= {"grad_clip_type": "clip_momentum_norm", "clip_value": 0.5}


def spaces_of(envs: Any) -> tuple[Any, Any]:
    return envs.single_observation_space, envs.single_action_space


def built_ppo(env: str, make: Callable[..., Any], normalize: bool) -> PPO:
    config = PPOConfig(
        total_steps=32, checkpoint_interval=2, normalize_obs=normalize, **SMALL
    )
    envs = make_envs(partial(flat_env, env), config.num_envs)
    return PPO(make(*spaces_of(envs), hidden=4, normalize=normalize), envs, config)


def built_ppg() -> PPGAlgorithm:
    config = PPGConfig(total_steps=48, checkpoint_interval=3, aux_interval=2, **SMALL)
    envs = make_envs(partial(flat_env, CARTPOLE), config.num_envs)
    policy = make_phasic_policy(*spaces_of(envs), hidden=4)
    return PPGAlgorithm(policy, envs, config)


def built_impala() -> IMPALA:
    config = IMPALAConfig(total_steps=32, checkpoint_interval=2, lag=3, **SAMPLES)
    envs = make_envs(partial(flat_env, CARTPOLE), config.num_envs)
    return IMPALA(make_policy(*spaces_of(envs), hidden=4), envs, config)


# Algorithm, environment, and what builds the learner.
BUILT: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "ppo": ("ppo", CARTPOLE, partial(built_ppo, CARTPOLE, make_policy, True)),
    "hybrid_ppo": (
        *("ppo", MOVING),
        partial(built_ppo, MOVING, make_hybrid_policy, False),
    ),
    "ppg": ("ppg", CARTPOLE, built_ppg),
    "impala": ("impala", CARTPOLE, built_impala),
}
NAMES = [*COMMANDS, *BUILT]


def settings_of(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((RUNS / name / "settings.json").read_text())
    return settings


def models_of(name: str) -> dict[str, Any]:
    """Return fresh models of one's own for ``load``."""
    models = settings_of(name)["models"].items()
    return {key: globals()[where.partition(":")[2]]() for key, where in models}


def answers(policy: Any, obs: Tensor) -> dict[str, list[Any]]:
    """Return what a policy says about observations, as far as it can."""
    questions = {
        "row": policy,
        "action": lambda obs: policy.act(obs, 0.0),
        "value": lambda obs: policy.value(obs),
    }
    told = {}
    for key, question in questions.items():
        # Not every network has a value, and not every policy a row.
        with torch.no_grad(), suppress(AttributeError, NotImplementedError):
            told[key] = question(obs).tolist()
    return told


def train(name: str) -> Path:
    """Let the code that is imported write a run; return its directory."""
    if name in COMMANDS:
        main([*COMMANDS[name], f"--name={name}"])
        return Path("runs") / name
    seed_everything(1)
    algorithm, env, build = BUILT[name]
    learner = build()
    settings = {"algorithm": algorithm, "env": env, "models": {}}
    settings["config"] = asdict(learner.config)
    with Run(Path("runs") / name, settings) as run:
        fit(learner, run, progress=False)
    return run.directory


def keep(source: Path, target: Path) -> None:
    """Copy a run without its last checkpoint."""
    target.mkdir(parents=True)
    for name in ("settings.json", "metrics.csv"):
        shutil.copy(source / name, target)
    shutil.copy(source / "checkpoint.previous.pt", target / "checkpoint.pt")


def write_all() -> None:
    """Write all runs and answers."""
    torch.set_num_threads(1)
    said = {}
    for name in NAMES:
        keep(train(name), RUNS / name)
        policy = load(RUNS / name, **models_of(name))
        with flat_env(settings_of(name)["env"]) as env:
            (size,) = env.observation_space.shape or ()
        obs = torch.linspace(-1, 1, 2 * size).reshape(2, size)
        said[name] = {"obs": obs.tolist(), **answers(policy, obs)}
    (RUNS / "answers.json").write_text(json.dumps(said) + "\n")


if __name__ == "__main__":
    if RUNS.exists():
        sys.exit(f"{RUNS} is there: remove it first")
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        write_all()

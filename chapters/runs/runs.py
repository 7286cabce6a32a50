# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Runs
#
# **How do we train an agent so that we can watch the run, stop it and repeat it?** A
# training run takes minutes or days. It will be interrupted, and somebody will ask with
# which settings it was made.
#
# Nobody has to read this to follow the book. In 30 minutes you can write a learner that
# all of the book's tools can drive: they show its progress, store its metrics, save it so
# that a killed run goes on to the same end, and film its policy.

# %% tags=["export", "hide-input"]
"""Runs: learners, metrics, checkpoints that resume, video, stored runs."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import math
import os
import pickle
import re
import shlex
import shutil
import sys
import threading
import time
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict, Unpack
from uuid import uuid4

import numpy as np
import torch
from filelock import FileLock, Timeout
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from literate_rl.data.agents import make_envs
from literate_rl.data.episodes import Mean
from literate_rl.data.makers import (
    Make,
    Wrapper,
    flat_env,
    known_env,
    make_wrapped,
    name_of_maker,
    unflattened,
    without_folder,
)
from literate_rl.ground.interrupts import StopWaiting, catch_interrupt
from literate_rl.ground.nests import as_space, plain_space
from literate_rl.ground.networks import randomness_kept
from literate_rl.ground.protocols import Learner, PolicyLike
from literate_rl.ground.rows import ALGORITHMS, ONCE, maker_named
from literate_rl.ground.signatures import Count, NotFiniteError, check_that, checked
from literate_rl.nets.encoders import OwnEncoder
from literate_rl.runs.evaluation import play

__all__ = [
    "OwnModels",
    "Run",
    "StoredRuns",
    "fit",
    "load",
    "load_checkpoint",
    "load_env",
    "record_video",
    "save_checkpoint",
    "show",
    "stored_runs",
    "video_html",
]

# %% [markdown]
# ## What every run has
#
# Algorithms differ in how they learn. What surrounds the learning is always the same, so
# we write it once. It deals with two kinds of object and knows them only by their
# methods.
#
# A **policy** acts. It is a function of the observation and of some *noise*, and only the
# noise makes it act differently each time. That pays twice. The noise of a whole rollout
# can be drawn in one call. And with a noise of zero the policy is *greedy*: it does what it
# thinks best.
#
# A **learner** owns a policy and improves it, one *iteration* at a time. An iteration
# takes some steps in the environments, learns from them and returns a dictionary of
# metrics.
#
# Neither needs to inherit from anything. A policy is an `nn.Module` with the methods
# `act(obs, noise)` and `to_env(action)`, and with a `recipe`: the name of the maker
# ({doc}`/chapters/ground/rows`) that builds it and its arguments, plain values, so that a checkpoint can build
# it again. What both have is written down in {doc}`/chapters/ground/protocols`.

# %% [markdown]
# A learner's settings are a frozen dataclass: a default for each, a place to document them,
# and nobody changes one while the run goes on. `@checked` above it ({doc}`/chapters/ground/signatures`) refuses a
# setting that makes no sense when the dataclass is made, and not after an hour.
#
# ## Environments
#
# Environments differ in what they show. To keep the policies simple, `flat_env`
# ({doc}`/chapters/data/makers`) gives each observation as one vector of numbers, and holds somebody else's
# environment to its interface before anything else is done with its answers.
#
# ## The smallest learner
#
# A *hill climber* adds random numbers to the weights of a linear policy, plays a few
# episodes, and keeps the new weights if they were no worse. There is no gradient and no
# hidden layer. It serves for the demonstrations below.

# %%
from dataclasses import asdict, dataclass

from torch import nn

from literate_rl.data.episodes import env_seed


@dataclass(frozen=True)
class ClimbConfig:
    seed: int = 0
    total_steps: int = 20_000
    episodes: int = 8
    deviation: float = 0.5
    checkpoint_interval: int = 5


class LinearPolicy(nn.Module):
    def __init__(self, obs_size, num_actions):
        super().__init__()
        self.recipe = ("", {})  # no function of the package builds it
        self.scores = nn.Linear(obs_size, num_actions)

    def act(self, obs, noise):
        return (self.scores(obs) + noise).argmax(-1)

    def to_env(self, action):
        return action.numpy()


@torch.no_grad()
def play_episodes(policy, env_id, number, seed):
    """Return the returns of some greedy episodes."""
    env, returns = flat_env(env_id), []
    obs, _ = env.reset(seed=seed)
    for _ in range(number):
        total, done = 0.0, False
        while not done:
            action = policy.to_env(policy.act(torch.from_numpy(obs), 0.0))
            obs, reward, terminated, truncated, _ = env.step(action)
            total, done = total + reward, terminated or truncated
        returns.append(total)
        obs, _ = env.reset()
    return returns


class HillClimber:
    def __init__(self, env, config):
        self.env, self.config = env, config
        self.policy = LinearPolicy(4, 2)
        for weight in self.policy.parameters():
            nn.init.zeros_(weight)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.step, self.iteration, self.best = 0, 0, -math.inf

    @property
    def checkpoint_due(self):
        return self.iteration % self.config.checkpoint_interval == 0

    def iterate(self):
        old = {k: v.clone() for k, v in self.policy.state_dict().items()}
        for weight in self.policy.parameters():
            noise = torch.randn(weight.shape, generator=self.generator)
            weight.data.add_(self.config.deviation * noise)
        seed = env_seed(self.config.seed, self.step)
        returns = play_episodes(self.policy, self.env, self.config.episodes, seed)
        mean = float(np.mean(returns))
        if mean < self.best:
            self.policy.load_state_dict(old)
        self.best = max(self.best, mean)
        self.step += int(sum(returns))  # in CartPole each step pays 1
        self.iteration += 1
        return {"charts/episodic_return": mean, "charts/best": self.best}

    def state_dict(self):
        return {
            "generator": self.generator.get_state(),
            "counters": [self.step, self.iteration, self.best],
        }

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.step, self.iteration, self.best = state["counters"]


# %% [markdown]
# ## The loop around the learner
#
# `fit` runs a learner to its end. It adds four things that have nothing to do with
# learning. It shows a progress bar with the mean return of the last 20 episodes, the speed and the
# time that is left. It hands the metrics to a run directory, which the next section builds.
# It saves the learner whenever a checkpoint is due. And it listens to Ctrl-C: the first
# one ends the run after the iteration that is under way, saves it, and says so, so that nothing is
# half done. A second one ends it at once ({doc}`/chapters/ground/interrupts`).
#
# The progress bar is that of `tqdm`, with two changes. `tqdm` guards its output with a lock
# that forked processes share. If one of them is killed while it writes, the lock is never
# released, and the others wait for ever. A lock for each process is enough here, because
# only the learner writes. And `tqdm` looks after slow bars from a second thread. Ours looks
# at the clock in each iteration instead.


# %% tags=["export"]
class Bar(tqdm):  # type: ignore[misc]
    """A progress bar that waits for no other process and needs no thread."""

    monitor_interval = 0  # no thread


Bar.set_lock(threading.RLock())


# %% [markdown]
# An iteration is a matter of training: noise is drawn and checkpoints are counted by it. How often one
# wants to read of it is another matter. A learner may have a property `log_due`, which says whether the
# last iteration completes a row of the log; without it, each one does. What was measured since the last
# row is gathered, and a row holds the means: of all returns, of all updates. So a mean has to say how
# much it counts ({doc}`/chapters/data/episodes`). A plain number counts once, and NaN not at all.


# %% tags=["export"]
class Log:
    """The rows of a log, each about all iterations since the row before.

    Args:
        run: Where rows and, at checkpoints, what is gathered are kept; or None.
        step: Steps taken so far.
    """

    def __init__(self, run: Run | None, step: int) -> None:
        self.run, self.step = run, step
        self.gathered = {} if run is None else run.gathered
        self.rows: list[dict[str, float]] = []

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Gather the metrics of an iteration, which ended at a step."""
        self.step = step
        for name, x in metrics.items():
            mean, weight = self.gathered.get(name, (0.0, 0.0))
            more = 0.0 if math.isnan(x) else float(getattr(x, "weight", 1.0))
            total = weight + more
            # What is the same stays so to the last bit, and infinity too.
            if more and x != mean:
                mean += (float(x) - mean) * (more / total)
            self.gathered[name] = mean, total

    def end_row(self) -> None:
        """Write a row, if anything has been gathered for it."""
        if not self.gathered:
            return
        row = {name: x if n else math.nan for name, (x, n) in self.gathered.items()}
        self.rows.append({"step": self.step, **row})
        if self.run is not None:
            self.run.log(self.step, row)
        self.gathered.clear()


Callback = Callable[[Learner, dict[str, float]], Any]


@checked
def fit(
    learner: Learner,
    run: Run | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> list[dict[str, float]]:
    """Run a learner until it has taken all of its steps, or until Ctrl-C.

    Args:
        learner: The learner, new or resumed.
        run: Where to keep metrics and checkpoints, or None to keep nothing.
        progress: Whether to show a progress bar.
        callback: Called after each iteration with the learner and its metrics, to which
            it may add. If it returns True, the run ends here.

    Returns:
        The rows of the log, each with the step at its end as ``"step"``.

    Raises:
        BlockingIOError: If another process writes to the directory of the run.
        ChildProcessError: If actors fail for good. The learner is saved before.
        ValueError: What the learner raises, for instance if a reward is not a number.
            The last checkpoint stays.
    """
    if run is not None:
        run.begin()  # better now than after the first iteration
    log = Log(run, learner.step)
    returns: deque[float] = deque(maxlen=20)
    total, stopped = learner.config.total_steps, False
    latest: dict[str, float] = {}
    bar = Bar(
        total=total,
        initial=learner.step,
        unit=" steps",
        disable=not progress,
        mininterval=0.5,
        miniters=1,
    )
    with bar, catch_interrupt() as interrupted:
        while learner.step < total and not (stopped or interrupted.is_set()):
            if run is not None and learner.checkpoint_due:
                run.save(learner)
            start, before = time.perf_counter(), learner.step
            try:
                metrics = learner.iterate()
            except StopWaiting:
                break
            except BaseException as error:
                keep_what_is_whole(error, learner, run, log)
                raise
            taken, seconds = learner.step - before, time.perf_counter() - start
            check_that(taken > 0, "iterate must take a step, or the run never ends")
            metrics["charts/SPS"] = Mean(taken / seconds, seconds)
            stopped = callback is not None and bool(callback(learner, metrics))
            log.add(learner.step, metrics)
            if getattr(learner, "log_due", True):
                log.end_row()
            # In many iterations no episode ends, and a mean of no return is NaN.
            mean = metrics.get("charts/episodic_return", math.nan)
            returns.extend(getattr(mean, "returns", [] if math.isnan(mean) else [mean]))
            # Most iterations have no evaluation: the last one stays in sight.
            latest |= {name: x for name, x in metrics.items() if math.isfinite(x)}
            bar.set_postfix(shown(latest, returns), refresh=False)
            bar.update(min(taken, total - bar.n))
        # Whether it is finished or interrupted: nothing that was learned is lost.
        log.end_row()
        if run is not None:
            run.save(learner)
    if learner.step < total:
        print(f"interrupted at step {learner.step} of {total}")
    return log.rows


def keep_what_is_whole(
    error: BaseException, learner: Learner, run: Run | None, log: Log
) -> None:
    """Keep what was learned and measured before an iteration failed."""
    if isinstance(error, NotFiniteError):
        error.add_note(
            f"the numbers exploded near step {learner.step}: try a third of "
            "learning_rate, or smaller rewards (scale_reward or reward_scale)"
        )
    if run is None:
        return
    others_failed = ChildProcessError in (type(error), type(error.__cause__))
    # What the last checkpoint has gathered is written by the run that goes on there.
    if others_failed or log.step > run.saved:
        log.end_row()
    if others_failed:
        run.save(learner)


def shown(metrics: dict[str, float], returns: Collection[float]) -> dict[str, str]:
    """Pick what the progress bar shows, with the mean of the last returns."""
    names = ["losses/approx_kl"]
    names += [
        f"charts/{x}" for x in ("eval_return", "actors", "queue", "lag", "replaced")
    ]
    found = {"return": math.fsum(returns) / len(returns)} if returns else {}
    found |= {x.partition("/")[2]: metrics[x] for x in names if x in metrics}
    return {name: f"{x:.3g}" for name, x in found.items()}


# %% [markdown]
# The hill climber tries CartPole, in which 500 is the highest return.

# %% mystnb={"image": {"alt": "Returns of the hill climber on CartPole over steps: single tries jump up and down between 10 and 460, and what was kept climbs in stairs to the highest of them"}}
import matplotlib.pyplot as plt

from literate_rl.runs.runs import Run  # further down on this page

climber = HillClimber("CartPole-v1", ClimbConfig(seed=3))
history = fit(climber, progress=False)

steps = [row["step"] for row in history]
fig, axis = plt.subplots(figsize=(7, 2.6))
axis.plot(steps, [row["charts/episodic_return"] for row in history], ".", label="a try")
axis.step(steps, [row["charts/best"] for row in history], where="post", label="kept")
axis.set(xlabel="steps", ylabel="return")
axis.legend()
fig.tight_layout()
print("mean of the episodes it was kept for:", climber.best)
returns = play_episodes(climber.policy, "CartPole-v1", 20, seed=1)
print("mean of 20 new episodes:", np.mean(returns))

# %% [markdown]
# **Notice** that what was kept is the best of many tries, each measured on eight episodes. It
# never falls, and it tends to promise too much, because a try can be lucky. A result has to
# come from *new* episodes, as in the last line ({doc}`/chapters/evaluation`).
#
# ## A directory for each run
#
# A run leaves files behind, in a directory of its own:
#
# | file | what it holds | who reads it |
# |---|---|---|
# | `settings.json` | all settings of the run | people, and `--resume` |
# | `metrics.csv` | the rows of the log | people, pandas, this book's figures |
# | `events.out.tfevents.…` | the same metrics | TensorBoard |
# | `checkpoint.pt` | everything that is needed to go on | `--resume`, `load` |
# | `checkpoint.previous.pt` | the checkpoint before that | you, if the last one is damaged |
# | `best.pt` | the policy that did best in its evaluations | `load(run, best=True)` |
# | `lock` | that somebody is writing here | every other process |
#
# The metrics have the names that CleanRL gave to them {cite:p}`huang2022cleanrl`, such as
# `charts/episodic_return` and `losses/approx_kl`, so that curves of both can be laid over
# each other.
#
# After a crash the directory may hold more metrics than the checkpoint knows of, and the
# last line may be cut in two. A run that resumes removes the rows behind its checkpoint,
# because it is going to write them again.
#
# Removing is dangerous, so it comes last. `Run(…, resume=True)` only reads. The checkpoint must be
# whole, and it says how many rows were written before it, so a table that
# has lost some does not pass. Then `restore` asks
# whether the checkpoint fits the learner. The directory is first touched in `begin`, when
# there is something to write. A run that is refused before that finds every byte of its
# directory as it was.
#
# **Why a lock?** Nothing stops you from resuming a run that is still going on in another
# window. Both processes would then append to one table, and each would overwrite the
# checkpoints of the other. So a process that writes must hold the directory's lock, and
# only one can. The operating system keeps the lock, not the file: a process that is killed
# holds nothing any more, and nobody has to clean up after it. Reading needs no lock: you can load
# and evaluate a policy while it is in training.
#
# **A metric that is new.** A run may go on in a version that measures more than the one it began
# with, or less. Then its table gets the new columns, and a cell of which nobody knows anything is empty.


# %% tags=["export"]
State = dict[str, Any]  # what a file holds, by name


class Run:
    """A directory that keeps the settings, metrics and checkpoints of one run.

    Use it as a context manager, so that all metrics are on the disk at the end and
    the next process may write.

    Args:
        directory: Where to keep the files. It is made if it does not exist.
        settings: What to write to ``settings.json``. With ``resume`` it is not used:
            the directory has its own.
        resume: Whether to go on in a directory that has a checkpoint. The directory
            stays as it is until ``begin``.

    Attributes:
        metrics: Where the table is.
        saved: Step of the last checkpoint, 0 if there is none.

    Raises:
        BlockingIOError: If another process writes to the directory.
        FileExistsError: If the directory holds a run already and ``resume`` is false.
        FileNotFoundError: If there is no checkpoint to resume from.
        TypeError: If ``settings`` holds something that JSON cannot write.
        ValueError: If the checkpoint or the table is damaged, or if the checkpoint is
            not that of a run.
    """

    def __init__(
        self,
        directory: str | Path,
        settings: State | None = None,
        resume: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self.checkpoint = self.directory / "checkpoint.pt"
        self.metrics = self.directory / "metrics.csv"
        self.columns: list[str] = []  # of the table
        self.rows: list[str] = []
        self.gathered: dict[str, tuple[float, float]] = {}  # for the next row
        self.state: State | None = None
        self.held: ExitStack | None = None
        self.closed = False
        self.saved = self.logged = 0  # the last checkpoint's step, and rows so far
        if resume:
            self.seen = self.checkpoint.exists() and self.checkpoint.stat().st_mtime_ns
            self.state = load_checkpoint(self.checkpoint)
            self.settings = read_settings(self.directory / "settings.json")
            if "step" not in self.state:
                raise ValueError(f"{self.checkpoint} comes from no run")
            self.saved = self.state["step"]
            # A checkpoint of an older version does not say how many rows there were.
            self.rows = self.rows_up_to(self.saved, self.state.get("rows", 0))
            self.logged = len(self.rows[1:])
            self.gathered = self.state.get("gathered", {})
        else:
            # Plain values, so that a checkpoint may hold them too.
            self.settings = json.loads(json.dumps(settings or {}))
            self.check_free()
            self.begin()

    def check_free(self) -> None:
        """Raise if the directory holds a run."""
        # A run that died before its first checkpoint has left nothing to lose.
        kept = (self.checkpoint, previous_of(self.checkpoint), self.metrics)
        if any(path.exists() for path in kept):
            raise FileExistsError(
                f"{self.directory} holds a run: resume it or choose another name"
            )

    def begin(self) -> None:
        """Lock the directory and prepare it for writing; later calls do nothing.

        Raises:
            BlockingIOError: If another process writes to the directory.
            ValueError: If another process has written to it since it was read, or if
                the run is closed.
        """
        if self.closed:  # the lock is gone, and somebody else may have it
            raise ValueError(
                f"the run in {self.directory} is closed: open it with resume=True"
            )
        if self.held is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(lock_of(self.directory))
            # Before we had the lock, another process may have been here.
            if self.state is None:
                self.check_free()
            elif self.checkpoint.stat().st_mtime_ns != self.seen:
                raise ValueError(f"{self.directory} has gone on since it was read")
            # Those of a run that goes on may have changed, such as the number of steps.
            text = json.dumps(self.settings, indent=2)
            write_atomically(self.directory / "settings.json", text.encode())
            if self.state is not None:
                write_atomically(self.metrics, "".join(self.rows).encode())
            # What killed processes have left half written: nobody else is writing now.
            for half in self.directory.glob(f"*.{'[0-9a-f]' * 32}.new"):
                half.unlink()
            step = 0 if self.state is None else self.state["step"]
            self.events = events_from(self.directory, step)
            stack.callback(self.events.close)
            self.held = stack.pop_all()  # all went well: kept until `close`

    def rows_up_to(self, step: int, number: int) -> list[str]:
        """Return the table's header and its whole rows up to a step.

        Raises:
            ValueError: If the table has fewer rows than this number.
        """
        text = ""
        if self.metrics.exists():
            text = self.metrics.read_text("utf-8", "replace")
        whole = [x for x in text.splitlines(keepends=True) if x.endswith("\n")]
        self.columns = next(csv.reader(whole[:1]), [])
        # What stands behind the checkpoint goes, and what is no row.
        rows = [
            row
            for row in whole[1:]
            if (at := row.partition(",")[0]).isdecimal() and int(at) <= step
        ]
        if len(rows) < number:
            raise ValueError(
                f"{self.metrics} must have {number} rows up to step {step}, got "
                f"{len(rows)}; restore it or begin a new run"
            )
        return whole[:1] + rows

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append metrics to the table and to TensorBoard's events.

        Args:
            step: Steps taken so far.
            metrics: Numbers by name. NaN stands for "nothing to tell" and leaves the
                cell empty. A name that is new gets a column.

        Raises:
            ValueError: If the run is closed.
        """
        self.begin()
        if new := [name for name in metrics if name not in self.columns]:
            self.add_columns(new)
        cells = {k: "" if math.isnan(x) else f"{x:.8g}" for k, x in metrics.items()}
        row = [str(step), *(cells.get(name, "") for name in self.columns[1:])]
        with self.metrics.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        self.logged += 1
        for name, x in metrics.items():
            if math.isfinite(x):
                self.events.add_scalar(name, x, step)

    def add_columns(self, new: list[str]) -> None:
        """Give the table a column for each new metric; older rows have none of it."""
        rows = self.metrics.read_text("utf-8").splitlines()[1:] if self.columns else []
        self.columns = [*(self.columns or ["step"]), *new]
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerow(self.columns)
        table.writelines(row + "," * len(new) + "\n" for row in rows)
        write_atomically(self.metrics, table.getvalue().encode())

    def save(self, learner: Learner) -> None:
        """Write a checkpoint; the one before it stays as ``checkpoint.previous.pt``.

        Raises:
            ValueError: If the run is closed.
        """
        self.begin()
        self.events.flush()  # a run that resumes here finds all events up to here
        if self.metrics.exists():
            sync(self.metrics)  # and all rows, even after a power cut
        state = {
            "step": learner.step,
            "rows": self.logged,
            "gathered": dict(self.gathered),
            "settings": self.settings,
            "learner": learner.state_dict(),
            "policy": policy_state(learner.policy),
        }
        save_checkpoint(self.checkpoint, state)
        self.saved = learner.step

    def restore(self, learner: Learner) -> None:
        """Bring a fresh learner to where a resumed run was saved.

        Raises:
            ValueError: If the checkpoint does not fit the learner.
        """
        if self.state is None:
            return
        policy = learner.policy
        # What comes from another learner fails in as many ways as there are learners.
        try:
            saved = self.state["policy"]
            if (*saved["recipe"],) != (*policy.recipe,):
                words = "its policy is that of another algorithm or environment"
                raise ValueError(words)
            policy.load_state_dict(saved["weights"])
            learner.load_state_dict(self.state["learner"])
            if saved.get("masked"):
                vars(policy)["masked"] = True
        except Exception as error:
            raise ValueError(
                f"{self.checkpoint} does not fit the settings: {reason(error)}"
            ) from error

    def close(self) -> None:
        """Finish the files and let another process write; this run writes no more."""
        self.closed = True
        if self.held is not None:
            self.held.close()

    def give_up(self) -> Path | None:
        """Leave the directory, which another run may have; return where metrics are.

        If there are none, nothing stays.
        """
        self.close()
        own = r"settings\.json$|lock$|events\.|checkpoint|best\.pt$"
        with suppress(OSError):  # something else lies there, or nothing any more
            if self.logged:
                name = f"{self.directory}__failed__{uuid4().hex[:8]}"
                return self.directory.rename(name)
            for path in self.directory.iterdir():
                if re.match(own, path.name):
                    path.unlink()
            self.directory.rmdir()
        return None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# %% [markdown]
# TensorBoard's events are written by the `SummaryWriter` that everybody uses, because other tools
# wait for it: `wandb.init(sync_tensorboard=True)` of Weights & Biases, for instance, finds a run by
# the writer that it makes. We change one thing. The writer gives its events to a thread, and its
# `flush` does not wait for that thread, so that a checkpoint could be on the disk before the events
# that led to it; and a thread that finds the disk full has nobody to tell. Ours are written at once.


# %% tags=["export"]
class NoQueue:
    """What takes the place of an event writer's queue: each event goes to the file.

    Args:
        file: Writes an event.
    """

    def __init__(self, file: Any) -> None:
        self.put = file.write_event

    def close(self) -> None:
        """Do nothing: nothing is waiting."""


def events_from(directory: Path, step: int) -> Any:
    """Return a writer of events in a new file, for what comes after a step."""
    # Who only reads runs need not wait for TensorBoard's writer to be imported.
    from tensorboardX import SummaryWriter

    # Each attempt writes events of its own. The first of them tells TensorBoard to
    # forget what an earlier attempt wrote from this step on.
    events = SummaryWriter(
        str(directory), purge_step=step + 1, filename_suffix=f".{step}"
    )
    writer = events.file_writer.event_writer
    writer._worker.stop()  # once it has written what came first
    writer._event_queue = NoQueue(writer._ev_writer)
    return events


# %% tags=["export"]
def read_settings(path: Path) -> State:
    """Read the settings of a run.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error


# %% [markdown]
# A setting may get a better name, but files keep the old one. So the old names stand in a table;
# those of `ONCE` ({doc}`/chapters/ground/rows`) may be typed still. What somebody may type who
# comes from another library or version stands in a second table; which
# of several names of ours is meant depends on the algorithm. In files without `iteration_steps`, `log_interval` stands for it.


# %% tags=["export"]
RENAMED = {
    "alpha": "priority_exponent",
    "decay": "rmsprop_decay",
    "epsilon": "rmsprop_epsilon",
}
SIZE = (
    "PPO and its relatives have networks of their own: hand over others, with actor "
    "and critic, or as PPO(make_policy(…, hidden=64), …)"
)
ELSEWHERE = {
    name: ours
    for ours, others in {
        "learning_rate": "lr actor_lr critic_lr lr_actor lr_critic step_size",
        "total_steps": "total_timesteps num_timesteps timesteps n_timesteps max_steps",
        "num_envs": "n_envs num_env nenvs collector_env_num",
        "num_steps": "n_steps nsteps n_step rollout_fragment_length",
        "num_epochs": "n_epochs noptepochs update_epochs num_sgd_iter",
        "num_minibatches batch_size": "nminibatches minibatch_size batch_size",
        "gamma": "discount",
        "lambda_": "lambda gae_lambda lam",
        "clip_ratio": "clip_range clip_coef clip_param clip_epsilon cliprange",
        "value_clip": "clip_range_vf vf_clip_param",
        "entropy_weight temperature": "ent_coef entropy_coef entropy_coeff",
        "value_weight": "vf_coef value_coef vf_loss_coeff",
        "max_grad_norm": "grad_clip grad_norm",
        "normalize_advantage": "norm_adv adv_norm",
        "anneal": "anneal_lr",
        "epsilon_start": "exploration_initial_eps start_e",
        "epsilon_end": "exploration_final_eps end_e",
        "epsilon_steps": "exploration_fraction",
        "learning_starts": "random_collect_size start_steps warmup_steps",
        "train_interval": "train_freq train_frequency",
        "target_interval": "target_update_interval target_network_frequency",
        "target_interval tau": "target_update_freq polyak target_update_theta",
        "buffer_size replay_buffer_size": "buffer_size replay_buffer_size replay_size",
        "temperature priority_exponent": "alpha",
        "rmsprop_decay": "decay",
        "rmsprop_epsilon": "epsilon",
        "num_atoms": "n_atoms n_atom",
        "value_min": "v_min",
        "value_max": "v_max",
        "hidden": "hidden_size net_arch policy_kwargs fcnet_hiddens",
    }.items()
    for name in others.split()
}


def todays_names(values: Mapping[str, Any], known: Container[str]) -> State:
    """Return stored settings by the names that their class knows today."""
    names, today = ONCE | RENAMED, {}
    for name, value in values.items():
        new = names.get(name, "")
        renamed = new in known and name not in known and new not in values
        today[new if renamed else name] = value
    new, old = "iteration_steps", "log_interval"
    if new in known and new not in today and old in today:
        today[new] = today.pop(old)
    return today


def warn_once_named(name: str, dash: str = "") -> str:
    """Return what a setting is called now, with a warning if it had another name."""
    new = ONCE.get(name, name)
    if new != name:
        words = f"{as_typed(name, dash)} is {as_typed(new, dash)} now"
        warnings.warn(words, FutureWarning, stacklevel=3)
    return new


def about(name: str, known: Container[str], dash: str = "") -> str:
    """Return what to say of an unknown setting: its name here, or who has it."""
    names = ELSEWHERE.get(name, name).split()
    if ours := next((x for x in names if x in known), ""):
        words = f"is it {as_typed(ours, dash)}?"
    elif names == ["hidden"]:
        words = SIZE
    elif theirs := [
        row.name
        for row in ALGORITHMS.values()
        if name in {field.name for field in fields(row.config)}
    ]:
        words = f"it is one of {', '.join(theirs)}"
    else:
        return ""
    return f" ({words})"


def as_typed(name: str, dash: str) -> str:
    """Return the name of a setting as it is typed, in Python or behind dashes."""
    return dash + (name.replace("_", "-") if dash and name[-1] != "_" else name)


# %% tags=["export", "hide-input"]
def lock_of(directory: Path) -> Any:
    """Take the lock of a directory, to hold it in a block.

    Raises:
        BlockingIOError: If another process holds it.
    """
    try:
        # A lock that belongs to one thread could not be released by another.
        return FileLock(directory / "lock", thread_local=False).acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(f"{directory} is in use by another process") from None


# %% [markdown]
# ## Checkpoints
#
# A checkpoint must be complete, it must never be half written, damage must not go
# unnoticed, a large one must not fill the memory, and it must not run code.
#
# *Complete* is the learner's business: weights, optimiser, counters, and the states of all
# random generators.
#
# *Never half written* takes two system calls. We write a new file beside the old one, wait
# until it is on the disk (`fsync`), and give it the old one's name (`replace`). Renaming is
# atomic: a reader finds the old file or the new one, and nothing in between. A name is
# an entry in a directory, which is written to the disk like everything else. So we wait for
# the directory too; without that a power cut may bring the old name back. The new file's
# first name is drawn at random, so that two processes never write to one file.
#
# *Damage* happens after the writing: disks and memory flip bits, and a file system that was
# cut off may leave a block of zeros. Weights that are a little wrong look like any others,
# and PyTorch does not complain. Its files are zip files, which have a **checksum** for each of
# their records, but it does not look at them. `load_checkpoint` does, before it reads a number.
#
# And what if it *is* damaged? Then the checkpoint before it is still there, under the name
# `checkpoint.previous.pt`, and the error message says so. Resumed from there, the run comes
# to the same end a little later. The old file gets its second name by a *hard link*, which
# copies nothing, and so there is no moment without a `checkpoint.pt`.
#
# *Large* states are a matter of memory. A learner that replays old steps ({doc}`/chapters/replay`)
# keeps a million of them, and an hour's run should not stop because its checkpoint did not fit. So
# nothing is copied: tensors go to the file as they are, the checksums are computed a piece at a
# time, and the trial that shows that the file can be loaded maps it into memory instead of reading it.
#
# *Code* is a matter of the format. PyTorch's files are pickles, and a pickle can run any code
# when it is loaded. With `weights_only=True` PyTorch loads nothing but tensors and plain values.
# So a checkpoint names, by a string, the function that builds the policy. `load` looks that name
# up in the list of makers ({doc}`/chapters/ground/rows`) and in no other place.


# %% tags=["export"]
FORMAT = "literate_rl checkpoint, version 2"


@contextmanager
def replacing(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file so that readers see the old content or all of the new one.

    Args:
        path: The file. It changes when all is written, and not if an error comes first.
        previous: Where to keep what it held before, or None to keep nothing.
    """
    new, old = beside(path), beside(path)
    try:
        with new.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            try:
                os.link(path, old)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, old)
                sync(old)
            os.replace(old, previous)
        os.replace(new, path)
    finally:
        # Whatever still has its first name here was not needed, or something failed.
        new.unlink(missing_ok=True)
        old.unlink(missing_ok=True)
    sync(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file so that readers see the old content or all of the new one."""
    with replacing(path) as file:
        file.write(content)


def beside(path: Path) -> Path:
    """Return a name in the same directory that nobody else has."""
    return path.with_name(f"{path.name}.{uuid4().hex}.new")


def sync(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    if os.name == "posix":  # Windows opens no directory
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def previous_of(path: Path) -> Path:
    """Return where the checkpoint before this one is."""
    return path.with_stem(path.stem + ".previous")


def save_checkpoint(path: str | Path, state: State) -> None:
    """Write a checkpoint atomically.

    Args:
        path: The file. One that exists is kept under another name,
            ``checkpoint.previous.pt`` for ``checkpoint.pt``.
        state: Tensors and plain values, nested in dictionaries and lists.

    Raises:
        TypeError: If ``state`` holds something that could not be loaded safely. Nothing
            is written then.
    """
    path = Path(path)
    try:
        with replacing(path, previous_of(path)) as file:
            torch.save({"format": FORMAT, **state}, file)
            # Better to learn now than when the run is gone that it cannot be loaded.
            # Mapped, the numbers are not read again.
            file.flush()
            torch.load(file.name, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise TypeError(
            f"state must hold tensors and plain values only: {reason(error)}"
        ) from error
    except RuntimeError as error:
        # Torch has its own words for a full disk.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load_checkpoint(path: str | Path) -> State:
    """Read a checkpoint without running any code from it.

    Args:
        path: The file.

    Returns:
        What ``save_checkpoint`` was given, by the names of today. All tensors are on
        the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or not a checkpoint of this package. The
            message names the checkpoint before it, if that one is whole.
    """
    path = Path(path)
    try:
        return read_checkpoint(path)
    except (FileNotFoundError, ValueError) as error:
        previous = previous_of(path)
        try:
            step = read_checkpoint(previous).get("step")
        except (OSError, ValueError):
            raise error from None
        raise type(error)(
            f"{error}; to go on from step {step}, rename {previous} to {path.name}"
        ) from error


def read_checkpoint(path: Path) -> State:
    """Read and check one file, as ``load_checkpoint`` does."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    # There is no end to the ways in which somebody else's file fails.
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            if broken := archive.testzip():  # torch does not look at the checksums
                raise ValueError(f"the checksum of {broken} is wrong")
            file.seek(0)
            state = todays_form(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:
        message = f"{path} is damaged or no checkpoint: {reason(error)}"
        raise ValueError(message) from error
    if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
        raise ValueError(f"{path} is not a literate_rl checkpoint ({FORMAT})")
    return state


def reason(error: Exception) -> str:
    """Return what went wrong in one sentence, without torch's advice to trust it."""
    first = error.__context__ or error
    sentence = str(first).partition("\n")[0].partition(". ")[0]
    return f"{type(first).__name__}: {sentence}"


class OwnModels(TypedDict, total=False):
    """Models of your own, by their names in the contract, or an encoder."""

    qnet: nn.Module
    actor: nn.Module
    critic: nn.Module | Sequence[nn.Module]
    encoder: OwnEncoder


@randomness_kept()
def load(
    path: str | Path, *, best: bool = False, **models: Unpack[OwnModels]
) -> PolicyLike:
    """Return the policy that a checkpoint holds, ready to act.

    Args:
        path: A checkpoint, the directory of a run, or the name of an agent that comes
            with the package, such as ``"pendulum-sac"``.
        best: Whether to take the policy of a run that did best in its evaluations
            (``eval_interval`` of ``train``), in place of the last one.
        models: Models of your own that the policy was trained with, by their names, for
            instance ``qnet``. They get their weights back.

    Returns:
        The policy, an ``nn.Module`` in evaluation mode on the CPU. It acts as the saved
        one does; call ``train()`` on it before it learns on.

    Raises:
        FileNotFoundError: If there is no such file, or no agent of that name.
        ValueError: If the file is damaged or not a checkpoint of this package, or
            holds no policy that it can build, or not with these models.
    """
    path = found(path)
    name = "best.pt" if best else "checkpoint.pt"
    if best and not (path / name).is_file():
        raise FileNotFoundError(f"{path} has no {name}: train it with eval_interval")
    state = load_checkpoint(path / name if best or path.is_dir() else path)
    try:
        name, arguments = state["policy"]["recipe"]
        # Only functions that build policies may be called by a file.
        if (make := maker_named(name)) is None:
            words = "import its algorithm first, or show it with --algorithm"
            raise ValueError(f"{name!r} is unknown here: {words}")
        # What a model of one's own is cannot be read from a file: the user brings it.
        wanted = dict(arguments.get("models", {}))
        if models.keys() != wanted.keys():
            pass_ = ", ".join(f"{x}={y}(...)" for x, y in wanted.items()) or "no models"
            given = ", ".join(models) or "none"
            raise ValueError(f"it must be loaded with {pass_}, got {given}")
        rest = {key: x for key, x in arguments.items() if key != "models"}
        policy = make(**rest, **models)
        policy.load_state_dict(state["policy"]["weights"])
        know_world(policy, path, state)
    except Exception as error:
        words = f"{path} holds no policy that can be built: {reason(error)}"
        raise ValueError(words) from error
    return policy.eval()


def policy_state(policy: Any) -> State:
    """Return what a checkpoint keeps of a policy, so that ``load`` can build it."""
    shown = policy.recipe[1].get("observation_space")
    seen = getattr(policy, "observation_space", None)
    told = None if shown is None or seen is None else plain_space(seen)
    return {
        "recipe": policy.recipe,
        "weights": policy.state_dict(),
        # What it knows of its world beside the recipe.
        "masked": bool(getattr(policy, "masked", False)),
        "observation_space": None if told == shown else told,
    }


def know_world(policy: Any, path: Path, state: State) -> None:
    """Tell a policy what its environment shows, and whether that has masks."""
    known = state["policy"]
    if "masked" not in known:
        known = look_at_env(path, state)
    policy.masked = known["masked"]
    if shown := known["observation_space"]:
        seen = as_space(shown)
        # An id may stand for another environment by now.
        if spaces.flatdim(seen) == spaces.flatdim(policy.observation_space):
            policy.observation_space = seen


def look_at_env(path: Path, state: State) -> State:
    """Return what an older run does not say of its environment.

    Nothing is known where that cannot be made, or not without code of others.
    """
    # Then only flat rows are known, and `predict` says so.
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        settings = state.get("settings") or read_settings(path / "settings.json")
        with closing(flat_env(agreed_env(settings))) as env:
            masked = "action_mask" in env.reset(seed=0)[1]
            shown = plain_space(unflattened(env).observation_space)
            return {"masked": masked, "observation_space": shown}
    return {"masked": False, "observation_space": None}


# %% [markdown]
# A few agents come with the package ({doc}`/chapters/apps/trained`). Each of them is a directory too, with the
# settings and a checkpoint of the policy alone, so all that works with a run works with a name. What
# you have under that name comes first.


# %% tags=["export"]
def trained_folder() -> Path:
    """Return where the agents are that come with the package."""
    return Path(str(files("literate_rl"))) / "trained"


def found(path: str | Path) -> Path:
    """Return a path as it is, or that of the agent which has this name.

    Raises:
        FileNotFoundError: If it is a name, of nothing here and of no agent.
    """
    path = Path(path)
    if path.exists() or len(path.parts) != 1:
        return path
    names = sorted(each.name for each in trained_folder().iterdir())
    if path.name in names:
        return trained_folder() / path
    raise FileNotFoundError(
        f"there is no checkpoint {path}, nor an agent of that name; these come with "
        f"the package: {', '.join(names)}"
    )


# %% [markdown]
# Who has trained for a week may load that run with any later version. Networks and makers have
# got other names since. One table knows the old ones, and one function puts today's in their place.


# %% tags=["export"]
# What the names of weights have become, by what made the policy.
CRITICS = r"^(critics\.)?critics\.(\d+)\.model\."
MOVED = {
    "make_ddpg_policy": {
        r"^network\.actor\.model\.net\.": "network.actor.0.",
        r"^network\.actor\.model\.box\.": "network.actor.1.",
        r"^network\.critics\.(\d+)\.model\.": r"network.critics.\1.",
    },
    "make_sac_policy": {CRITICS: r"\1\2."},
    "make_discrete_sac_policy": {CRITICS + r"net\.": r"\1\2."},
}
# And where it was given models of one's own.
OWN = {
    r"^network\.(actor|critics\.\d+)\.model\.": r"network.\1.by_name.model.",
    CRITICS: r"\1\2.by_name.model.",
}


def todays_form(state: Any) -> Any:
    """Return a checkpoint as it is written today, whichever version wrote it."""
    try:
        maker, arguments = state["policy"]["recipe"]
        own = {"qnet", "actor", "critic"} & {*arguments.get("models", ())}
        names = MOVED[maker]
    except (AttributeError, LookupError, TypeError, ValueError):
        return state

    def moved(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        return {name_of(key): moved(value) for key, value in part.items()}

    def name_of(key: Any) -> Any:
        for old, new in (OWN if own else names).items() if isinstance(key, str) else ():
            key = re.sub(old, new, key)
        return key

    whole = moved(state)
    if own:
        # Models of one's own have sizes of their own.
        rest = {x: arguments[x] for x in arguments if x not in ("hidden", "hold")}
        today = maker.replace("make_discrete_", "make_").replace("make_", "make_own_")
        whole["policy"]["recipe"] = today, rest
    return whole


# %% [markdown]
# ## What a directory may not decide
#
# Somebody sends you the directory of a run, and you want to go on with it. Its checkpoint
# runs no code, but there is one more door. **An environment's id may run code.** Gymnasium
# reads `gym_maze:Maze-v0` as "import the module `gym_maze`, which registers `Maze-v0`", and
# to import a module is to run it. Python looks for modules in the working directory too,
# and there the sender's own files may lie. So an id with a colon is a command, and it
# stands in `settings.json`, where few people look.
#
# The rule is: **a command must come from you, not from the directory.** What would import a
# module must be named again, `--resume DIR --env gym_maze:Maze-v0`. The same holds
# for the address of a cluster ({doc}`/chapters/interfaces/cluster`), which could answer with
# pickles. If your own program passes `run.settings["env"]` to Gymnasium, this rule is up to
# you; `load_env` keeps it.
#
# Wrappers of Gymnasium's ({doc}`/chapters/data/makers`) change numbers and are taken from the file. Those of a
# module are commands again, and so is the one that writes films wherever the file says. What has
# no name, such as a `lambda`, is handed over again too.


# %% tags=["export"]
def names_of(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of what a run was given, by option."""
    models = settings.get("models") or {}
    names = {"env": [settings["env"]], "wrappers": settings.get("wrappers", [])}
    return names | {role: [model] for role, model in models.items()}


def check_agreed(
    kept: Mapping[str, Sequence[str]],
    given: Mapping[str, Sequence[Any]],
    dash: str = "",
) -> None:
    """Raise unless the user stands behind what the directory of a run says.

    Args:
        kept: Names in the directory's settings, by option.
        given: What the user has named or made, by option, or nothing for what the run
            has. That will not do where a name leads to code of others.
        dash: What stands before the name of an option.
    """
    for option, things in given.items():
        old = kept.get(option, ())
        has = f"{as_typed(option, dash)} {shlex.join(old) or 'none'}"
        names = [*map(as_stored, things, [*old, *("",) * len(things)])]
        if names and names != [*old]:
            raise ValueError(f"the run has {has}, not {shlex.join(names)}")
        if not names and any(map(is_command, old)):
            words = "a directory may not choose whose code runs: hand over again"
            raise ValueError(f"{words} {has}")


def agreed_env(
    settings: State,
    env: Any = None,
    wrappers: Sequence[Wrapper] = (),
    dash: str = "",
) -> Any:
    """Return a run's environment and wrappers, once the user stands behind them.

    Args:
        settings: Those of the run.
        env: What the user has named or made, or None for that of the run.
        wrappers: Likewise, none for those of the run.
        dash: What stands before the name of an option.
    """
    env = known_env(env)
    given = {"env": [] if env is None else [env], "wrappers": wrappers}
    check_agreed(names_of(settings), given, dash)
    world = settings["env"] if env is None else env
    if isinstance(world, VectorEnv):
        return world
    return make_wrapped(world, wrappers or settings.get("wrappers", []))


def as_stored(thing: Any, stored: str) -> str:
    """Return the name of what was given, by the stored name if it means the same."""
    # What has no name, or one in a script, cannot be compared. A file may be elsewhere.
    name = name_of_maker(thing)
    same = stored and without_folder(name) == without_folder(stored)
    return stored if same or stored.startswith(("<", "__main__:")) else name


def is_command(stored: str) -> bool:
    """Say whether a name leads to other people's code or nowhere, or writes files."""
    return ":" in stored or ".py" in stored or stored.startswith(("RecordVideo", "<"))


def load_env(
    path: str | Path,
    env: Make | None = None,
    wrappers: Sequence[Wrapper] = (),
) -> Make:
    """Return the environment of a run, with its wrappers, for ``evaluate`` or ``show``.

    Args:
        path: The directory of the run, or the name of an agent, as for ``load``.
        env: What the run was given, where its name imports a module or leads nowhere.
        wrappers: Likewise.

    Returns:
        An id, or a function that makes the environment.

    Raises:
        FileNotFoundError: If there is no such run.
        ValueError: If the environment has to be named, or is not that of the run.
    """
    path = found(path)
    return agreed_env(read_settings(path / "settings.json"), env, wrappers)


# %% [markdown]
# ## The same end, bit for bit
#
# Now the promise: a run that is killed and resumed ends with the same weights as one that
# was left alone. Equal bit for bit, not just about as good. Then a crash is no reason for
# doubt, and you can look for a bug by resuming just before it.
#
# There is one obstacle. The environments are in the middle of their episodes, and many
# cannot be saved: the world of LunarLander lives in a physics library that has no way to
# write it down. So we go the other way. **At each checkpoint the environments are reset,
# in runs that nobody interrupts too**, with seeds drawn from the run's seed and the step
# (`env_seed` in {doc}`/chapters/data/episodes`). For the episodes under way this is a cut like a time limit: a truncation,
# with its bootstrap. A learner says in `checkpoint_due` when it is about to do that.
#
# One case is left out on purpose. Ctrl-C saves where it stops, between two checkpoints, so
# that nothing that was learned is lost. The resumed run then starts new episodes at a step
# where the uninterrupted one does not, and it ends elsewhere: as good a run, but another
# one.
#
# We try it. The first climber runs to its end. The second one dies in its eighth
# iteration, after its second checkpoint. A third one starts from what is on the disk.

# %%
import tempfile

place = Path(tempfile.mkdtemp())
config = ClimbConfig(total_steps=3_000)


class PowerCutError(Exception):
    """What happens to long runs."""


class Doomed(HillClimber):
    def iterate(self):
        if self.iteration == 7:
            raise PowerCutError
        return super().iterate()


whole = HillClimber("CartPole-v1", config)
with Run(place / "whole", asdict(config)) as run:
    fit(whole, run, progress=False)

try:
    with Run(place / "killed", asdict(config)) as run:
        fit(Doomed("CartPole-v1", config), run, progress=False)
except PowerCutError:
    print("rows written before the crash:", len(run.metrics.read_text().split()) - 1)

resumed = HillClimber("CartPole-v1", config)
with Run(place / "killed", resume=True) as run:
    run.restore(resumed)
    print("resumed at iteration", resumed.iteration)
    fit(resumed, run, progress=False)

pairs = zip(whole.policy.parameters(), resumed.policy.parameters(), strict=True)
same = all(torch.equal(a, b) for a, b in pairs)
print("equal bit for bit:", same)
print("files:", *sorted(path.name.split(".out")[0] for path in place.glob("whole/*")))

# %% tags=["claims"]
assert same, "the weights are those of the run that was left alone"

# %% [markdown]
# ## Video
#
# A number does not tell *how* an agent fails. Look at it. `record_video` plays one greedy
# episode and writes an mp4 file. It needs no screen. An episode without an end is cut off after
# 3,000 steps, which make a film of a minute or two; the frames are written as they come, so that
# memory holds one of them. `show` opens a window and plays until the episode ends, or until Ctrl-C.


# %% tags=["export"]
@checked
@randomness_kept()
def record_video(
    policy: Any,
    env: Make,
    path: str | Path,
    seed: int = 0,
    max_episode_steps: Count = 3_000,
) -> float:
    """Film one greedy episode.

    Args:
        policy: The policy, on any device.
        env: A registered id, or a function that makes an environment and takes
            ``render_mode``.
        path: The mp4 file to write.
        seed: Decides the start, as in ``evaluate``.
        max_episode_steps: After how many steps the episode is cut off, with a warning.

    Returns:
        The undiscounted return of the episode, as far as it was played.

    Raises:
        OSError: If the film cannot be written. A film that was there before stays.
        ValueError: If ``env`` cannot be made or cannot be drawn.
    """
    if not has_screen():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would complain
    with closing(make_visible(env, "rgb_array")) as envs:
        fps = envs.metadata.get("render_fps", 30)
        with video_writer(Path(path), fps) as write:

            def look() -> None:
                write(np.asarray(envs.render())[0])

            total = play(policy, envs, seed, max_episode_steps, look=look)
    return float(total[0])


def has_screen() -> bool:
    """Say whether a window can be opened."""
    return bool(os.environ.get("DISPLAY")) or sys.platform in ("darwin", "win32")


@randomness_kept()
def show(policy: Any, env: Make, seed: int = 0) -> float:
    """Play one greedy episode in a window, and return its return.

    An episode without an end goes on until Ctrl-C, which closes the window.

    Args:
        policy: The policy, on any device.
        env: As in ``record_video``.
        seed: Decides the start, as in ``evaluate``.

    Raises:
        ValueError: If ``env`` cannot be made or cannot be shown.
    """
    with closing(make_visible(env, "human")) as envs:
        return float(play(policy, envs, seed, sys.maxsize)[0])


def make_visible(env: Make, mode: str) -> SyncVectorEnv:
    """Make one copy of an environment that draws itself."""
    envs = make_envs(partial(flat_env, env, render_mode=mode))
    if mode not in envs.metadata.get("render_modes", ()):
        envs.close()
        raise ValueError(f"env {env!r} has no render mode {mode!r}")
    return envs


@contextmanager
def video_writer(path: Path, fps: int) -> Iterator[Callable[[NDArray[np.uint8]], None]]:
    """Give a function that adds a frame (H, W, 3) to an mp4 file that browsers play.

    The file has its name once the block has ended, and all of its frames.

    Raises:
        OSError: If it cannot be written. A file that was there before stays.
    """
    import imageio_ffmpeg

    new, written = beside(path), 0
    writer: Any = None

    def write(frame: NDArray[np.uint8]) -> None:
        nonlocal writer, written
        with one_sentence(path):
            if writer is None:
                writer = imageio_ffmpeg.write_frames(
                    str(new),
                    frame.shape[1::-1],
                    fps=fps,
                    macro_block_size=2,
                    ffmpeg_log_level="error",
                    # The new name does not say that it is an mp4. Its index comes
                    # first, so that a page plays it while it still arrives.
                    output_params=["-f", "mp4", "-movflags", "+faststart"],
                )
                writer.send(None)
            writer.send(np.ascontiguousarray(frame))
        written += 1

    try:
        yield write
        with one_sentence(path):
            writer.close()
            # It does not tell whether ffmpeg has failed: look at what is there.
            found, _ = imageio_ffmpeg.count_frames_and_secs(str(new))
            if found < written:
                raise OSError(f"ffmpeg has written {found} of {written} frames")
        os.replace(new, path)
    finally:
        if writer:
            writer.close()
        new.unlink(missing_ok=True)


@contextmanager
def one_sentence(path: Path) -> Iterator[None]:
    """Say in a sentence that a film cannot be written; ffmpeg fills pages."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"{path} could not be written; is the disk full, or the directory missing?"
        ) from error


def video_html(path: str | Path, description: str) -> str:
    """Return HTML that plays an mp4 file from within the page itself.

    Args:
        path: The file.
        description: What can be seen, for those who cannot see it.
    """
    data = base64.b64encode(Path(path).read_bytes()).decode()
    text = html.escape(description)
    return (
        f'<video controls loop muted playsinline aria-label="{text}" '
        f'style="max-width: 100%"><source src="data:video/mp4;base64,{data}" '
        f'type="video/mp4">{text}</video>'
    )


# %%
from IPython.display import HTML

film = place / "climber.mp4"
print("return:", record_video(climber.policy, "CartPole-v1", film, seed=3))
HTML(
    video_html(film, "The pole stands upright on a cart that moves to and fro a little")
)

# %% [markdown]
# **Notice** the many small pushes.
#
# ## Stored runs
#
# A chapter of this book executes within a minute. Twenty seeds of a long training do not.
# So such runs are made by the scripts in `benchmarks/`, once, and their results are small
# files in the repository: the return in 25 bins of each run, and the greedy return at its
# end. The first lines of a file say which command made it, when, with which settings
# and with which versions. {doc}`/docs/results` shows them all. This function reads
# them, so that a chapter can draw what it could not compute.


# %% tags=["export"]
Numbers = NDArray[np.float64]


class StoredRuns(NamedTuple):
    """Training runs of one kind that differ in their seed only.

    Attributes:
        steps: Where the bins end, in environment steps, (N,).
        curves: Mean return of the episodes that ended in each bin, (seeds, N).
        final: Mean greedy return after the training, (seeds,).
        area: Mean of the training returns over the whole run, (seeds,).
        cpu_seconds: CPU time of the training, (seeds,).
        judged: What else was measured after the training, by name, (seeds,) each.
        watched: Curves of what else was measured while training, by name.
    """

    steps: Numbers
    curves: Numbers
    final: Numbers
    area: Numbers
    cpu_seconds: Numbers
    judged: dict[str, Numbers]
    watched: dict[str, Numbers]


def results_folder() -> Path:
    """Return the folder of the stored measurements.

    It is ``benchmarks/results`` in the working directory or above it. An installed
    package has a copy.
    """
    package = Path(str(files("literate_rl")))
    places = (Path.cwd(), *Path.cwd().parents, package, *package.parents)
    folders = (place / "benchmarks" / "results" for place in places)
    return next(filter(Path.is_dir, folders), Path.cwd())


def stored_runs(name: str, folder: Path | None = None) -> dict[str, StoredRuns]:
    """Read the training runs that a benchmark of this book has stored.

    Args:
        name: Name of the experiment, for example ``"cartpole"``.
        folder: Where the files are; None means ``learning`` in ``results_folder()``.

    Returns:
        The runs by variant. In a bin in which no episode ended, the curve is the line
        between its neighbours.

    Raises:
        FileNotFoundError: If there is no such experiment.
    """
    folder = folder or results_folder() / "learning"
    ends, bins = (read_rows(folder / f"{name}{part}.csv") for part in ("", "_curves"))
    runs = {}
    for variant in dict.fromkeys(row["variant"] for row in ends):
        judged = columns_of(ends, variant)
        final = judged.pop("return")
        curves = columns_of(bins, variant)
        curves = {name: x.reshape(len(final), -1) for name, x in curves.items()}
        steps = curves.pop("step")[0]
        for curve in (row for table in curves.values() for row in table):
            known = np.isfinite(curve)
            curve[:] = np.interp(steps, steps[known], curve[known])
        area, seconds = judged.pop("area"), judged.pop("cpu_seconds")
        whole = curves.pop("return")
        runs[variant] = StoredRuns(steps, whole, final, area, seconds, judged, curves)
    return runs


def columns_of(rows: list[dict[str, str]], variant: str) -> dict[str, Numbers]:
    """Return the numbers of a variant by name, one for each of its rows."""
    mine = [row for row in rows if row["variant"] == variant]
    names = [name for name in mine[0] if name not in ("variant", "seed")]
    return {name: np.array([row[name] for row in mine], float) for name in names}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a stored table without the lines about its origin."""
    lines = path.read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


# %%
for variant, runs in stored_runs("cartpole").items():
    print(f"{variant} on CartPole, {len(runs.final)} seeds, {runs.steps[-1]:.0f} steps")
    print(f"mean {runs.final.mean():.1f}, worst seed {runs.final.min():.1f}")

# %% [markdown]
# ## The command line
#
# The package has a command, `literate-rl`, that puts all of this together for an algorithm of the book.
# Here it trains PPO ({doc}`/chapters/ppo`) on CartPole, for a fifth of the usual time, which
# is too short to learn much. The progress bar goes to the error stream, what you may want to
# keep goes to the output.

# %%
import subprocess

options = "ppo --env CartPole-v1 --seed 1 --total-steps 10000 --name first"
command = [sys.executable, "-m", "literate_rl", *options.split()]
done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
print(done.stdout)
print(done.stderr.splitlines()[-1])

# %% [markdown]
# The directory is the one of this chapter, so everything here works with it. `load` gives
# the policy back in one line.

# %%
policy = load(place / "runs" / "first")
print(type(policy).__name__, record_video(policy, "CartPole-v1", place / "ppo.mp4"))

# %% [markdown]
# | you type | what happens |
# |---|---|
# | `literate-rl --help` | says in a line each what the algorithms are for |
# | `literate-rl ppo --help` | explains every setting; the texts are those of the dataclass |
# | `… --env Pendulum-v1 --num-envs 32` | another environment, with the settings that suit it, except the one you name |
# | `… --wrappers TimeAwareObservation 'FrameStackObservation(4)'` | with wrappers around each environment, by Gymnasium's names |
# | `literate-rl show pendulum-sac` | lets an agent play that comes with the package ({doc}`/chapters/apps/trained`), or `show runs/first` one of yours |
# | `… --watch` | shows the trained agent in a window; where there is no screen, writes `video.mp4` into the directory |
# | Ctrl-C | ends after this iteration, saves, and prints how to go on; before the training begins it ends at once |
# | `… --resume runs/first` | goes on from the last checkpoint, with the settings of that run |
# | `… --resume runs/maze --env gym_maze:Maze-v0` | the same; what imports a module must be named again |
# | `tensorboard --logdir runs` | draws the curves of all runs (`pip install tensorboard`) |
#
# In a program of yours, `wandb.init(sync_tensorboard=True)` before `train` or `fit` sends the same
# curves to Weights & Biases. It wants `tensorboard` installed too.
#
# Ctrl-C is the polite way to stop a run. A power cut is not polite, and neither is
# `kill -9`. After either there is a whole checkpoint all the same, and `--resume` ends with
# the very weights that an undisturbed run ends with. `python -m benchmarks.chaos` kills trainings
# of all algorithms at moments drawn by chance; {doc}`/docs/results` shows what it found.
#
# ## Traps
#
# ### Trap: a checkpoint that runs code
#
# `torch.load` was made for files that you wrote yourself. A pickle may name any function
# and the arguments to call it with, and the call is made when the file is unpickled. Here it
# is only `print`.


# %%
import io


class Gift:
    def __reduce__(self):
        return print, ("this line was printed by the file, while it was loaded",)


gift = io.BytesIO()
torch.save({"weights": Gift()}, gift)
(place / "gift.pt").write_bytes(gift.getvalue())
torch.load(place / "gift.pt", weights_only=False)
try:
    load_checkpoint(place / "gift.pt")
except ValueError as error:
    print("ValueError:", str(error).replace(str(place), "…"))

# %% [markdown]
# Since version 2.6 of PyTorch `weights_only=True` is the default. Code that must load whole
# objects turns it off again, so a policy from the internet is a program from the internet.
#
# ### Trap: resuming with the weights alone
#
# The weights are what we want in the end, so it is tempting to save nothing else. The
# resumed run then starts with a fresh optimiser, and its random numbers begin again. A hill
# climber shows it well: it makes the very tries that it has made already.


# %%
class Forgetful(HillClimber):
    def load_state_dict(self, state):
        self.step, self.iteration, self.best = state["counters"]


fresh, again = HillClimber("CartPole-v1", config), Forgetful("CartPole-v1", config)
again.load_state_dict(load_checkpoint(place / "killed" / "checkpoint.pt")["learner"])
first_noise = torch.randn(4, generator=fresh.generator)
next_noise = torch.randn(4, generator=again.generator)
print("noise of the first try:         ", first_noise.numpy().round(2))
print("noise of the try after resuming:", next_noise.numpy().round(2))

# %% [markdown]
# Nothing fails and the curve looks as usual. Only a comparison bit for bit finds it.
#
# ## What well-known implementations do
#
# | question | this chapter | Stable-Baselines3 | CleanRL | Spinning Up | DI-engine |
# |---|---|---|---|---|---|
# | what is in the file | plain values and tensors | a zip: tensors, and JSON with pickled objects inside | the weights, at the end, if asked for | the whole module, pickled; the environment, if it can be pickled | a dictionary of states |
# | how it is written | beside the old one, then renamed | in place | in place | in place | in place |
# | resuming | bit for bit | weights, optimiser and counters; the random states are not in the file | its page on the subject loads the weights | none | weights and optimiser |
#
# ## References
#
# The names of the metrics: {cite:t}`huang2022cleanrl`.

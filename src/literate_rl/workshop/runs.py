# Generated from chapters/workshop/runs.py (edit there); digest 6b15f742ac13f02b
"""Runs: learners, metrics, checkpoints that resume, evaluation, video, intervals."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import math
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import FlattenObservation
from numpy.typing import ArrayLike, NDArray
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from torch import Tensor, nn
from tqdm import tqdm

from literate_rl.agents import make_envs

__all__ = [
    "Learner",
    "Policy",
    "Run",
    "StoredRuns",
    "bootstrap_interval",
    "env_seed",
    "evaluate",
    "fit",
    "flat_env",
    "load",
    "load_checkpoint",
    "record_video",
    "save_checkpoint",
    "show",
    "stored_runs",
    "video_html",
]


class Policy(Protocol):
    """What the tools ask of a policy, which is also an ``nn.Module``.

    Attributes:
        arguments: What its class was called with, plain values by name, so that a
            checkpoint can build it again.
    """

    arguments: dict[str, Any]

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Choose actions for observations (B, D); a noise of 0.0 is greedy."""
        ...

    def to_env(self, action: Tensor) -> Any:
        """Turn actions into what a vector environment takes."""
        ...


class Learner(Protocol):
    """What ``fit`` asks of a learner.

    Attributes:
        policy: The policy in training.
        config: Its settings, a dataclass.
    """

    policy: Any
    config: Any

    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        ...

    @property
    def total_steps(self) -> int:
        """Steps after which the learner is done."""
        ...

    @property
    def checkpoint_due(self) -> bool:
        """Whether the run can be saved here and resumed to the bit."""
        ...

    def iterate(self) -> dict[str, float]:
        """Collect some steps, learn from them, and return metrics by name."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        ...


def check_setting(
    settings: Any, name: str, legal: Callable[[Any], bool], expected: str
) -> None:
    """Raise unless a setting is legal.

    Args:
        settings: The dataclass.
        name: Name of the setting.
        legal: Says whether a value is legal.
        expected: What is legal, in words, for the message.

    Raises:
        TypeError: If the value cannot even be compared.
        ValueError: If it is not legal.
    """
    value = getattr(settings, name)
    try:
        fits = legal(value)
    except TypeError:
        raise TypeError(f"{name} must be {expected}, got {value!r}") from None
    if not fits:
        raise ValueError(f"{name} must be {expected}, got {value}")


def check_counts(settings: Any, names: Iterable[str]) -> None:
    """Raise unless some settings count something: whole numbers, at least 1.

    Args:
        settings: The dataclass.
        names: Names of the settings.

    Raises:
        TypeError: If a value is no number.
        ValueError: If it is not whole or too small.
    """
    for name in names:
        check_setting(settings, name, lambda x: x >= 1, "at least 1")
        check_setting(settings, name, lambda x: type(x) is int, "a whole number")


def flat_env(
    env: str | Callable[..., gym.Env[Any, Any]], **arguments: Any
) -> gym.Env[Any, Any]:
    """Make one environment whose observations are vectors.

    Args:
        env: A registered id, or a function that makes an environment.
        arguments: Passed on to ``gym.make`` or to the function.

    Returns:
        The environment, wrapped in ``FlattenObservation`` where that is needed.

    Raises:
        ValueError: If the id cannot be made, or its observations cannot be flattened.
    """
    try:
        made = gym.make(env, **arguments) if isinstance(env, str) else env(**arguments)
    except gym.error.Error as error:
        raise ValueError(f"env {env!r} cannot be made: {error}") from error
    space = made.observation_space
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return made
    if not space.is_np_flattenable:
        raise ValueError(f"env must have observations that can be flattened: {space}")
    return FlattenObservation(made)


def env_seed(seed: int, step: int) -> int:
    """Return a seed for environments, drawn from a run's seed and a step.

    Neighbouring seeds and steps give unrelated numbers. So two runs do not share
    environments, as they would with ``envs.reset(seed=0)`` and ``envs.reset(seed=1)``.

    Args:
        seed: Seed of the run, at least 0.
        step: Step at which the environments are reset, at least 0.

    Returns:
        An integer in [0, 2**32).
    """
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


def evaluate(
    policy: Policy,
    env: str | Callable[[], gym.Env[Any, Any]],
    episodes: int = 10,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Play episodes without noise and return the undiscounted return of each.

    Args:
        policy: The policy, on any device.
        env: A registered id, or a function that makes an environment. Its episodes
            must end, so it needs a time limit if the task does not end by itself.
        episodes: Number of episodes, at least 1. Each has its own environment.
        seed: Decides the starts and the environments' random numbers, at least 0.

    Returns:
        The returns, (episodes,) float64: the same for the same seed.

    Raises:
        ValueError: If ``env`` cannot be made or ``episodes`` is below 1.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    envs = make_envs(partial(flat_env, env), episodes)
    obs, _ = envs.reset(seed=env_seed(seed, 0))
    returns = np.zeros(episodes)
    playing = np.ones(episodes, dtype=bool)
    while playing.any():
        obs, reward, terminated, truncated, _ = envs.step(greedy(policy, obs))
        # An environment that is done goes on with an episode that nobody counts.
        returns += np.where(playing, reward, 0.0)
        playing &= ~(terminated | truncated)
    envs.close()
    return returns


def greedy(policy: Any, obs: NDArray[Any]) -> Any:
    """Return what a policy does without noise, in the form that environments take."""
    device = next(policy.parameters()).device
    with torch.no_grad():
        state = torch.as_tensor(obs, dtype=torch.float32, device=device)
        return policy.to_env(policy.act(state, 0.0).cpu())


def fit(
    learner: Learner, run: Run | None = None, progress: bool = True
) -> list[dict[str, float]]:
    """Run a learner until it has taken all of its steps, or until Ctrl-C.

    Args:
        learner: The learner, new or resumed.
        run: Where to keep metrics and checkpoints, or None to keep nothing.
        progress: Whether to show a progress bar.

    Returns:
        The metrics of each iteration, with the step as ``"step"``.

    Raises:
        ValueError: What the learner raises, for instance if a reward is not a number.
            The last checkpoint stays.
    """
    history: list[dict[str, float]] = []
    bar = tqdm(
        total=learner.total_steps,
        initial=learner.step,
        unit="step",
        disable=not progress,
        mininterval=0.5,
    )
    with bar, catch_interrupt() as interrupted:
        while learner.step < learner.total_steps and not interrupted.is_set():
            if run is not None and learner.checkpoint_due:
                run.save(learner)
            start, before = time.perf_counter(), learner.step
            metrics = learner.iterate()
            taken = learner.step - before
            metrics["charts/SPS"] = taken / (time.perf_counter() - start)
            history.append({"step": learner.step, **metrics})
            if run is not None:
                run.log(learner.step, metrics)
            bar.set_postfix(shown(metrics), refresh=False)
            bar.update(min(taken, learner.total_steps - bar.n))
        # Whether it is finished or interrupted: nothing that was learned is lost.
        if run is not None:
            run.save(learner)
    return history


def shown(metrics: dict[str, float]) -> dict[str, str]:
    """Pick what the progress bar shows."""
    names = {
        "charts/episodic_return": "return",
        "charts/SPS": "steps/s",
        "losses/approx_kl": "KL",
        "charts/actors": "actors",
        "charts/queue": "queue",
        "charts/lag": "lag",
    }
    return {
        short: f"{metrics[name]:.3g}" if short != "steps/s" else f"{metrics[name]:.0f}"
        for name, short in names.items()
        if name in metrics and math.isfinite(metrics[name])
    }


@contextmanager
def catch_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; the second one raises as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # Python delivers signals to the main thread only
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)


class Run:
    """A directory that keeps the settings, metrics and checkpoints of one run.

    Use it as a context manager, so that all metrics are on the disk at the end.

    Args:
        directory: Where to keep the files. It is made if it does not exist.
        settings: What ``settings.json`` shall hold. With ``resume`` it is not used: the
            directory has its own.
        resume: Whether to go on in a directory that has a checkpoint.

    Raises:
        FileExistsError: If the directory holds a run already and ``resume`` is false.
        FileNotFoundError: If there is no checkpoint to resume from.
        TypeError: If ``settings`` holds something that JSON cannot write.
        ValueError: If the checkpoint is none of ours.
    """

    def __init__(
        self,
        directory: str | Path,
        settings: dict[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self.checkpoint = self.directory / "checkpoint.pt"
        self.columns: list[str] = []
        self.state: dict[str, Any] | None = None
        if resume:
            self.state = load_checkpoint(self.checkpoint)
            self.settings = json.loads((self.directory / "settings.json").read_text())
            self.drop_rows_after(self.state["step"])
        else:
            # A run that died before its first checkpoint has left nothing to lose.
            if self.checkpoint.exists() or self.metrics.exists():
                raise FileExistsError(
                    f"{self.directory} holds a run: resume it or choose another name"
                )
            self.settings = settings or {}
            text = json.dumps(self.settings, indent=2)
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(self.directory / "settings.json", text.encode())
        # Each attempt writes events of its own. The first of them tells TensorBoard to
        # forget what an earlier attempt wrote from this step on.
        step = 0 if self.state is None else self.state["step"]
        self.events = EventsWriter(str(self.directory / "events"), f".{step}")
        begin = SessionLog(status=SessionLog.START)
        self.write_event(step=step + 1, session_log=begin)

    @property
    def metrics(self) -> Path:
        """Where the metrics are."""
        return self.directory / "metrics.csv"

    def drop_rows_after(self, step: int) -> None:
        """Keep the metrics' header and the whole rows up to a step."""
        if not self.metrics.exists():
            return
        lines = self.metrics.read_text("utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if whole:
            self.columns = next(csv.reader(whole[:1]))
        kept = [line for line in whole[1:] if int(line.split(",", 1)[0]) <= step]
        write_atomically(self.metrics, "".join(whole[:1] + kept).encode())

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append metrics to the table and to TensorBoard's events.

        Args:
            step: Steps taken so far.
            metrics: Numbers by name, the same names each time. NaN stands for "nothing
                to tell" and leaves the cell empty.

        Raises:
            ValueError: If the names differ from those of the first row.
        """
        columns = ["step", *metrics]
        cells = ["" if math.isnan(x) else f"{x:.8g}" for x in metrics.values()]
        rows = [[str(step), *cells]]
        if not self.columns:
            self.columns = columns
            rows.insert(0, columns)
        if columns != self.columns:
            raise ValueError(f"metrics must be {self.columns[1:]}, got {list(metrics)}")
        with self.metrics.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        finite = {name: x for name, x in metrics.items() if math.isfinite(x)}
        values = [Summary.Value(tag=tag, simple_value=x) for tag, x in finite.items()]
        self.write_event(step=step, summary=Summary(value=values))

    def write_event(self, **fields: Any) -> None:
        """Append an event for TensorBoard."""
        self.events.write_event(Event(wall_time=time.time(), **fields))

    def save(self, learner: Learner) -> None:
        """Write a checkpoint; the old one stays until the new one is whole."""
        self.events.flush()  # whoever resumes here finds all events up to here
        policy = learner.policy
        state = {
            "step": learner.step,
            "learner": learner.state_dict(),
            "policy": {
                "class": type(policy).__name__,
                "arguments": policy.arguments,
                "weights": policy.state_dict(),
            },
        }
        save_checkpoint(self.checkpoint, state)

    def restore(self, learner: Learner) -> None:
        """Bring a fresh learner to where a resumed run was saved."""
        if self.state is not None:
            learner.policy.load_state_dict(self.state["policy"]["weights"])
            learner.load_state_dict(self.state["learner"])

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.events.close()


FORMAT = "literate_rl checkpoint, version 1"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or all of the new one."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def save_checkpoint(path: str | Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Args:
        path: The file. One that exists is replaced.
        state: Tensors and plain values, nested in dictionaries and lists.

    Raises:
        TypeError: If ``state`` holds something that could not be loaded safely. Nothing
            is written then.
    """
    buffer = io.BytesIO()
    try:
        torch.save({"format": FORMAT, **state}, buffer)
        # Better to learn now than when the run is gone that it cannot be loaded.
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        raise TypeError(
            f"state must hold tensors and plain values only: {reason(error)}"
        ) from error
    write_atomically(Path(path), buffer.getvalue())


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint without running any code from it.

    Args:
        path: The file.

    Returns:
        What ``save_checkpoint`` was given. All tensors are on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file cannot be read, or is none of ours.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    # There is no end to the ways in which a damaged file fails.
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        message = f"{path} is damaged or no checkpoint: {reason(error)}"
        raise ValueError(message) from error
    if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
        raise ValueError(f"{path} is none of literate_rl's checkpoints ({FORMAT})")
    return state


def reason(error: Exception) -> str:
    """Return what went wrong in one sentence, without torch's advice to trust it."""
    first = error.__context__ or error
    sentence = str(first).partition("\n")[0].partition(". ")[0]
    return f"{type(first).__name__}: {sentence}"


def load(path: str | Path) -> Any:
    """Return the policy that a checkpoint holds, ready to act.

    Args:
        path: A checkpoint, or the directory of a run.

    Returns:
        The policy, an ``nn.Module`` in evaluation mode on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is none of ours, or holds no policy of this package.
    """
    path = Path(path)
    state = load_checkpoint(path / "checkpoint.pt" if path.is_dir() else path)
    saved = state.get("policy", {"class": None})
    name, package = saved["class"], import_module("literate_rl")
    policy_class: Any = getattr(package, name) if name in package.__all__ else None
    is_module = isinstance(policy_class, type) and issubclass(policy_class, nn.Module)
    if not (is_module and hasattr(policy_class, "act")):
        raise ValueError(f"{path} holds a {name!r}, which is no policy of literate_rl")
    policy = policy_class(**saved["arguments"])
    policy.load_state_dict(saved["weights"])
    return policy.eval()


def record_video(
    policy: Policy,
    env: str | Callable[..., gym.Env[Any, Any]],
    path: str | Path,
    seed: int = 0,
) -> float:
    """Film one episode without noise.

    Args:
        policy: The policy, on any device.
        env: A registered id, or a function that makes an environment and takes
            ``render_mode``.
        path: The mp4 file to write.
        seed: Decides the start, as in ``evaluate``.

    Returns:
        The undiscounted return of the episode.

    Raises:
        ValueError: If ``env`` cannot be made or cannot be drawn.
    """
    if not has_screen():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame would complain
    envs = make_visible(env, "rgb_array")
    frames: list[NDArray[np.uint8]] = []
    total = play(
        policy, envs, seed, lambda: frames.append(np.asarray(envs.render())[0])
    )
    fps = envs.metadata.get("render_fps", 30)
    envs.close()
    write_video(Path(path), frames, fps)
    return total


def has_screen() -> bool:
    """Say whether a window can be opened."""
    return bool(os.environ.get("DISPLAY")) or sys.platform in ("darwin", "win32")


def show(
    policy: Policy, env: str | Callable[..., gym.Env[Any, Any]], seed: int = 0
) -> float:
    """Play one episode without noise in a window, and return its return.

    Args:
        policy: The policy, on any device.
        env: As in ``record_video``.
        seed: Decides the start, as in ``evaluate``.

    Raises:
        ValueError: If ``env`` cannot be made or cannot be shown.
    """
    envs = make_visible(env, "human")
    total = play(policy, envs, seed, lambda: None)
    envs.close()
    return total


def make_visible(
    env: str | Callable[..., gym.Env[Any, Any]], mode: str
) -> VectorEnv[Any, Any, Any]:
    """Make one copy of an environment that draws itself."""
    envs = make_envs(partial(flat_env, env, render_mode=mode))
    if mode not in envs.metadata.get("render_modes", ()):
        envs.close()
        raise ValueError(f"env {env!r} has no render mode {mode!r}")
    return envs


def play(
    policy: Policy, envs: VectorEnv[Any, Any, Any], seed: int, look: Callable[[], None]
) -> float:
    """Play an episode in the only copy of an environment; look before each step."""
    obs, _ = envs.reset(seed=env_seed(seed, 0))
    total, done = 0.0, False
    while not done:
        look()
        obs, reward, terminated, truncated, _ = envs.step(greedy(policy, obs))
        total += float(reward[0])
        done = bool(terminated[0] or truncated[0])
    return total


def write_video(path: Path, frames: list[NDArray[np.uint8]], fps: int) -> None:
    """Write frames (H, W, 3) as an mp4 file that browsers play."""
    height, width, _ = frames[0].shape
    new = path.with_name(path.name + ".new.mp4")
    writer = imageio_ffmpeg.write_frames(
        str(new), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
    )
    writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame))
    writer.close()
    os.replace(new, path)


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


def bootstrap_interval(
    values: ArrayLike, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a confidence interval of the mean over seeds.

    Args:
        values: Results, (seeds,) or ``(seeds, *)``, at least two seeds.
        level: Confidence level, between 0 and 1.
        draws: Number of resampled means, at least 1.
        seed: Seed of the resampling.

    Returns:
        The lower and the upper end, each of the shape ``(*)``.

    Raises:
        ValueError: If there are fewer than two seeds, a result is not finite, or
            ``level`` or ``draws`` is out of range.

    Source:
        Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13
        (percentile interval).
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim < 1 or len(data) < 2:
        raise ValueError(f"values must hold at least 2 seeds, got shape {data.shape}")
    if not np.isfinite(data).all():
        raise ValueError("values must be finite")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    # How often each seed is drawn is all that a mean needs to know, {eq}`bootstrap`.
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(data), np.full(len(data), 1 / len(data)), size=draws)
    means = np.tensordot(counts / len(data), data, axes=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high


class StoredRuns(NamedTuple):
    """Training runs of one kind that differ in their seed only.

    Attributes:
        steps: Where the bins end, in environment steps, (N,).
        curves: Mean return of the episodes that ended in each bin, (seeds, N).
        final: Mean return without noise after the training, (seeds,).
        area: Mean of the training returns over the whole run, (seeds,).
        cpu_seconds: CPU time of the training, (seeds,).
        judged: What else was measured after the training, by name, (seeds,) each.
    """

    steps: NDArray[np.float64]
    curves: NDArray[np.float64]
    final: NDArray[np.float64]
    area: NDArray[np.float64]
    cpu_seconds: NDArray[np.float64]
    judged: dict[str, NDArray[np.float64]]


def stored_runs(name: str, folder: Path | None = None) -> dict[str, StoredRuns]:
    """Read the training runs that a benchmark of this book has stored.

    Args:
        name: Name of the experiment, for example ``"cartpole"``.
        folder: Where the files are. None finds ``benchmarks/results/learning`` in the
            working directory or above it.

    Returns:
        The runs by variant. In a bin in which no episode ended, the curve is the line
        between its neighbours.

    Raises:
        FileNotFoundError: If there is no such experiment.
    """
    if folder is None:
        above = (Path.cwd(), *Path.cwd().parents)
        results = (place / "benchmarks" / "results" / "learning" for place in above)
        folder = next(filter(Path.is_dir, results), Path.cwd())
    ends, bins = (read_rows(folder / f"{name}{part}.csv") for part in ("", "_curves"))
    runs = {}
    for variant in dict.fromkeys(row["variant"] for row in ends):
        mine = [row for row in ends if row["variant"] == variant]
        columns = {
            name: np.array([row[name] for row in mine], float)
            for name in mine[0]
            if name not in ("variant", "seed")
        }
        points = [(r["step"], r["return"]) for r in bins if r["variant"] == variant]
        table = np.array(points, float).reshape(len(mine), -1, 2)
        steps, curves = table[0, :, 0], table[:, :, 1]
        for curve in curves:
            known = np.isfinite(curve)
            curve[:] = np.interp(steps, steps[known], curve[known])
        runs[variant] = StoredRuns(
            steps,
            curves,
            columns.pop("return"),
            columns.pop("area"),
            columns.pop("cpu_seconds"),
            columns,
        )
    return runs


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a stored table without the lines about its origin."""
    if not path.exists():
        raise FileNotFoundError(
            f"no stored runs in {path}: they come with the book's repository"
        )
    lines = path.read_text("utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))

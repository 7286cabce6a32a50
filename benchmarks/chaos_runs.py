"""Chaos in trainings: killed, interrupted, damaged, tampered with, out of space.

A tiny training takes a fraction of a second, and importing torch takes seconds. So this
process imports everything once and forks a child for each training.
"""

from __future__ import annotations

import csv
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch
import torch._dynamo  # optimisers import it when the first one is made
from torch import Tensor

from benchmarks import chaos_worlds
from literate_rl.apps import cli, commands
from literate_rl.runs.runs import load_checkpoint, save_checkpoint

Row = dict[str, Any]
PATIENCE = 120.0  # seconds after which a training hangs

# --- Trainings of a moment ------------------------------------------------------------

# Everything that has a state takes part: optimisers, normalisers, the order of
# minibatches, replay, priorities, and environments in the middle of their episodes.
EACH = "--seed=3 --checkpoint-interval=2"
ON_POLICY = f"{EACH} --num-envs=2 --num-steps=16 --total-steps=640"
PHASES = f"{ON_POLICY} --num-epochs=2 --num-minibatches=2 --normalize-obs"
UNROLLS = f"{EACH} --unroll-len=8 --n-sample=2 --batch-size=2 --total-steps=640"
REPLAY = f"{EACH} --num-envs=2 --hidden=16 --iteration-steps=32 --learning-starts=64"
REPLAY += " --batch-size=8 --buffer-size=200 --total-steps=320"
CONTINUOUS = f"--env=Pendulum-v1 {REPLAY}"
ATOMS = f"{REPLAY} --num-atoms=11"
APEX = "--rollout-len=8 --actors=2"
TRAININGS = {
    "ppo": f"ppo {PHASES} --scale-reward",
    "ppo, Gaussian": f"ppo --env=Pendulum-v1 {PHASES}",
    "ppo, LunarLander": f"ppo --env=LunarLander-v3 {PHASES}",
    "ppg": f"ppg {PHASES} --aux-interval=3 --aux-epochs=2",
    "impala": f"impala {UNROLLS} --replay-buffer-size=4",
    "impala, actors": f"impala {UNROLLS} --actors=2",
    "a2c": f"a2c {ON_POLICY}",
    "a3c": f"a3c {ON_POLICY}",
    "dqn": f"dqn {REPLAY}",
    "c51": f"rainbow {ATOMS} --no-noisy --no-dueling --no-double --priority-exponent=0",
    "rainbow": f"rainbow {ATOMS}",
    "ddpg": f"ddpg {CONTINUOUS}",
    "hddpg": f"hddpg {CONTINUOUS}",
    "td3": f"td3 {CONTINUOUS}",
    "sac": f"sac {CONTINUOUS}",
    "sac, discrete": f"sac {REPLAY}",
    "dqn, apex": f"dqnapex {REPLAY} {APEX}",
    "rainbow, apex": f"rainbowapex {ATOMS} {APEX}",
    "ddpg, apex": f"ddpgapex {CONTINUOUS} {APEX}",
}


class Child:
    """A command of the package in a forked process.

    Args:
        place: The working directory.
        words: What follows ``python -m literate_rl``.
        limits: What the process may use, by the number of the resource.
    """

    def __init__(self, place: Path, words: list[str], **limits: int) -> None:
        self.output = place / "output.txt"
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self.carry_out(place, words, limits)

    def carry_out(self, place: Path, words: list[str], limits: dict[str, int]) -> None:
        """Carry the command out and end the process: the child gets no further."""
        code = 1
        try:
            file = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.chdir(place)
            sys.path.insert(0, str(place))  # as Python does with -m
            # The episodes at the end have nothing to do with what is kept.
            cli.evaluate = lambda *_, **__: np.zeros(20)  # type: ignore[assignment]
            for name, limit in limits.items():
                kind = getattr(resource, name)
                resource.setrlimit(kind, (limit, limit))
            commands.main(words)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
            os.write(2, f"{end.code}\n".encode())
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            sys.stdout.flush()
            os._exit(code)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None for a child that is killed: it took longer."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.001)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None

    def last_line(self) -> str:
        """Return what the command said last."""
        return self.output.read_text("utf-8", "replace").strip().rpartition("\n")[2]


@cache
def undisturbed(name: str) -> tuple[tempfile.TemporaryDirectory[str], float]:
    """Train without any disturbance; return where, and the seconds that it took."""
    folder = tempfile.TemporaryDirectory(prefix="chaos_")  # deleted with this process
    start = time.monotonic()
    child = Child(Path(folder.name), [*TRAININGS[name].split(), "--name=a"])
    if child.wait(PATIENCE) != 0:
        raise RuntimeError(f"{name}: {child.output.read_text()}")
    return folder, time.monotonic() - start


def whole(name: str) -> tuple[Path, float]:
    """Return the directory of a training that nobody disturbed, and its seconds."""
    folder, seconds = undisturbed(name)
    return Path(folder.name, "runs/a"), seconds


def complaint(child: Child) -> str:
    """Return why an output does not end with one line of refusal, or nothing."""
    text = child.output.read_text("utf-8", "replace")
    lines = [line for line in text.splitlines() if line]
    found = [line for line in lines if line.startswith("error: ")]
    if "Traceback" in text or not found or found != lines[-1:]:
        return text[-300:] or "no word"
    return ""


def snapshot(run: Path) -> dict[str, bytes]:
    """Return the content of all files of a run."""
    return {x.name: x.read_bytes() for x in run.iterdir()}


def difference(one: Path, other: Path) -> str:
    """Compare the last checkpoints and the tables of two runs; say what differs."""
    left, right = (
        dict(flat(load_checkpoint(run / "checkpoint.pt"))) for run in (one, other)
    )
    if left.keys() != right.keys():
        return "the checkpoints hold other things"
    for name, value in left.items():
        if not equal(value, right[name]):
            return f"{name} differs"
    return "" if table(one) == table(other) else "the metrics differ"


def equal(one: object, other: object) -> bool:
    """Compare two values bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other or (one != one and other != other)


def flat(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Go through all that a checkpoint holds, by name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from flat(item, f"{name}/{index}")
    else:
        yield name, value


def table(run: Path) -> list[list[str]]:
    """Return the metrics without the speed."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    keep = [k for k, name in enumerate(rows[0]) if name != "charts/SPS"]
    return [[row[k] for k in keep] for row in rows]


# --- Kills ----------------------------------------------------------------------------


def kills(seed: int, count: int, names: Collection[str] = TRAININGS) -> list[Row]:
    """Kill trainings, resume them, kill them again, until they are done."""
    random, rows = Random(seed), []
    for name in names:
        left = -(-count // len(names))
        while left > 0:
            times, why = killed(name, random)
            rows.append(verdict(f"SIGKILL, {name}", why, times))
            left -= max(times, bool(why))
    return rows


def killed(name: str, random: Random) -> tuple[int, str]:
    """Return how often one training was killed, and how its end differs."""
    original, seconds = whole(name)
    times, words = 0, TRAININGS[name].split()
    with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
        run = Path(folder, "runs/a")
        options = [*words, "--name=a"]
        while True:
            child = Child(Path(folder), options)
            code = child.wait(random.uniform(0, seconds) if times < 4 else PATIENCE)
            if code == 0:
                return times, difference(original, run)
            if code is not None or times == 4:
                return times, child.output.read_text()[-200:] or "it hangs"
            times += 1
            if (run / "checkpoint.pt").exists():
                options = [words[0], "--resume=runs/a"]


def verdict(what: str, why: str, times: int = 1) -> Row:
    """Return a row: what was tried, how often, and why it did not hold."""
    why = " ".join(why.split())
    return {"what": what, "times": times, "held": not why, "why": why}


# --- Damage ---------------------------------------------------------------------------


def bits(seed: int, count: int, names: Collection[str] = TRAININGS) -> list[Row]:
    """Flip bits in checkpoints: each is refused, or holds what it held."""
    random, rows = Random(seed), []
    originals = {}
    for name in names:
        path = whole(name)[0] / "checkpoint.pt"
        originals[name] = path.read_bytes(), dict(flat(load_checkpoint(path)))
    with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
        damaged = Path(folder, "damaged.pt")
        for _, name in zip(range(count), cycle(originals), strict=False):
            before, content = originals[name]
            after = bytearray(before)
            place = random.randrange(8 * len(after))
            after[place // 8] ^= 1 << place % 8
            damaged.write_bytes(after)
            try:
                read = dict(flat(load_checkpoint(damaged)))
            except ValueError:
                why = ""
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            else:
                same = read.keys() == content.keys() and all(
                    equal(value, content[key]) for key, value in read.items()
                )
                why = "" if same else f"bit {place} loads and changes something"
            rows.append(verdict("one bit of a checkpoint flipped", why))
    return rows


HOSTILE: list[Any] = [None, "", "x", "../..", "os:system", True, -1, 0, 1, 3, 10**6]
HOSTILE += [2**70, 0.5, 1e308, -1e-308, math.nan, math.inf, [], [1], {}, {"a": [1]}]
RAW = ["", "{", "[]", "null", '"x"', "[" * 100_000, "\udcff", "{}", '{"config": {}}']


def settings(seed: int, count: int, names: Collection[str] = TRAININGS) -> list[Row]:
    """Tamper with settings: refused in one line with nothing touched, or legal."""
    random, rows = Random(seed), []
    for _, name in zip(range(count), cycle(names), strict=False):
        with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
            run = shutil.copytree(whole(name)[0], Path(folder, "runs/a"))
            said = tamper(run / "settings.json", random)
            before = snapshot(run)
            words = [TRAININGS[name].split()[0], "--resume=runs/a"]
            # A number may ask for all memory there is. The child begins with what this
            # process has, and that can be a lot: V8 reserves a terabyte of addresses.
            limit = psutil.Process().memory_info().vms + 2**34
            child = Child(Path(folder), words, RLIMIT_AS=limit)
            code, why = child.wait(20.0), ""
            # What still trains, or has come to its end, had a legal value.
            if code not in (None, 0):
                why = complaint(child)
                if not why and snapshot(run) != before:
                    why = f"refused, but files have changed: {child.last_line()}"
            rows.append(
                verdict("settings.json tampered with", why and f"{said}: {why}")
            )
    return rows


def tamper(path: Path, random: Random) -> str:
    """Change one thing in a file of settings; say which."""
    if random.random() < 0.1:
        text = random.choice(RAW)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return repr(text[:20])
    stored = json.loads(path.read_text())
    inside = random.random() < 0.8
    part = stored["config"] if inside else stored
    name, value = random.choice([*part, "stranger"]), random.choice(HOSTILE)
    part[name] = value
    path.write_text(json.dumps(stored))
    return f"{name}={value!r}"


def folders(seed: int, count: int, names: Collection[str] = TRAININGS) -> list[Row]:
    """Resume what is no run of one's own: refused in one line, nothing touched."""
    random, rows = Random(seed), []
    for _, name, deed in zip(range(count), cycle(names), cycle(DEEDS), strict=False):
        with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
            run = shutil.copytree(whole(name)[0], Path(folder, "runs/a"))
            words = [TRAININGS[name].split()[0], "--resume=runs/a"]
            with deed(run, random) as kind:
                # Where somebody writes, files come and go.
                look = (lambda _: {}) if kind == "written to" else snapshot
                before = look(run)
                child = Child(Path(folder), words)
                code = child.wait(PATIENCE)
                why = complaint(child) if code == 1 else f"exit code {code}"
                if code == 1 and look(run) != before:
                    why = f"refused, but files have changed: {child.last_line()}"
                if kind == "may fit" and code == 0:
                    why = ""
                if Path(folder, "opened").exists():
                    why = "code of the folder has run"
            what = f"resumed: {deed.__name__.replace('_', ' ')}"
            rows.append(verdict(what, why and f"{name}: {why}"))
    return rows


@contextmanager
def a_checkpoint_of_another_training(run: Path, random: Random) -> Iterator[str]:
    """Put the last checkpoint of another training into a run."""
    (run / "checkpoint.previous.pt").unlink()
    state = load_checkpoint(whole(random.choice(list(TRAININGS)))[0] / "checkpoint.pt")
    settings = json.loads((run / "settings.json").read_text())
    forged = random.random() < 0.5
    kept = state["settings"]
    related = all(kept[key] == settings[key] for key in ("algorithm", "env"))
    save_checkpoint(
        run / "checkpoint.pt", {**state, "settings": settings if forged else kept}
    )
    (run / "checkpoint.previous.pt").unlink()
    yield "may fit" if forged or related else "foreign"


@contextmanager
def an_environment_that_imports_a_file(run: Path, random: Random) -> Iterator[str]:
    """Let the settings name a module that lies in the folder."""
    (run.parents[1] / "evil.py").write_text("open('opened', 'w')")
    settings = json.loads((run / "settings.json").read_text())
    settings["env"] = f"evil:{settings['env']}"
    (run / "settings.json").write_text(json.dumps(settings))
    state = {**load_checkpoint(run / "checkpoint.pt"), "settings": settings}
    save_checkpoint(run / "checkpoint.pt", state)
    yield "foreign"


@contextmanager
def a_run_that_goes_on_elsewhere(run: Path, random: Random) -> Iterator[str]:
    """Let another process train in the folder."""
    settings = json.loads((run / "settings.json").read_text())
    settings["config"]["total_steps"] = 10**9
    (run / "settings.json").write_text(json.dumps(settings))
    size = (run / "metrics.csv").stat().st_size
    place = Path(tempfile.mkdtemp(dir=run.parents[1]))
    (place / "runs").symlink_to(run.parent)
    other = Child(place, [settings["algorithm"], "--resume=runs/a"])
    until = time.monotonic() + PATIENCE
    while (run / "metrics.csv").stat().st_size <= size and time.monotonic() < until:
        time.sleep(random.uniform(0, 0.02))
    yield "written to"
    other.wait(0)  # it trains for ever


DEEDS = (
    a_checkpoint_of_another_training,
    an_environment_that_imports_a_file,
    a_run_that_goes_on_elsewhere,
)


def disk(seed: int, count: int, names: Collection[str] = TRAININGS) -> list[Row]:
    """Let the space end: one line, then the training goes on to the same end."""
    random, rows = Random(seed), []
    for _, name in zip(range(count), cycle(names), strict=False):
        original, words = whole(name)[0], TRAININGS[name].split()
        size = (original / "checkpoint.pt").stat().st_size
        with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
            place, run = Path(folder), Path(folder, "runs/a")
            # The limit of the system on the size of a file: full disks fail likewise.
            limit = random.choice([random.randint(0, 4096), random.randint(0, size)])
            child = Child(place, [*words, "--name=a"], RLIMIT_FSIZE=limit)
            code = child.wait(PATIENCE)
            why = complaint(child) if code == 1 else f"exit code {code}"
            if code == 1 and not why:
                again = [*words, "--name=a"]
                if (run / "checkpoint.pt").exists():
                    again = [words[0], "--resume=runs/a"]
                child = Child(place, again)
                code = child.wait(PATIENCE)
                why = child.output.read_text()[-200:] if code else ""
                why = why or difference(original, run)
            rows.append(verdict("no space for a file", why and f"{name}: {why}"))
    return rows


def worlds(seed: int, count: int, names: Collection[str] = TRAININGS) -> list[Row]:
    """Train in environments that break: one line, and what was written is kept."""
    random, rows = Random(seed), []
    faults = cycle(chaos_worlds.FAULTS)
    for _, name, fault in zip(range(count), cycle(names), faults, strict=False):
        words = [x for x in TRAININGS[name].split() if not x.startswith("--env")]
        at, numbers = random.randint(1, 8), "Pendulum" in TRAININGS[name]
        world = {"fault": fault, "at": at, "continuous": numbers}
        entry = f"{chaos_worlds.__name__}:Breaking"
        gym.register("Breaking-v0", entry, kwargs=world, max_episode_steps=10)
        with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
            words += ["--env=Breaking-v0", "--name=a"]
            child = Child(Path(folder), words)
            code = child.wait(PATIENCE)
            why = complaint(child) if code == 1 else f"exit code {code}"
            if (
                not why
                and "env" not in child.output.read_text().partition("error: ")[2]
            ):
                why = "names no environment"
            checkpoint = Path(folder, "runs/a/checkpoint.pt")
            if not why and checkpoint.exists():
                load_checkpoint(checkpoint)
        gym.registry.pop("Breaking-v0")
        rows.append(verdict("environment that breaks", why and f"{fault}: {why}"))
    return rows


# --- Ctrl-C ---------------------------------------------------------------------------


def interrupts(seed: int, count: int) -> list[Row]:
    """Press Ctrl-C at any moment from the start of Python to the end."""
    random, rows = Random(seed), []
    seconds = interrupted("ppo", math.inf)[0]
    for _, name in zip(range(count), cycle(TRAININGS), strict=False):
        _, why = interrupted(name, random.uniform(0, seconds))
        rows.append(verdict("Ctrl-C", why))
    return rows


def interrupted(name: str, delay: float) -> tuple[float, str]:
    """Interrupt a command after a delay; return its seconds and what went wrong."""
    words = TRAININGS[name].split()
    command = [sys.executable, "-m", "literate_rl", *words, "--name=a"]
    with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
        start = time.monotonic()
        # In the background of a shell the signal would be ignored.
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        with process:
            try:
                process.wait(min(delay, PATIENCE))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            try:
                text, _ = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                return delay, f"{name}: still running"
        seconds = time.monotonic() - start
        code, checkpoint = process.returncode, Path(folder, "runs/a/checkpoint.pt")
        at = f"{name} after {delay:.2f} s: "
        # Before Python listens to signals, and when it closes down after the last line,
        # the system ends the process by itself, and a shell shows 130 as well.
        outside = not text or "return of 20 episodes" in text
        if code not in (0, 130) and not (code == -signal.SIGINT and outside):
            return seconds, f"{at}exit code {code}, {text[-60:]}"
        if "Traceback" in text or (code == 130 and "interrupted" not in text):
            return seconds, at + text[-200:]
        if checkpoint.exists():
            child = Child(Path(folder), [words[0], "--resume=runs/a"])
            if child.wait(PATIENCE) != 0:
                return seconds, at + child.output.read_text()[-200:]
        return seconds, ""

"""Films of the agents that this book trains, before training and after it.

``python -m benchmarks.films [NAME …]`` trains each agent with the settings and the seed
of a stored experiment. The untrained policy, which draws its actions as training
begins, and the last one, without noise, play a hundred episodes from the same starts.
Of each the episode with the median return is filmed. Films and posters
go to ``docs/_static/films``, what they show to ``benchmarks/results/films.csv``. A run
is kept in ``build/films``: one that was stopped goes on, one that is complete is only
filmed again. README's learning curve is drawn from the stored runs.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from benchmarks import (
    hybrid_learning,
    learning,
    ppg_learning,
    rainbow_learning,
    sac_learning,
)
from benchmarks.harness import provenance
from benchmarks.store import RESULTS, read_table, write_table
from literate_rl.runs.evaluation import t_interval
from literate_rl.runs.runs import (
    Run,
    fit,
    has_screen,
    make_visible,
    play,
    stored_runs,
    video_writer,
)

ROOT = Path(__file__).resolve().parents[1]
FILMS = ROOT / "docs/_static/films"
WORK = ROOT / "build/films"
TABLE = RESULTS / "films.csv"
EPISODES = 100
MOST_STEPS = 1000  # of an episode
REST = 0.8  # seconds that the last frame of an episode stands still
PANEL, GAP = 288, 8  # pixels: all films are two squares side by side

EXPERIMENTS = {
    **learning.EXPERIMENTS,
    **hybrid_learning.EXPERIMENTS,
    **ppg_learning.EXPERIMENTS,
    **rainbow_learning.EXPERIMENTS,
    **sac_learning.EXPERIMENTS,
}

Frame = NDArray[np.uint8]


@dataclass(frozen=True)
class Film:
    """What is filmed and how.

    Attributes:
        experiment: Name of the experiment whose agent it is.
        variant: Its variant in the experiment.
        agent: What the agent is called.
        part: Top, bottom, left and right of the part of a frame that is shown, as
            shares of its height and of its width.
        speed: Steps of the environment in a second of the film.
        every: How many steps lie between two frames.
        grid: How many episodes stand beside and below each other in a panel.
        ground: Brightness of the ground, which is turned dark, or 0 where colours stay
            and only greys are toned down.
        grey: How far the channels of a grey lie apart at most, as a share of the
            brightest.
        camera: Name of the camera, for an agent that would leave the picture.
        longest: Seconds that the film takes at most.
        skipped: Seconds at the beginning of an episode that are left out.
    """

    experiment: str
    variant: str = "PPO"
    agent: str = "PPO"
    part: tuple[float, float, float, float] = (0.0, 1.0, 0.0, 1.0)
    speed: int = 30
    every: int = 1
    grid: int = 1
    ground: int = 255
    grey: float = 0.05
    camera: str | None = None
    longest: float = 10.8
    skipped: float = 0.0


LANDER = Film("", part=(0.0, 1.0, 1 / 6, 5 / 6), speed=50, every=2, ground=0)
FILMED = {
    "cartpole": Film("cartpole", part=(0.25, 0.85, 0.3, 0.7), speed=50, every=2),
    "acrobot": Film("acrobot", speed=15),
    "pendulum": Film("pendulum", part=(0.2, 0.8, 0.2, 0.8), every=2),
    "moving": Film("moving", "joint", "hybrid PPO", speed=12, grid=2, ground=235),
    "mountaincar": Film(
        "rainbow_mountaincar", "n = 10, noisy for 20 steps", "DQN with noisy layers"
    ),
    "lander": replace(
        LANDER,
        experiment="lander",
        variant="joint",
        agent="hybrid PPO",
        skipped=1.2,  # until then the landers are above the picture
    ),
    "lander_discrete": replace(LANDER, experiment="lander_discrete"),
    "lander_continuous": replace(LANDER, experiment="lander_continuous"),
    "maze": Film("ppg_maze", "PPG", "PPG", speed=5, grid=2, ground=0),
    "cheetah": Film(
        "sac_cheetah",
        "SAC",
        "SAC",
        part=(0.2, 1.0, 0.1, 0.9),
        speed=20,
        ground=0,
        grey=0.15,
        camera="track",
        longest=5.4,  # then it comes to the end of the floor
    ),
}

ON_README = "lander"


# --- Training -------------------------------------------------------------------------


def trained(name: str, film: Film) -> tuple[Any, Any, Any, str]:
    """Train an agent, or go on with the run that is there.

    Returns:
        The untrained policy, the last one, its settings, and the environment's id.
    """
    experiment = EXPERIMENTS[film.experiment]
    variant = experiment.variants[film.variant]
    changes = variant.changes | {"seed": experiment.first_seed}
    config: Any = replace(experiment.config, **changes)
    build = variant.build or partial(learning.agent, env=experiment.env)
    learner = build(config)
    before = copy.deepcopy(learner.policy)
    settings = {
        "algorithm": film.variant,
        "env": experiment.env,
        "config": asdict(config),
    }
    folder = WORK / name
    resume = (folder / "checkpoint.pt").exists()
    with Run(folder, settings, resume) as run:
        if run.settings != settings:
            raise ValueError(f"{folder} was trained with other settings: remove it")
        run.restore(learner)
        fit(learner, run, progress=False)
    learning.close(learner)
    return before.eval(), learner.policy.eval(), config, experiment.env


# --- Playing --------------------------------------------------------------------------


class Drawing:
    """An untrained policy for one episode. It draws its actions, as training begins.

    Args:
        policy: The policy.
        start: Number of the episode, which decides what is drawn.
    """

    def __init__(self, policy: Any, start: int) -> None:
        self.policy, self.parameters = policy, policy.parameters
        generator = torch.Generator().manual_seed(start)
        self.noise = iter(policy.noise(MOST_STEPS, 1, generator))

    def act(self, obs: Tensor, noise: float) -> Any:
        """Act with the next noise."""
        return self.policy.act(obs, next(self.noise))

    def to_env(self, action: Any) -> Any:
        """Return the action as the environment takes it."""
        return self.policy.to_env(action)


Player = Callable[[int], Any]  # from the number of a start to who plays there


def returns(player: Player, env: str) -> NDArray[np.float64]:
    """Return what is got from each of the hundred starts."""
    envs = make_visible(env, "rgb_array")
    played = [
        play(player(start), envs, learning.EVALUATION_SEED + start, MOST_STEPS).item()
        for start in range(EPISODES)
    ]
    envs.close()
    return np.array(played)


def in_the_middle(values: NDArray[np.float64], number: int) -> list[int]:
    """Return episodes that are spread evenly over the ordered returns.

    A single one is the median.
    """
    ordered = np.argsort(values, kind="stable")
    return [int(ordered[int((k + 0.5) / number * len(values))]) for k in range(number)]


def frames_of(player: Player, env: str, start: int, film: Film) -> list[Frame]:
    """Play the episode of one start and return its frames, dressed."""
    made = partial(gym.make, env, camera_name=film.camera) if film.camera else env
    envs = make_visible(made, "rgb_array")
    frames: list[Frame] = []

    def look() -> None:
        frames.append(np.asarray(envs.render())[0])

    seed = learning.EVALUATION_SEED + start
    play(player(start), envs, seed, MOST_STEPS, look=look)
    envs.close()
    size = PANEL // film.grid - (GAP // 2 if film.grid > 1 else 0)
    first = round(film.skipped * film.speed)
    return [dressed(frame, film, size) for frame in frames[first :: film.every]]


# --- Pictures -------------------------------------------------------------------------

# Light and dark pages show the same film: its ground is dark, what moves is light.
GROUND, PAPER = np.array([27, 34, 44.0]), np.array([236, 232, 224.0])
BETWEEN = 0.5 * GROUND


def dressed(frame: Frame, film: Film, size: int) -> Frame:
    """Cut a frame, fit it into a square, and give it the ground of all films."""
    height, width = frame.shape[:2]
    top, bottom, left, right = film.part
    rows = slice(round(top * height), round(bottom * height))
    cut = Image.fromarray(frame[rows, round(left * width) : round(right * width)])
    # Nearest neighbours keep the edges of small pictures.
    smooth = Image.Resampling.LANCZOS if height > 300 else Image.Resampling.NEAREST
    scale = size / max(cut.size)
    cut = cut.resize((round(scale * cut.width), round(scale * cut.height)), smooth)

    colours = np.asarray(cut, float) / 255
    if film.ground:
        # Turn light and dark around and leave the hue.
        colours = (colours * 255 / film.ground).clip(0, 1)
        colours = colours + 1 - 2 * colours.mean(-1, keepdims=True)
    else:
        # The land is large and grey; white, it would outshine what moves on it.
        apart = np.ptp(colours, axis=-1, keepdims=True)
        grey = apart <= film.grey * colours.max(-1, keepdims=True)
        colours = np.where(grey, 0.35 * colours, colours)
    picture = np.empty((size, size, 3))
    picture[:] = GROUND
    y, x = (size - cut.height) // 2, (size - cut.width) // 2
    shown = GROUND + colours.clip(0, 1) * (PAPER - GROUND)
    picture[y : y + cut.height, x : x + cut.width] = shown
    return picture.astype(np.uint8)


def looped(frames: list[Frame], rest: int, length: int) -> Iterator[Frame]:
    """Repeat an episode, with its last frame at rest, until the film is over."""
    return islice(cycle(frames + rest * frames[-1:]), length)


def tiled(frames: tuple[Frame, ...], columns: int) -> Frame:
    """Set frames side by side and in rows, with gaps between them."""
    size = len(frames[0])
    rows = -(-len(frames) // columns)
    span = size + GAP
    picture = np.empty((rows * span - GAP, columns * span - GAP, 3), np.uint8)
    picture[:] = BETWEEN
    for number, frame in enumerate(frames):
        row, column = divmod(number, columns)
        y, x = row * span, column * span
        picture[y : y + size, x : x + size] = frame
    return picture


def film_of(
    episodes: list[list[Frame]], film: Film, fps: float
) -> tuple[list[Frame], list[Frame]]:
    """Set episodes before and after training side by side.

    Returns:
        The frames of the film, and those of it in which the longest episode is played.
    """
    rest = round(REST * fps)
    longest = max(map(len, episodes))
    length = min(longest + rest, round(film.longest * fps))
    number = film.grid**2
    sides = [
        [
            tiled(frames, film.grid)
            for frames in zip(
                *(looped(each, rest, length) for each in part), strict=True
            )
        ]
        for part in (episodes[:number], episodes[number:])
    ]
    frames = [tiled(pair, 2) for pair in zip(*sides, strict=True)]
    return frames, frames[:longest]


def poster(frames: list[Frame], shots: int = 7) -> Image.Image:
    """Expose one picture several times, the later the brighter."""
    picture = frames[0].astype(float)
    chosen = np.linspace(0, len(frames) - 1, shots).round().astype(int)
    for weight, number in zip(np.linspace(0.3, 1, shots), chosen, strict=True):
        shot = GROUND + weight * (frames[number] - GROUND)
        picture = np.maximum(picture, shot) if number else shot
    made = Image.fromarray(picture.clip(0, 255).astype(np.uint8))
    return made.quantize(128, dither=Image.Dither.NONE)


def draw_curve(name: str) -> None:
    """Draw the stored learning curves of an agent in the look of its film."""
    film = FILMED[name]
    runs = stored_runs(film.experiment, learning.LEARNING)[film.variant]
    origin = read_table(learning.LEARNING / f"{film.experiment}.csv")[1]
    ground, paper = (tuple(colour / 255) for colour in (GROUND, PAPER))
    accent = "#f0956b"
    look = {
        "svg.hashsalt": "literate-rl",
        "font.size": 11,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), paper
        ),
        "axes.edgecolor": paper,
        "axes.facecolor": ground,
        "figure.facecolor": ground,
    }
    with matplotlib.rc_context(look):
        drawing = Figure(figsize=(2 * PANEL / 72, PANEL / 72), layout="constrained")
        axes = drawing.add_subplot()
        steps = runs.steps / 1000
        low, high = t_interval(runs.curves)
        axes.plot(steps, runs.curves.T, color=paper, alpha=0.35, linewidth=0.8)
        axes.fill_between(steps, low, high, color=accent, alpha=0.25, linewidth=0)
        axes.plot(steps, runs.curves.mean(0), color=accent, linewidth=2.5)
        axes.axhline(float(origin["goal"]), color=paper, linestyle=":", linewidth=1)
        axes.set(xlabel="thousand steps", ylabel="return while training")
        axes.set_xlim(0, steps[-1])
        axes.spines[["top", "right"]].set_visible(False)
        drawing.savefig(FILMS / f"{name}_learning.svg", metadata={"Date": None})


# --- All of it ------------------------------------------------------------------------

COLUMNS = (
    "film",
    "agent",
    "env",
    "seed",
    "steps",
    "starts_before",
    "returns_before",
    "mean_before",
    "starts_after",
    "returns_after",
    "mean_after",
    "seconds",
)


def make(name: str, film: Film) -> dict[str, str]:
    """Make one film and its poster; return its row of the table."""
    before, after, config, env = trained(name, film)
    players: list[Player] = [partial(Drawing, before), lambda start: after]
    values = [returns(player, env) for player in players]
    starts = [in_the_middle(got, film.grid**2) for got in values]
    episodes = [
        frames_of(player, env, start, film)
        for player, chosen in zip(players, starts, strict=True)
        for start in chosen
    ]
    fps = film.speed / film.every
    frames, once = film_of(episodes, film, fps)
    FILMS.mkdir(parents=True, exist_ok=True)
    with video_writer(FILMS / f"{name}.mp4", round(fps)) as write:
        for frame in frames:
            write(frame)
    poster(once).save(FILMS / f"{name}.png", optimize=True)
    row: dict[str, object] = {
        "film": name,
        "agent": film.agent,
        "env": env,
        "seed": config.seed,
        "steps": config.total_steps,
        "seconds": f"{len(frames) / fps:.1f}",
    }
    for when, got, chosen in zip(("before", "after"), values, starts, strict=True):
        row[f"starts_{when}"] = " ".join(map(str, chosen))
        row[f"returns_{when}"] = " ".join(f"{got[start]:.4g}" for start in chosen)
        row[f"mean_{when}"] = f"{got.mean():.4g}"
    return {column: str(row[column]) for column in COLUMNS}


def store(rows: list[dict[str, str]], command: str) -> None:
    """Write rows into the table; those of other films stay."""
    table = {row["film"]: row for row in read_table(TABLE)[0]} if TABLE.exists() else {}
    table |= {row["film"]: row for row in rows}
    origin = provenance(command, "gymnasium", "imageio-ffmpeg")
    origin.pop("seed")
    origin["episodes"] = str(EPISODES)
    ordered = [table[name] for name in FILMED if name in table]
    write_table(TABLE, COLUMNS, [list(row.values()) for row in ordered], origin)


def main() -> None:
    """Read the command line and film."""
    command = "python -m benchmarks.films"
    parser = argparse.ArgumentParser(prog=command)
    parser.add_argument("names", nargs="*", default=list(FILMED), metavar="NAME")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in FILMED:
            parser.error(f"no film {name!r}, choose from {', '.join(FILMED)}")
    if not has_screen():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    torch.set_num_threads(1)
    for name in arguments.names:
        row = make(name, FILMED[name])
        store([row], command)
        size = (FILMS / f"{name}.mp4").stat().st_size / 1000
        print(
            f"{name}: {row['mean_before']} before, {row['mean_after']} after training; "
            f"{row['seconds']} s, {size:.0f} kB",
            flush=True,
        )
        if name == ON_README:
            draw_curve(name)


if __name__ == "__main__":
    main()

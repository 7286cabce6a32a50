# Generated from chapters/book/train_here.py (edit there); digest 2c5a92b5f409875c
"""Train here: PPO and Q-learning in the page, with settings that the reader turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import sqrt
from typing import Any, NamedTuple

from literate_rl.book.pictures import (
    Axis,
    Mark,
    Picture,
    Widget,
    figure,
    plot,
    script,
    slider,
)
from literate_rl.book.playground import METRE, MOVING_STYLE, scene
from literate_rl.ground.signatures import Fraction, checked
from literate_rl.runs.runs import stored_runs

__all__ = ["SETTINGS", "Learned", "learn_maze", "train_cartpole", "train_maze"]


SETTINGS = {
    "hidden": 16,
    "limit": 500,
    "num_envs": 8,
    "num_steps": 32,
    "num_minibatches": 8,
    "gamma": 0.98,
    "lambda": 0.8,
    "entropy_weight": 0.01,
    "value_weight": 0.5,
    "max_grad_norm": 0.5,
}
TOTAL = 160 * 256  # steps, after which nothing more is learned


class Maze(NamedTuple):
    """A maze as a table.

    Attributes:
        cells: Row and column of each cell.
        next: The cells to which the actions up, right, down and left lead.
        prize: What a cell pays; a prize ends the episode.
        start: Where episodes begin.
    """

    cells: list[tuple[int, int]]
    next: list[list[int]]
    prize: list[int]
    start: int


def maze_of(rows: Sequence[str]) -> Maze:
    """Read a maze: ``#`` is a wall, ``s`` the start, and two letters are prizes."""
    cells = [
        (y, x)
        for y, row in enumerate(rows)
        for x, sign in enumerate(row)
        if sign != "#"
    ]
    signs = [rows[y][x] for y, x in cells]
    leads = [
        [
            cells.index(to) if to in cells else here
            for to in ((y - 1, x), (y, x + 1), (y + 1, x), (y, x - 1))
        ]
        for here, (y, x) in enumerate(cells)
    ]
    prizes = [{"n": 1, "f": 10}.get(sign, 0) for sign in signs]
    return Maze(cells, leads, prizes, signs.index("s"))


ROWS = ("........", ".##.###.", "n.s.#.#f", ".##...#.", "...#....")
MAZE = maze_of(ROWS)
MAZE_SETTINGS = {
    "next": MAZE.next,
    "prize": MAZE.prize,
    "start": MAZE.start,
    "limit": 100,
    "num_steps": 25,
}
MAZE_TOTAL = 240 * 25


def uniform(seed: int) -> Iterator[float]:
    """Yield the numbers that the scripts draw."""
    low = 2**32 - 1
    while True:
        seed = (seed + 0x6D2B79F5) & low
        mixed = (seed ^ seed >> 15) * (1 | seed) & low
        mixed ^= (mixed + (mixed ^ mixed >> 7) * (61 | mixed)) & low
        yield (mixed ^ mixed >> 14) / 2**32


def walk(table: Sequence[Sequence[float]], limit: int = 100) -> int:
    """Return the prize to which the first of the best actions lead, or 0."""
    place = MAZE.start
    while limit and not MAZE.prize[place]:
        values = table[place]
        place, limit = MAZE.next[place][values.index(max(values))], limit - 1
    return MAZE.prize[place]


class Learned(NamedTuple):
    """What was learned in the maze.

    Attributes:
        table: The values of the four actions in each cell.
        run: After every 25 steps: steps, the mean return of the last 20 episodes, and
            what the walker gets.
    """

    table: list[list[float]]
    run: list[tuple[int, float, int]]


@checked
def learn_maze(
    step_size: Fraction, exploration: Fraction, discount: Fraction, seed: int
) -> Learned:
    """Learn the maze as the page does, from nothing to the end.

    Args:
        step_size: Share of the way that a value moves towards its target.
        exploration: Probability of a random action.
        discount: The discount factor.
        seed: Decides the run.
    """
    draw, limit = uniform(seed), MAZE_SETTINGS["limit"]
    table = [[0.0] * 4 for _ in MAZE.next]
    state, length = MAZE.start, 0
    returns, run = [], []
    for step in range(1, MAZE_TOTAL + 1):
        explore, values = next(draw) < exploration, table[state]
        top = max(values)
        good = [a for a in range(4) if explore or values[a] == top]
        action = good[int(next(draw) * len(good))]
        later = MAZE.next[state][action]
        reward = MAZE.prize[later]
        future = 0.0 if reward else max(table[later])
        values[action] += step_size * (reward + discount * future - values[action])
        state, length = later, length + 1
        if reward or length == limit:
            returns.append(reward)
            state, length = MAZE.start, 0
        if step % 25 == 0:
            last_20 = returns[-20:]
            run.append((step, sum(last_20) / max(1, len(last_20)), walk(table)))
    return Learned(table, run)


CELL = 52
PLACES = [(38 + CELL * column, 26 + CELL * row) for row, column in MAZE.cells]
# From the middle of a cell to its corners: up, right, down and left.
TRIANGLES = ("l-26,-26h52Z", "l26,-26v52Z", "l26,26h-52Z", "l-26,26v-52Z")


def maze_scene(table: Sequence[Sequence[float]]) -> Picture:
    """Draw the maze with the values of its actions."""
    picture = Picture(
        "A table of values, drawn in its maze",
        "A maze with a prize of 1 near the start and a prize of 10 further away. Each "
        "cell has a triangle for each of its four actions: the stronger its colour, "
        "the larger the value. The number is the largest value of the cell.",
    )
    square = f"h{CELL}v{CELL}h-{CELL}Z"
    picture.path(f"M12,0h{8 * CELL}v{5 * CELL}h-{8 * CELL}Z", "quiet")
    for (x, y), values, prize in zip(PLACES, table, MAZE.prize, strict=True):
        for triangle, value in zip(TRIANGLES, values, strict=True):
            # Not too strong, so that the number on it can be read.
            strength = 0.7 * sqrt(value / 10)
            picture.marks.append(
                f'<path class="lr-accent lr-value" fill-opacity="{strength:.2f}" '
                f'd="M{x},{y}{triangle}"/>'
            )
        picture.path(f"M{x - CELL // 2},{y - CELL // 2}{square}", "faint")
        words = str(prize) if prize else f"{max(values):.1f}"
        kind = "lr-second lr-prize" if prize else "lr-number"
        picture.marks.append(
            f'<text class="{kind}" text-anchor="middle" x="{x}" y="{y + 5}">'
            f"{words}</text>"
        )
    for row, column in product(range(5), range(8)):
        if (row, column) not in MAZE.cells:
            corner = f"M{12 + CELL * column},{CELL * row}"
            picture.path(corner + square, "quiet", "wall")
    x, y = PLACES[MAZE.start]
    picture.marks.append(
        f'<path class="lr-second lr-thick lr-moves" transform="translate({x} {y})" '
        'd="M-19,0a19,19 0 1 0 38,0a19,19 0 1 0 -38,0"/>'
    )
    picture.reach(-2, 5 * CELL + 2)
    return picture


Sliders = Mapping[str, tuple[Sequence[Any], Any]]
SLIDERS: Sliders = {
    "epochs": ((1, 2, 3, 5, 10, 20), 10),
    "clip": ((0.05, 0.1, 0.2, 0.4, "no clip"), 0.2),
    "learning rate": ((0.0005, 0.001, 0.002, 0.005, 0.01), 0.005),
}
MAZE_SLIDERS: Sliders = {
    "step size α": ((0.1, 0.2, 0.5, 1), 0.5),
    "exploration ε": ((0, 0.1, 0.3, 0.6, 1), 0.1),
    "discount γ": ((0.5, 0.8, 0.9, 0.99, 1), 0.9),
}


HEIGHT = 100
PANELS = (
    (
        "Return",
        "The mean return of the last 20 episodes over the steps, up to 500.",
        500,
        (0, 250, 500),
    ),
    (
        "Share of ratios out of range",
        "The share of the ratios that are out of the clip range after learning.",
        1,
        (0, 0.5, 1),
    ),
)
MAZE_PANELS = (
    (
        "Return while learning",
        "The mean return of the last 20 episodes over the steps, up to 10.",
        10,
        (1, 10),
    ),
    (
        "Return of the best actions",
        "The prize to which the best actions of the table lead, over the steps.",
        10,
        (1, 10),
    ),
)


TRAIN_STYLE = """
.lr-train .lr-scene { grid-column: 1 / -1 }
.lr-train .lr-scene svg { max-width: 26rem; margin: auto }
.lr-train.lr-picture :is(.lr-value, .lr-wall) { stroke: none; fill: var(--tone) }
.lr-train .lr-wall { fill-opacity: 0.5 }
.lr-train.lr-picture .lr-faint { stroke-width: 1 }
.lr-train .lr-prize { font-weight: 700; font-size: 1.4em }
.lr-train .lr-controls { gap: 0.5rem 1.5rem; align-items: center; margin: 0 0 0.75rem }
.lr-train .lr-controls label { min-height: 1.75rem; flex-basis: 12rem }
.lr-train .lr-controls .lr-seed { flex: 0 0 auto }
.lr-train .lr-controls [type=number] { width: 5rem; min-height: 1.75rem; flex: none;
  font: inherit; color: inherit; background: none;
  border: 1.6px solid color-mix(in srgb, currentColor 55%, transparent);
  border-radius: 0.4rem; padding: 0 0.4rem }
.lr-train .lr-controls b { min-width: 3.5em }
.lr-train .lr-now { margin-top: 0 }
"""


def training(
    name: str,
    label: str,
    words: str,
    top: Picture,
    panels: Sequence[Any],
    rows: Sequence[Any],
    sliders: Sliders,
    data: Mapping[str, Any],
) -> Widget:
    """Put a figure together: the scene, two plots, controls, and what moves them.

    Args:
        name: The script.
        label: What the widget is for, in a few words.
        words: What the pictures show where there is no JavaScript.
        top: The scene.
        panels: What the plots show.
        rows: The run and the one before it: steps, and a row for each plot.
        sliders: Values of each slider, and where it stands at first.
        data: What the script has to know besides.
    """
    half = data["total"] // 2_000
    ticks = {1e3 * thousands: str(thousands) for thousands in (0, half, 2 * half)}
    x = Axis("thousand steps", 0, data["total"], ticks)
    drawn = ""
    for k, (title, alt, high, marked) in enumerate(panels, 1):
        run, before = rows
        now = Mark("line thick", run[0], run[k], "accent")
        then = Mark("line thick", before[0], before[k], "second")
        y = Axis("", 0, high, marked)
        drawn += plot(title, alt, x, y, then, now, height=HEIGHT).svg()
    controls = "".join(slider(key, *row) for key, row in sliders.items())
    inside = (
        f"<style>{MOVING_STYLE}{TRAIN_STYLE}</style>"
        '<div class="lr-controls" hidden><button type="button">Train</button>'
        '<button type="button">Reset</button><label class="lr-seed">seed '
        f'<input type="number" min="1" max="9999" value="1"></label>{controls}</div>'
        '<p class="lr-now"></p><div class="lr-panels">'
        f'<div class="lr-scene">{top.svg()}</div>{drawn}</div>'
    )
    data = {
        **data,
        "height": HEIGHT,
        "highs": [high for _, _, high, _ in panels],
        "sliders": [values for values, _ in sliders.values()],
    }
    return figure(label, inside, words, name, data, " lr-moving lr-train")


def train_cartpole() -> Widget:
    """Let the reader train PPO on CartPole in the page."""
    rows, ends = [], []
    for runs in stored_runs("train_here").values():
        curves = runs.curves, runs.watched["outside"]
        rows.append([runs.steps.tolist(), *(x.mean(0).tolist() for x in curves)])
        ends.append(runs.final.mean())
    words = (
        f"Means of ten stored runs of {TOTAL:,} steps with ten epochs and the clip, "
        "and of ten without the clip, in the other colour. At the end the agents get "
        f"{ends[0]:.0f} points, and {ends[1]:.0f} without the clip."
    )
    top = scene([0.0, 0.0, 0.0, 0.0])
    data = {
        "worker": script("worker", "ppo") + "work(agent);",
        "settings": SETTINGS,
        "total": TOTAL,
        "metre": METRE,
        "names": ["epochs", "clip", "rate"],
    }
    label = "PPO learns to balance a pole in this page"
    return training("train_cartpole", label, words, top, PANELS, rows, SLIDERS, data)


def train_maze() -> Widget:
    """Let the reader fill a table of values by Q-learning in the page."""
    runs = [learn_maze(0.5, exploration, 0.9, 1) for exploration in (1, 0.1)]
    rows = [[*zip(*learned.run, strict=True)] for learned in runs]
    words = (
        f"The table after {MAZE_TOTAL:,} steps of nothing but random actions, and the "
        "curves of that run. In the other colour: one action in ten is random. The "
        f"best actions lead to a prize of {rows[0][2][-1]}, and of {rows[1][2][-1]}."
    )
    top = maze_scene(runs[0].table)
    data = {
        "worker": script("worker", "q_learning") + "work(agent);",
        "settings": MAZE_SETTINGS,
        "total": MAZE_TOTAL,
        "cells": PLACES,
        "names": ["step_size", "exploration", "discount"],
    }
    label = "Q-learning fills a table in this page"
    return training(
        "train_maze", label, words, top, MAZE_PANELS, rows, MAZE_SLIDERS, data
    )

"""Five frames of MinAtar's Breakout, for the pictures of a chapter.

``python -m benchmarks.minatar_frames`` plays, where MinAtar is installed (``pip install
MinAtar``), with a paddle that mostly follows the ball, and keeps

- ``game``: the ball falls to the right, below a wall that has lost some bricks,
- ``falling`` and ``rising``: two moments at which ball, paddle and wall are at the same
  places, and only the trail tells where the ball comes from,
- the frame before each of these two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import provenance
from benchmarks.store import RESULTS, write_table

SEED, STEPS = 1, 20_000
PATH = RESULTS / "minatar_frames.csv"
PLANES = ("paddle", "ball", "trail", "brick")

Frame = NDArray[np.bool_]


def play() -> list[Frame]:
    """Return the frames of some games, (10, 10, 4) each."""
    from minatar import Environment

    game = Environment("breakout")
    game.seed(SEED)
    rng = np.random.default_rng(SEED)
    game.reset()
    frames = []
    for _ in range(STEPS):
        frames.append(game.state())
        (_, ball), (_, paddle) = place(frames[-1], "ball"), place(frames[-1], "paddle")
        # MinAtar counts its actions: 0 stays, 1 goes left, 3 goes right. Now and then
        # the paddle goes astray, or the games would all be the same.
        best = 0 if ball == paddle else 1 if ball < paddle else 3
        _, ended = game.act(rng.choice([0, 1, 3]) if rng.random() < 0.3 else best)
        if ended:
            game.reset()
    return frames


def place(frame: Frame, plane: str) -> tuple[int, int]:
    """Return row and column of the only cell of a plane."""
    row, column = np.argwhere(frame[:, :, PLANES.index(plane)])[0]
    return int(row), int(column)


def way(frame: Frame) -> tuple[int, int]:
    """Return how far the ball has moved, down and to the right."""
    (row, column), (before, beside) = place(frame, "ball"), place(frame, "trail")
    return row - before, column - beside


def choose(frames: list[Frame]) -> dict[str, Frame]:
    """Return the frames to keep, by their names."""
    chosen: dict[str, Frame] = {}
    seen: dict[Any, dict[tuple[int, int], int]] = {}
    for number, frame in enumerate(frames):
        (row, column), bricks = place(frame, "ball"), int(frame[:, :, 3].sum())
        inside = 5 <= row <= 7 and 2 <= column <= 7
        if inside and way(frame) == (1, 1) and bricks <= 24:
            chosen.setdefault("game", frame)
        # What would be left without the trail.
        rest = frame[:, :, [0, 1, 3]].tobytes()
        if inside and way(frame) in ((1, 1), (-1, 1)):
            seen.setdefault(rest, {}).setdefault(way(frame), number)
    down, up = next(
        (moments[1, 1], moments[-1, 1]) for moments in seen.values() if len(moments) > 1
    )
    for name, number in (("falling", down), ("rising", up)):
        chosen[f"before {name}"] = frames[number - 1]
        chosen[name] = frames[number]
    return chosen


def main() -> None:
    """Play and store."""
    origin = provenance("python -m benchmarks.minatar_frames", "MinAtar")
    rows = [
        (name, plane, row, "".join(map(str, cells.astype(int))))
        for name, frame in choose(play()).items()
        for plane, table in zip(PLANES, frame.transpose(2, 0, 1), strict=True)
        for row, cells in enumerate(table)
    ]
    # What drew the frames is MinAtar and its seed.
    kept = {key: origin[key] for key in ("command", "date", "MinAtar", "numpy")}
    write_table(
        PATH, ("frame", "plane", "row", "cells"), rows, {**kept, "seed": str(SEED)}
    )


if __name__ == "__main__":
    main()

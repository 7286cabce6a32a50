# Generated from chapters/book/growth.py (edit there); digest 674613672defde93
"""Growth: the curves of the program that grows over the first pages."""

from __future__ import annotations

from itertools import pairwise

from literate_rl.apps.programs import STEPS
from literate_rl.book.pictures import Axis, Mark, Picture, Tone, plot
from literate_rl.runs.runs import StoredRuns, stored_runs

__all__ = ["grown", "runs_of"]


NAMES = {
    "agents": "random",
    "policy_gradient": "REINFORCE",
    "advantages": "a critic",
    "ppo_error_without_clip": "no clip",
    "ppo_error": "the clip",
    "ppo": "PPO",
}


def runs_of(name: str) -> StoredRuns:
    """Return the stored runs of a program that grows: twenty seeds."""
    [runs] = stored_runs(f"program_{name}").values()
    return runs


def grown(upto: str, beside: str | None = None) -> Picture:
    """Draw the curves of the program that grows, up to a page.

    Args:
        upto: The page, such as ``"advantages"``, or its program in another form.
        beside: What to compare with; None means the page before.
    """
    known = list(NAMES)
    earlier = [name for name in known[: known.index(upto)] if name in STEPS]
    second = beside or earlier[-1]
    names = list(dict.fromkeys([*earlier, second, upto]))
    newest, marks, ends = runs_of(upto), [], []
    thousand = (newest.steps / 1000).tolist()
    for seed in newest.curves:
        marks.append(Mark("line", thousand, seed.tolist(), "faint"))
    for name in names:
        runs = runs_of(name)
        tone: Tone = "quiet"
        if name in (upto, second):
            tone = "accent" if name == upto else "second"
        kind = "line thick" if tone != "quiet" else "line"
        mean = runs.curves.mean(0).tolist()
        marks.append(Mark(kind, thousand, mean, tone))
        ends.append((mean[-1], name, tone))
    # Names stand at the ends of their lines, and make room for each other.
    places = sorted(ends)
    heights = [max(8.0, min(488.0, end)) for end, _, _ in places]
    for low, high in pairwise(range(len(heights))):
        heights[high] = max(heights[high], heights[low] + 40)
    for height, (_, name, tone) in zip(heights, places, strict=True):
        marks.append(Mark("label", [57.5], [height], tone, words=NAMES[name]))
    return plot(
        "Mean return while it learns",
        "Learning curves over 50,000 steps of CartPole. At the end the means are "
        + ", ".join(f"{end:.0f} for {NAMES[name]}" for end, name, _ in ends)
        + ".",
        Axis("thousand steps", 0, 65, ticks=(0, 10, 20, 30, 40, 50)),
        Axis("return", 0, 560, ticks=(0, 100, 200, 300, 400, 500)),
        *marks,
        width=480,
        height=230,
    )

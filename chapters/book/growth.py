# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A program that grows
#
# **What does each page of the first path buy?** Five pages share one program. On each of them some
# lines are added, and its curve, over twenty seeds, is laid over those of the pages before. This
# page draws that picture.

# %% tags=["export", "hide-input"]
"""Growth: the curves of the program that grows over the first pages."""

from __future__ import annotations

from literate_rl.apps.programs import STEPS
from literate_rl.book.pictures import Axis, Mark, Picture, Tone, plot
from literate_rl.runs.runs import StoredRuns, stored_runs

__all__ = ["grown", "runs_of"]

# %% [markdown]
# The newest page has the accent: each seed is a thin line, their mean a thick one. Of the pages
# before only the means are drawn, the last of them thick as well.

# %% tags=["export"]
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
    tones: dict[str, Tone] = dict.fromkeys(earlier, "quiet")
    tones |= {beside or earlier[-1]: "second", upto: "accent"}
    newest, ends = runs_of(upto), []
    thousand = (newest.steps / 1000).tolist()
    marks = [Mark("line", thousand, seed.tolist(), "faint") for seed in newest.curves]
    for name, tone in tones.items():
        mean = runs_of(name).curves.mean(0).tolist()
        kind = "line" if tone == "quiet" else "line thick"
        marks.append(Mark(kind, thousand, mean, tone))
        ends.append((mean[-1], name, tone))
    # Names stand at the ends of their lines, and make room for each other.
    height = -32.0
    for end, name, tone in sorted(ends):
        height = max(min(488.0, end), height + 40)
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


# %%
from literate_rl.book.growth import grown

grown("ppo")

# %% [markdown]
# **Notice** where the lines part. Learning from what turned out well takes the agent off the ground,
# a critic and then the clip bring it up, and the last page makes it reliable: its thin lines lie
# close together. {doc}`/chapters/ppo_error` shows what happens without the clip.
#
# How much does each page add? These are lines that are new, and lines that are gone:

# %%
from difflib import ndiff

from literate_rl.apps.programs import STEPS, source

texts = [repr(source(name)).splitlines() for name in STEPS]
changed = {}
for name, before, after in zip(STEPS[1:], texts, texts[1:], strict=False):
    signs = [line[0] for line in ndiff(before, after) if line[1:].strip()]
    changed[name] = signs.count("+"), signs.count("-")
    print(f"{name:16s} +{changed[name][0]} −{changed[name][1]}")

# %% tags=["claims"]
assert all(plus <= 30 for plus, _ in changed.values())

# %% [markdown]
# ## References
#
# The programs stand in their chapters, and `python -m benchmarks.programs` has made the runs.

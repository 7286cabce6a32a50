# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The doctor
#
# **Which of the known symptoms does a run show?** {doc}`/chapters/debugging` teaches how to read the
# metrics of a run. This page does the part of it that needs no thought: it reads the table of a run,
# names the symptoms that are there, and says for each where it is explained and which one change
# to try.
#
#     literate-rl look runs/NAME
#
# The run may still be going on. Nothing is written, no environment is made, and no code of the run
# is loaded: the doctor reads two files, `settings.json` and `metrics.csv` ({doc}`/chapters/runs/runs`). Nobody has
# to read this page to follow the book.

# %% tags=["export", "hide-input"]
"""The doctor: which symptoms of the chapter on debugging a run shows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray

from literate_rl.ground.signatures import checked
from literate_rl.learners.rainbow import BEYOND
from literate_rl.runs.runs import read_settings

__all__ = ["Symptom", "diagnose", "look"]

# %% [markdown]
# ## What a run has written
#
# A table has a column for each metric and a row for each iteration, or for several if `log_interval` says
# so; here such a row counts as one. The last line may be half written, because somebody else is writing it. It does not count. A cell that is empty says that
# there was nothing to tell, for instance because no episode has ended.


# %% tags=["export"]
@dataclass(frozen=True)
class Record:
    """What the files of a run say.

    Attributes:
        settings: What ``settings.json`` holds.
        columns: The metrics by name, a number for each iteration, NaN where none is.
        largest_reward: The largest reward of one step, or None if it is not known.
    """

    settings: dict[str, Any]
    columns: dict[str, NDArray[np.float64]]
    largest_reward: float | None = None

    def setting(self, name: str, default: float = math.nan) -> float:
        """Return a setting, if it is a number."""
        found = (self.settings.get("config") or {}).get(name)
        return float(found) if isinstance(found, int | float) else default

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a metric, which may have a longer name; NaN where there is none."""
        nothing = np.full(len(self.step), math.nan)
        return self.columns.get(name, self.columns.get(f"{name}_loss", nothing))

    @property
    def step(self) -> NDArray[np.float64]:
        """The steps taken after each iteration."""
        return self.columns["step"]

    @property
    def total_steps(self) -> float:
        """The steps that were planned, or those taken if nobody knows."""
        return self.setting("total_steps", float(self.step[-1]))

    @property
    def largest_value(self) -> float:
        """The largest value that any policy can have, NaN if it is not known.

        The values of SAC hold a bonus for entropy, so for them nobody knows it.
        """
        if "charts/alpha" in self.columns or self.largest_reward is None:
            return math.nan
        reward = self.largest_reward * self.setting("reward_scale", 1.0)
        gamma = self.setting("gamma")
        # Who pays for each step had better be done after one.
        if reward <= 0:
            return reward
        # {eq}`largest-value`.
        return reward / (1 - gamma) if gamma < 1 else math.nan

    @property
    def beyond_values(self) -> float:
        """A tenth above the largest value."""
        return self.largest_value + 0.1 * abs(self.largest_value)

    @property
    def worst_start(self) -> float:
        """The lowest return of the first tenth of the run, if two are known."""
        first = self.column(RETURN)[self.step <= 0.1 * self.total_steps]
        known = first[np.isfinite(first)]
        return float(known.min()) if len(known) >= 2 else -math.inf


RETURN, KL = "charts/episodic_return", "losses/approx_kl"
# The largest reward of a step where everybody knows it.
LARGEST_REWARDS = {
    "CartPole-v1": 1.0,
    "Acrobot-v1": 0.0,
    "MountainCar-v0": -1.0,
    "Pendulum-v1": 0.0,
    "FrozenLake-v1": 1.0,
    "Taxi-v4": 20.0,
    "CliffWalking-v1": -1.0,
}


@checked
def read_record(directory: str | Path, largest_reward: float | None = None) -> Record:
    """Read the files of a run, also of one that is still going on.

    Raises:
        FileNotFoundError: If the directory holds no run.
        ValueError: If a file is damaged, or there is no whole row yet.
    """
    directory = Path(directory)
    settings = read_settings(directory / "settings.json")
    table = directory / "metrics.csv"
    # A line without an end is still being written.
    *lines, _ = table.read_text("utf-8", "replace").split("\n")
    if len(lines) < 2:
        raise ValueError(f"{table} has no whole row yet: wait for the next iteration")
    header, *rows = lines
    # An empty cell is NaN, and no comma is quoted.
    cells = np.loadtxt(
        rows, delimiter=",", converters=lambda x: float(x or "nan"), ndmin=2
    )
    columns = dict(zip(header.split(","), cells.T, strict=True))
    # Something around an environment may change its rewards.
    if largest_reward is None and not settings.get("wrappers"):
        largest_reward = LARGEST_REWARDS.get(str(settings.get("env")))
    return Record(settings, columns, largest_reward)


# %% [markdown]
# ## When is it a symptom?
#
# One odd iteration means nothing. Divergences have long tails, and an episode can go wrong. So each
# rule counts: a symptom is there if *among ten consecutive iterations* at least so many show it.
# That is independent of how long the run is, and it says where to look.
#
# Some rules look at a part of the run only. Near its end the learning rate may have fallen to zero,
# so there a policy that stands still is as it should be; and during the first iterations no critic
# knows anything.


# %% tags=["export"]
INF = math.inf
Shown = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """How a symptom shows, and what to do.

    Attributes:
        name: What is wrong, in a few words.
        shows: Between which limits metrics lie in an iteration that shows it; the first
            is the one that is told. A limit may be the name of one of ``Record``.
        limit: The same in words.
        count: How many of ten consecutive iterations must show it.
        meaning: What it means, and the usual cause.
        section: Heading of its section in the chapter on debugging.
        change: One change to try.
        part: Which part of the planned steps is looked at.
    """

    name: str
    shows: dict[str, tuple[float | str, float | str]]
    limit: str
    count: int
    meaning: str
    section: str
    change: str
    part: tuple[float, float] = (0.0, 1.0)

    def shown(self, record: Record) -> tuple[Shown, Shown]:
        """Return which iterations are looked at, and which of them show it."""
        first, last = (share * record.total_steps for share in self.part)
        looked = (first <= record.step) & (record.step <= last)
        shown = looked
        for name, ends in self.shows.items():
            values = record.column(name)
            low, high = (getattr(record, x) if isinstance(x, str) else x for x in ends)
            # Where a metric or a limit is not known, nothing can be said.
            looked = looked & np.isfinite(values) & (low <= high)
            shown = shown & (low < values) & (values < high)
        return looked, looked & shown

    def most_of_ten(self, record: Record) -> int:
        """Return the most that show it among ten consecutive iterations."""
        looked, shown = self.shown(record)
        # What reaches beyond an end counts no more than what lies within.
        return int(np.convolve([0, *shown[looked]], np.ones(10)).max())


# %% [markdown]
# ## The rules
#
# Here they are. Each limit lies between what healthy runs show and what a run with the fault shows;
# the [last section](#how-good-are-the-limits) has the figures. Some symptoms of the chapter cannot
# be seen in a table of metrics, such as an old policy that is computed anew or a time limit that is
# taken for an end. They need the checks of the chapter.


# %% tags=["export"]
RULES = (
    Rule(
        "the policy jumps",
        {KL: (0.1, INF)},
        "divergence above 0.1 nats",
        3,
        "one iteration carries the policy far beyond what its rollout can tell, so "
        "good behaviour is lost as fast as it is found; nearly always the learning "
        "rate is too high",
        "The entropy falls to zero at once",
        "a third of the learning rate",
    ),
    Rule(
        "most ratios are clipped",
        {"losses/clipfrac": (0.5, INF)},
        "clip fraction above 0.5",
        6,
        "after an iteration more than half of the samples lie outside the clip range "
        "and teach nothing any more: too many or too large steps on one rollout",
        "Three settings first",
        "half of the epochs; if it stays, a third of the learning rate",
    ),
    Rule(
        "the policy is certain too early",
        {"losses/entropy": (-1e-9, 0.01)},
        "entropy between 0 and 0.01 nats in the first half of the run",
        8,
        "the agent does the same in each state and learns of nothing else; if the "
        "return is low, it was certain before it knew anything",
        "The entropy falls to zero at once",
        "a third of the learning rate; if it stays, a larger entropy_weight",
        part=(0.0, 0.5),
    ),
    Rule(
        "the policy stands still",
        {KL: (-INF, 3e-6), "losses/clipfrac": (-INF, 1e-9)},
        "divergence below 0.000003 nats and no ratio clipped in the first half",
        8,
        "nothing that is learned reaches the policy: the learning rate is too low, "
        "another part of the gradient leaves nothing to the actor, or the policy is "
        "certain already",
        "The entropy falls to zero at once",
        "the learning rate times ten, unless another symptom stands here",
        part=(0.0, 0.5),
    ),
    Rule(
        "the value loss is huge",
        {"losses/value_loss": (1e4, INF), KL: (-INF, 1e-3)},
        "value loss above 10,000 while the policy hardly moves",
        8,
        "values of thousands take the whole of a gradient that is clipped for actor "
        "and critic together; the rewards are too large",
        "The value loss is huge",
        "scale_reward=True",
    ),
    Rule(
        "the critic explains nothing",
        {"losses/explained_variance": (-INF, 0.05)},
        "explained variance below 0.05 after the first third of the run",
        9,
        "the values are no better than one constant, so advantages are mostly noise: "
        "the critic is not trained, its shapes are wrong, or the observations have "
        "units that saturate it",
        "The explained variance is negative",
        "normalize_obs=True; if it stays, print the shape of the value loss",
        part=(1 / 3, 1.0),
    ),
    Rule(
        "the gradient explodes",
        {"losses/grad_norm": (500, INF)},
        "norm of the gradient above 500 before clipping",
        5,
        "values or rewards are far from where the networks start, and the direction "
        "of each step is that of the largest error",
        "The value loss is huge",
        "rewards divided by their size, with reward_scale",
    ),
    Rule(
        "a value is above the largest possible one",
        {"losses/q_value": ("beyond_values", INF)},
        "mean value more than a tenth above r_max / (1 - gamma)",
        3,
        "no policy can earn that much: the values feed on themselves, because the "
        "discount is missing in the target, or the target moves too fast",
        "A value is above the largest possible one",
        "a slower target: a larger target_interval, or a smaller tau",
        part=(0.15, 1.0),
    ),
    Rule(
        "returns lie beyond the atoms",
        {"losses/beyond_atoms": (BEYOND, INF)},
        f"share of the targets beyond the atoms above {BEYOND}",
        3,
        "what lies beyond an end counts as the atom there, so loss and values come to "
        "rest at numbers that are not those of the task",
        "Returns lie beyond the atoms",
        "value_min and value_max with all discounted returns in between",
    ),
    Rule(
        "the numbers explode",
        {"losses/loss": (1000, INF)},
        "loss of the values above 1000",
        1,
        "the values have left every scale, also if they came back to one that means "
        "nothing: the learning rate is far too high, or the rewards are in hundreds",
        "A value is above the largest possible one",
        "a third of the learning rate, or rewards divided by their size",
    ),
    Rule(
        "the return falls",
        {RETURN: (-INF, "worst_start")},
        "return below all of the first tenth of the run",
        8,
        "the agent gets worse than it began: learning goes the wrong way, or the "
        "policy has collapsed",
        "The return falls",
        "check the signs of the losses, unless another symptom stands here",
        part=(0.1, 1.0),
    ),
)

# %% [markdown]
# ## The diagnosis
#
# A symptom is a rule that was met, with what was seen. `diagnose` returns them in the order of the
# table; the first one is the one to look at first, because the others often follow from it.


# %% tags=["export"]
@dataclass(frozen=True)
class Symptom:
    """A symptom that a run shows.

    Attributes:
        name: What is wrong, in a few words.
        seen: What was seen, with numbers.
        first: Steps taken when it was first seen.
        last: Steps taken when it was last seen.
        meaning: What it means, and the usual cause.
        section: Section of the chapter ``debugging`` that explains it.
        change: One change to try.
    """

    name: str
    seen: str
    first: int
    last: int
    meaning: str
    section: str
    change: str

    @property
    def link(self) -> str:
        """The address of the section, below that of the book."""
        return f"chapters/debugging.html#{self.section.lower().replace(' ', '-')}"


def diagnose(
    directory: str | Path, *, largest_reward: float | None = None
) -> list[Symptom]:
    """Return the symptoms that a run shows, the first one first.

    Args:
        directory: Directory of the run. It may still be going on.
        largest_reward: The largest reward of one step, if the environment is none of
            those whose rewards are known. Without it values are not judged.

    Raises:
        FileNotFoundError: If the directory holds no run.
        ValueError: If a file is damaged, or there is no whole row yet.
    """
    return symptoms_of(read_record(directory, largest_reward))


def symptoms_of(record: Record) -> list[Symptom]:
    """Return the symptoms that the files of a run show."""
    return [symptom(x, record) for x in RULES if x.most_of_ten(record) >= x.count]


def can_judge(rule: Rule, record: Record) -> bool:
    """Say whether a run has what a rule looks at."""
    return bool(rule.shown(record)[0].sum() >= rule.count)


def symptom(rule: Rule, record: Record) -> Symptom:
    """Return what a rule has found."""
    looked, shown = rule.shown(record)
    middle = np.median(record.column(next(iter(rule.shows)))[shown])
    first, last = (int(record.step[shown][end]) for end in (0, -1))
    share = f"{shown.sum()} of the {looked.sum()} iterations looked at"
    seen = f"{rule.limit} (typically {middle:.2g}) in {share}"
    words = rule.meaning, rule.section, rule.change
    return Symptom(rule.name, seen, first, last, *words)


# %% [markdown]
# ## In words
#
# `look` writes the same for people. It also says what it could *not* look at, because no symptom
# among two rules is another thing than no symptom among ten.


# %% tags=["export"]
def look(directory: str | Path, *, largest_reward: float | None = None) -> str:
    """Name the symptoms that a run shows, in a text.

    Args:
        directory: Directory of the run. It may still be going on.
        largest_reward: The largest reward of one step, to judge values.

    Raises:
        FileNotFoundError: If the directory holds no run.
        ValueError: If a file is damaged, or there is no whole row yet.
    """
    record = read_record(directory, largest_reward)
    names = [str(record.settings.get(key, "?")) for key in ("algorithm", "env")]
    taken = f"{record.step[-1]:,.0f} of {record.total_steps:,.0f} steps"
    lines = [
        f"{directory}: {' on '.join(names)}, {taken}, {len(record.step)} iterations"
    ]
    symptoms = symptoms_of(record)
    for number, found in enumerate(symptoms, 1):
        words = {
            "seen": f"{found.seen}, from step {found.first:,} to {found.last:,}",
            "means": found.meaning,
            "read": f"“{found.section}” in {found.link}",
            "try": found.change,
        }
        lines += ["", f"{number}. {found.name.capitalize()}"]
        lines += [wrapped(text, f"   {key:8}") for key, text in words.items()]
    judged = [rule.name for rule in RULES if can_judge(rule, record)]
    if not symptoms:
        lines += ["", "No symptom." if judged else "There is nothing to look at yet."]
    if judged:
        lines += ["", wrapped(f"Looked for: {'; '.join(judged)}.")]
    if left_out := [rule.name for rule in RULES if rule.name not in judged]:
        told = "Not looked for, as the run does not tell or is too short: "
        lines += [wrapped(f"{told}{'; '.join(left_out)}.")]
    known = replace(record, largest_reward=1.0)
    if any(can_judge(rule, known) for rule in RULES if rule.name in left_out):
        lines += ["Add --largest-reward R, that of one step, to have values judged."]
    return "\n".join(lines)


def wrapped(text: str, head: str = "") -> str:
    """Return a text in lines of a terminal, the first one behind a head."""
    return fill(
        text,
        80,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )


# %% [markdown]
# ## See it
#
# Two short runs of PPO that differ in one setting.

# %%
import tempfile

from literate_rl.apps.training import train

place = tempfile.TemporaryDirectory()
found = {}
for name, rate in {"too_fast": 0.3, "usual": 2e-3}.items():
    settings = {"learning_rate": rate, "total_steps": 6_144, "seed": 3}
    agent = train("PPO", "CartPole-v1", device="cpu", progress=False, **settings)
    agent.save(Path(place.name) / name)
    found[name] = diagnose(Path(place.name) / name)
    words = look(Path(place.name) / name).replace(place.name, "runs")
    print(words, end="\n\n\n")

# %% tags=["claims"]
names = {key: [symptom.name for symptom in shown] for key, shown in found.items()}
assert names["too_fast"][0] == "the policy jumps", "the first one to look at"
assert "the policy jumps" not in names["usual"]

# %% [markdown]
# ## How good are the limits?
#
# `python -m benchmarks.doctor` trained healthy agents of nine algorithms on four environments, and
# for each rule one agent with the fault that the rule is about. The table shows how many of ten
# consecutive iterations are needed, and how many there were at most in any healthy run and in the run
# with the fault.

# %%
from literate_rl.runs.runs import read_rows, results_folder

rows = list(read_rows(results_folder() / "doctor.csv"))
print(f"{'':44}{'needed':>7}{'healthy':>9}{'with the fault':>16}")
for row in rows:
    counts = f"{row['count']:>7}{row['most_healthy']:>9}{row['most_sick']:>16}"
    print(f"{row['rule']:44}{counts}   ({row['healthy_runs']} runs)")

# %% [markdown]
# **Notice** that no healthy run shows a symptom, and that the distance is not the same everywhere.
# While we looked for the limits there were false alarms. With four of ten iterations for the clip
# fraction, a healthy run of PPG was reported, and the values of an untrained critic on Pendulum, a
# little above 0, are impossible until it has learned something, so the first of them do not count.
# The limits are tried on these agents and environments, and no further. On others a symptom is a
# reason to look, and no proof; and no symptom does not mean that an agent learns.

# %% tags=["claims"]
assert [row["rule"] for row in rows] == [rule.name for rule in RULES]
for row, rule in zip(rows, RULES, strict=True):
    assert int(row["count"]) == rule.count
    assert int(row["alarms"]) == 0, "no healthy run shows a symptom"
    assert int(row["most_healthy"]) < rule.count <= int(row["most_sick"])

# %% [markdown]
# ## References
#
# What a table of metrics can tell, and what it cannot, is the subject of {doc}`/chapters/debugging`,
# with its references.

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What matters in PPO
#
# **Which parts of PPO earn their place?** Here are stored runs over many seeds: what each step
# of the book has bought so far, and what changes when one detail of PPO is left out. After this
# chapter you know what each detail is worth on two tasks, and how little a few seeds can tell.
#
# It takes about 15 minutes. You need {doc}`ppo` and the paired differences of
# {doc}`evaluation`.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np

# %% [markdown]
# ## What each step of the book has bought
#
# One training tells little ({doc}`evaluation`). So here are stored runs, 20 seeds for each agent
# on CartPole. REINFORCE of {doc}`policy_gradient`, without a baseline and with the critic's value
# as the baseline, makes one update for 1,024 steps. Its actions are weighted with the rewards up
# to the end of the rollout, and with the critic's value from there on. **A2C** of {doc}`policies`
# has the advantages of {doc}`advantages` and one update for 256 steps. It is PPO with a single
# update for each rollout, which needs no clip. Each agent has settings of its own, those of A2C
# chosen among ten on other seeds. Lines are means, bands their 95 percent t intervals. On the
# right is PPO on two more tasks, with 5 seeds each. The data come from
# `benchmarks/reinforce_learning.py`, `a2c_learning.py` and `learning.py`.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left: returns on CartPole over 50,000 steps. REINFORCE without a baseline ends near 300, with a baseline near 450. A2C and PPO are far ahead until 10,000 steps; A2C then ends near 360, PPO near 490. Right: Acrobot rises quickly from minus 500 to near minus 90, Pendulum from minus 1200 to near minus 180"}}
from literate_rl.evaluation import paired_difference, t_interval
from literate_rl.workshop.runs import stored_runs

reinforce = stored_runs("reinforce")
arc = {
    "REINFORCE": reinforce["no baseline"],
    "with a baseline": reinforce["minus the value"],
    "A2C": stored_runs("a2c")["A2C"],
    "PPO": stored_runs("cartpole")["PPO"],
}
others = {name: stored_runs(name)["PPO"] for name in ("acrobot", "pendulum")}
ratios = {"width_ratios": (2, 1, 1)}
fig, (left, *small) = plt.subplots(1, 3, figsize=(7, 2.8), gridspec_kw=ratios)


def draw_runs(axis, runs, **style):
    """Draw the mean curve of some runs and its interval."""
    steps = runs.steps / 1000
    (line,) = axis.plot(steps, runs.curves.mean(0), **style)
    band = t_interval(runs.curves)
    axis.fill_between(steps, *band, color=line.get_color(), alpha=0.2, linewidth=0)


for number, (name, runs) in enumerate(arc.items()):
    draw_runs(left, runs, color=f"C{number}", label=name)
left.set(xlabel="thousand steps", ylabel="return while training", title="CartPole")
left.legend(fontsize=8)
for axis, (name, runs) in zip(small, others.items(), strict=True):
    draw_runs(axis, runs, color="C3")
    axis.set(xlabel="thousand steps", title=name.capitalize())
fig.tight_layout()


def in_words(name, results):
    """Print a mean over seeds with its interval."""
    low, high = t_interval(results)
    print(f"{name:52s}{results.mean():7.1f} ({low:.1f} to {high:.1f})")


print("greedy at the end")
for name, runs in (arc | others).items():
    in_words(name, runs.final)
results = {
    "in the first 10,000 steps": lambda runs: runs.curves[:, :5].mean(1),
    "over the whole training": lambda runs: runs.area,
    "greedy at the end": lambda runs: runs.final,
}
print("\nseed by seed")
found = {}
for pair in (("A2C", "with a baseline"), ("PPO", "with a baseline"), ("PPO", "A2C")):
    for when, result in results.items():
        ours, theirs = (result(arc[name]) for name in pair)
        found[pair, when] = paired_difference(ours, theirs)
        in_words(" minus ".join(pair) + ", " + when, ours - theirs)

# %% [markdown]
# **Notice** what each step has bought. The baseline helps REINFORCE, over the whole training and
# at the end. A2C, with its advantages and four times as many updates, is far ahead of both early
# on; but at the end it is unreliable, with greedy returns anywhere between 100 and 500, about a
# hundred points below REINFORCE with a baseline. While training no difference between A2C and PPO
# is seen. But PPO ends more reliably: about a hundred points better than A2C. On the right PPO
# reaches about $-84$ on Acrobot and $-181$ on Pendulum, with little spread over the seeds.
#
# **Notice** also what cannot be seen: over the whole training and at the end, no difference
# between PPO and REINFORCE with a baseline. CartPole is an easy task, with a reward at every
# step.
#
# And a mean hides a tail. Nineteen of the twenty seeds of PPO end at a greedy return above 490,
# and one is stuck near 420, with a learning rate that has reached zero.

# %% tags=["claims"]
early, whole_run, end = results
baseline_gain = paired_difference(arc["with a baseline"].area, arc["REINFORCE"].area)
assert baseline_gain.low > 0, "the baseline helps"
baseline_gain = paired_difference(arc["with a baseline"].final, arc["REINFORCE"].final)
assert baseline_gain.low > 0, "at the end, too"
below = found[("A2C", "with a baseline"), end]
assert -120 < below.mean < -80, "about a hundred points below"
assert below.high < 0, "below REINFORCE with a baseline"
for name, final, spread in (("acrobot", -84, 3), ("pendulum", -181, 15)):
    assert abs(others[name].final - final).max() < spread, "with little spread"
for name in ("A2C", "PPO"):
    assert found[(name, "with a baseline"), early].low > 30, "far ahead early"
    ours, theirs = (results[early](arc[each]) for each in (name, "REINFORCE"))
    assert paired_difference(ours, theirs).low > 30, "of both"
for when in (early, whole_run):
    difference = found[("PPO", "A2C"), when]
    assert difference.low < 0 < difference.high, "no difference seen while training"
assert 80 < found[("PPO", "A2C"), end].mean < 120, "about a hundred points"
assert found[("PPO", "A2C"), end].low > 0, "better than A2C at the end"
assert arc["A2C"].final.min() < 110, "anywhere between 100"
assert arc["A2C"].final.max() == 500, "and 500"
for when in (whole_run, end):
    difference = found[("PPO", "with a baseline"), when]
    assert difference.low < 0 < difference.high, "no difference seen"
finals = np.sort(arc["PPO"].final)
assert 410 < finals[0] < 425, "one seed is stuck"
assert finals[1] > 490, "the others are not"

# %% [markdown]
# ## Which details matter
#
# PPO comes with many details: annealing, normalised advantages, gradient clipping and more. Does
# it need them all? Each row below is the agent of {doc}`ppo`, with its settings for CartPole and
# *one detail changed*: left out, or done as another implementation does it. (Two rows change a
# little more: PyTorch's initialisation has no small last layer either, and one environment takes
# all the steps of a rollout alone.) There are five seeds for each. A small dot is a seed, a large
# one the mean, a bar its 95 percent t interval, and the band that of the agent as it is. Above
# the picture are the rows whose *paired* difference from that agent has an interval without zero.
# `python -m benchmarks.ablation` makes the data anew.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Twenty rows of dots and bars, in two panels. While training, the agent as it is lies near 276 and most rows overlap its band; a shared trunk lies near 130 and one epoch near 40. At the end eight rows are at 500 in all seeds; the value clip, the shared trunk and one epoch lie lowest"}}


def differences(name):
    """Return the rows that differ from the agent as it is, by what was measured."""
    variants, found = stored_runs(name), {"area": {}, "final": {}}
    for key, rows in found.items():
        usual = getattr(variants["as it is"], key)
        for row, runs in variants.items():
            difference = paired_difference(getattr(runs, key), usual)
            if difference.low > 0 or difference.high < 0:
                rows[row] = difference
    return found


titles = {"area": "while training", "final": "at the end, greedy"}


def draw_ablation(name, height):
    """Draw all variants of an ablation, the best ones at the top."""
    variants = stored_runs(name)
    order = sorted(variants, key=lambda each: variants[each].area.mean())
    fig, axes = plt.subplots(1, 2, figsize=(7, height), sharey=True)
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        usual = t_interval(getattr(variants["as it is"], key))
        axis.axvspan(*usual, color="C1", alpha=0.25, linewidth=0)
        for row, each in enumerate(order):
            values = getattr(variants[each], key)
            color = "C1" if each == "as it is" else "C0"
            axis.plot(values, [row] * len(values), ".", color=color, markersize=3)
            axis.plot(t_interval(values), [row] * 2, color=color, linewidth=2)
            axis.plot(values.mean(), row, "o", color=color, markersize=5)
        axis.set_yticks(range(len(order)), order, fontsize=9)
        axis.set(xlabel="return", title=title)
    fig.tight_layout()
    for key, rows in differences(name).items():
        for row, found in rows.items():
            words = f"{found.mean:+.0f} ({found.low:+.0f} to {found.high:+.0f})"
            print(f"{titles[key]:20s}{row:32s}{words}")


draw_ablation("ablation_cartpole", 5.2)

# %% [markdown]
# **Notice** how short the list above the picture is. Five seeds are too few to see a small gain
# or loss, and for most rows we see none. That is worth knowing before one adopts a trick. While
# training, two rows are beyond doubt. One epoch for each rollout means a tenth of the updates.
# And a trunk that actor and critic share is pulled by both losses; {doc}`ppg` measures how often
# they disagree, and who wins. ReLU looks a little slower, but among nineteen comparisons one such
# is to be expected by chance.
#
# On the right, look at the seeds that fail, with a return below 400. Six rows lose one seed of
# five. That says little: if one run in twenty gets stuck, one of five does so in about a fifth of
# all experiments. The value clip of 0.2, which is on in CleanRL and in Baselines, leaves two of
# five seeds below 200. With $\gamma = 0.98$ values grow to 50, a long way in steps of 0.2; but
# the interval of this difference includes zero too. Without the clip of the ratio the agent still
# learns.

# %% tags=["claims"]
rows = differences("ablation_cartpole")
assert set(rows["area"]) == {"one epoch", "shared trunk", "ReLU"}
assert set(rows["final"]) == {"one epoch"}
for key, found in rows.items():
    usual = getattr(stored_runs("ablation_cartpole")["as it is"], key)
    for name in found:
        gains = getattr(stored_runs("ablation_cartpole")[name], key) - usual
        assert (gains < 0).all(), "all seeds agree"
variants = stored_runs("ablation_cartpole")
lost = {name: (runs.final < 400).sum() for name, runs in variants.items()}
assert sum(count == 1 for count in lost.values()) == 6, "six rows lose one seed"
assert (variants["value clip 0.2"].final < 200).sum() == 2
assert sum(runs.final.min() == 500 for runs in variants.values()) == 8
assert variants["no clip"].final.min() > 480, "it still learns"
assert abs(5 * 0.05 * 0.95**4 - 0.2) < 0.01, "about a fifth"

# %% [markdown]
# Pendulum has other needs. These agents were trained for half of the usual number of steps.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Nine rows of dots and bars, in two panels. While training, rewards scaled lies highest, near minus 450, the agent as it is near minus 630, and no clip far below all others, near minus 1340. At the end all rows but no clip lie between minus 170 and minus 270"}}
draw_ablation("ablation_pendulum", 2.9)

# %% [markdown]
# **Notice** that here nothing matters as much as the clip of the ratio. Eighty updates for each
# rollout, with a high learning rate, go far, and without the clip no seed learns. Scaled rewards
# help most while training: a step costs up to 16 and $\gamma$ is 0.9, so values go down to
# $-160$, far from where a new critic starts. Every episode ends by its time limit. Treating it as
# a true end costs return, while training and at the end. A smaller standard deviation at the
# start, with which the agent explores less, slows it down. Two differences are small: without
# advantage normalisation it learns a little faster, and with normalised observations it ends a
# little lower. For the entropy bonus and for gradient clipping five seeds show no difference.
#
# The two tasks do not agree on what matters. So test a trick on *your* task before you believe
# in it; a table like this one is cheap to make.

# %% tags=["claims"]
rows = differences("ablation_pendulum")
better = {
    key: {r for r, d in found.items() if d.low > 0} for key, found in rows.items()
}
worse = {key: set(found) - better[key] for key, found in rows.items()}
assert better["area"] == {"rewards scaled", "no advantage normalisation"}
assert worse["area"] == {
    "no clip",
    "time limit as an end",
    "smaller deviation at the start",
}
for found in rows.values():
    assert min(found, key=lambda row: found[row].mean) == "no clip", "matters most"
assert max(rows["area"], key=lambda row: rows["area"][row].mean) == "rewards scaled"
assert better["final"] == set()
assert worse["final"] == {"no clip", "time limit as an end", "observations normalised"}
assert stored_runs("ablation_pendulum")["no clip"].final.max() < -700, "no seed learns"

# %% [markdown]
# ## Summary
#
# - A baseline helps REINFORCE. Advantages with more updates buy a faster start, and PPO ends more
#   reliably than A2C. Which of its parts does that, this comparison cannot say.
# - On an easy task REINFORCE with a baseline does as well in the end.
# - Most details make no difference that five seeds could show. One epoch or a shared trunk on
#   CartPole while training, and no clip on Pendulum, are beyond doubt.
# - What matters depends on the task.
#
# ## Exercise: predict

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import predict

predict(
    "An agent fails on one seed in twenty. You train it on five seeds as it is, and on five "
    "other seeds with a trick that does nothing. How likely is it that the two differ in the "
    "number of seeds that fail?",
    ["about 5 percent", "about 35 percent", "about 70 percent"],
    right="about 35 percent",
    because="All five seeds succeed with probability 0.95⁵ ≈ 0.774. Both lose equally many "
    "seeds with probability about 0.774² + 0.204² ≈ 0.64. So in a third of such "
    "comparisons a useless trick seems to matter.",
)

# %% tags=["claims"]
from math import comb

chances = [comb(5, k) * 0.05**k * 0.95 ** (5 - k) for k in range(6)]
assert abs(1 - sum(p * p for p in chances) - 0.35) < 0.02, "about 35 percent"

# %% [markdown]
# ## References
#
# {cite:t}`engstrom2020` and {cite:t}`andrychowicz2021` measure the details of PPO on larger
# tasks; {cite:t}`huang2022` describe them.

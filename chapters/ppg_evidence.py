# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Does PPG pay?
#
# **Does an agent learn from fewer steps if its values get a phase of their own?** This page
# shows measurements and no new code. First the curves of the authors of PPG, on sixteen games
# and a hundred million steps. Then our own, on tasks that a laptop can learn. It takes about 10
# minutes. You need {doc}`ppg`; {doc}`evaluation` explains the intervals and paired differences.
#
# In short: on the authors' games PPG is ahead of PPO by far. On our small tasks we see no
# difference. Its premise holds on one of them all the same: the value can stand more training than
# the policy.
#
# ## The authors' runs
#
# The authors' repository holds [the curves of their
# runs](https://github.com/openai/phasic-policy-gradient/tree/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/results)
# {cite:p}`cobbe2021`. The task is Procgen {cite:p}`cobbe2020`, sixteen games whose levels are
# drawn at random. A *score* is the mean return of the last 5 % of a run, averaged over the games, on a scale of [their
# constants](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/constants.py#L20-L37):
# 0 is what an agent that sees nothing gets, 1 is the best possible return or, where that is not
# known, what a very long run reached. We trained nothing here. The second panel varies one setting of PPG at a
# time: $E_\pi$, the policy's epochs for each rollout; $E_{\text{aux}}$, the epochs of an auxiliary
# phase; and $N_\pi$, the rollouts between two of them. The others stay at 1, 6 and 32.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels. First: mean normalised score on sixteen games over 100 million steps. The three runs of PPG rise fastest, those of PPG with one network a little later, and both reach about 0.75, the three of PPO to 0.58. Second: the score at the end for settings of PPG. It falls from 0.76 to 0.39 with 1 to 6 epochs of the policy, rises from 0.63 to 0.77 with 1 to 9 auxiliary epochs, and rises from 0.62 to 0.76 with 2 to 32 policy phases before an auxiliary one"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.runs.evaluation import t_interval
from literate_rl.runs.runs import stored_runs

authors = stored_runs("ppg_authors")
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True)
for kind, color in (("PPG", "C0"), ("PPO", "C1"), ("PPG, one network", "C2")):
    runs = authors[kind]
    axes[0].plot(runs.steps / 1e6, runs.curves.T, color=color, linewidth=0.9, alpha=0.7)
    axes[0].plot([], [], color=color, label=kind)
settings = {
    "E_pi": (1, 2, 3, 4, 5, 6),
    "E_aux": (1, 2, 3, 6, 9),
    "N_pi": (2, 4, 8, 16, 32),
}
labels = {"E_pi": "$E_\\pi$", "E_aux": "$E_\\mathrm{aux}$", "N_pi": "$N_\\pi$"}
labels |= {"E_V": "$E_V$"}
swept = {
    name: np.array([authors[f"{name} {x}"].final[0] for x in values])
    for name, values in settings.items()
}
for name, values in settings.items():
    axes[1].semilogx(values, swept[name], "o-", base=2, label=labels[name])
axes[0].set(xlabel="million steps", ylabel="mean normalised score")
axes[1].set(
    xlabel="setting", xticks=(1, 2, 4, 8, 16, 32), xticklabels=(1, 2, 4, 8, 16, 32)
)
for axis in axes:
    axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** in the first panel that PPG ends at 0.76 and PPO at 0.58, means of three runs each, and no
# run of PPO comes near any of PPG. In 14 of the sixteen games the worst run of PPG is above the
# best of PPO. PPG reaches PPO's final score in fewer than half the steps. A
# single network, from which the value's gradient is cut off ({doc}`disjoint_network`), learns more slowly at first, and
# ends at the same score. The authors' PPO has an encoder that policy and value share, and three epochs for each rollout.
#
# In the second panel each point is a single run. $E_\pi = 1$, $E_{\text{aux}} = 6$ and $N_\pi = 32$ are
# the same agent three times, and their points differ by up to 0.03, so small differences mean
# nothing. But the trends are clear. More epochs of the *policy* hurt, more epochs of the
# *auxiliary phase* help, and the auxiliary phase should not come too often. On these games the value can stand more
# training than the policy. Is PPG ahead only because its policy trains for one epoch, and PPO's for three? Not only: with
# three epochs its one run still scores 0.69.

# %% tags=["claims"]
score = {kind: authors[kind].final for kind in ("PPG", "PPO", "PPG, one network")}
assert round(score["PPG"].mean(), 2) == 0.76
assert round(score["PPO"].mean(), 2) == 0.58
assert score["PPO"].max() < score["PPG"].min() - 0.15, "no run comes near"
games = [(x, authors["PPO"].judged[name]) for name, x in authors["PPG"].judged.items()]
assert len(games) == 16
assert sum(ppg.min() > ppo.max() for ppg, ppo in games) == 14, "in 14 of the sixteen"
curve = authors["PPG"].curves.mean(0)
needed = np.interp(score["PPO"].mean(), curve, authors["PPG"].steps)
assert needed < 50e6, "fewer than half of the steps"
assert abs(score["PPG, one network"].mean() - score["PPG"].mean()) < 0.01, (
    "at the same score"
)
early = [authors[k].curves.mean(0)[authors[k].steps <= 30e6][-1] for k in score]
assert early[0] > early[2] + 0.03, "one network learns more slowly at first"
same = swept["E_pi"][0], swept["E_aux"][3], swept["N_pi"][4]
assert round(max(same) - min(same), 2) == 0.03, "the same agent three times"
assert (np.diff(swept["E_pi"]) < 0).all(), "more epochs of the policy hurt"
assert round(swept["E_pi"][2], 2) == 0.69, "with three epochs"
assert (np.diff(swept["E_aux"]) > 0).all(), "more auxiliary epochs help"
assert swept["N_pi"][0] < swept["N_pi"].min() + 0.001 < swept["N_pi"][3:].min() - 0.1

# %% [markdown]
# ## Our tasks
#
# What can be seen with one processor? Here PPO is simply PPG without its auxiliary phase. We compare the
# two on CartPole, with the package's settings for PPO, 100,000 steps and ten seeds; and with five seeds in
# mazes, which are trained on 200 levels and judged on 500 others, with six epochs of the policy for each
# rollout and with one, as the authors have. In the mazes both agents were tuned, with six settings each.
# {doc}`/docs/results` has two more tasks.
#
# A maze is a map in three layers: walls, agent, goal. The agent moves in four directions, gets 1
# at the goal, and has 30 steps ({doc}`data/worlds`). Six of the levels, with the agent orange and its goal green:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Six small mazes of seven by seven cells with dark walls, an orange cell for the agent and a green one for the goal"}}
from literate_rl.data.worlds import Maze

fig, axes = plt.subplots(1, 6, figsize=(7, 1.4))
for level, axis in enumerate(axes):
    maze = Maze(range(level, level + 1))
    maze.reset(seed=0)
    axis.imshow(maze.render())
    axis.set_title(f"level {level}", fontsize=9)
    axis.axis("off")
fig.tight_layout()

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three panels with learning curves of PPG and PPO. CartPole: PPG rises to 500, PPO earlier but to 420, with a wide band. Mazes: both rise from 0.3 to about 0.9, PPG a little above PPO. Mazes with one epoch: both rise to less than 0.6, on top of each other"}}
tasks = {
    "ppg_cartpole": "CartPole",
    "ppg_maze": "mazes, six epochs",
    "ppg_maze_once": "mazes, one epoch",
}
fig, axes = plt.subplots(1, 3, figsize=(7, 2.6))
for axis, (name, title) in zip(axes, tasks.items(), strict=True):
    for (variant, runs), color in zip(
        stored_runs(name).items(), ("C0", "C1"), strict=True
    ):
        steps = runs.steps / 1000
        axis.plot(steps, runs.curves.mean(0), color=color, label=variant)
        band = t_interval(runs.curves)
        axis.fill_between(steps, *band, color=color, alpha=0.25, linewidth=0)
    axis.set(xlabel="thousand steps", title=title)
axes[0].set_ylabel("return while training")
axes[0].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** that no difference is seen on any of the three. Bands are 95 % t intervals.
#
# - **CartPole.** All ten seeds of PPG end at 500, and eight of PPO's; the other two end at 126 and 101, on
#   a network of three heads and after twice the steps of {doc}`ppo_evidence`, where all twenty held. The
#   interval of the difference includes zero.
# - **Mazes.** With noise both come to nine in ten training levels and seven in ten unseen ones. For that PPG
#   takes nearly one and a half times the processor time of PPO.
# - **Mazes with one epoch.** Both solve less than half as many unseen levels, played greedily, as with six. So using old
#   rollouts for the value alone does not make up for what the policy has not learned from them.

# %% tags=["claims"]
from literate_rl.learners.ppg_learner import ppg_settings
from literate_rl.runs.evaluation import paired_difference

cartpole, six, once = map(stored_runs, tasks)
for both in (cartpole, six, once):
    ppg, ppo = (
        [runs.area, runs.final, *runs.judged.values()]
        for runs in (both["PPG"], both["PPO"])
    )
    for ours, theirs in zip(ppg, ppo, strict=True):
        found = paired_difference(ours, theirs)
        assert found.low < 0 < found.high, "no difference is seen"
assert [(runs.final == 500).sum() for runs in cartpole.values()] == [10, 8], "at 500"
assert sorted(cartpole["PPO"].final.round())[:3] == [101, 126, 500], "the other two"
for runs in six.values():
    training, unseen = (runs.judged[where].mean() for where in ("training", "unseen"))
    assert abs(training - 0.9) < 0.05, "nine in ten training levels"
    assert abs(unseen - 0.7) < 0.05, "seven in ten unseen ones"
ppg, ppo = (runs.cpu_seconds.mean() for runs in six.values())
assert 1.4 < ppg / ppo < 1.5, "nearly one and a half times"
for kind in ("PPG", "PPO"):
    assert once[kind].final.mean() < 0.5 * six[kind].final.mean(), "less than half"

# %% [markdown]
# ## Which of the two can stand more training?
#
# The premise of PPG can be tried by itself, without an auxiliary phase: with `value_epochs` of {doc}`ppg` each rollout
# is learned from for $E_\pi$ epochs by the policy and for $E_V$ epochs by the value. We let both be 1, 3 or 10, on
# CartPole, for 50,000 steps and with ten seeds each. An epoch is one step of the optimiser here; the authors'
# epochs have several.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two panels with the mean return while training. First, over epochs of the value, a line for each number of epochs of the policy: all three rise steeply, from about 50 with one epoch to between 230 and 290 with ten. Second, over epochs of the policy, a line for each number of epochs of the value: they lie far above each other and hardly change, the uppermost is highest with three epochs"}}
numbers = (1, 3, 10)
grid = stored_runs("ppg_cartpole_epochs")
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True)
for axis, fixed, moved in (
    (axes[0], "E_pi", "E_V"),
    (axes[1], "E_V", "E_pi"),
):
    for place, (held, color) in enumerate(
        zip(numbers, ("C0", "C1", "C2"), strict=True)
    ):
        pairs = [{fixed: held, moved: x} for x in numbers]
        names = [f"E_pi {pair['E_pi']}, E_V {pair['E_V']}" for pair in pairs]
        areas = [grid[name].area for name in names]
        low, high = np.array([t_interval(x) for x in areas]).T
        mean = np.mean(areas, 1)
        axis.errorbar(
            np.arange(3) + 0.06 * (place - 1),
            mean,
            (mean - low, high - mean),
            fmt="o-",
            color=color,
            capsize=3,
            label=f"{labels[fixed]} = {held}",
        )
    axis.set(xlabel=f"{labels[moved]}", xticks=range(3), xticklabels=numbers)
    axis.legend(fontsize=8)
axes[0].set_ylabel("return while training")
fig.tight_layout()

# %% [markdown]
# **Notice** in the first panel that every line rises: more epochs of the value help whatever the policy does.
# In the second ten epochs of the policy are nowhere seen to beat three. With ten of the value three beat one,
# by 53 (9 to 96), and ten, by 32 (3 to 61), among nine such comparisons. So at this number of steps the
# premise of PPG holds on CartPole.

# %% tags=["claims"]
cells = {(p, v): grid[f"E_pi {p}, E_V {v}"].area for p in numbers for v in numbers}
assert {len(areas) for areas in cells.values()} == {10}, "ten seeds each"
for p in numbers:
    for more, fewer in ((3, 1), (10, 3)):
        found = paired_difference(cells[p, more], cells[p, fewer])
        assert found.low > 0, "whatever the policy does"
for v in numbers:
    assert paired_difference(cells[10, v], cells[3, v]).low < 0, "ten do not beat three"
worse = paired_difference(cells[3, 10], cells[10, 10])
assert [round(x) for x in worse] == [32, 3, 61], "three beat ten"
better = paired_difference(cells[3, 10], cells[1, 10])
assert [round(x) for x in better] == [53, 9, 96], "three beat one"
of_grid = ppg_settings("CartPole-v1")
assert of_grid.num_minibatches == 1, "an epoch is one step"

# %% [markdown]
# ## Why not here?
#
# The premise cannot be the reason: on CartPole it holds. But PPO trains policy and value for ten epochs there, and so
# gives the value what it needs. Other things differ from the authors' runs too:
#
# - **Length**: theirs are several hundred times as long.
# - **Reuse**: they use each rollout [once](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L17-L18) in the policy
#   phase and [32 rollouts](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L27) in an auxiliary phase. Six epochs for the
#   policy cost them half of their score. In our mazes six epochs solve far more levels than one.
# - **Network**: a [deep one](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L43-L47) for pixels, whose features are worth sharing.
# - **Levels**: [the hard setting](https://github.com/openai/phasic-policy-gradient/blob/7295473f0185c82f9eb9c1e17a373135edd8aacc/phasic_policy_gradient/train.py#L10), with unlimited levels.

# %% tags=["claims"]
assert swept["E_pi"][5] < 0.55 * swept["E_pi"][0], "half of their score"
assert once["PPG"].final.mean() < 0.5 * six["PPG"].final.mean(), "far more levels"
assert 100e6 / max(stored_runs(name)["PPG"].steps[-1] for name in tasks) > 300

# %% [markdown]
# ## Summary
#
# - On the authors' sixteen games PPG scores 0.76, with one network for policy and value as with two, and
#   PPO 0.58.
# - There, more epochs of the policy hurt and more epochs of the auxiliary phase help.
# - On CartPole and in our mazes we see no difference, and PPG costs more processor time.
# - On CartPole more epochs of the value help whatever the policy does.
# - Judging by the authors' runs, PPG is worth a try where runs are long and a policy gets worse
#   when it learns from a rollout more than once. Elsewhere PPO is the simpler choice.
#
# ## Exercise: read the curves
#
# How many million steps does PPG need until the mean of its three curves is as high as PPO's score? Guess from the
# picture. Then compute it: `authors["PPG"]` has `steps` and `curves`, with a row for each run, and
# `authors["PPO"].final` the scores.


# %%
def answer():
    """Return the number of million steps."""
    return ...


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def needed_steps():
    """Return the step of the first mean that is high enough."""
    curve = authors["PPG"].curves.mean(0)
    above = curve >= authors["PPO"].final.mean()
    return round(authors["PPG"].steps[above][0] / 1e6)


def rounded():
    """Return the answer in whole millions."""
    found = answer()
    return found if found is ... else round(found)


grade(rounded, needed_steps, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    """Return the number of million steps."""
    # A curve has a point for each bin of steps: take the first one that is high enough.
    mean = authors["PPG"].curves.mean(0)
    return authors["PPG"].steps[mean >= authors["PPO"].final.mean()][0] / 1e6


grade(rounded, needed_steps, ())

# %% [markdown]
# ## References
#
# PPG and its runs are from {cite:t}`cobbe2021`, Procgen and its scales from {cite:t}`cobbe2020`.
# The authors' code and curves have the MIT licence.

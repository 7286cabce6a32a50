# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What matters in continuous control
#
# **Which agent for continuous actions, and what do delay, noise and long targets buy?** This page shows
# measurements and no new code: four agents on one pendulum, a body with six joints, a car that
# has to swing, two variations, and a seed that failed. After it you know which agent to try first, and
# how little a small task can say about it. It takes about 20 minutes, reading, without exercises.
# You need {doc}`td3`, {doc}`sac`, {doc}`discrete_sac` and the paired differences of {doc}`evaluation`.
#
# In short: on the pendulum only TD3 stands out, because its older copies follow more slowly; on a
# larger body seeds differ so much that a few of them rank nobody; and on a car whose reward is far away
# it is the noise that decides, and not the length of the targets. (Where the car's actions are listed it
# takes both: {doc}`rainbow_evidence`.)

# %% tags=["hide-input"]
from itertools import combinations

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.learners.ddpg import ddpg_settings
from literate_rl.learners.discrete_sac import discrete_sac_settings
from literate_rl.runs.evaluation import paired_difference
from literate_rl.learners.sac import sac_settings
from literate_rl.learners.td3 import hddpg_settings, td3_settings
from literate_rl.book.pictures import AGENT_COLOURS, predict
from literate_rl.runs.runs import results_folder, stored_runs

# %% [markdown]
# ## Four agents, one pendulum
#
# DDPG, HDDPG, TD3 and SAC, with ten seeds each. Their layers are equally wide, their batches
# equally large, and their critics take the same number of updates. (TD3 and SAC have two critics,
# and TD3's actor takes half as many steps.) Thin lines are runs, thick ones are means. The
# printed lines say after how many steps the return while training first exceeds −300 and how many CPU
# seconds a whole run of 10,000 steps took, as medians of ten, and by how much the mean returns of two agents differ over the whole training,
# seed by seed.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Returns of four agents over 10,000 steps of Pendulum. All fall from -1100 to -1500 in the first 2,000 steps. DDPG, HDDPG and SAC rise together after about 3,000 steps and are at -200 after 5,000. TD3 rises some 2,000 steps later. All four end near -150"}}
runs = stored_runs("ddpg_pendulum") | stored_runs("sac_pendulum")
fig, axis = plt.subplots(figsize=(7, 3))
for name, found in runs.items():
    steps, color = found.steps / 1000, AGENT_COLOURS[name]
    axis.plot(steps, found.curves.T, color=color, alpha=0.2, linewidth=0.6)
    axis.plot(steps, found.curves.mean(0), color=color, linewidth=2.5, label=name)
axis.set(xlabel="thousand steps", ylabel="return while training")
axis.legend()
fig.tight_layout()
learned = {}
for name, found in runs.items():
    learned[name] = found.steps[(found.curves > -300).argmax(1)]
    print(
        f"{name:6s} above −300 after {np.median(learned[name]):,.0f} steps,"
        f" {np.median(found.cpu_seconds):.0f} s"
    )
gaps = {}
for first, second in (("HDDPG", "DDPG"), ("SAC", "DDPG"), ("TD3", "DDPG")):
    gaps[first] = gap = paired_difference(runs[first].area, runs[second].area)
    print(
        f"{first:6s}minus {second}: {gap.mean:5.0f} ({gap.low:.0f} to {gap.high:.0f})"
    )

# %% [markdown]
# **Notice** that three of the four cannot be told apart: the intervals for HDDPG and for SAC
# contain zero. TD3 takes longer, with every seed. {doc}`td3` measures why: with its delay the older
# copies follow at half the speed. If they get their speed back ($\tau$ = 0.01), nearly nine tenths of
# the difference is gone (ten seeds, the first 4,800 steps), and the actor still waits.
#
# All four first get *worse*, for some 1,000 steps, down to −1,500; random torques earn about −1,200.
# And a run of any of them takes less than a minute.
#
# SAC differs in another way: nobody chose its noise, only a target entropy. On this task that costs
# nothing, as long as the policy need not be nearly uniform ({doc}`sac` has four targets).

# %% tags=["claims"]
assert [len(found.final) for found in runs.values()] == [10] * 4, "ten seeds each"
makers = ddpg_settings, hddpg_settings, td3_settings, sac_settings
names = "hidden", "batch_size", "train_interval", "learning_starts", "total_steps"
for name in names:
    values = {getattr(make("Pendulum-v1"), name) for make in makers}
    assert len(values) == 1, f"the same {name}"
for name in ("HDDPG", "SAC"):
    assert gaps[name].low < 0 < gaps[name].high, "cannot be told apart"
assert (runs["TD3"].area < runs["DDPG"].area).all(), "with every seed"
assert gaps["TD3"].high < -200
# Each reaches to step 4,800.
copies = stored_runs("td3_copies")["faster copies"].curves[:, :24].mean(1)
slow, fast = (runs[name].curves[:, :12].mean(1) for name in ("TD3", "DDPG"))
assert len(copies) == len(slow) == 10, "ten seeds"
back = paired_difference(copies, slow).mean / paired_difference(fast, slow).mean
assert 0.86 < back < 0.9, "nearly nine tenths"
lowest = [found.curves.mean(0).min() for found in runs.values()]
assert all(-1600 < x < -1450 for x in lowest), "down to −1,500"
pendulum, random_returns = gym.make("Pendulum-v1"), []
pendulum.action_space.seed(0)
for seed in range(100):
    _, total, over = pendulum.reset(seed=seed), 0.0, False
    while not over:
        _, reward, _, over, _ = pendulum.step(pendulum.action_space.sample())
        total += reward
    random_returns.append(total)
assert abs(np.mean(random_returns) + 1200) < 60, "random torques"
assert all(np.median(found.cpu_seconds) < 60 for found in runs.values())
assert np.median(learned["SAC"]) == min(map(np.median, learned.values())), "none faster"

# %% [markdown]
# ## A body with six joints
#
# *HalfCheetah* is a flat animal with six motors, in the physics of MuJoCo. It is paid for speed.
# Observations have 17 numbers and actions six, so here a critic's landscape has six dimensions.
# The agents have layers and batches of 256, as in the paper on SAC, and learn after every step, for
# 100,000 steps. They differ in two more settings, each as in its paper or its chapter: the learning
# rate is $10^{-3}$ for TD3 and $3 \cdot 10^{-4}$ for SAC, and TD3 acts at random for 5,000 steps
# where SAC draws from its policy. The length is a tenth of what is usual: {cite:t}`fujimoto2018` report 9,637 for TD3 after
# a million (on an older version of the task). Nothing was tuned.

# %% tags=["hide-input"] mystnb={"image": {"alt": "First: returns over 100,000 steps of HalfCheetah, five runs each of TD3 and of SAC. They start below zero; one run of TD3 stays near 1,000 for half of the time, the others climb to between 3,700 and 5,700. Second: the returns of the last policies as dots, and as crosses those of the peer, which lie in the same range"}}
cheetah = stored_runs("td3_cheetah") | stored_runs("sac_cheetah")
peer = [stored_runs(f"{name}_cheetah_peer") for name in ("td3", "sac")]
peer = [found.final for (found,) in (runs.values() for runs in peer)]
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), width_ratios=(2, 1))
for number, (name, found) in enumerate(cheetah.items()):
    color = AGENT_COLOURS[name]
    lines = axes[0].plot(found.steps / 1000, found.curves.T, color=color, linewidth=1)
    lines[0].set_label(name)
    axes[1].plot([number] * len(found.final), found.final, "o", color=color, alpha=0.7)
    print(f"{name}:", *(f"{x:.0f}" for x in np.sort(found.final)))
    axes[1].plot([number + 0.25] * len(peer[number]), peer[number], "x", color="gray")
    print("  the peer's:", *(f"{x:.0f}" for x in np.sort(peer[number])))
axes[0].set(xlabel="thousand steps", ylabel="return while training")
axes[0].legend()
axes[1].set(xticks=range(len(cheetah)), xticklabels=list(cheetah), xlim=(-0.6, 1.8))
axes[1].set_ylabel("last policies, greedy")
fig.tight_layout()

# %% [markdown]
# **Notice** the five runs of TD3. They are one program with five seeds, and they end between 1,870
# and 5,852. One of them is stuck near 1,000 for half of its training. Those of SAC end between
# 4,104 and 6,182.
#
# The crosses are runs of Stable-Baselines3 with the same settings, five of each agent. All of them
# lie between our worst and our best run of the same agent, so as far as such few runs can tell,
# both programs learn alike. That makes ten runs of each agent. Pair each run of one with each of
# the other: SAC is ahead in 74 of 100 pairs. If both agents were alike, a result so far from 50 would
# come up in one of thirteen experiments. So these runs suggest that SAC learns faster, with this pair
# of learning rates, and do not prove it.
#
# `python -m benchmarks.ddpg_learning td3_cheetah` and
# `python -m benchmarks.sac_learning sac_cheetah` train them, in some twenty minutes each, and need
# `pip install '.[mujoco]'`.

# %% tags=["claims"]
td3, soft = (np.sort(found.final) for found in cheetah.values())
assert td3.round().tolist() == [1870, 4134, 4214, 5409, 5852]
assert (len(soft), soft.min().round(), soft.max().round()) == (5, 4104, 6182)
all_td3, all_soft = (np.append(x, y) for x, y in zip((td3, soft), peer, strict=True))
assert (all_soft[:, None] > all_td3).sum() == 74, "74 of 100 pairs"
ranks = [sum(some) for some in combinations(range(1, 21), 10)]
seen_rank = 74 + sum(range(1, 11))
extreme = 2 * np.mean(np.array(ranks) >= seen_rank)
assert round(1 / extreme) == 13, "one of thirteen experiments"
folder = results_folder() / "learning"
for name, rate in (("td3", "0.001"), ("sac", "0.0003")):
    text = (folder / f"{name}_cheetah.csv").read_text("utf-8")
    assert f" learning_rate={rate} " in text
stuck = cheetah["TD3"].curves[cheetah["TD3"].final.argmin()]
assert ((stuck > 800) & (stuck < 1100)).sum() > 12, "for half of its training"
assert min(td3.min(), soft.min()) > 1500, "both learn to run"
assert td3[-1] > 3 * td3[0], "a factor of three"
for ours, theirs in zip((td3, soft), peer, strict=True):
    assert len(theirs) == 5, "five of each agent"
    assert ours[0] < theirs.min() <= theirs.max() < ours[-1], "between worst and best"

# %% [markdown]
# ## A noise that lasts
#
# In *MountainCarContinuous* a weak car has to swing itself up to a flag, which pays 100, and each
# push costs a little. A noise that is new at every step hardly moves the car. With `hold=20` the
# same noise is used for 20 steps, an action repeat of the noise, and so long a push may swing it far
# enough, by chance. (Only SAC has this setting. Other noises that last are Ornstein–Uhlenbeck noise,
# {doc}`ddpg`, coloured noise {cite:p}`eberhard2023`, and gSDE, a noise in the last layer
# {cite:p}`raffin2021`.) The
# targets of {doc}`sac` have 20 steps here too, to carry the news of the flag back to the valley.
# Here are ten runs as they are set, ten whose noise lasts for one step, and ten whose targets have
# one step:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three panels with ten thin curves of returns and their mean over 50,000 steps. As set, they start near 90, fall below zero and come back to more than 90. With a noise of one step all stay near -20. With targets of one step most stay far above zero"}}
climbed = stored_runs("sac_mountain") | stored_runs("sac_mountain_parts")
climbed = {"both of 20 steps": climbed.pop("SAC"), **climbed}
fig, axes = plt.subplots(1, 3, figsize=(8, 2.6), sharey=True)
for number, (name, found) in enumerate(climbed.items()):
    axis, color = axes[number], AGENT_COLOURS["SAC"]
    steps = found.steps / 1000
    axis.plot(steps, found.curves.T, color=color, alpha=0.35, linewidth=0.8)
    axis.plot(steps, found.curves.mean(0), color=color, linewidth=2.5)
    axis.set_title(name, fontsize=10)
    axis.set_xlabel("thousand steps")
    print(f"{name:20s}", *(f"{x:3.0f}" for x in np.sort(found.final).round() + 0.0))
axes[0].set_ylabel("return while training")
fig.tight_layout()
as_set, short_noise, short_targets = climbed.values()
gain = paired_difference(short_targets.area, as_set.area)
print(f"targets of one step: {gain.mean:.0f} more ({gain.low:.0f} to {gain.high:.0f})")

# %% [markdown]
# The rows are the returns of the last policies in 100 greedy episodes. **Notice** that the noise
# decides. Where it lasts, at least nine of ten runs earn more than 80 in their first 2,000 steps,
# when they have hardly begun to learn. Where it does not, no run earns anything at any time. These
# agents have never seen what the flag pays, only what pushes cost, and their last policies stand
# still.
#
# The long targets do not decide, although we chose them because they had seemed to, on a few other
# seeds. Without them nine of ten last policies earn more than 91 too, the tenth 66, and while
# training the runs earn *more*, as the last line says. With them each run earns less than nothing
# for a while. (The temperature is fixed here, at 0.1, for all three. The settings of {doc}`sac` keep the
# 20 steps that were chosen before these runs; 1 would be simpler.)
#
# In {doc}`rainbow_evidence`, on a similar car with listed actions, long targets do decide. Much differs
# there: the rewards (−1 a step, nothing at the flag), the length of the episodes (200 steps), the push,
# and the agent. Which of these makes long targets matter was not tried.

# %% tags=["claims"]
assert [len(found.final) for found in climbed.values()] == [10] * 3
early = [(found.curves[:, 0] > 80).sum() for found in (as_set, short_targets)]
assert min(early) >= 9, "at least nine of ten"
assert short_noise.curves.max() < 0, "no run earns anything at any time"
assert abs(short_noise.final).max() < 0.1, "the last policies stand still"
assert as_set.final.min() > 91
assert sorted(short_targets.final > 91) == [False] + [True] * 9, "nine of ten too"
assert round(short_targets.final.min()) == 66
assert gain.low > 0, "more while training"
assert (as_set.curves[:, 1:].min(1) < 0).all(), "less than nothing for a while"
car = sac_settings("MountainCarContinuous-v0")
assert (car.hold, car.num_steps, car.temperature, car.tune) == (20, 20, 0.1, False)

# %% [markdown]
# ## Two variations
#
# **Priorities.** Replay can favour surprising steps ({doc}`replay`). Here TD3 learns on the pendulum with and without priorities, the same three seeds.
#
# **Actions from a list.** DDPG and TD3 are made for numbers, but an actor may also return
# probabilities, and then the critic is climbed through those ({doc}`ddpg`). Here are both on
# CartPole, three seeds, beside ten runs each of discrete SAC and of DQN. DQN was trained for
# 50,000 steps, all others for 20,000.

# %% tags=["hide-input"]
with_priorities = stored_runs("ddpg_priorities")["TD3, priorities"]
listed = stored_runs("ddpg_discrete")
listed |= {
    "discrete SAC": stored_runs("sac_cartpole")["SAC"],
    "DQN": stored_runs("dqn_cartpole")["DQN"],
}
print("Pendulum, last policies           while training")
for name, found in {"priorities": with_priorities, "none": runs["TD3"]}.items():
    final, area = found.final[:3], found.area[:3]
    print(
        f"{name:12s}",
        *(f"{x:5.0f}" for x in final),
        "     ",
        *(f"{x:5.0f}" for x in area),
    )
print("\nCartPole, last policies")
for name, found in listed.items():
    print(f"{name:12s}", *(f"{x:4.0f}" for x in np.sort(found.final)))

# %% [markdown]
# **Notice** that with priorities nothing is gained here. Two of the three last policies are as
# good as those without, one ends at −258, and while training some seeds are faster and some
# slower.
#
# DDPG balances the pole with two of three seeds, TD3 with one. The other three runs fail from the
# first steps to the last: they end near 10, the return of an agent that always pushes to the same
# side. What holds the one of DDPG there, the third? Here are its first ten seeds, for 4,000 steps, looked
# at in 400 states that random pushes visit. The first panel has the probability of the action that the actor
# finds less likely, as the median over the states, the second the share of states in which it would
# rather push right.

# %% tags=["hide-input"] mystnb={"image": {"alt": "First: the probability of the less likely action, on a logarithmic axis. It falls from one half in all ten runs, to values between a hundredth and far below a millionth. Second: in the first 1,000 steps most runs push to one side in all states. Nine come to between 0.4 and 0.7, the tenth, dotted, stays at one"}}
corner = stored_runs("ddpg_corner")["DDPG"]
other, right, against, slope = (
    corner.watched[name] for name in ("other", "right", "against", "slope")
)
caught = corner.curves[:, -1] < 30
fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.8))
for axis, curves in zip(axes, (other, right), strict=True):
    for which, look, label in ((~caught, "-", "learns"), (caught, ":", "caught")):
        color, width = AGENT_COLOURS["DDPG"], 1 if look == "-" else 2.5
        shown = curves[which].T
        lines = axis.plot(
            corner.steps / 1000, shown, look, color=color, linewidth=width
        )
        lines[0].set_label(label)
    axis.set_xlabel("thousand steps")
axes[0].set(ylabel="probability of the other action", yscale="log", ylim=(1e-9, 1))
axes[1].set(ylabel="share of states: right")
axes[0].legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** that six of the ten run into a **corner**: the actor climbs a critic that hardly knows
# anything, and after 1,100 steps pushes to one side in every one of the states. (The softmax *saturates*
# is the usual word.) On the way back stands its slope, $p_j (1 - p_j)$: where the other action has a
# probability of $10^{-5}$, a hundred thousandth of the critic's slope is left. Five actors find their way
# out, and push left in some states and right in others. The one that is caught was deepest in: its other
# action has a probability of $5 \cdot 10^{-6}$ after 1,100 steps, the others of $2 \cdot 10^{-4}$ or more.
# From 1,600 steps on its gradient is more than a hundred times shorter than that of any other run.
#
# Its critic has not lost the other action from sight: in more than half of the states it prefers it. Yet
# the actor goes on into the corner, to $4 \cdot 10^{-8}$. A short gradient alone does not hold it, since
# Adam divides by the usual size. Whether the other states outweigh these, or Adam still divides by
# the large gradients of the beginning, was not looked into. In SAC the entropy pays for leaving the
# corner, and DQN has no actor that could be caught in one. (DDPG and TD3 were not tuned for this task, the
# other two were.)

# %% tags=["claims"]
assert [len(found.final) for found in listed.values()] == [3, 3, 10, 10]
assert [found.steps[-1] for found in listed.values()] == [20_000] * 3 + [50_000]
assert listed["discrete SAC"].final.min() > 100, "none ends near 10"
ours, theirs = with_priorities, runs["TD3"]
assert sorted(ours.final < -200) == [False, False, True]
assert round(ours.final.min()) == -258
faster = ours.area > theirs.area[:3]
assert 0 < faster.sum() < 3, "some seeds are faster and some slower"
balanced = {name: (listed[name].final > 475).sum() for name in ("DDPG", "TD3")}
assert balanced == {"DDPG": 2, "TD3": 1}
for name in balanced:
    stuck = listed[name].final < 475
    assert (listed[name].final[stuck] < 11).all(), "near 10"
    assert (listed[name].area[stuck] < 11).all(), "from the first steps to the last"
pole, lengths = gym.make("CartPole-v1"), []
for seed in range(20):
    pole.reset(seed=seed)
    lengths.append(1 + sum(1 for _ in iter(lambda: pole.step(1)[2], True)))
assert 9 <= np.mean(lengths) < 11, "always to the same side"
assert caught.nonzero()[0].tolist() == [2], "the third of ten"
assert len(caught) == 10
early, later = (np.searchsorted(corner.steps, x) for x in (1120, 1600))
cornered = np.isin(right[:, early], (0, 1))
assert cornered.sum() == 6, "six of the ten"
assert ((right[~caught, -1] > 0.3) & (right[~caught, -1] < 0.8)).all(), "out"
assert float(f"{other[2, early]:.0e}") == 5e-6, "deepest in"
assert other[cornered & ~caught, early].min() > 2e-4
assert (right[caught] == 1).all()
assert (slope[caught, later:] < slope[~caught, later:].min(0) / 100).all(), "shorter"
assert (against[caught, early:] > 0.5).all(), "it prefers it"
assert float(f"{other[2, -1]:.0e}") == 4e-8, "goes on into the corner"

# %% [markdown]
# ## A seed that failed
#
# With a target entropy of 0.1 nats, nearly sure of each action, nine of ten runs of discrete SAC end
# above 460 on CartPole, and the fourth seed at 182. In all of its greedy episodes the pole stands to
# the end. It is the cart that leaves the track: the pole leans a little to one side, and the cart
# drifts there for nearly 200 steps. Such a mistake is hard to see, because a single push changes
# little: where the cart is more than 0.6 from the middle, the better of the two pushes gains a fifth of
# a step.
#
# Three cures were tried, ten seeds each. A *cooler* start, at a temperature of 0.01 instead of 0.05: at
# the end of the weak run a nat was worth 0.26 steps, more than a push can gain. A buffer of *all
# steps* instead of the last 4,000. And the default target of {doc}`discrete_sac`, $\tfrac12 \log 2 =
# 0.35$ nats, which makes the policy *more* random:

# %% tags=["hide-input"]
starts = {
    "½ log 2": stored_runs("sac_cartpole")["SAC"],
    "0.1": stored_runs("sac_cartpole_sure")["SAC"],
    "0.1, cooler": stored_runs("sac_cartpole_cool")["SAC"],
    "0.1, all steps": stored_runs("sac_cartpole_hoard")["SAC"],
}
for name, found in starts.items():
    print(f"{name:15s}", *(f"{x:4.0f}" for x in found.final))

# %% [markdown]
# Each column is a seed, 100 greedy episodes each. **Notice** that the cooler start lifts the fourth
# seed and lets two others drift. With all steps the fourth seed stays where it was. With the default
# it balances for 435 steps, and no run is below that, though it is the weakest again. Only the cooler
# start cures it, and it spoils two others. At 475 steps or above are eight of ten runs with
# the default and seven with each of the others. We keep the default because its worst run is the least
# bad, and not because the cause is known. (One weak run in ten is rare enough that ten seeds cannot
# prove a difference: the interval of the means contains zero.)

# %% tags=["claims"]
half, sure, cool, hoard = (found.final for found in starts.values())
run = starts["0.1"]
assert {len(x) for x in (half, sure, cool, hoard)} == {10}
assert sure.argmin() == 3, "the fourth seed"
assert round(sure[3]) == 182
assert (sure > 460).sum() == 9
assert run.judged["off_track"][3] == 1, "it is the cart that leaves the track"
assert 0.15 < run.judged["push"][3] < 0.25, "a fifth of a step"
alpha = run.watched["charts/alpha"][3, -1]
assert round(alpha / 0.05, 2) == 0.26, "what a nat is worth, in scaled rewards"
assert cool[3] == 500, "lifted"
assert [*cool.argsort()[:2]] == [7, 0], "two others"
assert (starts["0.1, cooler"].judged["off_track"][cool < 400] > 0.8).all(), "drift"
assert hoard.argmin() == 3, "stays where it was"
assert hoard[3] < 195
assert (half.argmin(), round(half.min())) == (3, 435), "no run is below that"
assert [(x >= 475).sum() for x in (half, sure, cool, hoard)] == [8, 7, 7, 7]
assert max(half[3], sure[3], hoard[3]) < cool[3], "the fourth best of all"
assert half.min() > max(x.min() for x in (sure, cool, hoard)), "the least bad"
cure = paired_difference(half, sure)
assert cure.low < 0 < cure.high, "cannot prove a difference"
settings = discrete_sac_settings("CartPole-v1")
assert (settings.target_entropy, settings.buffer_size) == (None, 4000)

# %% [markdown]
# ## Which one first?
#
# For numbers in a box try SAC first: what has to be chosen is a target entropy, which has a default
# that serves on the pendulum and on the cheetah (on the car the temperature was fixed), and on the
# pendulum no agent learned faster. If its draws are in the way, because the
# task wants one exact action, try TD3, with $\tau$ doubled. (That is advice; no run here shows it.)
# For actions from a list {doc}`dqn` or {doc}`ppo` are simpler. And if nothing is learned at all, look
# at the exploration before you change the agent.
#
# This book ends here with single critics and twins. If steps are dear, the next thing to read about
# is the **replay ratio**, updates for each step: REDQ takes twenty, with ten critics
# {cite:p}`chen2021`, DroQ with dropout and layer norm in two {cite:p}`hiraoka2022`, and TQC cuts the
# highest of many quantiles {cite:p}`kuznetsov2020`.
#
# ## Summary
#
# - On a small task most agents arrive. It can show that one is broken, hardly that one is better.
# - On a larger one seeds may differ by a factor of three. A few of them rank nobody.
# - TD3's delay slows down the older copies. On the pendulum a doubled $\tau$ wins most of that back.
# - On a car whose reward is far away, a noise that lasts decides whether anything is learned.
# - An actor that saturates early may not come back, although its critic prefers the other action in more
#   than half of the states.
#
# ## Exercise: predict

# %% tags=["hide-input"]
predict(
    "Two agents are equally good, and the returns of their runs differ as much as those of TD3 "
    "on HalfCheetah. You train each of them once. How likely is it that the second one is ahead by "
    "more than a quarter?",
    ["hardly at all", "about one in ten", "about one in three"],
    right="about one in three",
    because="Draw both from the same five results, 1,870, 4,134, 4,214, 5,409 and 5,852. Of the 25 "
    "equally likely pairs eight have a second one that is larger by more than a quarter.",
)

# %% tags=["claims"]
seen = cheetah["TD3"].final
pairs = [second > 1.25 * first for first in seen for second in seen]
assert (len(pairs), sum(pairs)) == (25, 8), "eight of 25"

# %% [markdown]
# ## References
#
# TD3 and its ablation on MuJoCo: {cite:t}`fujimoto2018`. SAC: {cite:t}`haarnoja2018`. Why results
# of a few seeds mislead: {cite:t}`henderson2018`.

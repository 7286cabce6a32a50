# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What matters in DQN and Rainbow
#
# **Which of the improvements of DQN matter, and on which tasks?** This page shows measurements
# and no new code: one part at a time taken away from DQN and from Rainbow, and a task where exploring
# is hard. It takes about 10 minutes to read, without the exercise. You need {doc}`dqn`, {doc}`rainbow`
# and the paired differences of {doc}`evaluation`.
#
# ## What to try first
#
# If your own agent of values passes the six rooms of {doc}`debugging` and still does not learn, try the
# parts in this order:
#
# 1. **$n$ steps**: 3 or 10 in place of 1. It is the one part whose loss we saw on CartPole and on
#    MountainCar.
# 2. **How long a noise lasts**, where rewards are rare, together with $n$ steps: `num_steps=10` and
#    `hold=20`. On MountainCar each of them alone left eight of ten runs at −200.
# 3. **Priorities**, where rewards are rare. In an agent we have not switched them there, but on Atari
#    they matter {cite:p}`hessel2018`.
# 4. **All others** last, each against the agent without it. On CartPole five seeds show nothing of
#    double DQN, dueling, distributions or priorities.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from literate_rl.data.agents import make_envs
from literate_rl.runs.evaluation import paired_difference
from literate_rl.learners.rainbow import make_rainbow_policy
from literate_rl.book.pictures import AGENT_COLOURS, Axis, Mark, plot, predict
from literate_rl.runs.runs import stored_runs

torch.set_num_threads(1)  # the networks of this book are too small to gain from more

# %% [markdown]
# ## DQN, one switch at a time
#
# Here each part in turn is taken away from the package's DQN, with everything else as it was, five
# seeds for each. Without a target network means $\tau = 1$: the copy is renewed at each update.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Five panels of returns over 50,000 steps, each with the mean of five whole agents in the back and the single runs of an agent without one part"}}
switches = stored_runs("dqn_switches")
runs = switches.pop("all parts")
steps = runs.steps / 1000
fig, axes = plt.subplots(3, 2, figsize=(4.6, 5), sharex=True, sharey=True)
for axis, (name, these) in zip(axes.flat, switches.items(), strict=False):
    axis.plot(steps, runs.curves.mean(0), color=AGENT_COLOURS["DQN"], linewidth=2.5)
    axis.plot(these.steps / 1000, these.curves.T, color="C1", linewidth=0.9)
    axis.set_title(name, fontsize=9)
for axis in axes[:, 0]:
    axis.set_ylabel("return", fontsize=9)
for axis in (axes[2, 0], axes[1, 1]):
    axis.set_xlabel("thousand steps", fontsize=9)
axes[1, 1].xaxis.set_tick_params(labelbottom=True)
axes[2, 1].axis("off")
lines = axes[0, 0].get_lines()[:2]
axes[2, 1].legend(lines, ["as it is, mean of five", "without, single runs"], fontsize=9)
fig.tight_layout()

# %% [markdown]
# **Notice** what five seeds can show and what they cannot. With one step rather than twenty the
# agent learns far more slowly: the mean return while training is lower by at least 100, by the 95
# percent interval of the paired differences. Three steps are enough here: all five runs end at 500.
#
# Without a target network one run ends at 500 and four below 475, but runs that differ so much say little
# about their mean: the interval contains zero. What becomes of the values without $n$ steps and target
# network, {doc}`dqn` shows: they run away.
#
# Without double DQN or dueling no difference is seen. With two actions a maximum overestimates least
# ({doc}`dqn`), and {cite:t}`wang2016` found that dueling gains most where there are many actions.

# %% tags=["claims"]
gaps = {
    name: paired_difference(these.area, runs.area) for name, these in switches.items()
}
final = {name: np.sort(these.final) for name, these in switches.items()}
assert all(len(these) == 5 for these in final.values()), "five seeds for each"
assert gaps["one step, n = 1"].high < -100, "lower by at least 100"
assert final["three steps, n = 3"].min() == 500, "all five"
alone = final["no target network"]
assert alone[-1] == 500, "one ends at 500"
assert (alone < 475).sum() == 4
spread = {name: np.ptp(these.area) for name, these in switches.items()}
assert max(spread, key=spread.get) == "no target network", "they differ most"
for name in ("no target network", "three steps, n = 3", "not double", "not dueling"):
    assert gaps[name].low < 0 < gaps[name].high, "no difference seen"

# %% [markdown]
# ## Rainbow, one part at a time
#
# The same for Rainbow, on CartPole for 30,000 steps. Without $n$ steps means $n = 1$. Without noisy
# layers the agent explores as DQN does, with random actions until the end. Without distributions it
# learns values, from rewards times 0.05. The last row takes away the random actions at the start: noisy
# layers alone explore, from the first step on.
#
# A dot is the last policy of one seed, the bar is the mean. These runs have a quarter of the computation of
# {doc}`rainbow`, a batch of 64 after every four steps and not 128 after every two, and $n = 10$ in place of
# 20.

# %% tags=["hide-input"] mystnb={"image": {"alt": "For Rainbow and for Rainbow without each of its parts, the greedy returns of the last policies as dots, and their mean. Without n steps all dots lie near 250"}}
ablation = stored_runs("rainbow_ablation")
whole = ablation["all six parts"]
_, axis = plt.subplots(figsize=(4.6, 3.2), layout="tight")
for place, kind in enumerate(ablation.values()):
    rows = np.full(len(kind.final), -place)
    axis.plot(kind.final, rows, "o", alpha=0.5, color=AGENT_COLOURS["Rainbow"])
    axis.plot(kind.final.mean(), -place, "|", markersize=16, color="C1")
axis.set_yticks([-place for place in range(len(ablation))], list(ablation), fontsize=9)
_ = axis.set(xlabel="greedy return of the last policy", xlim=(0, 510))

# %% [markdown]
# **Notice** that with so few updates one part makes all the difference: without $n$ steps no run gets
# beyond 280. For each of the other parts five seeds show no difference, neither in the last policies nor
# while training. That says nothing of what they are worth to an agent without $n$ steps. And with
# four times the computation all three runs without $n$ steps end at 500, only later than the whole
# agents with the same seeds.
#
# Noisy layers *alone*, without random actions at the start, leave three of five runs near 200, though
# the interval contains zero.
#
# On Atari {cite:t}`hessel2018` found that taking away priorities or $n$ steps hurt most, and that double
# DQN and dueling were hardly missed. {cite:t}`obando2021` repeated the experiment on four small tasks,
# with 100 seeds each. In their runs no part helps everywhere, and all six together are the best choice on
# the whole. They also report that with ten seeds their intervals were too wide for any conclusion. We
# have five: only the loss of the $n$ steps is large enough to be seen.

# %% tags=["claims"]
pairs = {
    name: (
        paired_difference(kind.final, whole.final),
        paired_difference(kind.area, whole.area),
    )
    for name, kind in ablation.items()
    if kind is not whole
}
assert {len(kind.final) for kind in ablation.values()} == {5}
assert ablation["without n steps"].final.max() < 280, "no run beyond 280"
assert all(gap.high < 0 for gap in pairs["without n steps"])
for name in ("double", "dueling", "priorities", "distributions", "noisy layers"):
    for gap in pairs[f"without {name}"]:
        assert gap.low < 0 < gap.high, "no difference seen"
quiet = ablation["without a random start"].final
assert ((quiet > 180) & (quiet < 210)).sum() == 3, "three of five near 200"
for gap in pairs["without a random start"]:
    assert gap.low < 0 < gap.high, "contains zero"
slow = stored_runs("rainbow_parts")["without n steps"]
rich = stored_runs("rainbow_cartpole")["Rainbow"]
assert slow.final.tolist() == [500] * 3, "all three"
assert (slow.area < rich.area[:3]).all(), "only later"

# %% [markdown]
# ## A noise that lasts
#
# CartPole pays for every step, so exploring is easy. In *MountainCar-v0* a car in a valley is too
# weak for the hill and has to swing. Every step costs 1 until it reaches the flag, at most 200,
# so an agent that never got there sees the same return for whatever it does. Do noisy layers
# explore better than random actions? Here are networks *before any training*, 512 episodes for
# each bar, with noises that last for 1, 5, 20, … steps. The noise is as large as in the paper,
# $\sigma_0 = 0.5$.

# %%
envs = make_envs("MountainCar-v0", num_envs=32)
spaces_ = envs.single_observation_space, envs.single_action_space


def share_at_flag(act):
    """Return the share of 32 episodes that reach the flag; the first ones count."""
    obs, _ = envs.reset(seed=0)
    reached = np.zeros(32, dtype=bool)
    for step in range(200):
        obs, _, terminated, _, _ = envs.step(act(torch.from_numpy(obs), step))
        reached |= terminated
    return reached.mean()


def untrained(hold, seed):
    """Return a noisy policy as a function of observations and step."""
    torch.manual_seed(seed)
    kind = {"hidden": 64, "num_atoms": 1, "dueling": False, "sigma": 0.5, "hold": hold}
    policy = make_rainbow_policy(*spaces_, **kind)
    noise = policy.noise(200, 32, torch.Generator().manual_seed(seed))
    return torch.no_grad()(lambda obs, step: policy.act(obs, noise[step]).numpy())


holds = [1, 5, 20, 36, 50, 200]
shares = {
    hold: np.mean([share_at_flag(untrained(hold, seed)) for seed in range(16)])
    for hold in holds
}

# %% tags=["hide-input"]
plot(
    "At the flag, untrained",
    "Bars over how long a noise lasts: nothing at 1, the most in the middle, little at 200.",
    Axis(
        "steps that one noise lasts", -0.6, 5.6, ticks=dict(enumerate(map(str, holds)))
    ),
    Axis("share of the episodes", 0, 0.2, ticks=(0, 0.1, 0.2)),
    Mark("bars", list(range(6)), [shares[hold] for hold in holds], "accent"),
)

# %% [markdown]
# **Notice** that a noise that is drawn anew at each step gets nowhere: one push is undone by the next. A
# noise that lasts is a *plan*. For some 20 to 50 steps, about half a swing, the car has a fixed opinion
# of where to push in which state, and sometimes it is a good one. Too long a noise is one plan for the
# whole episode, and few are good enough. The paper {cite:p}`fortunato2018` draws a new noise after each
# step of optimisation, so in its DQN a noise lasts for one action. How long it should last is a setting
# that deserves more attention than it gets.

# %% tags=["claims"]
assert shares[1] < 0.02, "gets nowhere"
assert min(shares[20], shares[36], shares[50]) > 0.02, "sometimes a good one"
assert max(shares[20], shares[36], shares[50]) > 3 * max(shares[5], shares[200])
place, speed, turns = -0.6, 0.0, []  # a car that nobody pushes
for step in range(200):
    faster = speed - 0.0025 * np.cos(3 * place)
    turns += [step] if faster * speed < 0 else []
    place, speed = place + faster, faster
assert 30 < turns[1] - turns[0] < 45, "half a swing"

# %% [markdown]
# And with training? Here are five kinds of DQN, one value for each action and no other parts,
# after 60,000 steps. Those without noisy layers explore with random actions. A number is the mean
# return of 100 greedy episodes of one seed's last policy; −200 means that none of them got to the
# flag.

# %% tags=["hide-input"]
for name, kind in stored_runs("rainbow_mountaincar").items():
    print(f"{name}:\n   ", *(f"{x:.0f}" for x in kind.final))

# %% [markdown]
# **Notice** that it takes both. With a noise that lasts and one step in a target, eight of the ten last
# policies never get to the flag. With ten steps and a noise that lasts, all ten runs learn the way. They
# end at −132 on average, better than each other kind by at least 35.

# %% tags=["claims"]
kinds = stored_runs("rainbow_mountaincar")
lasting = kinds.pop("n = 10, noisy for 20 steps").final
assert len(lasting) == 10
assert lasting.min() > -170, "all ten runs learn the way"
assert round(lasting.mean()) == -132
for kind in kinds.values():
    assert paired_difference(lasting, kind.final).low > 35, "by at least 35"
    assert np.median(kind.final) == -200
for alone in ("noisy for 20 steps", "n = 10"):
    assert (kinds[alone].final == -200).sum() == 8, "eight never get there"

# %% [markdown]
# ## Summary
#
# - Where updates are few, $n$ steps are the only part whose loss we can see on CartPole. For most of
#   the rest our seeds show no difference.
# - How long a noise lasts decides whether it explores at all. On MountainCar it takes a noise that
#   lasts *and* $n$ steps.
# - What a part is worth depends on the task. Take it away on yours.
#
# ## Exercise: predict

# %% tags=["hide-input"]
predict(
    "In MountainCar a random action is drawn at each step. An agent repeats each random action 20 "
    "times instead. What happens before any training?",
    [
        "it still never gets to the flag",
        "it gets there in some episodes",
        "it gets there in most episodes",
    ],
    right="it gets there in some episodes",
    because="A push that lasts swings the car further up. This is what a noise that lasts does "
    "too, except that the noise depends on the state as well.",
)

# %% tags=["claims"]
pushes = torch.randint(3, (10, 32), generator=torch.Generator().manual_seed(0)).numpy()
share = share_at_flag(lambda _, step: pushes[step // 20])
assert 0 < share < 0.3, "some episodes"

# %% [markdown]
# ## References
#
# Rainbow and its ablation on Atari: {cite:t}`hessel2018`. The same on small tasks:
# {cite:t}`obando2021`. Noisy layers: {cite:t}`fortunato2018`.

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
# and no new code: one part at a time taken away from DQN and from Rainbow, a task where exploring
# is hard, and images. After it you know which part to look at first when your own agent does not
# learn. It takes about 15 minutes to read, without the exercise. You need {doc}`dqn`, {doc}`rainbow`
# and the paired differences of {doc}`evaluation`.
#
# In short: where updates are few, $n$ steps are the only part of Rainbow whose loss we can see on
# CartPole; a noise that lasts finds the flag of MountainCar where random actions hardly ever do; and
# for most of the rest our seeds show no difference.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from literate_rl.data.agents import make_envs
from literate_rl.runs.evaluation import paired_difference
from literate_rl.learners.ppg import ppg_settings
from literate_rl.learners.rainbow import make_rainbow_policy, rainbow_settings
from literate_rl.book.pictures import AGENT_COLOURS, Axis, Mark, dial, plot, predict
from literate_rl.runs.runs import stored_runs

torch.set_num_threads(1)  # the networks of this book are too small to gain from more

# %% [markdown]
# ## DQN, one switch at a time
#
# Here each part in turn is taken away from the agent of {doc}`dqn`, with everything else as it
# was, five seeds for each. Without a target network means $\tau = 1$: the copy is renewed at each
# update. The whole agents are of the same day. Below the figure stands by how much the mean return while training differs from that of the
# whole agent over the same five seeds, with the 95 percent interval of this difference, and then the
# returns of the last policies, in rising order.

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
gaps = {}
for name, these in switches.items():
    gaps[name] = gap = paired_difference(these.area, runs.area)
    print(f"{gap.mean:5.0f} ({gap.low:4.0f} to {gap.high:4.0f})  {name}")
print("\nlast policies")
for name, these in switches.items():
    print(" ".join(f"{x:3.0f}" for x in np.sort(these.final)), "", name)

# %% [markdown]
# **Notice** what five seeds can show and what they cannot. With one step rather than twenty the
# agent learns far more slowly, and two of five runs end below 230. Three steps are
# enough here: all five runs end at 500, and no difference is seen while they train.
#
# Without a target network the runs differ most while training. One ends at 500, the other four below 475,
# one of them near 230. All five whole agents with the same seeds end above. But runs that differ
# so much say little about their mean: the interval reaches from −260 to beyond zero. And five whole agents
# are few: when the same seeds were run again five days later, with code that had changed, two of them
# ended below 475 too ({doc}`dqn` shows these). What becomes of the values without both of the first two, {doc}`dqn` shows: they run away.
#
# Without double DQN or dueling no difference is seen. With two actions a maximum
# overestimates least ({doc}`dqn`), and {cite:t}`wang2016` found that dueling gains most where
# there are many actions. None of this is a proof, but it says where to look first.

# %% tags=["claims"]
final = {name: np.sort(these.final) for name, these in switches.items()}
assert all(len(these) == 5 for these in final.values()), "five seeds for each"
assert gaps["one step, n = 1"].high < -100, "far more slowly"
assert (final["one step, n = 1"] < 230).sum() == 2
assert final["three steps, n = 3"].min() == 500, "all five"
alone = final["no target network"]
assert alone[-1] == 500, "one ends at 500"
assert (alone < 475).sum() == 4
assert runs.final.min() > 475, "the whole agents are above"
again = stored_runs("dqn_cartpole")["DQN"].final[:5]
assert (again < 475).sum() == 2, "two below 475 too"
late = switches["no target network"].curves[:, -10:].mean(1)
assert 215 < late.min() < 235, "one settles near 230"
spread = {name: np.ptp(these.area) for name, these in switches.items()}
assert max(spread, key=spread.get) == "no target network", "they differ most"
assert round(gaps["no target network"].low) == -260
for name in ("no target network", "three steps, n = 3", "not double", "not dueling"):
    assert gaps[name].low < 0 < gaps[name].high, "no difference seen"

# %% [markdown]
# ## Rainbow, one part at a time
#
# Each part is a switch, so the question is an experiment: take one part away and train again, on
# CartPole for 30,000 steps. Without $n$ steps means $n = 1$. Without noisy layers the agent
# explores as DQN does, with random actions until the end; their share falls to 0.05. Without
# distributions it learns values, from rewards times 0.05 as DQN does. The last row takes away the
# random actions at the start: noisy layers alone explore, from the first step on.
#
# A dot is the last policy of one seed, the bar is the mean. Eight agents with five seeds each are
# many runs, so these have a quarter of the computation of {doc}`rainbow`: $n = 10$, and a batch
# of 64 after every four steps, not 128 after every two. What changes with all of it comes next.
# Below the figure stands the mean of the paired differences from the whole agent, with its 95 percent
# interval: first of the last policies, then of the mean return while training, which is what the
# intervals of DQN above are about. (`python -m benchmarks.rainbow_learning` makes the data.)

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

# %% tags=["hide-input"]
gaps, areas = {}, {}
for name, kind in ablation.items():
    if kind is not whole:
        gaps[name] = paired_difference(kind.final, whole.final)
        areas[name] = paired_difference(kind.area, whole.area)
for words, found in (("last policies", gaps), ("while training", areas)):
    print(words)
    for name, gap in found.items():
        print(f"{gap.mean:5.0f} ({gap.low:4.0f} to {gap.high:4.0f})  {name}")

# %% [markdown]
# **Notice** that with so few updates one part makes all the difference: without $n$ steps no run gets
# beyond 280. Perhaps the news that the cart drifts away is too slow: it has to travel back over many
# steps, and with $n = 10$ it does so ten at a time. (That was not tested.) For each of the other five
# parts both intervals contain zero: five seeds show no difference. Four of the five means while training
# are even positive: if anything, the agents learned faster without the part. (One part at a time is
# taken from the whole agent. What the five are worth to an agent without $n$ steps, this experiment does
# not say.)
#
# Even noisy layers are not missed here; with random actions in their place all five runs reach 475.
# But with noisy layers *alone*, and no random actions at the start, three of five runs stay near 200,
# though both intervals still contain zero. The noise of our settings is small: in an untrained network
# it changes the action in one state of twenty-five ({doc}`rainbow`, Exercise 3). This is why they begin
# with 2000 steps of ε-greedy.

# %% tags=["claims"]
assert {len(kind.final) for kind in ablation.values()} == {5}
assert ablation["without n steps"].final.max() < 280, "no run beyond 280"
assert gaps["without n steps"].high < 0
for name in ("double", "dueling", "priorities", "distributions", "noisy layers"):
    for gap in (gaps[f"without {name}"], areas[f"without {name}"]):
        assert gap.low < 0 < gap.high, "no difference seen"
others = ("double", "dueling", "priorities", "distributions", "noisy layers")
assert sum(areas[f"without {name}"].mean > 0 for name in others) == 4, "four of five"
assert areas["without n steps"].high < 0
assert (ablation["without noisy layers"].final >= 475).all(), "all five"
quiet = ablation["without a random start"].final
assert ((quiet > 180) & (quiet < 210)).sum() == 3, "three of five near 200"
for found in (gaps, areas):
    gap = found["without a random start"]
    assert gap.low < 0 < gap.high, "both intervals still contain zero"

# %% [markdown]
# ### With four times the computation
#
# Is that so with the settings of {doc}`rainbow` too, $n = 20$ and a batch of 128 after every two
# steps? Here four of the parts are taken away once more, with three seeds each (four days older than
# the whole agents, which were run again with changed code): the last
# policies, and the mean returns while training, seed by seed.

# %% tags=["hide-input"]
whole = stored_runs("rainbow_cartpole")["Rainbow"]
parts = stored_runs("rainbow_parts")
print("last policies   while training")
for name, kind in {"all six parts": whole, **parts}.items():
    finals, means = (
        " ".join(f"{x:3.0f}" for x in y[:3]) for y in (kind.final, kind.area)
    )
    print(f"{finals}     {means}     {name}")

# %% [markdown]
# **Notice** how much depends on the number of updates. Without $n$ steps all three runs now end at
# 500. Each of them learns more slowly than the whole agent with the same seed. Without random actions at
# the start no run stays near 200 any more, and the lowest ends at 474; here $n$ is larger as well. So the
# figure above says what these two are worth where updates are few.
#
# Noisy layers are not missed here either. Without distributions one of three runs ends below 200, as
# one of five ended near 200 above. Three seeds are too few for more.
#
# Does this agree with the literature? On Atari {cite:t}`hessel2018` found that taking away
# priorities or $n$ steps hurt most, and that double DQN and dueling were hardly missed.
# {cite:t}`obando2021` repeated the experiment on CartPole, Acrobot, LunarLander and MountainCar,
# with 100 seeds each, and asked whether small tasks would have taught the same. In their runs no
# part helps everywhere, and all six together are the best choice on the whole. Distributions, added
# to DQN alone, may even hurt (on Acrobot), and Rainbow may become better without them (on
# MountainCar), unlike on Atari. Noisy layers help where rewards are rare. They also report that
# with ten seeds their intervals were too wide for any conclusion. We have five: only the loss of the
# $n$ steps is large enough to be seen.

# %% tags=["claims"]
slow, eager = parts["without n steps"], parts["without a random start"]
assert [len(kind.final) for kind in parts.values()] == [3] * 4, (
    "four parts, three seeds"
)
assert (slow.final == 500).all(), "all three"
assert (slow.area < whole.area[:3]).all(), "each learns more slowly"
assert round(eager.final.min()) == 474, "the lowest"
assert ablation["without n steps"].final.max() < 300, "where updates are few"
assert parts["without noisy layers"].final.min() > 499, "not missed"
for stored in (parts, ablation):
    assert (stored["without distributions"].final < 210).sum() == 1, "one of them"
assert parts["without distributions"].final.min() < 200

# %% [markdown]
# ## How far random actions get
#
# DQN explores with random actions, single ones at any time. How far does this get an agent that
# knows nothing yet? Think of a corridor of states 0 to 10. The
# agent starts at 0 and believes that left is best; at 0 a step to the left stays. What pays is at
# the other end. The bars show how likely it is to have reached a state by the end of an episode.

# %% tags=["hide-input"]
last_state = 10


def moves(right):
    """Return the probabilities of moving from state to state, the last one stays."""
    matrix = np.diag([right] * last_state, 1) + np.diag([1 - right] * last_state, -1)
    matrix[0, 0], matrix[last_state] = 1 - right, np.eye(last_state + 1)[last_state]
    return matrix


def reached(epsilon, horizon):
    """Return how likely each state is reached if half of the random steps go right."""
    found = [1.0]
    for state in range(1, last_state + 1):
        walk = moves(epsilon / 2)
        walk[state] = np.eye(last_state + 1)[state]  # who has been there stays there
        found.append(np.linalg.matrix_power(walk, horizon)[0, state])
    return found


def steps_needed(epsilon):
    """Return the mean steps to the end of an agent that believes right is best."""
    inner = moves(1 - epsilon / 2)[:last_state, :last_state]
    return np.linalg.solve(np.eye(last_state) - inner, np.ones(last_state))[0]


def corridor(epsilon, horizon):
    """Draw the bars for one setting of the sliders."""
    prob = np.clip(reached(epsilon, horizon), 0, 1)
    picture = plot(
        "How far random actions get",
        "A bar for each state: how likely it is to be reached. The bars fall steeply.",
        Axis("state", -0.6, 10.6, ticks=(0, 5, 10)),
        Axis("reached with probability", 0, 1, ticks=(0, 0.5, 1)),
        Mark("bars", list(range(11)), prob, "accent"),
        width=440,
    )
    return [picture], (
        f"{epsilon:.0%} of the actions are random, {epsilon / 2:.1%} go right. "
        f"The end is reached in {horizon} steps with probability {prob[-1]:.2g}.\n"
        f"An agent that knows the way needs {steps_needed(epsilon):.1f} steps to the end."
    )


knobs = {
    "ε": [0.0, 0.05, 0.1, 0.3, 0.5, 1.0],
    "steps of an episode": [10, 50, 200, 1000],
}
dial("ε and the horizon", corridor, knobs, start=(0.1, 200))

# %% [markdown]
# **Notice** how steeply the bars fall. With $\varepsilon = 0.1$ even 1,000 steps hardly ever lead
# beyond state 3, because each further state takes one more lucky step. With $\varepsilon = 1$ an
# episode of 200 steps gets to the end more often than not. But an agent that knows the way would
# then need 110 steps on average, and 11 with $\varepsilon = 0.1$. So agents begin with a large
# $\varepsilon$ and make it smaller.

# %% tags=["claims"]
assert reached(0.1, 1000)[4] < 0.02, "hardly ever beyond state 3"
assert reached(0.1, 1000)[3] > 0.1
assert reached(1.0, 200)[10] > 0.5, "more often than not"
assert [round(steps_needed(e)) for e in (0.0, 0.1, 1.0)] == [10, 11, 110]


# %% [markdown]
# ## A noise that lasts
#
# CartPole pays for every step, so exploring is easy. In *MountainCar-v0* a car in a valley is too
# weak for the hill and has to swing. Every step costs 1 until it reaches the flag, at most 200,
# so an agent that never got there sees the same return for whatever it does. Do noisy layers
# explore better than random actions? Here are networks *before any training*, 256 episodes for
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


generator = torch.Generator().manual_seed(0)
random = share_at_flag(lambda *_: torch.randint(3, (32,), generator=generator).numpy())
holds = [1, 5, 20, 50, 200]
shares = {
    hold: np.mean([share_at_flag(untrained(hold, seed)) for seed in range(8)])
    for hold in holds
}

# %% tags=["hide-input"]
plot(
    "At the flag, untrained",
    "Bars over how long a noise lasts: nothing at 1, the most around 20, little at 200.",
    Axis(
        "steps that one noise lasts", -0.6, 4.6, ticks=dict(enumerate(map(str, holds)))
    ),
    Axis("share of the episodes", 0, 0.2, ticks=(0, 0.1, 0.2)),
    Mark("bars", list(range(5)), [shares[hold] for hold in holds], "accent"),
)

# %% [markdown]
# **Notice** that a noise that is drawn anew at each step gets nowhere, just like random actions
# (0 of 32 episodes): one push is undone by the next. A noise that lasts is a *plan*. For some
# twenty steps, about half a swing, the car has a fixed opinion of where to push in which state,
# and sometimes it is a good one. Too long a noise is one plan for the whole episode, and few are
# good enough. The paper {cite:p}`fortunato2018` draws a new noise after each step of optimisation.
# Its DQN takes one such step for each action, so a noise lasts for one action; in its A3C it lasts for
# a rollout. How long it should last is a setting that deserves more attention than it gets. Here it
# is one line, because noise is an argument.

# %% tags=["claims"]
assert random == 0, "0 of 32"
assert shares[1] < 0.02, "gets nowhere"
assert shares[20] > 0.05, "sometimes a good one"
assert shares[20] > 5 * shares[200], "few are good enough"

# %% [markdown]
# And with training? Here are five kinds of DQN, one value for each action and no other parts,
# after 60,000 steps. Those without noisy layers explore with random actions. A number is the mean
# return of 100 greedy episodes of one seed's last policy; −200 means that none of them got to the
# flag.

# %% tags=["hide-input"]
for name, kind in stored_runs("rainbow_mountaincar").items():
    print(f"{name}:\n   ", *(f"{x:.0f}" for x in kind.final))

# %% [markdown]
# **Notice** that it takes both. A noise that lasts gets to the flag now and then, but with one step
# in a target the news of it hardly travels back, and eight of the ten last policies never get
# there. With ten steps and a noise that lasts, all ten runs learn the way. They end at −132 on
# average, and the interval of the paired differences from each other kind lies above 35. The first
# five of these runs end within 3 of each other, the next five do not: five seeds would have shown
# a smaller spread than there is. CleanRL publishes
# [−195 for DQN](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/docs/rl-algorithms/dqn.md#L214)
# and
# [−166 for C51](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/docs/rl-algorithms/c51.md#L181)
# after 500,000 steps, means of the returns in training with random actions.

# %% tags=["claims"]
kinds = stored_runs("rainbow_mountaincar")
both = kinds.pop("n = 10, noisy for 20 steps").final
assert len(both) == 10
assert both.min() > -170, "all ten runs learn the way"
assert round(both.mean()) == -132
assert np.ptp(both[:5]) < 3 < 20 < np.ptp(both[5:]), "the first five are alike"
for kind in kinds.values():
    assert paired_difference(both, kind.final).low > 35, "above 35"
    assert np.median(kind.final) == -200
for alone in ("noisy for 20 steps", "n = 10"):
    assert (kinds[alone].final == -200).sum() == 8, "eight never get there"
assert (kinds["noisy for 20 steps"].area > -199).sum() > 4, "now and then"

# %% [markdown]
# ## Images
#
# In the mazes of {doc}`ppg_evidence` an observation is a small image. Rainbow takes them as it
# is: its network gets the encoder of PPG, and its memory keeps the bytes. Here it is after 150,000
# steps beside PPO and PPG after as many, a dot for each seed. The share of mazes that are solved is
# measured as there, on the 200 mazes of the training and on new ones.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Shares of mazes solved, a dot for each seed. Rainbow near 0.6 in the training and 0.4 on new mazes, PPO and PPG near 0.9 and 0.7"}}
solved = stored_runs("rainbow_mazes") | stored_runs("ppg_maze")
_, axis = plt.subplots(figsize=(4.6, 2.2), layout="tight")
for place, run in enumerate(solved.values()):
    for judge, (color, above) in {
        "training": ("C0", 0.12),
        "unseen": ("C1", -0.12),
    }.items():
        share = run.judged[judge]
        axis.plot(
            share, np.full(len(share), above - place), "o", alpha=0.6, color=color
        )
axis.set_yticks([-place for place in range(len(solved))], list(solved))
axis.set(xlabel="share of mazes solved", xlim=(0, 1))
_ = axis.legend(
    axis.get_lines()[:2], ["training", "new mazes"], fontsize=8, loc="lower left"
)

# %% [markdown]
# **Notice** that at equal steps Rainbow is behind, on the mazes that it knows too. This is no
# ranking of methods. Rainbow's settings were not searched, those of the two others were, six of
# each, and three seeds are few. It shows what to ask next: how often is each step used? Here every
# step is drawn four times on average, while PPO goes through each rollout six times.

# %% tags=["claims"]
assert [len(run.final) for run in solved.values()] == [3, 5, 5]
for judge in ("training", "unseen"):
    known = solved["Rainbow"].judged[judge]
    assert all(
        known.max() < solved[name].judged[judge].min() for name in ("PPO", "PPG")
    )
rainbow, ppo = (
    rainbow_settings("literate_rl/Maze-v0"),
    ppg_settings("literate_rl/Maze-v0"),
)
assert rainbow.total_steps == ppo.total_steps, "as many steps"
assert rainbow.batch_size / rainbow.train_interval == 4, "drawn four times"
assert ppo.num_epochs == 6, "six times"

# %% [markdown]
# ## What to try first
#
# If your own agent of values passes the house of {doc}`debugging` and still does not learn, try the
# parts in this order:
#
# 1. **$n$ steps**: 3 or 10 in place of 1. It is the one part whose loss we saw on both tasks.
# 2. **How long a noise lasts**, where rewards are rare, together with $n$ steps: `num_steps=10` and
#    `hold=20`. On MountainCar each of them alone left eight of ten runs at −200. (Random actions that are
#    repeated we have tried only before training, in the exercise below.)
# 3. **Priorities**, where rewards are rare. In an agent we have not switched them there, but they saved
#    four fifths of the updates on the cliff of {doc}`replay`, and on Atari they matter.
# 4. **All others** last, each against the agent without it. On CartPole five seeds show nothing of
#    double DQN, dueling, distributions or priorities; elsewhere we have not switched them.
#
# ## Summary
#
# - Where updates are few, $n$ steps are the only part whose loss we can see on CartPole. With four
#   times the computation one step gets there too, only later. For most of the rest our seeds show no
#   difference.
# - Noisy layers with a small noise may explore too little at the start: three of five runs without
#   random actions stayed near 200, though the interval still contains zero.
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

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Replay
#
# **What must an agent remember, and which of it is worth seeing again?** After this chapter you can cut
# windows of several steps out of a memory without ever mixing two episodes, prefer those that still
# surprise the agent, and say what that does to the values that are learned. It takes about 30 minutes to
# read, without exercises. You need the flags `terminated` and `truncated` ({doc}`agents`) and $n$-step
# returns ({doc}`advantages`). This is where the agents that learn values begin; nothing here needs PPO.

# %% tags=["export", "hide-input"]
"""Preferences: priorities in a tree of sums, and weights that undo them."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.ground.signatures import (
    Count,
    Float,
    Fraction,
    Int,
    check_finite,
    checked,
)

__all__ = ["SumTree", "importance_weights"]

# %% [markdown]
# ## How far a target looks
#
# The agents so far use a step once, or a few times, and throw it away. Others keep their steps in
# a memory and learn from them again. This is **experience replay** {cite:p}`lin1992`. An update
# draws some steps from the memory and moves their values towards targets, which are made of rewards
# and of the value of a later state.
#
# How much later? Here is a path of ten states, with $\gamma = 0.9$. Its last step pays 1, all
# others pay nothing, and the memory holds twenty walks along it. Steps are drawn ten at a time,
# and each gives one update: the value of its state moves a quarter of the way towards a target
# that looks $n$ steps ahead. Drag the sliders.

# %% tags=["hide-input"]
import numpy as np
import torch

from literate_rl.data.agents import Rollout
from literate_rl.data.windows import Rings
from literate_rl.book.pictures import Axis, Mark, dial, plot

num_states, gamma = 10, 0.9
exact = gamma ** (num_states - 1 - np.arange(num_states))


def rollout_of(obs, action, reward, next_obs, terminated, truncated=None):
    """Return the steps of one environment, given as lists."""
    columns = [torch.tensor(x).unsqueeze(1) for x in (obs, action)]
    columns += [torch.tensor(reward, dtype=torch.float32).unsqueeze(1)]
    columns += [torch.tensor(x).unsqueeze(1) for x in (next_obs, terminated)]
    no = torch.zeros(len(obs), 1, dtype=torch.bool)
    cut = no if truncated is None else torch.tensor(truncated).unsqueeze(1)
    nan = torch.full((len(obs), 1), torch.nan)
    return Rollout(*columns, cut, ~no, nan, nan)


def walks(number=20):
    """Return the steps of some walks along the path."""
    state = list(range(num_states)) * number
    end = [s == num_states - 1 for s in state]
    paid = [float(x) for x in end]
    return rollout_of(state, [0] * len(state), paid, [s + 1 for s in state], end)


def learn(n, seed, num_updates):
    """Learn the values from the memory; return them after every tenth update."""
    memory, value = Rings(20 * num_states), np.zeros(num_states + 1)
    memory.push(walks())
    generator = torch.Generator().manual_seed(seed)
    history = [value.copy()]
    for _ in range(num_updates // 10):
        place = memory.draw(10, generator)
        reward, last, discount = memory.window(place, n, gamma)
        target = reward + discount * value[memory.fields["next_obs"][last]]
        for state, y in zip(memory.fields["obs"][place], target, strict=True):
            value[state] += (y - value[state]) / 4
        history.append(value.copy())
    return np.array(history)[:, :num_states]


lengths = [1, 2, 3, 5, 10]
histories = {n: learn(n, 0, 600) for n in lengths}
states = list(range(1, num_states + 1))


def frame(n, updates):
    at = histories[n][updates // 10]
    picture = plot(
        "What is learned from a memory",
        "The learned values rise to the exact ones, the last state first, and sooner "
        "with longer windows.",
        Axis("state", 0.5, 10.5, ticks=(1, 5, 10)),
        Axis("value", 0, 1.1, ticks=(0, 0.5, 1)),
        Mark("bars", states, at.tolist(), "accent"),
        Mark("line dashed", states, exact.tolist()),
        width=440,
    )
    return [picture], f"{(at > exact / 2).sum()} of 10 states are half-way."


updates = [0, 50, 100, 150, 200, 300, 400, 500, 600]
dial(
    "How far a target looks", frame, {"n": lengths, "updates": updates}, start=(1, 100)
)

# %% [markdown]
# The dashed line is the truth. **Notice** how the values grow from the end of the path backwards:
# a state can learn only from a later state that has learned. With $n = 1$ news of the reward
# travels one state at a time, with $n = 5$ five.
#
# Until all ten states are half-way to the truth, a target that looks two steps ahead needs roughly half as
# many updates, one that looks five steps ahead roughly a quarter. But looking far has two prices. The sum of many rewards varies more
# ({doc}`advantages`). And these rewards were earned by an *older* policy, for which nothing corrects.
# {doc}`dqn` says why it is done all the same.


# %% tags=["claims"]
def updates_needed(n):
    """Return the updates until all states are half-way, the mean over ten seeds."""
    reached = [(learn(n, s, 800) > exact / 2).all(1) for s in range(1, 11)]
    return np.mean([10 * flags.argmax() for flags in reached])


needed = {n: updates_needed(n) for n in lengths}
assert needed[1] > needed[2] > needed[3] > needed[5] > needed[10], (
    "the longer the sooner"
)
assert 1.7 < needed[1] / needed[2] < 2.2, "roughly half"
assert 3.5 < needed[1] / needed[5] < 4.7, "roughly a quarter"
first = (histories[1] > exact / 2).argmax(0)
assert (np.diff(first) <= 0).all(), "it creeps back"

# %% [markdown]
# ## A ring for each environment
#
# A memory that is full forgets its oldest step. In an array this takes no copying: a *head* says
# which row is written next, and after the last row it goes back to the first. This is a **ring
# buffer**. Each environment has one of its own, so the row after a step holds the next step of
# the same episode, with three exceptions: the step was terminated, it was truncated, or it is the
# newest.
#
# Start at step $t$ and add up $n$ rewards, or fewer if one of the three exceptions comes first. As in
# {doc}`agents`, $\mathrm{te}_t = 1$ says that step $t$ is terminated, and $\mathrm{done}_t = 1$ that it
# is terminated or truncated. Then the number of steps is
#
# $$
# m = \min \, \{ k \ge 1 : k = n \text{ or } \mathrm{done}_{t+k-1}
#     \text{ or } t + k - 1 \text{ is the newest} \} .
# $$ (replay-window)
#
# These $m$ steps are a **window**. Its target is the discounted sum of its rewards, plus the
# discounted value of the state at its end. The agents of the next chapters learn a value
# $Q(s, a)$ of each action, and to them a state is worth what its best action is worth:
#
# $$
# \sum_{k=0}^{m-1} \gamma^k r_{t+k}
#     + \gamma^m \, (1 - \mathrm{te}_{t+m-1}) \max_a Q(s'_{t+m-1}, a) .
# $$ (replay-target)
#
# It is the $n$-step return {eq}`n-step-return` with the best action's value as the critic. On the
# path above there was one action, so its value was that of the state.
#
# Three things are easy to get wrong. The power of $\gamma$ is $m$, the number of steps that are
# really there. A truncated window keeps the value at its end. And the state at the end is the true
# successor $s'$, which each step stores itself, because the next row may belong to another episode.
#
# Below is a ring of ten rows. The head has wrapped around, so the oldest step, 4, comes right
# after the newest, 13. Step 7 is terminated, and step 10 is truncated (`cut`).

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

numbers = list(range(14))
flags = {name: [False] * 14 for name in ("terminated", "truncated")}
flags["terminated"][7], flags["truncated"][10] = True, True
ring = Rings(10)
ring.push(rollout_of(numbers, [0] * 14, [1.0] * 14, [k + 1 for k in numbers], **flags))


def window_of(step, num_steps):
    """Return number of steps and discount of a window, from the ring."""
    reward, _, discount = ring.window(np.array([step % 10]), num_steps, 0.5)
    # The rewards are 1, 1/2, 1/4, …, so their sum tells how many there are.
    return round(1 - np.log2(2 - reward[0])), discount[0]


def draw(step, num_steps):
    picture = Picture(
        "A ring and a window in it",
        "Ten cells with the steps 10 to 13 and 4 to 9. Step 7 is terminated, step 10 "
        "truncated, step 13 the newest. A bracket below shows the steps of the window.",
        width=440,
    )
    tones = {0: "second", 7: "second", 3: "accent"}
    order = [10, 11, 12, 13, 4, 5, 6, 7, 8, 9]
    boxes = picture.cells(24, 30, order, tones, width=38, gap=4)
    for place, words in {7: "terminated", 0: "cut", 3: "newest"}.items():
        picture.text(boxes[place].x, 4, words, tones[place])
    picture.arrow((boxes[4].x, 112), (boxes[4].x, 94), "head", "quiet", side=-1)
    count, discount = window_of(step, num_steps)
    places = [(step + k) % 10 for k in range(count)]
    brackets = ""
    # A window that goes on in the first row has two brackets.
    for part in (
        [p for p in places if p >= places[0]],
        [p for p in places if p < places[0]],
    ):
        if part:
            left, right = boxes[part[0]].x - 17, boxes[part[-1]].x + 17
            brackets += f"M{left:.0f},54V64H{right:.0f}V54"
    picture.path(brackets, "accent", "thick")
    picture.path(f"M{boxes[places[0]].x:.0f},74h0", "accent", "dots")
    picture.reach(-6, 125)
    words = "0" if discount == 0 else "γ" + ("", "²", "³", "⁴", "⁵")[count - 1]
    rewards = f"{count} reward{'s' * (count > 1)}, from step {step}"
    rewards += f" to {step + count - 1}" * (count > 1)
    value = f"the value after step {step + count - 1} is multiplied by {words}"
    return [picture], f"{rewards}; {value}"


dial(
    "Windows in a ring",
    draw,
    {"start": list(range(4, 14)), "n": [1, 2, 3, 4, 5]},
    start=(9, 3),
)

# %% [markdown]
# **Notice** that every step can be a start. A window that meets an end is just shorter. And the window of
# step 9 continues in the first row, as if the array had no end. The code is {doc}`data/windows`.

# %% tags=["claims"]
assert all(window_of(step, 5)[0] >= 1 for step in range(4, 14)), "each can be a start"
assert window_of(9, 3) == (2, 0.25), "it continues in the first row, up to the cut"
assert window_of(6, 5) == (2, 0.0), "shorter at a termination, and no value after it"
assert window_of(13, 5) == (1, 0.5), "shorter at the newest step"

# %% [markdown]
# ## One good step among two thousand
#
# An agent may learn from any step that it keeps. So each batch poses a question: which ones?
#
# Think of a cliff with a narrow path of ten states. In each state one of two actions is right.
# The other ends the episode and pays nothing. The tenth right action in a row pays 1. Somebody
# has tried all $2^{10}$ sequences of actions, and the memory holds every step of them. Of these
# 2046 steps only one has paid anything.
#
# Now we learn $Q(s, a)$, the value of taking the action $a$ in the state $s$, from the memory, in batches of 32 steps. Each step drawn gives one update: its
# value $Q(s, a)$ moves a quarter of the way towards the target {eq}`replay-target`, with $n = 1$.
# Target minus value is the **TD error** of the step. In the first picture steps are sampled uniformly.
# In the second a step is sampled more often the larger its TD error was when it was last seen. Drag
# the slider to see what has been learned about the right action of each state.

# %% tags=["hide-input"]
from itertools import product

from literate_rl.data.replay import ReplayBuffer


def cliff(seed):
    """Return the steps of all sequences of actions, each up to its end."""
    sequences = list(product((0, 1), repeat=num_states))
    np.random.default_rng(seed).shuffle(sequences)
    steps = []
    for actions in sequences:
        for state, right in enumerate(actions):
            top = right and state == num_states - 1
            steps.append((state, right, float(top), state + 1, bool(top or not right)))
            if not right:
                break
    return rollout_of(*map(list, zip(*steps, strict=True)))


def learn(priority_exponent, seed, num_updates, beta=0.0, memory=None):
    """Learn Q from the memory of the cliff; return it after each batch."""
    memory, table = memory or cliff(seed), np.zeros((num_states + 1, 2))
    buffer = ReplayBuffer(memory.reward.numel(), priority_exponent)
    buffer.push(memory)
    generator = torch.Generator().manual_seed(seed)
    history = [table.copy()]
    for _ in range(num_updates // 32):
        batch = buffer.sample(32, generator, gamma=gamma, beta=beta)
        errors = []
        rows = zip(*(column.tolist() for column in batch[:6]), strict=True)
        for obs, action, reward, next_obs, discount, weight in rows:
            target = reward + discount * table[next_obs].max()
            errors.append(target - table[obs, action])
            table[obs, action] += weight * errors[-1] / 4
        buffer.update(batch.place, torch.tensor(errors))
        history.append(table.copy())
    return np.array(history)[:, :num_states]


def error_of(history):
    """Return the root mean squared error of Q after each batch."""
    wanted = np.stack([np.zeros(num_states), exact], 1)
    return np.sqrt(np.square(history - wanted).mean((1, 2)))


runs = {"Uniform": learn(0.0, 0, 32_000), "Prioritised": learn(0.6, 0, 32_000)}
states = list(range(1, num_states + 1))


def frame(updates):
    pictures, words = [], []
    for name, history in runs.items():
        at = history[updates // 32]
        alt = (
            f"{name}. The learned values rise to the exact ones, the last state first."
        )
        pictures.append(
            plot(
                name,
                alt,
                Axis("state", 0.5, 10.5, ticks=(1, 5, 10)),
                Axis("value of the right action", 0, 1.1, ticks=(0, 0.5, 1)),
                Mark("bars", states, at[:, 1].clip(0, 1.1).tolist(), "accent"),
                Mark("line dashed", states, exact.tolist()),
                width=360,
            )
        )
        error = error_of(history)[updates // 32]
        words.append(
            f"{name}: {(at[:, 1] > exact / 2).sum()} of 10 states are half-way,"
        )
        words[-1] += f" error {error:.2f}"
    return pictures, "\n".join(words)


times = [0, 960, 1920, 2880, 4000, 6016, 8000, 12000, 16000, 24000, 32000]
dial("What is learned from a memory", frame, {"updates": times}, start=(2880,))

# %% [markdown]
# The dashed line is the truth. **Notice** how the value creeps back along the path: a state can
# learn only from a next state that has learned. With uniform sampling the one rewarded step comes
# up once in 2046 draws on average. With priorities every step is seen soon. From then on a step
# that taught nothing is sampled less than a thousandth as often as a new one. Here are the updates until
# the error (the root of the mean squared error of all twenty values) is below 0.03, for five shuffled
# memories:


# %%
def updates_needed(priority_exponent, limit, beta=0.0, memory=None):
    """Return the updates until the error is below 0.03, or None, for five seeds."""
    runs = [learn(priority_exponent, s, limit, beta, memory) for s in range(1, 6)]
    below = [error_of(history) < 0.03 for history in runs]
    return [32 * int(x.argmax()) if x.any() else None for x in below]


uniform, prioritised = updates_needed(0.0, 48_000), updates_needed(0.6, 8_000)
print("uniform:", *uniform)
print("prioritised:", *prioritised)

# %% [markdown]
# Priorities need at most a fifth of the updates. But this is the best case for them, and it is
# without the weights that agents use with priorities. They come below, and so does their price.

# %% tags=["claims"]
ratio = np.divide(uniform, prioritised)
assert ratio.min() >= 5, "a fifth of the updates at most"
assert len(cliff(0).reward) == 2046, "2046 steps"
assert cliff(0).reward.sum() == 1, "only one of them has paid"
seen = {name: (history[:, :, 1] > exact / 2) for name, history in runs.items()}
first = {name: flags.argmax(0) for name, flags in seen.items()}
assert all((np.diff(place) <= 0).all() for place in first.values()), "it creeps back"
small = ReplayBuffer(2, 0.6)
small.push(rollout_of([0, 1], [0, 0], [0.0, 0.0], [1, 2], [False, True]))
small.update(torch.tensor([0]), torch.tensor([0.0]))
assert 1000 * small.tree.mass[0] < small.tree.mass[1], "a thousand times as rarely"
assert 1_000_000 / 32 == 31_250, "a step of average mass"

# %% [markdown]
# ## Sample by surprise
#
# **Prioritised replay** {cite:p}`schaul2016` gives each step a priority $u_i$: the size of its TD
# error when it was last drawn. A new step gets the largest priority that was ever given, and is seen
# soon. A draw takes step $i$ with probability
#
# $$
# P_i = \frac{u_i^{\alpha_u}}{\sum_k u_k^{\alpha_u}} .
# $$ (replay-preference)
#
# The exponent $\alpha_u$ is `priority_exponent` in the code below. With $\alpha_u = 0$ sampling is
# uniform. With $\alpha_u = 1$ a step with twice the TD error is drawn twice as often. We call
# $u_i^{\alpha_u}$ the **mass** of a step.
#
# Why not always $\alpha_u = 1$? Because a priority is **stale**: it is as old as the step's last draw.
# From a memory of a million steps, batches of 32 draw a step of average mass once in 31,250 updates.
# A step whose error once happened to be small may wait for much longer, whatever it could teach by
# now. An exponent below 1, usually 0.5 or 0.6, trusts old errors less.
#
# How does one sample by mass? Lay the masses side by side in a row, put a mark on it at random, and
# take the step that it falls on. A binary search among the cumulative sums finds it. But each batch
# changes some masses, and with them all later sums: with a million steps, a million additions for a
# batch of 32.
#
# A **sum tree** adds up groups, then groups of groups, and so on,
#
# $$
# S^{(l)}_g = \sum_{j=0}^{b-1} S^{(l+1)}_{g b + j} ,
# $$ (replay-sums)
#
# where $S^{(l)}_g$ is sum number $g$ of level $l$, and $b$ is the size of a group. The lowest
# level holds the masses. A mark finds its mass from the top down. Let $S_0, \dots, S_{b-1}$ be the
# members of one group and $x$ the distance of the mark from the start of the group. The mark falls on
# one member $j$, and on the level below, $x$ is measured from where that member begins:
#
# $$
# \begin{gathered}
# S_0 + \dots + S_{j-1} \le x < S_0 + \dots + S_j , \\
# x \leftarrow x - (S_0 + \dots + S_{j-1}) .
# \end{gathered}
# $$ (replay-walk)
#
# In the picture, choose a leaf (one mass) and its mass. The row is always drawn at the same length, and
# the dashed mark stays at the same share of it.

# %% tags=["hide-input"]
from literate_rl.data.sum_tree import SumTree
from literate_rl.book.pictures import Picture

masses = np.array([1, 2, 1, 3, 1, 1, 2, 1.0])
point = 0.62  # where the mark is, as a share of the total


def touch(leaf, priority):
    tree = SumTree(8, branching=2, root=2)
    tree.update(np.arange(8), masses)
    tree.update(np.array([leaf - 1]), np.array([float(priority)]))
    rows = [np.array([tree.total]), *(level.ravel() for level in tree.levels)]
    found = int(tree.find(np.array([point * tree.total]))[0])
    picture = Picture(
        "A sum tree as rows of intervals",
        "Four rows, each of the whole width: one sum, two, four, and eight leaves. The "
        "leaf that is touched and the sums above it are filled; a mark goes down through "
        "one interval of each row.",
        width=440,
    )

    def interval(depth, number):
        ends = 12 + 416 * np.concatenate([[0], rows[depth].cumsum()]) / tree.total
        left, right = ends[number] + 1, ends[number + 1] - 1
        top = 44 * depth
        return f"M{left:.1f},{top}H{right:.1f}V{top + 34}H{left:.1f}Z"

    for depth, row in enumerate(rows):
        above, walked = (leaf - 1) >> (3 - depth), found >> (3 - depth)
        picture.path(interval(depth, above), "accent", "band")
        picture.path(interval(depth, walked), "second", "band")
        for number in range(len(row)):
            picture.path(interval(depth, number))
    x = 12 + 416 * point
    picture.path(f"M{x:.1f},-12V178", "second", "dashed")
    picture.reach(-14, 180)
    chain = [f"{rows[d][(leaf - 1) >> (3 - d)]:g}" for d in (3, 2, 1, 0)]
    share = priority / tree.total
    hits = f"The mark at {point * tree.total:.2f} falls on leaf {found + 1}."
    words = f"Leaf {leaf} is {chain[0]}; the sums above it are {', '.join(chain[1:])}. "
    return [picture], f"{words}P = {chain[0]}/{chain[3]} = {share:.2f}.\n{hits}"


dial(
    "Sums above a leaf",
    touch,
    {"leaf": list(range(1, 9)), "its mass": [0.5, 1, 2, 4, 8]},
    start=(4, 4),
)

# %% [markdown]
# **Notice** that a leaf changes one sum in each row above it, and that the mark passes through one
# interval of each row. One more row would hold twice as many leaves.

# %% tags=["claims"]
tree = SumTree(8, branching=2, root=2)
tree.update(np.arange(8), masses)
rows = [level.copy() for level in tree.levels]
tree.update(np.array([3]), np.array([4.0]))
changed = [(new != old).sum() for new, old in zip(tree.levels, rows, strict=True)]
assert changed == [1, 1, 1], "one number in each row"

# %% [markdown]
# ## Line by line: the tree
#
# The marks of a whole batch walk down together, with the same few NumPy calls for each level. So there
# should be few levels: groups have 16 members, and the top group, the **root**, may have some thousands,
# which one call adds up ({doc}`maths/fast`). A root that holds all masses is a plain cumulative sum: up
# to a few thousand steps it is the quickest ({doc}`/docs/results`).


# %% tags=["export"]
class SumTree:
    """Masses, the sums of their groups, the sums of those groups, and so on.

    Args:
        capacity: Number of masses, all zero at first.
        branching: Members of a group.
        root: The most members that the top group, the root, may have.

    Attributes:
        levels: Groups ``(groups, members)``: the root, which is one group, and so on
            down to the masses.
    """

    @checked
    def __init__(
        self,
        capacity: Count,
        branching: Annotated[int, Ge(2)] = 16,
        root: Count = 4096,
    ) -> None:
        self.branching = branching
        self.levels: list[NDArray[np.float64]] = []
        # From the masses up, until a level is small enough to be the root. The last
        # group of a level is filled up with zeros.
        size: int = capacity
        while size > root:
            size = -(-size // branching)
            self.levels.insert(0, np.zeros((size, branching)))
        self.levels.insert(0, np.zeros((1, size)))

    @property
    def mass(self) -> NDArray[np.float64]:
        """The masses, as a view, with some zeros after the last."""
        return self.levels[-1].reshape(-1)

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self.levels[0].sum())

    @checked
    def update(self, index: Int[np.ndarray, "N"], mass: Float[np.ndarray, "N"]) -> None:
        """Change some masses; where an index comes twice, the last one counts."""
        # From the masses up to the root, every group that has changed is added up again
        # {eq}`replay-sums`. (Adding only the difference would save little and let
        # rounding errors build up in the sums.)
        sums: Any = mass
        for level in self.levels[:0:-1]:
            level.reshape(-1)[index] = sums
            index = index // self.branching
            sums = level.take(index, 0).sum(1)
        self.levels[0][0, index] = sums

    @checked
    def find(self, mark: Float[np.ndarray, "N"]) -> NDArray[Any]:
        """Return which mass each mark falls on, from 0 to a ``total`` above 0."""
        # In the root all marks look at the same ends, so one binary search will do.
        # Rounding may put a mark at the very end, where no mass is; move it just below.
        ends = self.levels[0][0].cumsum()
        mark = np.minimum(mark, np.nextafter(ends[-1], 0.0))
        index: NDArray[Any] = ends.searchsorted(mark, side="right")
        mark = mark - np.where(index > 0, ends.take(index - 1), 0.0)

        # One step of the walk {eq}`replay-walk` for each level below, now with a
        # group for each mark.
        first = np.arange(len(mark)) * self.branching
        for level in self.levels[1:]:
            ends = level.take(index, 0).cumsum(1)
            mark = np.minimum(mark, np.nextafter(ends[:, -1], 0.0))
            member = (ends > mark[:, None]).argmax(1)
            begin = ends.take(first + member - 1)
            mark = mark - np.where(member > 0, begin, 0.0)
            index = index * self.branching + member
        return index


# %% [markdown]
# A mass of zero has no width. So a place where no step is stored yet is never drawn, not even
# when rounding pushes a mark past the end of a group.
#
# A batch does not throw its marks anywhere. The row of masses is cut into as many equal pieces as the batch
# has marks, and each piece gets one. This is **stratified sampling**: every step keeps its expected number
# of draws, but batches vary less. {doc}`data/replay` puts all of this together.
#
# ## What a preference does to a mean
#
# Does an agent that sees large errors more often only learn faster, or does it also learn something
# else? Take the smallest task there is: one state, one action, and a lottery that pays 10 with
# probability 0.1 and otherwise nothing. Its value is the mean, 1.
#
# An estimate $q$ that learns from draws settles where the updates up and down cancel. With
# $\alpha_u = 1$ that is where $0.1\, (10 - q) \cdot (10 - q) = 0.9\, q \cdot q$: each error
# counts twice, once as the size of the update and once as the frequency of the draw. So $q =
# 2.5$. However long the agent learns, it takes the lottery for two and a half times as good as it
# is.
#
# **Importance weights** undo that. If the memory holds $N$ steps (`count` in the code), a uniform draw
# gives each of them the probability $1 / N$. A step that is drawn $N P_i$ times as often as that should
# count that much less. An exponent $\beta_w$ says how far we go, from 0, where the bias stays, to 1,
# where it is gone:
#
# $$
# w_i = \frac{(N P_i)^{-\beta_w}}{\max_k \, (N P_k)^{-\beta_w}} ,
# $$ (replay-weight)
#
# where the maximum is over the batch, so that weights make updates smaller, never larger.


# %% tags=["export"]
@checked
def importance_weights(
    probability: Float[Tensor, "B"], count: Count, beta: Fraction = 1.0
) -> Float[Tensor, "B"]:
    """Return the weights that undo a preference, the largest of them 1.

    Args:
        probability: The probability of each of these entries in one draw.
        count: Number of entries in the memory.
        beta: How far the preference is undone; 1 is fully.

    Source: Schaul et al. 2016, section 3.4.
    """
    # Here is {eq}`replay-weight`. An entry of probability zero cannot have been drawn;
    # its infinite weight would give it away here.
    weight = (count * probability) ** -beta
    weight = weight / weight.max()
    check_finite(weight, probability=probability)
    return weight


# %% [markdown]
# Here is the lottery, drawn by priority with $\alpha_u = 0.6$. Each batch renews all priorities, so
# none is stale. The balance of updates predicts the value: the error counts once as the size of the
# update, with the power $\alpha_u$ in the draw and with $-\alpha_u \beta_w$ in the weight. So
# $0.1\, (10 - q)^c = 0.9\, q^c$ with $c = 1 + \alpha_u (1 - \beta_w)$, which gives
# $q = 10 / (1 + 9^{1 / c})$.

# %%
tickets = 1000
pays = [10.0 * (k % 10 == 0) for k in range(tickets)]
ends = [True] * tickets
lottery = rollout_of([0] * tickets, [0] * tickets, pays, [0] * tickets, ends)


def value_of_lottery(beta, priority_exponent=0.6, num_batches=2000):
    """Learn the lottery's value; return its mean over the second half."""
    buffer = ReplayBuffer(tickets, priority_exponent)
    buffer.push(lottery)
    generator, value, values = torch.Generator().manual_seed(0), 1.0, []
    for _ in range(num_batches):
        batch = buffer.sample(32, generator, beta=beta)
        error = batch.reward - value
        # All tickets get the priority that belongs to the current value.
        value += 0.02 * (batch.weight * error).mean().item()
        buffer.update(torch.arange(tickets), lottery.reward[:, 0] - value)
        values.append(value)
    return np.mean(values[num_batches // 2 :])


betas = [0.0, 0.25, 0.5, 0.75, 1.0]
found = [value_of_lottery(beta) for beta in betas]
expected = [10 / (1 + 9 ** (1 / (1 + 0.6 * (1 - beta)))) for beta in betas]
for beta, value, line in zip(betas, found, expected, strict=True):
    print(f"β = {beta:.2f}: value {value:.2f}, by the balance {line:.2f}")

# %% [markdown]
# **Notice** that only $\beta_w = 1$ learns the truth, 1. Where a target is random, a large error
# may be nothing but luck, and no amount of learning makes it smaller.

# %% tags=["claims"]
assert np.allclose(found, expected, atol=0.06), "the balance is right"
assert abs(found[-1] - 1) < 0.06, "with β = 1 it learns the truth"
assert found[0] > 1.9, "without weights it is off by a factor of two"
assert abs(10 / (1 + 9**0.5) - 2.5) < 1e-12, "two and a half times"

# %% [markdown]
# Then why not always $\beta_w = 1$? Because the weights take back what the priorities were for: the
# step that surprised most gets the smallest weight. Here is the cliff again, with priorities and weights:

# %%
half, full = updates_needed(0.6, 16_000, 0.4), updates_needed(0.6, 48_000, 1.0)
print("β = 0.4:", *half)
print("β = 1.0:", *full)

# %% [markdown]
# **Notice** that with $\beta_w = 0.4$ priorities need less than half of the updates of uniform sampling.
# With $\beta_w = 1$ they are slower than it: no run is there after 48,000. Where a batch holds a step
# without error, that one has the largest weight, and beside it all weights that matter are small.
#
# What gained on the cliff is that the good step was *rare*. From a memory that holds each of the twenty
# steps equally often, priorities gain less than a quarter, even without weights. In agents $\beta_w$
# usually starts at about 0.4 and rises linearly to 1 over the training: early on everything is biased
# anyway, because the targets are guesses, and at the end the values should settle.

# %% tags=["claims"]
assert max(np.divide(half, uniform)) < 0.5, "less than half"
assert max(uniform) < 48_000, "uniform sampling is there"
assert full == [None] * 5, "no run is there"
steps = [
    (
        state,
        right,
        float(right and state == 9),
        state + 1,
        bool(state == 9 or not right),
    )
    for state, right in product(range(10), (0, 1))
]
common = rollout_of(*map(list, zip(*100 * steps, strict=True)))
even, preferred = (updates_needed(x, 4_000, 0.0, common) for x in (0.0, 0.6))
assert 0.75 < np.mean(preferred) / np.mean(even) < 1.1, "less than a quarter"

# %% [markdown]
# ## How much to remember, how often to learn
#
# Two more settings come with a memory: how many steps it holds, and how many new steps there are for each
# update. Here is {doc}`dqn` on CartPole, for 30,000 steps. A dot is the mean return of a seed while it learns,
# a bar the mean of ten.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Five rows with ten dots each. With all steps kept, the last 5,000 or the last 1,000, and with an update for 2, 1 or 8 steps, the dots lie between 175 and 360 and the means between 275 and 325"}}
import matplotlib.pyplot as plt

from literate_rl.runs.runs import stored_runs

kept = stored_runs("dqn_memory")
fig, axis = plt.subplots(figsize=(6.2, 2.4))
for row, runs in enumerate(kept.values()):
    axis.plot(runs.area, [-row] * len(runs.area), "o", color="C0", alpha=0.4)
    axis.plot([runs.area.mean()] * 2, [-row - 0.3, 0.3 - row], "C1", linewidth=2.5)
axis.set_yticks(-np.arange(len(kept)), list(kept))
axis.set(xlabel="mean return while training", xlim=(0, 400))
fig.tight_layout()

# %% [markdown]
# **Notice** that ten seeds tell no row from the first. With the last 1,000 steps, a thirtieth of the run, they
# show no sure loss, though they could miss one of 50 points. An update for eight steps takes about a third of
# the processor time. An update for each step was lower by 42 points, only just within chance, so more updates
# are no safe gain. Begin with few. Harder tasks may want more of both, which was not tried here.

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference

first_row, *others = kept.values()
assert {len(runs.final) for runs in kept.values()} == {10}, "ten seeds"
for runs in others:
    for number in ("area", "final"):
        gap = paired_difference(getattr(runs, number), getattr(first_row, number))
        assert gap.low < 0 < gap.high, "tell no row from the first"
short, each = (
    paired_difference(kept[name].area, first_row.area)
    for name in ("the last 1,000", "an update for 1")
)
assert short.low < -50, "could miss one of 50 points"
assert round(each.mean) == -42, "lower by 42 points"
assert 0 < each.high < 1, "only just within chance"
cost = [np.median(runs.cpu_seconds) for runs in (first_row, kept["an update for 8"])]
assert 0.25 < cost[1] / cost[0] < 0.4, "about a third"

# %% [markdown]
# ## Priorities or none?
#
# Begin without them. In whole agents we have seen no gain: Rainbow shows no difference without them on
# CartPole (five seeds, {doc}`rainbow_evidence`), and TD3 is no better with them on the pendulum (three
# seeds, {doc}`control_evidence`). On Atari their loss was among the two that hurt Rainbow most
# {cite:p}`hessel2018`. Try them where rewards are rare and little is random, with $\alpha_u = 0.5$ and
# $\beta_w$ from 0.4 to 1, as {doc}`rainbow` does.

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference
from literate_rl.learners.rainbow import RainbowConfig
from literate_rl.runs.runs import stored_runs

assert (RainbowConfig().priority_exponent, RainbowConfig().beta) == (0.5, 0.4)
ablation = stored_runs("rainbow_ablation")
whole, without = ablation["all six parts"], ablation["without priorities"]
theirs = stored_runs("ddpg_priorities")["TD3, priorities"]
ours = stored_runs("ddpg_pendulum")["TD3"]
assert (len(without.final), len(theirs.final)) == (5, 3), "five and three seeds"
for gap in (
    paired_difference(without.final, whole.final),
    paired_difference(without.area, whole.area),
):
    assert gap.low < 0 < gap.high, "no difference"
assert 0 < (theirs.area > ours.area[:3]).sum() < 3, "some faster, some slower"
assert theirs.final.min() < ours.final[:3].min(), "and none of it better in the end"

# %% [markdown]
# ## Summary
#
# - A window has the true number of steps, the true power of $\gamma$ and the true successor. With $n$ steps
#   in it, news of a reward travels $n$ states in one update.
# - Priorities spend updates on rare steps from which something is left to learn. Noise looks the same to
#   them, and each is as old as its step's last draw.
# - In a sum tree a mark finds its mass in a few steps.
# - Importance weights remove the bias of the priorities, and much of their gain.
# - Begin without priorities; try them where rewards are rare and little is random.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A memory holds a hundred thousand steps, drawn by the roots of their priorities. The TD error of "
    "one of them grows to four times what it was. How much more often is this step drawn now?",
    ["four times as often", "twice as often", "half as often", "as often as before"],
    right="twice as often",
    because="Its mass is the root of its priority, so it doubles. The sum of all masses hardly "
    "changes.",
)

# %% tags=["claims"]
tree = SumTree(100_000)
tree.update(np.arange(100_000), np.full(100_000, 1.0**0.5))
before = tree.mass[7] / tree.total
tree.update(np.array([7]), np.array([4.0**0.5]))
assert abs(tree.mass[7] / tree.total / before - 2) < 1e-3, "twice as often"

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function returns the discounted sum of a window's rewards and the factor of the value at
# its end, for the steps of one environment. It is right unless an episode is truncated. Fix it.


# %%
def answer(reward, terminated, truncated, start, n, gamma=0.9):
    total, m = 0.0, 0
    while m < n and start + m < len(reward):
        total += gamma**m * reward[start + m]
        m += 1
        if terminated[start + m - 1]:
            return total, 0.0
    return total, gamma**m


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def window(reward, terminated, truncated, start, n, gamma=0.9):
    ring, steps = Rings(len(reward)), list(range(len(reward)))
    ring.push(rollout_of(steps, steps, reward, steps, terminated, truncated))
    total, _, discount = ring.window(np.array([start]), n, gamma)
    return float(total[0]), float(discount[0])


paid, no, third = (
    [1.0, 2.0, 3.0, 4.0, 5.0],
    [False] * 5,
    [False, False, True, False, False],
)
cases = [(paid, no, no, 1, 2), (paid, third, no, 1, 3), (paid, no, no, 3, 3)]
cases += [(paid, no, third, 1, 3), (paid, no, third, 2, 2), (paid, third, third, 1, 3)]
grade(answer, window, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(reward, terminated, truncated, start, n, gamma=0.9):
    total, m = 0.0, 0
    while m < n and start + m < len(reward):
        total += gamma**m * reward[start + m]
        m += 1
        if terminated[start + m - 1]:
            return total, 0.0
        # Where an episode is truncated, the window ends and the value counts.
        if truncated[start + m - 1]:
            break
    return total, gamma**m


grade(answer, window, *cases)

# %% [markdown]
# ### Exercise 3: find the bug
#
# This function should find the mass that a mark falls on, as `SumTree.find` does, with sums of
# pairs. It runs, and with four masses it is right. Fix it for any number of masses.


# %%
def answer(masses, mark):
    levels = [list(masses)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = range(0, len(below) - 1, 2)
        levels.append([below[k] + below[k + 1] for k in pairs])
    index = 0
    for level in reversed(levels[:-1]):
        index *= 2
        if mark >= level[index]:
            mark -= level[index]
            index += 1
    return index


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def find(masses, mark):
    tree = SumTree(len(masses), branching=2, root=2)
    tree.update(np.arange(len(masses)), np.array(masses, float))
    return int(tree.find(np.array([float(mark)]))[0])


cases = [([1, 2, 3, 4], 2.5), ([1, 2, 3], 4.5), ([2, 1, 1, 3, 2], 8.5), ([5], 1.0)]
grade(answer, find, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(masses, mark):
    levels = [list(masses)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        # A member without a partner gets one that is worth nothing.
        below += [0] * (len(below) % 2)
        levels.append([below[k] + below[k + 1] for k in range(0, len(below), 2)])
    index = 0
    for level in reversed(levels[:-1]):
        index *= 2
        if mark >= level[index]:
            mark -= level[index]
            index += 1
    return index


grade(answer, find, *cases)

# %% [markdown]
# ## References
#
# Experience replay is from {cite:t}`lin1992`; DQN made it famous. Prioritised replay and the cliff are from
# {cite:t}`schaul2016`.

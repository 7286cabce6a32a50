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
# **Which remembered steps are worth seeing again, and how often?** After this chapter you can
# draw from a memory of a million steps, prefer those that still surprise the agent, and say what
# that does to the values that are learned. It takes about 35 minutes to read, without exercises.
# You need the rings and windows of {doc}`windows`.

# %% tags=["export", "hide-input"]
"""Replay: priorities in a tree of sums, and a buffer of windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from literate_rl.data.agents import Rollout
from literate_rl.data.windows import MASKS, STORED, Rings
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    Int,
    NonNegative,
    check_finite,
    check_that,
    checked,
)

__all__ = ["Batch", "ReplayBuffer", "SumTree", "importance_weights"]

# %% [markdown]
# ## One good step among two thousand
#
# Some agents learn $Q(s, a)$, the value of taking the action $a$ in the state $s$. They may learn
# from any step, however old it is and whatever policy took it; the next chapter, {doc}`dqn`, says
# why. So they keep their steps and learn from them again, the experience replay of
# {doc}`windows`. Each batch then poses the same question: which steps?
#
# Think of a cliff with a narrow path of ten states. In each state one of two actions is right.
# The other ends the episode and pays nothing. The tenth right action in a row pays 1. Somebody
# has tried all $2^{10}$ sequences of actions, and the memory holds every step of them. Of these
# 2046 steps only one has paid anything.
#
# Now we learn $Q$ from the memory, in batches of 32 steps. Each step drawn gives one update: its
# value $Q(s, a)$ moves a quarter of the way towards the target {eq}`replay-target`, with $n = 1$.
# Target minus value is the **TD error** of the step. (In {doc}`advantages` it was that of a
# state's value.) In the first picture steps are sampled uniformly. In the second a step is sampled more
# often the larger its TD error was when it was last seen. Drag the slider to see what has been
# learned about the right action of each state.

# %% tags=["hide-input"]
from itertools import product

import numpy as np
import torch

from literate_rl.data.agents import Rollout
from literate_rl.data.replay import ReplayBuffer  # the package's own, defined below
from literate_rl.book.pictures import Axis, Mark, dial, plot

num_states = 10
gamma = 1 - 1 / num_states
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


def learn(priority_exponent, seed, num_updates, beta=0.0):
    """Learn Q from the memory of the cliff; return it after each batch."""
    memory, table = cliff(seed), np.zeros((num_states + 1, 2))
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
# that taught nothing is sampled less than a thousandth as often as a new one. That leaves the draws
# to the steps from which there is still something to learn.

# %%
needed = {}
for name, exponent, budget in (("uniform", 0.0, 60_000), ("prioritised", 0.6, 12_000)):
    below = [error_of(learn(exponent, seed, budget)) < 0.03 for seed in range(1, 11)]
    needed[name] = [32 * int(flags.argmax()) for flags in below]
    assert all(flags.any() for flags in below)
    print(f"{name}: {sorted(needed[name])} updates")

# %% [markdown]
# The error is the root of the mean squared error of all twenty values. For each of ten shuffled
# memories, priorities bring it below 0.03 with at most a fifth of the updates. This is
# the best case for it: rewards are rare and nothing is random. We come back to the price.

# %% tags=["claims"]
ratio = np.divide(needed["uniform"], needed["prioritised"])
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
# error when it was last drawn. A new step has not been drawn yet, so it gets the largest priority
# that was ever given, and is seen soon. A draw takes step $i$ with probability
#
# $$
# P_i = \frac{u_i^{\alpha_u}}{\sum_k u_k^{\alpha_u}} .
# $$ (replay-preference)
#
# The exponent $\alpha_u$ is `priority_exponent` in the code below. With $\alpha_u = 0$ sampling is
# uniform. With $\alpha_u = 1$ a step with twice the TD error is drawn twice as often. We call
# $u_i^{\alpha_u}$ the **mass** of a step (its unnormalised probability).
#
# Why not always $\alpha_u = 1$? Because a priority is **stale**: it is as old as the step's last draw.
# From a memory of a million steps, batches of 32 draw a step of average mass once in 31,250 updates.
# Meanwhile the network has changed, and nobody has looked at the step. A step whose error once
# happened to be small may wait for much longer, whatever it could teach by now. An exponent below 1,
# usually 0.5 or 0.6, trusts old errors less.
#
# How does one sample by mass? Lay the masses side by side in a row, put a mark on it at random (the
# sample point), and take the step that it falls on. In the row each mass ends at a cumulative sum, and a binary
# search finds the one that the mark falls on. But each batch changes some masses, and with them
# all later sums. With a million steps that is a million additions for a batch of 32.
#
# A **sum tree** adds up groups, then groups of groups, and so on,
#
# $$
# S^{(l)}_g = \sum_{j=0}^{b-1} S^{(l+1)}_{g b + j} ,
# $$ (replay-sums)
#
# where $S^{(l)}_g$ is sum number $g$ of level $l$, and $b$ is the size of a group. The lowest
# level holds the masses. Changing a mass changes one sum in each level above it.
#
# A mark finds its mass from the top down. Let $S_0, \dots, S_{b-1}$ be the members of one group
# and $x$ the distance of the mark from the start of the group. The mark falls on one member $j$,
# and on the level below, $x$ is measured from where that member begins:
#
# $$
# S_0 + \dots + S_{j-1} \le x < S_0 + \dots + S_j , \qquad
# x \leftarrow x - (S_0 + \dots + S_{j-1}) .
# $$ (replay-walk)
#
# In the picture, choose a leaf (one mass) and its mass, which is its priority at $\alpha_u = 1$.
# The row is always drawn at the same length, and the dashed mark stays at the same share of it.
# The numbers come from the code below.

# %% tags=["hide-input"]
from literate_rl.data.replay import SumTree
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
    {"leaf": list(range(1, 9)), "its priority": [0.5, 1, 2, 4, 8]},
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
# The marks of a whole batch walk down together, with the same few NumPy calls for all. The time then
# depends on the number of levels. So groups have 16 members, and the top group, the **root**, may
# have some thousands, which one call adds up ({doc}`workshop/fast` says how these numbers were found).


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
# ## When is no tree needed?
#
# A tree whose root holds all masses is no tree but a plain cumulative sum. When is that enough?
# Here is the time to draw a batch of 64 and give it new priorities, for memories of many sizes,
# as `make bench` measured it ({doc}`/docs/results` has the table, with two other forms).

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two logarithmic axes. The time of a cumulative sum rises from about 20 to more than 3,000 microseconds between a thousand and a million entries; that of a tree of pairs rises slowly from about 130 to 240; that of SumTree stays between 30 and 70"}}

import matplotlib.pyplot as plt

from literate_rl.runs.runs import read_rows, results_folder

rows = read_rows(results_folder() / "replay.csv")
times = {}
for row in rows:
    if row["case"].startswith("B = 64, "):
        entries = int(row["case"].split()[3])
        times.setdefault(row["method"], {})[entries] = float(row["microseconds"])
fig, axis = plt.subplots(figsize=(5.5, 3))
for (name, points), style in zip(times.items(), ("s--", "v:", "o-"), strict=True):
    axis.loglog(list(points), list(points.values()), style, label=name)
axis.set_xlabel("entries")
axis.set_ylabel("µs for a batch of 64")
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** where the lines cross. Up to 4000 steps the plain sum is the fastest. At 64,000 it
# takes more than three times as long as `SumTree`, and at a million more than thirty times. It
# stays ahead of a tree of pairs up to some 50,000, which is a whole training run on CartPole.
#
# With a larger batch the plain sum is enough for longer, because one sum serves all draws. With
# 1024 draws from 50,000 steps it takes about the same time as `SumTree`.

# %% tags=["claims"]
plain, pairs, ours = (
    times[name] for name in ("cumulative sum", "SumTree, pairs", "SumTree")
)
assert all(plain[n] < min(pairs[n], ours[n]) for n in (1000, 4000))
assert plain[64_000] > 3 * ours[64_000], "more than three times"
assert plain[1_000_000] > 30 * ours[1_000_000], "more than thirty times"
assert plain[16_000] < pairs[16_000], "a tree of pairs comes later"
assert plain[64_000] > 0.9 * pairs[64_000], "at some 50,000"
large = {r["method"]: r for r in rows if r["case"] == "50000 entries, B = 1024"}
sums, tree = (float(large[k]["microseconds"]) for k in ("cumulative sum", "SumTree"))
assert 0.7 < sums / tree < 1.4, "about the same time"

# %% [markdown]
# ## What a preference does to a mean
#
# A step with a large error is drawn often. Does the agent only learn faster, or does it also
# learn something else? Take the smallest task there is: one state, one action, and a lottery that
# pays 10 with probability 0.1 and otherwise nothing. Its value is the mean, 1.
#
# An estimate $q$ that learns from draws settles where the updates up and down cancel. With
# $\alpha_u = 1$ that is where $0.1\, (10 - q) \cdot (10 - q) = 0.9\, q \cdot q$: each error
# counts twice, once as the size of the update and once as the frequency of the draw. So $q =
# 2.5$. However long the agent learns, it takes the lottery for two and a half times as good as it
# is.
#
# **Importance weights** undo that. If the memory holds $N$ steps, a uniform draw gives each of
# them the probability $1 / N$. A step that is drawn $N P_i$ times as often as that should count
# that much less. An exponent $\beta_w$ says how far we go, from 0, where the bias stays, to 1,
# where it is gone ($N$ is `count` in the code; its `N` is the size of a batch):
#
# $$
# w_i = \frac{(N P_i)^{-\beta_w}}{\max_k \, (N P_k)^{-\beta_w}} ,
# $$ (replay-weight)
#
# where the maximum is over the batch, so that weights make updates smaller, never larger. With
# $\beta_w = 1$ a weighted mean over draws is, on average, the mean over the memory, up to the
# common factor of the maximum. (This factor differs from batch to batch, and where batches are small it
# brings a bias back: in a batch of one step the weight is always 1.)


# %% tags=["export"]
@checked
def importance_weights(
    probability: Float[Tensor, "N"], count: Count, beta: Fraction = 1.0
) -> Float[Tensor, "N"]:
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
# Then why not always use $\beta_w = 1$? Because the weights take back much of what the priorities
# were for: the step that surprised most gets the smallest weight. Early on, everything is biased
# anyway, because the targets are guesses and the policy changes. The bias matters at the end,
# when the values should settle. So $\beta_w$ usually starts at about 0.4 and rises linearly to 1
# over the training. (Dopamine keeps it at 0.5: a [note in its
# code](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/rainbow/rainbow_agent.py#L426-L434)
# says that this did better on four of five games.)
#
# ## Line by line: the buffer
#
# `ReplayBuffer` puts the parts together: the rings and windows of {doc}`windows`, and a tree if
# $\alpha_u > 0$. One detail is new. The marks of a batch are not independent: the row of masses is cut
# into as many equal pieces, and each piece gets one mark. This is **stratified sampling**. Every step
# keeps its expected number of draws, but batches vary less.


# %% tags=["export"]
class Batch(NamedTuple):
    """Windows of a buffer: where each began, what it paid, where it led.

    Attributes:
        obs: What the agent saw, ``(N, *)``, in the dtype that was pushed.
        action: What it did, ``(N, *)``.
        reward: Discounted sum of the window's rewards.
        next_obs: Where its last step led, ``(N, *)``.
        discount: The factor on the value of ``next_obs``: a power of gamma, or 0 where
            the window ended in a termination.
        weight: Importance weight; 1 without a preference.
        place: Where in the buffer it began, for ``ReplayBuffer.update``.
        mask: Which actions are legal in ``obs``, or None where nobody says so.
        next_mask: Which are legal in ``next_obs``.
    """

    obs: Tensor
    action: Tensor
    reward: Float[Tensor, "N"]
    next_obs: Tensor
    discount: Float[Tensor, "N"]
    weight: Float[Tensor, "N"]
    place: Int[Tensor, "N"]
    mask: Bool[Tensor, "N A"] | None = None
    next_mask: Bool[Tensor, "N A"] | None = None

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        fields: Any = [x if x is None else x.to(device) for x in self]
        return Batch(*fields)


class ReplayBuffer:
    """The last steps of some environments, sampled uniformly or by priority.

    Args:
        capacity: The most steps it holds, over all environments.
        priority_exponent: How strongly large priorities are preferred; 0 is not at
            all.

    Attributes:
        rings: The steps.
        tree: Their masses, None without a preference.
        largest: The largest priority ever given.
    """

    @checked
    def __init__(self, capacity: Count, priority_exponent: NonNegative = 0.0) -> None:
        self.rings, self.priority_exponent = Rings(capacity), priority_exponent
        self.tree: SumTree | None = None
        self.largest = 1.0

    def __len__(self) -> int:
        return int(self.rings.count.sum())

    def push(
        self,
        rollout: Rollout,
        priority: Float[Tensor, "T B"] | None = None,
        among: tuple[int, int] | None = None,
    ) -> None:
        """Write steps over the oldest ones.

        A rollout goes on where the last one ended; call ``cut`` first if it does not.

        Args:
            rollout: The steps.
            priority: Their first priorities; None stands for the largest so far.
            among: As in ``Rings.push``.
        """
        place, steps = self.rings.push(rollout, among)
        if not len(place):
            return  # no row is a step: each stands behind the end of an episode
        if self.priority_exponent > 0:
            self.tree = self.tree or SumTree(self.rings.places)
            mass = self.largest**self.priority_exponent
            self.tree.update(place, np.full(len(place), mass))
        if priority is not None:
            self.update(torch.from_numpy(place), priority[steps])

    def cut(self, envs: slice = slice(None)) -> None:
        """Mark the newest steps of some rings as truncated, as a reset does."""
        self.rings.cut(envs)

    @checked
    def sample(
        self,
        batch_size: Count,
        generator: torch.Generator,
        num_steps: Count = 1,
        gamma: Fraction = 0.99,
        beta: Fraction = 1.0,
    ) -> Batch:
        """Draw windows, with replacement.

        Args:
            batch_size: Number of windows.
            generator: The source of randomness.
            num_steps: The length of a window that meets no end.
            gamma: Discount of each step.
            beta: How far the weights undo the preference; 1 is fully.

        Raises:
            ValueError: If the buffer is empty.
        """
        check_that(len(self) > 0, "the buffer must hold a step, got an empty one")
        weight: Any = np.ones(batch_size)
        if self.tree is None:
            place = self.rings.draw(batch_size, generator)
        else:
            # One mark in each piece of the row of masses.
            chance = torch.rand(batch_size, generator=generator, dtype=torch.float64)
            mark = (np.arange(batch_size) + chance.numpy()) / batch_size
            total = self.tree.total
            place = self.tree.find(mark * total)
            # The probabilities {eq}`replay-preference` of what was drawn.
            probability = torch.from_numpy(self.tree.mass[place] / total)
            weight = importance_weights(probability, len(self), beta).numpy()

        return self.windows(place, num_steps, gamma, weight)

    def windows(
        self, place: NDArray[Any], num_steps: int, gamma: float, weight: Any = 1.0
    ) -> Batch:
        """Return the windows that begin at some places."""
        # Look ahead from each place; observation and action are those of the start.
        weight = np.broadcast_to(weight, len(place))
        reward, last, discount = self.rings.window(place, num_steps, gamma)
        fields = self.rings.fields
        numbers = [x.astype(fields["reward"].dtype) for x in (reward, discount, weight)]
        arrays = (
            fields["obs"].take(place, 0),
            fields["action"].take(place, 0),
            numbers[0],
            fields["next_obs"].take(last, 0),
            *numbers[1:],
            place,
        )
        masks = zip(MASKS, (place, last), strict=True)
        legal = [fields[name].take(at, 0) for name, at in masks if name in fields]
        return Batch(*map(torch.from_numpy, (*arrays, *legal)))

    @checked
    def update(self, place: Int[Tensor, "N"], priority: Float[Tensor, "N"]) -> None:
        """Give steps new priorities, such as TD errors; their sign does not matter.

        Without a preference nothing happens.
        """
        if self.tree is None:
            return
        inside = (place >= 0) & (place < self.rings.places)
        words = f"place must be below {self.rings.places}, got {place.tolist()}"
        check_that(inside.all(), words)
        check_finite(priority, priority=priority)
        # A step without error today may have one tomorrow, so no priority is quite 0.
        size = priority.detach().cpu().double().abs().clamp_min(1e-6).numpy()
        self.largest = max(self.largest, float(size.max(initial=0.0)))
        self.tree.update(place.cpu().numpy(), size**self.priority_exponent)

    def state_dict(self) -> dict[str, Any]:
        """Return what is stored. The tensors share the buffer's memory."""
        rings = self.rings
        if not rings.fields:
            return {}
        # Rows that nothing was written to need not be saved.
        used = int(rings.count.max()) * rings.num_envs
        state = {name: torch.from_numpy(x[:used]) for name, x in rings.fields.items()}
        if self.tree is not None:
            state["mass"] = torch.from_numpy(self.tree.mass[:used])
        numbers = {"capacity": rings.capacity, "largest": self.largest}
        marks = {"head": rings.head.tolist(), "count": rings.count.tolist()}
        return {**state, **numbers, **marks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict`` returned, and nothing else."""
        rings, tree = Rings(self.rings.capacity), None
        if state:
            wanted = rings.capacity, self.priority_exponent > 0
            came = state["capacity"], "mass" in state
            words = "state must be that of a buffer with (capacity, preference)"
            check_that(came == wanted, f"{words} {wanted}, got {came}")
            names = [name for name in (*STORED, *MASKS) if name in (*STORED, *state)]
            stored = {name: state[name].cpu().numpy() for name in names}
            envs = len(state["head"])
            rings.reserve(
                {name: ((envs, *x.shape[1:]), x.dtype) for name, x in stored.items()}
            )
            for name, x in stored.items():
                rings.fields[name][: len(x)] = x
            rings.head, rings.count = (np.array(state[x]) for x in ("head", "count"))
        if "mass" in state:
            mass = state["mass"].cpu().numpy()
            tree = SumTree(rings.places)
            tree.update(np.arange(len(mass)), mass)
        # Nothing of the old content goes before all of the new is there.
        self.rings, self.tree, self.largest = rings, tree, state.get("largest", 1.0)


# %% [markdown]
# The tensors of `state_dict` are the buffer's own memory, not copies, and a checkpoint writes
# them to the file piece by piece ({doc}`workshop/runs`). So saving a buffer of ten gigabytes does
# not need another ten gigabytes of memory.
#
# ## See it: a lottery
#
# Here is the lottery, drawn by priority with $\alpha_u = 0.6$, and the value that is learned for some
# $\beta_w$. No priority is stale: each batch renews all of them. The balance of updates up and down
# predicts it. Now the error counts once as the size of the update, with the power $\alpha_u$ in the draw
# and with $-\alpha_u \beta_w$ in the weight. So $0.1\, (10 - q)^c = 0.9\, q^c$ with
# $c = 1 + \alpha_u (1 - \beta_w)$, which gives $q = 10 / (1 + 9^{1 / c})$.

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
# may be nothing but luck, good or bad, and no amount of learning makes it smaller. On the cliff
# nothing was random, and that is why priorities did so well there.

# %% tags=["claims"]
assert np.allclose(found, expected, atol=0.06), "the balance is right"
assert abs(found[-1] - 1) < 0.06, "with β = 1 it learns the truth"
assert found[0] > 1.9, "without weights it is off by a factor of two"
assert abs(10 / (1 + 9**0.5) - 2.5) < 1e-12, "two and a half times"

# %% [markdown]
# ## Traps
#
# ### Trap: weights that reach the wrong steps
#
# A loss of shape `(N,)` times weights of shape `(N, 1)` is a table of shape `(N, N)`: every
# weight meets every loss. Its mean is the product of the two means, so no step is weighted at
# all.

# %%
loss, weight = torch.tensor([1.0, 4.0]), torch.tensor([1.0, 0.25])
print("in a column:", (loss * weight[:, None]).mean().item(), end=", ")
print("in a row:", (loss * weight).mean().item())

# %% [markdown]
# Nothing fails, but the bias that the weights should remove stays. Machin's Rainbow
# [does it](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/rainbow.py#L303-L308),
# and a widely read tutorial did for years
# ([reported](https://github.com/Curt-Park/rainbow-is-all-you-need/issues/79)). Here all of a
# batch's numbers have the shape `(N,)`.

# %% tags=["claims"]
assert (loss * weight[:, None]).mean() == loss.mean() * weight.mean()
assert (loss * weight).mean() != loss.mean() * weight.mean()

# %% [markdown]
# ## What well-known implementations do
#
# | choice | this chapter | [CleanRL, Rainbow](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L266-L370) | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/buffers.py#L847-L954) | [Tianshou](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/data/buffer/prio.py#L11-L113) | [Dopamine, JAX](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/replay_memory/accumulator.py#L44-L187) | [Machin](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/buffers/prioritized_buffer.py#L234-L434) |
# |---|---|---|---|---|---|---|
# | priorities | any $\alpha_u$ | $\alpha_u = 0.5$ | none | any $\alpha_u$ | [root of the loss](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/rainbow/rainbow_agent.py#L454-L466) | $\alpha_u = 0.6$ |
# | priority of a new step | largest so far | [largest so far](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L322) | – | [largest so far](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/data/buffer/prio.py#L46-L47) | [largest so far](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/dqn/dqn_agent.py#L640-L646) | the largest, raised to $\alpha_u$ [twice](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/buffers/prioritized_buffer.py#L302-L305) |
# | $\beta_w$ | set by the agent | 0.4 [to 1](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L427-L430) | – | [set by hand](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/data/buffer/prio.py#L112-L113) | [always 0.5](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/rainbow/rainbow_agent.py#L426-L434) | 0.4, plus 0.001 at [each draw](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/buffers/prioritized_buffer.py#L425-L427) |
# | weights divided by | largest of the batch | [of the batch](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L353-L354) | – | [of the batch](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/data/buffer/prio.py#L106), or not | [of the batch](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/agents/rainbow/rainbow_agent.py#L434) | [of the batch](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/buffers/prioritized_buffer.py#L424) |
# | tree | a batch at a time, groups of 16, float64 | a number at a time, pairs, [float32](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/rainbow_atari.py#L211-L239) | – | compiled by [Numba](https://github.com/thu-ml/tianshou/blob/f2402056b03acafeedf2518a5088db55add004ab/tianshou/data/utils/segtree.py#L95-L140), pairs, float64 | a batch at a time, pairs, float64, [differences](https://github.com/google/dopamine/blob/5873f5494ee0c2d7c016d0ab2ad530354fec59d0/dopamine/jax/replay_memory/sum_tree.py#L64-L79) | [a batch at a time](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/buffers/prioritized_buffer.py#L177-L186), pairs, float64 |
#
# We read the code at the linked commits.
#
# This book has another memory, {doc}`workshop/memory`, for longer stretches of an episode. It
# divides by the largest weight in the whole memory, which a tree of sums does not know.

# %% [markdown]
# ## On the best device
#
# A memory of images is often larger than a GPU's. So steps stay in main memory, and a batch goes to
# the device where the network is.

# %%
from literate_rl.data.agents import best_device

device = best_device()
buffer = ReplayBuffer(800)
buffer.push(cliff(0))
batch = buffer.sample(256, torch.Generator().manual_seed(0), num_steps=3).to(device)
print(
    f"{len(batch.reward)} windows on {batch.obs.device.type}, from {len(buffer)} steps"
)

# %% tags=["claims"]
known = [column for column in batch if column is not None]
assert {column.device.type for column in known} == {device.type}

# %% [markdown]
# ## Priorities or none?
#
# Begin without them. The cliff, where they save at least four fifths of the updates, is their best case.
# In whole agents we have seen no gain: Rainbow shows no difference without them on CartPole (five seeds,
# {doc}`rainbow_evidence`), and TD3 is no better with them on the pendulum (three seeds,
# {doc}`control_evidence`). On Atari their loss was among the two that hurt Rainbow most
# {cite:p}`hessel2018`. Try them where rewards are rare and little is random, with $\alpha_u = 0.5$ and
# $\beta_w$ from 0.4 to 1, as {doc}`rainbow` does.
#
# How many steps to keep was varied once: a weak seed of discrete SAC was no better with all of its steps
# than with the last 4,000 ({doc}`control_evidence`).

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
hoard, last = (
    stored_runs(f"sac_cartpole_{name}")["SAC"].final for name in ("hoard", "sure")
)
assert hoard.argmin() == last.argmin() == 3, "the weak seed"
assert hoard[3] < last[3] + 5, "no better"

# %% [markdown]
# ## Summary
#
# - Priorities spend updates where something is left to learn, but noise looks the same to them, and
#   each is as old as its step's last draw.
# - In a sum tree a mark finds its mass in a few steps.
# - A few thousand masses need no tree, nor do large batches from tens of thousands.
# - Importance weights remove the bias of the priorities, which matters most at the end.
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
# ### Exercise 3: experiment
#
# On the cliff nothing is random, so priorities cause no bias there. Do the weights help
# or hurt? Guess first. `learn(priority_exponent, seed, num_updates, beta)` returns the table after each
# batch, and `error_of` its error. Take $\alpha_u = 0.6$. Return the $\beta_w$, 0 or 1, with the
# lower mean error after 2,560 updates, over the seeds 1 to 10.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def better_beta():
    mean = {
        beta: np.mean([error_of(learn(0.6, s, 2560, beta))[-1] for s in range(1, 11)])
        for beta in (0.0, 1.0)
    }
    return min(mean, key=mean.get)


grade(answer, better_beta, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # 0: nothing is random, so there is no bias to remove, and the weights make the
    # updates that matter smaller.
    def mean_error(beta):
        runs = [learn(0.6, seed, 2560, beta) for seed in range(1, 11)]
        return np.mean([error_of(run)[-1] for run in runs])

    return min((0.0, 1.0), key=mean_error)


grade(answer, better_beta, ())

# %% tags=["claims"]
assert answer() == 0.0, "weights cost here"

# %% [markdown]
# ## References
#
# Experience replay is from {cite:t}`lin1992`; DQN made it famous. Prioritised replay and the
# cliff are from {cite:t}`schaul2016`.

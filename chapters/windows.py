# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Windows of steps
#
# **What must an agent remember, so that it can learn from several steps at once?** After this
# chapter you can keep the last million steps of many environments, and cut windows of several
# steps out of them that never mix two episodes. It takes about 20 minutes to read, without
# exercises. You need the flags `terminated` and `truncated` ({doc}`agents`) and $n$-step returns
# ({doc}`advantages`). This is where the agents that learn values begin; nothing here needs PPO.

# %% tags=["export", "hide-input"]
"""Windows: the last steps of each environment in a ring, and stretches of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from literate_rl.data.agents import Rollout
from literate_rl.ground.signatures import Count, checked

__all__ = ["Rings"]

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
from literate_rl.data.windows import Rings  # the package's own, defined below
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
# travels one state at a time, with $n = 5$ five. Here is the number of updates until the values
# of all ten states are half-way to the truth, the mean over ten seeds:


# %%
def updates_needed(n):
    """Return the updates until all states are half-way, the mean over ten seeds."""
    reached = [(learn(n, s, 800) > exact / 2).all(1) for s in range(1, 11)]
    return np.mean([10 * flags.argmax() for flags in reached])


needed = {n: updates_needed(n) for n in lengths}
print({n: round(mean) for n, mean in needed.items()})

# %% [markdown]
# A target that looks two steps ahead needs roughly half as many updates, one that looks five steps
# ahead roughly a quarter. But looking far has two prices. The sum of many rewards varies more
# ({doc}`advantages`). And these rewards were earned by an *older* policy, for which nothing corrects.
# {doc}`dqn` says why it is done all the same.

# %% tags=["claims"]
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
# **Notice** that every step can be a start. A window that meets an end is just shorter. And the
# window of step 9 continues in the first row, as if the array had no end.
#
# A queue that makes windows *before* it stores them is popular and easily goes wrong: emptied at an
# end, it never stores the last steps of an episode as starts; told about terminations only, it mixes
# two episodes at a time limit ({doc}`/docs/errata`). Here a window is cut when it is read.

# %% tags=["claims"]
assert all(window_of(step, 5)[0] >= 1 for step in range(4, 14)), "each can be a start"
assert window_of(9, 3) == (2, 0.25), "it continues in the first row, up to the cut"
assert window_of(6, 5) == (2, 0.0), "shorter at a termination, and no value after it"
assert window_of(13, 5) == (1, 0.5), "shorter at the newest step"

# %% [markdown]
# ## Line by line: rings and windows
#
# Each field of a step is one array for all rings, row by row, and a row has one place for each
# environment. So the next step is always the same distance further on: as many places as there
# are environments. The remainder of a division wraps the last row around to the first.
#
# The arrays take their shape and dtype from the first rollout. So an image stays bytes; as
# float32 it would need four times the memory. Each step keeps two observations: with four frames of
# 84 × 84 bytes, as on Atari, these are 56 kB, and a million steps are 56 GB.

# %% tags=["export"]
# What the memory keeps of a step, the masks only where there are some.
STORED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
MASKS = ("mask", "next_mask")


class Rings:
    """The last steps of some environments, one ring for each.

    Args:
        capacity: The most steps it holds, over all environments; each gets an equal
            share, rounded down.

    Attributes:
        fields: An array for each of ``STORED`` and ``MASKS``; time and environments, in
            this order, are flattened into one dimension of ``places``.
        head: The row that is written next, for each environment.
        count: Steps that are stored, for each environment.
    """

    @checked
    def __init__(self, capacity: Count) -> None:
        self.capacity = capacity
        self.form: dict[str, Any] = {}
        self.fields: dict[str, NDArray[Any]] = {}
        self.head = self.count = np.zeros(0, np.int64)

    def reserve(self, form: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """Make empty rings for rows of these shapes ``(B, *)`` and dtypes."""
        self.form, self.num_envs = form, form["reward"][0][0]
        self.length = self.capacity // self.num_envs
        if self.length < 1:
            raise ValueError(
                f"capacity must be at least 1 for each of {self.num_envs} "
                f"environments, got {self.capacity}"
            )
        self.places = self.length * self.num_envs
        self.fields = {
            name: np.zeros((self.places, *shape[1:]), dtype)
            for name, (shape, dtype) in form.items()
        }
        self.head, self.count = np.zeros((2, self.num_envs), np.int64)

    @checked
    def push(
        self, rollout: Rollout, among: tuple[int, int] | None = None
    ) -> tuple[NDArray[Any], tuple[Any, Any]]:
        """Write steps over the oldest ones.

        A rollout goes on where the last one ended; call ``cut`` first if it does not.

        Args:
            rollout: The steps.
            among: Which ring is that of its first environment, and how many there are,
                if others fill the rest, as the actors of Ape-X do.

        Returns:
            The places of the steps, and their indices in the rollout: time and
            environment.
        """
        masks = () if rollout.mask is None else MASKS
        arrays = {n: getattr(rollout, n).cpu().numpy() for n in (*STORED, *masks)}
        width = rollout.reward.shape[1]
        first, rings = among or (0, width)
        form = {name: ((rings, *x.shape[2:]), x.dtype) for name, x in arrays.items()}
        if not self.fields:
            self.reserve(form)
        # If nobody named illegal actions before, all that was done was legal.
        for name in {*masks} - self.form.keys():
            self.form[name] = form[name]
            self.fields[name] = np.ones((self.places, form[name][0][1]), bool)
        if form != self.form:
            raise ValueError(f"rollout must be like the first, {self.form}, got {form}")

        # Rows in which nothing happened are left out, so each ring counts its own
        # steps. If a rollout is longer than the ring, only its last steps stay.
        real = rollout.real.cpu().numpy()
        number = real.cumsum(0)
        total = number[-1]
        step, env = np.nonzero(real & (number > total - self.length))

        # The first new step goes to the head's row, the others to the rows after it.
        head, count = (x[first : first + width] for x in (self.head, self.count))
        row = (head[env] + number[step, env] - 1) % self.length
        place: NDArray[np.int64] = row * self.num_envs + first + env
        for name, x in arrays.items():
            self.fields[name][place] = x[step, env]
        head[:] = (head + total) % self.length
        count[:] = np.minimum(count + total, self.length)
        return place, (step, env)

    def newest(self) -> NDArray[np.int64]:
        """Return the place of each environment's newest step."""
        row = (self.head - 1) % self.length
        return row * self.num_envs + np.arange(self.num_envs)

    def cut(self, envs: slice = slice(None)) -> None:
        """Mark the newest steps of some rings as truncated, because a reset follows."""
        if self.fields:
            self.fields["truncated"][self.newest()[envs][self.count[envs] > 0]] = True

    def window(
        self, place: NDArray[np.int64], num_steps: int, gamma: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Look ahead from some places, one window from each.

        Returns:
            The discounted sum of the rewards, the place of the last step, and the
            factor of the value after it.
        """
        # The places of n steps, one row for each; the remainder wraps them around.
        ahead = np.arange(num_steps)[:, None]
        places = (place + self.num_envs * ahead) % self.places

        # Where a window has to end before n: the three cases of {eq}`replay-window`.
        terminated = self.fields["terminated"][places]
        last = terminated | self.fields["truncated"][places]
        last |= places == self.newest()[place % self.num_envs]

        # A step belongs to the window if none before it was the last.
        inside = np.ones_like(last)
        inside[1:] = ~np.logical_or.accumulate(last[:-1])
        m = inside.sum(0)

        # The two parts of the target {eq}`replay-target`. After the end there may be
        # anything, even NaN, which times zero is still NaN; so it is masked.
        reward = np.where(inside, self.fields["reward"][places], 0.0)
        total = (float(gamma) ** ahead * reward).sum(0)
        ending = m - 1, np.arange(len(place))
        discount = np.where(terminated[ending], 0.0, float(gamma) ** m)
        return total, places[ending], discount

    def draw(self, number: int, generator: torch.Generator) -> NDArray[np.int64]:
        """Draw places of steps, uniformly and with replacement."""
        stored = int(self.count.sum())
        chosen = torch.randint(stored, (number,), generator=generator).numpy()
        # Number the steps ring by ring. Which ring holds the chosen one, in which row?
        ends = self.count.cumsum()
        env = np.searchsorted(ends, chosen, side="right")
        row = chosen - (ends - self.count)[env]
        place: NDArray[np.int64] = row * self.num_envs + env
        return place


# %% [markdown]
# Two special cases remain. An environment that spends a step on its reset makes one row for each
# episode in which nothing happened ({doc}`agents`). Such a *phantom row* is not stored, so two rings
# may hold different numbers of steps. And when a run is saved, its environments are reset, so the step
# after the newest one will belong to another episode. `cut` marks that: a run that continues and one
# that is resumed from the file then see the same steps.
#
# ## Summary
#
# - Agents that learn values may keep their steps and learn from them again.
# - Each environment has a ring. The next row holds what came next, up to the end of the episode
#   or the newest step.
# - A target that looks $n$ steps ahead brings news of a reward $n$ states further in one update.
# - A window has the true number of steps, the true power of $\gamma$ and the true successor.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "The last steps of a ring are 7, 8 and 9. Step 9 is the newest, and nothing has ended. You draw "
    "the window of step 8 with n = 3 and γ = 0.9. What is the factor of the value at its end?",
    ["0.9", "0.81", "0.729", "0: the window is not complete"],
    right="0.81",
    because="Two steps are there, 8 and 9, so the value of the state after step 9 "
    "gets the factor 0.9². Later, with step 10, the same start has a longer window.",
)

# %% tags=["claims"]
short = Rings(10)
flags = {name: [False] * 10 for name in ("terminated", "truncated")}
short.push(rollout_of(states, [0] * 10, [1.0] * 10, states, **flags))
assert np.isclose(short.window(np.array([8]), 3, 0.9)[2][0], 0.81)

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
# ## References
#
# Experience replay is from {cite:t}`lin1992`; DQN made it famous.

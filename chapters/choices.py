# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Several choices at once
#
# **How does a policy walk, aim and shoot in one step?** It makes three choices, each from a short
# list. After this chapter you can build a policy for such actions, say why the logarithm of its
# probability is a sum, and name the one thing that such a policy cannot do. It takes about 20 minutes. You need
# {doc}`policies`: logits, and the race that draws an action.

# %% tags=["export", "hide-input"]
"""Several choices at once: a product of categorical distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from literate_rl.ground.nests import leaves, pack, refused
from literate_rl.ground.networks import chosen, expected, mean_surprise, race_noise
from literate_rl.ground.signatures import Float, Int, check_that, checked
from literate_rl.nets.masking import legal

__all__ = ["ChoiceActions", "is_choices"]

# %% [markdown]
# ## Short lists instead of a long one
#
# A game takes one of three moves and, in the same step, one of three directions to look. That makes
# nine combinations, and a list of nine actions would do. But twenty switches have a million combinations, and no agent can try
# each of a million.
#
# So the policy keeps the short lists, with logits of their own, and draws from each of them
# *independently*. The bars show the nine combinations, in three groups. Move the two logits.

# %% tags=["hide-input"]
import torch

from literate_rl.book.pictures import Axis, Mark, dial, plot

torch.set_num_threads(1)  # the networks of this book are too small to be shared out
moves, looks = ("stay", "walk", "jump"), ("left", "ahead", "right")


def frame(jump, right):
    """Draw the probabilities of all combinations of two choices."""
    move, look = torch.tensor([[0.0, 0.5, jump], [0.5, 0.0, right]]).softmax(-1)
    joint = move[:, None] * look
    places = [4 * i + j for i in range(3) for j in range(3)]
    heights = joint.flatten().tolist()
    best = int(joint.argmax())
    picture = plot(
        "probabilities of the nine combinations",
        "Nine bars in three groups, one group for each move. Within each group the three "
        "directions have the same proportions. The largest bar is marked.",
        Axis("", -0.8, 10.8, {4 * i + 1: name for i, name in enumerate(moves)}),
        Axis("", 0, 0.8, ticks=(0, 0.4, 0.8)),
        Mark("bars", places, heights, "quiet"),
        Mark("bars", [places[best]], [heights[best]], "accent"),
    )
    shares = (joint / joint.sum(1, keepdim=True))[0].tolist()
    words = ", ".join(f"{name} {x:.0%}" for name, x in zip(looks, shares, strict=True))
    return [picture], (
        f"likeliest: {moves[best // 3]} and look {looks[best % 3]}\n"
        f"in every group: {words}"
    )


settings = [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
dial(
    "Two choices, nine combinations",
    frame,
    {"logit of jump": settings, "logit of right": settings},
    start=(2.0, 1.0),
)

# %% [markdown]
# **Notice** that the three groups always have the same proportions inside: where the agent looks
# does not depend on its move. Six logits describe nine probabilities, but not *any* nine. No
# setting says "jump looking left, or walk looking right, and nothing else".

# %% tags=["claims"]
for jump in settings:
    move, look = torch.tensor([[0.0, 0.5, jump], [0.5, 0.0, 1.0]]).softmax(-1)
    assert torch.linalg.matrix_rank(move[:, None] * look) == 1, "the same proportions"
lines = {frame(jump, 1.0)[1].splitlines()[1] for jump in settings}
assert len(lines) == 1, "does not depend on its move"

# %% [markdown]
# ## Sums
#
# Let there be $K$ choices, the $k$-th of them among $N_k$ options with probabilities
# $p_{k1}, \dots, p_{kN_k}$, the softmax of its own logits. An action is one option of each, $a =
# (a_1, \dots, a_K)$. The choices are drawn independently, so probabilities are multiplied, and
# their logarithms are added:
#
# $$
# \log \pi(a \mid s) = \sum_{k=1}^{K} \log p_{k a_k} .
# $$ (choices-log-prob)
#
# Entropy and divergence are means of logarithms. A mean of sums is a sum of means, and in each of
# these only one choice counts:
#
# $$
# \begin{aligned}
# H(\pi) &= -\sum_{k=1}^{K} \sum_{j=1}^{N_k} p_{kj} \log p_{kj} , \\
# \operatorname{KL}(\pi \,\|\, \pi') &= \sum_{k=1}^{K} \sum_{j=1}^{N_k}
#     p_{kj} \log \frac{p_{kj}}{p'_{kj}} .
# \end{aligned}
# $$ (choices-entropy)
#
# The gradient splits as well. What a batch says about one choice moves the logits of that choice
# alone, as if the others belonged to the environment.
#
# ## The action distribution
#
# Gymnasium has two spaces for this: `MultiDiscrete`, whose `nvec` holds the numbers $N_k$, and
# `MultiBinary`, where every $N_k$ is 2. Our class takes both, and `Tuple` and `Dict` spaces that
# hold nothing but choices.
#
# Here it is for the game above, beside the same sums over its nine combinations by hand:

# %%
from literate_rl.nets.choices import ChoiceActions  # built below

game = ChoiceActions(spaces.MultiDiscrete([3, 3]))
row = torch.tensor([[0.0, 0.5, 2.0, 0.5, 0.0, 1.0]], dtype=torch.float64)
other = torch.zeros(1, 6, dtype=torch.float64)
every = torch.cartesian_prod(torch.arange(3), torch.arange(3))
joint, entropy = game.evaluate(row.expand(9, -1), every)
joint_other, _ = game.evaluate(other.expand(9, -1), every)
found = {
    "sum of all probabilities": (joint.exp().sum(), torch.ones(())),
    "entropy": (-(joint.exp() * joint).sum(), entropy[0]),
    "divergence": ((joint.exp() * (joint - joint_other)).sum(), game.kl(row, other)),
}
for name, (by_hand, ours) in found.items():
    print(f"{name}: {by_hand.item():.4f} by hand, {ours.item():.4f} by the formula")

# %% tags=["claims"]
for by_hand, ours in found.values():
    assert abs(by_hand.item() - ours.item()) < 1e-12, "the same sums"

# %% [markdown]
# The network returns the logits of all choices one after another. For the formulas the class arranges
# them in a table with a row for each choice. Where a list is shorter than the longest one, its row is
# filled up with $-\infty$: options that are never drawn.


# %% tags=["export"]
def is_choices(space: spaces.Space[Any]) -> bool:
    """Say whether an action consists of choices from lists, and of nothing else."""
    kinds = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    parts = list(leaves(space))
    return bool(parts) and all(isinstance(part, kinds) for part in parts)


def options(leaf: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many options each choice of a leaf has, and the name of the first."""
    if isinstance(leaf, spaces.MultiBinary):
        leaf = spaces.MultiDiscrete(np.full(leaf.shape, 2))
    sizes = leaf.nvec if isinstance(leaf, spaces.MultiDiscrete) else leaf.n
    return np.ravel(sizes).astype(np.int64), np.ravel(leaf.start).astype(np.int64)


class ChoiceActions:
    """Choices that are drawn independently; a row holds the logits of all of them.

    Args:
        space: A MultiDiscrete or MultiBinary, or a Tuple or Dict of these and Discrete.

    Attributes:
        sizes: How many options each choice has, in the order of the space.
        num_logits: How many numbers a row has.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        wanted = "action_space must consist of choices, at least one"
        if not is_choices(space):
            raise refused(wanted, space, "kind")
        self.space, self.parts = space, list(leaves(space))
        sizes, starts = map(np.concatenate, zip(*map(options, self.parts), strict=True))
        if not len(sizes):
            raise refused(wanted, space, "shape")
        self.sizes, self.start = sizes.tolist(), starts
        self.num_logits = sum(self.sizes)
        # Where the logits of each choice stand, a table row for each. What is left over
        # in a table row points behind the end.
        places = torch.arange(self.num_logits).split(self.sizes)
        self.place = pad_sequence(places, True, self.num_logits)

    def log_probs(self, row: Tensor) -> Tensor:
        """Return the log-probabilities of all options, ``(*B, K, N)``."""
        return self.table(row).log_softmax(-1)

    def table(self, row: Tensor) -> Tensor:
        """Return logits with a table row for each choice, ``(*B, K, N)``."""
        wanted, given = self.num_logits, row.shape[-1]
        check_that(given == wanted, f"row must have {wanted} logits, got {given}")
        filled = nn.functional.pad(row, (0, 1), value=-math.inf)
        return filled[..., self.place.to(row.device)]

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw the noise of a rollout, on the CPU."""
        # A race for each choice, {eq}`act-discrete`.
        return race_noise(generator, num_steps, num_envs, self.num_logits)

    def legal(self, row: Tensor, mask: Tensor) -> Tensor:
        """Return rows that leave out illegal options; the mask is like a row."""
        # Each choice keeps an option of its own ({doc}`masks`).
        wanted, given = self.num_logits, mask.shape[-1]
        check_that(given == wanted, f"mask must have {wanted} options, got {given}")
        choices = zip(*(x.split(self.sizes, -1) for x in (row, mask)), strict=True)
        return torch.cat([legal(*choice) for choice in choices], -1)

    @checked
    def choose(
        self, row: Float[Tensor, "*B logits"], noise: Float[Tensor, "*B logits"] | float
    ) -> Int[Tensor, "*B K"]:
        """Return the options that follow from logits and noise, counted from 0."""
        return self.table(row + noise).argmax(-1)

    @checked
    def evaluate(
        self, row: Float[Tensor, "*B logits"], action: Int[Tensor, "*B K"]
    ) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log-probabilities and entropies, in nats."""
        # {eq}`choices-log-prob`, and the first sum of {eq}`choices-entropy`.
        log_prob = self.log_probs(row)
        likely = chosen(log_prob, action).sum(-1)
        return likely, mean_surprise(log_prob, over=(-2, -1))

    @checked
    def kl(
        self, row: Float[Tensor, "*B logits"], other: Float[Tensor, "*B logits"]
    ) -> Float[Tensor, "*B"]:
        """Return the KL divergences from rows to others, in nats."""
        log_prob = self.log_probs(row)
        difference = log_prob - self.log_probs(other)
        # The second sum of {eq}`choices-entropy`.
        return expected(log_prob.exp(), difference).sum((-2, -1))

    def to_env(self, action: Tensor) -> Any:
        """Return the actions as vector environments take them, nested or not."""
        shapes = [part.shape or () for part in self.parts]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        columns = np.split(action.numpy() + self.start, ends[:-1], axis=-1)
        named = zip(self.parts, shapes, columns, strict=True)
        return pack(
            self.space,
            (x.reshape(-1, *shape).astype(part.dtype) for part, shape, x in named),
        )


# %% [markdown]
# ## Eight switches
#
# An agent sees eight lamps, each on or off, and sets eight switches. For each switch that agrees
# with its lamp it is paid an eighth, and then there are new lamps. An episode has ten steps, so the
# best return is 10, and chance gets 5. One PPO ({doc}`ppo`) makes eight choices. The other one has a
# list of 256 actions, which *could* express all that the choices can, and more.

# %%
from functools import partial

import gymnasium as gym
import matplotlib.pyplot as plt

from literate_rl.data.agents import make_envs, seed_everything
from literate_rl.nets.policies import make_policy
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.runs.runs import fit


class Switches(gym.Env):
    """Pays for each of eight switches that agrees with its lamp, or for all of them."""

    observation_space = spaces.Box(0, 1, (8,))

    def __init__(self, listed, together=False):
        self.listed, self.together = listed, together
        self.action_space = spaces.Discrete(256) if listed else spaces.MultiBinary(8)

    def show(self):
        self.lamps = self.np_random.integers(0, 2, 8)
        return self.lamps.astype(np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.show(), {}

    def step(self, action):
        # The eight digits of a number from the list, or the choices as they are.
        switches = action >> np.arange(8) & 1 if self.listed else action
        agree, self.count = switches == self.lamps, self.count + 1
        reward = float(agree.all() if self.together else agree.mean())
        return self.show(), reward, self.count == 10, False, {}


def trained(listed, together=False):
    """Train PPO; return the steps and the mean returns of its updates."""
    seed_everything(1)
    envs = make_envs(partial(Switches, listed, together), 8)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    # What is done now changes nothing later, so the discount is 0.
    size = {"total_steps": 30_720, "num_envs": 8, "num_steps": 64}
    learner = PPO(policy, envs, PPOConfig(**size, learning_rate=3e-3, gamma=0.0))
    history = fit(learner, progress=False)
    return [(x["step"], x["charts/episodic_return"]) for x in history]


curves = {"eight choices": trained(False), "a list of 256": trained(True)}
strict = {name: trained(x, True)[-1][1] for x, name in enumerate(curves)}

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two learning curves over 30,000 steps. With eight choices the return climbs from 5 to almost 10 within 6,000 steps; with a list of 256 it is below 9 at the end"}}
fig, axis = plt.subplots(figsize=(7, 2.4))
for name, curve in curves.items():
    axis.plot(*zip(*curve, strict=True), label=name)
    print(f"{name}: mean return of the last update {curve[-1][1]:.2f}", end="; ")
    print(f"paid for all eight together {strict[name]:.2f}")
axis.set(xlabel="steps", ylabel="return")
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** how far apart they are after the same steps. A step teaches the list about *one* of 256
# actions, and the choices about eight times one of two. Nor is it only because each switch is paid by
# itself: where only all eight together pay, chance is hardly ever right, and the choices learn it all the
# same. This is one seed each.

# %% tags=["claims"]
choices, listed = (dict(curves[name]) for name in ("eight choices", "a list of 256"))
at_the_end = max(listed)
assert choices[at_the_end] > listed[at_the_end], "far apart"
assert strict["eight choices"] > strict["a list of 256"] + 2, "all the same"

# %% [markdown]
# ## Traps
#
# ### Trap: many choices share one clip
#
# PPO clips the *ratio* of new and old probability, and the ratio of an action is the product of the
# ratios of its choices. What moves every choice a little moves the product a lot:

# %%
share, generator = {}, torch.Generator().manual_seed(1)
for count in (1, 8, 64):
    actions = ChoiceActions(spaces.MultiDiscrete([3] * count))
    row = torch.randn(2000, 3 * count, generator=generator)
    moved = row + 0.1 * torch.randn(row.shape, generator=generator)
    action = actions.choose(row, actions.noise(1, 2000, generator)[0])
    new, old = (actions.evaluate(x, action)[0] for x in (moved, row))
    ratio = (new - old).exp()
    share[count] = ((ratio - 1).abs() > 0.2).float().mean().item()
    print(f"{count:2d} choices: {share[count]:.0%} of the ratios leave the clip range")

# %% [markdown]
# The same small change of every logit is harmless for one choice, and not for 64. So with many
# choices, watch the share that is clipped (`losses/clipfrac`).

# %% tags=["claims"]
assert share[1] < 0.05, "harmless"
assert share[64] > 0.6, "most of the batch"

# %% [markdown]
# ## When to use it
#
# A list can express everything, including that two choices belong together, and any agent for lists
# takes it. Choices scale. Where the best option of one choice depends on another choice, they can put
# all their probability on *one* good combination in each state, but they cannot mix two.
#
# - **Use it for**: hundreds of combinations and more
# - **Rather than**: one list of all combinations, which suits a few; between them, try both
# - **Costs**: with eight switches less than a fifth of the steps that the list takes; one seed each
# - **First settings**: `learning_rate`, `clip_ratio`, `entropy_weight`
# - **Decided by**: [eight switches](#eight-switches), both ways; {doc}`/docs/spaces` shows which agent takes
#   which actions

# %% tags=["claims"]
a_fifth = max(step for step in choices if step <= at_the_end / 5)
assert choices[a_fifth] > listed[at_the_end], "less than a fifth of the steps"

# %% [markdown]
# ## Summary
#
# - Several choices are drawn independently, each from a softmax of its own.
# - The log-probability of the action, its entropy and its divergence are sums over the choices.
# - The network returns the logits of all choices, a sum of list lengths instead of a product.
# - No such policy can say that two choices belong together.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "An action space is MultiDiscrete([5, 3, 2]), and all logits are 0. What is the entropy of the "
    "policy?",
    ["log 30, about 3.4 nats", "log 10, about 2.3 nats", "log 5, about 1.6 nats"],
    right="log 30, about 3.4 nats",
    because="The entropies of the choices are added, log 5 + log 3 + log 2. All 30 combinations "
    "are equally likely.",
)

# %% tags=["claims"]
three = ChoiceActions(spaces.MultiDiscrete([5, 3, 2]))
_, entropy = three.evaluate(torch.zeros(10), torch.zeros(3, dtype=torch.long))
assert abs(entropy.item() - math.log(30)) < 1e-6

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function should return the log-probability of one action, given the logits of all choices in
# a row and the numbers of their options. It is right for a single choice. Repair it.


# %%
def answer(row, sizes, action):
    log_prob = row.log_softmax(-1).split(sizes)
    return sum(x[a] for x, a in zip(log_prob, action, strict=True))


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def log_prob_of(row, sizes, action):
    actions = ChoiceActions(spaces.MultiDiscrete(sizes))
    return actions.evaluate(row, torch.tensor(action))[0]


rows = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
cases = [
    (rows[0], [6], [4]),
    (rows[1], [4, 2], [3, 0]),
    (rows[2], [2, 3, 1], [1, 1, 0]),
]
grade(answer, log_prob_of, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(row, sizes, action):
    # Each choice has a softmax of its own: first split, then normalise.
    log_prob = [x.log_softmax(-1) for x in row.split(sizes)]
    return sum(x[a] for x, a in zip(log_prob, action, strict=True))


grade(answer, log_prob_of, *cases)

# %% [markdown]
# ### Exercise 3: experiment
#
# A table `joint` holds the probabilities of all combinations of two choices that *do* belong
# together. Two choices that are drawn independently, with probabilities `first` and `second`, come
# as close to it as they can. Find them, by gradient descent on their logits or by thought, so that the divergence from `joint` to
# their product is smallest, and return `(first, second)`. What is left
# of the divergence is called the *mutual information*.


# %%
def answer(joint):
    return ...


# %% tags=["hide-input"]
def rounded(pair):
    """Round probabilities to two digits, if there are any."""
    if pair is ...:
        return pair
    return [[round(float(p), 2) for p in x] for x in pair]


def nearest(joint):
    return rounded((joint.sum(1), joint.sum(0)))


tables = [[[0.5, 0.0], [0.0, 0.5]], [[0.1, 0.2, 0.1], [0.3, 0.0, 0.3]]]
tables = [(torch.tensor(x),) for x in tables]
grade(lambda joint: rounded(answer(joint)), nearest, *tables)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(joint):
    # Each choice alone should be right: the sums of the table's rows and columns.
    return joint.sum(1), joint.sum(0)


grade(lambda joint: rounded(answer(joint)), nearest, *tables)

# %% [markdown]
# ## References
#
# {cite:t}`tang2020` cut continuous actions into such choices for PPO, {cite:t}`tavakoli2018` for values.

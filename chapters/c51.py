# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # C51
#
# **Why learn how likely each return is, if only the mean decides what to do?** After this chapter
# you can send a distribution of returns through the Bellman equation, put it back on a fixed grid
# without changing its mean, and write the loss from which a network learns it. It takes about 20
# minutes to read, without exercises. You need {doc}`dqn`. The agent that learns in this way is that of
# {doc}`rainbow`.

# %% tags=["export", "hide-input"]
"""C51: distributions of returns, moved, projected onto atoms and compared."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.networks import expected
from literate_rl.ground.signatures import (
    Finite,
    Float,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.fast import project_atoms

__all__ = ["categorical_error", "project_distribution", "project_distribution_loop"]

# %% [markdown]
# ## What a mean does not say
#
# A hiker wants to get home, which pays 20. Each step costs 1. There are two ways. One is a path
# of eight steps. At each of them the hiker slips with probability 0.2 and has to repeat it. The
# other is a bridge of three steps. At each of them the hiker may fall, which costs 20 and ends the
# episode.
#
# The slider sets the probability of falling. The bars show how likely each return is, with
# $\gamma = 0.97$. The dashed line is the mean, which is all that DQN learns.

# %% tags=["hide-input"]
import torch

# The package's own, defined below.
from literate_rl.maths.c51 import project_distribution
from literate_rl.book.pictures import Axis, Mark, dial, plot

torch.set_num_threads(1)  # the networks of this book are too small to gain from more
low, high, num_atoms, discount = -40.0, 20.0, 61, 0.97
atoms = torch.linspace(low, high, num_atoms, dtype=torch.float64)


def returns_of(num_steps, advance, fall=0.0):
    """Return the probability of each return of a way, worked out from its end."""
    prob = torch.full((num_steps, num_atoms), 1 / num_atoms, dtype=torch.float64)
    last = torch.arange(num_steps) == num_steps - 1
    one = torch.ones(num_steps, dtype=torch.float64)
    for _ in range(100):
        # A step leads on, or home; or the hiker falls into the river; or it slips.
        home = 20.0 * last - one, discount * (~last).double()
        on = project_distribution(prob.roll(-1, 0), *home, low, high)
        river = project_distribution(prob, -20 * one, 0 * one, low, high)
        slip = project_distribution(prob, -one, discount * one, low, high)
        prob = advance * on + fall * river + max(0.0, 1 - advance - fall) * slip
    return prob[0]


falls = [0.0, 0.02, 0.05, 0.08, 0.1, 0.11, 0.12, 0.15, 0.2, 0.3]
path = returns_of(8, advance=0.8)
bridges = [returns_of(3, advance=1 - fall, fall=fall) for fall in falls]


def panel(name, prob):
    mean = (prob @ atoms).item()
    return plot(
        name,
        f"{name}: a bar for each return, and the mean.",
        Axis("return", -43, 25, ticks=(-40, -20, 0, 20)),
        Axis("probability", 0, 0.6, ticks=(0, 0.3, 0.6)),
        Mark("bars", atoms.tolist(), prob.clamp_min(0).tolist(), "accent"),
        Mark("line dashed", [mean, mean], [0, 0.6], "quiet"),
        width=330,
    )


def two_ways(fall):
    bridge = bridges[falls.index(fall)]
    means = (path @ atoms).item(), (bridge @ atoms).item()
    readout = f"means: path {means[0]:.1f}, bridge {means[1]:.1f}".replace("-", "−")
    return [panel("The path", path), panel("The bridge", bridge)], readout


dial("Two ways home", two_ways, {"chance of falling": falls}, start=(0.1,))

# %% [markdown]
# **Notice** the setting 0.1. The two means are nearly the same, so to DQN the two ways are worth
# nearly the same. But they are very different. The path's return is nearly always close to its
# mean. The return of the bridge is about 16 or below −19, and its mean never occurs.
#
# A **distribution** of returns says all of this, to a hiker who dislikes rivers. But our agents act
# by the mean. Do they learn anything better from 61 numbers than from one?

# %% tags=["claims"]
bridge = bridges[falls.index(0.1)]
assert abs((path - bridge) @ atoms) < 1.0, "nearly the same means"
middle = (atoms > -19) & (atoms < 15)
assert bridge[middle].sum() < 1e-6, "its mean never happens"
assert path[(atoms > -6) & (atoms < 12)].sum() > 0.95, "close to its mean"
for prob in (path, *bridges):
    assert abs(prob.sum() - 1) < 1e-9
slow = torch.tensor(0.0)
for _ in range(8):  # the value of the path, by the Bellman equation of each step
    slow = (0.8 * (discount * slow + (20 if slow == 0 else 0) - 1) - 0.2) / (
        1 - 0.2 * discount
    )
assert abs(slow - path @ atoms) < 1e-5, "the mean of the distribution is the value"

# %% [markdown]
# ## Learning a distribution
#
# Let $Z(s, a)$ be the return after an action, a random number. So far we only asked for its mean
# $Q(s, a)$. But $Z$ obeys a Bellman equation too: the return *is* the reward plus $\gamma$ times
# the return that follows,
#
# $$
# Z(s, a) \overset{D}{=} r + \gamma \, Z(s', a') , \qquad a' = \operatorname*{argmax}_{a}
#     \mathbb{E}[Z(s', a)] ,
# $$ (def-return-distribution)
#
# where $\overset{D}{=}$ says that both sides have the same distribution {cite:p}`bellemare2017`.
# The best action is still the one with the largest mean.
#
# How does a network return a distribution? As a bar chart. The bars stand on fixed returns, the
# **atoms** $x_1 < \dots < x_K$. They are evenly spaced, with distance $\Delta$, and their range
# is called the **support**. For each action the network returns $K$ logits, whose softmax gives the
# probability $q_k(s, a)$ of each atom. With 51 atoms the algorithm is called **C51**. Its value of an
# action is the mean, $Q(s, a) = \sum_k q_k(s, a)\, x_k$.
#
# By {eq}`def-return-distribution` the target is the distribution at the next state and its best
# action, moved: each atom is multiplied by the discount, shifted by the reward, and clipped to
# the support,
#
# $$
# \tilde x_k = \min\bigl( \max( r + \gamma' x_k ,\, x_1 ),\, x_K \bigr) .
# $$ (shifted-atom)
#
# Here $r$ and $\gamma'$ are the discounted rewards and the `discount` of a window ({doc}`replay`).
# Each moved atom carries its probability with it, its *mass*. We call the two together a *piece*. The
# pieces hardly ever land on atoms again. So each is divided between the two atoms around it, with more
# for the nearer one. An atom $x_j$ gets
#
# $$
# \hat q_j = \sum_{k=1}^{K} \max\!\Bigl( 0,\; 1 - \frac{|\tilde x_k - x_j|}{\Delta} \Bigr)\,
#     q_k(s', a') .
# $$ (projection)
#
# This is called the **projection**. Move the sliders. The first picture shows where the pieces
# land, the second what the atoms get.

# %% tags=["hide-input"]
few = torch.linspace(0, 10, 11, dtype=torch.float64)
before = torch.tensor([[1, 2, 4, 7, 9, 7, 4, 3, 5, 6, 2]], dtype=torch.float64)
before /= before.sum()
rewards, powers = [-3.0, -1.0, 0.0, 0.5, 1.0, 2.4, 4.0], [0.0, 0.5, 0.9, 1.0]


def moved(reward, power):
    """Return where the pieces land and what the atoms get."""
    r, d = (torch.tensor([x], dtype=torch.float64) for x in (reward, power))
    return (r + d * few).clamp(0, 10), project_distribution(before, r, d, 0.0, 10.0)[0]


def atoms_plot(name, places, heights, tone):
    pieces = zip(places, heights, strict=True)
    rises = [Mark("line thick", [x, x], [0, min(y, 0.4)], tone) for x, y in pieces]
    return plot(
        name,
        f"{name}: an upright line for each piece, as high as its probability.",
        Axis("return", -0.4, 10.4, ticks=range(0, 11, 2)),
        Axis("probability", 0, 0.4, ticks=(0, 0.2, 0.4)),
        *rises,
        width=330,
    )


def projected(reward, power):
    places, after = moved(reward, power)
    mean, exact = (after @ few).item(), (reward + power * (before @ few)).item()
    readout = f"mass {after.sum():.3f}; mean {mean:.2f}, "
    readout += f"reward plus discount times the mean before: {exact:.2f}"
    if (highest := after.max().item()) > 0.4:
        readout += f"\nThe tallest line goes on to {highest:.2f}."
    readout = readout.replace("-", "−")
    pictures = [
        atoms_plot("Where the pieces land", places.tolist(), before[0].tolist(), ""),
        atoms_plot(
            "What the atoms get", few.tolist(), after.clamp_min(0).tolist(), "accent"
        ),
    ]
    return pictures, readout


knobs = {"reward": rewards, "discount": powers}
dial("Move, then share out", projected, knobs, start=(0.5, 0.9))

# %% [markdown]
# **Notice** three things. The mass, the sum of all probabilities, is always 1, because the two
# shares of a piece add up to the whole piece. With discount 0 everything lands at the reward.
#
# And the mean is what the Bellman equation of values asks for, as long as no piece is clipped. Take a
# piece at $\tilde x$, between $x_j$ and $x_{j+1}$. The atom below gets the share $(x_{j+1} -
# \tilde x) / \Delta$ of it and the atom above $(\tilde x - x_j) / \Delta$. Then the mean is where
# it was, at $\tilde x$, because $x_j (x_{j+1} - \tilde x) + x_{j+1} (\tilde x - x_j) = \Delta
# \tilde x$. If pieces are clipped the mean is wrong, for instance with reward 4 and discount 1.
# So the support has to be wide enough. **Quantile regression** {cite:p}`dabney2018` needs none: there
# the probabilities are fixed, and the network learns where the bars stand.

# %% tags=["claims"]
for reward in rewards:
    for power in powers:
        places, after = moved(reward, power)
        exact = reward + power * (before @ few).item()
        inside = reward >= 0 and reward + 10 * power <= 10
        assert abs(after.sum() - 1) < 1e-12, "the mass is always 1"
        assert not inside or abs(after @ few - exact) < 1e-9, "the mean is kept"
assert abs(moved(4.0, 1.0)[1] @ few - 4 - before @ few) > 0.5, "wrong at the ends"
assert moved(1.0, 0.0)[1][1] == 1, "everything lands where the reward is"

# %% [markdown]
# ### Line by line
#
# The plain form is a loop over the batch and over the atoms. The place where a piece lands is
# measured in spacings from the first atom. Rounded down, it is the index of the atom below; the other
# neighbour is the next one.


# %% tags=["export"]
@checked
def project_distribution_loop(
    prob: Float[Tensor, "B K"],
    reward: Float[Tensor, "B"],
    discount: Float[Tensor, "B"],
    value_min: Finite,
    value_max: Finite,
) -> Float[Tensor, "B K"]:
    """Move distributions of returns and project them onto the atoms, in plain loops."""
    check_atoms(value_min, value_max)
    batch, num_atoms = prob.shape
    spacing = (value_max - value_min) / (num_atoms - 1)
    result = torch.zeros_like(prob)
    for b in range(batch):
        for k in range(num_atoms):
            # Where atom $k$ lands, {eq}`shifted-atom`, in spacings from the first atom.
            value = reward[b] + discount[b] * (value_min + k * spacing)
            place = (value.clamp(value_min, value_max) - value_min) / spacing
            # The nearer neighbour gets more of its mass, {eq}`projection`. The last
            # atom counts as the upper end of the last gap.
            below = min(int(place), num_atoms - 2)
            result[b, below] += prob[b, k] * (below + 1 - place)
            result[b, below + 1] += prob[b, k] * (place - below)
    return result


# %% [markdown]
# The function that the agent calls does the same for all pieces at once ({doc}`maths/fast`).


# %% tags=["export"]
@checked
def project_distribution(
    prob: Float[Tensor, "B K"],
    reward: Float[Tensor, "B"],
    discount: Float[Tensor, "B"],
    value_min: Finite,
    value_max: Finite,
) -> Float[Tensor, "B K"]:
    """Move distributions of returns and project them onto the atoms, without gradient.

    Source: Bellemare, Dabney and Munos 2017, equation 7.

    Args:
        prob: Probabilities of the atoms at the states that the steps led to.
        reward: Discounted sum of the rewards on the way.
        discount: Factor on the return from there on; 0 where the episode terminated.
        value_min: First of the evenly spaced atoms.
        value_max: Last of them.
    """
    check_atoms(value_min, value_max)
    prob, reward, discount = prob.detach(), reward.detach(), discount.detach()
    # Where nothing follows, all mass lands at the reward, whatever was said there.
    nothing = (discount == 0).unsqueeze(-1) & ~prob.isfinite()
    prob = prob.masked_fill(nothing, 1 / prob.shape[1])
    return project_atoms(prob, reward, discount, value_min, value_max)


def check_atoms(low: float, high: float) -> None:
    """Raise unless the last of the atoms lies above the first."""
    check_that(low < high, f"value_min must be below value_max, {high}, got {low}")


# %% [markdown]
# An agent whose returns leave the atoms learns a number that is not theirs, and its error falls as if
# all were well. How much of a target did so?


# %% tags=["export"]
def mass_beyond(
    prob: Tensor, reward: Tensor, discount: Tensor, value_min: float, value_max: float
) -> Tensor:
    """Return which share of each moved distribution lies beyond the ends of the atoms.

    The arguments are those of ``project_distribution``.
    """
    # Rounding carries no atom a thousandth of a gap away.
    slack = 1e-3 * (value_max - value_min) / (prob.shape[1] - 1)
    atoms = torch.linspace(value_min, value_max, prob.shape[1]).to(prob)
    value = torch.addcmul(reward[:, None], discount[:, None], atoms)
    inside = value.clamp(value_min - slack, value_max + slack) == value
    return prob.detach().masked_fill(inside, 0.0).sum(-1)


# %% [markdown]
# The projected distribution $\hat q$ is the target, and the distribution $q$ at the state and action of the
# step has to come closer to it. We measure how far away it is with the KL divergence, which is 0 if both
# are equal and positive otherwise ({doc}`ppo_error`),
#
# $$
# \mathcal L(\hat q, q) = \sum_{k=1}^{K} \hat q_k \, (\log \hat q_k - \log q_k) , \qquad
# \frac{\partial \mathcal L}{\partial z_k} = q_k - \hat q_k ,
# $$ (categorical-error)
#
# with the logits $z$ of $q$. It is the gradient of classification with $K$ classes, where the
# label is a distribution. Take the logarithms from the logits: a probability that is clamped above a
# small number has no gradient where the clamp holds it, and a network that is sure of the wrong atom
# stays sure ({doc}`/docs/errata`).
#
# The target is a constant, so many implementations leave out $\log \hat q_k$, which leaves the
# **cross-entropy**. We keep it, because then the error is 0 where the target says nothing new, and so
# is the priority of such a step ({doc}`replay`).


# %% tags=["export"]
@checked
def categorical_error(
    log_prob: Float[Tensor, "*B K"], target: Float[Tensor, "*B K"]
) -> Float[Tensor, "*B"]:
    """Compute how far distributions are from their targets, as a KL divergence.

    Args:
        log_prob: Log-probabilities of the atoms, with gradient.
        target: The probabilities that they should become; no gradient reaches them.
    """
    target = target.detach()
    # Where the target is 0 nothing is added, even if the log-probability is -inf.
    cross = expected(target, log_prob).sum(-1)
    # {eq}`categorical-error`; zero times the logarithm of zero is zero here.
    error: Tensor = torch.special.xlogy(target, target).sum(-1) - cross
    check_finite(error, log_prob=log_prob, target=target)
    return error


# %% [markdown]
# ## See it: learned from steps
#
# Here an agent walks the path. It does not know the probabilities; it only sees steps. A table holds
# the logits of each of the eight states, and each update learns from 64 steps. The target of a step is
# the table's own distribution for the state that it led to, moved and projected.

# %%
generator = torch.Generator().manual_seed(0)
table = torch.zeros(8, num_atoms, requires_grad=True)
optimizer = torch.optim.Adam([table])
num_updates = 1500
for update in range(num_updates):
    optimizer.param_groups[0]["lr"] = 0.1 * (1 - update / num_updates)
    # Each step leads on, or slips and stays. From the last state it leads home.
    state = torch.randint(8, (64,), generator=generator)
    leads_on = torch.rand(64, generator=generator) < 0.8
    home = leads_on & (state == 7)
    following = (state + leads_on.long()).clamp(max=7)
    belief = table.detach().softmax(-1)[following]
    reward = torch.where(home, 19.0, -1.0)
    target = project_distribution(
        belief, reward, torch.where(home, 0.0, discount), low, high
    )
    error = categorical_error(table.log_softmax(-1)[state], target).mean()
    optimizer.zero_grad()
    error.backward()
    optimizer.step()
learned = table.detach()[0].softmax(-1).double()

# %% tags=["hide-input"]
plot(
    "The path, learned from steps",
    "Bars of the learned probabilities, and the exact ones as a line. They agree.",
    Axis("return", -21, 21, ticks=(-20, -10, 0, 10, 20)),
    Axis("probability", 0, 0.2, ticks=(0, 0.1, 0.2)),
    Mark("bars", atoms[20:].tolist(), learned[20:].tolist(), "accent"),
    Mark("line", atoms[20:].tolist(), path[20:].tolist()),
    width=440,
)

# %% [markdown]
# **Notice** that bars and line, what was learned and what is true, can hardly be told apart. No
# single target looks like this, because each comes from *one* next state. But the gradient $q - \hat q$
# is linear in the target, so the mean gradient over many targets is the gradient for their average,
# which is what {eq}`def-return-distribution` asks for.

# %% tags=["claims"]
assert (learned - path).abs().sum() / 2 < 0.05, "can hardly be told apart"
assert abs((learned - path) @ atoms) < 0.2

# %% [markdown]
# ## The same mean
#
# Now the question of this chapter: does an agent that acts by the mean gain anything? Here a table
# of distributions and a table of values learn from the same steps of the path. Both move a tenth
# of the way towards their target, and they begin with the same means.

# %%
double = torch.float64
table = torch.full((8, num_atoms), 1 / num_atoms, dtype=double)
values, apart = table @ atoms, 0.0
for _ in range(3000):
    state = int(torch.randint(8, (), generator=generator))
    leads_on = bool(torch.rand((), generator=generator) < 0.8)
    following = min(state + leads_on, 7)
    reward, power = (19.0, 0.0) if leads_on and state == 7 else (-1.0, discount)
    # C51 moves a distribution, TD moves a value.
    moves = torch.tensor([[reward], [power]], dtype=double)
    target = project_distribution(table[following, None], *moves, low, high)[0]
    table[state] += 0.1 * (target - table[state])
    values[state] += 0.1 * (reward + power * values[following] - values[state])
    apart = max(apart, (table @ atoms - values).abs().max().item())
print(f"value of the first state: {values[0]:.2f}, mean of its distribution", end=" ")
print(f"{table[0] @ atoms:.2f}\nlargest difference in 3000 updates: {apart:.0e}")

# %% [markdown]
# **Notice** the last number. The two are the same after every update, but for rounding. They have to
# be: the projection keeps the mean, and the mean of a weighted sum is the weighted sum of the means.
# So *61 numbers instead of one teach this table nothing about the mean*. {cite:t}`lyle2019` prove
# it in general, and for linear functions with a loss that suits them.
#
# This is so for tables that move a share of the way towards their target, and as long as nothing is
# clipped. What C51 gains on Atari may come from its loss on logits, whose gradient never exceeds 1
# {cite:p}`farebrother2024`, from features that 61 numbers ask of a network, or from the support, which bounds
# every target. Which of them counts is open.
#
# And our tasks? On CartPole five seeds show no difference ({doc}`rainbow_evidence`). So learn distributions
# on tasks like Atari, where others measured a gain, or if you need the distribution itself, for instance to
# act with care. For a small task begin with a value.

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference
from literate_rl.runs.runs import stored_runs

assert apart < 1e-11, "the same, but for rounding"
ends, unit = torch.linspace(-10, 10, 51, dtype=double), torch.ones(1, dtype=double)
top = torch.zeros(1, 51, dtype=double)
top[0, -1] = 1.0  # the largest value there is
highest = project_distribution(top, unit, 0.99 * unit, -10.0, 10.0)[0] @ ends
assert abs(highest - 10) < 1e-9, "the support bounds every target"
both = stored_runs("rainbow_ablation")
plain, whole = both["without distributions"], both["all six parts"]
assert len(plain.final) == len(whole.final) == 5
for gap in (
    paired_difference(plain.area, whole.area),
    paired_difference(plain.final, whole.final),
):
    assert gap.low < 0 < gap.high, "no difference"

# %% [markdown]
# ## Summary
#
# - A distribution of returns obeys a Bellman equation: shrink it by the discount and shift it by
#   the reward.
# - Moved atoms are divided between their neighbours. This keeps the mass and, inside the support,
#   the mean.
# - The error is a KL divergence with the gradient $q - \hat q$. Its logarithms come from logits.
# - The agent still takes the action with the largest mean, and in a table that moves a share of the
#   way this mean is exactly the value that TD learns, inside the support.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A step terminated with reward 3.25, and the atoms are 0, 1, …, 10. What is its target?",
    ["all mass on 3", "three quarters on 3, one on 4", "it depends on the next state"],
    right="three quarters on 3, one on 4",
    because="With discount 0 every atom of the next state lands on 3.25, whatever its "
    "probability. The nearer atom gets more, 1 − 0.25, and the mean is 3.25.",
)

# %% tags=["claims"]
one = torch.ones(1, dtype=torch.float64)
ended = project_distribution(before, 3.25 * one, 0 * one, 0.0, 10.0)[0]
assert torch.allclose(ended[[3, 4]], torch.tensor([0.75, 0.25], dtype=torch.float64))

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function should project, but it has two mistakes. With one of them, pieces land in the
# wrong place or even beyond the last atom. With the other, mass disappears. Fix both.


# %%
def answer(prob, reward, discount, value_min, value_max):
    num_atoms = prob.shape[1]
    spacing = (value_max - value_min) / num_atoms
    atoms = torch.linspace(value_min, value_max, num_atoms, dtype=prob.dtype)
    value = (reward[:, None] + discount[:, None] * atoms).clamp(value_min, value_max)
    place = (value - value_min) / spacing
    lower, upper = place.floor().long(), place.ceil().long()
    result = torch.zeros_like(prob)
    result.scatter_add_(1, lower, prob * (upper - place))
    return result.scatter_add_(1, upper, prob * (place - lower))


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def targets(seed):
    """Return three random targets, one of them after a termination."""
    generator = torch.Generator().manual_seed(seed)
    prob = torch.rand(3, 6, generator=generator).softmax(-1)
    reward = torch.tensor([seed % 3, 0.5, 1.3])
    return prob, reward, torch.tensor([0.0, 0.9, 1.0]), -1.0, 4.0


grade(answer, project_distribution, *map(targets, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(prob, reward, discount, value_min, value_max):
    num_atoms = prob.shape[1]
    # Six atoms have five gaps.
    spacing = (value_max - value_min) / (num_atoms - 1)
    atoms = torch.linspace(value_min, value_max, num_atoms, dtype=prob.dtype)
    value = (reward[:, None] + discount[:, None] * atoms).clamp(value_min, value_max)
    place = (value - value_min) / spacing
    # The upper one is the next atom, even if the piece lies on an atom. The last atom
    # has no next one.
    lower = place.floor().long().clamp(max=num_atoms - 2)
    upper = lower + 1
    result = torch.zeros_like(prob)
    result.scatter_add_(1, lower, prob * (upper - place))
    return result.scatter_add_(1, upper, prob * (place - lower))


grade(answer, project_distribution, *map(targets, range(3)))

# %% [markdown]
# ## References
#
# Distributions of returns and C51 are from {cite:t}`bellemare2017`; {cite:t}`hessel2018` measured what
# they add to an agent.

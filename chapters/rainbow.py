# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Rainbow
#
# **DQN has six well-known improvements. How do they fit into one agent?** Five of them you know. After this
# chapter you can derive the last one, exploring with random weights, and put all six together. It takes about
# 25 minutes to read, without exercises. You need {doc}`replay`, {doc}`dqn` and {doc}`c51`. What each part is
# worth, and on which task, is the question of {doc}`rainbow_evidence`.

# %% tags=["export", "hide-input"]
"""Noisy layers: weights that are drawn, with means and deviations to learn."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from literate_rl.ground.signatures import Count, Float, NonNegative, checked

__all__ = ["NoisyLinear", "factorised_noise"]

# %% [markdown]
# ## Six parts on one drawing
#
# {cite:t}`hessel2018` put six improvements of DQN together and called the result **Rainbow**.

# %% tags=["hide-input"]
from literate_rl.book.pictures import AGENT_COLOURS, Picture

picture = Picture(
    "The six parts of Rainbow",
    "Environments send steps to a memory, which draws windows of n steps by priority. A "
    "network with noisy layers, a dueling head and distributions acts. It chooses the next "
    "action, and the target network evaluates it. The moved distribution is the target, "
    "the network's own is what has to come closer, and the error goes back to the memory "
    "as priority.",
)
world = picture.box(66, 40, "environments", width=128)
memory = picture.box(66, 200, "memory\n3 priorities\n4 n steps", width=128)
network = picture.box(
    334, 40, "network\n2 dueling\n5 distributions\n6 noisy layers", "accent", 150
)
older = picture.box(334, 200, "target network\nevaluates", width=150)
error = picture.box(210, 320, "error of distributions", width=190)
picture.arrow(world.at(0.5, 1), memory.at(0.5, 0), "steps", side=-1)
picture.arrow(network.at(0, 0.3), world.at(1, 0.4), "actions", side=1)
picture.arrow(memory.at(1, 0.1), network.at(0, 0.9), "states", side=1)
picture.arrow(memory.at(1, 0.6), older.at(0, 0.6), "next states", side=-1)
picture.arrow(network.at(0.5, 1), older.at(0.5, 0), "1 double:\nnext action", side=-1)
picture.arrow(older.at(0.4, 1), error.at(0.8, 0), "target", side=-1)
picture.arrow(network.at(1, 0.7), error.at(1, 0.5), "", bend=76)
picture.text(372, 342, "prediction", "")
picture.arrow(error.at(0, 0.5), memory.at(0.5, 1), "priorities", side=1)
picture

# %% [markdown]
# **Notice** that each number stands in one place only: two parts change the memory, three the
# network, and one how the target is made. The table has the same numbers.
#
# | no. | part | what it changes | where |
# |---|---|---|---|
# | 1 | double DQN | which network chooses the next action | {doc}`dqn` |
# | 2 | dueling network | value and advantages are separate | {doc}`dqn` |
# | 3 | priorities | which steps are drawn | {doc}`replay` |
# | 4 | $n$ steps | how far a target looks | {doc}`replay` |
# | 5 | distributions | what is learned | {doc}`c51` |
# | 6 | noisy layers | how to explore | below |
#
# They are nearly independent, and each can be switched off.

# %% [markdown]
# ## Rainbow on one page
#
# Here is the whole agent, for any environment with vectors as observations and a list of actions. Five
# of its parts come from earlier chapters: the buffer makes windows and draws them by priority,
# `project_distribution` and `categorical_error` are those of {doc}`c51`, and dueling and double DQN are
# a line each. New are the random weights in `logits`; {eq}`noisy-layer` says why two ordinary layers
# are enough for them. The page trains it for 3,000 steps;
# `literate-rl copy rainbow > my_rainbow.py` trains for 30,000. For another task set `low` and `high`.

# %% tags=["program"] total_steps=30000
import copy

import torch
from torch import nn

from literate_rl.data.agents import Collector, make_envs
from literate_rl.maths.c51 import categorical_error, project_distribution
from literate_rl.data.replay import ReplayBuffer

torch.set_num_threads(1)  # the network is too small to be shared out

env_id, seed, total_steps = "CartPole-v1", 1, 3_000
num_envs, first_update, batch_size, hidden, sigma = 4, 1000, 128, 128, 0.1
gamma, n, tau, learning_rate, exponent = 0.99, 20, 0.02, 1e-3, 0.5
low, high, num_atoms = 0.0, 100.0, 51  # every discounted return lies in between


def draw_noise(rows):
    """Draw a number for each input and output of both noisy layers."""
    normal = torch.randn(rows, sum(sizes), generator=generator)
    return normal.sign() * normal.abs().sqrt()


def logits(network, obs, noise):
    """Return the logits of a distribution for each action, (B, actions, atoms)."""
    first, mean, deviation, last_mean, last_deviation = network
    into, out, last_into, last_out = noise.split(sizes, -1)
    x = first(obs).relu()
    # Random weights: means, plus deviations times noise. Both are learned.
    x = (mean(x) + out * deviation(into * x)).relu()
    x = last_mean(x) + last_out * last_deviation(last_into * x)
    # Dueling, atom by atom: one row for the state, one more for each action.
    value, advantage = x.unflatten(-1, (-1, num_atoms)).split([1, actions], 1)
    return value + advantage - advantage.mean(1, keepdim=True)


def act(obs):
    """Take the action of the largest mean with random weights; at first any action."""
    best = (logits(network, obs, draw_noise(len(obs))).softmax(-1) @ atoms).argmax(-1)
    anything = torch.randint(actions, (len(obs),), generator=generator)
    explore = torch.rand(len(obs), generator=generator) < 1 - collector.step / 2000
    return torch.where(explore, anything, best)


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
seen, actions = envs.single_observation_space, int(envs.single_action_space.n)
outputs = (1 + actions) * num_atoms
sizes, atoms = [hidden, hidden, hidden, outputs], torch.linspace(low, high, num_atoms)
shapes = [(seen.shape[0], hidden), *2 * [(hidden, hidden)], *2 * [(hidden, outputs)]]
network = nn.ModuleList([nn.Linear(*shape) for shape in shapes])
for parameter in [*network[2].parameters(), *network[4].parameters()]:
    nn.init.constant_(parameter, sigma / hidden**0.5)  # the deviations
older, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters())
collector, buffer, episodes = Collector(envs), ReplayBuffer(100_000, exponent), []
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1
while collector.step < total_steps:
    progress = collector.step / total_steps
    optimizer.param_groups[0]["lr"] = learning_rate * (1 - progress)
    # 1. Act once in each environment. Everything is remembered.
    steps = collector.collect(act, 1)
    buffer.push(steps)
    returns = steps.episode_return[steps.terminated | steps.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]
    for _ in range(num_envs // 2 if collector.step > first_update else 0):
        # 2. Windows of n steps, by priority. Each pass has a noise of its own.
        batch = buffer.sample(batch_size, generator, n, gamma, 0.4 + 0.6 * progress)
        rows, (own, choosing, evaluating) = torch.arange(batch_size), draw_noise(3)
        # 3. The network chooses the next action, its older copy says which returns may
        # follow. They are moved by the rewards and projected onto the atoms.
        with torch.no_grad():
            mean = logits(network, batch.next_obs, choosing).softmax(-1) @ atoms
            following = logits(older, batch.next_obs, evaluating).softmax(-1)
            prob = following[rows, mean.argmax(-1)]
            target = project_distribution(prob, batch.reward, batch.discount, low, high)
        # 4. One step towards the targets. The errors are the new priorities.
        taken = logits(network, batch.obs, own)[rows, batch.action]
        error = categorical_error(taken.log_softmax(-1), target)
        optimizer.zero_grad()
        (batch.weight * error).mean().backward()
        optimizer.step()
        buffer.update(batch.place, error.detach())
        # 5. The older copy follows slowly.
        with torch.no_grad():
            for old, new in zip(older.parameters(), network.parameters(), strict=True):
                old.lerp_(new, tau)
    if collector.step % (total_steps // 10) < num_envs:
        mean = sum(x for _, x in episodes[-20:]) / max(1, len(episodes[-20:]))
        print(f"step {collector.step:6d}: mean return of 20 episodes {mean:5.1f}")

# %% [markdown]
# **Notice** that `act` draws new weights for each state and takes the best action: that is all its
# exploration, once the random actions of the first 2,000 steps are over. The other five parts are in
# steps 2 to 4: windows of $n$ steps, priorities, a next action that one network chooses and another
# evaluates, and distributions from dueling logits.

# %% tags=["claims"]
import numpy as np

lengths = [length for _, length in episodes]
assert np.mean(lengths[-10:]) > 2 * np.mean(lengths[:10]), "it learns"

# %% [markdown]
# The same program after all of its 30,000 steps, with ten seeds:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Ten thin curves and their mean over 30,000 steps of CartPole. They rise from 20, at different times. Nine end above 440, one near 150"}}
import matplotlib.pyplot as plt

from literate_rl.runs.runs import stored_runs

ten = stored_runs("program_rainbow")["rainbow"]
fig, axis = plt.subplots(figsize=(4.6, 2.6))
colour = AGENT_COLOURS["Rainbow"]
axis.plot(ten.steps, ten.curves.T, color=colour, alpha=0.4, linewidth=0.8)
axis.plot(ten.steps, ten.curves.mean(0), color=colour, linewidth=2)
axis.set(xlabel="steps", ylabel="return while training", ylim=(0, 510))
fig.tight_layout()

# %% [markdown]
# **Notice** that the runs get to the top at different times. Eight of ten end above 475, one nearly does,
# and one settles near 150.

# %% tags=["claims"]
assert len(ten.final) == 10
assert (ten.final > 475).sum() == 8, "eight of ten"
assert round(ten.final.min(), -1) == 150, "one settles near 150"
assert sorted(ten.final)[1] > 440, "one nearly does"

# %% [markdown]
# ## Layers with noise
#
# DQN explores with random actions: now and then any action, whether the state matters or not.
# **Noisy layers** {cite:p}`fortunato2018` make the *weights* random and learn how random. Each
# weight has a mean and a standard deviation, and is drawn again and again:
#
# $$
# W = \bar W + \sigma^W \odot \eta^W , \qquad b = \bar b + \sigma^b \odot \eta^b .
# $$ (noisy-weights)
#
# Here $\odot$ multiplies element by element, and $\eta$ is noise with mean 0. In states where the
# noise changes which action has the largest value, the network explores. In states where it does
# not, the network is greedy. Means and deviations are trained by the same loss.
#
# A layer with $n_{\text{in}}$ inputs and $n_{\text{out}}$ outputs would need $n_{\text{in}}
# n_{\text{out}}$ random numbers for its weights in each draw. **Factorised** noise needs only
# $n_{\text{in}} + n_{\text{out}}$, one $\phi^{\text{in}}_j$ for each input $j$ and one
# $\phi^{\text{out}}_i$ for each output $i$, and multiplies them. Each is the signed root of a
# normal number $\zeta$, which keeps very large products rare:
#
# $$
# \eta^W_{ij} = \phi^{\text{out}}_i \, \phi^{\text{in}}_j , \qquad
# \eta^b_i = \phi^{\text{out}}_i , \qquad
# \phi = \operatorname{sgn}(\zeta) \sqrt{|\zeta|} , \quad \zeta \sim \mathcal N(0, 1) .
# $$ (factorised-noise)
#
# Factorised noise is good for one more thing. The factor of the output can be taken out of the sum
# over inputs:
#
# $$
# W x + b = \bar W x + \bar b
#     + \phi^{\text{out}} \odot \bigl( \sigma^W (\phi^{\text{in}} \odot x) + \sigma^b \bigr) .
# $$ (noisy-layer)
#
# The right-hand side never makes a random matrix. So each row of a batch can have noise of its
# own, at the price of a second matrix product. Most implementations store the noise in the layer. Here
# it is an *argument*, as for all policies of this book ({doc}`policies`): the same noise gives the same
# action, and there is nothing to store in a checkpoint.
#
# At the start the means are drawn uniformly, and all deviations are equal,
#
# $$
# \bar W, \bar b \sim \mathcal U\Bigl( -\frac{1}{\sqrt{n_{\text{in}}}},
#     \frac{1}{\sqrt{n_{\text{in}}}} \Bigr) ,
# \qquad \sigma^W = \sigma^b = \frac{\sigma_0}{\sqrt{n_{\text{in}}}} .
# $$ (noisy-start)


# %% tags=["export"]
@checked
def factorised_noise(
    num_steps: Count, num_rows: Count, size: Count, generator: torch.Generator
) -> Tensor:
    """Draw the noise of noisy layers, on the CPU."""
    normal = torch.randn(num_steps, num_rows, size, generator=generator)
    # The signed roots of {eq}`factorised-noise`.
    return normal.sign() * normal.abs().sqrt()


class NoisyLinear(nn.Module):
    """A linear layer whose weights are random, with deviations that are learned.

    The noise is an argument; the layer does not store any.

    Source: Fortunato et al. 2018, section 3, factorised noise.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        sigma: The deviations at the start, times the root of ``inputs``.
    """

    @checked
    def __init__(self, inputs: Count, outputs: Count, sigma: NonNegative = 0.5) -> None:
        super().__init__()
        self.sizes = [inputs, outputs]
        # The means: PyTorch initialises a linear layer as {eq}`noisy-start` says.
        self.mean = nn.Linear(inputs, outputs)
        # The deviations are a layer too; all start with the same number.
        self.deviation = nn.Linear(inputs, outputs)
        for parameter in self.deviation.parameters():
            nn.init.constant_(parameter, sigma / math.sqrt(inputs))

    @checked
    def forward(
        self,
        x: Float[Tensor, "*B inputs"],
        noise: Float[Tensor, "*B size"] | Float[Tensor, "size"] | float,
    ) -> Float[Tensor, "*B outputs"]:
        """Return the outputs of inputs, with one noise for all or one for each row.

        With a number instead, always 0.0, the weights are their means.
        """
        if not isinstance(noise, Tensor):
            return linear(x, self.mean.weight, self.mean.bias)
        into, out = noise.split(self.sizes, -1)
        # One noise for all rows: the random weights and biases of {eq}`noisy-weights`.
        if noise.dim() == 1:
            factor = torch.outer(out, into)
            weight = torch.addcmul(self.mean.weight, self.deviation.weight, factor)
            bias = torch.addcmul(self.mean.bias, self.deviation.bias, out)
            return linear(x, weight, bias)
        # One for each row: the factor is taken out of the sum, {eq}`noisy-layer`.
        return torch.addcmul(self.mean(x), out, self.deviation(into * x))


# %% [markdown]
# ## Dueling in the logits
#
# Distributions are the only part that changes others. Double DQN now takes the action with the largest
# mean, and dueling happens in the logits, atom by atom. If $z^V_k$ are the logits of the state and
# $z^A_{a,k}$ those of the actions,
#
# $$
# z_{a,k} = z^V_k + z^A_{a,k} - \frac1N \sum_{a'} z^A_{a',k} .
# $$ (dueling-logits)

# %% [markdown]
# An untrained network may explore too little with noisy layers alone: with $\sigma_0 = 0.1$ they change the
# action in one state of twenty-five. So our settings begin with random actions and end them after 2000
# steps. The layers may keep one noise for several steps, which can decide whether an agent explores at all
# ({doc}`rainbow_evidence`).

# %% tags=["claims"]
from gymnasium import spaces
from literate_rl.learners.rainbow import make_rainbow_policy

changed = []
for seed in range(10):
    torch.manual_seed(seed)
    box = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
    policy, states = make_rainbow_policy(*box, sigma=0.1), torch.randn(500, 4)
    noise = policy.noise(1, 500, torch.Generator().manual_seed(seed))[0]
    with torch.no_grad():
        changed.append(policy.act(states, noise) != policy.act(states, 0.0))
assert 0.03 < torch.cat(changed).double().mean() < 0.05, "one in twenty-five"

# %% [markdown]
# ## The error of a batch
#
# Here is what the program does in its learning step, as formulas. Take a window with reward $r$, discount
# $\gamma'$ and next state $s'$, the network in training $\theta$ and the older one $\bar\theta$. With the
# error $\mathcal L$ of {eq}`categorical-error`,
#
# $$
# \begin{aligned}
# a^* &= \operatorname*{argmax}_a Q_\theta(s', a) , \\
# \hat q &= \text{projection of } q_{\bar\theta}(s', a^*) \text{ moved by } r, \gamma' , \\
# \text{error} &= \mathcal L\bigl( \hat q,\, q_\theta(s, a) \bigr) .
# \end{aligned}
# $$ (rainbow-target)
#
# There are three passes through noisy layers. Each has one noise for all rows of the batch, which saves
# `NoisyLinear` the second matrix product, but no two passes share theirs. If choosing and evaluating shared
# one noise, an action that the noise favours would be chosen *and* overrated ({doc}`/docs/errata`).

# %% [markdown]
# In the package this is `DistributionalQLearning` of {doc}`learners/rainbow`. Its atoms reach from 0
# to 100, because CartPole pays 1 at each step, which with $\gamma = 0.99$ adds up to $1 / (1 - \gamma) = 100$
# at most. For another task set `value_min` and `value_max` to the worst and the best return: what lies
# beyond an end counts as the atom there. With rewards of −1, as in Acrobot and MountainCar, all values would
# be 0.

# %% tags=["claims"]
from literate_rl.maths.c51 import project_distribution

alike = torch.full((1, 51), 1 / 51)
found = project_distribution(alike, -torch.ones(1), torch.zeros(1), 0.0, 100.0)
assert found[0, 0] == 1.0, "a return of -1 is counted as 0"

# %% [markdown]
# ## When to use it
#
# Rainbow needs fewer steps than DQN, and more computation for each. On CartPole the runs of the package's
# Rainbow first touch 475 after 7,200 steps (the median of ten), those of DQN after 16,000; but 30,000 steps
# take it as much processor time as DQN needs for 50,000, and ten seeds do not show better last policies.
# Where rewards are rare, two of its parts are enough to begin with: ten steps and a noise that lasts
# (`hold=20`, $\sigma_0 = 0.5$) bring DQN to the flag of MountainCar.
#
# - **Use it for**: actions that can be listed, steps that are expensive
# - **Rather than**: {doc}`dqn`, which is simpler and takes six tenths of the time for each step
# - **Costs**: about 7,200 steps until CartPole first reaches 475; 30,000 steps take 36 CPU seconds
# - **First settings**: `num_steps=20` (the $n$ of a target), `batch_size=128, train_interval=2`, and atoms around all discounted returns (`value_min=0.0, value_max=100.0` for
#   rewards from 0 to 1 and γ = 0.99)
# - **Decided by**: one part at a time, and a noise that lasts, in {doc}`rainbow_evidence`

# %% tags=["claims"]
from literate_rl.learners.rainbow import rainbow_settings
from literate_rl.runs.evaluation import paired_difference


def first_at_475(runs):
    """Return the median of the steps at which runs first reach 475."""
    there = runs.curves >= 475
    return np.median(np.where(there.any(1), runs.steps[there.argmax(1)], np.inf))


(runs,), settings = (
    stored_runs("rainbow_cartpole").values(),
    rainbow_settings("CartPole-v1"),
)
dqn = stored_runs("dqn_cartpole")["DQN"]
assert (first_at_475(runs), first_at_475(dqn)) == (7_200, 16_000)
assert (len(runs.final), len(dqn.final)) == (10, 10)
better = paired_difference(runs.final, dqn.final)
assert better.low < 0 < better.high, "not shown by ten seeds"
assert settings.num_steps == 20
assert (settings.train_interval, settings.batch_size) == (2, 128), "these ten runs"
assert (settings.value_min, settings.value_max, settings.gamma) == (0.0, 100.0, 0.99)
car = stored_runs("rainbow_mountaincar")
assert car["n = 10, noisy for 20 steps"].final.min() > -200, "to the flag"
assert np.median(car["DQN"].final) == np.median(car["n = 10"].final) == -200
seconds, theirs = np.median(runs.cpu_seconds), np.median(dqn.cpu_seconds)
assert round(seconds) == 36
assert 0.95 < seconds / theirs < 1.05, "as much"
assert round(theirs / 50_000 / (seconds / 30_000), 1) == 0.6, "six tenths for each step"

# %% [markdown]
# ## Summary
#
# - Rainbow is DQN with six switches. What each is worth is the question of {doc}`rainbow_evidence`.
# - Noisy layers learn where to explore. Their noise is an argument.
# - If noise is factorised, each row of a batch can cheaply have its own.
# - With distributions, dueling happens in the logits, and the best action has the largest mean.
# - Choosing, evaluating and learning draw noises of their own, or the chosen action is overrated.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "A batch of 64 rows goes through a noisy layer with 128 inputs and 128 outputs. Each row has "
    "noise of its own, and it is factorised. How many random numbers is that?",
    ["256", "16,384", "1,056,768"],
    right="16,384",
    because="A row needs one number for each input and one for each output, 256, and there are 64 "
    "rows. One number for each weight and bias of each row would be 1,056,768.",
)

# %% tags=["claims"]
assert NoisyLinear(128, 128).sizes == [128, 128]
assert factorised_noise(1, 64, sum([128, 128]), generator).numel() == 16_384
assert 64 * (128 * 128 + 128) == 1_056_768

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function should compute a noisy layer for a batch, where each row has its own noise: `into`
# holds the factors of the inputs, `out` those of the outputs. It runs, and it explores. Still it
# is not the layer of {eq}`noisy-weights` and {eq}`factorised-noise`. Fix it.


# %%
def answer(x, into, out, weight, bias, weight_deviation, bias_deviation):
    noisy = (into * x) @ weight_deviation.T
    return x @ weight.T + bias + out * noisy + bias_deviation


# %% tags=["hide-input"]
from dataclasses import replace

from literate_rl.book.exercises import grade
from literate_rl.apps.training import make_learner


def noisy_batch(seed):
    """Return inputs, the factors of their noise, and the weights of a layer."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (4, 5), (4, 5), (4, 3), (3, 5), (3,), (3, 5), (3,)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def row_by_row(x, into, out, weight, bias, weight_deviation, bias_deviation):
    """Return the outputs, with the random weights and biases of each row written out."""
    rows = []
    for row in range(len(x)):
        factor = torch.outer(out[row], into[row])
        drawn = weight + weight_deviation * factor
        rows.append(drawn @ x[row] + bias + bias_deviation * out[row])
    return torch.stack(rows)


grade(answer, row_by_row, *map(noisy_batch, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(x, into, out, weight, bias, weight_deviation, bias_deviation):
    # The bias has noise too: the factor of its output. Without it the deviation is
    # always added in full, and the bias is only shifted.
    noisy = (into * x) @ weight_deviation.T + bias_deviation
    return x @ weight.T + bias + out * noisy


grade(answer, row_by_row, *map(noisy_batch, range(3)))

# %% [markdown]
# ### Exercise 3: train
#
# Where must the atoms be? `train(low, high, seed)` trains Rainbow ({doc}`apps/training`) on CartPole for 3,000 steps, in some
# six seconds, with atoms from `low` to `high`, and returns the mean return of the last 1,000. Guess
# first: with which of these can it learn nothing: (0, 100), (0, 1000), (0, 20) and (−100, 0)? Then train.


# %%
def train(low, high, seed=1):
    """Return the mean return from step 2,000 to step 3,000."""
    bounds = {"value_min": float(low), "value_max": float(high)}
    config = replace(rainbow_settings("CartPole-v1"), seed=seed, **bounds)
    learner = make_learner("rainbow", "CartPole-v1", config, {})
    return [learner.iterate()["charts/episodic_return"] for _ in range(3)][-1]


def answer():
    """Return a list of pairs."""
    return ...


# %% tags=["hide-input"]
grade(answer, lambda: [(-100, 0)], ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # Every return is positive, so a window that ends in a fall is clipped to 0, the best
    # that these atoms can say. The others lie below 0 as long as the network's guesses
    # do, and can only drift up to it: a fall never looks worse than no fall. With the
    # other three it does.
    return [(-100, 0)]


grade(answer, lambda: [(-100, 0)], ())

# %% tags=["claims"]
equal = torch.full((1, 51), 1 / 51, dtype=torch.float64)
window = torch.tensor([[sum(0.99**i for i in range(20))], [0.99**20]])  # no fall
fall = torch.tensor([[5.0], [0.0]])


def worth(low, high):
    """Return what a window without a fall and one that ends in a fall are worth."""
    atoms = torch.linspace(low, high, 51, dtype=torch.float64)
    targets = (
        project_distribution(equal, *steps.double(), float(low), float(high))
        for steps in (window, fall)
    )
    return [(target[0] @ atoms).item() for target in targets]


goes_on, ends = worth(-100, 0)
assert goes_on < -20, "a window without a fall lies below 0"
assert ends == 0, "one that ends in a fall is clipped to 0"
for high in (100, 1000, 20):
    goes_on, ends = worth(0, high)
    assert goes_on > ends + 5, "with the others a fall looks worse"

# %% [markdown]
# ## References
#
# Noisy layers: {cite:t}`fortunato2018`. All six parts: {cite:t}`hessel2018`, and once more on
# small tasks {cite:t}`obando2021`.

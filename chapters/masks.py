# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Legal actions
#
# **What may an agent do when not everything is allowed?** In a board game most moves are illegal, and a
# taxi cannot drive through a wall. An environment that
# knows what is legal can say so, with a **mask**. After this chapter you can train agents with one, say what it does to
# probabilities, gradients and values, and find out what goes wrong when it is used only while acting.
#
# It takes about 20 minutes. You need {doc}`policies`, and {doc}`dqn` for the part about values.

# %% tags=["export", "hide-input"]
"""Legal actions: rows in which what is not allowed has no chance."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import Bool, Float, check_that, checked

__all__ = ["legal"]

# %% [markdown]
# ## What a mask does
#
# A network gives four actions their logits, and *jump* is illegal in this state. Without a mask the
# agent may take it. With one it cannot. The mask may be there only while
# the agent *acts*, or wherever the policy's probabilities are used, in learning too.
#
# The first picture shows how often each action is taken, the second along which gradient learning moves the logits
# after the agent has gone *left*, and it went well. Move the logit of *jump*, and change where the mask is used.

# %% tags=["hide-input"]
import torch

from literate_rl.nets.masking import legal  # built below
from literate_rl.book.pictures import Axis, Mark, dial, plot

torch.set_num_threads(1)  # the networks of this book are too small to be shared out
names = {0: "left", 1: "right", 2: "jump", 3: "wait"}
allowed = torch.tensor([True, True, False, True])
uses = ["never", "while acting", "always"]
logits_of_jump = [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]


def acting_and_learning(use, logit_of_jump):
    """Return probabilities of what is taken, and the gradient of log π(left)."""
    row = torch.tensor([1.0, 0.0, logit_of_jump, 0.5], requires_grad=True)
    masked = legal(row, allowed)
    taken = (row if use == "never" else masked).softmax(-1).detach()
    learned = masked if use == "always" else row
    (gradient,) = torch.autograd.grad(learned.log_softmax(-1)[0], row)
    return taken, gradient


def shown(use, logit_of_jump):
    taken, gradient = acting_and_learning(use, logit_of_jump)
    panels = (
        ("What is taken", "probability", (0, 0.5, 1), taken, "accent"),
        (
            "What left teaches",
            "derivative of log π(left)",
            (-1, 0, 1),
            gradient,
            "second",
        ),
    )
    pictures = [
        plot(
            title,
            f"Bars: {unit}, for each of four actions.",
            Axis("", -0.6, 3.6, ticks=names),
            Axis(unit, ticks[0], ticks[-1], ticks),
            Mark("bars", list(names), heights.tolist(), tone),
            width=320,
        )
        for title, unit, ticks, heights, tone in panels
    ]
    lines = [
        f"{words}: " + ", ".join(f"{name} {x[k]:.2f}" for k, name in names.items())
        for words, x in (("taken", taken), ("gradient", gradient))
    ]
    return pictures, "\n".join(lines)


sliders = {"the mask is used": uses, "logit of jump": logits_of_jump}
dial("Where a mask is used", shown, sliders, start=("never", 1.0))

# %% [markdown]
# **Notice** that with the mask always there *jump* has no probability and no derivative, and
# its logit changes nothing at all. With the mask only while acting,
# the first picture is the same, but the second is that of an agent without a mask. It computes all its steps from
# probabilities by which it does not act.

# %% tags=["claims"]
for logit in logits_of_jump:
    never, acting, always = (acting_and_learning(use, logit) for use in uses)
    assert always[0][2] == always[1][2] == 0, "no probability and no derivative"
    first = acting_and_learning("always", logits_of_jump[0])
    assert all(map(torch.equal, always, first)), "its logit changes nothing"
    assert torch.equal(acting[0], always[0]), "the first picture is the same"
    assert torch.equal(acting[1], never[1]), "the gradient of an agent without a mask"
    assert acting[1][0] > always[1][0], "from other probabilities"

# %% [markdown]
# ## A softmax of what is left
#
# Let $m_j$ be 1 if action $j$ is legal and 0 if not. The policy under the mask is
#
# $$
# \pi_m(a) = \frac{m_a \, e^{z_a}}{\sum_j m_j \, e^{z_j}} ,
# $$ (masked-softmax)
#
# and the derivative of the log-probability of a legal action is
#
# $$
# \frac{\partial \log \pi_m(a)}{\partial z_j} = m_j \bigl( \mathbb 1[a = j] - \pi_m(j) \bigr) .
# $$ (masked-gradient)
#
# The mask is a fixed function of the state, so $\pi_m$ is a policy like
# any other, and the policy gradient ({doc}`policy_gradient`) is right
# for it {cite:p}`huang2022masking`, if only *everything* uses
# $\pi_m$: acting, log-probabilities, entropy and the divergence between policies.
#
# One function is enough. It replaces the logits of illegal actions by the lowest number there is.
# Softmax makes exactly 0 of it.


# %% tags=["export"]
@checked
def legal(
    row: Float[Tensor, "*B N"], mask: Bool[Tensor, "*B N"]
) -> Float[Tensor, "*B N"]:
    """Return logits or values in which illegal actions have the lowest number there is.

    All of this package says it so: a mask holds True for what is legal, and in a row
    the lowest number of its dtype stands for what is not. In logits of your own minus
    infinity means the same. The table of a hybrid action is no such mask: it says which
    type uses which argument.

    Args:
        row: A number for each action; the larger, the likelier it is taken.
        mask: Which actions are legal, one of them or more.

    Source: Huang and Ontañón 2022, section 3.
    """
    some = mask.any(-1).all()
    check_that(some, "mask must leave a legal action, got a row without one")
    # A softmax of this is {eq}`masked-softmax`. No gradient comes to what is replaced,
    # {eq}`masked-gradient`. Minus infinity would be lower still, but the entropy
    # multiplies it by zero, and that is not a number.
    return row.masked_fill(~mask.to(row.device), torch.finfo(row.dtype).min)


# %% [markdown]
# The action distributions of {doc}`policies` and `EpsilonGreedy` of {doc}`learners/dqn` have a
# method `legal(row, mask)`, which calls it. Random actions are legal too: no noise of the race or of
# ε-greedy is large enough to lift an illegal action.
#
# ## Where masks come from
#
# Gymnasium's Taxi {cite:p}`dietterich2000` brings a passenger to a destination. Four actions drive,
# two load and unload. With each observation it says in `infos["action_mask"]` what is legal there: what would change
# something and is not fined. Our `Collector` ({doc}`agents`) hands the
# mask to the policy as `mask=` and stores it beside its observation. At the end of an episode `step`
# returns the mask of the *next* episode's first state; that of the last state lies in
# `infos["final_info"]`. Here is a Taxi whose episodes are cut off after three steps:

# %%
from functools import partial

import gymnasium as gym

from literate_rl.data.agents import Collector, make_envs
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import flat_env

moves = ["south", "north", "east", "west", "load", "unload"]
envs = make_envs(partial(flat_env, "Taxi-v4", max_episode_steps=3))
spaces_of_taxi = envs.single_observation_space, envs.single_action_space
torch.manual_seed(1)
policy = make_policy(*spaces_of_taxi)
collector = Collector(envs, policy.to_env)
collector.reset(seed=3)
batch = collector.collect(lambda obs, mask: policy.act(obs.float(), 0.0, mask=mask), 6)


def words(mask):
    """Return the names of legal actions."""
    return " ".join(moves[k] for k in mask.nonzero()[:, 0])


print(" t  cut off  taken   legal here                legal where it led")
for t in range(6):
    cut, taken = batch.truncated[t, 0].item(), moves[batch.action[t, 0]]
    here, there = words(batch.mask[t, 0]), words(batch.next_mask[t, 0])
    print(f"{t:2d}  {cut!s:7s}  {taken:6s}  {here:24s}  {there}")

# %% [markdown]
# **Notice** that the last column reappears in the next line, but not after the cut at $t = 2$: there a
# new episode begins. The last column is for a **bootstrap** that chooses. The target of Q-learning
# takes the best action of the next state, which has to be a legal one:
#
# $$
# y_t = r_t + \gamma \max_{a :\, m_a(s'_t) = 1} Q(s'_t, a) .
# $$ (masked-bootstrap)
#
# This holds where the episode goes on; after a termination $y_t = r_t$, and the mask of the last state may
# be empty. A state in which the agent has to act must have a legal action.

# %% tags=["claims"]
follows = [torch.equal(batch.next_mask[t, 0], batch.mask[t + 1, 0]) for t in range(5)]
assert follows == [True, True, False, True, True], "not after the cut"
assert batch.truncated[2, 0], "after three steps"
assert batch.mask.gather(-1, batch.action.unsqueeze(-1)).all(), "only legal ones"

# %% [markdown]
# ## See it learn
#
# In Taxi a step costs 1, and bringing the passenger to his destination pays 20. To load or unload where
# no passenger can get on or off costs 10. Two agents learn with PPO ({doc}`ppo`) and the same
# settings. One sees the masks. From the other the wrapper `WithoutMask` hides them.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Mean return of a rollout over 60,000 steps. With masks it rises from below minus 100 to above 0. Without masks it rises to minus 200, the cost of 200 steps, and stays there"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.data.agents import seed_everything
from literate_rl.nets.masks import WithoutMask
from literate_rl.learners.ppo import PPO, PPOConfig


def taxi(**options):
    return gym.make("Taxi-v4", **options)


def taxi_without(**options):
    return WithoutMask(taxi(**options))


config = PPOConfig(
    total_steps=60_000, num_envs=16, num_steps=64, learning_rate=3e-3, gamma=0.95,
    scale_reward=True,
)  # fmt: skip
curves = {}
figure, axis = plt.subplots(figsize=(7, 3))
for name, make in {"with masks": taxi, "without": taxi_without}.items():
    seed_everything(1)
    envs = make_envs(partial(flat_env, make), config.num_envs)
    learner = PPO(make_policy(*spaces_of_taxi), envs, config)
    rows = []
    while learner.step < config.total_steps:
        rows.append((learner.iterate()["charts/episodic_return"], learner.step))
    # The mean of the last ten rollouts in which an episode ended.
    ended = np.array([row for row in rows if row[0] == row[0]])
    smooth = np.convolve(ended[:, 0], np.ones(10) / 10, "valid")
    axis.plot(ended[9:, 1], smooth, label=name)
    curves[name] = smooth
axis.set(xlabel="steps", ylabel="mean return")
axis.legend()
plt.show()
# What the agent without masks, trained last, does where a passenger waits beside it.
mask_of = taxi().unwrapped.action_mask
waits = [state for state in range(500) if mask_of(state)[4]]
with torch.no_grad():
    loads = learner.policy(torch.eye(500)[waits]).softmax(-1)[:, 4]
print(f"without masks, {len(waits)} states: it loads with {loads.max():.2%} at most")

# %% [markdown]
# **Notice** where the agent without masks ends: at −200, the cost of 200 steps. It has learned to be fined
# no more, and the price is that it loads nowhere, not even where a passenger waits.
# {cite:t}`zabounidis2026` explain it by shared features, which carry the lesson of a fine to other places.

# %% tags=["claims"]
first, last = curves["with masks"][[0, -1]]
assert last > max(first, curves["without"][-1]) + 50, "with masks it learns"
assert len(waits) == 16
assert loads.max() < 0.01, "it loads nowhere"

# %% [markdown]
# ## Traps
#
# ### Trap: a mask while acting only
#
# It is tempting to mask where the actions are drawn and to leave the loss as it is. Nothing fails, and often something
# is learned. But two things are wrong.
#
# **The gradient has a bias.** Let $p_{\text{legal}} = \sum_j m_j \, \pi(j)$ be what the unmasked policy gives to all
# legal actions together. Then $\pi_m = \pi / p_{\text{legal}}$ for these. With advantages $\hat A(a)$, ascent on $\log \pi$ goes along
#
# $$
# \mathbb E_{a \sim \pi_m} \bigl[ \hat A(a) \, \nabla \log \pi(a) \bigr]
# = \mathbb E_{a \sim \pi_m} \bigl[ \hat A(a) \, \nabla \log \pi_m(a) \bigr]
# + \mathbb E_{a \sim \pi_m} [\hat A(a)] \, \nabla \log p_{\text{legal}} ,
# $$ (def-masked-bias)
#
# of which only the first part is the gradient of the return. The second part vanishes where the mean
# advantage of the state is zero, that is with a perfect baseline.
#
# **The entropy counts what cannot happen.** Its bonus pays for probability on illegal actions.

# %%
logits = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)  # the third is illegal
legal_ones, reward = torch.tensor([True, True, False]), torch.tensor([1.0, 2.0, 0.0])
policies = {
    "masked": legal(logits, legal_ones).log_softmax(-1),
    "while acting": logits.log_softmax(-1),
}
prob = policies["masked"].exp().detach()
share = logits.softmax(-1)[legal_ones].sum().log()
bias = torch.autograd.grad(share, logits, retain_graph=True)[0]
gradient, entropy = {}, {}
for name, log_prob in policies.items():
    for baseline in (0.0, (prob * reward).sum()):
        loss = (prob * (reward - baseline) * log_prob).sum()
        found = torch.autograd.grad(loss, logits, retain_graph=True)[0]
        gradient[name, bool(baseline)] = found
        told = "with a baseline" if baseline else "without one"
        print(f"{name:13s} {told:15s}", " ".join(f"{x:6.3f}" for x in found))
    entropy[name] = -(log_prob.exp() * log_prob.clamp(min=-1e4)).sum().item()
    print(f"{name:13s} entropy {entropy[name]:.3f}")

# %% tags=["claims"]
extra = gradient["while acting", False] - gradient["masked", False]
torch.testing.assert_close(extra, (prob * reward).sum() * bias)
assert extra.abs().max() > 0.5, "the bias is no small one"
torch.testing.assert_close(gradient["while acting", True], gradient["masked", True])
assert entropy["while acting"] > np.log(2) > entropy["masked"], "more than two can have"

# %% [markdown]
# **Notice** that without a baseline the two gradients differ, that with one they agree, and that the second
# entropy is more than two actions can have.
#
# Does it show? Here are the two agents of the picture above, and one that masks only while it acts, with ten
# seeds each, after 102,400 steps. The last policies played a hundred greedy episodes, with
# masks where they had been trained with them.

# %%
from literate_rl.runs.runs import stored_runs

runs = stored_runs("masks_taxi") | stored_runs("masks_taxi_without")
for name, found in runs.items():
    low, high = found.final.min(), found.final.max()
    print(f"{name:18s} {found.final.mean():6.1f}, seeds from {low:.1f} to {high:.1f}")

# %% [markdown]
# **Notice** that PPO, which subtracts a baseline, learns Taxi with a mask while acting only, and with ten
# seeds we see no difference from the right way. Two seeds of the right way end at 1 and 3; all others earn 6
# to 8. Without masks all ten agents end at −200.

# %% tags=["claims"]
from literate_rl.runs.evaluation import paired_difference

assert all(len(found.final) == 10 for found in runs.values()), "ten seeds each"
always, acting = runs["masks"].final, runs["masks while acting"].final
gap = paired_difference(always, acting)
assert gap.low < 0 < gap.high, "no difference"
assert acting.min() > 5, "it learns Taxi"
assert np.sort(always).round()[:2].tolist() == [1, 3], "two of ten"
assert np.sort(always)[2] > 6, "the others"
assert always.max() < 8, "the others"
assert (runs["no masks"].final == -200).all(), "all ten agents end at −200"

# %% [markdown]
# ### Trap: a value that is never corrected
#
# In off-policy learning a forgotten mask is worse. An action that is never taken is
# never in the memory, so its value stays where the first weights have put it, or drifts along with
# others. If it is the largest one, {eq}`masked-bootstrap` without its mask believes it. Here is a chain
# of two states. In each one action is legal; the first pays nothing, the second pays 1 and ends the
# episode. All values begin at 5.

# %%
from literate_rl.maths.dqn import q_target


def values_of_chain(minded):
    """Return Q after 200 sweeps over the legal actions of both states."""
    q, only = torch.full((2, 2), 5.0), torch.tensor([[True, False]])
    for _ in range(200):
        next_q = legal(q[1:], only) if minded else q[1:]
        after_first = q_target(torch.zeros(1), torch.tensor([0.9]), next_q)
        after_second = q_target(torch.ones(1), torch.zeros(1), next_q)
        aim = torch.cat([after_first, after_second])
        q[:, 0] += 0.5 * (aim - q[:, 0])
    return q


right, wrong = values_of_chain(True), values_of_chain(False)
print(f"value of the first state's legal action: {right[0, 0]:.2f} with the mask")
print(f"{'':41s}{wrong[0, 0]:.2f} without")

# %% [markdown]
# The true value is $0.9 \cdot 1$. Without the mask the value stays at $0.9 \cdot 5$.

# %% tags=["claims"]
torch.testing.assert_close(right[0, 0], torch.tensor(0.9))
torch.testing.assert_close(wrong[0, 0], torch.tensor(4.5))
assert (right[:, 1] == 5).all(), "never corrected, and it does no harm"

# %% [markdown]
# ## What each agent does with a mask
#
# PPO and its relatives, IMPALA and SAC for lists do everything by $\pi_m$. DQN and its relatives
# take the best legal action, or a random legal one, and bootstrap by {eq}`masked-bootstrap`. For several choices a
# mask has a part for each ({doc}`choices`); for hybrid actions it says which *types* are legal. Agents whose actions are
# numbers refuse a mask. {doc}`nets/masks` reads the masks of sb3-contrib and PettingZoo, and hides them.

# %% [markdown]
# ## When to use it
#
# If the environment knows what is legal, and will also know it when the agent is used, mask. Do not mask if
# the trained agent will have to act without: it has never learned what is illegal.
#
# - **Use it for**: tasks whose environment says what is legal, in training and in use
# - **Rather than**: fines for illegal actions, or a mask while acting only, which misleads values (PPO showed
#   no harm)
# - **Costs**: on Taxi 102,400 steps suffice with masks for eight of ten seeds, and without for none
# - **First settings**: `entropy_weight` (the largest entropy is now the logarithm of what is legal),
#   `target_entropy` of SAC, `epsilon_steps` of DQN
# - **Decided by**: [the same agent on Taxi](#trap-a-mask-while-acting-only) with masks and without, ten seeds

# %% tags=["claims"]
assert (runs["masks"].final > 6).sum() == 8, "eight of ten seeds"
assert (runs["no masks"].final > 6).sum() == 0, "none without"
assert runs["masks"].steps[-1] == 102_400

# %% [markdown]
# ## Summary
#
# - A mask says which actions are legal in a state, and $\pi_m$ is a policy like any other.
# - Illegal actions get the lowest number there is: probability 0, gradient 0, never the maximum.
# - Learning uses the mask too, or values are never corrected and, unless the baseline is perfect, the
#   gradient has a bias.
# - At an episode's end the bootstrap's mask is that of the last state, and lies in `final_info`.
#
# ## Exercises
#
# ### Exercise 1: predict, then take the mask away
#
# `load("taxi-ppo")` is an agent that has learned Taxi with masks and comes with the package
# ({doc}`apps/trained`).

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "With its masks it earns about 7 in an episode. Above, the agent that learned without masks earns "
    "−200. What does this one earn where nobody tells it what is legal?",
    ["about 7, as before", "−200, as the other one", "below −1000"],
    right="below −1000",
    because="It has never been fined, and what it never did it has not learned to leave: it loads where "
    "nobody waits, nothing changes, and so it does it again. The mask is a part of what it needs.",
)

# %%
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import load

driver = load("taxi-ppo")
earned = {}
for name, make in {"with its masks": taxi, "without": taxi_without}.items():
    earned[name] = evaluate(driver, make, 20).mean()
    print(f"{name:15s}{earned[name]:7.0f}")

# %% tags=["claims"]
assert 5 < earned["with its masks"] < 9, "about 7"
assert earned["without"] < -1000

# %% [markdown]
# ### Exercise 2: experiment
#
# For those who know the ε-greedy actions of {doc}`dqn`: how likely does ε-greedy take each action under a mask? Return the probabilities, given values
# `q`, a mask and ε.


# %%
def answer(q, mask, epsilon):
    return torch.ones_like(q) / len(q)


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade
from literate_rl.learners.dqn import EpsilonGreedy


def shares_of(q, mask, epsilon):
    """Draw very often: the share of each action, to two digits."""
    actions = EpsilonGreedy(len(q))
    actions.epsilon = epsilon
    luck = actions.noise(1, 400_000, torch.Generator().manual_seed(1))[0]
    taken = actions.choose(legal(q, mask).expand(len(luck), -1), luck)
    return (taken.bincount(minlength=len(q)) / len(luck)).round(decimals=2)


values = torch.tensor([1.0, 3.0, 2.0, 0.0])
draws = [
    (values, torch.tensor([True, False, True, True]), 0.3),
    (values, torch.tensor([True, True, False, True]), 0.6),
    (values, torch.tensor([False, False, False, True]), 1.0),
]
grade(lambda *case: answer(*case).round(decimals=2), shares_of, *draws)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(q, mask, epsilon):
    # A random action is a legal one, and may be the best of them too.
    prob = epsilon * mask / mask.sum()
    prob[legal(q, mask).argmax()] += 1 - epsilon
    return prob


grade(lambda *case: answer(*case).round(decimals=2), shares_of, *draws)

# %% [markdown]
# ## References
#
# Masks in policy gradients were examined by {cite:t}`huang2022masking`, who also compare them with
# fines and with a mask while acting only. What fines do to shared features is from
# {cite:t}`zabounidis2026`.

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The policy gradient
#
# **How does a network learn to act if nobody tells it the right action?** It tries, and makes
# more likely what turned out well. After this chapter you have trained an agent, can derive the
# policy gradient with nothing left out, and know what a baseline and an entropy bonus do. It
# takes about 35 minutes to read, without exercises. You need {doc}`agents` and derivatives of
# logarithms.

# %% tags=["export", "hide-input"]
"""The policy gradient: log-probabilities, entropy, the loss and its best baseline."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Integer
from torch import Tensor

from literate_rl.ground.signatures import Float, below, check_finite, checked

__all__ = [
    "categorical_entropy",
    "categorical_log_prob",
    "optimal_baseline",
    "policy_gradient_error",
]

# %% tags=["hide-cell", "so-far"] jupyter={"source_hidden": true}
from literate_rl.apps.programs import source

source("agents")

# %% [markdown]
# ## A first agent that learns
#
# Let the random agent learn. Its policy becomes a small network. It gets the four numbers that
# describe cart and pole and returns two, one for each action. They are called *logits*, and softmax
# turns them into probabilities: the larger a logit, the more likely its action. The agent plays 512
# steps, notes what each action led to, makes what turned out well more likely, and plays the next
# 512. *Adam*, the usual optimiser, moves the weights down a loss along its gradient, with a step size
# for each. New lines are marked, and what stayed is folded.

# %% tags=["program"] total_steps=50000
import torch
from torch import nn

from literate_rl.data.agents import Collector, discounted_returns, make_envs

torch.set_num_threads(1)  # the networks are too small for several threads to pay

env_id, seed, total_steps = "CartPole-v1", 1, 50_000
num_envs, num_steps = 8, 64
learning_rate, gamma = 1e-2, 0.98


def network(outputs):
    """Build a network with two hidden layers."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(64, outputs))


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
actor = network(int(actions))  # its numbers are the logits of the actions
optimizer = torch.optim.Adam(actor.parameters(), learning_rate)
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw an action for each observation."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, report = [], 0  # when each episode ended, and its return
while collector.step < total_steps:
    # 1. Collect: act for some steps with the policy as it is.
    batch = collector.collect(act, num_steps)
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    # 2. Look back: what has each action led to, {eq}`discounted-return`?
    unseen = torch.zeros_like(batch.reward)  # what follows the batch, as if nothing did
    ends = batch.terminated, batch.truncated
    adv = discounted_returns(batch.reward, unseen, *ends, gamma)
    # From here on time plays no role: the rollout becomes one long list of samples.
    columns = batch.obs, batch.action, adv
    obs, action, adv = (column.flatten(0, 1) for column in columns)

    # 3. Learn: what turned out well becomes likelier, {eq}`policy-gradient-loss`.
    log_prob = actor(obs).log_softmax(-1).gather(-1, action[:, None])[:, 0]
    policy_loss = -(log_prob * adv).mean()

    optimizer.zero_grad()
    policy_loss.backward()
    optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# %% [markdown]
# That was one seed. The picture has twenty stored runs of this program as thin lines, their mean as
# a thick one, and the mean of the random agent.

# %% tags=["hide-input"]
from literate_rl.book.growth import grown, runs_of

grown("policy_gradient")

# %% [markdown]
# **Notice** that nobody told this agent what to do, and that over the whole run it gets six times as
# much as the random one. This is **REINFORCE** {cite:p}`williams1992`, the plainest policy gradient
# method. It explores because it draws its actions at random, and it is on-policy: each batch is used
# for one update and thrown away. **Notice** also how far the runs lie apart: at the end few hold the
# pole for more than 400 steps, and some have hardly learned. The line with `unseen` pretends that
# nothing follows the batch, which is wrong; the next page mends it.
#
# Three questions remain. Why does it not matter that all returns are positive, so that *every* action
# becomes more likely? Why is the loss a return times the logarithm of a probability? And how much of each
# update is chance?

# %% tags=["claims"]
chance, learned = runs_of("agents"), runs_of("policy_gradient")
assert len(learned.final) == 20
assert 5.5 < learned.curves.mean() / chance.curves.mean() < 6.5, "six times as much"
assert 1 <= (learned.final > 400).sum() <= 4, "few"
assert (learned.final < 60).sum() >= 2, "some have hardly learned"

# %% [markdown]
# ## What we want to climb
#
# A policy $\pi_\theta(a \mid s)$ has parameters $\theta$, the weights of its network. We
# judge it by the return that it gets from the start of an episode, on average,
#
# $$
# J(\theta) = \mathbb{E}_{\pi_\theta} \left[ G_0 \right] .
# $$ (def-objective)
#
# To improve it we move $\theta$ a little along the gradient $\nabla J$, the vector of its
# derivatives, and do so again. But where does the gradient come from? The return is computed by
# the environment, which is somebody's program or the world itself, so we cannot differentiate it.
#
# ### One decision
#
# Start with the smallest case: one state, one action, then the episode is over. Action $a$
# pays $Q(a)$ on average, so $J = \sum_a \pi_\theta(a)\, Q(a)$ and
#
# $$
# \nabla J = \sum_a Q(a)\, \nabla \pi_\theta(a) .
# $$
#
# Only $\pi_\theta$ has a gradient here, and that one we know: it is our own network. But the
# sum runs over *all* actions, and we have tried only those that the policy drew. We want a
# mean over the policy's draws, and in such a mean each term has a factor $\pi_\theta(a)$. So
# put this factor there, and divide by it again. This is the **log-derivative trick**:
#
# $$
# \nabla \pi_\theta(a) = \pi_\theta(a)\, \frac{\nabla \pi_\theta(a)}{\pi_\theta(a)}
#                      = \pi_\theta(a)\, \nabla \log \pi_\theta(a) .
# $$ (def-log-derivative)
#
# Now the sum is a mean over the actions that the policy takes anyway:
#
# $$
# \nabla J = \mathbb{E}_{a \sim \pi_\theta} \left[ Q(a)\, \nabla \log \pi_\theta(a) \right] .
# $$ (def-one-decision)
#
# The vector $\nabla \log \pi_\theta(a)$ is called the **score** of the action. It is the
# direction in which $\theta$ has to move to make the action more likely. So the recipe is: draw
# an action, see what it pays, and go in the direction of its score, the further the more it paid.
# We do not even need $Q(a)$: a single payment has this mean, and may take its place.
#
# One fact about the score carries the rest of this chapter: **its mean is zero**.
#
# $$
# \mathbb{E}_{a \sim \pi_\theta} \left[ \nabla \log \pi_\theta(a) \right]
#   = \sum_a \nabla \pi_\theta(a) = \nabla \sum_a \pi_\theta(a) = \nabla 1 = 0 .
# $$ (def-score-mean)
#
# The probabilities sum to 1 for every $\theta$. What makes one action more likely makes the
# others less likely. That answers the first question: if all returns are positive, every
# action pushes for itself, and those with higher returns push harder and win.
#
# ### The score of softmax
#
# A policy over $N$ actions has $N$ logits $z_j$, numbers without bounds. Softmax turns them
# into probabilities $p_j$, and the logarithm of the probability of action $a$ is
#
# $$
# \log p_a = z_a - \log \sum_j e^{z_j} .
# $$ (categorical-log-prob)
#
# Its derivative is the score with respect to the logits. With $\mathbb 1[j = a]$, which is 1 for
# the action itself and 0 for the others, it is
#
# $$
# \frac{\partial \log p_a}{\partial z_j} = \mathbb 1[j = a] - p_j .
# $$ (def-score)
#
# The logit of the action goes up, and all logits go down by their probabilities. Move the
# sliders: how likely are the actions, and what happens when one of them is taken?

# %% tags=["hide-input"]
# The package's own; this chapter defines it below.
from literate_rl.maths.policy_gradient import categorical_log_prob
from literate_rl.book.pictures import Axis, Mark, dial, plot, predict


def score_of(z, action):
    """Return the probabilities and the score of an action, three numbers each."""
    logit = torch.tensor([[z, 0.5, -0.5]], dtype=torch.float64, requires_grad=True)
    log_prob = categorical_log_prob(logit, torch.tensor([action]))
    (score,) = torch.autograd.grad(log_prob.sum(), logit)
    return logit.detach().softmax(1)[0].tolist(), score[0].tolist()


actions_of_dial = ["0", "1", "2"]


def frame(z, taken):
    action = actions_of_dial.index(taken)
    prob, score = score_of(z, action)
    left = plot(
        "Probabilities",
        "Three bars that sum to 1. The first grows with its logit.",
        Axis("action", 0.4, 3.6, dict(enumerate(actions_of_dial, 1))),
        Axis("p", 0, 1, ticks=(0, 0.5, 1)),
        Mark("bars", [1, 2, 3], prob),
    )
    right = plot(
        "Score of the action taken",
        "Three bars that sum to 0: that of the action taken points up, the others down.",
        Axis("logit", 0.4, 3.6, {1: "z₀", 2: "z₁", 3: "z₂"}),
        Axis("derivative of log π", -1, 1, ticks=(-1, 0, 1)),
        Mark("line", [0.4, 3.6], [0, 0], "quiet"),
        Mark("bars", [1, 2, 3], score, "accent"),
    )
    length = sum(x * x for x in score) ** 0.5
    words = f"Action {taken} has probability {prob[action]:.2f}. "
    return [left, right], words + f"Its score sums to 0 and has length {length:.2f}."


dial(
    "Softmax and the score of an action",
    frame,
    {"logit z₀": [k / 2 for k in range(-6, 11)], "action taken": actions_of_dial},
    start=(0.5, "0"),
)

# %% [markdown]
# **Notice** two things. An unlikely action has a long score: when it is taken, much changes. And
# an action that is nearly certain has almost none: when it is taken, hardly anything does.

# %% tags=["claims"]


def length_of_score(z, action):
    return sum(x * x for x in score_of(z, action)[1]) ** 0.5


assert all(abs(sum(score_of(k / 2, 0)[1])) < 1e-9 for k in range(-6, 11)), "sums to 0"
assert length_of_score(-3.0, 0) > 1, "unlikely: long"
assert length_of_score(5.0, 0) < 0.05, "nearly certain: almost none"

# %% [markdown]
# Here it is in code, for a batch of $B$ states. In the signature, `below("N")` says that the actions are
# numbers from 0 to $N - 1$. A logit of minus infinity forbids an action.


# %% tags=["export"]
@checked
def categorical_log_prob(
    logit: Float[Tensor, "B N"],
    action: Annotated[Integer[Tensor, "B"], below("N")],
) -> Float[Tensor, "B"]:
    """Compute the log-probability of each action, with gradient.

    A logit of minus infinity takes an action away; the log-probability of such an
    action is minus infinity.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 13.2.
    """
    # All of {eq}`categorical-log-prob`. `log_softmax` subtracts the largest logit
    # first, so no exponential overflows.
    log_prob = logit.log_softmax(1)
    # From each row the entry of the action that was taken.
    return log_prob.gather(1, action.long().unsqueeze(1)).squeeze(1)


# %% [markdown]
# ## Whole episodes
#
# An episode is a chain of decisions. Call it $\xi$. Its probability is a product: of the start,
# of all actions, and of all answers that the environment gave (for short, $s'_t$ stands for the
# reward too),
#
# $$
# \Pr_\theta(\xi) = \Pr(s_0) \prod_{t \ge 0}
#     \pi_\theta(a_t \mid s_t)\, \Pr(s'_t \mid s_t, a_t) .
# $$ (def-episode)
#
# The mean return is a sum over episodes, $J = \sum_\xi \Pr_\theta(\xi)\, G_0(\xi)$, so the trick
# works for them too: $\nabla J$ is the mean of $G_0\, \nabla \log \Pr_\theta(\xi)$. The logarithm
# turns the product into a sum. And in that sum only the policy's terms depend on $\theta$. The
# start and the environment's answers drop out, and with them all that we could not differentiate:
#
# $$
# \nabla J(\theta) = \mathbb{E}_{\pi_\theta} \Bigl[ G_0
#     \sum_{t \ge 0} \nabla \log \pi_\theta(a_t \mid s_t) \Bigr] .
# $$ (def-whole-return)
#
# **The past drops out.** Which of the actions earned a reward? That is the problem of **credit
# assignment**. In {eq}`def-whole-return` an action is credited with the whole return, also with
# rewards that were paid before it was chosen. When $a_t$ is drawn, an earlier reward
# is a fixed number. The score of $a_t$ has mean zero by {eq}`def-score-mean`, and so has its
# product with a fixed number. Earlier rewards contribute variance and nothing else, and we leave
# them out. What remains at step $t$ are the rewards from $t$ on, $\gamma^t r_t +
# \gamma^{t+1} r_{t+1} + \dots = \gamma^t G_t$.
#
# **A baseline is free.** The same argument lets us *subtract* any number that is fixed before
# $a_t$ is drawn. It may depend on the state, but not on the action. Such a number
# $\bar G(s_t)$ is called a **baseline**. It moves no mean, so we may choose it as we like. The
# result is the **policy gradient theorem** {cite:p}`williams1992,sutton1999`:
#
# $$
# \nabla J(\theta) = \mathbb{E}_{\pi_\theta} \Bigl[ \sum_{t \ge 0} \gamma^t \,
#     \bigl( G_t - \bar G(s_t) \bigr)\, \nabla \log \pi_\theta(a_t \mid s_t) \Bigr] .
# $$ (policy-gradient)
#
# The usual baseline is the value $V(s_t)$. Then an action is judged by how much *better than
# expected* it turned out. That difference is an estimate $\hat A_t$ of the advantage, and
# {doc}`advantages` is all about it.
#
# **Almost everybody drops $\gamma^t$.** With this factor, what happens late counts little, seen
# from the start. Most code leaves it out, and so do the agents of this book. We seldom want a
# policy that is careless after step 500, and without the factor all steps of a batch count alike.
# But then the update is no longer along the gradient of $J$, nor of any other function
# {cite:p}`nota2020`. In practice it works well.
#
# ## The loss
#
# Optimisers want a loss to differentiate. So we write one down whose gradient is minus the
# estimate, up to a positive factor. For $B$ samples, the steps of one or of many episodes, with a
# weight $w$ each,
#
# $$
# \mathcal L_\pi(\theta) = -\frac1B \sum_{b=1}^{B}
#     w_b\, \hat A_b \, \log \pi_\theta(a_b \mid s_b) .
# $$ (policy-gradient-loss)
#
# That answers the second question. The weight is there for $\gamma^t$, or to take a sample out
# with a zero. $\hat A_b$ is a number that was computed before. It is not differentiated, although
# a network may have had a say in it.
#
# **The value of this loss means nothing.** It is a tool that was made for its slope in one point: add 100 to
# every return, and the loss changes a lot, its mean gradient not at all. And it belongs to the policy that
# drew the batch. If we step down the same loss again and again, it falls and falls, while $J$ need not rise.
# How to take several updates from one batch is the subject of {doc}`ppo_error`.


# %% tags=["export"]
@checked
def policy_gradient_error(
    log_prob: Float[Tensor, "*B"],
    adv: Float[Tensor, "*B"],
    weight: Float[Tensor, "*B"] | None = None,
) -> Float[Tensor, ""]:
    """Compute the loss whose gradient is minus an estimate of the policy gradient.

    Args:
        log_prob: Log-probability of each action under the policy that took it. Gradient
            flows into it alone.
        adv: What it is weighted with: a return, a return minus a baseline, an
            advantage.
        weight: One factor for each sample, or None for ones. ``gamma ** t`` is what
            the theorem wants.

    Source: Williams 1992 (REINFORCE), as a loss; Sutton et al. 1999, theorem 1.
    """
    # What an action is worth is a number. If it came with a graph, the optimiser would
    # change the judge instead of the policy.
    factor = adv.detach() if weight is None else (weight * adv).detach()

    # The loss {eq}`policy-gradient-loss`. Autograd differentiates this line, and what
    # comes out is minus a sample of {eq}`policy-gradient` for each episode, their sum
    # divided by $B$.
    loss = -(factor * log_prob).mean()
    check_finite(loss, log_prob=log_prob, adv=adv, weight=weight)
    return loss


# %% [markdown]
# ## How much of it is chance?
#
# All baselines give the same mean, so choose the one with the least variance. In one state it is
# {cite:p}`greensmith2004`
#
# $$
# \bar G^* = \frac
#   {\mathbb{E} \left[ \lVert \nabla \log \pi_\theta(a) \rVert^2 \, G \right]}
#   {\mathbb{E} \left[ \lVert \nabla \log \pi_\theta(a) \rVert^2 \right]} .
# $$ (optimal-baseline)
#
# It is a mean of the returns, too, like the value. But it listens most to actions whose score is
# long, and these are the unlikely ones.


# %% tags=["export"]
@checked
def optimal_baseline(
    logit: Float[Tensor, "B N"], q_value: Float[Tensor, "B N"]
) -> Float[Tensor, "B"]:
    """Compute the baseline with the least variance for a softmax policy, no gradient.

    ``q_value`` is the expected return of each action. Where one action is certain no
    baseline matters, and its expected return comes back.

    Source: Greensmith et al. 2004, for a single decision.
    """
    prob = logit.detach().softmax(1)
    # Row $a$ of the identity minus the probabilities is the score of action $a$. The
    # squared length of each is needed.
    identity = torch.eye(prob.shape[1]).to(prob)
    squared_length = (identity - prob.unsqueeze(1)).square().sum(2)

    # The baseline {eq}`optimal-baseline` is a weighted mean. If one action is certain,
    # all weights are zero, and the probabilities themselves have to do.
    weight = prob * squared_length
    total = weight.sum(1, keepdim=True)
    weight = torch.where(total > 0, weight / total, prob)
    baseline = (weight * q_value.detach()).sum(1)
    check_finite(baseline, logit=prob, q_value=q_value)
    return baseline


# %% [markdown]
# Three actions pay 3, 4 and 6, and the policy does not prefer the best one yet. What does one
# sample say?

# %%
logit = torch.tensor([0.6, 0.0, -0.6], dtype=torch.float64)
q_value = torch.tensor([3.0, 4.0, 6.0], dtype=torch.float64)
prob = logit.softmax(0)
score = torch.eye(3, dtype=torch.float64) - prob  # row a is the score of action a
baselines = {
    "none": 0.0,
    "the value": (prob @ q_value).item(),
    "the best": optimal_baseline(logit[None], q_value[None]).item(),
}
variances = {}
for name, baseline in baselines.items():
    sample = (q_value - baseline).unsqueeze(1) * score  # row a if action a was drawn
    mean = prob @ sample
    variances[name] = (prob @ (sample - mean).square().sum(1)).item()
    print(f"{name:9s} {baseline:.2f}: gradient {mean.norm():.2f} long,", end=" ")
    print(
        f"one sample off by {variances[name] ** 0.5:.2f}, variance {variances[name]:.2f}"
    )

# %% [markdown]
# **Notice** that the gradient stays the same. Without a baseline one sample is off by six times its
# length, so nearly all of it is chance. With the value the variance is a seventeenth: the other way
# to get there is a batch seventeen times as large. The best baseline gains little more, so most
# programs use the value, which we want to know anyway.

# %% tags=["claims"]
assert 5.5 < (variances["none"] ** 0.5) / mean.norm() < 6.5, "six times its length"
assert 16.5 < variances["none"] / variances["the value"] < 17.5, "a seventeenth"
assert 0.7 < variances["the best"] / variances["the value"] < 1, "little more"

# %% [markdown]
# ## Entropy
#
# A policy that is certain of an action learns nothing more from it, whether it is good or bad,
# and stops exploring. So we want to know how uncertain a policy is, and sometimes to reward it
# for that. The measure is the **entropy**, in *nats* because the logarithm is the natural one:
#
# $$
# H(\pi) = -\sum_j p_j \log p_j .
# $$ (categorical-entropy)
#
# It is the mean of $-\log p_j$ over the policy's own actions. It is zero when the policy
# always does the same, and $\log N$ when all $N$ actions are equally likely. Its gradient is
#
# $$
# \frac{\partial H}{\partial z_j} = -p_j \, (\log p_j + H) .
# $$ (def-entropy-gradient)
#
# Read the sign: a logit goes *up* if its action is less likely than usual, $-\log p_j > H$,
# and down otherwise. Climbing the entropy makes the policy more even.
#
# If we pay for entropy, with a weight $c_H$, the objective becomes $J + c_H H$. A loss is minus an
# objective, so the entropy is *subtracted* from it: $\mathcal L_\pi - c_H H$. The wrong sign [has been
# published](/docs/errata.md#the-sign-of-the-entropy). The program does without a bonus.


# %% tags=["export"]
@checked
def categorical_entropy(logit: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Compute the entropy of a softmax policy in each state, in nats, with gradient.

    A logit of minus infinity takes an action away.

    Source: Shannon 1948, section 6.
    """
    log_prob = logit.log_softmax(1)
    # An action that was taken away has probability zero and adds nothing. Zero times
    # infinity would be NaN, in the gradient as well, so its logarithm becomes zero.
    surprise = -torch.where(log_prob == -torch.inf, 0.0, log_prob)
    # The mean {eq}`categorical-entropy`.
    entropy = (log_prob.exp() * surprise).sum(1)
    check_finite(entropy, logit=surprise)
    return entropy


# %% tags=["claims"]
from math import log

logit = torch.tensor(
    [[0.0, 0.0, 0.0], [2.0, 0.0, -2.0], [0.0, 0.0, -torch.inf]], requires_grad=True
)
entropy = categorical_entropy(logit)
(gradient,) = torch.autograd.grad(entropy.sum(), logit)
assert abs(entropy[0].item() - log(3)) < 1e-6, "all equally likely"
assert gradient[1].sign().tolist() == [-1, 1, 1], "more even"
assert abs(entropy[2].item() - log(2)) < 1e-6, "a policy over two"
assert gradient.isfinite().all(), "nothing is NaN"

# %% [markdown]
# ## Summary
#
# - To climb a mean that we can only sample, weight the score of each action with its return.
# - The score has mean zero. So rewards of the past drop out, and a baseline is free.
# - A single sample of the gradient is mostly chance. A baseline takes much of that out, and the value
#   is nearly the best one.
# - The value of the loss means nothing: it has the right slope, for one update.
# - Entropy measures exploration. It is a bonus, so it is subtracted from the loss.
#
# ## Exercises
#
# ### Exercise 1: predict
#
# No code yet, only a thought.

# %% tags=["hide-input"]
predict(
    "REINFORCE without a baseline, and somebody adds 100 to the return of every step. What "
    "happens to its gradient?",
    [
        "its mean changes, its variance does not",
        "its variance changes, its mean does not",
        "both change",
        "nothing changes",
    ],
    right="its variance changes, its mean does not",
    because="Adding 100 is the same as subtracting a baseline of −100, and a baseline moves no mean. But "
    "each score is now multiplied by about 100, and the mean has to be found among "
    "estimates that are far apart.",
)

# %% [markdown]
# ### Exercise 2: write REINFORCE from nothing
#
# One update of REINFORCE without a baseline, with PyTorch alone: no function of this chapter. The
# policy is linear, its logits are `obs @ weight`. `weight` has the shape (inputs, actions), and
# `obs`, `action` and `reward` are those of the steps of one episode, which terminated. Return the
# weights after one step of gradient ascent, with this learning rate, on the mean over the steps of
# discounted return times log-probability. No optimiser is needed. When all cases
# agree, guess how long the pole stays up after 300 episodes with your update. Then call
# `pole_stays_up(answer)` in a cell below, which takes some seconds.


# %%
def answer(weight, obs, action, reward, gamma, learning_rate):
    return ...


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade
import gymnasium as gym


def updated(weight, obs, action, reward, gamma, learning_rate):
    """Return the weights after one update, by the functions of this book."""
    weight = weight.detach().requires_grad_()
    end = torch.zeros(len(reward), 1, dtype=torch.bool)
    end[-1] = True
    column, never = reward.unsqueeze(1), torch.zeros_like(end)
    returns = discounted_returns(column, 0 * column, end, never, gamma).squeeze(1)
    loss = policy_gradient_error(categorical_log_prob(obs @ weight, action), returns)
    (slope,) = torch.autograd.grad(loss, weight)
    return (weight - learning_rate * slope).detach()


def episode_of(actions, rewards, num_actions=2, gamma=0.9):
    """Return weights, an episode with these actions and rewards, and settings."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(4, num_actions, generator=generator)
    obs = torch.randn(len(actions), 4, generator=generator)
    return weight, obs, torch.tensor(actions), torch.tensor(rewards), gamma, 0.5


by_hand = {
    "one step": episode_of([1], [1.0]),
    "a reward for the last step only": episode_of([0, 1, 0], [0.0, 0.0, 1.0]),
    "a reward for the first step only": episode_of([0, 1, 0], [1.0, 0.0, 0.0]),
    "negative rewards": episode_of([0, 1, 1], [-1.0, -2.0, 0.5]),
    "three actions": episode_of([0, 2, 1, 2], [1.0, 1.0, 1.0, 1.0], num_actions=3),
    "no discount": episode_of([1, 1, 0], [1.0, 2.0, 3.0], gamma=1.0),
}


def pole_stays_up(update, episodes=300):
    """Train a linear policy with an update; return the length of the last 50."""
    env, generator = gym.make("CartPole-v1"), torch.Generator().manual_seed(1)
    weight, lengths = torch.zeros(4, 2), []
    for number in range(episodes):
        (obs, _), done, steps = env.reset(seed=number), False, []
        while not done:
            prob = (torch.as_tensor(obs) @ weight).softmax(-1)
            action = torch.multinomial(prob, 1, generator=generator).item()
            after, reward, terminated, truncated, _ = env.step(action)
            steps.append((obs, action, reward))
            obs, done = after, terminated or truncated
        seen, taken, paid = zip(*steps, strict=True)
        seen = torch.stack([torch.as_tensor(obs) for obs in seen])
        played = seen, torch.tensor(taken), torch.tensor(paid)
        weight = update(weight, *played, 0.98, 0.1)
        lengths.append(len(steps))
    return sum(lengths[-50:]) / 50


grade(answer, updated, by_hand)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(weight, obs, action, reward, gamma, learning_rate):
    weight = weight.detach().requires_grad_()
    # An action is credited with what comes after it, so the sum runs backward.
    returns, later = torch.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        later = reward[t] + gamma * later
        returns[t] = later
    log_prob = (obs @ weight).log_softmax(-1)[torch.arange(len(action)), action]
    (slope,) = torch.autograd.grad((returns * log_prob).mean(), weight)
    return (weight + learning_rate * slope).detach()


grade(answer, updated, by_hand)
held = pole_stays_up(answer)
print(f"the last 50 of 300 episodes: {held:.0f} steps")

# %% [markdown]
# ## References
#
# REINFORCE is from {cite:t}`williams1992`, the theorem from {cite:t}`sutton1999`; chapter 13
# of {cite:t}`sutton2018` is a gentle second reading. {cite:t}`greensmith2004` treat baselines,
# {cite:t}`nota2020` the missing discount.

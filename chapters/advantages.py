# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Advantages
#
# **Was this action better than what the policy usually does here?** After this chapter you can
# answer that for every step of a rollout, and say what the answer costs: bias or variance. And the
# agent of the last page has got a critic. It takes about 25 minutes to read, without exercises. You
# need returns and the two flags ({doc}`agents`). The policy gradient ({doc}`policy_gradient`) weights
# every action by the number that we are about to compute; whoever only wants values may skip the
# section on the agent.

# %% tags=["export", "hide-input"]
"""Advantages: n-step returns, lambda-returns and generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    check_finite,
    checked,
)
from literate_rl.maths.scan import reverse_scan

__all__ = ["gae", "gae_loop", "lambda_returns", "n_step_returns"]

# %% tags=["hide-cell", "so-far"] jupyter={"source_hidden": true}
from literate_rl.apps.programs import source

source("policy_gradient")

# %% [markdown]
# ## One dial between bias and variance
#
# The **advantage** of an action is how much more it earns, on average, than the policy usually
# earns in that state: its expected return minus the value of the state. The value is the same for
# every action of the state. So the question is how to estimate the return of one action, and
# there are two witnesses. The rewards that follow are right on average, but they vary. A **critic**,
# a network that estimates the value $V(s)$ of a state, is steady but may be wrong. A number
# $\lambda$ from 0 to 1 says how much to rely on the rewards.
#
# Drag the slider below the pictures. In the first two each dot is one estimate of the same
# return, and the dashed line is the truth. In the first the critic is right. In the second it is
# wrong: for every state it sees only half of what is still to come. The third is explained
# [further down](#what-many-steps-teach).

# %% tags=["hide-input"]
import torch

# The package's own, defined below.
from literate_rl.maths.advantages import lambda_returns
from literate_rl.book.pictures import Axis, Mark, dial, plot

gamma, num_steps, num_estimates = 0.97, 30, 20_000
generator = torch.Generator().manual_seed(0)
# Each step pays 0.2 on average, and the action that we judge pays 1 more.
reward = 0.2 + 0.5 * torch.randn(num_steps, num_estimates, generator=generator)
reward[0] += 1
ended = torch.zeros_like(reward, dtype=torch.bool)
ended[-1] = True
# What the remaining steps pay on average, from each step on.
remaining = torch.arange(num_steps, -1, -1)
exact = (0.2 * (1 - gamma**remaining) / (1 - gamma))[:, None].expand(-1, num_estimates)
truth = 1 + exact[0, 0].item()
critics = {"The critic is right": exact, "The critic sees half": exact / 2}

lambdas = [0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1]
estimates = {
    name: [
        lambda_returns(reward, value[1:], ended, ended, gamma, lambda_)[0]
        for lambda_ in lambdas
    ]
    for name, value in critics.items()
}
aside = [0.35 * ((7 * k) % 40 / 20 - 1) for k in range(40)]  # dots side by side


def dots(place, cloud, tone):
    return Mark("dots", [place + a for a in aside], cloud[:40].tolist(), tone)


def frame(lambda_):
    place, pictures, readout = lambdas.index(lambda_), [], []
    for name, clouds in estimates.items():
        mean, deviation = clouds[place].mean().item(), clouds[place].std().item()
        alt = f"{name}. Forty estimates for each λ: the larger λ, the wider the cloud."
        pictures.append(
            plot(
                name,
                alt,
                Axis(
                    "λ", -0.5, 9.5, ticks={k: f"{x:g}" for k, x in enumerate(lambdas)}
                ),
                Axis("estimates of one return", -2, 12, ticks=(0, 5, 10)),
                *(dots(k, cloud, "faint") for k, cloud in enumerate(clouds)),
                Mark("line dashed", [-0.5, 9.5], [truth, truth], "quiet"),
                dots(place, clouds[place], "accent"),
                Mark("line thick", [place - 0.45, place + 0.45], [mean, mean]),
                width=380,
            )
        )
        readout.append(
            f"{name}: off by {mean - truth:+.1f} on average, "
            f"standard deviation {deviation:.1f}"
        )
    # The return of all steps gets what is left.
    weights = [(1 - lambda_) * lambda_**n for n in range(num_steps - 1)]
    pictures.append(
        plot(
            "Weight of each n",
            "Bars over n from 1 to 30. They fall by the factor λ from one to the next, "
            "and the last one has all that is left.",
            Axis("n rewards, then the critic", 0, 31, ticks=(1, 10, 20, 30)),
            Axis("weight", 0, 1, ticks=(0, 0.5, 1)),
            Mark(
                "bars", range(1, 31), [*weights, lambda_ ** (num_steps - 1)], "accent"
            ),
            width=380,
        )
    )
    return pictures, "\n".join(readout).replace("-0.0", "0.0").replace("-", "−")


dial("Bias and variance of a return over λ", frame, {"λ": lambdas}, start=(0.9,))

# %% [markdown]
# Forty of 20,000 estimates are drawn; the short bar is the mean of all. **Notice** the two ends.
# At $\lambda = 0$ the estimate relies on the critic after a single reward: little spread, but all
# of the critic's error. At $\lambda = 1$ it relies on the rewards alone: no error on average, but
# several times the standard deviation. That is the same in both pictures, because both see the same
# rewards. So a critic that is wrong wants a larger $\lambda$: with the right one 0 is best here, with the wrong
# one 0.95 or more.

# %% tags=["claims"]
right, wrong = (torch.stack(clouds) for clouds in estimates.values())
assert right.std(1)[-1] > 3 * right.std(1)[0], "several times as much"
assert wrong.mean(1)[0] < truth - 1.5, "at 0 there is all of the critic's error"
assert (right.mean(1) - truth).abs().max() < 0.05, "the right critic has no error"
assert (wrong.mean(1)[-1] - truth).abs() < 0.05, "at 1 there is no error on average"
assert torch.allclose(right.std(1), wrong.std(1), rtol=1e-3), "the same in both"
best = [lambdas[(cloud - truth).square().mean(1).argmin()] for cloud in (right, wrong)]
assert best[0] == 0, "with the right critic"
assert best[1] >= 0.95, "with the wrong one"

# %% [markdown]
# ## What one step teaches
#
# In state $s_t$ the critic expects $V(s_t)$. One step later more is known: the reward $r_t$ and the state $s'_t$ that the step led to.
# The difference between what is known now and what was expected is the **temporal-difference
# error**, or TD error,
#
# $$
# \delta_t = r_t + \gamma \, (1 - \mathrm{te}_t) \, V(s'_t) - V(s_t) .
# $$ (td-error)
#
# Here $\mathrm{te}_t$ is 1 if the step is terminated and 0 otherwise. It removes the future when
# the task is over. A truncated step keeps its future, because only our view of it ended.
#
# If the critic is exact, then the average of $\delta_t$ over everything that can follow $s_t$ and
# $a_t$ is the advantage of $a_t$. So a single step already estimates it. If $V(s'_t)$ is wrong,
# so is the estimate, and averaging more estimates does not help. That is **bias**.
#
# What if $V(s_t)$ itself is wrong? Then the advantages of all actions in $s_t$ are wrong
# by the same number. A baseline does that too ({doc}`policy_gradient`), and it leaves the
# gradient as it is on average. This is why the dial above could leave $V(s_t)$ out.
#
# ## What many steps teach
#
# To rely less on the critic, add up $n$ rewards before asking it:
# $r_t + \gamma r_{t+1} + \dots + \gamma^{n-1} r_{t+n-1} + \gamma^n V(s'_{t+n-1})$. With
# the ends of episodes and of the batch, where the sum has to stop earlier, this is the
# **$n$-step return**,
#
# $$
# G^{(n)}_t = r_t + \gamma \, (1 - \mathrm{te}_t)
# \begin{cases}
#   V(s'_t) & \text{if } n = 1 \text{ or } \mathrm{done}_t \text{ or } t = T - 1 \\
#   G^{(n-1)}_{t+1} & \text{otherwise.}
# \end{cases}
# $$ (n-step-return)
#
# The critic's error now enters with the factor $\gamma^n$, and not at all if the episode
# terminates first. In exchange, $n$ random rewards vary more than one. That is **variance**, the
# spread in the dial.
#
# Rather than choose one $n$, average over all of them, with weights that fall by a factor
# $\lambda$ from one to the next. The result is the **$\lambda$-return**,
#
# $$
# G^\lambda_t = (1 - \lambda) \sum_{n \ge 1} \lambda^{n-1} G^{(n)}_t .
# $$ (def-lambda-return)
#
# The factor $1 - \lambda$ makes the weights sum to 1; the third picture above shows them. After the end of the episode or of the
# batch $G^{(n)}_t$ no longer changes with $n$, so the longest return gets all the weight that is
# left. With $\lambda = 1$ it gets everything.
#
# Subtract $V(s_t)$, and you have **generalised advantage estimation**, GAE
# {cite:p}`schulman2016`. The sum looks expensive, but it reduces to a short recursion. Add up two
# TD errors of one episode, where $s'_t$ is $s_{t+1}$: $\delta_t + \gamma \delta_{t+1}$ is $r_t +
# \gamma V(s_{t+1}) - V(s_t) + \gamma r_{t+1} + \gamma^2 V(s_{t+2}) - \gamma V(s_{t+1})$. The
# value in the middle cancels. In longer sums all values but the first and the last do:
#
# $$
# G^{(n)}_t - V(s_t) = \delta_t + \gamma \delta_{t+1} + \dots
#     + \gamma^{n-1} \delta_{t+n-1} .
# $$ (def-telescope)
#
# The term $\gamma^k \delta_{t+k}$ appears in every sum with $n > k$. The weights of those
# sums add up to $(1 - \lambda)(\lambda^k + \lambda^{k+1} + \dots) = \lambda^k$. The
# weighted average is therefore
# $\delta_t + \gamma \lambda \delta_{t+1} + (\gamma \lambda)^2 \delta_{t+2} + \dots$,
# which can be computed from the last step to the first:
#
# $$
# \hat A_t = \delta_t + \gamma \lambda \, (1 - \mathrm{done}_t) \, \hat A_{t+1} ,
# \qquad \hat A_T = 0 .
# $$ (gae)
#
# With $\lambda = 1$ this is $G_t - V(s_t)$, the return minus the value as its baseline; with $\lambda
# = 0$ it is the TD error alone. The two flags do their two jobs again:
# $\mathrm{te}_t$ in {eq}`td-error`, $\mathrm{done}_t$ in {eq}`gae`.
#
# ## Line by line
#
# First the recursion by itself, as a loop. The factor with which a step takes over the advantage
# of the next one, $\gamma \lambda (1 - \mathrm{done}_t)$, is called `passed_on`.


# %% tags=["export"]
@checked
def gae_loop(
    td_error: Float[Tensor, "T B"], passed_on: Float[Tensor, "T B"]
) -> Float[Tensor, "T B"]:
    """Add up TD errors from the last step to the first, written to be read."""
    # After the last row there is nothing to add.
    advantage = torch.zeros_like(td_error[0])
    advantages = []
    # Each turn is the recursion {eq}`gae` for one step of all environments.
    for t in reversed(range(len(td_error))):
        advantage = td_error[t] + passed_on[t] * advantage
        advantages.append(advantage)
    return torch.stack(advantages[::-1])


# %% [markdown]
# `gae` computes the TD errors and what is passed on, then runs this recursion. It calls a
# faster form of the loop, `reverse_scan`, which {doc}`maths/scan` derives.


# %% tags=["export"]
@checked
def gae(
    reward: Float[Tensor, "T B"],
    value: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
) -> Float[Tensor, "T B"]:
    """Estimate how much better each action was than the policy's average.

    ``next_value`` belongs to the true successor of each step. Where the step is
    terminated it counts as 0, whatever it holds. Added to ``value``, the advantages are
    targets for the critic.

    Source: Schulman et al. 2016, equation 16, with a flag for each kind of end.
    """
    # The future counts only if the task continues. A time limit does not end the task.
    future = torch.where(terminated, 0.0, next_value)

    # What each step teaches, the TD error {eq}`td-error`.
    td_error = reward + gamma * future - value

    # A later error counts here too, times $\gamma \lambda$ for each step in between,
    # unless the next row belongs to another episode.
    same_episode = ~(terminated | truncated)
    # By way of bytes: PyTorch makes floats of them faster than of flags.
    passed_on = gamma * lambda_ * same_episode.byte().to(td_error)

    # The recursion {eq}`gae`. An advantage is a weight, so no gradient may flow through
    # it: `reverse_scan` returns a tensor without one.
    advantage = reverse_scan(td_error, passed_on)
    check_finite(advantage, reward=reward, value=value, next_value=future)
    return advantage


# %% [markdown]
# ## See it
#
# An example with round numbers: one environment and five steps, $\gamma = 1$, and
# $\lambda = 1/2$. Every step pays 1 and the critic always says 0, so each TD error is 1.
# The episode ends at the third step.

# %%
ones, zeros = torch.ones(5, 1), torch.zeros(5, 1)
never = torch.zeros(5, 1, dtype=torch.bool)
end = never.clone()
end[2] = True
advantage = gae(ones, zeros, zeros, end, never, gamma=1.0, lambda_=0.5)
print(advantage.flatten().tolist())

# %% [markdown]
# **Notice** that nothing crosses the end of the episode. Since every TD error is 1 here, the more
# steps of the episode remain, the larger the sum.

# %% tags=["claims"]
assert advantage.flatten().tolist() == [1.75, 1.5, 1.0, 1.5, 1.0]
td_error = torch.randn(512, 8, generator=generator, dtype=torch.float64)
passed_on = 0.9 * (torch.rand(512, 8, generator=generator) > 0.02).double()
by_loop = gae_loop(td_error, passed_on)
assert torch.allclose(reverse_scan(td_error, passed_on), by_loop), "the same numbers"

# %% [markdown]
# ## Targets for the critic
#
# A critic learns from returns, not from advantages. `gae` plus `value` is the
# $\lambda$-return. It also has a recursion of its own, which needs only the values of the
# next states. Look one step ahead: with weight $1 - \lambda$ we stop and ask for the
# value, with weight $\lambda$ we continue. At the end of an episode and in the last row
# we have to stop. So let $\lambda_t$ be 0 where $\mathrm{done}_t = 1$ or $t = T - 1$, and
# $\lambda$ elsewhere:
#
# $$
# G^\lambda_t = r_t + \gamma \, (1 - \mathrm{te}_t)
#     \bigl( (1 - \lambda_t)\, V(s'_t) + \lambda_t\, G^\lambda_{t+1} \bigr) .
# $$ (lambda-return)


# %% tags=["export"]
@checked
def lambda_returns(
    reward: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    lambda_: Fraction = 0.95,
) -> Float[Tensor, "T B"]:
    """Compute the lambda-return of every step, without gradient.

    With ``lambda_`` 1 it is ``discounted_returns`` of the first chapter, with 0 the
    one-step target of temporal-difference learning. ``next_value`` is as in ``gae``.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 12.18.
    """
    future = torch.where(terminated, 0.0, next_value)
    # Where the episode or the batch ends, every return has to stop.
    stop = terminated | truncated
    stop[-1] = True
    going_on = lambda_ * (~stop).to(reward)

    # The recursion {eq}`lambda-return`, rearranged: what does not depend on the next
    # row is added, the rest is passed on.
    increment = reward + gamma * (1 - going_on) * future
    returns = reverse_scan(increment, gamma * going_on)
    check_finite(returns, reward=reward, next_value=future)
    return returns


# %% [markdown]
# And {eq}`n-step-return`:


# %% tags=["export"]
@checked
def n_step_returns(
    reward: Float[Tensor, "T B"],
    next_value: Float[Tensor, "T B"],
    terminated: Bool[Tensor, "T B"],
    truncated: Bool[Tensor, "T B"],
    gamma: Fraction = 0.99,
    num_steps: Count = 5,
) -> Float[Tensor, "T B"]:
    """Compute the n-step return of every step, without gradient.

    ``num_steps`` is the number n of rewards before the value. A return stops earlier
    where its episode ends, and in the last row. ``next_value`` is as in ``gae``.

    Source: Sutton and Barto, Reinforcement Learning, 2nd edition, equation 7.1.
    """
    future = torch.where(terminated, 0.0, next_value)
    stop = terminated | truncated
    stop[-1] = True
    # With n = 1 each return is a reward and the value after it. Each turn makes all
    # returns of {eq}`n-step-return` one reward longer; more than T change nothing.
    returns = reward + gamma * future
    for _ in range(min(num_steps, len(reward)) - 1):
        returns = reward + gamma * torch.where(stop, future, returns.roll(-1, 0))
    check_finite(returns, reward=reward, next_value=future)
    return returns.detach()


# %% [markdown]
# ## The agent gets a critic
#
# To subtract the value we need to know it. So a second network learns it, the critic, by moving its output
# towards the returns that it has seen. Beside it the policy is called the **actor**.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "Actor and critic",
    "A state goes to two networks. The actor chooses the action that goes to the "
    "environment, the critic estimates the value. Return minus value is the advantage. It "
    "is the weight of the actor's action and the error of the critic.",
)
state = picture.box(40, 112, "state s")
actor = picture.box(180, 44, "actor\nπ(a | s)", width=96)
critic = picture.box(180, 180, "critic\nV(s)", width=96)
environment = picture.box(360, 44, "environment", height=50)
error = picture.box(350, 180, "advantage Â\nG − V(s)", "accent", width=120)
picture.arrow(state, actor)
picture.arrow(state, critic)
picture.arrow(actor, environment, "action")
picture.arrow(environment, error.at(0.58, 0), "return G")
picture.arrow(critic, error)
picture.arrow(error.at(0.2, 0), actor.at(0.8, 1), tone="accent")
picture.text(244, 116, "weight", "accent", "end")
picture.arrow(error.at(0.3, 1), critic.at(0.6, 1), "its error", "accent", bend=20)
picture

# %% [markdown]
# In the program `discounted_returns` becomes `gae`, and the critic gets a loss of its own. It also says
# what follows where the batch or an episode is cut off; on the last page nothing did.

# %% tags=["program"] total_steps=50000
import torch
from torch import nn

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs

torch.set_num_threads(1)  # the networks are too small for several threads to pay

env_id, seed, total_steps = "CartPole-v1", 1, 50_000
num_envs, num_steps = 8, 64
learning_rate, gamma, lambda_ = 1e-2, 0.98, 0.8


def network(outputs):
    """Build a network with two hidden layers."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(64, outputs))


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
# The actor's numbers are the logits of the actions, the critic's one is the value.
actor, critic = network(int(actions)), network(1)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate)
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

    # 2. Look back: was each action better than expected, {eq}`gae`?
    with torch.no_grad():
        value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
    ends = batch.terminated, batch.truncated
    adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
    # From here on time plays no role: the rollout becomes one long list of samples.
    columns = batch.obs, batch.action, adv, adv + value
    obs, action, adv, target = (column.flatten(0, 1) for column in columns)

    # 3. Learn: what turned out well becomes likelier, {eq}`policy-gradient-loss`.
    log_prob = actor(obs).log_softmax(-1).gather(-1, action[:, None])[:, 0]
    policy_loss = -(log_prob * adv).mean()
    value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()

    optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss).backward()
    optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# %% tags=["hide-input"]
from literate_rl.book.growth import grown, runs_of

grown("advantages")

# %% [markdown]
# **Notice** the gap between the thick lines: over the whole run the agent with a critic gets 103 points more
# (47 to 158, a 95 % interval as in {doc}`evaluation`). Half of its runs end above 400, of those without a
# critic a tenth. Three things have changed, the baseline, $\lambda$ and what follows a cut, and the curve
# cannot tell which of them pays. The runs still lie far apart: four of twenty end below 100.

# %% tags=["claims"]

from literate_rl.runs.evaluation import paired_difference

before, after = runs_of("policy_gradient"), runs_of("advantages")
gap = paired_difference(after.curves.mean(1), before.curves.mean(1))
assert [round(x) for x in gap] == [103, 47, 158]
assert 9 <= (after.final > 400).sum() <= 11, "half of its runs"
assert (before.final > 400).sum() == 2, "a tenth"
assert (after.final < 100).sum() == 4

# %% [markdown]
# ## Traps
#
# ### Trap: a gradient through the advantage
#
# The value in $G - V_\theta(s)$ comes out of a network. If it is not detached, the loss $-(G -
# V_\theta) \log \pi$ has a second way down: $\log \pi$ is negative, so *raise the value*.
# [Keras's
# example](https://github.com/keras-team/keras-io/blob/0df30d775727a6789b7bdb4028561f2026cc4d52/examples/rl/actor_critic_cartpole.py)
# of an actor and a critic does this, in the line `diff = ret - value`
# ([#194](https://github.com/keras-team/keras-io/issues/194)). Together with a squared error
# $\frac12 (G - V_\theta)^2$ the value then settles where $\mathbb{E}[\log \pi - (G - V_\theta)] =
# 0$, that is at $V + H$: too high by the entropy. Here are the actions that pay 3, 4 and 6 again.

# %%
from literate_rl.maths.policy_gradient import categorical_entropy

q_value = torch.tensor([3.0, 4.0, 6.0], dtype=torch.float64)
logit = torch.tensor([0.6, 0.0, -0.6], dtype=torch.float64)
prob = logit.softmax(0)
surprise = -logit.log_softmax(0)
settled = {}
for name in ("attached", "detached"):
    guess = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        adv = q_value - (guess if name == "attached" else guess.detach())
        actor_loss = (prob * surprise * adv).sum()  # the mean, without sampling
        critic_loss = (prob * (q_value - guess).square() / 2).sum()
        (slope,) = torch.autograd.grad(actor_loss + critic_loss, guess)
        guess = (guess - 0.1 * slope).detach().requires_grad_()
    settled[name] = guess.item()
    print(f"{name}: the value settles at {guess.item():.3f}")
entropy = categorical_entropy(logit.unsqueeze(0)).item()
print(f"true value {prob @ q_value:.3f}, entropy {entropy:.3f}")

# %% [markdown]
# `gae` returns a number without a gradient, and `policy_gradient_error` detaches the advantage, whatever the caller passes.

# %% tags=["claims"]
assert abs(settled["detached"] - prob @ q_value) < 1e-6
assert abs(settled["attached"] - prob @ q_value - entropy) < 1e-6

# %% [markdown]
# ## Summary
#
# - The TD error is what one step teaches. With an exact critic its mean is the advantage.
# - $\lambda$ averages over returns of all lengths: 0 relies on the critic's next value
#   (bias), 1 on the rewards (variance). 0.95 is where people start, the program has 0.8, and
#   {doc}`ppo_evidence` tries 0 and 1.
# - The average is a recursion from the last step to the first: `gae`.
# - `terminated` removes the future, `terminated or truncated` cuts the recursion.
# - Advantages weight the policy's loss. Added to the values, they are the critic's targets.
#
# ## Exercises
#
# ### Exercise 1: predict
#
# No code yet, only a thought.

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "The critic's value is 5 too high in every state, and γ = 1. The episode is truncated, "
    "not terminated. What happens to its advantages?",
    ["nothing, for any λ", "all fall by 5, for any λ", "it depends on λ"],
    right="nothing, for any λ",
    because="Each TD error holds one value with a plus and one with a minus, so the 5 "
    "cancels. At a terminated step only the minus is left: with λ = 1 every advantage of "
    "such an episode would be 5 too low.",
)

# %% [markdown]
# ### Exercise 2: write it from nothing
#
# Close the book, so to speak, and write `gae` with PyTorch alone: no function of this chapter. All
# tensors are $(T, B)$, rewards, values and next values of floats, the two flags of truth values. The
# cases have names, so the verdict tells which of them fails and where.


# %%
def answer(reward, value, next_value, terminated, truncated, gamma, lambda_):
    return ...


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def rollout(*ends, wild=False):
    """Return six steps of two environments; ends are (step, copy, which flag)."""
    numbers = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(7))
    flags = torch.zeros(2, 6, 2, dtype=torch.bool)
    for step, copy, flag in ends:
        flags[flag, step, copy] = True
    if wild:  # what stands behind an end may be anything
        numbers[2][flags[0]] = torch.nan
    return (*numbers, *flags, 0.9, 0.8)


by_hand = {
    "no end": rollout(),
    "a terminated step": rollout((2, 0, 0)),
    "a truncated step": rollout((2, 0, 1)),
    "both flags in one step": rollout((2, 0, 0), (2, 0, 1)),
    "ends in both environments": rollout((1, 0, 0), (3, 1, 1), (5, 0, 1)),
    "a next value that is no number": rollout((2, 0, 0), wild=True),
}
grade(answer, gae, by_hand)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(reward, value, next_value, terminated, truncated, gamma, lambda_):
    # Termination takes the future away. Filled in, not multiplied: 0 times NaN is NaN.
    future = next_value.masked_fill(terminated, 0.0)
    error = reward + gamma * future - value
    # After an end of either kind the next row belongs to another episode.
    goes_on = (~(terminated | truncated)).float()
    adv, later = torch.zeros_like(error), torch.zeros_like(error[0])
    for t in reversed(range(len(error))):
        later = error[t] + gamma * lambda_ * goes_on[t] * later
        adv[t] = later
    return adv


grade(answer, gae, by_hand)

# %% [markdown]
# ## References
#
# GAE is from {cite:t}`schulman2016`. {cite:t}`sutton2018` treat $n$-step returns in chapter
# 7 and $\lambda$-returns in chapter 12.

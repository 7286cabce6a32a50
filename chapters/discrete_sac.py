# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Discrete SAC
#
# **What changes when the actions can be counted?** After this chapter you can say why SAC needs
# no draw when its actions come from a list, compute its losses exactly, and choose a target
# entropy for any number of actions. It takes about 20 minutes, reading, without exercises. You need
# {doc}`sac`.

# %% tags=["export", "hide-input"]
"""The soft value of a list of actions, as a sum."""

from __future__ import annotations

from torch import Tensor

from literate_rl.ground.signatures import Float, checked

__all__ = ["expected_soft_value"]

# %% [markdown]
# ## Draw one, or add up all
#
# In {doc}`sac` an action is a row of numbers, and nobody can add up over all such rows. So one
# action is drawn, and what it says of the state stands in for the expectation: its value, and $-\alpha$ times
# its log-density. But a list of actions, such as the buttons of a game, can be added up, and a sum has no noise.
# How much noise has a single draw?
#
# Below are four actions, worth 1, 0.6, 0.2 and 0. A nat of entropy is paid $\alpha = 0.2$. The
# policy is a softmax of the values at a temperature of its own, which the slider sets. The second
# picture shows what each action says of the state if it is drawn. The dashed line is the exact soft
# value, where each action counts with its probability. Drag the slider.

# %% tags=["hide-input"]
import math

import numpy as np

from literate_rl.book.pictures import Axis, Mark, dial, plot

worth = np.array([1.0, 0.6, 0.2, 0.0])
price = 0.2
policies = [0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 5.0]


def draws_of(temperature):
    """Return the probabilities and what each action says, if it is drawn."""
    logits = worth / temperature
    log_prob = logits - np.log(np.exp(logits).sum())
    return np.exp(log_prob), worth - price * log_prob


def draws_frame(temperature):
    prob, said = draws_of(temperature)
    exact = prob @ said
    noise = math.sqrt(prob @ (said - exact) ** 2)
    names = Axis("action", 0.4, 4.6, {1: "1", 2: "2", 3: "3", 4: "4"})
    left = plot(
        "The policy",
        "Four bars: the probabilities of the actions, the first one the highest.",
        names,
        Axis("probability", 0, 1, ticks=(0, 0.5, 1)),
        Mark("bars", [1, 2, 3, 4], prob.tolist()),
    )
    right = plot(
        "What one draw says of the state",
        "Four bars, and a dashed line at their mean, weighted by the probabilities. At "
        "0.2 all bars reach the line.",
        names,
        Axis("value", 0, 2.2, ticks=(0, 1, 2)),
        Mark("bars", [1, 2, 3, 4], said.tolist(), "accent"),
        Mark("line dashed", [0.4, 4.6], [exact, exact], "quiet"),
    )
    return [left, right], f"exact {exact:.2f}, one draw {exact:.2f} ± {noise:.2f}"


dial("One draw or all", draws_frame, {"policy's temperature": policies}, start=(1.0,))

# %% [markdown]
# **Notice** the setting 0.2, which is also the price. There all bars reach the line, and a draw has
# no noise: for the best policy of {eq}`def-soft-optimal`, $Q - \alpha \log p$ is $\alpha \log Z$ for every
# action. Any other softmax of these values has noise, and a policy that still learns is one of these others.
# A sum has no noise for any of them.

# %% tags=["claims"]
noises = []
for temperature in policies:
    prob, said = draws_of(temperature)
    noises.append(math.sqrt(prob @ (said - prob @ said) ** 2))
best = policies.index(price)
assert noises[best] < 1e-9, "no noise at 0.2"
log_z = np.log(np.exp(worth / price).sum())
assert np.allclose(draws_of(price)[1], price * log_z), "α log Z for every action"
assert min(noises[:best] + noises[best + 1 :]) > 0.02, "any other policy has noise"

# %% [markdown]
# The actor needs more than a value: it needs a gradient. With numbers in a box the gradient goes
# through the draw, because the action moves a little when $\mu$ and $\sigma$ do. A draw from a
# list stays, or it jumps. It would have to make do with the score of {doc}`policy_gradient`: what it says of the
# state, times $\nabla \log \pi(a \mid s)$. A sum has a gradient of its own, through the probabilities. Here are
# both for a policy to which all four actions are alike:

# %%
import torch

from literate_rl.maths.discrete_sac import expected_soft_value

torch.manual_seed(0)
q = torch.tensor(worth)
logits = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
log_prob = logits.log_softmax(-1)
exact = expected_soft_value(q.reshape(1, 1, 4), log_prob, price)
(slope,) = torch.autograd.grad(exact.sum(), logits)

# 10,000 draws: what each action says, and that times its score.
log_prob = log_prob.detach()[0]
drawn = torch.multinomial(log_prob.exp(), 10_000, replacement=True)
draws = (q - price * log_prob)[drawn]
slopes = draws.unsqueeze(-1) * (torch.eye(4)[drawn] - log_prob.exp())

first = slope[0, 0], slopes[:, 0]
for name, (true, each) in {"value": (exact, draws), "slope": first}.items():
    one_draw = f"{each.mean():.2f} ± {each.std():.2f}"
    print(f"{name}: exact {true.item():.2f}, one draw {one_draw}")

# %% [markdown]
# The slope is that of the first action's logit. **Notice** that its noise is several times as large as the
# slope itself. A baseline would lower it; the sum has no noise at all.

# %% tags=["claims"]
assert abs(draws.mean() - exact.item()) < 4 * draws.std() / 100
assert ((slopes.mean(0) - slope[0]).abs() < 4 * slopes.std(0) / 100).all()
assert slopes[:, 0].std() > 3 * slope[0, 0], "several times as large"
lower = (draws - exact.item()) * (torch.eye(4)[drawn] - log_prob.exp())[:, 0]
assert lower.std() < 0.5 * slopes[:, 0].std(), "a baseline would lower it"

# %% [markdown]
# ## Discrete SAC on one page
#
# This is the program of {doc}`sac` with sums in the places of draws. As in
# {doc}`dqn` there are four environments, targets of 20 steps and scaled rewards.

# %% tags=["program"] total_steps=20000
import copy
import math

import torch
from torch import nn

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.replay import ReplayBuffer

torch.set_num_threads(1)  # the networks are too small to be shared out

env_id, seed, total_steps = "CartPole-v1", 1, 5_000
num_envs, batch_size, buffer_size, num_steps = 4, 128, 4000, 20
first_update, learning_rate, gamma, tau, reward_scale = 1000, 1e-3, 0.99, 0.02, 0.05


def network(inputs, outputs):
    """Build two hidden layers, then a number for each action."""
    first, second = nn.Linear(inputs, 128), nn.Linear(128, 128)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(128, outputs))


envs = make_envs(env_id, num_envs)
sizes = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
target_entropy = math.log(sizes[1]) / 2  # half of the largest entropy
torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
actor = network(*sizes)  # from a state to the logits of all actions
critics = nn.ModuleList([network(*sizes) for _ in range(2)])  # to the values of all
older_critics = copy.deepcopy(critics)
log_alpha = torch.tensor(0.05).log().requires_grad_()  # the temperature's logarithm
critic_optimizer = torch.optim.Adam(critics.parameters(), learning_rate)
actor_optimizer = torch.optim.Adam([*actor.parameters(), log_alpha], learning_rate)


def act(obs):
    """Draw an action for each observation."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


def lowest(critics, obs):
    """Return what the less optimistic critic thinks of each action."""
    return torch.stack([critic(obs) for critic in critics]).amin(0)


collector, buffer, episodes = Collector(envs), ReplayBuffer(buffer_size), []
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1
while collector.step < total_steps:
    # 1. Act once in each environment. The last steps are remembered.
    step = collector.collect(act, 1)
    buffer.push(step)
    ended = step.terminated | step.truncated
    episodes += [(collector.step, x) for x in step.episode_return[ended].tolist()]
    if episodes and collector.step % (total_steps // 5) < num_envs:
        last = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:6d}: mean return {sum(last) / len(last):.0f}")
    if collector.step <= first_update:
        continue
    batch = buffer.sample(batch_size, generator, num_steps, gamma)
    alpha = log_alpha.detach().exp()

    # 2. The critics' target: a sum over all actions of the next state.
    with torch.no_grad():
        log_prob = actor(batch.next_obs).log_softmax(-1)
        soft = lowest(older_critics, batch.next_obs) - alpha * log_prob
        soft_value = (log_prob.exp() * soft).sum(-1)
        future = soft_value.masked_fill(batch.discount == 0, 0.0)  # nothing, at an end
        target = reward_scale * batch.reward + batch.discount * future
    # Each critic returns all values; that of the action taken is compared.
    taken = batch.action.unsqueeze(-1)
    q = torch.cat([critic(batch.obs).gather(-1, taken) for critic in critics], -1)
    critic_optimizer.zero_grad()
    (0.5 * (q - target.unsqueeze(-1)).square()).mean(0).sum().backward()
    critic_optimizer.step()

    # 3. The actor climbs the same sum. To it the values are constants.
    log_prob = actor(batch.obs).log_softmax(-1)
    soft = lowest(critics, batch.obs).detach() - alpha * log_prob
    actor_loss = -(log_prob.exp() * soft).sum(-1).mean()
    # 4. The entropy is a sum too.
    entropy = -(log_prob.exp() * log_prob).sum(-1).mean().detach()
    alpha_loss = log_alpha * (entropy - target_entropy)
    actor_optimizer.zero_grad()
    (actor_loss + alpha_loss).backward()
    actor_optimizer.step()

    # 5. The older critics follow slowly.
    for old, new in zip(older_critics.parameters(), critics.parameters(), strict=True):
        old.data.lerp_(new.data, tau)

# %% [markdown]
# In steps 2 to 4 nothing is drawn, and nothing is squashed. The expectation is a sum, and so are the entropy and
# the actor's gradient. A critic returns the values of all actions at once, like that of {doc}`dqn`. The target
# entropy is that of a list, which has its own scale.
#
# The page trains for fewer steps, the file for 20,000. Of ten such runs nine end above 450 and one at 323,
# the mean of the last twenty episodes, with the draws. A run takes about 15 seconds of processor time.

# %% tags=["claims"]
from literate_rl.runs.runs import stored_runs

ten = stored_runs("program_discrete_sac")["discrete_sac"]
assert len(ten.final) == 10
assert (ten.final > 450).sum() == 9, "nine of ten"
assert round(ten.final.min()) == 323, "one at 323"
assert 12 < np.median(ten.cpu_seconds) < 18, "about 15 seconds"

# %% [markdown]
# ## The soft value, exactly
#
# With $N$ actions and their probabilities $\pi(a \mid s)$, the expectation in {eq}`soft-value` is
#
# $$
# V(s) = \sum_a \pi(a \mid s) \Bigl[ \min_k Q_k(s, a) - \alpha \log \pi(a \mid s) \Bigr] .
# $$ (exact-soft-value)


# %% tags=["export"]
@checked
def expected_soft_value(
    q: Float[Tensor, "K B N"],
    log_prob: Float[Tensor, "B N"],
    alpha: float | Float[Tensor, ""],
) -> Float[Tensor, "B"]:
    """Return what states are worth to a policy that is paid for its entropy.

    Args:
        q: What K critics think of each of the N actions.
        log_prob: Log-probabilities of the actions.
        alpha: The temperature: what a nat of entropy is worth.

    Source: Christodoulou 2019, section 3, with the minimum of Fujimoto et al. 2018.
    """
    # For each action the least optimistic critic counts. An action of probability 0
    # adds nothing, although its log-probability is −∞, and whatever its value.
    prob = log_prob.exp()
    q, log_prob = (x.masked_fill(prob == 0, 0.0) for x in (q, log_prob))
    # The sum of {eq}`exact-soft-value`.
    return (prob * (q.amin(0) - alpha * log_prob)).sum(-1)


# %% [markdown]
# ## How random is a target?
#
# For numbers in a box the usual target entropy is minus their number. A list cannot have it, since its entropy is
# never below 0: every policy would be too random, and the temperature would fall to zero. The largest entropy is
# $\log N$, that of the uniform policy. So a target is best given as a share of $\log N$.
#
# What does such a share look like? Below, one action is better than the others, which are all
# alike. A policy like that is ε-greedy ({doc}`dqn`) with some ε. Choose a number of actions and a
# share.

# %% tags=["hide-input"]
shares, numbers = [0.05, 0.15, 0.3, 0.5, 0.7, 0.8, 0.9, 0.98], [2, 4, 6, 18]


def with_entropy(target, number):
    """Return the probability of the best action at an entropy."""
    low, high = 1 / number, 1.0
    for _ in range(60):
        best = (low + high) / 2
        rest = (1 - best) / (number - 1)
        entropy = -best * math.log(best) - (1 - best) * math.log(max(rest, 1e-300))
        low, high = (best, high) if entropy > target else (low, best)
    return low


def epsilon_of(best, number):
    """Return the ε with which an ε-greedy policy is as likely to take the best action."""
    return (1 - best) * number / (number - 1)


def share_frame(number, share):
    best = with_entropy(share * math.log(number), number)
    rest = (1 - best) / (number - 1)
    bars = [best, *[rest] * (number - 1), *[0.0] * (18 - number)]
    picture = plot(
        "A policy at its target entropy",
        "A high bar for the best action and equal low ones for the others. At 0.98 they "
        "differ little.",
        Axis("action", 0.2, 18.8, {1: "1", 2: "2", 4: "4", 6: "6", 18: "18"}),
        Axis("probability", 0, 1, ticks=(0, 0.5, 1)),
        Mark("bars", list(range(1, 19)), bars, "accent"),
        width=460,
    )
    words = f"{share} · log {number} = {share * math.log(number):.2f} nats: "
    words += f"the best action has probability {best:.2f}, "
    return [picture], words + f"as with ε = {epsilon_of(best, number):.2f}."


sliders = {"actions": numbers, "share of log N": shares}
dial("What a target entropy asks for", share_frame, sliders, start=(6, 0.98))

# %% [markdown]
# **Notice** the share 0.98, which the paper proposes {cite:p}`christodoulou2019`. With $N = 2$ more
# than eight of ten actions are random, with $N = 18$ about nine of ten.
#
# The target is compared with the mean over states, so a policy may be random where it does not matter and sure
# where it does. Our default is the middle, where two to three of ten actions are random:
#
# $$
# H^\star = \tfrac12 \log N .
# $$ (list-entropy)

# %% tags=["claims"]
asked = {
    (number, share): epsilon_of(with_entropy(share * math.log(number), number), number)
    for number in numbers
    for share in shares
}
assert asked[2, 0.98] > 0.8, "more than eight of ten"
assert 0.85 < asked[18, 0.98] < 0.95, "about nine of ten"
assert all(0.2 < asked[number, 0.5] < 0.35 for number in numbers), "two to three"

# %% [markdown]
# What is a target good for? Here are agents with three targets on
# CartPole, ten seeds each: 0.1 nats, nearly sure; half of $\log 2$, our default; and the paper's
# $0.98 \log 2$. Nothing else differs. A dot is the mean of 100 greedy episodes.

# %% tags=["hide-input"] mystnb={"image": {"alt": "First: mean returns while training over 20,000 steps of CartPole for three targets. Those of the two smaller ones rise together to above 400, that of 0.98 log 2 stays below. Second: the returns of the last greedy policies as dots. With half of log 2 the lowest is at 435, with 0.1 at 182, with 0.98 log 2 near 490"}}
import matplotlib.pyplot as plt

from literate_rl.runs.evaluation import paired_difference
from literate_rl.book.pictures import AGENT_COLOURS
from literate_rl.runs.runs import stored_runs

targets = {
    "0.1": stored_runs("sac_cartpole_sure")["SAC"],
    "½ log 2": stored_runs("sac_cartpole")["SAC"],
    "0.98 log 2": stored_runs("sac_cartpole_random")["SAC"],
}
fig, axes = plt.subplots(1, 2, figsize=(7.6, 2.6), width_ratios=(3, 2))
color = AGENT_COLOURS["discrete SAC"]
for place, (name, found) in enumerate(targets.items()):
    mean, look = found.curves.mean(0), ("--", "-", ":")[place]
    axes[0].plot(found.steps / 1000, mean, look, color=color, label=name)
    axes[1].plot([place] * len(found.final), found.final, "o", color=color, alpha=0.5)
axes[0].set(xlabel="thousand steps", ylabel="return while training", ylim=(0, 520))
axes[0].legend(title="target entropy", fontsize=8)
axes[1].set(xticks=range(3), xticklabels=list(targets), xlim=(-0.5, 2.5))
axes[1].set(xlabel="target entropy", ylabel="last policies, greedy", ylim=(0, 520))
fig.tight_layout()
sure, half, most = targets.values()

# %% [markdown]
# **Notice** the paper's target. While training it costs some 70 of a mean return of 333, and the price of a nat ends
# at least five times as high as with half of $\log 2$, without getting there: no run ends with 0.98 of $\log 2$.
# But all ten last policies are near the top, because greedy play only needs to know which of the two actions is
# better. Longer lists were not tried.
#
# With a target of 0.1 nats one run ends at 182; with the default the same seed ends at 435, and no run of
# the default is weaker. Ten seeds do not prove that it is better.

# %% tags=["claims"]
assert len(sure.final) == len(half.final) == len(most.final) == 10
costs = paired_difference(half.area, most.area)
assert costs.low > 0
assert round(costs.mean, -1) == 70
assert round(half.area.mean()) == 333, "of a mean return"
prices = [x.watched["charts/alpha"][:, -1] for x in (half, most)]
assert (prices[1] > 5 * prices[0]).all(), "at least five times as high"
assert (most.watched["charts/entropy"][:, -1] < 0.98 * math.log(2)).all(), "no run"
assert most.final.min() > 480, "near the top"
assert sure.final.argmin() == 3, "the fourth"
assert round(sure.final.min()) == 182
assert half.final.argmin() == 3
assert round(half.final.min()) == 435, "no run of the default is weaker"

# %% [markdown]
# ### Trap: a mean where the expectation is a sum
#
# The probabilities already sum to 1, so the expectation is the *sum* over actions. A `mean`
# divides it by $N$ once more. In the actor's loss alone Adam does not notice the constant factor. In a target the
# value of the next state shrinks to $1 / N$ of what it should be.

# %%
alike = torch.full((1, 4), 0.25).log()
tens = torch.full((1, 1, 4), 10.0)  # four actions, all of them worth 10
right = expected_soft_value(tens, alike, 0.0).item()
wrong = (alike.exp() * tens[0]).mean(-1).item()
print(f"sum {right:.1f}, mean {wrong:.1f}")

# %% tags=["claims"]
assert abs(right - 10) + abs(wrong - 2.5) < 1e-4

# %% [markdown]
# ## When to use it
#
# For actions from a list {doc}`dqn` and {doc}`ppo` are simpler.
# Discrete SAC took the fewest steps of the three to a return of 400 on CartPole, each with its own
# settings and its own schedule. Prefer it where steps are dear and where it should be you who says how random
# the agent stays; the actor and two critics are what it costs. Scale rewards until values are a few units.
#
# - **Use it for**: actions from a list, where steps are dear or a certain randomness is wanted
# - **Rather than**: {doc}`dqn`, whose random actions do not know which actions are nearly as good
# - **Costs**: about 9,000 steps to a return of 400 on CartPole; 16 CPU seconds for 20,000 steps
# - **First settings**: `target_entropy=None` (half of the largest), `reward_scale=0.05`, and a
#   `temperature` as large as a scaled reward (0.05; the default, 1, would begin almost uniform)
# - **Decided by**: [three targets on CartPole](#how-random-is-a-target), ten seeds each


# %% tags=["claims"]
def reached(runs):
    """Return after how many steps the return exceeds 400, as the median."""
    above = runs.curves > 400
    steps = runs.steps[above.argmax(1)]
    return np.median(np.where(above.any(1), steps, np.inf))


others = stored_runs("dqn_cartpole")["DQN"], stored_runs("cartpole")["PPO"]
assert reached(half) < min(map(reached, others)), "the fewest steps of the three"
assert round(reached(half), -3) == 9000
assert 12 < np.median(half.cpu_seconds) < 20

# %% [markdown]
# ## Summary
#
# - Actions from a list can be added up. The soft value, the entropy and the actor's gradient are
#   sums over all of them, without the noise of a draw.
# - The gradient goes through the probabilities. Nothing has to be reparametrised.
# - A critic returns the values of all actions; the minimum of two counts for each action.
# - The entropy of a list lies between 0 and $\log N$. Half of $\log N$ is our target to begin with.
# - The weights sum to 1: a sum over actions, never a mean.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "The target entropy is 0.98 · log 2. In every state one of the two actions is better by 1, "
    "and the agent has learned it. What does the temperature do in the end?",
    ["it falls to zero", "it stays near 1", "it settles above 2"],
    right="it settles above 2",
    because="The best policy is the softmax of the values divided by the temperature. It takes "
    "the better action with probability 0.58 only if 1 / α is about 0.34, so α is about 3.",
)

# %% tags=["claims"]
chance = with_entropy(0.98 * math.log(2), 2)
alpha = 1 / math.log(chance / (1 - chance))
assert round(chance, 2) == 0.58
assert 2.9 < alpha < 3.1

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function should compute `expected_soft_value`. It believes the less optimistic critic, and
# yet it promises too much. Fix it.


# %%
def answer(q, log_prob, alpha):
    prob = log_prob.exp()
    return (prob * (q - alpha * log_prob)).sum(-1).amin(0)


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def judged(seed):
    """Return values by two critics, log-probabilities and a temperature."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, 5, 3, generator=generator)
    return q, torch.randn(5, 3, generator=generator).log_softmax(-1), 0.3


grade(answer, expected_soft_value, *map(judged, range(3)))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(q, log_prob, alpha):
    # The minimum belongs to each action. Behind the sum, one critic is believed about all
    # actions, and a critic that is too high about one of them may be too low about another.
    prob = log_prob.exp()
    return (prob * (q.amin(0) - alpha * log_prob)).sum(-1)


grade(answer, expected_soft_value, *map(judged, range(3)))

# %% [markdown]
# ### Exercise 3: guess
#
# With a target entropy of 0.1 nats the fourth seed ended with a price of 0.013 for a nat. Train it with the
# default, 0.35 nats. What will the price be: `"lower"`, `"about the same"`
# (within a factor of 1.5) or `"higher"`? Guess; a stored run decides. To train it yourself takes some
# twenty seconds: `train("SAC", "CartPole-v1", seed=4)` of {doc}`apps/training`.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def became():
    """Return what the price of the stored fourth run with the default became."""
    low, high = (found.watched["charts/alpha"][3, -1] for found in (sure, half))
    ratio = high / low
    return "lower" if ratio < 1 / 1.5 else "higher" if ratio > 1.5 else "about the same"


grade(answer, became, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # To be more random than it would like to be, a policy has to be paid more. With all ten seeds
    # the price ends at least 1.7 times as high.
    return "higher"


grade(answer, became, ())

# %% tags=["claims"]
low, high = (found.watched["charts/alpha"][:, -1] for found in (sure, half))
assert round(low[3], 3) == 0.013
assert (high / low).min() > 1.7, "with all ten seeds"

# %% [markdown]
# ## References
#
# Discrete SAC is from {cite:t}`christodoulou2019`. The agent that it changes is from
# {cite:t}`haarnoja2018`, with the tuned temperature of {cite:t}`haarnoja2018b`.

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPO
#
# **How does a loss become an agent that learns?** The last page has the loop and the loss. What is left are a
# few details, which make it reliable. After this chapter you can read and write every line of PPO, and see
# from its metrics whether a run is healthy. It takes about 20 minutes to read, without exercises. You need
# the loss ({doc}`ppo_error`) and the advantages ({doc}`advantages`).

# %% tags=["hide-cell", "so-far"] jupyter={"source_hidden": true}
from literate_rl.apps.programs import source

source("ppo_error")

# %% [markdown]
# ## PPO on one page
#
# The learning rate falls in a straight line from $\alpha$ to zero. After $i$ of $I$ steps in the
# environments it is
#
# $$
# \alpha_i = \alpha \, (1 - i / I) .
# $$ (annealing)
#
# The advantages of a minibatch are shifted and scaled,
#
# $$
# \hat A_b \;\leftarrow\; \frac{\hat A_b - \operatorname{mean}(\hat A)}
#     {\operatorname{std}(\hat A) + 10^{-8}} ,
# $$ (advantage-normalised)
#
# so that the actor's gradient does not depend on the unit of the rewards. The critic's does. With
# **gradient clipping** a gradient whose norm is above a bound is scaled down to it, so that one odd
# minibatch cannot outweigh the others. And the layers start orthogonal, the actor's last one small, so that
# the first policy is nearly even. Adam's $\varepsilon$, which keeps it from dividing by zero, is $10^{-5}$.

# %% tags=["program"] total_steps=50000
import torch
from torch import nn

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs
from literate_rl.maths.ppo_error import ppo_policy_data, ppo_policy_error

torch.set_num_threads(1)  # the networks are too small for several threads to pay

env_id, seed, total_steps = "CartPole-v1", 1, 50_000
num_envs, num_steps, num_epochs, num_minibatches = 8, 64, 8, 4
learning_rate, gamma, lambda_, clip_ratio = 2e-3, 0.98, 0.8, 0.2


def network(outputs, gain):
    """Build two hidden layers; `gain` is the scale of the output layer."""
    layers = nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
# The actor's numbers are the logits of the actions, the critic's one is the value.
actor, critic = network(int(actions), gain=0.01), network(1, gain=1.0)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate, eps=1e-5)
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw an action for each observation."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, report = [], 0  # when each episode ended, and its return
while collector.step < total_steps:
    # The learning rate falls to zero in a straight line.
    rate = learning_rate * (1 - collector.step / total_steps)
    optimizer.param_groups[0]["lr"] = rate

    # 1. Collect: act for some steps with the policy as it is.
    batch = collector.collect(act, num_steps)
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    # 2. Look back: the old policy, values, advantages, and targets for the critic.
    with torch.no_grad():
        old_logit = actor(batch.obs)
        value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
    ends = batch.terminated, batch.truncated
    adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
    # From here on time plays no role: the rollout becomes one long list of samples.
    columns = batch.obs, batch.action, old_logit, adv, adv + value
    samples = [column.flatten(0, 1) for column in columns]

    # 3. Learn: some epochs, each over the shuffled samples, one minibatch at a time.
    for _ in range(num_epochs):
        order = torch.randperm(num_steps * num_envs, generator=generator)
        for rows in order.chunk(num_minibatches):
            obs, action, old, adv, target = (column[rows] for column in samples)
            # The advantages of a minibatch get mean 0 and deviation 1.
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)
            # The loss with a brake, {eq}`clipped-surrogate`, and the critic's.
            data = ppo_policy_data(actor(obs), old, action, adv, None)
            policy_loss, _ = ppo_policy_error(data, clip_ratio)
            value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()

            optimizer.zero_grad()
            (policy_loss.policy_loss + 0.5 * value_loss).backward()
            # A gradient that is too long is shortened.
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# %% [markdown]
# This is PPO, for any task with a vector of numbers to see and a few actions to choose from. Only
# the entropy bonus is missing: CartPole is learned without it. {doc}`learners/ppo` has the same
# as a class, for all the kinds of actions of {doc}`policies`, and `train("PPO", env)` uses that class,
# with settings for each task. {doc}`from_nothing` has it once more, without one function of this book.

# %% tags=["hide-input"]
from literate_rl.book.growth import grown, runs_of

grown("ppo")

# %% [markdown]
# **Notice** how close together the thin lines have come: what is gained is reliability. In the second half of
# its run the agent of the last page is below 475 points for 37 percent of the time, this one for 8. Nineteen
# of twenty runs end above 475, thirteen before. The learning rate is another one, too, and what each of them
# does was not measured here: {doc}`ppo_evidence` takes some of them away.

# %% tags=["claims"]
earlier, whole = runs_of("ppo_error"), runs_of("ppo")
late = whole.steps > 25_000
below = [(runs.curves[:, late] < 475).mean() for runs in (earlier, whole)]
assert [round(100 * x) for x in below] == [37, 8], "percent of the time"
assert [(runs.final >= 475).sum() for runs in (earlier, whole)] == [13, 19]
assert (whole.final == 500).sum() == 19, "at 500"

# %% [markdown]
# ## Two problems, one after the other
#
# How do episodes *end* while it learns? The pole leans too far, the cart leaves the track, or all 500
# steps are done. Ten stored runs of the same settings:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Shares of the ways in which episodes end. At first all end because the pole leans too far; around 14,000 steps most end because the cart leaves the track; from 32,000 steps on nearly all last 500 steps"}}
import matplotlib.pyplot as plt
import numpy as np

from literate_rl.runs.runs import stored_runs

ends = stored_runs("cartpole_ends")["the page"]
ways = {
    "the pole leans too far": "ends/pole",
    "the cart leaves the track": "ends/track",
    "500 steps": "ends/limit",
}
counts = [
    np.convolve(ends.watched[x].sum(0), np.ones(3), "same") for x in ways.values()
]
shares = np.array(counts) / np.sum(counts, 0)
fig, axis = plt.subplots(figsize=(5, 2.8))
axis.stackplot(ends.steps / 1000, shares, labels=ways, alpha=0.7)
axis.set(xlabel="thousand steps", ylabel="share of episodes", ylim=(0, 1))
axis.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
fig.tight_layout()

# %% [markdown]
# **Notice** that the agent has two problems, one after the other. At first nearly every episode ends
# because the pole leans too far. Around 14,000 steps most end because the cart drifts off the track, while
# the mean return still rises. So look at *how* episodes end before you change a setting.

# %% tags=["claims"]
assert len(ends.final) == 10
pole, track, limit = shares
assert pole[0] > 0.95, "first the pole"
assert track[6] > 0.6, "then mostly the track"
assert ends.steps[6] == 14_000
assert (np.diff(ends.curves.mean(0)[4:8]) > 20).all(), "the mean return still rises"
assert limit[16:].min() > 0.95, "then neither"

# %% [markdown]
# Here is the agent itself. It takes the likeliest action on this page (it acts *greedily*), with the
# weights that the program has just learned, and the line is what its critic thinks while it acts. Push the
# pole, with the buttons or with the arrow keys:

# %% tags=["hide-input"]
from literate_rl.runs.evaluation import evaluate
from literate_rl.nets.policies import Policy
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.book.playground import PUSH, play, push_cartpole, rounded

push_cartpole(actor, critic, "The agent of this page, to be pushed")

# %% [markdown]
# A push changes the pole's angular velocity by 0.7 radians a second, more than two actions of the
# agent do. **Notice** that the value hardly moves when you push. It stays near 50, the most that
# $\gamma = 0.98$ allows. Wait a
# second between two pushes, and the agent copes with most of them. But push twice in a row, and it
# may fall. Nobody pushed while it learned, which may be
# why. The critic does not see it coming: it promises almost as much as ever at the moment of
# the fall.

# %% tags=["claims"]
import gymnasium as gym

few_digits = Policy(ActorCritic(rounded(actor), rounded(critic)), CategoricalActions(2))
cartpole = Policy(ActorCritic(actor, critic), CategoricalActions(2))
greedy_returns = evaluate(cartpole, "CartPole-v1", episodes=20, seed=1)
kept = evaluate(few_digits, "CartPole-v1", episodes=20, seed=1)
assert kept.mean() > greedy_returns.mean() / 2, "the rounded weights act as well"


cart = gym.make("CartPole-v1").unwrapped
cart.reset(seed=1)
cart.state = np.zeros(4)
_, _, _, turns = cart.step(1)[0]
assert PUSH == 0.7 > 2 * abs(turns), "more than two actions"


def games(*times):
    """Play ten games with pushes at some steps."""
    pushes = dict.fromkeys(times, PUSH)
    return [play(actor, critic, pushes, seed=seed) for seed in range(1, 11)]


apart = games(60, 110, 160, 210)
assert sum(game.fell for game in apart) <= 5, "it copes with most of them"
assert abs(np.mean([np.median(game.values) for game in apart]) - 50) < 5, "near 50"
for game in games(60, 70):
    if game.fell:
        assert game.values[-1] > 0.5 * game.values[59], "almost as much as ever"

# %% [markdown]
# ## Why small steps
#
# Why does the loop learn for a few epochs, and then collect anew? The loss judges the actions of
# the new policy in the states of the *old* one. That is right near the old policy and wrong far
# away: on the pier of {doc}`ppo_error` a large step ends in the water. The clip takes away
# what could be gained by going further, and new data are collected where the policy is now.
#
# The clip is not the only way to stay near. PPO simplifies an older method, **TRPO**, trust
# region policy optimisation {cite:p}`schulman2015`. TRPO maximises the same estimate under a hard
# bound on the KL divergence between old and new policy, which takes second derivatives. The other
# PPO, in the same paper as the clip {cite:p}`schulman2017`, subtracts a **KL penalty**, whose
# weight grows when the policy has moved too far and shrinks when it has hardly moved.

# %% [markdown]
# ## From rollout to minibatches
#
# One iteration in a picture. Each column is one environment, and the second is coloured. Time
# runs downward and matters for the advantages only. Then the cells are shuffled: follow the
# coloured ones.

# %% tags=["hide-input"]
from random import Random

from literate_rl.book.pictures import Box, Picture

picture = Picture(
    "PPO, from rollout to minibatches",
    "A rollout is a grid, one row for each step and one column for each environment. Values "
    "and advantages are computed along the columns. Then all cells are shuffled and cut "
    "into four minibatches. The policy learns from each, several times over, and collects "
    "the next rollout.",
)
T, B = 4, 4
for t in range(T):
    picture.cells(40, 50 + 32 * t, [""] * B, {1: "second"}, width=30)
rollout = Box(91, 98, 156, 148)
picture.path("M13,24H169V172H13Z", "quiet", "dashed")
picture.text(91, 12, "1 · collect T × B steps", "quiet")
look_back = picture.box(336, 98, "2 · look back\nvalues, advantages,\ntargets")
picture.arrow(rollout, look_back)
for place, step in enumerate(Random(4).sample(range(T * B), T * B)):
    x = 19 + 24.5 * place + 11 * (place // 4)
    picture.cells(x, 236, [""], {0: "second"} if step % B == 1 else {}, width=20)
picture.arrow(look_back, (look_back.x, 218))
picture.text(220, 268, "3 · learn from shuffled minibatches, for a few epochs")
anew = "collect anew, with the\npolicy that has learned"
picture.arrow((rollout.x, 216), rollout, anew, "accent", side=-1)
picture

# %% [markdown]
# ## Is the run healthy?
#
# Look at these four numbers in every run. Here they are for a Gaussian policy on Pendulum, trained by
# one call of `train`. The motor is too weak to lift the pendulum, so it has to swing it up. Each step
# costs something: a motor that pushes at random gets about $-1200$, a good one about $-150$.
# `evaluate` plays greedy episodes ({doc}`evaluation`).

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four small panels over steps of the run on Pendulum: the KL divergence, k3, stays below a few hundredths; so does the clip fraction below one third; the entropy falls slowly; the explained variance rises from zero to nearly one"}}
from literate_rl.apps.training import train

agent = train("PPO", "Pendulum-v1", seed=1, total_steps=50_000, progress=False)
history = agent.history
steps = [row["step"] for row in history]
pendulum_returns = evaluate(agent.policy, "Pendulum-v1", episodes=20, seed=1)
print(f"20 greedy episodes: {pendulum_returns.mean():.0f}")

panels = {
    "losses/approx_kl": "KL divergence $k_3$",
    "losses/clipfrac": "clip fraction",
    "losses/entropy": "entropy",
    "losses/explained_variance": "explained variance",
}
fig, axes = plt.subplots(2, 2, figsize=(7, 3.6), sharex=True)
watched = {name: np.array([h[name] for h in history]) for name in panels}
for axis, (name, title) in zip(axes.flat, panels.items(), strict=True):
    axis.plot(steps, watched[name], linewidth=0.8)
    axis.set_title(title, fontsize=10)
    axis.locator_params(nbins=4)
fig.tight_layout()

# %% [markdown]
# - The **KL divergence** says how far one iteration has moved the policy. Around 0.01 is healthy.
# - The **clip fraction** is the share of samples whose ratio has left the clip range. If it is
#   always zero, the clip does nothing, and a larger learning rate or more epochs are worth a try.
# - The **entropy** falls while the policy makes up its mind. If it drops at once, the agent has
#   stopped exploring. For discrete actions it cannot be below zero, for a Gaussian policy it can.
# - The **explained variance** says how much of its targets the critic foresees: 1 is all, 0 is
#   no more than the mean. If it stays near zero or below, look at the critic first: at its
#   learning rate, and at the size of the rewards.
#
# If one of them looks odd, {doc}`debugging` has its likely cause and a check.

# %% tags=["claims"]
quarter = len(steps) // 4
divergence = watched["losses/approx_kl"]
assert 1e-3 < np.median(divergence) < 0.03, "around 0.01"
assert pendulum_returns.mean() > -600, "it swings up"
assert watched["losses/entropy"][-1] < watched["losses/entropy"][0], "it falls"
assert watched["losses/explained_variance"][-quarter:].mean() > 0.3, "it is foreseen"

# %% [markdown]
# ## When to use it
#
# PPO is the agent to try first where steps are cheap: it takes actions of every kind, needs no replay buffer,
# and most of its settings can stay. On Pendulum it learned where the same agent with one update did not. It
# throws its steps away after a few epochs, though. Where a step is dear, an agent that keeps them needs far
# fewer.
#
# - **Use it for**: actions of all kinds (discrete, continuous, hybrid), where steps are cheap
# - **Rather than**: {doc}`a2c`, which uses a batch once; but where steps are dear, {doc}`sac` or
#   {doc}`dqn`
# - **Costs**: 50,000 steps and about 3 CPU seconds for CartPole, 100,000 steps and about 9 CPU
#   seconds for Pendulum
# - **First settings**: `learning_rate=2e-3`, `num_steps=32`, `gamma=0.98` for CartPole, 3e-3, 200 and 0.9 for
#   Pendulum; ten epochs in 8 environments
# - **Decided by**: four agents on Pendulum ({doc}`ppo_evidence`)

# %% tags=["claims"]
from literate_rl.learners.ppo import ppo_settings

for task, total, seconds, goal in (
    ("cartpole", 50_000, 3, 475),
    ("pendulum", 100_000, 9, -200),
):
    runs = stored_runs(task)["PPO"]
    assert runs.steps[-1] == total
    assert round(runs.cpu_seconds.mean()) == seconds, "CPU seconds"
    assert runs.final.mean() > goal, "solved"
swings = stored_runs("arc_pendulum")
assert swings["PPO"].final.min() > -400, "it learned"
assert swings["A2C"].final.max() < -800, "with one update it did not"
for env_name, *first in (
    ("CartPole-v1", 2e-3, 32, 0.98),
    ("Pendulum-v1", 3e-3, 200, 0.9),
):
    tried = ppo_settings(env_name)
    assert (tried.num_epochs, tried.num_envs) == (10, 8), "first settings"
    assert [tried.learning_rate, tried.num_steps, tried.gamma] == first

# %% [markdown]
# ## Summary
#
# - PPO collects a rollout, estimates advantages, and learns for some epochs from shuffled
#   minibatches. Then it throws the rollout away.
# - The estimate of what a new policy gains comes from the old policy's states, so it holds only
#   near the old policy. The clip takes away what could be gained by leaving.
# - Watch KL divergence, clip fraction, entropy and explained variance. In the first minibatch
#   all ratios are 1.
# - The learning rate falls to zero, advantages are normalised and gradients clipped. In {doc}`ppo_evidence`
#   none of these alone shows a gain.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "An iteration has one epoch and one minibatch, the whole rollout. Someone forgets the clip. "
    "What changes?",
    ["nothing", "the updates get larger", "the entropy falls faster"],
    right="nothing",
    because="There is a single update, and when its gradient is computed all ratios are 1. The "
    "clip has nothing to hold. It matters from the second update on.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to shuffle two columns of the samples. With it PPO runs, all metrics are
# finite, and nothing is learned. Repair it.


# %%
def answer(obs, adv, seed):
    generator = torch.Generator().manual_seed(seed)
    order = [torch.randperm(len(column), generator=generator) for column in (obs, adv)]
    return obs[order[0]], adv[order[1]]


from literate_rl.book.exercises import grade


def kept_together(obs, adv, seed):
    """Say whether the pairs are whole, all there, and in another order."""
    result = answer(obs, adv, seed)
    if result is ...:
        return ...
    first, second = result
    whole, there = torch.equal(first.flatten(), second), second.sort().values
    return [whole, torch.equal(there, adv), not torch.equal(second, adv)]


# Each advantage has the number of its observation.
tables = [(torch.arange(6.0).reshape(6, 1), torch.arange(6.0), seed) for seed in (1, 2)]
grade(kept_together, lambda *_: [True, True, True], *tables)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(obs, adv, seed):
    # One order for all columns: an advantage belongs to its observation and action.
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(obs), generator=generator)
    return obs[order], adv[order]


grade(kept_together, lambda *_: [True, True, True], *tables)

# %% [markdown]
# ### Exercise 3: write PPO yourself
#
# Now from nothing: sixty lines are enough. The task is the house of {doc}`book/rooms`, six rooms
# of which each tests one part of a learner ({doc}`debugging` walks through them). `make_envs(house,
# 8)` makes eight copies; an observation has nine numbers, there are two actions, and the discount is
# 0.8. Write actor and critic, the loop, GAE, the clip and the loss. Train for as many iterations of 256
# steps as you are told, and return two functions of observations: one gives the values, $(B,)$, the
# other the probabilities of the two actions, $(B, 2)$. From the book you may use `Collector` and
# `make_envs`.
#
# A right program needs time, too. So the house asks after 30 iterations, and where an answer is wrong
# again after 60, 120 and 240, as long as it comes nearer. What stands still is wrong: the verdict names
# the room, and the room names the part. Guess first: how many iterations will you need?

# %%
from literate_rl.data.agents import Collector, make_envs
from literate_rl.book.rooms import house, visit_rooms


def answer(iterations):
    return ...


# %% tags=["hide-input"]
def right_in_all_rooms():
    """Train, ask about the six rooms, and raise where an answer stays wrong."""
    if answer(1) is ...:
        return ...
    _, needed = visit_rooms(answer)
    print(f"All six rooms are right after {needed} iterations.")
    return True


grade(right_in_all_rooms, lambda: True, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(iterations):
    torch.manual_seed(1)
    actor, critic = (
        nn.Sequential(nn.Linear(9, 64), nn.Tanh(), nn.Linear(64, n)) for n in (2, 1)
    )
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 3e-3)
    collector = Collector(make_envs(house, 8))
    collector.reset(seed=1)

    def act(obs):
        return torch.multinomial(actor(obs).softmax(-1), 1).squeeze(-1)

    for _ in range(iterations):
        # Collect, and write down what the old policy and the old critic say.
        batch = collector.collect(act, 32)
        with torch.no_grad():
            old = actor(batch.obs).log_softmax(-1)
            value, after = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
        # A terminated step has no future; a truncated one has, but not in the next row.
        error = batch.reward + 0.8 * after.masked_fill(batch.terminated, 0.0) - value
        goes_on = ~(batch.terminated | batch.truncated)
        adv, later = torch.zeros_like(error), torch.zeros(8)
        for t in reversed(range(32)):
            later = error[t] + 0.8 * 0.8 * goes_on[t] * later
            adv[t] = later
        target, weight = adv + value, (adv - adv.mean()) / (adv.std() + 1e-8)
        # Learn, eight times from the whole rollout.
        taken = batch.action[..., None]
        for _ in range(8):
            log_prob = actor(batch.obs).log_softmax(-1)
            ratio = (log_prob - old).gather(-1, taken).squeeze(-1).exp()
            gain = torch.min(ratio * weight, ratio.clamp(0.8, 1.2) * weight).mean()
            miss = (target - critic(batch.obs)[..., 0]).square().mean()
            optimizer.zero_grad()
            (0.5 * miss - gain).backward()
            optimizer.step()
    return lambda obs: critic(obs)[..., 0], lambda obs: actor(obs).softmax(-1)


grade(right_in_all_rooms, lambda: True, ())

# %% [markdown]
# ## References
#
# PPO is from {cite:t}`schulman2017`, TRPO from {cite:t}`schulman2015`. {cite:t}`huang2022`
# collect the details of implementations, {cite:t}`engstrom2020` and {cite:t}`andrychowicz2021`
# measure what they are worth.

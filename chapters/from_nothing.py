# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPO from nothing
#
# **What is left of PPO when no line is hidden in a function?** The program of {doc}`ppo` imports its
# advantages, its loss and its rollouts from this book. Here it stands once more with PyTorch, NumPy and
# Gymnasium alone, to be typed by hand. It takes about 6 minutes to read. You need {doc}`ppo`.
#
# ## The whole of it
#
# One thing is simpler here: there is one environment instead of eight. So a rollout has no dimension for
# environments, and the advantages are one loop that runs backward.

# %% tags=["program"] total_steps=50000
import gymnasium as gym
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)

env_id, seed, total_steps = "CartPole-v1", 1, 50_000
num_steps, num_epochs, num_minibatches = 512, 8, 4
learning_rate, gamma, lambda_, clip_ratio = 2e-3, 0.98, 0.8, 0.2

torch.manual_seed(seed)
env = gym.make(env_id)
inputs, actions = env.observation_space.shape[0], int(env.action_space.n)


def network(outputs):
    """Build two hidden layers."""
    layers = nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


actor, critic = network(actions), network(1)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate)


def log_probs(obs, action):
    """Return the log-probability of each action."""
    return actor(obs).log_softmax(-1).gather(-1, action[:, None])[:, 0]


episodes, score, step = [], 0.0, 0
obs, _ = env.reset(seed=seed)
while step < total_steps:
    optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / total_steps)

    # 1. Collect. An episode that ends begins anew, but its last observation is kept.
    rollout = []
    for _ in range(num_steps):
        with torch.no_grad():
            prob = actor(torch.as_tensor(obs)).softmax(-1)
        action = torch.multinomial(prob, 1).item()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rollout.append((obs, action, reward, next_obs, terminated, truncated))
        obs, score, step = next_obs, score + reward, step + 1
        if terminated or truncated:
            episodes.append((step, score))
            (obs, _), score = env.reset(), 0.0

    # 2. Look back. The bootstrap ends at a termination, the sum at any end.
    columns = (torch.from_numpy(np.array(x)) for x in zip(*rollout, strict=True))
    seen, action, reward, then, terminated, truncated = columns
    with torch.no_grad():
        value, next_value = critic(seen)[:, 0], critic(then)[:, 0]
        old = log_probs(seen, action)
    error = reward.float() + gamma * next_value * ~terminated - value
    adv, later = torch.zeros(num_steps), 0.0
    for t in reversed(range(num_steps)):
        goes_on = not (terminated[t] or truncated[t])
        adv[t] = later = error[t] + gamma * lambda_ * goes_on * later
    samples = seen, action, old, adv, adv + value

    # 3. Learn: some epochs over shuffled minibatches.
    for _ in range(num_epochs):
        for rows in torch.randperm(num_steps).chunk(num_minibatches):
            x, action, old, adv, target = (column[rows] for column in samples)
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            ratio = (log_probs(x, action) - old).exp()
            clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
            policy_loss = -torch.min(ratio * adv, clipped * adv).mean()
            value_loss = 0.5 * (target - critic(x)[:, 0]).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    if step % 5120 == 0:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {step:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# %% [markdown]
# What was imported before is here a few lines of its own, and three details are PyTorch's:
#
# | in {doc}`ppo` | here |
# |---|---|
# | `Collector` | the loop of part 1: it keeps the observation *behind* a step, and begins anew after an end |
# | `gae` | the loop over `t`, {eq}`gae` |
# | `ppo_policy_data` and `ppo_policy_error` | `ratio`, `clipped` and `policy_loss`, {eq}`clipped-surrogate` |
# | an orthogonal start, Adam with `eps=1e-5`, `correction=0` in the deviation | PyTorch's defaults |
#
# Ten stored runs of each, every seed a thin line and the mean a thick one:

# %% tags=["hide-input"] mystnb={"image": {"alt": "Learning curves over 50,000 steps of CartPole. The means of both programs rise to 500 and lie on each other"}}
import matplotlib.pyplot as plt

from literate_rl.runs.evaluation import paired_difference
from literate_rl.runs.runs import stored_runs

runs = {
    "from nothing": stored_runs("program_from_nothing")["from_nothing"],
    "with the book's functions": stored_runs("program_ppo")["ppo"],
}
curves = {name: both.curves[:10] for name, both in runs.items()}
fig, axis = plt.subplots(figsize=(6, 2.8))
for number, (name, seeds) in enumerate(curves.items()):
    thousand = runs[name].steps / 1000
    axis.plot(thousand, seeds.T, color=f"C{number}", linewidth=0.6, alpha=0.4)
    axis.plot(thousand, seeds.mean(0), color=f"C{number}", linewidth=2.2, label=name)
axis.set(xlabel="thousand steps", ylabel="return")
axis.legend()
fig.tight_layout()

# %% [markdown]
# **Notice** that the two cannot be told apart. All ten runs end above 498 of 500 points, and over the whole
# run the mean return differs by 8 (−33 to 49, {doc}`evaluation`). So ten seeds show no strength that the
# book's functions add. What they add is checks, a batch of environments, and other kinds of actions.
#
# Now close this page and write it yourself. Where your program does not learn,
# {doc}`debugging` tells you how to find out why.

# %% tags=["claims"]
ours, theirs = curves.values()
assert len(ours) == len(theirs) == 10
assert runs["from nothing"].final.min() > 498, "above 498 of 500"
gap = paired_difference(ours.mean(1), theirs.mean(1))
assert [round(x) for x in gap] == [8, -33, 49]

# %% [markdown]
# ## References
#
# As {doc}`ppo`.

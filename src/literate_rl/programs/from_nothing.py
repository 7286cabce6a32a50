# Generated from chapters/from_nothing.py (edit there); digest 4274090abda5e793
"""PPO from nothing on one page, from the chapter from_nothing.

Copy it and make it yours:

    literate-rl copy from_nothing > my_from_nothing.py
    python my_from_nothing.py --env CartPole-v1 --seed 1 --total-steps 50000
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=50_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
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

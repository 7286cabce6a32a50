# Generated from chapters/ddpg.py (edit there); digest e8e3e617bb94a083
"""DDPG on one page, from the chapter ddpg.

Copy it and make it yours:

    literate-rl copy ddpg > my_ddpg.py
    python my_ddpg.py --env Pendulum-v1 --seed 1 --total-steps 10000
"""

import argparse

import copy

import torch
from torch import nn

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.replay import ReplayBuffer

torch.set_num_threads(1)  # the networks are too small to be shared out

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="Pendulum-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=10_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
random_steps, batch_size = 500, 128
learning_rate, gamma, tau, noise = 1e-3, 0.99, 0.005, 0.1


def network(inputs, outputs):
    """Build two hidden layers and an output layer."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, outputs))


envs = make_envs(env_id, 1)
inputs, box = envs.single_observation_space.shape[0], envs.single_action_space
low, high = torch.from_numpy(box.low), torch.from_numpy(box.high)
middle, half, size = (low + high) / 2, (high - low) / 2, len(low)
torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
actor = nn.Sequential(network(inputs, size), nn.Tanh())  # from a state to -1..1
critic = network(inputs + size, 1)  # from a state and an action to a value
older_actor, older_critic = copy.deepcopy((actor, critic))
actor_optimizer = torch.optim.Adam(actor.parameters(), learning_rate)
critic_optimizer = torch.optim.Adam(critic.parameters(), learning_rate)


def value(critic, obs, action):
    """Return what a critic thinks of actions."""
    return critic(torch.cat([obs, action], -1)).squeeze(-1)


def act(obs):
    """Act at random at first, then as the actor does, with some noise."""
    if collector.step < random_steps:
        share = 2 * torch.rand(1, size, generator=generator) - 1
    else:
        share = actor(obs) + noise * torch.randn(1, size, generator=generator)
    return middle + half * share.clamp(-1.0, 1.0)


collector, buffer, episodes = Collector(envs), ReplayBuffer(total_steps), []
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1
while collector.step < total_steps:
    # 1. Act once. Everything is remembered.
    step = collector.collect(act, 1)
    buffer.push(step)
    ended = step.terminated | step.truncated
    episodes += [(collector.step, x) for x in step.episode_return[ended].tolist()]
    if episodes and collector.step % (total_steps // 5) == 0:
        last = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:6d}: mean return {sum(last) / len(last):.0f}")
    if collector.step <= random_steps:
        continue
    batch = buffer.sample(batch_size, generator, gamma=gamma)

    # 2. The critic learns. Older copies of both networks value the next state.
    with torch.no_grad():
        next_action = middle + half * older_actor(batch.next_obs)
        next_value = value(older_critic, batch.next_obs, next_action)
        future = next_value.masked_fill(batch.discount == 0, 0.0)  # nothing, at an end
        target = batch.reward + batch.discount * future
    error = value(critic, batch.obs, batch.action) - target
    critic_optimizer.zero_grad()
    (0.5 * error.square().mean()).backward()
    critic_optimizer.step()

    # 3. The actor climbs what the critic thinks of its actions.
    own_action = middle + half * actor(batch.obs)
    actor_optimizer.zero_grad()
    (-value(critic, batch.obs, own_action).mean()).backward()
    actor_optimizer.step()

    # 4. The older copies follow slowly.
    with torch.no_grad():
        for old, new in ((older_actor, actor), (older_critic, critic)):
            for weight, goal in zip(old.parameters(), new.parameters(), strict=True):
                weight.lerp_(goal, tau)

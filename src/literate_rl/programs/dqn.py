# Generated from chapters/dqn.py (edit there); digest 04a12e962e6aab10
"""DQN on one page, from the chapter dqn.

Copy it and make it yours:

    literate-rl copy dqn > my_dqn.py
    python my_dqn.py --env CartPole-v1 --seed 1 --total-steps 50000
"""

import argparse

import copy

import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.replay import ReplayBuffer

torch.set_num_threads(1)  # the network is too small to be shared out

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=50_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
num_envs, first_update, batch_size, hidden = 4, 1000, 128, 128
gamma, n, tau, learning_rate, scale = 0.99, 20, 0.02, 1e-3, 0.05

torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
seen, actions = envs.single_observation_space, int(envs.single_action_space.n)
first, second = nn.Linear(seen.shape[0], hidden), nn.Linear(hidden, hidden)
last = nn.Linear(hidden, actions)  # a value for each action
network = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
older = copy.deepcopy(network)  # the target network
optimizer = torch.optim.Adam(network.parameters(), learning_rate)


def act(obs):
    """Take the action of the largest value, and now and then a random one."""
    epsilon = max(0.05, 1 - collector.step / 5000)
    anything = torch.randint(actions, (len(obs),), generator=generator)
    explore = torch.rand(len(obs), generator=generator) < epsilon
    return torch.where(explore, anything, network(obs).argmax(-1))


collector, buffer, episodes = Collector(envs), ReplayBuffer(100_000), []
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1
while collector.step < total_steps:
    # The learning rate falls to zero in a straight line.
    rate = learning_rate * (1 - collector.step / total_steps)
    optimizer.param_groups[0]["lr"] = rate

    # 1. Act once in each environment. Everything is remembered.
    steps = collector.collect(act, 1)
    buffer.push(steps)
    returns = steps.episode_return[steps.terminated | steps.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    for _ in range(num_envs // 2 if collector.step > first_update else 0):
        batch = buffer.sample(batch_size, generator, n, gamma)
        # 2. What should the values be? The network chooses the best next action, its
        # older copy says what that one is worth.
        with torch.no_grad():
            best = network(batch.next_obs).argmax(-1, keepdim=True)
            next_q = older(batch.next_obs).gather(-1, best).squeeze(-1)
            future = next_q.masked_fill(batch.discount == 0, 0.0)  # nothing, at an end
            target = scale * batch.reward + batch.discount * future
        # 3. What are they? One step towards the targets.
        q = network(batch.obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        optimizer.zero_grad()
        smooth_l1_loss(q, target).backward()
        optimizer.step()
        # 4. The older copy follows slowly.
        with torch.no_grad():
            for old, new in zip(older.parameters(), network.parameters(), strict=True):
                old.lerp_(new, tau)

    if collector.step % (total_steps // 10) < num_envs:
        mean = sum(x for _, x in episodes[-20:]) / max(1, len(episodes[-20:]))
        print(f"step {collector.step:6d}: mean return of 20 episodes {mean:5.1f}")

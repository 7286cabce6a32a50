# Generated from chapters/td3.py (edit there); digest ca213c8ded90f05a
"""TD3 and HDDPG on one page, from the chapter td3.

Copy it and make it yours:

    literate-rl copy td3 > my_td3.py
    python my_td3.py --env Pendulum-v1 --seed 1 --total-steps 10000
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
random_steps, batch_size, learning_rate, gamma, tau = 500, 128, 1e-3, 0.99, 0.01
noise, smoothing, clip, delay = 0.1, 0.2, 0.5, 2


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
critics = nn.ModuleList([network(inputs + size, 1) for _ in range(2)])
older_actor, older_critics = copy.deepcopy((actor, critics))
actor_optimizer = torch.optim.Adam(actor.parameters(), learning_rate)
critic_optimizer = torch.optim.Adam(critics.parameters(), learning_rate)


def values(critics, obs, action):
    """Return what each critic thinks of actions."""
    rows = torch.cat([obs, action], -1)
    return torch.cat([critic(rows) for critic in critics], -1)


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

    # First change: the next action is moved a little, at random.
    with torch.no_grad():
        moved = smoothing * torch.randn(batch.action.shape, generator=generator)
        share = older_actor(batch.next_obs) + moved.clamp(-clip, clip)
        next_action = middle + half * share.clamp(-1.0, 1.0)
        # Second change: two critics say what it is worth, and the lower value counts.
        next_value = values(older_critics, batch.next_obs, next_action).amin(-1)
        future = next_value.masked_fill(batch.discount == 0, 0.0)  # nothing, at an end
        target = batch.reward + batch.discount * future
    error = values(critics, batch.obs, batch.action) - target.unsqueeze(-1)
    critic_optimizer.zero_grad()
    (0.5 * error.square()).mean(0).sum().backward()
    critic_optimizer.step()

    # Third change: the rest happens at every second update only.
    if (collector.step - random_steps) % delay > 0:
        continue
    # The actor climbs what the first critic thinks of its actions.
    own_action = middle + half * actor(batch.obs)
    actor_optimizer.zero_grad()
    (-values(critics[:1], batch.obs, own_action).mean()).backward()
    actor_optimizer.step()
    # The older copies follow slowly.
    with torch.no_grad():
        for old, new in ((older_actor, actor), (older_critics, critics)):
            for weight, goal in zip(old.parameters(), new.parameters(), strict=True):
                weight.lerp_(goal, tau)

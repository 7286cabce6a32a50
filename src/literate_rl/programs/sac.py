# Generated from chapters/sac.py (edit there); digest 7293098e5bd9ad5d
"""SAC on one page, from the chapter sac.

Copy it and make it yours:

    literate-rl copy sac > my_sac.py
    python my_sac.py --env Pendulum-v1 --seed 1 --total-steps 10000
"""

import argparse

import copy

import torch
from torch import nn

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.replay import ReplayBuffer
from literate_rl.ground.networks import squashed_log_prob

torch.set_num_threads(1)  # the networks are too small to be shared out

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="Pendulum-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=10_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
first_update, batch_size, learning_rate, gamma, tau = 500, 128, 1e-3, 0.99, 0.005


def network(inputs, outputs):
    """Build two hidden layers and an output layer."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, outputs))


envs = make_envs(env_id, 1)
inputs, box = envs.single_observation_space.shape[0], envs.single_action_space
low, high = torch.from_numpy(box.low), torch.from_numpy(box.high)
middle, half, size = (low + high) / 2, (high - low) / 2, len(low)
# For each number -1 in the unit of -1..1, converted to that of the box.
target_entropy = -size + half.log().sum().item()
torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
actor = network(inputs, 2 * size)  # from a state to means and logarithms of deviations
critics = nn.ModuleList([network(inputs + size, 1) for _ in range(2)])
older_critics = copy.deepcopy(critics)
log_alpha = torch.zeros((), requires_grad=True)  # the temperature's logarithm
critic_optimizer = torch.optim.Adam(critics.parameters(), learning_rate)
actor_optimizer = torch.optim.Adam([*actor.parameters(), log_alpha], learning_rate)


def draw(obs):
    """Draw an action for each observation; return its log-density too."""
    mean, log_sigma = actor(obs).chunk(2, -1)
    log_sigma = log_sigma.clamp(-5.0, 2.0)
    u = mean + log_sigma.exp() * torch.randn(mean.shape, generator=generator)
    return middle + half * u.tanh(), squashed_log_prob(u, mean, log_sigma, half)


def values(critics, obs, action):
    """Return what each critic thinks of actions."""
    return torch.cat([critic(torch.cat([obs, action], -1)) for critic in critics], -1)


collector, buffer, episodes = Collector(envs), ReplayBuffer(total_steps), []
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1
while collector.step < total_steps:
    # 1. Act once with the policy as it is. Everything is remembered.
    step = collector.collect(lambda obs: draw(obs)[0], 1)
    buffer.push(step)
    ended = step.terminated | step.truncated
    episodes += [(collector.step, x) for x in step.episode_return[ended].tolist()]
    if episodes and collector.step % (total_steps // 5) == 0:
        last = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:6d}: mean return {sum(last) / len(last):.0f}")
    if collector.step <= first_update:
        continue
    batch, alpha = buffer.sample(batch_size, generator, gamma=gamma), log_alpha.exp()

    # 2. The critics learn. The next state is worth the lower of two estimates, and its
    # entropy at the price alpha.
    with torch.no_grad():
        action, log_prob = draw(batch.next_obs)
        lowest = values(older_critics, batch.next_obs, action).amin(-1)
        future = (lowest - alpha * log_prob).masked_fill(batch.discount == 0, 0.0)
        target = batch.reward + batch.discount * future
    error = values(critics, batch.obs, batch.action) - target.unsqueeze(-1)
    critic_optimizer.zero_grad()
    (0.5 * error.square()).mean(0).sum().backward()
    critic_optimizer.step()

    # 3. The actor climbs the same sum for what it would do now.
    action, log_prob = draw(batch.obs)
    lowest = values(critics, batch.obs, action).amin(-1)
    actor_loss = -(lowest - alpha.detach() * log_prob).mean()
    # 4. The price rises if the policy is less random than it should be.
    alpha_loss = log_alpha * (-log_prob.detach().mean() - target_entropy)
    actor_optimizer.zero_grad()
    (actor_loss + alpha_loss).backward()
    actor_optimizer.step()

    # 5. The older critics follow slowly.
    for old, new in zip(older_critics.parameters(), critics.parameters(), strict=True):
        old.data.lerp_(new.data, tau)

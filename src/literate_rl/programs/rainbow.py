# Generated from chapters/rainbow.py (edit there); digest 84430829a074a07e
"""Rainbow on one page, from the chapter rainbow.

Copy it and make it yours:

    literate-rl copy rainbow > my_rainbow.py
    python my_rainbow.py --env CartPole-v1 --seed 1 --total-steps 30000
"""

import argparse

import copy

import torch
from torch import nn

from literate_rl.data.agents import Collector, make_envs
from literate_rl.maths.c51 import categorical_error, project_distribution
from literate_rl.data.replay import ReplayBuffer

torch.set_num_threads(1)  # the network is too small to be shared out

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=30_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
num_envs, first_update, batch_size, hidden, sigma = 4, 1000, 128, 128, 0.1
gamma, n, tau, learning_rate, exponent = 0.99, 20, 0.02, 1e-3, 0.5
low, high, num_atoms = 0.0, 100.0, 51  # every discounted return lies in between


def draw_noise(rows):
    """Draw a number for each input and output of both noisy layers."""
    normal = torch.randn(rows, sum(sizes), generator=generator)
    return normal.sign() * normal.abs().sqrt()


def logits(network, obs, noise):
    """Return the logits of a distribution for each action, (B, actions, atoms)."""
    first, mean, deviation, last_mean, last_deviation = network
    into, out, last_into, last_out = noise.split(sizes, -1)
    x = first(obs).relu()
    # Random weights: means, plus deviations times noise. Both are learned.
    x = (mean(x) + out * deviation(into * x)).relu()
    x = last_mean(x) + last_out * last_deviation(last_into * x)
    # Dueling, atom by atom: one row for the state, one more for each action.
    value, advantage = x.unflatten(-1, (-1, num_atoms)).split([1, actions], 1)
    return value + advantage - advantage.mean(1, keepdim=True)


def act(obs):
    """Take the action of the largest mean with random weights; at first any action."""
    best = (logits(network, obs, draw_noise(len(obs))).softmax(-1) @ atoms).argmax(-1)
    anything = torch.randint(actions, (len(obs),), generator=generator)
    explore = torch.rand(len(obs), generator=generator) < 1 - collector.step / 2000
    return torch.where(explore, anything, best)


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
seen, actions = envs.single_observation_space, int(envs.single_action_space.n)
outputs = (1 + actions) * num_atoms
sizes, atoms = [hidden, hidden, hidden, outputs], torch.linspace(low, high, num_atoms)
shapes = [(seen.shape[0], hidden), *2 * [(hidden, hidden)], *2 * [(hidden, outputs)]]
network = nn.ModuleList([nn.Linear(*shape) for shape in shapes])
for parameter in [*network[2].parameters(), *network[4].parameters()]:
    nn.init.constant_(parameter, sigma / hidden**0.5)  # the deviations
older, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters())
collector, buffer, episodes = Collector(envs), ReplayBuffer(100_000, exponent), []
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1
while collector.step < total_steps:
    progress = collector.step / total_steps
    optimizer.param_groups[0]["lr"] = learning_rate * (1 - progress)
    # 1. Act once in each environment. Everything is remembered.
    steps = collector.collect(act, 1)
    buffer.push(steps)
    returns = steps.episode_return[steps.terminated | steps.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]
    for _ in range(num_envs // 2 if collector.step > first_update else 0):
        # 2. Windows of n steps, by priority. Each pass has a noise of its own.
        batch = buffer.sample(batch_size, generator, n, gamma, 0.4 + 0.6 * progress)
        rows, (own, choosing, evaluating) = torch.arange(batch_size), draw_noise(3)
        # 3. The network chooses the next action, its older copy says which returns may
        # follow. They are moved by the rewards and projected onto the atoms.
        with torch.no_grad():
            mean = logits(network, batch.next_obs, choosing).softmax(-1) @ atoms
            following = logits(older, batch.next_obs, evaluating).softmax(-1)
            prob = following[rows, mean.argmax(-1)]
            target = project_distribution(prob, batch.reward, batch.discount, low, high)
        # 4. One step towards the targets. The errors are the new priorities.
        taken = logits(network, batch.obs, own)[rows, batch.action]
        error = categorical_error(taken.log_softmax(-1), target)
        optimizer.zero_grad()
        (batch.weight * error).mean().backward()
        optimizer.step()
        buffer.update(batch.place, error.detach())
        # 5. The older copy follows slowly.
        with torch.no_grad():
            for old, new in zip(older.parameters(), network.parameters(), strict=True):
                old.lerp_(new, tau)
    if collector.step % (total_steps // 10) < num_envs:
        mean = sum(x for _, x in episodes[-20:]) / max(1, len(episodes[-20:]))
        print(f"step {collector.step:6d}: mean return of 20 episodes {mean:5.1f}")

# Generated from chapters/discrete_sac.py (edit there); digest 52822cc51a5812ac
"""Discrete SAC on one page, from the chapter discrete_sac.

Copy it and make it yours:

    literate-rl copy discrete_sac > my_discrete_sac.py
    python my_discrete_sac.py --env CartPole-v1 --seed 1 --total-steps 20000
"""

import argparse

import copy
import math

import torch
from torch import nn

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.replay import ReplayBuffer

torch.set_num_threads(1)  # the networks are too small to be shared out

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=20_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
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

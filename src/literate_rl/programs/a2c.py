# Generated from chapters/a2c.py (edit there); digest 2a0a68108ffd9e07
"""A2C on one page, from the chapter a2c.

Copy it and make it yours:

    literate-rl copy a2c > my_a2c.py
    python my_a2c.py --env CartPole-v1 --seed 1 --total-steps 200000
"""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs

torch.set_num_threads(1)  # the networks are too small to be shared out
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=200_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
num_envs, num_steps, gamma, reward_scale = 8, 5, 0.99, 0.1
learning_rate, decay, epsilon, max_grad_norm = 1e-3, 0.999, 1e-5, 0.5
value_weight, entropy_weight = 0.5, 0.0

envs = make_envs(env_id, num_envs)
obs_size = envs.single_observation_space.shape[0]
num_actions = int(envs.single_action_space.n)


def network(outputs, gain):
    """Build two hidden layers; `gain` is the scale of the output layer."""
    layers = nn.Linear(obs_size, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
actor, critic = network(num_actions, gain=0.01), network(1, gain=1.0)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.RMSprop(parameters, learning_rate, decay, epsilon)
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Sample an action for each observation."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, next_report = [], total_steps // 8
while collector.step < total_steps:
    # The learning rate falls to zero in a straight line.
    rate = learning_rate * (1 - collector.step / total_steps)
    optimizer.param_groups[0]["lr"] = rate

    # 1. Act for a few steps.
    batch = collector.collect(act, num_steps)

    # 2. How much better than expected was each action?
    value = critic(batch.obs)[..., 0]
    with torch.no_grad():
        next_value = critic(batch.next_obs)[..., 0]
    reward, ends = reward_scale * batch.reward, (batch.terminated, batch.truncated)
    adv = gae(reward, value.detach(), next_value, *ends, gamma, 1.0)
    target = value.detach() + adv

    # 3. One step of the optimiser on all of it, and the rollout is thrown away.
    policy = Categorical(logits=actor(batch.obs))
    policy_loss = -(adv * policy.log_prob(batch.action)).mean()
    value_loss = (value - target).square().mean()
    bonus = entropy_weight * policy.entropy().mean()
    optimizer.zero_grad()
    (policy_loss + value_weight * value_loss - bonus).backward()
    nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()

    # Write down the episodes that ended, and report now and then.
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]
    if collector.step >= next_report:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:7,}: {sum(recent) / max(len(recent), 1):6.1f}")
        next_report += total_steps // 8

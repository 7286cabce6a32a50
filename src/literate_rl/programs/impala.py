# Generated from chapters/impala.py (edit there); digest d36b2c1152666069
"""IMPALA on one page, from the chapter impala.

Copy it and make it yours:

    literate-rl copy impala > my_impala.py
    python my_impala.py --env CartPole-v1 --seed 1 --total-steps 200000
"""

import argparse

import copy

import torch
from torch import nn
from torch.distributions import Categorical

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
num_envs, num_steps, num_updates, lag = 16, 32, 4, 3
learning_rate, gamma, lambda_, reward_scale = 1e-3, 0.99, 0.95, 0.05
value_weight, entropy_weight = 0.5, 0.01

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
policy, critic = network(num_actions, gain=0.01), network(1, gain=1.0)
actor = copy.deepcopy(policy)  # what acts: it gets the learner's weights now and then
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()])
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Sample an action for each observation, with the actor's older weights."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, iteration, next_report = [], 0, total_steps // 8
while collector.step < total_steps:
    # The learning rate falls to zero in a straight line.
    rate = learning_rate * (1 - collector.step / total_steps)
    optimizer.param_groups[0]["lr"] = rate

    # 1. The actor collects, and writes down how likely each action was.
    batch = collector.collect(act, num_steps)
    with torch.no_grad():
        old = Categorical(logits=actor(batch.obs)).log_prob(batch.action)

    # 2. The learner takes a few updates on what arrived.
    for _ in range(num_updates):
        new, value = Categorical(logits=policy(batch.obs)), critic(batch.obs)[..., 0]
        log_prob = new.log_prob(batch.action)
        with torch.no_grad():
            future = critic(batch.next_obs)[..., 0].masked_fill(batch.terminated, 0.0)
            # V-trace: clipped ratios, TD errors, and a sum from the last step back.
            ratio = (log_prob - old).exp().clamp(max=1)
            td_error = reward_scale * batch.reward + gamma * future - value
            follow = gamma * lambda_ * ~(batch.terminated | batch.truncated)
            x, rows = torch.zeros(num_envs), []
            for t in reversed(range(num_steps)):
                x = ratio[t] * (td_error[t] + follow[t] * x)
                rows.append(x)
            adv = torch.stack(rows[::-1])
            target = value + adv
        policy_loss = -(adv * log_prob).mean()
        value_loss = (value - target).square().mean()
        bonus = entropy_weight * new.entropy().mean()
        optimizer.zero_grad()
        (policy_loss + value_weight * value_loss - bonus).backward()
        optimizer.step()

    # 3. Now and then the actor gets the new weights.
    iteration += 1
    if iteration % (lag + 1) == 0:
        actor.load_state_dict(policy.state_dict())

    # Write down the episodes that ended, and report now and then.
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]
    if collector.step >= next_report:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:7,}: {sum(recent) / max(len(recent), 1):6.1f}")
        next_report += total_steps // 8

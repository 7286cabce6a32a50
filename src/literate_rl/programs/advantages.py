# Generated from chapters/advantages.py (edit there); digest 4ee1fe836bfd848a
"""Advantages on one page, from the chapter advantages.

Copy it and make it yours:

    literate-rl copy advantages > my_advantages.py
    python my_advantages.py --env CartPole-v1 --seed 1 --total-steps 50000
"""

import argparse

import torch
from torch import nn

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs

torch.set_num_threads(1)  # the networks are too small for several threads to pay

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=50_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
num_envs, num_steps = 8, 64
learning_rate, gamma, lambda_ = 1e-2, 0.98, 0.8


def network(outputs):
    """Build a network with two hidden layers."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(64, outputs))


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
# The actor's numbers are the logits of the actions, the critic's one is the value.
actor, critic = network(int(actions)), network(1)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate)
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw an action for each observation."""
    prob = actor(obs).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, report = [], 0  # when each episode ended, and its return
while collector.step < total_steps:
    # 1. Collect: act for some steps with the policy as it is.
    batch = collector.collect(act, num_steps)
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    # 2. Look back: was each action better than expected?
    with torch.no_grad():
        value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
    ends = batch.terminated, batch.truncated
    adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
    # From here on time plays no role: the rollout becomes one long list of samples.
    columns = batch.obs, batch.action, adv, adv + value
    obs, action, adv, target = (column.flatten(0, 1) for column in columns)

    # 3. Learn: what turned out well becomes likelier.
    log_prob = actor(obs).log_softmax(-1).gather(-1, action[:, None])[:, 0]
    policy_loss = -(log_prob * adv).mean()
    value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()

    optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss).backward()
    optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

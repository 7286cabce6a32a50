# Generated from chapters/ppo_error.py (edit there); digest 7b9ac4e6fbb752b8
"""The PPO error on one page, from the chapter ppo_error.

Copy it and make it yours:

    literate-rl copy ppo_error > my_ppo_error.py
    python my_ppo_error.py --env CartPole-v1 --seed 1 --total-steps 50000
"""

import argparse

import torch
from torch import nn

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs
from literate_rl.maths.ppo_error import ppo_policy_data, ppo_policy_error

torch.set_num_threads(1)  # the networks are too small for several threads to pay

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=50_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
num_envs, num_steps, num_epochs, num_minibatches = 8, 64, 8, 4
learning_rate, gamma, lambda_, clip_ratio = 5e-3, 0.98, 0.8, 0.2


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

    # 2. Look back: the old policy, values, advantages, and targets for the critic.
    with torch.no_grad():
        old_logit = actor(batch.obs)
        value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
    ends = batch.terminated, batch.truncated
    adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
    # From here on time plays no role: the rollout becomes one long list of samples.
    columns = batch.obs, batch.action, old_logit, adv, adv + value
    samples = [column.flatten(0, 1) for column in columns]

    # 3. Learn: some epochs, each over the shuffled samples, one minibatch at a time.
    for _ in range(num_epochs):
        order = torch.randperm(num_steps * num_envs, generator=generator)
        for rows in order.chunk(num_minibatches):
            obs, action, old, adv, target = (column[rows] for column in samples)
            # The loss with a brake, and the critic's.
            data = ppo_policy_data(actor(obs), old, action, adv, None)
            policy_loss, _ = ppo_policy_error(data, clip_ratio)
            value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()

            optimizer.zero_grad()
            (policy_loss.policy_loss + 0.5 * value_loss).backward()
            optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

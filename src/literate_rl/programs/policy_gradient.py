# Generated from chapters/policy_gradient.py (edit there); digest 88c621543099d2ce
"""The policy gradient on one page, from the chapter policy_gradient.

Copy it and make it yours:

    literate-rl copy policy_gradient > my_policy_gradient.py
    python my_policy_gradient.py --env CartPole-v1 --seed 1 --total-steps 50000
"""

import argparse

import torch
from torch import nn

from literate_rl.data.agents import Collector, discounted_returns, make_envs

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
learning_rate, gamma = 1e-2, 0.98


def network(outputs):
    """Build a network with two hidden layers."""
    first, second = nn.Linear(inputs, 64), nn.Linear(64, 64)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(64, outputs))


torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
actor = network(int(actions))  # its numbers are the logits of the actions
optimizer = torch.optim.Adam(actor.parameters(), learning_rate)
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

    # 2. Look back: what has each action led to?
    unseen = torch.zeros_like(batch.reward)  # what follows the batch, as if nothing did
    ends = batch.terminated, batch.truncated
    adv = discounted_returns(batch.reward, unseen, *ends, gamma)
    # From here on time plays no role: the rollout becomes one long list of samples.
    columns = batch.obs, batch.action, adv
    obs, action, adv = (column.flatten(0, 1) for column in columns)

    # 3. Learn: what turned out well becomes likelier.
    log_prob = actor(obs).log_softmax(-1).gather(-1, action[:, None])[:, 0]
    policy_loss = -(log_prob * adv).mean()

    optimizer.zero_grad()
    policy_loss.backward()
    optimizer.step()
    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# Generated from chapters/agents.py (edit there); digest 636fe9f1b8f69fcb
"""Agents, episodes and time limits on one page, from the chapter agents.

Copy it and make it yours:

    literate-rl copy agents > my_agents.py
    python my_agents.py --env CartPole-v1 --seed 1 --total-steps 50000
"""

import argparse

import torch

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

torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
envs = make_envs(env_id, num_envs)
inputs, actions = envs.single_observation_space.shape[0], envs.single_action_space.n
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw an action for each observation."""
    prob = torch.ones(len(obs), actions) / actions
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1)


episodes, report = [], 0  # when each episode ended, and its return
while collector.step < total_steps:
    # 1. Collect: act for some steps with the policy as it is.
    batch = collector.collect(act, num_steps)
    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]

    if collector.step >= report + total_steps / 8:
        report, recent = collector.step, [x for _, x in episodes[-20:]]
        print(f"step {report:6d}: mean return {sum(recent) / max(1, len(recent)):4.0f}")

# Generated from chapters/recurrent.py (edit there); digest c7fbb4d04adf14df
"""Policies that remember on one page, from the chapter recurrent.

Copy it and make it yours:

    literate-rl copy recurrent > my_recurrent.py
    python my_recurrent.py --env literate_rl/TMaze-v0 --seed 1 --total-steps 60000
"""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical

from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.worlds import TMaze  # noqa: F401 (the corridor, registered)
from literate_rl.maths.advantages import gae

torch.set_num_threads(1)  # the networks are too small to be shared out
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="literate_rl/TMaze-v0")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=60_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
num_envs, num_steps, num_epochs, num_minibatches = 16, 64, 4, 4
gamma, lambda_, clip_ratio, entropy_weight = 0.98, 0.9, 0.2, 0.01
learning_rate, max_grad_norm, size = 3e-3, 0.5, 32

envs = make_envs(env_id, num_envs)
torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
memory = nn.GRUCell(envs.single_observation_space.shape[0], size)
actor, critic = nn.Linear(size, int(envs.single_action_space.n)), nn.Linear(size, 1)
with torch.no_grad():
    memory.bias_ih[size : 2 * size] = 1.0  # it begins by keeping
networks = nn.ModuleList([memory, actor, critic])
optimizer = torch.optim.Adam(networks.parameters(), learning_rate, eps=1e-5)
# The collector keeps the state, and wipes it where an episode ends.
collector = Collector(envs, start=lambda copies: torch.zeros(copies, size))
collector.reset(seed=1000 * seed)


def act(obs, state):
    """Take a step of the memory and sample an action from what it says."""
    state = memory(obs, state)
    prob = actor(state).softmax(-1)
    return torch.multinomial(prob, 1, generator=generator).squeeze(-1), state


def read(obs, state, over):
    """Return the states after all steps of a rollout."""
    states = []
    for now, ended in zip(obs, over, strict=True):
        state = memory(now, state.masked_fill(ended.unsqueeze(-1), 0.0))
        states.append(state)
    return torch.stack(states)


episodes, next_report = [], total_steps // 8
while collector.step < total_steps:
    # 1. Act. Each rollout knows with which state it began.
    batch = collector.collect(act, num_steps)
    ended = batch.terminated | batch.truncated
    # What ended with the step before is over. The collector has seen to the first row.
    over = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])
    with torch.no_grad():
        # 2. Probabilities and values of the old policy, also after each step.
        states = read(batch.obs, batch.state[0], over)
        old = Categorical(logits=actor(states)).log_prob(batch.action)
        value = critic(states)[..., 0]
        after = memory(batch.next_obs.flatten(0, 1), states.flatten(0, 1))
        next_value = critic(after).view_as(value)
        ends = batch.terminated, batch.truncated
        adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
        target = adv + value
    for _ in range(num_epochs):
        # 3. A minibatch is a few environments, whole in time.
        order = torch.randperm(num_envs, generator=generator)
        for some in order.tensor_split(num_minibatches):
            states = read(batch.obs[:, some], batch.state[0, some], over[:, some])
            policy = Categorical(logits=actor(states))
            ratio = (policy.log_prob(batch.action[:, some]) - old[:, some]).exp()
            part = adv[:, some]
            part = (part - part.mean()) / (part.std(correction=0) + 1e-8)
            clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
            loss = -torch.min(ratio * part, clipped * part).mean()
            error = (critic(states)[..., 0] - target[:, some]).square().mean()
            loss = loss + 0.25 * error - entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(networks.parameters(), max_grad_norm)
            optimizer.step()

    # Write down the episodes that ended, and report now and then.
    episodes += [(collector.step, x) for x in batch.episode_return[ended].tolist()]
    if collector.step >= next_report:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:7,}: {sum(recent) / max(len(recent), 1):6.2f}")
        next_report += total_steps // 8

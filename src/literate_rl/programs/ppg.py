# Generated from chapters/ppg.py (edit there); digest a57ac7144d266e54
"""PPG on one page, from the chapter ppg.

Copy it and make it yours:

    literate-rl copy ppg > my_ppg.py
    python my_ppg.py --env CartPole-v1 --seed 1 --total-steps 100000
"""

import argparse

import torch
from torch.distributions import Categorical, kl_divergence

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs
from literate_rl.nets.disjoint_network import DisjointPolicyValueNetwork
from literate_rl.maths.ppo_error import ppo_policy_data, ppo_policy_error

torch.set_num_threads(1)  # the networks are too small to be shared out
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=100_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
num_envs, num_steps, num_epochs, num_minibatches = 8, 32, 10, 1
learning_rate, gamma, lambda_, clip_ratio = 2e-3, 0.98, 0.8, 0.2
aux_interval, aux_epochs, aux_batch_size, aux_learning_rate, beta = 16, 6, 16, 1e-3, 1.0

envs = make_envs(env_id, num_envs)
spaces_of_one = envs.single_observation_space, envs.single_action_space
torch.manual_seed(seed)
network = DisjointPolicyValueNetwork(*spaces_of_one)
parameters = list(network.parameters())
optimizer, aux_optimizer = (torch.optim.Adam(parameters, eps=1e-5) for _ in range(2))
generator, aux_generator = (torch.Generator().manual_seed(seed) for _ in range(2))
collector = Collector(envs)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def heads(obs):
    """Return the logits, the values and the auxiliary values of observations."""
    ((logit,), value, aux_value), _ = network.heads(obs)
    return logit, value, aux_value


def act(obs):
    """Draw an action for each observation, by the race."""
    return (heads(obs)[0] + next(draws)).argmax(-1)


def descend(optimizer, rate, loss):
    """Take one step of an optimiser downhill."""
    optimizer.param_groups[0]["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 0.5)
    optimizer.step()


buffer, episodes, num_updates = [], [], -(-total_steps // (num_envs * num_steps))
for update in range(1, num_updates + 1):
    share = 1 - collector.step / total_steps  # both learning rates fall to zero

    # Policy phase: collect, store the targets, train policy and value with PPO.
    race = torch.empty(num_steps, num_envs, int(spaces_of_one[1].n))
    draws = iter(race.exponential_(generator=generator).log_().neg_())
    batch = collector.collect(act, num_steps)
    with torch.no_grad():
        old, value, _ = heads(batch.obs)
        _, next_value, _ = heads(batch.next_obs)
    ends = batch.terminated, batch.truncated
    adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
    buffer.append((batch.obs, adv + value))
    columns = batch.obs, batch.action, old, adv, adv + value
    samples = [x.flatten(0, 1) for x in columns]
    for _ in range(num_epochs):
        order = torch.randperm(num_steps * num_envs, generator=generator)
        for rows in order.chunk(num_minibatches):
            obs, action, old, adv, target = (x[rows] for x in samples)
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)
            logit, value, _ = heads(obs)
            data = ppo_policy_data(logit, old, action, adv, None)
            policy_loss = ppo_policy_error(data, clip_ratio)[0].policy_loss
            value_loss = 0.5 * (target - value).square().mean()
            descend(optimizer, share * learning_rate, policy_loss + 0.5 * value_loss)

    # Auxiliary phase: both values learn from all these data, the policy is held.
    if update % aux_interval == 0:
        obs, target = (torch.cat(x, 1) for x in zip(*buffer, strict=True))
        old, buffer = heads(obs)[0].detach(), []
        for _ in range(aux_epochs):
            order = torch.randperm(obs.shape[1], generator=aux_generator)
            for part in order.split(aux_batch_size):
                logit, *values = heads(obs[:, part])
                errors = sum((x - target[:, part]).square() for x in values)
                pair = (Categorical(logits=x) for x in (old[:, part], logit))
                loss = errors + beta * kl_divergence(*pair)
                descend(aux_optimizer, share * aux_learning_rate, loss.mean())

    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]
    if update % -(-num_updates // 10) == 0:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:6d}: return {sum(recent) / len(recent):.0f}")

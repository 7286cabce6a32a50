# Generated from chapters/hybrid_ppo.py (edit there); digest 07e6f5d377c9bfb5
"""Hybrid PPO on one page, from the chapter hybrid_ppo.

Copy it and make it yours:

    literate-rl copy hybrid_ppo > my_hybrid_ppo.py
    python my_hybrid_ppo.py --env literate_rl/Moving-v0 --seed 1 --total-steps 60000
"""

import argparse

import torch
from torch.distributions import Normal

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs
from literate_rl.nets.hybrid_action import HybridPolicyNetwork
from literate_rl.nets.policies import mlp
from literate_rl.nets.hybrid_policy import HybridActions

torch.set_num_threads(1)  # the networks are too small to be shared out
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--env", default="literate_rl/Moving-v0")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--total-steps", type=int, default=60_000)
options = parser.parse_args()
env_id, seed, total_steps = options.env, options.seed, options.total_steps
num_envs, num_steps, num_epochs, num_minibatches = 32, 64, 8, 4
learning_rate, gamma, lambda_, clip_ratio, entropy_weight = 3e-3, 0.98, 0.95, 0.2, 0.01
envs = make_envs(env_id, num_envs)
# The space says which type uses which argument, and how large each argument may be.
space = HybridActions.from_space(envs.single_action_space)
mask, (num_types, num_args) = space.mask, space.mask.shape

torch.manual_seed(seed)
generator = torch.Generator().manual_seed(seed)
obs_size = envs.single_observation_space.shape[0]
actor = HybridPolicyNetwork(obs_size, space.action_shape)
critic = mlp(obs_size, 64, 1, gain=1.0)
parameters = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, learning_rate, eps=1e-5)
collector = Collector(envs, space.to_env)
collector.reset(seed=1000 * seed)  # no environment in common with seed + 1


def act(obs):
    """Draw a type and all arguments."""
    said, (race, noise) = actor(obs), next(draws).split([num_types, num_args], -1)
    kind = (said.action_type + race).argmax(-1, keepdim=True)
    args = said.action_args.mu + said.action_args.sigma * noise
    return torch.cat([kind, args], -1)


def evaluate(obs, action):
    """Return one log-probability for each whole action, and the entropies."""
    said, kind = actor(obs), action[:, :1].long()
    log_p, args = said.action_type.log_softmax(-1), said.action_args
    # The type, and the arguments that it uses. The others get the distance 0 and are
    # left out of the sum; no deviation is so small that its square is 0.
    used, normal = mask[kind[:, 0]], Normal(0.0, args.sigma.clamp(min=1e-18))
    density = normal.log_prob(torch.where(used, action[:, 1:] - args.mu, 0.0))
    log_prob = log_p.gather(1, kind)[:, 0] + torch.where(used, density, 0.0).sum(-1)
    # An argument counts as often as the types that use it are chosen.
    often = log_p.exp() @ mask.float()
    entropy = -(log_p.exp() * log_p).sum(-1) + (often * normal.entropy()).sum(-1)
    return log_prob, entropy


episodes, num_updates = [], -(-total_steps // (num_envs * num_steps))
for update in range(1, num_updates + 1):
    # 1. Collect, with a learning rate that falls to zero in a straight line.
    optimizer.param_groups[0]["lr"] = learning_rate * (1 - collector.step / total_steps)
    draws = iter(space.noise(num_steps, num_envs, generator))
    batch = collector.collect(act, num_steps)

    # 2. Look back: values, advantages, targets, and the old log-probabilities.
    with torch.no_grad():
        value, next_value = critic(batch.obs)[..., 0], critic(batch.next_obs)[..., 0]
        ends = batch.terminated, batch.truncated
        adv = gae(batch.reward, value, next_value, *ends, gamma, lambda_)
        samples = [x.flatten(0, 1) for x in (batch.obs, batch.action, adv, adv + value)]
        samples.append(evaluate(*samples[:2])[0])

    # 3. Learn, for some epochs.
    for _ in range(num_epochs):
        order = torch.randperm(num_steps * num_envs, generator=generator)
        for rows in order.chunk(num_minibatches):
            obs, action, adv, target, old_log_prob = (x[rows] for x in samples)
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)
            log_prob, entropy = evaluate(obs, action)
            # One ratio for a type and its arguments, and one clip.
            ratio = (log_prob - old_log_prob).exp()
            clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
            policy_loss = -torch.min(ratio * adv, clipped * adv).mean()
            value_loss = 0.5 * (target - critic(obs)[..., 0]).square().mean()
            loss = policy_loss + 0.5 * value_loss - entropy_weight * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()

    returns = batch.episode_return[batch.terminated | batch.truncated]
    episodes += [(collector.step, x) for x in returns.tolist()]
    if update % -(-num_updates // 10) == 0:
        recent = [x for _, x in episodes[-20:]]
        print(f"step {collector.step:6d}: return {sum(recent) / len(recent):.2f}")

"""The training loop of PPO on CartPole-v1, against stable-baselines3.

Both train with CleanRL's settings, but without the clip of the value, in Gymnasium's
environments. The peer lives in an environment of its own: ``make peers ONLY=ppo_loop``.

A time is that of one step in one environment, the learning included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Case, Goal, cpu_seconds
from literate_rl.agents import make_envs
from literate_rl.policies import make_policy
from literate_rl.ppo import PPO, PPOConfig
from literate_rl.workshop.fast_forms import numpy_act
from literate_rl.workshop.runs import fit, flat_env

ROUNDS = 21
PACKAGES = ("stable-baselines3", "gymnasium")
ENV = "CartPole-v1"
STEPS = 8192
CONFIG = PPOConfig(total_steps=STEPS)


def learner(config: PPOConfig, fast: bool) -> PPO:
    """Build our learner, which acts with the network or in NumPy."""
    envs = make_envs(partial(flat_env, ENV), config.num_envs)
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return PPO(policy, envs, config, numpy_act(policy) if fast else None)


def peer_learner(config: PPOConfig) -> Any:
    """Build stable-baselines3's learner with the same settings.

    Its value loss lacks the factor one half, so the weight gets it. Its step size falls
    with the number of steps as ours does.
    """
    from stable_baselines3 import PPO as PeerPPO  # noqa: N811
    from stable_baselines3.common.env_util import make_vec_env

    model = PeerPPO(
        "MlpPolicy",
        make_vec_env(ENV, config.num_envs, seed=config.seed),
        n_steps=config.num_steps,
        batch_size=config.num_envs * config.num_steps // config.num_minibatches,
        n_epochs=config.num_epochs,
        gamma=config.gamma,
        gae_lambda=config.lambda_,
        clip_range=config.clip_ratio,
        ent_coef=config.entropy_weight,
        vf_coef=config.value_weight / 2,
        max_grad_norm=config.max_grad_norm,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        seed=config.seed,
        device="cpu",
    )
    model.lr_schedule = lambda _: (
        config.learning_rate * (1 - model.num_timesteps / config.total_steps)
    )
    return model


def check(config: PPOConfig) -> None:
    """Assert that our two forms act, judge and learn alike from the same noise."""
    plain, fast = learner(config, False), learner(config, True)
    for _ in range(2):
        rollouts = []
        for form in (plain, fast):
            batch = form.collect()
            log_prob, _ = form.policy.evaluate_actions(batch.obs, batch.action)
            rollouts.append((batch.action, log_prob))
            form.update(batch)
        (action, log_prob), (fast_action, fast_log_prob) = rollouts
        assert torch.equal(action, fast_action)
        torch.testing.assert_close(log_prob, fast_log_prob, rtol=0, atol=1e-5)


def step_clock(build: Callable[[], Callable[[], object]], repeats: int) -> float:
    """Return the CPU seconds of one step; building the learner is not counted."""
    return sum(cpu_seconds(build(), 1) for _ in range(repeats)) / (repeats * STEPS)


def cases() -> Iterator[Case]:
    """Yield one case, after its check."""
    check(CONFIG)

    def own(fast: bool) -> Callable[[], object]:
        return partial(fit, learner(CONFIG, fast), progress=False)

    yield Case(
        name=f"{CONFIG.num_envs} environments, {CONFIG.num_steps} steps each",
        functions={
            "stable-baselines3": lambda: partial(peer_learner(CONFIG).learn, STEPS),
            "PPO, plain": lambda: own(False),
            "PPO, numpy_act": lambda: own(True),
        },
        peer="stable-baselines3",
        goals={
            "PPO, plain": Goal(at_least=2.0),
            "PPO, numpy_act": Goal(at_least=3.0),
        },
        sample=step_clock,
        shortest=0.0,
    )

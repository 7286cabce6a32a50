"""The training loop of PPO on CartPole-v1 and Pendulum-v1, against stable-baselines3.

Both train with CleanRL's settings, but without the clip of the value, in Gymnasium's
environments. Ours trains in three forms: with the network alone, acting in NumPy, and
by hand, without autograd. The peer lives in an environment of its own:
``make peers ONLY=ppo_loop``.

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
from literate_rl.ppo_by_hand import ByHand
from literate_rl.workshop.fast_forms import numpy_act
from literate_rl.workshop.runs import fit, flat_env

ROUNDS = 21
PACKAGES = ("stable-baselines3", "gymnasium")
ENV = "CartPole-v1"
STEPS = 8192
CONFIG = PPOConfig(total_steps=STEPS)
PEER = "stable-baselines3"
# Whether it acts in NumPy, and whether it learns without autograd.
FORMS = {
    "PPO, plain": (False, False),
    "PPO, numpy_act": (True, False),
    "PPO, by hand": (True, True),
}
GOALS = {"PPO, plain": 2.0, "PPO, numpy_act": 3.0, "PPO, by hand": 5.3}


def learner(
    config: PPOConfig, fast: bool, by_hand: bool = False, env: str = ENV
) -> PPO:
    """Build our learner, which acts with the network or in NumPy."""
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    act, own = numpy_act(policy), ByHand(policy)
    forms: dict[str, Any] = {"act": act} if fast else {}
    return PPO(policy, envs, config, **forms, by_hand=own if by_hand else None)


def peer_learner(config: PPOConfig, env: str = ENV) -> Any:
    """Build stable-baselines3's learner with the same settings.

    Its value loss lacks the factor one half, so the weight gets it. Its step size falls
    with the number of steps as ours does.
    """
    from stable_baselines3 import PPO as PeerPPO  # noqa: N811
    from stable_baselines3.common.env_util import make_vec_env

    model = PeerPPO(
        "MlpPolicy",
        make_vec_env(env, config.num_envs, seed=config.seed),
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


def check(config: PPOConfig, env: str = ENV) -> None:
    """Assert that our three forms act, judge and learn alike from the same noise."""
    forms = [learner(config, *form, env=env) for form in FORMS.values()]
    for _ in range(2):
        rollouts = []
        for form in forms:
            batch = form.collect()
            log_prob, _ = form.policy.evaluate_actions(batch.obs, batch.action)
            rollouts.append((batch.action, log_prob))
            form.update(batch)
        (action, log_prob), *others = rollouts
        for fast_action, fast_log_prob in others:
            torch.testing.assert_close(action, fast_action, rtol=0, atol=1e-5)
            torch.testing.assert_close(log_prob, fast_log_prob, rtol=0, atol=1e-5)
    plain, *others = [form.parameters for form in forms]
    for other in others:
        for mine, theirs in zip(plain, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def step_clock(build: Callable[[], Callable[[], object]], repeats: int) -> float:
    """Return the CPU seconds of one step; building the learner is not counted."""
    return sum(cpu_seconds(build(), 1) for _ in range(repeats)) / (repeats * STEPS)


def cases() -> Iterator[Case]:
    """Yield a case for each task, after its check."""
    for env, goals in ((ENV, GOALS), ("Pendulum-v1", {})):
        check(CONFIG, env)

        def own(name: str, env: str = env) -> Callable[[], object]:
            return partial(fit, learner(CONFIG, *FORMS[name], env=env), progress=False)

        def theirs(env: str = env) -> Callable[[], object]:
            return partial(peer_learner(CONFIG, env).learn, STEPS)

        yield Case(
            name=f"{env}, {CONFIG.num_envs} environments, {CONFIG.num_steps} steps",
            functions={PEER: theirs} | {name: partial(own, name) for name in FORMS},
            peer=PEER,
            goals={name: Goal(at_least=goal) for name, goal in goals.items()},
            sample=step_clock,
            shortest=0.0,
        )

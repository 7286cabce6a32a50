"""The training loop of PPO, against stable-baselines3 and CleanRL's loop.

All train with CleanRL's settings, but without the clip of the value, in Gymnasium's
environments: CartPole-v1, Pendulum-v1, and HalfCheetah-v5 with observations and rewards
that each side normalises by itself. Ours trains in three forms: with the network alone,
acting in NumPy, and by hand, without autograd. CleanRL's loop
(``benchmarks/cleanrl.py``) trains on HalfCheetah, and on MinAtar's Breakout with the
layers of our encoder. The peers live in an environment of their own:
``make peers ONLY=ppo_loop``.

A time is that of one step in one environment, the learning included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from benchmarks import encoders_learning, minatar_learning
from benchmarks.cleanrl import CleanRL
from benchmarks.harness import Case, Goal, cpu_seconds
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.by_hand.ppo_by_hand import ByHand
from literate_rl.data.agents import make_envs
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import fit, flat_env

ROUNDS = 11
PACKAGES = ("stable-baselines3", "gymnasium", "mujoco", "MinAtar")
ENV, CHEETAH, BREAKOUT = "CartPole-v1", "HalfCheetah-v5", encoders_learning.ENV
CONFIG = PPOConfig(total_steps=8192)
# CleanRL's settings for MuJoCo.
CHEETAH_CONFIG = PPOConfig(
    total_steps=4096,
    num_envs=1,
    num_steps=2048,
    num_epochs=10,
    num_minibatches=32,
    learning_rate=3e-4,
    entropy_weight=0.0,
    normalize_obs=True,
    scale_reward=True,
)
BREAKOUT_CONFIG = replace(encoders_learning.CONFIG, total_steps=4096)
PEER, CLEANRL = "stable-baselines3", "CleanRL's loop"
# Whether it acts in NumPy, and whether it learns without autograd.
FORMS = {
    "PPO, plain": (False, False),
    "PPO, numpy_act": (True, False),
    "PPO, by hand": (True, True),
}
GOALS = {"PPO, plain": 1.9, "PPO, numpy_act": 3.7, "PPO, by hand": 5.3}
# Environment, settings and goals beside stable-baselines3.
TASKS: tuple[tuple[str, PPOConfig, dict[str, float]], ...] = (
    (ENV, CONFIG, GOALS),
    (ENV, replace(CONFIG, num_envs=8), {}),
    ("Pendulum-v1", CONFIG, {"PPO, numpy_act": 2.3}),
    (CHEETAH, CHEETAH_CONFIG, {"PPO, by hand": 2.5}),
)


def learner(
    config: PPOConfig, fast: bool, by_hand: bool = False, env: str = ENV
) -> PPO:
    """Build our learner, which acts with the network or in NumPy."""
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    space = gym.make(env).observation_space
    policy = make_policy(
        space, envs.single_action_space, normalize=config.normalize_obs
    )
    return PPO(
        policy,
        envs,
        config,
        act=numpy_act(policy) if fast else None,
        by_hand=ByHand(policy) if by_hand else None,
    )


def peer_learner(config: PPOConfig, env: str = ENV) -> Any:
    """Build stable-baselines3's learner with the same settings.

    Its value loss lacks the factor one half, so the weight gets it. Its step size falls
    with the number of steps as ours does.
    """
    from stable_baselines3 import PPO as PeerPPO  # noqa: N811
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    envs = make_vec_env(env, config.num_envs, seed=config.seed)
    if config.normalize_obs or config.scale_reward:
        chosen = config.normalize_obs, config.scale_reward
        envs = VecNormalize(envs, True, *chosen, gamma=config.gamma)
    model = PeerPPO(
        "MlpPolicy",
        envs,
        learning_rate=config.learning_rate,
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


def cleanrl_learner(config: PPOConfig, env: str) -> CleanRL:
    """Build CleanRL's with networks of the same layers."""
    torch.manual_seed(config.seed)
    if env == BREAKOUT:
        network = minatar_learning.ByHand
        return CleanRL(network(3, 0.01), network(1, 1.0), env, config)
    space = gym.make(env)
    policy = make_policy(space.observation_space, space.action_space)
    actor = policy.network.actor
    return CleanRL(actor.mean, policy.network.critic, env, config)


def check(config: PPOConfig, env: str = ENV) -> None:
    """Assert that our three forms act, judge and learn alike."""
    forms = [learner(config, *form, env=env) for form in FORMS.values()]
    for _ in range(2):
        # All learn from one rollout: a running body is chaotic, and so is its rounding.
        batch, *_ = [form.collect() for form in forms]
        answers = []
        for form in forms:
            action = form.runner.act(batch.obs, 0.0)
            log_prob, _ = form.judge.evaluate_actions(batch.obs, batch.action)
            answers.append((action, log_prob))
        for answer in answers[1:]:
            for mine, theirs in zip(answers[0], answer, strict=True):
                close(mine, theirs)
        for form in forms:
            form.update(batch)
    plain, *rest = [form.parameters for form in forms]
    for parameters in rest:
        for mine, theirs in zip(plain, parameters, strict=True):
            close(mine, theirs)


def close(x: Tensor, y: Tensor) -> None:
    """Assert that numbers are the same but for rounding."""
    torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def check_work(config: PPOConfig, peer: nn.Module, env: str, optimizer: Any) -> None:
    """Assert that a peer, after its run, has trained what we train, and as often."""
    ours = learner(config, fast=False, env=env)
    fit(ours, progress=False)
    shapes, updates = [], []
    for parameters, adam in (
        (ours.parameters, ours.optimizer),
        (peer.parameters(), optimizer),
    ):
        shapes.append(sorted(p.numel() for p in parameters))
        updates.append({int(each["step"]) for each in adam.state.values()})
    assert shapes[0] == shapes[1], f"parameters differ: {shapes}"
    assert updates[0] == updates[1], f"updates differ: {updates}"


def check_loss(config: PPOConfig, env: str) -> None:
    """Assert that CleanRL's loss has our gradient, at equal weights and samples."""
    # Its advantages are divided by another estimate of the deviation.
    config = replace(config, normalize_advantage=False)
    ours, theirs = learner(config, fast=False, env=env), cleanrl_learner(config, env)
    with torch.no_grad():
        pairs = list(zip(weights_of(theirs), ours.parameters, strict=True))
        for p, q in pairs:
            q.copy_(p.view_as(q))
    part = theirs.collect().take(torch.arange(64))
    ours.gradient(part, config)
    theirs.learn(part)
    for p, q in pairs:
        close(p.grad.view_as(q.grad), q.grad)


def weights_of(peer: CleanRL) -> list[nn.Parameter]:
    """Return its parameters in the order of ours."""
    sigma = [] if peer.log_sigma is None else [peer.log_sigma]
    return [*sigma, *peer.actor.parameters(), *peer.critic.parameters()]


def step_clock(
    build: Callable[[], Callable[[], object]], repeats: int, steps: int
) -> float:
    """Return the CPU seconds of one step; building the learner is not counted."""
    return sum(cpu_seconds(build(), 1) for _ in range(repeats)) / (repeats * steps)


def passes(config: PPOConfig, env: str) -> Callable[[], object]:
    """Return the passes through the networks that learning takes, and nothing else."""
    policy = learner(config, fast=False, env=env).policy
    samples = config.num_envs * config.num_steps
    size = gym.spaces.flatdim(gym.make(env).observation_space)
    obs = torch.rand(samples // config.num_minibatches, size)
    updates = config.num_epochs * config.num_minibatches * config.total_steps // samples

    def run() -> None:
        for _ in range(updates):
            (policy(obs).sum() + policy.value(obs).sum()).backward()

    return run


def case(
    env: str,
    config: PPOConfig,
    functions: dict[str, Callable[[], Callable[[], object]]],
    forms: dict[str, float | None],
) -> Case:
    """Return a peer, and forms of ours with their goals, that train in one environment.

    Args:
        env: Id of the environment.
        config: The settings.
        functions: How to build the peer, and perhaps what else is measured.
        forms: Goals by name of the form, or None.
    """

    def own(name: str) -> Callable[[], object]:
        return partial(fit, learner(config, *FORMS[name], env=env), progress=False)

    peer, *rest = functions
    copies = "environment" if config.num_envs == 1 else "environments"
    return Case(
        name=f"{env}, {config.num_envs} {copies}, {config.num_steps} steps, {peer}",
        functions={
            peer: functions[peer],
            **{name: partial(own, name) for name in forms},
            **{name: functions[name] for name in rest},
        },
        peer=peer,
        goals={name: Goal(at_least=goal) for name, goal in forms.items()},
        sample=partial(step_clock, steps=config.total_steps),
        shortest=0.0,
    )


def cases() -> Iterator[Case]:
    """Yield a case for each task, after its check."""
    import mujoco

    # It says of each body of Gymnasium's that a word in its file is old.
    mujoco.set_mju_user_warning(lambda _: None)
    for env, config, goals in TASKS:
        check(replace(config, num_steps=128, num_minibatches=4, num_epochs=4), env)

        def theirs(env: str = env, config: PPOConfig = config) -> Callable[[], object]:
            return partial(peer_learner(config, env).learn, config.total_steps)

        model = peer_learner(config, env)
        model.learn(config.total_steps)
        check_work(config, model.policy, env, model.policy.optimizer)
        forms = {name: goals.get(name) for name in FORMS}
        yield case(env, config, {PEER: theirs}, forms)

    limit = {"limit: networks alone": partial(passes, BREAKOUT_CONFIG, BREAKOUT)}
    for env, config, forms, more in (
        (CHEETAH, CHEETAH_CONFIG, {"PPO, by hand": 2.5}, {}),
        (BREAKOUT, BREAKOUT_CONFIG, {"PPO, plain": 1.5}, limit),
    ):

        def loop(env: str = env, config: PPOConfig = config) -> Callable[[], object]:
            return cleanrl_learner(config, env).run

        check_loss(config, env)
        peer = cleanrl_learner(config, env)
        peer.run()
        check_work(config, peer, env, peer.optimizer)
        yield case(env, config, {CLEANRL: loop, **more}, forms)

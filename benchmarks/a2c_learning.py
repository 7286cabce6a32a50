"""A2C and A3C: one update for each rollout, no clip, and gradients that come late.

``python -m benchmarks.a2c_learning [NAME …]`` works as ``benchmarks.learning`` does.

The learner of ``a2c`` stands between REINFORCE and PPO. It is PPO's with one epoch, one
minibatch and a clip range that nothing leaves, so it learns with Adam and GAE. Its
length of a rollout, learning rate, discount and lambda were chosen among ten settings,
by three runs of each with the seeds 100 to 102.

The other experiments are about the agents of the chapters on A2C and on A3C.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

import gymnasium as gym
import torch

from benchmarks.impala_learning import slow_cartpole
from benchmarks.learning import Experiment, Variant, main
from literate_rl.actors.a3c import A3C, A3CConfig, a3c_settings
from literate_rl.actors.processes import transport_named
from literate_rl.book.contract_models import CategoricalActor, StateValue
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.check.own_models import make_contract_policy
from literate_rl.data.agents import make_envs
from literate_rl.learners.a2c import (
    A2C,
    A2CConfig,
    GradientConfig,
    GradientLearner,
    a2c_settings,
)
from literate_rl.learners.impala import IMPALA, impala_settings
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import flat_env

ENV = "CartPole-v1"
HIDDEN = 64
LAGS = (0, 31, 127)


def parts(config: A2CConfig) -> Any:
    """Return a policy and the function that makes its environments."""
    build_envs = partial(make_envs, partial(flat_env, ENV), config.num_envs)
    envs = build_envs()
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    return policy, build_envs


def build(config: A2CConfig) -> A2C:
    """Build the agent that learns alone."""
    policy, build_envs = parts(config)
    return A2C(policy, build_envs(), config, numpy_act(policy))


def with_workers(config: A3CConfig) -> A3C:
    """Build the agent whose workers send gradients."""
    transport = transport_named(config.transport)
    return A3C(*parts(config), config, transport, numpy_act)


class Watched(GradientLearner):
    """Reports the largest step of a weight in learning rates; may change steps."""

    def __init__(self, policy: Any, config: A2CConfig) -> None:
        super().__init__(policy, config)
        self.taken = 0

    def changed(self, step: torch.Tensor, rate: float) -> torch.Tensor:
        """Return the step of a parameter that is taken instead of this one."""
        return step

    def learn(self, gradient: Any, step: int) -> dict[str, float]:
        """Take the step that the subclass makes of RMSProp's."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        metrics = super().learn(gradient, step)
        self.taken += 1
        rate, largest = metrics["charts/learning_rate"], 0.0
        with torch.no_grad():
            for parameter, old in zip(self.parameters, before, strict=True):
                change = parameter - old
                taken = self.changed(change, rate)
                if taken is not change:
                    parameter.copy_(old + taken)
                largest = max(largest, taken.abs().max().item())
        return {**metrics, "losses/largest_step": largest / rate}


class Capped(Watched):
    """Moves no weight by more than one learning rate."""

    def changed(self, step: torch.Tensor, rate: float) -> torch.Tensor:
        """Cut the step off."""
        return step.clamp(-rate, rate)


class Corrected(Watched):
    """Corrects the mean of squares for its start at zero, as Adam does."""

    def changed(self, step: torch.Tensor, rate: float) -> torch.Tensor:
        """Shorten the first steps."""
        decay: float = self.config.rmsprop_decay
        return step * (1 - decay**self.taken) ** 0.5


class InsideTheRoot(torch.optim.RMSprop):
    """RMSProp as in TensorFlow 1, which adds epsilon before it takes the root."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step."""
        group = self.param_groups[0]
        for parameter in group["params"]:
            state = self.state[parameter]
            if not state:
                state["square_avg"] = torch.zeros_like(parameter)
            square, gradient = state["square_avg"], parameter.grad
            square.mul_(group["alpha"]).addcmul_(
                gradient, gradient, value=1 - group["alpha"]
            )
            root = (square + group["eps"]).sqrt()
            parameter.addcdiv_(gradient, root, value=-group["lr"])


class Floored(Watched):
    """Divides by the root of the mean of squares plus epsilon."""

    def __init__(self, policy: Any, config: A2CConfig) -> None:
        super().__init__(policy, config)
        settings = config.learning_rate, config.rmsprop_decay, config.rmsprop_epsilon
        self.optimizer = InsideTheRoot(self.parameters, *settings)


def watched(config: A2CConfig, learner: type[Watched] = Watched) -> A2C:
    """Build the agent that learns alone, with another learner."""
    agent = build(config)
    agent.learner = learner(agent.policy, config)
    return agent


class TimesTen(torch.nn.Module):
    """A critic whose values are ten times what its network says."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values."""
        values: torch.Tensor = 10 * self.network(obs)
        return values


def with_large_values(config: A2CConfig) -> A2C:
    """Build the agent that learns alone, with a critic that is ten times as fast."""
    agent = build(config)
    network: Any = agent.policy.network
    network.critic = TimesTen(network.critic)
    return agent


def forgetting() -> Experiment:
    """Return the experiment that asks why runs with usual settings forget."""
    plain = replace(a2c_settings(ENV), rmsprop_decay=0.99, reward_scale=1.0)
    sb3 = {"learning_rate": 7e-4, "anneal": False}
    variants = {
        "as it is": Variant({}, watched),
        "learning rate of SB3": Variant(sb3, watched),
        "decay 0.999": Variant({"rmsprop_decay": 0.999}, watched),
        "rewards times 0.1": Variant({"reward_scale": 0.1}, watched),
        "steps capped": Variant({}, partial(watched, learner=Capped)),
        "epsilon inside the root": Variant({}, partial(watched, learner=Floored)),
    }
    seen = ("losses/grad_norm", "losses/largest_step")
    return Experiment(ENV, plain, 5, 100, variants, goal=475, watched=seen)


def workers(**changes: Any) -> Experiment:
    """Return the experiment with workers in processes of their own."""
    config = replace(a3c_settings(ENV), transport="shared", **changes)
    variants = {"two workers": Variant({}, with_workers)}
    return Experiment(ENV, config, 10, 100, variants, goal=475, by_clock=True)


def with_models(family: str, config: A2CConfig) -> Any:
    """Build an agent of a family around an actor and a critic of the contract."""
    env = gym.make(ENV)
    build_envs = partial(make_envs, partial(flat_env, ENV))
    spaces = env.observation_space, env.action_space
    torch.manual_seed(config.seed)
    policy = make_contract_policy(
        *spaces, CategoricalActor(4, 2, HIDDEN), StateValue(4, HIDDEN)
    )
    same: Any = {"seed": config.seed, "total_steps": config.total_steps}
    if family == "PPO":
        ppo = replace(ppo_settings(ENV), **same)
        return PPO(policy, build_envs(ppo.num_envs), ppo)
    if family == "IMPALA":
        impala = replace(impala_settings(ENV), **same)
        return IMPALA(policy, build_envs(impala.num_envs), impala)
    if family == "A3C":
        remote = replace(a3c_settings(ENV), **same)
        return A3C(policy, partial(build_envs, remote.num_envs), remote)
    return A2C(policy, build_envs(config.num_envs), config)


def contracts() -> Experiment:
    """Return the experiment with one actor and one critic in four families."""
    config = replace(a2c_settings(ENV), total_steps=60_000)
    variants = {
        family: Variant({}, partial(with_models, family))
        for family in ("A2C", "A3C", "PPO", "IMPALA")
    }
    return Experiment(ENV, config, 5, 100, variants)


def late() -> Experiment:
    """Return the experiment with gradients of older and older weights.

    One worker has one slot more than the lag, so each gradient is as old as it says.
    """
    config = replace(a3c_settings(ENV), actors=1, total_steps=50_000)
    variants = {f"lag {lag}": Variant({"slots": lag + 1}, with_workers) for lag in LAGS}
    return Experiment(ENV, config, 10, 100, variants)


def corrected(config: A3CConfig) -> A3C:
    """Build the agent whose first steps are not too long."""
    agent = with_workers(config)
    agent.learner = Corrected(agent.policy, config)
    return agent


def late_and_slow() -> Experiment:
    """Return the experiment with no lag and small ones, at two learning rates."""
    usual = late()
    rate = usual.config.learning_rate
    variants = {
        f"lag {lag}, rate {share}": Variant(
            {"slots": lag + 1, "learning_rate": rate * share}, with_workers
        )
        for lag in (0, 1, 3, 7, 15)
        for share in (1, 0.5)
    }
    return replace(usual, variants=variants, seeds=5)


def late_and_corrected() -> Experiment:
    """Return the experiment with large lags and first steps that are not too long."""
    variants = {
        f"lag {lag}": Variant({"slots": lag + 1}, corrected) for lag in (31, 127)
    }
    return replace(late(), variants=variants, seeds=5)


def in_slow_cartpole(config: A3CConfig, alone: bool = False) -> A2C | A3C:
    """Build the agent with or without workers, in environments that wait."""
    build_envs = partial(make_envs, slow_cartpole, config.num_envs)
    envs = build_envs()
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    if alone:
        shared = {x.name: getattr(config, x.name) for x in fields(GradientConfig)}
        return A2C(policy, envs, A2CConfig(**shared), numpy_act(policy))
    transport = transport_named(config.transport)
    return A3C(policy, build_envs, config, transport, numpy_act)


def waiting() -> Experiment:
    """Return the experiment that is about seconds: one agent alone, or workers."""
    config = replace(a3c_settings(ENV), total_steps=40_000)
    variants = {"A2C": Variant({}, partial(in_slow_cartpole, alone=True))}
    for workers in (1, 2, 4):
        changes = {"actors": workers, "transport": "shared"}
        variants[f"{workers} workers"] = Variant(changes, in_slow_cartpole)
    return Experiment(ENV, config, 3, 20, variants, by_clock=True)


EXPERIMENTS = {
    "a3c_waiting": waiting(),
    "a2c": Experiment(
        "CartPole-v1",
        PPOConfig(
            total_steps=50_000,
            num_envs=8,
            num_steps=32,
            num_epochs=1,
            num_minibatches=1,
            learning_rate=5e-3,
            clip_ratio=1e9,
            entropy_weight=0.0,
        ),
        seeds=20,
        episodes=100,
        variants={"A2C": Variant({})},
    ),
    "a2c_cartpole": Experiment(
        ENV, a2c_settings(ENV), 10, 100, {"A2C": Variant({}, build)}, goal=475
    ),
    "a2c_plain": Experiment(
        ENV,
        replace(a2c_settings(ENV), rmsprop_decay=0.99, reward_scale=1.0),
        10,
        100,
        {"A2C": Variant({}, build)},
        goal=475,
    ),
    "a3c_cartpole": workers(),
    "a2c_contract": contracts(),
    "a3c_lag": late(),
    "a3c_corrected": late_and_corrected(),
    "a3c_rates": late_and_slow(),
    "a2c_forgetting": forgetting(),
    "a2c_values": replace(
        forgetting(),
        variants={"values times 10": Variant({}, with_large_values)},
        watched=(),
    ),
}


if __name__ == "__main__":
    main("python -m benchmarks.a2c_learning", EXPERIMENTS)

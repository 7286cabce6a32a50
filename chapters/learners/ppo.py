# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPO for any task
#
# **How does a program become a learner that serves every kind of action?** The three steps of
# {doc}`/chapters/ppo` become methods, its numbers a dataclass of settings, and its network any policy
# of {doc}`/chapters/policies`.

# %% tags=["export", "hide-input"]
"""PPO: a policy, a rollout, a few epochs of updates, for any action space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Gt
from torch import Tensor, nn

from literate_rl.data.agents import Rollout, Runner, Window, seen_by
from literate_rl.data.episodes import check_num_envs, mean_return
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import (
    Act,
    ActorCriticLike,
    ByHandLike,
    Envs,
    RecurrentConfig,
    settings_of,
)
from literate_rl.ground.rows import ANY, Row, actor_critic, register
from literate_rl.ground.signatures import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Scale,
    check_finite,
    check_that,
    checked,
)
from literate_rl.maths.advantages import gae
from literate_rl.maths.ppo_error import (
    approx_kl_k3,
    policy_error_from_log_prob,
    ppo_info,
    ppo_policy_loss,
    ppo_value_data,
    ppo_value_error,
)
from literate_rl.nets.parts import RewardScaler, normalizer_of, take_in

__all__ = [
    "PPO",
    "PPOConfig",
    "Samples",
    "ppo_settings",
]

# %% [markdown]
# ## The learner
#
# Looking back makes a table out of a rollout.


# %% tags=["export"]
class Samples(NamedTuple):
    """What PPO learns from: real steps in any order, or a minibatch of them.

    Attributes:
        obs: What the agent saw; for a policy that remembers a ``Window`` of it.
        action: What it did.
        log_prob: How likely that was under the policy that did it.
        adv: Advantage estimates.
        target: Targets of the values.
        value: Values before learning.
        mask: Which actions were legal, or None where nobody says so.
    """

    obs: Any
    action: Tensor
    log_prob: Tensor
    adv: Tensor
    target: Tensor
    value: Tensor
    mask: Tensor | None = None

    def take(self, rows: Tensor) -> Samples:
        """Return some of the samples; of a window those of some environments."""
        obs, *fields = self
        obs, rows = obs.take(rows) if isinstance(obs, Window) else (obs[rows], rows)
        rest: Any = [x if x is None else x[rows] for x in fields]
        return Samples(obs, *rest)

    @property
    def number(self) -> int:
        """How many samples there are to deal out; of a window its environments."""
        obs = self.obs
        return obs.obs.shape[1] if isinstance(obs, Window) else len(obs)


# %% [markdown]
# The class below has three parts, `collect`, `look_back` and `learn`; `update` runs the epochs
# around `learn`. Its settings, `PPOConfig`, follow further down. From {doc}`/chapters/data/agents` it has the
# `Runner`, which acts for a rollout at a time, from {doc}`/chapters/policies` the `RewardScaler`. `act` and `policy_error` may
# be replaced: by a faster way to act, or by another loss. `by_hand` takes the place of autograd:
# {doc}`/chapters/ppo_by_hand` has the same gradient, sooner, and Adam's step with it. With `target_kl` the
# epochs stop early.
#
# If a network of your own has dropout: acting, its log-probabilities and the old values share one mode,
# `eval_mode` of {doc}`/chapters/ground/networks`, in which nothing is dropped. Only `learn` runs in
# training mode, so its first ratios are scattered around 1.


# %% tags=["export"]
class PPO(Runner):
    """Proximal policy optimisation, for any policy with the methods of ``Policy``.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        act: A faster form of ``policy.act``, or None for that one.
        policy_error: Loss of log-probabilities, instead of
            ``policy_error_from_log_prob``.
        by_hand: What computes the policy's numbers and the gradient without autograd,
            such as ``ByHand(policy)``, or None for autograd.
    """

    policy: ActorCriticLike
    scaler: RewardScaler
    kept = (*Runner.kept, "optimizer", "scaler")

    def __init__(
        self,
        policy: ActorCriticLike,
        envs: Envs,
        config: PPOConfig,
        act: Act | None = None,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
        by_hand: ByHandLike | None = None,
    ) -> None:
        check_num_envs(envs, config.num_envs)
        settings = config.num_steps, config.seed, config.checkpoint_interval
        super().__init__(policy, envs, *settings, act)
        one = policy_error is None or by_hand is None
        check_that(one, "policy_error needs autograd: leave out by_hand")
        self.normalizer = normalizer_of(policy, config.normalize_obs)
        self.config = config
        self.policy_error = policy_error or policy_error_from_log_prob
        self.judge = by_hand or policy
        self.gradient = by_hand.gradient if by_hand else self.autograd
        # One optimiser for both networks. Adam's `eps`, which keeps its divisor from
        # zero, is that of OpenAI Baselines.
        self.parameters = list(policy.parameters())
        self.optimizer = torch.optim.Adam(
            self.parameters, config.learning_rate, eps=1e-5, fused=True
        )
        if by_hand is not None:
            by_hand.speed_up(self.optimizer)
        self.scaler = RewardScaler(config.num_envs, config.gamma).to(self.device)

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, learn from it, and return metrics."""
        return self.update(self.collect())

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        # The learning rate {eq}`annealing`.
        if self.config.anneal:
            self.optimizer.param_groups[0]["lr"] = self.config.rate(self.step)
        return super().collect()

    @torch.no_grad()
    def look_back(self, batch: Rollout) -> Samples:
        """Return the samples of a rollout: all that the old policy knows about it."""
        config, judge = self.config, self.judge
        # One pass over the whole rollout says what the old policy and the old values
        # were. So nothing of this had to be computed while acting.
        with eval_mode(self.policy):
            obs, next_obs = seen_by(self.policy, batch)
            log_prob, _ = judge.evaluate_actions(obs, batch.action, mask=batch.mask)
            value, next_value = judge.value(obs), judge.value(next_obs)

        # The advantages, {eq}`gae`, with a flag for each kind of end.
        if config.scale_reward:
            batch = self.scaler.scaled(batch)
        adv = gae(
            *(batch.reward, value, next_value, batch.terminated, batch.truncated),
            *(config.gamma, config.lambda_),
        )
        # {doc}`/chapters/ppg` looks at the rollout once more.
        self.seen = (batch, value, next_value)

        # From here on time plays no role. Phantom rows, which some environments put
        # behind each episode ({doc}`/chapters/exact_values`), are left out.
        columns = (obs, batch.action, log_prob, adv, adv + value, value)
        return Samples(*columns, batch.mask).take(batch.real)

    def update(self, batch: Rollout) -> dict[str, float]:
        """Learn from a rollout for some epochs; return metrics.

        The losses are those of the last minibatch, the distances those of all steps.
        """
        config, samples = self.config, self.look_back(batch)
        for _ in range(config.num_epochs):
            # Each epoch shuffles the samples and deals them out in minibatches.
            order = torch.randperm(samples.number, generator=self.generator)
            for rows in order.to(self.device).tensor_split(config.num_minibatches):
                losses = self.learn(samples.take(rows))
            # A policy that has moved far enough has learned enough from this rollout.
            most = config.target_kl
            if most and self.distance(samples)["losses/approx_kl"] > most:
                break
        moved = self.distance(samples)
        # Only now may the normaliser change. Earlier it would move the old policy.
        take_in(self.normalizer, batch.obs, batch.real)

        # How much of the targets the critic foresaw: 1 is all of their variance.
        unexplained = (samples.target - samples.value).var() / samples.target.var()
        return {
            "charts/episodic_return": mean_return(batch.episode_return),
            "charts/episodic_length": batch.episode_length.nanmean().item(),
            "charts/learning_rate": self.optimizer.param_groups[0]["lr"],
            **losses,
            **moved,
            "losses/explained_variance": 1 - unexplained.item(),
        }

    def learn(self, part: Samples) -> dict[str, float]:
        """Take one step of the optimiser on a minibatch; return its losses."""
        losses = self.gradient(part, self.config)
        self.optimizer.step()
        return losses

    def autograd(self, part: Samples, config: PPOConfig) -> dict[str, float]:
        """Leave the clipped gradient of a minibatch in ``grad``; return its losses."""
        policy = self.policy
        # Mean 0 and standard deviation 1, {eq}`advantage-normalised`.
        adv = part.adv
        if config.normalize_advantage:
            adv = (adv - adv.mean()) / (adv.std(correction=0) + 1e-8)

        # The actor: the clipped surrogate and the entropy bonus of
        # {doc}`/chapters/ppo_error`.
        log_prob, entropy = policy.evaluate_actions(
            part.obs, part.action, mask=part.mask
        )
        clips = config.clip_ratio, config.dual_clip
        (policy_loss, entropy_loss), _ = self.policy_error(
            log_prob, part.log_prob, entropy, adv, None, *clips
        )
        # The critic: half the mean squared error to the targets.
        data = ppo_value_data(policy.value(part.obs), part.value, part.target, None)
        value_loss = ppo_value_error(data, config.value_clip)

        # The total. What is not finite would spoil all weights at once.
        loss = policy_loss + config.value_weight * value_loss
        loss = loss - config.entropy_weight * entropy_loss
        inputs = {"log_prob_old": part.log_prob, "log_prob": log_prob}
        check_finite(loss, **inputs, entropy=entropy)
        # The gradient, clipped.
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        return {
            "losses/policy_loss": policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": entropy_loss.item(),
        }

    @torch.no_grad()
    def distance(self, samples: Samples) -> dict[str, float]:
        """Say how far the policy has moved from the one that collected the rollout."""
        with eval_mode(self.policy):
            log_prob, _ = self.judge.evaluate_actions(
                samples.obs, samples.action, mask=samples.mask
            )
        log_ratio = log_prob - samples.log_prob
        # The names are CleanRL's: `approx_kl` is $k_3$ and `old_approx_kl` is $k_1$. A
        # loss of one's own may have several log-probabilities for an action, and all of
        # them count.
        outside = (log_ratio.exp() - 1).abs() > self.config.clip_ratio
        return {
            "losses/old_approx_kl": -log_ratio.mean().item(),
            "losses/approx_kl": approx_kl_k3(
                log_prob.flatten(), samples.log_prob.flatten()
            ).item(),
            "losses/clipfrac": outside.float().mean().item(),
        }


# %% [markdown]
# ## Settings
#
# They are kept in one frozen dataclass, so that a run can print, store and repeat them. The
# defaults are those of
# [CleanRL](https://github.com/vwxyzjn/cleanrl/blob/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb/cleanrl/ppo.py#L37-L69)
# for CartPole, except for fewer steps and no clip of the value. Begin with the learning rate, the
# length of a rollout (`num_envs` times `num_steps`) and the number of epochs. Then look at the
# discount, which four of the entries below change, and at `scale_reward`, which helped most
# while training on Pendulum ({doc}`/chapters/ppo_evidence`). Most of the rest can stay.
#
# One setting may surprise you. At every `checkpoint_interval` rollouts all environments start anew
# (in Spinning Up at every rollout), so an episode longer than `num_steps * checkpoint_interval`
# steps never ends while training: 6,400 steps by default, 1,600 with the settings of CartPole. If
# yours are longer, raise it.


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class PPOConfig(RecurrentConfig):
    """Settings of PPO. The defaults suit small tasks such as CartPole.

    Attributes:
        num_envs: Environments that are stepped together.
        num_steps: Steps of one rollout in each environment.
        num_epochs: How often each rollout is learned from.
        num_minibatches: Parts into which each epoch divides the rollout.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns in the advantage.
        clip_ratio: Half width of the ratio's clip range.
        dual_clip: Bound of the dual clip, or none.
        value_clip: Half width of the value's clip range, in units of the return, or
            none.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        max_grad_norm: Norm above which a gradient is clipped.
        normalize_advantage: Whether a minibatch's advantages get mean 0 and standard
            deviation 1.
        scale_reward: Whether rewards are divided by the standard deviation of the
            return.
        target_kl: Divergence in nats after which no further epoch begins, or none.
        share_encoder: Whether actor and critic share an encoder. The policy has to be
            built so, as ``train`` does.
    """

    num_envs: Count = 4
    num_steps: Count = 128
    num_epochs: Count = 4
    num_minibatches: Count = 4
    learning_rate: Scale = 2.5e-4
    anneal: bool = True
    gamma: Fraction = 0.99
    lambda_: Fraction = 0.95
    clip_ratio: Positive = 0.2
    dual_clip: Annotated[float, Gt(1)] | None = None
    value_clip: Positive | None = None
    entropy_weight: NonNegative = 0.01
    value_weight: NonNegative = 0.5
    max_grad_norm: Positive = 0.5
    normalize_advantage: bool = True
    scale_reward: bool = False
    target_kl: Positive | None = None
    share_encoder: bool = False

    def __post_init__(self) -> None:
        # Of a single advantage nothing is left when its mean is subtracted.
        least = 2 if self.normalize_advantage else 1
        most, parts = self.num_envs * self.num_steps // least, self.num_minibatches
        words = "num_envs * num_steps must be at least 2 for normalize_advantage"
        check_that(most > 0, words)
        if self.recurrent:  # a minibatch has whole environments
            most = self.num_envs
        words = f"num_minibatches must be at most {most}, got {parts}"
        check_that(parts <= most, words)


# %% [markdown]
# Which settings are good depends on the task. For the environments of this book here are some
# with which the agent has learned. Those of CartPole come from
# [rl-baselines3-zoo](https://github.com/DLR-RM/rl-baselines3-zoo/blob/22e3ff2450fd92033f7f032915e1f64894a09584/hyperparams/ppo.yml#L37-L48),
# with half as many steps and epochs, twice the learning rate and a clip range that stays as it
# is. All games of MinAtar have the settings of Breakout; of the others only Asterix was tried
# ({doc}`/docs/results`). An environment that is not in the table gets the defaults. The program of
# {doc}`/chapters/ppo` has settings of its own, with minibatches, so that every part of PPO can be seen.

# %% tags=["export", "hide-input"]
# Settings by environment. What an entry leaves out is the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 50_000, "num_envs": 8, "num_steps": 32, "num_epochs": 10,
        "num_minibatches": 1, "learning_rate": 2e-3, "gamma": 0.98, "lambda_": 0.8,
        "entropy_weight": 0.0,
    },
    "Acrobot-v1": {"total_steps": 300_000, "num_envs": 16, "learning_rate": 1e-3},
    "Pendulum-v1": {
        "num_envs": 8, "num_steps": 200, "num_epochs": 10, "num_minibatches": 8,
        "learning_rate": 3e-3, "gamma": 0.9, "entropy_weight": 0.0,
    },
    "literate_rl/Moving-v0": {
        "total_steps": 60_000, "num_envs": 32, "num_steps": 64, "num_epochs": 8,
        "learning_rate": 3e-3, "gamma": 0.98,
    },
    "literate_rl/HybridLander-v0": {
        "total_steps": 400_000, "num_envs": 16, "num_epochs": 8, "num_minibatches": 8,
        "learning_rate": 2e-3, "gamma": 0.995, "scale_reward": True,
    },
} | {
    f"MinAtar/{game}-v1": {
        "total_steps": 1_001_472, "num_envs": 16, "num_minibatches": 8,
        "learning_rate": 1e-3,
    }
    for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
}  # fmt: skip


ppo_settings = settings_of(PPOConfig, SETTINGS)


# %% [markdown]
# What `train` knows of it, in a row ({doc}`/chapters/ground/rows`):

# %% tags=["export", "hide-input"]
ROW = register(
    Row(
        "PPO",
        "where to start: steady, few settings",
        ANY,
        PPOConfig,
        actor_critic,
        PPO,
        settings=ppo_settings,
        contract="ppo",
        forms=("act", "by_hand"),
    )
)

# %% tags=["claims"]
changed = sum("gamma" in entry for entry in SETTINGS.values())
assert changed == 4, "entries that change the discount"
steps_between = [
    x.num_steps * x.checkpoint_interval
    for x in (PPOConfig(), ppo_settings("CartPole-v1"))
]
assert steps_between == [6_400, 1_600]
assert ppo_settings("Pendulum-v1").learning_rate == 3e-3, "ten times 0.0003"

# %% [markdown]
# ## The same, and more
#
# `PPO` does what the program does, if everything that the program does not have is
# switched off. The folded cell makes both draw the same actions and compares their parameters
# after the first two iterations.


# %% tags=["claims"]

from literate_rl.apps.programs import run_program
from literate_rl.data.agents import make_envs
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.nets.parts import CategoricalActions


class Drawn(CategoricalActions):
    """Draws each action when it is due, as the program does."""

    def noise(self, num_steps, num_envs, generator):
        self.generator = generator
        return torch.zeros(num_steps, 1)

    def choose(self, row, noise):
        prob = row.softmax(-1)
        return torch.multinomial(prob, 1, generator=self.generator).squeeze(-1)


page = run_program("ppo", total_steps=1024)  # two iterations
names = "total_steps num_envs num_steps num_epochs num_minibatches learning_rate gamma"
same = {name: page[name] for name in (*names.split(), "lambda_", "clip_ratio")}
config = PPOConfig(**same, entropy_weight=0.0)
torch.manual_seed(1)
envs = make_envs("CartPole-v1", config.num_envs)
built = make_policy(envs.single_observation_space, envs.single_action_space)
learner = PPO(Policy(built.network, Drawn(2)), envs, config)
learner.collector.reset(seed=1000)
learner.iteration = 1  # not due for a reset with another seed
while learner.step < config.total_steps:
    learner.iterate()
for ours, theirs in zip(page["parameters"], learner.parameters, strict=True):
    assert torch.allclose(ours, theirs, atol=1e-5), "the same parameters"

# %% [markdown]
# ## Traps
#
# ### Trap: a normaliser that moves the old policy
#
# In the first minibatch of an iteration nothing has been learned yet, so each ratio must
# be 1, up to rounding. That is the cheapest test of a PPO; {cite:t}`huang2022` recommend it
# too. Here the normaliser of the observations is updated too early, between acting and
# learning:

# %%
from dataclasses import replace

from literate_rl.apps.training import make_learner
from literate_rl.runs.runs import fit

config = ppo_settings("CartPole-v1")
config = replace(config, normalize_obs=True, total_steps=5_000)
learner = make_learner("ppo", "CartPole-v1", config, {})
fit(learner, progress=False)
batch = learner.collect()
furthest = []
with torch.no_grad():
    before, _ = learner.policy.evaluate_actions(batch.obs, batch.action)
    for name in ("before", "after"):
        now, _ = learner.policy.evaluate_actions(batch.obs, batch.action)
        furthest.append((now - before).exp().sub(1).abs().max().item())
        print(f"{name} the normaliser's update: ratios within {furthest[-1]:.3f} of 1")
        learner.policy.network.normalizer.update(batch.obs.flatten(0, 1))

# %% [markdown]
# One early update moves a ratio out of the clip range before anything has been learned. So
# `PPO.update` changes the normaliser last.

# %% tags=["claims"]
assert furthest[0] == 0, "before, all ratios are 1"
assert furthest[1] > 0.2, "out of the clip range"

# %% [markdown]
# ## References
#
# PPO is from {cite:t}`schulman2017`. {cite:t}`huang2022` collect the details of implementations.

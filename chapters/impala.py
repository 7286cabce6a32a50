# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # IMPALA
#
# **How does one policy learn from many actors that cannot wait for it?** The actors collect
# with the weights that they have. The learner learns from what arrives, some of it more than
# once, and V-trace corrects for the difference.
#
# At the end of this chapter you can use one policy in three modes, cut episodes into unrolls
# without counting a step twice, replay them with priorities that reach the loss, and say when
# the correction is needed and when it is not.

# %% tags=["export", "hide-input"]
"""IMPALA: unrolls, a learner that corrects them with V-trace, and a loop."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from literate_rl.agents import Collector, Rollout
from literate_rl.off_policy import check_clips, vtrace_error_from_log_prob
from literate_rl.workshop.memory import ReplayBuffer
from literate_rl.workshop.runs import env_seed
from literate_rl.workshop.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    NonNegative,
    Positive,
    checked,
)
from literate_rl.workshop.worlds import ForceCartPole  # noqa: F401 (registered)

__all__ = [
    "IMPALA",
    "IMPALAConfig",
    "Unroll",
    "VTraceLearner",
    "impala_settings",
    "to_unroll",
]

# %% [markdown]
# ## Unrolls


# %% tags=["export"]
class Unroll(NamedTuple):
    """What the learner reads: T steps in a row of each of B environments.

    Attributes:
        obs_plus_1: What the actor saw, and in one more row where the last step led.
        next_obs: Where each step led: true successors, never a reset.
        action: What the actor did.
        log_prob: How likely that was under the actor's policy, as a logarithm.
        reward: What it was paid.
        terminated: Whether the task ended with this step.
        truncated: Whether the episode was cut off after this step.
        weight: One factor for each step; 0 for a step that does not count.
    """

    obs_plus_1: Any
    next_obs: Any
    action: Tensor
    log_prob: Float[Tensor, "T B"]
    reward: Float[Tensor, "T B"]
    terminated: Bool[Tensor, "T B"]
    truncated: Bool[Tensor, "T B"]
    weight: Float[Tensor, "T B"]


@torch.no_grad()
def to_unroll(batch: Rollout, actor: Any) -> Unroll:
    """Return the unroll that the learner reads of an actor's rollout."""
    # The actor's weights have not changed since the first step. So one pass over the
    # whole rollout says how likely each of its actions was.
    log_prob, _ = actor.evaluate_actions(batch.obs, batch.action)
    return Unroll(
        obs_plus_1=torch.cat([batch.obs, batch.next_obs[-1:]]),
        next_obs=batch.next_obs,
        action=batch.action,
        log_prob=log_prob,
        reward=batch.reward,
        terminated=batch.terminated,
        truncated=batch.truncated,
        weight=batch.real.to(batch.reward),
    )


# %% [markdown]
# ## Settings


# %% tags=["export"]
@checked
@dataclass(frozen=True)
class IMPALAConfig:
    """Settings of IMPALA, with the names and the defaults of DI-engine's.

    Attributes:
        on_policy: Whether the buffer is emptied before each collection.
        priority: Whether the buffer prefers samples with a large error.
        priority_IS_weight: Whether weights in the loss undo that preference.
        unroll_len: Steps of one sample.
        update_per_collect: Steps of the optimiser after each collection.
        batch_size: Samples of one update.
        learning_rate: Learning rate of the optimiser at the start.
        value_weight: Weight of the value loss.
        entropy_weight: Weight of the entropy bonus.
        discount_factor: Discount.
        lambda_: Decay of the weights of longer returns.
        rho_clip_ratio: Bound of the ratio that weighs a TD error, or none.
        c_clip_ratio: Bound of the ratio that weighs what comes later, or none.
        rho_pg_clip_ratio: Bound of the ratio that weighs an advantage, or none.
        grad_clip_type: How the gradient is clipped, or none.
        clip_value: Bound of the gradient. With clip_momentum_norm it is a multiple of
            the usual norm, and DI-engine takes 5.
        optim: The optimiser.
        n_sample: Samples of one collection, one from each environment.
        replay_buffer_size: Samples that the buffer holds at most.
        max_use: How often a sample is learned from at most.
        seed: Decides all that is random in the run, once the policy has its weights.
        total_steps: Steps in the environments, all of them together.
        anneal: Whether the learning rate falls to zero in a straight line.
        reward_scale: Factor of the rewards that are learned from.
        lag: Collections by which the acting policy falls behind the learner before it
            gets new weights.
        checkpoint_interval: Iterations between checkpoints. The environments are reset
            at each of them.
    """

    on_policy: bool = False
    priority: bool = False
    priority_IS_weight: bool = False  # noqa: N815 (the name of the original)
    unroll_len: Count = 32
    update_per_collect: Count = 4
    batch_size: Count = 16
    learning_rate: Positive = 5e-4
    value_weight: NonNegative = 0.5
    entropy_weight: NonNegative = 1e-4
    discount_factor: Fraction = 0.99
    lambda_: Fraction = 0.95
    rho_clip_ratio: Positive | None = 1.0
    c_clip_ratio: Positive | None = 1.0
    rho_pg_clip_ratio: Positive | None = 1.0
    grad_clip_type: Literal["clip_norm", "clip_value", "clip_momentum_norm"] | None = (
        None
    )
    clip_value: Positive = 0.5
    optim: Literal["adam", "rmsprop"] = "adam"
    n_sample: Count = 16
    replay_buffer_size: Count = 1000
    max_use: Count = 16
    seed: Annotated[int, Ge(0)] = 1
    total_steps: Count = 100_000
    anneal: bool = False
    reward_scale: Positive = 1.0
    lag: Annotated[int, Ge(0)] = 0
    checkpoint_interval: Count = 50

    def __post_init__(self) -> None:
        if self.priority_IS_weight and not self.priority:
            raise ValueError("priority must be True if priority_IS_weight is True")
        check_clips(self.rho_clip_ratio, self.c_clip_ratio)


# %% [markdown]
# ## The learner
#
# The learner adds up the three losses of {doc}`/chapters/off_policy`,
#
# $$
# \mathcal L = \mathcal L_\pi + c_V \mathcal L_V - c_H \mathcal H .
# $$ (impala-loss)
#
# Before the optimiser sees the gradient $g$, it may be clipped. There are three ways, with one
# bound $g_{\max}$. *clip_norm* shortens all of it to the length $g_{\max}$. *clip_value* limits each
# number $g_j$ on its own. *clip_momentum_norm* compares its length with the usual one, $\bar g$:
#
# $$
# \begin{aligned}
# g &\leftarrow g \min \Bigl( 1, \frac{g_{\max}}{\lVert g \rVert} \Bigr) , \\
# g_j &\leftarrow \max \bigl( -g_{\max}, \min(g_{\max}, g_j) \bigr) , \\
# g &\leftarrow g \min \Bigl( 1, \frac{g_{\max} \bar g}{\lVert g \rVert} \Bigr) .
# \end{aligned}
# $$ (gradient-clips)
#
# Here $\bar g^2$ is the mean of $\lVert g \rVert^2$ over this update and all earlier ones. Each
# older update counts 0.999 of the next one. The lengths are those *before* the clip. Adam keeps a
# mean of squares too, but it has seen clipped gradients only. A bound taken from it, with
# $g_{\max} < 1$, could only shrink, and the gradient with it.


# %% tags=["export"]
class VTraceLearner:
    """Learns from unrolls, whoever collected them: a policy and its optimiser.

    Args:
        policy: The policy to train, with the methods of ``Policy``, on any device.
        config: The settings.

    Attributes:
        surprise: After an update with ``config.priority``, how far the values of each
            environment were from their targets on average.
    """

    def __init__(self, policy: Any, config: IMPALAConfig) -> None:
        self.policy, self.config = policy, config
        self.parameters = list(policy.parameters())
        optimizer: Any = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
        self.optimizer: torch.optim.Optimizer = optimizer[config.optim](
            self.parameters, config.learning_rate
        )
        # Sums for the usual norm of the gradient: of squared norms, and of weights.
        self.norms = (0.0, 0.0)
        self.surprise: list[float] = []

    def learn(self, unroll: Unroll) -> dict[str, float]:
        """Take one step of the optimiser on an unroll; return its losses."""
        config, policy = self.config, self.policy
        # How likely are the actor's actions now, how random is the policy, and what are
        # the states worth?
        log_prob, entropy = policy.evaluate_actions(
            unroll.obs_plus_1[:-1], unroll.action
        )
        value = policy.value(unroll.obs_plus_1)

        # Targets, advantages and the three losses of {doc}`/chapters/off_policy`.
        loss = vtrace_error_from_log_prob(
            log_prob,
            unroll.log_prob,
            entropy,
            value,
            unroll.reward * config.reward_scale,
            unroll.weight,
            unroll.terminated,
            unroll.truncated,
            self.next_value(value, unroll),
            config.discount_factor,
            config.lambda_,
            config.rho_clip_ratio,
            config.c_clip_ratio,
            config.rho_pg_clip_ratio,
        )
        if config.priority:
            self.surprise = surprise(loss.value_loss, value, unroll.weight)

        # The total {eq}`impala-loss`, and one step downhill.
        total = loss.policy_loss + config.value_weight * loss.value_loss
        total = total - config.entropy_weight * loss.entropy_loss
        self.optimizer.zero_grad()
        total.backward()
        norm = self.clip_gradient()
        self.optimizer.step()
        return {
            "cur_lr": self.optimizer.param_groups[0]["lr"],
            "total_loss": total.item(),
            **{name: part.item() for name, part in loss._asdict().items()},
            "grad_norm": norm,
        }

    @torch.no_grad()
    def next_value(self, value: Tensor, unroll: Unroll) -> Tensor:
        """Return the values of true successors, given those of the rows."""
        # The next row holds a step's successor. Behind a cut it belongs to another
        # episode. There, and only there, the true successor needs a value of its own.
        next_value, cut = value[1:].detach().clone(), unroll.truncated
        if cut.any():
            next_value[cut] = self.policy.value(unroll.next_obs[cut])
        return next_value

    def clip_gradient(self) -> float:
        """Clip the gradient as the settings say; return its norm before that."""
        # The three ways {eq}`gradient-clips`. An infinite limit only measures.
        kind, bound = self.config.grad_clip_type, self.config.clip_value
        limit = bound if kind == "clip_norm" else math.inf
        norm = nn.utils.clip_grad_norm_(self.parameters, limit).item()
        if kind == "clip_value":
            nn.utils.clip_grad_value_(self.parameters, bound)
        if kind == "clip_momentum_norm":
            squares, weights = (0.999 * total for total in self.norms)
            self.norms = (squares + norm**2, weights + 1)
            usual = math.sqrt(self.norms[0] / self.norms[1])
            nn.utils.clip_grad_norm_(self.parameters, bound * usual)
        return norm

    def anneal(self, step: int) -> None:
        """Set the learning rate of a step of the run, if the settings let it fall."""
        if self.config.anneal:
            left = max(0.0, 1 - step / self.config.total_steps)
            self.optimizer.param_groups[0]["lr"] = self.config.learning_rate * left

    def state_dict(self) -> dict[str, Any]:
        """Return optimiser and norms of gradients, the policy's weights aside."""
        return {"optimizer": self.optimizer.state_dict(), "norms": self.norms}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned; it is copied."""
        norms, optimizer = state["norms"], copy.deepcopy(state["optimizer"])
        groups = self.optimizer.param_groups[0], optimizer["param_groups"][0]
        if groups[0].keys() != groups[1].keys():
            raise ValueError(f"state must come from an optimiser {self.config.optim}")
        self.optimizer.load_state_dict(optimizer)
        self.norms = norms


def surprise(value_loss: Tensor, value: Tensor, weight: Tensor) -> list[float]:
    """Return how far the values of each environment are from their targets."""
    # The loss has the distances already. Its derivative with respect to a value is
    # $2 w_t (V - v_t)$ over the number of steps.
    (grad,) = torch.autograd.grad(value_loss, value, retain_graph=True)
    distance = grad[:-1].abs().sum(0) * weight.numel() / 2
    # Steps that do not count weigh nothing in this mean either.
    distances: list[float] = (distance / weight.sum(0).clamp_min(1e-9)).tolist()
    return distances


# %% [markdown]
# ## The loop


# %% tags=["export"]
class IMPALA:
    """The loop: collect with a policy that may be old, store, learn.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.n_sample`` copies.
        config: The settings.
    """

    def __init__(
        self, policy: Any, envs: VectorEnv[Any, Any, Any], config: IMPALAConfig
    ) -> None:
        given, wanted = envs.num_envs, config.n_sample
        if given != wanted:
            raise ValueError(f"envs must have {wanted} copies, got {given}")
        self.policy, self.config = policy, config
        self.learner = VTraceLearner(policy, config)
        self.device = self.learner.parameters[0].device
        # An actor that never falls behind is the policy itself.
        self.actor = copy.deepcopy(policy) if config.lag else policy
        self.collector = Collector(envs, policy.to_env, np.float32)
        preference = 0.6 if config.priority else 0.0
        self.memory = ReplayBuffer(
            config.replay_buffer_size, config.max_use, preference
        )
        self.generator = torch.Generator().manual_seed(config.seed)
        self.iteration = 0

    def iterate(self) -> dict[str, float]:
        """Collect a sample from each environment, learn, and return metrics."""
        config = self.config
        self.learner.anneal(self.step)
        mean_return = self.collect()
        for _ in range(config.update_per_collect):
            if not self.memory:  # all samples have been used as often as they may
                break
            entries = self.memory.sample(config.batch_size, self.generator)
            losses = self.learner.learn(self.batch(entries))
            if config.priority:
                self.memory.update(entries, self.learner.surprise)

        self.iteration += 1
        if config.lag and self.iteration % (config.lag + 1) == 0:
            self.actor.load_state_dict(self.policy.state_dict())
        named = {f"losses/{name}": number for name, number in losses.items()}
        return {"charts/episodic_return": mean_return, **named}

    def collect(self) -> float:
        """Act for T steps and store the samples; return the mean return."""
        config = self.config
        # A run that is resumed starts with fresh environments. So that it is the same
        # run, they are fresh at each checkpoint anyway.
        if self.collector.obs is None or self.checkpoint_due:
            self.collector.reset(env_seed(config.seed, self.step))

        def act(obs: Tensor) -> Tensor:
            noise = self.actor.noise(1, len(obs), self.generator)[0]
            action: Tensor = self.actor.act(obs.to(self.device), noise.to(self.device))
            return action

        batch = self.collector.collect(act, config.unroll_len)
        unroll = to_unroll(batch.to(self.device), self.actor)
        # What is left of the last collection is no longer on-policy.
        if config.on_policy:
            self.memory.entries.clear()
        # Copies: a view would keep the whole unroll in memory for one sample of it.
        self.memory.push(
            [
                tuple(x[:, b].to("cpu", copy=True) for x in unroll)
                for b in range(config.n_sample)
            ]
        )
        return batch.episode_return.nanmean().item()

    def batch(self, entries: list[dict[str, Any]]) -> Unroll:
        """Put stored samples side by side."""
        columns = zip(*(entry["sample"] for entry in entries), strict=True)
        unroll = Unroll(*(torch.stack(x, 1).to(self.device) for x in columns))
        if self.config.priority_IS_weight:
            unroll.weight.mul_(unroll.weight.new_tensor([e["IS"] for e in entries]))
        return unroll

    # What follows is for the loop around the learner, `fit`, and for checkpoints
    # ({doc}`workshop/runs`).
    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    @property
    def total_steps(self) -> int:
        """Steps after which the training is over."""
        return self.config.total_steps

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.iteration % self.config.checkpoint_interval == 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        return {
            "step": self.step,
            "iteration": self.iteration,
            "learner": self.learner.state_dict(),
            "memory": self.memory.state_dict(),
            "generator": self.generator.get_state(),
            "actor": self.actor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        # What is missing is missed here, before anything has changed.
        names = ("step", "iteration", "memory", "generator", "actor")
        step, iteration, memory, generator, actor = (state[name] for name in names)
        self.learner.load_state_dict(state["learner"])
        self.generator.set_state(generator)
        self.memory.load_state_dict(memory)
        if self.config.lag:
            self.actor.load_state_dict(actor)
        self.collector.step, self.iteration = step, iteration
        self.collector.obs = None


# %% tags=["export"]
# Settings with which the agent has learned, by environment. What an entry leaves out is
# the default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "total_steps": 200_000,
        "learning_rate": 1e-3,
        "anneal": True,
        "reward_scale": 0.05,
        "entropy_weight": 0.01,
        "replay_buffer_size": 16,
    },
}
# The same CartPole, pushed as hard as the agent likes.
SETTINGS["literate_rl/ForceCartPole-v0"] = {
    **SETTINGS["CartPole-v1"],
    "total_steps": 300_000,
}


def impala_settings(env: str) -> IMPALAConfig:
    """Return settings for an environment: its own if we know some, else the defaults.

    Args:
        env: Id of the environment.
    """
    return IMPALAConfig(**SETTINGS.get(env, {}))


# %% [markdown]
# ## See it: CartPole
#
# Thirty thousand steps from sixteen copies. The buffer is as small as one collection here,
# and each sample is used four times. Rewards are multiplied with a twentieth.
#
# Why that? With a discount of 0.99 the values of a good policy are near 100 in CartPole, and a
# network that starts near 0 takes thousands of updates to get there. As long as it is behind, the
# advantage of nearly every action is positive: do that again, says the gradient, whatever was
# done, and the policy becomes sure of itself too early. PPO subtracts the mean of the
# advantages. IMPALA does not, and small rewards help the value to arrive in time. They also let
# the entropy bonus count, which stands beside the advantages in the loss. The runs of five
# seeds with these settings, and with rewards as they are, end here:

# %%
from dataclasses import replace
from functools import partial

from literate_rl.workshop.runs import stored_runs

for name in ("cartpole", "unscaled"):
    (runs,) = stored_runs(f"impala_{name}").values()
    print(f"{name:9s} after {runs.steps[-1]:.0f} steps:", runs.final.round().tolist())

# %% mystnb={"image": {"alt": "Returns of IMPALA on CartPole over 30,000 steps: they rise from 20 to 500 at about 23,000 steps, stay there for a while and fall back below 200"}}
import matplotlib.pyplot as plt

from literate_rl.agents import best_device, make_envs
from literate_rl.ppo import make_policy
from literate_rl.evaluation import evaluate, paired_difference
from literate_rl.workshop.runs import fit, flat_env

torch.set_num_threads(1)  # the networks are too small to be shared out


def make_learner(env, config):
    """Build environments, the policy that fits them, and the learner."""
    envs = make_envs(partial(flat_env, env), config.n_sample)
    torch.manual_seed(config.seed)
    model = make_policy(envs.single_observation_space, envs.single_action_space)
    return IMPALA(model, envs, config)


# No checkpoint falls into a run as short as this one, so no episode is broken off.
config = replace(
    impala_settings("CartPole-v1"), total_steps=30_000, checkpoint_interval=1000
)
cartpole = make_learner("CartPole-v1", config)
history = fit(cartpole, progress=False)
rows = np.array([(h["step"], h["charts/episodic_return"]) for h in history])
rows = rows[np.isfinite(rows[:, 1])]  # without the iterations in which no episode ended
fig, axis = plt.subplots(figsize=(7, 2.4))
axis.plot(*rows.T, marker=".", linewidth=0.8)
axis.set(xlabel="steps", ylabel="return")
fig.tight_layout()
returns = evaluate(cartpole.policy, "CartPole-v1", episodes=10, seed=1)
print(f"10 episodes without noise: {returns.mean():.0f}")

# %% [markdown]
# **What to notice.** A dot is the mean over the episodes that ended in an iteration. The longer the
# episodes get, the fewer of them end in its 32 steps. So the dots swing more and more, and some are
# missing. This run reaches 500 and forgets it again. How well the agent learns is told by the
# longer runs above.
#
# ## What old data do
#
# Now let the data get old. There are two ways. The learner may take many updates on one
# collection: each of them moves the policy away from the one that collected. Or the actor may fall
# behind, while each collection is used once. In all runs below the step size is 2e-3 and does not
# fall, $\lambda$ is 1, and there are ten seeds. One half has V-trace. The other half takes all data
# for its own: each ratio is 1. `python -m benchmarks.impala_learning` makes the data anew.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Five panels of returns over 60,000 steps. One update: both kinds of run climb to between 100 and 500, on the same lines. Four updates: six runs without correction fall to 9 and stay there, one with V-trace, and the mean with V-trace rises to 350. Eight updates: of the uncorrected runs all but one fall to 9 before 20,000 steps and stay there, with V-trace four do. Lag 5: all runs but one without correction climb, and the two means are close. Lag 15: all runs climb, and the mean without correction is higher, 450 against 250 at the end"}}

experiments = {
    "1 update": "impala_updates_1",
    "4 updates": "impala_updates_4",
    "8 updates": "impala_updates_8",
    "lag 5": "impala_lag_5",
    "lag 15": "impala_lag_15",
}


def share(fallen, z=1.96):
    """Return how many runs fell, and Wilson's interval of 95 percent."""
    n, k = len(fallen), fallen.sum()
    middle, half = k + z**2 / 2, z * np.sqrt(k * (n - k) / n + z**2 / 4)
    low, high = ((middle + side * half) / (n + z**2) for side in (-1, 1))
    return f"{k:2d} of {n} [{low:3.0%}, {high:3.0%}]"


fig, axes = plt.subplots(2, 3, figsize=(7, 4), sharex=True, sharey=True)
print(f"{'':10s} {'':12s} last third   collapsed")
for axis, (title, name) in zip(axes.flat, experiments.items(), strict=False):
    variants = stored_runs(name)
    for (kind, runs), color in zip(variants.items(), ("C0", "C3"), strict=True):
        steps, curves = runs.steps / 1000, runs.curves
        axis.plot(steps, curves.T, color=color, alpha=0.3, linewidth=0.7)
        axis.plot(steps, curves.mean(0), color=color, linewidth=2, label=kind)
        late, fallen = curves[:, -len(steps) // 3 :].mean(), curves[:, -1] < 15
        print(f"{title:10s} {kind:12s} {late:10.0f}   {share(fallen)}")
    axis.set_title(title, fontsize=10)
for axis in axes[:, 0]:
    axis.set_ylabel("return while training")
for axis in (*axes[1, :2], axes[0, 2]):
    axis.set_xlabel("thousand steps")
axes[0, 2].xaxis.set_tick_params(labelbottom=True)
axes[1, 2].axis("off")
axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
fig.tight_layout()

# %% [markdown]
# **What to notice.** A thin line is a run, and a collapsed run ends below 15: such an agent pushes to
# one side only. With one update on each collection all ratios are 1 up to rounding: it depends on the
# processor whether the actor's few rows and the learner's many give the same last digit. The lines of
# both kinds coincide. With four updates six of ten uncorrected runs collapse, and one with V-trace. With
# eight updates it is nine and four. The seeds are the same, so the runs can be compared in pairs:
# five collapse only without the correction, in either panel, and none collapses only with it. So it
# helps, and it is no insurance.
#
# With an actor that falls behind hardly any run collapses, not even with a lag of 15. And what is
# striking there: uncorrected data that are 15 collections old do as well as fresh ones, as far as ten
# seeds can tell. V-trace has its price on them. With a lag of 15 it learns more slowly than without
# correction, and than with fresh data; with a lag of 5 no difference is seen. One candidate for a
# reason is that a ratio is clipped above 1 and not below, so on average the same data weigh less. We
# have not tested that.

# %% tags=["claims"]
stored = {title: stored_runs(name) for title, name in experiments.items()}


def late_returns(title, kind):
    """Return the mean of the last third of each run."""
    curves = stored[title][kind].curves
    return curves[:, -curves.shape[1] // 3 :].mean(1)


def compared(first, second):
    """Return the paired difference of two kinds of run, late in the training."""
    return paired_difference(late_returns(*first), late_returns(*second))


fresh = stored["1 update"]
assert (fresh["V-trace"].curves == fresh["uncorrected"].curves).all(), "one line"
for title, fallen in (("4 updates", (1, 6)), ("8 updates", (4, 9))):
    with_it, without = (
        stored[title][kind].curves[:, -1] < 15 for kind in ("V-trace", "uncorrected")
    )
    assert (with_it.sum(), without.sum()) == fallen, "of ten runs"
    assert (without & ~with_it).sum() == 5, "only without the correction"
    assert not (with_it & ~without).any(), "none only with it"
for title in ("lag 5", "lag 15"):
    runs = stored[title].values()
    assert sum((x.curves[:, -1] < 15).sum() for x in runs) <= 1, "hardly any collapses"
    kept = compared((title, "uncorrected"), ("1 update", "uncorrected"))
    assert kept.low < 0 < kept.high, "uncorrected data do as well as fresh ones"
slower = compared(("lag 15", "V-trace"), ("lag 15", "uncorrected"))
assert slower.high < 0, "more slowly than without correction"
slower = compared(("lag 15", "V-trace"), ("1 update", "V-trace"))
assert slower.high < 0, "and than with fresh data"
for second in (("lag 5", "uncorrected"), ("1 update", "V-trace")):
    found = compared(("lag 5", "V-trace"), second)
    assert found.low < 0 < found.high, "with a lag of 5 no difference is seen"

# %% [markdown]
# Why do they fall? Look at one action, as likely as another one before the first update, with an
# advantage of $-1$. Uncorrected, its loss is $\log \pi(a)$, which has no lower bound. Each update
# pushes it further down, however rare it has become. With V-trace the weight of the push is the
# ratio, and it vanishes together with $\pi(a)$:

# %%
for name, corrected in (("V-trace", True), ("uncorrected", False)):
    logit, seen = torch.zeros(()), []
    for update in range(1, 1001):
        chance = logit.sigmoid()
        ratio = (chance / 0.5).clamp(max=1.0) if corrected else 1.0
        logit -= 0.5 * ratio * (1 - chance)
        if update in (1, 10, 100, 1000):
            seen.append(f"{logit.sigmoid().item():.1e}")
    print(f"{name:11s} chance after 1, 10, 100 and 1000 updates:", *seen)

# %% [markdown]
# A good action needs no such brake: its chance stops at 1. So the correction does not make learning
# faster. It stops old data from being believed again and again. It does not say how far one may go
# with them, as the clip of {doc}`/chapters/ppo` does. And what it does to the values is seen
# without noise in {doc}`/chapters/off_policy`.

# %% [markdown]
# ## What well-known implementations do
#
# | question | this chapter | scalable_agent | torchbeast | DI-engine | RLlib | Machin |
# |---|---|---|---|---|---|---|
# | actors | in this process, with a lag | processes, TensorFlow queue | processes, shared memory | one collector | Ray actors | processes |
# | a sample | unroll across episodes | unroll across episodes | unroll across episodes | unroll of one episode | unroll across episodes | whole episode |
# | replay | each sample up to 16 times | none | none | each sample up to 16 times | optional | a buffer of episodes |
# | step behind an end | kept | kept | kept | thrown away, but its own samples have none | kept | no such step |
# | $\lambda$ | 0.95 | none | none | 0.95 | none | none |
# | optimiser | Adam or RMSprop, both clipped | RMSprop | RMSprop, clipped | Adam, clipped; RMSprop, not clipped | Adam, clipped | Adam |
# | *clip_momentum_norm* | $g_{\max}$ is `clip_value`, from the first update on | | | $g_{\max}$ is `clip_coef`, 5 and no setting of the policy; after 100 updates | | |
# | where the modes are set up | in the constructor | | | `_init_learn`, `_init_collect`, `_init_eval` | | |
#
# ## On the best device
#
# The networks run where the policy is; unrolls that are stored stay on the CPU.

# %%
config = IMPALAConfig(total_steps=1024)
on_device = make_learner("CartPole-v1", config)
last = fit(on_device, progress=False)[-1]
print(f"trained on {best_device().type} for {last['step']} steps")
print("finite losses:", all(math.isfinite(last[k]) for k in last if "losses" in k))

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: how often is a sample used?
#
# Each iteration collects $n$ samples and takes $k$ updates with batches of $m$. Once the buffer is
# full, how often is a sample used on average before it leaves, if nothing but age drives it out
# and `max_use` is the limit?

# %%
from literate_rl.agents import grade


def answer(n_sample, update_per_collect, batch_size, max_use):
    return ...


def mean_use(n_sample, update_per_collect, batch_size, max_use):
    return min(update_per_collect * batch_size / n_sample, max_use)


runs = [(16, 4, 16, 16), (16, 1, 8, 16), (4, 10, 16, 16)]
grade(answer, mean_use, *runs)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(n_sample, update_per_collect, batch_size, max_use):
    # What is drawn in an iteration is shared by the samples that came in.
    return min(update_per_collect * batch_size / n_sample, max_use)


grade(answer, mean_use, *runs)

# %% [markdown]
# ## References
#
# IMPALA and V-trace are from {cite:t}`espeholt2018`.

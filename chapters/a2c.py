# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A2C and A3C
#
# **What is left of PPO without its clip, and what if workers send gradients instead of
# experience?** After this chapter you can train with the simplest actor-critic algorithm, say how
# old a gradient may be before it does harm, and train a network of your own with four algorithms.
#
# It takes about 35 minutes. You need advantages ({doc}`advantages`), PPO's loss
# ({doc}`ppo_error`), the slots, tokens and lag of {doc}`actors`, and, for the part about your own
# network, {doc}`contracts`.

# %% tags=["export", "hide-input"]
"""A2C and A3C: one step on each rollout, and workers that send gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from annotated_types import Ge
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from literate_rl.actors import (
    Actor,
    MakeTransport,
    RemoteLearner,
    TransportConfig,
    Weights,
    weights_of,
)
from literate_rl.advantages import gae
from literate_rl.agents import Collector, Rollout
from literate_rl.workshop.states import ByName, state_spec
from literate_rl.policy_gradient import policy_gradient_error
from literate_rl.workshop.nests import as_space, plain_space
from literate_rl.workshop.runs import env_seed
from literate_rl.workshop.signatures import (
    Count,
    Float,
    Fraction,
    Positive,
    check_finite,
    checked,
)

__all__ = [
    "A2C",
    "A3C",
    "A2CConfig",
    "A3CConfig",
    "ContractActor",
    "ContractPolicy",
    "GradientLearner",
    "GradientWorker",
    "a2c_error",
    "a2c_gradient",
    "a2c_loss",
    "a2c_settings",
    "a3c_settings",
    "gradient_layout",
    "make_contract_policy",
]

# %% [markdown]
# ## A gradient that comes late
#
# In {doc}`actors` workers sent their experience, and the learner computed gradients. It can be
# the other way round: each worker computes the gradient itself and sends that. By the time it
# arrives, the learner has taken other steps. Its weights have moved, but the gradient is still
# that of the old weights. How bad is that?
#
# Take a very simple loss, the parabola $x^2 / 2$ with its lowest point at 0. Its gradient is $x$,
# the distance from there. Gradient descent moves by the gradient times the **step size**. Here
# each step uses the gradient of an earlier point. The number of steps between is the **lag**.
# Drag the two sliders.

# %% tags=["hide-input"]
import math

from literate_rl.workshop.pictures import Axis, Mark, dial, plot

lags = [0, 1, 2, 3, 5, 7, 10]
step_sizes = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5, 1.9, 2.1]


def limit(lag):
    return 2 * math.sin(math.pi / (2 * (2 * lag + 1)))


def descent(lag, step_size, num_steps=80):
    x = [1.0]
    for k in range(num_steps):
        x.append(x[k] - step_size * x[max(k - lag, 0)])
    return x


def frame(lag, step_size):
    x = [max(-3.0, min(3.0, value)) for value in descent(lag, step_size)]
    way = plot(
        "The way down",
        "The distance from the lowest point over 80 steps",
        Axis("step", 0, 84, ticks=(0, 20, 40, 60, 80)),
        Axis("distance from the lowest point", -3.1, 3.1, ticks=(-3, 0, 3)),
        Mark("line dashed", [0, 84], [0, 0], "quiet"),
        Mark("line", list(range(81)), x, "accent"),
        width=380,
    )
    border = plot(
        "What is stable",
        "The largest stable step size falls as the lag grows; a dot marks the setting",
        Axis("lag", -0.5, 10.5, ticks=(0, 5, 10)),
        Axis("step size", 0, 2.2, ticks=(0, 1, 2)),
        Mark("line", list(range(11)), [limit(d) for d in range(11)], "quiet"),
        Mark("dots", [lag], [step_size], "accent"),
        width=380,
    )
    word = "settles" if step_size < limit(lag) else "swings further and further"
    return [way, border], f"limit at this lag: {limit(lag):.2f}. It {word}."


dial("Step size and lag", frame, {"lag": lags, "step size": step_sizes}, start=(3, 0.3))

# %% [markdown]
# **Notice** that late gradients do no lasting harm as long as the steps are small: at a step size
# of 0.05 the descent settles for every lag. (A line that leaves the picture is drawn at its
# edge.) The largest stable step size falls as the lag $d$ grows. It is 2 at lag 0 and 1 at lag 1,
# and then it falls like $\pi / (2d + 1)$. What counts is roughly the *product*: with twice the
# lag, steps may be about half as large. So the remedy for lag is a smaller learning rate, and its
# price is slower learning at the start.

# %% tags=["claims"]
for lag in lags:
    assert abs(descent(lag, 0.05, 2000)[-1]) < 1e-3, "0.05 settles at every lag"
    for factor, settles in ((0.97, True), (1.03, False)):
        end = max(map(abs, descent(lag, factor * limit(lag), 4000)[-200:]))
        assert (end < 1e-2) == settles, "the border is where it is drawn"
assert abs(limit(0) - 2) < 1e-12
assert abs(limit(1) - 1) < 1e-12
assert abs(limit(10) * 21 / math.pi - 1) < 0.01

# %% [markdown]
# Does a real learner behave like that? Here one worker has 1, 32 or 128 slots, so each of its
# gradients is 0, 31 or 127 updates late. All else is the same: CartPole, 50,000 steps, 1,250
# updates. Each line is one seed.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Curves of the return over 50,000 steps. Without lag they climb to nearly 500; with a lag of 31 and of 127 they stay near the bottom"}}
import matplotlib.pyplot as plt

from literate_rl.workshop.runs import stored_runs

late = stored_runs("a3c_lag")
fig, axis = plt.subplots(figsize=(7, 2.8))
for number, (name, run) in enumerate(late.items()):
    lines = axis.plot(run.steps / 1000, run.curves.T, f"C{number}")
    lines[0].set_label(name)
    print(f"{name:8s} return at the end: {' '.join(f'{x:3.0f}' for x in run.final)}")
axis.set(xlabel="thousand steps", ylabel="return while training")
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** that the learner without lag ends above 490 in each run. With gradients 31 updates
# late, and the same settings, it learns very little. With 127, seven of ten runs end at the return
# of an agent that always pushes to the same side: the first 128 gradients all belong to the
# untrained policy, and nothing corrects their direction in between. (The lags were chosen after
# trials with two other seeds. `python -m benchmarks.a2c_learning a3c_lag` trained the runs.)

# %% tags=["claims"]
fresh, old, oldest = late.values()
assert fresh.final.min() > 490, "above 490 in each run"
assert old.final.max() < 250, "hardly gets off the ground"
assert oldest.final.max() < 100, "nothing is left"
from literate_rl.agents import make_envs

one_sided = make_envs("CartPole-v1", 64)
one_sided.reset(seed=0)
alive, pushes = np.ones(64, dtype=bool), 0
while alive.any():
    pushes += alive.sum() / 64
    alive &= ~one_sided.step(np.ones(64, dtype=int))[2]
assert (abs(oldest.final - pushes) < 0.5).sum() == 7, "always the same side"

# %% [markdown]
# ## Two ways to share the work
#
# If workers send gradients, they do most of the computing. The learner only takes the steps.

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import Picture

picture = Picture(
    "Experience or gradients",
    "Two rows. Above, as in IMPALA: the worker acts and sends an unroll; the learner "
    "computes the gradient and takes the step. Below, as in A3C: the worker acts and "
    "computes the gradient, which it sends; the learner only takes the step. In both "
    "rows the weights go back to the worker.",
)
for y, name, left, right, sent in (
    (40, "IMPALA", ["act"], ["gradient", "step"], "unroll"),
    (150, "A3C", ["act", "gradient"], ["step"], "gradient"),
):
    picture.text(0, y - 34, name, anchor="start", bold=True)
    worker = picture.box(77, y, " · ".join(left), width=150, height=44)
    learner = picture.box(362, y, " · ".join(right), width=150, height=44)
    picture.arrow((152, y - 8), (287, y - 8), sent, "accent")
    picture.arrow((287, y + 12), (152, y + 12), "", "quiet")
    picture.text(219, y + 26, "weights", "quiet")
picture.text(77, 200, "workers", "quiet")
picture.text(362, 200, "learner", "quiet")
picture

# %% [markdown]
# **A3C**, the asynchronous advantage actor-critic {cite:p}`mnih2016`, works the second way.
# **A2C** is what is left when nothing is asynchronous any more: one rollout, one gradient, one
# step. In this chapter asynchrony is a way to use many processors, not a way to learn better.
#
# V-trace ({doc}`off_policy`) can correct old *experience*, because it knows how likely the
# actions were. No such correction is known for an old *gradient*. {doc}`impala`, which came after
# A3C, sends experience.
#
# ## A2C, or PPO without its clip
#
# A rollout has few steps, usually five, in each of several environments. From each step the
# rewards are added up to the end of the rollout, and the critic estimates what comes after it.
# With $n$ steps to go,
#
# $$
# G^{(n)}_t = \sum_{k=0}^{n-1} \gamma^k \, r_{t+k} + \gamma^n \, V(s_{t+n}) ,
# $$ (a2c-target)
#
# where an episode that ends earlier ends the sum, and no value follows a termination. This is the
# $\lambda$-return of {doc}`advantages` at $\lambda = 1$. So `gae` computes the advantage,
# $\hat A_t = G^{(n)}_t - V(s_t)$.
#
# The loss has the three terms that we know from PPO: the policy's, the critic's with weight $c_V$
# and the entropy bonus with weight $c_H$. With a bar for the mean over all steps it is
#
# $$
# \mathcal L = - \overline{\hat A \log \pi_\theta(a \mid s)}
#   + c_V \, \overline{\bigl(V_\theta(s) - G^{(n)}\bigr)^2} - c_H \, \overline{H(\pi_\theta)} .
# $$ (a2c-loss)
#
# How does this differ from PPO? PPO takes many steps on one rollout, and its clip limits the
# ratio $\rho = \pi_\theta / \pi_{\text{old}}$. Suppose that it takes only one step, on the whole
# rollout. Then $\theta$ is still what it was when the rollout was collected. Every ratio is 1,
# nothing is clipped, and
#
# $$
# \nabla \, \rho \hat A = \rho \, \hat A \, \nabla \log \pi_\theta(a \mid s)
#   = \hat A \, \nabla \log \pi_\theta(a \mid s) .
# $$ (def-a2c-is-ppo)
#
# So A2C is PPO with one epoch and one minibatch {cite:p}`huang2022a2c`. What else differs between
# programs of these names is a matter of settings: the optimiser, the length of the rollout, how
# advantages are scaled. Here are both gradients, for the same rollout:

# %%
from functools import partial

from literate_rl.a2c import a2c_error
from literate_rl.agents import Collector, make_envs
from literate_rl.policies import make_policy
from literate_rl.ppo_error import policy_error_from_log_prob
from literate_rl.workshop.runs import flat_env

torch.set_num_threads(1)  # networks as small as these gain nothing from more
torch.manual_seed(1)
build_envs = partial(make_envs, partial(flat_env, "CartPole-v1"), 8)
envs = build_envs()
policy = make_policy(envs.single_observation_space, envs.single_action_space)
collector = Collector(envs, policy.to_env, np.float32)
collector.reset(seed=1)
noise = iter(policy.noise(5, 8, torch.Generator().manual_seed(1)))
batch = collector.collect(lambda obs: policy.act(obs, next(noise)), 5)

log_prob, entropy = policy.evaluate_actions(batch.obs, batch.action)
value, adv = policy.value(batch.obs), torch.randn(5, 8)
a2c_terms = a2c_error(log_prob, entropy, value, adv, adv + value)
ppo_terms, _ = policy_error_from_log_prob(
    *(x.flatten() for x in (log_prob, log_prob.detach(), entropy, adv)), None, 0.2
)
weight = policy.network.actor[-1].weight
for name, terms in (("A2C", a2c_terms), ("PPO", ppo_terms)):
    (grad,) = torch.autograd.grad(terms.policy_loss, weight, retain_graph=True)
    print(
        f"{name}: loss {terms.policy_loss.item():+.4f}, gradient {grad[0, :4].tolist()}"
    )

# %% [markdown]
# The losses differ and the gradients agree. PPO's loss is the mean of $-\rho \hat A$ and A2C's is
# that of $-\hat A \log \pi$. The two functions have the same gradient at this point, but in
# general nowhere else.

# %% tags=["claims"]
grads = [
    torch.autograd.grad(terms.policy_loss, weight, retain_graph=True)[0]
    for terms in (a2c_terms, ppo_terms)
]
assert torch.allclose(*grads, rtol=1e-4, atol=1e-7), "the gradients agree"
assert (a2c_terms.policy_loss - ppo_terms.policy_loss).abs() > 1e-3, "the losses differ"

# %% [markdown]
# ## Line by line
#
# ### The loss


# %% tags=["export"]
class a2c_loss(NamedTuple):  # noqa: N801 (a name of the field, as ppo_loss)
    """The three terms of A2C's loss."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor


@checked
def a2c_error(
    log_prob: Float[Tensor, "*B"],
    entropy: Float[Tensor, "*B"],
    value: Float[Tensor, "*B"],
    adv: Float[Tensor, "*B"],
    target: Float[Tensor, "*B"],
) -> a2c_loss:
    """Compute the three terms of the loss, each a mean over all steps.

    Args:
        log_prob: Log-probabilities of the actions under the policy in training.
        entropy: Its entropies.
        value: Values of the critic in training.
        adv: How much better than expected each action was. No gradient flows here.
        target: What the values should become; no gradient flows here either.

    Source: Mnih et al. 2016, section 4 and algorithm S3.
    """
    # The actor: actions that went better than expected become more likely.
    policy_loss = policy_gradient_error(log_prob, adv)
    # The critic: the mean squared error, not half of it.
    value_loss = (value - target.detach()).square().mean()
    entropy_loss = entropy.mean()
    check_finite(value_loss + entropy_loss, value=value, target=target, entropy=entropy)
    return a2c_loss(policy_loss, value_loss, entropy_loss)


# %% [markdown]
# ### Settings
#
# The optimiser is RMSProp, which divides each gradient by the root of a running mean of its
# square. CartPole has two settings of its own: rewards are multiplied by 0.1 before learning, and
# the running mean changes ten times more slowly than usual. The section on learning says why.


# %% tags=["export", "hide-input"]
@checked
@dataclass(frozen=True)
class A2CConfig:
    """Settings of A2C. The defaults suit small tasks such as CartPole.

    Attributes:
        seed: Seed of everything random in the run, except the policy's first weights.
        total_steps: Steps in the environments, all of them together.
        num_envs: Environments that are stepped together.
        num_steps: Steps of one rollout in each environment.
        learning_rate: Learning rate of RMSProp at the start.
        anneal: Whether the learning rate falls linearly to zero.
        decay: Share of RMSProp's mean square that is kept at each step.
        epsilon: What RMSProp adds to the root of the mean square.
        gamma: Discount.
        lambda_: Decay of the weights of longer returns in the advantage.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        max_grad_norm: Norm above which a gradient is clipped.
        reward_scale: Factor by which rewards are multiplied before learning.
        checkpoint_interval: Iterations between checkpoints. The environments are reset
            at each of them.
    """

    seed: Annotated[int, Ge(0)] = 1
    total_steps: Count = 100_000
    num_envs: Count = 8
    num_steps: Count = 5
    learning_rate: Positive = 1e-3
    anneal: bool = True
    decay: Fraction = 0.99
    epsilon: Positive = 1e-5
    gamma: Fraction = 0.99
    lambda_: Fraction = 1.0
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: Positive = 0.5
    reward_scale: Positive = 1.0
    checkpoint_interval: Count = 500


# Settings with which the agent has learned, by environment. What an entry leaves out
# has its default.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"total_steps": 200_000, "decay": 0.999, "reward_scale": 0.1},
}


def a2c_settings(env: str) -> A2CConfig:
    """Return the settings of an environment, or the defaults if it has none.

    Args:
        env: Id of the environment.
    """
    return A2CConfig(**SETTINGS.get(env, {}))


# %% [markdown]
# ### The gradient
#
# One function turns a rollout into a gradient. A2C and the workers of A3C both call it. It uses
# `torch.autograd.grad`, which returns the gradient and stores nothing. (The usual `backward`
# *adds* it to `parameter.grad`, which must be cleared. The first trap is about that.)


# %% tags=["export"]
def a2c_gradient(
    policy: Any, batch: Rollout, config: A2CConfig
) -> tuple[tuple[Tensor, ...], dict[str, float]]:
    """Return the gradient of a policy's loss on a rollout, and the three terms."""
    # The critic's values of the states, and of the states that the steps led to.
    value = policy.value(batch.obs)
    with torch.no_grad():
        next_value = policy.value(batch.next_obs)

    # Advantages and targets. With lambda 1 a target is {eq}`a2c-target`.
    ends = batch.terminated, batch.truncated
    reward = batch.reward * config.reward_scale
    adv = gae(reward, value, next_value, *ends, config.gamma, config.lambda_)
    # How likely the actions were, and how random the policy is.
    log_prob, entropy = policy.evaluate_actions(batch.obs, batch.action)

    # Leave out rows that some environments add after an episode and that are no step.
    columns = (log_prob, entropy, value, adv, adv + value)
    loss = a2c_error(*(column[batch.real] for column in columns))
    # The total {eq}`a2c-loss`.
    total = loss.policy_loss + config.value_weight * loss.value_loss
    total = total - config.entropy_weight * loss.entropy_loss

    # Return the gradient, without adding it to `parameter.grad`.
    parameters = list(policy.parameters())
    gradient = torch.autograd.grad(
        total, parameters, allow_unused=True, materialize_grads=True
    )
    return gradient, {name: x.item() for name, x in loss._asdict().items()}


# %% [markdown]
# ### The step
#
# `GradientLearner` takes the step. It does not need to know where a gradient was computed.


# %% tags=["export"]
class GradientLearner:
    """Takes steps on gradients, wherever they were computed.

    Args:
        policy: The policy to train, on any device.
        config: The settings.
    """

    def __init__(self, policy: Any, config: A2CConfig) -> None:
        self.config = config
        self.parameters = list(policy.parameters())
        self.optimizer = torch.optim.RMSprop(
            self.parameters, config.learning_rate, config.decay, config.epsilon
        )

    def learn(self, gradient: tuple[Tensor, ...], step: int) -> dict[str, float]:
        """Take one step downhill; ``step`` counts the steps of the run so far."""
        # The learning rate falls linearly to zero.
        rate = self.config.learning_rate
        if self.config.anneal:
            rate *= max(0.0, 1 - step / self.config.total_steps)
        self.optimizer.param_groups[0]["lr"] = rate

        # Assign the gradient (adding would be wrong), clip it, and take the step.
        for parameter, part in zip(self.parameters, gradient, strict=True):
            parameter.grad = part
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        return {"charts/learning_rate": rate, "losses/grad_norm": norm.item()}

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's state, without the policy's weights."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned; it is copied."""
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


# %% [markdown]
# ### The loop
#
# {doc}`policies` ends with a loop of some thirty lines that is A2C already. It borrows Adam,
# $\lambda = 0.9$ and scaled advantages from PPO, because it is about policies, not about A2C.
# Here is the algorithm in its usual form, with the interface that `fit` needs.


# %% tags=["export"]
class A2C:
    """Advantage actor-critic: one step of the optimiser on each rollout.

    Args:
        policy: The policy to train, on any device.
        envs: A vector environment with ``config.num_envs`` copies.
        config: The settings.
        act: Function from observations and noise to actions, instead of
            ``policy.act``.
    """

    def __init__(
        self,
        policy: Any,
        envs: VectorEnv[Any, Any, Any],
        config: A2CConfig,
        act: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        check_copies(envs, config)
        self.policy, self.config = policy, config
        self.act = act or policy.act
        self.learner = GradientLearner(policy, config)
        self.device = self.learner.parameters[0].device
        # All noise comes from one generator, so that a run can be repeated.
        self.generator = torch.Generator().manual_seed(config.seed)
        self.collector = Collector(envs, policy.to_env, np.float32)
        self.iteration = 0

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, take one step on it, and return metrics."""
        before = self.step
        batch = self.collect()
        gradient, losses = a2c_gradient(self.policy, batch, self.config)
        taken = self.learner.learn(gradient, before)
        return {**returned(batch.episode_return), **taken, **named(losses)}

    def collect(self) -> Rollout:
        """Act for T steps with the policy as it is."""
        # A resumed run starts with fresh environments. An uninterrupted run gets fresh
        # ones at each checkpoint too, so that both runs are the same.
        if self.collector.obs is None or self.checkpoint_due:
            self.collector.reset(env_seed(self.config.seed, self.step))
        # The noise of all steps is drawn at once; each step takes its share.
        num_steps, num_envs = self.config.num_steps, self.config.num_envs
        noise = self.policy.noise(num_steps, num_envs, self.generator)
        draws = iter(noise.to(self.device))
        self.iteration += 1
        return self.collector.collect(
            lambda obs: self.act(obs.to(self.device), next(draws)), num_steps
        ).to(self.device)

    # What follows is for the loop around the learner, `fit`, and for checkpoints
    # ({doc}`workshop/runs`).
    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.collector.step

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.iteration % self.config.checkpoint_interval == 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, without the policy's weights."""
        return {
            "step": self.step,
            "iteration": self.iteration,
            "learner": self.learner.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        names = ("step", "iteration", "generator")
        step, iteration, generator = (state[name] for name in names)
        self.learner.load_state_dict(state["learner"])
        self.generator.set_state(generator)
        self.collector.step, self.iteration = step, iteration
        self.collector.obs = None


def check_copies(envs: VectorEnv[Any, Any, Any], config: A2CConfig) -> None:
    """Raise unless there are as many environments as the settings say."""
    given, wanted = envs.num_envs, config.num_envs
    if given != wanted:
        raise ValueError(f"envs must have {wanted} copies, got {given}")


def returned(episode_return: Tensor) -> dict[str, float]:
    """Return the mean return of the episodes that ended, NaN if none did."""
    return {"charts/episodic_return": episode_return.nanmean().item()}


def named(losses: dict[str, float]) -> dict[str, float]:
    """Return losses by the names under which they are reported."""
    return {f"losses/{name}": number for name, number in losses.items()}


# %% [markdown]
# ### Does it learn?
#
# The task is CartPole, with 200,000 steps. Each number of the output belongs to one seed: the
# mean over 100 fresh greedy episodes of its *last* policy. The third curve is A2C with settings
# that are usual elsewhere: unscaled rewards, and a decay of 0.99.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three rising curves of the mean return over 200,000 steps"}}
fig, axis = plt.subplots(figsize=(7, 2.8))
kinds = {
    "A2C": stored_runs("a2c_cartpole")["A2C"],
    "A3C, two workers": stored_runs("a3c_cartpole")["two workers"],
    "A2C, rewards as they are": stored_runs("a2c_plain")["A2C"],
}
for name, run in kinds.items():
    axis.plot(run.steps / 1000, run.curves.mean(0), label=name)
    finals = " ".join(f"{x:.0f}" for x in run.final)
    print(f"{name}: return at the end {finals}")
axis.set(xlabel="thousand steps", ylabel="return while training")
axis.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# **Notice** the third line of the output. Two of the ten runs learned the task and forgot it
# again. The likely reason is this. When every episode goes well, gradients almost vanish. RMSProp
# divides by the root of a running mean of their squares, which soon becomes just as small. Then
# the next gradient that is a little larger causes a very large step.
#
# The two settings of CartPole are meant to prevent that. With a decay of 0.999 the mean changes
# ten times more slowly. With rewards of a tenth the critic's errors are smaller, so they no
# longer fill the whole gradient, whose norm is clipped to 0.5. The order matters for what the
# figure proves. First we ran its ten seeds with the plain settings, and two runs forgot. Then we
# chose the pair among 15 settings, most of them in a fast simulation of CartPole with 8 or 16
# other seeds each. So the ten seeds told us to look for other settings, but not which.
#
# The gradients of two workers, each in a process of its own, are about one update late. We see no
# harm from that in these runs. `python -m benchmarks.a2c_learning` trained all runs.

# %% tags=["claims"]
scaled, remote, plain = kinds.values()
assert scaled.final.min() >= 475, "all runs of A2C end well"
assert remote.final.min() >= 475, "and so do all of A3C"
assert (plain.final < 475).sum() == 2, "two of ten forgot"
assert plain.curves[plain.final < 475].max() > 490, "what they had learned"
assert 0.5 < remote.judged["lag"].mean() < 1.5, "about one step late"

# %% [markdown]
# ## Workers that send gradients
#
# Nothing about slots, tokens and transports in {doc}`actors` depends on what is sent.
# `RemoteLearner` hands out slots, waits for a result, lets `learn` use it and gives the slot
# back. For A3C the result is a gradient. If $g$ is the gradient of the loss and $\alpha$ the
# learning rate, a step is
#
# $$
# \theta_{k+1} = \theta_k - \alpha \, g(\theta_{k-d}) ,
# $$ (def-stale-step)
#
# where $d$ is the lag {eq}`policy-lag`. (RMSProp and gradient clipping also rescale $g$.) On a
# parabola with curvature $u$ the gradient is $g(\theta) = u \, \theta$. There the steps settle at
# the lowest point if, and only if,
#
# $$
# \alpha \, u < 2 \sin \frac{\pi}{2 (2d + 1)} .
# $$ (def-stale-limit)
#
# With $u = 1$ this is the curve in the second picture above {cite:p}`levin1976`.
#
# ### Settings
#
# A3C has the settings of A2C and those of any learner with workers.


# %% tags=["export", "hide-input"]
@checked
@dataclass(frozen=True)
class A3CConfig(TransportConfig, A2CConfig):
    """Settings of A3C: those of A2C, and where the workers are.

    Each worker has ``num_envs`` environments. The default is two workers with one slot
    each, so each has one gradient under way.
    """

    actors: Count = 2
    slots: Count = 1


def a3c_settings(env: str) -> A3CConfig:
    """Return A2C's settings for the id of an environment, with two workers."""
    return A3CConfig(**asdict(a2c_settings(env)))


# %% [markdown]
# ### The worker
#
# A slot's result is a gradient, which is as large as the weights, and the numbers that the
# learner reports. A worker collects exactly as in IMPALA, because it contains an `Actor`, which
# does the collecting.


# %% tags=["export"]
def gradient_layout(policy: Any, config: A2CConfig) -> np.dtype[np.void]:
    """Describe the memory of a slot whose result is a gradient.

    Its ``result`` has the ``gradient`` by the names of the parameters, the returns of
    the episodes that ended (NaN where none did), the number of steps and the losses.
    """
    weights = [(name, x.dtype, x.shape) for name, x in weights_of(policy).items()]
    parts = dict(policy.named_parameters())
    result: list[Any] = [
        ("gradient", [entry for entry in weights if entry[0] in parts]),
        ("episode_return", np.float32, (config.num_steps, config.num_envs)),
        ("num_steps", np.int64),
        ("losses", [(name, np.float64) for name in a2c_loss._fields]),
    ]
    return np.dtype([("weights", weights), ("result", result)], align=True)


class GradientWorker:
    """Acts for one rollout at a time and computes the gradient itself.

    Args:
        make_envs: Function that makes its vector environment.
        policy: A policy on the CPU, which is copied.
        config: The settings.
        seed: Seed of the noise and of the environments.
    """

    def __init__(
        self,
        make_envs: Callable[[], VectorEnv[Any, Any, Any]],
        policy: Any,
        config: A2CConfig,
        seed: int,
    ) -> None:
        self.actor, self.config = Actor(make_envs, policy, seed), config

    def work(self, weights: Weights, out: Any) -> None:
        """Act with these weights, and write the gradient to ``out``."""
        # Collect a rollout, as an actor of IMPALA does.
        batch = self.actor.collect(weights, self.config.num_steps)
        # Send the gradient, and with it what the learner reports.
        policy = self.actor.policy
        gradient, losses = a2c_gradient(policy, batch, self.config)
        for (name, _), part in zip(policy.named_parameters(), gradient, strict=True):
            out["gradient"][name] = part
        out["episode_return"] = batch.episode_return
        out["num_steps"] = batch.reward.numel()
        for name, number in losses.items():
            out["losses"][name] = number

    def close(self) -> None:
        """Close the environments."""
        self.actor.close()


# %% [markdown]
# How much data is sent? For CartPole a gradient is much larger than the experience that it was
# computed from. Here are both sizes in bytes:

# %%
from literate_rl.a2c import A3CConfig, gradient_layout
from literate_rl.actors import slot_layout

sizes = {
    "unroll": slot_layout(policy, envs, 5)["result"].itemsize,
    "gradient": gradient_layout(policy, A3CConfig())["result"].itemsize,
}
print(sizes)

# %% [markdown]
# With image observations and a small network it would be the other way round. Gradients are worth
# sending where the *computation* is too much for one learner.

# %% tags=["claims"]
assert sizes["gradient"] > 10 * sizes["unroll"], "much larger"

# %% [markdown]
# ### The learner
#
# The learner copies the gradient, because the slot goes back to the worker, and takes the step.
# It counts the environment steps behind the gradients that have arrived. This count decides when
# the run ends, how large the learning rate is and when to save. If a worker is killed
# ({doc}`processes`), its half-finished gradient never arrives and is not counted. The worker that
# replaces it gets the same slots.


# %% tags=["export"]
class A3C(RemoteLearner):
    """Takes a step on each gradient that a worker sends.

    Use it as a context manager, or call ``close``, so that the workers end.

    Args:
        policy: The policy to train, on any device.
        make_envs: Function that makes the vector environment of one worker, with
            ``config.num_envs`` copies.
        config: The settings.
        transport: Makes the transport, or None for ``InProcess``.
    """

    @checked
    def __init__(
        self,
        policy: Any,
        make_envs: Callable[[], VectorEnv[Any, Any, Any]],
        config: A3CConfig,
        transport: MakeTransport | None = None,
    ) -> None:
        super().__init__(policy, config, transport)
        # Make the environments once here, to check how many there are.
        envs = make_envs()
        check_copies(envs, config)
        envs.close()
        self.layout = gradient_layout(policy, config)
        # How to make a worker; only its seed is missing.
        self.make_actor = partial(
            GradientWorker, make_envs, copy.deepcopy(policy).cpu(), config
        )
        self.learner = GradientLearner(policy, config)

    def learn(self, record: Any) -> dict[str, float]:
        """Take a step on a gradient; return metrics."""
        parts, device = record["gradient"], self.learner.parameters[0].device
        gradient = [
            torch.tensor(parts[name], device=device) for name in parts.dtype.names
        ]
        taken = self.learner.learn(gradient, self.step)
        self.step += int(record["num_steps"])
        losses = {name: float(record["losses"][name]) for name in a2c_loss._fields}
        ended = torch.from_numpy(record["episode_return"])
        return {**returned(ended), **taken, **named(losses)}


# %% [markdown]
# One worker with one slot has no lag, because it waits while the learner takes its step. This is
# A2C, and with the same seeds the parameters are the same, bit for bit. So the tests of A2C also
# test much of A3C.

# %%
from literate_rl.a2c import A2C, A3C, A2CConfig
from literate_rl.actors import InProcess
from literate_rl.workshop.fast import numpy_act


def fresh_policy():
    torch.manual_seed(1)
    return make_policy(envs.single_observation_space, envs.single_action_space)


def one_worker(make_worker, *others):
    return InProcess(lambda seed: make_worker(1), *others)  # with the seed of A2C


policy = fresh_policy()
alone = A2C(policy, build_envs(), A2CConfig(), numpy_act(policy))
for slots in (1, 4):
    remote = A3C(
        fresh_policy(), build_envs, A3CConfig(actors=1, slots=slots), one_worker
    )
    with remote:
        for _ in range(50):
            lag = remote.iterate()["charts/lag"]
            if slots == 1:
                alone.iterate()
    pairs = zip(policy.parameters(), remote.policy.parameters(), strict=True)
    same = all(torch.equal(x, y) for x, y in pairs)
    print(f"{slots} slots: lag {lag}, the same parameters after 50 steps: {same}")

# %% tags=["claims"]
assert lag == 3, "with four slots the lag is three"
assert not same, "and the parameters are others"
remote = A3C(fresh_policy(), build_envs, A3CConfig(actors=1, slots=1), one_worker)
with remote:
    for _ in range(50):
        remote.iterate()
pairs = zip(policy.parameters(), remote.policy.parameters(), strict=True)
assert all(torch.equal(x, y) for x, y in pairs), "one slot is A2C bit for bit"

# %% [markdown]
# ## A network of your own
#
# {doc}`contracts` says what A2C, PPO, A3C and IMPALA require of a network. An **actor** gets
# states by name and returns an action, its log-probability and an entropy. Called with an action,
# it returns that action and judges it. A **critic** returns a value.
#
# Such an actor returns no row of numbers for an action distribution, so it is not a `Policy`
# ({doc}`policies`). But losses, learners and actors never need a row. They need `act`,
# `evaluate_actions` and `value`, which we can build from an actor and a critic.
#
# There is one obstacle. A contract actor draws its action *inside* `forward`, from PyTorch's
# global generator. A resumed run would draw other actions, and so would a worker in another
# process. So the noise of this policy is a **seed**, one for each step. `act` seeds the global
# generator with it, calls the actor and then restores the generator.
#
# Judging may be random too. No formula is known for the entropy of a squashed Gaussian, so an
# actor may estimate it from a sample. The seed of that sample is a checksum of the observations
# and the actions, so the same arguments give the same result in every process.


# %% tags=["export"]
class ContractActor(nn.Module):
    """A policy made of an actor that keeps its contract.

    It has the methods of ``Policy`` that learners, actors and evaluation use, but no
    rows: the actor draws and judges its actions itself. All random numbers of the
    models come from a seed, so for given weights the results depend only on the
    arguments.

    Args:
        actor: Called with its states by name, and with ``action`` to judge one. It
            returns actions, log-probabilities, entropies and possibly more. An
            optional method ``mode`` returns greedy actions.
        observation_space: Where the names of the states come from; not flattened.
        action_space: A ``Discrete`` space or a ``Box``.
        recipe: As in ``Policy``.
    """

    def __init__(
        self,
        actor: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        recipe: tuple[str, dict[str, Any]] = ("", {}),
    ) -> None:
        super().__init__()
        self.actor = ByName(actor, state_spec(observation_space))
        self.action_space, self.recipe = action_space, recipe

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw a seed for each step of a rollout."""
        return torch.randint(2**62, (num_steps,), generator=generator)

    def act(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return actions drawn from a seed; 0.0 is greedy where there is a ``mode``."""
        if not isinstance(noise, Tensor):
            return greedy(self.actor, obs)
        with drawn_from(int(noise), obs.device):
            action: Tensor = self.actor(obs)[0]
        return action

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions and the entropies."""
        # An entropy may be estimated from a sample. Its seed is a checksum.
        with drawn_from(checksum(obs, action), obs.device):
            _, log_prob, entropy, *_ = self.actor(obs, action=action)
        return log_prob.squeeze(-1), entropy.squeeze(-1)

    def to_env(self, action: Tensor) -> NDArray[Any]:
        """Return actions for the vector environment, clipped to the box if any."""
        space: Any = self.action_space
        if isinstance(space, spaces.Discrete):
            names: NDArray[Any] = action.squeeze(-1).numpy() + space.start
            return names
        inside: NDArray[Any] = action.numpy().clip(space.low, space.high)
        return inside.astype(space.dtype)


class ContractPolicy(ContractActor):
    """A policy made of an actor and a critic that keep their contract.

    Args:
        actor: As in ``ContractActor``.
        critic: Called with its states by name; its first result is the values.
        observation_space: As in ``ContractActor``.
        action_space: Likewise.
        recipe: As in ``Policy``.
    """

    def __init__(
        self,
        actor: Any,
        critic: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        recipe: tuple[str, dict[str, Any]] = ("", {}),
    ) -> None:
        super().__init__(actor, observation_space, action_space, recipe)
        self.critic = ByName(critic, state_spec(observation_space))

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations."""
        with drawn_from(checksum(obs), obs.device):
            value: Tensor = self.critic(obs)[0]
        return value.squeeze(-1)


# %% [markdown]
# Three small functions do the work: one calls the optional method `mode` for greedy actions, one
# seeds the generator and restores it, one computes the checksum.


# %% tags=["export"]
def greedy(actor: ByName, obs: Tensor) -> Tensor:
    """Return the actions of an actor's method ``mode``; without one, draw."""
    if not hasattr(actor.model, "mode"):
        action: Tensor = actor(obs)[0]
        return action
    lead = actor.spec.rows(obs)
    states = actor.spec.split(obs.reshape(math.prod(lead), *obs.shape[len(lead) :]))
    action = actor.model.mode(**states, **actor.fixed)
    return action.reshape(*lead, *action.shape[1:])


@contextmanager
def drawn_from(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's global generators inside a block; then restore them."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def checksum(*tensors: Tensor) -> int:
    """Return a number that is the same for the same tensors, rarely for others."""
    number = 0
    for tensor in tensors:
        number = crc32(tensor.numpy(force=True).tobytes(), number)
    return number


# %% [markdown]
# `make_contract_policy` also records what a checkpoint needs in order to build the policy again.
# Only the models are not part of it, because their code is yours.


# %% tags=["export", "hide-input"]
@checked
def make_contract_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    actor: Any,
    critic: Any,
) -> ContractPolicy:
    """Build a policy from models that keep their contract.

    Args:
        observation_space: The environment's own, not flattened, or what
            ``plain_space`` made of it.
        action_space: A ``Discrete`` space or a ``Box``, likewise.
        actor: The actor, as in ``ContractPolicy``.
        critic: The critic.
    """
    observations, actions = as_space(observation_space), as_space(action_space)
    # A checkpoint keeps the spaces and the weights, but only the names of the models.
    recipe = {
        "observation_space": plain_space(observations),
        "action_space": plain_space(actions),
        "models": {
            "actor": type(actor).__qualname__,
            "critic": type(critic).__qualname__,
        },
    }
    return ContractPolicy(
        *(actor, critic, observations, actions), ("make_contract_policy", recipe)
    )


# %% [markdown]
# Here is an actor that you might write, with two states by name, and its critic. First they go
# through the check of {doc}`contracts`. Then PPO and A2C each train the same models for a short
# time.

# %%
import gymnasium as gym
from gymnasium.spaces import Box, Dict

from literate_rl.a2c import make_contract_policy
from literate_rl.contracts import check_model
from literate_rl.ppo import PPO, PPOConfig
from literate_rl.workshop.runs import fit


class TwoStates(gym.ObservationWrapper):
    """CartPole that shows the cart and the pole under names of their own."""

    def __init__(self, env):
        super().__init__(env)
        low, high = env.observation_space.low, env.observation_space.high
        boxes = {"cart": Box(low[:2], high[:2]), "pole": Box(low[2:], high[2:])}
        self.observation_space = Dict(boxes)

    def observation(self, observation):
        return {"cart": observation[:2], "pole": observation[2:]}


class MyActor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, cart, pole, action=None):
        dist = torch.distributions.Categorical(
            logits=self.layers(torch.cat([cart, pole], 1))
        )
        action = dist.sample().unsqueeze(1) if action is None else action
        log_prob = dist.log_prob(action.squeeze(1)).unsqueeze(1)
        return action, log_prob, dist.entropy().unsqueeze(1)


class MyCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, pole, cart):
        return self.layers(torch.cat([cart, pole], 1))


def two_states():
    return TwoStates(gym.make("CartPole-v1"))


torch.manual_seed(1)
world, actor, critic = two_states(), MyActor(), MyCritic()
check_model("A2C", actor=actor, critic=critic, env=two_states)
policy = make_contract_policy(
    world.observation_space, world.action_space, actor, critic
)
flat = partial(make_envs, partial(flat_env, two_states))
ppo = PPO(policy, flat(4), PPOConfig(total_steps=10_000, learning_rate=2e-3))
rows = fit(ppo, progress=False)
print(
    f"PPO: return {np.nanmean([row['charts/episodic_return'] for row in rows[-3:]]):.0f}"
)
a2c = A2C(policy, flat(8), A2CConfig(total_steps=2_000))
print(f"and A2C goes on: {fit(a2c, progress=False)[-1]['step']} steps")

# %% tags=["claims"]
seen = ppo.look_back(ppo.collect())
with torch.no_grad():
    cart, pole = seen.obs[:, :2], seen.obs[:, 2:]
    given, log_prob, _ = actor(cart, pole, action=seen.action)
assert given is seen.action, "the given action comes back"
assert torch.allclose(seen.log_prob, log_prob.squeeze(1)), (
    "what PPO sees is the actor's"
)
first = np.nanmean([row["charts/episodic_return"] for row in rows[:3]])
last = np.nanmean([row["charts/episodic_return"] for row in rows[-3:]])
assert last > 1.5 * first, "it learns"

# %% [markdown]
# Next, all four families train the same actor, `CategoricalActor` of {doc}`contract_models`, and
# the same critic, for 60,000 steps with each family's own settings. There is one seed each: this
# is a demonstration, not a comparison. All four learn something. A2C ends at 84 and A3C, with the same
# settings, near 500, which shows how little a single seed says. (The models have ReLU layers with
# PyTorch's default initialisation, and A2C's settings were chosen with the networks of
# {doc}`policies`.)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four curves of the return over 60,000 steps: A3C and PPO reach 500, IMPALA 200 and more, A2C rises and falls again"}}
fig, axis = plt.subplots(figsize=(7, 2.6))
families = stored_runs("a2c_contract")
for name, run in families.items():
    axis.plot(run.steps / 1000, run.curves[0], label=name)
    print(f"{name}: return at the end {run.final[0]:.0f}")
axis.set(xlabel="thousand steps", ylabel="return while training")
axis.legend(fontsize=8)
fig.tight_layout()

# %% tags=["claims"]
assert list(families) == ["A2C", "A3C", "PPO", "IMPALA"]
for run in families.values():
    assert run.final[0] > 3 * run.curves[0, 0], "all four learn something"
assert round(families["A2C"].final[0]) == 84
assert families["A3C"].final[0] > 490

# %% [markdown]
# ## Traps
#
# ### Trap: the gradient that nobody clears
#
# The best-known A3C programs for PyTorch have a shared model and a local one in each process. They
# clear the *shared* gradient, compute the local one, and let the shared model's gradient point to
# it. Here is the idiom, with a loss whose gradient is always 1:

# %%
shared_model, local = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
optimizer, used = torch.optim.SGD(shared_model.parameters(), 0.1), []
for _ in range(4):
    local.load_state_dict(shared_model.state_dict())
    loss = local(torch.ones(1, 1)).sum()
    optimizer.zero_grad()  # clears the shared gradient ...
    loss.backward()  # ... and adds to the local one
    shared_model.weight._grad = local.weight.grad
    used.append(shared_model.weight.grad.item())
    optimizer.step()
print("gradients used:", used)

# %% [markdown]
# Before PyTorch 2.0 `zero_grad` wrote zeros. Both gradients were one tensor, so the local one was
# cleared too. [Since then](https://github.com/pytorch/pytorch/pull/92731) `zero_grad` sets the
# gradient to `None`: the shared model drops the tensor, and the local one keeps it. Each step now
# uses the sum of all gradients so far. There is no error, and the agent even learns for a while.
# With `torch.autograd.grad` there is nothing to clear. The table below links to the lines, and
# {doc}`/docs/errata` has the details.

# %% tags=["claims"]
assert used == [1.0, 2.0, 3.0, 4.0], "and not 1, 1, 1, 1"

# %% [markdown]
# ### Trap: the number under the root
#
# RMSProp divides by $\sqrt{v} + \varepsilon$ in PyTorch and by $\sqrt{v + \varepsilon}$ in
# TensorFlow 1, where $v$ is the running mean of squared gradients. A2C programs for both set
# $\varepsilon$ to `1e-5`. However small a gradient becomes, the second form divides by at least
# $\sqrt{10^{-5}} \approx 0.003$, but the first may divide by as little as $0.00001$.

# %%
square = torch.tensor([1e-2, 1e-6, 1e-10])  # the running mean
for root in square.sqrt():
    step = root / (root + 1e-5), root / (root.square() + 1e-5).sqrt()
    print(
        f"gradients of {root:.0e}: steps of {step[0]:.3f} and {step[1]:.3f} learning rates"
    )

# %% [markdown]
# For large gradients the two agree. Where gradients have almost vanished, for instance because
# every episode goes well, PyTorch's form still takes steps of half the learning rate or more, and
# the other form hardly moves. So settings that work with one form may fail with the other.
# Stable-Baselines3 keeps [a copy of
# TensorFlow's](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/common/sb2_compat/rmsprop_tf_like.py)
# for that reason.

# %% tags=["claims"]
assert step[0] > 0.49, "half of a learning rate"
assert step[1] < 0.004, "hardly moves"

# %% [markdown]
# ## What well-known implementations do
#
# | choice | this chapter | [Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/a2c/a2c.py) | [OpenAI Baselines](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/a2c/a2c.py) | [pytorch-a3c](https://github.com/ikostrikov/pytorch-a3c/blob/48d95844755e2c3e2c7e48bbd1a7141f7212b63f/train.py) | [Machin's A3C](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/a3c.py) |
# |---|---|---|---|---|---|
# | steps of a rollout | 5 | [5](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/a2c/a2c.py#L71) | [5](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/a2c/a2c.py#L123) | [20](https://github.com/ikostrikov/pytorch-a3c/blob/48d95844755e2c3e2c7e48bbd1a7141f7212b63f/main.py#L35-L36) | the user's |
# | learning rate | falls to 0 | [constant](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/a2c/a2c.py#L70) | [falls to 0](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/a2c/a2c.py#L129) | [constant](https://github.com/ikostrikov/pytorch-a3c/blob/48d95844755e2c3e2c7e48bbd1a7141f7212b63f/main.py#L19-L20) | the user's |
# | optimiser | RMSProp, $\varepsilon$ outside the root | [the same](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/a2c/a2c.py#L127) | [RMSProp, inside](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/a2c/a2c.py#L84) | [Adam, shared by all](https://github.com/ikostrikov/pytorch-a3c/blob/48d95844755e2c3e2c7e48bbd1a7141f7212b63f/my_optim.py) | the user's |
# | entropy weight | 0 | [0](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/a2c/a2c.py#L74) | [0.01](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/a2c/a2c.py#L126) | [0.01](https://github.com/ikostrikov/pytorch-a3c/blob/48d95844755e2c3e2c7e48bbd1a7141f7212b63f/main.py#L25-L26) | the user's |
# | norm of a clipped gradient | 0.5 | [0.5](https://github.com/DLR-RM/stable-baselines3/blob/e05d2dbe6eda0acd0ef2e316e3e4065677add3eb/stable_baselines3/a2c/a2c.py#L76) | [0.5](https://github.com/openai/baselines/blob/ea25b9e8b234e6ee1bca43083f8f3cf974143998/baselines/a2c/a2c.py#L127) | [50](https://github.com/ikostrikov/pytorch-a3c/blob/48d95844755e2c3e2c7e48bbd1a7141f7212b63f/main.py#L29-L30) | [any](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/a3c.py#L24) |
# | who takes the step | the learner, one gradient at a time | one process | one process | [each process](https://github.com/ikostrikov/pytorch-a3c/blob/48d95844755e2c3e2c7e48bbd1a7141f7212b63f/train.py#L108-L109), in shared memory, without a lock | [a server](https://github.com/iffiX/machin/blob/7fa986b1bafdefff117d6ff73d14644a5488de9d/machin/frame/algorithms/a3c.py#L44-L58), for the gradients of several |
# | a gradient is cleared | there is nothing to clear | before each | by the graph | [in the wrong model](https://github.com/ikostrikov/pytorch-a3c/blob/48d95844755e2c3e2c7e48bbd1a7141f7212b63f/train.py#L103-L109) | not looked at here |
#
# Updating shared memory without a lock is known as Hogwild {cite:p}`recht2011`. It was analysed
# for sparse gradients, and those of a network are dense. In this chapter one learner applies
# whole gradients, so parts of two are never mixed. We read the code at the linked commits.
#
# ## On the best device
#
# The learner may be on a GPU. Its workers compute on the CPU.

# %%
from literate_rl.agents import best_device

device = best_device()
with A3C(fresh_policy().to(device), build_envs, A3CConfig(total_steps=800)) as remote:
    last = fit(remote, progress=False)[-1]
print(f"{last['step']} steps on {device.type}, lag {last['charts/lag']}")

# %% tags=["claims"]
assert last["charts/lag"] == 1, "two workers with one slot each"

# %% [markdown]
# ## Summary
#
# - A2C takes one step on each rollout. Its gradient is PPO's where the ratio is 1.
# - Workers can send gradients instead of experience. No correction is known for a gradient that
#   is old.
# - The effect of late gradients depends roughly on lag times learning rate: with half of one you
#   may use about twice the other.
# - A3C with one worker and one slot is A2C, bit for bit. More slots add lag.
# - A model that draws its own actions becomes a policy too, once its draws follow from a seed.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.workshop.pictures import predict

predict(
    "Four workers with one slot each send gradients, and the run just about settles. You double "
    "the workers and leave everything else. Twice as many gradients arrive in a second. What "
    "happens?",
    [
        "it learns about twice as fast",
        "it may swing and fall: the lag has more than doubled",
        "nothing: each worker still has one slot",
    ],
    right="it may swing and fall: the lag has more than doubled",
    because="With eight workers each gradient is seven steps old, not three. A learning rate "
    "that was just below the limit is now above it. Slightly less than half would do.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function computes the returns of a rollout by hand. It adds up rewards from the last step
# to the first, and the value of the last state stands for what comes after. It is right unless an
# episode is *truncated* in the rollout. `next_value` holds the value of each step's successor.
# Fix it.


# %%
def answer(reward, next_value, terminated, truncated, gamma=0.9):
    future, returns = next_value[-1] * (not terminated[-1]), []
    for t in reversed(range(len(reward))):
        if terminated[t] or truncated[t]:
            future = 0.0
        future = reward[t] + gamma * future
        returns.append(future)
    return returns[::-1]


# %% tags=["hide-input"]
from literate_rl.agents import discounted_returns, grade


def returns_of(reward, next_value, terminated, truncated, gamma=0.9):
    column = partial(torch.tensor, dtype=torch.float64)
    flags = (torch.tensor(x).unsqueeze(1) for x in (terminated, truncated))
    numbers = (column(x).unsqueeze(1) for x in (reward, next_value))
    return discounted_returns(*numbers, *flags, gamma).squeeze(1).tolist()


no, paid, worth = [False] * 4, [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]
middle = [False, True, False, False]
cases = [(paid, worth, no, no), (paid, worth, middle, no), (paid, worth, no, middle)]
grade(answer, returns_of, *cases)


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(reward, next_value, terminated, truncated, gamma=0.9):
    future, returns = next_value[-1], []
    for t in reversed(range(len(reward))):
        # At a truncation the critic estimates what would have come.
        if truncated[t]:
            future = next_value[t]
        if terminated[t]:
            future = 0.0
        future = reward[t] + gamma * future
        returns.append(future)
    return returns[::-1]


grade(answer, returns_of, *cases)

# %% [markdown]
# ### Exercise 3: experiment
#
# On the parabola of the first picture, gradients are 7 steps late. Which of the step sizes 0.05,
# 0.1, 0.15, 0.2 and 0.25 brings you closest to the lowest point in 100 steps? It is not the
# largest one that is stable. Guess first; then let `answer` return it.
# `descent(lag, step_size, num_steps)` returns the distances.


# %%
def answer():
    return ...


# %% tags=["hide-input"]
def closest():
    return min((0.05, 0.1, 0.15, 0.2, 0.25), key=lambda a: abs(descent(7, a, 100)[-1]))


grade(answer, closest, ())


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer():
    # A smooth descent without swinging: about 1 / (e d), a quarter of the limit.
    return min((0.05, 0.1, 0.15, 0.2, 0.25), key=lambda a: abs(descent(7, a, 100)[-1]))


grade(answer, closest, ())

# %% tags=["claims"]
assert answer() == 0.05, "the smallest of them"

# %% [markdown]
# ## References
#
# A3C is from {cite:t}`mnih2016`, who also describe the synchronous form. {cite:t}`huang2022a2c`
# show with code that A2C is a special case of PPO. The limit for a recursion with a delay is from
# {cite:t}`levin1976`, updates without a lock from {cite:t}`recht2011`. The contract is Machin's.

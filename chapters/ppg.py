# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PPG
#
# **How can a policy profit from what its value learns, if each trains at its own pace?**
# After this chapter you can write the two phases of phasic policy gradient, train an agent
# with them, and say what each term of its loss does to the policy. It takes about 35
# minutes. You need the learner of {doc}`ppo` and the network with three heads of
# {doc}`disjoint_network`. Whether it pays is the question of
# {doc}`ppg_evidence`.

# %% tags=["export", "hide-input"]
"""PPG: PPO in a policy phase, and an auxiliary phase that teaches the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from literate_rl.data.agents import Rollout, Window
from literate_rl.ground.nests import map_nest
from literate_rl.ground.networks import eval_mode
from literate_rl.ground.protocols import Envs, Kept
from literate_rl.ground.rows import ANY, Row, by_settings, register
from literate_rl.ground.signatures import Float, NonNegative, check_finite, checked
from literate_rl.ground.signatures import check_that
from literate_rl.learners.ppg_learner import (
    Chunks,
    PhasicNetwork,  # noqa: F401 (an old address)
    PPGConfig,
    ValueEpochs,
    in_chunks,
    make_phasic_policy,
    ppg_settings,
    side_by_side,
)
from literate_rl.learners.ppo import PPO
from literate_rl.maths.advantages import lambda_returns
from literate_rl.maths.ppo_error import ppo_info, ppo_policy_loss
from literate_rl.nets.policies import Policy

__all__ = [
    "AuxiliaryPhase",
    "PPGAlgorithm",
    "PPGAuxPhaseLossInfo",
    "auxiliary_loss",
    "element_wise_squared_loss",
]

# %% [markdown]
# ## Two phases
#
# PPO trains policy and value on the same data for the same number of epochs. But the two
# are not alike. A policy must not learn too much from one rollout: each update moves it
# further from the policy that collected the data. A value only fits numbers to states, and
# can go over older data again. Phasic policy gradient {cite:p}`cobbe2021`, PPG, gives each of
# them its own time.

# %% tags=["hide-input"]
from literate_rl.book.pictures import Picture

picture = Picture(
    "The phases of PPG",
    "Several policy phases in a row, each of which trains policy and value and puts its "
    "data into a buffer. Then one auxiliary phase, which trains both values on the whole "
    "buffer while the policy is held where it was. Then it begins again.",
)
phases = [picture.box(46 + 88 * i, 60, "policy\nphase", width=76) for i in (0, 1)]
picture.text(200, 60, "…")
phases.append(picture.box(252, 60, "policy\nphase", width=76))
auxiliary = picture.box(382, 60, "auxiliary\nphase", "accent", width=92)
buffer = picture.box(149, 160, "buffer: the data of all phases", width=290)
for a, b in ((phases[0], phases[1]), (phases[1], (190, 60)), ((210, 60), phases[2])):
    picture.arrow(a, b)
for phase in phases:
    picture.arrow(phase, (phase.x, 142), kind="dashed")
picture.arrow(phases[2], auxiliary)
picture.arrow(buffer.at(1, 0.5), auxiliary, tone="accent")
picture.arrow(auxiliary.at(0.5, 0), phases[0].at(0.5, 0), "and again", bend=22, side=-1)
picture.text(149, 204, "each trains policy and value", "quiet")
picture.text(436, 204, "trains both values,\nholds the policy", "accent", "end")
picture

# %% [markdown]
# A **policy phase** is one iteration of PPO, with separate encoders for policy and value. After
# $N_\pi$ of them comes one **auxiliary phase**. It trains the value once more, on all data of these
# phases, and with it the *auxiliary* value, which teaches the policy's encoder.
#
# Could policy and value not simply share an encoder? On CartPole that cost a lot of return while training
# ({doc}`ppo_evidence`). The gradients of both losses arrive in a shared encoder, and the larger the
# rewards, the longer is that of the value. PPG keeps two encoders, and teaches the policy's in a phase of
# its own.
#
# ## PPG on one page
#
# Here it is as a program, for CartPole. The policy phase is the PPO of {doc}`ppo`, on the
# network of {doc}`disjoint_network` with its three heads. What is new stands under
# *auxiliary phase*; the sections below say why each of its lines is there. On this page the program
# stops after 5,120 steps, with one auxiliary phase.

# %% tags=["program"] total_steps=100000
import torch
from torch.distributions import Categorical, kl_divergence

from literate_rl.maths.advantages import gae
from literate_rl.data.agents import Collector, make_envs
from literate_rl.nets.disjoint_network import DisjointPolicyValueNetwork
from literate_rl.maths.ppo_error import ppo_policy_data, ppo_policy_error

torch.set_num_threads(1)  # the networks are too small to be shared out
env_id, seed, total_steps = "CartPole-v1", 1, 5_120
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

# %% [markdown]
# A minibatch of the auxiliary phase is made of whole columns here: all steps of one environment in one
# rollout. The package calls such pieces *chunks*. Its `PPGAlgorithm`, from the same weights
# and with the same seed, reaches the same parameters. In a terminal it takes one line, `literate-rl ppg --env
# CartPole-v1`.

# %% tags=["claims"]
from dataclasses import replace

from literate_rl.learners.ppg import PPGAlgorithm
from literate_rl.learners.ppg_learner import make_phasic_policy, ppg_settings

torch.manual_seed(seed)
envs = make_envs(env_id, num_envs)
package = PPGAlgorithm(
    make_phasic_policy(*spaces_of_one),
    envs,
    replace(ppg_settings(env_id), seed=seed, total_steps=total_steps),
)
package.ppo.collector.reset(1000 * seed)
package.ppo.collector.reset = lambda seed: None  # no environments of its own
while package.step < total_steps:
    package.iterate()
for ours, theirs in zip(parameters, package.policy.parameters(), strict=True):
    assert torch.allclose(ours, theirs, atol=1e-3), "the same parameters"

# %% [markdown]
# ## Three terms
#
# In the auxiliary phase the value learns the $\lambda$-returns $G^\lambda$ of
# {doc}`advantages`. In the dual arrangement of {doc}`disjoint_network` this trains the
# value's encoder and leaves the policy alone:
#
# $$
# \mathcal L_V = \bigl( V_\theta(s) - G^\lambda \bigr)^2 .
# $$ (phase-value)
#
# The auxiliary value learns the same targets, and takes the policy's encoder with it:
#
# $$
# \mathcal L_{V^{\text{aux}}} = \bigl( V^{\text{aux}}_\theta(s) - G^\lambda \bigr)^2 .
# $$ (phase-auxiliary)
#
# The policy reads the same features, so this term alone would change the policy too. A third
# term, the **clone** term, therefore holds it to $\pi_{\text{old}}$, here the policy at the start
# of the phase:
#
# $$
# \mathcal L_{\text{clone}} = \operatorname{KL} \bigl(
#     \pi_{\text{old}}(\cdot \mid s) \,\|\, \pi_\theta(\cdot \mid s) \bigr) .
# $$ (phase-clone)
#
# With a weight $\beta$ the loss of one step is
#
# $$
# \mathcal L_{\text{aux}} = \mathcal L_V + \mathcal L_{V^{\text{aux}}}
#     + \beta \, \mathcal L_{\text{clone}} .
# $$ (auxiliary-loss)
#
# The paper halves the squares; the library ALF does not, and neither do we, so the same $\beta$ weighs half as much. A function
# with halves can be passed as `error`. The errors are squares: rewards twice as large weigh four times as much against
# the clone term.


# %% tags=["export"]
@checked
def element_wise_squared_loss(
    x: Float[Tensor, "*B"], y: Float[Tensor, "*B"]
) -> Float[Tensor, "*B"]:
    """Return the squared difference of two tensors, element by element."""
    return (x - y).square()


class PPGAuxPhaseLossInfo(NamedTuple):
    """The three parts of the auxiliary phase's loss.

    Attributes:
        td_loss_actual: Error of the value.
        td_loss_aux: Error of the auxiliary value.
        policy_kl_loss: Divergence from the old policy, in nats, not yet weighted.
    """

    td_loss_actual: Tensor
    td_loss_aux: Tensor
    policy_kl_loss: Tensor


@checked
def auxiliary_loss(
    value: Float[Tensor, "*B"],
    aux_value: Float[Tensor, "*B"],
    target: Float[Tensor, "*B"],
    kl: Float[Tensor, "*B"],
    clone_weight: NonNegative = 1.0,
    error: Callable[[Tensor, Tensor], Tensor] = element_wise_squared_loss,
) -> tuple[Float[Tensor, "*B"], PPGAuxPhaseLossInfo]:
    """Compute the loss of the auxiliary phase for each step, and its parts.

    ``kl`` is the divergence from the old policy at each step, in nats. ``target`` gets
    no gradient.

    Source: Cobbe et al. 2021, Phasic Policy Gradient, section 2 and algorithm 1.
    """
    target = target.detach()
    # The value's own error {eq}`phase-value`.
    of_value = error(value, target)
    # The error that teaches the policy's encoder {eq}`phase-auxiliary`.
    of_aux_value = error(aux_value, target)
    # The clone term {eq}`phase-clone`, weighted.
    held = clone_weight * kl
    # The sum of all three {eq}`auxiliary-loss`.
    loss = of_value + of_aux_value + held
    check_finite(loss, value=value, aux_value=aux_value, target=target, kl=kl)
    return loss, PPGAuxPhaseLossInfo(of_value, of_aux_value, kl)


# %% [markdown]
# What does $\beta$ trade? Here PPG learns CartPole for fifteen iterations, with rewards divided by the
# standard deviation of the returns (`scale_reward`). We stop there and run the same auxiliary phase once
# for each $\beta$. Its learning rate is three times the usual, so that eight epochs show the end:

# %% tags=["hide-input"]
import copy

import numpy as np

from literate_rl.data.agents import seed_everything

from literate_rl.learners.ppg import AuxiliaryPhase  # built below
from literate_rl.learners.ppg_learner import side_by_side
from literate_rl.book.pictures import Axis, Mark, dial, plot

config = ppg_settings("CartPole-v1")
config = replace(config, scale_reward=True, aux_learning_rate=3e-3)
seed_everything(1)
envs = make_envs("CartPole-v1", config.num_envs)
shapes = envs.single_observation_space, envs.single_action_space
stopped = PPGAlgorithm(make_phasic_policy(*shapes), envs, config)
for _ in range(15):
    stopped.iterate()


def phase(beta, epochs=8):
    """Run an auxiliary phase from here; return drift and error of each epoch."""
    settings = replace(config, clone_weight=beta)
    aux, history = AuxiliaryPhase(copy.deepcopy(stopped.policy), settings), []
    data = side_by_side(*stopped.aux.buffer)
    data = data._replace(row=aux.snapshot(data))  # the policy of this moment
    for _ in range(epochs):
        order = torch.randperm(data.target.shape[1], generator=aux.generator)
        parts = order.split(config.aux_batch_size)
        means = torch.stack([aux.learn(data.take(part)) for part in parts]).mean(0)
        history.append((means[2].item(), means[1].item()))
    return np.array(history).T / [[1], [data.target.var().item()]]


betas = [0, 1, 10, 100, 1_000, 10_000]
drift, error = np.array([phase(float(beta)) for beta in betas]).transpose(1, 0, 2)


def frame(beta):
    """Draw the drift of the policy and the error of the auxiliary value."""
    now, epochs, pictures = betas.index(beta), range(1, 9), []
    for title, unit, curves, ticks in (
        ("Drift of the policy", "divergence in nats", drift, (0, 0.1, 0.2, 0.3)),
        ("Error of the auxiliary value", "error / variance", error, (0, 1, 2, 3, 4)),
    ):
        curves = curves.clip(0, ticks[-1])
        pictures.append(
            plot(
                title,
                f"{title}, {unit}, over eight epochs, for six clone weights.",
                Axis("epoch", 0.5, 8.5, ticks=epochs),
                Axis(unit, 0, ticks[-1], ticks),
                *(Mark("line", epochs, curve, "faint") for curve in curves),
                Mark("line thick", epochs, curves[now], "accent"),
            )
        )
    return pictures, (
        f"β = {beta:,}: the policy drifts by {drift[now, -1]:.1g} nats,\n"
        f"the error is {error[now, -1]:.2f} times the targets' variance in the end"
    )


dial("The clone weight and the drift", frame, {"β": betas}, start=(1,))

# %% [markdown]
# **Notice** that without the clone term the policy drifts far, and with $\beta = 1$, the default, hardly at
# all, at this size of the rewards. With a weight of 10,000 the auxiliary value learns less.

# %% tags=["claims"]
numbers = torch.rand(3, 8)
single, double = (auxiliary_loss(*(k * numbers), torch.zeros(8))[0] for k in (1, 2))
assert torch.allclose(double, 4 * single), "four times as much"
assert drift[1, -1] < 0.1 * drift[0, -1], "hardly at all"
assert error[-1, -1] > error[0, -1], "it learns less"

# %% [markdown]
# The divergence is not computed here. Every action distribution ({doc}`policies`) has a method `kl`, so the loss is the
# same for discrete, continuous and hybrid actions.
#
# ## The auxiliary phase
#
# `AuxiliaryPhase` shares the policy with the policy phase and owns everything else: a buffer, the
# order of its minibatches, and an optimiser. Its optimiser is separate because Adam keeps running
# averages of gradients, and those of this loss differ in size from PPO's. The policy's network, the chunks and the
# settings, among them $N_\pi$ and $\beta$, stand in {doc}`learners/ppg_learner`.


# %% tags=["export"]
AUX_METRICS = tuple(
    f"aux/{x}"
    for x in ("value_loss", "aux_value_loss", "kl", "grad_norm", "kl_at_start")
)


def targets(batch: Rollout, next_value: Tensor, config: PPGConfig) -> Tensor:
    """Return what the values of a rollout should become."""
    return lambda_returns(
        *(batch.reward, next_value, batch.terminated, batch.truncated),
        *(config.gamma, config.lambda_),
    )


class AuxiliaryPhase(Kept):
    """Trains both values on the data of several policy phases, and holds the policy.

    Args:
        policy: A policy whose network has ``three_heads``.
        config: The settings.
        optimizer: Optimiser to use instead of Adam.

    Attributes:
        buffer: What was observed since the last auxiliary phase, rollout by rollout.
        loss: Loss of values, auxiliary values, targets and divergences.

    Source: Cobbe et al. 2021, Phasic Policy Gradient, algorithm 1.
    """

    kept = ("optimizer", "generator")

    def __init__(
        self,
        policy: Policy,
        config: PPGConfig,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.policy, self.config = policy, config
        self.network = policy.network
        self.parameters = list(policy.parameters())
        self.optimizer = optimizer or torch.optim.Adam(
            self.parameters, config.aux_learning_rate, eps=1e-5, fused=True
        )
        self.loss: Callable[..., tuple[Tensor, PPGAuxPhaseLossInfo]] = partial(
            auxiliary_loss, clone_weight=config.clone_weight
        )
        self.generator = torch.Generator().manual_seed(config.seed)
        self.buffer: list[Chunks] = []

    @torch.no_grad()
    def observe(self, batch: Rollout, next_value: Tensor, row: Tensor) -> None:
        """Put what matters of a rollout into the buffer.

        ``next_value`` are values of the true successors, and ``row`` is what described
        the policy, both from before the policy phase learned.
        """
        config = self.config
        # The targets are computed once and do not change later.
        target = targets(batch, next_value, config)
        length = config.aux_batch_length or config.num_steps
        masks = () if batch.mask is None else (batch.mask,)
        steps = Chunks(batch.seen, target, row, *masks)
        self.buffer.append(map_nest(lambda x: in_chunks(x, length), steps))

    def run(self) -> dict[str, float]:
        """Run one auxiliary phase, empty the buffer, and return metrics."""
        config, data = self.config, side_by_side(*self.buffer)
        count = data.target.shape[1]
        # The policy to hold to is the one of this moment, unless the settings say
        # otherwise.
        if config.kl_reference == "snapshot":
            data = data._replace(row=self.snapshot(data))

        # No minibatch is larger than the settings say.
        parts = math.ceil(count / config.aux_batch_size)
        history = []
        for _ in range(config.aux_epochs):
            # Each epoch shuffles the chunks and deals them out in minibatches.
            order = torch.randperm(count, generator=self.generator)
            for chosen in order.to(data.target.device).tensor_split(parts):
                history.append(self.learn(data.take(chosen)))
        self.buffer.clear()

        # Means over the last epoch. The first row was computed before any step, so its
        # divergence is that of the start.
        table = torch.stack(history)
        means = [*table[-parts:].mean(0).tolist(), table[0, 2].item()]
        return dict(zip(AUX_METRICS, means, strict=True))

    @torch.no_grad()
    def snapshot(self, data: Chunks) -> Any:
        """Return rows that describe the present policy, a minibatch at a time."""
        pieces = torch.arange(data.target.shape[1]).split(self.config.aux_batch_size)
        with eval_mode(self.policy):
            parts = map(data.take, pieces)
            rows = [self.legal(self.policy(part.obs), part) for part in parts]
        return side_by_side(*rows)

    def legal(self, row: Tensor, part: Chunks) -> Tensor:
        """Return rows that leave out what is illegal in some chunks."""
        known = isinstance(part.mask, Tensor)
        return self.policy.legal(row, part.mask) if known else row

    def learn(self, part: Chunks) -> Tensor:
        """Take one step of the optimiser on a minibatch; return means and a norm."""
        # What the three heads say now, and how far the policy is from the old one.
        row, value, aux_value = self.network.three_heads(part.obs)
        kl = self.policy.actions.kl(part.row, self.legal(row, part))
        loss, info = self.loss(value, aux_value, part.target, kl)

        # One step downhill, with gradient clipping.
        self.optimizer.zero_grad()
        loss.mean().backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        check_finite(norm, gradient=norm)
        self.optimizer.step()
        return torch.stack([*(x.detach().mean() for x in info), norm])

    # What follows is for checkpoints ({doc}`runs/runs`).
    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, the policy's weights aside."""
        # A file holds plain tuples; a window is one too.
        plain = [
            (tuple(obs) if isinstance(obs, Window) else obs, *rest)
            for obs, *rest in self.buffer
        ]
        return super().state_dict() | {"buffer": plain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state that ``state_dict`` returned."""
        super().load_state_dict(state)
        device = self.parameters[0].device
        moved = map_nest(lambda x: x.to(device), tuple(state["buffer"]))
        self.buffer = [
            Chunks(Window(*obs) if isinstance(obs, tuple) else obs, *rest)
            for obs, *rest in moved
        ]


# %% [markdown]
# ## The algorithm
#
# `PPGAlgorithm` alternates the two phases. Each iteration is one of PPO. What PPO saw goes into
# the buffer, and every `aux_interval` iterations an auxiliary phase follows. With `value_epochs` the value
# trains apart from the policy in the policy phase, as in the paper's code.


# %% tags=["export"]
class PPGAlgorithm(Kept):
    """Phasic policy gradient: PPO, and an auxiliary phase every few iterations.

    Args:
        policy: The policy to train, on any device, from ``make_phasic_policy``.
        envs: A vector environment with ``config.num_envs`` copies that resets in the
            step that ends an episode.
        config: The settings.
        policy_error: As in ``PPO``.

    Attributes:
        ppo: The learner of the policy phase.
        aux: The learner of the auxiliary phase.
        value: Trains the value alone, or None where it learns together with the policy.
    """

    kept = ("ppo", "aux", "value")

    def __init__(
        self,
        policy: Policy,
        envs: Envs,
        config: PPGConfig,
        policy_error: Callable[..., tuple[ppo_policy_loss, ppo_info]] | None = None,
    ) -> None:
        self.policy, self.config = policy, config
        # Where the value has epochs of its own, PPO trains the policy alone.
        apart = config.value_epochs is not None
        of_ppo = replace(config, value_weight=0.0) if apart else config
        self.ppo = PPO(policy, envs, of_ppo, policy_error=policy_error)
        self.value = ValueEpochs(policy, config) if apart else None
        # A step that did not happen has no place among consecutive steps.
        same = not self.ppo.collector.resets_later
        check_that(same, "envs must have autoreset mode SAME_STEP, got NEXT_STEP")
        self.aux = AuxiliaryPhase(policy, config)

    def iterate(self) -> dict[str, float]:
        """Run a policy phase and, when it is due, an auxiliary phase."""
        batch = self.ppo.collect()
        if not self.config.aux_enabled:
            return self.policy_phase(batch)
        with torch.no_grad(), eval_mode(self.policy):
            row = self.policy.legal(self.policy(batch.seen), batch.mask)

        # The policy phase. Afterwards `seen` holds the rollout as PPO learned from it,
        # with scaled rewards where the settings ask for them, and the values of then.
        metrics = self.policy_phase(batch)
        seen, _, next_value = self.ppo.seen
        self.aux.observe(seen, next_value, row)

        # Metrics have the same names in every iteration. Without a phase they are NaN.
        metrics |= dict.fromkeys(AUX_METRICS, math.nan)
        if self.ppo.iteration % self.config.aux_interval == 0:
            # The learning rate falls in the same straight line as that of PPO.
            share = metrics["charts/learning_rate"] / self.config.learning_rate
            rate = self.config.aux_learning_rate * share
            self.aux.optimizer.param_groups[0]["lr"] = rate
            metrics |= self.aux.run()
        return metrics

    def policy_phase(self, batch: Rollout) -> dict[str, float]:
        """Learn from a rollout as PPO does; return metrics."""
        metrics = self.ppo.update(batch)
        if self.value is not None:
            seen, value, next_value = self.ppo.seen
            target = targets(seen, next_value, self.config)
            rate = metrics["charts/learning_rate"]
            loss = self.value.learn(rate, seen.seen, value, target)
            metrics["losses/value_loss"] = loss
        return metrics

    # What follows is for the loop around the learner, `fit`, and for checkpoints.
    @property
    def step(self) -> int:
        """Steps taken so far, all environments together."""
        return self.ppo.step

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next iteration starts with fresh environments."""
        return self.ppo.checkpoint_due


# %% [markdown]
# What `train` knows of it, in a row ({doc}`ground/rows`):

# %% tags=["export", "hide-input"]
ROW = register(
    Row(
        "PPG",
        "PPO with phases for its values",
        ANY,
        PPGConfig,
        by_settings(make_phasic_policy),
        PPGAlgorithm,
        settings=ppg_settings,
        chapter="ppg",
    )
)

# %% [markdown]
# ### Trap: log-probabilities instead of probabilities
#
# It is tempting to compute the clone term with PyTorch's `kl_div`, from the log-probabilities of the actions taken, as
# [DI-engine](/docs/errata.md#log-probabilities-for-probabilities) does.
# That function wants log-probabilities first, but *probabilities* second:

# %%
old = torch.tensor([-0.5, -1.0, -2.0])
new = old.clone().requires_grad_()
loss = nn.functional.kl_div(new, old, reduction="batchmean")
loss.backward()
print(f"divergence of a policy from itself: {loss.item()}")
print("its gradient:", new.grad.tolist())

# %% [markdown]
# The loss is NaN, but its gradient is finite, so training goes on without an error.
# And that gradient makes every action that was taken less likely, whatever its advantage. A
# divergence between two distributions, such as `policy.actions.kl`, has no such trap.

# %% tags=["claims"]
assert loss.isnan(), "not a number"
assert (new.grad > 0).all(), "less likely, downhill"

# %% [markdown]
# ## On the best device
#
# Buffer and networks follow the policy's device.

# %%
from literate_rl.data.agents import best_device
from literate_rl.runs.runs import fit

device = best_device()
short = replace(ppg_settings("CartPole-v1"), total_steps=2_048, aux_interval=2)
envs = make_envs("CartPole-v1", short.num_envs)
policy = make_phasic_policy(envs.single_observation_space, envs.single_action_space)
last = fit(PPGAlgorithm(policy.to(device), envs, short), progress=False)[-1]
print(f"trained on {device.type} for {last['step']} steps")

# %% tags=["claims"]
assert math.isfinite(last["aux/value_loss"]), "the last iteration has a phase"

# %% [markdown]
# ## When to use it
#
# PPG spends more computing on each step of the environment. It paid on the sixteen games of its authors,
# where runs are long and one epoch of the policy is best. On our small tasks we have seen no difference, and there PPO
# is the simpler choice. One epoch of the policy may also be too few for short runs: in our mazes PPG learned far less
# with one than with six, so begin these with `ppg_settings`.
#
# - **Use it for**: long runs on images, with many levels, where one epoch of the policy is best
# - **Rather than**: PPO, if a second epoch of its policy costs return
# - **Costs**: CartPole in 100,000 steps and about 14 CPU seconds, where PPO takes about 11; in our
#   mazes nearly one and a half times the processor time of PPO
# - **First settings**: the authors', for runs of a hundred million steps: `num_epochs=1`,
#   `aux_interval=32`, `aux_epochs=6`
# - **Decided by**: the authors' runs, and epochs of policy and value apart, in {doc}`ppg_evidence`

# %% tags=["claims"]
from literate_rl.runs.runs import stored_runs

both = stored_runs("ppg_cartpole")
assert (both["PPG"].final == 500).all(), "in 100,000 steps"
assert all(found.steps[-1] == 100_000 for found in both.values())
seconds = [found.cpu_seconds.mean() for found in (both["PPG"], both["PPO"])]
assert [round(x) for x in seconds] == [14, 11], "about 14 and 11 CPU seconds"
maze = [stored_runs("ppg_maze")[name].cpu_seconds.mean() for name in ("PPG", "PPO")]
assert 1.4 < maze[0] / maze[1] < 1.5, "nearly one and a half times"
six, one = (stored_runs(f"ppg_maze{end}")["PPG"].final for end in ("", "_once"))
assert ppg_settings("literate_rl/Maze-v0").num_epochs == 6
assert one.mean() < 0.5 * six.mean(), "far less with one"

# %% [markdown]
# ## Summary
#
# - PPG has two phases in turns: policy phases, which are PPO, and every $N_\pi$ of them an auxiliary phase
#   on all of their data.
# - The auxiliary phase trains two values towards the same targets. One has its own encoder,
#   the other teaches the policy's.
# - A clone term holds the policy to what it was at the start of the phase. How far it drifts
#   depends on the clone weight and on the size of the rewards, because errors of values are squared.
#
# ## Exercises
#
# ### Exercise 1: predict

# %% tags=["hide-input"]
from literate_rl.book.pictures import predict

predict(
    "The clone weight is raised from 1 to 1000. What happens to the first gradient of an "
    "auxiliary phase?",
    [
        "nothing",
        "its clone part becomes a thousand times as long",
        "the policy's encoder gets no gradient any more",
    ],
    right="nothing",
    because="At the start the policy is its own clone. The divergence has its minimum there, "
    "so its gradient is zero, whatever it is multiplied by. The weight counts from the second "
    "step on.",
)

# %% [markdown]
# ### Exercise 2: find the bug
#
# This function is meant to return the loss of each step for discrete actions, from the rows
# (logits) of the old and the new policy. It runs, and at the start of a phase it is right. Fix
# it.

# %%
from literate_rl.nets.parts import CategoricalActions

actions = CategoricalActions(3)


def answer(value, aux_value, target, old_row, new_row, weight):
    kl = actions.kl(new_row, old_row)
    errors = (value - target) ** 2 + (aux_value - target) ** 2
    return errors + weight * kl


# %% tags=["hide-input"]
from literate_rl.book.exercises import grade


def right(value, aux_value, target, old_row, new_row, weight):
    kl = actions.kl(old_row, new_row)
    return auxiliary_loss(value, aux_value, target, kl, weight)[0]


def on(function):
    """Return a function that is called with random steps, by their seed."""

    def call(seed):
        generator = torch.Generator().manual_seed(seed)
        numbers, rows = (torch.randn(n, 3, 3, generator=generator) for n in (1, 2))
        return function(*numbers[0].T, *rows, 0.5)

    return call


grade(on(answer), on(right), (0,), (1,), (2,))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(value, aux_value, target, old_row, new_row, weight):
    # From the old policy to the new one: what the old one did must stay likely.
    kl = actions.kl(old_row, new_row)
    errors = (value - target) ** 2 + (aux_value - target) ** 2
    return errors + weight * kl


grade(on(answer), on(right), (0,), (1,), (2,))

# %% [markdown]
# ### Exercise 3: write it
#
# Write one step of the auxiliary phase from nothing. `heads(obs)` returns logits, values and
# auxiliary values, `old` are the logits of the policy to hold to, and `optimizer` knows the
# parameters. Take the mean of the three terms {eq}`auxiliary-loss` over the states and one step
# downhill. Eight lines will do. The grader takes three such steps and compares the logits.


# %%
def answer(heads, optimizer, obs, target, old, weight):
    return ...


# %% tags=["hide-input"]
from gymnasium import spaces


def written(heads, optimizer, obs, target, old, weight):
    logit, value, aux_value = heads(obs)
    kl = actions.kl(old, logit)
    loss, _ = auxiliary_loss(value, aux_value, target, kl, weight)
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()


def after_three(function):
    """Return a function that takes three steps and returns the logits of two states."""

    def call(weight):
        torch.manual_seed(0)
        space = spaces.Box(-1.0, 1.0, (4,))
        network = make_phasic_policy(space, spaces.Discrete(3)).network
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        obs, target, old = torch.rand(8, 4), torch.randn(8), torch.randn(8, 3)
        for _ in range(3):
            if (
                function(network.three_heads, optimizer, obs, target, old, weight)
                is ...
            ):
                return ...
        with torch.no_grad():
            return network(obs[:2])

    return call


grade(after_three(answer), after_three(written), (0.0,), (1.0,))


# %% tags=["hide-cell"] jupyter={"source_hidden": true}
def answer(heads, optimizer, obs, target, old, weight):
    logit, value, aux_value = heads(obs)
    # Both values learn the same targets.
    loss = (value - target) ** 2 + (aux_value - target) ** 2
    # The old policy comes first: what it did must stay likely.
    log_old, log_new = old.log_softmax(-1), logit.log_softmax(-1)
    loss = loss + weight * (log_old.exp() * (log_old - log_new)).sum(-1)
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()


grade(after_three(answer), after_three(written), (0.0,), (1.0,))

# %% [markdown]
# ## References
#
# PPG is from {cite:t}`cobbe2021`. Its loss and its phases are also those of the library ALF,
# whose interface is in {doc}`interfaces/alf`.

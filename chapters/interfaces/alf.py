# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # ALF's interface
#
# **How does one call the PPG of this book as the library ALF calls its own?** ALF
# [(Agent Learning Framework)](https://github.com/HorizonRobotics/alf) documents PPG as some
# tuples, a function and two classes. This page has all of them under the same names, with
# the same arguments and defaults. Nothing here learns by itself: the loss and the auxiliary
# phase are those of {doc}`/chapters/ppg`, and this page only translates.
#
# Nobody has to read it to follow the book.

# %% tags=["export", "hide-input"]
"""ALF's interface: its names for a step, for what is handed on, and for PPG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, kl_divergence

from literate_rl.ground.nests import Space, ends, map_nest
from literate_rl.ground.signatures import (
    Bool,
    Count,
    Float,
    Fraction,
    NonNegative,
    at_least,
    check_finite,
    check_that,
    checked,
)
from literate_rl.learners.ppg import (
    AuxiliaryPhase,
    PPGAuxPhaseLossInfo,
    auxiliary_loss,
    element_wise_squared_loss,
)
from literate_rl.learners.ppg_learner import Chunks, PPGConfig, in_chunks
from literate_rl.maths.advantages import lambda_returns
from literate_rl.nets.disjoint_network import DisjointPolicyValueNetwork
from literate_rl.nets.policies import Policy

__all__ = [
    "AlgStep",
    "LossInfo",
    "PPGAuxAlgorithm",
    "PPGAuxOptions",
    "PPGAuxPhaseLoss",
    "PPGRolloutInfo",
    "PPGTrainInfo",
    "TimeStep",
    "ppg_network_forward",
]

# %% [markdown]
# ## What is handed on
#
# A step of an environment comes as a `TimeStep`. What an algorithm makes of it goes out as an
# `AlgStep`: an output, a state for the next step, and information for the loss.
#
# Two tuples carry that information. `PPGRolloutInfo` is what the network said about a step,
# and what happened then. `PPGTrainInfo` holds what the network says about the same step *now*,
# and beside it what was said during the rollout. To go from one to the other, `absorbed` takes
# over what is said now and keeps what was done: the action.
#
# To each of the two we add one field, the value of the true successor. Without it a truncated
# step has no bootstrap ({doc}`/chapters/advantages`). It may be left out.


# %% tags=["export"]
FIRST, MID, LAST = 0, 1, 2


class TimeStep(NamedTuple):
    """A step of B environments.

    ``step_type`` is 0 for the first step of an episode, 2 for the last one, whether it
    terminated or was truncated, and 1 for all others. ``discount`` is 0 where the task
    ended with this step, else 1. The observation is a nest of tensors, and the reward
    is that of the action which was chosen for it; in ALF it is that of the one before.
    """

    step_type: Any
    reward: Any
    discount: Any
    observation: Any


class AlgStep(NamedTuple):
    """What an algorithm makes of a step: output, next state, information for a loss."""

    output: Any
    state: Any
    info: Any


class LossInfo(NamedTuple):
    """A loss for each step, (T, B), and its parts."""

    loss: Tensor
    extra: Any


class PPGRolloutInfo(NamedTuple):
    """What the network said about a step, and what happened then.

    ``action_distribution`` and ``action`` are nests. ``log_prob`` and ``aux`` are ()
    where they were not needed, and ``reward_weights`` may be: they weigh rewards for
    the policy, and the auxiliary phase reads none. ``next_value``, the value of the
    true successor, is not among the documented fields, and may be ().
    """

    action_distribution: Any
    action: Any
    log_prob: Any
    value: Any
    aux: Any
    step_type: Any
    discount: Any
    reward: Any
    reward_weights: Any
    next_value: Any = ()


class PPGTrainInfo(NamedTuple):
    """What the network says of a step now, beside what it said in the rollout.

    ``rollout_next_value`` is not among the documented fields.
    """

    action_distribution: Any = ()
    action: Any = ()
    log_prob: Any = ()
    value: Any = ()
    aux: Any = ()
    step_type: Any = ()
    discount: Any = ()
    reward: Any = ()
    reward_weights: Any = ()
    rollout_action_distribution: Any = ()
    rollout_value: Any = ()
    rollout_log_prob: Any = ()
    rollout_next_value: Any = ()

    def absorbed(self, rollout_info: PPGRolloutInfo) -> PPGTrainInfo:
        """Return a new tuple that has taken over what a network says of the same steps.

        The action, its log-probability and all that belongs to the rollout stay.
        """
        new = rollout_info._asdict()
        for kept in ("action", "log_prob", "next_value"):
            del new[kept]
        return self._replace(**new)


# %% [markdown]
# ## One pass through the network
#
# `ppg_network_forward` is a step of the network as an algorithm sees it: from a `TimeStep` to
# an action. By default the action is drawn. With `epsilon_greedy` it is drawn with a
# probability $q$ only, and is the mode otherwise. So for a discrete action
#
# $$
# \Pr(a \mid s) = q \, \pi(a \mid s)
#     + (1 - q) \, \mathbb{1} \bigl[ a = \operatorname*{argmax}_{j} \pi(j \mid s) \bigr] .
# $$ (greedy-mixture)
#
# The name misleads a little. What most books call epsilon-greedy draws from *all* actions
# alike; this draws from the policy. In a nest each leaf and each row decides on its own.


# %% tags=["export"]
@checked
def ppg_network_forward(
    network: DisjointPolicyValueNetwork,
    inputs: TimeStep,
    state: Any = (),
    require_aux: bool = True,
    epsilon_greedy: Fraction | None = None,
) -> AlgStep:
    """Pass one step through the network and choose an action.

    Args:
        network: The network.
        inputs: The step of B environments.
        state: The network's state, or () at a start or without memory.
        require_aux: Whether the auxiliary value is wanted.
        epsilon_greedy: None to draw the action; else the probability of drawing it.

    Returns:
        The action, the next state and a ``PPGRolloutInfo``. Action and log-probability
        carry no gradient. With ``epsilon_greedy`` the log-probability is ().
    """
    output, state = network(inputs.observation, state, require_aux)
    distribution, value, aux = output
    log_prob = ()
    if epsilon_greedy is None:
        action = map_nest(lambda leaf: leaf.sample(), distribution)
        terms = map_nest(lambda leaf, a: leaf.log_prob(a), distribution, action)
        log_prob = sum(ends(terms)).detach()
    else:
        action = map_nest(partial(draw_or_mode, q=epsilon_greedy), distribution)
    step_type, reward, discount, _ = inputs
    info = PPGRolloutInfo(
        distribution, action, log_prob, value, aux, step_type, discount, reward, ()
    )
    return AlgStep(action, state, info)


def draw_or_mode(leaf: Any, q: float) -> Tensor:
    """Draw from a distribution with probability q, row by row, else take its mode."""
    # The mixture {eq}`greedy-mixture`. To be greedy always needs no random number.
    mode = leaf.mode.detach()
    if q == 0:
        return mode
    drawn = torch.rand(leaf.batch_shape, device=mode.device) < q
    choice = drawn.view(*drawn.shape, *[1] * len(leaf.event_shape))
    return torch.where(choice, leaf.sample(), mode)


# %% [markdown]
# An `epsilon_greedy` of 0.5 over ten actions, where one is much more likely than the others:

# %%
network = DisjointPolicyValueNetwork(spaces.Box(-1, 1, (4,)), spaces.Discrete(10))
network.heads.projections[0].logits.bias.data[3] = 3.0
inputs = TimeStep((), (), (), torch.zeros(20_000, 4))
action = ppg_network_forward(network, inputs, (), epsilon_greedy=0.5).output
share = (action == 3).double().mean().item()
print(f"the mode: {share:.3f}, drawing from all actions alike would give 0.550")

# %% tags=["claims"]
assert 0.8 < share < 0.9, "half of the time it is drawn, and often all the same"

# %% [markdown]
# ## The loss
#
# The three terms are those of {eq}`auxiliary-loss`. What is added here is how ALF hands them
# over: the targets come from the rollout's rewards and values, and the divergence is one
# between nests of distributions. The policy of a nest is a product over its leaves $i$, so its
# divergence is a sum:
#
# $$
# \operatorname{KL} \bigl( \pi_{\text{old}} \,\|\, \pi_\theta \bigr) = \sum_i
#     \operatorname{KL} \bigl( \pi^{(i)}_{\text{old}} \,\|\, \pi^{(i)}_\theta \bigr) .
# $$ (nested-divergence)
#
# For a hybrid action this is an upper bound of the divergence in
# {doc}`/chapters/hybrid_action`. There each argument counts as often as its type is chosen,
# here it counts always, even if no type uses it.
#
# The old policy is data and has no gradient. So its distributions are taken apart into the
# numbers that they are made of, and put together again without gradient. PyTorch's distributions
# name these numbers: `loc` and `scale` of a Normal, `logits` of a Categorical. This works for a
# policy head of one's own as well, whatever its rows mean.
#
# A step may also have $D$ rewards, for instance one for speed and one for safety. Then each has
# a value, an auxiliary value and a discount $\gamma_d$ of its own, and so targets $G^{(d)}$ of its
# own. The loss is the mean of what {eq}`auxiliary-loss` gives for each of them:
#
# $$
# L = \frac{1}{D} \sum_{d=1}^{D} L^{\text{aux}} \bigl( V^{(d)}, V^{\text{aux}, (d)}, G^{(d)} \bigr) .
# $$ (loss-of-rewards)
#
# The divergence is the same in each of the $D$ terms, so the mean leaves its weight as it is. ALF
# takes the mean as well in [its other
# losses](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/td_loss.py#L225-L227);
# in this one it adds a row for each reward to a divergence without.


# %% tags=["export"]
def divergence(old: Any, new: Any) -> Tensor:
    """Return the divergence between nests of distributions, without gradient in old."""
    # `kl_divergence` would stretch one of them.
    came, wanted = (str(form_of(map_nest(taken_apart, x))) for x in (old, new))
    words = "the rollout's action_distribution must be of the form"
    check_that(came == wanted, f"{words} {wanted}, got {came}")
    # Leaf by leaf, {eq}`nested-divergence`.
    each = map_nest(lambda p, q: kl_divergence(frozen(p), q), old, new)
    return sum(ends(each))


def form_of(nest: Any) -> Any:
    """Return the shapes and types of what stands at the ends of a nest."""
    return map_nest(lambda x: f"{tuple(x.shape)} {x.dtype}", nest)


# Parameters that only say in another way what others say.
TWICE = {"probs", "covariance_matrix", "precision_matrix"}


def taken_apart(leaf: Any) -> Any:
    """Return the parameters of a distribution by name, and other things as they are."""
    if isinstance(leaf, Independent):
        return taken_apart(leaf.base_dist)
    if not isinstance(leaf, Distribution):
        return leaf
    names = sorted(leaf.arg_constraints.keys() - TWICE)
    return {name: getattr(leaf, name) for name in names}


def put_together(like: Any, parts: Any) -> Any:
    """Return a distribution of the same kind as another one from parameters."""
    if isinstance(parts, Distribution):
        return parts
    if isinstance(like, Independent):
        base = put_together(like.base_dist, parts)
        return Independent(base, like.reinterpreted_batch_ndims, validate_args=False)
    return type(like)(**parts, validate_args=False)


def frozen(leaf: Any) -> Any:
    """Return a distribution without gradient."""
    return put_together(leaf, map_nest(torch.detach, taken_apart(leaf)))


@checked
def successors(
    value: Float[Tensor, "T B *D"], step_type: Shaped[Tensor, "T B"]
) -> Float[Tensor, "T B *D"]:
    """Return the values of successors, as far as the steps themselves tell them."""
    # That is the value of the next step. Where an episode or the data end, the
    # successor is not among the steps, and the step's own value stands in.
    following, goes_on = value.detach().clone(), step_type[:-1] != LAST
    following[:-1][goes_on] = value[1:][goes_on].detach()
    return following


@checked
def two_flags(
    discount: Shaped[Tensor, "*B"], step_type: Shaped[Tensor, "*B"]
) -> tuple[Bool[Tensor, "*B"], Bool[Tensor, "*B"]]:
    """Return which steps terminated an episode and which truncated it."""
    terminated = discount == 0
    binary = (terminated | (discount == 1)).all()
    check_that(bool(binary), f"discount must be 0 or 1, got {discount}")
    return terminated, (step_type == LAST) & ~terminated


def in_columns(x: Tensor) -> tuple[Tensor, ...]:
    """Return a number for each step, or each of D, as columns (T, B)."""
    return x.reshape(*x.shape[:2], -1).unbind(-1)


class PPGAuxPhaseLoss(nn.Module):
    """The loss of the auxiliary phase.

    Rewards and values of D rewards have one dimension more, (T, B, D). The loss is
    (T, B) all the same.

    Args:
        td_error_loss_fn: Function of targets and estimates, in this order, that returns
            errors of the same shape.
        policy_kl_loss_weight: Weight of the divergence.
        gamma: Discount, or a list of D discounts, one for each reward.
        td_lambda: Decay of the weights of longer returns.
        name: Name of the loss.
    """

    @checked
    def __init__(
        self,
        td_error_loss_fn: Callable[[Tensor, Tensor], Tensor] = (
            element_wise_squared_loss
        ),
        policy_kl_loss_weight: NonNegative = 1.0,
        gamma: (
            Fraction | Annotated[Sequence[Fraction], at_least(1, "one discount")]
        ) = 0.999,
        td_lambda: Fraction = 0.95,
        name: str = "PPGAuxPhaseLoss",
    ) -> None:
        super().__init__()
        self.td_error_loss_fn, self.weight = td_error_loss_fn, policy_kl_loss_weight
        self.gamma, self.td_lambda, self.name = gamma, td_lambda, name

    def target(self, info: PPGTrainInfo) -> Tensor:
        """Return the targets of the rewards, made from what the rollout has seen."""
        gamma: Any = self.gamma
        next_value = info.rollout_next_value
        if isinstance(next_value, tuple):
            next_value = successors(info.rollout_value, info.step_type)
        flags = two_flags(info.discount, info.step_type)
        # Reward by reward, with its discount; a single one is a row of one.
        rewards, values = map(in_columns, (info.reward, next_value))
        gammas = gamma if isinstance(gamma, Sequence) else [gamma] * len(rewards)
        words = f"gamma must be a number or a list of {len(rewards)}, got {gamma}"
        check_that(len(gammas) == len(rewards), words)
        returns = [
            lambda_returns(r, v, *flags, g, self.td_lambda)
            for r, v, g in zip(rewards, values, gammas, strict=True)
        ]
        return torch.stack(returns, -1).reshape(info.reward.shape)

    def terms(
        self, value: Tensor, aux: Tensor, target: Tensor, kl: Tensor
    ) -> tuple[Tensor, PPGAuxPhaseLossInfo]:
        """Return the loss and its three parts, as ``auxiliary_loss`` does."""

        def error(value: Tensor, target: Tensor) -> Tensor:
            return self.td_error_loss_fn(target, value)

        if target.dim() != 3:
            return auxiliary_loss(value, aux, target, kl, self.weight, error)
        # {eq}`loss-of-rewards`: each reward is held by the same divergence.
        held = torch.stack([kl] * target.shape[-1], -1)
        each = auxiliary_loss(value, aux, target, held, self.weight, error)
        loss, parts = map_nest(lambda x: x.mean(-1), each)
        return loss, parts

    @checked
    def forward(self, info: PPGTrainInfo) -> LossInfo:
        """Return the loss (T, B) of steps in time order, and its parts."""
        kl = divergence(info.rollout_action_distribution, info.action_distribution)
        return LossInfo(*self.terms(info.value, info.aux, self.target(info), kl))


# %% [markdown]
# ## The auxiliary phase
#
# `PPGAuxAlgorithm` collects experience step by step, in tuples. When a phase begins, it computes
# the targets of each rollout, that is of each `num_steps` steps. Then it cuts them into chunks
# of `mini_batch_length` steps and hands these to the `AuxiliaryPhase` of {doc}`/chapters/ppg`.
# Distributions are stored taken apart, and put together again when the loss needs them.


# %% tags=["export"]
class PPGAuxOptions(NamedTuple):
    """Options of the auxiliary phase.

    ``interval`` counts policy phases, ``mini_batch_length`` the steps of a chunk (None:
    those of a rollout), ``mini_batch_size`` the chunks of a minibatch, at most, and
    ``num_updates_per_train_iter`` the epochs of a phase.
    """

    enabled: bool = True
    interval: Count = 32
    mini_batch_length: Count | None = None
    mini_batch_size: Count = 8
    num_updates_per_train_iter: Count = 6


AUX_OPTIONS = PPGAuxOptions()
REWARD = spaces.Box(-np.inf, np.inf, ())


class NestedPolicy(nn.Module):
    """The disjoint network as network and action distribution of a ``Policy``.

    Instead of rows there are nests of distributions, and of what they are made of.
    """

    def __init__(self, network: DisjointPolicyValueNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Any) -> Any:
        """Return the parameters of the policy's distributions."""
        (distribution, _, _), _ = self.network(observation, (), False)
        return map_nest(taken_apart, distribution)

    def three_heads(self, observation: Any) -> Any:
        """Return distributions, values and auxiliary values."""
        output, state = self.network(observation)
        words = "encoders must have no memory: a chunk is passed all at once"
        check_that(not list(ends(state)), words)
        return output

    def kl(self, old: Any, new: Any) -> Tensor:
        """Return the divergences of distributions from stored parameters."""
        return divergence(map_nest(put_together, new, old), new)


class PPGAuxAlgorithm:
    """The auxiliary phase: both values learn from old experience; the policy is held.

    Args:
        observation_spec: Space of one observation.
        action_spec: Space of one action.
        reward_spec: Space of a reward: a box without dimensions for a number, or with
            one dimension for several rewards.
        config: Settings; if None the defaults, with a discount of 0.999. Where both
            have a setting of the auxiliary phase, that of ``aux_options`` counts.
        optimizer: Optimiser of the auxiliary phase, or None for Adam.
        dual_actor_value_network: The network of the policy that acts, or None. Its
            ``reward_shape`` counts then.
        aux_options: Options. If not enabled, nothing is stored or trained.
        debug_summaries: Whether ``train_iter`` also tells the norm of the gradient.
        name: Name of the algorithm.

    Attributes:
        buffer: Experience since the last phase, a list of steps.
        loss: The loss, in which all rewards have the discount of ``config``. Put a
            ``PPGAuxPhaseLoss`` with a list of them in its place for several.
    """

    @checked
    def __init__(
        self,
        observation_spec: Space,
        action_spec: Space,
        reward_spec: Space = REWARD,
        config: PPGConfig | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        dual_actor_value_network: DisjointPolicyValueNetwork | None = None,
        aux_options: PPGAuxOptions = AUX_OPTIONS,
        debug_summaries: bool = False,
        name: str = "PPGAuxAlgorithm",
    ) -> None:
        shape: Any = reward_spec.shape
        self.network = dual_actor_value_network or DisjointPolicyValueNetwork(
            observation_spec, action_spec, reward_shape=shape
        )
        self.options, self.name = aux_options, name
        self.debug_summaries = debug_summaries
        self.config = replace(
            config or PPGConfig(gamma=0.999),
            aux_batch_size=aux_options.mini_batch_size,
            aux_epochs=aux_options.num_updates_per_train_iter,
        )
        self.loss = PPGAuxPhaseLoss(
            policy_kl_loss_weight=self.config.clone_weight,
            gamma=self.config.gamma,
            td_lambda=self.config.lambda_,
        )
        nested: Any = NestedPolicy(self.network)  # which has what the phase uses
        self.phase = AuxiliaryPhase(Policy(nested, nested), self.config, optimizer)
        # What trains it, and how many policy phases lie between two auxiliary phases.
        self.optimizer, self.parameters = self.phase.optimizer, self.network.parameters
        self.interval = aux_options.interval
        self.buffer: list[tuple[Any, PPGRolloutInfo]] = []

    @property
    def training(self) -> bool:
        """Whether the network is in training mode."""
        return self.network.training

    def observe_for_aux_replay(self, exp: tuple[Any, PPGRolloutInfo]) -> None:
        """Store a copy of an observation and of the rollout's information on it."""
        if not self.options.enabled:
            return
        observation, info = exp
        parts = map_nest(taken_apart, info.action_distribution)
        new = observation, info._replace(action_distribution=parts)
        two_flags(info.discount, info.step_type)
        for x in ends((observation, info.reward, info.value, info.next_value)):
            check_finite(x, exp=x)
        self.buffer.append(map_nest(lambda x: x.detach().clone(), new))

    def chunks(self) -> Chunks:
        """Return the buffer as chunks ``(L, C, *)``; spare steps are left out."""
        length = self.options.mini_batch_length or self.config.num_steps
        count = len(self.buffer) // length
        if count == 0:
            raise ValueError(
                f"the buffer must hold at least one chunk of {length} steps, got "
                f"{len(self.buffer)}: call observe_for_aux_replay first"
            )
        observation, info = map_nest(lambda *x: torch.stack(x), *self.buffer)
        # The value of a successor that nobody has stored is that of the next step.
        if isinstance(info.next_value, tuple):
            info = info._replace(next_value=successors(info.value, info.step_type))
        # Targets are computed rollout by rollout, before anything is cut: no episode
        # ends at the edge of a chunk.
        seen = PPGTrainInfo(rollout_next_value=info.next_value).absorbed(info)
        steps = self.config.num_steps
        rollouts = (slice(t, t + steps) for t in range(0, len(self.buffer), steps))
        target = torch.cat(
            [self.loss.target(map_nest(itemgetter(part), seen)) for part in rollouts]
        )
        return map_nest(
            lambda x: in_chunks(x[: count * length], length),
            Chunks(observation, target, info.action_distribution),
        )

    def train_iter(self) -> dict[str, float]:
        """Run one auxiliary phase, empty the buffer, and return metrics."""
        if not self.options.enabled:
            return {}
        data = self.chunks()
        self.phase.loss, self.phase.buffer = self.loss.terms, [data]
        metrics = self.phase.run()
        self.buffer.clear()
        if not self.debug_summaries:
            del metrics["aux/grad_norm"]
        return metrics

    def train_step(
        self, inputs: TimeStep, state: Any, plain_rollout_info: PPGRolloutInfo
    ) -> AlgStep:
        """Judge steps of the buffer with the network as it is now, for ``calc_loss``.

        What comes out is an ``AlgStep`` with a ``PPGTrainInfo``. ``plain_rollout_info``
        is what was stored of the steps.
        """
        # The network chooses an action too, but what counts is the one that was done.
        new = ppg_network_forward(self.network, inputs, state, True, 0.0)
        old = plain_rollout_info
        policies = new.info.action_distribution, old.action_distribution
        info = PPGTrainInfo(
            action=old.action,
            log_prob=old.log_prob,
            rollout_action_distribution=map_nest(put_together, *policies),
            rollout_value=old.value,
            rollout_log_prob=old.log_prob,
            rollout_next_value=old.next_value,
        )
        return AlgStep(new.output, new.state, info.absorbed(new.info))

    def calc_loss(self, info: PPGTrainInfo) -> LossInfo:
        """Return the loss (T, B) of steps that ``train_step`` has judged."""
        return self.loss.forward(info)


# %% [markdown]
# ## See it
#
# From the first step to a trained network, in ALF's words. The rewards are random here, so
# nothing is learned that would be worth knowing.

# %%
torch.manual_seed(0)
box, actions = spaces.Box(-1, 1, (4,)), spaces.Tuple((spaces.Discrete(3),) * 2)
options = PPGAuxOptions(mini_batch_length=8, num_updates_per_train_iter=2)
algorithm = PPGAuxAlgorithm(box, actions, aux_options=options)
for _ in range(16):
    inputs = TimeStep(
        torch.full((5,), MID), torch.randn(5), torch.ones(5), torch.rand(5, 4)
    )
    step = ppg_network_forward(algorithm.network, inputs)
    algorithm.observe_for_aux_replay((inputs.observation, step.info))
metrics = algorithm.train_iter()
print("an action:", [x[0].item() for x in step.output])
print("after the phase:", {name: round(x, 3) for name, x in metrics.items()})

# %% tags=["claims"]
assert algorithm.buffer == [], "the phase empties its buffer"
assert abs(metrics["aux/kl_at_start"]) < 1e-6, "the clone is the policy itself"

# %% [markdown]
# ## What is different from ALF
#
# The names are ALF's. Some of what they stand for is not, on purpose:
#
# | what | ALF | here |
# |---|---|---|
# | reward and discount of a step | those of the [action before](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/data_structures.py#L99) | those of this step's action, as in the whole book |
# | last step of an episode | what was seen at the end; [its loss does not count](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/algorithm.py#L1880-L1886) | the last one with an action; its loss counts |
# | discount of a step | a number that [multiplies `gamma`](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_phase_loss.py#L118-L123) | 0 or 1, any other is refused |
# | fields of the tuples | 9 and 12 | one more each, the value of the true successor |
# | observations, actions | nests of specifications of tensors | a Gymnasium space: `Box`, `Discrete`, or a `Tuple` or `Dict` of them |
# | several rewards | documented for the loss, [supported for one](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg_algorithm.py#L31) by the rest | the auxiliary phase takes them; the network has a keyword `reward_shape` |
# | policy head | returns [a distribution and a state](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/networks/projection_networks.py#L86-L94) | returns a row, and has a method `distribution(row)` |
# | initial weights | [variance scaling](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/layers.py#L351-L356) | orthogonal, see {doc}`/chapters/disjoint_network` |
# | `observe_for_aux_replay` | gets an experience with all its fields | gets a pair: an observation and a `PPGRolloutInfo` |
# | settings of the loss | [its own defaults](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_algorithm.py#L132) | those of `config`, if there is one |
# | targets | of a [chunk](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_phase_loss.py#L116-L134) | of its whole rollout |
# | old policy | that of the [rollout](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_algorithm.py#L180-L184) | that of the start of the phase, or of the rollout with `kl_reference` |
#
# We read the code at the linked commit.
#
# The first two rows matter to whoever brings a rollout of ALF along. Nothing fails, but all
# rewards come one step late. Below, the first action earns 1, and `gamma` is a half. ALF writes
# this reward into the second row. So reward, discount and type of a step must move up by one
# row. The last row, whose reward is not known yet, must go:

# %%
reward, value = torch.tensor([[0.0], [1.0], [0.0], [0.0]]), torch.zeros(4, 1)
as_it_came = PPGTrainInfo(
    step_type=torch.tensor([[FIRST], [MID], [MID], [MID]]),
    discount=torch.ones(4, 1),
    reward=reward,
    rollout_value=value,
)
moved = as_it_came._replace(
    step_type=as_it_came.step_type[1:],
    discount=as_it_came.discount[1:],
    reward=reward[1:],
    rollout_value=value[:-1],
    rollout_next_value=value[1:],
)
loss = PPGAuxPhaseLoss(gamma=0.5, td_lambda=1.0)
late, right = (loss.target(x).flatten().tolist() for x in (as_it_came, moved))
print("targets as it came:", late)
print("targets moved:     ", right)

# %% [markdown]
# Where an episode ends, ALF has a row more than there were actions. The loss of that row must be
# left out, as ALF does it.

# %% tags=["claims"]
assert late == [0.5, 1, 0, 0], "one step late"
assert right == [1, 0, 0], "the first action has earned it"

# %% [markdown]
# ## References
#
# The names, arguments and defaults are those of ALF's
# [tuples](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_utils.py),
# [loss](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_phase_loss.py) and
# [auxiliary phase](https://github.com/HorizonRobotics/alf/blob/23aca4924967228ca6e7368517ab11b3612295f0/alf/algorithms/ppg/ppg_aux_algorithm.py).
# {doc}`/docs/errata` lists the mistakes in its code that we met.

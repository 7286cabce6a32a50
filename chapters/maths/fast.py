# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fast
#
# **How is a slow loop made fast without changing what it computes?** In four steps: find
# out where the time goes, derive another form on paper, prove that both are equal, and
# measure. The path of this book always shows the plain form. Where speed matters, a public
# function calls a *kernel* from this page, and a test holds the two equal. The kernel that
# most agents share has a page of its own, {doc}`scan`.
#
# Nobody has to read this to follow the book.

# %% tags=["export", "hide-input"]
"""Fast: kernels that compute what the chapters' plain forms compute, in fewer calls."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor
from torch.autograd.function import once_differentiable

from literate_rl.ground.networks import UNIT_ENTROPY
from literate_rl.ground.signatures import Bool, Float, below, check_finite, checked
from literate_rl.maths.scan import reverse_scan as reverse_scan

__all__ = [
    "categorical_terms",
    "gru_scan",
    "pieces_of",
    "project_atoms",
]

# %% [markdown]
# ## Log-probability and entropy at once
#
# The losses of V-trace ({doc}`/chapters/off_policy`) need both for every row of logits, and a batch of
# 512 steps in 256 environments has 131,072 rows. Two things help. On a CPU `log_softmax` over a short
# last dimension is slower than over the first dimension of the transposed logits. And autograd walks
# back through all operations, although both derivatives can be written down,
#
# $$
# \frac{\partial \log p_a}{\partial z_j} = \mathbb 1[j = a] - p_j , \qquad
# \frac{\partial H}{\partial z_j} = -p_j \bigl( \log p_j + H \bigr) ,
# $$ (categorical-gradient)
#
# and the logits are turned around, to the shape $(N, B)$.

# %% tags=["export"]
# Stands for the logarithm of zero: zero times infinity is not zero. Any $p$ that is not
# 0 in floating point has a logarithm far above it.
LOG_OF_NOTHING = -1e9


class CategoricalTerms(torch.autograd.Function):
    """Log-probability and entropy as one node of the graph, with its gradient."""

    @staticmethod
    def forward(ctx: Any, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both for logits (B, N) and actions (B,)."""
        # A stack turns them to the memory layout (N, B), quicker than `t()` would.
        log_prob = torch.stack(logit.unbind(1)).log_softmax(0)
        taken = action.long().unsqueeze(0)
        chosen = log_prob.gather(0, taken).squeeze(0)
        prob = log_prob.exp()
        plogp = log_prob.clamp_min_(LOG_OF_NOTHING).mul_(prob)
        entropy = plogp.sum(0).neg_()
        ctx.save_for_backward(prob, plogp, entropy, taken)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the logits."""
        prob, plogp, entropy, taken = ctx.saved_tensors
        by_log_prob, by_entropy = grads
        # Both derivatives {eq}`categorical-gradient`, sorted: what has the factor $p_j$
        # in common is subtracted at once.
        common = torch.addcmul(by_log_prob, by_entropy, entropy)
        grad = (plogp * by_entropy).addcmul_(prob, common).neg_()
        return grad.scatter_add_(0, taken, by_log_prob.unsqueeze(0)).t(), None


@checked
def categorical_terms(
    logit: Float[Tensor, "B N"],
    action: Annotated[Integer[Tensor, "B"], below("N")],
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """Return log-probabilities of actions and entropies, with gradient, fast.

    They are the numbers of ``categorical_log_prob`` and ``categorical_entropy``, and
    can be differentiated once. A logit of minus infinity takes an action away.
    """
    log_prob, entropy = CategoricalTerms.apply(logit, action)
    return log_prob, entropy


# %% [markdown]
# ## Many short rows
#
# The logarithm of a softmax is one call, and for few rows nothing is quicker. For many
# short rows, as in a batch of policies with three action types, PyTorch's function is slow on
# a CPU. Written out it takes half the time. Subtracting the largest logit keeps `exp` from
# overflowing, and `detach` says that the result does not depend on it.


# %% tags=["export"]
def log_softmax(logit: Tensor) -> Tensor:
    """Compute the logarithm of the softmax of each row, (B, K)."""
    if len(logit) < 1024:
        return torch.log_softmax(logit, -1)
    shifted = logit - logit.detach().amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


# %%
generator = torch.Generator().manual_seed(0)
logit = torch.randn(4096, 3, generator=generator, dtype=torch.float64)
difference = (log_softmax(logit) - torch.log_softmax(logit, -1)).abs().max()
print(f"largest difference: {difference:.0e}")

# %% tags=["claims"]
assert difference < 1e-12, "both are the logarithm of the softmax, up to rounding"

# %% [markdown]
# ## Hybrid actions, in fewer calls
#
# A learner asks for the log-probability of a hybrid action and for the entropy, thousands of
# times ({doc}`/chapters/hybrid_action`). Small batches are not slow because of the
# arithmetic: each call into PyTorch has a price. So it pays to find a shorter way to write the
# same thing. Let $E_k$ be the expected log-density of an action of type $k$,
#
# $$
# E_k = \log p_k - \sum_j m_{k,j} H_j .
# $$ (hybrid-level)
#
# With $\zeta_j = (u_j - \mu_j) / \sigma_j$ the log-density of argument $j$ is
# $-H_j + \tfrac12 (1 - \zeta_j^2)$. So the log-probability and the entropy both become short:
#
# $$
# \begin{aligned}
# \log \pi(k, u \mid s) &= E_k + \frac12 \sum_j m_{k,j} \bigl(1 - \zeta_j^2\bigr), \\
# H(\pi) &= -\sum_k p_k E_k .
# \end{aligned}
# $$ (hybrid-short)
#
# The table of all $E_k$ is computed once, and both read it.


# %% tags=["export"]
def hybrid_terms(
    type_logit: Tensor,
    mu: Tensor,
    sigma: Tensor,
    mask: Tensor,
    action_type: Tensor,
    action_args: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the log-probabilities and entropies of hybrid actions, (B,) each.

    Args:
        type_logit: Logits of the types, (B, K).
        mu: Means of the arguments, (B, A).
        sigma: Their standard deviations, (B, A).
        mask: Which type uses which argument, (K, A) bool.
        action_type: Types, (B,) int64.
        action_args: Arguments, (B, A).
    """
    # The table of $E_k$ {eq}`hybrid-level`. The matrix product adds up, for each type,
    # the entropies of its arguments.
    type_log_prob = log_softmax(type_logit)
    args_entropy = sigma.log() + UNIT_ENTROPY
    level = type_log_prob - args_entropy @ mask.to(mu.dtype).T

    # The first line of {eq}`hybrid-short`. An argument that does not count is replaced
    # by its mean before anything is computed.
    used = mask.index_select(0, action_type)
    zeta = (torch.where(used, action_args, mu) - mu) / sigma
    spread = torch.addcmul(used.to(zeta.dtype), zeta, zeta, value=-1).sum(-1)
    own = level.gather(1, action_type.unsqueeze(1)).squeeze(1)
    log_prob = torch.add(own, spread, alpha=0.5)

    # The second line. For a type that was taken away $p_k$ is 0 and $E_k$ is minus
    # infinity; the product has to be 0.
    prob = type_log_prob.exp()
    entropy = -(prob * level.clamp(min=LOG_OF_NOTHING)).sum(-1)
    check_finite(entropy, logits=prob, mu=mu, sigma=args_entropy)
    return log_prob, entropy


# %% [markdown]
# **Prove.** A test holds it equal to `HybridDistribution`, gradients included, for all masks
# and for all numbers that must do no harm.

# %% [markdown]
# ## Moving mass to atoms
#
# C51 moves a distribution of returns, by a reward and a discount, and shares out each piece of
# its mass among the two atoms that enclose the place where it lands ({doc}`/chapters/c51`).
# The plain form is a loop over atoms and batch.
#
# **Profile.** For a batch of 32 nearly all of the time is the price of calls, and for 1024 it is
# memory: the usual form rounds down and up, repairs the pieces that land on an atom, and builds two
# tables of 64-bit indices.
#
# **Derive.** Measured in spacings from the first atom, piece $k$ of row $b$ lands at
#
# $$
# y_{b,k} = \operatorname{clip}\Bigl( \frac{r_b - x_1}{\Delta} + \gamma'_b \frac{x_k}{\Delta},
#     \; 0, \; K - 1 \Bigr) ,
# $$ (atom-position)
#
# an outer product and one number for each row, where $\gamma'_b$ is the discount of its window.
# If $l$ is the whole part of $y$ and $f$ the rest, atom $x_{l+1}$ gets $1 - f$ of the mass and
# $x_{l+2}$ gets $f$. *On* an atom $f$ is 0, so nothing has to be repaired. Only the last atom has
# no neighbour; a column behind it takes its nothing and is cut off. So one table of indices
# serves both halves: the second half is written one column further on. Numbers become indices by
# way of 32 bits, because processors convert many of those at once.


# %% tags=["export"]
def project_atoms(
    prob: Tensor,
    reward: Tensor,
    discount: Tensor,
    value_min: float,
    value_max: float,
) -> Tensor:
    """Compute what ``project_distribution`` returns; it checks finiteness only."""
    batch, num_atoms = prob.shape
    scale = (num_atoms - 1) / (value_max - value_min)  # one over the spacing
    low, high = value_min * scale, value_max * scale
    atoms = torch.linspace(low, high, num_atoms, dtype=prob.dtype, device=prob.device)

    # Where each piece lands, {eq}`atom-position`.
    start = torch.add(-atoms[0], reward, alpha=scale)
    place = torch.outer(discount, atoms).add_(start.unsqueeze(1))
    place.clamp_(0, num_atoms - 1)
    # The atom below it, and what goes to the atom above.
    below = place.int().long()
    above = place.frac_().mul_(prob)
    # What was too far out lies on an edge atom now, so look at where it came from.
    seen = above.sum(1) + start + discount
    check_finite(seen, prob=prob, reward=reward, discount=discount)

    # Both halves are added up, the upper one a column further on. The lower one is what
    # is left, so no mass is lost.
    result = prob.new_zeros(batch, num_atoms + 1)
    result[:, 1:].scatter_add_(1, below, above)
    result.scatter_add_(1, below, torch.sub(prob, above, out=above))
    return result[:, :num_atoms]


# %% [markdown]
# **Prove.** `tests/test_c51.py` holds it to the loop in float64, for pieces that land on an
# atom, between two and outside of all. **Measure.** Beside three other libraries in
# {doc}`/docs/results`.

# %% [markdown]
# ## A memory without waiting for calls
#
# The GRU of {doc}`/chapters/recurrent` has to go step by step: each state depends on the one before in
# a way that no tree of sums can shorten.
#
# **Profile.** With a few episodes side by side each step is some twenty small calls, and twice as many on
# the way back. PyTorch's own layer makes the same calls.
#
# **Derive.** Only two products really have to wait, that with the state and, backwards, that with its
# gradient. All factors of the gradient can be had for all steps at once: with the gates and the candidate of
# {eq}`gru`, and $u_t = U^{\text{new}} h_{t-1} + b^{\text{new}}$,
#
# $$
# \begin{aligned}
# \frac{\partial h_t}{\partial \text{new}_t} &= (1 - g^{\text{keep}}_t) (1 - \tilde h_t^2), \\
# \frac{\partial h_t}{\partial \text{keep}_t} &= (h_{t-1} - \tilde h_t)\, g^{\text{keep}}_t (1 - g^{\text{keep}}_t), \\
# \frac{\partial h_t}{\partial \text{see}_t} &= \frac{\partial h_t}{\partial \text{new}_t}\, u_t\, g^{\text{see}}_t (1 - g^{\text{see}}_t) ,
# \end{aligned}
# $$ (gru-gradient)
#
# each with respect to what stood in the sigmoid or the tanh. The rest is NumPy, whose calls are a few times
# cheaper than PyTorch's.


# %% tags=["export"]
class GRUScan(torch.autograd.Function):
    """The states of a GRU as one node of the graph, with its gradient; on the CPU."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, state: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """Compute the states (T, B, H)."""
        gates, first, matrix, more = (
            x.numpy() for x in (inputs.clone(), state, weight, bias)
        )
        size, across = first.shape[-1], np.ascontiguousarray(matrix.T)
        states = np.empty((len(gates) + 1, *first.shape), gates.dtype)
        states[0] = first
        added = np.empty_like(states[1:])
        for t, gate in enumerate(gates):
            from_state = states[t] @ across + more
            both, new = gate[:, : 2 * size], gate[:, 2 * size :]
            # A sigmoid is a tanh, moved and stretched.
            both += from_state[:, : 2 * size]
            both *= 0.5
            np.tanh(both, out=both)
            both *= 0.5
            both += 0.5
            added[t] = from_state[:, 2 * size :]
            new += both[:, :size] * added[t]
            np.tanh(new, out=new)
            states[t + 1] = new + both[:, size:] * (states[t] - new)
        ctx.kept = states, gates, added, matrix
        return torch.from_numpy(states[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of inputs, state, weight and bias."""
        states, gates, added, matrix = ctx.kept
        reset, stay, new = np.split(gates, 3, -1)
        # The factors {eq}`gru-gradient`.
        by_new = (1 - stay) * (1 - new * new)
        by_stay = (states[:-1] - new) * stay * (1 - stay)
        by_reset = by_new * added * reset * (1 - reset)
        factors = np.stack([by_reset, by_stay, by_new * reset], 2)
        from_state, from_input = np.empty_like(gates), np.empty_like(gates)
        carry, size = np.zeros_like(states[0]), states.shape[-1]
        for t in range(len(gates) - 1, -1, -1):
            carry += grad[t].numpy()
            np.multiply(
                factors[t], carry[:, None], out=from_state[t].reshape(factors[t].shape)
            )
            from_input[t, :, 2 * size :] = by_new[t] * carry
            carry = carry * stay[t] + from_state[t] @ matrix
        from_input[..., : 2 * size] = from_state[..., : 2 * size]
        rows = from_state.reshape(-1, 3 * size)
        parts = (
            from_input,
            carry,
            rows.T @ states[:-1].reshape(-1, size),
            rows.sum(0),
        )
        return tuple(map(torch.from_numpy, parts))


@checked
def gru_scan(
    inputs: Float[Tensor, "T B 3*H"],
    state: Float[Tensor, "B H"],
    weight: Float[Tensor, "3*H H"],
    bias: Float[Tensor, "3*H"],
) -> Float[Tensor, "T B H"]:
    """Return the states that ``gru_step`` makes, step by step, with gradient, fast.

    All tensors are on the CPU, and the result can be differentiated once.

    Args:
        inputs: What the observations add to the two gates and to the candidate.
        state: The states before the first step.
        weight: Matrix of the state, for the same three.
        bias: What is added to them.
    """
    return GRUScan.apply(inputs, state, weight, bias)


# %% [markdown]
# Episodes that end inside of a rollout would stop the scan, or ask for a mask at each step. Cut apart, they are
# sequences of their own, side by side.


# %% tags=["export"]
@checked
def pieces_of(
    over: Bool[Tensor, "T B"],
) -> tuple[Integer[Tensor, "T B"], Integer[Tensor, "T B"]]:
    """Return the place of each step in its piece, and the number of the piece.

    Args:
        over: Whether an episode ended right before a step. There a piece begins, and at
            the first step.
    """
    begins = over.clone()
    begins[0] = True
    time = torch.arange(len(over), device=over.device).unsqueeze(1).expand_as(over)
    since = time - time.masked_fill(~begins, 0).cummax(0).values
    # Pieces are counted through the first environment, then through the next.
    number = begins.t().flatten().cumsum(0).view(over.shape[::-1]).t() - 1
    return since, number


# %%
over = torch.tensor([[0, 0], [0, 0], [1, 0], [0, 1], [0, 0]]).bool()
since, piece = pieces_of(over)
print(since.t().tolist(), piece.t().tolist(), sep="\n")

# %% [markdown]
# Five steps of two environments are four pieces.

# %% tags=["claims"]
assert since.t().tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 0, 1]]
assert piece.t().tolist() == [[0, 0, 1, 1, 1], [2, 2, 2, 3, 3]], "four pieces"

# %% [markdown]
# **Prove.** `tests/test_recurrent.py` holds states and gradients to `gru_step` in float64, with ends of
# episodes inside.

# %% [markdown]
# ## Wide groups in a tree
#
# The sum tree of {doc}`/chapters/replay` has groups of 16 and a root of at most 4096 members; most
# implementations have pairs up to a single sum, and some find one mark after the other.
#
# **Profile.** Where a batch of marks walks down together, nearly all of the time is the price of
# calls: some for each level. Pairs need 20 levels for a million masses.
#
# **Derive.** A group of 16 takes four such levels at once, and adding up 16 numbers costs no more
# than adding up two. Near the top even this does not pay: adding up a few thousand numbers is one
# quick call, and walking down one more level would be several. **Measure.** {doc}`/docs/results`
# has the times.

# %% [markdown]
# ## What well-known implementations of V-trace do
#
# | question | {doc}`/chapters/off_policy` | [scalable_agent](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/vtrace.py#L164-L280) | [rlax](https://github.com/google-deepmind/rlax/blob/4c5d25b2609879d321f5a432cdf88165574e57a7/rlax/_src/vtrace.py#L38-L260) | [torchbeast](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/core/vtrace.py#L92-L139) | [DI-engine](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/vtrace.py#L9-L136) | [TorchRL](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/value/functional.py#L1298-L1383) |
# |---|---|---|---|---|---|---|
# | form | scan in chunks | [scan of the framework](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/vtrace.py#L250-L262) | [scan of the framework](https://github.com/google-deepmind/rlax/blob/4c5d25b2609879d321f5a432cdf88165574e57a7/rlax/_src/vtrace.py#L92-L98) | [loop](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/core/vtrace.py#L118-L120) | [loop](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/vtrace.py#L22-L29) | [loop](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/value/functional.py#L1359-L1366) |
# | end of an episode | two flags | [a discount for each step](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L372) | [a discount for each step](https://github.com/google-deepmind/rlax/blob/4c5d25b2609879d321f5a432cdf88165574e57a7/rlax/_src/vtrace.py#L61) | [a discount for each step](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L253) | [the caller zeroes values](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/policy/impala.py#L317-L319) | [two flags](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/value/functional.py#L1346-L1350) |
# | truncated step | bootstraps from the true successor | [counts as the end](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L372) | as the caller sets the discount | [counts as the end](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L253) | [counts as the end](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/envs/env_wrappers/env_wrappers.py#L1485-L1486) | [bootstraps](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/value/functional.py#L1354-L1356) |
# | $\lambda$ | 0.95, in target and advantage | none | [1, in both](https://github.com/google-deepmind/rlax/blob/4c5d25b2609879d321f5a432cdf88165574e57a7/rlax/_src/vtrace.py#L232-L253) | none | [0.95, in the target only](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/vtrace.py#L22-L45) | none |
# | average of the losses | mean | [sum](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L312-L331) | the caller's | [sum](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L107-L125) | [mean](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/vtrace.py#L133-L135) | [mean](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/a2c.py#L312-L313) |
# | value loss | square | [half the square](https://github.com/google-deepmind/scalable_agent/blob/6c0c8a701990fab9053fb338ede9c915c18fa2b1/experiment.py#L316) | the caller's | [half the square](https://github.com/facebookresearch/torchbeast/blob/0af07b051a2176a8f9fd20c36891ba2bba6bae68/torchbeast/monobeast.py#L108) | [square](https://github.com/opendilab/DI-engine/blob/d0b21d065b2d80317cc16b28a95301be8871d950/ding/rl_utils/vtrace.py#L134) | [smooth L1](https://github.com/pytorch/rl/blob/ae9719f17b1517af5c2523a36c4616f003ee55cf/torchrl/objectives/a2c.py#L274) |
#
# Look at the row "truncated step": three of the five treat a time limit as the end of the task.

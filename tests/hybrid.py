"""Policies, actions and slow float64 references of hybrid actions."""

from __future__ import annotations

import itertools

import numpy as np
import torch
import treetensor.torch as ttorch
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence

# Types with one, no and two arguments. No symmetry, and K differs from A.
MASK = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)


def logit_of(type_logit, mu, sigma):
    args = {"mu": torch.as_tensor(mu), "sigma": torch.as_tensor(sigma)}
    return ttorch.as_tensor(
        {"action_type": torch.as_tensor(type_logit), "action_args": args}
    )


def action_of(action_type, action_args):
    return ttorch.as_tensor(
        {
            "action_type": torch.as_tensor(action_type),
            "action_args": torch.as_tensor(action_args),
        }
    )


def leaves_of(logit) -> list[Tensor]:
    return [logit.action_type, logit.action_args.mu, logit.action_args.sigma]


def random_logit(batch, mask, seed, dtype=torch.float64, grad=False):
    generator = torch.Generator().manual_seed(seed)
    num_types, num_args = mask.shape
    sizes = (num_types, num_args, num_args)
    z, mu, w = (
        torch.randn(batch, size, generator=generator, dtype=torch.float64)
        for size in sizes
    )
    leaves = [x.to(dtype).requires_grad_(grad) for x in (2 * z, mu, (0.5 * w).exp())]
    return logit_of(*leaves)


@st.composite
def cases(draw_from):
    """A mask with any rows, a batch of policies (two of them) and of actions."""
    num_types = draw_from(st.integers(1, 4))
    num_args = draw_from(st.integers(1, 4))
    row = st.lists(st.booleans(), min_size=num_args, max_size=num_args)
    rows = st.lists(row, min_size=num_types, max_size=num_types)
    mask = torch.tensor(draw_from(rows), dtype=torch.bool)
    batch, seed = draw_from(st.integers(1, 4)), draw_from(st.integers(0, 2**16))
    logit = random_logit(batch, mask, seed, grad=True)
    other = random_logit(batch, mask, seed + 1, grad=True)
    generator = torch.Generator().manual_seed(seed)
    action_type = torch.randint(0, num_types, (batch,), generator=generator)
    noise = torch.randn(batch, num_args, generator=generator, dtype=torch.float64)
    return mask, logit, other, action_of(action_type, noise)


# --- References: torch.distributions, one sample and one argument at a time ---------


def parts(logit, b):
    """The distribution of the type and those of the arguments at one state."""
    type_dist = Categorical(logits=logit.action_type[b])
    args = logit.action_args
    pairs = zip(args.mu[b], args.sigma[b], strict=True)
    return type_dist, [Normal(mu, sigma) for mu, sigma in pairs]


def used(mask, k):
    return [j for j, counts in enumerate(mask[k].tolist()) if counts]


def log_prob_reference(logit, mask, action):
    rows = []
    for b, k in enumerate(action.action_type.tolist()):
        type_dist, arg_dists = parts(logit, b)
        row = type_dist.log_prob(torch.tensor(k))
        for j in used(mask, k):
            row = row + arg_dists[j].log_prob(action.action_args[b, j])
        rows.append(row)
    return torch.stack(rows)


def entropy_reference(logit, mask):
    rows = []
    for b in range(len(logit.action_type)):
        type_dist, arg_dists = parts(logit, b)
        row = type_dist.entropy()
        for k, p in enumerate(type_dist.probs):
            for j in used(mask, k):
                row = row + p * arg_dists[j].entropy()
        rows.append(row)
    return torch.stack(rows)


def kl_reference(logit, other, mask):
    rows = []
    for b in range(len(logit.action_type)):
        (type_dist, arg_dists), (type_other, arg_others) = (
            parts(tree, b) for tree in (logit, other)
        )
        row = kl_divergence(type_dist, type_other)
        for k, p in enumerate(type_dist.probs):
            for j in used(mask, k):
                row = row + p * kl_divergence(arg_dists[j], arg_others[j])
        rows.append(row)
    return torch.stack(rows)


def assert_same(actual, expected, *leaves):
    """Compare values, and the gradients of a weighted sum of them."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    weights = torch.linspace(1.0, 2.0, len(actual), dtype=torch.float64)
    grads = []
    for result in (actual, expected):
        total = (result * weights).sum()
        found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
        grads.append([torch.zeros(()) if g is None else g for g in found])
    for left, right in zip(*grads, strict=True):
        left, right = torch.broadcast_tensors(left, right)
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9, check_dtype=False)


def quadrature(logit, mask):
    """Enumerate the types of one state and integrate over the arguments they use.

    Returns actions and weights: a sum of f(action) * weight is the expectation of f.
    Arguments that do not count are NaN. Gauss-Hermite, exact for polynomials.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    prob = torch.softmax(logit.action_type[0].detach(), 0)
    types, rows, totals = [], [], []
    for k, p in enumerate(prob.tolist()):
        columns = used(mask, k)
        for index in itertools.product(range(len(nodes)), repeat=len(columns)):
            row = torch.full((mask.shape[1],), torch.nan, dtype=torch.float64)
            total = p
            for j, i in zip(columns, index, strict=True):
                mu, sigma = (logit.action_args[key][0, j] for key in ("mu", "sigma"))
                row[j] = (mu + sigma * nodes[i]).detach()
                total *= weights[i]
            types.append(k)
            rows.append(row)
            totals.append(total)
    action = action_of(types, torch.stack(rows))
    return action, torch.tensor(totals, dtype=torch.float64)


def repeated(logit, batch):
    return logit_of(*(leaf.detach().expand(batch, -1) for leaf in leaves_of(logit)))


# --- Bad input ----------------------------------------------------------------------


def good():
    return {
        "action_type": torch.zeros(2, 3),
        "action_args": {"mu": torch.zeros(2, 4), "sigma": torch.ones(2, 4)},
    }

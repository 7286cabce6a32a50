"""Policies, actions and slow float64 references of hybrid actions."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence

from literate_rl.nets.hybrid_action import as_tree

# Types with one, no and two arguments. No symmetry, and K differs from A.
MASK = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)


def logit_of(type_logit, mu, sigma):
    args = {"mu": torch.as_tensor(mu), "sigma": torch.as_tensor(sigma)}
    return as_tree({"action_type": torch.as_tensor(type_logit), "action_args": args})


def action_of(action_type, action_args):
    return as_tree(
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


def mean_reference(of, mask, *logits):
    """Add up what ``of`` says of the type and of all arguments, as often as they count.

    It says it of one distribution, or of one of each tree.
    """
    rows = []
    for b in range(len(logits[0].action_type)):
        types, args = zip(*(parts(tree, b) for tree in logits), strict=True)
        row, of_args = of(*types), [of(*pair) for pair in zip(*args, strict=True)]
        for k, p in enumerate(types[0].probs):
            row = row + sum(p * of_args[j] for j in used(mask, k))
        rows.append(row)
    return torch.stack(rows)


def entropy_reference(logit, mask):
    return mean_reference(lambda x: x.entropy(), mask, logit)


def kl_reference(logit, other, mask):
    return mean_reference(kl_divergence, mask, logit, other)


def assert_same(actual, expected, *leaves):
    """Compare values, and the gradients of a weighted sum of them."""
    weights = torch.linspace(1.0, 2.0, actual.numel(), dtype=torch.float64)
    found = [
        (
            x,
            torch.autograd.grad(
                (x * weights.view_as(x)).sum(),
                leaves,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            ),
        )
        for x in (actual, expected)
    ]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)

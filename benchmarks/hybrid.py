"""Sample, log-probability and entropy of hybrid actions beside torch.distributions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import treetensor.torch as ttorch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from benchmarks.harness import SEED, Case, Goal
from literate_rl.hybrid_action import HybridDistribution, draw
from literate_rl.workshop.fast import hybrid_terms, log_softmax

ROUNDS = 51
TYPES, ARGUMENTS = 3, 3
GOALS = {8: 5.0, 64: 5.0, 256: 5.0, 4096: 2.0}
MASK = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.bool)

Answer = tuple[Tensor, Tensor, Tensor, Tensor]


def distributions_form(logit: ttorch.Tensor, validate: bool) -> Answer:
    """Sample and judge as PPOxFamily's tutorial samples, with the mask added."""
    prob = torch.softmax(logit.action_type, dim=-1)
    types = Categorical(probs=prob, validate_args=validate)
    normal = Normal(
        logit.action_args.mu, logit.action_args.sigma, validate_args=validate
    )
    action_type = types.sample()
    action_args = Independent(normal, 1, validate_args=validate).sample()

    used = MASK[action_type]
    log_density = normal.log_prob(action_args)
    log_prob = types.log_prob(action_type)
    log_prob = log_prob + torch.where(used, log_density, 0.0).sum(-1)
    entropy = types.entropy() + (prob @ MASK.float() * normal.entropy()).sum(-1)
    return action_type, action_args, log_prob, entropy


def plain_form(logit: ttorch.Tensor) -> Answer:
    """Sample and judge with the class of the chapter."""
    policy = HybridDistribution(logit, MASK)
    action = policy.sample()
    return (
        action.action_type,
        action.action_args,
        policy.log_prob(action),
        policy.entropy(),
    )


def kernel(logit: ttorch.Tensor) -> Answer:
    """Sample as the class does, and judge with the learner's kernel."""
    z, mu, sigma = logit.action_type, logit.action_args.mu, logit.action_args.sigma
    action = draw(log_softmax(z).exp(), mu, sigma, None)
    action_type, action_args = action.action_type, action.action_args
    return (
        action_type,
        action_args,
        *hybrid_terms(z, mu, sigma, MASK, action_type, action_args),
    )


def policy(batch: int) -> ttorch.Tensor:
    """Return what a network might say of a batch of states."""
    generator = torch.Generator().manual_seed(SEED)
    mu = torch.randn(batch, ARGUMENTS, generator=generator)
    sigma = torch.rand(batch, ARGUMENTS, generator=generator) + 0.5
    logits = torch.randn(batch, TYPES, generator=generator)
    return ttorch.as_tensor(
        {"action_type": logits, "action_args": {"mu": mu, "sigma": sigma}}
    )


def check(logit: ttorch.Tensor) -> None:
    """Assert that the forms judge their actions as float64 formulas do."""
    log_p = logit.action_type.double().log_softmax(-1)
    mu, sigma = logit.action_args.mu.double(), logit.action_args.sigma.double()
    unit = 0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
    for answer in (distributions_form(logit, True), plain_form(logit), kernel(logit)):
        action_type, action_args, log_prob, entropy = answer
        z = (action_args.double() - mu) / sigma
        density = -0.5 * z.square() - sigma.log() - unit
        taken = log_p.gather(1, action_type.unsqueeze(1)).squeeze(1)
        expected = taken + (density * MASK[action_type]).sum(-1)
        torch.testing.assert_close(log_prob.double(), expected, rtol=1e-5, atol=1e-5)
        args_entropy = 0.5 + unit + sigma.log()
        expected = -(log_p.exp() * log_p).sum(-1)
        expected += (log_p.exp() @ MASK.double() * args_entropy).sum(-1)
        torch.testing.assert_close(entropy.double(), expected, rtol=1e-5, atol=1e-5)


def cases() -> Iterator[Case]:
    """Yield the batch sizes, each after its check."""
    for size, goal in GOALS.items():
        logit = policy(size)
        check(logit)
        yield Case(
            name=f"B = {size}",
            functions={
                "torch.distributions": lambda x=logit: distributions_form(x, True),
                "the same, not validated": lambda x=logit: distributions_form(x, False),
                "HybridDistribution": lambda x=logit: plain_form(x),
                "hybrid_terms": lambda x=logit: kernel(x),
            },
            peer="torch.distributions",
            goals={"hybrid_terms": Goal(at_least=goal)},
        )

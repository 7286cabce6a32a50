"""The PPO policy error, forward and backward, against the way DI-engine writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributions import Categorical

from benchmarks.harness import SEED, Case, Goal
from literate_rl.maths.ppo_error import (
    ppo_info,
    ppo_policy_data,
    ppo_policy_error,
    ppo_policy_loss,
)

ROUNDS = 101
ACTIONS = 6

PolicyError = Callable[[ppo_policy_data], tuple[ppo_policy_loss, ppo_info]]


def di_engine_form(data: ppo_policy_data) -> tuple[ppo_policy_loss, ppo_info]:
    """Compute the same error as DI-engine does: distributions that check arguments.

    Both policies become ``Categorical`` objects, missing weights become ones, and the
    backward pass is autograd's.
    """
    logit_new, logit_old, action, adv, weight = data
    if weight is None:
        weight = torch.ones_like(adv)
    new = Categorical(logits=logit_new, validate_args=True)
    old = Categorical(logits=logit_old, validate_args=True)
    log_prob_new, log_prob_old = new.log_prob(action), old.log_prob(action)

    entropy_loss = (new.entropy() * weight).mean()
    ratio = torch.exp(log_prob_new - log_prob_old)
    unclipped = ratio * adv
    clipped = ratio.clamp(0.8, 1.2) * adv
    policy_loss = (-torch.min(unclipped, clipped) * weight).mean()

    with torch.no_grad():
        approx_kl = (log_prob_old - log_prob_new).mean().item()
        outside = ratio.gt(1.2) | ratio.lt(0.8)
        clipfrac = outside.float().mean().item()
    return ppo_policy_loss(policy_loss, entropy_loss), ppo_info(approx_kl, clipfrac)


def batch(size: int) -> ppo_policy_data:
    """Return a batch from the middle of training: part of the ratios are clipped."""
    generator = torch.Generator().manual_seed(SEED)
    logit_old = torch.randn(size, ACTIONS, generator=generator)
    logit_new = logit_old + 0.2 * torch.randn(size, ACTIONS, generator=generator)
    return ppo_policy_data(
        logit_new=logit_new.requires_grad_(),
        logit_old=logit_old,
        action=torch.randint(0, ACTIONS, (size,), generator=generator),
        adv=torch.randn(size, generator=generator),
        weight=None,
    )


def gradient(error: PolicyError, data: ppo_policy_data) -> Tensor:
    """Return the gradient of the total loss: one forward and one backward pass."""
    loss, _ = error(data)
    total = loss.policy_loss - 0.01 * loss.entropy_loss
    (grad,) = torch.autograd.grad(total, data.logit_new)
    return grad


def check(data: ppo_policy_data) -> None:
    """Assert that both forms agree, in values and in gradients scaled by the batch."""
    expected, expected_info = di_engine_form(data)
    expected_grad = len(data.adv) * gradient(di_engine_form, data)
    loss, info = ppo_policy_error(data)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(info, expected_info, rtol=1e-4, atol=1e-6)
    grad = len(data.adv) * gradient(ppo_policy_error, data)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-6, atol=1e-6)


def cases() -> Iterator[Case]:
    """Yield the batch sizes, each after its check."""
    forms = {
        "DI-engine's form": di_engine_form,
        "ppo_policy_error": ppo_policy_error,
    }
    for size in (64, 256, 4096, 65536):
        data = batch(size)
        check(data)
        yield Case(
            name=f"B = {size}",
            functions={
                name: lambda error=error, data=data: gradient(error, data)
                for name, error in forms.items()
            },
            peer="DI-engine's form",
            goals={"ppo_policy_error": Goal(at_least=1.0)},
        )

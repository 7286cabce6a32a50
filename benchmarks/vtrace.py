"""V-trace, its targets and its whole loss, against the loops of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical

from benchmarks.harness import SEED, Case, Goal
from literate_rl.maths.off_policy import (
    vtrace,
    vtrace_data,
    vtrace_error_discrete_action,
    vtrace_loss,
)

ROUNDS = 31
GAMMA = 0.99
ACTIONS = 6
SIZES = ((128, 64), (512, 256))


class Steps(NamedTuple):
    """An unroll; terminated steps are marked, and nothing is truncated."""

    log_ratio: Tensor
    reward: Tensor
    value: Tensor  # (T + 1, B)
    terminated: Tensor


def di_engine_targets(steps: Steps, lambda_: float) -> tuple[Tensor, Tensor]:
    """Compute targets and advantages as DI-engine does, without an end.

    A product of deltas and weights, a loop that writes rows, a second pass for the
    advantage.
    """
    ratio = steps.log_ratio.exp()
    rho, c, rho_pg = (ratio.clamp(max=1.0) for _ in range(3))
    value, reward = steps.value, steps.reward
    delta = rho * (reward + GAMMA * value[1:] - value[:-1])
    factor = GAMMA * lambda_
    target = value[:-1].clone()
    item = torch.zeros_like(value[0])
    for t in reversed(range(len(reward))):
        item = delta[t] + factor * c[t] * item
        target[t] += item
    behind = torch.cat([target[1:], value[-1:]])
    return target, rho_pg * (reward + GAMMA * behind - value[:-1])


def torchbeast_targets(
    steps: Steps, lambda_: float, flip: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute them as torchbeast does: discounts, a list of rows, a stack.

    It has no decay; lambda is folded into the ratios of c. RLlib does the same, but
    turns the rows around when they are stacked already (``flip``).
    """
    discount = GAMMA * (~steps.terminated).float()
    ratio = steps.log_ratio.exp()
    rho, c = ratio.clamp(max=1.0), lambda_ * ratio.clamp(max=1.0)
    value, bootstrap = steps.value[:-1], steps.value[-1]
    behind = torch.cat([value[1:], bootstrap.unsqueeze(0)])
    delta = rho * (steps.reward + discount * behind - value)
    carried, rows = torch.zeros_like(bootstrap), []
    for t in range(len(discount) - 1, -1, -1):
        carried = delta[t] + discount[t] * c[t] * carried
        rows.append(carried)
    if not flip:
        rows.reverse()
    surplus = torch.stack(rows)
    target = (surplus.flip(0) if flip else surplus) + value
    behind = torch.cat([target[1:], bootstrap.unsqueeze(0)])
    adv = ratio.clamp(max=1.0) * (steps.reward + discount * behind - value)
    return target, adv


def our_targets(steps: Steps, lambda_: float) -> tuple[Tensor, Tensor]:
    """Call this package."""
    never = torch.zeros_like(steps.terminated)
    return vtrace(
        steps.log_ratio,
        steps.reward,
        steps.value[:-1],
        steps.value[1:],
        steps.terminated,
        never,
        GAMMA,
        lambda_,
    )


def di_engine_loss(data: vtrace_data) -> vtrace_loss:
    """Compute the losses as DI-engine does: checked distributions, autograd's pass."""
    weight = torch.ones_like(data.reward)
    with torch.no_grad():
        behaviour = Categorical(logits=data.behaviour_output, validate_args=True)
        target = Categorical(logits=data.target_output, validate_args=True)
        log_ratio = target.log_prob(data.action) - behaviour.log_prob(data.action)
        steps = Steps(log_ratio, data.reward, data.value, torch.empty(0))
        returns, adv = di_engine_targets(steps, 1.0)
    policy = Categorical(logits=data.target_output, validate_args=True)
    policy_loss = -(policy.log_prob(data.action) * adv * weight).mean()
    error = F.mse_loss(data.value[:-1], returns, reduction="none")
    entropy = policy.entropy() * weight
    return vtrace_loss(policy_loss, (error * weight).mean(), entropy.mean())


def torchbeast_loss(data: vtrace_data) -> vtrace_loss:
    """Compute the losses as torchbeast does, with means and without its factor 1/2."""

    def log_prob(logit: Tensor) -> Tensor:
        flat = F.log_softmax(logit.flatten(0, 1), -1)
        taken = F.nll_loss(flat, data.action.flatten(), reduction="none")
        return -taken.view_as(data.action)

    log_ratio = log_prob(data.target_output) - log_prob(data.behaviour_output)
    with torch.no_grad():
        end = torch.zeros_like(data.action, dtype=torch.bool)
        steps = Steps(log_ratio, data.reward, data.value, end)
        returns, adv = torchbeast_targets(steps, 1.0)
    policy_loss = -(log_prob(data.target_output) * adv).mean()
    prob, log = F.softmax(data.target_output, -1), F.log_softmax(data.target_output, -1)
    entropy = -(prob * log).sum(-1).mean()
    return vtrace_loss(
        policy_loss, (returns - data.value[:-1]).square().mean(), entropy
    )


def our_loss(data: vtrace_data) -> vtrace_loss:
    """Call this package."""
    return vtrace_error_discrete_action(data, GAMMA, 1.0)


def steps_of(size: tuple[int, int], end: float) -> Steps:
    """Return random steps."""
    generator = torch.Generator().manual_seed(SEED)
    log_ratio, reward = torch.randn(2, *size, generator=generator).unbind()
    value = torch.randn(size[0] + 1, size[1], generator=generator)
    terminated = torch.rand(size, generator=generator) < end
    return Steps(0.3 * log_ratio, reward, value, terminated)


def batch(size: tuple[int, int]) -> vtrace_data:
    """Return a batch whose policies are close to each other."""
    generator = torch.Generator().manual_seed(SEED)
    old = torch.randn(*size, ACTIONS, generator=generator)
    new = old + 0.3 * torch.randn(*size, ACTIONS, generator=generator)
    steps = steps_of(size, end=0.0)
    return vtrace_data(
        new.requires_grad_(),
        old,
        torch.randint(ACTIONS, size, generator=generator),
        steps.value.requires_grad_(),
        steps.reward,
        None,
    )


def gradients(
    loss: Callable[[vtrace_data], vtrace_loss], data: vtrace_data
) -> tuple[Tensor, ...]:
    """Return the gradients of the total loss: one forward and one backward pass."""
    parts = loss(data)
    total = parts.policy_loss + 0.5 * parts.value_loss - 0.01 * parts.entropy_loss
    return torch.autograd.grad(total, (data.target_output, data.value))


def target_cases() -> Iterator[Case]:
    """Yield the sizes of the targets beside one peer at a time, after their check."""
    peers = {
        "DI-engine's form": di_engine_targets,
        "torchbeast's form": torchbeast_targets,
        "RLlib's form": partial(torchbeast_targets, flip=True),
    }
    for size in SIZES:
        steps = steps_of(size, end=0.0)
        # Without an end and with lambda 1 all forms agree.
        double = Steps(*(x.double() if x.is_floating_point() else x for x in steps))
        expected = torchbeast_targets(double, 1.0)
        for name, form in (peers | {"vtrace": our_targets}).items():
            for got, wanted in zip(form(steps, 1.0), expected, strict=True):
                difference = (got.double() - wanted).abs().max()
                assert difference < 1e-4, f"{name} differs by {difference:.1e}"
        # With ends those that know them agree.
        ended = steps_of(size, end=0.02)
        for got, wanted in zip(
            our_targets(ended, 1.0), torchbeast_targets(ended, 1.0), strict=True
        ):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)
        for peer, form in peers.items():
            yield Case(
                name=f"targets and advantages, T = {size[0]}, B = {size[1]}, {peer}",
                functions={
                    peer: partial(form, steps, 1.0),
                    "vtrace": partial(our_targets, steps, 1.0),
                },
                peer=peer,
                goals={"vtrace": Goal(at_least=5.0)},
            )


def loss_cases() -> Iterator[Case]:
    """Yield the sizes of the losses, beside one peer at a time."""
    peers = {
        "DI-engine's form": (di_engine_loss, 4.0),
        "torchbeast's form": (torchbeast_loss, 6.0),
    }
    for size in SIZES:
        data = batch(size)
        scale = data.reward.numel()
        for peer, (form, goal) in peers.items():
            torch.testing.assert_close(our_loss(data), form(data), rtol=1e-5, atol=1e-5)
            ours, theirs = gradients(our_loss, data), gradients(form, data)
            for got, wanted in zip(ours, theirs, strict=True):
                torch.testing.assert_close(
                    scale * got, scale * wanted, rtol=1e-5, atol=1e-4
                )
            yield Case(
                name=f"loss and gradient, T = {size[0]}, B = {size[1]}, {peer}",
                functions={
                    peer: lambda form=form, data=data: gradients(form, data),
                    "vtrace_error_discrete_action": lambda data=data: gradients(
                        our_loss, data
                    ),
                },
                peer=peer,
                goals={"vtrace_error_discrete_action": Goal(at_least=goal)},
            )


def cases() -> Iterator[Case]:
    """Yield all cases, each after its check."""
    yield from target_cases()
    yield from loss_cases()

"""Networks that several chapters build: boxes, densities and modes."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from worlds import left_alone, modes, moody

from literate_rl.ground.networks import Stretch, eval_mode, squashed_log_prob


@pytest.mark.equation("stable-jacobian")
def test_the_jacobian_is_exact_for_large_u():
    # log(1 - tanh(u)^2) = log 4 - 2 u, less than e^-40 for u = 20.
    u = torch.tensor([[10.0], [20.0], [-20.0], [80.0]], requires_grad=True)
    zero, one = torch.zeros(4, 1), torch.ones(1)
    log_prob = squashed_log_prob(u, u.detach(), zero, one)
    jacobian = -log_prob - 0.5 * math.log(2 * math.pi)
    expected = math.log(4) - 2 * u.detach().abs().squeeze(-1)
    torch.testing.assert_close(jacobian, expected, rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(jacobian.sum(), u)
    torch.testing.assert_close(grad, -2 * u.detach().sign())


def test_undo_is_the_inverse_as_far_as_the_digits_tell():
    squash = Stretch([-2.0, 0.0], [2.0, 1.0])
    u = torch.tensor([[0.0, 3.0], [-5.0, 1e-4], [7.0, -2.0]])
    torch.testing.assert_close(squash.undo(squash(u)), u, rtol=0.05, atol=1e-6)
    edge = squash.undo(torch.tensor([[2.0, 0.0]]))
    assert edge.flatten().tolist() == pytest.approx([8.66, -8.66], abs=0.01)
    (grad,) = torch.autograd.grad(squash(u.requires_grad_()).sum(), u)
    assert grad.isfinite().all()


# --- Modes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [lambda net: net, nn.DataParallel, partial(torch.compile, backend="eager")],
    ids=["plain", "parallel", "compiled"],
)
def test_each_part_gets_its_own_mode_back_also_after_an_error(wrap):
    net = wrap(moody(4, 2))

    def fail():
        with eval_mode(net):
            with eval_mode(net):
                pass  # inside of the block there is nothing to switch
            assert not any(modes(net))
            raise KeyError

    for _ in range(2):
        with left_alone(net), pytest.raises(KeyError):
            fail()

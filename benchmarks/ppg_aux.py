"""An auxiliary phase of PPG beside CleanRL's, at equal network and minibatch.

The limit is what the matrix products cost: forward and backward of the same
minibatches, with a sum as the loss and no optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from benchmarks.harness import SEED, Case, Goal
from literate_rl.advantages import lambda_returns
from literate_rl.disjoint_network import DisjointPolicyValueNetwork, EncodingNetwork
from literate_rl.ppg import (
    MID,
    ConvolutionalEncodingNetwork,
    PPGAuxAlgorithm,
    PPGAuxOptions,
    PPGAuxPhaseLoss,
    PPGConfig,
    PPGRolloutInfo,
    TimeStep,
)

ROUNDS = 9
STEPS, COPIES, EPOCHS = 32, 64, 2
CONFIG = PPGConfig(num_steps=STEPS)
PICTURE = ConvolutionalEncodingNetwork
# Observations, encoder, chunks of a minibatch.
CASES = {
    "vectors, 128 samples": ((8,), EncodingNetwork, 4),
    "vectors, 1024 samples": ((8,), EncodingNetwork, 32),
    "pictures 3 x 7 x 7, 1024 samples": ((3, 7, 7), PICTURE, 32),
    "pictures 3 x 16 x 16, 128 samples": ((3, 16, 16), PICTURE, 4),
}


def half_squared(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (x - y).square()


def build(
    shape: tuple[int, ...], encoder: Callable[..., nn.Module], size: int
) -> PPGAuxAlgorithm:
    """Return an auxiliary phase whose buffer is full."""
    torch.manual_seed(SEED)
    specs = spaces.Box(-1, 1, shape), spaces.Discrete(15)
    network = DisjointPolicyValueNetwork(*specs, encoder, True)
    options = PPGAuxOptions(True, 1, STEPS, size, EPOCHS)
    aux = PPGAuxAlgorithm(
        *specs,
        config=CONFIG,
        dual_actor_value_network=network,
        aux_options=options,
    )
    aux.loss = PPGAuxPhaseLoss(half_squared, 1.0, CONFIG.gamma, CONFIG.lambda_)
    for _ in range(STEPS):
        reward, value, next_value = torch.randn(3, COPIES)
        info = PPGRolloutInfo(
            (torch.randn(COPIES, 15),),
            torch.zeros(COPIES),
            (),
            value,
            (),
            torch.full((COPIES,), MID),
            torch.ones(COPIES),
            reward,
            (),
            next_value,
        )
        aux.observe_for_aux_replay((torch.rand(COPIES, *shape), info))
    return aux


def stored(aux: PPGAuxAlgorithm) -> tuple[Tensor, Tensor]:
    """Return observations (T, C, *) and returns (T, C), as CleanRL stores them."""
    obs, info = aux.chunks()
    never = torch.zeros_like(info.reward, dtype=torch.bool)
    rates = CONFIG.gamma, CONFIG.lambda_
    return obs, lambda_returns(info.reward, info.next_value, never, never, *rates)


def peer_loss(
    network: DisjointPolicyValueNetwork, obs: Tensor, target: Tensor, old: Tensor
) -> Tensor:
    """Return the joint loss of a minibatch, flattened, from checked distributions."""
    (new, value, aux), _ = network(obs.flatten(0, 1))
    clone = kl_divergence(Categorical(logits=old.flatten(0, 1)), new).mean()
    errors = [0.5 * ((x - target.flatten()) ** 2).mean() for x in (value, aux)]
    return sum(errors) + clone


def peer_phase(
    network: DisjointPolicyValueNetwork,
    optimizer: torch.optim.Optimizer,
    obs: Tensor,
    target: Tensor,
    size: int,
) -> None:
    """Run a phase as CleanRL arranges it: snapshot, epochs of whole rollouts, Adam."""
    old = torch.zeros(STEPS, COPIES, 15)
    for start in range(0, COPIES, size):
        part = slice(start, start + size)
        with torch.no_grad():
            (policy, _, _), _ = network(obs[:, part].flatten(0, 1))
        old[:, part] = policy.logits.unflatten(0, (STEPS, -1))
    for _ in range(EPOCHS):
        for part in torch.randperm(COPIES).split(size):
            loss = peer_loss(network, obs[:, part], target[:, part], old[:, part])
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


def own_phase(
    aux: PPGAuxAlgorithm, buffer: list[tuple[Tensor, PPGRolloutInfo]]
) -> None:
    aux.buffer = list(buffer)
    aux.train_iter()


def products(network: DisjointPolicyValueNetwork, obs: Tensor, size: int) -> None:
    """Pass the same minibatches forward and backward, and do nothing else."""
    for _ in range(EPOCHS):
        for part in torch.randperm(COPIES).split(size):
            (rows, value, aux), _ = network.heads(obs[:, part].flatten(0, 1))
            (rows[0].sum() + value.sum() + aux.sum()).backward()


def check(aux: PPGAuxAlgorithm) -> None:
    """Assert that both forms have the same loss and the same gradient."""
    obs, target = stored(aux)
    _, info = aux.chunks()
    parameters = aux.parameters
    inputs = TimeStep(info.step_type, info.reward, info.discount, obs)
    loss = aux.calc_loss(aux.train_step(inputs, (), info).info).loss.mean()
    expected = peer_loss(aux.network, obs, target, info.action_distribution[0])
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        *(torch.autograd.grad(x, parameters) for x in (loss, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def cases() -> Iterator[Case]:
    """Yield networks and minibatches, each after its check."""
    for name, (shape, encoder, size) in CASES.items():
        aux, other, third = (build(shape, encoder, size) for _ in range(3))
        check(aux)
        obs, target = stored(other)
        adam = torch.optim.Adam(other.network.parameters(), 5e-4, eps=1e-8)
        own, peer = "PPGAuxAlgorithm", "CleanRL's arrangement"
        yield Case(
            name=name,
            functions={
                peer: partial(peer_phase, other.network, adam, obs, target, size),
                own: partial(own_phase, aux, list(aux.buffer)),
                "limit: matrix products": partial(products, third.network, obs, size),
            },
            peer=peer,
            goals={own: Goal(at_least=2.0)},
        )

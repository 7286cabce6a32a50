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
from literate_rl.learners.ppg import AuxiliaryPhase
from literate_rl.learners.ppg_learner import Chunks, PhasicNetwork, PPGConfig
from literate_rl.nets.disjoint_network import (
    DisjointPolicyValueNetwork,
    EncodingNetwork,
)
from literate_rl.nets.encoders import ConvolutionalEncodingNetwork
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import Policy

ROUNDS = 9
STEPS, COPIES, EPOCHS, ACTIONS = 32, 64, 2, 15
PICTURE = ConvolutionalEncodingNetwork
# Observations, encoder, chunks of a minibatch.
CASES: dict[str, tuple[tuple[int, ...], Callable[..., nn.Module], int]] = {
    "vectors, 128 samples": ((8,), EncodingNetwork, 4),
    "vectors, 1024 samples": ((8,), EncodingNetwork, 32),
    "pictures 3 x 7 x 7, 1024 samples": ((3, 7, 7), PICTURE, 32),
    "pictures 3 x 16 x 16, 128 samples": ((3, 16, 16), PICTURE, 4),
}
PEER, PLAIN = "CleanRL's arrangement", "AuxiliaryPhase"


def build(
    shape: tuple[int, ...],
    encoder: Callable[..., nn.Module],
    size: int,
) -> AuxiliaryPhase:
    """Return an auxiliary phase whose buffer is full."""
    torch.manual_seed(SEED)
    specs = spaces.Box(-1, 1, shape), spaces.Discrete(ACTIONS)
    network = PhasicNetwork(DisjointPolicyValueNetwork(*specs, encoder, True))
    config = PPGConfig(num_steps=STEPS, aux_batch_size=size, aux_epochs=EPOCHS)
    policy = Policy(network, CategoricalActions(ACTIONS))
    aux = AuxiliaryPhase(policy, config)
    obs, target = torch.rand(STEPS, COPIES, *shape), torch.randn(STEPS, COPIES)
    aux.buffer = [Chunks(obs, target, torch.randn(STEPS, COPIES, ACTIONS))]
    return aux


def peer_loss(
    network: DisjointPolicyValueNetwork, obs: Tensor, target: Tensor, old: Tensor
) -> Tensor:
    """Return the joint loss of a minibatch, flattened, from checked distributions."""
    (new, value, aux), _ = network(obs.flatten(0, 1))
    clone = kl_divergence(Categorical(logits=old.flatten(0, 1)), new).mean()
    errors = [((x - target.flatten()) ** 2).mean() for x in (value, aux)]
    return sum(errors) + clone


def peer_phase(
    network: DisjointPolicyValueNetwork,
    optimizer: torch.optim.Optimizer,
    obs: Tensor,
    target: Tensor,
    size: int,
) -> None:
    """Run a phase as CleanRL arranges it: snapshot, epochs of whole rollouts, Adam."""
    old = torch.zeros(STEPS, COPIES, ACTIONS)
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


def own_phase(aux: AuxiliaryPhase, buffer: list[Chunks]) -> None:
    aux.buffer = list(buffer)
    aux.run()


def products(network: DisjointPolicyValueNetwork, obs: Tensor, size: int) -> None:
    """Pass the same minibatches forward and backward, and do nothing else."""
    for _ in range(EPOCHS):
        for part in torch.randperm(COPIES).split(size):
            (rows, value, aux), _ = network.heads(obs[:, part].flatten(0, 1))
            (rows[0].sum() + value.sum() + aux.sum()).backward()


def check(aux: AuxiliaryPhase) -> None:
    """Assert that both have the same loss and the same gradient."""
    (data,) = aux.buffer
    row, value, aux_value = aux.network.three_heads(data.obs)
    kl = aux.policy.actions.kl(data.row, row)
    loss = aux.loss(value, aux_value, data.target, kl)[0].mean()
    expected = peer_loss(aux.network.network, data.obs, data.target, data.row)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        *(torch.autograd.grad(x, aux.parameters) for x in (loss, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def cases() -> Iterator[Case]:
    """Yield networks and minibatches, each after its check."""
    for name, (shape, encoder, size) in CASES.items():
        aux, second, third = (build(shape, encoder, size) for _ in range(3))
        check(aux)
        (data,) = aux.buffer
        network, bare = second.network.network, third.network.network
        adam = torch.optim.Adam(network.parameters(), 5e-4, eps=1e-8)
        yield Case(
            name=name,
            functions={
                PEER: partial(peer_phase, network, adam, data.obs, data.target, size),
                PLAIN: partial(own_phase, aux, list(aux.buffer)),
                "limit: matrix products": partial(products, bare, data.obs, size),
            },
            peer=PEER,
            goals={PLAIN: Goal(at_least=1.0)},
        )

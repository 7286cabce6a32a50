"""The disjoint network: its outputs, where its gradients go, and two processes."""

from __future__ import annotations

import datetime
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gymnasium import spaces
from torch.distributions import Categorical, Normal
from torch.nn.parallel import DistributedDataParallel

from literate_rl.nets.disjoint_network import (
    DisjointPolicyValueNetwork,
    EncodingNetwork,
)
from literate_rl.nets.recurrent import RecurrentEncodingNetwork

BOX, THREE = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
HYBRID = spaces.Tuple(
    (THREE, spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.Box(-1, 1, (2, 2)))))
)
ARRANGEMENTS = ("dual", "shared")


def network(
    arrangement: str = "dual",
    observation: spaces.Space[Any] = BOX,
    action: spaces.Space[Any] = THREE,
    **options: Any,
) -> DisjointPolicyValueNetwork:
    sharing = arrangement == "shared"
    return DisjointPolicyValueNetwork(
        observation, action, is_sharing_encoder=sharing, **options
    )


def has_gradient(module: torch.nn.Module) -> bool:
    return any(
        p.grad is not None and bool((p.grad != 0).any()) for p in module.parameters()
    )


# --- Outputs --------------------------------------------------------------------------


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_nests_give_the_documented_triples(arrangement):
    nest = spaces.Dict(x=BOX, y=spaces.Tuple((THREE, spaces.Box(0, 1, (2, 2)))))
    seen = {"x": torch.randn(5, 4), "y": (torch.arange(5) % 3, torch.rand(5, 2, 2))}
    net = network(arrangement, nest, HYBRID)
    ((kind, (one, other)), value, aux), state = net(seen)
    assert value.shape == aux.shape == (5,)
    assert state == ((), (), ())
    shapes = [x.sample().shape for x in (kind, one, other)]
    assert shapes == [(5,), (5, 1), (5, 2, 2)]


@pytest.mark.equation("disjoint-dual")
def test_dual_heads_are_linear_in_their_own_features():
    net = network(action=spaces.Tuple((THREE, spaces.Box(-1, 1, (2, 2))))).double()
    torch.nn.init.normal_(net.heads.projections[1].log_sigma)
    obs = torch.randn(5, 4, dtype=torch.float64)
    ((kind, args), value, aux), _ = net(obs)

    heads = net.heads
    own, others = (
        encoder.layers[1](encoder.layers[0](obs).tanh()).tanh()
        for encoder in (heads.policy_encoder, heads.value_encoder)
    )
    torch.testing.assert_close(value, heads.value_head(others)[:, 0])
    torch.testing.assert_close(aux, heads.aux_head(own)[:, 0])
    discrete, box = heads.projections
    torch.testing.assert_close(kind.probs, discrete.logits(own).softmax(-1))
    assert isinstance(kind, Categorical)
    sigma = box.log_sigma.exp().view(2, 2)
    drawn = torch.randn(5, 2, 2, dtype=torch.float64)
    expected = Normal(box.mu(own).view(5, 2, 2), sigma).log_prob(drawn).sum((1, 2))
    torch.testing.assert_close(args.log_prob(drawn), expected)


def test_weights_begin_orthogonal_and_the_policy_nearly_uniform():
    heads = network(action=spaces.Tuple((THREE, BOX))).heads
    discrete, box = heads.projections
    gains = [(layer, 2**0.5) for layer in heads.policy_encoder.layers]
    gains += [(layer, 2**0.5) for layer in heads.value_encoder.layers]
    gains += [(heads.value_head, 1.0), (heads.aux_head, 1.0)]
    for layer, gain in [*gains, (discrete.logits, 0.01), (box.mu, 0.01)]:
        found = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(found, torch.full_like(found, gain))
        assert not layer.bias.any()


# --- Memory ---------------------------------------------------------------------------


@pytest.mark.equation("disjoint-shared")
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_states_are_handed_on_by_their_owners(arrangement):
    net = network(arrangement, encoding_network_ctor=RecurrentEncodingNetwork)
    obs = torch.randn(3, 5, 4)
    state: Any = ()
    for t in range(3):
        before = state
        (kind, value, aux), state = net(obs[t], state)
    policy, own, none = state
    shared = arrangement == "shared"
    assert (policy.shape, none) == ((5, 64), ())
    assert shared == (own == ())
    # The heads read these very states, and the past matters to both values.
    seen = policy if shared else own
    torch.testing.assert_close(value, net.heads.value_head(seen)[:, 0])
    torch.testing.assert_close(aux, net.heads.aux_head(policy)[:, 0])
    (_, forgot, _), _ = net(obs[2])
    assert not torch.allclose(value, forgot)
    # Without the auxiliary value nothing else changes.
    (again, same, nothing), _ = net(obs[2], before, require_aux=False)
    assert nothing == ()
    assert torch.equal(value, same)
    assert torch.equal(kind.logits, again.logits)


# --- Where gradients go ---------------------------------------------------------------


@pytest.mark.parametrize("encoder", [EncodingNetwork, RecurrentEncodingNetwork])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("head", ["policy", "value", "aux"])
def test_gradients_flow_as_documented(arrangement, head, encoder):
    net = network(arrangement, encoding_network_ctor=encoder)
    (distribution, value, aux), _ = net(torch.randn(5, 4))
    loss = {"policy": distribution.logits[:, 0], "value": value, "aux": aux}[head]
    loss.sum().backward()
    reached = {x for x, part in net.heads.named_children() if has_gradient(part)}
    encoder_of = "value_encoder" if arrangement == "dual" else "nothing"
    assert (
        reached
        == {
            "policy": {"policy_encoder", "projections"},
            "value": {"value_head", encoder_of} - {"nothing"},
            "aux": {"policy_encoder", "aux_head"},
        }[head]
    )


@pytest.mark.erratum("value-cut-in-both-phases")
@pytest.mark.parametrize(
    ("detach", "policy_phase", "auxiliary_phase"),
    [("always", False, False), ("policy_phase", False, True), ("never", True, True)],
)
def test_the_cut_is_made_in_the_phases_that_it_names(
    detach, policy_phase, auxiliary_phase
):
    for require_aux, expected in ((False, policy_phase), (True, auxiliary_phase)):
        net = network("shared", detach=detach)
        (_, value, _), _ = net(torch.randn(5, 4), require_aux=require_aux)
        value.sum().backward()
        assert has_gradient(net.heads.policy_encoder) is expected
        assert has_gradient(net.heads.value_head)


# --- Bad input ------------------------------------------------------------------------


def test_what_does_not_fit_is_named():
    with pytest.raises(TypeError, match="observation_spec must be a nest"):
        network(observation=spaces.Text(3))
    with pytest.raises(ValueError, match="whole and from 5 to 7"):
        network(observation=spaces.Discrete(3, start=5))(torch.tensor([4, 5]))
    with pytest.raises(TypeError, match="state must be a tuple"):
        network()(torch.zeros(2, 4), ((), ()))


# --- Two processes --------------------------------------------------------------------


def loss_of(net: Any, obs: torch.Tensor, index: int, require_aux: bool) -> torch.Tensor:
    """Return the loss of the auxiliary phase for the last batch, or of the policy's."""
    if index == 2:
        (distribution, value, aux), _ = net(obs)
        return (value.square() + (aux - 1).square() + distribution.entropy()).mean()
    (distribution, value, _), _ = net(obs, require_aux=require_aux)
    taken = (obs[:, 0] > 0).long()
    return (value.square() - distribution.log_prob(taken)).mean()


def error_of(arrangement: str, wrap: str, require_aux: bool, search: bool) -> str:
    """Train two steps of the policy phase and one of the auxiliary phase under DDP."""
    net: Any = network(arrangement)
    if wrap == "heads":
        net.heads = DistributedDataParallel(net.heads, find_unused_parameters=search)
    else:
        net = DistributedDataParallel(net, find_unused_parameters=search)
    try:
        for index in range(3):
            net.zero_grad()
            loss_of(net, torch.randn(8, 4), index, require_aux).backward()
    except RuntimeError as error:
        return str(error)
    return ""


CASES = [*product(ARRANGEMENTS, ("heads", "all"), (True, False), (True, False))]


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=300),
    )
    torch.manual_seed(0)
    errors = {case: error_of(*case) for case in CASES}
    if rank == 0:
        torch.save(errors, f"{folder}/errors")
    dist.destroy_process_group()


@pytest.mark.erratum("require-aux-for-ddp")
def test_only_heads_work_and_only_with_a_search_for_what_is_unused(tmp_path):
    mp.spawn(worker, (str(tmp_path),), nprocs=2)
    errors = torch.load(tmp_path / "errors", weights_only=False)
    for (_, wrap, _, search), error in errors.items():
        assert bool(error) is (wrap == "all" or not search)
        assert wrap == "all" or search or "finished reduction" in error

"""The disjoint network: its outputs, where its gradients go, and two processes."""

from __future__ import annotations

import copy
import datetime
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fuzz import assert_held
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, Normal
from torch.nn.parallel import DistributedDataParallel

from literate_rl.ground.nests import pack, unpack
from literate_rl.nets.disjoint_network import (
    CategoricalProjectionNetwork,
    DisjointPolicyValueNetwork,
    EncodingNetwork,
    NormalProjectionNetwork,
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


# --- Nests ----------------------------------------------------------------------------

LEAF = st.one_of(
    st.integers(1, 4).map(spaces.Discrete),
    st.lists(st.integers(1, 3), max_size=2).map(lambda s: spaces.Box(-1, 1, tuple(s))),
)
NEST = st.recursive(
    LEAF,
    lambda child: st.one_of(
        st.lists(child, min_size=1, max_size=3).map(lambda x: spaces.Tuple(tuple(x))),
        st.dictionaries(st.sampled_from("zyx"), child, min_size=1).map(spaces.Dict),
    ),
    max_leaves=5,
)


def tensors(sample: Any) -> Any:
    if isinstance(sample, dict):
        return {key: tensors(child) for key, child in sample.items()}
    if isinstance(sample, tuple):
        return tuple(map(tensors, sample))
    return torch.as_tensor(sample)[None]


# --- Outputs --------------------------------------------------------------------------


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@settings(max_examples=20)
@given(observation=NEST, action=NEST, batch=st.integers(1, 4))
def test_any_nest_gives_the_documented_triples(
    arrangement: str, observation: spaces.Space, action: spaces.Space, batch: int
) -> None:
    net = network(arrangement, observation, action)
    seen = pack(
        observation,
        (
            x.expand(batch, *x.shape[1:])
            for x in unpack(observation, tensors(observation.sample()), "x")
        ),
    )
    (distribution, value, aux), state = net(seen)
    assert value.shape == aux.shape == (batch,)
    assert state == ((), (), ())
    sample = pack(
        action,
        (d.sample() for d in distributions(action, distribution)),
    )
    for drawn, leaf in zip(unpack(action, sample, "a"), leaves_of(action), strict=True):
        assert drawn.shape == (batch, *leaf.shape)


def test_a_box_may_be_empty() -> None:
    net = network(action=spaces.Tuple((THREE, spaces.Box(0, 1, (0,)))))
    ((_, nothing), _, _), _ = net(torch.zeros(2, 4))
    assert nothing.sample().shape == (2, 0)
    assert nothing.log_prob(torch.zeros(2, 0)).tolist() == [0, 0]


def distributions(space: spaces.Space, nest: Any) -> list[Any]:
    if isinstance(space, spaces.Dict):
        return [d for k, c in space.items() for d in distributions(c, nest[k])]
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, nest, strict=True)
        return [d for child, part in pairs for d in distributions(child, part)]
    return [nest]


def leaves_of(space: spaces.Space) -> list[spaces.Space]:
    nested = isinstance(space, spaces.Dict | spaces.Tuple)
    children = space.spaces.values() if isinstance(space, spaces.Dict) else space
    return [x for child in children for x in leaves_of(child)] if nested else [space]


def test_every_argument_but_the_specs_has_a_default_and_the_documented_order() -> None:
    calls = []

    def encoder(spec: spaces.Space) -> EncodingNetwork:
        calls.append(spec)
        return EncodingNetwork(spec, (8,))

    class Discrete(CategoricalProjectionNetwork):
        pass

    class Continuous(NormalProjectionNetwork):
        pass

    net = DisjointPolicyValueNetwork(
        BOX, HYBRID, encoder, False, Discrete, Continuous, "a name"
    )
    assert calls == [BOX, BOX]
    kinds = [type(p) for p in net.heads.projections]
    assert kinds == [Discrete, Continuous, Continuous]
    assert net.name == "a name"
    DisjointPolicyValueNetwork(BOX, HYBRID, encoder, True)
    assert calls == [BOX] * 3


@pytest.mark.equation("disjoint-dual")
def test_dual_heads_are_linear_in_their_own_features() -> None:
    torch.manual_seed(0)
    net = network(action=spaces.Tuple((THREE, spaces.Box(-1, 1, (2, 2))))).double()
    torch.nn.init.normal_(net.heads.projections[1].log_sigma)
    obs = torch.randn(5, 4, dtype=torch.float64)
    ((kind, args), value, aux), _ = net(obs)

    def features(encoder: Any) -> np.ndarray:
        x = obs.numpy()
        for layer in encoder.layers:
            weight, bias = (p.detach().numpy() for p in layer.parameters())
            x = np.tanh(x @ weight.T + bias)
        return x

    def head(layer: Any, x: np.ndarray) -> np.ndarray:
        return x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()

    heads = net.heads
    own, others = features(heads.policy_encoder), features(heads.value_encoder)
    assert value.tolist() == pytest.approx(head(heads.value_head, others)[:, 0])
    assert aux.tolist() == pytest.approx(head(heads.aux_head, own)[:, 0])
    logit = torch.as_tensor(head(heads.projections[0].logits, own))
    torch.testing.assert_close(kind.probs, logit.softmax(-1))
    assert isinstance(kind, Categorical)
    mu = torch.as_tensor(head(heads.projections[1].mu, own)).view(5, 2, 2)
    sigma = heads.projections[1].log_sigma.exp().view(2, 2).expand(5, 2, 2)
    drawn = torch.randn(5, 2, 2, dtype=torch.float64)
    expected = Independent(Normal(mu, sigma), 2).log_prob(drawn)
    torch.testing.assert_close(args.log_prob(drawn), expected)


def test_weights_begin_orthogonal_and_the_policy_nearly_uniform() -> None:
    heads = network(action=spaces.Tuple((THREE, BOX))).heads
    discrete, box = heads.projections
    gains = [(layer, 2**0.5) for layer in heads.policy_encoder.layers]
    gains += [(layer, 2**0.5) for layer in heads.value_encoder.layers]
    gains += [(heads.value_head, 1.0), (heads.aux_head, 1.0)]
    for layer, gain in [*gains, (discrete.logits, 0.01), (box.mu, 0.01)]:
        found = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(found, torch.full_like(found, gain))
        assert not layer.bias.any()


@pytest.mark.equation("disjoint-shared")
def test_the_shared_value_reads_the_features_of_the_policy() -> None:
    net = network("shared")
    obs = torch.randn(5, 4)
    features, _ = net.heads.policy_encoder(obs)
    (_, value, _), _ = net(obs)
    torch.testing.assert_close(value, net.heads.value_head(features)[:, 0])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_the_auxiliary_value_is_left_out_and_nothing_else_changes(
    arrangement: str,
) -> None:
    net, obs = network(arrangement), torch.randn(5, 4)
    (with_aux, value, _), _ = net(obs, (), True)
    (without, same, aux), _ = net(obs, (), require_aux=False)
    assert aux == ()
    assert torch.equal(value, same)
    assert torch.equal(with_aux.logits, without.logits)


# --- Memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_states_are_handed_on_by_their_owners(arrangement: str) -> None:
    net = network(arrangement, encoding_network_ctor=RecurrentEncodingNetwork)
    obs = torch.randn(3, 5, 4)
    state: Any = ()
    for t in range(3):
        (_, value, aux), state = net(obs[t], state)
    policy, own, none = state
    assert policy.shape == (5, 64)
    assert none == ()
    assert (own == ()) if arrangement == "shared" else (own.shape == (5, 64))
    # The heads read these very states, and the past matters to both values.
    seen = policy if arrangement == "shared" else own
    torch.testing.assert_close(value, net.heads.value_head(seen)[:, 0])
    torch.testing.assert_close(aux, net.heads.aux_head(policy)[:, 0])
    (_, forgot, _), _ = net(obs[2])
    assert not torch.allclose(value, forgot)


# --- Where gradients go ---------------------------------------------------------------


@pytest.mark.parametrize("encoder", [EncodingNetwork, RecurrentEncodingNetwork])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("head", ["policy", "value", "aux"])
def test_gradients_flow_as_documented(
    arrangement: str, head: str, encoder: Any
) -> None:
    net = network(arrangement, encoding_network_ctor=encoder)
    (distribution, value, aux), _ = net(torch.randn(5, 4))
    loss = {"policy": distribution.logits[:, 0], "value": value, "aux": aux}[head]
    loss.sum().backward()
    heads = net.heads
    assert has_gradient(heads.policy_encoder) is (head != "value")
    assert has_gradient(heads.projections) is (head == "policy")
    assert has_gradient(heads.value_head) is (head == "value")
    assert has_gradient(heads.aux_head) is (head == "aux")
    if arrangement == "dual":
        assert has_gradient(heads.value_encoder) is (head == "value")


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_without_the_auxiliary_value_only_its_head_has_no_gradient(
    arrangement: str,
) -> None:
    net = network(arrangement, action=HYBRID)
    ((kind, boxes), value, _), _ = net(torch.randn(5, 4), require_aux=False)
    loss = value.sum() + kind.logits[:, 0].sum()
    loss = loss + sum(box.log_prob(box.sample()).sum() for box in boxes)
    loss.backward()
    without = {name for name, p in net.named_parameters() if p.grad is None}
    assert without == {"heads.aux_head.weight", "heads.aux_head.bias"}


@pytest.mark.erratum("value-cut-in-both-phases")
@pytest.mark.parametrize(
    ("detach", "policy_phase", "auxiliary_phase"),
    [("always", False, False), ("policy_phase", False, True), ("never", True, True)],
)
def test_the_cut_is_made_in_the_phases_that_it_names(
    detach: str, policy_phase: bool, auxiliary_phase: bool
) -> None:
    for require_aux, expected in ((False, policy_phase), (True, auxiliary_phase)):
        net = network("shared", detach=detach)
        (_, value, _), _ = net(torch.randn(5, 4), require_aux=require_aux)
        value.sum().backward()
        assert has_gradient(net.heads.policy_encoder) is expected
        assert has_gradient(net.heads.value_head)


# --- Bad input ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, THREE), TypeError, "observation_spec must be a Space, got int"),
        ((BOX, None), TypeError, "action_spec must be a Space, got NoneType"),
        ((spaces.Text(3), THREE), TypeError, "observation_spec must be a nest"),
        ((BOX, spaces.Tuple((THREE, spaces.MultiBinary(2)))), TypeError, "action_spec"),
    ],
)
def test_specs_that_cannot_be_served(
    arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        DisjointPolicyValueNetwork(*arguments)


@pytest.mark.parametrize(
    ("mode", "legal"),
    [
        (torch.tensor([5, 7]), True),
        (torch.tensor([5, 7], dtype=torch.uint8), True),
        (torch.tensor([5, 8]), False),
        (torch.tensor([4, 5]), False),
        (torch.tensor([5.0, 6.0]), False),
    ],
)
def test_a_discrete_observation_is_one_of_its_numbers(
    mode: torch.Tensor, legal: bool
) -> None:
    net = DisjointPolicyValueNetwork(spaces.Discrete(3, start=5), THREE)
    if legal:
        (_, value, _), _ = net(mode)
        assert value.shape == (2,)
    else:
        with pytest.raises(ValueError, match="whole and from 5 to 7"):
            net(mode)


@pytest.mark.parametrize("state", [torch.zeros(2, 64), ((), ()), [(), (), ()]])
def test_a_state_is_a_triple(state: Any) -> None:
    net = DisjointPolicyValueNetwork(BOX, THREE, RecurrentEncodingNetwork)
    with pytest.raises(TypeError, match=r"state must be a tuple of 0 or a tuple of 3"):
        net(torch.zeros(2, 4), state)


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ((), "hidden must hold at least one width, got 0"),
        ((0,), r"hidden\[0\] must be at least 1, got 0"),
        ((8, -1), r"hidden\[1\] must be at least 1, got -1"),
    ],
)
def test_an_encoder_needs_widths(hidden: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EncodingNetwork(BOX, hidden)


def illegal_calls_of_the_policy_heads(random: Random) -> int:
    kinds: Any = (CategoricalProjectionNetwork, NormalProjectionNetwork)
    count = 0
    for kind, space in zip(kinds, (THREE, BOX), strict=True):
        new = kind.__new__(kind).__init__
        count += assert_held(new, random, 10, action_spec=lambda space=space: space)
    return count + assert_held(kinds[0](4, THREE).distribution, random, 10)


def test_illegal_calls_are_named() -> None:
    random = Random(0)
    count = illegal_calls_of_the_policy_heads(random)
    encoder: Any = EncodingNetwork.__new__(EncodingNetwork).__init__
    count += assert_held(encoder, random, 10, observation_spec=lambda: BOX)
    new: Any = DisjointPolicyValueNetwork.__new__(DisjointPolicyValueNetwork).__init__
    ctors = {
        "encoding_network_ctor": lambda: EncodingNetwork,
        "discrete_projection_net_ctor": lambda: CategoricalProjectionNetwork,
        "continuous_projection_net_ctor": lambda: NormalProjectionNetwork,
    }
    specs = {"observation_spec": lambda: BOX, "action_spec": lambda: HYBRID}
    count += assert_held(new, random, 10, **specs, **ctors)
    forward = network().forward
    given = {"observation": lambda: torch.zeros(2, 4), "state": lambda: ()}
    count += assert_held(forward, random, 10, **given)
    assert count > 200


@pytest.mark.parametrize("spec", [THREE, spaces.Tuple((BOX,)), "word"])
def test_a_gaussian_policy_head_wants_a_box(spec: Any) -> None:
    with pytest.raises(TypeError, match="action_spec must be a Box"):
        NormalProjectionNetwork(4, spec)


@pytest.mark.parametrize("name", ["encoding_network", "discrete_projection_net"])
def test_a_constructor_can_be_called(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}_ctor must be callable, got int"):
        network(**{f"{name}_ctor": 3})


def test_a_space_needs_a_leaf() -> None:
    with pytest.raises(TypeError, match=r"observation_spec must .* at least one leaf"):
        DisjointPolicyValueNetwork(spaces.Dict({}), THREE)


def test_detach_is_one_of_three_words() -> None:
    with pytest.raises(
        ValueError, match=r"detach must be 'always' or .*, got 'sometimes'"
    ):
        network(detach="sometimes")


@pytest.mark.parametrize(
    ("observation", "error", "message"),
    [
        (torch.zeros(2, 4), ValueError, r"observation must have \['x', 'y'\]"),
        ({"x": torch.zeros(2, 4)}, ValueError, r"observation must .*, got \['x'\]"),
        (
            {"x": torch.zeros(2, 4), "y": (torch.zeros(2),)},
            ValueError,
            r"observation\['y'\] must have \[0, 1\], got \[0\]",
        ),
        (
            {"x": torch.zeros(2, 3), "y": (torch.zeros(2).long(),) * 2},
            ValueError,
            r"observation\['x'\] must have shape",
        ),
        (
            {"x": torch.zeros(2, 4), "y": (torch.zeros(2).long(), [0, 1])},
            TypeError,
            r"observation\['y'\]\[1\] must be a tensor",
        ),
    ],
)
def test_observations_of_another_form(
    observation: Any, error: type[Exception], message: str
) -> None:
    space = spaces.Dict({"x": BOX, "y": spaces.Tuple((THREE, THREE))})
    with pytest.raises(error, match=message):
        network(observation=space)(observation)


# --- Two processes --------------------------------------------------------------------


def policy_loss(net: Any, obs: torch.Tensor, require_aux: bool) -> torch.Tensor:
    (distribution, value, _), _ = net(obs, require_aux=require_aux)
    taken = (obs[:, 0] > 0).long()
    return (value.square() - distribution.log_prob(taken)).mean()


def auxiliary_loss(net: Any, obs: torch.Tensor) -> torch.Tensor:
    (distribution, value, aux), _ = net(obs)
    return (value.square() + (aux - 1).square() + distribution.entropy()).mean()


def one_case(
    plain: DisjointPolicyValueNetwork, wrap: str, require_aux: bool, search: bool
) -> dict[str, Any]:
    """Train two steps of the policy phase and one of the auxiliary phase under DDP."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    batches = torch.randn(3, 16, 4)
    net: Any = copy.deepcopy(plain)
    if wrap == "heads":
        net.heads = DistributedDataParallel(net.heads, find_unused_parameters=search)
    else:
        net = DistributedDataParallel(net, find_unused_parameters=search)
    gradients = []
    try:
        for index, obs in enumerate(batches):
            own = obs[rank::2]
            for p in net.parameters():
                p.grad = None
            loss = policy_loss(net, own, require_aux)
            if index == 2:
                loss = auxiliary_loss(net, own)
            loss.backward()
            gradients.append([p.grad for p in net.parameters()])
    except RuntimeError as error:
        return {"error": str(error)}
    return {"gradients": gradients, "batches": batches}


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
    results = {}
    for arrangement in ARRANGEMENTS:
        plain = network(arrangement)
        for wrap, require_aux, search in product(
            ("heads", "all"), (True, False), (True, False)
        ):
            key = (arrangement, wrap, require_aux, search)
            results[key] = one_case(plain, wrap, require_aux, search)
        results[arrangement] = plain
    if rank == 0:
        torch.save(results, f"{folder}/results")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    folder: Path = tmp_path_factory.mktemp("ddp")
    context = mp.spawn(worker, (str(folder),), nprocs=2, join=False)
    try:
        deadline = datetime.datetime.now() + datetime.timedelta(seconds=600)
        while not context.join(timeout=5):
            assert datetime.datetime.now() < deadline, "two processes wait forever"
    finally:
        for process in context.processes:
            process.kill()
    return torch.load(folder / "results", weights_only=False)


@pytest.mark.xdist_group("ddp")
@pytest.mark.erratum("require-aux-for-ddp")
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("require_aux", [True, False])
@pytest.mark.parametrize("search", [True, False])
def test_which_of_the_four_combinations_work(
    two_processes: Any, arrangement: str, require_aux: bool, search: bool
) -> None:
    heads = two_processes[arrangement, "heads", require_aux, search]
    assert ("error" in heads) is not search
    whole = two_processes[arrangement, "all", require_aux, search]
    assert "error" in whole
    if not search:
        assert "finished reduction" in heads["error"]


@pytest.mark.xdist_group("ddp")
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("require_aux", [True, False])
def test_averaged_gradients_are_those_of_the_joined_batch(
    two_processes: Any, arrangement: str, require_aux: bool
) -> None:
    case = two_processes[arrangement, "heads", require_aux, True]
    plain = two_processes[arrangement]
    for index, obs in enumerate(case["batches"]):
        plain.zero_grad()
        if index == 2:
            auxiliary_loss(plain, obs).backward()
        else:
            policy_loss(plain, obs, require_aux).backward()
        for ours, expected in zip(
            case["gradients"][index], plain.parameters(), strict=True
        ):
            if expected.grad is None:
                assert ours is None or not ours.any()
            else:
                torch.testing.assert_close(ours, expected.grad, atol=1e-6, rtol=1e-5)

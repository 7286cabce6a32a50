"""ALF's interface: the tuples, one pass, the loss and the auxiliary phase."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import (
    Beta,
    Categorical,
    Independent,
    Normal,
    kl_divergence,
)

from literate_rl.ground.nests import ends
from literate_rl.interfaces.alf import (
    LAST,
    MID,
    PPGAuxAlgorithm,
    PPGAuxOptions,
    PPGAuxPhaseLoss,
    PPGRolloutInfo,
    PPGTrainInfo,
    TimeStep,
    divergence,
    ppg_network_forward,
)
from literate_rl.learners.ppg import PPGAuxPhaseLossInfo
from literate_rl.learners.ppg_learner import PPGConfig
from literate_rl.nets.disjoint_network import DisjointPolicyValueNetwork
from literate_rl.nets.hybrid_action import HybridDistribution

BOX, THREE = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
PAIR = spaces.Box(-1, 1, (2,))
HYBRID = spaces.Tuple((THREE, spaces.Tuple((PAIR, spaces.Box(0, 1, (1,)), PAIR))))


class Head(nn.Module):
    """A policy head of one's own: a linear layer and what its rows mean."""

    def __init__(self, size: int, width: int, read: Any) -> None:
        super().__init__()
        self.layer, self.distribution = nn.Linear(size, width), read

    def forward(self, features: Tensor) -> Any:
        return 5 * self.layer(features)


def tempered(row: Tensor) -> Any:
    return Categorical(logits=row / 3)


def normal(row: Tensor) -> Any:
    mean, scale = row.chunk(2, -1)
    return Independent(Normal(mean, scale.exp()), 1)


def beta(row: Tensor) -> Any:
    return Independent(Beta(*(row.exp() + 1).chunk(2, -1)), 1)


# Policies: how a head of one's own reads its rows, or None for the package's heads.
POLICIES = [(None, x) for x in (THREE, PAIR, HYBRID, spaces.Box(-1, 1, (2, 3)))]
POLICIES += [(tempered, THREE), (beta, PAIR)]
POLICIES += [(normal, spaces.Dict({"a": PAIR, "b": PAIR}))]


def network_with(read: Any, action: spaces.Space = PAIR) -> DisjointPolicyValueNetwork:
    torch.manual_seed(0)
    kinds = ["discrete", "continuous"] if read else []
    width = 3 if action == THREE else 4
    own = {f"{x}_projection_net_ctor": lambda n, _: Head(n, width, read) for x in kinds}
    return DisjointPolicyValueNetwork(BOX, action, **own)


@pytest.mark.parametrize(
    ("thing", "documented"),
    [
        (
            DisjointPolicyValueNetwork,
            "observation_spec action_spec encoding_network_ctor "
            "is_sharing_encoder=False discrete_projection_net_ctor "
            "continuous_projection_net_ctor name=DisjointPolicyValueNetwork",
        ),
        (
            PPGTrainInfo,
            "action_distribution=() action=() log_prob=() value=() aux=() step_type=() "
            "discount=() reward=() reward_weights=() rollout_action_distribution=() "
            "rollout_value=() rollout_log_prob=()",
        ),
        (
            PPGRolloutInfo,
            "action_distribution action log_prob value aux step_type discount reward "
            "reward_weights",
        ),
        (PPGAuxPhaseLossInfo, "td_loss_actual td_loss_aux policy_kl_loss"),
        (
            PPGAuxOptions,
            "enabled=True interval=32 mini_batch_length=None mini_batch_size=8 "
            "num_updates_per_train_iter=6",
        ),
        (
            ppg_network_forward,
            "network inputs state=() require_aux=True epsilon_greedy=None",
        ),
        (
            PPGAuxAlgorithm,
            "observation_spec action_spec reward_spec config=None optimizer=None "
            "dual_actor_value_network=None aux_options debug_summaries=False name",
        ),
        (
            PPGAuxPhaseLoss,
            "td_error_loss_fn policy_kl_loss_weight=1.0 gamma=0.999 td_lambda=0.95 "
            "name",
        ),
    ],
)
def test_documented_names_come_first_with_their_defaults(thing, documented):
    parameters = inspect.signature(thing).parameters.values()
    for word, parameter in zip(documented.split(), parameters, strict=False):
        name, _, default = word.partition("=")
        assert parameter.name == name
        assert default in ("", str(parameter.default))


# --- One pass -------------------------------------------------------------------------


def step_of(observation: Any) -> TimeStep:
    return TimeStep(torch.ones(1), torch.zeros(1), torch.ones(1), observation)


@pytest.mark.parametrize("action", [THREE, PAIR, HYBRID])
def test_a_pass_returns_actions_and_information(action):
    net, step = network_with(None, action), step_of(torch.randn(5, 4))
    drawn, _, info = ppg_network_forward(net, step)
    leaves = zip(ends(info.action_distribution), ends(drawn), strict=True)
    torch.testing.assert_close(info.log_prob, sum(d.log_prob(x) for d, x in leaves))
    assert info.log_prob.shape == info.value.shape == info.aux.shape == (5,)
    assert info.value.requires_grad > info.log_prob.requires_grad
    assert ppg_network_forward(net, step, (), False).info.aux == ()


@pytest.mark.equation("greedy-mixture")
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_the_greedy_mixture_is_drawn_row_by_row(q):
    net = network_with(None, spaces.Tuple((THREE, PAIR)))
    nn.init.normal_(net.heads.projections[0].logits.bias)
    inputs = step_of(torch.zeros(50_000, 4))
    step = ppg_network_forward(net, inputs, (), epsilon_greedy=q)
    assert step.info.log_prob == ()
    kind, box = step.info.action_distribution
    action, numbers = step.output
    expected = q * kind.probs[0]
    expected[kind.mode[0]] += 1 - q
    share = torch.bincount(action, minlength=3) / len(action)
    torch.testing.assert_close(share, expected, atol=0.01, rtol=0)
    random = (numbers != box.mode).any(-1).float()
    # The leaves decide on their own: a random number is no sign of a random type.
    for rows in (random, random[action != kind.mode], random[action == kind.mode]):
        assert not len(rows) or rows.mean().item() == pytest.approx(q, abs=0.02)


# --- The loss -------------------------------------------------------------------------


def slow_targets(reward, next_value, terminated, ended, gamma, lambda_):
    """The λ-return by its definition: an average of n-step returns, step by step."""
    steps, batch = reward.shape
    target = np.zeros((steps, batch))
    for b in range(batch):
        for t in range(steps):
            end = t
            while end < steps - 1 and not ended[end, b]:
                end += 1
            weight, discounted = 1.0, 0.0
            for n in range(t, end + 1):
                discounted += gamma ** (n - t) * reward[n, b]
                bootstrap = 0.0 if terminated[n, b] else next_value[n, b]
                one = discounted + gamma ** (n - t + 1) * bootstrap
                share = weight if n == end else weight * (1 - lambda_)
                target[t, b] += share * one
                weight *= lambda_
    return target


def random_info(seed: int, steps: int, batch: int, *rewards: int) -> PPGTrainInfo:
    rng = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(steps, batch, *shape, generator=rng, dtype=torch.float64)

    terminated, cut = torch.rand(2, steps, batch, generator=rng) < 0.2
    old = numbers(3)
    if seed % 2:
        old[..., 0] = -math.inf  # an action that was taken away
    return PPGTrainInfo(
        action_distribution=Categorical(logits=numbers(3).requires_grad_()),
        value=numbers(*rewards).requires_grad_(),
        aux=numbers(*rewards).requires_grad_(),
        step_type=torch.where(terminated | cut, LAST, MID),
        discount=(~terminated).double(),
        reward=numbers(*rewards),
        rollout_action_distribution=Categorical(logits=old.requires_grad_()),
        rollout_value=numbers(*rewards),
        rollout_next_value=numbers(*rewards),
    )


@pytest.mark.equation("loss-of-rewards")
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 6),
    rewards=st.lists(st.integers(1, 3), max_size=1),
    gamma=st.permutations([0.0, 0.9, 1.0]),
    listed=st.booleans(),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
    weight=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_the_loss_is_its_definition_with_its_gradient(
    seed, steps, rewards, gamma, listed, lambda_, weight
):
    """Of one reward, or the mean over several; one discount may stand for all."""
    info, count = random_info(seed, steps, 3, *rewards), sum(rewards)
    gammas = gamma[:count] if listed and rewards else gamma[:1] * max(count, 1)
    loss, extra = PPGAuxPhaseLoss(
        policy_kl_loss_weight=weight,
        gamma=gammas if listed and rewards else gammas[0],
        td_lambda=lambda_,
    )(info)
    flags = (info.discount == 0).numpy(), (info.step_type == LAST).numpy()
    seen, then, value, aux = (
        x.detach().numpy().reshape(steps, 3, -1)
        for x in (info.reward, info.rollout_next_value, info.value, info.aux)
    )
    columns = [
        slow_targets(seen[..., d], then[..., d], *flags, g, lambda_)
        for d, g in enumerate(gammas)
    ]
    target = np.stack(columns, -1)
    policies = info.rollout_action_distribution, info.action_distribution
    old, new = (x.probs.detach().numpy() for x in policies)
    kl = (old * np.log(np.where(old > 0, old / new, 1.0))).sum(-1)
    errors = ((value - target) ** 2).mean(-1), ((aux - target) ** 2).mean(-1)
    parts = sum(errors) + weight * kl, *errors, kl
    for part, wanted in zip((loss, *extra), parts, strict=True):
        np.testing.assert_allclose(part.detach(), wanted, atol=1e-9)
    data, *grads = torch.autograd.grad(
        loss.sum(),
        [*(x.logits for x in policies), info.value, info.aux],
        allow_unused=True,
    )
    assert data is None, "the old policy is data"
    assert grads[0].isfinite().all()
    for grad, said in zip(grads[1:], (value, aux), strict=True):
        wanted = (2 * (said - target) / len(gammas)).reshape(grad.shape)
        np.testing.assert_allclose(grad, wanted, atol=1e-9)


@pytest.mark.erratum("divergence-of-a-nest")
@pytest.mark.equation("nested-divergence")
@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), batch=st.integers(1, 4))
def test_the_divergence_of_a_nest_is_a_sum_and_bounds_the_hybrid_one(seed, batch):
    torch.manual_seed(seed)
    sizes = [2, 1, 2]
    mask = torch.eye(3).int().repeat_interleave(torch.tensor(sizes), 1).tolist()

    def drawn():
        """Return a nest of distributions and a hybrid one of the same numbers."""
        logit = torch.randn(batch, 3).double()
        mu, sigma = torch.randn(batch, 5).double(), torch.rand(batch, 5).double() + 0.1
        parts = zip(mu.split(sizes, -1), sigma.split(sizes, -1), strict=True)
        boxes = tuple(Independent(Normal(*part), 1) for part in parts)
        tree = {"action_type": logit, "action_args": {"mu": mu, "sigma": sigma}}
        return (Categorical(logits=logit), {"x": boxes}), HybridDistribution(tree, mask)

    (old, old_hybrid), (new, new_hybrid) = drawn(), drawn()
    with pytest.raises(NotImplementedError):
        kl_divergence(old, new)
    ours = divergence(old, new)
    pairs = zip(ends(old), ends(new), strict=True)
    torch.testing.assert_close(ours, sum(kl_divergence(p, q) for p, q in pairs))
    assert (ours >= old_hybrid.kl(new_hybrid) - 1e-9).all()


@pytest.mark.erratum("discounts-without-values")
def test_a_tensor_is_not_multiplied_by_a_list_of_discounts():
    discount, value = torch.ones(4, 3, 1), torch.zeros(4, 3)
    with pytest.raises(TypeError):
        discount * [0.9, 0.99]
    # With a number it goes on for a while.
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(3, 3, 2) + (0.9 * discount)[1:] * value[1:]


def of(*batch: int) -> Categorical:
    return Categorical(logits=torch.zeros(*batch, 3).double())


def test_what_does_not_fit_is_refused():
    """Much of this would be stretched in silence, and learned from."""
    info = random_info(0, 3, 2)
    PPGAuxPhaseLoss()(info)
    for change in (
        {"rollout_next_value": torch.ones(3, 2, 2).double()},
        {"discount": torch.full((3, 2), 0.5)},
        {"action_distribution": of(1, 2)},
    ):
        with pytest.raises((TypeError, ValueError)):
            PPGAuxPhaseLoss()(info._replace(**change))
    with pytest.raises((TypeError, ValueError)):
        PPGAuxPhaseLoss(gamma=[0.9])(random_info(0, 3, 2, 2))


# --- The auxiliary phase --------------------------------------------------------------


def experience(net: Any, batch: int = 3) -> tuple[Any, PPGRolloutInfo]:
    obs = torch.randn(batch, 4)
    with torch.no_grad():
        info = ppg_network_forward(net, step_of(obs), ()).info
    return obs, info._replace(
        step_type=torch.full((batch,), MID),
        discount=torch.ones(batch),
        reward=torch.randn(info.value.shape),
        next_value=torch.randn(info.value.shape),
    )


def auxiliary(
    action: spaces.Space = THREE, steps: int = 0, **options: Any
) -> PPGAuxAlgorithm:
    """Return an algorithm that has observed so many steps of three environments."""
    torch.manual_seed(0)
    phase = PPGAuxOptions(True, 32, 4, 2, 2)
    aux = PPGAuxAlgorithm(BOX, action, **{"aux_options": phase} | options)
    for _ in range(steps):
        aux.observe_for_aux_replay(experience(aux.network))
    return aux


@pytest.mark.parametrize("reference", ["snapshot", "rollout"])
@pytest.mark.parametrize(("read", "action"), POLICIES)
def test_a_phase_moves_every_part_and_holds_the_policy_to_itself(
    read, action, reference
):
    config = PPGConfig(aux_learning_rate=1e-2, kl_reference=reference)
    net = network_with(read, action)
    aux = auxiliary(action, 8, dual_actor_value_network=net, config=config)
    before = copy.deepcopy(net.state_dict())
    metrics = aux.train_iter()
    assert abs(metrics["aux/kl_at_start"]) < 1e-5
    assert metrics["aux/kl"] > 1e-4
    moved = " ".join(n for n, x in net.state_dict().items() if (x != before[n]).any())
    for part in ("policy_encoder", "value_encoder", "aux_head", "value_head"):
        assert part in moved
    with pytest.raises(ValueError, match="buffer must hold at least one chunk of 4"):
        aux.train_iter()


@pytest.mark.parametrize(("read", "action"), POLICIES)
def test_a_step_judges_the_action_that_was_done_by_the_policy_of_now(read, action):
    aux = auxiliary(action, dual_actor_value_network=network_with(read, action))
    obs, seen = experience(aux.network)
    aux.observe_for_aux_replay((obs, seen))
    # As the rollout has it, and as it is stored.
    for old in (seen, aux.buffer[0][1]):
        info = aux.train_step(step_of(obs), (), old).info
        assert str(info.action) == str(seen.action)
        assert torch.equal(info.rollout_value, seen.value)
        assert info.aux.requires_grad
        # The policy is where it was, so its clone has no gradient.
        kl = divergence(info.rollout_action_distribution, info.action_distribution)
        assert kl.abs().max() < 1e-5
        kl.sum().backward()
    grads = [x.grad for x in aux.phase.parameters if x.grad is not None]
    assert all(grad.abs().max() < 1e-4 for grad in grads)


def test_each_epoch_learns_all_targets_with_the_error_that_was_handed_over():
    """As in ALF it gets the target first."""
    seen: list[Tensor] = []

    def error(target, value):
        assert value.requires_grad > target.requires_grad
        seen.append(target)
        return (value - target).relu()

    info, loss = random_info(0, 9, 2), PPGAuxPhaseLoss(error)
    above = (info.value - loss.target(info)).relu()
    assert torch.equal(loss(info).extra.td_loss_actual, above)
    aux = auxiliary(steps=9)
    aux.loss = loss
    expected = aux.chunks().target
    del seen[:]
    aux.train_iter()
    # 2 values, 2 epochs; 2 chunks in time, 3 environments, 2 chunks in a minibatch.
    assert [x.shape for x in seen] == [(4, 2)] * 12
    columns = sorted(column for part in seen for column in part.T.tolist())
    assert columns == sorted(expected.T.tolist() * 4)


@pytest.mark.erratum("clone-of-the-rollout")
@pytest.mark.parametrize("reference", ["snapshot", "rollout"])
def test_the_clone_starts_where_it_is_told(reference):
    aux = auxiliary(config=PPGConfig(kl_reference=reference), steps=8)
    # As if the policy phase had moved it.
    nn.init.normal_(aux.network.heads.projections[0].logits.weight)
    start = aux.train_iter()["aux/kl_at_start"]
    assert (start > 0.1) if reference == "rollout" else (abs(start) < 1e-6)


def test_experience_that_cannot_be_learned_from_is_not_stored():
    aux = auxiliary()
    obs, info = experience(aux.network)
    with pytest.raises(ValueError, match="exp"):
        aux.observe_for_aux_replay(
            (obs, info._replace(reward=torch.full((3,), math.nan)))
        )
    assert aux.buffer == []


def test_where_the_phase_is_not_enabled_nothing_is_stored_or_trained():
    options = PPGAuxOptions(enabled=False, mini_batch_length=4)
    aux = auxiliary(aux_options=options, steps=4)
    assert aux.buffer == []
    assert aux.train_iter() == {}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("length", [8, 2])
def test_chunks_have_the_targets_of_their_rollouts(length, known):
    """Of what a pass returns, for two rewards with discounts of their own."""
    aux = auxiliary(
        reward_spec=spaces.Box(-np.inf, np.inf, (2,)),
        config=PPGConfig(num_steps=8),
        aux_options=PPGAuxOptions(mini_batch_length=length),
    )
    aux.loss = PPGAuxPhaseLoss(gamma=[0.5, 0.9], td_lambda=0.7)
    drawn = random_info(0, 25, 3, 2)
    reward, then = drawn.reward.float(), drawn.rollout_next_value.float()
    seen, obs = [], torch.randn(25, 3, 4)
    for t, x in enumerate(obs):
        inputs = TimeStep(drawn.step_type[t], reward[t], drawn.discount[t], x.clone())
        info = ppg_network_forward(aux.network, inputs).info
        info = info._replace(next_value=then[t] if known else ())
        aux.observe_for_aux_replay((inputs.observation, info))
        inputs.observation.zero_()  # what is stored is a copy
        seen.append(info.value.detach())
    # Without successors the values of the next steps stand in, and at an end its own.
    value, last = torch.stack(seen), (drawn.step_type == LAST).unsqueeze(-1)
    if not known:
        then = torch.where(last, value, torch.cat([value[1:], value[-1:]]))
    # Rollout by rollout, and the last step is spare.
    columns = {"step_type": drawn.step_type, "discount": drawn.discount}
    columns |= {"reward": reward, "rollout_next_value": then}
    targets = [
        aux.loss.target(PPGTrainInfo(**{k: x[t : t + 8] for k, x in columns.items()}))
        for t in (0, 8, 16)
    ]
    chunks = aux.chunks()
    for found, wanted in ((chunks.obs, obs[:24]), (chunks.target, torch.cat(targets))):
        rows = found.unflatten(1, (24 // length, 3)).transpose(0, 1).flatten(0, 1)
        assert torch.equal(rows, wanted)
    assert all(map(math.isfinite, aux.train_iter().values()))

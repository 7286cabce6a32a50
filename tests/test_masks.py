"""Legal actions: a slow reference, an environment that fails at others, refusals."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from net import SMALL
from torch import Tensor
from torch.distributions import Categorical, kl_divergence
from worlds import Fenced

from literate_rl.apps.training import ALGORITHMS, looked_at, make_learner, train
from literate_rl.by_hand.fast_forms import fused_q_error
from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.makers import read_wrapper
from literate_rl.data.replay import Batch, ReplayBuffer
from literate_rl.learners.dqn import (
    EpsilonGreedy,
    QLearning,
    dqn_settings,
    make_q_policy,
)
from literate_rl.learners.ppo import ppo_settings
from literate_rl.maths.fast import UNIT_ENTROPY
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.masking import legal
from literate_rl.nets.masks import MaskFromMethod, MaskFromObservation, WithoutMask
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import make_policy
from literate_rl.runs.evaluation import evaluate

FENCED = "worlds:Fenced-v0"
SPACES = Fenced().observation_space, Fenced().action_space
BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)


def random(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- Against a slow reference ---------------------------------------------------------


@pytest.mark.equation("masked-softmax")
@pytest.mark.equation("masked-gradient")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_it_is_the_distribution_of_the_legal_actions_alone(dtype, scale):
    """Log-probabilities, entropies, divergences and all their gradients."""
    generator, actions = random(), CategoricalActions(5)
    mask = torch.rand(20, 5, generator=generator) < 0.4
    mask[:, 2] |= ~mask.any(-1)
    rows = scale * torch.randn(2, 20, 5, generator=generator).to(dtype)
    # What is illegal would be the likeliest by far.
    row, other = rows = torch.where(mask, rows, rows.abs() + scale).requires_grad_()
    left = actions.legal(row, mask)
    action = actions.choose(left, actions.noise(1, 20, generator)[0].to(dtype))
    found = torch.stack(
        [*actions.evaluate(left, action), actions.kl(left, legal(other, mask))]
    )

    # One state after another, with nothing but the legal actions, in float64.
    slow = []
    for b, allowed in enumerate(mask):
        one, two = (Categorical(logits=x[b, allowed].double()) for x in (row, other))
        place = allowed[: action[b]].sum()
        slow.append([one.log_prob(place), one.entropy(), kl_divergence(one, two)])
    wanted = torch.stack([torch.stack(terms) for terms in slow], 1)
    weight = torch.randn(3, 20, generator=generator)
    grads = [torch.autograd.grad((x * weight).sum(), rows)[0] for x in (found, wanted)]
    close = {"rtol": 1e-4, "atol": 1e-4 * scale, "check_dtype": False}
    torch.testing.assert_close(found, wanted, **close)
    torch.testing.assert_close(*grads, **close)
    assert not grads[0][:, ~mask].any()
    assert not left.softmax(-1)[~mask].any()
    assert torch.equal(left[mask], row[mask])


LOGITS = st.sampled_from([-1e30, -1e9, -3.0, 0.0, 2.5, 1e9, 1e30])


@settings(max_examples=60)
@given(st.lists(st.tuples(LOGITS, st.booleans()), min_size=2, max_size=6), st.data())
def test_no_noise_makes_anybody_take_an_illegal_action(pairs, data):
    row, allowed = map(torch.tensor, zip(*pairs, strict=True))
    allowed[data.draw(st.integers(0, len(pairs) - 1))] = True
    for actions in (CategoricalActions(len(pairs)), EpsilonGreedy(len(pairs))):
        actions.epsilon = 1.0
        rows = actions.legal(row, allowed).expand(50, 1, -1)
        for noise in (actions.noise(50, 1, random()), 0.0):
            assert allowed[actions.choose(rows, noise)].all()


def test_epsilon_greedy_draws_uniformly_among_the_legal():
    actions, mask = EpsilonGreedy(5), torch.tensor([True, False, True, True, False])
    actions.epsilon = 0.6
    row = legal(torch.tensor([1.0, 9.0, 2.0, -5.0, 7.0]), mask).expand(20_000, -1)
    noise = actions.noise(20_000, 1, random())[:, 0]
    share = actions.choose(row, noise).bincount(minlength=5) / 20_000
    expected = torch.tensor([0.2, 0, 0.6, 0.2, 0])
    assert (share - expected).abs().max() < 0.015


# --- What is collected ----------------------------------------------------------------


def collected(steps: int = 60, later: bool = False) -> Any:
    mode = AutoresetMode.NEXT_STEP if later else AutoresetMode.SAME_STEP
    policy = make_policy(*SPACES)
    collector = Collector(
        SyncVectorEnv([Fenced] * 3, autoreset_mode=mode), policy.to_env
    )
    collector.reset(1)
    noise = iter(policy.noise(steps, 3, random()))
    return collector.collect(
        lambda obs, mask: policy.act(obs, next(noise), mask=mask), steps
    )


@pytest.mark.parametrize("later", [False, True])
def test_a_rollout_has_the_masks_of_what_was_seen_and_of_true_successors(later):
    batch = collected(later=later)
    real, ended = batch.real, batch.terminated
    assert ended.any()
    assert torch.equal(batch.mask[real], batch.obs[real][:, :4] == 1)
    assert batch.mask[~real].any(-1).all()
    assert torch.equal(batch.next_mask[~ended], batch.next_obs[~ended][:, :4] == 1)
    assert batch.next_mask[ended].all()
    # The reset's mask is another one: the episode's last observation has its own.
    cut = batch.truncated[:-1]
    assert cut.any()
    assert later or not torch.equal(batch.next_mask[:-1][cut], batch.mask[1:][cut])


def test_a_memory_keeps_masks_through_its_end_and_through_a_file():
    buffer, again, rollout = ReplayBuffer(90), ReplayBuffer(90), collected(50)
    for first in range(0, 50, 10):
        part = (x if x is None else x[first : first + 10] for x in rollout)
        buffer.push(type(rollout)(*part))
    again.load_state_dict(copy.deepcopy(buffer.state_dict()))
    for memory in (buffer, again):
        for steps in (1, 3):
            batch = memory.sample(200, random(2), steps)
            assert torch.equal(batch.mask, batch.obs[:, :4] == 1)
            going = batch.discount > 0
            shown = batch.next_obs[going][:, :4] == 1
            assert torch.equal(batch.next_mask[going], shown)
            assert not going.all()


# --- Every agent ----------------------------------------------------------------------

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("ppo", {"scale_reward": True, "target_kl": 0.1}),
    "PPG": ("ppg", {}),
    "A2C": ("a2c", {"entropy_weight": 0.01}),
    "A3C": ("a3c", {"actors": 1}),
    "IMPALA": ("impala", {"lag": 2}),
    "DQN": ("dqn", {"epsilon_end": 1.0}),
    "DQN, single": ("dqn", {"double": False, "dueling": True}),
    "Rainbow": ("rainbow", {"noisy": False}),
    "Rainbow, values": ("rainbow", {"num_atoms": 1, "noisy": False}),
    "SAC, discrete": ("sac", {"hidden": 16}),
    "Ape-X DQN": ("dqnapex", {}),
}


def learner_of(name: str, **changes: Any) -> Any:
    algorithm, own = AGENTS[name]
    config = ALGORITHMS[algorithm].settings(FENCED)
    config = replace(config, **SMALL[algorithm] | own | changes)
    return make_learner(algorithm, FENCED, config, {})


@pytest.mark.parametrize("name", AGENTS)
def test_no_agent_takes_an_illegal_action_and_a_resumed_run_is_the_same(name):
    """The environment fails at the first one."""
    whole, resumed = (learner_of(name, checkpoint_interval=2) for _ in range(2))
    for _ in range(4):
        whole.iterate()
    if not name.startswith(("A3C", "Ape-X")):
        resumed.policy.load_state_dict(whole.policy.state_dict())
        resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
        for _ in range(2):
            metrics = whole.iterate()
            assert str(metrics) == str(resumed.iterate())
        assert metrics.get("losses/entropy", 0.0) <= np.log(3) + 1e-6
    assert np.isfinite(evaluate(whole.policy, FENCED, 4)).all()
    getattr(whole, "close", lambda: None)()


def test_actors_in_processes_of_their_own_mind_the_masks():
    for name, more in (("IMPALA", {"lag": 0}), ("Ape-X DQN", {"learning_starts": 10})):
        with learner_of(name, transport="shared", actors=1, **more) as learner:
            for _ in range(3):
                learner.iterate()
    batch = learner.learner.buffer.sample(64, torch.Generator())
    assert torch.equal(batch.mask, batch.obs[:, :4] == 1)


# --- Bootstraps -----------------------------------------------------------------------


def batch_of() -> Batch:
    buffer = ReplayBuffer(500)
    buffer.push(collected())
    return buffer.sample(40, random(), 2)


def tempt(network: torch.nn.Module, by: float) -> None:
    """Add to the numbers of actions what the other half of a batch calls illegal."""

    def lure(module: Any, inputs: tuple[Tensor, ...], row: Tensor) -> Tensor:
        more = by * (inputs[0][..., :4] == 0)
        if row.shape[-1] == 4:
            return row + more
        # Mass for the last atom.
        atoms = torch.arange(1, row.shape[-1] + 1) / row.shape[-1]
        return row + more.unsqueeze(-1) * atoms

    network.register_forward_hook(lure)


@pytest.mark.parametrize(
    "name", ["DQN", "DQN, single", "Rainbow", "Rainbow, values", "SAC, discrete"]
)
def test_what_is_illegal_next_plays_no_role_in_a_target(name):
    """However much the network likes it."""
    batch, found = batch_of(), {}
    learner = learner_of(name)
    # The steps start where all is legal, so that only targets could differ.
    batch.obs[:, :4] = 1
    batch = batch._replace(mask=torch.ones_like(batch.mask))
    for by in (0.0, 50.0):
        tempted = copy.deepcopy(learner.algorithm)
        for policy in (tempted.policy, tempted.target.network):
            for network in [policy.network] if hasattr(policy, "network") else policy:
                tempt(network, by)
        for mask in (batch.next_mask, None):
            asked = batch._replace(next_mask=mask)
            found[by, mask is None] = tempted.error(asked, random()).loss.detach()
    torch.testing.assert_close(found[0.0, False], found[50.0, False])
    assert not torch.allclose(found[0.0, True], found[50.0, True])


@pytest.mark.equation("masked-bootstrap")
def test_the_target_of_dqn_is_a_maximum_over_the_legal():
    policy, batch = make_q_policy(*SPACES, 8), batch_of()
    config = replace(dqn_settings(FENCED), double=False)
    error = QLearning(policy, config).error(batch, torch.Generator())
    next_q, q = policy(batch.next_obs).tolist(), policy(batch.obs).tolist()
    for b, allowed in enumerate(batch.next_mask):
        best = max(next_q[b][a] for a in range(4) if allowed[a])
        target = batch.reward[b].item() + batch.discount[b].item() * best
        got = error.td_error[b].item() + q[b][batch.action[b]]
        assert got == pytest.approx(target, abs=1e-5)


def test_the_temperature_aims_at_what_the_masks_leave():
    learner = learner_of("SAC, discrete", temperature=0.3)
    algorithm, batch, aims = learner.algorithm, batch_of(), []
    algorithm.temperature.loss = lambda entropy, target=None: aims.append(target) or 0.0
    for mask in (batch.mask, None):
        algorithm.ascent(batch.obs, torch.Generator(), mask=mask)
    assert aims == [pytest.approx(batch.mask.sum(-1).log().mean().item() / 2), None]


# --- Hybrid actions and fast forms ----------------------------------------------------


def test_a_hybrid_policy_chooses_among_the_legal_types():
    space = spaces.Tuple((spaces.Discrete(3), BOX))
    policy = make_hybrid_policy(BOX, space, np.ones((3, 4)))
    noise, obs = policy.noise(1, 200, random())[0], torch.randn(200, 4)
    mask = torch.rand(200, 3, generator=random()) < 0.5
    mask[:, 1] |= ~mask.any(-1)
    action = policy.act(obs, noise, mask=mask)
    assert mask.gather(1, action[:, :1].long()).all()
    _, entropy = policy.evaluate_actions(obs, action, mask=mask)
    types = Categorical(logits=legal(policy(obs)[:, :3], mask))
    torch.testing.assert_close(entropy, types.entropy() + 4 * UNIT_ENTROPY)


def test_a_fused_error_computes_the_same_bits():
    policy, batch = make_q_policy(*SPACES, 8), batch_of()
    algorithm = QLearning(policy, dqn_settings(FENCED))
    algorithm.target.follow(1.0)
    plain = algorithm.error(batch, random()).loss
    assert torch.equal(plain, fused_q_error(policy)(algorithm, batch, random()).loss)


# --- Refusals -------------------------------------------------------------------------


class Wrong(Fenced):
    """Says something else at one of its looks."""

    def __init__(self, said: Any, at: int) -> None:
        super().__init__()
        self.said, self.at, self.looks = said, at, 0

    def look(self, over: bool = False) -> Any:
        seen, infos = super().look()
        self.looks += 1
        if self.looks == self.at:
            infos = {} if self.said is None else {"action_mask": self.said}
            self.mask = np.ones(4)
        return seen, infos


@pytest.mark.parametrize(
    ("said", "at", "words"),
    [
        ([0, 0, 0, 0], 3, r"got none for the copies \[0, 1\]"),
        (np.ones(3), 3, "must be 4 zeros"),
        (None, 1, "at each reset too"),
    ],
)
def test_what_is_no_mask_is_refused_by_name(said, at, words):
    collector = Collector(make_envs(lambda: Wrong(said, at), 2))

    def act(obs, mask=None):
        return 3 + (obs[:, :4] if mask is None else mask.float()).argmax(-1)

    collector.reset(1)
    with pytest.raises(ValueError, match="action_mask") as caught:
        collector.collect(act, 6)
    assert caught.match(words)


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "ppg", "sac", "td3"])
def test_agents_of_continuous_actions_refuse_masks_in_a_sentence(algorithm):
    make = partial(Fenced, done=BOX)
    with pytest.raises(ValueError, match=r"mask must be None for \w+, which cannot"):
        train(algorithm, make, total_steps=400, progress=False)


# --- Adapters -------------------------------------------------------------------------


class Asked(Fenced):
    """Has the method that sb3-contrib asks for, and says nothing."""

    def look(self, over: bool = False) -> Any:
        return super().look(over)[0], {"seen": 1}

    def action_masks(self) -> list[bool]:
        return [bool(x) for x in self.mask]


class Dictionary(Fenced):
    """Shows its mask as PettingZoo's games do."""

    def __init__(self) -> None:
        super().__init__()
        mask = spaces.Box(0, 1, (4,), np.int8)
        self.observation_space = spaces.Dict(
            observation=self.observation_space, action_mask=mask
        )

    def look(self, over: bool = False) -> Any:
        obs, infos = super().look(over)
        return {"observation": obs, **infos}, {"seen": 1}


with_adapters = pytest.mark.parametrize(
    ("make", "adapter"), [(Asked, MaskFromMethod), (Dictionary, MaskFromObservation)]
)


@with_adapters
def test_masks_that_nobody_reads_are_told_of(make, adapter, recwarn):
    config = replace(ppo_settings(""), num_envs=2)
    for quiet in (lambda: adapter(make()), lambda: WithoutMask(make()), Fenced):
        looked_at(quiet, config)
    assert not recwarn.list
    name = f"literate_rl:{adapter.__name__}"
    with pytest.warns(UserWarning, match=f"env has masks.*{name}"):
        looked_at(make, config)
    assert "action_mask" in read_wrapper(name)[0](make()).reset()[1]


@with_adapters
def test_an_adapted_environment_is_like_one_with_masks(make, adapter):
    policy, rollouts = make_policy(*SPACES), []
    for env in (lambda: adapter(make()), Fenced):
        collector = Collector(make_envs(env, 2), policy.to_env)
        collector.reset(1)
        act = lambda obs, mask: policy.act(obs, 0.0, mask=mask)  # noqa: E731
        rollouts.append(collector.collect(act, 20))
    torch.testing.assert_close(*rollouts, equal_nan=True, rtol=0, atol=0)
    assert WithoutMask(adapter(make())).reset(seed=0)[1] == {"seen": 1}

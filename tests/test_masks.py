"""Legal actions: a slow reference, an environment that fails at others, refusals."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
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

from benchmarks.learning import LEARNING, defaults_of, settings_in
from benchmarks.masks_learning import EXPERIMENTS, WhileActing
from benchmarks.store import read_table
from literate_rl.apps.training import ALGORITHMS, looked_at, make_learner, train
from literate_rl.by_hand.fast_forms import fused_q_error, numpy_act
from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.episodes import env_maker, read_masks
from literate_rl.data.makers import read_wrapper
from literate_rl.data.replay import Batch, ReplayBuffer
from literate_rl.learners.dqn import (
    EpsilonGreedy,
    QLearning,
    dqn_settings,
    make_q_policy,
)
from literate_rl.learners.ppo import PPO, ppo_settings
from literate_rl.nets.hybrid_policy import make_hybrid_policy
from literate_rl.nets.masking import legal
from literate_rl.nets.masks import MaskFromMethod, MaskFromObservation, WithoutMask
from literate_rl.nets.parts import CategoricalActions
from literate_rl.nets.policies import make_policy
from literate_rl.runs.evaluation import evaluate, play
from literate_rl.runs.runs import load

FENCED = "worlds:Fenced-v0"
SPACES = Fenced().observation_space, Fenced().action_space


# --- Against a slow reference ---------------------------------------------------------


def masks_of(*batch: int, seed: int = 0) -> Tensor:
    """Draw masks of five actions with an action in each."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(*batch, 5, generator=generator) < 0.4
    mask[..., 2] |= ~mask.any(-1)
    return mask


@pytest.mark.equation("masked-softmax")
@pytest.mark.equation("masked-gradient")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_it_is_the_distribution_of_the_legal_actions_alone(
    dtype: torch.dtype, scale: float
) -> None:
    """Log-probabilities, entropies, divergences and all their gradients."""
    generator = torch.Generator().manual_seed(1)
    mask, actions = masks_of(20), CategoricalActions(5)
    rows = scale * torch.randn(2, 20, 5, generator=generator).to(dtype)
    # What is illegal would be the likeliest by far.
    rows = torch.where(mask, rows, rows.abs() + scale)
    row, other = (x.clone().requires_grad_() for x in rows)
    noise = actions.noise(1, 20, generator)[0].to(dtype)
    left = actions.legal(row, mask)
    action = actions.choose(left, noise)
    terms = *actions.evaluate(left, action), actions.kl(left, legal(other, mask))
    weight = torch.randn(3, 20, generator=generator).to(dtype)
    (torch.stack(terms) * weight).sum().backward()

    # One state after another, with nothing but the legal actions, in float64.
    close = {"rtol": 1e-4, "atol": 1e-4 * scale if dtype == torch.float32 else 1e-8}
    for b in range(20):
        here = mask[b].nonzero()[:, 0]
        alone, beside = (x[b, here].double().requires_grad_() for x in rows)
        policy, second = Categorical(logits=alone), Categorical(logits=beside)
        place = (here == action[b]).nonzero()[0, 0]
        slow = policy.log_prob(place), policy.entropy(), kl_divergence(policy, second)
        for got, want in zip(terms, slow, strict=True):
            torch.testing.assert_close(got[b].double(), want, **close)
        (torch.stack(slow) * weight[:, b].double()).sum().backward()
        for tensor, want in ((row, alone), (other, beside)):
            grad = tensor.grad[b]
            assert (grad[~mask[b]] == 0).all()
            torch.testing.assert_close(grad[here].double(), want.grad, **close)
    assert (left.softmax(-1)[~mask] == 0).all()
    assert torch.equal(left[mask], row[mask])


def test_a_mask_that_allows_all_changes_no_bit() -> None:
    row = torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(legal(row, torch.ones(7, 3, 5).bool()), row)


LOGITS = st.sampled_from([-1e30, -1e9, -3.0, 0.0, 2.5, 1e9, 1e30])


@settings(max_examples=60)
@given(st.lists(st.tuples(LOGITS, st.booleans()), min_size=2, max_size=6), st.data())
def test_no_noise_makes_anybody_take_an_illegal_action(pairs: Any, data: Any) -> None:
    row, allowed = (torch.tensor([pair[k] for pair in pairs]) for k in (0, 1))
    allowed[data.draw(st.integers(0, len(pairs) - 1))] = True
    for actions in (CategoricalActions(len(pairs)), EpsilonGreedy(len(pairs))):
        actions.epsilon = 1.0
        noise = actions.noise(50, 1, torch.Generator().manual_seed(1))
        rows = actions.legal(row, allowed).expand(50, 1, -1)
        for chosen in (actions.choose(rows, noise), actions.choose(rows, 0.0)):
            assert allowed[chosen].all()


def test_epsilon_greedy_draws_uniformly_among_the_legal() -> None:
    actions, mask = EpsilonGreedy(5), torch.tensor([True, False, True, True, False])
    actions.epsilon = 0.6
    row = legal(torch.tensor([1.0, 9.0, 2.0, -5.0, 7.0]), mask).expand(20_000, -1)
    noise = actions.noise(20_000, 1, torch.Generator().manual_seed(1))[:, 0]
    share = actions.choose(row, noise).bincount(minlength=5) / 20_000
    expected = torch.tensor([0.2, 0, 0.6, 0.2, 0])
    assert (share - expected).abs().max() < 0.015
    # Its log-probabilities and its entropy are those of that mixture.
    every = torch.arange(5).repeat(4000)[:5]
    log_prob, entropy = actions.evaluate(row[:5], every)
    torch.testing.assert_close(log_prob.exp(), expected)
    torch.testing.assert_close(entropy, Categorical(expected).entropy().expand(5))


# --- What is collected ----------------------------------------------------------------


def fenced(copies: int = 3, later: bool = False, **arguments: Any) -> SyncVectorEnv:
    mode = AutoresetMode.NEXT_STEP if later else AutoresetMode.SAME_STEP
    makers = [partial(Fenced, **arguments)] * copies
    return SyncVectorEnv(makers, autoreset_mode=mode)


def collected(policy: Any, steps: int = 60, later: bool = False) -> Any:
    collector = Collector(fenced(later=later), policy.to_env)
    collector.reset(1)
    generator = torch.Generator().manual_seed(1)
    noise = iter(policy.noise(steps, 3, generator))
    return collector.collect(
        lambda obs, mask: policy.act(obs, next(noise), mask=mask), steps
    )


@pytest.mark.parametrize("later", [False, True])
def test_a_rollout_has_the_masks_of_what_was_seen_and_of_true_successors(
    later: bool,
) -> None:
    batch = collected(make_policy(*SPACES), later=later)
    assert batch.terminated.any()
    assert batch.truncated.any()
    shown = batch.obs[..., :4] == 1
    assert torch.equal(batch.mask[batch.real], shown[batch.real])
    assert batch.mask[~batch.real].any(-1).all()
    following = batch.next_obs[..., :4] == 1
    assert torch.equal(batch.next_mask[~batch.terminated], following[~batch.terminated])
    assert batch.next_mask[batch.terminated].all()
    # The reset's mask is another one: the episode's last observation has its own.
    assert batch.mask.dtype == torch.bool
    if not later:
        cut = batch.truncated[:-1]
        assert not torch.equal(batch.next_mask[:-1][cut], batch.mask[1:][cut])


def test_without_masks_a_rollout_has_none() -> None:
    collector = Collector(make_envs("CartPole-v1", 2))
    collector.reset(1)
    batch = collector.collect(lambda obs: torch.zeros(2, dtype=torch.int64), 3)
    assert batch.mask is None
    assert batch.next_mask is None
    buffer = ReplayBuffer(10)
    buffer.push(batch)
    assert buffer.sample(4, torch.Generator())[-2:] == (None, None)
    assert "mask" not in buffer.state_dict()


def test_a_memory_keeps_masks_through_its_end_and_through_a_file() -> None:
    buffer, generator = ReplayBuffer(90), torch.Generator().manual_seed(1)
    rollout = collected(make_policy(*SPACES), 50)
    for first in range(0, 50, 10):
        buffer.push(
            type(rollout)(
                *(x if x is None else x[first : first + 10] for x in rollout)
            ),
            among=None,
        )
    again = ReplayBuffer(90)
    again.load_state_dict(copy.deepcopy(buffer.state_dict()))
    for memory in (buffer, again):
        generator.manual_seed(2)
        for steps in (1, 3):
            batch = memory.sample(200, generator, steps)
            assert torch.equal(batch.mask, batch.obs[:, :4] == 1)
            going = batch.discount > 0
            shown = batch.next_obs[:, :4] == 1
            assert torch.equal(batch.next_mask[going], shown[going])
            assert not going.all()
    # A memory of an older version has none: there all was legal.
    state = buffer.state_dict()
    older = ReplayBuffer(90)
    older.load_state_dict({x: y for x, y in state.items() if "mask" not in x})
    older.push(type(rollout)(*(x if x is None else x[:5] for x in rollout)))
    batch = older.sample(400, generator)
    known = (batch.mask == (batch.obs[:, :4] == 1)).all(-1)
    assert (known | batch.mask.all(-1)).all()
    assert known.any()
    assert not known.all()


# --- Every agent ----------------------------------------------------------------------

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("ppo", {"scale_reward": True, "target_kl": 0.1}),
    "PPG": ("ppg", {}),
    "PPG, rollout": ("ppg", {"kl_reference": "rollout"}),
    "A2C": ("a2c", {"entropy_weight": 0.01}),
    "A3C": ("a3c", {"actors": 1}),
    "IMPALA": ("impala", {"lag": 2}),
    "IMPALA, actors": ("impala", {"actors": 2}),
    "DQN": ("dqn", {"epsilon_end": 1.0}),
    "DQN, single": ("dqn", {"double": False, "dueling": True}),
    "Rainbow": ("rainbow", {}),
    "Rainbow, values": ("rainbow", {"num_atoms": 1, "noisy": False}),
    "SAC, discrete": ("sac", {}),
    "Ape-X DQN": ("dqnapex", {}),
    "Ape-X Rainbow": ("rainbowapex", {}),
}


def learner_of(name: str, **changes: Any) -> Any:
    algorithm, own = AGENTS[name]
    config = ALGORITHMS[algorithm].settings(FENCED)
    if algorithm == "sac":
        config = replace(config, hidden=16)
    config = replace(config, **SMALL[algorithm] | own | changes)
    return make_learner(algorithm, FENCED, config, {})


def weights(learner: Any) -> list[Tensor]:
    return [x.clone() for x in learner.policy.state_dict().values()]


@pytest.mark.parametrize("name", AGENTS)
def test_no_agent_takes_an_illegal_action_and_a_resumed_run_is_the_same(
    name: str,
) -> None:
    """The environment fails at the first one."""
    learners = [learner_of(name, checkpoint_interval=2) for _ in range(2)]
    for learner in learners:
        for _ in range(4):
            metrics = learner.iterate()
        if learner is learners[0]:
            state = copy.deepcopy(learner.state_dict())
            held = copy.deepcopy(learner.policy.state_dict())
            for _ in range(2):
                metrics = learner.iterate()
            last, first = metrics, weights(learner)
        else:
            learner.policy.load_state_dict(held)
            learner.load_state_dict(state)
            for _ in range(2):
                metrics = learner.iterate()
            assert all(map(torch.equal, first, weights(learner)))
            assert str(metrics) == str(last)
        if "losses/entropy" in metrics:
            assert metrics["losses/entropy"] <= np.log(3) + 1e-6
        returns = evaluate(learner.policy, FENCED, 4)
        assert np.isfinite(returns).all()
        getattr(learner, "close", lambda: None)()


def test_actors_in_processes_of_their_own_mind_the_masks() -> None:
    learner = learner_of("IMPALA, actors", transport="shared", actors=1)
    with learner:
        for _ in range(3):
            learner.iterate()
    apex = learner_of("Ape-X DQN", transport="shared", actors=1, learning_starts=10)
    with apex:
        for _ in range(3):
            apex.iterate()
    batch = apex.learner.buffer.sample(64, torch.Generator())
    assert torch.equal(batch.mask, batch.obs[:, :4] == 1)


def test_an_unchanged_policy_has_the_ratio_one_under_its_masks() -> None:
    learner = learner_of("IMPALA", lag=0)
    learner.collect()
    unroll = learner.batch([*learner.memory.entries])
    log_prob, entropy = learner.policy.evaluate_actions(
        unroll.obs_plus_1[:-1], unroll.action, mask=unroll.mask
    )
    torch.testing.assert_close(log_prob, unroll.log_prob)
    assert (entropy <= unroll.mask.sum(-1).log() + 1e-6).all()
    # Without the mask the same policy looks as if it had changed.
    without, _ = learner.policy.evaluate_actions(unroll.obs_plus_1[:-1], unroll.action)
    assert (without < log_prob - 0.1).any()


# --- Bootstraps -----------------------------------------------------------------------


def batch_of(count: int = 40) -> Batch:
    buffer = ReplayBuffer(500)
    buffer.push(collected(make_policy(*SPACES)))
    return buffer.sample(count, torch.Generator().manual_seed(1), 2)


class Tempted(torch.nn.Module):
    """Adds to the numbers of actions what the other half of a batch calls illegal."""

    def __init__(self, network: Any, by: float) -> None:
        super().__init__()
        self.network, self.by = network, by

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("network"), name)

    def forward(self, obs: Tensor, *noise: Any) -> Tensor:
        row = self.network(obs, *noise)
        lure = self.by * (obs[..., :4] == 0)
        if row.shape[-1] == 4:
            return row + lure
        # Mass for the last atom.
        atoms = torch.linspace(0, 1, row.shape[-1]) if row.shape[-1] > 1 else 1.0
        return row + lure.unsqueeze(-1) * atoms


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("DQN", {}),
        ("DQN, single", {}),
        ("Rainbow", {"noisy": False}),
        ("Rainbow, values", {}),
        ("SAC, discrete", {}),
    ],
)
def test_what_is_illegal_next_plays_no_role_in_a_target(
    name: str, changes: dict[str, Any]
) -> None:
    """However much the network likes it."""
    learner, batch = learner_of(name, **changes), batch_of()
    algorithm, generator = learner.algorithm, torch.Generator()
    # The steps start where all is legal, so that only targets could differ.
    obs = batch.obs.clone()
    obs[:, :4] = 1
    batch = batch._replace(obs=obs, mask=torch.ones_like(batch.mask))
    found = {}
    for by in (0.0, 50.0):
        tempted = copy.deepcopy(algorithm)
        for policy in (tempted.policy, tempted.target.network):
            if hasattr(policy, "network"):
                policy.network = Tempted(policy.network, by)
            else:
                for k, critic in enumerate(policy):
                    policy[k] = Tempted(critic, by)
        for mask in (batch.next_mask, None):
            asked = batch._replace(next_mask=mask)
            found[by, mask is None] = tempted.error(asked, generator).loss.detach()
    torch.testing.assert_close(found[0.0, False], found[50.0, False])
    assert not torch.allclose(found[0.0, True], found[50.0, True])


@pytest.mark.equation("masked-bootstrap")
def test_the_target_of_dqn_is_a_maximum_over_the_legal() -> None:
    policy, batch = make_q_policy(*SPACES, 8), batch_of()
    config = replace(dqn_settings(FENCED), double=False)
    error = QLearning(policy, config).error(batch, torch.Generator())
    with torch.no_grad():
        next_q, q = policy(batch.next_obs), policy(batch.obs)
    for b in range(len(q)):
        best = max(next_q[b, a].item() for a in range(4) if batch.next_mask[b, a])
        target = batch.reward[b].item() + batch.discount[b].item() * best
        got = error.td_error[b].item() + q[b, batch.action[b]].item()
        assert got == pytest.approx(target, abs=1e-5)


def test_the_temperature_aims_at_what_the_masks_leave() -> None:
    learner = learner_of("SAC, discrete", temperature=0.3)
    algorithm, batch = learner.algorithm, batch_of()
    aims = []
    algorithm.temperature.loss = lambda entropy, target=None: aims.append(target) or 0.0
    algorithm.ascent(batch.obs, torch.Generator(), mask=batch.mask)
    algorithm.ascent(batch.obs, torch.Generator())
    assert aims == [pytest.approx(batch.mask.sum(-1).log().mean().item() / 2), None]


# --- Hybrid actions -------------------------------------------------------------------


class Forbidding(gym.Wrapper):
    """Says which types of action are legal, and fails at any other."""

    def told(self, infos: dict[str, Any]) -> dict[str, Any]:
        self.mask = self.np_random.random(3) < 0.5
        self.mask[self.np_random.integers(3)] = True
        return {**infos, "action_mask": self.mask}

    def reset(self, **options: Any) -> Any:
        obs, infos = self.env.reset(**options)
        return obs, self.told(infos)

    def step(self, action: Any) -> Any:
        assert self.mask[action[0]], "this type is illegal"
        *rest, infos = self.env.step(action)
        return *rest, self.told(infos)


def test_a_hybrid_policy_chooses_among_the_legal_types() -> None:
    make = lambda: Forbidding(gym.make("literate_rl/Moving-v0"))  # noqa: E731
    envs = make_envs(make, 4)
    policy = make_hybrid_policy(envs.single_observation_space, envs.single_action_space)
    config = replace(ppo_settings("literate_rl/Moving-v0"), **SMALL["ppo"])
    PPO(policy, envs, config).iterate()
    assert np.isfinite(evaluate(policy, make, 2)).all()

    # An illegal type is like one whose logit is far below all others.
    generator = torch.Generator().manual_seed(1)
    mask, actions = masks_of(20)[:, 1:4], policy.actions
    mask[:, 0] |= ~mask.any(-1)
    row = torch.randn(20, 3 + 2 * 2, generator=generator).double()
    row[:, 5:] = row[:, 5:].exp()
    rows = [row.clone().requires_grad_() for _ in range(2)]
    far = rows[1] - 1e4 * torch.nn.functional.pad(~mask, (0, 4)).double()
    found = []
    for left in (actions.legal(rows[0], mask), far):
        noise = actions.noise(1, 20, generator.manual_seed(2))[0].double()
        action = actions.choose(left, noise).detach()
        other = left.detach().roll(1, 0)
        other[:, :3] = left[:, :3].detach() / 2
        found.append((action, *actions.evaluate(left, action), actions.kl(left, other)))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)
    for terms, source in zip(found, rows, strict=True):
        torch.stack(terms[1:]).sum().backward()
        assert source.grad.isfinite().all()
    torch.testing.assert_close(rows[0].grad, rows[1].grad)
    assert (rows[0].grad[:, :3][~mask] == 0).all()


# --- Fast forms -----------------------------------------------------------------------


def test_fast_forms_compute_the_same_bits() -> None:
    policy, batch = make_q_policy(*SPACES, 8), batch_of()
    config, generator = dqn_settings(FENCED), torch.Generator()
    noise = policy.noise(1, 40, generator)[0]
    fast = numpy_act(policy)
    for luck in (noise, 0.0):
        one, two = (act(batch.obs, luck, mask=batch.mask) for act in (policy.act, fast))
        assert torch.equal(one, two)
    algorithm = QLearning(policy, config)
    algorithm.target.follow(1.0)
    plain = algorithm.error(batch, generator)
    fused = fused_q_error(policy)(algorithm, batch, generator)
    assert torch.equal(plain.loss, fused.loss)
    assert not torch.equal(
        plain.loss, algorithm.error(batch._replace(next_mask=None), generator).loss
    )
    box = make_policy(SPACES[0], spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match="mask must be None for GaussianActions"):
        numpy_act(box)(batch.obs, 0.0, mask=batch.mask)


def test_another_idea_of_what_is_legal_gets_no_fused_error() -> None:
    class Strict(EpsilonGreedy):
        def legal(self, row: Tensor, mask: Tensor) -> Tensor:
            return legal(row, mask) - 1

    policy = make_q_policy(*SPACES, 8)
    policy.actions = Strict(4)
    with pytest.raises(ValueError, match="methods of its own, got Strict"):
        fused_q_error(policy)


# --- Acting after training ------------------------------------------------------------


class Values(torch.nn.Linear):
    """A Q network of one's own."""

    def forward(self, state: Tensor) -> Tensor:
        return super().forward(state)


@pytest.mark.parametrize("models", [{}, {"qnet": Values(5, 4)}])
def test_an_agent_of_train_acts_legally_and_plays_on_film(
    models: Any, tmp_path: Path
) -> None:
    agent = train("dqn", FENCED, total_steps=8, progress=False, hidden=8, **models)
    state = torch.zeros(4, 5)
    mask = np.eye(4, dtype=np.int8)
    assert agent.act({"state": state}, mask=mask).flatten().tolist() == [0, 1, 2, 3]
    loaded = load(agent.save(tmp_path / "run"), **models)
    allowed = torch.from_numpy(mask == 1)
    assert loaded.act(state, 0.0, mask=allowed).tolist() == [0, 1, 2, 3]
    assert len(set(agent.act({"state": state}).flatten().tolist())) == 1
    with pytest.raises(ValueError, match="zeros and ones"):
        agent.act({"state": state}, mask=2 * mask)
    seen: list[Any] = []
    envs = SyncVectorEnv([Fenced], autoreset_mode=AutoresetMode.SAME_STEP)
    play(agent.policy, envs, 1, 9, look=lambda: seen.append(1))
    assert len(seen) == 5


# --- Refusals -------------------------------------------------------------------------

BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)


class Wrong(Fenced):
    """Says something else at its third look."""

    def __init__(self, said: Any) -> None:
        super().__init__()
        self.said, self.looks = said, 0

    def look(self, over: bool = False) -> Any:
        seen, infos = super().look()
        self.looks += 1
        if self.looks == 3:
            infos = {} if self.said is None else {"action_mask": self.said}
            self.mask = np.ones(4)
        return seen, infos


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([0, 0, 0, 0], r"must leave a legal action, got none for the copies \[0, 1\]"),
        ([0, 0, 2, 1], "zeros and ones"),
        ([0, 0, 0.5, 1], "zeros and ones"),
        ([np.nan, 1, 1, 1], "zeros and ones"),
        (["a", "b", "c", "d"], "zeros and ones"),
        ([1, 1, 1], r"'Wrong' failed in step: infos\['action_mask'\] must be 4 zeros"),
        ([[1, 1, 1, 1]], "zeros and ones"),
        (1, "zeros and ones"),
        (None, r"at each reset and each step, or never, got none for the copies"),
    ],
)
@pytest.mark.parametrize("as_array", [True, False])
def test_what_is_no_mask_is_refused_by_name(
    said: Any, words: str, as_array: bool
) -> None:
    if as_array and said is not None:
        said = np.array(said)
    policy = make_policy(*SPACES)
    collector = Collector(make_envs(lambda: Wrong(said), 2), policy.to_env)
    collector.reset(1)
    with pytest.raises(ValueError, match="action_mask") as caught:
        collector.collect(lambda obs, mask: policy.act(obs, 0.0, mask=mask), 6)
    assert caught.match(words)


@pytest.mark.parametrize(
    ("space", "said", "number"),
    [
        (spaces.Discrete(3), np.ones(4), 3),
        (spaces.Discrete(3), {"a": np.ones(3)}, 3),
        (spaces.MultiBinary(3), np.ones(3), 6),
        (spaces.MultiDiscrete([2, 3]), [[1, 0], [1, 0, 1]], 5),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": np.ones(2)}, 2),
        (spaces.Tuple([spaces.Discrete(3), BOX]), (np.ones(3), None), 3),
    ],
)
def test_a_mask_of_another_form_is_told_with_its_environment(space, said, number):
    env = Wrong(said)
    env.action_space, env.looks = space, 2
    words = (
        rf"env 'Wrong' failed in reset: infos\['action_mask'\] must be {number} zero"
    )
    with pytest.raises(ValueError, match=words):
        env_maker(lambda: env)().reset()


def test_a_vector_environment_has_its_masks_read_too() -> None:
    acting = np.ones(2, bool)
    with pytest.raises(ValueError, match=r"must stay \(2, 4\), got \(2, 3\)"):
        read_masks({"action_mask": np.ones((2, 3))}, acting, np.ones((2, 4), bool))
    with pytest.raises(ValueError, match=r"zeros and ones, got {'a': "):
        read_masks({"action_mask": {"a": np.ones((2, 3))}}, acting)


def test_a_mask_of_another_width_than_the_actions_is_refused() -> None:
    policy = make_policy(SPACES[0], spaces.Discrete(5))
    with pytest.raises(ValueError, match="mask"):
        policy.act(torch.zeros(2, 5), 0.0, mask=torch.ones(2, 4).bool())
    with pytest.raises(TypeError, match="mask"):
        policy.act(torch.zeros(2, 5), 0.0, mask=torch.ones(2, 5))
    with pytest.raises(ValueError, match="mask must leave a legal action"):
        policy.act(torch.zeros(2, 5), 0.0, mask=torch.zeros(2, 5).bool())


class Late(Fenced):
    """Says what is legal only after a step."""

    def reset(self, **options: Any) -> Any:
        seen, _ = super().reset(**options)
        self.mask = np.ones(4)
        return seen, {}


def test_masks_that_come_late_are_refused() -> None:
    collector = Collector(make_envs(Late, 2))
    collector.reset(1)
    with pytest.raises(ValueError, match="action_mask at each reset too"):
        collector.collect(lambda obs: torch.full((2,), 3), 1)


@pytest.mark.parametrize(
    "algorithm", ["ppo", "a2c", "impala", "ppg", "sac", "td3", "ddpg", "hddpg"]
)
def test_agents_of_continuous_actions_refuse_masks_in_a_sentence(
    algorithm: str,
) -> None:
    gym.register("FencedBox-v0", partial(Fenced, done=BOX))
    try:
        with pytest.raises(
            ValueError, match=r"mask must be None for \w+, which cannot"
        ):
            train(algorithm, "FencedBox-v0", total_steps=400, progress=False)
    finally:
        del gym.registry["FencedBox-v0"]


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
        parts = {"observation": self.observation_space, "action_mask": mask}
        self.observation_space = spaces.Dict(parts)

    def look(self, over: bool = False) -> Any:
        obs, infos = super().look(over)
        return {"observation": obs, **infos}, {"seen": 1}


@pytest.mark.parametrize(
    ("make", "adapter"),
    [(Asked, MaskFromMethod), (Dictionary, MaskFromObservation)],
)
def test_masks_that_nobody_reads_are_told_of(
    make: Any, adapter: Any, recwarn: Any
) -> None:
    config = replace(ppo_settings("CartPole-v1"), num_envs=2)
    for wrapper in (adapter, WithoutMask):
        looked_at(lambda wrapper=wrapper: wrapper(make()), config)
    looked_at(Fenced, config)
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=f"env has masks.*literate_rl:{adapter.__name__}"
    ):
        looked_at(make, config)
    make_wrapper, *_ = read_wrapper(f"literate_rl:{adapter.__name__}")
    assert make_wrapper(make()).reset()[1].keys() >= {"action_mask"}


@pytest.mark.parametrize(
    "make",
    [lambda: MaskFromMethod(Asked()), lambda: MaskFromObservation(Dictionary())],
)
def test_an_adapted_environment_is_like_one_with_masks(make: Any) -> None:
    policy = make_policy(*SPACES)
    assert make().observation_space == SPACES[0]
    assert make().reset(seed=0)[1]["seen"] == 1
    rollouts = []
    for env in (make, Fenced):
        collector = Collector(make_envs(env, 2), policy.to_env)
        collector.reset(1)
        act = lambda obs, mask: policy.act(obs, 0.0, mask=mask)  # noqa: E731
        rollouts.append(collector.collect(act, 20))
    assert rollouts[0].mask is not None
    for one, two in zip(*rollouts, strict=True):
        torch.testing.assert_close(one, two, equal_nan=True, rtol=0, atol=0)


def test_a_mask_can_be_taken_away() -> None:
    env = WithoutMask(MaskFromMethod(Asked()))
    obs, infos = env.reset(seed=0)
    assert infos == {"seen": 1}
    index = 3 + int(np.flatnonzero(obs[:4])[0])
    assert env.step(index)[-1] == {"seen": 1}
    with pytest.raises(ValueError, match="env must show a Dict of observation and"):
        MaskFromObservation(Fenced())


# --- What the chapter shows -----------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_runs_of_the_chapter_were_made_with_the_settings_of_today(name) -> None:
    config = asdict(EXPERIMENTS[name].config)
    del config["seed"]
    _, origin = read_table(LEARNING / f"{name}.csv")
    found = {**defaults_of(EXPERIMENTS[name].config), **settings_in(origin)}
    assert found == {name: str(value) for name, value in config.items()}
    assert origin["seeds"] == "1 to 10"


def test_the_trap_of_the_benchmark_masks_while_acting_only() -> None:
    right = make_policy(*SPACES)
    trap = WhileActing(right.network, right.actions)
    obs, mask = torch.randn(7, *SPACES[0].shape), torch.eye(SPACES[1].n)[[0] * 7] > 0
    action = trap.act(obs, 0.0, mask=mask)
    assert torch.equal(action, right.act(obs, 0.0, mask=mask))
    for term, other in zip(
        trap.evaluate_actions(obs, action, mask=mask),
        right.evaluate_actions(obs, action),
        strict=True,
    ):
        assert torch.equal(term, other)

"""Rainbow: noisy layers, errors of a batch and the agent, against slow references."""

import copy
import math
import warnings
from dataclasses import replace
from functools import partial
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
import torch
from fuzz import assert_held
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from projections import exact_projection
from torch import nn

import literate_rl
from literate_rl.actors.apex import RainbowApexConfig, of_one_policy
from literate_rl.apps.programs import run_program
from literate_rl.check.own_models import LogitsOf
from literate_rl.data.agents import make_envs
from literate_rl.data.replay import Batch, ReplayBuffer
from literate_rl.learners.dqn import EpsilonGreedy
from literate_rl.learners.rainbow import (
    DistributionalQLearning,
    Rainbow,
    RainbowConfig,
    RainbowNetwork,
    RainbowPolicy,
    make_rainbow_policy,
    rainbow_settings,
)
from literate_rl.maths.noisy import NoisyLinear, factorised_noise
from literate_rl.nets.encoders import ConvolutionalEncodingNetwork
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import Run, fit, flat_env, load

seeds = st.integers(0, 9999)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- Noisy layers --------------------------------------------------------------------


def materialised(layer, noise):
    """Return the weights and biases of one row of noise."""
    inputs = layer.mean.in_features
    into, out = noise[:inputs], noise[inputs:]
    weight = layer.mean.weight + layer.deviation.weight * torch.outer(out, into)
    return weight, layer.mean.bias + layer.deviation.bias * out


@pytest.mark.equation("noisy-layer")
@pytest.mark.equation("noisy-weights")
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), seeds)
def test_a_noisy_layer_is_a_layer_with_random_weights(batch, n, m, seed) -> None:
    torch.manual_seed(seed)
    layer = NoisyLinear(n, m).double()
    for parameter in layer.deviation.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(batch, n, dtype=torch.float64)
    noise = factorised_noise(1, batch, n + m, generator(seed))[0].double()
    slow = [
        weight @ row + bias
        for row, (weight, bias) in zip(
            x, (materialised(layer, eta) for eta in noise), strict=True
        )
    ]
    torch.testing.assert_close(layer(x, noise), torch.stack(slow))
    # One noise for all rows makes the same weights for all.
    same = factorised_noise(1, 1, n + m, generator(seed))[0].double()
    torch.testing.assert_close(layer(x, same[0]), layer(x, same.expand(batch, -1)))
    # Without noise the mean weights are left.
    plain = nn.functional.linear(x, layer.mean.weight, layer.mean.bias)
    assert torch.equal(layer(x, 0.0), plain)
    assert torch.equal(layer(x, 0 * noise), plain)


@pytest.mark.equation("factorised-noise")
def test_the_noise_of_the_weights_has_rank_one() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(8, 8)
    noise = factorised_noise(1, 1, 16, generator())[0, 0]
    weight, _ = materialised(layer, noise)
    noise_of_weights = (weight - layer.mean.weight) / layer.deviation.weight
    assert torch.linalg.matrix_rank(noise_of_weights) == 1
    # Each is a signed root of a normal number.
    normal = torch.randn(1, 1, 16, generator=generator())[0, 0]
    expected = [math.copysign(math.sqrt(abs(x)), x) for x in normal.tolist()]
    torch.testing.assert_close(noise, torch.tensor(expected))


@pytest.mark.equation("noisy-start")
def test_the_deviations_start_as_in_the_paper() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(512, 51)
    for parameter in layer.deviation.parameters():
        assert torch.equal(parameter, torch.full_like(parameter, 0.5 / 512**0.5))
    for parameter in layer.mean.parameters():
        assert parameter.abs().max() <= 512**-0.5
        assert parameter.abs().max() > 0.9 * 512**-0.5
        assert abs(parameter.mean()) < 0.3 * 512**-0.5


def test_the_outputs_are_spread_as_the_deviations_say() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(4, 3)
    for parameter in layer.deviation.parameters():
        nn.init.uniform_(parameter, 0.1, 1.0)
    x = torch.randn(4)
    noise = factorised_noise(1, 200_000, 7, generator())[0]
    with torch.no_grad():
        out = layer(x.expand(len(noise), -1), noise)
    weight, bias = layer.deviation.weight, layer.deviation.bias
    # E f(η)² = E|η| = √(2/π); the noise of different inputs is independent.
    unit = math.sqrt(2 / math.pi)
    variance = unit * (unit * (weight * x).square().sum(1) + bias.square())
    torch.testing.assert_close(out.mean(0), layer(x, 0.0), atol=0.02, rtol=0)
    torch.testing.assert_close(out.var(0), variance, rtol=0.03, atol=0)


def test_rows_of_a_batch_have_noise_of_their_own_and_the_layer_keeps_none() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(4, 3)
    assert not list(layer.buffers())
    x = torch.ones(5, 4)
    out = layer(x, factorised_noise(1, 5, 7, generator())[0])
    assert len({tuple(row) for row in out.tolist()}) == 5


# --- Networks and policies -----------------------------------------------------------


def spaces_of(env="CartPole-v1"):
    envs = make_envs(env, 1)
    return envs.single_observation_space, envs.single_action_space


KINDS = [
    {"num_atoms": k, "dueling": d, "noisy": n}
    for k in (1, 5)
    for d in (False, True)
    for n in (False, True)
]


PICTURES = spaces.Box(0, 255, (3, 7, 7), np.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_may_come_flat_and_as_bytes(kind) -> None:
    torch.manual_seed(0)
    made = make_rainbow_policy(PICTURES, spaces.Discrete(4), hidden=16, **kind)
    encoder = made.network.first.encoder
    assert isinstance(encoder, ConvolutionalEncodingNetwork)
    obs = torch.randint(256, (2, 5, 3, 7, 7), dtype=torch.uint8)
    value = made(obs)
    assert value.shape == (2, 5, 4)
    assert torch.equal(value, made(obs.flatten(2)))
    assert torch.equal(value, made(obs.float()))
    # Dark and bright are 0 and 1 to the first layer.
    features, _ = encoder(obs)
    encoder.scale = 1.0
    torch.testing.assert_close(features, encoder(obs / 255)[0])
    noise = made.noise(1, 5, generator())[0]
    assert made.act(obs[0], noise).shape == (5,)


@pytest.mark.parametrize(
    "space",
    [spaces.Box(0, 1, (2, 2)), spaces.Discrete(3), spaces.Dict(a=spaces.Discrete(2))],
)
def test_other_observations_are_refused(space) -> None:
    with pytest.raises(ValueError, match="observation_space must be a box of vectors"):
        make_rainbow_policy(space, spaces.Discrete(4))


def test_vectors_go_straight_into_the_first_layer() -> None:
    first = make_rainbow_policy(*spaces_of(), hidden=16).network.first
    assert type(first) is nn.Linear
    assert first.weight.shape == (16, 4)


def test_a_policy_for_pictures_is_built_again_from_its_recipe() -> None:
    made = make_rainbow_policy(PICTURES, spaces.Discrete(4), hidden=16)
    name, arguments = made.recipe
    again = getattr(literate_rl, name)(**arguments)
    again.load_state_dict(made.state_dict())
    obs = torch.randint(256, (5, 3, 7, 7), dtype=torch.uint8)
    assert torch.equal(made(obs), again(obs))


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_means_and_greedy_actions_the_best_of_them(kind) -> None:
    torch.manual_seed(0)
    policy = make_rainbow_policy(*spaces_of(), hidden=16, **kind)
    obs = torch.randn(3, 6, 4)
    value = policy(obs)
    assert value.shape == (3, 6, 2)
    if policy.distributional:
        prob = policy.network(obs, 0.0).softmax(-1)
        torch.testing.assert_close(prob.sum(-1), torch.ones(3, 6, 2))
        atoms = [0.0, 25.0, 50.0, 75.0, 100.0]
        slow = sum(prob[..., k] * x for k, x in enumerate(atoms))
        torch.testing.assert_close(value, slow)
    assert torch.equal(policy.act(obs, 0.0), value.argmax(-1))
    torch.testing.assert_close(policy.value(obs), value.amax(-1))
    noise = policy.noise(3, 6, generator())
    assert policy.act(obs, noise).shape == (3, 6)


@pytest.mark.equation("dueling-logits")
def test_dueling_logits_are_the_same_if_all_advantages_grow_alike() -> None:
    torch.manual_seed(0)
    network = RainbowNetwork(4, 3, 5, 16, dueling=True, noisy=False, sigma=0.5)
    obs = torch.randn(7, 4)
    before = network(obs, 0.0)
    row = network.layers[-1](
        torch.relu(network.layers[0](torch.relu(network.first(obs))))
    ).view(7, 4, 5)
    # The mean over the actions is the value's logit, for each atom.
    torch.testing.assert_close(before.mean(1), row[:, 0])
    with torch.no_grad():
        network.layers[-1].bias.view(4, 5)[1:] += torch.randn(5)
    torch.testing.assert_close(network(obs, 0.0), before)


def test_probabilities_of_a_foreign_network_become_logits() -> None:
    torch.manual_seed(0)
    own = RainbowNetwork(4, 2, 5, 16, dueling=True, noisy=False, sigma=0.5)

    class Foreign(nn.Module):
        def forward(self, obs):
            return own(obs, 0.0).softmax(-1)

    policies = [
        RainbowPolicy(network, EpsilonGreedy(2), 0.0, 100.0)
        for network in (own, LogitsOf(Foreign(), 2, 5))
    ]
    obs = torch.randn(7, 4)
    torch.testing.assert_close(*(p.network(obs, 0.0).softmax(-1) for p in policies))
    torch.testing.assert_close(*(p.value(obs) for p in policies))
    losses = [error_of(policy, policies[0]).loss for policy in policies]
    torch.testing.assert_close(*losses)


def test_a_probability_of_zero_has_a_finite_logit() -> None:
    logits = LogitsOf(torch.nn.Identity(), 1, 2)(torch.tensor([[[0.0, 1.0]]]), 0.0)
    torch.testing.assert_close(logits, torch.tensor([[[np.log(1e-8), 0.0]]]).float())


def test_a_noise_that_is_held_lasts_for_some_steps() -> None:
    torch.manual_seed(0)
    policy = make_rainbow_policy(*spaces_of(), hidden=8, hold=4)
    noise = policy.noise(10, 3, generator())[..., : policy.noise_size]
    assert noise.shape[:2] == (10, 3)
    for start in (0, 4, 8):
        held = noise[start : start + 4]
        assert (held == held[0]).all()
    assert not torch.equal(noise[3], noise[4])
    assert not torch.equal(noise[0, 0], noise[0, 1]), "one for each environment"


def test_noise_makes_a_noisy_policy_try_other_actions() -> None:
    torch.manual_seed(0)
    policy = make_rainbow_policy(*spaces_of(), sigma=0.5)
    assert policy.actions.epsilon == 0
    obs = torch.randn(1, 4).expand(500, -1)
    share = policy.act(obs, policy.noise(1, 500, generator())[0]).float().mean()
    assert 0.005 < share < 0.995
    # Without noisy layers it is the chance of a random action.
    policy = make_rainbow_policy(*spaces_of(), noisy=False)
    assert isinstance(policy.actions, EpsilonGreedy)
    policy.actions.epsilon = 0.0
    assert len(set(policy.act(obs, policy.noise(1, 500, generator())[0]).tolist())) == 1
    policy.actions.epsilon = 1.0
    assert len(set(policy.act(obs, policy.noise(1, 500, generator())[0]).tolist())) == 2


# --- The error of a batch ------------------------------------------------------------


def batch_of(size=8, seed=0):
    g = generator(seed)
    return Batch(
        torch.randn(size, 4, generator=g),
        torch.randint(2, (size,), generator=g),
        torch.rand(size, generator=g),
        torch.randn(size, 4, generator=g),
        0.9 * (torch.rand(size, generator=g) > 0.3).float(),
        torch.ones(size),
        torch.arange(size),
    )


def error_of(policy, older, **changes):
    """Return the error of a batch, where this is the older network."""
    algorithm = DistributionalQLearning(policy, RainbowConfig(**changes))
    algorithm.target.network = older
    return algorithm.error(batch_of(), generator())


@pytest.mark.equation("rainbow-target")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("num_atoms", [1, 5])
def test_the_error_of_a_batch_is_computed_sample_by_sample(double, num_atoms) -> None:
    kind = {"hidden": 16, "num_atoms": num_atoms, "value_max": 4.0, "noisy": False}
    torch.manual_seed(0)
    policy, older = (make_rainbow_policy(*spaces_of(), **kind) for _ in range(2))
    batch = batch_of()
    found = error_of(policy, older, double=double)
    assert not found.td_error.requires_grad
    assert not found.value.requires_grad
    for i in range(len(batch.action)):
        obs, next_obs = batch.obs[i : i + 1], batch.next_obs[i : i + 1]
        action = batch.action[i]
        best = (policy if double else older)(next_obs)[0].argmax()
        if num_atoms == 1:
            aim = batch.reward[i] + batch.discount[i] * older(next_obs)[0, best]
            gap = abs((policy(obs)[0, action] - aim).item())
            loss = 0.5 * gap**2 if gap < 1 else gap - 0.5
        else:
            prob = older.network(next_obs, 0.0).softmax(-1)[0, best].tolist()
            aim = exact_projection(
                prob, batch.reward[i].item(), batch.discount[i].item(), 0, 4
            )
            own = policy.network(obs, 0.0).log_softmax(-1)[0, action].tolist()
            loss = gap = sum(
                t * (math.log(t) - p) for t, p in zip(aim, own, strict=True) if t > 0
            )
        assert found.loss[i].item() == pytest.approx(loss, abs=1e-5)
        assert abs(found.td_error[i].item()) == pytest.approx(gap, abs=1e-5)
        expected = policy(obs)[0, action].item()
        assert found.value[i].item() == pytest.approx(expected, abs=1e-5)


def test_the_target_network_has_noise_of_its_own() -> None:
    seen = []

    class Spy(nn.Module):
        num_actions, num_atoms, noise_sizes = 2, 1, (3,)

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, obs, noise):
            seen.append(noise)
            return self.weight + obs.new_zeros(len(obs), 2, 1)

    policies = [RainbowPolicy(Spy(), EpsilonGreedy(2), 0.0, 1.0) for _ in range(2)]
    error_of(*policies)
    assert len(seen) == 3
    assert all(noise.shape == (3,) for noise in seen)
    for i in range(3):
        assert not torch.equal(seen[i], seen[i - 1])


# --- The agent -----------------------------------------------------------------------

SHORT = {
    "total_steps": 600,
    "learning_starts": 100,
    "hidden": 16,
    "num_atoms": 11,
    "iteration_steps": 100,
    "checkpoint_interval": 2,
}


def agent(env="CartPole-v1", **changes):
    config = RainbowConfig(**{**SHORT, **changes})
    envs = make_envs(partial(flat_env, env), config.num_envs)
    torch.manual_seed(config.seed)
    names = "hidden", "num_atoms", "value_min", "value_max", "dueling", "noisy", "hold"
    policy = make_rainbow_policy(
        envs.single_observation_space,
        envs.single_action_space,
        **{name: getattr(config, name) for name in names},
    )
    return Rainbow(policy, envs, config)


PARTS = [
    {},
    {"num_atoms": 1},
    {"noisy": False},
    {"dueling": False},
    {"double": False},
    {"num_steps": 1},
    {"priority_exponent": 0.0},
]


@pytest.mark.parametrize("without", PARTS)
def test_each_part_can_be_taken_away(without) -> None:
    learner = agent(**without)
    before = [x.clone() for x in learner.policy.parameters()]
    history = fit(learner, progress=False)
    assert math.isfinite(history[-1]["losses/loss"])
    changed = [
        not torch.equal(a, b)
        for a, b in zip(before, learner.policy.parameters(), strict=True)
    ]
    assert all(changed)


@pytest.mark.parametrize("low", [0.0, -100.0])
def test_returns_beyond_the_atoms_are_told_and_warned_of_once(low) -> None:
    # Each step of Acrobot costs 1, so no return is above 0 or below -100.
    name, right = "losses/beyond_atoms", low < 0
    learner = agent(
        "Acrobot-v1",
        value_min=low,
        value_max=low + 100.0,
        learning_starts=104,
        total_steps=6_000,
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        rows = [learner.iterate() for _ in range(5 if right else 60)]
    told = [str(x.message) for x in seen if "value_min" in str(x.message)]
    assert math.isnan(rows[0][name]), "nothing has been learned yet"
    shares = [row[name] for row in rows[1:]]
    if right:
        assert (shares, told) == ([0.0] * 4, [])
        return
    assert min(shares) > 0.05
    losses = [row["losses/loss"] for row in rows]
    assert losses[-1] < 0.01 < losses[1], "as if it were done"
    words = f"{shares[0]:.0%} of what the targets expect lies beyond the atoms, from "
    assert [x.startswith(words + "value_min=0 to value_max=100") for x in told] == [
        True
    ]


def test_who_only_judges_steps_counts_no_target() -> None:
    learner = agent()
    algorithm = learner.algorithm
    judge = of_one_policy(algorithm, algorithm.policy)
    judge.error(batch_of(), generator())
    assert judge.moved is not None
    assert math.isnan(algorithm.metrics()["losses/beyond_atoms"])
    assert agent(num_atoms=1).algorithm.metrics().keys() == {"charts/epsilon"}


def test_a_resumed_run_is_the_same_run(tmp_path) -> None:
    whole = agent()
    fit(whole, progress=False)

    with Run(tmp_path / "run") as run:
        stopped = agent()
        for _ in range(4):
            stopped.iterate()
        run.save(stopped)
    resumed = agent()
    with Run(tmp_path / "run", resume=True) as run:
        run.restore(resumed)
        assert resumed.step == 400
        fit(resumed, run, progress=False)
    pairs = zip(whole.policy.parameters(), resumed.policy.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    # And what is loaded from the directory acts like it.
    loaded = load(tmp_path / "run")
    assert np.array_equal(
        evaluate(loaded, "CartPole-v1", 3), evaluate(whole.policy, "CartPole-v1", 3)
    )


def test_it_does_what_the_program_does() -> None:
    """Given the batches and the noise that the program drew, it ends alike."""
    batches = []

    class Recorded(ReplayBuffer):
        """A buffer that keeps what was drawn from it, and the generator's state."""

        def sample(self, size, generator, *settings):
            batch = super().sample(size, generator, *settings)
            batches.append((batch, generator.get_state()))
            return batch

    with patch("literate_rl.data.replay.ReplayBuffer", Recorded):
        made = run_program("rainbow", total_steps=1100)
    torch.manual_seed(1)
    envs = make_envs("CartPole-v1", 4)
    both = envs.single_observation_space, envs.single_action_space
    policy = make_rainbow_policy(*both)
    names = ("gamma", "tau", "learning_rate")
    config = RainbowConfig(
        priority_exponent=0.0,  # the batches come with their weights
        max_grad_norm=math.inf,
        **{name: made[name] for name in names},
    )
    learner, start = Rainbow(policy, envs, config), copy.deepcopy(policy)
    for number, (batch, state) in enumerate(batches):
        # Two updates after each round of four steps; the learning rate falls.
        rate = config.learning_rate * (1 - (1000 + 4 * (number // 2)) / 1100)
        learner.optimizer.param_groups[0]["lr"] = rate
        learner.generator.set_state(state)
        learner.sample = lambda batch=batch: batch
        learner.learn()
    assert len(batches) == 50
    for x, y in zip(made["network"].parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)
    for x, y in zip(start.parameters(), policy.parameters(), strict=True):
        assert not torch.allclose(x, y, atol=1e-4)


def test_settings_are_known_for_some_environments() -> None:
    assert rainbow_settings("CartPole-v1").total_steps == 30_000
    assert rainbow_settings("something/else") == RainbowConfig()
    assert replace(rainbow_settings("CartPole-v1"), noisy=False).noisy is False


@pytest.mark.parametrize("kind", [RainbowConfig, RainbowApexConfig])
@pytest.mark.parametrize("low", [1.0, 5.0])
def test_atoms_that_do_not_rise_are_refused_with_the_settings(kind, low) -> None:
    message = f"value_min must be below value_max, 1.0, got {low}"
    with pytest.raises(ValueError, match=message):
        kind(value_min=low, value_max=1.0)


def test_settings_are_held_to_the_rules_of_the_shared_ones() -> None:
    with pytest.raises(ValueError, match="train_interval must divide num_envs"):
        RainbowConfig(num_envs=4, train_interval=3)


def test_signatures_hold() -> None:
    assert assert_held(factorised_noise, Random(0)) > 50
    layer = NoisyLinear(2, 3)
    x = {"x": lambda: torch.ones(4, 2), "noise": lambda: torch.ones(4, 5)}
    for name in x:
        others = {key: value for key, value in x.items() if key != name}
        for wrong in (torch.ones(4, 2).int(), None, "noise", [1.0]):
            arguments = {key: value() for key, value in others.items()}
            with pytest.raises((TypeError, ValueError), match=name):
                layer(**arguments, **{name: wrong})

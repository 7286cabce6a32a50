"""The PPO learner against slow references, and its promises about runs."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import fields, replace
from functools import partial
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fuzz import assert_held
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from learning import assert_for_most_seeds
from worlds import left_alone, modes, moody

from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import check_experience, make_envs, seed_everything
from literate_rl.learners.ppo import (
    PPO,
    SETTINGS,
    PPOConfig,
    Samples,
    ppo_settings,
)
from literate_rl.maths.advantages import lambda_returns
from literate_rl.maths.ppo_error import policy_error_from_log_prob
from literate_rl.nets.parts import ActorCritic, CategoricalActions
from literate_rl.nets.policies import Policy, make_policy
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import fit, flat_env

SMALL = PPOConfig(total_steps=256, num_envs=2, num_steps=32, num_epochs=2)


def make_learner(env: Any, config: PPOConfig, **functions: Any) -> PPO:
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    policy = make_policy(
        envs.single_observation_space,
        envs.single_action_space,
        normalize=config.normalize_obs,
    )
    return PPO(policy, envs, config, **functions)


def discrete(
    obs_size: int, num_actions: int, normalize: bool = False, start: int = 0
) -> Policy:
    space = gym.spaces.Discrete(num_actions, start=start)
    return make_policy(gym.spaces.Box(-1, 1, (obs_size,)), space, normalize=normalize)


class Counter(gym.Env[np.ndarray, int]):
    """Counts its steps; the reward is the count, the end comes after five steps."""

    observation_space = gym.spaces.Box(0, np.inf, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward: float | None = None, obs: float | None = None) -> None:
        self.bad_reward, self.bad_obs, self.count = reward, obs, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.count += 1
        bad = self.count == 3
        reward = self.bad_reward if bad and self.bad_reward is not None else self.count
        obs = self.bad_obs if bad and self.bad_obs is not None else self.count
        return np.array([obs], np.float32), float(reward), self.count == 5, False, {}


# --- Settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total_steps", 0),
        ("num_envs", 0),
        ("num_steps", -1),
        ("num_epochs", 0),
        ("num_minibatches", 0),
        ("num_minibatches", 257),
        ("checkpoint_interval", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("clip_ratio", 0.0),
        ("max_grad_norm", -1.0),
        ("gamma", 1.5),
        ("gamma", math.nan),
        ("lambda_", -0.1),
        ("seed", -1),
        ("dual_clip", 1.0),
        ("value_clip", 0.0),
        ("target_kl", 0.0),
        ("clip_ratio", 1e308),
        *[
            (name, value)
            for name in ("value_weight", "entropy_weight")
            for value in (-1.0, math.nan, math.inf)
        ],
    ],
)
def test_settings_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must .*{re.escape(str(value))}"):
        PPOConfig(**{name: value})


def test_settings_of_the_wrong_type_are_named() -> None:
    with pytest.raises(TypeError, match="num_steps must be an integer, got str"):
        PPOConfig(num_steps="many")  # type: ignore[arg-type]


def test_settings_are_held_to_their_signatures() -> None:
    legal = {"num_envs": lambda: 4, "num_minibatches": lambda: 2}
    assert assert_held(PPOConfig, Random(0), **legal) > 100


def test_a_minibatch_needs_two_advantages_to_normalise() -> None:
    settings = {"num_envs": 1, "num_steps": 4, "num_minibatches": 4}
    with pytest.raises(ValueError, match="num_minibatches must be at most 2, got 4"):
        PPOConfig(**settings)
    assert PPOConfig(**settings, normalize_advantage=False).num_minibatches == 4
    with pytest.raises(ValueError, match=r"num_envs \* num_steps must be at least 2"):
        PPOConfig(num_envs=1, num_steps=1, num_minibatches=1)


def test_every_setting_is_documented() -> None:
    text = "".join(inspect.getdoc(each) or "" for each in PPOConfig.__mro__[:-1])
    for setting in fields(PPOConfig):
        assert f"\n    {setting.name}: " in text


def test_settings_of_environments_are_valid_and_others_get_the_defaults() -> None:
    for env in SETTINGS:
        assert ppo_settings(env) == PPOConfig(**SETTINGS[env])
    assert ppo_settings("Nobody-v0") == PPOConfig()


def test_the_number_of_environments_must_fit() -> None:
    with pytest.raises(ValueError, match="envs must have 4 copies, got 2"):
        PPO(discrete(4, 2), make_envs("CartPole-v1", 2), PPOConfig())


# --- One iteration --------------------------------------------------------------------


def test_a_rollout_holds_true_successors_and_counts_steps() -> None:
    learner = make_learner(Counter, SMALL)
    batch = learner.collect()
    assert batch.real.all()
    assert learner.step == 64
    torch.testing.assert_close(batch.next_obs, batch.obs + 1)
    torch.testing.assert_close(batch.reward, batch.next_obs[..., 0])
    assert torch.equal(batch.terminated, batch.reward == 5)
    assert not batch.truncated.any()


def test_episodes_are_counted_across_rollouts() -> None:
    learner = make_learner(Counter, replace(SMALL, num_steps=7))
    for ended in (1, 1, 2, 1):  # after 5, 10, 15, 20 and 25 of 28 steps
        batch = learner.collect()
        done = batch.terminated
        assert batch.episode_return[done].tolist() == [15.0] * 2 * ended
        assert batch.episode_length[done].tolist() == [5.0] * 2 * ended
        assert batch.episode_return[~done].isnan().all()


def test_an_iteration_tells_the_mean_of_the_episodes_that_ended() -> None:
    learner = make_learner(Counter, replace(SMALL, num_steps=4, num_minibatches=2))
    first, second = learner.iterate(), learner.iterate()
    assert math.isnan(first["charts/episodic_return"])
    assert math.isnan(first["charts/episodic_length"])
    assert second["charts/episodic_return"] == 15.0
    assert second["charts/episodic_length"] == 5.0


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_phantom_rows_are_found_and_nothing_else_changes(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([Counter] * 2, autoreset_mode=mode)
    learner = PPO(discrete(1, 2), envs, SMALL)
    episodes = []
    for _ in range(3):
        batch = learner.collect()
        # Every real step counts up by one; a phantom leads from 5 to 0.
        counts = batch.next_obs - batch.obs
        assert torch.equal(counts[..., 0] == 1, batch.real)
        assert batch.real.all() or mode == AutoresetMode.NEXT_STEP
        ended = ~batch.episode_return.isnan()
        pairs = torch.stack([batch.episode_return, batch.episode_length], -1)
        episodes += pairs[ended].tolist()
    assert all(pair == [15.0, 5.0] for pair in episodes)
    assert len(episodes) == (32 if mode == AutoresetMode.NEXT_STEP else 38)


def test_phantom_rows_teach_nothing() -> None:
    torch.manual_seed(0)
    envs = SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    seen = []

    def spy(new: torch.Tensor, *others: Any) -> Any:
        seen.append(len(new))
        return policy_error_from_log_prob(new, *others)

    config = replace(SMALL, num_minibatches=1, num_epochs=1)
    learner = PPO(discrete(1, 2), envs, config, policy_error=spy)
    learner.iterate()
    assert seen == [64 - 2 * 5]  # rows 6, 12, 18, 24 and 30 of 32 are phantoms
    # What is left is dealt out evenly, into as many parts as asked for.
    seen.clear()
    envs = SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    config = replace(config, num_minibatches=20)
    PPO(discrete(1, 2), envs, config, policy_error=spy).iterate()
    assert seen == [3] * 14 + [2] * 6


@pytest.mark.parametrize("normalize_obs", [True, False])
def test_policy_and_settings_agree_on_the_normaliser(normalize_obs: bool) -> None:
    envs = make_envs("CartPole-v1", SMALL.num_envs)
    config = replace(SMALL, normalize_obs=normalize_obs)
    policy = discrete(4, 2, normalize=not normalize_obs)
    with pytest.raises(ValueError, match=f"as normalize_obs says: {normalize_obs}"):
        PPO(policy, envs, config)


@pytest.mark.equation("advantage-normalised")
def test_each_minibatch_gets_advantages_of_mean_zero_and_standard_deviation_one() -> (
    None
):
    seen = []

    def spy(new: Any, old: Any, entropy: Any, adv: torch.Tensor, *rest: Any) -> Any:
        seen.append(adv)
        return policy_error_from_log_prob(new, old, entropy, adv, *rest)

    make_learner("CartPole-v1", SMALL, policy_error=spy).iterate()
    assert len(seen) == SMALL.num_epochs * SMALL.num_minibatches
    for adv in seen:
        assert adv.mean().abs() < 1e-5
        assert adv.std(correction=0) == pytest.approx(1.0, abs=1e-4)
    seen.clear()
    plain = replace(SMALL, normalize_advantage=False)
    make_learner("CartPole-v1", plain, policy_error=spy).iterate()
    assert max(adv.mean().abs() for adv in seen) > 0.01


def test_a_minibatch_of_one_sample_is_no_nan() -> None:
    config = replace(SMALL, num_minibatches=64, num_epochs=1, normalize_advantage=False)
    learner = make_learner("CartPole-v1", config)
    learner.iterate()
    assert all(p.isfinite().all() for p in learner.policy.parameters())


@pytest.mark.equation("annealing")
def test_the_learning_rate_falls_in_a_straight_line() -> None:
    config = replace(SMALL, total_steps=64 * 4, learning_rate=1.0e-3)
    learner = make_learner("CartPole-v1", config)
    rates = [row["charts/learning_rate"] for row in fit(learner, None, False)]
    np.testing.assert_allclose(rates, [1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    # Whoever goes on by hand does not learn backwards.
    assert [learner.iterate()["charts/learning_rate"] for _ in range(2)] == [0, 0]
    config = replace(config, anneal=False)
    rates = [
        row["charts/learning_rate"]
        for row in fit(make_learner("CartPole-v1", config), None, False)
    ]
    assert set(rates) == {1e-3}


def test_the_first_ratios_of_an_iteration_are_one() -> None:
    first = []

    def spy(new: torch.Tensor, old: torch.Tensor, *others: Any) -> Any:
        first.append((new - old).abs().max().item())
        return policy_error_from_log_prob(new, old, *others)

    config = replace(SMALL, normalize_obs=True, scale_reward=True)
    learner = make_learner("CartPole-v1", config, policy_error=spy)
    for _ in range(3):
        first.clear()
        learner.iterate()
        assert first[0] < 1e-6
        assert first[-1] > 1e-4


def test_with_dropout_the_old_policy_is_the_one_that_acted() -> None:
    config = replace(SMALL, num_steps=16)
    policy = Policy(ActorCritic(moody(4, 2), moody(4, 1)), CategoricalActions(2))
    learner = PPO(policy, make_envs("CartPole-v1", config.num_envs), config)
    batch = learner.collect()
    with left_alone(policy):
        samples, again = learner.look_back(batch), learner.look_back(batch)
        assert torch.equal(samples.log_prob, again.log_prob)
        assert learner.distance(samples)["losses/approx_kl"] == 0
    # It learns with dropout all the same.
    losses = [learner.learn(samples)["losses/entropy"] for _ in range(2)]
    assert losses[0] != losses[1]
    assert modes(policy).count(False) == 2, "what was frozen still is"


def test_a_large_divergence_ends_the_epochs() -> None:
    def epochs(target_kl: float | None) -> int:
        config = replace(SMALL, target_kl=target_kl, num_epochs=8, learning_rate=1e-2)
        learner = make_learner("CartPole-v1", config)
        learner.iterate()
        steps = learner.optimizer.state_dict()["state"][0]["step"]
        return int(steps) // SMALL.num_minibatches

    assert epochs(None) == 8
    assert epochs(1e-9) == 1
    assert 1 < epochs(0.02) < 8


def test_a_long_gradient_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = []
    clip = torch.nn.utils.clip_grad_norm_

    def spy(parameters: Any, longest: float) -> Any:
        parameters = list(parameters)
        clip(parameters, longest)
        norms.append(math.sqrt(sum(p.grad.square().sum() for p in parameters)))

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    make_learner(Counter, replace(SMALL, max_grad_norm=0.1)).iterate()
    assert max(norms) <= 0.1 + 1e-5
    assert min(norms) > 0.09


def test_truncation_bootstraps_and_termination_does_not() -> None:
    """With exact values on the Counter, the only surprise is what the flags make."""

    class Exact(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return torch.full_like(obs, 100.0)

    for limit, last in ((3, 3.0 + 0.5 * 100 - 100), (9, 5.0 - 100)):
        envs = make_envs(lambda limit=limit: TimeLimit(Counter(), limit), 2)
        config = replace(SMALL, gamma=0.5, normalize_advantage=False, num_epochs=1)
        seen = []

        def spy(
            new: Any, old: Any, entropy: Any, adv: Any, *rest: Any, seen: Any = seen
        ) -> Any:
            seen.append(adv)
            return policy_error_from_log_prob(new, old, entropy, adv, *rest)

        policy = discrete(1, 2)
        policy.network.critic = Exact()
        learner = PPO(policy, envs, replace(config, lambda_=0.0), policy_error=spy)
        learner.update(learner.collect())
        surprises = set(torch.cat(seen).tolist())
        assert last in surprises
        assert surprises == {
            k + (0 if k == 5 else 50.0) - 100 for k in range(1, min(limit, 5) + 1)
        }


def test_metrics_have_the_names_that_others_use() -> None:
    metrics = make_learner("CartPole-v1", SMALL).iterate()
    assert list(metrics) == [
        "charts/episodic_return",
        "charts/episodic_length",
        "charts/learning_rate",
        "losses/policy_loss",
        "losses/value_loss",
        "losses/entropy",
        "losses/old_approx_kl",
        "losses/approx_kl",
        "losses/clipfrac",
        "losses/explained_variance",
    ]
    assert all(isinstance(value, float) for value in metrics.values())


def test_rewards_are_scaled_with_every_kind_of_end_and_a_reset_starts_anew() -> None:
    learner = make_learner("CartPole-v1", replace(SMALL, scale_reward=True))
    learner.scaler.carry.fill_(7.0)
    batch = learner.collect()  # the first one begins with a reset
    assert not learner.scaler.carry.any()
    flags = torch.zeros_like(batch.terminated)
    terminated, truncated = flags.clone(), flags.clone()
    terminated[3, 0] = truncated[5, 1] = True
    seen = []

    def forward(reward: torch.Tensor, done: torch.Tensor, real: torch.Tensor) -> Any:
        seen.append(done)
        return reward

    learner.scaler.forward = forward
    learner.look_back(batch._replace(terminated=terminated, truncated=truncated))
    assert torch.equal(seen[0], terminated | truncated)


def test_the_critic_learns_lambda_returns() -> None:
    learner = make_learner("CartPole-v1", SMALL)
    samples = learner.look_back(learner.collect())
    batch, _, next_value = learner.seen
    wanted = lambda_returns(
        *(batch.reward, next_value, batch.terminated, batch.truncated),
        *(SMALL.gamma, SMALL.lambda_),
    )
    torch.testing.assert_close(samples.target, wanted[batch.real])


def test_the_distance_is_that_of_the_old_policy_to_the_new_one() -> None:
    learner = make_learner("CartPole-v1", SMALL)
    samples = learner.look_back(learner.collect())
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        new, _ = learner.policy.evaluate_actions(samples.obs, samples.action)
    log_ratio = (new - samples.log_prob).double().numpy()
    ratio = np.exp(log_ratio)
    wanted = {
        "losses/old_approx_kl": -log_ratio.mean(),
        "losses/approx_kl": (ratio - 1 - log_ratio).mean(),
        "losses/clipfrac": (abs(ratio - 1) > SMALL.clip_ratio).mean(),
    }
    assert learner.distance(samples) == pytest.approx(wanted, rel=1e-4)
    assert 0 < wanted["losses/clipfrac"] < 1


def test_the_explained_variance_is_the_share_that_the_critic_foresaw() -> None:
    learner = make_learner("CartPole-v1", SMALL)
    batch = learner.collect()
    samples = learner.look_back(batch)
    missed, all_of_it = samples.target - samples.value, samples.target
    share = 1 - np.var(missed.tolist()) / np.var(all_of_it.tolist())
    told = learner.update(batch)["losses/explained_variance"]
    assert told == pytest.approx(share, abs=1e-4)


# --- Promises about runs --------------------------------------------------------------


def weights(learner: PPO) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.policy.parameters()])


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3"])
def test_one_seed_makes_one_run(env: str) -> None:
    runs = [make_learner(env, replace(SMALL, seed=seed)) for seed in (3, 3, 4)]
    for learner in runs:
        fit(learner, progress=False)
    assert torch.equal(weights(runs[0]), weights(runs[1]))
    assert not torch.equal(weights(runs[0]), weights(runs[2]))


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3"])
def test_a_restored_learner_ends_with_the_same_weights(env: str) -> None:
    config = replace(
        SMALL, checkpoint_interval=2, normalize_obs=True, scale_reward=True
    )
    whole, first, second = (make_learner(env, config) for _ in range(3))
    fit(whole, progress=False)
    for _ in range(2):
        first.iterate()
    assert first.checkpoint_due
    second.policy.load_state_dict(first.policy.state_dict())
    second.load_state_dict(first.state_dict())
    fit(second, progress=False)
    assert torch.equal(weights(whole), weights(second))


def test_plain_and_fast_forms_make_the_same_run() -> None:
    config = replace(SMALL, total_steps=1024)
    plain = make_learner("CartPole-v1", config)
    fast = make_learner("CartPole-v1", config)
    fast.act = numpy_act(fast.policy)
    fit(plain, progress=False)
    fit(fast, progress=False)
    torch.testing.assert_close(weights(plain), weights(fast), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"reward": math.nan}, r"reward of environment 0 is nan at step 4"),
        ({"reward": math.inf}, r"reward of environment 0 is inf at step 4"),
        ({"obs": math.nan}, r"obs of environment 0 is nan at step 6"),
        ({"obs": -math.inf}, r"obs of environment 0 is -inf at step 6"),
    ],
)
def test_numbers_that_are_none_stop_the_run(bad: Any, message: str) -> None:
    learner = make_learner(lambda: Counter(**bad), SMALL)
    before = weights(learner).clone()
    with pytest.raises(ValueError, match=message):
        fit(learner, progress=False)
    assert torch.equal(weights(learner), before)
    assert learner.step == 0


@pytest.mark.parametrize(
    ("env", "part", "message"),
    [
        ("CartPole-v1", "actor", "log_prob.* must be finite"),
        ("Pendulum-v1", "actor", "log_prob.* must be finite"),
        ("CartPole-v1", "critic", "value and next_value must be finite"),
    ],
)
def test_a_network_that_fails_stops_the_run(env: str, part: str, message: str) -> None:
    learner = make_learner(env, SMALL)
    batch = learner.collect()
    torch.nn.init.constant_(
        next(p for n, p in learner.policy.named_parameters() if f"{part}." in n),
        math.nan,
    )
    before = weights(learner).clone()
    with pytest.raises(ValueError, match=message):
        learner.update(batch)
    assert torch.equal(weights(learner).isnan(), before.isnan())


def test_a_loss_that_is_infinite_stops_the_run() -> None:
    learner = make_learner("CartPole-v1", replace(SMALL, normalize_advantage=False))
    obs, action = torch.zeros(2, 4), torch.zeros(2, dtype=torch.long)
    unlikely, adv, value = torch.tensor([[-50.0] * 2, [-1e38] * 2, [1.0] * 2])
    before = weights(learner).clone()
    with pytest.raises(ValueError, match=r"must be finite"):
        learner.learn(Samples(obs, action, unlikely, adv, value, value))
    assert torch.equal(weights(learner), before)


def test_the_culprit_is_the_first_one() -> None:
    reward = np.zeros((3, 4))
    reward[1, 2] = np.nan
    reward[2, 0] = np.nan
    with pytest.raises(ValueError, match="reward of environment 2 is nan at step 104"):
        check_experience(100, obs=np.zeros((3, 4, 2)), reward=reward)


# --- Learning -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "total_steps", "least"),
    [("CartPole-v1", 45_000, 475.0), ("Pendulum-v1", 45_000, -300.0)],
)
def test_ppo_learns(env: str, total_steps: int, least: float) -> None:
    def check(seed: int) -> None:
        config = replace(ppo_settings(env), total_steps=total_steps, seed=seed)
        learner = make_learner(env, config)
        learner.act = numpy_act(learner.policy)
        fit(learner, progress=False)
        assert evaluate(learner.policy, env, 20, seed=5).mean() >= least

    assert_for_most_seeds(check)

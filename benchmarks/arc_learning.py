"""Four agents on Pendulum, what the clip does there, and how CartPole's episodes end.

``python -m benchmarks.arc_learning [NAME …]`` works as ``benchmarks.learning`` does.

``arc_pendulum`` compares REINFORCE, without a baseline and with one, A2C and PPO. Each
agent has the best of its twelve settings of ``arc_search``: two lengths of a rollout,
three learning rates, rewards as they are or scaled. Each was tried once, with the seed
100, and judged by the greedy return at the end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import gymnasium as gym
import torch

from benchmarks.ablation import NEVER
from benchmarks.learning import LEARNING, Experiment, Variant, main
from literate_rl.by_hand.fast_forms import numpy_act
from literate_rl.data.agents import Rollout, make_envs
from literate_rl.data.episodes import mean_return
from literate_rl.learners.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.maths.policy_gradient import policy_gradient_error
from literate_rl.maths.ppo_error import policy_error_from_log_prob
from literate_rl.nets.policies import make_policy
from literate_rl.runs.runs import flat_env, stored_runs

ENV = "Pendulum-v1"


class Reinforce(PPO):
    """REINFORCE of the chapter on the policy gradient, for any policy.

    One step of the actor for a rollout, ``num_epochs`` steps of the critic, each with
    an optimiser of its own. With ``lambda_=1`` the targets are the returns.
    """

    subtract_value = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        network: Any = self.policy.network  # type: ignore[attr-defined]
        self.optimizer = torch.optim.Adam(network.actor.parameters())
        self.critic_optimizer = torch.optim.Adam(network.critic.parameters())

    def update(self, batch: Rollout) -> dict[str, float]:
        """Take one step with the actor and some with the critic."""
        samples = self.look_back(batch)
        adv = samples.adv if self.subtract_value else samples.target
        log_prob, _ = self.policy.evaluate_actions(samples.obs, samples.action)
        loss = policy_gradient_error(log_prob, adv)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

        rate = self.optimizer.param_groups[0]["lr"]
        self.critic_optimizer.param_groups[0]["lr"] = rate
        for _ in range(self.config.num_epochs):
            error = samples.target - self.policy.value(samples.obs)
            self.critic_optimizer.zero_grad()
            error.square().mean().backward()
            self.critic_optimizer.step()
        return {
            "charts/episodic_return": mean_return(batch.episode_return),
            "losses/policy_loss": loss.item(),
            **self.distance(samples),
        }


class WithoutBaseline(Reinforce):
    """REINFORCE whose actions are weighted with the returns."""

    subtract_value = False


class Watched(PPO):
    """Counts how CartPole's episodes end."""

    def update(self, batch: Rollout) -> dict[str, float]:
        """Learn, and count the ends of the rollout."""
        track = batch.terminated & (batch.next_obs[..., 0].abs() > 2.4)
        ends = {
            "ends/pole": batch.terminated & ~track,
            "ends/track": track,
            "ends/limit": batch.truncated & ~batch.terminated,
        }
        counts = {name: over.sum().item() for name, over in ends.items()}
        return super().update(batch) | counts


def endless_track() -> gym.Env[Any, Any]:
    """Make CartPole in which no place of the cart ends an episode."""
    env: Any = gym.make(CARTPOLE)
    env.unwrapped.x_threshold = float("inf")
    return env


def not_old(log_prob: Any, log_prob_old: Any, *others: Any) -> Any:
    """Take the log-probabilities of the policy in training for the old ones."""
    return policy_error_from_log_prob(log_prob, log_prob.detach(), *others)


def build(
    config: PPOConfig, make: Any, learner: type[PPO] = PPO, *, anew: bool = False
) -> PPO:
    """Build a learner, which acts in NumPy."""
    envs = make_envs(make, config.num_envs)
    torch.manual_seed(config.seed)
    policy = make_policy(envs.single_observation_space, envs.single_action_space)
    made = learner(policy, envs, config, numpy_act(policy))
    if anew:
        made.policy_error = not_old
    return made


# What each agent is. A2C is PPO with one update for a rollout, which needs no clip.
ONCE = {"num_epochs": 1, "num_minibatches": 1, "clip_ratio": NEVER}
REINFORCE = {"num_epochs": 10, "num_minibatches": 1, "lambda_": 1.0}
AGENTS: dict[str, tuple[type[PPO], dict[str, Any]]] = {
    "REINFORCE": (WithoutBaseline, REINFORCE),
    "with a baseline": (Reinforce, REINFORCE),
    "A2C": (PPO, ONCE),
    "PPO": (PPO, {}),
}
SHARED = replace(ppo_settings(ENV), total_steps=60_000)
RATES, SCALED = (1e-3, 3e-3, 1e-2), (False, True)
# Steps of a rollout in each of eight environments. One update wants a short rollout.
STEPS = dict.fromkeys(AGENTS, (8, 32)) | {"PPO": (32, 200)}


def setting(name: str, num_steps: int, rate: float, scaled: bool) -> Variant:
    """Return an agent with a setting of the search."""
    learner, changes = AGENTS[name]
    own = {
        "num_steps": num_steps,
        "learning_rate": rate,
        "scale_reward": scaled,
        # PPO's minibatches have 200 samples where the rollout is long, 64 where not.
        "num_minibatches": 8 if num_steps == 200 else 4,
    }
    make = partial(flat_env, ENV)
    return Variant(own | changes, partial(build, make=make, learner=learner))


def search() -> dict[str, tuple[str, int, float, bool]]:
    """Return the settings of the search by the names of their rows."""
    found = {}
    for name, steps in STEPS.items():
        for num_steps, rate, scaled in product(steps, RATES, SCALED):
            words = f"{name}, {8 * num_steps} steps, learning rate {rate:g}"
            found[words + scaled * ", scaled"] = (name, num_steps, rate, scaled)
    return found


def best() -> dict[str, Variant]:
    """Return each agent with the setting whose stored runs of the search are best."""
    chosen = {}
    runs = stored_runs("arc_search") if (LEARNING / "arc_search.csv").exists() else {}
    for name in AGENTS if runs else ():
        rows = {row: setting for row, setting in search().items() if setting[0] == name}
        chosen[name] = setting(*rows[max(rows, key=lambda row: runs[row].final.mean())])
    return chosen


CARTPOLE = "CartPole-v1"
ENDS = ("ends/pole", "ends/track", "ends/limit")


def anew(env: str) -> Experiment:
    """Return the experiment whose old log-probabilities are not old."""
    config = replace(ppo_settings(env), total_steps=50_000)
    make = partial(flat_env, env)
    # What it is compared with are the stored runs of ``benchmarks.ablation``.
    variants = {"computed anew": Variant({}, partial(build, make=make, anew=True))}
    return Experiment(env, config, 5, 100, variants)


def clip() -> Experiment:
    """Return the experiment that uses a rollout once, or ten times."""
    config = replace(ppo_settings(ENV), total_steps=50_000)
    make = partial(flat_env, ENV)
    variants = {
        "once": {"num_epochs": 1, "clip_ratio": NEVER},
        "ten times": {"clip_ratio": NEVER},
        "ten times, clipped": {},
    }
    made = {
        name: Variant(changes, partial(build, make=make))
        for name, changes in variants.items()
    }
    watched = ("losses/approx_kl", "losses/clipfrac")
    return Experiment(ENV, config, 10, 100, made, watched=watched)


def small_rates() -> Experiment:
    """Return the experiment that asks whether a small learning rate does without."""
    config = replace(ppo_settings(ENV), total_steps=50_000)
    make = partial(build, make=partial(flat_env, ENV))
    changes = {"clip_ratio": NEVER, "learning_rate": 3e-4}
    variants = {"no clip, rate 0.0003": Variant(changes, make)}
    return Experiment(ENV, config, 5, 100, variants, watched=("losses/approx_kl",))


EXPERIMENTS = {
    "clip_pendulum": clip(),
    "rate_pendulum": small_rates(),
    "arc_search": Experiment(
        ENV,
        SHARED,
        1,
        20,
        {row: setting(*found) for row, found in search().items()},
        first_seed=100,
    ),
    "arc_pendulum": Experiment(
        ENV,
        SHARED,
        10,
        100,
        best(),
        watched=("losses/approx_kl",),
    ),
    "cartpole_ends": Experiment(
        CARTPOLE,
        ppo_settings(CARTPOLE),
        10,
        20,
        {
            "PPO": Variant({}, partial(build, make=CARTPOLE, learner=Watched)),
            "endless track": Variant(
                {}, partial(build, make=endless_track, learner=Watched)
            ),
            "the page": Variant(
                {"num_steps": 64, "num_epochs": 8, "num_minibatches": 4},
                partial(build, make=CARTPOLE, learner=Watched),
            ),
        },
        watched=ENDS,
    ),
    "anew_pendulum": anew(ENV),
    "anew_cartpole": anew(CARTPOLE),
}

if __name__ == "__main__":
    main("python -m benchmarks.arc_learning", EXPERIMENTS)

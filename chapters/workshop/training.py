# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Training in one call
#
# **How does one train a network of one's own in three lines?** `train` picks environments, a policy
# that fits them and a learner; it checks a network that you bring against the contract of the
# algorithm before the first step, and what it returns can be saved, loaded and watched like any
# other run. All of the work is done by other chapters. Nobody has to read this one to follow the
# book.

# %% tags=["export", "hide-input"]
"""Training in one call: an algorithm by name, an environment, a network of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from gymnasium import spaces

from literate_rl.actors import ActorLearner, ActorsConfig, actors_settings
from literate_rl.agents import best_device, make_envs, seed_everything
from literate_rl.hybrid_ppo import make_hybrid_policy  # and its environments
from literate_rl.impala import IMPALA
from literate_rl.policies import Policy, make_policy
from literate_rl.ppg import PPGAlgorithm, PPGConfig, make_phasic_policy, ppg_settings
from literate_rl.ppo import PPO, PPOConfig, ppo_settings
from literate_rl.workshop.cluster import RayActors
from literate_rl.workshop.fast import numpy_act
from literate_rl.workshop.runs import Learner, flat_env

__all__ = ["Agent", "train"]

# %% [markdown]
# ## From an environment to a learner
#
# Each algorithm has a function that builds environments, policy and learner.


# %% tags=["export"]
def make_ppo(env: str, config: PPOConfig) -> PPO:
    """Build the environments, the policy that fits them and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    observations, actions = envs.single_observation_space, envs.single_action_space
    device = best_device()
    policy = pick_policy(observations, actions, config.normalize_obs).to(device)
    # The fast form gives the same numbers, where it exists.
    plain = not isinstance(actions, spaces.Tuple | spaces.Dict)
    act = numpy_act(policy) if device.type == "cpu" and plain else None
    return PPO(policy, envs, config, act)


def make_ppg(env: str, config: PPGConfig) -> PPGAlgorithm:
    """Build the environments, the policy with two values and the learner."""
    seed_everything(config.seed)
    envs = make_envs(partial(flat_env, env), config.num_envs)
    observations = picture_space(env) or envs.single_observation_space
    with legible_refusal():
        policy = make_phasic_policy(
            observations,
            envs.single_action_space,
            config.share_encoder,
            config.detach,
            normalize=config.normalize_obs,
        )
    return PPGAlgorithm(policy.to(best_device()), envs, config)


def picture_space(env: str) -> spaces.Space[Any] | None:
    """Return the space of an environment's observations if they are pictures."""
    with flat_env(env) as made:
        space = getattr(made, "env", made).observation_space
    return space if len(space.shape or ()) == 3 else None


def make_impala(env: str, config: ActorsConfig) -> IMPALA | ActorLearner:
    """Build the environments, the policy that fits them and the learner."""
    seed_everything(config.seed)
    build = partial(make_envs, partial(flat_env, env), config.n_sample)
    envs = build()
    observations, actions = envs.single_observation_space, envs.single_action_space
    policy = pick_policy(observations, actions, normalize=False).to(best_device())
    if config.actors is None:
        return IMPALA(policy, envs, config)
    envs.close()
    cluster = partial(RayActors, address=config.address)
    on_ray = cluster if config.transport == "ray" else None
    return ActorLearner(policy, build, config, on_ray)


# %% [markdown]
# In one table, with the settings that each algorithm has for an environment:


# %% tags=["export"]
class Algorithm(NamedTuple):
    """What the command line knows of an algorithm."""

    config: type[Any]
    settings: Callable[[str], Any]
    make: Callable[[str, Any], Learner]


ALGORITHMS = {
    "ppo": Algorithm(PPOConfig, ppo_settings, make_ppo),
    "ppg": Algorithm(PPGConfig, ppg_settings, make_ppg),
    "impala": Algorithm(ActorsConfig, actors_settings, make_impala),
}


# %% [markdown]
# PPO takes hybrid actions too. Where a policy cannot be built, the message should speak of the
# environment and not of our functions.


# %% tags=["export"]
def pick_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    normalize: bool,
) -> Policy:
    """Build the policy that fits the spaces of one environment."""
    with legible_refusal():
        if isinstance(action_space, spaces.Tuple | spaces.Dict):
            return make_hybrid_policy(
                observation_space, action_space, normalize=normalize
            )
        return make_policy(observation_space, action_space, normalize=normalize)


@contextmanager
def legible_refusal() -> Iterator[None]:
    """Say in the words of the command line which actions a policy can take."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(
            "the environment's actions must be Discrete, a Box with one dimension or "
            f"Tuple(Discrete(K), Tuple(K Boxes)): {error}"
        ) from error

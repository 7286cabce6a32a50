# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Policies of your own models
#
# **How does a network that you have written become a policy that our algorithms can train?** The
# models here keep a contract ({doc}`/chapters/contracts`). This page builds policies of them, for
# A2C and its relatives, for DQN and Rainbow, for DDPG and its relatives, and for SAC. The
# algorithms do not know of it: they call `critic(obs, action)`, and what a model calls its states
# is a matter of the wrappers here.
#
# Nobody has to read this page to follow the book.

# %% tags=["export", "hide-input"]
"""Policies of one's own models: what keeps a contract can be trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from literate_rl.check.probes import (
    device_of,
    required_parameters,
    results_of,
    seed_generators,
    unwrapped,
)
from literate_rl.check.states import ByName, StateSpec, state_spec
from literate_rl.ground.nests import Space, as_discrete, refused, remembered
from literate_rl.ground.networks import Critics, eval_mode
from literate_rl.ground.protocols import refuse_mask
from literate_rl.ground.signatures import Count, check_that, checked
from literate_rl.learners.ddpg import ActorCritics, actions_of
from literate_rl.learners.discrete_sac import DiscreteCritics
from literate_rl.learners.dqn import EpsilonGreedy
from literate_rl.learners.rainbow import RainbowPolicy
from literate_rl.learners.sac import roomy_box
from literate_rl.nets.policies import Policy, predicted

__all__ = [
    "ContractPolicy",
    "LogitsOf",
    "make_contract_policy",
    "make_own_ddpg_policy",
    "make_own_sac_policy",
    "make_qnet_policy",
]

# %% [markdown]
# ## An actor that draws
#
# {doc}`/chapters/contracts` says what A2C, PPO, A3C and IMPALA require of a network. An **actor** gets
# states by name and returns an action, its log-probability and an entropy. Called with an action,
# it returns that action and judges it. A **critic** returns a value.
#
# Such an actor returns no row of numbers for an action distribution, so it is not a `Policy`
# ({doc}`/chapters/nets/policies`). But losses and learners never need a row. They need `act`,
# `evaluate_actions` and `value`, which we can build from an actor and a critic. SAC needs critics of
# actions and `draw`, or `log_probs` where actions come from a list ({doc}`/chapters/learners/discrete_sac`).
#
# There is one obstacle. A contract actor draws its action *inside* `forward`, from PyTorch's
# global generator. A resumed run would draw other actions, and so would another process. So the
# noise of this policy is a **seed**, one for each step. `act` seeds the global
# generator with it, calls the actor and then restores the generator.
#
# Evaluating an action may involve randomness too. No formula is known for the entropy of a squashed
# Gaussian, so an actor may estimate it from a sample. The seed of that sample is a checksum of the
# observations and the actions, so the same arguments give the same result in every process.


# %% tags=["export"]
class ContractPolicy(nn.Module):
    """A policy made of an actor, and of a critic or several, that keep their contract.

    It has the methods of ``Policy`` that learners, actors and evaluation use, but no
    rows: the actor draws and judges its actions itself. All random numbers of the
    models come from a seed, so for given weights the results depend only on the
    arguments.

    Args:
        actor: Called with its states by name, and with ``action`` to judge one. It
            returns actions, log-probabilities, entropies and possibly more. An
            optional method ``mode`` returns greedy actions.
        observation_space: Where the names of the states come from; not flattened.
        action_space: A ``Discrete`` space or a ``Box``.
        critic: A critic of states, for A2C and its relatives: called with its states by
            name; its first result is the values.
        critics: Critics of actions, for SAC; with them comes a temperature.
    """

    recipe: tuple[str, dict[str, Any]] = ("", {})

    def __init__(
        self,
        actor: Any,
        observation_space: Space,
        action_space: Space,
        critic: Any = None,
        critics: nn.Module | None = None,
    ) -> None:
        super().__init__()
        spec = state_spec(observation_space)
        self.actor = ByName(actor, spec)
        self.observation_space, self.action_space = observation_space, action_space
        if critic is not None:
            self.critic = ByName(critic, spec)
        if critics is not None:
            self.critics, self.log_alpha = critics, nn.Parameter(torch.zeros(()))

    def noise(
        self, num_steps: int, num_envs: int, generator: torch.Generator
    ) -> Tensor:
        """Draw a seed for each step of a rollout."""
        return torch.randint(2**62, (num_steps,), generator=generator)

    def act(
        self, obs: Tensor, noise: Tensor | float, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return actions drawn from a seed; 0.0 is greedy where there is a ``mode``."""
        refuse_mask(mask, self.actor.model)
        model: Any = self.actor
        if isinstance(noise, Tensor):
            seed = int(noise)
        else:
            # Without a `mode` this draws, so it needs a seed as well.
            seed, mode = checksum(obs), getattr(model.model, "mode", None)
            model = partial(model.ask, mode) if callable(mode) else model
        return drawn(model, seed, obs)[0]

    def evaluate_actions(
        self, obs: Tensor, action: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions and the entropies."""
        refuse_mask(mask, self.actor.model)
        # An entropy may be estimated from a sample. Its seed is a checksum.
        seed = checksum(obs, action)
        _, log_prob, entropy, *_ = drawn(self.actor, seed, obs, action=action)
        return log_prob.squeeze(-1), entropy.squeeze(-1)

    def to_env(self, action: Tensor) -> NDArray[Any]:
        """Return actions for the vector environment, clipped to the box if any."""
        space: Any = self.action_space
        if isinstance(space, spaces.Discrete):
            return action.squeeze(-1).numpy() + space.start
        return action.numpy().clip(space.low, space.high).astype(space.dtype)

    def predict(self, obs: Any, mask: Any = None, greedy: bool = True) -> Any:
        """Return actions in the environment's own form, as ``Policy.predict`` does."""
        return predicted(self, obs, mask, greedy)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations."""
        return drawn(self.critic, checksum(obs), obs)[0].squeeze(-1)

    def draw(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw an action in each state; return its log-density too, with gradient."""
        action, log_prob, *_ = self.asked(obs, generator)
        return action, log_prob.squeeze(-1)

    def log_probs(
        self, obs: Tensor, generator: torch.Generator, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the log-probabilities of all actions, the actor's fourth result."""
        refuse_mask(mask, self.actor.model)
        return self.asked(obs, generator)[3]

    def asked(self, obs: Tensor, generator: torch.Generator) -> tuple[Any, ...]:
        """Return all that the actor says about states; it draws with our seed."""
        seed = int(torch.randint(2**62, (), generator=generator))
        return drawn(self.actor, seed, obs)


# %% [markdown]
# Three small functions do the work: one calls the optional method `mode` for greedy actions, one
# seeds the generator and restores it, one computes the checksum.


# %% tags=["export"]
def drawn(
    ask: Callable[..., tuple[Any, ...]], seed: int, obs: Tensor, **given: Tensor
) -> tuple[Any, ...]:
    """Ask a model with PyTorch's global generators seeded; then restore them."""
    device = obs.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        seed_generators(seed, device)
        return ask(obs, **given)


def checksum(*tensors: Tensor) -> int:
    """Return a number that is the same for the same tensors, rarely for others."""
    return crc32(b"".join(x.numpy(force=True).tobytes() for x in tensors))


# %% [markdown]
# Each maker records what a checkpoint needs in order to build the policy again. Only the models
# are not part of it, because their code is yours: a checkpoint knows their names, and `load` asks
# for them.


# %% tags=["export"]
@remembered
@checked
def make_contract_policy(
    observation_space: Space,
    action_space: Space,
    actor: Any,
    critic: Any,
) -> ContractPolicy:
    """Build a policy for A2C, PPO, A3C or IMPALA from models that keep their contract.

    Args:
        observation_space: The environment's own, not flattened, or what
            ``plain_space`` made of it.
        action_space: A ``Discrete`` space or a ``Box``, likewise.
        actor: The actor, as in ``ContractPolicy``.
        critic: The critic.
    """
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        raise refused("action_space must be Discrete or a Box", action_space, "kind")
    return ContractPolicy(actor, observation_space, action_space, critic=critic)


# %% [markdown]
# Here is an actor that you might write, with two states by name, and its critic. First they go
# through the check of {doc}`/chapters/contracts`. Then PPO trains them for a short time, and A2C goes on.

# %%
from functools import partial

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from torch import nn

from literate_rl.learners.a2c import A2C, A2CConfig
from literate_rl.data.agents import make_envs
from literate_rl.check.contracts import check_model
from literate_rl.learners.ppo import PPO, PPOConfig
from literate_rl.check.own_models import make_contract_policy
from literate_rl.runs.runs import fit, flat_env


class TwoStates(gym.ObservationWrapper):
    """CartPole that shows the cart and the pole under names of their own."""

    def __init__(self, env):
        super().__init__(env)
        low, high = env.observation_space.low, env.observation_space.high
        boxes = {"cart": Box(low[:2], high[:2]), "pole": Box(low[2:], high[2:])}
        self.observation_space = Dict(boxes)

    def observation(self, observation):
        return {"cart": observation[:2], "pole": observation[2:]}


class MyActor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, cart, pole, action=None):
        dist = torch.distributions.Categorical(
            logits=self.layers(torch.cat([cart, pole], 1))
        )
        action = dist.sample().unsqueeze(1) if action is None else action
        log_prob = dist.log_prob(action.squeeze(1)).unsqueeze(1)
        return action, log_prob, dist.entropy().unsqueeze(1)


class MyCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, pole, cart):
        return self.layers(torch.cat([cart, pole], 1))


def two_states():
    return TwoStates(gym.make("CartPole-v1"))


torch.manual_seed(1)
world, actor, critic = two_states(), MyActor(), MyCritic()
check_model("A2C", actor=actor, critic=critic, env=two_states)
policy = make_contract_policy(
    world.observation_space, world.action_space, actor, critic
)
flat = partial(make_envs, partial(flat_env, two_states))
ppo = PPO(policy, flat(4), PPOConfig(total_steps=10_000, learning_rate=2e-3))
rows = fit(ppo, progress=False)
print(
    f"PPO: return {np.nanmean([row['charts/episodic_return'] for row in rows[-3:]]):.0f}"
)
a2c = A2C(policy, flat(8), A2CConfig(total_steps=2_000))
print(f"and A2C goes on: {fit(a2c, progress=False)[-1]['step']} steps")

# %% tags=["claims"]
seen = ppo.look_back(ppo.collect())
with torch.no_grad():
    cart, pole = seen.obs[:, :2], seen.obs[:, 2:]
    given, log_prob, _ = actor(cart, pole, action=seen.action)
assert given is seen.action, "the given action comes back"
assert torch.allclose(seen.log_prob, log_prob.squeeze(1)), (
    "what PPO sees is the actor's"
)
first = np.nanmean([row["charts/episodic_return"] for row in rows[:3]])
last = np.nanmean([row["charts/episodic_return"] for row in rows[-3:]])
assert last > first, "it learns"

# %% [markdown]
# ## A network that judges all actions
#
# A Q network becomes the network of an ordinary ε-greedy policy. Results other than the values are
# not needed for learning. If it returns distributions, it becomes the network of Rainbow's policy,
# and the number of atoms is the size of its last dimension.


# %% tags=["export"]
class FirstResult(nn.Module):
    """A model called by the names of its states, reduced to its first result.

    Args:
        model: The model.
        spec: What the states are called.
        num_actions: If not zero, a model that takes an action is asked about each of
            so many, as one-hot rows.
    """

    def __init__(self, model: Any, spec: StateSpec, num_actions: int = 0) -> None:
        super().__init__()
        self.by_name = ByName(model, spec)
        takes_one = "action" in required_parameters(model)
        self.num_actions = num_actions if takes_one else 0

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        """Return the first result for observations, and actions where it takes them."""
        if number := self.num_actions:
            # All actions of all states in one batch.
            each = torch.eye(number).to(obs).expand(len(obs), number, number)
            again = obs.unsqueeze(1).expand(-1, number, *obs.shape[1:])
            return self.by_name(again, action=each)[0].squeeze(-1)
        given = {} if action is None else {"action": action}
        return self.by_name(obs, **given)[0]


# %% [markdown]
# Such a network may return probabilities, as {doc}`/chapters/contracts` asks for. Their logarithms
# are logits too, since a softmax undoes the logarithm. A small number is added to avoid the
# logarithm of zero. It also makes the gradient smaller where a probability is tiny, so use logits
# if you have them.


# %% tags=["export"]
class LogitsOf(nn.Module):
    """Makes a network that returns probabilities ``(B, N, K)`` one that returns logits.

    Args:
        model: The network, a function of observations.
        num_actions: Number of actions N.
        num_atoms: Number of atoms K.
    """

    noise_sizes: tuple[int, ...] = ()

    def __init__(self, model: nn.Module, num_actions: int, num_atoms: int) -> None:
        super().__init__()
        self.model, self.num_actions, self.num_atoms = model, num_actions, num_atoms

    def forward(self, obs: Tensor, noise: Tensor | float) -> Tensor:
        """Return logits for observations; there is no noise."""
        return (self.model(obs) + 1e-8).log()


@remembered
@checked
def make_qnet_policy(
    observation_space: Space,
    action_space: Space,
    qnet: Any,
    support: Sequence[float] | None = None,
) -> Policy:
    """Build a policy around a Q network of your own.

    Args:
        observation_space: A space, or what ``plain_space`` made of it.
        action_space: A Discrete space, likewise.
        qnet: The network.
        support: First and last atom, if the network returns distributions.
    """
    discrete = as_discrete(action_space)
    num_actions = int(discrete.n)
    actions = EpsilonGreedy(num_actions, int(discrete.start))
    network = FirstResult(qnet, state_spec(observation_space))
    if support is None:
        return Policy(network, actions)
    # One call of the network tells how many atoms there are.
    with torch.no_grad(), eval_mode(network):
        num_atoms = network(torch.zeros(2, spaces.flatdim(observation_space))).shape[-1]
    logits = LogitsOf(network, num_actions, num_atoms)
    low, high = support
    return RainbowPolicy(logits, actions, low, high)


# %% [markdown]
# ## An actor and its critics
#
# For DDPG, TD3 and HDDPG an actor's first result is its action. DDPG has one critic, TD3 two. If
# several are asked for and one is given, the others are copies with fresh weights
# ({doc}`/chapters/td3` says why).


# %% tags=["export"]
@remembered
@checked
def make_own_ddpg_policy(
    observation_space: Space,
    action_space: Space,
    actor: Any,
    critic: Any,
    num_critics: Count = 1,
) -> Policy:
    """Build a policy for DDPG, TD3 or HDDPG from models that keep their contract.

    Args:
        observation_space: The environment's own, not flattened, or what
            ``plain_space`` made of it.
        action_space: A bounded box of vectors, or a Discrete space, likewise.
        actor: The actor.
        critic: The critic, or a sequence of critics. If there is only one, the others
            are copies, with fresh weights in each layer that has
            ``reset_parameters``.
        num_critics: Number of critics.

    Raises:
        ValueError: If the spaces do not fit.
    """
    actions, spec = actions_of(action_space), state_spec(observation_space)
    critics = Critics(FirstResult(x, spec) for x in as_many(critic, num_critics))
    network = ActorCritics(FirstResult(actor, spec), critics)
    return Policy(network, actions)


def as_many(critic: Any, number: int) -> list[Any]:
    """Return critics, made from one if only one is given."""
    several = isinstance(critic, list | tuple | nn.ModuleList)
    given = list(critic) if several else [critic]
    check_that(bool(given), "critic must hold a model, got none")
    while len(given) < number:
        # Equal critics would stay equal, so a copy gets fresh weights.
        twin = copy.deepcopy(given[0])
        inside: Any = unwrapped(twin)[0]
        for module in inside.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        given.append(twin)
    return given


# %% [markdown]
# ## SAC
#
# For actions from a list, SAC wants the values of all of them. A critic of your own may return
# them, or it may take an action and return its value; then it is asked about each.


# %% tags=["export"]
@remembered
@checked
def make_own_sac_policy(
    observation_space: Space,
    action_space: Space,
    actor: Any,
    critic: Any,
    num_critics: Count = 2,
) -> ContractPolicy:
    """Build a policy for SAC or discrete SAC from models that keep their contract.

    Args:
        observation_space: The environment's own, not flattened, or what
            ``plain_space`` made of it.
        action_space: A bounded box of vectors, or a Discrete space, likewise.
        actor: The actor.
        critic: The critic or critics, as in ``make_own_ddpg_policy``.
        num_critics: Number of critics.

    Raises:
        ValueError: If the spaces do not fit.
    """
    given, spec = as_many(critic, num_critics), state_spec(observation_space)
    critics: nn.Module
    if isinstance(action_space, spaces.Discrete):
        number = int(action_space.n)
        critics = DiscreteCritics(FirstResult(x, spec, number) for x in given)
    else:
        action_space = roomy_box(action_space)
        critics = Critics(FirstResult(x, spec) for x in given)
    return ContractPolicy(actor, observation_space, action_space, critics=critics)


# %% [markdown]
# An actor of your own must return the log-probabilities of *all* actions, as a fourth result,
# because a sum needs the probability of each action. For the other actors of {doc}`/chapters/contracts`
# three results are enough, but here such an actor is refused. The contracts of Machin ask for `rsample` instead; a `Categorical` of PyTorch has none.

# %%
from literate_rl.book.contract_models import CategoricalActor, QNetwork
from literate_rl.check.contracts import ContractError, check_model


class ThreeResults(CategoricalActor):
    def forward(self, state, action=None):
        return super().forward(state, action)[:3]


try:
    check_model(
        "SAC", actor=ThreeResults(4, 2), critic=QNetwork(4, 2), env="CartPole-v1"
    )
except ContractError as error:
    refusal = str(error)
    print(refusal)

# %% tags=["claims"]
assert "tuple of 4" in refusal
models = {"actor": CategoricalActor(4, 2), "critic": QNetwork(4, 2)}
assert check_model("SAC", **models, env="CartPole-v1") is None, "it passes"


# %% [markdown]
# ## What a model says
#
# `Agent.act` ({doc}`/chapters/apps/training`) asks a model of your own with its states by name.


# %% tags=["export"]
def own_model(policy: Any) -> ByName | None:
    """Return the user's model that acts in a policy, or None."""
    # Of the models of a policy the actor comes first.
    return next((x for x in policy.modules() if isinstance(x, ByName)), None)


def results_for(model: ByName, states: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the results of a model of one's own for states by name."""
    device, spec = device_of(model), model.spec
    # Whole numbers of a box stay whole. All else was float32 in training.
    whole = dict(zip(spec.names, spec.dtypes, strict=True))
    moved = {
        name: x.to(device, x.dtype if whole.get(name) else torch.float32)
        if isinstance(x, Tensor)
        else x
        for name, x in states.items()
    }
    return results_of(model.model(**moved, **model.fixed))


# %% [markdown]
# ## References
#
# The contracts are those of [Machin](https://github.com/iffiX/machin).

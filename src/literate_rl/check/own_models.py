# Generated from chapters/check/own_models.py (edit there); digest 8ccc4297fc32edb1
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

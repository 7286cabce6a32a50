# Generated from chapters/nets/recurrent.py (edit there); digest 1085b9077d196fdd
"""Policies that remember: a memory between what is seen and what is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor, nn

from literate_rl.data.agents import Window, without
from literate_rl.ground.nests import as_space, is_hybrid, remembered
from literate_rl.ground.networks import orthogonal
from literate_rl.ground.protocols import ActionDistribution
from literate_rl.ground.signatures import Count, check_that, checked
from literate_rl.nets.cells import Memory
from literate_rl.nets.encoders import OwnEncoder, entrance
from literate_rl.nets.hybrid_action import HybridPolicyNetwork
from literate_rl.nets.hybrid_policy import HybridActions, HybridRows
from literate_rl.nets.parts import GaussianActions, WithDeviations
from literate_rl.nets.policies import Policy, make_actions, normalizing

__all__ = ["RecurrentEncodingNetwork", "RecurrentPolicy", "make_recurrent_policy"]


class RecurrentNetwork(nn.Module):
    """Networks of actor and critic, each behind a memory, or both behind one.

    Args:
        memories: The memory of the actor and that of the critic, or one for both.
        actor: From outputs of the memory to rows.
        critic: From outputs of the memory to values, with a last dimension of 1.
        normalizer: What observations go through first.
    """

    def __init__(
        self,
        memories: Sequence[Memory],
        actor: nn.Module,
        critic: nn.Module,
        normalizer: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.normalizer = normalizer or nn.Identity()
        self.memories: Any = nn.ModuleList(memories)
        self.actor, self.critic = actor, critic
        self.sizes = [memory.state_size for memory in memories]

    def each(self, seen: Window) -> list[Window]:
        """Return what each memory reads."""
        obs, states = self.normalizer(seen.obs), seen.state.split(self.sizes, -1)
        return [seen._replace(obs=obs, state=state) for state in states]

    def states(self, seen: Window) -> Tensor:
        """Return the states of all memories behind all steps, ``(T, B, S)``."""
        pairs = zip(self.memories, self.each(seen), strict=True)
        return torch.cat([memory.states(part) for memory, part in pairs], -1)

    def output(self, seen: Window, which: int) -> Tensor:
        """Return what the actor's (0) or the critic's (-1) memory says of each step."""
        return self.memories[which](self.each(seen)[which])

    def forward(self, seen: Window) -> Tensor:
        """Return the rows of a window."""
        return self.actor(self.output(seen, 0))

    def value(self, seen: Window) -> Tensor:
        """Return the values of a window."""
        return self.critic(self.output(seen, -1)).squeeze(-1)

    def row(self, state: Tensor) -> Tensor:
        """Return the rows that belong to states."""
        return self.actor(state[..., : self.memories[0].size])


class RecurrentEncodingNetwork(nn.Module):
    """A memory behind an encoder, called as ALF calls its encoders.

    Args:
        observation_spec: Space of one observation.
        recurrent: What remembers.
        hidden: Number of features, kept as ``output_size``.
        space: What the environment shows, where ``observation_spec`` is a flat row.
        encoder: An encoder of your own, as in ``ShapedEncoder``.
    """

    def __init__(
        self,
        observation_spec: spaces.Space[Any],
        recurrent: Literal["gru", "lstm"] = "gru",
        hidden: Count = 64,
        space: spaces.Space[Any] | None = None,
        encoder: OwnEncoder | None = None,
    ) -> None:
        super().__init__()
        front, features = entrance(space or observation_spec, encoder=encoder)
        self.output_size = hidden
        self.memory = Memory(front, features, hidden, recurrent)

    def forward(self, observation: Any, state: Any = ()) -> tuple[Tensor, Any]:
        """Return features ``(B, F)`` and the next states of one step of episodes.

        Of a ``Window`` features only.

        Args:
            observation: Observations ``(B, *)``, or a window.
            state: States ``(B, S)``, or () at the start of episodes. Those of a window
                take the place of its own.
        """
        given = isinstance(state, Tensor)
        if isinstance(observation, Window):
            seen = observation._replace(state=state) if given else observation
            return self.memory(seen), ()
        if not given:
            weight = next(self.memory.cells.parameters())
            state = weight.new_zeros(len(observation), self.memory.state_size)
        state = self.memory.states(Window(observation, state))
        return state[..., : self.output_size], state


class RecurrentPolicy(Policy):
    """A policy with a state: what it does depends on what it saw before.

    ``evaluate_actions`` and ``value`` read a ``Window``. ``step`` takes a state and
    returns the next one. ``act`` and ``predict`` keep the state from call to call, and
    ``reset`` wipes it.

    Args:
        network: A ``RecurrentNetwork``, or what has its methods.
        actions: The action distribution.
    """

    def __init__(self, network: nn.Module, actions: ActionDistribution) -> None:
        super().__init__(network, actions)
        self.state: Tensor | None = None

    def start(self, num_envs: int) -> Tensor:
        """Return the states at the start of episodes, ``(B, S)``."""
        weight = next(self.parameters())
        return weight.new_zeros(num_envs, sum(self.network.sizes))

    def states(self, seen: Window) -> Tensor:
        """Return the states behind the steps of a window, ``(T, B, S)``."""
        return self.network.states(seen)

    def step(
        self,
        obs: Tensor,
        noise: Tensor | float,
        *,
        mask: Tensor | None = None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the actions and the next states of observations and states."""
        state = self.states(Window(obs, state))
        row = self.legal(self.network.row(state), mask)
        return self.actions.choose(row, noise), state

    def act(
        self, obs: Tensor, noise: Tensor | float, *, mask: Tensor | None = None
    ) -> Tensor:
        """Return the actions that follow from all observations since ``reset``."""
        if self.state is None:
            self.state = self.start(len(obs))
        count = len(self.state)
        words = f"obs must have {count} rows, as at the start of the episode, or reset"
        check_that(len(obs) == count, f"{words} must be called; got {len(obs)}")
        action, self.state = self.step(obs, noise, mask=mask, state=self.state)
        return action

    def reset(self, over: ArrayLike | Tensor | None = None) -> None:
        """Forget everything, or what was seen where an episode is over, ``(B,)``."""
        if over is None or self.state is None:
            self.state = None
        else:
            self.state = without(self.state, torch.as_tensor(over, dtype=torch.bool))


@checked
@remembered
def make_recurrent_policy(
    observation_space: spaces.Space[Any] | dict[str, Any],
    action_space: spaces.Space[Any] | dict[str, Any],
    recurrent: Literal["gru", "lstm"] = "gru",
    recurrent_size: Count = 64,
    normalize: bool = False,
    *,
    share_encoder: bool = False,
    mask: ArrayLike | None = None,
    encoder: OwnEncoder | None = None,
) -> RecurrentPolicy:
    """Build a policy that remembers, for any actions.

    Args:
        observation_space: As in ``make_policy``.
        action_space: One that ``make_actions`` takes, or a hybrid one.
        recurrent: What remembers.
        recurrent_size: Number of its outputs.
        normalize: Whether the policy normalises its observations; vectors only.
        share_encoder: Whether actor and critic share encoder and memory.
        mask: Which type of a hybrid action uses which argument, as in
            ``HybridActions.from_space``.
        encoder: An encoder of your own, as in ``ShapedEncoder``.
    """
    seen, space = as_space(observation_space), as_space(action_space)
    first = normalizing(normalize, seen, encoder)
    memories = [
        Memory(*entrance(seen, encoder=encoder), recurrent_size, recurrent)
        for _ in range(1 if share_encoder else 2)
    ]
    if is_hybrid(space):
        actions: Any = HybridActions.from_space(space, mask)
        network = HybridPolicyNetwork(recurrent_size, actions.action_shape)
        actor: nn.Module = HybridRows(network)
    else:
        check_that(
            mask is None, f"mask must be None without hybrid actions, got {space}"
        )
        actions = make_actions(space)
        outputs = actions.noise(0, 1, torch.Generator()).shape[-1]
        actor = orthogonal(nn.Linear(recurrent_size, outputs), 0.01)
        if isinstance(actions, GaussianActions):
            actor = WithDeviations(actor, outputs)
    critic = orthogonal(nn.Linear(recurrent_size, 1), 1.0)
    policy = RecurrentPolicy(RecurrentNetwork(memories, actor, critic, *first), actions)
    policy.reads_bytes = bool(memories[0].front)
    if is_hybrid(space):
        policy.recipe = "", {"mask": actions.mask.tolist()}
    return policy

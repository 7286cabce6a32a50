# Generated from chapters/contract_models.py (edit there); digest 8c803fa3126b8046
"""Models that keep a contract: one for each role that an algorithm may ask for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from literate_rl.ground.networks import Stretch, layers, squashed_log_prob

__all__ = [
    "ActionValue",
    "CategoricalActor",
    "CategoricalQNetwork",
    "DeterministicActor",
    "DuelingQNetwork",
    "ProbabilityActor",
    "QNetwork",
    "SquashedGaussianActor",
    "StateValue",
]


class SquashedGaussianActor(nn.Module):
    """Draws continuous actions inside their box: for SAC, and for A2C and PPO.

    Args:
        state_dim: Numbers in a state.
        low: Lower bounds of the actions.
        high: Upper bounds.
        hidden: Width of the hidden layers.
    """

    def __init__(self, state_dim: int, low: Any, high: Any, hidden: int = 64) -> None:
        super().__init__()
        self.box = Stretch(low, high)
        self.net = layers(state_dim, hidden, 2 * len(self.box.middle))

    def forward(
        self, state: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, log-densities and entropies."""
        mu, log_sigma = self.net(state).chunk(2, -1)
        # Keep the standard deviation away from zero and from absurdly large numbers.
        log_sigma = log_sigma.clamp(-5.0, 2.0)
        describe = mu, log_sigma, self.box.half_width

        # Draw, with a gradient through the draw: this is what `rsample` does.
        fresh = mu + log_sigma.exp() * torch.randn_like(mu)
        entropy = -squashed_log_prob(fresh, *describe)

        # Judge what was drawn, or what was given.
        u = fresh if action is None else self.box.undo(action)
        log_prob = squashed_log_prob(u, *describe)
        action = self.box(fresh) if action is None else action
        return action, log_prob.unsqueeze(-1), entropy.unsqueeze(-1)

    def mode(self, state: Tensor) -> Tensor:
        """Return the actions without noise."""
        return self.box(self.net(state).chunk(2, -1)[0])


class QNetwork(nn.Module):
    """Returns a Q value for each action: for DQN and its relatives."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q values."""
        return self.net(state)


class DuelingQNetwork(nn.Module):
    """Returns Q values: the value of the state plus an advantage for each action."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(layers(state_dim, hidden, hidden), nn.ReLU())
        self.value, self.adv = nn.Linear(hidden, 1), nn.Linear(hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q values, whose mean over the actions is the value of the state."""
        features = self.body(state)
        value, adv = self.value(features), self.adv(features)
        return value + adv - adv.mean(-1, keepdim=True)


class CategoricalQNetwork(nn.Module):
    """Returns a distribution over returns for each action: for Rainbow."""

    def __init__(
        self, state_dim: int, action_num: int, atom_num: int = 51, hidden: int = 64
    ) -> None:
        super().__init__()
        self.sizes = (action_num, atom_num)
        self.net = layers(state_dim, hidden, action_num * atom_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return the probabilities of the atoms."""
        return self.net(state).unflatten(-1, self.sizes).softmax(-1)


class DeterministicActor(nn.Module):
    """Returns a continuous action inside its box: for DDPG and its relatives."""

    def __init__(self, state_dim: int, low: Any, high: Any, hidden: int = 64) -> None:
        super().__init__()
        self.box = Stretch(low, high)
        self.net = layers(state_dim, hidden, len(self.box.middle))

    def forward(self, state: Tensor) -> Tensor:
        """Return actions."""
        return self.box(self.net(state))


class ProbabilityActor(nn.Module):
    """Returns the probabilities of discrete actions: for DDPG and its relatives."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Return probabilities."""
        return self.net(state).softmax(-1)


class CategoricalActor(nn.Module):
    """Draws discrete actions: for A2C, PPO, A3C, IMPALA and SAC."""

    def __init__(self, state_dim: int, action_num: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, action_num)

    def forward(
        self, state: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return actions, log-probabilities, entropies, and all log-probabilities."""
        log_probs = self.net(state).log_softmax(-1)
        if action is None:
            action = torch.multinomial(log_probs.exp(), 1)
        entropy = -(log_probs.exp() * log_probs).sum(-1, keepdim=True)
        return action, log_probs.gather(-1, action), entropy, log_probs

    def mode(self, state: Tensor) -> Tensor:
        """Return the most likely actions."""
        return self.net(state).argmax(-1, keepdim=True)


class StateValue(nn.Module):
    """Returns the value of a state: a critic for A2C, PPO, A3C and IMPALA."""

    def __init__(self, state_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim, hidden, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Return values."""
        return self.net(state)


class ActionValue(nn.Module):
    """Returns the value of an action in a state: a critic for DDPG, TD3 and SAC."""

    def __init__(self, state_dim: int, action_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.net = layers(state_dim + action_dim, hidden, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return Q values."""
        return self.net(torch.cat([state, action], -1))

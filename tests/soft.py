"""What tests of SAC and discrete SAC share."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from literate_rl.data.replay import Batch
from literate_rl.learners.discrete_sac import DiscreteSoftActorCritic
from literate_rl.learners.sac import SACConfig, SoftActorCritic

LOW, HIGH = [-1.0, 0.0], [3.0, 0.5]
N, ACTIONS = 6, 3
SEEN, LIST = spaces.Box(-1, 1, (4,)), spaces.Discrete(ACTIONS)
BOX = spaces.Box(np.float32(LOW), np.float32(HIGH))


def generator(seed: int = 0) -> torch.Generator:
    """Return a generator with a seed."""
    return torch.Generator().manual_seed(seed)


def algorithm_for(policy: Any, space: Any = BOX, **changes: Any) -> Any:
    """Build an algorithm whose older critics have other weights."""
    build = DiscreteSoftActorCritic if space is LIST else SoftActorCritic
    algorithm = build(policy, SACConfig(**changes), space)
    older = algorithm.target.network
    for x in older.parameters():
        x.add_(0.1 * torch.randn(x.shape, generator=generator(9)))
    # A gradient that reaches them would be seen.
    older.requires_grad_()
    return algorithm


def climb(learner: Any, obs: Tensor) -> None:
    """Take one step of the optimiser on the actor of an off-policy agent."""
    loss = learner.algorithm.ascent(obs, learner.generator)
    learner.descend(partial(loss.backward, inputs=learner.actor), learner.actor)


def remembered(action: Tensor) -> Batch:
    """Return a batch whose first step ended in a termination."""
    source = generator(5)
    obs, next_obs = torch.randn(2, N, 4, generator=source)
    reward, discount = torch.rand(2, N, generator=source)
    discount[0] = 0.0
    return Batch(obs, action, reward, next_obs, discount, discount, torch.arange(N))

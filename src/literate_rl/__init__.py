"""Literate RL: deep reinforcement learning, line by line.

Each module is a chapter of the book, and the code that the chapter prints. Its public
names can be taken from here: ``from literate_rl import ppo_policy_error``. A module is
imported when one of its names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from literate_rl.agents import Ring as Ring
    from literate_rl.agents import Rollout as Rollout
    from literate_rl.agents import best_device as best_device
else:
    _MODULE_OF = {}

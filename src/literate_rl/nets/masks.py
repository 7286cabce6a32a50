# Generated from chapters/nets/masks.py (edit there); digest b6b83a2955c3ebad
"""Legal actions: adapters for those who say it in another way."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from literate_rl.ground.signatures import check_that
from literate_rl.nets.masking import (
    legal as legal,
)

__all__ = ["MaskFromMethod", "MaskFromObservation", "WithoutMask"]


class Adapter(gym.Wrapper[Any, Any, Any, Any]):
    """Passes on what an environment returns, as ``told`` tells it."""

    def told(self, obs: Any, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return an observation and what is said beside it."""
        return obs, infos

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        return self.told(*self.env.reset(**options))

    def step(self, action: Any) -> Any:
        """Take a step."""
        obs, *rest, infos = self.env.step(action)
        obs, infos = self.told(obs, infos)
        return obs, *rest, infos


class MaskFromMethod(Adapter):
    """Says in ``infos`` what a method ``action_masks()`` of the environment returns."""

    def told(self, obs: Any, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return them, with the mask in ``infos``."""
        mask = self.env.get_wrapper_attr("action_masks")()
        return obs, infos | {"action_mask": mask}


class MaskFromObservation(Adapter):
    """Takes observations apart that hold an ``observation`` and its ``action_mask``."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        parts: Any = space.spaces if isinstance(space, spaces.Dict) else {}
        words = "env must show a Dict of observation and action_mask"
        check_that(
            parts.keys() >= {"observation", "action_mask"}, f"{words}, got {space}"
        )
        self.observation_space = parts["observation"]

    def told(self, obs: Any, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return them, with the mask in ``infos``."""
        return obs["observation"], infos | {"action_mask": obs["action_mask"]}


class WithoutMask(Adapter):
    """Hides the masks, for agents that know none."""

    def told(self, obs: Any, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return them, without a mask."""
        return obs, {name: x for name, x in infos.items() if name != "action_mask"}

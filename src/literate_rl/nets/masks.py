# Generated from chapters/masks.py (edit there); digest e9770519e4c8ee33
"""Legal actions: rows in which what is not allowed has no chance, and adapters."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor

from literate_rl.ground.signatures import Bool, Float, check_that, checked

__all__ = ["MaskFromMethod", "MaskFromObservation", "WithoutMask", "legal"]


@checked
def legal(
    row: Float[Tensor, "*B N"], mask: Bool[Tensor, "*B N"]
) -> Float[Tensor, "*B N"]:
    """Return logits or values in which illegal actions have the lowest number there is.

    All of this package says it so: a mask holds True for what is legal, and in a row
    the lowest number of its dtype stands for what is not. In logits of your own minus
    infinity means the same. The table of a hybrid action is no such mask: it says which
    type uses which argument.

    Args:
        row: A number for each action; the larger, the likelier it is taken.
        mask: Which actions are legal, one of them or more.

    Source: Huang and Ontañón 2022, section 3.
    """
    some = mask.any(-1).all()
    check_that(some, "mask must leave a legal action, got a row without one")
    # A softmax of this is {eq}`masked-softmax`. No gradient comes to what is replaced,
    # {eq}`masked-gradient`. Minus infinity would be lower still, but the entropy
    # multiplies it by zero, and that is not a number.
    return row.masked_fill(~mask.to(row.device), torch.finfo(row.dtype).min)


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
        return obs, {
            **infos,
            "action_mask": self.env.get_wrapper_attr("action_masks")(),
        }


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
        return obs["observation"], {**infos, "action_mask": obs["action_mask"]}


class WithoutMask(Adapter):
    """Hides the masks, for agents that know none."""

    def told(self, obs: Any, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return them, without a mask."""
        return obs, {name: x for name, x in infos.items() if name != "action_mask"}

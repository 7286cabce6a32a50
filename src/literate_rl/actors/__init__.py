"""Many actors: in turn, in threads, in processes.

A module of this name stood here once. Its names are still found.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return what the module ``actors.actors`` has of this name."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("literate_rl.actors.actors"), name)

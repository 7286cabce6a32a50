"""Literate RL: deep reinforcement learning, line by line.

Each module is a chapter of the book and holds the code that the chapter prints. What
most programs need can be taken from here: ``from literate_rl import train``. A module
is imported when one of its names is first used, so that importing the package costs
next to nothing. The names stand in ``__init__.pyi``, the modules in ``floors.py``.
"""

import sys
from typing import Any

import lazy_loader

from literate_rl.floors import OldAddress, from_below

at_the_top, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
sys.meta_path.append(OldAddress())


def __getattr__(name: str) -> Any:
    """Import a name's module when the name is first used."""
    try:
        return at_the_top(name)
    except AttributeError:
        return from_below(name)

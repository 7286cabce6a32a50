"""Literate RL: deep reinforcement learning, line by line.

Each module is a chapter of the book and holds the code that the chapter prints. Its
public names can be taken from here: ``from literate_rl import ppo_policy_error``. A
module is imported when one of its names is first used, so that importing the package
costs next to nothing. The names stand in ``__init__.pyi``, the modules by floors in
``floors.py``.
"""

import sys

import lazy_loader

from literate_rl.floors import OldAddress

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
sys.meta_path.append(OldAddress())

# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Interrupts
#
# **What should happen when somebody presses Ctrl-C?** Python raises `KeyboardInterrupt` wherever it
# is: in the middle of an update, or between two files that belong together. A training had better
# end a moment later, when nothing is half done.
#
# Nobody has to read this page to follow the book. `fit` ({doc}`/chapters/runs/runs`) listens to Ctrl-C this way,
# and so do the processes of {doc}`/chapters/processes`.

# %% tags=["export", "hide-input"]
"""Interrupts: Ctrl-C ends a training where nothing is half done."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from types import FrameType

__all__ = ["StopWaiting", "check_interrupt"]

# %% [markdown]
# ## The first and the second
#
# The first Ctrl-C only sets an event. The loop looks at it when an iteration is over. From then on
# the signal means what it meant before, so a second Ctrl-C ends the program at once.
#
# A program may train one agent after the other. The first Ctrl-C ends one training, and a moment
# later the next one listens. Whoever presses twice within a second means all of them, so that
# second Ctrl-C raises, whichever training hears it.


# %% tags=["export"]
class CtrlC(threading.Event):
    """Set between the first Ctrl-C and the end of ``fit``.

    Attributes:
        pressed: When a training was last ended by it.
    """

    pressed = -math.inf


CTRL_C = CtrlC()


@contextmanager
def catch_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; one soon after another raises as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield threading.Event()  # Python delivers signals to the main thread only
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        last, CTRL_C.pressed = CTRL_C.pressed, time.monotonic()
        if CTRL_C.pressed - last < 1:
            signal.raise_signal(signal.SIGINT)
        CTRL_C.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield CTRL_C
    finally:
        signal.signal(signal.SIGINT, previous)
        CTRL_C.clear()


# %%
with catch_interrupt() as interrupted:
    for step in range(5):
        if interrupted.is_set():
            break
        if step == 2:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does
        print("step", step, "is whole")

# %% [markdown]
# **Notice** that the step in which it happened is whole, and the last one.

# %% tags=["claims"]
assert interrupted.is_set() is False, "it is over with the block"
assert step == 3, "where the loop looked"

# %% [markdown]
# ## While a learner waits
#
# What if an iteration never ends, because the learner waits for actors that hang
# ({doc}`/chapters/processes`)? While it waits nothing is half done. So a learner that waits calls
# `check_interrupt` now and then, and after Ctrl-C it waits no longer.


# %% tags=["export"]
class StopWaiting(KeyboardInterrupt):
    """Ctrl-C was pressed while a learner was waiting."""


def check_interrupt() -> None:
    """Raise ``StopWaiting`` if ``fit`` is to end; for learners that wait."""
    if CTRL_C.is_set():
        raise StopWaiting


# %% [markdown]
# ## Processes that a learner starts
#
# They do not hear Ctrl-C, because it is the learner that ends them. And they leave when it is
# gone, even if it was killed and even if they hang.


# %% tags=["export"]
@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: they inherit what is blocked here."""
    # This helper of Python's unblocks the signal when it starts, so it starts first.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_with_parent() -> None:
    """End this process when the one that started it is gone."""

    def wait() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


# %% [markdown]
# ## References
#
# [signal](https://docs.python.org/3/library/signal.html) says when Python calls a handler, and in
# which thread.

# Generated from chapters/ground/interrupts.py (edit there); digest b826df0e1c2d25cf
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


class StopWaiting(KeyboardInterrupt):
    """Ctrl-C was pressed while a learner was waiting."""


def check_interrupt() -> None:
    """Raise ``StopWaiting`` if ``fit`` is to end; for learners that wait."""
    if CTRL_C.is_set():
        raise StopWaiting


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

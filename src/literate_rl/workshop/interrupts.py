# Generated from chapters/workshop/interrupts.py (edit there); digest 447562ead7da5383
"""Interrupts: Ctrl-C ends a training where nothing is half done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from types import FrameType

__all__ = ["StopWaiting", "check_interrupt"]


CTRL_C = threading.Event()  # set between the first Ctrl-C and the end of `fit`


@contextmanager
def catch_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; the second one raises as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield threading.Event()  # Python delivers signals to the main thread only
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        CTRL_C.set()
        signal.signal(signal.SIGINT, previous)

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

"""Interrupts: what Ctrl-C means, to whom and for how long. ``test_runs`` asks `fit`."""

import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from processes import Child

from literate_rl.workshop.interrupts import (
    StopWaiting,
    catch_interrupt,
    check_interrupt,
)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_ctrl_c_is_noted_and_the_second_raises(ctrl_c) -> None:
    before = signal.getsignal(signal.SIGINT)
    with catch_interrupt() as interrupted:
        assert not interrupted.is_set()
        press()
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is before
    assert not interrupted.is_set()


def test_who_waits_is_told_until_the_block_ends(ctrl_c) -> None:
    check_interrupt()
    with catch_interrupt():
        check_interrupt()
        press()
        with pytest.raises(StopWaiting):
            check_interrupt()
    check_interrupt()


def test_another_thread_hears_nothing_and_changes_nothing(ctrl_c) -> None:
    before, heard = signal.getsignal(signal.SIGINT), []

    def listen() -> None:
        with catch_interrupt() as interrupted:
            heard.append(signal.getsignal(signal.SIGINT))
            interrupted.set()

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert heard == [before]
    check_interrupt()  # its event is its own


STARTS_A_CHILD = """
    import os, signal, sys, time
    from multiprocessing import get_context
    from literate_rl.workshop.interrupts import interrupts_blocked, leave_with_parent

    def child(pipe):
        leave_with_parent()
        os.kill(os.getpid(), signal.SIGINT)
        pipe.send(os.getpid())  # it has not heard it
        time.sleep(600)

    if __name__ == "__main__":
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        take, give = get_context("spawn").Pipe(duplex=False)
        with interrupts_blocked():
            process = get_context("spawn").Process(target=child, args=(give,))
            process.start()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
        print(take.recv(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_does_not_hear_ctrl_c_and_leaves_with_its_parent(tmp_path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(textwrap.dedent(STARTS_A_CHILD))
    command = [sys.executable, str(script)]
    with Child(command, stdout=subprocess.PIPE, text=True) as parent:
        # The pipe ends when the last process that may write to it has gone.
        out, _ = parent.communicate(timeout=120)
    assert out.strip().isdigit()
    assert parent.returncode == -signal.SIGKILL

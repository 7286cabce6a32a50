"""Interrupts: what Ctrl-C means, to whom and for how long. ``test_runs`` asks `fit`."""

import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
from processes import Child

from literate_rl.ground import interrupts
from literate_rl.ground.interrupts import (
    StopWaiting,
    catch_interrupt,
    check_interrupt,
)

press = partial(signal.raise_signal, signal.SIGINT)


@pytest.mark.parametrize(("seconds", "raises"), [(0.9, True), (1.1, False)])
def test_one_more_within_a_second_raises_in_the_next_block(
    seconds, raises, ctrl_c, monkeypatch
):
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(interrupts, "time", clock)
    with catch_interrupt():
        press()
    now[0] += seconds
    expected = pytest.raises(KeyboardInterrupt) if raises else nullcontext()
    with catch_interrupt() as interrupted:
        with expected:
            press()
        assert interrupted.is_set() is not raises
    # Whoever has raised can begin anew.
    now[0] += 2
    with catch_interrupt() as interrupted:
        press()
        assert interrupted.is_set()


def started(folder, text):
    """Run a script in a process of its own."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Child([sys.executable, str(script)], text=True, **streams)


LOOP = """
    import signal
    import gymnasium as gym
    from literate_rl import train

    class Pressing(gym.Wrapper):
        presses = 1

        def step(self, action):
            for _ in range(Pressing.presses):
                signal.raise_signal(signal.SIGINT)
            Pressing.presses = 0
            return super().step(action)

    # A process that was started in the background ignores the key.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    make = lambda: Pressing(gym.make("CartPole-v1"))
    for seed, Pressing.presses in ((1, 1), (2, 0), (3, 2), (4, 0)):
        steps = {"num_envs": 2, "num_steps": 16, "total_steps": 96}
        agent = train("PPO", make, seed=seed, progress=False, **steps)
        print(seed, agent.history[-1]["step"], agent.interrupted, flush=True)
"""


def test_a_loop_says_which_trainings_were_interrupted_and_two_presses_end_it(
    tmp_path,
):
    with started(tmp_path, LOOP) as loop:
        out, err = loop.communicate(timeout=120)
    words = ["interrupted at step 32 of 96", "1 32 True", "2 96 False"]
    assert out.splitlines() == words
    assert loop.returncode != 0
    assert err.rstrip().splitlines()[-1] == "KeyboardInterrupt"


def test_who_waits_is_told_until_the_block_ends(ctrl_c):
    check_interrupt()
    with catch_interrupt():
        check_interrupt()
        press()
        with pytest.raises(StopWaiting):
            check_interrupt()
    check_interrupt()


def test_another_thread_hears_nothing_and_changes_nothing(ctrl_c):
    before, heard = signal.getsignal(signal.SIGINT), []

    def listen():
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
    from literate_rl.ground.interrupts import interrupts_blocked, leave_with_parent

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


def test_a_child_does_not_hear_ctrl_c_and_leaves_with_its_parent(tmp_path):
    with started(tmp_path, STARTS_A_CHILD) as parent:
        # The pipe ends when the last process that may write to it has gone.
        out, _ = parent.communicate(timeout=120)
    assert out.strip().isdigit()
    assert parent.returncode == -signal.SIGKILL

"""Ctrl-C while ranks wait for one another, and timeouts of every kind."""

import math
import socket
import subprocess
import sys
import textwrap
import time

import gradwire
import numpy as np
import pytest

PRELUDE = """
import os, signal, sys, threading, time
import gradwire
import numpy as np

# Who runs tests in the background has the shell ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupted(wait):
    '''Seconds from Ctrl-C to KeyboardInterrupt.'''
    pressed = []
    def press():
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.5, press).start()
    try:
        wait()
    except KeyboardInterrupt:
        return time.monotonic() - pressed[0]
    raise AssertionError("not interrupted")

def two_ranks(timeout=100):
    '''Both in this process.'''
    found = {}
    def one(rank):
        found[rank] = gradwire.connect(rank, 2, sys.argv[1], timeout=timeout)
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0], found[1]
"""


def run(script, store):
    """How the script ended, and after how many seconds."""
    text = PRELUDE + textwrap.dedent(script)
    begun = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-c", text, store], timeout=60, capture_output=True, text=True, check=False
    )
    return process, time.monotonic() - begun


def test_an_interrupted_wait_can_be_repeated(tmp_path):
    script = """
        first, second = two_ranks()
        x, y = np.full(1000, 1, np.float32), np.full(1000, 2, np.float32)
        work = first.all_reduce(x)
        seconds = interrupted(work.wait)
        assert seconds < 0.3, seconds
        assert not work.done()
        second.all_reduce(y).wait()
        work.wait()
        assert (x == 3).all()
    """
    process, _ = run(script, f"file:{tmp_path}/store")
    assert process.returncode == 0, process.stderr


def test_setting_a_plan_can_be_interrupted(tmp_path):
    script = """
        first, second = two_ranks()
        first.register_layers({"x": np.ones(4, np.float32)})
        plan = {"gradwire_plan": 1, "default": {"way": "none"}}
        seconds = interrupted(lambda: first.set_plan(plan))  # the other rank never comes
        assert seconds < 0.3, seconds
    """
    process, seconds = run(script, f"file:{tmp_path}/store")
    assert process.returncode == 0, process.stderr
    assert seconds < 15  # of a timeout of 100


def test_a_work_that_is_deleted_does_not_swallow_an_interrupt(tmp_path):
    script = """
        first, second = two_ranks()
        x, y = np.full(1000, 1, np.float32), np.full(1000, 2, np.float32)
        def delete():
            first.all_reduce(x)
            for _ in range(1000):
                time.sleep(0.01)  # the interrupt comes here at the latest
        seconds = interrupted(delete)
        assert seconds < 0.3, seconds
        second.all_reduce(y).wait()  # the operation went on, with its arrays
        assert (y == 3).all()
    """
    process, _ = run(script, f"file:{tmp_path}/store")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("keyboard", ["default_int_handler", "SIG_IGN"])
def test_a_work_that_is_deleted_raises_what_the_handler_raised(tmp_path, keyboard):
    script = f"""
        def leave(*_):
            raise SystemExit(7)
        signal.signal(signal.SIGINT, signal.{keyboard})  # as nohup and shells set it
        signal.signal(signal.SIGTERM, leave)
        first, second = two_ranks()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        first.all_reduce(np.ones(1000, np.float32))
        for _ in range(1000):
            time.sleep(0.01)
    """
    process, seconds = run(script, f"file:{tmp_path}/store")
    assert process.returncode == 7, process.stderr
    assert seconds < 9


def test_a_program_that_is_interrupted_ends(tmp_path):
    script = """
        first, second = two_ranks()
        x = np.full(1000, 1, np.float32)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        first.all_reduce(x).wait()  # the other rank never comes
    """
    process, seconds = run(script, f"file:{tmp_path}/store")
    assert process.returncode != 0
    assert "KeyboardInterrupt" in process.stderr
    assert seconds < 15  # of a timeout of 100


@pytest.mark.parametrize("call", ["first.all_reduce(x).wait()", "first.set_plan(plan)"])
def test_an_interrupt_goes_before_the_failure_of_a_peer_that_it_ended(tmp_path, call):
    script = f"""
        first, second = two_ranks()
        x = np.ones(1000, np.float32)
        first.register_layers({{"x": x}})
        plan = {{"gradwire_plan": 1, "default": {{"way": "none"}}}}
        def strike_both():
            global second
            os.kill(os.getpid(), signal.SIGINT)
            second = None  # leaves before the first looks for signals
        threading.Timer(0.5, strike_both).start()
        {call}
    """
    process, _ = run(script, f"file:{tmp_path}/store")
    assert process.stderr.rstrip().endswith("KeyboardInterrupt"), process.stderr


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.mark.parametrize("kind", ["file", "tcp server", "tcp client"])
def test_an_interrupted_connect_leaves_nothing_behind(tmp_path, kind):
    store = f"file:{tmp_path}/store" if kind == "file" else f"tcp:127.0.0.1:{unused_port()}"
    script = f"""
        def left():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        rank = {int(kind == "tcp client")}
        before = left()
        seconds = interrupted(lambda: gradwire.connect(rank, 2, sys.argv[1], timeout=100))
        assert seconds < 0.3, seconds
        for _ in range(100):
            if left() == before:
                break
            time.sleep(0.01)  # the thread that pressed Ctrl-C ends
        assert left() == before, (left(), before)
    """
    process, _ = run(script, store)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("timeout", [0, -1, math.nan, -math.inf, 0.0])
def test_timeouts_that_are_none_are_refused(timeout):
    with pytest.raises(ValueError, match="take more than 0"):
        gradwire.connect(0, 1, timeout=timeout)
    ranks = gradwire.connect(0, 1)
    x = np.ones(4, np.float32)
    for call in (
        lambda: ranks.barrier(timeout=timeout),
        lambda: ranks.all_reduce(x, timeout=timeout),
        lambda: ranks.broadcast(x, timeout=timeout),
        lambda: ranks.reduce_scatter(x, timeout=timeout),
        lambda: ranks.all_gather(x, timeout=timeout),
    ):
        with pytest.raises(ValueError, match="take more than 0"):
            call()


@pytest.mark.parametrize("timeout", ["inf", "1e30", "10**12"])
def test_very_long_timeouts_are_taken(tmp_path, timeout):
    script = f"""
        from math import inf
        first, second = two_ranks(timeout={timeout})
        x = np.ones(4, np.float32)
        works = [ranks.all_reduce(x.copy(), timeout={timeout}) for ranks in (first, second)]
        works += [ranks.barrier() for ranks in (first, second)]
        for work in works:
            work.wait()
    """
    process, _ = run(script, f"file:{tmp_path}/store")
    assert process.returncode == 0, process.stderr

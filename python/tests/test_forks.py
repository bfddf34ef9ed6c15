"""Children of a rank: what they inherit tells nobody anything, and keeps nothing alive."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

# A rank; `ranks` is its communicator. Whoever fails says so on its standard error.
PRELUDE = """
import os, signal, sys, threading, time
import gradwire
import numpy as np

rank, store, transport = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def connect(**more):
    options = {"transport": transport, "timeout": 30, **more}
    return gradwire.connect(rank, 2, store, **options)

def fork(body):
    child = os.fork()
    if child == 0:
        body()
        os._exit(0)
    return child

def ends_well(child):
    for _ in range(1000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, status
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the child hangs")
"""


def start(script, store, transport="auto"):
    """Both ranks of a script."""
    text = PRELUDE + textwrap.dedent(script)
    return [
        subprocess.Popen(
            [sys.executable, "-c", text, str(rank), store, transport],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def run(script, store, transport="auto"):
    """What both ranks print, which end well."""
    processes = start(script, store, transport)
    try:
        printed = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        return printed
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(params=["shm", "tcp"])
def transport(request):
    return request.param


def test_a_child_that_exits_is_noticed_by_nobody(tmp_path, transport):
    script = """
        ranks = connect()
        child = os.fork()
        if child == 0:
            sys.exit(0)  # drops the communicator as the interpreter ends
        ends_well(child)
        ends_well(fork(lambda: globals().pop("ranks")))
        x = np.full(1000, rank + 1, np.float32)
        for _ in range(3):
            ranks.barrier().wait()
        ranks.all_reduce(x).wait()
        assert (x == 3).all()
    """
    run(script, f"file:{tmp_path}/store", transport)


def test_in_a_child_calls_are_refused_and_works_can_be_dropped(tmp_path, transport):
    script = """
        ranks = connect()
        x = np.full(1000, rank + 1, np.float32)
        if rank == 0:
            work = ranks.all_reduce(x)  # under way until rank 1 comes

            def body():
                for call in (ranks.barrier, work.wait, work.statistics, ranks.save_residuals):
                    try:
                        call()
                        os._exit(1)
                    except gradwire.Error as error:
                        assert error.code == "invalid_argument"
                        assert f"belongs to process {os.getppid()}" in str(error), error
                assert work.done() and ranks.rank == 0 and ranks.size == 2
                globals().pop("work")
                globals().pop("ranks")

            ends_well(fork(body))
            open(store[5:] + "/forked", "w").close()
        else:
            while not os.path.exists(store[5:] + "/forked"):
                time.sleep(0.01)
            work = ranks.all_reduce(x)
        work.wait()
        assert (x == 3).all()
    """
    run(script, f"file:{tmp_path}/store", transport)


def test_children_compute_with_one_another(tmp_path, transport):
    script = """
        ranks = connect()

        def body():
            global store
            store += "-of-children"
            x = np.full(1000, rank + 1, np.float32)
            connect().all_reduce(x).wait()
            assert (x == 3).all()

        ends_well(fork(body))
        ranks.barrier().wait()
    """
    run(script, f"file:{tmp_path}/store", transport)


def test_a_killed_rank_with_a_living_child_is_missed_at_once(tmp_path, transport):
    script = """
        ranks = connect(secret="s" if transport == "tcp" else "")
        ranks.barrier().wait()
        if rank == 1:
            print(fork(lambda: time.sleep(60)), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        try:
            ranks.barrier().wait()
        except gradwire.Error as error:
            print(error.code, time.monotonic() - begun)
    """
    survivor, victim = start(script, f"file:{tmp_path}/store", transport)
    child = int(victim.stdout.readline())
    try:
        code, seconds = survivor.communicate(timeout=60)[0].split()
        assert victim.wait() == -signal.SIGKILL
        assert code == "peer_failed"
        assert float(seconds) < 1
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)
        survivor.kill()


def test_a_child_from_while_ranks_connect_keeps_no_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = """
        if rank == 0:
            threading.Thread(target=connect, daemon=True).start()  # rank 1 never comes
            sys.stdin.read()
            print(fork(lambda: time.sleep(60)), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    text = PRELUDE + textwrap.dedent(script)
    server = subprocess.Popen(
        [sys.executable, "-c", text, "0", f"tcp:127.0.0.1:{port}", "tcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not listens(port):
        assert server.poll() is None
        time.sleep(0.01)
    server.stdin.close()
    child = int(server.stdout.readline())
    try:
        assert server.wait(timeout=60) == -signal.SIGKILL
        os.kill(child, 0)  # it lives
        deadline = time.monotonic() + 30
        while listens(port):  # until the child, which may not have run yet, closes what it got
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.kill(child, signal.SIGKILL)


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    except ConnectionRefusedError:
        return False

"""Strangers at every door of a job, from before it starts until it ends: its sums stay right."""

import contextlib
import multiprocessing
import socket
import threading
import time

import gradwire
import numpy as np
import pytest

spawn = multiprocessing.get_context("spawn")
SIZE = 3
STEPS = 100
GARBAGE = b"\x16\x03\x01\x02\x00" + bytes(range(256)) * 40_000  # begins like TLS; 10 MB


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def reduce_all(rank, options, besieged, results):
    if rank == SIZE - 1:
        besieged.wait(30)  # the others get their time with the strangers
    ranks = gradwire.connect(rank, SIZE, transport="tcp", timeout=60, **options)
    right = 0
    for step in range(STEPS):
        x = np.arange(50_000, dtype=np.float32) + rank
        ranks.all_reduce(x, step=step).wait()
        right += np.array_equal(x, np.arange(50_000, dtype=np.float32) * SIZE + sum(range(SIZE)))
    ranks.barrier().wait()
    results.put((rank, right))


class Siege(threading.Thread):
    """Calls at every port, again and again; says nothing, or garbage, and keeps hundreds of
    connections. `besieged` is set once they are many at the store and at the first ranks."""

    def __init__(self, ports, besieged):
        super().__init__(daemon=True)
        self.ports = ports
        self.besieged = besieged
        self.over = threading.Event()
        self.taken = dict.fromkeys(ports, 0)  # calls that somebody took

    def run(self):
        kept = []
        while not self.over.is_set():
            for port in self.ports:
                kept += [self.call(port, say) for say in (b"", GARBAGE[:70], GARBAGE)]
            kept = [each for each in kept if each][-300:]
            if all(self.taken[port] > 30 for port in self.ports[:SIZE]):
                self.besieged.set()
            time.sleep(0.002)
        for each in kept:
            each.close()

    def call(self, port, say):
        caller = socket.socket()
        caller.settimeout(0.1)
        try:
            caller.connect(("127.0.0.1", port))
        except OSError:
            caller.close()
            return None
        self.taken[port] += 1
        with contextlib.suppress(OSError):
            caller.sendall(say)
        return caller


@pytest.mark.parametrize("secret", ["", "sesame"])
def test_a_job_under_siege_gives_right_sums(secret):
    store, *ports = free_ports(1 + SIZE)
    besieged = spawn.Event()
    siege = Siege([store, *ports], besieged)
    siege.start()
    results = spawn.Queue()
    options = {"store": f"tcp:127.0.0.1:{store}", "secret": secret}
    processes = [
        spawn.Process(
            target=reduce_all,
            args=(rank, options | {"port": ports[rank]}, besieged, results),
        )
        for rank in range(SIZE)
    ]
    for process in processes:
        process.start()
    try:
        found = sorted(results.get(timeout=90) for _ in processes)
    finally:
        siege.over.set()
        siege.join(timeout=10)
        for process in processes:
            process.join(timeout=10)
            process.kill()
    assert besieged.is_set()
    assert found == [(rank, STEPS) for rank in range(SIZE)]

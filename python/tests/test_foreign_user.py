"""Another user of the host, as a process of its own, while a job connects: it reads no key, gets no
memory, and cannot stop the job by taking names or filling queues. Needs root, as the tests have."""

import collections
import contextlib
import multiprocessing
import os
import pathlib
import re
import resource
import shutil
import socket
import struct
import tempfile
import time

import gradwire
import numpy as np
import pytest

spawn = multiprocessing.get_context("spawn")
SIZE = 3
NOBODY = 65534
FILES = 64


@pytest.fixture
def shared():
    """A directory that everybody can enter, as pytest's own is not."""
    folder = pathlib.Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def reduce_all(rank, options, results):
    try:
        ranks = gradwire.connect(rank, SIZE, timeout=30, **options)
        x = np.arange(10_000, dtype=np.float32)
        ranks.all_reduce(x).wait()
        ranks.barrier().wait()
        results.put((rank, np.array_equal(x, SIZE * np.arange(10_000, dtype=np.float32))))
    except Exception as error:
        results.put((rank, str(error)))


def abstract_name(name):
    return f"\0{name}"


def listener_of(process):
    """The name of a rank's socket; everybody sees names, and root whose they are."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        table = pathlib.Path("/proc/net/unix").read_text()
        names = dict(re.findall(r" 0001 01 +(\d+) @(gradwire-\w+)$", table, re.MULTILINE))
        for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inode = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
                if inode and inode[1] in names:
                    return names[inode[1]]
        time.sleep(0.01)
    raise TimeoutError("the rank does not listen")


def written(path):
    """What is in a file, when it is there."""
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return path.read_bytes()


class Attack:
    """What another user does until it is told to end, and what came of it."""

    def __init__(self, store, port):
        self.store = store
        self.port = port
        self.read = set()  # files that could be read
        self.calls = []  # to sockets of ranks
        self.names = []  # taken
        self.queued = collections.deque(maxlen=FILES // 2)  # calls to the port

    def call(self, names, job):
        """With the first words of the rank that is still to come, as who knows the job says them:
        magic, version, purpose, job, from, to, nonce (src/net/handshake.h)."""
        for rank, name in enumerate(names):
            hello = struct.pack("<IHH16sII32s", 0x31485747, 2, 1, job, SIZE - 1, rank, bytes(32))
            self.calls.append(socket.socket(socket.AF_UNIX))
            self.calls[-1].connect(abstract_name(name))
            self.calls[-1].sendall(hello)

    def strike(self):
        with contextlib.suppress(OSError):  # its files may have come to an end, too
            for path in self.store.iterdir():
                with contextlib.suppress(OSError):
                    path.read_bytes()
                    self.read.add(path.name)
                self.take_names_after(path.name)
        with contextlib.suppress(OSError):
            self.queued.append(socket.create_connection(("127.0.0.1", self.port), timeout=0.1))

    def take_names_after(self, file):
        """Of a job whose id is the first part of a file's name."""
        for rank in range(SIZE):
            taken = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):
                taken.bind(abstract_name(f"gradwire-{file.split('-')[0]}-{rank}"))
                taken.listen()
                self.names.append(taken)

    def heard(self):
        """What ranks said to it before they hung up."""
        words = []
        for call in self.calls:
            call.settimeout(5)
            try:
                words.append(call.recv(100))
            except ConnectionError:
                words.append(b"")
        return words


def attack(store, port, names, job, ready, over, report):
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))  # soon at its end, as it may be
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    foreigner = Attack(store, port)
    foreigner.call(names, job)
    for rounds in range(10_000):
        foreigner.strike()
        if rounds == 20:
            ready.set()
        if over.wait(0.01):
            break
    report.put((foreigner.read, foreigner.heard()))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("mode", [None, 0o755])
def test_another_user_gets_neither_key_nor_memory_and_stops_nothing(shared, mode):
    store = shared / "store"
    if mode is not None:
        store.mkdir(mode)  # Then it can be listed.
    port = free_port()
    ready, over, report, results = spawn.Event(), spawn.Event(), spawn.Queue(), spawn.Queue()
    ranks = [
        spawn.Process(
            target=reduce_all,
            args=(rank, {"store": f"file:{store}", "port": port if rank == 0 else 0}, results),
        )
        for rank in range(SIZE)
    ]
    started = ranks[:-1]
    try:
        for process in started:
            process.start()
        names = [listener_of(process) for process in started]
        job = written(store / "job-1")[:16]  # As if it had become known.
        foreigner = spawn.Process(
            target=attack, args=(store, port, names, job, ready, over, report)
        )
        for process in (foreigner, ranks[-1]):
            started.append(process)
            process.start()
            assert ready.wait(30)  # The last rank comes when the foreigner has done its worst.
        found = sorted(results.get(timeout=60) for _ in ranks)
        over.set()
        read, heard = report.get(timeout=30)
    finally:
        over.set()
        for process in started:
            process.join(timeout=10)
            process.kill()
    assert found == [(rank, True) for rank in range(SIZE)]
    assert read == set()
    assert heard == [b""] * (SIZE - 1)


def test_a_directory_that_another_user_made_first_is_refused_or_needs_a_secret(shared):
    store = shared / "store"
    store.mkdir()
    os.chown(store, NOBODY, NOBODY)
    with pytest.raises(gradwire.Error, match="belongs to another user"):
        gradwire.connect(0, 2, f"file:{store}", timeout=5)
    with pytest.raises(gradwire.Error, match="rank 1 did not come"):
        gradwire.connect(0, 2, f"file:{store}", timeout=0.5, secret="sesame")

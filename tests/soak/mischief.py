"""What a rank does to itself and to others: children that it forks, and lies.

A lie about a call (other counts, another number of tensors, another call) is a wrong program, and
either side may be blamed for it. Lies on the wire need no more than the rank's own sockets: it
writes messages into them that are well formed and that nobody waits for.
"""

import contextlib
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import xxhash
from episode import LANES

MESSAGE = 0x4D574731  # WireHeader of src/transport/tcp_connection.h
LYING_SECONDS = 1.0  # or until the others close the connection; a call may take more
CHILD_SECONDS = 20  # a child that lives longer hangs


class Forks:
    """A rank's children."""

    def __init__(self, manner: str, report):
        self.manner, self._report = manner, report
        self._children: list[int] = []
        self._thread: threading.Thread | None = None

    def while_connecting(self, delay: float):
        """By a thread."""

        def fork():
            time.sleep(delay)
            pid = os.fork()
            if pid == 0:
                if self.manner in ("killed", "sleeps"):
                    time.sleep(CHILD_SECONDS)
                os._exit(0)
            self._parent_of(pid)

        self._thread = threading.Thread(target=fork)
        self._thread.start()

    def while_computing(self, ranks):
        """In a child this does not return: it leaves through all callers, as programs do."""
        for _ in range(1 if self.manner in ("killed", "sleeps") else 3):
            pid = os.fork()
            if pid == 0:
                self._be_a_child(ranks)
            self._parent_of(pid)

    def _be_a_child(self, ranks):
        signal.alarm(CHILD_SECONDS)
        if self.manner in ("killed", "sleeps"):
            time.sleep(CHILD_SECONDS)
        if self.manner == "exits while operations run":
            time.sleep(0.02)
        if self.manner == "exits":  # not without having tried
            with contextlib.suppress(Exception):
                ranks.barrier(timeout=1).wait()
                os._exit(1)
        sys.exit(0)

    def _parent_of(self, pid: int):
        self._children.append(pid)
        self._report("struck", child=pid)

    def end(self):
        if self._thread:
            self._thread.join()
        for pid in self._children:
            if self.manner == "sleeps":
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if self.manner != "sleeps" and status != 0:
                code = os.waitstatus_to_exitcode(status)
                self._report("wrong", text=f"a forked child ended with {code}")


def other_than(call, manner: str):
    """The call that a liar makes instead."""
    if manner == "counts":
        return replace(call, counts=[call.counts[0] + 1, *call.counts[1:]])
    if manner == "tensors":
        return replace(call, counts=[*call.counts, 1], codecs=[*call.codecs, "none"])
    return replace(call, kind="barrier", counts=[], codecs=[])


def can_be_lied_about(call) -> bool:
    return call.kind == "all_reduce" and call.group is None and sum(call.counts) > 0


def lie_on_the_wire(manner: str, next_tag: int):
    """To every peer at once, until it has enough."""
    tags = [0] if manner == "old tags" else range(next_tag, next_tag + LANES)
    body = np.random.default_rng(7).bytes(4096)
    burst = b"".join(header(tag, len(body)) + body for tag in tags for _ in range(50))
    deadline = time.monotonic() + LYING_SECONDS
    threads = [
        threading.Thread(target=pour, args=(peer, burst, deadline)) for peer in connections()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def header(tag: int, length: int) -> bytes:
    unchecked = struct.pack("<IIQQ", MESSAGE, 0, tag, length)
    check = xxhash.xxh3_64_intdigest(unchecked) & 0xFFFFFFFF
    return struct.pack("<IIQQ", MESSAGE, check, tag, length)


def connections() -> list[socket.socket]:
    """Copies of this process's sockets that carry messages. Of the two that lead to every peer, the
    other is for questions, and has carried a greeting and no more."""
    found: dict[int, socket.socket] = {}  # by inode: a copy has its original's
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own, which is closed by now
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and status.st_ino not in found:
                copy = socket.socket(fileno=os.dup(int(name)))
                found[status.st_ino] = copy
    carried = {copy: bytes_carried(copy) for copy in found.values()}
    greeting = min(filter(None, carried.values()))
    for copy, count in carried.items():
        if count <= greeting:
            copy.close()
    return [copy for copy, count in carried.items() if count > greeting]


def bytes_carried(connection: socket.socket) -> int:
    """Acknowledged and received; none of what is no tcp connection."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return 0
    facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    return sum(struct.unpack_from("=QQ", facts, 120))


def pour(peer: socket.socket, burst: bytes, deadline: float):
    """The burst, again and again. It is never cut short: what follows would be garbage."""
    rest = memoryview(burst)
    with peer, contextlib.suppress(OSError):
        while time.monotonic() < deadline or len(rest) < len(burst):
            if not select.select([], [peer], [], 1.0)[1] and time.monotonic() > deadline:
                return
            with contextlib.suppress(BlockingIOError):
                rest = rest[peer.send(rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            rest = rest or memoryview(burst)


def manner_of(episode: dict, fault: str, rank: int) -> str | None:
    """What this rank is to do, if it is its turn."""
    mischief = episode["mischief"]
    return mischief["manner"] if (mischief["fault"], mischief["rank"]) == (fault, rank) else None

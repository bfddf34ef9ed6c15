"""Hosts whose kernel has no IPv6: there, sockets of its family cannot be made."""

import ctypes
import errno
import multiprocessing
import platform
import socket
import struct

import gradwire
import numpy as np
import pytest

spawn = multiprocessing.get_context("spawn")
SIZE = 2
SOCKET_CALL = {"x86_64": 41, "aarch64": 198}  # numbers of the system call
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # instructions of a filter
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def forbid_ipv6():
    """For this thread and those that it starts, by the system's own means (seccomp)."""
    instructions = b"".join(
        struct.pack("HBBI", *each)
        for each in [
            (LOAD, 0, 0, 0),  # which call
            (EQUAL, 0, 3, SOCKET_CALL[platform.machine()]),
            (LOAD, 0, 0, 16),  # its first argument
            (EQUAL, 0, 1, int(socket.AF_INET6)),
            (RETURN, 0, 0, REFUSE | errno.EAFNOSUPPORT),
            (RETURN, 0, 0, ALLOW),
        ]
    )
    libc = ctypes.CDLL(None, use_errno=True)
    program = Filter(len(instructions) // 8, instructions)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0  # PR_SET_SECCOMP
    with pytest.raises(OSError, match="not supported"):
        socket.socket(socket.AF_INET6)


def reduce_without_ipv6(rank, options, results):
    try:
        forbid_ipv6()
        ranks = gradwire.connect(rank, SIZE, timeout=20, **options)
        x = np.arange(1000, dtype=np.float32)
        ranks.all_reduce(x).wait()
        ranks.barrier().wait()
        results.put((rank, np.array_equal(x, SIZE * np.arange(1000, dtype=np.float32))))
    except Exception as error:
        results.put((rank, str(error)))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("interface", ["", "lo"])
@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1"])
def test_ranks_connect_by_ipv4(tmp_path, transport, interface, host):
    store = f"tcp:{host}:{free_port()}" if host else f"file:{tmp_path}"
    options = {"store": store, "transport": transport, "interface": interface}
    results = spawn.Queue()
    processes = [
        spawn.Process(target=reduce_without_ipv6, args=(rank, options, results))
        for rank in range(SIZE)
    ]
    for process in processes:
        process.start()
    try:
        assert sorted(results.get(timeout=60) for _ in processes) == [(0, True), (1, True)]
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()

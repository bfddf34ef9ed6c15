"""What somebody on the network sees of a job, and what ranks say who disagree about it."""

import contextlib
import multiprocessing
import os
import socket
import struct

import gradwire
import numpy as np
import pytest

spawn = multiprocessing.get_context("spawn")
PATTERN = np.array([-1.25e-7, 3.0e11, 7.7e-3, -2.5], np.float32)
TILES = 50_000
ETH_P_ALL = 3
SOL_PACKET, PACKET_STATISTICS = 263, 6
SO_RCVBUFFORCE = 33


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def reduce_pattern(rank, options, results):
    try:
        options = {"transport": "tcp", "interface": "lo", "timeout": 20, **options}
        ranks = gradwire.connect(rank, 2, **options)
        x = np.tile(PATTERN, TILES) * (1 - rank)
        ranks.all_reduce(x).wait()
        ranks.barrier().wait()
        results.put((rank, np.array_equal(x, np.tile(PATTERN, TILES)), None))
    except gradwire.Error as error:
        results.put((rank, error.code, str(error)))


def run_ranks(*options):
    """What the ranks report, by rank; each gets its own options."""
    results = spawn.Queue()
    processes = [
        spawn.Process(target=reduce_pattern, args=(rank, each, results))
        for rank, each in enumerate(options)
    ]
    for process in processes:
        process.start()
    try:
        return [found[1:] for found in sorted(results.get(timeout=60) for _ in processes)]
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()


class Capture:
    """Every TCP payload from or to a port, as it passes through the loopback interface."""

    def __init__(self, port):
        self.port = port
        self.bytes = bytearray()
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        self.socket.bind(("lo", ETH_P_ALL))

    def take(self):
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, (_, _, kind, *_) = self.socket.recvfrom(1 << 17)
                if kind != socket.PACKET_OUTGOING:  # each comes twice
                    self.bytes += self.payload(packet)
        statistics = self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        assert struct.unpack("II", statistics)[1] == 0, "packets were missed"
        self.socket.close()
        return bytes(self.bytes)

    def payload(self, packet):
        at = {4: (packet[0] & 15) * 4, 6: 40}[packet[0] >> 4]
        protocol = packet[9] if packet[0] >> 4 == 4 else packet[6]
        if protocol != socket.IPPROTO_TCP or len(packet) < at + 20:
            return b""
        if self.port not in struct.unpack("!HH", packet[at : at + 4]):
            return b""
        return packet[at + (packet[at + 12] >> 4) * 4 :]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen on a network interface")
@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, True),
        ({"secret": "open sesame", "encryption": "none"}, True),
        ({"secret": "open sesame"}, False),
        ({"secret": "open sesame", "encryption": "tls"}, False),
    ],
)
def test_numbers_are_seen_on_the_wire_only_without_tls(tmp_path, options, seen):
    port = free_port()  # of rank 0, which rank 1 calls
    capture = Capture(port)
    options = {"store": f"file:{tmp_path}", **options}
    results = run_ranks({"port": port, **options}, options)
    assert results == [(True, None)] * 2
    wire = capture.take()
    assert len(wire) > 4 * TILES * 4  # both phases of half the numbers each, both ways
    pattern = PATTERN.tobytes()
    assert (pattern in wire) == seen
    assert any(pattern[i : i + 8] in wire for i in range(9)) == seen
    assert b"open sesame" not in wire


@pytest.mark.parametrize(
    "options",
    [
        ({"secret": "tea"}, {"secret": "tea", "encryption": "none"}),
        ({"secret": "tea", "encryption": "none"}, {"secret": "tea"}),
        ({"secret": "tea"}, {}),
        ({}, {"secret": "tea"}),
    ],
)
def test_ranks_that_disagree_about_encryption_all_say_so(tmp_path, options):
    for code, message in run_ranks(*({"store": f"file:{tmp_path}", **each} for each in options)):
        assert code == "invalid_argument"
        assert "TLS by the secret" in message
        assert "no encryption" in message
        assert "give all ranks the same number of ranks, secret and encryption" in message


def test_a_rank_without_the_secret_is_told_so_by_the_tcp_store():
    store = f"tcp:127.0.0.1:{free_port()}"
    results = run_ranks({"store": store, "secret": "tea", "timeout": 5}, {"store": store})
    assert results[1][0] == "invalid_argument"
    assert "another secret or none" in results[1][1]
    assert results[0][0] == "timeout"
    assert "callers did not prove that they have the secret" in results[0][1]


def test_files_that_cannot_be_read_are_named(tmp_path):
    here = tmp_path / "here.pem"
    here.write_text("no PEM")
    none = str(tmp_path / "none.pem")
    files = {"certificate": str(here), "private_key": str(here), "authority": str(here)}
    for name, said in [
        ("certificate", "the certificate '"),
        ("private_key", "the private key '"),
        ("authority", "the certificate of the authority '"),
    ]:
        with pytest.raises(gradwire.Error, match=f"cannot read {said}{none}"):
            gradwire.connect(0, 2, f"file:{tmp_path}", **(files | {name: none}))
    with pytest.raises(gradwire.Error, match="is no certificate in PEM"):
        gradwire.connect(0, 2, f"file:{tmp_path}", **files)
    with pytest.raises(gradwire.Error, match="needs all of certificate, private_key and authority"):
        gradwire.connect(0, 2, f"file:{tmp_path}", certificate=str(here))
    with pytest.raises(gradwire.Error, match="take transport auto or tcp"):
        gradwire.connect(0, 2, f"file:{tmp_path}", secret="tea", encryption="tls", transport="shm")

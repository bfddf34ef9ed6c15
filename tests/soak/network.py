"""Hosts for the soak's ranks, and a wire between them that can be damaged.

A host is a network namespace without a name: it ends with the last process in it. Its `eth0` is a
TUN device whose other end the driver holds. So every packet between hosts passes through `Wire`,
which can drop it, damage it, or reset the connection it belongs to.
"""

import ctypes
import errno
import fcntl
import os
import random
import select
import socket
import struct
import subprocess
import threading
from dataclasses import dataclass

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
# Large packets keep a wire that is written in Python out of the way: some hundred MB/s.
MTU = 32768
TCP_PROTOCOL = 6
RST, ACK = 0x04, 0x10

libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This machine does not let us make networks."""


def call_system(name: str, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise Unavailable(f"{name}: {os.strerror(number)}")


def own_shared_memory():
    """From now on /dev/shm is empty and ours, here and in processes that we start."""
    call_system("unshare", CLONE_NEWNS)
    for arguments in (["--make-rprivate", "/"], ["-t", "tmpfs", "soak", "/dev/shm"]):
        subprocess.run(["mount", *arguments], check=True)


def in_thread(body):
    """What `body` returns, in a thread of its own: namespaces are a thread's."""
    outcome = []

    def run():
        try:
            outcome.append((body(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error:
        raise error
    return result


class Host:
    def __init__(self, number: int):
        self.address = f"10.78.0.{number + 1}"
        self.namespace, self.device = in_thread(self._make)

    def _make(self) -> tuple[int, int]:
        call_system("unshare", CLONE_NEWNET)
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            os.close(namespace)
            raise Unavailable(f"/dev/net/tun: {error.strerror}") from None
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI))
        self._ip(
            "link set lo up",
            f"address add {self.address}/24 dev eth0",
            f"link set eth0 mtu {MTU} up",
        )
        return namespace, device

    @staticmethod
    def _ip(*commands: str):
        text = "\n".join(commands)
        subprocess.run(["ip", "-batch", "-"], input=text, text=True, check=True)

    def inside(self, body):
        """What `body` returns, as a process of this host sees it."""

        def enter():
            call_system("setns", self.namespace, CLONE_NEWNET)
            return body()

        return in_thread(enter)

    def take_link_down(self):
        self.inside(lambda: self._ip("link set eth0 down"))

    def close(self):
        os.close(self.device)
        os.close(self.namespace)


def sum16(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@dataclass
class Segment:
    """A TCP segment in an IPv4 packet."""

    packet: bytearray

    @property
    def source(self) -> bytes:
        return bytes(self.packet[12:16])

    @property
    def destination(self) -> bytes:
        return bytes(self.packet[16:20])

    @property
    def begin(self) -> int:
        return (self.packet[0] & 15) * 4

    @property
    def payload(self) -> int:
        """Where it begins."""
        return self.begin + (self.packet[self.begin + 12] >> 4) * 4

    def flip(self, bit: int):
        """Flips a bit of the payload and mends the checksum (RFC 1624), as a broken router that
        computes checksums itself would."""
        at = self.payload + bit // 8
        word = self.begin + (at - self.begin) // 2 * 2
        old = sum16(bytes(self.packet[word : word + 2]))
        self.packet[at] ^= 1 << bit % 8
        new = sum16(bytes(self.packet[word : word + 2]))
        (check,) = struct.unpack_from(">H", self.packet, self.begin + 16)
        total = (~check & 0xFFFF) + (~old & 0xFFFF) + new
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        struct.pack_into(">H", self.packet, self.begin + 16, ~total & 0xFFFF)

    def resets(self) -> tuple[bytes, bytes]:
        """Packets that end the connection: for the receiver, as if from the sender, and back."""
        here, there, sequence, acknowledged = struct.unpack_from(">HHII", self.packet, self.begin)
        return (
            reset(self.source, self.destination, here, there, sequence, acknowledged),
            reset(self.destination, self.source, there, here, acknowledged, sequence),
        )


def reset(source: bytes, destination: bytes, here: int, there: int, sequence: int, ack: int):
    tcp = struct.pack(">HHIIBBHHH", here, there, sequence, ack, 5 << 4, RST | ACK, 0, 0, 0)
    pseudo = source + destination + struct.pack(">HH", TCP_PROTOCOL, len(tcp))
    tcp = tcp[:16] + struct.pack(">H", ~sum16(pseudo + tcp) & 0xFFFF) + tcp[18:]
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, TCP_PROTOCOL, 0, source, destination)
    return head[:10] + struct.pack(">H", ~sum16(head) & 0xFFFF) + head[12:] + tcp


class Wire:
    """Carries packets between hosts, in a thread."""

    def __init__(self, hosts: list[Host], rng: random.Random):
        self._devices = {socket.inet_aton(host.address): host.device for host in hosts}
        self._numbers = {socket.inet_aton(host.address): i for i, host in enumerate(hosts)}
        self._rng = rng
        self._cut: set[int] = set()
        self._harm = None
        self._spared = 0
        self.struck: tuple[int, int] | None = None
        """The hosts between which something was damaged."""
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self, host: int):
        """Drops what it sends and what is sent to it, without a word."""
        self._cut.add(host)

    def flip_a_bit(self, spared: int):
        """Of the next segment that has bytes in it, after so many that are spared."""
        self._spared, self._harm = spared, self._flip

    def reset_a_connection(self, spared: int):
        self._spared, self._harm = spared, self._reset

    def close(self):
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)

    def _run(self):
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        for device in self._devices.values():
            poll.register(device, select.POLLIN)
        while True:
            for descriptor, events in poll.poll():
                if descriptor == self._stop:
                    return
                if events & select.POLLIN:
                    self._drain(descriptor)
                else:  # the link is down: it stays so
                    poll.unregister(descriptor)

    def _drain(self, device: int):
        for _ in range(64):
            try:
                packet = os.read(device, MTU)
            except OSError:
                return  # there is no more, or the link is down
            if packet[0] >> 4 == 4:
                self._carry(packet)

    def _carry(self, packet: bytes):
        source, destination = packet[12:16], packet[16:20]
        if self._numbers.get(source) in self._cut or self._numbers.get(destination) in self._cut:
            return
        if self._harm and packet[9] == TCP_PROTOCOL:
            segment = Segment(bytearray(packet))
            if segment.payload < len(packet):
                if self._spared == 0:
                    harm, self._harm = self._harm, None
                    self.struck = self._numbers[source], self._numbers[destination]
                    harm(segment)
                    return
                self._spared -= 1
        self._deliver(packet)

    def _deliver(self, packet: bytes):
        device = self._devices.get(packet[16:20])
        if device is None:
            return
        try:
            os.write(device, packet)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EAGAIN, errno.ENOBUFS):  # down, or full
                raise

    def _flip(self, segment: Segment):
        segment.flip(self._rng.randrange(8 * (len(segment.packet) - segment.payload)))
        self._deliver(bytes(segment.packet))

    def _reset(self, segment: Segment):
        for packet in segment.resets():
            self._deliver(packet)


def listeners() -> list[tuple[int, object]]:
    """What listens on this host: families and addresses to connect to."""
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/thread-self/net/{table}") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    port = int(fields[1].rsplit(":", 1)[1], 16)
                    found.append((socket.AF_INET, ("127.0.0.1", port)))
    return found + [(socket.AF_UNIX, name) for name in abstract_names()]


def abstract_names() -> list[str]:
    """Unix sockets of this host that have a name without a file."""
    with open("/proc/thread-self/net/unix") as file:
        paths = [line.split()[7] for line in file.readlines()[1:] if len(line.split()) > 7]
    return ["\0" + path[1:] for path in paths if path.startswith("@")]

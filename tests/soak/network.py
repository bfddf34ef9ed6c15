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


def fold(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def sum16(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    return fold(sum(struct.unpack(f">{len(data) // 2}H", data)))


class Segment:
    """A TCP segment in an IPv4 packet."""

    def __init__(self, packet: bytes):
        self.packet = packet
        self.source, self.destination = packet[12:16], packet[16:20]
        self.begin = (packet[0] & 15) * 4
        self.payload = self.begin + (packet[self.begin + 12] >> 4) * 4
        self.here, self.there, self.sequence, self.acknowledged = struct.unpack_from(
            ">HHII", packet, self.begin
        )

    @property
    def length(self) -> int:
        return len(self.packet) - self.payload

    @property
    def flow(self) -> tuple:
        return self.source, self.here, self.destination, self.there

    @property
    def flow_back(self) -> tuple:
        return self.destination, self.there, self.source, self.here

    def holds(self, sequence: int) -> bool:
        """Whether the byte of this number is in it. Numbers wrap."""
        return (sequence - self.sequence) % 2**32 < self.length

    def with_flipped(self, sequence: int, bit: int) -> bytes:
        """The packet with one bit of this byte flipped and the checksum mended (RFC 1624), as a
        router that damages packets and computes checksums itself leaves it."""
        packet = bytearray(self.packet)
        at = self.payload + (sequence - self.sequence) % 2**32
        word = self.begin + (at - self.begin) // 2 * 2
        old = sum16(bytes(packet[word : word + 2]))
        packet[at] ^= 1 << bit
        new = sum16(bytes(packet[word : word + 2]))
        (check,) = struct.unpack_from(">H", packet, self.begin + 16)
        mended = ~fold((~check & 0xFFFF) + (~old & 0xFFFF) + new) & 0xFFFF
        struct.pack_into(">H", packet, self.begin + 16, mended)
        return bytes(packet)

    def resets(self) -> tuple[bytes, bytes]:
        """Packets that end the connection: for the receiver, as if from the sender, and back."""
        return (
            reset(*self.flow, self.sequence, self.acknowledged),
            reset(*self.flow_back, self.acknowledged, self.sequence),
        )


def reset(source: bytes, here: int, destination: bytes, there: int, sequence: int, ack: int):
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
        self._ends: dict[tuple, int] = {}  # of what each flow has carried
        self._harm = None
        self._spared = 0
        self._flipped: tuple[tuple, int, int] | None = None  # flow, byte, bit
        self._broken: set[tuple] = set()  # flows
        self.struck: tuple[int, int] | None = None
        """The hosts between which something was damaged."""
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self, host: int):
        """Drops what it sends and what is sent to it, without a word."""
        self._cut.add(host)

    def flip_a_bit(self, spared: int):
        """Of the next segment that carries something new, after so many that are spared; also when
        it is sent again."""
        self._spared, self._harm = spared, self._begin_to_flip

    def reset_a_connection(self, spared: int):
        """Likewise; what is still sent on that connection is answered with a reset."""
        self._spared, self._harm = spared, self._begin_to_reset

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
        if self._numbers.get(packet[12:16]) in self._cut:
            return
        if self._numbers.get(packet[16:20]) in self._cut:
            return
        if packet[9] == TCP_PROTOCOL:
            self._carry_segment(Segment(packet))
        else:
            self._deliver(packet)

    def _carry_segment(self, segment: Segment):
        if self._is_new(segment) and self._harm:
            if self._spared == 0:
                self._harm(segment)
                self._harm = None
                self.struck = self._numbers[segment.source], self._numbers[segment.destination]
            self._spared -= 1
        if segment.flow in self._broken:
            for packet in segment.resets():
                self._deliver(packet)
            return
        flow, byte, bit = self._flipped or (None, 0, 0)
        if flow == segment.flow and segment.holds(byte):
            self._deliver(segment.with_flipped(byte, bit))
        else:
            self._deliver(segment.packet)

    def _is_new(self, segment: Segment) -> bool:
        """Whether it carries bytes, and none that went before."""
        if segment.length == 0:
            return False
        end = self._ends.get(segment.flow, segment.sequence)
        if (segment.sequence - end) % 2**32 >= 2**31:
            return False
        self._ends[segment.flow] = (segment.sequence + segment.length) % 2**32
        return True

    def _begin_to_flip(self, segment: Segment):
        byte = (segment.sequence + self._rng.randrange(segment.length)) % 2**32
        self._flipped = segment.flow, byte, self._rng.randrange(8)

    def _begin_to_reset(self, segment: Segment):
        self._broken = {segment.flow, segment.flow_back}

    def _deliver(self, packet: bytes):
        device = self._devices.get(packet[16:20])
        if device is None:
            return
        try:
            os.write(device, packet)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EAGAIN, errno.ENOBUFS):  # down, or full
                raise


def listeners() -> list[tuple[int, object]]:
    """What listens on this host: families and addresses to connect to."""
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/thread-self/net/{table}") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    found.append((socket.AF_INET, address_of(fields[1])))
    return found + [(socket.AF_UNIX, name) for name in abstract_names()]


def address_of(text: str) -> tuple[str, int]:
    """Where to call a socket that this table of the kernel shows. All are of IPv4, or of both."""
    address, port = text.split(":")
    last_word = bytes.fromhex(address)[-4:][::-1]
    return socket.inet_ntoa(last_word if any(last_word) else b"\x7f\0\0\1"), int(port, 16)


def abstract_names() -> list[str]:
    """Unix sockets of this host that have a name without a file."""
    with open("/proc/thread-self/net/unix") as file:
        paths = [line.split()[7] for line in file.readlines()[1:] if len(line.split()) > 7]
    return ["\0" + path[1:] for path in paths if path.startswith("@")]

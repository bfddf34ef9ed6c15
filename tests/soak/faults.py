"""How faults strike."""

import contextlib
import os
import random
import select
import signal
import socket
import struct
import threading

from episode import Episode
from network import Host, Wire, listeners


def strike(episode: Episode, processes: list, hosts: list[Host], wire: Wire):
    victim = processes[episode.victim]
    host = episode.hosts[episode.victim]
    if episode.dies:
        victim.send_signal(signal.SIGKILL)
    elif episode.fault == "stop":
        victim.send_signal(signal.SIGSTOP)
    elif episode.fault == "link" and episode.variant % 2:
        wire.cut(host)
    elif episode.fault == "link":
        hosts[host].take_link_down()
    elif episode.fault == "flip":
        wire.flip_a_bit(episode.variant)
    elif episode.fault == "reset":
        wire.reset_a_connection(episode.variant)


def garbage(rng: random.Random) -> bytes:
    """What strangers say."""
    hello = struct.pack("<IHH", 0x31485747, 1, rng.choice([1, 2]))  # as a rank's begins
    return rng.choice(
        [
            b"",
            rng.randbytes(rng.randrange(1, 200)),
            rng.randbytes(100_000),
            b"GET / HTTP/1.1\r\nHost: gradwire\r\n\r\n",
            hello,
            hello + rng.randbytes(56),
            hello + rng.randbytes(56 + 32),
            b"get nothing\n",
            b"set \n",
            b"set nothing 99999999999999999999\n",
            b"set nothing 1000\nless",
            bytes(64),
        ]
    )


class Strangers:
    """Connect to all that listens on a host, talk garbage, leave or stay."""

    def __init__(self, host: Host, seed: str):
        self._rng = random.Random(seed)
        self._stop = os.eventfd(0)
        self.visits = 0
        self._thread = threading.Thread(target=lambda: host.inside(self._run))
        self._thread.start()

    def close(self):
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)

    def _run(self):
        with contextlib.ExitStack() as guests:
            while not select.select([self._stop], [], [], 0.0005)[0]:
                for family, address in listeners():
                    self._visit(family, address, guests)

    def _visit(self, family: int, address, guests: contextlib.ExitStack):
        stranger = socket.socket(family, socket.SOCK_STREAM)
        stranger.settimeout(0.2)
        try:
            stranger.connect(address)
            self.visits += 1
            stranger.send(garbage(self._rng))
        except OSError:  # turned away
            stranger.close()
            return
        manner = self._rng.randrange(3)
        if manner == 0 and self.visits < 300:
            guests.enter_context(stranger)  # stays
            return
        if manner == 1:
            linger = struct.pack("ii", 1, 0)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # leaves with a reset
        stranger.close()

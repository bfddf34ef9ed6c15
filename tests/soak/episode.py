"""What happens in one episode of the soak: drawn from a seed and a number, and nothing else."""

import random
from dataclasses import dataclass, field

FAULTS = ("kill", "stop", "link", "reset", "flip", "strangers", "fork", "lie")
ON_THE_WIRE = ("link", "reset", "flip")
FORKS = ("killed", "exits", "exits while operations run", "sleeps")
LIES = ("old tags", "surplus", "counts", "tensors", "calls")
LIES_ON_THE_WIRE = LIES[:2]
# How ranks stand on hosts and what they talk through.
PLACES = ("shm", "tcp", "hosts", "mixed")
SECONDS = 3.0  # for each call
CONNECT_SECONDS = 4.0  # when the fault strikes while ranks connect
LANES = 8  # of `connect`: pieces that are under way at once
STORE_PORT = 29500  # hosts have ports of their own


@dataclass
class Episode:
    seed: int
    number: int
    fault: str
    connecting: bool = False
    """The fault strikes while ranks connect, not while they compute."""
    place: str = "shm"
    hosts: list[int] = field(default_factory=list)
    """The host of each rank."""
    tcp_store: bool = False
    secret: str = ""
    at_once: int = 1
    victim: int = 0
    moment: int = 0
    """The fault strikes after so many calls of the victim, ..."""
    delay: float = 0.0
    """... and so many seconds."""
    variant: int = 0
    """For faults that can strike in several ways."""
    manner: str = ""
    """Of those that the victim commits itself."""
    staggered: list[float] = field(default_factory=list)
    """Seconds by which ranks are late to connect."""

    @property
    def name(self) -> str:
        return f"{self.seed}-{self.number}-{self.fault}"

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def dies(self) -> bool:
        """The victim does."""
        return self.fault == "kill" or self.manner == "killed"

    @property
    def falls_silent(self) -> bool:
        return self.dies or self.fault == "stop"

    @property
    def shows_at_once(self) -> bool:
        """Nobody has to wait for a deadline in order to see it."""
        return (self.dies and not self.connecting) or self.manner in LIES_ON_THE_WIRE

    @property
    def harmless(self) -> bool:
        return self.fault == "strangers" or (self.fault == "fork" and not self.dies)

    @property
    def must_fail(self) -> bool:
        """A connection that is damaged while it is made may be made again."""
        return not self.harmless and not (self.connecting and self.fault in ("reset", "flip"))

    @property
    def cut_off(self) -> list[int]:
        """Ranks that the others have to do without."""
        if self.falls_silent:
            return [self.victim]
        if self.fault == "link":
            return [r for r in range(self.size) if self.hosts[r] == self.hosts[self.victim]]
        return []

    @property
    def survivors(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.cut_off]

    def for_workers(self, store: str, store_again: str) -> dict:
        """What the ranks have to do: compute until the fault ends it (or, if it may not, for a
        while), and then once more without those who are cut off."""
        short = self.connecting and not self.harmless
        per_host = {self.hosts.count(host) for host in self.hosts}
        first = {
            "name": f"{self.name}/first",
            "ranks": list(range(self.size)),
            "store": store,
            "connect_timeout": CONNECT_SECONDS if short else 30.0,
            "timeout": SECONDS,
            "calls": None if self.must_fail else 40,
            "hierarchical": len(per_host) == 1,
        }
        again = {
            "name": f"{self.name}/again",
            "ranks": self.survivors,
            "store": store_again,
            "connect_timeout": 30.0,
            "timeout": 30.0,
            "calls": 6,
            "hierarchical": False,  # hosts may have different numbers of ranks now
        }
        return {
            "runs": [first, again],
            "secret": self.secret,
            "transport": {"shm": "shm", "tcp": "tcp"}.get(self.place, "auto"),
            "at_once": self.at_once,
            "connecting": self.connecting,
            # A lie counts pieces, and memory is to show only what it piles up.
            "max_count": 1 << (12 if self.fault == "lie" else 20),
            "mischief": {
                "fault": self.fault, "rank": self.victim, "manner": self.manner,
                "moment": self.moment, "delay": self.delay,
            },
        }  # fmt: skip

    def describe(self) -> str:
        when = "while connecting" if self.connecting else f"after {self.moment} calls"
        store = "tcp store" if self.tcp_store else "file store"
        places = f"{self.size} ranks, {self.place}"
        if self.place == "mixed":
            places += (
                f" {'+'.join(str(self.hosts.count(host)) for host in sorted(set(self.hosts)))}"
            )
        fault = f"{self.fault} ({self.manner})" if self.manner else self.fault
        return f"{fault}: {places}, {store}, rank {self.victim} {when}"


def draw(seed: int, number: int, fault: str) -> Episode:
    rng = random.Random(f"{seed}/{number}/{fault}")
    episode = Episode(seed, number, fault, connecting=number // len(FAULTS) % 3 == 1)
    episode.place = rng.choice(PLACES[2:] if fault in ON_THE_WIRE else PLACES)
    size = rng.randint(2, 5)
    if episode.place == "mixed":
        count, even = rng.randint(2, 3), rng.random() < 0.5
        on_hosts = (
            [rng.randint(2, 3)] * count if even else [rng.randint(1, 3) for _ in range(count)]
        )
        episode.hosts = [host for host, ranks in enumerate(on_hosts) for _ in range(ranks)]
    else:
        episode.hosts = [rank if episode.place == "hosts" else 0 for rank in range(size)]
    episode.tcp_store = rng.random() < 0.5
    episode.secret = rng.choice(["", "soaked"])
    episode.at_once = rng.randint(1, 4)
    episode.victim = rng.randrange(episode.size)
    episode.moment = rng.randint(0, 25)
    episode.delay = rng.uniform(0, 0.06 if episode.connecting else 0.02)
    episode.variant = rng.randrange(8)
    episode.staggered = [rng.uniform(0, 0.05) for _ in range(episode.size)]
    if fault == "strangers":  # somebody listens while the last rank is awaited
        episode.staggered[0], episode.staggered[-1] = 0, 0.8
        episode.tcp_store |= episode.place == "shm"
    if fault == "fork":
        episode.manner = rng.choice(FORKS)
    if fault == "lie":
        _lie(episode, rng.choice(LIES), rng)
    return episode


def _lie(episode: Episode, manner: str, rng: random.Random):
    episode.manner, episode.connecting = manner, False
    episode.moment += LANES  # there are old tags then
    if manner in LIES_ON_THE_WIRE:  # plain sockets that lead to ranks, and to no store
        episode.secret, episode.tcp_store = "", False
        episode.at_once = 1  # the rank's own messages are not cut in two by those that it makes up
        if episode.place in ("shm", "mixed"):
            episode.place = rng.choice(["tcp", "hosts"])
            episode.hosts = [
                rank if episode.place == "hosts" else 0 for rank in range(episode.size)
            ]

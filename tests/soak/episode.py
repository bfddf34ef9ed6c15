"""What happens in one episode of the soak: drawn from a seed and a number, and nothing else."""

import random
from dataclasses import dataclass, field

FAULTS = ("kill", "stop", "link", "reset", "flip", "strangers")
ON_THE_WIRE = ("link", "reset", "flip")
# How ranks stand on hosts and what they talk through.
PLACES = ("shm", "tcp", "hosts", "mixed")
SECONDS = 3.0  # for each call
CONNECT_SECONDS = 4.0  # when the fault strikes while ranks connect
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
    staggered: list[float] = field(default_factory=list)
    """Seconds by which ranks are late to connect."""

    @property
    def name(self) -> str:
        return f"{self.seed}-{self.number}-{self.fault}"

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def must_fail(self) -> bool:
        """A connection that is damaged while it is made may be made again."""
        return self.fault != "strangers" and not (
            self.connecting and self.fault in ("reset", "flip")
        )

    @property
    def cut_off(self) -> list[int]:
        """Ranks that the others have to do without."""
        if self.fault in ("kill", "stop"):
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
        short = self.connecting and self.fault != "strangers"
        first = {
            "name": f"{self.name}/first",
            "ranks": list(range(self.size)),
            "store": store,
            "connect_timeout": CONNECT_SECONDS if short else 30.0,
            "timeout": SECONDS,
            "calls": None if self.must_fail else 40,
            "hierarchical": True,
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
        }

    def describe(self) -> str:
        when = "while connecting" if self.connecting else f"after {self.moment} calls"
        store = "tcp store" if self.tcp_store else "file store"
        return f"{self.fault}: {self.size} ranks, {self.place}, {store}, rank {self.victim} {when}"


def draw(seed: int, number: int, fault: str) -> Episode:
    rng = random.Random(f"{seed}/{number}/{fault}")
    episode = Episode(seed, number, fault, connecting=number // len(FAULTS) % 3 == 1)
    episode.place = rng.choice(PLACES[2:] if fault in ON_THE_WIRE else PLACES)
    size = rng.randint(2, 5)
    if episode.place == "mixed":
        episode.hosts = [0, 0, 1, 1]
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
    return episode

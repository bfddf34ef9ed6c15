"""A stream of collectives that every rank draws alike, and what must come out of it.

Numbers are small integers, so sums are exact in every order and in every dtype, and an exact
codec has to deliver them to the bit. A lossy one has to stay within its bound.

With feedback nothing may be lost: what a layer's calls delivered, up to and with one that is sent
exactly, is what was put into them; to the bit where the codec sends numbers as they are.
"""

import math
import random
from dataclasses import dataclass, field

import numpy as np
import xxhash

LARGEST = 8  # magnitude of an input
POOL = 1 << 22
MAX_COUNT = 1 << 20
MAX_LAYER = 1 << 16
# Calls of a group are so far apart that none begins before the one before it is done.
LAYER_GROUPS = 8

# The error of a number at most, as a share of the largest one that is encoded with it.
CODECS = {
    "none": 0.0,
    "fp16": 0.0,  # integers up to 2048 are exact
    "bf16": 0.0,  # up to 256
    "uniform:bits=8": 2.05 / 255,  # bounds travel as bf16
    "uniform:bits=4,bucket=512": 2.05 / 15,
    "uniform:bits=2,rounding=nearest": 1.05 / 3,
    "exponential:bits=4": 1.05,
    "sign": 2.05,
    "grid:step=0.25": 0.26,
    "grid:step=0.5,rounding=nearest": 0.26,
    "topk:density=0.05": 1.0,  # what is not sent is lost, or kept by feedback
    "topk:density=0.05,values=int8": 1.05,
    "topk:density=0.01,values=mean": 2.05,
    "randomk:density=0.25": 1.0,
}
# They send a number as it is, or not at all.
SEND_AS_IT_IS = ("none", "topk:density=0.05", "randomk:density=0.25")


@dataclass
class Call:
    number: int
    kind: str
    algorithm: str = ""
    counts: list[int] = field(default_factory=list)
    codecs: list[str] = field(default_factory=list)
    dtype: str = "float32"
    root: int = 0
    group: int | None = None
    """Of layers with feedback."""
    momentum: float = 0.0


def _ways(call: Call) -> list[str]:
    """Of an all_reduce."""
    feedback = "" if call.group is None else f"+feedback:momentum={call.momentum}"
    route = "" if call.algorithm == "auto" else f"+route:{call.algorithm}"
    return [codec + feedback + route for codec in call.codecs]


class Layer:
    """A tensor with feedback."""

    def __init__(self, name: str, rng: random.Random, max_count: int):
        self.name = name
        self.count = rng.choice([1, 127, 128, int(2 ** rng.uniform(0, math.log2(max_count)))])
        self.codec = rng.choice(list(CODECS))
        self.velocity = np.zeros(self.count)
        self.owed = np.zeros(self.count)
        """What was put in and has not come out."""
        self.calls = 0
        """Since nothing was owed."""

    def after(self, momentum: float, put_in: np.ndarray, result: np.ndarray):
        """Velocity and what is owed after a call."""
        velocity = momentum * self.velocity + put_in
        return velocity, self.owed + velocity - result

    def take(self, momentum: float, put_in: np.ndarray, result: np.ndarray, codec: str):
        self.velocity, owed = self.after(momentum, put_in, result)
        exact = codec == "none"
        self.owed, self.calls = (np.zeros(self.count), 0) if exact else (owed, self.calls + 1)


class Stream:
    """Call number i, for all i; the same on every rank of `size` with the same seed."""

    def __init__(
        self, seed: str, rank: int, size: int, hierarchical: bool, max_count: int = MAX_COUNT
    ):
        self.seed, self.rank, self.size, self.max_count = seed, rank, size, max_count
        self.algorithms = ["sra", "ring", "tree", "allgather", "auto"]
        if hierarchical:
            self.algorithms.append("hierarchical")
        pool = np.random.default_rng(list(seed.encode()))
        self.pool = pool.integers(-LARGEST, LARGEST, POOL, np.int8, endpoint=True)
        rng = random.Random(f"{seed}/layers")
        self.layers = [
            [
                Layer(f"{group}.{i}", rng, min(max_count, MAX_LAYER))
                for i in range(rng.randint(1, 3))
            ]
            for group in range(LAYER_GROUPS)
        ]

    def call(self, number: int) -> Call:
        rng = random.Random(f"{self.seed}/{number}")
        kinds = ["all_reduce"] * 5 + ["reduce_scatter", "all_gather", "broadcast", "barrier"]
        call = Call(number, rng.choice(kinds), dtype=rng.choice(["float32", "float16"]))
        if call.kind == "barrier":
            return call
        if call.kind == "all_reduce":
            call.algorithm = rng.choice(self.algorithms)
            if rng.random() < 0.5:
                return self._with_feedback(call, rng)
        several = call.kind in ("all_reduce", "broadcast")
        for _ in range(rng.choice([1, 1, 3, 7]) if several else 1):
            any_count = int(2 ** rng.uniform(0, math.log2(self.max_count)))
            count = rng.choice([0, 1, 127, 128, any_count])
            call.counts.append(count if several else count // self.size * self.size)
            call.codecs.append(rng.choice(list(CODECS)))
        call.root = rng.randrange(self.size)
        return call

    def _with_feedback(self, call: Call, rng: random.Random) -> Call:
        call.group = call.number % LAYER_GROUPS
        call.dtype = ["float32", "float16"][call.group % 2]
        call.momentum = [0.0, 0.0, 0.5, 0.5][call.group % 4]
        all_of_it = rng.random() < 0.4
        for layer in self.layers[call.group]:
            call.counts.append(layer.count)
            call.codecs.append("none" if all_of_it else layer.codec)
        return call

    def numbers(self, call: Call, rank: int) -> list[np.ndarray]:
        """A rank's inputs."""
        rng = random.Random(f"{self.seed}/{call.number}/{rank}")
        starts = [rng.randrange(POOL - count) for count in call.counts]
        return [self.pool[at : at + count] for at, count in zip(starts, call.counts, strict=True)]

    def inputs(self, call: Call) -> list[np.ndarray]:
        return [each.astype(call.dtype) for each in self.numbers(call, self.rank)]

    def begin(self, ranks, call: Call, arrays: list[np.ndarray], timeout: float):
        options = {"seed": call.number, "step": call.number, "timeout": timeout}
        if call.kind == "barrier":
            return ranks.barrier(timeout=timeout)
        if call.kind == "broadcast":
            return ranks.broadcast(arrays, call.root, call.codecs, **options)
        if call.group is not None:
            options |= {"name": [layer.name for layer in self.layers[call.group]]}
        if call.kind == "all_reduce":
            return ranks.all_reduce(arrays, _ways(call), **options)
        return getattr(ranks, call.kind)(arrays[0], call.codecs[0], **options)

    def mistake(self, call: Call, results: list[np.ndarray]) -> str | None:
        """What is wrong with the results, if anything."""
        if call.group is not None:
            return self._loss(call, results)
        for i, (result, expected) in enumerate(
            zip(self._own(call, results), self._sums(call), strict=True)
        ):
            bound = self._bound(call, call.codecs[i])
            worst = np.abs(result - expected).max(initial=0.0)
            if not worst <= bound:
                return f"{call}: tensor {i} is off by {worst}, {bound} is allowed"
        return None

    def _loss(self, call: Call, results: list[np.ndarray]) -> str | None:
        """What feedback lost, or made up."""
        for layer, codec, put_in, result in self._of_layers(call, results):
            _, owed = layer.after(call.momentum, put_in, result)
            worst = np.abs(owed).max(initial=0.0)
            bound = self._bound_of_owed(call, layer, codec)
            if not worst <= bound:
                return f"{call}: what layer {layer.name} owes is off by {worst}, {bound} is allowed"
        return None

    def take(self, call: Call, results: list[np.ndarray]):
        """Remembers what layers with feedback owe; once for each call, in order."""
        if call.group is not None:
            for layer, codec, put_in, result in self._of_layers(call, results):
                layer.take(call.momentum, put_in, result, codec)

    def _of_layers(self, call: Call, results: list[np.ndarray]):
        return zip(
            self.layers[call.group], call.codecs, self._sums(call), self._own(call, results),
            strict=True,
        )  # fmt: skip

    def _bound_of_owed(self, call: Call, layer: Layer, codec: str) -> float:
        largest = LARGEST * self.size * (layer.calls + 1) / (1 - call.momentum)
        if codec != "none":  # later; at most everything, and what the codec adds to it
            return largest * (1 + CODECS[codec]) ** self._encodings(call)
        if layer.codec in SEND_AS_IT_IS and call.momentum == 0:
            return 0.0
        return largest * (2**-10 if call.dtype == "float16" else 2**-16)

    def digest(self, call: Call, results: list[np.ndarray]) -> str:
        """Equal on all ranks."""
        if call.kind == "reduce_scatter":  # each has another part
            return ""
        return xxhash.xxh3_64_hexdigest(b"".join(each.tobytes() for each in results))

    def _part(self, array: np.ndarray) -> np.ndarray:
        part = len(array) // self.size
        return array[self.rank * part : (self.rank + 1) * part]

    def _own(self, call: Call, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """What this rank is promised."""
        arrays = [each.astype(np.float32) for each in arrays]
        return [self._part(arrays[0])] if call.kind == "reduce_scatter" else arrays

    def _sums(self, call: Call) -> list[np.ndarray]:
        if call.kind == "broadcast":
            return [each.astype(np.float32) for each in self.numbers(call, call.root)]
        everybody = [self.numbers(call, rank) for rank in range(self.size)]
        if call.kind == "all_gather":
            parts = [np.split(each[0], self.size)[rank] for rank, each in enumerate(everybody)]
            return [np.concatenate(parts).astype(np.float32)]
        return self._own(
            call, [sum(np.int16(x) for x in each) for each in zip(*everybody, strict=True)]
        )

    def _bound(self, call: Call, codec: str) -> float:
        """Each encoding adds an error of at most `share` of what it encodes."""
        share = CODECS[codec]
        times = self._encodings(call)
        reduces = call.kind in ("all_reduce", "reduce_scatter")
        largest = LARGEST * (self.size if reduces else 1) * (1 + share) ** times
        rounding = 2**-10 if share > 0 and call.dtype == "float16" else 0
        return largest - largest / (1 + share) ** times + rounding * largest

    def _encodings(self, call: Call) -> int:
        """How often a number is encoded on its way, at most."""
        encodings = {"ring": self.size, "tree": 1 + math.ceil(math.log2(self.size))}
        encodings |= {"hierarchical": 4, "allgather": 1}
        return encodings.get(call.algorithm, 2)

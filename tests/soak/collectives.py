"""A stream of collectives that every rank draws alike, and what must come out of it.

Numbers are small integers, so sums are exact in every order and in every dtype, and an exact
codec has to deliver them to the bit. A lossy one has to stay within its bound.
"""

import math
import random
from dataclasses import dataclass, field

import numpy as np
import xxhash

LARGEST = 8  # magnitude of an input
POOL = 1 << 22
MAX_COUNT = 1 << 20

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
}


@dataclass
class Call:
    number: int
    kind: str
    algorithm: str = ""
    counts: list[int] = field(default_factory=list)
    codecs: list[str] = field(default_factory=list)
    dtype: str = "float32"
    root: int = 0


class Stream:
    """Call number i, for all i; the same on every rank of `size` with the same seed."""

    def __init__(self, seed: str, rank: int, size: int, hierarchical: bool):
        self.seed, self.rank, self.size = seed, rank, size
        self.algorithms = ["sra", "ring", "tree", "allgather", "auto"]
        if hierarchical:
            self.algorithms.append("hierarchical")
        pool = np.random.default_rng(list(seed.encode()))
        self.pool = pool.integers(-LARGEST, LARGEST, POOL, np.int8, endpoint=True)

    def call(self, number: int) -> Call:
        rng = random.Random(f"{self.seed}/{number}")
        kinds = ["all_reduce"] * 5 + ["reduce_scatter", "all_gather", "broadcast", "barrier"]
        call = Call(number, rng.choice(kinds), dtype=rng.choice(["float32", "float16"]))
        if call.kind == "barrier":
            return call
        several = call.kind in ("all_reduce", "broadcast")
        for _ in range(rng.choice([1, 1, 3, 7]) if several else 1):
            count = rng.choice([0, 1, 127, 128, int(2 ** rng.uniform(0, math.log2(MAX_COUNT)))])
            call.counts.append(count if several else count // self.size * self.size)
            call.codecs.append(rng.choice(list(CODECS)))
        if call.kind == "all_reduce":
            call.algorithm = rng.choice(self.algorithms)
        call.root = rng.randrange(self.size)
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
        if call.kind == "all_reduce":
            return ranks.all_reduce(arrays, call.codecs, algorithm=call.algorithm, **options)
        return getattr(ranks, call.kind)(arrays[0], call.codecs[0], **options)

    def mistake(self, call: Call, results: list[np.ndarray]) -> str | None:
        """What is wrong with the results, if anything."""
        for i, (result, expected) in enumerate(
            zip(self._own(call, results), self._sums(call), strict=True)
        ):
            bound = self._bound(call, call.codecs[i])
            worst = np.abs(result - expected).max(initial=0.0)
            if not worst <= bound:
                return f"{call}: tensor {i} is off by {worst}, {bound} is allowed"
        return None

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
        encodings = {"ring": self.size, "tree": 1 + math.ceil(math.log2(self.size))}
        encodings |= {"hierarchical": 4, "allgather": 1}
        times = encodings.get(call.algorithm, 2)
        reduces = call.kind in ("all_reduce", "reduce_scatter")
        largest = LARGEST * (self.size if reduces else 1) * (1 + share) ** times
        rounding = 2**-10 if share > 0 and call.dtype == "float16" else 0
        return largest - largest / (1 + share) ** times + rounding * largest

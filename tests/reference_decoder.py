"""A decoder of gradwire frames, written from docs/format.md and nothing else.

It is slow and small. It shows that the document is complete, and disagrees when the
library departs from it. Chapters are named after the document's.

    python tests/reference_decoder.py FRAME...      prints what frames hold
"""

import re
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

TABLES_FILE = Path(__file__).parent.parent / "src" / "codec" / "grid_tables.inc"


class FrameError(Exception):
    """Bytes that are not a frame; the message is one of the document's names for what is wrong."""


def demand(condition: bool, name: str = "corrupt") -> None:
    if not condition:
        raise FrameError(name)


class Bytes:
    """Bytes that are taken from the front, and must not run out."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        demand(size <= len(self.data) - self.at)
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, layout: str) -> tuple:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def one(self, layout: str):
        return self.unpack(layout)[0]

    @property
    def empty(self) -> bool:
        return self.at == len(self.data)


# 1. Conventions -----------------------------------------------------------------------------------


def widen_bf16(data: bytes) -> np.ndarray:
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")


def widen_f16(data: bytes) -> np.ndarray:
    bits = np.frombuffer(data, "<u2").astype("<u4")
    wide = np.frombuffer(data, "<f2").astype("<f4").view("<u4")
    is_nan = (bits & 0x7FFF) > 0x7C00
    quiet_nan = (bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13
    return np.where(is_nan, quiet_nan, wide).astype("<u4").view("<f4")


def widen_f32(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f4")


WIDEN: list[tuple[int, Callable[[bytes], np.ndarray]]] = [
    (4, widen_f32),
    (2, widen_f16),
    (2, widen_bf16),
]


def packed_size(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def unpack_codes(data: bytes, count: int, bits: int) -> np.ndarray:
    stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: count * bits]
    return stream.reshape(count, bits).astype(np.int64) @ (1 << np.arange(bits))


# 2. Frames, 3. Segments ---------------------------------------------------------------------------


@dataclass
class Segment:
    codec: int
    dtype: int
    params: bytes
    count: int
    payload: bytes


def read_frame(data: bytes) -> list[Segment]:
    demand(len(data) >= 24, "truncated")
    magic, version, flags, length, segment_count, check = struct.unpack("<IHHQII", data[:24])
    demand(magic == 0x57445247)
    demand(check == xxhash.xxh3_64_intdigest(data[:20]) & 0xFFFFFFFF)
    demand(length >= 32)
    demand(length <= len(data), "truncated")
    body, checksum = data[: length - 8], data[length - 8 : length]
    demand(xxhash.xxh3_64_intdigest(body[24:]) == int.from_bytes(checksum, "little"))
    demand(version == 1, "unsupported_version")
    demand(flags == 0)

    reader = Bytes(body)
    reader.take(24)
    segments = [read_segment(reader) for _ in range(segment_count)]
    demand(reader.empty)
    return segments


def read_segment(reader: Bytes) -> Segment:
    codec, dtype, params, count, payload_bytes = reader.unpack("BB14sQQ")
    demand(codec < len(CODECS) and dtype < len(WIDEN), "unknown_codec")
    demand(CODECS[codec].allows(params))
    payload = reader.take(payload_bytes)
    padding = reader.take(-payload_bytes % 8)
    demand(not any(padding))
    return Segment(codec, dtype, params, count, payload)


def decode_segment(segment: Segment) -> np.ndarray:
    """The segment's numbers as float32."""
    if segment.count == 0:
        demand(segment.payload == b"")
        return np.zeros(0, np.float32)
    with np.errstate(all="ignore"):
        return CODECS[segment.codec].decode(segment)


def decode(data: bytes) -> list[np.ndarray]:
    """The numbers of each segment of a frame."""
    return [decode_segment(segment) for segment in read_frame(data)]


# 4. none, fp16, bf16 ------------------------------------------------------------------------------


def no_params(params: bytes) -> bool:
    return not any(params)


def decode_cast(segment: Segment, wire_dtype: int) -> np.ndarray:
    size, widen = WIDEN[wire_dtype]
    demand(len(segment.payload) == segment.count * size)
    return widen(segment.payload)


# 5. Bucketed codecs -------------------------------------------------------------------------------

UNIFORM, EXPONENTIAL, SIGN = 0, 1, 2
LARGEST = float(np.finfo(np.float32).max)


def bucketed_params(params: bytes, wanted_scheme: int, fewest_bits: int, most_bits: int) -> bool:
    scheme, bits, rounding, meta, bucket = struct.unpack("<BBBBI", params[:8])
    return (
        scheme == wanted_scheme
        and fewest_bits <= bits <= most_bits
        and (rounding == 1 if scheme == SIGN else rounding <= 1)
        and meta <= 1
        and 1 <= bucket <= 1 << 30
        and not any(params[8:])
    )


def decode_bucketed(segment: Segment) -> np.ndarray:
    scheme, bits, _, meta, bucket = struct.unpack("<BBBBI", segment.params[:8])
    n = segment.count
    floats_per_bucket = 2 if scheme == UNIFORM else 1
    float_size, widen = WIDEN[0] if meta == 1 else WIDEN[2]
    buckets = (n + bucket - 1) // bucket
    meta_size = buckets * floats_per_bucket * float_size
    demand(len(segment.payload) == meta_size + packed_size(n, bits))

    floats = widen(segment.payload[:meta_size]).reshape(buckets, floats_per_bucket)
    codes = unpack_codes(segment.payload[meta_size:], n, bits)
    of_bucket = np.arange(n) // bucket
    if scheme == UNIFORM:
        unit, minimum = floats[:, 0], floats[:, 1]
        return uniform(unit, minimum, of_bucket, codes, bits)
    if scheme == EXPONENTIAL:
        return exponential(floats[of_bucket, 0], codes, bits)
    return flip_signs(floats[of_bucket, 0], codes)


def flip_signs(x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) ^ (signs.astype(np.uint32) << np.uint32(31))).view(np.float32)


def uniform(
    unit: np.ndarray, minimum: np.ndarray, of_bucket: np.ndarray, codes: np.ndarray, bits: int
) -> np.ndarray:
    highest = minimum + unit * np.float32((1 << bits) - 1)
    huge = np.isfinite(unit) & np.isfinite(minimum) & ~np.isfinite(highest)
    unit_of, minimum_of = unit[of_bucket], minimum[of_bucket]
    usual = minimum_of + unit_of * codes.astype(np.float32)
    exact = minimum_of.astype(np.float64) + unit_of.astype(np.float64) * codes
    clamped = np.clip(exact, -LARGEST, LARGEST).astype(np.float32)
    return np.where(huge[of_bucket], clamped, usual)


def exponential(norm: np.ndarray, codes: np.ndarray, bits: int) -> np.ndarray:
    top = (1 << (bits - 1)) - 1
    levels = codes & top
    power = np.where(levels > 0, np.ldexp(1.0, levels - top), 0.0).astype(np.float32)
    return flip_signs(norm * power, codes >> (bits - 1))


# 6. Random bits -----------------------------------------------------------------------------------

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


def mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK64
    return x ^ (x >> 31)


def random_bits(folded: int, i: int) -> int:
    mixed = mix64((folded + (i >> 33)) & MASK64)
    start, odd = mixed & MASK32, mixed >> 32 | 1
    counter = (i >> 5) * 16 + i % 16
    x = (counter * 0x9E3779B1 + start) & MASK32
    x ^= x >> 16
    x = x * (x + odd) & MASK32
    x ^= x >> 16
    return x >> 16 if i % 32 >= 16 else x & 0xFFFF


# 7. Entropy coder ---------------------------------------------------------------------------------


class Table:
    """The symbol and the rank of every slot."""

    def __init__(self, frequency: list[int]) -> None:
        self.frequency = frequency
        divider, alias, bias = [0] * 16, list(range(16)), [0] * 16
        left = list(frequency)
        small = deque(s for s in range(16) if left[s] < 256)
        large = deque(s for s in range(16) if left[s] >= 256)
        while small:
            bin_ = small.popleft()
            donor = large[0]
            divider[bin_], alias[bin_] = left[bin_], donor
            left[donor] -= 256 - left[bin_]
            bias[bin_] = left[donor] - left[bin_]
            if left[donor] < 256:
                small.append(large.popleft())
        self.slots = []
        for slot in range(4096):
            bin_, position = divmod(slot, 256)
            if position < divider[bin_]:
                self.slots.append((bin_, position))
            else:
                self.slots.append((alias[bin_], position + bias[bin_]))


def read_tables() -> list[Table]:
    rows = [line for line in TABLES_FILE.read_text().splitlines() if not line.startswith("//")]
    return [Table([int(number) for number in re.findall(r"\d+", row)]) for row in rows]


TABLES = read_tables()
BLOCK_TABLES = TABLES[-16:]
SHAPES = (len(TABLES) - 16) // 20


class Decoder:
    """The 32 states, and the words they are refilled from."""

    def __init__(self, states: bytes, words: bytes) -> None:
        self.states = list(struct.unpack("<32I", states))
        demand(all(1 << 15 <= state < 1 << 31 for state in self.states))
        self.words = Bytes(words)

    def group(self, table: Table) -> list[int]:
        symbols = []
        for i, state in enumerate(self.states):
            symbol, rank = table.slots[state % 4096]
            state = table.frequency[symbol] * (state // 4096) + rank
            if state < 1 << 15:
                state = state << 16 | self.words.one("H")
            self.states[i] = state
            symbols.append(symbol)
        return symbols

    def symbols(self, table: Table, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            found += self.group(table)
        return found[:count]

    @property
    def finished(self) -> bool:
        return self.words.empty and all(state == 1 << 15 for state in self.states)


# 8. Grid ------------------------------------------------------------------------------------------

CHUNK, BLOCK = 65536, 128
MIN_SCALE, MAX_SCALE = -60, 40
RAW_CLASS = 45
DITHER = 2


def grid_params(params: bytes) -> bool:
    amount, locality, rms, rounding, target = struct.unpack("<fffBB", params)
    low, high = (2.0**-10, 16.0) if target == 0 else (float(np.float32(1e-7)), 1.0)
    return (
        target <= 1
        and rounding <= 2
        and low <= amount <= high
        and 0 <= locality <= 1
        and 0 <= rms <= float(np.float32(3e38))
    )


def make_steps(base: np.float32, ratio: np.float32) -> dict[int, np.float32]:
    steps = {0: base}
    for factor, scales in (
        (float(ratio), range(1, MAX_SCALE + 1)),
        (1.0 / float(ratio), range(-1, MIN_SCALE - 1, -1)),
    ):
        step = float(base)
        for scale in scales:
            step *= factor
            steps[scale] = np.float32(min(step, 3e38))
    return steps


class Grid:
    """What all chunks of a payload share."""

    def __init__(self, segment: Segment, reader: Bytes) -> None:
        _, locality, _, rounding, _ = struct.unpack("<fffBB", segment.params)
        base, ratio = widen_f32(reader.take(8))
        demand(bool(np.isfinite(base) and base >= 0 and 1 <= ratio < 1.5))
        self.has_scales = locality > 0
        self.steps = make_steps(base, ratio)
        self.dithered = rounding == DITHER
        if self.dithered:
            self.folded_key, self.first_element = reader.unpack("QQ")
            demand(self.first_element % 128 == 0)

    def numbers(self, q: list[int] | np.ndarray, step: np.float32, first: int) -> np.ndarray:
        """Integers to numbers; `first` is where they stand in the payload."""
        x = np.array(q).astype(np.float32)
        if self.dithered:
            elements = range(self.first_element + first, self.first_element + first + len(x))
            r = np.array([random_bits(self.folded_key, e & MASK64) for e in elements])
            x = x + (32768 - r).astype(np.float32) * np.float32(2.0**-16)
        return x * step


def blocks_of(count: int) -> Iterator[tuple[int, int]]:
    """Where each block of a chunk starts, and its size."""
    for first in range(0, count, BLOCK):
        yield first, min(BLOCK, count - first)


def decode_grid(segment: Segment) -> np.ndarray:
    reader = Bytes(segment.payload)
    grid = Grid(segment, reader)
    chunks = []
    for first in range(0, segment.count, CHUNK):
        count = min(CHUNK, segment.count - first)
        mode = reader.one("B")
        demand(mode <= 2)
        chunks.append([zeros_chunk, coded_chunk, packed_chunk][mode](grid, reader, first, count))
    demand(reader.empty)
    return np.concatenate(chunks)


def zeros_chunk(grid: Grid, reader: Bytes, first: int, count: int) -> np.ndarray:
    return np.zeros(count, np.float32)


def is_coded(block_class: int) -> bool:
    return 0 < block_class < RAW_CLASS


def coded_chunk(grid: Grid, reader: Bytes, first: int, count: int) -> np.ndarray:
    (shape, class_table, scale_table, class_reference, scale_reference, block_size) = reader.unpack(
        "BBBbbH"
    )
    number_size, word_count = reader.unpack("II")
    demand(shape < SHAPES and class_table < 16 and scale_table < 16)
    number_bytes = Bytes(reader.take(number_size))
    block_bytes = Bytes(reader.take(block_size))
    states = reader.take(128)
    decoder = Decoder(states, reader.take(2 * word_count))

    sizes = list(blocks_of(count))
    symbols = decoder.symbols(BLOCK_TABLES[class_table], len(sizes))
    classes = read_values(symbols, class_reference, 12, block_bytes, zero_symbol=True)
    demand(all(c is None or 1 <= c <= RAW_CLASS for c in classes))
    classes = [c or 0 for c in classes]

    scales = [0] * len(sizes)
    if grid.has_scales:
        coded = [b for b, c in enumerate(classes) if is_coded(c)]
        symbols = decoder.symbols(BLOCK_TABLES[scale_table], len(coded))
        values = read_values(symbols, scale_reference, 0, block_bytes, zero_symbol=False)
        demand(all(MIN_SCALE <= s <= MAX_SCALE for s in values))
        for b, scale in zip(coded, values, strict=True):
            scales[b] = scale
    demand(block_bytes.empty)

    parts = []
    for (start, n), block_class, scale in zip(sizes, classes, scales, strict=True):
        if block_class == 0:
            parts.append(np.zeros(n, np.float32))
        elif block_class == RAW_CLASS:
            parts.append(widen_f32(number_bytes.take(4 * n)))
        else:
            q = read_integers(decoder, shape, block_class, n, number_bytes)
            parts.append(grid.numbers(q, grid.steps[scale], first + start))
    demand(number_bytes.empty and decoder.finished)
    return np.concatenate(parts)


def read_values(
    symbols: list[int], reference: int, start: int, block_bytes: Bytes, zero_symbol: bool
) -> list[int | None]:
    """Classes or scales; None where symbol 1 says that a block is zero."""
    chained = reference == 127
    before = start if chained else reference
    values: list[int | None] = []
    for symbol in symbols:
        if symbol == 1:
            demand(zero_symbol)
            values.append(None)
            continue
        value = block_bytes.one("b") if symbol == 0 else before + symbol - 9
        values.append(value)
        if chained:
            before = value
    return values


def read_integers(
    decoder: Decoder, shape: int, block_class: int, n: int, number_bytes: Bytes
) -> list[int]:
    level, shift = block_class - 1, 0
    if block_class > 20:
        level, shift = 17 + (block_class - 21) % 3, 1 + (block_class - 21) // 3
    symbols = decoder.symbols(TABLES[20 * shape + level], n)
    low = [0] * n
    if shift > 0:
        low = unpack_codes(number_bytes.take(packed_size(n, shift)), n, shift).tolist()
    high = [read_escape(number_bytes) if symbol == 0 else symbol - 8 for symbol in symbols]
    return [(h << shift) + part for h, part in zip(high, low, strict=True)]


def read_escape(number_bytes: Bytes) -> int:
    code = number_bytes.one("B")
    if code == 255:
        return number_bytes.one("h")
    return -(8 + code // 2) if code % 2 else 8 + code // 2


def packed_chunk(grid: Grid, reader: Bytes, first: int, count: int) -> np.ndarray:
    packed = Bytes(reader.take(reader.one("I")))
    sizes = list(blocks_of(count))
    scales = [packed.one("b") if grid.has_scales else 0 for _ in sizes]
    demand(all(MIN_SCALE <= scale <= MAX_SCALE for scale in scales))
    parts = []
    for (start, n), scale in zip(sizes, scales, strict=True):
        width = packed.one("B")
        demand(width <= 8 or width == 32)
        if width == 0:
            parts.append(np.zeros(n, np.float32))
        elif width == 32:
            parts.append(widen_f32(packed.take(4 * n)))
        else:
            codes = unpack_codes(packed.take(packed_size(n, width)), n, width)
            parts.append(grid.numbers(codes - (1 << (width - 1)), grid.steps[scale], first + start))
    demand(packed.empty)
    return np.concatenate(parts)


# 9. Sparse ----------------------------------------------------------------------------------------

FP32, FP16, INT8, MEAN = range(4)
GROUP = 128
NO_GAPS = 255
FITTED = 4


class Bits:
    """Bits from the front of bytes, the lowest of each byte first."""

    def __init__(self, data: bytes) -> None:
        self.bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        self.at = 0

    def zeros(self) -> int:
        ones = np.flatnonzero(self.bits[self.at :])
        demand(len(ones) > 0)
        self.at += int(ones[0]) + 1
        return int(ones[0])

    def number(self, width: int) -> int:
        demand(self.at + width <= len(self.bits))
        self.at += width
        return sum(int(bit) << i for i, bit in enumerate(self.bits[self.at - width : self.at]))


def read_places(reader: Bytes, members: int, first: int) -> list[int]:
    width = reader.one("B")
    if width == NO_GAPS:
        return list(range(first, first + members))
    demand(width <= 56)
    bits = Bits(reader.data[reader.at :])
    places = []
    for _ in range(members):
        gap = bits.zeros() << width
        gap += bits.number(width)
        places.append(first + gap)
        first = places[-1] + 1
    reader.take((bits.at + 7) // 8)
    return places


def read_group_numbers(reader: Bytes, members: int, values: int) -> np.ndarray:
    if values == FP32:
        return widen_f32(reader.take(4 * members))
    unit = widen_f32(reader.take(4))[0]
    if values == FP16:
        return widen_f16(reader.take(2 * members)) * unit
    if np.isnan(unit):
        return widen_f32(reader.take(4 * members))
    return np.frombuffer(reader.take(members), np.int8).astype(np.float32) * unit


def read_sparse(reader: Bytes, values: int, out: np.ndarray) -> None:
    """Puts elements where they belong; the rest of the payload is theirs."""
    left = reader.one("Q")
    demand(left <= len(out))
    mean = widen_f32(reader.take(4))[0] if values == MEAN else None
    first = 0
    while left > 0:
        members = min(left, GROUP)
        places = read_places(reader, members, first)
        first = places[-1] + 1
        demand(first <= len(out))
        out[places] = mean if values == MEAN else read_group_numbers(reader, members, values)
        left -= members
    demand(reader.empty)


# 10. topk -----------------------------------------------------------------------------------------


def is_magnitude(bits: int) -> bool:
    return bits <= 0x7F7FFFFF


def topk_params(params: bytes) -> bool:
    density = struct.unpack("<f", params[:4])[0]
    threshold, low_threshold, ties, low_ties, select, values = struct.unpack("<IIHHBB", params)
    if select > FITTED or values > MEAN:
        return False
    low_used = low_threshold != 0 or low_ties != 0
    if select < FITTED:
        return float(np.float32(1e-5)) <= density <= 1 and ties == 0 and not low_used
    return (
        is_magnitude(threshold) and is_magnitude(low_threshold) and (values == MEAN or not low_used)
    )


def decode_topk(segment: Segment) -> np.ndarray:
    out = np.zeros(segment.count, np.float32)
    read_sparse(Bytes(segment.payload), segment.params[13], out)
    return out


# 11. randomk --------------------------------------------------------------------------------------


def randomk_params(params: bytes) -> bool:
    density, scale = struct.unpack("<fI", params[:8])
    return float(np.float32(1e-4)) <= density <= 1 and scale <= 1 and not any(params[8:])


def decode_randomk(segment: Segment) -> np.ndarray:
    density, scale = struct.unpack("<fI", segment.params[:8])
    limit = int(np.floor(density * 65536 + 0.5))
    reader = Bytes(segment.payload)
    folded, first = reader.unpack("QQ")
    demand(first % 128 == 0)
    chosen = [i for i in range(segment.count) if random_bits(folded, (first + i) & MASK64) < limit]
    size, widen = WIDEN[segment.dtype]
    numbers = widen(reader.take(size * len(chosen)))
    if scale == 1:
        numbers = np.clip(numbers * (np.float32(65536) / np.float32(limit)), -LARGEST, LARGEST)
    out = np.zeros(segment.count, np.float32)
    out[chosen] = numbers
    read_sparse(reader, MEAN, out)
    return out


# The codecs, by number ----------------------------------------------------------------------------


@dataclass
class CodecKind:
    name: str
    allows: Callable[[bytes], bool]
    decode: Callable[[Segment], np.ndarray]


CODECS = [
    CodecKind("none", no_params, lambda segment: decode_cast(segment, segment.dtype)),
    CodecKind("fp16", no_params, lambda segment: decode_cast(segment, 1)),
    CodecKind("bf16", no_params, lambda segment: decode_cast(segment, 2)),
    CodecKind("uniform", lambda params: bucketed_params(params, UNIFORM, 1, 8), decode_bucketed),
    CodecKind(
        "exponential", lambda params: bucketed_params(params, EXPONENTIAL, 2, 8), decode_bucketed
    ),
    CodecKind("sign", lambda params: bucketed_params(params, SIGN, 1, 1), decode_bucketed),
    CodecKind("grid", grid_params, decode_grid),
    CodecKind("topk", topk_params, decode_topk),
    CodecKind("randomk", randomk_params, decode_randomk),
]


def main() -> None:
    for path in sys.argv[1:]:
        print(path)
        for segment in read_frame(Path(path).read_bytes()):
            print(f"  {CODECS[segment.codec].name}, {segment.count}: {decode_segment(segment)}")


if __name__ == "__main__":
    main()

"""Fills fuzz/corpus/<target>/ with inputs to start from, made of the golden frames.

    python fuzz/make_corpus.py

Inputs that fuzzing found are added by hand, under other names.
"""

import struct
import sys
from pathlib import Path

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests" / "golden"
sys.path.insert(0, str(HERE.parent / "tests"))
import reference_decoder  # noqa: E402
from reference_decoder import Segment  # noqa: E402

LARGEST = 4096  # bytes; small inputs fuzz faster
SPECS = (
    "none",
    "fp16",
    "bf16",
    "uniform:bits=4,bucket=128,rounding=stochastic,meta=bf16",
    "exponential:bits=8,bucket=1073741824,rounding=nearest,meta=fp32",
    "sign:bucket=1024,meta=bf16",
    "grid:step=0.5,locality=0.5,rounding=stochastic",
    "grid:nmse=0.02,locality=1,rounding=dither,rms=1e-40",
    "grid:step=1,nmse=1",
    "uniform:bits=9",
    "uniform:bits",
    "nothing:",
    "topk:density=0.001,select=search,values=int8",
    "topk:threshold=1e-40,ties=7,low_threshold=3e38,low_ties=65535,values=mean",
    "topk:density=1,threshold=1",
    "randomk:density=0.01,scale=inverse",
)


def write(target: str, name: str, data: bytes) -> None:
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def golden_segments() -> dict[str, Segment]:
    """One segment of each golden frame that has small ones, by the frame's name."""
    segments = {}
    for path in sorted((GOLDEN / "v1").glob("*.frame")):
        for i, segment in enumerate(reference_decoder.read_frame(path.read_bytes())):
            if 0 < len(segment.payload) <= LARGEST:
                segments[f"{path.stem}_{i}"] = segment
    return segments


# How fuzz_input.h reads its choices of a codec.


def cast_choices(segment: Segment) -> bytes:
    return bytes([segment.codec])


def bucketed_choices(segment: Segment) -> bytes:
    scheme, bits, rounding, meta, bucket = struct.unpack("<BBBBI", segment.params[:8])
    choices = meta | rounding << 1 | (bucket - 1).bit_length() << 3
    return struct.pack("<BBBI", scheme, bits - 1, choices, bucket - 1)


def grid_choices(segment: Segment) -> bytes:
    _, locality, _, rounding, _ = struct.unpack("<fffBB", segment.params)
    return bytes([0, {0: 0, 0.5: 1}.get(locality, 2), rounding])


def sparse_choices(segment: Segment) -> bytes:
    if segment.codec == 7:
        return bytes([segment.params[13], 0, segment.params[12]])
    density, scale = struct.unpack("<fI", segment.params[:8])
    return bytes([4 + scale, {0.25: 1, 1: 2}.get(density, 0), 0])


def family(segment: Segment) -> int:
    return 0 if segment.codec <= 2 else 1 if segment.codec <= 5 else segment.codec // 7 + 2


CHOICES = (cast_choices, bucketed_choices, grid_choices, sparse_choices)


def write_payloads(segments: dict[str, Segment]) -> None:
    for kind, wanted in ((0, 8), (1, 16), (2, 24), (3, 24)):
        names = [name for name, segment in segments.items() if family(segment) == kind]
        for i, name in enumerate(names[:: max(1, len(names) // wanted)]):
            write_payload(name, segments[name], for_isa=i % 2 == 0)


def write_payload(name: str, segment: Segment, for_isa: bool) -> None:
    kind = family(segment)
    choices = CHOICES[kind](segment)
    if kind == 0:
        write("cast_fuzz", name, choices + bytes([segment.dtype, 0, 0]) + segment.payload)
    elif kind == 1:
        write(
            "bucketed_fuzz", name, choices + struct.pack("<BH", 0, segment.count) + segment.payload
        )
    elif kind == 2:
        write("grid_fuzz", name, choices + struct.pack("<BI", 0, segment.count) + segment.payload)
    else:
        inner = struct.pack("<BBI", segment.dtype, 0, segment.count)
        write("sparse_fuzz", name, choices + inner + segment.payload)
    if for_isa and segment.count < 1 << 16:
        inner = bytes([1, kind]) + choices + struct.pack("<BH", segment.dtype, segment.count)
        write("isa_fuzz", f"decode_{name}", inner + segment.payload)


def write_numbers(segments: dict[str, Segment]) -> None:
    """Numbers to encode: what `none` holds."""
    numbers = [segment for segment in segments.values() if segment.codec == 0]
    for i, codec in enumerate(
        (
            b"\x00\x01",
            b"\x01\x00\x03\x20" + bytes(4),
            b"\x02\x00\x01\x02",
            b"\x03\x02\x01\x01",
            b"\x03\x05\x01\x00",
        )
    ):
        for j, source in enumerate(numbers):
            key = struct.pack("<QQB", 7, 128, 7)
            write(
                "isa_fuzz",
                f"encode_{i}_{j}",
                b"\x00" + codec + bytes([source.dtype]) + key + source.payload,
            )


def write_words(segments: dict[str, Segment]) -> None:
    for name, segment in segments.items():
        if family(segment) != 2 or segment.payload[8] != 1:
            continue
        block_bytes, number_bytes = struct.unpack("<HI", segment.payload[14:20])
        coded = segment.payload[8 + 16 + number_bytes + block_bytes :]
        write("rans_fuzz", name, bytes([160 + segment.payload[10], 40]) + coded[: 128 + 1024])


def write_wire() -> None:
    """Messages and aborts; the target mends their checks."""
    message, abort = 1, 0
    rows = {
        "messages": [(message, 0, b""), (message, 1, b"x" * 100), (message, 2, b"y" * 4096)],
        "abort": [(message, 0, b"z" * 10), (abort, 2, b"rank 2 did not answer")],
        "too_long": [(message, 0, bytes(5000))],
    }
    for name, messages in rows.items():
        wire = b"".join(
            struct.pack("<IIQQ", kind, 0, tag, len(body)) + body for kind, tag, body in messages
        )
        for piece in (0, 24, 63):
            write("wire_fuzz", f"{name}_{piece}", bytes([piece]) + wire)
            write("wire_fuzz", f"{name}_{piece}_cut", bytes([piece]) + wire[: len(wire) // 2])


def main() -> None:
    for path in sorted((GOLDEN / "v1").glob("*.frame")):
        if path.stat().st_size <= 2 * LARGEST:
            write("frame_fuzz", path.stem, path.read_bytes())
    for name in (
        "version_2",
        "padding",
        "packed_width_32",
        "coded_no_words",
        "coded_class_escape_46",
        "topk_one_more",
        "topk_no_one",
        "randomk_no_numbers",
    ):
        write("frame_fuzz", f"bad_{name}", (GOLDEN / "bad" / f"{name}.frame").read_bytes())
    segments = golden_segments()
    write_payloads(segments)
    write_numbers(segments)
    write_words(segments)
    write_wire()
    for i, spec in enumerate(SPECS):
        write("spec_fuzz", f"spec_{i}", spec.encode())


if __name__ == "__main__":
    main()

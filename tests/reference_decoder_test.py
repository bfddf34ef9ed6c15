"""The decoder that was written from docs/format.md agrees with the library on every golden file."""

import csv
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

sys.path.insert(0, str(Path(__file__).parent))
import reference_decoder  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
DOCUMENT = Path(__file__).parent.parent / "docs" / "format.md"


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def expected_segments() -> dict[str, list[tuple[int, str]]]:
    frames = {path.stem: [] for path in sorted((GOLDEN / "v1").glob("*.frame"))}
    for row in table(GOLDEN / "v1" / "expected.tsv"):
        frames[row["frame"]].append((int(row["count"]), row["hash"]))
    return frames


def hash_of(numbers: np.ndarray) -> str:
    """All NaN count as the same one."""
    bits = np.where(np.isnan(numbers), np.uint32(0x7FC00000), numbers.view(np.uint32))
    return xxhash.xxh3_64_hexdigest(bits.astype("<u4").tobytes())


@pytest.mark.parametrize(("name", "segments"), expected_segments().items())
def test_golden_frame_decodes_to_the_same_bits(name: str, segments: list[tuple[int, str]]) -> None:
    decoded = reference_decoder.decode((GOLDEN / "v1" / f"{name}.frame").read_bytes())
    assert [(len(numbers), hash_of(numbers)) for numbers in decoded] == segments


@pytest.mark.parametrize(
    "row", table(GOLDEN / "bad" / "expected.tsv"), ids=lambda row: row["frame"]
)
def test_bad_frame_is_refused_for_the_same_reason(row: dict[str, str]) -> None:
    with pytest.raises(reference_decoder.FrameError, match=f"^{row['status']}$"):
        reference_decoder.decode((GOLDEN / "bad" / f"{row['frame']}.frame").read_bytes())


def test_tables_are_those_that_the_document_means() -> None:
    frequencies = np.array([t.frequency for t in reference_decoder.TABLES], "<u2")
    assert frequencies.shape == (176, 16)
    assert (frequencies.sum(axis=1) == 4096).all()
    assert f"0x{xxhash.xxh3_64_hexdigest(frequencies.tobytes())}" in DOCUMENT.read_text()


def test_example_of_the_document_decodes_as_it_says() -> None:
    dump = DOCUMENT.read_text().split("80 bytes:\n\n```\n")[1].split("```")[0]
    frame = bytes.fromhex("".join(re.sub(r"^\w{4}  ", "", line) for line in dump.splitlines()))
    assert reference_decoder.decode(frame)[0].tolist() == [0.5, 1, -1, 2.5, 7]

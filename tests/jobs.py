"""Jobs that tests start: which processes are theirs, what they write, and waiting for both."""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path

MARK = "TEST_JOB_MARK"  # in the environment of a job, by which its processes are found


def processes_marked(mark: str) -> set[int]:
    """All that descends from the job with this mark, whatever its group, session or namespace."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:  # it has ended meanwhile
            pass
    return found


def wait_until(condition: Callable[[], object], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def wait_for_end(mark: str, seconds: float) -> None:
    wait_until(lambda: not processes_marked(mark), "the end of the job's processes", seconds)


def read_until(terminal: int, wanted: bytes, seconds: float) -> bytes:
    """What was written up to there, or in that time."""
    seen = b""
    deadline = time.monotonic() + seconds
    while wanted not in seen and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096)
    return seen

"""Memory: arrays are used in place, and what was used is given back."""

import gc
import subprocess
import sys
import textwrap
import tracemalloc

import gradwire
import numpy as np
import pytest

SLACK = 64 * 1024  # bytes for Python's own small objects
COUNT = 1 << 20
X = np.random.default_rng(0).standard_normal(COUNT).astype("float32")


def traced_peak(call) -> int:
    """The bytes that `call` has Python and NumPy allocate at most."""
    gc.collect()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("spec", gradwire.codecs())
def test_encode_allocates_the_frame_and_nothing_else(spec):
    codec = gradwire.codec(spec)
    assert traced_peak(lambda: codec.encode(X)) <= codec.max_frame_bytes(COUNT) + SLACK


@pytest.mark.parametrize("spec", gradwire.codecs())
def test_decode_allocates_the_result_and_nothing_else(spec):
    codec = gradwire.codec(spec)
    frame = codec.encode(X)
    out = np.zeros_like(X)
    assert traced_peak(lambda: codec.decode(frame)) <= X.nbytes + SLACK
    assert traced_peak(lambda: codec.decode(frame, out)) <= SLACK
    assert traced_peak(lambda: codec.decode_add(frame, out)) <= SLACK
    assert traced_peak(lambda: codec.decode(memoryview(frame), out)) <= SLACK


def test_frames_are_as_small_as_they_say():
    frame = gradwire.codec("sign").encode(X)
    assert sys.getsizeof(frame) < len(frame) + 100 < X.nbytes / 25


def test_arrays_and_frames_are_let_go():
    x, frame = X[:1000].copy(), bytearray(gradwire.codec("none").encode(X[:1000]))
    before = sys.getrefcount(x)
    for _ in range(10):
        gradwire.codec("none").decode_add(frame, x)
        gradwire.codec("none").encode(x)
        with pytest.raises(ValueError):
            gradwire.decode(frame, x[:10])
    assert sys.getrefcount(x) == before
    frame.clear()  # raises BufferError while anything still looks at it


def test_resident_memory_stays_small():
    """tracemalloc sees Python's allocations; this sees every page, in a process of its own."""
    code = """
        import resource
        import gradwire, numpy

        x = numpy.ones(1 << 25, dtype="float32")  # 128 MiB
        codec = gradwire.codec("sign")
        codec.decode_add(codec.encode(x[:1000]), x[:1000])  # what comes once, comes now
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        codec.decode_add(codec.encode(x), x)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    # The frame has one bit per number, 4 MiB, and a bit for its buckets.
    assert int(done.stdout) * 1024 < 8 << 20

"""Threads: the GIL is released while numbers are encoded and decoded, and codecs can be shared."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import gradwire
import numpy as np
import pytest

CODEC = gradwire.codec("uniform:bits=4,bucket=128,rounding=stochastic")
BIG = np.random.default_rng(0).standard_normal(1 << 22).astype("float32")
FRAME = CODEC.encode(BIG)
OUT = np.empty_like(BIG)


@pytest.fixture
def no_switching():
    """The interpreter never takes the GIL from a thread: others run only when it is given up."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(
    "call",
    [
        lambda: CODEC.encode(BIG),
        lambda: CODEC.decode(FRAME, OUT),
        lambda: CODEC.decode_add(FRAME, OUT),
        lambda: gradwire.codec("grid").fit(BIG),
    ],
    ids=["encode", "decode", "decode_add", "fit"],
)
def test_other_threads_run_meanwhile(no_switching, call):
    gate, ran = threading.Lock(), threading.Event()

    def run_when_let():
        with gate:
            ran.set()

    gate.acquire()
    thread = threading.Thread(target=run_when_let, daemon=True)
    thread.start()
    gate.release()
    # From here on the thread needs nothing but the GIL. A call takes milliseconds; should the
    # system be slow to wake the thread, the next one gives it another chance.
    calls = 0
    while not ran.is_set() and calls < 200:
        call()
        calls += 1
    assert ran.is_set()
    thread.join()


def test_python_alone_would_not_let_them_run(no_switching):
    """The test above can fail: without a call that releases the GIL the thread stays put."""
    gate, ran = threading.Lock(), threading.Event()

    def run_when_let():
        with gate:
            ran.set()

    gate.acquire()
    thread = threading.Thread(target=run_when_let, daemon=True)
    thread.start()
    gate.release()
    sum(range(1_000_000))
    assert not ran.is_set()
    thread.join()


@pytest.mark.parametrize("spec", gradwire.codecs())
def test_threads_share_a_codec(spec):
    codec = gradwire.codec(spec)
    x = BIG[:50_000]
    expected = [codec.encode(x, seed=seed) for seed in range(16)]

    def work(job: int) -> bool:
        frame = codec.encode(x, seed=job % 16)
        total = np.zeros_like(x)
        codec.decode_add(frame, total)
        return frame == expected[job % 16] and (total == codec.decode(frame)).all()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_errors_in_threads_are_their_own():
    def work(job: int) -> str:
        with pytest.raises(gradwire.Error) as raised:
            gradwire.codec(f"kind{job}")
        return str(raised.value)

    with ThreadPoolExecutor(8) as pool:
        for job, message in enumerate(pool.map(work, range(200))):
            assert f"'kind{job}'" in message

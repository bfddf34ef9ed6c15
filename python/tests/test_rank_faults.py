"""What the others see when a rank dies or stops: an error that names it, in time."""

import multiprocessing
import os
import signal
import time

import gradwire
import numpy as np
import pytest

spawn = multiprocessing.get_context("spawn")
SIZE = 4
CULPRIT = 1
TIMEOUT = 3.0


def reduce_until_failure(rank, store, transport, algorithm, fault, results):
    ranks = gradwire.connect(
        rank, SIZE, f"file:{store}", transport=transport, algorithm=algorithm, timeout=30
    )
    x = np.ones(300_000, np.float32)
    for step in range(10_000):
        if rank == CULPRIT and step == 5:
            os.kill(os.getpid(), fault)
        begun = time.monotonic()
        try:
            ranks.all_reduce(x, "uniform:bits=4", step=step, timeout=TIMEOUT).wait()
        except gradwire.Error as error:
            results.put((rank, error.code, str(error), time.monotonic() - begun))
            break
    # A new communicator works in the same process, without the culprit.
    number = rank - (rank > CULPRIT)
    again = gradwire.connect(number, SIZE - 1, f"file:{store}-again", timeout=30)
    y = np.full(10, rank, np.float32)
    again.all_reduce(y).wait()
    results.put((rank, "again", y[0], 0))


def shared_memory():
    """Names in shared memory, without those of Python's own queues."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


# In a ring two of the survivors wait for ranks that are as well as themselves.
@pytest.mark.parametrize("algorithm", ["sra", "ring"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_survivors_name_the_rank_within_the_deadline(tmp_path, transport, algorithm, fault):
    before = shared_memory()
    results = spawn.Queue()
    processes = [
        spawn.Process(
            target=reduce_until_failure,
            args=(rank, str(tmp_path / "store"), transport, algorithm, fault, results),
        )
        for rank in range(SIZE)
    ]
    for process in processes:
        process.start()
    try:
        found = [results.get(timeout=60) for _ in range(2 * (SIZE - 1))]
    finally:
        for process in processes:
            process.kill()
            process.join(timeout=10)
    errors = [each for each in found if each[1] != "again"]
    assert {rank for rank, *_ in errors} == {0, 2, 3}
    codes = {code for _, code, _, _ in errors}
    if fault == signal.SIGKILL:
        assert codes == {"peer_failed"}
    else:  # who has waited in vain tells the others
        assert "timeout" in codes
    for _, _, message, seconds in errors:
        assert f"rank {CULPRIT}" in message
        assert seconds < TIMEOUT + 5  # on a busy machine; the soak measures how late errors come
    assert [value for _, code, value, _ in found if code == "again"] == [5, 5, 5]
    assert shared_memory() <= before

"""gradwire.connect(store="mpi") under mpirun, and that nobody else gets libmpi."""

import shutil
import subprocess
import sys
import textwrap

import gradwire
import pytest

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]


def run(command, source):
    """What the ranks printed, in any order. Each line is one write: mpirun may mix smaller ones."""
    done = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.fixture(scope="module")
def mpi():
    """For tests that need it."""
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun: install openmpi-bin")
    try:
        run([], 'import gradwire; gradwire.connect(store="mpi")')
    except AssertionError as error:
        if "built without MPI" not in str(error):
            raise
        pytest.skip("this gradwire was built without MPI")


@pytest.mark.usefixtures("mpi")
def test_ranks_of_mpirun_sum_exactly_and_alike():
    lines = run(
        MPIRUN,
        """
        import gradwire, numpy, sys, zlib
        for transport in ("auto", "mpi"):
            ranks = gradwire.connect(store="mpi", transport=transport, timeout=30)
            x = numpy.arange(1000, dtype=numpy.float32) * (ranks.rank + 1)
            ranks.all_reduce(x).wait()
            y = numpy.random.default_rng(ranks.rank).standard_normal(5000, dtype=numpy.float32)
            ranks.all_reduce(y, "grid:step=0.5", seed=1).wait()
            exact = numpy.array_equal(x, numpy.arange(1000, dtype=numpy.float32) * 3)
            bits = zlib.crc32(y.tobytes())
            sys.stdout.write(f"{transport} {ranks.rank} {ranks.size} {exact} {bits}\\n")
        """,
    )
    places = [line.rsplit(" ", 1)[0] for line in lines]
    assert places == ["auto 0 2 True", "auto 1 2 True", "mpi 0 2 True", "mpi 1 2 True"]
    assert len({line.rsplit(" ", 1)[1] for line in lines}) == 1  # the same bits, whatever the way


@pytest.mark.usefixtures("mpi")
def test_a_stopped_rank_is_named_at_the_deadline_and_goes_on_unharmed():
    lines = run(
        MPIRUN,
        """
        import gradwire, numpy, os, signal, sys
        ranks = gradwire.connect(store="mpi", transport="mpi", timeout=30)
        processes = numpy.zeros(2, numpy.float32)
        processes[ranks.rank] = os.getpid()
        ranks.all_gather(processes).wait()
        x = numpy.ones(3_000_000, numpy.float32)  # more than MPI takes at once
        work = ranks.all_reduce(x, timeout=2 if ranks.rank == 0 else 30)
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            work.wait()
        except gradwire.Error as error:
            sys.stdout.write(f"{ranks.rank} {error.code} {'rank 1' in str(error)}\\n")
        if ranks.rank == 0:
            del work, ranks
            os.kill(int(processes[1]), signal.SIGCONT)
        """,
    )
    assert lines == ["0 timeout True", "1 peer_failed True"]


@pytest.mark.usefixtures("mpi")
def test_libmpi_is_loaded_only_when_asked_for():
    lines = run(
        [],
        """
        import gradwire, numpy
        def has_libmpi():
            with open("/proc/self/maps") as maps:
                return "libmpi" in maps.read()
        gradwire.connect(0, 1).all_reduce(numpy.ones(3, "float32")).wait()
        print(has_libmpi())
        gradwire.connect(store="mpi")
        print(has_libmpi())
        """,
    )
    assert lines == ["False", "True"]


def test_another_transport_is_refused_with_the_list(tmp_path):
    with pytest.raises(gradwire.Error, match="take auto, shm, tcp or mpi"):
        gradwire.connect(0, 2, f"file:{tmp_path}", transport="pigeon", timeout=1)

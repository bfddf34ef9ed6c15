"""gradwire passes what gloo passes of torch's own tests, and the program that says so objects."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import conformance
import pytest
from ci_subset import CI
from conformance import KNOWN, Report, Run, differences
from torch_suite import AlsoGloo

CONFORMANCE = Path(__file__).resolve().parent / "conformance.py"


def run_of(backend: str, **outcomes: str) -> Run:
    reports = [
        Report(name, outcome, "" if outcome == "passed" else "because", seconds=1.0)
        for name, outcome in outcomes.items()
    ]
    return Run(backend, 2, reports, seconds=1.0)


@pytest.mark.parametrize("more", [[], ["--debug-detail", "--world-size", "2"]], ids=["", "detail"])
def test_gradwire_passes_what_gloo_passes(more):
    run = subprocess.run(
        [sys.executable, CONFORMANCE, "--subset", "ci", "--json", *more],
        capture_output=True,
        text=True,
    )
    assert run.stdout, run.stderr
    said = json.loads(run.stdout)
    assert run.returncode == 0, run.stderr + json.dumps(said["differences"], indent=1)
    rows = said["rows"]
    assert {row["backend"] for row in rows} == {"gloo", "gradwire"}
    passed = {
        (row["world_size"], test["name"])
        for row in rows
        for test in row["tests"]
        if row["backend"] == "gradwire" and test["outcome"] == "passed"
    }
    # Four ranks run all of the subset, two run what takes no group of three.
    assert {name for size, name in passed if size == 4} in (set(), set(CI) - set(KNOWN))
    assert len([name for size, name in passed if size == 2]) >= 35


def test_what_one_backend_alone_passes_is_a_difference():
    gloo = run_of("gloo", test_a="passed", test_b="passed", test_c="skipped", test_d="failed")
    ours = run_of("gradwire", test_a="passed", test_b="failed", test_c="skipped", test_d="passed")
    found = differences(gloo, ours, KNOWN)
    outcomes = [(each.name, each.gloo, each.gradwire) for each in found]
    assert outcomes == [("test_b", "passed", "failed"), ("test_d", "failed", "passed")]
    assert not any(each.known for each in found) and found[0].why == "because"
    assert [each.is_fault() for each in found] == [True, False]


def test_skipping_what_gloo_passes_is_a_difference():
    gloo, ours = run_of("gloo", test_a="passed"), run_of("gradwire", test_a="skipped")
    (found,) = differences(gloo, ours, KNOWN)
    assert not found.known and found.is_fault()


@pytest.mark.parametrize(
    ("later", "outcome", "runs"),
    [(["passed"] * 5, "passed", 5), (["passed", "failed"], "failed", 2)],
)
def test_what_fails_is_run_again_and_must_pass_every_time(monkeypatch, later, outcome, runs):
    coming = iter(later)
    monkeypatch.setattr(
        conformance, "run_suite", lambda *_: run_of("gradwire", test_a=next(coming))
    )
    run = run_of("gradwire", test_a="failed")
    conformance.look_again(run, ["test_a"], debug_detail=False)
    (report,) = run.reports
    assert report.outcome == outcome and "because" in report.why
    assert len(list(coming)) == len(later) - runs


def test_a_known_difference_goes_one_way_and_must_be_one():
    known = {"test_a": ("gloo", "torch is like that")}
    good, bad = ({"test_a": outcome} for outcome in ("passed", "failed"))
    (found,) = differences(run_of("gloo", **good), run_of("gradwire", **bad), known)
    assert found.known and found.why == "torch is like that"
    (found,) = differences(run_of("gloo", **bad), run_of("gradwire", **good), known)
    assert not found.known
    (found,) = differences(run_of("gloo", **good), run_of("gradwire", **good), known)
    assert not found.known and "take it off" in found.why
    assert not differences(run_of("gloo", **bad), run_of("gradwire", **bad), known)


def test_a_name_that_also_equals_gloo():
    name = AlsoGloo("gradwire")
    assert name == "gradwire" and name == "gloo" and "gloo" == name and not name != "gloo"
    assert name != "nccl" and name in {"gloo"} and name not in {"nccl", "mpi"}
    assert f"{name}" == name.lower() == "gradwire" and name.lower() != "gloo"


def test_an_unknown_test_is_refused():
    run = subprocess.run(
        [sys.executable, CONFORMANCE, "--only", "test_no_such", "--backend", "gloo"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert "torch has no test test_no_such" in run.stderr


def descendants(pid: int) -> set[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children}.union(*map(descendants, map(int, children)))


def test_an_interrupt_leaves_nothing():
    run = subprocess.Popen(
        [sys.executable, CONFORMANCE, "--only", "test_isend", "--backend", "gloo"],
        # Who runs tests in the background has the shell ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 100
        while len(processes := descendants(run.pid)) < 4:  # suite, test, two ranks
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(60) == 130
        while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)
    finally:
        run.kill()
        run.wait()

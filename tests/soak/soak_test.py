"""The first faults of the soak, and the soak itself: that it objects, refuses and cleans up."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import gradwire
import pytest
from collectives import Stream
from episode import FAULTS, Episode
from judge import Course, RankReports, judge

SOAK = Path(__file__).resolve().parent / "soak.py"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")


@needs_root
def test_the_first_faults_do_no_harm():
    run = subprocess.run(
        [sys.executable, SOAK, "--faults", "20", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    episodes = json.loads(run.stdout)
    assert min(Counter(each["episode"]["fault"] for each in episodes).values()) >= 2
    assert {each["episode"]["fault"] for each in episodes} == set(FAULTS)
    failed = {each["episode"]["fault"] for each in episodes if each["errors"]}
    assert failed == set(FAULTS) - {"strangers"}


@needs_root
def test_an_interrupt_leaves_nothing():
    soak = subprocess.Popen(
        [sys.executable, SOAK, "--only", "stop"],
        # Who runs tests in the background has the shell ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        children = Path(f"/proc/{soak.pid}/task/{soak.pid}/children")
        deadline = time.monotonic() + 60
        while len(ranks := children.read_text().split()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        soak.send_signal(signal.SIGINT)
        assert soak.wait(30) == 130
        assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]
    finally:
        soak.kill()
        soak.wait()


@needs_root
def test_without_rights_it_refuses_and_says_what_to_do():
    run = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", sys.executable, SOAK, "--faults", "1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert "cannot be made here" in run.stderr
    assert "Run as root" in run.stderr


def test_a_fault_that_does_not_exist_is_refused_with_those_that_do():
    run = subprocess.run(
        [sys.executable, SOAK, "--only", "fire"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
    assert "there is no fault 'fire'; there are: kill" in run.stderr


def test_a_wrong_number_is_noticed():
    ranks = gradwire.connect(0, 1)
    stream = Stream("numbers", 0, 1, hierarchical=False)
    for number in range(60):
        call = stream.call(number)
        arrays = stream.inputs(call)
        stream.begin(ranks, call, arrays, timeout=30).wait()
        assert stream.mistake(call, arrays) is None
        for array in arrays:
            if len(array):
                array[-1] += 100
                assert "is off by" in stream.mistake(call, arrays)
                array[-1] -= 100


def reports(*events: dict) -> RankReports:
    return RankReports([{"at": 10.0} | each for each in events], exit_code=0)


END = {"event": "end", "left": {"threads": 0}}


def error(text="rank 1 failed", over=-1.0) -> dict:
    return {"event": "error", "where": "barrier", "text": text, "over": over}


def done(digest: str) -> dict:
    return {"event": "done", "run": "first", "number": 7, "hash": digest}


@pytest.mark.parametrize(
    ("ranks", "objection"),
    [
        ([reports(error(), END)] * 2, None),
        ([reports(error(over=3.1), END)] * 2, "3.10 s after the deadline"),
        ([reports(error("rank 0 failed"), END)] * 2, "blames another"),
        ([reports(error("it failed"), END)] * 2, "names nobody"),
        ([reports(error(), END), reports(END)], "saw no error"),
        ([reports(error(), END), reports()], "rank 1:"),
        ([reports(error(), END), reports(done("a") | {"at": 99.0})], "computes on"),
        ([reports(error()), reports(error(), END)], "rank 0 after its error"),
        ([reports(done("a"), error(), END), reports(done("b"), error(), END)], "another result"),
        ([reports({"event": "wrong", "text": "off"}, error(), END)] * 2, "off"),
        ([reports(error(), {"event": "end", "left": {"threads": 1}})] * 2, "'threads': 1"),
        ([reports(error() | {"at": 1.0}, END)] * 2, "before the fault"),
    ],
)
def test_every_broken_promise_is_a_violation(ranks, objection):
    episode = Episode(1, 0, "reset", hosts=[0, 1])
    verdict = judge(episode, ranks, Course(struck=5.0, suspects={1}))
    if objection is None:
        assert verdict.violations == []
    else:
        assert any(objection in violation for violation in verdict.violations)

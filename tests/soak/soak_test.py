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
from collectives import CODECS, SEND_AS_IT_IS, Stream
from episode import FAULTS, FORKS, LIES, Episode, draw
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
    stream = Stream("numbers", 0, 1, hierarchical=False, max_count=4096)
    noticed = Counter()
    for number in range(400):
        call = stream.call(number)
        arrays = stream.inputs(call)
        stream.begin(ranks, call, arrays, timeout=30).wait()
        assert stream.mistake(call, arrays) is None
        for array in filter(len, arrays):
            right = array[-1]
            array[-1] += 10_000
            assert "is off by" in stream.mistake(call, arrays)
            array[-1] = right
            noticed[call.kind if call.group is None else "feedback"] += 1
        stream.take(call, arrays)
    assert set(noticed) == {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "feedback"}
    used = {codec for group in stream.layers for codec in (layer.codec for layer in group)}
    assert len(used) > 5


def test_a_number_that_feedback_lost_is_noticed():
    """By one, of a layer whose codec sends numbers as they are, when all of it is sent."""
    ranks = gradwire.connect(0, 1)
    stream = Stream("numbers", 0, 1, hierarchical=False, max_count=4096)
    lost = 0
    for number in range(400):
        call = stream.call(number)
        arrays = stream.inputs(call)
        stream.begin(ranks, call, arrays, timeout=30).wait()
        if call.group is not None and call.momentum == 0 and set(call.codecs) == {"none"}:
            for layer, array in zip(stream.layers[call.group], arrays, strict=True):
                if layer.codec in SEND_AS_IT_IS:
                    array[-1] += 1
                    assert f"what layer {layer.name} owes is off by 1.0" in stream.mistake(
                        call, arrays
                    )
                    array[-1] -= 1
                    lost += 1
        stream.take(call, arrays)
    assert lost > 3


def reports(*events: dict) -> RankReports:
    return RankReports([{"at": 10.0} | each for each in events], exit_code=0)


END = {"event": "end", "left": {"threads": 0}, "grown": 0}


def error(text="rank 1 failed", over=-1.0, code="peer_failed") -> dict:
    return {"event": "error", "where": "barrier", "text": text, "over": over, "code": code}


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


@pytest.mark.parametrize(
    ("episode", "rank", "objection"),
    [
        (
            Episode(1, 0, "kill", hosts=[0, 0, 0], victim=1),
            reports(error(code="timeout"), END),
            "at once",
        ),
        (Episode(1, 0, "fork", hosts=[0, 0], manner="exits"), reports(error(), END), "disturbed"),
        (Episode(1, 0, "fork", hosts=[0, 0], manner="exits"), reports(END), None),
        (Episode(1, 0, "lie", hosts=[0, 0], manner="counts"), reports(END), "saw no error"),
        (Episode(1, 0, "lie", hosts=[0, 0], manner="counts"), reports(error(), END), None),
        (
            Episode(1, 0, "lie", hosts=[0, 0], manner="surplus"),
            reports(error(), END | {"grown": 999}),
            "999 MB",
        ),
    ],
)
def test_what_ranks_do_to_one_another_is_judged(episode, rank, objection):
    verdict = judge(episode, [rank] * episode.size, Course(struck=5.0, suspects={1}))
    if objection is None:
        assert verdict.violations == []
    else:
        assert any(objection in violation for violation in verdict.violations)


def test_episodes_have_every_codec_manner_and_uneven_hosts():
    episodes = [draw(1, number, FAULTS[number % len(FAULTS)]) for number in range(300)]
    assert {each.manner for each in episodes} == {"", *FORKS, *LIES}
    on_hosts = {tuple(Counter(each.hosts).values()) for each in episodes if each.place == "mixed"}
    assert (3, 3, 3) in on_hosts
    assert any(len(set(counts)) > 1 for counts in on_hosts)
    streams = [Stream(f"{number}", 0, 2, hierarchical=True) for number in range(30)]
    with_feedback = {
        codec
        for stream in streams
        for call in map(stream.call, range(40))
        if call.group is not None
        for codec in call.codecs
    }
    assert with_feedback == set(CODECS)
    assert {codec.split(":")[0] for codec in CODECS} == {
        str(c).split(":")[0] for c in gradwire.codecs()
    }


LIAR = """
import sys
import gradwire
from mischief import lie_on_the_wire

rank, store = int(sys.argv[1]), sys.argv[2]
ranks = gradwire.connect(rank, 2, store, transport="tcp", timeout=30)
for _ in range(12):
    ranks.barrier().wait()
if rank == 0:
    lie_on_the_wire("surplus", 12)
try:
    ranks.barrier().wait()
except gradwire.Error as error:
    print(error)
"""


def test_what_a_lying_rank_makes_up_passes_for_messages(tmp_path):
    """Others see a lie, and no damage."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LIAR, str(rank), f"file:{tmp_path}/store"],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(SOAK.parent)},
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert all("rank 0" in each and "bytes that are no message" not in each for each in said), said

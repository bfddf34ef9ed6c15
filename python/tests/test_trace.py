"""Traces of a real job: four ranks of DDP, joined by `gradwire trace`, as Perfetto reads them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import gradwire.torch
import numpy as np
import pytest
import torch
from gradwire.torch import channels
from perfetto.protos.perfetto.trace import perfetto_trace_pb2
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_ranks import on_ranks

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "gradwire"
RANKS = 4
STEPS = 3
DEADLINE_SECONDS = 600  # importing torch alone takes half a minute on a busy machine

TRAIN = f"""
    import sys
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.profiler.profile() as profile:
        for step in range({STEPS}):
            optimizer.zero_grad()
            model(torch.full((2, 64), float(rank))).sum().backward()
            optimizer.step()
    profile.export_chrome_trace(f"{{sys.argv[1]}}/torch-{{rank}}.json")
    distributed.destroy_process_group()
"""

MEET = """
    import os, sys
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}",
                                   rank=int(os.environ["RANK"]), world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    for step in range(3):
        model(torch.ones(1, 64)).sum().backward()
    distributed.destroy_process_group()
"""

LAYERS = {"0.weight", "0.bias", "2.weight", "2.bias"}


def run(folder: Path) -> subprocess.CompletedProcess:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    command = ["-P", "-m", "gradwire.torch.run", "--standalone", "--trace", str(folder / "run")]
    command += ["--codec", "grid:step=0.5"]
    return subprocess.run(
        [sys.executable, *command, f"--nproc-per-node={RANKS}", str(script), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def join(folder: Path, *options: str, name: str = "joined") -> bytes:
    joined = folder / name
    command = [PROGRAM, "trace", folder / "run", "-o", joined, *options]
    subprocess.run(command, check=True, capture_output=True)
    return joined.read_bytes()


class Slice:
    """One span, as Perfetto makes it of two packets."""

    def __init__(self, begin, end, track: str, process: str):
        self.name = begin.track_event.name
        self.begin, self.end = begin.timestamp, end.timestamp
        self.sends = list(begin.track_event.flow_ids)
        self.receives = list(end.track_event.terminating_flow_ids)
        self.arguments = {a.name: a.uint_value for a in begin.track_event.debug_annotations}
        self.track, self.process = track, process


def slices_of(trace: bytes) -> list[Slice]:
    """Spans of all tracks; they nest nowhere, so a track has at most one open at a time."""
    packets = perfetto_trace_pb2.Trace.FromString(trace).packet
    names, parents, opened, slices = {}, {}, {}, []
    for packet in packets:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            names[track.uuid] = track.name
            parents[track.uuid] = track.parent_uuid
            continue
        track = packet.track_event.track_uuid
        if packet.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_BEGIN:
            assert track not in opened
            opened[track] = packet
        else:
            slices.append(Slice(opened.pop(track), packet, names[track], names[parents[track]]))
    assert not opened
    return slices


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def slices(job) -> list[Slice]:
    return slices_of(join(job))


def test_every_rank_has_its_tracks(slices):
    tracks = defaultdict(set)
    for each in slices:
        tracks[each.process].add(each.track)
    assert set(tracks) == {f"rank {rank}" for rank in range(RANKS)}
    for names in tracks.values():
        assert {"hook", "future", "operations", "lane 0", "lane 1"} <= names


def test_tracks_are_shown_in_the_order_of_the_documentation(job):
    packets = perfetto_trace_pb2.Trace.FromString(join(job)).packet
    tracks = [each.track_descriptor for each in packets if each.HasField("track_descriptor")]
    ranks = {track.uuid: track.name for track in tracks if not track.parent_uuid}
    for track in tracks:
        if track.uuid in ranks:  # a process would not keep the order of its tracks
            assert track.child_ordering == perfetto_trace_pb2.TrackDescriptor.EXPLICIT
            assert not track.HasField("process")
    kinds = re.compile("hook|future|operations|preparation|lane")
    for uuid in ranks:
        shown = [track for track in tracks if track.parent_uuid == uuid]
        shown.sort(key=lambda track: track.sibling_order_rank)
        order = list(dict.fromkeys(kinds.match(track.name)[0] for track in shown))
        assert order == ["hook", "future", "operations", "preparation", "lane"]


def test_every_send_has_its_receive(slices):
    sends = {flow: each for each in slices for flow in each.sends}
    receives = {flow: each for each in slices for flow in each.receives}
    assert sends.keys() == receives.keys()
    assert len(sends) == sum(each.name.startswith("send") for each in slices) > 0
    assert len(receives) == sum(each.name.startswith("receive") for each in slices)
    for flow, sent in sends.items():
        received = receives[flow]
        assert received.process == f"rank {sent.arguments['peer']}"
        assert sent.process == f"rank {received.arguments['peer']}"
        for same in ("bytes", "piece"):
            assert sent.arguments[same] == received.arguments[same]
        assert sent.name.split()[1:] == received.name.split()[1:]


def test_messages_arrive_after_they_were_sent(slices):
    sends = {flow: each for each in slices for flow in each.sends}
    late = [each for each in slices for flow in each.receives if each.end < sends[flow].begin]
    assert late == []


def test_spans_of_a_track_do_not_overlap(slices):
    ends = defaultdict(int)
    for each in sorted(slices, key=lambda each: (each.begin, each.end)):
        key = each.process, each.track
        assert each.begin <= each.end
        assert ends[key] <= each.begin
        ends[key] = each.end


def test_names_are_the_models(slices):
    named = {re.sub(r"^\d+/", "", each.name.split()[1]) for each in slices if "/" in each.name}
    assert named == LAYERS
    for rank in range(RANKS):
        steps = [each.name for each in slices if each.process == f"rank {rank}"]
        buckets = [name for name in steps if name.startswith("all_reduce 0/")]
        assert len(buckets) == STEPS  # each is one operation
        assert all(name.endswith(" and 3 more") for name in buckets)
        assert {"fit 0/2.weight", "encode 0/2.weight and 1 more"} <= set(steps)
        assert {"decode 0/2.weight and 1 more", "send 0/0.weight and 1 more"} <= set(steps)


def test_hooks_and_futures_have_the_step_and_bytes(slices):
    for kind in ("hook", "future"):
        seen = [each for each in slices if each.process == "rank 0" and each.track == kind]
        assert [each.arguments["step"] for each in seen] == list(range(STEPS))
        assert {each.arguments["bytes"] for each in seen} == {4 * (64 * 128 + 128 + 128 * 64 + 64)}


def test_torch_profiler_shows_our_ranges_and_both_files_have_one_clock(job):
    ours = json.loads(join(job, "--format", "chrome"))
    theirs = json.loads((job / "torch-0.json").read_text())
    assert ours["baseTimeNanoseconds"] == theirs["baseTimeNanoseconds"]

    def spans(trace, name):
        found = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e["name"] == name]
        return sorted(found, key=lambda event: event["ts"])

    process = next(e["pid"] for e in ours["traceEvents"] if e["ph"] == "M")
    hooks = [event for event in spans(ours, "hook bucket 0") if event["pid"] == process]
    profiled = spans(theirs, "gradwire: hook")
    assert len(hooks) == len(profiled) == STEPS
    for mine, other in zip(hooks, profiled, strict=True):
        assert abs(mine["ts"] - other["ts"]) < 1000  # microseconds
    futures = spans(theirs, "gradwire: bucket 0")
    assert len(futures) == STEPS
    for future in futures:
        assert "finished" not in future["args"]  # it says so of those that never ended


def sharded(rank: int) -> list[str]:
    """torch.profiler's names of our ranges."""
    mesh = init_device_mesh("cpu", (2,))
    model = fully_shard(nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)), mesh=mesh)
    gradwire.torch.compress(model, "grid:step=0.5", weights="uniform:bits=8")
    with torch.profiler.profile() as profile:
        for _ in range(STEPS):
            model(torch.ones(2, 64)).sum().backward()
    channels.of(mesh.get_group()).close()  # which leaves the trace
    return [each.name for each in profile.events() if each.name.startswith("gradwire: ")]


def test_exchanges_of_fsdp_have_a_track_and_ranges_in_torch_profiler(tmp_path):
    environment = {"GRADWIRE_TRACE": str(tmp_path / "run")}
    for ranges in on_ranks(2, sharded, environment=environment):
        assert ranges.count("gradwire: reduce_scatter") == STEPS
        assert ranges.count("gradwire: all_gather") >= STEPS
    spans = [each for each in slices_of(join(tmp_path)) if each.track == "hook"]
    sums = [each for each in spans if each.name == "reduce_scatter 0.weight"]
    assert [each.arguments["step"] for each in sums] == 2 * list(range(STEPS))
    assert {each.arguments["bytes"] for each in sums} == {4 * (64 * 128 + 128 + 128 * 64 + 64)}
    assert "all_gather 0.weight" in {each.name for each in spans}


def lose_a_rank(rank: int) -> str:
    """What this rank hears when the other is gone; the model is compressed by the environment."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    for _ in range(3):  # then DDP is done with what it exchanges by gloo
        model(torch.ones(1, 64)).sum().backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as heard:
        model(torch.ones(1, 64)).sum().backward()
    return str(heard.value)


def test_after_an_error_the_file_that_it_names_has_what_the_rank_waited_for(tmp_path):
    told = {"GRADWIRE": "1", "GRADWIRE_TRACE": str(tmp_path / "run")}
    heard, killed = on_ranks(2, lose_a_rank, environment=told)
    assert killed == -signal.SIGKILL
    named = re.search(r"rank 1 .*What this rank did last is in (\S+);", heard)
    assert named, heard
    assert Path(named[1]).exists()
    names = [each.name for each in slices_of(join(tmp_path))]
    assert {
        "receive 0/bias and 1 more (unfinished)",
        "all_reduce 0/bias and 1 more (unfinished)",
    } <= {*names}


def test_clocks_that_are_far_apart_are_joined(tmp_path):
    """Rank 1 lives in a time namespace, where the steady clock is a thousand seconds ahead."""
    elsewhere = ["unshare", "--time", "--monotonic", "1000", "--fork"]
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode != 0:
        pytest.skip("this system gives us no time namespace")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(MEET))
    told = {"GRADWIRE": "1", "GRADWIRE_TRACE": str(tmp_path / "run"), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [*prefix, sys.executable, script, tmp_path / "store"],
            env={**os.environ, **told, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank, prefix in enumerate([[], elsewhere])
    ]
    try:
        assert [rank.wait(DEADLINE_SECONDS) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    slices = slices_of(join(tmp_path))
    sends = {flow: each for each in slices for flow in each.sends}
    took = [each.end - sends[flow].begin for each in slices for flow in each.receives]
    assert took
    # Half of the quickest of 16 answers, on a busy machine, in nanoseconds.
    assert min(took) > -10e6
    assert max(each.end for each in slices) - min(each.begin for each in slices) < 100e9


def test_the_name_of_the_output_says_which_format_it_has(job):
    as_json = join(job, name="joined.json")
    assert json.loads(as_json)["traceEvents"]
    assert join(job, "--format", "chrome", name="joined.pftrace") == as_json
    assert slices_of(join(job, "--format", "perfetto", name="joined.json"))


def join_what_is_left(folder: Path) -> subprocess.CompletedProcess:
    command = [PROGRAM, "trace", folder, "-o", folder / "joined"]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_damaged_file_and_a_missing_one_do_not_hide_the_others(job, tmp_path):
    shutil.copytree(job / "run", tmp_path / "run")
    left = {path.name.split("-")[0]: path for path in (tmp_path / "run").iterdir()}
    left["rank1"].write_bytes(left["rank1"].read_bytes()[:-1])
    left["rank3"].unlink()
    done = join_what_is_left(tmp_path / "run")
    assert done.returncode == 1
    assert f"{left['rank1']} is no trace" in done.stderr
    assert "its checksum is wrong" in done.stderr
    assert "rank 1 left no trace" in done.stderr
    assert "rank 3 left no trace" in done.stderr
    assert "2 ranks" in done.stdout
    slices = slices_of((tmp_path / "run" / "joined").read_bytes())
    assert {each.process for each in slices} == {"rank 0", "rank 2"}


def test_a_copied_file_is_no_rank(job, tmp_path):
    shutil.copytree(job / "run", tmp_path / "run")
    path = sorted((tmp_path / "run").iterdir())[0]
    shutil.copy(path, path.with_name("zz.gwtrace"))
    done = join_what_is_left(tmp_path / "run")
    assert done.returncode == 1
    assert f"{path} and {path.with_name('zz.gwtrace')} are of the same rank" in done.stderr
    assert f"{RANKS} ranks" in done.stdout


def one_exchange(folder: Path, communicators: int = 1) -> None:
    alone = [gradwire.connect(0, 1, trace=str(folder)) for _ in range(communicators)]
    for each in alone + alone:
        each.all_reduce(np.ones(10, np.float32)).wait()


def test_traces_of_two_jobs_in_one_folder_are_noticed(tmp_path):
    one_exchange(tmp_path / "one", communicators=2)
    done = join_what_is_left(tmp_path / "one")
    assert (done.returncode, done.stderr) == (0, "")
    assert ": 1 rank, " in done.stdout
    for _ in range(2):
        one_exchange(tmp_path / "two")
    assert "give each a folder of its own" in join_what_is_left(tmp_path / "two").stderr


def test_when_no_file_can_be_read_nothing_is_written(tmp_path):
    (tmp_path / "rank0.gwtrace").write_text("no trace")
    done = join_what_is_left(tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path}/rank0.gwtrace" in done.stderr
    assert "no trace in" in done.stderr and "can be read" in done.stderr
    assert not (tmp_path / "joined").exists()


def test_a_folder_without_traces_is_refused(tmp_path):
    done = subprocess.run(
        [PROGRAM, "trace", tmp_path, "-o", tmp_path / "x"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "gradwire run --trace" in done.stderr

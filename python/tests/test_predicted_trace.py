"""The predicted timeline of `gradwire plan --trace`, as Perfetto reads it."""

import json
import subprocess
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "gradwire"
TRACKS = ["computing", "codecs", "inside", "sending", "receiving"]


@pytest.fixture(scope="module")
def predicted(tmp_path_factory) -> tuple[dict, list]:
    """What the command says, and the packets that it writes."""
    path = tmp_path_factory.mktemp("step") / "step.pftrace"
    arguments = "plan --model resnet50 --hosts 2 --ranks-per-host 2 --link 1gbit --json --trace"
    done = subprocess.run([PROGRAM, *arguments.split(), path], check=True, capture_output=True)
    packets = perfetto_trace_pb2.Trace.FromString(path.read_bytes()).packet
    return json.loads(done.stdout), list(packets)


def test_there_is_a_track_for_computing_and_each_resource(predicted):
    tracks = [p.track_descriptor for p in predicted[1] if p.HasField("track_descriptor")]
    assert [track.name for track in tracks] == ["predicted step of resnet50", *TRACKS]
    assert {track.parent_uuid for track in tracks[1:]} == {tracks[0].uuid}


def test_slices_are_named_by_task_and_tensor_and_end_with_the_step(predicted):
    plan, packets = predicted
    names = {p.track_descriptor.uuid: p.track_descriptor.name for p in packets}
    events = [p for p in packets if p.HasField("track_event")]
    opened, found, end = set(), set(), 0
    for packet in events:
        event = packet.track_event
        if event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in opened
            opened.add(event.track_uuid)
            found.add((names[event.track_uuid], event.name))
        else:
            opened.remove(event.track_uuid)
            end = max(end, packet.timestamp)
    assert not opened
    assert end == pytest.approx(1e9 * plan["predicted_seconds"], rel=1e-5)
    layer = "layer4.2.conv3.weight"
    way = next(tensor["way"] for tensor in plan["tensors"] if tensor["name"] == layer)
    assert not way.startswith("none")
    work = {(track, name.split(f" {layer}")[0]) for track, name in found if layer in name}
    assert {("computing", "compute"), ("codecs", "encode"), ("codecs", "decode"),
            ("sending", "send"), ("receiving", "receive")} <= work  # fmt: skip

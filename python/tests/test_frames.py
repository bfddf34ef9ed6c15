"""Frames: what they say about themselves, and what happens when they are not what was sent."""

import ctypes
import pickle
import re
import struct

import gradwire
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

X = np.random.default_rng(0).standard_normal(300).astype("float32")


# Inspecting


@pytest.mark.parametrize("spec", gradwire.codecs())
@pytest.mark.parametrize("dtype, name", [("float32", "f32"), ("float16", "f16")])
def test_inspect_tells_codec_dtype_and_count(spec, dtype, name):
    frame = gradwire.codec(spec).encode(X.astype(dtype))
    (segment,) = gradwire.inspect(frame)
    assert gradwire.codec(segment.spec).name == gradwire.codec(spec).name
    assert segment.dtype == name and segment.count == 300
    assert 0 < segment.payload_bytes < len(frame)


def test_frames_are_decoded_without_their_codec():
    frame = gradwire.codec("bf16").encode(X)
    decoded = gradwire.decode(frame)
    assert decoded.tobytes() == gradwire.codec("bf16").decode(frame).tobytes()
    assert decoded.tobytes() == gradwire.codec("sign").decode(frame).tobytes()


def test_bytes_behind_a_frame_are_ignored():
    frame = gradwire.codec("none").encode(X)
    assert (gradwire.decode(frame + b"more") == X).all()


# Several segments


def parts():
    return [
        (gradwire.codec("none"), X[:100]),
        (gradwire.codec("uniform:bits=8"), X.astype("float16")),
        (gradwire.codec("sign"), X[:0]),
    ]


def test_frames_of_several_arrays():
    frame = gradwire.encode(parts(), seed=3)
    assert [(s.dtype, s.count) for s in gradwire.inspect(frame)] == [
        ("f32", 100),
        ("f16", 300),
        ("f32", 0),
    ]
    assert (gradwire.decode(frame, segment=0) == X[:100]).all()
    out = np.zeros(300, np.float32)
    gradwire.codec("none").decode_add(frame, out, segment=1)
    assert out.tobytes() == gradwire.decode(frame, np.empty_like(out), segment=1).tobytes()
    assert gradwire.decode(frame, segment=2).shape == (0,)


def test_parts_draw_as_consecutive_tensors():
    codec = gradwire.codec("uniform:bits=1,rounding=stochastic")
    frame = gradwire.encode([(codec, X), (codec, X)], seed=1, step=2, tensor=7, rank=3)
    for i in range(2):
        alone = codec.encode(X, seed=1, step=2, tensor=7 + i, rank=3)
        assert (gradwire.decode(frame, segment=i) == codec.decode(alone)).all()


def test_frames_of_nothing():
    frame = gradwire.encode([])
    assert gradwire.inspect(frame) == []
    with pytest.raises(gradwire.Error, match="holds 0 segments") as raised:
        gradwire.decode(frame)
    assert raised.value.code == "count_mismatch"


def test_which_segment_must_be_said():
    frame = gradwire.encode(parts())
    with pytest.raises(gradwire.Error, match="holds 3 segments; pass segment= to say which"):
        gradwire.decode(frame)
    with pytest.raises(IndexError, match="holds 3 segments, there is none with index 3"):
        gradwire.decode(frame, segment=3)
    with pytest.raises(ValueError, match="segment is -1; give a whole number"):
        gradwire.decode(frame, segment=-1)


@pytest.mark.parametrize("parts", [5, [5], [("none", X)], [(gradwire.codec("none"),)]])
def test_parts_are_pairs_of_a_codec_and_an_array(parts):
    with pytest.raises(TypeError, match=r"parts are pairs of a gradwire\.codec\(…\) and an array"):
        gradwire.encode(parts)


def test_one_wrong_array_refuses_the_whole_frame():
    with pytest.raises(TypeError, match="x has dtype float64"):
        gradwire.encode([*parts(), (gradwire.codec("none"), X.astype("float64"))])


# Damage


@pytest.mark.parametrize("spec", gradwire.codecs())
def test_every_truncation_is_reported(spec):
    frame = gradwire.codec(spec).encode(X)
    out = np.full(300, 7, np.float32)
    for length in range(len(frame)):
        with pytest.raises(gradwire.Error, match="cut short; pass all the bytes") as raised:
            gradwire.decode(frame[:length], out)
        assert raised.value.code == "truncated"
    assert (out == 7).all()


@pytest.mark.parametrize("spec", gradwire.codecs())
def test_every_flipped_bit_is_reported(spec):
    frame = bytearray(gradwire.codec(spec).encode(X[:40]))
    out = np.full(40, 7, np.float32)
    for bit in range(8 * len(frame)):
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(gradwire.Error, match="not an intact gradwire frame") as raised:
            gradwire.decode(frame, out)
        assert raised.value.code == "corrupt"
        frame[bit // 8] ^= 1 << bit % 8
    assert (out == 7).all()
    gradwire.decode(frame, out)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_frame(noise):
    with pytest.raises(gradwire.Error) as raised:
        gradwire.decode(noise)
    assert raised.value.code in ("truncated", "corrupt")


def test_a_damaged_frame_leaves_a_sum_as_it_was():
    frame = bytearray(gradwire.codec("none").encode(X))
    frame[100] ^= 1
    total = np.full(300, 7, np.float32)
    with pytest.raises(gradwire.Error):
        gradwire.codec("none").decode_add(frame, total)
    assert (total == 7).all()


def test_errors_can_be_pickled():
    with pytest.raises(gradwire.Error) as raised:
        gradwire.decode(b"")
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is gradwire.Error
    assert again.code == "truncated" and str(again) == str(raised.value)


# Hostile claims

xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits  # what the library links
xxh3.argtypes, xxh3.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64


def claiming(count: int) -> bytes:
    """An intact frame whose one segment claims `count` elements; its sender lies."""
    frame = bytearray(gradwire.codec("none").encode(X[:2]))
    assert struct.unpack_from("<Q", frame, 24 + 16) == (2,)
    struct.pack_into("<Q", frame, 24 + 16, count)
    struct.pack_into("<Q", frame, len(frame) - 8, xxh3(bytes(frame[:-8]), len(frame) - 8))
    return bytes(frame)


def test_more_elements_than_allowed_are_refused_before_allocating():
    frame = gradwire.codec("none").encode(X)
    assert gradwire.decode(frame, max_elements=300).size == 300
    sentence = "claims 300 elements, more than max_elements = 299; if you trust its sender, raise"
    with pytest.raises(gradwire.Error, match=re.escape(sentence)) as raised:
        gradwire.decode(frame, max_elements=299)
    assert raised.value.code == "too_many_elements"
    with pytest.raises(gradwire.Error, match=re.escape(sentence)):
        gradwire.codec("none").decode(frame, max_elements=299)
    assert gradwire.decode(frame, np.empty(300, np.float32), max_elements=0).size == 300


@pytest.mark.parametrize("count", [2**31 + 1, 2**62, 2**64 - 1])
def test_absurd_claims_allocate_nothing(count):
    with pytest.raises(gradwire.Error) as raised:
        gradwire.decode(claiming(count))
    assert raised.value.code in ("too_many_elements", "corrupt")


def test_claims_that_the_payload_does_not_hold_are_corrupt():
    with pytest.raises(gradwire.Error) as raised:
        gradwire.decode(claiming(3))
    assert raised.value.code == "corrupt"

"""Arrays of every origin: used in place, or refused with a sentence that says what to pass."""

import array
import ctypes
import re

import gradwire
import numpy as np
import pytest

CODEC = gradwire.codec("none")
X = np.arange(24, dtype="float32")
FRAME = CODEC.encode(X)


class Exported:
    """Shows an array by DLPack alone, as a library that is not NumPy would."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __dlpack__(self, **options):
        return self.numbers.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.numbers.__dlpack_device__()


def says(sentence: str) -> str:
    return re.escape(sentence)


# What is taken


@pytest.mark.parametrize("shape", [(24,), (2, 12), (2, 3, 4), (1, 24, 1), (24, 1)])
def test_any_shape_is_flattened(shape):
    assert CODEC.encode(X.reshape(shape)) == FRAME
    out = np.empty(shape, np.float32)
    assert CODEC.decode(FRAME, out=out) is out
    assert (out == X.reshape(shape)).all()


def test_scalars_and_empty_arrays_are_arrays():
    assert CODEC.decode(CODEC.encode(np.array(2.5, np.float32))) == [2.5]
    for empty in (np.empty(0, np.float32), np.empty((3, 0, 2), np.float32)):
        assert CODEC.decode(CODEC.encode(empty)).shape == (0,)
        CODEC.decode_add(CODEC.encode(empty), empty)


def test_contiguous_slices_are_arrays():
    assert (CODEC.decode(CODEC.encode(X[8:16])) == X[8:16]).all()
    assert (CODEC.decode(CODEC.encode(X.reshape(4, 6)[1:3])) == X[6:18]).all()
    # Strides of dimensions with one element mean nothing.
    assert (CODEC.decode(CODEC.encode(X.reshape(4, 6)[1:2, ::1])) == X[6:12]).all()


def test_read_only_input_is_taken():
    x = X.copy()
    x.flags.writeable = False
    assert CODEC.encode(x) == FRAME


def test_dlpack_alone_is_enough():
    assert CODEC.encode(Exported(X)) == FRAME
    out = np.zeros(24, np.float32)
    CODEC.decode_add(FRAME, Exported(out))
    assert (out == X).all()


def test_buffers_of_floats_are_arrays():
    assert CODEC.encode(memoryview(X)) == FRAME
    out = array.array("f", bytes(4 * 24))
    CODEC.decode(FRAME, out=out)
    assert list(out) == list(X)


@pytest.mark.parametrize("source", ["float32", "float16"])
@pytest.mark.parametrize("target", ["float32", "float16"])
def test_out_may_have_another_dtype(source, target):
    frame = CODEC.encode(X.astype(source))
    out = np.ones(24, target)
    CODEC.decode_add(frame, out)
    assert out.dtype == target and (out == X + 1).all()
    assert (CODEC.decode(frame, out) == X).all()


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, "u1")])
def test_frames_are_any_bytes(wrap):
    assert (CODEC.decode(wrap(FRAME)) == X).all()


@pytest.mark.parametrize("spec", gradwire.codecs())
@pytest.mark.parametrize("offset", range(1, 8))
def test_frames_need_no_alignment(spec, offset):
    x = np.random.default_rng(0).standard_normal(1000).astype("float32")
    codec = gradwire.codec(spec)
    frame = codec.encode(x)
    shifted = memoryview(bytes(offset) + frame)[offset:]
    assert codec.decode(shifted).tobytes() == codec.decode(frame).tobytes()


# What is refused


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8", "bool", "complex64"])
def test_other_dtypes_are_refused(dtype):
    sentence = f"has dtype {dtype}; convert it to float32, float16 or bfloat16"
    with pytest.raises(TypeError, match=says("x " + sentence)):
        CODEC.encode(X.astype(dtype))
    with pytest.raises(TypeError, match=says("out " + sentence)):
        CODEC.decode(FRAME, out=X.astype(dtype))
    with pytest.raises(TypeError, match=says("out " + sentence)):
        CODEC.decode_add(FRAME, X.astype(dtype))
    with pytest.raises(TypeError, match=says("x " + sentence)):
        CODEC.fit(X.astype(dtype))


@pytest.mark.parametrize("x", [[1.0, 2.0], None, "text", 3.5, object(), np.float32])
def test_what_is_no_array_is_refused(x):
    with pytest.raises(TypeError, match="does not show its numbers; pass a NumPy array"):
        CODEC.encode(x)


def test_dtypes_that_nothing_exports_are_refused_by_name():
    with pytest.raises(TypeError, match=says("x (numpy.ndarray of dtype object)")):
        CODEC.encode(np.array([1.0, None]))
    with pytest.raises(TypeError, match=says("x (numpy.ndarray of dtype >f4)")):
        CODEC.encode(X.astype(">f4"))
    with pytest.raises(TypeError, match=says("x (numpy.ndarray of dtype [('a', '<f4')])")):
        CODEC.encode(np.zeros(3, [("a", "f4")]))


@pytest.mark.parametrize(
    "view",
    [X[::2], X[::-1], X.reshape(4, 6).T, X.reshape(4, 6)[:, :3], np.broadcast_to(X[:1], (24,))],
    ids=["strided", "reversed", "transposed", "columns", "broadcast"],
)
def test_non_contiguous_arrays_are_refused(view):
    with pytest.raises(ValueError, match=says("x is not C-contiguous; pass a contiguous array")):
        CODEC.encode(view)
    with pytest.raises(ValueError, match=says("out is not C-contiguous; pass a contiguous array")):
        CODEC.decode(FRAME, out=view)


def test_misaligned_arrays_are_refused():
    x = np.frombuffer(bytes(4 * 24 + 1), "u1")[1:].view("float32")
    assert x.flags.c_contiguous and not x.flags.aligned
    with pytest.raises(ValueError, match="x is not aligned .*; pass a copy"):
        CODEC.encode(x)


def test_read_only_outputs_are_refused():
    out = np.zeros(24, np.float32)
    out.flags.writeable = False
    for wrapped in (out, Exported(out), memoryview(out)):
        with pytest.raises(ValueError, match=says("out is read-only; pass an array that may be")):
            CODEC.decode(FRAME, out=wrapped)
        with pytest.raises(ValueError, match=says("out is read-only; pass an array that may be")):
            CODEC.decode_add(FRAME, wrapped)
    assert (out == 0).all()


@pytest.mark.parametrize("library", ["jaxlib._jax", "tensorflow.python"])
def test_immutable_arrays_are_read_only(library):
    """They are shared as if they could be written."""
    out = np.zeros(24, np.float32)
    immutable = type("Array", (Exported,), {"__module__": library})(out)
    with pytest.raises(ValueError, match="out is read-only"):
        CODEC.decode_add(FRAME, immutable)
    assert (out == 0).all()
    assert CODEC.encode(immutable) == CODEC.encode(out)


@pytest.mark.parametrize("count", [0, 23, 25])
def test_outputs_of_another_size_are_refused(count):
    out = np.full(count, 7, np.float32)
    sentence = f"out has {count} elements and the frame 24; pass an array of the frame's size"
    with pytest.raises(ValueError, match=says(sentence)):
        CODEC.decode(FRAME, out=out)
    with pytest.raises(ValueError, match=says(sentence)):
        CODEC.decode_add(FRAME, out)
    assert (out == 7).all()


@pytest.mark.parametrize("frame", ["text", None, 5, memoryview(FRAME)[::2]])
def test_frames_that_are_no_bytes_are_refused(frame):
    for call in (gradwire.decode, gradwire.inspect, lambda f: CODEC.decode_add(f, X.copy())):
        with pytest.raises(TypeError, match="is not contiguous bytes; pass what encode returned"):
            call(frame)


@pytest.mark.parametrize("name", ["seed", "step", "tensor", "rank", "first_element"])
def test_keys_are_whole_numbers(name):
    for value in (-1, 2**64):
        with pytest.raises(
            ValueError, match=says(f"{name} is {value}; give a whole number from 0 to 2**64 - 1")
        ):
            CODEC.encode(X, **{name: value})
    for value in (1.5, "a"):
        with pytest.raises(TypeError, match=says(f"{name} is {value!r}; give a whole number")):
            CODEC.encode(X, **{name: value})


@pytest.mark.parametrize("first", [1, 64, 127, 129])
def test_slices_start_at_multiples_of_128(first):
    with pytest.raises(ValueError, match="first_element must be a multiple of 128"):
        CODEC.encode(X, first_element=first)


# Devices


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class OnDevice:
    """Claims to be 24 float32 on a device, at an address that would crash whoever reads it."""

    def __init__(self, device_type, data=16):
        shape = (ctypes.c_int64 * 1)(24)
        self.tensor = DLTensor(data, device_type, 0, 1, 2, 32, 1, shape, None, 0, None, None)

    def __dlpack__(self, **options):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


@pytest.mark.parametrize("device_type", [2, 4, 7, 8, 10, 13, 14], ids=str)
def test_other_devices_are_refused(device_type):
    with pytest.raises(ValueError, match="x is not in the CPU's memory; copy it there first"):
        CODEC.encode(OnDevice(device_type))
    with pytest.raises(ValueError, match="out is not in the CPU's memory; copy it there first"):
        CODEC.decode_add(FRAME, OnDevice(device_type))


@pytest.mark.parametrize("device_type", [1, 3, 11], ids=["cpu", "cuda_host", "rocm_host"])
def test_memory_that_the_cpu_reads_is_taken(device_type):
    assert CODEC.encode(OnDevice(device_type, X.ctypes.data)) == FRAME

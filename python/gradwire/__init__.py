"""Gradients to few bytes and back.

    >>> import gradwire, numpy
    >>> gradient = numpy.linspace(-1, 1, 1000, dtype="float32")
    >>> codec = gradwire.codec("uniform:bits=4,bucket=128")
    >>> frame = codec.encode(gradient, seed=7, step=0)
    >>> len(frame) < gradient.nbytes / 6
    True
    >>> total = numpy.zeros(1000, dtype="float32")
    >>> codec.decode_add(frame, total)
    >>> bool(abs(total - gradient).max() < 0.02)
    True

A *codec* says how numbers become bytes; `codecs` lists them. A *frame* is what travels: bytes that
carry the encoded numbers with their codec, dtype, count and a checksum, so that a receiver needs
nothing else.

**Arrays.** Wherever an array is taken, it may be a NumPy array or anything with DLPack (a CPU
tensor of PyTorch, an array of JAX), of any shape, C-contiguous, of dtype float32, float16 or
bfloat16. It is used in place and never copied; what cannot be used in place raises with a sentence
that says what to pass.

**Threads.** Encoding and decoding release the GIL, and a codec may be used by any number of threads
at once. Do not change an array or a frame while a call uses it.

**Environment.** ``GRADWIRE_ISA`` is read when the package is imported, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _gradwire
from ._gradwire import Error, __version__
from .ranks import Communicator, Statistics, TensorStatistics, Work, check_text, connect

__all__ = [
    "Codec",
    "Communicator",
    "Error",
    "Segment",
    "Statistics",
    "TensorStatistics",
    "Traits",
    "Work",
    "__version__",
    "codec",
    "codecs",
    "connect",
    "decode",
    "encode",
    "inspect",
    "isa",
    "isas",
    "random_bits",
    "use_isa",
]

MAX_ELEMENTS = 2**31
"""How many elements `decode` allocates at most unless told otherwise: 8 GiB of float32."""


class Traits(NamedTuple):
    """What may be relied upon, whatever the numbers."""

    lossless: bool
    """Decodes to the very bits that were encoded."""
    unbiased: bool
    """The mean of the decoded value over seeds is the encoded value."""
    fixed_size: bool
    """The encoded size depends on the count alone."""
    keeps_zeros: bool
    """An exact zero decodes to an exact zero."""
    sparse: bool
    """Few numbers are sent, and all others decode to zero."""


@dataclass(frozen=True)
class Segment:
    """One tensor of a frame, as `inspect` tells it."""

    spec: str
    """The codec's text."""
    dtype: str
    """Of the numbers that were encoded: ``f32``, ``f16`` or ``bf16``."""
    count: int
    """How many numbers."""
    payload_bytes: int
    """What they take, without headers."""


class Codec:
    """How numbers become bytes; immutable. Made by `codec`, equal when all settings are.

    >>> codec("uniform:bits=2,meta=fp32")
    gradwire.codec('uniform:bits=2,bucket=128,rounding=stochastic,meta=fp32')
    """

    __slots__ = ("_native",)

    def __init__(self, spec: str) -> None:
        if not isinstance(spec, str):
            raise TypeError(f"a codec is made from a text such as 'grid:step=0.5', not {spec!r}")
        self._native = _gradwire.Codec.parse(spec)

    @property
    def spec(self) -> str:
        """The codec's text with every key written out; `codec` makes an equal one of it."""
        return self._native.spec()

    @property
    def name(self) -> str:
        """The text's first word, such as ``uniform``."""
        return self._native.name()

    @property
    def traits(self) -> Traits:
        """What may be relied upon, whatever the numbers."""
        return Traits(*self._native.traits())

    def max_frame_bytes(self, count: int) -> int:
        """No frame of `count` numbers is larger."""
        return self._native.max_frame_bytes(count)

    def fit(self, x: Any) -> Codec:
        """A codec for slices of the layer `x`.

        Statistics that must be taken over a whole layer (the ``grid`` codec's) are taken here,
        once. Codecs that need none return an equal codec.
        """
        return _wrap(self._native.fit(x))

    def encode(
        self,
        x: Any,
        *,
        seed: int = 0,
        step: int = 0,
        tensor: int = 0,
        rank: int = 0,
        first_element: int = 0,
    ) -> bytes:
        """The frame of the array `x`.

        The random numbers are a function of `seed`, `step`, `tensor`, `rank` and the element's
        index: the same arguments give the same bytes on every machine, different ones independent
        draws. To encode a slice of a tensor, pass where it starts as `first_element`, a multiple of
        128; it then draws what the whole tensor would draw.

        ``topk:values=mean`` sends the positive numbers at even steps, the negative ones at odd.
        """
        return self._native.encode(x, seed, step, tensor, rank, first_element)

    def decode(
        self,
        frame: Any,
        out: Any = None,
        *,
        segment: int | None = None,
        max_elements: int = MAX_ELEMENTS,
    ) -> Any:
        """The numbers of a frame. Like `gradwire.decode`: the frame itself says what made it."""
        return decode(frame, out, segment=segment, max_elements=max_elements)

    def decode_add(self, frame: Any, out: Any, *, segment: int | None = None) -> None:
        """Adds the numbers of a frame to the array `out`: the reduction step, in one pass.

        Sums are formed in float32 and rounded once to the dtype of `out`, which is a writable array
        of as many elements. A damaged frame raises and leaves `out` as it was.
        """
        _gradwire.decode_add(frame, out, segment)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Codec):
            return NotImplemented
        return self._native.equals(other._native)

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"gradwire.codec({self.spec!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return codec, (self.spec,)


def _wrap(native: _gradwire.Codec) -> Codec:
    wrapped = Codec.__new__(Codec)
    wrapped._native = native
    return wrapped


def codec(spec: str) -> Codec:
    """Makes a codec from ``name`` or ``name:key=value,key=value``; other keys take their defaults.

    An unknown name, key or value raises `Error`, which lists what there is.
    """
    return Codec(spec)


def codecs() -> list[str]:
    """The spec of every codec, with all keys at their defaults."""
    return _gradwire.codecs()


def encode(
    parts: Iterable[tuple[Codec, Any]],
    *,
    seed: int = 0,
    step: int = 0,
    tensor: int = 0,
    rank: int = 0,
) -> bytes:
    """One frame of several arrays, each with a codec of its own.

    >>> from numpy import ones
    >>> frame = encode([(codec("none"), ones(3, "float32")), (codec("sign"), ones(500, "float32"))])
    >>> [segment.count for segment in inspect(frame)]
    [3, 500]
    >>> decode(frame, segment=0)
    array([1., 1., 1.], dtype=float32)

    The arrays draw random numbers as the tensors numbered `tensor`, `tensor` + 1 and so on.
    """
    listed = list(parts) if isinstance(parts, Iterable) else [parts]
    for part in listed:
        if not (isinstance(part, tuple | list) and len(part) == 2 and isinstance(part[0], Codec)):
            raise TypeError("parts are pairs of a gradwire.codec(…) and an array, in a list")
    natives = [part[0]._native for part in listed]
    return _gradwire.encode_many(natives, [part[1] for part in listed], seed, step, tensor, rank)


def decode(
    frame: Any, out: Any = None, *, segment: int | None = None, max_elements: int = MAX_ELEMENTS
) -> Any:
    """The numbers of a frame: `out`, filled, or without it a new one-dimensional NumPy array.

    `frame` is bytes or anything with the buffer protocol. A damaged frame raises `Error` before
    `out` is touched.

    The new array has the dtype that was encoded, except that bfloat16 comes as float32, because
    NumPy has none. `out` is a writable array of any dtype and as many elements. Of a frame with
    several segments, `segment` says which. How many elements a frame holds is its sender's claim:
    without `out`, more than `max_elements` raise `Error`.
    """
    return _gradwire.decode(frame, out, segment, max_elements)


def inspect(frame: Any) -> list[Segment]:
    """What a frame holds, after checking that it is intact.

    >>> from numpy import zeros
    >>> inspect(codec("none").encode(zeros(10, "float16")))
    [Segment(spec='none', dtype='f16', count=10, payload_bytes=20)]
    """
    return [Segment(*fields) for fields in _gradwire.inspect(frame)]


def random_bits(
    count: int,
    *,
    seed: int = 0,
    step: int = 0,
    tensor: int = 0,
    rank: int = 0,
    first_element: int = 0,
) -> Any:
    """The 16 random bits that each of `count` elements uses under a key, as a uint16 array.

    For tests and for codecs written elsewhere; encoding needs no call of it.
    """
    return _gradwire.random_bits(count, seed, step, tensor, rank, first_element)


def isas() -> list[str]:
    """The instruction sets that this CPU and build offer, slowest first: ``scalar``, …"""
    return _gradwire.isas()


def isa() -> str:
    """The instruction set in use."""
    return _gradwire.isa()


def use_isa(name: str) -> None:
    """Uses an instruction set from now on; ``auto`` picks the best.

    All give the same bytes and the same numbers, at different speeds. For the whole process, and
    not while another thread encodes or decodes.
    """
    check_text("name", name)
    _gradwire.use_isa(name)


try:
    _gradwire.configure_from_environment()
except Error as error:
    raise ImportError(f"gradwire cannot be imported: {error}") from None

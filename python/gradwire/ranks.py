"""Ranks that compute together.

    ranks = gradwire.connect(rank=0, size=4, store="file:/shared/job42")
    work = ranks.all_reduce(gradient, "grid:step=0.5", step=step)
    ...                                    # compute something else
    work.wait()                            # gradient holds the sum; raises when a rank failed

Every rank makes the same calls in the same order, with arrays of the same sizes and dtypes. Results
are equal on all ranks to the bit. Every call ends within its timeout: a rank that died, left or
stopped is named in the `Error` on all others, after which the communicator is of no use.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import _gradwire

_MOST_LEVELS = 18
"""Lists in lists that become JSON. What is deeper, or contains itself, its reader refuses, which
takes 16.
"""


class TensorStatistics(NamedTuple):
    """What one array of an operation cost this rank, and what became of its numbers there.

    Energies are right within a millionth, and not finite where a number is not.
    """

    sent_bytes: int
    """Of all messages, those of its segments."""
    energy: float
    """The sum of squares of this rank's numbers, as it contributed them: with feedback, with what
    was kept of them before. Of a reduce_scatter those of all parts, of an all_gather this rank's
    part, of a broadcast the root's numbers. 0 where nothing travels, and without
    ``exact_energies`` where numbers travel exactly."""
    sum_energy: float
    """Of the sums that this rank finished, divided if they are, before a codec encodes them; of a
    sum that several ranks finish, one has it. Added up over all ranks, ``size * sum_energy /
    energy`` with ``average``, or else ``sum_energy / (size * energy)``, tells how far they agree:
    1 where all have the same numbers, about 1 / size where they have nothing in common."""
    residual_energy: float
    """Of what feedback keeps of the array on this rank after the operation; 0 without feedback."""
    measured_energy: float
    """Of a sample of this rank's numbers, or with ``measure_error`` of all, as far as it encoded
    them. A message is in the sample in one of 31 steps; 0 where nothing was."""
    squared_error: float
    """Of what the codec lost of those: their NMSE is squared_error / measured_energy."""
    saturated: int
    """Of those, the finite ones that decode to what is not finite."""


class Statistics(NamedTuple):
    """What an operation cost this rank."""

    sent_bytes: int
    """On the wire or in shared memory, headers included."""
    sent_messages: int
    seconds: float
    """From the call to the end."""
    tensors: tuple[TensorStatistics, ...] = ()
    """In the order of the call. The parts of a tensor count together."""


class Work:
    """An operation under way. Keeps its arrays alive; waits when it is deleted, unless Ctrl-C ended
    an earlier wait or ends this one.
    """

    __slots__ = ("_native", "_ranks")  # cleared in this order: the communicator goes last

    def __init__(self, native: _gradwire.Work, ranks: _gradwire.Communicator) -> None:
        self._native = native
        self._ranks = ranks

    def wait(self) -> None:
        """Returns when the operation is done; raises its `Error`. Releases the GIL. After Ctrl-C
        the operation goes on, and can be waited for again.
        """
        self._native.wait()

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._native.done()

    def statistics(self) -> Statistics:
        """Once done."""
        *whole, tensors = self._native.statistics()
        return Statistics(*whole, tuple(TensorStatistics(*each) for each in tensors))


def _root(value: Any, size: int) -> int:
    words = f"root is {value!r}; give a rank from 0 to {size - 1}, and a way behind it"
    return _index_below(size, value, words)


def _way_text(way: Any) -> str | None:
    if way is None or isinstance(way, str):
        return way
    if isinstance(native := getattr(way, "_native", None), _gradwire.Codec):
        return native.spec()
    raise TypeError(f"way is {way!r}; give a text such as 'sign+feedback', or gradwire.codec(…)")


def whole_number(name: str, value: Any) -> int:
    """A seed or a step; raises for what is none."""
    words = f"{name} is {value!r}; give a whole number from 0 to 2**64 - 1"
    return _index_below(2**64, value, words)


def _index_below(end: int, value: Any, words: str) -> int:
    """Raises with these words for what is no whole number from 0 to below the end."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(words) from None
    if not 0 <= number < end:
        raise ValueError(words)
    return number


def check_text(name: str, value: Any) -> None:
    """Raises for what is no text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; give a text")


def _check_switches(**switches: Any) -> None:
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}; give True or False")


def check_number(name: str, value: Any, what: str) -> None:
    """Raises for what is no number; `what` is to be given instead."""
    if not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {value!r}; give {what}")


def check_name(name: Any) -> None:
    """Raises for what is no name of an array."""
    check_text("name", name)
    if "\0" in name:
        raise ValueError(f"name is {name!r}; leave out the NUL byte")


def _checked(seed: Any, step: Any, timeout: Any) -> tuple[int, int | None, float | None]:
    """What operations have in common."""
    step = None if step is None else whole_number("step", step)
    return whole_number("seed", seed), step, _seconds(timeout)


def _seconds(timeout: Any) -> float | None:
    if timeout is not None:
        check_number("timeout", timeout, "a number of seconds, more than 0")
    return timeout


def json_of(value: Any, name: str) -> str:
    """What JSON has for a value of this name; raises, with the place in it, for what has none."""
    return json.dumps(_as_json(value, name, _MOST_LEVELS))


def _as_json(value: Any, place: str, levels: int) -> Any:
    """`place` is the expression that gives it."""
    if levels == 0:
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{place}: keys are texts, and one is {key!r}")
        return {key: _as_json(each, f"{place}[{key!r}]", levels - 1) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_as_json(each, f"{place}[{i}]", levels - 1) for i, each in enumerate(value)]
    if hasattr(value, "__index__"):  # of NumPy
        return operator.index(value)
    raise TypeError(
        f"{place} is {value!r}; plans are made of texts, whole numbers, lists and dicts"
    )


class Communicator:
    """This rank among the others. Made by `connect`.

    `x` is a writable array, as everywhere in this package, and is changed in place; `timeout` is in
    seconds, more than 0 and at most a year, None being what `connect` was given. Another `step`
    draws other random numbers; None counts the operations of this communicator. `measure_error`
    finds out what codecs lose of all of this rank's numbers, and not of a sample, for
    `Work.statistics`; it costs a decoding. `exact_energies` finds out the energies also of arrays
    that travel exactly, which costs reading them once more.

    It belongs to the process that made it: in a child of a fork it can be dropped and nothing else.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _gradwire.Communicator) -> None:
        self._native = native

    @property
    def rank(self) -> int:
        return self._native.rank

    @property
    def size(self) -> int:
        return self._native.size

    @property
    def ranks_per_host(self) -> int:
        """0 when hosts have different numbers of ranks."""
        return self._native.ranks_per_host

    def register_layers(self, layers: Mapping[str, Any]) -> None:
        """Names arrays for plans: their sizes and dtypes, as operations will have them."""
        if not isinstance(layers, Mapping):
            raise TypeError(f"layers is {layers!r}; give a dict of names and arrays")
        for name, array in layers.items():
            check_name(name)
            self._native.register_layer(name, array)

    def set_plan(self, plan: Any, from_step: int = 0) -> None:
        """From a step on, arrays without a way of their own take the plan's, by their names.

        `plan` is a path, the text of a plan, a dict like that text (docs/plan.md), or what
        ``gradwire.torch.plan`` returns. A later plan takes the place of an earlier one from its
        step on. All ranks call it together, and it waits for them: ranks that differ in plan, step
        or layers are named in an `Error` on all ranks, and nothing changes.
        """
        is_path = isinstance(plan, os.PathLike) or (isinstance(plan, str) and "{" not in plan)
        if is_path and os.fspath(plan):
            source, text = "path", os.fspath(plan)
        elif isinstance(plan, Mapping):
            source, text = "dict", json_of(plan, "plan")
        elif hasattr(plan, "json"):  # of gradwire.torch.plan(model)
            source, text = "text", plan.json()
        elif isinstance(plan, str) and plan:
            source, text = "text", plan
        else:
            raise TypeError(
                f"plan is {plan!r}; give the path of a plan's file, its text, or a dict of the same"
            )
        self._native.set_plan(source, text, whole_number("from_step", from_step))

    def all_reduce(
        self,
        x: Any,
        way: Any = None,
        *,
        name: str | Sequence[str] | None = None,
        average: bool = False,
        measure_error: bool = False,
        exact_energies: bool = False,
        seed: int = 0,
        step: int | None = None,
        timeout: float | None = None,
    ) -> Work:
        """The sum over all ranks, in place, or with `average` their mean.

        `x` may be a list of arrays that share no memory: they travel together. `way` is then one
        for all, or a list; `name`, a list likewise, tells their random numbers apart.

        A way is a codec, and behind it, if wanted: ``+feedback``, with which what the codec held
        back is added in the next call for an array of that name; and ``+route:sra``, an algorithm.
        Without a way it is the plan's, or without a plan exact. Feedback has keys, as in
        ``+feedback:momentum=0.9,reuse=5``:
        with ``momentum``, for gradients of momentum SGD, what is held back gains it as if it had
        been sent at once, so that the optimizer must add none; ``nesterov=1`` makes it Nesterov's;
        ``masking=1`` ends it where a sparse codec sent something; ``reuse`` finds out only every
        so many calls from which size on such a codec sends numbers.
        """
        _check_switches(average=average, measure_error=measure_error, exact_energies=exact_energies)
        arrays, names, ways = _listed(x, name, way)
        return Work(
            self._native.all_reduce(
                names,
                arrays,
                ways,
                average,
                measure_error,
                exact_energies,
                *_checked(seed, step, timeout),
            ),
            self._native,
        )

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        way: Any = None,
        *,
        name: str | Sequence[str] | None = None,
        measure_error: bool = False,
        exact_energies: bool = False,
        seed: int = 0,
        step: int | None = None,
        timeout: float | None = None,
    ) -> Work:
        """What the root's `x` decodes to, everywhere."""
        _check_switches(measure_error=measure_error, exact_energies=exact_energies)
        root = _root(root, self.size)
        arrays, names, ways = _listed(x, name, way)
        return Work(
            self._native.broadcast(
                names,
                arrays,
                ways,
                root,
                measure_error,
                exact_energies,
                *_checked(seed, step, timeout),
            ),
            self._native,
        )

    def reduce_scatter(
        self,
        x: Any,
        way: Any = None,
        *,
        name: str | Sequence[str] | None = None,
        average: bool = False,
        measure_error: bool = False,
        exact_energies: bool = False,
        seed: int = 0,
        step: int | None = None,
        timeout: float | None = None,
    ) -> Work:
        """Of the `size` equal parts of `x`, this rank's becomes the sum, or with `average` the
        mean; others are unspecified.

        `x` may be a list of parts of several arrays, which travel together: those of rank 0, then
        those of rank 1, and so on, equally many for each. `way` and `name` are then one for all
        arrays, or lists with one per array.
        """
        _check_switches(average=average, measure_error=measure_error, exact_energies=exact_energies)
        parts, names, ways = self._parts(x, name, way)
        return Work(
            self._native.reduce_scatter(
                names,
                parts,
                ways,
                average,
                measure_error,
                exact_energies,
                *_checked(seed, step, timeout),
            ),
            self._native,
        )

    def all_gather(
        self,
        x: Any,
        way: Any = None,
        *,
        name: str | Sequence[str] | None = None,
        measure_error: bool = False,
        exact_energies: bool = False,
        seed: int = 0,
        step: int | None = None,
        timeout: float | None = None,
    ) -> Work:
        """Of the `size` equal parts of `x`, this rank's is sent to all. `x` may be a list of parts,
        as for `reduce_scatter`.
        """
        _check_switches(measure_error=measure_error, exact_energies=exact_energies)
        parts, names, ways = self._parts(x, name, way)
        return Work(
            self._native.all_gather(
                names,
                parts,
                ways,
                measure_error,
                exact_energies,
                *_checked(seed, step, timeout),
            ),
            self._native,
        )

    def save_residuals(self) -> bytes:
        """What feedback keeps on this rank, and the count of operations, for a checkpoint.

        Raises an `Error` while an operation with feedback is under way: wait for it first.
        """
        return self._native.save_residuals()

    def load_residuals(self, saved: Any) -> None:
        """Continues with what `save_residuals` returned. Raises as that does."""
        self._native.load_residuals(saved)

    def barrier(self, *, timeout: float | None = None) -> Work:
        """Done when every rank has called it."""
        return Work(self._native.barrier(_seconds(timeout)), self._native)

    def _parts(self, x: Any, name: Any, way: Any) -> tuple[list[Any], list[str], list[str | None]]:
        """The array that is to be cut, or parts of every rank, with names and ways."""
        if not isinstance(x, list | tuple):
            return _listed(x, name, way)
        if not x or len(x) % self.size != 0:
            raise ValueError(f"{len(x)} parts for {self.size} ranks: give equally many for each")
        _, names, ways = _listed(list(x)[: len(x) // self.size], name, way)
        return list(x), names * self.size, ways * self.size


def _listed(x: Any, name: Any, way: Any) -> tuple[list[Any], list[str], list[str | None]]:
    """Arrays, names and ways, one of each per array."""
    arrays = list(x) if isinstance(x, list | tuple) else [x]
    names = list(name) if isinstance(name, list | tuple) else None
    if names is None:
        several = len(arrays) > 1 and name is not None
        names = [f"{name}{i}" if several else name or "" for i in range(len(arrays))]
    ways = list(way) if isinstance(way, list | tuple) else [way] * len(arrays)
    if not len(arrays) == len(names) == len(ways):
        raise ValueError(
            f"{len(arrays)} arrays, {len(names)} names, {len(ways)} ways: give as many of each"
        )
    for each in names:
        check_name(each)
    return arrays, names, [_way_text(each) for each in ways]


def _from_environment(argument: str, variable: str, alone: int, store: str) -> int:
    """What a launcher has set. Whoever names a store is not alone, and must not be by mistake."""
    text = os.environ.get(variable)
    if text is None and not store:
        return alone
    if text is None or not text.isdecimal():
        said = "is not set" if text is None else f"is {text!r}"
        raise ValueError(
            f"{variable} {said}: give {argument}=, or start the ranks with a launcher that sets "
            "RANK and WORLD_SIZE, such as torchrun"
        )
    return int(text)


def connect(
    rank: int | None = None,
    size: int | None = None,
    store: str = "",
    *,
    secret: str = "",
    encryption: str = "auto",
    certificate: str = "",
    private_key: str = "",
    authority: str = "",
    transport: str = "auto",
    algorithm: str = "auto",
    interface: str = "",
    port: int = 0,
    timeout: float = 60.0,
    lanes: int = 8,
    threads: int = 0,
    trace: str | os.PathLike[str] = "",
) -> Communicator:
    """Connects with the other ranks. `rank` and `size` default to what torchrun sets in RANK and
    WORLD_SIZE, or with the store ``mpi`` to MPI's.

    `store` is where ranks find one another: ``file:DIRECTORY``, a directory that all of them see,
    and that without a secret belongs to this user alone; ``tcp:HOST:PORT``, where rank 0 listens on
    what HOST is there (others do not reach a name that its /etc/hosts has for 127.0.1.1; behind NAT
    give rank 0 0.0.0.0); or ``mpi`` for jobs of mpirun and srun. `secret`
    is a text that all ranks of a job know and nobody else: without it, whoever can read the store
    can join. `encryption`, of what goes over tcp by TLS 1.3, is ``auto`` (when there is a secret or
    a certificate), ``tls`` or ``none``, and the same on all ranks. `certificate`, `private_key` and
    `authority` are PEM files for TLS by certificates rather than by the secret: this rank's, its
    key without a password, and the authority that signed all ranks'. `transport` is ``auto``
    (shared memory inside a host; between hosts tcp, or mpi if that is the store), ``shm``, ``tcp``
    or ``mpi``. `interface` picks a network interface for tcp by name or address, `port` a port.
    `timeout`, in seconds, is for connecting and for each operation; what is longer than a year, or
    infinite, is a year. `threads` encode and decode; 0
    leaves their number to the cores of this host. `trace` is a folder in which each rank leaves a
    trace when its communicator ends or fails, for ``gradwire trace`` (docs/trace.md); it is made if
    it is missing. All ranks have one, or none has.
    """
    if store == "mpi":  # gradwire asks MPI itself
        rank, size = rank or 0, 1 if size is None else size
    else:
        rank = _from_environment("rank", "RANK", 0, store) if rank is None else rank
        size = _from_environment("size", "WORLD_SIZE", 1, store) if size is None else size
    texts = {
        "store": store,
        "secret": secret,
        "encryption": encryption,
        "certificate": certificate,
        "private_key": private_key,
        "authority": authority,
        "transport": transport,
        "algorithm": algorithm,
        "interface": interface,
    }
    for name, value in texts.items():
        check_text(name, value)
    numbers = {"rank": rank, "size": size, "port": port, "lanes": lanes, "threads": threads}
    for name, value in numbers.items():
        if not hasattr(value, "__index__"):
            raise TypeError(f"{name} is {value!r}; give a whole number")
    check_number("timeout", timeout, "a number of seconds, more than 0")
    if not isinstance(trace, str | os.PathLike):
        raise TypeError(f"trace is {trace!r}; give the path of a folder")
    return Communicator(
        _gradwire.connect(
            rank,
            size,
            store,
            secret,
            encryption,
            certificate,
            private_key,
            authority,
            transport,
            algorithm,
            interface,
            port,
            timeout,
            lanes,
            threads,
            os.fspath(trace),
        )
    )

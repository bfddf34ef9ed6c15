"""Ranks wait for one another before they exchange anything: who does not come is named, soon."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch import distributed

from ._native import RankRaised

_log = logging.getLogger("gradwire")
_SECONDS_OF_SILENCE = 5
_LONGEST_PAUSE_SECONDS = 0.25
_LIKELY = "GRADWIRE=1 is not set there, or that rank compresses another model first"
_MORE_TIME = "or slow ones more time by GRADWIRE_CONNECT_TIMEOUT, in seconds"


def wait_for_all(store: distributed.Store, rank: int, ranks: list[int], seconds: float) -> None:
    """Returns when all `ranks` have called it as often, or raises `DistBackendError` with those
    that have not. A group that is made again may get the same store. Raises `RankRaised` at once
    for a rank that has left a reason for not coming.
    """
    roll = _Roll(store, "present", rank, ranks)
    reasons = _Reasons(store, rank)
    begun, pause, said = time.monotonic(), 0.001, False
    while missing := roll.missing():
        if reason := reasons.of(missing):
            roll.leave()
            leave_reason(store, rank, reason)  # for others that wait for this one
            raise RankRaised(f"gradwire: {reason}")
        waited = time.monotonic() - begun
        if waited > seconds:
            raise distributed.DistBackendError(
                f"gradwire: {_list(missing)} did not come within {seconds:g} s: {_LIKELY}; give "
                f"the same settings and calls to all ranks, {_MORE_TIME}"
            )
        if waited > _SECONDS_OF_SILENCE and not said:
            said = True
            _say_that_it_waits(rank, missing, "", seconds)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def leave_reason(store: distributed.Store, rank: int, reason: str) -> None:
    """Of this rank, which does not come: for those that wait for it. One that has heard it, or has
    left a reason of its own as often, does not hear it again: all may begin anew.
    """
    store.set(_Reasons.text_key(rank), reason)
    store.add(_Reasons.count_key(rank), 1)


class _Reasons:
    """Those that ranks have left and this one has not heard."""

    def __init__(self, store: distributed.Store, rank: int) -> None:
        self._store = store
        self._known = store.add(self.count_key(rank), 0)

    def of(self, ranks: list[int]) -> str:
        """Of one of these ranks, if there is one."""
        for rank in ranks:
            if self._store.add(self.count_key(rank), 0) > self._known:
                return self._store.get(self.text_key(rank)).decode()
        return ""

    @staticmethod
    def text_key(rank: int) -> str:
        return f"reason/{rank}"

    @staticmethod
    def count_key(rank: int) -> str:
        return f"reasons/{rank}"


@contextmanager
def called_over(
    store: distributed.Store, rank: int, ranks: list[int], timeout: timedelta, title: str
) -> Iterator[None]:
    """Around an exchange with all `ranks` before a model is compressed. Says who has not come to it
    after a while, and in a `DistBackendError` of the exchange in the place of its own words, unless
    it is a `RankRaised`: then this rank has not come either.
    """
    roll = _Roll(store, "compared", rank, ranks)

    def say() -> None:
        with suppress(RuntimeError):  # the store may have ended
            if missing := roll.missing():
                _say_that_it_waits(rank, missing, f" to compress {title}", timeout.total_seconds())

    clock = threading.Timer(_SECONDS_OF_SILENCE, say)
    clock.daemon = True
    clock.start()
    begun = time.monotonic()
    try:
        yield
    except RankRaised:
        roll.leave()
        raise
    except distributed.DistBackendError as error:
        waited = time.monotonic() - begun
        raise distributed.DistBackendError(_why(error, roll, waited, title)) from error
    finally:
        clock.cancel()


def _why(error: Exception, roll: _Roll, waited: float, title: str) -> str:
    missing: list[int] = []
    with suppress(RuntimeError):  # the store may have ended
        missing = roll.missing()
    if not missing:
        reason = str(error).removeprefix("gradwire: ")
        return f"gradwire: ranks could not compare how they compress {title}: {reason}"
    return (
        f"gradwire: {_list(missing)} did not come to compress {title}, for which this rank waited "
        f"{waited:.0f} s: {_LIKELY}, or none; give the same settings and calls of "
        f"gradwire.torch.compress, in the same order, to all ranks, {_MORE_TIME}"
    )


class _Roll:
    """Who has come, as often as this rank has."""

    def __init__(self, store: distributed.Store, name: str, rank: int, ranks: list[int]) -> None:
        self._store = store
        self._name = name
        self._rank = rank
        self._times = store.add(self._key(rank), 1)
        self._missing = [other for other in ranks if other != rank]

    def missing(self) -> list[int]:
        self._missing = [
            other for other in self._missing if self._store.add(self._key(other), 0) < self._times
        ]
        return self._missing

    def leave(self) -> None:
        """As if this rank had not come."""
        self._store.add(self._key(self._rank), -1)

    def _key(self, rank: int) -> str:
        return f"{self._name}/{rank}"


def _say_that_it_waits(rank: int, missing: list[int], what: str, seconds: float) -> None:
    _log.warning(
        "gradwire: rank %d waits for %s%s, for %g s at most; if this lasts, %s",
        rank,
        _list(missing),
        what,
        seconds,
        _LIKELY,
    )


def _list(ranks: list[int]) -> str:
    """rank 1; ranks 1, 2 and 5."""
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"

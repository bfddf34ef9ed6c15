"""Ranks wait for one another before they connect: who does not come is known, and soon."""

from __future__ import annotations

import logging
import time

from torch import distributed

_log = logging.getLogger("gradwire")
_SECONDS_OF_SILENCE = 5
_LONGEST_PAUSE_SECONDS = 0.25
_LIKELY = "GRADWIRE=1 is not set there, or that rank compresses another model first"


def wait_for_all(store: distributed.Store, rank: int, ranks: list[int], seconds: float) -> None:
    """Returns when all `ranks` have called it as often, or raises `DistBackendError` with those
    that have not. A group that is made again may get the same store.
    """
    life = store.add(_key(rank), 1)
    missing = [other for other in ranks if other != rank]
    begun, pause, said = time.monotonic(), 0.001, False
    while missing := [other for other in missing if store.add(_key(other), 0) < life]:
        waited = time.monotonic() - begun
        if waited > seconds:
            raise distributed.DistBackendError(
                f"gradwire: {_list(missing)} did not come within {seconds:g} s: {_LIKELY}; give "
                "the same settings and calls to all ranks, or slow ones more time by "
                "GRADWIRE_CONNECT_TIMEOUT, in seconds"
            )
        if waited > _SECONDS_OF_SILENCE and not said:
            said = True
            _log.warning(
                "gradwire: rank %d waits for %s, for %g s at most; if this lasts, %s",
                rank,
                _list(missing),
                seconds,
                _LIKELY,
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _key(rank: int) -> str:
    return f"present/{rank}"


def _list(ranks: list[int]) -> str:
    """rank 1; ranks 1, 2 and 5."""
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"

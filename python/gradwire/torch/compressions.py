"""The compressions of this process: one per model, whatever is wrapped around it."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any
from weakref import finalize

from torch.nn import Module

from . import stats
from ._native import Compression
from .numbered import Numbered


def _set_counters(compression: Compression, counters: Any) -> None:
    compression.counters = counters


_all: Numbered[Module, Compression, Any] = Numbered(attrgetter("counters"), _set_counters)
_stats_of_ended: list[stats.Stats] = []

of = _all.get
remove = _all.remove
save_counters = _all.save
load_counters = _all.load


def add(model: Module, who: stats.Who, make: Callable[[int], Compression]) -> Compression:
    """By its number, which stands before the names of layers: two models may have the same."""
    compression = _all.add(model, make)
    compression.who = who
    finalize(model, _keep_stats, compression).atexit = False
    return compression


def all_stats() -> list[stats.Stats]:
    """Of all models there are, and of those there were: few outlive the function that made them."""
    return [*_stats_of_ended, *map(stats.of, _all)]


def _keep_stats(compression: Compression) -> None:
    _stats_of_ended.append(stats.of(compression))

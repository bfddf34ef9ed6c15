"""The compressions of this process: one per model, whatever is wrapped around it."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from weakref import finalize

from torch.nn import Module

from . import stats
from ._native import Compression
from .numbered import Numbered


def _set_steps(compression: Compression, steps: int) -> None:
    compression.steps = steps


_all: Numbered[Module, Compression, int] = Numbered(attrgetter("steps"), _set_steps)
_stats_of_ended: list[stats.Stats] = []

of = _all.get
remove = _all.remove
save_steps = _all.save
load_steps = _all.load


def add(model: Module, make: Callable[[int], Compression]) -> Compression:
    """By its number, which stands before the names of layers: two models may have the same."""
    compression = _all.add(model, make)
    finalize(model, _keep_stats, compression).atexit = False
    return compression


def all_stats() -> list[stats.Stats]:
    """Of all models there are, and of those there were: few outlive the function that made them."""
    return [*_stats_of_ended, *map(stats.of, _all)]


def _keep_stats(compression: Compression) -> None:
    _stats_of_ended.append(stats.of(compression))

"""One connection of our own per process group, made when it is first needed."""

from __future__ import annotations

import atexit
import datetime
import itertools
from weakref import WeakKeyDictionary

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from . import settings
from ._native import Backend, Channel

_channels: WeakKeyDictionary[distributed.ProcessGroup, Channel] = WeakKeyDictionary()
_numbers: WeakKeyDictionary[Channel, int] = WeakKeyDictionary()
_next_number = itertools.count()
_saved: dict[int, bytes] = {}
_calls = 0
"""Of `all_reduce`, the same on all ranks: random numbers depend on it."""


def of(group: distributed.ProcessGroup | None) -> Channel:
    """The channel of a group; all its ranks call this together for the first time."""
    if not distributed.is_initialized():
        raise RuntimeError("call torch.distributed.init_process_group first")
    group = group or distributed.group.WORLD
    channel = _channels.get(group)
    if channel is None:
        channel = _channels[group] = _connect(group)
        _numbers[channel] = next(_next_number)
        _load_saved(channel)
    return channel


def _load_saved(channel: Channel) -> None:
    if residuals := _saved.pop(_numbers[channel], None):
        channel.load_residuals(residuals)


def all_reduce(
    group: distributed.ProcessGroup | None,
    tensor: torch.Tensor,
    codec: str,
    name: str,
    feedback: bool,
    average: bool,
) -> distributed.Work:
    """Starts one operation outside of any model."""
    global _calls
    work = of(group).all_reduce(
        tensor, codec, name, feedback=feedback, average=average, seed=0, step=_calls
    )
    _calls += 1
    return work


def _connect(group: distributed.ProcessGroup) -> Channel:
    store = distributed_c10d._get_process_group_store(group)
    backend = _backend_of(group)
    channel = Channel(
        distributed.PrefixStore("gradwire/", store),
        group.rank(),
        group.size(),
        timeout=_timeout_of(backend),
        secret=settings.secret(),
        interface=settings.interface(),
    )
    if isinstance(backend, Backend):
        backend.adopt(channel)
    return channel


def _backend_of(group: distributed.ProcessGroup):
    devices = [device.type for device in group._device_types]
    backend = group._get_backend(torch.device("cpu" if "cpu" in devices else devices[0]))
    return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL


def _timeout_of(backend) -> datetime.timedelta:
    options = getattr(backend, "options", None)
    return getattr(options, "_timeout", distributed_c10d.default_pg_timeout)


def save() -> dict[int, bytes]:
    """What feedback keeps on this rank, by the channel's number in the order of their making."""
    return {_numbers[channel]: channel.save_residuals() for channel in _channels.values()}


def save_calls() -> int:
    return _calls


def load(saved: dict[int, bytes], calls: int) -> None:
    """For the channels that there are, and for those that will be made."""
    global _calls
    _calls = calls
    _saved.clear()
    _saved.update(saved)
    for channel in _channels.values():
        _load_saved(channel)


@atexit.register
def _close_all() -> None:
    """While the interpreter lives: its threads may need it."""
    for channel in list(_channels.values()):
        channel.close()

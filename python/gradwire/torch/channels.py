"""One connection of our own per process group, made when it is first needed."""

from __future__ import annotations

import atexit
import datetime
import time

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from . import settings
from ._native import Backend, Channel
from .numbered import Numbered

GRACE_SECONDS = 0.1  # for threads of gloo, at exit
_channels: Numbered[distributed.ProcessGroup, Channel, bytes] = Numbered(
    Channel.save_residuals, Channel.load_residuals
)
_calls = 0
"""Of `all_reduce`, the same on all ranks: random numbers depend on it."""


def of(group: distributed.ProcessGroup | None) -> Channel:
    """The channel of a group; all its ranks call this together for the first time."""
    if not distributed.is_initialized():
        raise RuntimeError("call torch.distributed.init_process_group first")
    group = group or distributed.group.WORLD
    return _channels.get(group) or _channels.add(group, lambda _: _connect(group))


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


save_residuals = _channels.save  # what feedback keeps on this rank
load_residuals = _channels.load


def save_calls() -> int:
    return _calls


def load_calls(calls: int) -> None:
    global _calls
    _calls = calls


@atexit.register
def _close_all() -> None:
    """While the interpreter lives: threads may need it. Those of gloo do for tensors of the last
    exchange, and abort the process if they come too late, when a model still holds their group.
    """
    for channel in _channels:
        channel.close()
    time.sleep(GRACE_SECONDS)

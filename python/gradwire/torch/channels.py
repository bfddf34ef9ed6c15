"""One connection of our own per process group, made when it is first needed."""

from __future__ import annotations

import atexit
import datetime
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from . import presence, settings
from ._native import Backend, Channel
from .numbered import Numbered


class Calls:
    """How often `all_reduce` was called in one group, by name; the same on all its ranks.

    Random numbers depend on it, and which sign ``topk:values=mean`` sends: so a tensor's calls must
    not depend on what else is reduced between them.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}
        self.agreed = True
        """Whether ranks know that they have the same: not after each has loaded its own."""

    def save(self) -> dict[str, int]:
        return dict(self.by_name)

    def load(self, saved: dict[str, int]) -> None:
        self.by_name = dict(saved)
        self.agreed = False


GRACE_SECONDS = 0.1  # for threads of gloo, at exit
_channels: Numbered[distributed.ProcessGroup, Channel, bytes] = Numbered(
    Channel.save_residuals, Channel.load_residuals
)
_calls: Numbered[distributed.ProcessGroup, Calls, dict[str, int]] = Numbered(Calls.save, Calls.load)


def of(group: distributed.ProcessGroup | None) -> Channel:
    """The channel of a group; all its ranks call this together for the first time."""
    if not distributed.is_initialized():
        raise RuntimeError("call torch.distributed.init_process_group first")
    if group == distributed.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not in the group; only its ranks make this call")
    if not isinstance(group, distributed.ProcessGroup | None):
        raise TypeError(
            f"group is {group!r}; give what torch.distributed.new_group returned, or none for all "
            "ranks"
        )
    group = group or distributed.group.WORLD
    return _channels.get(group) or _channels.add(group, lambda _: _connect(group))


@contextmanager
def reason_left(groups: Iterable[distributed.ProcessGroup]) -> Iterator[None]:
    """Around what a rank does before it compares with the others of these groups how they compress
    a model: if it is wrong on this rank alone, they hear why at once.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        rank = distributed.get_rank()
        reason = f"rank {rank} raised: {error}"
        for group in groups:
            with suppress(RuntimeError, ValueError):  # the store may have ended, or the channel
                if channel := _channels.get(group):
                    channel.give_up(reason)
                else:
                    presence.leave_reason(store_of(group), rank, reason)
        raise


def all_reduce(
    group: distributed.ProcessGroup | None,
    tensor: torch.Tensor,
    way: str,
    name: str,
    average: bool,
) -> distributed.Work:
    """Starts one operation outside of any model."""
    group = group or distributed.group.WORLD
    channel = of(group)
    calls = _calls.get(group) or _calls.add(group, lambda _: Calls())
    if not calls.agreed:
        _compare(group, channel, calls)
    step = calls.by_name.get(name, 0)
    work = channel.all_reduce(tensor, way, name, average=average, seed=0, step=step)
    calls.by_name[name] = step + 1
    return work


def _compare(group: distributed.ProcessGroup, channel: Channel, calls: Calls) -> None:
    """Raises `ValueError` on all ranks unless they have made the same calls in the job before."""
    ranks = distributed.get_process_group_ranks(group)
    told = [json.loads(text) for text in channel.all_gather_text(json.dumps(calls.by_name))]
    for rank, other in zip(ranks, told, strict=True):
        for name in {**told[0], **other}:
            had, has = told[0].get(name, 0), other.get(name, 0)
            if had != has:
                raise ValueError(
                    f"gradwire: ranks do not agree: rank {rank} has made {has} calls of all_reduce "
                    f"with the name {name[1:]!r} where rank {ranks[0]} has made {had}; load "
                    "checkpoints of the same step on all ranks (gradwire.torch.load_state_dict)"
                )
    calls.agreed = True


def _connect(group: distributed.ProcessGroup) -> Channel:
    """Within a time of its own: a rank that does not come is no reason to wait for half an hour."""
    store = store_of(group)
    timeout = connect_timeout(group)
    ranks = distributed.get_process_group_ranks(group)
    presence.wait_for_all(store, distributed.get_rank(), ranks, timeout.total_seconds())
    backend = _backend_of(group)
    channel = Channel(
        store,
        group.rank(),
        group.size(),
        timeout=_timeout_of(backend),
        connect_timeout=timeout,
        secret=settings.secret(),
        interface=settings.interface(),
        trace=settings.trace(),
        job_ranks=ranks,
    )
    if isinstance(backend, Backend):
        backend.adopt(channel)
    return channel


def store_of(group: distributed.ProcessGroup) -> distributed.Store:
    """Our part of the one that the group's ranks share."""
    return distributed.PrefixStore("gradwire/", distributed_c10d._get_process_group_store(group))


def connect_timeout(group: distributed.ProcessGroup) -> datetime.timedelta:
    """How long its ranks wait for one another before they exchange anything."""
    seconds = _timeout_of(_backend_of(group)).total_seconds()
    return datetime.timedelta(seconds=settings.connect_seconds(seconds))


def _backend_of(group: distributed.ProcessGroup):
    devices = [device.type for device in group._device_types]
    return backend_of(group, "cpu" if "cpu" in devices else devices[0])


def backend_of(group: distributed.ProcessGroup, device: str):
    backend = group._get_backend(torch.device(device))
    return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL


def _timeout_of(backend) -> datetime.timedelta:
    options = getattr(backend, "options", None)
    return getattr(options, "_timeout", distributed_c10d.default_pg_timeout)


were_made = _channels.were_numbered
save_residuals = _channels.save  # what feedback keeps on this rank
load_residuals = _channels.load


save_calls = _calls.save  # by group and name
load_calls = _calls.load


@atexit.register
def _close_all() -> None:
    """While the interpreter lives: threads may need it. Those of gloo do for tensors of the last
    exchange, and abort the process if they come too late, when a model still holds their group.
    """
    for channel in _channels:
        channel.close()
    time.sleep(GRACE_SECONDS)

"""Makes the backend of a process group."""

from __future__ import annotations

import datetime
import functools

import gradwire_autoload as autoload
import torch
from torch import distributed
from torch.distributed import PrefixStore, ProcessGroupGloo, distributed_c10d

from . import channels, fsdp, report
from ._native import Backend


def create(options, given) -> Backend:
    """For ``register_backend``: gloo, and nccl where there is CUDA, behind a backend of ours."""
    autoload.watch()
    fsdp.watch()
    report.joined(options.group_rank, options.group_size)
    _open_monitored_barrier()
    cpu = ProcessGroupGloo(
        PrefixStore("gloo/", options.store),
        options.group_rank,
        options.group_size,
        timeout=options.timeout,
    )
    return Backend(options.group_rank, options.group_size, _placed(cpu, options), _nccl(options))


def _nccl(options):
    if not (torch.cuda.is_available() and distributed.is_nccl_available()):
        return None
    from torch.distributed import ProcessGroupNCCL

    inner = ProcessGroupNCCL.Options()
    inner._timeout = options.timeout
    nccl = ProcessGroupNCCL(
        PrefixStore("nccl/", options.store), options.group_rank, options.group_size, inner
    )
    return _placed(nccl, options)


def _placed(inner, options):
    """As torch.distributed does for backends that it makes itself."""
    inner.options.global_ranks_in_group = options.global_ranks_in_group
    inner.options.group_name = options.group_id
    inner._set_sequence_number_for_group()
    return inner


def _is_ours(group) -> bool:
    on_cpu = "cpu" in [device.type for device in group._device_types]
    return on_cpu and isinstance(channels.backend_of(group, "cpu"), Backend)


@functools.cache
def _open_monitored_barrier() -> None:
    """torch.distributed.monitored_barrier refuses groups by the name of their backend; not ours."""
    refusing = distributed_c10d.monitored_barrier

    @functools.wraps(refusing)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        stranger = distributed_c10d._rank_not_in_group(group)
        if stranger or not _is_ours(group or distributed.group.WORLD):
            return refusing(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = distributed_c10d.default_pg_timeout
        elif isinstance(timeout, float):  # Not documented, but taken.
            timeout = datetime.timedelta(seconds=timeout)
        group = group or distributed.group.WORLD
        return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    distributed.monitored_barrier = distributed_c10d.monitored_barrier = monitored_barrier

"""Makes the backend of a process group."""

from __future__ import annotations

import gradwire_autoload as autoload
import torch
from torch import distributed
from torch.distributed import PrefixStore, ProcessGroupGloo

from ._native import Backend


def create(options, given) -> Backend:
    """For ``register_backend``: gloo, and nccl where there is CUDA, behind a backend of ours."""
    autoload.watch()
    cpu = ProcessGroupGloo(
        PrefixStore("gloo/", options.store),
        options.group_rank,
        options.group_size,
        timeout=options.timeout,
    )
    backend = Backend(options.group_rank, options.group_size, _placed(cpu, options), _nccl(options))
    return backend


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

"""Runs a function on several ranks of torch.distributed, each a process.

Processes are forked from one that has imported PyTorch, which saves seconds per rank.
"""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import gradwire_autoload as autoload
import torch
from torch import distributed

DEADLINE_SECONDS = 240
USUAL_CODEC = "grid:step=0.5"
"""Of models whose script does not say how: what "auto" chooses depends on the machine."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch._dynamo", "torch.distributed.tensor", "gradwire.torch"])


class RankFailed(AssertionError):
    """Somebody raised; the text has the traceback."""


def on_ranks(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    backend: str = "gloo",
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """``function(rank, *args)`` on every rank of a new process group; what they returned.

    A rank that was killed returns the negative signal.
    """
    call = _packed(args)
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_run,
                args=(theirs, f"{folder}/store", rank, size, backend, environment, function, call),
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return [_result(*each) for each in zip(pipes, processes, strict=True)]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _result(pipe, process) -> Any:
    if not pipe.poll(DEADLINE_SECONDS):
        raise RankFailed(f"no answer in {DEADLINE_SECONDS} s")
    try:
        good, value = pipe.recv()
    except EOFError:
        process.join()
        return process.exitcode
    if not good:
        raise RankFailed(value)
    value = _unpacked(value)
    process.join(DEADLINE_SECONDS)
    if process.exitcode != 0:
        raise RankFailed(f"exit code {process.exitcode} after {value}")
    return value


def _run(pipe, store, rank, size, backend, environment, function, call) -> None:
    os.environ.update(environment or {}, RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.setdefault("GRADWIRE_CODEC", USUAL_CODEC)
    import torch

    autoload.autoload()  # again, with this environment
    torch.set_num_threads(1)
    try:
        distributed.init_process_group(
            backend, store=distributed.FileStore(store, size), rank=rank, world_size=size
        )
        distributed.barrier()  # gloo fails where a rank leaves while others still connect to it
        value = function(rank, *_unpacked(call))
        if distributed.is_initialized():
            distributed.destroy_process_group()
        pipe.send((True, _packed(value)))
    except BaseException:
        pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))


def _packed(value: Any) -> bytes:
    """Not as PyTorch pickles tensors for other processes: by files that go with their maker."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> Any:
    return torch.load(io.BytesIO(packed), weights_only=False)


def digest(model) -> str:
    """Of all parameters, to the bit."""
    total = hashlib.sha256()
    for parameter in model.parameters():
        total.update(parameter.detach().contiguous().view(-1).numpy().tobytes())
    return total.hexdigest()

"""Compressed gradients for PyTorch.

Without a change to the script::

    gradwire run --nproc-per-node 4 train.py

By one line::

    torch.distributed.init_process_group("gradwire")

Or for one model, with a say in how::

    model = DistributedDataParallel(model)
    gradwire.torch.compress(model, codec="grid:step=0.5", exact=["*embedding*"])

Gradients are compressed and nothing else: `torch.distributed.all_reduce` and all other collectives
stay exact, whatever the backend. Biases, norms and small layers travel exactly, too.
"""

from __future__ import annotations

from . import version_check

version_check.check()  # before anything that needs torch or the native module

import atexit
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gradwire_autoload as autoload
import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

import gradwire

from . import channels, compressions, ddp, fsdp, residual_settings, settings
from . import stats as _stats
from ._native import enter_exact, leave_exact, merge_residuals
from .settings import DEFAULT_CODEC
from .stats import LayerStats, Stats

__all__ = [
    "LayerStats",
    "Stats",
    "all_reduce",
    "compress",
    "exact",
    "load_state_dict",
    "reshard",
    "residual",
    "state_dict",
    "stats",
]

autoload.register()


def compress(
    model: torch.nn.Module,
    codec: str = DEFAULT_CODEC,
    *,
    exact: Iterable[str] = (),
    codecs: Mapping[str, str] | None = None,
    feedback: bool = False,
    seed: int = 0,
    weights: str | None = None,
) -> torch.nn.Module:
    """Compresses the gradients of a model in DistributedDataParallel or `fully_shard`; returns it.

    All ranks call it together, with the same arguments, after wrapping the model and before the
    first backward pass; and again, between steps, to change them.

    `exact` and the keys of `codecs` are patterns as in a shell, matched against the names that
    ``named_parameters()`` of the wrapped model gives: layers that travel exactly, and layers with a
    codec of their own (the first that matches). `feedback` keeps what a codec held
    back and adds it in the next step; then save `state_dict` with your checkpoints. `seed` is that
    of stochastic rounding.
    `weights` is for `fully_shard` only: the codec of the weights that ranks gather from one another
    before they compute, such as ``uniform:bits=8``; without it they travel exactly.
    """
    chosen = settings.Settings(codec, **_patterns(exact, codecs), feedback=feedback, seed=seed)
    wrapped = model.module if isinstance(model, DistributedDataParallel) else model
    _check(chosen, wrapped, [codec, *([weights] if weights else [])])
    if isinstance(model, FSDPModule):
        fsdp.compress(model, chosen, weights)
        return model
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"{type(model).__name__} is not distributed; wrap it in DistributedDataParallel, or "
            "shard it with torch.distributed.fsdp.fully_shard, first"
        )
    if weights is not None:
        raise ValueError("DistributedDataParallel sends no weights; leave out `weights`")
    ddp.compress(model, chosen)
    return model


def residual(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    density: float = 0.001,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    masking: bool = False,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    warmup: int = 0,
    ramp: bool = False,
    values: str = "fp32",
    reuse: int = 1,
    link: str = "100mbit",
    small: str = DEFAULT_CODEC,
    exact: Iterable[str] = (),
    codecs: Mapping[str, str] | None = None,
    seed: int = 0,
) -> DistributedDataParallel:
    """Sends the largest `density` of a model's gradients, and the rest later; returns the model.

    For links so slow that `compress` still waits for them. All that is not sent stays on its rank
    and grows until it is: save `state_dict` with your checkpoints. `momentum`, `nesterov` and
    `weight_decay` are those of torch.optim.SGD, in whose place they act, before anything is sent:
    `optimizer` must be an SGD without momentum. `masking` ends the momentum of numbers that are
    sent, as Deep Gradient Compression does; try it if a training diverges.

    In the first `warmup` steps gradients travel whole, through the codec `small`, or with `ramp` in
    densities that fall from 25 %. `clip` limits the norm of all gradients together, which then wait
    for the end of the backward pass: each rank's own to its share, clip / sqrt(ranks).
    `values` is how the numbers travel: fp32, fp16, int8 or mean. `reuse` finds out only every so
    many steps from which size on they are sent, which saves some computing.
    Small layers take the codec `small`, as do those that it would carry faster over the `link`.
    `exact`, `codecs` and `seed` are as in `compress`.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"residual compression is for DistributedDataParallel, and this is "
            f"{type(model).__name__}; wrap the model first"
        )
    chosen = residual_settings.Settings(
        **_patterns(exact, codecs),
        seed=seed,
        momentum=momentum,
        nesterov=nesterov,
        masking=masking,
        weight_decay=weight_decay,
        clip=clip,
        density=density,
        values=values,
        reuse=reuse,
        link=link,
        ranks=model.process_group.size(),
        small=small,
        warmup=warmup,
        ramp=ramp,
    )
    residual_settings.bytes_per_second(link)
    residual_settings.check_numbers(chosen)
    residual_settings.check_optimizer(optimizer, chosen)
    residual_settings.check_parameters(model.module)
    _check(chosen, model.module, [small, chosen.sparse(density)])
    ddp.compress(model, chosen)
    return model


def all_reduce(
    tensor: torch.Tensor,
    codec: str = DEFAULT_CODEC,
    *,
    op: str = "sum",
    name: str = "",
    feedback: bool = False,
    group: distributed.ProcessGroup | None = None,
    async_op: bool = False,
) -> distributed.Work | None:
    """The compressed sum (or ``op="mean"``) of a tensor over all ranks of the group, in place.

    With `async_op` it returns a ``Work`` at once; ``wait()`` for it before using the tensor.
    `feedback` needs a `name`, by which the next call finds what this one held back.
    """
    if op not in ("sum", "mean"):
        raise ValueError(f"op is {op!r}; take 'sum' or 'mean'")
    if feedback and not name:
        raise ValueError("feedback needs a name, the same in every step")
    spec = gradwire.codec(codec).spec
    work = channels.all_reduce(group, tensor, spec, f"/{name}", feedback, op == "mean")
    if async_op:
        return work
    work.wait()
    return None


@contextmanager
def exact() -> Iterator[None]:
    """Gradients whose backward pass runs inside travel exactly. The same on all ranks."""
    enter_exact()
    try:
        yield
    finally:
        leave_exact()


def state_dict() -> dict[str, Any]:
    """What a run needs to go on exactly where it stopped. Each rank saves its own.

    Residuals of feedback and counters, of all models and groups of the process in the order in
    which they were first compressed.
    """
    return {
        "version": 1,
        "residuals": _as_tensors(channels.save_residuals()),
        "calls": channels.save_calls(),
        "counters": compressions.save_counters(),
    }


def reshard(states: list[Mapping[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """The state of one of `ranks` ranks, from the `states` of all ranks of the job before.

    So a job can go on with more ranks or fewer: nothing that was held back is lost, and it weighs
    as much as before in averages over all ranks. (What `all_reduce` held back is taken to be parts
    of a sum.)
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks} ranks")
    if not states:
        raise ValueError("there are no states; give those of all ranks of the job before")
    for state in states:
        _check_version(state)
    mine = states[rank::ranks]
    numbers = {number for state in states for number in state["residuals"]}
    scale = ranks / len(states)
    residuals = {
        number: merge_residuals([bytes(s["residuals"][number].numpy()) for s in mine], scale)
        for number in sorted(numbers)
    }
    return {**states[0], "residuals": _as_tensors(residuals)}


def load_state_dict(state: Mapping[str, Any]) -> None:
    """Goes on from `state_dict`, before the first step; models may be compressed later."""
    _check_version(state)
    residuals = {number: bytes(saved.numpy()) for number, saved in state["residuals"].items()}
    channels.load_residuals(residuals)
    channels.load_calls(state["calls"])
    compressions.load_counters(state["counters"])


def stats(model: torch.nn.Module) -> Stats:
    """What compression saved so far, by layer; ``print`` it."""
    compression = compressions.of(model)
    if compression is None:
        raise ValueError(
            "this model is not compressed; call gradwire.torch.compress(model), or run the script "
            "with `gradwire run` and a forward pass first"
        )
    return _stats.of(compression)


def _as_tensors(residuals: dict[int, bytes]) -> dict[int, torch.Tensor]:
    return {
        number: torch.frombuffer(bytearray(saved), dtype=torch.uint8)
        for number, saved in residuals.items()
    }


def _check_version(state: Mapping[str, Any]) -> None:
    if state.get("version") != 1:
        raise ValueError(f"this state has version {state.get('version')}; only 1 is known")


def _patterns(exact: Iterable[str], codecs: Mapping[str, str] | None) -> dict[str, Any]:
    if isinstance(exact, str):  # its letters would be patterns, and "*" among them matches all
        raise TypeError(f"exact takes a list of patterns; write exact=[{exact!r}]")
    return {"exact": tuple(exact), "codecs": dict(codecs or {})}


def _check(chosen: settings.Settings, model: torch.nn.Module, specs: list[str]) -> None:
    """Raises, before ranks wait for one another."""
    for spec in (*specs, *chosen.codecs.values()):
        gradwire.codec(spec)
    chosen.check_patterns([name for name, _ in model.named_parameters()])


@atexit.register
def _say_what_was_sent() -> None:
    if not settings.wants_summary():
        return
    for found in compressions.all_stats():
        if found.sent_bytes:
            print(
                f"gradwire: {found.steps} steps; rank 0 sent {_stats.human(found.sent_bytes)} "
                f"instead of {_stats.human(found.bytes)} ({found.ratio:.1f} times less)",
                file=sys.stderr,
            )

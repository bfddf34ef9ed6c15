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

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import gradwire_autoload as autoload
import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.ranks import check_name, whole_number

from . import channels, compressions, ddp, fsdp, layers, report, residual_settings, settings
from . import stats as _stats
from ._native import Plan, Way, enter_exact, leave_exact, merge_residuals
from .settings import AUTO, DEFAULT_CODEC
from .stats import LayerStats, Stats

__all__ = [
    "LayerStats",
    "Plan",
    "Stats",
    "all_reduce",
    "compress",
    "exact",
    "load_state_dict",
    "loss",
    "plan",
    "reshard",
    "residual",
    "state_dict",
    "stats",
]

Function = TypeVar("Function", bound=Callable)

autoload.resolve_paths()
autoload.register()
autoload.watch()  # for models from files, which another process has compressed


def _groups_of(model: Any) -> list[distributed.ProcessGroup]:
    """In which ranks compress it."""
    model = layers.unwrapped(model)
    if isinstance(model, FSDPModule):
        return fsdp.process_groups(model)
    return [model.process_group] if isinstance(model, DistributedDataParallel) else []


def _tells_others(function: Function) -> Function:
    """If it raises on one rank alone, the others, which wait for that, hear why."""

    @functools.wraps(function)
    def call(model, *args, **options):
        with channels.reason_left(_groups_of(model)):
            if "feedback" in options:
                raise TypeError(
                    "feedback is no argument: write it behind a codec, as in 'sign+feedback'"
                )
            return function(model, *args, **options)

    return call


@_tells_others
def compress(
    model: torch.nn.Module,
    codec: str | gradwire.Codec | None = None,
    *,
    exact: Iterable[str] = (),
    codecs: Mapping[str, str | gradwire.Codec] | None = None,
    plan: str | os.PathLike | Mapping[str, Any] | Plan | None = None,
    seed: int = 0,
    weights: str | gradwire.Codec | None = None,
) -> torch.nn.Module:
    """Compresses the gradients of a model in DistributedDataParallel or `fully_shard`; returns it.

    All ranks call it together, with the same arguments, after wrapping the model and before the
    first backward pass; and again, between steps, to change them. Ranks that differ are named in a
    `ValueError` on all ranks. The model may be inside torch.compile.

    `exact` and the keys of `codecs` are patterns as in a shell, matched against the names that
    ``named_parameters()`` of the wrapped model gives: layers that travel exactly, and layers with a
    codec of their own (the first that matches). ``+feedback`` behind a codec, as in
    ``sign+feedback``, keeps what it held back and adds it in the next step; then save `state_dict`
    with your checkpoints. ``+route:ring`` behind it names an algorithm. `seed` is that of
    stochastic rounding.

    `plan` takes the place of all these: the path of a file that says how every layer travels, from
    which step on, and why (docs/plan.md), a dict of the same, or what `plan` returned.

    Without a codec, or with ``"auto"``, the training decides: its first steps are exact and are
    timed, then plans are tried in turns, and the one with the shortest steps stays. Where
    compression would not make steps shorter, gradients travel exactly. Where the codec is ``grid``,
    each layer gets its own `step`, finer the more there is to learn from its gradient
    (docs/adapt.md). ``"adapt"`` does this from the first step on, for all layers that are worth it,
    and times nothing.

    `weights` is for `fully_shard` only: the codec of the weights that ranks gather from one another
    before they compute, such as ``uniform:bits=8``; without it they travel exactly.
    """
    seed = whole_number("seed", seed)
    weights = None if weights is None else _spec("weights", weights)
    patterns = _patterns(exact, codecs)
    if plan is None:
        codec = AUTO if codec is None else _spec("codec", codec)
        chosen = settings.Settings(codec, **patterns, seed=seed)
    elif codec is not None or any(patterns.values()):
        raise ValueError("a plan says how every layer travels: leave out the other arguments")
    else:
        chosen = settings.Settings(plan=settings.plan_text(plan), seed=seed)
    inner = layers.unwrapped(model)
    if isinstance(inner, FSDPModule):
        _check(chosen, inner, [chosen.way, *([weights] if weights else [])])
        fsdp.compress(inner, chosen, weights)
        return model
    if not isinstance(inner, DistributedDataParallel):
        raise TypeError(_why_not(inner))
    if weights is not None:
        raise ValueError("DistributedDataParallel sends no weights; leave out `weights`")
    _check(chosen, inner.module, [chosen.way])
    ddp.compress(inner, chosen)
    ddp.remember(inner, chosen)
    return model


@_tells_others
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
    small: str | gradwire.Codec = DEFAULT_CODEC,
    exact: Iterable[str] = (),
    codecs: Mapping[str, str | gradwire.Codec] | None = None,
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
    `exact`, `codecs` and `seed` are as in `compress`. A model with a plan is refused: that says how
    its layers travel.
    """
    inner = layers.unwrapped(model)
    if not isinstance(inner, DistributedDataParallel):
        raise TypeError(
            f"residual compression is for DistributedDataParallel, and this is "
            f"{type(inner).__name__}; wrap the model first"
        )
    small = _spec("small", small)
    chosen = residual_settings.Settings(
        **_patterns(exact, codecs),
        seed=whole_number("seed", seed),
        momentum=momentum,
        nesterov=nesterov,
        masking=masking,
        weight_decay=weight_decay,
        clip=clip,
        density=density,
        values=values,
        reuse=reuse,
        link=link,
        ranks=inner.process_group.size(),
        small=small,
        warmup=warmup,
        ramp=ramp,
    )
    residual_settings.check_numbers(chosen)
    chosen.policy()
    residual_settings.check_optimizer(optimizer, chosen)
    residual_settings.check_trains(optimizer, inner, chosen)
    residual_settings.check_parameters(inner)
    _check(chosen, inner.module, [small])
    ddp.compress(inner, chosen)
    residual_settings.expect_optimizer(optimizer, inner, chosen)
    ddp.remember(inner, chosen)
    return model


def all_reduce(
    tensor: torch.Tensor,
    codec: str | gradwire.Codec = DEFAULT_CODEC,
    *,
    op: str = "sum",
    name: str = "",
    group: distributed.ProcessGroup | None = None,
    async_op: bool = False,
) -> distributed.Work | None:
    """The compressed sum (or ``op="mean"``) of a tensor over all ranks of the group, in place.

    With `async_op` it returns a ``Work`` at once; ``wait()`` for it before using the tensor.
    A codec with ``+feedback`` needs a `name`, by which the next call finds what this one held back.
    """
    check_name(name)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"all_reduce takes a torch.Tensor, and this is {type(tensor).__name__}; of a NumPy "
            "array give torch.from_numpy(array)"
        )
    if op not in ("sum", "mean"):
        raise ValueError(f"op is {op!r}; take 'sum' or 'mean'")
    way = Way(_spec("codec", codec))
    if way.has_feedback and not name:
        raise ValueError("feedback needs a name, the same in every step")
    work = channels.all_reduce(group, tensor, way.text, f"/{name}", op == "mean")
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


def loss(value: float | torch.Tensor) -> None:
    """Reports this rank's loss, once in every step, anywhere in it.

    Where all ranks do, and their mean leaps, the gradients of models whose codecs are adapted
    travel exactly for some steps (docs/adapt.md). Without it their gradients alone are watched.
    """
    compressions.count_loss(float(value.detach() if isinstance(value, torch.Tensor) else value))


def state_dict() -> dict[str, Any]:
    """What a run needs to go on exactly where it stopped. Each rank saves its own.

    Residuals of feedback and counters, of all models and groups of the process in the order in
    which they were first compressed.
    """
    return {
        "version": 2,
        **_place(),
        "residuals": _as_tensors(channels.save_residuals()),
        "calls": channels.save_calls(),
        "counters": compressions.save_counters(),
    }


def reshard(states: list[Mapping[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """The state of one of `ranks` ranks, from the `states` of all ranks of the job before.

    So a job can go on with more ranks or fewer: nothing that was held back is lost, and it weighs
    as much as before in averages over all ranks. What ``codec="auto"`` has chosen is chosen anew.
    (What `all_reduce` held back is taken to be parts
    of a sum.)
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks} ranks")
    if not states:
        raise ValueError("there are no states; give those of all ranks of the job before")
    for state in states:
        _check_version(state)
    for place, state in enumerate(states):
        if (state["rank"], state["ranks"]) != (place, len(states)):
            raise ValueError(
                f"state {place} of {len(states)} is of rank {state['rank']} of {state['ranks']}; "
                "give those of all ranks of the job before, in their order"
            )
    _check_keep_no_shards(states)
    mine = states[rank::ranks]
    numbers = {number for state in states for number in state["residuals"]}
    scale = ranks / len(states)
    residuals = {
        number: merge_residuals([bytes(s["residuals"][number].numpy()) for s in mine], scale)
        for number in sorted(numbers)
    }
    placed = {"version": 2, "rank": rank, "ranks": ranks}
    counters = {
        number: compressions.without_choice(state)
        for number, state in states[0]["counters"].items()
    }
    return {**states[0], **placed, "residuals": _as_tensors(residuals), "counters": counters}


def load_state_dict(state: Mapping[str, Any]) -> None:
    """Goes on from `state_dict`, before the first step; models may be compressed later.

    Raises for the state of another rank, or of another number of ranks: see `reshard`.
    """
    _check_version(state)
    _check_place(state)
    residuals = {number: bytes(saved.numpy()) for number, saved in state["residuals"].items()}
    channels.load_residuals(residuals)
    channels.load_calls(state["calls"])
    compressions.load_counters(state["counters"])


def stats(model: torch.nn.Module) -> Stats:
    """What compression saved so far, by layer; ``print`` it."""
    return _stats.of(_compression_of(model))


def plan(model: torch.nn.Module) -> Plan:
    """How every layer of a compressed model travels, from which step on, and why.

    ``plan(model).json()`` is the text of a file, to keep and to edit (docs/plan.md). `compress`
    takes it, and with the same `seed` makes of it what it made of its own arguments, to the bit.
    """
    compression = _compression_of(model)
    return compression.chosen_plan or compression.plan


def _compression_of(model: torch.nn.Module) -> Any:
    compression = compressions.of(layers.unwrapped(model))
    if compression is None:
        raise ValueError(
            "this model is not compressed; call gradwire.torch.compress(model), or run the script "
            "with `gradwire run` and a forward pass first"
        )
    return compression


def _as_tensors(residuals: dict[int, bytes]) -> dict[int, torch.Tensor]:
    return {
        number: torch.frombuffer(bytearray(saved), dtype=torch.uint8)
        for number, saved in residuals.items()
    }


def _check_version(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping):
        raise TypeError(f"state is {state!r}; give what gradwire.torch.state_dict() returned")
    if state.get("version") != 2:
        raise ValueError(f"this state has version {state.get('version')}; only 2 is known")


def _check_keep_no_shards(states: list[Mapping[str, Any]]) -> None:
    """Raises when feedback keeps something of a model of FSDP2, whose counters are a pair."""
    empty = len(merge_residuals([], 1.0))
    kept = any(each.numel() > empty for state in states for each in state["residuals"].values())
    counters = map(compressions.without_choice, states[0]["counters"].values())
    if kept and any(isinstance(each, tuple) for each in counters):
        raise ValueError(
            "these states are of an FSDP2 model with feedback, whose shards are others with "
            "another number of ranks: before saving them make one more step after "
            "gradwire.torch.compress(model, 'none'), which sends what was held back"
        )


def _place() -> dict[str, int]:
    if not distributed.is_initialized():
        raise RuntimeError("call torch.distributed.init_process_group first")
    return {"rank": distributed.get_rank(), "ranks": distributed.get_world_size()}


def _check_place(state: Mapping[str, Any]) -> None:
    here = _place()
    if {key: state[key] for key in here} != here:
        raise ValueError(
            f"this state is of rank {state['rank']} of {state['ranks']}, and this is rank "
            f"{here['rank']} of {here['ranks']}: load on each rank what it saved; for another "
            "number of ranks, gradwire.torch.reshard([all states], rank, ranks) makes one of them"
        )


def _spec(name: str, codec: str | gradwire.Codec) -> str:
    """The text of a codec."""
    if isinstance(codec, gradwire.Codec):
        return codec.spec
    if isinstance(codec, str):
        return codec
    raise TypeError(
        f"{name} is {codec!r}; give a codec's text such as {DEFAULT_CODEC!r}, or gradwire.codec(…)"
    )


def _patterns(
    exact: Iterable[str], codecs: Mapping[str, str | gradwire.Codec] | None
) -> dict[str, Any]:
    if isinstance(exact, str):  # its letters would be patterns, and "*" among them matches all
        raise TypeError(f"exact takes a list of patterns; write exact=[{exact!r}]")
    patterns = tuple(exact) if isinstance(exact, Iterable) else (exact,)
    if not all(isinstance(each, str) for each in patterns):
        raise TypeError(f"exact is {exact!r}; give a list of patterns such as ['head.*']")
    if not isinstance(codecs, Mapping | None):
        raise TypeError(
            f"codecs is {codecs!r}; give patterns and codecs, as in {{'head.*': 'fp16'}}"
        )
    if not all(isinstance(pattern, str) for pattern in codecs or ()):
        raise TypeError(f"codecs is {codecs!r}; its keys are patterns such as 'head.*'")
    chosen = {
        pattern: _spec(f"codecs[{pattern!r}]", spec) for pattern, spec in (codecs or {}).items()
    }
    return {"exact": tuple(sorted(patterns)), "codecs": chosen}  # sets differ between processes


def _why_not(model: torch.nn.Module) -> str:
    """Why `compress` does not take a model."""
    if isinstance(model, FullyShardedDataParallel):
        return f"this model uses {report.FSDP1}"
    if any(base.__module__.endswith("_composable.replicate") for base in type(model).__mro__):
        return (
            "this model has replicate(), and compress takes DistributedDataParallel: use that, or "
            "GRADWIRE=1, which compresses models of replicate() as well"
        )
    return (
        f"{type(model).__name__} is not distributed; wrap it in DistributedDataParallel, or shard "
        "it with torch.distributed.fsdp.fully_shard, first"
    )


def _check(chosen: settings.Settings, model: torch.nn.Module, specs: list[str]) -> None:
    """Raises, before ranks wait for one another."""
    for spec in (*specs, *chosen.codecs.values()):
        settings.checked_way(spec)
    chosen.check_patterns([name for name, _ in layers.named(model)])


report.speak_at_end()

"""All ranks compress the same model in the same way, or say who differs before anything is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from torch import distributed, nn

import gradwire

from . import channels, presence, residual_settings, settings

_MOST_RANKS_NAMED = 4
_HEARD = "heard"
"""Under this name a rank passes on what it found in another group."""
_RESIDUAL = "residual compression"


def check(
    groups: Iterable[distributed.ProcessGroup],
    title: str,
    chosen: settings.Settings,
    named: Iterable[tuple[str, nn.Parameter]],
    **more: Any,
) -> None:
    """All ranks of the groups, those of one mesh, call it together for the model of this `title`.

    Raises `ValueError` on all of them, or on none: a rank that finds a difference tells its other
    groups of it before it raises, as they would wait for it in vain.
    """
    layers = {
        f"layer {i}": f"{name} {tuple(each.shape)} of {each.dtype}"
        for i, (name, each) in enumerate(named)
    }
    shape = hashlib.sha256(repr(layers).encode()).hexdigest()
    residual = isinstance(chosen, residual_settings.Settings)
    mine = {"gradwire": gradwire.__version__, _RESIDUAL: "on" if residual else "off"}
    mine["plan"] = chosen.plan  # before what it stands for
    mine |= {name: _text(value) for name, value in {**asdict(chosen), **more}.items()}
    found = ""
    for group in groups:
        found = _compare(group, title, {**mine, "layers": shape}, layers, found)
    if found:
        raise ValueError(
            f"gradwire: ranks do not agree: {found}; give the same settings, and the same model, "
            "to all of them"
        )


def _compare(
    group: distributed.ProcessGroup,
    title: str,
    mine: dict[str, str],
    layers: dict[str, str],
    found: str,
) -> str:
    """What some rank of the group has found in another one, or else what this group finds."""
    told = _gather(group, title, {**mine, _HEARD: found})
    heard = [each.pop(_HEARD, "") for each in told]
    if any(heard):
        return next(filter(None, heard))
    differing = _differences(group, told)
    if any(key == "layers" for key, _ in differing):
        differing = _differences(group, _gather(group, title, layers))
    said = [text for _, text in differing[:_MOST_RANKS_NAMED]]
    if len(differing) > len(said):
        said.append(f"and {len(differing) - len(said)} more ranks differ")
    return "; ".join(said)


def _differences(
    group: distributed.ProcessGroup, told: list[dict[str, str]]
) -> list[tuple[str, str]]:
    """Of each rank that is not like the first: what it differs in, and a sentence about it."""
    first, *others = told
    lowest, *ranks = distributed.get_process_group_ranks(group)
    found = []
    for rank, other in zip(ranks, others, strict=True):
        keys = [key for key in {**first, **other} if first.get(key) != other.get(key)]
        if keys:
            has, had = (_phrase(keys[0], each) for each in (other, first))
            how = " (--residual, or gradwire.torch.residual)" if keys[0] == _RESIDUAL else ""
            found.append((keys[0], f"rank {rank} has {has} where rank {lowest} has {had}{how}"))
    return found


def _phrase(key: str, told: dict[str, str]) -> str:
    value = told.get(key, "nothing")
    if key == "plan":
        name = hashlib.sha256(value.encode()).hexdigest()[:8] if value else ""
        return f"the plan {name} (by its hash)" if name else "no plan"
    return f"{key} {value}" if key == _RESIDUAL else f"{key}={value}"


def _gather(
    group: distributed.ProcessGroup, title: str, mine: dict[str, Any]
) -> list[dict[str, Any]]:
    """What all ranks of the group say, in their order."""
    channel = channels.of(group)
    ranks = distributed.get_process_group_ranks(group)
    timeout = channels.connect_timeout(group)
    store = channels.store_of(group)
    with presence.called_over(store, distributed.get_rank(), ranks, timeout, title):
        texts = channel.all_gather_text(json.dumps(mine), timeout)
        return [_read(text, rank) for text, rank in zip(texts, ranks, strict=True)]


def _read(text: str, rank: int) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise distributed.DistBackendError(
            f"rank {rank} sent what is no settings: does it run the same version of gradwire?"
        )
    return told


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)

"""All ranks compress the same model in the same way, or say who differs before anything is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from torch import distributed, nn

import gradwire

from . import channels, settings

_MOST_RANKS_NAMED = 4


def check(
    group: distributed.ProcessGroup,
    chosen: settings.Settings,
    named: Iterable[tuple[str, nn.Parameter]],
    **more: Any,
) -> None:
    """All ranks of the group call it together. Raises `ValueError` on all, or on none."""
    layers = {
        f"layer {i}": f"{name} {tuple(each.shape)} of {each.dtype}"
        for i, (name, each) in enumerate(named)
    }
    shape = hashlib.sha256(repr(layers).encode()).hexdigest()
    mine = {"gradwire": gradwire.__version__, "way": type(chosen).__module__.rsplit(".")[-1]}
    mine |= {name: _text(value) for name, value in {**asdict(chosen), **more}.items()}
    differing = _differences(group, {**mine, "layers": shape})
    if any(key == "layers" for key, _ in differing):
        differing = _differences(group, layers)
    if not differing:
        return
    said = [text for _, text in differing[:_MOST_RANKS_NAMED]]
    if len(differing) > len(said):
        said.append(f"and {len(differing) - len(said)} more ranks differ")
    raise ValueError(
        f"gradwire: ranks do not agree: {'; '.join(said)}; give the same settings, and the same "
        "model, to all of them"
    )


def _differences(group: distributed.ProcessGroup, mine: dict[str, str]) -> list[tuple[str, str]]:
    """Of each rank that is not like the first: what it differs in, and a sentence about it."""
    first, *others = map(json.loads, channels.of(group).all_gather_text(json.dumps(mine)))
    lowest, *ranks = distributed.get_process_group_ranks(group)
    found = []
    for rank, other in zip(ranks, others, strict=True):
        keys = [key for key in {**first, **other} if first.get(key) != other.get(key)]
        if keys:
            has, had = (each.get(keys[0], "nothing") for each in (other, first))
            found.append(
                (
                    keys[0],
                    f"rank {rank} has {keys[0]}={has} where rank {lowest} has {keys[0]}={had}",
                )
            )
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)

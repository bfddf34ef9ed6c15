"""All ranks compress the same model in the same way, or say who differs before anything is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from torch import distributed, nn

import gradwire

from . import channels, presence, residual_settings, settings
from ._native import RankRaised

_MOST_RANKS_NAMED = 4
_HEARD = "heard"
"""Under this name a rank passes on what it found in another group."""
_RESIDUAL = "residual compression"
_WAY = "way of "
"""Before the name of a layer."""
_CHOICE = "choice"
_STEP = "step"
"""Under this name a rank says that it exchanges gradients, from which step on."""


class _Found(NamedTuple):
    """Why ranks do not go on: nothing, that they differ, or that one has raised an error."""

    text: str = ""
    raised: bool = False


def check(
    groups: Iterable[distributed.ProcessGroup],
    title: str,
    chosen: settings.Settings,
    named: Iterable[tuple[str, nn.Parameter]],
    **more: Any,
) -> None:
    """All ranks of the groups, those of one mesh, call it together for the model of this `title`.

    Raises `ValueError` on all of them, or on none: a rank that finds a difference tells its other
    groups of it before it raises, as they would wait for it in vain. Likewise `RankRaised` for one
    that has raised an error before it came here.
    """
    named = list(named)
    layers = {
        f"layer {i}": f"{name} {tuple(each.shape)} of {each.dtype}"
        for i, (name, each) in enumerate(named)
    }
    ways = _ways(chosen, [name for name, _ in named])
    shape = _hash(repr(layers))
    residual = isinstance(chosen, residual_settings.Settings)
    mine = {"gradwire": gradwire.__version__, _RESIDUAL: "on" if residual else "off"}
    given = {**asdict(chosen), **more}
    # Before what it stands for. By its ways: what a plan gives as reasons is for people.
    mine["plan"] = _hash(repr(ways)) if given.pop("plan") else ""
    mine |= {name: _text(value) for name, value in given.items()}
    found = _Found()
    for group in groups:
        try:
            found = _compare(group, title, {**mine, "layers": shape}, layers, ways, found)
        except RankRaised as error:
            found = _Found(str(error), raised=True)
    if found.raised:
        raise RankRaised(found.text)
    if found.text:
        raise ValueError(
            f"gradwire: ranks do not agree: {found.text}; give the same settings, and the same "
            "model, to all of them"
        )


def check_steps(
    groups: Iterable[distributed.ProcessGroup],
    title: str,
    step: int,
    step_before: int,
    choice: str,
) -> None:
    """All ranks of the groups call it together, before an exchange of the model of this `title`.

    Raises `ValueError` as `check` does unless they are at the same step and have the same `choice`
    of a plan, on which ways and random numbers depend. Waits as long as an exchange does: this is
    part of one. `step_before` is where this rank was before it loaded a checkpoint, and others
    still are if they have loaded none.
    """
    found = ""
    for group in groups:
        found = _compare_steps(group, title, step, step_before, choice, found)
    if found:
        raise ValueError(
            f"gradwire: ranks do not agree: {found} of {title}; load checkpoints of the same step "
            "on all ranks (gradwire.torch.load_state_dict)"
        )


def _compare_steps(
    group: distributed.ProcessGroup,
    title: str,
    step: int,
    step_before: int,
    choice: str,
    found: str,
) -> str:
    """As `_compare`."""
    ranks = distributed.get_process_group_ranks(group)
    try:
        texts = channels.of(group).all_gather_text(
            json.dumps({_STEP: step, _CHOICE: _hash(choice), _HEARD: found})
        )
        told = [_read(text, rank, _STEP) for text, rank in zip(texts, ranks, strict=True)]
    except distributed.DistBackendError as error:
        reason = str(error).removeprefix("gradwire: ")
        raise distributed.DistBackendError(
            f"gradwire: ranks could not compare at which step of {title} they are: rank "
            f"{distributed.get_rank()} is at step {step} and, before it loaded a checkpoint, was "
            f"at step {step_before}, where others may be still; call "
            f"gradwire.torch.load_state_dict on all ranks, between the same steps ({reason})"
        ) from error
    if heard := next(filter(None, (each[_HEARD] for each in told)), ""):
        return heard
    steps = [each[_STEP] for each in told]
    here = f"where rank {ranks[0]} is at step {steps[0]}"
    differing = _joined(
        [
            f"rank {rank} is at step {at} {here}"
            for rank, at in zip(ranks, steps, strict=True)
            if at != steps[0]
        ]
    )
    if differing:
        return differing
    choices = [each.get(_CHOICE) for each in told]
    for rank, other in zip(ranks, choices, strict=True):
        if other != choices[0]:
            return f"rank {rank} goes on with another choice of a plan than rank {ranks[0]}"
    return ""


def _compare(
    group: distributed.ProcessGroup,
    title: str,
    mine: dict[str, str],
    layers: dict[str, str],
    ways: dict[str, str],
    found: _Found,
) -> _Found:
    """What some rank of the group has found in another one, or else what this group finds."""
    told = _gather(group, title, {**mine, _HEARD: found})
    heard = [_Found(*each.pop(_HEARD, _Found())) for each in told]
    if any(each.text for each in heard):
        return next(each for each in heard if each.text)
    differing = _differences(group, told)
    keys = {key for key, _ in differing}
    if "layers" in keys:
        differing = _differences(group, _gather(group, title, layers))
    elif "plan" in keys and all(each["plan"] for each in told):
        differing = _differences(group, _gather(group, title, ways)) or differing
    return _Found(_joined([text for _, text in differing]))


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


def _joined(differing: list[str]) -> str:
    """Sentences about ranks, or some of them."""
    said = differing[:_MOST_RANKS_NAMED]
    if len(differing) > len(said):
        said.append(f"and {len(differing) - len(said)} more ranks differ")
    return "; ".join(said)


def _phrase(key: str, told: dict[str, str]) -> str:
    value = told.get(key, "nothing")
    if key == "plan":
        return f"the plan {value[:8]} (by its hash)" if value else "no plan"
    if key.startswith(_WAY):
        return f"{value} for {key.removeprefix(_WAY)} in its plan"
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


def _read(text: str, rank: int, about: str = "") -> dict[str, Any]:
    """What a rank has said, about its step or about what it compresses."""
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise distributed.DistBackendError(
            f"rank {rank} sent what is no settings: does it run the same version of gradwire?"
        )
    if (_STEP in told) != (about == _STEP):
        does = "compresses a model" if about == _STEP else "exchanges gradients"
        raise distributed.DistBackendError(f"rank {rank} {does} meanwhile")
    return told


def _ways(chosen: settings.Settings, names: list[str]) -> dict[str, str]:
    """By a plan, if there is one, in words."""
    if not chosen.plan:
        return {}
    plan = settings.parsed_plan(chosen.plan)
    return {
        f"{_WAY}{name}": ", ".join(
            f"from step {step} on {way}" if step else way for step, way, _ in plan.stages_of(name)
        )
        for name in names
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)

"""What users see on stderr: at first what is compressed and how, at the end what that saved.

Rank 0 of a model's group says it, with ``GRADWIRE_SUMMARY=1``, or by the logger ``gradwire`` where
that shows information.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import gradwire_autoload as autoload
from torch.distributed.fsdp import FullyShardedDataParallel

import gradwire

from . import channels, compressions, residual_settings, settings
from ._native import Compression, Plan, Way, least_sparse_elements, matches, on_trial
from .stats import Stats, Who, human

FSDP1 = (
    "FSDP1 (FullyShardedDataParallel), which gradwire does not compress: use fully_shard and "
    "gradwire.torch.compress(model), or DistributedDataParallel"
)
_COMPRESSED = 1.02
"""What an exact exchange sends instead of what was sent, if anything was compressed at all."""
_log = logging.getLogger("gradwire")
_joined: list[tuple[int, int]] = []
"""Rank and ranks of the groups that were made while gradwire was asked for."""
_obstacles: list[str] = []
_patterns: dict[tuple[str, str], bool] = {}
"""Those of the environment, where they stand, and whether a layer of any model matched."""


def joined(rank: int, ranks: int) -> None:
    """A process group was made: from now on, somebody wants to know if nothing is compressed."""
    _joined.append((rank, ranks))
    _watch_fsdp1()
    speak_at_end()


def obstacle(why: str) -> None:
    """Why a model is not compressed, for the end."""
    if why not in _obstacles:
        _obstacles.append(why)


def first_exchange(found: Stats, chosen: settings.Settings, trained: set[str], plan: Plan) -> None:
    """What will be compressed, of the layers that are trained, and how: in the last stage of the
    `plan`."""
    if not found.who.is_first:
        return
    speak_at_end()
    sizes = {name: layer.elements for name, layer in found.layers.items() if name in trained}
    _warn_of_losses(found.who.model, plan, list(sizes))
    last = {name: Way(plan.stages_of(name)[-1][1]) for name in sizes}
    written = {Way(text).text: text for text in (chosen.way, *chosen.codecs.values())}
    if chosen.adapted:
        written[Way(chosen.adapted).text] = "grid, as fine as each layer needs it"
    counts, elements = Counter(), Counter()
    for name, way in last.items():
        if not way.lossless:
            text = written.get(way.text, way.short_text)
            counts[text] += 1
            elements[text] += sizes[name]
    ways = []
    for text, size in elements.most_common():
        share = f"{100 * size / sum(sizes.values()):.0f} %"
        of_all = f" of {len(sizes)} layers ({share} of the gradients) travel"
        ways.append(f"{counts[text]}{f' ({share})' if ways else of_all} as {text}")
    if not ways:
        ways.append(f"all {len(sizes)} layers travel exactly")
    elif len(sizes) > counts.total():
        ways.append("the others exactly")
    ranks = "one rank" if found.who.ranks == 1 else f"{found.who.ranks} ranks"
    more = _from_step(chosen, trained)
    if (
        found.who.ranks > 1
        and not found.choice
        and any(plan.stages_of(name)[-1][2] == on_trial for name in sizes)
    ):
        more = " at first, while plans are tried"
    if isinstance(chosen, residual_settings.Settings):
        more += _none_sparse(sizes, last)
    _say(f"{found.who.model}: {', '.join(ways)}{more}; {ranks}")


def choices_of(compression: Compression) -> Callable[[str], None]:
    """Hears what is chosen for the model of a compression, which owns this."""
    owner = ref(compression)

    def hear(outcome: str) -> None:
        compression = owner()
        if compression and compression.who.is_first:
            _say(f"{compression.who.model}, step {compression.steps - 1}: {outcome}")
            _save_plan(compression.number, compression.chosen_plan)

    return hear


def _save_plan(number: int, plan: Plan) -> None:
    """Where the user wants it; behind the first model's with the number of a later one."""
    if not (path := settings.saved_plan_path()):
        return
    if number:
        stem, suffix = os.path.splitext(path)
        path = f"{stem}-{number}{suffix}"
    unfinished = Path(f"{path}.unfinished")
    try:
        unfinished.write_text(plan.json())
        unfinished.replace(path)
    except OSError as error:
        _log.warning("gradwire: cannot write the plan to %s: %s", path, error)


def _warn_of_losses(model: str, plan: Plan, names: list[str]) -> None:
    for name in names:
        for _, text, _ in plan.stages_of(name):
            if (way := Way(text)).loses_what_it_does_not_send:
                _warn_of_loss(model, way.short_text)


@functools.cache
def _warn_of_loss(model: str, way: str) -> None:
    _log.warning(
        "gradwire: %s travels as %s, which trains badly, as what it does not send is lost: write "
        "%s+feedback, or use gradwire.torch.residual (gradwire run --residual)",
        model,
        way,
        way,
    )


def _from_step(chosen: settings.Settings, trained: set[str]) -> str:
    """Since when a plan has layers travel so, if not from the beginning."""
    if not chosen.plan:
        return ""
    plan = settings.parsed_plan(chosen.plan)
    step = max((plan.stages_of(name)[-1][0] for name in trained), default=0)
    return f"; so from step {step} on, by a plan" if step else "; by a plan"


def _none_sparse(sizes: dict[str, int], ways: dict[str, Way]) -> str:
    """That residual compression has nothing to do, if so."""
    if any(way.codec.startswith("topk") for way in ways.values()):
        return ""
    least = least_sparse_elements
    if all(size < least for size in sizes.values()):
        return f"; no layer has {least} numbers, so residual compression takes none"
    return "; residual compression takes no layer: the large ones are exact, or faster otherwise"


def patterns_of_environment(chosen: settings.Settings, model: str, names: list[str]) -> None:
    """Warns of patterns that match no layer of a model. They may be meant for another one, which
    the script makes later: at the end it is said which matched none of any.
    """
    given = [(pattern, "--exact or GRADWIRE_EXACT", []) for pattern in chosen.exact]
    if chosen.plan:
        entries = settings.parsed_plan(chosen.plan).entries()
        given += [(pattern, place, [pattern]) for pattern, place in entries]
    for pattern, place, own in given:
        matched = any(name in own or matches(pattern, name) for name in names)
        _patterns[pattern, place] = matched or _patterns.get((pattern, place), False)
        if not matched:
            _log.warning(
                "gradwire: no layer of %s matches %r of %s; there are, for instance, %s",
                model,
                pattern,
                place,
                ", ".join(names[:5]),
            )


def by_script(who: Who) -> None:
    """A script compresses a model by a call of its own, in the place of a plan that was given."""
    if who.is_first and settings.plan_path():
        _say_that_plan_is_not_used(who.model, settings.plan_path())


@functools.cache
def _say_that_plan_is_not_used(model: str, path: str) -> None:
    _log.warning(
        "gradwire: %s does not travel by the plan %s (--plan or GRADWIRE_PLAN), as the script says "
        "itself how it does: leave out one of them, or give the plan to "
        "gradwire.torch.compress(model, plan=...)",
        model,
        path,
    )


def speak_at_end() -> None:
    """In this process, which may be the child of one that will, too."""
    _speak_at_end_of(os.getpid())


@functools.cache
def _speak_at_end_of(process: int) -> None:
    autoload.at_end(at_end)


def has_its_own_words() -> bool:
    """Whether something was compressed, or `at_end` says why nothing was."""
    return bool(_joined or compressions.all_stats()) or channels.were_made()


def at_end() -> None:
    """One line per model, or one that says why there is none."""
    every = compressions.all_stats()
    for found in every:
        if found.who.is_first:
            _say(f"{found.who.model}: {_outcome(found)}")
    if not every and _joined and _joined[0][0] == 0:
        _say(f"nothing was compressed, because {_why_nothing()}")
    for number, plan in compressions.all_plans():
        _save_plan(number, plan)
    for (pattern, place), matched in _patterns.items():
        if not matched:
            _say(f"no layer of any model matched {pattern!r} of {place}")


def _outcome(found: Stats) -> str:
    if found.who.ranks == 1:
        return "nothing was compressed, because there is one rank"
    if not found.sent_bytes:
        return "nothing was compressed, because no backward pass ran"
    sent = (
        f"{found.steps} steps; rank {found.who.rank} sent {human(found.sent_bytes)} instead of "
        f"{human(found.bytes)} ({found.ratio:.1f} times less)"
    )
    if all(gradwire.codec(layer.codec).traits.lossless for layer in found.layers.values()):
        if found.ratio > _COMPRESSED:
            return f"{sent}; at the end all layers travelled exactly"
        return f"{sent}: nothing was compressed, because all layers travel exactly"
    return sent


def _why_nothing() -> str:
    if _joined[0][1] == 1:
        return "there is one rank"
    if _obstacles:
        return "; ".join(_obstacles)
    return "no model in DistributedDataParallel or fully_shard ran a backward pass"


@functools.cache
def _watch_fsdp1() -> None:
    original = FullyShardedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        obstacle(f"the script uses {FSDP1}")
        original(self, *args, **kwargs)

    FullyShardedDataParallel.__init__ = __init__


def _say(line: str) -> None:
    if settings.wants_summary():
        sys.stderr.write(f"gradwire: {line}\n")  # at once, as other ranks write there, too
        sys.stderr.flush()
    else:
        _log.info("gradwire: %s", line)

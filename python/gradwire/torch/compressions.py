"""The compressions of this process: one per model, whatever is wrapped around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import finalize

from torch.nn import Module

from . import stats
from ._native import Compression, Plan
from .numbered import Numbered


def _state_of(compression: Compression) -> Any:
    """Its counters, and what was chosen for it, if somebody chooses."""
    if chosen := compression.save_choice():
        adapting = compression.save_adapting()
        return {"counters": compression.counters, "plan": chosen, "adapting": adapting}
    return compression.counters


def without_choice(state: Any) -> Any:
    """The counters alone: what another number of ranks goes on from."""
    return state["counters"] if isinstance(state, dict) else state


def _set_state(compression: Compression, state: Any) -> None:
    done = stats.steps_of(compression)
    compression.step_before_load = compression.steps
    compression.counters = without_choice(state)
    if isinstance(state, dict):
        compression.load_choice(state["plan"], state.get("adapting"))
    if compare := getattr(compression, "compare_steps", None):
        compression.before_first_exchange = compare  # the first from here on
    compression.steps_of_earlier_runs = compression.steps - done


_all: Numbered[Module, Compression, Any] = Numbered(_state_of, _set_state)
_stats_of_ended: list[stats.Stats] = []
_plans_of_ended: list[tuple[int, Plan]] = []

of = _all.get
number = _all.number
remove = _all.remove
save_counters = _all.save
load_counters = _all.load


def add(model: Module, who: stats.Who, make: Callable[[int], Compression]) -> Compression:
    """By its number, which stands before the names of layers: two models may have the same."""
    return _kept(model, who, _all.add(model, make))


def hold(model: Module, who: stats.Who, compression: Compression) -> Compression:
    """It gets its number by `number`, before its first exchange: a model that one rank alone runs
    forward gets none, so numbers stay the same on all ranks."""
    return _kept(model, who, _all.hold(model, compression))


def count_loss(loss: float) -> None:
    """What the loss of the step that runs is, of all models."""
    for compression in _all:
        compression.count_loss(loss)


def all_stats() -> list[stats.Stats]:
    """Of all models there are, and of those there were: few outlive the function that made them.
    Models that nobody trains, such as copies for evaluation, are left out beside others."""
    every = [*_stats_of_ended, *map(stats.of, _all)]
    return [each for each in every if each.steps] or every


def all_plans() -> list[tuple[int, Plan]]:
    """Of all models that there are, and of those there were, for which this rank speaks: by their
    numbers, how they travelled."""
    return [*_plans_of_ended, *(_plan_of(each) for each in _all if _has_plan(each))]


def _has_plan(compression: Compression) -> bool:
    return compression.who.is_first and compression.number is not None


def _plan_of(compression: Compression) -> tuple[int, Plan]:
    return compression.number, compression.chosen_plan or compression.plan


def check_scaler() -> None:
    """Raises when a loss is scaled while feedback keeps something, or will."""
    if any(each.has_feedback() for each in _all):
        raise ValueError(
            "gradients of a model are compressed with feedback, which does not go with a loss "
            "scaler: what was held back would be in the scale of an earlier step, and a step that "
            "the scaler skips would lose what was sent. Train in bfloat16, which needs no scaler, "
            "or compress without feedback"
        )


def _kept(model: Module, who: stats.Who, compression: Compression) -> Compression:
    compression.who = who
    compression.step_before_load = compression.steps
    finalize(model, _keep_stats, compression).atexit = False
    return compression


def _keep_stats(compression: Compression) -> None:
    found = stats.of(compression)
    if found.steps:
        _stats_of_ended.append(found)
        if _has_plan(compression):
            _plans_of_ended.append(_plan_of(compression))

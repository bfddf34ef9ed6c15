"""Steps of optimizers, which are looked at before they are made while residuals have the momentum.

What an optimizer does may change after residual compression began: a checkpoint or a schedule
brings momentum back, or a script goes on with another optimizer.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary, ref

import torch
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import optimizers


@dataclass(frozen=True)
class _Expected:
    """Who trains a model with residual compression, and how."""

    optimizer: ref[torch.optim.Optimizer]
    parameters: frozenset[int]
    """Of the model: their identities, which are theirs while it lives."""
    check: Callable[[torch.optim.Optimizer], None]
    lacks: Callable[[dict], bool]
    """Whether residuals have momentum or weight decay of a parameter group."""


_expected: WeakKeyDictionary[Ddp, _Expected] = WeakKeyDictionary()


def expect(
    model: Ddp,
    optimizer: torch.optim.Optimizer,
    check: Callable[[torch.optim.Optimizer], None],
    lacks: Callable[[dict], bool],
) -> None:
    """From now on the model is trained by this optimizer, or by others that are like it. `check`
    raises when one does otherwise than residuals expect.
    """
    parameters = frozenset(map(id, model.parameters()))
    _expected[model] = _Expected(ref(optimizers.unwrapped(optimizer)), parameters, check, lacks)
    _watch()


def forget(model: Ddp) -> None:
    _expected.pop(model, None)


@functools.cache
def _watch() -> None:
    register_optimizer_step_pre_hook(_before_step)


@torch.compiler.disable
def _before_step(optimizer: torch.optim.Optimizer, *_) -> None:
    if not _expected:
        return
    optimizer = optimizers.unwrapped(optimizer)
    _check_has_no_others(optimizer)
    own = [each for each in _expected.values() if each.optimizer() is optimizer]
    for each in own:
        each.check(optimizer)
    if own:
        _check_lacks_nothing(optimizer, own)


def _check_has_no_others(optimizer: torch.optim.Optimizer) -> None:
    """Raises when it has parameters of a model that another one trains, and does otherwise."""
    if _fault_for_others(optimizer) is None:
        return
    gc.collect()  # a model that a new one has replaced lives on until then
    if fault := _fault_for_others(optimizer):
        raise ValueError(
            f"{type(optimizer).__name__} would make a step with parameters of a model with "
            "residual compression, which has the momentum of another optimizer: make steps by that "
            "one, or by a plain torch.optim.SGD without momentum; under `gradwire run --residual` "
            "make one optimizer, before the first forward pass"
        ) from fault


def _fault_for_others(optimizer: torch.optim.Optimizer) -> Exception | None:
    for other in _expected.values():
        if other.optimizer() is optimizer or not _trains(optimizer, other.parameters):
            continue
        try:
            other.check(optimizer)
        except (TypeError, ValueError) as fault:
            return fault
    return None


def _trains(optimizer: torch.optim.Optimizer, parameters: frozenset[int]) -> bool:
    return any(
        parameter.requires_grad and id(parameter) in parameters
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _check_lacks_nothing(optimizer: torch.optim.Optimizer, own: list[_Expected]) -> None:
    """Raises when it has gradients of models whose momentum nobody has."""
    known = own[0].parameters.union(*(each.parameters for each in own[1:]))
    for group in optimizer.param_groups:
        strays = [each for each in group["params"] if id(each) not in known]
        if any(each.requires_grad and each.grad is not None for each in strays) and any(
            each.lacks(group) for each in own
        ):
            raise ValueError(
                "residual compression has the momentum of this optimizer, which has parameters of "
                "other models, too, and would train these without momentum and weight decay: call "
                "gradwire.torch.residual for these models with the same optimizer, or make an "
                "optimizer for each model"
            )

"""The optimizer of a script that says nothing of residual compression."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch

TAKEN = "gradwire"
"""Of a parameter group: what was taken over from it. It is saved with the optimizer, so that a run
which goes on from there still knows."""


class NotSound(ValueError):
    """Why residual compression would train something else than the script wants, and what to do."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"residual compression cannot be put under this script: {why}; run it without "
            "--residual, or call gradwire.torch.residual in it"
        )


@dataclass(frozen=True)
class TakenOver:
    """What SGD would have done, and what residuals do instead."""

    momentum: float
    nesterov: bool
    weight_decay: dict[str, float]


def take_over(model: torch.nn.Module) -> TakenOver:
    """Takes momentum and weight decay from the one optimizer of a model's parameters."""
    optimizer = _find(model)
    for group in optimizer.param_groups:
        _check(group)
    if any("momentum_buffer" in state for state in optimizer.state.values()):
        raise NotSound("its optimizer has gained momentum already, without residuals")
    taken = [
        group.get(TAKEN) or {key: group[key] for key in ("momentum", "nesterov", "weight_decay")}
        for group in optimizer.param_groups
    ]
    if len({(each["momentum"], each["nesterov"]) for each in taken}) > 1:
        raise NotSound("its optimizer has groups of different momentum")
    for group, each in zip(optimizer.param_groups, taken, strict=True):
        group.update({TAKEN: each, "momentum": 0, "nesterov": False, "weight_decay": 0})
    decay = {
        parameter: group[TAKEN]["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return TakenOver(
        taken[0]["momentum"],
        taken[0]["nesterov"],
        {
            name: decay[parameter]
            for name, parameter in model.named_parameters()
            if parameter in decay
        },
    )


def check_own_momentum(model: torch.nn.Module) -> None:
    """Raises when the model's optimizer comes from a run whose residuals had its momentum."""
    for optimizer in _all_of(model):
        for group in optimizer.param_groups:
            if TAKEN in group:
                raise ValueError(
                    "the optimizer's checkpoint is of a run with --residual, which had taken over "
                    f"its {', '.join(f'{key}={value}' for key, value in group[TAKEN].items())}: "
                    "run it with --residual again, or set these after loading and delete "
                    f"group[{TAKEN!r}] from its param_groups"
                )


def _all_of(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Among all objects there are: no model knows who trains it."""
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    found = []
    for one in gc.get_objects():
        if not issubclass(type(one), torch.optim.Optimizer):
            continue
        if trained & {parameter for group in one.param_groups for parameter in group["params"]}:
            found.append(one)
    return found


def _find(model: torch.nn.Module) -> torch.optim.Optimizer:
    found = _all_of(model)
    if not found:
        raise NotSound("no optimizer has the model's parameters at its first forward pass")
    if len(found) > 1:
        raise NotSound(f"{len(found)} optimizers have parameters of the model")
    (optimizer,) = found
    if type(optimizer) is not torch.optim.SGD:
        raise NotSound(
            f"its optimizer is {type(optimizer).__name__}, and residuals have the momentum of SGD"
        )
    return optimizer


def _check(group: dict[str, Any]) -> None:
    if group["dampening"]:
        raise NotSound(f"its optimizer has a dampening of {group['dampening']}")
    if group["maximize"]:
        raise NotSound("its optimizer maximizes")
    if "max_momentum" in group:
        raise NotSound("a schedule of the learning rate changes the momentum (cycle_momentum=True)")

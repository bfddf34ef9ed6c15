"""The optimizer under residual compression, and whether it does nothing but plain SGD."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel as Ddp

from . import layers

TAKEN = "gradwire"
"""Of a parameter group: what was taken over from it. It is saved with the optimizer, so that a run
which goes on from there still knows."""


class NotSound(ValueError):
    """Why residual compression would train something else than the script wants, and what to do."""

    def __init__(self, why: str, otherwise: str = "call gradwire.torch.residual in it") -> None:
        super().__init__(
            f"residual compression cannot be put under this script: {why}; run it without "
            f"--residual, or {otherwise}"
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
    if why := obstacle(optimizer):
        raise NotSound(why, "train by a plain torch.optim.SGD")
    if any("momentum_buffer" in state for state in optimizer.state.values()):
        raise NotSound("its optimizer has gained momentum already, without residuals")
    taken = [
        group.get(TAKEN) or {key: group[key] for key in ("momentum", "nesterov", "weight_decay")}
        for group in optimizer.param_groups
    ]
    if len({(each["momentum"], each["nesterov"]) for each in taken}) > 1:
        raise NotSound("its optimizer has groups of different momentum")
    exchanged = {parameter for one in _every(Ddp) for parameter in one.parameters()}
    for group, each in zip(optimizer.param_groups, taken, strict=True):
        trained = {parameter for parameter in group["params"] if parameter.requires_grad}
        if (each["momentum"] or each["weight_decay"]) and not trained <= exchanged:
            raise NotSound(
                "its optimizer has parameters that are in no DistributedDataParallel model, and "
                "would train these without momentum and weight decay"
            )
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
        {name: decay[parameter] for name, parameter in layers.named(model) if parameter in decay},
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


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """What steps behind a wrapper such as Accelerate's AcceleratedOptimizer."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def obstacle(optimizer: torch.optim.Optimizer) -> str | None:
    """Why residuals cannot have this optimizer's momentum and weight decay, if they cannot."""
    if _is_sharded(optimizer):
        return (
            "its optimizer is ZeroRedundancyOptimizer, which keeps momentum of a share of the "
            "parameters on each rank, where residuals have that of all"
        )
    if type(optimizer) is not torch.optim.SGD:
        name = type(optimizer).__name__
        return f"its optimizer is {name}, and residuals have the momentum of torch.optim.SGD"
    for group in optimizer.param_groups:
        if group["dampening"]:
            return f"its optimizer has a dampening of {group['dampening']}"
        if group["maximize"]:
            return "its optimizer maximizes"
        if group["differentiable"]:
            return "its optimizer is differentiable, which exchanges between ranks are not"
        if "max_momentum" in group:
            return "a schedule of the learning rate changes the momentum (cycle_momentum=True)"
    return None


def _is_sharded(optimizer: torch.optim.Optimizer) -> bool:
    """By its name: importing it makes torch compile scripts, and warn of that."""
    return type(optimizer).__name__ == "ZeroRedundancyOptimizer"


def _every(kind: type) -> list:
    """Among all objects there are: no model knows who trains it, nor an optimizer what."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _all_of(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Wrappers and what they wrap count once. Those of several may have no parameters."""
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    found = {}
    for one in _every(torch.optim.Optimizer):
        groups = getattr(one, "param_groups", ())
        if trained & {parameter for group in groups for parameter in group["params"]}:
            found[id(unwrapped(one))] = unwrapped(one)
    for one in list(found.values()):
        if _is_sharded(one):
            found.pop(id(one.optim), None)
    return list(found.values())


def _find(model: torch.nn.Module) -> torch.optim.Optimizer:
    found = _all_of(model)
    if not found:
        raise NotSound("no optimizer has the model's parameters at its first forward pass")
    if len(found) > 1:
        raise NotSound(f"{len(found)} optimizers have parameters of the model")
    return found[0]

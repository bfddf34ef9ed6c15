"""The optimizer under residual compression, and whether it does nothing but plain SGD."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel as Ddp

from . import layers, left_alone

TAKEN = "gradwire"
"""Of a parameter group: what was taken over from it. It is saved with the optimizer, so that a run
which goes on from there still knows."""

NOTHING = {"momentum": 0, "nesterov": False, "weight_decay": 0}
"""What is left of it to the optimizer."""


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
    optimizer: torch.optim.Optimizer
    groups: list[dict]
    """What was taken from each of its parameter groups."""


def take_over(model: torch.nn.Module) -> TakenOver:
    """Takes momentum and weight decay from the one optimizer of a model's parameters."""
    optimizer = _find(model)
    if why := obstacle(optimizer):
        raise NotSound(why, "train by a plain torch.optim.SGD")
    if has_gained_momentum(optimizer):
        raise NotSound(
            "its optimizer has gained momentum already, without residuals",
            "start momentum anew by optimizer.state.clear() before the first forward pass",
        )
    taken = [
        group.get(TAKEN) or {key: group[key] for key in NOTHING} for group in optimizer.param_groups
    ]
    if len({(each["momentum"], each["nesterov"]) for each in taken}) > 1:
        raise NotSound("its optimizer has groups of different momentum")
    has = [bool(each["momentum"] or each["weight_decay"]) for each in taken]
    if found := unexchanged(optimizer, has):
        raise NotSound(*found)
    for group, each in zip(optimizer.param_groups, taken, strict=True):
        group.update({TAKEN: each, **NOTHING})
    decay = {
        parameter: group[TAKEN]["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return TakenOver(
        taken[0]["momentum"],
        taken[0]["nesterov"],
        {name: decay[parameter] for name, parameter in layers.named(model) if parameter in decay},
        optimizer,
        taken,
    )


def unexchanged(optimizer: torch.optim.Optimizer, has: list[bool]) -> tuple[str, str] | None:
    """Why parameters of the optimizer would be left without momentum and weight decay, if some
    would, and what to do. `has` says of each group whether there is any.
    """
    models = _every(Ddp)
    others = [model for model in models if left_alone.is_left_alone(model)]
    exchanged = {parameter for model in models for parameter in model.parameters()}
    alone = {parameter for model in others for parameter in model.parameters()}
    groups = [group for group, each in zip(optimizer.param_groups, has, strict=True) if each]
    trained = _trained(groups)
    if not trained <= exchanged:
        return (
            "its optimizer has parameters that are in no DistributedDataParallel model, and would "
            "train these without momentum and weight decay",
            "give these an optimizer of their own",
        )
    if trained & alone:
        return (
            "its optimizer has parameters of another model, too, which gradwire leaves alone as it "
            "has a communication hook of its own or DDP's Python reducer, and would train these "
            "without momentum and weight decay",
            "make an optimizer for each model",
        )
    return None


def check_taken_over(optimizer: torch.optim.Optimizer, taken: list[dict]) -> None:
    """Raises when it has again what residuals have taken over, from a checkpoint for instance."""
    if why := obstacle(optimizer):
        raise NotSound(why, "train by a plain torch.optim.SGD")
    groups = optimizer.param_groups
    same = [group.get(TAKEN) for group in groups] == taken
    nothing = all(group[key] == NOTHING[key] for group in groups for key in NOTHING)
    buffers = has_gained_momentum(optimizer)
    if not (same and nothing) or buffers:
        has = "momentum buffers" if buffers else "others"
        raise ValueError(
            "residual compression took over momentum and weight decay of this optimizer at the "
            f"model's first forward pass, and now it has {has}: load the checkpoint before the "
            "first forward pass, and change neither momentum nor weight decay later"
        )


def was_taken_from(group: dict) -> bool:
    return bool(group[TAKEN]["momentum"] or group[TAKEN]["weight_decay"])


def has_gained_momentum(optimizer: torch.optim.Optimizer) -> bool:
    states = optimizer.state.values()
    return any(state.get("momentum_buffer") is not None for state in states)


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
        if "max_momentum" in group and group["momentum"]:
            return "a schedule of the learning rate changes the momentum (cycle_momentum=True)"
    return None


def _is_sharded(optimizer: torch.optim.Optimizer) -> bool:
    """By its name: importing it makes torch compile scripts, and warn of that."""
    return type(optimizer).__name__ == "ZeroRedundancyOptimizer"


def _every(kind: type) -> list:
    """Among all objects there are: no model knows who trains it, nor an optimizer what."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _trained(groups: Iterable[dict]) -> set[torch.nn.Parameter]:
    every = (parameter for group in groups for parameter in group["params"])
    return {parameter for parameter in every if parameter.requires_grad}


def trains(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> bool:
    return not _trained(optimizer.param_groups).isdisjoint(model.parameters())


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

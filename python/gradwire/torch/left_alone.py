"""DDP models that exchange their gradients otherwise. gradwire does not compress them."""

from __future__ import annotations

from weakref import WeakSet

from torch.nn.parallel import DistributedDataParallel as Ddp

from . import compressions

with_own_hook: WeakSet[Ddp] = WeakSet()
"""Models whose hook was seen while it was registered: DDP does not note its built-in ones."""


def has_own_hook(model: Ddp) -> bool:
    return model in with_own_hook or (bool(model._comm_hooks) and not compressions.of(model))


def is_left_alone(model: Ddp) -> bool:
    return has_own_hook(model) or model._use_python_reducer

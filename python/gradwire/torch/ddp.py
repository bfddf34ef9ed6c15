"""Gradients of DistributedDataParallel."""

from __future__ import annotations

import logging
import math
from weakref import WeakSet

import gradwire_autoload as autoload
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Ddp

from . import channels, compressions, optimizers, residual_settings, settings
from ._native import Compression

_log = logging.getLogger("gradwire")
_with_own_hook: WeakSet[Ddp] = WeakSet()

_BUILTIN_HOOKS = {
    distributed.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
    distributed.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
}


def compress(model: Ddp, chosen: settings.Settings) -> None:
    """From the next backward pass on. May be repeated with other settings, between steps."""
    if _has_own_hook(model):
        raise ValueError(
            "this model has a communication hook already, and DDP takes one; "
            "do not register it, or do not compress the model"
        )
    autoload.watch()
    compression = compressions.of(model)
    if compression is None:
        compressions.add(model, lambda number: _attached(model, number, chosen))
    else:
        _apply(chosen, model, compression)


def _attached(model: Ddp, number: int, chosen: settings.Settings) -> Compression:
    compression = Compression(channels.of(model.process_group), model.process_group, chosen.seed)
    compression.number = number
    _apply(chosen, model, compression)
    compression.attach(model.reducer)
    model.logger._set_comm_hook_name("gradwire")
    return compression


def before_first_forward(model: Ddp) -> None:
    """Called for every DDP model, once `autoload.watch` has been."""
    if compressions.of(model):
        return
    if not (settings.is_on() or _is_ours(model.process_group)):
        return
    if _has_own_hook(model):
        _log.warning(
            "gradwire leaves %s alone: it has a communication hook of its own",
            type(model.module).__name__,
        )
        return
    density = settings.residual_density()
    if density is None:
        optimizers.check_own_momentum(model.module)
        compress(model, settings.from_environment())
    else:
        compress(model, residual_settings.for_script(model, density))


def take_hook_of_user(model: Ddp, *hook) -> bool:
    """Whether the hook that is being registered was put in the place of ours."""
    compression = compressions.of(model)
    if compression is None:
        _with_own_hook.add(model)
        return False
    state, function = hook if len(hook) == 2 else (None, _BUILTIN_HOOKS[hook[0]])
    model._check_comm_hook(function)
    compression.hand_over(state, function)
    model._comm_hooks.append((function, state))
    model.logger._set_comm_hook_name(function.__qualname__)
    compressions.remove(model)
    _with_own_hook.add(model)
    _log.warning(
        "gradwire compresses %s no longer: %s was registered as its communication hook",
        type(model.module).__name__,
        function.__qualname__,
    )
    return True


def _apply(chosen: settings.Settings, model: Ddp, compression: Compression) -> None:
    compression.set_rules(
        {
            parameter._cdata: (
                f"{compression.number}/{name}",
                parameter.numel(),
                chosen.stages_of(name, parameter),
                chosen.feedback,
                chosen.momentum,
                chosen.nesterov,
                chosen.masking,
                chosen.reuse,
                chosen.weight_decay_of(name),
            )
            for name, parameter in model.module.named_parameters()
        }
    )
    compression.set_local_clip(chosen.clip / math.sqrt(model.process_group.size()))


def _has_own_hook(model: Ddp) -> bool:
    return model in _with_own_hook or (bool(model._comm_hooks) and not compressions.of(model))


def _is_ours(group: distributed.ProcessGroup) -> bool:
    return distributed.get_backend(group) == "gradwire"

"""Gradients of DistributedDataParallel."""

from __future__ import annotations

import itertools
import logging
from weakref import WeakKeyDictionary, finalize

import gradwire_autoload as autoload
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Ddp

from . import channels, settings, stats
from ._native import Compression

_log = logging.getLogger("gradwire")
_compressions: WeakKeyDictionary[Ddp, Compression] = WeakKeyDictionary()
_with_own_hook: WeakKeyDictionary[Ddp, str] = WeakKeyDictionary()
_saved_steps: dict[int, int] = {}
_stats_of_ended: list[stats.Stats] = []
_numbers = itertools.count()

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
    compression = _compressions.get(model)
    if compression is None:
        compression = Compression(
            channels.of(model.process_group), model.process_group, chosen.seed
        )
        compression.number = next(_numbers)
        compression.set_rules(_rules(model, compression, chosen))
        compression.steps = _saved_steps.pop(compression.number, 0)
        compression.attach(model.reducer)
        model.logger._set_comm_hook_name("gradwire")
        _compressions[model] = compression
        finalize(model, _keep_stats, compression).atexit = False
    else:
        compression.set_rules(_rules(model, compression, chosen))


def compression_of(model: Ddp) -> Compression:
    if model not in _compressions:
        raise ValueError(
            "this model is not compressed; call gradwire.torch.compress(model), or run the script "
            "with `gradwire run` and a forward pass first"
        )
    return _compressions[model]


def before_first_forward(model: Ddp) -> None:
    """Called for every DDP model, once `autoload.watch` has been."""
    if model in _compressions:
        return
    if not (settings.is_on() or _is_ours(model.process_group)):
        return
    if _has_own_hook(model):
        _log.warning(
            "gradwire leaves %s alone: it has a communication hook of its own",
            type(model.module).__name__,
        )
        return
    compress(model, settings.from_environment())


def take_hook_of_user(model: Ddp, *hook) -> bool:
    """Whether the hook that is being registered was put in the place of ours."""
    compression = _compressions.get(model)
    if compression is None:
        _with_own_hook[model] = str(hook[-1])
        return False
    state, function = hook if len(hook) == 2 else (None, _BUILTIN_HOOKS[hook[0]])
    model._check_comm_hook(function)
    compression.hand_over(state, function)
    model._comm_hooks.append((function, state))
    model.logger._set_comm_hook_name(function.__qualname__)
    del _compressions[model]
    _with_own_hook[model] = function.__qualname__
    _log.warning(
        "gradwire compresses %s no longer: %s was registered as its communication hook",
        type(model.module).__name__,
        function.__qualname__,
    )
    return True


def save_steps() -> dict[int, int]:
    """By the model's number, in the order in which they were compressed first."""
    return {compression.number: compression.steps for compression in _compressions.values()}


def load_steps(saved: dict[int, int]) -> None:
    _saved_steps.clear()
    _saved_steps.update(saved)
    for compression in _compressions.values():
        compression.steps = _saved_steps.pop(compression.number, compression.steps)


def all_stats() -> list[stats.Stats]:
    """Of all models there are, and of those there were: few outlive the function that made them."""
    return [*_stats_of_ended, *map(stats.of, _compressions.values())]


def _keep_stats(compression: Compression) -> None:
    _stats_of_ended.append(stats.of(compression))


def _rules(
    model: Ddp, compression: Compression, chosen: settings.Settings
) -> dict[int, tuple[str, int, str, bool]]:
    return {
        parameter._cdata: (
            f"{compression.number}/{name}",  # two models may have layers of the same name
            parameter.numel(),
            chosen.codec_of(name, parameter),
            chosen.feedback,
        )
        for name, parameter in model.module.named_parameters()
    }


def _has_own_hook(model: Ddp) -> bool:
    return model in _with_own_hook or (bool(model._comm_hooks) and model not in _compressions)


def _is_ours(group: distributed.ProcessGroup) -> bool:
    return distributed.get_backend(group) == "gradwire"

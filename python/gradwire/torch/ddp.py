"""Gradients of DistributedDataParallel."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary, ref

import gradwire_autoload as autoload
import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Ddp

from . import (
    agreement,
    channels,
    compressions,
    layers,
    left_alone,
    optimizers,
    report,
    residual_settings,
    settings,
    stats,
    steps,
    unasked,
)
from ._native import Backend, DdpCompression

_log = logging.getLogger("gradwire")
_settings: WeakKeyDictionary[Ddp, settings.Settings] = WeakKeyDictionary()
"""Of all models that are compressed."""
_KEPT = "_gradwire_settings"
"""An attribute of compressed models, for copies of them: their settings, as a plain dictionary."""

_BUILTIN_HOOKS = {
    distributed.BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
    distributed.BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
}


def compress(model: Ddp, chosen: settings.Settings) -> None:
    """From the next backward pass on. May be repeated with other settings, between steps. All ranks
    call it together, and compare what they were given at once.
    """
    _check_that_it_can_be(model, chosen)
    _check_keeps_momentum(model, chosen)
    _check_keeps_plan(model, chosen)
    _compare(model, chosen)
    compression = compressions.of(model)
    if compression is None:
        compression = _attached(model, chosen)
    else:
        _apply(chosen, model, compression)
    compression.before_first_exchange = compression.compare_steps
    _begin(model, compression, chosen)
    report.by_script(compression.who)


def _compress_from_first_exchange(model: Ddp, chosen: settings.Settings) -> None:
    """As `compress`, for models whose script does not call it. One rank alone may run these
    forward, and copies of them: ranks wait for one another in exchanges only.
    """
    _check_that_it_can_be(model, chosen)
    owner = ref(model)  # which owns its compression, and without which there is no exchange

    def before_first_exchange() -> None:
        model = owner()
        _compare(model, chosen)
        compression = compressions.of(model)
        _begin(model, compression, chosen)
        compression.compare_steps()

    _attached(model, chosen).before_first_exchange = before_first_exchange


def _check_that_it_can_be(model: Ddp, chosen: settings.Settings) -> None:
    if _has_own_hook(model):
        raise ValueError(
            "this model has a communication hook already, and DDP takes one; "
            "do not register it, or do not compress the model"
        )
    if model._use_python_reducer:
        raise ValueError(
            "DDP's Python reducer exchanges gradients by itself, uncompressed: leave "
            "torch._dynamo.config.optimize_ddp as it is by default"
        )
    _check_what_ddp_does(model, chosen)


def _check_keeps_momentum(model: Ddp, chosen: settings.Settings) -> None:
    """Raises when nobody would have what residuals had in the optimizer's place."""
    had = _settings.get(model)
    if not _is_residual(model) or isinstance(chosen, residual_settings.Settings):
        return
    if had.momentum or any(had.weight_decay_of(name) for name, _ in layers.named(model.module)):
        raise ValueError(
            "residual compression has the momentum and weight decay of this model, which its "
            "optimizer has not, and compress would drop them: keep gradwire.torch.residual, or "
            "make a new DistributedDataParallel model and an optimizer with momentum and weight "
            "decay for it"
        )


def _check_keeps_plan(model: Ddp, chosen: settings.Settings) -> None:
    """Raises when residual compression would do otherwise than a plan says."""
    had = _settings.get(model)
    if had and had.plan and isinstance(chosen, residual_settings.Settings):
        raise ValueError(
            "this model travels by a plan, in whose place residual compression would decide how: "
            "leave out one of them. gradwire.torch.compress(model) ends a plan"
        )


def _compare(model: Ddp, chosen: settings.Settings) -> None:
    """Raises on all ranks where they differ, or where their hosts do not have a route."""
    group, title = model.process_group, layers.title(model.module)
    agreement.check([group], title, chosen, layers.named(model.module))
    channels.of(group).check_routes(chosen.plan_for(layers.described(model.module)))


def _attached(model: Ddp, chosen: settings.Settings) -> DdpCompression:
    group = model.process_group
    compression = DdpCompression(channels.of(group), group, chosen.seed)
    compression.number = None
    compression.compare_steps = _comparison_of_steps(model)
    _apply(chosen, model, compression)
    compression.attach(model.reducer)
    model.logger._set_comm_hook_name("gradwire")
    title = layers.title(model.module)
    who = stats.Who(title, distributed.get_rank(), group.size(), group.rank() == 0)
    return compressions.hold(model, who, compression)


def _comparison_of_steps(model: Ddp) -> Callable[[], None]:
    """What is called before the first exchange, and before the first one after a checkpoint was
    loaded. Until then ranks load theirs, each by itself.
    """
    owner = ref(model)  # which owns its compression, and so this
    title = layers.title(model.module)

    def compare() -> None:
        model = owner()
        compression = compressions.of(model)
        at = compression.steps, compression.step_before_load
        chosen = compression.compared_choice
        agreement.check_steps([model.process_group], title, *at, chosen)

    return compare


def _begin(model: Ddp, compression: DdpCompression, chosen: settings.Settings) -> None:
    """The ranks agree."""
    compression.number = compressions.number(model)
    _set_rules(chosen, model, compression)
    trained = {name for name, each in layers.named(model.module) if each.requires_grad}
    report.first_exchange(stats.of(compression), chosen, trained, compression.plan)


def before_first_forward(model: Ddp) -> None:
    """Called for every DDP model, once `autoload.watch` has been."""
    if not compressions.of(model):
        with channels.reason_left([model.process_group]):
            _compress_if_asked_for(model)


def _compress_if_asked_for(model: Ddp) -> None:
    kept = model.__dict__.get(_KEPT)
    if not (kept or _is_asked_for(model)):
        _say_which_device_is_ours(model)
        return
    title = layers.title(model.module)
    if _has_own_hook(model):
        unasked.leave_alone(title, "has a communication hook of its own")
        return
    if kept:
        _compress_copy(model, kept)
        return
    density = settings.residual_density()
    if density is None:
        optimizers.check_own_momentum(model.module)
        chosen = settings.from_environment()
    else:
        chosen = residual_settings.for_script(model, density)
    if model.process_group.rank() == 0:
        names = [name for name, _ in layers.named(model.module)]
        report.patterns_of_environment(chosen, title, names)
    _compress_from_first_exchange(model, chosen)


def remember(model: Ddp, chosen: settings.Settings) -> None:
    """What the script asked for: copies of the model are compressed alike."""
    model.__dict__[_KEPT] = asdict(chosen)


def _compress_copy(model: Ddp, kept: dict[str, Any]) -> None:
    if "density" not in kept:
        _compress_from_first_exchange(model, settings.from_kept(kept))
        return
    title = layers.title(model.module)  # whose optimizer is not known
    _log.warning(
        "gradwire: this %s is a copy of a model with residual compression, and trains exactly: "
        "call gradwire.torch.residual(copy, optimizer) for it, too",
        title,
    )
    report.obstacle(f"{title} is a copy of a model with residual compression")


def before_python_reducer(model: Ddp) -> None:
    """Called while such a model is made: it has no first forward pass that we see."""
    if _is_asked_for(model):
        unasked.leave_alone(
            layers.title(model.module),
            "has DDP's Python reducer, which exchanges gradients uncompressed",
        )


def take_hook_of_user(model: Ddp, *hook) -> bool:
    """Whether the hook that is being registered was put in the place of ours."""
    compression = compressions.of(model)
    if compression is None:
        return False
    if _is_residual(model):
        raise ValueError(
            "residual compression has the momentum of this model, which would train on without "
            "any: register no communication hook, or do not use residual compression"
        )
    state, function = hook if len(hook) == 2 else (None, _BUILTIN_HOOKS[hook[0]])
    model._check_comm_hook(function)
    compression.hand_over(state, function)
    model._comm_hooks.append((function, state))
    model.logger._set_comm_hook_name(function.__qualname__)
    compressions.remove(model)
    del _settings[model]
    model.__dict__.pop(_KEPT, None)
    left_alone.with_own_hook.add(model)
    title = layers.title(model.module)
    _log.warning(
        "gradwire compresses %s no longer: %s was registered as its communication hook",
        title,
        function.__qualname__,
    )
    report.obstacle(f"{title} got a communication hook of its own")
    return True


def keeps_hook_of_user(model: Ddp) -> None:
    """It was registered before we came."""
    left_alone.with_own_hook.add(model)


def takes_over_clipping(
    parameters: Iterable[torch.Tensor], norm: float | None, function: str = ""
) -> bool:
    """Whether these gradients need not be clipped any more. Raises when they must not be. The norm
    is None for a `function` that clips by something else than the Euclidean norm.
    """
    if norm == math.inf:  # scripts look at the norm so, and nothing is clipped
        return False
    given = {id(parameter) for parameter in parameters}
    for model, chosen in _settings.items():
        own = set(map(id, model.parameters()))
        if not _is_residual(model) or given.isdisjoint(own):
            continue
        if settings.clip() and norm == chosen.clip:
            _check_clips_all(model, given)
            return True
        run, fix = "Run", norm
        if norm is None:
            run, fix = f"Leave out {function} and run", "NORM"
        raise ValueError(
            "residual compression sends few numbers that have gained momentum, and clipping these "
            "after the backward pass undoes the training: each rank must clip its own gradients, "
            f"to a norm, before. {run} the script with `gradwire run --residual {chosen.density:g} "
            f"--clip {fix}`, or call gradwire.torch.residual(..., clip={fix}) and clip no more"
        )
    return False


def _check_clips_all(model: Ddp, given: set[int]) -> None:
    """Raises unless a script clips what residual compression has clipped, by the same norm."""
    if not given <= set(map(id, model.parameters())):
        raise ValueError(
            "residual compression has clipped the gradients of a model, by themselves, and "
            "leaves out this clipping of them together with others: clip those by themselves"
        )
    trained = {
        id(each) for each in model.parameters() if each.requires_grad and each.grad is not None
    }
    if not trained <= given:
        raise ValueError(
            "residual compression with --clip has clipped all gradients of a model together, by "
            "one norm, and this clips a part of them: clip all of them in one call, or run the "
            "script without --clip and do not clip"
        )


def _is_residual(model: Ddp) -> bool:
    return isinstance(_settings.get(model), residual_settings.Settings)


def _check_what_ddp_does(model: Ddp, chosen: settings.Settings) -> None:
    """Raises when DDP was told something that a communication hook cannot do."""
    if chosen.clip and model.skip_all_reduce_unused_params:
        raise ValueError(
            "clip waits for all gradients of a step, and skip_all_reduce_unused_params=True leaves "
            "some out: use DistributedDataParallel without it, or leave out clip"
        )
    if model._join_config.enable:
        _check_join(model._divide_by_initial_world_size)


def before_join(model: Ddp, divides_by_all: bool) -> None:
    if compressions.of(model):
        _check_join(divides_by_all)


def _check_join(divides_by_all: bool) -> None:
    if not divides_by_all:
        raise ValueError(
            "compressed gradients are divided by all ranks, also by those that have joined: use "
            "join(divide_by_initial_world_size=True)"
        )


def _apply(chosen: settings.Settings, model: Ddp, compression: DdpCompression) -> None:
    _settings[model] = chosen
    if _is_residual(model):
        autoload.watch_clipping()
    else:
        steps.forget(model)
    compression.set_seed(chosen.seed)
    _let_choose(chosen, model, compression)
    _set_rules(chosen, model, compression)
    if chosen.has_feedback():
        compression.watch(list(model.module.parameters()))
    compression.set_finds_unused(model.find_unused_parameters and not model.static_graph)
    compression.set_local_clip(chosen.clip / math.sqrt(model.process_group.size()))


def _let_choose(chosen: settings.Settings, model: Ddp, compression: DdpCompression) -> None:
    if not chosen.decides:
        compression.choose_no_more()
        return
    compression.choose(
        layers.described(model.module),
        chosen.adapted,
        chosen.exact,
        list(chosen.codecs.items()),
        channels=[channels.of(model.process_group)],
        can_wait=not model.skip_all_reduce_unused_params,
        on_choice=report.choices_of(compression),
    )


def _set_rules(chosen: settings.Settings, model: Ddp, compression: DdpCompression) -> None:
    """Under names with the model's number, once it has one."""
    compression.plan = compression.chosen_plan or chosen.plan_for(layers.described(model.module))
    compression.set_rules(
        {
            parameter._cdata: (
                name,
                parameter.numel() * (2 if parameter.is_complex() else 1),
                chosen.weight_decay_of(name),
            )
            for name, parameter in layers.named(model.module)
        },
        prefix=f"{compression.number}/",
        plan=compression.plan,
    )


def _has_own_hook(model: Ddp) -> bool:
    return left_alone.has_own_hook(model)


def _is_asked_for(model: Ddp) -> bool:
    """Whether a model is compressed whose script says nothing of it."""
    return unasked.is_asked_for([model.process_group], model.device_type)


def _say_which_device_is_ours(model: Ddp) -> None:
    """If the group has our backend, for another device than the model's."""
    group, mine = model.process_group, model.device_type
    if any(
        isinstance(channels.backend_of(group, device.type), Backend)
        for device in group._device_types
    ):
        where = "the CPU" if mine == "cpu" else mine
        report.obstacle(
            f"{layers.title(model.module)} has its parameters on {where}, which "
            f"{channels.backend_of(group, mine).name()} has in this group: write "
            f'"{mine}:gradwire", too'
        )

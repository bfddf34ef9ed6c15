"""Gradients, and weights if asked for, of FSDP2's ``fully_shard``.

FSDP calls Python for every group of parameters; what it calls here leaves the work to C++.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from weakref import WeakSet, ref

import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import (
    _fsdp_api,
    _fsdp_collectives,
    _fsdp_param_group,
    _fsdp_state,
)
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, FSDPMeshInfo
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import agreement, channels, compressions, layers, report, settings, stats, unasked
from ._native import FsdpCompression, Layer, Plan, ShardExchange, Way

ParamGroup = _fsdp_param_group.FSDPParamGroup


def compress(model: FSDPModule, chosen: settings.Settings, weights: str | None) -> None:
    """From the next pass on. May be repeated with other settings, between steps. All ranks call it
    together, and compare what they were given at once.
    """
    groups = _param_groups(model)
    for group in groups:
        group.reshard()  # after a pass without gradients the root still has its whole weights
    sharded = _described(model, groups)
    _check(sharded, chosen, weights)
    _compare(sharded, chosen, weights)
    compression = compressions.of(model) or _held(model, sharded, chosen)
    compression.before_first_exchange = compression.compare_steps
    _let_choose(sharded, compression, chosen)
    compression.number = compressions.number(model)
    _apply(compression.number, sharded, compression, chosen)
    _install(groups, compression, weights)
    _report(sharded, compression, chosen)
    report.by_script(compression.who)


def _compress_from_first_exchange(model: FSDPModule, chosen: settings.Settings) -> None:
    """As `compress`, for models whose script does not call it. Replicas may run these forward by
    themselves: ranks wait for one another in exchanges only.
    """
    groups = _param_groups(model)
    sharded = _described(model, groups)
    _check(sharded, chosen, None)
    owner = ref(model)  # which owns its compression, and without which there is no exchange

    def before_first_exchange() -> None:
        _compare(sharded, chosen, None)
        compression = compressions.of(owner())
        _let_choose(sharded, compression, chosen)
        compression.number = compressions.number(owner())
        _apply(compression.number, sharded, compression, chosen)
        _report(sharded, compression, chosen)
        compression.compare_steps()

    compression = _held(model, sharded, chosen)
    compression.before_first_exchange = before_first_exchange
    _install(groups, compression, None)


@torch.compiler.disable
def _before_first_pass(model: FSDPModule) -> None:
    """Called for every FSDP2 model, once `watch` has been."""
    with channels.reason_left(process_groups(model)):
        _compress_if_asked_for(model)


def _compress_if_asked_for(model: FSDPModule) -> None:
    groups = _param_groups(model)
    exchanges = [group._reduce_scatter_comm for group in groups]
    if not groups or any(isinstance(each, _CompressedReduceScatter) for each in exchanges):
        return
    if not unasked.is_asked_for(_process_groups(groups), groups[0].device.type):
        return
    title, device = layers.title(model), groups[0].device.type
    if device != "cpu":
        unasked.leave_alone(title, f"uses FSDP2 on {device}, where its gradients travel exactly")
    elif not all(isinstance(each, _fsdp_collectives.DefaultReduceScatter) for each in exchanges):
        unasked.leave_alone(title, "has a reduce-scatter of its own")
    elif settings.residual_density() is not None:
        unasked.leave_alone(title, "uses FSDP2, and residual compression is for DDP")
    else:
        chosen = settings.from_environment()
        if distributed.get_rank() == 0:
            names = [name for name, _ in layers.named(model)]
            report.patterns_of_environment(chosen, title, names)
        _compress_from_first_exchange(model, chosen)


@dataclass(frozen=True)
class _Sharded:
    """What is known of a model, without a reference to it, which would keep it alive."""

    title: str
    process_groups: list[distributed.ProcessGroup]
    ranks: int
    """In the largest mesh of its parameters."""
    parameters: dict[int, tuple[str, int, float]]
    """By the identity of FSDP's own record of it: name, elements, and no weight decay."""
    described: list[Layer]
    """For those who decide how they travel."""
    shapes: list[tuple[str, torch.Tensor]]
    """Without numbers."""
    trained: set[str]

    def plan(self, chosen: settings.Settings) -> Plan:
        return chosen.plan_for(self.described)


def _described(model: FSDPModule, groups: list[ParamGroup]) -> _Sharded:
    named = list(layers.named(model))
    names = {id(parameter): name for name, parameter in named}
    records = [(_name_of(each, names), each) for group in groups for each in group.fsdp_params]
    return _Sharded(
        layers.title(model),
        _process_groups(groups),
        max((group.mesh_info.mesh.size() for group in groups), default=1),
        {id(each): (name, each._orig_size.numel(), 0.0) for name, each in records},
        [layers.describe(name, each.sharded_param, _obstacle(each)) for name, each in records],
        [(name, torch.empty(each.shape, dtype=each.dtype, device="meta")) for name, each in named],
        {name for name, each in named if each.requires_grad},
    )


def _name_of(record, names: dict[int, str]) -> str:
    """The model has its shard, or all of it while it is gathered."""
    return names.get(id(record.sharded_param)) or names[id(record.unsharded_param)]


def _obstacle(record) -> str:
    device = record.device.type
    return "" if device == "cpu" else f"it is on {device}"


def _param_groups(model: FSDPModule) -> list[ParamGroup]:
    return [
        group
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups
        if group.fsdp_params
    ]


def process_groups(model: FSDPModule) -> list[distributed.ProcessGroup]:
    return _process_groups(_param_groups(model))


def _process_groups(groups: list[ParamGroup]) -> list[distributed.ProcessGroup]:
    """Ranks among which parameters are sharded, and those that have copies of the shards (HSDP)."""
    found = []
    for group in groups:
        if isinstance(group.mesh_info, FSDPMeshInfo):
            found.append(group._reduce_scatter_process_group)
        if isinstance(group.mesh_info, DDPMeshInfo):
            found.append(group._all_reduce_process_group)
    return list(dict.fromkeys(found))


def _check(sharded: _Sharded, chosen: settings.Settings, weights: str | None) -> None:
    """Raises for what FSDP2 cannot do."""
    if weights and Way(weights).has_feedback:
        raise ValueError("weights have no feedback: nothing of them is held back; leave it out")
    _check_routes(sharded.plan(chosen), (name for name, *_ in sharded.parameters.values()), weights)


def _check_routes(plan: Plan, names: Iterable[str], weights: str | None) -> None:
    ways = [(name, way) for name in names for _, way, _ in plan.stages_of(name)]
    for name, way in (*ways, ("weights", weights or "none")):
        if Way(way).route:
            raise ValueError(
                f"{name} is to travel by {way!r}, but FSDP2 exchanges layers together, by owners: "
                "leave out +route"
            )


def _compare(sharded: _Sharded, chosen: settings.Settings, weights: str | None) -> None:
    agreement.check(sharded.process_groups, sharded.title, chosen, sharded.shapes, weights=weights)


def _held(model: FSDPModule, sharded: _Sharded, chosen: settings.Settings) -> FsdpCompression:
    """Without a number yet."""
    _watch_exchanges()
    who = stats.Who(
        sharded.title,
        distributed.get_rank(),
        sharded.ranks,
        all(group.rank() == 0 for group in sharded.process_groups),
    )
    compression = FsdpCompression(distributed.get_rank(), chosen.seed)
    compression.compare_steps = _comparison_of_steps(model, sharded)
    compressions.hold(model, who, compression)
    _apply(None, sharded, compression, chosen)
    return compression


def _comparison_of_steps(model: FSDPModule, sharded: _Sharded) -> Callable[[], None]:
    """What is called before the first exchange, and before the first one after a checkpoint was
    loaded."""
    owner = ref(model)  # which owns its compression, and so this

    def compare() -> None:
        compression = compressions.of(owner())
        at = compression.steps, compression.step_before_load
        chosen = compression.compared_choice
        agreement.check_steps(sharded.process_groups, sharded.title, *at, chosen)

    return compare


def _apply(
    number: int | None,
    sharded: _Sharded,
    compression: FsdpCompression,
    chosen: settings.Settings,
) -> None:
    compression.set_seed(chosen.seed)
    compression.plan = compression.chosen_plan or sharded.plan(chosen)
    compression.set_rules(sharded.parameters, prefix=f"{number}/", plan=compression.plan)


def _let_choose(sharded: _Sharded, compression: FsdpCompression, chosen: settings.Settings) -> None:
    """Once all ranks are there, and before what a checkpoint has is loaded."""
    if not chosen.decides:
        compression.choose_no_more()
        return
    compression.choose(
        sharded.described,
        chosen.adapted,
        chosen.exact,
        list(chosen.codecs.items()),
        channels=[channels.of(group) for group in sharded.process_groups],
        can_wait=False,
        on_choice=report.choices_of(compression),
    )


def _install(groups: list[ParamGroup], compression: FsdpCompression, weights: str | None) -> None:
    process_groups = _process_groups(groups)
    for group in groups:
        shards = [(id(each), each.padded_sharded_param_size.numel()) for each in group.fsdp_params]
        exchange = ShardExchange(compression, shards, weights)
        group._reduce_scatter_comm = _CompressedReduceScatter(exchange, process_groups)
        if weights is not None:
            group._all_gather_comm = _CompressedAllGather(exchange, group)
        elif isinstance(group._all_gather_comm, _CompressedAllGather):
            group._all_gather_comm = _fsdp_collectives.DefaultAllGather()


def _report(sharded: _Sharded, compression: FsdpCompression, chosen: settings.Settings) -> None:
    report.first_exchange(stats.of(compression), chosen, sharded.trained, compression.plan)


class _Exchange:
    """What both directions share."""

    def __init__(self, exchange: ShardExchange) -> None:
        self.exchange = exchange

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _CompressedReduceScatter(_Exchange, _fsdp_api.ReduceScatter):
    """Gradients: summed into shards, and over replicas of shards where there are any (HSDP)."""

    def __init__(
        self, exchange: ShardExchange, process_groups: list[distributed.ProcessGroup]
    ) -> None:
        super().__init__(exchange)
        self.process_groups = process_groups

    def begin(self, records: list, *, partial: bool) -> None:
        """These parameters have a gradient in this pass: not those that are frozen or were not
        used. `partial`: a later pass sums it up over replicas."""
        self.exchange.begin(
            [
                (id(each), shard := each.sharded_param, _local(shard), _local(shard.grad))
                for each in records
            ],
            [channels.of(group) for group in self.process_groups],
            partial,
        )

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        if self.exchange.reduce_scatter(channels.of(group), output_tensor, input_tensor, op):
            return None
        return distributed.reduce_scatter_single(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )

    def all_reduce(self, tensor, op, group):
        """Over replicas, in place."""
        if self.exchange.all_reduce(channels.of(group), tensor, op):
            return None
        return distributed.all_reduce(tensor, op=op, group=group)


def _local(tensor):
    """This rank's part of a DTensor."""
    return None if tensor is None else tensor._local_tensor


class _CompressedAllGather(_Exchange, _fsdp_api.AllGather):
    """Weights. All gathers between two steps of their optimizer give the same bits."""

    every: WeakSet[_CompressedAllGather] = WeakSet()

    def __init__(self, exchange: ShardExchange, group: ParamGroup) -> None:
        super().__init__(exchange)
        self.group = ref(group)  # which owns this
        self.every.add(self)

    def after_step(self, changed: set[int]) -> None:
        """Of an optimizer that has these parameters."""
        group = self.group()
        if group and any(id(each.sharded_param) in changed for each in group.fsdp_params):
            self.exchange.count_update()

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        if self.exchange.all_gather(channels.of(group), output_tensor, input_tensor):
            return None
        return distributed.all_gather_single(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


class _Distributed:
    """torch.distributed, as FSDP's collectives see it: they sum over replicas (HSDP) by it."""

    def __init__(self) -> None:
        self.reducing = threading.local()

    def __getattr__(self, name: str):
        return getattr(distributed, name)

    def all_reduce(self, tensor, op=distributed.ReduceOp.SUM, group=None, async_op=False):
        exchange = getattr(self.reducing, "exchange", None)
        if exchange is None:
            return distributed.all_reduce(tensor, op=op, group=group, async_op=async_op)
        return exchange.all_reduce(tensor, op, group)


@functools.cache
def watch() -> None:
    """From now on, FSDP2 models are looked at before their first pass."""
    original = _fsdp_state.FSDPState._lazy_init

    @functools.wraps(original)
    def _lazy_init(state):
        is_first = state._is_root is None
        original(state)
        if is_first:
            _before_first_pass(state._modules[0])

    _fsdp_state.FSDPState._lazy_init = _lazy_init


@functools.cache
def _watch_exchanges() -> None:
    """FSDP's own functions tell which parameters take part, and call us for sums over replicas;
    optimizers, when weights have changed."""
    original = _fsdp_param_group.foreach_reduce
    signature = inspect.signature(original)
    seen_by_fsdp = _fsdp_collectives.dist = _Distributed()

    @functools.wraps(original)
    def foreach_reduce(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        exchange = given["reduce_scatter_comm"]
        if not isinstance(exchange, _CompressedReduceScatter):
            return original(*args, **kwargs)
        has_replicas = given["all_reduce_group"] is not None
        partial = has_replicas and not given["all_reduce_grads"]
        exchange.begin(given["fsdp_params"], partial=partial)
        seen_by_fsdp.reducing.exchange = exchange
        try:
            return original(*args, **kwargs)
        finally:
            seen_by_fsdp.reducing.exchange = None

    def after_step(optimizer, args, kwargs):
        changed = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for gather in list(_CompressedAllGather.every):
            gather.after_step(changed)

    _fsdp_param_group.foreach_reduce = foreach_reduce
    register_optimizer_step_post_hook(after_step)

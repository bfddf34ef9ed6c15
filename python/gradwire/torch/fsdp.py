"""Gradients, and weights if asked for, of FSDP2's ``fully_shard``.

FSDP calls Python for every group of parameters anyway, so the bookkeeping is here; only numbers
travel in C++.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterable
from weakref import WeakSet, ref

import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_api, _fsdp_collectives, _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, FSDPMeshInfo
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import agreement, channels, compressions, report, settings, stats
from . import layers as _layers
from ._native import Plan, Shards, Way, is_exact, is_supported

_STEPS_PER_MEASUREMENT = 50  # of errors, which costs a decoding

ParamGroup = _fsdp_param_group.FSDPParamGroup


def compress(model: FSDPModule, chosen: settings.Settings, weights: str | None) -> None:
    """From the next pass on. May be repeated with other settings, between steps."""
    if chosen.has_feedback():
        raise ValueError(
            "feedback is not available with FSDP; compress without it, with an unbiased codec "
            "such as the default"
        )
    if weights and Way(weights).has_feedback:
        raise ValueError("weights have no feedback: nothing of them is held back; leave it out")
    _watch()
    groups = _param_groups(model)
    for group in groups:
        group.reshard()  # after a pass without gradients the root still has its whole weights
    meeting = list(dict.fromkeys(ranks for group in groups for ranks in _process_groups(group)))
    title = _layers.title(model)
    agreement.check(meeting, title, chosen, _layers.named(model), weights=weights)
    compression = compressions.of(model)
    if compression is None:
        compression = compressions.add(model, _who(model, groups, meeting), Compression)
    compression.settings = chosen
    compression.in_step = set()
    names = {id(parameter): name for name, parameter in _layers.named(model)}
    plan = chosen.plan_for(
        [
            _layers.describe(names[id(each.sharded_param)], each.sharded_param, _obstacle(each))
            for group in groups
            for each in group.fsdp_params
        ]
    )
    _check_routes(plan, names.values(), weights)
    for group in groups:
        layers = {
            id(each): compression.layer(names[id(each.sharded_param)], each, plan, weights)
            for each in group.fsdp_params
        }
        group._reduce_scatter_comm = _CompressedReduceScatter(compression, layers)
        if weights is not None:
            group._all_gather_comm = _CompressedAllGather(compression, layers, group)
        elif isinstance(group._all_gather_comm, _CompressedAllGather):
            group._all_gather_comm = _fsdp_collectives.DefaultAllGather()
    trained = {name for name, each in _layers.named(model) if each.requires_grad}
    report.first_exchange(stats.of(compression), chosen, trained)


def _check_routes(plan: Plan, names: Iterable[str], weights: str | None) -> None:
    ways = [way for name in names for _, way, _ in plan.stages_of(name)]
    if any(Way(way).route for way in (*ways, weights or "none")):
        raise ValueError("FSDP2 exchanges layers together, by owners: leave out +route")


def _obstacle(sharded) -> str:
    device = sharded.device.type
    return "" if device == "cpu" else f"it is on {device}"


def _param_groups(model: FSDPModule) -> list[ParamGroup]:
    return [
        group
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups
        if group.fsdp_params
    ]


def _process_groups(group: ParamGroup) -> list[distributed.ProcessGroup]:
    """Ranks among which parameters are sharded, and those that have copies of the shards (HSDP)."""
    found = []
    if isinstance(group.mesh_info, FSDPMeshInfo):
        found.append(group._reduce_scatter_process_group)
    if isinstance(group.mesh_info, DDPMeshInfo):
        found.append(group._all_reduce_process_group)
    return found


def _who(model: FSDPModule, groups: list[ParamGroup], meeting: list) -> stats.Who:
    return stats.Who(
        _layers.title(model),
        distributed.get_rank(),
        max((group.mesh_info.mesh.size() for group in groups), default=1),
        all(ranks.rank() == 0 for ranks in meeting),
    )


class _Layer:
    """One parameter: how it travels, and what that cost so far."""

    def __init__(self, name: str, sharded) -> None:
        self.name = name
        """With the model's number before it."""
        self.stages: list[tuple[int, str]] = [(0, "none")]
        """Steps, and the ways from these on."""
        self.weight_way = "none"
        self.elements = sharded._orig_size.numel()
        self.shard_elements = sharded.padded_sharded_param_size.numel()
        self.bytes = self.sent_bytes = 0
        self.squared_error = self.energy = 0.0

    def way_at(self, step: int) -> str:
        return next(way for first, way in reversed(self.stages) if first <= step)

    def count(
        self, exact_bytes: int, sent_bytes: int, squared_error: float = 0, energy: float = 0
    ) -> None:
        self.bytes += exact_bytes
        self.sent_bytes += sent_bytes
        self.squared_error += squared_error
        self.energy += energy


class Compression:
    """Of one model, as DDP has one in C++."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = 0
        """Backward passes; random numbers of gradients depend on it."""
        self.in_step: set[_CompressedReduceScatter] = set()
        """Those that have been called in the last step so far."""
        self.updates: dict[str, int] = {}
        """By group of parameters, how often an optimizer changed them; random numbers of weights
        depend on it."""
        self.settings = settings.Settings()
        self.layers: dict[str, _Layer] = {}
        self.who: stats.Who

    @property
    def counters(self) -> tuple[int, dict[str, int]]:
        """For checkpoints."""
        return self.steps, dict(self.updates)

    @counters.setter
    def counters(self, saved: tuple[int, dict[str, int]]) -> None:
        self.steps, updates = saved
        self.updates = dict(updates)

    def count_step(self, exchange: _CompressedReduceScatter) -> None:
        """Every module has one exchange in a step: when one comes again, the next has begun."""
        if not self.in_step or exchange in self.in_step:
            self.steps += 1
            self.in_step.clear()
        self.in_step.add(exchange)

    def layer(self, name: str, sharded, plan: Plan, weights: str | None) -> _Layer:
        layer = self.layers.setdefault(name, _Layer(f"{self.number}/{name}", sharded))
        layer.stages = [(step, way) for step, way, _ in plan.stages_of(name)]
        is_exact = all(Way(way).codec == "none" for _, way in layer.stages)
        layer.weight_way = "none" if weights is None or is_exact else weights
        return layer

    def totals(self) -> list[tuple]:
        """As the one in C++ gives them."""
        return [
            (
                each.name,
                Way(each.stages[-1][1]).codec,
                each.elements,
                each.bytes,
                each.sent_bytes,
                each.squared_error,
                each.energy,
            )
            for each in self.layers.values()
        ]


class _Exchange:
    """What all directions share."""

    def __init__(self, compression: Compression, layers: dict[int, _Layer]) -> None:
        self.compression = compression
        self.layers = layers
        """By the identity of FSDP's own record of the parameter."""

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


def _takes(tensor: torch.Tensor, elements: int) -> bool:
    """Whether it can be compressed, and holds what we think."""
    return tensor.numel() == elements and tensor.is_cpu and is_supported(tensor)


def _count(layers: list[_Layer], messages: float, size: int, costs: list[tuple] | None) -> None:
    """`messages` is how often an exact exchange sends a shard, of elements of `size` bytes. Without
    `costs` it was one."""
    for i, layer in enumerate(layers):
        exact = int(layer.shard_elements * size * messages)
        layer.count(exact, *(costs[i] if costs else (exact,)))


def _shards_of(layers: tuple[_Layer, ...], ways: tuple[str, ...], added: str) -> Shards:
    return Shards(
        [
            (f"{each.name}{added}", each.shard_elements, way)
            for each, way in zip(layers, ways, strict=True)
        ]
    )


class _CompressedReduceScatter(_Exchange, _fsdp_api.ReduceScatter):
    """Gradients: summed into shards, and over replicas of shards where there are any (HSDP)."""

    def __init__(self, compression: Compression, layers: dict[int, _Layer]) -> None:
        super().__init__(compression, layers)
        self.present: tuple[_Layer, ...] = ()
        """Layers that have a gradient in this pass: not those that are frozen or were not used."""
        self._shards_of = functools.lru_cache(_shards_of)

    def begin(self, params: list) -> None:
        self.compression.count_step(self)
        self.present = tuple(self.layers[id(each)] for each in params)

    def shards(self, added: str) -> Shards:
        """Of the layers that are there, with what is added to their names."""
        step = self.compression.steps - 1  # it was counted when it began
        ways = tuple(each.way_at(step) for each in self.present)
        return self._shards_of(self.present, ways, added)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        ranks = group.size()
        size = input_tensor.element_size()
        if not self._is_ours(input_tensor, op, ranks):
            _count(self.present, ranks - 1, size, None)
            return distributed.reduce_scatter_single(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
        costs = channels.of(group).reduce_scatter(
            input_tensor,
            self.shards(""),
            average=op == distributed.ReduceOp.AVG,
            seed=self.compression.settings.seed,
            step=self.compression.steps,
            measure=self.compression.steps % _STEPS_PER_MEASUREMENT == 1,
        )
        output_tensor.copy_(input_tensor.view(ranks, -1)[group.rank()])
        _count(self.present, ranks - 1, size, costs)
        return None

    def all_reduce(self, tensor, op, group):
        """Over replicas, in place."""
        ranks = group.size()
        messages = 2 * (ranks - 1) / ranks
        if not self._is_ours(tensor, op, 1):
            _count(self.present, messages, tensor.element_size(), None)
            return distributed.all_reduce(tensor, op=op, group=group)
        costs = channels.of(group).all_reduce_shards(
            tensor,
            self.shards("/replicas"),
            average=op == distributed.ReduceOp.AVG,
            seed=self.compression.settings.seed,
            step=self.compression.steps,
        )
        _count(self.present, messages, tensor.element_size(), costs)
        return None

    def _is_ours(self, tensor: torch.Tensor, op, shards: int) -> bool:
        sums = op in (distributed.ReduceOp.AVG, distributed.ReduceOp.SUM)
        elements = shards * sum(layer.shard_elements for layer in self.present)
        return sums and not is_exact() and _takes(tensor, elements)


class _CompressedAllGather(_Exchange, _fsdp_api.AllGather):
    """Weights. All gathers between two steps of their optimizer give the same bits."""

    every: WeakSet[_CompressedAllGather] = WeakSet()

    def __init__(
        self, compression: Compression, layers: dict[int, _Layer], group: ParamGroup
    ) -> None:
        super().__init__(compression, layers)
        self.group = ref(group)  # which owns this
        self.listed = list(layers.values())
        self.shards = Shards(
            [(f"{each.name}/weight", each.shard_elements, each.weight_way) for each in self.listed]
        )
        self.name = self.listed[0].name
        compression.updates.setdefault(self.name, 0)
        self.every.add(self)

    def after_step(self, changed: set[int]) -> None:
        """Of an optimizer that has these parameters."""
        group = self.group()
        if group and any(id(each.sharded_param) in changed for each in group.fsdp_params):
            self.compression.updates[self.name] += 1

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        ranks = group.size()
        size = output_tensor.element_size()
        if not _takes(output_tensor, ranks * sum(each.shard_elements for each in self.listed)):
            _count(self.listed, ranks - 1, size, None)
            return distributed.all_gather_single(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
        output_tensor.view(ranks, -1)[group.rank()].copy_(input_tensor)
        costs = channels.of(group).all_gather(
            output_tensor,
            self.shards,
            seed=self.compression.settings.seed,
            step=self.compression.updates[self.name],
        )
        _count(self.listed, ranks - 1, size, costs)
        return None


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
def _watch() -> None:
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
        exchange.begin(given["fsdp_params"])
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

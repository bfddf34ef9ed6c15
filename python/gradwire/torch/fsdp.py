"""Gradients, and weights if asked for, of FSDP2's ``fully_shard``.

FSDP calls Python for every group of parameters anyway, so the bookkeeping is here; only numbers
travel in C++.
"""

from __future__ import annotations

import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_api, _fsdp_collectives

from . import channels, compressions, settings
from ._native import Shards, is_exact, is_supported

_STEPS_PER_MEASUREMENT = 50  # of errors, which costs a decoding


def compress(model: FSDPModule, chosen: settings.Settings, weights: str | None) -> None:
    """From the next pass on. May be repeated with other settings, between steps."""
    if chosen.feedback:
        raise ValueError(
            "feedback is not available with FSDP; compress without it, with an unbiased codec "
            "such as the default"
        )
    compression = compressions.of(model) or compressions.add(model, Compression)
    compression.settings = chosen
    compression.layers = {}
    compression.in_step = set()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        groups = module._get_fsdp_state()._fsdp_param_groups
        layers = [
            compression.layer(names[id(each.sharded_param)], each, weights)
            for group in groups
            for each in group.fsdp_params
        ]
        if layers:
            module.set_custom_reduce_scatter(_CompressedReduceScatter(compression, layers))
            if weights is not None:
                module.set_custom_all_gather(_CompressedAllGather(compression, layers))
            elif any(isinstance(group._all_gather_comm, _CompressedAllGather) for group in groups):
                module.set_custom_all_gather(_fsdp_collectives.DefaultAllGather())


class _Layer:
    """One parameter: how it travels, and what that cost so far."""

    def __init__(self, name: str, sharded, codec: str, weight_codec: str) -> None:
        self.name = name
        """With the model's number before it."""
        self.codec = codec
        self.weight_codec = weight_codec
        self.elements = sharded._orig_size.numel()
        self.shard_elements = sharded.padded_sharded_param_size.numel()
        self.bytes = self.sent_bytes = 0
        self.squared_error = self.energy = 0.0

    def count(self, exact_bytes: int, sent_bytes: int, squared_error: float, energy: float) -> None:
        self.bytes += exact_bytes
        self.sent_bytes += sent_bytes
        self.squared_error += squared_error
        self.energy += energy


class Compression:
    """Of one model, as DDP has one in C++."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = 0
        self.in_step: set[_CompressedReduceScatter] = set()
        """Those that have been called in the last step so far."""
        self.exchanges = 0
        """Of all modules together; random numbers depend on it."""
        self.settings = settings.Settings()
        self.layers: dict[str, _Layer] = {}

    @property
    def counters(self) -> tuple[int, int]:
        """For checkpoints."""
        return self.steps, self.exchanges

    @counters.setter
    def counters(self, saved: tuple[int, int]) -> None:
        self.steps, self.exchanges = saved

    def count_step(self, exchange: _CompressedReduceScatter) -> None:
        """Every module has one exchange in a step: when one comes again, the next has begun."""
        if not self.in_step or exchange in self.in_step:
            self.steps += 1
            self.in_step.clear()
        self.in_step.add(exchange)

    def layer(self, name: str, sharded, weights: str | None) -> _Layer:
        codec = self.settings.codec_of(name, sharded.sharded_param)
        weight_codec = "none" if weights is None or codec == "none" else weights
        layer = _Layer(f"{self.number}/{name}", sharded, codec, weight_codec)
        return self.layers.setdefault(name, layer)

    def totals(self) -> list[tuple]:
        """As the one in C++ gives them."""
        return [
            (
                each.name,
                each.codec,
                each.elements,
                each.bytes,
                each.sent_bytes,
                each.squared_error,
                each.energy,
            )
            for each in self.layers.values()
        ]


class _Exchange:
    """What both directions share."""

    def __init__(self, compression: Compression, layers: list[_Layer]) -> None:
        self.compression = compression
        self.layers = layers
        self.shards = Shards(list(map(self.shard_of, layers)))
        self.elements = sum(layer.shard_elements for layer in layers)

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def takes(self, tensor: torch.Tensor, ranks: int) -> bool:
        """Whether it can be compressed, and holds these layers: not so if some had no gradient."""
        fits = tensor.numel() == ranks * self.elements
        return fits and tensor.is_cpu and is_supported(tensor)

    def count(self, tensor: torch.Tensor, ranks: int, costs: list[tuple]) -> None:
        self.compression.exchanges += 1
        for layer, cost in zip(self.layers, costs, strict=True):
            exact = layer.shard_elements * tensor.element_size() * (ranks - 1)
            layer.count(exact, *cost)


class _CompressedReduceScatter(_Exchange, _fsdp_api.ReduceScatter):
    @staticmethod
    def shard_of(layer: _Layer) -> tuple[str, int, str]:
        return layer.name, layer.shard_elements, layer.codec

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        ranks = group.size()
        compression = self.compression
        compression.count_step(self)
        sums = op in (distributed.ReduceOp.AVG, distributed.ReduceOp.SUM)
        if is_exact() or not sums or not self.takes(input_tensor, ranks):
            return distributed.reduce_scatter_single(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
        costs = channels.of(group).reduce_scatter(
            input_tensor,
            self.shards,
            average=op == distributed.ReduceOp.AVG,
            seed=compression.settings.seed,
            step=compression.exchanges,
            measure=compression.steps % _STEPS_PER_MEASUREMENT == 1,
        )
        output_tensor.copy_(input_tensor.view(ranks, -1)[group.rank()])
        self.count(input_tensor, ranks, costs)
        return None


class _CompressedAllGather(_Exchange, _fsdp_api.AllGather):
    @staticmethod
    def shard_of(layer: _Layer) -> tuple[str, int, str]:
        return f"{layer.name}/weight", layer.shard_elements, layer.weight_codec

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        ranks = group.size()
        compression = self.compression
        if not self.takes(output_tensor, ranks):
            return distributed.all_gather_single(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
        output_tensor.view(ranks, -1)[group.rank()].copy_(input_tensor)
        costs = channels.of(group).all_gather(
            output_tensor,
            self.shards,
            seed=compression.settings.seed,
            step=compression.exchanges,
        )
        self.count(output_tensor, ranks, costs)
        return None

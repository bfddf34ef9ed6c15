"""Weights after 60 steps, to the bit, as they were when their hashes were written down.

Gradients are made of whole numbers and updates of powers of two, so that nothing but gradwire
rounds: the hashes hold on every machine. Whoever changes one says in CHANGELOG.md which results
are other ones now, and why.
"""

from __future__ import annotations

import gradwire.torch
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

STEPS = 60
SHAPES = {
    "embedding": (300, 64),
    "bias": (64,),
    "hidden": (128, 130),
    "scale": (1,),
    "head": (64, 1030),
    "small": (1030,),
}


class Given(torch.autograd.Function):
    """Something whose derivatives by the weights are given."""

    @staticmethod
    def forward(context, gradients, *weights):
        context.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(context, _):
        return None, *context.gradients


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, random: torch.Generator) -> torch.Tensor:
        weights = list(self.parameters())
        with torch.no_grad():
            gradients = [gradient_at(weight, random) for weight in weights]
        return Given.apply(gradients, *weights)


def gradient_at(weight: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Towards zero, and noise with the heavy tails of gradients; a tenth of the numbers is zero."""
    draw = torch.randint(-1000, 1001, weight.shape, generator=random).float() / 1024
    noise = draw * draw * draw * 0.5
    kept = torch.randint(0, 10, weight.shape, generator=random) > 0
    return (weight * 0.25 + noise) * kept


def train(model: nn.Module, rank: int) -> None:
    for step in range(STEPS):
        random = torch.Generator().manual_seed(1000 * step + rank)
        model.zero_grad()
        model(random).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(weight.grad * 0.125)


def ddp(rank: int, codec: str) -> str:
    model = Ddp(Model(), bucket_cap_mb=0.1)
    gradwire.torch.compress(model, codec, seed=7)
    train(model, rank)
    return digest(model)


def residual(rank: int, density: float, **options) -> str:
    model = Ddp(Model(), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    gradwire.torch.residual(model, optimizer, density=density, momentum=0.875, **options)
    train(model, rank)
    return digest(model)


def fsdp(rank: int, codec: str | None, plan: dict | None = None) -> str:
    model = fully_shard(Model())
    gradwire.torch.compress(model, codec, plan=plan, seed=7)
    train(model, rank)
    whole = Model()
    for own, sharded in zip(whole.parameters(), model.parameters(), strict=True):
        assert isinstance(sharded, DTensor)
        own.data = sharded.full_tensor().detach()
    return digest(whole)


CASES = {
    "grid": (ddp, "grid:step=0.5"),
    "uniform": (ddp, "uniform:bits=4,bucket=128"),
    "sign with feedback": (ddp, "sign+feedback"),
    "residual with momentum": (residual, 0.01),
    "FSDP2": (fsdp, "grid:step=0.5"),
}
GOLDEN = {
    ("grid", 2): "5d2e48e187a21825",
    ("grid", 4): "24e13f30c9ea1956",
    ("uniform", 2): "661485700ea2a672",
    ("uniform", 4): "3e2d4945bf82c5f6",
    ("sign with feedback", 2): "b208f7650dce3361",
    ("sign with feedback", 4): "9da7695840cb8cb0",
    ("residual with momentum", 2): "3be409a44fe29eca",
    ("residual with momentum", 4): "ee4aafee30da6927",
    ("FSDP2", 2): "eef1f913289c8f17",
    ("FSDP2", 4): "6b3b53a5d6937ec1",
}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_weights_are_what_they_were(case, ranks):
    function, *arguments = CASES[case]
    found = on_ranks(ranks, function, *arguments)
    assert len(set(found)) == 1
    assert found[0][:16] == GOLDEN[case, ranks]

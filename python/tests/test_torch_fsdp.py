"""Gradients, and weights, of FSDP2."""

from __future__ import annotations

import gradwire.torch
import pytest
import torch
from test_torch_ddp import batches, small_model, train
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch_ranks import on_ranks


def sharded(seed: int = 0, by_layer: bool = True) -> nn.Module:
    model = small_model(seed)
    if by_layer:
        fully_shard(model[3])
    return fully_shard(model)


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.full_tensor().detach().clone() for parameter in model.parameters()]


def trained(rank: int, codec: str | None, weights: str | None, steps: int):
    model = sharded()
    if codec:
        gradwire.torch.compress(model, codec, weights=weights)
    losses = train(model, rank, steps)
    stats = gradwire.torch.stats(model) if codec else None
    return weights_of(model), sum(losses[-10:]) / 10, stats


def test_without_loss_it_is_fsdp_up_to_rounding():
    plain = on_ranks(2, trained, None, None, 5)
    ours = on_ranks(2, trained, "none", "none", 5)
    for mine, reference in zip(ours[0][0], plain[0][0], strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-6, atol=1e-7)
    for one, other in zip(ours[0][0], ours[1][0], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("weights", [None, "uniform:bits=8"])
def test_it_learns_with_few_bytes(weights):
    results = on_ranks(3, trained, "grid:step=0.5", weights, 150)
    for found, loss, stats in results:
        assert loss < 0.8  # 2.08 at first
        assert all(torch.equal(a, b) for a, b in zip(found, results[0][0], strict=True))
        layer = stats.layers["3.weight"]
        assert layer.elements == 96 * 64
        assert layer.ratio > (3 if weights else 6)
        assert 0 < layer.nmse < 0.1
        assert stats.steps == 150
        assert stats.layers["3.bias"].ratio < 1.01
    assert len({stats.layers["3.weight"].sent_bytes for *_, stats in results}) > 1  # each its own


def compressed_twice(rank: int):
    model = sharded()
    gradwire.torch.compress(model, "none", weights="sign")
    gradwire.torch.compress(model, "none")
    train(model, rank, 3)
    return weights_of(model)


def test_weights_are_exact_again_when_nothing_is_said_of_them():
    plain = on_ranks(2, trained, "none", None, 3)[0][0]
    for mine, reference in zip(on_ranks(2, compressed_twice)[0], plain, strict=True):
        assert torch.equal(mine, reference)


def resumed(rank: int, state=None):
    model = sharded()
    if state:
        gradwire.torch.load_state_dict(state[rank][1])
        for parameter, saved in zip(model.parameters(), state[rank][0], strict=True):
            whole = torch.distributed.tensor.distribute_tensor(
                saved, parameter.device_mesh, parameter.placements
            )
            parameter.data.copy_(whole)
    gradwire.torch.compress(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank, 8) if state is None else batches(rank, 4, 4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert gradwire.torch.stats(model).steps == 8
    return weights_of(model)


def stopped(rank: int):
    model = sharded()
    gradwire.torch.compress(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank, 4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return weights_of(model), gradwire.torch.state_dict()


def test_from_a_checkpoint_it_goes_on_to_the_bit():
    whole = on_ranks(2, resumed)
    again = on_ranks(2, resumed, on_ranks(2, stopped))
    assert all(torch.equal(a, b) for a, b in zip(whole[0], again[0], strict=True))


class Partly(nn.Module):
    """A layer without a gradient in every second pass."""

    def __init__(self):
        super().__init__()
        self.model, self.other, self.calls = small_model(), nn.Linear(32, 64), 0

    def forward(self, x):
        self.calls += 1
        extra = self.other(x).sum() if self.calls % 2 else 0
        return self.model(x) + extra


def partly_trained(rank: int):
    model = gradwire.torch.compress(fully_shard(Partly()))
    with gradwire.torch.exact():
        train(model, rank, 1)
    assert gradwire.torch.stats(model).sent_bytes == 0
    train(model, rank, 4)
    assert gradwire.torch.stats(model).sent_bytes > 0
    return weights_of(model)


def test_layers_without_a_gradient():
    one, other = on_ranks(2, partly_trained)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Turns(nn.Module):
    """Two heads, each in every second pass."""

    def __init__(self):
        super().__init__()
        self.body, self.calls = small_model(), 0
        self.heads = nn.ModuleList([fully_shard(nn.Linear(8, 8)) for _ in range(2)])

    def forward(self, x):
        self.calls += 1
        return self.heads[self.calls % 2](self.body(x))


def steps_of_turns(rank: int):
    model = gradwire.torch.compress(fully_shard(Turns()))
    train(model, rank, 3)
    with gradwire.torch.exact():
        train(model, rank, 1)
    gradwire.torch.compress(model, "fp16")
    train(model, rank, 2)
    return gradwire.torch.stats(model).steps


def test_steps_are_backward_passes_whatever_takes_part_in_them():
    assert on_ranks(2, steps_of_turns) == [6, 6]


def refused(rank: int):
    with pytest.raises(ValueError, match="feedback is not available with FSDP"):
        gradwire.torch.compress(sharded(), feedback=True)
    with pytest.raises(ValueError, match="sends no weights"):
        gradwire.torch.compress(nn.parallel.DistributedDataParallel(small_model()), weights="fp16")


def test_what_cannot_be_done_is_said():
    on_ranks(2, refused)

"""FSDP2 with feedback: what a codec held back of a gradient is added to the next one."""

from __future__ import annotations

import time

import gradwire.torch
import pytest
import torch
from test_torch_ddp import batches, small_model, train
from test_torch_fsdp import load_weights, sharded, weights_of
from test_torch_golden_bits import Given
from torch import distributed, nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_ranks import on_ranks


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def mesh_of(shape: tuple[int, ...]):
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def learned(rank: int, codec: str, shape: tuple[int, ...]):
    model, mesh = small_model(), mesh_of(shape)
    fully_shard(model[3], mesh=mesh)
    gradwire.torch.compress(fully_shard(model, mesh=mesh), codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(model, rank, 200, optimizer=optimizer)
    layer = gradwire.torch.stats(model).layers["3.weight"]
    return weights_of(model), sum(losses[-10:]) / 10, layer


@pytest.mark.parametrize("shape", [(3,), (2, 2), (2, 1)])
@pytest.mark.parametrize("codec", ["sign+feedback", "topk:density=0.05+feedback"])
def test_it_learns_with_very_few_bytes(codec, shape):
    results = on_ranks(torch.Size(shape).numel(), learned, codec, shape)
    for weights, loss, layer in results:
        assert loss < 0.8  # 2.08 at first
        assert equal(weights, results[0][0])
        assert layer.ratio > 5
        assert 0 < layer.nmse < 1


# -------------------------------------------------------------------------------------------------
# Nothing is lost. Gradients are whole numbers, so that sums of them are exact.


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.often = nn.Parameter(torch.zeros(45, 64))  # 45 rows: shards that are padded
        self.seldom = nn.Parameter(torch.zeros(32, 64))
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, rank: int, step: int) -> torch.Tensor:
        weights = [self.often, self.bias] if step % 2 else list(self.parameters())
        return Given.apply([given(rank, step, each.shape) for each in weights], *weights)


def given(rank: int, step: int, shape: torch.Size) -> torch.Tensor:
    random = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-8, 9, shape, generator=random).float()


STEPS = 9  # the last is exact, and has gradients of all layers


def summed(rank: int, shape: tuple[int, ...], ending: str, synced: bool):
    """All gradients of all steps."""
    model = fully_shard(Sums(), mesh=mesh_of(shape))
    lossy = "topk:density=0.1+feedback"
    stages = [{"from_step": 0, "way": lossy}]
    if ending == "plan":
        last = STEPS - 1 if synced else STEPS // 3 - 1
        stages.append({"from_step": last, "way": "none"})
    layers = [{"layers": "bias", "way": "none"}, {"layers": "*", "stages": stages}]
    gradwire.torch.compress(model, plan={"gradwire_plan": 1, "layers": layers})
    for step in range(STEPS):
        model.set_requires_gradient_sync(synced or step % 3 == 2)
        if ending == "scope" and step == STEPS - 1:
            with gradwire.torch.exact():
                model(rank, step).backward()
        else:
            model(rank, step).backward()
    return [each.grad.full_tensor() for each in model.parameters()]


def expected(ranks: int) -> list[torch.Tensor]:
    totals = []
    for name, weight in Sums().named_parameters():
        steps = range(0, STEPS, 2 if name == "seldom" else 1)
        parts = [given(rank, step, weight.shape) for step in steps for rank in range(ranks)]
        totals.append(torch.stack(parts).sum(0) / ranks)
    return totals


@pytest.mark.parametrize("ending", ["plan", "scope"])
@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2), (2, 1)])
def test_what_is_held_back_arrives(shape, synced, ending):
    ranks = torch.Size(shape).numel()
    for found in on_ranks(ranks, summed, shape, ending, synced):
        assert equal(found, expected(ranks))


def held_back(rank: int):
    model = fully_shard(Sums())
    gradwire.torch.compress(model, "topk:density=0.1+feedback")
    model(rank, 0).backward()
    return [each.grad.full_tensor() for each in model.parameters()]


def test_something_is_held_back():
    """Of what the other rank sends to the owner of a shard."""
    exact = [given(0, 0, each.shape) + given(1, 0, each.shape) for each in Sums().parameters()]
    *lossy, bias = on_ranks(2, held_back)[0]
    for found, both in zip(lossy, exact, strict=False):
        assert (found == both / 2).float().mean() < 0.5
    assert torch.equal(bias, exact[2] / 2)


# -------------------------------------------------------------------------------------------------
# Checkpoints


def resumed(rank: int, codec: str, steps: int, state=None):
    model = sharded()
    if state:
        gradwire.torch.load_state_dict(state[rank][1])
        load_weights(model, state[rank][0])
    gradwire.torch.compress(model, codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, rank, steps, 4 if state else 0, optimizer)
    return weights_of(model), gradwire.torch.state_dict()


def delivered(rank: int):
    model = sharded()
    for codec in ("sign+feedback", "none"):
        gradwire.torch.compress(model, codec)
        train(model, rank, 1)
    return gradwire.torch.state_dict()


@pytest.mark.parametrize("codec", ["sign+feedback", "topk:density=0.05+feedback"])
def test_from_a_checkpoint_it_goes_on_to_the_bit(codec):
    half = on_ranks(2, resumed, codec, 4)
    whole, again = on_ranks(2, resumed, codec, 8), on_ranks(2, resumed, codec, 4, half)
    assert equal(whole[0][0], again[0][0])
    forgetful = [(weights, {**state, "residuals": {}}) for weights, state in half]
    assert not equal(whole[0][0], on_ranks(2, resumed, codec, 4, forgetful)[0][0])


def test_what_is_kept_of_shards_is_not_for_another_number_of_ranks():
    states = [state for _, state in on_ranks(2, resumed, "sign+feedback", 1)]
    with pytest.raises(ValueError, match="FSDP2 model with feedback"):
        gradwire.torch.reshard(states, 0, 1)
    assert gradwire.torch.reshard(on_ranks(2, delivered), 0, 1)["ranks"] == 1


# -------------------------------------------------------------------------------------------------
# What does not go with it, and how it is asked for


def throws_away(rank: int, codec: str, skips: bool) -> str:
    model = sharded()
    gradwire.torch.compress(model, codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for step, (x, y) in enumerate(batches(rank, 6)):
            nn.functional.cross_entropy(model(x), y).backward()
            if not (skips and step == 2):
                optimizer.step()
            optimizer.zero_grad()
    except ValueError as error:
        return str(error)
    return ""


def test_a_gradient_that_is_thrown_away_is_refused():
    for said in on_ranks(2, throws_away, "sign+feedback", True):
        assert "thrown away without a step of the optimizer" in said
        assert "no_sync" not in said
    assert on_ranks(2, throws_away, "sign+feedback", False) == ["", ""]
    assert on_ranks(2, throws_away, "sign", True) == ["", ""]


def one_throws_away(rank: int, shape: tuple[int, ...]) -> tuple[str, str, float]:
    """Rank 1 does. What is said on this rank, and after how many seconds it was."""
    model = fully_shard(small_model(), mesh=mesh_of(shape))
    gradwire.torch.compress(model, "sign+feedback")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(rank, 6)):
        distributed.barrier()  # else a replica may hear of it at the end of the step before
        loss = nn.functional.cross_entropy(model(x), y)
        began = time.monotonic()
        try:
            loss.backward()
        except (ValueError, distributed.DistBackendError) as error:
            said = type(error).__name__, str(error), time.monotonic() - began
            distributed.barrier()  # of gloo: nobody leaves, which would end the waiting of others
            return said
        if (rank, step) != (1, 2):
            optimizer.step()
        optimizer.zero_grad()
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_all_ranks_hear_at_once_that_one_has_thrown_away_a_gradient(shape):
    told = on_ranks(torch.Size(shape).numel(), one_throws_away, shape)
    kind, own, _ = told.pop(1)
    assert (kind, "got a gradient that was exchanged" in own) == ("ValueError", True)
    for kind, said, seconds in told:
        assert kind == "DistBackendError"
        assert "rank 1 gave up: " in said
        assert own.removeprefix("gradwire: ") in said
        assert seconds < 30  # the deadline is half an hour


def scaled(rank: int, codec: str) -> bool:
    gradwire.torch.compress(model := sharded(), codec)
    loss = model(torch.zeros(1, 32)).sum()
    try:
        GradScaler("cpu").scale(loss)
    except ValueError as error:
        return "does not go with a loss scaler" in str(error)
    return False


def test_a_loss_scaler_is_refused():
    assert on_ranks(2, scaled, "sign+feedback") == [True, True]
    assert on_ranks(2, scaled, "sign") == [False, False]


def unasked(rank: int, codec: str | None):
    model = sharded()
    if codec:
        gradwire.torch.compress(model, codec)
    train(model, rank, 5)
    return weights_of(model)


def test_unchanged_scripts_have_it_too():
    environment = {"GRADWIRE": "1", "GRADWIRE_CODEC": "sign+feedback"}
    found = on_ranks(2, unasked, None, environment=environment)
    assert equal(found[0], on_ranks(2, unasked, "sign+feedback")[0])


# -------------------------------------------------------------------------------------------------
# Several exchanges for one step


def shard_of_zeros(rank: int) -> bool:
    model = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64))
    gradwire.torch.compress(fully_shard(model), "topk:density=0.05+feedback")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(2):
            model(torch.arange(32)).square().sum().backward()  # rows of rank 0 alone
        optimizer.step()
        optimizer.zero_grad()
    return True


def test_a_shard_whose_gradient_is_zero_was_not_thrown_away():
    assert on_ranks(2, shard_of_zeros) == [True, True]


def in_parts(rank: int) -> list[torch.Tensor]:
    model = fully_shard(nn.Linear(64, 64, bias=False), mesh=mesh_of((2, 2)))
    gradwire.torch.compress(model, "fp16+feedback")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for last in (False, True):
            model.set_requires_all_reduce(last)
            model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights_of(model)


def test_sums_over_replicas_may_come_with_a_later_pass():
    results = on_ranks(4, in_parts)
    assert all(equal(weights, results[0]) for weights in results)

"""Gradients, and weights, of FSDP2."""

from __future__ import annotations

import gradwire.torch
import pytest
import torch
from test_torch_ddp import batches, small_model, train
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch_ranks import on_ranks


def sharded(seed: int = 0, by_layer: bool = True) -> nn.Module:
    model = small_model(seed)
    if by_layer:
        fully_shard(model[3])
    return fully_shard(model)


def weights_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.full_tensor().detach().clone() for parameter in model.parameters()]


def load_weights(model: nn.Module, saved: list[torch.Tensor]) -> None:
    """What `weights_of` gave, into shards."""
    for parameter, whole in zip(model.parameters(), saved, strict=True):
        parameter.data.copy_(
            torch.distributed.tensor.distribute_tensor(
                whole, parameter.device_mesh, parameter.placements
            )
        )


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


def gathered_as_double(rank: int):
    policy = MixedPrecisionPolicy(param_dtype=torch.float64, reduce_dtype=torch.float32)
    model = fully_shard(nn.Linear(64, 64), mp_policy=policy)
    gradwire.torch.compress(model, "uniform:bits=4", weights="uniform:bits=8")
    for _ in range(3):
        model(torch.ones(1, 64)).sum().backward()
    return gradwire.torch.stats(model).layers["weight"]


def test_weights_that_codecs_do_not_take_say_nothing_of_gradients():
    layer = on_ranks(2, gathered_as_double)[0]
    assert layer.codec.startswith("uniform:bits=4")
    assert layer.bytes == 3 * 64 * 64 * 4 // 2
    assert layer.ratio > 6


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


def evaluated(rank: int, again: bool, validates: bool, weights: str | None):
    model = sharded()
    if again:
        gradwire.torch.compress(model, "sign", weights="sign")
        train(model, rank, 1)
    if validates:
        with torch.no_grad():
            model(torch.zeros(1, 32))  # the root stays unsharded
    gradwire.torch.compress(model, "grid:step=0.5", weights=weights)
    train(model, rank, 3)
    stats = gradwire.torch.stats(model)
    return weights_of(model), stats.bytes, stats.sent_bytes


@pytest.mark.parametrize("weights", [None, "uniform:bits=8"])
@pytest.mark.parametrize("again", [False, True])
def test_a_model_may_be_evaluated_before_it_is_compressed(again, weights):
    mine, bytes_, sent = on_ranks(2, evaluated, again, True, weights)[0]
    reference, *counts = on_ranks(2, evaluated, again, False, weights)[0]
    assert all(torch.equal(a, b) for a, b in zip(mine, reference, strict=True))
    if not again:  # a validation gathers compressed weights, too
        assert [bytes_, sent] == counts


def resumed(rank: int, state=None):
    model = sharded()
    if state:
        gradwire.torch.load_state_dict(state[rank][1])
        load_weights(model, state[rank][0])
    gradwire.torch.compress(model, "grid:step=0.5")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank, 8) if state is None else batches(rank, 4, 4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert gradwire.torch.stats(model).steps == (8 if state is None else 4)  # those of this run
    return weights_of(model)


def stopped(rank: int):
    model = sharded()
    gradwire.torch.compress(model, "grid:step=0.5")
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
    model = gradwire.torch.compress(fully_shard(Partly()), "grid:step=0.5")
    with gradwire.torch.exact():
        train(model, rank, 1)
    exact = gradwire.torch.stats(model)
    assert 0 < exact.bytes < exact.sent_bytes < 1.02 * exact.bytes  # and headers
    train(model, rank, 4)
    assert gradwire.torch.stats(model).layers["model.3.weight"].ratio > 3
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
    model = gradwire.torch.compress(fully_shard(Turns()), "grid:step=0.5")
    train(model, rank, 3)
    with gradwire.torch.exact():
        train(model, rank, 1)
    gradwire.torch.compress(model, "fp16")
    train(model, rank, 2)
    return gradwire.torch.stats(model).steps


def test_steps_are_backward_passes_whatever_takes_part_in_them():
    assert on_ranks(2, steps_of_turns) == [6, 6]


class Adapted(nn.Module):
    """A frozen layer with a small adapter beside it, as LoRA has, in one group of parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(32, 128).requires_grad_(False)
        self.down, self.up = nn.Linear(32, 64, bias=False), nn.Linear(64, 128, bias=False)
        self.idle = nn.Linear(32, 64)  # would be trained, and is not used
        self.out = nn.Linear(128, 8)

    def forward(self, x):
        return self.out(self.frozen(x) + self.up(self.down(x)))


def adapted(rank: int, codec: str | None):
    model = fully_shard(Adapted())
    if codec:
        gradwire.torch.compress(model, codec)
    train(model, rank, 5)
    return weights_of(model), gradwire.torch.stats(model) if codec else None


def test_adapters_beside_frozen_layers_are_compressed():
    (mine, stats), (other, _) = on_ranks(2, adapted, "grid:step=0.5")
    assert stats.layers["up.weight"].ratio > 3
    assert stats.layers["down.weight"].ratio > 3
    assert sorted(stats.layers) == ["down.weight", "out.bias", "out.weight", "up.weight"]
    assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
    plain, ours = on_ranks(2, adapted, None), on_ranks(2, adapted, "none")
    for a, b in zip(ours[0][0], plain[0][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def replicated(rank: int, codec: str | None, dtype: torch.dtype):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = small_model()
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)  # fp16 is summed and divided, not averaged
    fully_shard(model[3], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if codec:
        gradwire.torch.compress(model, codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(rank, 6)):
        model.set_requires_all_reduce(step % 3 != 0)  # sums over replicas wait for the next pass
        nn.functional.cross_entropy(model(x), y).backward()
        if step % 3:
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(model), gradwire.torch.stats(model) if codec else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_replicas_of_shards_exchange_few_bytes(dtype):
    plain = on_ranks(4, replicated, None, dtype)
    ours = on_ranks(4, replicated, "none", dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-3
    for a, b in zip(ours[0][0], plain[0][0], strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    results = on_ranks(4, replicated, "uniform:bits=4", dtype)
    for weights, stats in results:
        assert all(torch.equal(a, b) for a, b in zip(weights, results[0][0], strict=True))
        # To another shard six times, and to another replica, of half as many numbers, four times.
        size = 4 if dtype == torch.float32 else 2
        layer = stats.layers["3.weight"]
        assert layer.bytes == (6 + 4) * 96 * 64 // 2 * size
        assert layer.ratio > (6 if dtype == torch.float32 else 3)


def in_one_shard(rank: int, codec: str):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(small_model(), mesh=mesh)
    gradwire.torch.compress(model, codec)
    train(model, rank, 2)
    return gradwire.torch.stats(model).layers["3.weight"]


def test_errors_of_sums_over_replicas_are_measured():
    for layer in on_ranks(2, in_one_shard, "uniform:bits=2"):
        assert 0.05 < layer.nmse < 1
        assert layer.bytes == 2 * 96 * 64 * 4  # to one other rank, twice one half each
    assert on_ranks(2, in_one_shard, "none")[0].nmse == 0


def replicated_otherwise(rank: int) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(small_model(), mesh=mesh)
    with pytest.raises(ValueError) as refused:
        gradwire.torch.compress(model, "sign" if rank == 1 else "none")
    distributed.barrier()  # which ends as long as nobody waits for another group
    return str(refused.value)


def test_one_rank_that_differs_is_named_by_those_of_other_groups():
    for said in on_ranks(4, replicated_otherwise, environment={"GRADWIRE_CONNECT_TIMEOUT": "6"}):
        assert "rank 1 has codec=sign where rank 0 has codec=none" in said


def gathered(rank: int):
    """The bits of every gather, by training step."""
    model = small_model()
    model[3] = checkpoint_wrapper(model[3])
    fully_shard(model[3], reshard_after_forward=True)
    fully_shard(model, reshard_after_forward=True)
    gradwire.torch.compress(model, "grid:step=0.5", weights="uniform:bits=4")
    (group,) = model[3]._get_fsdp_state()._fsdp_param_groups
    gather, seen = group._all_gather_comm, []

    def spied(output_tensor, **kwargs):
        gather(output_tensor, **kwargs)
        seen[-1].append(output_tensor.numpy().tobytes())

    spied.allocate = gather.allocate
    group._all_gather_comm = spied
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stranger = torch.optim.SGD(small_model().parameters(), lr=0.1)
    for x, y in batches(rank, 3):
        seen.append([])
        loss = nn.functional.cross_entropy(model(x), y)
        stranger.step()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return seen, gradwire.torch.state_dict()["counters"]


def test_all_gathers_of_a_step_give_the_same_weights():
    for steps, counters in on_ranks(2, gathered):
        assert min(map(len, steps)) >= 2  # forward and backward
        assert [len(set(gathers)) for gathers in steps] == [1, 1, 1]
        assert len({gathers[0] for gathers in steps}) == 3
        assert set(counters[0][1].values()) == {3}


def refused(rank: int):
    with pytest.raises(ValueError, match="sends no weights"):
        gradwire.torch.compress(nn.parallel.DistributedDataParallel(small_model()), weights="fp16")


def test_what_cannot_be_done_is_said():
    on_ranks(2, refused)

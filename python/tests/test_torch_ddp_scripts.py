"""DistributedDataParallel in scripts: those that know nothing of gradwire, calls, and faults."""

from __future__ import annotations

import os
import signal
import time

import gradwire.torch
import pytest
import torch
from test_torch_ddp import small_model, train
from torch import distributed
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import RankFailed, digest, on_ranks

# -------------------------------------------------------------------------------------------------
# Scripts that know nothing of us


def unchanged_script(rank: int) -> tuple[str, list[float], str]:
    model = Ddp(small_model())
    losses = train(model, rank, 5)
    metric = torch.tensor([losses[-1], 0.1 * rank, 1 / 3])
    distributed.all_reduce(metric)
    sent = gradwire.torch.stats(model) if rank == 0 and _attached(model) else None
    return digest(model), metric.tolist(), "" if sent is None else str(sent)


def _attached(model) -> bool:
    try:
        gradwire.torch.stats(model)
    except ValueError:
        return False
    return True


def test_an_unchanged_script_is_compressed_and_its_metrics_are_not():
    off = on_ranks(2, unchanged_script)
    assert off[0][2] == ""
    for how in ({"backend": "gradwire"}, {"environment": {"GRADWIRE": "1"}}):
        on = on_ranks(2, unchanged_script, **how)
        assert on[0][0] == on[1][0] != off[0][0]
        assert on[0][1] == on[1][1]
        assert on[0][1][1:] == off[0][1][1:]  # exact to the bit; the loss itself differs
        assert "grid" in on[0][2]


def after_a_hook_that_ddp_refuses(rank: int) -> float:
    model = Ddp(small_model())
    with pytest.raises(TypeError):
        model.register_comm_hook(None, "no hook")
    gradwire.torch.compress(model, "grid:step=0.5")
    train(model, rank, 1)
    return gradwire.torch.stats(model).ratio


def test_a_hook_that_ddp_refuses_is_none():
    environment = {"GRADWIRE": "1"}
    assert min(on_ranks(2, after_a_hook_that_ddp_refuses, environment=environment)) > 2


def with_own_hook(rank: int, when: str) -> tuple[str, list[str]]:
    calls = []

    def own(state, bucket):
        calls.append(state)
        future = distributed.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model = Ddp(small_model())
    if when == "before":
        model.register_comm_hook("own", own)
    train(model, rank, 2)
    if when == "after":
        model.register_comm_hook("own", own)
    if when == "builtin":
        model._register_builtin_comm_hook(distributed.BuiltinCommHookType.ALLREDUCE)
    train(model, rank, 2, first=2)
    return digest(model), calls


def test_a_hook_of_the_users_is_kept():
    environment = {"GRADWIRE": "1"}
    plain = on_ranks(2, with_own_hook, "before")
    kept = on_ranks(2, with_own_hook, "before", environment=environment)
    assert kept == plain
    assert kept[0][1]
    late = on_ranks(2, with_own_hook, "after", environment=environment)
    assert late[0][0] == late[1][0] != plain[0][0]
    assert late[0][1]
    builtin = on_ranks(2, with_own_hook, "builtin", environment=environment)
    assert builtin[0][0] == late[0][0]


# -------------------------------------------------------------------------------------------------
# The interface


def asked_for(rank: int) -> None:
    model = Ddp(small_model())
    gradwire.torch.compress(model, "uniform:bits=2", exact=["0.*"], codecs={"5.w*": "grid:step=1"})
    train(model, rank, 3)
    stats = gradwire.torch.stats(model)
    codecs = {name: layer.codec.split(",")[0] for name, layer in stats.layers.items()}
    assert codecs == {
        "0.weight": "none",
        "0.bias": "none",
        "2.weight": "none",
        "2.bias": "none",
        "3.weight": "uniform:bits=2",
        "3.bias": "none",
        "5.weight": "none",  # fewer than 1024 elements
        "5.bias": "none",
    }
    assert stats.steps == 3
    assert stats.layers["3.weight"].bytes == 3 * 96 * 64 * 4
    assert 6 < stats.layers["3.weight"].ratio < 16
    assert 0.8 < stats.layers["0.weight"].ratio < 1.01
    assert stats.ratio == stats.bytes / stats.sent_bytes
    assert "3.weight" in str(stats)


def test_codecs_by_layer_and_statistics():
    on_ranks(2, asked_for)


def sums(rank: int) -> None:
    tensor = torch.full((5000,), float(rank + 1))
    assert gradwire.torch.all_reduce(tensor, "none") is None
    assert torch.equal(tensor, torch.full((5000,), 3.0))
    gradwire.torch.all_reduce(tensor, "uniform:bits=4", op="mean")
    assert torch.equal(tensor, torch.full((5000,), 3.0))
    half = torch.randn(3000, dtype=torch.bfloat16)
    work = gradwire.torch.all_reduce(half, async_op=True)
    work.wait()
    gathered = [torch.empty_like(half) for _ in range(2)]
    distributed.all_gather(gathered, half)
    assert torch.equal(gathered[0], gathered[1])
    for bad, kind, words in [
        (torch.ones(3, dtype=torch.int64), TypeError, "float32, float16 and bfloat16"),
        (torch.ones(3, dtype=torch.float64), TypeError, "float32, float16 and bfloat16"),
        (torch.ones(8, 8)[:, :2], ValueError, "contiguous"),
        (torch.ones(3).to_sparse(), TypeError, "dense"),
    ]:
        with pytest.raises(kind, match=words):
            gradwire.torch.all_reduce(bad)
    with pytest.raises(ValueError, match="unknown codec"):
        gradwire.torch.all_reduce(torch.ones(3), "gird")
    with pytest.raises(ValueError, match="'sum' or 'mean'"):
        gradwire.torch.all_reduce(torch.ones(3), op="max")
    with pytest.raises(ValueError, match="needs a name"):
        gradwire.torch.all_reduce(torch.ones(3), "sign+feedback")


def test_all_reduce():
    on_ranks(2, sums)


def refused(rank: int) -> None:
    with pytest.raises(TypeError, match="wrap it in DistributedDataParallel"):
        gradwire.torch.compress(small_model())
    model = Ddp(small_model())
    with pytest.raises(ValueError, match="unknown codec"):
        gradwire.torch.compress(model, "gird")
    with pytest.raises(ValueError, match=r"no parameter matches 'body\.\*'.*0\.weight"):
        gradwire.torch.compress(model, "grid:step=0.5", exact=["body.*"])
    with pytest.raises(TypeError, match=r"write exact=\['head\.\*'\]"):
        gradwire.torch.compress(model, "grid:step=0.5", exact="head.*")
    with pytest.raises(ValueError, match="not compressed"):
        gradwire.torch.stats(model)
    model.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(ValueError, match="has a communication hook"):
        gradwire.torch.compress(model, "grid:step=0.5")


def test_what_cannot_be_done_is_said():
    on_ranks(2, refused)


def without_group(rank: int) -> None:
    distributed.destroy_process_group()
    with pytest.raises(RuntimeError, match="init_process_group first"):
        gradwire.torch.all_reduce(torch.ones(3))


def test_a_group_is_needed():
    on_ranks(1, without_group)


def two_models_and_a_subgroup(rank: int) -> list[str]:
    halves = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    everybody, half = Ddp(small_model()), Ddp(small_model(), process_group=halves[rank // 2])
    for model in (everybody, half):
        gradwire.torch.compress(model, "uniform:bits=3+feedback")
    for first in range(0, 6, 2):
        train(everybody, rank, 2, first)
        train(half, rank, 2, first)
    return [digest(everybody), digest(half)]


def test_models_and_subgroups_do_not_mix():
    results = on_ranks(4, two_models_and_a_subgroup)
    assert len({whole for whole, _ in results}) == 1
    halves = [half for _, half in results]
    assert halves[0] == halves[1] != halves[2] == halves[3]


# -------------------------------------------------------------------------------------------------
# Faults


def dies_in_backward(rank: int, how: int) -> str:
    model = Ddp(small_model())
    gradwire.torch.compress(model, "grid:step=0.5")
    train(model, rank, 2)
    if rank == 1:
        model.module[5].weight.register_hook(lambda grad: os.kill(os.getpid(), how))
    begun = time.monotonic()
    try:
        train(model, rank, 2)
    except distributed.DistBackendError as error:
        assert time.monotonic() - begun < 60
        return str(error)
    raise AssertionError("it went on")


def test_a_rank_that_dies_in_backward_is_named_by_all_others():
    results = on_ranks(3, dies_in_backward, signal.SIGKILL)
    assert results[1] == -signal.SIGKILL
    for said in (results[0], results[2]):
        assert "rank 1" in said


def leaves_without_a_word(rank: int) -> None:
    train(Ddp(small_model()), rank, 2)
    distributed.destroy_process_group = lambda: None  # as scripts do that forget it


def test_leaving_without_destroying_the_group_is_fine():
    on_ranks(2, leaves_without_a_word, backend="gradwire")


def reads_data_in_children(rank: int) -> str:
    model = Ddp(small_model())
    train(model, rank, 1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 32))
    for (x,) in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2):
        model(x).sum().backward()
    return digest(model)


def test_children_of_a_rank_leave_its_connections_alone():
    assert len(set(on_ranks(2, reads_data_in_children, backend="gradwire"))) == 1


def test_a_rank_that_raises_is_reported_by_this_very_harness():
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        on_ranks(1, divides_by_zero)


def divides_by_zero(rank: int) -> None:
    rank / 0  # noqa: B018

"""The backend `gradwire` as torch.distributed sees it, beyond what torch's own tests ask for
(tests/torch_conformance). Sums of small integers are exact, so results are compared to the bit."""

import datetime
import os
import subprocess
import sys
import textwrap
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import digest
from torch_ranks import on_ranks as on_ranks_of


def on_ranks(size, body, *arguments):
    """`body(rank, size, …)` on each, in a group of the backend."""
    return on_ranks_of(size, body, size, *arguments, backend="gradwire")


def ramp(factor, count=6, dtype=torch.float32):
    return (torch.arange(count) * factor).to(dtype)


# Plain collectives --------------------------------------------------------------------------------


def sums_in_every_dtype(rank, size):
    kinds = [torch.uint8, torch.int8, torch.int32, torch.int64]
    kinds += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
    for dtype in kinds:
        x = ramp(rank + 1, dtype=dtype)
        dist.all_reduce(x)
        assert torch.equal(x, ramp(size * (size + 1) // 2, dtype=dtype)), dtype


def test_sums_in_every_dtype():
    on_ranks(4, sums_in_every_dtype)


def large_sums_are_exact(rank, size):
    """A plain all_reduce is never compressed, however large and however odd its floats."""
    values = [torch.randn(300_000, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    pieces = [torch.empty(300_000) for _ in range(size)]
    dist.all_gather(pieces, values[rank])
    assert all(torch.equal(a, b) for a, b in zip(pieces, values, strict=True))
    ours, gloo = values[rank].clone(), values[rank].clone()
    dist.all_reduce(ours)
    dist.all_reduce(gloo, group=dist.new_group(backend="gloo"))
    assert torch.equal(ours, gloo)


def test_large_sums_are_exact():
    on_ranks(4, large_sums_are_exact)


def tensors_are_scattered_and_gathered(rank, size):
    whole = torch.empty(size * 2)
    dist.all_gather_into_tensor(whole, ramp(1, 2) + rank)
    assert torch.equal(whole, torch.cat([ramp(1, 2) + r for r in range(size)]))
    part = torch.empty(3)
    dist.reduce_scatter_tensor(part, ramp(1, 3 * size))
    assert torch.equal(part, ramp(size, 3 * size)[3 * rank : 3 * rank + 3])
    dist.reduce_scatter(part, [ramp(r + 1, 3) for r in range(size)])
    assert torch.equal(part, ramp((rank + 1) * size, 3))


def test_tensors_are_scattered_and_gathered():
    on_ranks(4, tensors_are_scattered_and_gathered)


def every_rank_sends_to_every_rank(rank, size):
    # Rank r sends s + 1 numbers to rank s.
    sent = torch.cat([torch.full((s + 1,), 10.0 * rank + s) for s in range(size)])
    received = torch.empty(size * (rank + 1))
    counts = [s + 1 for s in range(size)]
    dist.all_to_all_single(received, sent, [rank + 1] * size, counts)
    expected = [torch.full((rank + 1,), 10.0 * s + rank) for s in range(size)]
    assert torch.equal(received, torch.cat(expected))


def test_every_rank_sends_to_every_rank():
    on_ranks(4, every_rank_sends_to_every_rank)


def works_have_futures(rank, size):
    x = ramp(1)
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert torch.equal(doubled.wait(), ramp(2 * size))
    assert work.wait() and work.is_completed() and work.is_success()


def test_works_have_futures():
    on_ranks(4, works_have_futures)


def coalesced_calls_are_one(rank, size):
    with dist._coalescing_manager(async_ops=True) as manager:
        reduced = [ramp(rank + 1, n) for n in (1, 5, 9)]
        for x in reduced:
            dist.all_reduce(x)
    manager.wait()
    for x in reduced:
        assert torch.equal(x, ramp(size * (size + 1) // 2, x.numel()))


def test_coalesced_calls_are_one():
    on_ranks(4, coalesced_calls_are_one)


def a_ring_of_sends(rank, size):
    received = torch.empty(6)
    operations = [
        dist.P2POp(dist.isend, ramp(rank), (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(received, ramp((rank - 1) % size))


def test_a_ring_of_sends():
    on_ranks(4, a_ring_of_sends)


def objects_travel(rank, size):
    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank})
    assert everybody == [{"rank": r} for r in range(size)]
    gathered = [None] * size if rank == 1 else None
    dist.gather_object((rank, "x" * rank), gathered, dst=1)
    assert rank != 1 or gathered == [(r, "x" * r) for r in range(size)]
    listed = ["a", [1, 2]] if rank == 2 else [None, None]
    dist.broadcast_object_list(listed, src=2)
    assert listed == ["a", [1, 2]]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list([{"from": 0}], 3)
    elif rank == 3:
        sent = [None]
        assert dist.recv_object_list(sent, 0) == 0 and sent == [{"from": 0}]


def test_objects_travel():
    on_ranks(4, objects_travel)


# Functional collectives, meshes -------------------------------------------------------------------


def functional_collectives(rank, size):
    group = dist.group.WORLD
    total = size * (size + 1) // 2
    assert torch.equal(functional.all_reduce(ramp(rank + 1), "sum", group), ramp(total))
    assert torch.equal(
        functional.all_reduce(ramp(4.0 * (rank + 1)), "avg", group), ramp(4.0 * total / size)
    )
    gathered = functional.all_gather_tensor(ramp(rank, 2), 0, group)
    assert torch.equal(gathered, torch.cat([ramp(r, 2) for r in range(size)]))
    part = functional.reduce_scatter_tensor(ramp(rank + 1, 2 * size), "sum", 0, group)
    assert torch.equal(part, ramp(total, 2 * size)[2 * rank : 2 * rank + 2])
    swapped = functional.all_to_all_single(ramp(1, size) + 10 * rank, None, None, group)
    assert torch.equal(swapped, 10.0 * torch.arange(size) + rank)
    assert torch.equal(functional.broadcast(ramp(rank), 1, group), ramp(1))


def test_functional_collectives():
    on_ranks(4, functional_collectives)


def functional_coalesced_collectives(rank, size):
    group = dist.group.WORLD
    total = size * (size + 1) // 2
    reduced = functional.all_reduce_coalesced([ramp(rank + 1, n) for n in (2, 7)], "sum", group)
    assert [x.tolist() for x in reduced] == [ramp(total, n).tolist() for n in (2, 7)]
    gathered = functional.all_gather_into_tensor_coalesced([ramp(rank, n) for n in (1, 3)], group)
    for x, n in zip(gathered, (1, 3), strict=True):
        assert torch.equal(x, torch.cat([ramp(r, n) for r in range(size)]))
    parts = functional.reduce_scatter_tensor_coalesced(
        [ramp(rank + 1, n * size) for n in (1, 2)], "sum", [0, 0], group
    )
    for x, n in zip(parts, (1, 2), strict=True):
        assert torch.equal(x, ramp(total, n * size)[n * rank : n * (rank + 1)])


def test_functional_coalesced_collectives():
    on_ranks(4, functional_coalesced_collectives)


def meshes_of_one_and_two_dimensions(rank, size):
    assert init_device_mesh("cpu", (size,)).get_local_rank() == rank
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    row, column = divmod(rank, 2)
    for name, members in {"replica": (column, column + 2), "shard": (2 * row, 2 * row + 1)}.items():
        group = mesh.get_group(name)
        assert dist.get_process_group_ranks(group) == list(members)
        assert dist.get_backend(group) == "gradwire"
        x = ramp(rank)
        dist.all_reduce(x, group=group)
        assert torch.equal(x, ramp(sum(members)))


def test_meshes_of_one_and_two_dimensions():
    on_ranks(4, meshes_of_one_and_two_dimensions)


def tensors_are_distributed_and_redistributed(rank, size):
    whole = torch.arange(48.0).reshape(8, 6)
    mesh = init_device_mesh("cpu", (size,))
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.to_local(), whole[2 * rank : 2 * rank + 2])
    assert torch.equal(sharded.full_tensor(), whole)
    columns = sharded.redistribute(placements=[Shard(1)])
    assert torch.equal(columns.full_tensor(), whole)
    partial = DTensor.from_local(whole * (rank + 1), mesh, [Partial()])
    assert torch.equal(partial.redistribute(placements=[Replicate()]).to_local(), whole * 10)
    grid = init_device_mesh("cpu", (2, 2))
    tiles = distribute_tensor(whole, grid, [Shard(0), Shard(1)])
    assert tiles.to_local().shape == (4, 3)
    assert torch.equal(tiles.redistribute(placements=[Replicate(), Shard(0)]).full_tensor(), whole)


def test_tensors_are_distributed_and_redistributed():
    on_ranks(4, tensors_are_distributed_and_redistributed)


# Groups and their lives ---------------------------------------------------------------------------


def groups_of_some_ranks(rank, size):
    lower, odd = dist.new_group([0, 1]), dist.new_group([1, 3])
    for members, group in ((0, 1), lower), ((1, 3), odd):
        x = torch.tensor([1.0 + rank])
        if rank in members:
            dist.all_reduce(x, group=group)
            assert x.item() == sum(members) + 2
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
    alone = dist.new_group([2])
    if rank == 2:
        x = torch.tensor([7.0])
        dist.all_reduce(x, group=alone)
        dist.barrier(alone)
        assert x.item() == 7


def test_groups_of_some_ranks():
    on_ranks(4, groups_of_some_ranks)


def a_group_has_a_timeout_of_its_own(rank, size):
    hasty = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 0:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="[Tt]imed? ?out"):
            dist.recv(torch.empty(1), src=1, group=hasty)
        # The world's is 30 minutes.
        assert time.monotonic() - began < 600
    x = torch.tensor([1.0])
    dist.all_reduce(x)
    assert x.item() == dist.get_world_size()


def test_a_group_has_a_timeout_of_its_own():
    on_ranks(2, a_group_has_a_timeout_of_its_own)


def a_late_rank_is_named(rank, size):
    dist.monitored_barrier()
    group = dist.new_group()
    if rank == 0:
        with pytest.raises(RuntimeError, match="[Rr]ank 1"):
            dist.monitored_barrier(group, datetime.timedelta(seconds=1))
    dist.barrier()  # Of the world, which goes on.


def test_a_late_rank_is_named():
    on_ranks(2, a_late_rank_is_named)


def groups_end_and_begin_again(rank, size, folder):
    for life in range(3):
        x = torch.tensor([rank + 1.0])
        dist.all_reduce(x)
        assert x.item() == size * (size + 1) / 2
        dist.destroy_process_group()
        assert not dist.is_initialized()
        with pytest.raises((AssertionError, ValueError)):
            dist.destroy_process_group()
        store = dist.FileStore(f"{folder}/life-{life}", size)
        dist.init_process_group("gradwire", store=store, rank=rank, world_size=size)
    dist.barrier()  # gloo on other ranks may not be ready when this one's is


def test_groups_end_and_begin_again(tmp_path):
    on_ranks(2, groups_end_and_begin_again, str(tmp_path))


# DistributedDataParallel -------------------------------------------------------------------------


def trained_on_uneven_inputs(rank, group):
    """A model after more steps on higher ranks; who has no input left joins the sums."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
    model = DistributedDataParallel(layers, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    with model.join():
        for _ in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(torch.randn(5, 40, generator=generator)).square().sum().backward()
            optimizer.step()
    return model


def uneven_inputs_are_joined(rank, size):
    gloo = dist.new_group(backend="gloo")
    ours, theirs = trained_on_uneven_inputs(rank, None), trained_on_uneven_inputs(rank, gloo)
    torch.testing.assert_close(
        [p.data for p in ours.parameters()], [p.data for p in theirs.parameters()]
    )
    return digest(ours)


def test_uneven_inputs_are_joined():
    digests = on_ranks_of(
        3, uneven_inputs_are_joined, 3, backend="gradwire", environment={"GRADWIRE_CODEC": "none"}
    )
    assert len(set(digests)) == 1


# Processes ----------------------------------------------------------------------------------------


def run_script(tmp_path, text, size=2):
    """Exit codes of ranks that run a script, each a Python of its own, and what they said."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    environment = os.environ | {"MASTER_STORE": f"file://{tmp_path / 'store'}"}
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(size)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.returncode for process in processes], said


START = """
    import os, sys, torch, torch.distributed as dist
    import gradwire.torch

    rank, size = int(sys.argv[1]), int(sys.argv[2])
    def start():
        dist.init_process_group(
            "gradwire", init_method=os.environ["MASTER_STORE"], rank=rank, world_size=size
        )
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
        model(torch.ones(1, 100)).sum().backward()
        return model
"""


CHANNEL = """
    import datetime, sys, time, torch
    from torch.distributed import FileStore
    from gradwire.torch._native import Channel

    path, lives = FILE, LIVES
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    store = FileStore(path)  # Without a number of ranks it is not removed by the last of them.
    for _ in range(lives):
        time.sleep(0.3 * (rank == 0))  # The others find what an earlier life left.
        channel = Channel(
            store,
            rank,
            size,
            timeout=datetime.timedelta(seconds=20),
            connect_timeout=datetime.timedelta(seconds=20),
            secret="",
            interface="",
        )
        x = torch.full((1000,), rank + 1.0)
        channel.all_reduce(
            x, "none", "x", average=False, seed=0, step=0
        ).wait()
        assert x.tolist() == [3.0] * 1000
        channel.close()
"""


@pytest.mark.parametrize(("processes_per_rank", "lives"), [(1, 3), (3, 1)])
def test_a_group_lives_again_on_the_same_store(tmp_path, processes_per_rank, lives):
    text = CHANNEL.replace("FILE", repr(str(tmp_path / "kept"))).replace("LIVES", str(lives))
    for _ in range(processes_per_rank):
        codes, said = run_script(tmp_path, text)
        assert codes == [0, 0], said


def test_ranks_that_leave_without_destroying_the_group_end_with_their_exit_code(tmp_path):
    codes, said = run_script(tmp_path, START + "\n    model = start()\n    sys.exit(3 * rank)\n")
    assert codes == [0, 3], said


def test_workers_of_a_data_loader_are_forked_while_a_group_lives(tmp_path):
    text = """
    model = start()
    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 40
        def __getitem__(self, index):
            return torch.full((100,), float(index) ** 2)
    total = torch.zeros(1)
    loader = torch.utils.data.DataLoader(
        Squares(), 4, num_workers=2, multiprocessing_context="fork"
    )
    for batch in loader:
        model(batch).sum().backward()
        total += batch[:, 0].sum()
    dist.all_reduce(total)
    assert total.item() == size * sum(n**2 for n in range(40))
    """
    codes, said = run_script(tmp_path, START + text)
    assert codes == [0, 0], said

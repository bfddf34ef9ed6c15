"""Gradients of DistributedDataParallel: averaged and equal on all ranks, whatever DDP is told."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time

import gradwire.torch
import pytest
import torch
from gradwire.torch import ddp
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import RankFailed, digest, on_ranks

LOSSY = [
    "fp16",
    "bf16",
    "uniform:bits=4,bucket=128",
    "exponential:bits=4",
    "sign",
    "grid:step=0.5",
    "grid:step=0.5,rounding=dither",
    "grid:step=0.5,rounding=nearest",
]


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(32, 96),
        nn.ReLU(),
        nn.LayerNorm(96),
        nn.Linear(96, 64),
        nn.ReLU(),
        nn.Linear(64, 8),
    )


def batches(rank: int, count: int, first: int = 0):
    """Other ones on every rank; the answer can be learned."""
    for step in range(first, first + count):
        random = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(16, 32, generator=random)
        yield x, x[:, :8].argmax(1)


def train(model: nn.Module, rank: int, steps: int, first: int = 0, optimizer=None) -> list[float]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in batches(rank, steps, first):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# -------------------------------------------------------------------------------------------------
# Bits


def trained_replicas(rank: int, codec: str) -> tuple[str, float]:
    model = Ddp(small_model())
    gradwire.torch.compress(model, codec)
    losses = train(model, rank, 200)
    return digest(model), sum(losses[-20:]) / 20


@pytest.mark.parametrize(("codec", "feedback"), list(itertools.product(LOSSY, [False, True])))
def test_replicas_are_equal_after_200_steps_and_have_learned(codec, feedback):
    way = f"{codec}+feedback" if feedback else codec
    results = on_ranks(3 if codec.startswith("grid") else 2, trained_replicas, way)
    assert len({bits for bits, _ in results}) == 1
    if feedback or codec != "sign":  # signs alone are no gradient descent
        assert max(loss for _, loss in results) < 0.8  # 2.08 at first


def grads(rank: int, codec: str | None) -> list[torch.Tensor]:
    model = Ddp(small_model())
    if codec:
        gradwire.torch.compress(model, codec)
    train(model, rank, 5)
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_without_loss_it_is_ddp(ranks):
    """To the bit on two ranks; more are added up in the order of ranks, which gloo does not."""
    ours, (theirs, *_) = on_ranks(ranks, grads, "none"), on_ranks(ranks, grads, None)
    for mine in ours:
        assert all(map(torch.equal, mine, ours[0]))
        for gradient, reference in zip(mine, theirs, strict=True):
            limits = {"rtol": 0, "atol": 0} if ranks == 2 else {"rtol": 1e-4, "atol": 1e-6}
            torch.testing.assert_close(gradient, reference, **limits)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_without_loss_it_is_the_sum_in_the_order_of_ranks_to_the_bit(ranks):
    total = 0
    for rank in range(ranks):
        model = small_model()
        for x, y in batches(rank, 1):
            nn.functional.cross_entropy(model(x), y).backward()
        total = total + model[3].weight.grad
    for gradient in on_ranks(ranks, one_gradient, "none", 0):
        assert torch.equal(gradient, total * (1 / ranks))


def one_gradient(rank: int, codec: str, seed: int) -> torch.Tensor:
    model = Ddp(small_model())
    gradwire.torch.compress(model)
    gradwire.torch.compress(model, codec, seed=seed)  # again, with other settings
    for x, y in batches(rank, 1):
        nn.functional.cross_entropy(model(x), y).backward()
    return model.module[3].weight.grad


def mean_gradient(rank: int, codec: str, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the same batch, with other random numbers each time, and without loss."""
    model = Ddp(small_model())
    gradwire.torch.compress(model, codec)
    (x, y), total = next(iter(batches(rank, 1))), 0
    for _ in range(rounds):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        total = total + model.module[3].weight.grad
    with gradwire.torch.exact():
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
    return total / rounds, model.module[3].weight.grad


@pytest.mark.parametrize("codec", ["uniform:bits=4", "grid:step=0.5"])
def test_gradients_are_unbiased(codec):
    rounds = 400
    (mean, exact), _ = on_ranks(2, mean_gradient, codec, rounds)
    first, second = (on_ranks(2, one_gradient, codec, seed)[0] for seed in (0, 1))
    assert not torch.equal(first, second)
    one = (first - exact).norm()
    assert one > 0
    # The error of the mean of independent draws falls with the root of their number.
    assert (mean - exact).norm() < 1.3 * one / rounds**0.5


# -------------------------------------------------------------------------------------------------
# Checkpoints


def interrupted(rank: int, codec: str, stop: int | None) -> str:
    """Trains 12 steps; when `stop` is given, in two models that know of each other by a state."""

    def make():
        model = Ddp(small_model())
        gradwire.torch.compress(model, codec)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer = make()
    if stop is None:
        train(model, rank, 12, optimizer=optimizer)
        return digest(model)
    train(model, rank, stop, optimizer=optimizer)
    state = (model.state_dict(), optimizer.state_dict(), gradwire.torch.state_dict())
    return state


def resumed(rank: int, codec: str, stop: int, states) -> str:
    weights, momenta, ours = states[rank]
    gradwire.torch.load_state_dict(ours)
    model = Ddp(small_model(seed=7))
    gradwire.torch.compress(model, codec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.load_state_dict(weights)
    optimizer.load_state_dict(momenta)
    train(model, rank, 12 - stop, first=stop, optimizer=optimizer)
    return digest(model)


@pytest.mark.parametrize("codec", ["grid:step=0.5", "uniform:bits=2+feedback", "sign+feedback"])
def test_from_a_checkpoint_it_goes_on_to_the_bit(codec):
    whole = on_ranks(2, interrupted, codec, None)
    states = on_ranks(2, interrupted, codec, 5)
    assert on_ranks(2, resumed, codec, 5, states) == whole


# -------------------------------------------------------------------------------------------------
# What DDP can be told


class Branches(nn.Module):
    """Uses one branch or the other, by the rank's turn."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(32, 64), nn.Linear(32, 64)
        self.out = nn.Linear(64, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        branch = self.left if (self.calls + distributed.get_rank()) % 2 else self.right
        return self.out(branch(x))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(2, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3)).to(
            memory_format=torch.channels_last
        )
        self.out = nn.Linear(32, 8)

    def forward(self, x):
        pictures = x.view(-1, 2, 4, 4).repeat(1, 1, 2, 2).to(memory_format=torch.channels_last)
        return self.out(self.body(pictures).mean((2, 3)))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.single = nn.Linear(32, 64)
        self.fine = nn.Linear(64, 64, dtype=torch.float64)
        self.brain = nn.Linear(64, 64, dtype=torch.bfloat16)
        self.out = nn.Linear(64, 8)

    def forward(self, x):
        x = self.fine(self.single(x).double()).relu()
        return self.out(self.brain(x.bfloat16()).float())


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.EmbeddingBag(50, 256, sparse=True)
        self.out = nn.Linear(256, 8)

    def forward(self, x):
        return self.out(self.words((x.abs() * 10).long().clamp(max=49)))


VARIANTS = {
    "plain": (small_model, {}),
    "bucket view": (small_model, {"gradient_as_bucket_view": True}),
    "many buckets": (small_model, {"bucket_cap_mb": 0.01}),
    "static graph": (small_model, {"static_graph": True}),
    "unused": (Branches, {"find_unused_parameters": True}),
    "unused in many buckets": (Branches, {"find_unused_parameters": True, "bucket_cap_mb": 0.005}),
    "channels last": (Pictures, {}),
    "mixed dtypes": (Mixed, {}),
    "sparse": (Sparse, {}),
}


def variant_trained(rank: int, variant: str, codec: str | None) -> tuple[str, float]:
    make, options = VARIANTS[variant]
    model = Ddp(make(), **options)
    if codec:
        gradwire.torch.compress(model, codec)
    losses = train(model, rank, 6, optimizer=torch.optim.SGD(model.parameters(), lr=0.05))
    return digest_any(model), losses[-1]


def digest_any(model: nn.Module) -> str:
    for parameter in model.parameters():
        parameter.data = parameter.data.double()
    return digest(model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_model(variant):
    """Exactly the same as without us when nothing is lost; replicas are equal when something is."""
    plain = on_ranks(2, variant_trained, variant, None)
    assert on_ranks(2, variant_trained, variant, "none") == plain
    lossy = on_ranks(2, variant_trained, variant, "grid:step=0.5")
    assert lossy[0][0] == lossy[1][0] != plain[0][0]


def by_way_of_the_host(rank: int, stages: bool) -> str:
    """As from a GPU, which there is none of here."""
    if stages:
        ddp.DdpCompression = functools.partial(ddp.DdpCompression, copies_to_host=True)
    model = Ddp(small_model(), gradient_as_bucket_view=True, bucket_cap_mb=0.01)
    gradwire.torch.compress(model)
    train(model, rank, 4)
    return digest(model)


def test_copies_on_the_host_give_the_same_bits():
    assert on_ranks(2, by_way_of_the_host, True) == on_ranks(2, by_way_of_the_host, False)


def accumulated(rank: int, codec: str | None) -> str:
    model = Ddp(small_model())
    if codec:
        gradwire.torch.compress(model, codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(rank, 9)):
        if step % 3 != 2:
            with model.no_sync():
                nn.functional.cross_entropy(model(x), y).backward()
            continue
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(model)


def test_no_sync():
    plain = on_ranks(2, accumulated, None)
    assert on_ranks(2, accumulated, "none") == plain
    assert len(set(on_ranks(2, accumulated, "grid:step=0.5"))) == 1


def scaled(rank: int, codec: str) -> tuple[str, float, bool]:
    model = Ddp(small_model())
    gradwire.torch.compress(model, codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step, (x, y) in enumerate(batches(rank, 3)):
        loss = nn.functional.cross_entropy(model(x), y)
        if step == 1 and rank == 1:
            loss = loss * float("inf")
        before = digest(model)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 1:
            skipped = digest(model) == before
    return digest(model), scaler.get_scale(), skipped


@pytest.mark.parametrize("codec", ["grid:step=0.5", "uniform:bits=4", "sign"])
def test_an_overflow_on_one_rank_stops_the_scalers_step_on_all(codec):
    first, second = on_ranks(2, scaled, codec)
    assert first == second
    assert first[1:] == (2.0, True)


def compiled(rank: int, codec: str | None) -> str:
    model = Ddp(small_model())
    if codec:
        gradwire.torch.compress(model, codec)
    fast = torch.compile(model, backend="aot_eager")
    train(fast, rank, 4)
    return digest(model)


def test_compiled():
    plain = on_ranks(2, compiled, None)
    assert on_ranks(2, compiled, "none") == plain
    one, other = on_ranks(2, compiled, None, environment={"GRADWIRE": "1"})
    assert one == other != plain[0]


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
    gradwire.torch.compress(model)
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
        gradwire.torch.compress(model, exact=["body.*"])
    with pytest.raises(TypeError, match=r"write exact=\['head\.\*'\]"):
        gradwire.torch.compress(model, exact="head.*")
    with pytest.raises(ValueError, match="not compressed"):
        gradwire.torch.stats(model)
    model.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(ValueError, match="has a communication hook"):
        gradwire.torch.compress(model)


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
    gradwire.torch.compress(model)
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

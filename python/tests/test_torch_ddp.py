"""Gradients of DistributedDataParallel: averaged and equal on all ranks, whatever DDP is told."""

from __future__ import annotations

import functools
import itertools

import gradwire.torch
import pytest
import torch
from gradwire.torch import ddp
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

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
    gradwire.torch.compress(model, "grid:step=0.5")
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
    gradwire.torch.compress(model, "grid:step=0.5")
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

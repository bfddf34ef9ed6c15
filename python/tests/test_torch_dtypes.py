"""Every dtype and layout that torch can hand over: compressed, exact as by gloo, or refused."""

from __future__ import annotations

from collections.abc import Callable

import gradwire.torch
import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import on_ranks

FINE = "uniform:bits=8,bucket=128"
FINE_ERROR = 0.02
"""Relative to the norm: two roundings to 255 levels of a range that is about six sigma wide."""
SIZES = (48, 40)


def numbers(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.complex(
            torch.randn(*sizes, generator=generator), torch.randn(*sizes, generator=generator)
        ).to(dtype)
    return torch.randn(*sizes, generator=generator).to(dtype)


def pictures() -> torch.Tensor:
    return numbers(8, 12, 3, 5).to(memory_format=torch.channels_last)


COMPRESSED, EXACT = "compressed", "exact"
PARAMETERS: dict[str, tuple[str, Callable[[], torch.Tensor]]] = {
    "float32": (COMPRESSED, lambda: numbers(*SIZES)),
    "float16": (COMPRESSED, lambda: numbers(*SIZES, dtype=torch.float16)),
    "bfloat16": (COMPRESSED, lambda: numbers(*SIZES, dtype=torch.bfloat16)),
    "complex64": (COMPRESSED, lambda: numbers(*SIZES, dtype=torch.complex64)),
    "complex32": (COMPRESSED, lambda: numbers(*SIZES, dtype=torch.complex32)),
    "complex64, transposed": (COMPRESSED, lambda: numbers(*SIZES, dtype=torch.complex64).t()),
    "complex64, conjugated": (COMPRESSED, lambda: numbers(*SIZES, dtype=torch.complex64).conj()),
    "float64": (EXACT, lambda: numbers(*SIZES, dtype=torch.float64)),
    "complex128": (EXACT, lambda: numbers(*SIZES, dtype=torch.complex128)),
    "channels_last": (COMPRESSED, pictures),
    "transposed": (COMPRESSED, lambda: numbers(*SIZES).t()),
    "permuted": (COMPRESSED, lambda: numbers(4, 30, 12).permute(2, 0, 1)),
    "with gaps": (COMPRESSED, lambda: numbers(48, 80)[:, ::2]),
    "behind others": (COMPRESSED, lambda: numbers(60, 40)[12:]),
    "one number": (EXACT, lambda: numbers(1).reshape(())),
    "no numbers": (EXACT, lambda: numbers(0, 40)),
}


class Weighed(nn.Module):
    """Several parameters of a kind, whose gradients are other on every rank."""

    def __init__(self, make: Callable[[], torch.Tensor]):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(make()) for _ in range(3))

    def forward(self, step: int):
        total = 0
        for i, weight in enumerate(self.weights):
            seed = 100 * step + 10 * i + distributed.get_rank()
            factor = numbers(*weight.shape, 1, dtype=weight.dtype, seed=seed)[..., 0]
            if weight.dtype == torch.complex32:  # torch multiplies no pairs of halves on CPUs
                weight, factor = weight.to(torch.complex64), factor.to(torch.complex64)
            product = weight * factor
            total = total + (product.real if product.is_complex() else product).sum().float()
        return total


def gradients(rank: int, kind: str, codec: str | None):
    model = Ddp(Weighed(PARAMETERS[kind][1]))
    if codec:
        gradwire.torch.compress(model, codec)
    found = []
    for step in range(3):  # buckets are others in the second
        model.zero_grad()
        model(step).backward()
        found.append([w.grad.resolve_conj().contiguous() for w in model.module.weights])
    return found


def by_each_way(rank: int, function: Callable, kind: object, ways: list[tuple]) -> list:
    return [function(rank, kind, *way) for way in ways]


def as_reals(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def are_equal(some: list[list[torch.Tensor]], others: list[list[torch.Tensor]]) -> bool:
    return all(map(torch.equal, map(as_reals, sum(some, [])), map(as_reals, sum(others, []))))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("kind", PARAMETERS)
def test_parameters_of_ddp(kind):
    ways = [(None,), ("none",), (FINE,), (f"{FINE}+feedback",)]
    first, second = on_ranks(2, by_each_way, gradients, kind, ways)
    assert all(map(are_equal, first, second))
    plain, exact, *lossy = first
    assert are_equal(exact, plain)
    for ours in lossy:
        for mine, reference in zip(sum(ours, []), sum(plain, []), strict=True):
            error = (as_reals(mine) - as_reals(reference)).norm()
            assert error <= FINE_ERROR * as_reals(reference).norm()
            assert (error == 0) == (PARAMETERS[kind][0] == EXACT)


def sharded_gradients(rank: int, kind: str, codec: str | None) -> list[list[torch.Tensor]]:
    model = fully_shard(Weighed(PARAMETERS[kind][1]))
    if codec:
        gradwire.torch.compress(model, codec)
    found = []
    for step in range(2):
        model.zero_grad()
        model(step).backward()
        found.append([weight.grad.full_tensor().resolve_conj() for weight in model.weights])
    return found


@pytest.mark.parametrize(
    "kind, way",
    [
        ("float32", COMPRESSED),
        ("float16", COMPRESSED),
        ("bfloat16", COMPRESSED),
        ("behind others", COMPRESSED),
        ("float64", EXACT),
        ("complex64", EXACT),
        ("complex64, conjugated", EXACT),
        ("complex128", EXACT),
    ],
)
def test_parameters_of_fsdp2(kind, way):
    plain, ours = on_ranks(2, by_each_way, sharded_gradients, kind, [(None,), (FINE,)])[0]
    for mine, reference in zip(sum(ours, []), sum(plain, []), strict=True):
        error = (as_reals(mine) - as_reals(reference)).norm()
        assert error <= FINE_ERROR * as_reals(reference).norm()
        assert (error == 0) == (way == EXACT)


def unsharded(rank: int) -> None:
    """Those that FSDP2 itself refuses."""
    for kind in ("channels_last", "transposed", "permuted", "with gaps", "one number"):
        with pytest.raises((NotImplementedError, ValueError)):
            fully_shard(Weighed(PARAMETERS[kind][1]))


def test_parameters_that_fsdp2_refuses():
    on_ranks(1, unsharded)


class Words(nn.Module):
    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.words = nn.EmbeddingBag(50, 40, sparse=True, dtype=dtype)
        nn.init.ones_(self.words.weight)

    def forward(self, step: int):
        chosen = torch.arange(step + distributed.get_rank(), 40, 7)[None]
        return (self.words(chosen) * 0.1).sum()


def sparse_gradients(rank: int, dtype: torch.dtype, codec: str | None):
    model = Ddp(Words(dtype))
    if codec:
        gradwire.torch.compress(model, f"{codec}+feedback")
    found = []
    for step in range(3):
        model.zero_grad()
        model(step).backward()
        found.append(model.module.words.weight.grad.to_dense())
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_gradients_of_ddp_are_gloos_to_the_bit(dtype):
    for plain, ours in on_ranks(3, by_each_way, sparse_gradients, dtype, [(None,), (FINE,)]):
        assert all(map(torch.equal, ours, plain))


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_what_goes_through_the_group_is_gloos_to_the_bit_on_three_ranks(kind):
    for plain, ours in on_ranks(3, by_each_way, gradients, kind, [(None,), (FINE,)]):
        assert are_equal(ours, plain)


def no_parameters(rank: int) -> None:
    """Those that torch itself refuses, so that none reaches us."""
    for make in (
        lambda: torch.ones(3, dtype=torch.int32),
        lambda: torch.ones(3, dtype=torch.bool),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    ):
        with pytest.raises(RuntimeError, match="floating point and complex dtype"):
            nn.Parameter(make())
    for make in (
        lambda: numbers(*SIZES).to(torch.float8_e4m3fn),
        lambda: numbers(*SIZES).to(torch.float8_e5m2),
        lambda: numbers(48, 1).expand(48, 40),
        lambda: torch.empty(48, 40, device="meta"),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            Ddp(Weighed(make))


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_parameters_that_torch_refuses():
    on_ranks(1, no_parameters)


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: numbers(*SIZES),
    "float16": lambda: numbers(*SIZES, dtype=torch.float16),
    "bfloat16": lambda: numbers(*SIZES, dtype=torch.bfloat16),
    "channels_last": pictures,
    "transposed": lambda: numbers(*SIZES).t(),
    "behind others": lambda: numbers(60, 40)[12:],
    "one number": lambda: numbers(1).reshape(()),
    "no numbers": lambda: numbers(0, 40),
}
REFUSED: dict[str, tuple[type[Exception], str, Callable[[], torch.Tensor]]] = {
    "float64": (TypeError, "not Double", lambda: numbers(3, dtype=torch.float64)),
    "complex64": (TypeError, "not ComplexFloat", lambda: numbers(3, dtype=torch.complex64)),
    "complex128": (TypeError, "not ComplexDouble", lambda: numbers(3, dtype=torch.complex128)),
    "float8": (TypeError, "not Float8", lambda: numbers(3).to(torch.float8_e4m3fn)),
    "integers": (TypeError, "not Long", lambda: torch.arange(3)),
    "truths": (TypeError, "not Bool", lambda: torch.ones(3, dtype=torch.bool)),
    "quantized": (
        TypeError,
        "not QInt8",
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    ),
    "sparse": (TypeError, "dense CPU tensors", lambda: torch.eye(3).to_sparse()),
    "compressed rows": (TypeError, "dense CPU tensors", lambda: torch.eye(3).to_sparse_csr()),
    "meta": (TypeError, "dense CPU tensors", lambda: torch.empty(3, device="meta")),
    "with gaps": (ValueError, "contiguous", lambda: numbers(48, 80)[:, ::2]),
    "expanded": (ValueError, "contiguous", lambda: numbers(48, 1).expand(48, 40)),
    "negated view": (ValueError, "resolve_neg", lambda: torch._neg_view(numbers(48))),
}


def sums(rank: int, kind: str, codec: str) -> tuple[torch.Tensor, torch.Tensor]:
    ours = TENSORS[kind]() * (rank + 1)
    theirs = ours.clone()
    gradwire.torch.all_reduce(ours, codec)
    distributed.all_reduce(theirs)
    return ours, theirs


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_all_reduce(kind):
    results = on_ranks(2, by_each_way, sums, kind, [("none",), (FINE,)])
    for (ours, theirs), _ in results:
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
    (_, (first, theirs)), (_, (second, _)) = results
    assert torch.equal(first, second)
    assert (first - theirs).double().norm() <= FINE_ERROR * theirs.double().norm()


def refusals(rank: int) -> None:
    for error, words, make in REFUSED.values():
        with pytest.raises(error, match=words):
            gradwire.torch.all_reduce(make())
    gradwire.torch.all_reduce(torch.ones(3))  # which the refusals left as it was


@pytest.mark.filterwarnings("ignore:torch.quantize", "ignore:Sparse CSR")
def test_tensors_that_all_reduce_refuses():
    on_ranks(2, refusals)

"""Tensors of PyTorch, by DLPack. gradwire does not need PyTorch; without it these are skipped."""

import gradwire
import numpy as np
import pytest

torch = pytest.importorskip("torch")

CODEC = gradwire.codec("none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", gradwire.codecs())
def test_tensors_go_through_every_codec(dtype, spec):
    codec = gradwire.codec(spec)
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    frame = codec.encode(x, seed=1)
    out = torch.zeros_like(x)
    assert codec.decode(frame, out=out) is out
    if codec.traits.lossless:
        assert torch.equal(out, x)
    total = torch.ones_like(x)
    codec.decode_add(frame, total)
    exact = torch.ones(1000) + torch.from_numpy(codec.decode(frame, np.empty(1000, np.float32)))
    assert torch.equal(total, exact.to(dtype))


def test_frames_of_bfloat16_decode_to_float32():
    x = torch.randn(100).to(torch.bfloat16)
    frame = CODEC.encode(x)
    assert gradwire.inspect(frame)[0].dtype == "bf16"
    y = CODEC.decode(frame)
    assert y.dtype == np.float32
    assert torch.equal(torch.from_numpy(y), x.to(torch.float32))


def test_tensors_and_arrays_give_the_same_frame():
    x = np.random.default_rng(0).standard_normal((10, 20)).astype("float32")
    codec = gradwire.codec("uniform")
    assert codec.encode(torch.from_numpy(x)) == codec.encode(x)


def test_gradients_are_taken_and_filled_in_place():
    layer = torch.nn.Linear(8, 4)
    layer(torch.ones(8)).sum().backward()
    gradient = layer.weight.grad
    frame = CODEC.encode(gradient)
    before = gradient.clone()
    CODEC.decode_add(frame, gradient)
    assert torch.equal(layer.weight.grad, 2 * before)


@pytest.mark.parametrize(
    "tensor, sentence",
    [
        (torch.zeros(4, dtype=torch.float64), "x has dtype float64; convert it to float32"),
        (torch.zeros(4, dtype=torch.int64), "x has dtype int64; convert it to float32"),
        (torch.zeros(4, 4).t()[:, :2], "x is not C-contiguous; pass a contiguous array"),
        (torch.zeros(4, device="meta"), "pass a NumPy array .* or a dense, detached CPU tensor"),
        (torch.eye(4).to_sparse(), "pass a NumPy array .* or a dense, detached CPU tensor"),
    ],
    ids=["float64", "int64", "transposed", "meta", "sparse"],
)
def test_other_tensors_are_refused(tensor, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        CODEC.encode(tensor)


def test_parts_of_an_autograd_graph_are_refused():
    parameter = torch.nn.Parameter(torch.zeros(4))
    frame = CODEC.encode(torch.ones(4))
    with pytest.raises(ValueError, match=r"x is part of an autograd graph; pass x\.detach\(\)"):
        CODEC.encode(parameter)
    with pytest.raises(ValueError, match=r"out is part of an autograd graph; pass out\.detach\(\)"):
        CODEC.decode(frame, out=parameter)
    CODEC.decode(frame, out=parameter.detach())
    assert torch.equal(parameter.detach(), torch.ones(4))


def test_lazily_negated_tensors_are_refused():
    x = torch._neg_view(torch.ones(4))
    with pytest.raises(ValueError, match=r"pass x\.resolve_neg\(\)"):
        CODEC.encode(x)
    assert (CODEC.decode(CODEC.encode(x.resolve_neg())) == -1).all()

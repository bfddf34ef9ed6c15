"""Codecs as values, and numbers through every codec and back within its stated bounds."""

import copy
import pickle

import gradwire
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

SPECS = gradwire.codecs()
COUNTS = [0, 1, 7, 8, 127, 128, 129, 4095]

# Gradients as they come: any finite magnitude that squares and sums without overflow.
finite = st.floats(-(2.0**40), 2.0**40, width=32)


def gaussian(count: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(dtype)


def bucket_wise(x: np.ndarray, bucket: int, function) -> np.ndarray:
    """`function` of each bucket, repeated for each of its elements."""
    starts = np.arange(0, x.size, bucket)
    return np.repeat(function.reduceat(x, starts), np.diff(np.append(starts, x.size)))


def nmse(codec: gradwire.Codec, x: np.ndarray) -> float:
    y = codec.decode(codec.encode(x))
    return float(((y - x) ** 2).sum(dtype=np.float64) / (x**2).sum(dtype=np.float64))


# Values


@pytest.mark.parametrize("spec", SPECS)
def test_spec_makes_an_equal_codec(spec):
    codec = gradwire.codec(spec)
    assert codec.spec == spec
    assert codec.name == spec.split(":")[0]
    assert codec == gradwire.codec(codec.spec)
    assert hash(codec) == hash(gradwire.codec(codec.spec))
    assert eval(repr(codec)) == codec


def test_left_out_keys_take_their_defaults():
    assert gradwire.codec("uniform:bucket=128") == gradwire.codec("uniform:bits=4")


@pytest.mark.parametrize("given", [4, None, gradwire.codec("fp16")])
def test_what_is_no_text_makes_no_codec(given):
    with pytest.raises(TypeError, match="a codec is made from a text such as 'grid:step=0.5', not"):
        gradwire.codec(given)


def test_other_settings_make_unequal_codecs():
    assert gradwire.codec("uniform:bits=4") != gradwire.codec("uniform:bits=5")
    assert gradwire.codec("none") != gradwire.codec("sign")
    assert gradwire.codec("none") != "none"
    assert len({gradwire.codec("none"), gradwire.codec("none"), gradwire.codec("sign")}) == 2


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_the_codec(spec, protocol):
    codec = gradwire.codec(spec)
    assert pickle.loads(pickle.dumps(codec, protocol)) == codec
    assert copy.deepcopy(codec) == codec


def test_pickle_keeps_what_was_fitted():
    x = gaussian(1000)
    fitted = gradwire.codec("grid:step=0.5").fit(x)
    again = pickle.loads(pickle.dumps(fitted))
    assert again == fitted
    assert again.encode(x[:256]) == fitted.encode(x[:256])


def test_codecs_are_immutable():
    codec = gradwire.codec("none")
    with pytest.raises(AttributeError):
        codec.spec = "sign"
    with pytest.raises(AttributeError):
        codec.bits = 4


@pytest.mark.parametrize("spec", SPECS)
def test_traits_are_true_or_false(spec):
    traits = gradwire.codec(spec).traits
    assert all(type(value) is bool for value in traits)
    assert traits._fields == ("lossless", "unbiased", "fixed_size", "keeps_zeros", "sparse")


def test_traits_of_known_codecs():
    assert gradwire.codec("none").traits == gradwire.Traits(True, True, True, True, False)
    assert gradwire.codec("uniform:rounding=stochastic").traits.unbiased
    assert gradwire.codec("topk").traits.sparse
    assert not gradwire.codec("uniform:rounding=nearest").traits.unbiased
    assert gradwire.codec("grid:rounding=stochastic").traits.keeps_zeros


# Round trips


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("count", COUNTS)
def test_round_trip_keeps_dtype_count_and_traits(spec, dtype, count):
    codec = gradwire.codec(spec)
    x = gaussian(count, dtype)
    x[::3] = 0
    frame = codec.encode(x, seed=1)
    assert type(frame) is bytes
    assert len(frame) <= codec.max_frame_bytes(count)
    y = codec.decode(frame)
    assert y.dtype == x.dtype and y.shape == (count,)
    assert np.isfinite(y).all()
    if codec.traits.lossless:
        assert y.tobytes() == x.tobytes()
    if codec.traits.keeps_zeros:
        assert (y[x == 0] == 0).all()
    if codec.traits.fixed_size:
        assert len(codec.encode(np.zeros_like(x))) == len(frame)


@pytest.mark.parametrize("spec", SPECS)
def test_decode_add_adds_what_decode_gives(spec):
    codec = gradwire.codec(spec)
    x = gaussian(1000)
    frame = codec.encode(x, seed=3)
    total = gaussian(1000, seed=9)
    expected = total + codec.decode(frame)
    assert codec.decode_add(frame, total) is None
    assert total.tobytes() == expected.tobytes()


@pytest.mark.parametrize("spec", SPECS)
def test_same_key_gives_same_bytes_on_every_isa(spec):
    codec = gradwire.codec(spec)
    x = gaussian(3000)
    before = gradwire.isa()
    try:
        frames, decoded = set(), set()
        for isa in gradwire.isas():
            gradwire.use_isa(isa)
            frames.add(codec.encode(x, seed=1, step=2, tensor=3, rank=4))
            decoded.add(codec.decode(codec.encode(x)).tobytes())
    finally:
        gradwire.use_isa(before)
    assert len(frames) == 1 and len(decoded) == 1


@pytest.mark.parametrize("part", ["seed", "step", "tensor", "rank"])
def test_each_part_of_the_key_matters(part):
    codec = gradwire.codec("uniform:bits=2,rounding=stochastic")
    x = gaussian(1000)
    assert codec.encode(x) == codec.encode(x, **{part: 0})
    assert codec.encode(x) != codec.encode(x, **{part: 1})
    assert codec.encode(x, **{part: 2**64 - 1}) != codec.encode(x, **{part: 2**63})
    assert codec.encode(x, **{part: np.int64(5)}) == codec.encode(x, **{part: 5})


def test_random_bits_are_a_function_of_key_and_index():
    bits = gradwire.random_bits(10_000, seed=1)
    assert bits.dtype == np.uint16 and bits.shape == (10_000,)
    assert (gradwire.random_bits(100, seed=1, first_element=500) == bits[500:600]).all()
    assert (gradwire.random_bits(10_000, seed=2) != bits).any()
    # The mean of n uniform numbers on 0 … 65535 has a deviation of 65536 / sqrt(12 n).
    assert abs(bits.mean() - 65535 / 2) < 5 * 65536 / np.sqrt(12 * bits.size)


def test_slices_draw_what_the_whole_draws():
    codec = gradwire.codec("uniform:bits=2,bucket=128,rounding=stochastic")
    x = gaussian(1000)
    whole = codec.decode(codec.encode(x, seed=5))
    for first in (0, 128, 640):
        part = codec.decode(codec.encode(x[first:], seed=5, first_element=first))
        assert part.tobytes() == whole[first:].tobytes()


@pytest.mark.parametrize("spec", SPECS)
def test_fit_keeps_the_kind(spec):
    codec = gradwire.codec(spec)
    x = gaussian(1000)
    fitted = codec.fit(x)
    assert fitted.name == codec.name and fitted.traits == codec.traits
    assert fitted.fit(x).decode(fitted.encode(x)).shape == (1000,)


# Bounds


@settings(deadline=None)
@given(
    x=arrays.arrays(np.float32, st.integers(1, 400), elements=finite),
    bits=st.integers(1, 8),
    bucket=st.integers(1, 300),
    rounding=st.sampled_from(["stochastic", "nearest"]),
    meta=st.sampled_from(["fp32", "bf16"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_uniform_error_is_below_a_unit(x, bits, bucket, rounding, meta, seed):
    codec = gradwire.codec(f"uniform:bits={bits},bucket={bucket},rounding={rounding},meta={meta}")
    y = codec.decode(codec.encode(x, seed=seed)).astype(np.float64)
    exact = x.astype(np.float64)
    low, high = bucket_wise(exact, bucket, np.minimum), bucket_wise(exact, bucket, np.maximum)
    # bf16 has 8 bits: the minimum moves down by up to 2^-7 of itself and the unit up as much.
    coarse = 2.0**-7 if meta == "bf16" else 2.0**-22
    unit = (high - low + coarse * abs(low)) / (2**bits - 1) * (1 + coarse)
    float_rounding = 2.0**-22 * np.maximum(abs(low), abs(high)) + 2.0**-126
    assert (abs(y - exact) <= unit * (0.5 if rounding == "nearest" else 1) + float_rounding).all()


@settings(deadline=None)
@given(
    x=arrays.arrays(np.float32, st.integers(1, 400), elements=finite),
    bits=st.integers(2, 8),
    bucket=st.integers(1, 300),
    rounding=st.sampled_from(["stochastic", "nearest"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_exponential_error_is_below_the_number_or_the_smallest_level(
    x, bits, bucket, rounding, seed
):
    codec = gradwire.codec(f"exponential:bits={bits},bucket={bucket},rounding={rounding}")
    y = codec.decode(codec.encode(x, seed=seed)).astype(np.float64)
    exact = x.astype(np.float64)
    norm = bucket_wise(abs(exact), bucket, np.maximum) * (1 + 2.0**-7)
    top = 2 ** (bits - 1) - 1
    smallest = norm * 2.0 ** (1 - top) + 2.0**-120
    assert (abs(y - exact) <= np.maximum(abs(exact), smallest) * (1 + 2.0**-20)).all()


@given(x=arrays.arrays(np.float32, st.integers(1, 400), elements=finite))
@settings(deadline=None)
def test_sign_keeps_signs_and_mean_magnitude(x):
    codec = gradwire.codec("sign:bucket=1024,meta=fp32")
    y = codec.decode(codec.encode(x))
    mean = abs(x.astype(np.float64)).mean()
    assert np.allclose(abs(y), mean, rtol=1e-5, atol=2.0**-120)
    # What is not zero and does not vanish beside the others keeps its sign.
    large = abs(x) > 2.0**-20 * mean
    assert (np.signbit(y) == np.signbit(x))[large].all()


@pytest.mark.parametrize("spec, bound", [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_casts_round_to_their_precision(spec, bound):
    codec = gradwire.codec(spec)
    x = gaussian(10_000)
    error = abs(codec.decode(codec.encode(x)) - x)
    assert (error <= bound * abs(x) + 2.0**-25).all()


ROUNDINGS = ["stochastic", "nearest", "dither"]


@settings(deadline=None)
@given(
    x=arrays.arrays(np.float32, st.integers(1, 400), elements=finite),
    step=st.floats(2.0**-6, 16, width=32),
    rounding=st.sampled_from(ROUNDINGS),
    seed=st.integers(0, 2**64 - 1),
)
def test_grid_error_is_below_a_step(x, step, rounding, seed):
    codec = gradwire.codec(f"grid:step={step},locality=0,rounding={rounding}")
    y = codec.decode(codec.encode(x, seed=seed)).astype(np.float64)
    exact = x.astype(np.float64)
    delta = step * np.sqrt((exact**2).mean())
    float_rounding = 2.0**-20 * abs(exact).max() + 2.0**-120
    share = 1 if rounding == "stochastic" else 0.5
    assert (abs(y - exact) <= share * delta * (1 + 2.0**-10) + float_rounding).all()
    if codec.traits.keeps_zeros:
        assert (y[exact == 0] == 0).all()


@pytest.mark.parametrize(
    "rounding, variance", [("stochastic", 1 / 6), ("nearest", 1 / 12), ("dither", 1 / 12)]
)
@pytest.mark.parametrize("step", [0.1, 0.5])
def test_grid_error_on_average(rounding, variance, step):
    """In steps, the mean squared error of uniform rounding is 1/12, of stochastic rounding 1/6."""
    codec = gradwire.codec(f"grid:step={step},rounding={rounding}")
    x = gaussian(100_000)
    assert nmse(codec, x) == pytest.approx(step**2 * variance, rel=0.1)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("wanted", [0.001, 0.02])
def test_grid_makes_the_error_that_is_asked_for(rounding, wanted):
    codec = gradwire.codec(f"grid:nmse={wanted},rounding={rounding}")
    assert nmse(codec, gaussian(100_000)) == pytest.approx(wanted, rel=0.05)


def test_uniform_error_of_gaussian_numbers():
    assert nmse(gradwire.codec("uniform:bits=8"), gaussian(100_000)) < 1e-3


@pytest.mark.parametrize("spec", [spec for spec in SPECS if gradwire.codec(spec).traits.unbiased])
def test_unbiased_codecs_are_right_on_average(spec):
    """Along any direction, the mean over seeds is within five deviations of the exact value."""
    codec, draws = gradwire.codec(spec), 1000
    x = gaussian(1000)
    decoded = np.stack([codec.decode(codec.encode(x, seed=s)) for s in range(draws)])
    for direction in (x, np.ones_like(x), abs(x), gaussian(1000, seed=1)):
        error = (decoded - x).astype(np.float64) @ direction.astype(np.float64)
        float_rounding = 1e-6 * np.linalg.norm(x) * np.linalg.norm(direction)
        assert abs(error.mean()) <= 5 * error.std() / np.sqrt(draws) + float_rounding


# Hostile values


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_arrive_as_non_finite(spec, value):
    codec = gradwire.codec(spec)
    x = gaussian(1000)
    x[500] = value
    y = codec.decode(codec.encode(x))
    bucket = slice(500 // 128 * 128, 500 // 128 * 128 + 128)
    assert not np.isfinite(y[bucket]).all()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-38, 1.0, -3.0, 6e4])
def test_constant_tensors_decode_close(spec, value):
    codec = gradwire.codec(spec)
    x = np.full(300, value, np.float32)
    y = codec.decode(codec.encode(x))
    assert np.isfinite(y).all()
    assert (abs(y - x) <= abs(x) + 2.0**-120).all()
    if codec.traits.keeps_zeros and value == 0:
        assert (y == 0).all()


def test_a_way_is_told_from_a_codec():
    words = "'sign\\+feedback' is a way, which all_reduce and compress take; its codec is 'sign:"
    with pytest.raises(gradwire.Error, match=words) as raised:
        gradwire.codec("sign+feedback")
    assert raised.value.code == "invalid_spec"
    with pytest.raises(gradwire.Error, match="unknown codec 'sgn\\+feedback'"):
        gradwire.codec("sgn+feedback")


def test_an_instruction_set_is_named_by_a_text():
    with pytest.raises(TypeError, match="name is 5; give a text"):
        gradwire.use_isa(5)

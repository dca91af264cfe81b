"""Random ops over the Philox stream: filling, dropout, permutations, multinomial sampling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .philox import DIGITS, U64, join, multiply_wide, normals, positive_unit, unit, words
from .registry import lower
from .scan import scan
from .sorting import search, topk

if TYPE_CHECKING:
    from .builder import Builder, Operand, TensorSpec, Value

aten = torch.ops.aten


def _output(b: Builder) -> TensorSpec:
    out = b.outputs[0]
    assert out is not None
    return out


def _unit(b: Builder, rng: Value, shape: tuple[int, ...], dtype: torch.dtype, plane: int = 0) -> Value:
    """Uniform on [0, 1)."""
    block = words(b, rng, shape, plane)
    return unit(b, block[0], block[1], dtype)


def _positive_unit(b: Builder, rng: Value) -> Value:
    """Uniform on (0, 1] at the output's shape."""
    out = _output(b)
    block = words(b, rng, out.shape)
    return positive_unit(b, block[0], block[1], out.dtype)


# ---- continuous


@lower(aten.uniform, random=True)
def uniform(b: Builder, _: Value, low: Operand = 0.0, high: Operand = 1.0, *, rng: Value, **__: Any) -> Value:
    out = _output(b)
    real = dtypes.real(out.dtype)
    low, high = b.scalar(low, dtypes.opmath(real)), b.scalar(high, dtypes.opmath(real))
    w0, w1, w2, w3 = words(b, rng, out.shape)
    if out.dtype != torch.complex64:
        parts = [unit(b, w0, w1, real)] + ([unit(b, w2, w3, real)] if out.dtype.is_complex else [])
    else:
        parts = [unit(b, w0, w0, real), unit(b, w1, w1, real)]
    parts = [part * (high - low) + low for part in parts]
    return b.complex(*parts) if out.dtype.is_complex else parts[0]


def _standard_normal(b: Builder, rng: Value, out: TensorSpec) -> Value:
    first, second = normals(b, words(b, rng, out.shape), dtypes.real(out.dtype))
    return b.complex(first, second) * math.sqrt(0.5) if out.dtype.is_complex else first


def _normal(b: Builder, rng: Value, mean: Operand, std: Operand) -> Value:
    out = _output(b)
    mean, std = b.scalar(mean, dtypes.opmath(out.dtype)), b.scalar(std, dtypes.opmath(out.dtype))
    return _standard_normal(b, rng, out) * std + mean


@lower(aten.normal_functional, random=True)
def normal(b: Builder, _: Value, mean: Operand = 0.0, std: Operand = 1.0, *, rng: Value, **__: Any) -> Value:
    return _normal(b, rng, mean, std)


@lower(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, random=True)
def normal_around(b: Builder, mean: Operand, std: Operand = 1.0, *, rng: Value, **__: Any) -> Value:
    return _normal(b, rng, mean, std)


@lower(aten.log_normal, random=True)
def log_normal(b: Builder, _: Value, mean: Operand = 1.0, std: Operand = 2.0, *, rng: Value, **__: Any) -> Value:
    return b.exponential(_normal(b, rng, mean, std))


def _exponential(b: Builder, unit: Value) -> Value:
    """Standard exponential of a uniform on (0, 1]; never zero, so that one may divide by it."""
    return b.maximum(-b.log(unit), 2.0 ** -(DIGITS[unit.dtype] + 2))


@lower(aten.exponential, random=True)
def exponential(b: Builder, _: Value, rate: Operand = 1.0, *, rng: Value, **__: Any) -> Value:
    sample = _exponential(b, _positive_unit(b, rng))
    return sample / b.scalar(rate, sample.dtype)


@lower(aten.cauchy, random=True)
def cauchy(b: Builder, _: Value, median: Operand = 0.0, sigma: Operand = 1.0, *, rng: Value, **__: Any) -> Value:
    turn = _positive_unit(b, rng)
    return b.scalar(median, turn.dtype) + b.scalar(sigma, turn.dtype) * b.tan((turn - 0.5) * math.pi)


# ---- discrete


@lower(aten.geometric, random=True)
def geometric(b: Builder, _: Value, p: Operand, *, rng: Value, **__: Any) -> Value:
    block = words(b, rng, _output(b).shape)
    dtype = _output(b).dtype if _output(b).dtype == torch.float64 else torch.float32
    chance = positive_unit(b, block[0], block[1], dtype)
    trials = b.ceil(b.log(chance) / b.log_plus_one(-b.scalar(p, dtype)))
    return b.maximum(trials, 1.0)


@lower(aten.bernoulli.default, random=True)
def bernoulli(b: Builder, p: Value, *, rng: Value, **_: Any) -> Value:
    return _bernoulli(b, rng, p)


@lower(aten.bernoulli.p, aten.bernoulli.Tensor, random=True)
def bernoulli_of(b: Builder, _: Value, p: Operand = 0.5, *, rng: Value, **__: Any) -> Value:
    return _bernoulli(b, rng, p)


def _bernoulli(b: Builder, rng: Value, p: Operand) -> Value:
    out = _output(b)
    dtype = torch.float64 if getattr(p, "dtype", None) == torch.float64 else torch.float32
    chance = b.broadcast_to(b.scalar(p, dtype), out.shape)
    return (_unit(b, rng, out.shape, dtype) < chance).to(out.dtype)


def _integers(b: Builder, rng: Value, low: int, count: int) -> Value:
    """Uniform on [low, low + count) at the output's shape and dtype; low wraps as a 64-bit integer."""
    out = _output(b)
    w0, w1, *_ = words(b, rng, out.shape)
    if count <= 2**32:
        drawn = (w0 if count == 2**32 else multiply_wide(b, w0, count)[0]).to(torch.int64)
    else:
        drawn = join(b, w0, w1)
        if count < 2**64:
            drawn = b.remainder(drawn, b.full((), count, U64))
        drawn = b.bitcast_convert(drawn, torch.int64)
    return (drawn + b.full((), low, torch.int64)).to(out.dtype)


def _largest(dtype: torch.dtype) -> int:
    """The end of random_'s default range: what the dtype counts to without a gap."""
    if dtype.is_floating_point:
        return int(2 ** DIGITS[dtype])
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max


@lower(aten.random.default, random=True)
def random(b: Builder, _: Value, *, rng: Value, **__: Any) -> Value:
    return _integers(b, rng, 0, _largest(_output(b).dtype) + 1)


@lower(aten.random.to, random=True)
def random_to(b: Builder, _: Value, to: int, *, rng: Value, **__: Any) -> Value:
    return _integers(b, rng, 0, to)


@lower(getattr(aten.random, "from"), random=True)
def random_from(b: Builder, _: Value, low: int, to: int | None = None, *, rng: Value, **__: Any) -> Value:
    end = _largest(_output(b).dtype) + 1 if to is None else to
    return _integers(b, rng, low, end - low)


# ---- dropout


@lower(aten.native_dropout, random="p")
def native_dropout(
    b: Builder, x: Value, p: Operand, train: bool | None = True, *, rng: Value | None = None
) -> tuple[Value, Value]:
    if train is False or rng is None:
        return x, b.full(x.shape, True, torch.bool)
    keep = 1 - b.scalar(p, torch.float32)
    mask = _unit(b, rng, x.shape, torch.float32) < keep
    dtype = dtypes.opmath(x.dtype)
    scale = b.select(keep.eq(0), 0, 1 / keep).to(dtype)
    return b.select(mask, x.to(dtype) * scale, 0), mask


@lower(aten.rrelu_with_noise_functional, random=True)
@lower(aten.rrelu_with_noise.default, random=True, mutates=["noise"])
def rrelu_with_noise(
    b: Builder,
    x: Value,
    noise: Value,
    lower: Operand = 0.125,
    upper: Operand = 1 / 3,
    training: bool = False,
    *_: Any,
    rng: Value,
    **__: Any,
) -> tuple[Value, Value]:
    """The slope of negative elements is drawn in training and is the mean otherwise; noise keeps it for backward."""
    dtype = dtypes.opmath(x.dtype)
    low, high = b.scalar(lower, dtype), b.scalar(upper, dtype)
    wide = x.to(dtype)
    if not training:
        return b.select(wide < 0, wide * ((low + high) / 2), wide), noise
    slope = b.select(wide <= 0, _unit(b, rng, x.shape, dtype) * (high - low) + low, 1)
    return wide * slope, slope.to(noise.dtype)


# ---- permutations and categories


@lower(aten.randperm.default, aten.randperm.generator, random=True)
def randperm(b: Builder, n: int, *, rng: Value, **_: Any) -> Value:
    """Sort indices by random bits: one integer holds both, the index in its low bits."""
    if n < 2:
        return b.full((n,), 0, torch.int64)
    bits = n.bit_length()
    block = words(b, rng, (n,))
    index = b.iota((n,), 0, U64)
    key = b.shift_left(join(b, block[0], block[1]), b.full((), bits, U64)) | index
    key = b.sort([key], 0, lambda x, y: x < y, stable=False)[0]
    return b.bitcast_convert(key & b.full((), (1 << bits) - 1, U64), torch.int64)


@lower(aten.multinomial, random=True)
def multinomial(
    b: Builder, weights: Value, num_samples: int, replacement: bool = False, *, rng: Value, **_: Any
) -> Value:
    dtype = dtypes.opmath(weights.dtype)
    weights = weights.to(dtype)
    if not replacement or num_samples == 1:
        # The categories ordered by weight over an exponential: the first is distributed by weight, and so on.
        block = words(b, rng, weights.shape)
        race = weights / _exponential(b, positive_unit(b, block[0], block[1], dtype))
        return topk(b, race, num_samples)[1]
    sums = scan(b, weights, weights.ndim - 1, 0, b.add)
    total = b.slice_dim(sums, -1, weights.shape[-1] - 1, weights.shape[-1])
    target = _unit(b, rng, (*weights.shape[:-1], num_samples), dtype) * total
    return b.minimum(search(b, sums, target, right=True), weights.shape[-1] - 1)

"""Pooling and its gradients, over the trailing two or three dims, one dim after the other."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .indices import Combine, gather_dims, index_dtype, scatter_dims
from .meta import meta
from .registry import RuleFn, lower
from .windows import Windows, fold, unfold_sum

if TYPE_CHECKING:
    from .builder import Builder, Dims, Value

aten = torch.ops.aten

MAX_TAPS = 64


def _spatial(name: str) -> Callable[[RuleFn], RuleFn]:
    """Register a rule, which is told the number of spatial dims, for two and three of them."""

    def decorate(fn: RuleFn) -> RuleFn:
        for n in (2, 3):
            lower(getattr(aten, name.format(n)).default)(functools.partial(_with_dims, fn, n))
        return fn

    return decorate


def _with_dims(fn: RuleFn, n: int, b: Builder, *args: Any) -> Any:
    return fn(b, n, *args)


def _each(values: Sequence[int] | int, n: int) -> list[int]:
    """One entry per spatial dim; a single one stands for all."""
    values = [values] if isinstance(values, int) else list(values)
    return values * n if len(values) == 1 else values


def _regular(
    size: Dims, count: Dims, kernel: Dims, stride: Dims, padding: Dims | int, dilation: Dims | int = 1
) -> list[Windows]:
    """The windows of each spatial dim; count: how many there are."""
    n = len(size)
    kernel = _each(kernel, n)
    stride = _each(stride, n) if len(stride) else kernel
    return [
        Windows.regular(s, c, k, step, p, d)
        for s, c, k, step, p, d in zip(size, count, kernel, stride, _each(padding, n), _each(dilation, n))
    ]


def _adaptive(size: Dims, count: Dims) -> list[Windows]:
    return [Windows.adaptive(s, c) for s, c in zip(size, count)]


# ---- maximum


def _positions(b: Builder, shape: Dims, n: int) -> Value:
    """The place of each element in its plane of the last n dims."""
    plane = shape[-n:]
    dtype = index_dtype(math.prod(plane))
    flat = b.iota((math.prod(plane),), 0, dtype)
    return b.broadcast_to(b.reshape(flat, plane), shape)


def _later_maximum(b: Builder, best: Value, where: Value, x: Value, place: Value) -> list[Value]:
    """The maximum and its place: the first of equal ones, the last NaN. Any order of combining gives the same."""
    wins = (x > best) | (x.eq(best) & (place < where))
    if x.is_float:
        wins = wins | (b.is_nan(x) & (~b.is_nan(best) | (place > where)))
    return [b.select(wins, x, best), b.select(wins, place, where)]


def _maximum(b: Builder, x: Value, windows: Sequence[Windows]) -> list[Value]:
    n = len(windows)
    places = _positions(b, x.shape, n)
    nothing = [dtypes.lowest(x.dtype), torch.iinfo(places.dtype).max]
    pair = [x, places]
    for i, w in reversed(list(enumerate(windows))):
        pair = fold(b, pair, x.ndim - n + i, w, nothing, lambda *v: _later_maximum(b, *v))
    return pair


@_spatial("max_pool{}d_with_indices")
def max_pool(
    b: Builder,
    n: int,
    x: Value,
    kernel: Dims,
    stride: Dims = (),
    padding: Dims | int = 0,
    dilation: Dims | int = 1,
    ceil_mode: bool = False,
) -> list[Value]:
    spec = b.outputs[0]
    assert spec is not None
    return _maximum(b, x, _regular(x.shape[-n:], spec.shape[-n:], kernel, stride, padding, dilation))


@_spatial("adaptive_max_pool{}d")
def adaptive_max_pool(b: Builder, n: int, x: Value, output_size: Dims) -> list[Value]:
    return _maximum(b, x, _adaptive(x.shape[-n:], _each(output_size, n)))


# ---- gradient of the maximum


def _flat_places(b: Builder, places: Value, plane: Dims) -> Value:
    """The place of each element in the flat tensor of all planes."""
    area, n = math.prod(plane), len(plane)
    rows, columns = math.prod(places.shape[:-n]), math.prod(places.shape[-n:])
    places = b.reshape(places.to(index_dtype(rows * area)), (rows, columns))
    return b.reshape(places + b.iota(places.shape, 0, places.dtype) * area, (rows * columns,))


def _to_places(b: Builder, x: Value, places: Value, plane: Dims, combine: Combine) -> Value:
    """Zeros, with each element of x combined into its place in its plane."""
    lead = places.shape[: -len(plane)]
    flat = b.full((math.prod(lead) * math.prod(plane),), 0, x.dtype)
    x = b.reshape(x, (x.numel,))
    return b.reshape(scatter_dims(b, flat, [0], [_flat_places(b, places, plane)], x, 0, combine), (*lead, *plane))


def _to_windows(b: Builder, g: Value, places: Value, windows: Sequence[Windows]) -> Value:
    """The sum of g at its places, for regular windows: each place looks at the windows that may have chosen it."""
    lead = [0] * (g.ndim - len(windows))
    shape = (*g.shape[: len(lead)], *(w.size for w in windows))
    here = _positions(b, shape, len(windows))
    none = [0] * g.ndim
    apart = [*lead, *((w.stride or 1) - 1 for w in windows)]
    g = b.pad(g, 0, none, none, apart)
    places = b.pad(places.to(here.dtype), -1, none, none, apart)
    total = b.full(shape, 0, g.dtype)
    for taps in itertools.product(*(range(w.lengths[0]) for w in windows)):
        lows = [*lead, *(w.starts[0] + t * w.step for w, t in zip(windows, taps))]
        highs = [to - size - low for to, size, low in zip(shape, g.shape, lows)]
        total = total + b.select(b.pad(places, -1, lows, highs).eq(here), b.pad(g, 0, lows, highs), 0.0)
    return total


def _maximum_backward(b: Builder, g: Value, places: Value, windows: Sequence[Windows]) -> Value:
    g = g.to(dtypes.opmath(g.dtype))
    taps = math.prod(max(w.lengths, default=0) for w in windows)
    # XLA:CPU scatters fast (1 ms against 4); a TPU does one element after the other.
    if b.platform == "tpu" and 0 < taps <= MAX_TAPS and all(w.stride for w in windows):
        return _to_windows(b, g, places, windows)
    return _to_places(b, g, places, [w.size for w in windows], b.add)


@_spatial("max_pool{}d_with_indices_backward")
def max_pool_backward(
    b: Builder,
    n: int,
    g: Value,
    x: Value,
    kernel: Dims,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    ceil_mode: bool,
    places: Value,
) -> Value:
    windows = _regular(x.shape[-n:], places.shape[-n:], kernel, stride, padding, dilation)
    return _maximum_backward(b, g, places, windows)


@_spatial("adaptive_max_pool{}d_backward")
def adaptive_max_pool_backward(b: Builder, n: int, g: Value, x: Value, places: Value) -> Value:
    return _maximum_backward(b, g, places, _adaptive(x.shape[-n:], places.shape[-n:]))


# ---- average


def _sum(b: Builder, x: Value, windows: Sequence[Windows]) -> Value:
    x = x.to(dtypes.opmath(x.dtype))
    for i, w in reversed(list(enumerate(windows, x.ndim - len(windows)))):
        (x,) = fold(b, [x], i, w, [0], b.add)
    return x


def _unfold_sum(b: Builder, g: Value, windows: Sequence[Windows]) -> Value:
    for i, w in enumerate(windows, g.ndim - len(windows)):
        g = unfold_sum(b, g, i, w)
    return g


def _over_counts(b: Builder, x: Value, counts: Sequence[Sequence[int]]) -> Value:
    """x over how many places its window counts, given for each spatial dim."""
    divisor: Value | None = None
    common = 1
    for dim, values in enumerate(counts, x.ndim - len(counts)):
        if len(set(values)) <= 1:
            common *= values[0] if values else 1
            continue
        along = b.broadcast_in_dim(b.constant(values, x.dtype), x.shape, [dim])
        divisor = along if divisor is None else divisor * along
    if divisor is None:
        return b.divide(x, b.full(x.shape, common, x.dtype)) if common != 1 else x
    return b.divide(x, divisor * b.full((), common, x.dtype))


def _counts(
    windows: Sequence[Windows], padding: Sequence[int], include_pad: bool, override: int | None
) -> list[list[int]]:
    """How many places each window counts: clipped to the dim, or to the dim with its padding."""
    if override is not None:
        return [[override] if i == 0 else [1] for i in range(len(windows))]
    edges = padding if include_pad else [0] * len(windows)
    return [[min(s + n, w.size + e) - max(s, -e) for s, n in zip(w.starts, w.lengths)] for w, e in zip(windows, edges)]


@_spatial("avg_pool{}d")
def avg_pool(
    b: Builder,
    n: int,
    x: Value,
    kernel: Dims,
    stride: Dims = (),
    padding: Dims | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    spec = b.outputs[0]
    assert spec is not None
    windows = _regular(x.shape[-n:], spec.shape[-n:], kernel, stride, padding)
    counts = _counts(windows, _each(padding, n), count_include_pad, divisor_override)
    return _over_counts(b, _sum(b, x, windows), counts)


@_spatial("avg_pool{}d_backward")
def avg_pool_backward(
    b: Builder,
    n: int,
    g: Value,
    x: Value,
    kernel: Dims,
    stride: Dims,
    padding: Dims,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    windows = _regular(x.shape[-n:], g.shape[-n:], kernel, stride, padding)
    counts = _counts(windows, _each(padding, n), count_include_pad, divisor_override)
    return _unfold_sum(b, _over_counts(b, g.to(dtypes.opmath(g.dtype)), counts), windows)


@_spatial("_adaptive_avg_pool{}d")
def adaptive_avg_pool(b: Builder, n: int, x: Value, output_size: Dims) -> Value:
    windows = _adaptive(x.shape[-n:], _each(output_size, n))
    return _over_counts(b, _sum(b, x, windows), [w.lengths for w in windows])


@_spatial("_adaptive_avg_pool{}d_backward")
def adaptive_avg_pool_backward(b: Builder, n: int, g: Value, x: Value) -> Value:
    windows = _adaptive(x.shape[-n:], g.shape[-n:])
    g = g.to(dtypes.opmath(g.dtype))
    return _unfold_sum(b, _over_counts(b, g, [w.lengths for w in windows]), windows)


# ---- fractional maximum, unpooling


@_spatial("fractional_max_pool{}d")
def fractional_max_pool(b: Builder, n: int, x: Value, kernel: Dims, output_size: Dims, samples: Value) -> list[Value]:
    """Windows of one size at pseudo-random places, drawn for each plane."""
    size, kernel, output_size = x.shape[-n:], _each(kernel, n), _each(output_size, n)
    rows = math.prod(x.shape[:-n])
    samples = b.slice_dim(b.reshape(samples, (samples.numel // n, n)), 0, 0, rows)  # there may be more
    samples = samples.to(dtypes.opmath(samples.dtype))
    shape = (rows, *output_size, *kernel)
    places = b.full(shape, 0, torch.int32)
    for i in range(n):
        column = i if n == 3 else 1 - i  # PyTorch keeps (time, height, width), but (width, height)
        sample = b.slice_dim(samples, 1, column, column + 1)
        starts = _fractional_starts(b, sample, size[i], output_size[i], kernel[i])
        along = b.broadcast_in_dim(starts, shape, [0, 1 + i]) + b.iota(shape, 1 + n + i, torch.int32)
        places = places * size[i] + along
    flat = b.reshape(places, (rows, math.prod(output_size), math.prod(kernel)))
    planes = b.broadcast_in_dim(b.iota((rows,), 0, torch.int32), flat.shape, [0])
    values = gather_dims(b, b.reshape(x, (rows, math.prod(size))), [0, 1], [planes, flat], 0)
    nothing = [dtypes.lowest(x.dtype), torch.iinfo(torch.int32).max]
    best = b.reduce([values, flat], nothing, [2], lambda *v: _later_maximum(b, *v))
    return [b.reshape(v, (*x.shape[:-n], *output_size)) for v in best]


def _fractional_starts(b: Builder, sample: Value, size: int, count: int, kernel: int) -> Value:
    """(rows, count) starts from one sample a row."""
    rows = sample.shape[0]
    last = b.full((rows, 1), size - kernel, torch.int32)
    if count == 1:
        return last
    alpha = b.full((), (size - kernel) / (count - 1), sample.dtype)
    steps = b.iota((rows, count - 1), 1, sample.dtype)
    starts = ((steps + sample) * alpha).to(torch.int32) - (sample * alpha).to(torch.int32)
    return b.concatenate([starts, last], 1)


@_spatial("fractional_max_pool{}d_backward")
def fractional_max_pool_backward(
    b: Builder, n: int, g: Value, x: Value, kernel: Dims, output_size: Dims, places: Value
) -> Value:
    return _to_places(b, g.to(dtypes.opmath(g.dtype)), places, x.shape[-n:], b.add)


@meta(aten.fractional_max_pool3d_backward.default)
def _meta_fractional_backward(g: torch.Tensor, x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x)


@_spatial("max_unpool{}d")
def max_unpool(b: Builder, n: int, x: Value, places: Value, output_size: Dims, *window: Dims) -> Value:
    return _to_places(b, x, places, output_size, lambda old, new: new)

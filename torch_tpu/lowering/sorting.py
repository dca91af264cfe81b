"""Sorting, selecting the largest, searching in what is sorted, and counting into bins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import dtypes
from .indices import as_index, gather_dims, index_dtype, scatter_dims, take_along
from .reduction import extreme_at
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten


# ---- sort


def sort_with_index(b: Builder, x: Value, dim: int, descending: bool = False) -> tuple[Value, Value]:
    """Stable, NaN above all numbers: the values and their places (int32) along a dim of x."""
    if b.platform == "cpu" and _packs(x.dtype):
        return _sort_packed(b, x, dim, descending)
    places = b.iota(x.shape, dim, index_dtype(x.shape[dim]))

    def before(x0: Value, x1: Value, *_: Value) -> Value:
        first, second = (x1, x0) if descending else (x0, x1)
        less = b.compare(first, "LT", second) if not x.is_bool else ~first & second
        return less | (~b.is_nan(first) & b.is_nan(second)) if x.is_float else less

    values, places = b.sort([x, places], dim, before)
    return values, places


def _packs(dtype: torch.dtype) -> bool:
    return dtype.itemsize <= 4 and not dtype.is_complex


def _sort_packed(b: Builder, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    """Value and place in one int64: XLA:CPU sorts a single operand four times as fast as two."""
    moved = b.swap_dims(x, dim, -1)
    key = order_key(b, moved)
    key = b.shift_left((~key if descending else key).to(torch.int64), b.full((), 32, torch.int64))
    key = b.sort([key | b.iota(moved.shape, moved.ndim - 1, torch.int64)], -1, lambda p, q: p < q, stable=False)[0]
    places = key.to(torch.int32)  # the low half
    values = take_along(b, moved, places, moved.ndim - 1)
    return b.swap_dims(values, dim, -1), b.swap_dims(places, dim, -1)


def order_key(b: Builder, x: Value) -> Value:
    """An int32 that orders as x does (of at most 32 bits): zeros equal, NaN above all."""
    if not x.is_float:
        return (x.to(torch.int64) - 2**31).to(torch.int32) if x.dtype == torch.uint32 else x.to(torch.int32)
    x = x.to(torch.float32)
    bits = b.bitcast_convert(b.select(x.eq(0), 0.0, x), torch.int32)
    magnitude = b.full((), 0x7FFFFFFF, torch.int32)
    return b.select(b.is_nan(x), magnitude, b.select(bits < 0, bits ^ magnitude, bits))


@lower(aten.sort.default)
def sort(b: Builder, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    if not -max(x.ndim, 1) <= dim < max(x.ndim, 1):
        raise IndexError(f"Dimension out of range (got {dim} for {x.ndim} dims)")
    if not x.ndim or not x.numel:
        return x, b.full(x.shape, 0, torch.int64)
    values, places = sort_with_index(b, x, dim % x.ndim, descending)
    return values, places.to(torch.int64)


@lower(aten.sort.stable)
def sort_stable(
    b: Builder, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return sort(b, x, dim, descending)


# ---- topk


@lower(aten.topk)
def topk(b: Builder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    if not x.ndim:
        return x, b.full((), 0, torch.int64)
    dim %= x.ndim
    if not k or not x.numel:
        shape = tuple(k if d == dim else s for d, s in enumerate(x.shape))
        return b.full(shape, 0, x.dtype), b.full(shape, 0, torch.int64)
    if k == 1 and (largest or not x.is_float):  # the least may not be NaN
        return extreme_at(b, x, dim, True, b.reduce_max if largest else b.reduce_min)
    if (x.is_float or x.dtype.itemsize < 4) and 4 * k <= x.shape[dim]:  # for more, sorting is as fast
        moved = b.swap_dims(x, dim, -1)
        places = _top_places(b, moved, k, largest)
        values = take_along(b, moved, places, moved.ndim - 1)
        values, places = b.swap_dims(values, dim, -1), b.swap_dims(places, dim, -1)
    else:
        values, places = (b.slice_dim(v, dim, 0, k) for v in sort_with_index(b, x, dim, descending=largest))
    return values, places.to(torch.int64)


def _top_places(b: Builder, x: Value, k: int, largest: bool) -> Value:
    """The form that XLA knows as top-k: a descending sort in total order, sliced."""
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    key = x.to(dtype)
    if not largest:
        key = -key
    if x.is_float:
        nan = b.bitcast_convert(b.full((), 0x7FF8 << 48 if dtype == torch.float64 else 0x7FC00000, _bits(dtype)), dtype)
        key = b.select(b.is_nan(x), nan if largest else -nan, key)
    places = b.iota(x.shape, x.ndim - 1, torch.int32)
    _, places = b.sort([key, places], -1, lambda p, q, *_: b.compare(p, "GT", q, total_order=True))
    return b.slice_dim(places, -1, 0, k)


def _bits(dtype: torch.dtype) -> torch.dtype:
    return torch.int64 if dtype == torch.float64 else torch.int32


# ---- search


def search(b: Builder, ordered: Value, values: Value, right: bool) -> Value:
    """How many of `ordered`'s last dim come before each value (right: or equal it); leading dims agree or `ordered`
    has none."""
    size = ordered.shape[-1]
    count = index_dtype(size)
    if not size or not values.numel:
        return b.full(values.shape, 0, count)

    def before(element: Value, value: Value) -> Value:
        # As PyTorch's search: a NaN on either side leads to the right.
        return ~b.compare(element, "GT" if right else "GE", value)

    if size <= 32:
        spread = (*values.shape, size)
        lined = ordered if ordered.ndim == 1 else b.unsqueeze(ordered, -2)
        return b.reduce_sum(before(b.broadcast_to(lined, spread), b.unsqueeze(values, -1)).to(count), [-1])

    def step(found: Value, stride: Value) -> list[Value]:
        candidate = found + stride
        place = b.minimum(candidate, size) - 1
        if ordered.ndim == 1:
            element = gather_dims(b, ordered, [0], [place], 0)
        else:
            element = take_along(b, ordered, place, ordered.ndim - 1)
        further = (candidate <= size) & before(element, values)
        return [b.select(further, candidate, found), b.shift_right_logical(stride, b.full((), 1, count))]

    start = [b.full(values.shape, 0, count), b.full((), 1 << (size.bit_length() - 1), count)]
    return b.while_loop(start, lambda _, stride: stride > 0, step)[0]


@lower(aten.searchsorted)
def searchsorted(
    b: Builder,
    ordered: Value,
    values: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    if sorter is not None:
        ordered = take_along(b, ordered, as_index(b, sorter, ordered.shape[-1]), ordered.ndim - 1)
    dtype = b.promote(ordered, values)
    values = values.to(dtype) if not isinstance(values, bool | int | float | complex) else b.scalar(values, dtype)
    return search(b, ordered.to(dtype), values, right or side == "right")


@lower(aten.bucketize)
def bucketize(b: Builder, values: Operand, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    if boundaries.ndim != 1:
        raise ValueError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(b, boundaries, values, right=right)


@lower(aten.isin)
def isin(b: Builder, elements: Operand, tests: Operand, *, assume_unique: bool = False, invert: bool = False) -> Value:
    dtype = b.promote(elements, tests)
    elements, tests = b.scalar(elements, dtype), b.scalar(tests, dtype)
    if not tests.numel:
        found = b.full(elements.shape, False, torch.bool)
    elif tests.numel <= 32:
        pairs = b.compare(b.unsqueeze(elements, -1), "EQ", b.reshape(tests, (tests.numel,)))
        found = b.reduce_or(pairs, [-1])
    else:
        ordered, _ = sort_with_index(b, b.reshape(tests, (tests.numel,)), 0)
        place = b.minimum(search(b, ordered, elements, right=False), tests.numel - 1)
        found = elements.eq(gather_dims(b, ordered, [0], [place], 0))
    return ~found if invert else found


# ---- bins


@lower(aten.histc)
def histc(b: Builder, x: Value, bins: int = 100, min: Operand = 0, max: Operand = 0) -> Value:
    """Counts of evenly spaced bins; equal ends mean those of the data."""
    dtype = dtypes.opmath(x.dtype)
    narrow = {torch.bfloat16: (8, 7), torch.float16: (5, 10)}.get(x.dtype)

    def rounded(value: Value) -> Value:
        return b.reduce_precision(value, *narrow) if narrow else value

    x = b.reshape(x.to(dtype), (x.numel,))
    low, high = b.scalar(min, dtype), b.scalar(max, dtype)
    if x.numel:
        of_data = low.eq(high)
        low, high = b.select(of_data, b.reduce_min(x), low), b.select(of_data, b.reduce_max(x), high)
    single = low.eq(high)
    low, high = b.select(single, low - 1, low), b.select(single, high + 1, high)
    # PyTorch rounds to the tensor's dtype at every step, which decides at the edges of bins.
    place = rounded(rounded(rounded(x - low) * rounded(b.full((), bins, dtype))) / rounded(high - low))
    place = b.minimum(place.to(torch.int32), bins - 1)
    place = b.select((x >= low) & (x <= high), place, bins)  # out of range: dropped
    zeros = b.full((bins,), 0, torch.int32)
    return scatter_dims(b, zeros, [0], [place], b.full(x.shape, 1, torch.int32), 0, b.add)

"""Cumulative ops, and order statistics, which sort."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from . import dtypes
from .reduction import accumulated
from .registry import lower
from .sorting import sort_with_index
from .transcendental import logaddexp

if TYPE_CHECKING:
    from .builder import Body, Builder, Operand, Value

aten = torch.ops.aten


def scan(b: Builder, x: Value, dim: int, init: Operand, body: Body) -> Value:
    """Combine each element with all before it; XLA turns a window of this form into a tree."""
    if not x.ndim or not x.numel:
        return x
    dim %= x.ndim
    window, padding = [1] * x.ndim, [(0, 0)] * x.ndim
    window[dim], padding[dim] = x.shape[dim], (x.shape[dim] - 1, 0)
    return b.reduce_window([x], [init], body, window, padding=padding)[0]


@lower(aten.cumsum)
def cumsum(b: Builder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return scan(b, accumulated(b, x), dim, 0, b.add)


@lower(aten.cumprod)
def cumprod(b: Builder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    return scan(b, accumulated(b, x), dim, 1, b.multiply)


@lower(aten.logcumsumexp, aten._logcumsumexp)
def logcumsumexp(b: Builder, x: Value, dim: int) -> Value:
    """A scan in plain ops: the TPU compiler has no model of such a reduction, takes long, and may end."""
    sums = accumulated(b, x)
    reach = 1
    while x.ndim and reach < x.shape[dim]:
        low = [reach if d == dim % x.ndim else 0 for d in range(x.ndim)]
        sums = logaddexp(b, sums, b.pad(sums, -math.inf, low, [-n for n in low]))
        reach *= 2
    return sums


def _cumulative_extreme(
    b: Builder, x: Value, dim: int, init: Operand, better: Callable[[Value, Value], Value]
) -> tuple[Value, Value]:
    """The extremes so far and the last place each was met."""
    values = scan(b, x, dim, init, better)
    if not x.ndim:
        return values, b.full((), 0, torch.int64)
    met = x.eq(values) | b.is_nan(x)
    places = b.select(met, b.iota(x.shape, dim % x.ndim, torch.int32), -1)
    return values, scan(b, places, dim, -1, b.maximum).to(torch.int64)


@lower(aten.cummax)
def cummax(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    return _cumulative_extreme(b, x, dim, dtypes.lowest(x.dtype), b.maximum)


@lower(aten.cummin)
def cummin(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    return _cumulative_extreme(b, x, dim, dtypes.highest(x.dtype), b.minimum)


# ---- order statistics


def _at(b: Builder, x: Value, dim: int, index: int, keepdim: bool) -> Value:
    taken = b.slice_dim(x, dim, index, index + 1)
    return taken if keepdim else b.reshape(taken, x.shape[:dim] + x.shape[dim + 1 :])


@lower(aten.kthvalue)
def kthvalue(b: Builder, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    if not x.ndim:
        return x, b.full((), 0, torch.int64)
    dim %= x.ndim
    values, places = sort_with_index(b, x, dim)
    return _at(b, values, dim, k - 1, keepdim), _at(b, places, dim, k - 1, keepdim).to(torch.int64)


def _median(b: Builder, x: Value, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Value, Value]:
    """The lower median and its place. Without ignore_nan, the first NaN if there is one."""
    if not x.ndim:
        return x, b.full((), 0, torch.int64)
    size = x.shape[dim]
    values, places = sort_with_index(b, x, dim)
    if not x.is_float:
        middle = (size - 1) // 2
        return _at(b, values, dim, middle, keepdim), _at(b, places, dim, middle, keepdim).to(torch.int64)
    ordered = b.reduce_sum((~b.is_nan(x)).to(torch.int32), [dim], True)
    count = b.full(ordered.shape, size, torch.int32)
    middle_or_nan = b.divide(b.maximum((ordered if ignore_nan else count) - 1, 0), 2)
    if not ignore_nan:
        middle_or_nan = b.select(ordered < size, ordered, middle_or_nan)
    chosen = b.iota(x.shape, dim, torch.int32).eq(middle_or_nan)
    value = _pick(b, values, chosen, dim, keepdim)
    return value, b.reduce_max(b.select(chosen, places, -1), [dim], keepdim).to(torch.int64)


def _pick(b: Builder, x: Value, chosen: Value, dim: int, keepdim: bool) -> Value:
    """The one chosen element along dim, NaN included."""
    return b.reduce_max(b.select(chosen, x, dtypes.lowest(x.dtype)), [dim], keepdim)


@lower(aten.median.dim)
def median_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _median(b, x, dim % x.ndim if x.ndim else 0, keepdim, ignore_nan=False)


@lower(aten.nanmedian.dim)
def nanmedian_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _median(b, x, dim % x.ndim if x.ndim else 0, keepdim, ignore_nan=True)


def _median_all(b: Builder, x: Value, ignore_nan: bool) -> Value:
    if not x.numel:
        return b.full((), math.nan, x.dtype)
    return _median(b, b.reshape(x, (x.numel,)), 0, False, ignore_nan)[0]


@lower(aten.median.default)
def median_all(b: Builder, x: Value) -> Value:
    return _median_all(b, x, ignore_nan=False)


@lower(aten.nanmedian.default)
def nanmedian_all(b: Builder, x: Value) -> Value:
    return _median_all(b, x, ignore_nan=True)


@lower(aten.mode)
def mode(b: Builder, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The least of the most frequent values, and its last place."""
    if not x.ndim:
        return x, b.full((), 0, torch.int64)
    dim %= x.ndim
    values, places = sort_with_index(b, x, dim)
    size = x.shape[dim]
    index = b.iota(x.shape, dim, torch.int32)
    # The start of each run of equal values, carried along the run, gives the length so far.
    previous = b.slice_dim(values, dim, 0, size - 1)
    starts = b.slice_dim(values, dim, 1, size).ne(previous)
    low, high = [0] * x.ndim, [0] * x.ndim
    low[dim] = 1
    is_start = b.pad(starts, True, low, high)
    start = scan(b, b.select(is_start, index, 0), dim, 0, b.maximum)
    length = index - start
    longest = b.reduce_max(length, [dim], True)
    first = b.reduce_min(b.select(length.eq(longest), index, size - 1), [dim], True)
    chosen = index.eq(first)
    return (
        _pick(b, values, chosen, dim, keepdim),
        b.reduce_max(b.select(chosen, places, -1), [dim], keepdim).to(torch.int64),
    )

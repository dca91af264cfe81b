"""Distances between rows: cdist, pdist and their gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from . import dtypes
from .indices import gather_dims, scatter_dims
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten


def _norm(b: Builder, x: Value, p: float) -> Value:
    """The p-norm over the last dim."""
    size = b.abs(x)
    last = [x.ndim - 1]
    if p == 0:
        return b.reduce_sum(size.ne(0.0).to(x.dtype), last)
    if p == 1:
        return b.reduce_sum(size, last)
    if p == 2:
        return b.sqrt(b.reduce_sum(x * x, last))
    if math.isinf(p):
        return b.maximum(b.reduce_max(size, last), 0.0)
    return b.power(b.reduce_sum(b.power(size, p), last), 1.0 / p)


def _slope(b: Builder, x: Value, g: Value, norm: Value, p: float) -> Value:
    """The gradient of the p-norm by x; norm and g have x's dims, the last of size one. Zero where the norm is."""
    zero = b.full((), 0, x.dtype)
    if p == 0:
        return b.full(x.shape, 0, x.dtype)
    if p == 1:
        return g * b.sign(x)
    if p == 2:
        return b.select(norm.eq(0.0), zero, g * b.divide(x, norm))
    size = b.abs(x)
    if math.isinf(p):
        return g * b.sign(x) * size.eq(norm).to(x.dtype)
    slope = g * b.sign(x) * b.power(b.divide(size, norm), p - 1.0)
    flat = size.eq(0.0) if p < 1 else norm.eq(0.0)
    return b.select(flat | norm.eq(0.0), zero, slope)


def _differences(b: Builder, x: Value, y: Value) -> Value:
    """(..., rows of x, rows of y, columns)"""
    return b.subtract(b.unsqueeze(x, -2), b.unsqueeze(y, -3))


@lower(aten._cdist_forward, static=("p",))
def cdist(b: Builder, x: Value, y: Value, p: float, compute_mode: int | None) -> Value:
    return _norm(b, _differences(b, x, y), p)


@lower(aten._cdist_backward, static=("p",))
def cdist_backward(b: Builder, g: Value, x: Value, y: Value, p: float, norm: Value) -> Value:
    slopes = _slope(b, _differences(b, x, y), b.unsqueeze(g, -1), b.unsqueeze(norm, -1), p)
    return b.reduce_sum(slopes, [slopes.ndim - 2])


def _pairs(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """The index vectors of the pairs of rows, the first before the second, and their differences."""
    first, second = (b.constant(i, torch.int32) for i in torch.triu_indices(x.shape[0], x.shape[0], 1))
    return first, second, gather_dims(b, x, [0], [first], 0) - gather_dims(b, x, [0], [second], 0)


@lower(aten._pdist_forward, static=("p",))
def pdist(b: Builder, x: Value, p: float = 2.0) -> Value:
    return _norm(b, _pairs(b, x.to(dtypes.opmath(x.dtype)))[2], p)


@lower(aten._pdist_backward, static=("p",))
def pdist_backward(b: Builder, g: Value, x: Value, p: float, norm: Value) -> Value:
    first, second, differences = _pairs(b, x)
    slopes = _slope(b, differences, b.unsqueeze(g, -1), b.unsqueeze(norm, -1), p)
    total = b.full(x.shape, 0, x.dtype)
    for rows, signed in ((first, slopes), (second, -slopes)):
        total = scatter_dims(b, total, [0], [rows], signed, 0, b.add)
    return total

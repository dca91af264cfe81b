"""Padding with a constant, by reflection and by replication, and the gradients; negative padding crops."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Dims, Operand, Value

aten = torch.ops.aten


@lower(aten.constant_pad_nd)
def constant_pad(b: Builder, x: Value, pad: Dims, value: Operand = 0) -> Value:
    n = x.ndim - len(pad) // 2
    lows, highs = ([0] * n + list(reversed(pad[i::2])) for i in (0, 1))
    return b.pad(x, b.scalar(value, x.dtype), lows, highs)


def _edges(x: Value, dim: int, low: int, high: int) -> tuple[int, int]:
    """The part of the dim that is kept."""
    return max(0, -low), x.shape[dim] - max(0, -high)


def _reflect(b: Builder, x: Value, dim: int, low: int, high: int) -> Value:
    size = x.shape[dim]
    parts = [b.slice_dim(x, dim, *_edges(x, dim, low, high))]
    if low > 0:
        parts.insert(0, b.reverse(b.slice_dim(x, dim, 1, 1 + low), [dim]))
    if high > 0:
        parts.append(b.reverse(b.slice_dim(x, dim, size - 1 - high, size - 1), [dim]))
    return b.concatenate(parts, dim)


def _replicate(b: Builder, x: Value, dim: int, low: int, high: int) -> Value:
    def widened(start: int, times: int) -> Value:
        edge = b.slice_dim(x, dim, start, start + 1)
        return b.broadcast_to(edge, [times if d == dim else s for d, s in enumerate(x.shape)])

    parts = [b.slice_dim(x, dim, *_edges(x, dim, low, high))]
    if low > 0:
        parts.insert(0, widened(0, low))
    if high > 0:
        parts.append(widened(x.shape[dim] - 1, high))
    return b.concatenate(parts, dim)


def _at(b: Builder, g: Value, dim: int, start: int, size: int) -> Value:
    """Zeros along dim with g at start."""
    lows, highs = [0] * g.ndim, [0] * g.ndim
    lows[dim], highs[dim] = start, size - start - g.shape[dim]
    return b.pad(g, 0, lows, highs)


def _split(b: Builder, g: Value, dim: int, low: int, high: int) -> tuple[Value, Value, Value]:
    """The gradient of what stands before, in and after the dim."""
    start, end = max(0, low), g.shape[dim] - max(0, high)
    return b.slice_dim(g, dim, 0, start), b.slice_dim(g, dim, start, end), b.slice_dim(g, dim, end, g.shape[dim])


def _reflect_backward(b: Builder, g: Value, dim: int, low: int, high: int, size: int) -> Value:
    before, inside, after = _split(b, g, dim, low, high)
    total = _at(b, inside, dim, max(0, -low), size)
    if low > 0:
        total = total + _at(b, b.reverse(before, [dim]), dim, 1, size)
    if high > 0:
        total = total + _at(b, b.reverse(after, [dim]), dim, size - 1 - high, size)
    return total


def _replicate_backward(b: Builder, g: Value, dim: int, low: int, high: int, size: int) -> Value:
    before, inside, after = _split(b, g, dim, low, high)
    total = _at(b, inside, dim, max(0, -low), size)
    if low > 0:
        total = total + _at(b, b.reduce_sum(before, [dim], keepdim=True), dim, 0, size)
    if high > 0:
        total = total + _at(b, b.reduce_sum(after, [dim], keepdim=True), dim, size - 1, size)
    return total


def _forward(along: Any, b: Builder, x: Value, padding: Dims) -> Value:
    for i in range(len(padding) // 2):
        x = along(b, x, x.ndim - 1 - i, padding[2 * i], padding[2 * i + 1])
    return x


def _backward(along: Any, b: Builder, g: Value, x: Value, padding: Dims) -> Value:
    g = g.to(dtypes.opmath(g.dtype))
    for i in range(len(padding) // 2):
        dim = x.ndim - 1 - i
        g = along(b, g, dim, padding[2 * i], padding[2 * i + 1], x.shape[dim])
    return g


for _n in (1, 2, 3):
    for _name, _along, _along_backward in (
        ("reflection", _reflect, _reflect_backward),
        ("replication", _replicate, _replicate_backward),
    ):
        lower(getattr(aten, f"{_name}_pad{_n}d").default)(functools.partial(_forward, _along))
        lower(getattr(aten, f"{_name}_pad{_n}d_backward").default)(functools.partial(_backward, _along_backward))

"""Distances between the rows of matrices, and their gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from . import dtypes
from .reduction import norm
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

# Past this many rows PyTorch takes Euclidean distances from a matrix product.
_PRODUCT_FROM = 25


def _differences(b: Builder, x: Value, y: Value) -> Value:
    """(..., P, R, M) of (..., P, M) and (..., R, M); XLA does not store it when it is reduced at once."""
    return b.unsqueeze(x, -2) - b.unsqueeze(y, -3)


def _euclidean_by_product(b: Builder, x: Value, y: Value) -> Value:
    batch = list(range(x.ndim - 2))
    product = b.dot_general(x, y, contract=([-1], [-1]), batch=(batch, batch), precision="HIGHEST")
    xx = b.reduce_sum(x * x, [-1], True)
    yy = b.unsqueeze(b.reduce_sum(y * y, [-1]), -2)
    return b.sqrt(b.maximum(xx + yy - 2 * product, 0))


def _distances(b: Builder, x: Value, y: Value, p: float) -> Value:
    return norm(b, _differences(b, x, y), p, [x.ndim], False)


@lower(aten._cdist_forward, static=["p"])
def cdist(b: Builder, x: Value, y: Value, p: float, compute_mode: int | None) -> Value:
    """compute_mode: 0 or None by size, 1 and 2 with and without a matrix product for p = 2."""
    batch = b.broadcast_shape(x.shape[:-2], y.shape[:-2])
    x, y = b.broadcast_to(x, batch + x.shape[-2:]), b.broadcast_to(y, batch + y.shape[-2:])
    large = max(x.shape[-2], y.shape[-2]) > _PRODUCT_FROM
    if p == 2 and (compute_mode == 1 or (compute_mode in (None, 0) and large)):
        return _euclidean_by_product(b, x, y)
    return _distances(b, x, y, p)


def _slope(b: Builder, difference: Value, distance: Value, p: float) -> Value:
    """The derivative of each distance by each difference, 0 where it has none."""
    size, sign = b.abs(difference), b.sign(difference)
    if p == 1:
        return sign
    if p == math.inf:
        return b.select(size.eq(distance), sign, 0)
    safe = b.select(distance.eq(0), 1, distance)
    slope = difference / safe if p == 2 else sign * b.power(size / safe, p - 1)
    return b.select(distance.eq(0) | difference.eq(0), 0, slope)


@lower(aten._cdist_backward, static=["p"])
def cdist_backward(b: Builder, grad: Value, x: Value, y: Value, p: float, distance: Value) -> Value:
    out = b.outputs[0]
    assert out is not None
    if p == 0 or not grad.numel:
        return b.full(out.shape, 0, x.dtype)
    slope = _slope(b, _differences(b, x, y), b.unsqueeze(distance, -1), p)
    return b.reduce_sum(b.unsqueeze(grad, -1) * slope, [-2])


def _pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(count, 1)


@lower(aten._pdist_forward, static=["p"])
def pdist(b: Builder, x: Value, p: float = 2) -> Value:
    count = x.shape[0]
    if count < 2:
        return b.full((0,), 0, x.dtype)
    rows = [b.constant(index, torch.int32) for index in _pairs(count)]
    first, second = (_take_rows(b, x, index) for index in rows)
    return norm(b, first - second, p, [1], False)


def _take_rows(b: Builder, x: Value, index: Value) -> Value:
    return b.gather(
        x,
        b.unsqueeze(index, 1),
        [1, x.shape[1]],
        offset_dims=[1],
        collapsed_dims=[0],
        start_index_map=[0],
        index_vector_dim=1,
    )


@lower(aten._pdist_backward, static=["p"])
def pdist_backward(b: Builder, grad: Value, x: Value, p: float, distance: Value) -> Value:
    count = x.shape[0]
    if p == 0 or count < 2:
        return b.full(x.shape, 0, x.dtype)
    # Each row meets every other one: as (count, count) matrices, whose diagonals do not matter.
    place = np.zeros((count, count), dtype=np.int32)
    place[_pairs(count)] = np.arange(count * (count - 1) // 2)
    index = b.constant((place + place.T).reshape(-1), torch.int32)
    full_grad, full_distance = (
        b.reshape(_take_rows(b, b.unsqueeze(v, 1), index), (count, count, 1)) for v in (grad, distance)
    )
    slope = _slope(b, _differences(b, x, x), full_distance, p)
    return b.reduce_sum(full_grad * slope, [1])


@lower(aten.linalg_cross)
def cross(b: Builder, x: Value, y: Value, *, dim: int = -1) -> Value:
    out = b.outputs[0]
    assert out is not None
    x, y = (b.broadcast_to(v.to(dtypes.opmath(out.dtype)), out.shape) for v in (x, y))

    def rotated(v: Value, by: int) -> Value:
        return b.concatenate([b.slice_dim(v, dim, by, 3), b.slice_dim(v, dim, 0, by)], dim)

    products = (rotated(x, 1) * rotated(y, 2), rotated(x, 2) * rotated(y, 1))
    first, second = (b.round_to(v, out.dtype) for v in products)  # they may cancel: rounded as PyTorch does
    return first - second

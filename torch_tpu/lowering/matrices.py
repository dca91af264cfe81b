"""Stacks of matrices: what the factorizations share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from .pointwise import conjugate

if TYPE_CHECKING:
    from .builder import Builder, Value


def stacked(b: Builder, x: Value, lead: int = 2) -> Value:
    """With one batch dim in front of the last `lead` dims."""
    return b.reshape(x, (math.prod(x.shape[: x.ndim - lead]), *x.shape[x.ndim - lead :]))


def like(b: Builder, x: Value, index: int) -> Value:
    """In the shape that PyTorch expects of the result at this place."""
    spec = b.outputs[index]
    assert spec is not None
    return b.reshape(x, spec.shape)


def adjoint_of(b: Builder, x: Value) -> Value:
    return conjugate(b, b.swap_dims(x, x.ndim - 2, x.ndim - 1))


def identity(b: Builder, shape: Sequence[int], dtype: torch.dtype) -> Value:
    return b.iota(shape, 1, torch.int32).eq(b.iota(shape, 2, torch.int32)).to(dtype)


def triangle(b: Builder, x: Value, lower: bool, offset: int = 0) -> Value:
    """The part on and below (or above) a diagonal, zeros elsewhere."""
    rows, columns = (b.iota(x.shape, x.ndim - d, torch.int32) for d in (2, 1))
    keep = columns <= rows + offset if lower else columns >= rows + offset
    return b.select(keep, x, b.full((), 0, x.dtype))


def diagonal(b: Builder, x: Value) -> Value:
    """(batch, n) of (batch, n, n)"""
    here = b.iota(x.shape, 1, torch.int32).eq(b.iota(x.shape, 2, torch.int32))
    return b.reduce_sum(b.select(here, x, b.full((), 0, x.dtype)), [2])


def common_batch(b: Builder, *xs: Value) -> list[Value]:
    """Stacks whose batch dims are broadcast against each other."""
    batch = b.broadcast_shape(*(x.shape[:-2] for x in xs))
    return [stacked(b, b.broadcast_to(x, (*batch, *x.shape[-2:]))) for x in xs]


def repeat(b: Builder, count: int, state: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
    """state = body(i, *state) for each i below count."""
    if count == 0:
        return list(state)
    start = b.full((), 0, torch.int32)
    return b.while_loop([start, *state], lambda i, *_: i < count, lambda i, *s: [i + 1, *body(i, *s)])[1:]


def column_at(b: Builder, x: Value, k: Value) -> Value:
    """(batch, rows)"""
    zero = b.full((), 0, torch.int32)
    return b.reshape(b.dynamic_slice(x, [zero, zero, k], (*x.shape[:2], 1)), x.shape[:2])

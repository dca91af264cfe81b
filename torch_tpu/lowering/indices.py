"""Gathers and scatters in PyTorch's terms, shared by the families that index.

Indices become int32 where the indexed sizes allow it: TPUs have no 64-bit integers. XLA clamps an index that is out
of range when it reads and drops it when it writes; what PyTorch accepts is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from . import dtypes

if TYPE_CHECKING:
    from .builder import Builder, Value

Combine = Callable[["Value", "Value"], "Value"]


def index_dtype(*sizes: int) -> torch.dtype:
    """The narrowest integer that counts to each of these sizes."""
    return torch.int64 if any(s > 2**31 - 1 for s in sizes) else torch.int32


def as_index(b: Builder, index: Value, size: int, *, wrap: bool = False) -> Value:
    """The index in its cheapest dtype; wrap: negative ones count from the end."""
    index = index.to(index_dtype(size))
    return b.select(index < 0, index + size, index) if wrap else index


def at_least_1d(b: Builder, x: Value) -> Value:
    return b.reshape(x, x.shape or (1,))


def _stack(b: Builder, indices: Sequence[Value]) -> tuple[Value, int]:
    """Index vectors and the dim they lie along (one past the last when there is one index)."""
    rank = indices[0].ndim
    if len(indices) == 1:
        return indices[0], rank
    dtype = torch.int64 if any(i.dtype == torch.int64 for i in indices) else torch.int32
    return b.concatenate([b.unsqueeze(i.to(dtype), rank) for i in indices], rank), rank


def gather_dims(b: Builder, x: Value, dims: Sequence[int], indices: Sequence[Value], at: int) -> Value:
    """x indexed along `dims` by indices of one common shape, which stands at dim `at` of the result."""
    rest = [d for d in range(x.ndim) if d not in dims]
    shape = indices[0].shape
    out = [x.shape[d] for d in rest]
    out[at:at] = shape
    if 0 in out or 0 in x.shape:  # nothing to read: all of it is masked, or there is nothing to give
        return b.full(out, 0, x.dtype)
    vectors, vector_dim = _stack(b, indices)
    return b.gather(
        x,
        vectors,
        [1 if d in dims else s for d, s in enumerate(x.shape)],
        offset_dims=_windows(len(rest), len(shape), at),
        collapsed_dims=sorted(dims),
        start_index_map=list(dims),
        index_vector_dim=vector_dim,
    )


def scatter_dims(
    b: Builder,
    x: Value,
    dims: Sequence[int],
    indices: Sequence[Value],
    updates: Value,
    at: int,
    combine: Combine,
    *,
    sorted_indices: bool = False,
    unique_indices: bool = False,
) -> Value:
    """The inverse of gather_dims: combine updates, shaped like its result, into x."""
    if 0 in updates.shape or 0 in x.shape:
        return x
    rest = x.ndim - len(dims)
    vectors, vector_dim = _stack(b, indices)
    return b.scatter(
        [x],
        vectors,
        [updates],
        combine,
        update_window_dims=_windows(rest, indices[0].ndim, at),
        inserted_window_dims=sorted(dims),
        scatter_dims_to_operand_dims=list(dims),
        index_vector_dim=vector_dim,
        sorted_indices=sorted_indices,
        unique_indices=unique_indices,
    )[0]


def _windows(rest: int, batch: int, at: int) -> list[int]:
    return [d for d in range(rest + batch) if not at <= d < at + batch]


def take_along(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """torch.gather: one element for each of the index's, at the index's own place in the other dims."""
    others = [d for d in range(x.ndim) if d != dim]
    x = b.slice(x, [0] * x.ndim, [s if d == dim else index.shape[d] for d, s in enumerate(x.shape)])
    if 0 in index.shape or 0 in x.shape:
        return b.full(index.shape, 0, x.dtype)
    return b.gather(
        x,
        index,
        [1] * x.ndim,
        offset_dims=[],
        collapsed_dims=[dim],
        start_index_map=[dim],
        index_vector_dim=x.ndim,
        operand_batching_dims=others,
        indices_batching_dims=others,
    )


def put_along(b: Builder, x: Value, index: Value, updates: Value, dim: int, combine: Combine) -> Value:
    """torch.scatter: combine each update into x at its index along dim."""
    updates = b.slice(updates, [0] * updates.ndim, index.shape)
    vectors = [index if d == dim else b.iota(index.shape, d, index.dtype) for d in range(x.ndim)]
    return scatter_dims(b, x, range(x.ndim), vectors, updates, 0, combine)


def accumulate(b: Builder, x: Value, scatter: Callable[[Value], Value]) -> Value:
    """Scatter into x at the precision PyTorch computes in, rounding once."""
    return scatter(x.to(dtypes.opmath(x.dtype))).to(x.dtype)

"""Embedding tables: lookups, bags, and their gradients.

A table's gradient is one scatter-add of rows: measured on XLA:CPU for 256 to 50,000 rows of 128 to 768 it beats a
one-hot product and sorted segments, and on TPUs whole rows are what scatters do best.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .indices import as_index, gather_dims, index_dtype, scatter_dims
from .registry import lower, python_call
from .scan import scan

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2


def _lookup(b: Builder, rows: Value, index: Value) -> Value:
    return gather_dims(b, rows, [0], [index], 0)


def _add_rows(b: Builder, count: int, index: Value, rows: Value, *, sorted_indices: bool = False) -> Value:
    """Sums of the rows that share an index; an index out of range is left out."""
    zeros = b.full((count, *rows.shape[1:]), 0, rows.dtype)
    return scatter_dims(b, zeros, [0], [index], rows, 0, b.add, sorted_indices=sorted_indices)


@lower(aten.embedding)
def embedding(
    b: Builder, weight: Value, indices: Value, padding_idx: int = -1, scale_grad: bool = False, sparse: bool = False
) -> Value:
    return _lookup(b, weight, as_index(b, indices, weight.shape[0]))


def _table_gradient(b: Builder, rows: Value, index: Value, count: int, padding_idx: int, by_frequency: bool) -> Value:
    """The gradient of a table with `count` rows, of which rows[i] came from row index[i]."""
    if by_frequency:
        frequency = _add_rows(b, count, index, b.full(index.shape, 1, rows.dtype))
        rows = b.divide(rows, b.reshape(_lookup(b, frequency, index), (index.numel, 1)))
    if padding_idx >= 0:
        index = b.select(index.eq(padding_idx), count, index)
    return _add_rows(b, count, index, rows)


@lower(aten.embedding_dense_backward)
def embedding_dense_backward(
    b: Builder, grad: Value, indices: Value, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    index = as_index(b, b.reshape(indices, (indices.numel,)), num_weights)
    rows = b.reshape(grad, (indices.numel, grad.shape[-1])).to(dtypes.opmath(grad.dtype))
    return _table_gradient(b, rows, index, num_weights, padding_idx, scale_grad_by_freq)


@lower(aten.embedding_renorm, static=["norm_type"])
def embedding_renorm(b: Builder, weight: Value, indices: Value, max_norm: Operand, norm_type: float) -> Value:
    index = as_index(b, b.reshape(indices, (indices.numel,)), weight.shape[0])
    rows = _lookup(b, weight, index).to(dtypes.opmath(weight.dtype))
    size = b.abs(rows)
    if math.isinf(norm_type):
        norm = b.reduce_max(size, [1], True)
    elif norm_type == 2:
        norm = b.sqrt(b.reduce_sum(rows * rows, [1], True))
    else:
        norm = b.power(b.reduce_sum(b.power(size, norm_type), [1], True), 1 / norm_type)
    limit = b.scalar(max_norm, rows.dtype)
    shrunk = (rows * b.select(norm > limit, b.divide(limit, norm + 1e-7), 1)).to(weight.dtype)
    # A row that is named twice is written twice, with the same values.
    return scatter_dims(b, weight, [0], [index], shrunk, 0, lambda old, new: new)


# ---- bags


@lower(aten._embedding_bag, aten._embedding_bag_forward_only)
def embedding_bag(
    b: Builder,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, Value, Value, Value]:
    """The bags, which bag each index is in, the bags' sizes, and the rows that hold the maxima."""
    bags = offsets.shape[0] - include_last_offset
    count = indices.numel
    index = as_index(b, indices, weight.shape[0])
    starts = b.slice_dim(as_index(b, offsets, count), 0, 0, bags)
    begun = _add_rows(b, count, starts, b.full((bags,), 1, starts.dtype))
    bag = scan(b, begun, 0, 0, b.add) - 1

    counted = index.ne(padding_idx) if padding_idx >= 0 else b.full((count,), True, torch.bool)
    bag_size = _add_rows(b, bags, bag, counted.to(torch.int32), sorted_indices=True)
    rows = _lookup(b, weight, index).to(dtypes.opmath(weight.dtype))
    if per_sample_weights is not None:
        rows = rows * b.unsqueeze(per_sample_weights.to(rows.dtype), 1)
    present = b.broadcast_in_dim(counted, rows.shape, [0])
    empty = b.broadcast_in_dim(bag_size.eq(0), (bags, rows.shape[1]), [0])
    if mode == MAX:
        start = b.full((bags, rows.shape[1]), -math.inf, rows.dtype)
        kept = b.select(present, rows, -math.inf)
        best = scatter_dims(b, start, [0], [bag], kept, 0, b.maximum, sorted_indices=True)
        out = b.select(empty, 0, best)
        maxima = _rows_of_maxima(b, index, bag, kept, best, empty)
    else:
        out = _add_rows(b, bags, bag, b.select(present, rows, 0), sorted_indices=True)
        if mode == MEAN:
            out = b.divide(out, b.unsqueeze(b.maximum(bag_size, 1).to(out.dtype), 1))
        maxima = b.full((0,), 0, torch.int64)
    if include_last_offset:  # PyTorch keeps one size for each offset
        bag_size = b.pad(bag_size, 0, [0], [1])
    return out, bag, bag_size, maxima


def _rows_of_maxima(b: Builder, index: Value, bag: Value, rows: Value, best: Value, empty: Value) -> Value:
    """For each bag and column the table's row where the maximum was met first; 0 for an empty bag."""
    if not index.numel:
        return b.full(best.shape, 0, torch.int64)
    position = b.iota(rows.shape, 0, index_dtype(rows.shape[0]))
    met = b.select(rows.eq(_lookup(b, best, bag)), position, rows.shape[0])
    first = b.full(best.shape, rows.shape[0], position.dtype)
    first = scatter_dims(b, first, [0], [bag], met, 0, b.minimum, sorted_indices=True)
    return b.select(empty, 0, _lookup(b, index, first)).to(torch.int64)


@lower(aten._embedding_bag_dense_backward)
def embedding_bag_dense_backward(
    b: Builder,
    grad: Value,
    indices: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    grad = grad.to(dtypes.opmath(grad.dtype))
    bags, width = grad.shape
    sizes = b.slice_dim(bag_size, 0, 0, bags)
    if mode == MAX:
        empty = b.broadcast_in_dim(sizes.eq(0), grad.shape, [0])
        index = b.select(empty, num_weights, as_index(b, maximum_indices, num_weights))
        table = b.full((num_weights, width), 0, grad.dtype)
        return scatter_dims(b, table, [0, 1], [index, b.iota(grad.shape, 1, index.dtype)], grad, 0, b.add)
    if mode == MEAN:
        grad = b.divide(grad, b.unsqueeze(b.maximum(sizes, 1).to(grad.dtype), 1))
    rows = _lookup(b, grad, as_index(b, offset2bag, bags))
    if per_sample_weights is not None:
        rows = rows * b.unsqueeze(per_sample_weights.to(rows.dtype), 1)
    return _table_gradient(b, rows, as_index(b, indices, num_weights), num_weights, padding_idx, scale_grad_by_freq)


@lower(aten._embedding_bag_backward)
def embedding_bag_backward(
    b: Builder,
    grad: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    return embedding_bag_dense_backward(
        b,
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


def _is_sparse(*args: Any, **kwargs: Any) -> bool:
    return bool(args[9] if len(args) > 9 else kwargs["sparse"])


@python_call(aten._embedding_bag_backward.default, when=_is_sparse)
def sparse_embedding_bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """The rows of the table that were looked up, as a sparse tensor."""
    return aten._embedding_bag_sparse_backward(  # type: ignore[no-any-return]
        grad,
        indices,
        offsets,
        offset2bag,
        bag_size,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lower(aten._embedding_bag_per_sample_weights_backward)
def embedding_bag_per_sample_weights_backward(
    b: Builder,
    grad: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    mode: int,
    padding_idx: int = -1,
) -> Value:
    dtype = dtypes.opmath(grad.dtype)
    index = as_index(b, indices, weight.shape[0])
    rows = _lookup(b, weight.to(dtype), index)
    out = b.reduce_sum(rows * _lookup(b, grad.to(dtype), as_index(b, offset2bag, grad.shape[0])), [1])
    return b.select(index.eq(padding_idx), 0, out) if padding_idx >= 0 else out

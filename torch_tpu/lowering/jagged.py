"""Between rows of all sequences, one after the other, and a padded tensor of sequences of one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .indices import gather_dims
from .meta import meta
from .registry import lower, python_call

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten


def _ends(offsets: Sequence[Value]) -> tuple[Value, Value]:
    """(where each sequence starts, where it ends), each (sequences,)"""
    if len(offsets) != 1:
        raise NotImplementedError("one ragged dim, not several")
    bounds = offsets[0].to(torch.int32)
    b, count = bounds.b, bounds.shape[0] - 1
    return b.slice_dim(bounds, 0, 0, count), b.slice_dim(bounds, 0, 1, count + 1)


@lower(aten._jagged_to_padded_dense_forward)
def jagged_to_padded(
    b: Builder, values: Value, offsets: Sequence[Value], max_lengths: Sequence[int], padding_value: Operand = 0.0
) -> Value:
    """(sequences, longest, ...) of (rows, ...)"""
    start, end = _ends(offsets)
    shape = (start.shape[0], max_lengths[0])
    row = b.broadcast_in_dim(start, shape, [0]) + b.iota(shape, 1, torch.int32)
    inside = row < b.broadcast_in_dim(end, shape, [0])
    found = gather_dims(b, values, [0], [b.minimum(row, max(values.shape[0] - 1, 0))], 0)
    return b.select(b.broadcast_in_dim(inside, found.shape, [0, 1]), found, b.scalar(padding_value, values.dtype))


@meta(aten._padded_dense_to_jagged_forward.default)
def padded_to_jagged_meta(
    dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: int | None = None
) -> torch.Tensor:
    return dense.new_empty((total_L or 0, *dense.shape[2:]))


def _rows_unknown(dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: int | None = None) -> bool:
    return total_L is None


@lower(aten._padded_dense_to_jagged_forward)
def padded_to_jagged(b: Builder, dense: Value, offsets: Sequence[Value], total_L: int | None = None) -> Value:
    """(rows, ...) of (sequences, longest, ...). A sequence longer than the padded ones is zeros where they end."""
    assert total_L is not None
    start, end = _ends(offsets)
    shape = (total_L, start.shape[0])
    row = b.iota(shape, 0, torch.int32)
    own = (row >= b.broadcast_in_dim(start, shape, [1])) & (row < b.broadcast_in_dim(end, shape, [1]))
    sequence = b.reduce_sum(b.select(own, b.iota(shape, 1, torch.int32), 0), [1])
    place = b.reduce_sum(b.select(own, row - b.broadcast_in_dim(start, shape, [1]), 0), [1])
    longest = dense.shape[1]
    found = gather_dims(b, dense, [0, 1], [sequence, b.minimum(place, max(longest - 1, 0))], 0)
    return b.select(b.broadcast_in_dim(place < longest, found.shape, [0]), found, b.full((), 0, dense.dtype))


@python_call(aten._padded_dense_to_jagged_forward.default, when=_rows_unknown)
def padded_to_all_rows(
    dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: int | None = None
) -> torch.Tensor:
    return aten._padded_dense_to_jagged_forward(dense, offsets, int(offsets[0][-1]))  # type: ignore[no-any-return]

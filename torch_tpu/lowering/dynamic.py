"""Ops whose result's shape depends on values: count on the device, read the number, then a program of static size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .indexing import pack
from .indices import index_dtype
from .registry import lower, python_op

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten
Tensor = torch.Tensor


def _count(mask: Tensor) -> int:
    """How many are true: the one read from the device."""
    return int(mask.sum())


# ---- masks


@lower(aten.nonzero_static)
def nonzero_static(b: Builder, x: Value, *, size: int, fill_value: int = -1) -> Value:
    if not x.ndim or not x.numel:
        return b.full((size, x.ndim), fill_value, torch.int64)
    dtype = index_dtype(x.numel)
    mask = b.reshape(x.to(torch.bool), (x.numel,))
    place = pack(b, b.iota((x.numel,), 0, dtype), mask, size, -1)
    columns = []
    for d, length in enumerate(x.shape):
        column = b.remainder(b.divide(place, math.prod(x.shape[d + 1 :])), length)
        columns.append(b.unsqueeze(b.select(place < 0, fill_value, column), 1))
    return b.concatenate(columns, 1).to(torch.int64)


@python_op(aten.nonzero)
def nonzero(x: Tensor) -> Tensor:
    return aten.nonzero_static(x, size=_count(x != 0))  # type: ignore[no-any-return]


@python_op(aten.masked_select)
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    x, mask = torch.broadcast_tensors(x, mask)  # type: ignore[no-untyped-call]
    # Packing is what the backward of masked_scatter does.
    return aten.masked_scatter_backward(x, mask, [_count(mask)])  # type: ignore[no-any-return]


@python_op(aten.repeat_interleave.Tensor)
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    ends = repeats.cumsum(0)
    count = output_size if output_size is not None else int(ends[-1]) if len(ends) else 0
    places = torch.arange(count, device=repeats.device, dtype=ends.dtype)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


@python_op(aten.bincount)
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if x.dtype.is_floating_point or x.dtype == torch.bool or x.dtype.is_complex:
        raise NotImplementedError(f'"bincount_cpu" not implemented for {x.dtype}')
    if x.ndim != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != x.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    size = minlength
    if len(x):
        low, high = (int(v) for v in torch.stack(torch.aminmax(x)).tolist())
        if low < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        size = max(size, high + 1)
    if weights is None:
        weights = torch.ones_like(x, dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.double()
    return weights.new_zeros(size).index_add(0, x.long(), weights)


# ---- unique


def _runs(differs: Tensor, return_inverse: bool, return_counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of n sorted elements, given where each differs from the one before: the places where runs of equal ones start,
    each element's run, and the runs' lengths."""
    size = len(differs) + 1
    starts = torch.cat([differs.new_ones(1), differs])
    places = aten.nonzero_static(starts, size=_count(starts)).squeeze(1)
    nothing = places.new_empty(0)
    inverse = starts.cumsum(0) - 1 if return_inverse else nothing
    counts = torch.diff(places, append=places.new_full((1,), size)) if return_counts else nothing
    return places, inverse, counts


def _unsort(inverse: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(inverse).scatter(0, order, inverse) if inverse.numel() else inverse


@python_op(aten._unique2)
def unique2(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    values, order = x.flatten().sort()
    if not values.numel():
        nothing = order.new_empty(0)
        return values, order.new_empty(x.shape) if return_inverse else nothing, nothing
    places, inverse, counts = _runs(values[1:] != values[:-1], return_inverse, return_counts)
    inverse = _unsort(inverse, order)
    return values[places], inverse.reshape(x.shape) if return_inverse else inverse, counts


@python_op(aten._unique)
def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    return unique2(x, sorted, return_inverse)[:2]


@python_op(aten.unique_consecutive)
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None:
        return unique_dim_consecutive(x, dim, return_inverse, return_counts)
    flat = x.flatten()
    if not flat.numel():
        nothing = flat.new_empty(0, dtype=torch.int64)
        return flat, nothing.reshape(x.shape) if return_inverse else nothing, nothing
    places, inverse, counts = _runs(flat[1:] != flat[:-1], return_inverse, return_counts)
    return flat[places], inverse.reshape(x.shape) if return_inverse else inverse, counts


@python_op(aten.unique_dim_consecutive)
def unique_dim_consecutive(
    x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if not x.numel():
        if x.size(dim):
            raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
        nothing = x.new_empty(0, dtype=torch.int64)
        return x, nothing, nothing
    rows = x.movedim(dim, 0).reshape(x.size(dim), -1)
    places, inverse, counts = _runs((rows[1:] != rows[:-1]).any(1), return_inverse, return_counts)
    return x.index_select(dim, places), inverse, counts


@python_op(aten.unique_dim)
def unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if not x.numel():
        return unique_dim_consecutive(x, dim, return_inverse, return_counts)
    order = torch.arange(x.size(dim), device=x.device)
    columns = x.movedim(dim, 0).reshape(len(order), -1).t().contiguous()
    for column in reversed(columns.unbind()):  # lexicographic: a stable sort by each column, the first one last
        order = order[column[order].sort(stable=True).indices]
    values, inverse, counts = unique_dim_consecutive(x.index_select(dim, order), dim, return_inverse, return_counts)
    return values, _unsort(inverse, order), counts

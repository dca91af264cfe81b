"""Histograms over edges. The range of the data is read from the device where the caller gives none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .registry import python_op

aten = torch.ops.aten
Tensor = torch.Tensor


def _check(x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, name: str) -> None:
    """PyTorch's errors for arguments that do not fit. x: (..., dims), with an edges tensor for each dim."""
    checks = {
        "input tensor should have at least 2 dimensions": x.ndim >= 2,
        "input tensor should not be empty along its innermost dimension": x.shape[-1:] != (0,),
        f"expected {x.shape[-1]} sequences of bin edges, but got {len(edges)}": x.shape[-1] == len(edges),
    }
    for message, holds in checks.items():
        if not holds:
            raise RuntimeError(f"{name}: {message}")
    for edge in edges:
        if edge.dtype != x.dtype:
            raise RuntimeError(
                f"{name}: input tensor and bins tensors should have the same dtype, "
                f"but got input with dtype {x.dtype} and bins with dtype {edge.dtype}"
            )
        if edge.ndim != 1:
            raise RuntimeError(f"{name}: bins tensor should have one dimension, but got {edge.ndim} dimensions")
        if not len(edge):
            raise RuntimeError(f"{name}: bins tensor should have at least 1 element, but got 0 elements")
    if weight is not None and weight.dtype != x.dtype:
        raise RuntimeError(
            f"{name}: if weight tensor is provided, input tensor and weight tensor should have the same dtype, "
            f"but got input(dtype={x.dtype}), and weight(dtype={weight.dtype})"
        )
    if weight is not None and weight.shape != x.shape[:-1]:
        raise RuntimeError(
            f"{name}: if weight tensor is provided it should have the same shape as the input tensor excluding its "
            f"innermost dimension, but got input with shape {list(x.shape)} and weight with shape {list(weight.shape)}"
        )


def _count(x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool, name: str) -> Tensor:
    """How many of the points x[..., :] fall into each box; a point on an edge belongs to the box above, but for the
    last edge."""
    _check(x, edges, weight, name)
    shape = [len(edge) - 1 for edge in edges]
    points = x.reshape(-1, x.shape[-1])
    inside = points.new_ones(len(points), dtype=torch.bool)
    box = points.new_zeros(len(points), dtype=torch.int64)
    for column, edge, size in zip(points.unbind(1), edges, shape):
        column = column.contiguous()
        place = torch.searchsorted(edge, column, right=True) - 1
        inside &= (column >= edge[0]) & (column <= edge[-1])
        box = box * size + place.clamp(0, max(size - 1, 0))
    counts = torch.where(inside, 1 if weight is None else weight.reshape(-1), 0).to(x.dtype)
    total = x.new_zeros(math.prod(shape))
    if len(total):
        total = total.index_add(0, torch.where(inside, box, 0), counts)
    result = total.reshape(shape)
    if density:
        result = result / result.sum()
        for dim, edge in enumerate(edges):
            result = result / edge.diff().reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return result


def _uniform_edges(
    x: Tensor, bins: Sequence[int], range: Sequence[float] | None, weight: Tensor | None, name: str
) -> list[Tensor]:
    """Edges of boxes of one size, over the range of the data where none is given."""
    dims = x.shape[-1]
    if len(bins) != dims:
        raise RuntimeError(f"{name}: bins should have {dims} elements, but got {len(bins)}")
    for count in bins:
        if count <= 0:
            raise RuntimeError(f"{name}: bins must be > 0, but got {count}")
    if range is not None:
        if len(range) != 2 * dims:
            raise RuntimeError(f"{name}: range should have {2 * dims} elements, but got {len(range)}")
        ends = [(float(low), float(high)) for low, high in zip(range[::2], range[1::2])]
    elif x.numel():
        points = x.reshape(-1, dims)
        low, high = torch.stack([points.amin(0), points.amax(0)]).tolist()
        ends = list(zip(low, high))
    else:
        ends = [(0.0, 1.0)] * dims
    edges = []
    for number, (count, (low, high)) in enumerate(zip(bins, ends)):
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"{name}: dimension {number}'s range [{low}, {high}] is not finite")
        if low > high:
            raise RuntimeError(f"{name}: min should not exceed max, but got min {low} max {high}")
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges.append(torch.linspace(low, high, count + 1, dtype=x.dtype, device=x.device))
    return edges


@python_op(aten.histogram.bins_tensor)
def histogram_over(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    flat = None if weight is None else weight.reshape(-1) if weight.shape == x.shape else weight
    counts = _count(x.reshape(-1, 1), [bins], flat, density, "torch.histogram()")
    return counts, bins.clone()


@python_op(aten.histogram.bin_ct)
def histogram(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    (edges,) = _uniform_edges(x.reshape(-1, 1), [bins], range, weight, "torch.histogram()")
    return histogram_over(x, edges, weight=weight, density=density)


@python_op(aten._histogramdd_bin_edges.default)
def histogramdd_bin_edges(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    return _uniform_edges(x, bins, range, weight, "torch.histogramdd")


@python_op(aten._histogramdd_from_bin_cts.default)
def histogramdd_from_bin_cts(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    edges = _uniform_edges(x, bins, range, weight, "torch.histogramdd")
    return _count(x, edges, weight, density, "torch.histogramdd")


@python_op(aten._histogramdd_from_bin_tensors.default)
def histogramdd_from_bin_tensors(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _count(x, bins, weight, density, "torch.histogramdd")

"""Ops that only move elements: views as values, their copies and scatters, joining, repeating, flipping, unfolding.

Eager views never get here (they are metadata); traced graphs and decompositions have them as ops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .indices import gather_dims, index_dtype
from .pointwise import conjugate
from .registry import lower
from .view import reinterpret
from .windows import Windows, overlap, placed, spread

if TYPE_CHECKING:
    from .builder import Builder, Dims, Value

aten = torch.ops.aten


def _dim(dim: int, ndim: int) -> int:
    return dim % ndim if ndim else 0


def _shape(b: Builder) -> tuple[int, ...]:
    spec = b.outputs[0]
    assert spec is not None
    return spec.shape


# ---- views


@lower(aten.alias, aten.detach, aten.lift_fresh, aten._fw_primal_copy)
def same(b: Builder, x: Value, *_: Any) -> Value:
    return x


@lower(
    *(aten.view.default, aten.view_copy.default, aten._unsafe_view, aten._reshape_copy),
    *(aten._reshape_alias, aten._reshape_alias_copy, aten.unsqueeze, aten.unsqueeze_copy),
    *(aten.squeeze, aten.squeeze_copy),
)
def reshape(b: Builder, x: Value, *_: Any) -> Value:
    """Whatever keeps the order of the elements: the result's shape says it all."""
    return b.reshape(x, _shape(b))


@lower(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    return b.reshape(reinterpret(b, b.reshape(x, (x.numel,)), dtype), _shape(b))


@lower(aten.view_as_real, aten.view_as_real_copy)
def view_as_real(b: Builder, x: Value) -> Value:
    return b.concatenate([b.unsqueeze(part, -1) for part in (b.real(x), b.imag(x))], -1)


@lower(aten.view_as_complex, aten.view_as_complex_copy)
def view_as_complex(b: Builder, x: Value) -> Value:
    parts = [b.reshape(b.slice_dim(x, -1, i, i + 1), x.shape[:-1]) for i in range(2)]
    return b.complex(*parts)


@lower(aten._conj, aten._conj_copy)
def conj(b: Builder, x: Value) -> Value:
    return conjugate(b, x)


@lower(aten._neg_view, aten._neg_view_copy)
def neg_view(b: Builder, x: Value) -> Value:
    return -x


@lower(aten.permute, aten.permute_copy)
def permute(b: Builder, x: Value, dims: Dims) -> Value:
    return b.transpose(x, [_dim(d, x.ndim) for d in dims])


@lower(aten.transpose.int, aten.transpose_copy)
def transpose(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
    return b.swap_dims(x, _dim(dim0, x.ndim), _dim(dim1, x.ndim)) if x.ndim else x


@lower(aten.t, aten.t_copy)
def t(b: Builder, x: Value) -> Value:
    return b.swap_dims(x, 0, 1) if x.ndim == 2 else x


@lower(aten.expand, aten.expand_copy)
def expand(b: Builder, x: Value, size: Dims, *, implicit: bool = False) -> Value:
    return b.broadcast_to(x, _shape(b))


def _bounds(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """Start and end of a Python slice, the start no later than the end."""
    start, end, _ = slice(start, end, step).indices(size)
    return start, max(start, end)


@lower(aten.slice.Tensor, aten.slice_copy)
def slice_(
    b: Builder, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    start, end = _bounds(x.shape[dim], start, end, step)
    return b.slice_dim(x, dim, start, end, step)


@lower(aten.narrow_copy)
def narrow(b: Builder, x: Value, dim: int, start: int, length: int) -> Value:
    start = start + x.shape[dim] if start < 0 else start
    return b.slice_dim(x, dim, start, start + length)


@lower(aten.select.int, aten.select_copy)
def select(b: Builder, x: Value, dim: int, index: int) -> Value:
    index %= x.shape[dim]
    return b.reshape(b.slice_dim(x, dim, index, index + 1), _shape(b))


@lower(
    *(aten.split_with_sizes, aten.split_with_sizes_copy, aten.unsafe_split_with_sizes),
    *(aten.split.Tensor, aten.split_copy, aten.unsafe_split),
)
def split(b: Builder, x: Value, sizes: Dims | int, dim: int = 0) -> list[Value]:
    parts: list[Value] = []
    start = 0
    for spec in b.outputs:
        assert spec is not None
        end = start + spec.shape[dim]
        parts.append(b.slice_dim(x, dim, start, end))
        start = end
    return parts


@lower(aten.unbind, aten.unbind_copy)
def unbind(b: Builder, x: Value, dim: int = 0) -> list[Value]:
    dim = _dim(dim, x.ndim)
    rest = (*x.shape[:dim], *x.shape[dim + 1 :])
    return [b.reshape(b.slice_dim(x, dim, i, i + 1), rest) for i in range(x.shape[dim])]


@lower(aten.as_strided)
def as_strided(b: Builder, x: Value, size: Dims, stride: Dims, storage_offset: int | None = None) -> Value:
    """Of a dense x."""
    dtype = index_dtype(x.numel)
    places = b.full(size, storage_offset or 0, dtype)
    for dim, step in enumerate(stride):
        places = places + b.iota(size, dim, dtype) * step
    return gather_dims(b, b.reshape(x, (x.numel,)), [0], [places], 0)


# ---- scatters into views, and the gradients of views: what the view does not show is kept, or zero


@lower(aten.slice_scatter)
def slice_scatter(
    b: Builder, x: Value, src: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim = _dim(dim, x.ndim)
    start, _ = _bounds(x.shape[dim], start, end, step)
    src = src.to(x.dtype)
    if step == 1:
        starts = [b.full((), start if d == dim else 0, torch.int32) for d in range(x.ndim)]
        return b.dynamic_update_slice(x, src, starts)
    shown = b.full(src.shape, True, torch.bool)
    return b.select(
        placed(b, shown, dim, -start, x.shape[dim], apart=step),
        placed(b, src, dim, -start, x.shape[dim], apart=step),
        x,
    )


@lower(aten.select_scatter)
def select_scatter(b: Builder, x: Value, src: Value, dim: int, index: int) -> Value:
    dim = _dim(dim, x.ndim)
    index %= x.shape[dim]
    return slice_scatter(b, x, b.unsqueeze(src, dim), dim, index, index + 1)


@lower(aten.slice_backward)
def slice_backward(b: Builder, g: Value, input_sizes: Dims, dim: int, start: int, end: int, step: int) -> Value:
    dim = _dim(dim, g.ndim)
    start, _ = _bounds(input_sizes[dim], start, end, step)
    return placed(b, g, dim, -start, input_sizes[dim], apart=step)


@lower(aten.select_backward)
def select_backward(b: Builder, g: Value, input_sizes: Dims, dim: int, index: int) -> Value:
    dim = _dim(dim, len(input_sizes))
    size = input_sizes[dim]
    return placed(b, b.unsqueeze(g, dim), dim, -(index % size), size)


# ---- diagonals


@lower(aten.diagonal.default, aten.diagonal_copy)
def diagonal(b: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    length = _shape(b)[-1]
    along = b.iota((length,), 0, torch.int32)
    rows, columns = along + max(0, -offset), along + max(0, offset)
    return gather_dims(b, x, [_dim(dim1, x.ndim), _dim(dim2, x.ndim)], [rows, columns], x.ndim - 2)


def _on_diagonal(b: Builder, x: Value, shape: Dims, offset: int, dim1: int, dim2: int) -> tuple[Value, Value]:
    """x, whose last dim runs along the diagonal, spread over a shape, and where that is the diagonal."""
    dim1, dim2 = _dim(dim1, len(shape)), _dim(dim2, len(shape))
    rows, columns = b.iota(shape, dim1, torch.int32), b.iota(shape, dim2, torch.int32)
    rest = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    # Along dim2 element j of the diagonal stands at column j + max(0, offset).
    low = max(0, offset)
    edges = [[0] * len(rest) + [e] for e in (low, shape[dim2] - x.shape[-1] - low)]
    wide = b.broadcast_in_dim(b.pad(x, 0, *edges), shape, [*rest, dim2])
    return wide, columns.eq(rows + offset)


@lower(aten.diag_embed)
def diag_embed(b: Builder, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    wide, where = _on_diagonal(b, x, _shape(b), offset, dim1, dim2)
    return b.select(where, wide, b.full((), 0, x.dtype))


@lower(aten.diagonal_backward)
def diagonal_backward(b: Builder, g: Value, input_sizes: Dims, offset: int, dim1: int, dim2: int) -> Value:
    wide, where = _on_diagonal(b, g, input_sizes, offset, dim1, dim2)
    return b.select(where, wide, b.full((), 0, g.dtype))


@lower(aten.diagonal_scatter)
def diagonal_scatter(b: Builder, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    wide, where = _on_diagonal(b, src.to(x.dtype), x.shape, offset, dim1, dim2)
    rows = b.iota(x.shape, _dim(dim1, x.ndim), torch.int32)
    inside = (rows >= max(0, -offset)) & (rows < max(0, -offset) + src.shape[-1])
    return b.select(where & inside, wide, x)


# ---- joining and repeating


@lower(aten.cat)
def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    spec = b.outputs[0]
    assert spec is not None
    # A 1-d tensor without elements joins anything.
    parts = [x.to(spec.dtype) for x in tensors if x.shape != (0,) or len(spec.shape) == 1]
    return b.concatenate(parts, _dim(dim, len(spec.shape))) if parts else b.full(spec.shape, 0, spec.dtype)


@lower(aten.stack, aten._stack)
def stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    spec = b.outputs[0]
    assert spec is not None
    dim = _dim(dim, len(spec.shape))
    return b.concatenate([b.unsqueeze(x.to(spec.dtype), dim) for x in tensors], dim)


@lower(aten.repeat)
def repeat(b: Builder, x: Value, repeats: Dims) -> Value:
    x = b.reshape(x, (*[1] * (len(repeats) - x.ndim), *x.shape))
    pairs = [size for pair in zip(repeats, x.shape) for size in pair]
    return b.reshape(b.broadcast_in_dim(x, pairs, range(1, len(pairs), 2)), _shape(b))


@lower(aten.flip)
def flip(b: Builder, x: Value, dims: Dims) -> Value:
    return b.reverse(x, [_dim(d, x.ndim) for d in dims]) if x.ndim else x


@lower(aten.roll)
def roll(b: Builder, x: Value, shifts: Dims | int, dims: Dims | int = ()) -> Value:
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    if not dims:
        return b.reshape(roll(b, b.reshape(x, (x.numel,)), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims):
        size = x.shape[dim]
        cut = -shift % size if size else 0
        if cut:
            x = b.concatenate([b.slice_dim(x, dim, cut, size), b.slice_dim(x, dim, 0, cut)], dim)
    return x


# ---- blocks of channels


@lower(aten.pixel_shuffle)
def pixel_shuffle(b: Builder, x: Value, upscale_factor: int) -> Value:
    r = upscale_factor
    *lead, c, h, w = x.shape
    n = len(lead)
    x = b.reshape(x, (*lead, c // r**2, r, r, h, w))
    return b.reshape(b.transpose(x, [*range(n + 1), n + 3, n + 1, n + 4, n + 2]), _shape(b))


@lower(aten.pixel_unshuffle)
def pixel_unshuffle(b: Builder, x: Value, downscale_factor: int) -> Value:
    r = downscale_factor
    *lead, c, h, w = x.shape
    n = len(lead)
    x = b.reshape(x, (*lead, c, h // r, r, w // r, r))
    return b.reshape(b.transpose(x, [*range(n + 1), n + 2, n + 4, n + 1, n + 3]), _shape(b))


@lower(aten.channel_shuffle)
def channel_shuffle(b: Builder, x: Value, groups: int) -> Value:
    batch, channels, *rest = x.shape
    return b.reshape(b.swap_dims(b.reshape(x, (batch, groups, channels // groups, *rest)), 1, 2), x.shape)


# ---- sliding windows as dims


@lower(aten.unfold, aten.unfold_copy)
def unfold(b: Builder, x: Value, dimension: int, size: int, step: int) -> Value:
    """The windows along a dim, which get a dim of their own at the end."""
    if not x.ndim:
        return b.reshape(x, _shape(b))
    dim = _dim(dimension, x.ndim)
    windows = Windows.regular(x.shape[dim], _shape(b)[dim], size, step, 0)
    return _last(b, spread(b, x, dim, windows, 0), dim + 1)


def _last(b: Builder, x: Value, dim: int) -> Value:
    return b.transpose(x, [d for d in range(x.ndim) if d != dim] + [dim])


@lower(aten.unfold_backward)
def unfold_backward(b: Builder, g: Value, input_sizes: Dims, dim: int, size: int, step: int) -> Value:
    if not len(input_sizes):
        return b.reshape(g, ())
    dim = _dim(dim, len(input_sizes))
    g = b.transpose(g, [*range(dim + 1), g.ndim - 1, *range(dim + 1, g.ndim - 1)])
    return overlap(b, g, dim, Windows.regular(input_sizes[dim], g.shape[dim], size, step, 0))


def _blocks(sizes: Dims, kernel: Dims, dilation: Dims, padding: Dims, stride: Dims) -> list[Windows]:
    def count(i: int) -> int:
        return (sizes[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1

    return [Windows.regular(sizes[i], count(i), kernel[i], stride[i], padding[i], dilation[i]) for i in range(2)]


@lower(aten.im2col)
def im2col(b: Builder, x: Value, kernel_size: Dims, dilation: Dims, padding: Dims, stride: Dims) -> Value:
    """Every block of an image as a column."""
    n = x.ndim
    rows, columns = _blocks(x.shape[-2:], *(_pair(v) for v in (kernel_size, dilation, padding, stride)))
    x = spread(b, spread(b, x, n - 1, columns, 0), n - 2, rows, 0)
    return b.reshape(b.transpose(x, [*range(n - 2), n - 1, n + 1, n - 2, n]), _shape(b))


@lower(aten.col2im)
def col2im(
    b: Builder, x: Value, output_size: Dims, kernel_size: Dims, dilation: Dims, padding: Dims, stride: Dims
) -> Value:
    """The images whose blocks are the columns, overlaps added up."""
    n = x.ndim + 1
    kernel = _pair(kernel_size)
    rows, columns = _blocks(_pair(output_size), kernel, *(_pair(v) for v in (dilation, padding, stride)))
    channels = x.shape[-2] // math.prod(kernel)
    dtype = dtypes.opmath(x.dtype)
    x = b.reshape(x.to(dtype), (*x.shape[:-2], channels, *kernel, rows.count, columns.count))
    x = b.transpose(x, [*range(n - 2), n, n - 2, n + 1, n - 1])
    return overlap(b, overlap(b, x, n, columns), n - 2, rows)


def _pair(values: Dims) -> Dims:
    return list(values) * 2 if len(values) == 1 else values

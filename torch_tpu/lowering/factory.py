"""Ops that make tensors: filled, counted, spaced, triangular."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, TensorSpec, Value

aten = torch.ops.aten


def _output(b: Builder) -> TensorSpec:
    out = b.outputs[0]
    assert out is not None
    return out


def _filled(b: Builder, value: Operand) -> Value:
    out = _output(b)
    return b.full(out.shape, value, out.dtype)


@lower(aten.zeros, aten.zeros_like, aten.new_zeros, aten._efficientzerotensor)
def zeros(b: Builder, *_: Any, **__: Any) -> Value:
    return _filled(b, 0)


@lower(aten.ones, aten.ones_like, aten.new_ones)
def ones(b: Builder, *_: Any, **__: Any) -> Value:
    return _filled(b, 1)


@lower(aten.full, aten.full_like)
def full(b: Builder, _: Any, value: Operand, **__: Any) -> Value:
    return _filled(b, value)


@lower(aten.new_full)
def new_full(b: Builder, _: Value, size: Any, value: Operand, **__: Any) -> Value:
    return _filled(b, value)


@lower(aten.scalar_tensor)
def scalar_tensor(b: Builder, value: Operand, **_: Any) -> Value:
    return _filled(b, value)


# ---- counted


def _counted(b: Builder, start: Operand, step: Operand) -> Value:
    out = _output(b)
    dtype = dtypes.opmath(out.dtype)
    index = b.iota(out.shape, 0, dtypes.real(dtype)).to(dtype)
    return b.scalar(start, dtype) + index * b.scalar(step, dtype)


@lower(aten.arange.default)
def arange(b: Builder, end: Operand, **_: Any) -> Value:
    return _counted(b, 0, 1)


@lower(aten.arange.start)
def arange_start(b: Builder, start: Operand, end: Operand, **_: Any) -> Value:
    return _counted(b, start, 1)


@lower(aten.arange.start_step, aten.range)
def arange_step(b: Builder, start: Operand, end: Operand, step: Operand = 1, **_: Any) -> Value:
    return _counted(b, start, step)


# ---- spaced


def _spaced(b: Builder, start: Operand, end: Operand, steps: int, dtype: torch.dtype) -> Value:
    """Counted from the nearer end, so that both ends are exact."""
    first, last = b.scalar(start, dtype), b.scalar(end, dtype)
    index = b.iota((steps,), 0, dtypes.real(dtype)).to(dtype)
    if steps == 1:
        return b.broadcast_to(first, (1,))
    step = b.round_to((last - first) / (steps - 1), _output(b).dtype)  # narrow steps are rounded, as PyTorch does
    near = b.iota((steps,), 0, torch.int32) < steps // 2
    return b.select(near, first + index * step, last - (steps - 1 - index) * step)


def _spacing_dtype(out: TensorSpec) -> torch.dtype:
    return torch.float64 if dtypes.is_integral(out.dtype) else dtypes.opmath(out.dtype)


def _as_integers_are(b: Builder, x: Operand, out: TensorSpec) -> Operand:
    # The ends of an integral range are integers before they are spaced.
    return b.scalar(x, out.dtype) if dtypes.is_integral(out.dtype) else x


@lower(aten.linspace)
def linspace(b: Builder, start: Operand, end: Operand, steps: int, **_: Any) -> Value:
    out = _output(b)
    start, end = _as_integers_are(b, start, out), _as_integers_are(b, end, out)
    return _spaced(b, start, end, steps, _spacing_dtype(out))


@lower(aten.logspace)
def logspace(b: Builder, start: Operand, end: Operand, steps: int, base: Operand = 10.0, **_: Any) -> Value:
    out = _output(b)
    dtype = _spacing_dtype(out)
    start, end = _as_integers_are(b, start, out), _as_integers_are(b, end, out)
    return b.power(b.scalar(base, dtype), _spaced(b, start, end, steps, dtype))


# ---- triangular


def _diagonals(b: Builder, shape: tuple[int, ...]) -> Value:
    """For each element of a batch of matrices, which diagonal it is on: column less row."""
    matrix = shape[-2:]
    return b.iota(matrix, 1, torch.int32) - b.iota(matrix, 0, torch.int32)


@lower(aten.eye)
def eye(b: Builder, *_: Any, **__: Any) -> Value:
    out = _output(b)
    return _diagonals(b, out.shape).eq(0).to(out.dtype)


def _within(shape: tuple[int, ...], diagonal: int) -> int:
    """The diagonal, or one just outside of the matrix if it lies farther away than an index can say."""
    return max(-shape[-2], min(diagonal, shape[-1]))


@lower(aten.tril)
def tril(b: Builder, x: Value, diagonal: int = 0) -> Value:
    return b.select(_diagonals(b, x.shape) <= _within(x.shape, diagonal), x, 0)


@lower(aten.triu)
def triu(b: Builder, x: Value, diagonal: int = 0) -> Value:
    return b.select(_diagonals(b, x.shape) >= _within(x.shape, diagonal), x, 0)


def _indices_where(b: Builder, mask: Value) -> Value:
    """The (row, column) pairs of a mask's true elements, as many as the output has, in row-major order."""
    out = _output(b)
    rows, columns = mask.shape
    count = out.shape[1]
    flat = b.reshape(mask, (rows * columns,))
    places = b.iota(flat.shape, 0, torch.int32)
    _, ordered = b.sort([flat, places], 0, lambda m0, m1, p0, p1: m0 & ~m1)
    chosen = b.slice_dim(ordered, 0, 0, count)
    row, column = b.divide(chosen, max(columns, 1)), b.remainder(chosen, max(columns, 1))
    return b.concatenate([b.unsqueeze(row, 0), b.unsqueeze(column, 0)], 0)


@lower(aten.tril_indices)
def tril_indices(b: Builder, row: int, col: int, offset: int = 0, **_: Any) -> Value:
    return _indices_where(b, _diagonals(b, (row, col)) <= _within((row, col), offset))


@lower(aten.triu_indices)
def triu_indices(b: Builder, row: int, col: int, offset: int = 0, **_: Any) -> Value:
    return _indices_where(b, _diagonals(b, (row, col)) >= _within((row, col), offset))

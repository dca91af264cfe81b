"""Products of groups of rows with a matrix each (mixtures of experts), block by block of a loop.

Where groups end is known on the device alone. Blocks of rows that begin where a group does make the work that of
the rows, rounded up, and not that of the rows times the groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import dtypes
from .matmul import contract, matrix_product
from .registry import lower, python_call

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

MIN_BLOCK, MAX_BLOCK = 8, 128


class _Blocks:
    """The blocks of `size` rows, enough for any sizes of the groups: the group, first row and end of each."""

    def __init__(self, b: Builder, rows: int, offs: Value) -> None:
        self.b = b
        groups = offs.shape[0]
        even = max(1, rows // max(1, groups))
        self.size = min(MAX_BLOCK, max(MIN_BLOCK, 1 << (even - 1).bit_length()))
        self.count = -(-rows // self.size) + groups

        ends = offs.to(torch.int32)
        starts = b.pad(b.slice_dim(ends, 0, 0, max(0, groups - 1)), 0, [1], [0])
        blocks = b.divide(ends - starts + (self.size - 1), b.full((groups,), self.size, torch.int32))
        square = (groups, groups)
        before = b.iota(square, 0, torch.int32) < b.iota(square, 1, torch.int32)
        first = b.reduce_sum(b.select(before, b.broadcast_in_dim(blocks, square, [0]), 0), [0])

        wide = (self.count, groups)
        block = b.iota(wide, 0, torch.int32)
        along = [b.broadcast_in_dim(v, wide, [1]) for v in (first, first + blocks, starts, ends)]
        mine = (block >= along[0]) & (block < along[1])

        def of_block(values: Value) -> Value:
            return b.reduce_sum(b.select(mine, values, 0), [1])

        self.group = of_block(b.iota(wide, 1, torch.int32))
        self.row = of_block(along[2] + (block - along[0]) * self.size)
        self.end = of_block(along[3])  # zero, as all else, for the blocks that no group needs

    def __call__(self, i: Value) -> tuple[Value, Value, Value]:
        """The group and the first row of block i, and which of its rows are the group's."""
        b = self.b
        group, row, end = (b.reshape(b.dynamic_slice(v, [i], (1,)), ()) for v in (self.group, self.row, self.end))
        return group, row, b.iota((self.size,), 0, torch.int32) + row < end


def _of_rows(b: Builder, x: Value, weights: Value, offs: Value) -> Value:
    """(rows, k) times the (k, n) of each row's group."""
    rows, columns = x.shape[0], weights.shape[2]
    spec = b.outputs[0]
    assert spec is not None
    blocks = _Blocks(b, rows, offs)
    x = b.pad(x, 0, [0, 0], [blocks.size, 0])
    out = b.full((rows + blocks.size, columns), 0, spec.dtype)
    zero = b.full((), 0, torch.int32)

    def step(i: Value, out: Value) -> list[Value]:
        group, row, mine = blocks(i)
        part = b.dynamic_slice(x, [row, zero], (blocks.size, x.shape[1]))
        weight = b.reshape(b.dynamic_slice(weights, [group, zero, zero], (1, *weights.shape[1:])), weights.shape[1:])
        new = matrix_product(b, part, weight).to(out.dtype)
        old = b.dynamic_slice(out, [row, zero], new.shape)
        new = b.select(b.broadcast_in_dim(mine, new.shape, [0]), new, old)
        return [i + 1, b.dynamic_update_slice(out, new, [row, zero])]

    out = b.while_loop([zero, out], lambda i, _: i < blocks.count, step)[1]
    return b.slice_dim(out, 0, 0, rows)


def _of_inner(b: Builder, x: Value, y: Value, offs: Value) -> Value:
    """For each group the product over its rows: (rows, m) and (rows, n) to (groups, m, n)."""
    blocks = _Blocks(b, x.shape[0], offs)
    x, y = (b.pad(v, 0, [0, 0], [blocks.size, 0]) for v in (x, y))
    dtype = dtypes.opmath(x.dtype)
    out = b.full((offs.shape[0], x.shape[1], y.shape[1]), 0, dtype)
    zero = b.full((), 0, torch.int32)

    def step(i: Value, out: Value) -> list[Value]:
        group, row, mine = blocks(i)

        def rows_of(v: Value) -> Value:
            part = b.dynamic_slice(v, [row, zero], (blocks.size, v.shape[1]))
            return b.select(b.broadcast_in_dim(mine, part.shape, [0]), part, b.full((), 0, v.dtype))

        old = b.dynamic_slice(out, [group, zero, zero], (1, *out.shape[1:]))
        new = old + b.unsqueeze(contract(b, rows_of(x), rows_of(y), ([0], [0])), 0)
        return [i + 1, b.dynamic_update_slice(out, new, [group, zero, zero])]

    return b.while_loop([zero, out], lambda i, _: i < blocks.count, step)[1]


# PyTorch's meta function of _grouped_mm wants bfloat16 in rows of 16 bytes, as CUDA does; this op does not.
_library = torch.library.Library("torch_tpu", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "grouped_mm(Tensor x, Tensor y, Tensor? offs, Tensor? bias, ScalarType? out_dtype) -> Tensor"
)
any_grouped_mm = torch.ops.torch_tpu.grouped_mm.default


@lower(aten._grouped_mm, any_grouped_mm)
def grouped_mm(
    b: Builder,
    x: Value,
    y: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> Value:
    if offs is None:
        return matrix_product(b, x, y)
    if x.ndim == 2 and y.ndim == 3:
        return _of_rows(b, x, y, offs)
    if x.ndim == 2:
        return _of_inner(b, b.swap_dims(x, 0, 1), y, offs)
    return b.swap_dims(_of_rows(b, b.swap_dims(y, 0, 1), b.swap_dims(x, 1, 2), offs), 0, 1)


def _meta(
    x: torch.Tensor,
    y: torch.Tensor,
    offs: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    batch = () if x.ndim != y.ndim else x.shape[:1] if offs is None else offs.shape
    return x.new_empty((*batch, x.shape[-2], y.shape[-1]), dtype=out_dtype)


_library.impl("grouped_mm", _meta, "Meta")  # type: ignore[no-untyped-call]


def _refused(x: torch.Tensor, y: torch.Tensor, *_: object) -> bool:
    return any(t.dtype != torch.bfloat16 or any(s * t.itemsize % 16 for s in t.shape[-2:]) for t in (x, y))


@python_call(aten._grouped_mm.default, when=_refused)
def _grouped_mm_of_any_dtype(
    x: torch.Tensor,
    y: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    result: torch.Tensor = any_grouped_mm(x, y, offs, bias, out_dtype)
    return result

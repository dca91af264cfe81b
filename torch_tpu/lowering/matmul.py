"""Matrix products.

Narrow floats accumulate in float32 and narrow integers in int32 (which XLA:CPU has fast kernels for, and which
wraps to the same bits), then round or wrap once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from . import dtypes
from .pointwise import conjugate
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten


def contract(
    b: Builder,
    x: Value,
    y: Value,
    dims: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Value:
    """dot_general in the dtype that PyTorch accumulates in; the caller's result is rounded once, at its end."""
    if x.dtype in (torch.int64, torch.uint64):
        return _reduced_products(b, x, y, dims, batch)
    if dtypes.is_integral(x.dtype) and x.dtype.itemsize < 4:
        x, y = x.to(torch.int32), y.to(torch.int32)
    return b.dot_general(x, y, contract=dims, batch=batch, dtype=dtypes.opmath(x.dtype))


def _reduced_products(
    b: Builder,
    x: Value,
    y: Value,
    dims: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
) -> Value:
    """The same without a dot, which TPUs do not have for 64-bit integers and XLA:CPU does not make faster."""
    lead = len(batch[0])
    left = [d for d in range(x.ndim) if d not in (*dims[0], *batch[0])]
    right = [d for d in range(y.ndim) if d not in (*dims[1], *batch[1])]
    x = b.transpose(x, [*batch[0], *left, *dims[0]])
    y = b.transpose(y, [*batch[1], *dims[1], *right])
    shape = (*x.shape, *y.shape[lead + len(dims[1]) :])
    inner = range(lead + len(left), x.ndim)
    wide = b.broadcast_in_dim(y, shape, [*range(lead), *inner, *range(x.ndim, len(shape))])
    return b.reduce_sum(b.broadcast_in_dim(x, shape, range(x.ndim)) * wide, inner)


def matrix_product(b: Builder, x: Value, y: Value) -> Value:
    """x @ y over the last two dims; the leading ones agree."""
    if x.ndim == 2 and x.shape[0] == 1 and getattr(y.ir.owner, "name", "") == "stablehlo.transpose":
        # For a row times a transposed matrix XLA:CPU copies the matrix; the matrix times a column it reads in place.
        column = contract(b, b.swap_dims(y, 0, 1), b.swap_dims(x, 0, 1), ([1], [0]))
        return b.reshape(column, (1, y.shape[1]))
    lead = range(x.ndim - 2)
    return contract(b, x, y, ([x.ndim - 1], [y.ndim - 2]), (lead, lead))


def scaled_sum(b: Builder, base: Value, product: Value, beta: Operand, alpha: Operand) -> Value:
    """beta * base + alpha * product; a beta of zero ignores base, NaN or not."""
    dtype = product.dtype
    out = product * b.scalar(alpha, dtype)
    scale = b.scalar(beta, dtype)
    return out + b.select(b.compare(scale, "EQ", 0), b.full((), 0, dtype), base.to(dtype) * scale)


@lower(aten.mm, aten.bmm)
def mm(b: Builder, x: Value, y: Value, out_dtype: torch.dtype | None = None) -> Value:
    return matrix_product(b, x, y)


@lower(aten.addmm.default, aten.baddbmm.default)
def addmm(b: Builder, x: Value, mat1: Value, mat2: Value, *, beta: Operand = 1, alpha: Operand = 1) -> Value:
    return scaled_sum(b, x, matrix_product(b, mat1, mat2), beta, alpha)


@lower(aten.addmm.dtype, aten.baddbmm.dtype)
def addmm_dtype(
    b: Builder, x: Value, mat1: Value, mat2: Value, out_dtype: torch.dtype, *, beta: Operand = 1, alpha: Operand = 1
) -> Value:
    return scaled_sum(b, x, matrix_product(b, mat1, mat2), beta, alpha)


@lower(aten._addmm_activation)
def addmm_activation(
    b: Builder,
    x: Value,
    mat1: Value,
    mat2: Value,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
    use_gelu: bool = False,
) -> Value:
    out = scaled_sum(b, x, matrix_product(b, mat1, mat2), beta, alpha)
    if not use_gelu:
        return b.maximum(out, 0)
    # PyTorch's CPU kernel uses the exact gelu here, whatever the fused kernels of other devices do.
    return 0.5 * out * (1.0 + b.erf(out * 0.5**0.5))


@lower(aten.addbmm)
def addbmm(b: Builder, x: Value, batch1: Value, batch2: Value, *, beta: Operand = 1, alpha: Operand = 1) -> Value:
    # Contracting over the batch too is one product; XLA wants a single contracted dim to call its fast kernels.
    batch, rows, inner = batch1.shape
    left = b.reshape(b.transpose(batch1, [1, 0, 2]), (rows, batch * inner))
    right = b.reshape(batch2, (batch * inner, batch2.shape[2]))
    return scaled_sum(b, x, matrix_product(b, left, right), beta, alpha)


@lower(aten.mv)
def mv(b: Builder, x: Value, vec: Value) -> Value:
    return contract(b, x, vec, ([1], [0]))


@lower(aten.addmv)
def addmv(b: Builder, x: Value, mat: Value, vec: Value, *, beta: Operand = 1, alpha: Operand = 1) -> Value:
    return scaled_sum(b, x, contract(b, mat, vec, ([1], [0])), beta, alpha)


@lower(aten.addr)
def addr(b: Builder, x: Value, vec1: Value, vec2: Value, *, beta: Operand = 1, alpha: Operand = 1) -> Value:
    dtype = dtypes.opmath(b.promote(x, vec1, vec2))
    left = b.broadcast_in_dim(vec1.to(dtype), (*vec1.shape, *vec2.shape), [0])
    right = b.broadcast_in_dim(vec2.to(dtype), (*vec1.shape, *vec2.shape), [1])
    if dtype == torch.bool:
        return (left & right & b.scalar(alpha, dtype)) | (x & b.scalar(beta, dtype))
    return scaled_sum(b, x, left * right, beta, alpha)


@lower(aten.dot)
def dot(b: Builder, x: Value, y: Value) -> Value:
    return contract(b, x, y, ([0], [0]))


@lower(aten.vdot)
def vdot(b: Builder, x: Value, y: Value) -> Value:
    return contract(b, conjugate(b, x), y, ([0], [0]))


@lower(aten._int_mm)
def int_mm(b: Builder, x: Value, y: Value) -> Value:
    return b.dot_general(x, y, contract=([1], [0]), dtype=torch.int32)


@lower(aten._weight_int8pack_mm)
def weight_int8pack_mm(b: Builder, x: Value, weight: Value, scales: Value) -> Value:
    """x @ weight.T * scales, with an int8 weight that every float dtype represents exactly."""
    product = contract(b, x, weight.to(x.dtype), ([1], [1]))
    return product * scales.to(product.dtype)


@lower(aten._scaled_mm)
def scaled_mm(
    b: Builder,
    x: Value,
    y: Value,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None = None,
    scale_result: Value | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Value:
    """float8 @ float8 with scales a tensor or a row; bfloat16 holds every float8 exactly."""
    product = b.dot_general(x.to(torch.bfloat16), y.to(torch.bfloat16), contract=([1], [0]), dtype=torch.float32)
    for scale in (scale_a, scale_b):
        product = product * scale
    if bias is not None:
        product = product + bias.to(torch.float32)
    out = b.outputs[0]
    assert out is not None
    if scale_result is not None and out.dtype.itemsize == 1:
        product = product * b.reshape(scale_result, ())
    return product


# ScalingType.TensorWise and RowWise
WHOLE_OR_ROWS = ([0], [1])


@lower(aten._scaled_mm_v2)
def scaled_mm_v2(
    b: Builder,
    x: Value,
    y: Value,
    scale_a: Sequence[Value],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Value],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Value | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Value:
    if list(recipe_a) not in WHOLE_OR_ROWS or list(recipe_b) not in WHOLE_OR_ROWS:
        raise NotImplementedError("scales of blocks")
    return scaled_mm(b, x, y, scale_a[0], scale_b[0], bias)

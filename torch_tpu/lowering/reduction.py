"""Reductions over dims: sums, extremes and their places, moments, norms, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .meta import meta
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten
Dim = int | Sequence[int] | None


def dims_of(x: Value, dim: Dim) -> list[int]:
    """The dims to reduce: None and an empty list mean all."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return list(range(x.ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [d % x.ndim for d in dims] if x.ndim else []


def count_of(x: Value, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


def accumulated(b: Builder, x: Value) -> Value:
    """x in the dtype that its sums accumulate in: the opmath of the result's."""
    out = b.outputs[0]
    assert out is not None
    return x.to(dtypes.opmath(out.dtype))


# ---- sums and products


@lower(aten.sum.default)
def sum_all(b: Builder, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    return b.reduce_sum(accumulated(b, x))


@lower(aten.sum.dim_IntList)
def sum_dims(b: Builder, x: Value, dim: Dim, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return b.reduce_sum(accumulated(b, x), dims_of(x, dim), keepdim)


@lower(aten.nansum)
def nansum(b: Builder, x: Value, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    x = accumulated(b, x)
    return b.reduce_sum(b.select(b.is_nan(x), 0, x), dims_of(x, dim), keepdim)


@lower(aten.mean.default)
def mean_all(b: Builder, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    return _mean(b, accumulated(b, x), dims_of(x, None), False)


@lower(aten.mean.dim)
def mean_dims(b: Builder, x: Value, dim: Dim, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return _mean(b, accumulated(b, x), dims_of(x, dim), keepdim)


def _mean(b: Builder, x: Value, dims: list[int], keepdim: bool) -> Value:
    return b.reduce_sum(x, dims, keepdim) / float(count_of(x, dims))


@lower(aten.prod.default)
def prod_all(b: Builder, x: Value, *, dtype: torch.dtype | None = None) -> Value:
    return b.reduce_prod(accumulated(b, x))


@lower(aten.prod.dim_int)
def prod_dim(b: Builder, x: Value, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    return b.reduce_prod(accumulated(b, x), dims_of(x, dim), keepdim)


@lower(aten.count_nonzero)
def count_nonzero(b: Builder, x: Value, dim: Dim = None) -> Value:
    return b.reduce_sum(x.to(torch.bool).to(torch.int64), dims_of(x, dim))


@lower(aten.trace)
def trace(b: Builder, x: Value) -> Value:
    diagonal = b.iota(x.shape, 0, torch.int32).eq(b.iota(x.shape, 1, torch.int32))
    return b.reduce_sum(b.select(diagonal, accumulated(b, x), 0))


@lower(aten.hash_tensor)
def hash_tensor(b: Builder, x: Value, dim: Dim = (), *, keepdim: bool = False, mode: int = 0) -> Value:
    """The exclusive or of the elements' bits, as int64 or double precision."""
    bits = b.bitcast_convert(x.to(torch.float64 if x.is_float else torch.int64), torch.uint64)
    return b.reduce_xor(bits, dims_of(x, dim), keepdim)


# ---- logical


def _truth(b: Builder, x: Value, dim: Dim, keepdim: bool, reduce: str) -> Value:
    reducer = b.reduce_and if reduce == "all" else b.reduce_or
    return reducer(x.to(torch.bool), dims_of(x, dim), keepdim)


@lower(aten.all)
def all_(b: Builder, x: Value, dim: Dim = None, keepdim: bool = False) -> Value:
    return _truth(b, x, dim, keepdim, "all")


@lower(aten.any)
def any_(b: Builder, x: Value, dim: Dim = None, keepdim: bool = False) -> Value:
    return _truth(b, x, dim, keepdim, "any")


@lower(aten._is_all_true)
def is_all_true(b: Builder, x: Value) -> Value:
    return b.reduce_and(x)


@lower(aten._is_any_true)
def is_any_true(b: Builder, x: Value) -> Value:
    return b.reduce_or(x)


# ---- extremes


@lower(aten.amax)
def amax(b: Builder, x: Value, dim: Dim = (), keepdim: bool = False) -> Value:
    return b.reduce_max(x, dims_of(x, dim), keepdim)


@lower(aten.amin)
def amin(b: Builder, x: Value, dim: Dim = (), keepdim: bool = False) -> Value:
    return b.reduce_min(x, dims_of(x, dim), keepdim)


@lower(aten.max.default)
def max_all(b: Builder, x: Value) -> Value:
    return b.reduce_max(x)


@lower(aten.min.default)
def min_all(b: Builder, x: Value) -> Value:
    return b.reduce_min(x)


@lower(aten.aminmax, aten._aminmax)
def aminmax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    dims = dims_of(x, dim)
    return b.reduce_min(x, dims, keepdim), b.reduce_max(x, dims, keepdim)


def first_index(b: Builder, x: Value, extreme: Value, dim: int, keepdim: bool) -> Value:
    """The first index along `dim` whose element is `extreme`; a NaN extreme is found at the first NaN.

    Two plain reductions: XLA:CPU runs them several times faster than one over (value, index) pairs.
    """
    if not x.ndim:
        return b.full((), 0, torch.int64)
    hit = x.eq(extreme) | b.is_nan(x)
    last = x.shape[dim] - 1
    return b.reduce_min(b.select(hit, b.iota(x.shape, dim, torch.int32), last), [dim], keepdim).to(torch.int64)


def extreme_at(b: Builder, x: Value, dim: int, keepdim: bool, reduce: Callable[..., Value]) -> tuple[Value, Value]:
    """The extreme along dim and its first place; NaN wins."""
    dim = dim % x.ndim if x.ndim else 0
    extreme = reduce(x, [dim], True)
    values = extreme if keepdim or not x.ndim else b.reshape(extreme, x.shape[:dim] + x.shape[dim + 1 :])
    return values, first_index(b, x, extreme, dim, keepdim)


@lower(aten.max.dim)
def max_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return extreme_at(b, x, dim, keepdim, b.reduce_max)


@lower(aten.min.dim)
def min_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return extreme_at(b, x, dim, keepdim, b.reduce_min)


def _arg(b: Builder, x: Value, dim: int | None, keepdim: bool, reduce: Callable[..., Value]) -> Value:
    if dim is not None:
        return extreme_at(b, x, dim, keepdim, reduce)[1]
    place = extreme_at(b, b.reshape(x, (x.numel,)), 0, False, reduce)[1]
    return b.reshape(place, (1,) * x.ndim) if keepdim else place


@lower(aten.argmax)
def argmax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(b, x, dim, keepdim, b.reduce_max)


@lower(aten.argmin)
def argmin(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(b, x, dim, keepdim, b.reduce_min)


# ---- moments


def moments(b: Builder, x: Value, dim: Dim, correction: Operand | None, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean, in two passes; a complex variance is that of the distances."""
    dtype = dtypes.opmath(x.dtype)
    x = x.to(dtype)
    dims = dims_of(x, dim)
    count = float(count_of(x, dims))
    mean = b.reduce_sum(x, dims, True) / count
    centred = x - mean
    if x.is_complex:
        re, im = b.real(centred), b.imag(centred)
        squares = re * re + im * im
    else:
        squares = centred * centred
    degrees = b.maximum(count - b.scalar(1 if correction is None else correction, squares.dtype), 0)
    variance = b.reduce_sum(squares, dims, keepdim) / degrees
    return variance, mean if keepdim else b.reshape(mean, variance.shape)


@lower(aten.var.correction)
def var(b: Builder, x: Value, dim: Dim = None, *, correction: Operand | None = None, keepdim: bool = False) -> Value:
    return moments(b, x, dim, correction, keepdim)[0]


@lower(aten.std.correction)
def std(b: Builder, x: Value, dim: Dim = None, *, correction: Operand | None = None, keepdim: bool = False) -> Value:
    return b.sqrt(moments(b, x, dim, correction, keepdim)[0])


@lower(aten.var_mean.correction)
def var_mean(
    b: Builder, x: Value, dim: Dim = None, *, correction: Operand | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return moments(b, x, dim, correction, keepdim)


@lower(aten.std_mean.correction)
def std_mean(
    b: Builder, x: Value, dim: Dim = None, *, correction: Operand | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, mean = moments(b, x, dim, correction, keepdim)
    return b.sqrt(variance), mean


# ---- norms


def norm(b: Builder, x: Value, p: float, dims: list[int], keepdim: bool) -> Value:
    """The vector p-norm over dims, of x in the dtype it is to be computed in."""
    if p == 2 and not x.is_complex:
        return b.sqrt(b.reduce_sum(x * x, dims, keepdim))
    size = b.abs(x)
    if p == math.inf:
        # Norms of nothing are 0.
        return b.reduce_max(size, dims, keepdim) if count_of(x, dims) else b.reduce_sum(size, dims, keepdim)
    if p == -math.inf:
        return b.reduce_min(size, dims, keepdim)
    if p == 0:
        return b.reduce_sum(size.ne(0).to(size.dtype), dims, keepdim)
    if p == 1:
        return b.reduce_sum(size, dims, keepdim)
    if p == 2:
        return b.sqrt(b.reduce_sum(size * size, dims, keepdim))
    return b.power(b.reduce_sum(b.power(size, p), dims, keepdim), 1 / p)


@lower(aten.linalg_vector_norm, static=["ord"])
def vector_norm(
    b: Builder,
    x: Value,
    ord: float = 2,
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    x = x.to(dtypes.opmath(dtype or x.dtype))
    return norm(b, x, float(ord), dims_of(x, dim), keepdim)


@lower(aten.norm.Scalar, aten.norm.ScalarOpt_dim, static=["p"])
def norm_scalar(b: Builder, x: Value, p: float | None = 2, dim: Dim = None, keepdim: bool = False) -> Value:
    x = x.to(dtypes.opmath(x.dtype))
    return norm(b, x, 2.0 if p is None else float(p), dims_of(x, dim), keepdim)


@lower(aten.norm.ScalarOpt_dtype, static=["p"])
def norm_dtype(b: Builder, x: Value, p: float | None, *, dtype: torch.dtype) -> Value:
    return norm_scalar(b, x.to(dtype), p)


@lower(aten.norm.ScalarOpt_dim_dtype, static=["p"])
def norm_dim_dtype(
    b: Builder, x: Value, p: float | None, dim: Dim, keepdim: bool = False, *, dtype: torch.dtype
) -> Value:
    return norm_scalar(b, x.to(dtype), p, dim, keepdim)


@lower(aten.dist, static=["p"])
def dist(b: Builder, x: Value, y: Value, p: float = 2) -> Value:
    difference = x - y
    return norm_scalar(b, difference, p)


# ---- exponential families


@lower(aten.logsumexp)
def logsumexp(b: Builder, x: Value, dim: Dim, keepdim: bool = False) -> Value:
    x = accumulated(b, x)
    dims = dims_of(x, dim)
    if not count_of(x, dims):
        return b.log(b.reduce_sum(x, dims, keepdim))
    high = b.reduce_max(b.real(x) if x.is_complex else x, dims, True)
    high = b.select(b.abs(high).eq(math.inf), 0, high)
    total = b.log(b.reduce_sum(b.exponential(x - high.to(x.dtype)), dims, keepdim))
    return total + b.reshape(high, total.shape).to(x.dtype)


def _exponentials(b: Builder, x: Value, dims: list[int]) -> tuple[Value, Value, Value]:
    """x less its maximum, the exponentials of that and their sum."""
    shifted = x - b.reduce_max(x, dims, True)
    powers = b.exponential(shifted)
    return shifted, powers, b.reduce_sum(powers, dims, True)


def softmax_of(b: Builder, x: Value, dim: int) -> Value:
    """Softmax in x's own dtype."""
    _, powers, total = _exponentials(b, x, dims_of(x, dim))
    return powers / total


@lower(aten._softmax)
def softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    return softmax_of(b, x.to(dtypes.opmath(x.dtype)), dim)


@lower(aten._log_softmax)
def log_softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    x = x.to(dtypes.opmath(x.dtype))
    shifted, _, total = _exponentials(b, x, dims_of(x, dim))
    return shifted - b.log(total)


@lower(aten._safe_softmax)
def safe_softmax(b: Builder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Softmax that gives zeros where everything is masked with -inf."""
    x = accumulated(b, x)
    masked = b.reduce_and(x.eq(-math.inf), dims_of(x, dim), True)
    return b.select(masked, 0, softmax_of(b, x, dim))


@lower(aten._softmax_backward_data)
def softmax_backward(b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    dtype = dtypes.opmath(grad.dtype)
    grad, y = grad.to(dtype), y.to(dtype)
    product = grad * y
    return product - y * b.reduce_sum(product, dims_of(y, dim), True)


@lower(aten._log_softmax_backward_data)
def log_softmax_backward(b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    dtype = dtypes.opmath(grad.dtype)
    grad, y = grad.to(dtype), y.to(dtype)
    return grad - b.exponential(y) * b.reduce_sum(grad, dims_of(y, dim), True)


@meta(aten._masked_softmax.default, aten._masked_softmax_backward.default)
def masked_softmax_meta(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


@lower(aten._masked_softmax)
def masked_softmax(b: Builder, x: Value, mask: Value, dim: int | None = None, mask_type: int | None = None) -> Value:
    """Softmax of the elements whose mask is False; mask_type 0 masks (L, L), 1 masks (B, L), 2 has x's shape."""
    dtype = dtypes.opmath(x.dtype)
    if mask_type == 1 and mask.ndim == 2:
        mask = b.broadcast_in_dim(mask, x.shape, [0, x.ndim - 1])
    x = b.select(b.broadcast_to(mask, x.shape), -math.inf, x.to(dtype))
    return softmax_of(b, x, -1 if dim is None else dim)


@lower(aten._masked_softmax_backward)
def masked_softmax_backward(b: Builder, grad: Value, y: Value, mask: Value, dim: int | None = None) -> Value:
    inside = softmax_backward(b, grad, y, -1 if dim is None else dim, grad.dtype)
    return b.select(mask, 0, inside)

"""Factorizations and solvers of linear algebra.

Cholesky and triangular solves are StableHLO's own. LU and QR are loops over columns: LU of narrow panels between
matrix products.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from . import dtypes
from .indices import take_along
from .matmul import matrix_product
from .matrices import adjoint_of, column_at, common_batch, diagonal, identity, like, repeat, stacked, triangle
from .meta import meta
from .pointwise import conjugate
from .registry import lower, python_op

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

# Wide panels: 256x256 takes 2 ms either way, but a panel costs half a second of compilation.
PANEL = 64
MAX_PANELS = 4


# ---- Cholesky and triangular solves


def _order_of_failure(b: Builder, a: Value) -> Value:
    """For each matrix the order of the first leading minor that is not positive, else 0."""
    rows = b.iota(a.shape[:2], 1, torch.int32)

    def step(k: Value, a: Value, info: Value) -> list[Value]:
        column = column_at(b, a, k)
        pivot = b.reduce_sum(b.select(rows.eq(k), column, b.full((), 0, a.dtype)), [1])
        real = b.real(pivot) if pivot.is_complex else pivot
        info = b.select(info.eq(0) & ~(real > 0.0), k + 1, info)
        scaled = b.divide(column, b.broadcast_in_dim(pivot, column.shape, [0]))
        return [a - b.unsqueeze(scaled, 2) * b.unsqueeze(conjugate(b, column), 1), info]

    return repeat(b, a.shape[1], [a, b.full(a.shape[:1], 0, torch.int32)], step)[1]


@lower(aten.linalg_cholesky_ex)
def cholesky_ex(b: Builder, x: Value, *, upper: bool = False, check_errors: bool = False) -> list[Value]:
    a = stacked(b, x)
    a = adjoint_of(b, a) if upper else a
    factor = triangle(b, b.cholesky(a), True)
    first = b.reduce_sum(b.real(factor) if factor.is_complex else factor, [1, 2])  # NaN where it failed
    failed = b.is_nan(first)
    none = b.full(failed.shape, 0, torch.int32)
    if a.numel == 0:
        info = none
    else:
        (info,) = b.if_(b.reduce_or(failed), lambda: [_order_of_failure(b, a)], lambda: [none])
    return [like(b, adjoint_of(b, factor) if upper else factor, 0), like(b, info, 1)]


@lower(aten.cholesky)
def cholesky(b: Builder, x: Value, upper: bool = False) -> Value:
    if x.numel == 0:  # nor need it be square
        return x
    a = stacked(b, x)
    factor = triangle(b, b.cholesky(adjoint_of(b, a) if upper else a), True)
    return like(b, adjoint_of(b, factor) if upper else factor, 0)


def _cholesky_solve(b: Builder, factor: Value, rhs: Value, upper: bool) -> Value:
    for adjoint in (upper, not upper):
        transpose = "ADJOINT" if adjoint else "NO_TRANSPOSE"
        rhs = b.triangular_solve(factor, rhs, left_side=True, lower=not upper, unit_diagonal=False, transpose=transpose)
    return rhs


@lower(aten._cholesky_solve_helper)
def cholesky_solve(b: Builder, rhs: Value, factor: Value, upper: bool) -> Value:
    factor, rhs = common_batch(b, factor, rhs)
    return like(b, _cholesky_solve(b, factor, rhs, upper), 0)


@lower(aten.cholesky_inverse)
def cholesky_inverse(b: Builder, x: Value, upper: bool = False) -> Value:
    factor = stacked(b, x)
    return like(b, _cholesky_solve(b, factor, identity(b, factor.shape, factor.dtype), upper), 0)


@lower(aten.linalg_solve_triangular)
def solve_triangular(
    b: Builder, a: Value, rhs: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    a, rhs = common_batch(b, a, rhs)
    out = b.triangular_solve(a, rhs, left_side=left, lower=not upper, unit_diagonal=unitriangular)
    return like(b, out, 0)


@lower(aten.triangular_solve)
def triangular_solve(
    b: Builder, rhs: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> list[Value]:
    a, rhs = common_batch(b, a, rhs)
    how = "TRANSPOSE" if transpose else "NO_TRANSPOSE"
    out = b.triangular_solve(a, rhs, left_side=True, lower=not upper, unit_diagonal=unitriangular, transpose=how)
    return [like(b, out, 0), like(b, a, 1)]


# ---- LU


def _lu_panel(b: Builder, a: Value, pivoting: bool) -> list[Value]:
    """Column by column: (factors, pivots, the row that went to each place)."""
    batch, m, n = a.shape
    rows = b.iota((batch, m), 1, torch.int32)
    zero = b.full((), 0, a.dtype)

    def spread(v: Value) -> Value:
        return b.broadcast_in_dim(v, (batch, m), [0])

    def step(k: Value, a: Value, pivots: Value, order: Value) -> list[Value]:
        at_k = rows.eq(k)
        column = column_at(b, a, k)
        pivot = b.broadcast_to(k, (batch,))
        if pivoting:
            size = b.abs(b.real(column)) + b.abs(b.imag(column)) if a.is_complex else b.abs(column)
            size = b.select(rows < k, -1.0, size)
            largest = size.eq(spread(b.reduce_max(size, [1])))
            pivot = b.minimum(b.reduce_min(b.select(largest, rows, m), [1]), m - 1)
        at_pivot = rows.eq(spread(pivot))

        def row(here: Value) -> Value:
            return b.reduce_sum(b.select(b.unsqueeze(here, 2), a, zero), [1], keepdim=True)

        upper, moved = row(at_pivot), row(at_k)
        a = b.select(b.unsqueeze(at_k, 2), upper, b.select(b.unsqueeze(at_pivot, 2), moved, a))
        column = column_at(b, a, k)
        head = b.reduce_sum(b.select(at_k, column, zero), [1])
        head = spread(b.select(head.eq(zero), b.full((), 1, a.dtype), head))
        factors = b.select(rows > k, b.divide(column, head), zero)
        columns = b.iota(a.shape, 2, torch.int32)
        a = a - b.unsqueeze(factors, 2) * b.select(columns > k, upper, zero)
        a = b.select(columns.eq(k) & b.unsqueeze(rows > k, 2), b.unsqueeze(factors, 2), a)

        places = b.reduce_sum(b.select(at_pivot, order, 0), [1]), b.reduce_sum(b.select(at_k, order, 0), [1])
        order = b.select(at_k, spread(places[0]), b.select(at_pivot, spread(places[1]), order))
        here = b.iota(pivots.shape, 1, torch.int32).eq(k)
        return [a, b.select(here, b.broadcast_in_dim(pivot + 1, pivots.shape, [0]), pivots), order]

    count = min(m, n)
    return repeat(b, count, [a, b.full((batch, count), 0, torch.int32), rows], step)


def _take_rows(b: Builder, x: Value, order: Value) -> Value:
    index = b.broadcast_in_dim(order, (*order.shape, x.shape[2]), [0, 1])
    return take_along(b, x, index, 1)


def _lu(b: Builder, a: Value, pivoting: bool = True) -> list[Value]:
    """The same, panel by panel, with triangular solves and products in between."""
    batch, m, n = a.shape
    count = min(m, n)
    width = max(PANEL, -(-count // MAX_PANELS))
    order = b.iota((batch, m), 1, torch.int32)
    pivots = []
    for start in range(0, count, width):
        end = min(start + width, count)
        below = b.slice_dim(a, 1, start, m)
        panel, local, moves = _lu_panel(b, b.slice_dim(below, 2, start, end), pivoting)
        pivots.append(local + start)
        left, right = (_take_rows(b, b.slice_dim(below, 2, *s), moves) for s in ((0, start), (end, n)))
        if end < n:
            top, rest = b.slice_dim(right, 1, 0, end - start), b.slice_dim(right, 1, end - start, m - start)
            head, tail = b.slice_dim(panel, 1, 0, end - start), b.slice_dim(panel, 1, end - start, m - start)
            top = b.triangular_solve(head, top, left_side=True, lower=True, unit_diagonal=True)
            right = b.concatenate([top, rest - matrix_product(b, tail, top)], 1)
        a = b.concatenate([b.slice_dim(a, 1, 0, start), b.concatenate([left, panel, right], 2)], 1)
        moved = take_along(b, b.slice_dim(order, 1, start, m), moves, 1)
        order = b.concatenate([b.slice_dim(order, 1, 0, start), moved], 1)
    all_pivots = b.concatenate(pivots, 1) if pivots else b.full((batch, 0), 0, torch.int32)
    return [a, all_pivots, order]


def _info(b: Builder, factors: Value) -> Value:
    """For each matrix the number of the first pivot that is zero, else 0."""
    count = min(factors.shape[1:])
    if count == 0:
        return b.full(factors.shape[:1], 0, torch.int32)
    head = b.slice(factors, [0, 0, 0], [factors.shape[0], count, count])
    zero = diagonal(b, head).eq(b.full((), 0, factors.dtype))
    number = b.select(zero, b.iota(zero.shape, 1, torch.int32) + 1, count + 1)
    first = b.reduce_min(number, [1])
    return b.select(first > count, 0, first)


@lower(aten.linalg_lu_factor_ex)
def lu_factor_ex(b: Builder, x: Value, *, pivot: bool = True, check_errors: bool = False) -> list[Value]:
    factors, pivots, _ = _lu(b, stacked(b, x), pivot)
    return [like(b, factors, 0), like(b, pivots, 1), like(b, _info(b, factors), 2)]


def _parts(b: Builder, factors: Value) -> tuple[Value, Value]:
    """L with its ones, and U."""
    batch, m, n = factors.shape
    k = min(m, n)
    lower = triangle(b, b.slice_dim(factors, 2, 0, k), True, -1) + identity(b, (batch, m, k), factors.dtype)
    return lower, triangle(b, b.slice_dim(factors, 1, 0, k), False)


def _permutation(b: Builder, order: Value, dtype: torch.dtype) -> Value:
    """P with P[order[i], i] = 1."""
    shape = (*order.shape, order.shape[1])
    return b.iota(shape, 1, torch.int32).eq(b.broadcast_in_dim(order, shape, [0, 2])).to(dtype)


def _order(b: Builder, pivots: Value, m: int) -> Value:
    """The row that the exchanges bring to each place."""
    batch = pivots.shape[0]
    rows = b.iota((batch, m), 1, torch.int32)

    def step(k: Value, order: Value) -> list[Value]:
        pivot = column_at(b, b.unsqueeze(pivots, 1), k) - 1
        at_k, at_pivot = rows.eq(k), rows.eq(b.broadcast_to(pivot, rows.shape))

        def place(here: Value) -> Value:
            return b.reduce_sum(b.select(here, order, 0), [1], keepdim=True)

        return [b.select(at_k, place(at_pivot), b.select(at_pivot, place(at_k), order))]

    return repeat(b, pivots.shape[1], [rows], step)[0]


@lower(aten.linalg_lu)
def lu(b: Builder, x: Value, *, pivot: bool = True) -> list[Value]:
    factors, _, order = _lu(b, stacked(b, x), pivot)
    p = _permutation(b, order, x.dtype) if pivot else b.full((0,), 0, x.dtype)
    return [like(b, v, i) for i, v in enumerate((p, *_parts(b, factors)))]


@lower(aten.lu_unpack)
def lu_unpack(
    b: Builder, data: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> list[Value]:
    none = b.full((0,), 0, data.dtype)
    factors = stacked(b, data)
    parts = _parts(b, factors) if unpack_data else (none, none)
    p = none
    if unpack_pivots:
        p = _permutation(b, _order(b, stacked(b, pivots, 1), factors.shape[1]), data.dtype)
    return [like(b, v, i) for i, v in enumerate((p, *parts))]


def _lu_solve(b: Builder, factors: Value, order: Value, rhs: Value, adjoint: bool) -> Value:
    """x with P L U x = rhs, or its adjoint x = rhs."""

    def solve(rhs: Value, lower: bool) -> Value:
        how = "ADJOINT" if adjoint else "NO_TRANSPOSE"
        return b.triangular_solve(factors, rhs, left_side=True, lower=lower, unit_diagonal=lower, transpose=how)

    if not adjoint:
        return solve(solve(_take_rows(b, rhs, order), True), False)
    rows = b.iota(order.shape, 1, torch.int32)
    back = b.sort([order, rows], 1, lambda x, y, *_: x < y)[1]
    return _take_rows(b, solve(solve(rhs, False), True), back)


@lower(aten.linalg_lu_solve)
def lu_solve(b: Builder, data: Value, pivots: Value, rhs: Value, *, left: bool = True, adjoint: bool = False) -> Value:
    batch = b.broadcast_shape(data.shape[:-2], rhs.shape[:-2])
    pivots = stacked(b, b.broadcast_to(pivots, (*batch, pivots.shape[-1])), 1)
    factors, rhs = common_batch(b, data, rhs)
    order = _order(b, pivots, factors.shape[1])
    if left:
        return like(b, _lu_solve(b, factors, order, rhs, adjoint), 0)
    return like(b, adjoint_of(b, _lu_solve(b, factors, order, adjoint_of(b, rhs), not adjoint)), 0)


@lower(aten.linalg_inv_ex)
def inv_ex(b: Builder, x: Value, *, check_errors: bool = False) -> list[Value]:
    a = stacked(b, x)
    factors, _, order = _lu(b, a)
    inverse = _lu_solve(b, factors, order, identity(b, a.shape, a.dtype), False)
    return [like(b, inverse, 0), like(b, _info(b, factors), 1)]


@lower(aten._linalg_solve_ex)
def solve_ex(b: Builder, a: Value, rhs: Value, *, left: bool = True, check_errors: bool = False) -> list[Value]:
    vector = rhs.ndim == 1 or (rhs.ndim == a.ndim - 1 and rhs.shape == a.shape[:-1])
    matrices, columns = common_batch(b, a, b.unsqueeze(rhs, -1) if vector else rhs)
    factors, pivots, order = _lu(b, stacked(b, a))
    info = _info(b, factors)
    wide, every = factors, order
    if matrices.shape[0] != factors.shape[0]:
        wide, _, every = _lu(b, matrices)
    if left:
        result = _lu_solve(b, wide, every, columns, False)
    else:
        result = adjoint_of(b, _lu_solve(b, wide, every, adjoint_of(b, columns), True))
    return [like(b, v, i) for i, v in enumerate((result, factors, pivots, info))]


# Autograd takes it that these factor the transpose of a contiguous real matrix, which a rule cannot see.


def _factored(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    factors, pivots, _ = aten.linalg_lu_factor_ex(a.mT if a.is_contiguous() and not a.is_complex() else a)
    return factors, pivots


def _sign_of_exchanges(pivots: torch.Tensor) -> torch.Tensor:
    places = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device, dtype=pivots.dtype)
    return 1 - 2 * ((pivots != places).sum(-1) % 2)


@python_op(aten._linalg_det.default)
def det(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    factors, pivots = _factored(a)
    return factors.diagonal(0, -2, -1).prod(-1) * _sign_of_exchanges(pivots), factors, pivots


@python_op(aten._linalg_slogdet.default)
def slogdet(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    factors, pivots = _factored(a)
    diagonal = factors.diagonal(0, -2, -1)
    return diagonal.sgn().prod(-1) * _sign_of_exchanges(pivots), diagonal.abs().log().sum(-1), factors, pivots


# ---- QR


def _reflection(b: Builder, v: Value, tau: Value, x: Value) -> Value:
    """(I - tau v v^H) x, for a vector and a number of each matrix."""
    along = b.reduce_sum(b.unsqueeze(conjugate(b, v), 2) * x, [1], keepdim=True)
    scaled = b.broadcast_in_dim(tau, v.shape, [0]) * v
    return x - b.unsqueeze(scaled, 2) * along


def householder(b: Builder, a: Value) -> list[Value]:
    """(R with the reflections' vectors below it, their factors), as LAPACK's geqrf."""
    batch, m, n = a.shape
    rows = b.iota((batch, m), 1, torch.int32)
    zero, one = (b.full((), v, a.dtype) for v in (0, 1))

    def real(x: Value) -> Value:
        return b.real(x) if x.is_complex else x

    def wide(x: Value) -> Value:
        return b.broadcast_in_dim(x.to(a.dtype), (batch, m), [0])

    def step(k: Value, a: Value, taus: Value) -> list[Value]:
        column = column_at(b, a, k)
        alpha = b.reduce_sum(b.select(rows.eq(k), column, zero), [1])
        below = b.select(rows > k, column, zero)
        rest = b.reduce_sum(real(below * conjugate(b, below)), [1])
        norm = b.sqrt(real(alpha * conjugate(b, alpha)) + rest)
        beta = b.select(real(alpha) < 0.0, norm, -norm)
        nothing = rest.eq(0.0) & (b.imag(alpha).eq(0.0) if a.is_complex else rest.eq(0.0))
        beta = b.select(nothing, real(alpha), beta)
        safe = b.select(nothing, 1.0, beta)
        tau = b.select(nothing, zero, b.divide(safe.to(a.dtype) - alpha, safe.to(a.dtype)))
        scale = b.select(nothing, one, alpha - beta.to(a.dtype))
        v = b.select(rows.eq(k), one, b.divide(below, wide(scale)))
        columns = b.iota(a.shape, 2, torch.int32)
        reflected = b.select(columns > k, _reflection(b, v, conjugate(b, tau), a), a)
        stored = b.select(rows.eq(k), wide(beta), b.select(rows > k, v, column))
        a = b.select(columns.eq(k), b.unsqueeze(stored, 2), reflected)
        here = b.iota(taus.shape, 1, torch.int32).eq(k)
        return [a, b.select(here, b.broadcast_in_dim(tau, taus.shape, [0]), taus)]

    count = min(m, n)
    return repeat(b, count, [a, b.full((batch, count), 0, a.dtype)], step)


def reflected(b: Builder, vectors: Value, taus: Value, x: Value, adjoint: bool) -> Value:
    """Q x, where Q is the product of the reflections, or its adjoint times x."""
    batch, m, _ = vectors.shape
    count = taus.shape[1]
    rows = b.iota((batch, m), 1, torch.int32)

    def step(i: Value, x: Value) -> list[Value]:
        k = i if adjoint else (count - 1) - i
        one, zero = (b.full((), v, vectors.dtype) for v in (1, 0))
        v = b.select(rows.eq(k), one, b.select(rows > k, column_at(b, vectors, k), zero))
        tau = b.reshape(column_at(b, b.unsqueeze(taus, 1), k), (batch,))
        return [_reflection(b, v, conjugate(b, tau) if adjoint else tau, x)]

    return repeat(b, count, [x], step)[0]


@meta(aten.geqrf.default)
def _meta_geqrf(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[:-2], min(x.shape[-2:])))


@lower(aten.geqrf)
def geqrf(b: Builder, x: Value) -> list[Value]:
    return [like(b, v, i) for i, v in enumerate(householder(b, stacked(b, x)))]


@lower(aten.linalg_householder_product)
def householder_product(b: Builder, x: Value, tau: Value) -> Value:
    vectors, taus = stacked(b, x), stacked(b, tau, 1)
    return like(b, reflected(b, vectors, taus, identity(b, vectors.shape, x.dtype), False), 0)


@lower(aten.ormqr)
def ormqr(b: Builder, x: Value, tau: Value, other: Value, left: bool = True, transpose: bool = False) -> Value:
    vectors, taus, other = stacked(b, x), stacked(b, tau, 1), stacked(b, other)
    if left:
        return like(b, reflected(b, vectors, taus, other, transpose), 0)
    return like(b, adjoint_of(b, reflected(b, vectors, taus, adjoint_of(b, other), not transpose)), 0)


@lower(aten.linalg_qr)
def qr(b: Builder, x: Value, mode: str = "reduced") -> list[Value]:
    a = stacked(b, x)
    batch, m, n = a.shape
    k = m if mode == "complete" else min(m, n)
    factors, taus = householder(b, a)
    r = triangle(b, b.slice_dim(factors, 1, 0, k), False)
    if mode == "r":
        return [b.full((0,), 0, x.dtype), like(b, r, 1)]
    q = reflected(b, factors, taus, identity(b, (batch, m, k), x.dtype), False)
    return [like(b, q, 0), like(b, r, 1)]


# ---- functions of matrices and vectors

# The norm up to which 18 terms of the Taylor series are exact in these precisions.
EXPONENTIAL_NORM = {torch.float32: 3.01, torch.float64: 1.09}
TERMS = 18


@lower(aten.linalg_matrix_exp)
def matrix_exp(b: Builder, x: Value) -> Value:
    """The Taylor series of a matrix made small enough, squared as often as it was halved."""
    dtype = dtypes.opmath(x.dtype)
    a = stacked(b, x.to(dtype))
    if a.numel == 0:
        return x
    size = b.reduce_max(b.reduce_sum(b.abs(a), [1]), [1])
    limit = EXPONENTIAL_NORM[size.dtype]
    halvings = b.maximum(b.ceil(b.divide(b.log(b.divide(size, limit)), math.log(2.0))), 0.0)
    a = a * b.broadcast_in_dim(b.power(b.full(size.shape, 0.5, size.dtype), halvings).to(dtype), a.shape, [0])
    one = identity(b, a.shape, dtype)
    total = one
    for term in range(TERMS, 0, -1):
        total = one + matrix_product(b, a, total) * (1.0 / term)
    most = b.reduce_max(halvings, [0])

    def square(i: Value, x: Value) -> list[Value]:
        again = b.broadcast_in_dim(i < halvings, x.shape, [0])
        return [i + 1.0, b.select(again, matrix_product(b, x, x), x)]

    start = b.full((), 0, size.dtype)
    return like(b, b.while_loop([start, total], lambda i, _: i < most, square)[1], 0)


@lower(aten.linalg_cross)
def cross(b: Builder, x: Value, y: Value, *, dim: int = -1) -> Value:
    x, y = b.operands(x, y)
    dim %= x.ndim

    def turned(v: Value, by: int) -> Value:
        return b.concatenate([b.slice_dim(v, dim, by, 3), b.slice_dim(v, dim, 0, by)], dim)

    return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1)

"""Symmetric and Hermitian factorization A = L D L^T with Bunch and Kaufman's pivots, in LAPACK's compact form.

D has blocks of one or two rows. Where it has two, both pivots are negative and name the row that the second changed
places with. As in LAPACK, what is left of the diagonal of L is not exchanged again by later pivots.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .indices import take_along
from .matrices import adjoint_of, column_at, diagonal, identity, like, repeat, stacked, triangle
from .pointwise import conjugate
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

# Bunch and Kaufman's: it bounds the growth of two steps of one row as that of one step of two.
ALPHA = (1 + math.sqrt(17)) / 8


def _size(b: Builder, x: Value) -> Value:
    return b.abs(b.real(x)) + b.abs(b.imag(x)) if x.is_complex else b.abs(x)


def _entry(b: Builder, x: Value, i: Value) -> Value:
    """x[i] of each vector: (batch, 1), of (batch, n) and (batch, 1)"""
    return b.reduce_sum(b.select(b.iota(x.shape, 1, torch.int32).eq(i), x, b.full((), 0, x.dtype)), [1], keepdim=True)


def _row(b: Builder, a: Value, i: Value) -> Value:
    """a[i] of each matrix: (batch, n)"""
    here = b.iota(a.shape, 1, torch.int32).eq(b.unsqueeze(i, 2))
    return b.reduce_sum(b.select(here, a, b.full((), 0, a.dtype)), [1])


def _largest(b: Builder, sizes: Value, among: Value) -> tuple[Value, Value]:
    """The largest of some sizes and its place, as (batch, 1)"""
    places = b.iota(sizes.shape, 1, torch.int32)
    sizes = b.select(among, sizes, -1.0)
    most = b.reduce_max(sizes, [1], keepdim=True)
    place = b.reduce_min(b.select(sizes.eq(most), places, sizes.shape[1] - 1), [1], keepdim=True)
    return b.maximum(most, 0.0), place


def _pivot(b: Builder, a: Value, k: Value) -> tuple[Value, Value, Value]:
    """(the row to bring forward, whether the block has two rows, whether the column is zero), each (batch, 1)"""
    rows = b.iota(a.shape[:2], 1, torch.int32)
    here = b.broadcast_to(k, (a.shape[0], 1))
    sizes = _size(b, column_at(b, a, k))
    own = _entry(b, sizes, here)
    below, most = _largest(b, sizes, rows > k)
    other = _size(b, _row(b, a, most))
    beside, _ = _largest(b, other, (rows >= k) & rows.ne(most))
    zero = b.maximum(own, below).eq(0.0)
    stays = zero | (own >= ALPHA * below) | (own * beside >= ALPHA * below * below)
    single = stays | (_entry(b, other, most) >= ALPHA * beside)
    return b.select(stays, here, most), ~single, zero


def _exchanged(b: Builder, a: Value, k: Value, one: Value, two: Value) -> Value:
    """Two rows and the same columns exchanged, from row and column k on."""
    rows = b.iota(a.shape[:2], 1, torch.int32)
    order = b.select(rows.eq(one), two, b.select(rows.eq(two), one, rows))
    moved = take_along(b, a, b.broadcast_in_dim(order, a.shape, [0, 1]), 1)
    moved = take_along(b, moved, b.broadcast_in_dim(order, a.shape, [0, 2]), 2)
    inside = (b.iota(a.shape, 1, torch.int32) >= k) & (b.iota(a.shape, 2, torch.int32) >= k)
    return b.select(inside, moved, a)


@lower(aten.linalg_ldl_factor_ex)
def ldl_factor_ex(b: Builder, x: Value, *, hermitian: bool = False, check_errors: bool = False) -> list[Value]:
    a = stacked(b, x)
    batch, n, _ = a.shape
    hermitian = hermitian and a.is_complex
    across = (lambda v: conjugate(b, v)) if hermitian else lambda v: v
    half, middle = triangle(b, a, True, -1), diagonal(b, a)
    middle = b.real(middle).to(a.dtype) if hermitian else middle
    upper = adjoint_of(b, half) if hermitian else b.swap_dims(half, 1, 2)
    a = half + upper + identity(b, a.shape, a.dtype) * b.unsqueeze(middle, 2)
    rows = b.iota((batch, n), 1, torch.int32)
    zero, one = (b.full((), v, a.dtype) for v in (0, 1))

    def step(k: Value, a: Value, pivots: Value, info: Value, second: Value) -> list[Value]:
        place, double, empty = _pivot(b, a, k)
        double = double & ~second
        last = b.select(double, k + 1, k)
        place = b.select(second, k, place)
        a = _exchanged(b, a, k, last, place)
        first, next_ = column_at(b, a, k), column_at(b, a, b.minimum(k + 1, n - 1))
        here = b.broadcast_to(k, (batch, 1))
        d, e, f = _entry(b, first, here), _entry(b, first, here + 1), _entry(b, next_, here + 1)
        after = rows > last
        first, next_ = b.select(after, first, zero), b.select(after & double, next_, zero)
        # L's columns, times D's block from the right, are these columns.
        e = b.select(double, e, zero)
        f = b.select(double, f, one)
        determinant = d * f - e * across(e)
        dead = empty | second | determinant.eq(zero)
        determinant = b.select(dead, one, determinant)
        left = b.divide(first * f - next_ * e, determinant)
        right = b.divide(next_ * d - first * across(e), determinant)
        left, right = b.select(dead, zero, left), b.select(dead | ~double, zero, right)
        shrunk = a - b.unsqueeze(left, 2) * b.unsqueeze(across(first), 1)
        shrunk = shrunk - b.unsqueeze(right, 2) * b.unsqueeze(across(next_), 1)
        columns = b.iota(a.shape, 2, torch.int32)
        wide = b.unsqueeze(after, 2)
        a_ = b.select(wide & b.unsqueeze(after, 1), shrunk, a)
        a_ = b.select(wide & columns.eq(k), b.unsqueeze(left, 2), a_)
        a_ = b.select(wide & columns.eq(k + 1) & b.unsqueeze(double, 2), b.unsqueeze(right, 2), a_)
        a = b.select(b.unsqueeze(second | empty, 2), a, a_)
        number = b.select(double, -(place + 1), place + 1)
        pivots = b.select(~second & (rows >= k) & (rows <= last), number, pivots)
        info = b.select(info.eq(0) & empty & ~second, k + 1, info)
        return [a, pivots, info, double]

    no, none = (b.full((batch, 1), 0, dtype) for dtype in (torch.bool, torch.int32))
    state = [a, b.full((batch, n), 0, torch.int32), none, no]
    a, pivots, info, _ = repeat(b, n, state, step)
    return [like(b, v, i) for i, v in enumerate((triangle(b, a, True), pivots, info))]


@lower(aten.linalg_ldl_solve)
def ldl_solve(b: Builder, factors: Value, pivots: Value, rhs: Value, *, hermitian: bool = False) -> Value:
    batch_shape = b.broadcast_shape(factors.shape[:-2], rhs.shape[:-2])
    a, right = (stacked(b, b.broadcast_to(v, (*batch_shape, *v.shape[-2:]))) for v in (factors, rhs))
    pivots = stacked(b, b.broadcast_to(pivots, (*batch_shape, pivots.shape[-1])), 1)
    batch, n, _ = a.shape
    across = (lambda v: conjugate(b, v)) if hermitian and a.is_complex else lambda v: v
    rows = b.iota((batch, n), 1, torch.int32)
    zero, one = (b.full((), v, a.dtype) for v in (0, 1))

    def exchanged(x: Value, i: Value, j: Value) -> Value:
        order = b.select(rows.eq(i), j, b.select(rows.eq(j), i, rows))
        return take_along(b, x, b.broadcast_in_dim(order, x.shape, [0, 1]), 1)

    def block(k: Value) -> tuple[Value, Value, Value]:
        """(its last row, the row that it changed places with, whether it has two rows) of the block from row k"""
        pivot = _entry(b, pivots, b.broadcast_to(k, (batch, 1)))
        double = pivot < 0
        return b.select(double, k + 1, k), b.abs(pivot) - 1, double

    def columns_of(k: Value, last: Value, double: Value) -> tuple[Value, Value]:
        after = rows > last
        one_, two = column_at(b, a, k), column_at(b, a, b.minimum(k + 1, n - 1))
        return b.select(after, one_, zero), b.select(after & double, two, zero)

    def down(k: Value, x: Value, second: Value) -> list[Value]:
        last, place, double = block(k)
        double = double & ~second
        here = b.broadcast_to(k, (batch, 1))
        moved = exchanged(x, last, place)
        left, right = columns_of(k, last, double)
        top, under = _row(b, moved, here), _row(b, moved, here + 1)
        moved = moved - b.unsqueeze(left, 2) * b.unsqueeze(top, 1) - b.unsqueeze(right, 2) * b.unsqueeze(under, 1)
        column = column_at(b, a, k)
        d, e = _entry(b, column, here), b.select(double, _entry(b, column, here + 1), zero)
        f = b.select(double, _entry(b, column_at(b, a, b.minimum(k + 1, n - 1)), here + 1), one)
        determinant = d * f - e * across(e)
        solved = b.divide(top * f - under * across(e), determinant), b.divide(under * d - top * e, determinant)
        moved = b.select(b.unsqueeze(rows.eq(k), 2), b.unsqueeze(solved[0], 1), moved)
        moved = b.select(b.unsqueeze(rows.eq(k + 1) & double, 2), b.unsqueeze(solved[1], 1), moved)
        return [b.select(b.unsqueeze(second, 2), x, moved), double]

    def up(i: Value, x: Value, second: Value) -> list[Value]:
        # From the last row: at the second row of a block its first is meant.
        end = (n - 1) - i
        negative = _entry(b, pivots, b.broadcast_to(end, (batch, 1))) < 0
        double = negative & ~second
        last = b.broadcast_to(end, (batch, 1))
        after = rows > last

        def dot(column: Value) -> Value:
            column = b.select(after, across(column), zero)
            return b.reduce_sum(b.unsqueeze(column, 2) * x, [1], keepdim=True)

        x_ = b.select(b.unsqueeze(rows.eq(end), 2), x - dot(column_at(b, a, end)), x)
        before = b.maximum(end - 1, 0)
        x_ = b.select(b.unsqueeze(rows.eq(end - 1) & double, 2), x - dot(column_at(b, a, before)), x_)
        place = b.abs(_entry(b, pivots, last)) - 1
        return [b.select(b.unsqueeze(second, 2), x, exchanged(x_, last, place)), double]

    no = b.full((batch, 1), 0, torch.bool)
    x = repeat(b, n, [right, no], down)[0]
    return like(b, repeat(b, n, [x, no], up)[0], 0)

"""Eigenvalues of general matrices: Householder reflections to Hessenberg form, then QR steps with Wilkinson's shifts.

All is complex, as for real matrices pairs of eigenvalues are. H, whose eigenvalues are wanted, and Q with A = Q H Q^H
stand above each other in one array, so that what turns H's columns turns Q's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import dtypes
from .matmul import matrix_product
from .matrices import column_at, diagonal, identity, like, repeat, stacked, triangle
from .pointwise import conjugate
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

# LAPACK gives up after so many steps for each eigenvalue; two or three are usual.
MAX_STEPS = 30
# A step that many times after the last eigenvalue was found shifts by something else, in case it runs in a circle.
EXCEPTION = 10


def _size(b: Builder, x: Value) -> Value:
    """|re| + |im|: as good as the absolute value for comparisons."""
    return b.abs(b.real(x)) + b.abs(b.imag(x))


def _column(b: Builder, x: Value) -> Value:
    """A number of each matrix, to go with its rows and columns."""
    return b.reshape(x, (x.shape[0], 1, 1))


def _hessenberg(b: Builder, work: Value) -> Value:
    """Zeros below the first diagonal under the main one. work: H above Q, (batch, 2 n, n)"""
    batch, _, n = work.shape
    rows = b.iota((batch, n), 1, torch.int32)
    zero, one = (b.full((), v, work.dtype) for v in (0, 1))

    def step(k: Value, work: Value) -> list[Value]:
        h = b.slice_dim(work, 1, 0, n)
        x = b.select(rows > k, column_at(b, h, k), zero)
        norm = b.sqrt(b.reduce_sum(b.real(x * conjugate(b, x)), [1], keepdim=True))
        first = b.reduce_sum(b.select(rows.eq(k + 1), x, zero), [1], keepdim=True)
        size = b.abs(first)
        phase = b.select(size > 0.0, b.divide(first, b.select(size > 0.0, size, 1.0).to(x.dtype)), one)
        v = x + b.select(rows.eq(k + 1), phase * norm.to(x.dtype), zero)
        length = b.sqrt(b.reduce_sum(b.real(v * conjugate(b, v)), [1], keepdim=True))
        v = b.divide(v, b.select(length > 0.0, length, 1.0).to(x.dtype))
        # I - 2 v v^H from both sides
        h = h - b.unsqueeze(v * 2.0, 2) * b.reduce_sum(b.unsqueeze(conjugate(b, v), 2) * h, [1], keepdim=True)
        work = b.concatenate([h, b.slice_dim(work, 1, n, 2 * n)], 1)
        along = b.reduce_sum(work * b.unsqueeze(v, 1), [2], keepdim=True)
        return [work - along * b.unsqueeze(conjugate(b, v) * 2.0, 1)]

    return repeat(b, n - 2, [work], step)[0]


def _deflated(b: Builder, h: Value) -> tuple[Value, Value, Value]:
    """(H with zeros for what is negligible under the diagonal, last row and first row of what is still to be solved)"""
    n = h.shape[1]
    entries = b.iota(h.shape[:2], 1, torch.int32)
    d = _size(b, diagonal(b, h))
    before = b.concatenate([b.slice_dim(d, 1, 0, 1), b.slice_dim(d, 1, 0, n - 1)], 1)
    rows, columns = (b.iota(h.shape, i, torch.int32) for i in (1, 2))
    under = b.reduce_sum(b.select(rows.eq(columns + 1), h, b.full((), 0, h.dtype)), [2])
    # The second: squares of what is kept must not vanish. The matrix was scaled, so that is nothing against its norm.
    info = torch.finfo(d.dtype)
    negligible = b.maximum((d + before) * info.eps, info.tiny**0.5)
    small = ~(_size(b, under) > negligible) | entries.eq(0)
    last = b.reduce_max(b.select(small, 0, entries), [1])
    first = b.reduce_max(b.select(small & (entries <= b.broadcast_in_dim(last, entries.shape, [0])), entries, 0), [1])
    kept = (columns >= rows) | (columns.eq(rows - 1) & ~b.unsqueeze(small, 2))
    return b.select(kept, h, b.full((), 0, h.dtype)), last, first


def _shift(b: Builder, h: Value, last: Value, tries: Value) -> Value:
    """The eigenvalue of the last two rows and columns that is nearer to the last entry."""
    rows, columns = (b.iota(h.shape, i, torch.int32) for i in (1, 2))
    zero = b.full((), 0, h.dtype)

    def entry(i: Value, j: Value) -> Value:
        return b.reduce_sum(b.select(rows.eq(_column(b, i)) & columns.eq(_column(b, j)), h, zero), [1, 2])

    above = b.maximum(last - 1, 0)
    t = entry(last, last)
    u = b.sqrt(entry(above, last)) * b.sqrt(entry(last, above))
    half = (entry(above, above) - t) * 0.5
    root = b.sqrt(half * half + u * u)
    aligned = b.real(half) * b.real(root) + b.imag(half) * b.imag(root)
    root = b.select(aligned < 0.0, -root, root)
    below = half + root
    nothing = _size(b, below).eq(0.0)
    shift = t - b.select(nothing, zero, u * b.divide(u, b.select(nothing, b.full((), 1, h.dtype), below)))
    exception = t + (b.abs(b.real(entry(last, above))) * 0.75).to(h.dtype)
    return b.select((tries > 0) & b.remainder(tries, EXCEPTION).eq(0), exception, shift)


def _chase(b: Builder, work: Value, shift: Value, last: Value, first: Value) -> Value:
    """One QR step on rows and columns first to last: rotations of neighbours, each of which mends what the one before
    broke."""
    batch, _, n = work.shape
    zero = b.full((), 0, torch.int32)

    def step(k: Value, work: Value) -> list[Value]:
        rows = b.dynamic_slice(work, [zero, k, zero], (batch, 2, n))
        starts = first.eq(k)
        left = column_at(b, rows, b.maximum(k - 1, 0))
        here = column_at(b, rows, k)
        x = b.select(b.unsqueeze(starts, 1), here, left)
        x, y = (b.reshape(b.slice_dim(x, 1, i, i + 1), (batch,)) for i in (0, 1))
        x = b.select(starts, x - shift, x)
        length = b.sqrt(b.real(x * conjugate(b, x)) + b.real(y * conjugate(b, y)))
        turns = (first <= k) & (k < last) & (length > 0.0)
        safe = b.select(turns, length, 1.0).to(x.dtype)
        c = _column(b, b.select(turns, b.divide(x, safe), b.full((), 1, x.dtype)))
        s = _column(b, b.select(turns, b.divide(y, safe), b.full((), 0, x.dtype)))
        c_, s_ = conjugate(b, c), conjugate(b, s)
        top, bottom = b.slice_dim(rows, 1, 0, 1), b.slice_dim(rows, 1, 1, 2)
        rows = b.concatenate([c_ * top + s_ * bottom, c * bottom - s * top], 1)
        work = b.dynamic_update_slice(work, rows, [zero, k, zero])
        columns = b.dynamic_slice(work, [zero, zero, k], (batch, 2 * n, 2))
        one, two = b.slice_dim(columns, 2, 0, 1), b.slice_dim(columns, 2, 1, 2)
        columns = b.concatenate([c * one + s * two, c_ * two - s_ * one], 2)
        return [k + 1, b.dynamic_update_slice(work, columns, [zero, zero, k])]

    begin, end = b.reduce_min(first, [0]), b.reduce_max(last, [0])
    return b.while_loop([begin, work], lambda k, _: k < end, step)[1]


def _schur(b: Builder, a: Value) -> tuple[Value, Value]:
    """(T, Q) with A = Q T Q^H, T upper triangular and Q unitary. a: complex, (batch, n, n)"""
    batch, n, _ = a.shape
    if n < 2:
        return a, identity(b, a.shape, a.dtype)
    work = _hessenberg(b, b.concatenate([a, identity(b, a.shape, a.dtype)], 1))

    def split(work: Value) -> tuple[Value, Value, Value, Value]:
        h, last, first = _deflated(b, b.slice_dim(work, 1, 0, n))
        return b.concatenate([h, b.slice_dim(work, 1, n, 2 * n)], 1), h, last, first

    def step(count: Value, tries: Value, before: Value, work: Value) -> list[Value]:
        work, h, last, first = split(work)
        tries = b.select(last.eq(before), tries + 1, 0)
        return [count + 1, tries, last, _chase(b, work, _shift(b, h, last, tries), last, first)]

    def more(count: Value, tries: Value, before: Value, work: Value) -> Value:
        _, _, last, _ = split(work)
        return (b.reduce_max(last, [0]) > 0) & (count < MAX_STEPS * n)

    none = b.full((batch,), 0, torch.int32)
    work = b.while_loop([b.full((), 0, torch.int32), none, none, work], more, step)[3]
    return triangle(b, b.slice_dim(work, 1, 0, n), False), b.slice_dim(work, 1, n, 2 * n)


def _vectors(b: Builder, t: Value) -> Value:
    """Eigenvectors of upper triangular matrices, as columns: all of them row by row from the last."""
    n = t.shape[1]
    eps = torch.finfo(dtypes.real(t.dtype)).eps
    values = diagonal(b, t)
    least = b.maximum(b.reduce_max(_size(b, t), [1, 2]) * eps, torch.finfo(dtypes.real(t.dtype)).tiny)
    rows = b.iota(t.shape, 1, torch.int32)
    which = b.iota(values.shape, 1, torch.int32)
    zero, one = (b.full((), v, t.dtype) for v in (0, 1))

    def step(i: Value, x: Value) -> list[Value]:
        k = (n - 1) - i
        row = b.reduce_sum(b.select(rows.eq(k), t, zero), [1])
        sums = b.reduce_sum(b.unsqueeze(row, 2) * x, [1])
        own = b.reduce_sum(b.select(which.eq(k), values, zero), [1], keepdim=True)
        apart = values - own
        floor = b.broadcast_in_dim(least, values.shape, [0])
        apart = b.select(_size(b, apart) > floor, apart, floor.to(t.dtype))
        entry = b.select(which > k, b.divide(sums, apart), b.select(which.eq(k), one, zero))
        x = b.select(rows.eq(k), b.unsqueeze(entry, 1), x)
        # Where eigenvalues coincide the entries grow without bound.
        return [b.divide(x, b.unsqueeze(b.maximum(_size(b, entry), 1.0).to(t.dtype), 1))]

    return repeat(b, n, [b.full(t.shape, 0, t.dtype)], step)[0]


def _normalized(b: Builder, v: Value) -> Value:
    """Columns of length 1 whose largest entry is real, as LAPACK's."""
    n = v.shape[1]
    size = b.abs(v)
    most = b.reduce_max(size, [1], keepdim=True)
    rows = b.iota(v.shape, 1, torch.int32)
    place = b.reduce_min(b.select(size.eq(most), rows, n), [1], keepdim=True)
    largest = b.reduce_sum(b.select(rows.eq(place), v, b.full((), 0, v.dtype)), [1], keepdim=True)
    v = b.divide(v, largest)
    length = b.sqrt(b.reduce_sum(b.real(v * conjugate(b, v)), [1], keepdim=True))
    v = b.divide(v, length.to(v.dtype))
    return b.select(rows.eq(place), b.real(v).to(v.dtype), v)


def _solved(b: Builder, x: Value, vectors: bool) -> list[Value]:
    """(eigenvalues, eigenvectors if wanted)"""
    a = stacked(b, x)
    real = not a.is_complex
    dtype = dtypes.complex_of(a.dtype) if real else a.dtype
    if a.numel == 0:
        return [b.full(spec.shape, 0, spec.dtype) for spec in b.outputs if spec is not None]
    largest = b.reduce_max(b.abs(a), [1, 2])
    scale = b.select(largest > 0.0, largest, 1.0)
    t, q = _schur(b, b.divide(a.to(dtype), _column(b, scale).to(dtype)))
    values = diagonal(b, t)
    if real:
        # What rounding leaves of an imaginary part is no news about a real matrix.
        noise = 4.0 * a.shape[1] * torch.finfo(scale.dtype).eps
        values = b.select(b.abs(b.imag(values)) > noise, values, b.real(values).to(dtype))
    values = values * b.broadcast_in_dim(scale.to(dtype), values.shape, [0])
    if not vectors:
        return [like(b, values, 0)]
    return [like(b, values, 0), like(b, _normalized(b, matrix_product(b, q, _vectors(b, t))), 1)]


@lower(aten.linalg_eig)
def eig(b: Builder, x: Value) -> list[Value]:
    return _solved(b, x, True)


@lower(aten._linalg_eigvals, aten.linalg_eigvals)
def eigvals(b: Builder, x: Value) -> Value:
    return _solved(b, x, False)[0]

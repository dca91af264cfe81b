"""Eigenvalues and singular values, by one-sided Jacobi rotations.

Each round turns n/2 disjoint pairs of columns, so that the loops do little and the vector units much. XLA has an
expansion of its own for Hermitian matrices, whose float64 vectors are only good to 1e-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import dtypes
from .indices import take_along
from .linalg import householder, reflected
from .matmul import matrix_product
from .matrices import adjoint_of, diagonal, identity, like, repeat, stacked, triangle
from .pointwise import conjugate
from .registry import lower, python_op

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten
Tensor = torch.Tensor

# Rotations converge quadratically: six sweeps or so, whatever the size.
MAX_SWEEPS = 40


# ---- rotations


def _real(b: Builder, x: Value) -> Value:
    return b.real(x) if x.is_complex else x


def _squares(b: Builder, columns: Value) -> Value:
    """The squared length of each column: (batch, n)"""
    return b.reduce_sum(_real(b, columns * conjugate(b, columns)), [1])


def _scaled(b: Builder, a: Value) -> tuple[Value, Value]:
    """Matrices whose squares neither overflow nor vanish, and what each was divided by."""
    dtype = dtypes.real(a.dtype)
    largest = b.reduce_max(b.abs(a), [1, 2]) if a.numel else b.full(a.shape[:1], 1, dtype)
    scale = b.select(largest > 0.0, largest, 1.0)
    return b.divide(a, b.broadcast_in_dim(scale.to(a.dtype), a.shape, [0])), scale


def _sorted(b: Builder, sizes: Value, descending: bool) -> tuple[Value, Value]:
    """(batch, n) in order, and the places, spread over (batch, n, n) to take columns with."""
    batch, n = sizes.shape
    places = b.iota(sizes.shape, 1, torch.int32)
    sizes, places = b.sort([sizes, places], 1, lambda x, y, *_: x > y if descending else x < y)
    return sizes, b.broadcast_in_dim(places, (batch, n, n), [0, 2])


def _rotation(b: Builder, left: Value, right: Value) -> tuple[Value, Value, Value, Value]:
    """What makes pairs of columns orthogonal: (cosine, sine, phase of the right one, how far from orthogonal).

    left, right: (batch, rows, pairs). Each result is (batch, pairs).
    """

    alpha, beta = _squares(b, left), _squares(b, right)
    gamma = b.reduce_sum(conjugate(b, left) * right, [1])
    size = b.abs(gamma)
    lengths = b.sqrt(alpha) * b.sqrt(beta)
    off = b.select(lengths > 0.0, b.divide(size, b.select(lengths > 0.0, lengths, 1.0)), 0.0)
    turn = off > _tolerance(left)
    safe = b.select(turn, size, 1.0)
    phase = b.divide(conjugate(b, gamma), safe.to(gamma.dtype))
    phase = b.select(turn, phase, b.full((), 1, gamma.dtype))
    zeta = b.divide(beta - alpha, safe * 2.0)
    tangent = b.divide(1.0, b.abs(zeta) + b.sqrt(zeta * zeta + 1.0))
    tangent = b.select(turn, b.select(zeta < 0.0, -tangent, tangent), 0.0)
    cosine = b.rsqrt(tangent * tangent + 1.0)
    return cosine, cosine * tangent, phase, off


def _tolerance(x: Value) -> float:
    return float(torch.finfo(dtypes.real(x.dtype)).eps * max(1, x.shape[1]) ** 0.5)


def _orthogonalized(b: Builder, a: Value, compute_v: bool) -> tuple[Value, Value | None]:
    """(A V, V) with a unitary V that makes the columns orthogonal. a: (batch, n, n)"""
    n = a.shape[2]
    pairs = (n + 1) // 2
    work = b.concatenate([a, identity(b, a.shape, a.dtype)], 1) if compute_v else a
    if n % 2:
        work = b.pad(work, b.full((), 0, a.dtype), [0, 0, 0], [0, 0, 1])
    left, right = b.slice_dim(work, 2, 0, pairs), b.slice_dim(work, 2, pairs, 2 * pairs)
    worst = b.full((), torch.inf, dtypes.real(a.dtype))

    def one_round(_: Value, left: Value, right: Value, worst: Value) -> list[Value]:
        upper = [b.slice_dim(x, 1, 0, n) for x in (left, right)]
        cosine, sine, phase, off = _rotation(b, *upper)
        cosine, sine, phase = (b.unsqueeze(x.to(a.dtype), 1) for x in (cosine, sine, phase))
        right = right * phase
        left, right = left * cosine - right * sine, left * sine + right * cosine
        if pairs > 1:
            # As in a tournament: the first stays, the others walk in a circle, and everybody meets everybody once.
            first, rest = b.slice_dim(left, 2, 0, 1), b.slice_dim(left, 2, 1, pairs - 1)
            left, right = (
                b.concatenate([first, b.slice_dim(right, 2, 0, 1), rest], 2),
                b.concatenate([b.slice_dim(right, 2, 1, pairs), b.slice_dim(left, 2, pairs - 1, pairs)], 2),
            )
        return [left, right, b.maximum(worst, b.reduce_max(off))]

    def sweep(count: Value, left: Value, right: Value, _: Value) -> list[Value]:
        none = b.full((), 0, worst.dtype)
        return [count + 1, *repeat(b, 2 * pairs - 1, [left, right, none], one_round)]

    def more(count: Value, left: Value, right: Value, worst: Value) -> Value:
        return (worst > _tolerance(a)) & (count < MAX_SWEEPS)

    _, left, right, _ = b.while_loop([b.full((), 0, torch.int32), left, right, worst], more, sweep)
    done = b.slice_dim(b.concatenate([left, right], 2), 2, 0, n)  # a whole sweep puts every column back in its place
    return b.slice_dim(done, 1, 0, n), b.slice_dim(done, 1, n, 2 * n) if compute_v else None


# ---- singular values


def _svd(b: Builder, a: Value, full_matrices: bool, compute_uv: bool) -> list[Value]:
    """(U, S, V) of a stack of matrices at least as high as wide."""
    batch, m, n = a.shape
    a, scale = _scaled(b, a)
    factors, taus = householder(b, a)
    columns, v = _orthogonalized(b, triangle(b, b.slice_dim(factors, 1, 0, n), False), compute_uv)
    sizes, order = _sorted(b, b.sqrt(_squares(b, columns)), descending=True)
    s = sizes * b.broadcast_in_dim(scale, sizes.shape, [0])
    if v is None:
        return [s]
    columns, v = take_along(b, columns, order, 2), take_along(b, v, order, 2)
    # QR of orthogonal columns normalizes them, and completes them where they are zero.
    inner, inner_taus = householder(b, columns)
    head = diagonal(b, inner)
    size = b.abs(head)
    sign = b.select(size > 0.0, b.divide(head, b.select(size > 0.0, size, 1.0).to(a.dtype)), b.full((), 1, a.dtype))
    u = reflected(b, inner, inner_taus, identity(b, (batch, n, n), a.dtype), False)
    u = u * b.unsqueeze(sign, 1)
    width = m if full_matrices else n
    u = b.pad(u, b.full((), 0, a.dtype), [0, 0, 0], [0, m - n, width - n])
    if width > n:
        rows, columns_ = (b.iota(u.shape, d, torch.int32) for d in (1, 2))
        u = u + (rows.eq(columns_) & (rows >= n)).to(a.dtype)
    return [reflected(b, factors, taus, u, False), s, v]


@lower(aten._linalg_svd)
def svd(
    b: Builder, x: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> list[Value]:
    a = stacked(b, x)
    wide = a.shape[1] < a.shape[2]
    result = _svd(b, adjoint_of(b, a) if wide else a, full_matrices, compute_uv)
    if not compute_uv:
        nothing = b.full((0,), 0, x.dtype)
        return [nothing, like(b, result[0], 1), nothing]
    u, s, v = result
    if wide:
        u, v = v, u
    return [like(b, u, 0), like(b, s, 1), like(b, adjoint_of(b, v), 2)]


# ---- Hermitian eigenvalues


@lower(aten._linalg_eigh)
def eigh(b: Builder, x: Value, UPLO: str = "L", compute_v: bool = True) -> list[Value]:
    a = stacked(b, x)
    on_lower = UPLO.upper() == "L"
    half = triangle(b, a, on_lower, -1 if on_lower else 1)
    middle = diagonal(b, a)
    middle = b.real(middle).to(a.dtype) if a.is_complex else middle
    one = identity(b, a.shape, a.dtype)
    a = half + adjoint_of(b, half) + one * b.unsqueeze(middle, 2)
    if a.numel == 0:
        return [b.full(spec.shape, 0, spec.dtype) for spec in b.outputs if spec is not None]
    a, scale = _scaled(b, a)
    # With no negative eigenvalue left, the right singular vectors are the eigenvectors.
    shift = b.reduce_max(b.reduce_sum(b.abs(a), [1]), [1])
    _, vectors = _orthogonalized(b, a + one * b.broadcast_in_dim(shift.to(a.dtype), a.shape, [0]), True)
    assert vectors is not None
    moved = matrix_product(b, a, vectors)
    values = b.reduce_sum(_real(b, conjugate(b, vectors) * moved), [1])
    values, order = _sorted(b, values, descending=False)
    values = values * b.broadcast_in_dim(scale, values.shape, [0])
    vectors = take_along(b, vectors, order, 2)
    return [like(b, values, 0), like(b, vectors, 1) if compute_v else b.full((0,), 0, x.dtype)]


# ---- least squares


@python_op(aten.linalg_lstsq.default)
def lstsq(
    a: Tensor, rhs: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As LAPACK's drivers: all of them find the solution of least length, and differ in what else they say."""
    driver = _driver(a, rhs, driver)
    vector = rhs.ndim == a.ndim - 1
    columns = rhs.unsqueeze(-1) if vector else rhs
    m, n = a.shape[-2:]
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    if rcond is None:
        rcond = torch.finfo(a.dtype).eps * max(m, n)
    keep = s > rcond * s.amax(-1, keepdim=True) if s.numel() else s > 0
    inverse = torch.where(keep, 1 / s, 0).to(a.dtype)
    solution = vh.mH @ (inverse.unsqueeze(-1) * (u.mH @ columns))
    rank = keep.sum(-1)
    residuals = s.new_empty(0)
    if m > n and driver != "gelsy" and (driver == "gels" or bool((rank == n).all())):
        residuals = (columns - a @ solution).abs().square().sum(-2)
    return (
        solution.squeeze(-1) if vector else solution,
        residuals,
        rank.new_empty(0) if driver == "gels" else rank,
        s if driver in ("gelsd", "gelss") else s.new_empty(0),
    )


def _driver(a: Tensor, rhs: Tensor, driver: str | None) -> str:
    """The driver in use; raises PyTorch's errors for arguments that do not fit."""
    drivers = ("gels", "gelsy", "gelsd", "gelss")
    driver = driver or "gelsy"
    checks = {
        "input must have at least 2 dimensions.": a.ndim >= 2,
        "other must have at least 1 dimension.": rhs.ndim >= 1,
        f"Expected input and other to have the same dtype, but got input's dtype {a.dtype} and other's dtype "
        f"{rhs.dtype}": a.dtype == rhs.dtype,
        "input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) <= 1": a.ndim - rhs.ndim
        in (0, 1),
        f"parameter `driver` should be one of ({', '.join(drivers)})": driver in drivers,
    }
    for message, holds in checks.items():
        if not holds:
            raise RuntimeError(f"torch.linalg.lstsq: {message}")
    if a.shape[-2] != rhs.shape[-2 if rhs.ndim == a.ndim else -1]:
        dim = "-2" if rhs.ndim == a.ndim else "-1"
        raise RuntimeError(f"torch.linalg.lstsq: input.size(-2) should match other.size({dim})")
    return driver

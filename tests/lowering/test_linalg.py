"""Factorizations and solvers against CPU torch."""

from __future__ import annotations

import pytest
import torch
from harness import check, run
from samples import sample

from torch_tpu.lowering import linalg

aten = torch.ops.aten
DTYPES = [torch.float64, torch.complex64]


def close(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}


def positive(*batch: int, n: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    a = sample(*batch, n, n, dtype=dtype)
    return a @ a.mH + torch.eye(n, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(dtype: torch.dtype) -> None:
    a = positive(2, dtype=dtype)
    for upper in (False, True):
        check(aten.linalg_cholesky_ex, a, upper=upper, **close(dtype))
        check(aten.cholesky, a[0], upper, **close(dtype))
        factor = aten.linalg_cholesky_ex(a, upper=upper)[0]
        check(aten.cholesky_inverse, factor, upper, **close(dtype))
        check(aten._cholesky_solve_helper, sample(2, 5, 3, dtype=dtype), factor, upper, **close(dtype))


def test_cholesky_says_where_it_failed() -> None:
    a = torch.eye(4).repeat(3, 1, 1)
    a[1, 2, 2] = -1
    a[2, 0, 0] = 0
    assert run(aten.linalg_cholesky_ex, a)[1].tolist() == aten.linalg_cholesky_ex(a)[1].tolist() == [0, 3, 1]


def test_triangular() -> None:
    dtype = torch.complex64
    a = sample(2, 4, 4, dtype=dtype) + 3 * torch.eye(4, dtype=dtype)
    for upper in (False, True):
        t = a.triu() if upper else a.tril()
        check(aten.linalg_solve_triangular, t, sample(2, 4, 3, dtype=dtype), upper=upper, **close(dtype))
        check(aten.linalg_solve_triangular, t[0], sample(2, 3, 4, dtype=dtype), upper=upper, left=False, **close(dtype))
        check(
            aten.linalg_solve_triangular,
            t,
            sample(2, 4, 3, dtype=dtype),
            upper=upper,
            unitriangular=True,
            **close(dtype),
        )
        check(aten.triangular_solve, sample(2, 4, 3, dtype=dtype), t, upper, True, **close(dtype))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 5, 5), torch.complex64), ((6, 4), torch.float64), ((3, 7), torch.float32), ((0, 3, 3), torch.float32)],
)
def test_lu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = sample(*shape, dtype=dtype)
    check(aten.linalg_lu_factor_ex, a, **close(dtype))
    check(aten.linalg_lu, a, **close(dtype))
    factors, pivots, _ = aten.linalg_lu_factor_ex(a)
    check(aten.lu_unpack, factors, pivots, **close(dtype))


def test_lu_by_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linalg, "PANEL", 4)
    check(aten.linalg_lu_factor_ex, sample(2, 9, 9, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    check(aten.linalg_lu_factor_ex, sample(9, 6), **close(torch.float32))


def test_lu_of_singular_matrices() -> None:
    a = sample(3, 4, 4)
    a[1, :, 2] = 0
    a[2] = 0
    assert run(aten.linalg_lu_factor_ex, a)[2].tolist() == aten.linalg_lu_factor_ex(a)[2].tolist()


def test_solving() -> None:
    dtype = torch.complex64
    a = sample(2, 5, 5, dtype=dtype) + 2 * torch.eye(5, dtype=dtype)
    factors, pivots, _ = aten.linalg_lu_factor_ex(a)
    rhs = sample(2, 5, 3, dtype=dtype)
    check(aten.linalg_lu_solve, factors, pivots, rhs, **close(dtype))
    check(aten.linalg_lu_solve, factors[0], pivots[0], rhs.mT.contiguous(), left=False, adjoint=True, **close(dtype))
    check(aten.linalg_lu_solve, factors, pivots, rhs, adjoint=True, **close(dtype))
    check(aten.linalg_inv_ex, a, **close(dtype))
    for rhs in (sample(2, 5, 3, dtype=dtype), sample(2, 5, dtype=dtype)):
        check(aten._linalg_solve_ex, a, rhs, **close(dtype))
    check(aten._linalg_solve_ex, a, a, left=False, **close(dtype))
    check(aten._linalg_solve_ex, a[0], sample(3, 5, 2, dtype=dtype), **close(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("contiguous", [True, False])
def test_functions_that_see_strides(dtype: torch.dtype, contiguous: bool) -> None:
    """Python functions over tensors, here on the CPU: the gradients depend on which matrix they factor."""
    a = sample(2, 4, 4, dtype=dtype)
    a = a if contiguous else a.mT
    for ours, op in ((linalg.det, aten._linalg_det), (linalg.slogdet, aten._linalg_slogdet)):
        for mine, theirs in zip(ours(a), op(a)):
            torch.testing.assert_close(mine, theirs, **close(dtype))


@pytest.mark.parametrize(("shape", "dtype"), [((2, 5, 3), torch.complex64), ((3, 5), torch.float32)])
def test_qr(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = sample(*shape, dtype=dtype)
    for mode in ("reduced", "complete", "r"):
        check(aten.linalg_qr, a, mode, **close(dtype))
    if shape[-2] >= shape[-1]:
        vectors, taus = aten.geqrf(a)
        check(aten.geqrf, a, **close(dtype))
        check(aten.linalg_householder_product, vectors, taus, **close(dtype))
        other = sample(*shape[:-2], shape[-2], 2, dtype=dtype)
        for transpose in (False, True):
            check(aten.ormqr, vectors, taus, other, True, transpose, **close(dtype))
            check(aten.ormqr, vectors, taus, other.mT.contiguous(), False, transpose, **close(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_exponential(dtype: torch.dtype) -> None:
    a = sample(3, 4, 4, dtype=dtype)
    a[0] *= 0.01
    a[1] *= 5
    check(aten.linalg_matrix_exp, a, **close(dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64])
def test_cross(dtype: torch.dtype) -> None:
    check(aten.linalg_cross, sample(2, 3, 4, dtype=dtype), sample(2, 3, 4, dtype=dtype), dim=1)
    check(aten.linalg_cross, sample(2, 3, dtype=dtype), sample(1, 3, dtype=dtype))

"""Eigenvalues and singular values: of the CPU's size, and their vectors unitary ones that give the matrix back."""

from __future__ import annotations

import pytest
import torch
from harness import run
from samples import sample

aten = torch.ops.aten
DTYPES = [torch.float64, torch.complex64]
TOLERANCE = {torch.complex64: 2e-5, torch.float64: 1e-12}


def unitary(x: torch.Tensor, tolerance: float) -> None:
    one = torch.eye(x.shape[-1], dtype=x.dtype).expand(*x.shape[:-2], -1, -1)
    torch.testing.assert_close(x.mH @ x, one, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 5, 5), (1, 1), (0, 0)])
def test_eigh(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = sample(*shape, dtype=dtype)
    for half in "LU":
        values, vectors = run(aten._linalg_eigh, a, half)
        expected = aten._linalg_eigh(a, half)[0]
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(values, expected, rtol=tolerance, atol=tolerance)
        unitary(vectors, tolerance)
        whole = (vectors * values.to(dtype).unsqueeze(-2)) @ vectors.mH
        part = torch.tril if half == "L" else torch.triu
        middle = a.diagonal(0, -2, -1).real.to(dtype).diag_embed()  # only its real part counts
        want = part(a, -1 if half == "L" else 1) + middle
        torch.testing.assert_close(part(whole), want, rtol=tolerance, atol=tolerance * 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 6), (1, 1), (2, 3, 0)])
def test_svd(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = sample(*shape, dtype=dtype)
    tolerance = TOLERANCE[dtype]
    for full in (False, True):
        u, s, vh = run(aten._linalg_svd, a, full)
        expected = aten._linalg_svd(a, full)
        assert [x.shape for x in (u, s, vh)] == [x.shape for x in expected]
        torch.testing.assert_close(s, expected[1], rtol=tolerance, atol=tolerance)
        unitary(u, tolerance)
        unitary(vh.mH, tolerance)
        k = s.shape[-1]
        back = (u[..., :k] * s.to(dtype).unsqueeze(-2)) @ vh[..., :k, :]
        torch.testing.assert_close(back, a, rtol=tolerance, atol=tolerance * 5)
    assert run(aten._linalg_svd, a, False, False)[1].shape == expected[1].shape


def test_singular_values_that_are_zero_equal_or_of_other_sizes() -> None:
    low = sample(6, 2, dtype=torch.float64) @ sample(2, 5, dtype=torch.float64)
    steep = torch.diag(torch.tensor([1.0, 1e-8, 1e-30, 0.0, 1e30], dtype=torch.float64))
    for a in (low, torch.eye(4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64), steep):
        u, s, vh = run(aten._linalg_svd, a, True)
        torch.testing.assert_close(s, torch.linalg.svdvals(a), rtol=1e-12, atol=1e-14)
        unitary(u, 1e-13)
        unitary(vh.mH, 1e-13)

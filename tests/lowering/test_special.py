"""Special functions against CPU torch, over the ranges where their forms change."""

import math

import pytest
import torch
from harness import check

aten = torch.ops.aten

REAL = torch.cat([torch.linspace(-12, 12, 49), torch.tensor([1e-3, 20.0, 100.0, math.nan])])

FUNCTIONS = [
    "i0", "special_i0e", "special_i1", "special_i1e", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0",
    "special_bessel_y1", "special_modified_bessel_k0", "special_modified_bessel_k1", "special_airy_ai",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0",
    "special_erfcx", "special_log_ndtr",
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_one_variable(name: str) -> None:
    # In double precision some of PyTorch's own series are only good to 1e-6.
    check(getattr(aten, name), REAL, rtol=1e-5, atol=3e-6)
    check(getattr(aten, name), REAL.double(), rtol=1e-6, atol=1e-6)


def test_quantile() -> None:
    p = torch.tensor([0.0, 1e-30, 1e-10, 1e-3, 0.1, 0.2, 0.5, 0.7, 0.9, 0.999, 1.0, 2.0, math.nan])
    check(aten.special_ndtri, p)
    check(aten.special_ndtri, p.double(), rtol=1e-12, atol=1e-12)


def test_incomplete_gamma() -> None:
    values = torch.tensor([1e-3, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0])
    a, x = (t.contiguous() for t in torch.cartesian_prod(values, values).unbind(1))
    for op in (aten.igamma, aten.igammac):
        check(op, a, x, rtol=1e-4, atol=1e-6)
        check(op, torch.tensor([1.0, 2.0, 0.0, -1.0]), torch.tensor([0.0, math.inf, 3.0, 1.0]))


POLYNOMIALS = [
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "shifted_chebyshev_polynomial_t", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
    "legendre_polynomial_p",
]  # fmt: skip


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    op = getattr(aten, f"special_{name}")
    check(op, torch.tensor([0.3, -0.8, 1.7, 0.5, -1.2, 2.0]), torch.tensor([3, 5, 4, 0, 1, -1]), rtol=1e-5, atol=1e-5)
    check(op.n_scalar, torch.tensor([0.3, -0.8, 1.7]), 3)

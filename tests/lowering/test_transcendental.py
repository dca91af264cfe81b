"""Exponentials, logarithms, trigonometry and special functions against CPU torch."""

import math

import pytest
import torch
from harness import check

aten = torch.ops.aten

WIDE = torch.tensor([0.0, -0.0, 0.3, -0.7, 1.0, -1.0, 2.5, -4.5, 20.0, -30.0, math.inf, -math.inf, math.nan])
UNARY = [
    "acosh", "asin", "acos", "atan", "asinh", "atanh", "cos", "cosh", "digamma", "erf", "erfc", "erfinv", "exp", "exp2",
    "expm1", "lgamma", "log", "log10", "log1p", "log2", "rsqrt", "sin", "sinc", "sinh", "special_entr", "sqrt", "tan",
    "tanh",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    op = getattr(aten, name)
    check(op, WIDE, rtol=1e-5, atol=1e-6)
    check(op, torch.rand(8, dtype=torch.float64) * 0.9 + 0.05)
    check(op, torch.rand(8).bfloat16())
    check(op, torch.tensor([0, 1, 2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["atan2", "hypot", "logaddexp", "logaddexp2", "xlogy.Tensor", "special_xlog1py"])
def test_binary(name: str) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, packet), overload or "default")
    x = WIDE.repeat_interleave(len(WIDE))
    check(op, x, WIDE.repeat(len(WIDE)), rtol=1e-5, atol=1e-6)


def test_exp2_is_exact_at_integers() -> None:
    check(aten.exp2, torch.arange(-20.0, 20.0), exact=True)


@pytest.mark.parametrize("name", ["acos", "asin", "atan", "cos", "exp", "log", "sinh", "sqrt", "tan", "tanh"])
def test_complex(name: str) -> None:
    check(getattr(aten, name), torch.randn(9, dtype=torch.complex64))


def test_zeta_and_polygamma() -> None:
    x, q = torch.tensor([1.5, 2.0, 3.0, 4.0, 0.5, 1.0, math.nan]), torch.tensor([0.5, 3.0, 20.0, -2.5, 2.0, 2.0, 1.0])
    check(aten.special_zeta, x, q, rtol=1e-5, atol=1e-6)
    for n in range(4):
        check(aten.polygamma, n, torch.tensor([-2.3, -0.4, 0.1, 0.7, 1.0, 5.5, 30.0]), rtol=1e-4, atol=1e-5)


def test_mvlgamma() -> None:
    check(aten.mvlgamma, torch.tensor([2.1, 3.0, 7.5]), 3)


def test_integers_take_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        check(aten.sin, torch.arange(3))
    finally:
        torch.set_default_dtype(torch.float32)

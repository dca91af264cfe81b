"""Rejection samplers: moments and probabilities at fixed seeds."""

import math
from typing import Any

import pytest
import torch
from harness import check, run

aten = torch.ops.aten
RNG = (987654321, 16)
N = 20000


def draw(op: Any, *args: torch.Tensor) -> torch.Tensor:
    out = run(op, *args, rng=RNG)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, run(op, *args, rng=RNG))
    return out.double()


def chi_square(sample: torch.Tensor, log_prob: torch.Tensor) -> float:
    """How many standard deviations the statistic is off, over the values that are expected at least ten times."""
    expected = log_prob.exp() * len(sample)
    counts = torch.bincount(sample.long(), minlength=len(expected))[: len(expected)]
    kept = expected > 10
    freedom = float(kept.sum())
    return (float(((counts - expected) ** 2 / expected)[kept].sum()) - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("rate", [0.3, 4.0, 9.9, 10.1, 60.0, 2000.0])
def test_poisson(rate: float) -> None:
    x = draw(aten.poisson, torch.full((N,), rate))
    assert abs(x.mean() - rate) < 4 * math.sqrt(rate / N)
    assert abs(x.var() / rate - 1) < 0.06
    k = torch.arange(int(rate * 2 + 30), dtype=torch.float64)
    assert chi_square(x, k * math.log(rate) - rate - torch.lgamma(k + 1)) < 3


def test_poisson_edges() -> None:
    assert draw(aten.poisson, torch.zeros(5)).eq(0).all()
    mixed = draw(aten.poisson, torch.tensor([0.0, 1.0, 100.0]).repeat(1000)).reshape(-1, 3).mean(0)
    torch.testing.assert_close(mixed, torch.tensor([0.0, 1.0, 100.0]).double(), rtol=0.1, atol=0)
    x = draw(aten.poisson, torch.full((N,), 5.0, dtype=torch.float64))
    assert abs(x.mean() - 5) < 0.1


@pytest.mark.parametrize(("n", "p"), [(5, 0.2), (100, 0.03), (40, 0.5), (100, 0.93), (1000, 0.4), (7, 1.0), (7, 0.0)])
def test_binomial(n: int, p: float) -> None:
    x = draw(aten.binomial, torch.full((N,), float(n)), torch.full((N,), p))
    assert x.min() >= 0
    assert x.max() <= n
    assert abs(x.mean() - n * p) <= 4 * math.sqrt(n * p * (1 - p) / N)
    if 0 < p < 1:
        k = torch.arange(n + 1, dtype=torch.float64)
        choose = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
        assert chi_square(x, choose + k * math.log(p) + (n - k) * math.log(1 - p)) < 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [0.1, 0.7, 1.0, 3.5, 200.0])
def test_gamma(alpha: float, dtype: torch.dtype) -> None:
    x = draw(aten._standard_gamma, torch.full((N,), alpha, dtype=dtype))
    assert (x > 0).all()
    u = torch.special.gammainc(torch.tensor(alpha, dtype=torch.float64), x).sort().values
    steps = torch.arange(1, N + 1, dtype=torch.float64) / N
    assert (u - steps).abs().max() < 1.63 / math.sqrt(N)  # Kolmogorov-Smirnov at 1 %


def test_dirichlet() -> None:
    alpha = torch.tensor([0.5, 1.0, 4.0])
    x = draw(aten._sample_dirichlet, alpha.expand(N, 3))
    torch.testing.assert_close(x.sum(1), torch.ones(N).double())
    torch.testing.assert_close(x.mean(0), (alpha / 5.5).double(), rtol=0, atol=0.01)
    tiny = draw(aten._sample_dirichlet, torch.full((100, 2), 1e-3))
    assert tiny.isfinite().all()


def test_gamma_gradient() -> None:
    alpha = torch.tensor([0.2, 1.0, 5.0, 50.0])
    check(aten._standard_gamma_grad, alpha, torch.tensor([0.1, 1.5, 4.0, 55.0]), rtol=1e-3, atol=1e-4)

"""Distances and cross products against CPU torch."""

import math

import pytest
import torch
from harness import check

aten = torch.ops.aten
NORMS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf]


@pytest.mark.parametrize("p", NORMS)
def test_distances_between_two_sets(p: float) -> None:
    x, y = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
    y[:, 0] = x[:, 0]  # a distance of zero
    check(aten._cdist_forward, x, y, p, 2)
    distance = aten._cdist_forward(x, y, p, 2)
    check(aten._cdist_backward, torch.randn(2, 4, 5), x, y, p, distance)


def test_many_rows_take_the_product() -> None:
    x, y = torch.randn(30, 4), torch.randn(3, 4)
    check(aten._cdist_forward, x, y, 2.0, None, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p", NORMS)
def test_distances_within_a_set(p: float) -> None:
    x = torch.randn(5, 3)
    check(aten._pdist_forward, x, p)
    check(aten._pdist_backward, torch.randn(10), x, p, aten._pdist_forward(x, p))
    check(aten._pdist_forward, x[:1], p)


def test_cross() -> None:
    check(aten.linalg_cross, torch.randn(2, 3, 4), torch.randn(1, 3, 4), dim=1)
    check(aten.linalg_cross, torch.arange(6).reshape(2, 3), torch.tensor([[3, -1, 2]]), exact=True)

"""Distances between rows against CPU torch."""

from __future__ import annotations

import pytest
import torch
from harness import check
from samples import sample

aten = torch.ops.aten
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances(p: float) -> None:
    x, y = sample(2, 4, 3), sample(2, 5, 3)
    y[0, 0] = x[0, 1]
    check(aten._cdist_forward, x, y, p, 2, **CLOSE)
    norm = aten._cdist_forward(x, y, p, 2)
    check(aten._cdist_backward, sample(2, 4, 5), x, y, p, norm, **CLOSE)
    rows = sample(5, 3)
    rows[3] = rows[1]
    check(aten._pdist_forward, rows, p, **CLOSE)
    check(aten._pdist_backward, sample(10), rows, p, aten._pdist_forward(rows, p), **CLOSE)


def test_double() -> None:
    check(aten._cdist_forward, sample(4, 3).double(), sample(5, 3).double(), 2.0, None)

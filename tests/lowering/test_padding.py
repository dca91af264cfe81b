"""Padding and its gradients against CPU torch."""

from __future__ import annotations

import pytest
import torch
from harness import check
from samples import check_once_rounded, sample

aten = torch.ops.aten

PADDINGS = [[2, 1], [-1, 2], [1, 2, 3, 0], [-1, 1, 2, -2], [1, 0, 2, -1, -2, 3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_constant(dtype: torch.dtype) -> None:
    x = sample(2, 3, 4, dtype=dtype)
    for pad in ([1, 2], [0, 1, -1, 2], [0, 0, 0, 0, 1, 1], [-2, -1]):
        check(aten.constant_pad_nd, x, pad, exact=True)
        check(aten.constant_pad_nd, x, pad, 2, exact=True)
    check(aten.constant_pad_nd, sample(2, 0), [1, 1], 0.5, exact=True)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", ["reflection", "replication"])
def test_edges(name: str, padding: list[int]) -> None:
    n = len(padding) // 2
    x = sample(*((3,) if n == 2 else (2, 3)), *(5, 6, 4)[:n])
    forward = getattr(aten, f"{name}_pad{n}d").default
    check(forward, x, padding, exact=True)
    g = sample(*forward(x, padding).shape)
    check(getattr(aten, f"{name}_pad{n}d_backward").default, g, x, padding)


@pytest.mark.parametrize("name", ["reflection", "replication"])
def test_narrow_floats(name: str) -> None:
    x, padding = sample(2, 5, 6, dtype=torch.bfloat16), [2, 3]
    forward = getattr(aten, f"{name}_pad1d").default
    check(forward, x, padding, exact=True)
    g = sample(*forward(x, padding).shape, dtype=torch.bfloat16)
    check_once_rounded(getattr(aten, f"{name}_pad1d_backward").default, g, x, padding)


def test_integers() -> None:
    check(aten.replication_pad2d, sample(2, 3, 4, dtype=torch.int64), [1, 1, 2, 0], exact=True)

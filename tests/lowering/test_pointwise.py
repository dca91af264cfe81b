"""Elementwise rules against CPU torch."""

import pytest
import torch
from harness import check

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_add(dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype)
    check(aten.add.Tensor, x, torch.ones(3, dtype=dtype), alpha=2, exact=True)
    check(aten.add.Scalar, x, 3, exact=True)


def test_gelu() -> None:
    check(aten.gelu, torch.randn(64))
    check(aten.gelu, torch.randn(64, dtype=torch.bfloat16), approximate="tanh")

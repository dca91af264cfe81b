"""Fourier transforms against CPU torch."""

from __future__ import annotations

import pytest
import torch
from harness import check
from samples import sample

aten = torch.ops.aten


@pytest.mark.parametrize("dims", [[1], [2, 0], [0, 1, 2], [3, 1, 0, 2]])
@pytest.mark.parametrize("normalization", [0, 1, 2])
def test_transforms(normalization: int, dims: list[int]) -> None:
    x = sample(3, 8, 5, 6, dtype=torch.complex64)
    close = {"rtol": 1e-4, "atol": 1e-4}
    check(aten._fft_c2c, x, dims, normalization, True, **close)
    check(aten._fft_c2c, x, dims, normalization, False, **close)
    for onesided in (True, False):
        check(aten._fft_r2c, x.real.contiguous(), dims, normalization, onesided, **close)
    size = x.shape[dims[-1]]
    half = x.narrow(dims[-1], 0, size // 2 + 1).contiguous()
    check(aten._fft_c2r, half, dims, normalization, size, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("size", [1, 7, 16, 97])
def test_sizes_in_double(size: int) -> None:
    x = sample(2, size, dtype=torch.complex128)
    check(aten._fft_c2c, x, [1], 0, True)
    check(aten._fft_r2c, x.real.contiguous(), [1], 2, True)
    check(aten._fft_c2r, x[:, : size // 2 + 1].contiguous(), [1], 1, size)

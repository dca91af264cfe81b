"""Convolutions and their gradients against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import check, lower, run
from samples import check_once_rounded, sample

aten = torch.ops.aten

# name: x, w, (stride, padding, dilation, transposed, output_padding, groups)
CASES: dict[str, tuple[Any, Any, Any]] = {
    "1d": ((2, 3, 10), (4, 3, 3), ([1], [1], [1], False, [0], 1)),
    "1d strided": ((2, 4, 11), (4, 2, 3), ([2], [0], [2], False, [0], 2)),
    "2d": ((2, 3, 8, 7), (4, 3, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    "2d pointwise": ((2, 3, 5, 5), (4, 3, 1, 1), ([2, 2], [0, 0], [1, 1], False, [0, 0], 1)),
    "2d uneven": ((2, 3, 9, 8), (4, 3, 3, 2), ([2, 3], [1, 0], [1, 2], False, [0, 0], 1)),
    "2d wide padding": ((2, 3, 4, 4), (4, 3, 2, 2), ([1, 1], [3, 2], [1, 1], False, [0, 0], 1)),
    "2d one size for all": ((2, 3, 8, 7), (4, 3, 3, 3), ([2], [1], [1], False, [0], 1)),
    "2d groups": ((2, 4, 6, 6), (6, 2, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)),
    "2d depthwise": ((2, 4, 6, 7), (8, 1, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 4)),
    "2d depthwise strided": ((1, 4, 9, 8), (4, 1, 3, 3), ([2, 2], [1, 1], [2, 1], False, [0, 0], 4)),
    "3d": ((1, 2, 5, 6, 4), (4, 2, 3, 3, 2), ([1, 2, 1], [1, 1, 0], [1, 1, 2], False, [0, 0, 0], 1)),
    "transposed 1d": ((2, 4, 5), (4, 3, 3), ([2], [1], [1], True, [1], 1)),
    "transposed 2d": ((2, 4, 5, 4), (4, 3, 3, 3), ([2, 1], [1, 1], [1, 1], True, [1, 0], 1)),
    "transposed 2d groups": ((2, 4, 5, 4), (4, 3, 3, 2), ([2, 3], [0, 1], [2, 1], True, [1, 2], 2)),
    "transposed 2d dilated": ((1, 2, 4, 4), (2, 2, 2, 2), ([1, 2], [0, 1], [3, 1], True, [2, 1], 1)),
    "transposed 2d depthwise": ((1, 4, 4, 4), (4, 1, 3, 3), ([2, 2], [1, 1], [1, 1], True, [1, 1], 4)),
    "transposed 3d": ((1, 2, 3, 3, 2), (2, 3, 2, 2, 2), ([2, 1, 2], [0, 0, 1], [1, 1, 1], True, [1, 0, 0], 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    x, w, window = CASES[name]
    outs = w[1] * window[5] if window[3] else w[0]
    check(aten.convolution, sample(*x), sample(*w), sample(outs), *window, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    x, w, window = CASES[name]
    x, w = sample(*x), sample(*w)
    outs = w.shape[1] * window[5] if window[3] else w.shape[0]
    g = sample(*aten.convolution(x, w, None, *window).shape)
    check(aten.convolution_backward, g, x, w, [outs], *window, [True, True, True], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]])
def test_gradients_that_nobody_asked_for_are_absent(mask: list[bool]) -> None:
    x, w, window = CASES["2d"]
    x, w = sample(*x), sample(*w)
    g = sample(*aten.convolution(x, w, None, *window).shape)
    wanted = aten.convolution_backward(g, x, w, [4], *window, [True] * 3)
    for ours, theirs, asked in zip(run(aten.convolution_backward, g, x, w, [4], *window, mask), wanted, mask):
        if asked:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    module, _, tree = lower(aten.convolution_backward, (g, x, w, [4], *window, mask), {})
    assert [r is not None for r in tree] == mask
    assert str(module).count("stablehlo.convolution") == mask[0] + mask[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["2d", "2d depthwise", "transposed 1d"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    x, w, window = CASES[name]
    outs = w[1] * window[5] if window[3] else w[0]
    x, w, bias = (sample(*s, dtype=dtype) for s in (x, w, (outs,)))
    check_once_rounded(aten.convolution, x, w, bias, *window)
    g = torch.randn(aten.convolution(x, w, None, *window).shape).to(dtype)
    check_once_rounded(aten.convolution_backward, g, x, w, [outs], *window, [True] * 3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_integers(dtype: torch.dtype) -> None:
    x, w, window = CASES["2d"]
    x, w = sample(*x, dtype=dtype) % 5, sample(*w, dtype=dtype) % 5
    check(aten.convolution, x, w, None, *window, exact=True)


def test_empty_batch() -> None:
    _, w, window = CASES["2d"]
    x, w = sample(0, 3, 8, 7), sample(*w)
    check(aten.convolution, x, w, sample(4), *window)
    check(aten.convolution_backward, sample(0, 4, 8, 7), x, w, [4], *window, [True] * 3)


def test_other_names() -> None:
    x, w, window = CASES["2d"]
    x, w = sample(*x), sample(*w)
    check(aten._convolution.default, x, w, None, *window, False, False, False, True, rtol=1e-5, atol=1e-5)
    check(aten.conv_tbc, sample(5, 2, 3), sample(3, 3, 4), sample(4), 1, rtol=1e-5, atol=1e-5)


def test_kernels_keep_the_fast_path() -> None:
    x, w, window = CASES["2d groups"]
    x, w = sample(*x), sample(*w)
    g = sample(*aten.convolution(x, w, None, *window).shape)
    text = str(lower(aten.convolution_backward, (g, x, w, [6], *window, [True] * 3), {})[0])
    assert "batch_group_count = 1" in text
    assert "reverse = [true" not in text

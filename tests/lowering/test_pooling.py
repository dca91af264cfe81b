"""Pooling and its gradients against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import check, compare, execute, lower
from samples import check_once_rounded, sample

from torch_tpu.lowering import mlir

aten = torch.ops.aten

# x, kernel, stride, padding, dilation, ceil_mode
MAXIMUM: dict[str, tuple[Any, ...]] = {
    "2": ((2, 3, 8, 6), [2, 2], [], [0, 0], [1, 1], False),
    "3 over 2": ((2, 3, 9, 8), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "uneven": ((1, 2, 9, 10), [3, 2], [1, 3], [1, 0], [2, 1], False),
    "ceil": ((1, 2, 8, 7), [3, 3], [2, 2], [1, 0], [1, 1], True),
    "no batch": ((2, 6, 6), [2, 3], [2, 1], [0, 1], [1, 2], False),
    "large": ((1, 2, 24, 24), [20, 18], [2, 3], [3, 0], [1, 1], False),
    "whole": ((2, 2, 20, 20), [20, 20], [20, 20], [0, 0], [1, 1], False),
    "3d": ((1, 2, 5, 6, 7), [2, 3, 2], [2, 2, 1], [1, 0, 1], [1, 1, 1], False),
    "3d ceil": ((2, 5, 6, 7), [2, 2, 2], [], [0, 0, 0], [1, 2, 1], True),
}
# x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGE: dict[str, tuple[Any, ...]] = {
    "2": ((2, 3, 8, 6), [2, 2], [], [0, 0], False, True, None),
    "3 over 2": ((2, 3, 9, 8), [3, 3], [2, 2], [1, 1], False, True, None),
    "without padding": ((2, 3, 9, 8), [3, 3], [2, 2], [1, 1], False, False, None),
    "ceil": ((1, 2, 8, 7), [3, 3], [2, 2], [1, 0], True, True, None),
    "ceil without padding": ((1, 2, 8, 7), [3, 2], [2, 3], [1, 1], True, False, None),
    "divisor": ((2, 6, 6), [2, 3], [1, 2], [0, 1], False, True, 5),
    "large": ((1, 2, 24, 24), [20, 18], [2, 3], [3, 0], False, False, None),
    "whole": ((2, 2, 20, 20), [20, 20], [20, 20], [0, 0], False, True, None),
    "gaps": ((1, 1, 9, 9), [2, 1], [3, 3], [0, 0], False, True, None),
    "3d": ((1, 2, 5, 6, 7), [2, 3, 2], [2, 2, 1], [1, 0, 1], True, False, None),
    "3d divisor": ((2, 5, 6, 7), [2, 2, 2], [], [0, 0, 0], False, True, 3),
}


def of_rank(name: str, kernel: list[int]) -> Any:
    return getattr(aten, name.format(len(kernel))).default


def ties(x: torch.Tensor) -> torch.Tensor:
    """Few distinct values, some NaN and some -inf."""
    x = x.round()
    flat = x.view(-1)
    flat[::7] = float("-inf")
    flat[3::11] = float("nan")
    return x


@pytest.mark.parametrize("name", MAXIMUM)
def test_maximum(name: str) -> None:
    shape, *window = MAXIMUM[name]
    op = of_rank("max_pool{}d_with_indices", window[0])
    for x in (sample(*shape), ties(sample(*shape)), torch.full(shape, float("-inf"))):
        check(op, x, *window, exact=True)


def run_for_tpu(op: Any, *args: Any) -> torch.Tensor:
    """What the rule writes for a TPU, run by the CPU plugin."""
    module, inputs, _ = lower(op, args, {}, platform="tpu")
    return execute(mlir.serialize(module, "1.13.3"), inputs)[0]


@pytest.mark.parametrize("name", MAXIMUM)
def test_maximum_gradient(name: str) -> None:
    shape, *window = MAXIMUM[name]
    x = sample(*shape)
    out, places = of_rank("max_pool{}d_with_indices", window[0])(x, *window)
    op = of_rank("max_pool{}d_with_indices_backward", window[0])
    args = (sample(*out.shape), x, *window, places)
    check(op, *args)
    compare(run_for_tpu(op, *args), op(*args))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64])
def test_maximum_dtypes(dtype: torch.dtype) -> None:
    shape, *window = MAXIMUM["3 over 2"]
    x = sample(*shape, dtype=dtype)
    check(aten.max_pool2d_with_indices, x, *window, exact=True)
    if dtype.is_floating_point:
        out, places = aten.max_pool2d_with_indices(x, *window)
        check_once_rounded(
            aten.max_pool2d_with_indices_backward.default, sample(*out.shape, dtype=dtype), x, *window, places
        )


@pytest.mark.parametrize("name", AVERAGE)
def test_average(name: str) -> None:
    shape, *window = AVERAGE[name]
    x = sample(*shape)
    check(of_rank("avg_pool{}d", window[0]), x, *window, rtol=1e-5, atol=1e-5)
    g = sample(*of_rank("avg_pool{}d", window[0])(x, *window).shape)
    stride = window[1] or window[0]
    op = of_rank("avg_pool{}d_backward", window[0])
    check(op, g, x, window[0], stride, *window[2:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_average_dtypes(dtype: torch.dtype) -> None:
    shape, *window = AVERAGE["ceil without padding"]
    x = sample(*shape, dtype=dtype)
    check_once_rounded(aten.avg_pool2d, x, *window)
    if dtype.is_floating_point:
        g = sample(*aten.avg_pool2d(x, *window).shape, dtype=dtype)
        check_once_rounded(aten.avg_pool2d_backward.default, g, x, *window)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 3, 8, 6), [4, 3]),
        ((2, 7, 9), [3, 4]),
        ((1, 2, 5, 5), [7, 5]),
        ((1, 2, 20, 18), [1, 1]),
        ((2, 5, 6, 7), [2, 3, 7]),
    ],
)
def test_adaptive(shape: tuple[int, ...], size: list[int]) -> None:
    x = sample(*shape)
    g = sample(*shape[: -len(size)], *size)
    check(of_rank("_adaptive_avg_pool{}d", size), x, size, rtol=1e-5, atol=1e-5)
    check(of_rank("_adaptive_avg_pool{}d_backward", size), g, x, rtol=1e-5, atol=1e-5)
    op = of_rank("adaptive_max_pool{}d", size)
    check(op, x, size, exact=True)
    check(op, ties(x.clone()), size, exact=True)
    args = (g, x, op(x, size)[1])
    op = of_rank("adaptive_max_pool{}d_backward", size)
    check(op, *args)
    compare(run_for_tpu(op, *args), op(*args))


@pytest.mark.parametrize(
    ("shape", "kernel", "size"),
    [((2, 3, 9, 8), [2, 3], [4, 5]), ((3, 9, 8), [2, 2], [1, 6]), ((1, 2, 5, 6, 7), [2, 2, 3], [3, 1, 4])],
)
def test_fractional(shape: tuple[int, ...], kernel: list[int], size: list[int]) -> None:
    x = sample(*shape)
    n = len(kernel)
    samples = torch.rand(shape[0] if len(shape) == n + 2 else 1, shape[-n - 1], n)
    op = of_rank("fractional_max_pool{}d", kernel)
    check(op, x, kernel, size, samples, exact=True)
    out, places = op(x, kernel, size, samples)
    check(of_rank("fractional_max_pool{}d_backward", kernel), sample(*out.shape), x, kernel, size, places)


def test_unpool() -> None:
    out, places = aten.max_pool2d_with_indices(sample(2, 3, 8, 6), [2, 2], [2, 2])
    check(aten.max_unpool2d, out, places, [8, 6], exact=True)
    check(aten.max_unpool2d, out[0], places[0], [9, 7], exact=True)
    out, places = aten.max_pool3d_with_indices(sample(2, 3, 4, 8, 6), [2, 2, 2], [2, 2, 2])
    check(aten.max_unpool3d, out, places, [4, 8, 6], [2, 2, 2], [0, 0, 0], exact=True)


def test_empty_batch() -> None:
    x = sample(0, 3, 8, 6)
    check(aten.max_pool2d_with_indices, x, [2, 2])
    check(aten.avg_pool2d, x, [2, 2])
    check(aten._adaptive_avg_pool2d, x, [3, 5])

"""Resizing and its gradients against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import check, compare, execute, lower
from samples import check_once_rounded, sample

from torch_tpu.lowering import mlir

aten = torch.ops.aten

INPUTS = {1: (2, 3, 7), 2: (2, 3, 7, 6), 3: (1, 2, 4, 5, 3)}
# Larger, smaller, twice, the same with a scale that differs, a single place.
SIZES: dict[int, list[tuple[list[int], tuple[Any, ...]]]] = {
    1: [([10], ()), ([4], ()), ([14], (2.0,)), ([11], (1.6,)), ([1], ()), ([7], (1.1,))],
    2: [([10, 4], ()), ([14, 12], (2.0, 2.0)), ([9, 9], (1.35, 1.6)), ([1, 6], (None, None))],
    3: [([7, 5, 2], ()), ([8, 10, 6], (2.0, 2.0, 2.0)), ([5, 3, 4], (1.3, 0.7, 1.5))],
}
LINEAR = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}
IMAGES = ["upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", ["upsample_nearest{}d", "_upsample_nearest_exact{}d"])
def test_nearest(name: str, n: int) -> None:
    x = sample(*INPUTS[n])
    op, backward = getattr(aten, name.format(n)).default, getattr(aten, name.format(n) + "_backward").default
    for size, scales in SIZES[n]:
        check(op, x, size, *scales, exact=True)
        if scales and size[0] == x.shape[2] != size[0] * scales[0]:
            continue  # PyTorch's gradient is not that of its own result
        check(backward, sample(*x.shape[:2], *size), size, list(x.shape), *scales, **CLOSE)


def run_for_tpu(op: Any, *args: Any) -> torch.Tensor:
    """What the rule writes for a TPU, run by the CPU plugin."""
    module, inputs, _ = lower(op, args, {}, platform="tpu")
    return execute(mlir.serialize(module, "1.13.3"), inputs)[0]


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("name", [*LINEAR.values(), *IMAGES])
def test_weighted(name: str, align_corners: bool) -> None:
    n = int(name.removesuffix("_aa")[-2])
    x = sample(*INPUTS[n])
    op, backward = getattr(aten, name).default, getattr(aten, name + "_backward").default
    for size, scales in SIZES[n]:
        check(op, x, size, align_corners, *scales, **CLOSE)
        compare(run_for_tpu(op, x, size, align_corners, *scales), op(x, size, align_corners, *scales), **CLOSE)
        g = sample(*x.shape[:2], *size)
        check(backward, g, size, list(x.shape), align_corners, *scales, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x, g = sample(2, 3, 7, 6, dtype=dtype), sample(2, 3, 9, 13, dtype=dtype)
    check(aten.upsample_nearest2d, x, [9, 13], exact=True)
    check_once_rounded(aten.upsample_nearest2d_backward.default, g, [9, 13], [2, 3, 7, 6])
    check_once_rounded(aten.upsample_bilinear2d, x, [9, 13], False)
    check_once_rounded(aten.upsample_bilinear2d_backward.default, g, [9, 13], [2, 3, 7, 6], False)
    check_once_rounded(aten.upsample_bicubic2d, x, [9, 13], True)


def test_bytes() -> None:
    x = torch.randint(256, (1, 3, 7, 6), dtype=torch.uint8)
    check(aten.upsample_nearest2d, x, [9, 13], exact=True)
    for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa"):
        check(getattr(aten, name).default, x, [5, 9], False, exact=True)
    check(aten.upsample_bicubic2d.default, x, [5, 9], True, exact=True)


def test_antialiased_far_smaller() -> None:
    check(aten._upsample_bilinear2d_aa, sample(1, 2, 64, 48), [5, 7], False, **CLOSE)
    check(aten._upsample_bicubic2d_aa, sample(1, 2, 64, 48), [5, 7], False, **CLOSE)

"""Grid sampling and its gradients against CPU torch."""

from __future__ import annotations

import pytest
import torch
from harness import check, run
from samples import check_once_rounded, sample

aten = torch.ops.aten
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
# (padding mode, whether the corners are aligned)
EDGES = [(0, True), (1, False), (2, True), (2, False)]


def grid(*shape: int) -> torch.Tensor:
    """Points in and around the image, some on its edges."""
    points = torch.rand(shape) * 3 - 1.5
    points[0].view(-1)[:4] = torch.tensor([-1.0, 1.0, 0.0, 5.0])
    return points


@pytest.mark.parametrize(("padding", "align_corners"), EDGES)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_images(mode: int, padding: int, align_corners: bool) -> None:
    x, points = sample(2, 3, 5, 6), grid(2, 4, 3, 2)
    how = (mode, padding, align_corners)
    check(aten.grid_sampler_2d, x, points, *how, **CLOSE)
    check(aten.grid_sampler_2d_backward, sample(2, 3, 4, 3), x, points, *how, [True, True], **CLOSE)


@pytest.mark.parametrize(("padding", "align_corners"), EDGES)
@pytest.mark.parametrize("mode", [0, 1])
def test_volumes(mode: int, padding: int, align_corners: bool) -> None:
    x, points = sample(2, 3, 4, 5, 6), grid(2, 2, 3, 2, 3)
    how = (mode, padding, align_corners)
    check(aten.grid_sampler_3d, x, points, *how, **CLOSE)
    check(aten.grid_sampler_3d_backward, sample(2, 3, 2, 3, 2), x, points, *how, [True, True], **CLOSE)


def test_dtypes_and_masks() -> None:
    x, points = sample(1, 2, 5, 6, dtype=torch.float64), grid(1, 3, 2, 2).double()
    check(aten.grid_sampler_2d, x, points, 0, 0, False)
    ours = run(aten.grid_sampler_2d_backward, sample(1, 2, 3, 2).double(), x, points, 0, 0, False, [False, True])
    assert ours[0] is None
    check_once_rounded(aten.grid_sampler_2d, x.bfloat16(), points.bfloat16(), 0, 1, True)


@pytest.mark.parametrize("align_corners", [True, False])
def test_affine_grid(align_corners: bool) -> None:
    check(aten.affine_grid_generator, sample(2, 2, 3), [2, 3, 4, 5], align_corners, rtol=1e-5, atol=1e-5)
    check(aten.affine_grid_generator, sample(2, 3, 4), [2, 3, 4, 5, 3], align_corners, rtol=1e-5, atol=1e-5)

"""Ops that only move elements against CPU torch, to the bit."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from harness import check as check_close
from samples import sample

aten = torch.ops.aten
check = functools.partial(check_close, exact=True)

DTYPES = [torch.float32, torch.bool, torch.complex64]


def test_views() -> None:
    x = sample(2, 3, 4)
    for op, *args in (
        (aten.view.default, [4, 6]),
        (aten.view_copy.default, [-1, 4]),
        (aten._unsafe_view, [24]),
        (aten._reshape_copy, [3, 8]),
        (aten.unsqueeze, -1),
        (aten.permute, [2, -3, 1]),
        (aten.transpose.int, 0, -1),
        (aten.slice.Tensor, 1, 1, 100),
        (aten.slice.Tensor, 2, -3, None, 2),
        (aten.slice.Tensor, 0, 2, 1),
        (aten.narrow_copy, -1, 1, 2),
        (aten.narrow_copy, 1, -2, 1),
        (aten.select.int, 1, -1),
        (aten.split.Tensor, 2, -2),
        (aten.split_with_sizes, [1, 3], 2),
        (aten.unsafe_split.Tensor, 3, 2),
        (aten.unbind.int, -2),
        (aten.alias,),
        (aten.diagonal.default,),
        (aten.diagonal_copy, 1, -1, 0),
        (aten.diagonal_copy, -2, 1, 2),
        (aten.as_strided, [2, 3], [1, 5], 4),
    ):
        check(op, x, *args)
    check(aten.expand, x[:, :1], [5, -1, 3, 4])
    check(aten.squeeze.default, x[:1, :, :1])
    check(aten.squeeze.dims, x[:1, :, :1], [0, 1, 2])
    check(aten.t, x[0])
    check(aten.t, x[0, 0])


def test_views_as_another_dtype() -> None:
    x = sample(3, 4)
    check(aten.view.dtype, x, torch.int32)
    check(aten.view.dtype, x, torch.int16)
    check(aten.view.dtype, x, torch.float64)
    check(aten.view_as_complex, sample(3, 2))
    check(aten.view_as_real, sample(3, 4, dtype=torch.complex64))
    check(aten._conj_copy, sample(3, 4, dtype=torch.complex64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatters_into_views(dtype: torch.dtype) -> None:
    x = sample(5, 6, dtype=dtype)
    check(aten.slice_scatter, x, sample(5, 2, dtype=dtype), 1, 2, 4)
    check(aten.slice_scatter, x, sample(2, 6, dtype=dtype), 0, 1, 4, 2)
    check(aten.select_scatter, x, sample(5, dtype=dtype), 1, -2)
    for offset in (0, 2, -3):
        check(aten.diagonal_scatter, x, sample(x.diagonal(offset).numel(), dtype=dtype), offset)
    check(aten.diagonal_scatter, sample(2, 3, 4, dtype=dtype), sample(3, 2, dtype=dtype), -1, 2, 0)


def test_gradients_of_views() -> None:
    dtype = torch.bfloat16
    check(aten.slice_backward, sample(5, 2, dtype=dtype), [5, 6], 1, 2, 4, 1)
    check(aten.slice_backward, sample(2, 6, dtype=dtype), [5, 6], 0, 1, 4, 2)
    check(aten.slice_backward, sample(0, 6, dtype=dtype), [5, 6], 0, 4, 4, 1)
    check(aten.select_backward, sample(5, dtype=dtype), [5, 6], 1, -2)
    for offset in (0, 1, -2):
        g = sample(torch.empty(4, 5).diagonal(offset).numel(), dtype=dtype)
        check(aten.diagonal_backward, g, [4, 5], offset, 0, 1)
    check(aten.diagonal_backward, sample(3, 2, dtype=dtype), [2, 3, 4], -1, 2, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_diag_embed(dtype: torch.dtype) -> None:
    for args in ((), (2,), (-1, 0, 2), (1, -1, 0)):
        check(aten.diag_embed, sample(2, 3, dtype=dtype), *args)


@pytest.mark.parametrize("dtype", DTYPES)
def test_joining(dtype: torch.dtype) -> None:
    x, y = sample(2, 3, dtype=dtype), sample(2, 1, dtype=dtype)
    check(aten.cat, [x, y, x], 1)
    check(aten.cat, [x, sample(0, dtype=dtype), x], -2)
    check(aten.cat, [sample(0, dtype=dtype), sample(0, 3, dtype=dtype)])
    check(aten.cat, [sample(0, dtype=dtype), sample(3, dtype=dtype)])
    check(aten.stack, [x, x, x], 1)
    check(aten.stack, [x, x], -1)


def test_joining_promotes() -> None:
    check(aten.cat, [sample(2), sample(2, dtype=torch.bfloat16), sample(2, dtype=torch.int64)])
    check(aten.cat, [sample(2, dtype=torch.bool), sample(2, dtype=torch.uint8)])
    check(aten.stack, [sample(2), sample(2, dtype=torch.int64)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeating_and_turning(dtype: torch.dtype) -> None:
    x = sample(2, 3, dtype=dtype)
    check(aten.repeat, x, [2, 1, 3])
    check(aten.repeat, x, [0, 1])
    check(aten.repeat, x[0, 0], [2])
    check(aten.flip, x, [0, -1])
    check(aten.flip, x, [])
    check(aten.roll, x, [1, -2], [0, 1])
    check(aten.roll, x, [4])
    check(aten.roll, x, [7], [-1])


def test_channels() -> None:
    check(aten.pixel_shuffle, sample(2, 12, 3, 4), 2)
    check(aten.pixel_unshuffle, sample(3, 6, 4), 2)
    check(aten.channel_shuffle, sample(2, 6, 3), 3)


@pytest.mark.parametrize(("size", "step"), [(3, 1), (2, 2), (3, 2), (1, 3), (18, 1), (2, 3)])
def test_unfold(size: int, step: int) -> None:
    x = sample(2, 20, 3)
    check(aten.unfold, x, 1, size, step)
    g = sample(*x.unfold(1, size, step).shape)
    check_close(aten.unfold_backward, g, [2, 20, 3], 1, size, step)


@pytest.mark.parametrize(
    "window",
    [
        ([2, 3], [1, 1], [0, 0], [1, 1]),
        ([2, 2], [1, 1], [0, 1], [2, 2]),
        ([3, 2], [2, 1], [1, 2], [2, 3]),
        ([18, 2], [1, 1], [5, 0], [1, 3]),
    ],
)
def test_images_as_columns(window: Any) -> None:
    kernel, dilation, padding, stride = window
    x = sample(2, 3, 9, 8)
    check(aten.im2col, x, kernel, dilation, padding, stride)
    check(aten.im2col, x[0], kernel, dilation, padding, stride)
    columns = sample(*aten.im2col(x, kernel, dilation, padding, stride).shape)
    check_close(aten.col2im, columns, [9, 8], kernel, dilation, padding, stride)
    check_close(aten.col2im, columns[0], [9, 8], kernel, dilation, padding, stride)


def test_numbers_without_dims() -> None:
    x = sample()
    for op, *args in (
        (aten.unfold, 0, 1, 1),
        (aten.flip, [0]),
        (aten.roll, [3]),
        (aten.transpose.int, 0, -1),
        (aten.t,),
        (aten.squeeze.dim, 0),
        (aten.unsqueeze, 0),
    ):
        check(op, x, *args)
    check(aten.unfold_backward, sample(1), [], 0, 1, 1)

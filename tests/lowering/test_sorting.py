"""Sorting, top-k and search rules against CPU torch."""

import pytest
import torch
from harness import assert_same_bits, check, run

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([1.0, NAN, -0.0, 3.0, 0.0, INF, -INF, NAN, 1.0, -2.0, 0.0])


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    info = torch.iinfo(dtype)
    return torch.randint(max(info.min, -1000), min(info.max, 1000), shape, generator=generator).to(dtype)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(dtype: torch.dtype, descending: bool) -> None:
    x = numbers(5, 33, dtype=dtype)
    check(aten.sort.stable, x, stable=True, dim=1, descending=descending, exact=True)
    check(aten.sort.stable, x, stable=True, dim=0, descending=descending, exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_edges(dtype: torch.dtype, descending: bool) -> None:
    check(aten.sort.stable, EDGES.to(dtype), stable=True, descending=descending, exact=True)
    check(aten.sort, torch.tensor(2.0, dtype=dtype), exact=True)
    check(aten.sort, torch.empty(2, 0, dtype=dtype), exact=True)


def test_sort_extremes() -> None:
    for dtype in (torch.int32, torch.int64, torch.uint8):
        info = torch.iinfo(dtype)
        x = torch.tensor([info.max, 0, info.min, 1, info.max - 1, info.min + 1], dtype=dtype)
        check(aten.sort.stable, x, stable=True, exact=True)
        check(aten.sort.stable, x, stable=True, descending=True, exact=True)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.bool])
@pytest.mark.parametrize("largest", [True, False])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    x = numbers(6, 40, dtype=dtype)
    for k, dim in [(1, 1), (7, 1), (40, 1), (3, 0), (0, 1)]:
        values, places = run(aten.topk, x, k, dim, largest)
        expected = torch.topk(x, k, dim, largest)
        assert_same_bits(values, expected.values)
        assert_same_bits(x.gather(dim, places), values)


def test_topk_edges() -> None:
    for x in (EDGES, -EDGES, EDGES.double(), EDGES.bfloat16()):
        for largest in (True, False):
            values, places = run(aten.topk, x, 6, 0, largest)
            expected = torch.topk(x, 6, 0, largest)
            torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)
            assert places.unique().numel() == 6
            torch.testing.assert_close(x[places], values, rtol=0, atol=0, equal_nan=True)
    check(aten.topk, torch.tensor(2.0), 1, exact=True)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 100])
def test_searchsorted(right: bool, size: int) -> None:
    ordered = numbers(size).sort().values
    values = torch.cat([numbers(20) * 2, ordered[:5], torch.tensor([NAN, INF, -INF])])
    check(aten.searchsorted.Tensor, ordered, values, right=right, exact=True)
    check(aten.searchsorted.Tensor, ordered, values.unsqueeze(0), side="right" if right else "left", exact=True)
    check(aten.searchsorted.Scalar, ordered, 0.5, right=right, out_int32=True, exact=True)
    check(aten.bucketize.Tensor, values, ordered, right=right, exact=True)
    rows = numbers(3, size).sort(-1).values
    check(aten.searchsorted.Tensor, rows, numbers(3, 9), right=right, exact=True)


def test_searchsorted_with_sorter() -> None:
    x = numbers(50)
    check(aten.searchsorted.Tensor, x, numbers(9) * 2, sorter=x.argsort(), exact=True)


@pytest.mark.parametrize("tests", [0, 5, 60])
@pytest.mark.parametrize("invert", [False, True])
def test_isin(tests: int, invert: bool) -> None:
    x = torch.arange(-20, 20).reshape(5, 8)
    check(aten.isin.Tensor_Tensor, x, numbers(tests, dtype=torch.int64) % 20, invert=invert, exact=True)
    check(aten.isin.Tensor_Scalar, x, 3, invert=invert, exact=True)
    check(aten.isin.Scalar_Tensor, 3, x, invert=invert, exact=True)


def test_histc() -> None:
    x = numbers(200)
    check(aten.histc, x, 10, exact=True)
    check(aten.histc, x, 7, -1, 1, exact=True)
    check(aten.histc, torch.full((5,), 2.0), 4, exact=True)
    check(aten.histc, torch.arange(6.0), 5, 0, 5, exact=True)
    check(aten.histc, x.bfloat16(), 50, -2, 2, exact=True)


def test_order_statistics() -> None:
    x = numbers(4, 31)
    check(aten.kthvalue, x, 5, 1, exact=True)
    check(aten.median.dim, x, 0, exact=True)

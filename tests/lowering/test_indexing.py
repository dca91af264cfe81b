"""Indexing rules against CPU torch."""

import pytest
import torch
from harness import check

aten = torch.ops.aten
F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64


def numbers(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 50, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def picks(high: int, *shape: int, low: int = 0, dtype: torch.dtype = I64, seed: int = 1) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [F32, BF16, I64, torch.bool, torch.complex64])
def test_index(dtype: torch.dtype) -> None:
    x = numbers(4, 5, 6, dtype=dtype)
    i, j, k = picks(4, 3, low=-4), picks(5, 2, 3, low=-5), picks(6, 3, low=-6, dtype=torch.int32)
    for indices in [[i], [None, j], [None, None, k], [i, j], [i, None, k], [None, j, k], [i, j, k]]:
        check(aten.index.Tensor, x, indices, exact=True)


def test_index_of_little() -> None:
    x = numbers(4, 5)
    check(aten.index.Tensor, x, [torch.tensor(-1)], exact=True)
    check(aten.index.Tensor, x, [torch.empty(0, dtype=I64)], exact=True)
    check(aten.index.Tensor, torch.empty(0, 3), [torch.empty(2, 0, dtype=I64)], exact=True)
    check(aten.index.Tensor, x, [picks(4, 3, 1), picks(5, 1, 2)], exact=True)


@pytest.mark.parametrize("dtype", [F32, I64])
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(dtype: torch.dtype, accumulate: bool) -> None:
    x = numbers(6, 5, 4, dtype=dtype)
    i = torch.tensor([0, -1, 3])  # no duplicates: which one wins is free
    j = torch.tensor([[0, 1, 2], [3, 4, -5 + accumulate]])
    for indices, shape in [
        ([i], (3, 5, 4)),
        ([None, i], (6, 3, 4)),
        ([i, None, i], (3, 5)),
        ([i, j], (2, 3, 4)),
        ([i], ()),
        ([i], (4,)),
    ]:
        check(
            aten.index_put, x, indices, numbers(*shape, dtype=dtype), accumulate, exact=dtype == I64 or not accumulate
        )


def test_index_put_adds_duplicates() -> None:
    i = picks(3, 50)
    check(aten.index_put, numbers(3, 4), [i], numbers(50, 4), True)
    check(aten.index_put, numbers(3, 4, dtype=BF16), [i[:4]], numbers(4, 4, dtype=BF16), True, rtol=2e-2, atol=2e-2)
    check(aten.index_put, numbers(3, dtype=torch.bool), [i], numbers(50, dtype=torch.bool), True, exact=True)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_by_mask(accumulate: bool) -> None:
    x, mask = numbers(4, 5, 3), numbers(4, 5, dtype=torch.bool)
    count = int(mask.sum())
    for value in [torch.tensor(7.0), numbers(3), numbers(1, 3), numbers(count, 3), numbers(count, 1)]:
        check(aten.index_put, x, [mask], value, accumulate, exact=True)
    columns = numbers(5, dtype=torch.bool, seed=3)
    check(aten.index_put, x, [None, columns], numbers(4, int(columns.sum()), 3), accumulate, exact=True)
    check(aten.index_put, x, [None, columns], numbers(4, 1, 1), accumulate, exact=True)
    check(aten.index_put, x, [torch.zeros(4, dtype=torch.bool)], numbers(0, 5, 3), accumulate, exact=True)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [F32, torch.bool])
def test_index_select_gather(dim: int, dtype: torch.dtype) -> None:
    x = numbers(4, 5, 6, dtype=dtype)
    check(aten.index_select, x, dim, picks(4, 7), exact=True)
    check(aten.index_select, x, dim, torch.tensor(2, dtype=torch.int32), exact=True)
    check(aten.gather, x, dim, picks(4, 3, 5, 2), exact=True)


def test_scalars() -> None:
    x, zero = torch.tensor(3.0), torch.tensor(0)
    check(aten.index_select, x, 0, zero, exact=True)
    check(aten.gather, x, 0, zero, exact=True)
    check(aten.gather, x, 0, torch.tensor([0, 0, 0][:1]), exact=True)
    check(aten.scatter_add, x, 0, zero, torch.tensor(2.0), exact=True)
    check(aten.index_add, x, 0, zero, torch.tensor(2.0), exact=True)
    check(aten.index_copy, x, 0, zero, torch.tensor(2.0), exact=True)
    check(aten.index_fill.int_Scalar, x, 0, zero, 2.0, exact=True)
    check(aten.take, x, zero, exact=True)
    check(aten.put, x, zero, torch.tensor(2.0), exact=True)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [F32, I64])
def test_scatter(dim: int, dtype: torch.dtype) -> None:
    x, src = numbers(5, 6, dtype=dtype), numbers(3, 4, dtype=dtype)
    unique = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i)) for i in range(3)])[:, :4]
    index = unique if dim else unique[:, :3].t().contiguous()
    check(aten.scatter.src, x, dim, index, numbers(4, 4, dtype=dtype), exact=True)
    check(aten.scatter.value, x, dim, index, 7, exact=True)
    many = picks(5, 3, 4)
    check(aten.scatter_add, x, dim, many, src, exact=dtype == I64)
    check(aten.scatter.reduce, x, dim, many, src, reduce="add", exact=dtype == I64)
    check(aten.scatter.reduce, x, dim, many, src, reduce="multiply", exact=dtype == I64)
    check(aten.scatter.value_reduce, x, dim, many, 3, reduce="multiply", exact=dtype == I64)
    check(aten.scatter_add, x, dim, torch.empty(0, 4, dtype=I64), src, exact=True)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [F32, I64])
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, src = numbers(5, 6, dtype=dtype), numbers(4, 6, dtype=dtype)
    check(aten.scatter_reduce.two, x, 0, picks(5, 3, 6), src, reduce, include_self=include_self)
    if reduce != "sum":
        check(aten.index_reduce, x, 1, picks(6, 4), numbers(5, 4, dtype=dtype), reduce, include_self=include_self)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", [F32, torch.int32])
def test_index_ops(dim: int, dtype: torch.dtype) -> None:
    x = numbers(4, 5, 6, dtype=dtype)
    index = torch.tensor([3, 0, 2])
    source = numbers(*[3 if d == dim else s for d, s in enumerate(x.shape)], dtype=dtype)
    check(aten.index_add, x, dim, index, source, alpha=2, exact=True)
    check(aten.index_copy, x, dim, index, source, exact=True)
    check(aten.index_copy, x, dim, index[:1], source.narrow(dim, 0, 1), exact=True)
    check(aten.index_fill.int_Scalar, x, dim, index, 9, exact=True)
    check(aten.index_fill.int_Tensor, x, dim, index - 4, torch.tensor(9, dtype=dtype), exact=True)
    check(aten.index_add, x, dim, picks(4, 3), source)


def test_take_put() -> None:
    x = numbers(3, 4)
    check(aten.take, x, picks(12, 2, 5, low=-12), exact=True)
    index = torch.tensor([[0, -1], [5, 6]])
    check(aten.put, x, index, numbers(2, 2), exact=True)
    check(aten.put, x, picks(12, 20, low=-12), numbers(20), True)


def test_masked_scatter() -> None:
    x, mask = numbers(3, 4), numbers(3, 4, dtype=torch.bool)
    check(aten.masked_scatter, x, mask, numbers(5, 4), exact=True)
    check(aten.masked_scatter, x, mask[0], numbers(12), exact=True)
    check(aten.masked_scatter_backward, x, mask, [12], exact=True)
    check(aten.masked_scatter_backward, x, mask, [int(mask.sum()) + 1, 1], exact=True)


def test_as_strided_scatter() -> None:
    x = numbers(4, 5)
    check(aten.as_strided_scatter, x, numbers(3, 2), (3, 2), (5, 2), 1, exact=True)
    check(aten.as_strided_scatter, x, torch.tensor(7.0), (), (), 3, exact=True)

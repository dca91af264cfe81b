"""Reductions, softmax, scans and order statistics against CPU torch."""

import math
from typing import Any

import pytest
import torch
from harness import check, run

aten = torch.ops.aten
NAN = torch.tensor([[1.0, math.nan, 3.0, math.nan], [2.0, 2.0, -1.0, -math.inf], [0.0, 5.0, 5.0, math.inf]])
DTYPES = [torch.float32, torch.bfloat16, torch.int32, torch.bool]


def sample(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(3, 4, 5) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, torch.complex64], ids=str)
def test_sums(dtype: torch.dtype) -> None:
    x = sample(dtype) if dtype != torch.uint8 else torch.randint(256, (3, 4, 5), dtype=torch.uint8)
    check(aten.sum, x)
    check(aten.sum.dim_IntList, x, [1], True)
    check(aten.sum.dim_IntList, x, [0, -1])
    check(aten.sum.dim_IntList, x, [], dtype=torch.float64 if not dtype.is_complex else None)
    check(aten.prod.dim_int, x, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_means_and_moments(dtype: torch.dtype) -> None:
    x = sample(dtype)
    check(aten.mean, x)
    check(aten.mean.dim, x, [0, 2], True)
    check(aten.var.correction, x, [1], correction=2)
    check(aten.std.correction, x, None, correction=0, keepdim=True)
    check(aten.var_mean.correction, x, [0, 1])
    check(aten.std_mean.correction, x, [-1], correction=1, keepdim=True)
    check(aten.nansum, NAN.to(dtype), [1])


def test_variance_of_one_element() -> None:
    check(aten.var.correction, torch.randn(1, 3), [0], correction=1)
    check(aten.var.correction, torch.randn(4, dtype=torch.complex64), [0])


def test_narrow_sums_accumulate_in_float32() -> None:
    ones = torch.ones(4096, dtype=torch.bfloat16)
    assert run(aten.sum, ones).item() == 4096


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes(dtype: torch.dtype) -> None:
    x = sample(dtype)
    for op in (aten.amax, aten.amin):
        check(op, x, [1], exact=True)
        check(op, x, [], True, exact=True)
    for op in (aten.max, aten.min):
        check(op, x, exact=True)
        check(op.dim, x, 1, exact=True)
        check(op.dim, x, -1, True, exact=True)
    check(aten.aminmax, x, dim=1, exact=True)
    if dtype != torch.bool:
        check(aten.argmax, x, 0, exact=True)
        check(aten.argmin, x, None, True, exact=True)


def test_extremes_with_ties_and_nan() -> None:
    for dim in (0, 1):
        check(aten.max.dim, NAN, dim, exact=True)
        check(aten.min.dim, NAN, dim, exact=True)
        check(aten.argmax, NAN, dim, exact=True)
        check(aten.cummax, NAN, dim, exact=True)
        check(aten.cummin, NAN, dim, exact=True)
    check(aten.argmax, torch.full((3, 2), -math.inf), 0, exact=True)
    check(aten.amax, NAN, [0], exact=True)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8], ids=str)
def test_logical(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [0, 0, 0], [3, 1, 1]]).to(dtype)
    check(aten.all, x, exact=True)
    check(aten.any.dim, x, 1, True, exact=True)
    check(aten.all.dims, x, [0, 1], exact=True)
    check(aten.count_nonzero.dim_IntList, x, [1], exact=True)


def test_reductions_of_nothing_and_of_scalars() -> None:
    empty = torch.empty(0, 3)
    for op in (aten.sum, aten.prod, aten.all, aten.any, aten.mean):
        check(op, empty, exact=True)
    check(aten.sum.dim_IntList, empty, [0], exact=True)
    check(aten.logsumexp, empty, [0])
    check(aten.linalg_vector_norm, empty, 2, [0])
    scalar = torch.tensor(2.5)
    check(aten.max.dim, scalar, 0, exact=True)
    check(aten.sum.dim_IntList, scalar, [0], exact=True)
    check(aten.argmax, scalar, exact=True)
    check(aten.cumsum, scalar, 0, exact=True)
    check(aten._softmax, scalar, 0, False, exact=True)


@pytest.mark.parametrize("p", [2, 1, 0, math.inf, -math.inf, 3, 0.5])
def test_norms(p: float) -> None:
    x = torch.randn(3, 4)
    check(aten.linalg_vector_norm, x, p, [1], True)
    check(aten.linalg_vector_norm, x.to(torch.complex64) * (1 + 1j), p)
    check(aten.norm.ScalarOpt_dim, x, p, [0], False)
    check(aten.dist, x, x + 1, p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_softmax(dtype: torch.dtype) -> None:
    x, grad = sample(dtype), sample(dtype)
    check(aten._softmax, x, 1, False)
    check(aten._log_softmax, x, -1, False)
    check(aten._softmax_backward_data, grad, x.softmax(1), 1, dtype)
    check(aten._log_softmax_backward_data, grad, x.log_softmax(0), 0, dtype)
    check(aten.logsumexp, x, [0, 2], True)
    masked = torch.tensor([[1.0, -math.inf], [-math.inf, -math.inf]])
    check(aten._softmax, masked, 1, False)
    check(aten._safe_softmax, masked, 1)
    check(aten.logsumexp, masked, [1])
    check(aten.logsumexp, torch.tensor([math.inf, 1.0]), [0])


def test_masked_softmax() -> None:
    x, mask = torch.randn(2, 3, 4, 4), torch.eye(4).bool().expand(2, 3, 4, 4).contiguous()
    check(aten._masked_softmax, x, mask, 3, 2)
    y = aten._masked_softmax(x, mask, 3, 2)
    check(aten._masked_softmax_backward, torch.randn_like(x), y, mask, 3)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scans(dim: int) -> None:
    x = torch.randn(3, 4, 37)
    check(aten.cumsum, x, dim)
    check(aten.cumprod, x, dim)
    check(aten.logcumsumexp, x, dim)
    check(aten.cumsum, torch.arange(24).reshape(2, 3, 4) % 2 == 0, dim, exact=True)
    check(aten.cumprod, torch.arange(-12, 12, dtype=torch.int32).reshape(2, 3, 4), dim, exact=True)
    check(aten.cummax, x.round() + 0.0, dim, exact=True)
    check(aten.cummin, torch.randint(5, (2, 3, 4)), dim, exact=True)
    check(aten.cumsum, torch.full((2, 300, 2), 0.1, dtype=torch.bfloat16), dim)


def test_order_statistics() -> None:
    distinct = torch.randperm(60).reshape(3, 4, 5).float()
    for op in (aten.median, aten.nanmedian):
        check(op, distinct, exact=True)
        check(op, NAN, exact=True)
        check(op.dim, distinct, 1, True, exact=True)
        check(op.dim, NAN[:, :3], 1, exact=True)
    check(aten.kthvalue, distinct, 2, 0, exact=True)
    check(aten.median.dim, distinct.int(), -1, exact=True)
    check(aten.mode, torch.tensor([[3, 1, 3, 1, 2], [5, 4, 3, 2, 1]]), 1, exact=True)
    check(aten.mode, torch.tensor([2.0, 1.0, 2.0]), 0, True, exact=True)


def test_hash() -> None:
    for x in (torch.randn(3, 4), torch.arange(12).reshape(3, 4), torch.tensor([[True, False]])):
        check(aten.hash_tensor, x, exact=True)
        check(aten.hash_tensor, x, [1], keepdim=True, exact=True)


def test_trace() -> None:
    check(aten.trace, torch.randn(3, 5))
    check(aten.trace, torch.arange(6, dtype=torch.int32).reshape(3, 2), exact=True)


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (aten.arange.start_step, (1, 10, 3), {}),
        (aten.arange.start_step, (0.0, 1.0, 0.1), {}),
        (aten.arange.start, (2, 6), {"dtype": torch.float32}),
        (aten.linspace, (-2.0, 3.0, 7), {}),
        (aten.linspace, (0, 10, 4), {"dtype": torch.int64}),
        (aten.linspace, (5.0, 1.0, 1), {}),
        (aten.logspace, (0.0, 3.0, 5, 2.0), {}),
        (aten.eye.m, (3, 4), {}),
        (aten.tril_indices, (3, 4, 1), {}),
        (aten.triu_indices, (4, 3, -1), {}),
        (aten.full, ([2, 3], 2.5), {}),
        (aten.scalar_tensor, (3,), {"dtype": torch.bfloat16}),
    ],
    ids=str,
)
def test_factories(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    check(op, *args, **kwargs)


def test_triangles() -> None:
    x = torch.randn(2, 3, 4)
    for diagonal in (-1, 0, 2):
        check(aten.tril, x, diagonal, exact=True)
        check(aten.triu, x, diagonal, exact=True)

"""Embedding rules against CPU torch."""

import pytest
import torch
from harness import check, run

aten = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def tokens(*shape: int, high: int = 10) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_embedding(dtype: torch.dtype, index: torch.dtype) -> None:
    check(aten.embedding, numbers(10, 4).to(dtype), tokens(2, 7).to(index), exact=True)
    check(aten.embedding, numbers(10, 4).to(dtype), torch.tensor(3).to(index), exact=True)


@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding_dense_backward(padding: int, by_frequency: bool) -> None:
    check(aten.embedding_dense_backward, numbers(4, 7, 5), tokens(4, 7), 10, padding, by_frequency)


def test_embedding_dense_backward_rounds_once() -> None:
    ones = torch.ones(1000, 2, dtype=torch.bfloat16)
    grad = run(aten.embedding_dense_backward, ones, torch.zeros(1000, dtype=torch.int64), 3, -1, False)
    assert grad.dtype == torch.bfloat16
    assert grad[0].tolist() == [1000, 1000]  # summed in bfloat16 it would stop at 256


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_embedding_renorm(norm: float) -> None:
    check(aten.embedding_renorm, numbers(10, 4), tokens(6, high=8), 1.5, norm)


def bags(mode: int, weighted: bool, last: bool, padding: int) -> tuple[object, ...]:
    offsets = torch.tensor([0, 3, 3, 8, 12][: 5 if last else 4])
    weights = numbers(12).abs() if weighted else None
    return numbers(10, 4), tokens(12), offsets, False, mode, False, weights, last, padding


CASES = [
    (mode, weighted, last, padding)
    for mode in (SUM, MEAN, MAX)
    for weighted in ((False, True) if mode == SUM else (False,))
    for last in (False, True)
    for padding in (-1, 5)
]


@pytest.mark.parametrize(("mode", "weighted", "last", "padding"), CASES)
def test_embedding_bag(mode: int, weighted: bool, last: bool, padding: int) -> None:
    args = bags(mode, weighted, last, padding)
    out, bag, size, maxima = run(aten._embedding_bag, *args)
    expected = aten._embedding_bag(*args)
    torch.testing.assert_close(out, expected[0])
    assert bag.tolist() == [0, 0, 0, 2, 2, 2, 2, 2, 3, 3, 3, 3]
    if mode != SUM:
        assert torch.equal(size[:4], expected[2][:4])
    if mode == MAX:
        assert torch.equal(maxima, expected[3])


BACKWARD_CASES = [
    (*case, by_frequency) for case in CASES for by_frequency in (False, True) if case[0] != MAX or not by_frequency
]


@pytest.mark.parametrize(("mode", "weighted", "last", "padding", "by_frequency"), BACKWARD_CASES)
def test_embedding_bag_backward(mode: int, weighted: bool, last: bool, padding: int, by_frequency: bool) -> None:
    weight, index, offsets, _, _, _, weights, _, _ = args = bags(mode, weighted, last, padding)
    _, bag, size, maxima = run(aten._embedding_bag, *args)
    leaf = weight.clone().requires_grad_()
    sample = None if weights is None else weights.clone().requires_grad_()
    out = aten._embedding_bag(leaf, index, offsets, False, mode, False, sample, last, padding)[0]
    grad = numbers(*out.shape)
    out.backward(grad)
    ours = run(
        aten._embedding_bag_backward,
        *(grad, index, offsets, bag, size, maxima, 10, by_frequency, mode, False, weights, padding),
    )
    # PyTorch's CPU kernel looks the frequency of the wrong row up: divide by the right one here.
    frequency = torch.bincount(index, minlength=10).clamp(min=1) if by_frequency else torch.ones(10)
    torch.testing.assert_close(ours, leaf.grad / frequency.unsqueeze(1))
    if sample is not None:
        ours = run(aten._embedding_bag_per_sample_weights_backward, grad, weight, index, offsets, bag, mode, padding)
        torch.testing.assert_close(ours, sample.grad)


def test_empty_bags() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    for mode in (SUM, MEAN, MAX):
        out, *_ = run(aten._embedding_bag, numbers(10, 4), nothing, torch.tensor([0, 0]), False, mode)
        assert torch.equal(out, torch.zeros(2, 4))

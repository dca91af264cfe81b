"""Ops whose shapes or places depend on values, on the device against the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

Fn = Callable[..., Any]


def numbers(*shape: int, high: int = 5) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def same(fn: Fn, *args: Any) -> None:
    """fn gives on the device, and there without the CPU's help, what it gives on the CPU."""
    fallbacks = torch.tpu.metrics().get("cpu_fallbacks", 0)
    ours = fn(*(a.to("tpu") if isinstance(a, torch.Tensor) else a for a in args))
    theirs = fn(*args)
    assert torch.tpu.metrics().get("cpu_fallbacks", 0) == fallbacks
    for mine, reference in zip(*([r] if isinstance(r, torch.Tensor) else r for r in (ours, theirs))):
        assert mine.device.type == "tpu"
        torch.testing.assert_close(mine.cpu(), reference)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.nonzero(),
        lambda x: x.nonzero(as_tuple=True),
        lambda x: torch.argwhere(x),
        lambda x: x.masked_select(x > 2),
        lambda x: x.unique(return_inverse=True, return_counts=True),
        lambda x: x.unique(dim=0, return_inverse=True, return_counts=True),
        lambda x: x.unique_consecutive(return_counts=True),
        lambda x: x.flatten().unique(dim=0),
        lambda x: x.flatten().bincount(),
        lambda x: F.one_hot(x),
        lambda x: torch.repeat_interleave(x, x[:, 0], dim=0),
        lambda x: torch.repeat_interleave(x, x[:, 0], dim=0, output_size=int(x[:, 0].sum())),
    ],
)
def test_shapes_that_depend_on_values(fn: Fn) -> None:
    same(fn, numbers(6, 4))


EDGES = torch.tensor([-1.0, 0.0, 0.3, 2.0])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, e: torch.histogram(x, 7),
        lambda x, e: torch.histogram(x[:0], 3),
        lambda x, e: torch.histogram(x[:1, :1], 2),
        lambda x, e: torch.histogram(x, 4, range=(-1.0, 1.0), weight=x.abs(), density=True),
        lambda x, e: torch.histogram(x, e),
        lambda x, e: torch.histogram(e, e),
        lambda x, e: (lambda r: (r.hist, *r.bin_edges))(torch.histogramdd(x[:, :3], [2, 3, 4], density=True)),
        lambda x, e: torch.histogramdd(x[:, :2], [e, e], weight=x[:, 4].abs()).hist,
    ],
)
def test_histograms(fn: Fn) -> None:
    same(fn, X, EDGES)


def gradient(fn: Fn, x: torch.Tensor, *args: Any) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    fn(leaf, *args).square().sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[torch.tensor([0, -1, 0], device=x.device)],
        lambda x: x[:, torch.tensor([[0, 2], [1, 1]], device=x.device)],
        lambda x: x.gather(1, x.detach().argsort(1)[:, :3]),
        lambda x: x.masked_select(x.detach() > 0),
        lambda x: x.index_select(1, torch.tensor([1, 1, 3], device=x.device)),
        lambda x: torch.zeros_like(x).scatter_add(0, x.detach().argsort(0), x * 2),
        lambda x: x.sort(1, descending=True).values * torch.arange(5, device=x.device),
        lambda x: x.topk(2, 0).values,
        lambda x: x.cumsum(0),
        lambda x: F.embedding(torch.tensor([[0, 3], [3, 5]], device=x.device), x, padding_idx=5),
        lambda x: F.embedding_bag(
            torch.tensor([0, 3, 3, 5], device=x.device), x, torch.tensor([0, 1], device=x.device)
        ),
    ],
)
def test_gradients(fn: Fn) -> None:
    same(lambda x: gradient(fn, x), X)


def write(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[index] = value
    return x


def test_writes_by_index() -> None:
    i = torch.tensor([0, -2])
    same(write, X, i, 7.0)
    same(lambda x, i: write(x, (slice(None), i), x[:, :1]), X, i)
    same(write, X, X > 0, 0.0)
    same(lambda x, v: write(x, x > 0, v), X, torch.arange(float((X > 0).sum())))


def test_random_ops_draw_on_the_device() -> None:
    torch.manual_seed(3)
    ones = torch.ones(1000, device="tpu")
    fallbacks = torch.tpu.metrics().get("cpu_fallbacks", 0)
    drawn = [
        torch.rand(1000, device="tpu"),
        torch.randn_like(ones),
        torch.randint(0, 9, (1000,), device="tpu").float(),
        torch.randperm(1000, device="tpu").float(),
        torch.multinomial(ones, 100).float(),
        torch.poisson(ones),
        torch.bernoulli(ones / 2),
        F.dropout(ones, 0.5),
        torch.empty(1000, device="tpu").exponential_(),
    ]
    assert torch.tpu.metrics().get("cpu_fallbacks", 0) == fallbacks
    assert all(d.std() > 0 for d in drawn)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[x > 0],
        lambda x: x[x[:, 0] > 0],
        lambda x: x[:, x[0] > 0],
        lambda x: x[x[:, 0] > 0, 1],
        lambda x: write(x, (x[:, 0] > 0, 1), 9.0),
        lambda x: gradient(lambda x: x[x.detach() > 0], x),
    ],
)
def test_masks(fn: Fn) -> None:
    same(fn, X)


def test_shapes_that_do_not_fit_raise_at_the_call() -> None:
    x, i = X.to("tpu"), torch.tensor([0, 1], device="tpu")
    with pytest.raises(IndexError, match="too many indices"):
        x[i, i, i]
    with pytest.raises(IndexError, match="shape of the mask"):
        x[torch.zeros(4, dtype=torch.bool, device="tpu")]
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[i] = torch.zeros(3, 5, device="tpu")

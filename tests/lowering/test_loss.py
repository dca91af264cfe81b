"""Losses and their gradients against CPU torch."""

from __future__ import annotations

import pytest
import torch
from harness import check, run

aten = torch.ops.aten
REDUCTIONS = [0, 1, 2]
pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")


def _grad(reduction: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape) if reduction == 0 else torch.randn(())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_regression(reduction: int) -> None:
    x, target = torch.randn(4, 5), torch.randn(4, 5)
    target[0, 0] = x[0, 0]
    grad = _grad(reduction, 4, 5)
    check(aten.mse_loss, x, target, reduction)
    check(aten.mse_loss_backward, grad, x, target, reduction)
    check(aten.smooth_l1_loss, x, target, reduction, 0.7)
    check(aten.smooth_l1_loss_backward, grad, x, target, reduction, 0.7)
    check(aten.smooth_l1_loss, x, target, reduction, 0.0)
    check(aten.huber_loss, x, target, reduction, 0.7)
    check(aten.huber_loss_backward, grad, x, target, reduction, 0.7)


def test_regression_dtypes_and_broadcast() -> None:
    x, target = torch.randn(4, 5), torch.randn(5)
    check(aten.mse_loss, x, target, 1)
    check(aten.mse_loss, x.bfloat16(), x.bfloat16() + 1, 0)
    check(aten.smooth_l1_loss, x, target, 0)
    check(aten.huber_loss, x, target, 2)
    check(aten.mse_loss, x.double(), target.double(), 1)
    check(aten.mse_loss, x[:0], x[:0], 1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_two_classes(reduction: int) -> None:
    x, target, weight = torch.rand(4, 5), torch.rand(4, 5), torch.rand(5)
    x[0, :2], target[0, :2] = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    grad = _grad(reduction, 4, 5)
    for w in (None, weight.expand(4, 5).contiguous()):
        check(aten.binary_cross_entropy, x, target, w, reduction)
        check(aten.binary_cross_entropy_backward, grad, x, target, w, reduction)
    logits = torch.randn(4, 5) * 20
    check(aten.binary_cross_entropy_with_logits, logits, target, None, None, reduction)
    check(aten.binary_cross_entropy_with_logits, logits, target, weight, weight + 1, reduction)
    sign = target.round() * 2 - 1
    check(aten.soft_margin_loss, torch.randn(4, 5), sign, reduction)
    check(aten.soft_margin_loss_backward, grad, torch.randn(4, 5), sign, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll(reduction: int) -> None:
    x, target = torch.randn(6, 4), torch.tensor([0, 3, 1, -100, 2, 2])
    for weight in (None, torch.rand(4)):
        check(aten.nll_loss_forward, x, target, weight, reduction, -100)
        total = aten.nll_loss_forward(x, target, weight, reduction, -100)[1]
        check(aten.nll_loss_backward, _grad(reduction, 6), x, target, weight, reduction, -100, total)
        check(aten.nll_loss_forward, x, target.clamp(min=0), weight, reduction, 1)
    check(aten.nll_loss_forward, x[0], target[0], torch.rand(4), reduction, -100)
    total = aten.nll_loss_forward(x[0], target[0], None, reduction, -100)[1]
    check(aten.nll_loss_backward, torch.randn(()), x[0], target[0], None, reduction, -100, total)
    check(aten.nll_loss_forward, x[:0], target[:0], None, reduction, -100)
    check(aten.nll_loss_forward, x, torch.full((6,), -100), None, reduction, -100)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll2d(reduction: int) -> None:
    x, target, weight = torch.randn(2, 3, 4, 5), torch.randint(3, (2, 4, 5)), torch.rand(3)
    check(aten.nll_loss2d_forward, x, target, weight, reduction, 1)
    total = aten.nll_loss2d_forward(x, target, weight, reduction, 1)[1]
    check(aten.nll_loss2d_backward, _grad(reduction, 2, 4, 5), x, target, weight, reduction, 1, total)


def test_nll_ignores_infinity_and_keeps_bfloat16() -> None:
    x = torch.tensor([[-torch.inf, 0.0], [0.5, 1.0]])
    check(aten.nll_loss_forward, x, torch.tensor([0, 1]), None, 2, 0)
    check(aten.nll_loss_forward, x[1:].bfloat16(), torch.tensor([1]), None, 1, -100)
    loss, total = run(aten.nll_loss_forward, x[1:].bfloat16(), torch.tensor([1]), None, 1, -100)
    assert loss.dtype == total.dtype == torch.bfloat16


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin(reduction: int, p: int) -> None:
    x, target, weight = torch.randn(6, 4), torch.randint(4, (6,)), torch.rand(4)
    check(aten.multi_margin_loss, x, target, p, 0.7, weight, reduction)
    check(aten.multi_margin_loss, x, target, p, 1, None, reduction)
    if reduction:  # PyTorch's meta and CPU kernels disagree about the shape of a single sample's loss
        check(aten.multi_margin_loss, x[0], target[0], p, 1, None, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(reduction: int) -> None:
    x = torch.randn(3, 4)
    target = torch.tensor([[3, 0, -1, 1], [2, -1, -1, -1], [-1, 0, 1, 2]])
    check(aten.multilabel_margin_loss_forward, x, target, reduction)
    if reduction:
        check(aten.multilabel_margin_loss_forward, x[0], target[0], reduction)

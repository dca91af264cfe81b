"""The losses of torch.nn.functional on the device: values and gradients of the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

Loss = Callable[..., torch.Tensor]

WEIGHT = torch.tensor([0.2, 1.0, 0.5, 2.0])
CLASSES = torch.tensor([0, 3, -100, 1, 1])
SIGNS = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
LABELS = torch.tensor([[3, 0, -1, 1], [2, -1, 0, 0], [-1, 0, 1, 2], [1, 1, -1, 0], [0, 1, 2, 3]])


def _probabilities(n: int) -> torch.Tensor:
    return torch.linspace(0.05, 0.95, n).reshape(5, -1)


# name: (loss of inputs on a device, how many inputs of shape [5, 4] it takes)
CASES: dict[str, tuple[Loss, int]] = {
    "cross_entropy": (lambda to, x: F.cross_entropy(x, to(CLASSES)), 1),
    "cross_entropy weighted": (lambda to, x: F.cross_entropy(x, to(CLASSES), to(WEIGHT), reduction="sum"), 1),
    "cross_entropy smoothed": (lambda to, x: F.cross_entropy(x, to(CLASSES), to(WEIGHT), label_smoothing=0.1), 1),
    "cross_entropy probabilities": (lambda to, x: F.cross_entropy(x, to(_probabilities(20))), 1),
    "cross_entropy ignored": (
        lambda to, x: F.cross_entropy(x, to(CLASSES.clamp(min=0)), ignore_index=1, reduction="none").square().sum(),
        1,
    ),
    "nll images": (lambda to, x: F.nll_loss(x.reshape(1, 4, 1, 5), to(CLASSES.clamp(min=0)).reshape(1, 1, 5)), 1),
    "mse": (lambda to, x, y: F.mse_loss(x, y), 2),
    "l1": (lambda to, x, y: F.l1_loss(x, y, reduction="sum"), 2),
    "smooth_l1": (lambda to, x, y: F.smooth_l1_loss(x, y, beta=0.5), 2),
    "huber": (lambda to, x, y: F.huber_loss(x, y, delta=0.5), 2),
    "kl_div": (lambda to, x: F.kl_div(x.log_softmax(1), to(_probabilities(20)), reduction="batchmean"), 1),
    "kl_div log target": (lambda to, x: F.kl_div(x, to(_probabilities(20)).log(), log_target=True, reduction="sum"), 1),
    "binary_cross_entropy": (lambda to, x: F.binary_cross_entropy(x.sigmoid(), to(_probabilities(20)), to(WEIGHT)), 1),
    "with logits": (
        lambda to, x: F.binary_cross_entropy_with_logits(x, to(_probabilities(20)), pos_weight=to(WEIGHT)),
        1,
    ),
    "soft_margin": (lambda to, x: F.soft_margin_loss(x, to(SIGNS)[:, None].expand(5, 4)), 1),
    "multi_margin": (lambda to, x: F.multi_margin_loss(x, to(CLASSES.clamp(min=0)), p=2, weight=to(WEIGHT)), 1),
    "multilabel_margin": (lambda to, x: F.multilabel_margin_loss(x, to(LABELS)), 1),
    "multilabel_margin none": (
        lambda to, x: F.multilabel_margin_loss(x, to(LABELS), reduction="none").square().sum(),
        1,
    ),
    "multi_margin of a number": (lambda to, x: F.multi_margin_loss(x[0, 0], to(torch.tensor(0))), 1),
    "multilabel_margin of a number": (lambda to, x: F.multilabel_margin_loss(x[0, 0], to(torch.tensor(0))), 1),
    "multilabel_soft_margin": (lambda to, x: F.multilabel_soft_margin_loss(x, to(_probabilities(20)), to(WEIGHT)), 1),
    "hinge_embedding": (lambda to, x: F.hinge_embedding_loss(x, to(SIGNS)[:, None]), 1),
    "cosine_embedding": (lambda to, x, y: F.cosine_embedding_loss(x, y, to(SIGNS), margin=0.1), 2),
    "margin_ranking": (lambda to, x, y: F.margin_ranking_loss(x[:, 0], y[:, 0], to(SIGNS), margin=0.1), 2),
    "triplet_margin": (lambda to, x, y, z: F.triplet_margin_loss(x, y, z, swap=True), 3),
    "poisson_nll": (lambda to, x: F.poisson_nll_loss(x, to(_probabilities(20)) * 5, full=True), 1),
    "gaussian_nll": (lambda to, x, y: F.gaussian_nll_loss(x, y, to(_probabilities(20)), full=True), 2),
}


def _run(name: str, device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    loss, count = CASES[name]
    inputs = [torch.randn(5, 4).to(device).requires_grad_() for _ in range(count)]
    result = loss(lambda t: t.to(device), *inputs)
    result.backward(torch.full_like(result, 0.7))
    return [result.detach().cpu(), *(x.grad.cpu() for x in inputs if x.grad is not None)]


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    before = torch.tpu.metrics().get("cpu_fallbacks", 0)
    torch.testing.assert_close(_run(name, "tpu"), _run(name, "cpu"))
    assert torch.tpu.metrics().get("cpu_fallbacks", 0) == before

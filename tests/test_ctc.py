"""CTC loss on the device: losses and gradients of the CPU, without a program for every set of lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F


def _loss(device: str, lengths: tuple[list[int], list[int]], joined: bool, **options: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 3, 5, generator=generator).to(device).requires_grad_()
    targets = torch.tensor([[1, 2, 2, 4], [3, 3, 0, 0], [2, 1, 4, 4]])
    blank = options.get("blank", 0)
    targets = torch.where(targets == blank, (blank + 1) % 5, targets)
    inputs, outputs = lengths
    if joined:
        targets = torch.cat([row[:n] for row, n in zip(targets, outputs)])
    loss = F.ctc_loss(logits.log_softmax(-1), targets.to(device), inputs, outputs, **options)
    loss.backward(torch.ones_like(loss))
    assert logits.grad is not None
    return [loss.detach().cpu(), logits.grad.cpu()]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("options", [{}, {"reduction": "none", "blank": 4}, {"reduction": "sum"}])
def test_matches_the_cpu(joined: bool, options: dict[str, Any]) -> None:
    lengths = ([12, 7, 9], [4, 2, 3])
    torch.testing.assert_close(_loss("tpu", lengths, joined, **options), _loss("cpu", lengths, joined, **options))


def test_edges() -> None:
    lengths = ([12, 2, 5], [4, 2, 0])  # [3, 3] in two steps is impossible; an empty target is all blanks
    for options in ({"reduction": "none", "zero_infinity": True}, {"zero_infinity": True}):
        torch.testing.assert_close(_loss("tpu", lengths, False, **options), _loss("cpu", lengths, False, **options))
    infinite = _loss("tpu", lengths, False, reduction="none")[0]
    assert infinite.isinf().tolist() == [False, True, False]


def test_lengths_do_not_recompile() -> None:
    counts = []
    for lengths in (([12, 7, 9], [4, 2, 3]), ([12, 8, 9], [4, 1, 3]), ([11, 6, 10], [4, 2, 2])):
        _loss("tpu", lengths, False, reduction="none")
        torch.tpu.synchronize()
        counts.append(torch.tpu.metrics()["programs"])
    assert counts[2] == counts[1]

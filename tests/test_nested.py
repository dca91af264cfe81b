"""Nested tensors, jagged and strided, on the device against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*runs on the CPU")


def jagged(device: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(length, 8, generator=generator) for length in (3, 5, 1)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)


def weights(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def attention(x: Tensor) -> Tensor:
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)


JAGGED: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: [F.gelu(x), (x * 2 + x).exp(), torch.where(x > 0, x, -x)],
    "padded": lambda x: x.to_padded_tensor(-1.0),
    "parts": lambda x: [*x.unbind(), *x.chunk(2, -1), x.unsqueeze(-1)],
    "reductions": lambda x: [x.sum(-1), x.sum(1), x.mean(1), x.sum(), x.amax(-1)],
    "softmax": lambda x: [x.softmax(-1), x.softmax(1)],
    "norms": lambda x: [F.layer_norm(x, (8,)), F.rms_norm(x, (8,))],
    "products": lambda x: [x @ weights(8, 4).to(x.device), F.linear(x, weights(3, 8).to(x.device))],
    "attention": attention,
    "dtypes": lambda x: [x.half(), x.bfloat16().float(), x.cpu()],
}


def dense(result: Any) -> list[Tensor]:
    """The tensors in a result, nested ones as their values."""
    parts = result if isinstance(result, list) else [result]
    return [(t.values() if t.is_nested else t).detach().cpu() for t in parts]


@pytest.mark.parametrize("name", JAGGED)
def test_jagged(name: str) -> None:
    before = torch.tpu.metrics().get("cpu_fallbacks", 0)
    mine = JAGGED[name](jagged("tpu"))
    assert torch.tpu.metrics().get("cpu_fallbacks", 0) == before
    for got, want in zip(dense(mine), dense(JAGGED[name](jagged("cpu"))), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("through", [F.gelu, attention])
def test_training_on_jagged_batches(through: Callable[[Tensor], Tensor]) -> None:
    def gradients(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        first, last = (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).to(device) for _ in range(2))
        x = jagged(device).requires_grad_()
        last(through(first(x))).to_padded_tensor(0.0).square().sum().backward()
        assert x.grad is not None
        return [x.grad.values().cpu(), *(p.grad.cpu() for net in (first, last) for p in net.parameters())]  # type: ignore[union-attr]

    for mine, theirs in zip(gradients("tpu"), gradients("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_strided() -> None:
    x = torch.nested.nested_tensor([weights(3, 8), weights(2, 8)])
    assert x.to("tpu").cpu().device.type == "cpu"
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    with torch.no_grad():
        want = layer(x * 2)
        mine = layer.to("tpu")(x.to("tpu") * 2)
    assert mine.is_nested
    assert mine.device.type == "tpu"
    for got, expected in zip(mine.unbind(), want.unbind(), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine.to_padded_tensor(1.0).cpu(), want.to_padded_tensor(1.0), rtol=1e-4, atol=1e-5)

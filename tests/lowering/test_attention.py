"""Fused attention against PyTorch's composition of it, values and gradients."""

from __future__ import annotations

import pytest
import torch
from harness import run

aten = torch.ops.aten
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _inputs(kv_heads: int = 4, dtype: torch.dtype = torch.float32) -> Inputs:
    shapes = ((2, 4, 5, 8), (2, kv_heads, 6, 8), (2, kv_heads, 6, 3))
    q, k, v = (torch.randn(s).to(dtype) for s in shapes)
    return q, k, v


def _compare(
    qkv: Inputs, bias: torch.Tensor | None = None, causal: bool = False, scale: float | None = None, **tolerance: float
) -> None:
    leaves = [x.detach().requires_grad_() for x in qkv]
    if bias is not None:
        bias = bias.detach().requires_grad_()
    gqa = qkv[0].shape[-3] != qkv[1].shape[-3]
    expected = aten._scaled_dot_product_attention_math(*leaves, bias, 0.0, causal, scale=scale, enable_gqa=gqa)[0]
    grad = torch.randn_like(expected)
    inputs = leaves if bias is None else [*leaves, bias]
    grads = torch.autograd.grad(expected, inputs, grad)

    forward = aten._scaled_dot_product_fused_attention_overrideable
    out, lse, *_, seed, offset, _ = run(forward, *qkv, bias, 0.0, causal, scale=scale)
    torch.testing.assert_close(out, expected.detach(), **tolerance)
    mask = [True, True, True, bias is not None]
    lengths = (qkv[0].shape[-2], qkv[1].shape[-2])
    backward = aten._scaled_dot_product_fused_attention_overrideable_backward
    common = (bias, mask, out, lse, None, None, *lengths, 0.0, causal, seed, offset)
    ours = run(backward, grad, *qkv, *common, scale=scale)
    for mine, reference in zip(ours, grads):
        torch.testing.assert_close(mine, reference, **tolerance)


def test_plain_and_scaled() -> None:
    _compare(_inputs())
    _compare(_inputs(), scale=0.3)


def test_causal_and_grouped_heads() -> None:
    _compare(_inputs(), causal=True)
    _compare(_inputs(kv_heads=2), causal=True)


@pytest.mark.parametrize("shape", [(5, 6), (2, 1, 5, 6), (4, 1, 6)])
def test_bias(shape: tuple[int, ...]) -> None:
    _compare(_inputs(), torch.randn(shape))


def test_a_query_that_sees_nothing() -> None:
    bias = torch.zeros(5, 6)
    bias[1] = -torch.inf
    bias[3, 2:] = -torch.inf
    _compare(_inputs(), bias)


def test_bfloat16() -> None:
    _compare(_inputs(dtype=torch.bfloat16), rtol=0.02, atol=0.02)

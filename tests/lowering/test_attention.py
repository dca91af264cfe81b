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


def test_dropout() -> None:
    q, k, v = torch.zeros(1, 2, 64, 4), torch.randn(1, 2, 128, 4), torch.eye(128).expand(1, 2, 128, 128).contiguous()
    forward = aten._scaled_dot_product_fused_attention_overrideable

    def attend(rng: tuple[int, int]) -> torch.Tensor:
        return run(forward, q, k, v, None, 0.25, rng=rng)[0] * 128  # the probabilities themselves

    weights = attend((7, 12))
    kept = weights != 0
    assert torch.equal(weights[kept], torch.full_like(weights[kept], 1 / 0.75))
    assert abs(kept.float().mean() - 0.75) < 0.01
    assert torch.equal(weights, attend((7, 12)))
    for other in ((8, 12), (7, 16), (7, 12 + q.numel())):
        assert abs((kept == (attend(other) != 0)).float().mean() - (0.75**2 + 0.25**2)) < 0.02


def test_gradient_with_dropout_is_that_of_the_same_draw() -> None:
    q, k, v = _inputs()
    forward = aten._scaled_dot_product_fused_attention_overrideable
    out, lse, *_, seed, offset, _ = run(forward, q, k, v, None, 0.25, rng=(3, 4))
    assert (seed.item(), offset.item()) == (3, 4)
    backward = aten._scaled_dot_product_fused_attention_overrideable_backward
    common = (None, [True] * 3 + [False], out, lse, None, None, 5, 6, 0.25, False, seed, offset)
    grads = run(backward, torch.ones_like(out), q, k, v, *common)
    for i, x in enumerate((q, k, v)):
        step = torch.zeros_like(x)
        step[0, 1, 2, 1] = 1e-2
        moved = [
            run(forward, *(y + s * step if j == i else y for j, y in enumerate((q, k, v))), None, 0.25, rng=(3, 4))[0]
            for s in (1, -1)
        ]
        slope = (moved[0] - moved[1]).sum() / 2e-2
        torch.testing.assert_close(grads[i][0, 1, 2, 1], slope, rtol=1e-2, atol=1e-3)


def test_bfloat16() -> None:
    _compare(_inputs(dtype=torch.bfloat16), rtol=0.02, atol=0.02)

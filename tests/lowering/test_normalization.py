"""Normalizations and their gradients against CPU torch."""

from __future__ import annotations

import pytest
import torch
from harness import check, run
from samples import check_once_rounded, sample

aten = torch.ops.aten

FLOATS = [torch.float32, torch.float64]
MASKS = [[True, True, True], [True, False, False], [False, True, True]]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(dtype: torch.dtype) -> None:
    x, w, bias = sample(2, 3, 4, 5, dtype=dtype) + 3, sample(4, 5, dtype=dtype), sample(4, 5, dtype=dtype)
    check(aten.native_layer_norm, x, [4, 5], w, bias, 1e-5, **CLOSE)
    check(aten.native_layer_norm, x, [5], None, None, 1e-3, **CLOSE)
    _, mean, rstd = aten.native_layer_norm(x, [4, 5], w, bias, 1e-5)
    g = sample(*x.shape, dtype=dtype)
    for mask in MASKS:
        theirs = aten.native_layer_norm_backward(g, x, [4, 5], mean, rstd, w, bias, [True] * 3)
        ours = run(aten.native_layer_norm_backward, g, x, [4, 5], mean, rstd, w, bias, mask)
        for mine, reference, asked in zip(ours, theirs, mask):
            assert (mine is not None) == asked
            if asked:
                torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)
    _, mean, rstd = aten.native_layer_norm(x, [5], None, None, 1e-5)
    ours = run(aten.native_layer_norm_backward, g, x, [5], mean, rstd, None, None, [True, False, False])
    theirs = aten.native_layer_norm_backward(g, x, [5], mean, rstd, None, None, [True, False, False])
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layer_norm_of_narrow_floats_has_float32_statistics(dtype: torch.dtype) -> None:
    x, w, bias = sample(6, 64, dtype=dtype) + 3, sample(64, dtype=dtype), sample(64, dtype=dtype)
    out, mean, rstd = run(aten.native_layer_norm, x, [64], w, bias, 1e-5)
    wide = aten.native_layer_norm(x.double(), [64], w.double(), bias.double(), 1e-5)
    torch.testing.assert_close(out, wide[0].to(dtype))
    assert mean.dtype == rstd.dtype == torch.float32
    torch.testing.assert_close((mean, rstd), (wide[1].float(), wide[2].float()))
    g = sample(6, 64, dtype=dtype)
    ours = run(aten.native_layer_norm_backward, g, x, [64], mean, rstd, w, bias, [True] * 3)
    theirs = aten.native_layer_norm_backward(
        g.double(), x.double(), [64], *wide[1:], w.double(), bias.double(), [True] * 3
    )
    for mine, reference in zip(ours, theirs):
        torch.testing.assert_close(mine, reference.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, w, g = sample(2, 3, 8, dtype=dtype), sample(8, dtype=dtype), sample(2, 3, 8, dtype=dtype)
    for eps in (1e-5, None):
        check(aten._fused_rms_norm.default, x, [8], w, eps, **CLOSE)
    check(aten._fused_rms_norm.default, x, [3, 8], None, 1e-5, **CLOSE)
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    out, rstd = aten._fused_rms_norm(leaves[0], [8], leaves[1], 1e-5)
    theirs = torch.autograd.grad(out, leaves, g)
    ours = run(aten._fused_rms_norm_backward, g, x, [8], rstd.detach(), w, [True, True])
    for mine, reference in zip(ours, theirs):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16])
def test_group_norm(dtype: torch.dtype) -> None:
    x, w, bias, g = (sample(*s, dtype=dtype) for s in ((2, 6, 3, 4), (6,), (6,), (2, 6, 3, 4)))
    sizes = (2, 6, 12, 3)
    close = CLOSE if dtype != torch.bfloat16 else {}
    check_once_rounded(aten.native_group_norm, x, w, bias, *sizes, 1e-5, **close)
    check_once_rounded(aten.native_group_norm, x, None, None, *sizes, 1e-5, **close)
    _, mean, rstd = aten.native_group_norm(x, w, bias, *sizes, 1e-5)
    check_once_rounded(aten.native_group_norm_backward, g, x, mean, rstd, w, *sizes, [True] * 3, **close)
    check_once_rounded(aten.native_group_norm_backward, g, x, mean, rstd, None, *sizes, [True, False, False], **close)


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_weight_norm(dtype: torch.dtype, dim: int) -> None:
    v = sample(4, 3, 5, dtype=dtype)
    g = sample(*(s if i == dim else 1 for i, s in enumerate(v.shape)), dtype=dtype)
    check(aten._weight_norm_interface, v, g, dim, **CLOSE)
    _, norm = aten._weight_norm_interface(v, g, dim)
    check(aten._weight_norm_interface_backward, sample(4, 3, 5, dtype=dtype), v, g, norm, dim, **CLOSE)


@pytest.mark.parametrize("p", [2, 1, 0.5, float("inf")])
def test_renorm(p: float) -> None:
    check(aten.renorm, sample(4, 3, 5), p, 1, 2.5, **CLOSE)
    check(aten.renorm, sample(4, 3), p, -1, 1.0, **CLOSE)

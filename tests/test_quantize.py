"""Narrow numbers without the CPU's help: float8, int8 products, fake quantization; and what observers see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.ao.quantization import observer

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def same(fn: Callable[..., Any], *args: Tensor) -> None:
    before = torch.tpu.metrics().get("cpu_fallbacks", 0)
    mine, theirs = fn(*(a.to("tpu") for a in args)), fn(*args)
    assert torch.tpu.metrics().get("cpu_fallbacks", 0) == before
    for got, want in zip(*([r] if isinstance(r, Tensor) else r for r in (mine, theirs)), strict=True):
        torch.testing.assert_close(got.cpu(), want, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
def test_casts_to_float8(dtype: torch.dtype, source: torch.dtype) -> None:
    x = torch.tensor([0, 1, -2.3, 1e-3, 448, 463, 465, 500, -1e5])
    if source.is_floating_point:
        x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan, 2e-10])])
    same(lambda x: x.to(dtype).float(), x.to(source))
    same(lambda x: torch.cat([x.to(dtype), x.to(dtype).clone()]).reshape(2, -1).t().contiguous().half(), x.to(source))


ONE, ROWS, COLUMNS = torch.tensor(1.5), torch.rand(16, 1) + 0.1, torch.rand(1, 32) + 0.1


@pytest.mark.parametrize(("scale_a", "scale_b"), [(ONE, ONE), (ROWS, COLUMNS)])
@pytest.mark.parametrize("narrow", FLOAT8[:2])
def test_scaled_products(scale_a: Tensor, scale_b: Tensor, narrow: torch.dtype) -> None:
    a, b, bias = numbers(16, 32).to(narrow), numbers(32, 32).to(FLOAT8[0]), numbers(32).bfloat16()
    out = {"out_dtype": torch.bfloat16}
    same(lambda a, b, s, t, v: torch._scaled_mm(a, b.t(), s, t, bias=v, **out), a, b, scale_a, scale_b, bias)
    how = F.ScalingType.TensorWise if scale_a is ONE else F.ScalingType.RowWise
    same(lambda a, b, s, t: F.scaled_mm(a, b.t(), s, how, t, how, output_dtype=torch.bfloat16), a, b, scale_a, scale_b)


def test_integer_products() -> None:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((17, 32), (32, 24)))
    same(torch._int_mm, a, b)
    same(torch._weight_int8pack_mm, numbers(4, 32).bfloat16(), b.t().contiguous(), torch.rand(24).bfloat16())


def gradient(x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    torch.fake_quantize_per_tensor_affine(leaf, 0.01, 0, -128, 127).square().sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def test_fake_quantization() -> None:
    x, scale = numbers(4, 5), torch.tensor([0.01, 0.02, 0.5, 0.1])
    zero = torch.tensor([0, 3, -2, 1], dtype=torch.int32)
    same(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.013, 3, -128, 127), x)
    same(lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, 0, 15), x, scale[3], zero[1])
    same(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, -128, 127), x, scale, zero)
    same(gradient, x)


@pytest.mark.parametrize("kind", [observer.MovingAverageMinMaxObserver, observer.PerChannelMinMaxObserver])
def test_observers(kind: Any) -> None:
    def parameters(x: Tensor) -> tuple[Tensor, ...]:
        watching = kind().to(x.device)
        for batch in (x, x * 2):
            watching(batch)
        return tuple(watching.calculate_qparams())

    same(parameters, numbers(4, 5))

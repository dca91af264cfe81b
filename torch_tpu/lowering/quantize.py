"""Fake quantization: rounding to the values that a narrow integer can stand for, and where nothing was cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .meta import meta
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten


@meta(
    aten.fake_quantize_per_tensor_affine_cachemask.default,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
    aten.fake_quantize_per_channel_affine_cachemask.default,
)
def fake_quantize_meta(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _fake_quantize(b: Builder, x: Value, scale: Value, zero_point: Value, low: int, high: int) -> list[Value]:
    """(the nearest value of (q - zero_point) * scale with low <= q <= high, whether x needed no clamping)"""
    wide = x.to(torch.float32)
    steps = b.round_nearest_even(wide * b.divide(1.0, scale)) + zero_point
    inside = (steps >= low) & (steps <= high)
    return [(b.clamp(steps, low, high) - zero_point) * scale, inside]


@lower(aten.fake_quantize_per_tensor_affine_cachemask)
def per_tensor(b: Builder, x: Value, scale: Operand, zero_point: int, quant_min: int, quant_max: int) -> list[Value]:
    zero = b.full((), zero_point, torch.float32)
    return _fake_quantize(b, x, b.scalar(scale, torch.float32), zero, quant_min, quant_max)


@lower(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams)
def per_tensor_of_tensors(
    b: Builder, x: Value, scale: Value, zero_point: Value, enabled: Value, quant_min: int, quant_max: int
) -> list[Value]:
    scale, zero_point, enabled = (b.reshape(v, ()) for v in (scale, zero_point, enabled))
    rounded, inside = _fake_quantize(b, x, scale.to(torch.float32), zero_point.to(torch.float32), quant_min, quant_max)
    on = enabled.ne(0)
    return [b.select(on, rounded, x.to(torch.float32)), inside | b.broadcast_to(~on, x.shape)]


@lower(aten.fake_quantize_per_channel_affine_cachemask)
def per_channel(
    b: Builder, x: Value, scale: Value, zero_point: Value, axis: int, quant_min: int, quant_max: int
) -> list[Value]:
    scale, zero_point = (b.broadcast_in_dim(v.to(torch.float32), x.shape, [axis]) for v in (scale, zero_point))
    return _fake_quantize(b, x, scale, zero_point, quant_min, quant_max)

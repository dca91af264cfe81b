"""Normalizations and their gradients: layer, group, RMS, weight norm and renorm; batch norm has its own file.

Statistics are two passes (the mean, then the squares around it) in the dtype that PyTorch computes in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from . import dtypes
from .registry import call, lower

if TYPE_CHECKING:
    from .builder import Builder, Dims, Operand, Value

aten = torch.ops.aten


def mean_of(b: Builder, x: Value, dims: Dims) -> Value:
    """The mean over dims, which stay as size one."""
    count = math.prod(x.shape[d] for d in dims)
    return b.divide(b.reduce_sum(x, dims, keepdim=True), float(count))


def moments(b: Builder, x: Value, dims: Dims) -> tuple[Value, Value]:
    """Mean and biased variance over dims, which stay as size one."""
    mean = mean_of(b, x, dims)
    centered = x - mean
    return mean, mean_of(b, centered * centered, dims)


def gradient_through(b: Builder, g: Value, normal: Value, rstd: Value, dims: Dims) -> Value:
    """The gradient by x of normal = (x - mean) * rstd, where mean and rstd are over dims of x."""
    return rstd * (g - mean_of(b, g, dims) - normal * mean_of(b, g * normal, dims))


def affine(x: Value, weight: Value | None, bias: Value | None) -> Value:
    """x * weight + bias in x's dtype; both broadcast."""
    if weight is not None:
        x = x * weight.to(x.dtype)
    return x if bias is None else x + bias.to(x.dtype)


# ---- layer norm and RMS norm: over the trailing dims


def _trailing(x: Value, normalized_shape: Dims) -> tuple[list[int], list[int]]:
    """The dims in front, and those normalized over."""
    outer = x.ndim - len(normalized_shape)
    return list(range(outer)), list(range(outer, x.ndim))


@lower(aten.native_layer_norm)
def layer_norm(
    b: Builder, x: Value, normalized_shape: Dims, weight: Value | None, bias: Value | None, eps: Operand
) -> list[Value]:
    _, dims = _trailing(x, normalized_shape)
    x = x.to(dtypes.opmath(x.dtype))
    mean, variance = moments(b, x, dims)
    rstd = b.rsqrt(variance + b.scalar(eps, x.dtype))
    return [affine((x - mean) * rstd, weight, bias), mean, rstd]


@lower(aten.native_layer_norm_backward)
def layer_norm_backward(
    b: Builder,
    g: Value,
    x: Value,
    normalized_shape: Dims,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    outer, dims = _trailing(x, normalized_shape)
    dtype = dtypes.opmath(x.dtype)
    g, x, mean, rstd = (v.to(dtype) for v in (g, x, mean, rstd))
    normal = (x - mean) * rstd
    return [
        gradient_through(b, affine(g, weight, None), normal, rstd, dims) if output_mask[0] else None,
        b.reduce_sum(g * normal, outer) if output_mask[1] and weight is not None else None,
        b.reduce_sum(g, outer) if output_mask[2] else None,
    ]


@lower(aten._fused_rms_norm)
def rms_norm(b: Builder, x: Value, normalized_shape: Dims, weight: Value | None, eps: Operand | None) -> list[Value]:
    _, dims = _trailing(x, normalized_shape)
    x = x.to(dtypes.opmath(x.dtype))
    epsilon = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = b.rsqrt(mean_of(b, x * x, dims) + b.scalar(epsilon, x.dtype))
    return [affine(x * rstd, weight, None), rstd]


@lower(aten._fused_rms_norm_backward)
def rms_norm_backward(
    b: Builder,
    g: Value,
    x: Value,
    normalized_shape: Dims,
    rstd: Value,
    weight: Value | None,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    outer, dims = _trailing(x, normalized_shape)
    dtype = dtypes.opmath(x.dtype)
    g, x, rstd = (v.to(dtype) for v in (g, x, rstd))
    normal = x * rstd
    scaled = affine(g, weight, None)
    return [
        rstd * (scaled - normal * mean_of(b, scaled * normal, dims)) if output_mask[0] else None,
        b.reduce_sum(g * normal, outer) if output_mask[1] and weight is not None else None,
    ]


# ---- group norm


def _per_channel(b: Builder, values: Value | None, channels: int, ndim: int) -> Value | None:
    """A vector along dim 1."""
    return None if values is None else b.reshape(values, (1, channels, *[1] * (ndim - 2)))


@lower(aten.native_group_norm)
def group_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    eps: Operand,
) -> list[Value]:
    shape = x.shape
    grouped = b.reshape(x.to(dtypes.opmath(x.dtype)), (batch, groups, channels // groups * area))
    mean, variance = moments(b, grouped, [2])
    rstd = b.rsqrt(variance + b.scalar(eps, grouped.dtype))
    normal = b.reshape((grouped - mean) * rstd, shape)
    weight, bias = (_per_channel(b, v, channels, len(shape)) for v in (weight, bias))
    flat = (batch, groups)
    return [affine(normal, weight, bias), b.reshape(mean, flat), b.reshape(rstd, flat)]


@lower(aten.native_group_norm_backward)
def group_norm_backward(
    b: Builder,
    g: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    shape, dtype = x.shape, dtypes.opmath(x.dtype)
    grouped = (batch, groups, channels // groups * area)
    mean, rstd = (b.reshape(v.to(dtype), (batch, groups, 1)) for v in (mean, rstd))
    g = b.reshape(g.to(dtype), (batch, channels, area))
    normal = (b.reshape(x.to(dtype), grouped) - mean) * rstd
    scaled = b.reshape(affine(g, _per_channel(b, weight, channels, 3), None), grouped)
    return [
        b.reshape(gradient_through(b, scaled, normal, rstd, [2]), shape) if output_mask[0] else None,
        b.reduce_sum(g * b.reshape(normal, g.shape), [0, 2]) if output_mask[1] else None,
        b.reduce_sum(g, [0, 2]) if output_mask[2] else None,
    ]


# ---- weight norm and renorm


@lower(aten._weight_norm_interface)
def weight_norm(b: Builder, v: Value, g: Value, dim: int = 0) -> list[Value]:
    """w = v * g / |v|, the norm over all dims but one."""
    v = v.to(dtypes.opmath(v.dtype))
    others = [d for d in range(v.ndim) if d != dim % v.ndim]
    norm = b.sqrt(b.reduce_sum(v * v, others, keepdim=True))
    return [v * b.divide(g.to(v.dtype), norm), norm]


@lower(aten._weight_norm_interface_backward)
def weight_norm_backward(b: Builder, grad: Value, v: Value, g: Value, norm: Value, dim: int) -> list[Value]:
    dtype = dtypes.opmath(v.dtype)
    grad, v, g, norm = (t.to(dtype) for t in (grad, v, g, norm))
    others = [d for d in range(v.ndim) if d != dim % v.ndim]
    along = b.divide(b.reduce_sum(grad * v, others, keepdim=True), norm)
    return [b.divide(g, norm) * (grad - v * b.divide(along, norm)), along]


@lower(aten.renorm, static=("p",))
def renorm(b: Builder, x: Value, p: float, dim: int, maxnorm: Operand) -> Value:
    """Scale the slices along dim whose p-norm exceeds maxnorm down to it."""
    x = x.to(dtypes.opmath(x.dtype))
    others = [d for d in range(x.ndim) if d != dim % x.ndim]
    norm = call(b, aten.linalg_vector_norm.default, x, p, others, True)
    limit = b.scalar(maxnorm, norm.dtype)
    return x * b.select(norm > limit, b.divide(limit, norm + 1e-7), 1.0)

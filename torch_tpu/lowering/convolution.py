"""Convolutions and their gradients.

Measured on XLA:CPU (32x64x16x16, 3x3 kernels; Eigen does the work):
- NCHW as it comes costs what transposing to NHWC inside the program costs (3.4 ms): XLA transposes by itself.
- window_reversal loses the fast path (201 ms against 3.8 ms), so kernels are reversed by an op of their own.
- batch_group_count loses it too (120 to 430 ms against 6 ms), so grouped weight gradients use feature groups.
- depthwise convolutions are faster as sums of shifted products (0.25 ms against 29 ms) while the taps are few.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Dims, Pairs, Value

aten = torch.ops.aten

MAX_TAPS = 64


def _window(x: Value, stride: Dims, padding: Dims, dilation: Dims) -> tuple[Dims, Dims, Dims]:
    """One entry per spatial dim; a single one stands for all."""

    def spread(values: Dims) -> Dims:
        return list(values) * (x.ndim - 2) if len(values) == 1 else values

    return spread(stride), spread(padding), spread(dilation)


def convolve(
    b: Builder,
    x: Value,
    w: Value,
    *,
    strides: Dims,
    padding: Pairs,
    lhs_dilation: Dims,
    rhs_dilation: Dims,
    groups: int,
) -> Value:
    """x (N, C, *spatial) with w (O, C / groups, *kernel), in the dtype that PyTorch accumulates in."""
    taps = math.prod(w.shape[2:])
    depthwise = w.shape[1] == 1 and groups > 1 and b.platform == "cpu" and taps <= MAX_TAPS
    if depthwise or x.dtype in (torch.int64, torch.uint64):  # TPUs have no 64-bit integer convolution
        return _sum_of_taps(b, x, w, strides, padding, lhs_dilation, rhs_dilation, groups)
    if dtypes.is_integral(x.dtype) and x.dtype.itemsize < 4:
        x, w = x.to(torch.int32), w.to(torch.int32)
    return b.convolution(
        x,
        w,
        strides=strides,
        padding=padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        groups=groups,
        dtype=dtypes.opmath(x.dtype),
    )


def _sum_of_taps(
    b: Builder, x: Value, w: Value, strides: Dims, padding: Pairs, lhs_dilation: Dims, rhs_dilation: Dims, groups: int
) -> Value:
    """The same as a sum, over the places in the kernel, of a shifted x times the weight of that place."""
    dtype = dtypes.opmath(x.dtype)
    x, w = x.to(dtype), w.to(dtype)
    kernel, spatial = w.shape[2:], [1] * (x.ndim - 2)
    lows, highs = ([0, 0, *(p[i] for p in padding)] for i in (0, 1))
    x = b.pad(x, 0, lows, highs, [0, 0, *(d - 1 for d in lhs_dilation)])
    size = [max(0, (n - (k - 1) * d - 1) // s + 1) for n, k, d, s in zip(x.shape[2:], kernel, rhs_dilation, strides)]
    channels = w.shape[1]
    batch, outs = x.shape[0], w.shape[0] // groups
    total: Value | None = None
    for place in itertools.product(*map(range, kernel)):
        starts = [p * d for p, d in zip(place, rhs_dilation)]
        stops = [p + (n - 1) * s + 1 if n else p for p, n, s in zip(starts, size, strides)]
        shifted = b.slice(x, [0, 0, *starts], [*x.shape[:2], *stops], [1, 1, *strides])
        weight = b.slice(w, [0, 0, *place], [*w.shape[:2], *(p + 1 for p in place)])
        shifted = b.reshape(shifted, (batch, groups, 1, channels, *size))
        term = shifted * b.reshape(weight, (1, groups, outs, channels, *spatial))
        term = b.reduce_sum(term, [3])
        total = term if total is None else total + term
    if total is None:
        return b.full((batch, w.shape[0], *size), 0, dtype)
    return b.reshape(total, (batch, w.shape[0], *size))


def _forward(
    b: Builder, x: Value, w: Value, size: Dims, stride: Dims, padding: Dims, dilation: Dims, groups: int
) -> Value:
    """A convolution whose result has this spatial size."""
    highs = [
        (o - 1) * s + 1 + (k - 1) * d - n - p
        for o, s, k, d, n, p in zip(size, stride, w.shape[2:], dilation, x.shape[2:], padding)
    ]
    return convolve(
        b,
        x,
        w,
        strides=stride,
        padding=list(zip(padding, highs)),
        lhs_dilation=[1] * len(stride),
        rhs_dilation=dilation,
        groups=groups,
    )


def _input_gradient(
    b: Builder, g: Value, w: Value, size: Dims, stride: Dims, padding: Dims, dilation: Dims, groups: int
) -> Value:
    """The gradient of `_forward` by an x of this spatial size: the transposed convolution."""
    kernel = w.shape[2:]
    outs, channels = w.shape[0] // groups, w.shape[1]
    w = b.reshape(w, (groups, outs, channels, *kernel))
    w = b.reshape(b.swap_dims(w, 1, 2), (groups * channels, outs, *kernel))
    w = b.reverse(w, range(2, w.ndim))
    lows = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding)]
    highs = [n - (o - 1) * s - 1 + p for n, o, s, p in zip(size, g.shape[2:], stride, padding)]
    return convolve(
        b,
        g,
        w,
        strides=[1] * len(stride),
        padding=list(zip(lows, highs)),
        lhs_dilation=stride,
        rhs_dilation=dilation,
        groups=groups,
    )


def _weight_gradient(
    b: Builder, x: Value, g: Value, kernel: Dims, stride: Dims, padding: Dims, dilation: Dims, groups: int
) -> Value:
    """The gradient of `_forward` by its weight: x and g convolved with batch and channels exchanged."""
    batch, channels, outs = x.shape[0], x.shape[1] // groups, g.shape[1]
    size = x.shape[2:]
    x = b.reshape(x, (batch, groups, channels, *size))
    x = b.transpose(x, [2, 1, 0, *range(3, x.ndim)])
    x = b.reshape(x, (channels, groups * batch, *size))
    g = b.swap_dims(g, 0, 1)
    highs = [
        (k - 1) * d + (o - 1) * s + 1 - n - p
        for k, d, o, s, n, p in zip(kernel, dilation, g.shape[2:], stride, size, padding)
    ]
    out = convolve(
        b,
        x,
        g,
        strides=dilation,
        padding=list(zip(padding, highs)),
        lhs_dilation=[1] * len(stride),
        rhs_dilation=stride,
        groups=groups,
    )
    assert out.shape[:2] == (channels, outs)
    return b.swap_dims(out, 0, 1)


@lower(aten.convolution, aten.convolution_overrideable)
def convolution(
    b: Builder,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    transposed: bool,
    output_padding: Dims,
    groups: int,
) -> Value:
    spec = b.outputs[0]
    assert spec is not None
    rule = _input_gradient if transposed else _forward
    window = _window(x, stride, padding, dilation)
    out = rule(b, x, w, spec.shape[2:], *window, groups)
    if bias is None:
        return out
    return out + b.broadcast_in_dim(bias.to(out.dtype), out.shape, [1])


@lower(aten._convolution.default)
def convolution_with_flags(b: Builder, x: Value, w: Value, bias: Value | None, *args: Any) -> Value:
    window, _flags = args[:6], args[6:]
    return convolution(b, x, w, bias, *window)


@lower(aten.convolution_backward)
def convolution_backward(
    b: Builder,
    g: Value,
    x: Value,
    w: Value,
    bias_sizes: Dims | None,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    transposed: bool,
    output_padding: Dims,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    window = _window(x, stride, padding, dilation)
    grads: list[Value | None] = [None, None, None]
    if output_mask[0]:
        rule = _forward if transposed else _input_gradient
        grads[0] = rule(b, g, w, x.shape[2:], *window, groups)
    if output_mask[1]:
        big, small = (g, x) if transposed else (x, g)
        grads[1] = _weight_gradient(b, big, small, w.shape[2:], *window, groups)
    if output_mask[2]:
        wide = g.to(dtypes.opmath(g.dtype))
        grads[2] = b.reduce_sum(wide, [0, *range(2, g.ndim)])
    return grads


@lower(aten.convolution_backward_overrideable)
def convolution_backward_overrideable(b: Builder, g: Value, x: Value, w: Value, *args: Any) -> list[Value | None]:
    return convolution_backward(b, g, x, w, None, *args)


@lower(aten.conv_tbc)
def conv_tbc(b: Builder, x: Value, w: Value, bias: Value, pad: int = 0) -> Value:
    """x (time, batch, in), w (kernel, in, out)."""
    dims = ([1, 2, 0], [2, 1, 0], [1, 2, 0])
    out = b.convolution(x, w, strides=[1], padding=[(pad, pad)], dims=dims, dtype=dtypes.opmath(x.dtype))
    return out + bias.to(out.dtype)

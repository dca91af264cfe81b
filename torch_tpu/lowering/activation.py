"""Activation functions and their backward ops."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .elementwise import pointwise, table
from .meta import meta
from .pointwise import conjugate
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
GELU_CUBIC = 0.044715


@pointwise(aten.gelu)
def gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + b.tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)))
    return x * 0.5 * (1.0 + b.erf(x * SQRT_HALF))


@pointwise(aten.gelu_backward)
def gelu_backward(b: Builder, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        t = b.tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x))
        inner = SQRT_2_OVER_PI * (1.0 + 3 * GELU_CUBIC * x * x)
        return grad * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
    cdf = 0.5 * (1.0 + b.erf(x * SQRT_HALF))
    return grad * (cdf + x * INV_SQRT_2PI * b.exponential(-0.5 * x * x))


def sigmoid(b: Builder, x: Value) -> Value:
    return b.logistic(x)


def silu(b: Builder, x: Value) -> Value:
    return x / (1 + b.exponential(-x))


def silu_backward(b: Builder, grad: Value, x: Value) -> Value:
    s = b.logistic(x)
    return grad * s * (1 + x * (1 - s))


def softplus_of(b: Builder, x: Value) -> Value:
    """log(1 + exp(x)) without overflow."""
    return b.maximum(x, 0) + b.log_plus_one(b.exponential(-b.abs(x)))


def mish(b: Builder, x: Value) -> Value:
    return x * b.tanh(softplus_of(b, x))


def mish_backward(b: Builder, grad: Value, x: Value) -> Value:
    t = b.tanh(softplus_of(b, x))
    return grad * (t + x * b.logistic(x) * (1 - t * t))


def hardsigmoid(b: Builder, x: Value) -> Value:
    return b.clamp(x + 3, 0, 6) / 6


def hardsigmoid_backward(b: Builder, grad: Value, x: Value) -> Value:
    return b.select((x > -3) & (x < 3), grad / 6, 0)


def hardswish(b: Builder, x: Value) -> Value:
    return x * b.clamp(x + 3, 0, 6) / 6


def hardswish_backward(b: Builder, grad: Value, x: Value) -> Value:
    middle = b.select(x < 3, grad * (x / 3 + 0.5), grad)
    return b.select(x <= -3, 0, middle)


def hardshrink(b: Builder, x: Value, bound: Operand = 0.5) -> Value:
    return b.select((x >= -_value(b, bound, x)) & (x <= bound), 0, x)


def softshrink(b: Builder, x: Value, bound: Operand = 0.5) -> Value:
    low = -_value(b, bound, x)
    # x * 0 keeps NaN.
    return b.select(x > bound, x - bound, b.select(x < low, x - low, x * 0))


def shrink_backward(b: Builder, grad: Value, x: Value, bound: Value) -> Value:
    return b.select((x >= -bound) & (x <= bound), 0, grad)


def _value(b: Builder, x: Operand, like: Value) -> Value:
    return b.scalar(x, like.dtype)


def leaky_relu(b: Builder, x: Value, slope: Operand = 0.01) -> Value:
    return b.select(x > 0, x, x * slope)


def threshold_backward(b: Builder, grad: Value, x: Value, threshold: Value) -> Value:
    return b.select(x <= threshold, 0, grad)


def sigmoid_backward(b: Builder, grad: Value, y: Value) -> Value:
    return grad * conjugate(b, y * (1 - y))


def tanh_backward(b: Builder, grad: Value, y: Value) -> Value:
    return grad * conjugate(b, 1 - y * y)


table(
    "output",
    {
        "relu": lambda b, x: b.select(x < 0, 0, x),  # keeps -0.0, unlike a maximum
        "relu6": lambda b, x: b.clamp(x, 0, 6),
        "sigmoid": sigmoid,
        "sigmoid_backward": sigmoid_backward,
        "tanh_backward": tanh_backward,
        "silu": silu,
        "silu_backward": silu_backward,
        "mish": mish,
        "mish_backward": mish_backward,
        "hardsigmoid": hardsigmoid,
        "hardsigmoid_backward": hardsigmoid_backward,
        "hardswish": hardswish,
        "hardswish_backward": hardswish_backward,
        "hardshrink": hardshrink,
        "hardshrink_backward": shrink_backward,
        "softshrink": softshrink,
        "softshrink_backward": shrink_backward,
        "hardtanh": lambda b, x, low=-1, high=1: b.clamp(x, low, high),
        "hardtanh_backward": lambda b, grad, x, low, high: b.select((x <= low) | (x >= high), 0, grad),
        "leaky_relu": leaky_relu,
        "leaky_relu_backward": lambda b, grad, x, slope, is_result: b.select(x > 0, grad, grad * slope),
        "threshold": lambda b, x, threshold, value: b.select(x <= threshold, value, x),
        "threshold_backward": threshold_backward,
    },
)


@pointwise(aten.softplus)
def softplus(b: Builder, x: Value, beta: Operand = 1, threshold: Operand = 20) -> Value:
    z = x * beta
    return b.select(z > threshold, x, b.log_plus_one(b.exponential(z)) / beta)


@pointwise(aten.softplus_backward)
def softplus_backward(b: Builder, grad: Value, x: Value, beta: Value, threshold: Value) -> Value:
    z = b.exponential(x * beta)
    return b.select(x * beta > threshold, grad, grad * z / (z + 1))


@pointwise(aten.elu)
def elu(b: Builder, x: Value, alpha: Operand = 1, scale: Operand = 1, input_scale: Operand = 1) -> Value:
    negative = b.exponential_minus_one(x * input_scale) * (_value(b, alpha, x) * scale)
    return b.select(x > 0, x * scale, negative)


@pointwise(aten.celu)
def celu(b: Builder, x: Value, alpha: Operand = 1) -> Value:
    return b.select(x > 0, x, alpha * b.exponential_minus_one(x / alpha))


@pointwise(aten.selu)
def selu(b: Builder, x: Value) -> Value:
    return elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@pointwise(aten.elu_backward)
def elu_backward(
    b: Builder, grad: Value, alpha: Value, scale: Value, input_scale: Value, is_result: bool, y: Value
) -> Value:
    coefficient = alpha * scale
    if is_result:
        negative = grad * input_scale * (y + coefficient)
    else:
        negative = grad * input_scale * coefficient * b.exponential(y * input_scale)
    return b.select(y <= 0, negative, grad * scale)


@pointwise(aten._prelu_kernel)
def prelu(b: Builder, x: Value, weight: Value) -> Value:
    return b.select(x > 0, x, weight * x)


@lower(aten._prelu_kernel_backward)
def prelu_backward(b: Builder, grad: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    grad, x, weight = b.operands(grad, x, weight)
    dtype = b.opmath(x.dtype)
    grad, x, weight = grad.to(dtype), x.to(dtype), weight.to(dtype)
    positive = x > 0
    return b.select(positive, grad, weight * grad), b.select(positive, 0, x * grad)


@pointwise(aten.rrelu_with_noise_backward)
def rrelu_backward(
    b: Builder, grad: Value, x: Value, noise: Value, lower: Value, upper: Value, training: bool, is_result: bool
) -> Value:
    evaluated = b.select(x > 0, grad, grad * ((lower + upper) / 2))
    return b.select(upper - lower > 1e-6, grad * noise, evaluated) if training else evaluated


@lower(aten.log_sigmoid_forward)
def log_sigmoid(b: Builder, x: Value) -> tuple[Value, Value]:
    """The second result is a buffer for the backward pass, which here needs none but the input."""
    dtype = x.dtype
    x = x.to(b.opmath(dtype))
    z = b.exponential(-b.abs(x))
    buffer = b.outputs[1]
    assert buffer is not None
    return b.minimum(x, 0) - b.log_plus_one(z), z if buffer.shape == x.shape else b.full(buffer.shape, 0, dtype)


@pointwise(aten.log_sigmoid_backward, keep=["buffer"])
def log_sigmoid_backward(b: Builder, grad: Value, x: Value, buffer: Value) -> Value:
    return grad * b.logistic(-x)


@pointwise(aten.logit)
def logit(b: Builder, x: Value, eps: Value | None = None) -> Value:
    out = b.outputs[0]
    assert out is not None
    if eps is not None:
        x = b.select(x < eps, eps, b.select(x > 1 - eps, 1 - eps, x))
    # Each step is rounded as PyTorch does: 1 - x cancels, so that the results differ visibly otherwise.
    odds = b.round_to(x / b.round_to(1 - x, out.dtype), out.dtype)
    return b.log(odds)


@pointwise(aten.logit_backward)
def logit_backward(b: Builder, grad: Value, x: Value, eps: Value | None = None) -> Value:
    inside = grad / (x * (1 - x))
    if eps is None:
        return b.select((x < 0) | (x > 1), math.nan, inside)
    return b.select((x < eps) | (x > 1 - eps), 0, inside)


def _halves(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    dim %= x.ndim
    half = x.shape[dim] // 2
    return b.slice_dim(x, dim, 0, half), b.slice_dim(x, dim, half, 2 * half)


@lower(aten.glu)
def glu(b: Builder, x: Value, dim: int = -1) -> Value:
    value, gate = _halves(b, x.to(b.opmath(x.dtype)), dim)
    return value * b.logistic(gate)


@lower(aten.glu_backward)
def glu_backward(b: Builder, grad: Value, x: Value, dim: int) -> Value:
    dtype = b.opmath(x.dtype)
    grad = grad.to(dtype)
    value, gate = _halves(b, x.to(dtype), dim)
    s = b.logistic(gate)
    return b.concatenate([s * grad, s * (1 - s) * value * grad], dim)


@meta(aten.glu_jvp.default)
def glu_jvp_meta(y: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(y)


@lower(aten.glu_jvp)
def glu_jvp(b: Builder, y: Value, x: Value, dx: Value, dim: int) -> Value:
    value_dot, gate_dot = _halves(b, dx, dim)
    _, gate = _halves(b, x, dim)
    s = b.logistic(gate)
    return value_dot * s + y * (gate_dot - s * gate_dot)

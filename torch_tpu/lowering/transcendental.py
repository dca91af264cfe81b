"""Exponentials, logarithms, trigonometry and what is made of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .elementwise import table
from .registry import RuleFn

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten


def exp2(b: Builder, x: Value) -> Value:
    if x.is_complex:
        return b.exponential(x * math.log(2))
    return b.power(b.full((), 2, x.dtype), x)


def log_to_base(base: int) -> RuleFn:
    def rule(b: Builder, x: Value) -> Value:
        return b.log(x) / math.log(base)

    return rule


def sinc(b: Builder, x: Value) -> Value:
    z = x * math.pi
    zero = z.eq(0)
    return b.select(zero, 1, b.sine(z) / b.select(zero, 1, z))


def xlogy(b: Builder, x: Value, y: Value) -> Value:
    return _zero_times(b, x, y, b.log(y))


def xlog1py(b: Builder, x: Value, y: Value) -> Value:
    return _zero_times(b, x, y, b.log_plus_one(y))


def _zero_times(b: Builder, x: Value, y: Value, log: Value) -> Value:
    # 0 * log(0) is 0, but NaN in y stays.
    return b.select(x.eq(0) & ~b.is_nan(y), 0, x * log)


def logaddexp(b: Builder, x: Value, y: Value) -> Value:
    if x.is_complex:
        swap = b.real(x) < b.real(y)
        high, low = b.select(swap, y, x), b.select(swap, x, y)
        return high + b.log_plus_one(b.exponential(low - high))
    # Equal infinities would give inf - inf.
    same = x.eq(y) & b.abs(x).eq(math.inf)
    high = b.maximum(x, y)
    return b.select(same, x, high + b.log_plus_one(b.exponential(-b.abs(x - y))))


def logaddexp2(b: Builder, x: Value, y: Value) -> Value:
    same = x.eq(y) & b.abs(x).eq(math.inf)
    high = b.maximum(x, y)
    scaled = b.exponential(-b.abs(x - y) * math.log(2))
    return b.select(same, x, high + b.log_plus_one(scaled) / math.log(2))


def hypot(b: Builder, x: Value, y: Value) -> Value:
    x, y = b.operands(b.abs(x), b.abs(y))
    high, low = b.maximum(x, y), b.minimum(x, y)
    ratio = low / b.select(high.eq(0), 1, high)
    length = high * b.sqrt(1 + ratio * ratio)
    return b.select(x.eq(math.inf) | y.eq(math.inf), math.inf, length)


table(
    "output",
    {
        "sqrt": lambda b, x: b.sqrt(x),
        "rsqrt": lambda b, x: b.rsqrt(x),
        "exp": lambda b, x: b.exponential(x),
        "exp2": exp2,
        "expm1": lambda b, x: b.exponential_minus_one(x),
        "log": lambda b, x: b.log(x),
        "log2": log_to_base(2),
        "log10": log_to_base(10),
        "log1p": lambda b, x: b.log_plus_one(x),
        "sin": lambda b, x: b.sine(x),
        "cos": lambda b, x: b.cosine(x),
        "tan": lambda b, x: b.tan(x),
        "asin": lambda b, x: b.asin(x),
        "acos": lambda b, x: b.acos(x),
        "atan": lambda b, x: b.atan(x),
        "sinh": lambda b, x: b.sinh(x),
        "cosh": lambda b, x: b.cosh(x),
        "tanh": lambda b, x: b.tanh(x),
        "asinh": lambda b, x: b.asinh(x),
        "acosh": lambda b, x: b.acosh(x),
        "atanh": lambda b, x: b.atanh(x),
        "atan2": lambda b, x, y: b.atan2(x, y),
        "hypot": hypot,
        "sinc": sinc,
        "xlogy": xlogy,
        "special_xlog1py": xlog1py,
        "logaddexp": logaddexp,
        "logaddexp2": logaddexp2,
    },
)

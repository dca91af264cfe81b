"""Elementwise arithmetic, comparison, bitwise, logical and rounding ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .elementwise import pointwise, table
from .registry import lower, python_op

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten


# ---- arithmetic


@pointwise(aten.add)
def add(b: Builder, x: Value, y: Value, alpha: Operand = 1) -> Value:
    return x + y * alpha


@pointwise(aten.sub)
def sub(b: Builder, x: Value, y: Value, alpha: Operand = 1) -> Value:
    return x - y * alpha


@pointwise(aten.rsub)
def rsub(b: Builder, x: Value, y: Value, alpha: Operand = 1) -> Value:
    return y - x * alpha


@pointwise(aten._add_relu)
def add_relu(b: Builder, x: Value, y: Value, alpha: Operand = 1) -> Value:
    return b.maximum(x + y * alpha, 0)


@pointwise(aten.addcmul)
def addcmul(b: Builder, x: Value, t1: Value, t2: Value, *, value: Operand = 1) -> Value:
    return x + value * t1 * t2


@pointwise(aten.addcdiv)
def addcdiv(b: Builder, x: Value, t1: Value, t2: Value, *, value: Operand = 1) -> Value:
    return x + value * t1 / t2


@pointwise(aten.lerp)
def lerp(b: Builder, start: Value, end: Value, weight: Value) -> Value:
    # Two forms, so that weight 0 and 1 give the ends exactly.
    near = b.abs(weight) < 0.5
    difference = end - start
    return b.select(near, start + weight * difference, end - difference * (1 - weight))


def divide_ints(b: Builder, x: Value, y: Value, *, floor: bool) -> Value:
    """Integer division toward zero or toward minus infinity."""
    quotient = b.divide(x, y)
    if not floor or not x.dtype.is_signed:
        return quotient
    inexact = b.remainder(x, y).ne(0) & ((x < 0) ^ (y < 0))
    return b.select(inexact, quotient - 1, quotient)


def divide_floor(b: Builder, x: Value, y: Value) -> Value:
    """Division rounded to minus infinity, with the care that Python takes of floats."""
    if x.is_integral:
        return divide_ints(b, x, y, floor=True)
    narrow = _rounding(b)
    mod = b.remainder(x, y)
    quotient = narrow(narrow(x - mod) / y)
    quotient = b.select(mod.ne(0) & ((y < 0) ^ (mod < 0)), narrow(quotient - 1), quotient)
    floored = b.floor(quotient)
    floored = b.select(quotient - floored > 0.5, floored + 1, floored)
    ratio = x / y
    zero = copysign(b, b.full((), 0, x.dtype), ratio)
    return b.select(y.eq(0), ratio, b.select(quotient.eq(0), zero, floored))


def _rounding(b: Builder) -> Callable[[Value], Value]:
    """Rounding to the output's dtype, for the steps that PyTorch takes in a narrow dtype."""
    out = b.outputs[0]
    assert out is not None
    return lambda x: b.round_to(x, out.dtype)


def divide_trunc(b: Builder, x: Value, y: Value) -> Value:
    if x.is_integral:
        return divide_ints(b, x, y, floor=False)
    return b.truncate(_rounding(b)(x / y))


@pointwise(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, x: Value, y: Value, *, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return x / y
    return divide_floor(b, x, y) if rounding_mode == "floor" else divide_trunc(b, x, y)


def remainder(b: Builder, x: Value, y: Value) -> Value:
    """The remainder with the divisor's sign."""
    mod = b.remainder(x, y)
    if x.is_integral and not x.dtype.is_signed:
        return mod
    return b.select(mod.ne(0) & ((y < 0) ^ (mod < 0)), mod + y, mod)


def reciprocal(b: Builder, x: Value) -> Value:
    return 1 / x


def trunc(b: Builder, x: Value) -> Value:
    return x if x.is_integral else b.truncate(x)


table(
    "output",
    {
        "mul": lambda b, x, y: x * y,
        "div.Tensor": lambda b, x, y: x / y,
        "div.Scalar": lambda b, x, y: x / y,
        "true_divide.Tensor": lambda b, x, y: x / y,
        "floor_divide": divide_floor,
        "fmod": lambda b, x, y: b.remainder(x, y),
        "remainder": remainder,
        "reciprocal": reciprocal,
        "neg": lambda b, x: -x,
        "square": lambda b, x: x * x,
        "ceil": lambda b, x: x if x.is_integral else b.ceil(x),
        "floor": lambda b, x: x if x.is_integral else b.floor(x),
        "trunc": trunc,
        "round.default": lambda b, x: x if x.is_integral else b.round_nearest_even(x),
        "frac": lambda b, x: x - trunc(b, x),
        "deg2rad": lambda b, x: x * (math.pi / 180),
        "rad2deg": lambda b, x: x * (180 / math.pi),
    },
)


@pointwise(aten.round.decimals)
def round_decimals(b: Builder, x: Value, *, decimals: int) -> Value:
    if x.is_integral:
        return x
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return b.round_nearest_even(x / scale) * scale
    return b.round_nearest_even(x * scale) / scale


# ---- powers


def power(b: Builder, x: Value, y: Value) -> Value:
    """x ** y; integer powers wrap, negative ones are 0 except of 1 and -1."""
    if not x.is_integral:
        return b.power(x, y)
    x, y = b.operands(x, y)
    if x.is_bool:
        return x | ~y

    def step(result: Value, square: Value, rest: Value) -> tuple[Value, Value, Value]:
        factor = b.select((rest & 1).ne(0), square, 1)
        return result * factor, square * square, b.shift_right_logical(rest, 1)

    # By squaring: StableHLO's integer power is wrong for large exponents on XLA:CPU.
    start = [b.full(x.shape, 1, x.dtype), x, b.maximum(y, 0)]
    result = b.while_loop(start, lambda result, square, rest: b.reduce_or(rest.ne(0)), step)[0]
    if not x.dtype.is_signed:
        return result
    odd = (y & 1).ne(0)
    inverse = b.select(x.eq(1), 1, b.select(x.eq(-1), b.select(odd, b.full((), -1, x.dtype), 1), 0))
    return b.select(y < 0, inverse, result)


@pointwise(aten.pow.Tensor_Tensor)
def pow_tensor(b: Builder, x: Value, y: Value) -> Value:
    return power(b, x, y)


@pointwise(aten.pow.Scalar)
def pow_base(b: Builder, base: Value, y: Value) -> Value:
    return power(b, base, y)


@pointwise(aten.pow.Tensor_Scalar)
def pow_scalar(b: Builder, x: Value, exponent: Value) -> Value:
    """The exponent is a runtime parameter; the common ones are chosen at run time, exact and fast as PyTorch's."""
    if x.is_integral:
        return power(b, x, exponent)
    result = power(b, x, exponent)
    # The innermost choice is the one for which XLA:CPU skips the costly general power.
    common = [(2.0, x * x), (3.0, x * x * x), (1.0, x), (-1.0, 1 / x), (-2.0, 1 / (x * x))]
    if not x.is_complex:
        common += [(0.5, b.sqrt(x)), (-0.5, b.rsqrt(x))]
    for value, form in common:
        result = b.select(exponent.eq(value), form, result)
    return result


# ---- comparison and selection


def _compare(direction: str) -> Any:
    return lambda b, x, y: b.compare(x, direction, y)


table("input", {name: _compare(name.upper()) for name in ("eq", "ne", "lt", "le", "gt", "ge")})


def fmax(b: Builder, x: Value, y: Value) -> Value:
    return b.select(b.is_nan(x), y, b.select(b.is_nan(y), x, b.maximum(x, y)))


def fmin(b: Builder, x: Value, y: Value) -> Value:
    return b.select(b.is_nan(x), y, b.select(b.is_nan(y), x, b.minimum(x, y)))


table(
    "output",
    {
        "maximum": lambda b, x, y: b.maximum(x, y),
        "minimum": lambda b, x, y: b.minimum(x, y),
        "fmax": fmax,
        "fmin": fmin,
        "clamp_min": lambda b, x, low: b.maximum(x, low),
        "clamp_max": lambda b, x, high: b.minimum(x, high),
        "heaviside": lambda b, x, y: b.select(x.eq(0), y, (x > 0).to(x.dtype)),
    },
)


@pointwise(aten.clamp)
def clamp(b: Builder, x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    if min is not None:
        x = b.maximum(x, min)
    return x if max is None else b.minimum(x, max)


def chosen(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    """x or y, to the bit: XLA:CPU selects bfloat16 as float32, which changes what NaNs hold."""
    dtype = b.promote(x, y)
    if dtype != torch.bfloat16:
        return b.select(condition, x, y)
    x, y = (b.bitcast_convert(v.to(dtype), torch.int16) for v in (x, y))
    return b.bitcast_convert(b.select(condition, x, y), dtype)


@pointwise(aten.where.self, by="input", keep=["condition"])
def where(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    return chosen(b, condition.to(torch.bool), x, y)


@pointwise(aten.masked_fill, by="input", keep=["mask"])
def masked_fill(b: Builder, x: Value, mask: Value, value: Value) -> Value:
    return chosen(b, mask.to(torch.bool), value, x)


@python_op(aten.equal)
def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bool(torch.eq(x, y).all())


# ---- predicates


def is_inf(b: Builder, x: Value) -> Value:
    if x.is_complex:
        return is_inf(b, b.real(x)) | is_inf(b, b.imag(x))
    return b.abs(x).eq(math.inf) if x.is_float else b.full(x.shape, False, torch.bool)


def _infinite(value: float) -> Any:
    return lambda b, x: x.eq(value) if x.is_float else b.full(x.shape, False, torch.bool)


table(
    "input",
    {
        "isnan": lambda b, x: b.is_nan(x),
        "isinf": is_inf,
        "isposinf": _infinite(math.inf),
        "isneginf": _infinite(-math.inf),
        "signbit": lambda b, x: b.sign_bit(x),
        "logical_not": lambda b, x: ~x.to(torch.bool),
        "logical_and": lambda b, x, y: x.to(torch.bool) & y.to(torch.bool),
        "logical_or": lambda b, x, y: x.to(torch.bool) | y.to(torch.bool),
        "logical_xor": lambda b, x, y: x.to(torch.bool) ^ y.to(torch.bool),
    },
)


# ---- bits


def shift_left(b: Builder, x: Value, y: Value) -> Value:
    return b.select(_shiftable(b, y), b.shift_left(x, y), 0)


def shift_right(b: Builder, x: Value, y: Value) -> Value:
    if not x.dtype.is_signed:
        return b.select(_shiftable(b, y), b.shift_right_logical(x, y), 0)
    bits = x.dtype.itemsize * 8
    return b.shift_right_arithmetic(x, b.select(_shiftable(b, y), y, bits - 1))


def _shiftable(b: Builder, y: Value) -> Value:
    return (y >= 0) & (y < y.dtype.itemsize * 8)


table(
    "output",
    {
        "bitwise_not": lambda b, x: ~x,
        "bitwise_and": lambda b, x, y: x & y,
        "bitwise_or": lambda b, x, y: x | y,
        "bitwise_xor": lambda b, x, y: x ^ y,
        "__and__": lambda b, x, y: x & y,
        "__or__": lambda b, x, y: x | y,
        "__xor__": lambda b, x, y: x ^ y,
        "bitwise_left_shift": shift_left,
        "bitwise_right_shift": shift_right,
        "__lshift__": shift_left,
        "__rshift__": shift_right,
    },
)


@pointwise(aten.gcd)
def gcd(b: Builder, x: Value, y: Value) -> Value:
    """Euclid on all elements at once, until every divisor is zero."""
    x, y = b.operands(x, y)
    if x.dtype.is_signed:
        x, y = b.abs(x), b.abs(y)

    def step(x: Value, y: Value) -> tuple[Value, Value]:
        done = y.eq(0)
        return b.select(done, x, y), b.select(done, y, b.remainder(x, b.select(done, 1, y)))

    return b.while_loop([x, y], lambda x, y: b.reduce_or(y.ne(0)), step)[0]


@pointwise(aten.lcm)
def lcm(b: Builder, x: Value, y: Value) -> Value:
    if x.dtype.itemsize < 4:  # C++ computes these in int, where they do not overflow
        x, y = x.to(torch.int32), y.to(torch.int32)
    divisor = gcd(b, x, y)
    product = b.divide(x, b.select(divisor.eq(0), 1, divisor)) * y
    return b.abs(product) if x.dtype.is_signed else product


# ---- signs and complex parts


def sign(b: Builder, x: Value) -> Value:
    if x.is_bool:
        return x
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype) if not x.is_complex else sgn(b, x)


def sgn(b: Builder, x: Value) -> Value:
    if not x.is_complex:
        return sign(b, x)
    magnitude = b.abs(x)
    zero = magnitude.eq(0)
    return b.select(zero, 0, x / b.select(zero, 1, magnitude).to(x.dtype))


def copysign(b: Builder, x: Value, y: Value) -> Value:
    magnitude = b.abs(x)
    return b.select(b.sign_bit(y), -magnitude, magnitude)


def absolute(b: Builder, x: Value) -> Value:
    return b.abs(x) if x.dtype.is_signed and not x.is_bool else x


def angle(b: Builder, x: Value) -> Value:
    if x.is_complex:
        return b.atan2(b.imag(x), b.real(x))
    dtype = x.dtype if x.is_float else b.default_dtype
    result = b.select(x < 0, b.full((), math.pi, dtype), 0)
    return b.select(b.is_nan(x), x.to(dtype), result) if x.is_float else result


def conjugate(b: Builder, x: Value) -> Value:
    return b.complex(b.real(x), -b.imag(x)) if x.is_complex else x


table(
    "output", {"sign": sign, "sgn": sgn, "copysign": copysign, "conj_physical": conjugate, "_conj_physical": conjugate}
)
table("input", {"abs": absolute, "angle": angle, "nextafter": lambda b, x, y: b.next_after(x, y)})


@lower(aten.complex)
def complex_(b: Builder, re: Value, im: Value) -> Value:
    return b.complex(re, im)


@lower(aten.polar)
def polar(b: Builder, magnitude: Value, phase: Value) -> Value:
    return b.complex(magnitude * b.cosine(phase), magnitude * b.sine(phase))


@pointwise(aten.nan_to_num)
def nan_to_num(
    b: Builder, x: Value, nan: Value | None = None, posinf: Value | None = None, neginf: Value | None = None
) -> Value:
    out = b.outputs[0]
    assert out is not None
    if not out.dtype.is_floating_point:
        return x
    limits = torch.finfo(out.dtype)
    result = b.select(x.eq(math.inf), limits.max if posinf is None else posinf, x)
    result = b.select(x.eq(-math.inf), limits.min if neginf is None else neginf, result)
    return b.select(b.is_nan(x), 0.0 if nan is None else nan, result)


# ---- scaling by powers of two


@lower(aten.frexp.Tensor)
def frexp(b: Builder, x: Value) -> tuple[Value, Value]:
    """The mantissa in [0.5, 1) and the exponent, read off the bits."""
    dtype = dtypes.opmath(x.dtype)
    x = x.to(dtype)
    integer, mantissa_bits, bias = (torch.int64, 52, 1022) if dtype == torch.float64 else (torch.int32, 23, 126)
    exponent_mask = 2 * bias + 3
    bits = b.bitcast_convert(x, integer)
    exponent = b.shift_right_logical(bits, mantissa_bits) & exponent_mask
    ones = (bits & ~(exponent_mask << mantissa_bits)) | (bias << mantissa_bits)
    special = x.eq(0) | ~b.is_finite(x)
    mantissa = b.select(special, x, b.bitcast_convert(ones, dtype))
    return mantissa, b.select(special, 0, exponent - bias).to(torch.int32)


@pointwise(aten.ldexp)
def ldexp(b: Builder, x: Value, exponent: Value) -> Value:
    return x * b.power(b.full((), 2, x.dtype), exponent)


# ---- copies and casts


@lower(
    aten._to_copy, aten.clone, aten.alias_copy, aten.detach_copy, aten.lift, aten.lift_fresh_copy, aten._lazy_clone,
    torch.ops.prims.convert_element_type.default,
)  # fmt: skip
def to_copy(b: Builder, x: Value, *_args: Any, **_: Any) -> Value:
    out = b.outputs[0]
    assert out is not None
    return x.to(out.dtype)


@lower(aten.copy.default)
def copy(b: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return b.broadcast_to(source.to(x.dtype), x.shape)


@lower(aten.fill)
def fill(b: Builder, x: Value, value: Operand) -> Value:
    return b.full(x.shape, value, x.dtype)


@lower(aten.zero)
def zero(b: Builder, x: Value) -> Value:
    return b.full(x.shape, 0, x.dtype)


@pointwise(aten.native_dropout_backward, keep=["mask"])
def native_dropout_backward(b: Builder, grad: Value, mask: Value, scale: Value) -> Value:
    return grad * mask.to(grad.dtype) * scale


@pointwise(aten._masked_scale, keep=["mask"])
def masked_scale(b: Builder, x: Value, mask: Value, scale: Value) -> Value:
    return x * mask.to(x.dtype) * scale

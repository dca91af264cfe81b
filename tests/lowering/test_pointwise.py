"""Elementwise arithmetic against CPU torch, at the values where semantics hide: zeros, infinities, NaN, extremes."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from harness import assert_same_bits, check, compare, run

aten = torch.ops.aten

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.25, 1e10, math.inf, -math.inf, math.nan]
INTS = [0, 1, -1, 2, -2, 3, 7, -7, 100, -100]


def pairs(values: Sequence[Any], dtype: torch.dtype, nonzero: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of values, as two tensors."""
    x, y = zip(*((x, y) for x, y in itertools.product(values, values) if y or not nonzero), strict=True)
    return torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)


EXACT_UNARY = [
    "abs", "ceil", "floor", "frac", "isinf", "isnan", "isneginf", "isposinf", "logical_not", "nan_to_num", "neg",
    "reciprocal", "relu", "round", "sgn", "sign", "signbit", "sqrt", "trunc",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", EXACT_UNARY)
def test_unary_is_exact(name: str, dtype: torch.dtype) -> None:
    check(getattr(aten, name), torch.tensor(EDGES, dtype=dtype), exact=True)


@pytest.mark.parametrize("name", ["abs", "bitwise_not", "ceil", "neg", "relu", "sign", "trunc"])
def test_unary_on_integers(name: str) -> None:
    check(getattr(aten, name), torch.tensor([*INTS, -(2**31)], dtype=torch.int32), exact=True)


EXACT_BINARY = [
    "add.Tensor", "div.Tensor", "eq.Tensor", "fmod.Tensor", "ge.Tensor", "gt.Tensor", "heaviside",
    "le.Tensor", "logical_and", "logical_or", "logical_xor", "lt.Tensor", "mul.Tensor", "ne.Tensor",
    "remainder.Tensor", "sub.Tensor", "copysign.Tensor",
]  # fmt: skip


def overload(name: str) -> Any:
    packet, _, last = name.partition(".")
    return getattr(getattr(aten, packet), last or "default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EXACT_BINARY)
def test_binary_is_exact(name: str, dtype: torch.dtype) -> None:
    check(overload(name), *pairs(EDGES, dtype), exact=True)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rounded_division_is_exact(mode: str, dtype: torch.dtype) -> None:
    check(aten.div.Tensor_mode, *pairs(EDGES, dtype), rounding_mode=mode, exact=True)
    x, y = torch.randn(200).to(dtype) * 50, torch.randn(200).to(dtype)
    check(aten.div.Tensor_mode, x, y, rounding_mode=mode, exact=True)


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_extremes_of_two(name: str) -> None:
    check(getattr(aten, name), *pairs(EDGES, torch.float32))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64], ids=str)
def test_integer_division(dtype: torch.dtype) -> None:
    x, y = pairs(INTS, dtype, nonzero=True)
    for mode in ("floor", "trunc"):
        check(aten.div.Tensor_mode, x, y, rounding_mode=mode, exact=True)
    for op in (aten.floor_divide.default, aten.remainder.Tensor, aten.fmod.Tensor, aten.gcd.default, aten.lcm.default):
        check(op, x, y, exact=True)


def test_integers_divide_to_float() -> None:
    check(aten.div.Tensor, *pairs(INTS, torch.int64), exact=True)
    check(aten.div.Tensor, torch.tensor([True, False]), torch.tensor([True, True]), exact=True)


def test_integers_wrap() -> None:
    big = torch.tensor([2**31 - 1, -(2**31), 46341], dtype=torch.int32)
    check(aten.add.Tensor, big, big, exact=True)
    check(aten.mul.Tensor, big, big, exact=True)
    check(aten.sub.Scalar, torch.tensor([0, 255], dtype=torch.uint8), 1, exact=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8], ids=str)
def test_shifts_past_the_width(dtype: torch.dtype) -> None:
    values = [v for v in INTS if v >= 0 or dtype.is_signed]
    x, y = pairs(values, dtype)
    check(aten.bitwise_left_shift.Tensor, x, y, exact=True)
    check(aten.bitwise_right_shift.Tensor, x, y, exact=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool], ids=str)
def test_bitwise(dtype: torch.dtype) -> None:
    x, y = pairs(INTS, dtype)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        check(getattr(aten, name).Tensor, x, y, exact=True)
    check(aten.bitwise_not, x, exact=True)


def test_promotion_of_mixed_operands() -> None:
    ints, floats = torch.arange(4), torch.randn(4)
    check(aten.add.Tensor, ints, floats, alpha=0.5)
    check(aten.mul.Scalar, ints, 2.5, exact=True)
    check(aten.mul.Tensor, floats.bfloat16(), torch.tensor(1.2345, dtype=torch.float64), exact=True)
    check(aten.lt.Scalar, ints, 1.5, exact=True)
    check(aten.lt.Scalar, torch.tensor([1.0], dtype=torch.bfloat16), 1.001, exact=True)
    check(aten.add.Tensor, torch.randn(3, 1, 4), torch.randn(2, 1), alpha=2)


def test_boolean_arithmetic() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    check(aten.add.Tensor, x, y, exact=True)
    check(aten.mul.Tensor, x, y, exact=True)


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, -2, 0, 1, 2.7])
def test_pow_by_scalar(exponent: float) -> None:
    check(aten.pow.Tensor_Scalar, torch.tensor([v for v in EDGES if v != -1.0]), exponent)
    check(aten.pow.Tensor_Scalar, torch.rand(7, dtype=torch.bfloat16), exponent)


def test_pow_of_integers() -> None:
    x, y = pairs(INTS, torch.int64)
    check(aten.pow.Tensor_Tensor, x, y, exact=True)
    check(aten.pow.Tensor_Scalar, x, 3, exact=True)
    check(aten.pow.Scalar, -2, y.abs(), exact=True)
    check(aten.pow.Tensor_Tensor, *pairs([v for v in EDGES if v], torch.float32))


def test_clamp() -> None:
    x = torch.tensor(EDGES)
    check(aten.clamp, x, -0.75, 2, exact=True)
    check(aten.clamp, x, None, 1, exact=True)
    check(aten.clamp, x, 3, 1, exact=True)
    check(aten.clamp, torch.arange(5), 0.5, 2.5, exact=True)
    check(aten.clamp.Tensor, x, torch.tensor(-1.0), torch.tensor(math.nan), exact=True)


def test_selection() -> None:
    x = torch.tensor(EDGES)
    check(aten.where.self, x > 0, x, torch.tensor(1), exact=True)
    check(aten.where.self, (x > 0).unsqueeze(1), x, torch.arange(len(EDGES)), exact=True)
    check(aten.masked_fill.Scalar, x, x > 0, -1.5, exact=True)
    check(aten.masked_fill.Tensor, x.bfloat16(), x > 0, torch.tensor(0.1), exact=True)
    check(aten.nan_to_num, x, 1.5, None, -3.0, exact=True)


def test_lerp_keeps_its_ends() -> None:
    start, end = torch.randn(5), torch.randn(5)
    for weight in (0.0, 0.3, 0.5, 0.8, 1.0):
        check(aten.lerp.Scalar, start, end, weight)
    assert torch.equal(run(aten.lerp.Scalar, start, end, 1.0), end)


def test_ternary() -> None:
    x, y, z = torch.randn(3, 4), torch.randn(4), torch.randn(3, 1)
    check(aten.addcmul, x, y, z, value=0.3)
    check(aten.addcdiv, x, y, z, value=0.3)
    check(aten.addcmul, torch.arange(4), torch.arange(4), torch.arange(4), value=2, exact=True)


def test_next_after() -> None:
    values = [v for v in EDGES if v]  # XLA flushes the denormals beside zero
    for dtype in (torch.float32, torch.bfloat16):
        check(aten.nextafter, *pairs(values, dtype), exact=True)


def test_frexp_and_ldexp() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.tensor(EDGES, dtype=dtype)
        mine, reference = run(aten.frexp.Tensor, x), torch.frexp(x)
        assert_same_bits(mine[0], reference[0])
        finite = x.isfinite()
        assert torch.equal(mine[1][finite], reference[1][finite])  # undefined elsewhere
    check(aten.ldexp.Tensor, torch.randn(5), torch.arange(5), exact=True)


def test_round_decimals() -> None:
    x = torch.tensor([1.2345, -2.5, 123.456, math.nan])
    for decimals in (0, 2, -1):
        check(aten.round.decimals, x, decimals=decimals)


COMPLEX = [complex(x, y) for x in (0.0, 1.0, -2.5) for y in (0.0, -1.0, 3.5)]


@pytest.mark.parametrize("name", ["abs", "angle", "sgn", "neg", "exp", "log", "sqrt", "tanh", "sin", "isnan"])
def test_complex_unary(name: str) -> None:
    check(getattr(aten, name), torch.tensor([c for c in COMPLEX if c or name != "log"]))


def test_complex_binary() -> None:
    x, y = pairs([c for c in COMPLEX if c], torch.complex64)
    for name in ("add.Tensor", "mul.Tensor", "div.Tensor", "eq.Tensor", "pow.Tensor_Tensor"):
        check(overload(name), x, y)
    check(aten.complex, torch.randn(3), torch.randn(3), exact=True)
    check(aten.polar, torch.rand(3), torch.randn(3))
    check(aten._conj_physical, x, exact=True)


CASTS = [torch.bool, torch.uint8, torch.int8, torch.int64, torch.bfloat16, torch.float32, torch.complex64]


@pytest.mark.parametrize("target", CASTS, ids=str)
@pytest.mark.parametrize("source", CASTS, ids=str)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    """Out of range integers wrap, also when they come from floats, as on every CPU."""
    values = [0, 1, 100, 300, 1.7, -1, -1.5, -300]
    x = torch.tensor(values, dtype=torch.float64).to(source)
    compare(run(aten._to_copy, x, dtype=target), x.to(target), exact=True)


def test_fills() -> None:
    x = torch.randn(2, 3)
    check(aten.fill.Scalar, x, 2.5, exact=True)
    check(aten.fill.Tensor, x, torch.tensor(3), exact=True)
    check(aten.copy, x, torch.arange(3), exact=True)
    check(aten.clone, x, exact=True)

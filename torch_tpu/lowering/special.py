"""Special functions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import torch

from .elementwise import pointwise, table

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten


def erf_inv(b: Builder, x: Value) -> Value:
    return b.select(b.abs(x).eq(1), x * math.inf, b.erf_inv(x))


def digamma(b: Builder, x: Value) -> Value:
    # PyTorch: -inf with the sign of zero at 0, NaN at the other poles.
    return b.select(x.eq(0), 1 / -x, b.digamma(x))


def entr(b: Builder, x: Value) -> Value:
    inside = b.select(x.eq(0), 0, b.select(x < 0, -math.inf, -x * b.log(x)))
    return b.select(b.is_nan(x), x, inside)


def _bernoulli(count: int) -> list[Fraction]:
    """B_2, B_4, ... by their recurrence."""
    numbers = [Fraction(1)]
    for n in range(1, 2 * count + 1):
        numbers.append(-sum(math.comb(n + 1, k) * numbers[k] for k in range(n)) / Fraction(n + 1))
    return numbers[2::2]


# B_2k / (2k)!
EULER_MACLAURIN = [float(value / math.factorial(2 * k)) for k, value in enumerate(_bernoulli(12), start=1)]


def zeta(b: Builder, x: Value, q: Value) -> Value:
    """Hurwitz zeta: the first terms one by one until q is past 9, the rest by Euler and Maclaurin."""
    x, q = b.operands(x, q)
    eps = torch.finfo(x.dtype).eps

    def more(i: Value, a: Value, term: Value, total: Value) -> Value:
        return ((a <= 9) | (i < 9)) & (b.abs(term) > eps * b.abs(total))

    def step(i: Value, a: Value, term: Value, total: Value) -> tuple[Value, Value, Value, Value]:
        active = more(i, a, term, total)
        a = b.select(active, a + 1, a)
        term = b.select(active, b.power(a, -x), term)
        return i + 1, a, term, b.select(active, total + term, total)

    first = b.power(q, -x)
    start = [b.full((), 0, torch.int32), q, first, first]
    _, a, term, total = b.while_loop(start, lambda *state: b.reduce_or(more(*state)), step)
    tail = term * a / (x - 1) - 0.5 * term
    factor = x * term / a
    for k, coefficient in enumerate(EULER_MACLAURIN):
        tail = tail + factor * coefficient
        factor = factor * (x + (2 * k + 1)) * (x + (2 * k + 2)) / (a * a)
    result = b.select(b.abs(term) > eps * b.abs(total), total + tail, total)
    whole = q.eq(b.floor(q))
    result = b.select((q <= 0) & x.ne(b.floor(x)), math.nan, result)
    result = b.select((q <= 0) & whole, math.inf, result)
    return b.select(x.eq(1), math.inf, b.select((x < 1) | b.is_nan(x) | b.is_nan(q), math.nan, result))


table(
    "output",
    {
        "erf": lambda b, x: b.erf(x),
        "erfc": lambda b, x: b.erfc(x),
        "erfinv": erf_inv,
        "lgamma": lambda b, x: b.lgamma(x),
        "digamma": digamma,
        "special_entr": entr,
        "special_zeta": zeta,
    },
)


@pointwise(aten.polygamma)
def polygamma(b: Builder, n: int, x: Value) -> Value:
    if n == 0:
        return digamma(b, x)
    order = b.full((), n + 1, x.dtype)
    if n == 1:  # reflected, which is more exact below one half
        low = x < 0.5
        value = zeta(b, order, b.select(low, 1 - x, x))
        sine = b.sine(math.pi * x)
        return b.select(low, math.pi**2 / (sine * sine) - value, value)
    return (-1.0) ** (n + 1) * float(math.factorial(n)) * zeta(b, order, x)


@pointwise(aten.mvlgamma)
def mvlgamma(b: Builder, x: Value, p: int) -> Value:
    total = b.full((), p * (p - 1) / 4 * math.log(math.pi), x.dtype)
    for j in range(p):
        total = total + b.lgamma(x - j / 2)
    return total

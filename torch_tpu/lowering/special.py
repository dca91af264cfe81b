"""Special functions."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch

from .chebyshev import Array, evaluate
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


@functools.cache
def _euler_maclaurin(count: int) -> tuple[float, ...]:
    """B_2k / (2k)!, by the recurrence of the Bernoulli numbers."""
    numbers = [Fraction(1)]
    for n in range(1, 2 * count + 1):
        numbers.append(-sum(math.comb(n + 1, k) * numbers[k] for k in range(n)) / Fraction(n + 1))
    return tuple(float(numbers[n] / math.factorial(n)) for n in range(2, 2 * count + 1, 2))


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
    for k, coefficient in enumerate(_euler_maclaurin(12)):
        tail = tail + factor * coefficient
        factor = factor * (x + (2 * k + 1)) * (x + (2 * k + 2)) / (a * a)
    result = b.select(b.abs(term) > eps * b.abs(total), total + tail, total)
    whole = q.eq(b.floor(q))
    result = b.select((q <= 0) & x.ne(b.floor(x)), math.nan, result)
    result = b.select((q <= 0) & whole, math.inf, result)
    return b.select(x.eq(1), math.inf, b.select((x < 1) | b.is_nan(x) | b.is_nan(q), math.nan, result))


# ---- the normal distribution


def _erfcx_values(t: Array) -> Array:
    """(1 + 2 x) exp(x x) erfc(x), of t = (x - 3) / (x + 3)"""

    def value(x: float) -> float:
        if x < 5:
            return (1 + 2 * x) * math.exp(x * x) * math.erfc(x)
        fraction = 0.0
        for k in range(60, 0, -1):  # Laplace's continued fraction
            fraction = k / 2 / (x + fraction)
        return (1 + 2 * x) / (x + fraction) / math.sqrt(math.pi)

    return np.array([value(x) for x in 3 * (1 + t) / np.maximum(1 - t, 1e-12)])


def erfcx(b: Builder, x: Value) -> Value:
    """exp(x x) erfc(x)"""
    size = b.abs(x)
    capped = b.minimum(size, 1e30)  # so that inf / inf does not arise
    value = evaluate(b, _erfcx_values, -1, 1, (capped - 3) / (capped + 3)) / (1 + 2 * size)
    return b.select(x < 0, 2 * b.exponential(x * x) - value, b.select(b.is_nan(x), x, value))


def log_ndtr(b: Builder, x: Value) -> Value:
    z = x * math.sqrt(0.5)
    low = b.log(erfcx(b, -z) / 2) - z * z
    return b.select(x < -1, low, b.log_plus_one(-b.erfc(z) / 2))


def _quantile_of_log(t: Array) -> Array:
    """The normal quantile of exp(-t t / 2), less -t, of 1 / t"""

    def value(t: float) -> float:
        x = -t
        for _ in range(60):  # Newton's method on log_ndtr
            z = -x / math.sqrt(2)
            scaled = float(_erfcx_values(np.array([(z - 3) / (z + 3)]))[0]) / (1 + 2 * z)
            x -= (math.log(scaled / 2) - z * z + t * t / 2) * scaled * math.sqrt(math.pi / 2)
        return x + t

    return np.array([value(1 / r) for r in t])


def ndtri(b: Builder, p: Value) -> Value:
    """The normal quantile: in the middle from the error function's inverse, in the tails a series in log p."""
    lower = p <= 0.5
    tail = b.select(lower, p, 1 - p)
    t = b.sqrt(-2 * b.log(b.clamp(tail, torch.finfo(p.dtype).tiny, 0.2)))
    near, far = 1 / math.sqrt(-2 * math.log(0.2)), 1 / 8
    reciprocal = 1 / t
    shift = b.select(
        t < 8,
        evaluate(b, _quantile_of_log, far, near, reciprocal),
        evaluate(b, _quantile_of_log, 1 / 40, far, reciprocal),
    )
    outside = b.select(lower, shift - t, t - shift)
    middle = math.sqrt(2) * b.erf_inv(2 * p - 1)
    value = b.select(tail > 0.2, middle, outside)
    value = b.select(p.eq(0), -math.inf, b.select(p.eq(1), math.inf, value))
    return b.select((p < 0) | (p > 1) | b.is_nan(p), math.nan, value)


# ---- incomplete gamma functions


def _gamma_density(b: Builder, a: Value, x: Value) -> Value:
    """x^a exp(-x) / Gamma(a + 1)"""
    return b.exponential(a * b.log(x) - x - b.lgamma(a + 1))


def _gamma_series(b: Builder, a: Value, x: Value, active: Value) -> Value:
    """The lower function where x is small beside a."""
    eps = torch.finfo(x.dtype).eps

    def more(i: Value, term: Value, total: Value) -> Value:
        return active & (term > eps * total) & (i < 2000)

    def step(i: Value, term: Value, total: Value) -> tuple[Value, Value, Value]:
        going = more(i, term, total)
        term = b.select(going, term * x / (a + (i + 1).to(x.dtype)), term)
        return i + 1, term, b.select(going, total + term, total)

    one = b.full(x.shape, 1, x.dtype)
    start = [b.full((), 0, torch.int32), one, one]
    total = b.while_loop(start, lambda *state: b.reduce_or(more(*state)), step)[2]
    return total * _gamma_density(b, a, x)


def _gamma_fraction(b: Builder, a: Value, x: Value, active: Value) -> Value:
    """The upper function where x is large beside a: Lentz's continued fraction."""
    eps, tiny = torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny * 1e4

    def guarded(v: Value) -> Value:
        return b.select(b.abs(v) < tiny, tiny, v)

    def more(i: Value, c: Value, d: Value, h: Value, change: Value) -> Value:
        return active & (b.abs(change - 1) > eps) & (i < 2000)

    def step(i: Value, c: Value, d: Value, h: Value, change: Value) -> tuple[Value, ...]:
        going = more(i, c, d, h, change)
        n = (i + 1).to(x.dtype)
        numerator = n * (a - n)
        denominator = x + 2 * n + 1 - a
        new_d = 1 / guarded(denominator + numerator * d)
        new_c = guarded(denominator + numerator / c)
        new_change = new_c * new_d
        pairs = [(new_c, c), (new_d, d), (h * new_change, h), (new_change, change)]
        return (i + 1, *(b.select(going, new, old) for new, old in pairs))

    first = 1 / guarded(x + 1 - a)
    big = b.full(x.shape, 1 / tiny, x.dtype)
    start = [b.full((), 0, torch.int32), big, first, first, b.full(x.shape, 2, x.dtype)]
    h = b.while_loop(start, lambda *state: b.reduce_or(more(*state)), step)[3]
    return h * a * _gamma_density(b, a, x)


def _incomplete_gamma(b: Builder, a: Value, x: Value, upper: bool) -> Value:
    a, x = b.operands(a, x)
    valid = (a > 0) & (x > 0) & b.is_finite(a) & b.is_finite(x)
    by_series = x < a + 1
    safe_a, safe_x = b.select(valid, a, 1), b.select(valid, x, 1)
    low = _gamma_series(b, safe_a, safe_x, valid & by_series)
    high = _gamma_fraction(b, safe_a, safe_x, valid & ~by_series)
    value = b.select(by_series, 1 - low, high) if upper else b.select(by_series, low, 1 - high)
    at_zero, at_infinity = (1.0, 0.0) if upper else (0.0, 1.0)
    value = b.select(x.eq(0) | a.eq(math.inf), at_zero, value)
    value = b.select(x.eq(math.inf) | a.eq(0), at_infinity, value)
    undefined = (a < 0) | (x < 0) | b.is_nan(a) | b.is_nan(x)
    undefined = undefined | (a.eq(0) & x.eq(0)) | (a.eq(math.inf) & x.eq(math.inf))
    return b.select(undefined, math.nan, value)


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
        "special_erfcx": erfcx,
        "special_log_ndtr": log_ndtr,
        "special_ndtri": ndtri,
        "igamma": lambda b, a, x: _incomplete_gamma(b, a, x, upper=False),
        "igammac": lambda b, a, x: _incomplete_gamma(b, a, x, upper=True),
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

"""Bessel and Airy functions.

Near the origin they are Chebyshev series of entire functions, far from it a series in the reciprocal times the
leading behaviour. The series are fitted to integrals that the trapezoidal rule evaluates to rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from .chebyshev import Array, Reference, evaluate
from .elementwise import table
from .registry import RuleFn

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

EULER_GAMMA = 0.5772156649015329


# ---- what the series are fitted to


def _ring(x: Array, integrand: RuleFn) -> Array:
    """The mean over a half period."""
    angles = (np.arange(4096) + 0.5) * np.pi / 4096
    mean: Array = np.mean(integrand(x[:, None], angles), axis=-1)
    return mean


def scaled_i(order: int, x: Array) -> Array:
    """exp(-x) I(x)"""
    return _ring(x, lambda x, t: np.exp(x * (np.cos(t) - 1)) * np.cos(order * t))


def j(order: int, x: Array) -> Array:
    return _ring(x, lambda x, t: np.cos(order * t - x * np.sin(t)))


def scaled_k(order: float, x: Array) -> Array:
    """exp(x) K(x)"""
    end = np.arccosh(1 + 750 / x)
    t = end[:, None] * np.linspace(0, 1, 401)
    values = np.exp(-x[:, None] * (np.cosh(t) - 1)) * np.cosh(order * t)
    values[:, 0] /= 2
    result: Array = values.sum(-1) * end / 400
    return result


def hankel(order: float, x: Array) -> np.ndarray[tuple[int], np.dtype[np.complex128]]:
    """P + iQ of H(x) = sqrt(2 / pi x) exp(i (x - order pi/2 - pi/4)) (P + iQ)"""
    power = 6 if order % 1 else 2  # makes the integrand smooth at 0
    s = np.linspace(0, 9 ** (2 / power), 2001)
    u = s**power
    weight = np.exp(-u) * power * s ** (power * (order + 0.5) - 1)
    weight[0] /= 2
    values = weight * (1 + 1j * u / (2 * x[:, None])) ** (order - 0.5)
    return values.sum(-1) * s[1] / math.gamma(order + 0.5)  # type: ignore[no-any-return]


def _power_series(z: Array, term: RuleFn) -> Array:
    total, factor = np.zeros_like(z), np.ones_like(z)
    for k in range(60):
        total = total + factor * term(k)
        factor = factor * z
    return total


def _harmonic(k: int) -> float:
    return sum(1 / i for i in range(1, k + 1))


def _y0_rest(square: Array) -> Array:
    """Y0(x) - 2/pi log(x/2) J0(x), of x squared"""
    return _power_series(-square / 4, lambda k: 2 / math.pi * (EULER_GAMMA - _harmonic(k)) / math.factorial(k) ** 2)


def _y1_rest(square: Array) -> Array:
    """(Y1(x) - 2/pi log(x/2) J1(x)) / x + 2 / (pi x x), of x squared"""

    def term(k: int) -> float:
        digammas = _harmonic(k) + _harmonic(k + 1) - 2 * EULER_GAMMA
        return -digammas / (2 * math.pi * math.factorial(k) * math.factorial(k + 1))

    return _power_series(-square / 4, term)


def _k0_rest(square: Array) -> Array:
    """K0(x) + log(x/2) I0(x), of x squared"""
    return _power_series(square / 4, lambda k: (_harmonic(k) - EULER_GAMMA) / math.factorial(k) ** 2)


def _k1_rest(square: Array) -> Array:
    """(K1(x) - log(x/2) I1(x)) x, of x squared"""

    def term(k: int) -> float:
        digammas = _harmonic(k) + _harmonic(k + 1) - 2 * EULER_GAMMA
        return -digammas / (4 * math.factorial(k) * math.factorial(k + 1))

    return 1 + square * _power_series(square / 4, term)


def _airy_series(x: Array) -> Array:
    """Ai by its two Taylor series."""
    first, second = np.ones_like(x), x.copy()
    total = first / (3 ** (2 / 3) * math.gamma(2 / 3)) - second / (3 ** (1 / 3) * math.gamma(1 / 3))
    for k in range(1, 40):
        first = first * x**3 / ((3 * k - 1) * (3 * k))
        second = second * x**3 / ((3 * k) * (3 * k + 1))
        total = total + first / (3 ** (2 / 3) * math.gamma(2 / 3)) - second / (3 ** (1 / 3) * math.gamma(1 / 3))
    return total


# Named, so that each is fitted once.
_SERIES: dict[str, Reference] = {
    "i0": lambda x: scaled_i(0, x),
    "i1": lambda x: scaled_i(1, x) / x,
    "i0_far": lambda t: scaled_i(0, 1 / t) / np.sqrt(t),
    "i1_far": lambda t: scaled_i(1, 1 / t) / np.sqrt(t),
    "k0": _k0_rest,
    "k1": _k1_rest,
    "k0_far": lambda t: scaled_k(0, 1 / t) / np.sqrt(t),
    "k1_far": lambda t: scaled_k(1, 1 / t) / np.sqrt(t),
    "j0": lambda square: j(0, np.sqrt(square)),
    "j1": lambda square: j(1, np.sqrt(square)) / np.sqrt(square),
    "y0": _y0_rest,
    "y1": _y1_rest,
    "p0": lambda t: hankel(0, 1 / np.sqrt(t)).real,
    "q0": lambda t: hankel(0, 1 / np.sqrt(t)).imag / np.sqrt(t),
    "p1": lambda t: hankel(1, 1 / np.sqrt(t)).real,
    "q1": lambda t: hankel(1, 1 / np.sqrt(t)).imag / np.sqrt(t),
    "airy": _airy_series,
    "airy_right": lambda t: scaled_k(1 / 3, 1 / t) / np.sqrt(t),
    "airy_p": lambda t: hankel(1 / 3, 1 / np.sqrt(t)).real,
    "airy_q": lambda t: hankel(1 / 3, 1 / np.sqrt(t)).imag / np.sqrt(t),
}


def _series(b: Builder, name: str, low: float, high: float, x: Value) -> Value:
    return evaluate(b, _SERIES[name], low, high, x)


# ---- modified functions


def _scaled_i(b: Builder, x: Value, order: int) -> Value:
    """exp(-|x|) I(x)"""
    size = b.abs(x)
    near = _series(b, f"i{order}", 0, 8, size)
    safe = b.maximum(size, 8)
    far = _series(b, f"i{order}_far", 0, 1 / 8, 1 / safe) / b.sqrt(safe)
    if order == 0:
        return b.select(size <= 8, near, far)
    return b.select(size <= 8, x * near, b.select(x < 0, -far, far))


def _i(order: int, scaled: bool) -> RuleFn:
    def rule(b: Builder, x: Value) -> Value:
        value = _scaled_i(b, x, order)
        return value if scaled else value * b.exponential(b.abs(x))

    return rule


def _k(order: int, scaled: bool) -> RuleFn:
    def rule(b: Builder, x: Value) -> Value:
        square = x * x
        i = _scaled_i(b, x, order) * b.exponential(x)
        rest = _series(b, f"k{order}", 0, 4, square)
        near = rest - b.log(x / 2) * i if order == 0 else rest / x + b.log(x / 2) * i
        safe = b.maximum(x, 2)
        far = _series(b, f"k{order}_far", 0, 1 / 2, 1 / safe) / b.sqrt(safe)
        value = b.select(
            x <= 2, near * b.exponential(x) if scaled else near, far if scaled else far * b.exponential(-x)
        )
        return b.select(x.eq(0), math.inf, b.select(x < 0, math.nan, value))

    return rule


# ---- functions of the first and second kind


def _far(b: Builder, x: Value, order: int) -> tuple[Value, Value]:
    """J and Y beyond 8."""
    reciprocal = 1 / x
    square = reciprocal * reciprocal
    p = _series(b, f"p{order}", 0, 1 / 64, square)
    q = _series(b, f"q{order}", 0, 1 / 64, square) * reciprocal
    phase = x - (order / 2 + 0.25) * math.pi
    cosine, sine = b.cosine(phase), b.sine(phase)
    scale = b.sqrt((2 / math.pi) * reciprocal)
    return scale * (p * cosine - q * sine), scale * (p * sine + q * cosine)


def _near_j(b: Builder, x: Value, order: int) -> Value:
    value = _series(b, f"j{order}", 0, 64, x * x)
    return value if order == 0 else value * x


def _j(order: int) -> RuleFn:
    def rule(b: Builder, x: Value) -> Value:
        size = b.abs(x)
        far = _far(b, b.maximum(size, 8), order)[0]
        if order == 1:
            far = b.select(x < 0, -far, far)
        return b.select(size <= 8, _near_j(b, x, order), far)

    return rule


def _y(order: int) -> RuleFn:
    def rule(b: Builder, x: Value) -> Value:
        rest = _series(b, f"y{order}", 0, 64, x * x)
        near = (2 / math.pi) * b.log(x / 2) * _near_j(b, x, order)
        near = near + rest if order == 0 else near + x * rest - (2 / math.pi) / x
        value = b.select(x <= 8, near, _far(b, b.maximum(x, 8), order)[1])
        return b.select(x.eq(0), -math.inf, b.select(x < 0, math.nan, value))

    return rule


def spherical_j0(b: Builder, x: Value) -> Value:
    value = b.select(x.eq(0), 1, b.sine(x) / x)
    return b.select(b.abs(x).eq(math.inf), 0, value)


def airy_ai(b: Builder, x: Value) -> Value:
    edge = 2.5
    size = b.maximum(b.abs(x), edge)
    zeta = (2 / 3) * size * b.sqrt(size)
    limit = 1 / (2 / 3 * edge**1.5)
    reciprocal = 1 / zeta
    root = b.sqrt(b.sqrt(size))
    # Ai(x) = sqrt(x / 3) / pi K_1/3(zeta)
    k = _series(b, "airy_right", 0, limit, reciprocal)
    right = k * b.exponential(-zeta) / (math.pi * math.sqrt(2) * root)
    square = reciprocal * reciprocal
    p = _series(b, "airy_p", 0, limit**2, square)
    q = _series(b, "airy_q", 0, limit**2, square) * reciprocal
    phase = zeta - math.pi / 4
    left = (p * b.cosine(phase) - q * b.sine(phase)) / (math.sqrt(math.pi) * root)
    middle = _series(b, "airy", -edge, edge, x)
    value = b.select(x > edge, right, b.select(x < -edge, left, middle))
    return b.select(b.abs(x).eq(math.inf), math.nan, value)


table(
    "output",
    {
        "i0": _i(0, scaled=False),
        "special_i0e": _i(0, scaled=True),
        "special_i1": _i(1, scaled=False),
        "special_i1e": _i(1, scaled=True),
        "special_modified_bessel_i0": _i(0, scaled=False),
        "special_modified_bessel_i1": _i(1, scaled=False),
        "special_modified_bessel_k0": _k(0, scaled=False),
        "special_modified_bessel_k1": _k(1, scaled=False),
        "special_scaled_modified_bessel_k0": _k(0, scaled=True),
        "special_scaled_modified_bessel_k1": _k(1, scaled=True),
        "special_bessel_j0": _j(0),
        "special_bessel_j1": _j(1),
        "special_bessel_y0": _y(0),
        "special_bessel_y1": _y(1),
        "special_spherical_bessel_j0": spherical_j0,
        "special_airy_ai": airy_ai,
    },
)

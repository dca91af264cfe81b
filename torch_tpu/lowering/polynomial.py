"""Orthogonal polynomials of degrees that are themselves tensors, by their three-term recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from .elementwise import table
from .registry import RuleFn

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

# (x, previous, current, k) -> the polynomial of degree k + 1
Next = Callable[["Value", "Value", "Value", "Value"], "Value"]


def _polynomial(first: Callable[[Value], Value], following: Next) -> RuleFn:
    """first(x) is the polynomial of degree 1; that of degree 0 is 1, of negative degrees 0."""

    def rule(b: Builder, x: Value, n: Value) -> Value:
        x, n = b.operands(x, n)
        # An endless recurrence would only overflow; PyTorch stops at a like place.
        degree = b.minimum(n, 1024).to(torch.int32)

        def step(k: Value, previous: Value, current: Value) -> tuple[Value, Value, Value]:
            newer = following(x, previous, current, k.to(x.dtype))
            going = k < degree
            return k + 1, b.select(going, current, previous), b.select(going, newer, current)

        start = [b.full((), 1, torch.int32), b.full(x.shape, 1, x.dtype), first(x)]
        result = b.while_loop(start, lambda k, *_: k < b.reduce_max(degree), step)[2]
        return b.select(degree < 0, 0, b.select(degree.eq(0), 1, result))

    return rule


def _chebyshev(first: Callable[[Value], Value]) -> RuleFn:
    return _polynomial(first, lambda x, previous, current, k: 2 * x * current - previous)


def _shifted(rule: RuleFn) -> RuleFn:
    return lambda b, x, n: rule(b, 2 * x - 1, n)


_t = _chebyshev(lambda x: x)
_u = _chebyshev(lambda x: 2 * x)
_v = _chebyshev(lambda x: 2 * x - 1)
_w = _chebyshev(lambda x: 2 * x + 1)

table(
    "output",
    {
        "special_chebyshev_polynomial_t": _t,
        "special_chebyshev_polynomial_u": _u,
        "special_chebyshev_polynomial_v": _v,
        "special_chebyshev_polynomial_w": _w,
        "special_shifted_chebyshev_polynomial_t": _shifted(_t),
        "special_shifted_chebyshev_polynomial_u": _shifted(_u),
        "special_shifted_chebyshev_polynomial_v": _shifted(_v),
        "special_shifted_chebyshev_polynomial_w": _shifted(_w),
        "special_hermite_polynomial_h": _polynomial(
            lambda x: 2 * x, lambda x, previous, current, k: 2 * (x * current - k * previous)
        ),
        "special_hermite_polynomial_he": _polynomial(
            lambda x: x, lambda x, previous, current, k: x * current - k * previous
        ),
        "special_laguerre_polynomial_l": _polynomial(
            lambda x: 1 - x,
            lambda x, previous, current, k: ((2 * k + 1 - x) * current - k * previous) / (k + 1),
        ),
        "special_legendre_polynomial_p": _polynomial(
            lambda x: x, lambda x, previous, current, k: ((2 * k + 1) * x * current - k * previous) / (k + 1)
        ),
    },
)

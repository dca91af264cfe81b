"""Functions of one variable as Chebyshev series, fitted when a rule first needs them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .builder import Builder, Value

Array = np.ndarray[Any, np.dtype[np.float64]]
Reference = Callable[[Array], Array]


@functools.cache
def fit(function: Reference, low: float, high: float, degree: int = 40) -> tuple[float, ...]:
    """Coefficients of the series of `function` on [low, high], without the tail that is below rounding."""
    angles = np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)
    values = function((np.cos(angles) + 1) / 2 * (high - low) + low)
    order = np.arange(degree + 1)
    coefficients = 2 / (degree + 1) * np.cos(np.outer(order, angles)) @ values
    coefficients[0] /= 2
    needed = np.nonzero(np.abs(coefficients) > 1e-16 * np.abs(coefficients).max())[0]
    return tuple(coefficients[: needed[-1] + 1].tolist())


def evaluate(b: Builder, function: Reference, low: float, high: float, x: Value, degree: int = 40) -> Value:
    """The series of `function` on [low, high] at x, by Clenshaw's recurrence; outside it is nonsense."""
    t = (x - low) * (4 / (high - low)) - 2  # twice the place in [-1, 1]
    first, *rest = fit(function, low, high, degree)
    newer, older = b.full((), 0, x.dtype), b.full((), 0, x.dtype)
    for coefficient in reversed(rest):
        newer, older = t * newer - older + coefficient, newer
    return 0.5 * t * newer - older + first

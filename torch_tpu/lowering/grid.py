"""Sampling images at the points of a grid, and the gradients.

Along each dim a point reads one, two or four places ("taps"), each with a weight; a result is the sum over all
combinations of taps.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .indices import gather_dims, index_dtype, scatter_dims
from .registry import decompose, lower

if TYPE_CHECKING:
    from .builder import Builder, Value

aten = torch.ops.aten

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


@dataclass(frozen=True)
class Tap:
    """A place along one dim, as a float, with its weight and the weight's derivative by the coordinate."""

    place: Value
    weight: Value | float
    slope: Value | float


def _unnormalized(x: Value, size: int, align_corners: bool) -> tuple[Value, float]:
    """A coordinate in -1..1 as one in places, and the derivative."""
    if align_corners:
        return (x + 1.0) / 2.0 * float(size - 1), (size - 1) / 2
    return ((x + 1.0) * float(size) - 1.0) / 2.0, size / 2


def _clipped(b: Builder, x: Value, size: int) -> tuple[Value, Value]:
    """Into the image, NaN to its start, and the derivative."""
    inside = (x > 0.0) & (x < float(size - 1))
    x = b.select(b.is_nan(x), 0.0, b.clamp(x, 0.0, float(size - 1)))
    return x, inside.to(x.dtype)


def _reflected(b: Builder, x: Value, size: int, align_corners: bool) -> tuple[Value, Value]:
    """Mirrored at the edges, which are the centers or the outsides of the outermost places, and the derivative."""
    low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
    if span == 0:
        zero = b.full(x.shape, 0, x.dtype)
        return zero, zero
    x = x - low
    sign = b.select(x < 0.0, -1.0, b.full((), 1, x.dtype))
    x = b.abs(x)
    extra = b.remainder(x, span)
    even = b.remainder(b.floor(b.divide(x, b.full(x.shape, span, x.dtype))), 2.0).eq(0.0)
    return b.select(even, extra + low, span - extra + low), b.select(even, sign, -sign)


def _padded(b: Builder, x: Value, size: int, padding: int, align_corners: bool) -> tuple[Value, Value]:
    """A coordinate where the padding puts it, and the derivative."""
    slope = b.full(x.shape, 1, x.dtype)
    if padding == REFLECTION:
        x, slope = _reflected(b, x, size, align_corners)
    if padding != ZEROS:
        x, inside = _clipped(b, x, size)
        slope = slope * inside
    return x, slope


def _cubic(b: Builder, t: Value) -> list[tuple[Value, Value]]:
    """The weights of the places at -1, 0, 1 and 2 for a point at t, and their derivatives."""
    a = -0.75

    def near(x: Value) -> tuple[Value, Value]:
        return ((a + 2) * x - (a + 3)) * x * x + 1.0, (3 * (a + 2) * x - 2 * (a + 3)) * x

    def far(x: Value) -> tuple[Value, Value]:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a, (3 * a * x - 10 * a) * x + 8 * a

    def mirrored(pair: tuple[Value, Value]) -> tuple[Value, Value]:
        return pair[0], -pair[1]

    return [far(t + 1.0), near(t), mirrored(near(1.0 - t)), mirrored(far(2.0 - t))]


def _taps(b: Builder, x: Value, size: int, mode: int, padding: int, align_corners: bool) -> tuple[list[Tap], Value]:
    """The taps of a grid coordinate along a dim, and the derivative of the coordinate by the grid's."""
    x, scale = _unnormalized(x, size, align_corners)
    slope = b.full(x.shape, scale, x.dtype)
    if mode == BICUBIC:
        first = b.floor(x)
        places = [_padded(b, first + float(j - 1), size, padding, align_corners)[0] for j in range(4)]
        return [Tap(p, *w) for p, w in zip(places, _cubic(b, x - first))], slope
    x, inner = _padded(b, x, size, padding, align_corners)
    if mode == NEAREST:
        return [Tap(b.round_nearest_even(x), 1.0, 0.0)], slope * inner
    first = b.floor(x)
    second = first + 1.0
    return [Tap(first, second - x, -1.0), Tap(second, x - first, 1.0)], slope * inner


def _product(b: Builder, factors: Sequence[Value | float], like: Value) -> Value:
    return functools.reduce(lambda total, f: total * f, factors, b.full(like.shape, 1, like.dtype))


class _Sampler:
    """The points of a grid over images: x (N, C, *size), grid (N, *out, n)."""

    def __init__(self, b: Builder, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> None:
        self.b = b
        self.dtype = dtypes.opmath(x.dtype)
        self.n = x.ndim - 2
        self.out = grid.shape[1:-1]
        self.size = x.shape[2:]
        batch, channels = x.shape[:2]
        self.images = b.reshape(x.to(self.dtype), (batch, channels, math.prod(self.size)))
        points = b.reshape(grid.to(self.dtype), (batch, math.prod(self.out), self.n))
        self.taps, self.slopes = [], []
        for i, size in enumerate(self.size):
            last = self.n - 1 - i  # a grid holds x before y before z
            along = b.reshape(b.slice_dim(points, 2, last, last + 1), points.shape[:2])
            taps, slope = _taps(b, along, size, mode, padding, align_corners)
            self.taps.append(taps)
            self.slopes.append(slope)

    def places(self, taps: Sequence[Tap]) -> tuple[list[Value], Value]:
        """The index vectors of a combination of taps, (N, points) each, and whether it lies in the image."""
        b = self.b
        inside: Value | None = None
        for tap, size in zip(taps, self.size):
            here = (tap.place >= 0.0) & (tap.place <= float(size - 1))
            inside = here if inside is None else inside & here
        assert inside is not None
        dtype = index_dtype(math.prod(self.size))
        flat = b.full(inside.shape, 0, dtype)
        for tap, size in zip(taps, self.size):
            flat = flat * size + b.select(inside, tap.place, 0.0).to(dtype)
        return [b.iota(flat.shape, 0, dtype), flat], inside

    def values(self, places: list[Value]) -> Value:
        """(N, points, C)"""
        return gather_dims(self.b, self.images, [0, 2], places, 0)

    def sample(self) -> Value:
        b = self.b
        total: Value | None = None
        for taps in itertools.product(*self.taps):
            places, inside = self.places(taps)
            weight = b.select(inside, _product(b, [t.weight for t in taps], taps[0].place), 0.0)
            part = self.values(places) * b.unsqueeze(weight, -1)
            total = part if total is None else total + part
        assert total is not None
        out = b.transpose(total, [0, 2, 1])
        return b.reshape(out, (*out.shape[:2], *self.out))

    def backward(self, g: Value, mode: int, by_image: bool) -> list[Value | None]:
        b = self.b
        g = b.reshape(g.to(self.dtype), (*g.shape[:2], math.prod(self.out)))
        g = b.transpose(g, [0, 2, 1])
        images = b.full(self.images.shape, 0, self.dtype)
        slopes = [b.full(g.shape[:2], 0, self.dtype)] * self.n
        for taps in itertools.product(*self.taps):
            places, inside = self.places(taps)
            if by_image:
                weight = b.select(inside, _product(b, [t.weight for t in taps], taps[0].place), 0.0)
                images = scatter_dims(b, images, [0, 2], places, g * b.unsqueeze(weight, -1), 0, b.add)
            if mode == NEAREST:
                continue
            change = b.select(inside, b.reduce_sum(self.values(places) * g, [2]), 0.0)
            for i in range(self.n):
                factors = [t.slope if j == i else t.weight for j, t in enumerate(taps)]
                slopes[i] = slopes[i] + _product(b, factors, change) * change
        slopes = [b.unsqueeze(s * along, -1) for s, along in zip(slopes, self.slopes)]
        by_grid = b.reshape(b.concatenate(slopes[::-1], 2), (g.shape[0], *self.out, self.n))
        return [b.reshape(images, (*images.shape[:2], *self.size)) if by_image else None, by_grid]


@lower(aten.grid_sampler_2d, aten.grid_sampler_3d)
def grid_sampler(b: Builder, x: Value, grid: Value, *how: Any) -> Value:
    return _Sampler(b, x, grid, *how).sample()


@lower(aten.grid_sampler_2d_backward, aten.grid_sampler_3d_backward)
def grid_sampler_backward(
    b: Builder,
    g: Value,
    x: Value,
    grid: Value,
    mode: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    return _Sampler(b, x, grid, mode, padding, align_corners).backward(g, mode, output_mask[0])


decompose(aten.affine_grid_generator)

"""Resizing images (upsample_*, antialiased or not) and the gradients, one dim after the other.

Each result along a dim is a weighted sum of a few places, which are known when the program is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import dtypes
from .indices import gather_dims
from .registry import lower
from .windows import Windows, fold, repeat

if TYPE_CHECKING:
    from .builder import Builder, Dims, Value

aten = torch.ops.aten

SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
MAX_TAPS = 4

Array = np.ndarray[Any, Any]


# ---- nearest


def _nearest(n: int, size: int, count: int, scale: float | None, exact: bool) -> Windows:
    """One place for each result, with PyTorch's float32 arithmetic."""
    if n == 2 and not exact and size and count in (size, 2 * size):
        scale = None  # as PyTorch's kernel for images
    step = np.float32(1.0 / scale) if scale else np.float32(size) / np.float32(count)
    places = (np.arange(count) + (0.5 if exact else 0.0)) * np.float64(step)
    starts = np.minimum(np.floor(places.astype(np.float32)).astype(int), size - 1)
    return Windows.detect(size, starts.tolist(), [1] * count)


def _take(b: Builder, x: Value, dim: int, windows: Windows) -> Value:
    times = windows.count // max(1, windows.size)
    if windows.count == times * windows.size and windows.starts == tuple(o // times for o in range(windows.count)):
        return repeat(b, x, dim, times) if times > 1 else x
    (x,) = fold(b, [x], dim, windows, [0], b.add)
    return x


def _upsample_nearest(exact: bool, n: int) -> None:
    name = f"_upsample_nearest_exact{n}d" if exact else f"upsample_nearest{n}d"

    @lower(getattr(aten, name).default, static=SCALES[n])
    def forward(b: Builder, x: Value, output_size: Dims, *scales: float | None, **named: float | None) -> Value:
        for i, scale in _with_scales(n, scales, named):
            dim = x.ndim - n + i
            x = _take(b, x, dim, _nearest(n, x.shape[dim], output_size[i], scale, exact))
        return x

    @lower(getattr(aten, name + "_backward").default, static=SCALES[n])
    def backward(
        b: Builder, g: Value, output_size: Dims, input_size: Dims, *scales: float | None, **named: float | None
    ) -> Value:
        g = g.to(dtypes.opmath(g.dtype))
        for i, scale in _with_scales(n, scales, named):
            windows = _nearest(n, input_size[2 + i], output_size[i], scale, exact)
            (g,) = fold(b, [g], g.ndim - n + i, windows.inverse(), [0], b.add)
        return g


def _with_scales(
    n: int, scales: Sequence[float | None], named: Mapping[str, float | None]
) -> list[tuple[int, float | None]]:
    """The spatial dims, last first, each with its scale."""
    given = [*scales, *(named.get(name) for name in SCALES[n][len(scales) :])]
    return [(i, given[i]) for i in reversed(range(n))]


# ---- weighted sums


@dataclass(frozen=True)
class Resampling:
    """Result o is the sum over j of weights[o, j] times place places[o, j] of a dim of this size."""

    size: int
    places: Array
    weights: Array

    def transposed(self) -> Resampling:
        count, taps = self.places.shape
        of_place: list[dict[int, float]] = [{} for _ in range(self.size)]
        for result, place, weight in zip(np.repeat(np.arange(count), taps), self.places.flat, self.weights.flat):
            of_place[place][result] = of_place[place].get(result, 0.0) + weight
        longest = max(map(len, of_place), default=0)
        places, weights = np.zeros((self.size, longest), int), np.zeros((self.size, longest))
        for place, results in enumerate(of_place):
            places[place, : len(results)] = list(results.keys())
            weights[place, : len(results)] = list(results.values())
        return Resampling(count, places, weights)

    def apply(self, b: Builder, x: Value, dim: int) -> Value:
        if b.platform == "tpu":
            return self._product(b, x, dim)
        count, taps = self.places.shape
        if taps > MAX_TAPS:
            x = gather_dims(b, x, [dim], [b.constant(self.places, torch.int32)], dim)
            return b.reduce_sum(
                x * b.broadcast_in_dim(b.constant(self.weights, x.dtype), x.shape, [dim, dim + 1]), [dim + 1]
            )
        total: Value | None = None
        for places, weights in zip(self.places.T, self.weights.T):
            part = gather_dims(b, x, [dim], [b.constant(places, torch.int32)], dim)
            part = part * b.broadcast_in_dim(b.constant(weights, x.dtype), part.shape, [dim])
            total = part if total is None else total + part
        return b.full([count if d == dim else s for d, s in enumerate(x.shape)], 0, x.dtype) if total is None else total

    def in_fixed_point(self) -> Resampling:
        """With weights of 16 bits, as PyTorch has them for bytes: one for each place, also at the edges."""
        merged, bits = self.transposed().transposed(), 0
        while bits < 22 and int(0.5 + merged.weights.max(initial=0) * 2 ** (bits + 1)) < 2**15:
            bits += 1
        scaled = merged.weights * 2**bits
        return Resampling(self.size, merged.places, np.trunc(scaled + np.copysign(0.5, scaled)) / 2**bits)

    def _product(self, b: Builder, x: Value, dim: int) -> Value:
        """As a matrix product: a TPU gathers slowly and multiplies fast."""
        count, taps = self.places.shape
        matrix = b.full((self.size, count), 0, x.dtype)
        rows = b.iota(matrix.shape, 0, torch.int32)
        for j in range(taps):
            here = rows.eq(b.constant(self.places[:, j], torch.int32))
            matrix = matrix + b.select(here, b.constant(self.weights[:, j], x.dtype), 0.0)
        x = b.dot_general(x, matrix, contract=([dim], [0]))
        last = x.ndim - 1
        return b.transpose(x, [*range(dim), last, *range(dim, last)])


Filter = Callable[[Array], Array]


def _linear(x: Array) -> Array:
    weights: Array = np.clip(1 - np.abs(x), 0, None)
    return weights


def _cubic(a: float) -> Filter:
    def weight(x: Array) -> Array:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return weight


def _lanczos(x: Array) -> Array:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _step(size: int, count: int, align_corners: bool, scale: float | None, kind: Any) -> Any:
    """How far results lie apart in the input, in the arithmetic of `kind` (float32 or float64)."""
    if align_corners:
        return kind(size - 1) / kind(count - 1) if count > 1 else kind(0)
    return kind(1.0 / scale) if scale else kind(size) / kind(count)


def _interpolation(order: int) -> Callable[..., Resampling]:
    """Linear (2 places) or cubic (4 places) interpolation."""

    def make(size: int, count: int, align_corners: bool, scale: float | None, kind: Any) -> Resampling:
        step = _step(size, count, align_corners, scale, kind)
        results = np.arange(count, dtype=kind)
        at = results * step if align_corners else step * (results + kind(0.5)) - kind(0.5)
        if order == 2:
            at = np.clip(at, 0, None)
            if size == count:
                at = results
        first = np.floor(at)
        t = at - first
        if order == 2:
            first = np.minimum(first, size - 1)
            t = np.clip(at - first, 0, 1)
            weights = np.stack([1 - t, t], 1)
        else:
            weights = np.stack([_cubic(-0.75)(t + kind(1 - j)) for j in range(4)], 1)
        places = first.astype(int)[:, None] + np.arange(order) - (order // 2 - 1)
        return Resampling(size, np.clip(places, 0, size - 1), weights)

    return make


def _antialiased(weight: Filter, support: int) -> Callable[..., Resampling]:
    """A filter as wide as the step between results, its weights summing to one."""

    def make(size: int, count: int, align_corners: bool, scale: float | None, kind: Any) -> Resampling:
        step = _step(size, count, align_corners, scale, kind)
        width = max(step, kind(1))
        center = step * (np.arange(count, dtype=kind) + kind(0.5))
        reach = kind(support) * width
        low = np.maximum((center - reach + kind(0.5)).astype(int), 0)
        lengths = np.minimum((center + reach + kind(0.5)).astype(int), size) - low
        offsets = np.arange(max(1, lengths.max(initial=1)))
        places = low[:, None] + offsets
        weights = weight((places - center[:, None] + kind(0.5)) / width)
        weights = np.where(offsets < lengths[:, None], weights, 0)
        total = weights.sum(1, keepdims=True)
        return Resampling(size, np.minimum(places, size - 1), weights / np.where(total == 0, 1, total))

    return make


def _kind(dtype: torch.dtype) -> Any:
    return np.float64 if dtype == torch.float64 else np.float32


def _upsample(name: str, n: int, make: Callable[..., Resampling]) -> None:
    @lower(getattr(aten, name).default, static=SCALES[n])
    def forward(
        b: Builder, x: Value, output_size: Dims, align_corners: bool, *scales: float | None, **named: float | None
    ) -> Value:
        dtype = torch.float32 if x.is_integral else dtypes.opmath(x.dtype)
        out = x.to(dtype)
        for i, scale in _with_scales(n, scales, named):
            dim = x.ndim - n + i
            resampling = make(x.shape[dim], output_size[i], align_corners, scale, _kind(dtype))
            if x.is_integral:  # bytes, and PyTorch keeps them bytes in between
                out = b.clamp(b.floor(resampling.in_fixed_point().apply(b, out, dim) + 0.5), 0.0, 255.0)
            else:
                out = resampling.apply(b, out, dim)
        return out

    @lower(getattr(aten, name + "_backward").default, static=SCALES[n])
    def backward(
        b: Builder,
        g: Value,
        output_size: Dims,
        input_size: Dims,
        align_corners: bool,
        *scales: float | None,
        **named: float | None,
    ) -> Value:
        g = g.to(dtypes.opmath(g.dtype))
        for i, scale in _with_scales(n, scales, named):
            resampling = make(input_size[2 + i], output_size[i], align_corners, scale, _kind(g.dtype))
            g = resampling.transposed().apply(b, g, g.ndim - n + i)
        return g


for _n in (1, 2, 3):
    _upsample_nearest(False, _n)
    _upsample_nearest(True, _n)

for _name, _n, _make in (
    ("upsample_linear1d", 1, _interpolation(2)),
    ("upsample_bilinear2d", 2, _interpolation(2)),
    ("upsample_trilinear3d", 3, _interpolation(2)),
    ("upsample_bicubic2d", 2, _interpolation(4)),
    ("_upsample_bilinear2d_aa", 2, _antialiased(_linear, 1)),
    ("_upsample_bicubic2d_aa", 2, _antialiased(_cubic(-0.5), 2)),
    ("_upsample_lanczos2d_aa", 2, _antialiased(_lanczos, 3)),
):
    _upsample(_name, _n, _make)

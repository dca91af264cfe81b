"""Windows along one dim: which places of the dim each result reads. Pooling and resizing work a dim at a time.

Measured on XLA:CPU (32x64x32x32, window 3): folding strided slices, dim after dim, takes 1 to 3 ms where a
reduce_window of value and index takes 38 ms, and constant gathers are as fast as slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .indices import gather_dims

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

MAX_SLICES = 16

Combine = Callable[..., "Value | Sequence[Value]"]


@dataclass(frozen=True)
class Windows:
    """Result o reads the places starts[o] + j * step, j < lengths[o], of a dim of this size, where they exist.

    stride: the distance of the starts, if it and the lengths are the same for all.
    """

    size: int
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    step: int = 1
    stride: int | None = None

    @staticmethod
    def regular(size: int, count: int, kernel: int, stride: int, low: int, dilation: int = 1) -> Windows:
        """count windows of a kernel that starts `low` places before the dim."""
        starts = tuple(o * stride - low for o in range(count))
        return Windows(size, starts, (kernel,) * count, dilation, stride)

    @staticmethod
    def adaptive(size: int, count: int) -> Windows:
        """count windows that cover the dim as evenly as they can."""
        starts = tuple(o * size // count for o in range(count))
        lengths = tuple(-(-(o + 1) * size // count) - s for o, s in enumerate(starts))
        return Windows(size, starts, lengths, stride=None if count == 0 or size % count else size // count)

    @property
    def count(self) -> int:
        return len(self.starts)

    def inverse(self) -> Windows:
        """For each place of the dim the windows that read it; for starts and ends that never go back, step 1."""
        starts, lengths = [], []
        first = last = 0
        for place in range(self.size):
            while first < self.count and self.starts[first] + self.lengths[first] <= place:
                first += 1
            last = max(first, last)
            while last < self.count and self.starts[last] <= place:
                last += 1
            starts.append(first)
            lengths.append(last - first)
        return Windows(self.count, tuple(starts), tuple(lengths))

    def places(self) -> tuple[list[list[int]], list[list[bool]]]:
        """For each window its places, zero where there is none, and whether there is one."""
        longest = range(max(self.lengths, default=0))
        reads = [[s + j * self.step if j < n else -1 for j in longest] for s, n in zip(self.starts, self.lengths)]
        exists = [[0 <= p < self.size for p in row] for row in reads]
        return [[p if e else 0 for p, e in zip(*rows)] for rows in zip(reads, exists)], exists


def fold(
    b: Builder, xs: Sequence[Value], dim: int, windows: Windows, fills: Sequence[Operand], combine: Combine
) -> list[Value]:
    """Reduce the windows of each x along dim; combine(*accumulators, *elements), in any order; fills change nothing."""
    if windows.stride is not None and windows.count > 0 and windows.lengths[0] <= MAX_SLICES:
        return _fold_slices(b, xs, dim, windows, windows.stride, fills, combine)
    places, exists = windows.places()
    length = max(windows.lengths, default=0)
    if not length:
        shape = [windows.count if d == dim else s for d, s in enumerate(xs[0].shape)]
        return [b.full(shape, fill, x.dtype) for x, fill in zip(xs, fills)]
    views = [_spread(b, x, dim, places) for x in xs]
    if not all(map(all, exists)):
        mask = b.broadcast_in_dim(b.constant(exists, torch.bool), views[0].shape, [dim, dim + 1])
        views = [b.select(mask, v, b.scalar(fill, v.dtype)) for v, fill in zip(views, fills)]
    return b.reduce(views, fills, [dim + 1], combine)


def _spread(b: Builder, x: Value, dim: int, places: list[list[int]]) -> Value:
    """x with dim replaced by two: the window and the place in it."""
    rows, length = len(places), len(places[0])
    if [p for row in places for p in row] == list(range(rows * length)):
        x = b.slice_dim(x, dim, 0, rows * length)
        return b.reshape(x, (*x.shape[:dim], rows, length, *x.shape[dim + 1 :]))
    return gather_dims(b, x, [dim], [b.constant(places, torch.int32)], dim)


def _fold_slices(
    b: Builder,
    xs: Sequence[Value],
    dim: int,
    windows: Windows,
    stride: int,
    fills: Sequence[Operand],
    combine: Combine,
) -> list[Value]:
    kernel, low = windows.lengths[0], -windows.starts[0]
    span = (windows.count - 1) * stride + 1
    high = span + (kernel - 1) * windows.step - windows.size - low
    edges = [[e if d == dim else 0 for d in range(xs[0].ndim)] for e in (low, high)]
    padded = [b.pad(x, fill, *edges) if any(map(any, edges)) else x for x, fill in zip(xs, fills)]

    def at(place: int) -> list[Value]:
        start = place * windows.step
        return [b.slice_dim(x, dim, start, start + span, stride) for x in padded]

    total = at(0)
    for place in range(1, kernel):
        out = combine(*total, *at(place))
        total = list(out) if isinstance(out, Sequence) else [out]
    return total


def unfold_sum(b: Builder, g: Value, dim: int, windows: Windows) -> Value:
    """The transpose of summing windows: each place of the dim gets the sum of what read it."""
    stride = windows.stride
    if stride is None:
        return fold(b, [g], dim, windows.inverse(), [0], b.add)[0]
    kernel, low = windows.lengths[0], -windows.starts[0]
    if kernel == stride and windows.step == 1:
        g = repeat(b, g, dim, kernel)
    else:
        apart = [stride - 1 if d == dim else 0 for d in range(g.ndim)]
        none = [0] * g.ndim
        g = b.pad(g, 0, none, none, apart) if stride > 1 else g
        reach = (kernel - 1) * windows.step
        spread = Windows.regular(g.shape[dim], g.shape[dim] + reach, kernel, 1, reach, windows.step)
        g = fold(b, [g], dim, spread, [0], b.add)[0]
    lows, highs = ([e if d == dim else 0 for d in range(g.ndim)] for e in (-low, windows.size + low - g.shape[dim]))
    return b.pad(g, 0, lows, highs) if any((*lows, *highs)) else g


def repeat(b: Builder, x: Value, dim: int, times: int) -> Value:
    """Each place of the dim `times` times in a row."""
    shape = (*x.shape[: dim + 1], times, *x.shape[dim + 1 :])
    wide = b.broadcast_in_dim(x, shape, [d for d in range(x.ndim + 1) if d != dim + 1])
    return b.reshape(wide, tuple(s * times if d == dim else s for d, s in enumerate(x.shape)))

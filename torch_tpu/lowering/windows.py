"""Windows along one dim: which places of the dim each result reads. Pooling and resizing work a dim at a time.

Measured on XLA:CPU (32x64x32x32, window 3): folding strided slices, dim after dim, takes 1 to 3 ms where a
reduce_window of value and index takes 38 ms, and constant gathers are as fast as slices.
"""

from __future__ import annotations

import itertools
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

    @staticmethod
    def detect(size: int, starts: Sequence[int], lengths: Sequence[int]) -> Windows:
        """Windows that may turn out to be regular."""
        steps = {b - a for a, b in itertools.pairwise(starts)} or {1}
        stride = steps.pop() if len(steps) == 1 and len(set(lengths)) == 1 else None
        return Windows(size, tuple(starts), tuple(lengths), stride=stride if stride and stride > 0 else None)

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
        return Windows.detect(self.count, starts, lengths)

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
    if windows.stride is not None and windows.count > 0 and 0 < windows.lengths[0] <= MAX_SLICES:
        total, *rest = zip(*(_slices(b, x, dim, windows, fill) for x, fill in zip(xs, fills)))
        for elements in rest:
            out = combine(*total, *elements)
            total = tuple(out) if isinstance(out, Sequence) else (out,)
        return list(total)
    return b.reduce([spread(b, x, dim, windows, fill) for x, fill in zip(xs, fills)], fills, [dim + 1], combine)


def spread(b: Builder, x: Value, dim: int, windows: Windows, fill: Operand) -> Value:
    """x with dim replaced by two: the window, and the place in it; fill where there is no such place."""
    rows, kernel = windows.count, max(windows.lengths, default=0)
    lead, trail = x.shape[:dim], x.shape[dim + 1 :]
    if not rows or not kernel:
        return b.full((*lead, rows, kernel, *trail), fill, x.dtype)
    if windows.stride is not None:
        if kernel == windows.stride and windows.step == 1:
            x = placed(b, x, dim, windows.starts[0], rows * kernel, fill)
            return b.reshape(x, (*lead, rows, kernel, *trail))
        if kernel <= MAX_SLICES:
            return b.concatenate([b.unsqueeze(s, dim + 1) for s in _slices(b, x, dim, windows, fill)], dim + 1)
    places, exists = windows.places()
    x = gather_dims(b, x, [dim], [b.constant(places, torch.int32)], dim)
    if all(map(all, exists)):
        return x
    mask = b.broadcast_in_dim(b.constant(exists, torch.bool), x.shape, [dim, dim + 1])
    return b.select(mask, x, b.scalar(fill, x.dtype))


def placed(b: Builder, x: Value, dim: int, start: int, size: int, fill: Operand = 0, apart: int = 1) -> Value:
    """The places from start on, size of them, of a dim whose elements lie `apart`; fill outside and between."""
    low, high, interior = ([0] * x.ndim for _ in range(3))
    low[dim], interior[dim] = -start, apart - 1
    high[dim] = size + start - (x.shape[dim] - 1) * apart - 1 if x.shape[dim] else size + start
    return b.pad(x, fill, low, high, interior) if any((*low, *high, *interior)) else x


def _slices(b: Builder, x: Value, dim: int, windows: Windows, fill: Operand) -> list[Value]:
    """For each place in the windows, which are regular, the elements that stand there."""
    kernel, stride = windows.lengths[0], windows.stride or 1
    span = (windows.count - 1) * stride + 1
    x = placed(b, x, dim, windows.starts[0], span + (kernel - 1) * windows.step, fill)
    starts = [place * windows.step for place in range(kernel)]
    return [b.slice_dim(x, dim, start, start + span, stride) for start in starts]


def unfold_sum(b: Builder, g: Value, dim: int, windows: Windows) -> Value:
    """The transpose of summing windows: each place of the dim gets the sum of what read it."""
    stride = windows.stride
    if stride is None or not windows.count:
        return fold(b, [g], dim, windows.inverse(), [0], b.add)[0]
    kernel = windows.lengths[0]
    if kernel == stride and windows.step == 1:
        return placed(b, repeat(b, g, dim, kernel), dim, -windows.starts[0], windows.size)
    reach = (kernel - 1) * windows.step
    g = placed(b, g, dim, 0, (windows.count - 1) * stride + 1, apart=stride)
    # Place p is read by the windows that start at p, p - step ... p - reach.
    readers = Windows.regular(g.shape[dim], windows.size, kernel, 1, reach + windows.starts[0], windows.step)
    return fold(b, [g], dim, readers, [0], b.add)[0]


def overlap(b: Builder, g: Value, dim: int, windows: Windows) -> Value:
    """The transpose of spread, for regular windows: the sum of the elements that stand at each place of the dim."""
    kernel, stride = g.shape[dim + 1], windows.stride or 1
    lead, trail = g.shape[:dim], g.shape[dim + 2 :]
    total = b.full((*lead, windows.size, *trail), 0, g.dtype)
    if not windows.count:
        return total
    if kernel == stride and windows.step == 1:
        g = b.reshape(g, (*lead, windows.count * kernel, *trail))
        return placed(b, g, dim, -windows.starts[0], windows.size)
    for place in range(kernel):
        part = b.reshape(b.slice_dim(g, dim + 1, place, place + 1), (*lead, windows.count, *trail))
        start = windows.starts[0] + place * windows.step
        total = total + placed(b, part, dim, -start, windows.size, apart=stride)
    return total


def repeat(b: Builder, x: Value, dim: int, times: int) -> Value:
    """Each place of the dim `times` times in a row."""
    shape = (*x.shape[: dim + 1], times, *x.shape[dim + 1 :])
    wide = b.broadcast_in_dim(x, shape, [d for d in range(x.ndim + 1) if d != dim + 1])
    return b.reshape(wide, tuple(s * times if d == dim else s for d, s in enumerate(x.shape)))

"""Counter-based random numbers: Philox4x32-10 on integer ops, one 128-bit block an element.

Element i of an op's result (row-major) draws from the block with counter (offset + i, plane) under the key `seed`,
where (seed, offset) is the generator's state and plane counts an op's further draws for the same element. Nothing
else enters: the stream is the same in every mode, on every platform, and for every tensor that begins alike. One
block an element is elementwise and fuses, which measured faster than sharing its four words among four elements.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from . import dtypes

if TYPE_CHECKING:
    from .builder import Builder, Dims, Value

U32, U64 = torch.uint32, torch.uint64
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _u32(b: Builder, value: int) -> Value:
    return b.full((), value & 0xFFFFFFFF, U32)


def shift_right(b: Builder, x: Value, bits: int) -> Value:
    """Logical shift by a constant."""
    return b.shift_right_logical(x, b.full((), bits, x.dtype))


def multiply_wide(b: Builder, x: Value, factor: int) -> tuple[Value, Value]:
    """The high and low words of u32 x times a constant."""
    product = x.to(U64) * b.full((), factor, U64)
    return shift_right(b, product, 32).to(U32), product.to(U32)


def philox(b: Builder, counter: tuple[Value, ...], key: tuple[Value, Value]) -> list[Value]:
    """The block of four random words for four counter words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = multiply_wide(b, c0, _MULTIPLIERS[0])
        high1, low1 = multiply_wide(b, c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _u32(b, _WEYL[0]), k1 + _u32(b, _WEYL[1])
    return [c0, c1, c2, c3]


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    return x.to(U32), shift_right(b, x, 32).to(U32)


def linear_index(b: Builder, shape: Dims, dtype: torch.dtype) -> Value:
    """Each element's row-major position, without reshaping (which would move data on a TPU)."""
    sizes = b.true_sizes if len(b.true_sizes) == len(shape) else shape  # padding does not count as positions
    index = b.full(shape, 0, dtype)
    stride = b.full((), 1, dtype)
    for d in reversed(range(len(shape))):
        if shape[d] > 1:
            index = index + b.iota(shape, d, dtype) * stride
        stride = stride * b.scalar(sizes[d], dtype)
    return index


def words(b: Builder, rng: Value, shape: Dims, plane: int | Value = 0) -> list[Value]:
    """Four random u32 for each element."""
    seed, offset = (b.reshape(b.slice_dim(rng, 0, i, i + 1), ()) for i in range(2))
    if math.prod(shape) > 0xFFFFFFFF:
        low, high = _split(b, linear_index(b, shape, U64) + offset)
    else:
        base_low, base_high = _split(b, offset)
        low = linear_index(b, shape, U32) + base_low
        high = base_high + (low < base_low).to(U32)
    plane = plane if not isinstance(plane, int) else _u32(b, plane)
    c2 = b.broadcast_to(plane.to(U32), tuple(shape))
    return philox(b, (low, high, c2, b.full(shape, 0, U32)), _split(b, seed))


def plane_words(b: Builder, rng: Value, shape: Dims) -> list[Value]:
    """Four random u32 for each element of an intermediate, which may have more elements than the generator advances by.

    Each element has a plane of its own, all at the same offset, apart from those that `words` uses.
    """
    seed, offset = (b.reshape(b.slice_dim(rng, 0, i, i + 1), ()) for i in range(2))
    low, high = (b.broadcast_to(x, shape) for x in _split(b, offset))
    return philox(b, (low, high, linear_index(b, shape, U32), b.full(shape, 1, U32)), _split(b, seed))


def join(b: Builder, high: Value, low: Value) -> Value:
    """A u64 of two words."""
    return b.shift_left(high.to(U64), b.full((), 32, U64)) | low.to(U64)


# The bits of the significand, the hidden one too.
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def unit(b: Builder, word: Value, next_word: Value, dtype: torch.dtype) -> Value:
    """Uniform on [0, 1), a multiple of 2^-digits of the dtype, in its opmath (next_word: for float64)."""
    digits = DIGITS.get(dtype, 24)
    if dtype == torch.float64:
        bits = shift_right(b, join(b, word, next_word), 64 - digits).to(torch.int64)
    else:
        bits = shift_right(b, word, 32 - digits).to(torch.int32)
    return bits.to(dtypes.opmath(dtype)) * 2.0**-digits


def positive_unit(b: Builder, word: Value, next_word: Value, dtype: torch.dtype) -> Value:
    """Uniform on (0, 1], fine near zero so that logarithms of it have their tails, in the dtype's opmath."""
    if dtype == torch.float64:
        return (shift_right(b, join(b, word, next_word), 11).to(torch.int64).to(dtype) + 0.5) * 2.0**-53
    return word.to(torch.float32) * 2.0**-32 + 2.0**-33


def cos_turns(b: Builder, t: Value) -> Value:
    """cos(2 pi t) for t in [0, 1): the quadrants exactly, then a short series, where cosine() reduces any angle."""
    y = (b.abs(t - 0.5) - 0.25) * (2 * math.pi)
    square = y * y
    terms = 11 if t.dtype == torch.float64 else 6
    series = b.full(t.shape, 0, t.dtype)
    for k in reversed(range(terms)):
        series = series * square + (-1) ** k / math.factorial(2 * k + 1)
    return series * y


def normals(b: Builder, block: list[Value], dtype: torch.dtype) -> tuple[Value, Value]:
    """Two independent standard normals from one block (Box-Muller), in the dtype's opmath."""
    w0, w1, w2, w3 = block
    if dtype != torch.float64:
        w2, w3 = w1, w1
    radius = b.sqrt(b.log(positive_unit(b, w0, w1, dtype)) * -2.0)
    opmath = dtypes.opmath(dtype)
    angle = unit(b, w2, w3, opmath)
    quarter = b.select(angle < 0.25, angle + 0.75, angle - 0.25)  # sin is cos a quarter turn later
    return radius * cos_turns(b, angle), radius * cos_turns(b, quarter)

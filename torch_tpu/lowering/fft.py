"""Fourier transforms through stablehlo.fft, which takes any size; TPUs have complex64 alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from . import dtypes
from .registry import lower

if TYPE_CHECKING:
    from .builder import Builder, Dims, Value

aten = torch.ops.aten

MAX_RANK = 3  # of one stablehlo.fft


def _transform(b: Builder, x: Value, kind: str, dims: Dims, lengths: Dims) -> Value:
    """One transform over dims, the last of which changes size if the transform is from or to real numbers."""
    rest = [d for d in range(x.ndim) if d not in dims]
    order = [*rest, *dims]
    x = b.fft(b.transpose(x, order), kind, lengths)
    return b.transpose(x, [order.index(d) for d in range(x.ndim)])


def _complex(b: Builder, x: Value, dims: Dims, forward: bool) -> Value:
    for start in range(0, len(dims), MAX_RANK):
        group = dims[start : start + MAX_RANK]
        x = _transform(b, x, "FFT" if forward else "IFFT", group, [x.shape[d] for d in group])
    return x


def _scaled(b: Builder, x: Value, size: int, normalization: int, forward: bool) -> Value:
    """PyTorch's normalization (0 none, 1 by the root of the size, 2 by the size); XLA divides inverses by the size."""
    divisor = (1.0, math.sqrt(size), float(size))[normalization]
    factor = (1.0 if forward else size) / divisor if size else 1.0
    if factor == 1.0:
        return x
    if x.is_complex:
        return b.complex(b.real(x) * factor, b.imag(x) * factor)
    return x * factor


@lower(aten._fft_c2c)
def c2c(b: Builder, x: Value, dim: Dims, normalization: int, forward: bool) -> Value:
    size = math.prod(x.shape[d] for d in dim)
    return _scaled(b, _complex(b, x, dim, forward), size, normalization, forward)


@lower(aten._fft_r2c)
def r2c(b: Builder, x: Value, dim: Dims, normalization: int, onesided: bool) -> Value:
    size = math.prod(x.shape[d] for d in dim)
    if onesided:
        half = _transform(b, x, "RFFT", dim[-1:], [x.shape[dim[-1]]])
        out = _complex(b, half, dim[:-1], True)
    else:
        out = _complex(b, x.to(dtypes.complex_of(x.dtype)), dim, True)
    return _scaled(b, out, size, normalization, True)


@lower(aten._fft_c2r)
def c2r(b: Builder, x: Value, dim: Dims, normalization: int, last_dim_size: int) -> Value:
    size = math.prod(x.shape[d] for d in dim[:-1]) * last_dim_size
    x = b.slice_dim(_complex(b, x, dim[:-1], False), dim[-1], 0, last_dim_size // 2 + 1)
    out = _transform(b, x, "IRFFT", dim[-1:], [last_dim_size])
    return _scaled(b, out, size, normalization, False)

"""Reads and writes of strided views, as boxes of a reshaped flat array where they are boxes, element by element
where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from . import dtypes

if TYPE_CHECKING:
    from .builder import Builder, TensorSpec, Value


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _physical_order(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dims from the outermost in memory to the innermost; dims of size 1 lie anywhere."""
    return sorted(range(len(sizes)), key=lambda d: (sizes[d] == 1, -strides[d], d))


def _flatten(b: Builder, x: Value, strides: Sequence[int]) -> Value:
    """The elements in memory order."""
    return b.reshape(b.transpose(x, _physical_order(x.shape, strides)), (x.numel,))


def _unflatten(b: Builder, flat: Value, sizes: Sequence[int], strides: Sequence[int]) -> Value:
    order = _physical_order(sizes, strides)
    inverse = [order.index(d) for d in range(len(order))]
    return b.transpose(b.reshape(flat, [sizes[d] for d in order]), inverse)


def reinterpret(b: Builder, flat: Value, dtype: torch.dtype) -> Value:
    """The bytes of a 1-d value as another dtype, as Tensor.view(dtype)."""
    if flat.dtype == dtype:
        return flat
    if flat.dtype.is_complex:
        parts = [b.reshape(part, (flat.numel, 1)) for part in (b.real(flat), b.imag(flat))]
        return reinterpret(b, b.reshape(b.concatenate(parts, 1), (2 * flat.numel,)), dtype)
    if dtype.is_complex:
        part = dtypes.real(dtype)
        pairs = b.reshape(reinterpret(b, flat, part), (flat.numel * flat.dtype.itemsize // dtype.itemsize, 2))
        return b.complex(*(b.reshape(b.slice_dim(pairs, 1, i, i + 1), (pairs.shape[0],)) for i in range(2)))
    if flat.dtype == torch.bool:
        return reinterpret(b, flat.to(torch.uint8), dtype)
    if dtype == torch.bool:
        return reinterpret(b, flat, torch.uint8).ne(0)
    if flat.dtype.itemsize < dtype.itemsize:
        ratio = dtype.itemsize // flat.dtype.itemsize
        return b.bitcast_convert(b.reshape(flat, (flat.numel // ratio, ratio)), dtype)
    wide = b.bitcast_convert(flat, dtype)
    return b.reshape(wide, (wide.numel,))


def _starts(b: Builder, starts: list[Value], count: int) -> list[Value]:
    return starts or [b.full((), 0, torch.int32)] * count


def _addresses(b: Builder, sizes: Sequence[int], strides: Sequence[int], starts: list[Value]) -> Value:
    """The flat position of each element of a view, as a vector of int32 (of int64 beyond 2**31 elements)."""
    reach = sum((size - 1) * stride for size, stride in zip(sizes, strides))
    dtype = torch.int32 if reach < 2**31 else torch.int64
    address = b.broadcast_to(_starts(b, starts, 1)[0].to(dtype), sizes)
    for d, stride in enumerate(strides):
        if sizes[d] > 1 and stride:
            address = address + b.iota(sizes, d, dtype) * stride
    return b.reshape(address, (address.numel,))


def _take(b: Builder, flat: Value, addresses: Value) -> Value:
    return b.gather(
        flat,
        b.reshape(addresses, (addresses.numel, 1)),
        (1,),
        offset_dims=(),
        collapsed_dims=(0,),
        start_index_map=(0,),
        index_vector_dim=1,
    )


def _put(b: Builder, flat: Value, addresses: Value, update: Value) -> Value:
    return b.scatter(
        [flat],
        b.reshape(addresses, (addresses.numel, 1)),
        [update],
        lambda old, new: new,
        update_window_dims=(),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        unique_indices=True,
    )[0]


def _word(b: Builder, dtype: torch.dtype) -> torch.dtype:
    """What elements are moved as: XLA:CPU moves two-byte floats through float32, which changes the bits of a NaN."""
    return torch.uint16 if b.platform == "cpu" and dtype in (torch.bfloat16, torch.float16) else dtype


def _as(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    return x if x.dtype == dtype else b.bitcast_convert(x, dtype)


def strided_read(
    b: Builder,
    spec: TensorSpec,
    base: Value,
    starts: list[Value],
    base_strides: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    radix: Sequence[int],
    extent: Sequence[int],
    order: Sequence[int],
    gather: bool,
) -> Value:
    """The elements of a view, dense. See StridedPlan in csrc/trace/strided.h for radix, extent and order."""
    flat = reinterpret(b, _flatten(b, base, base_strides), _word(b, spec.dtype))
    if gather:
        return _as(b, b.reshape(_take(b, flat, _addresses(b, sizes, strides, starts)), sizes), spec.dtype)
    box = b.reshape(_padded(b, flat, _product(radix)), radix)
    if starts:
        box = b.dynamic_slice(box, starts, extent)
    elif tuple(extent) != tuple(radix):
        box = b.slice(box, [0] * len(radix), extent)
    box = b.reshape(box, [sizes[d] for d in order])
    dims = sorted(order)
    view = b.transpose(box, [list(order).index(d) for d in dims])
    return _as(b, b.broadcast_in_dim(view, sizes, dims), spec.dtype)


def strided_write(
    b: Builder,
    spec: TensorSpec,
    base: Value,
    update: Value,
    starts: list[Value],
    base_strides: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    radix: Sequence[int],
    extent: Sequence[int],
    order: Sequence[int],
    gather: bool,
) -> Value:
    """The base with the elements of a view replaced; what the view addresses twice gets the same value twice."""
    once = [1 if stride == 0 else size for size, stride in zip(sizes, strides)]
    update = b.slice(update, [0] * len(sizes), once)
    sizes = once
    word = _word(b, update.dtype)
    update, flat = _as(b, update, word), reinterpret(b, _flatten(b, base, base_strides), word)
    if gather:
        written = _put(b, flat, _addresses(b, sizes, strides, starts), b.reshape(update, (update.numel,)))
    else:
        dims = sorted(order)
        moving = b.reshape(update, [sizes[d] for d in dims])
        box = b.reshape(b.transpose(moving, [dims.index(d) for d in order]), extent)
        whole = b.reshape(_padded(b, flat, _product(radix)), radix)
        updated = b.dynamic_update_slice(whole, box, _starts(b, starts, len(radix)))
        written = b.reshape(updated, (updated.numel,))
        if written.numel != flat.numel:
            written = b.slice(written, [0], [flat.numel])
    return _unflatten(b, reinterpret(b, written, base.dtype), base.shape, base_strides)


def _padded(b: Builder, flat: Value, count: int) -> Value:
    if count == flat.numel:
        return flat
    if count < flat.numel:  # a storage that is larger than what the view's strides reach
        return b.slice(flat, [0], [count])
    return b.pad(flat, 0, [0], [count - flat.numel])


def convert(b: Builder, spec: TensorSpec, x: Value) -> Value:
    """Tensor.to(dtype)."""
    return b.convert(x, spec.dtype)


def zeros(b: Builder, spec: TensorSpec) -> Value:
    """What a storage that was never written reads as."""
    return b.full(spec.shape, 0, spec.dtype)


def resize(b: Builder, spec: TensorSpec, base: Value, base_strides: Sequence[int]) -> Value:
    """A storage's elements after UntypedStorage.resize_: the new ones are zero."""
    return _padded(b, _flatten(b, base, base_strides), spec.shape[0])


RULES: dict[str, Callable[..., Value]] = {
    "torch_tpu::strided_read": strided_read,
    "torch_tpu::strided_write": strided_write,
    "torch_tpu::convert": convert,
    "torch_tpu::zeros": zeros,
    "torch_tpu::resize": resize,
}

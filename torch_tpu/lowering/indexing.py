"""Reading and writing through index tensors: index, gather, scatter, take, put and the index_* ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .indices import (
    Combine,
    accumulate,
    as_index,
    at_least_1d,
    gather_dims,
    index_dtype,
    put_along,
    scatter_dims,
    take_along,
)
from .registry import LoweringError, lower, python_call
from .scan import scan

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten
MASKS = (torch.bool, torch.uint8)


# ---- advanced indexing


def _place(indices: Sequence[Any | None]) -> int:
    """Where the dims of the indices stand in the result: in place if they are side by side, else in front."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    return dims[0] if dims and dims[-1] - dims[0] == len(dims) - 1 else 0


def _index_vectors(b: Builder, x: Value, indices: Sequence[Value | None]) -> tuple[list[int], list[Value], int]:
    """The indexed dims, their broadcast indices, and where these stand in the result."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    if any(i.dtype in MASKS for i in given):
        raise LoweringError("an index by mask has a data-dependent shape")
    vectors = b.broadcast(*(as_index(b, i, x.shape[d], wrap=True) for d, i in zip(dims, given)))
    return dims, vectors, _place(indices)


@lower(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    if all(i is None for i in indices):
        return x
    return gather_dims(b, x, *_index_vectors(b, x, indices))


@lower(aten.index_put, aten._unsafe_index_put, aten._index_put_impl)
def index_put(
    b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, unsafe: bool = False
) -> Value:
    given = [i for i in indices if i is not None]
    values = values.to(x.dtype)
    if not given:
        return x + values if accumulate else b.broadcast_to(values, x.shape)
    if len(given) == 1 and given[0].dtype in MASKS:
        return _put_masked(b, x, list(indices).index(given[0]), given[0].to(torch.bool), values, accumulate)
    dims, vectors, at = _index_vectors(b, x, indices)
    shape = [s for d, s in enumerate(x.shape) if d not in dims]
    shape[at:at] = vectors[0].shape
    return _scatter(
        b, x, values, accumulate, lambda x, u, c: scatter_dims(b, x, dims, vectors, b.broadcast_to(u, shape), at, c)
    )


def _scatter(
    b: Builder, x: Value, values: Value, add: bool, scatter: Callable[[Value, Value, Combine], Value]
) -> Value:
    """Scatter values into x, replacing, or adding at the precision PyTorch computes in."""
    if not add:
        return scatter(x, values, lambda old, new: new)
    return accumulate(b, x, lambda x: scatter(x, values.to(x.dtype), b.add))


def _put_masked(b: Builder, x: Value, dim: int, mask: Value, values: Value, accumulate: bool) -> Value:
    """x[mask] = values without reading how many there are: the k-th true place takes the k-th value."""
    rest = x.ndim - dim - mask.ndim
    before, after = x.shape[:dim], x.shape[dim + mask.ndim :]
    if not mask.ndim or (values.ndim > rest and values.shape[-rest - 1] != 1):
        count = values.shape[values.ndim - rest - 1] if values.ndim > rest else 1
        values = b.broadcast_to(values, (*before, count, *after))
        positions = mask_positions(b, b.reshape(mask, (mask.numel,)))
        values = gather_dims(b, values, [dim], [positions], dim)
        values = b.reshape(values, x.shape)
    elif values.ndim > rest:  # one value for all places: give the masked dims size one
        values = b.reshape(values, (*values.shape[: -rest - 1], *[1] * mask.ndim, *values.shape[values.ndim - rest :]))
    if accumulate:
        values = x + values
    return b.select(b.broadcast_in_dim(mask, x.shape, range(dim, dim + mask.ndim)), values, x)


def mask_positions(b: Builder, mask: Value) -> Value:
    """For each element of a 1-D mask, how many true ones come before it."""
    counts = mask.to(index_dtype(mask.numel))
    return scan(b, counts, 0, 0, b.add) - counts


_INDEX_DTYPES = {torch.int64, torch.int32, torch.uint8, torch.bool}


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in MASKS


def _expand_masks(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Masks as the indices of their true elements."""
    expanded: list[torch.Tensor | None] = []
    for i in indices:
        expanded += i.nonzero().unbind(1) if i is not None and _is_mask(i) else [i]
    return expanded


def _check(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor | None = None) -> None:
    """Raise what PyTorch raises for shapes that do not fit: its meta kernels check too little."""
    if any(i is not None and i.dtype not in _INDEX_DTYPES for i in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    dims: list[tuple[int, ...] | None] = []  # of x: the shape of what indexes it
    for position, index in enumerate(indices):
        if index is None or not _is_mask(index):
            dims.append(None if index is None else tuple(index.shape))
            continue
        for dim, size in enumerate(index.shape, start=len(dims)):
            if dim < x.ndim and size != x.shape[dim]:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {position} does not match the shape of the"
                    f" indexed tensor {list(x.shape)} at index {dim}"
                )
        dims += [()] * index.ndim  # how many are true is not known here
    if len(dims) > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim} (got {len(dims)})")
    given = [d for d in dims if d is not None]
    try:
        shape = tuple(torch.broadcast_shapes(*given))  # type: ignore[no-untyped-call]
    except RuntimeError:
        text = ", ".join(str(list(d)) for d in given)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {text}"
        ) from None
    if values is None or any(_is_mask(i) for i in indices):
        return
    rest = [size for size, dim in zip(x.shape, [*dims, *[None] * x.ndim]) if dim is None]
    at = _place(dims)
    rest[at:at] = shape
    if values.ndim > len(rest) or any(v not in (1, r) for v, r in zip(reversed(values.shape), reversed(rest))):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of"
            f" shape {rest}"
        )


def _reads_masks(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> bool:
    _check(x, indices)
    return any(_is_mask(i) for i in indices)


def _put_reads_masks(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, *_: bool) -> bool:
    """One mask alone needs no count, unless there must be as many values as true places."""
    _check(x, indices, values)
    given = [i for i in indices if i is not None]
    masks = [i for i in given if _is_mask(i)]
    if not masks or len(given) > 1:
        return bool(masks)
    dim, rest = indices.index(masks[0]), x.ndim - masks[0].ndim
    behind = rest - dim  # dims of a value behind the one that counts the true places
    return values.ndim > behind and values.shape[-behind - 1] != 1 and values.ndim <= rest + 1


@python_call(aten.index.Tensor, when=_reads_masks)
def index_masked(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    return aten.index.Tensor(x, _expand_masks(indices))


@python_call(aten.index_put_.default, aten._index_put_impl_.default, when=_put_reads_masks)
def index_put_masked(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False, *_: bool
) -> Any:
    return aten.index_put_(x, _expand_masks(indices), values, accumulate)


@python_call(aten.index_put.default, when=_put_reads_masks)
def index_put_masked_copy(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> Any:
    return aten.index_put(x, _expand_masks(indices), values, accumulate)


# ---- along one dim


@lower(aten.index_select)
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    if not x.ndim:
        return x
    dim %= x.ndim
    return gather_dims(b, x, [dim], [as_index(b, at_least_1d(b, index), x.shape[dim])], dim)


@lower(aten.gather)
def gather(b: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    shape = index.shape
    x, index = at_least_1d(b, x), at_least_1d(b, index)
    dim %= x.ndim
    return b.reshape(take_along(b, x, as_index(b, index, x.shape[dim]), dim), shape)


def _along(b: Builder, x: Value, dim: int, index: Value, updates: Value, combine: Combine) -> Value:
    """Scatter with torch.scatter's arguments; everything may be 0-d."""
    shape = x.shape
    x, index, updates = at_least_1d(b, x), at_least_1d(b, index), at_least_1d(b, updates)
    dim %= x.ndim
    if 0 in index.shape:
        return b.reshape(x, shape)
    return b.reshape(put_along(b, x, as_index(b, index, x.shape[dim]), updates, dim, combine), shape)


def _rows(b: Builder, x: Value, dim: int, index: Value, source: Value, combine: Combine) -> Value:
    """Scatter whole slices along dim with index_add's arguments; everything may be 0-d."""
    shape = x.shape
    x, index = at_least_1d(b, x), at_least_1d(b, index)
    dim %= x.ndim
    source = b.reshape(source, (*x.shape[:dim], index.numel, *x.shape[dim + 1 :]))
    index = as_index(b, index, x.shape[dim])
    return b.reshape(scatter_dims(b, x, [dim], [index], source, dim, combine), shape)


@lower(aten.scatter.src)
def scatter_src(b: Builder, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _along(b, x, dim, index, src, lambda old, new: new)


@lower(aten.scatter.value)
def scatter_value(b: Builder, x: Value, dim: int, index: Value, value: Operand) -> Value:
    return scatter_src(b, x, dim, index, b.full(index.shape, value, x.dtype))


@lower(aten.scatter_add)
def scatter_add(b: Builder, x: Value, dim: int, index: Value, src: Value) -> Value:
    return accumulate(b, x, lambda x: _along(b, x, dim, index, src.to(x.dtype), b.add))


@lower(aten.scatter.reduce)
def scatter_with(b: Builder, x: Value, dim: int, index: Value, src: Value, *, reduce: str) -> Value:
    combine = {"add": b.add, "multiply": b.multiply}[reduce]
    return accumulate(b, x, lambda x: _along(b, x, dim, index, src.to(x.dtype), combine))


@lower(aten.scatter.value_reduce)
def scatter_value_with(b: Builder, x: Value, dim: int, index: Value, value: Operand, *, reduce: str) -> Value:
    return scatter_with(b, x, dim, index, b.full(index.shape, value, x.dtype), reduce=reduce)


@lower(aten.index_add)
def index_add(b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Operand = 1) -> Value:
    # PyTorch multiplies in the tensor's own dtype, then accumulates.
    scaled = source * b.scalar(alpha, source.dtype)
    return accumulate(b, x, lambda x: _rows(b, x, dim, index, scaled.to(x.dtype), b.add))


@lower(aten.index_copy)
def index_copy(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    if index.numel == 1 and x.ndim:
        dim %= x.ndim
        zero = b.full((), 0, torch.int32)
        start = b.reshape(as_index(b, index, x.shape[dim]), ())
        source = b.reshape(source, [1 if d == dim else s for d, s in enumerate(x.shape)])
        # One slice, as a decoding step writes into its cache: updated in place where a scatter may copy.
        return b.dynamic_update_slice(x, source, [start if d == dim else zero.to(start.dtype) for d in range(x.ndim)])
    return _rows(b, x, dim, index, source, lambda old, new: new)


@lower(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, x: Value, dim: int, index: Value, value: Operand) -> Value:
    shape = x.shape
    x = at_least_1d(b, x)
    dim %= x.ndim
    index = as_index(b, at_least_1d(b, index), x.shape[dim], wrap=True)
    nowhere = b.full((x.shape[dim],), False, torch.bool)
    hit = scatter_dims(b, nowhere, [0], [index], b.full(index.shape, True, torch.bool), 0, lambda old, new: new)
    filled = b.select(b.broadcast_in_dim(hit, x.shape, [dim]), b.scalar(value, x.dtype), x)
    return b.reshape(filled, shape)


# ---- reductions by index


def _reduce_into(
    b: Builder,
    x: Value,
    source: Value,
    reduce: str,
    include_self: bool,
    scatter: Callable[[Value, Value, Combine], Value],
) -> Value:
    """Reduce the source's elements that go to each place; places that none goes to keep x."""
    dtype = dtypes.opmath(x.dtype)
    wide, source = x.to(dtype), source.to(dtype)
    combines: dict[str, tuple[Combine, Any]] = {
        "sum": (b.add, 0),
        "mean": (b.add, 0),
        "prod": (b.multiply, 1),
        "amax": (b.maximum, dtypes.lowest(dtype) if not dtype.is_complex else 0),
        "amin": (b.minimum, dtypes.highest(dtype) if not dtype.is_complex else 0),
    }
    combine, neutral = combines[reduce]
    count_dtype = dtype if dtype.is_floating_point or dtype.is_complex else torch.int64
    if include_self and reduce != "mean":
        return scatter(wide, source, combine).to(x.dtype)
    counts = scatter(b.full(x.shape, 0, count_dtype), b.full(source.shape, 1, count_dtype), b.add)
    start = wide if include_self else b.full(x.shape, neutral, dtype)
    result = scatter(start, source, combine)
    if reduce == "mean":
        divisor = counts + 1 if include_self else b.select(counts.eq(0), 1, counts)
        result = _mean(b, result, divisor)
    return b.select(counts.eq(0), wide, result).to(x.dtype)


def _mean(b: Builder, total: Value, count: Value) -> Value:
    if not total.is_integral:
        return b.divide(total, count)
    total = total.to(torch.int64)
    quotient = b.divide(total, count)
    return b.select(b.remainder(total, count) < 0, quotient - 1, quotient)


@lower(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder, x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True
) -> Value:
    src = b.slice(at_least_1d(b, src), [0] * max(src.ndim, 1), index.shape or (1,))
    return _reduce_into(b, x, src, reduce, include_self, lambda x, src, combine: _along(b, x, dim, index, src, combine))


@lower(aten.index_reduce)
def index_reduce(
    b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    return _reduce_into(
        b, x, source, reduce, include_self, lambda x, source, combine: _rows(b, x, dim, index, source, combine)
    )


# ---- as if flat


@lower(aten.take)
def take(b: Builder, x: Value, index: Value) -> Value:
    flat = b.reshape(x, (x.numel,))
    return gather_dims(b, flat, [0], [as_index(b, index, x.numel, wrap=True)], 0)


@lower(aten.put)
def put(b: Builder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    flat, count = b.reshape(x, (x.numel,)), index.numel
    index = b.reshape(as_index(b, index, x.numel, wrap=True), (count,))
    out = _scatter(
        b, flat, b.reshape(source, (count,)), accumulate, lambda x, u, c: scatter_dims(b, x, [0], [index], u, 0, c)
    )
    return b.reshape(out, x.shape)


@lower(aten.as_strided_scatter)
def as_strided_scatter(
    b: Builder, x: Value, src: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    """Of a dense x."""
    dtype = index_dtype(x.numel)
    places = b.full(size, storage_offset or 0, dtype)
    for dim, step in enumerate(stride):
        places = places + b.iota(size, dim, dtype) * step
    flat, src = b.reshape(x, (x.numel,)), b.broadcast_to(src.to(x.dtype), size)
    return b.reshape(scatter_dims(b, flat, [0], [places], src, 0, lambda old, new: new), x.shape)


@lower(aten.masked_scatter)
def masked_scatter(b: Builder, x: Value, mask: Value, source: Value) -> Value:
    x, mask = b.broadcast(x, mask.to(torch.bool))
    if not source.numel or not x.numel:
        return x
    positions = mask_positions(b, b.reshape(mask, (mask.numel,)))
    values = gather_dims(b, b.reshape(source, (source.numel,)), [0], [positions], 0)
    return b.select(mask, b.reshape(values, x.shape), x)


@lower(aten.masked_scatter_backward)
def masked_scatter_backward(b: Builder, grad: Value, mask: Value, sizes: Sequence[int]) -> Value:
    """The gradients at the mask's true places, packed into the source's shape."""
    count = math.prod(sizes)
    mask, grad = b.broadcast(mask.to(torch.bool), grad)
    packed = pack(b, b.reshape(grad, (grad.numel,)), b.reshape(mask, (mask.numel,)), count, 0)
    return b.reshape(packed, sizes)


def pack(b: Builder, x: Value, mask: Value, size: int, fill: Operand) -> Value:
    """The first `size` elements of 1-D x where the mask is true, then fill."""
    # Elements that are not wanted go out of range, where a scatter drops them.
    positions = mask_positions(b, mask)
    where = b.select(mask, positions, size + b.iota(x.shape, 0, positions.dtype))
    out = b.full((size,), fill, x.dtype)
    return scatter_dims(b, out, [0], [where], x, 0, lambda old, new: new, unique_indices=True)

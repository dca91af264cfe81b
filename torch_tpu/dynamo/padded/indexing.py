"""Ops of padded programs that read and write at places: index tensors, scatters, strided views, edges, windows.

XLA drops an update whose index lies outside: padding among the indices becomes such a one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.indices import scatter_dims
from torch_tpu.lowering.value import Value

from ..plan import fake
from ..shapes import expression, is_symbolic
from .core import (
    Specs,
    clear_dense,
    dense,
    element_at,
    handler,
    int32,
    is_extent,
    padded_place,
    row_major,
    true_size,
    window,
)

if TYPE_CHECKING:
    from ..lower import Graph

aten = torch.ops.aten


# ---- index tensors


def _from_true_end(g: Graph, of: Any, indices: Sequence[Any], past: bool) -> list[Value | None]:
    """Indices, of which those below zero count from the true end; past: their padding lies past the padded end."""
    placed: list[Value | None] = []
    d = 0
    for at in indices:
        where = dense(g, at) if at is not None else None
        if where is not None and where.dtype in (torch.bool, torch.uint8):
            if not past:
                raise NotImplementedError("index with a mask")
            placed.append(clear_dense(g, at, where, 0))
            d += where.ndim
            continue
        if where is not None:
            if is_symbolic(fake(of).shape[d]):
                where = g.b.select(where < 0, where + true_size(g, of, d).to(where.dtype), where)
            if past:
                where = clear_dense(g, at, where, g.sizes(fake(of).shape[d]))
        placed.append(where)
        d += 1
    return placed


@handler(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(g: Graph, node: Node, specs: Specs, x: Value, indices: Sequence[Value | None]) -> Any:
    of: Any = node.args[0]
    return g.lower(node, (dense(g, of), _from_true_end(g, of, node.args[1], past=False)), {}, specs)  # type: ignore[arg-type]


@handler(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(g: Graph, node: Node, specs: Specs, x: Value, indices: Any, values: Value, *rest: Any) -> Any:
    of: Any = node.args[0]
    placed = _from_true_end(g, of, node.args[1], past=True)  # type: ignore[arg-type]
    return g.lower(node, (dense(g, of), placed, dense(g, node.args[2]), *rest), {}, specs)


@handler(
    aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce, aten.scatter_reduce.two,
    aten.index_copy.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.index_reduce.default,
)  # fmt: skip
def write_along(
    g: Graph, node: Node, specs: Specs, x: Value, dim: int, index: Value, source: Any, *rest: Any, **kwargs: Any
) -> Any:
    of, at, what = node.args[0], node.args[2], node.args[3]
    x = dense(g, of)
    index = clear_dense(g, at, dense(g, at), x.shape[dim % max(x.ndim, 1)] if x.ndim else 1)
    source = dense(g, what) if isinstance(what, Node) and isinstance(fake(what), torch.Tensor) else source
    return g.lower(node, (x, dim, index, source, *rest), kwargs, specs)


@handler(aten.masked_scatter.default)
def masked_scatter(g: Graph, node: Node, specs: Specs, x: Value, mask: Value, source: Value) -> Any:
    """The true places take the source's elements in order: no padding may stand between those."""
    of, where, what = node.args
    if any(is_symbolic(s) for s in fake(what).shape[1:]):  # type: ignore[arg-type]
        raise NotImplementedError(f"{node.target} from a source with padding inside")
    return g.lower(node, (dense(g, of), clear_dense(g, where, dense(g, where), 0), dense(g, what)), {}, specs)


@handler(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(g: Graph, node: Node, specs: Specs, ordered: Value, values: Any, **kwargs: Any) -> Any:
    of, what = node.args[:2]
    if kwargs.get("sorter") is not None:
        raise NotImplementedError(f"{node.target} with a sorter")
    ordered = dense(g, of)
    padded = clear_dense(g, of, ordered, dtypes.highest(ordered.dtype), [ordered.ndim - 1])
    values = dense(g, what) if isinstance(what, Node) and isinstance(fake(what), torch.Tensor) else values
    found = g.lower(node, (padded, values), kwargs, specs)
    return g.b.minimum(found, true_size(g, of, ordered.ndim - 1).to(found.dtype))


@handler(aten.kthvalue.default)
def kthvalue(g: Graph, node: Node, specs: Specs, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    of, last = node.args[0], float("nan") if x.is_float else dtypes.highest(x.dtype)
    dims = [dim % x.ndim] if x.ndim else []
    return g.lower(node, (clear_dense(g, of, dense(g, of), last, dims), k, dim, keepdim), {}, specs)


# ---- parts


@handler(aten.split_with_sizes.default)
def split(g: Graph, node: Node, specs: Specs, x: Value, sizes: Sequence[int], dim: int = 0) -> Any:
    x, dim = dense(g, node.args[0]), dim % x.ndim
    if not any(is_extent(s) for s in sizes):
        return g.lower(node, (x, sizes, dim), {}, specs)
    parts, start = [], g.b.full((), 0, torch.int32)
    for size in sizes:
        parts.append(window(g, x, dim, start, int(size)))
        start = start + int32(g, size)
    return parts


def _places(g: Graph, node: Node, shape: Sequence[int], strides: Sequence[int], offset: int | None) -> Value:
    """Where the elements of a strided view are, in the argument as it would be without padding."""
    source: Any = node.args[0]
    if not row_major(fake(source)) or (offset is None and expression(fake(source).storage_offset()) != 0):
        raise NotImplementedError(f"{node.target} of a tensor that is not contiguous")
    place = g.b.broadcast_to(int32(g, offset or 0), shape)
    for d, stride in enumerate(strides):
        place = place + g.b.iota(shape, d, torch.int32) * g.b.broadcast_to(int32(g, stride), shape)
    return place


@handler(aten.as_strided.default)
def as_strided(
    g: Graph, node: Node, specs: Specs, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    (spec,) = specs
    assert spec is not None
    return element_at(g, node.args[0], _places(g, node, spec.shape, stride, offset))  # type: ignore[arg-type]


@handler(aten.as_strided_scatter.default)
def as_strided_scatter(
    g: Graph,
    node: Node,
    specs: Specs,
    x: Value,
    src: Value,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> Value:
    b, x, of = g.b, dense(g, node.args[0]), node.args[1]
    src = dense(g, of)
    place = padded_place(g, node.args[0], _places(g, node, src.shape, stride, offset))  # type: ignore[arg-type]
    at = clear_dense(g, of, place, x.numel).reshape(src.numel)
    flat = scatter_dims(b, x.reshape(x.numel), [0], [at], src.to(x.dtype).reshape(src.numel), 0, lambda old, new: new)
    return flat.reshape(*x.shape)


@handler(aten.tril.default, aten.triu.default)
def triangle(g: Graph, node: Node, specs: Specs, x: Value, diagonal: int = 0) -> Any:
    x, b = dense(g, node.args[0]), g.b
    if not is_extent(diagonal):
        return g.lower(node, (x, diagonal), {}, specs)
    above = b.iota(x.shape, x.ndim - 1, torch.int32) - b.iota(x.shape, x.ndim - 2, torch.int32)
    edge = b.broadcast_to(int32(g, diagonal), x.shape)
    return b.select(above <= edge if node.target is aten.tril.default else above >= edge, x, 0)


# ---- edges and windows


@handler(aten.constant_pad_nd.default)
def constant_pad(g: Graph, node: Node, specs: Specs, x: Value, pad: Sequence[Any], value: Any = 0) -> Value:
    """The value stands also where the argument has its padding; where the result ends its size says."""
    b, of, rank = g.b, node.args[0], x.ndim
    (spec,) = specs
    assert spec is not None
    fill = b.scalar(value, x.dtype)
    x = clear_dense(g, of, dense(g, of), fill)
    for i, before in enumerate(pad[::2]):
        d = rank - 1 - i
        if is_extent(before):  # as many places in front as there could be, then from where it truly begins
            room = [spec.shape[d] if at == d else 0 for at in range(rank)]
            start = b.full((), spec.shape[d], torch.int32) - int32(g, before)
            x = window(g, b.pad(x, fill, room, room), d, start, spec.shape[d])
        else:
            low = [before if at == d else 0 for at in range(rank)]
            high = [spec.shape[d] - x.shape[d] - before if at == d else 0 for at in range(rank)]
            x = b.pad(x, fill, low, high)
    return x


@handler(
    aten.avg_pool2d.default, aten.avg_pool3d.default, aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default
)
def avg_pool(g: Graph, node: Node, specs: Specs, *args: Any) -> Any:
    """Zeros beyond the true end are what stands in a window that sticks out; only how many count must be known."""
    backward = "backward" in node.target.overloadpacket.__name__  # type: ignore[union-attr]
    names = ["kernel", "stride", "padding", "ceil_mode", "count_include_pad", "divisor"]
    first = 2 if backward else 1
    values = [[], 0, False, True, None]
    named: dict[str, Any] = dict(zip(names, [*args[first:], *values[len(args) - first - 1 :]]))
    padded = any(named["padding"]) if isinstance(named["padding"], list | tuple) else named["padding"]
    varies = any(is_symbolic(s) for s in fake(node.args[0]).shape[-len(named["kernel"]) :])  # type: ignore[arg-type]
    if varies and named["divisor"] is None and (named["ceil_mode"] or (padded and not named["count_include_pad"])):
        raise NotImplementedError(f"{node.target} with windows of different size")
    zeroed = [clear_dense(g, n, dense(g, n), 0) for n in node.args[:first]]
    return g.lower(node, (*zeroed, *args[first:]), {}, specs)


@handler(aten._embedding_bag_forward_only.default, aten._embedding_bag.default)
def embedding_bag(g: Graph, node: Node, specs: Specs, weight: Value, *args: Any, **kwargs: Any) -> Any:
    """Padding among the indices is an index that does not count; bags in the padding are empty."""
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    named: dict[str, Any] = {**dict(zip(names, node.args)), **node.kwargs}
    given = {name: dense(g, n) if isinstance(n, Node) else n for name, n in named.items()}
    where, begin = named["indices"], named["offsets"]
    skipped = given.get("padding_idx", -1)
    given["padding_idx"] = skipped = skipped if skipped >= 0 else g.sizes(fake(named["weight"]).shape[0])
    given["indices"] = clear_dense(g, where, given["indices"], skipped)
    given["offsets"] = clear_dense(g, begin, given["offsets"], given["indices"].shape[0])
    return g.lower(node, (), given, specs)


@handler(aten._embedding_bag_dense_backward.default, aten._embedding_bag_backward.default)
def embedding_bag_backward(g: Graph, node: Node, specs: Specs, *_: Any, **kwargs: Any) -> Any:
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    named: dict[str, Any] = {**dict(zip(names, node.args)), **kwargs}
    given = {name: clear_dense(g, n, dense(g, n), 0) if isinstance(n, Node) else n for name, n in named.items()}
    skipped = given.get("padding_idx", -1)
    given["padding_idx"] = skipped = skipped if skipped >= 0 else given["num_weights"]
    given["indices"] = clear_dense(g, named["indices"], given["indices"], skipped)
    return g.lower(node, (), given, specs)


@handler(aten.addbmm.default)
def addbmm(g: Graph, node: Node, specs: Specs, x: Value, left: Value, right: Value, **kwargs: Any) -> Any:
    zeroed = [clear_dense(g, n, dense(g, n), 0) for n in node.args[1:]]
    return g.lower(node, (dense(g, node.args[0]), *zeroed), kwargs, specs)

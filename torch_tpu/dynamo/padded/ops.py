"""Ops of padded programs that know their padding: moves of dims, reductions, joins, losses, attention, slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.fx import Node

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.value import TensorSpec, Value

from ..plan import fake
from ..shapes import expression, is_symbolic
from .core import (
    Specs,
    agree,
    clear,
    clear_dense,
    dense,
    factors,
    handler,
    inside,
    int32,
    is_extent,
    make_dense,
    only,
    replaced,
    set_factors,
    starts_at,
    true_size,
    window,
)

if TYPE_CHECKING:
    from ..lower import Graph

aten = torch.ops.aten


def _moved(g: Graph, node: Node, order: Sequence[int]) -> None:
    for d, was in enumerate(order):
        set_factors(g, node, d, factors(g, node.args[0], was))


@handler(aten.permute.default, aten.transpose.int, aten.t.default)
def permute(g: Graph, node: Node, specs: Specs, x: Value, *dims: Any) -> Value:
    order = list(range(x.ndim))
    if node.target is aten.permute.default:
        order = [d % x.ndim for d in dims[0]]
    elif x.ndim > 1:
        a, c = (d % x.ndim for d in dims) if dims else (0, 1)
        order[a], order[c] = order[c], order[a]
    _moved(g, node, order)
    return g.b.transpose(x, order)


@handler(aten.unsqueeze.default)
def unsqueeze(g: Graph, node: Node, specs: Specs, x: Value, dim: int) -> Value:
    dim %= x.ndim + 1
    for d in range(x.ndim):
        set_factors(g, node, d + (d >= dim), factors(g, node.args[0], d))
    return g.b.unsqueeze(x, dim)


@handler(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def squeeze(g: Graph, node: Node, specs: Specs, x: Value, dims: Any = None) -> Value:
    wanted = {d % x.ndim for d in ([dims] if isinstance(dims, int) else range(x.ndim) if dims is None else dims)}
    shape = fake(node.args[0]).shape  # type: ignore[arg-type]
    kept = [d for d in range(x.ndim) if d not in wanted or is_symbolic(shape[d]) or shape[d] != 1]
    _moved(g, node, kept)
    return g.b.reshape(x, [x.shape[d] for d in kept])


@handler(aten.expand.default)
def expand(g: Graph, node: Node, specs: Specs, x: Value, size: Any, *, implicit: bool = False) -> Value:
    shape, rank = list(g.sizes.shape(fake(node).shape)), len(fake(node).shape)
    for d in range(x.ndim):
        if x.shape[d] != 1:
            shape[d + rank - x.ndim] = x.shape[d]
            set_factors(g, node, d + rank - x.ndim, factors(g, node.args[0], d))
    return g.b.broadcast_to(x, shape)


_NEUTRAL: dict[Any, Callable[[torch.dtype], Any]] = {
    aten.sum: lambda dtype: 0,
    aten.any: lambda dtype: 0,
    aten.count_nonzero: lambda dtype: 0,
    aten.all: lambda dtype: 1,
    aten.prod: lambda dtype: 1,
    aten.amax: dtypes.lowest,
    aten.max: dtypes.lowest,
    aten.logsumexp: dtypes.lowest,
    aten.argmax: dtypes.lowest,
    aten.amin: dtypes.highest,
    aten.min: dtypes.highest,
    aten.argmin: dtypes.highest,
}


def _reduced_dims(rank: int, dim: Any) -> list[int]:
    dims = [dim] if isinstance(dim, int) else list(dim or [])
    return sorted(d % rank for d in dims) if dims and rank else list(range(rank))


@handler(
    aten.sum.default, aten.sum.dim_IntList, aten.amax.default, aten.amin.default, aten.any.default, aten.any.dim,
    aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims, aten.prod.default, aten.prod.dim_int,
    aten.max.default, aten.min.default, aten.max.dim, aten.min.dim,
    aten.logsumexp.default, aten.count_nonzero.dim_IntList,
)  # fmt: skip
def reduction(g: Graph, node: Node, specs: Specs, x: Value, *args: Any, **kwargs: Any) -> Any:
    dims = _reduced_dims(x.ndim, args[0] if args else kwargs.get("dim"))
    keepdim = bool(args[1] if len(args) > 1 else kwargs.get("keepdim", False))
    of = node.args[0]
    if node.target in (aten.max.dim, aten.min.dim):  # the index counts within the dim
        make_dense(g, [of])
        x = dense(g, of)
    neutral = _NEUTRAL[node.target.overloadpacket](x.dtype)  # type: ignore[union-attr]
    kept = [d for d in range(x.ndim) if d not in dims]
    for i, d in enumerate(kept):
        set_factors(g, node, d if keepdim else i, factors(g, of, d))
    shape = tuple(1 if d in dims else x.shape[d] for d in range(x.ndim) if keepdim or d not in dims)
    fitted = [TensorSpec(shape, s.dtype) for s in specs if s]
    return g.lower(node, (clear(g, of, x, neutral, dims), *args), kwargs, fitted)


@handler(aten.mean.dim, aten.mean.default)
def mean(
    g: Graph, node: Node, specs: Specs, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    (spec,) = specs
    assert spec is not None
    dims, of = _reduced_dims(x.ndim, dim), node.args[0]
    x = clear_dense(g, of, dense(g, of), 0, dims).to(g.b.opmath(spec.dtype))
    return (g.b.reduce_sum(x, dims, keepdim) / _count(g, of, dims).to(x.dtype)).to(spec.dtype)


def _count(g: Graph, node: Any, dims: Sequence[int]) -> Value:
    count = g.b.full((), 1, torch.int32)
    for d in dims:
        count = count * true_size(g, node, d)
    return count


@handler(aten.var.correction, aten.std.correction, aten.var_mean.correction)
def var_mean(
    g: Graph, node: Node, specs: Specs, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    b, of = g.b, node.args[0]
    dims, x = _reduced_dims(x.ndim, dim), dense(g, of)
    wide = b.opmath(x.dtype)
    count = _count(g, of, dims).to(wide)
    center = b.reduce_sum(clear_dense(g, of, x.to(wide), 0, dims), dims, True) / count
    deviation = clear_dense(g, of, x.to(wide) - center, 0, dims)
    degrees = b.maximum(count - b.scalar(1 if correction is None else correction, wide), 0.0)
    variance = (b.reduce_sum(deviation * deviation, dims, keepdim) / degrees).to(x.dtype)
    if node.target is aten.std.correction:
        return b.sqrt(variance)
    if node.target is aten.var.correction:
        return variance
    assert specs[1] is not None
    return [variance, b.reshape(center, specs[1].shape).to(x.dtype)]


@handler(aten.linalg_vector_norm.default)
def norm(g: Graph, node: Node, specs: Specs, x: Value, ord: Any = 2, *args: Any, **kwargs: Any) -> Any:
    if isinstance(ord, Value) or ord < 0:
        raise NotImplementedError("linalg_vector_norm of an order below zero")
    of = node.args[0]
    return g.lower(node, (clear_dense(g, of, dense(g, of), 0), ord, *args), kwargs, specs)


@handler(aten.sort.default, aten.sort.stable)
def sort(g: Graph, node: Node, specs: Specs, x: Value, *args: Any, **kwargs: Any) -> Any:
    """Padding goes to the end: the sort is stable, so among equals it stays there."""
    schema = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    named = {**dict(zip(schema[1:], args)), **kwargs}
    of, dim = node.args[0], named.get("dim", -1) % x.ndim
    last: Any = dtypes.lowest(x.dtype) if named.get("descending") else dtypes.highest(x.dtype)
    if x.is_float and not named.get("descending"):
        last = float("nan")
    return g.lower(node, (clear_dense(g, of, dense(g, of), last, [dim]), *args), kwargs, specs)


@handler(aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default)
def softmax(g: Graph, node: Node, specs: Specs, x: Value, dim: int, *args: Any, **kwargs: Any) -> Any:
    for d in range(x.ndim):
        set_factors(g, node, d, factors(g, node.args[0], d))
    x = clear(g, node.args[0], x, float("-inf"), [dim % x.ndim])
    return g.lower(node, (x, dim, *args), kwargs, [TensorSpec(x.shape, s.dtype) for s in specs if s])


@handler(aten.cat.default)
def cat(g: Graph, node: Node, specs: Specs, xs: Sequence[Value], dim: int = 0) -> Value:
    """Each tensor is written where the one before it truly ends: over that one's padding."""
    b, of = g.b, cast(Sequence[Node], node.args[0])
    (spec,) = specs
    assert spec is not None
    parts: list[tuple[Any, Value]] = [(n, dense(g, n).to(spec.dtype)) for n in of if fake(n).shape != (0,)]
    dim %= len(spec.shape)
    if any(x.shape[:dim] + x.shape[dim + 1 :] != spec.shape[:dim] + spec.shape[dim + 1 :] for _, x in parts):
        raise NotImplementedError(f"{node.target}: one size, padded in different ways")
    room = max((x.shape[dim] for n, x in parts[1:] if is_symbolic(fake(n).shape[dim])), default=0)
    shape = list(spec.shape)
    shape[dim] += room  # a part whose padding sticks out
    joined = g.leave(parts[0][1], shape)
    starts, end = [b.full((), 0, torch.int32)] * len(shape), true_size(g, parts[0][0], dim)
    for n, x in parts[1:]:
        starts[dim] = end
        joined = b.dynamic_update_slice(joined, x, starts)
        end = end + true_size(g, n, dim)
    return g.leave(joined, spec.shape)


@handler(aten.flip.default)
def flip(g: Graph, node: Node, specs: Specs, x: Value, dims: Sequence[int]) -> Value:
    of = node.args[0]
    x = g.b.reverse(dense(g, of), [d % x.ndim for d in dims])
    for d in (d % x.ndim for d in dims):
        if is_symbolic(fake(of).shape[d]):  # type: ignore[arg-type]
            padding = g.b.full((), x.shape[d], torch.int32) - true_size(g, of, d)
            x = window(g, x, d, padding, x.shape[d])
    return x


@handler(aten.topk.default)
def topk(g: Graph, node: Node, specs: Specs, x: Value, k: int, dim: int = -1, largest: bool = True, *rest: Any) -> Any:
    of, dim = node.args[0], dim % x.ndim
    worst = dtypes.lowest(x.dtype) if largest else dtypes.highest(x.dtype)
    return g.lower(node, (clear_dense(g, of, dense(g, of), worst, [dim]), k, dim, largest, *rest), {}, specs)


@handler(aten.argmax.default, aten.argmin.default)
def arg_extreme(g: Graph, node: Node, specs: Specs, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    b, of = g.b, node.args[0]
    worst = _NEUTRAL[node.target.overloadpacket](x.dtype)  # type: ignore[union-attr]
    x = clear_dense(g, of, dense(g, of), worst, None if dim is None else [dim % x.ndim])
    if dim is not None or x.ndim < 2:
        return g.lower(node, (x, dim, keepdim), {}, specs)
    # The position in the flattened tensor, of its true sizes.
    position = g.lower(node, (x, None, keepdim), {}, specs).to(torch.int64)
    index, stride = b.full(position.shape, 0, torch.int64), b.full((), 1, torch.int64)
    for d in reversed(range(x.ndim)):
        size = b.full((), x.shape[d], torch.int64)
        index = index + b.remainder(*b.operands(position, size)) * stride
        position = b.divide(*b.operands(position, size))
        stride = stride * true_size(g, of, d).to(torch.int64)
    return index


@handler(
    aten.nll_loss_forward.default, aten.nll_loss_backward.default,
    aten.nll_loss2d_forward.default, aten.nll_loss2d_backward.default,
)  # fmt: skip
def nll_loss(g: Graph, node: Node, specs: Specs, *args: Any) -> Any:
    """Padding among the targets is ignored as PyTorch ignores ignore_index."""
    backward = node.target in (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
    x: Any
    target: Any
    x, target = node.args[1:3] if backward else node.args[:2]
    reduction_, ignore_index = args[4:6] if backward else args[3:5]
    places = [d for d in range(fake(x).ndim) if d != 1][: fake(target).ndim]  # all but that of the classes
    agree(g, *([(x, d), (target, i)] for i, d in enumerate(places)))
    classes = clear(g, target, g.env[target], int(ignore_index))
    logits = clear(g, x, g.env[x], 0)
    if backward:
        for d in range(logits.ndim):
            set_factors(g, node, d, factors(g, x, d))
    elif not reduction_:
        for i, d in enumerate(places):
            set_factors(g, node, i, factors(g, x, d))
    shapes = [logits.shape if backward else () if reduction_ else classes.shape, ()]
    shaped = [TensorSpec(shape, s.dtype) for shape, s in zip(shapes, specs) if s]
    given = (args[0], logits, classes, *args[3:]) if backward else (logits, classes, *args[2:])
    return g.lower(node, given, {}, shaped)


@handler(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
)
def attention(g: Graph, node: Node, specs: Specs, *args: Any, **kwargs: Any) -> Any:
    """A causal mask hides padded keys, which are at the end, if there are as many as queries; else a bias does."""
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    value = {n: clear_dense(g, n, dense(g, n), 0) for n in node.all_input_nodes}
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value.__getitem__)
    named = {**dict(zip(names, args)), **kwargs}
    query, key = (node.args[names.index(name)] for name in ("query", "key"))
    if is_symbolic(fake(key).shape[3]) and named.get("scale") is None:  # type: ignore[arg-type]
        raise NotImplementedError(f"{node.target} with a scale that depends on a size")
    if named.get("dropout_p"):
        raise NotImplementedError(f"{node.target} with dropout")
    heads = [fake(n).shape[1] for n in (query, key)]  # type: ignore[arg-type]
    if any(map(is_symbolic, heads)) and len(set(map(expression, heads))) > 1:
        raise NotImplementedError(f"{node.target} of grouped heads whose number differs")
    length = fake(key).shape[2]  # type: ignore[arg-type]
    hidden = named.get("is_causal") and expression(fake(query).shape[2]) == expression(length)  # type: ignore[arg-type]
    if is_symbolic(length) and not hidden:
        b, bias = g.b, named.get("attn_bias")
        if bias is None:
            bias = b.full((1, 1, 1, named["key"].shape[2]), 0, named["query"].dtype)
        seen = inside(g, (length,), bias, bias.ndim - 1)
        assert seen is not None
        named["attn_bias"] = b.select(seen, bias, b.full((), float("-inf"), bias.dtype))
    positional = [a.name for a in node.target._schema.arguments if not a.kwarg_only]  # type: ignore[union-attr]
    count = max(len(args), positional.index("attn_bias") + 1)
    return g.lower(node, [named.get(name) for name in positional[:count]], kwargs, specs)


@handler(aten.select.int)
def select(g: Graph, node: Node, specs: Specs, x: Value, dim: int, index: int) -> Value:
    from ..lower import Extent

    x, dim = dense(g, node.args[0]), dim % x.ndim
    size = fake(node.args[0]).shape[dim]  # type: ignore[arg-type]
    if not is_symbolic(size) or (not isinstance(index, Extent) and index >= 0):
        return only(g.lower(node, (x, dim, int(index)), {}, specs))
    start = int32(g, index)
    if not isinstance(index, Extent):
        start = true_size(g, node.args[0], dim) + start
    return g.b.reshape(window(g, x, dim, start, 1), (*x.shape[:dim], *x.shape[dim + 1 :]))


@handler(aten.slice.Tensor)
def slice_(
    g: Graph, node: Node, specs: Specs, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    from ..lower import Extent

    x, dim = dense(g, node.args[0]), dim % x.ndim
    shape = fake(node).shape
    if not (is_symbolic(fake(node.args[0]).shape[dim]) or is_symbolic(shape[dim])):  # type: ignore[arg-type]
        if not is_extent(start):
            return only(g.lower(node, (x, dim, start, end, step), {}, specs))
        reach = replaced(x.shape, dim, (shape[dim] - 1) * step + 1)
        whole = g.b.dynamic_slice(x, starts_at(g, x.ndim, dim, int32(g, start)), reach)
        return g.b.slice_dim(whole, dim, 0, whole.shape[dim], step)
    count = max((g.sizes(shape[dim]) - 1) * step + 1, 0)
    if start is None or (not isinstance(start, Extent) and start >= 0):
        begin = int(start or 0)
        if begin + count <= x.shape[dim]:
            return g.b.slice_dim(x, dim, begin, begin + count, step)
        at = g.b.full((), begin, torch.int32)
    else:
        at = int32(g, start)
        if not isinstance(start, Extent):
            at = true_size(g, node.args[0], dim) + at
    return g.b.slice_dim(window(g, x, dim, at, count), dim, 0, count, step)


@handler(aten.scatter_add.default)
def scatter_add(g: Graph, node: Node, specs: Specs, x: Value, dim: int, index: Value, src: Value) -> Any:
    """The source may be larger than the index, whose padding must add nothing."""
    at: Any = node.args[2]
    index = clear_dense(g, at, dense(g, at), 0)
    src = clear_dense(g, at, g.leave(dense(g, node.args[3]), index.shape), 0)
    return g.lower(node, (dense(g, node.args[0]), dim, index, src), {}, specs)


@handler(aten.slice_scatter.default)
def slice_scatter(
    g: Graph, node: Node, specs: Specs, x: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Value:  # fmt: skip
    """The padding of the part leaves what is there."""
    from ..lower import Extent

    b, of = g.b, node.args[1]
    x, src, dim = dense(g, node.args[0]), dense(g, of), dim % x.ndim
    dynamic = is_extent(start) or any(is_symbolic(s) for n in node.args[:2] for s in fake(n).shape)  # type: ignore[arg-type]
    if not dynamic:
        return only(g.lower(node, (x, src, dim, start, end, step), {}, specs))
    if step != 1 or x.shape[:dim] + x.shape[dim + 1 :] != src.shape[:dim] + src.shape[dim + 1 :]:
        raise NotImplementedError(f"{node.target} with a step, or of sizes padded in different ways")
    at = int32(g, 0 if start is None else start)
    if not isinstance(start, Extent) and start is not None and start < 0:
        at = true_size(g, node.args[0], dim) + at
    room = b.pad(x, 0, [0] * x.ndim, replaced([0] * x.ndim, dim, src.shape[dim]))  # for a part that sticks out
    starts = starts_at(g, x.ndim, dim, at)
    here = inside(g, (fake(of).shape[dim],), src, dim)  # type: ignore[arg-type]
    if here is not None:
        src = b.select(here, src.to(x.dtype), b.dynamic_slice(room, starts, src.shape))
    return b.slice_dim(b.dynamic_update_slice(room, src.to(x.dtype), starts), dim, 0, x.shape[dim])


@handler(aten.slice_backward.default, aten.select_backward.default)
def part_backward(g: Graph, node: Node, specs: Specs, x: Value, size: Any, dim: int, start: Any, *rest: Any) -> Value:
    """The gradient of a part at its place among zeros."""
    from ..lower import Extent

    b, (like,) = g.b, specs
    assert like is not None
    of, dim, x = node.args[0], dim % len(like.shape), dense(g, node.args[0])
    if node.target is aten.select_backward.default:
        part = b.unsqueeze(x, dim)
    else:
        apart = [rest[1] - 1 if d == dim else 0 for d in range(x.ndim)]
        part = b.pad(clear_dense(g, of, x, 0, [dim]), 0, [0] * x.ndim, [0] * x.ndim, apart)
    at = int32(g, 0 if start is None else start)
    if not isinstance(start, Extent | None) and start < 0:
        at = int32(g, g.extent(fake(node).shape[dim])) + at
    shape = list(like.shape)
    shape[dim] += part.shape[dim]  # a part that sticks out is padding
    starts = starts_at(g, len(shape), dim, at)
    whole = b.dynamic_update_slice(b.full(shape, 0, like.dtype), part.to(like.dtype), starts)
    return b.slice_dim(whole, dim, 0, like.shape[dim])


@handler(aten.arange.start_step, aten.arange.default, aten.arange.start)
def arange(g: Graph, node: Node, specs: Specs, *args: Any, **kwargs: Any) -> Value:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    (spec,) = specs
    assert spec is not None
    wide = torch.int64 if not spec.dtype.is_floating_point else spec.dtype
    steps = g.b.iota(spec.shape, 0, wide)
    return (steps * _number(g, step, wide) + _number(g, start, wide)).to(spec.dtype)


def _number(g: Graph, x: Any, dtype: torch.dtype) -> Value:
    from ..lower import Extent

    return (x.true if isinstance(x, Extent) else g.b.scalar(x, dtype)).to(dtype)

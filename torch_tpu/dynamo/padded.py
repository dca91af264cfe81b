"""What a padded program needs beyond marked sizes: which ops XLA pads right, and the rules of those it does not.

An op that is neither pointwise nor named here makes its graph compile for exact sizes, with the reason recorded.
Each name here is tested against the CPU in tests/test_compile_dynamic.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from torch_tpu.lowering import registry
from torch_tpu.lowering import shape as views
from torch_tpu.lowering.value import TensorSpec, Value

from .plan import fake, tensors
from .shapes import is_symbolic

if TYPE_CHECKING:
    from torch_tpu.lowering.builder import Builder

    from .lower import Graph

aten = torch.ops.aten
Specs = Sequence[TensorSpec | None]

# Ops whose rules are right as they are when every value is marked with its true sizes.
MARKED = {
    aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.dot, aten.mv,
    aten.sum, aten.amax, aten.amin, aten.any, aten.all, aten.prod, aten.max, aten.min,
    aten._softmax, aten._log_softmax, aten._softmax_backward_data, aten._log_softmax_backward_data,
    aten.embedding, aten.index_select, aten.gather, aten.cat, aten.where, aten.masked_fill,
    aten.native_layer_norm, aten.native_layer_norm_backward, aten._fused_rms_norm, aten._fused_rms_norm_backward,
    aten.view, aten._unsafe_view, aten.reshape, aten.permute, aten.transpose, aten.t, aten.expand, aten.unsqueeze,
    aten.squeeze, aten.alias, aten.detach, aten.split_with_sizes, aten.unbind,
    aten.clone, aten._to_copy, aten.copy, aten.full, aten.full_like, aten.zeros, aten.zeros_like, aten.ones,
    aten.ones_like, aten.empty, aten.empty_like, aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty,
    aten.tril, aten.triu, aten.scalar_tensor,
}  # fmt: skip


def why_not(node: Node) -> str:
    """Why the node cannot be padded; empty if it can."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return ""
    values = [t for n in (node, *node.all_input_nodes) for t in tensors(fake(n))]
    if not any(is_symbolic(s) for t in values for s in t.shape):
        return ""
    op = node.target
    known = op in HANDLERS or op.overloadpacket in MARKED or torch.Tag.pointwise in op.tags
    rule = registry.rule_for(op)
    if not known or (rule is not None and rule.kind == "decompose" and torch.Tag.pointwise not in op.tags):
        return f"{op} is not known to leave padding out"
    return ""


def numbers_at_run_time(b: Builder, op: OpOverload, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Sizes that are used as numbers (Scalar arguments) become the true ones."""
    from .lower import Extent

    schema = op._schema.arguments
    types = {a.name: str(a.type) for a in schema}

    def number(value: Any, type_name: str) -> Any:
        if not isinstance(value, Extent) or type_name not in ("number", "Optional[number]", "float"):
            return value
        true = value.true.to(torch.int64)
        return Value(b, true.ir, (), torch.int64, weak=True)

    return (
        [number(v, types[a.name]) for v, a in zip(args, schema)],
        {name: number(v, types[name]) for name, v in kwargs.items()},
    )


# ---- ops of their own


Handler = Callable[..., Any]
HANDLERS: dict[OpOverload, Handler] = {}


def handler(*ops: OpOverload) -> Callable[[Handler], Handler]:
    """Register the decorated function for padded programs."""

    def decorate(fn: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(ops, fn))
        return fn

    return decorate


def _fake(node: Any) -> Any:
    return fake(node)


def _i32(g: Graph, x: Any) -> Value:
    from .lower import Extent

    return x.true if isinstance(x, Extent) else g.b.full((), int(x), torch.int32)


def _true_size(g: Graph, node: Any, dim: int) -> Value:
    return _i32(g, g.extent(fake(node).shape[dim]))


def _from(g: Graph, x: Value, dim: int, start: Value, count: int) -> Value:
    """`count` elements of a dim from a start known at run time."""
    b = g.b
    high = [0] * x.ndim
    high[dim] = count  # a window that sticks out reads padding
    starts = [b.full((), 0, torch.int32)] * x.ndim
    starts[dim] = start
    sizes = list(x.shape)
    sizes[dim] = count
    return b.dynamic_slice(b.pad(g.whole(x), 0, [0] * x.ndim, high), starts, sizes)


@handler(aten.select.int)
def select(g: Graph, node: Node, specs: Specs, x: Value, dim: int, index: int) -> Value:
    from .lower import Extent

    dim %= x.ndim
    size = _fake(node.args[0]).shape[dim]
    if not is_symbolic(size) or (not isinstance(index, Extent) and index >= 0):
        return views.select(g.b, x, dim, int(index))
    start = _i32(g, index)
    if not isinstance(index, Extent) and index < 0:
        start = _true_size(g, node.args[0], dim) + start
    part = _from(g, x, dim, start, 1)
    return g.b.reshape(part, (*x.shape[:dim], *x.shape[dim + 1 :]))


@handler(aten.slice.Tensor)
def slice_(
    g: Graph, node: Node, specs: Specs, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    from .lower import Extent

    dim %= x.ndim
    shape = fake(node).shape
    if step != 1 or not (is_symbolic(_fake(node.args[0]).shape[dim]) or is_symbolic(shape[dim])):
        return views.slice_(g.b, x, dim, start, end, step)
    count = g.sizes(shape[dim])
    if start is None or (not isinstance(start, Extent) and start >= 0):
        begin = int(start or 0)
        if begin + count <= x.shape[dim]:
            return g.b.slice_dim(g.whole(x) if begin else x, dim, begin, begin + count)
        at = g.b.full((), begin, torch.int32)
    else:
        at = _i32(g, start)
        if not isinstance(start, Extent):
            at = _true_size(g, node.args[0], dim) + at
    return _from(g, x, dim, at, count)


@handler(aten.arange.start_step, aten.arange.default, aten.arange.start)
def arange(g: Graph, node: Node, specs: Specs, *args: Any, **kwargs: Any) -> Value:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    (spec,) = specs
    assert spec is not None
    wide = torch.int64 if not spec.dtype.is_floating_point else spec.dtype
    steps = g.b.iota(spec.shape, 0, wide)
    return steps * _number(g, step, wide) + _number(g, start, wide)


def _number(g: Graph, x: Any, dtype: torch.dtype) -> Value:
    from .lower import Extent

    return (x.true if isinstance(x, Extent) else g.b.scalar(x, dtype)).to(dtype)


@handler(aten.mean.dim, aten.mean.default)
def mean(
    g: Graph, node: Node, specs: Specs, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    b = g.b
    dims = [d % x.ndim for d in dim] if dim else list(range(x.ndim))
    (spec,) = specs
    assert spec is not None
    wide = b.opmath(spec.dtype)
    total = b.reduce_sum(x.to(wide), dims, keepdim)
    return total / _count(g, node.args[0], dims).to(wide)


def _count(g: Graph, node: Any, dims: Sequence[int]) -> Value:
    count = g.b.full((), 1, torch.int32)
    for d in dims:
        count = count * _true_size(g, node, d)
    return count


@handler(aten.var.correction, aten.var_mean.correction)
def var_mean(
    g: Graph, node: Node, specs: Specs, x: Value, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    b = g.b
    dims = [d % x.ndim for d in dim] if dim else list(range(x.ndim))
    wide = b.opmath(x.dtype)
    count = _count(g, node.args[0], dims).to(wide)
    center = b.reduce_sum(x.to(wide), dims, True) / count
    deviation = x.to(wide) - center
    degrees = b.maximum(count - b.scalar(1 if correction is None else correction, wide), 0.0)
    variance = b.reduce_sum(deviation * deviation, dims, keepdim) / degrees
    if node.target is aten.var.correction:
        return variance
    shape = specs[1].shape if specs[1] is not None else ()
    return [variance, b.reshape(center, shape)]


@handler(aten.sort.default, aten.sort.stable)
def sort(g: Graph, node: Node, specs: Specs, x: Value, *args: Any, **kwargs: Any) -> Any:
    """XLA sorts padding to the end; positions are the dim's own."""
    return g.lower(node, (x, *args), kwargs, specs)


@handler(aten.cumsum.default)
def cumsum(g: Graph, node: Node, specs: Specs, x: Value, *args: Any, **kwargs: Any) -> Any:
    """What follows the elements does not matter to them."""
    return g.lower(node, (g.whole(x), *args), kwargs, specs)


@handler(aten.argmax.default, aten.argmin.default)
def arg_extreme(g: Graph, node: Node, specs: Specs, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    b = g.b
    lowest = node.target is aten.argmax.default
    worst = _worst(x.dtype, lowest)
    x = _filled(g, x, _fake(node.args[0]).shape, worst)
    if dim is not None or x.ndim < 2:
        return g.lower(node, (x, dim, keepdim), {}, specs)
    # The position in the flattened tensor, of its true sizes.
    flat = g.lower(node, (x, None, keepdim), {}, specs)
    position, index = flat.to(torch.int64), b.full(flat.shape, 0, torch.int64)
    stride = b.full((), 1, torch.int64)
    for d in reversed(range(x.ndim)):
        size = b.full((), x.shape[d], torch.int64)
        index = index + b.remainder(position, size) * stride
        position = b.divide(position, size)
        stride = stride * _true_size(g, node.args[0], d).to(torch.int64)
    return index


def _worst(dtype: torch.dtype, lowest: bool) -> float | int | bool:
    from torch_tpu.lowering import dtypes

    return dtypes.lowest(dtype) if lowest else dtypes.highest(dtype)


def _filled(g: Graph, x: Value, shape: Sequence[Any], value: Any) -> Value:
    """The value with something of our own choice as padding, and unmarked."""
    b = g.b
    whole = g.whole(x)
    for d, size in enumerate(shape):
        if is_symbolic(size):
            inside = b.iota(x.shape, d, torch.int32) < b.broadcast_to(_i32(g, g.extent(size)), x.shape)
            whole = b.select(inside, whole, b.full(x.shape, value, x.dtype))
    return whole

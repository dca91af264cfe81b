"""What a padded program needs beyond the lowering rules.

Values come and go with anything as padding. To most ops it is of no interest; others get it cleared to what does not
count in them (0 in a sum, -inf in a maximum); for the rest XLA is told the true sizes (`Graph.mark`). A dim made of
several, as by x.flatten(0, 1), keeps its padding inside: it has *factors*, and is made dense only where it must be.

An op of none of these kinds makes its graph compile for exact sizes, with the reason recorded. Each op named here is
tested against the CPU in tests/test_compile_dynamic.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.registry import lower_op
from torch_tpu.lowering.value import TensorSpec, Value

from . import plan as planning
from .plan import draws, fake, tensors
from .shapes import expression, is_symbolic

if TYPE_CHECKING:
    from torch_tpu.lowering.builder import Builder

    from .lower import Graph

aten = torch.ops.aten
Specs = Sequence[TensorSpec | None]
Factors = tuple[Any, ...]  # the sizes a dim is made of, outermost first

# To these padding is of no interest: an element of the result depends on the elements at its own place.
FREE = {
    aten.clone, aten._to_copy, aten.copy, aten.full, aten.full_like, aten.zeros, aten.zeros_like, aten.ones,
    aten.ones_like, aten.empty, aten.empty_like, aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty,
    aten.alias, aten.detach, aten.floor_divide, aten.log_sigmoid_forward, aten.log_sigmoid_backward,
    aten.native_dropout, aten.native_dropout_backward, aten.complex, aten.polar, aten._conj, aten.eye,
    aten.empty_strided, aten.new_empty_strided, aten.randint, aten.randint_like,
    aten.rand, aten.rand_like, aten.randn, aten.randn_like, aten.uniform, aten.bernoulli, aten.normal_functional,
}  # fmt: skip

# These too, on dims that are not made of several.
FREE_DENSE = {
    aten.cumsum, aten.cumprod, aten.logcumsumexp, aten.stack, aten.unbind, aten.embedding,
    aten.native_layer_norm, aten._fused_rms_norm, aten.gather, aten.cummax, aten.cummin,
    aten.view_as_complex, aten.view_as_real, aten.diagonal, aten.diagonal_copy, aten.diagonal_scatter,
    aten.unfold, aten.unfold_copy, aten._thnn_fused_gru_cell, aten._thnn_fused_lstm_cell,
}  # fmt: skip

# Zeros do not count in these.
ZEROED = {
    aten.embedding_dense_backward, aten.native_layer_norm_backward, aten._fused_rms_norm_backward,
    aten._softmax_backward_data, aten._log_softmax_backward_data, aten.index_add,
    aten.convolution, aten.convolution_backward, aten.unfold_backward, aten.diagonal_backward,
    aten._thnn_fused_gru_cell_backward, aten._thnn_fused_lstm_cell_backward_impl,
}  # fmt: skip

# XLA leaves padding out of these when their inputs are marked with the true sizes.
MARKED = {aten.index_select}

# FREE_DENSE where the dims that they work along, which stand at this place among their arguments, are of fixed size.
ALONG: dict[Any, int] = {
    aten._fft_c2c: 1, aten._fft_r2c: 1, aten._fft_c2r: 1, aten.median: 1, aten.nanmedian: 1, aten.mode: 1,
}  # fmt: skip

# Where these have the shape that they normalize over, whose size must be known.
_NORMALIZED: dict[Any, int] = {
    aten.native_layer_norm: 1,
    aten._fused_rms_norm: 1,
    aten.native_layer_norm_backward: 2,
    aten._fused_rms_norm_backward: 2,
}

# Where these have their weight and the number of groups.
_CONVOLUTIONS: dict[Any, tuple[int, int]] = {aten.convolution: (1, 8), aten.convolution_backward: (2, 9)}

_RESHAPES = {aten.view, aten._unsafe_view, aten.reshape}
_SIZES = {"size", "stride", "shape", "n", "m"}  # what these and factories call them
_PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm}


def why_not(node: Node) -> str:
    """Why the node cannot be padded; empty if it can."""
    op = node.target
    if not isinstance(op, OpOverload | HigherOrderOperator) or isinstance(fake(node), torch.SymInt):
        return ""
    if not _varies(node):
        return ""
    if isinstance(op, HigherOrderOperator):
        return f"{op} has no padded form"
    if op.overloadpacket in _CONVOLUTIONS:
        weight, groups = (node.args[i] for i in _CONVOLUTIONS[op.overloadpacket])
        if groups != 1 and any(is_symbolic(s) for s in fake(weight).shape):  # type: ignore[arg-type]
            return f"{op} of groups whose size differs"
    normalized: Any = node.args[_NORMALIZED[op.overloadpacket]] if op.overloadpacket in _NORMALIZED else ()
    if any(isinstance(size, Node) for size in normalized):
        return f"{op} over a size that differs"
    if op.overloadpacket in ALONG and (along := _along(node)):
        shape = fake(node.args[0]).shape  # type: ignore[arg-type]
        differs = any(is_symbolic(shape[d]) for d in along)
        return f"{op} is not known to leave padding out along such a size" if differs else ""
    return "" if is_known(op) else f"{op} is not known to leave padding out"


def is_known(op: OpOverload) -> bool:
    """Whether the op has a padded form whatever it works along."""
    packets = FREE | FREE_DENSE | ZEROED | MARKED | _RESHAPES | _PRODUCTS | {planning.COPY.overloadpacket}
    return op in HANDLERS or op.overloadpacket in packets or torch.Tag.pointwise in op.tags


def _along(node: Node) -> list[int]:
    """The dims that an op of ALONG works along; none where it works along all."""
    place = ALONG[node.target.overloadpacket]  # type: ignore[union-attr]
    dims: Any = node.args[place] if len(node.args) > place else []
    return [dims] if isinstance(dims, int) else list(dims)


def _varies(node: Node) -> bool:
    """Whether a tensor that the node sees or makes has a size that differs from call to call."""
    values = [t for n in (node, *node.all_input_nodes) for t in tensors(fake(n))]
    return any(is_symbolic(s) for t in values for s in t.shape)


def lower(g: Graph, node: Node, specs: Specs, args: Any, kwargs: Any) -> Any:
    """Lower a node of a padded program."""
    op = node.target
    assert isinstance(op, OpOverload)
    packet: Any = op.overloadpacket
    special = HANDLERS.get(op)
    differ = {name for name, value in _integers(op, args, kwargs) if is_extent(value)}
    if differ - _TAKE_SIZES.get(op, _SIZES if packet in FREE or packet in _RESHAPES else set()):
        raise NotImplementedError(f"{op} of a number that differs")
    if not differ and not _varies(node):
        args, kwargs = numbers_at_run_time(g.b, op, args, kwargs)
        return g.lower(node, args, kwargs, specs)
    if special is not None:
        args, kwargs = numbers_at_run_time(g.b, op, args, kwargs)
        return special(g, node, specs, *args, **kwargs)
    if packet in _RESHAPES:
        return _reshape(g, node)
    if packet in _PRODUCTS:
        return _product(g, node, specs)
    if packet in FREE or torch.Tag.pointwise in op.tags:
        if not _inherit(g, node):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), g.env.__getitem__)
        args, kwargs = numbers_at_run_time(g.b, op, args, kwargs)
        if not draws(node):
            return g.lower(node, args, kwargs, specs)
        drawn = next(tensors(fake(node)))
        if any((node, d) in g.factors for d in range(drawn.ndim)):
            raise NotImplementedError(f"{op} of a dim made of several")
        g.b.true_sizes = [_i32(g, g.extent(size)) for size in drawn.shape]
        try:
            return g.lower(node, args, kwargs, specs)
        finally:
            g.b.true_sizes = ()
    value = {n: dense(g, n) for n in node.all_input_nodes}
    if packet in ZEROED:
        value = {n: clear_dense(g, n, value[n], 0) for n in value}
    elif packet in MARKED:
        value = {n: g.mark(v, fake(n).shape) if isinstance(v, Value) else v for n, v in value.items()}
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value.__getitem__)
    args, kwargs = numbers_at_run_time(g.b, op, args, kwargs)
    result = g.lower(node, args, kwargs, specs)
    return _unmarked(g, result, fake(node)) if packet in MARKED else result


def _integers(op: OpOverload, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """The arguments that a rule takes as static ints, with their names."""
    static = ("int", "Optional[int]", "List[int]", "Optional[List[int]]", "SymInt")
    values = [
        *zip(args, op._schema.arguments),
        *((kwargs[a.name], a) for a in op._schema.arguments if a.name in kwargs),
    ]
    named = [(a.name, v) for v, a in values if str(a.type) in static or a.name in ("ord", "p")]
    return [(name, item) for name, v in named for item in (v if isinstance(v, list | tuple) else [v])]


def numbers_at_run_time(b: Builder, op: OpOverload, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Sizes that are used as numbers (Scalar and Tensor arguments) become the true ones."""
    from .lower import Extent

    schema = op._schema.arguments
    types = {a.name: str(a.type) for a in schema}

    def number(value: Any, type_name: str) -> Any:
        if not isinstance(value, Extent) or type_name not in ("number", "Optional[number]", "float", "Tensor"):
            return value
        return Value(b, value.true.to(torch.int64).ir, (), torch.int64, weak=True)

    return (
        [number(v, types[a.name]) for v, a in zip(args, schema)],
        {name: number(v, types[name]) for name, v in kwargs.items()},
    )


def _unmarked(g: Graph, result: Any, like: Any) -> Any:
    if isinstance(like, list | tuple):
        return [_unmarked(g, v, w) for v, w in zip(result, like)]
    return g.whole(result, like.shape) if isinstance(result, Value) else result


# ---- dims made of several


def factors(g: Graph, node: Any, d: int) -> Factors:
    """The sizes that a dim of a node is made of."""
    return g.factors.get((node, d)) or (fake(node).shape[d],)


def _set_factors(g: Graph, node: Node, d: int, found: Factors) -> None:
    if len(found) > 1:
        g.factors[node, d] = found


def _layout(g: Graph, parts: Factors) -> Any:
    """Equal for equal sizes with the padding in the same places: a fixed size goes with the one before it."""
    merged: list[Any] = []
    for size in parts:
        fixed = not is_symbolic(size) and merged
        merged.append(merged.pop() * expression(size) if fixed else expression(size))
    return merged if len(merged) > 1 else _product_of(_padded_dims(g, parts))


Places = Sequence[tuple[Any, int]]  # dims of nodes that are one size


def _agree(g: Graph, *groups: Places) -> bool:
    """Whether the dims of each group are made alike; if not, their nodes are made dense, after which they must be."""

    def alike() -> bool:
        layouts = [[_layout(g, factors(g, n, d)) for n, d in same] for same in groups]
        return all(other == same[0] for same in layouts for other in same)

    if alike():
        return True
    _make_dense(g, {n for same in groups for n, _ in same})
    if not alike():
        raise NotImplementedError("one size, padded in different ways")
    return False


def _make_dense(g: Graph, nodes: Iterable[Any]) -> None:
    for node in nodes:
        g.env[node] = dense(g, node)
        for d in range(fake(node).ndim):
            g.factors.pop((node, d), None)


def _inherit(g: Graph, node: Node) -> bool:
    """An elementwise op's dims are made as its inputs' are; whether they are so already, without making them dense."""
    if any(a.name == "size" for a in node.target._schema.arguments):  # type: ignore[union-attr]
        return True  # new_zeros and the like have nothing of their input but its dtype
    rank = next(tensors(fake(node))).ndim
    groups: list[list[tuple[Any, int]]] = [[] for _ in range(rank)]
    for n in node.all_input_nodes:
        shape = fake(n).shape if isinstance(fake(n), torch.Tensor) else ()
        for at, size in enumerate(shape):
            if is_symbolic(size) or size != 1:
                groups[at - len(shape) + rank].append((n, at))
    alike = _agree(g, *groups)
    for d, same in enumerate(groups):
        if same:
            _set_factors(g, node, d, factors(g, *same[0]))
    return alike


def _padded_dims(g: Graph, sizes: Sequence[Any]) -> list[int]:
    return [g.sizes(s) for s in sizes]


def inside(g: Graph, parts: Factors, x: Value, d: int) -> Value | None:
    """Where along a dim made of `parts` the value has elements, at its shape; None where it has no padding."""
    b, result = g.b, None
    position = b.iota((x.shape[d],), 0, torch.int32)
    stride = x.shape[d]
    for size in parts:
        padded = g.sizes(size)
        stride //= max(padded, 1)
        if is_symbolic(size):
            index = b.remainder(*b.operands(b.divide(*b.operands(position, b.full((), stride, torch.int32))),
                                            b.full((), padded, torch.int32)))  # fmt: skip
            here = index < _i32(g, g.extent(size))
            result = here if result is None else result & here
    return None if result is None else b.broadcast_in_dim(result, x.shape, [d])


def clear(g: Graph, node: Any, x: Any, value: Any, dims: Sequence[int] | None = None) -> Any:
    """A node's value with `value` as its padding along some dims (all)."""
    if not isinstance(x, Value):
        return x
    return _clear(g, x, value, {d: factors(g, node, d) for d in (range(x.ndim) if dims is None else dims)})


def clear_dense(g: Graph, node: Any, x: Any, value: Any, dims: Sequence[int] | None = None) -> Any:
    """The same for a value that has been made dense."""
    if not isinstance(x, Value):
        return x
    return _clear(g, x, value, {d: (fake(node).shape[d],) for d in (range(x.ndim) if dims is None else dims)})


def _clear(g: Graph, x: Value, value: Any, parts: dict[int, Factors]) -> Value:
    for d, made_of in parts.items():
        here = inside(g, made_of, x, d)
        if here is not None:
            x = g.b.select(here, x, g.b.full((), value, x.dtype))
    return x


def dense(g: Graph, node: Any) -> Any:
    """A node's value without padding inside its dims."""
    x, like = g.env[node], fake(node)
    if not isinstance(x, Value) or not any((node, d) in g.factors for d in range(x.ndim)):
        return x
    split = [size for d in range(x.ndim) for size in factors(g, node, d)]
    marked = g.mark(g.b.reshape(x, _padded_dims(g, split)), split)
    return g.whole(g.b.reshape(marked, g.sizes.shape(like.shape)), like.shape)


def _reshape(g: Graph, node: Node) -> Value:
    """A reshape that only joins and splits whole dims moves nothing; any other looks up where each element was."""
    (source,) = node.all_input_nodes[:1]
    groups = _groups(g, source, node)
    if groups is None:
        return _looked_up(g, source, node)
    for d, group in enumerate(groups):
        if any(is_symbolic(s) for s in group):
            _set_factors(g, node, d, group)
    return g.b.reshape(g.env[source], [_product_of(_padded_dims(g, group)) for group in groups])


def _groups(g: Graph, source: Node, node: Node) -> list[Factors] | None:
    """The factors of the source that each dim of the result is made of; None where they do not fit."""
    left = [size for d in range(fake(source).ndim) for size in factors(g, source, d)]
    groups: list[Factors] = []
    for size in fake(node).shape:
        group: list[Any] = []
        rest = expression(size)
        while rest != 1:
            if not left:
                return None
            factor = left.pop(0)
            e = expression(factor)
            quotient = rest / e
            if quotient.is_Rational and not quotient.is_Integer and rest.is_Integer and e.is_Integer and e % rest == 0:
                left.insert(0, int(e / rest))  # a fixed dim that is split
                factor, quotient = int(rest), 1
            elif not (quotient.is_Integer or not quotient.as_numer_denom()[1].free_symbols):
                return None
            if expression(factor) != 1:
                group.append(factor)
            rest = expression_of(quotient)
        groups.append(tuple(group) or (1,))
    return groups


def _looked_up(g: Graph, source: Node, node: Node) -> Value:
    b, after = g.b, fake(node).shape
    padded = g.sizes.shape(after)
    position, stride = b.full(padded, 0, torch.int32), b.full((), 1, torch.int32)
    for d in reversed(range(len(padded))):
        position = position + b.iota(padded, d, torch.int32) * b.broadcast_to(stride, padded)
        stride = stride * _i32(g, g.extent(after[d]))
    return element_at(g, source, position)


def element_at(g: Graph, source: Node, position: Value) -> Value:
    """The source's elements at these places of it as it would be without padding, row by row."""
    x, place = dense(g, source), padded_place(g, source, position)
    flat = lower_op(g.b, aten.index_select.default, [x.reshape(x.numel), 0, place.reshape(place.numel)])
    return _only(flat).reshape(*place.shape)


def padded_place(g: Graph, source: Node, position: Value) -> Value:
    """Where in a dense padded value what would be at these places without padding is."""
    b, before, padded = g.b, fake(source).shape, position.shape
    place, stride = b.full(padded, 0, torch.int32), 1
    for size in reversed(before):
        true = b.broadcast_to(_i32(g, g.extent(size)), padded)
        place = place + b.remainder(position, true) * stride
        position = b.divide(position, true)
        stride *= g.sizes(size)
    return place


def row_major(value: torch.Tensor) -> bool:
    """Whether a tensor's strides are those of a contiguous one, at any sizes."""
    expected = expression(1)
    for size, stride in zip(reversed(value.shape), reversed(value.stride())):
        if expression(size) != 1 and expression(stride) != expected:
            return False
        expected = expected * expression(size)
    return True


def expression_of(value: Any) -> Any:
    """A sympy expression of a number or an expression."""
    import sympy

    return sympy.sympify(value)


def _product_of(sizes: Sequence[int]) -> int:
    result = 1
    for s in sizes:
        result *= s
    return result


# ---- ops of their own


Handler = Callable[..., Any]
HANDLERS: dict[OpOverload, Handler] = {}

# The numbers that may differ from call to call: their handlers know these, or do not use them.
_TAKE_SIZES: dict[OpOverload, set[str]] = {
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: {"max_q", "max_k"},
    aten.select.int: {"index"},
    aten.slice.Tensor: {"start", "end"},
    aten.slice_scatter.default: {"start", "end"},
    aten.slice_backward.default: {"input_sizes", "start", "end"},
    aten.select_backward.default: {"input_sizes", "index"},
    aten.expand.default: {"size"},
    aten.constant_pad_nd.default: {"pad"},
    aten.split_with_sizes.default: {"split_sizes"},
    aten.as_strided.default: {"size", "stride", "storage_offset"},
    aten.as_strided_scatter.default: {"size", "stride", "storage_offset"},
    aten.tril.default: {"diagonal"},
    aten.triu.default: {"diagonal"},
    aten.unfold_backward.default: {"input_sizes"},
    aten.diagonal_backward.default: {"input_sizes"},
}


def handler(*ops: OpOverload) -> Callable[[Handler], Handler]:
    """Register the decorated function for padded programs."""

    def decorate(fn: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(ops, fn))
        return fn

    return decorate


def _i32(g: Graph, x: Any) -> Value:
    from .lower import Extent

    return x.true if isinstance(x, Extent) else g.b.full((), int(x), torch.int32)


def _true_size(g: Graph, node: Any, dim: int) -> Value:
    return _i32(g, g.extent(fake(node).shape[dim]))


def _product(g: Graph, node: Node, specs: Specs) -> Any:
    """mm, bmm, addmm, baddbmm: zeros along the contracted dim; rows and columns stay as they are made."""
    x: Any
    y: Any
    x, y = node.args[-2:]
    rank = fake(x).ndim
    _agree(g, [(x, rank - 1), (y, rank - 2)])
    left = clear(g, x, g.env[x], 0, [rank - 1])
    right = clear(g, y, g.env[y], 0, [rank - 2])
    _set_factors(g, node, rank - 2, factors(g, x, rank - 2))
    _set_factors(g, node, rank - 1, factors(g, y, rank - 1))
    shape = (*left.shape[:-1], right.shape[-1])
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), g.env.__getitem__)
    args, kwargs = numbers_at_run_time(g.b, node.target, args, kwargs)  # type: ignore[arg-type]
    return g.lower(node, [*args[:-2], left, right], kwargs, [TensorSpec(shape, s.dtype) for s in specs if s])


def _moved(g: Graph, node: Node, order: Sequence[int]) -> None:
    for d, was in enumerate(order):
        _set_factors(g, node, d, factors(g, node.args[0], was))


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
        _set_factors(g, node, d + (d >= dim), factors(g, node.args[0], d))
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
            _set_factors(g, node, d + rank - x.ndim, factors(g, node.args[0], d))
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
        _make_dense(g, [of])
        x = dense(g, of)
    neutral = _NEUTRAL[node.target.overloadpacket](x.dtype)  # type: ignore[union-attr]
    kept = [d for d in range(x.ndim) if d not in dims]
    for i, d in enumerate(kept):
        _set_factors(g, node, d if keepdim else i, factors(g, of, d))
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
        count = count * _true_size(g, node, d)
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
        _set_factors(g, node, d, factors(g, node.args[0], d))
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
    starts, end = [b.full((), 0, torch.int32)] * len(shape), _true_size(g, parts[0][0], dim)
    for n, x in parts[1:]:
        starts[dim] = end
        joined = b.dynamic_update_slice(joined, x, starts)
        end = end + _true_size(g, n, dim)
    return g.leave(joined, spec.shape)


@handler(aten.flip.default)
def flip(g: Graph, node: Node, specs: Specs, x: Value, dims: Sequence[int]) -> Value:
    of = node.args[0]
    x = g.b.reverse(dense(g, of), [d % x.ndim for d in dims])
    for d in (d % x.ndim for d in dims):
        if is_symbolic(fake(of).shape[d]):  # type: ignore[arg-type]
            padding = g.b.full((), x.shape[d], torch.int32) - _true_size(g, of, d)
            x = _from(g, x, d, padding, x.shape[d])
    return x


def is_extent(x: Any) -> bool:
    """Whether it is a size that differs from call to call."""
    from .lower import Extent

    return isinstance(x, Extent)


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
        stride = stride * _true_size(g, of, d).to(torch.int64)
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
    _agree(g, *([(x, d), (target, i)] for i, d in enumerate(places)))
    classes = clear(g, target, g.env[target], int(ignore_index))
    logits = clear(g, x, g.env[x], 0)
    if backward:
        for d in range(logits.ndim):
            _set_factors(g, node, d, factors(g, x, d))
    elif not reduction_:
        for i, d in enumerate(places):
            _set_factors(g, node, i, factors(g, x, d))
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


def _only(value: Any) -> Value:
    assert isinstance(value, Value)
    return value


def _from(g: Graph, x: Value, dim: int, start: Value, count: int) -> Value:
    """`count` elements of a dim from a start known at run time."""
    b = g.b
    room = b.pad(x, 0, [0] * x.ndim, _with([0] * x.ndim, dim, count))  # a window that sticks out reads padding
    return b.dynamic_slice(room, _starts(g, x.ndim, dim, start), _with(x.shape, dim, count))


@handler(aten.select.int)
def select(g: Graph, node: Node, specs: Specs, x: Value, dim: int, index: int) -> Value:
    from .lower import Extent

    x, dim = dense(g, node.args[0]), dim % x.ndim
    size = fake(node.args[0]).shape[dim]  # type: ignore[arg-type]
    if not is_symbolic(size) or (not isinstance(index, Extent) and index >= 0):
        return _only(g.lower(node, (x, dim, int(index)), {}, specs))
    start = _i32(g, index)
    if not isinstance(index, Extent):
        start = _true_size(g, node.args[0], dim) + start
    return g.b.reshape(_from(g, x, dim, start, 1), (*x.shape[:dim], *x.shape[dim + 1 :]))


@handler(aten.slice.Tensor)
def slice_(
    g: Graph, node: Node, specs: Specs, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    from .lower import Extent

    x, dim = dense(g, node.args[0]), dim % x.ndim
    shape = fake(node).shape
    if not (is_symbolic(fake(node.args[0]).shape[dim]) or is_symbolic(shape[dim])):  # type: ignore[arg-type]
        if not is_extent(start):
            return _only(g.lower(node, (x, dim, start, end, step), {}, specs))
        reach = _with(x.shape, dim, (shape[dim] - 1) * step + 1)
        whole = g.b.dynamic_slice(x, _starts(g, x.ndim, dim, _i32(g, start)), reach)
        return g.b.slice_dim(whole, dim, 0, whole.shape[dim], step)
    count = max((g.sizes(shape[dim]) - 1) * step + 1, 0)
    if start is None or (not isinstance(start, Extent) and start >= 0):
        begin = int(start or 0)
        if begin + count <= x.shape[dim]:
            return g.b.slice_dim(x, dim, begin, begin + count, step)
        at = g.b.full((), begin, torch.int32)
    else:
        at = _i32(g, start)
        if not isinstance(start, Extent):
            at = _true_size(g, node.args[0], dim) + at
    return g.b.slice_dim(_from(g, x, dim, at, count), dim, 0, count, step)


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
    from .lower import Extent

    b, of = g.b, node.args[1]
    x, src, dim = dense(g, node.args[0]), dense(g, of), dim % x.ndim
    dynamic = is_extent(start) or any(is_symbolic(s) for n in node.args[:2] for s in fake(n).shape)  # type: ignore[arg-type]
    if not dynamic:
        return _only(g.lower(node, (x, src, dim, start, end, step), {}, specs))
    if step != 1 or x.shape[:dim] + x.shape[dim + 1 :] != src.shape[:dim] + src.shape[dim + 1 :]:
        raise NotImplementedError(f"{node.target} with a step, or of sizes padded in different ways")
    at = _i32(g, 0 if start is None else start)
    if not isinstance(start, Extent) and start is not None and start < 0:
        at = _true_size(g, node.args[0], dim) + at
    room = b.pad(x, 0, [0] * x.ndim, _with([0] * x.ndim, dim, src.shape[dim]))  # for a part that sticks out
    starts = _starts(g, x.ndim, dim, at)
    here = inside(g, (fake(of).shape[dim],), src, dim)  # type: ignore[arg-type]
    if here is not None:
        src = b.select(here, src.to(x.dtype), b.dynamic_slice(room, starts, src.shape))
    return b.slice_dim(b.dynamic_update_slice(room, src.to(x.dtype), starts), dim, 0, x.shape[dim])


def _with(items: Sequence[Any], at: int, item: Any) -> list[Any]:
    return [item if i == at else old for i, old in enumerate(items)]


def _starts(g: Graph, rank: int, dim: int, start: Value) -> list[Value]:
    return _with([g.b.full((), 0, torch.int32)] * rank, dim, start)


@handler(aten.slice_backward.default, aten.select_backward.default)
def part_backward(g: Graph, node: Node, specs: Specs, x: Value, size: Any, dim: int, start: Any, *rest: Any) -> Value:
    """The gradient of a part at its place among zeros."""
    from .lower import Extent

    b, (like,) = g.b, specs
    assert like is not None
    of, dim, x = node.args[0], dim % len(like.shape), dense(g, node.args[0])
    if node.target is aten.select_backward.default:
        part = b.unsqueeze(x, dim)
    else:
        apart = [rest[1] - 1 if d == dim else 0 for d in range(x.ndim)]
        part = b.pad(clear_dense(g, of, x, 0, [dim]), 0, [0] * x.ndim, [0] * x.ndim, apart)
    at = _i32(g, 0 if start is None else start)
    if not isinstance(start, Extent | None) and start < 0:
        at = _i32(g, g.extent(fake(node).shape[dim])) + at
    shape = list(like.shape)
    shape[dim] += part.shape[dim]  # a part that sticks out is padding
    starts = _starts(g, len(shape), dim, at)
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
    from .lower import Extent

    return (x.true if isinstance(x, Extent) else g.b.scalar(x, dtype)).to(dtype)


from . import padded_indexing  # noqa: E402, F401 - registers its handlers

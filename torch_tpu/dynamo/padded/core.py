"""What a padded program needs beyond the lowering rules.

Values come and go with anything as padding. To most ops it is of no interest; others get it cleared to what does not
count in them (0 in a sum, -inf in a maximum); for the rest XLA is told the true sizes (`Graph.mark`). A dim made of
several, as by x.flatten(0, 1), keeps its padding inside: it has *factors*, and is made dense only where it must be.

An op of none of these kinds makes its graph compile for exact sizes, with the reason recorded. Each op named here is
tested against the CPU in tests/test_compile_dynamic.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from torch_tpu.lowering.registry import lower_op
from torch_tpu.lowering.value import TensorSpec, Value

from .. import plan as planning
from ..plan import draws, fake, tensors
from ..shapes import expression, is_symbolic

if TYPE_CHECKING:
    from torch_tpu.lowering.builder import Builder

    from ..lower import Graph

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
        g.b.true_sizes = [int32(g, g.extent(size)) for size in drawn.shape]
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
    from ..lower import Extent

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


def set_factors(g: Graph, node: Node, d: int, found: Factors) -> None:
    """Remember what a dim of a node is made of, if it is of several."""
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


def agree(g: Graph, *groups: Places) -> bool:
    """Whether the dims of each group are made alike; if not, their nodes are made dense, after which they must be."""

    def alike() -> bool:
        layouts = [[_layout(g, factors(g, n, d)) for n, d in same] for same in groups]
        return all(other == same[0] for same in layouts for other in same)

    if alike():
        return True
    make_dense(g, {n for same in groups for n, _ in same})
    if not alike():
        raise NotImplementedError("one size, padded in different ways")
    return False


def make_dense(g: Graph, nodes: Iterable[Any]) -> None:
    """Make the nodes' values dense for all that reads them from here on."""
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
    alike = agree(g, *groups)
    for d, same in enumerate(groups):
        if same:
            set_factors(g, node, d, factors(g, *same[0]))
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
            here = index < int32(g, g.extent(size))
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
            set_factors(g, node, d, group)
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
        stride = stride * int32(g, g.extent(after[d]))
    return element_at(g, source, position)


def element_at(g: Graph, source: Node, position: Value) -> Value:
    """The source's elements at these places of it as it would be without padding, row by row."""
    x, place = dense(g, source), padded_place(g, source, position)
    flat = lower_op(g.b, aten.index_select.default, [x.reshape(x.numel), 0, place.reshape(place.numel)])
    return only(flat).reshape(*place.shape)


def padded_place(g: Graph, source: Node, position: Value) -> Value:
    """Where in a dense padded value what would be at these places without padding is."""
    b, before, padded = g.b, fake(source).shape, position.shape
    place, stride = b.full(padded, 0, torch.int32), 1
    for size in reversed(before):
        true = b.broadcast_to(int32(g, g.extent(size)), padded)
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


def int32(g: Graph, x: Any) -> Value:
    """A number as it is at run time."""
    from ..lower import Extent

    return x.true if isinstance(x, Extent) else g.b.full((), int(x), torch.int32)


def true_size(g: Graph, node: Any, dim: int) -> Value:
    """A node's size as it is at run time, int32."""
    return int32(g, g.extent(fake(node).shape[dim]))


def _product(g: Graph, node: Node, specs: Specs) -> Any:
    """mm, bmm, addmm, baddbmm: zeros along the contracted dim; rows and columns stay as they are made."""
    x: Any
    y: Any
    x, y = node.args[-2:]
    rank = fake(x).ndim
    agree(g, [(x, rank - 1), (y, rank - 2)])
    left = clear(g, x, g.env[x], 0, [rank - 1])
    right = clear(g, y, g.env[y], 0, [rank - 2])
    set_factors(g, node, rank - 2, factors(g, x, rank - 2))
    set_factors(g, node, rank - 1, factors(g, y, rank - 1))
    shape = (*left.shape[:-1], right.shape[-1])
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), g.env.__getitem__)
    args, kwargs = numbers_at_run_time(g.b, node.target, args, kwargs)  # type: ignore[arg-type]
    return g.lower(node, [*args[:-2], left, right], kwargs, [TensorSpec(shape, s.dtype) for s in specs if s])


def is_extent(x: Any) -> bool:
    """Whether it is a size that differs from call to call."""
    from ..lower import Extent

    return isinstance(x, Extent)


def only(value: Any) -> Value:
    """The value of an op with one result."""
    assert isinstance(value, Value)
    return value


def window(g: Graph, x: Value, dim: int, start: Value, count: int) -> Value:
    """`count` elements of a dim from a start known at run time."""
    b = g.b
    room = b.pad(x, 0, [0] * x.ndim, replaced([0] * x.ndim, dim, count))  # a window that sticks out reads padding
    return b.dynamic_slice(room, starts_at(g, x.ndim, dim, start), replaced(x.shape, dim, count))


def replaced(items: Sequence[Any], at: int, item: Any) -> list[Any]:
    """The items with another one at a place."""
    return [item if i == at else old for i, old in enumerate(items)]


def starts_at(g: Graph, rank: int, dim: int, start: Value) -> list[Value]:
    """Where a slice begins: at `start` along a dim, at 0 along the others."""
    return replaced([g.b.full((), 0, torch.int32)] * rank, dim, start)

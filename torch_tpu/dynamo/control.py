"""Higher-order ops: control flow becomes StableHLO's case and while, a nested region becomes part of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops._invoke_quant import invoke_quant, invoke_quant_packed
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx import GraphModule, Node

from torch_tpu.lowering.value import Value

from .plan import COPY, attribute, draws, fake, tensors

if TYPE_CHECKING:
    from .lower import Graph

Handler = Callable[..., Any]
HANDLERS: dict[HigherOrderOperator, Handler] = {}


def handler(op: HigherOrderOperator) -> Callable[[Handler], Handler]:
    """Register the decorated function, which gets the graph, the node and the op's arguments."""

    def decorate(fn: Handler) -> Handler:
        HANDLERS[op] = fn
        return fn

    return decorate


def why_not(node: Node, why_not_inside: Callable[[Node], str]) -> str:
    """Why a higher-order op cannot be part of a program; empty if it can."""
    if node.target in (run_and_save_rng_state, run_with_rng_state):
        return ""
    if node.target not in HANDLERS:
        return "a higher-order operator without a lowering"
    for inner in (n for graph in subgraphs(node) for n in graph.graph.nodes):
        if inner.target is COPY:
            return "writes to an input inside"
        if draws(inner):
            return "draws random numbers inside"
        if reason := why_not_inside(inner):
            return f"{inner.target} inside: {reason}"
    return ""


def subgraphs(node: Node) -> Iterator[GraphModule]:
    """The graphs that a higher-order op calls."""
    owner = node.graph.owning_module
    for argument in node.all_input_nodes:
        found = attribute(owner, str(argument.target)) if argument.op == "get_attr" and owner is not None else None
        if isinstance(found, GraphModule):
            yield found


def lower(g: Graph, node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Lower a higher-order op."""
    target = node.target
    assert isinstance(target, HigherOrderOperator)
    return HANDLERS[target](g, node, *args, **kwargs)


def _call(g: Graph, graph: GraphModule, arguments: Sequence[Any], like: Sequence[Any] | None = None) -> list[Any]:
    """The results of a subgraph; those that are tensors in the dtypes of `like`."""
    results = g.inline(graph, arguments)
    if like is None:
        return results
    # A branch may return a Python number where the other has a tensor.
    return [g.b.scalar(r, v.dtype) if isinstance(v, torch.Tensor | Value) else r for r, v in zip(results, like)]


@handler(invoke_quant)
@handler(invoke_quant_packed)
def _invoke_quant(g: Graph, node: Node, graph: GraphModule, *operands: Any, **_: Any) -> Any:
    """The region as it is: what its scheme asks of a compiler's kernels does not change its values."""
    return _call(g, graph, operands)


@handler(invoke_subgraph)
def _invoke(g: Graph, node: Node, graph: GraphModule, identifier: str, *operands: Any) -> Any:
    return _call(g, graph, operands)


@handler(cond_op)
def _cond(g: Graph, node: Node, pred: Any, true: GraphModule, false: GraphModule, operands: Sequence[Any] = ()) -> Any:
    if isinstance(pred, bool):
        return _call(g, true if pred else false, operands)
    b, like = g.b, fake(node)
    present = [i for i, v in enumerate(like) if v is not None]  # a gradient that is not wanted is None

    def branch(graph: GraphModule) -> Callable[..., list[Value]]:
        def body() -> list[Value]:
            results = _call(g, graph, operands, like)
            return [results[i] for i in present]

        return body

    found = dict(zip(present, b.if_(b.reshape(pred, ()).to(torch.bool), branch(true), branch(false))))
    return [found.get(i) for i in range(len(like))]


@handler(while_loop_op)
def _while(
    g: Graph, node: Node, cond: GraphModule, body: GraphModule, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    like = fake(node)
    state = [g.b.scalar(x, v.dtype) for x, v in zip(carried, like)]

    def proceeds(*values: Value) -> Value:
        (result,) = _call(g, cond, [*values, *additional])
        return g.b.reshape(g.b.scalar(result, torch.bool), ())

    return g.b.while_loop(state, proceeds, lambda *values: _call(g, body, [*values, *additional], like))


@handler(scan_op)
def _scan(
    g: Graph, node: Node, combine: GraphModule, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    return _loop(g, node, combine, list(init), list(xs), additional)


@handler(map_impl)
def _map(g: Graph, node: Node, f: GraphModule, xs: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    return _loop(g, node, f, [], list(xs), additional)


def _loop(
    g: Graph, node: Node, step: GraphModule, carry: list[Value], xs: list[Value], additional: Sequence[Any]
) -> list[Any]:
    """carry, y = step(carry, x) over the leading dim of xs; returns the last carry and the stacked ys."""
    b, like, count = g.b, fake(node), len(carry)
    stacked = [i for i in range(count, len(like)) if like[i] is not None]  # a gradient that is not wanted is None
    outputs = [b.full(g.sizes.shape(like[i].shape), 0, like[i].dtype) for i in stacked]
    zero, length = b.full((), 0, torch.int32), xs[0].shape[0]

    def starts(position: Value, rank: int) -> list[Value]:
        return [position] + [b.full((), 0, torch.int32)] * (rank - 1)

    def item(x: Value, position: Value) -> Value:
        return b.reshape(b.dynamic_slice(x, starts(position, x.ndim), (1, *x.shape[1:])), x.shape[1:])

    def body(position: Value, *state: Value) -> list[Value]:
        arguments = [*state[:count], *(item(x, position) for x in xs), *additional]
        results = _call(g, step, arguments)
        carried = [b.scalar(r, s.dtype) for r, s in zip(results, state[:count])]
        written = [
            b.dynamic_update_slice(out, b.unsqueeze(b.scalar(results[i], out.dtype), 0), starts(position, out.ndim))
            for i, out in zip(stacked, state[count:])
        ]
        return [position + 1, *carried, *written]

    state = [b.scalar(x, v.dtype) for x, v in zip(carry, like)]
    _, *final = b.while_loop([zero, *state, *outputs], lambda position, *_: position < length, body)
    found = dict(zip([*range(count), *stacked], final))
    return [found.get(i) for i in range(len(like))]


# ---- random numbers that a checkpointed block draws again


@handler(run_and_save_rng_state)
def _run_and_save(g: Graph, node: Node, op: Any, *args: Any, **kwargs: Any) -> Any:
    rng = next(g.rngs)
    return [rng, g.lower_op(op, args, kwargs, g.specs(fake(node)[1]), rng)]


@handler(run_with_rng_state)
def _run_with(g: Graph, node: Node, rng: Value, op: Any, *args: Any, **kwargs: Any) -> Any:
    return g.lower_op(op, args, kwargs, g.specs(fake(node)), rng)


def save_seeds(forward: GraphModule, backward: GraphModule) -> None:
    """Make the random states, which the partitioner takes for the host's, the pairs that programs draw from.

    A forward program then returns the seed and offset that it drew from, and the backward program draws from it again.
    """
    for node in forward.graph.find_nodes(op="call_function", target=run_and_save_rng_state):
        op, *args = node.args
        state = next(user for user in node.users if user.args[1] == 0)
        state.meta["val"], result = _pair_and_result(op, args, node.kwargs)
        node.meta["val"] = (None, result)
    for node in backward.graph.find_nodes(op="call_function", target=run_with_rng_state):
        state, op, *args = node.args
        state.meta["val"], node.meta["val"] = _pair_and_result(op, args, node.kwargs)


def _pair_and_result(op: OpOverload, args: Sequence[Any], kwargs: Any) -> tuple[Any, Any]:
    args, kwargs = torch.fx.map_arg((tuple(args), kwargs), fake)
    drawn_like: Any = next(tensors(args))
    with drawn_like.fake_mode:
        result = op(*args, **kwargs)
        device = next(tensors(result)).device
        return torch.empty(2, dtype=torch.uint64, device=device), result

"""From an FX graph to a StableHLO module, node by node through the lowering registry.

In a padded program some sizes are larger than the tensors, and the true ones are parameters. What the padding holds
is of no interest to most ops; the inputs of the others are marked with the true sizes (set_dimension_size), so that
XLA itself leaves the padding out of reductions, products, sorts and joins, and their results unmarked again. Rules see
the padded sizes as plain ints. `padded` knows which ops are which.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from torch_tpu.compiler.program import Scalars
from torch_tpu.lowering import mlir, registry
from torch_tpu.lowering.builder import Builder, TensorSpec, Value

from . import control
from .plan import COPY, Plan, attribute, draws, fake, scalar_words
from .shapes import Sizes, expression, is_symbolic


def module(plan: Plan, precision: str, platform_name: str) -> Any:
    """The StableHLO module of a plan, for a platform (tpu or cpu)."""
    b = Builder(platform=platform_name, matmul_precision=precision)
    specs = [TensorSpec(p.shape, p.dtype) for p in plan.parameters if p.use == 0]
    words = scalar_words(plan)
    if words:
        specs.append(TensorSpec((words,), torch.int32))
    with b.program(specs, *_donations(plan)) as inputs:
        scalars = Scalars(b, inputs[-1] if words else None, 0)
        tensors = iter(inputs)
        arguments: list[Any] = []
        for p in plan.parameters:
            if p.use == 0:
                arguments.append(next(tensors))
            else:
                arguments.append(scalars.take(p.kind, p.dtype, p.weak) if p.use == 1 else None)
        rngs = [scalars.pair(torch.uint64) for _ in plan.draws]
        true = {symbol: scalars.take(torch.int32, torch.int32, False) for symbol in plan.symbols}
        graph = Graph(b, plan.graph, plan.sizes, true, rngs)
        graph.waits = plan.waits
        try:
            graph.run(arguments)
        except mlir.ir.MLIRError as error:  # a rule that does not fit padded sizes
            raise NotImplementedError(str(error)) from error
        results = [graph.result(r.node).to(r.dtype) for r in plan.results]
        b.finish([v if r.padded is None else graph.leave(v, r.padded) for v, r in zip(results, plan.results)])
    return b.module


def _donations(plan: Plan) -> tuple[dict[int, int], list[int]]:
    """Mutated inputs lend their buffer to what is written to them, other donors to whichever result fits."""
    position: dict[int, int] = {}
    for i, p in enumerate(plan.parameters):
        if p.use == 0:
            position[i] = len(position)
    aliases: dict[int, int] = {}
    for result, parameter in plan.writes:
        p, r = plan.parameters[parameter], plan.results[result]
        fits = p.donated and (p.shape, p.dtype) == (r.shape, r.dtype)
        if fits and position[parameter] not in aliases and result not in aliases.values():
            aliases[position[parameter]] = result
    donors = [position[i] for i, p in enumerate(plan.parameters) if p.donated and position[i] not in aliases]
    return aliases, donors


_REAL: dict[str, Callable[..., Value]] = {
    "ToFloat": lambda b, x: x,
    "OpaqueUnaryFn_sqrt": lambda b, x: b.sqrt(x),
    "Add": lambda b, x, y: x + y,
    "Mul": lambda b, x, y: x * y,
    "IntTrueDiv": lambda b, x, y: x / y,
    "FloatTrueDiv": lambda b, x, y: x / y,
    "Pow": lambda b, x, y: b.power(x, y),
    "FloatPow": lambda b, x, y: b.power(x, y),
}


_ROUNDED: dict[str, Callable[[Builder, Value], Value]] = {
    "TruncToInt": Builder.truncate,
    "FloorToInt": Builder.floor,
    "CeilToInt": Builder.ceil,
    "RoundToInt": Builder.round_nearest_even,
}


class Extent(int):
    """A size in a padded program: as an int the padded one, `true` the one at run time, an int32 Value."""

    true: Value

    @staticmethod
    def of(padded: int, true: Value) -> Extent:
        """The pair."""
        extent = Extent(padded)
        extent.true = true
        return extent


class Graph:
    """Lowers the nodes of one graph into the program being built."""

    def __init__(
        self, b: Builder, graph: GraphModule, sizes: Sizes, true: dict[Any, Value], rngs: Sequence[Value]
    ) -> None:
        self.b = b
        self.graph = graph
        self.sizes = sizes
        self.symbols = true
        self.rngs = iter(rngs)
        self.env: dict[Node, Any] = {}
        self.waits: Mapping[tuple[Node, Node], Node] = {}
        self.factors: dict[tuple[Node, int], tuple[Any, ...]] = {}  # of padded programs: what a dim is made of
        self._true: dict[Any, Value] = {}

    def run(self, arguments: Sequence[Any]) -> dict[Node, Any]:
        """The value of every node."""
        remaining = iter(arguments)
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = self._sized(next(remaining), node)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "call_function":
                self.env[node] = self._sized(self._call(node), node)
        return self.env

    def result(self, node: Node) -> Value:
        """A node's value for the outside."""
        from . import padded

        value: Value = padded.dense(self, node) if self.symbols else self.env[node]
        return value

    # ---- sizes

    def extent(self, size: int | torch.SymInt) -> int:
        """A size: an int, or an Extent where it differs from call to call."""
        if not self.symbols or not is_symbolic(size):
            return self.sizes(size)
        return Extent.of(self.sizes(size), self._size(expression(size)))

    def _size(self, e: Any) -> Value:
        found = self._true.get(e)
        if found is None:
            found = self._true[e] = self._lower_size(e)
        return found

    def _lower_size(self, e: Any) -> Value:
        b = self.b
        if e.is_Symbol:
            return self.symbols[e]
        if e.is_Integer:
            return b.full((), int(e), torch.int32)
        name = type(e).__name__
        if round_ := _ROUNDED.get(name):
            return round_(b, self._real(e.args[0])).to(torch.int32)
        arguments = [self._size(a) for a in e.args]
        if name == "Pow" and e.args[1].is_Integer:
            arguments = [arguments[0]] * int(e.args[1])
        combine = {
            "Add": b.add, "Mul": b.multiply, "Pow": b.multiply, "FloorDiv": self._floor_divide,
            "CleanDiv": b.divide, "Mod": b.remainder, "PythonMod": self._modulo, "Max": b.maximum, "Min": b.minimum,
        }.get(name)  # fmt: skip
        if combine is None:
            raise NotImplementedError(f"a size that is {e}")
        result = arguments[0]
        for argument in arguments[1:]:
            result = combine(result, argument)
        return result

    def _modulo(self, x: Value, y: Value) -> Value:
        """As Python's, of a positive y: sizes computed from others may be negative."""
        return self.b.remainder(self.b.remainder(x, y) + y, y)

    def _floor_divide(self, x: Value, y: Value) -> Value:
        return self.b.divide(x - self._modulo(x, y), y)

    def _sized(self, value: Any, node: Node) -> Any:
        size = fake(node)
        if isinstance(size, torch.SymInt):
            return self.extent(size)
        if not isinstance(size, torch.SymFloat):
            return value
        if not self.symbols:
            return self.sizes.number(size)
        return Value(self.b, self._real(size.node.expr).ir, (), torch.float64, weak=True)

    def _real(self, e: Any) -> Value:
        """A number computed from sizes, in the precision of Python's."""
        b = self.b
        if e.is_Number:
            return b.full((), float(e), torch.float64)
        if e.is_integer:
            return self._size(e).to(torch.float64)
        combine = _REAL.get(type(e).__name__)
        if combine is None:
            raise NotImplementedError(f"a number that is {e}")
        first, *others = (self._real(a) for a in e.args)
        return functools.reduce(functools.partial(combine, b), others, first) if others else combine(b, first)

    def mark(self, x: Value, shape: Sequence[Any]) -> Value:
        """The value with its true sizes."""
        for d, size in enumerate(shape):
            if self.symbols and is_symbolic(size):
                x = self.b.set_dimension_size(x, self._size(expression(size)), d)
        return x

    def whole(self, x: Value, shape: Sequence[Any]) -> Value:
        """An op's marked result unmarked, zero where it is padding.

        A written array is of static size where the update cannot fill it; XLA makes a fused select of this. The update
        must be an op's result: for a mark itself XLA fails to compile.
        """
        if not any(is_symbolic(s) for s in shape):
            return x
        b = self.b
        larger = b.full([d + is_symbolic(s) for d, s in zip(x.shape, shape)], 0, x.dtype)
        zero = b.full((), 0, torch.int32)
        return b.slice(b.dynamic_update_slice(larger, x, [zero] * x.ndim), [0] * x.ndim, x.shape)

    def leave(self, x: Value, dims: Sequence[int]) -> Value:
        """The value as it leaves the program, under these dims."""
        low = [0] * x.ndim
        cut = [min(a, b) for a, b in zip(x.shape, dims)]
        if tuple(dims) == x.shape:
            return x
        return self.b.pad(self.b.slice(x, low, cut), 0, low, [d - c for d, c in zip(dims, cut)])

    # ---- nodes

    def _attribute(self, node: Node) -> Any:
        found = attribute(self.graph, str(node.target))
        return found if isinstance(found, GraphModule) else self.b.constant(found.detach().cpu(), found.dtype)

    def _call(self, node: Node) -> Any:
        if isinstance(fake(node), torch.SymInt | torch.SymFloat):
            return None
        target = node.target
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: self._awaited(node, n))
        if isinstance(target, OpOverload) and not self.symbols:
            args = tuple(self._counts(target, node.args, args))
        if target is COPY:
            return args[1]
        if isinstance(target, HigherOrderOperator):
            return control.lower(self, node, args, kwargs)
        if not isinstance(target, OpOverload):
            if target is operator.getitem:  # the results of an op are made alike
                found = {(node, d): made_of for (n, d), made_of in self.factors.items() if n is node.args[0]}
                self.factors |= found
            return target(*args, **kwargs)  # type: ignore[operator]
        specs = self.specs(fake(node))
        if self.symbols:
            from . import padded

            return padded.lower(self, node, specs, args, kwargs)
        return self.lower(node, args, kwargs, specs)

    def specs(self, value: Any) -> list[TensorSpec | None]:
        """Of an op's flat results, from what tracing knows of them."""
        return [
            TensorSpec(self.sizes.shape(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None
            for t in registry.flatten(value)
        ]

    def inline(self, graph: GraphModule, arguments: Sequence[Any]) -> list[Any]:
        """The results of a graph that is lowered in the middle of this one; it draws no random numbers."""
        inner = Graph(self.b, graph, self.sizes, {}, ())
        env = inner.run(arguments)
        (returned,) = next(node for node in reversed(graph.graph.nodes) if node.op == "output").args
        items = returned if isinstance(returned, list | tuple) else [returned]
        return [env[item] if isinstance(item, Node) else item for item in items]

    def _awaited(self, node: Node, argument: Node) -> Any:
        """What a node reads, not before what it is to wait for."""
        awaited = self.waits.get((node, argument))
        if awaited is None:
            return self.env[argument]
        b, value, gradient = self.b, self.env[argument], self.env[awaited]
        if b.platform != "cpu":
            return b.optimization_barrier(value, gradient)[0]
        # XLA:CPU drops barriers before it schedules; that a bit is less than two it does not find out.
        first = b.reshape(b.slice(gradient, [0] * gradient.ndim, [1] * gradient.ndim), ())
        bit = b.bitcast_convert(first.to(torch.float32), torch.int32) & 1
        return b.select(bit < 2, value, b.full((), 0, value.dtype))

    def _counts(self, op: OpOverload, nodes: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """The arguments with numbers for the sizes that an exact program must know, though its caller gives them."""

        def number(node: Any, value: Any) -> Any:
            if isinstance(node, list | tuple):
                return [number(n, v) for n, v in zip(node, value)]
            return self.sizes(fake(node)) if isinstance(node, Node) and isinstance(value, Value) else value

        types = (str(argument.type) for argument in op._schema.arguments)
        return [
            number(node, value) if type_ in ("int", "Optional[int]", "List[int]", "Optional[List[int]]") else value
            for node, value, type_ in zip(nodes, values, types)
        ]

    def lower(self, node: Node, args: Any, kwargs: Any, specs: Sequence[TensorSpec | None]) -> Any:
        """One op by its rule."""
        op = node.target
        assert isinstance(op, OpOverload)
        return self.lower_op(op, args, kwargs, specs, next(self.rngs) if draws(node) else None)

    def lower_op(
        self, op: OpOverload, args: Any, kwargs: Any, specs: Sequence[TensorSpec | None], rng: Value | None
    ) -> Any:
        """One op by its rule, with the seed and offset that it draws from."""
        if rng is not None:
            kwargs = {name: value for name, value in kwargs.items() if name != "generator"} | {"rng": rng}
        results = registry.lower_op(self.b, op, args, kwargs, specs)
        rule = registry.rule_for(op)
        if rule is not None and rule.mutates:  # functional graphs have no use for the hidden results
            return tuple(results[: len(specs)])
        return results

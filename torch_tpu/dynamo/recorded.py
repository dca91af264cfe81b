"""Fused mode's programs for sizes that differ: one for a bucket of sizes, padded as torch.compile's dynamic graphs.

Two recordings that differ in nothing but sizes tell by their numbers what is computed from what (`relations`). As a
graph of symbolic sizes they are lowered by `padded`. Every further recording is checked number by number before it
runs in a program of the bucket, so a formula that was guessed wrong costs a program, never a result.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torch_tpu import _C
from torch_tpu.compiler import flags
from torch_tpu.compiler.program import SCALAR_DTYPES, Scalars, Signature, overload, signatures
from torch_tpu.lowering import registry, view

from . import padded, programs
from .dynamic import growth, leaving, symbolic_sizes
from .options import Options
from .plan import Parameter, Plan, draws, fake, result, tensors
from .relations import Relations
from .shapes import Sizes, bucket, expression, is_symbolic

aten = torch.ops.aten
Description = dict[str, Any]  # of a recorded program, as the core tells it

FAMILIES = 256  # of recordings that are alike but for their sizes
SAMPLES = 4  # recordings of a family that formulas are looked for in
TEMPLATES = 8  # graphs of a family


@dataclass(frozen=True)
class Padding:
    """A program of a bucket and how a recording runs in it."""

    executable: _C.Executable
    fresh: bool
    """It was made for this recording."""
    inputs: list[tuple[int, ...]]
    """The dims of each input where they are not the recording's; else empty."""
    outputs: list[tuple[int, ...]]
    words: list[int]
    """Which words of the recorded scalars the program takes, in order."""
    sizes: list[int]
    """The words after them."""
    fixed: list[tuple[int, int]]
    """Words of the recorded scalars, and what they must be, since the program was made for them."""


class _Family:
    """Recordings that are alike but for their sizes."""

    def __init__(self, first: Description) -> None:
        self._samples = [(_numbers(first), _sources(first))]
        self._templates: list[_Template] = []

    def padding(self, numbers: list[int], now: Description, scalars: list[int], factor: float, minimum: int) -> Padding:
        """Raises NotImplementedError or ValueError where the recording is to be compiled for its own sizes."""
        fitting = (t for t in self._templates if t.relations.holds(numbers) and t.graph.takes(scalars))
        found = next(fitting, None)
        if found is None:
            found = self._learn(numbers, now, scalars)
        return found.padding(numbers, now, factor, minimum)

    def _learn(self, numbers: list[int], now: Description, scalars: list[int]) -> _Template:
        """Formulas for all recordings so far, or for this one and one other."""
        if len(self._templates) == TEMPLATES:
            raise ValueError("sizes that follow no formula")
        samples, sources = self._samples, _sources(now)
        self._samples = [*samples, (numbers, sources)][-SAMPLES:]
        refusal: Exception = ValueError("a number that is no size differs")
        for others in (samples, *([sample] for sample in reversed(samples) if len(samples) > 1)):
            if all(theirs == sources for _, theirs in others):
                continue
            try:
                template = _Template(Relations([*(n for n, _ in others), numbers]), now, scalars)
            except (NotImplementedError, ValueError) as error:
                refusal = error
                continue
            self._templates.append(template)
            return template
        raise refusal


_families: dict[int, _Family] = {}
_reasons: dict[str, None] = {}


def exact_reasons() -> list[str]:
    """Why programs of fused mode that differ only in sizes were compiled for each."""
    return list(_reasons)


def pad(
    family: int, now: Description, scalars: list[int], first: Description, factor: float, minimum: int
) -> Padding | None:
    """How a recording with these scalar words runs in a program of its bucket; None if it is to be compiled for its own
    sizes. Buckets are `minimum` and each `factor` times the one before. `first` is another recording of its family."""
    try:
        return _pad(family, now, scalars, first, factor, minimum)
    except (NotImplementedError, RuntimeError, ValueError) as error:  # what XLA or a rule cannot pad
        _reasons.setdefault(str(error).splitlines()[0])
        return None


def _pad(family: int, now: Description, scalars: list[int], first: Description, factor: float, minimum: int) -> Padding:
    numbers = _numbers(now)
    if family not in _families:
        if len(_families) >= FAMILIES:
            _families.pop(next(iter(_families)))
        _families[family] = _Family(first)
    return _families[family].padding(numbers, now, scalars, factor, minimum)


def _numbers(description: Description) -> list[int]:
    """All sizes of a recording, and what may be computed from sizes, in an order that its family shares."""
    found = signatures(description)
    of = {id_: [*_arguments(s.arguments), *(n for o in s.outputs if o for n in o[1])] for id_, s in found.items()}
    inputs = [n for _, dims in description["inputs"] for n in dims]
    return inputs + [n for id_, _, _ in description["nodes"] for n in of[id_]]


def _sources(description: Description) -> list[Any]:
    """The sizes that come from outside: of inputs, and of what is made from nothing."""
    found = signatures(description)
    made = [found[id_].outputs for id_, refs, _ in description["nodes"] if not refs]
    return [[dims for _, dims in description["inputs"]], made]


def _arguments(arguments: Sequence[Any]) -> Iterator[int]:
    for argument in arguments:
        if argument[0] == "list":
            yield from _arguments(argument[1])
        elif argument[0] == "static":
            yield from _ints(argument[1])


def _ints(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _ints(item)


class _Template:
    """A family's recordings as one graph of symbolic sizes, and the programs of its buckets."""

    def __init__(self, relations: Relations, now: Description, scalars: list[int]) -> None:
        self.relations = relations
        self.graph = _Tracer(relations, now, scalars)
        self._programs: dict[Any, _C.Executable] = {}
        self.reason = next((why for node in self.graph.module.graph.nodes if (why := padded.why_not(node))), "")
        self._growth = growth(self.graph.module, self.graph.symbols)
        self._sizes = symbolic_sizes(self.graph.module)

    def padding(self, numbers: Sequence[int], now: Description, factor: float, minimum: int) -> Padding:
        if self.reason:
            raise NotImplementedError(self.reason)
        graph, values = self.graph, self.relations.symbols(numbers)
        true = Sizes(dict(zip(graph.symbols, values)))
        if not all(guard.xreplace(true.values) for guard in graph.guards):
            raise NotImplementedError("a size for which PyTorch decomposes an op in another way")
        padded_values = []
        for value, more, seen in zip(values, self._growth, self.relations.columns):
            small = value + more <= max(seen) < minimum  # a batch of 4 whose last is of 3
            padded_values.append(max(seen) if small else bucket(value + more, factor, minimum))
        sizes = Sizes({**dict(zip(graph.symbols, padded_values)), **dict.fromkeys(graph.starts, 0)})
        if any(sizes(size) < true(size) for size in self._sizes):
            raise NotImplementedError("a size that does not grow with its padding")
        plan = graph.plan(sizes, now["donations"])
        left = [leaving(r.node, r.shape, true, lambda size: bucket(size, factor, minimum)) for r in plan.results]
        plan.results = [replace(r, padded=dims) for r, dims in zip(plan.results, left)]
        key = (tuple(padded_values), tuple(left), factor, minimum)
        fresh = key not in self._programs
        if fresh:
            try:
                self._programs[key] = programs.executable(plan, graph.options)[0]
            except (NotImplementedError, RuntimeError, ValueError) as error:  # not to be tried for every size
                self.reason = str(error)
                raise
        return Padding(
            self._programs[key],
            fresh,
            [p.shape if p.padded else () for p in plan.parameters if p.use == 0],
            [dims or () for dims in left],
            graph.words,
            list(values),
            graph.fixed,
        )


class _Tracer:
    """Makes the graph of a recording."""

    def __init__(self, relations: Relations, now: Description, scalars: list[int]) -> None:
        self._recorded_scalars = scalars
        self.fixed: list[tuple[int, int]] = []  # scalar words that became constants
        self._env = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._env)
        symbols = [self._symbol(column[-1]) for column in relations.columns]
        self.symbols = [expression(symbol) for symbol in symbols]
        self.starts: list[Any] = []  # where boxes begin that may lie elsewhere the next time
        values = [form(symbols) for form in relations.forms]
        self._numbers = iter([values[form] for form in relations.form_of])
        self._graph = Graph()
        self._sizes: dict[Any, Node] = {}
        self._scalars: dict[Node, tuple[int, Parameter]] = {}  # and the first word of each
        self._start_words: list[int] = []
        self._draw_words: list[int] = []
        self._device = now["device"]
        found = signatures(now)
        self.options = _options(found.values())
        inputs = [self._input(i, dtype, dims) for i, (dtype, dims) in enumerate(now["inputs"])]
        self._inputs = inputs
        results: list[list[Node | None]] = [list(inputs)]
        for id_, refs, word in now["nodes"]:
            operands = [results[node][index] for node, index in refs]
            results.append(self._node(found[id_], operands, word))
        self._outputs = [results[node][index] for node, index in now["outputs"]]
        self._graph.output(self._outputs)
        self.module = GraphModule({}, self._graph)
        self.guards = [guard.expr for guard in self._env.guards]  # what the decompositions took for granted
        scalar_words = [range(at, at + Scalars.words(p.kind)) for at, p in self._scalars.values()]
        self.words = [*itertools.chain(*scalar_words), *self._draw_words, *self._start_words]

    def takes(self, scalars: list[int]) -> bool:
        """Whether the scalar words that became constants are the same."""
        return all(scalars[word] == value for word, value in self.fixed)

    def plan(self, sizes: Sizes, donations: Sequence[tuple[int, int]]) -> Plan:
        """The graph's program for these numbers."""
        plan = Plan(self.module, self._device, sizes, (*self.starts, *self.symbols))
        plan.results = [result(node, sizes) for node in self._outputs if node is not None]
        given = {i: o for i, o in donations if not (_is_padded(self._inputs[i]) or _is_padded(self._outputs[o]))}
        for i, node in enumerate(self._inputs):
            value, pads = fake(node), _is_padded(node)
            shape = sizes.shape(value.shape)
            plan.parameters.append(Parameter(node, 0, shape, value.dtype, donated=i in given, padded=pads))
        plan.parameters += [parameter for _, parameter in self._scalars.values()]
        plan.writes = [(o, i) for i, o in given.items()]
        plan.draws = [0] * (len(self._draw_words) // 4)
        return plan

    # ---- values

    def _symbol(self, hint: int) -> Any:
        source = ConstantSource(f"size{len(self._env.backed_var_to_val)}")
        symbol = self._env.create_symbol(hint, source, DimDynamic.DYNAMIC, constraint_dim=None)
        return self._env.create_symintnode(symbol, hint=hint, source=source)

    def _tensor(self, dtype: torch.dtype, shape: Sequence[Any]) -> torch.Tensor:
        with self._mode:
            return torch.empty(list(shape), dtype=dtype, device=torch.device("tpu", self._device))

    def _input(self, i: int, dtype: torch.dtype, dims: Sequence[int]) -> Node:
        node = self._graph.placeholder(f"input_{i}")
        node.meta["val"] = self._tensor(dtype, [next(self._numbers) for _ in dims])
        return node

    def _scalar(self, argument: Any, word: int) -> Node:
        _, kind, dtype, weak = argument
        node = self._graph.placeholder(f"scalar_{len(self._scalars)}")
        self._scalars[node] = word, Parameter(node, 1, dtype=dtype, kind=SCALAR_DTYPES[kind], weak=weak)
        return node

    def _fixed(self, node: Node) -> float:
        """The number that a scalar has, from now on a constant."""
        at, parameter = self._scalars[node]
        if not parameter.weak:
            raise NotImplementedError("a decomposition of an op with a number from a tensor")
        words = range(at, at + Scalars.words(parameter.kind))
        self.fixed += [(word, self._recorded_scalars[word]) for word in words]
        raw = torch.tensor([self._recorded_scalars[word] for word in words], dtype=torch.int32)
        return raw.view(parameter.kind).item() if parameter.kind != torch.bool else bool(raw.item())

    def _start(self, word: int) -> Node:
        symbol = self._symbol(2)
        self.starts.append(expression(symbol))
        self._start_words.append(word)
        made: Node = self._size(symbol)
        return made

    def _size(self, value: Any) -> Any:
        """A number as an argument of a node."""
        if not is_symbolic(value):
            return int(value)
        formula = expression(value)
        if formula not in self._sizes:
            self._sizes[formula] = self._call(size, (str(formula),), value)
        return self._sizes[formula]

    def _call(self, op: Any, arguments: Sequence[Any], value: Any, keywords: Any = None) -> Node:
        node = self._graph.call_function(op, tuple(arguments), keywords or {})
        node.meta["val"] = value
        return node

    # ---- nodes

    def _node(self, signature: Signature, operands: list[Any], word: int) -> list[Node | None]:
        values = iter(operands)
        internal = signature.op.startswith("torch_tpu::")

        def static(value: Any) -> Any:
            if type(value) is int:
                number = next(self._numbers)
                return number if internal else self._size(number)
            if isinstance(value, list | tuple):
                return [static(item) for item in value]
            return value

        def decode(argument: Any) -> Any:
            nonlocal word
            if argument[0] == "tensor":
                return next(values)
            if argument[0] == "list":
                return [decode(item) for item in argument[1]]
            if argument[0] == "static":
                return static(argument[1])
            at, word = word, word + Scalars.words(SCALAR_DTYPES[argument[1]])
            return at if internal else self._scalar(argument, at)

        arguments = [decode(argument) for argument in signature.arguments]
        results = [
            None if o is None else self._tensor(o[0], [next(self._numbers) for _ in o[1]]) for o in signature.outputs
        ]
        if internal:
            return [self._internal(signature, arguments, results[0])]
        op = overload(signature.op, signature.overload)
        op, arguments = _functional(op, arguments)
        schema = op._schema
        positional = [v for v, a in zip(arguments, schema.arguments) if not a.kwarg_only]
        keywords = {a.name: v for v, a in zip(arguments, schema.arguments) if a.kwarg_only}
        returns = [str(r.type) for r in schema.returns]
        single = returns == ["Tensor"]
        if not single and returns != ["List[Tensor]"] and "List[Tensor]" in returns:
            raise NotImplementedError(f"{op} returns tensors and lists")
        node = self._call(op, positional, results[0] if single else results, keywords)
        if draws(node):
            self._draw_words += range(word, word + 4)
        return self._decomposed(node, results)

    def _decomposed(self, node: Node, results: Sequence[Any]) -> list[Node | None]:
        """The node's results by PyTorch's decomposition, in its place, if it has no padded form; else as they are."""
        if not padded.why_not(node) or node.target not in decomposition_table:
            single = isinstance(fake(node), torch.Tensor)
            parts: list[Node | None] = (
                [node] if single else [self._call(operator.getitem, (node, i), r) for i, r in enumerate(results)]
            )
            return [None if r is None else part for part, r in zip(parts, results)]
        numbers = {n: self._fixed(n) for n in node.all_input_nodes if n in self._scalars}
        operands = [n for n in node.all_input_nodes if n not in numbers]

        def run(*values: Any) -> Any:
            given = dict(zip(operands, values)) | numbers
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), given.__getitem__)
            return node.target(*args, **kwargs)  # type: ignore[operator]

        table: Any = {node.target: decomposition_table[node.target]}
        with self._mode, enable_python_dispatcher():
            traced = make_fx(run, decomposition_table=table)(*map(fake, operands))
        env: dict[Node, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), operands))
        self._graph.erase_node(node)
        for inner in traced.graph.nodes:
            if inner.op == "get_attr":
                raise NotImplementedError(f"{node.target} makes a constant")
            if inner.op != "call_function":
                continue
            if inner.target is operator.getitem:
                env[inner] = env[inner.args[0]][inner.args[1]]
                continue
            copy = self._graph.node_copy(inner, env.__getitem__)
            several = isinstance(fake(copy), list | tuple)
            made = self._decomposed(copy, fake(copy) if several else [fake(copy)])
            env[inner] = made if several else made[0]
        (returned,) = next(n for n in reversed(traced.graph.nodes) if n.op == "output").args
        items = returned if isinstance(returned, list | tuple) else [returned]
        return [None if item is None else env[item] for item in items]

    def _internal(self, signature: Signature, arguments: list[Any], like: Any) -> Node:
        match signature.op:
            case "torch_tpu::convert":
                return self._call(aten._to_copy.default, arguments, like, {"dtype": like.dtype})
            case "torch_tpu::zeros":
                sizes = [self._size(s) for s in like.shape]
                return self._call(aten.full.default, (sizes, 0), like, {"dtype": like.dtype})
            case "torch_tpu::strided_read":
                base, *rest = arguments
                return self._read(_Box(signature, *rest), base, like.shape)
            case "torch_tpu::strided_write":
                base, update, *rest = arguments
                return self._write(_Box(signature, *rest), base, update)
        raise NotImplementedError(f"{signature.op} of a size that differs")

    def _shaped(self, op: Any, x: Node, shape: Sequence[Any], *arguments: Any) -> Node:
        return self._call(op, (x, *arguments), self._tensor(fake(x).dtype, shape))

    def _view(self, x: Node, shape: Sequence[Any]) -> Node:
        if _expressions(fake(x).shape) == _expressions(shape):
            return x
        return self._shaped(aten.view.default, x, shape, [self._size(s) for s in shape])

    def _permute(self, x: Node, order: Sequence[int]) -> Node:
        if list(order) == list(range(len(order))):
            return x
        return self._shaped(aten.permute.default, x, [fake(x).shape[d] for d in order], list(order))

    def _boxed(self, box: _Box, base: Node) -> tuple[Node, list[int]]:
        """The base as the array that the view is a box of, and the order of the base's dims in memory."""
        if box.gather or fake(base).dtype != box.dtype:
            raise NotImplementedError("a view whose elements do not lie in a box")
        memory = view._physical_order(box.inputs, box.base_strides_now)
        if expression(math.prod(box.radix)) != expression(math.prod(fake(base).shape)):
            raise NotImplementedError("a view that leaves out a part of its base")
        return self._view(self._permute(base, memory), box.radix), memory

    def _narrowed(self, box: _Box) -> list[tuple[int, Any]]:
        """The dims along which the box is smaller than the array, and where it begins."""
        dims = [d for d, (r, e) in enumerate(zip(box.radix, box.extent)) if expression(r) != expression(e)]
        return [(d, self._start(box.starts[d]) if box.starts else 0) for d in dims]

    def _part(self, x: Node, d: int, start: Any, extent: Any) -> Node:
        shape = [*fake(x).shape]
        shape[d] = extent
        return self._shaped(aten.slice.Tensor, x, shape, d, start, self._size(extent))

    def _read(self, box: _Box, base: Node, shape: Sequence[Any]) -> Node:
        x, _ = self._boxed(box, base)
        for d, start in self._narrowed(box):
            x = self._part(x, d, start, box.extent[d])
        dims = sorted(box.order)
        x = self._view(x, [box.sizes[d] for d in box.order])
        x = self._permute(x, [box.order.index(d) for d in dims])
        x = self._view(x, [box.sizes[d] if d in dims else 1 for d in range(len(shape))])
        if _expressions(fake(x).shape) == _expressions(shape):
            return x
        return self._shaped(aten.expand.default, x, shape, [self._size(s) for s in shape])

    def _write(self, box: _Box, base: Node, update: Node) -> Node:
        whole, memory = self._boxed(box, base)
        for d, stride in enumerate(box.strides):
            if expression(stride) == 0 and expression(box.sizes[d]) != 1:
                update = self._part(update, d, 0, 1)
        dims = sorted(box.order)
        update = self._view(update, [box.sizes[d] for d in dims])
        update = self._view(self._permute(update, [dims.index(d) for d in box.order]), box.extent)
        written = self._put(whole, update, self._narrowed(box), box.extent)
        written = self._view(written, [fake(base).shape[d] for d in memory])
        return self._permute(written, [memory.index(d) for d in range(len(memory))])

    def _put(self, x: Node, update: Node, narrowed: list[tuple[int, Any]], extent: Sequence[Any]) -> Node:
        if not narrowed:
            return update
        (d, start), *rest = narrowed
        update = self._put(self._part(x, d, start, extent[d]), update, rest, extent) if rest else update
        arguments = (update, d, start, self._size(extent[d]))
        return self._shaped(aten.slice_scatter.default, x, fake(x).shape, *arguments)


def _functional(op: OpOverload, arguments: list[Any]) -> tuple[OpOverload, list[Any]]:
    """The op that returns what it changes, as recorded ones do."""
    rule = registry.rule_for(op)
    if rule is None or not rule.mutates:
        return op, arguments
    if op is aten.native_batch_norm.default and arguments[5]:  # training
        if arguments[3] is None:
            return aten._native_batch_norm_legit.no_stats, [*arguments[:3], *arguments[5:]]
        return aten._native_batch_norm_legit_functional.default, arguments
    raise NotImplementedError(f"{op} changes {', '.join(rule.mutates)}")


def size(formula: str) -> int:
    """Stands in a graph for a number that is computed from sizes."""
    raise AssertionError(f"{formula} is known when the graph is lowered, and nothing to call")


class _Box:
    """The arguments of a strided read or write; see StridedPlan in csrc/trace/strided.h."""

    def __init__(
        self, signature: Signature, starts: Any, base_strides: Any, sizes: Any, strides: Any, radix: Any, extent: Any,
        order: Any, gather: bool,
    ) -> None:  # fmt: skip
        self.dtype = signature.inputs[-1][0] if len(signature.inputs) > 1 else signature.outputs[0][0]  # type: ignore[index]
        self.inputs = signature.inputs[0][1]
        # As recorded last: which stride is larger is the same for all recordings of a family.
        self.base_strides_now = signature.arguments[1 + len(signature.inputs)][1]
        self.starts, self.sizes, self.strides = starts, sizes, strides
        self.radix, self.extent, self.gather = radix, extent, gather
        if any(is_symbolic(d) for d in order):
            raise NotImplementedError("a view whose dims change places")
        self.order = [int(d) for d in order]


def _expressions(shape: Sequence[Any]) -> list[Any]:
    return [expression(s) for s in shape]


def _is_padded(node: Node | None) -> bool:
    return node is not None and any(is_symbolic(s) for t in tensors(fake(node)) for s in t.shape)


def _options(found: Iterable[Signature]) -> Options:
    """What the recorded ops agree on."""
    aten_ops = [s for s in found if not s.op.startswith("torch_tpu::")]

    def makes_products(s: Signature) -> bool:
        rule = registry.rule_for(overload(s.op, s.overload))
        return rule is None or registry.makes_products(rule)

    precisions = {s.matmul_precision for s in aten_ops if makes_products(s)}
    if len(precisions) > 1 or {s.default_dtype for s in aten_ops} - {torch.get_default_dtype()}:
        raise NotImplementedError("ops of different precisions")
    return Options(matmul_precision=flags.matmul_precision(precisions.pop()) if precisions else "highest")

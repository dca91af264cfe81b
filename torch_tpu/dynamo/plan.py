"""What an FX graph asks of a program: its parameters, its results and where they go, known without lowering it."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims.rng_prims import run_and_save_rng_state
from torch.fx import GraphModule, Node

from torch_tpu.compiler.program import SCALAR_DTYPES, Scalars
from torch_tpu.lowering import registry

from .shapes import Sizes, expression, is_symbolic

COPY = torch.ops.aten.copy_.default
STATIC = Sizes()


@dataclass(frozen=True)
class Parameter:
    """A placeholder: a device tensor, or a scalar (a Python number, a host tensor of one element), or unused."""

    node: Node
    use: int  # the core's ParameterUse: 0 tensor, 1 scalar, 2 unused
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    kind: torch.dtype = torch.float32  # of a scalar: how it travels
    weak: bool = False  # a Python number
    donated: bool = False
    padded: bool = False  # some of its sizes are padded


@dataclass(frozen=True)
class Result:
    """A value the program computes for the outside."""

    node: Node
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    padded: tuple[int, ...] | None = None  # the dims it leaves the program with, where they are not its shape


@dataclass
class Plan:
    """Everything about a graph's program but its instructions."""

    graph: GraphModule
    device: int
    sizes: Sizes
    symbols: tuple[Any, ...] = ()  # of a padded program: the symbols whose true values are parameters, in order
    parameters: list[Parameter] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)  # (result, parameter)
    outputs: list[tuple[int, int, Any]] = field(default_factory=list)  # (kind, index, constant): CompiledOutput
    draws: list[int] = field(default_factory=list)  # numbers each random op takes, in order
    waits: dict[tuple[Node, Node], Node] = field(default_factory=dict)  # (node, operand): what is computed before


def scalar_words(plan: Plan) -> int:
    """The length of the scalar parameter: scalars, then seeds and offsets, then true sizes."""
    scalars = sum(Scalars.words(p.kind) for p in plan.parameters if p.use == 1)
    return scalars + 4 * len(plan.draws) + len(plan.symbols)


def fake(node: Node) -> Any:
    """What tracing knows of a node's value."""
    return node.meta.get("val")


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a node's value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def is_host_scalar(value: Any) -> bool:
    """A host tensor without dims, which travels as a number."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.ndim == 0


def called(node: Node) -> tuple[Any, tuple[Any, ...]]:
    """The op that a node calls and its arguments, also where the op saves the random state that it draws from."""
    saves = node.target is run_and_save_rng_state
    return (node.args[0], node.args[1:]) if saves else (node.target, node.args)


def draws(node: Node) -> bool:
    """Whether the op draws random numbers."""
    op, args = called(node)
    rule = registry.rule_for(op) if isinstance(op, OpOverload) else None
    if rule is None or not rule.random:
        return False
    names = [a.name for a in rule.op._schema.arguments]
    return registry.draws(rule, {**dict(zip(names, args)), **node.kwargs})


def make(
    graph: GraphModule, device: int, donate: bool, backward: bool, sizes: Sizes = STATIC, symbols: Sequence[Any] = ()
) -> Plan:
    """The plan of a graph all of whose nodes can be lowered, for these numbers of its symbolic sizes."""
    plan = Plan(graph, device, sizes, tuple(symbols))
    places: dict[Any, int] = {}
    written = {node.args[0] for node in graph.graph.nodes if node.target is COPY}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            places[node] = len(plan.parameters)
            # Only what the forward pass computed for this one is likely to have no other owner.
            saved = backward and not node.name.startswith(("primals", "tangents"))
            plan.parameters.append(_parameter(node, donate and (node in written or saved), plan))
        elif draws(node):
            plan.draws.append(numbers(node, sizes))
    slots: dict[Node, int] = {}

    def slot(node: Node) -> int:
        if node not in slots:
            slots[node] = len(plan.results)
            plan.results.append(result(node, sizes))
        return slots[node]

    for node in graph.graph.nodes:
        if node.target is COPY:
            target, source = node.args[:2]
            plan.writes.append((slot(source), places[target]))
    (returned,) = next(node for node in reversed(graph.graph.nodes) if node.op == "output").args
    for item in returned if isinstance(returned, list | tuple) else [returned]:
        if not isinstance(item, Node):
            plan.outputs.append((2, 0, item))
        elif item.target is COPY:
            plan.outputs.append((1, places[item.args[0]], None))
        elif item.op == "placeholder":
            plan.outputs.append((1, places[item], None))
        elif isinstance(fake(item), int | float | torch.SymInt | torch.SymFloat):
            plan.outputs.append((2, 0, sizes.number(fake(item))))
        else:
            plan.outputs.append((0, slot(item), None))
    return plan


def _parameter(node: Node, donated: bool, plan: Plan) -> Parameter:
    value = fake(node)
    if not node.users:
        return Parameter(node, 2)
    if isinstance(value, torch.Tensor):
        if is_host_scalar(value):
            return Parameter(node, 1, dtype=value.dtype, kind=_kind(value.dtype))
        padded = bool(plan.symbols) and any(is_symbolic(s) for s in value.shape)
        shape = plan.sizes.shape(value.shape)
        return Parameter(node, 0, shape, value.dtype, donated=donated and not padded, padded=padded)
    if isinstance(value, float | torch.SymFloat):
        return Parameter(node, 1, dtype=torch.float64, kind=torch.float64, weak=True)
    return Parameter(node, 1, dtype=torch.int64, kind=torch.int64, weak=True)


def _kind(dtype: torch.dtype) -> torch.dtype:
    if dtype in SCALAR_DTYPES:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int64


def result(node: Node, sizes: Sizes) -> Result:
    """A result as it looks from outside."""
    value = fake(node)
    shape = sizes.shape(value.shape)
    return Result(node, shape, dense_strides(shape, sizes.shape(value.stride())), value.dtype)


def dense_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor that is to be made: its own order of dims, but no gaps and nothing twice."""
    expected = 1
    for stride, size in sorted(zip(strides, shape), key=lambda pair: (pair[0], pair[1])):
        if size == 1:
            continue
        if stride != expected:
            return contiguous_strides(shape)
        expected *= size
    return tuple(strides) if math.prod(shape) else contiguous_strides(shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major."""
    strides = [1] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        strides[d] = strides[d + 1] * max(shape[d + 1], 1)
    return tuple(strides)


def numbers(node: Node, sizes: Sizes) -> int:
    """As csrc/dispatch/record.cpp counts: the largest tensor of the op decides, so that eager draws the same."""
    values = [v for a in node.all_input_nodes for v in tensors(fake(a)) if not is_host_scalar(v)]
    counts = [math.prod(sizes.shape(v.shape)) for v in (*values, *tensors(fake(node)))]
    return (max(counts, default=0) + 3) // 4 * 4


# ---- the same words for the same graph in every process


def fingerprint(plan: Plan) -> bytes:
    """All that decides the module."""
    parameters = [(p.use, p.shape, p.dtype, p.kind, p.weak, p.donated) for p in plan.parameters]
    results = [(r.shape, r.padded, r.dtype) for r in plan.results]
    symbols = [(str(s), plan.sizes.values[s]) for s in plan.symbols]
    draws = len(plan.draws) if plan.symbols else plan.draws
    waits = [(node.name, operand.name, awaited.name) for (node, operand), awaited in plan.waits.items()]
    parts = (waits, parameters, results, plan.writes, [o[:2] for o in plan.outputs], draws, symbols, _text(plan))
    return repr(parts).encode()


def _text(plan: Plan) -> list[Any]:
    return _graph_text(plan.graph, plan.sizes)


def _graph_text(graph: GraphModule, sizes: Sizes) -> list[Any]:
    number = {node: i for i, node in enumerate(graph.graph.nodes)}

    def words(value: Any) -> Any:
        if isinstance(value, Node):
            return f"%{number[value]}"
        if isinstance(value, list | tuple):
            return [words(v) for v in value]
        if isinstance(value, dict):
            return sorted((k, words(v)) for k, v in value.items())
        return repr(value)

    lines: list[Any] = []
    for node in graph.graph.nodes:
        specs: list[Any] = [(sizes.shape(t.shape), t.dtype, t.device.type) for t in tensors(fake(node))]
        if symbolic := [str(expression(s)) for t in tensors(fake(node)) for s in t.shape if is_symbolic(s)]:
            specs.append(symbolic)
        line = [node.op, _name(node.target), words(node.args), words(node.kwargs), specs]
        if node.op == "get_attr":
            line += _attribute(graph, str(node.target), sizes)
        lines.append(line)
    return lines


def _name(target: Any) -> str:
    if isinstance(target, str):
        return ""
    return str(target) if isinstance(target, OpOverload) else getattr(target, "__name__", repr(target))


def attribute(graph: GraphModule, name: str) -> Any:
    """The tensor or subgraph that a get_attr node names."""
    return operator.attrgetter(name)(graph)


def _attribute(graph: GraphModule, name: str, sizes: Sizes) -> list[Any]:
    found = attribute(graph, name)
    if isinstance(found, GraphModule):
        return [_graph_text(found, sizes)]
    host = found.detach().cpu().contiguous()
    return [hashlib.sha256(host.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()]

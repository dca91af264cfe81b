"""Which parts of a graph become programs; what cannot be lowered runs eagerly between them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols

from torch_tpu import _C
from torch_tpu.lowering import registry

from . import control, dynamic, outside, programs
from .options import Options
from .plan import COPY, fake, is_host_scalar, tensors
from .shapes import expression, is_symbolic

Compiled = Callable[[list[Any]], Any]


def compile_graph(graph: GraphModule, kind: str, options: Options) -> Compiled:
    """A boxed callable for an FX graph of functional ATen ops."""
    assert_later = outside.take_assertions(graph)
    write_host = outside.take_host_writes(graph)

    def attach(program: Compiled) -> Compiled:
        return assert_later(write_host(program))

    views = outside.separate_views(graph, kind)
    reasons: dict[Node, str] = {}
    for node in graph.graph.nodes:
        if node in views:
            reasons[node] = ""
            continue
        # An item of a tuple stays with the op that made the tuple.
        reason = reasons.get(node.args[0], "") if node.target is operator.getitem else why_not(node)
        if reason:
            reasons[node] = reason
    if not reasons:
        return attach(_whole(graph, kind, options))
    for node, reason in reasons.items():
        if node.target is operator.getitem or node in views:
            continue
        _C._count(f"compile.eager_piece.{node.target}", 1)
        _eager_reasons[str(node.target)] = reason
    return attach(make_boxed_func(_split(graph, reasons, kind, options)))


def _whole(graph: GraphModule, kind: str, options: Options) -> Compiled:
    if dynamic.is_dynamic(graph):
        return dynamic.DynamicProgram(graph, device_of(graph), kind, options)
    program: Compiled = programs.build(graph, device_of(graph), kind, options)
    return program


_eager_reasons: dict[str, str] = {}


def eager_reasons() -> dict[str, str]:
    """The ops that graphs ran eagerly, each with why."""
    return dict(_eager_reasons)


def device_of(graph: GraphModule) -> int:
    """The index of the device that the graph's tensors are on."""
    for node in graph.graph.nodes:
        for tensor in tensors(fake(node)):
            if tensor.device.type == "tpu":
                return tensor.device.index or 0
    return _C._current_device()


def uses_tpu(graph: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a captured graph works on tpu tensors, its inputs' or ones it makes."""
    if any(isinstance(x, torch.Tensor) and x.device.type == "tpu" for x in inputs):
        return True
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    return any(t.device.type == "tpu" for value in values for t in tensors(value))


def why_not(node: Node) -> str:
    """Why the node cannot be part of a program; empty if it can."""
    if node.op in ("placeholder", "output", "get_attr"):
        return ""
    if node.op != "call_function":
        return f"{node.op} {node.target}"
    if isinstance(fake(node), torch.SymInt):
        return ""  # a size is known from the arguments'
    if isinstance(node.target, HigherOrderOperator) and (reason := control.why_not(node, why_not)):
        return reason
    if isinstance(node.target, OpOverload):
        if node.target is COPY:
            target: Any = node.args[0]
            host = any(t.device.type != "tpu" for t in tensors(fake(target)))
            return "writes to the host" if host or target.op != "placeholder" else ""
        if node.target._schema.is_mutable:
            return "writes in place"
        rule = registry.rule_for(node.target)
        if rule is None:
            return "no lowering rule"
        if rule.kind == "python":
            return "it reads values on the host"
    values = [v for a in (node, *node.all_input_nodes) for v in tensors(fake(a))]
    if any(v.device.type == "cpu" and not is_host_scalar(v) for v in values):
        return "a tensor on the host"
    sizes = [s for v in values for s in v.shape] + [s for s in map(fake, node.all_input_nodes) if is_symbolic(s)]
    if any(free_unbacked_symbols(s) for s in sizes):
        return "a size known only at run time"
    return ""


class _Split(Interpreter):
    """Runs the split graph: programs and, between them, single ops."""

    def __init__(self, graph: GraphModule, compiled: dict[str, Compiled]) -> None:
        super().__init__(graph)
        self.compiled = compiled

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        program = self.compiled.get(target)
        if program is None:
            return super().call_module(target, args, kwargs)
        results = program(list(args))
        return results[0] if target in self._single else results

    _single: frozenset[str] = frozenset()


def _split(graph: GraphModule, reasons: dict[Node, str], kind: str, options: Options) -> Callable[..., Any]:
    from torch.fx.passes.split_module import split_module

    _name_sizes(graph)
    part, eager = 0, False
    parts: dict[Any, int] = {}
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.target is operator.getitem and node.args[0] in parts:
            parts[node] = parts[node.args[0]]
            continue
        if (node in reasons) != eager:
            part, eager = part + 1, node in reasons
        parts[node] = part
    host = split_module(graph, graph, lambda node: parts[node], keep_original_order=True, keep_original_node_name=True)
    eager_parts = {parts[node] for node in reasons}
    compiled: dict[str, Compiled] = {}
    single: set[str] = set()
    for name, child in host.named_children():
        number = int(name.rpartition("_")[2]) if name.startswith("submod_") else -1
        if not isinstance(child, GraphModule) or number in eager_parts:
            continue
        output = next(n for n in reversed(child.graph.nodes) if n.op == "output")
        if not isinstance(output.args[0], list | tuple):
            single.add(name)
        compiled[name] = _whole(child, kind, options)
    runner = _Split(host, compiled)
    runner._single = frozenset(single)

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return runner.run(*args, enable_io_processing=False)

    return run


def _name_sizes(graph: GraphModule) -> None:
    """Let split_module give each part the symbols of the sizes that it sees, as numbers."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    named = {expression(fake(node)) for node in placeholders if is_symbolic(fake(node))}
    with graph.graph.inserting_after(placeholders[-1] if placeholders else None):
        for node in placeholders:
            for tensor in tensors(fake(node)):
                for d, size in enumerate(tensor.shape):
                    symbol = expression(size)
                    if symbol.is_Symbol and symbol not in named:
                        graph.graph.call_function(torch.ops.aten.sym_size.int, (node, d)).meta["val"] = size
                        named.add(symbol)
    for node in graph.graph.nodes:
        value = fake(node)
        if isinstance(value, torch.Tensor | torch.SymInt) and free_symbols(value) <= named:
            node.meta["example_value"] = value

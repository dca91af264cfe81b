"""What a graph does outside of its program: it updates numbers that the host keeps, it makes results that are views.

Conditions that it asserts are results of the program, which nobody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import Graph, GraphModule, Node

from torch_tpu.lowering import assertions

from .plan import COPY, fake, tensors
from .shapes import is_symbolic

Compiled = Callable[[list[Any]], Any]


# ---- the host's numbers, such as an optimizer's `step` tensors


def take_host_writes(graph: GraphModule) -> Callable[[Compiled], Compiled]:
    """Take writes to host tensors of what is computed from host tensors out of the graph.

    The function returned makes a program of the rest do them too, after its call.
    """
    writes = _host_writes(graph)
    if not writes:
        return lambda program: program
    host = Graph()
    placeholders = graph.graph.find_nodes(op="placeholder")
    needed = _ancestors(writes)
    used = [i for i, node in enumerate(placeholders) if node in needed]
    env: dict[Node, Node] = {}
    for node in graph.graph.nodes:
        if node in needed and node not in writes:
            env[node] = host.node_copy(node, env.__getitem__)
    targets, sources = ([env[write.args[i]] for write in writes] for i in (0, 1))  # type: ignore[index]
    host.call_function(torch.ops.aten._foreach_copy_.default, (targets, sources))
    host.output(None)
    update = GraphModule(graph, host)
    for write in writes:
        write.replace_all_uses_with(write.args[0])  # type: ignore[arg-type]
        graph.graph.erase_node(write)
    for node in reversed(graph.graph.nodes):
        if node in needed and node.op == "call_function" and not node.users:
            graph.graph.erase_node(node)
    graph.recompile()

    def attach(program: Compiled) -> Compiled:
        def run(arguments: list[Any]) -> Any:
            numbers = [arguments[i] for i in used]
            results = program(arguments)
            with torch.no_grad():
                update(*numbers)
            return results

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return attach


def _host_writes(graph: GraphModule) -> list[Node]:
    host: set[Node] = set()
    writes = []
    for node in graph.graph.nodes:
        if node.op == "output" or not all(n in host for n in node.all_input_nodes):
            continue
        if node.target is COPY:
            writes.append(node)
        elif all(t.device.type == "cpu" for t in tensors(fake(node))):
            host.add(node)
    return writes


def _ancestors(nodes: Sequence[Node]) -> set[Node]:
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


# ---- assertions

_ASSERTS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


def take_assertions(graph: GraphModule) -> Callable[[Compiled], Compiled]:
    """Make what the graph asserts of tensors results of it, which the function returned takes from a program's."""
    asserts = [node for node in graph.graph.nodes if node.target in _ASSERTS]
    if not asserts:
        return lambda program: program
    (output,) = graph.graph.find_nodes(op="output")
    output.args = ([*output.args[0], *(node.args[0] for node in asserts)],)
    messages = [node.args[1:] for node in asserts]
    for node in asserts:
        graph.graph.erase_node(node)
    graph.recompile()

    def attach(program: Compiled) -> Compiled:
        def run(arguments: list[Any]) -> Any:
            results = list(program(arguments))
            conditions = results[len(results) - len(messages) :]
            for condition, message in zip(conditions, messages):
                assertions.assert_later(condition, *message)
            return results[: -len(messages)]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return attach


# ---- results that share their memory


def separate_views(graph: GraphModule, kind: str) -> set[Node]:
    """Make results that share memory with another result again at the end of the graph, by the nodes returned.

    AOTAutograd makes the views of inputs and of what needs a gradient, where sizes are fixed; the others it leaves to
    the backend.
    """
    if kind == "backward":
        return set()
    (output,) = graph.graph.find_nodes(op="output")
    (returned,) = output.args
    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    count = meta.num_forward if kind == "forward" and meta is not None else len(returned)
    shown = dict.fromkeys(item for item in returned[:count] if isinstance(item, Node))
    groups: dict[int, list[Node]] = {}
    for node in shown:
        if (memory := _memory(node)) is not None:
            groups.setdefault(memory, []).append(node)
    made: dict[Node, Node] = {}
    views: set[Node] = set()
    for memory, members in groups.items():
        base = next(n for n in graph.graph.nodes if _memory(n) == memory)
        varies = any(is_symbolic(s) for n in (base, *members) for s in (*fake(n).shape, *fake(n).stride()))
        if varies if base.op == "placeholder" else len(members) > 1:
            with graph.graph.inserting_before(output):
                made |= {member: _again(graph.graph, member, base, views) for member in members}
    if views:
        output.args = ([made.get(item, item) for item in returned],)
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return views


def _memory(node: Node) -> int | None:
    value = fake(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) and value.device.type == "tpu" else None


def _again(graph: Graph, node: Node, base: Node, views: set[Node]) -> Node:
    """A copy of the chain of views that leads from `base` to `node`; its nodes are added to `views`."""
    if node is base:
        return base
    source = node.args[0]
    assert isinstance(source, Node)
    new = _again(graph, source, base, views)
    again = graph.node_copy(node, lambda n: new if n is source else n)
    views.add(again)
    return again

"""Recomputed activations come late: not before the gradients that need them, or they would all be alive at once."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from .plan import fake, tensors


def waits(graph: GraphModule) -> dict[tuple[Node, Node], Node]:
    """For a recomputing node of a backward graph and a saved value that it reads: the gradient to wait for before.

    The gradient is an operand of the first node that needs what is recomputed, so nothing waits for itself.
    """
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    gradients: set[Node] = set()
    for node in graph.graph.nodes:
        if node.name.startswith("tangents") or any(n in gradients for n in node.all_input_nodes):
            gradients.add(node)
    first: dict[Node, Node] = {}  # of a recomputing node: the first node of the gradients that needs it
    found: dict[tuple[Node, Node], Node] = {}
    for node in reversed(graph.graph.nodes):
        if node.op != "call_function" or node in gradients:
            continue
        users = (user if user in gradients else first.get(user) for user in node.users)
        needing = [user for user in users if user is not None and user.op == "call_function"]
        if not needing:
            continue
        first[node] = min(needing, key=place.__getitem__)
        operands = first[node].all_input_nodes
        awaited = [n for n in operands if n in gradients and _is_tensor(n) and place[n] < place[node]]
        for saved in node.all_input_nodes:
            if saved.op == "placeholder" and _is_tensor(saved) and awaited:
                found[node, saved] = awaited[0]
    return found


def _is_tensor(node: Node) -> bool:
    return len(list(tensors(fake(node)))) == 1 and fake(node).device.type == "tpu"

"""Sample calls of every op that has a lowering rule, as descriptions of recorded programs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu.compiler.program import SCALAR_DTYPES, Scalars, Signature, lower
from torch_tpu.lowering import registry
from torch_tpu.lowering.dtypes import of_number

VERSION = "1.13.3"
MAX_ELEMENTS = 20_000


@dataclass(frozen=True)
class Call:
    """One call of a functional op."""

    signature: Signature
    draws: bool

    @property
    def name(self) -> str:
        return f"{self.signature.op}.{self.signature.overload}"

    def __str__(self) -> str:
        inputs = self.signature.inputs
        shapes = ", ".join(f"{str(dtype).removeprefix('torch.')}{list(shape)}" for dtype, shape in inputs)
        return f"{self.name}({shapes})"


def _spec(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
    return tensor.dtype, tuple(tensor.shape)


def call_of(rule: registry.Rule, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    """The call as the core would record it: numbers that are dynamic become runtime parameters."""
    schema = rule.op._schema
    resolution = registry.resolve(schema.name, schema.overload_name)
    named = {a.name: a.default_value for a in schema.arguments}
    named.update(zip([a.name for a in schema.arguments], args))
    named.update({k: v for k, v in kwargs.items() if k in named})
    tensors = [t for t in pytree.tree_leaves(list(named.values())) if isinstance(t, torch.Tensor)]
    wide = rule.wide or any(t.dtype in (torch.float64, torch.complex128) for t in tensors)
    inputs = []

    def encode(value: Any, dynamic: bool) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            inputs.append(_spec(value))
            return ("tensor",)
        if isinstance(value, list | tuple) and (dynamic or any(isinstance(v, torch.Tensor) for v in value)):
            return ("list", [encode(v, dynamic) for v in value])
        if dynamic and isinstance(value, bool | int | float | complex):
            dtype = of_number(value)
            if dtype.is_floating_point:
                dtype = torch.float64 if wide else torch.float32
            elif dtype.is_complex:
                dtype = torch.complex128 if wide else torch.complex64
            return ("scalar", SCALAR_DTYPES.index(dtype), dtype, True)
        return ("static", value)

    arguments = [encode(named[a.name], d) for a, d in zip(schema.arguments, resolution.dynamic)]
    meta_args = [pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), v) for v in named.values()]
    positional = [v for v, a in zip(meta_args, schema.arguments) if not a.kwarg_only]
    keywords = {a.name: v for v, a in zip(meta_args, schema.arguments) if a.kwarg_only}
    if "device" in keywords:
        keywords["device"] = torch.device("meta")
    results = registry.flatten(rule.op(*positional, **keywords))
    outputs = [_spec(t) if isinstance(t, torch.Tensor) else None for t in results]
    signature = Signature(
        schema.name, schema.overload_name, arguments, inputs, outputs, torch.get_default_dtype(), "highest", ""
    )
    return Call(signature, registry.draws(rule, named))


class Collector(TorchDispatchMode):
    """Keeps the smallest call of each rule and dtype that is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[OpOverload, torch.dtype], tuple[int, Call]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        resolution = registry.resolve(func._schema.name, func._schema.overload_name)
        rule = registry.rule_for(resolution.functional) if resolution.functional is not None else None
        if rule is not None and rule.kind != "python":
            self._keep(rule, args, kwargs)
        return func(*args, **kwargs)

    def _keep(self, rule: registry.Rule, args: Any, kwargs: Any) -> None:
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        dtype = tensors[0].dtype if tensors else torch.float32
        size = sum(t.numel() for t in tensors)
        if any(t.dtype == torch.complex32 for t in tensors):  # no element type of StableHLO
            return
        if (tensors and any(t.numel() == 0 for t in tensors)) or all(t.ndim == 0 for t in tensors):  # shows the least
            size = MAX_ELEMENTS
        known = self.found.get((rule.op, dtype))
        if size > MAX_ELEMENTS or (known is not None and known[0] <= size):
            return
        try:
            self.found[rule.op, dtype] = size, call_of(rule, args, kwargs)
        except Exception:  # an argument that only the CPU's kernel takes
            return


def collect(dtypes: Sequence[torch.dtype], samples: int, ops: str = "") -> list[Call]:
    """Calls from OpInfo's samples, forward and backward: one of each rule and dtype.

    Without `ops`, a pattern of OpInfo's names, other rules get a call made up from their schema.
    """
    collector = Collector()
    warnings.simplefilter("ignore")
    for op in op_db:
        if not re.search(ops, op.name):
            continue
        for dtype in dtypes:
            if not op.supports_dtype(dtype, "cpu"):
                continue
            grad = op.supports_autograd and dtype.is_floating_point
            torch.manual_seed(0)
            try:
                for sample in islice(op.sample_inputs_func(op, "cpu", dtype, grad), samples):
                    with collector:
                        result = op(sample.input, *sample.args, **sample.kwargs)
                        leaves = pytree.tree_leaves(result)
                        outs = [t.abs().sum() for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
                        if outs:
                            sum(outs).backward()
            except Exception:  # the CPU itself cannot
                continue
    calls = [call for _, call in collector.found.values()]
    if ops:
        return calls
    named = {call.name for call in calls}
    rules = [rule for rule in registry.rules().values() if rule.kind != "python"]
    unmet = [rule for rule in rules if _name(rule) not in named]
    return calls + [call for rule in unmet if (call := guessed(rule)) is not None]


def _name(rule: registry.Rule) -> str:
    return f"{rule.op._schema.name}.{rule.op._schema.overload_name}"


def guessed(rule: registry.Rule) -> Call | None:
    """A call made up from the schema, where PyTorch's meta function takes one: foreach ops, overloads for numbers."""
    for dtype in (torch.float32, torch.int64):
        x = torch.ones(2, 3, dtype=dtype)
        made = {
            "Tensor": x,
            "List[Tensor]": [x, x],
            "number": 2,
            "List[number]": [2, 2],
            "float": 0.5,
            "Optional[bool]": True,
            "Optional[number]": 2,
        }
        arguments = [a for a in rule.op._schema.arguments if not a.has_default_value()]
        if any(str(a.type) not in made for a in arguments):
            return None
        try:
            named = {a.name: made[str(a.type)] for a in arguments}
            rule.op(**named)
            return call_of(rule, [], named)
        except Exception:  # not of this dtype or shape, or not on the CPU
            continue
    return None


def module(calls: Sequence[Call], platform: str = "tpu") -> bytes:
    """One program of all the calls."""
    inputs: list[Any] = []
    nodes, outputs, words = [], [], 0
    for n, call in enumerate(calls):
        first = len(inputs)
        inputs += call.signature.inputs
        nodes.append((n, [(0, first + i) for i in range(len(call.signature.inputs))], words))
        outputs += [(n + 1, i) for i, spec in enumerate(call.signature.outputs) if spec is not None]
        words += sum(Scalars.words(kind) for kind in _scalars(call.signature.arguments)) + 4 * call.draws
    description = {"inputs": inputs, "nodes": nodes, "outputs": outputs, "donations": [], "scalar_words": words}
    return lower(description, {n: call.signature for n, call in enumerate(calls)}, VERSION, platform)


def _scalars(arguments: Sequence[Any]) -> Iterator[torch.dtype]:
    for argument in arguments:
        if argument[0] == "scalar":
            yield SCALAR_DTYPES[argument[1]]
        elif argument[0] == "list":
            yield from _scalars(argument[1])

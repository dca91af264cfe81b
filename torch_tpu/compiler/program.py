"""From a recorded program to an executable: the nodes, in order, lowered into one module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_tpu import _C

from . import cache, flags, platform
from .options import for_device

if TYPE_CHECKING:
    from torch_tpu.lowering.builder import Builder, Value

# How a scalar travels in the int32 words of the scalar parameter; the order is that of the core's ScalarKind.
SCALAR_DTYPES = (
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint64,
)
_SCALAR_WORDS = {
    torch.float32: 1,
    torch.int32: 1,
    torch.bool: 1,
    torch.float64: 2,
    torch.int64: 2,
    torch.uint64: 2,
    torch.complex64: 2,
    torch.complex128: 4,
}

Spec = tuple[torch.dtype, tuple[int, ...]]
Ref = tuple[int, int]


@dataclass(frozen=True)
class Signature:
    """An op with everything about its arguments but their values."""

    op: str
    overload: str
    arguments: Sequence[Any]
    inputs: Sequence[Spec]
    outputs: Sequence[Spec | None]
    default_dtype: torch.dtype
    matmul_precision: str
    site: str

    def key(self) -> tuple[Any, ...]:
        """What decides the lowering; the same in every process."""
        precision = flags.matmul_precision(self.matmul_precision)
        return (self.op, self.overload, self.arguments, self.outputs, self.default_dtype, precision)


def build(description: dict[str, Any]) -> _C.Executable:
    """The executable of a recorded program, from the cache or compiled."""
    found = signatures(description)
    client = _C.default_client()
    chosen = platform.select().platform
    options = for_device(chosen, client.devices[description["device"]].info.id)

    def build_module() -> tuple[str, Callable[[], _C.Executable]]:
        module = lower(description, found, stablehlo_version(client), chosen)
        return cache.module_key(module, options, client), lambda: client.compile(module, "mlir", options)

    return cache.get_or_build(cache.trace_key(_trace(description, found), options, client), build_module)


def artifact(description: dict[str, Any], platform_name: str) -> bytes:
    """The recorded program as this process's plugin would read it, lowered for a platform."""
    return lower(description, signatures(description), stablehlo_version(_C.default_client()), platform_name)


def why_not_lowered(description: dict[str, Any]) -> str:
    """What keeps a recorded program from being lowered; empty if nothing does."""
    try:
        lower(description, signatures(description), stablehlo_version(_C.default_client()), platform.select().platform)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def signatures(description: dict[str, Any]) -> dict[int, Signature]:
    """The ops of a recorded program by their ids."""
    return {id_: Signature(*fields[1:]) for id_, fields in description["signatures"].items()}


def stablehlo_version(client: _C.Client) -> str:
    """The newest StableHLO that the plugin reads."""
    version: Any = client.plugin.attributes["stablehlo_current_version"]
    return ".".join(map(str, version))


def _trace(description: dict[str, Any], found: dict[int, Signature]) -> bytes:
    """All that decides the module, in the same words in every process."""
    order = {id_: i for i, id_ in enumerate(dict.fromkeys(id_ for id_, _, _ in description["nodes"]))}
    nodes = [(order[id_], refs, word) for id_, refs, word in description["nodes"]]
    parts = (description["inputs"], [found[id_].key() for id_ in order], nodes, description["outputs"])
    return repr((parts, description["donations"], description["scalar_words"])).encode()


def lower(description: dict[str, Any], found: dict[int, Signature], version: str, platform_name: str) -> bytes:
    """The program as a portable artifact of a StableHLO version, for a platform."""
    from torch_tpu.lowering import mlir
    from torch_tpu.lowering.builder import Builder, TensorSpec

    parameters = [TensorSpec(dims, dtype) for dtype, dims in description["inputs"]]
    if description["scalar_words"]:
        parameters.append(TensorSpec((description["scalar_words"],), torch.int32))
    b = Builder(platform=platform_name)  # its numerics are each node's own
    with b.program(parameters, dict(description["donations"])) as inputs:
        results: list[list[Value | None]] = [list(inputs)]
        words = inputs[-1] if description["scalar_words"] else None
        for id_, refs, first_word in description["nodes"]:
            signature = found[id_]
            operands = [results[node][index] for node, index in refs]
            results.append(_lower_node(b, signature, operands, Scalars(b, words, first_word)))
        b.finish([_defined(results[node][index]) for node, index in description["outputs"]])
    return mlir.serialize(b.module, version)


def _defined(value: Value | None) -> Value:
    assert value is not None
    return value


class Scalars:
    """Reads scalars out of a program's scalar parameter, in order."""

    def __init__(self, b: Builder, words: Value | None, position: int) -> None:
        self._b = b
        self._words = words
        self._position = position

    @staticmethod
    def words(kind: torch.dtype) -> int:
        """How many words a scalar takes."""
        return _SCALAR_WORDS[kind]

    def take(self, kind: torch.dtype, dtype: torch.dtype, weak: bool) -> Value:
        value = self._read(kind).to(dtype)
        return type(value)(self._b, value.ir, value.shape, value.dtype, weak)

    def pair(self, dtype: torch.dtype) -> Value:
        """A vector of two."""
        return self._b.concatenate([self._b.reshape(self._read(dtype), (1,)) for _ in range(2)], 0)

    def _read(self, kind: torch.dtype) -> Value:
        b, count = self._b, _SCALAR_WORDS[kind]
        assert self._words is not None
        if kind.is_complex:
            part = torch.float32 if kind == torch.complex64 else torch.float64
            return b.complex(self._read(part), self._read(part))
        raw = b.slice(self._words, [self._position], [self._position + count])
        self._position += count
        if kind == torch.bool:
            return b.reshape(raw, ()).ne(0)
        if count == 1:
            return b.bitcast_convert(b.reshape(raw, ()), kind)
        return b.bitcast_convert(raw, kind)


def _lower_node(b: Builder, signature: Signature, operands: list[Value | None], scalars: Scalars) -> list[Value | None]:
    from torch_tpu.lowering import registry, view
    from torch_tpu.lowering.builder import TensorSpec

    values = iter(operands)

    def decode(argument: tuple[Any, ...]) -> Any:
        kind = argument[0]
        if kind == "tensor":
            return next(values)
        if kind == "scalar":
            return scalars.take(SCALAR_DTYPES[argument[1]], argument[2], argument[3])
        if kind == "list":
            return [decode(item) for item in argument[1]]
        return argument[1]

    arguments = [decode(argument) for argument in signature.arguments]
    specs = [None if spec is None else TensorSpec(spec[1], spec[0]) for spec in signature.outputs]
    if signature.op.startswith("torch_tpu::"):
        return [view.RULES[signature.op](b, specs[0], *arguments)]
    b.default_dtype = signature.default_dtype
    op = overload(signature.op, signature.overload)
    rule = registry.rule_for(op)
    asked = signature.matmul_precision if rule is None or registry.makes_products(rule) else None
    b.matmul_precision = asked and flags.matmul_precision(asked)
    schema = op._schema.arguments
    positional = [value for value, argument in zip(arguments, schema) if not argument.kwarg_only]
    keywords = {argument.name: value for value, argument in zip(arguments, schema) if argument.kwarg_only}
    named = {argument.name: value for value, argument in zip(arguments, schema)}
    if rule is not None and registry.draws(rule, named):
        keywords["rng"] = scalars.pair(torch.uint64)
        keywords.pop("generator", None)
    results = registry.flatten(registry.lower_op(b, op, positional, keywords, specs))
    if rule is not None:  # None for a mutated argument means that it stays as it was
        for i, name in enumerate(reversed(rule.mutates), start=1):
            if results[-i] is None:
                results[-i] = named[name]
    return results


def overload(name: str, overload: str) -> torch._ops.OpOverload:
    """The op of a name such as "aten::add" and an overload such as "Tensor"."""
    namespace, _, base = name.partition("::")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    return found

"""Graphs with symbolic sizes: one program for a bucket of sizes, told the true ones at each call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tpu import _C
from torch_tpu.lowering import registry

from . import padded, programs
from . import plan as planning
from .options import Options
from .plan import fake, tensors
from .shapes import Sizes, bucket, expression, is_symbolic, shifted_symbol, solved, unknown_symbols


def is_dynamic(graph: GraphModule) -> bool:
    """Whether sizes of the graph's inputs differ from call to call."""
    values = [fake(node) for node in graph.graph.find_nodes(op="placeholder")]
    return any(is_symbolic(v) or any(is_symbolic(s) for t in tensors(v) for s in t.shape) for v in values)


@dataclass
class _Entry:
    """One set of true sizes."""

    program: _C.CompiledProgram
    extents: _C.CompiledExtents | None
    numbers: list[tuple[int, int]]  # results that are sizes: position and value


@functools.cache
def _compiler() -> ThreadPoolExecutor:
    """The thread that compiles ahead."""
    return ThreadPoolExecutor(1, "torch_tpu compiles ahead")


@dataclass(frozen=True)
class _Told:
    """A size that a call's arguments tell: a number (dim -1) or the size of a dim."""

    size: Any
    symbols: list[Any]  # that it tells
    argument: int
    dim: int


class DynamicProgram:
    """A boxed callable that finds, or compiles, the program for the sizes of its arguments."""

    def __init__(self, graph: GraphModule, device: int, kind: str, options: Options) -> None:
        self._boxed_call = True
        self.graph = graph if not options.pad_sizes else _decomposed(graph)
        self.device = device
        self.kind = kind
        self.options = options
        self._told = _told(self.graph)
        self._places = [(told.argument, told.dim) for told in self._told]
        self.symbols = [symbol for told in self._told for symbol in told.symbols]
        self._sizes = symbolic_sizes(self.graph)
        self._growth = growth(self.graph, self.symbols)
        self.reason = _why_exact(self.graph, options)
        if self.reason:
            self._give_up(self.reason)
        self._entries: dict[tuple[int, ...], _Entry] = {}
        self._programs: dict[Any, _C.CompiledProgram] = {}
        self._ahead: dict[Any, Future[_C.CompiledProgram]] = {}

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        programs.note_exact(self.kind, reason)

    def __call__(self, arguments: list[Any]) -> Any:
        sizes = tuple([arguments[i] if d < 0 else arguments[i].shape[d] for i, d in self._places])
        entry = self._entries.get(sizes)
        if entry is None:
            entry = self._entries[sizes] = self._specialise(self._values(sizes))
        results = entry.program(arguments, entry.extents)
        for position, number in entry.numbers:
            results[position] = number
        return results

    def _values(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of the symbols, where the arguments' sizes are these."""
        found: dict[Any, int] = {}
        for told, size in zip(self._told, sizes):
            found |= solved(told.size, size, found)
        return tuple(found[symbol] for symbol in self.symbols)

    def _specialise(self, values: tuple[int, ...]) -> _Entry:
        true = Sizes(dict(zip(self.symbols, values)))
        outside = self._plan(true)
        if self.reason:
            return _Entry(programs.finish(outside, self.kind, self.options), None, [])
        buckets = self._buckets(values)
        padded_sizes = Sizes(dict(zip(self.symbols, buckets)))
        if any(padded_sizes(size) < true(size) for size in self._sizes):  # a quotient of sizes, such as n // 5
            self._give_up("a size that does not grow with its padding")
            return self._specialise(values)
        key, plan = self._padded(outside, true, buckets)
        program = self._programs.get(key)
        if program is None:
            self._compile_ahead(values, buckets)
            try:
                ahead = self._ahead.pop(key, None)
                made = programs.finish(plan, self.kind, self.options) if ahead is None else ahead.result()
            except (RuntimeError, ValueError) as error:  # a pattern that XLA or a rule cannot pad
                self._give_up(str(error).splitlines()[0])
                return self._specialise(values)
            program = self._programs[key] = made
        logical = [(r.dtype, r.shape, r.strides) for r in outside.results]
        numbers = [(i, constant) for i, (kind, _, constant) in enumerate(outside.outputs) if kind == 2]
        return _Entry(program, _C.CompiledExtents(list(values), logical, outside.draws), numbers)

    def _padded(self, outside: planning.Plan, true: Sizes, buckets: Sequence[int]) -> tuple[Any, planning.Plan]:
        """The plan of the program for these buckets, whose results leave it for these true sizes, and its key."""
        plan = self._plan(Sizes(dict(zip(self.symbols, buckets))), self.symbols)
        left = [leaving(r.node, p.shape, true, self._bucket) for r, p in zip(outside.results, plan.results)]
        plan.results = [replace(r, padded=dims) for r, dims in zip(plan.results, left)]
        return (tuple(buckets), tuple(left)), plan

    def _compile_ahead(self, values: Sequence[int], buckets: Sequence[int]) -> None:
        """What grows will leave its buckets: compile for the next ones meanwhile, so that nobody waits then."""
        grown = [size - more + 1 if more else value for value, size, more in zip(values, buckets, self._growth)]
        if not any(self._growth) or any(value > limit for value, limit in zip(grown, self._limits())):
            return
        true = Sizes(dict(zip(self.symbols, grown)))
        key, plan = self._padded(self._plan(true), true, self._buckets(grown))
        if key not in self._programs and key not in self._ahead:
            self._ahead[key] = _compiler().submit(programs.finish, plan, self.kind, self.options)

    def _buckets(self, values: Sequence[int]) -> list[int]:
        return [min(self._bucket(v + more), limit) for v, more, limit in zip(values, self._growth, self._limits())]

    def _plan(self, sizes: Sizes, symbols: Sequence[Any] = ()) -> planning.Plan:
        return planning.make(self.graph, self.device, self.options.donate, self.kind == "backward", sizes, symbols)

    def _bucket(self, size: int) -> int:
        return bucket(size, self.options.bucket_growth, self.options.bucket_minimum)

    def _limits(self) -> list[int]:
        """The largest value of each symbol, by mark_dynamic(..., max=); 1 for those that `solved` takes to be that."""
        told = {told.symbols[-1] for told in self._told}
        env = next((v.fake_mode.shape_env for v in self._fakes() if getattr(v, "fake_mode", None) is not None), None)
        limits = []
        for symbol in self.symbols:
            upper = env.var_to_range[symbol].upper if env is not None and symbol in env.var_to_range else None
            most = int(upper) if upper is not None and upper.is_Integer else 2**31 - 1
            limits.append(most if symbol in told else 1)
        return limits

    def _fakes(self) -> Any:
        return itertools.chain.from_iterable(tensors(fake(n)) for n in self.graph.graph.nodes)


def _told(graph: GraphModule) -> list[_Told]:
    """What tells the graph's symbols: where no argument tells one by itself, sizes that it is part of."""
    places: dict[Any, tuple[int, int]] = {}
    values = [fake(node) for node in graph.graph.find_nodes(op="placeholder")]
    for i, value in enumerate(values):
        if is_symbolic(value):
            places.setdefault(expression(value), (i, -1))
    for i, value in enumerate(values):
        for d, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if is_symbolic(size):
                places.setdefault(expression(size), (i, d))
    told = [_Told(size, [size], *place) for size, place in places.items() if size.is_Symbol]
    known = {size for size in places if size.is_Symbol}
    for size, place in places.items():
        if unknown := unknown_symbols(size, known):
            told.append(_Told(size, unknown, *place))
            known |= set(unknown)
    return told


def symbolic_sizes(graph: GraphModule) -> list[Any]:
    """The different sizes of the graph's tensors that are no numbers."""
    found = (s for node in graph.graph.nodes for t in tensors(fake(node)) for s in t.shape if is_symbolic(s))
    return list({expression(size): size for size in found}.values())


def growth(graph: GraphModule, symbols: Sequence[Any]) -> list[int]:
    """By how much results are longer than each symbol: a cache that grows has a bucket for what it grows to."""
    (output,) = graph.graph.find_nodes(op="output")
    longer = dict.fromkeys(symbols, 0)
    for size in (s for node in output.all_input_nodes for t in tensors(fake(node)) for s in t.shape):
        if shifted_symbol(size):
            (symbol,) = expression(size).free_symbols
            longer[symbol] = max(longer[symbol], int(expression(size) - symbol))
    return list(longer.values())


def leaving(
    node: torch.fx.Node, dims: Sequence[int], true: Sizes, bucket_of: Callable[[int], int]
) -> tuple[int, ...] | None:
    """The dims of a result: those it has in the program, but buckets where a cache grows by some elements."""
    shape = fake(node).shape
    if not any(is_symbolic(s) for s in shape):
        return None
    return tuple(bucket_of(true(s)) if shifted_symbol(s) else d for s, d in zip(shape, dims))


def _decomposed(graph: GraphModule) -> GraphModule:
    """The graph with PyTorch's decompositions of the ops that have no padded form of their own, where there are any."""
    from torch._decomp import decomposition_table

    unknown = {node.target for node in graph.graph.nodes if padded.why_not(node)}
    table = {op: decomposition_table[op] for op in unknown if op in decomposition_table}
    if not table or any(isinstance(node.target, HigherOrderOperator) for node in graph.graph.nodes):
        return graph
    placeholders = graph.graph.find_nodes(op="placeholder")
    values = [fake(node) for node in placeholders]
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    if mode is None:
        return graph
    with mode, enable_python_dispatcher():
        traced = make_fx(Interpreter(graph).run, decomposition_table=table)(*values)
    made = {n.target for n in traced.graph.nodes if isinstance(n.target, OpOverload) and list(tensors(fake(n)))}
    copies = traced.graph.find_nodes(op="call_function", target=planning.COPY)
    into_views = any(copy.args[0].op != "placeholder" for copy in copies)
    if into_views or any(registry.rule_for(op) is None and op is not planning.COPY for op in made):
        return graph
    for node, old in zip(traced.graph.find_nodes(op="placeholder"), placeholders):
        node._rename(old.name)  # what an argument is to AOTAutograd stands in its name
        node.meta["val"] = fake(old)
    return traced


def _why_exact(graph: GraphModule, options: Options) -> str:
    if not options.pad_sizes:
        return "option pad_sizes is off"
    return next((reason for node in graph.graph.nodes if (reason := padded.why_not(node))), "")

"""Which rule lowers which ATen overload, and how every overload is to be handled.

Families register with `lower`, `decompose`, `python_op` and `jax_rule`. The native core asks `resolve` once per
overload; programs call `lower_op` once per node.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from .builder import Builder, TensorSpec, Value

Op = OpOverload | OpOverloadPacket
RuleFn = Callable[..., Any]
F = TypeVar("F", bound=RuleFn)
Kind = Literal["record", "python", "composite", "fallback"]


@dataclass(frozen=True)
class Rule:
    """How one functional overload becomes StableHLO."""

    op: OpOverload
    fn: RuleFn
    static: frozenset[str] = frozenset()
    mutates: tuple[str, ...] = ()
    random: bool | str = False
    wide: bool = False
    keeps: tuple[tuple[str, str], ...] = ()
    kind: Literal["native", "decompose", "python"] = "native"


@dataclass(frozen=True)
class Resolution:
    """What the native core does with an overload.

    functional: the overload whose rule applies (`add_.Tensor` and `add.out` -> `add.Tensor`).
    dynamic: for each argument of the functional schema, whether its Python numbers are runtime parameters.
    mutates: names of the arguments of the *called* overload that receive results: those its schema marks
        (in-place and out arguments, in schema order), or those that the rule declares.
    hidden: the rule returns new values of `mutates` after the results (the schema does not show the mutation).
    random: the rule takes `rng`; the name of an argument means: unless that is zero.
    wide: its scalars travel in double precision.
    products: it may multiply matrices, in the precision that is set when it is called.
    keeps: (a, b) - of the arguments that receive results, `a` stays as it is unless `b` is given.
    fn: the function over tensors to call: always for "python", for "record" when `when` says so of the call's
        arguments as meta tensors (asked once a signature).
    """

    kind: Kind
    functional: OpOverload | None = None
    dynamic: tuple[bool, ...] = ()
    mutates: tuple[str, ...] = ()
    hidden: bool = False
    random: bool | str = False
    wide: bool = False
    products: bool = False
    keeps: tuple[tuple[str, str], ...] = ()
    fn: RuleFn | None = None
    when: Callable[..., bool] | None = None
    reason: str = ""


class LoweringError(RuntimeError):
    """A rule broke its contract."""


_rules: dict[OpOverload, Rule] = {}
_python_calls: dict[OpOverload, tuple[Callable[..., bool], RuleFn]] = {}


# ---- registration


def overloads(ops: Sequence[Op]) -> Iterator[OpOverload]:
    """The functional tensor overloads that these packets and overloads name."""
    for op in ops:
        if isinstance(op, OpOverload):
            yield op
            continue
        for name in op.overloads():  # type: ignore[no-untyped-call]
            overload = getattr(op, name)
            tensors = any("Tensor" in str(a.type) for a in (*overload._schema.arguments, *overload._schema.returns))
            if tensors and not overload._schema.is_mutable:
                yield overload


def _register(ops: Sequence[Op], **fields: Any) -> None:
    for op in overloads(ops):
        if op in _rules:
            raise LoweringError(f"two lowering rules for {op}")
        _rules[op] = Rule(op, **fields)


def lower(
    *ops: Op,
    static: Sequence[str] = (),
    mutates: Sequence[str] = (),
    random: bool | str = False,
    wide: bool = False,
    keeps: Sequence[tuple[str, str]] = (),
) -> Callable[[F], F]:
    """Register the decorated function as the rule of these overloads (a packet means all its functional ones)."""

    def decorate(fn: F) -> F:
        traits = {"random": random, "wide": wide, "keeps": tuple(keeps)}
        _register(ops, fn=fn, static=frozenset(static), mutates=tuple(mutates), **traits)
        return fn

    return decorate


def decompose(*ops: Op, using: RuleFn | None = None) -> None:
    """Lower these overloads through PyTorch's decomposition, or through `using`, a function over tensors."""
    for op in overloads(ops):
        _register([op], fn=functools.partial(_lower_decomposed, op, using), kind="decompose")


def python_op(*ops: Op) -> Callable[[F], F]:
    """Register a function over tensors, called instead of recording; it may read values (data-dependent shapes)."""

    def decorate(fn: F) -> F:
        _register(ops, fn=fn, kind="python")
        return fn

    return decorate


def jax_rule(*ops: Op, static: Sequence[str] = ()) -> Callable[[F], F]:
    """Register a JAX function over arrays (and static arguments) as the rule; lowered once per signature."""

    def decorate(fn: F) -> F:
        def rule(b: Builder, *args: Any, **kwargs: Any) -> Any:
            from .jax_inline import inline

            return inline(b, fn, args, kwargs)

        _register(ops, fn=rule, static=frozenset(static))
        return fn

    return decorate


def python_call(*ops: OpOverload, when: Callable[..., bool]) -> Callable[[F], F]:
    """Register a function over tensors, called instead of recording the calls that `when` picks.

    when: sees the call's arguments as meta tensors, so that it can tell by shapes and dtypes only; it may raise what
        PyTorch's meta kernel leaves unsaid. ops: the very overloads, in-place ones too.
    """

    def decorate(fn: F) -> F:
        for op in ops:
            _python_calls[op] = (when, fn)
        return fn

    return decorate


@functools.cache
def load() -> None:
    """Import every family, once."""
    from torch_tpu import lowering

    for module in pkgutil.iter_modules(lowering.__path__):
        if module.name != "mlir":  # the one module here that is slow to import
            importlib.import_module(f"{lowering.__name__}.{module.name}")


def rule_for(op: OpOverload) -> Rule | None:
    """The rule registered for this functional overload."""
    load()
    return _rules.get(op)


def rules() -> dict[OpOverload, Rule]:
    """All registered rules."""
    load()
    return dict(_rules)


# ---- resolution


def _find(name: str, overload: str) -> OpOverload | None:
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, overload or "default", None) if packet is not None else None


# The families whose rules multiply matrices.
_PRODUCTS = {
    "attention",
    "convolution",
    "ctc",
    "eigen",
    "grouped",
    "jax_inline",
    "linalg",
    "matmul",
    "recurrent",
    "resize",
    "schur",
    "transformer",
}
_FACTORY = {"dtype", "layout", "device", "pin_memory"}


def _signature(op: OpOverload, ignore: set[str]) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out and a.name not in ignore]


def functional_of(op: OpOverload) -> OpOverload | None:
    """The functional overload with the same arguments; a functional op is its own."""
    if not op._schema.is_mutable:
        return op
    namespace, _, base = op._schema.name.partition("::")
    stem = base[:-1] if base.endswith("_") and not base.endswith("__") else base
    if stem.startswith("__i") and stem.endswith("__"):
        stem = "__" + stem[3:]
    for ignore in (set[str](), _FACTORY):
        wanted = _signature(op, ignore)
        for name in (stem, f"{stem}_functional", f"{base}_functional"):
            packet = getattr(getattr(torch.ops, namespace), name, None)
            for overload in packet.overloads() if packet is not None else ():
                candidate: OpOverload = getattr(packet, overload)
                if not candidate._schema.is_mutable and _signature(candidate, ignore) == wanted:
                    return candidate
    return None


def _without_outs(op: OpOverload) -> OpOverload | None:
    """The overload of an out= op that makes its results itself."""
    if not any(a.is_out for a in op._schema.arguments):
        return None
    packet = op.overloadpacket
    for name in packet.overloads():
        candidate: OpOverload = getattr(packet, name)
        makes = not any(a.is_out for a in candidate._schema.arguments)
        if makes and _signature(candidate, set()) == _signature(op, set()):
            return candidate
    return None


def _is_dynamic(type_name: str) -> bool:
    # Scalar, Scalar?, Scalar[], float, float?
    return type_name in {"number", "Optional[number]", "List[number]", "float", "Optional[float]"}


@functools.cache
def resolve(name: str, overload: str) -> Resolution:
    """How to handle `name` ("aten::add_") `overload` ("Tensor")."""
    load()
    op = _find(name, overload)
    if op is None:
        return Resolution("fallback", reason=f"{name}.{overload} is unknown to torch.ops")
    functional = functional_of(op)
    rule = _rules.get(op) or (_rules.get(functional) if functional is not None else None)
    if torch.Tag.inplace_view in op.tags:  # transpose_ changes the tensor's metadata, not its values
        rule = None
    base = _without_outs(op)
    if base in _rules and _rules[base].mutates:  # it writes to more than its outs
        return Resolution("python", base, fn=_filling_outs(op, base))
    if rule is None:
        full = op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")
        for key in ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
            if torch._C._dispatch_has_kernel_for_dispatch_key(full, key):
                return Resolution("composite", functional)
        return Resolution("fallback", functional, reason=f"no lowering rule for {full}")
    shown = tuple(a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    if rule.kind == "python":
        return Resolution("python", rule.op, mutates=shown, fn=_filling_outs(op, rule.fn))
    dynamic = tuple(
        rule.kind == "native" and a.name not in rule.static and _is_dynamic(str(a.type))
        for a in rule.op._schema.arguments
    )
    when, fn = _python_calls.get(op, (None, None))
    mutates, hidden = shown or rule.mutates, bool(rule.mutates)
    return Resolution(
        "record",
        rule.op,
        dynamic,
        mutates,
        hidden,
        random=rule.random,
        wide=rule.wide,
        products=makes_products(rule),
        keeps=rule.keeps,
        fn=fn,
        when=when,
    )


def _filling_outs(op: OpOverload, fn: RuleFn) -> RuleFn:
    """fn as the out= overload calls it: the results go to the tensors that the caller gave."""
    outs = [a.name for a in op._schema.arguments if a.is_out]
    if not outs:
        return fn

    def call_out(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in outs]
        results = fn(*args, **kwargs)
        for target, result in zip(targets, [results] if isinstance(results, torch.Tensor) else results):
            target.resize_(result.shape).copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return call_out


def makes_products(rule: Rule) -> bool:
    """Whether the rule may ask for `Builder.precision`."""
    if rule.kind == "decompose" or rule.op._schema.name == "aten::_foreach_mm":
        return True
    return rule.fn.__module__.rpartition(".")[2] in _PRODUCTS


def draws(rule: Rule, arguments: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments gets `rng`."""
    return bool(arguments.get(rule.random, 0) if isinstance(rule.random, str) else rule.random)


# ---- lowering


def flatten(result: Any) -> list[Value | None]:
    """The values of a rule's result in schema order."""
    if isinstance(result, list | tuple):
        return [v for r in result for v in flatten(r)]
    return [result]


def _unflatten(like: Any, values: Iterator[Value | None]) -> Any:
    if isinstance(like, list | tuple):
        return type(like)(_unflatten(r, values) for r in like)
    return next(values)


def lower_op(
    b: Builder,
    op: OpOverload,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    outputs: Sequence[TensorSpec | None] | None = None,
) -> Any:
    """Lower one functional op: find its rule, call it, and give its results the dtypes PyTorch promises.

    Arguments are Values where the schema says Tensor, Values or Python numbers where it says Scalar or float.
    outputs: the specs of the flat tensor results; asked of PyTorch's meta kernel when absent.
    """
    rule = rule_for(op)
    if rule is None or rule.kind == "python":
        raise LoweringError(f"no lowering rule for {op}")
    kwargs = kwargs or {}
    specs = meta_outputs(op, args, kwargs) if outputs is None else list(outputs)
    saved, b.outputs = b.outputs, specs
    try:
        result = rule.fn(b, *args, **kwargs)
    finally:
        b.outputs = saved
    flat = flatten(result)
    if len(flat) < len(specs):
        raise LoweringError(f"{op}: {len(flat)} results, expected {len(specs)}")
    fitted = [_fit(op, value, spec) for value, spec in itertools.zip_longest(flat, specs[: len(flat)])]
    return _unflatten(result, iter(fitted))


def _fit(op: OpOverload, value: Value | None, spec: TensorSpec | None) -> Value | None:
    if value is None or spec is None:
        return value
    if value.shape != spec.shape:
        raise LoweringError(f"{op}: result of shape {list(value.shape)}, expected {list(spec.shape)}")
    return value.to(spec.dtype)


def call(b: Builder, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Use another op's rule inside a rule."""
    return lower_op(b, op, args, kwargs)


def meta_outputs(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[TensorSpec | None]:
    """The specs of the op's flat tensor results, from its meta kernel."""
    from .builder import TensorSpec, Value

    def to_meta(arg: Any, type_name: str) -> Any:
        if isinstance(arg, Value):
            if arg.weak or "Tensor" not in type_name:
                return _sample_number(arg)
            return torch.empty(arg.shape, dtype=arg.dtype, device="meta")
        if isinstance(arg, list | tuple):
            return [to_meta(a, type_name) for a in arg]
        return torch.device("meta") if isinstance(arg, torch.device) else arg

    types = {a.name: str(a.type) for a in op._schema.arguments}
    names = [a.name for a in op._schema.arguments]
    meta_args = [to_meta(a, types[n]) for a, n in zip(args, names)]
    meta_kwargs = {k: to_meta(v, types[k]) for k, v in kwargs.items()}
    if "device" in types:
        meta_kwargs["device"] = torch.device("meta")
    result = op(*meta_args, **meta_kwargs)
    return [TensorSpec.of(t) if isinstance(t, torch.Tensor) else None for t in flatten(result)]


def _sample_number(value: Value) -> bool | int | float | complex:
    return True if value.is_bool else 1j if value.is_complex else 1.0 if value.is_float else 1


# ---- decompositions


def _decomposition(op: OpOverload) -> RuleFn | None:
    from torch._decomp import decomposition_table

    found: RuleFn | None = decomposition_table.get(op)
    return found


@functools.cache
def _decompositions() -> dict[Any, RuleFn]:
    """PyTorch's table without the ops that have a rule of their own."""
    from torch._decomp import decomposition_table

    return {op: fn for op, fn in decomposition_table.items() if op not in _rules}


_graphs: dict[Any, torch.fx.GraphModule] = {}
_tracing = threading.RLock()  # compile threads build modules, and a tracer patches what all of them see


def _lower_decomposed(op: OpOverload, using: RuleFn | None, b: Builder, *args: Any, **kwargs: Any) -> Any:
    from .builder import Value

    leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    values = [v for v in leaves if isinstance(v, Value)]
    key = (op, spec, tuple(v.spec if isinstance(v, Value) else _hashable(v) for v in leaves), b.default_dtype)
    graph = _graphs.get(key)
    if graph is None:
        fn = using or _decomposition(op)
        if fn is None:
            raise LoweringError(f"PyTorch has no decomposition of {op}")
        graph = _graphs[key] = _trace(fn, leaves, spec)
    return lower_graph(b, graph, values)


def _hashable(leaf: Any) -> Any:
    # 1, 1.0 and True are equal but not the same argument.
    return (type(leaf), repr(leaf))


def _trace(fn: RuleFn, leaves: list[Any], spec: Any) -> torch.fx.GraphModule:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from .builder import Value

    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Value)]

    def flat(*tensors: torch.Tensor) -> Any:
        full = list(leaves)
        for i, tensor in zip(where, tensors):
            full[i] = tensor
        args, kwargs = torch.utils._pytree.tree_unflatten(full, spec)
        return fn(*args, **kwargs)

    with FakeTensorMode(), torch.no_grad():
        fakes = [torch.empty(leaves[i].shape, dtype=leaves[i].dtype) for i in where]
        with _tracing:
            graph: torch.fx.GraphModule = make_fx(flat, decomposition_table=_decompositions())(*fakes)
    graph.graph.eliminate_dead_code()
    return graph


def lower_graph(b: Builder, graph: torch.fx.GraphModule, inputs: Sequence[Value]) -> Any:
    """Lower an FX graph of functional ATen ops into the current program."""
    from .builder import TensorSpec

    env: dict[torch.fx.Node, Any] = {}
    remaining = iter(inputs)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(remaining)
            continue
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            tensor = getattr(graph, node.target)
            env[node] = b.constant(tensor, tensor.dtype)
        elif isinstance(node.target, OpOverload):
            specs = [TensorSpec.of(t) if isinstance(t, torch.Tensor) else None for t in flatten(node.meta["val"])]
            env[node] = lower_op(b, node.target, args, kwargs, specs)
        else:
            env[node] = node.target(*args, **kwargs)
    raise LoweringError("graph without an output")

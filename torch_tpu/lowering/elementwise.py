"""How elementwise families register their rules: the dtype to compute in, and broadcasting, are decided here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from . import dtypes
from .registry import F, Op, RuleFn, lower, overloads

if TYPE_CHECKING:
    from .builder import Builder

By = Literal["output", "input"]
_OPERANDS = {"Tensor", "number", "float"}


def pointwise(*ops: Op, by: By = "output", keep: Sequence[str] = ()) -> Callable[[F], F]:
    """Register an elementwise rule that sees all its operands at the dtype PyTorch computes in.

    by: "output" computes in the opmath of the result's dtype (arithmetic); "input" in the promotion of the inputs
    (comparisons, complex to real). keep: operands that keep their own dtype.
    The result is broadcast to the output's shape; operators inside broadcast as they go.
    """

    def decorate(fn: F) -> F:
        for op in overloads(ops):
            lower(op)(_computing_in(fn, op, by, keep))
        return fn

    return decorate


def table(by: By, entries: dict[str, RuleFn]) -> None:
    """Register many pointwise rules by overload name: "mul.Tensor", or "exp" for all functional overloads."""
    for name, fn in entries.items():
        packet, _, overload = name.partition(".")
        op = getattr(torch.ops.aten, packet)
        pointwise(getattr(op, overload) if overload else op, by=by)(fn)


def _computing_in(fn: RuleFn, op: Any, by: By, keep: Sequence[str]) -> RuleFn:
    arguments = op._schema.arguments
    operands = {
        a.name
        for a in arguments
        if a.name not in keep and str(a.type).removeprefix("Optional[").rstrip("]") in _OPERANDS
    }
    names = [a.name for a in arguments]

    @functools.wraps(fn)
    def rule(b: Builder, *args: Any, **kwargs: Any) -> Any:
        out = b.outputs[0]
        assert out is not None
        named = {**dict(zip(names, args)), **kwargs}
        given = [n for n, x in named.items() if n in operands and x is not None]
        dtype = dtypes.opmath(out.dtype) if by == "output" else b.promote(*(named[n] for n in given))
        named.update({n: b.scalar(named[n], dtype) for n in given})
        result = fn(b, *(named[n] for n in names[: len(args)]), **{n: named[n] for n in kwargs})
        return b.broadcast_to(result, out.shape)

    return rule

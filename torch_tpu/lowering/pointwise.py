"""Elementwise ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from . import dtypes
from .registry import Op, RuleFn, lower, overloads

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten


def pointwise(
    *ops: Op, by: Literal["output", "input"] = "output", static: Sequence[str] = ()
) -> Callable[[RuleFn], RuleFn]:
    """Register an elementwise rule that sees all its operands at the dtype PyTorch computes in.

    by: whether that dtype follows the op's output or the promotion of its inputs (comparisons, complex to real).
    The result is broadcast to the output's shape; operators inside broadcast as they go.
    """

    def decorate(fn: RuleFn) -> RuleFn:
        for op in overloads(ops):
            lower(op, static=static)(_computing_in(fn, op, by, static))
        return fn

    return decorate


def _computing_in(fn: RuleFn, op: Any, by: str, static: Sequence[str]) -> RuleFn:
    def is_operand(name: str, type_name: str) -> bool:
        return name not in static and type_name.removeprefix("Optional[").rstrip("]") in {"Tensor", "number", "float"}

    operand = {a.name: is_operand(a.name, str(a.type)) for a in op._schema.arguments}
    names = list(operand)

    def rule(b: Builder, *args: Any, **kwargs: Any) -> Any:
        out = b.outputs[0]
        assert out is not None
        named = [(n, x) for n, x in (*zip(names, args), *kwargs.items()) if operand[n] and x is not None]
        dtype = dtypes.opmath(out.dtype if by == "output" else b.promote(*(x for _, x in named)))
        args = tuple(b.scalar(x, dtype) if operand[n] and x is not None else x for n, x in zip(names, args))
        kwargs = {n: b.scalar(x, dtype) if operand[n] and x is not None else x for n, x in kwargs.items()}
        return b.broadcast_to(fn(b, *args, **kwargs), out.shape)

    return rule


def _table(by: Literal["output", "input"], entries: dict[str, Callable[..., Value]]) -> None:
    for name, fn in entries.items():
        packet, _, overload = name.partition(".")
        op = getattr(aten, packet)
        pointwise(getattr(op, overload) if overload else op, by=by)(fn)


@pointwise(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, x: Value, y: Value, alpha: Operand = 1) -> Value:
    return x + y * alpha


@pointwise(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, x: Value, y: Value, alpha: Operand = 1) -> Value:
    return x - y * alpha


@pointwise(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, x: Value, y: Value, alpha: Operand = 1) -> Value:
    return y - x * alpha


SQRT_HALF = 0.7071067811865476
SQRT_2_OVER_PI = 0.7978845608028654


@pointwise(aten.gelu)
def gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + b.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))
    return x * 0.5 * (1.0 + b.erf(x * SQRT_HALF))


_table(
    "output",
    {
        "mul.Tensor": lambda b, x, y: x * y,
        "mul.Scalar": lambda b, x, y: x * y,
        "div.Tensor": lambda b, x, y: x / y,
        "div.Scalar": lambda b, x, y: x / y,
    },
)

"""Symbolic sizes: what they are at one call, and the padded sizes that programs are compiled for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Sizes:
    """Gives every symbolic size a number."""

    values: Mapping[Any, int] = field(default_factory=dict)

    def __call__(self, size: int | torch.SymInt) -> int:
        """The number that a size has when its symbols have theirs."""
        if isinstance(size, int):
            return size
        return int(expression(size).xreplace(dict(self.values)))

    def number(self, value: float | torch.SymInt | torch.SymFloat) -> float:
        """The number that a size, or what is computed from sizes, has when their symbols have theirs."""
        if isinstance(value, int | float):
            return value
        found = value.node.expr.xreplace(dict(self.values))
        return float(found) if isinstance(value, torch.SymFloat) else int(found)

    def shape(self, shape: Any) -> tuple[int, ...]:
        """A whole shape in numbers."""
        return tuple(self(s) for s in shape)


def expression(size: int | torch.SymInt) -> Any:
    """The sympy expression of a size."""
    import sympy

    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


def is_symbolic(size: Any) -> bool:
    """Whether a size is not the same at every call."""
    return isinstance(size, torch.SymInt) and bool(expression(size).free_symbols)


def bucket(size: int, growth: float, minimum: int) -> int:
    """The least padded size that holds `size`: minimum, then each `growth` times the one before."""
    padded = minimum
    while padded < size:
        padded = max(padded + 1, int(padded * growth))
    return padded


def shifted_symbol(size: Any) -> bool:
    """Whether a size is a symbol plus a constant: such results get buckets of their own, as a growing cache needs."""
    found = expression(size)
    return bool(found.is_Add) and len(found.free_symbols) == 1 and (found - next(iter(found.free_symbols))).is_Integer


def unknown_symbols(size: Any, known: Collection[Any]) -> list[Any]:
    """The symbols of an expression that are not known, always in the same order."""
    return sorted(size.free_symbols - set(known), key=str)


def solved(size: Any, value: int, known: Mapping[Any, int]) -> dict[Any, int]:
    """Numbers for the symbols of an expression that are not known, with which it is `value`.

    All but the last become 1: a graph that is told symbols only together depends on them only together.
    """
    *others, last = unknown_symbols(size, known)
    found = dict.fromkeys(others, 1)
    rest = size.xreplace({**known, **found})
    number: Any = expression(value)
    while rest != last:
        (inner,) = (a for a in rest.args if a.free_symbols)
        (outer,) = (a for a in rest.args if not a.free_symbols)
        if rest.is_Add:
            number -= outer
        elif rest.is_Mul:
            number /= outer
        elif type(rest).__name__ == "FloorDiv":
            number *= outer
        elif rest.is_Pow:
            number = number ** (1 / outer)
        else:
            raise NotImplementedError(f"a size that is told only as {size}")
        rest = inner
    return found | {last: int(number)}

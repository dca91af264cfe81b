"""Values: what a lowering rule sees of the program it builds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes

if TYPE_CHECKING:
    from .builder import Builder


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor, without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec(tuple(tensor.shape), tensor.dtype)


class Value:
    """A tensor inside the program being built."""

    __slots__ = ("b", "dtype", "ir", "shape", "weak")

    def __init__(self, b: Builder, ir: Any, shape: tuple[int, ...], dtype: torch.dtype, weak: bool = False) -> None:
        self.b = b
        self.ir = ir
        self.shape = shape
        self.dtype = dtype
        self.weak = weak and not shape  # a Python number in type promotion

    def __repr__(self) -> str:
        return f"Value({self.dtype}, {list(self.shape)}{', weak' if self.weak else ''})"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.shape, self.dtype)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point

    @property
    def is_complex(self) -> bool:
        return self.dtype.is_complex

    @property
    def is_bool(self) -> bool:
        return self.dtype == torch.bool

    @property
    def is_integral(self) -> bool:
        """Integer or bool."""
        return dtypes.is_integral(self.dtype)

    def to(self, dtype: torch.dtype) -> Value:
        return self.b.convert(self, dtype)

    def reshape(self, *shape: int) -> Value:
        return self.b.reshape(self, shape)

    def __add__(self, other: Operand) -> Value:
        return self.b.add(self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.b.add(other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.b.subtract(self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.b.subtract(other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.b.multiply(self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.b.multiply(other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.b.true_divide(self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.b.true_divide(other, self)

    def __neg__(self) -> Value:
        return self.b.negate(self)

    def __and__(self, other: Operand) -> Value:
        return self.b.and_(self, other)

    def __or__(self, other: Operand) -> Value:
        return self.b.or_(self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.b.xor(self, other)

    def __invert__(self) -> Value:
        return self.b.not_(self)

    def __lt__(self, other: Operand) -> Value:
        return self.b.compare(self, "LT", other)

    def __le__(self, other: Operand) -> Value:
        return self.b.compare(self, "LE", other)

    def __gt__(self, other: Operand) -> Value:
        return self.b.compare(self, "GT", other)

    def __ge__(self, other: Operand) -> Value:
        return self.b.compare(self, "GE", other)

    def eq(self, other: Operand) -> Value:
        """Elementwise; `==` stays identity so that values can be compared and hashed."""
        return self.b.compare(self, "EQ", other)

    def ne(self, other: Operand) -> Value:
        return self.b.compare(self, "NE", other)


Operand = Value | bool | int | float | complex

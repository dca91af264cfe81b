"""What the lowering layer knows about torch dtypes."""

from __future__ import annotations

import torch

# The names StableHLO gives the element types.
MLIR_NAMES: dict[torch.dtype, str] = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
}

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def is_float(dtype: torch.dtype) -> bool:
    """Real floating point."""
    return dtype.is_floating_point


def is_complex(dtype: torch.dtype) -> bool:
    return dtype.is_complex


def is_bool(dtype: torch.dtype) -> bool:
    return dtype == torch.bool


def is_int(dtype: torch.dtype) -> bool:
    """Integers, without bool."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def is_integral(dtype: torch.dtype) -> bool:
    """Integers and bool."""
    return not (dtype.is_floating_point or dtype.is_complex)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which PyTorch computes: float32 for the narrower floats, else the dtype itself."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def real(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts of a complex dtype; other dtypes are their own."""
    return _REAL.get(dtype, dtype)


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype whose parts have this dtype."""
    return dtype if dtype.is_complex else _COMPLEX[dtype]


def lowest(dtype: torch.dtype) -> float | int | bool:
    """The smallest value, -inf for floats: what a maximum starts from."""
    if dtype.is_floating_point:
        return float("-inf")
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float | int | bool:
    """The largest value, inf for floats: what a minimum starts from."""
    if dtype.is_floating_point:
        return float("inf")
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def of_number(value: bool | int | float | complex) -> torch.dtype:
    """The dtype that carries a Python number as a runtime scalar."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    return torch.complex128 if isinstance(value, complex) else torch.float64


def _group(dtypes: list[torch.dtype]) -> torch.dtype | None:
    result: torch.dtype | None = None
    for dtype in dtypes:
        result = dtype if result is None else torch.promote_types(result, dtype)
    return result


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return complex_of(opmath(higher)) if lower.is_complex else higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def result_type(
    dims: list[torch.dtype], zeros: list[torch.dtype], numbers: list[torch.dtype], default: torch.dtype
) -> torch.dtype:
    """torch.result_type over the dtypes of dimensioned tensors, of 0-d tensors and of Python numbers."""
    weak = [complex_of(default) if d.is_complex else default if d.is_floating_point else d for d in numbers]
    result = _combine(_group(dims), _combine(_group(zeros), _group(weak)))
    if result is None:
        raise ValueError("result_type of nothing")
    return result

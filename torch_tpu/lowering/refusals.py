"""What PyTorch's CPU kernels refuse and its meta kernels let through."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .registry import refuse

aten = torch.ops.aten
Tensor = torch.Tensor


def _name(dtype: torch.dtype) -> str:
    """A dtype as C++ says it."""
    names = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16"}
    names |= {torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte"}
    names |= {torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble"}
    return names.get(dtype, str(dtype))


@refuse(aten.gelu, aten.gelu_, aten.gelu_backward)
def _gelu(*_: object, approximate: str = "none", **__: object) -> None:
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")


@refuse(aten.convolution)
def _convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: object, pad: object, dilation: Sequence[int], *_: object
) -> None:
    if any(d <= 0 for d in dilation):
        raise RuntimeError("dilation should be greater than zero")


@refuse(aten.multinomial)
def _multinomial(x: Tensor, *_: object, **__: object) -> None:
    if not x.dtype.is_floating_point:
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {_name(x.dtype)}")


@refuse(aten.bucketize)
def _bucketize(values: object, boundaries: Tensor, **_: object) -> None:
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")


@refuse(aten.complex)
def _complex(re: Tensor, im: Tensor, out: Tensor | None = None) -> None:
    if out is not None and out.dtype != re.dtype.to_complex():
        expected, given = _name(re.dtype.to_complex()), _name(out.dtype)
        raise RuntimeError(f"Expected object of scalar type {expected} but got scalar type {given} for argument 'out'")


@refuse(aten.aminmax)
def _aminmax(x: Tensor, *, min: Tensor | None = None, max: Tensor | None = None, **_: object) -> None:
    for out in (min, max):
        if out is not None and out.dtype != x.dtype:
            expected, given = (_name(d).lower() for d in (x.dtype, out.dtype))
            raise RuntimeError(f"Expected out tensor to have dtype {expected}, but got {given} instead")

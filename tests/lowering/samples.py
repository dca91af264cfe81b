"""Sample tensors, and the comparison that narrow floats deserve."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from harness import _functional, compare, run

NARROW = (torch.bfloat16, torch.float16)


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal floats and complex numbers, small integers, coin flips."""
    if dtype == torch.bool:
        return torch.randint(2, shape).bool()
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -50, 50, shape, dtype=dtype)


def is_exact(dtype: torch.dtype) -> bool:
    """Whether sums and products of this dtype have one right answer."""
    return not (dtype.is_floating_point or dtype.is_complex)


def check_once_rounded(
    op: Any, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any
) -> None:
    """Compare with CPU torch; results in narrow floats with what float64 gives, rounded once.

    PyTorch's own CPU kernels round several times in some ops, which says nothing about ours.
    """
    op = _functional(op)

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.dtype in NARROW else tensor

    expected = op(*args, **kwargs)
    if any(t.dtype in NARROW for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)):
        wide = op(*pytree.tree_map_only(torch.Tensor, widen, args), **pytree.tree_map_only(torch.Tensor, widen, kwargs))
        leaves, spec = pytree.tree_flatten(expected)
        fit = [w.to(e.dtype) if isinstance(e, torch.Tensor) else e for w, e in zip(pytree.tree_leaves(wide), leaves)]
        expected = pytree.tree_unflatten(fit, spec)
    compare(run(op, *args, **kwargs), expected, rtol=rtol, atol=atol)

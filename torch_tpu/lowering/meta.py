"""Meta kernels that PyTorch does not ship: without one, an op's results have no known shape before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

MetaFn = Callable[..., Any]

_library = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]


def meta(*ops: OpOverload) -> Callable[[MetaFn], MetaFn]:
    """Register the decorated function as the meta kernel of these overloads, unless PyTorch has one."""

    def decorate(fn: MetaFn) -> MetaFn:
        for op in ops:
            name = op.name()  # type: ignore[no-untyped-call]
            if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
                _library.impl(name.removeprefix("aten::"), fn)  # type: ignore[no-untyped-call]
        return fn

    return decorate


def in_place(*ops: OpOverload) -> None:
    """Ops that only write to their arguments: nothing to compute but nothing to refuse either."""
    meta(*ops)(lambda *args, **kwargs: None)

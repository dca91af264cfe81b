"""Meta kernels that PyTorch lacks: the ops that it has for CUDA or the CPU alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]

MetaKernel = Callable[..., Any]


def meta_kernel(*names: str) -> Callable[[MetaKernel], MetaKernel]:
    """Register a function over meta tensors that makes the results of these aten ops."""

    def decorate(fn: MetaKernel) -> MetaKernel:
        for name in names:
            _library.impl(name, fn)  # type: ignore[no-untyped-call]
        return fn

    return decorate

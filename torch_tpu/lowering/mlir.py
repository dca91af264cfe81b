"""The one place that touches MLIR's Python bindings, which come with jaxlib and have no usable types."""

from __future__ import annotations

import threading
from typing import Any

import torch
from jaxlib.mlir import ir as _ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # the bindings hide the registration of `func` here
from jaxlib.mlir.dialects import chlo as _chlo
from jaxlib.mlir.dialects import func as _func
from jaxlib.mlir.dialects import stablehlo as _hlo
from jaxlib.mlir.passmanager import PassManager as _PassManager

from .dtypes import MLIR_NAMES

ir: Any = _ir
hlo: Any = _hlo
chlo: Any = _chlo
func: Any = _func

hlo.register_stablehlo_passes()
_TO_STABLEHLO = "builtin.module(func.func(chlo-legalize-to-stablehlo))"


class Context:
    """An MLIR context with its types; one a thread, since contexts without their own threads are not thread-safe."""

    def __init__(self) -> None:
        self.ctx = ir.Context()
        self.ctx.enable_multithreading(False)
        registry = ir.DialectRegistry()
        _jax_mlir_ext.register_dialects(registry)
        self.ctx.append_dialect_registry(registry)
        self.ctx.load_all_available_dialects()
        hlo.register_dialect(self.ctx)
        chlo.register_dialect(self.ctx)
        with self.ctx:
            self.loc = ir.Location.unknown()
            self.elements = {dtype: ir.Type.parse(name) for dtype, name in MLIR_NAMES.items()}
        self._tensors: dict[tuple[tuple[int, ...], torch.dtype], Any] = {}

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
        """The ranked tensor type."""
        key = (shape, dtype)
        found = self._tensors.get(key)
        if found is None:
            if dtype not in self.elements:
                raise NotImplementedError(f"{dtype} has no StableHLO element type")
            found = self._tensors[key] = ir.RankedTensorType.get(shape, self.elements[dtype], loc=self.loc)
        return found


_local = threading.local()


def context() -> Context:
    """This thread's context."""
    found: Context | None = getattr(_local, "context", None)
    if found is None:
        found = _local.context = Context()
    return found


def legalize(module: Any) -> None:
    """Expand CHLO into StableHLO, in place."""
    with module.context:
        _PassManager.parse(_TO_STABLEHLO).run(module.operation)


def serialize(module: Any, version: str = "") -> bytes:
    """The module as a portable artifact that a plugin of this StableHLO version (or a newer one) can read."""
    legalize(module)
    current: str = hlo.get_current_version()
    target = hlo.get_smaller_version(version, current) if version else current
    artifact: bytes = hlo.serialize_portable_artifact(module, target)
    return artifact

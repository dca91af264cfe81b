"""Plain ``torch.compile(model)``: graphs with tpu tensors come to this package, all others go to Inductor as before.

The hook is `torch.compiler.set_default_backend`, PyTorch's own. It lives in torch._dynamo, which takes a second to
import and which torch.compile imports by itself: so a finder waits for that import and sets the default then. In the
same way Dynamo learns not to trace this package, which the device's kernels call in the middle of a user's frames, and
finds all shapes that an op can have.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def default_backend(graph: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """What torch.compile uses when no backend is named."""
    import torch

    from .pieces import uses_tpu

    if uses_tpu(graph, inputs):
        from .backend import tpu

        return tpu(graph, inputs, mode=mode, options=options)
    inductor: Any = torch._TorchCompileInductorWrapper(mode, options, None)  # type: ignore[no-untyped-call]
    return inductor(graph, inputs)


def install() -> None:
    """Make it the default backend, now or when torch._dynamo is imported."""
    for name, prepare in _PREPARE.items():
        if name in sys.modules:
            prepare(sys.modules[name])
        elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder(name))


def _set_default(registry: ModuleType) -> None:
    from torch_tpu.dynamo import backend

    if registry.get_default_backend() == "inductor":  # a default that somebody chose stays
        registry.set_default_backend(default_backend)
    if "tpu" not in registry._BACKENDS:  # known also where the package is not installed but on the path
        registry.register_backend(backend, "tpu")


def _do_not_trace(trace_rules: ModuleType) -> None:
    from torch_tpu.lowering import registry

    trace_rules.add("torch_tpu")
    registry.load()  # the meta kernels that PyTorch lacks must be there when Dynamo traces


_PREPARE: dict[str, Callable[[ModuleType], None]] = {
    "torch._dynamo.backends.registry": _set_default,
    "torch._dynamo.trace_rules": _do_not_trace,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Acts once, when a module of Dynamo is imported."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _PREPARE[name])
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, prepare: Callable[[ModuleType], None]) -> None:
        self._loader, self._prepare = loader, prepare

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._prepare(module)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self._loader, name)  # get_source and the like
        return found

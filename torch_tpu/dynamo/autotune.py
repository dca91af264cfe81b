"""A small search over compiler options, for mode="max-autotune": each set compiled, measured, the fastest kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_tpu import _C
from torch_tpu.compiler import cache, platform
from torch_tpu.compiler.options import OptionValue
from torch_tpu.lowering.dtypes import MLIR_NAMES

from .plan import Plan, scalar_words

Candidate = Mapping[str, OptionValue]

# The compiler's defaults come first: a tie is theirs.
CANDIDATES: dict[str, Sequence[Candidate]] = {
    "cpu": ({}, {"xla_backend_optimization_level": 1}, {"xla_cpu_use_fusion_emitters": False}),
    "tpu": ({}, {"xla_tpu_scoped_vmem_limit_kib": 65536}, {"xla_tpu_enable_latency_hiding_scheduler": True}),
}
_RUNS = 5
_TIE = 0.97  # a candidate must be faster by more than what measurements differ


def choose(key: str, plan: Plan, seconds: float, compile_with: Callable[[Candidate], _C.Executable]) -> Candidate:
    """The fastest candidate for the program of this key, remembered if it was measured before."""
    path = _folder() / f"autotune-{key}"
    try:
        remembered: Candidate = json.loads(path.read_text())
    except (OSError, ValueError):
        pass
    else:
        return remembered
    end, best, fastest = time.monotonic() + seconds, {}, float("inf")
    for candidate in CANDIDATES[platform.select().platform]:
        try:
            took = _measure(compile_with(candidate), plan)
        except RuntimeError:  # a plugin that does not know the option
            continue
        if took < fastest * _TIE:
            best, fastest = dict(candidate), took
        if time.monotonic() > end:
            break
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(best))
    except OSError:  # a read-only disk: measured again next time
        pass
    return best


def parameters(plan: Plan) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of the program's parameters."""
    found = [(p.shape, p.dtype) for p in plan.parameters if p.use == 0]
    words = scalar_words(plan)
    return [*found, ((words,), torch.int32)] if words else found


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: int) -> Any:
    data: Any = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    name = {torch.complex64: "c64", torch.complex128: "c128"}.get(dtype, MLIR_NAMES[dtype].lower())
    return _C.default_client().buffer_from_host(data, name, shape, device)


def _folder() -> Path:
    return cache.default_folder() / "autotune"


def _measure(executable: _C.Executable, plan: Plan) -> float:
    """The least seconds of one run."""
    fastest = float("inf")
    for _ in range(_RUNS):
        arguments = [_zeros(shape, dtype, plan.device) for shape, dtype in parameters(plan)]  # may be donated
        started = time.perf_counter()
        executable.execute(arguments, wait=True)
        fastest = min(fastest, time.perf_counter() - started)
    return fastest

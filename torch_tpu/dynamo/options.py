"""`mode` and `options` of torch.compile, typed: an unknown name or a wrong value is an error that lists the known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch_tpu.compiler import flags
from torch_tpu.compiler.options import OptionValue

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_PRECISIONS = ("highest", "high", "medium")


@dataclass(frozen=True)
class Options:
    """What `torch.compile(model, backend="tpu", options={...})` takes."""

    donate: bool = True
    """Let a program write its results into the buffers of mutated inputs and of activations that nobody else sees."""
    matmul_precision: str | None = None
    """highest, high or medium for the float32 products of this graph; None is torch.get_float32_matmul_precision()."""
    rematerialize: bool | None = None
    """Recompute activations in the backward pass instead of keeping them; None is what TORCHTPU_FLAGS says."""
    autotune: bool = False
    """Compile with each set of compiler options of `autotune.CANDIDATES`, measure it on the device with arguments of
    zeros, keep the fastest (mode="max-autotune"). The choice is remembered beside the compile cache."""
    autotune_seconds: float = 60.0
    """How long the search may take for one graph; what has been measured by then decides."""
    direct_call: bool = False
    """Call the program straight from Dynamo's guards where the graph allows it (mode="reduce-overhead")."""
    pad_sizes: bool = True
    """Compile graphs with dynamic sizes once for a bucket of sizes, padded; off: once for each set of sizes."""
    bucket_growth: float = 2.0
    """How much larger each bucket is than the one before."""
    bucket_minimum: int = 8
    """The smallest bucket."""
    compiler_options: Mapping[str, OptionValue] = field(default_factory=dict)
    """The compiler's own flags, such as {"xla_backend_optimization_level": 1}."""

    def recomputes(self) -> bool:
        """Whether the backward pass recomputes activations."""
        return flags.flags().lazy_rematerialization if self.rematerialize is None else self.rematerialize

    def __post_init__(self) -> None:
        for name in ("donate", "autotune", "direct_call", "pad_sizes"):
            if type(getattr(self, name)) is not bool:
                raise TypeError(f"option {name} must be True or False, not {getattr(self, name)!r}")
        if self.rematerialize not in (None, True, False):
            raise TypeError(f"option rematerialize must be True, False or None, not {self.rematerialize!r}")
        if self.matmul_precision not in (None, *_PRECISIONS):
            raise ValueError(
                f"option matmul_precision is {self.matmul_precision!r}; known are {', '.join(_PRECISIONS)}"
            )
        if not isinstance(self.autotune_seconds, int | float) or self.autotune_seconds <= 0:
            raise ValueError(f"option autotune_seconds must be a positive number, not {self.autotune_seconds!r}")
        if not isinstance(self.bucket_growth, int | float) or self.bucket_growth <= 1:
            raise ValueError(f"option bucket_growth must be more than 1, not {self.bucket_growth!r}")
        if type(self.bucket_minimum) is not int or self.bucket_minimum < 1:
            raise ValueError(f"option bucket_minimum must be a positive int, not {self.bucket_minimum!r}")
        if not isinstance(self.compiler_options, Mapping):
            raise TypeError(f"option compiler_options must be a dict, not {self.compiler_options!r}")


_OF_MODE: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"direct_call": True},
    "max-autotune": {"direct_call": True, "autotune": True},
    "max-autotune-no-cudagraphs": {"direct_call": True, "autotune": True},
}


def parse(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """The options of a mode with `options` on top."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile mode {mode!r} is unknown to backend tpu; known are {', '.join(MODES)}")
    known = [f.name for f in fields(Options)]
    for name in options or {}:
        if name not in known:
            raise ValueError(f"torch.compile option {name!r} is unknown to backend tpu; known are {', '.join(known)}")
    return Options(**{**_OF_MODE[mode or "default"], **(options or {})})

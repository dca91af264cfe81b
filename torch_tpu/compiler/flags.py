"""TORCHTPU_FLAGS: switches of the whole process, read once. An unknown flag is an error that lists the known ones.

TORCHTPU_FLAGS="--torchtpu_allow_tf32 --torchtpu_lazy_rematerialization=true" python train.py
"""

from __future__ import annotations

import functools
import os
import shlex
from dataclasses import dataclass, fields

_PREFIX = "--torchtpu_"
_VALUES = {"": True, "true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Flags:
    """The flags and their defaults."""

    allow_tf32: bool = False
    """Float32 products may drop bits: "highest" becomes "high", three passes of bfloat16 on a TPU."""
    lazy_rematerialization: bool = False
    """Compiled backward passes recompute what is cheap to recompute, for less memory."""


def parse(text: str) -> Flags:
    """The flags that a command line asks for."""
    known = [f.name for f in fields(Flags)]
    values = {}
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        if name.removeprefix(_PREFIX) not in known or not name.startswith(_PREFIX):
            listed = ", ".join(_PREFIX + flag for flag in known)
            raise ValueError(f"TORCHTPU_FLAGS: {name!r} is unknown; known are {listed}")
        if value.lower() not in _VALUES:
            raise ValueError(f"TORCHTPU_FLAGS: {word!r} must be true or false")
        values[name.removeprefix(_PREFIX)] = _VALUES[value.lower()]
    return Flags(**values)


@functools.cache
def flags() -> Flags:
    """The process's flags."""
    return parse(os.environ.get("TORCHTPU_FLAGS", ""))


def matmul_precision(asked: str) -> str:
    """The precision that float32 products get where `asked` is torch.get_float32_matmul_precision()."""
    return "high" if asked == "highest" and flags().allow_tf32 else asked

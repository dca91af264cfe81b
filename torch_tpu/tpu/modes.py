"""The eager modes: when recorded ops are handed to the device."""

import os
from enum import Enum

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_tpu import _C


class EagerMode(Enum):
    """When recorded ops are handed to the device."""

    DEBUG = "debug"
    """After each op, which is then waited for; checks on request, errors with the user's line."""
    STRICT = "strict"
    """After each op, without waiting."""
    FUSED = "fused"
    """At boundaries: a read by the host, the end of a step, a cap."""

    DEFER_NEVER_AND_LAUNCH_BLOCKING = DEBUG
    DEFER_NEVER = STRICT
    DEFER_AND_FUSE = FUSED

    def __call__(self) -> "EagerMode":
        """The mode itself, so that both torch.tpu.eager_mode and torch.tpu.eager_mode() read the mode in force."""
        return self


def parse_mode(mode: EagerMode | str) -> EagerMode:
    """The mode of that name, in any case, or an error that lists the known names."""
    if isinstance(mode, EagerMode):
        return mode
    known = EagerMode.__members__
    if str(mode).upper() not in known:
        raise ValueError(f"unknown eager mode {mode!r}; known are {', '.join(name.lower() for name in known)}")
    return known[mode.upper()]


_environment_loaded = False


def load_environment() -> None:
    """Applies TORCH_TPU_EAGER_MODE, once."""
    global _environment_loaded
    if _environment_loaded:
        return
    name = os.environ.get("TORCH_TPU_EAGER_MODE", "")
    if name:
        try:
            _apply(parse_mode(name))
        except ValueError as error:
            raise ValueError(f"TORCH_TPU_EAGER_MODE: {error}") from None
    _environment_loaded = True


def watch_optimizers() -> None:
    """The end of an optimizer's step is a boundary of fused programs."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: object, args: object, kwargs: object) -> None:
    if not torch.compiler.is_compiling():  # a compiled step is a program of its own
        _C._step_done()


def _apply(mode: EagerMode) -> None:
    _C._set_eager_mode(getattr(_C.EagerMode, mode.name))


def get_mode() -> EagerMode:
    """The mode in force."""
    load_environment()
    return EagerMode[_C._eager_mode().name]


def set_mode(mode: EagerMode | str) -> None:
    """Changes the mode of the whole process; what is recorded so far runs under the old one."""
    load_environment()
    _apply(parse_mode(mode))


class set_eager_mode:
    """Changes the mode of the whole process, as a call for good, in a with statement for the block."""

    def __init__(self, mode: EagerMode | str) -> None:
        self._previous = get_mode()
        set_mode(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        set_mode(self._previous)

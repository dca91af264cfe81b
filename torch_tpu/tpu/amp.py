"""Automatic mixed precision, in bfloat16 unless told otherwise."""

import functools
import sys
import threading
from typing import Any

import torch

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_amp_supported_dtype"]


_thread = threading.local()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may compute in."""
    if default_to_bfloat16():
        # torch asks while it makes an autocast object, whose default it has looked up already.
        caller = sys._getframe(1)
        if caller.f_code is torch.autocast.__init__.__code__ and caller.f_locals["dtype"] is None:
            caller.f_locals["self"].fast_dtype = torch.bfloat16
    return [torch.bfloat16, torch.float16]


def default_to_bfloat16() -> bool:
    """Makes bfloat16 the default of torch.autocast in the calling thread; False if that has been done before.

    torch keeps the default for each thread, starts every thread with float16, and has no hook for the start of one.
    """
    if hasattr(_thread, "done"):
        return False
    _thread.done = True
    torch.set_autocast_dtype("tpu", torch.bfloat16)
    return True


class autocast(torch.autocast):
    """torch.autocast for tpu."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool | None = None
    ) -> None:
        super().__init__("tpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for tpu; of use with float16 only."""

    def __init__(self, **options: Any) -> None:
        super().__init__("tpu", **options)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="tpu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="tpu")

"""``torch.tpu.metrics()``: every count of the system."""

from torch_tpu import _C
from torch_tpu.compiler import cache


def metrics() -> dict[str, int | float]:
    """Every count since the process started; those of the compile cache are named cache.*."""
    return {**_C._counters(), **{f"cache.{name}": value for name, value in cache.counts().items()}}

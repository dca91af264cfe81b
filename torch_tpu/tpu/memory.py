"""Device memory. Nothing is cached: what is reserved is what live tensors hold."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import OutOfMemoryError

from torch_tpu import _C
from torch_tpu.tpu.devices import DeviceLike, index_of, init

__all__ = [
    "OutOfMemoryError",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def memory_stats(device: DeviceLike = None) -> Mapping[str, Any]:
    """All counts of `device`, by the names that torch.accelerator.memory_stats uses."""
    return torch.accelerator.memory_stats(index_of(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that live tensors hold."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that tensors held at a time, since the start or reset_peak_memory_stats()."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: DeviceLike = None) -> int:
    """The same as memory_allocated(), as nothing is cached."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The same as max_memory_allocated(), as nothing is cached."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Makes the current use the peak."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counts that only grow (allocated, freed, num_ooms) back to 0."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    """Gives cached memory back: there is none, so nothing happens."""
    torch.accelerator.empty_cache()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Bytes that are free and bytes in all, within the limit that is set."""
    init()
    return torch.accelerator.get_memory_info(index_of(device))


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits this process to a fraction of the device's memory; more raises OutOfMemoryError."""
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, got {fraction}")
    init()
    index = index_of(device)
    _C._set_memory_limit(index, int(fraction * _C._memory_capacity(index)))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A readable account of the device's memory: totals, peaks and the largest live tensors."""
    index = index_of(device)
    stats = memory_stats(index)
    columns = ["current", "peak", "allocated", "freed"]
    rows = [["", *columns]]
    for name, key in (("bytes", "allocated_bytes"), ("storages", "allocation")):
        rows.append([name, *(f"{stats.get(f'{key}.all.{column}', 0):,}" for column in columns)])
    lines = [f"tpu:{index}, limit {_C._memory_limit(index):,} bytes, {stats.get('num_ooms', 0)} times out of memory"]
    lines += ["".join(f"{cell:>20}" for cell in row) for row in rows]
    report = _C._memory_report(index, 5 if abbreviated else 20)
    return "\n".join([*lines, *(["largest live storages:", report.rstrip()] if report else [])])

"""``torch.tpu``: devices, streams, memory, random numbers, eager modes, configuration and counts."""

import atexit
import os
import sys
from types import ModuleType

from torch import Generator

from torch_tpu import _C
from torch_tpu.tpu import amp, cache, compiler, memory, modes, random, settings, streams
from torch_tpu.tpu.amp import get_amp_supported_dtype
from torch_tpu.tpu.counts import metrics
from torch_tpu.tpu.devices import (
    DeviceProperties,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    platform,
    set_device,
    synchronize,
)
from torch_tpu.tpu.devices import _is_in_bad_fork as _is_in_bad_fork
from torch_tpu.tpu.devices import _lazy_init as _lazy_init
from torch_tpu.tpu.explanation import explain
from torch_tpu.tpu.memory import (
    OutOfMemoryError,
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_tpu.tpu.modes import EagerMode, set_eager_mode
from torch_tpu.tpu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.tpu.settings import config
from torch_tpu.tpu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

SUBMODULES = ("amp", "cache", "compiler", "memory", "random", "streams")

__all__ = [
    "DeviceProperties",
    "EagerMode",
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "amp",
    "cache",
    "compiler",
    "config",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",
    "empty_cache",
    "explain",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "metrics",
    "platform",
    "random",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
]


class _Module(ModuleType):
    """The attributes of ``torch.tpu`` that are computed when read."""

    @property
    def eager_mode(self) -> EagerMode:
        """The mode in force; assigning a mode, or its name, changes it."""
        return modes.get_mode()

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode | str) -> None:
        modes.set_mode(mode)

    @property
    def _initialized(self) -> bool:
        """What torch.utils.checkpoint looks at before it saves the generators' states."""
        return _C._initialized()

    @property
    def default_generators(self) -> tuple[Generator, ...]:
        """The default generator of each device."""
        return random.default_generators()


def _before_first_use() -> None:
    """Does what TORCH_TPU_* variables ask for, or says what is wrong; the core calls it before it starts."""
    settings.config._load()
    modes.load_environment()
    modes.watch_optimizers()
    atexit.register(_stop)


def _stop() -> None:
    """Ends the core's threads while Python can still serve them; a forked child has none."""
    if not _is_in_bad_fork():
        if os.environ.get("TORCH_TPU_EXPLAIN", "") == "1":
            print(explain(), file=sys.stderr)
        _C._shutdown()


sys.modules[__name__].__class__ = _Module

"""Devices: how many, which is current, what they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tpu import _C

DeviceLike = torch.device | str | int | None


def index_of(device: DeviceLike) -> int:
    """The index that `device` means; the current one for None and for "tpu" without index."""
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if device is None or (device.type == "tpu" and device.index is None):
        return current_device()
    if device.type != "tpu":
        raise ValueError(f"expected a tpu device, got {device}")
    return device.index


def is_available() -> bool:
    """Whether there is a tpu device: a TPU, or XLA's CPU plugin that imitates one. Never initialises anything."""
    return _C._device_count() > 0


def device_count() -> int:
    """The number of devices this process may use."""
    return _C._device_count()


def is_initialized() -> bool:
    """Whether the runtime runs already."""
    return _C._initialized()


def init() -> None:
    """Starts the runtime now, which otherwise the first use of a device does."""
    _C._init()


def _lazy_init() -> None:
    """What torch calls before it makes the first tensor of the device."""
    _C._init()


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had started the runtime, and so cannot use the device."""
    return _C._in_bad_fork()


def current_device() -> int:
    """The index of the calling thread's current device."""
    return _C._current_device()


def set_device(device: DeviceLike) -> None:
    """Makes `device` the calling thread's current one; negative indices change nothing."""
    index = index_of(device)
    if index >= 0:
        _C._set_device(index)


class device:
    """Context manager that changes the current device; a device of None or a negative index changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = current_device()
            _C._set_device(self.idx)

    def __exit__(self, *error: object) -> None:
        if self.idx >= 0:
            _C._set_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tpu tensor or storage the current one; others change nothing."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "tpu" else None)


@dataclass(frozen=True)
class DeviceProperties:
    """What is known of one device."""

    name: str
    """The kind that the plugin reports, such as "TPU v5 lite"; "cpu" under XLA's CPU plugin."""
    platform: str
    """"tpu" or "cpu"."""
    total_memory: int
    """Bytes that allocations may use: the device's memory, or the limit that was set."""
    index: int
    id: int
    """The device's number among all devices of all processes."""
    process_index: int
    local_hardware_id: int
    coords: tuple[int, ...] | None
    """Place of the chip in the mesh; None on CPU."""
    core_on_chip: int | None
    multi_processor_count: int
    """Cores that run a program together: 1."""
    attributes: Mapping[str, Any] = field(repr=False)
    """Everything else that the plugin tells."""


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """What is known of `device` (the current one by default)."""
    init()
    index = index_of(device)
    total_memory = _C._memory_limit(index)  # also checks the index
    client = _C.default_client()
    own = client.devices[index]
    attributes: dict[str, Any] = dict(own.info.attributes)
    coords = attributes.get("coords")
    return DeviceProperties(
        name=own.info.kind,
        platform=client.platform_name,
        total_memory=total_memory,
        index=index,
        id=own.info.id,
        process_index=own.info.process_index,
        local_hardware_id=own.local_hardware_id,
        coords=None if coords is None else tuple(coords),
        core_on_chip=attributes.get("core_on_chip"),
        multi_processor_count=1,
        attributes=attributes,
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The kind of `device` (the current one by default), such as "TPU v5 lite", or "cpu"."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """What `device` can do: the dtypes it supports, as torch.accelerator.get_device_capability tells it."""
    return torch.accelerator.get_device_capability(index_of(device))


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always true: every TPU computes in bfloat16, and XLA's CPU plugin supports it too."""
    return True


def synchronize(device: DeviceLike = None) -> None:
    """Waits until everything given to `device` is done; raises what failed and nobody has seen yet."""
    from torch_tpu.lowering import assertions

    torch.accelerator.synchronize(index_of(device))
    assertions.check()


def platform(reason: bool = False) -> str:
    """The platform that the programs run on, "tpu" or "cpu"; with `reason` also which plugin, and why it was chosen."""
    from torch_tpu.compiler.platform import select

    choice = select()
    return str(choice) if reason else choice.platform

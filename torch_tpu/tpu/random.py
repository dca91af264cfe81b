"""Random numbers: every device has a Philox generator, whose state is its seed and its offset."""

from collections.abc import Iterable

import torch
from torch import Generator, Tensor

from torch_tpu import _C
from torch_tpu.tpu.devices import DeviceLike, current_device, device_count, index_of

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: DeviceLike) -> Generator:
    return _C._default_generator(index_of(device))


def default_generators() -> tuple[Generator, ...]:
    """The default generator of each device."""
    return tuple(_C._default_generator(index) for index in range(device_count()))


def get_rng_state(device: DeviceLike = "tpu") -> Tensor:
    """The state of a device's generator: 16 bytes on the CPU, seed and offset."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[Tensor]:
    """The state of each device's generator."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: Tensor, device: DeviceLike = "tpu") -> None:
    """Sets what get_rng_state() returned."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Sets what get_rng_state_all() returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator(current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices, without starting the runtime."""
    _C._manual_seed_all(int(seed) % 2**64)


def seed() -> None:
    """Seeds the current device's generator from the system's randomness."""
    _generator(current_device()).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one number from the system's randomness."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(current_device()).initial_seed()

"""Compile options, typed, as the CompileOptionsProto bytes that PJRT takes.

The message is written by hand: protobuf's wire format needs four small functions, and a protobuf dependency would
bring generated code that must match the plugin's version.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

OptionValue = bool | int | float | str

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class CompileOptions:
    """How one program is compiled.

    `overrides` are the compiler's own flags, such as `xla_backend_optimization_level=0`, each with a value of the
    flag's type. Which flags exist only the plugin knows: an unknown one makes `compile` raise with the plugin's text.
    """

    num_replicas: int = 1
    num_partitions: int = 1
    device_ids: tuple[tuple[int, ...], ...] | None = None
    """Device ids by [replica][partition]; None leaves the placement to the plugin."""
    portable: bool = False
    """Compiled for any one device, which execute() then names."""
    shardy: bool = True
    """Partition by Shardy annotations, not GSPMD's."""
    overrides: Mapping[str, OptionValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("num_replicas", "num_partitions"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a positive int, not {value!r}")
        if self.device_ids is not None:
            shape = [len(row) for row in self.device_ids]
            if shape != [self.num_partitions] * self.num_replicas:
                raise ValueError(
                    f"device_ids must have {self.num_replicas} rows of {self.num_partitions} ids, its rows have {shape}"
                )
            if self.portable:
                raise ValueError("a portable program has no device_ids")
        for name, option in self.overrides.items():
            _check_override(name, option)

    def encode(self) -> bytes:
        """The CompileOptionsProto; equal options give equal bytes."""
        build = _int(1, -1) + _int(4, self.num_replicas) + _int(5, self.num_partitions)
        if self.num_partitions > 1:
            build += _int(6, 1)
        if self.device_ids is not None:
            build += _message(9, self._device_assignment(self.device_ids))
        if self.shardy:
            build += _int(19, 1)
        encoded = _message(3, build)
        if self.portable:
            encoded += _int(4, 1)
        for name in sorted(self.overrides):
            encoded += _message(7, _message(1, name.encode()) + _message(2, _override(self.overrides[name])))
        return encoded

    def _device_assignment(self, device_ids: tuple[tuple[int, ...], ...]) -> bytes:
        encoded = _int(1, self.num_replicas) + _int(2, self.num_partitions)
        for partition in range(self.num_partitions):
            ids = b"".join(_varint(row[partition]) for row in device_ids)
            encoded += _message(3, _message(1, ids))
        return encoded


# Where the plugin's own default is not PyTorch's arithmetic. XLA:CPU's maximum of a number and a NaN may be the number.
_NUMERICS: Mapping[str, Mapping[str, OptionValue]] = {"cpu": {"xla_cpu_enable_fast_min_max": False}}


def for_device(platform: str, device_id: int, overrides: Mapping[str, OptionValue] | None = None) -> bytes:
    """The encoded options of a program for one device of a platform, with PyTorch's numerics."""
    merged = {**_NUMERICS.get(platform, {}), **(overrides or {})}
    return CompileOptions(device_ids=((device_id,),), overrides=merged).encode()


def _check_override(name: str, value: OptionValue) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a compile option")
    if type(value) not in (bool, int, float, str):
        raise TypeError(f"compile option {name} must be a bool, int, float or str, not {type(value).__name__}")
    if type(value) is int and value not in _INT64:
        raise ValueError(f"compile option {name}={value} does not fit in 64 bits")
    # Some plugins take the string "false" for a boolean flag and read it as true.
    if isinstance(value, str) and value.lower() in ("true", "false"):
        raise TypeError(f"compile option {name} is {value!r}: write the bool {value.capitalize()}")


def _override(value: OptionValue) -> bytes:
    if isinstance(value, bool):
        return _int(2, value)
    if isinstance(value, int):
        return _int(3, value)
    if isinstance(value, float):
        return _varint(4 << 3 | 1) + struct.pack("<d", value)
    return _message(1, value.encode())


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _message(number: int, encoded: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(encoded)) + encoded

"""``torch.tpu.config``: every option, typed, with its environment variable TORCH_TPU_<NAME>."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from torch_tpu import _C

T = TypeVar("T")


class Option(Generic[T]):
    """One option: its default, how a value is checked, and what a change does."""

    def __init__(self, default: T, parse: Callable[[object], T], apply: Callable[[T], None], doc: str) -> None:
        self.default = default
        self.parse = parse
        self.apply = apply
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> "Option[T]": ...
    @overload
    def __get__(self, config: "Config", owner: type) -> T: ...
    def __get__(self, config: "Config | None", owner: type) -> "Option[T] | T":
        if config is None:
            return self
        value: T = config._load()[self.name]
        return value

    def __set__(self, config: "Config", value: object) -> None:
        values = config._load()
        parsed = self.checked(value, f"torch.tpu.config.{self.name}")
        self.apply(parsed)
        values[self.name] = parsed

    def checked(self, value: object, where: str) -> T:
        """The value in its own type, or a ValueError that says where it came from."""
        try:
            return self.parse(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where}: {error}") from None


def _one_of(*known: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in known:
            raise ValueError(f"{value!r} is unknown; known are {', '.join(known)}")
        return str(value)

    return parse


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    flags = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
    if not isinstance(value, str) or value.lower() not in flags:
        raise ValueError(f"{value!r} is not a flag; write True or False, in the environment 1 or 0")
    return flags[value.lower()]


def _memory_size(value: object) -> int | None:
    if value is None:
        return None
    return _C._parse_size(str(value))


def _positive(value: object) -> int:
    number = int(str(value))
    if number < 1:
        raise ValueError(f"{value!r} is not a positive number")
    return number


def _growth(value: object) -> float:
    number = float(str(value))
    if not number > 1:
        raise ValueError(f"{value!r} is not more than 1")
    return number


def _positive_size(value: object) -> int:
    return _positive(_C._parse_size(str(value)))


class Config:
    """The options of torch_tpu. Unknown names are errors."""

    cpu_fallback = Option(
        "warn",
        _one_of("warn", "silent", "error"),
        lambda value: _C._set_fallback_policy(getattr(_C.FallbackPolicy, value)),
        "What happens to an op that has no lowering rule: it runs on the CPU, with a warning once an op, or silently, "
        "or is refused.",
    )
    debug_check_nan = Option(
        False,
        _flag,
        lambda value: _C._set_debug_check_nan(value),
        "In debug mode, raise at the op whose result has a NaN or an infinity.",
    )
    debug_check_index = Option(
        False,
        _flag,
        lambda value: _C._set_debug_check_index(value),
        "In debug mode, raise IndexError at the op whose index is out of bounds; the device itself clamps it.",
    )
    debug_check_memory = Option(
        False,
        _flag,
        lambda value: _C._set_debug_check_memory(value),
        "In debug mode, count an op's temporary memory too, and raise where it passes the limit.",
    )
    dynamic_shapes = Option(
        "auto",
        _one_of("auto", "off"),
        lambda value: _C._set_dynamic_shapes(value == "auto"),
        "auto: fused programs that differ only in sizes share one for a bucket of sizes, from the second set of sizes "
        "on. off: each set of sizes has a program of its own.",
    )
    bucket_growth = Option(
        2.0,
        _growth,
        lambda value: _C._set_bucket_growth(value),
        "How much larger each bucket of sizes is than the one before.",
    )
    bucket_minimum = Option(
        8,
        _positive,
        lambda value: _C._set_bucket_minimum(value),
        "The smallest bucket of sizes.",
    )
    fused_max_nodes = Option(
        8192,
        _positive,
        lambda value: _C._set_fused_max_nodes(value),
        "Fused mode hands over at the latest after so many recorded nodes.",
    )
    fused_max_bytes = Option(
        16 << 30,
        _positive_size,
        lambda value: _C._set_fused_max_bytes(value),
        "Fused mode hands over at the latest when its recorded results add up to this size (bytes, or a text: 16GB).",
    )
    max_programs = Option(
        2048,
        _positive,
        lambda value: _C._set_max_programs(value),
        "Beyond so many compiled programs the eager modes let go of those not used for longest; the disk cache has "
        "them.",
    )
    memory_limit = Option[int | None](
        None,
        _memory_size,
        lambda value: _C._set_memory_limit(-1, value),
        "Bytes (or a text such as 16GB) that each device may use; None is the device's own memory. Passing it raises "
        "torch.OutOfMemoryError.",
    )

    _values: dict[str, Any] | None

    def __init__(self) -> None:
        object.__setattr__(self, "_values", None)

    def _load(self) -> dict[str, Any]:
        """The values; at the first call from the environment, which the first use of a device does at the latest."""
        if self._values is None:
            values = {}
            for name, option in _options().items():
                variable = f"TORCH_TPU_{name.upper()}"
                text = os.environ.get(variable, "")
                values[name] = option.checked(text, variable) if text else option.default
            for name, option in _options().items():
                option.apply(values[name])
            object.__setattr__(self, "_values", values)
            return values
        return self._values

    @contextmanager
    def patch(self, **changes: object) -> Iterator[None]:
        """Context manager that changes options for the block."""
        before = {name: getattr(self, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _options():
            raise AttributeError(_unknown(name))
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_unknown(name))

    def __dir__(self) -> list[str]:
        return [*_options(), "patch"]

    def __repr__(self) -> str:
        return f"torch.tpu.config({', '.join(f'{name}={value!r}' for name, value in self._load().items())})"


def _options() -> dict[str, Option[Any]]:
    return {name: option for name, option in vars(Config).items() if isinstance(option, Option)}


def _unknown(name: str) -> str:
    return f"torch.tpu.config has no option {name!r}; known are {', '.join(_options())}"


config = Config()

"""Streams and events.

Every stream of a device feeds the device's one queue, in the order of the calls; work never overtakes other work.
"""

import torch

from torch_tpu import _C
from torch_tpu.tpu.devices import DeviceLike, current_device, index_of


class Stream(torch.Stream):
    """A stream of a tpu device. Lower numbers are higher priorities; all that are negative count as one."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **known: int) -> "Stream":
        """A new stream, or, from stream_id, device_index and device_type, one that exists."""
        if known:
            return super().__new__(cls, **known)
        return super().__new__(cls, torch.device("tpu", index_of(device)), priority=priority)

    @property
    def priority(self) -> int:
        """0, or -1 for a high priority."""
        return _C._stream_priority(self)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, -1

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records `event`, or a new one, after the work given so far, and returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """What is given to this stream from now on counts as done only after `event`."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """What is given to this stream from now on counts as done only after what `stream` has been given."""
        self.wait_event(stream.record_event())

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device=tpu:{self.device_index}, stream_id={self.stream_id}, priority={self.priority})"


class Event(torch.Event):
    """A point in a stream: it can be waited for and, with `enable_timing`, timed."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        """`blocking` changes nothing, as waiting never spins for long; `interprocess` is refused."""
        if interprocess:
            raise ValueError("a tpu event cannot be shared between processes")
        return super().__new__(cls, torch.device("tpu"), enable_timing=enable_timing, blocking=blocking)

    def record(self, stream: torch.Stream | None = None) -> "Event":  # type: ignore[override]
        """Marks the end of the work given so far to `stream` (the current one by default)."""
        super().record(current_stream() if stream is None else stream)
        return self

    def wait(self, stream: torch.Stream | None = None) -> None:
        """What is given to `stream` (the current one by default) from now on counts as done only after this event."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, end: torch.Event) -> float:
        """Milliseconds of the device's time from this event to `end`; both are done, and timed."""
        return _C._elapsed_time(self, end)


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """The calling thread's current stream of `device`."""
    return _wrap(torch.accelerator.current_stream(index_of(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """The default stream of `device`."""
    known = torch.accelerator.current_stream(index_of(device))
    return Stream(stream_id=0, device_index=known.device_index, device_type=known.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` the calling thread's current one, and its device the current device; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that selects a stream and its device; a stream of None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: tuple[int, Stream] | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self._previous = current_device(), current_stream(self.stream.device_index)
            torch.accelerator.set_stream(self.stream)

    def __exit__(self, *error: object) -> None:
        if self._previous is not None:
            index, stream = self._previous
            torch.accelerator.set_stream(stream)
            _C._set_device(index)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that selects `stream`; None changes nothing."""
    return StreamContext(stream)

"""Streams and events."""

import threading
import time

import pytest
import torch
from process import run_python


def busy(n: int = 6) -> torch.Tensor:
    """Start work that takes the device a while."""
    x = torch.randn(600, 600, device="tpu")
    for _ in range(n):
        x = (x @ x).clamp(-1, 1)
    return x


def test_identity() -> None:
    default = torch.tpu.default_stream()
    assert torch.tpu.current_stream() == default == torch.accelerator.current_stream()
    assert default.stream_id == 0
    one, two = torch.tpu.Stream(), torch.tpu.Stream(priority=-5)
    assert len({default, one, two}) == 3
    assert (one.priority, two.priority, default.priority) == (0, -1, 0)
    assert torch.tpu.Stream.priority_range() == (0, -1)
    assert one.device == torch.device("tpu", 0)
    assert isinstance(one, torch.Stream)
    assert torch.tpu.Stream(stream_id=one.stream_id, device_index=0, device_type=one.device_type) == one
    assert "stream_id" in repr(one)
    assert torch.Stream("tpu").device.type == "tpu"


def test_contexts() -> None:
    default, side = torch.tpu.current_stream(), torch.tpu.Stream()
    with torch.tpu.stream(side):
        assert torch.tpu.current_stream() == side
        with torch.tpu.stream(None):
            assert torch.tpu.current_stream() == side
        with torch.tpu.stream(default):
            assert torch.tpu.current_stream() == default
        assert torch.tpu.current_stream() == side
    assert torch.tpu.current_stream() == default
    with side:
        assert torch.accelerator.current_stream() == side
    assert torch.tpu.current_stream() == default
    torch.tpu.set_stream(side)
    assert torch.tpu.current_stream() == side
    torch.accelerator.set_stream(default)
    torch.tpu.set_stream(None)
    assert torch.tpu.current_stream() == default


def test_current_stream_is_per_thread() -> None:
    seen = []
    with torch.tpu.stream(torch.tpu.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.tpu.default_stream()]


def test_streams_of_other_devices() -> None:
    code = """
    import torch, torch_tpu
    stream = torch.tpu.Stream("tpu:1")
    with torch.tpu.stream(stream):
        assert torch.tpu.current_device() == 1 and torch.tpu.current_stream() == stream
        x = torch.ones(3, device="tpu")
    assert x.get_device() == 1 and torch.tpu.current_device() == 0
    assert torch.tpu.current_stream(1) == torch.tpu.default_stream(1) != torch.tpu.default_stream(0)

    # An event of one device holds back those of another that waits for it.
    a = torch.randn(500, 500, device="tpu:0")
    for _ in range(10):
        a = (a @ a).clamp(-1, 1)
    first = torch.tpu.current_stream(0).record_event(torch.tpu.Event(enable_timing=True))
    torch.tpu.current_stream(1).wait_event(first)
    second = torch.tpu.current_stream(1).record_event(torch.tpu.Event(enable_timing=True))
    second.synchronize()
    assert first.query() and first.elapsed_time(second) >= 0
    b = a.to("tpu:1")
    assert b.get_device() == 1 and torch.equal(b.cpu(), a.cpu())
    torch.tpu.synchronize(1)
    """
    run_python(code, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_CPU_DEVICES="2")


def test_event_orders_work() -> None:
    event = torch.tpu.Event()
    assert event.query()
    event.synchronize()
    x = busy()
    assert event.record() is event
    event.synchronize()
    assert event.query()
    begin = time.perf_counter()
    x.cpu()  # done already
    assert time.perf_counter() - begin < 0.5


def test_event_is_not_done_before_its_work() -> None:
    """Recording returns while the work goes on."""
    torch.tpu.synchronize()
    seen_busy = False
    for _ in range(10):
        x = busy(20)
        event = torch.tpu.current_stream().record_event()
        seen_busy |= not event.query()
        assert torch.tpu.current_stream().query() <= event.query()
        torch.tpu.synchronize()
        assert event.query()
        assert torch.tpu.current_stream().query()
        if seen_busy:
            break
    assert seen_busy
    del x


def test_timing() -> None:
    busy(1)  # compiles
    torch.tpu.synchronize()
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    begin = time.perf_counter()
    start.record()
    x = busy(20)
    end.record()
    torch.tpu.synchronize()
    wall = (time.perf_counter() - begin) * 1e3
    measured = start.elapsed_time(end)
    assert 0 < measured <= wall
    assert measured > 0.3 * wall
    assert end.elapsed_time(start) == -measured
    del x


def test_timing_errors() -> None:
    timed, untimed = torch.tpu.Event(enable_timing=True), torch.tpu.Event()
    with pytest.raises(ValueError, match="recorded"):
        timed.elapsed_time(torch.tpu.Event(enable_timing=True))
    with pytest.raises(ValueError, match="enable_timing"):
        timed.record().elapsed_time(untimed.record())
    with pytest.raises(ValueError, match="shared between processes"):
        torch.tpu.Event(interprocess=True)


def test_waiting_between_streams() -> None:
    default, side = torch.tpu.current_stream(), torch.tpu.Stream()
    x = busy()
    side.wait_stream(default)
    with torch.tpu.stream(side):
        y = x + 1
        x.record_stream(side)
        event = side.record_event()
    default.wait_event(event)
    event.wait()
    event.wait(default)
    side.synchronize()
    assert side.query()
    assert torch.equal(y.cpu(), x.cpu() + 1)


def test_events_of_torch_itself() -> None:
    event = torch.Event("tpu", enable_timing=True)
    end = torch.Event("tpu", enable_timing=True)
    event.record()
    busy()
    end.record(torch.tpu.current_stream())
    end.synchronize()
    assert event.elapsed_time(end) > 0
    stream = torch.Stream("tpu")
    stream.wait_event(event)
    stream.wait_stream(torch.accelerator.current_stream())
    stream.synchronize()


def test_synchronize_releases_the_gil() -> None:
    """Other Python threads go on while one waits for the device."""
    busy(1)
    torch.tpu.synchronize()
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    x = busy(40)
    begin = time.perf_counter()
    torch.tpu.synchronize()
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert end - begin < 0.02 or len([t for t in ticks if begin < t < end]) > 2
    del x

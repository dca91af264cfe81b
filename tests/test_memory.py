"""Accounting of device memory, its limit, and pinned host memory."""

import gc

import pytest
import torch
from process import run_python

MB = 2**20


@pytest.fixture(autouse=True)
def _nothing_left() -> None:
    """Tensors in the tracebacks of earlier tests are counted no more."""
    gc.collect()
    torch.tpu.synchronize()


def allocated() -> int:
    gc.collect()
    return torch.tpu.memory_allocated()


def test_allocated_and_peak() -> None:
    base = allocated()
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == base
    a = torch.empty(MB, dtype=torch.uint8, device="tpu")
    b = torch.empty(MB // 4, dtype=torch.float32, device="tpu")
    view = b[10:]
    assert allocated() == base + 2 * MB == torch.tpu.memory_reserved() == torch.accelerator.memory_allocated()
    del b
    assert allocated() == base + 2 * MB
    del view
    assert allocated() == base + MB
    assert torch.tpu.max_memory_allocated() == torch.accelerator.max_memory_allocated() == base + 2 * MB
    torch.accelerator.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == torch.tpu.max_memory_reserved() == base + MB
    del a
    assert allocated() == base


def test_results_and_gradients_are_counted() -> None:
    base = allocated()
    x = torch.ones(256, 1024, device="tpu", requires_grad=True)
    y = x * 2
    assert allocated() == base + 2 * MB
    y.sum().backward()
    del y
    torch.tpu.synchronize()
    assert allocated() == base + 2 * MB  # x and its gradient
    x.grad = None
    assert allocated() == base + MB


def test_stats_count_requests() -> None:
    torch.tpu.reset_accumulated_memory_stats()
    before = torch.tpu.memory_stats()
    for _ in range(5):
        torch.empty(1000, dtype=torch.uint8, device="tpu")
    torch.empty(0, device="tpu")
    after = torch.tpu.memory_stats()
    assert after["allocation.all.allocated"] == before["allocation.all.allocated"] + 5
    assert after["allocated_bytes.all.freed"] == before["allocated_bytes.all.freed"] + 5000
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert dict(after) == dict(torch.accelerator.memory_stats())
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.tpu.memory_stats()["allocation.all.allocated"] == 0
    torch.tpu.empty_cache()
    torch.accelerator.empty_cache()


def test_resize_is_counted() -> None:
    base = allocated()
    x = torch.empty(MB, dtype=torch.uint8, device="tpu")
    x.untyped_storage().resize_(3 * MB)
    assert allocated() == base + 3 * MB
    x.untyped_storage().resize_(0)
    assert allocated() == base
    x.untyped_storage().resize_(MB)
    assert allocated() == base + MB


def test_mem_get_info() -> None:
    free, total = torch.tpu.mem_get_info()
    assert (free, total) == torch.accelerator.get_memory_info()
    x = torch.empty(MB, dtype=torch.uint8, device="tpu")
    assert torch.tpu.mem_get_info() == (free - MB, total)
    del x


def test_summary_names_the_holders() -> None:
    x = torch.zeros(1234, 77, device="tpu")
    summary = torch.tpu.memory_summary()
    assert "Float[1234, 77]" in summary
    assert f"{torch.tpu.memory_allocated():,}" in summary
    del x


def test_out_of_memory_says_who_holds_what() -> None:
    keep = torch.zeros(1111, 1024, device="tpu")
    limit = torch.tpu.memory_allocated() + 8 * MB
    with torch.tpu.config.patch(memory_limit=limit):
        before = torch.tpu.memory_stats()
        torch.empty(7 * MB, dtype=torch.uint8, device="tpu")
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(9 * MB, dtype=torch.uint8, device="tpu")
        after = torch.tpu.memory_stats()
        text = str(raised.value)
        assert "Tried to allocate 9.00 MiB on tpu:0" in text
        assert "memory_limit" in text
        assert "8.00 MiB are free" in text
        assert "Float[1111, 1024] made by aten::" in text
        assert after["num_ooms"] == before["num_ooms"] + 1
        assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
        with pytest.raises(torch.OutOfMemoryError):  # an op's result
            keep.repeat(4, 1)
        with pytest.raises(torch.OutOfMemoryError):  # Tensor.to
            torch.empty(9 * MB, dtype=torch.uint8).to("tpu")
        assert torch.equal((keep + 1).cpu(), torch.ones(1111, 1024))
    torch.empty(9 * MB, dtype=torch.uint8, device="tpu")


def test_far_larger_than_the_machine() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**45, device="tpu")
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(2**30, 2**30, device="tpu")
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(2**20, 1, device="tpu") @ torch.ones(1, 2**25, device="tpu")
    with pytest.raises(RuntimeError):  # its bytes do not even fit an integer: PyTorch's own error
        torch.empty(2**62, 2**4, device="tpu")


def test_limit_of_a_v5e() -> None:
    code = """
    import torch, torch_tpu
    parts = [torch.empty(2**32, dtype=torch.uint8, device="tpu") for _ in range(3)]
    assert torch.tpu.get_device_properties().total_memory == 16 * 10**9
    try:
        torch.empty(2**32, dtype=torch.uint8, device="tpu")
    except torch.OutOfMemoryError as error:
        print(error)
    """
    out = run_python(code, TORCH_TPU_MEMORY_LIMIT="16GB")
    assert "12.00 GiB" in out
    assert "3 x Byte[4294967296]" in out


def test_fraction() -> None:
    code = """
    import torch, torch_tpu
    total = torch.tpu.mem_get_info()[1]
    torch.tpu.set_per_process_memory_fraction(0.5)
    assert torch.tpu.mem_get_info()[1] == int(total * 0.5)
    """
    run_python(code)
    with pytest.raises(ValueError, match="fraction"):
        torch.tpu.set_per_process_memory_fraction(0)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("16GB", 16 * 10**9), ("16 GiB", 2**34), ("1.5mb", 1_500_000), ("4096", 4096), ("2T", 2 * 10**12), ("3kib", 3072)],
)
def test_sizes(text: str, nbytes: int) -> None:
    with torch.tpu.config.patch(memory_limit=text):
        assert torch.tpu.config.memory_limit == nbytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "12 parsecs", "nan", "1e30"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"torch\.tpu\.config\.memory_limit: not a memory size"):
        torch.tpu.config.memory_limit = text


def test_threads() -> None:
    """Allocating and freeing in several threads keeps the books right."""
    import threading

    base = allocated()

    def work() -> None:
        for i in range(300):
            torch.empty(i + 1, dtype=torch.uint8, device="tpu")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allocated() == base


# ---- Pinned host memory ----------------------------------------------------------------------------------------------


def test_pinned() -> None:
    x = torch.arange(1000.0)
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert not x.is_pinned()
    assert pinned[10:].is_pinned()
    assert pinned.data_ptr() % 64 == 0
    assert torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned
    assert torch.empty(7, pin_memory=True).is_pinned()
    y = pinned.to("tpu", non_blocking=True)
    assert torch.equal(y.cpu(), x)


def test_overwriting_a_pinned_source_changes_no_copy() -> None:
    """What has been copied stays, whatever happens to its source afterwards."""
    pinned = torch.empty(1 << 16, pin_memory=True)
    copies = []
    for i in range(4):
        pinned.fill_(i)
        copies.append(pinned.to("tpu", non_blocking=True))
        torch.tpu.synchronize()
    for i, copy in enumerate(copies):
        assert torch.equal(copy.cpu(), torch.full((1 << 16,), float(i)))


def test_non_blocking_download() -> None:
    x = torch.arange(5000, device="tpu")
    pinned = torch.empty(5000, dtype=torch.int64, pin_memory=True)
    pinned.copy_(x, non_blocking=True)
    torch.tpu.synchronize()
    assert torch.equal(pinned, torch.arange(5000))


def test_pinned_blocks_are_reused_and_given_back() -> None:
    address = torch.empty(3333, pin_memory=True).data_ptr()
    assert torch.empty(3333, pin_memory=True).data_ptr() == address
    torch.accelerator.memory.empty_host_cache()
    used = torch.empty(3333, pin_memory=True)
    used.record_stream(torch.tpu.current_stream()) if used.is_tpu else None
    assert used.is_pinned()


def test_data_loader_pins() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), batch_size=4, pin_memory=True)
    seen = []
    for x, y in loader:
        assert x.is_pinned()
        assert y.is_pinned()
        seen.append((x.to("tpu", non_blocking=True) * 2 + y.to("tpu", non_blocking=True)).cpu())
    assert torch.equal(torch.cat(seen), torch.arange(10.0) * 3)

"""Loading, devices, configuration and eager modes."""

import itertools
import threading

import pytest
import torch
from process import run_python

import torch_tpu
from torch_tpu import tpu

# ---- Loading ---------------------------------------------------------------------------------------------------------


def test_registered() -> None:
    assert torch.device("tpu").type == "tpu"
    assert torch.tpu is tpu
    assert torch._C._get_privateuse1_backend_name() == "tpu"
    assert torch.get_device_module("tpu") is tpu
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch_tpu.__version__.count(".") == 2


def test_submodules_are_loaded_once() -> None:
    import torch.tpu.memory
    import torch.tpu.random

    assert torch.tpu.memory is tpu.memory
    assert torch.tpu.random is tpu.random


@pytest.mark.parametrize("first", ["torch", "torch_tpu"])
@pytest.mark.parametrize("autoload", ["0", "1"])
def test_import_order(first: str, autoload: str) -> None:
    """Either import may come first, with autoloading and without."""
    code = f"import {first}, torch, torch_tpu; print(torch.tpu.is_available(), torch.device('tpu'))"
    assert run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload) == "True tpu\n"


def test_nothing_starts_before_the_first_tensor() -> None:
    """CPU programs, also with autograd and seeds, load no plugin, no MLIR and no JAX."""
    code = """
    import sys, torch, torch_tpu
    torch.manual_seed(0)
    x = torch.randn(4, requires_grad=True)
    x.sum().backward()
    assert torch.tpu.is_available() and torch.tpu.device_count() == 1 and torch.accelerator.device_count() == 1
    assert torch.accelerator.is_available()
    torch.tpu.get_rng_state(); torch.tpu.manual_seed_all(1); torch.tpu.config.cpu_fallback
    assert not torch.tpu.is_initialized()
    assert not torch_tpu._C.default_client_exists()
    assert not [name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib")]
    assert "pjrt" not in open("/proc/self/maps").read()
    torch.tpu.init()
    assert torch.tpu.is_initialized() and torch_tpu._C.default_client_exists()
    """
    run_python(code)


BROKEN = """
import sys
sys.modules["torch_tpu._C"] = None  # makes its import fail
import torch, torch_tpu
assert not torch.tpu.is_available() and torch.tpu.device_count() == 0
torch.manual_seed(3)
torch.randn(3, requires_grad=True).sum().backward()
"""


def test_broken_package_breaks_nothing_until_used() -> None:
    code = (
        BROKEN
        + """
for use in (lambda: torch.tpu.synchronize(), lambda: torch.empty(2, device="tpu"), lambda: torch.tpu.config):
    try:
        use()
    except RuntimeError as error:
        assert "torch_tpu could not be loaded" in str(error), error
        assert isinstance(error.__cause__, ImportError), error.__cause__
    else:
        raise SystemExit("no error")
"""
    )
    run_python(code)


def test_error_of_the_first_use() -> None:
    """A bad environment is an error at the first use, again at the second, and none before."""
    code = """
    import torch, torch_tpu
    torch.randn(3).sum()
    for _ in range(2):
        try:
            torch.empty(2, device="tpu")
        except ValueError as error:
            print(error)
    """
    out = run_python(code, TORCH_TPU_EAGER_MODE="quick").splitlines()
    assert out[0] == out[1]
    assert "TORCH_TPU_EAGER_MODE" in out[0]
    assert "debug, strict, fused, defer_never" in out[0].replace("'", "")
    out = run_python(code, TORCH_TPU_CPU_FALLBACK="maybe").splitlines()
    assert out[0] == out[1] == "TORCH_TPU_CPU_FALLBACK: 'maybe' is unknown; known are warn, silent, error"


def test_missing_plugin_is_one_clear_error() -> None:
    code = """
    import torch, torch_tpu
    assert torch.tpu.is_available()
    try:
        torch.empty(2, device="tpu")
    except RuntimeError as error:
        print(error)
    assert not torch.tpu.is_available()
    """
    out = run_python(code, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so")
    assert "/nowhere/plugin.so" in out


# ---- Devices ---------------------------------------------------------------------------------------------------------


def test_device_api() -> None:
    torch.tpu.init()
    assert torch.tpu.is_initialized()
    assert torch.tpu.is_available()
    assert torch.tpu.device_count() == torch.accelerator.device_count() >= 1
    assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 0
    properties = torch.tpu.get_device_properties()
    assert (
        properties == torch.tpu.get_device_properties("tpu:0") == torch.tpu.get_device_properties(torch.device("tpu"))
    )
    assert properties.platform == torch.tpu.platform()
    assert properties.name == torch.tpu.get_device_name()
    assert properties.total_memory == torch.tpu.mem_get_info()[1] > 2**28
    assert torch.tpu.is_bf16_supported()
    capability = torch.tpu.get_device_capability()
    assert capability == torch.accelerator.get_device_capability()
    assert torch.bfloat16 in capability["supported_dtypes"]
    assert torch.qint8 not in capability["supported_dtypes"]
    assert torch.tpu.platform(reason=True).startswith(torch.tpu.platform())
    torch.tpu.synchronize()
    torch.accelerator.synchronize()


@pytest.mark.parametrize("bad", [1000, "tpu:100", torch.device("tpu", 100)])
def test_bad_index(bad: object) -> None:
    for use in (torch.tpu.set_device, torch.tpu.get_device_properties, torch.tpu.get_rng_state):
        with pytest.raises(RuntimeError, match="invalid tpu device index 100"):
            use(bad)
    assert torch.tpu.current_device() == 0


def test_wrong_device_type() -> None:
    with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
        torch.tpu.set_device("cpu")


def test_current_device_is_per_thread() -> None:
    code = """
    import threading, torch, torch_tpu
    assert torch.tpu.device_count() == 3
    torch.tpu.set_device(2)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_device()))
    thread.start(); thread.join()
    assert seen == [0] and torch.tpu.current_device() == 2
    with torch.tpu.device(1):
        assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 1
        with torch.tpu.device(None), torch.tpu.device(-1):
            assert torch.tpu.current_device() == 1
        x = torch.empty(3, device="tpu")
        assert x.device == torch.device("tpu", 1) and x.get_device() == 1
    assert torch.tpu.current_device() == 2
    with torch.tpu.device_of(x):
        assert torch.tpu.current_device() == 1
    with torch.tpu.device_of(torch.empty(1)):
        assert torch.tpu.current_device() == 2
    with torch.accelerator.device_index(0):
        assert torch.empty(1, device="tpu").get_device() == 0
    torch.accelerator.set_device_index("tpu:1")
    assert torch.tpu.current_device() == 1
    assert torch.tpu.device_count() == 3
    assert [torch.tpu.get_device_properties(i).index for i in range(3)] == [0, 1, 2]
    """
    run_python(code, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_CPU_DEVICES="3")


def test_is_tpu_and_tpu() -> None:
    x = torch.ones(2, 3)
    y = x.tpu()
    assert y.is_tpu
    assert not x.is_tpu
    assert y.device == torch.device("tpu", 0)
    assert torch.equal(y.cpu(), x)
    assert y.tpu() is y
    assert y.data_ptr() != 0
    assert torch.empty(0, device="tpu").data_ptr() == 0


def test_addresses_do_not_overlap() -> None:
    """Live storages have ranges of their own, views lie in them, and growing moves."""
    tensors = [torch.empty(n, dtype=torch.uint8, device="tpu") for n in (1, 1000, 255, 256, 257, 100_000)]
    ranges = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in tensors)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert tensors[1][10:].data_ptr() == tensors[1].data_ptr() + 10
    before = tensors[0].data_ptr()
    tensors[0].resize_(10)
    assert tensors[0].data_ptr() != before


def test_touching_device_memory_faults() -> None:
    """A stray host access ends the process instead of corrupting its memory."""
    import subprocess
    import sys

    code = "import torch, torch_tpu, ctypes; ctypes.string_at(torch.empty(4, device='tpu').data_ptr(), 1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120)
    assert done.returncode < 0


# ---- Fork ------------------------------------------------------------------------------------------------------------


def test_fork_after_use_is_a_clear_error() -> None:
    code = """
    import os, sys, torch, torch_tpu
    x = torch.ones(3, device="tpu")
    torch.tpu.synchronize()
    pid = os.fork()
    if pid == 0:
        assert torch.tpu._is_in_bad_fork()
        uses = (lambda: torch.ones(2, device="tpu"), lambda: x + 1, lambda: x.cpu(), lambda: torch.tpu.synchronize(),
                lambda: torch.tpu.init(), lambda: torch.tpu.current_stream().record_event())
        for i, use in enumerate(uses):
            try:
                use()
            except RuntimeError as error:
                assert "forked child process" in str(error) and "spawn" in str(error), error
            else:
                os._exit(10 + i)
        torch.manual_seed(1)  # must go on working
        del x
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not torch.tpu._is_in_bad_fork()
    assert torch.equal((x + 1).cpu(), torch.full((3,), 2.0))
    """
    run_python(code)


def test_fork_before_use_works() -> None:
    code = """
    import os, torch, torch_tpu
    torch.tpu.is_available()
    pid = os.fork()
    total = torch.ones(3, device="tpu").sum().item()
    if pid == 0:
        os._exit(int(total))
    assert total == 3 and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    """
    run_python(code)


def test_data_loader_workers_fork_after_use() -> None:
    """Workers that touch no tpu are not disturbed by the parent's."""
    code = """
    import torch, torch_tpu
    from torch.utils.data import DataLoader, TensorDataset
    device_sum = torch.zeros((), device="tpu")
    loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=3, num_workers=2, pin_memory=True,
                        multiprocessing_context="fork")
    for (batch,) in loader:
        assert batch.is_pinned()
        device_sum += batch.to("tpu", non_blocking=True).sum()
    assert device_sum.item() == 66
    """
    run_python(code)


# ---- Configuration ---------------------------------------------------------------------------------------------------


def test_config() -> None:
    config = torch.tpu.config
    assert config.cpu_fallback in ("warn", "silent", "error")
    before = config.cpu_fallback
    with config.patch(cpu_fallback="error"):
        assert config.cpu_fallback == "error"
    assert config.cpu_fallback == before
    with pytest.raises(ValueError, match=r"torch\.tpu\.config\.cpu_fallback: 'never' is unknown; known are warn"):
        config.cpu_fallback = "never"
    with pytest.raises(ValueError, match="is not a flag"):
        config.debug_check_nan = 3
    with pytest.raises(AttributeError, match="no option 'cpu_fall'; known are cpu_fallback, debug_check_nan"):
        config.cpu_fall = "warn"
    with pytest.raises(AttributeError, match="no option 'cpu_fall'; known are cpu_fallback, debug_check_nan"):
        _ = config.cpu_fall
    assert "cpu_fallback" in dir(config)
    assert "cpu_fallback='" in repr(config)


def test_config_from_environment() -> None:
    code = """
    import torch, torch_tpu
    print(torch.tpu.config.cpu_fallback, torch.tpu.config.debug_check_nan, torch.tpu.config.memory_limit)
    torch.tpu.config.cpu_fallback = "warn"
    torch.tpu.init()
    print(torch.tpu.config.cpu_fallback, torch.tpu.mem_get_info()[1], torch.tpu.get_device_properties().total_memory)
    """
    out = run_python(
        code, TORCH_TPU_CPU_FALLBACK="silent", TORCH_TPU_DEBUG_CHECK_NAN="1", TORCH_TPU_MEMORY_LIMIT="2GiB"
    )
    assert out.split() == ["silent", "True", "2147483648", "warn", "2147483648", "2147483648"]


# ---- Eager modes -----------------------------------------------------------------------------------------------------


def test_eager_mode() -> None:
    mode = torch.tpu.EagerMode
    assert mode.DEFER_NEVER_AND_LAUNCH_BLOCKING is mode.DEBUG
    assert mode.DEFER_NEVER is mode.STRICT
    assert mode.DEFER_AND_FUSE is mode.FUSED
    before = torch.tpu.eager_mode
    with torch.tpu.set_eager_mode(mode.DEBUG):
        assert torch.tpu.eager_mode is torch.tpu.eager_mode() is mode.DEBUG
        with torch.tpu.set_eager_mode("defer_never"):
            assert torch.tpu.eager_mode is mode.STRICT
        assert torch.tpu.eager_mode is mode.DEBUG
    assert torch.tpu.eager_mode is before
    torch.tpu.eager_mode = "strict"
    assert torch.tpu.eager_mode is mode.STRICT
    torch.tpu.set_eager_mode(before)
    assert torch.tpu.eager_mode is before
    with pytest.raises(ValueError, match="unknown eager mode 'lazy'; known are debug, strict, fused, defer_never"):
        torch.tpu.set_eager_mode("lazy")


@pytest.mark.parametrize("name", ["debug", "STRICT", "fused", "DEFER_NEVER_AND_LAUNCH_BLOCKING", "defer_never"])
def test_eager_mode_from_environment(name: str) -> None:
    code = (
        "import torch, torch_tpu; x = torch.ones(2, device='tpu') + 1; print(torch.tpu.eager_mode.name, x.sum().item())"
    )
    mode, total = run_python(code, TORCH_TPU_EAGER_MODE=name).split()
    assert torch.tpu.EagerMode[name.upper()] is torch.tpu.EagerMode[mode]
    assert float(total) == 4


def test_mode_is_seen_by_all_threads() -> None:
    seen = []
    with torch.tpu.set_eager_mode("debug"):
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.eager_mode))
        thread.start()
        thread.join()
    assert seen == [torch.tpu.EagerMode.DEBUG]


def test_metrics_are_numbers() -> None:
    (torch.ones(3, device="tpu") + 1).cpu()
    metrics = torch.tpu.metrics()
    assert {"cache.hits", "cache.misses", "cache.compiles"} <= metrics.keys()
    assert all(isinstance(value, int | float) for value in metrics.values())
    assert {f"cache.{name}" for name in torch.tpu.cache.stats()} - metrics.keys() == {"cache.entries", "cache.bytes"}


def test_exit_with_work_in_flight() -> None:
    """The process ends cleanly while the device is busy, and with live tensors."""
    code = """
    import torch, torch_tpu
    x = torch.randn(700, 700, device="tpu")
    for _ in range(20):
        x = x @ x / 700
    stream, event = torch.tpu.Stream(), torch.tpu.Event(enable_timing=True).record()
    pinned = torch.ones(5).pin_memory()
    """
    run_python(code)

"""The eager modes: what they are called, what each finds, and that none of them compiles for a number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

MODES = ("debug", "strict", "fused")


@pytest.mark.parametrize("name", ["DEFER_NEVER_AND_LAUNCH_BLOCKING", "DEFER_NEVER", "DEFER_AND_FUSE"])
def test_aliases(name: str) -> None:
    mode = torch.tpu.EagerMode[name]
    with torch.tpu.set_eager_mode(mode):
        assert torch.tpu.eager_mode is mode


def test_fused_is_the_default() -> None:
    code = "import torch; print(torch.tpu.eager_mode.name)"
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_TPU_EAGER_MODE"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip() == "FUSED"


def test_strict_launches_each_op() -> None:
    with torch.tpu.set_eager_mode("strict"):
        x = torch.ones(4, device="tpu")
        before = torch.tpu.metrics()["flushes.op"]
        y = (x + 1) * 2
        assert torch.tpu.metrics()["flushes.op"] == before + 2
        assert y.cpu().equal(torch.full((4,), 4.0))


@pytest.mark.parametrize("mode", MODES)
def test_shape_and_dtype_errors_are_the_cpus(mode: str) -> None:
    with torch.tpu.set_eager_mode(mode):
        for op in (
            lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
            lambda d: torch.ones(2, 3, device=d) @ torch.ones(4, 5, device=d),
            lambda d: torch.ones(2, 3, device=d).view(5),
            lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(3, 4, device=d)]),
            lambda d: torch.ones(3, dtype=torch.int64, device=d).add_(1.5),
            lambda d: torch.ones(3, device=d).expand(2, 3).add_(1),
            lambda d: torch.ones(3, device=d).sum(2),
            lambda d: torch.nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
        ):
            with pytest.raises((RuntimeError, IndexError)) as expected:
                op("cpu")
            with pytest.raises(type(expected.value)) as found:
                op("tpu")
            assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize("mode", MODES)
def test_no_number_is_a_constant(mode: str) -> None:
    with torch.tpu.set_eager_mode(mode):
        model = nn.Linear(4, 4).to("tpu")
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.ones(2, 4, device="tpu")
        programs = []
        for i in range(6):
            opt.param_groups[0]["lr"] = 0.1 / (i + 1)
            opt.zero_grad()
            (model(x) * (i + 0.5)).sum().backward()
            opt.step()
            torch.tpu.synchronize()
            programs.append(torch.tpu.metrics()["programs"])
        assert programs[-1] == programs[2]


def test_debug_finds_the_nan_and_its_line() -> None:
    with torch.tpu.set_eager_mode("debug"), torch.tpu.config.patch(debug_check_nan=True):
        x = torch.zeros(2, 3, device="tpu")
        with pytest.raises(RuntimeError, match=r"NaN or Inf.*\n.*aten::log.*Float\[2, 3\].*test_eager_modes.py:\d+"):
            torch.log(x)
        assert (x + 1).cpu().equal(torch.ones(2, 3))


def test_debug_finds_an_index_out_of_bounds() -> None:
    with torch.tpu.set_eager_mode("debug"), torch.tpu.config.patch(debug_check_index=True):
        x = torch.arange(4, device="tpu")
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            x[torch.tensor([1, 7], device="tpu")]


def test_debug_counts_temporary_memory() -> None:
    with torch.tpu.set_eager_mode("debug"), torch.tpu.config.patch(debug_check_memory=True):
        x = torch.rand(1 << 16, device="tpu")
        torch.tpu.synchronize()
        limit = torch.tpu.memory_allocated() + (1 << 17) + (1 << 18)
        with torch.tpu.config.patch(memory_limit=limit), pytest.raises(torch.OutOfMemoryError, match="aten::sort"):
            torch.sort(x.view(256, 256), dim=0)


@pytest.mark.parametrize("mode", MODES)
def test_memory_limit_is_an_error_at_the_call(mode: str) -> None:
    with torch.tpu.set_eager_mode(mode):
        x = torch.ones(1024, device="tpu")
        with torch.tpu.config.patch(memory_limit=torch.tpu.memory_allocated() + 100_000):
            with pytest.raises(torch.OutOfMemoryError, match="aten::"):
                x.repeat(1000)
            assert (x + 1).cpu().equal(torch.full((1024,), 2.0))


@pytest.mark.parametrize("mode", MODES)
def test_far_too_large_a_tensor_fails_at_once(mode: str) -> None:
    with torch.tpu.set_eager_mode(mode), pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, device="tpu")


def test_unknown_mode_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"debug.*strict.*fused"), torch.tpu.set_eager_mode("lazy"):
        pass


def test_fallback_is_counted_and_can_be_refused() -> None:
    library = torch.library.Library("test_eager_modes", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    twice, x = torch.ops.test_eager_modes.twice, torch.rand(4, 4, device="tpu")
    with torch.tpu.config.patch(cpu_fallback="error"), pytest.raises(NotImplementedError, match="cpu_fallback"):
        twice(x)
    with torch.tpu.config.patch(cpu_fallback="silent"):
        before = torch.tpu.metrics().get("cpu_fallbacks", 0)
        assert torch.equal(twice(x), x * 2)
    assert torch.tpu.metrics()["cpu_fallbacks"] > before


def test_interrupt_while_waiting() -> None:
    code = (
        "import signal, torch\n"
        "def stop(*_): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, stop)\n"
        "x = torch.ones(1500, 1500, device='tpu')\n"
        "y = x\n"
        "try:\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.5)\n"
        "    for _ in range(2000): y = (y @ x) / 1500\n"
        "    y.cpu()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "print((x + 1).sum().item())\n"
    )
    environment = {**os.environ, "TORCH_TPU_EAGER_MODE": "strict"}
    text = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, timeout=300)
    assert text.split() == ["interrupted", "4500000.0"]

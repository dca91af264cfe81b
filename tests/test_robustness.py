"""What a long-lived process meets: interrupts, many threads, many shapes, other versions of the package."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from process import run_python
from torch import nn

import torch_tpu

INTERRUPTED = """
import signal, sys, torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to("tpu")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(8, 16, device="tpu")
stop, interrupts, step = False, 0, 0
print("ready", flush=True)
while not stop:
    try:
        while True:
            step += 1
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if step % 7 == 0:
                loss.item()
            if step % 50 == 0:  # a new shape: it may also be the compilation that is interrupted
                torch.zeros(step // 50 % 400, device="tpu").cpu()
    except KeyboardInterrupt:
        interrupts += 1
        stop = interrupts == COUNT
        print("interrupted", flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert all(p.isfinite().all() for p in model.parameters())
assert torch.equal((torch.arange(5, device="tpu") * 2).cpu(), torch.arange(5) * 2)
print("fine", flush=True)
"""


def test_an_interrupt_at_any_time_loses_nothing() -> None:
    count = 25
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.replace("COUNT", str(count))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    wait = random.Random(0)
    try:
        assert child.stdout.readline() == "ready\n"
        for _ in range(count):
            time.sleep(wait.uniform(0.001, 0.2))
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (child.returncode, out, err) == (0, "fine\n", "")


def test_threads_train_their_own_models() -> None:
    """Each thread's result is what it is alone."""

    def train(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 8, generator=generator).to("tpu")
        model = nn.Linear(8, 1)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        model.to("tpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    alone = [train(seed) for seed in range(4)]
    together: dict[int, float] = {}
    threads = [threading.Thread(target=lambda s=seed: together.update({s: train(s)})) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close([together[seed] for seed in range(4)], alone)


def test_memory_stays_where_it_is() -> None:
    """2,000 steps after a warm-up: no byte more on the device, no program more."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 2)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, 8, device="tpu")

    def steps(count: int) -> tuple[int, int]:
        for i in range(count):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if i % 100 == 99:
                loss.item()
        torch.tpu.synchronize()
        return torch.tpu.memory_allocated(), torch.tpu.metrics()["programs"]

    assert steps(300) == steps(2000)


def test_two_versions_of_the_package_share_a_cache_folder(tmp_path: Path) -> None:
    """Neither takes the other's programs for its own."""
    other = tmp_path / "other"
    shutil.copytree(Path(torch_tpu.__file__).parent, other / "torch_tpu")
    source = other / "torch_tpu" / "lowering" / "pointwise.py"
    source.write_text(source.read_text() + "\nVERSION = 2\n")
    code = """
    import sys
    sys.path.insert(0, FOLDER)
    import torch, torch_tpu
    print(torch_tpu.__file__, (torch.arange(7.0, device="tpu") * 3).sum().item())
    print(torch.tpu.cache.stats()["compiles"], torch.tpu.cache.stats()["trace_hits"])
    """

    def run(folder: Path) -> list[str]:
        return run_python(
            code.replace("FOLDER", repr(str(folder))), TORCH_TPU_CACHE_DIR=str(tmp_path / "cache")
        ).split()

    here = Path(torch_tpu.__file__).parent.parent
    (_, *first), (file, *changed), (_, *again) = run(here), run(other), run(here)
    assert file.startswith(str(other))
    assert first[0] == changed[0] == again[0] == "63.0"
    compiles = int(first[1])
    assert compiles > 0
    assert changed[1:] == ["0", "0"]  # lowered anew, and found to be the same modules
    assert again[1:] == ["0", str(compiles)]


SCARCE = """
import mmap, torch

with open("/proc/sys/vm/max_map_count") as file:
    half = int(file.read()) // 2
# Neighbours of different protection do not become one mapping.
held = [mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | (i % 2 and mmap.PROT_WRITE)) for i in range(half)]
for size in range(1, 150):
    torch.ones(size, device="tpu").cpu()
print(torch.tpu.metrics()["program_evictions"])
"""


def test_programs_are_evicted_before_memory_mappings_run_out() -> None:
    assert int(run_python(SCARCE)) > 0

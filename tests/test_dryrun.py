"""Compilation for TPU slices that are not there, in a worker process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from torch_tpu import _C, dryrun
from torch_tpu.compiler import platform
from torch_tpu.compiler.options import CompileOptions
from torch_tpu.dryrun import topologies

needs_libtpu = pytest.mark.skipif(not platform.installed_plugins("tpu"), reason="libtpu is not installed")

MATMUL = b"""module @matmul {
  func.func @main(%x: tensor<1024x1024xbf16>, %w: tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<1024x1024xbf16>, tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16>
  %z = stablehlo.tanh %y : tensor<1024x1024xbf16>
  return %z : tensor<1024x1024xbf16> } }"""

TOO_LARGE = b"""module @large { func.func @main(%x: tensor<4294967296xf32>) -> tensor<4294967296xf32> {
  %y = stablehlo.tanh %x : tensor<4294967296xf32>
  return %y : tensor<4294967296xf32> } }"""

# Unbounded dimensions are a failed check inside the TPU compiler, which ends its process.
ABORTING = b"""module @unbounded { func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %y = stablehlo.tanh %x : tensor<?xf32>
  return %y : tensor<?xf32> } }"""

ALL_REDUCE = b"""module @sum attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<1024xf32>) -> tensor<1024xf32> {
    %y = "stablehlo.all_reduce"(%x) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>} : (tensor<1024xf32>) -> tensor<1024xf32>
    return %y : tensor<1024xf32> } }"""


@pytest.fixture(scope="module")
def worker() -> Iterator[dryrun.Worker]:
    worker = dryrun.Worker()
    yield worker
    worker.close()


def pid(worker: dryrun.Worker) -> int:
    assert worker._process is not None
    return worker._process.pid


# Names


@pytest.mark.parametrize(
    ("name", "chips", "devices"),
    [
        ("v5e:1x1", 1, 1),
        ("v5e:16x16", 256, 256),
        ("v6e:2x4", 8, 8),
        ("v5p:2x2x1", 4, 4),
        ("v5p:16x16x24", 6144, 6144),
        ("v4:4x4x8", 128, 256),
        ("tpu7x:16x16x36", 9216, 18432),
        ("v3:32x32", 1024, 2048),
    ],
)
def test_real_slices(name: str, chips: int, devices: int) -> None:
    found = topologies.parse(name)
    assert (found.name, found.chips, found.devices) == (name, chips, devices)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v5e", "write generation:shape"),
        ("v5p-8", "write generation:shape"),
        ("v5e=2x2", "write generation:shape"),
        ("v9:2x2", "TPU generation 'v9' is unknown; known are v2, v3, v4, v5e, v5p, v6e, tpu7x"),
        ("v5e:32x32", "v5e comes as 1x1, 2x2, 2x4"),
        ("v5e:4x2", "there is no such slice"),
        ("v5p:2x2", "there is no such slice"),
        ("v5p:24x24x24", "three ascending multiples of 4 up to 16x20x28"),
        ("v5p:8x4x4", "there is no such slice"),
        ("v4:0x4x4", "there is no such slice"),
    ],
)
def test_slices_that_do_not_exist(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        topologies.parse(name)


def test_names_are_checked_before_a_worker_starts() -> None:
    worker = dryrun.Worker()
    with pytest.raises(ValueError, match="no such slice"):
        worker.compile_for("v5e:3x3", MATMUL)
    with pytest.raises(ValueError, match=r"runs on 8 devices, v5e:2x2 has 4"):
        worker.compile_for("v5e:2x2", MATMUL, CompileOptions(num_replicas=8))
    assert worker._process is None


# Compilations


@needs_libtpu
@pytest.mark.parametrize(("name", "limit"), [("v5e:2x2", 16e9), ("v6e:2x2", 32e9)])
def test_matmul(worker: dryrun.Worker, name: str, limit: float) -> None:
    result = worker.compile_for(name, MATMUL)
    assert result.topology == name
    assert result.memory["argument_bytes"] == 2 * 2 * 1024 * 1024
    assert limit < result.memory_limit < 1.1 * limit
    assert result.cost["flops"] >= 2 * 1024**3
    assert result.program_format == "hlo_with_config"
    assert b"matmul" in result.program
    assert 0 < result.seconds < 60


@needs_libtpu
def test_partitioned_program_is_placed_on_the_slice(worker: dryrun.Worker) -> None:
    result = worker.compile_for("v5e:2x2", ALL_REDUCE, CompileOptions(num_partitions=4))
    assert b"all-reduce" in result.program


@needs_libtpu
def test_out_of_memory_is_the_compilers_error_and_keeps_the_worker(worker: dryrun.Worker) -> None:
    worker.compile_for("v5e:2x2", MATMUL)
    before = pid(worker)
    with pytest.raises(_C.PjrtError, match=r"(?i)hbm|memory") as error:
        worker.compile_for("v5e:2x2", TOO_LARGE)
    assert error.value.code == "RESOURCE_EXHAUSTED"
    with pytest.raises(_C.PjrtError, match="custom op 'nonsense' is unknown"):
        worker.compile_for("v5e:2x2", b"module { nonsense }")
    with pytest.raises(_C.PjrtError, match="xla_no_such_flag"):
        worker.compile_for("v5e:2x2", MATMUL, CompileOptions(overrides={"xla_no_such_flag": True}))
    assert pid(worker) == before


@needs_libtpu
def test_crash_is_an_exception_and_the_worker_restarts(worker: dryrun.Worker) -> None:
    with pytest.raises(
        dryrun.WorkerCrash, match=r"ended with SIGABRT while compiling for v5e:2x2:\n(.|\n)*Check failed"
    ):
        worker.compile_for("v5e:2x2", ABORTING)
    assert worker.compile_for("v5e:2x2", MATMUL).topology == "v5e:2x2"


@needs_libtpu
def test_killed_idle_worker_restarts(worker: dryrun.Worker) -> None:
    worker.compile_for("v6e:2x2", MATMUL)
    os.kill(pid(worker), signal.SIGKILL)
    time.sleep(0.2)
    assert worker.compile_for("v6e:2x2", MATMUL).topology == "v6e:2x2"


@needs_libtpu
def test_time_limit(worker: dryrun.Worker) -> None:
    worker.compile_for("v5e:2x2", MATMUL)
    process = worker._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)  # a compilation that does not end
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"compiling for v5e:2x2 took more than 1 s"):
        worker.compile_for("v5e:2x2", MATMUL, timeout=1)
    assert time.monotonic() - started < 10
    assert process.poll() == -signal.SIGKILL
    assert worker.compile_for("v5e:2x2", MATMUL).topology == "v5e:2x2"


@needs_libtpu
def test_a_forked_child_leaves_its_parents_worker_alone() -> None:
    code = (
        "import os, sys\n"
        "from torch_tpu import dryrun\n"
        f"module = {MATMUL!r}\n"
        "dryrun.compile_for('v5e:1x1', module)\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "from torch_tpu.dryrun import worker\n"
        "assert worker._shared._process.poll() is None\n"
        "print(dryrun.compile_for('v5e:1x1', module).topology)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("v5e:1x1\n", "")


def test_without_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(platform._PLUGINS, "tpu", (("no_such_module", "x.so", "libtpu"),))
    with pytest.raises(RuntimeError, match="pip install libtpu"):
        dryrun.compile_for("v5e:2x2", MATMUL)

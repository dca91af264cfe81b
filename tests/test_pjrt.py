"""The PJRT layer: plugins, clients, buffers, executables, options and the choice of a plugin."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch  # noqa: F401  the native core links with it

from torch_tpu import _C
from torch_tpu.compiler import platform
from torch_tpu.compiler.options import CompileOptions


def tanh_program(name: str = "tanh", size: int = 8) -> str:
    return f"""module @{name} {{ func.func @main(%x: tensor<{size}xf32>) -> tensor<{size}xf32> {{
      %y = stablehlo.tanh %x : tensor<{size}xf32>
      return %y : tensor<{size}xf32> }} }}"""


def donating_program() -> str:
    return """module @donate { func.func @main(%x: tensor<1024xf32> {tf.aliasing_output = 0 : i32},
                                               %y: tensor<1024xf32>) -> tensor<1024xf32> {
      %z = stablehlo.add %x, %y : tensor<1024xf32>
      return %z : tensor<1024xf32> } }"""


def slow_program(ops: int = 800) -> str:
    """Many different small reductions: about half a second to compile."""
    lines = ["%z0 = stablehlo.constant dense<0.0> : tensor<f32>"]
    for i in range(ops):
        lines += [
            f"%c{i} = stablehlo.constant dense<{i + 1}.0> : tensor<64x{i + 2}xf32>",
            f"%b{i} = stablehlo.broadcast_in_dim %s{i}, dims = [] : (tensor<f32>) -> tensor<64x{i + 2}xf32>",
            f"%m{i} = stablehlo.multiply %c{i}, %b{i} : tensor<64x{i + 2}xf32>",
            f"%e{i} = stablehlo.cosine %m{i} : tensor<64x{i + 2}xf32>",
            f"%s{i + 1} = stablehlo.reduce(%e{i} init: %z0) applies stablehlo.add across dimensions = [0, 1] "
            f": (tensor<64x{i + 2}xf32>, tensor<f32>) -> tensor<f32>",
        ]
    body = "\n".join(lines)
    return f"""module @slow {{ func.func @main(%s0: tensor<f32>) -> tensor<f32> {{
      {body}
      return %s{ops} : tensor<f32> }} }}"""


def floats(buffer: _C.Buffer) -> np.ndarray:
    return np.frombuffer(buffer.to_bytes(), np.float32).reshape(buffer.dims)


def put(client: _C.Client, values: np.ndarray, **kwargs: object) -> _C.Buffer:
    return client.buffer_from_host(np.asarray(values, np.float32), "f32", list(np.shape(values)), **kwargs)


@pytest.fixture(scope="module", params=platform.installed_plugins("cpu"), ids=lambda path: Path(path).stem)
def plugin(request: pytest.FixtureRequest) -> _C.Plugin:
    return _C.Plugin.load(request.param)


@pytest.fixture(scope="module")
def client(plugin: _C.Plugin) -> _C.Client:
    return _C.Client(plugin, {"cpu_device_count": 2})


# Plugins


def test_plugin_reports_versions_and_is_loaded_once(plugin: _C.Plugin) -> None:
    assert plugin.api_version >= (0, 81)
    assert plugin.attributes["stablehlo_minimum_version"] <= [1, 0, 0]
    assert _C.Plugin.load(os.path.relpath(plugin.path)).path == plugin.path


def test_missing_plugin() -> None:
    with pytest.raises(_C.PjrtError, match=r"no PJRT plugin at /nowhere/plugin\.so") as error:
        _C.Plugin.load("/nowhere/plugin.so")
    assert error.value.code == "NOT_FOUND"
    assert isinstance(error.value, RuntimeError)


def test_broken_plugin(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"\x7fELF and then nothing")
    with pytest.raises(_C.PjrtError, match=r"cannot load the PJRT plugin .*broken\.so"):
        _C.Plugin.load(str(path))


def fake_plugin(folder: Path, source: str) -> str:
    (folder / "fake.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "fake.so", folder / "fake.c"], check=True)
    return str(folder / "fake.so")


FAKE_API = """#include <stddef.h>
struct {
  size_t size; void* extension;
  size_t version_size; void* version_extension; int major; int minor;
  void* functions[200];
} api = { %s };
const void* GetPjrtApi(void) { return &api; }"""


def test_library_that_is_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(_C.PjrtError, match="is not a PJRT plugin: it has no function GetPjrtApi"):
        _C.Plugin.load(fake_plugin(tmp_path, "int unrelated;"))


@pytest.mark.parametrize("version", ["0, 40", "1, 0"])
def test_plugin_of_another_api_version(tmp_path: Path, version: str) -> None:
    path = fake_plugin(tmp_path, FAKE_API % f"sizeof(api), 0, 24, 0, {version}")
    expected = rf"has API version {version.replace(', ', '.')}; this package works with 0\.81 and later"
    with pytest.raises(_C.PjrtError, match=expected) as error:
        _C.Plugin.load(path)
    assert error.value.code == "FAILED_PRECONDITION"


def test_function_that_an_older_api_table_lacks(tmp_path: Path) -> None:
    path = fake_plugin(tmp_path, FAKE_API % "offsetof(struct { size_t a[6]; }, a[5]), 0, 24, 0, 0, 90")
    with pytest.raises(_C.PjrtError, match=r"does not offer PJRT_\w+; its API version is 0\.90") as error:
        _C.Plugin.load(path)
    assert error.value.code == "UNIMPLEMENTED"


# Clients and buffers


def test_client(client: _C.Client) -> None:
    assert client.platform_name == "cpu"
    assert [device.info.id for device in client.devices] == [0, 1]
    assert client.num_global_devices == 2
    assert client.topology_fingerprint == _C.Client(client.plugin, {"cpu_device_count": 2}).topology_fingerprint


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("i1", np.bool_),
        ("i8", np.int8),
        ("ui8", np.uint8),
        ("i16", np.int16),
        ("i32", np.int32),
        ("i64", np.int64),
        ("ui64", np.uint64),
        ("f16", np.float16),
        ("f32", np.float32),
        ("f64", np.float64),
        ("complex<f32>", np.complex64),
        ("complex<f64>", np.complex128),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 1, 5)])
def test_host_round_trip(client: _C.Client, name: str, dtype: type, shape: tuple[int, ...]) -> None:
    data = np.random.default_rng(0).integers(0, 2, 1000).astype(dtype)[: int(np.prod(shape))].reshape(shape)
    buffer = client.buffer_from_host(data, name, list(shape))
    assert (buffer.type, buffer.dims) == (name, shape)
    assert buffer.to_bytes() == data.tobytes()


def test_host_data_of_the_wrong_size(client: _C.Client) -> None:
    with pytest.raises(ValueError, match="the data has 16 bytes, the shape needs 20"):
        client.buffer_from_host(np.zeros(4, np.float32), "f32", [5])
    with pytest.raises(ValueError, match="unknown element type 'float'"):
        client.buffer_from_host(np.zeros(4, np.float32), "float", [4])
    with pytest.raises(IndexError, match="device 2 of 2"):
        put(client, np.zeros(4), device=2)


def test_copy_is_independent_of_the_host_array(client: _C.Client) -> None:
    data = np.arange(4096, dtype=np.float32)
    buffer = client.buffer_from_host(data, "f32", [4096])
    data[:] = -1
    assert floats(buffer)[5] == 5


def aligned(size: int) -> np.ndarray:
    raw = np.zeros(size * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * 4].view(np.float32)


def test_zero_copy_shares_memory_until_done(client: _C.Client) -> None:
    data = aligned(1024)
    done = threading.Event()
    buffer = client.buffer_from_host(data, "f32", [1024], semantics=_C.HostSemantics.ZERO_COPY, done=done.set)
    assert buffer.unsafe_pointer == data.ctypes.data
    time.sleep(0.05)
    assert not done.is_set()
    del buffer
    assert done.wait(10)


def test_unaligned_zero_copy_is_a_copy(client: _C.Client) -> None:
    data = aligned(1025)[1:]
    data[:] = np.arange(1024)
    buffer = client.buffer_from_host(data, "f32", [1024], semantics=_C.HostSemantics.ZERO_COPY)
    assert buffer.unsafe_pointer != data.ctypes.data
    np.testing.assert_array_equal(floats(buffer), data)


def test_copy_between_devices(client: _C.Client) -> None:
    first = put(client, np.arange(6).reshape(2, 3))
    second = first.copy_to(1)
    assert (first.device_id, second.device_id) == (0, 1)
    np.testing.assert_array_equal(floats(second), floats(first))


def test_uninitialized_and_freed_buffers(client: _C.Client) -> None:
    buffer = client.uninitialized("f32", [16, 16], device=1)
    buffer.wait()
    assert (buffer.ready(), buffer.dims, buffer.device_bytes, buffer.device_id) == (True, (16, 16), 1024, 1)
    buffer.free_memory()
    assert buffer.is_deleted
    with pytest.raises(_C.PjrtError):
        buffer.to_bytes()


def test_objects_keep_the_client_alive(plugin: _C.Plugin) -> None:
    client = _C.Client(plugin, {"cpu_device_count": 1})
    run, x = client.compile(tanh_program()), put(client, np.ones(8))
    del client
    gc.collect()
    np.testing.assert_allclose(floats(run.execute([x])[0]), np.tanh(np.ones(8)), rtol=1e-6)


# Executables


def test_compile_and_execute(client: _C.Client) -> None:
    run = client.compile(tanh_program("named"))
    assert run.loaded
    assert (run.name, run.num_outputs, run.num_replicas, run.num_partitions) == ("named", 1, 1, 1)
    assert run.outputs == [("f32", (8,))]
    x = np.linspace(-2, 2, 8, dtype=np.float32)
    np.testing.assert_allclose(floats(run.execute([put(client, x)], wait=True)[0]), np.tanh(x), rtol=1e-6)


def test_bad_program_keeps_the_compilers_text(client: _C.Client) -> None:
    with pytest.raises(_C.PjrtError, match="custom op 'nonsense' is unknown"):
        client.compile("module { nonsense }")
    with pytest.raises(_C.PjrtError, match=r"(?i)unknown program format 'fortran'"):
        client.compile(tanh_program(), format="fortran")


def test_wrong_arguments(client: _C.Client) -> None:
    run = client.compile(tanh_program())
    with pytest.raises(_C.PjrtError, match=r"(?i)argument|expected 1 buffer") as error:
        run.execute([])
    assert error.value.code == "INVALID_ARGUMENT"
    with pytest.raises(_C.PjrtError, match=r"(?i)size|shape"):
        run.execute([put(client, np.zeros(9))])


def test_donation(client: _C.Client) -> None:
    run = client.compile(donating_program())
    assert run.memory_stats()["alias_bytes"] == 4096
    x, y = put(client, np.ones(1024)), put(client, np.full(1024, 2.0))
    address = x.unsafe_pointer
    (z,) = run.execute([x, y], wait=True)
    assert (x.is_deleted, y.is_deleted, z.unsafe_pointer) == (True, False, address)
    with pytest.raises(_C.PjrtError, match=r"(?i)deleted or donated"):
        run.execute([x, y])
    with pytest.raises(_C.PjrtError, match=r"(?i)donate"):
        run.execute([y, y])


def test_kept_argument_is_not_donated(client: _C.Client) -> None:
    run = client.compile(donating_program())
    x, y = put(client, np.ones(1024)), put(client, np.full(1024, 2.0))
    (z,) = run.execute([x, y], keep=[0])
    assert not x.is_deleted
    assert (floats(x)[0], floats(z)[0]) == (1.0, 3.0)


def test_portable_executable_runs_on_any_device(client: _C.Client) -> None:
    run = client.compile(tanh_program(), options=CompileOptions(portable=True).encode())
    (y,) = run.execute([put(client, np.ones(8), device=1)], device=1)
    assert y.device_id == 1
    np.testing.assert_allclose(floats(y), np.tanh(np.ones(8)), rtol=1e-6)


def test_analysis(client: _C.Client) -> None:
    run = client.compile(donating_program())
    assert run.memory_stats()["argument_bytes"] == 8192
    kind, program = run.optimized_program()
    assert kind == "hlo_with_config"
    assert b"donate" in program
    assert run.fingerprint


def test_cost_analysis(client: _C.Client) -> None:
    run = client.compile(donating_program())
    try:
        cost = run.cost_analysis()
    except _C.PjrtError as error:
        if error.code == "UNIMPLEMENTED":
            pytest.skip(f"{client.plugin.path} has none")
        raise
    assert cost["flops"] == 1024


def test_serialize_round_trip(client: _C.Client) -> None:
    serialized = client.compile(tanh_program("kept")).serialize()
    run = client.deserialize(serialized)
    assert (run.name, run.outputs) == ("kept", [("f32", (8,))])
    np.testing.assert_allclose(floats(run.execute([put(client, np.ones(8))])[0]), np.tanh(np.ones(8)), rtol=1e-6)
    with pytest.raises(_C.PjrtError):
        client.deserialize(b"not an executable")


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_compile_deserialize_and_execute_from_several_threads(client: _C.Client) -> None:
    def work(index: int) -> None:
        size = 8 + index
        run = client.compile(tanh_program(f"thread{index}", size))
        again = client.deserialize(run.serialize())
        x = np.full(size, index / 8, np.float32)
        for _ in range(20):
            for executable in (run, again):
                (y,) = executable.execute([put(client, x)])
                np.testing.assert_allclose(floats(y), np.tanh(x), rtol=1e-6)

    in_threads(8, work)


def test_executes_while_another_program_compiles(client: _C.Client) -> None:
    run, x = client.compile(tanh_program()), put(client, np.ones(8))
    started, finished = threading.Event(), threading.Event()

    def compile_slowly() -> None:
        started.set()
        try:
            client.compile(slow_program())
        finally:
            finished.set()

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    started.wait()
    executed = 0
    while not finished.is_set():
        run.execute([x], wait=True)
        executed += 1
        time.sleep(0.001)
    thread.join()
    assert executed > 1


# Options


def test_option_bytes_are_what_xla_reads() -> None:
    xla = pytest.importorskip("jaxlib._jax")
    options = CompileOptions(
        num_replicas=2,
        num_partitions=3,
        device_ids=((0, 1, 2), (3, 4, 300)),
        overrides={"xla_a": "text", "xla_b": True, "xla_c": -7, "xla_d": 1.5, "xla_e": False},
    )
    read = xla.CompileOptions.ParseFromString(options.encode())
    assert (read.num_replicas, read.num_partitions) == (2, 3)
    build = read.executable_build_options
    assert (build.use_spmd_partitioning, build.use_shardy_partitioner) == (True, True)
    assert "300" in str(read.device_assignment)
    assert not read.compile_portable_executable
    assert dict(read.env_option_overrides) == dict(options.overrides)
    types = {name: type(value) for name, value in read.env_option_overrides}
    assert types == {name: type(value) for name, value in options.overrides.items()}
    assert xla.CompileOptions.ParseFromString(CompileOptions(portable=True).encode()).compile_portable_executable


def test_equal_options_give_equal_bytes() -> None:
    first = CompileOptions(overrides={"xla_a": 1, "xla_b": 2}).encode()
    assert first == CompileOptions(overrides={"xla_b": 2, "xla_a": 1}).encode()
    assert first != CompileOptions(overrides={"xla_a": 1, "xla_b": 3}).encode()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"num_replicas": 0}, ValueError, "num_replicas must be a positive int"),
        ({"num_partitions": 2, "device_ids": ((0,),)}, ValueError, "1 rows of 2 ids"),
        ({"device_ids": ((0,),), "portable": True}, ValueError, "a portable program has no device_ids"),
        ({"overrides": {"not an option": 1}}, ValueError, "is not the name of a compile option"),
        ({"overrides": {"xla_a": None}}, TypeError, "must be a bool, int, float or str, not NoneType"),
        ({"overrides": {"xla_a": "false"}}, TypeError, "write the bool False"),
        ({"overrides": {"xla_a": 2**63}}, ValueError, "does not fit in 64 bits"),
    ],
)
def test_wrong_options(arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        CompileOptions(**arguments)  # type: ignore[arg-type]


def test_options_reach_the_compiler(client: _C.Client) -> None:
    client.compile(tanh_program(), options=CompileOptions(overrides={"xla_backend_optimization_level": 0}).encode())
    with pytest.raises(_C.PjrtError, match="No such compile option: 'xla_no_such_flag'"):
        client.compile(tanh_program(), options=CompileOptions(overrides={"xla_no_such_flag": 1}).encode())
    with pytest.raises(_C.PjrtError, match="xla_backend_optimization_level"):
        client.compile(
            tanh_program(), options=CompileOptions(overrides={"xla_backend_optimization_level": "x"}).encode()
        )


# The choice of a plugin


def machine(folder: Path, *, devices: tuple[str, ...] = (), pci: tuple[tuple[str, str], ...] = ()) -> str:
    (folder / "dev" / "vfio").mkdir(parents=True)
    for device in devices:
        (folder / "dev" / device).touch()
    for index, (vendor, kind) in enumerate(pci):
        slot = folder / "sys/bus/pci/devices" / f"0000:00:0{index}.0"
        slot.mkdir(parents=True)
        (slot / "vendor").write_text(vendor + "\n")
        (slot / "device").write_text(kind + "\n")
    return str(folder)


V5E, NETWORK_CARD = ("0x1ae0", "0x0063"), ("0x1ae0", "0x0042")


def test_tpu_chips_are_found_by_their_files(tmp_path: Path) -> None:
    assert platform.tpu_chips(machine(tmp_path / "none")) == 0
    assert platform.tpu_chips(machine(tmp_path / "accel", devices=("accel0",), pci=(V5E, V5E, NETWORK_CARD))) == 2
    assert platform.tpu_chips(machine(tmp_path / "vfio", devices=("vfio/0",), pci=(V5E,))) == 1
    assert platform.tpu_chips(machine(tmp_path / "no_access", devices=("vfio/vfio",), pci=(V5E,))) == 0
    assert platform.tpu_chips(machine(tmp_path / "other", devices=("accel0",), pci=(NETWORK_CARD,))) == 0


def test_auto_takes_the_tpu_only_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "tpu_chips", lambda: 0)
    choice = platform.select({})
    assert (choice.platform, choice.create_options) == ("cpu", {"cpu_device_count": 1})
    assert "this machine has no TPU" in str(choice)

    monkeypatch.setattr(platform, "tpu_chips", lambda: 4)
    monkeypatch.setattr(platform, "find_plugin", lambda name: f"/{name}.so")
    choice = platform.select({})
    assert (choice.platform, choice.plugin_path, choice.create_options) == ("tpu", "/tpu.so", {})
    assert "4 TPU chips" in str(choice)
    assert platform.select({"TORCH_TPU_PLATFORM": "cpu"}).platform == "cpu"


def test_environment_of_the_choice() -> None:
    choice = platform.select({"TORCH_TPU_PJRT_PLUGIN": "/x/my_cpu_plugin.so", "TORCH_TPU_CPU_DEVICES": "8"})
    assert (choice.platform, choice.plugin_path) == ("cpu", "/x/my_cpu_plugin.so")
    assert choice.create_options == {"cpu_device_count": 8}
    assert platform.select({"TORCH_TPU_PJRT_PLUGIN": "/x/libtpu.so"}).platform == "tpu"
    with pytest.raises(ValueError, match=r"'gpu' is unknown; known are auto, tpu, cpu"):
        platform.select({"TORCH_TPU_PLATFORM": "gpu"})
    with pytest.raises(ValueError, match="set TORCH_TPU_PLATFORM to tpu or cpu"):
        platform.select({"TORCH_TPU_PJRT_PLUGIN": "/x/plugin.so"})
    for devices in ("0", "many", "-1", "513"):
        with pytest.raises(ValueError, match="must be a number from 1 to 512"):
            platform.select({"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_CPU_DEVICES": devices})


def test_device_count_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.device_count({"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_CPU_DEVICES": "5"}) == 5
    monkeypatch.setattr(platform, "tpu_chips", lambda: 4)
    assert platform.device_count({}) == 4
    assert platform.device_count({"TPU_VISIBLE_CHIPS": "0,2"}) == 2


def test_plugin_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(platform._PLUGINS, "tpu", (("no_such_module", "x.so", "some-wheel"),))
    with pytest.raises(RuntimeError, match="no PJRT plugin for platform tpu is installed: pip install some-wheel"):
        platform.find_plugin("tpu")


def run_python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environ, capture_output=True, text=True, timeout=120, check=False
    )


def test_default_client_follows_the_environment_and_is_silent() -> None:
    done = run_python(
        "import torch, threading\n"
        "from torch_tpu import _C\n"
        "assert not _C.default_client_exists()\n"
        "clients = []\n"
        "threads = [threading.Thread(target=lambda: clients.append(_C.default_client())) for _ in range(8)]\n"
        "[t.start() for t in threads], [t.join() for t in threads]\n"
        "assert len(set(map(id, clients))) == 1 and _C.default_client_exists()\n"
        "print(len(clients[0].devices), clients[0].platform_name)\n",
        TORCH_TPU_PLATFORM="cpu",
        TORCH_TPU_CPU_DEVICES="3",
    )
    assert (done.stdout, done.stderr, done.returncode) == ("3 cpu\n", "", 0)


def test_default_client_passes_errors_on() -> None:
    done = run_python(
        "import torch\nfrom torch_tpu import _C\n"
        "for _ in range(2):\n"
        "    try: _C.default_client()\n"
        "    except _C.PjrtError as error: print(error.code)\n",
        TORCH_TPU_PLATFORM="cpu",
        TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so",
    )
    assert (done.stdout, done.returncode) == ("NOT_FOUND\nNOT_FOUND\n", 0)

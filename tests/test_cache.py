"""The compile cache: tiers, damage, several threads and processes, eviction, the index of traces."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch  # noqa: F401  the native core links with it

from torch_tpu import _C
from torch_tpu.compiler import cache as cache_module
from torch_tpu.compiler import platform
from torch_tpu.compiler.cache import Cache, decode_entry, encode_entry, module_key, parse_size, trace_key

KEY, OTHER = "a" * 64, "b" * 64


class Program:
    """Stands for an executable: its code is all it is."""

    def __init__(self, code: bytes) -> None:
        self.code = code

    def serialize(self) -> bytes:
        return self.code


def load(payload: bytes) -> Program:
    if payload.startswith(b"refused"):
        raise RuntimeError("made by another version")
    return Program(payload)


def make(folder: Path | None, **kwargs: object) -> Cache[Program]:
    return Cache(load, folder, **kwargs)  # type: ignore[arg-type]


def compiler(code: bytes = b"code") -> Callable[[], Program]:
    return lambda: Program(code)


def forbidden() -> Program:
    raise AssertionError("compiled what was in the cache")


def subset(cache: Cache[Program], *names: str) -> tuple[int | float, ...]:
    stats = cache.stats()
    return tuple(stats[name] for name in names)


# Tiers


def test_memory_tier_compiles_once(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        cache = make(folder)
        first = cache.get_or_compile(KEY, compiler())
        assert cache.get_or_compile(KEY, forbidden) is first
        assert subset(cache, "hits", "misses", "compiles", "disk_hits", "memory_entries") == (1, 1, 1, 0, 1)


def test_disk_tier_serves_the_next_process(tmp_path: Path) -> None:
    make(tmp_path).get_or_compile(KEY, compiler(b"kept"))
    cache = make(tmp_path)
    assert cache.get_or_compile(KEY, forbidden).code == b"kept"
    assert subset(cache, "hits", "disk_hits", "misses", "entries") == (1, 1, 0, 1)
    assert cache.stats()["bytes"] == len(encode_entry(KEY, b"kept"))


def test_entries_can_be_read_by_all_whom_the_umask_lets(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make(tmp_path).get_or_compile(KEY, compiler())
    finally:
        os.umask(before)
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o644


def test_stats_are_ints_and_seconds(tmp_path: Path) -> None:
    cache = make(tmp_path)
    cache.get_or_compile(KEY, lambda: time.sleep(0.02) or Program(b""))
    stats = cache.stats()
    for name in ("hits", "misses", "compiles", "disk_hits", "evictions", "entries", "bytes"):
        assert type(stats[name]) is int
    assert type(stats["compile_seconds"]) is float
    assert stats["compile_seconds"] >= 0.02


def test_a_failing_compilation_is_not_remembered(tmp_path: Path) -> None:
    cache = make(tmp_path)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_compile(KEY, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert cache.get_or_compile(KEY, compiler(b"works")).code == b"works"


def test_memory_tier_forgets_the_least_recently_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MEMORY_ENTRIES", 2)
    cache = make(None)
    for key in ("x", "y", "x", "z"):
        cache.get_or_compile(key, compiler())
    cache.get_or_compile("x", forbidden)
    assert cache.stats()["compiles"] == 3
    cache.get_or_compile("y", compiler())
    assert cache.stats()["compiles"] == 4


# Damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry[:-1],
        lambda entry: entry[:20],
        lambda entry: b"",
        lambda entry: entry + b"x",
        lambda entry: entry[:-3] + bytes([entry[-3] ^ 1]) + entry[-2:],
        lambda entry: bytes([entry[0] ^ 0x80]) + entry[1:],
        lambda entry: entry[:30] + bytes([entry[30] ^ 4]) + entry[31:],
        lambda entry: b"\0" * len(entry),
        lambda entry: encode_entry(OTHER, b"another key's code"),
        lambda entry: encode_entry(KEY, b"refused by the plugin"),
    ],
    ids=[
        "truncated",
        "header only",
        "empty",
        "longer",
        "payload bit",
        "magic bit",
        "digest bit",
        "zeros",
        "foreign",
        "refused",
    ],
)
def test_damaged_entry_is_a_miss_and_is_replaced(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    make(tmp_path).get_or_compile(KEY, compiler(b"good"))
    (tmp_path / KEY).write_bytes(damage((tmp_path / KEY).read_bytes()))
    cache = make(tmp_path)
    assert cache.get_or_compile(KEY, compiler(b"good")).code == b"good"
    assert subset(cache, "compiles", "damaged", "disk_hits") == (1, 1, 0)
    assert make(tmp_path).get_or_compile(KEY, forbidden).code == b"good"


def test_every_flipped_bit_is_noticed() -> None:
    entry = encode_entry(KEY, b"payload")
    assert decode_entry(KEY, entry) == b"payload"
    for position in range(len(entry) * 8):
        flipped = bytearray(entry)
        flipped[position // 8] ^= 1 << position % 8
        assert decode_entry(KEY, bytes(flipped)) is None


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    prelude = f"import os, sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    prelude += f"from pathlib import Path; import test_cache as t; folder = Path({str(folder)!r})\n"
    return subprocess.Popen([sys.executable, "-c", prelude + code], stdout=subprocess.PIPE, text=True)


def test_process_killed_in_the_middle_of_a_write(tmp_path: Path) -> None:
    # The write stops half-way: the process dies inside it, with the compile lock held.
    writer = start(
        "from torch_tpu.compiler import cache\n"
        "def stuck(path, entry):\n"
        "    (path.parent / 'tmp-half').write_bytes(entry[: len(entry) // 2]); time.sleep(600)\n"
        "cache.DiskTier._replace = staticmethod(stuck)\n"
        f"t.make(folder).get_or_compile({KEY!r}, t.compiler(b'x' * 1000))\n",
        tmp_path,
    )
    wait_for((tmp_path / "tmp-half").exists)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    cache = make(tmp_path, lock_seconds=60.0)
    assert cache.get_or_compile(KEY, compiler(b"whole")).code == b"whole"
    assert subset(cache, "compiles", "entries", "lock_timeouts", "damaged") == (1, 1, 0, 0)
    assert cache.stats()["wait_seconds"] < 10
    assert make(tmp_path).get_or_compile(KEY, forbidden).code == b"whole"


def test_what_a_killed_writer_left_is_cleaned_up(tmp_path: Path) -> None:
    for name, age in (("tmp-old", 7200), ("tmp-new", 10)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    make(tmp_path).get_or_compile(KEY, compiler())
    assert not (tmp_path / "tmp-old").exists()
    assert (tmp_path / "tmp-new").exists()


# A disk that does not work


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = make(tmp_path / "file" / "cache")
    for key in (KEY, OTHER):
        assert cache.get_or_compile(key, compiler()).code == b"code"
        assert cache.get_or_compile(key, forbidden).code == b"code"
    assert subset(cache, "compiles", "write_errors", "entries", "bytes") == (2, 1, 0, 0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_full_or_read_only_disk_still_serves_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    make(tmp_path).get_or_compile(KEY, compiler(b"old"))

    def fail(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    cache = make(tmp_path)
    assert cache.get_or_compile(KEY, forbidden).code == b"old"
    assert cache.get_or_compile(OTHER, compiler(b"new")).code == b"new"
    assert subset(cache, "write_errors", "entries") == (1, 1)
    assert not list(tmp_path.glob("tmp-*"))


def test_unserializable_executables_stay_in_memory(tmp_path: Path) -> None:
    class Stubborn(Program):
        def serialize(self) -> bytes:
            raise RuntimeError("not implemented")

    cache = make(tmp_path)
    first = cache.get_or_compile(KEY, lambda: Stubborn(b""))
    assert cache.get_or_compile(KEY, forbidden) is first
    assert subset(cache, "unserializable", "entries") == (1, 0)


# Size


def test_least_recently_used_entries_are_evicted(tmp_path: Path) -> None:
    keys = [f"{index:064x}" for index in range(12)]
    cache = make(tmp_path, max_bytes=10_000)
    for age, key in enumerate(keys[:8]):
        cache.get_or_compile(key, compiler(b"x" * 1000))
        os.utime(tmp_path / key, (time.time() - 1000 + age,) * 2)
    make(tmp_path).get_or_compile(keys[0], forbidden)  # its use makes it the youngest
    for key in keys[8:]:
        cache.get_or_compile(key, compiler(b"x" * 1000))
    stats = cache.stats()
    assert stats["bytes"] <= 10_000
    assert stats["evictions"] == 12 - stats["entries"] > 0
    left = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert {keys[0], *keys[8:]} <= left
    assert keys[1] not in left


def test_bound_holds_for_many_writers(tmp_path: Path) -> None:
    caches = [make(tmp_path, max_bytes=50_000) for _ in range(4)]
    for index in range(200):
        caches[index % 4].get_or_compile(f"{index:064x}", compiler(b"x" * 1000))
        assert caches[0].stats()["bytes"] <= 50_000
    assert caches[0].stats()["entries"] > 20


def test_entry_larger_than_the_cache(tmp_path: Path) -> None:
    cache = make(tmp_path, max_bytes=500)
    cache.get_or_compile(KEY, compiler(b"x" * 1000))
    assert subset(cache, "oversized", "entries") == (1, 0)


def test_sizes_are_read() -> None:
    assert [parse_size(text) for text in ("0", "123", "1KB", "2.5 mb", "4GB")] == [0, 123, 1000, 2_500_000, 4 * 10**9]
    for text in ("much", "-1", "3 apples", "1GiB"):
        with pytest.raises(ValueError, match=r"TORCH_TPU_CACHE_SIZE=.* is no size"):
            parse_size(text)


def test_size_zero_turns_the_disk_off(tmp_path: Path) -> None:
    make(tmp_path, max_bytes=0).get_or_compile(KEY, compiler())
    assert not list(tmp_path.iterdir())


# Threads and processes


def test_threads_compile_once_and_share_the_error(tmp_path: Path) -> None:
    cache, calls, results, errors = make(tmp_path), [], [], []
    release = threading.Event()

    def compile_slowly() -> Program:
        calls.append(1)
        release.wait()
        if len(calls) == 1:
            raise ZeroDivisionError
        return Program(b"code")

    def work() -> None:
        try:
            results.append(cache.get_or_compile(KEY, compile_slowly))
        except ZeroDivisionError:
            errors.append(1)

    for expected_results, expected_errors in ((0, 6), (6, 6)):
        release.clear()
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        release.set()
        for thread in threads:
            thread.join()
        assert (len(results), len(errors)) == (expected_results, expected_errors)
    assert len(calls) == 2
    assert len(set(map(id, results))) == 1


def test_different_keys_compile_at_the_same_time(tmp_path: Path) -> None:
    cache, barrier = make(tmp_path), threading.Barrier(2, timeout=20)

    def compile_together() -> Program:
        barrier.wait()
        return Program(b"")

    threads = [threading.Thread(target=cache.get_or_compile, args=(key, compile_together)) for key in (KEY, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.stats()["compiles"] == 2


def test_processes_compile_once(tmp_path: Path) -> None:
    code = (
        "def slow():\n"
        "    with open(folder / 'log', 'a') as log: log.write('compiled\\n')\n"
        "    time.sleep(1); return t.Program(b'shared')\n"
        "c = t.make(folder / 'cache')\n"
        f"assert c.get_or_compile({KEY!r}, slow).code == b'shared'\n"
        "print(c.stats()['compiles'], c.stats()['disk_hits'])\n"
    )
    processes = [start(code, tmp_path) for _ in range(3)]
    outputs = sorted(process.communicate(timeout=120)[0].split() for process in processes)
    assert outputs == [["0", "1"], ["0", "1"], ["1", "0"]]
    assert (tmp_path / "log").read_text() == "compiled\n"


def hold_lock(folder: str, key: str, held: "multiprocessing.synchronize.Event") -> None:
    with cache_module.DiskTier(Path(folder), 10**6, cache_module.Counters()).locked(key):
        held.set()
        time.sleep(600)


def test_a_lock_held_for_too_long_does_not_stop_us(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    holder = context.Process(target=hold_lock, args=(str(tmp_path), KEY, held), daemon=True)
    holder.start()
    assert held.wait(60)
    cache = make(tmp_path, lock_seconds=0.3)
    assert cache.get_or_compile(KEY, compiler()).code == b"code"
    assert subset(cache, "lock_timeouts", "compiles") == (1, 1)
    holder.kill()
    holder.join()


# Traces


def test_a_known_trace_needs_no_module(tmp_path: Path) -> None:
    builds = []

    def build() -> tuple[str, Callable[[], Program]]:
        builds.append(1)
        return KEY, compiler(b"built")

    first = make(tmp_path)
    assert first.get_or_build(OTHER, build).code == b"built"
    assert first.get_or_build(OTHER, build).code == b"built"
    second = make(tmp_path)
    assert second.get_or_build(OTHER, build).code == b"built"
    assert second.get_or_build(OTHER, build).code == b"built"
    assert len(builds) == 1
    assert subset(second, "trace_hits", "disk_hits", "hits", "compiles") == (2, 1, 2, 0)


@pytest.mark.parametrize("loss", [KEY, OTHER])
def test_a_lost_half_of_a_trace_is_rebuilt(tmp_path: Path, loss: str) -> None:
    build = lambda: (KEY, compiler(b"built"))
    make(tmp_path).get_or_build(OTHER, build)
    (tmp_path / loss).unlink()
    cache = make(tmp_path)
    assert cache.get_or_build(OTHER, build).code == b"built"
    assert cache.stats()["trace_hits"] == 0
    assert make(tmp_path).get_or_build(OTHER, lambda: (KEY, forbidden)).code == b"built"


def test_a_damaged_index_entry_is_replaced(tmp_path: Path) -> None:
    build = lambda: (KEY, compiler(b"built"))
    make(tmp_path).get_or_build(OTHER, build)
    (tmp_path / OTHER).write_bytes(b"garbage")
    assert make(tmp_path).get_or_build(OTHER, build).code == b"built"
    cache = make(tmp_path)
    cache.get_or_build(OTHER, build)
    assert subset(cache, "trace_hits", "damaged") == (1, 0)


# Keys, and the real thing


@pytest.fixture(scope="module", params=platform.installed_plugins("cpu"), ids=lambda path: Path(path).stem)
def client(request: pytest.FixtureRequest) -> _C.Client:
    return _C.Client(_C.Plugin.load(request.param), {"cpu_device_count": 1})


def test_keys_depend_on_all_they_should(client: _C.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        module_key(b"module", b"options", client),
        module_key(b"module!", b"options", client),
        module_key(b"module", b"!options", client),
        module_key(b"moduleo", b"ptions", client),
        module_key(b"module", b"options", _C.Client(client.plugin, {"cpu_device_count": 2})),
        trace_key(b"module", b"options", client),
    }
    same = _C.Client(client.plugin, {"cpu_device_count": 1})
    assert module_key(b"module", b"options", same) in keys
    monkeypatch.setattr(cache_module, "package_fingerprint", lambda: b"other sources")
    keys.add(trace_key(b"module", b"options", client))
    monkeypatch.setenv("XLA_FLAGS", "--other")
    keys.add(module_key(b"module", b"options", client))
    assert len(keys) == 8


def test_plugins_have_different_keys() -> None:
    clients = [_C.Client(_C.Plugin.load(path), {"cpu_device_count": 1}) for path in platform.installed_plugins("cpu")]
    assert len({module_key(b"module", b"", client) for client in clients}) == len(clients)


def test_package_fingerprint_sees_every_source_file(tmp_path: Path) -> None:
    fingerprint = cache_module.package_fingerprint.__wrapped__
    assert cache_module.package_fingerprint() == fingerprint()
    seen = {fingerprint(tmp_path)}
    for name, text in (("a.py", "1"), ("a.py", "2"), ("family/b.py", "1"), ("_C.so", "1"), ("_C.so", "2")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        seen.add(fingerprint(tmp_path))
    assert len(seen) == 6


PROGRAM = """module @cached { func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = stablehlo.tanh %x : tensor<8xf32>
  return %y : tensor<8xf32> } }"""


def test_real_executables(client: _C.Client, tmp_path: Path) -> None:
    key = module_key(PROGRAM.encode(), b"", client)
    make_real = lambda: Cache(client.deserialize, tmp_path)
    make_real().get_or_compile(key, lambda: client.compile(PROGRAM))
    cache = make_real()
    run = cache.get_or_compile(key, forbidden)
    data = client.buffer_from_host(bytes(32), "f32", [8])
    assert run.execute([data])[0].to_bytes() == bytes(32)
    (tmp_path / key).write_bytes(encode_entry(key, b"not an executable"))
    cache = make_real()
    assert cache.get_or_compile(key, lambda: client.compile(PROGRAM)).name == "cached"
    assert cache.stats()["damaged"] == 1


def test_default_cache_follows_the_environment(tmp_path: Path) -> None:
    code = (
        "import torch; from torch_tpu import _C; from torch_tpu.compiler import cache\n"
        f"program = '''{PROGRAM}'''\n"
        "client = _C.default_client()\n"
        "key = cache.module_key(program.encode(), b'', client)\n"
        "cache.get_or_compile(key, lambda: client.compile(program))\n"
        "print(*(cache.stats()[name] for name in ('compiles', 'disk_hits', 'entries')))\n"
    )
    environ = os.environ | {"TORCH_TPU_CACHE_DIR": str(tmp_path), "TORCH_TPU_PLATFORM": "cpu"}
    for expected in ("1 0 1", "0 1 1"):
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert (done.stdout.strip(), done.stderr) == (expected, "")

"""The compile cache: executables in memory and on the host's disk, shared by the host's processes.

TORCH_TPU_CACHE_DIR=<folder>   where the disk tier lies (default: the user's cache folder)
TORCH_TPU_CACHE_SIZE=<size>    its bound, such as 500MB or 2GB (default 4GB); 0 turns the disk tier off

A module is found by `module_key`: its bytes, the compile options, the plugin and the topology. An index from
`trace_key` to module key saves a second process from building the module at all.

Entries are plain bytes with a checksum, written to a temporary file and renamed. A damaged or foreign entry is a
miss and is replaced. Nothing that goes wrong with the disk fails a compilation: it is counted in `stats()`.
"""

import functools
import hashlib
import importlib.metadata
import os
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_tpu._C import Client, Executable

DEFAULT_BYTES = 4 * 10**9
MEMORY_ENTRIES = 128

_MAGIC = b"torch_tpu 1\n"
_DIGEST = hashlib.sha256().digest_size
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_COMPILER_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_STALE_SECONDS = 3600.0
_COUNTS = (
    "hits",  # answered without compiling here
    "misses",
    "compiles",
    "disk_hits",  # hits that came from disk
    "trace_hits",  # hits that needed no module
    "evictions",
    "damaged",
    "oversized",
    "unserializable",
    "read_errors",
    "write_errors",
    "lock_errors",
    "lock_timeouts",
)
_SECONDS = ("compile_seconds", "load_seconds", "wait_seconds")


# Keys


def _digest(parts: Iterable[bytes]) -> str:
    """One hash over parts, each with its length, so that no two different lists meet."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def module_key(module: bytes, options: bytes, client: "Client") -> str:
    """The key of a module compiled with these options for this client."""
    return _digest((module, options, _client_identity(client)))


def trace_key(trace: bytes, options: bytes, client: "Client") -> str:
    """The key of a trace whose module is built by this package's own code alone.

    `trace` must hold all that the module depends on: ops, shapes, dtypes, layouts, static arguments, donation.
    """
    return _digest((trace, options, _client_identity(client), package_fingerprint()))


@functools.cache
def package_fingerprint(root: Path = Path(__file__).parent.parent) -> bytes:
    """Changes with every source file of this package and with what else takes part in building a module."""
    files = sorted(path for pattern in ("**/*.py", "*.so") for path in root.glob(pattern))
    parts = [part for path in files for part in (str(path.relative_to(root)).encode(), path.read_bytes())]
    parts += [f"{name} {importlib.metadata.version(name)}".encode() for name in ("torch", "jax", "jaxlib")]
    return bytes.fromhex(_digest(parts))


def _client_identity(client: "Client") -> bytes:
    plugin = client.plugin
    attributes = sorted(plugin.attributes.items())
    parts = [client.platform_name, client.platform_version, repr(plugin.api_version), repr(attributes)]
    parts += [f"{name}={os.environ.get(name)}" for name in _COMPILER_VARIABLES]
    encoded = [part.encode() for part in parts]
    return bytes.fromhex(_digest([*encoded, _file_fingerprint(plugin.path), client.topology_fingerprint]))


@functools.cache
def _file_fingerprint(path: str) -> bytes:
    """Tells builds of a plugin apart by size, program headers and section table: the whole file is 200 MB."""
    with open(path, "rb") as file:
        head = file.read(4096)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 65536))
        return hashlib.sha256(head + file.read() + str(size).encode()).digest()


# Entries


def encode_entry(key: str, payload: bytes) -> bytes:
    """An entry as it is stored: any tier keeps these bytes."""
    return _MAGIC + hashlib.sha256(key.encode() + payload).digest() + payload


def decode_entry(key: str, entry: bytes) -> bytes | None:
    """The payload, or None if the entry is damaged, of another format or of another key."""
    start = len(_MAGIC) + _DIGEST
    if not entry.startswith(_MAGIC) or len(entry) < start:
        return None
    payload = entry[start:]
    return payload if hashlib.sha256(key.encode() + payload).digest() == entry[len(_MAGIC) : start] else None


def parse_size(text: str) -> int:
    """Bytes from a text such as `500MB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", text.strip().upper())
    if match is None:
        raise ValueError(
            f"TORCH_TPU_CACHE_SIZE={text!r} is no size; write for instance 500MB, 2GB, or 0 for no disk cache"
        )
    return int(float(match[1]) * _UNITS[match[2] or ""])


class Counters:
    """Counts shared by the tiers, cumulative for the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, int | float] = dict.fromkeys(_COUNTS, 0) | dict.fromkeys(_SECONDS, 0.0)

    def add(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._values[name] += amount

    def snapshot(self) -> dict[str, int | float]:
        with self._lock:
            return dict(self._values)


class DiskTier:
    """A folder of entries that several processes use at once, bounded in size; the least recently used go first."""

    def __init__(self, folder: Path, max_bytes: int, counters: Counters, lock_seconds: float = 600.0) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.lock_seconds = lock_seconds
        self._counters = counters
        self._room: int | None = None  # bytes this process may still write before it looks at the folder again
        self._writable = True
        self._write_lock = threading.Lock()

    def read(self, key: str) -> bytes | None:
        """The payload stored under `key`; a damaged entry is removed."""
        path = self.folder / key
        try:
            entry = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            self._counters.add("read_errors")
            return None
        payload = decode_entry(key, entry)
        if payload is None:
            self.discard(key)
            return None
        with suppress(OSError):
            os.utime(path)
        return payload

    def discard(self, key: str) -> None:
        """Removes an entry that turned out to be unusable."""
        self._counters.add("damaged")
        with suppress(OSError):
            (self.folder / key).unlink()

    def write(self, key: str, payload: bytes) -> None:
        """Stores `payload` under `key`: others see it whole or not at all."""
        entry = encode_entry(key, payload)
        with self._write_lock:
            if not self._writable:
                return
            if len(entry) > self.max_bytes:
                self._counters.add("oversized")
                return
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._make_room(len(entry))
                self._replace(self.folder / key, entry)
            except OSError:  # a read-only or full disk: this process goes on without
                self._counters.add("write_errors")
                self._writable = False

    @staticmethod
    def _replace(path: Path, entry: bytes) -> None:
        # Not by tempfile, whose files no other user may read.
        temporary = path.with_name(f"tmp-{os.getpid()}-{secrets.token_hex(8)}")
        try:
            with open(temporary, "xb") as file:
                file.write(entry)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def _make_room(self, size: int) -> None:
        if self._room is None or self._room < size:
            files = sorted(self._scan(), key=lambda file: file.stat.st_mtime)
            used = sum(file.stat.st_size for file in files)
            # Evicting down to a part of the bound keeps the next scan far away.
            target = self.max_bytes - max(size, self.max_bytes // 10)
            for file in files:
                stale = file.temporary and time.time() - file.stat.st_mtime > _STALE_SECONDS
                if not stale and (used <= target or file.temporary):
                    continue
                with suppress(OSError):
                    os.unlink(file.path)
                    used -= file.stat.st_size
                    self._counters.add("evictions", not file.temporary)
            # Other processes write too: look again after a share of what is free.
            self._room = max(size, (self.max_bytes - used) // 4)
        self._room -= size

    def _scan(self) -> list["_File"]:
        files = []
        with suppress(OSError), os.scandir(self.folder) as found:
            for item in found:
                with suppress(OSError):
                    if item.is_file(follow_symlinks=False):
                        files.append(_File(item.path, item.stat(follow_symlinks=False), item.name.startswith("tmp-")))
        return files

    def usage(self) -> tuple[int, int]:
        """The number of entries and their bytes."""
        sizes = [file.stat.st_size for file in self._scan() if not file.temporary]
        return len(sizes), sum(sizes)

    @contextmanager
    def locked(self, key: str) -> "Iterator[None]":
        """Held by one process of the host at a time; a killed process lets go of it.

        After `lock_seconds`, or where locking does not work, the caller goes on without the lock: the work is then done
        twice, never wrongly.
        """
        import filelock

        started = time.monotonic()
        # Lock files stay behind, so there are only as many as two hex digits can name.
        lock = filelock.FileLock(self.folder / "locks" / key[:2], timeout=self.lock_seconds, poll_interval=0.01)
        try:
            (self.folder / "locks").mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except TimeoutError:
            self._counters.add("lock_timeouts")
        except (OSError, NotImplementedError):
            self._counters.add("lock_errors")
        self._counters.add("wait_seconds", time.monotonic() - started)
        try:
            yield
        finally:
            lock.release()


class _File:
    __slots__ = ("path", "stat", "temporary")

    def __init__(self, path: str, stat: os.stat_result, temporary: bool) -> None:
        self.path, self.stat, self.temporary = path, stat, temporary


class Serializable(Protocol):
    """What the cache asks of an executable."""

    def serialize(self) -> bytes: ...


E = TypeVar("E", bound=Serializable)


class Cache(Generic[E]):
    """Executables by key, each compiled once among the threads and processes that share the folder."""

    def __init__(
        self,
        load: Callable[[bytes], E],
        folder: Path | None,
        max_bytes: int = DEFAULT_BYTES,
        lock_seconds: float = 600.0,
    ) -> None:
        self._load = load
        self._counters = Counters()
        self._disk = DiskTier(folder, max_bytes, self._counters, lock_seconds) if folder and max_bytes else None
        self._memory: OrderedDict[str, E] = OrderedDict()
        self._pending: dict[str, Future[E]] = {}
        self._lock = threading.Lock()

    def get_or_compile(self, key: str, compile: Callable[[], E]) -> E:
        """The executable of `key`; `compile` runs only if no tier has it, and its error is every waiter's error."""
        with self._lock:
            executable = self._recall(key)
            if executable is not None:
                self._counters.add("hits")
                return executable
            waiting = self._pending.get(key)
            if waiting is None:
                mine = self._pending[key] = Future()
        if waiting is not None:
            executable = waiting.result()
            self._counters.add("hits")
            return executable
        try:
            executable = self._find(key) or self._compile(key, compile)
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            mine.set_exception(error)
            raise
        with self._lock:
            self._remember(key, executable)
            del self._pending[key]
        mine.set_result(executable)
        return executable

    def get_or_build(self, key_of_trace: str, build: Callable[[], tuple[str, Callable[[], E]]]) -> E:
        """As `get_or_compile`, under a trace key; `build` gives the module's key and how to compile it."""
        indexed = self._disk.read(key_of_trace) if self._disk else None
        if indexed is not None:
            key = indexed.decode()
            with self._lock:
                executable = self._recall(key)
            if executable is None:
                executable = self._find(key)
                if executable is not None:
                    with self._lock:
                        self._remember(key, executable)
            else:
                self._counters.add("hits")
            if executable is not None:
                self._counters.add("trace_hits")
                return executable
        key, compile = build()
        executable = self.get_or_compile(key, compile)
        if self._disk and indexed != key.encode():
            self._disk.write(key_of_trace, key.encode())
        return executable

    def counts(self) -> dict[str, int | float]:
        """Counts, cumulative for the process."""
        return self._counters.snapshot() | {"memory_entries": len(self._memory)}

    def stats(self) -> dict[str, int | float]:
        """The counts and the disk tier's entries and bytes, whoever wrote them: takes a look at each file."""
        entries, size = self._disk.usage() if self._disk else (0, 0)
        return self.counts() | {"entries": entries, "bytes": size}

    def _recall(self, key: str) -> E | None:
        executable = self._memory.get(key)
        if executable is not None:
            self._memory.move_to_end(key)
        return executable

    def _remember(self, key: str, executable: E) -> None:
        self._memory[key] = executable
        if len(self._memory) > MEMORY_ENTRIES:
            self._memory.popitem(last=False)

    def _find(self, key: str) -> E | None:
        """The executable from disk; one that the plugin refuses is as good as damaged."""
        payload = self._disk.read(key) if self._disk else None
        if self._disk is None or payload is None:
            return None
        started = time.perf_counter()
        try:
            executable = self._load(payload)
        except RuntimeError:
            self._disk.discard(key)
            return None
        self._counters.add("load_seconds", time.perf_counter() - started)
        self._counters.add("hits")
        self._counters.add("disk_hits")
        return executable

    def _compile(self, key: str, compile: Callable[[], E]) -> E:
        if self._disk is None:
            return self._timed(compile)
        with self._disk.locked(key):
            found = self._find(key)  # another process may have been faster
            if found is not None:
                return found
            executable = self._timed(compile)
            try:
                payload = executable.serialize()
            except RuntimeError:
                self._counters.add("unserializable")
            else:
                self._disk.write(key, payload)
            return executable

    def _timed(self, compile: Callable[[], E]) -> E:
        self._counters.add("misses")
        started = time.perf_counter()
        executable = compile()
        self._counters.add("compile_seconds", time.perf_counter() - started)
        self._counters.add("compiles")
        return executable


# The process's cache


def default_folder() -> Path:
    """Where the disk tier lies."""
    chosen = os.environ.get("TORCH_TPU_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("torch_tpu"))


@functools.cache
def default_cache() -> "Cache[Executable]":
    """The process's cache, over the default client; the environment is read at first use."""
    from torch_tpu import _C

    size = os.environ.get("TORCH_TPU_CACHE_SIZE")
    max_bytes = parse_size(size) if size else DEFAULT_BYTES
    return Cache(lambda payload: _C.default_client().deserialize(payload), default_folder(), max_bytes)


def get_or_compile(key: str, compile: "Callable[[], Executable]") -> "Executable":
    """The executable of a `module_key` from the process's cache."""
    return default_cache().get_or_compile(key, compile)


def get_or_build(key_of_trace: str, build: "Callable[[], tuple[str, Callable[[], Executable]]]") -> "Executable":
    """The executable of a `trace_key` from the process's cache."""
    return default_cache().get_or_build(key_of_trace, build)


def counts() -> dict[str, int | float]:
    """Counts of the process's cache; see `Cache.counts`."""
    return default_cache().counts()


def stats() -> dict[str, int | float]:
    """Counts of the process's cache and its size; see `Cache.stats`."""
    return default_cache().stats()

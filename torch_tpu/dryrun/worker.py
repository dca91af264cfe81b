"""Compiles for a TPU slice with libtpu, in a process of its own.

The TPU compiler ends its process on some wrong programs, keeps a lock against a second libtpu, and cannot be
interrupted. In a worker process a crash becomes `WorkerCrash`, and a time limit holds.
"""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from torch_tpu.compiler import platform
from torch_tpu.compiler.options import CompileOptions
from torch_tpu.dryrun import topologies

TIMEOUT = 600.0

# Before libtpu is loaded: several may be, and none asks a metadata server that only Google's machines have.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_LOG_DIR": "disabled",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}
_STDERR_TAIL = 4000


class WorkerCrash(RuntimeError):
    """The compiler ended the worker process; the message holds the end of what it wrote to stderr."""


@dataclass(frozen=True)
class Result:
    """What the TPU compiler says of one program."""

    topology: str
    seconds: float
    memory: Mapping[str, int]
    """Bytes by kind for each device: argument_bytes, output_bytes, temp_bytes, peak_bytes ..."""
    memory_limit: int
    """Bytes of memory each device has."""
    cost: Mapping[str, Any]
    """The compiler's own analysis: flops, bytes accessed ...; keys may be missing."""
    program_format: str
    program: bytes
    """The optimized program, scheduled and laid out."""


def _place(options: CompileOptions, slice_: topologies.Slice) -> CompileOptions:
    wanted = options.num_replicas * options.num_partitions
    if wanted > slice_.devices:
        raise ValueError(f"the program runs on {wanted} devices, {slice_.name} has {slice_.devices}")
    if wanted == 1 or options.device_ids is not None:
        return options
    ids = range(wanted)
    rows = [ids[start : start + options.num_partitions] for start in range(0, wanted, options.num_partitions)]
    return replace(options, device_ids=tuple(map(tuple, rows)))


class Worker:
    """One worker process, started at first use and again after it ended; its compilations run one at a time."""

    _process: subprocess.Popen[bytes] | None = None
    _connection: Connection | None = None
    _stderr: IO[bytes] | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def compile_for(
        self, topology: str, module: bytes, options: CompileOptions | None = None, timeout: float = TIMEOUT
    ) -> Result:
        """Compiles a StableHLO module for a slice such as `v5e:2x2`.

        A program of several replicas or partitions is placed on the slice's devices in order. The compiler's errors
        are `PjrtError`s with its own text; an exceeded `timeout` (in seconds, the start of the worker included) is a
        TimeoutError.
        """
        slice_ = topologies.parse(topology)
        name, placed = slice_.name, _place(options or CompileOptions(), slice_)
        plugin = platform.find_plugin("tpu")
        deadline = time.monotonic() + timeout
        with self._lock:
            try:
                reply = self._ask((plugin, name, module, placed), deadline)
            except TimeoutError:
                self.close()
                raise TimeoutError(f"compiling for {name} took more than {timeout:g} s") from None
            except (EOFError, OSError):
                raise WorkerCrash(self._describe_crash(name)) from None
        if "error" in reply:
            from torch_tpu import _C

            error = _C.PjrtError(reply["error"])
            error.code = reply["code"]
            raise error
        return Result(topology=name, **reply)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        if self._stderr is not None:
            self._stderr.close()
        self._forget()

    def _forget(self) -> None:
        self._process = self._connection = self._stderr = None

    def _ask(self, request: tuple[str, str, bytes, CompileOptions], deadline: float) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
            self._receive(deadline)  # the process waits for its first request
        assert self._connection is not None
        self._connection.send(request)
        reply: dict[str, Any] = self._receive(deadline)
        return reply

    def _receive(self, deadline: float) -> Any:
        assert self._connection is not None
        if not self._connection.poll(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        return self._connection.recv()

    def _start(self) -> None:
        from multiprocessing import Pipe

        ours, theirs = Pipe()
        packages = str(Path(__file__).parents[2])
        environ = os.environ | _ENVIRONMENT
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (packages, environ.get("PYTHONPATH"))))
        self._connection, self._stderr = ours, tempfile.TemporaryFile()  # noqa: SIM115  close() closes both
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from torch_tpu.dryrun import worker; worker.serve()", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env=environ,
            )

    def _describe_crash(self, topology: str) -> str:
        assert self._process is not None
        assert self._stderr is not None
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_TAIL))
        tail = self._stderr.read().decode(errors="replace").strip()
        self.close()
        return f"the TPU compiler ended with {how} while compiling for {topology}:\n{tail}"


_shared = Worker()
atexit.register(_shared.close)
os.register_at_fork(after_in_child=_shared._forget)  # the worker stays the parent's


def compile_for(
    topology: str, module: bytes, options: CompileOptions | None = None, timeout: float = TIMEOUT
) -> Result:
    """`Worker.compile_for` of the process's shared worker."""
    return _shared.compile_for(topology, module, options, timeout)


# The worker process


def serve() -> None:
    """Answers requests on the connection whose descriptor is the first argument, until the other end closes it."""
    import torch  # noqa: F401  the native core links with it

    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    with Connection(int(sys.argv[1])) as connection:
        connection.send("ready")
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            connection.send(_compile(*request))


def _follow_parent(parent: int) -> None:
    """A compilation cannot be interrupted, but need not outlive who asked for it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _compile(plugin: str, name: str, module: bytes, options: CompileOptions) -> dict[str, Any]:
    from torch_tpu import _C

    try:
        topology = _C.Topology(_C.Plugin.load(plugin), name)
        started = time.perf_counter()
        executable = topology.compile(module, "mlir", options.encode())
        seconds = time.perf_counter() - started
        program_format, program = executable.optimized_program()
        return {
            "seconds": seconds,
            "memory": executable.memory_stats(),
            "memory_limit": topology.devices[0].attributes["device_memory_bytes_limit"],
            "cost": executable.cost_analysis(),
            "program_format": program_format,
            "program": program,
        }
    except _C.PjrtError as error:
        return {"error": str(error), "code": error.code}

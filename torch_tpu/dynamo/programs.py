"""From a planned graph to something that can be called: the executable, from the cache or compiled, and its record."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.utils import dynamo_timed
from torch.fx import GraphModule

from torch_tpu import _C
from torch_tpu.compiler import cache, flags, platform
from torch_tpu.compiler.options import OptionValue, for_device
from torch_tpu.compiler.program import SCALAR_DTYPES, stablehlo_version

from . import autotune, recompute
from . import plan as planning
from .options import Options
from .plan import Plan

KEPT = 64  # records of the latest programs


@dataclass(frozen=True)
class ProgramRecord:
    """One compiled graph, for looking into; what is expensive is made when asked for."""

    kind: str
    """inference, forward or backward."""
    fx: str
    precision: str
    plan: Plan
    executable: _C.Executable
    compiler_options: Mapping[str, OptionValue]

    @functools.cached_property
    def stablehlo(self) -> str:
        """The module as text."""
        from . import lower

        return str(lower.module(self.plan, self.precision, platform.select().platform))

    def artifact(self, platform_name: str = "tpu") -> bytes:
        """The program as a portable StableHLO artifact, lowered for a platform (tpu or cpu), as `dryrun.compile_for`
        takes it."""
        from torch_tpu.lowering import mlir

        from . import lower

        module = lower.module(self.plan, self.precision, platform_name)
        return mlir.serialize(module, stablehlo_version(_C.default_client()))

    @property
    def optimized_hlo(self) -> str:
        """The program as the compiler left it."""
        from torch_tpu.compiler import hlo

        return hlo.text(self.executable)

    @property
    def cost(self) -> dict[str, Any]:
        """The compiler's cost analysis; which keys there are depends on the plugin."""
        return dict(self.executable.cost_analysis())

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of arguments, results, temporaries and code."""
        return dict(self.executable.memory_stats())

    def __repr__(self) -> str:
        nodes, plan = len(self.plan.graph.graph.nodes), self.plan
        return f"<{self.kind} program: {nodes} nodes, {len(plan.parameters)} parameters, {len(plan.results)} results>"


_records: collections.deque[ProgramRecord] = collections.deque(maxlen=KEPT)
_lock = threading.Lock()


def last_programs() -> list[ProgramRecord]:
    """The programs that torch.compile made last, the newest last."""
    with _lock:
        return list(_records)


_exact: list[str] = []


def note_exact(kind: str, reason: str) -> None:
    """Remember why a graph with symbolic sizes is compiled for each set of sizes."""
    _C._count("compile.exact_shapes")
    _exact.append(f"{kind}: {reason}")


def exact_reasons() -> list[str]:
    """Why graphs with symbolic sizes were compiled for exact sizes."""
    return list(_exact)


def precision_of(options: Options) -> str:
    """The precision of the graph's float32 products."""
    return options.matmul_precision or flags.matmul_precision(torch.get_float32_matmul_precision())


def build(graph: GraphModule, device: int, kind: str, options: Options) -> _C.CompiledProgram:
    """The callable of a graph all of whose nodes can be lowered and whose sizes are known."""
    return finish(planning.make(graph, device, options.donate, kind == "backward"), kind, options)


def finish(plan: Plan, kind: str, options: Options) -> _C.CompiledProgram:
    """The callable of a plan."""
    if kind == "backward" and options.recomputes():
        plan.waits = recompute.waits(plan.graph)
    made, chosen = executable(plan, options)
    fx = plan.graph.print_readable(print_output=False)
    record = ProgramRecord(kind, fx, precision_of(options), plan, made, chosen)
    with _lock:
        _records.append(record)
    program = _C.CompiledProgram(
        executable=made,
        device=plan.device,
        name=f"torch.compile {kind}",
        parameters=[
            (p.use, SCALAR_DTYPES.index(p.kind), p.donated, p.shape if p.padded else ()) for p in plan.parameters
        ],
        results=[(r.dtype, r.shape if r.padded is None else r.padded, r.strides) for r in plan.results],
        writes=plan.writes,
        outputs=plan.outputs,
        draws=plan.draws,
    )
    program._boxed_call = True  # AOTAutograd hands it a list, which it empties
    return program


def executable(plan: Plan, options: Options) -> tuple[_C.Executable, Mapping[str, OptionValue]]:
    """A plan's program, from the cache or compiled, and the compiler's options."""
    client = _C.default_client()
    precision = precision_of(options)
    chosen_platform = platform.select().platform
    encode = functools.partial(for_device, chosen_platform, client.devices[plan.device].info.id)
    words = planning.fingerprint(plan) + repr((precision, torch.get_default_dtype())).encode()

    def compile_with(overrides: Mapping[str, OptionValue]) -> _C.Executable:
        encoded = encode(overrides)

        def compile_() -> _C.Executable:
            with dynamo_timed("torch_tpu.compile"):
                return client.compile(artifact(), "mlir", encoded)

        def build_module() -> tuple[str, Callable[[], _C.Executable]]:
            return cache.module_key(artifact(), encoded, client), compile_

        return cache.get_or_build(cache.trace_key(b"fx" + words, encoded, client), build_module)

    @functools.cache
    def artifact() -> bytes:
        from torch_tpu.lowering import mlir

        from . import lower

        with dynamo_timed("torch_tpu.lower"):  # what PyTorch's own tools show of a compilation
            return mlir.serialize(lower.module(plan, precision, chosen_platform), stablehlo_version(client))

    chosen = options.compiler_options
    if options.autotune:
        encoded = encode(chosen)

        def merged(candidate: Mapping[str, OptionValue]) -> Mapping[str, OptionValue]:
            return {**candidate, **options.compiler_options}

        key = cache.trace_key(b"autotune" + words, encoded, client)
        chosen = merged(autotune.choose(key, plan, options.autotune_seconds, lambda c: compile_with(merged(c))))
    return compile_with(chosen), chosen

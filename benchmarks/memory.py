"""Peak memory of a training step: fused eager against the JAX program with donated buffers, by XLA's own analysis.

    python -m benchmarks.memory

What a step needs is its arguments, results and temporaries, without what the results share with donated arguments. The
allocator's peak is what torch.tpu saw of live tensors. JAX's numbers come from its own XLA, ours from the plugin's.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import torch
from rich.console import Console
from rich.table import Table

from . import jax_programs, torch_programs
from .workloads import data

MIB = 1 << 20


def needed(arguments: int, outputs: int, temporary: int, shared: int) -> float:
    """MiB that a program needs."""
    return (arguments + outputs + temporary - shared) / MIB


def fused(workload: str) -> tuple[float, float]:
    """MiB of the step's program, and the allocator's peak while ten steps ran."""
    with torch.tpu.set_eager_mode("fused"):
        step = torch_programs.build(workload, "tpu", lambda: None, torch.tpu.synchronize)
        for _ in range(3):
            step()
        torch.tpu.reset_peak_memory_stats()
        for _ in range(10):
            step()
        torch.tpu.synchronize()
        peak = torch.tpu.max_memory_allocated() / MIB
        steps = [flush for flush in torch.tpu.explain().flushes if flush.reason == "step"]
    executable = steps[-1].executable
    assert executable is not None
    m = executable.memory_stats()
    return needed(m["argument_bytes"], m["output_bytes"], m["temp_bytes"], m["alias_bytes"]), peak


def jax_step(workload: str) -> float:
    """MiB of the jitted step with its state donated."""
    step, state, inputs = jax_programs.training_step(workload, [jax.numpy.asarray(x) for x in data(workload)])
    m = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*state, *inputs).compile().memory_analysis()
    return needed(m.argument_size_in_bytes, m.output_size_in_bytes, m.temp_size_in_bytes, m.alias_size_in_bytes)


def main() -> None:
    table = Table("workload", "fused, MiB", "JAX, MiB", "ratio", "allocator's peak, MiB")
    for workload in ("mlp", "gpt", "resnet"):
        ours, peak = fused(workload)
        theirs = jax_step(workload)
        table.add_row(workload, f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}", f"{peak:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()

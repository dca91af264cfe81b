"""Peak memory of a training step: fused eager and torch.compile against the JAX program with donated buffers.

    python -m benchmarks.memory
    python -m benchmarks.memory --rematerialize 512     # the compiled GPT at that length, with and without

The numbers are XLA's own analysis.

What a step needs is its arguments, results and temporaries, without what the results share with donated arguments. The
allocator's peak is what torch.tpu saw of live tensors. JAX's numbers come from its own XLA, ours from the plugin's.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import torch
import torch._dynamo
from rich.console import Console
from rich.table import Table

from . import jax_programs, torch_programs, workloads
from .workloads import GPT, data

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


def whole(workload: str) -> float:
    """MiB of the step compiled as one function."""
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        step = torch_programs.build_whole(workload, "tpu", functools.partial(torch.compile, backend="tpu"))
        step()
    m = torch.tpu.compiler.last_programs()[-1].memory
    return needed(m["argument_bytes"], m["output_bytes"], m["temp_bytes"], m["alias_bytes"])


def rematerialize(length: int) -> None:
    """Print what the compiled GPT keeps for its backward pass, and needs in it, with and without recomputation."""
    torch_programs.GPT = workloads.GPT = dataclasses.replace(GPT, seq=length)
    x, y = (torch.from_numpy(array).to("tpu") for array in data("gpt"))
    table = Table("rematerialize", "saved, MiB", "temporaries of the backward pass, MiB", "together, MiB")
    gradients: list[list[torch.Tensor]] = []
    for on in (False, True):
        torch._dynamo.reset()
        model = torch_programs.load("gpt", "tpu")
        loss = lambda x, y, model=model: torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        torch.compile(loss, backend="tpu", options={"rematerialize": on})(x, y).backward()
        gradients.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
        forward, backward = (program.memory for program in torch.tpu.compiler.last_programs()[-2:])
        saved, temporary = forward["output_bytes"] / MIB, backward["temp_bytes"] / MIB
        table.add_row(str(on), f"{saved:.0f}", f"{temporary:.0f}", f"{saved + temporary:.0f}")
    Console().print(table)
    difference = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*gradients))
    print(f"largest relative difference of a gradient: {difference:.1e}")


def jax_step(workload: str) -> float:
    """MiB of the jitted step with its state donated."""
    step, state, inputs = jax_programs.training_step(workload, [jax.numpy.asarray(x) for x in data(workload)])
    m = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*state, *inputs).compile().memory_analysis()
    return needed(m.argument_size_in_bytes, m.output_size_in_bytes, m.temp_size_in_bytes, m.alias_size_in_bytes)


def main() -> None:
    """Measure and print."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rematerialize", type=int, metavar="LENGTH", help="instead: what recomputation saves the GPT")
    args = p.parse_args()
    if args.rematerialize:
        rematerialize(args.rematerialize)
        return
    table = Table("workload", "fused, MiB", "compiled, MiB", "JAX, MiB", "ratios", "allocator's peak of fused, MiB")
    for workload in ("mlp", "gpt", "resnet"):
        ours, peak = fused(workload)
        compiled, theirs = whole(workload), jax_step(workload)
        ratios = f"{ours / theirs:.2f}, {compiled / theirs:.2f}"
        table.add_row(workload, f"{ours:.1f}", f"{compiled:.1f}", f"{theirs:.1f}", ratios, f"{peak:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()

"""Compare the installed CPU plugins: the same StableHLO compiled, loaded from its serialized form, and executed.

    python -m benchmarks.plugins

One process a plugin and program, in turn, over several rounds; medians of quiet time, with the CPU time beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from .measure import peak_rss, steady
from .run import ROOT, wait_until_quiet

TRAINED = ("mlp", "gpt", "resnet")
SMALL = 20  # distinct small programs, as op-by-op execution compiles them
COLUMNS = {
    "compile": ("compile, s", 1.0),
    "compile_cpu": ("its CPU time, s", 1.0),
    "load": ("load serialized, ms", 1e3),
    "serialized": ("serialized, KB", 1e-3),
    "step": ("step, ms", 1e3),
    "step_cpu": ("its CPU time, ms", 1e3),
    "rss": ("peak RSS, MiB", 1.0),
}


def write_programs(folder: Path) -> None:
    """Write each training step as a portable artifact, with its first inputs and how many of them are state."""
    import jax
    import jax.numpy as jnp

    from torch_tpu.lowering import mlir

    from .jax_programs import training_step
    from .workloads import data

    for model in TRAINED:
        step, state, inputs = training_step(model, [jnp.asarray(x) for x in data(model)])
        lowered = jax.jit(step, donate_argnums=(0, 1, 2), keep_unused=True).lower(*state, *inputs)
        (folder / f"{model}.mlir").write_bytes(mlir.serialize(lowered.compiler_ir("stablehlo"), "1.13.3"))
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((state, inputs))]
        np.savez(folder / f"{model}.npz", *leaves)
        (folder / f"{model}.state").write_text(str(len(jax.tree.leaves(state))))


def small_program(index: int) -> str:
    """One elementwise op over a shape of its own."""
    kind = f"tensor<{index + 4}x8xf32>"
    return f"""module @small {{ func.func @main(%x: {kind}, %y: {kind}) -> {kind} {{
      %z = stablehlo.add %x, %y : {kind}
      return %z : {kind} }} }}"""


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return what `work` returns, its wall time and its CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def measure(plugin: str, program: str, folder: Path, budget: float) -> dict[str, Any]:
    """Measure one program in this process."""
    from torch_tpu import _C

    client = _C.Client(_C.Plugin.load(plugin), {"cpu_device_count": 1})
    client.compile(small_program(1000))  # loading LLVM's tables is not part of any figure
    types = {"float32": "f32", "int32": "i32", "int64": "i64"}

    def put(array: np.ndarray) -> _C.Buffer:
        return client.buffer_from_host(np.ascontiguousarray(array), types[str(array.dtype)], array.shape)

    if program == "small":
        compiles = [timed(lambda i=i: client.compile(small_program(i))) for i in range(SMALL)]
        run = compiles[0][0]
        arguments = [put(np.ones((4, 8), np.float32))] * 2

        def step() -> None:
            for _ in range(1000):
                run.execute(arguments)

        scale, values = 1000, []
    else:
        module = (folder / f"{program}.mlir").read_bytes()
        compiles = [timed(lambda: client.compile(module)) for _ in range(2)]
        run = compiles[0][0]
        states = int((folder / f"{program}.state").read_text())
        with np.load(folder / f"{program}.npz") as arrays:
            inputs = [put(arrays[name]) for name in arrays.files]
        state, fixed, values = inputs[:states], inputs[states:], []

        def step() -> None:
            loss, *state[:] = run.execute([*state, *fixed], wait=True)
            values.append(float(np.frombuffer(loss.to_bytes(), np.float32)[0]))

        scale = 1
    serialized = run.serialize()
    load = statistics.median(timed(lambda: client.deserialize(serialized))[1] for _ in range(5))
    for _ in range(3):
        step()
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        step()

    found, _, cpu = timed(lambda: steady(counted, lambda: None, budget))
    return {
        "compile": statistics.median(wall for _, wall, _ in compiles),
        "compile_cpu": statistics.median(cpu for *_, cpu in compiles),
        "load": load,
        "serialized": len(serialized),
        "step": found["median"] / scale,
        "step_cpu": cpu / calls / scale,
        "rss": peak_rss(),
        "others": found["others"],
        "losses": values[:5],
    }


def main() -> None:
    """Measure all and print the table."""
    from torch_tpu.compiler import platform

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--budget", type=float, default=5.0, help="seconds of execution a measurement")
    p.add_argument("--quiet-wait", type=float, default=60.0, help="longest wait for a quiet machine, in seconds")
    p.add_argument("--programs", nargs="+", choices=(*TRAINED, "small"), default=(*TRAINED, "small"))
    p.add_argument("--one", nargs=3, metavar=("PLUGIN", "PROGRAM", "FOLDER"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        plugin, program, folder = args.one
        print(json.dumps(measure(plugin, program, Path(folder), args.budget)))
        return

    os.environ["JAX_PLATFORMS"] = "cpu"
    console = Console(width=180)
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    plugins = platform.installed_plugins("cpu")
    with tempfile.TemporaryDirectory() as folder:
        write_programs(Path(folder))
        for number in range(args.rounds):
            for program in args.programs:
                for plugin in random.Random(number).sample(plugins, len(plugins)):
                    wait_until_quiet(args.quiet_wait)
                    command = [sys.executable, "-m", "benchmarks.plugins", "--budget", str(args.budget)]
                    done = subprocess.run(
                        [*command, "--one", plugin, program, folder],
                        cwd=ROOT,
                        env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                        capture_output=True,
                        text=True,
                        start_new_session=True,
                        check=True,
                    )
                    result = json.loads(done.stdout)
                    results.setdefault((program, plugin), []).append(result)
                    console.print(f"[dim]{program} {Path(plugin).stem} {json.dumps(result)}", soft_wrap=True)

    table = Table("program", "plugin", *(title for title, _ in COLUMNS.values()), "loss after 5 steps")
    for program in args.programs:
        for plugin in plugins:
            found = results[program, plugin]
            cells = [f"{statistics.median(r[name] for r in found) * scale:.4g}" for name, (_, scale) in COLUMNS.items()]
            losses = found[0]["losses"]
            table.add_row(program, Path(plugin).stem, *cells, f"{losses[-1]:.6f}" if losses else "")
    console.print(table)


if __name__ == "__main__":
    main()

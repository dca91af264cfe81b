"""Measure workloads with several adapters, each in a process of its own, and print one table.

    python -m benchmarks.run --workloads chain,chain_sync,mlp,gpt,resnet,decode,decode_cat,start \\
        --adapters native,jax,strict,fused --write

torch_xla and torchax need another PyTorch: give their interpreter by --python torch_xla=PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .adapters import ADAPTERS
from .measure import QUIET, OthersLoad
from .workloads import WORKLOADS

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "performance.md"
MARKS = "<!-- results: begin -->", "<!-- results: end -->"
Results = dict[tuple[str, str], dict[str, Any]]


def wait_until_quiet(limit: float) -> None:
    """Wait for half a second in which other processes are nearly idle, but not longer than `limit` seconds."""
    end = time.time() + limit
    while time.time() < end:
        with OthersLoad() as load:
            time.sleep(0.5)
        if load.share <= QUIET:
            return


def launch(adapter: str, workload: str, cache: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one measurement in a fresh process and session."""
    wait_until_quiet(args.quiet_wait)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(args.threads))
    # OPENBLAS_* may pin an old kernel, and the flags of XLA, JAX and this package are the adapter's to set.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS", "XLA_", "JAX_", "TORCH"))}
    env = inherited | threads | ADAPTERS[adapter].environment(cache)
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        command = [args.python.get(adapter, sys.executable), "-m", "benchmarks.measure", "--adapter", adapter]
        command += [
            "--workload",
            workload,
            "--budget",
            str(args.budget),
            "--born",
            repr(time.time()),
            "--out",
            str(out),
        ]
        with log.open("w") as stream:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=ROOT,
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                process.wait(args.timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return {"error": f"no result after {args.timeout} s"}
        if out.exists():
            result: dict[str, Any] = json.loads(out.read_text())
            return result
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return {"error": lines[-1][:200] if lines else f"exit code {process.returncode}"}


def measure_all(args: argparse.Namespace, console: Console) -> Results:
    """Measure every pair `rounds` times, adapters in random order, and return the medians over the rounds."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(args.rounds):
        for workload in args.workloads:
            order = [a for a in args.adapters if workload not in ADAPTERS[a].skip]
            random.Random(number).shuffle(order)
            for adapter in order:
                # A cache of its own, so that every first iteration is a cold one; start_warm gets one already filled.
                with tempfile.TemporaryDirectory() as cache:
                    if workload == "start_warm":
                        launch(adapter, "start", cache, args)
                    with console.status(f"round {number + 1}: {workload} on {adapter}"):
                        result = launch(adapter, workload, cache, args)
                found.setdefault((workload, adapter), []).append(result)
                shown = {k: v for k, v in result.items() if k != "values"}
                console.print(f"[dim]{workload} {adapter} {json.dumps(shown)}", highlight=False, soft_wrap=True)
    return {key: merge(results) for key, results in found.items()}


def merge(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each number over the rounds, of quiet rounds if there are any."""
    good = [r for r in results if "error" not in r]
    if not good:
        return results[-1]
    used = [r for r in good if r["others"] <= QUIET] or good
    numbers = [k for k, v in used[0].items() if isinstance(v, int | float)]
    return used[0] | {k: statistics.median(r[k] for r in used) for k in numbers}


def agrees(values: list[float], reference: list[float]) -> bool:
    """Whether the losses (or tokens) of two adapters are the same but for rounding."""
    return len(values) == len(reference) and all(abs(a - b) <= 2e-3 * max(1, abs(b)) for a, b in zip(values, reference))


def number(value: float | None, scale: float = 1.0) -> str:
    """Return a number with about three digits, or a dash."""
    if value is None:
        return "-"
    value *= scale
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


HEAD = ["workload", "adapter", "median", "queued", "x native", "x jax", "first, s", "compiles", "RSS, MiB", "others"]


def rows(results: Results) -> list[list[str]]:
    """Return the table's cells."""
    out = []
    for workload, w in WORKLOADS.items():
        here = {a: r for (name, a), r in results.items() if name == workload}
        for adapter, r in here.items():
            if "error" in r:
                out.append([workload, adapter, "failed: " + r["error"], *[""] * 7])
                continue
            ratios = [
                number(r["median"] / here[peer]["median"]) if "median" in here.get(peer, {}) else "-"
                for peer in ("native", "jax")
            ]
            first, last = r["compiles_first"], r["compiles"]
            compiles = (
                "-" if last is None else f"{first:.0f}" if first == last else f"{first:.0f}, later {last - first:.0f}"
            )
            differs = not agrees(r["values"], here.get("native", r).get("values", r["values"]))
            out.append(
                [
                    workload,
                    adapter,
                    f"{number(r['median'], w.scale)} {w.unit}" + (" (values differ)" if differs else ""),
                    number(r.get("queued"), w.scale),
                    *ratios,
                    f"{number(r['first'])}" + (f" (import {number(r['import'])})" if "import" in r else ""),
                    compiles,
                    number(r["rss"]),
                    f"{r['others']:.0%}" + ("" if r["others"] <= QUIET else " (not quiet)"),
                ]
            )
    return out


def machine(results: Results) -> str:
    """Return a line about the machine and the versions."""
    model = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), ": ?")
    versions = sorted({r["version"] for r in results.values() if "version" in r})
    cpu = f"{model.split(':')[1].strip()}, {os.cpu_count()} cores"
    return ", ".join([cpu, f"Python {platform.python_version()}", *versions])


def markdown(results: Results, command: str) -> str:
    """Return the table as markdown."""
    lines = [f"`{command}`", "", machine(results), "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines += [f"| {' | '.join(row)} |" for row in rows(results)]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and on request write the document."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    p.add_argument("--workloads", type=split, default=list(WORKLOADS), help=f"of {','.join(WORKLOADS)} (default: all)")
    p.add_argument(
        "--adapters", type=split, default=["native", "jax", "strict", "fused"], help=f"of {','.join(ADAPTERS)}"
    )
    p.add_argument("--rounds", type=int, default=1, help="fresh processes for each pair (default: %(default)s)")
    p.add_argument("--budget", type=float, default=4, help="seconds of steady state a process (default: %(default)s)")
    p.add_argument("--threads", type=int, default=os.cpu_count(), help="OpenMP threads (default: %(default)s)")
    p.add_argument("--timeout", type=float, default=300, help="seconds a process may take (default: %(default)s)")
    p.add_argument(
        "--quiet-wait", type=float, default=10, help="seconds to wait for a quiet machine before each process"
    )
    p.add_argument("--python", type=lambda x: x.split("="), action="append", default=[], metavar="ADAPTER=PATH")
    p.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.relative_to(ROOT)}")
    p.add_argument("--json", type=Path, help="write all numbers here")
    args = p.parse_args()
    args.python = dict(args.python)
    args.workloads = [w for name in args.workloads for w in ((name, "start_warm") if name == "start" else (name,))]
    args.workloads = list(dict.fromkeys(args.workloads))
    for unknown in {*args.workloads} - {*WORKLOADS} | {*args.adapters} - {*ADAPTERS}:
        p.error(f"there is no {unknown!r}: workloads are {', '.join(WORKLOADS)}; adapters are {', '.join(ADAPTERS)}")

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    results = measure_all(args, console)
    table = Table(*HEAD, caption="; ".join(f"{k}: {w.title}" for k, w in WORKLOADS.items() if k in args.workloads))
    last = ""
    for row in rows(results):
        if last not in ("", row[0]):
            table.add_section()
        last = row[0]
        table.add_row(*row)
    console.print(table)
    if args.json:
        args.json.write_text(
            json.dumps([{"workload": w, "adapter": a, **r} for (w, a), r in results.items()], indent=1)
        )
    if args.write:
        before, rest = DOCUMENT.read_text().split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        command = shlex.join(["python", "-m", "benchmarks.run", *sys.argv[1:]])
        DOCUMENT.write_text(f"{before}{MARKS[0]}\n{markdown(results, command)}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()

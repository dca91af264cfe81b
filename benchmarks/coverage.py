"""Run PyTorch's own samples of ops, modules and optimizers on the device against the CPU.

    python -m benchmarks.coverage                                   # every op, five dtypes: docs/coverage.md
    python -m benchmarks.coverage --dtypes float32 --ops add,sort   # a part of it, printed only
    python -m benchmarks.coverage --modes out,grad                  # other experiments: docs/conformance.md
    python -m benchmarks.coverage --compiled                        # through torch.compile: docs/compiled.md

Every (mode, op, dtype) runs in a worker process under a time limit. A worker that dies or hangs is replaced and the op
is marked; --resume goes on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import signal
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .coverage_checks import KINDS, MODES, TOLERANCES, Result, dtypes_of, key_of, run_op

ROOT = Path(__file__).parents[1]
COMPILED = ["compiled", "compiled_dynamic"]
MEANING = {
    "native": "every sample ran on the device and gave the CPU's result",
    "fallback": "right, but at least one op ran on the CPU; which ones stands with it",
    "unsupported": "raised an error that the CPU does not raise",
    "wrong": "another result than the CPU's",
    "hang": "no result within the time limit",
    "crash": "the process died",
    "none": "OpInfo lists the dtype, but the CPU runs none of the samples; not counted",
}
NO_COMPLEX_HALF = "StableHLO has no complex numbers of two halves"
SPARSE = "the arithmetic of sparse tensors runs on the CPU"
STATISTICS = "the statistics of narrow inputs are float32, as on CUDA; the CPU's are narrow"
REASONS = {
    "_native_batch_norm_legit": STATISTICS,
    "_refs._conversions.chalf": NO_COMPLEX_HALF,
    "_segment_reduce": "the emptied data is shorter than the sample's lengths say; the CPU reads past its end",
    "auto_functionalize": "the sample's op has a kernel for the CPU only",
    "chalf": NO_COMPLEX_HALF,
    "complex": NO_COMPLEX_HALF,
    "multinomial": "to look at the probabilities' values would be to wait for the device",
    "narrow_copy": "a dim out of range is an IndexError, as for narrow",
    "native_batch_norm": STATISTICS,
    "nn.functional.pixel_unshuffle": "of nothing the CPU makes the shape it was given; here it is the documented one",
    "repeat_interleave": "of nothing the sample's output_size cannot be made; the CPU ignores that",
    "sparse.mm": SPARSE,
    "sparse.sampled_addmm": SPARSE,
    "SparseAdam": SPARSE,
    "to_sparse": SPARSE,
    "view_as_complex": NO_COMPLEX_HALF,
}
PREAMBLE = """\
# Op coverage

Written by `python -m benchmarks.coverage`; do not edit. PyTorch's OpInfo samples (`op_db`, the dtypes that it lists for
the CPU, up to {samples} of the smallest samples of each op) run on the device and on PyTorch's CPU, forward only.

Relative/absolute tolerances: {tolerances}; integers and bools
are equal. Ops whose result depends on the seed are compared by shape, dtype, finiteness and mean; decompositions that
are unique up to a phase by absolute values. A result outside the tolerances is right if it lies within four units of
its dtype's precision of what the CPU computes in the next wider dtype.
"""
MODES_PREAMBLE = """\
# Conformance

Written by `python -m benchmarks.coverage --modes ... --resume`, run by run; do not edit. Of the smallest samples that
PyTorch's own databases have for each op, module or optimizer, up to {samples} run on the device and on the CPU. What an
experiment does:
"""
Task = tuple[str, str, str, str]  # mode, op, variant, dtype


# ---- in the worker -----------------------------------------------------------------------------------------------


def worker(connection: Connection, device: str, limit: int, log: str) -> None:
    """Answer tasks with results until the connection closes."""
    stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stderr, 2)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    if device == "tpu":
        torch.tpu.config.cpu_fallback = "silent"
    connection.send("ready")
    tables: dict[str, dict[tuple[str, str], Any]] = {}
    while True:
        try:
            mode, name, variant, dtype = connection.recv()
        except EOFError:
            return
        os.ftruncate(2, 0)
        table = tables.setdefault(mode, {key_of(entry): entry for entry in MODES[mode].entries()})
        connection.send(run_op(MODES[mode], table[name, variant], getattr(torch, dtype), device, limit))


# ---- in the parent -----------------------------------------------------------------------------------------------


class Worker:
    """A worker process that is replaced whenever it dies or takes too long."""

    def __init__(self, device: str, limit: int, timeout: float) -> None:
        self.device, self.limit, self.timeout = device, limit, timeout
        self.process: Any = None

    def start(self) -> None:
        """Start the process and wait until it has imported everything."""
        descriptor, self.log = tempfile.mkstemp(prefix="coverage-")
        os.close(descriptor)
        self.connection, child = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=worker, args=(child, self.device, self.limit, self.log), daemon=True)
        self.process.start()
        child.close()
        if not self.connection.poll(300):
            raise RuntimeError("a worker did not start within 300 s")
        self.connection.recv()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            os.unlink(self.log)
            self.process = None

    def run(self, task: Task) -> Result:
        """Return the task's result, whatever the process does."""
        if self.process is None:
            self.start()
        try:
            self.connection.send(task)
            if self.connection.poll(self.timeout):
                result: Result = self.connection.recv()
                return result
            self.stop()
            return {"kind": "hang", "why": f"no result within {self.timeout:.0f} s"}
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            text = [x for x in Path(self.log).read_text(errors="replace").splitlines() if x.strip()]
            self.stop()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return {"kind": "crash", "why": f"{how} {text[0] if text else ''}".strip()}


def list_tasks(modes: Sequence[str], dtypes: Sequence[str], ops: Sequence[str]) -> list[Task]:
    """Return every (mode, op, variant, dtype) that the databases list for the CPU; no dtypes: each mode's own."""
    import torch

    tasks: list[Task] = []
    for mode in modes:
        for entry in MODES[mode].entries():
            name, variant = key_of(entry)
            if not ops or name in ops:
                listed = dtypes_of(mode, entry)
                wanted = dtypes or MODES[mode].dtypes
                tasks += [(mode, name, variant, d) for d in wanted if getattr(torch, d) in listed]
    return tasks


def run_all(
    tasks: list[Task], args: argparse.Namespace, console: Console, record: Callable[[Task, Result], None]
) -> None:
    """Run the tasks in `args.jobs` workers and hand each result to `record`."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock, counts = threading.Lock(), Counter[str]()
    columns = *Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(tasks))

        def serve() -> None:
            process = Worker(args.device, args.limit_samples, args.timeout)
            try:
                while True:
                    try:
                        task = waiting.get_nowait()
                    except queue.Empty:
                        return
                    result = process.run(task)
                    with lock:
                        record(task, result)
                        counts[result["kind"]] += 1
                        text = " ".join(f"{k} {counts[k]}" for k in KINDS if counts[k])
                        progress.update(bar, advance=1, description=text)
                        if not console.is_terminal and counts.total() % 100 == 0:
                            console.print(f"{counts.total()}/{len(tasks)}: {text}")
            finally:
                process.stop()

        threads = [threading.Thread(target=serve) for _ in range(args.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def title(name: str, variant: str) -> str:
    """Return an op's name as shown."""
    return f"{name} ({variant})" if variant else name


def totals(results: dict[Task, Result], labels: Sequence[str]) -> list[list[str]]:
    """Return a row for each label, a mode or a dtype, and one for all."""
    rows = []
    for label in [*labels, "all"]:
        count = Counter(r["kind"] for t, r in results.items() if label in (t[0], t[3], "all"))
        counted = count.total() - count["none"]
        share = f"{count['native'] / counted:.1%}" if counted else "-"
        rows.append([label, str(counted), *(str(count[k]) for k in KINDS[1:]), share])
    return rows


def summary(results: dict[Task, Result], what: str, labels: Sequence[str]) -> list[str]:
    """Return the table of totals."""
    head = [what, "ops", *KINDS[1:], "share native"]
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(row)} |" for row in totals(results, labels)),
        "",
        *(f"- **{kind}**: {meaning}" for kind, meaning in MEANING.items()),
    ]


def remainder(results: dict[Task, Result]) -> list[str]:
    """Return a table for each kind but native: which ops and why."""
    lines = []
    for kind in reversed(KINDS[2:]):
        reasons: dict[tuple[str, str], list[str]] = {}
        for (_, name, variant, dtype), r in sorted(results.items()):
            if r["kind"] == kind:
                reasons.setdefault((title(name, variant), r["why"][:200].replace("|", "\\|")), []).append(dtype)
        if reasons:
            why = "runs on the CPU" if kind == "fallback" else "why"
            lines += ["", f"### {kind}", "", f"| op | dtypes | {why} |", "|---|---|---|"]
            lines += [f"| {op} | {' '.join(d)} | {why} |" for (op, why), d in reasons.items()]
    return lines


def reasons(results: dict[Task, Result]) -> list[str]:
    """Return a list of why what is not native is so."""
    names = sorted({t[1] for t, r in results.items() if r["kind"] not in ("native", "none")} & REASONS.keys())
    return ["", "## Reasons", "", *(f"- **{name}**: {REASONS[name]}" for name in names)] if names else []


def report(results: dict[Task, Result], dtypes: Sequence[str], args: argparse.Namespace) -> str:
    """Return docs/coverage.md: every op, forward."""
    tolerances = ", ".join(f"{name} {rtol:g}/{atol:g}" for name, (rtol, atol) in TOLERANCES.items())
    lines = [
        PREAMBLE.format(samples=args.limit_samples, tolerances=tolerances),
        *summary(results, "dtype", dtypes),
        "",
        "## What is not native",
        *remainder(results),
        *reasons(results),
        "",
        "## Every op",
        "",
        f"| op | {' | '.join(dtypes)} |",
        "|" + "---|" * (len(dtypes) + 1),
    ]
    for name, variant in sorted({(t[1], t[2]) for t in results}):
        kinds = [results.get(("forward", name, variant, d), {"kind": ""})["kind"] for d in dtypes]
        lines.append(
            f"| {title(name, variant)} | {' | '.join(k if k == 'native' else f'**{k}**' * bool(k) for k in kinds)} |"
        )
    return "\n".join(lines) + "\n"


def report_modes(results: dict[Task, Result], modes: Sequence[str], args: argparse.Namespace) -> str:
    """Return docs/conformance.md: what fails, by mode."""
    lines = [MODES_PREAMBLE.format(samples=args.limit_samples)]
    for mode in modes:
        dtypes = sorted({t[3] for t in results if t[0] == mode})
        lines.append(f"- **{mode}** ({' '.join(dtypes)}): {MODES[mode].run.__doc__}")
    lines += ["", *summary(results, "mode", modes)]
    for mode in modes:
        rest = remainder({t: r for t, r in results.items() if t[0] == mode})
        lines += ["", f"## {mode}", *rest] if rest else []
    lines += reasons(results)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, print the totals, write the document."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    p.add_argument("--modes", type=split, default=["forward"], help=f"of {','.join(MODES)} (default: forward)")
    same = f"the same as --modes {','.join(COMPILED)}"
    p.add_argument("--compiled", action="store_const", dest="modes", const=COMPILED, help=same)
    p.add_argument("--dtypes", type=split, default=[], help="(default: those of the mode)")
    p.add_argument("--ops", type=split, default=[], help="such as add,nn.functional.relu (default: all)")
    p.add_argument("--limit-samples", type=int, default=3, help="samples of an op and dtype (default: %(default)s)")
    p.add_argument("--jobs", type=int, default=2, help="worker processes (default: %(default)s)")
    p.add_argument("--timeout", type=float, default=60, help="seconds for an op and dtype (default: %(default)s)")
    p.add_argument("--resume", action="store_true", help="keep the results of earlier runs, run only what is missing")
    p.add_argument("--results", type=Path, default=ROOT / "out" / "coverage.jsonl", help="raw results, a line each")
    p.add_argument("--report", type=Path, help="the document (default: in docs/, unless --ops is given)")
    p.add_argument("--device", default="tpu")
    args = p.parse_args()

    os.environ.setdefault("TORCH_TPU_EAGER_MODE", "fused")  # one program a sample: fewer compilations
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console, results = Console(), {}
    if not console.is_terminal:
        console = Console(width=120)
    if args.resume and args.results.exists():
        for line in args.results.read_text().splitlines():
            task, result = json.loads(line)
            results[tuple(task)] = result
    args.results.parent.mkdir(parents=True, exist_ok=True)
    tasks = list_tasks(args.modes, args.dtypes, args.ops)
    with args.results.open("a" if args.resume else "w") as file:

        def record(task: Task, result: Result) -> None:
            results[task] = result
            file.write(json.dumps([task, result]) + "\n")
            file.flush()

        run_all([t for t in tasks if t not in results], args, console, record)

    # With --resume earlier runs may have had other modes and dtypes: all of it is reported.
    shown = results
    modes = [mode for mode in MODES if any(t[0] == mode for t in shown)]
    if args.ops or console.is_terminal:
        for (mode, name, variant, dtype), r in shown.items():
            if r["kind"] not in ("native", "none"):
                text = f"{mode} {title(name, variant)} {dtype}: {r['kind']}: {r['why'][:300]}  {r.get('sample', '')}"
                console.print(text, highlight=False, markup=False, soft_wrap=True)
    forward = modes == ["forward"]
    dtypes = args.dtypes or list(MODES["forward"].dtypes)
    labels = dtypes if forward else modes
    table = Table("dtype" if forward else "mode", "ops", *KINDS[1:], "share native")
    for row in totals(shown, labels):
        table.add_row(*row)
    console.print(table)
    name = "coverage" if forward else "compiled" if set(modes) <= set(COMPILED) else "conformance"
    path = args.report or (None if args.ops else ROOT / "docs" / f"{name}.md")
    if path:
        path.write_text(report(shown, dtypes, args) if forward else report_modes(shown, modes, args))
        console.print(f"written: {path}")


if __name__ == "__main__":
    main()

"""Run PyTorch's own OpInfo samples on the device against the CPU, and write what works to docs/coverage.md.

    python -m benchmarks.coverage                                   # every op, five dtypes
    python -m benchmarks.coverage --dtypes float32 --ops add,sort   # a part of it, printed only

Every (op, dtype) runs in a worker process under a time limit. A worker that dies or hangs is replaced and the op is
marked; --resume goes on after an interruption.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import queue
import signal
import tempfile
import threading
import unittest.mock
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

ROOT = Path(__file__).parents[1]
DTYPES = ("float32", "int64", "bool", "bfloat16", "complex64")
# From best to worst; an op is as good as its worst sample. "none": the CPU itself runs no sample.
KINDS = ("none", "native", "fallback", "unsupported", "wrong", "hang", "crash")
MEANING = {
    "native": "every sample ran on the device and gave the CPU's result",
    "fallback": "right, but at least one op ran on the CPU; which ones stands with it",
    "unsupported": "raised an error that the CPU does not raise",
    "wrong": "another result than the CPU's",
    "hang": "no result within the time limit",
    "crash": "the process died",
    "none": "OpInfo lists the dtype, but the CPU runs none of the samples; not counted",
}
# rtol, atol: torch.testing's defaults, with room for XLA's own polynomials and order of sums in float32
TOLERANCES = {"float32": (1e-5, 1e-5), "complex64": (1e-5, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float64": (1e-7, 1e-7)}
WIDER = {"bfloat16": "float32", "float32": "float64", "complex64": "complex128"}
# Uninitialised memory: only shape and dtype mean something.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
# Decompositions whose vectors are unique up to a sign (or a phase): absolute values are compared.
UP_TO_A_PHASE = ("svd", "eig", "qr", "lowrank", "lobpcg", "householder")
PREAMBLE = """\
# Op coverage

Written by `python -m benchmarks.coverage`; do not edit. PyTorch's OpInfo samples (`op_db`, the dtypes that it lists for
the CPU, up to {samples} of the smallest samples of each op) run on the device and on PyTorch's CPU, forward only.

Relative/absolute tolerances: {tolerances}; integers and bools
are equal. Ops whose result depends on the seed are compared by shape, dtype, finiteness and mean; decompositions that
are unique up to a phase by absolute values. A result outside the tolerances is right if it lies within four units of
its dtype's precision of what the CPU computes in the next wider dtype.
"""
# In evaluation the CPU returns empty statistics, PyTorch's other devices the running ones: the first result counts.
FIRST_RESULT_ONLY = {"native_batch_norm", "_native_batch_norm_legit"}
Task = tuple[str, str, str]  # op, variant, dtype
Result = dict[str, Any]


# ---- in the worker -----------------------------------------------------------------------------------------------


def choose_samples(samples: Iterable[Any], limit: int) -> list[Any]:
    """Return up to `limit` of the smallest samples, of different kinds where there are any."""
    import torch
    from torch.utils._pytree import tree_flatten

    kinds: dict[Any, tuple[int, Any]] = {}
    for sample in itertools.islice(samples, 100):
        leaves, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        size = sum(x.numel() for x in tensors)
        kind = (tuple(x.dim() for x in tensors), size == 0, str([x for x in leaves if not isinstance(x, torch.Tensor)]))
        if kind not in kinds or size < kinds[kind][0]:
            kinds[kind] = (size, sample)
    # Empty tensors last: they show the least.
    ordered = sorted(kinds.values(), key=lambda pair: (pair[0] == 0, pair[0]))
    step = max(1, len(ordered) // (2 * limit))  # from the smaller half, spread over it
    return [sample for _, sample in ordered[::step][:limit]]


def compare(actual: Any, expected: Any, device: str, tolerate: Callable[[Any, Any], None]) -> None:
    """Raise AssertionError where two results (nested, of tensors and Python values) differ."""
    import torch
    from torch.utils._pytree import tree_flatten

    got, want = tree_flatten(actual)[0], tree_flatten(expected)[0]
    assert len(got) == len(want), f"{len(got)} results instead of {len(want)}"
    for a, e in zip(got, want):
        assert isinstance(a, torch.Tensor) == isinstance(e, torch.Tensor), f"a {type(a)} instead of a {type(e)}"
        if isinstance(e, torch.Tensor):
            assert a.device.type == device, f"the result is on {a.device}"
            assert a.dtype == e.dtype, f"dtype {a.dtype} instead of {e.dtype}"
            assert a.shape == e.shape, f"shape {tuple(a.shape)} instead of {tuple(e.shape)}"
            tolerate(a.detach().cpu(), e.detach())
        else:
            assert a == e or a != a, f"{a} instead of {e}"


def values_close(op: str) -> Callable[[Any, Any], None]:
    """Return a comparison of values within the tolerances."""
    import torch

    def check(a: Any, e: Any) -> None:
        if any(word in op for word in UP_TO_A_PHASE):
            a, e = a.abs(), e.abs()
        rtol, atol = TOLERANCES.get(str(e.dtype).removeprefix("torch."), (None, None))
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)

    return check


def near_wider_result(actual: Any, compute: Callable[[], Any]) -> bool:
    """Whether floats are as near to the CPU's result in the next wider dtype as their own dtype can be.

    The CPU's own result in the narrow dtype need not be: some of its kernels round every partial sum.
    """
    import torch
    from torch.utils._pytree import tree_flatten

    try:
        got, want = tree_flatten(actual)[0], tree_flatten(compute())[0]
        for a, e in zip(got, want):
            if isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex()):
                finite = e[e.isfinite()]
                rtol = 4 * torch.finfo(a.dtype).eps
                atol = rtol * finite.abs().max().item() if finite.numel() else 0.0
                torch.testing.assert_close(a.cpu().to(e.dtype), e, rtol=rtol, atol=atol, equal_nan=True)
            elif isinstance(a, torch.Tensor):
                torch.testing.assert_close(a.cpu(), e)
    except (AssertionError, RuntimeError, TypeError):
        return False
    return len(got) == len(want)


def same_distribution(a: Any, e: Any) -> None:
    """Compare two draws: finite where the CPU's is, and means that could be of one distribution."""
    import torch

    if not a.numel() or a.dtype.is_complex:
        return
    a, e = a.double(), e.double()
    assert bool(a.isfinite().all()) or not bool(e.isfinite().all()), "not finite"
    if a.numel() >= 30 and bool(e.isfinite().all()):
        error = ((a.var() + e.var()) / a.numel()).sqrt()
        assert torch.abs(a.mean() - e.mean()) <= 6 * error + 1e-6, f"mean {a.mean():.3g} instead of {e.mean():.3g}"


def run_sample(op: Any, sample: Any, device: str) -> Result | None:
    """Run one sample on both devices; None if the CPU cannot run it."""
    import torch
    from torch.utils._pytree import tree_map

    set_seed = torch.manual_seed

    def call(target: str, seed: int, wider: bool = False) -> Any:
        def move(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                dtype = str(x.dtype).removeprefix("torch.")
                return x.detach().clone().to(target, getattr(torch, WIDER.get(dtype, dtype) if wider else dtype))
            return target if x in ("cpu", torch.device("cpu")) else x

        input_, args, kwargs = tree_map(move, (sample.input, sample.args, sample.kwargs))
        set_seed(seed)
        # OpInfo wraps random ops in functions that set a seed of their own, which would hide that the seed matters.
        with unittest.mock.patch.object(torch, "manual_seed", side_effect=lambda _: set_seed(seed)):
            result = op(input_, *args, **kwargs)
        return result[0] if op.name in FIRST_RESULT_ONLY else result

    try:
        expected, *others = [call("cpu", seed) for seed in range(4)]
    except Exception:
        return None

    def exact(a: Any, e: Any) -> None:
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)

    tolerate = values_close(op.name)
    try:
        for other in others:
            compare(other, expected, "cpu", exact)
    except AssertionError:
        tolerate = same_distribution  # the seed matters: a random op
    if op.name in UNINITIALISED:
        tolerate = lambda a, e: None

    before = fallbacks(device)
    try:
        actual = call(device, 0)
    except Exception as error:
        return {"kind": "unsupported", "why": explain(error)}
    fell = sorted(k for k, v in fallbacks(device).items() if v != before.get(k, 0))
    try:
        compare(actual, expected, device, tolerate)
    except AssertionError as error:
        if not near_wider_result(actual, lambda: call("cpu", 0, wider=True)):
            return {"kind": "wrong", "why": " ".join(str(error).split())}
    except Exception as error:
        return {"kind": "unsupported", "why": explain(error)}
    return {"kind": "fallback", "why": ", ".join(fell)} if fell else {"kind": "native", "why": ""}


def explain(error: Exception) -> str:
    """Return an exception's type and text in one line, without the Python frames that pybind11 adds."""
    return " ".join(f"{type(error).__name__}: {str(error).split('At:')[0]}".split())


def fallbacks(device: str) -> dict[str, int]:
    """Return how often each op has run on the CPU instead."""
    import torch

    metrics = torch.tpu.metrics() if device == "tpu" else {}
    return {k.removeprefix("cpu_fallback."): v for k, v in metrics.items() if k.startswith("cpu_fallback.")}


def describe(sample: Any) -> str:
    """Return a sample's shapes and arguments, for whoever looks into it."""
    import torch
    from torch.utils._pytree import tree_map

    show = lambda x: f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else x
    arguments = tree_map(show, (sample.input, *sample.args))
    return f"{arguments} {tree_map(show, sample.kwargs) or ''}".strip()


def worker(connection: Connection, device: str, limit: int, log: str) -> None:
    """Answer tasks with results until the connection closes."""
    stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stderr, 2)
    warnings.simplefilter("ignore")
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)
    if device == "tpu":
        torch.tpu.config.cpu_fallback = "silent"
    ops = {(op.name, op.variant_test_name): op for op in op_db}
    connection.send("ready")
    while True:
        try:
            name, variant, dtype = connection.recv()
        except EOFError:
            return
        os.ftruncate(2, 0)
        op, result = ops[name, variant], {"kind": "none", "why": ""}
        try:
            samples = choose_samples(op.sample_inputs("cpu", getattr(torch, dtype)), limit)
        except Exception as error:
            samples, result["why"] = [], f"samples: {type(error).__name__}"
        for sample in samples:
            one = run_sample(op, sample, device)
            if one and KINDS.index(one["kind"]) > KINDS.index(result["kind"]):
                result = one | ({"sample": describe(sample)[:300]} if one["kind"] in ("unsupported", "wrong") else {})
        connection.send(result)


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


def list_tasks(dtypes: list[str], ops: list[str]) -> list[Task]:
    """Return every (op, variant, dtype) that OpInfo lists for the CPU."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    tasks = []
    for op in op_db:
        if not ops or op.name in ops:
            supported = op.supported_dtypes("cpu")
            tasks += [(op.name, op.variant_test_name, d) for d in dtypes if getattr(torch, d) in supported]
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


def totals(results: dict[Task, Result], dtypes: list[str]) -> list[list[str]]:
    """Return a row for each dtype and one for all."""
    rows = []
    for dtype in [*dtypes, "all"]:
        count = Counter(r["kind"] for t, r in results.items() if dtype in (t[2], "all"))
        counted = count.total() - count["none"]
        share = f"{count['native'] / counted:.1%}" if counted else "-"
        rows.append([dtype, str(counted), *(str(count[k]) for k in KINDS[1:]), share])
    return rows


def report(results: dict[Task, Result], dtypes: list[str], args: argparse.Namespace) -> str:
    """Return the whole document."""
    tolerances = ", ".join(f"{name} {rtol:g}/{atol:g}" for name, (rtol, atol) in TOLERANCES.items())
    head = ["dtype", "ops", *KINDS[1:], "share native"]
    lines = [
        PREAMBLE.format(samples=args.limit_samples, tolerances=tolerances),
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(row)} |" for row in totals(results, dtypes)),
        "",
        *(f"- **{kind}**: {meaning}" for kind, meaning in MEANING.items()),
        "",
        "## Every op",
        "",
        f"| op | {' | '.join(dtypes)} |",
        "|" + "---|" * (len(dtypes) + 1),
    ]
    for name, variant in sorted({(t[0], t[1]) for t in results}):
        kinds = [results.get((name, variant, d), {"kind": ""})["kind"] for d in dtypes]
        lines.append(
            f"| {title(name, variant)} | {' | '.join(k if k == 'native' else f'**{k}**' * bool(k) for k in kinds)} |"
        )
    for kind in reversed(KINDS[2:]):
        reasons: dict[tuple[str, str], list[str]] = {}
        for (name, variant, dtype), r in sorted(results.items()):
            if r["kind"] == kind:
                reasons.setdefault((title(name, variant), r["why"][:200].replace("|", "\\|")), []).append(dtype)
        if reasons:
            lines += [
                "",
                f"## {kind}",
                "",
                "| op | dtypes | " + ("runs on the CPU" if kind == "fallback" else "why") + " |",
            ]
            lines += ["|---|---|---|", *(f"| {op} | {' '.join(d)} | {why} |" for (op, why), d in reasons.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, print the totals, write the document."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: text.split(",")
    p.add_argument("--dtypes", type=split, default=list(DTYPES), help=f"(default: {','.join(DTYPES)})")
    p.add_argument(
        "--ops", type=split, default=[], help="names of op_db, such as add,nn.functional.relu (default: all)"
    )
    p.add_argument("--limit-samples", type=int, default=3, help="samples of an op and dtype (default: %(default)s)")
    p.add_argument("--jobs", type=int, default=2, help="worker processes (default: %(default)s)")
    p.add_argument("--timeout", type=float, default=60, help="seconds for an op and dtype (default: %(default)s)")
    p.add_argument("--resume", action="store_true", help="keep the results of the last run, run only what is missing")
    p.add_argument("--results", type=Path, default=ROOT / "out" / "coverage.jsonl", help="raw results, a line each")
    p.add_argument("--report", type=Path, help="the document (default: docs/coverage.md, unless --ops is given)")
    p.add_argument("--device", default="tpu")
    args = p.parse_args()

    os.environ.setdefault("TORCH_TPU_EAGER_MODE", "strict")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console, results = Console(), {}
    if not console.is_terminal:
        console = Console(width=120)
    if args.resume and args.results.exists():
        for line in args.results.read_text().splitlines():
            task, result = json.loads(line)
            results[tuple(task)] = result
    args.results.parent.mkdir(parents=True, exist_ok=True)
    tasks = list_tasks(args.dtypes, args.ops)
    with args.results.open("a" if args.resume else "w") as file:

        def record(task: Task, result: Result) -> None:
            results[task] = result
            file.write(json.dumps([task, result]) + "\n")
            file.flush()

        run_all([t for t in tasks if t not in results], args, console, record)

    shown = {t: results[t] for t in tasks}
    if args.ops or console.is_terminal:
        for (name, variant, dtype), r in shown.items():
            if r["kind"] not in ("native", "none"):
                text = f"{title(name, variant)} {dtype}: {r['kind']}: {r['why'][:300]}  {r.get('sample', '')}"
                console.print(text, highlight=False, markup=False, soft_wrap=True)
    table = Table("dtype", "ops", *KINDS[1:], "share native")
    for row in totals(shown, args.dtypes):
        table.add_row(*row)
    console.print(table)
    path = args.report or (None if args.ops else ROOT / "docs" / "coverage.md")
    if path:
        path.write_text(report(shown, args.dtypes, args))
        console.print(f"written: {path}")


if __name__ == "__main__":
    main()

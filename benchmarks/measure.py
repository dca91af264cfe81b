"""One measurement: one adapter, one workload, one process. Started by `benchmarks.run`; the result goes to a file."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from .adapters import ADAPTERS
from .workloads import WORKLOADS

QUIET = 0.10  # a measurement counts when other processes used less than this share of the machine


class OthersLoad:
    """The share of the machine that processes of other sessions used inside a `with` block."""

    def __enter__(self) -> OthersLoad:
        self.begin = self.snapshot()
        return self

    def __exit__(self, *_: object) -> None:
        wall, busy, own = (b - a for a, b in zip(self.begin, self.snapshot()))
        self.share = max(0.0, busy - own) / max(wall, 1e-9) / (os.cpu_count() or 1)

    @staticmethod
    def snapshot() -> tuple[float, float, float]:
        """Return the time, the machine's busy CPU seconds and this session's."""
        tick, own = os.sysconf("SC_CLK_TCK"), 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
            except OSError:  # it has ended
                continue
            if int(fields[3]) == os.getsid(0):
                own += sum(map(int, fields[11:15]))
        with open("/proc/stat") as file:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
        return time.perf_counter(), (user + nice + system + irq + softirq) / tick, own / tick


def peak_rss() -> float:
    """Return the largest resident size of this process so far, in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def as_numbers(value: Any) -> list[float]:
    """Return the result of an iteration, to compare adapters by: a loss, or tokens."""
    return value if isinstance(value, list) else [float(value)]


def measure(adapter_name: str, workload: str, budget: float, born: float) -> dict[str, Any]:
    """Run a workload for about `budget` seconds after its first iteration and return what was found."""
    adapter = ADAPTERS[adapter_name]
    clock = time.perf_counter
    with OthersLoad() as first_load:
        adapter.start()
        imported = time.time() - born
        step = adapter.build(workload)
        begin = clock()
        value = step()
        adapter.wait()
        first, total = clock() - begin, time.time() - born
    chain = workload.startswith("chain")
    result: dict[str, Any] = {"version": adapter.version(), "first": first, "others": first_load.share}
    result["parts"] = adapter.parts()
    result["compiles_first"] = adapter.compiles()
    result["values"] = [] if chain else as_numbers(value)
    if workload.startswith("start"):
        result |= {"median": total, "import": imported}
    else:
        for _ in range(4):
            value = step()
            adapter.wait()
            result["values"] += [] if chain else as_numbers(value)
        result |= steady(step, adapter.wait, budget)
        if not workload.startswith("decode"):
            count = max(3, int(0.5 / result["median"]))
            for _ in range(2):  # a mode that cuts a stream without waits elsewhere compiles once more, the first time
                begin = clock()
                for _ in range(count):
                    step()
                adapter.wait()
                result["queued"] = (clock() - begin) / count
    return result | {"compiles": adapter.compiles(), "rss": peak_rss()}


def steady(step: Any, wait: Any, budget: float) -> dict[str, Any]:
    """Return the median iteration, of quiet blocks if there are any, and the load of others during those."""
    blocks: list[tuple[float, list[float]]] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < budget:
        with OthersLoad() as load:
            times, start = [], time.perf_counter()
            while not times or time.perf_counter() - start < 0.3:
                before = time.perf_counter()
                step()
                wait()
                times.append(time.perf_counter() - before)
        blocks.append((load.share, times))
    used = [b for b in blocks if b[0] <= QUIET] or blocks
    median = statistics.median(t for _, times in used for t in times)
    return {"median": median, "others": statistics.median(share for share, _ in used)}


def main() -> None:
    """Measure and write the result."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--adapter", required=True, choices=ADAPTERS)
    p.add_argument("--workload", required=True, choices=WORKLOADS)
    p.add_argument("--budget", type=float, required=True)
    p.add_argument("--born", type=float, required=True, help="when the process was started, in seconds since the epoch")
    p.add_argument("--out", type=Path, required=True)
    args = p.parse_args()
    args.out.write_text(json.dumps(measure(args.adapter, args.workload, args.budget, args.born)))


if __name__ == "__main__":
    main()

"""What the installed package adds to `import torch`: time, memory, and what it prints.

python -m benchmarks.import_cost
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass

PROGRAM = """
import json, sys, time
begin = time.process_time()
import torch
seconds = time.process_time() - begin
rss = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(json.dumps([seconds * 1e3, rss / 1024, hasattr(torch, "tpu"), sorted(sys.modules)]))
"""


@dataclass
class Cost:
    """The difference that autoloading makes."""

    milliseconds: float
    mebibytes: float
    modules: set[str]
    stderr: str


def import_torch(autoload: bool) -> tuple[float, float, set[str], str]:
    """Import torch in a fresh process; return CPU milliseconds, MiB resident, the modules that are there then, and what
    it wrote to stderr."""
    env = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    process = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    milliseconds, mebibytes, loaded, modules = json.loads(process.stdout)
    if loaded != autoload:
        raise RuntimeError("torch_tpu is not installed" if autoload else "torch_tpu was loaded in spite of the switch")
    return milliseconds, mebibytes, set(modules), process.stderr


def import_cost(rounds: int = 7) -> Cost:
    """Measure both ways in turn, in CPU time; the quickest of each counts: other processes only add."""
    import_torch(True)  # fills the file cache
    runs = [(import_torch(True), import_torch(False)) for _ in range(rounds)]
    with_, without = zip(*runs)
    return Cost(
        min(r[0] for r in with_) - min(r[0] for r in without),
        statistics.median(r[1] for r in with_) - statistics.median(r[1] for r in without),
        with_[0][2] - without[0][2],
        with_[0][3],
    )


if __name__ == "__main__":
    cost = import_cost()
    print(f"torch_tpu adds {cost.milliseconds:.0f} ms and {cost.mebibytes:.1f} MiB to import torch (limits: 50, 15)")
    print(f"stderr: {cost.stderr or 'nothing'}")

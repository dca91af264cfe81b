"""What the first call of a compiled training step consists of, beside JAX's.

    python -m benchmarks.first_call --workload gpt

Each adapter runs in a process of its own with an empty compile cache, then once more with the cache that it left. The
first call is everything up to the end of the first step; of that Dynamo traces, AOTAutograd differentiates and cuts,
this package lowers to StableHLO, XLA compiles; the rest is data, eager ops, loading from the cache and the run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from rich.console import Console
from rich.table import Table

from .run import launch
from .workloads import WORKLOADS

PARTS = ("Dynamo", "AOTAutograd", "lowering", "XLA")


def main() -> None:
    """Measure and print."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workload", choices=WORKLOADS, default="gpt")
    p.add_argument("--adapters", type=lambda text: text.split(","), default=["jax", "compiled", "whole"])
    p.add_argument("--timeout", type=float, default=300, help="seconds a process may take (default: %(default)s)")
    args = p.parse_args()
    args.threads, args.budget, args.quiet_wait, args.python = os.cpu_count(), 0.1, 10.0, {}
    head = ("adapter", "cache", "first, s", "x jax", *PARTS, "rest", "others")
    table = Table(*head, title=WORKLOADS[args.workload].title)
    jax: dict[str, float] = {}
    for adapter in args.adapters:
        with tempfile.TemporaryDirectory() as cache:
            for filled in ("empty", "filled"):
                r = launch(adapter, args.workload, cache, args)
                if "error" in r:
                    sys.exit(f"{adapter}: {r['error']}")
                first, parts = r["first"], [r["parts"].get(name, 0.0) for name in PARTS]
                if adapter == "jax":
                    jax[filled] = first
                ratio = f"{first / jax[filled]:.2f}" if filled in jax else "-"
                shown = [f"{x:.2f}" for x in (*parts, first - sum(parts))] if r["parts"] else ["-"] * 5
                table.add_row(adapter, filled, f"{first:.2f}", ratio, *shown, f"{r['others']:.0%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

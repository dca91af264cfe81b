"""What fusing a GPT training step is worth on a TPU, as the TPU compiler estimates it: no chip takes part.

    python -m benchmarks.tpu_cost                        # v5e and v6e
    python -m benchmarks.tpu_cost --topologies v5e:2x2 --layers 2

The step is compiled once as the one program of fused mode and once as the programs of strict mode, one an op. Cycles
are the sum of `estimated_cycles` in the optimized HLO (the compiler knows none for sorts, some scatters and custom
calls: counted apart); bytes are its "bytes accessed". The clocks that turn cycles into time are assumed. Launches
come on top in strict mode.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import torch_programs, workloads
from torch_tpu import dryrun
from torch_tpu.tpu.explanation import Flush

CLOCKS = {"v5e": 1.5e9, "v6e": 1.75e9}
UNKNOWN = 2**63 - 1
# Strings of the HloModuleProto are JSON as they stand: the one field needs no parser of the whole message.
_CYCLES = re.compile(rb'"estimated_cycles":"(\d+)"')


@dataclass(frozen=True)
class Cost:
    """An estimate for a number of programs."""

    programs: int = 0
    cycles: int = 0
    unknown: int = 0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.programs + other.programs,
            self.cycles + other.cycles,
            self.unknown + other.unknown,
            self.bytes + other.bytes,
        )

    def times(self, count: int) -> Cost:
        """The estimate for as many runs."""
        return Cost(self.programs * count, self.cycles * count, self.unknown * count, self.bytes * count)


def cost_of(result: dryrun.Result) -> Cost:
    """Read the estimates out of an optimized program."""
    cycles = [int(digits) for digits in _CYCLES.findall(result.program)]
    known = [c for c in cycles if c != UNKNOWN]
    return Cost(1, sum(known), len(cycles) - len(known), float(result.cost.get("bytes accessed", 0)))


def gpt_step(layers: int) -> Callable[[], None]:
    """A training step of the benchmark's GPT."""
    workloads.GPT = type(workloads.GPT)(**{**vars(workloads.GPT), "layers": layers})
    torch_programs.GPT = workloads.GPT
    model = torch_programs.Gpt().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(workloads.GPT.vocab, (workloads.GPT.batch, workloads.GPT.seq + 1)).to("tpu")

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        torch.tpu.synchronize()

    return step


def programs_of(step: Callable[[], None], mode: str) -> Counter[int]:
    """How often a settled step hands over each program, by key."""
    with torch.tpu.set_eager_mode(mode):
        step()
        step()
        before = len(torch.tpu.explain().flushes)
        step()
        return Counter(flush.key for flush in torch.tpu.explain().flushes[before:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", nargs="+", default=["v5e:2x2", "v6e:2x2"])
    parser.add_argument("--layers", type=int, default=workloads.GPT.layers)
    args = parser.parse_args()
    console = Console()
    step = gpt_step(args.layers)
    counts = {mode: programs_of(step, mode) for mode in ("fused", "strict")}
    flushes: dict[int, Flush] = {flush.key: flush for flush in torch.tpu.explain().flushes}
    table = Table("slice", "mode", "programs", "cycles", "est. us", "MB accessed", "unknown", title="GPT training step")
    for topology in args.topologies:
        costs = {}
        for mode, keys in counts.items():
            work = track(keys.items(), f"{topology} {mode}", console=console, disable=not console.is_terminal)
            compiled = (
                cost_of(dryrun.compile_for(topology, flushes[key].stablehlo())).times(count) for key, count in work
            )
            costs[mode] = sum(compiled, Cost())
        clock = CLOCKS[topology.partition(":")[0]]
        for mode, cost in costs.items():
            us = cost.cycles / clock * 1e6
            mb = cost.bytes / 1e6
            row = (f"{cost.programs}", f"{cost.cycles:,}", f"{us:,.0f}", f"{mb:,.1f}", f"{cost.unknown}")
            table.add_row(topology, mode, *row)
        fused, strict = costs["fused"], costs["strict"]
        ratios = ("", f"{strict.cycles / fused.cycles:.2f}x", "", f"{strict.bytes / fused.bytes:.2f}x", "")
        table.add_row(topology, "strict / fused", *ratios, end_section=True)
    console.print(table)


if __name__ == "__main__":
    main()

"""How long a call of a compiled graph takes from Dynamo's guards to the dispatch queue, and what of it is whose.

    python -m benchmarks.call_path --parameters 100

Prints medians in microseconds for each mode: the whole call; what it takes longer than with the stance
`skip_guard_eval_unsafe`, which is the guards; what is left of it with a backend that does nothing, which is Dynamo's
frame; and the rest, which is this package's way from the guards to the queue.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Scales(nn.Module):
    """Many small parameters and hardly any work."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(8)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        return x


def median(run: Callable[[Tensor], Any], x: Tensor, rounds: int) -> float:
    """Microseconds a call, the queue empty before each."""
    for _ in range(20):
        run(x)
    took = []
    for _ in range(rounds):
        torch.tpu.synchronize()
        started = time.perf_counter()
        run(x)
        took.append(time.perf_counter() - started)
    return sorted(took)[rounds // 2] * 1e6


def both(run: Callable[[Tensor], Any], x: Tensor, rounds: int) -> tuple[float, float]:
    """Microseconds a call with its guards and without."""
    guarded = median(run, x, rounds)
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        return guarded, median(run, x, rounds)


def main() -> None:
    """Measure and print."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--parameters", type=int, default=100)
    p.add_argument("--rounds", type=int, default=2000)
    args = p.parse_args()
    model, x = Scales(args.parameters).to("tpu"), torch.ones(8, device="tpu")
    nothing = lambda graph, inputs: lambda *args: (args[0],)
    with torch.no_grad():
        dynamo, unguarded = both(torch.compile(model, backend=nothing), x, args.rounds)
        for mode in ("default", "reduce-overhead"):
            torch._dynamo.reset()
            whole, passed = both(torch.compile(model, backend="tpu", mode=mode), x, args.rounds)
            guards, ours = whole - passed, passed - unguarded
            parts = f"guards {guards:.1f}, Dynamo's frame {unguarded:.1f}, to the queue {ours:.1f}"
            print(f"{mode}: {whole:.1f} us, of which {parts}; a backend that does nothing: {dynamo:.1f} us")


if __name__ == "__main__":
    main()

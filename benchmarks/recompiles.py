"""How many programs are compiled while sizes change: decoding with a growing cache, training over random lengths.

    python -m benchmarks.recompiles                # both, as a table of programs over steps
    python -m benchmarks.recompiles --training     # one of them
    python -m benchmarks.recompiles --eager        # the same without torch.compile, in fused mode

A compiler for fixed shapes compiles at each new size: the last column, which counts distinct sizes, is its curve.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from . import torch_programs, workloads
from .workloads import DECODE, GPT

BAR = 40  # characters of the longest bar


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]  # torch.compile, or nothing


def decoding(wrap: Wrap) -> Iterator[tuple[int, int, float]]:
    """Step, length of the cache and seconds of each token of one decoding run."""
    gpt = torch_programs.load("gpt", "tpu").eval()
    run = wrap(gpt.decode_cat)
    token, past = torch.zeros(1, DECODE.prompt, dtype=torch.int64, device="tpu"), None
    for step in range(DECODE.new):
        started = time.perf_counter()
        with torch.no_grad():
            token, past = run(token, past)
        int(token)
        yield step, DECODE.prompt + step, time.perf_counter() - started


def training(wrap: Wrap) -> Iterator[tuple[int, int, float]]:
    """Step, length and seconds of 40 training steps over random lengths, the last one with a smaller batch."""
    torch_programs.GPT = workloads.GPT = dataclasses.replace(GPT, seq=512)
    model = torch_programs.load("gpt", "tpu")
    optimizer = torch_programs.optimizer("gpt", model)

    @wrap
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    draw = random.Random(0)
    for step in range(40):
        length, batch = draw.randint(16, 512), 4 if step < 39 else 3
        tokens = torch.randint(0, GPT.vocab, (batch, length + 1))
        started = time.perf_counter()
        loss = loss_of(tokens[:, :-1].to("tpu"), tokens[:, 1:].to("tpu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        yield step, length, time.perf_counter() - started


def chart(title: str, steps: Iterator[tuple[int, int, float]], counter: str, graphs: int) -> None:
    """Print programs over steps; `graphs` is how many a fixed-shape compiler compiles at a new size."""

    def compiles() -> int:
        return int(torch.tpu.metrics().get(counter, 0))

    table = Table("step", "length", "seconds", "programs", "", "at each size", title=title)
    before, last, sizes, total = compiles(), -1, set[int](), 0.0
    for step, length, seconds in steps:
        sizes.add(length)
        total += seconds
        made = compiles() - before
        if made != last or step % 8 == 7:
            row = (step, length, f"{seconds:.2f}", made, "#" * min(made, BAR), graphs * len(sizes))
            table.add_row(*map(str, row))
        last = made
    Console().print(table)
    print(f"{last} programs, {graphs * len(sizes)} distinct, {total:.1f} s")


def main() -> None:
    """Measure and print."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--decoding", action="store_true")
    p.add_argument("--training", action="store_true")
    p.add_argument("--eager", action="store_true")
    args = p.parse_args()
    wrap: Wrap = (lambda fn: fn) if args.eager else functools.partial(torch.compile, backend="tpu")
    counter = "programs" if args.eager else "compiled_programs"
    if args.decoding or not args.training:
        chart("decoding 64 tokens, the cache grown by cat", decoding(wrap), counter, 1)
    if args.training or not args.decoding:
        chart("training over 40 random lengths", training(wrap), counter, 1 if args.eager else 2)


if __name__ == "__main__":
    main()

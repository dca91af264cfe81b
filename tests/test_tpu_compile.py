"""What the rules make compiles for TPUs, with libtpu and without a chip.

CI takes two dtypes; every one with

    TORCH_TPU_COMPILE_ALL=1 python -m pytest -q tests/test_tpu_compile.py --timeout 0
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
import tpu_programs
from torch import nn
from tpu_programs import Call

from torch_tpu import dryrun
from torch_tpu.compiler import platform

pytestmark = pytest.mark.skipif(not platform.installed_plugins("tpu"), reason="libtpu is not installed")

DTYPES = (torch.float32, torch.int64)
ALL_DTYPES = (*DTYPES, torch.bfloat16, torch.bool, torch.complex64, torch.float64, torch.complex128)
# The TPU's Fourier transform is one of 32-bit numbers. Nothing else is known to be refused.
REFUSED = {"aten::_fft_r2c.", "aten::_fft_c2c.", "aten::_fft_c2r."}
BATCH = 50
TIMEOUT = 240.0


@pytest.fixture(scope="module")
def worker() -> Iterator[dryrun.Worker]:
    worker = dryrun.Worker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    everything = "TORCH_TPU_COMPILE_ALL" in os.environ
    found = tpu_programs.collect(ALL_DTYPES if everything else DTYPES, samples=6)
    return [call for call in found if not is_refused(call)]


def failures(worker: dryrun.Worker, topology: str, calls: list[Call]) -> list[str]:
    """Which calls do not compile, found by halving."""
    try:
        result = worker.compile_for(topology, tpu_programs.module(calls), timeout=TIMEOUT)
        assert result.memory["output_bytes"] > 0
    except Exception as error:
        if len(calls) == 1:
            return [f"{calls[0]}: {type(error).__name__}: {str(error)[-400:]}"]
        half = len(calls) // 2
        return failures(worker, topology, calls[:half]) + failures(worker, topology, calls[half:])
    return []


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
def test_every_rule(worker: dryrun.Worker, topology: str, calls: list[Call]) -> None:
    assert len({call.name for call in calls}) > 600  # of some 760 rules, of which many share a function
    failed = [f for i in range(0, len(calls), BATCH) for f in failures(worker, topology, calls[i : i + BATCH])]
    assert not failed, "\n".join(failed)


def is_refused(call: Call) -> bool:
    return call.name in REFUSED and any(
        dtype in (torch.float64, torch.complex128) for dtype, _ in call.signature.inputs
    )


def test_what_a_tpu_refuses(worker: dryrun.Worker) -> None:
    calls = [
        call for call in tpu_programs.collect([torch.float64, torch.complex128], 2, "fft.*fft$") if is_refused(call)
    ]
    assert {call.name for call in calls} == REFUSED
    assert len([f for call in calls for f in failures(worker, "v5e:2x2", [call])]) == len(calls)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (z.unflatten(2, (self.heads, -1)).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self, vocab: int = 64, width: int = 32, length: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(F.dropout(self.blocks(x), 0.1)))


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_gpt_step(worker: dryrun.Worker, autocast: bool) -> None:
    with torch.tpu.set_eager_mode("fused"):
        model = Gpt().to("tpu")
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(64, (2, 17), device="tpu")
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("tpu", dtype=torch.bfloat16, enabled=autocast):
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            loss.item()
        step = torch.tpu.explain().flushes[-1]
    assert step.nodes > 100, "the step is one program"
    assert step.donated_bytes > 0
    for topology in ("v5e:2x2", "v6e:2x2"):
        result = worker.compile_for(topology, step.stablehlo("tpu"), timeout=TIMEOUT)
        assert result.memory["alias_bytes"] >= step.donated_bytes
        assert result.cost["flops"] > 0

"""Programs over padded buckets compile for TPUs too: torch.compile's, and so fused mode's, which are made alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_compile_dynamic import OPS, Model, inputs

from torch_tpu import dryrun
from torch_tpu.compiler import platform
from torch_tpu.dynamo.programs import last_programs

pytestmark = pytest.mark.skipif(not platform.installed_plugins("tpu"), reason="libtpu is not installed")


@pytest.fixture(scope="module")
def worker() -> Iterator[dryrun.Worker]:
    worker = dryrun.Worker()
    yield worker
    worker.close()


@pytest.mark.parametrize("name", OPS)
def test_ops(worker: dryrun.Worker, name: str) -> None:
    torch._dynamo.reset()
    device = [x.to("tpu") for x in inputs(5, 6)]
    for tensor in device:
        torch._dynamo.maybe_mark_dynamic(tensor, (0, 1))
    torch.compile(OPS[name], backend="tpu")(*device)
    program = last_programs()[-1]
    assert program.plan.symbols
    assert worker.compile_for("v6e:2x2", program.artifact("tpu"), timeout=240.0).memory["output_bytes"] > 0


def test_a_training_step(worker: dryrun.Worker) -> None:
    torch._dynamo.reset()
    tokens = torch.randint(0, 11, (4, 20), device="tpu")
    torch._dynamo.maybe_mark_dynamic(tokens, (0, 1))
    torch.compile(Model().to("tpu"), backend="tpu")(tokens).backward()
    for program in last_programs()[-2:]:
        assert program.plan.symbols
        assert worker.compile_for("v5e:2x2", program.artifact("tpu"), timeout=240.0).memory["output_bytes"] > 0

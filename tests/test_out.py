"""out= forms that take another way than their functional form."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def test_batch_norm_also_writes_its_running_statistics() -> None:
    x = torch.randn(6, 3)

    def run(device: str, legit: bool) -> list[Tensor]:
        outs = tuple(torch.empty(0, device=device) for _ in range(3))
        mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
        weights = torch.ones(3, device=device)
        norm = torch._native_batch_norm_legit if legit else torch.native_batch_norm
        norm(x.to(device), weights, weights, mean, var, True, 0.5, 1e-5, out=outs)
        return [t.cpu() for t in (*outs, mean, var)]

    for legit in (False, True):
        for mine, theirs in zip(run("tpu", legit), run("cpu", legit), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_shapes_from_the_functional_form() -> None:
    x = torch.randn(4, 3)
    before = torch.tpu.metrics().get("cpu_fallbacks", 0)
    outs = tuple(torch.empty(0, device="tpu") for _ in range(2))
    torch.geqrf(x.to("tpu"), out=outs)
    for mine, theirs in zip(outs, torch.geqrf(x), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)
    assert torch.tpu.metrics().get("cpu_fallbacks", 0) == before

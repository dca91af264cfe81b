"""segment_reduce and its gradients on the device."""

from __future__ import annotations

import pytest
import torch

Tensor = torch.Tensor


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_reductions(reduce: str, initial: float | None) -> None:
    data = torch.tensor([[1.0, -2.0], [0.0, 3.0], [0.5, 3.0], [4.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    lengths = torch.tensor([2, 0, 1, 2])

    def run(device: str, **delimiters: Tensor) -> list[Tensor]:
        x = data.clone().to(device).requires_grad_()
        delimiters = {k: v.to(device) for k, v in delimiters.items()}
        out = torch.segment_reduce(x, reduce, axis=0, initial=initial, **delimiters)
        out.nan_to_num(posinf=0, neginf=0).square().sum().backward()
        assert x.grad is not None
        return [out.detach().cpu(), x.grad.cpu()]

    for delimiters in ({"lengths": lengths}, {"offsets": torch.tensor([0, 2, 2, 3, 5])}):
        before = torch.tpu.metrics().get("cpu_fallbacks", 0)
        mine = run("tpu", **delimiters)
        assert torch.tpu.metrics().get("cpu_fallbacks", 0) == before
        for got, want in zip(mine, run("cpu", **delimiters), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


def test_lengths_have_to_sum_to_the_size() -> None:
    with pytest.raises(RuntimeError, match="to sum to"):
        torch.segment_reduce(torch.ones(5, device="tpu"), "sum", lengths=torch.tensor([2, 2], device="tpu"))

"""What hangs on eigenvalues and singular values, and its gradients, without the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

Function = Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    before, torch.tpu.config.cpu_fallback = torch.tpu.config.cpu_fallback, "error"
    yield
    torch.tpu.config.cpu_fallback = before


def value_and_gradient(f: Function, x: torch.Tensor, device: str) -> list[torch.Tensor]:
    x = x.to(device).requires_grad_()
    results = f(x)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum((t.abs() ** 2).sum() for t in results)
    assert isinstance(loss, torch.Tensor)
    return [t.detach().cpu() for t in (*results, *torch.autograd.grad(loss, [x]))]


FUNCTIONS: dict[str, Function] = {
    "pinv": torch.linalg.pinv,
    "svd": lambda x: tuple(t.abs() for t in torch.linalg.svd(x, full_matrices=False)),
    "norms": lambda x: (torch.linalg.matrix_norm(x, "nuc"), torch.linalg.matrix_norm(x, 2)),
    "cond": torch.linalg.cond,
    "rank": lambda x: x.sum() * torch.linalg.matrix_rank(x),
    "eigh": lambda x: (lambda w, v: (w, v.abs()))(*torch.linalg.eigh(x @ x.mT)),
    "lstsq": lambda x: torch.linalg.lstsq(x, x.sin()).solution,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str) -> None:
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    for mine, theirs in zip(*(value_and_gradient(FUNCTIONS[name], x, d) for d in ("tpu", "cpu")), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("driver", [None, "gels", "gelsd"])
def test_least_squares_say_what_lapack_says(driver: str | None) -> None:
    a, b = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)
    for rhs in (b, b[..., 0]):
        mine = torch.linalg.lstsq(a.to("tpu"), rhs.to("tpu"), driver=driver)
        for got, want in zip(mine, torch.linalg.lstsq(a, rhs, driver=driver), strict=True):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-9, atol=1e-9)
    with pytest.raises(RuntimeError, match="should match other"):
        torch.linalg.lstsq(a.to("tpu"), b.to("tpu").mT)

"""The measuring tools tell right from wrong."""

import time

import pytest
import torch

from benchmarks import coverage, coverage_checks
from benchmarks.measure import measure
from benchmarks.run import agrees


@pytest.mark.parametrize("workload", ["mlp", "decode"])
def test_adapters_compute_the_same(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch and the hand-written JAX program have the same losses or tokens, so that their times compare."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    native, jax = (measure(name, workload, 0.01, time.time()) for name in ("native", "jax"))
    assert agrees(jax["values"], native["values"])
    assert not agrees([v + 1 for v in jax["values"]], native["values"])
    assert jax["median"] > 0


def test_coverage_survives_its_workers() -> None:
    """A dead and a hanging worker are reported and replaced."""
    worker = coverage.Worker("cpu", limit=1, timeout=60)
    task = ("forward", "add", "", "float32")
    try:
        assert worker.run(task)["kind"] == "native"
        worker.process.kill()
        crash = worker.run(task)
        assert crash["kind"] == "crash"
        assert crash["why"].startswith("SIGKILL")  # what the worker has written to stderr follows
        worker.timeout = 0
        assert worker.run(task)["kind"] == "hang"
        worker.timeout = 60
        assert worker.run(task)["kind"] == "native"
    finally:
        worker.stop()


ONE = torch.ones(2)


@pytest.mark.parametrize(
    "other",
    [torch.ones(3), torch.ones(2, dtype=torch.int64), ONE + 1e-3, ONE * torch.nan, 1.0, (ONE, ONE), ONE.to("meta")],
    ids=["shape", "dtype", "value", "nan", "type", "count", "device"],
)
def test_coverage_sees_a_wrong_result(other: object) -> None:
    """Each way in which a result can differ is an error."""
    tolerate = coverage_checks.values_close("add")
    coverage_checks.compare([ONE * torch.nan, 2], [ONE * torch.nan, 2], "cpu", tolerate)
    with pytest.raises(AssertionError):
        coverage_checks.compare(other, ONE, "cpu", tolerate)


def test_coverage_compares_random_ops_by_their_distribution() -> None:
    """Draws of one distribution pass, a shifted one and one that is not finite fail."""
    torch.manual_seed(0)
    coverage_checks.same_distribution(torch.randn(1000), torch.randn(1000))
    for wrong in torch.randn(1000) + 0.5, torch.full((1000,), torch.inf):
        with pytest.raises(AssertionError):
            coverage_checks.same_distribution(wrong, torch.randn(1000))

"""What all tests share: the device under test and one thread a worker."""

import os

import pytest

# Before torch starts its pools: pytest-xdist runs one worker a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --device, which lets a test of models or examples be tried on the CPU first."""
    parser.addoption("--device", default="tpu", help="device of the model and example tests (default: tpu)")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Give every test the same random numbers, whichever tests run before it."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Return the device under test."""
    return request.config.getoption("--device")

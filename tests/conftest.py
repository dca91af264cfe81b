"""What all tests share: the device under test and one thread a worker."""

import os
from collections.abc import Iterator

import pytest

# Before torch starts its pools: pytest-xdist runs one worker a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# Files whose tests use the device as a script does: each of their tests runs in both modes.
IN_BOTH_MODES = {
    "test_amp",
    "test_attention_on_device",
    "test_autocast",
    "test_ctc",
    "test_data_dependent",
    "test_device",
    "test_dlpack",
    "test_eigen_on_device",
    "test_factories",
    "test_losses_on_device",
    "test_memory",
    "test_models",
    "test_random",
    "test_serialization",
    "test_streams",
    "test_views",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a script's kind in fused and in strict mode."""
    if metafunc.module.__name__.rpartition(".")[2] in IN_BOTH_MODES:
        metafunc.fixturenames.append("eager_mode")
        metafunc.parametrize("eager_mode", ["fused", "strict"], indirect=True)


@pytest.fixture
def eager_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """The eager mode of the test, here and in the processes that it starts."""
    import torch

    with pytest.MonkeyPatch.context() as patch, torch.tpu.set_eager_mode(request.param):
        patch.setenv("TORCH_TPU_EAGER_MODE", request.param)
        yield


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

"""Tensors made from nothing: their sizes, their devices, and what does not recompile."""

import pytest
import torch
from process import run_python


def compiled() -> int:
    torch.tpu.synchronize()
    return int(torch.tpu.metrics()["programs"])


@pytest.mark.parametrize(
    "arguments", [(5,), (3,), (2, 9), (0, 10, 3), (10, 0, -4), (0.0, 1.0, 0.25), (0,), (2**40, 2**40 + 2)]
)
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_arange(arguments: tuple[float, ...], dtype: torch.dtype | None) -> None:
    """The numbers decide the size, also where another call with other numbers came before."""
    expected = torch.arange(*arguments, dtype=dtype)
    got = torch.arange(*arguments, dtype=dtype, device="tpu")
    assert got.dtype == expected.dtype
    assert torch.equal(got.cpu(), expected)
    out = torch.empty(0, dtype=expected.dtype, device="tpu")
    assert torch.equal(torch.arange(*arguments, out=out).cpu(), expected)


def test_positions_do_not_recompile() -> None:
    """A decoding loop asks for one position after the other: same size, same program."""
    torch.arange(3, 4, device="tpu").item()
    before = compiled()
    for i in range(4, 12):
        assert torch.arange(i, i + 1, device="tpu").item() == i
    assert compiled() == before


def test_wrong_arguments() -> None:
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="step must be nonzero"):
            torch.arange(0, 3, 0, device=device)
        with pytest.raises(RuntimeError, match="bound inconsistent with step sign"):
            torch.arange(0, 3, -1, device=device)


def test_devices() -> None:
    """A device argument wins over the current device and over the tensor that is imitated."""
    code = """
    import torch
    x = torch.arange(3.0, device="tpu:0")
    made = {
        "zeros": torch.zeros(3, device="tpu:1"),
        "full": torch.full((3,), 2, device="tpu:1"),
        "arange": torch.arange(3, device="tpu:1"),
        "randn": torch.randn(3, device="tpu:1"),
        "eye": torch.eye(3, device="tpu:1"),
        "linspace": torch.linspace(0, 1, 3, device="tpu:1"),
        "tensor": torch.tensor([1.0, 2.0, 3.0], device="tpu:1"),
        "zeros_like": torch.zeros_like(x, device="tpu:1"),
        "full_like": torch.full_like(x, 2.0, device="tpu:1"),
        "rand_like": torch.rand_like(x, device="tpu:1"),
        "new_full": x.new_full((3,), 2.0, device="tpu:1"),
        "new_zeros": x.new_zeros(3, device="tpu:1"),
        "new_tensor": x.new_tensor([1.0], device="tpu:1"),
    }
    for name, tensor in made.items():
        assert tensor.get_device() == tensor.untyped_storage().device.index == 1, name
        assert (tensor + 1).cpu().sub(1).sub(tensor.cpu()).abs().max() < 1e-6, name
    with torch.tpu.device(1):
        assert torch.zeros(2, device="tpu").get_device() == 1
        assert torch.zeros_like(x).get_device() == 0
        assert (x + 1).get_device() == 0
    """
    run_python(code, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_CPU_DEVICES="2")


def test_like_a_tensor_on_another_device() -> None:
    x = torch.ones(3, device="tpu")
    for device in ("cpu", "meta"):
        for make in (torch.empty_like, torch.zeros_like, torch.rand_like):
            assert make(x, device=device).device.type == device
        assert x.new_zeros(2, device=device).device.type == device
        assert torch.full_like(x, 2, device=device).device.type == device
        assert x.new_full((2,), 1.0, device=device).device.type == device


def test_float64_is_spaced_in_float64() -> None:
    torch.testing.assert_close(
        torch.linspace(0.1, 0.3, 4, dtype=torch.float64, device="tpu").cpu(),
        torch.linspace(0.1, 0.3, 4, dtype=torch.float64),
        rtol=1e-15,
        atol=0,
    )

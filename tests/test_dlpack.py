"""DLPack, into and out of the device."""

import numpy as np
import pytest
import torch

from torch_tpu.utils import dlpack

DTYPES = [torch.float32, torch.int64, torch.bool, torch.uint8, torch.float16, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_export_to_numpy(dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(2, 3, 4).to(dtype)
    y = x.to("tpu").transpose(0, 2)[1:]
    assert np.array_equal(np.from_dlpack(y, device="cpu"), x.transpose(0, 2)[1:].numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_import_from_numpy(dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(2, 3, 4).to(dtype)
    y = torch.from_dlpack(x.numpy().swapaxes(0, 1), device="tpu")
    assert y.device == torch.device("tpu", 0)
    assert torch.equal(y.cpu(), x.swapaxes(0, 1))


def test_import_copies() -> None:
    source = np.zeros(3)
    y = torch.from_dlpack(source, device="tpu")
    source[:] = 1
    assert y.cpu().tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="without copying"):
        torch.from_dlpack(source, device="tpu", copy=False)


def test_functions_of_this_package() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = x.to("tpu")
    assert torch.equal(torch.utils.dlpack.from_dlpack(dlpack.to_dlpack(y)), x)
    for source in (x.detach(), x.detach().numpy(), dlpack.to_dlpack(y), y):
        z = dlpack.from_dlpack(source)
        assert z.is_tpu
        assert torch.equal(z.cpu(), x)
        z.zero_()
    assert torch.equal(y.cpu(), x)


def test_capsule_of_the_device_shares_memory() -> None:
    """torch's own capsules come back as an alias."""
    x = torch.arange(6.0, device="tpu")
    y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert y.is_tpu
    assert y.data_ptr() == x.data_ptr()
    y += 1
    assert torch.equal(x.cpu(), torch.arange(6.0) + 1)
    del x
    assert torch.equal(y.cpu(), torch.arange(6.0) + 1)


def test_foreign_pointers_are_errors() -> None:
    """A storage over memory that is not the device's is refused when it is used."""
    host = torch.zeros(4)
    storage = torch._C._construct_storage_from_data_pointer(host.data_ptr(), torch.device("tpu", 0), 16)
    x = torch.empty(0, device="tpu").set_(torch.UntypedStorage._new_with_weak_ptr(storage._weak_ref()))
    with pytest.raises(RuntimeError, match="is not where memory of a tpu tensor starts"):
        x.cpu()

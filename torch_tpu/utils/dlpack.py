"""DLPack for tpu tensors, through the host.

PyTorch's own functions do most of it: ``torch.from_dlpack(x, device="tpu")`` takes any producer, and a consumer that
asks for the CPU, such as ``numpy.from_dlpack(t, device="cpu")``, takes a tpu tensor. But ``Tensor.__dlpack_device__``
knows no renamed PrivateUse1 device, so consumers that ask a tensor for its device get an error: give them
``to_dlpack(t)``.
"""

from typing import Any

import torch
from torch import Tensor


def to_dlpack(tensor: Tensor) -> Any:
    """A DLPack capsule with a copy of `tensor` on the host."""
    return tensor.detach().cpu().__dlpack__()


def from_dlpack(source: Any, device: torch.device | str = "tpu") -> Tensor:
    """A copy on `device` of a DLPack capsule or of whatever has ``__dlpack__``, tpu tensors included."""
    if isinstance(source, Tensor):
        return source.detach().to(device, copy=True)
    return torch.utils.dlpack.from_dlpack(source).to(device)

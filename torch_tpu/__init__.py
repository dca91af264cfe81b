"""PyTorch-native TPU runtime: the device ``tpu`` of PyTorch.

``import torch`` is enough to use it: torch calls `_autoload` by the entry point group ``torch.backends``. Importing
this package does the same where autoloading is off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``).
"""

import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_loaded = False


class _Broken(ModuleType):
    """What ``torch.tpu`` is when the package cannot load: no device, and every use raises with the cause."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("torch.tpu")
        self._cause = cause

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to seed; torch.manual_seed calls this also in programs that use no tpu."""

    def _lazy_init(self) -> None:
        raise RuntimeError(f"torch_tpu could not be loaded: {self._cause}") from self._cause

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what import machinery and inspection look for
            raise AttributeError(name)
        return self._lazy_init()


def _autoload() -> None:
    """Makes the device known to torch. Never raises: `import torch` must work whatever happens here."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    import torch
    from torch.utils import backend_registration

    try:
        backend_registration.rename_privateuse1_backend("tpu")
        from torch_tpu import tpu
        from torch_tpu.dynamo import default

        torch._register_device_module("tpu", tpu)  # type: ignore[no-untyped-call]
        backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
        tpu.amp.default_to_bfloat16()
        default.install()
        for name in tpu.SUBMODULES:  # so that `import torch.tpu.memory` finds these and does not load them again
            sys.modules[f"torch.tpu.{name}"] = sys.modules[f"torch_tpu.tpu.{name}"]
    except Exception as error:
        broken = _Broken(error)
        setattr(torch, "tpu", broken)  # noqa: B010 - mypy knows no such attribute
        sys.modules["torch.tpu"] = broken


_autoload()

"""torch.compile for the device tpu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def backend(graph: Any, inputs: Any, **options: Any) -> Callable[..., Any]:
    """The backend "tpu" of torch.compile, found by the entry point group ``torch_dynamo_backends``."""
    from .backend import tpu

    return tpu(graph, inputs, **options)

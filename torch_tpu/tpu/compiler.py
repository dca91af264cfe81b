"""``torch.tpu.compiler``: what torch.compile made of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_tpu.dynamo.programs import ProgramRecord

__all__ = ["eager_pieces", "last_programs"]


def last_programs() -> list[ProgramRecord]:
    """The latest compiled graphs, the newest last: FX, StableHLO, optimized HLO, cost and memory of each."""
    from torch_tpu.dynamo.programs import last_programs

    return last_programs()


def eager_pieces() -> dict[str, str]:
    """The ops that compiled graphs had to run eagerly, each with the reason."""
    from torch_tpu.dynamo.pieces import eager_reasons

    return eager_reasons()

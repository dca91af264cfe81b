"""``torch.tpu.explain()``: what was handed to the device, why, and why anything was compiled."""

import sys
from dataclasses import dataclass

from torch_tpu import _C


@dataclass(frozen=True)
class Flush:
    """One program handed over by the eager modes."""

    reason: str
    """op, host read, synchronize, step, repetition, node cap, byte cap, mode change or compiled call."""
    line: str
    """The user's "file:line" that handed this program over first."""
    nodes: int
    inputs: int
    outputs: int
    key: int
    """Equal for equal programs."""
    hit: bool
    """The program was known; else it was compiled, or loaded from the disk cache, for this flush."""
    donated_bytes: int
    """Of inputs that were updated in their own buffers."""
    compile_seconds: float
    """What the program took to compile or load, when it first came."""
    difference: str
    """What differed from the most similar program known when this one first came."""
    executable: _C.Executable | None
    """For its memory_stats() and cost_analysis(); None while it compiles, if that failed, or once it is evicted."""

    def stablehlo(self, platform: str = "tpu") -> bytes:
        """The program as a portable StableHLO artifact, lowered for a platform (tpu or cpu), as `dryrun.compile_for`
        takes it. A program that 4096 flushes have followed, or that torch.tpu.config.max_programs has evicted, is
        forgotten."""
        from torch_tpu.compiler import program

        description = _C._program_description(self.key)
        if description is None:
            raise RuntimeError("the program is forgotten: 4096 flushes have followed, or it was evicted")
        return program.artifact(description, platform)

    def __str__(self) -> str:
        found = "hit" if self.hit else f"miss, compiled in {self.compile_seconds:.2f} s: {self.difference}"
        return (
            f"{self.reason:<12} {self.line or '-':<28} {self.nodes} nodes, {self.inputs} inputs, "
            f"{self.outputs} outputs, {self.donated_bytes} bytes donated, key {self.key:016x}, {found}"
        )


@dataclass(frozen=True)
class Explanation:
    """The latest flushes, oldest first; printing it gives the text."""

    flushes: list[Flush]
    compiled: list[str]
    """What could not be done as well as usual: programs and graphs compiled for each set of sizes, ops that
    torch.compile left to eager."""

    @property
    def recompiles(self) -> list[Flush]:
        """The flushes whose program was not known."""
        return [flush for flush in self.flushes if not flush.hit]

    def __str__(self) -> str:
        if not self.flushes:
            return "\n".join(["nothing was handed to the device", *self.compiled])
        lines = [f"{len(self.flushes)} flushes, {len(self.recompiles)} of new programs"]
        repeated = 0
        for before, flush in zip([None, *self.flushes], self.flushes):
            if before is not None and flush.hit and (before.key, before.reason) == (flush.key, flush.reason):
                repeated += 1
                continue
            if repeated:
                lines.append(f"{'':<12} the same {repeated} times more")
            repeated = 0
            lines.append(str(flush))
        if repeated:
            lines.append(f"{'':<12} the same {repeated} times more")
        return "\n".join([*lines, *self.compiled])


def explain() -> Explanation:
    """Why programs were handed over, and why they were compiled: the last 4096 flushes of the eager modes, and what
    torch.compile noted."""
    return Explanation([Flush(*record) for record in _C._launch_log()], _compiled())


def _compiled() -> list[str]:
    notes = []
    # What is not imported yet has nothing to say, and to import Dynamo takes a second.
    if "torch_tpu.dynamo.recorded" in sys.modules:
        from torch_tpu.dynamo import recorded

        notes += [f"fused mode: exact sizes, {reason}" for reason in recorded.exact_reasons()]
    if "torch_tpu.dynamo.pieces" in sys.modules:
        from torch_tpu.dynamo import pieces, programs

        notes += [f"torch.compile: exact sizes, {reason}" for reason in dict.fromkeys(programs.exact_reasons())]
        notes += [f"torch.compile: {op} runs eagerly, {reason}" for op, reason in pieces.eager_reasons().items()]
    return notes

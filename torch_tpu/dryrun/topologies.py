"""The TPU slices that can be rented: libtpu takes names of far larger ones."""

import re
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Generation:
    """One TPU generation. Its slices are `shapes`, and in 3-D every box of 4x4x4 cubes that fits into the pod."""

    shapes: tuple[tuple[int, ...], ...]
    devices_per_chip: int
    pod: tuple[int, int, int] | None = None


_SMALL_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_LITE = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))

GENERATIONS = {
    "v2": Generation(((2, 2), (4, 4), (8, 8), (8, 16), (16, 16)), devices_per_chip=2),
    "v3": Generation(((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32)), devices_per_chip=2),
    "v4": Generation(_SMALL_3D, devices_per_chip=2, pod=(16, 16, 16)),
    "v5e": Generation(_LITE, devices_per_chip=1),
    "v5p": Generation(_SMALL_3D, devices_per_chip=1, pod=(16, 20, 28)),
    "v6e": Generation(_LITE, devices_per_chip=1),
    "tpu7x": Generation(_SMALL_3D, devices_per_chip=2, pod=(16, 16, 36)),
}


@dataclass(frozen=True)
class Slice:
    """A set of connected chips, such as v5e:4x4."""

    generation: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.generation}:{'x'.join(map(str, self.shape))}"

    @property
    def chips(self) -> int:
        return prod(self.shape)

    @property
    def devices(self) -> int:
        return self.chips * GENERATIONS[self.generation].devices_per_chip


def parse(name: str) -> Slice:
    """The slice of a name such as `v5e:4x4` or `v5p:4x4x8`; an error names those that exist."""
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name)
    if match is None:
        raise ValueError(
            f"{name!r} is not the name of a TPU slice: write generation:shape, such as v5e:2x2 or v5p:4x4x8"
        )
    generation, shape = match[1], tuple(map(int, match[2].split("x")))
    if generation not in GENERATIONS:
        raise ValueError(f"{name!r}: TPU generation {generation!r} is unknown; known are {', '.join(GENERATIONS)}")
    kind = GENERATIONS[generation]
    if shape not in kind.shapes and not (kind.pod and _is_box_of_cubes(shape, kind.pod)):
        shapes = ", ".join("x".join(map(str, known)) for known in kind.shapes)
        if kind.pod:
            shapes += f", or three ascending multiples of 4 up to {'x'.join(map(str, kind.pod))}"
        raise ValueError(f"{name!r}: there is no such slice; {generation} comes as {shapes}")
    return Slice(generation, shape)


def _is_box_of_cubes(shape: tuple[int, ...], pod: tuple[int, int, int]) -> bool:
    return (
        len(shape) == 3
        and list(shape) == sorted(shape)
        and all(size >= 4 and size % 4 == 0 and size <= limit for size, limit in zip(shape, pod))
    )

"""The compile cache, as seen from ``torch.tpu.cache``."""

__all__ = ["stats"]


def stats() -> dict[str, int | float]:
    """Counts of the compile cache since the process started: hits, misses, compiles, disk_hits and so on."""
    from torch_tpu.compiler import cache

    return cache.stats()

"""Lowering of programs whose sizes are padded to a bucket's."""

from . import indexing, ops  # their handlers
from .core import dense, is_known, lower, why_not

__all__ = ["dense", "indexing", "is_known", "lower", "ops", "why_not"]

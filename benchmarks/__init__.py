"""Benchmarks (`python -m benchmarks.run`) and the op coverage table (`python -m benchmarks.coverage`)."""

"""The installed package is cheap for programs that never use it."""

from benchmarks.import_cost import import_cost


def test_import_torch_stays_cheap_and_silent() -> None:
    """At most 50 ms and 15 MiB more than without the package, and nothing on stderr."""
    cost = import_cost()
    assert cost.stderr == ""
    assert cost.mebibytes < 15
    assert cost.milliseconds < 50

"""The installed package is cheap for programs that never use it."""

import sys

from benchmarks.import_cost import import_cost


def test_import_torch_stays_cheap_and_silent() -> None:
    """No module but this package's and Python's own, at most 15 MiB, nothing on stderr. The time is the benchmark's."""
    cost = import_cost(rounds=3)
    assert cost.stderr == ""
    assert cost.mebibytes < 15
    ours = {"torch_tpu", *sys.stdlib_module_names}
    assert all(name.partition(".")[0] in ours or name.startswith("torch.tpu") for name in cost.modules)

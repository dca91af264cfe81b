"""Runs OpInfo samples on the CPU and checks, below autograd, every ATen op that has a lowering rule.

    python tests/lowering/opinfo.py [OP ...] [--dtype float32 ...] [--samples N] [--missing]

OP is a name in op_db ("add", "nn.functional.gelu") or a prefix ending in "*". Backward passes are included. A line is
printed for each op whose rule fails or differs, and, with --missing, for each op that was met without a rule.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import collections
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import torch
import torch.utils._pytree as pytree
from harness import compare, run
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu.lowering import registry

DTYPES = ["float32", "bfloat16", "int64", "bool", "complex64"]


class Checker(TorchDispatchMode):
    """Compares each dispatched op's rule with what the CPU computes."""

    def __init__(self, only: str | None = None) -> None:
        super().__init__()
        self.only = only
        self.seen: set[Any] = set()
        self.missing: collections.Counter[str] = collections.Counter()
        self.failures: dict[str, str] = {}
        self.checked = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        resolution = registry.resolve(func._schema.name, func._schema.overload_name)
        wanted = self.only is None or self.only in str(func)
        rule = registry.rule_for(resolution.functional) if resolution.functional is not None else None
        if rule is None or rule.random or rule.kind == "python" or not wanted:
            if resolution.kind == "fallback" and not func.is_view:
                self.missing[str(func)] += 1
            return func(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        key = (func, spec, tuple(_describe(leaf) for leaf in leaves))
        if key in self.seen:
            return func(*args, **kwargs)
        self.seen.add(key)
        saved = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs))
        expected = func(*args, **kwargs)
        arguments = {a.name for a in rule.op._schema.arguments}
        functional_kwargs = {k: v for k, v in saved[1].items() if k in arguments}
        self.checked += 1
        try:
            ours = run(rule.op, *saved[0], **functional_kwargs)
            compare(ours, expected)
        except Exception as error:
            text = str(error).strip().splitlines()
            shown = ", ".join(str(_describe(leaf)) for leaf in leaves)
            lines = [line for line in text if line.strip()]
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.failures.setdefault(
                f"{rule.op}({shown})", f"{type(error).__name__} at {where.name}: {' | '.join(lines[:6])[:400]}"
            )
        return expected


def _describe(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return repr(leaf)


def check_op(op: OpInfo, dtype: torch.dtype, samples: int, checker: Checker) -> None:
    """The first samples of an op, forward and backward."""
    grad = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    for index, sample in enumerate(op.sample_inputs_func(op, "cpu", dtype, grad)):
        if index >= samples:
            break
        try:
            with checker:
                result = op(sample.input, *sample.args, **sample.kwargs)
                outs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
                if outs:
                    sum(t.abs().sum() if t.is_complex() else t.sum() for t in outs).backward()
        except Exception as error:  # the sample itself fails on the CPU
            print(f"    {op.name} {dtype}: {str(error).splitlines()[0] if str(error) else error!r}"[:200])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--dtype", nargs="*", default=DTYPES)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--only", help="check only ATen ops whose name contains this")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    checker = Checker(args.only)
    for op in op_db:
        if args.ops and not any(op.name == o or (o.endswith("*") and op.name.startswith(o[:-1])) for o in args.ops):
            continue
        for name in args.dtype:
            dtype = getattr(torch, name)
            if not op.supports_dtype(dtype, "cpu"):
                continue
            known = len(checker.failures)
            check_op(op, dtype, args.samples, checker)
            for what, why in list(checker.failures.items())[known:]:
                print(f"{op.name} {name}: {what}\n      {why}", flush=True)
    print(f"{checker.checked} checked, {len(checker.failures)} failed")
    if args.missing:
        for name, count in checker.missing.most_common():
            print(f"no rule: {name} ({count})")


if __name__ == "__main__":
    main()

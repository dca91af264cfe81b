"""A few of PyTorch's own samples in every mode of `benchmarks.coverage`; the whole of them is run by hand."""

from __future__ import annotations

import pytest
import torch

from benchmarks.coverage_checks import MODES, key_of, run_op

SMOKE = {
    "forward": ["nn.functional.gelu", "linalg.cholesky", "sparse.sampled_addmm"],
    "out": ["kron", "geqrf", "native_batch_norm"],
    "inplace": ["nn.functional.dropout", "index_add"],
    "strided": ["matmul", "cumsum"],
    "lazy": ["cov", "index_put"],
    "empty": ["max", "cat"],
    "errors": ["cauchy", "gather"],
    "meta": ["sort", "nn.functional.conv2d"],
    "grad": ["linalg.svd", "nn.functional.layer_norm", "to_sparse"],
    "gradcheck": ["sigmoid", "mm"],
    "compiled": ["softmax", "cumsum"],
    "compiled_dynamic": ["linalg.tensorsolve", "nn.functional.interpolate"],
    "references": ["_refs.softmax", "_refs.sum"],
    "higher_order": ["cond", "scan", "invoke_quant"],
    "jvp": ["nn.functional.softmin", "prod"],
    "vmap": ["mm", "sort"],
    "foreach": ["_foreach_mm"],
    "foreach_inplace": ["_foreach_addcmul"],
    "modules": ["nn.FractionalMaxPool3d", "nn.BatchNorm1d"],
    "optimizers": ["Rprop"],
}
# Right, though on the CPU.
FALLBACK = {"sparse.sampled_addmm"}


def test_every_mode_is_here() -> None:
    assert SMOKE.keys() == MODES.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("mode", "name"), [(mode, name) for mode, names in SMOKE.items() for name in names])
def test_smoke(mode: str, name: str) -> None:
    ops = [op for op in MODES[mode].entries() if key_of(op)[0] == name]
    assert ops
    dtype = getattr(torch, MODES[mode].dtypes[0])
    for op in ops:
        result = run_op(MODES[mode], op, dtype, "tpu", limit=1)
        assert result["kind"] == ("fallback" if name in FALLBACK else "native"), result

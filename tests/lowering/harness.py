"""Runs one lowered op by itself, without the device, so that families are tested against CPU torch.

run(aten.add.Tensor, x, y, alpha=2)    the rule's result as CPU tensors
check(aten.add.Tensor, x, y, alpha=2)  compares it with CPU torch: dtype, shape, values
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload, OpOverloadPacket

from torch_tpu.lowering import dtypes, mlir, registry
from torch_tpu.lowering.builder import Builder, TensorSpec, Value

VERSION = "1.13.3"  # the oldest StableHLO among the plugins in use


@functools.cache
def _client() -> Any:
    """The CPU plugin through jaxlib's own PJRT client."""
    import xla_plugins.xla_cpu_pjrt as plugin
    from jaxlib import _jax, xla_client

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    library = next(Path(plugin.__file__).parent.glob("*.so"))
    _jax.load_pjrt_plugin("torch_tpu_harness", str(library), None)
    _jax.initialize_pjrt_plugin("torch_tpu_harness")
    return xla_client.make_c_api_client("torch_tpu_harness", {"cpu_device_count": 1}, None)


@functools.lru_cache(512)
def _compile(artifact: bytes) -> Any:
    from jaxlib import _jax

    options = _jax.CompileOptions()
    return _client().compile_and_load(artifact, _jax.DeviceList(tuple(_client().devices()[:1])), options)


def execute(artifact: bytes, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Compile and run a portable artifact."""
    import jax
    from jaxlib import _jax

    device = _client().devices()[0]
    sharding = _jax.SingleDeviceSharding(device)
    arrays = []
    with jax.enable_x64(True):  # keeps 64-bit inputs 64 bits wide
        for tensor in inputs:
            array = to_numpy(tensor)
            aval = jax.core.ShapedArray(array.shape, array.dtype)
            arrays.append(_jax.batched_device_put(aval, sharding, [array], [device]))
    results = _compile(artifact).execute_sharded(arrays).disassemble_into_single_device_arrays()
    return [from_numpy(np.asarray(r[0])) for r in results]


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    import ml_dtypes

    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4 and tensor.dtype != torch.float16:
        name = str(tensor.dtype).removeprefix("torch.")
        bits = torch.int16 if tensor.dtype.itemsize == 2 else torch.uint8
        return tensor.view(bits).numpy().view(getattr(ml_dtypes, name))
    return tensor.numpy()


def from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    name = array.dtype.name
    if name == "bfloat16" or name.startswith("float8"):
        bits = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(array.view(bits).copy()).view(getattr(torch, name))
    return torch.from_numpy(array.copy())


def _functional(op: Any) -> OpOverload:
    op = op.default if isinstance(op, OpOverloadPacket) else op
    assert isinstance(op, OpOverload)
    return op


def lower(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rng: tuple[int, int] | None = None, platform: str = "cpu"
) -> tuple[Any, list[torch.Tensor], Any]:
    """One-op module of a functional op: (module, inputs, the tree of the results).

    Tensors and whatever the resolution calls dynamic become parameters.
    """
    op = _functional(op)
    rule = registry.rule_for(op)
    assert rule is not None, f"no rule for {op}"
    resolution = registry.resolve(op._schema.name, op._schema.overload_name)
    assert resolution.kind == "record", resolution
    dynamic = {a.name: d for a, d in zip(op._schema.arguments, resolution.dynamic)}
    names = [a.name for a in op._schema.arguments]
    inputs: list[torch.Tensor] = []
    weak: list[bool] = []

    def to_parameter(leaf: Any, is_dynamic: bool) -> Any:
        if isinstance(leaf, torch.Tensor):
            inputs.append(leaf)
            weak.append(False)
        elif is_dynamic and isinstance(leaf, bool | int | float | complex):
            inputs.append(torch.tensor(leaf, dtype=dtypes.of_number(leaf)))
            weak.append(True)
        else:
            return leaf
        return _Parameter(len(inputs) - 1)

    call_args = [pytree.tree_map(lambda x, n=n: to_parameter(x, dynamic[n]), a) for n, a in zip(names, args)]
    call_kwargs = {n: pytree.tree_map(lambda x, n=n: to_parameter(x, dynamic[n]), a) for n, a in kwargs.items()}
    if registry.draws(rule, {**dict(zip(names, args)), **kwargs}):
        assert rng is not None
        inputs.append(torch.tensor(list(rng), dtype=torch.uint64))
        weak.append(False)
        call_kwargs["rng"] = _Parameter(len(inputs) - 1)

    meta = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), (args, kwargs))
    if "device" in names:
        meta[1]["device"] = torch.device("meta")
    outputs = [
        TensorSpec.of(t) if isinstance(t, torch.Tensor) else None for t in registry.flatten(op(*meta[0], **meta[1]))
    ]

    b = Builder(platform=platform)
    tree: Any = None
    with b.program([TensorSpec.of(t) for t in inputs]) as params:
        values = [Value(b, p.ir, p.shape, p.dtype, w) for p, w in zip(params, weak)]
        final_args, final_kwargs = pytree.tree_map_only(_Parameter, lambda p: values[p.index], (call_args, call_kwargs))
        result = registry.lower_op(b, op, final_args, final_kwargs, outputs)
        flat = registry.flatten(result)
        tree = registry._unflatten(result, iter([None if v is None else i for i, v in enumerate(flat)]))
        b.finish([v for v in flat if v is not None])
    assert b.module.operation.verify()
    return b.module, inputs, tree


class _Parameter:
    def __init__(self, index: int) -> None:
        self.index = index


def run(op: Any, *args: Any, rng: tuple[int, int] | None = None, **kwargs: Any) -> Any:
    """The results of the op's rule as CPU tensors, nested as the rule returned them."""
    module, inputs, tree = lower(op, args, kwargs, rng)
    tensors = iter(execute(mlir.serialize(module, VERSION), inputs))
    return registry._unflatten(tree, iter([None if i is None else next(tensors) for i in registry.flatten(tree)]))


def check(
    op: Any, *args: Any, exact: bool = False, rtol: float | None = None, atol: float | None = None, **kwargs: Any
) -> None:
    """Compare the rule with CPU torch; exact means to the bit (any NaN equals any NaN)."""
    compare(run(op, *args, **kwargs), _functional(op)(*args, **kwargs), exact=exact, rtol=rtol, atol=atol)


def compare(
    ours: Any, theirs: Any, *, exact: bool = False, rtol: float | None = None, atol: float | None = None
) -> None:
    """Compare nested results: dtype, shape, values."""
    for mine, reference in zip(registry.flatten(ours), registry.flatten(theirs)):
        if not isinstance(reference, torch.Tensor):
            continue
        if reference._is_zerotensor():  # has no memory to compare
            reference = torch.zeros(reference.shape, dtype=reference.dtype)
        assert isinstance(mine, torch.Tensor), f"{mine} where a tensor is due"
        assert mine.dtype == reference.dtype, f"{mine.dtype} != {reference.dtype}"
        assert mine.shape == reference.shape, f"{mine.shape} != {reference.shape}"
        if exact:
            assert_same_bits(mine, reference)
        else:
            if rtol is None and mine.dtype == torch.complex64:
                rtol, atol = 1e-5, 1e-5
            torch.testing.assert_close(mine, reference, rtol=rtol, atol=atol, equal_nan=True)


def assert_same_bits(mine: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal to the bit, where any NaN equals any NaN and 0.0 differs from -0.0."""
    if reference.is_complex():
        mine, reference = torch.view_as_real(mine), torch.view_as_real(reference.resolve_conj())
    torch.testing.assert_close(mine, reference, rtol=0, atol=0, equal_nan=True)
    if reference.is_floating_point():
        real = ~reference.isnan()
        assert torch.equal(mine.signbit() & real, reference.signbit() & real), "signs of zeros differ"


__all__ = ["assert_same_bits", "check", "compare", "execute", "lower", "run"]

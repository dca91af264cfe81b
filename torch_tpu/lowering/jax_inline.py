"""Inlining of JAX functions into a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .builder import Builder


def inline(b: Builder, fn: Any, args: Any, kwargs: Any) -> Any:
    """Lower fn for the builder's platform and call it: Values become arrays, everything else is static."""
    import jax

    from .builder import Value

    if not jax.config.jax_platforms:
        # Lowering makes JAX start all the backends it finds, and the TPU is ours.
        jax.config.update("jax_platforms", "cpu")
    leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    values = [v for v in leaves if isinstance(v, Value)]

    def flat(*arrays: Any) -> Any:
        remaining = iter(arrays)
        full = [next(remaining) if isinstance(v, Value) else v for v in leaves]
        new_args, new_kwargs = torch.utils._pytree.tree_unflatten(full, spec)
        return fn(*new_args, **new_kwargs)

    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct(v.shape, _numpy(v.dtype)) for v in values]
        lowered = jax.jit(flat).trace(*avals).lower(lowering_platforms=(b.platform,))
        text = str(lowered.compiler_ir("stablehlo"))
        tree = lowered.out_tree
    results = b.call_module(text, values)
    return jax.tree.unflatten(tree, results)


def _numpy(dtype: torch.dtype) -> Any:
    import ml_dtypes
    import numpy as np

    name = {torch.bool: "bool"}.get(dtype, str(dtype).removeprefix("torch."))
    return np.dtype(getattr(ml_dtypes, name, None) or name)

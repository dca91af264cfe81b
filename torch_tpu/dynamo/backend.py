"""The torch.compile backend "tpu": Dynamo's graph through AOTAutograd to one program for forward, one for backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import PlainTensorMeta
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import _C
from torch_tpu.lowering import registry

from . import control, pieces
from .options import Options, parse


def tpu(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured; see `torch_tpu.dynamo.options.Options` for the options."""
    return _compile(graph, inputs, parse(mode, options))


def _compile(graph: GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    direct: list[Callable[..., Any]] = []

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_(fx: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            with _disable_current_modes():  # constants are real tensors
                program = pieces.compile_graph(fx, kind, options)
            if options.direct_call and _needs_no_wrapper(kind, fx, inputs) and isinstance(program, _C.CompiledProgram):
                direct.append(program.call)
            return program

        return compile_

    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=_partition(options),
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )(graph, inputs)
    return direct[0] if direct else compiled


# Of the memory that the saved activations would take, how much they may when the backward pass is to recompute.
_REMATERIALIZED = 0.15


def _partition(options: Options) -> Callable[..., Any]:
    budget = _REMATERIALIZED if options.recomputes() else 1.0

    def partition(*args: Any, **kwargs: Any) -> Any:
        with functorch_config.patch(activation_memory_budget=budget):
            forward, backward = min_cut_rematerialization_partition(*args, **kwargs)
        control.save_seeds(forward, backward)
        return forward, backward

    return partition


def _needs_no_wrapper(kind: str, fx: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd's Python wrapper around the program would have nothing to do."""
    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    if kind != "inference" or meta is None:
        return False
    aliases = meta.num_outputs_aliased or meta.num_intermediate_bases or meta.num_mutated_inp_runtime_indices
    wrapped = meta.tokens or any(not isinstance(m, PlainTensorMeta) for m in meta.subclass_inp_meta)
    return not aliases and not wrapped and len(fx.graph.find_nodes(op="placeholder")) == len(inputs)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's core decompositions of what has no rule of ours."""
    from torch._decomp import core_aten_decompositions

    table: Any = core_aten_decompositions()
    return {op: fn for op, fn in table.items() if registry.rule_for(op) is None} | {
        torch.ops.aten._foreach_copy.default: _foreach_copy
    }


def _foreach_copy(xs: Sequence[Tensor], sources: Sequence[Tensor], non_blocking: bool = False) -> list[Tensor]:
    return [torch.ops.aten.copy(x, source, non_blocking) for x, source in zip(xs, sources)]

"""What runs the workloads: an adapter says how to start, build, wait and count."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .workloads import WORKLOADS


class Adapter:
    """Native PyTorch on the CPU; the others override what differs."""

    name = "native"
    device = "cpu"
    skip: tuple[str, ...] = ("start_warm",)  # workloads that say nothing about this adapter

    def environment(self, cache: str) -> dict[str, str]:
        """Return the variables of the process; `cache` is the folder of its compile cache."""
        return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def start(self) -> None:
        """Import what the adapter needs; torch._dynamo among it, which torch.optim imports at its first optimizer."""
        import torch
        import torch._dynamo

        self.torch = torch

    def version(self) -> str:
        """Return the version of what is measured."""
        return f"torch {self.torch.__version__}"

    def build(self, workload: str) -> Callable[[], Any]:
        """Return one iteration of the workload, which does not wait."""
        from .torch_programs import build

        return build("gpt" if workload.startswith("start") else workload, self.device, self.mark, self.wait)

    def mark(self) -> None:
        """End a step, where a user has to."""

    def wait(self) -> None:
        """Return when all that was queued has been executed."""

    def compiles(self) -> int | None:
        """Return how many programs this process has compiled."""
        return None

    def parts(self) -> dict[str, float]:
        """Return what took how many seconds of the compilations so far."""
        return {}


class Tpu(Adapter):
    """This package in one of its eager modes."""

    device = "tpu"
    skip = ()

    def __init__(self, mode: str) -> None:
        self.name = mode

    def environment(self, cache: str) -> dict[str, str]:
        return {"TORCH_TPU_EAGER_MODE": self.name, "TORCH_TPU_CACHE_DIR": cache}

    def version(self) -> str:
        from importlib.metadata import version

        return f"torchtpu {version('torchtpu')}"

    def wait(self) -> None:
        self.torch.tpu.synchronize()

    def compiles(self) -> int:
        return self.torch.tpu.cache.stats()["compiles"]


class Compiled(Tpu):
    """This package through torch.compile: forward and backward, the optimizer's step, a decoding step."""

    def __init__(self) -> None:
        super().__init__("compiled")

    def environment(self, cache: str) -> dict[str, str]:
        return {"TORCH_TPU_CACHE_DIR": cache}

    def build(self, workload: str) -> Callable[[], Any]:
        from .torch_programs import build

        compile_ = functools.partial(self.torch.compile, backend="tpu")
        return build("gpt" if workload.startswith("start") else workload, self.device, self.mark, self.wait, compile_)

    def parts(self) -> dict[str, float]:
        """Return the seconds of Dynamo, AOTAutograd, lowering to StableHLO and XLA."""
        from torch._dynamo.utils import compilation_time_metrics

        spent = lambda name: sum(compilation_time_metrics.get(name, ()))
        backend, lower, xla = map(spent, ("OutputGraph.call_user_compiler", "torch_tpu.lower", "torch_tpu.compile"))
        dynamo = spent("_compile.compile_inner") - backend
        return {"Dynamo": dynamo, "AOTAutograd": backend - lower - xla, "lowering": lower, "XLA": xla}


class Whole(Compiled):
    """This package with a whole training step in one torch.compile, as JAX's are in one jit."""

    name = "whole"
    skip = ("chain", "chain_sync", "decode", "decode_cat")

    def __init__(self) -> None:
        Tpu.__init__(self, "whole")

    def build(self, workload: str) -> Callable[[], Any]:
        import torch._dynamo

        from .torch_programs import build_whole

        torch._dynamo.config.trace_autograd_ops = True
        compile_ = functools.partial(self.torch.compile, backend="tpu", fullgraph=True)
        return build_whole("gpt" if workload.startswith("start") else workload, self.device, compile_)


class Jax(Adapter):
    """JAX with a whole iteration in one jit: the limit of XLA:CPU."""

    name = "jax"
    skip = ()

    def environment(self, cache: str) -> dict[str, str]:
        return {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def start(self) -> None:
        import jax

        self.jax, self.count, self.last = jax, 0, None
        jax.monitoring.register_event_listener(self.listen)

    def listen(self, event: str, **_: Any) -> None:
        """Count what the compile cache did not have."""
        self.count += event == "/jax/compilation_cache/cache_misses"

    def version(self) -> str:
        return f"jax {self.jax.__version__}"

    def build(self, workload: str) -> Callable[[], Any]:
        from .jax_programs import build

        iteration = build("gpt" if workload.startswith("start") else workload)

        def step() -> Any:
            self.last = iteration()
            return self.last

        return step

    def wait(self) -> None:
        self.jax.block_until_ready(self.last)

    def compiles(self) -> int:
        return self.count


class TorchXla(Adapter):
    """torch_xla's lazy tensors, one mark a step; where it is installed."""

    name = "torch_xla"
    device = "xla"
    skip = ()

    def environment(self, cache: str) -> dict[str, str]:
        return {"PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": cache}

    def start(self) -> None:
        super().start()
        import torch_xla
        from torch_xla.core import xla_model
        from torch_xla.debug import metrics

        self.xla, self.model, self.metrics = torch_xla, xla_model, metrics

    def version(self) -> str:
        return f"torch_xla {self.xla.__version__}"

    def mark(self) -> None:
        self.xla.sync()

    def wait(self) -> None:
        self.model.wait_device_ops()

    def compiles(self) -> int:
        return (self.metrics.metric_data("CompileTime") or [0])[0]


class Torchax(Adapter):
    """torchax op by op, where it is installed; it has no backward() for modules, so it does not train."""

    name = "torchax"
    device = "jax"
    skip = tuple(name for name in WORKLOADS if not name.startswith(("chain", "decode")))

    def environment(self, cache: str) -> dict[str, str]:
        return {"JAX_PLATFORMS": "cpu", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def start(self) -> None:
        super().start()
        import jax
        import torchax

        self.jax, self.torchax = jax, torchax
        torchax.enable_globally()

    def version(self) -> str:
        return f"torchax {self.torchax.__version__}"

    def wait(self) -> None:
        for array in self.jax.live_arrays():
            array.block_until_ready()


_EAGER = [Tpu(mode) for mode in ("strict", "fused", "debug")]
ADAPTERS = {a.name: a for a in (Adapter(), Jax(), *_EAGER, Compiled(), Whole(), TorchXla(), Torchax())}

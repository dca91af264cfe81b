"""What `benchmarks.coverage` does with one sample in a worker: experiments that run alike on the device and on the CPU.

A mode is an experiment over a database of torch.testing._internal. Its results on the device are compared with those on
the CPU, which is the specification: values, dtypes, shapes, and in some modes the types of exceptions.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import unittest.mock
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Result = dict[str, Any]
Tolerate = Callable[[Any, Any], None]

# From best to worst; an op is as good as its worst sample. "none": the CPU itself runs no sample.
KINDS = ("none", "native", "fallback", "unsupported", "wrong", "hang", "crash")
# rtol, atol: torch.testing's defaults, with room for XLA's own polynomials and order of sums in float32
TOLERANCES = {"float32": (1e-5, 1e-5), "complex64": (1e-5, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float64": (1e-7, 1e-7)}
WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64", "complex64": "complex128"}
# Uninitialised memory: only shape and dtype mean something.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
# Decompositions whose vectors are unique up to a sign (or a phase): absolute values are compared.
UP_TO_A_PHASE = ("svd", "eig", "qr", "lowrank", "lobpcg", "householder")
# Eigenvalues of general matrices come in any order.
UNORDERED = {"linalg.eig", "linalg.eigvals"}
# In evaluation the CPU returns empty statistics, PyTorch's other devices the running ones: the first result counts.
FIRST_RESULT_ONLY = {"native_batch_norm", "_native_batch_norm_legit"}
MAX_SAMPLES = 100


# ---- comparing ---------------------------------------------------------------------------------------------------


def compare(actual: Any, expected: Any, device: str, tolerate: Tolerate) -> None:
    """Raise AssertionError where two results (nested, of tensors and Python values) differ."""
    import torch
    from torch.utils._pytree import tree_flatten

    got, want = tree_flatten(actual)[0], tree_flatten(expected)[0]
    assert len(got) == len(want), f"{len(got)} results instead of {len(want)}"
    for a, e in zip(got, want):
        assert isinstance(a, torch.Tensor) == isinstance(e, torch.Tensor), f"a {type(a)} instead of a {type(e)}"
        if isinstance(e, torch.Tensor):
            assert a.device.type == device, f"the result is on {a.device}"
            assert a.dtype == e.dtype, f"dtype {a.dtype} instead of {e.dtype}"
            assert a.shape == e.shape, f"shape {tuple(a.shape)} instead of {tuple(e.shape)}"
            tolerate(a.detach().cpu(), e.detach())
        else:
            assert a == e or a != a, f"{a} instead of {e}"


def values_close(op: str) -> Tolerate:
    """Return a comparison of values within the tolerances."""
    import torch

    def check(a: Any, e: Any) -> None:
        if any(word in op for word in UP_TO_A_PHASE):
            a, e = a.abs(), e.abs()
        rtol, atol = TOLERANCES.get(str(e.dtype).removeprefix("torch."), (None, None))
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)

    return check


def near_wider_result(actual: Any, compute: Callable[[], Any]) -> bool:
    """Whether floats are as near to the CPU's result in the next wider dtype as their own dtype can be.

    The CPU's own result in the narrow dtype need not be: some of its kernels round every partial sum.
    """
    import torch
    from torch.utils._pytree import tree_flatten

    try:
        got, want = tree_flatten(actual)[0], tree_flatten(compute())[0]
        for a, e in zip(got, want):
            if isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex()):
                e = e.to(a.dtype).to(e.dtype)  # what is too large becomes infinite
                finite = e[e.isfinite()]
                rtol = 4 * torch.finfo(a.dtype).eps
                atol = rtol * finite.abs().max().item() if finite.numel() else 0.0
                torch.testing.assert_close(a.cpu().to(e.dtype), e, rtol=rtol, atol=atol, equal_nan=True)
            elif isinstance(a, torch.Tensor):
                torch.testing.assert_close(a.cpu(), e)
    except (AssertionError, RuntimeError, TypeError):
        return False
    return len(got) == len(want)


def same_distribution(a: Any, e: Any) -> None:
    """Compare two draws: finite where the CPU's is, and means that could be of one distribution."""
    import torch

    if not a.numel() or a.dtype.is_complex:
        return
    a, e = a.double(), e.double()
    assert bool(a.isfinite().all()) or not bool(e.isfinite().all()), "not finite"
    if a.numel() >= 30 and bool(e.isfinite().all()):
        error = ((a.var() + e.var()) / a.numel()).sqrt()
        assert torch.abs(a.mean() - e.mean()) <= 6 * error + 1e-6, f"mean {a.mean():.3g} instead of {e.mean():.3g}"


# ---- samples -----------------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """Arguments of one experiment: `input` first, then the others, nested as they like."""

    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    finish: Callable[[Any], Any] = lambda result: result  # what of the result has a gradient that means something

    def leaves(self) -> list[Any]:
        """All tensors and other values in it."""
        from torch.utils._pytree import tree_flatten

        return tree_flatten((self.input, self.args, self.kwargs))[0]

    def tensors(self) -> list[Any]:
        """The tensors in it."""
        import torch

        return [x for x in self.leaves() if isinstance(x, torch.Tensor)]

    def map(self, fn: Callable[[Any], Any]) -> Sample:
        """With each tensor and other value replaced."""
        from torch.utils._pytree import tree_map

        input_, args, kwargs = tree_map(fn, (self.input, self.args, self.kwargs))
        return Sample(input_, args, kwargs, self.finish)

    def on(self, device: str, wider: bool = False) -> Sample:
        """Copies on a device, of the next wider dtype if asked to."""
        import torch

        def move(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                dtype = str(x.dtype).removeprefix("torch.")
                moved = x.detach().clone().to(device, getattr(torch, WIDER.get(dtype, dtype) if wider else dtype))
                return moved.requires_grad_(x.requires_grad)
            return device if x in ("cpu", torch.device("cpu")) else x

        return self.map(move)

    def __str__(self) -> str:
        import torch
        from torch.utils._pytree import tree_map

        show = lambda x: f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else x
        arguments = tree_map(show, (self.input, *self.args))
        return f"{arguments} {tree_map(show, self.kwargs) or ''}".strip()


def of_opinfo(sample: Any) -> Sample:
    """An OpInfo's SampleInput."""
    return Sample(sample.input, tuple(sample.args), dict(sample.kwargs), sample.output_process_fn_grad)


def choose_samples(samples: Iterable[Sample], limit: int) -> list[Sample]:
    """Return up to `limit` of the smallest samples, of different kinds where there are any."""
    import torch

    kinds: dict[Any, tuple[int, Sample]] = {}
    for sample in itertools.islice(samples, MAX_SAMPLES):
        tensors = sample.tensors()
        size = sum(x.numel() for x in tensors)
        others = str([x for x in sample.leaves() if not isinstance(x, torch.Tensor)])
        kind = (tuple(x.dim() for x in tensors), size == 0, others)
        if kind not in kinds or size < kinds[kind][0]:
            kinds[kind] = (size, sample)
    # Empty tensors last: they show the least.
    ordered = sorted(kinds.values(), key=lambda pair: (pair[0] == 0, pair[0]))
    step = max(1, len(ordered) // (2 * limit))  # from the smaller half, spread over it
    return [sample for _, sample in ordered[::step][:limit]]


def op_samples(op: Any, dtype: Any) -> Iterable[Sample]:
    """An op's samples."""
    return map(of_opinfo, op.sample_inputs("cpu", dtype))


def grad_samples(op: Any, dtype: Any) -> Iterable[Sample]:
    """An op's samples whose tensors require gradients where it has them."""
    return map(of_opinfo, op.sample_inputs("cpu", dtype, requires_grad=True))


def inplace_samples(op: Any, dtype: Any) -> Iterable[Sample]:
    """An op's samples whose result has the input's shape."""
    return (of_opinfo(s) for s in op.sample_inputs("cpu", dtype) if not s.broadcasts_input)


def error_samples(op: Any, dtype: Any) -> Iterable[Sample]:
    """Calls that an op refuses."""
    return (of_opinfo(e.sample_input) for e in op.error_inputs("cpu"))


def module_samples(info: Any, dtype: Any) -> Iterable[Sample]:
    """A module's inputs; args: its class, how to make it, whether it trains."""
    for training in (False, True):
        for m in info.module_inputs_func(info, "cpu", dtype, requires_grad=False, training=training):
            if m.forward_input is not None:
                made = (info.module_cls, m.constructor_input.args, m.constructor_input.kwargs, training)
                yield Sample(list(m.forward_input.args), made, dict(m.forward_input.kwargs))


def optimizer_samples(info: Any, dtype: Any) -> Iterable[Sample]:
    """An optimizer's options, with each of its implementations."""
    for implementation in (None, *info.supported_impls, "capturable" if info.has_capturable_arg else None):
        if implementation != "differentiable":
            for options in info.optim_inputs_func(device="cpu"):
                kwargs = {k: v for k, v in options.kwargs.items() if k not in ("foreach", "fused", "capturable")}
                yield Sample(None, (info.optim_cls, implementation), kwargs)


# ---- experiments -------------------------------------------------------------------------------------------------


def comparable(name: str, result: Any) -> Any:
    """What of an op's result is the same everywhere."""
    import torch

    if name in FIRST_RESULT_ONLY:
        return result[0]
    if name in UNORDERED:
        values, *vectors = result if isinstance(result, tuple) else (result,)
        order = (values.real + 0.1 * values.imag).argsort(-1)
        return [torch.take_along_dim(x, order if x is values else order.unsqueeze(-2), -1) for x in (values, *vectors)]
    return result


def forward(op: Any, s: Sample) -> Any:
    """Call it."""
    return comparable(op.name, op(s.input, *s.args, **s.kwargs))


def out(op: Any, s: Sample) -> Any:
    """Into tensors of the right size and other strides, then into empty ones, which have to grow."""
    import torch

    results = op(s.input, *s.args, **s.kwargs)
    single = isinstance(results, torch.Tensor)
    on_cpu = all(x.device.type == "cpu" for x in s.tensors())
    given = []
    for make in (lambda t: torch.full_like(t.mT if t.dim() > 1 else t, 1).reshape(t.shape), lambda t: t.new_empty(0)):
        outs = [make(t) for t in ([results] if single else results)]
        op(s.input, *s.args, **s.kwargs, out=outs[0] if single else tuple(outs))
        # Some of the CPU's kernels ignore strides of `out`: there the results themselves are what is right.
        given.append(list([results] if single else results) if on_cpu else outs)
    return given


def inplace(op: Any, s: Sample) -> Any:
    """Its method with an underscore, on a copy and on a part of a larger tensor."""
    import torch

    written = []
    for widen in (False, True):
        x = torch.stack([s.input, s.input], -1)[..., 0] if widen else s.input.clone()
        op.inplace_variant(x, *s.args, **s.kwargs)
        written.append(x)
    return written


def replaced(op: Any, s: Sample) -> Any:
    """Call its form with an underscore."""
    op.inplace_variant(s.input, *s.args, **s.kwargs)
    return s.input


def strided(op: Any, s: Sample) -> Any:
    """Arguments that are not contiguous."""
    import torch
    from torch.testing._internal.common_utils import noncontiguous_like

    return forward(op, s.map(lambda x: noncontiguous_like(x) if isinstance(x, torch.Tensor) else x))


def lazy_bits(op: Any, s: Sample) -> Any:
    """Arguments that are conjugated or negated only when they are read."""
    import torch

    def lazily(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not (x.is_complex() or x.is_floating_point()):
            return x
        return x.conj().resolve_conj().conj() if x.is_complex() else torch._neg_view(x.neg())

    return forward(op, s.map(lazily))


def emptied(op: Any, s: Sample) -> Any:
    """No element along the first dim of the input, and of what shares its size."""
    import torch

    shape = s.tensors()[0].shape

    def cut(x: Any) -> Any:
        return x[:0] if isinstance(x, torch.Tensor) and x.dim() and x.shape[0] == shape[0] else x

    return forward(op, s.map(cut) if shape else s)


def metadata(op: Any, s: Sample) -> Any:
    """What the results look like, strides too."""
    import torch
    from torch.utils._pytree import tree_map

    def look(x: Any) -> Any:
        return f"{list(x.shape)} {x.dtype} {x.stride()}" if isinstance(x, torch.Tensor) else x

    return tree_map(look, forward(op, s))


def _weights(x: Any) -> Any:
    """Numbers of both signs, of a tensor's shape and dtype."""
    import torch

    numbers = torch.arange(1, x.numel() + 1, dtype=torch.float64).cos().reshape(x.shape)
    if x.is_complex():
        numbers = torch.complex(numbers, numbers.flip(0) if x.dim() else numbers)
    return numbers.to(x.device, x.dtype)


def _differentiable(results: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_flatten

    return [x for x in tree_flatten(results)[0] if isinstance(x, torch.Tensor) and x.requires_grad]


def gradients(op: Any, s: Sample) -> Any:
    """With respect to every input that has one."""
    import torch

    inputs = [x for x in s.tensors() if x.requires_grad]
    results = s.finish(comparable(op.name, op.gradcheck_wrapper(op, s.input, *s.args, **s.kwargs)))
    results = _differentiable(results)
    return torch.autograd.grad(results, inputs, [_weights(x) for x in results], allow_unused=True)


def tangents(op: Any, s: Sample) -> Any:
    """In forward mode."""
    import torch
    import torch.autograd.forward_ad as fwad
    from torch.utils._pytree import tree_flatten

    def dual(x: Any) -> Any:
        wants = isinstance(x, torch.Tensor) and x.requires_grad
        return fwad.make_dual(x.detach(), _weights(x)) if wants else x

    with fwad.dual_level():
        moved = s.map(dual)
        results = op.gradcheck_wrapper(op, moved.input, *moved.args, **moved.kwargs)
        results = s.finish(comparable(op.name, results))
        leaves = [x for x in tree_flatten(results)[0] if isinstance(x, torch.Tensor)]
        return [fwad.unpack_dual(x).tangent for x in leaves]


def mapped(op: Any, s: Sample) -> Any:
    """Over a batch of inputs, by torch.vmap."""
    import torch

    batch = torch.stack([s.input, s.input])
    return torch.vmap(lambda x: op(x, *s.args, **s.kwargs), randomness="different")(batch)


def compiled(op: Any, s: Sample, dynamic: bool = False) -> Any:
    """In a function that torch.compile compiles."""
    import torch

    def call(x: Any, args: Any, kwargs: Any) -> Any:
        return op(x, *args, **kwargs)

    if all(x.device.type == "cpu" for x in s.tensors()):
        return call(s.input, s.args, s.kwargs)
    torch._dynamo.reset()
    return torch.compile(call, backend="tpu", dynamic=dynamic)(s.input, s.args, s.kwargs)


def compiled_dynamic(op: Any, s: Sample) -> Any:
    """In a function that torch.compile compiles for sizes that vary."""
    return compiled(op, s, dynamic=True)


def checked_gradients(op: Any, s: Sample) -> Any:
    """Against differences of its own results, by gradcheck; in strict mode, which repeats an op to the last bit."""
    import torch

    inputs = [x for x in s.tensors() if x.requires_grad]

    def call(*given: Any) -> Any:
        replaced = {id(x): y for x, y in zip(inputs, given)}
        moved = s.map(lambda x: replaced.get(id(x), x))
        return tuple(_differentiable(s.finish(op.gradcheck_wrapper(op, moved.input, *moved.args, **moved.kwargs))))

    on_cpu = all(x.device.type == "cpu" for x in inputs)
    with contextlib.nullcontext() if on_cpu else torch.tpu.set_eager_mode("strict"):
        return torch.autograd.gradcheck(call, inputs, nondet_tol=op.gradcheck_nondet_tol, fast_mode=True)


def module(info: Any, s: Sample) -> Any:
    """A module's results, its gradients and its buffers."""
    import torch

    cls, args, kwargs, training = s.args
    device, dtype = s.kwargs.pop("device"), s.kwargs.pop("dtype")
    torch.manual_seed(0)
    cpu = Sample(None, args, kwargs).on("cpu")
    net = cls(*cpu.args, **(cpu.kwargs | ({"device": "cpu"} if "device" in cpu.kwargs else {})))
    net = net.to(device, dtype if dtype.is_floating_point or dtype.is_complex else None).train(training)
    results = net(*s.input, **s.kwargs)
    wanting = _differentiable(results)
    if training and wanting:
        torch.autograd.backward(wanting, [_weights(x) for x in wanting])
    return [results, [p.grad for p in net.parameters()], list(net.buffers())]


def optimizer(info: Any, s: Sample) -> Any:
    """Parameters after some steps down a small bowl."""
    import torch

    cls, implementation = s.args
    device = s.kwargs.pop("device")
    dtype = s.kwargs.pop("dtype")
    start = [torch.linspace(-1, 1, 12, dtype=dtype).reshape(3, 4), torch.linspace(2, 1, 4, dtype=dtype)]
    if cls is torch.optim.Muon:
        start = start[:1]
    parameters = [x.to(device).requires_grad_() for x in start]
    # Not every implementation is for the CPU: there, the plain one is what it has to agree with.
    options = {implementation: True} if implementation and device != "cpu" else {}
    optimizer = cls(parameters, **copy.deepcopy(s.kwargs), **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(((x - 0.3).abs() ** 2 * (1 + i)).sum() for i, x in enumerate(parameters))
        loss.backward()
        if cls is torch.optim.SparseAdam:
            for x in parameters:
                x.grad = x.grad.to_sparse()
        return loss

    for _ in range(4):
        optimizer.step(closure)
    return [x.detach() for x in parameters]


# ---- modes -------------------------------------------------------------------------------------------------------


@functools.cache
def op_db() -> list[Any]:
    """PyTorch's ops."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


@functools.cache
def reference_db() -> list[Any]:
    """PyTorch's references in Python, which call primitive ops."""
    from torch.testing._internal.common_methods_invocations import python_ref_db

    return list(python_ref_db)


@functools.cache
def higher_order_db() -> list[Any]:
    """Ops that take functions."""
    from torch.testing._internal.hop_db import hop_db

    return list(hop_db)


@functools.cache
def foreach_db() -> list[Any]:
    """Ops over lists of tensors."""
    from torch.testing._internal import common_methods_invocations as c

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    return [op for kind in kinds for op in getattr(c, f"foreach_{kind}_op_db")]


@functools.cache
def module_db() -> list[Any]:
    """torch.nn's modules."""
    from torch.testing._internal.common_modules import module_db

    return list(module_db)


@functools.cache
def optimizer_db() -> list[Any]:
    """torch.optim's optimizers."""
    from torch.testing._internal.common_optimizers import optim_db

    return list(optim_db)


@dataclass(frozen=True)
class Mode:
    """An experiment over a database.

    applies: to which of its entries. refusals: the CPU's exceptions are results too. reference: the device that is the
    specification. dtypes: what it is run with unless others are asked for.
    """

    run: Callable[[Any, Sample], Any]
    database: Callable[[], Sequence[Any]] = op_db
    samples: Callable[[Any, Any], Iterable[Sample]] = op_samples
    applies: Callable[[Any], Any] = lambda op: True
    refusals: bool = False
    reference: str = "cpu"
    dtypes: tuple[str, ...] = ("float32",)

    def entries(self) -> list[Any]:
        """The database's entries that it applies to."""
        return [op for op in self.database() if self.applies(op)]


def _takes_out(op: Any) -> bool:
    return bool(op.supports_out)


MODES = {
    "forward": Mode(forward, dtypes=("float32", "int64", "bool", "bfloat16", "complex64")),
    "out": Mode(out, applies=_takes_out),
    "inplace": Mode(inplace, samples=inplace_samples, applies=lambda op: op.inplace_variant),
    "strided": Mode(strided),
    "lazy": Mode(lazy_bits, applies=lambda op: op.test_conjugated_samples, dtypes=("complex64",)),
    "empty": Mode(emptied, refusals=True),
    "errors": Mode(forward, samples=error_samples, applies=lambda op: op.error_inputs_func, refusals=True),
    "meta": Mode(metadata, reference="meta"),
    "grad": Mode(gradients, samples=grad_samples, applies=lambda op: op.supports_autograd, dtypes=("float64",)),
    "gradcheck": Mode(
        checked_gradients, samples=grad_samples, applies=lambda op: op.supports_autograd, dtypes=("float64",)
    ),
    "jvp": Mode(tangents, samples=grad_samples, applies=lambda op: op.supports_forward_ad, dtypes=("float64",)),
    "vmap": Mode(mapped),
    "compiled": Mode(compiled),
    "compiled_dynamic": Mode(compiled_dynamic),
    "references": Mode(forward, reference_db),
    "higher_order": Mode(compiled, higher_order_db),
    "foreach": Mode(forward, foreach_db),
    "foreach_inplace": Mode(replaced, foreach_db, applies=lambda op: op.inplace_variant),
    "modules": Mode(module, module_db, module_samples, dtypes=("float64",)),
    "optimizers": Mode(optimizer, optimizer_db, optimizer_samples, dtypes=("float64",)),
}


def key_of(entry: Any) -> tuple[str, str]:
    """The name and variant of a database's entry."""
    name = entry.optim_cls.__name__ if hasattr(entry, "optim_cls") else entry.name
    return name, getattr(entry, "variant_test_name", "")


def dtypes_of(mode: str, entry: Any) -> set[Any]:
    """The dtypes that an entry lists for the CPU in a mode."""
    import torch

    if mode == "optimizers":
        return {torch.float32, torch.float64}
    if mode == "modules":
        return set(entry.dtypes)
    differentiates = mode in ("grad", "gradcheck", "jvp")
    listed = set(entry.supported_backward_dtypes("cpu") if differentiates else entry.supported_dtypes("cpu"))
    return listed & {torch.float32} or set(list(listed)[:1]) if mode == "errors" else listed


# ---- judging -----------------------------------------------------------------------------------------------------


def run_sample(mode: Mode, op: Any, sample: Sample, device: str, dtype: Any) -> Result | None:
    """Run one sample on both devices; None if the reference cannot run it."""
    import torch

    set_seed = torch.manual_seed
    name = key_of(op)[0]

    def call(target: str, seed: int = 0, wider: bool = False) -> Any:
        moved = sample.on(target, wider)
        if mode.run in (module, optimizer):
            moved.kwargs |= {"device": target, "dtype": dtype}
        set_seed(seed)
        # OpInfo wraps random ops in functions that set a seed of their own, which would hide that the seed matters.
        with unittest.mock.patch.object(torch, "manual_seed", side_effect=lambda _: set_seed(seed)):
            return mode.run(op, moved)

    refusal, expected, others = None, None, []
    try:
        expected, *others = [call(mode.reference, seed) for seed in range(4)]
    except Exception as error:
        if not mode.refusals:
            return None
        refusal = error

    def exact(a: Any, e: Any) -> None:
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)

    tolerate = values_close(name)
    try:
        for other in others:
            compare(other, expected, mode.reference, exact)
    except AssertionError:
        tolerate = same_distribution  # the seed matters: a random op
    if name in UNINITIALISED:
        tolerate = lambda a, e: None

    before = fallbacks(device)
    try:
        actual = call(device)
        if mode.refusals and device == "tpu":
            torch.tpu.synchronize()  # what fails only now would be taken for the next sample's fault
    except Exception as error:
        if refusal is None or not isinstance(error, type(refusal)):
            instead = f" instead of {explain(refusal)}" if refusal else ""
            return {"kind": "unsupported", "why": explain(error) + instead}
        return {"kind": "native", "why": ""}
    if refusal:
        return {"kind": "wrong", "why": f"no error instead of {explain(refusal)}"}
    fell = sorted(k for k, v in fallbacks(device).items() if v != before.get(k, 0))
    try:
        compare(actual, expected, device, tolerate)
    except AssertionError as error:
        # PyTorch's meta functions and its CPU kernels do not always agree on strides: either will do.
        if mode.reference == "cpu":
            right = near_wider_result(actual, lambda: call("cpu", wider=True))
        else:
            right = actual == call("cpu")
        if not right:
            return {"kind": "wrong", "why": " ".join(str(error).split())}
    except Exception as error:
        return {"kind": "unsupported", "why": explain(error)}
    return {"kind": "fallback", "why": ", ".join(fell)} if fell else {"kind": "native", "why": ""}


def run_op(mode: Mode, op: Any, dtype: Any, device: str, limit: int) -> Result:
    """Run up to `limit` samples of an op: the worst result."""
    import torch

    result: Result = {"kind": "none", "why": ""}
    torch.manual_seed(0)
    try:
        samples = choose_samples(mode.samples(op, dtype), 100 if mode.samples is error_samples else limit)
    except Exception as error:
        return {"kind": "none", "why": f"samples: {type(error).__name__}"}
    for sample in samples:
        one = run_sample(mode, op, sample, device, dtype)
        if one and KINDS.index(one["kind"]) > KINDS.index(result["kind"]):
            result = one | ({"sample": str(sample)[:300]} if one["kind"] in ("unsupported", "wrong") else {})
    return result


def explain(error: Exception) -> str:
    """Return an exception's type and text in one line, without the Python frames that pybind11 adds."""
    return " ".join(f"{type(error).__name__}: {str(error).split('At:')[0]}".split())


def fallbacks(device: str) -> dict[str, int]:
    """Return how often each op has run on the CPU instead."""
    import torch

    metrics = torch.tpu.metrics() if device == "tpu" else {}
    return {k.removeprefix("cpu_fallback."): v for k, v in metrics.items() if k.startswith("cpu_fallback.")}

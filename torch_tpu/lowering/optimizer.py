"""Ops over lists of tensors: foreach, the fused optimizers and what a gradient scaler calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from . import dtypes, meta
from .registry import lower, lower_op

if TYPE_CHECKING:
    from .builder import Builder, Operand, Value

aten = torch.ops.aten

# ---- foreach: each is another op's rule over every element of its lists

# fmt: off
_UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "clone", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac",
    "lgamma", "log", "log10", "log1p", "log2", "max", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
]
# fmt: on

# _foreach_ overload -> the overload that computes one element.
_FOREACH: dict[str, OpOverload] = {
    **{name: getattr(aten, name).default for name in _UNARY},
    "add.List": aten.add.Tensor,
    "add.Scalar": aten.add.Scalar,
    "add.ScalarList": aten.add.Scalar,
    "add.Tensor": aten.add.Tensor,
    "sub.List": aten.sub.Tensor,
    "sub.Scalar": aten.sub.Scalar,
    "sub.ScalarList": aten.sub.Scalar,
    "mul.List": aten.mul.Tensor,
    "mul.Scalar": aten.mul.Scalar,
    "mul.ScalarList": aten.mul.Scalar,
    "mul.Tensor": aten.mul.Tensor,
    "div.List": aten.div.Tensor,
    "div.Scalar": aten.div.Scalar,
    "div.ScalarList": aten.div.Scalar,
    "div.Tensor": aten.div.Tensor,
    "clamp_max.List": aten.clamp_max.Tensor,
    "clamp_max.Scalar": aten.clamp_max.default,
    "clamp_max.ScalarList": aten.clamp_max.default,
    "clamp_min.List": aten.clamp_min.Tensor,
    "clamp_min.Scalar": aten.clamp_min.default,
    "clamp_min.ScalarList": aten.clamp_min.default,
    "maximum.List": aten.maximum.default,
    "maximum.Scalar": aten.clamp_min.default,
    "maximum.ScalarList": aten.clamp_min.default,
    "minimum.List": aten.minimum.default,
    "minimum.Scalar": aten.clamp_max.default,
    "minimum.ScalarList": aten.clamp_max.default,
    "pow.List": aten.pow.Tensor_Tensor,
    "pow.Scalar": aten.pow.Tensor_Scalar,
    "pow.ScalarList": aten.pow.Tensor_Scalar,
    "pow.ScalarAndTensor": aten.pow.Scalar,
    "addcdiv.Scalar": aten.addcdiv.default,
    "addcdiv.ScalarList": aten.addcdiv.default,
    "addcmul.Scalar": aten.addcmul.default,
    "addcmul.ScalarList": aten.addcmul.default,
    "lerp.List": aten.lerp.Tensor,
    "lerp.Scalar": aten.lerp.Scalar,
    "lerp.ScalarList": aten.lerp.Scalar,
    "mm": aten.mm.default,
}


def _foreach(name: str, target: OpOverload) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(aten, f"_foreach_{packet}"), overload or "default")
    keywords = {a.name for a in target._schema.arguments if a.kwarg_only}
    names = [a.name for a in op._schema.arguments]
    renamed = {"scalars": "value"}  # addcdiv.ScalarList's name for it

    def rule(b: Builder, *args: Any, **kwargs: Any) -> list[Value]:
        given = {**dict(zip(names, args)), **kwargs}
        results = []
        for i, spec in enumerate(b.outputs):
            element = {renamed.get(n, n): x[i] if isinstance(x, list) else x for n, x in given.items()}
            positional = [x for n, x in element.items() if n not in keywords]
            results.append(lower_op(b, target, positional, {n: element[n] for n in keywords & set(element)}, [spec]))
        return results

    lower(op)(rule)


for _name, _target in _FOREACH.items():
    _foreach(_name, _target)


@lower(aten._foreach_zero.default)
def foreach_zero(b: Builder, xs: list[Value]) -> list[Value]:
    return [b.full(x.shape, 0, x.dtype) for x in xs]


@lower(aten._foreach_norm.Scalar, static=("ord",))
def foreach_norm(b: Builder, xs: list[Value], ord: float = 2, dtype: torch.dtype | None = None) -> list[Value]:
    op = aten.linalg_vector_norm.default
    return [lower_op(b, op, [x, ord], {"dtype": dtype}, [spec]) for x, spec in zip(xs, b.outputs)]


# ---- gradient scaling


def _flag(x: Value) -> Value:
    """found_inf as a 0-d bool; PyTorch keeps it in a float tensor of one element."""
    return x.reshape().ne(0)


@lower(aten._amp_foreach_non_finite_check_and_unscale.default)
def amp_unscale(b: Builder, grads: list[Value], found_inf: Value, inv_scale: Value) -> tuple[list[Value], Value]:
    bad = _flag(found_inf)
    unscaled = []
    for grad in grads:
        bad = bad | b.reduce_or(~b.is_finite(grad))
        dtype = dtypes.opmath(grad.dtype)
        unscaled.append(grad.to(dtype) * inv_scale.reshape().to(dtype))
    return unscaled, bad.to(found_inf.dtype).reshape(*found_inf.shape)


@lower(aten._amp_update_scale.default)
def amp_update_scale(
    b: Builder,
    scale: Value,
    growth_tracker: Value,
    found_inf: Value,
    growth: Operand,
    backoff: Operand,
    growth_interval: int,
) -> tuple[Value, Value]:
    skipped = _flag(found_inf)
    steps = growth_tracker + 1
    grows = steps.eq(growth_interval)
    grown = scale * b.scalar(growth, scale.dtype)
    # The scale stops growing before it becomes infinite.
    grown = b.select(grows & b.is_finite(grown), grown, scale)
    scale = b.select(skipped, scale * b.scalar(backoff, scale.dtype), grown)
    return scale, b.select(skipped | grows, 0, steps)


# ---- fused optimizers

# The schemas let every fused optimizer write the gradients; it does so only where it unscales them.
TRAITS: Any = {"wide": True, "keeps": [("grads", "grad_scale")]}

Lists = tuple["list[Value]", ...]
Step = Callable[..., "tuple[Value | None, ...]"]


def _fused(
    b: Builder,
    lists: Sequence[list[Value]],
    step: Step,
    maximize: bool,
    grad_scale: Value | None,
    found_inf: Value | None,
    steps: Sequence[Value] = (),
) -> Lists:
    """Apply step(param, grad, *state) -> (param, *state) to every parameter, in float32 for narrower dtypes.

    lists: parameters, gradients and state, as the op has them; an empty list is a state that is not kept.
    """
    results: Lists = tuple([] for _ in lists)
    skip = None if found_inf is None else _flag(found_inf)
    for i, param in enumerate(lists[0]):
        dtype = dtypes.opmath(param.dtype)
        grad = lists[1][i].to(dtype)
        if grad_scale is not None:
            grad = grad / grad_scale.reshape().to(dtype)
        state = [values[i].to(dtype) if values else None for values in lists[2:]]
        count = steps[i].reshape().to(dtype) if steps else None
        new = step(param.to(dtype), -grad if maximize else grad, *state, step=count, dtype=dtype)
        kept = lists[1][i] if grad_scale is None else grad
        for values, result, after in zip(lists, results, (new[0], kept, *new[1:])):
            if after is not None:
                result.append(after if skip is None else b.select(skip, values[i].to(dtype), after))
    return results


class _Scalar:
    """A hyperparameter, exact until it is used: 1 - 0.999 has to be taken in double precision."""

    def __init__(self, b: Builder, x: Operand) -> None:
        self._b = b
        self._wide = b.scalar(x.reshape() if hasattr(x, "reshape") else x, torch.float64)

    def to(self, dtype: torch.dtype) -> Value:
        return self._wide.to(dtype)

    def complement(self, dtype: torch.dtype) -> Value:
        """1 - x"""
        return (self._b.full((), 1.0, torch.float64) - self._wide).to(dtype)

    def bias_correction(self, step: Value) -> Value:
        """1 - x ** step"""
        b = self._b
        return -b.exponential_minus_one(step * b.log_plus_one(-self.complement(step.dtype)))


def _adam(decoupled: bool) -> Callable[..., Lists]:
    def rule(
        b: Builder,
        params: list[Value],
        grads: list[Value],
        exp_avgs: list[Value],
        exp_avg_sqs: list[Value],
        max_exp_avg_sqs: list[Value],
        state_steps: list[Value],
        *,
        lr: Operand,
        beta1: Operand,
        beta2: Operand,
        weight_decay: Operand,
        eps: Operand,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Value | None = None,
        found_inf: Value | None = None,
    ) -> Lists:
        rate, decay, epsilon, first, second = (_Scalar(b, x) for x in (lr, weight_decay, eps, beta1, beta2))

        def update(
            param: Value, grad: Value, avg: Value, square: Value, largest: Value | None, step: Value, dtype: torch.dtype
        ) -> tuple[Value | None, ...]:
            if decoupled:
                param = param - rate.to(dtype) * decay.to(dtype) * param
            else:
                grad = grad + decay.to(dtype) * param
            avg = avg + first.complement(dtype) * (grad - avg)
            square = square * second.to(dtype) + second.complement(dtype) * grad * grad
            if largest is not None:
                largest = b.maximum(largest, square)
            denominator = b.sqrt(square if largest is None else largest) / b.sqrt(second.bias_correction(step))
            size = rate.to(dtype) / first.bias_correction(step)
            return param - size * avg / (denominator + epsilon.to(dtype)), avg, square, largest

        lists = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs if amsgrad else [])
        return _fused(b, lists, update, maximize, grad_scale, found_inf, state_steps)

    return rule


lower(aten._fused_adam.default, aten._fused_adam.tensor_lr, **TRAITS)(_adam(decoupled=False))
lower(aten._fused_adamw.default, aten._fused_adamw.tensor_lr, **TRAITS)(_adam(decoupled=True))


@lower(aten._fused_sgd.default, aten._fused_sgd.tensor_lr, **TRAITS)
def fused_sgd(
    b: Builder,
    params: list[Value],
    grads: list[Value],
    momentum_buffers: list[Value],
    *,
    weight_decay: Operand,
    momentum: Operand,
    lr: Operand,
    dampening: Operand,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Value | None = None,
    found_inf: Value | None = None,
) -> Lists:
    decay, mass, rate, damping = (_Scalar(b, x) for x in (weight_decay, momentum, lr, dampening))

    def update(
        param: Value, grad: Value, buffer: Value | None, step: None, dtype: torch.dtype
    ) -> tuple[Value, Value | None]:
        grad = grad + decay.to(dtype) * param
        if buffer is not None:
            buffer = grad if is_first_step else mass.to(dtype) * buffer + damping.complement(dtype) * grad
            grad = grad + mass.to(dtype) * buffer if nesterov else buffer
        return param - rate.to(dtype) * grad, buffer

    return _fused(b, (params, grads, momentum_buffers), update, maximize, grad_scale, found_inf)


def _adagrad(
    b: Builder,
    params: list[Value],
    grads: list[Value],
    state_sums: list[Value],
    state_steps: list[Value],
    *,
    lr: Operand,
    lr_decay: Operand,
    weight_decay: Operand,
    eps: Operand,
    maximize: bool,
    grad_scale: Value | None = None,
    found_inf: Value | None = None,
) -> Lists:
    rate, rate_decay, decay, epsilon = (_Scalar(b, x) for x in (lr, lr_decay, weight_decay, eps))

    def update(param: Value, grad: Value, total: Value, step: Value, dtype: torch.dtype) -> tuple[Value, Value]:
        grad = grad + decay.to(dtype) * param
        total = total + grad * grad
        size = rate.to(dtype) / (1 + (step - 1) * rate_decay.to(dtype))
        return param - size * grad / (b.sqrt(total) + epsilon.to(dtype)), total

    return _fused(b, (params, grads, state_sums), update, maximize, grad_scale, found_inf, state_steps)


lower(aten._fused_adagrad.tensor_lr, **TRAITS)(_adagrad)


@lower(aten._fused_adagrad.default, **TRAITS)
def fused_adagrad(
    b: Builder, params: list[Value], grads: list[Value], state_sums: list[Value], steps: list[Value], **kwargs: Any
) -> Lists:
    # This overload's schema says that it writes the steps; it does not.
    return *_adagrad(b, params, grads, state_sums, steps, **kwargs), steps


meta.in_place(
    aten._fused_adam_.tensor_lr,
    aten._fused_adamw_.tensor_lr,
    aten._fused_sgd_.default,
    aten._fused_sgd_.tensor_lr,
    aten._fused_adagrad_.default,
    aten._fused_adagrad_.tensor_lr,
)

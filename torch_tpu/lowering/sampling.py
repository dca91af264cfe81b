"""Distributions that are sampled by rejection: Poisson, binomial, gamma, Dirichlet.

Every element tries until one of its own candidates is accepted; the loop ends when all have one. Each try draws from
further planes of the element's Philox block, so a sample depends on nothing but its element's draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import dtypes
from .indices import gather_dims
from .meta import meta
from .philox import U32, normals, positive_unit, unit, words
from .registry import jax_rule, lower

if TYPE_CHECKING:
    from .builder import Builder, Value

    # The plane to draw from and the carried values -> accepted, candidate, carried values.
    Attempt = Callable[[Value, Sequence[Value]], tuple[Value, Value, Sequence[Value]]]

aten = torch.ops.aten
_TRIES = 10000  # a bound for arguments that no candidate satisfies, such as NaN


def _first_accepted(b: Builder, shape: tuple[int, ...], carried: Sequence[Value], attempt: Attempt) -> Value:
    """Each element's first accepted candidate."""
    dtype = carried[0].dtype

    def undecided(tries: Value, done: Value, *_: Value) -> Value:
        return ~b.reduce_and(done) & (tries < _TRIES)

    def step(tries: Value, done: Value, result: Value, *carried: Value) -> list[Value]:
        accepted, candidate, carried_on = attempt(tries.to(U32) * b.full((), 2, U32) + b.full((), 1, U32), carried)
        result = b.select(accepted & ~done, candidate, result)
        return [tries + 1, done | accepted, result, *carried_on]

    start = [b.full((), 0, torch.int32), b.full(shape, False, torch.bool), b.full(shape, 0, dtype)]
    return b.while_loop([*start, *carried], undecided, step)[2]


def _both(b: Builder, small: Value, for_small: Value, for_large: Value) -> Value:
    """for_small where small, else for_large, both bool."""
    return (small & for_small) | (~small & for_large)


# ---- Poisson


@lower(aten.poisson, random=True)
def poisson(b: Builder, rate: Value, *_: Any, rng: Value, **__: Any) -> Value:
    dtype = dtypes.opmath(rate.dtype)
    rate = rate.to(dtype)
    small = rate < 10
    # Hoermann's transformed rejection for large rates, with the constants of his paper (1993).
    large_rate = b.maximum(rate, 10)
    scale = 0.931 + 2.53 * b.sqrt(large_rate)
    shape = -0.059 + 0.02483 * scale
    inverse_alpha = 1.1239 + 1.1328 / (scale - 3.4)
    squeeze = 0.9277 - 3.6224 / (scale - 2.0)

    def attempt(plane: Value, carried: Sequence[Value]) -> tuple[Value, Value, Sequence[Value]]:
        # Small rates count the arrivals, an exponential time apart, before the time `rate`.
        count, time = carried
        block = words(b, rng, rate.shape, plane)
        time = time - b.log(positive_unit(b, block[2], block[3], dtype))
        arrived = ~(time <= rate)

        u = unit(b, block[0], block[2], dtype) - 0.5
        v = positive_unit(b, block[1], block[3], dtype)
        edge = 0.5 - b.abs(u)
        k = b.floor((2.0 * shape / edge + scale) * u + large_rate + 0.43)
        bound = b.log(v * inverse_alpha / (shape / (edge * edge) + scale))
        inside = (k >= 0) & ~((edge < 0.013) & (v > edge))
        accepted = ((edge >= 0.07) & (v <= squeeze)) | (inside & (bound <= _log_poisson(b, k, large_rate)))
        return _both(b, small, arrived, accepted), b.select(small, count, k), [count + 1, time]

    zero = b.full(rate.shape, 0, dtype)
    return _first_accepted(b, rate.shape, [zero, zero], attempt)


def _log_poisson(b: Builder, k: Value, rate: Value) -> Value:
    """Logarithm of the probability of k, written so that large terms do not cancel (Stirling for k!)."""
    k1 = b.maximum(k, 1)
    excess = (k1 - rate) / rate
    main = rate * ((1 + excess) * b.log_plus_one(excess) - excess)
    correction = 1 / (12 * k1) - 1 / (360 * k1 * k1 * k1)
    return b.select(k < 1, -rate, -main - 0.5 * b.log(2 * math.pi * k1) - correction)


# ---- binomial


@meta(aten.binomial.default)
def binomial_meta(count: torch.Tensor, prob: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return torch.empty_like(count)


@lower(aten.binomial, random=True)
def binomial(b: Builder, count: Value, prob: Value, *_: Any, rng: Value, **__: Any) -> Value:
    dtype = dtypes.opmath(count.dtype)
    n, p = b.broadcast(count.to(dtype), prob.to(dtype))
    flipped = p > 0.5
    p = b.select(flipped, 1 - p, p)
    small = n * p < 10
    # Hoermann's transformed rejection for large means, with the constants of his paper (BTRS, 1993).
    large_n, large_p = b.select(small, 40.0, n), b.select(small, 0.5, p)
    deviation = b.sqrt(large_n * large_p * (1 - large_p))
    scale = 1.15 + 2.53 * deviation
    shape = -0.0873 + 0.0248 * scale + 0.01 * large_p
    squeeze = 0.92 - 4.2 / scale
    odds = large_p / (1 - large_p)
    alpha = (2.83 + 5.1 / scale) * deviation
    mode = b.floor((large_n + 1) * large_p)

    def attempt(plane: Value, carried: Sequence[Value]) -> tuple[Value, Value, Sequence[Value]]:
        # Small means count the successes, a geometric number of trials apart, within n trials.
        successes, trials = carried
        block = words(b, rng, n.shape, plane)
        gap = b.ceil(b.log(positive_unit(b, block[2], block[3], dtype)) / b.log_plus_one(-p))
        trials = trials + b.maximum(gap, 1)
        over = ~(trials <= n)

        u = unit(b, block[0], block[2], dtype) - 0.5
        v = positive_unit(b, block[1], block[3], dtype)
        edge = 0.5 - b.abs(u)
        k = b.floor((2.0 * shape / edge + scale) * u + large_n * large_p + 0.5)
        inside = (k >= 0) & (k <= large_n)
        k = b.clamp(k, 0, large_n)
        bound = b.log(v * alpha / (shape / (edge * edge) + scale))
        limit = (
            (mode + 0.5) * b.log((mode + 1) / (odds * (large_n - mode + 1)))
            + (large_n + 1) * b.log((large_n - mode + 1) / (large_n - k + 1))
            + (k + 0.5) * b.log(odds * (large_n - k + 1) / (k + 1))
            + (_stirling_tail(b, mode) + _stirling_tail(b, large_n - mode))
            - (_stirling_tail(b, k) + _stirling_tail(b, large_n - k))
        )
        accepted = inside & (((edge >= 0.07) & (v <= squeeze)) | (bound <= limit))
        return _both(b, small, over, accepted), b.select(small, successes, k), [successes + 1, trials]

    zero = b.full(n.shape, 0, dtype)
    result = _first_accepted(b, n.shape, [zero, zero], attempt)
    return b.select(flipped, n - result, result)


def _stirling_tail(b: Builder, k: Value) -> Value:
    """log(k!) minus Stirling's formula at k + 1."""
    table = [
        math.lgamma(i + 1) - ((i + 0.5) * math.log(i + 1) - (i + 1) + 0.5 * math.log(2 * math.pi)) for i in range(10)
    ]
    exact = gather_dims(b, b.constant(table, k.dtype), [0], [b.minimum(k, 9).to(torch.int32)], 0)
    k1 = k + 1
    series = (1 / 12 - (1 / 360 - 1 / 1260 / (k1 * k1)) / (k1 * k1)) / k1
    return b.select(k <= 9, exact, series)


# ---- gamma


def _log_gamma_sample(b: Builder, alpha: Value, rng: Value) -> Value:
    """Logarithm of a standard gamma sample: Marsaglia and Tsang's squeeze, boosted below 1."""
    dtype = alpha.dtype
    boosted = alpha < 1
    d = b.select(boosted, alpha + 1, alpha) - 1 / 3
    c = 1 / b.sqrt(9 * d)

    def attempt(plane: Value, carried: Sequence[Value]) -> tuple[Value, Value, Sequence[Value]]:
        x = normals(b, words(b, rng, alpha.shape, plane), dtype)[0]
        block = words(b, rng, alpha.shape, plane + b.full((), 1, U32))
        u = positive_unit(b, block[0], block[1], dtype)
        root = 1 + c * x
        log_v = 3 * b.log(b.maximum(root, torch.finfo(dtype).tiny))
        accepted = (root > 0) & (b.log(u) < 0.5 * x * x + d * (1 - root * root * root + log_v))
        return accepted, b.log(d) + log_v, carried

    sample = _first_accepted(b, alpha.shape, [b.full(alpha.shape, 0, dtype)], attempt)
    block = words(b, rng, alpha.shape)
    return b.select(boosted, sample + b.log(positive_unit(b, block[0], block[1], dtype)) / alpha, sample)


@lower(aten._standard_gamma, random=True)
def standard_gamma(b: Builder, alpha: Value, *_: Any, rng: Value, **__: Any) -> Value:
    sample = b.exponential(_log_gamma_sample(b, alpha.to(dtypes.opmath(alpha.dtype)), rng))
    return b.maximum(sample, torch.finfo(alpha.dtype).tiny)


@meta(aten._sample_dirichlet.default)
def sample_dirichlet_meta(alpha: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return torch.empty_like(alpha)


@lower(aten._sample_dirichlet, random=True)
def sample_dirichlet(b: Builder, alpha: Value, *_: Any, rng: Value, **__: Any) -> Value:
    # In logarithms, since all gammas of small alphas may vanish together.
    sample = _log_gamma_sample(b, alpha.to(dtypes.opmath(alpha.dtype)), rng)
    sample = b.exponential(sample - b.reduce_max(sample, [-1], True))
    return sample / b.reduce_sum(sample, [-1], True)


@meta(aten._dirichlet_grad.default)
def dirichlet_grad_meta(x: torch.Tensor, alpha: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


# Nodes of a double exponential quadrature on (0, 1), as far towards 0 as alphas of 10,000 need.
STEP, FIRST, LAST = 0.1, -60, 33


@lower(aten._dirichlet_grad)
def dirichlet_grad(b: Builder, x: Value, alpha: Value, total: Value) -> Value:
    """-(d/d alpha of the beta distribution's cumulative function) / its density / (1 - x)

    As an integral from the nearer end to x of (psi(alpha) - psi(total) - log t) times the density at t over that at x,
    in the variable v = (t / x) ** alpha, where the end is no singularity.
    """
    dtype = dtypes.opmath(x.dtype)
    x, alpha, total = b.broadcast(*(v.to(dtype) for v in (x, alpha, total)))
    x = b.clamp(x, torch.finfo(dtype).tiny, 1 - torch.finfo(dtype).eps / 2)
    beta = total - alpha
    low = x * total <= alpha
    own, other = b.select(low, alpha, beta), b.select(low, beta, alpha)
    near, far = b.select(low, x, 1 - x), b.select(low, 1 - x, x)

    s = torch.arange(FIRST, LAST + 1, dtype=torch.float64) * STEP
    y = math.pi * s.sinh()
    log_v = torch.nn.functional.logsigmoid(y)
    log_weight = log_v + torch.nn.functional.logsigmoid(-y) + (math.pi * STEP * s.cosh()).log()
    wide = (*x.shape, len(s))

    def spread(v: Value) -> Value:
        return b.broadcast_to(b.unsqueeze(v, v.ndim), wide)

    log_u = b.broadcast_to(b.constant(log_v, dtype), wide) / spread(own)
    # of (1 - t) on the low side, else of t
    ratio = b.log_plus_one(-b.exponential_minus_one(log_u) * spread(near / far))
    log_t = b.select(spread(low), log_u, ratio) + spread(b.log(x))
    weights = b.exponential(spread(other - 1) * ratio + b.broadcast_to(b.constant(log_weight, dtype), wide))
    apart = spread(b.digamma(alpha) - b.digamma(total)) - log_t
    integral = b.reduce_sum(apart * weights, [len(wide) - 1])
    return b.select(low, integral * near / far, -integral) / own


@meta(aten._standard_gamma_grad.default)
def standard_gamma_grad_meta(alpha: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(alpha)


@jax_rule(aten._standard_gamma_grad)
def standard_gamma_grad(alpha: Any, output: Any) -> Any:
    from jax import lax

    return lax.random_gamma_grad(alpha, output)

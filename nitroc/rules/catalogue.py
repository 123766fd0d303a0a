"""The rules that come with nitroc. A user's rule is the same thing.

Fields, defaults and first slots are optax's.
"""

from __future__ import annotations

from typing import Any

from nitroc.rules.rule import namespace, rule, zeros


def bias_correction(b: Any, t: Any) -> Any:
    """`1 - b**t`, the weight an exponential average has collected after `t` values.

    Written as `1 - exp(-2y) = 2 tanh(y) / (1 + tanh(y))` with `y = -t log(b) / 2`: the plain form
    cancels, and in f32 is 6e-6 off for b = 0.999 at t = 1.
    """
    xp = namespace(b)
    y = xp.tanh(-0.5 * t * xp.log(b))
    return 2 * y / (1 + y)


@rule()
def sgd(g: Any) -> Any:
    """Robbins, Monro 1951: the gradient itself."""
    return g


@rule(slots={"trace": zeros})
def momentum(g: Any, trace: Any, *, momentum: float = 0.9, nesterov: bool = False) -> Any:
    """Polyak 1964; with `nesterov`, Sutskever et al. 2013. `optax.trace`."""
    trace = g + momentum * trace
    return (g + momentum * trace if nesterov else trace), trace


@rule(slots={"mu": zeros, "nu": zeros})
def adam(
    g: Any,
    mu: Any,
    nu: Any,
    t: Any,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    nesterov: bool = False,
) -> Any:
    """Kingma, Ba 2015; with `nesterov`, Dozat 2016. `optax.scale_by_adam`."""
    xp = namespace(g)
    mu, nu = b1 * mu + (1 - b1) * g, b2 * nu + (1 - b2) * (g * g)
    return _mean(g, mu, t, b1, nesterov) / _scale(xp, nu, t, b2, eps, eps_root), mu, nu


@rule(slots={"mu": zeros, "nu": zeros})
def radam(
    g: Any,
    mu: Any,
    nu: Any,
    t: Any,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: int = 5,
    nesterov: bool = False,
) -> Any:
    """Liu et al. 2020, "On the Variance of the Adaptive Learning Rate". `optax.scale_by_radam`.

    `ro`, the length of the average behind `nu`, is `ro_inf - 2 t b2**t / (1 - b2**t)` there; with
    `coth(y) = 1/y + langevin(y)` it is `t + langevin(y) - t langevin(t y)` at `y = -log(b2) / 2`,
    where nothing cancels. `threshold` is structure here: as a field it would take its value from an
    experiment's attribute of that common name.
    """
    xp = namespace(g)
    mu, nu = b1 * mu + (1 - b1) * g, b2 * nu + (1 - b2) * (g * g)
    y = -0.5 * xp.log(b2)
    length = t + (_langevin(xp, y) - t * _langevin(xp, t * y))
    limit = (1 + b2) / (1 - b2)
    tractable = length >= threshold
    # At its limit the rectification is 1, so the branch not taken has no root of a negative number.
    ro = xp.where(tractable, length, limit)
    rectify = xp.sqrt((ro - 4) * (ro - 2) * limit / ((limit - 4) * (limit - 2) * ro))
    mean = _mean(g, mu, t, b1, nesterov)
    adaptive = rectify * mean / _scale(xp, nu, t, b2, eps, eps_root)
    return xp.where(tractable, adaptive, mean), mu, nu


def _mean(g: Any, mu: Any, t: Any, b1: Any, nesterov: bool) -> Any:
    """The corrected first moment, one step ahead with `nesterov`."""
    if not nesterov:
        return mu / bias_correction(b1, t)
    return b1 * (mu / bias_correction(b1, t + 1)) + (1 - b1) * (g / bias_correction(b1, t))


def _scale(xp: Any, nu: Any, t: Any, b2: Any, eps: Any, eps_root: Any) -> Any:
    return xp.sqrt(nu / bias_correction(b2, t) + eps_root) + eps


def _langevin(xp: Any, y: Any) -> Any:
    """`coth(y) - 1/y` for y > 0, with no cancellation at small y.

    Below 1/4, five levels of Lambert's continued fraction `y/(3 + y^2/(5 + y^2/(7 + ...)))`: 1e-14.
    """
    square = y * y
    above = 3465 + square * (189 + square)
    below = 10395 + square * (1260 + 21 * square)
    direct = 1 / xp.tanh(y) - 1 / y
    return xp.where(y < 0.25, y * above / below, direct)


SGD = sgd
Momentum = momentum
Adam = adam
RAdam = radam

"""Every rule against optax's: fields, defaults, first slots, and fifty steps of numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from regression import Settings, batch, inputs, module, run_step, stages

from nitro_dialect.ir import Leaf
from nitroc import rules
from nitroc.rules import Rule

STEPS, SIZE = 50, 257
RULES = [
    rules.SGD,
    rules.Momentum,
    rules.Momentum(nesterov=True, momentum=0.5),
    rules.Adam,
    rules.Adam(nesterov=True),
    rules.Adam(b1=0.0, b2=0.5, eps=1e-3, eps_root=1e-6),
    rules.RAdam,
    rules.RAdam(nesterov=True),
    rules.RAdam(b2=0.9, eps_root=1e-4, threshold=6),
]
OPTAX: dict[str, Callable[..., Any]] = {
    "sgd": optax.identity,
    "momentum": lambda momentum, nesterov: optax.trace(momentum, nesterov),
    "adam": optax.scale_by_adam,
    "radam": optax.scale_by_radam,
}


def gradients() -> Iterator[np.ndarray[Any, Any]]:
    """Away from 0, exact in f32."""
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        sign = rng.choice([-1.0, 1.0], SIZE)
        yield (sign * rng.uniform(0.1, 2, SIZE)).astype(np.float32).astype(np.float64)


def oracle(rule: Rule, fields: dict[str, float]) -> list[np.ndarray[Any, Any]]:
    """optax's updates in f64."""
    with jax.enable_x64(True):
        transform = OPTAX[rule.name](**fields, **rule.structure)
        state = transform.init(jnp.zeros(SIZE, jnp.float64))
        found: list[np.ndarray[Any, Any]] = []
        for g in gradients():
            update, state = transform.update(jnp.asarray(g), state)
            assert update.dtype == np.float64
            found.append(np.asarray(update))
    return found


def rounded(rule: Rule) -> dict[str, float]:
    """The fields as a program gets them: rounded to f32 once."""
    return {name: float(np.float32(value)) for name, value in rule.fields.items()}


def counted(rule: Rule, t: int) -> dict[str, Any]:
    return {"t": t} if "t" in rule.positional else {}


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_A10_f64_numpy_equals_optax(rule: Rule) -> None:
    wanted = oracle(rule, dict(rule.fields))
    slots = [rule.start(name, np.zeros(SIZE)).astype(np.float64) for name in rule.slots]
    for t, (g, expected) in enumerate(zip(gradients(), wanted, strict=True), 1):
        u, *slots = rule.update(g, *slots, **counted(rule, t))
        assert u.dtype == np.float64
        np.testing.assert_allclose(u, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_A10_f32_jax_equals_optax(rule: Rule) -> None:
    wanted = oracle(rule, rounded(rule))
    slots = [jnp.zeros(SIZE, jnp.float32) for _ in rule.slots]
    update = jax.jit(lambda g, slots, t: rule.update(g, *slots, **counted(rule, t)))
    for t, (g, expected) in enumerate(zip(gradients(), wanted, strict=True), 1):
        u, *slots = update(jnp.asarray(g, jnp.float32), slots, t)
        assert u.dtype == np.float32
        largest = np.abs(expected).max()
        np.testing.assert_allclose(np.asarray(u), expected, rtol=0, atol=2e-6 * largest)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_A10_f32_program_equals_optax(rule: Rule) -> None:
    """Parameters at 0 and rate 1: the parameter after a step is minus the update."""
    config = Settings(rule=rule, stateful=False, metrics=False, learning_rate=1.0)
    stage = stages(config, module(config, (Leaf("w", "f32", (SIZE,)),)))["expand"]
    rows = batch(config, np.random.default_rng(0))
    zero = {"w": np.zeros(SIZE, np.float32)}
    values = inputs(config, stage, zero, {}, rows)
    for g, expected in zip(gradients(), oracle(rule, rounded(rule)), strict=True):
        given = {"w": g}
        out = run_step(config, stage, values, lambda p, s, *_, g=given: (0.0, 1.0, g, s))
        values |= {**out.assigned, "p": zero}
        largest = np.abs(expected).max()
        u = -out.assigned["p"]["w"]
        np.testing.assert_allclose(u, expected, rtol=0, atol=2e-6 * largest)


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
def test_A10_first_step_of_adam_is_the_sign(size: float) -> None:
    g = np.float32([size, -size])
    zero = np.zeros(2, np.float32)
    u, *_ = rules.Adam.update(g, zero, zero, 1)
    np.testing.assert_allclose(0.1 * u, 0.1 * np.sign(g), rtol=0, atol=1e-6)


def keywords(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.name != "mu_dtype"}


def test_fields_and_defaults_are_those_of_optax() -> None:
    for rule, theirs in ((rules.Adam, optax.scale_by_adam), (rules.RAdam, optax.scale_by_radam)):
        assert {**rule.fields, **rule.structure} == keywords(theirs)
    assert (rules.Momentum.fields, rules.SGD.fields) == ({"momentum": 0.9}, {})


@pytest.mark.parametrize("b", [0.0, 0.5, 0.9, 0.999, 0.999999])
@pytest.mark.parametrize("t", [1, 2, 50, 10_000])
def test_bias_correction_does_not_cancel(b: float, t: int) -> None:
    with np.errstate(divide="ignore"):
        made = rules.bias_correction(np.float32(b), np.float32(t))
    assert made.dtype == np.float32
    exact = -np.expm1(t * np.log(np.float64(np.float32(b)))) if b else 1.0
    assert float(made) == pytest.approx(exact, rel=5e-7)

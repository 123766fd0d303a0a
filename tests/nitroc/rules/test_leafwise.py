"""Rules that reduce over a leaf or hold marks: their text, what it means, their errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from leafwise import FINITE, LARGE, PEAK, RATIO, trusted, watched
from reference import run_program

import nitroc as nt
from nitro_dialect import verify
from nitro_dialect.builder import Names, building, emit
from nitro_dialect.ir import Group, Input, Leaf, Module, Program, Region, Value
from nitro_dialect.ops import Assign, OptRule, RuleMark
from nitro_dialect.types import F32, TreeType
from nitroc import rules
from nitroc.errors import ContractError, OptError
from nitroc.rules import Rule, namespace, rule

SHAPES = {"a": (2, 3), "b": (5,), "c": ()}


def applied(made: Rule, g: dict[str, np.ndarray], p: dict[str, np.ndarray]) -> dict[str, Any]:
    """The update that the rule's text means, in f64, slots at zero and t = 1."""
    kind = TreeType("default", "f32")
    trees = {name: Value(kind, name) for name in made.elements}
    fields = {name: Value(F32, f"{name}.field") for name in made.scalars}
    target = Value(kind, "u.out")
    leaves = tuple(Leaf(path, "f32", shape) for path, shape in SHAPES.items())
    inputs = [Input("slot", v, "zeros") for v in (*trees.values(), target)]
    inputs += [Input("scalars", v) for v in fields.values()]
    program = Program("step", inputs, Region())
    names = Names([i.value.name for i in inputs])
    with building(program.body, names):
        results = emit(
            OptRule,
            *trees.values(),
            types=[kind] * (1 + len(made.slots)),
            hints=["u", *(f"{s}.next" for s in made.slots)],
            symbol=made.name,
            fields=list(fields.values()),
        ).results
        emit(Assign, target, from_=[results[0]])
    module = Module(
        "M",
        marks={m.key: m for m in made.marks},
        groups={"default": Group("default", "param", leaves)},
        rules={made.name: made.build()},
        programs={"step": program},
    )
    verify(module)
    zeros = {path: np.zeros(shape) for path, shape in SHAPES.items()}
    given = dict.fromkeys(made.elements, zeros) | {"g": g, "u.out": zeros}
    given |= {"p": p} if "p" in made.elements else {}
    given |= {f"{k}.field": np.float32(made.fields.get(k, 1.0)) for k in made.scalars}
    return run_program(module, "step", given, {}, wide=True).assigned["u.out"]


def arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {path: np.asarray(rng.normal(size=shape)) for path, shape in SHAPES.items()}


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda xp, x: xp.sum(x),
    "mean": lambda xp, x: xp.mean(x),
    "max": lambda xp, x: xp.max(x),
    "min": lambda xp, x: xp.min(x),
    "any": lambda xp, x: xp.where(xp.any(x > 0.9), 1.0, 0.0),
    "any numbers": lambda xp, x: xp.where(xp.any(x), 1.0, 0.0),
    "all": lambda xp, x: xp.where(xp.all(x < 0.9), 1.0, 0.0),
    "count_nonzero": lambda xp, x: xp.count_nonzero(xp.maximum(x, 0.0)),
    "max of a mask": lambda xp, x: 2.0 * xp.max(x > 0.9),
    "mean of a mask": lambda xp, x: xp.mean(x > 0),
    "var": lambda xp, x: xp.var(x),
    "std": lambda xp, x: xp.std(x),
    "norm": lambda xp, x: xp.linalg.vector_norm(x),
    "of a number of the leaf": lambda xp, x: xp.mean(xp.sum(x)) + xp.max(xp.mean(x)),
    "nan": lambda xp, x: xp.where(xp.any(xp.isnan(x)) | xp.any(xp.isinf(x)), 1.0, xp.sum(x)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_is_numpys(name: str) -> None:
    @rule()
    def reducing(g: Any) -> Any:
        return g * REDUCTIONS[name](namespace(g), g)

    assert reducing.leafwise
    g = arrays(0)
    made = applied(reducing, g, {})
    for path, x in g.items():
        np.testing.assert_allclose(made[path], reducing.update(x)[0], rtol=1e-12)


def test_an_elementwise_rule_is_no_leafwise_one() -> None:
    for made in (rules.SGD, rules.Momentum, rules.Adam, rules.RAdam):
        assert not made.leafwise
        assert made.marks == ()


def test_the_trust_ratio_is_optaxs() -> None:
    g, p = arrays(1), {**arrays(2), "b": np.zeros(5)}
    made = applied(trusted, g, p)
    scale = optax.scale_by_trust_ratio(eps=trusted.fields["eps"])
    for path in g:
        x, held = jnp.asarray(g[path], jnp.float32), jnp.asarray(p[path], jnp.float32)
        wanted, _ = scale.update(x, scale.init(held), held)
        np.testing.assert_allclose(made[path], wanted, rtol=1e-5)
        numpys = trusted.update(g[path], p[path], np.zeros(SHAPES[path]), 1)[0]
        # b1 is rounded to f32 for the program
        np.testing.assert_allclose(made[path], numpys, rtol=1e-6)


def test_what_marks_a_rule_holds() -> None:
    assert [(m.key, m.kind, m.name) for m in watched.marks] == [
        (LARGE, "guard", "update/large"),
        (RATIO, "metric", "update/ratio"),
        (PEAK, "diagnostic", "update/peak"),
        (FINITE, "finite", "update/finite"),
    ]
    large, ratio, peak, _ = watched.marks
    assert large.meta == (("layer", 3),)
    assert (ratio.below, peak.reduce, peak.below) == (50.0, "max", 2.0)
    source = inspect.getsource(watched.function).splitlines()
    line = watched.function.__code__.co_firstlineno
    place = next(i for i, text in enumerate(source) if "nt.guard" in text)
    assert large.source.endswith(f"leafwise.py:{line + place}:5")


def channels(made: Rule) -> list[tuple[str, str]]:
    return [(op.key, op.channel) for op in made.build().body.ops if isinstance(op, RuleMark)]


def test_the_channels_of_each_kind() -> None:
    assert channels(watched) == [
        (LARGE, "count"), (LARGE, "odd"),
        (RATIO, "sum"), (RATIO, "n"), (RATIO, "count"),
        (PEAK, "max"), (PEAK, "n"), (PEAK, "count"),
        (FINITE, "count"),
    ]  # fmt: skip
    body = watched.build().body
    names = [op.x.name for op in body.ops if isinstance(op, RuleMark) and isinstance(op.x, Value)]
    assert names[:2] == ["update/large.count", "update/large.odd"]
    assert all(op.location for op in body.ops if isinstance(op, RuleMark))


def test_calls_of_one_series_have_keys_of_their_own() -> None:
    @rule()
    def twice(g: Any) -> Any:
        xp = namespace(g)
        nt.guard("a", xp.sum(g))
        nt.guard("b", xp.sum(g))
        nt.guard("a", xp.max(g))
        for layer in (1, 2, 2):
            nt.guard("c", xp.sum(g), layer=layer)
        return g

    assert [m.key for m in twice.marks] == [
        "a{group=default}", "b{group=default}", "a{group=default}#2",
        "c{group=default,layer=1}", "c{group=default,layer=2}",
    ]  # fmt: skip
    rows = channels(twice)
    assert len(rows) == len(set(rows)) == 10


def test_marks_are_part_of_what_a_rule_is() -> None:
    def named(name: str) -> Rule:
        @rule()
        def marked(g: Any) -> Any:
            nt.guard(name, namespace(g).sum(g))
            return g

        return marked

    assert named("a") == named("a")
    assert named("a") != named("b")


@pytest.mark.parametrize("xp", [np, jnp])
def test_outside_a_program_a_mark_returns_its_value_and_nothing_more(xp: Any) -> None:
    @rule()
    def passing(g: Any) -> Any:
        count = nt.guard("a", nt.count_where(g > 1))
        value = nt.metric("b", namespace(g).sum(g), below=0)
        return nt.assert_finite("c", g) + count + nt.diagnostic("d", value)

    g = xp.asarray([0.5, 2.0, 3.0], dtype=xp.float32)
    np.testing.assert_allclose(passing.update(g)[0], [8.0, 9.5, 10.5])


def of_elements(g: Any) -> Any:
    nt.guard("a", g)
    return g


def of_a_mask(g: Any) -> Any:
    nt.guard("a", namespace(g).any(g > 1))
    return g


def a_mask_of_elements(g: Any) -> Any:
    nt.guard("a", g > 1)
    return g


def a_metric_of_elements(g: Any) -> Any:
    nt.metric("a", abs(g))
    return g


def two_kinds(g: Any) -> Any:
    nt.metric("a", namespace(g).sum(g))
    nt.diagnostic("a", namespace(g).max(g))
    return g


def two_reduces(g: Any) -> Any:
    nt.diagnostic("a", namespace(g).sum(g), reduce="sum")
    nt.diagnostic("a", namespace(g).sum(g), reduce="mean")
    return g


REFUSED = [
    (of_elements, 20, 1, "one per element"),
    (of_a_mask, 20, 1, "is a bool"),
    (a_mask_of_elements, 20, 1, "nt.count_where"),
    (a_metric_of_elements, 20, 1, "xp.sum"),
    (two_kinds, 24, 1, "a metric (reduce mean) and a diagnostic (reduce mean)"),
    (two_reduces, 24, 2, "(reduce sum)"),
]


@pytest.mark.parametrize(("function", "code", "offset", "said"), REFUSED)
def test_a_mark_that_is_refused_says_the_line(
    function: Callable[..., Any], code: int, offset: int, said: str
) -> None:
    with pytest.raises(ContractError) as caught:
        rule()(function).build()
    assert caught.value.code == f"E-CONTRACT-{code:03d}"
    assert said in str(caught.value)
    assert f"test_leafwise.py:{function.__code__.co_firstlineno + offset}" in str(caught.value)


def test_a_value_of_a_rule_is_of_no_use_outside_it() -> None:
    kept: list[Any] = []

    @rule()
    def keeping(g: Any) -> Any:
        kept.append(namespace(g).sum(g))
        return g

    keeping.build()
    with pytest.raises(OptError, match=r"E-OPT-008: guard late .*test_leafwise"):
        nt.guard("late", kept[0])

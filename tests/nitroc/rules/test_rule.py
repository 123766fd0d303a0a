"""`nt.rule`: what it takes and refuses, content equality, what running it on IR values gives."""

from __future__ import annotations

import cProfile
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_dialect.builder import Names, building
from nitro_dialect.ir import Literal, Region, Value
from nitro_dialect.namespace import NAMESPACE
from nitro_dialect.types import F32
from nitroc import rules
from nitroc.errors import OptError
from nitroc.rules import Rule, namespace, rule, zeros


@rule(slots={"average": zeros, "peak": 0.5, "anchor": lambda p: p * 2})
def example(
    g: Any,
    p: Any,
    average: Any,
    peak: Any,
    anchor: Any,
    t: Any,
    *,
    rate: float = 0.25,
    signed: bool = False,
    power: int = 2,
    kind: str = "mean",
) -> Any:
    xp = namespace(g)
    average = average + rate * (g - average) / t
    peak = xp.maximum(peak, abs(g) ** power)
    u = xp.sign(average) if signed else average
    return (u + p if kind == "mean" else u), average, peak, anchor


def line_of(function: Callable[..., Any], offset: int = 0) -> str:
    return f"test_rule.py:{function.__code__.co_firstlineno + offset}"


def test_what_a_rule_declares() -> None:
    assert example.fields == {"rate": 0.25}
    assert example.structure == {"signed": False, "power": 2, "kind": "mean"}
    assert example.positional == ("g", "p", "average", "peak", "anchor", "t")
    built = example.build("mine")
    assert built.name == "mine"
    assert built.elements == ("g", "p", "average", "peak", "anchor")
    assert built.scalars == ("t", "rate")
    assert built.slots == (("average", "zeros"), ("peak", 0.5), ("anchor", "host"))
    assert [p.name for p in built.body.params] == [*built.elements, *built.scalars]
    assert all(p.type == F32 for p in built.body.params)


def test_values_are_named_after_variables() -> None:
    ops = example.build().body.ops
    assert [r.name for op in ops for r in op.results] == [
        "average.sub", "average.mul", "average.div", "average.next", "peak.abs", "peak.pow",
        "peak.next", "update.add",
    ]  # fmt: skip


def test_numbers_are_plain_floats() -> None:
    @rule()
    def scaled(g: Any) -> Any:
        return np.float32(2) * g + 1

    literals = [
        v.value
        for op in scaled.build().body.ops
        for row in op.operands.values()
        for v in row
        if isinstance(v, Literal)
    ]
    assert [(type(v), v) for v in literals] == [(float, 2.0), (float, 1.0)]


def test_starts() -> None:
    p = np.arange(4, dtype=np.float32).reshape(2, 2)
    np.testing.assert_array_equal(example.start("average", p), np.zeros((2, 2)))
    np.testing.assert_array_equal(example.start("peak", p), np.full((2, 2), 0.5))
    np.testing.assert_array_equal(example.start("anchor", p), p * 2)
    assert example.start("anchor", p.astype(np.float64)).dtype == np.float32


def test_a_start_of_another_shape_is_refused() -> None:
    @rule(slots={"m": lambda p: p[0]})
    def odd(g: Any, m: Any) -> Any:
        return g, m

    with pytest.raises(
        OptError, match=r"E-OPT-004: slot m .* \(2,\), expected the leaf's \(2, 2\)"
    ):
        odd.start("m", np.zeros((2, 2)))


@pytest.mark.parametrize("xp", [np, jnp])
def test_update_runs_on_arrays_in_their_dtype(xp: Any) -> None:
    g, p = xp.asarray([1.0, -2.0], dtype=xp.float32), xp.ones(2, dtype=xp.float32)
    state = [xp.asarray(example.start(s, np.ones(2)), dtype=xp.float32) for s in example.slots]
    u, average, peak, anchor = example.update(g, p, *state, 2, rate=0.5, signed=True)
    assert {x.dtype for x in (u, average, peak, anchor)} == {np.dtype(np.float32)}
    np.testing.assert_allclose(average, [0.25, -0.5])
    np.testing.assert_allclose(peak, [1.0, 4.0])
    np.testing.assert_allclose(u, [2.0, 0.0])
    named = example.update(g=g, p=p, average=state[0], peak=state[1], anchor=state[2], t=2)
    np.testing.assert_allclose(named[1], [0.125, -0.25])


def test_a_rule_with_other_settings_is_a_rule() -> None:
    changed = example(rate=1, kind="sum")
    assert isinstance(changed, Rule)
    assert (changed.fields["rate"], changed.structure["kind"]) == (1.0, "sum")
    assert isinstance(changed.fields["rate"], float)
    assert example.fields["rate"] == 0.25


REFUSED_SETTINGS = [
    ({"rat": 1.0}, "E-OPT-006", "did you mean rate?"),
    ({"learning_rate": 1.0}, "E-OPT-006", "no keyword learning_rate"),
    ({"rate": "fast"}, "E-OPT-007", "rate of rule example is a float, found 'fast'"),
    ({"rate": True}, "E-OPT-007", "found True"),
    ({"power": 2.0}, "E-OPT-007", "power of rule example is a int"),
    ({"signed": 1}, "E-OPT-007", "is a bool, found 1"),
]


@pytest.mark.parametrize(("settings", "code", "said"), REFUSED_SETTINGS)
def test_settings_are_checked(settings: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(OptError) as caught:
        example(**settings)
    assert caught.value.code == code
    assert said in str(caught.value)
    assert line_of(example.function) in str(caught.value)


def test_update_names_an_unknown_keyword() -> None:
    with pytest.raises(OptError, match=r"E-OPT-006.*\n.*did you mean b1\?"):
        rules.Adam.update(np.ones(2), np.zeros(2), np.zeros(2), 1, b11=0.5)


def bad_name(g: Any, moment: Any) -> Any:
    return g, moment


def bad_default(g: Any, b1: float = 0.9) -> Any:
    return g * b1


def rate_field(g: Any, *, learning_rate: float = 0.1) -> Any:
    return learning_rate * g


def decay_field(g: Any, p: Any, *, weight_decay: float = 0.1) -> Any:
    return g + weight_decay * p


def no_default(g: Any, *, b1: float) -> Any:
    return g * b1


def odd_default(g: Any, *, b1: Any = None) -> Any:
    return g if b1 is None else g * b1


def anything(g: Any, **settings: Any) -> Any:
    return g


def no_gradient(p: Any) -> Any:
    return p


REFUSED = [
    (bad_name, {"momentum": zeros}, "E-OPT-001", "did you mean momentum?"),
    (bad_default, {}, "E-OPT-001", "after the * with a default"),
    (rate_field, {}, "E-OPT-002", "ambiguous: applied twice"),
    (decay_field, {}, "E-OPT-002", "ambiguous: applied twice"),
    (no_default, {}, "E-OPT-003", "expected a keyword with a float"),
    (odd_default, {}, "E-OPT-003", "expected a keyword with a float"),
    (anything, {}, "E-OPT-003", "**settings"),
    (no_gradient, {}, "E-OPT-004", "must take g"),
    (bad_name, {"moment": zeros, "lost": zeros}, "E-OPT-004", "slot lost"),
    (bad_name, {"moment": "zeros"}, "E-OPT-004", "starts as 'zeros'"),
    (bad_name, {"moment": zeros, "t": zeros}, "E-OPT-004", "slot t"),
]


@pytest.mark.parametrize(("function", "slots", "code", "said"), REFUSED)
def test_a_function_is_refused_when_it_is_declared(
    function: Callable[..., Any], slots: dict[str, Any], code: str, said: str
) -> None:
    with pytest.raises(OptError) as caught:
        rule(slots=slots)(function)
    assert caught.value.code == code
    assert said in str(caught.value)
    assert line_of(function) in str(caught.value)


def test_a_wrong_number_of_results_is_said_when_it_runs() -> None:
    @rule(slots={"m": zeros})
    def short(g: Any, m: Any) -> Any:
        return g + m

    for run in (short.build, lambda: short.update(np.ones(2), np.ones(2))):
        with pytest.raises(OptError, match=r"E-OPT-005.*1 results, expected 2: update, m"):
            run()


def branches(g: Any) -> Any:
    if g > 0:
        return g
    return -g


def takes_numpy(g: Any) -> Any:
    return np.sqrt(g)


def indexes(g: Any) -> Any:
    return g[0]


def unknown_function(g: Any) -> Any:
    xp = namespace(g)
    return xp.erf(g)


def to_a_number(g: Any) -> Any:
    return g * float(g)


def has_a_shape(g: Any) -> Any:
    return g * g.size


def returns_a_condition(g: Any) -> Any:
    return g > 0


def sums_an_axis(g: Any) -> Any:
    xp = namespace(g)
    return g / xp.sqrt(xp.sum(g * g, axis=0))


def keeps_axes(g: Any) -> Any:
    xp = namespace(g)
    return g / xp.max(abs(g), keepdims=True)


def another_norm(g: Any) -> Any:
    xp = namespace(g)
    return g / xp.linalg.vector_norm(g, ord=1)


def multiplies_all(g: Any) -> Any:
    xp = namespace(g)
    return g / xp.prod(g)


def multiplies_matrices(g: Any) -> Any:
    xp = namespace(g)
    return g / xp.linalg.matmul(g, g)


def sums_a_number(g: Any) -> Any:
    xp = namespace(g)
    return g / xp.sum(2.0)


def sums_by_method(g: Any) -> Any:
    return g / g.sum()


BODIES = [
    (branches, 1, "E-OPT-008", "where(condition"),
    (takes_numpy, 1, "E-OPT-008", "nt.namespace(g)"),
    (indexes, 1, "E-OPT-008", "not subscriptable"),
    (unknown_function, 2, "E-OPT-008", "xp.erf has no meaning"),
    (to_a_number, 1, "E-OPT-008", "float"),
    (has_a_shape, 1, "E-OPT-008", "size"),
    (returns_a_condition, 0, "E-OPT-008", "returns i1"),
    (sums_an_axis, 2, "E-OPT-009", "sum along an axis"),
    (keeps_axes, 2, "E-OPT-009", "max along an axis"),
    (another_norm, 2, "E-OPT-009", "vector_norm of order 1"),
    (multiplies_all, 2, "E-OPT-009", "xp.prod has no meaning"),
    (multiplies_matrices, 2, "E-OPT-009", "known: vector_norm"),
    (sums_a_number, 2, "E-OPT-008", "a reduction of the number 2.0"),
    (sums_by_method, 1, "E-OPT-009", "write xp.sum(...) of the array"),
]


@pytest.mark.parametrize(("function", "offset", "code", "said"), BODIES)
def test_what_ir_values_cannot_do_is_an_error_with_the_line(
    function: Callable[..., Any], offset: int, code: str, said: str
) -> None:
    declared = rule()(function)
    with pytest.raises(OptError) as caught:
        declared.build()
    assert caught.value.code == code
    assert said in str(caught.value)
    assert line_of(function, offset) in str(caught.value)


def test_an_error_of_the_user_surfaces_as_itself() -> None:
    @rule()
    def fails(g: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails.build()


def test_equality_is_by_content() -> None:
    def make(factor: float) -> Rule:
        @rule(slots={"m": zeros})
        def scaled(g: Any, m: Any, *, b: float = 0.5) -> Any:
            return factor * g, m + b * g

        return scaled

    assert make(2.0) == make(2.0)
    assert hash(make(2.0)) == hash(make(2.0))
    assert make(2.0) != make(3.0)
    assert make(2.0) != make(2.0)(b=0.25)
    assert rules.Adam() == rules.Adam
    assert rules.Momentum(nesterov=True) != rules.Momentum
    assert rules.Adam != rules.RAdam
    assert len({rules.Adam, rules.Adam(), rules.Adam(b1=0.8)}) == 2


def test_namespaces() -> None:
    region = Region([Value(F32, "x")])
    with building(region, Names(["x"])):
        assert namespace(region.params[0]) is NAMESPACE
    for x in (np.ones(2), np.float32(1), 1.0, 2):
        assert namespace(x) is np
    assert namespace(jnp.ones(2)) is jnp
    with pytest.raises(TypeError, match="found str"):
        namespace("x")


def test_a_rule_is_built_the_same_under_a_profiler() -> None:
    """Names are found by a profile hook: one that is set already is set again."""
    plain = rules.Adam.build().body
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        profiled = rules.Adam.build().body
        assert sys.getprofile() is profiler
    finally:
        profiler.disable()
    assert [r.name for op in profiled.ops for r in op.results] == [
        r.name for op in plain.ops for r in op.results
    ]

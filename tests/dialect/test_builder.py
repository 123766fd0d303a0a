"""Plain Python on values builds ops: their names, literals and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nitro_dialect import Module, Program, parse, print_module, print_program, verify
from nitro_dialect.builder import Names, building, emit, emit_scalar
from nitro_dialect.ir import Input, Region, Rule, Value
from nitro_dialect.namespace import NAMESPACE as xp
from nitro_dialect.ops import ClipByNorm, GuardAll, Report, Yield
from nitro_dialect.types import F32, I1, I64, UI32, TensorType, TreeType


def body(function: Callable[..., Any], *names: str) -> list[str]:
    """The lines that `function` builds when run on f32 values of these names."""
    values = [Value(F32, name) for name in names]
    region = Region(values)
    with building(region, Names(names)):
        out = function(*values)
        emit(Yield, *(out if isinstance(out, tuple) else (out,)))
    rule = Rule("r", names, (), (), {}, region)
    text = print_module(Module("M", rules={"r": rule}))
    assert print_module(parse(text)) == text
    return [line.strip().removesuffix(" : f32") for line in text.splitlines()[2:-2]]


def adam(g: Any, mu: Any, nu: Any, t: Any, b1: Any, b2: Any, eps: Any) -> Any:
    mu = b1 * mu + (1 - b1) * g
    nu = b2 * nu + (1 - b2) * (g * g)
    c1 = 1 - b1**t
    c2 = 1 - b2**t
    return (mu / c1) / (xp.sqrt(nu / c2) + eps), mu, nu


def test_a_rule_is_plain_python_and_its_values_are_called_as_in_it() -> None:
    assert body(adam, "g", "mu", "nu", "t", "b1", "b2", "eps") == [
        "%mu.mul = mul %b1, %mu",
        "%b1.sub = sub 1.0, %b1",
        "%g.mul = mul %b1.sub, %g",
        "%mu.next = add %mu.mul, %g.mul",
        "%nu.mul = mul %b2, %nu",
        "%b2.sub = sub 1.0, %b2",
        "%g.mul.mul = mul %g, %g",
        "%g.mul.b2 = mul %b2.sub, %g.mul.mul",
        "%nu.next = add %nu.mul, %g.mul.b2",
        "%b1.pow = pow %b1, %t",
        "%c1 = sub 1.0, %b1.pow",
        "%b2.pow = pow %b2, %t",
        "%c2 = sub 1.0, %b2.pow",
        "%mu.div = div %mu.next, %c1",
        "%nu.div = div %nu.next, %c2",
        "%nu.sqrt = sqrt %nu.div",
        "%nu.add = add %nu.sqrt, %eps",
        "%mu.div.nu = div %mu.div, %nu.add",
        "yield %mu.div.nu, %mu.next, %nu.next",
    ]


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda x: x + 1, "%x.add = add %x, 1.0"),
        (lambda x: 1 + x, "%x.add = add 1.0, %x"),
        (lambda x: x - 1, "%x.sub = sub %x, 1.0"),
        (lambda x: 2 - x, "%x.sub = sub 2.0, %x"),
        (lambda x: 3 * x, "%x.mul = mul 3.0, %x"),
        (lambda x: x / 2, "%x.div = div %x, 2.0"),
        (lambda x: 1 / x, "%x.div = div 1.0, %x"),
        (lambda x: x**2, "%x.pow = pow %x, 2.0"),
        (lambda x: 2**x, "%x.pow = pow 2.0, %x"),
        (lambda x: -x, "%x.neg = neg %x"),
        (lambda x: abs(x), "%x.abs = abs %x"),
        (lambda x: x * True, "%x.mul = mul %x, 1.0"),
        (lambda x: np.float32(0.1) * x, "%x.mul = mul 0.10000000149011612, %x"),
        (lambda x: np.float64(0.1) * x, "%x.mul = mul 0.1, %x"),
        (lambda x: np.int64(2) * x, "%x.mul = mul 2.0, %x"),
        (lambda x: xp.square(x), "%x.mul = mul %x, %x"),
        (lambda x: xp.maximum(x, 0), "%x.max = max %x, 0.0"),
        (lambda x: xp.minimum(1.5, x), "%x.min = min 1.5, %x"),
    ],
)
def test_arithmetic(function: Callable[[Any], Any], line: str) -> None:
    assert body(function, "x")[0] == line


def test_conditions_choose_between_values_and_numbers() -> None:
    assert body(lambda x: xp.where(x > 0, 1, -1), "x") == [
        "%x.gt = gt %x, 0.0 : i1",
        "%x.select = select %x.gt, 1.0, -1.0",
        "yield %x.select",
    ]
    built = body(lambda x, y: xp.where((x >= 1) & ~(y < x) | xp.equal(y, 0), x, 0.5), "x", "y")
    assert built == [
        "%x.ge = ge %x, 1.0 : i1",
        "%y.lt = lt %y, %x : i1",
        "%y.not = not %y.lt : i1",
        "%x.and = and %x.ge, %y.not : i1",
        "%y.eq = eq %y, 0.0 : i1",
        "%x.or = or %x.and, %y.eq : i1",
        "%x.select = select %x.or, %x, 0.5",
        "yield %x.select",
    ]


def test_equality_with_a_number_is_an_op_and_between_values_identity() -> None:
    assert "%x.eq = eq %x, 0.0 : i1" in body(lambda x: xp.where(x == 0, x, 0.5), "x")
    assert "%x.ne = ne %x, 0.0 : i1" in body(lambda x: xp.where(x != 0, x, 0.5), "x")
    a, b = Value(F32, "a"), Value(F32, "a")
    assert a == a
    assert a != b
    assert len({a, b}) == 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x > 0) * x, "mul of i1 and f32: convert one, or use xp.where"),
        (lambda x: x + "1", "add of f32 and '1': expected a number"),
        (lambda x: xp.where(True, x, 0.0), "a condition is a value"),
        (lambda x: xp.maximum(1, 2), "max of numbers alone"),
        (lambda x: x if x > 0 else -x, "use namespace"),
        (lambda x: (x > 0) & 1, "i1 does not hold it"),
        (lambda x: np.ones(3) * x, "expected a number"),
    ],
)
def test_what_has_no_meaning_says_so(function: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        body(function, "x")


def test_an_unknown_function_suggests_a_known_one() -> None:
    with pytest.raises(AttributeError, match=r"xp\.sqr has no meaning.*did you mean xp\.sqrt"):
        body(lambda x: xp.sqr(x), "x")


def test_integers_stay_integers_and_refuse_fractions() -> None:
    value = Value(I64, "attempt")
    with building(Region(), Names(["attempt"])) as builder:
        step = value + 1
        assert step.type == I64
        assert [v.value for v in builder.region.ops[0].operands["b"]] == [1]  # type: ignore[union-attr]
        assert type(builder.region.ops[0].operands["b"][0].value) is int  # type: ignore[union-attr]
        with pytest.raises(TypeError, match="i64 does not hold it"):
            _ = value + 0.5
        with pytest.raises(TypeError, match="ui32 does not hold it"):
            _ = Value(UI32, "w") + -1


def test_a_weak_type_gives_way_to_a_strong_one() -> None:
    weak = TensorType("f32", weak=True)
    with building(Region(), Names(["a", "b"])):
        assert (Value(weak, "a") * Value(F32, "b")).type == F32
        assert (Value(weak, "a") * 2).type == weak
        assert (Value(weak, "a") < 2).type == I1


def test_names_are_never_numbered_and_never_taken_twice() -> None:
    region = Region()
    names = Names(["x"])
    with building(region, names):
        value = Value(F32, "x")
        for _ in range(4):
            emit_scalar("add", value, 1.0, hint="x")
    made = [op.results[0].name for op in region.ops]
    assert made == ["x.add", "x.add.add", "x.add.add.add", "x.add.add.add.add"]


def test_an_explicit_hint_is_not_renamed() -> None:
    region = Region()
    with building(region, Names(["x"])):
        value = Value(F32, "x")
        kept = emit_scalar("add", value, 1.0, hint="step")
        _ = kept + 1
    assert kept.name == "step"


def test_operands_land_where_the_op_declares_them() -> None:
    tree = TreeType("default", "f32")
    g, norm = Value(tree, "g"), Value(F32, "norm")
    program = Program("p", [Input("scalars", norm)], Region())
    with building(program.body, Names.of(program)):
        clip = emit(ClipByNorm, g, norm, types=[tree], hints=["g.clip"], attrs={"max": 1.0})
        assert (clip.x, clip.norm, clip.max, clip.r.name) == (g, norm, 1.0, "g.clip")
        guard = emit(GuardAll, types=[I1], hints=["ok"], finite=[norm, 2.0], unset=[])
        assert [len(guard.finite), len(guard.unset)] == [2, 0]
        emit(Report, entries={"ok": guard.r})
    assert "%ok = guard.all finite(%norm, 2.0) : i1" in print_program(program)
    with building(program.body, Names()), pytest.raises(AssertionError, match="finit"):
        emit(GuardAll, types=[I1], hints=["ok"], finit=[norm])


def test_arithmetic_outside_building_is_an_error() -> None:
    with pytest.raises(LookupError):
        _ = Value(F32, "x") + 1


def test_ops_are_inserted_at_an_index_in_order() -> None:
    x = Value(F32, "x")
    program = Program("p", [Input("scalars", x)], Region())
    with building(program.body, Names.of(program)):
        emit(Report, entries={"x": x})
    with building(program.body, Names.of(program), 0):
        doubled = x + x
        _ = doubled * doubled
    assert [op.mnemonic for op in program.body.ops] == ["add", "mul", "report"]
    verify(Module("M", programs={"p": program}))

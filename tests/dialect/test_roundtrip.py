"""parse(print_module(m)) == m, and canonical text prints to itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from modules import modules

from nitro_dialect import (
    Module,
    Program,
    Region,
    Value,
    clone,
    difference,
    parse,
    print_module,
    print_program,
    verify,
)
from nitro_dialect.builder import Names, building, emit
from nitro_dialect.ir import Group, Input, Leaf, Literal
from nitro_dialect.op import Op
from nitro_dialect.ops import BINARY, Report
from nitro_dialect.rewrite import walk
from nitro_dialect.types import F32, TensorType

SLOW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SLOW
@given(modules())
def test_a_module_comes_back_equal(module: Module) -> None:
    verify(module)
    text = print_module(module)
    again = parse(text)
    assert difference(module, again) is None
    assert again == module
    assert print_module(again) == text
    verify(again)


@SLOW
@given(modules())
def test_locations_come_back_when_printed(module: Module) -> None:
    text = print_module(module, locations=True)
    again = parse(text)
    assert _locations(again) == _locations(module)
    assert list(again.marks) == list(module.marks)
    assert [m.source for m in again.marks.values()] == [m.source for m in module.marks.values()]
    assert print_module(again, locations=True) == text
    assert print_module(again) == print_module(module)


def _locations(module: Module) -> list[str | None]:
    return [op.location or None for body in module.regions() for op in walk(body)]


@SLOW
@given(modules())
def test_a_copy_is_equal_and_its_own(module: Module) -> None:
    text = print_module(module)
    copy = clone(module)
    assert difference(module, copy) is None
    values = {r for body in module.regions() for op in walk(body) for r in op.results}
    for body in copy.regions():
        for op in walk(body):
            assert values.isdisjoint(op.results)
            op.operands.clear()
            op.attrs.clear()
            op.entries.clear()
    copy.marks.clear()
    assert print_module(module) == text


def program(*ops: Op, inputs: tuple[Value, ...] = ()) -> Module:
    body = Region(list[Value](), list(ops))
    items = [Input("scalars", value) for value in inputs]
    return Module("M", programs={"p": Program("p", items, body)})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"), (True, "true"), (False, "false"), (1.0, "1.0"), (-0.0, "-0.0"), (0, "0"),
        (1e-8, "1e-08"), (5e-324, "5e-324"), (1e16, "1e+16"), (math.inf, "inf"),
        (-math.inf, "-inf"), (math.nan, "nan"), (-math.nan, "nan"), (0.1, "0.1"),
        (2**63, "9223372036854775808"),
    ],
)  # fmt: skip
def test_numbers_keep_type_and_bits(value: bool | int | float, text: str) -> None:
    module = program(Report(entries={"x": Literal(value)}))
    assert f"report {{x = {text}}}" in print_module(module)
    assert difference(module, parse(print_module(module))) is None


@given(st.one_of(st.floats(), st.integers(), st.booleans()), st.one_of(st.floats(), st.integers()))
def test_numbers_differ_unless_type_and_bits_agree(a: float, b: float) -> None:
    same = type(a) is type(b) and (a.hex() == b.hex() if isinstance(a, float) else a == b)
    found = difference(
        program(Report(entries={"x": Literal(a)})), program(Report(entries={"x": Literal(b)}))
    )
    assert (found is None) == same


def test_weak_is_printed_and_counts() -> None:
    weak, strong = (Value(TensorType("f32", weak=w), "x") for w in (True, False))
    module = program(Report(entries={"x": weak}), inputs=(weak,))
    assert "scalars %x : f32 weak\n" in print_module(module)
    again = parse(print_module(module)).programs["p"].inputs[0].value.type
    assert again == TensorType("f32", weak=True)
    found = difference(module, program(Report(entries={"x": strong}), inputs=(strong,)))
    assert found is not None
    assert "input 0" in found


def test_colliding_names_get_the_site_as_suffix() -> None:
    x, first, second, third = (Value(F32, name) for name in ("x", "x", "x", "x.add"))
    ops = [
        BINARY["add"]({"a": [x], "b": [x]}, results=[first]),
        BINARY["add"]({"a": [first], "b": [x]}, results=[second]),
        BINARY["mul"]({"a": [second], "b": [x]}, results=[third]),
        Report(entries={"y": third}),
    ]
    module = program(*ops, inputs=(x,))
    assert print_program(module.programs["p"]) == (
        "program @p {\n"
        "  scalars %x : f32\n"
        "  %x.add = add %x, %x : f32\n"
        "  %x.add.add = add %x.add, %x : f32\n"
        "  %x.add.mul = mul %x.add.add, %x : f32\n"
        "  report {y = %x.add.mul}\n"
        "}\n"
    )
    text = print_module(module)
    assert parse(text) == module
    assert print_module(parse(text)) == text


def test_printing_leaves_the_module_alone() -> None:
    x, y = Value(F32, "x"), Value(F32, "x")
    module = program(BINARY["add"]({"a": [x], "b": [x]}, results=[y]), Report(), inputs=(x,))
    print_module(module)
    assert y.name == "x"


def test_scalars_of_one_type_share_a_line() -> None:
    weak = TensorType("f32", weak=True)
    values = [Value(k, n) for k, n in ((F32, "a"), (F32, "b"), (weak, "c"), (F32, "d"))]
    text = print_module(program(Report(entries={"a": values[0]}), inputs=tuple(values)))
    lines = [line.strip() for line in text.splitlines() if "scalars" in line]
    assert lines == ["scalars %a, %b : f32", "scalars %c : f32 weak", "scalars %d : f32"]


def _training(leaves: int) -> Module:
    rows = tuple(Leaf(f"l{i}x", "f32", (i + 1,)) for i in range(leaves))
    source = parse(TRAINING)
    source.groups["default"] = Group("default", "param", rows)
    return source


TRAINING = """module @M version 1 pipeline "" left "" {
  group default : param {
    w : f32
  }
  program @p {
    param %p : tree<default>
    scalars %rate : f32
    %u = map %p {where = "decay"} (%e : f32) {
      %e.mul = mul %e, %rate : f32
      yield %e.mul
    } : tree<default, f32>
    %p.next = opt.apply %p, %u, %rate : tree<default>
    assign %p from(%p.next)
  }
}
"""


def test_a_program_has_one_length_for_4_leaves_and_400() -> None:
    few, many = _training(4), _training(400)
    verify(many)
    assert print_program(few.programs["p"]) == print_program(many.programs["p"])


def test_attributes_and_flags_are_sorted_entries_keep_their_order() -> None:
    text = TRAINING.replace("w : f32", "w : f32 {frozen, decay, b, c, a}").replace(
        "assign %p from(%p.next)",
        "%d = decay %u, %p, %rate {where = decay, anchor = zero} : tree<default, f32>\n"
        "    report {z = %rate, a = %rate}",
    )
    printed = print_module(parse(text))
    assert "w : f32 {a, b, c, decay, frozen}" in printed
    assert "{anchor = zero, where = decay}" in printed
    assert "report {z = %rate, a = %rate}" in printed


def test_missing_defaults_are_filled_in() -> None:
    text = TRAINING.replace(' {where = "decay"}', "")
    assert '%u = map %p {where = ""} (%e : f32) {' in print_module(parse(text))


def test_built_ops_have_their_defaults() -> None:
    region = Region()
    with building(region, Names()):
        emit(Report)
    assert region.ops[0].attrs == {}

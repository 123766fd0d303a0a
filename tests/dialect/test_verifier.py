"""What only a module built by code can get wrong: text can't say it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nitro_dialect import DialectError, Module, Value, parse, verify, verify_core
from nitro_dialect.ir import Device, Group, Input, Leaf, Literal, Mark, Region
from nitro_dialect.op import Op
from nitro_dialect.ops import BINARY, Yield
from nitro_dialect.types import F32, TensorType, TreeType

TEXT = """module @M version 1 pipeline "" left "" {
  group default : param {
    w : f32[3]
  }
  func @f (params : tree<default>) -> (loss : f32) from "digest"
  rule @sgd elements(g) scalars(lr) (%g : f32, %lr : f32) {
    %u = mul %lr, %g : f32
    yield %u
  }
  program @p {
    param %p : tree<default>
    scalars %x : f32
    %y = add %x, 1.0 : f32
    %n = fold %p {how = sum} (%e : f32) {
      %q = mul %e, %y : f32
      yield %q
    } : f32
    report {n = %n}
  }
}
"""


def _first(module: Module) -> Op:
    return module.programs["p"].body.ops[0]


def _fold(module: Module) -> Region:
    body = module.programs["p"].body.ops[1].body
    assert body is not None
    return body


def _swap(module: Module) -> None:
    module.programs["p"].body.ops[:2] = reversed(module.programs["p"].body.ops[:2])


def _late(module: Module) -> None:
    ops = module.programs["p"].body.ops
    x, y = module.programs["p"].input("x").value, ops[0].results[0]
    ops.insert(0, BINARY["add"]({"a": [y], "b": [x]}, results=[Value(F32, "second")]))
    ops.insert(0, BINARY["add"]({"a": [x], "b": [x]}, results=[Value(F32, "first")]))


def _leak(module: Module) -> None:
    module.programs["p"].body.ops[-1].entries["q"] = _fold(module).ops[0].results[0]


def _foreign(module: Module) -> None:
    _first(module).operands["b"] = [module.rules["sgd"].body.params[0]]


def _rename(module: Module) -> None:
    _fold(module).params[0].name = "x"


def _twice(module: Module) -> None:
    _fold(module).ops[0].results = [_first(module).results[0]]


def _no_body(module: Module) -> None:
    module.programs["p"].body.ops[1].body = Region()


def _early_yield(module: Module) -> None:
    _fold(module).ops.insert(0, Yield({"values": [Literal(1.0)]}))


def _key(module: Module) -> None:
    module.functions["g"] = module.functions.pop("f")


def _role(module: Module) -> None:
    module.programs["p"].inputs.append(Input("batches", Value(F32, "b")))


def _initial(module: Module) -> None:
    module.programs["p"].inputs[1].initial = 1.0


def _dtype(module: Module) -> None:
    module.programs["p"].inputs[1].value.type = TensorType("float32")


def _shape(module: Module) -> None:
    module.devices.append(Device("d", TensorType("f32", (-1,))))


def _leaf(module: Module) -> None:
    module.groups["default"] = Group("default", "param", (Leaf("w", "float", (-2,)),))


def _operand(module: Module) -> None:
    _first(module).operands["c"] = [Literal(1.0)]


def _missing(module: Module) -> None:
    del _first(module).operands["b"]


def _attr(module: Module) -> None:
    _first(module).attrs["axis"] = 1


def _kind(module: Module) -> None:
    module.programs["p"].body.ops[1].attrs["how"] = True


def _symbol(module: Module) -> None:
    _first(module).symbol = "f"


def _entries(module: Module) -> None:
    _first(module).entries["x"] = Literal(1.0)


def _unknown(module: Module) -> None:
    module.programs["p"].body.ops[0] = type("Foo", (Op,), {})()


def _mark(module: Module) -> None:
    module.marks["scores"] = Mark("score", "guard", "score")


def _metadata(module: Module) -> None:
    module.marks["x"] = Mark("x", "guard", "x", (("b", 1), ("a", 2)))


def _devices(module: Module) -> None:
    module.devices += [Device("d", F32, 1.0), Device("d", F32, 2.0)]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (_late, "E-IR-007", "%y is not defined before this use"),
        (_swap, "E-IR-007", "%y is not defined before this use"),
        (_leak, "E-IR-007", "%q is not defined before this use"),
        (_foreign, "E-IR-007", "%g is not defined before this use"),
        (_rename, "E-IR-004", "two values are called %x"),
        (_twice, "E-IR-004", "%y is defined twice"),
        (_no_body, "E-IR-008", "the region does not end in yield"),
        (_early_yield, "E-IR-008", "yield before the end of a region"),
        (_key, "E-IR-012", "f is kept under the name g"),
        (_role, "E-IR-011", "%b: no role batches: did you mean batch?"),
        (_initial, "E-IR-011", "%x: only a slot has an initial value"),
        (_dtype, "E-IR-002", "no dtype float32"),
        (_shape, "E-IR-005", "f32[-1] has a dimension below 0"),
        (_leaf, "E-IR-010", "leaf w: no dtype float"),
        (_operand, "E-IR-005", "add has no operand c"),
        (_missing, "E-IR-005", "add takes one operand b, found 0"),
        (_attr, "E-IR-005", "add has no attribute axis"),
        (_kind, "E-IR-005", "attribute how of fold is a str, found True"),
        (_symbol, "E-IR-005", "add has no place for a symbol"),
        (_entries, "E-IR-005", "add has no entries, found x"),
        (_unknown, "E-IR-005", "no op "),
        (_mark, "E-IR-012", "mark score is kept under the name scores"),
        (_metadata, "E-IR-012", "mark x: metadata must be sorted by name"),
        (_devices, "E-IR-004", "d is declared twice"),
    ],
)
def test_a_broken_module_is_refused(
    change: Callable[[Module], None], code: str, message: str
) -> None:
    module = parse(TEXT)
    verify(module)
    change(module)
    with pytest.raises(DialectError) as caught:
        verify(module)
    found = [(d.code, d.message) for d in caught.value.diagnostics]
    assert any(c == code and m.startswith(message) for c, m in found), found


def test_everything_wrong_is_told_in_text_order() -> None:
    module = parse(TEXT)
    _rename(module)
    _role(module)
    _initial(module)
    with pytest.raises(DialectError) as caught:
        verify(module)
    lines = [d.line or 0 for d in caught.value.diagnostics]
    assert len(lines) == 3
    assert lines == sorted(lines)


def test_named_ops_are_refused_after_expand() -> None:
    module = parse(TEXT)
    verify_core(module)
    text = TEXT.replace("report {", "%h = tree.div %p, %y : tree<default, f32>\n    report {")
    verify(parse(text))
    with pytest.raises(DialectError) as caught:
        verify_core(parse(text))
    (found,) = caught.value.diagnostics
    assert (found.code, found.line, found.column) == ("E-IR-009", 18, 5)
    assert found.message == "tree.div is not one of the core ops"


def test_checks_do_not_run_on_ops_that_lack_their_parts() -> None:
    module = parse(TEXT)
    op = BINARY["add"]({}, results=[])
    module.programs["p"].body.ops.insert(0, op)
    with pytest.raises(DialectError) as caught:
        verify(module)
    assert {d.code for d in caught.value.diagnostics} == {"E-IR-005"}


def test_a_tree_of_another_group_is_another_type() -> None:
    module = parse(TEXT)
    module.programs["p"].inputs[0].value.type = TreeType("defaults")
    with pytest.raises(DialectError, match="no group defaults in this module: did you mean defa"):
        verify(module)

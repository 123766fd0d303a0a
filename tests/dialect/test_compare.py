"""Two modules are equal up to names of values and locations, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nitro_dialect import difference, parse, walk

TEXT = """module @M version 1 pipeline "a" left "b" {
  const width = 128
  device smoothing : f32 weak = 0.05
  mark "loss{k=1}" : metric "loss" {k = 1} below 20.0
  group default : param {
    w : f32[3] {decay}
  }
  group state : state {
    n : i32
  }
  func @f (params : tree<default>) -> (loss : f32) from "digest"
  rule @sgd elements(g) scalars(lr) structure {nesterov = false} (%g : f32, %lr : f32) {
    %u = mul %lr, %g : f32
    yield %u
  }
  program @p {
    param %p : tree<default>
    slot %t : i64 = 0
    scalars %x, %y : f32
    %loss = call @f %p : f32
    %z = add %x, 1.0 : f32
    %n = fold %p {how = sum} (%e : f32) {
      %q = mul %e, %y : f32
      yield %q
    } : f32
    report {n = %n, z = %z}
  }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("@M", "@N", "name: 'M' against 'N'"),
        ('"a"', '"c"', "done"),
        ('left "b"', 'left "c"', "left"),
        ("= 128", "= 129", "consts"),
        ("weak = 0.05", "= 0.05", "devices"),
        ("= 0.05", "= 0.06", "devices"),
        ("below 20.0", "below 20", "mark loss{k=1}"),
        ("{k = 1}", "{k = true}", "mark loss{k=1}"),
        ("{decay}", "{frozen}", "group default"),
        ("group state", "group other", "groups: default, state against default, other"),
        ('"digest"', '"d"', "function f"),
        ("nesterov = false", "nesterov = 0", "rule @sgd: structure"),
        ("mul %lr, %g", "mul %g, %lr", "rule @sgd: `%u = mul`: operands (%lr) against (%g)"),
        ("= 0\n", "= 0.0\n", "program @p: input 1"),
        ("%t :", "%tt :", "program @p: input 1"),
        ("call @f", "call @g", "`%loss = call @f` against `%loss = call @g`"),
        ("%z = add", "%z = sub", "`%z = add` against `%z = sub`"),
        ("add %x, 1.0", "add %x, 1", "`%z = add`: operands (1.0) against (1)"),
        ("add %x, 1.0", "add %y, 1.0", "`%z = add`: operands (%x) against (%y)"),
        ("how = sum", "how = max", "attributes"),
        ("mul %e, %y", "mul %e, %x", "`%q = mul`"),
        ("n = %n, z = %z", "z = %z, n = %n", "operands"),
        ("n = %n, z = %z", "n = %n, z = %n", "`report`: operands (%n, %z) against (%n, %n)"),
        ("n = %n, z = %z", "n = %n", "`report`: operands"),
        ("    report", "    %v = neg %z : f32\n    report", "`report` against `%v = neg`"),
        ("add %x, 1.0 : f32", "add %x, 1.0 : f32 weak", "results of `%z = add` (f32) against"),
    ],
)
def test_a_change_is_found_and_told(old: str, new: str, found: str) -> None:
    assert old in TEXT
    told = difference(parse(TEXT), parse(TEXT.replace(old, new, 1)))
    assert told is not None
    assert found in told
    assert parse(TEXT) != parse(TEXT.replace(old, new, 1))


def test_an_op_more_is_found_at_the_end() -> None:
    longer = parse(TEXT)
    program = longer.programs["p"]
    program.body.ops.append(program.body.ops.pop())
    program.body.ops.append(program.body.ops[0])
    told = difference(parse(TEXT), longer)
    assert told is not None
    assert "4 ops against 5, the first extra one is `%loss = call @f`" in told


def test_names_and_locations_do_not_count() -> None:
    other = parse(TEXT.replace("%z", "%zz").replace("%q", "%r").replace("%e", "%elem"))
    key, mark = next(iter(other.marks.items()))
    other.marks[key] = replace(mark, source="exp.py:2:1")
    for op in walk(other.programs["p"].body):
        op.location = "exp.py:3:1"
    assert difference(parse(TEXT), other) is None
    assert parse(TEXT) == other


def test_a_module_is_no_other_thing() -> None:
    assert parse(TEXT) != TEXT

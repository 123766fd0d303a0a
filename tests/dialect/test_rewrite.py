"""Copies, uses, dead values."""

from __future__ import annotations

from nitro_dialect import (
    Module,
    Program,
    Value,
    clone,
    difference,
    drop_dead,
    parse,
    print_program,
    replace_uses,
    users,
    verify,
    walk,
)
from nitro_dialect.builder import Names
from nitro_dialect.ir import Literal
from nitro_dialect.types import F32

TEXT = """module @M version 1 pipeline "" left "" {
  rule @sgd elements(g) scalars(lr) (%g : f32, %lr : f32) {
    %g.mul = mul %lr, %g : f32
    yield %g.mul
  }
  group default : param {
    w : f32[3]
  }
  program @p {
    param %p : tree<default>
    scalars %x, %lr : f32
    %y = add %x, 1.0 : f32
    %dead = add %y, 1.0 : f32
    %ok = lt %y, 2.0 : i1
    %p.out = commit %ok keep(%p) {
      %z = mul %y, %x : f32
      %dead.in = neg %z : f32
      %u = map %p {where = ""} (%e : f32) {
        %e.mul = mul %e, %z : f32
        %e.dead = neg %e : f32
        yield %e.mul
      } : tree<default>
      yield %u
    } : tree<default>
    assign %p from(%p.out)
    report {y = %y}
  }
}
"""


def _program(module: Module) -> tuple[Program, dict[str, Value]]:
    program = module.programs["p"]
    made = [r for op in walk(program.body) for r in op.results]
    return program, {v.name: v for v in (*(i.value for i in program.inputs), *made)}


def test_walk_goes_into_regions_in_text_order() -> None:
    program, _ = _program(parse(TEXT))
    assert [op.mnemonic for op in walk(program.body)] == [
        "add", "add", "lt", "commit", "mul", "neg", "map", "mul", "neg", "yield", "yield",
        "assign", "report",
    ]  # fmt: skip


def test_users_are_found_in_regions_and_entries() -> None:
    program, values = _program(parse(TEXT))
    found = [op.mnemonic for op in users(program.body, values["y"])]
    assert found == ["add", "lt", "mul", "report"]
    assert [op.mnemonic for op in users(program.body, values["p"])] == ["commit", "map", "assign"]


def test_replace_uses_reaches_operands_and_entries_everywhere() -> None:
    program, values = _program(parse(TEXT))
    replace_uses(program.body, values["y"], values["x"])
    assert users(program.body, values["y"]) == []
    assert "report {y = %x}" in print_program(program)
    replace_uses(program.body, values["x"], 3.0)
    assert "%z = mul 3.0, 3.0 : f32" in print_program(program)


def test_drop_dead_removes_chains_in_regions_too_and_is_stable() -> None:
    module = parse(TEXT)
    program, _ = _program(module)
    drop_dead(program)
    names = [r.name for op in walk(program.body) for r in op.results]
    assert names == ["y", "ok", "p.out", "z", "u", "e.mul"]
    verify(module)
    before = print_program(program)
    drop_dead(program)
    assert print_program(program) == before


def test_drop_dead_removes_what_only_dead_ops_read() -> None:
    program, _ = _program(parse(TEXT))
    program.body.ops[-1].entries = {"x": Literal(1.0)}
    program.body.ops = [program.body.ops[0], program.body.ops[1], program.body.ops[-1]]
    drop_dead(program)
    assert [op.mnemonic for op in program.body.ops] == ["report"]


def test_a_clone_shares_nothing_that_changes() -> None:
    module = parse(TEXT)
    copy = clone(module)
    assert difference(module, copy) is None
    program, values = _program(copy)
    replace_uses(program.body, values["y"], values["x"])
    copy.groups.clear()
    copy.rules["sgd"].body.ops.clear()
    assert module == parse(TEXT)


def test_a_clone_tells_what_became_of_values() -> None:
    module = parse(TEXT)
    _, values = _program(module)
    twins: dict[Value, Value | Literal] = {}
    copy = clone(module.programs["p"], twins)
    assert twins[values["x"]] is copy.input("x").value
    assert twins[values["e.mul"]] in [r for op in walk(copy.body) for r in op.results]


def test_a_rules_ops_are_inlined_with_values_replaced_and_fresh_names() -> None:
    module = parse(TEXT)
    rule = module.rules["sgd"]
    names = Names.of(module.programs["p"])
    names.taken.add("g.mul")
    element = Value(F32, "grad")
    values: dict[Value, Value | Literal] = {
        rule.body.params[0]: element,
        rule.body.params[1]: Literal(0.5),
    }
    ops = [clone(op, values, names) for op in rule.body.ops]
    assert ops[0].operands == {"a": [Literal(0.5)], "b": [element]}
    assert ops[0].results[0].name == "g.mul.mul"
    assert ops[1].operands["values"] == ops[0].results
    assert rule.body.ops[0].results[0].name == "g.mul"

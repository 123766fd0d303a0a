"""Programs before the first pass: inputs read off the imported signatures, in the shared order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from regression import Settings, module

from nitro_dialect import print_program, verify
from nitro_dialect.ir import CHANNELS, Device, Function, Mark, Module, Parameter
from nitro_dialect.types import F32, TensorType
from nitroc.errors import BuildError
from nitroc.programs import forward_program, reduce_program, train_program

TRAIN = """\
program @train_step {
  param %p : tree<default>
  slot %attempt : i64 = 0
  state %s : tree<state>
  scalars %shift : f32 weak
  seed %seed : seed
  batch %m : f32[4]
  batch %x : f32[4,3]
  batch %y : f32[4,2]
  %step = add %attempt, 1 : i64
  %step.words = words %step : ui32[2]
  %loss, %weight, %mae.sum, %mae.count, %g, %s.new = grad @objective %p, %s, %shift, %seed, \
%step.words, 0, %m, %x, %y {wrt = params} : f32, f32, f32, f32, tree<default>, tree<state>
  assign %s, %attempt from(%s.new, %step)
  report {loss = %loss}
}
"""
REDUCE = """\
program @reduce.b4.r3 {
  outputs %out : tree<outputs.b4>
  scalars %shift : f32 weak
  seed %seed : seed
  split %split : i32
  index %index : i32
  batch %m : f32[4]
  batch %x : f32[4,3]
  batch %y : f32[4,2]
  %loss.sum, %loss.weight, %metric.errors.concat = call @reduce.b4.r3 %out, %shift, %seed, \
%split, %index, %m, %x, %y : f32, f32, f32[3]
  report {loss.sum = %loss.sum, loss.weight = %loss.weight}
  output {metric.errors = %metric.errors.concat}
}
"""


@pytest.mark.parametrize(("name", "text"), [("train_step", TRAIN), ("reduce.b4.r3", REDUCE)])
def test_program_text(name: str, text: str) -> None:
    made = module(Settings())
    verify(made)
    assert print_program(made.programs[name]).strip() == text.strip()


def with_params(made: Module, name: str, *extra: Parameter, at: int) -> Function:
    old = made.functions[name]
    params = (*old.params[:at], *extra, *old.params[at:])
    made.functions[name] = replace(old, params=params)
    return made.functions[name]


def test_constants_and_device_arrays_have_their_roles() -> None:
    made = module(Settings())
    array, table = TensorType("f32", (10,)), TensorType("f32", (5,))
    made.devices.insert(0, Device("const.protos", array))
    extra = (Parameter("const.0", table), Parameter("const.protos", array))
    with_params(made, "forward.b4", *extra, at=2)
    program = forward_program(made, "forward.b4")
    verify(made)
    assert [(i.role, i.value.name) for i in program.inputs] == [
        ("param", "p"), ("state", "s"), ("const", "0"), ("device", "const.protos"),
        ("scalars", "shift"), ("seed", "seed"), ("split", "split"), ("index", "index"),
        ("batch", "x"),
    ]  # fmt: skip


def test_marks_of_an_evaluation_are_words_of_its_report() -> None:
    made = module(Settings())
    made.marks["x{a=:}"] = Mark("x{a=:}", "guard", "x", (("a", ":"),))
    results = [Parameter(f"mark.x{{a=:}}:{c}", TensorType(CHANNELS[c][0])) for c in CHANNELS]
    words = [
        "guard/x{a=:}",
        "guard/x{a=:}:odd",
        *(f"mark/x{{a=:}}:{c}" for c in list(CHANNELS)[2:]),
    ]
    for name in ("forward.b4", "reduce.b4.r3"):
        function = made.functions[name]
        made.functions[name] = replace(function, results=(*function.results, *results))
    forward = forward_program(made, "forward.b4")
    reduce = reduce_program(made, "reduce.b4.r3")
    verify(made)
    assert [op.mnemonic for op in forward.body.ops] == ["call", "report", "output"]
    assert list(forward.body.ops[1].entries) == words
    assert list(forward.body.ops[2].entries) == ["outputs"]
    assert list(reduce.body.ops[1].entries) == ["loss.sum", "loss.weight", *words]
    assert list(reduce.body.ops[2].entries) == ["metric.errors"]


def test_a_forward_without_marks_has_no_report() -> None:
    ops = module(Settings()).programs["forward.b4"].body.ops
    assert [op.mnemonic for op in ops] == ["call", "output"]


def test_fields_keep_their_names_and_ours_give_way() -> None:
    made = module(Settings())
    fields = [Parameter(n, F32) for n in ("attempt", "loss", "p", "table")]
    for name in ("objective", "objective.grad"):
        with_params(made, name, *fields, at=9)
        with_params(made, name, Parameter("const.table", F32), at=2)
    program = train_program(made)
    verify(made)
    named = {i.role: i.value.name for i in program.inputs if i.role != "batch"}
    assert [i.value.name for i in program.inputs if i.role == "batch"][3:] == [
        "attempt", "loss", "p", "table.batch",
    ]  # fmt: skip
    assert (named["param"], named["slot"], named["const"]) == ("p.param", "attempt.slot", "table")


@pytest.mark.parametrize("lost", ["seed", "micro", "step"])
def test_a_signature_out_of_order_is_refused(lost: str) -> None:
    made = module(Settings())
    old = made.functions["objective"]
    params = tuple(p for p in old.params if p.name != lost)
    made.functions["objective"] = replace(old, params=params)
    with pytest.raises(BuildError, match=r"E-BUILD-008: @objective takes \(params, state"):
        train_program(made)

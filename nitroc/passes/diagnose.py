"""`diagnose`: a second train step that holds the diagnostics, and an input that selects them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nitro_dialect.builder import Names
from nitro_dialect.ir import Module, Program, Value
from nitro_dialect.ops import Grad, RuleMark
from nitro_dialect.rewrite import clone
from nitro_dialect.types import TensorType
from nitroc.errors import BuildError
from nitroc.passes.structure import add_input, need, train_programs
from nitroc.programs import train_program


@dataclass(frozen=True)
class Diagnose:
    """`@train_step` stays without diagnostics; `@train_step_sampled` runs `@objective.sampled`.

    Its `%mask : i1[D]` has one element per diagnostic of the module's marks, in their order. Where
    only rules hold diagnostics, it runs the same objective. E-BUILD-005 when the front end did not
    import the objective with its diagnostics.
    """

    name: ClassVar[str] = "diagnose"

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        for program in train_programs(module):
            _sample(module, program)
        return module


def _sample(module: Module, program: Program) -> None:
    objective = need(program, Grad, Diagnose.name, "nothing").callee
    sampled = f"{objective}.sampled"
    if sampled not in module.functions and _in_rules(module):
        sampled = objective
    if sampled not in module.functions:
        raise BuildError(
            5,
            f"no imported function is @{sampled}, which is @{objective} with its diagnostics",
            help=f"import @{sampled} and its gradient, or leave diagnose out of the pipeline",
        )
    made = train_program(module, objective=sampled, name=f"{program.name}_sampled")
    count = sum(mark.kind == "diagnostic" for mark in module.marks.values())
    name = Names.of(made).fresh("mask", "run")
    add_input(made, "mask", Value(TensorType("i1", (count,)), name))
    _place_after(module, program, made)


def _in_rules(module: Module) -> bool:
    """Whether a rule holds a diagnostic."""
    ops = [op for rule in module.rules.values() for op in rule.body.ops]
    keys = {op.key for op in ops if isinstance(op, RuleMark)}
    return any(module.marks[key].kind == "diagnostic" for key in keys)


def _place_after(module: Module, program: Program, made: Program) -> None:
    others = [p for p in module.programs.values() if p is not made]
    others.insert(others.index(program) + 1, made)
    module.programs = {p.name: p for p in others}

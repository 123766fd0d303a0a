"""`guard{finite=true,policy=stop}`: decides, before the update, whether the step is committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nitro_dialect.builder import Names, building, emit, emit_scalar
from nitro_dialect.ir import Literal, Module, Program, Value
from nitro_dialect.marks import word_name
from nitro_dialect.op import OPS
from nitro_dialect.ops import FirstNonfinite, GuardAll, RuleMark
from nitro_dialect.rewrite import clone
from nitro_dialect.types import FLOATS, I1, I64, is_scalar
from nitroc.errors import OptError
from nitroc.frontend.names import did_you_mean
from nitroc.passes.structure import (
    add_slot,
    add_target,
    before_assign,
    gradient_norm,
    report,
    selected,
    train_programs,
)

POLICIES = ("stop",)


@dataclass(frozen=True)
class Guard:
    """Loss, gradient norm and every float scalar finite, total weight above 0, run not halted.

    Every count of a mark must be zero too; a diagnostic's is zero where it is not selected. With
    `finite` off only the counts decide, and without any nothing is added. Policy `stop`: a failure
    sets `%halted`, so that steps already in flight change nothing; a count always stops.
    """

    finite: bool = True
    policy: str = "stop"
    name: ClassVar[str] = "guard"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise OptError(
                12,
                f"on_nonfinite is {self.policy!r}",
                help=did_you_mean(self.policy, POLICIES, "policies"),
            )

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        programs = train_programs(module)
        # one state for all: a step that counts nothing keeps what another has set
        if self.finite or any(_counts(module, program) for program in programs):
            for program in programs:
                _guard(module, program, self.finite)
        return module


def _guard(module: Module, program: Program, finite: bool) -> None:
    names = Names.of(program)
    words = report(program)
    squares, norm = gradient_norm(program, names, Guard.name) if finite else (None, None)
    halted = add_slot(program, names, I1, "halted", False)
    with building(program.body, names, before_assign(program)):
        words |= _gated(module, program)
        ok = emit(
            GuardAll,
            types=[I1],
            hints=["ok"],
            finite=[words["loss"], norm, *_float_scalars(program)] if norm is not None else [],
            positive=[words["weight"]] if finite else [],
            zero=_counted(module, program),
            unset=[halted],
        ).r
        failed = emit(OPS["not"], ok, types=[I1], hints=["failed"]).results[0]
        stopped = emit_scalar("or", halted, failed, hint="halted.next")
        words["committed"] = ok
        if squares is not None:
            words["first_bad"] = emit(FirstNonfinite, squares, types=[I64], hints=["first_bad"]).r
        words["halted"] = stopped
    add_target(program, halted, stopped)


def _counts(module: Module, program: Program) -> bool:
    return bool(_counted(module, program)) or _rule_counts(module, program)


def _counted(module: Module, program: Program) -> list[Value | Literal]:
    """The report's counts of marks, in the order of the module's."""
    words = report(program)
    names = (word_name(key, "count") for key in module.marks)
    return [words[name] for name in names if name in words]


def _gated(module: Module, program: Program) -> dict[str, Value | Literal]:
    """Emits the counts of diagnostics, zero where they are not selected; by their words."""
    words = report(program)
    made: dict[str, Value | Literal] = {}
    for key, mark in module.marks.items():
        name = word_name(key, "count")
        if mark.kind == "diagnostic" and name in words:
            chosen, count = selected(module, program, key), words[name]
            made[name] = emit_scalar("select", chosen, count, 0, hint=f"{key}.selected")
    return made


def _rule_counts(module: Module, program: Program) -> bool:
    """Whether the optimizer will add counts: those of its rules' marks."""
    sampled = any(i.role == "mask" for i in program.inputs)
    return any(
        isinstance(op, RuleMark)
        and op.channel == "count"
        and (sampled or module.marks[op.key].kind != "diagnostic")
        for rule in module.rules.values()
        for op in rule.body.ops
    )


def _float_scalars(program: Program) -> list[Value]:
    return [
        i.value for i in program.inputs if i.role == "scalars" and is_scalar(i.value.type, *FLOATS)
    ]

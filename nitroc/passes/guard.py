"""`guard{finite=true,policy=stop}`: decides, before the update, whether the step is committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nitro_dialect.builder import Names, building, emit, emit_scalar
from nitro_dialect.ir import Module, Program, Value
from nitro_dialect.op import OPS
from nitro_dialect.ops import FirstNonfinite, GuardAll
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
    train_programs,
)

POLICIES = ("stop",)


@dataclass(frozen=True)
class Guard:
    """Loss, gradient norm and every float scalar finite, total weight above 0, run not halted.

    With `finite` off there is nothing to decide and nothing is added. Policy `stop`: a failure sets
    `%halted`, so that steps already in flight change nothing.
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
        if self.finite:
            for program in train_programs(module):
                _guard(program)
        return module


def _guard(program: Program) -> None:
    names = Names.of(program)
    squares, norm = gradient_norm(program, names, Guard.name)
    words = report(program)
    loss, weight = words["loss"], words["weight"]
    halted = add_slot(program, names, I1, "halted", False)
    with building(program.body, names, before_assign(program)):
        ok = emit(
            GuardAll,
            types=[I1],
            hints=["ok"],
            finite=[loss, norm, *_float_scalars(program)],
            positive=[weight],
            unset=[halted],
        ).r
        failed = emit(OPS["not"], ok, types=[I1], hints=["failed"]).results[0]
        stopped = emit_scalar("or", halted, failed, hint="halted.next")
        first = emit(FirstNonfinite, squares, types=[I64], hints=["first_bad"]).r
    add_target(program, halted, stopped)
    words |= {"committed": ok, "first_bad": first, "halted": stopped}


def _float_scalars(program: Program) -> list[Value]:
    return [
        i.value for i in program.inputs if i.role == "scalars" and is_scalar(i.value.type, *FLOATS)
    ]

"""What several passes ask of a train program, and how they add to it."""

from __future__ import annotations

from typing import TypeVar

from nitro_dialect.builder import Names, building, emit
from nitro_dialect.ir import ROLES, Input, Literal, Module, Program, Region, Value
from nitro_dialect.op import Op
from nitro_dialect.ops import (
    Assign,
    At,
    ClipByNorm,
    FoldLeaf,
    GuardAll,
    Norm,
    Report,
    TreeDiv,
    Yield,
)
from nitro_dialect.types import F32, I1, TreeType, Type, VecType
from nitroc.errors import BuildError

OpT = TypeVar("OpT", bound=Op)


def train_programs(module: Module) -> list[Program]:
    """Programs that assign their inputs: those the training passes transform."""
    return [p for p in module.programs.values() if find(p, Assign) is not None]


def find(program: Program, kind: type[OpT]) -> OpT | None:
    """The last `kind` among the program's own ops, not those of regions."""
    found = [op for op in program.body.ops if isinstance(op, kind)]
    return found[-1] if found else None


def need(program: Program, kind: type[OpT], wanted_by: str, made_by: str) -> OpT:
    """`find`; E-BUILD-004 names the pass that makes a `kind` when there is none."""
    found = find(program, kind)
    if found is None:
        raise BuildError(
            4,
            f"{wanted_by} found no {kind.mnemonic} in @{program.name}",
            help=f"put {made_by} before {wanted_by} in the pipeline",
        )
    return found


def before(program: Program, op: Op) -> int:
    """Where a builder inserts so that its ops come just before `op`."""
    return program.body.ops.index(op)


def before_assign(program: Program) -> int:
    assign = find(program, Assign)
    assert assign is not None, program.name
    return before(program, assign)


def add_input(program: Program, role: str, value: Value, initial: Initial = None) -> Value:
    """Adds an input after those of its role and of the roles before it."""
    rank = ROLES.index(role)
    place = sum(ROLES.index(i.role) <= rank for i in program.inputs)
    program.inputs.insert(place, Input(role, value, initial))
    return value


Initial = str | bool | int | float | None


def add_slot(program: Program, names: Names, kind: Type, name: str, initial: Initial) -> Value:
    return add_input(program, "slot", Value(kind, names.fresh(name, "slot")), initial)


def add_scalar(program: Program, names: Names, name: str) -> Value:
    """An f32 slot of the packed scalars; `opt.<name>` where `name` is another value's.

    The guard, where it tests for finite values, tests it with the others.
    """
    taken = name in names.taken
    value = Value(F32, names.fresh(f"opt.{name}" if taken else name, "opt"))
    add_input(program, "scalars", value)
    guard = find(program, GuardAll)
    if guard is not None and guard.finite:
        guard.operands["finite"].append(value)
    return value


def add_target(program: Program, target: Value, value: Value) -> None:
    """`target` holds `value` after the step; targets stay in the order of the inputs."""
    assign = find(program, Assign)
    assert assign is not None, program.name
    pairs = dict(zip(assign.targets, assign.from_, strict=True)) | {target: value}
    inputs = [i.value for i in program.inputs]
    ordered = sorted(pairs, key=lambda v: inputs.index(v) if isinstance(v, Value) else -1)
    assign.operands["targets"] = list(ordered)
    assign.operands["from"] = [pairs[t] for t in ordered]


def report(program: Program) -> dict[str, Value | Literal]:
    """The words of the program's report, to add to."""
    found = need(program, Report, "the report", "the program's report")
    return found.entries


def selected(module: Module, program: Program, key: str) -> Value:
    """Emits and returns whether the diagnostic `key` is selected; inside `building`."""
    mask = next((i.value for i in program.inputs if i.role == "mask"), None)
    if mask is None:
        raise BuildError(
            4,
            f"@{program.name} holds the diagnostic {key} and has no mask",
            help="put diagnose before the other passes, and diagnostics in @objective.sampled only",
        )
    index = [k for k, m in module.marks.items() if m.kind == "diagnostic"].index(key)
    return emit(At, mask, types=[I1], hints=[f"{mask.name}.{index}"], attrs={"index": index}).r


def gradient(program: Program, wanted_by: str) -> Value:
    """The step's gradient as an f32 tree: clipped where `clip` has run, else the mean."""
    clipped = find(program, ClipByNorm)
    if clipped is not None:
        return clipped.r
    return need(program, TreeDiv, wanted_by, "accumulate").r


def gradient_norm(program: Program, names: Names, wanted_by: str) -> tuple[Value, Value]:
    """Per-leaf sums of squares and the global norm of the mean gradient, f32, made once."""
    norm = find(program, Norm)
    if norm is not None and isinstance(norm.x, Value):
        return norm.x, norm.r
    mean = need(program, TreeDiv, wanted_by, "accumulate").r
    assert isinstance(mean.type, TreeType), mean
    with building(program.body, names, before_assign(program)):
        element = Value(F32, names.fresh("e", "square"))
        body = Region([element])
        with building(body, names):
            emit(Yield, element * element)
        squares = emit(
            FoldLeaf,
            mean,
            types=[VecType(mean.type.group)],
            hints=["g.sq"],
            body=body,
            attrs={"how": "sum"},
        )
        norm = emit(Norm, squares.r, types=[F32], hints=["g.norm"])
    return squares.r, norm.r

"""`commit`: everything only the update needs goes into a region that runs when the step is ok."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nitro_dialect.builder import Names, building, emit
from nitro_dialect.ir import Literal, Module, Program, Region, Value
from nitro_dialect.op import Op
from nitro_dialect.ops import Assign, Commit, GuardAll, Yield
from nitro_dialect.rewrite import clone, walk
from nitroc.passes.structure import before_assign, find, need, train_programs


@dataclass(frozen=True)
class CommitStep:
    """Without a guard there is nothing to decide: the ops stay inline.

    A target whose next value depends on the decision itself (`%halted`) stays outside.
    """

    name: ClassVar[str] = "commit"

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        for program in train_programs(module):
            guard = find(program, GuardAll)
            if guard is not None:
                _commit(program, guard)
        return module


def _commit(program: Program, guard: GuardAll) -> None:
    names = Names.of(program)
    assign = need(program, Assign, CommitStep.name, "the program's assign")
    decided = _depending(program.body, guard.r)
    pairs = dict(zip(assign.targets, assign.from_, strict=True))
    kept = {t: v for t, v in pairs.items() if v not in decided and isinstance(t, Value)}
    moved = _only_for_update(program.body, assign, set(pairs.values()) - set(kept.values()))
    region = Region(ops=[op for op in program.body.ops if op in moved])
    program.body.ops = [op for op in program.body.ops if op not in moved]
    with building(region, names):
        emit(Yield, *kept.values())
    with building(program.body, names, before_assign(program)):
        commit = emit(
            Commit,
            guard.r,
            types=[t.type for t in kept],
            hints=[f"{t.name}.out" for t in kept],
            body=region,
            keep=list(kept),
        )
    committed = dict(zip(kept, commit.results, strict=True))
    assign.operands["from"] = [
        committed[t] if isinstance(t, Value) and t in committed else v for t, v in pairs.items()
    ]


def _depending(body: Region, value: Value) -> set[Value | Literal]:
    """`value` and all that is computed from it."""
    found: set[Value | Literal] = {value}
    for op in body.ops:
        if found.intersection(_reads(op)):
            found.update(op.results)
    return found


def _only_for_update(body: Region, assign: Op, outside: set[Value | Literal]) -> set[Op]:
    """Ops whose results nothing needs but `assign`, directly or not, `outside` ones excepted."""
    wanted = set(outside)
    moved: set[Op] = set()
    for op in reversed(body.ops):
        if op is assign:
            continue
        if op.results and wanted.isdisjoint(op.results):
            moved.add(op)
        else:
            wanted.update(_reads(op))
    return moved


def _reads(op: Op) -> set[Value]:
    """Values the op reads, those its region captures included."""
    read = set(op.inputs())
    if op.body is not None:
        for inner in walk(op.body):
            read.update(inner.inputs())
    return read

"""Marks inside a rule: found before the step is decided, counted by its guard, reported.

`opt.marks` gives each channel as one word per parameter. Report words: `guard/<key>` is the total,
`guard/<key>:first` the first parameter whose update counted (its index in the group, -1 for none),
`:first_count` what that one counted, `:odd` why a count was none; `mark/<key>:sum` and `:n`, `:max`
or `:min` are the values of metrics and diagnostics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from nitro_dialect.builder import Names, building, emit, emit_scalar
from nitro_dialect.ir import Mark, Module, Program, Rule, Value
from nitro_dialect.marks import word_name
from nitro_dialect.ops import (
    FirstNonzero,
    GuardAll,
    OptMarks,
    RuleMark,
    VecAt,
    VecCount,
    VecFold,
    VecSum,
)
from nitro_dialect.types import F32, I32, I64, TreeType, VecType
from nitroc.passes.structure import before, before_assign, find, report, selected

Words = dict[str, Value]


def marks_read(module: Module, program: Program, rule: Rule) -> list[RuleMark]:
    """The marks of `rule` that `program` reads.

    Diagnostics are for programs with a `mask` input, which selects them; without a guard nothing
    can be stopped, and nothing is counted.
    """
    sampled = any(i.role == "mask" for i in program.inputs)
    guarded = find(program, GuardAll) is not None
    return [
        op
        for op in _marks(rule)
        if (sampled or module.marks[op.key].kind != "diagnostic")
        and (guarded or op.channel not in ("count", "odd"))
    ]


def _marks(rule: Rule) -> list[RuleMark]:
    return [op for op in rule.body.ops if isinstance(op, RuleMark)]


def before_decision(program: Program) -> int:
    """Where a builder inserts what the guard reads; without a guard, before the assign."""
    guard = find(program, GuardAll)
    return before_assign(program) if guard is None else before(program, guard)


def add_marks(
    module: Module,
    program: Program,
    rule: Rule,
    names: Names,
    trees: Sequence[Value],
    fields: Sequence[Value],
) -> None:
    """Adds the first evaluation, its totals to the guard, its words to the report."""
    group = cast(TreeType, trees[0].type).group
    rows, read = _marks(rule), marks_read(module, program, rule)
    with building(program.body, names, before_decision(program)):
        found = emit(
            OptMarks,
            *trees,
            types=[VecType(group)] * len(rows),
            hints=[f"{module.marks[op.key].name}.{op.channel}.each" for op in rows],
            symbol=rule.name,
            fields=fields,
        ).results
        channels: dict[str, dict[str, Value]] = {}
        for op, vec in zip(rows, found, strict=True):
            if op in read:
                channels.setdefault(op.key, {})[op.channel] = vec
        for key, vecs in channels.items():
            _add(module, program, module.marks[key], vecs)


def _add(module: Module, program: Program, mark: Mark, vecs: Mapping[str, Value]) -> None:
    words = _values(mark, vecs)
    guard = find(program, GuardAll)
    if guard is not None and "count" in vecs:
        chosen = selected(module, program, mark.key) if mark.kind == "diagnostic" else None
        counts = _counts(mark, vecs, chosen)
        guard.operands.setdefault("zero", []).append(counts[word_name(mark.key, "count")])
        words |= counts
    report(program).update(words)


def _counts(mark: Mark, vecs: Mapping[str, Value], chosen: Value | None) -> Words:
    each, name = vecs["count"], mark.name
    total = emit(VecCount, each, types=[I64], hints=[f"{name}.total"]).r
    first = emit(FirstNonzero, each, types=[I64], hints=[f"{name}.first"]).r
    there = emit(VecAt, each, first, types=[F32], hints=[f"{name}.there"]).r
    counted = emit_scalar("convert", there, hint=f"{name}.first_count", type=I64)
    if chosen is not None:
        total, first, counted = (
            emit_scalar("select", chosen, value, none, hint=f"{value.name}.selected")
            for value, none in ((total, 0), (first, -1), (counted, 0))
        )
    word = word_name(mark.key, "count")
    words = {word: total, f"{word}:first": first, f"{word}:first_count": counted}
    return words | ({word_name(mark.key, "odd"): _odd(vecs["odd"], name)} if "odd" in vecs else {})


def _odd(each: Value, name: str) -> Value:
    """The worst of the parameters; a group without any has none."""
    worst = emit(VecFold, each, types=[F32], hints=[f"{name}.worst"], attrs={"how": "max"}).r
    known = emit_scalar("max", worst, 0.0, hint=f"{name}.known")
    return emit_scalar("convert", known, hint=f"{name}.odd", type=I32)


def _values(mark: Mark, vecs: Mapping[str, Value]) -> Words:
    made: Words = {}
    for channel, vec in vecs.items():
        hint = [f"{mark.name}.{channel}"]
        if channel == "sum":
            made[channel] = emit(VecSum, vec, types=[F32], hints=hint).r
        elif channel == "n":
            made[channel] = emit(VecCount, vec, types=[I64], hints=hint).r
        elif channel in ("max", "min"):
            made[channel] = emit(VecFold, vec, types=[F32], hints=hint, attrs={"how": channel}).r
    return {word_name(mark.key, channel): value for channel, value in made.items()}

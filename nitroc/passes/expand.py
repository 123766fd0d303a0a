"""`expand`: named ops become core ones, so that emission has few rules; dead values are dropped.

Scalar math of a rule that no element takes part in (`1 - b1**t`) is done once, before its map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from nitro_dialect.builder import Names, building, current, emit, emit_scalar
from nitro_dialect.ir import Literal, Module, Program, Region, Rule, Value
from nitro_dialect.op import OPS, Op
from nitro_dialect.ops import (
    BINARY,
    Apply,
    ClipByNorm,
    Decay,
    GuardAll,
    LeafFold,
    LeafMap,
    LeafSize,
    Map,
    Norm,
    OptMarks,
    OptRule,
    RuleMark,
    TreeCast,
    TreeDiv,
    VecSum,
    Yield,
    leafwise,
)
from nitro_dialect.rewrite import clone, drop_dead, walk
from nitro_dialect.types import F32
from nitroc.errors import BuildError


@dataclass(frozen=True)
class Expand:
    """E-BUILD-004 for an op that an earlier pass should have resolved."""

    name: ClassVar[str] = "expand"

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        for program in module.programs.values():
            _region(program.body, module, Names.of(program))
            _trim(program)
            drop_dead(program)
        module.rules = {}
        return module


def _trim(program: Program) -> None:
    """Results that nobody reads of a `leaf.map` that somebody reads: marks of other programs."""
    read = {value for op in walk(program.body) for value in op.inputs()}
    for op in walk(program.body):
        if isinstance(op, LeafMap) and not read.isdisjoint(op.results):
            end = op.body_.ops[-1].operands
            pairs = [p for p in zip(op.results, end["values"], strict=True) if p[0] in read]
            op.results, end["values"] = [r for r, _ in pairs], [v for _, v in pairs]


def _region(region: Region, module: Module, names: Names) -> None:
    ops, region.ops = region.ops, []
    with building(region, names):
        for op in ops:
            if op.body is not None:
                _region(op.body, module, names)
            if op.level == "named":
                _expand(op, module)
            else:
                region.ops.append(op)


def _expand(op: Op, module: Module) -> None:
    """Emits core ops that define `op`'s results."""
    if isinstance(op, OptRule):
        _rule(op, module)
    elif isinstance(op, OptMarks):
        _marks(op, module)
    elif type(op) in EXPANSIONS:
        EXPANSIONS[type(op)](op)
    else:
        raise BuildError(
            4,
            f"expand found {op.mnemonic}, which has no core form",
            help="put differentiate before expand in the pipeline",
        )


def _tree_div(op: TreeDiv) -> None:
    _map(op, [op.x], lambda x: x / op.by)


def _tree_cast(op: TreeCast) -> None:
    _map(op, [op.x], lambda x: x)


def _norm(op: Norm) -> None:
    total = emit(VecSum, op.x, types=[F32], hints=[f"{op.r.name}.sum"]).r
    current().add(OPS["sqrt"]({"x": [total]}, results=op.results))


def _clip(op: ClipByNorm) -> None:
    over = emit_scalar("gt", op.norm, op.max, hint="clip.over")
    ratio = emit_scalar("div", op.max, op.norm, hint="clip.ratio")
    scale = emit_scalar("select", over, ratio, 1.0, hint="clip.scale")
    _map(op, [op.x], lambda x: x * scale)


def _guard(op: GuardAll) -> None:
    terms: list[Value | Literal] = [_test("is_finite", v) for v in op.finite]
    terms += [_test("gt", v, 0.0) for v in op.positive]
    terms += [_test("eq", v, 0) for v in op.zero]
    terms += [_test("not", v) for v in op.unset]
    *others, last = terms
    first = others.pop(0) if others else Literal(True)
    for term in others:
        first = emit_scalar("and", first, term, hint=f"{op.r.name}.{cast(Value, term).name}")
    current().add(BINARY["and"]({"a": [first], "b": [last]}, results=op.results))


def _test(mnemonic: str, tested: Value | Literal, *others: float) -> Value:
    value = cast(Value, tested)
    return emit_scalar(mnemonic, value, *others, hint=f"{value.name}.{mnemonic}")


def _decay(op: Decay) -> None:
    _map(op, [op.u, op.p], lambda u, p: u + op.rate * p, where=op.where)


def _apply(op: Apply) -> None:
    _map(op, [op.p, op.u], lambda p, u: p - op.rate * u)


def _rule(op: OptRule, module: Module) -> None:
    """By leaves where the rule speaks of them, else by whole buffers; marks are left out."""
    rule = module.rules[op.rule]
    body = _applied(op, rule, rule.body.ops[-1].operands["values"])
    cls = LeafMap if leafwise(rule.body) else Map
    current().add(cls({"trees": op.trees}, results=op.results, body=body))


def _marks(op: OptMarks, module: Module) -> None:
    rule = module.rules[op.rule]
    marked = [mark.x for mark in rule.body.ops if isinstance(mark, RuleMark)]
    body = _applied(op, rule, marked)
    current().add(LeafMap({"trees": op.trees}, results=op.results, body=body))


def _applied(op: OptRule | OptMarks, rule: Rule, wanted: Sequence[Value | Literal]) -> Region:
    """The rule's body on one element of each tree, yielding `wanted` of it."""
    values: dict[Value, Value | Literal] = dict(
        zip(rule.body.params[len(rule.elements) :], op.fields, strict=True)
    )
    elements = _elements(op, op.trees)
    values |= zip(rule.body.params, elements, strict=False)
    body = Region(elements)
    inside = set(rule.body.params[: len(rule.elements)])
    names = current().names
    for source in rule.body.ops:
        if source.terminator or isinstance(source, RuleMark):
            continue
        if isinstance(source, LeafFold | LeafSize) or inside.intersection(source.inputs()):
            inside.update(source.results)
            body.ops.append(clone(source, values, names))
        else:
            current().add(clone(source, values, names))
    with building(body, names):
        emit(Yield, *(values[v] if isinstance(v, Value) else v for v in wanted))
    return body


def _map(
    op: Op,
    trees: Sequence[Value | Literal],
    function: Callable[..., Value | Literal],
    where: str = "",
) -> None:
    elements = _elements(op, trees)
    body = Region(elements)
    with building(body, current().names):
        emit(Yield, function(*elements))
    current().add(
        Map({"trees": list(trees)}, attrs={"where": where}, results=op.results, body=body)
    )


def _elements(op: Op, trees: Sequence[Value | Literal]) -> list[Value]:
    site = op.mnemonic.rsplit(".", 1)[-1]
    names = current().names
    return [Value(F32, names.fresh(f"{cast(Value, t).name}.e", site)) for t in trees]


EXPANSIONS: dict[type[Op], Callable[[Any], None]] = {
    Apply: _apply,
    ClipByNorm: _clip,
    Decay: _decay,
    GuardAll: _guard,
    Norm: _norm,
    TreeCast: _tree_cast,
    TreeDiv: _tree_div,
}

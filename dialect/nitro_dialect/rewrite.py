"""Changing a module: copies, uses, dead values. A pass copies first, then changes the copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import singledispatch
from typing import TypeVar, cast

from nitro_dialect.builder import Names
from nitro_dialect.ir import Literal, Module, Operand, Program, Region, Rule, Value
from nitro_dialect.op import Op, as_operand

Values = dict[Value, "Value | Literal"]
PartT = TypeVar("PartT", Module, Program, Rule, Region, Op)


def walk(region: Region) -> Iterator[Op]:
    """Every op of `region` in text order, an op before those of its own region."""
    for op in region.ops:
        yield op
        if op.body is not None:
            yield from walk(op.body)


def users(region: Region, value: Value) -> list[Op]:
    """Ops of `region`, nested ones included, that read `value` directly."""
    return [op for op in walk(region) if value in op.inputs()]


def replace_uses(region: Region, old: Value, by: Operand) -> None:
    """Every read of `old` in `region` and regions inside it reads `by`."""
    new = as_operand(by)
    for op in walk(region):
        for key, row in op.operands.items():
            op.operands[key] = [new if v is old else v for v in row]
        op.entries = {key: new if v is old else v for key, v in op.entries.items()}


def drop_dead(program: Program) -> None:
    """Removes ops whose results nobody reads, in regions too; terminators and inputs stay."""
    _sweep(program.body, set())


def _sweep(region: Region, live: set[Value]) -> None:
    """Backwards: what a kept op reads is live. Every op with results is pure."""
    kept: list[Op] = []
    for op in reversed(region.ops):
        if op.results and live.isdisjoint(op.results):
            continue
        kept.append(op)
        live.update(op.inputs())
        if op.body is not None:
            _sweep(op.body, live)
    region.ops = kept[::-1]


def clone(part: PartT, values: Values | None = None, names: Names | None = None) -> PartT:
    """A deep copy of a module, program, rule, region or op.

    `values` maps values of the original to what stands for them: those given are replaced, those
    not in it and defined outside stay, and the copies of all values defined inside are added to it.
    With `names`, copies take fresh names (a rule's body inlined into a program).
    """
    return cast(PartT, _copy(part, {} if values is None else values, names))


@singledispatch
def _copy(part: object, values: Values, names: Names | None) -> object:
    raise TypeError(f"no copy of {type(part).__name__}")


@_copy.register
def _(part: Module, values: Values, names: Names | None) -> Module:
    return replace(
        part,
        consts=list(part.consts),
        devices=list(part.devices),
        marks=dict(part.marks),
        groups=dict(part.groups),
        functions=dict(part.functions),
        rules={key: clone(rule, values, names) for key, rule in part.rules.items()},
        programs={key: clone(program, values, names) for key, program in part.programs.items()},
    )


@_copy.register
def _(part: Program, values: Values, names: Names | None) -> Program:
    inputs = [replace(i, value=_define(i.value, values, i.role, names)) for i in part.inputs]
    return Program(part.name, inputs, clone(part.body, values, names))


@_copy.register
def _(part: Rule, values: Values, names: Names | None) -> Rule:
    body = clone(part.body, values, names)
    return replace(part, structure=dict(part.structure), body=body)


@_copy.register
def _(part: Region, values: Values, names: Names | None) -> Region:
    params = [_define(p, values, "in", names) for p in part.params]
    return Region(params, [clone(op, values, names) for op in part.ops])


@_copy.register
def _(part: Op, values: Values, names: Names | None) -> Op:
    site = part.mnemonic.rsplit(".", 1)[-1]
    body = None if part.body is None else clone(part.body, values, names)
    return type(part)(
        {key: [_read(v, values) for v in row] for key, row in part.operands.items()},
        attrs=dict(part.attrs),
        entries={key: _read(v, values) for key, v in part.entries.items()},
        symbol=part.symbol,
        results=[_define(r, values, site, names) for r in part.results],
        body=body,
        location=part.location,
    )


def _read(operand: Value | Literal, values: Mapping[Value, Value | Literal]) -> Value | Literal:
    return values.get(operand, operand) if isinstance(operand, Value) else operand


def _define(value: Value, values: Values, site: str, names: Names | None) -> Value:
    name = value.name if names is None else names.fresh(value.name, site)
    values[value] = made = Value(value.type, name)
    return made

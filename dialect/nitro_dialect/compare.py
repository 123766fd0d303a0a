"""Equality of modules: structure, up to the names of values and locations."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nitro_dialect.ir import Literal, Mark, Module, Program, Region, Rule, Value
from nitro_dialect.op import Op
from nitro_dialect.spelling import type_text


def difference(a: Module, b: Module) -> str | None:
    """The first place where `a` and `b` differ, in words; None when they are equal.

    Names of values and locations don't count, but for the names of inputs, which the manifest has.
    All else counts: the order of tables, whether a type is weak, the Python type of a number and
    its bits (every NaN is the same one).
    """
    for what in ("name", "done", "left", "consts", "devices"):
        if not _equal(getattr(a, what), getattr(b, what)):
            return f"{what}: {getattr(a, what)!r} against {getattr(b, what)!r}"
    return (
        _tables("mark", _placeless(a.marks), _placeless(b.marks))
        or _tables("group", a.groups, b.groups)
        or _tables("function", a.functions, b.functions)
        or _keys("rule", a.rules, b.rules)
        or _first(_rules(a.rules[key], b.rules[key]) for key in a.rules)
        or _keys("program", a.programs, b.programs)
        or _first(_programs(a.programs[key], b.programs[key]) for key in a.programs)
    )


def _first(found: Iterable[str | None]) -> str | None:
    return next((text for text in found if text is not None), None)


def _equal(a: object, b: object) -> bool:
    """Equal by Python type and bits, through lists, tuples, dicts and dataclasses' fields."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    fields = getattr(a, "__dataclass_fields__", None)
    if fields is not None:
        return all(_equal(getattr(a, f), getattr(b, f)) for f in fields)
    return a == b


def _keys(what: str, a: Mapping[str, object], b: Mapping[str, object]) -> str | None:
    if list(a) == list(b):
        return None
    return f"{what}s: {', '.join(a) or 'none'} against {', '.join(b) or 'none'}"


def _tables(what: str, a: Mapping[str, object], b: Mapping[str, object]) -> str | None:
    wrong = _keys(what, a, b)
    if wrong is not None:
        return wrong
    return _first(
        None if _equal(a[key], b[key]) else f"{what} {key}: {a[key]!r} against {b[key]!r}"
        for key in a
    )


def _placeless(marks: Mapping[str, Mark]) -> dict[str, Mark]:
    return {key: replace(mark, source="") for key, mark in marks.items()}


def _rules(a: Rule, b: Rule) -> str | None:
    for what in ("name", "elements", "scalars", "slots", "structure"):
        if not _equal(getattr(a, what), getattr(b, what)):
            return f"rule @{a.name}: {what} {getattr(a, what)!r} against {getattr(b, what)!r}"
    return _Bodies(f"rule @{a.name}").regions(a.body, b.body)


def _programs(a: Program, b: Program) -> str | None:
    where = f"program @{a.name}"
    if a.name != b.name or len(a.inputs) != len(b.inputs):
        return f"{where}: @{b.name}, {len(a.inputs)} inputs against {len(b.inputs)}"
    bodies = _Bodies(where)
    for index, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=True)):
        mine, other = (x.role, x.value.type, x.initial), (y.role, y.value.type, y.initial)
        if not _equal(mine, other) or x.value.name != y.value.name:
            return f"{where}: input {index}: {x} against {y}"
        bodies.pair(x.value, y.value)
    return bodies.regions(a.body, b.body)


class _Bodies:
    """Walks two bodies side by side; `twin` maps the first's values to the second's."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.twin: dict[Value, Value] = {}

    def pair(self, a: Value, b: Value) -> None:
        self.twin[a] = b

    def regions(self, a: Region, b: Region) -> str | None:
        wrong = self.values("parameters", a.params, b.params)
        if wrong is not None:
            return wrong
        for x, y in zip(a.ops, b.ops, strict=False):
            wrong = self.ops(x, y)
            if wrong is not None:
                return wrong
        if len(a.ops) != len(b.ops):
            longer = (a.ops if len(a.ops) > len(b.ops) else b.ops)[min(len(a.ops), len(b.ops))]
            sides = f"{len(a.ops)} ops against {len(b.ops)}"
            return f"{self.where}: {sides}, the first extra one is {_title(longer)}"
        return None

    def ops(self, a: Op, b: Op) -> str | None:
        where = f"{self.where}: {_title(a)}"
        if a.mnemonic != b.mnemonic or a.symbol != b.symbol:
            return f"{where} against {_title(b)}"
        if not _equal(dict(a.attrs), dict(b.attrs)):
            return f"{where}: attributes {a.attrs} against {b.attrs}"
        mine, other = _filled(a), _filled(b)
        if mine.keys() != other.keys() or list(a.entries) != list(b.entries):
            return f"{where}: operands {[*mine, *a.entries]} against {[*other, *b.entries]}"
        pairs = [(mine[key], other[key]) for key in mine]
        pairs.append((list(a.entries.values()), list(b.entries.values())))
        for x, y in pairs:
            if len(x) != len(y) or not all(map(self.same, x, y)):
                return f"{where}: operands {_shown(x)} against {_shown(y)}"
        if (a.body is None) != (b.body is None):
            return f"{where}: a region on one side only"
        wrong = self.regions(a.body, b.body) if a.body is not None and b.body is not None else None
        return wrong or self.values(f"results of {_title(a)}", a.results, b.results)

    def same(self, a: Value | Literal, b: Value | Literal) -> bool:
        if isinstance(a, Value):
            return self.twin.get(a) is b
        return isinstance(b, Literal) and _equal(a.value, b.value)

    def values(self, what: str, a: Sequence[Value], b: Sequence[Value]) -> str | None:
        mine, other = [type_text(v.type) for v in a], [type_text(v.type) for v in b]
        if mine != other:
            return f"{self.where}: {what} ({', '.join(mine)}) against ({', '.join(other)})"
        self.twin.update(zip(a, b, strict=True))
        return None


def _filled(op: Op) -> dict[str, list[Value | Literal]]:
    return {key: values for key, values in op.operands.items() if values}


def _title(op: Op) -> str:
    names = ", ".join(f"%{r.name}" for r in op.results)
    symbol = f" @{op.symbol}" if op.symbol is not None else ""
    return f"`{names}{' = ' if names else ''}{op.mnemonic}{symbol}`"


def _shown(operands: Sequence[Value | Literal]) -> str:
    shown = [f"%{v.name}" if isinstance(v, Value) else str(v.value) for v in operands]
    return f"({', '.join(shown)})"

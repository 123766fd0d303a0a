"""Building regions: a current insertion point, values named by where they come from.

with building(program.body, names):
    u, mu, nu = adam(g, mu, nu, t, b1=b1, b2=b2, eps=eps)     # a plain function, on IR values
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import nitro_dialect.ops  # noqa: F401  (registers every op)
from nitro_dialect.ir import Literal, Operand, Program, Region, Value
from nitro_dialect.op import OPS, Op, as_operand
from nitro_dialect.types import I1, Type

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "is_finite")


class Names:
    """Names taken in one program; `fresh` makes a new one by suffix, never by number."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self.taken = set(taken)

    def fresh(self, hint: str, site: str) -> str:
        name = hint
        while name in self.taken:
            name = f"{name}.{site}"
        self.taken.add(name)
        return name

    @classmethod
    def of(cls, program: Program) -> Names:
        names = cls([i.value.name for i in program.inputs])
        names.taken.update(_names(program.body))
        return names


def _names(region: Region) -> Iterator[str]:
    yield from (p.name for p in region.params)
    for op in region.ops:
        yield from (r.name for r in op.results)
        if op.body is not None:
            yield from _names(op.body)


class Builder:
    """Appends ops to one region, or inserts them at `index`."""

    def __init__(self, region: Region, names: Names, index: int | None = None) -> None:
        self.region = region
        self.names = names
        self.index = index

    def add(self, op: Op) -> Op:
        if self.index is None:
            self.region.ops.append(op)
        else:
            self.region.ops.insert(self.index, op)
            self.index += 1
        return op

    def value(self, type: Type, hint: str, site: str) -> Value:
        return Value(type, self.names.fresh(hint, site))


_current: contextvars.ContextVar[Builder] = contextvars.ContextVar("builder")


@contextmanager
def building(region: Region, names: Names, index: int | None = None) -> Iterator[Builder]:
    """Makes `region` the place where arithmetic on values and `emit` put their ops."""
    builder = Builder(region, names, index)
    token = _current.set(builder)
    try:
        yield builder
    finally:
        _current.reset(token)


def current() -> Builder:
    """The builder in force; LookupError outside `building`."""
    return _current.get()


OpT = TypeVar("OpT", bound=Op)


def emit(
    cls: type[OpT],
    *positional: Operand,
    types: Sequence[Type] = (),
    hints: Sequence[str] = (),
    symbol: str | None = None,
    body: Region | None = None,
    attrs: dict[str, bool | int | float | str | tuple[str, ...]] | None = None,
    entries: dict[str, Operand] | None = None,
    location: str | None = None,
    **groups: Sequence[Operand],
) -> OpT:
    """Appends a `cls`; `positional` fill its `operand`s, then its variadic; `groups` its keywords."""
    from nitro_dialect.op import operand, variadic

    builder = current()
    given = [as_operand(v) for v in positional]
    slots: dict[str, list[Value | Literal]] = {}
    for descriptor in cls.schema(operand):
        slots[descriptor.name] = [given.pop(0)]
    for descriptor in cls.schema(variadic):
        slots[descriptor.name], given = given, []
    assert not given, f"{cls.mnemonic}: too many operands"
    for key, values in groups.items():
        if values:
            slots[key.rstrip("_")] = [as_operand(v) for v in values]
    site = cls.mnemonic.rsplit(".", 1)[-1]
    results = [builder.value(t, h, site) for t, h in zip(types, hints, strict=True)]
    op = cls(
        slots,
        attrs=dict(attrs or {}),
        entries={k: as_operand(v) for k, v in (entries or {}).items()},
        symbol=symbol,
        results=results,
        body=body,
        location=location,
    )
    builder.add(op)
    return op


def emit_scalar(
    name: str, *operands: Operand, hint: str | None = None, type: Type | None = None
) -> Value:
    """Appends the scalar op `name`; its result is i1 for a comparison, else of its operands' type."""
    values = [o for o in operands if isinstance(o, Value)]
    choices = values[1:] if name == "select" and isinstance(operands[0], Value) else values
    kind = I1 if name in COMPARISONS else type or (choices or values)[0].type
    origin = hint or f"{_root(values[0].name)}.{name}"
    return emit(OPS[name], *operands, types=[kind], hints=[origin]).results[0]


def _root(name: str) -> str:
    return name.split(".")[0]

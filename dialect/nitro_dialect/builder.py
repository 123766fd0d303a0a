"""Building regions: a current insertion point, values named by where they come from.

with building(program.body, names):
    u, mu, nu = adam(g, mu, nu, t, b1=b1, b2=b2, eps=eps)     # a plain function, on IR values
"""

from __future__ import annotations

import contextvars
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TypeVar

from nitro_dialect.ir import Literal, Operand, Region, Value
from nitro_dialect.naming import Names
from nitro_dialect.op import OPS, Op, as_operand, operand, operands, variadic
from nitro_dialect.ops import COMPARE, varying
from nitro_dialect.ops.common import holds
from nitro_dialect.types import F32, FLOATS, I1, TensorType, Type, same

COMPARISONS = (*COMPARE, "is_finite")


class Builder:
    """Appends ops to one region, or inserts them at `index`.

    `elements` are the parameters of the region that differ from element to element of a leaf.
    """

    def __init__(
        self,
        region: Region,
        names: Names,
        index: int | None = None,
        elements: Sequence[Value] = (),
    ) -> None:
        self.region = region
        self.names = names
        self.index = index
        self.elements = tuple(elements)

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
def building(
    region: Region, names: Names, index: int | None = None, elements: Sequence[Value] = ()
) -> Generator[Builder]:
    """Makes `region` the place where arithmetic on values and `emit` put their ops."""
    builder = Builder(region, names, index, elements)
    token = _current.set(builder)
    try:
        yield builder
    finally:
        _current.reset(token)


def current() -> Builder:
    """The builder in force; LookupError outside `building`."""
    return _current.get()


def varies(value: Value) -> bool:
    """Whether a value of the region in force differs from element to element of a leaf."""
    builder = current()
    return value in varying(builder.region, builder.elements)


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
    """Appends a `cls`: `positional` are its operands, then its variadic, `groups` its keywords."""
    builder = current()
    given = [as_operand(v) for v in positional]
    slots: dict[str, list[Value | Literal]] = {}
    for descriptor in cls.schema(operand):
        slots[descriptor.name] = [given.pop(0)]
    for descriptor in cls.schema(variadic):
        slots[descriptor.name], given = given, []
    assert not given, f"{cls.mnemonic}: too many operands"
    known = [d.name for d in cls.schema(operands)]
    for key, values in groups.items():
        assert key.rstrip("_") in known, f"{cls.mnemonic} has no {key}: {known}"
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
    name: str, *given: Operand, hint: str | None = None, type: Type | None = None
) -> Value:
    """Appends the scalar op `name` and returns its result.

    The result is i1 for a comparison, else of the operands' type (`type` overrides it). Numbers
    become literals of the operands' type. TypeError when operands have no common type.
    """
    choices = given[1:] if name == "select" else given
    if name == "select" and not isinstance(given[0], Value):
        raise TypeError("a condition is a value of the program: compare with < or xp.equal")
    common = _common(name, choices)
    operands = [v if isinstance(v, Value) else _literal(name, v, common) for v in choices]
    operands = [*given[: len(given) - len(choices)], *operands]
    kind = type or (I1 if name in COMPARISONS else common)
    names = current().names
    names.adopt()
    origin = hint or names.origin(name, [v for v in operands if isinstance(v, Value)])
    made = emit(OPS[name], *operands, types=[kind], hints=[origin]).results[0]
    if hint is None:
        names.derived(made, name)
    return made


def _common(name: str, given: Sequence[Operand]) -> Type:
    """The one type of the values among `given`; of numbers alone, what `select` makes of them."""
    kinds = [v.type for v in given if isinstance(v, Value)]
    if not kinds and name == "select":
        return I1 if all(isinstance(v, bool) for v in given) else F32
    if not kinds:
        raise TypeError(f"{name} of numbers alone: compute it with the math module")
    for kind in kinds[1:]:
        if not same(kind, kinds[0]):
            raise TypeError(f"{name} of {kinds[0]} and {kind}: convert one, or use xp.where")
    # A weak type gives way to a strong one, as in jax.
    return next((k for k in kinds if not (isinstance(k, TensorType) and k.weak)), kinds[0])


def _literal(name: str, value: Operand, type: Type) -> Literal:
    number = value.value if isinstance(value, Literal) else value
    if not isinstance(number, Real) or not isinstance(type, TensorType):
        raise TypeError(f"{name} of {type} and {number!r}: expected a number")
    if type.dtype in FLOATS:
        number = float(number)
    elif not isinstance(number, bool | float):
        number = int(number) if isinstance(number, Integral) else float(number)
    if not holds(type.dtype, number):
        raise TypeError(f"{name} of {type} and {number!r}: {type.dtype} does not hold it")
    return Literal(number)

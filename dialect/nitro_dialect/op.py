"""Op classes are tables of descriptors: operands, attributes, symbol, results, region.

A descriptor's attribute name is the accessor, the keyword in the text and the name in errors. The
text of every op follows one shape, so parser and printer know no op by name:

    %a, %b = name @symbol %x, %y {attr = 1} keyword(%u, %v) (%i : i32) { ... } : f32, f32

Positional operands come first (`operand`, then `variadic`), `operands` are keyword groups,
`entries` a table `{key = %value}` of named operands, in place of attributes. Types are those of the
results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, overload

from nitro_dialect.ir import Attr, Literal, Module, Operand, Region, Value


@dataclass
class Descriptor:
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.rstrip("_")


class operand(Descriptor):
    """One positional operand, required."""

    def __get__(self, op: Op, owner: type) -> Value | Literal:
        return op.operands[self.name][0]


class variadic(Descriptor):
    """Positional operands after the required ones, any number."""

    def __get__(self, op: Op, owner: type) -> list[Value | Literal]:
        return op.operands.get(self.name, [])


class operands(Descriptor):
    """A keyword group `name(%a, %b)`, any number, absent when empty."""

    def __get__(self, op: Op, owner: type) -> list[Value | Literal]:
        return op.operands.get(self.name, [])


class entries(Descriptor):
    """A table `{name = %value}` whose keys are data: a report's words, a program's outputs."""

    def __get__(self, op: Op, owner: type) -> dict[str, Value | Literal]:
        return op.entries


T = TypeVar("T")


class attr(Descriptor):
    """An attribute of Python type `kind`; printed always, sorted by name."""

    def __init__(self, kind: type, default: Attr | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.default = default

    def __get__(self, op: Op, owner: type) -> Any:
        return op.attrs[self.name]


class symbol(Descriptor):
    """`@name` of a function or rule of the module."""

    def __get__(self, op: Op, owner: type) -> str:
        assert op.symbol is not None
        return op.symbol


class result(Descriptor):
    @overload
    def __get__(self, op: None, owner: type) -> result: ...
    @overload
    def __get__(self, op: Op, owner: type) -> Value: ...
    def __get__(self, op: Op | None, owner: type) -> result | Value:
        if op is None:
            return self
        names = [d.name for d in type(op).schema(result)]
        return op.results[names.index(self.name)]


class results(Descriptor):
    """Any number of results."""

    def __get__(self, op: Op, owner: type) -> list[Value]:
        return op.results


class region(Descriptor):
    def __get__(self, op: Op, owner: type) -> Region:
        assert op.body is not None
        return op.body


OPS: dict[str, type[Op]] = {}
"""Every op class by the name it has in the text."""


class Op:
    """Base of all ops. Subclasses declare descriptors, `mnemonic`, and `check`.

    `level`: `named` ops are gone after `expand`; `core` ones are what emission knows.
    """

    mnemonic: ClassVar[str] = ""
    level: ClassVar[str] = "core"
    terminator: ClassVar[bool] = False

    def __init__(
        self,
        operands: dict[str, list[Value | Literal]] | None = None,
        *,
        attrs: dict[str, Attr] | None = None,
        entries: dict[str, Value | Literal] | None = None,
        symbol: str | None = None,
        results: Sequence[Value] = (),
        body: Region | None = None,
        location: str | None = None,
    ) -> None:
        self.operands = operands or {}
        defaults = {d.name: d.default for d in self.schema(attr) if d.default is not None}
        self.attrs = {**defaults, **(attrs or {})}
        self.entries = entries or {}
        self.symbol = symbol
        self.results = list(results)
        self.body = body
        self.location = location

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.mnemonic:
            assert cls.mnemonic not in OPS, cls.mnemonic
            OPS[cls.mnemonic] = cls

    @classmethod
    def schema(cls, *kinds: type[Descriptor]) -> list[Any]:
        """Descriptors of `kinds` (all by default) in the order they are written."""
        return list(_schema(cls, kinds or (Descriptor,)))

    def inputs(self) -> list[Value]:
        """Values this op reads directly, not those its region captures."""
        groups = [*self.operands.values(), list(self.entries.values())]
        return [v for group in groups for v in group if isinstance(v, Value)]

    def check(self, context: Context) -> None:
        """The numbered constraints of the class docstring, through `context.require`."""


@cache
def _schema(cls: type[Op], kinds: tuple[type[Descriptor], ...]) -> tuple[Descriptor, ...]:
    """A class never changes its descriptors, and every check of every pass asks for them."""
    declared = (d for base in reversed(cls.__mro__) for d in vars(base).values())
    return tuple(d for d in declared if isinstance(d, kinds))


@dataclass
class Context:
    """What a check may look at, and how it says what is wrong."""

    module: Module
    report: Callable[[Op, str, str], None]

    def require(self, op: Op, condition: bool, label: str, message: str) -> None:
        """`label` is the constraint's (`C1`); the diagnostic carries `<op>_<label>`."""
        if not condition:
            self.report(op, label, message)


def as_operand(value: Operand) -> Value | Literal:
    return value if isinstance(value, Value | Literal) else Literal(value)

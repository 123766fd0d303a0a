"""Math on scalars (rank 0); inside a `map` or `fold` region, on one element."""

from __future__ import annotations

from collections.abc import Mapping

from nitro_dialect.ir import Value
from nitro_dialect.op import Context, Op, operand, result
from nitro_dialect.ops.common import fits, scalar, type_of
from nitro_dialect.types import FLOATS, I1, INTS, WORDS, is_scalar, same


def _agree(op: Op) -> bool:
    """Scalars of one type; a literal is one too when the type can hold it. One is a value."""
    given = [v for row in op.operands.values() for v in row]
    known = next((v.type for v in given if isinstance(v, Value)), None)
    return known is not None and is_scalar(known) and all(fits(v, known) for v in given)


def _of_dtype(op: Op, tables: Mapping[str, tuple[str, ...]]) -> bool:
    kind = op.results[0].type
    return is_scalar(kind, *tables.get(op.mnemonic, FLOATS))


class Unary(Op):
    """Element-wise function of one scalar; a result of the same type.

    (C1) The operand and the result are scalars of one type.
    (C2) The type is a float; for `neg abs sign` a signed integer too, for `not` i1.
    """

    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        ok = _agree(self) and same(self.results[0].type, type_of(self.x) or I1)
        context.require(self, ok, "C1", "operand and result must be scalars of one type")
        ok = not ok or _of_dtype(self, UNARY_DTYPES)
        found = self.results[0].type
        context.require(self, ok, "C2", f"{self.mnemonic} has no meaning on {found}")


class Binary(Op):
    """Element-wise function of two scalars; a result of their type.

    (C1) Operands and result are scalars of one type; a literal takes the other operand's.
    (C2) The type is a number; for `pow` a float, for `and or` i1.
    """

    a = operand()
    b = operand()
    r = result()

    def check(self, context: Context) -> None:
        known = type_of(self.a) or type_of(self.b)
        ok = _agree(self) and known is not None and same(self.results[0].type, known)
        context.require(self, ok, "C1", "operands and result must be scalars of one type")
        ok = not ok or _of_dtype(self, BINARY_DTYPES)
        found = self.results[0].type
        context.require(self, ok, "C2", f"{self.mnemonic} has no meaning on {found}")


class Compare(Op):
    """Compares two scalars; any comparison with NaN but `ne` is false.

    (C1) Operands are scalars of one type, the result is i1.
    """

    a = operand()
    b = operand()
    r = result()

    def check(self, context: Context) -> None:
        ok = _agree(self) and same(self.results[0].type, I1)
        context.require(self, ok, "C1", "operands must be scalars of one type, the result i1")


def _family(base: type[Op], names: str) -> dict[str, type[Op]]:
    return {name: _member(base, name) for name in names.split()}


def _member(base: type[Op], name: str) -> type[Op]:
    return type(name.title(), (base,), {"mnemonic": name, "__doc__": base.__doc__})


UNARY = _family(Unary, "neg abs sqrt rsqrt exp log tanh sign floor not")

BINARY = _family(Binary, "add sub mul div pow min max and or")
"""`min max` propagate NaN; `pow` is IEEE `x**y`."""

COMPARE = _family(Compare, "lt le gt ge eq ne")

_SIGNED = (*FLOATS, "i64", "i32", "i16", "i8")
_ALL = (*FLOATS, *INTS)
UNARY_DTYPES = {"neg": _SIGNED, "abs": _SIGNED, "sign": _SIGNED, "not": ("i1",)}
BINARY_DTYPES = {
    **dict.fromkeys(("add", "sub", "mul", "div", "min", "max"), _ALL),
    "and": ("i1",),
    "or": ("i1",),
}
"""dtypes of the ops that are not for floats only."""

ELEMENTWISE = (*UNARY, *BINARY, *COMPARE, "is_finite", "select", "convert", "yield")
"""Ops that a rule, and the region of `map` and `fold`, may hold."""


class IsFinite(Op):
    """Whether a float is neither NaN nor infinite.

    (C1) The operand is a float scalar, the result i1.
    """

    mnemonic = "is_finite"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        ok = isinstance(self.x, Value) and scalar(self.x, *FLOATS)
        ok = ok and same(self.results[0].type, I1)
        context.require(self, ok, "C1", "the operand must be a float scalar, the result i1")


class Select(Op):
    """`a` where `condition`, else `b`.

    (C1) `condition` is an i1 scalar.
    (C2) `a`, `b` and the result are scalars of one type.
    """

    mnemonic = "select"
    condition = operand()
    a = operand()
    b = operand()
    r = result()

    def check(self, context: Context) -> None:
        context.require(self, scalar(self.condition, "i1"), "C1", "the condition must be i1")
        kind = self.results[0].type
        ok = is_scalar(kind) and fits(self.a, kind) and fits(self.b, kind)
        context.require(self, ok, "C2", "both choices and the result must be scalars of one type")


class Convert(Op):
    """The operand in the result's dtype, rounded to nearest even.

    (C1) Operand and result are scalars, the operand a value.
    """

    mnemonic = "convert"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        ok = isinstance(self.x, Value) and scalar(self.x, *FLOATS, *INTS, "i1")
        ok = ok and is_scalar(self.results[0].type)
        context.require(self, ok, "C1", "operand and result must be scalars")


class Words(Op):
    """An i64 as two ui32 words, high word first: how imported functions take the step.

    (C1) The operand is an i64 scalar, the result ui32[2].
    """

    mnemonic = "words"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        ok = isinstance(self.x, Value) and scalar(self.x, "i64")
        ok = ok and same(self.results[0].type, WORDS)
        context.require(self, ok, "C1", "the operand must be an i64 value, the result ui32[2]")

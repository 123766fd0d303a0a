"""Math on scalars (rank 0); inside a `map` or `fold` region, on one element."""

from __future__ import annotations

from nitro_dialect.ir import Value
from nitro_dialect.op import Context, Op, operand, result
from nitro_dialect.ops.common import scalar, type_of
from nitro_dialect.types import FLOATS, I1, INTS, WORDS, is_scalar, same


def _agree(op: Op) -> bool:
    """Scalars of one type, literals aside; at least one is a value."""
    types = [type_of(v) for group in op.operands.values() for v in group]
    known = [t for t in types if t is not None]
    return bool(known) and all(is_scalar(t) and same(t, known[0]) for t in known)


class Unary(Op):
    """Element-wise function of one scalar; a result of the same type.

    (C1) The operand and the result are scalars of one type.
    """

    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        ok = _agree(self) and same(self.results[0].type, type_of(self.x) or I1)
        context.require(self, ok, "C1", "operand and result must be scalars of one type")


class Binary(Op):
    """Element-wise function of two scalars; a result of their type.

    (C1) Operands and result are scalars of one type; a literal takes the other operand's.
    """

    a = operand()
    b = operand()
    r = result()

    def check(self, context: Context) -> None:
        known = type_of(self.a) or type_of(self.b)
        ok = _agree(self) and known is not None and same(self.results[0].type, known)
        context.require(self, ok, "C1", "operands and result must be scalars of one type")


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
    return {
        name: type(name.title().replace("_", ""), (base,), {"mnemonic": name, "__doc__": base.__doc__})
        for name in names.split()
    }  # fmt: skip


UNARY = _family(Unary, "neg abs sqrt rsqrt exp log tanh sign floor not")
"""`not` is for i1, the others for floats (`neg abs sign` for signed integers too)."""

BINARY = _family(Binary, "add sub mul div pow min max and or")
"""`and or` are for i1; `min max` propagate NaN; `pow` is IEEE `x**y`."""

COMPARE = _family(Compare, "lt le gt ge eq ne")


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
        kinds = [type_of(self.a), type_of(self.b), self.results[0].type]
        known = [t for t in kinds if t is not None]
        ok = all(is_scalar(t) and same(t, known[0]) for t in known)
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

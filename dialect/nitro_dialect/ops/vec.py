"""One word per leaf: what is read of a vec."""

from __future__ import annotations

from nitro_dialect.op import Context, Op, attr, operand, result
from nitro_dialect.ops.common import combines, scalar, type_of
from nitro_dialect.types import F32, I64, Type, VecType, same


def _takes_vec(op: Op, context: Context, kind: Type) -> None:
    ok = isinstance(type_of(op.operands["x"][0]), VecType) and same(op.results[0].type, kind)
    context.require(op, ok, "C1", f"the operand must be a vec, the result {kind}")


class VecSum(Op):
    """The sum of a vec, in f32.

    (C1) The operand is a vec and the result f32.
    """

    mnemonic = "vec.sum"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        _takes_vec(self, context, F32)


class VecFold(Op):
    """The largest or smallest word of a vec, NaN when one is; without leaves -inf or +inf.

    (C1) The operand is a vec and the result f32.
    (C2) `how` is max or min.
    """

    mnemonic = "vec.fold"
    x = operand()
    how = attr(str)
    r = result()

    def check(self, context: Context) -> None:
        _takes_vec(self, context, F32)
        combines(self, context, "C2", ("max", "min"))


class VecCount(Op):
    """The sum of a vec of whole numbers, exactly: every word is made an i64 first.

    (C1) The operand is a vec and the result i64.
    """

    mnemonic = "vec.count"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        _takes_vec(self, context, I64)


class FirstNonfinite(Op):
    """The index of a vec's first NaN or infinite word, -1 when all are finite.

    (C1) The operand is a vec and the result i64.
    """

    mnemonic = "vec.first_nonfinite"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        _takes_vec(self, context, I64)


class FirstNonzero(Op):
    """The index of a vec's first word that is not 0 (NaN is not), -1 when all are.

    (C1) The operand is a vec and the result i64.
    """

    mnemonic = "vec.first_nonzero"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        _takes_vec(self, context, I64)


class VecAt(Op):
    """Word `index` of a vec; 0 where there is no such word, as at -1.

    (C1) The operand is a vec and the result f32.
    (C2) `index` is an i64 scalar.
    """

    mnemonic = "vec.at"
    x = operand()
    index = operand()
    r = result()

    def check(self, context: Context) -> None:
        _takes_vec(self, context, F32)
        context.require(self, scalar(self.index, "i64"), "C2", "the index must be an i64 scalar")

"""What several ops' checks ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nitro_dialect.errors import suggestion
from nitro_dialect.ir import Literal, Value
from nitro_dialect.op import Context, Op
from nitro_dialect.types import (
    F32,
    FLOATS,
    INTS,
    TensorType,
    TreeType,
    Type,
    VecType,
    is_scalar,
    same,
)

COMBINE = ("sum", "max", "min")
"""How elements or leaves are reduced."""


def unknown(what: str, name: str | None, known: Iterable[str]) -> str:
    """The message for a symbol the module does not have."""
    return f"no {what} @{name} in this module{suggestion(name or '', known, '@')}"


def type_of(operand: Value | Literal) -> Type | None:
    """The operand's type; None for a literal, which takes the type that is asked of it."""
    return operand.type if isinstance(operand, Value) else None


def scalar(operand: Value | Literal, *dtypes: str) -> bool:
    """A rank-0 value (of one of `dtypes`), or a literal that one of them holds."""
    if isinstance(operand, Value):
        return is_scalar(operand.type, *dtypes)
    return not dtypes or any(holds(dtype, operand.value) for dtype in dtypes)


def group_of(operand: Value | Literal) -> str | None:
    kind = type_of(operand)
    return kind.group if isinstance(kind, TreeType | VecType) else None


def one_group(operands: Sequence[Value | Literal]) -> bool:
    """Whether all are trees, of one group."""
    trees = all(isinstance(type_of(o), TreeType) for o in operands)
    return trees and len({group_of(o) for o in operands}) == 1


def fits(operand: Value | Literal, type: Type) -> bool:
    """Whether the operand may stand where `type` is asked: the same type, or a scalar's literal."""
    if isinstance(operand, Value):
        return same(operand.type, type)
    return isinstance(type, TensorType) and not type.shape and holds(type.dtype, operand.value)


def holds(dtype: str, value: bool | int | float) -> bool:
    """Whether a literal is a `dtype`: floats take integers, integers no floats, i1 bools only."""
    if isinstance(value, bool) or dtype == "i1":
        return isinstance(value, bool) and dtype == "i1"
    if dtype in INTS:
        bits, signed = int(dtype.lstrip("ui")), not dtype.startswith("u")
        least, most = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
        return isinstance(value, int) and least <= value < most
    return dtype in FLOATS


def element_params(op: Op) -> bool:
    """Whether the op's region takes one f32 per operand of `trees`."""
    body = op.body
    return body is not None and len(body.params) == len(op.operands.get("trees", [])) and all(
        same(p.type, F32) for p in body.params
    )  # fmt: skip


def yields(op: Op, count: int) -> bool:
    """Whether the op's region ends in a yield of `count` f32 scalars."""
    if op.body is None or not op.body.ops:
        return False
    last = op.body.ops[-1]
    values = last.operands.get("values", [])
    return last.mnemonic == "yield" and len(values) == count and all(
        scalar(v, "f32") for v in values
    )  # fmt: skip


def combines(op: Op, context: Context, label: str, known: Sequence[str] = COMBINE) -> None:
    """The op's `how` is one of `known`."""
    how = str(op.attrs["how"])
    message = f"how is {' or '.join((', '.join(known[:-1]), known[-1]))}, found {how}"
    context.require(op, how in known, label, f"{message}{suggestion(how, known)}")

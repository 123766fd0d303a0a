"""What several ops' checks ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nitro_dialect.errors import suggestion
from nitro_dialect.ir import Literal, Value
from nitro_dialect.types import FLOATS, INTS, TensorType, TreeType, Type, VecType, is_scalar, same


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

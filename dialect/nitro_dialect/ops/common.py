"""What several ops' checks ask."""

from __future__ import annotations

from collections.abc import Sequence

from nitro_dialect.ir import Literal, Value
from nitro_dialect.types import TensorType, TreeType, Type, VecType, is_scalar, same


def type_of(operand: Value | Literal) -> Type | None:
    """The operand's type; None for a literal, which takes the type that is asked of it."""
    return operand.type if isinstance(operand, Value) else None


def scalar(operand: Value | Literal, *dtypes: str) -> bool:
    """A rank-0 value (of one of `dtypes`), or a literal."""
    kind = type_of(operand)
    return kind is None or is_scalar(kind, *dtypes)


def group_of(operand: Value | Literal) -> str | None:
    kind = type_of(operand)
    return kind.group if isinstance(kind, TreeType | VecType) else None


def one_group(operands: Sequence[Value | Literal]) -> bool:
    groups = {group_of(o) for o in operands}
    return len(groups) == 1 and None not in groups


def fits(operand: Value | Literal, type: Type) -> bool:
    """Whether the operand may stand where `type` is asked: the same type, or a scalar literal."""
    kind = type_of(operand)
    if kind is None:
        return isinstance(type, TensorType) and not type.shape
    return same(kind, type)

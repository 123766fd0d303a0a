"""Scalar math; inside a `map` or `fold` region the same rules work on whole buffers.

A scalar stays one until it meets an element: it is broadcast by the op that needs it.
"""

from __future__ import annotations

from nitro_dialect.ir import Literal, Value
from nitro_dialect.op import Op, operand
from nitro_dialect.ops import BINARY, COMPARE, UNARY
from nitro_dialect.types import TensorType
from nitroc.emit import mlir
from nitroc.emit.mlir import Tensor
from nitroc.emit.scope import Rule, Scope

LOW_WORD = 0xFFFFFFFF


def unary(scope: Scope, op: Op) -> None:
    (x,) = _together(scope, op, _operands(op))
    scope.set_tensor(op.results[0], mlir.unary(op.mnemonic, x))


def binary(scope: Scope, op: Op) -> None:
    a, b = _together(scope, op, _operands(op))
    scope.set_tensor(op.results[0], mlir.binary(op.mnemonic, a, b))


def compare(scope: Scope, op: Op) -> None:
    a, b = _together(scope, op, _operands(op))
    scope.set_tensor(op.results[0], mlir.compare(op.mnemonic, a, b))


def select(scope: Scope, op: Op) -> None:
    condition, *choices = _operands(op)
    chosen = scope.operand(condition, "i1")
    a, b = _together(scope, op, choices, mlir.shape_of(chosen))
    scope.set_tensor(op.results[0], mlir.select(chosen, a, b))


def convert(scope: Scope, op: Op) -> None:
    kind = op.results[0].type
    assert isinstance(kind, TensorType)
    (x,) = _together(scope, op, _operands(op))
    scope.set_tensor(op.results[0], mlir.convert(x, kind.dtype))


def words(scope: Scope, op: Op) -> None:
    """An i64 as ui32[2]; each half is in range before it is narrowed."""
    x = scope.tensor(op.inputs()[0])
    scope.set_tensor(op.results[0], mlir.concatenate(split_words(x)))


def split_words(x: Tensor) -> list[Tensor]:
    """An i64 scalar as two ui32[1], high word first."""
    high = mlir.binary("shift_right", x, mlir.constant(32, "i64"))
    low = mlir.binary("and", x, mlir.constant(LOW_WORD, "i64"))
    return [mlir.reshape(mlir.convert(half, "ui32"), (1,)) for half in (high, low)]


def _operands(op: Op) -> list[Value | Literal]:
    return [op.operands[d.name][0] for d in type(op).schema(operand)]


def _together(
    scope: Scope, op: Op, operands: list[Value | Literal], shape: tuple[int, ...] = ()
) -> list[Tensor]:
    """Operands in one dtype and shape: that of an element when one of them is one."""
    known = [scope.tensor(v) for v in operands if isinstance(v, Value)]
    common = next((s for s in map(mlir.shape_of, known) if s), shape)
    dtype = mlir.dtype_of(known[0]) if known else _dtype(op.results[0])
    return [mlir.broadcast(scope.operand(v, dtype, common), common) for v in operands]


def _dtype(value: Value) -> str:
    assert isinstance(value.type, TensorType)
    return value.type.dtype


RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(BINARY, binary),
    **dict.fromkeys(COMPARE, compare),
    "is_finite": unary,
    "select": select,
    "convert": convert,
    "words": words,
}

"""Vecs, one f32 word per leaf: a 1-D tensor, in the order of the group's table."""

from __future__ import annotations

from functools import reduce

from nitro_dialect.op import Op
from nitro_dialect.ops import VecAt, VecFold
from nitroc.emit import mlir
from nitroc.emit.mlir import Tensor
from nitroc.emit.scope import Rule, Scope
from nitroc.emit.tree import reduce_elements


def total(scope: Scope, op: Op) -> None:
    """Added word after word: a reduction could associate otherwise from one fusion to the next."""
    x = _vec(scope, op)
    words = [mlir.entry(x, i) for i in range(mlir.shape_of(x)[0])]
    made = reduce(lambda a, b: mlir.binary("add", a, b), words) if words else None
    scope.set_tensor(op.results[0], mlir.constant(0.0, "f32") if made is None else made)


def extreme(scope: Scope, op: Op) -> None:
    assert isinstance(op, VecFold)
    scope.set_tensor(op.results[0], reduce_elements(_vec(scope, op), op.how))


def count(scope: Scope, op: Op) -> None:
    whole = mlir.convert(_vec(scope, op), "i64")
    scope.set_tensor(op.results[0], mlir.reduce(whole, "add", 0))


def first_nonfinite(scope: Scope, op: Op) -> None:
    x = _vec(scope, op)
    _first(scope, op, mlir.unary("not", mlir.unary("is_finite", x)))


def first_nonzero(scope: Scope, op: Op) -> None:
    x = _vec(scope, op)
    _first(scope, op, mlir.compare("ne", x, mlir.constant(0.0, "f32", mlir.shape_of(x))))


def _first(scope: Scope, op: Op, found: Tensor) -> None:
    """The index of the first of `found`, -1 for none."""
    size = mlir.shape_of(found)[0]
    none = mlir.constant(-1, "i64")
    if not size:
        scope.set_tensor(op.results[0], none)
        return
    beyond = mlir.constant(size, "i64", (size,))
    first = mlir.reduce(mlir.select(found, mlir.iota("i64", size), beyond), "min", size)
    clean = mlir.compare("eq", first, mlir.constant(size, "i64"))
    scope.set_tensor(op.results[0], mlir.select(clean, none, first))


def at(scope: Scope, op: Op) -> None:
    assert isinstance(op, VecAt)
    x = _vec(scope, op)
    size = mlir.shape_of(x)[0]
    index = mlir.broadcast(scope.operand(op.index, "i64"), (size,))
    chosen = mlir.compare("eq", mlir.iota("i64", size), index)
    zeros = mlir.constant(0.0, "f32", (size,))
    scope.set_tensor(op.results[0], mlir.reduce(mlir.select(chosen, x, zeros), "add", 0.0))


def _vec(scope: Scope, op: Op) -> Tensor:
    return scope.tensor(op.inputs()[0])


RULES: dict[str, Rule] = {
    "vec.sum": total,
    "vec.fold": extreme,
    "vec.count": count,
    "vec.first_nonfinite": first_nonfinite,
    "vec.first_nonzero": first_nonzero,
    "vec.at": at,
}

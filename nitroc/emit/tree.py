"""Whole groups: maps buffer by buffer, reductions leaf by leaf.

A reduction always runs over the leaf as 1-D, whatever buffer it lies in, so every layout gives the
same bits; it is in f32, whatever the leaf's dtype.
"""

from __future__ import annotations

import math
from functools import reduce

from nitro_dialect.ir import Literal, Region, Value
from nitro_dialect.op import Op
from nitro_dialect.ops import At, Fold, FoldLeaf, Map
from nitro_dialect.types import TreeType
from nitroc.emit import mlir
from nitroc.emit.mlir import Tensor
from nitroc.emit.scope import Rule, Scope

COMBINE: dict[str, tuple[str, float]] = {
    "sum": ("add", 0.0),
    "max": ("max", -math.inf),
    "min": ("min", math.inf),
}
"""The binary op of a reduction and its neutral element."""


def map_(scope: Scope, op: Op) -> None:
    assert isinstance(op, Map)
    kinds = [r.type for r in op.results]
    trees = [scope.buffers(v) for v in _values(op.trees)]
    columns: list[list[Tensor]] = [[] for _ in kinds]
    for i, (buffer, rows) in enumerate(scope.layout(kinds[0]).rows()):
        given = [tree[i] for tree in trees]
        chosen = not op.where or op.where in rows[0][0].flags
        made = _elements(scope, op.body_, given, buffer.shape) if chosen else given[:1] * len(kinds)
        for column, x, kind in zip(columns, made, kinds, strict=True):
            assert isinstance(kind, TreeType)
            column.append(mlir.convert(x, kind.dtype or buffer.dtype))
    for value, column in zip(op.results, columns, strict=True):
        scope.set_buffers(value, column)


def fold_leaf(scope: Scope, op: Op) -> None:
    assert isinstance(op, FoldLeaf)
    words = _per_leaf(scope, op.trees, op.body_, op.how)
    scope.set_tensor(op.results[0], mlir.vector(words))


def fold(scope: Scope, op: Op) -> None:
    assert isinstance(op, Fold)
    name, neutral = COMBINE[op.how]
    words = _per_leaf(scope, op.trees, op.body_, op.how)
    total = reduce(lambda a, b: mlir.binary(name, a, b), words) if words else None
    scope.set_tensor(op.results[0], mlir.constant(neutral, "f32") if total is None else total)


def at(scope: Scope, op: Op) -> None:
    assert isinstance(op, At)
    scope.set_tensor(op.results[0], mlir.entry(scope.operand(op.x, ""), op.index))


def _values(operands: list[Value | Literal]) -> list[Value]:
    return [v for v in operands if isinstance(v, Value)]


def _per_leaf(scope: Scope, trees: list[Value | Literal], body: Region, how: str) -> list[Tensor]:
    words: list[Tensor] = []
    for given in zip(*(scope.leaves(v) for v in _values(trees)), strict=True):
        flat = (math.prod(mlir.shape_of(given[0])),)
        (x,) = _elements(scope, body, [mlir.reshape(g, flat) for g in given], flat)
        words.append(reduce_elements(x, how))
    return words


def reduce_elements(x: Tensor, how: str) -> Tensor:
    """All elements of `x` as one; NaN when one is."""
    name, neutral = COMBINE[how]
    total = mlir.reduce(x, name, neutral)
    if how == "sum":
        return total
    # XLA on CPU drops NaN from wide max and min reductions; an `or` over x != x does not.
    bad = mlir.reduce(mlir.compare("ne", x, x), "or", False)
    return mlir.select(bad, mlir.constant(math.nan, "f32"), total)


def _elements(
    scope: Scope, body: Region, given: list[Tensor], shape: tuple[int, ...]
) -> list[Tensor]:
    """The region's f32 values on f32 operands of one shape."""
    inner = scope.child()
    for param, x in zip(body.params, given, strict=True):
        inner.set_tensor(param, mlir.convert(x, "f32"))
    (end,) = inner.run(body)
    values = end.operands.get("values", [])
    return [mlir.broadcast(inner.operand(v, "f32"), shape) for v in values]


RULES: dict[str, Rule] = {
    "map": map_,
    "fold": fold,
    "fold.leaf": fold_leaf,
    "tensor.at": at,
}

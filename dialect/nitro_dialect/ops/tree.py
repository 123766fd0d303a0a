"""Whole groups: `map` and `fold` carry an element-wise region applied to every leaf."""

from __future__ import annotations

from nitro_dialect.op import Context, Op, attr, operand, region, result, results, variadic
from nitro_dialect.ops.common import (
    combines,
    element_params,
    group_of,
    one_group,
    scalar,
    type_of,
    yields,
)
from nitro_dialect.ops.scalar import ELEMENTWISE
from nitro_dialect.types import F32, TensorType, TreeType, Type, VecType, same


def _elementwise(op: Op, context: Context, label: str) -> None:
    held = [inner.mnemonic for inner in op.body.ops] if op.body is not None else []
    wrong = [name for name in held if name not in ELEMENTWISE]
    context.require(op, not wrong, label, f"{', '.join(wrong)} in an element-wise region")


class Map(Op):
    """Applies the region to every element of every leaf of the operands, one group's trees.

    Elements enter as f32 (narrower leaves are widened) and each result is rounded to its tree's
    dtype. The region may read scalars of the enclosing regions. With `where = flag`, leaves without
    the flag pass operand 0 through.

    (C1) Operands and results are trees of one group.
    (C2) The region takes one f32 per operand.
    (C3) The region yields one f32 scalar per result.
    (C4) The region holds scalar math only.
    """

    mnemonic = "map"
    trees = variadic()
    where = attr(str, "")
    body_ = region()
    out = results()

    def check(self, context: Context) -> None:
        values = [*self.trees, *self.results]
        ok = one_group(values)
        context.require(self, ok, "C1", "operands and results must be trees of one group")
        context.require(self, element_params(self), "C2", "the region takes one f32 per operand")
        context.require(self, yields(self, len(self.results)), "C3", "one f32 per result")
        _elementwise(self, context, "C4")


class Fold(Op):
    """Reduces the region's value over all elements of all leaves, in f32: sum, max, min.

    (C1) Operands are trees of one group and the result is f32.
    (C2) The region takes one f32 per operand and yields one.
    (C3) `how` is sum, max or min.
    (C4) The region holds scalar math only.
    """

    mnemonic = "fold"
    trees = variadic()
    how = attr(str)
    body_ = region()
    r = result()

    def check(self, context: Context) -> None:
        ok = one_group(self.trees) and same(self.results[0].type, F32)
        context.require(self, ok, "C1", "operands must be trees of one group, the result f32")
        ok = element_params(self) and yields(self, 1)
        context.require(self, ok, "C2", "the region takes one f32 per operand and yields one")
        combines(self, context, "C3")
        _elementwise(self, context, "C4")


class FoldLeaf(Op):
    """Reduces the region's value leaf by leaf, in f32, into one word per leaf.

    (C1) Operands are trees of one group and the result is that group's vec.
    (C2) The region takes one f32 per operand and yields one.
    (C3) `how` is sum, max or min.
    (C4) The region holds scalar math only.
    """

    mnemonic = "fold.leaf"
    trees = variadic()
    how = attr(str)
    body_ = region()
    r = result()

    def check(self, context: Context) -> None:
        kind = self.results[0].type
        ok = one_group(self.trees) and kind == VecType(group_of(self.trees[0]) or "")
        context.require(self, ok, "C1", "operands must be trees of one group, the result its vec")
        ok = element_params(self) and yields(self, 1)
        context.require(self, ok, "C2", "the region takes one f32 per operand and yields one")
        combines(self, context, "C3")
        _elementwise(self, context, "C4")


class Norm(Op):
    """The square root of the sum of per-leaf sums of squares.

    (C1) The operand is a vec and the result f32.
    """

    mnemonic = "norm"
    level = "named"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        ok = isinstance(type_of(self.x), VecType) and same(self.results[0].type, F32)
        context.require(self, ok, "C1", "the operand must be a vec, the result f32")


class TreeDiv(Op):
    """Every element divided by one scalar, in f32.

    (C1) The operand is a tree and the result the f32 tree of its group.
    (C2) The divisor is an f32 scalar.
    """

    mnemonic = "tree.div"
    level = "named"
    x = operand()
    by = operand()
    r = result()

    def check(self, context: Context) -> None:
        group = group_of(self.x)
        ok = isinstance(type_of(self.x), TreeType) and self.results[0].type == TreeType(
            group or "", "f32"
        )
        context.require(self, ok, "C1", "the operand must be a tree, the result its f32 tree")
        context.require(self, scalar(self.by, "f32"), "C2", "the divisor must be an f32 scalar")


class TreeCast(Op):
    """Every leaf in the result's dtype: a master's rounding.

    (C1) Operand and result are trees of one group.
    """

    mnemonic = "tree.cast"
    level = "named"
    x = operand()
    r = result()

    def check(self, context: Context) -> None:
        ok = one_group([self.x, self.results[0]])
        context.require(self, ok, "C1", "operand and result must be trees of one group")


class At(Op):
    """Entry `index` of a tensor's first axis: one micro-batch of a step's batch.

    (C1) The operand has rank >= 1 and the result is its type without the first axis.
    (C2) `index` is inside the first axis.
    """

    mnemonic = "tensor.at"
    x = operand()
    index = attr(int)
    r = result()

    def check(self, context: Context) -> None:
        kind = type_of(self.x)
        first, rest = _split(kind)
        ok = first is not None and same(self.results[0].type, rest)
        context.require(self, ok, "C1", "the operand loses its first axis")
        inside = first is None or 0 <= self.index < first
        context.require(self, inside, "C2", f"index {self.index} is outside the axis of {first}")


def _split(kind: Type | None) -> tuple[int | None, Type]:
    """First axis and the type without it; None for what has no axis."""
    if not isinstance(kind, TensorType) or not kind.shape:
        return None, F32
    first, *rest = kind.shape
    return first, TensorType(kind.dtype, tuple(rest))

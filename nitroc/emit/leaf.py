"""Leaf by leaf: what a region says of its leaf is of one, whatever buffer that lies in.

Values of elements are one 1-D tensor per leaf. A value that is one for all elements of a leaf is a
word of one vector over all leaves: math on such values is emitted once, not once per leaf.
"""

from __future__ import annotations

from collections.abc import Sequence

from nitro_dialect.ir import Leaf, Literal, Region, Value
from nitro_dialect.op import Op
from nitro_dialect.ops import LeafFold, LeafMap, varying
from nitro_dialect.types import TreeType
from nitroc.emit import mlir
from nitroc.emit.mlir import Tensor
from nitroc.emit.scope import Rule, Scope
from nitroc.emit.tree import reduce_elements

OF_LEAVES = ("leaf.fold", "leaf.size")
"""Ops that `leaf.map` emits itself: they are about all elements of a leaf at once."""


def leaf_map(scope: Scope, op: Op) -> None:
    assert isinstance(op, LeafMap)
    trees = [v for v in op.trees if isinstance(v, Value)]
    leaves = scope.layout(trees[0].type).group.leaves
    region = _Leaves(scope, op.body_, leaves)
    for param, tree in zip(op.body_.params, trees, strict=True):
        region.enter(param, scope.leaves(tree))
    region.run()
    for value, yielded in zip(op.results, op.body_.ops[-1].operands["values"], strict=True):
        if isinstance(value.type, TreeType):
            made = zip(leaves, region.elements(yielded), strict=True)
            dtype = value.type.dtype
            scope.set_leaves(value, [_as_leaf(x, leaf, dtype) for leaf, x in made])
        else:
            scope.set_tensor(value, region.words(yielded))


def _as_leaf(x: Tensor, leaf: Leaf, dtype: str | None) -> Tensor:
    return mlir.reshape(mlir.convert(x, dtype or leaf.dtype), leaf.shape)


class _Leaves:
    """One region at work on all leaves of a group."""

    def __init__(self, scope: Scope, body: Region, leaves: Sequence[Leaf]) -> None:
        self.body = body
        self.shapes = [(leaf.size,) for leaf in leaves]
        self.varying = varying(body, body.params)
        self.shared = scope.child()
        self.each = [self.shared.child() for _ in leaves]

    def enter(self, param: Value, leaves: Sequence[Tensor]) -> None:
        for inner, x, shape in zip(self.each, leaves, self.shapes, strict=True):
            inner.set_tensor(param, mlir.convert(mlir.reshape(x, shape), "f32"))

    def run(self) -> None:
        for op in self.body.ops[:-1]:
            if isinstance(op, LeafFold):
                words = [reduce_elements(x, op.how) for x in self.elements(op.x)]
                self.shared.set_tensor(op.r, mlir.vector(words))
            elif op.mnemonic == "leaf.size":
                sizes = [mlir.constant(size, "f32") for (size,) in self.shapes]
                self.shared.set_tensor(op.results[0], mlir.vector(sizes))
            elif self.varying.isdisjoint(op.results):
                self.shared.run(Region(ops=[op]))
            else:
                self._run_each(op)

    def _run_each(self, op: Op) -> None:
        for index, inner in enumerate(self.each):
            for value in op.inputs():
                if value not in self.varying:
                    inner.set_tensor(value, self._word(value, index))
            inner.run(Region(ops=[op]))

    def _word(self, value: Value, index: int) -> Tensor:
        """What a value that does not vary is to one leaf: its word, or a scalar from outside."""
        x = self.shared.tensor(value)
        return mlir.entry(x, index) if mlir.shape_of(x) else x

    def elements(self, value: Value | Literal) -> list[Tensor]:
        """A value element by element, per leaf."""
        made: list[Tensor] = []
        for index, (inner, shape) in enumerate(zip(self.each, self.shapes, strict=True)):
            if isinstance(value, Literal):
                made.append(mlir.constant(value.value, "f32", shape))
                continue
            x = inner.tensor(value) if value in self.varying else self._word(value, index)
            made.append(mlir.broadcast(x, shape))
        return made

    def words(self, value: Value | Literal) -> Tensor:
        """A value that does not vary, as one word per leaf."""
        return mlir.broadcast(self.shared.operand(value, "f32"), (len(self.each),))


RULES: dict[str, Rule] = {"leaf.map": leaf_map}

"""One leaf at a time: what a rule that reduces, or that holds marks, is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from nitro_dialect.errors import suggestion
from nitro_dialect.ir import CHANNELS, Region, Value
from nitro_dialect.op import Context, Op, attr, operand, region, result, results, variadic
from nitro_dialect.ops.common import (
    combines,
    element_params,
    group_of,
    one_group,
    scalar,
    yields,
)
from nitro_dialect.ops.scalar import ELEMENTWISE
from nitro_dialect.types import F32, VecType, same

LEAFWISE = (*ELEMENTWISE, "leaf.fold", "leaf.size")
"""Ops that the region of `leaf.map` may hold."""

RULE_OPS = (*LEAFWISE, "mark")
"""Ops that a rule's body may hold."""


def varying(region: Region, elements: Collection[Value]) -> set[Value]:
    """The values of `region` that differ from element to element of a leaf, `elements` do."""
    found = set(elements)
    for op in region.ops:
        if op.mnemonic not in ("leaf.fold", "leaf.size") and found.intersection(op.inputs()):
            found.update(op.results)
    return found


def leafwise(body: Region) -> bool:
    """Whether a rule's body speaks of whole leaves: it is then applied to each on its own."""
    return any(op.mnemonic in ("leaf.fold", "leaf.size", "mark") for op in body.ops)


class LeafMap(Op):
    """Applies the region to every leaf of the operands, element by element, in f32.

    Inside, `leaf.fold` and `leaf.size` speak of the leaf at hand. A yielded value becomes an
    element of each tree, or the leaf's word of each vec.

    (C1) Operands and results are trees of one group, and its vecs among the results.
    (C2) The region takes one f32 per operand and yields one per result.
    (C3) The region holds scalar math, `leaf.fold` and `leaf.size` only.
    (C4) What a vec takes is one value for all elements of a leaf.
    """

    mnemonic = "leaf.map"
    trees = variadic()
    body_ = region()
    out = results()

    def check(self, context: Context) -> None:
        made = [r for r in self.results if not isinstance(r.type, VecType)]
        groups = {group_of(v) for v in (*self.trees, *self.results)}
        ok = bool(self.trees) and one_group([*self.trees, *made]) and len(groups) == 1
        context.require(self, ok, "C1", "operands must be trees of one group, results also vecs")
        takes = element_params(self) and yields(self, len(self.results))
        context.require(self, takes, "C2", "f32 per operand in, f32 per result out")
        held = [op.mnemonic for op in self.body_.ops]
        wrong = ", ".join(name for name in held if name not in LEAFWISE)
        context.require(self, not wrong, "C3", f"{wrong} in the region of a leaf")
        ok = not takes or not self._varying_words()
        context.require(self, ok, "C4", "a vec takes one value per leaf, such as a leaf.fold")

    def _varying_words(self) -> bool:
        found = varying(self.body_, self.body_.params)
        values = self.body_.ops[-1].operands.get("values", [])
        pairs = zip(values, self.results, strict=True)
        return any(v in found and isinstance(r.type, VecType) for v, r in pairs)


class LeafFold(Op):
    """Reduces a value over the elements of the leaf at hand, in f32; NaN stays NaN.

    A leaf without elements gives 0 (`sum`), -inf (`max`) or +inf (`min`).

    (C1) The operand and the result are f32 scalars.
    (C2) `how` is sum, max or min.
    (C3) It stands in a rule or in the region of a `leaf.map`.
    """

    mnemonic = "leaf.fold"
    x = operand()
    how = attr(str)
    r = result()

    def check(self, context: Context) -> None:
        ok = scalar(self.x, "f32") and same(self.results[0].type, F32)
        context.require(self, ok, "C1", "the operand and the result must be f32")
        combines(self, context, "C2")
        context.require(self, _in_leaf(self, context), "C3", "leaf.fold outside a leaf")


class LeafSize(Op):
    """The number of elements of the leaf at hand, as f32.

    (C1) The result is an f32 scalar.
    (C2) It stands in a rule or in the region of a `leaf.map`.
    """

    mnemonic = "leaf.size"
    r = result()

    def check(self, context: Context) -> None:
        context.require(self, same(self.results[0].type, F32), "C1", "the result must be f32")
        context.require(self, _in_leaf(self, context), "C2", "leaf.size outside a leaf")


class RuleMark(Op):
    """One channel of a mark of a rule: `x` of each leaf, read before the commit by `opt.marks`.

    (C1) `x` is f32, one value for all elements of a leaf.
    (C2) `channel` is one of `count odd sum n max min`.
    (C3) `key` is one of the module's marks.
    (C4) It stands in a rule.
    """

    mnemonic = "mark"
    level = "named"
    x = operand()
    channel = attr(str)
    key = attr(str)

    def check(self, context: Context) -> None:
        rule = next((r for r in context.module.rules.values() if self in r.body.ops), None)
        context.require(self, rule is not None, "C4", "mark outside a rule")
        per_element = rule is not None and self.x in varying(
            rule.body, rule.body.params[: len(rule.elements)]
        )
        ok = scalar(self.x, "f32") and not per_element
        context.require(self, ok, "C1", "x must be one f32 per leaf, such as a leaf.fold")
        near = suggestion(self.channel, CHANNELS)
        known = self.channel in CHANNELS
        context.require(self, known, "C2", f"no channel {self.channel} of a mark{near}")
        near = suggestion(self.key, context.module.marks)
        known = self.key in context.module.marks
        context.require(self, known, "C3", f"no mark {self.key} in this module{near}")


def _in_leaf(op: Op, context: Context) -> bool:
    homes = [rule.body for rule in context.module.rules.values()]
    for program in context.module.programs.values():
        homes += _leaf_regions(program.body)
    return any(op in home.ops for home in homes)


def _leaf_regions(body: Region) -> Iterator[Region]:
    for op in body.ops:
        if isinstance(op, LeafMap):
            yield op.body_
        elif op.body is not None:
            yield from _leaf_regions(op.body)

"""Rule, decay, apply: the update of one group's parameters."""

from __future__ import annotations

from nitro_dialect.ir import Rule
from nitro_dialect.op import Context, Op, attr, operand, operands, result, results, symbol, variadic
from nitro_dialect.ops.common import group_of, one_group, scalar, type_of, unknown
from nitro_dialect.types import TreeType, VecType, same


class OptRule(Op):
    """Applies `@rule` to every element: the unscaled update, then the slots' next values.

    A rule that reduces is applied to every leaf; its marks are left to `opt.marks`.

    (C1) The rule is one of the module's.
    (C2) `trees` are the rule's elements in order, trees of one group.
    (C3) `fields` are the rule's scalars in order, f32.
    (C4) Results are the update and one tree per slot, all f32 trees of that group.
    """

    mnemonic = "opt.rule"
    level = "named"
    rule = symbol()
    trees = variadic()
    fields = operands()
    out = results()

    def check(self, context: Context) -> None:
        rule = _rule(self, context)
        if rule is None:
            return
        kinds = [r.type for r in self.results]
        ok = len(kinds) == 1 + len(rule.slots) and one_group([*self.trees, *self.results])
        ok = ok and all(isinstance(k, TreeType) and k.dtype == "f32" for k in kinds)
        context.require(self, ok, "C4", "results must be the update and one f32 tree per slot")


class OptMarks(Op):
    """What the marks of `@rule` find in each leaf's update, which is made for that alone.

    It is the first of two evaluations of a rule with marks: a commit is decided by these words
    before `opt.rule` makes the update again, inside it.

    (C1) The rule is one of the module's.
    (C2) `trees` are the rule's elements in order, trees of one group.
    (C3) `fields` are the rule's scalars in order, f32.
    (C4) Results are vecs of that group, one per `mark` of the rule, in their order.
    """

    mnemonic = "opt.marks"
    level = "named"
    rule = symbol()
    trees = variadic()
    fields = operands()
    out = results()

    def check(self, context: Context) -> None:
        rule = _rule(self, context)
        if rule is None:
            return
        count = sum(op.mnemonic == "mark" for op in rule.body.ops)
        vec = VecType(group_of(self.trees[0]) or "") if self.trees else None
        ok = len(self.results) == count and all(r.type == vec for r in self.results)
        context.require(self, ok, "C4", "results must be one vec per mark of the rule")


def _rule(op: OptRule | OptMarks, context: Context) -> Rule | None:
    """C1 to C3 of what applies a rule; the rule."""
    rules = context.module.rules
    rule = rules.get(op.rule)
    context.require(op, rule is not None, "C1", unknown("rule", op.rule, rules))
    if rule is not None:
        ok = len(op.trees) == len(rule.elements) and one_group(op.trees)
        context.require(op, ok, "C2", f"trees must be {', '.join(rule.elements)} of one group")
        ok = len(op.fields) == len(rule.scalars) and all(scalar(v, "f32") for v in op.fields)
        context.require(op, ok, "C3", f"fields must be {', '.join(rule.scalars)}, each f32")
    return rule


class Decay(Op):
    """Decoupled weight decay: `u + rate * p` on leaves flagged `where`, `u` elsewhere.

    Loshchilov, Hutter 2019, "Decoupled Weight Decay Regularization"; toward zero.

    (C1) `u` and the result are f32 trees, `p` a tree, of one group.
    (C2) `rate` is an f32 scalar.
    (C3) `anchor` is zero.
    """

    mnemonic = "decay"
    level = "named"
    u = operand()
    p = operand()
    rate = operand()
    anchor = attr(str)
    where = attr(str)
    r = result()

    def check(self, context: Context) -> None:
        kind = type_of(self.u)
        ok = isinstance(kind, TreeType) and kind.dtype == "f32" and one_group([self.u, self.p])
        ok = ok and kind is not None and same(kind, self.results[0].type)
        context.require(self, ok, "C1", "u and the result must be f32 trees of p's group")
        context.require(self, scalar(self.rate, "f32"), "C2", "the rate must be an f32 scalar")
        context.require(self, self.anchor == "zero", "C3", f"unknown anchor {self.anchor}")


class Apply(Op):
    """The step: `p - learning_rate * u`, in f32, rounded once to the parameter's dtype.

    (C1) `p` and the result are trees of one type, `u` the f32 tree of their group.
    (C2) `rate` is an f32 scalar.
    """

    mnemonic = "opt.apply"
    level = "named"
    p = operand()
    u = operand()
    rate = operand()
    r = result()

    def check(self, context: Context) -> None:
        kind, update = type_of(self.p), type_of(self.u)
        ok = isinstance(kind, TreeType) and same(kind, self.results[0].type)
        ok = ok and update == TreeType(kind.group if isinstance(kind, TreeType) else "", "f32")
        context.require(self, ok, "C1", "p and the result must be one type, u its f32 tree")
        context.require(self, scalar(self.rate, "f32"), "C2", "the rate must be an f32 scalar")

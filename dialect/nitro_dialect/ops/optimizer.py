"""Rule, decay, apply: the update of one group's parameters."""

from __future__ import annotations

from nitro_dialect.op import Context, Op, attr, operand, operands, result, results, symbol, variadic
from nitro_dialect.ops.common import one_group, scalar, type_of, unknown
from nitro_dialect.types import TreeType, same


class OptRule(Op):
    """Applies `@rule` to every element: the unscaled update, then the slots' next values.

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
        rule = context.module.rules.get(self.rule)
        context.require(
            self, rule is not None, "C1", unknown("rule", self.rule, context.module.rules)
        )
        if rule is None:
            return
        ok = len(self.trees) == len(rule.elements) and one_group(self.trees)
        context.require(self, ok, "C2", f"trees must be {', '.join(rule.elements)} of one group")
        ok = len(self.fields) == len(rule.scalars) and all(scalar(v, "f32") for v in self.fields)
        context.require(self, ok, "C3", f"fields must be {', '.join(rule.scalars)}, each f32")
        kinds = [r.type for r in self.results]
        ok = len(kinds) == 1 + len(rule.slots) and one_group([*self.trees, *self.results])
        ok = ok and all(isinstance(k, TreeType) and k.dtype == "f32" for k in kinds)
        context.require(self, ok, "C4", "results must be the update and one f32 tree per slot")


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

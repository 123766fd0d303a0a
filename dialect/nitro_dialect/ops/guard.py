"""What decides a step before its update."""

from __future__ import annotations

from nitro_dialect.op import Context, Op, operands, result
from nitro_dialect.ops.common import scalar
from nitro_dialect.types import FLOATS, I1, same


class GuardAll(Op):
    """Whether all `finite` are finite, `positive` above 0, `zero` counts 0, `unset` false.

    (C1) `finite` and `positive` are float scalars.
    (C2) `zero` are i64 scalars.
    (C3) `unset` are i1 scalars, the result is i1.
    (C4) There is something to check.
    """

    mnemonic = "guard.all"
    level = "named"
    finite = operands()
    positive = operands()
    zero = operands()
    unset = operands()
    r = result()

    def check(self, context: Context) -> None:
        floats = [*self.finite, *self.positive]
        ok = all(scalar(v, *FLOATS) for v in floats)
        context.require(self, ok, "C1", "finite and positive take float scalars")
        ok = all(scalar(v, "i64") for v in self.zero)
        context.require(self, ok, "C2", "zero takes i64 counts")
        ok = all(scalar(v, "i1") for v in self.unset) and same(self.results[0].type, I1)
        context.require(self, ok, "C3", "unset takes i1 scalars and the result is i1")
        context.require(self, bool([*floats, *self.zero, *self.unset]), "C4", "nothing to check")

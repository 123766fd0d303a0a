"""The commit: a region whose effect is decided before it runs."""

from __future__ import annotations

from nitro_dialect.ir import Region, Value
from nitro_dialect.op import Context, Op, operand, operands, region, results
from nitro_dialect.ops.common import scalar, type_of
from nitro_dialect.types import same


class Commit(Op):
    """The region's values when `ok`, else the kept ones: parameters, slots, state move together.

    (C1) `ok` is an i1 scalar defined outside the region.
    (C2) The region takes nothing and yields one value per kept value.
    (C3) Kept values, yielded values and results have one type each.
    """

    mnemonic = "commit"
    ok = operand()
    keep = operands()
    body_ = region()
    out = results()

    def check(self, context: Context) -> None:
        made = _made(self.body_)
        ok = isinstance(self.ok, Value) and scalar(self.ok, "i1") and self.ok not in made
        context.require(self, ok, "C1", "ok must be an i1 scalar from outside the region")
        last = self.body_.ops[-1] if self.body_.ops else None
        values = last.operands.get("values", []) if last and last.mnemonic == "yield" else None
        ok = values is not None and len(values) == len(self.keep) and not self.body_.params
        context.require(self, ok, "C2", "the region takes nothing and yields one value per kept")
        if not ok or values is None:
            return
        kept = [type_of(v) for v in self.keep]
        out = [r.type for r in self.results]
        ok = len(out) == len(kept) and all(
            k is not None and y is not None and same(k, y) and same(k, r)
            for k, y, r in zip(kept, map(type_of, values), out, strict=True)
        )
        context.require(self, ok, "C3", "kept, yielded and resulting types must agree")


def _made(body: Region) -> set[Value]:
    return {r for op in body.ops for r in op.results}

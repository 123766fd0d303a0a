"""Micro-batches of one optimizer step."""

from __future__ import annotations

from nitro_dialect.op import Context, Op, attr, operands, region, results
from nitro_dialect.ops.common import COMBINE, type_of
from nitro_dialect.types import I32, TensorType, TreeType, Type, is_scalar, same


class Accum(Op):
    """Runs the region `steps` times: `over` entry by entry, `carry` threaded, the rest combined.

    The region takes the index (i32), one entry of each `over`, then the carried values; it yields
    the combined values, then the carried ones. Results are the combined values, the `how` of each
    `sum`, `max` or `min`, then the last carried values. Trees are summed in f32; a NaN is the
    largest and the smallest of all.

    (C1) `steps` is at least 2.
    (C2) Each `over` has `steps` as its first axis.
    (C3) The region takes i32, the entries' types, the carried types.
    (C4) The region yields as many values as there are results; the carried ones keep their type.
    (C5) A sum is an f32 scalar, an f32 tree or an i64 scalar.
    (C6) `how` has one of `sum max min` for each result before the carried ones.
    (C7) A max or min is an f32 or i32 scalar.
    """

    mnemonic = "accum"
    how = attr(tuple)
    steps = attr(int)
    over = operands()
    carry = operands()
    body_ = region()
    out = results()

    def check(self, context: Context) -> None:
        context.require(self, self.steps >= 2, "C1", f"steps must be >= 2, found {self.steps}")
        kinds = [type_of(v) for v in self.over]
        ok = all(isinstance(k, TensorType) and k.shape[:1] == (self.steps,) for k in kinds)
        context.require(self, ok, "C2", f"every over must have first axis {self.steps}")
        context.require(self, not ok or self._takes(kinds), "C3", "index, entries, carried values")
        context.require(self, self._keeps(), "C4", "sums, then carried values of their type")
        combined = [r.type for r in self.results[: len(self.results) - len(self.carry)]]
        ok = len(self.how) == len(combined) and set(self.how) <= set(COMBINE)
        message = f"how must have one of {', '.join(COMBINE)} for each of {len(combined)} results"
        context.require(self, ok, "C6", message)
        pairs = list(zip(self.how, combined, strict=False))
        ok = all(_is_sum(kind) for how, kind in pairs if how == "sum")
        context.require(self, ok, "C5", "sums must be f32 scalars, f32 trees or i64 scalars")
        ok = all(is_scalar(kind, "f32", "i32") for how, kind in pairs if how in ("max", "min"))
        context.require(self, ok, "C7", "a max or min must be an f32 or i32 scalar")

    def _takes(self, over: list[Type | None]) -> bool:
        entries = [TensorType(k.dtype, k.shape[1:]) for k in over if isinstance(k, TensorType)]
        wanted = [I32, *entries, *(type_of(v) for v in self.carry)]
        found = [p.type for p in self.body_.params]
        return len(found) == len(wanted) and all(
            w is not None and same(f, w) for f, w in zip(found, wanted, strict=True)
        )

    def _keeps(self) -> bool:
        last = self.body_.ops[-1] if self.body_.ops else None
        if last is None or last.mnemonic != "yield":
            return False
        values = last.operands.get("values", [])
        count = len(self.carry)
        carried = [type_of(v) for v in values[len(values) - count :]] if count else []
        made = [r.type for r in self.results[len(self.results) - count :]] if count else []
        return count <= len(values) == len(self.results) and all(
            a is not None and same(a, b) for a, b in zip(carried, made, strict=True)
        )


def _is_sum(kind: Type) -> bool:
    tree = isinstance(kind, TreeType) and kind.dtype == "f32"
    return tree or is_scalar(kind, "f32", "i64")

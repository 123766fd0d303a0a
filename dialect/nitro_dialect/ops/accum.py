"""Micro-batches of one optimizer step."""

from __future__ import annotations

from nitro_dialect.op import Context, Op, attr, operands, region, results
from nitro_dialect.ops.common import type_of
from nitro_dialect.types import I32, TensorType, TreeType, Type, is_scalar, same


class Accum(Op):
    """Runs the region `steps` times: `over` entry by entry, `carry` threaded, the rest summed.

    The region takes the index (i32), one entry of each `over`, then the carried values; it yields
    the summed values, then the carried ones. Results are the sums, in f32, then the last carried
    values.

    (C1) `steps` is at least 2.
    (C2) Each `over` has `steps` as its first axis.
    (C3) The region takes i32, the entries' types, the carried types.
    (C4) The region yields as many values as there are results; the carried ones keep their type.
    (C5) Summed results are f32 scalars or f32 trees.
    """

    mnemonic = "accum"
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
        summed = [r.type for r in self.results[: len(self.results) - len(self.carry)]]
        ok = all(
            is_scalar(k, "f32") or (isinstance(k, TreeType) and k.dtype == "f32") for k in summed
        )
        context.require(self, ok, "C5", "sums must be f32 scalars or f32 trees")

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

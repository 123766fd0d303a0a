"""Global-norm clipping."""

from __future__ import annotations

import math

from nitro_dialect.op import Context, Op, attr, operand, result
from nitro_dialect.ops.common import scalar, type_of
from nitro_dialect.types import TreeType, same


class ClipByNorm(Op):
    """Scales the tree by `max / norm` when `norm > max`; otherwise leaves it, bit for bit.

    Pascanu, Mikolov, Bengio 2013, "On the difficulty of training recurrent neural networks".
    At the threshold nothing changes, a zero tree stays zero.

    (C1) Operand and result are f32 trees of one type.
    (C2) `norm` is an f32 scalar.
    (C3) `max` is finite and above 0.
    """

    mnemonic = "clip.by_norm"
    level = "named"
    x = operand()
    norm = operand()
    max = attr(float)
    r = result()

    def check(self, context: Context) -> None:
        kind = type_of(self.x)
        ok = isinstance(kind, TreeType) and kind.dtype == "f32"
        ok = ok and kind is not None and same(kind, self.results[0].type)
        context.require(self, ok, "C1", "operand and result must be f32 trees of one type")
        context.require(self, scalar(self.norm, "f32"), "C2", "the norm must be an f32 scalar")
        ok = math.isfinite(self.max) and self.max > 0
        context.require(self, ok, "C3", f"max must be finite and above 0, found {self.max}")

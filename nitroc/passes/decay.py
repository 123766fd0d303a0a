"""`decay{anchor=zero,where=decay}`: decoupled weight decay, last before the update is applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nitro_dialect.builder import Names, building, emit
from nitro_dialect.ir import Module, Program, Value
from nitro_dialect.ops import Apply, Decay
from nitro_dialect.rewrite import clone
from nitroc.errors import OptError
from nitroc.frontend.names import did_you_mean
from nitroc.passes.structure import add_scalar, before, need, train_programs

ANCHORS = ("zero",)


@dataclass(frozen=True)
class WeightDecay:
    """Adds `weight_decay * p` to the update of leaves flagged `where`; the rate comes after it."""

    anchor: str = "zero"
    where: str = "decay"
    name: ClassVar[str] = "decay"

    def __post_init__(self) -> None:
        if self.anchor not in ANCHORS:
            raise OptError(
                13,
                f"decay_anchor is {self.anchor!r}",
                help=did_you_mean(self.anchor, ANCHORS, "anchors"),
            )

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        for program in train_programs(module):
            self._decay(program)
        return module

    def _decay(self, program: Program) -> None:
        names = Names.of(program)
        apply = need(program, Apply, self.name, "optimizer")
        rate = add_scalar(program, names, "weight_decay")
        u = apply.u
        assert isinstance(u, Value)
        with building(program.body, names, before(program, apply)):
            decayed = emit(
                Decay,
                u,
                apply.p,
                rate,
                types=[u.type],
                hints=["u.decay"],
                attrs={"anchor": self.anchor, "where": self.where},
            )
        apply.operands["u"] = [decayed.r]

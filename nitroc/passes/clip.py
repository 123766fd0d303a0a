"""`clip{max=X}`: one global norm over the accumulated gradient, in f32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from nitro_dialect.builder import Names, building, emit
from nitro_dialect.ir import Module, Program
from nitro_dialect.ops import ClipByNorm
from nitro_dialect.rewrite import clone
from nitroc.errors import OptError
from nitroc.passes.structure import before_assign, gradient, gradient_norm, report, train_programs


@dataclass(frozen=True)
class Clip:
    """Scales the gradient to norm `max` where it is longer; reports its norm before that."""

    max: float
    name: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.max) and self.max > 0):
            raise OptError(
                11,
                f"gradient_clip_norm is {self.max}, expected a finite number above 0",
                help="0 turns clipping off: leave the pass out of the pipeline",
            )

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        for program in train_programs(module):
            _clip(program, self.max)
        return module


def _clip(program: Program, limit: float) -> None:
    names = Names.of(program)
    mean = gradient(program, Clip.name)
    _, norm = gradient_norm(program, names, Clip.name)
    with building(program.body, names, before_assign(program)):
        emit(ClipByNorm, mean, norm, types=[mean.type], hints=["g.clip"], attrs={"max": limit})
    report(program)["grad_norm"] = norm

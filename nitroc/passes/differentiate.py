"""`differentiate`: the gradient of an imported function becomes a call of the imported gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nitro_dialect.ir import Function, Module, Program
from nitro_dialect.ops import Call, Grad
from nitro_dialect.rewrite import clone
from nitroc.errors import BuildError
from nitroc.passes.structure import before, need, train_programs


@dataclass(frozen=True)
class Differentiate:
    """E-BUILD-005 when the front end did not import the gradient."""

    name: ClassVar[str] = "differentiate"

    def __call__(self, module: Module) -> Module:
        module = clone(module)
        for program in train_programs(module):
            _resolve(module, program)
        return module


def _resolve(module: Module, program: Program) -> None:
    grad = need(program, Grad, Differentiate.name, "nothing")
    imported = _gradient(module, grad)
    call = Call(
        {"args": grad.args},
        symbol=imported.name,
        results=grad.results,
        location=grad.location,
    )
    program.body.ops[before(program, grad)] = call


def _gradient(module: Module, grad: Grad) -> Function:
    for function in module.functions.values():
        if function.of == grad.callee and function.wrt == grad.wrt:
            return function
    raise BuildError(
        5,
        f"no imported function is the gradient of @{grad.callee} with respect to {grad.wrt}",
        help=f"import @{grad.callee}.grad {{of, wrt}} beside @{grad.callee}",
    )

"""Imported functions: a call, and the gradient before `differentiate` resolves it to one."""

from __future__ import annotations

from nitro_dialect.errors import suggestion
from nitro_dialect.ir import Function, Literal, Value
from nitro_dialect.op import Context, Op, attr, results, symbol, variadic
from nitro_dialect.ops.common import fits, unknown
from nitro_dialect.types import TensorType, Type, same


def _signature(op: Op, context: Context) -> None:
    functions = context.module.functions
    function = functions.get(op.symbol or "")
    context.require(op, function is not None, "C1", unknown("function", op.symbol, functions))
    if function is None:
        return
    _arguments(op, context, function, "C2")
    made: list[Type] = [r.type for r in op.results]
    wanted = [r.type for r in function.results]
    ok = len(made) == len(wanted) and all(map(same, made, wanted))
    context.require(op, ok, "C3", f"results must be ({', '.join(map(str, wanted))})")


def _arguments(op: Op, context: Context, function: Function, label: str) -> None:
    given: list[Value | Literal] = op.operands.get("args", [])
    wanted = [p.type for p in function.params]
    ok = len(given) == len(wanted) and all(map(fits, given, wanted))
    shown = ", ".join(str(v.type) if isinstance(v, Value) else str(v.value) for v in given)
    expected = ", ".join(map(str, wanted))
    context.require(op, ok, label, f"arguments must be ({expected}), found ({shown})")


class Call(Op):
    """Calls an imported function.

    (C1) The function is one of the module's.
    (C2) Arguments have the types of its parameters; a literal stands for a scalar.
    (C3) Results have the types of its results.
    """

    mnemonic = "call"
    callee = symbol()
    args = variadic()
    out = results()

    def check(self, context: Context) -> None:
        _signature(self, context)


class Grad(Op):
    """`@callee`'s results and its gradient by argument `wrt`.

    Results: loss, weight, train metric sums and counts, gradient, state; `differentiate` turns it
    into a call of the imported gradient.

    (C1) The function is one of the module's.
    (C2) `wrt` names a parameter of it that is a tree.
    (C3) Arguments have the types of its parameters; a literal stands for a scalar.
    """

    mnemonic = "grad"
    level = "named"
    callee = symbol()
    args = variadic()
    wrt = attr(str)
    out = results()

    def check(self, context: Context) -> None:
        functions = context.module.functions
        function = functions.get(self.callee)
        context.require(
            self, function is not None, "C1", unknown("function", self.callee, functions)
        )
        if function is not None:
            trees = [p.name for p in function.params if not isinstance(p.type, TensorType)]
            near = suggestion(self.wrt, trees)
            message = f"wrt must be one of {', '.join(trees)}, found {self.wrt}{near}"
            context.require(self, self.wrt in trees, "C2", message)
            _arguments(self, context, function, "C3")

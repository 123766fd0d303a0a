"""Calls of imported functions, and the loop over micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from nitro_dialect.ir import Literal, Region, Value
from nitro_dialect.op import Op
from nitro_dialect.ops import Accum, Call
from nitro_dialect.types import FLOATS, TreeType, Type
from nitroc.emit import mlir
from nitroc.emit.mlir import Tensor
from nitroc.emit.scope import Rule, Scope


def call(scope: Scope, op: Op) -> None:
    """Trees go in and come out by leaves: a gradient through slices of a buffer is 11x slower."""
    assert isinstance(op, Call)
    function = scope.module.functions[op.callee]
    args: list[Tensor] = []
    for value, parameter in zip(op.args, function.params, strict=True):
        if isinstance(value, Value) and isinstance(value.type, TreeType):
            args += scope.leaves(value)
        else:
            ((dtype, _),) = scope.flat_types(parameter.type)
            args.append(scope.operand(value, dtype))
    types = [t for r in function.results for t in scope.leaf_types(r.type)]
    scope.bind_leaves(op.results, mlir.call(op.callee, args, types))


def accum(scope: Scope, op: Op) -> None:
    """A while loop: index, the combined values from their neutral ones, then the carried values.

    Trees go round leaf by leaf and are packed once, after the loop: its body is the same text in
    every layout, so what XLA fuses in it, and with that every bit, is the same too.
    """
    assert isinstance(op, Accum)
    combined = [
        (how, dtype, shape)
        for how, result in zip(op.how, op.results, strict=False)
        for dtype, shape in scope.leaf_types(result.type)
    ]
    starts = [mlir.constant(neutral(how, dtype), dtype, shape) for how, dtype, shape in combined]
    carried = [x for v in values(op.carry) for x in scope.flat_leaves(v)]
    over = [scope.tensor(v) for v in values(op.over)]
    _unpack_before(scope, op.body_)

    def condition(state: Sequence[Tensor]) -> Tensor:
        return mlir.compare("lt", state[0], mlir.constant(op.steps, "i32"))

    def step(state: Sequence[Tensor]) -> list[Tensor]:
        index, totals, rest = state[0], state[1 : 1 + len(starts)], state[1 + len(starts) :]
        inner = scope.child()
        entries = [mlir.entry(x, index) for x in over]
        inner.bind_leaves(op.body_.params, [index, *entries, *rest])
        made = yielded(inner, op.body_, [r.type for r in op.results], Scope.flat_leaves)
        added = [
            mlir.binary(COMBINE[how], total, mlir.convert(x, dtype))
            for (how, dtype, _), total, x in zip(combined, totals, made, strict=False)
        ]
        return [mlir.binary("add", index, mlir.constant(1, "i32")), *added, *made[len(starts) :]]

    results = mlir.while_([mlir.constant(0, "i32"), *starts, *carried], condition, step)
    scope.bind_leaves(op.results, results[1:])


COMBINE = {"sum": "add", "max": "max", "min": "min"}
"""The StableHLO op behind each `how`."""


def neutral(how: str, dtype: str) -> int | float:
    """What a combination starts from: it changes no value of `dtype`, f32, i64 or i32."""
    if how == "sum":
        return 0
    least, most = (-math.inf, math.inf) if dtype in FLOATS else (-(1 << 31), (1 << 31) - 1)
    return least if how == "max" else most


def yielded(
    scope: Scope,
    body: Region,
    kinds: Sequence[Type],
    flat: Callable[[Scope, Value], list[Tensor]],
) -> list[Tensor]:
    """Runs the region; its yielded values made `flat`, a literal in the dtype of its result."""
    (end,) = scope.run(body)
    made: list[Tensor] = []
    for value, kind in zip(end.operands.get("values", []), kinds, strict=True):
        if isinstance(value, Value):
            made += flat(scope, value)
        else:
            ((dtype, _),) = scope.flat_types(kind)
            made.append(scope.operand(value, dtype))
    return made


def values(operands: list[Value | Literal]) -> list[Value]:
    return [v for v in operands if isinstance(v, Value)]


def _unpack_before(scope: Scope, body: Region) -> None:
    """Trees from outside that calls in the loop read: sliced once, not once per micro-batch."""
    for value in _read_by_calls(body):
        if isinstance(value.type, TreeType) and scope.has(value):
            scope.leaves(value)


def _read_by_calls(body: Region) -> Iterator[Value]:
    for op in body.ops:
        if op.mnemonic == "call":
            yield from op.inputs()


RULES: dict[str, Rule] = {"call": call, "accum": accum}

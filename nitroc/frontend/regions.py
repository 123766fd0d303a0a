# pyright: basic
"""The operations of StableHLO functions in the order in which they run: blocks, regions, calls."""

from __future__ import annotations

import itertools
from typing import Any

from nitroc.frontend.jax_internals import ir

LOOP, CALL = "stablehlo.while", "func.call"
BRANCHES = ("stablehlo.case", "stablehlo.if")


def block_of(function: Any) -> Any:
    """The only block of a function."""
    return function.regions[0].blocks[0]


def operations(block: Any) -> list[Any]:
    """Those of a block, as they are now."""
    return [each.operation for each in block.operations]


def end_of(block: Any) -> Any:
    """The operation that hands a block's results on."""
    return block.operations[len(block.operations) - 1].operation


def ordered_regions(op: Any) -> list[Any]:
    """The regions whose operations run in their order, once or once per iteration."""
    if op.name == LOOP:
        return [op.regions[1]]
    return list(op.regions) if op.name in BRANCHES else []


def is_float(value: Any) -> bool:
    """Whether it has elements that may be NaN."""
    element = ir.RankedTensorType(value.type).element_type
    return isinstance(element, ir.FloatType | ir.ComplexType)


def kept(op: Any) -> list[tuple[Any, Any, Any]]:
    """Of a loop, what it hands on unchanged: before it, in its body, after it."""
    if op.name != LOOP:
        return []
    block = op.regions[1].blocks[0]
    rows = zip(op.operands, block.arguments, op.results, end_of(block).operands, strict=True)
    return [(first, inside, result) for first, inside, result, last in rows if inside == last]


def unordered_regions(op: Any) -> list[Any]:
    """The regions that run an unspecified number of times, and conditions of loops."""
    if op.name == LOOP:
        return [op.regions[0]]
    return [] if op.name in ("func.func", *BRANCHES) else list(op.regions)


def walk(op: Any) -> list[Any]:
    """The operations in the ordered regions of a function, each before those in it."""
    regions = op.regions if op.name == "func.func" else ordered_regions(op)
    found: list[Any] = []
    for inner in itertools.chain.from_iterable(operations(r.blocks[0]) for r in regions):
        found += [inner, *walk(inner)]
    return found


def calls_in(region: Any) -> list[str]:
    found: list[str] = []

    def visit(op: Any) -> Any:
        if op.operation.name == CALL:
            found.append(callee_of(op.operation))
        return ir.WalkResult.ADVANCE

    for block in region.blocks:
        for op in block.operations:
            op.operation.walk(visit)
    return found


def callee_of(op: Any) -> str:
    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value

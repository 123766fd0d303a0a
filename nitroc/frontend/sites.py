# pyright: basic
"""Operations of an imported function as they are reached: numbered through calls, in their order.

A function that is called twice is counted twice, so that a number names the call too. What a reader
of an operation wants to know is kept: its line, the arguments of the function that it reads, and
those of its results that it makes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nitro_runtime.dtypes import spell
from nitroc.frontend import locations
from nitroc.frontend.jax_internals import ir
from nitroc.frontend.regions import (
    BRANCHES,
    CALL,
    LOOP,
    block_of,
    callee_of,
    calls_in,
    end_of,
    is_float,
    kept,
    operations,
    ordered_regions,
    unordered_regions,
    walk,
)

MOVES = {
    "stablehlo.convert": 1, "stablehlo.reshape": 1, "stablehlo.transpose": 1,
    "stablehlo.broadcast_in_dim": 1, "stablehlo.slice": 1, "stablehlo.dynamic_slice": 1,
    "stablehlo.dynamic_update_slice": 2,
}  # fmt: skip
"""Ops whose result is made of the elements of their first operands, and of how many."""

BARRIER = "stablehlo.optimization_barrier"
NUMBER = "nitro.number"
"""The attribute of an operation that counts: its place among the items of its function."""

LITERALS = ("stablehlo.constant", "stablehlo.iota")


@dataclass(frozen=True)
class Site:
    """An operation. `op`: `divide`; `result`: `f32[4,3]`; `scope`: jax's name for it, the hook and
    the derivation in it; `source`: `exp.py:41:5`, None where no line is known. `reads`, `makes`:
    indices of arrays among the arguments and the results of the function."""

    op: str
    result: str
    scope: str
    source: str | None
    reads: frozenset[int]
    makes: frozenset[int]


@dataclass
class Item:
    """An operation that counts, or a call of a function whose operations do, from `start` on.

    `reads` per operand and `makes` per result, in indices of the function it stands in.
    """

    op: str
    start: int
    callee: Body | None
    name: str
    source: str | None
    result: str = ""
    reads: list[frozenset[int]] = field(default_factory=list)
    makes: list[frozenset[int]] = field(default_factory=list)


@dataclass
class Body:
    """What counts in one function; `passes`: per result, the arguments whose elements it has."""

    items: list[Item] = field(default_factory=list)
    size: int = 0
    passes: list[frozenset[int]] = field(default_factory=list)


class Sites:
    """The operations of `entry`, of a module whose functions do not call themselves.

    `literals` are values that follow from the text alone; their operations don't count.
    """

    def __init__(self, module: Any, entry: str) -> None:
        self.functions: dict[str, Any] = {
            op.attributes["sym_name"].value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self.opaque = self._opaque()
        self.order = self._callers_first(entry)
        self.literals = self._literals()
        self.bodies: dict[str, Body] = {}
        with module.context:
            for name in reversed(self.order):
                self.bodies[name] = _Walk(self, block_of(self.functions[name])).body
        self.entry = self.bodies[entry]

    @property
    def size(self) -> int:
        """How many operations there are."""
        return self.entry.size

    def at(self, index: int) -> Site:
        """The operation of a number below `size`."""
        calls: list[Item] = []
        item = _item(self.entry, index)
        while item.callee is not None:
            calls.insert(0, item)
            index -= item.start
            item = _item(item.callee, index)
        reads, makes = _all(item.reads), _all(item.makes)
        for call in calls:
            reads, makes = _all(call.reads[i] for i in reads), _all(call.makes[i] for i in makes)
        sources = [found.source for found in (item, *calls) if found.source is not None]
        name = "/".join(found.name for found in reversed((item, *calls)) if found.name)
        return Site(
            item.op.rpartition(".")[2],
            item.result,
            name,
            sources[0] if sources else None,
            reads,
            makes,
        )

    def callee(self, op: Any) -> str | None:
        """The function that `op` calls, when its operations are counted."""
        if op.name != CALL:
            return None
        name = callee_of(op)
        return None if name in self.opaque else name

    def counts(self, op: Any) -> bool:
        """Whether `op` computes a number with a fraction, and is no container of such ops."""
        if op.name in (LOOP, *BRANCHES) or self.callee(op) is not None:
            return False
        return any(is_float(r) and r not in self.literals for r in op.results)

    def _opaque(self) -> set[str]:
        """Functions that are applied an unspecified number of times, and what they call."""
        found: set[str] = set()
        waiting = [
            call
            for function in self.functions.values()
            for op in walk(function)
            for region in unordered_regions(op)
            for call in calls_in(region)
        ]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [c for r in self.functions[name].regions for c in calls_in(r)]
        return found

    def _callers_first(self, entry: str) -> list[str]:
        finished: dict[str, None] = {}

        def visit(name: str) -> None:
            if name in finished:
                return
            for op in walk(self.functions[name]):
                callee = self.callee(op)
                if callee is not None:
                    visit(callee)
            finished[name] = None

        visit(entry)
        return list(reversed(finished))

    def _literals(self) -> set[Any]:
        found: set[Any] = set()
        given: dict[str, list[list[bool]]] = {name: [] for name in self.order}
        for name in self.order:
            arguments = block_of(self.functions[name]).arguments
            calls = given[name]
            found |= {a for i, a in enumerate(arguments) if calls and all(c[i] for c in calls)}
            for op in walk(self.functions[name]):
                if self._is_literal(op, found):
                    found |= set(op.results)
                found |= {value for pair in kept(op) if pair[0] in found for value in pair[1:]}
                callee = self.callee(op)
                if callee is not None:
                    given[callee].append([value in found for value in op.operands])
        return found

    def _is_literal(self, op: Any, known: set[Any]) -> bool:
        if op.name in LITERALS:
            return True
        pure = op.name.startswith("stablehlo.") and "custom" not in op.name
        if not (pure or self.callee(op) is not None) or len(op.regions) or not len(op.operands):
            return False
        return all(value in known for value in op.operands)


class _Walk:
    """Collects the `body` of one function whose callees are known."""

    def __init__(self, sites: Sites, block: Any) -> None:
        self.sites = sites
        self.body = Body()
        self.reads: dict[Any, frozenset[int]] = {
            value: frozenset([index]) for index, value in enumerate(block.arguments)
        }
        self.makes: dict[Any, frozenset[int]] = {
            value: frozenset(indices) for value, indices in _places(end_of(block).operands).items()
        }
        self._forward(block)
        self.body.passes = [self._reads(value) for value in end_of(block).operands]
        self._backward(block)

    def _reads(self, value: Any) -> frozenset[int]:
        return self.reads.get(value, frozenset())

    def _makes(self, value: Any) -> frozenset[int]:
        return self.makes.get(value, frozenset())

    def _forward(self, block: Any) -> None:
        for op in operations(block):
            callee = self.sites.callee(op)
            if callee is not None:
                self._add(op, self.sites.bodies[callee])
            elif self.sites.counts(op):
                self._add(op, None)
            for first, inside, _ in kept(op):
                self.reads[inside] = self._reads(first)
            for region in ordered_regions(op):
                self._forward(region.blocks[0])
            for result, sources in self._moved(op):
                self.reads[result] = _all(map(self._reads, sources))

    def _add(self, op: Any, callee: Body | None) -> None:
        name, source = locations.of_imported(op.location)
        # an attribute, because the hash of an operation follows its operands
        op.attributes[NUMBER] = _number(len(self.body.items))
        shown = f"call of {callee_of(op).rpartition('.')[2]}" if op.name == CALL else op.name
        item = Item(shown, self.body.size, callee, name, source)
        item.reads = [self._reads(value) for value in op.operands]
        if callee is None:
            item.result = _spelled(next(r for r in op.results if is_float(r)))
        self.body.items.append(item)
        self.body.size += 1 if callee is None else callee.size

    def _moved(self, op: Any) -> Iterator[tuple[Any, list[Any]]]:
        """Results with the operands whose elements they have."""
        operands, results = list(op.operands), list(op.results)
        callee = self.sites.callee(op)
        if op.name in MOVES:
            yield results[0], operands[: MOVES[op.name]]
        elif op.name == BARRIER:
            yield from ((r, [v]) for r, v in zip(results, operands, strict=True))
        elif op.name == LOOP:
            yield from ((result, [first]) for first, _, result in kept(op))
        elif callee is not None:
            passes = self.sites.bodies[callee].passes
            yield from ((r, [operands[i] for i in p]) for r, p in zip(results, passes, strict=True))

    def _backward(self, block: Any) -> None:
        for op in reversed(list(operations(block))):
            for result, sources in self._moved(op):
                for value in sources:
                    self.makes[value] = self._makes(value) | self._makes(result)
            for region in ordered_regions(op):
                inside = region.blocks[0]
                for result, value in zip(op.results, end_of(inside).operands, strict=True):
                    self.makes[value] = self._makes(value) | self._makes(result)
                self._backward(inside)
            if NUMBER in op.attributes:
                item = self.body.items[op.attributes[NUMBER].value]
                item.makes = [self._makes(result) for result in op.results]


def _item(body: Body, index: int) -> Item:
    return body.items[bisect_right(body.items, index, key=lambda item: item.start) - 1]


def _number(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _all(sets: Any) -> frozenset[int]:
    return frozenset().union(*sets)


def _places(values: Sequence[Any]) -> Mapping[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        found.setdefault(value, []).append(index)
    return found


def _spelled(value: Any) -> str:
    kind = ir.RankedTensorType(value.type)
    element = {"complex<f32>": "c64", "complex<f64>": "c128"}.get(
        str(kind.element_type), str(kind.element_type)
    )
    return spell(element, tuple(kind.shape))

# pyright: basic
"""An imported function that also says which of its operations was the first not to be finite.

Every float is looked at where it is made. What operations make of what they are given is judged at
the end of their block, all together, and marked; `harvest` carries that, in the order of execution,
through loops, branches and calls, to one more result. Inside the bodies of reductions, sorts and
scatters, and in conditions of loops, no operation is looked at by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nitro_dialect.ir import Function, Mark, Parameter
from nitro_dialect.types import TensorType
from nitroc.frontend.harvest import FIRST, NONE, Harvest
from nitroc.frontend.jax_internals import (
    deserialize_portable,
    hlo,
    ir,
    make_ir_context,
    portable_artifact,
)
from nitroc.frontend.looks import judging, looking
from nitroc.frontend.mark_lowering import MARK_OP
from nitroc.frontend.regions import block_of, end_of, is_float, operations, ordered_regions
from nitroc.frontend.sites import NUMBER, Body, Item, Sites

NUMBERS = "numbers"
"""The parameter that holds the number of each operation: i32, `NONE` for one to be left out."""

NAN, INFINITE, HELD_NAN, HELD_INFINITE = range(4)
"""The entries of `first`, each the number of an operation or `NONE`. One that made a NaN: a result
has one, and no operand that is not a literal. One that made an infinity: a result has one and no
NaN, and all operands are finite. The first that holds a NaN at all, and the first that holds an
infinity and no NaN."""

_KEY = "nonfinite"


@dataclass(frozen=True)
class Instrumented:
    """`function` has one more parameter, `numbers : i32[N]`, and one more result, `first : i32[4]`:
    numbers of `sites`."""

    function: Function
    serialized: bytes
    sites: Sites

    def numbers(self, ignored: Iterable[int] = ()) -> np.ndarray:
        """What to give for `numbers`, without the operations that are `ignored`."""
        found = np.arange(max(self.sites.size, 1), dtype=np.int32)
        found[list(ignored)] = NONE
        return found


def instrument(function: Function, artifact: bytes) -> Instrumented:
    """`function`, whose serialised module is `artifact`, with its first results that are not
    finite as a further result."""
    module = deserialize_portable(artifact, make_ir_context())
    module.context.allow_unregistered_dialects = True
    sites = Sites(module, function.name)
    with module.context, ir.Location.unknown():
        _Instrument(module, function.name, sites).run()
    harvested = Harvest(module, {_KEY: Mark(_KEY, "guard", _KEY)}, entry=function.name)
    harvested.finish([(_KEY, FIRST)], None)
    module.context.allow_unregistered_dialects = False
    module.operation.verify()
    serialized = portable_artifact(module, hlo.get_current_version())
    numbers = Parameter(NUMBERS, TensorType("i32", (max(sites.size, 1),)))
    made = replace(
        function,
        params=(*function.params, numbers),
        results=(*function.results, Parameter(FIRST, TensorType("i32", (4,)))),
        digest=hashlib.sha256(serialized).hexdigest(),
        of=None,
        wrt=None,
    )
    return Instrumented(made, serialized, sites)


@dataclass
class _Scope:
    """Of the function that is rewritten: the number of its first operation, and all numbers."""

    start: Any
    numbers: Any


@dataclass
class _Seen:
    """Operations of a block: their numbers from the function's first on, and which of `looks` their
    results and operands are. `looks`: what was found of each value, in the order they come up."""

    numbers: list[int] = field(default_factory=list)
    made: list[list[int]] = field(default_factory=list)
    given: list[list[int]] = field(default_factory=list)
    looks: dict[Any, tuple[int, Any, Any]] = field(default_factory=dict)


class _Instrument:
    """Looks at every float, and puts a mark at the end of every block; each function takes where
    its numbers start, and all numbers."""

    def __init__(self, module: Any, entry: str, sites: Sites) -> None:
        self.module = module
        self.entry = entry
        self.sites = sites
        self.symbols: dict[str, str] = {}
        self.looks: dict[Any, tuple[Any, Any]] = {}

    def run(self) -> None:
        for name in self.sites.order:
            function = self.sites.functions[name]
            block = block_of(function)
            kinds = [ir.Type.parse(f"tensor<{max(self.sites.size, 1)}xi32>")]
            if name != self.entry:
                kinds.insert(0, ir.Type.parse("tensor<i32>"))
            added = [block.add_argument(kind, ir.Location.name(NUMBERS)) for kind in kinds]
            _extend_inputs(function, kinds)
            with ir.InsertionPoint.at_block_begin(block):
                start = _number(0) if name == self.entry else added[0]
                self._look_at(list(block.arguments)[: -len(added)])
            self._block(block, self.sites.bodies[name], _Scope(start, added[-1]))

    def _block(self, block: Any, body: Body, scope: _Scope) -> None:
        seen = _Seen()
        for op in [each for each in operations(block) if each != end_of(block)]:
            following = ir.InsertionPoint.after(op)
            for region in ordered_regions(op):
                inside = region.blocks[0]
                with ir.InsertionPoint.at_block_begin(inside):
                    self._look_at(inside.arguments)
                self._block(inside, body, scope)
            with op.location, following:
                item = _item(op, body)
                if item is not None and item.callee is not None:
                    op = self._call(op, item.start, scope)
                self._look_at(op.results)
            if item is not None and item.callee is None:
                seen.numbers.append(item.start)
                seen.made.append(self._places(seen, op.results))
                seen.given.append(self._places(seen, op.operands))
        if seen.numbers:
            with end_of(block).location, ir.InsertionPoint(end_of(block)):
                self._mark(seen, scope)

    def _call(self, op: Any, start: int, scope: _Scope) -> Any:
        made = ir.Operation.create(
            op.name,
            results=[r.type for r in op.results],
            operands=[*op.operands, hlo.add(scope.start, _number(start)), scope.numbers],
            attributes=dict(op.attributes.items()),
        )
        for old, new in zip(op.results, made.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()
        return made

    def _look_at(self, values: Any) -> None:
        """Finds here whether `values` are free of NaN, and whether finite: i1[1] each."""
        for value in values:
            if is_float(value):
                symbol = self._symbol(looking(value.type, value in self.sites.literals))
                clean, finite = _called(symbol, ["tensor<1xi1>"] * 2, [value])
                self.looks[value] = clean, finite

    def _places(self, seen: _Seen, values: Any) -> list[int]:
        """Where in `seen` the looks at the floats among `values` are."""
        places: list[int] = []
        for value in values:
            if is_float(value):
                if value not in seen.looks:
                    seen.looks[value] = (len(seen.looks), *self.looks[value])
                places.append(seen.looks[value][0])
        return places

    def _mark(self, seen: _Seen, scope: _Scope) -> None:
        looks = seen.looks.values()
        text = judging(seen.numbers, seen.made, seen.given, len(looks), max(self.sites.size, 1))
        operands = [
            hlo.concatenate([clean for _, clean, _ in looks], 0),
            hlo.concatenate([finite for _, _, finite in looks], 0),
            scope.start,
            scope.numbers,
        ]
        ir.Operation.create(
            MARK_OP,
            operands=_called(self._symbol(text), ["tensor<4xi32>"], operands),
            attributes={
                "key": ir.StringAttr.get(_KEY),
                "channels": ir.ArrayAttr.get([ir.StringAttr.get(FIRST)]),
                "tap": ir.BoolAttr.get(False),
            },
        )

    def _symbol(self, text: str) -> str:
        """The function of that text, in which `NAME` stands for its name."""
        if text not in self.symbols:
            name = f"{self.entry}.nonfinite.{len(self.symbols)}"
            made = ir.Module.parse(text.replace("NAME", name))
            (function,) = list(made.body.operations)
            function.operation.detach_from_parent()
            self.module.body.append(function)
            self.symbols[text] = name
        return self.symbols[text]


def _item(op: Any, body: Body) -> Item | None:
    if NUMBER not in op.attributes:
        return None
    item = body.items[op.attributes[NUMBER].value]
    del op.attributes[NUMBER]
    return item


def _extend_inputs(function: Any, kinds: list[Any]) -> None:
    old = ir.FunctionType(function.attributes["function_type"].value)
    new = ir.FunctionType.get([*old.inputs, *kinds], list(old.results))
    function.attributes["function_type"] = ir.TypeAttr.get(new)


def _number(value: int) -> Any:
    element = ir.IntegerType.get_signless(32)
    kind = ir.RankedTensorType.get([], element)
    return hlo.constant(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(element, value)))


def _called(symbol: str, results: list[str], operands: list[Any]) -> list[Any]:
    op = ir.Operation.create(
        "func.call",
        results=[ir.Type.parse(result) for result in results],
        operands=operands,
        attributes={"callee": ir.FlatSymbolRefAttr.get(symbol)},
    )
    return list(op.results)

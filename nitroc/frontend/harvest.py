# pyright: basic
"""Marks to results: `nitro.mark` ops become further results of the function they run in.

Callees first. A loop carries what its iterations add up to; a branch that is not taken gives the
neutral value of each channel. No op of ours is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nitro_dialect.ir import CHANNELS, Mark
from nitroc.frontend.jax_internals import hlo, ir
from nitroc.frontend.mark_jaxprs import uncounted
from nitroc.frontend.mark_lowering import MARK_OP

Channel = tuple[str, str]
"""The key of a mark and a channel of it."""

FIRST = "first"
"""A channel that no mark of a user's has: i32[4] of numbers that grow in the order of the text, the
first in the order of execution; `NONE` for none."""

NONE = 2**31 - 1

_CHANNELS = {name: (*kind, ()) for name, kind in CHANNELS.items()} | {FIRST: ("i32", FIRST, (4,))}
"""dtype, how executions combine, and shape of each channel."""

_COMBINE = {
    "sum": "stablehlo.add",
    "max": "stablehlo.maximum",
    "min": "stablehlo.minimum",
    FIRST: "stablehlo.minimum",
}


@dataclass(frozen=True)
class Executions:
    """Where the marks of a function run: by key and loop depth, how often the text says so.

    `taps` are the keys of marks of cotangents, which only a gradient has.
    """

    count: Counter[tuple[str, int]] = field(default_factory=Counter)
    taps: frozenset[str] = frozenset()

    def deeper(self) -> Executions:
        moved = Counter({(key, depth + 1): n for (key, depth), n in self.count.items()})
        return Executions(moved, self.taps)

    def __add__(self, other: Executions) -> Executions:
        return Executions(self.count + other.count, self.taps | other.taps)


class Harvest:
    """Rewrites a module in place, with the `marks` of its experiment in order.

    `entry` is the function that is called from outside; `found` are the channels of it,
    `executions` say where they run. E-CONTRACT-026 for a mark in a region that is applied an
    unspecified number of times.
    """

    def __init__(self, module: Any, marks: Mapping[str, Mark], entry: str = "main") -> None:
        self.module = module
        self.entry = entry
        self.marks = marks
        self.place = {key: index for index, key in enumerate(marks)}
        self.functions = {
            op.attributes["sym_name"].value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self.done: dict[str, list[Channel]] = {}
        self.counted: dict[str, Executions] = {}
        with module.context, ir.Location.unknown():
            for name in self.functions:
                if name != entry:
                    self._function(name)
            self.found, self.executions = self._block(self._main)

    @property
    def _main(self) -> Any:
        return self.functions[self.entry].regions[0].blocks[0]

    def finish(self, channels: Sequence[Channel], at: int | None) -> None:
        """Makes `channels` results of the entry, from index `at` on (None: at the end).

        One that is not found is the neutral value: a tap, outside the gradient.
        """
        end, main = _end(self._main), self.functions[self.entry]
        with self.module.context, end.location, ir.InsertionPoint(end):
            values = [self.found[c] if c in self.found else _neutral(c) for c in channels]
            _extend_function(main, list(map(_type, channels)), at)
            _extend_end(self._main, values, at)

    def sorted(self, channels: Iterable[Channel]) -> list[Channel]:
        """In the order of the marks, then of `CHANNELS`."""
        names = list(_CHANNELS)
        return sorted(channels, key=lambda c: (self.place[c[0]], names.index(c[1])))

    def _function(self, name: str) -> list[Channel]:
        if name in self.done:
            return self.done[name]
        function = self.functions[name]
        block = function.regions[0].blocks[0]
        found, self.counted[name] = self._block(block)
        self.done[name] = order = self.sorted(found)
        if order:
            _extend_function(function, list(map(_type, order)))
            _extend_end(block, [found[channel] for channel in order])
        return order

    def _block(self, block: Any) -> tuple[dict[Channel, Any], Executions]:
        """What the marks of a block come to: values defined in it, by channel."""
        found: dict[Channel, Any] = {}
        executions = Executions()
        for op in [each.operation for each in block.operations]:
            with op.location, ir.InsertionPoint(op):
                values, more = self._operation(op)
                for channel, value in values.items():
                    old = found.get(channel)
                    found[channel] = value if old is None else _combined(channel, old, value)
            executions += more
            if values or op.name == MARK_OP:
                op.erase()
        return found, executions

    def _operation(self, op: Any) -> tuple[dict[Channel, Any], Executions]:
        """The values an operation gives; it has been replaced when there are any."""
        match op.name:
            case "nitro.mark":
                return _marked(op)
            case "func.call":
                return self._call(op)
            case "stablehlo.case" | "stablehlo.if":
                return self._branches(op)
            case "stablehlo.while":
                return self._loop(op)
        if len(op.regions):
            self._refuse(op.regions, f"the function of a {op.name.removeprefix('stablehlo.')}")
        return {}, Executions()

    def _call(self, op: Any) -> tuple[dict[Channel, Any], Executions]:
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        order = self._function(callee)
        return _replaced(op, order), self.counted[callee]

    def _branches(self, op: Any) -> tuple[dict[Channel, Any], Executions]:
        blocks = [region.blocks[0] for region in op.regions]
        each = [self._block(block) for block in blocks]
        order = self.sorted({channel for found, _ in each for channel in found})
        for block, (found, _) in zip(blocks, each, strict=True):
            with ir.InsertionPoint(_end(block)):
                values = [found[c] if c in found else _neutral(c) for c in order]
            _extend_end(block, values)
        return _replaced(op, order), sum((more for _, more in each), Executions())

    def _loop(self, op: Any) -> tuple[dict[Channel, Any], Executions]:
        condition, body = op.regions
        self._refuse([condition], "a while condition")
        block = body.blocks[0]
        found, executions = self._block(block)
        order = self.sorted(found)
        if not order:
            return {}, executions
        for region in op.regions:
            carried = [region.blocks[0].add_argument(_type(c), op.location) for c in order]
        with ir.InsertionPoint(_end(block)):
            sums = [_carried(c, old, found[c]) for c, old in zip(order, carried, strict=True)]
        _extend_end(block, sums)
        return _replaced(op, order, [_neutral(c) for c in order]), executions.deeper()

    def _refuse(self, regions: Sequence[Any], where: str) -> None:
        def visit(op: Any) -> Any:
            key = self._first_key(op.operation)
            if key is not None:
                raise uncounted(self.marks[key], where)
            return ir.WalkResult.ADVANCE

        for region in regions:
            for block in region.blocks:
                for op in block.operations:
                    op.operation.walk(visit)

    def _first_key(self, op: Any) -> str | None:
        if op.name == MARK_OP:
            return op.attributes["key"].value
        if op.name == "func.call":
            found = self._function(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
            return found[0][0] if found else None
        return None


def _marked(op: Any) -> tuple[dict[Channel, Any], Executions]:
    key = op.attributes["key"].value
    names = [each.value for each in op.attributes["channels"]]
    found = {(key, name): value for name, value in zip(names, op.operands, strict=True)}
    taps = frozenset({key}) if op.attributes["tap"].value else frozenset()
    return found, Executions(Counter({(key, 0): 1}), taps)


def _replaced(
    op: Any, order: Sequence[Channel], operands: Sequence[Any] = ()
) -> dict[Channel, Any]:
    """An operation with further results in its place; the old one is left, unused."""
    if not order:
        return {}
    count = len(op.results)
    new = ir.Operation.create(
        op.name,
        results=[*(r.type for r in op.results), *map(_type, order)],
        operands=[*op.operands, *operands],
        attributes=dict(op.attributes.items()),
        regions=len(op.regions),
        loc=op.location,
    )
    for old, region in zip(op.regions, new.regions, strict=True):
        for block in list(old.blocks):
            block.append_to(region)
    for old, value in zip(op.results, new.results, strict=False):
        old.replace_all_uses_with(value)
    return {channel: new.results[count + i] for i, channel in enumerate(order)}


def _extend_function(function: Any, types: list[Any], at: int | None = None) -> None:
    kind = ir.FunctionType(function.attributes["function_type"].value)
    results = list(kind.results)
    at = len(results) if at is None else at
    if "res_attrs" in function.attributes:
        attributes = list(function.attributes["res_attrs"])
        attributes[at:at] = [ir.DictAttr.get({})] * len(types)
        function.attributes["res_attrs"] = ir.ArrayAttr.get(attributes)
    results[at:at] = types
    new = ir.FunctionType.get(list(kind.inputs), results)
    function.attributes["function_type"] = ir.TypeAttr.get(new)


def _extend_end(block: Any, values: Sequence[Any], at: int | None = None) -> None:
    end = _end(block)
    operands = list(end.operands)
    at = len(operands) if at is None else at
    operands[at:at] = values
    ir.Operation.create(end.name, operands=operands, loc=end.location, ip=ir.InsertionPoint(end))
    end.erase()


def _end(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operation


def _combined(channel: Channel, old: Any, new: Any) -> Any:
    how, kind = _COMBINE[_CHANNELS[channel[1]][1]], _type(channel)
    return ir.Operation.create(how, results=[kind], operands=[old, new]).results[0]


def _carried(channel: Channel, old: Any, new: Any) -> Any:
    """What a loop comes to after one more iteration, which gave `new`."""
    if channel[1] != FIRST:
        return _combined(channel, old, new)
    there = hlo.compare(old, _neutral(channel), hlo.ComparisonDirectionAttr.get("NE"))
    return hlo.select(there, old, new)


def _neutral(channel: Channel) -> Any:
    dtype, how, _ = _CHANNELS[channel[1]]
    if dtype == "f32":
        start = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}[how]
        value = ir.FloatAttr.get(ir.F32Type.get(), start)
    else:
        # a maximum of integers is over `odd`, which is never below 0
        value = ir.IntegerAttr.get(_element(dtype), NONE if how == FIRST else 0)
    return hlo.constant(ir.DenseElementsAttr.get_splat(_type(channel), value))


def _type(channel: Channel) -> Any:
    dtype, _, shape = _CHANNELS[channel[1]]
    return ir.RankedTensorType.get(list(shape), _element(dtype))


def _element(dtype: str) -> Any:
    elements: dict[str, Callable[[], Any]] = {
        "f32": ir.F32Type.get,
        "i32": lambda: ir.IntegerType.get_signless(32),
        "i64": lambda: ir.IntegerType.get_signless(64),
    }
    return elements[dtype]()

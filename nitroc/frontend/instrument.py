# pyright: basic
"""An imported function that also says which of its operations was the first not to be finite.

After every operation with float results stands a mark of it; `harvest` carries what they find, in
the order of execution, through loops, branches and calls, to one more result. Inside the bodies of
reductions, sorts and scatters, and in conditions of loops, no operation is looked at by itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from nitro_dialect.ir import Function, Mark, Parameter
from nitro_dialect.types import I1, TensorType
from nitroc.frontend.harvest import FIRST, Harvest
from nitroc.frontend.jax_internals import (
    deserialize_portable,
    hlo,
    ir,
    make_ir_context,
    portable_artifact,
)
from nitroc.frontend.mark_lowering import MARK_OP
from nitroc.frontend.sites import (
    NUMBER,
    Body,
    Item,
    Sites,
    block_of,
    end_of,
    is_float,
    operations,
    ordered_regions,
)

IGNORED = "ignored"
"""The parameter that says which operations are not looked at: i1, one for each."""

NAN, INFINITE, HELD_NAN, HELD_INFINITE = range(4)
"""The entries of `first`, each the number of an operation or -1. One that made a NaN: a result has
one, and no operand that is not a literal. One that made an infinity: a result has one and no NaN,
and all operands are finite. The first that holds a NaN at all, and the first that holds an infinity
and no NaN."""

_KEY = "nonfinite"


@dataclass(frozen=True)
class Instrumented:
    """`function` has one more parameter, `ignored`, and one more result, `first : i32[4]`, which
    holds numbers of `sites`."""

    function: Function
    serialized: bytes
    sites: Sites


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
    ignored = Parameter(IGNORED, TensorType(I1.dtype, (max(sites.size, 1),)))
    made = replace(
        function,
        params=(*function.params, ignored),
        results=(*function.results, Parameter(FIRST, TensorType("i32", (4,)))),
        digest=hashlib.sha256(serialized).hexdigest(),
        of=None,
        wrt=None,
    )
    return Instrumented(made, serialized, sites)


@dataclass
class _Scope:
    """Of the function that is rewritten: the number of its first operation, and what to ignore."""

    start: Any
    ignored: Any


class _Instrument:
    """Puts a mark after every operation that counts; each function takes where its numbers start
    and what is ignored."""

    def __init__(self, module: Any, entry: str, sites: Sites) -> None:
        self.module = module
        self.entry = entry
        self.sites = sites
        self.symbols: dict[str, str] = {}
        self.flags: dict[Any, Any] = {}
        self.mask = f"tensor<{max(sites.size, 1)}xi1>"

    def run(self) -> None:
        for name in self.sites.order:
            function = self.sites.functions[name]
            block = block_of(function)
            kinds = [] if name == self.entry else [ir.Type.parse("tensor<i32>")]
            kinds.append(ir.Type.parse(self.mask))
            added = [block.add_argument(kind, ir.Location.name(IGNORED)) for kind in kinds]
            _extend_inputs(function, kinds)
            with ir.InsertionPoint.at_block_begin(block):
                start = _number(0) if name == self.entry else added[0]
                self._look_at(list(block.arguments)[: -len(added)])
            self._block(block, self.sites.bodies[name], _Scope(start, added[-1]))

    def _block(self, block: Any, body: Body, scope: _Scope) -> None:
        ops = [op for op in operations(block) if op != end_of(block)]
        for op in ops:
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
                    self._mark(op, item.start, scope)

    def _call(self, op: Any, start: int, scope: _Scope) -> Any:
        made = ir.Operation.create(
            op.name,
            results=[r.type for r in op.results],
            operands=[*op.operands, hlo.add(scope.start, _number(start)), scope.ignored],
            attributes=dict(op.attributes.items()),
        )
        for old, new in zip(op.results, made.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()
        return made

    def _look_at(self, values: Any) -> None:
        """Computes here what of `values` is NaN, and what not finite: `flags`, i1[2] each."""
        for value in values:
            if is_float(value):
                literal = value in self.sites.literals
                symbol = self._symbol(_flags(value.type, literal))
                (self.flags[value],) = _called(symbol, "tensor<2xi1>", [value])

    def _mark(self, op: Any, start: int, scope: _Scope) -> None:
        given = [self.flags[value] for value in op.operands if is_float(value)]
        made = [self.flags[value] for value in op.results if is_float(value)]
        number = hlo.add(scope.start, _number(start))
        operands = [_any(made), _any(given), number, scope.ignored]
        first = _called(self._symbol(_judge(self.mask)), "tensor<4xi32>", operands)
        ir.Operation.create(
            MARK_OP,
            operands=first,
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


def _any(flags: list[Any]) -> Any:
    if not flags:
        false = ir.BoolAttr.get(False)
        return hlo.constant(ir.DenseElementsAttr.get_splat(ir.Type.parse("tensor<2xi1>"), false))
    found = flags[0]
    for other in flags[1:]:
        found = hlo.or_(found, other)
    return found


def _called(symbol: str, result: str, operands: list[Any]) -> list[Any]:
    op = ir.Operation.create(
        "func.call",
        results=[ir.Type.parse(result)],
        operands=operands,
        attributes={"callee": ir.FlatSymbolRefAttr.get(symbol)},
    )
    return list(op.results)


def _flags(kind: Any, literal: bool) -> str:
    """A function: whether any element is NaN, and whether any is not finite.

    A literal's NaN is not one: the operation that lets it into the data has made it.
    """
    tensor = ir.RankedTensorType(kind)
    rank, element = tensor.rank, tensor.element_type
    shape = "".join(f"{size}x" for size in tensor.shape)
    truth = f"tensor<{shape}i1>"
    if isinstance(element, ir.ComplexType):
        parts, spelled = ("real", "imag"), str(element.element_type)
    else:  # not every backend compares the narrow ones
        parts, spelled = ("convert",), str(element) if element.width >= 32 else "f32"
    number = f"tensor<{shape}{spelled}>"
    lines: list[str] = []
    for part in parts:
        lines += [
            f"%{part} = stablehlo.{part} %x : ({kind}) -> {number}",
            f"%{part}_nan = stablehlo.compare NE, %{part}, %{part}, FLOAT "
            f": ({number}, {number}) -> {truth}",
            f"%{part}_finite = stablehlo.is_finite %{part} : ({number}) -> {truth}",
            f"%{part}_odd = stablehlo.not %{part}_finite : {truth}",
        ]
    for found in ("nan", "odd"):
        first, last = f"%{parts[0]}_{found}", f"%{parts[-1]}_{found}"
        lines.append(f"%{found}s = stablehlo.or {first}, {last} : {truth}")
        lines.append(f"%{found} = " + _any_of(f"%{found}s", rank, truth))
    nan = "%false" if literal else "%nan"
    lines += [
        f"%a = stablehlo.reshape {nan} : (tensor<i1>) -> tensor<1xi1>",
        "%b = stablehlo.reshape %odd : (tensor<i1>) -> tensor<1xi1>",
        "%both = stablehlo.concatenate %a, %b, dim = 0 "
        ": (tensor<1xi1>, tensor<1xi1>) -> tensor<2xi1>",
    ]
    return _function(f"%x: {kind}", lines, "%both", "tensor<2xi1>")


def _any_of(value: str, rank: int, kind: str) -> str:
    if not rank:
        return f"stablehlo.or {value}, %false : tensor<i1>"
    dimensions = ", ".join(map(str, range(rank)))
    return (
        f"stablehlo.reduce({value} init: %false) applies stablehlo.or across dimensions = "
        f"[{dimensions}] : ({kind}, tensor<i1>) -> tensor<i1>"
    )


def _judge(mask: str) -> str:
    """A function from the flags of an operation's results and operands to its entries of `first`:
    its number, or -1."""
    lines = [
        *_split("made"),
        *_split("given"),
        "%none_nan = stablehlo.not %given_nan : tensor<1xi1>",
        "%none_odd = stablehlo.not %given_odd : tensor<1xi1>",
        "%no_nan = stablehlo.not %made_nan : tensor<1xi1>",
        "%nan = stablehlo.and %made_nan, %none_nan : tensor<1xi1>",
        "%infinite = stablehlo.and %made_odd, %no_nan : tensor<1xi1>",
        "%new = stablehlo.and %infinite, %none_odd : tensor<1xi1>",
        "%all = stablehlo.concatenate %nan, %new, %made_nan, %infinite, dim = 0 "
        ": (tensor<1xi1>, tensor<1xi1>, tensor<1xi1>, tensor<1xi1>) -> tensor<4xi1>",
        f"%skipped = stablehlo.dynamic_slice %ignored, %site, sizes = [1] "
        f": ({mask}, tensor<i32>) -> tensor<1xi1>",
        "%kept = stablehlo.not %skipped : tensor<1xi1>",
        "%keeps = stablehlo.broadcast_in_dim %kept, dims = [0] : (tensor<1xi1>) -> tensor<4xi1>",
        "%says = stablehlo.and %all, %keeps : tensor<4xi1>",
        "%sites = stablehlo.broadcast_in_dim %site, dims = [] : (tensor<i32>) -> tensor<4xi32>",
        "%none = stablehlo.constant dense<-1> : tensor<4xi32>",
        "%first = stablehlo.select %says, %sites, %none : tensor<4xi1>, tensor<4xi32>",
    ]
    given = f"%made: tensor<2xi1>, %given: tensor<2xi1>, %site: tensor<i32>, %ignored: {mask}"
    return _function(given, lines, "%first", "tensor<4xi32>")


def _split(flags: str) -> list[str]:
    return [
        f"%{flags}_{name} = stablehlo.slice %{flags} [{at}:{at + 1}] "
        ": (tensor<2xi1>) -> tensor<1xi1>"
        for at, name in enumerate(("nan", "odd"))
    ]


def _function(given: str, lines: list[str], result: str, kind: str) -> str:
    false = "%false = stablehlo.constant dense<false> : tensor<i1>"
    body = "\n".join([false, *lines, f"return {result} : {kind}"])
    return f"func.func private @NAME({given}) -> {kind} {{\n{body}\n}}"

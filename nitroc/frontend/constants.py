# pyright: basic
"""Large constants out of imported functions, to inputs: also those of the functions they call.

A captured array would otherwise be copied into every program's text. Only call edges need
threading: regions of loops and branches see the values around them.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_runtime.dtypes import np_dtype
from nitroc.frontend.jax_internals import ir
from nitroc.frontend.locations import user_line

HOIST_BYTES = 4096
"""Constants of at most this many bytes stay literals; so does any that repeats one value."""


@dataclass(frozen=True)
class Constant:
    """A hoisted constant; `name` is from its content, so equal ones of two functions are one."""

    name: str
    value: np.ndarray
    dtype: str
    where: str | None

    def note(self, function: str) -> str:
        shape = ",".join(map(str, self.value.shape))
        place = f", used at {self.where}" if self.where else ""
        size = self.value.nbytes
        return f"@{function}: captured {self.dtype}[{shape}] ({size} bytes) became an input{place}"


def hoist(module: Any, root: str | None) -> dict[str, Constant]:
    """Rewrites `module` in place: constants of `main` become arguments after its own, in order."""
    with module.context, ir.Location.unknown():
        return _Hoister(module, root).run("main")


class _Hoister:
    def __init__(self, module: Any, root: str | None) -> None:
        self.root = root
        self.functions = {
            op.attributes["sym_name"].value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self.done: dict[str, dict[str, Constant]] = {}

    def run(self, name: str) -> dict[str, Constant]:
        if name in self.done:
            return self.done[name]
        function = self.functions[name]
        constants, calls = _constants_and_calls(function)
        found: dict[str, Constant] = {}
        values: dict[str, Any] = {}
        for op in constants:
            self._replace(op, function, found, values)
        for call in calls:
            inner = self.run(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)
            if inner:
                self._extend(call, inner, function, found, values)
        self.done[name] = found
        return found

    def _replace(
        self, op: Any, function: Any, found: dict[str, Constant], values: dict[str, Any]
    ) -> None:
        result = op.results[0]
        uses = [use.owner.location for use in result.uses]
        lines = filter(None, (user_line(loc, self.root) for loc in (*reversed(uses), op.location)))
        constant = _read(op, next(lines, None))
        value = _argument(function, constant, result.type, found, values)
        result.replace_all_uses_with(value)
        op.erase()

    def _extend(
        self,
        call: Any,
        inner: dict[str, Constant],
        function: Any,
        found: dict[str, Constant],
        values: dict[str, Any],
    ) -> None:
        callee = self.functions[ir.FlatSymbolRefAttr(call.attributes["callee"]).value]
        types = list(_type(callee).inputs)[-len(inner) :]
        line = user_line(call.location, self.root)
        extra = [
            _argument(function, _placed(constant, line), kind, found, values)
            for constant, kind in zip(inner.values(), types, strict=True)
        ]
        made = ir.Operation.create(
            "func.call",
            results=[r.type for r in call.results],
            operands=[*call.operands, *extra],
            attributes=dict(call.attributes.items()),
            loc=call.location,
            ip=ir.InsertionPoint(call),
        )
        for old, value in zip(call.results, made.results, strict=True):
            old.replace_all_uses_with(value)
        call.erase()


def _constants_and_calls(function: Any) -> tuple[list[Any], list[Any]]:
    constants: list[Any] = []
    calls: list[Any] = []

    def visit(op: Any) -> Any:
        op = op.operation
        if op.name == "func.call":
            calls.append(op)
        elif op.name == "stablehlo.constant" and _is_large(op):
            constants.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return constants, calls


def _is_large(op: Any) -> bool:
    kind = ir.RankedTensorType(op.results[0].type)
    element = str(kind.element_type)
    # jaxlib can't even read the value of a complex one
    if element.startswith("complex"):
        return False
    value = op.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr) or value.is_splat:
        return False
    return int(np.prod(kind.shape, initial=1)) * np_dtype(element).itemsize > HOIST_BYTES


def _read(op: Any, where: str | None) -> Constant:
    kind = ir.RankedTensorType(op.results[0].type)
    element = str(kind.element_type)
    dtype = np_dtype(element)
    attribute = op.attributes["value"]
    has_buffer = dtype.kind in "iub" or element in ("f16", "f32", "f64")
    raw = np.array(attribute) if has_buffer else np.frombuffer(_words(attribute), dtype)
    value = np.ascontiguousarray(raw.reshape(kind.shape).astype(dtype))
    digest = hashlib.sha256(f"{element}{list(kind.shape)}".encode() + value.tobytes())
    return Constant(f"c{digest.hexdigest()[:12]}", value, element, where)


def _words(attribute: Any) -> bytes:
    """The bytes of a large attribute: narrow floats have no buffer protocol, but print in hex."""
    found = re.match(r'dense<"0x([0-9A-F]+)">', str(attribute))
    assert found is not None, "a large dense attribute prints in hex"
    return bytes.fromhex(found[1])


def _placed(constant: Constant, where: str | None) -> Constant:
    if constant.where:
        return constant
    return Constant(constant.name, constant.value, constant.dtype, where)


def _argument(
    function: Any,
    constant: Constant,
    kind: Any,
    found: dict[str, Constant],
    values: dict[str, Any],
) -> Any:
    if constant.name not in values:
        block = function.regions[0].blocks[0]
        values[constant.name] = block.add_argument(kind, ir.Location.name(constant.name))
        found[constant.name] = constant
        old = _type(function)
        new = ir.FunctionType.get([*old.inputs, kind], list(old.results))
        function.attributes["function_type"] = ir.TypeAttr.get(new)
    return values[constant.name]


def _type(function: Any) -> Any:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)

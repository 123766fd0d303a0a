# pyright: basic
"""A typed face for MLIR: types, one builder function per StableHLO op in use, modules, artifacts.

The builder functions put their op at the current insertion point; `ModuleBuilder.main` and the
region-taking functions (`reduce while_`) set it. dtypes are spelled as in the IR: `f32`, `i1`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func
from jaxlib.mlir.dialects import stablehlo as hlo

from nitro_runtime.dtypes import np_dtype
from nitroc.frontend import jax_internals

Tensor: TypeAlias = Any
"""An SSA value of MLIR; opaque outside this file: ask `shape_of`, `dtype_of`."""

FLOATS = {
    "f64": ir.F64Type, "f32": ir.F32Type, "f16": ir.F16Type, "bf16": ir.BF16Type,
    "f8E4M3FN": ir.Float8E4M3FNType, "f8E5M2": ir.Float8E5M2Type,
}  # fmt: skip


class EmissionFailed(Exception):
    """MLIR refused a module or a serialisation; the text is its own reason."""


# Types


def element_type(dtype: str) -> ir.Type:
    """`dtype` of the IR as an MLIR element type; inside a context."""
    if dtype in FLOATS:
        return FLOATS[dtype].get()
    if dtype.startswith("ui"):
        return ir.IntegerType.get_unsigned(int(dtype[2:]))
    if dtype.startswith("i"):
        return ir.IntegerType.get_signless(int(dtype[1:]))
    half = {"c64": "f32", "c128": "f64"}[dtype]
    return ir.ComplexType.get(element_type(half))


def tensor_type(dtype: str, shape: Sequence[int]) -> ir.Type:
    return ir.RankedTensorType.get(list(shape), element_type(dtype))


def _dtype_name(element: ir.Type) -> str:
    names = {"complex<f32>": "c64", "complex<f64>": "c128"}
    return names.get(str(element), str(element))


def shape_of(x: Tensor) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(x.type).shape)


def dtype_of(x: Tensor) -> str:
    return _dtype_name(ir.RankedTensorType(x.type).element_type)


# Values


def constant(value: bool | int | float, dtype: str, shape: Sequence[int] = ()) -> Tensor:
    """Every element `value`, rounded once to `dtype`."""
    splat = ir.DenseElementsAttr.get_splat(tensor_type(dtype, shape), _number(value, dtype))
    return hlo.constant(splat)


def _number(value: bool | int | float, dtype: str) -> ir.Attribute:
    if dtype == "i1":
        return ir.BoolAttr.get(bool(value))
    if dtype in FLOATS:
        return ir.FloatAttr.get(element_type(dtype), float(value))
    return ir.IntegerAttr.get(element_type(dtype), int(value))


def broadcast(x: Tensor, shape: Sequence[int]) -> Tensor:
    """A scalar at every element of `shape`."""
    if shape_of(x) == tuple(shape):
        return x
    return hlo.broadcast_in_dim(tensor_type(dtype_of(x), shape), x, [])


def convert(x: Tensor, dtype: str) -> Tensor:
    return x if dtype_of(x) == dtype else hlo.convert(tensor_type(dtype, shape_of(x)), x)


def bitcast(x: Tensor, dtype: str) -> Tensor:
    """The same bits as `dtype`, of the same width."""
    return hlo.bitcast_convert(tensor_type(dtype, shape_of(x)), x)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    if shape_of(x) == tuple(shape):
        return x
    return hlo.reshape(tensor_type(dtype_of(x), shape), x)


def window(x: Tensor, start: Sequence[int], size: Sequence[int]) -> Tensor:
    """The box of `size` at `start`; the operand itself when that is all of it."""
    if shape_of(x) == tuple(size):
        return x
    limit = [s + n for s, n in zip(start, size, strict=True)]
    return hlo.slice(x, list(start), limit, [1] * len(limit))


def entry(x: Tensor, index: Tensor | int) -> Tensor:
    """Entry `index` (a number, or an i32 inside the axis) of the first axis."""
    rest = shape_of(x)[1:]
    if isinstance(index, int):
        return reshape(window(x, [index, *(0 for _ in rest)], [1, *rest]), rest)
    zero = constant(0, "i32")
    return reshape(hlo.dynamic_slice(x, [index, *(zero for _ in rest)], [1, *rest]), rest)


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """1-D tensors of one dtype, one after the other; at least one."""
    return parts[0] if len(parts) == 1 else hlo.concatenate(list(parts), 0)


def vector(words: Sequence[Tensor]) -> Tensor:
    """f32 scalars as one f32[n]; none at all as f32[0]."""
    return concatenate([reshape(x, (1,)) for x in words]) if words else constant(0.0, "f32", (0,))


def iota(dtype: str, size: int) -> Tensor:
    return hlo.iota(tensor_type(dtype, (size,)), 0)


UNARY: dict[str, Callable[..., Tensor]] = {
    "neg": hlo.negate, "abs": hlo.abs, "sqrt": hlo.sqrt, "rsqrt": hlo.rsqrt, "log": hlo.log,
    "exp": hlo.exponential, "tanh": hlo.tanh, "sign": hlo.sign, "floor": hlo.floor,
    "not": hlo.not_, "is_finite": hlo.is_finite,
}  # fmt: skip
BINARY: dict[str, Callable[..., Tensor]] = {
    "add": hlo.add, "sub": hlo.subtract, "mul": hlo.multiply, "div": hlo.divide, "pow": hlo.power,
    "min": hlo.minimum, "max": hlo.maximum, "and": hlo.and_, "or": hlo.or_,
    "shift_right": hlo.shift_right_logical,
}  # fmt: skip


def unary(name: str, x: Tensor) -> Tensor:
    return UNARY[name](x)


def binary(name: str, a: Tensor, b: Tensor) -> Tensor:
    return BINARY[name](a, b)


def compare(direction: str, a: Tensor, b: Tensor) -> Tensor:
    """`direction`: lt le gt ge eq ne. Floats compare as IEEE numbers, i1 as unsigned."""
    dtype = dtype_of(a)
    signed = "SIGNED" if dtype.startswith("i") and dtype != "i1" else "UNSIGNED"
    kind = "FLOAT" if dtype in FLOATS else signed
    return hlo.compare(
        a,
        b,
        hlo.ComparisonDirectionAttr.get(direction.upper()),
        compare_type=hlo.ComparisonTypeAttr.get(kind),
    )


def select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`condition` is a scalar, or of the choices' shape."""
    return hlo.select(condition, a, b)


def reduce(x: Tensor, how: str, initial: bool | float) -> Tensor:
    """All elements of `x` combined by the binary op `how`, in the dtype of `x`."""
    scalar = tensor_type(dtype_of(x), ())
    start = constant(initial, dtype_of(x))
    op = hlo.ReduceOp([scalar], [x], [start], list(range(len(shape_of(x)))))
    block = op.body.blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        hlo.return_([binary(how, *block.arguments)])
    return op.results[0]


def while_(
    initial: Sequence[Tensor],
    condition: Callable[[Sequence[Tensor]], Tensor],
    body: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> list[Tensor]:
    """A loop over carried values; both functions may read values from outside."""
    types = [v.type for v in initial]
    op = hlo.WhileOp(types, list(initial))
    test, step = (op.regions[i].blocks.append(*types) for i in (0, 1))
    with ir.InsertionPoint(test):
        hlo.return_([condition(list(test.arguments))])
    with ir.InsertionPoint(step):
        hlo.return_(list(body(list(step.arguments))))
    return list(op.results)


def call(
    name: str, args: Sequence[Tensor], types: Sequence[tuple[str, Sequence[int]]]
) -> list[Tensor]:
    op = func.CallOp([tensor_type(*t) for t in types], name, list(args))
    return list(op.results)


@contextmanager
def located(name: str, origin: str | None = None) -> Iterator[None]:
    """Ops made inside carry the name of the IR value they compute, and where it comes from.

    That is its own `file:line:col`, or else the name and line of the op whose region it is in.
    """
    enclosing: Any = ir.Location.current
    with ir.Location.name(name, childLoc=_file_location(origin) or enclosing):
        yield


def _file_location(origin: str | None) -> ir.Location | None:
    match = re.fullmatch(r"(.+?):(\d+)(?::(\d+))?", origin or "")
    if match is None:
        return None
    return ir.Location.file(match[1], int(match[2]), int(match[3] or 0))


# Modules


@dataclass(frozen=True)
class Argument:
    """One argument of `main`; `alias` is the result that takes over its buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    alias: int | None = None


class ModuleBuilder:
    """A module for one device, with linked functions and a `main`."""

    def __init__(self, name: str) -> None:
        self.context = jax_internals.make_ir_context()
        with self.context, ir.Location.unknown():
            self.module = ir.Module.create()
            attributes = self.module.operation.attributes
            attributes["sym_name"] = ir.StringAttr.get(name)
            one = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)
            attributes["mhlo.num_partitions"] = one
            attributes["mhlo.num_replicas"] = one

    def link(self, artifact: bytes) -> dict[str, tuple[list[str], list[str]]]:
        """Moves a serialised module's functions in, private; symbol -> argument, result types."""
        source = jax_internals.deserialize_portable(artifact, self.context)
        signatures: dict[str, tuple[list[str], list[str]]] = {}
        with self.context, ir.Location.unknown():
            for op in _functions(source):
                op.attributes["sym_visibility"] = ir.StringAttr.get("private")
                for key in ("arg_attrs", "res_attrs"):
                    if key in op.attributes:
                        del op.attributes[key]
                kind = op.type
                signatures[_symbol(op)] = (_spell(kind.inputs), _spell(kind.results))
                op.operation.detach_from_parent()
                self.module.body.append(op)
        return signatures

    def main(
        self,
        arguments: Sequence[Argument],
        body: Callable[[list[Tensor]], list[Tensor]],
    ) -> list[tuple[str, tuple[int, ...]]]:
        """Adds `@main`, the last function; `body` emits it. Returns dtype and shape per result."""
        with self.context, ir.Location.unknown():
            types = [tensor_type(a.dtype, a.shape) for a in arguments]
            with ir.InsertionPoint(self.module.body):
                main = func.FuncOp("main", (types, []), visibility="public")
            block = main.add_entry_block([ir.Location.name(a.name) for a in arguments])
            with ir.InsertionPoint(block):
                results = body(list(block.arguments))
                func.ReturnOp(results)
            kind = ir.FunctionType.get(types, [r.type for r in results])
            main.attributes["function_type"] = ir.TypeAttr.get(kind)
            main.arg_attrs = ir.ArrayAttr.get([_alias(a.alias) for a in arguments])
            return [(dtype_of(r), shape_of(r)) for r in results]

    def verify(self) -> None:
        """EmissionFailed with MLIR's diagnostics when the module is not valid."""
        try:
            self.module.operation.verify()
        except ir.MLIRError as error:
            lines = [f"{d.message} at {d.location}" for d in error.error_diagnostics]
            raise EmissionFailed("\n".join(lines)) from error

    def strip_locations(self) -> None:
        _strip(self.module)

    def serialize(self, version: str) -> bytes:
        """The portable artifact for a StableHLO version; EmissionFailed with the reason."""
        return serialize(self.module, version)


def _functions(module: ir.Module) -> list[Any]:
    return list(module.body.operations)


def _symbol(function: Any) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def _spell(types: Sequence[ir.Type]) -> list[str]:
    return [str(t) for t in types]


def spell(dtype: str, shape: Sequence[int]) -> str:
    """(dtype, shape) as `link` spells it: `tensor<2x3xf32>`."""
    element = {"c64": "complex<f32>", "c128": "complex<f64>"}.get(dtype, dtype)
    return f"tensor<{''.join(f'{d}x' for d in shape)}{element}>"


def _alias(result: int | None) -> ir.Attribute:
    if result is None:
        return ir.DictAttr.get({})
    index = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
    return ir.DictAttr.get({"tf.aliasing_output": index})


# Artifacts


def serialize(module: ir.Module, version: str) -> bytes:
    try:
        return jax_internals.portable_artifact(module, version)
    except (ValueError, RuntimeError) as error:
        raise EmissionFailed(str(error)) from error


def text(artifact: bytes, *, locations: bool) -> str:
    """The StableHLO text of a portable artifact."""
    context = jax_internals.make_ir_context()
    module = jax_internals.deserialize_portable(artifact, context)
    return str(module.operation.get_asm(enable_debug_info=locations))


def without_locations(artifact: bytes, version: str) -> bytes:
    """The same portable artifact, no source location left in it."""
    context = jax_internals.make_ir_context()
    module = jax_internals.deserialize_portable(artifact, context)
    _strip(module)
    return serialize(module, version)


def _strip(module: ir.Module) -> None:
    with module.context:
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)


def artifact_of(text: str, version: str) -> bytes:
    """The portable artifact of StableHLO text, locations kept."""
    context = jax_internals.make_ir_context()
    try:
        module = ir.Module.parse(text, context)
    except ir.MLIRError as error:
        raise EmissionFailed(str(error)) from error
    return serialize(module, version)


def versions() -> dict[str, str]:
    """StableHLO versions by what is asked: `max` compatibility, `current`, `12 weeks` back."""
    requirement = hlo.StablehloCompatibilityRequirement
    weeks = hlo.get_version_from_compatibility_requirement(requirement.WEEK_12)
    return {
        "max": hlo.get_minimum_version(),
        "current": hlo.get_current_version(),
        "12 weeks": weeks,
    }


# The reference interpreter


def evaluate(artifact: bytes, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs `main` by StableHLO's reference interpreter; slow, exact, device-free."""
    context = jax_internals.make_ir_context()
    module = jax_internals.deserialize_portable(artifact, context)
    with context, ir.Location.unknown():
        main = next(op for op in _functions(module) if _symbol(op) == "main")
        types = [ir.RankedTensorType(t) for t in main.type.inputs]
        results = [ir.RankedTensorType(t) for t in main.type.results]
        _return_bits(main)
        made = hlo.eval_module(module, [_dense(x, t) for x, t in zip(args, types, strict=True)])
        return [_array(a, t) for a, t in zip(made, results, strict=True)]


def _dense(x: np.ndarray, kind: ir.RankedTensorType) -> ir.Attribute:
    shape = list(kind.shape)
    assert list(x.shape) == shape, (x.shape, shape)
    flat: Any = np.ascontiguousarray(x).reshape(-1)
    if flat.size == 0:
        return ir.DenseElementsAttr.get_splat(kind, _number(0, _dtype_name(kind.element_type)))
    if flat.dtype.kind == "V":  # ml_dtypes has no buffer format
        flat = flat.view(np.uint8 if flat.dtype.itemsize == 1 else np.uint16)
    return ir.DenseElementsAttr.get(flat, type=kind.element_type, shape=shape)


def _narrow(kind: ir.RankedTensorType) -> str | None:
    """The unsigned integer a narrow float is read as: numpy can't read its attribute."""
    bits = {"bf16": "ui16", "f8E4M3FN": "ui8", "f8E5M2": "ui8"}
    return bits.get(_dtype_name(kind.element_type))


def _return_bits(main: Any) -> None:
    last = list(main.entry_block.operations)[-1]
    with ir.InsertionPoint(last):
        for i, value in enumerate(last.operands):
            bits = _narrow(ir.RankedTensorType(value.type))
            if bits is not None:
                last.operation.operands[i] = bitcast(value, bits)
    kind = ir.FunctionType.get(main.type.inputs, [v.type for v in last.operands])
    main.attributes["function_type"] = ir.TypeAttr.get(kind)


def _array(attribute: ir.Attribute, kind: ir.RankedTensorType) -> np.ndarray:
    shape = tuple(kind.shape)
    dtype = _dtype_name(kind.element_type)
    if math.prod(shape) == 0:
        return np.zeros(shape, np_dtype(dtype))
    array = np.array(attribute)
    return array if _narrow(kind) is None else array.view(np_dtype(dtype))

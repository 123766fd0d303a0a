"""For tests of emitted programs: functions imported from jax, values by IR name, two ways to run.

A value of a tree is `{path: array}`; `arguments` packs it as the program's layout says, `values`
unpacks the results, so a test speaks of leaves whatever the layout.
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

import nitro_dialect
from nitro_dialect.ir import Module
from nitro_runtime import pjrt
from nitro_runtime.dtypes import np_dtype
from nitroc.emit import EmittedProgram, GroupLayout, emit_program, mlir, plan, resolve_compat
from nitroc.frontend import jax_internals

Values = dict[str, Any]


@dataclass(frozen=True)
class Imported:
    digest: str
    artifact: bytes


def import_function(
    name: str, function: Callable[..., Any], *args: jax.ShapeDtypeStruct
) -> Imported:
    """`function` of flat leaves as a serialised module whose symbols start with `name`."""
    lowered = jax.jit(function, keep_unused=True).trace(*args).lower().compiler_ir("stablehlo")
    context = jax_internals.make_ir_context()
    buffer = io.BytesIO()
    lowered.operation.write_bytecode(buffer)
    with context, ir.Location.unknown():
        module = ir.Module.parse(buffer.getvalue())
        for op in list(module.body.operations):
            old = ir.StringAttr(op.attributes["sym_name"]).value
            new = name if old == "main" else f"{name}.{old}"
            ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
            ir.SymbolTable.set_symbol_name(op, new)
        text = str(module.operation.get_asm(enable_debug_info=False))
        artifact = mlir.serialize(module, resolve_compat())
    return Imported(hashlib.sha256(text.encode()).hexdigest()[:16], artifact)


@dataclass(frozen=True)
class Case:
    """A program with what it was emitted from."""

    module: Module
    layouts: Mapping[str, GroupLayout]
    emitted: EmittedProgram

    def arguments(self, given: Values) -> list[np.ndarray]:
        return [self._argument(a, given) for a in self.emitted.args]

    def _argument(self, entry: Any, given: Values) -> np.ndarray:
        if entry.role == "scalars":
            return _pack_scalars(self.emitted, given).reshape(entry.shape)
        if entry.role == "steps":
            return np.int32(1).reshape(())
        if entry.buffer is None:
            return np.asarray(given[entry.value], np_dtype(entry.dtype)).reshape(entry.shape)
        leaves = given[entry.value]
        parts = [np.asarray(leaves[path]).reshape(-1) for path, _ in self._rows(entry)]
        return np.concatenate(parts).astype(np_dtype(entry.dtype)).reshape(entry.shape)

    def values(self, results: Sequence[np.ndarray]) -> Values:
        """Results by IR name; the report's words decoded under `report`."""
        made: Values = {}
        for entry, x in zip(self.emitted.results, results, strict=True):
            assert x.shape == entry.shape, entry
            assert x.dtype == np_dtype(entry.dtype), entry
            if entry.role == "report":
                made["report"] = decode(self.emitted, x)
            elif entry.buffer is None:
                made[entry.value] = x
            else:
                made.setdefault(entry.value, {}).update(self._leaves(entry, x))
        return made

    def _leaves(self, entry: Any, x: np.ndarray) -> Values:
        flat = x.reshape(-1)
        shapes = {leaf.path: leaf for g in self.module.groups.values() for leaf in g.leaves}
        return {
            path: flat[offset : offset + shapes[path].size].reshape(shapes[path].shape)
            for path, offset in self._rows(entry)
        }

    def _rows(self, entry: Any) -> tuple[tuple[str, int], ...]:
        group = self._group(entry)
        return next(b.leaves for b in self.layouts[group].buffers if b.name == entry.buffer)

    def _group(self, entry: Any) -> str:
        program = self.module.programs[self.emitted.name]
        for item in program.inputs:
            if item.value.name == entry.value:
                return item.value.type.group  # type: ignore[union-attr]
        roles = {"param": "param", "state": "state", "outputs": "outputs"}
        return next(g.name for g in self.module.groups.values() if g.role == roles[entry.role])

    def interpret(self, given: Values) -> Values:
        return self.values(mlir.evaluate(self.emitted.artifact, self.arguments(given)))

    def run(self, given: Values) -> Values:
        return self.values([pjrt.read(x) for x in self.start(given)[1]])

    def start(self, given: Values) -> tuple[list[Any], list[Any]]:
        """Buffers handed to XLA's executable, and those it returned."""
        buffers = [pjrt.put(x, pjrt.devices("cpu")[0]) for x in self.arguments(given)]
        return buffers, list(self.executable(buffers))

    @functools.cached_property
    def executable(self) -> pjrt.Executable:
        device = pjrt.devices("cpu")[0]
        return pjrt.compile(self.emitted.artifact, device, self.emitted.args, self.emitted.results)


def emit_case(
    text: str | Module,
    functions: Sequence[Imported] = (),
    *,
    program: str = "train_step",
    mode: str = "auto",
    version: str | None = None,
    **options: Any,
) -> Case:
    module = nitro_dialect.parse(text) if isinstance(text, str) else text
    nitro_dialect.verify(module)
    layouts = {name: plan(group, mode) for name, group in module.groups.items()}
    emitted = emit_program(
        module,
        program,
        {f.digest: f.artifact for f in functions},
        layouts=layouts,
        version=version or resolve_compat(),
        **options,
    )
    return Case(module, layouts, emitted)


def _pack_scalars(emitted: EmittedProgram, given: Values) -> np.ndarray:
    words = np.zeros(len(emitted.scalars), np.uint32)
    for entry in emitted.scalars:
        dtype = np.int32 if entry.dtype == "i1" else np_dtype(entry.dtype)
        words[entry.index] = np.asarray(given[entry.name], dtype).reshape(1).view(np.uint32)[0]
    return words.view(np.float32)


def decode(emitted: EmittedProgram, packed: np.ndarray) -> Values:
    words = packed.reshape(-1)
    made: Values = {}
    for row in emitted.report:
        part = words[row.index : row.index + row.words]
        if row.dtype == "i64":
            made[row.name] = np.int64(np.uint64(part[0]) << np.uint64(32) | np.uint64(part[1]))
        elif row.dtype == "i1":
            made[row.name] = bool(part[0])
        else:
            made[row.name] = part.view(np_dtype(row.dtype))[0]
    return made


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Bitwise equality of nested values, NaN included."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
        return
    assert np.asarray(a).dtype == np.asarray(b).dtype, where
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), (where, a, b)


def assert_close(a: Any, b: Any, where: str = "", rtol: float = 1e-5) -> None:
    """|a - b| <= rtol max|b| + 1e-7, leaf by leaf; integers and bools exactly."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_close(a[key], b[key], f"{where}.{key}", rtol)
        return
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype.kind in "biu":
        assert np.array_equal(x, y), (where, a, b)
        return
    x, y = x.astype(np.float64), y.astype(np.float64)
    special = ~np.isfinite(y)
    assert np.array_equal(x[special], y[special], equal_nan=True), (where, a, b)
    x, y = x[~special], y[~special]
    bound = rtol * np.abs(y).max(initial=0.0) + 1e-7
    worst = np.abs(x - y).max(initial=0.0)
    assert worst <= bound, (where, worst, bound)

"""The numpy meaning of every op: what passes and emission are held against.

Values: a tensor is an array, a tree a dict of arrays by leaf path, a vec an f32 array with one
entry per leaf, a seed two ui32 words. Math is done in the dtypes the ops name; `wide` computes in
f64 what they do in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nitro_dialect.ir import Group, Literal, Module, Program, Region, Value
from nitro_dialect.op import Op
from nitro_dialect.types import SeedType, TensorType, TreeType, Type, VecType

Array = np.ndarray[Any, Any]
Tree = dict[str, Array]
Imported = Callable[..., Any]

DTYPES: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
    "ui64": np.uint64, "ui32": np.uint32, "ui16": np.uint16, "ui8": np.uint8, "i1": np.bool_,
    "c64": np.complex64, "c128": np.complex128,
}  # fmt: skip

SCALAR: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "sign": np.sign, "floor": np.floor,
    "not": np.logical_not, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": np.divide, "pow": np.power, "min": np.minimum, "max": np.maximum,
    "and": np.logical_and, "or": np.logical_or, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "is_finite": np.isfinite, "select": np.where,
}  # fmt: skip

REDUCE: dict[str, Callable[[Array], Any]] = {
    "sum": lambda x: np.sum(x, dtype=x.dtype),
    "max": lambda x: np.max(x, initial=-np.inf),
    "min": lambda x: np.min(x, initial=np.inf),
}


@dataclass(frozen=True)
class Outcome:
    """What a program leaves behind: its assigned inputs, its report, its outputs, by name."""

    assigned: dict[str, Any]
    report: dict[str, Any]
    outputs: dict[str, Any]


def run_program(
    module: Module,
    name: str,
    inputs: Mapping[str, Any],
    functions: Mapping[str, Imported],
    *,
    wide: bool = False,
) -> Outcome:
    """Runs program `name` on `inputs`, one per input of the program, by its name.

    `functions` are the imported ones by name: each takes the values of its parameters in order and
    returns those of its results, one alone or a tuple.
    """
    program = module.programs[name]
    machine = _Machine(module, functions, wide)
    for item in program.inputs:
        machine.define(item.value, inputs[item.value.name])
    with np.errstate(all="ignore"):
        return machine.program(program)


def first_slots(
    module: Module, name: str, params: Tree, host: Mapping[str, Tree] | None = None
) -> dict[str, Any]:
    """Slots of program `name` before the first step; `host` gives those that start on the host."""
    made: dict[str, Any] = {}
    for item in module.programs[name].inputs:
        if item.role != "slot":
            continue
        kind = item.value.type
        if not isinstance(kind, TreeType):
            made[item.value.name] = np.asarray(item.initial, DTYPES[kind.dtype])  # type: ignore[union-attr]
        elif item.initial == "host":
            made[item.value.name] = (host or {})[item.value.name]
        else:
            made[item.value.name] = {
                leaf.path: _first(item.initial, params[leaf.path], DTYPES[kind.dtype or leaf.dtype])
                for leaf in module.groups[kind.group].leaves
            }
    return made


def _first(initial: Any, parameter: Array, dtype: Any) -> Array:
    if initial == "param":
        return parameter.astype(dtype)
    return np.full(parameter.shape, 0 if initial == "zeros" else initial, dtype)


class _Machine:
    def __init__(self, module: Module, functions: Mapping[str, Imported], wide: bool) -> None:
        self.module = module
        self.functions = functions
        self.real: Any = np.float64 if wide else np.float32
        self.values: dict[Value, Any] = {}
        self.leaf: tuple[int, ...] = ()
        self.marked: list[Any] = []

    # ---- values

    def dtype(self, name: str) -> Any:
        return self.real if name == "f32" else DTYPES[name]

    def define(self, value: Value, given: Any) -> None:
        self.values[value] = self.as_type(given, value.type)

    def as_type(self, given: Any, kind: Type) -> Any:
        if isinstance(kind, TreeType):
            return self.as_tree(given, kind)
        if isinstance(kind, SeedType):
            return np.asarray(given, np.uint32).reshape(2)
        if isinstance(kind, VecType):
            return np.asarray(given, self.real).reshape(len(self.leaves(kind)))
        assert isinstance(kind, TensorType)
        made = np.asarray(given).astype(self.dtype(kind.dtype))
        assert made.shape == kind.shape, (made.shape, kind)
        return made

    def as_tree(self, given: Mapping[str, Any], kind: TreeType) -> Tree:
        rows = self.leaves(kind)
        assert list(given) == [leaf.path for leaf in rows], (list(given), kind)
        return {
            leaf.path: np.broadcast_to(
                np.asarray(given[leaf.path]).astype(self.dtype(kind.dtype or leaf.dtype)),
                leaf.shape,
            )
            for leaf in rows
        }

    def group(self, kind: Type) -> Group:
        assert isinstance(kind, TreeType | VecType)
        return self.module.groups[kind.group]

    def leaves(self, kind: Type) -> tuple[Any, ...]:
        return self.group(kind).leaves

    def read(self, operand: Value | Literal, like: Any = None) -> Any:
        if isinstance(operand, Value):
            return self.values[operand]
        return np.asarray(operand.value, like or self.real)

    def scalars(self, operands: Sequence[Value | Literal]) -> list[Any]:
        """Operands of one scalar op; a literal takes the dtype of the last value beside it."""
        known = [self.values[o].dtype for o in operands if isinstance(o, Value)]
        return [self.read(o, known[-1]) for o in operands]

    # ---- running

    def program(self, program: Program) -> Outcome:
        assigned: dict[str, Any] = {}
        report: dict[str, Any] = {}
        outputs: dict[str, Any] = {}
        for op in program.body.ops:
            if op.mnemonic == "assign":
                for target, value in zip(op.operands["targets"], op.operands["from"], strict=True):
                    assert isinstance(target, Value)
                    assigned[target.name] = self.as_type(self.read(value), target.type)
            elif op.mnemonic == "report":
                report = {key: self.read(value) for key, value in op.entries.items()}
            elif op.mnemonic == "output":
                outputs = {key: self.read(value) for key, value in op.entries.items()}
            else:
                self.op(op)
        return Outcome(assigned, report, outputs)

    def region(self, region: Region, given: Sequence[Any]) -> list[Value | Literal]:
        """Runs a region; what it yields, to be read."""
        for param, value in zip(region.params, given, strict=True):
            self.values[param] = value
        for op in region.ops[:-1]:
            self.op(op)
        return region.ops[-1].operands.get("values", [])

    def op(self, op: Op) -> None:
        if op.mnemonic in SCALAR:
            flat = [v for row in op.operands.values() for v in row]
            made: Any = [SCALAR[op.mnemonic](*self.scalars(flat))]
        else:
            made = getattr(self, f"op_{op.mnemonic.replace('.', '_')}")(op)
        for result, value in zip(op.results, made, strict=True):
            # Inside a map a scalar stands for all elements of a leaf.
            self.values[result] = (
                np.asarray(value).astype(self.dtype(result.type.dtype))
                if op.mnemonic in (*SCALAR, "convert") and isinstance(result.type, TensorType)
                else self.as_type(value, result.type)
            )

    # ---- scalars

    def op_convert(self, op: Op) -> list[Any]:
        return [self.read(op.operands["x"][0])]

    def op_words(self, op: Op) -> list[Any]:
        whole = int(self.read(op.operands["x"][0])) % 2**64
        return [np.asarray([whole >> 32, whole % 2**32], np.uint32)]

    def op_tensor_at(self, op: Op) -> list[Any]:
        return [self.read(op.operands["x"][0])[op.attrs["index"]]]

    # ---- imported functions

    def op_call(self, op: Op) -> list[Any]:
        assert op.symbol is not None
        return self.call(op.symbol, op)

    def op_grad(self, op: Op) -> list[Any]:
        imported = self.module.functions.values()
        wanted = (op.symbol, op.attrs["wrt"])
        return self.call(next(f.name for f in imported if (f.of, f.wrt) == wanted), op)

    def call(self, name: str, op: Op) -> list[Any]:
        params = self.module.functions[name].params
        args = [
            self.as_type(self.read(a, np.int64), p.type)
            for a, p in zip(op.operands.get("args", []), params, strict=True)
        ]
        out = self.functions[name](*args)
        return list(out) if isinstance(out, tuple) else [out]

    def op_accum(self, op: Op) -> list[Any]:
        body = op.body
        assert body is not None
        over = [self.read(v) for v in op.operands.get("over", [])]
        carried = [self.read(v) for v in op.operands.get("carry", [])]
        count = len(op.results) - len(carried)
        totals: list[Any] = []
        for index in range(op.attrs["steps"]):  # type: ignore[arg-type]
            given = [np.asarray(index, np.int32), *(x[index] for x in over), *carried]
            out = [self.read(v) for v in self.region(body, given)]
            entries = [
                self.as_type(v, r.type) for v, r in zip(out[:count], op.results, strict=False)
            ]
            hows = op.attrs["how"]
            assert isinstance(hows, tuple)
            totals = entries if not totals else list(map(_combined, hows, totals, entries))
            carried = [
                self.as_type(v, r.type)
                for v, r in zip(out[count:], op.results[count:], strict=True)
            ]
        return [*totals, *carried]

    def op_commit(self, op: Op) -> list[Any]:
        assert op.body is not None
        new = [self.read(v) for v in self.region(op.body, [])]
        kept = [self.read(v) for v in op.operands.get("keep", [])]
        return new if bool(self.read(op.operands["ok"][0])) else kept

    # ---- groups

    def elements(self, op: Op, path: str) -> list[Any]:
        return [self.read(t)[path].astype(self.real) for t in op.operands.get("trees", [])]

    def op_map(self, op: Op) -> list[Any]:
        assert op.body is not None
        out: list[Tree] = [{} for _ in op.results]
        first = op.operands["trees"][0]
        for leaf in self.leaves(op.results[0].type):
            if op.attrs["where"] and op.attrs["where"] not in leaf.flags:
                made = [self.read(first)[leaf.path]] * len(out)
            else:
                made = [self.read(v) for v in self.region(op.body, self.elements(op, leaf.path))]
            for tree, value in zip(out, made, strict=True):
                tree[leaf.path] = value
        return out

    def per_leaf(self, op: Op) -> list[Any]:
        assert op.body is not None
        kind = op.operands["trees"][0].type  # type: ignore[union-attr]
        made: list[Any] = []
        for leaf in self.leaves(kind):
            (value,) = self.region(op.body, self.elements(op, leaf.path))
            flat = np.broadcast_to(self.read(value), leaf.shape).reshape(-1)
            made.append(REDUCE[str(op.attrs["how"])](flat))
        return made

    def op_fold_leaf(self, op: Op) -> list[Any]:
        return [self.per_leaf(op)]

    def op_fold(self, op: Op) -> list[Any]:
        return [REDUCE[str(op.attrs["how"])](np.asarray(self.per_leaf(op), self.real))]

    def op_leaf_map(self, op: Op) -> list[Any]:
        assert op.body is not None
        out: list[Any] = [{} if isinstance(r.type, TreeType) else [] for r in op.results]
        for leaf in self.leaves(op.operands["trees"][0].type):  # type: ignore[union-attr]
            self.leaf = leaf.shape
            made = [self.read(v) for v in self.region(op.body, self.elements(op, leaf.path))]
            for column, value in zip(out, made, strict=True):
                if isinstance(column, dict):
                    column[leaf.path] = value
                else:
                    column.append(value)
        return out

    def op_leaf_fold(self, op: Op) -> list[Any]:
        whole = np.broadcast_to(self.read(op.operands["x"][0]), self.leaf)
        return [REDUCE[str(op.attrs["how"])](whole)]

    def op_leaf_size(self, op: Op) -> list[Any]:
        return [np.prod(self.leaf, dtype=int)]

    def op_mark(self, op: Op) -> list[Any]:
        self.marked.append(np.asarray(self.read(op.operands["x"][0]), self.real))
        return []

    def op_vec_sum(self, op: Op) -> list[Any]:
        return [REDUCE["sum"](self.read(op.operands["x"][0]))]

    def op_vec_fold(self, op: Op) -> list[Any]:
        return [REDUCE[str(op.attrs["how"])](self.read(op.operands["x"][0]))]

    def op_vec_count(self, op: Op) -> list[Any]:
        return [sum(int(word) for word in self.read(op.operands["x"][0]))]

    def op_vec_first_nonzero(self, op: Op) -> list[Any]:
        some = np.flatnonzero(self.read(op.operands["x"][0]) != 0)
        return [some[0] if len(some) else -1]

    def op_vec_at(self, op: Op) -> list[Any]:
        words, index = self.read(op.operands["x"][0]), int(self.read(op.operands["index"][0]))
        return [words[index] if 0 <= index < len(words) else 0]

    def op_norm(self, op: Op) -> list[Any]:
        return [np.sqrt(REDUCE["sum"](self.read(op.operands["x"][0])))]

    def op_vec_first_nonfinite(self, op: Op) -> list[Any]:
        bad = np.flatnonzero(~np.isfinite(self.read(op.operands["x"][0])))
        return [bad[0] if len(bad) else -1]

    def each(self, function: Callable[..., Any], *trees: Value | Literal) -> list[Tree]:
        """`function` on every leaf of `trees`, in the real dtype."""
        given = [self.read(t) for t in trees]
        return [{p: function(*(t[p].astype(self.real) for t in given)) for p in given[0]}]

    def op_tree_div(self, op: Op) -> list[Any]:
        by = self.read(op.operands["by"][0])
        return self.each(lambda x: x / by, op.operands["x"][0])

    def op_tree_cast(self, op: Op) -> list[Any]:
        return self.each(lambda x: x, op.operands["x"][0])

    # ---- the step

    def op_clip_by_norm(self, op: Op) -> list[Any]:
        norm, limit = self.read(op.operands["norm"][0]), self.real(op.attrs["max"])
        scale = limit / norm if norm > limit else self.real(1)
        return self.each(lambda x: x * scale, op.operands["x"][0])

    def op_guard_all(self, op: Op) -> list[Any]:
        tests: dict[str, Callable[[Any], Any]] = {
            "finite": np.isfinite, "positive": lambda x: x > 0,
            "zero": lambda x: x == 0, "unset": np.logical_not,
        }  # fmt: skip
        return [all(tests[k](self.read(v)) for k, row in op.operands.items() for v in row)]

    def op_opt_rule(self, op: Op) -> list[Any]:
        out: list[Tree] = [{} for _ in op.results]
        for path, made in self.rule(op):
            for tree, value in zip(out, made, strict=True):
                tree[path] = self.read(value)
        return out

    def op_opt_marks(self, op: Op) -> list[Any]:
        words: list[list[Any]] = [[] for _ in op.results]
        for _ in self.rule(op):
            for column, word in zip(words, self.marked, strict=True):
                column.append(word)
        return words

    def rule(self, op: Op) -> Iterator[tuple[str, list[Value | Literal]]]:
        """The rule's body on each leaf in turn: its path, what is yielded; its marks aside."""
        assert op.symbol is not None
        rule = self.module.rules[op.symbol]
        fields = [self.read(v) for v in op.operands.get("fields", [])]
        for leaf in self.leaves(op.operands["trees"][0].type):  # type: ignore[union-attr]
            self.leaf, self.marked = leaf.shape, []
            yield leaf.path, self.region(rule.body, [*self.elements(op, leaf.path), *fields])

    def op_decay(self, op: Op) -> list[Any]:
        u, p = self.read(op.operands["u"][0]), self.read(op.operands["p"][0])
        rate = self.read(op.operands["rate"][0])
        return [
            {
                leaf.path: u[leaf.path] + rate * p[leaf.path].astype(self.real)
                if op.attrs["where"] in leaf.flags
                else u[leaf.path]
                for leaf in self.leaves(op.results[0].type)
            }
        ]

    def op_opt_apply(self, op: Op) -> list[Any]:
        rate = self.read(op.operands["rate"][0])
        return self.each(lambda p, u: p - rate * u, op.operands["p"][0], op.operands["u"][0])


COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def _combined(how: str, a: Any, b: Any) -> Any:
    if isinstance(a, dict):
        return {path: COMBINE[how](a[path], b[path]) for path in a}
    return COMBINE[how](a, b)


__all__ = ["DTYPES", "Outcome", "first_slots", "run_program"]

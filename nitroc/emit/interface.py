"""Arguments and results of `main`: what the manifest says of each, and the IR's values behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from nitro_dialect.ir import STATEFUL, Input, Program, Value
from nitro_dialect.op import Op
from nitro_dialect.types import TensorType, TreeType, is_scalar
from nitro_runtime.manifest import ArgEntry, ReportWord, ResultEntry, ScalarEntry
from nitroc.emit import mlir
from nitroc.emit.mlir import Tensor
from nitroc.emit.scalar import split_words
from nitroc.emit.scope import Scope
from nitroc.errors import BuildError

SINGLE = ("seed", "steps", "split", "index", "mask")
"""Roles a program has one input of: the argument is called by the role alone."""


@dataclass(frozen=True)
class Interface:
    """`capacity`: the length of the leading axis of a train program's scalars, batch and report.

    `owners`: the input each argument belongs to; None for the packed scalars and an added `steps`.
    """

    args: tuple[ArgEntry, ...]
    owners: tuple[Input | None, ...]
    scalars: tuple[ScalarEntry, ...]
    capacity: tuple[int, ...]

    def of(self, item: Input) -> list[ArgEntry]:
        """The arguments that carry one input."""
        return [a for a, owner in zip(self.args, self.owners, strict=True) if owner is item]


def is_train(program: Program) -> bool:
    """Whether the program moves state: those have a leading axis of steps."""
    return any(op.mnemonic == "assign" for op in program.body.ops)


def interface(scope: Scope, program: Program) -> Interface:
    """Arguments in the order of the inputs; `scalars` where the first is, `steps` last.

    A program with a selection mask runs one step, whatever its capacity: it has no `steps`.
    """
    capacity = (1,) if is_train(program) else ()
    scalars = _scalars(scope, program)
    names = {i.value.name for i in program.inputs}
    args: list[ArgEntry] = []
    owners: list[Input | None] = []
    for item in program.inputs:
        if item.role != "scalars":
            leading = capacity if item.role == "batch" else ()
            entries = _entries(scope, item, leading, names)
            args += entries
            owners += [item] * len(entries)
        elif not any(a.role == "scalars" for a in args):
            shape = (*capacity, len(scalars))
            args.append(ArgEntry("scalars", "scalars", "scalars", None, "f32", shape))
            owners.append(None)
    if capacity and not any(a.role in ("steps", "mask") for a in args):
        args.append(ArgEntry("steps", "steps", "steps", None, "i32", ()))
        owners.append(None)
    return Interface(tuple(args), tuple(owners), scalars, capacity)


def _entries(
    scope: Scope, item: Input, leading: tuple[int, ...], names: set[str]
) -> list[ArgEntry]:
    value = item.value
    if isinstance(value.type, TreeType):
        kinds = scope.flat_types(value.type)
        prefix = "outputs." if item.role == "outputs" else f"{item.role}.{value.name}:"
        return [
            ArgEntry(f"{prefix}{b.name}", item.role, value.name, b.name, dtype, shape)
            for b, (dtype, shape) in zip(scope.layout(value.type).buffers, kinds, strict=True)
        ]
    ((dtype, shape),) = scope.flat_types(value.type)
    name = item.role if item.role in SINGLE else f"{item.role}.{_own_name(item, names)}"
    return [ArgEntry(name, item.role, value.name, None, dtype, (*leading, *shape))]


def _own_name(item: Input, names: set[str]) -> str:
    """What the input is called outside the program, where a Device leaf of its name took it."""
    own = item.value.name.removesuffix(f".{item.role}")
    return own if own in names else item.value.name


def _scalars(scope: Scope, program: Program) -> tuple[ScalarEntry, ...]:
    devices = {d.name for d in scope.module.devices}
    made: list[ScalarEntry] = []
    for item in program.inputs:
        if item.role != "scalars":
            continue
        kind = item.value.type
        if not (isinstance(kind, TensorType) and is_scalar(kind, "f32", "i32", "i1")):
            raise BuildError(
                24,
                f"scalar %{item.value.name} : {kind} does not fit one word of `scalars`",
                where=f"@{program.name}",
                help="use f32, i32 or i1; an array Device value is an input of role device",
            )
        name = item.value.name
        owner = "device" if name in devices else "optimizer"
        if owner == "optimizer" and name.removeprefix("opt.") not in devices:
            name = name.removeprefix("opt.")  # it gave way to a batch field, inside only
        made.append(ScalarEntry(name, kind.dtype, owner, len(made)))
    return tuple(made)


# Into the program


def bind_arguments(scope: Scope, program: Program, face: Interface, tensors: list[Tensor]) -> None:
    """Gives every input of the program its value from the arguments of `main`."""
    by_input: dict[Value, list[Tensor]] = {}
    for entry, owner, tensor in zip(face.args, face.owners, tensors, strict=True):
        if entry.role == "scalars":
            scope.scalars = partial(_bind_scalars, program, face.scalars, tensor)
            scope.unpack_scalars()
        elif owner is not None:
            step = entry.role == "batch" and face.capacity
            by_input.setdefault(owner.value, []).append(mlir.entry(tensor, 0) if step else tensor)
    for item in program.inputs:
        if item.role != "scalars":
            scope.bind([item.value], by_input.get(item.value, []))


def _bind_scalars(
    program: Program, entries: tuple[ScalarEntry, ...], packed: Tensor, scope: Scope
) -> None:
    """i32 and i1 leave the float domain at once: their words may look like NaN."""
    flat = mlir.reshape(packed, (len(entries),))
    bits = mlir.bitcast(flat, "i32") if any(e.dtype != "f32" for e in entries) else flat
    values = [i.value for i in program.inputs if i.role == "scalars"]
    for value, entry in zip(values, entries, strict=True):
        word = mlir.entry(flat if entry.dtype == "f32" else bits, entry.index)
        if entry.dtype == "i1":
            word = mlir.compare("ne", word, mlir.constant(0, "i32"))
        scope.set_tensor(value, word)


# Out of the program


@dataclass
class Results:
    """Results of `main` as they are made."""

    entries: list[ResultEntry]
    tensors: list[Tensor]
    report: tuple[ReportWord, ...] = ()

    def add(self, name: str, role: str, value: str, buffer: str | None, x: Tensor) -> None:
        dtype, shape = mlir.dtype_of(x), mlir.shape_of(x)
        self.entries.append(ResultEntry(name, role, value, buffer, dtype, shape))
        self.tensors.append(x)


def collect(scope: Scope, program: Program, face: Interface, ends: list[Op]) -> Results:
    """Stateful buffers in argument order, then the report, then named outputs."""
    results = Results([], [])
    by_name = {op.mnemonic: op for op in ends}
    _add_state(scope, results, program, face, by_name.get("assign"))
    if "report" in by_name:
        _add_report(scope, results, by_name["report"].entries, face.capacity)
    for name, value in (by_name["output"].entries if "output" in by_name else {}).items():
        assert isinstance(value, Value), name
        _add_output(scope, results, name, value)
    return results


def _add_state(
    scope: Scope, results: Results, program: Program, face: Interface, assign: Op | None
) -> None:
    if assign is None:
        return
    pairs = zip(assign.operands["targets"], assign.operands["from"], strict=True)
    moved = {t: v for t, v in pairs if isinstance(t, Value)}
    for item in program.inputs:
        if item.role not in STATEFUL:
            continue
        source = moved.get(item.value, item.value)
        entries = face.of(item)
        tensors = scope.flat(source) if isinstance(source, Value) else [
            scope.operand(source, entries[0].dtype)
        ]  # fmt: skip
        for entry, x in zip(entries, tensors, strict=True):
            results.add(entry.name, item.role, entry.value, entry.buffer, x)


def _add_output(scope: Scope, results: Results, name: str, value: Value) -> None:
    role = name if name in STATEFUL else "outputs"
    if not isinstance(value.type, TreeType):
        results.add(name, role, name, None, scope.tensor(value))
        return
    layout = scope.layout(value.type)
    mark = "." if layout.group.role == "outputs" else ":"
    for buffer, x in zip(layout.buffers, scope.buffers(value), strict=True):
        results.add(f"{name}{mark}{buffer.name}", role, name, buffer.name, x)


def _add_report(
    scope: Scope, results: Results, entries: Mapping[str, object], leading: tuple[int, ...]
) -> None:
    words: list[Tensor] = []
    rows: list[ReportWord] = []
    for name, value in entries.items():
        assert isinstance(value, Value), name
        x = scope.tensor(value)
        made = _words(x)
        rows.append(ReportWord(name, mlir.dtype_of(x), len(words), len(made)))
        words += made
    packed = mlir.concatenate(words) if words else mlir.constant(0, "ui32", (0,))
    results.report = tuple(rows)
    results.add("report", "report", "report", None, mlir.reshape(packed, (*leading, len(words))))


def _words(x: Tensor) -> list[Tensor]:
    dtype = mlir.dtype_of(x)
    if dtype == "i64":
        return split_words(x)
    word = mlir.convert(x, "ui32") if dtype == "i1" else mlir.bitcast(x, "ui32")
    return [mlir.reshape(word, (1,))]

"""An experiment, set up, to programs: trace, import, the passes, emission.

Setup -> functions -> module `import` -> pipeline -> emitted programs
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nitro_dialect.ir import Const, Device, Module
from nitro_dialect.types import TensorType
from nitro_runtime.data.schema import Schema
from nitro_runtime.trees import TreeSpec
from nitroc import programs
from nitroc.emit.compat import resolve_compat
from nitroc.emit.layout import GroupLayout, plan
from nitroc.emit.program import EmittedProgram, emit_program, stripped
from nitroc.emit.scope import Commits
from nitroc.frontend.device import DeviceLeaf
from nitroc.frontend.importer import ImportedFunction
from nitroc.frontend.setup import Setup
from nitroc.frontend.trace import Tracer
from nitroc.passes import pipeline

OnStage = Callable[[int, str, Module], None]


@dataclass(frozen=True)
class Target:
    """What to lower for. `version`: of StableHLO; `roundtrip`: re-read each stage's text."""

    platform: str = "cpu"
    version: str = field(default_factory=resolve_compat)
    strip_locations: bool = False
    roundtrip: bool = False
    on_stage: OnStage | None = None


@dataclass(frozen=True)
class Width:
    """A width that a split runs at: rows of a full batch, and every row count its passes meet."""

    width: int
    rows: tuple[int, ...]
    fields: frozenset[str]
    """What the batches of those row counts hold."""


@dataclass(frozen=True)
class Programs:
    """Emitted programs and where they come from.

    source: the module before the first pass. final: after the last. functions: serialised, by
    digest. constants: hoisted arrays by name. roles, dims: by program name.
    """

    source: Module
    final: Module
    functions: Mapping[str, bytes]
    constants: Mapping[str, np.ndarray]
    layouts: Mapping[str, GroupLayout]
    emitted: Mapping[str, EmittedProgram]
    roles: Mapping[str, str]
    dims: Mapping[str, dict[str, int]]


@dataclass(frozen=True)
class Lowered:
    """One experiment's programs, with what only its trace knows.

    outputs: the container of forward's outputs. notes: lines for the binding report.
    """

    programs: Programs
    imported: Mapping[str, ImportedFunction]
    outputs: TreeSpec | None
    notes: tuple[str, ...]


def pipeline_text(setup: Setup) -> str:
    """The passes of the train program that the options and the optimizer ask for."""
    options = {name: option.value for name, option in setup.options.items()}
    optimizer = setup.optimizer
    steps = ["differentiate", f"accumulate{{steps={options['accum']}}}"]
    if options["gradient_clip_norm"] > 0:
        steps.append(f"clip{{max={float(options['gradient_clip_norm'])}}}")
    if options["guard_finite"]:
        steps.append(f"guard{{finite=true,policy={options['on_nonfinite']}}}")
    master = str(bool(options["master_weights"])).lower()
    steps.append(f"optimizer{{rule={optimizer.rule.name},master={master}}}")
    if optimizer.decays:
        steps.append("decay{anchor=zero,where=decay}")
    return ",".join([*steps, "commit", "expand"])


def lower(setup: Setup, target: Target, widths: Sequence[Width], *, mixed: bool = False) -> Lowered:
    """Traces the hooks, builds the module, runs the passes and emits every program.

    widths: what evaluation meets. mixed: forward mixes rows, so a short batch has a forward of its
    own width instead of filler.
    """
    tracer = Tracer(setup, target.platform, target.version)
    module = _module(setup)
    imported: dict[str, ImportedFunction] = {}

    def add(function: ImportedFunction) -> str:
        imported[function.function.name] = function
        module.functions[function.function.name] = function.function
        if function.outputs is not None:
            module.groups[function.outputs.name] = function.outputs
        return function.function.name

    if setup.splits and "loss" in setup.routing:
        for function in tracer.objective():
            add(function)
        programs.train_program(module)
    outputs = None
    for width, rows, fields in _evaluations(widths, mixed):
        forward = tracer.forward(width)
        if forward.function.name not in imported:
            programs.forward_program(module, add(forward))
        outputs = forward.tree_spec
        if rows:
            reduce = tracer.reduce(width, rows, fields)
            if reduce is not None:
                programs.reduce_program(module, add(reduce))
    if setup.traced_init:
        programs.init_program(module, add(tracer.init()))
    rule = setup.optimizer.rule
    module.rules[rule.name] = rule.build()
    module.left = pipeline_text(setup)
    module.name = type(setup.experiment).__name__
    notes = (*(note for f in imported.values() for note in f.notes), *tracer.unread())
    made = emit(
        module,
        {f.function.digest: f.serialized for f in imported.values()},
        _constants(imported.values()),
        layout=setup.options["layout"].value,
        target=target,
    )
    return Lowered(made, imported, outputs, notes)


def emit(
    module: Module,
    functions: Mapping[str, bytes],
    constants: Mapping[str, np.ndarray],
    *,
    layout: str,
    target: Target,
) -> Programs:
    """Runs the passes that are left and emits every program of the module."""
    final = pipeline.run(module, roundtrip=target.roundtrip, on_stage=target.on_stage)
    layouts = {name: plan(group, layout) for name, group in final.groups.items()}
    emitted = {
        name: emit_program(
            final,
            name,
            functions,
            layouts=layouts,
            version=target.version,
            strip_locations=target.strip_locations,
            commits=Commits.LOOP if target.platform == "cpu" else Commits.SELECT,
        )
        for name in final.programs
    }
    if target.strip_locations:
        functions = {d: stripped(artifact, target.version) for d, artifact in functions.items()}
    return Programs(
        module,
        final,
        functions,
        constants,
        layouts,
        emitted,
        {name: name.partition(".")[0] for name in emitted},
        {name: _dims(name, final) for name in emitted},
    )


def evaluation_widths(setup: Setup) -> list[Width]:
    """The widths of the splits and the row counts their passes meet.

    A split without the fields of the loss has no row counts: its forward alone is run.
    """
    merged: dict[int, Width] = {}
    for schema in setup.schema.values():
        here = merged.setdefault(schema.width, Width(schema.width, (), frozenset()))
        if not _reducible(setup, schema):
            continue
        rows = {*here.rows, schema.width, *([schema.last] if schema.last else [])}
        fields = here.fields | set(schema.fields)
        merged[schema.width] = Width(schema.width, tuple(sorted(rows, reverse=True)), fields)
    return list(merged.values())


def _reducible(setup: Setup, schema: Schema) -> bool:
    """Whether the split has what the loss, or the metrics on the device, take from its batches."""
    hooks = ["loss", *(["metrics"] if setup.residency.get("metrics") == "device" else [])]
    routes = [setup.routing[hook] for hook in hooks if hook in setup.routing]
    return any(set(r.fields) - set(setup.made) <= set(schema.fields) for r in routes)


def _evaluations(
    widths: Sequence[Width], mixed: bool
) -> Iterator[tuple[int, int | None, frozenset[str]]]:
    """(width, rows, fields) of every forward and reduce; rows None for a forward alone."""
    for item in widths:
        if not item.rows:
            yield item.width, None, item.fields
        for rows in item.rows:
            yield (rows if mixed else item.width), rows, item.fields


def _module(setup: Setup) -> Module:
    return Module(
        type(setup.experiment).__name__,
        consts=[Const(name, _spelled(value)) for name, value in setup.graphconst.items()],
        devices=[_device(leaf) for leaf in setup.device.values()],
        groups={group.name: group for group in (setup.groups.params, setup.groups.state)},
    )


def _spelled(value: object) -> str:
    if isinstance(value, bool | int | float | str) or value is None:
        return json.dumps(value)
    return json.dumps(repr(value))


def _device(leaf: DeviceLeaf) -> Device:
    weak = leaf.scalar and leaf.dtype != "i1"
    # the shortest number that rounds to the value: 0.05, not the f32's 0.05000000074505806
    short = float(str(leaf.value)) if leaf.dtype == "f32" and leaf.scalar else None
    value = short if short is not None else leaf.value.item() if leaf.scalar else None
    return Device(leaf.name, TensorType(leaf.dtype, tuple(leaf.shape), weak), value)


def _constants(functions: Iterable[ImportedFunction]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for function in functions:
        found |= function.constants
    return found


def _dims(name: str, module: Module) -> dict[str, int]:
    role, *sizes = name.split(".")
    if role == "train_step":
        kinds = [i.value.type for i in module.programs[name].inputs if i.role == "batch"]
        accum, width = next((k.shape[:2] for k in kinds if isinstance(k, TensorType)), (1, 0))
        return {"width": width, "accum": accum, "capacity": 1}
    named = {"b": "width", "r": "rows"}
    return {named[size[0]]: int(size[1:]) for size in sizes}

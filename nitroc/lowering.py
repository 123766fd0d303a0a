"""An experiment, set up, to programs: trace, import, the passes, emission.

Setup -> functions -> module `import` -> pipeline -> emitted programs
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nitro_dialect.ir import Const, Device, Mark, Module
from nitro_dialect.types import TensorType
from nitro_runtime.data.schema import Schema
from nitro_runtime.manifest import GuardsEntry
from nitro_runtime.trees import TreeSpec
from nitroc import placed, programs
from nitroc.emit.compat import resolve_compat
from nitroc.emit.layout import GroupLayout, plan
from nitroc.emit.program import EmittedProgram, emit_program, stripped
from nitroc.emit.scope import Commits
from nitroc.frontend.device import DeviceLeaf
from nitroc.frontend.importer import ImportedFunction
from nitroc.frontend.mark_table import refuse_clash
from nitroc.frontend.setup import Setup
from nitroc.frontend.trace import Tracer
from nitroc.passes import pipeline
from nitroc.rules import Rule

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
    """A width that splits run at: rows of a full batch, and every row count their passes meet.

    `fields` are what the batches of those row counts hold; `unreduced` are row counts of splits
    that lack the fields of the loss: forward alone is run.
    """

    width: int
    rows: tuple[int, ...]
    fields: frozenset[str]
    unreduced: tuple[int, ...] = ()


@dataclass(frozen=True)
class Programs:
    """Emitted programs and where they come from.

    source: the module before the first pass. final: after the last. functions: serialised, by
    digest. constants: hoisted arrays by name. roles, dims: by program name. guards: the marks, and
    which programs they are in.
    """

    source: Module
    final: Module
    functions: Mapping[str, bytes]
    constants: Mapping[str, np.ndarray]
    layouts: Mapping[str, GroupLayout]
    emitted: Mapping[str, EmittedProgram]
    roles: Mapping[str, str]
    dims: Mapping[str, dict[str, int]]
    guards: GuardsEntry


@dataclass(frozen=True)
class Lowered:
    """One experiment's programs, with what only its trace knows.

    outputs: the container of forward's outputs. notes: lines for the binding report.
    """

    programs: Programs
    imported: Mapping[str, ImportedFunction]
    outputs: TreeSpec | None
    notes: tuple[str, ...]


def pipeline_text(setup: Setup, module: Module) -> str:
    """The passes of the train program that the options, the optimizer and the marks ask for."""
    options = {name: option.value for name, option in setup.options.items()}
    optimizer = setup.optimizer
    steps = ["diagnose"] if placed.samples(module) else []
    steps += ["differentiate", f"accumulate{{steps={options['accum']}}}"]
    if options["gradient_clip_norm"] > 0:
        steps.append(f"clip{{max={float(options['gradient_clip_norm'])}}}")
    finite = bool(options["guard_finite"])
    if finite or placed.counts(module):
        steps.append(f"guard{{finite={str(finite).lower()},policy={options['on_nonfinite']}}}")
    master = str(bool(options["master_weights"])).lower()
    steps.append(f"optimizer{{rule={optimizer.rule.name},master={master}}}")
    if optimizer.decays:
        steps.append("decay{anchor=zero,where=decay}")
    return ",".join([*steps, "commit", "expand"])


def lower(setup: Setup, target: Target, widths: Sequence[Width], *, mixed: bool = False) -> Lowered:
    """Traces the hooks, builds the module, runs the passes and emits every program.

    widths: what evaluation meets. mixed: forward mixes rows. Then, and where forward holds a mark,
    a short batch has a forward of its own width instead of filler.
    """
    tracer = Tracer(setup, target.platform, target.version)
    functions = _Functions(_module(setup))
    module, imported = functions.module, functions.imported
    if setup.splits and "loss" in setup.routing:
        for function in (*tracer.objective(), *(tracer.sampled() or ())):
            functions.add(function)
        programs.train_program(module)
    for width in widths:
        _evaluation(tracer, functions, width, mixed)
    if setup.traced_init:
        programs.init_program(module, functions.add(tracer.init()))
    rule = setup.optimizer.rule
    module.rules[rule.name] = rule.build()
    module.marks = _marks(tracer, rule)
    module.left = pipeline_text(setup, module)
    notes = (*(note for f in imported.values() for note in f.notes), *tracer.unread())
    made = emit(
        module,
        {f.function.digest: f.serialized for f in imported.values()},
        _constants(imported.values()),
        layout=setup.options["layout"].value,
        target=target,
    )
    outputs = [f.tree_spec for name, f in imported.items() if name.startswith("forward.")]
    return Lowered(made, imported, outputs[-1] if outputs else None, notes)


@dataclass(frozen=True)
class _Functions:
    """A module with the functions imported into it so far."""

    module: Module
    imported: dict[str, ImportedFunction] = field(default_factory=dict[str, ImportedFunction])

    def add(self, function: ImportedFunction) -> str:
        name = function.function.name
        self.imported[name] = function
        self.module.functions[name] = function.function
        if function.outputs is not None:
            self.module.groups[function.outputs.name] = function.outputs
        return name


def _evaluation(tracer: Tracer, functions: _Functions, item: Width, mixed: bool) -> None:
    """Adds the forward of a width, those of short batches it can't be filled for, and reduces."""
    alone = mixed or placed.holds_marks(tracer.forward(item.width).function)
    for rows in dict.fromkeys((item.width, *item.rows, *item.unreduced)):
        width = rows if alone else item.width
        forward = tracer.forward(width)
        if forward.function.name not in functions.imported:
            programs.forward_program(functions.module, functions.add(forward))
        reduce = tracer.reduce(width, rows, item.fields) if rows in item.rows else None
        if reduce is not None:
            programs.reduce_program(functions.module, functions.add(reduce))


def _marks(tracer: Tracer, rule: Rule) -> dict[str, Mark]:
    """All marks: those of traced hooks, the optimizer's, and those that never run.

    E-CONTRACT-024 where a rule gives another meaning to a name that a hook has.
    """
    for mark in rule.marks:
        refuse_clash(mark, tracer.marks.values())
    of_rule = map(placed.of_group, rule.marks)
    found = (*tracer.marks.values(), *of_rule, *tracer.dropped.values())
    return {mark.key: mark for mark in found}


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
        placed.guards_entry(final, emitted),
    )


def evaluation_widths(setup: Setup) -> list[Width]:
    """The widths of the splits and the row counts their passes meet."""
    merged: dict[int, Width] = {}
    for schema in setup.schema.values():
        here = merged.setdefault(schema.width, Width(schema.width, (), frozenset()))
        rows = {schema.width, *([schema.last] if schema.last else [])}
        merged[schema.width] = (
            replace(here, rows=_union(here.rows, rows), fields=here.fields | set(schema.fields))
            if _reducible(setup, schema)
            else replace(here, unreduced=_union(here.unreduced, rows))
        )
    return list(merged.values())


def _union(rows: Iterable[int], more: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*rows, *more}, reverse=True))


def _reducible(setup: Setup, schema: Schema) -> bool:
    """Whether the split has what the loss, or the metrics on the device, take from its batches."""
    hooks = ["loss", *(["metrics"] if setup.residency.get("metrics") == "device" else [])]
    routes = [setup.routing[hook] for hook in hooks if hook in setup.routing]
    return any(set(r.fields) - set(setup.made) <= set(schema.fields) for r in routes)


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
    if role in ("train_step", "train_step_sampled"):
        kinds = [i.value.type for i in module.programs[name].inputs if i.role == "batch"]
        accum, width = next((k.shape[:2] for k in kinds if isinstance(k, TensorType)), (1, 0))
        return {"width": width, "accum": accum, "capacity": 1}
    named = {"b": "width", "r": "rows"}
    return {named[size[0]]: int(size[1:]) for size in sizes}

"""A setup to the files of a bundle: lower, test row independence, record, assemble."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from nitro_dialect import print_module
from nitro_dialect.ir import Input, Module
from nitro_dialect.types import TreeType
from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.compiling import compiler
from nitro_runtime.errors import NitroError, ScheduleError
from nitro_runtime.machine import Machine
from nitro_runtime.manifest import (
    BatchEntry,
    BatchingEntry,
    BufferEntry,
    ExperimentEntry,
    FieldEntry,
    FunctionEntry,
    GroupEntry,
    GuardsEntry,
    InterfaceEntry,
    LeafEntry,
    Manifest,
    NumericsEntry,
    OptionEntry,
    RequiresEntry,
    RouteEntry,
    RoutingEntry,
    ScheduleEntry,
    SlotEntry,
    TensorEntry,
)
from nitro_runtime.places import Kind, Place, running
from nitro_runtime.recorded import HOST_HOOKS
from nitro_runtime.schedules import resolve
from nitroc import placed, sources
from nitroc.bundle.assemble import Golden, ProgramPart, assemble
from nitroc.bundle.values import constant, recorded
from nitroc.emit.layout import GroupLayout
from nitroc.frontend.binding import report_split
from nitroc.frontend.experiment import config_metadata
from nitroc.frontend.hooks import has_hook, hook_location
from nitroc.frontend.keys import IMPLEMENTATION
from nitroc.frontend.numerics import matmul_precision
from nitroc.frontend.options import OBJECTS
from nitroc.frontend.setup import Setup, probe_split
from nitroc.hosting import ExperimentHost
from nitroc.lowering import Lowered, Programs, Target, evaluation_widths, lower
from nitroc.rows import Probe, probe_rows

LONGEST_TABLE = 100_000
"""Steps. A schedule over more of them is recorded without its values."""

ROWS = {
    True: "rows are independent: a short batch is filled",
    False: "forward mixes rows: a short batch has a forward of its own",
    None: "not tested here: a short batch has a forward of its own",
}
"""What was found of row independence."""

UNRECORDED = ("data", "resume", "checkpoint")
"""Options that a bundle holds no value of: they belong to one run."""


@dataclass(frozen=True)
class Built:
    """A bundle's files, and the lowering they came from."""

    files: Mapping[str, bytes]
    lowered: Lowered


def build_files(
    setup: Setup,
    target: Target,
    *,
    origin: sources.Origin | None = None,
    given: Mapping[str, str] | None = None,
) -> Built:
    """Everything of the bundle of `setup`.

    origin: the experiment's source, for a bundle on disk; without it there is no `host/`. given:
    where a field's value came from, by name, when it is not its default.
    """
    setup = every_split(setup)
    widths = evaluation_widths(setup)
    parts = _Parts(setup, target, origin, dict(given or {}))
    lowered = lower(setup, target, widths)
    probe = _probe(parts, lowered)
    if not probe.independent and not _unfilled(lowered):
        lowered = lower(setup, target, widths, mixed=True)
        probe = replace(probe, goldens={})
    report_programs(setup, target, lowered)
    rows = rows_line(probe.independent, lowered.programs.guards)
    setup.report.add("programs", "rows", rows)
    return Built(_files(parts, lowered, probe), lowered)


def _unfilled(lowered: Lowered) -> bool:
    """Whether marks have given every short batch a forward of its own already."""
    emitted = lowered.programs.emitted.items()
    return all(program.report for name, program in emitted if name.startswith("forward."))


def rows_line(independent: bool | None, guards: GuardsEntry) -> str:
    """What was found of row independence, and what becomes of short batches."""
    if independent and placed.of_forward(guards):
        return "rows are independent: a short batch is filled in predictions, not in a pass"
    return ROWS[independent]


def report_programs(setup: Setup, target: Target, lowered: Lowered) -> None:
    """The lines of the report that only the programs know."""
    for name, emitted in lowered.programs.emitted.items():
        shape = f"{len(emitted.args)} arguments, {len(emitted.results)} results"
        setup.report.add("programs", name, shape, target.platform)
    for line in placed.lines(lowered.programs.guards):
        setup.report.add("guards", *line)
    for note in lowered.notes:
        setup.report.add("notes", "import", note)


def every_split(setup: Setup) -> Setup:
    """The setup with the schema of every split; one that can't be evaluated is a report line."""
    schema = dict(setup.schema)
    for name in setup.splits:
        try:
            schema[name] = probe_split(setup, name)
            if name not in setup.schema:
                report_split(setup, name, schema[name])
        except NitroError as error:
            setup.report.add("data", f"split {name}", f"not evaluated: {error.what}", error.code)
    return replace(setup, schema=schema)


@dataclass(frozen=True)
class _Parts:
    setup: Setup
    target: Target
    origin: sources.Origin | None
    given: Mapping[str, str]


def _probe(parts: _Parts, lowered: Lowered) -> Probe:
    """Tests row independence on a bundle in memory; untested where its platform is not here."""
    if parts.target.platform not in pjrt.platforms() or not parts.setup.splits:
        return Probe()
    # Without its Python: what a bundle on disk carries, and schedules asked over the horizon, is
    # made once, after the hooks have imported what they import.
    bare = replace(parts, origin=None)
    bundle = Bundle.from_files(_files(bare, lowered, Probe()), trusted=True)
    device = pjrt.devices(parts.target.platform)[0]
    host = ExperimentHost(parts.setup)
    machine = Machine(bundle, device, host, compiler(bundle, device, host, _unsaid))
    return probe_rows(parts.setup, bundle, machine, host)


def _unsaid(line: str) -> None:
    """What the cache says of a stored entry is said again when the program is used."""


def _files(parts: _Parts, lowered: Lowered, probe: Probe) -> dict[str, bytes]:
    host = sources.host_files(parts.origin) if parts.origin is not None else {}
    manifest = _manifest(parts, lowered, probe)
    if host:
        python = sources.requirements(host)
        manifest = replace(manifest, requires=replace(manifest.requires, python=python))
    return assemble_programs(
        manifest,
        lowered.programs,
        weights=parts.setup.groups.initial,
        constants=_constants(parts.setup, lowered.programs),
        goldens=probe.goldens,
        host={name.removeprefix("host/"): data for name, data in host.items()},
    )


def assemble_programs(
    manifest: Manifest,
    programs: Programs,
    *,
    weights: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
    goldens: Mapping[str, Golden] | None = None,
    host: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """The files of `manifest`, which need not have what follows from the programs themselves."""
    final = programs.final
    parts = [
        ProgramPart(
            emitted, programs.roles[name], programs.dims[name], golden=(goldens or {}).get(name)
        )
        for name, emitted in programs.emitted.items()
    ]
    ir = {"import": print_module(programs.source, locations=True)}
    ir |= {name: print_module(_only(final, name), locations=True) for name in final.programs}
    return assemble(
        replace(
            manifest,
            groups=tuple(map(_group, programs.layouts.values())),
            slots=_slots(final),
            pipeline=final.done,
            guards=programs.guards,
        ),
        parts,
        functions=programs.functions,
        ir=ir,
        weights=weights,
        constants=constants,
        host=host,
    )


def _only(module: Module, name: str) -> Module:
    return replace(module, programs={name: module.programs[name]})


def _constants(setup: Setup, programs: Programs) -> dict[str, np.ndarray[Any, Any]]:
    found = {f"const/{name}": array for name, array in programs.constants.items()}
    arrays = {leaf.name: leaf.value for leaf in setup.device.values() if not leaf.scalar}
    return found | {f"device/{name}": array for name, array in arrays.items()}


def _manifest(parts: _Parts, lowered: Lowered, probe: Probe) -> Manifest:
    setup, origin, target = parts.setup, parts.origin, parts.target
    cls = type(setup.experiment)
    return Manifest(
        name=cls.__name__,
        experiment=ExperimentEntry(
            cls.__name__, f"host/{origin.file}" if origin is not None else None
        ),
        numerics=NumericsEntry(matmul_precision(), IMPLEMENTATION),
        pipeline=lowered.programs.final.done,
        fields=_fields(setup, parts.given),
        options=_options(setup),
        functions=_functions(setup, lowered),
        batch_schema=_batches(setup),
        routing=_routing(setup),
        schedules=_schedules(setup, tables=origin is not None),
        interface=_interface(setup, lowered),
        batching=BatchingEntry(
            tuple(
                sorted(d["width"] for n, d in lowered.programs.dims.items() if n[:8] == "forward.")
            ),
            probe.independent,
        ),
        requires=RequiresEntry(platforms=(target.platform,)),
        producer=producer(),
    )


def producer() -> dict[str, str]:
    """The versions that decide a bundle's programs."""
    return {name: importlib.metadata.version(name) for name in ("nitroc", "jax", "jaxlib")}


def _fields(setup: Setup, given: Mapping[str, str]) -> dict[str, FieldEntry]:
    kinds = {"device": "Device", "graphconst": "GraphConst", "host": "Host"}
    entries: dict[str, FieldEntry] = {}
    for field in config_metadata(type(setup.experiment)):
        source = given.get(field.name, "default")
        if field.name in setup.derived:
            source = "derive"
        value = recorded(getattr(setup.experiment, field.name))
        entries[field.name] = FieldEntry(
            kinds[field.kind], str(field.type), value, field.doc or "", source
        )
    return entries


def _options(setup: Setup) -> dict[str, OptionEntry]:
    return {
        name: OptionEntry(_option_value(name, option.value), option.source, option.baked)
        for name, option in setup.options.items()
        if name not in UNRECORDED
    }


def _option_value(name: str, value: Any) -> Any:
    """What a bundle keeps of an option: of an object only what it is, to name it in reports."""
    if isinstance(value, os.PathLike):
        return str(cast("os.PathLike[str]", value))
    if name not in OBJECTS or value is None:
        return recorded(value)
    return type(value).__name__


def hook_of(function: str) -> str:
    """The hook that an imported function was traced from, by the function's name."""
    hooks = {"objective": "loss", "forward": "forward", "reduce": "loss", "init": "build_model"}
    return hooks[function.partition(".")[0]]


def _functions(setup: Setup, lowered: Lowered) -> dict[str, FunctionEntry]:
    entries: dict[str, FunctionEntry] = {}
    for name, function in lowered.imported.items():
        hook = hook_of(name)
        route = setup.routing.get(hook)
        where = route.where if route is not None else ""
        entries[name] = FunctionEntry(hook, function.function.digest, where)
    return entries


def _batches(setup: Setup) -> dict[str, BatchEntry]:
    return {
        split: BatchEntry(
            {
                name: TensorEntry(spec.dtype, (schema.width, *spec.shape))
                for name, spec in schema.fields.items()
            },
            schema.width,
            schema.last,
        )
        for split, schema in setup.schema.items()
    }


def _routing(setup: Setup) -> RoutingEntry:
    experiment = setup.experiment
    routes = {
        hook: RouteEntry(tuple(route.fields), tuple(route.absent), route.where)
        for hook, route in setup.routing.items()
    }
    for hook in HOST_HOOKS:
        if has_hook(experiment, hook):
            routes.setdefault(hook, RouteEntry((), (), hook_location(experiment, hook)))
    return RoutingEntry(routes)


def _schedules(setup: Setup, *, tables: bool) -> dict[str, ScheduleEntry]:
    """Every scalar: a constant, or the schedule's values over the horizon of the build."""
    host = ExperimentHost(setup)
    entries = {name: constant(value) for name, value in host.values.items()}
    for name, value in host.schedules.items():
        dtype = setup.device[name].dtype if name in setup.device else "f32"
        with running(Place(f"schedule {name}", Kind.REFUSED, host.root)):
            table = _table(name, value, setup.horizon, dtype) if tables else None
        entries[name] = ScheduleEntry("schedules", setup.horizon or None, table)
    return entries


def _table(name: str, value: Any, horizon: int, dtype: str) -> tuple[float, ...] | None:
    if not 0 < horizon <= LONGEST_TABLE:
        return None
    try:
        curve = resolve(name, value, horizon, dtype=dtype)
        return tuple(float(curve(step)) for step in range(1, horizon + 1))
    except ScheduleError as error:
        error.step_found = False
        raise


def _interface(setup: Setup, lowered: Lowered) -> InterfaceEntry:
    forward = next((n for n in lowered.programs.emitted if n.startswith("forward.")), None)
    if forward is None or lowered.outputs is None:
        return InterfaceEntry()
    inputs = {
        arg.name.removeprefix("batch."): TensorEntry(arg.dtype, arg.shape)
        for arg in lowered.programs.emitted[forward].args
        if arg.role == "batch"
    }
    return InterfaceEntry(inputs, lowered.outputs.to_json())


def _group(layout: GroupLayout) -> GroupEntry:
    leaves = {
        leaf.path: LeafEntry(
            leaf.path,
            leaf.dtype,
            tuple(leaf.shape),
            tuple(sorted(leaf.flags)),
            buffer.name,
            offset,
        )
        for buffer, rows in layout.rows()
        for leaf, offset in rows
    }
    return GroupEntry(
        layout.group.name,
        layout.group.role,
        tuple(leaves[leaf.path] for leaf in layout.group.leaves),
        tuple(BufferEntry(b.name, b.dtype, tuple(b.shape)) for b in layout.buffers),
    )


def _slots(module: Module) -> tuple[SlotEntry, ...]:
    program = module.programs.get("train_step")
    if program is None:
        return ()
    return tuple(_slot(item) for item in program.inputs if item.role == "slot")


def _slot(item: Input) -> SlotEntry:
    kind = item.value.type
    initial = item.initial
    text = str(initial).lower() if isinstance(initial, bool) else str(initial)
    if isinstance(kind, TreeType):
        return SlotEntry(item.value.name, kind.group, kind.dtype, text)
    return SlotEntry(item.value.name, None, str(kind), text)

"""Looking at stages (`nitroc ir`) and going on from one (`nitroc build --from`)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nitro_dialect import Module, parse, print_module
from nitro_dialect.ir import Group
from nitro_runtime import canonical
from nitro_runtime.bundle import Bundle
from nitro_runtime.errors import BundleError, UsageError
from nitro_runtime.manifest import (
    BatchEntry,
    BatchingEntry,
    ExperimentEntry,
    FieldEntry,
    FunctionEntry,
    InterfaceEntry,
    Manifest,
    NumericsEntry,
    OptionEntry,
    RequiresEntry,
    ScheduleEntry,
    TensorEntry,
)
from nitro_runtime.records import from_json
from nitro_runtime.tensors import TensorFileError, read_tensors
from nitro_runtime.trees import flatten
from nitroc import commands
from nitroc.building import assemble_programs, every_split, hook_of, producer
from nitroc.bundle.values import constant, recorded
from nitroc.bundle.writer import write_bundle
from nitroc.dumps import CONSTANTS, FUNCTIONS, SCHEDULES
from nitroc.emit.program import import_text, program_text
from nitroc.errors import BuildError
from nitroc.frontend.keys import IMPLEMENTATION
from nitroc.frontend.names import did_you_mean
from nitroc.handle import nested
from nitroc.lowering import Programs, Target, emit, evaluation_widths, lower
from nitroc.passes import pipeline

Stages = dict[str, Module]


def ir(
    source: str,
    *,
    program: str = "train_step",
    after: str | None = None,
    every_stage: bool = False,
    diff: str | None = None,
    stablehlo: bool = False,
    locations: bool = False,
    preset: str | None = None,
    settings: Mapping[str, str] | None = None,
    platform: str | None = None,
    compat: str | None = None,
    strip_locs: bool = False,
    **options: Any,
) -> str:
    """The text of one program of an experiment or a bundle: stages, a difference, StableHLO."""
    _one_look(after=after, all=every_stage, diff=diff, stablehlo=stablehlo)
    if Path(source).is_dir():
        commands.refuse_settings(
            source, preset, settings, options | {"platform": platform, "compat": compat}
        )
        bundle = Bundle.open(source)
        if stablehlo:
            return program_text(
                bundle.artifact(_known(program, bundle.manifest.programs)), locations
            )
        stages = _replayed(bundle)
    else:
        target = commands.target_of(platform, compat, strip_locs)
        chosen = commands.choose(source, preset, settings)
        stages, programs = _lowered(chosen, target, options)
        if stablehlo:
            emitted = programs.emitted[_known(program, programs.emitted)]
            return program_text(emitted.artifact, locations)
    return _shown(stages, program, after, every_stage, diff, locations)


def _one_look(**looks: Any) -> None:
    """E-USAGE-037 for two answers to the question what to show."""
    given = [f"--{name}" for name, value in looks.items() if value]
    if len(given) > 1:
        raise UsageError(
            37, f"{' and '.join(given)} show different things", help="leave one of them out"
        )


def _replayed(bundle: Bundle) -> Stages:
    stages: Stages = {}
    module = parse(bundle.read("ir/import.nir").decode())
    pipeline.run(module, on_stage=lambda _, name, made: stages.__setitem__(name, made))
    return stages


def _lowered(
    chosen: commands.Chosen, target: Target, options: Mapping[str, Any]
) -> tuple[Stages, Programs]:
    stages: Stages = {}

    def keep(_: int, name: str, module: Module) -> None:
        stages[name] = module

    setup = every_split(chosen.setup(options))
    lowered = lower(setup, replace(target, on_stage=keep), evaluation_widths(setup))
    return stages, lowered.programs


def _shown(
    stages: Stages,
    program: str,
    after: str | None,
    every_stage: bool,
    diff: str | None,
    locations: bool,
) -> str:
    def text(stage: str) -> str:
        module = stages[_known(stage, stages, "stages")]
        name = _known(program, module.programs)
        return print_module(
            replace(module, programs={name: module.programs[name]}), locations=locations
        )

    if every_stage:
        return "\n".join(f"// {name}\n{text(name)}" for name in stages)
    if diff is None:
        return text(after if after is not None else list(stages)[-1])
    names = list(stages)
    place = names.index(_known(diff, stages, "stages"))
    if place == 0:
        raise UsageError(39, "import is the first stage: no pass made it", help="name a pass")
    before, now = names[place - 1], names[place]
    lines = difflib.unified_diff(
        text(before).splitlines(), text(now).splitlines(), before, now, lineterm=""
    )
    return "\n".join(lines)


def _known(name: str, names: Any, kind: str = "programs") -> str:
    if name in names:
        return name
    raise UsageError(
        39, f"there is no {name!r} among the {kind}", help=did_you_mean(name, list(names), kind)
    )


def build_from(
    dump: str | Path,
    directory: str | Path,
    *,
    weights: str | Path | None = None,
    force: bool = False,
    layout: str = "auto",
    platform: str | None = None,
    compat: str | None = None,
    strip_locs: bool = False,
    **options: Any,
) -> Path:
    """Goes on from a stage that `--dump-ir` wrote; the bundle has no `host/`.

    weights: a safetensors file of `param/<path>` and `state/<path>`, for a module without `init`;
    those of `weights/init.safetensors` of a bundle, for instance.
    """
    if options:
        raise UsageError(
            37,
            f"{next(iter(options))} with --from: the dump's pipeline has decided it",
            help="build from exp.py to change it",
        )
    path = Path(dump)
    try:
        module = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(88, f"{path} can't be read: {error}", help="name a .nir file") from error
    target = commands.target_of(platform, compat, strip_locs)
    functions = _functions(module, path.parent, target.version)
    stored = path.parent / CONSTANTS
    constants = _tensors(stored) if stored.is_file() else {}
    hoisted = {
        name.removeprefix("const/"): array
        for name, array in constants.items()
        if name.startswith("const/")
    }
    programs = emit(module, functions, hoisted, layout=layout, target=target)
    initial = _tensors(Path(weights)) if weights is not None else {}
    if weights is None and "init" not in module.programs:
        raise BuildError(
            89,
            f"{path.name} has no program init, so it says no initial values",
            help="give them: --weights bundle/weights/init.safetensors",
        )
    files = assemble_programs(
        _manifest(module, programs, target, _schedules(module, path.parent)),
        programs,
        weights=initial,
        constants=constants,
    )
    try:
        Bundle.from_files(files, trusted=True)
    except BundleError as error:
        raise BuildError(
            88,
            f"the dump and its weights make no bundle: {error.what}",
            where=error.where,
            also=error.also,
            help="take weights of the same model, and a stage as --dump-ir wrote it",
        ) from error
    return write_bundle(files, directory, force=force)


def _tensors(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_tensors(path.read_bytes())
    except (OSError, TensorFileError) as error:
        raise BuildError(
            88, f"{path} can't be read: {error}", help="name a safetensors file: that of a bundle"
        ) from error


def _functions(module: Module, root: Path, version: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for function in module.functions.values():
        file = root / FUNCTIONS / f"{function.digest}.mlir"
        if not file.is_file():
            raise BuildError(
                88,
                f"@{function.name} has no {FUNCTIONS}/{file.name} beside the dump",
                where=str(root),
                help="keep the stages and their functions together, as --dump-ir wrote them",
            )
        found[function.digest] = import_text(file.read_text(encoding="utf-8"), version)
    return found


def _schedules(module: Module, root: Path) -> dict[str, ScheduleEntry]:
    """The scalars' values: those beside the dump, else what the module itself says."""
    found = {d.name: constant(d.value) for d in module.devices if d.value is not None}
    file = root / SCHEDULES
    if not file.is_file():
        return found
    try:
        stored = canonical.parse(file.read_bytes())
        read = {name: from_json(ScheduleEntry, value) for name, value in stored.items()}
    except (OSError, AttributeError, canonical.CanonicalError) as error:
        raise _bad_schedules(file, str(error)) from error
    for name, (entry, mismatches) in read.items():
        if entry is None:
            raise _bad_schedules(file, f"{name}: {mismatches[0]}")
        found[name] = entry
    return found


def _bad_schedules(file: Path, why: str) -> BuildError:
    return BuildError(
        88, f"{file} can't be read: {why}", help="dump the stages again with nitroc build --dump-ir"
    )


def _manifest(
    module: Module, programs: Programs, target: Target, schedules: dict[str, ScheduleEntry]
) -> Manifest:
    """What a module says of a bundle: no routing, no schema of splits but the train program's."""
    devices = {device.name: device for device in module.devices}
    fields = {
        name: FieldEntry("Device", str(device.type), recorded(device.value), "", "default")
        for name, device in devices.items()
    }
    batch = {
        arg.value: TensorEntry(arg.dtype, arg.shape[2:])
        for arg in (programs.emitted["train_step"].args if "train_step" in programs.emitted else ())
        if arg.role == "batch"
    }
    width = next((entry.shape[0] for entry in batch.values()), 0)
    outputs = next((g for g in module.groups.values() if g.role == "outputs"), None)
    return Manifest(
        name=module.name,
        experiment=ExperimentEntry(module.name, None),
        numerics=NumericsEntry("default", IMPLEMENTATION),
        pipeline=programs.final.done,
        fields=fields,
        options={"max_epochs": OptionEntry(1, "default", False)},
        functions={
            name: FunctionEntry(hook_of(name), function.digest, "")
            for name, function in module.functions.items()
        },
        batch_schema={"train": BatchEntry(batch, width, None)} if batch else {},
        schedules=schedules,
        interface=InterfaceEntry({}, _outputs(outputs)),
        batching=BatchingEntry(
            tuple(sorted(d["width"] for n, d in programs.dims.items() if n.startswith("forward."))),
            None,
        ),
        requires=RequiresEntry(platforms=(target.platform,)),
        producer=producer(),
    )


def _outputs(group: Group | None) -> Any:
    if group is None:
        return None
    spec, _ = flatten(nested({leaf.path: np.empty(0) for leaf in group.leaves}))
    return spec.to_json()

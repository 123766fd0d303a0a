"""Going on from a stage that `--dump-ir` wrote, without the Python of it: `nitroc build --from`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nitro_dialect import Module, parse
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
    TensorEntry,
)
from nitro_runtime.records import from_json
from nitro_runtime.tensors import TensorFileError, read_tensors
from nitro_runtime.trees import flatten
from nitroc import commands
from nitroc.building import assemble_programs, hook_of, producer
from nitroc.bundle.values import constant, recorded
from nitroc.bundle.writer import write_bundle
from nitroc.dumps import CONSTANTS, FUNCTIONS, RECORDED, Recorded
from nitroc.emit.program import import_text
from nitroc.errors import BuildError
from nitroc.frontend.keys import IMPLEMENTATION
from nitroc.handle import nested
from nitroc.lowering import Programs, Target, emit


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
        _manifest(module, programs, target, _recorded(module, path.parent)),
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


def _recorded(module: Module, root: Path) -> Recorded:
    """What stands beside the dump, else what the module itself says."""
    found = {d.name: constant(d.value) for d in module.devices if d.value is not None}
    file = root / RECORDED
    if not file.is_file():
        return Recorded(None, found)
    try:
        entry, mismatches = from_json(Recorded, canonical.parse(file.read_bytes()))
    except (OSError, canonical.CanonicalError) as error:
        entry, mismatches = None, [str(error)]
    if entry is None:
        raise BuildError(
            88,
            f"{file} can't be read: {mismatches[0]}",
            help="dump the stages again with nitroc build --dump-ir",
        )
    return Recorded(entry.row_independent, found | entry.schedules)


def _manifest(module: Module, programs: Programs, target: Target, beside: Recorded) -> Manifest:
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
        schedules=beside.schedules,
        interface=InterfaceEntry({}, _outputs(outputs)),
        batching=BatchingEntry(
            tuple(sorted(d["width"] for n, d in programs.dims.items() if n.startswith("forward."))),
            beside.row_independent,
        ),
        requires=RequiresEntry(platforms=(target.platform,)),
        producer=producer(),
    )


def _outputs(group: Group | None) -> Any:
    if group is None:
        return None
    spec, _ = flatten(nested({leaf.path: np.empty(0) for leaf in group.leaves}))
    return spec.to_json()

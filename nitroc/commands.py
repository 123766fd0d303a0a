"""Commands that make and use bundles, as functions (`nitroc build` is `nt.build`)."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.data import arrays
from nitro_runtime.durable import replace_file
from nitro_runtime.errors import DataError, UsageError
from nitro_runtime.host import HostHooks
from nitro_runtime.manifest import Manifest
from nitro_runtime.options import RunOptions
from nitro_runtime.recorded import not_run, recorded_host
from nitro_runtime.selftest import platform_name
from nitro_runtime.trees import flatten
from nitroc import sources
from nitroc.building import build_files
from nitroc.bundle.values import recorded, restored
from nitroc.bundle.writer import check_target, write_bundle
from nitroc.dumps import Dump
from nitroc.emit.compat import resolve_compat
from nitroc.errors import BuildError
from nitroc.frontend.experiment import Experiment, config_metadata
from nitroc.frontend.names import did_you_mean
from nitroc.frontend.options import OBJECTS, OPTIONS, run_options, unknown_option
from nitroc.frontend.settings import preset_values, read_option, read_settings
from nitroc.frontend.setup import Setup, prepare
from nitroc.frontend.values import convert
from nitroc.handle import Nitro
from nitroc.hosting import ExperimentHost
from nitroc.lowering import Target

Settings = Mapping[str, str]
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@dataclass(frozen=True)
class Chosen:
    """An experiment with its settings: what `build`, `ir` and `explain` start from.

    options: run options recorded by `--set`. given: where a field's value came from, by name.
    """

    experiment: Experiment
    origin: sources.Origin
    options: dict[str, Any]
    given: dict[str, str]
    preset: str | None

    def setup(self, options: Mapping[str, Any]) -> Setup:
        """The experiment set up; `options` are keywords, the recorded ones come after."""
        named = {} if self.preset is None else {"preset": self.preset}
        return prepare(self.experiment, {**options, **named}, self.options)


def choose(
    experiment: str | Experiment | type[Experiment],
    preset: str | None = None,
    settings: Settings | None = None,
) -> Chosen:
    """An instance, a class, or `exp.py[:Class]`, with a preset and `--set` texts."""
    if isinstance(experiment, Experiment):
        cls = type(experiment)
        given = {
            field.name: "keyword"
            for field in config_metadata(cls)
            if getattr(experiment, field.name) is not field.default
        }
        return Chosen(experiment, sources.origin_of(cls), {}, given, preset)
    origin = (
        sources.load(experiment) if isinstance(experiment, str) else sources.origin_of(experiment)
    )
    values = dict(preset_values(origin.cls, preset)) if preset else {}
    read = read_settings(origin.cls, settings or {}, command="build")
    given = dict.fromkeys(values, f"preset {preset}") | dict.fromkeys(read.fields, "--set")
    instance = origin.cls(**{**values, **read.fields})
    return Chosen(instance, origin, read.options, given, preset)


def target_of(
    platform: str | None = None,
    compat: str | None = None,
    strip_locs: bool = False,
    roundtrip: bool = False,
) -> Target:
    """What to lower for; the platform of this machine by default. E-USAGE-036 for another name."""
    name = platform or platform_name(pjrt.devices()[0])
    if name not in PLATFORMS:
        raise UsageError(
            36, f"unknown platform {name!r}", help=did_you_mean(name, PLATFORMS, "platforms")
        )
    return Target(name, resolve_compat(compat), strip_locs, roundtrip)


def refuse_settings(
    source: str, preset: str | None, settings: Settings | None, options: Mapping[str, Any]
) -> None:
    """E-USAGE-037 for values of an experiment given with something that is built already."""
    given = {"preset": preset, "set": settings, **options}
    names = [name for name, value in given.items() if value not in (None, {}, False)]
    if names:
        raise UsageError(
            37,
            f"--{names[0].replace('_', '-')} with {source}, which is no experiment: it would "
            "change nothing",
            help="leave it out, or name the experiment's file",
        )


def build(
    experiment: str | Experiment | type[Experiment],
    directory: str | Path,
    *,
    force: bool = False,
    preset: str | None = None,
    settings: Settings | None = None,
    dump_ir: str | Path | None = None,
    roundtrip: bool = False,
    platform: str | None = None,
    compat: str | None = None,
    strip_locs: bool = False,
    **options: Any,
) -> Path:
    """Builds a bundle and returns its path.

    experiment: an instance, a class, or `exp.py[:Class]`. settings: `--set` texts; a run option
    among them becomes the bundle's default. dump_ir: a directory for every stage.
    """
    check_target(directory, force)
    chosen = choose(experiment, preset, settings)
    target = target_of(platform, compat, strip_locs, roundtrip)
    dump = Dump(Path(dump_ir)) if dump_ir is not None else None
    if dump is not None:
        target = replace(target, on_stage=dump.stage)
    _check_recordable({**chosen.options, **options})
    built = build_files(
        chosen.setup(options),
        target,
        origin=chosen.origin,
        given=chosen.given,
    )
    if dump is not None:
        dump.finish(built.lowered.programs, built.files)
    return write_bundle(built.files, directory, force=force)


def _check_recordable(options: Mapping[str, Any]) -> None:
    """E-USAGE-007 for an option that would be lost between the build and the run."""
    for name, value in options.items():
        one_run = name in ("resume", "checkpoint")
        if one_run or (name in OBJECTS and value is not None):
            raise UsageError(
                7,
                f"{name} {'belongs to one run' if one_run else 'is a Python object'}: a bundle "
                "can't record it",
                where=f"option {name}",
                help="give it to the run" if one_run else "write it in the experiment's class",
            )


def open_bundle(
    directory: str | Path,
    *,
    settings: Settings | None = None,
    quiet: bool = False,
    backend: str | None = None,
    **options: Any,
) -> Nitro:
    """The handle of a bundle with its experiment, imported from the verified `host/`.

    settings: `--set` texts of Device and Host fields and unbaked options. With `data=` (a dict of
    splits) nothing of the bundle is imported: scalars are those recorded at build.
    """
    for name in options:
        if name in OPTIONS and OPTIONS[name].baked:
            raise UsageError(
                5,
                f"the option {name} is part of the compiled programs and can't change when the "
                "bundle runs",
                where=f"option {name}",
                help="build again with it",
            )
    bundle = Bundle.open(directory)
    if options.get("data") is not None:
        return _without_host(bundle, settings, options, quiet, backend)
    setup = _setup_of(bundle, settings or {}, options)
    _check_graphconst(bundle, setup)
    values = run_options(setup.experiment, setup.options, quiet=quiet, backend=backend)
    return Nitro.of_bundle(bundle, ExperimentHost(setup), values, setup)


def _setup_of(bundle: Bundle, settings: Settings, options: Mapping[str, Any]) -> Setup:
    manifest = bundle.manifest
    if manifest.experiment.file is None:
        raise BuildError(
            84,
            f"the bundle carries no Python of {manifest.experiment.name}",
            help="give the splits themselves: --data F.npz",
        )
    carried = {n: bundle.read(n) for n in bundle.names() if n.startswith("host/")}
    where = str(bundle.path or "")
    origin = sources.load_carried(
        carried, manifest.experiment.file.removeprefix("host/"), manifest.experiment.name, where
    )
    read = read_settings(origin.cls, settings, command="run")
    given = {**_recorded_fields(bundle, origin.cls), **read.fields}
    kept = {
        name: entry.value
        for name, entry in manifest.options.items()
        if entry.baked or entry.source in ("keyword", "recorded")
    }
    return prepare(origin.cls(**given), {**read.options, **options}, kept)


def _recorded_fields(bundle: Bundle, cls: type[Experiment]) -> dict[str, Any]:
    """Values that the bundle was built with and that are not the class's defaults."""
    values: dict[str, Any] = {}
    stored = bundle.arrays("weights/constants.safetensors")
    for field in config_metadata(cls):
        entry = bundle.manifest.fields.get(field.name)
        if entry is None or entry.source in ("default", "derive"):
            continue
        array = stored.get(f"device/{field.name}")
        if array is not None:
            values[field.name] = array
            continue
        value = restored(entry.value)
        if isinstance(value, dict):
            raise BuildError(
                85,
                f"the value of {field.name} was {entry.value}, which a bundle can't give back",
                where=f"{cls.__name__}.{field.name}",
                help="make it the field's default, or give it in Python",
            )
        values[field.name] = convert(value, field.type)
    return values


def _check_graphconst(bundle: Bundle, setup: Setup) -> None:
    for name, value in setup.graphconst.items():
        built = bundle.manifest.fields[name].value
        if recorded(value) != built:
            raise BuildError(
                86,
                f"GraphConst {name} is {recorded(value)} now, the bundle was built with {built}",
                where=f"{type(setup.experiment).__name__}.{name}",
                help="build again with these data",
            )


def _without_host(
    bundle: Bundle,
    settings: Settings | None,
    options: Mapping[str, Any],
    quiet: bool,
    backend: str | None,
) -> Nitro:
    manifest = bundle.manifest
    devices, read = _read_without_host(manifest, settings or {})
    given = {**read, **{name: value for name, value in options.items() if name != "data"}}
    values = _recorded_options(manifest, given)
    splits = {
        name: _cut(name, split, _width(manifest, name)) for name, split in options["data"].items()
    }
    host = recorded_host(bundle, splits)
    run_options = RunOptions(**values, quiet=quiet, backend=backend)
    handle = Nitro.of_bundle(bundle, host, run_options, notes=not_run(bundle))
    handle.set_device(**devices)
    return handle


def _read_without_host(
    manifest: Manifest, settings: Settings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Device values and run options of `--set` texts, as far as a manifest can read them."""
    devices: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, text in settings.items():
        field = manifest.fields.get(name)
        if name in OPTIONS:
            options[name] = read_option(name, text, "run")
        elif field is not None and field.kind == "Device":
            devices[name] = _number(name, text)
        elif field is None:
            known = {*manifest.fields, *OPTIONS}
            raise UsageError(
                1,
                f"--set {name}={text}: {manifest.name} has no field and nitroc no option {name!r}",
                where=f"--set {name}",
                help=did_you_mean(name, known, "fields and options"),
            )
        else:
            raise UsageError(
                37,
                f"--set {name} with --data: {name} is {field.kind}, and the experiment's Python "
                "is not imported",
                where=f"--set {name}",
                help="leave out --set, or --data",
            )
    return devices, options


def _recorded_options(manifest: Manifest, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a run without the experiment: `given`, else as the bundle was built."""
    names = {field.name for field in fields(RunOptions)} - {"quiet", "backend"}
    for name in given:
        if name not in OPTIONS:
            raise unknown_option(name)
        if name not in names:
            raise UsageError(
                37,
                f"the option {name} with data given: the experiment's Python is not imported",
                help="leave it out, or the data",
            )
    recorded = {n: o.value for n, o in manifest.options.items() if n in names}
    values = {**recorded, **given}
    values["tags"] = tuple(values.get("tags", ()))
    values["run_dir"] = values.get("run_dir") or Path("runs") / manifest.name
    return values


def _width(manifest: Manifest, split: str) -> int:
    """The rows a batch of `split` has: as that split was compiled, else any split."""
    schema = manifest.batch_schema
    entry = schema.get(split) or schema.get("train") or next(iter(schema.values()), None)
    return 1 if entry is None else entry.width


def _cut(split: str, fields: Any, width: int) -> Any:
    """A split of plain arrays at the compiled width; a remainder is dropped in train only."""
    if not isinstance(fields, Mapping):
        return fields
    return arrays(dict(fields), width, shuffle=split == "train", drop_last=split == "train")


def read_splits(file: str | Path) -> dict[str, dict[str, np.ndarray]]:
    """The splits of an npz: keys `split/field`, or fields of `train` alone."""
    splits: dict[str, dict[str, np.ndarray]] = {}
    for key, array in read_arrays(file).items():
        split, slash, name = key.partition("/")
        splits.setdefault(split if slash else "train", {})[name if slash else key] = array
    return splits


def read_arrays(file: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an npz; E-DATA-090 when it is none, or holds objects."""
    try:
        with Path(file).open("rb") as opened:
            if not zipfile.is_zipfile(opened):
                raise ValueError("it is no zip archive")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as stored:
                return {name: _array(name, stored[name]) for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            90,
            f"{file} is no npz of plain arrays: {getattr(error, 'strerror', None) or error}",
            help="write it with numpy.savez(file, field=array)",
        ) from error


def run(
    bundle: str | Path,
    *,
    settings: Settings | None = None,
    data_file: str | Path | None = None,
    quiet: bool = False,
    backend: str | None = None,
    **options: Any,
) -> Nitro:
    """Trains a bundle and returns its handle."""
    return _open(bundle, settings, data_file, quiet, backend, options).train()


def evaluate(
    bundle: str | Path,
    *,
    checkpoint: str | Path,
    split: str = "test",
    settings: Settings | None = None,
    data_file: str | Path | None = None,
    quiet: bool = False,
    backend: str | None = None,
) -> dict[str, Any]:
    """The metrics of one split under a checkpoint's weights."""
    options = {"checkpoint": checkpoint}
    return _open(bundle, settings, data_file, quiet, backend, options).evaluate(split)


def _open(
    bundle: str | Path,
    settings: Settings | None,
    data_file: str | Path | None,
    quiet: bool,
    backend: str | None,
    options: Mapping[str, Any],
) -> Nitro:
    given = dict(options)
    if data_file is not None:
        given["data"] = read_splits(data_file)
    return open_bundle(bundle, settings=settings, quiet=quiet, backend=backend, **given)


def predict(
    bundle: str | Path,
    *,
    checkpoint: str | Path,
    input_file: str | Path,
    output: str | Path,
    settings: Settings | None = None,
    quiet: bool = False,
    backend: str | None = None,
) -> None:
    """Writes `forward`'s outputs for the arrays of `input_file`; no Python of the bundle runs.

    A bare output array is called `outputs`, others by their path.
    """
    opened = Bundle.open(bundle)
    host: HostHooks = recorded_host(opened, {})
    options = RunOptions(checkpoint=checkpoint, quiet=quiet, backend=backend)
    handle = Nitro.of_bundle(opened, host, options)
    for name, text in (settings or {}).items():
        handle.set_device(**{name: _number(name, text)})
    outputs = handle.predict(read_arrays(input_file))
    _, leaves = flatten(outputs)
    named = {"outputs" if path == "@" else path: leaf for path, leaf in leaves.items()}
    _write_arrays(Path(output), named)


def _array(name: str, value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"its member {name} is no array")
    return value


def _write_arrays(path: Path, named: Mapping[str, np.ndarray]) -> None:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **named)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content.getvalue())  # a pipe or a device is no file to replace
        else:
            replace_file(path.resolve(), content.getvalue())
    except OSError as error:
        raise UsageError(
            40,
            f"the outputs can't be written: {error.strerror}",
            where=str(path),
            help="name a file in a directory that can be written: -o y.npz",
        ) from error


def _number(name: str, text: str) -> float | int | bool:
    known: dict[str, bool] = {"true": True, "false": False}
    if text.lower() in known:
        return known[text.lower()]
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise UsageError(
            4, f"--set {name}={text}: {text!r} can't be read, expected a number"
        ) from None

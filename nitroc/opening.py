"""A bundle on disk, opened with its experiment or without: the handle that commands use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from nitro_dialect.ir import Group, Leaf
from nitro_runtime.bundle import Bundle
from nitro_runtime.data import arrays
from nitro_runtime.errors import UsageError
from nitro_runtime.manifest import Manifest
from nitro_runtime.options import RunOptions
from nitro_runtime.recorded import not_run, recorded_host
from nitroc import sources
from nitroc.bundle.values import recorded, restored
from nitroc.errors import BuildError
from nitroc.frontend.experiment import Experiment, config_metadata
from nitroc.frontend.groups import Groups
from nitroc.frontend.names import did_you_mean
from nitroc.frontend.options import OPTIONS, run_options, unknown_option
from nitroc.frontend.settings import read_option, read_settings
from nitroc.frontend.setup import Setup, prepare
from nitroc.frontend.values import convert
from nitroc.handle import Nitro
from nitroc.hosting import ExperimentHost

Settings = Mapping[str, str]


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
    keywords = {**read.options, **options}
    return prepare(origin.cls(**given), keywords, kept, groups=_recorded_groups(manifest))


def _recorded_groups(manifest: Manifest) -> Groups:
    """The groups that the programs were built for, without trees or values."""
    found = {
        entry.role: Group(
            entry.name,
            entry.role,
            tuple(Leaf(e.path, e.dtype, e.shape, frozenset(e.flags)) for e in entry.leaves),
        )
        for entry in manifest.groups
    }
    return Groups(found["param"], found["state"])


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
            devices[name] = read_number(name, text)
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
    for name in ("tags", "diagnostics"):
        values[name] = tuple(values.get(name, ()))
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


def read_number(name: str, text: str) -> float | int | bool:
    """A Device scalar written as text; E-USAGE-004 for one that is no number."""
    known: dict[str, bool] = {"true": True, "false": False}
    if text.lower() in known:
        return known[text.lower()]
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise UsageError(
            4, f"--set {name}={text}: {text!r} can't be read, expected a number"
        ) from None

"""Commands that make bundles, as functions (`nitroc build` is `nt.build`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nitro_runtime import pjrt
from nitro_runtime.errors import UsageError
from nitro_runtime.selftest import platform_name
from nitroc import sources
from nitroc.building import build_files
from nitroc.bundle.writer import check_target, write_bundle
from nitroc.dumps import Dump
from nitroc.emit.compat import resolve_compat
from nitroc.frontend.experiment import Experiment, config_metadata
from nitroc.frontend.names import did_you_mean
from nitroc.frontend.options import OBJECTS
from nitroc.frontend.settings import preset_values, read_settings
from nitroc.frontend.setup import Setup, prepare
from nitroc.lowering import Target
from nitroc.opening import Settings

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

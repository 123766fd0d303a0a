"""Looking at the stages of an experiment or a bundle: `nitroc ir`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nitro_dialect import Module, parse, print_module
from nitro_runtime.bundle import Bundle
from nitro_runtime.errors import UsageError
from nitroc import commands
from nitroc.building import every_split
from nitroc.emit.program import program_text
from nitroc.frontend.names import did_you_mean
from nitroc.lowering import Programs, Target, evaluation_widths, lower
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

    # a pass makes train_step_sampled: earlier stages have nothing of it
    there = [name for name, module in stages.items() if program in module.programs]
    if every_stage and there:
        return "\n".join(f"// {name}\n{text(name)}" for name in there)
    if diff is None:
        return text(after if after is not None else list(stages)[-1])
    names = list(stages)
    place = names.index(_known(diff, stages, "stages"))
    if place == 0:
        raise UsageError(39, "import is the first stage: no pass made it", help="name a pass")
    before, now = names[place - 1], names[place]
    made_here = now in there and before not in there
    lines = difflib.unified_diff(
        [] if made_here else text(before).splitlines(),
        text(now).splitlines(),
        before,
        now,
        lineterm="",
    )
    return "\n".join(lines)


def _known(name: str, names: Any, kind: str = "programs") -> str:
    if name in names:
        return name
    raise UsageError(
        39, f"there is no {name!r} among the {kind}", help=did_you_mean(name, list(names), kind)
    )

"""`nitroc explain`: an error code's page, or the binding report of an experiment or a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nitro_dialect.ir import Leaf
from nitro_runtime.bundle import Bundle
from nitro_runtime.errors import UsageError
from nitro_runtime.manifest import Manifest, ScheduleEntry
from nitro_runtime.recorded import CONSTANT
from nitroc import commands, error_pages, placed
from nitroc.building import every_split, report_programs, rows_line
from nitroc.bundle.values import restored
from nitroc.frontend.group_report import NO_DECAY, listed
from nitroc.frontend.names import did_you_mean, near
from nitroc.lowering import evaluation_widths, lower


def explain(
    source: str,
    *,
    preset: str | None = None,
    settings: Mapping[str, str] | None = None,
    platform: str | None = None,
    compat: str | None = None,
    strip_locs: bool = False,
    **options: Any,
) -> str:
    """Text that explains `source`: a code (`E-FIELD-001`), `exp.py[:Class]`, or a bundle."""
    is_code = error_pages.CODE.fullmatch(source.upper()) is not None
    if is_code or Path(source).is_dir():
        given = options | {"platform": platform, "compat": compat}
        commands.refuse_settings(source, preset, settings, given)
    if is_code:
        return _code(source.upper())
    if Path(source).is_dir():
        return _bundle(Bundle.open(source).manifest)
    chosen = commands.choose(source, preset, settings)
    setup, target = (
        every_split(chosen.setup(options)),
        commands.target_of(platform, compat, strip_locs),
    )
    report_programs(setup, target, lower(setup, target, evaluation_widths(setup)))
    return setup.report.text()


def _code(code: str) -> str:
    known = error_pages.codes()
    if code in known:
        return error_pages.explanation(code)
    area = error_pages.area(near(code, known) or code)
    codes = [name for name in known if error_pages.area(name) == area]
    raise UsageError(
        38, f"there is no code {code}", help=did_you_mean(code, codes, f"E-{area} codes")
    )


def _bundle(manifest: Manifest) -> str:
    lines = [f"{manifest.name}: bundle {manifest.digest[:16]}, pipeline {manifest.pipeline}"]
    lines += _section(
        "fields",
        {n: f"{e.kind} {restored(e.value)}  ({e.source})" for n, e in manifest.fields.items()},
    )
    lines += _section(
        "options",
        {
            n: f"{e.value}  ({e.source}{', baked' if e.baked else ''})"
            for n, e in manifest.options.items()
        },
    )
    lines += _section("groups", dict(_groups(manifest)))
    lines += _section(
        "slots", {s.name: f"{s.group or s.dtype} = {s.initial}" for s in manifest.slots}
    )
    lines += _section("schedules", {n: _schedule(e) for n, e in manifest.schedules.items()})
    lines += _section(
        "programs",
        {
            n: f"{p.role} {p.dims}: {len(p.args)} arguments, {len(p.results)} results"
            for n, p in manifest.programs.items()
        },
    )
    lines += _section(
        "routing",
        {
            h: f"{', '.join(r.fields) or 'no fields'}  ({r.source})"
            for h, r in manifest.routing.hooks.items()
        },
    )
    lines += _section("report", {e.name: f"word {e.index}, {e.kind}" for e in manifest.report})
    lines += _section("guards", dict(_guards(manifest)))
    rows = rows_line(manifest.batching.row_independent, manifest.guards)
    lines += _section("batching", {"rows": rows})
    return "\n".join(lines)


def _guards(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for key, text, source in placed.lines(manifest.guards):
        yield key, f"{text}  ({source})" if source else text


def _groups(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for group in manifest.groups:
        yield group.name, f"{len(group.leaves)} leaves in {len(group.buffers)} buffers"
        if group.role != "param":
            continue
        leaves = [Leaf(e.path, e.dtype, e.shape, frozenset(e.flags)) for e in group.leaves]
        stage = "decay{" in manifest.pipeline
        decayed = [leaf for leaf in leaves if stage and "decay" in leaf.flags]
        yield f"{group.name}.decayed", listed(decayed) if stage else NO_DECAY
        yield f"{group.name}.exempt", listed([leaf for leaf in leaves if leaf not in decayed])


def _schedule(entry: ScheduleEntry) -> str:
    """A constant, or the first, highest and last of the recorded values with their steps."""
    if entry.table is None and entry.source == CONSTANT:
        return "not finite: see the field"
    if entry.table is None:
        return f"{entry.source}, over {entry.horizon or 'no'} steps, values not recorded"
    if entry.source == CONSTANT:
        return repr(entry.table[0])
    peak = max(range(len(entry.table)), key=entry.table.__getitem__)
    return (
        f"first {entry.table[0]!r}, peak {entry.table[peak]!r} at step {peak + 1}, "
        f"last {entry.table[-1]!r} at step {len(entry.table)}  ({entry.source})"
    )


def _section(title: str, rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, rows), default=0)
    return (
        [f"{title}:", *(f"  {name.ljust(width)}  {text}" for name, text in rows.items())]
        if rows
        else []
    )

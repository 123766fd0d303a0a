"""`nitroc build`: an experiment, or a dump of one, becomes a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nitro_runtime.errors import UsageError
from nitroc import commands, from_dump
from nitroc.cli.flags import build_flags, given_options, quiet_flag


@click.command(name="build", epilog="Example: nitroc build exp.py -o bundle/ --set width=256")
@click.argument("experiment", required=False, metavar="exp.py[:Class]")
@click.option("-o", "--output", metavar="DIR", required=True, help="The bundle's new name.")
@click.option("--force", is_flag=True, help="Replace a bundle of that name.")
@build_flags
@click.option("--dump-ir", metavar="DIR", help="Write every stage with its functions.")
@click.option("--check", metavar="roundtrip", help="Re-read the text of each stage and compare.")
@click.option("--from", "from_", metavar="FILE.nir", help="Go on from a dump instead of exp.py.")
@click.option("--weights", metavar="FILE", help="Initial values, for a dump without init.")
@quiet_flag
def command(
    experiment: str | None,
    output: str,
    force: bool,
    dump_ir: str | None,
    check: str | None,
    from_: str | None,
    weights: str | None,
    quiet: bool,
    **values: Any,
) -> None:
    """Lowers an experiment to StableHLO programs and writes them as a bundle."""
    if check not in (None, "roundtrip"):
        raise UsageError(33, f"--check is {check!r}, expected roundtrip")
    if (experiment is None) == (from_ is None):
        raise UsageError(
            34, "give either exp.py or --from FILE.nir", help="nitroc build exp.py -o bundle/"
        )
    options = given_options(values)
    if from_ is not None:
        _decided_by_dump({**values, "dump_ir": dump_ir, "check": check})
        path = from_dump.build_from(from_, output, weights=weights, force=force, **options)
    else:
        assert experiment is not None
        if weights is not None:
            raise UsageError(
                37,
                "--weights without --from: build_model gives the initial values",
                help="load them in build_model, or warm start a run: nitroc run --checkpoint C",
            )
        path = commands.build(
            experiment,
            output,
            force=force,
            dump_ir=dump_ir,
            roundtrip=check == "roundtrip",
            preset=values["preset"],
            settings=values["settings"],
            **options,
        )
    if not quiet:
        size = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
        click.echo(f"{path}: {size / 1e3:.0f} kB", err=True)


def _decided_by_dump(values: dict[str, Any]) -> None:
    given = {"preset": "--preset", "settings": "--set", "dump_ir": "--dump-ir", "check": "--check"}
    for name, flag in given.items():
        if values[name]:
            raise UsageError(
                37,
                f"{flag} with --from: it goes with an experiment",
                help="build from exp.py, or leave it out",
            )
